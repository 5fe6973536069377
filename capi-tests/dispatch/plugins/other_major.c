// A plugin of a version of the interface that does not exist yet.
#include <stdint.h>

int32_t nvtex_plugin_v2(const void *host, void *plugin);

int32_t nvtex_plugin_v2(const void *host, void *plugin) {
  (void)host;
  (void)plugin;
  return 0;
}
