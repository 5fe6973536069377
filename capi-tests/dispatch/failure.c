// What becomes of a call that an implementation declines or fails: who is asked next, which error
// the caller gets, and that nothing of it is left for the next call.
#include "offer.h"

// ---- Each status

static void test_statuses(void) {
  static Offer offers[] = {
      {.id = "answers", .priority = 900},
      {.id = "next", .priority = 800, .tag = 9},
  };
  if (!offer_all("statuses", offers, COUNT(offers))) return;
  static const int32_t statuses[] = {2, 3, 4, -1, INT32_MIN, INT32_MAX, 100};
  use_policy(NULL);
  if (case_begin("declined: the next one runs")) {
    offers[0].status = NVTEX_PLUGIN_DECLINED;
    for (int i = 0; i < 3; i++) EXPECT_RUNS(9);
    CHECK_EQ(offers[0].ran, 3);
    offers[0].predicate = false;
    // The order names this implementation alone, so that nobody takes the call.
    use_policy("memset=impl:answers");
    offers[0].reason = "130 columns, needs a multiple of 8";
    CHECK_EQ(who_ran(), -1);
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_memset: memset: no implementation: answers: 130 columns",
                 "next: the order does not name it");
    offers[0].reason = NULL;
    CHECK_EQ(who_ran(), -1);
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "answers: no reason given");
    use_policy(NULL);
  }
  for (size_t i = 0; i < COUNT(statuses); i++) {
    if (!case_begin("status %d: an error, and nobody else runs", statuses[i])) continue;
    char number[32];
    snprintf(number, sizeof number, "status %d, which is none", statuses[i]);
    offers[0].status = statuses[i];
    offers[0].reason = "the device is on fire";
    atomic_store(&offers[0].ran, 0);
    atomic_store(&offers[1].ran, 0);
    CHECK_EQ(who_ran(), -1);
    EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nvte_memset: answers (memset): ", "the device is on fire",
                 statuses[i] == 2 ? "answers" : number);
    CHECK(offers[0].ran == 1 && offers[1].ran == 0, "%d and %d calls", offers[0].ran,
          offers[1].ran);
    // Nothing is remembered: the same candidate is asked again, and runs when it can.
    offers[0].status = NVTEX_PLUGIN_OK;
    offers[0].reason = NULL;
    EXPECT_RUNS(0);
    CHECK(offers[0].ran == 2 && offers[1].ran == 0, "%d and %d calls", offers[0].ran,
          offers[1].ran);
  }
}

static void test_predicates(void) {
  static Offer offers[] = {
      {.id = "predicate", .priority = 990, .predicate = true, .tag = 21},
      {.id = "after", .priority = 980, .tag = 22},
  };
  if (!case_begin("answers of a predicate")) return;
  if (!offer_all("predicates", offers, COUNT(offers))) return;
  use_policy(NULL);
  EXPECT_RUNS(21);
  offers[0].supported = NVTEX_PLUGIN_DECLINED;
  EXPECT_RUNS(22);
  CHECK(offers[0].ran == 1 && offers[0].asked == 2, "%d, %d", offers[0].ran, offers[0].asked);
  offers[0].supported = NVTEX_PLUGIN_FAILED;
  offers[0].reason = "no licence";
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "predicate (memset): no licence");
  CHECK(offers[0].ran == 1 && offers[1].ran == 1, "%d, %d", offers[0].ran, offers[1].ran);
  use_policy("memset=reference");
}

// ---- In-place work

static float g_sum;

static int32_t add_and_fail(Offer *offer, const NVTEXCall *call) {
  (void)offer;
  (void)call;
  g_sum += 1;
  return NVTEX_PLUGIN_FAILED;
}

static void test_never_retried(void) {
  static Offer offers[] = {
      {.id = "adds.1", .priority = 999, .body = add_and_fail},
      {.id = "adds.2", .priority = 998, .body = add_and_fail},
  };
  if (!case_begin("a failure is never repeated")) return;
  if (!offer_all("adders", offers, COUNT(offers))) return;
  use_policy("memset=impl:adds.1|impl:adds.2|*");
  g_sum = 0;
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "adds.1 (memset): no reason given");
  CHECK_FLOAT(g_sum, 1);
  use_policy("memset=reference");
}

// ---- Reasons

static char g_reason[10001];

static void test_reasons(void) {
  static Offer offers[] = {{.id = "talks", .status = NVTEX_PLUGIN_FAILED, .reason = g_reason}};
  if (!case_begin("reasons that are long, binary or not terminated")) return;
  if (!offer_all("talker", offers, 1)) return;
  use_policy("memset=impl:talks");
  memset(g_reason, 'x', sizeof g_reason - 1);
  CHECK_EQ(who_ran(), -1);
  CHECK(strlen(nvtex_last_error()) < 600, "%zu bytes", strlen(nvtex_last_error()));
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "talks (memset): xxxxxxxxxxxxxxxx");
  strcpy(g_reason, "a\nb\tc\x1b[31md\x7f");
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "talks (memset): a b c [31md ");
  strcpy(g_reason, "not UTF-8: \xff\xfe\xc3");
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "talks (memset): not UTF-8: ");
  g_reason[0] = 0;
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "talks (memset): no reason given");
  use_policy("memset=reference");
}

static void test_many_declines(void) {
  enum { MANY = 20 };
  static Offer offers[MANY];
  static char ids[MANY][16];
  if (!case_begin("%d candidates that decline", MANY)) return;
  for (int i = 0; i < MANY; i++) {
    snprintf(ids[i], sizeof ids[i], "many.%02d", i);
    offers[i] =
        (Offer){.id = ids[i], .vendor = "many", .status = NVTEX_PLUGIN_DECLINED, .reason = ids[i]};
  }
  if (!offer_all("many", offers, MANY)) return;
  use_policy("memset=vendor:many");
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "many.00: many.00; many.01: many.01", "many.07: many.07",
               "12 more");
  for (int i = 0; i < MANY; i++) CHECK_EQ(offers[i].ran, 1);
  use_policy("memset=vendor:many|reference");
  EXPECT_RUNS(0);
}

// ---- Workspace and scratch memory

static size_t g_scratch;
static void *g_block;

static int32_t use_scratch(Offer *offer, const NVTEXCall *call) {
  g_scratch = call->scratch_bytes;
  g_block = call->scratch;
  if ((uintptr_t)call->scratch % 256 != 0) return NVTEX_PLUGIN_FAILED;
  memset(call->scratch, 0x5A, call->scratch_bytes);
  const NVTEXMemsetArgs *args = call->args;
  memset(args->ptr, args->value + offer->tag, args->bytes);
  return NVTEX_PLUGIN_OK;
}

static int32_t nest_with_scratch(Offer *offer, const NVTEXCall *call) {
  memset(call->scratch, 0x11, call->scratch_bytes);
  unsigned char byte = 0;
  nvte_memset(&byte, 0, 1, NULL);
  for (size_t i = 0; i < call->scratch_bytes; i++) {
    if (((unsigned char *)call->scratch)[i] != 0x11) return NVTEX_PLUGIN_FAILED;
  }
  const NVTEXMemsetArgs *args = call->args;
  memset(args->ptr, args->value + offer->tag, args->bytes);
  return byte == 61 ? NVTEX_PLUGIN_OK : NVTEX_PLUGIN_FAILED;
}

static void test_scratch(void) {
  static Offer offers[] = {
      {.id = "scratch", .body = use_scratch, .tag = 61},
      {.id = "outer.scratch", .body = nest_with_scratch, .tag = 62, .scratch = 100},
  };
  if (!case_begin("scratch memory")) return;
  offers[0].scratch = 1;
  if (!offer_all("scratch", offers, COUNT(offers))) return;
  use_policy("memset=impl:scratch");
  static const size_t sizes[] = {1, 1000, 100000, 1000, 257};
  void *largest = NULL;
  for (size_t i = 0; i < COUNT(sizes); i++) {
    offers[0].scratch = sizes[i];
    EXPECT_RUNS(61);
    CHECK_EQ(g_scratch, sizes[i]);
    if (i == 2) largest = g_block;
    if (i > 2) CHECK(g_block == largest, "a smaller one gets another block");
  }
  // A call inside of the call that has a block gets another one.
  use_policy("memset=impl:outer.scratch|impl:scratch");
  EXPECT_RUNS(62);
  offers[0].scratch = SIZE_MAX / 2;
  use_policy("memset=impl:scratch");
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nvte_memset: out of host memory", "scratch");
  offers[0].scratch = 1;
  use_policy("memset=reference");
}

// ---- Nested calls

static int32_t nest_same(Offer *offer, const NVTEXCall *call) {
  const NVTEXMemsetArgs *args = call->args;
  // This implementation is running: the next one takes the call.
  nvte_memset(args->ptr, args->value, args->bytes, call->stream);
  if (nvtex_last_status() != NVTEX_OK) return NVTEX_PLUGIN_FAILED;
  *(unsigned char *)args->ptr += offer->tag;
  ((unsigned char *)args->ptr)[args->bytes - 1] += offer->tag;
  return NVTEX_PLUGIN_OK;
}

static int32_t nest_failing(Offer *offer, const NVTEXCall *call) {
  const NVTEXMemsetArgs *args = call->args;
  // Errors of the caller are not seen here, and those of here not by the caller.
  if (nvtex_last_status() != NVTEX_OK || nvtex_last_error()[0]) return NVTEX_PLUGIN_FAILED;
  uint64_t count = nvtex_error_count();
  nvte_memset(NULL, 0, 4, NULL);
  if (nvtex_last_status() != NVTEX_INVALID_ARGUMENT) return NVTEX_PLUGIN_FAILED;
  if (!strstr(nvtex_last_error(), "nvte_memset: ptr")) return NVTEX_PLUGIN_FAILED;
  if (nvtex_error_count() != count + 1) return NVTEX_PLUGIN_FAILED;
  memset(args->ptr, args->value + offer->tag, args->bytes);
  return offer->status;
}

static int32_t nest_policy(Offer *offer, const NVTEXCall *call) {
  (void)call;
  nvtex_policy_pop();  // The scope is the caller's: a plugin may not close it.
  bool refused = nvtex_last_status() == NVTEX_UNSUPPORTED;
  nvtex_clear_error();
  NVTEXPolicy policy = nvtex_policy_create(NULL, "domain=cpu;memset=impl:next");
  nvtex_policy_push(policy);
  nvtex_policy_push(policy);
  nvtex_policy_destroy(policy);
  const NVTEXMemsetArgs *args = call->args;
  memset(args->ptr, args->value + offer->tag, args->bytes);
  return refused ? NVTEX_PLUGIN_OK : NVTEX_PLUGIN_FAILED;
}

static void test_nested(void) {
  static Offer offers[] = {
      {.id = "nest.same", .body = nest_same, .tag = 70},
      {.id = "nest.failing", .body = nest_failing, .tag = 71},
      {.id = "nest.policy", .body = nest_policy, .tag = 72},
  };
  if (!offer_all("nested", offers, COUNT(offers))) return;
  if (case_begin("a nested call of the same operator")) {
    use_policy("memset=impl:nest.same|reference");
    EXPECT_RUNS(70);
    CHECK_EQ(offers[0].ran, 1);
    use_policy("memset=impl:nest.same");
    CHECK_EQ(who_ran(), -1);
    EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nest.same (memset): no reason given");
  }
  if (case_begin("errors of nested calls")) {
    use_policy("memset=impl:nest.failing");
    EXPECT_RUNS(71);
    CHECK(nvtex_last_error()[0] == 0, "%s", nvtex_last_error());
    // An error of before is still there.
    nvtex_malloc(SIZE_MAX);
    uint64_t count = nvtex_error_count();
    CHECK_EQ(who_ran(), 71);
    CHECK_EQ(nvtex_error_count(), count);
    EXPECT_ERROR(ANY_ERROR, "nvtex_malloc: ");
    offers[1].status = NVTEX_PLUGIN_FAILED;
    who_ran();
    EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nest.failing (memset)");
    offers[1].status = NVTEX_PLUGIN_OK;
  }
  if (case_begin("the error mode of the process does not reach nested calls")) {
    use_policy("memset=impl:nest.failing");
    NVTEXErrorMode before = nvtex_set_error_mode(NVTEX_ERROR_ABORT);
    EXPECT_RUNS(71);
    nvtex_set_error_mode(NVTEX_ERROR_THROW);
    EXPECT_RUNS(71);
    nvtex_set_error_mode(before);
  }
  if (case_begin("policies of nested calls")) {
    use_policy("memset=impl:nest.policy");
    NVTEXPolicy policy = nvtex_policy_current();
    nvtex_policy_push(policy);
    EXPECT_RUNS(72);
    EXPECT_RUNS(72);
    nvtex_policy_pop();
    EXPECT_OK();
    nvtex_policy_pop();
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "no policy on its stack");
    nvtex_policy_destroy(policy);
  }
  use_policy("memset=reference");
}

// Each of twelve calls the operator again, which the next one takes: too deep.
static void test_depth(void) {
  enum { DEEP = 12 };
  static Offer offers[DEEP];
  static char ids[DEEP][16], order[512] = "memset=";
  if (!case_begin("plugins that call each other")) return;
  for (int i = 0; i < DEEP; i++) {
    snprintf(ids[i], sizeof ids[i], "deep.%02d", i);
    offers[i] = (Offer){.id = ids[i], .body = nest_same};
    snprintf(order + strlen(order), 32, "impl:%s|", ids[i]);
  }
  strcat(order, "reference");
  if (!offer_all("deep", offers, DEEP)) return;
  use_policy(order);
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "deep.00 (memset)");
  for (int i = 0; i < DEEP; i++) CHECK_EQ(offers[i].ran, i < 8);
  use_policy("memset=impl:deep.11|impl:deep.10|impl:deep.09|reference");
  EXPECT_RUNS(0);
  use_policy("memset=reference");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_statuses();
  test_predicates();
  test_never_retried();
  test_reasons();
  test_many_declines();
  test_scratch();
  test_nested();
  test_depth();
  return test_end();
}
