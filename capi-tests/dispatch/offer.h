// Plugins of a test program: implementations that write down that they were asked, and answer what
// a test says. They register through nvtex_plugin_register, which needs no library of its own.
#ifndef NVTE_CAPI_TESTS_DISPATCH_OFFER_H
#define NVTE_CAPI_TESTS_DISPATCH_OFFER_H

#include <stdatomic.h>

#include "nvte/dispatch.h"
#include "nvte/transformer_engine.h"
#include "support.h"

typedef struct Offer Offer;
struct Offer {
  const char *op, *id, *vendor, *domain;  // Null: memset, none, that of the plugin, cpu.
  uint32_t kind, flags, modes, min_arch, max_arch;
  int32_t priority;  // 0: that of the kind.
  uint64_t dtypes, features;
  bool predicate;             // It has `supports`, which answers `supported`.
  int32_t supported, status;  // What it answers.
  const char *reason;         // What it writes to NVTEXCall.reason.
  size_t workspace, scratch;  // What it needs.
  int32_t (*body)(Offer *offer, const NVTEXCall *call);  // In place of its work.
  unsigned char tag;  // What it adds to the value that nvte_memset is to write.
  atomic_int asked, ran;
};

static inline void offer_reason(const Offer *offer, const NVTEXCall *call) {
  if (!offer->reason) return;
  // Not terminated, as far as there is room.
  size_t length = strlen(offer->reason) + 1;
  memcpy(call->reason, offer->reason, length < call->reason_bytes ? length : call->reason_bytes);
}

static inline int32_t offer_supports(void *user, const NVTEXCall *call) {
  Offer *offer = user;
  atomic_fetch_add(&offer->asked, 1);
  if (offer->supported != NVTEX_PLUGIN_OK) offer_reason(offer, call);
  return offer->supported;
}

static inline int32_t offer_needs(void *user, const NVTEXCall *call, NVTEXNeeds *needs) {
  const Offer *offer = user;
  (void)call;
  needs->workspace_bytes = offer->workspace;
  needs->scratch_bytes = offer->scratch;
  return NVTEX_PLUGIN_OK;
}

static inline int32_t offer_execute(void *user, const NVTEXCall *call) {
  Offer *offer = user;
  atomic_fetch_add(&offer->ran, 1);
  if (offer->body) return offer->body(offer, call);
  if (offer->status != NVTEX_PLUGIN_OK) {
    offer_reason(offer, call);
    return offer->status;
  }
  const NVTEXMemsetArgs *args = call->args;
  memset(args->ptr, args->value + offer->tag, args->bytes);
  return NVTEX_PLUGIN_OK;
}

static struct {
  const char *name, *version;
  Offer *offers;
  size_t count;
  const NVTEXDomain *domain;
} g_offered;

static inline int32_t offer_entry(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = g_offered.name;
  plugin->version = g_offered.version ? g_offered.version : "1";
  plugin->vendor = "acme";
  if (g_offered.domain) host->add_domain(host->context, g_offered.domain);
  for (size_t i = 0; i < g_offered.count; i++) {
    Offer *offer = &g_offered.offers[i];
    const char *op = offer->op ? offer->op : "memset", *dot = strchr(op, '.');
    char name[64];
    snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - op) : (int)strlen(op), op);
    const NVTEXOpInfo *info = NULL;
    for (uint32_t number = 0; (info = host->op_info(number)); number++) {
      if (strcmp(info->name, name) == 0) break;
    }
    if (!info) return 1;
    NVTEXImpl impl;
    memset(&impl, 0, sizeof impl);
    impl.struct_size = sizeof impl;
    impl.op = op;
    impl.op_version = info->version;
    impl.args_size = info->args_size;
    impl.id = offer->id;
    impl.vendor = offer->vendor;
    impl.domain = offer->domain ? offer->domain : "cpu";
    impl.kind = offer->kind ? offer->kind : NVTEX_KIND_VENDOR;
    impl.priority = offer->priority ? offer->priority : NVTEX_PRIORITY_OF_KIND;
    impl.min_arch = offer->min_arch;
    impl.max_arch = offer->max_arch;
    impl.dtypes = offer->dtypes;
    impl.modes = offer->modes;
    impl.features = offer->features;
    impl.flags = offer->flags | NVTEX_IMPL_CAPTURABLE;
    if (offer->predicate) impl.supports = offer_supports;
    if (offer->workspace || offer->scratch) impl.needs = offer_needs;
    impl.execute = offer_execute;
    impl.user = offer;
    host->add_impl(host->context, &impl);
  }
  return 0;
}

// Registers implementations as a plugin of this name.
static inline bool offer_all(const char *name, Offer *offers, size_t count) {
  g_offered.name = name;
  g_offered.offers = offers;
  g_offered.count = count;
  bool registered = nvtex_plugin_register(offer_entry);
  return CHECK(registered, "%s", nvtex_last_error());
}

// The policy of the process while a test runs; null: none of its own. Calls are on the host's
// memory.
static inline void use_policy(const char *text) {
  char whole[1024];
  snprintf(whole, sizeof whole, "domain=cpu%s%s", text && *text ? ";" : "", text ? text : "");
  NVTEXPolicy policy = nvtex_policy_create(NULL, whole);
  EXPECT_OK();
  nvtex_policy_destroy(nvtex_policy_set(policy));
  nvtex_policy_destroy(policy);
  EXPECT_OK();
}

// What a memset to 0 leaves: the tag of the implementation that has run, 0 for the library's own.
// Negative: nothing was written.
static inline int who_ran(void) {
  unsigned char bytes[5] = {201, 202, 203, 204, 205};
  nvte_memset(bytes, 0, 4, NULL);
  if (bytes[0] == 201) return -1;
  CHECK(bytes[0] == bytes[3] && bytes[4] == 205, "bytes %d %d %d", bytes[0], bytes[3], bytes[4]);
  return bytes[0];
}

#define EXPECT_RUNS(tag) (CHECK_EQ(who_ran(), tag), EXPECT_OK())

#endif  // NVTE_CAPI_TESTS_DISPATCH_OFFER_H
