// What happens when libtransformer_engine.so is loaded, and the CUDA libraries that it makes
// visible.

#include "libraries.h"

#include <dlfcn.h>
#include <cstdlib>
#include <string>

#include "nvte/nvtex.h"

namespace {

// CUDA releases whose libraries this one works with, the preferred one first.
constexpr int kMajors[] = {13, 12};
// What cudaRuntimeGetVersion answers in a process without libcudart: the release of the kernels.
constexpr int kRuntimeVersion = 13000;

void *g_runtime = nullptr;
void *g_cublaslt = nullptr;

std::string file_of(const char *library, int major) {
  return std::string(library) + ".so." + std::to_string(major);
}

bool is_loaded(const std::string &file) {
  return dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

// Opens a library for the whole process: where the loader finds it, which may be a copy that is
// loaded already, else in a CUDA toolkit. Null if it is nowhere.
void *open_for_all(const std::string &file) {
  void *library = dlopen(file.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  for (const char *variable : {"CUDA_HOME", "CUDA_PATH"}) {
    // Null in a process with more privileges than its user.
    const char *home = secure_getenv(variable);
    if (library != nullptr || home == nullptr || home[0] != '/') continue;
    library = dlopen((std::string(home) + "/lib64/" + file).c_str(), RTLD_LAZY | RTLD_GLOBAL);
  }
  if (library != nullptr) return library;
  return dlopen(("/usr/local/cuda/lib64/" + file).c_str(), RTLD_LAZY | RTLD_GLOBAL);
}

// The release of CUDA that the process uses already; 0 if it has loaded none of these libraries.
int major_of_process() {
  for (const char *library : {"libcudart", "libcublasLt", "libcublas"}) {
    for (int major : kMajors) {
      if (is_loaded(file_of(library, major))) return major;
    }
  }
  return 0;
}

// Extensions of Python are linked to some of CUDA's libraries only, and find the functions of the
// others because the library in whose place this one stands is linked to them and is loaded for
// all.
void show_libraries(int major) {
  g_runtime = open_for_all(file_of("libcudart", major));
  g_cublaslt = open_for_all(file_of("libcublasLt", major));
  open_for_all(file_of("libcublas", major));
}

__attribute__((constructor)) void load() {
  nvtex_set_drop_in(true);
  int major = major_of_process();
  for (int candidate : kMajors) {
    if (major == 0 && open_for_all(file_of("libcudart", candidate)) != nullptr) major = candidate;
  }
  if (major != 0) show_libraries(major);
}

// A program may have loaded the library after this one.
void *opened_later(const char *library) {
  for (int major : kMajors) {
    void *found = dlopen(file_of(library, major).c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (found != nullptr) return found;
  }
  return nullptr;
}

void *function(void *library, const char *name) {
  return library != nullptr ? dlsym(library, name) : nullptr;
}

}  // namespace

namespace drop_in {

void *runtime_function(const char *name) {
  return function(g_runtime != nullptr ? g_runtime : opened_later("libcudart"), name);
}

void *cublaslt_function(const char *name) {
  return function(g_cublaslt != nullptr ? g_cublaslt : opened_later("libcublasLt"), name);
}

}  // namespace drop_in

// Python asks for this function in this very file, where the other library has it from libcudart.
extern "C" int cudaRuntimeGetVersion(int *version) {
  void *const forward = drop_in::runtime_function("cudaRuntimeGetVersion");
  if (forward != nullptr) return reinterpret_cast<int (*)(int *)>(forward)(version);
  constexpr int kInvalidValue = 1;
  if (version == nullptr) return kInvalidValue;
  *version = kRuntimeVersion;
  return 0;
}
