// Policies: what their texts mean, where they hold, and which texts are none. Implementations of
// nvte_memset leave a tag by which one sees who has run.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>

#include "child.h"
#include "nvte/fused_attn.h"
#include "nvte/permutation.h"
#include "offer.h"

enum { OWN, FIRST, SECOND, OTHER, COMMON, SLOW };

// The library's own is of kind reference and names no vendor.
static Offer g_offers[] = {
    {.id = "acme.first", .vendor = "acme", .tag = FIRST, .priority = 101},
    {.id = "acme.second", .vendor = "acme", .tag = SECOND},
    {.id = "other.one", .vendor = "Other", .tag = OTHER, .flags = NVTEX_IMPL_DETERMINISTIC},
    {.id = "common", .vendor = "none.at.all", .kind = NVTEX_KIND_DEFAULT, .tag = COMMON},
    {.id = "slow", .vendor = "acme", .kind = NVTEX_KIND_REFERENCE, .priority = 10, .tag = SLOW},
};

static void test_orders(void) {
  static const struct {
    const char *policy;
    int tag;
  } table[] = {
      {NULL, COMMON},
      {"", COMMON},
      {"prefer=default", COMMON},
      {"prefer=flagos", COMMON},
      {"PREFER = Vendor", FIRST},
      {"prefer=reference", OWN},
      // Of one kind the higher priority, then the lower id.
      {"memset=impl:acme.second", SECOND},
      {"memset=IMPL:Acme.Second", SECOND},
      {"memset=vendor:acme", FIRST},
      {"memset=vendor:OTHER|*", OTHER},
      {"memset=vendor|reference", FIRST},
      {"memset=reference|vendor", OWN},
      {"memset=vendor:nobody|impl:nothing|reference", OWN},
      {"order=impl:other.one", OTHER},
      {"order=impl:other.one;memset=impl:slow", SLOW},
      {"memset=impl:slow;order=impl:other.one", SLOW},
      {"memset=impl:slow;memset=impl:common", COMMON},
      {"memset=*", COMMON},
      {"prefer=vendor;memset=*", FIRST},
      {"gemm=impl:slow", COMMON},
      // Vendors that are denied or allowed, whatever their case.
      {"deny_vendors=none.at.all", FIRST},
      {"deny_vendors=none.at.all,ACME", OTHER},
      {"deny_vendors=none", COMMON},
      {"allow_vendors=acme", FIRST},
      {"allow_vendors=other", OTHER},
      {"allow_vendors=none", OWN},
      {"allow_vendors=none;allow_vendors=all", COMMON},
      {"allow_vendors=acme,other;deny_vendors=acme", OTHER},
      {"memset=vendor:acme|*;deny_vendors=acme", COMMON},
      {"allow_vendors=nobody", OWN},
      // Strict: nothing but what the first word stands for.
      {"strict=1", COMMON},
      {"strict=1;deny_vendors=none.at.all", FIRST},
      {"strict=1;prefer=vendor", FIRST},
      {"strict=1;prefer=vendor;deny_vendors=acme,other", -1},
      {"strict=1;memset=impl:nothing|*", -1},
      {"strict=0;memset=impl:nothing|*", COMMON},
      {"memset=impl:nothing", -1},
      // Determinism. The library's own is deterministic.
      {"deterministic=1", OTHER},
      {"deterministic=1;deny_vendors=other", OWN},
  };
  for (size_t i = 0; i < COUNT(table); i++) {
    if (!case_begin("policy %s", table[i].policy ? table[i].policy : "null")) continue;
    use_policy(table[i].policy);
    CHECK_EQ(who_ran(), table[i].tag);
    if (table[i].tag < 0) {
      EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_memset: memset: no implementation", "reference.cpu: ");
    }
    EXPECT_OK();
    const char *last = nvtex_impl_last("memset");
    if (table[i].tag == SLOW) CHECK(strcmp(last, "slow") == 0, "%s", last);
    if (table[i].tag == OWN) CHECK(strcmp(last, "reference.cpu") == 0, "%s", last);
    use_policy(NULL);
  }
}

static void test_wrong_texts(void) {
  static const char *const table[][2] = {
      {"prefer", "expected pieces NAME=VALUE"},
      {";", "expected pieces NAME=VALUE"},
      {"prefer=vendor;", "expected pieces NAME=VALUE"},
      {"prefer=", "prefer=default, prefer=vendor or prefer=reference"},
      {"prefer=*", "prefer=default"},
      {"prefer=nvidia", "got \"prefer=nvidia\""},
      {"strict=yes", "strict=0 or strict=1"},
      {"strict=2", "strict=0 or strict=1"},
      {"deterministic=", "deterministic=0 or deterministic=1"},
      {"allow_vendors=", "names of vendors"},
      {"allow_vendors= , ", "names of vendors"},
      {"deny_vendors=a,,b", "names of vendors"},
      {"domain=", "domain=NAME"},
      {"memsett=impl:a", "an operator, one of its variants"},
      {"softmax.upwards=impl:a", "an operator, one of its variants"},
      {"memset.=impl:a", "an operator, one of its variants"},
      {"=impl:a", "an operator, one of its variants"},
      {"memset=", "default, vendor, reference, vendor:NAME, impl:ID or *"},
      {"memset=impl:", "vendor:NAME"},
      {"memset=vendor:", "vendor:NAME"},
      {"memset=impl:a|", "vendor:NAME"},
      {"memset=impl:a||*", "vendor:NAME"},
      {"memset=cuda", "vendor:NAME"},
      {"order=fastest", "got \"order=fastest\""},
      {"strict=1;memset=fastest;prefer=vendor", "got \"memset=fastest\""},
  };
  if (!case_begin("texts that are no policy")) return;
  for (size_t i = 0; i < COUNT(table); i++) {
    NVTEXPolicy policy = nvtex_policy_create(NULL, table[i][0]);
    CHECK(policy == NULL, "%s", table[i][0]);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_policy_create: changes: expected ", table[i][1]);
  }
  CHECK(nvtex_policy_create(NULL, NULL) == NULL, "a policy of no text");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "changes: expected a text, got null");
  CHECK(nvtex_policy_create(NULL, "prefer=\xff") == NULL, "a policy that is not UTF-8");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "changes: expected a text in UTF-8");
  CHECK(nvtex_policy_create((NVTEXPolicy)&table, "") == NULL, "a policy of no policy");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "base: expected a policy handle");
  nvtex_policy_push(NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "policy: expected a policy handle, got null");
}

static void test_handles(void) {
  if (!case_begin("handles and texts of policies")) return;
  NVTEXPolicy a = nvtex_policy_create(NULL, " Strict=1 ; memset = VENDOR:Acme | * ; domain=cpu");
  NVTEXPolicy b = nvtex_policy_create(a, "deny_vendors=x,b;prefer=reference");
  NVTEXPolicy c = nvtex_policy_create(b, "strict=0;deny_vendors=none");
  NVTEXPolicy again = nvtex_policy_create(NULL, nvtex_policy_text(c));
  EXPECT_OK();
  CHECK(strcmp(nvtex_policy_text(a), "strict=1;memset=vendor:acme|*;domain=cpu") == 0, "%s",
        nvtex_policy_text(a));
  CHECK(strcmp(nvtex_policy_text(b),
               "prefer=reference;strict=1;memset=vendor:acme|*;deny_vendors=b,x;domain=cpu") == 0,
        "%s", nvtex_policy_text(b));
  CHECK(strcmp(nvtex_policy_text(c), "prefer=reference;memset=vendor:acme|*;domain=cpu") == 0, "%s",
        nvtex_policy_text(c));
  CHECK(nvtex_policy_text(c) == nvtex_policy_text(again), "equal policies are not one");
  NVTEXPolicy former = nvtex_policy_set(a);
  NVTEXPolicy current = nvtex_policy_current();
  CHECK(nvtex_policy_text(current) == nvtex_policy_text(a), "%s", nvtex_policy_text(current));
  nvtex_policy_destroy(a);  // It stays in use.
  CHECK_EQ(who_ran(), FIRST);
  nvtex_policy_destroy(nvtex_policy_set(former));
  nvtex_policy_text(a);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "policy: expected a live policy");
  nvtex_policy_destroy(NULL);
  NVTEXPolicy all[] = {b, c, again, former, current};
  for (size_t i = 0; i < COUNT(all); i++) nvtex_policy_destroy(all[i]);
  EXPECT_OK();
}

static NVTEXPolicy made(const char *changes) {
  NVTEXPolicy current = nvtex_policy_current();
  NVTEXPolicy policy = nvtex_policy_create(current, changes);
  nvtex_policy_destroy(current);
  EXPECT_OK();
  return policy;
}

static void *run_on_a_thread(void *policy) {
  if (policy) nvtex_policy_push(policy);
  long tag = who_ran();
  if (policy) nvtex_policy_pop();
  if (nvtex_last_status() != NVTEX_OK) tag = -2;
  return (void *)tag;
}

static long on_a_thread(NVTEXPolicy policy) {
  pthread_t thread;
  void *tag = NULL;
  // The thread counts its checks, too: nothing is checked while it runs.
  int created = pthread_create(&thread, NULL, run_on_a_thread, policy);
  int joined = created == 0 ? pthread_join(thread, &tag) : -1;
  CHECK_EQ(created, 0);
  CHECK_EQ(joined, 0);
  return (long)tag;
}

static void test_scopes(void) {
  if (!case_begin("the stack of a thread")) return;
  use_policy(NULL);
  NVTEXPolicy first = made("memset=impl:acme.first"), own = made("memset=reference");
  nvtex_policy_pop();
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvtex_policy_pop: this thread has no policy on its stack");
  EXPECT_RUNS(COMMON);
  nvtex_policy_push(first);
  EXPECT_RUNS(FIRST);
  nvtex_policy_push(own);
  EXPECT_RUNS(OWN);
  nvtex_policy_push(own);
  nvtex_policy_pop();
  EXPECT_RUNS(OWN);
  // Other threads do not inherit it, and may be given it.
  CHECK_EQ(on_a_thread(NULL), COMMON);
  NVTEXPolicy current = nvtex_policy_current();
  CHECK_EQ(on_a_thread(current), OWN);
  nvtex_policy_destroy(current);
  // The stack hides the policy of the process.
  use_policy("memset=impl:slow");
  EXPECT_RUNS(OWN);
  CHECK_EQ(on_a_thread(NULL), SLOW);
  nvtex_policy_pop();
  EXPECT_RUNS(FIRST);
  nvtex_policy_pop();
  EXPECT_RUNS(SLOW);
  nvtex_policy_pop();
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "this thread has no policy");
  for (int i = 0; i < 32; i++) nvtex_policy_push(own);
  EXPECT_OK();
  nvtex_policy_push(first);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "at most 32 policies");
  EXPECT_RUNS(OWN);
  for (int i = 0; i < 32; i++) nvtex_policy_pop();
  EXPECT_RUNS(SLOW);
  nvtex_policy_destroy(first);
  nvtex_policy_destroy(own);
  use_policy(NULL);
}

static long resident_pages(void) {
  long size = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2) resident = -1;
  if (file) fclose(file);
  return resident;
}

static void test_many_scopes(void) {
  if (!case_begin("a million scopes")) return;
  NVTEXPolicy policies[] = {made("memset=reference"), made("memset=impl:slow")};
  long before = 0;
  for (int i = 0; i < 1000000; i++) {
    if (i == 1000) before = resident_pages();
    nvtex_policy_push(policies[i % 2]);
    unsigned char byte = 0;
    if (i % 100 == 0) nvte_memset(&byte, 0, 1, NULL);
    nvtex_policy_pop();
    if (i % 10 == 0) nvtex_policy_destroy(made(i % 3 ? "strict=1" : "strict=0"));
  }
  long after = resident_pages();
  CHECK(before > 0 && after - before < 64, "%ld pages, then %ld", before, after);
  EXPECT_OK();
  for (size_t i = 0; i < COUNT(policies); i++) nvtex_policy_destroy(policies[i]);
}

static void test_domains(void) {
  if (!case_begin("the domain of a policy")) return;
  NVTEXPolicy nowhere = nvtex_policy_create(NULL, "domain=nowhere");
  EXPECT_OK();
  nvtex_policy_push(nowhere);
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_memset: a policy's domain: expected one of auto, cpu",
               "got \"nowhere\"");
  CHECK(nvtex_malloc(16) == NULL, "memory of nowhere");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvtex_malloc: a policy's domain");
  nvtex_policy_pop();
  nvtex_policy_destroy(nowhere);
  CHECK(strcmp(nvtex_backend_name(), "cpu") == 0, "%s", nvtex_backend_name());
  EXPECT_OK();
}

static void test_fingerprint(void) {
  if (!case_begin("fingerprints")) return;
  uint64_t usual = nvtex_dispatch_fingerprint();
  use_policy("strict=1");
  uint64_t strict = nvtex_dispatch_fingerprint();
  use_policy("prefer=vendor;strict=1");
  uint64_t both = nvtex_dispatch_fingerprint();
  use_policy("STRICT=1;prefer=vendor");
  CHECK(nvtex_dispatch_fingerprint() == both, "equal policies have different fingerprints");
  CHECK(usual != strict && strict != both && usual != both, "fingerprints are equal");
  use_policy(NULL);
  CHECK(nvtex_dispatch_fingerprint() == usual, "the fingerprint is not as before");
  EXPECT_OK();
}

// ---- Sizes and support

static Offer g_sorter = {.op = "sort_pairs", .id = "acme.sorter", .workspace = 1 << 20};

static size_t sort_bytes(void) {
  size_t bytes = 0;
  nvte_device_radix_sort_pairs(NULL, &bytes, NULL, NULL, NULL, NULL, 100);
  return bytes;
}

static bool attention_is_supported(void) {
  NVTE_Fused_Attn_Backend backend = nvte_get_fused_attn_backend(
      true, kNVTEBFloat16, kNVTEBFloat16, NVTE_BSHD_BSHD_BSHD, NVTE_NO_BIAS, NVTE_CAUSAL_MASK,
      NVTE_VANILLA_SOFTMAX, 0, 4, 4, 128, 128, 64, 64, -1, 0, false, false, false);
  EXPECT_OK();
  return backend != NVTE_No_Backend;
}

static void test_sizes(void) {
  if (!case_begin("sizes and support follow the process, not the stack of a thread")) return;
  use_policy("sort_pairs=reference");
  size_t own = sort_bytes();
  use_policy(NULL);
  CHECK(own < 1 << 20, "%zu bytes", own);
  CHECK_EQ(sort_bytes(), 1 << 20);
  CHECK(attention_is_supported(), "not supported");
  NVTEXPolicy narrow = made("sort_pairs=reference;attention=impl:nothing");
  nvtex_policy_push(narrow);
  CHECK_EQ(sort_bytes(), 1 << 20);
  CHECK(attention_is_supported(), "not supported on a stack");
  nvtex_policy_pop();
  use_policy("attention=impl:nothing");
  CHECK(!attention_is_supported(), "supported by nobody");
  nvtex_policy_push(narrow);
  CHECK_EQ(sort_bytes(), 1 << 20);
  nvtex_policy_pop();
  nvtex_policy_destroy(narrow);
  use_policy(NULL);
  EXPECT_OK();
}

// ---- Variables

// A variable, its value, and who runs; or what the error says.
static const struct {
  const char *name, *value;
  int tag;
  const char *error;
} g_variables[] = {
    {"NVTE_PREFER", "vendor", FIRST, NULL},
    {"NVTE_PREFER", "flagos", COMMON, NULL},
    {"NVTE_PREFER", "reference", OWN, NULL},
    {"NVTE_PREFER", "nvidia", -1, "NVTE_PREFER: expected prefer=default"},
    {"NVTE_PREFER", "vendor;strict=1", -1, "NVTE_PREFER: expected no semicolon"},
    {"NVTE_STRICT", "1", COMMON, NULL},
    {"NVTE_STRICT", "2", -1, "NVTE_STRICT: expected strict=0 or strict=1"},
    {"NVTE_OP_ORDER", "memset=impl:slow", SLOW, NULL},
    {"NVTE_OP_ORDER", "gemm=vendor|reference;memset=vendor:other|*", OTHER, NULL},
    {"NVTE_OP_ORDER", "memset=impl:slow;", -1, "NVTE_OP_ORDER: expected pieces OPERATOR=ORDER"},
    {"NVTE_OP_ORDER", "memsett=impl:slow", -1, "NVTE_OP_ORDER: expected an operator"},
    {"NVTE_OP_ORDER", "prefer=vendor", -1, "NVTE_OP_ORDER: expected an operator"},
    {"NVTE_OP_ORDER", "gemm=native", -1, "NVTE_OP_ORDER: expected default, vendor"},
    {"NVTE_ALLOW_VENDORS", "other,nvidia", OTHER, NULL},
    {"NVTE_ALLOW_VENDORS", "none", OWN, NULL},
    {"NVTE_ALLOW_VENDORS", " , ", -1, "NVTE_ALLOW_VENDORS: expected names of vendors"},
    {"NVTE_DENY_VENDORS", "None.At.All,acme", OTHER, NULL},
    {"NVTE_DENY_VENDORS", "none", COMMON, NULL},
    {"NVTE_DENY_VENDORS", "a,", -1, "NVTE_DENY_VENDORS: expected names of vendors"},
    {"NVTE_PREFER", "", COMMON, NULL},
};

// The test of one variable, in a process of its own.
static int run_with_variable(size_t i) {
  offer_all("policy", g_offers, COUNT(g_offers));
  if (who_ran() != g_variables[i].tag) return 1;
  const char *error = g_variables[i].error;
  if ((error != NULL) != (nvtex_last_status() != NVTEX_OK)) return 2;
  if (error && !strstr(nvtex_last_error(), error)) return 3;
  nvtex_clear_error();
  NVTEXPolicy policy = nvtex_policy_from_env();
  if ((error == NULL) != (policy != NULL)) return 4;
  nvtex_clear_error();
  // A policy of the program is not that of the variables.
  nvtex_policy_set(nvtex_policy_create(NULL, "memset=impl:acme.second"));
  if (who_ran() != SECOND || nvtex_last_status() != NVTEX_OK) return 5;
  nvtex_policy_set(NULL);
  return who_ran() == g_variables[i].tag ? 7 : 6;
}

static void test_variables(void) {
  for (size_t i = 0; i < COUNT(g_variables); i++) {
    const char *name = g_variables[i].name, *value = g_variables[i].value;
    if (!case_begin("%s=\"%s\"", name, value)) continue;
    pid_t pid = fork_child();
    if (pid == 0) {
      // The library reads its environment once, and has done so here.
      setenv(name, value, 1);
      setenv("NVTE_BACKEND", "cpu", 1);
      setenv("NVTE_VERBOSE", "none", 1);
      char number[16];
      snprintf(number, sizeof number, "%zu", i);
      execl("/proc/self/exe", "policy", "--variable", number, (char *)NULL);
      _exit(8);
    }
    int status = wait_for_child(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status 0x%x", status);
  }
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "--variable") == 0) {
    return run_with_variable((size_t)atoi(argv[2]));
  }
  test_begin(argc, argv);
  test_variables();
  if (!offer_all("policy", g_offers, COUNT(g_offers))) return test_end();
  if (!offer_all("sorter", &g_sorter, 1)) return test_end();
  use_policy(NULL);
  test_orders();
  test_wrong_texts();
  test_handles();
  test_scopes();
  test_many_scopes();
  test_domains();
  test_sizes();
  test_fingerprint();
  return test_end();
}
