// Versions of the library's symbols: functions of the other library's ABI and those of this library
// are found with the versions that they came with, and without, as programs ask for them that were
// linked to a library without versions.
#define _GNU_SOURCE
#include <dlfcn.h>

#include "../support.h"

static void check_symbol(void *library, const char *name, const char *version, bool there) {
  void *any = dlsym(library, name), *one = dlvsym(library, name, version);
  CHECK(any != NULL, "%s is not found", name);
  if (there) {
    CHECK(one == any, "%s@%s is %p, without a version %p", name, version, one, any);
  } else {
    CHECK(one == NULL, "%s has the version %s", name, version);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_begin("versions of symbols");
  void *library = dlopen("libnvte.so.0", RTLD_NOW | RTLD_NOLOAD);
  if (CHECK(library, "%s", dlerror())) {
    check_symbol(library, "nvte_create_tensor", "NVTE_2.20", true);
    check_symbol(library, "nvte_create_tensor", "NVTEX_0.1", false);
    check_symbol(library, "nvte_get_cudnn_handle", "NVTE_2.20", true);
    check_symbol(library, "_Z24nvte_built_with_cublasmpv", "NVTE_2.20", true);
    check_symbol(library, "nvtex_last_error", "NVTEX_0.1", true);
    check_symbol(library, "nvtex_last_error", "NVTE_2.20", false);
    CHECK(dlsym(library, "nvte_no_such_function") == NULL, "a function that nobody defines");
  }
  return test_end();
}
