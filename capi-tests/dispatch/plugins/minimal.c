// A plugin with one implementation that declines every call. Option `fails` makes its entry
// function fail after it has registered, `name` gives it another name.
#include <string.h>

#include "nvte/plugin.h"

static int32_t decline(void *user, const NVTEXCall *call) {
  (void)user;
  (void)call;
  return NVTEX_PLUGIN_DECLINED;
}

int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = "minimal";
  plugin->version = "1.2";
  plugin->vendor = "test";
  const char *name = host->option(host->context, "name");
  if (name) plugin->name = name;
  NVTEXImpl impl;
  memset(&impl, 0, sizeof impl);
  impl = (NVTEXImpl){.struct_size = sizeof impl,
                     .op = "padding",
                     .op_version = NVTEX_BUILT_WITH(PADDING),
                     .id = plugin->name,
                     .domain = "cpu",
                     .kind = NVTEX_KIND_VENDOR,
                     .priority = NVTEX_PRIORITY_OF_KIND,
                     .execute = decline};
  host->add_impl(host->context, &impl);
  return host->option(host->context, "fails") ? 7 : 0;
}
