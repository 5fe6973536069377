// C++ exceptions that leave the functions of a plugin.

#include <cstdio>
#include <cstdlib>
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

static int g_calls;

static std::int32_t execute_throws(void *, const NVTEXCall *) {
  g_calls++;
  throw std::runtime_error("lost the device");
}

static std::int32_t needs_throws(void *, const NVTEXCall *, NVTEXNeeds *) {
  throw std::runtime_error("no idea");
}

static bool g_needs;

static std::int32_t registers(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = g_needs ? "needs" : "executes";
  plugin->version = "1";
  plugin->vendor = "test";
  NVTEXImpl impl{};
  impl.struct_size = sizeof impl;
  impl.op = "memset";
  impl.op_version = NVTEX_OP_MEMSET_VERSION;
  impl.args_size = NVTEX_OP_MEMSET_SIZE;
  impl.id = plugin->name;
  impl.domain = "cpu";
  impl.kind = NVTEX_KIND_VENDOR;
  impl.priority = g_needs ? 110 : 105;
  if (g_needs) impl.needs = needs_throws;
  impl.execute = execute_throws;
  return host->add_impl(host->context, &impl);
}

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

  // An exception of `execute` fails the operator: nobody else is asked, because something may have
  // been written.
  unsigned char bytes[4] = {1, 2, 3, 4};
  nvtex_set_error_mode(NVTEX_ERROR_RETURN);
  check(nvtex_plugin_register(registers), "a plugin is registered");
  NVTEXPolicy vendors = nvtex_policy_create(nullptr, "prefer=vendor");
  nvtex_policy_push(vendors);
  nvte_memset(bytes, 0, sizeof bytes, nullptr);
  check(nvtex_last_status() == NVTEX_DEVICE_ERROR, "the call fails");
  check_error("executes");
  check(g_calls == 1 && bytes[0] == 1, "it was called once, and the reference was not");
  nvte_memset(bytes, 0, sizeof bytes, nullptr);
  check_error("lost the device");
  check(g_calls == 2, "nothing is remembered of a failure");

  // One of `needs` comes before anything is written, and is a failure all the same or a refusal;
  // the text is kept.
  g_needs = true;
  check(nvtex_plugin_register(registers), "another plugin is registered");
  NVTEXPolicy only = nvtex_policy_create(nullptr, "memset=impl:needs");
  nvtex_policy_push(only);
  nvte_memset(bytes, 0, sizeof bytes, nullptr);
  check(nvtex_last_status() != NVTEX_OK, "the call fails");
  check_error("no idea");
  nvtex_policy_pop();
  nvtex_policy_pop();
  nvtex_policy_destroy(only);
  nvtex_policy_destroy(vendors);
  std::printf("%d failed\n", g_failures);
  return g_failures == 0 ? 0 : 1;
}
