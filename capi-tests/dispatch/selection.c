// Which implementation is chosen, and the reasons why others are not: limits, the order in which
// plugins were loaded, registrations that come later, explanations, counters.
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>

#include "child.h"
#include "nvte/activation.h"
#include "nvte/fused_attn.h"
#include "nvte/softmax.h"
#include "offer.h"

// ---- Independence of the order of loading

static void test_load_order(void) {
  static const char *const names[] = {"a", "b", "c", "d"};
  for (int permutation = 0; permutation < 24; permutation++) {
    if (!case_begin("order of loading %d", permutation)) continue;
    pid_t pid = fork_child();
    if (pid == 0) {
      static Offer offers[4][2] = {
          {{.id = "plain.a", .tag = 1}, {.id = "op.a", .op = "sgd", .tag = 5}},
          {{.id = "plain.b", .tag = 2}, {.id = "high.b", .priority = 200, .tag = 6}},
          {{.id = "high.c", .priority = 200, .tag = 7}, {.id = "plain.c", .tag = 3}},
          {{.id = "low.d", .priority = 1, .tag = 8}, {.id = "plain.d", .tag = 4}},
      };
      int left[4] = {0, 1, 2, 3}, count = 4;
      for (int rest = permutation; count > 0; count--) {
        int at = rest % count, which = left[at];
        rest /= count;
        left[at] = left[count - 1];
        if (!offer_all(names[which], offers[which], 2)) _exit(1);
      }
      use_policy(NULL);
      if (who_ran() != 6) _exit(2);
      use_policy("memset=impl:low.d|impl:plain.c|*");
      if (who_ran() != 8) _exit(3);
      use_policy("deny_vendors=acme");
      if (who_ran() != 0) _exit(4);
      use_policy(NULL);
      // The same in all processes: the parent compares the last byte.
      if (nvtex_last_status() != NVTEX_OK) _exit(5);
      _exit(100 + (int)(nvtex_dispatch_fingerprint() % 101));
    }
    int status = wait_for_child(pid);
    static int fingerprint;
    int exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (fingerprint == 0) fingerprint = exit;
    CHECK(exit >= 100 && exit == fingerprint, "status 0x%x, before %d", status, fingerprint);
  }
}

// ---- Explanations

typedef struct Heard {
  int count;
  char name[64], chosen[64], text[4096], arguments[1024];
} Heard;

static void listen(void *user, const NVTEXExplanation *explanation) {
  Heard *heard = user;
  heard->count++;
  snprintf(heard->name, sizeof heard->name, "%s", explanation->name);
  snprintf(heard->chosen, sizeof heard->chosen, "%s",
           explanation->chosen ? explanation->chosen : "");
  snprintf(heard->arguments, sizeof heard->arguments, "%s", explanation->arguments);
  heard->text[0] = 0;
  for (size_t i = 0; i < explanation->num_others; i++) {
    const NVTEXRefusal *other = &explanation->others[i];
    size_t used = strlen(heard->text);
    snprintf(heard->text + used, sizeof heard->text - used, "%s: %s\n", other->id,
             other->reason ? other->reason : "next");
  }
}

static Heard explain_memset(void) {
  Heard heard = {0};
  unsigned char byte = 77;
  nvtex_explain_begin(listen, &heard);
  nvte_memset(&byte, 0, 1, NULL);
  nvtex_explain_end();
  CHECK(byte == 77, "an explanation has written");
  return heard;
}

#define EXPECT_TEXT(text, part) CHECK(strstr(text, part), "no \"%s\" in \"%s\"", part, text)

// ---- Limits

static int32_t pass(Offer *offer, const NVTEXCall *call) {
  (void)offer;
  snprintf(call->reason, call->reason_bytes, "only asked");
  return NVTEX_PLUGIN_DECLINED;
}

// Declines that are due to limits alone, with their reasons; nobody but these is asked.
static void test_limits(void) {
  static Offer offers[] = {
      {.op = "quantize",
       .id = "limit.dtypes",
       .dtypes = 1u << kNVTEFloat16,
       .features = ~0ull,
       .body = pass},
      {.op = "quantize",
       .id = "limit.modes",
       .modes = 1u << NVTE_MXFP8_1D_SCALING,
       .features = ~0ull,
       .body = pass},
      {.op = "quantize.gelu", .id = "limit.features", .features = 0, .body = pass},
      {.op = "quantize.gelu", .id = "limit.arch", .features = ~0ull, .min_arch = 90, .body = pass},
      {.op = "quantize.gelu",
       .id = "limit.arch.range",
       .features = ~0ull,
       .min_arch = 90,
       .max_arch = 100,
       .body = pass},
      {.op = "quantize.gelu",
       .id = "says.no",
       .features = ~0ull,
       .predicate = true,
       .supported = NVTEX_PLUGIN_DECLINED,
       .reason = "not on Sundays",
       .body = pass},
      {.op = "quantize.gelu", .id = "executes.not", .features = ~0ull, .priority = 1, .body = pass},
      {.op = "quantize.relu", .id = "another.variant", .features = ~0ull, .body = pass},
      {.op = "softmax", .id = "another.op", .features = ~0ull, .body = pass},
  };
  if (!offer_all("limits", offers, COUNT(offers))) return;
  if (!case_begin("each limit with its reason")) return;
  use_policy(
      "quantize=impl:limit.dtypes|impl:limit.modes|impl:limit.features|impl:limit.arch|"
      "impl:limit.arch.range|impl:says.no|impl:executes.not");
  float values[4] = {1, 2, 3, 4}, results[4] = {9, 9, 9, 9}, amax = 0;
  NVTETensor input = tensor(values, kNVTEFloat32, SHAPE(2, 2));
  NVTETensor output = tensor(results, kNVTEFloat32, SHAPE(2, 2));
  set_param(output, kNVTEAmax, &amax, kNVTEFloat32, SHAPE(1));
  nvte_gelu(input, output, NULL);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_gelu: quantize.gelu: no implementation: ",
               "limit.dtypes: does not take dtype Float32",
               "limit.features: does not take feature ", "limit.arch: architecture 0, needs 90;",
               "limit.arch.range: architecture 0, needs 90 to 100", "says.no: not on Sundays",
               "executes.not: only asked", "reference.cpu: the order does not name it");
  CHECK(results[0] == 9 && amax == 0, "a call that nobody takes has written");
  for (size_t i = 0; i < COUNT(offers); i++) {
    bool runs = i == 6 || strstr(offers[i].id, "limit.modes") != NULL;
    CHECK(runs || offers[i].ran == 0, "%s has run", offers[i].id);
  }
  CHECK_EQ(offers[5].asked, 1);
  use_policy(NULL);
  nvte_gelu(input, output, NULL);
  EXPECT_OK();
  CHECK(results[3] > 3.9f && results[3] < 4, "%g", (double)results[3]);
  CHECK(strcmp(nvtex_impl_last("quantize.gelu"), "reference.cpu") == 0, "%s",
        nvtex_impl_last("quantize.gelu"));
}

static void test_other_domain(void) {
  if (!case_begin("implementations of another domain")) return;
  NVTEXPolicy strict = nvtex_policy_create(NULL, "domain=cpu;memset=impl:nobody");
  nvtex_policy_push(strict);
  CHECK_EQ(who_ran(), -1);
  bool cuda = false;
  for (size_t i = 0; i < nvtex_impl_count(); i++) {
    NVTEXImplInfo info = {.struct_size = sizeof info};
    CHECK(nvtex_impl_info(i, &info), "no info");
    cuda |= strcmp(info.domain, "cuda") == 0;
  }
  const char *text = cuda ? "vendor.nvidia: domain cuda, the call is on cpu" : "reference.cpu: ";
  EXPECT_ERROR(NVTEX_UNSUPPORTED, text);
  nvtex_policy_pop();
  nvtex_policy_destroy(strict);
}

// ---- Registrations that come later

static void test_late(void) {
  static Offer late[] = {{.id = "late", .priority = 900, .tag = 31}};
  static Offer later[] = {{.id = "later", .priority = 901, .tag = 32}};
  if (!case_begin("a registration is seen by the next call")) return;
  use_policy(NULL);
  int before = who_ran();
  uint64_t generation = nvtex_dispatch_generation();
  CHECK(before != 31 && before != 32, "%d", before);
  Heard heard = explain_memset();
  CHECK(!strstr(heard.text, "late"), "%s", heard.text);
  if (!offer_all("late", late, 1)) return;
  CHECK(nvtex_dispatch_generation() > generation, "the generation is as before");
  EXPECT_RUNS(31);
  // A policy that was in use before sees it, too.
  NVTEXPolicy policy = nvtex_policy_current();
  nvtex_policy_push(policy);
  EXPECT_RUNS(31);
  offer_all("later", later, 1);
  EXPECT_RUNS(32);
  nvtex_policy_pop();
  EXPECT_RUNS(32);
  nvtex_policy_destroy(policy);
  // An id that an operator has already refuses the plugin, and changes nothing.
  g_offered.name = "again";
  g_offered.offers = late;
  CHECK(!nvtex_plugin_register(offer_entry), "registered twice");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "late (memset): plugin \"late\" has registered this id before");
  EXPECT_RUNS(32);
}

static void test_explain(void) {
  static Offer offers[] = {
      {.id = "explain.first", .priority = 990, .predicate = true, .tag = 41},
      {.id = "explain.second", .priority = 980, .predicate = true, .tag = 42},
  };
  if (!case_begin("explanations")) return;
  use_policy(NULL);
  if (!offer_all("explain", offers, COUNT(offers))) return;
  Heard heard = explain_memset();
  CHECK_EQ(heard.count, 1);
  CHECK(strcmp(heard.name, "memset") == 0, "%s", heard.name);
  CHECK(strcmp(heard.chosen, "explain.first") == 0, "%s", heard.chosen);
  EXPECT_TEXT(heard.text, "explain.second: next");
  EXPECT_TEXT(heard.text, "reference.cpu: next");
  EXPECT_TEXT(heard.arguments, "bytes: 1");
  CHECK(offers[0].ran == 0, "an explanation has run");
  EXPECT_RUNS(41);
  // What is explained is what runs.
  static const char *const policies[] = {"memset=impl:explain.second|*", "deny_vendors=acme",
                                         "prefer=reference", "memset=*", "prefer=vendor;strict=1"};
  for (size_t i = 0; i < COUNT(policies); i++) {
    use_policy(policies[i]);
    heard = explain_memset();
    who_ran();
    CHECK(strcmp(heard.chosen, nvtex_impl_last("memset")) == 0, "%s: explained %s, ran %s",
          policies[i], heard.chosen, nvtex_impl_last("memset"));
  }
  EXPECT_OK();
  offers[0].supported = NVTEX_PLUGIN_DECLINED;
  offers[0].reason = "too small";
  use_policy("memset=impl:explain.first");
  heard = explain_memset();
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_memset: memset: no implementation", "too small");
  CHECK(heard.chosen[0] == 0, "%s", heard.chosen);
  EXPECT_TEXT(heard.text, "explain.first: too small");
  EXPECT_TEXT(heard.text, "explain.second: the order does not name it");
  use_policy("memset=impl:explain.first|impl:explain.second");
  heard = explain_memset();
  CHECK(strcmp(heard.chosen, "explain.second") == 0, "%s", heard.chosen);
  EXPECT_RUNS(42);
  offers[0].supported = NVTEX_PLUGIN_OK;
  // Calls that are wrong fail as ever, and empty ones need nobody.
  heard = (Heard){0};
  nvtex_explain_begin(listen, &heard);
  nvte_memset(NULL, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_memset: ptr");
  nvte_memset(&heard, 0, 0, NULL);
  CHECK_EQ(heard.count, 0);
  nvtex_explain_begin(listen, &heard);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "explain themselves already");
  nvtex_explain_end();
  EXPECT_OK();
  nvtex_explain_end();
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "do not explain themselves");
  nvtex_explain_begin(NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "callback: expected a function, got null");
  use_policy(NULL);
}

// ---- What is registered

static void test_lists(void) {
  if (!case_begin("lists of operators and implementations")) return;
  size_t reference = 0, late = SIZE_MAX, count = nvtex_impl_count();
  for (uint32_t op = 0; op < nvtex_op_count(); op++) {
    const NVTEXOpInfo *info = nvtex_op_info(op);
    CHECK(info && info->op == op && info->variant_count > 0, "operator %u", op);
  }
  CHECK(nvtex_op_info((uint32_t)nvtex_op_count()) == NULL, "one operator too many");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_op_info: op: expected less than");
  for (size_t i = 0; i < count; i++) {
    NVTEXImplInfo info = {.struct_size = sizeof info};
    if (!CHECK(nvtex_impl_info(i, &info), "%zu of %zu", i, count)) break;
    reference += strcmp(info.id, "reference.cpu") == 0;
    if (strcmp(info.id, "late") == 0) late = i;
    if (strcmp(info.id, "reference.cpu") == 0) {
      CHECK(!info.plugin && !info.vendor && info.kind == NVTEX_KIND_REFERENCE, "%s", info.name);
      CHECK(strcmp(info.version, nvtex_version()) == 0 && info.priority == 50, "%s", info.name);
    }
  }
  CHECK_EQ(reference, nvtex_op_count());
  NVTEXImplInfo info = {.struct_size = sizeof info};
  CHECK(late < count && nvtex_impl_info(late, &info), "no late one");
  CHECK(strcmp(info.name, "memset") == 0 && strcmp(info.plugin, "late") == 0, "%s", info.name);
  CHECK(strcmp(info.vendor, "acme") == 0 && info.priority == 900, "%s", info.vendor);
  struct {
    NVTEXImplInfo info;
    unsigned char more[16];
  } longer;
  memset(&longer, 0xEE, sizeof longer);
  longer.info.struct_size = sizeof longer;
  CHECK(nvtex_impl_info(late, &longer.info), "a longer struct is refused");
  CHECK(longer.info.struct_size == sizeof longer && longer.more[15] == 0, "a tail of %d",
        longer.more[15]);
  EXPECT_OK();
  CHECK(!nvtex_impl_info(count, &info), "one too many");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_impl_info: index: expected less than");
  CHECK(!nvtex_impl_info(0, NULL), "null");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "info: expected a struct, got null");
  info.struct_size = 8;
  CHECK(!nvtex_impl_info(0, &info), "a short struct");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "info.struct_size: expected its size", "got 8");
  CHECK(nvtex_impl_last("memsett") == NULL, "an operator that is none");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "variant: expected the name of a variant", "memsett");
  CHECK(nvtex_impl_last("softmax") == NULL, "an operator of several variants");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "variant: expected the name of a variant", "softmax");
  CHECK(nvtex_impl_last("adam.master") == NULL, "%s has run", nvtex_impl_last("adam.master"));
  EXPECT_OK();
}

static NVTEXImplCounters counters_of(const char *id) {
  NVTEXImplCounters counters = {.struct_size = sizeof counters};
  for (size_t i = 0; i < nvtex_impl_count(); i++) {
    NVTEXImplInfo info = {.struct_size = sizeof info};
    nvtex_impl_info(i, &info);
    if (strcmp(info.id, id) == 0 && strcmp(info.name, "memset") == 0) {
      CHECK(nvtex_impl_counters(i, &counters), "no counters");
    }
  }
  return counters;
}

static void test_counters(void) {
  static Offer offers[] = {
      {.id = "count.declines", .status = NVTEX_PLUGIN_DECLINED},
      {.id = "count.runs", .tag = 51},
      {.id = "count.fails", .status = NVTEX_PLUGIN_FAILED},
  };
  if (!case_begin("counters")) return;
  if (!offer_all("count", offers, COUNT(offers))) return;
  use_policy("memset=impl:count.declines|impl:count.runs");
  EXPECT_RUNS(51);
  CHECK_EQ(counters_of("count.runs").calls, 0);
  CHECK(!nvtex_dispatch_counters(true), "they were on");
  for (int i = 0; i < 5; i++) EXPECT_RUNS(51);
  CHECK_EQ(counters_of("count.declines").declined, 5);
  CHECK_EQ(counters_of("count.declines").calls, 0);
  CHECK_EQ(counters_of("count.runs").calls, 5);
  CHECK(counters_of("count.runs").host_ns > 0, "no time");
  CHECK(nvtex_dispatch_counters(false), "they were off");
  EXPECT_RUNS(51);
  CHECK_EQ(counters_of("count.runs").calls, 5);
  use_policy("memset=impl:count.fails|*");
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "count.fails (memset): no reason given");
  CHECK_EQ(counters_of("count.fails").failed, 1);
  CHECK_EQ(counters_of("count.fails").calls, 0);
  use_policy(NULL);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_load_order();
  test_limits();
  test_other_domain();
  test_late();
  test_explain();
  test_lists();
  test_counters();
  return test_end();
}
