// C++ exceptions that leave the functions of a plugin.

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "nvte/dispatch.h"
#include "nvte/nvte.h"

static int g_failures;

static void check(bool good, const char *what) {
  if (good) return;
  g_failures++;
  std::fprintf(stderr, "failed: %s: %s\n", what, nvtex_last_error());
}

// The last call failed with a message that has this part.
static void check_error(const char *part) {
  check(std::strstr(nvtex_last_error(), part) != nullptr, part);
  nvtex_clear_error();
}

static std::int32_t throws_text(const NVTEXHost *, NVTEXPlugin *) {
  throw std::runtime_error("no licence");
}

static std::int32_t throws_number(const NVTEXHost *, NVTEXPlugin *) { throw 7; }

int main() {
  const char *backend = nvtex_backend_name();
  if (backend == nullptr || std::strcmp(backend, "cpu") != 0) {
    std::fprintf(stderr, "SKIP: exceptions of plugins do not depend on the backend\n");
    return 77;
  }
  check(!nvtex_plugin_register(throws_text), "an entry that throws is refused");
  check_error("its entry function threw an exception: no licence");
  check(!nvtex_plugin_register(throws_number), "an entry that throws is refused");
  check_error("its entry function threw an exception: an exception that is no std::exception");
  std::printf("%d failed\n", g_failures);
  return g_failures == 0 ? 0 : 1;
}
