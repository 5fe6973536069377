// A plugin as a compiler has left it that knew the first headers: it includes none, and has the
// layouts and numbers that they had written out. What later headers add must not break it: never
// change anything here.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct Call {
  size_t struct_size;
  const void *args;
  size_t args_size;
  uint32_t op, variant, flags;
  int32_t device;
  uint64_t features;
  void *stream, *scratch;
  size_t scratch_bytes;
  char *reason;
  size_t reason_bytes;
} Call;

typedef struct Impl {
  size_t struct_size;
  const char *op;
  uint32_t op_version;
  size_t args_size;
  const char *id, *vendor, *domain;
  uint32_t kind;
  int32_t priority;
  uint32_t min_arch, max_arch;
  uint64_t dtypes;
  uint32_t modes, flags;
  uint64_t features;
  uint32_t numerics;
  float rtol, atol;
  int32_t (*supports)(void *user, const Call *call);
  int32_t (*needs)(void *user, const Call *call, void *needs);
  int32_t (*execute)(void *user, const Call *call);
  void *user;
} Impl;

typedef struct Host {
  size_t struct_size;
  uint32_t abi_major, abi_minor;
  const char *library_version;
  void *context;
  int32_t (*add_impl)(void *context, const Impl *implementation);
} Host;

typedef struct Plugin {
  size_t struct_size;
  uint32_t abi_minor;
  const char *name, *version, *vendor;
  void *user;
  void (*after_fork_child)(void *user);
} Plugin;

typedef struct Memset {
  void *ptr;
  size_t bytes;
  uint8_t value;
} Memset;

_Static_assert(sizeof(Call) == 88 && sizeof(Impl) == 144 && sizeof(Plugin) == 56, "layouts");

enum { OK = 0, DECLINED = 1, VENDOR = 2, PRIORITY_OF_KIND = -1 };

// Writes the value that is asked for and one more.
static int32_t set(void *user, const Call *call) {
  const Memset *args = call->args;
  if (call->struct_size < sizeof *call || call->args_size < sizeof *args || *(int *)user != 7) {
    return 2;
  }
  memset(args->ptr, args->value + 1, args->bytes);
  return OK;
}

static int32_t decline(void *user, const Call *call) {
  (void)user;
  snprintf(call->reason, call->reason_bytes, "the old one was asked, features %llu",
           (unsigned long long)call->features);
  return DECLINED;
}

#ifdef __GNUC__
__attribute__((visibility("default")))
#endif
int32_t nvtex_plugin_v0(const Host *host, Plugin *plugin);

int32_t nvtex_plugin_v0(const Host *host, Plugin *plugin) {
  static int number = 7;
  plugin->name = "first";
  plugin->version = "1";
  plugin->vendor = "test";
  Impl impl;
  memset(&impl, 0, sizeof impl);
  impl.struct_size = sizeof impl;
  impl.op = "memset";
  impl.op_version = 1 << 16;
  impl.args_size = 24;
  impl.id = "first.memset";
  impl.domain = "cpu";
  impl.kind = VENDOR;
  impl.priority = PRIORITY_OF_KIND;
  impl.execute = set;
  impl.user = &number;
  if (host->add_impl(host->context, &impl) != OK) return 1;
  impl.op = "grad_correction";
  impl.args_size = 72;
  impl.id = "first.grads";
  impl.execute = decline;
  return host->add_impl(host->context, &impl) != OK;
}
