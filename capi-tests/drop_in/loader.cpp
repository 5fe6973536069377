// loader LIBRARY EXTENSION MODE: loads libtransformer_engine.so and then an extension as Python
// does, the library for all of the process and the extension with all of its symbols at once.
#include <dlfcn.h>

#include <cstring>

#include "expect.h"

int main(int count, char **arguments) {
  EXPECT(count == 4);
  void *const library = dlopen(arguments[1], RTLD_GLOBAL | RTLD_LAZY);
  if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  EXPECT(library != nullptr);

  // Python calls this function through the library's own handle.
  const auto version = reinterpret_cast<int (*)(int *)>(dlsym(library, "cudaRuntimeGetVersion"));
  EXPECT(version != nullptr);
  int number = 0;
  EXPECT(version(&number) == 0 && number >= 12000);

  void *const extension = dlopen(arguments[2], RTLD_LOCAL | RTLD_NOW);
  if (extension == nullptr) std::fprintf(stderr, "%s\n", dlerror());
  EXPECT(extension != nullptr);
  const auto check = reinterpret_cast<void (*)(void *, bool)>(dlsym(extension, "check_library"));
  EXPECT(check != nullptr);
  check(library, std::strcmp(arguments[3], "throw") == 0);
  return 0;
}
