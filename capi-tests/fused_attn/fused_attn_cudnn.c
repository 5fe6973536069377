// Attention where cuDNN is preferred: that the query names it or says why not, what it computes
// against the reference in float64, and many threads that plan and run at once. Without cuDNN the
// program ends as skipped, after it has read the reason.
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>

#include "attention_common.h"

typedef struct Row {
  size_t b, hq, hkv, sq, skv, dqk, dv;
  int64_t left, right;
  bool bottom_right, float16, deterministic, max_logit;
  NVTE_QKV_Layout layout;
} Row;

static const Row kRows[] = {
    {2, 4, 4, 128, 128, 64, 64, -1, -1, 0, 0, 0, 0, NVTE_BSHD_BSHD_BSHD},
    {2, 4, 4, 200, 200, 128, 128, -1, 0, 0, 0, 0, 0, NVTE_BSHD_BSHD_BSHD},
    {1, 3, 3, 129, 129, 64, 64, -1, 0, 0, 0, 0, 0, NVTE_BS3HD},
    {2, 6, 2, 70, 257, 96, 96, -1, -1, 0, 1, 0, 0, NVTE_SBHD_SBH2D},
    {2, 4, 1, 70, 257, 128, 128, -1, 0, 1, 0, 0, 0, NVTE_SBHD_SBHD_SBHD},
    {1, 2, 2, 257, 70, 64, 64, -1, 0, 0, 0, 0, 0, NVTE_BHSD_BHSD_BHSD},
    {1, 4, 2, 300, 300, 256, 256, -1, 0, 0, 0, 0, 0, NVTE_BSHD_BSHD_BSHD},
    {1, 2, 2, 130, 130, 192, 128, -1, 0, 0, 0, 0, 0, NVTE_BSHD_BSHD_BSHD},
    {1, 2, 1, 65, 333, 40, 40, -1, -1, 0, 1, 0, 0, NVTE_BHSD_BHSD_BHSD},
    {2, 2, 2, 260, 260, 64, 64, 40, 0, 0, 0, 0, 0, NVTE_BSHD_BSHD_BSHD},
    {1, 2, 2, 100, 260, 64, 64, 33, 0, 1, 0, 0, 0, NVTE_SBHD_SBHD_SBHD},
    {1, 2, 2, 260, 260, 128, 128, 30, 20, 0, 0, 0, 0, NVTE_BSHD_BSHD_BSHD},
    // The order of additions is fixed.
    {1, 4, 2, 260, 260, 128, 128, -1, 0, 0, 0, 1, 0, NVTE_BSHD_BSHD_BSHD},
    // The forward is not cuDNN's: its statistics are read by cuDNN's backward.
    {2, 4, 2, 190, 190, 128, 128, -1, 0, 0, 0, 0, 1, NVTE_BSHD_BSHD_BSHD},
};

static Run run_of(const Row *row) {
  Run x = {0};
  x.p = (Problem){.b = row->b, .hq = row->hq, .hkv = row->hkv, .sq = row->sq, .skv = row->skv};
  x.p.dqk = row->dqk, x.p.dv = row->dv;
  x.p.scale = (float)(1 / sqrt((double)row->dqk));
  x.p.left = row->left, x.p.right = row->right, x.p.bottom_right = row->bottom_right;
  for (size_t i = 0; i < row->b; i++) x.p.lq[i] = (int)row->sq, x.p.lk[i] = (int)row->skv;
  int layout = row->layout;
  x.c = (Config){.layout = layout, .dqkv_layout = layout, .mask = NVTE_NO_MASK};
  x.c.o_order = x.c.do_order = layout_info(layout).q;
  NVTEDType dtype = row->float16 ? kNVTEFloat16 : kNVTEBFloat16;
  x.c.dtype = x.c.o_dtype = x.c.do_dtype = x.c.dqkv_dtype = x.c.bias_dtype = dtype;
  x.c.left = row->left, x.c.right = row->right, x.c.bottom_right = row->bottom_right;
  x.c.deterministic = row->deterministic, x.c.max_logit = row->max_logit;
  x.c.training = true;
  return x;
}

// The implementation of a pass and why others were not taken, both until the thread's next query.
static const char *chosen(const Run *x, NVTEXAttentionPass pass, const char **rejected) {
  NVTEFusedAttnConfig config = make_config(x);
  const char *name = NULL;
  size_t bytes;
  nvtex_fused_attn_query(config, pass, &name, rejected, &bytes);
  nvte_destroy_fused_attn_config(config);
  EXPECT_OK();
  return name ? name : "none";
}

// Whether cuDNN takes a plain attention; if not, the reason is one of those that say why it cannot
// take any.
static bool available(char *why, size_t bytes) {
  Run x = run_of(&kRows[0]);
  const char *rejected = "";
  bool there = strcmp(chosen(&x, NVTEX_ATTENTION_FORWARD, &rejected), "cudnn") == 0;
  if (case_begin("availability")) {
    const char *line = strstr(rejected, "cudnn: ");
    bool said = line && (strstr(line, "not to be found") || strstr(line, "needs cuDNN") ||
                         strstr(line, "needs compute capability"));
    CHECK(there || said == on_cuda(), "%s", rejected);
  }
  snprintf(why, bytes, "%s", rejected);
  return there;
}

static void test_choice(void) {
  if (case_begin("choice")) {
    Run x = run_of(&kRows[0]);
    const char *rejected = "";
    // What it is not asked for.
    const struct {
      const char *reason;
      float dropout;
      int bias, softmax, mask;
    } others[] = {{"dropout", 0.1f, 0, 0, NVTE_NO_MASK},
                  {"bias", 0, NVTE_POST_SCALE_BIAS, 0, NVTE_NO_MASK},
                  {"bias", 0, NVTE_ALIBI, 0, NVTE_CAUSAL_MASK},
                  {"a sink", 0, 0, NVTE_LEARNABLE_SOFTMAX, NVTE_NO_MASK},
                  {"lengths", 0, 0, 0, NVTE_PADDING_MASK}};
    for (size_t i = 0; i < COUNT(others); i++) {
      Run other = x;
      other.p.dropout = others[i].dropout;
      other.c.bias = others[i].bias, other.c.softmax = others[i].softmax;
      other.c.mask = others[i].mask;
      const size_t dims[4] = {1, other.p.hq, other.p.sq, other.p.skv};
      memcpy(other.p.bias_dims, dims, sizeof dims);
      for (int pass = 0; pass < 2; pass++) {
        const char *name = chosen(&other, (NVTEXAttentionPass)pass, &rejected);
        const char *line = strstr(rejected, "cudnn: ");
        CHECK(strcmp(name, "cudnn") != 0 && line && strstr(line, others[i].reason), "row %zu: %s",
              i, rejected);
      }
    }
    // Rows without a column, whose statistics are -inf.
    Run empty = x;
    empty.c.bottom_right = true, empty.c.right = 0, empty.p.skv = 64;
    chosen(&empty, NVTEX_ATTENTION_FORWARD, &rejected);
    CHECK(strstr(rejected, "cudnn: rows that admit no column"), "%s", rejected);
  }
}

static const char *describe(const Row *row) {
  static char text[160];
  snprintf(text, sizeof text,
           "b%zu h%zu/%zu s%zu,%zu d%zu,%zu, window %lld,%lld br%d, F16 %d, det %d, max %d, "
           "layout %d",
           row->b, row->hq, row->hkv, row->sq, row->skv, row->dqk, row->dv, (long long)row->left,
           (long long)row->right, row->bottom_right, row->float16, row->deterministic,
           row->max_logit, (int)row->layout);
  return text;
}

static void test_values(void) {
  for (size_t i = 0; i < COUNT(kRows); i++) {
    if (!case_begin("%s", describe(&kRows[i]))) continue;
    Run x = run_of(&kRows[i]);
    const char *rejected = "", *name = chosen(&x, NVTEX_ATTENTION_FORWARD, &rejected);
    CHECK((strcmp(name, "cudnn") == 0) == !x.c.max_logit, "forward %s: %s", name, rejected);
    name = chosen(&x, NVTEX_ATTENTION_BACKWARD, &rejected);
    CHECK(strcmp(name, "cudnn") == 0 || strstr(rejected, "cudnn: before cuDNN"), "backward %s: %s",
          name, rejected);
    g_text = g_test.name;
    build_forward(&x);
    if (run_forward(&x)) run_backward(&x);
    nvte_tensor_pack_destroy(&x.pack);
  }
}

// ---- Threads

enum { THREADS = 8, CALLS = 20, ROOM = 1 << 22 };

typedef struct Worker {
  pthread_t thread;
  Run run;
  void (*call)(Run *);
  char error[256];
} Worker;

static void *work(void *argument) {
  Worker *worker = argument;
  for (int i = 0; i < CALLS && !worker->error[0]; i++) {
    worker->call(&worker->run);
    if (nvtex_last_status() == NVTEX_OK) continue;
    snprintf(worker->error, sizeof worker->error, "%s", nvtex_last_error());
  }
  return NULL;
}

static void run_workers(Worker *workers, void (*call)(Run *)) {
  for (int i = 0; i < THREADS; i++) {
    workers[i].call = call;
    CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    CHECK(!workers[i].error[0], "thread %d: %s", i, workers[i].error);
  }
}

// Each thread makes its calls, in pairs of one configuration that none has planned before.
static void test_threads(void) {
  if (!case_begin("%d threads", THREADS)) return;
  g_text = g_test.name;
  static Worker workers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    Row row = kRows[1];
    row.skv = 203 + (size_t)(i / 2);
    Run *x = &workers[i].run;
    *x = run_of(&row);
    build_forward(x);
    nvte_tensor_pack_create(&x->pack);
    x->pack.size = 2;
    x->stats_data = buffer(numel(stats_shape(x)) * sizeof(float));
    set_param(x->pack.tensors[0], kNVTERowwiseData, x->stats_data->ptr, kNVTEFloat32,
              stats_shape(x));
    x->workspace = tensor(buffer(ROOM)->ptr, kNVTEByte, SHAPE(ROOM));
  }
  run_workers(workers, call_forward);
  for (int i = 0; i < THREADS; i++) {
    check_forward(&workers[i].run);
    build_backward(&workers[i].run);
  }
  run_workers(workers, call_backward);
  for (int i = 0; i < THREADS; i++) {
    check_backward(&workers[i].run);
    nvte_tensor_pack_destroy(&workers[i].run.pack);
  }
}

int main(int argc, char **argv) {
  setenv("NVTE_ATTENTION_CUDNN", "1", 1);
  test_begin(argc, argv);
  char why[512];
  bool there = available(why, sizeof why);
  if (there) {
    test_choice();
    test_values();
    test_threads();
  }
  int status = test_end();
  if (there || !on_cuda() || status != TEST_PASS) return status;
  // Last, where the reason of a skipped test is looked for.
  printf("%s\n", why);
  return TEST_SKIP;
}
