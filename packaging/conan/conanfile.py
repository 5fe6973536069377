"""The package of nvte for Conan 2: `conan create .` in this folder, which has the tarball."""

import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.files import copy, unzip


class Nvte(ConanFile):
    name = "nvte"
    version = "@VERSION@"
    license = "Apache-2.0"
    description = "FP8 training operators for Transformers behind a C ABI, on CPU and CUDA"
    package_type = "shared-library"
    settings = "os", "arch"
    exports_sources = "@ARCHIVE@"

    def validate(self):
        if (self.settings.os, self.settings.arch) != ("Linux", "x86_64"):
            raise ConanInvalidConfiguration("nvte is built for Linux on x86_64")

    def package(self):
        unzip(self, os.path.join(self.source_folder, "@ARCHIVE@"), destination=self.build_folder, strip_root=True)
        for folder in ("bin", "include", "lib"):
            copy(self, "*", os.path.join(self.build_folder, folder), os.path.join(self.package_folder, folder))
        copy(self, "*", os.path.join(self.build_folder, "share/doc/nvte"), os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.libs = ["nvte"]
        self.cpp_info.set_property("cmake_file_name", "nvte")
        self.cpp_info.set_property("cmake_target_name", "nvte::nvte")
        self.cpp_info.set_property("pkg_config_name", "nvte")
