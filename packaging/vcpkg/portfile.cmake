# Unpacks the tarball beside this file: `vcpkg install nvte --overlay-ports=FOLDER`. Only plain CMake is used.
set(VCPKG_POLICY_DLLS_WITHOUT_LIBS enabled)
set(VCPKG_POLICY_MISMATCHED_NUMBER_OF_BINARIES enabled)
set(VCPKG_POLICY_ALLOW_EMPTY_FOLDERS enabled)

set(unpacked "${CURRENT_BUILDTREES_DIR}/unpacked")
file(REMOVE_RECURSE "${unpacked}")
file(ARCHIVE_EXTRACT INPUT "${CMAKE_CURRENT_LIST_DIR}/@ARCHIVE@" DESTINATION "${unpacked}")
file(GLOB root "${unpacked}/*")
file(COPY "${root}/include" "${root}/lib" DESTINATION "${CURRENT_PACKAGES_DIR}")
file(COPY "${root}/bin/" DESTINATION "${CURRENT_PACKAGES_DIR}/tools/nvte" USE_SOURCE_PERMISSIONS)

# vcpkg wants CMake's files under share, one folder nearer to the prefix.
file(GLOB files "${root}/lib/cmake/nvte/*")
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME)
  file(READ "${file}" text)
  string(REPLACE "/../../.." "/../.." text "${text}")
  file(WRITE "${CURRENT_PACKAGES_DIR}/share/nvte/${name}" "${text}")
endforeach()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/lib/cmake")
file(COPY "${root}/share/doc/nvte/" DESTINATION "${CURRENT_PACKAGES_DIR}/share/nvte")
file(RENAME "${CURRENT_PACKAGES_DIR}/share/nvte/LICENSE" "${CURRENT_PACKAGES_DIR}/share/nvte/copyright")
