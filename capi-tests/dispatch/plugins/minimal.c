// A plugin with one implementation that declines every call. Option `fails` makes its entry
// function fail after it has registered, `name` gives it another name, `calls` makes it run an
// operator there, and `sleeps` take as many halves of a second. In a child of fork() it sets the
// variable NVTE_TEST_FORKED.
#define _GNU_SOURCE

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvte/plugin.h"

static int32_t decline(void *user, const NVTEXCall *call) {
  (void)user;
  (void)call;
  return NVTEX_PLUGIN_DECLINED;
}

static void after_fork(void *user) { setenv(user, "1", 1); }

int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = "minimal";
  plugin->version = "1.2";
  plugin->vendor = "test";
  plugin->user = "NVTE_TEST_FORKED";
  plugin->after_fork_child = after_fork;
  const char *sleeps = host->option(host->context, "sleeps");
  if (sleeps) usleep(500000u * (unsigned)atoi(sleeps));
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
  if (host->option(host->context, "calls")) {
    // Not linked: a plugin that calls nothing of the library does not need it.
    void (*set)(void *, int32_t, size_t, cudaStream_t);
    *(void **)&set = dlsym(RTLD_DEFAULT, "nvte_memset");
    char byte = 1;
    if (!set) return 8;
    set(&byte, 0, 1, NULL);
    if (byte == 0) return 9;
  }
  return host->option(host->context, "fails") ? 7 : 0;
}
