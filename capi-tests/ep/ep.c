// Expert parallelism in a group of one rank: plans, copies and sums against loops of the test
// (gemm_comm.md, section 11). Without a group, and with more ranks, it is refused.
#include "transformer_engine/ep.h"

#include <limits.h>

#include "support.h"

static const NVTECommWindow kNoWindow = {NULL, 0, NULL, 0};
static const NVTECommWindow kWindow = {(struct ncclWindow_vidmem *)(uintptr_t)16, 0, NULL, 0};

typedef struct Problem {
  NVTEDType dtype, index;
  size_t tokens, topk, experts, cols, alignment, capacity, shift;
} Problem;

static NVTEEpGroupConfig group_config(int experts, int tokens, int capacity) {
  NVTEEpGroupConfig c;
  memset(&c, 0, sizeof c);
  c.struct_size = sizeof c;
  c.ep_size = 1, c.num_experts = experts, c.max_tokens_per_rank = tokens;
  c.max_recv_tokens_per_rank = capacity, c.hidden_dim = 64, c.max_token_dtype = kNVTEFloat32;
  c.drop_on_overflow = capacity > 0;
  return c;
}

static NVTEEpLayerConfig layer_config(size_t topk, size_t alignment) {
  NVTEEpLayerConfig c;
  memset(&c, 0, sizeof c);
  c.struct_size = sizeof c, c.top_k = (int)topk;
  c.dispatch_output_per_expert_alignment = alignment;
  return c;
}

static void put_index(NVTEDType dtype, void *data, size_t i, int64_t value) {
  if (dtype == kNVTEInt64) {
    ((int64_t *)data)[i] = value;
  } else {
    ((int32_t *)data)[i] = (int32_t)value;
  }
}

static int64_t get_index(NVTEDType dtype, const void *data, size_t i) {
  return dtype == kNVTEInt64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

// What a plan is, by its definition.
typedef struct Plan {
  int64_t *chosen, *rows, *counts, total;
  void *indices;
} Plan;

// Every ninth choice is no expert.
static Plan plan_of(const Problem *p) {
  size_t slots = p->tokens * p->topk;
  Plan plan = {host_memory(slots * 8), host_memory(slots * 8), host_memory(p->experts * 8), 0,
               host_memory(slots * 8)};
  for (size_t i = 0; i < slots; i++) {
    plan.chosen[i] = (int64_t)random_below(p->experts);
    if (i % 9 == 4) plan.chosen[i] = i % 2 ? -1 : (int64_t)p->experts;
    put_index(p->index, plan.indices, i, plan.chosen[i]);
  }
  for (size_t e = 0; e < p->experts; e++) {
    int64_t length = 0, a = p->alignment > 1 ? (int64_t)p->alignment : 1;
    int64_t capacity = p->capacity ? (int64_t)p->capacity : INT64_MAX;
    for (size_t i = 0; i < slots; i++) {
      if (plan.chosen[i] != (int64_t)e) continue;
      int64_t row = plan.total + length++;
      plan.rows[i] = row < capacity ? row : -1;
    }
    int64_t padded = (length + a - 1) / a * a;
    int64_t room = capacity > plan.total ? capacity - plan.total : 0;
    plan.counts[e] = padded < room ? padded : room;
    plan.total += padded;
  }
  for (size_t i = 0; i < slots; i++) {
    if (plan.chosen[i] < 0 || plan.chosen[i] >= (int64_t)p->experts) plan.rows[i] = -1;
  }
  return plan;
}

static bool near(NVTEDType dtype, double got, double want, double terms) {
  double relative = dtype == kNVTEFloat32 ? 1e-6 : dtype == kNVTEFloat16 ? 1.1e-3 : 8.5e-3;
  return fabs(got - want) <= relative * fabs(want) + 1e-6 * terms + 4e-8;
}

// The row of each choice copied, and zeros in all other rows.
static void check_rows(const char *what, const Buffer *buffer, const void *source, size_t width,
                       size_t rows, size_t repeat, size_t choices, const Plan *plan) {
  unsigned char *want = host_memory(rows * width);
  for (size_t i = 0; i < choices; i++) {
    if (plan->rows[i] < 0 || (size_t)plan->rows[i] >= rows) continue;
    memcpy(want + (size_t)plan->rows[i] * width, (const char *)source + i / repeat * width, width);
  }
  const unsigned char *got = buffer_read(buffer);
  for (size_t r = 0, bad = 0; r < rows && bad < 3; r++) {
    bad += !CHECK(memcmp(got + r * width, want + r * width, width) == 0, "row %zu of %s", r, what);
  }
}

// Sums over the experts of each token.
static void check_sums(const char *what, const Buffer *buffer, const void *values, size_t rows,
                       const Problem *p, const Plan *plan) {
  const void *got = buffer_read(buffer);
  for (size_t i = 0, bad = 0; i < p->tokens * p->cols && bad < 3; i++) {
    double want = 0, terms = 0;
    for (size_t k = 0; k < p->topk; k++) {
      int64_t row = plan->rows[i / p->cols * p->topk + k];
      if (row < 0 || (size_t)row >= rows) continue;
      double v = get_value(p->dtype, values, (size_t)row * p->cols + i % p->cols);
      want += v, terms += fabs(v);
    }
    bad += !CHECK(near(p->dtype, get_value(p->dtype, got, i), want, terms),
                  "%s[%zu, %zu]: got %g, expected %g", what, i / p->cols, i % p->cols,
                  get_value(p->dtype, got, i), want);
  }
}

static void check(Problem p) {
  if (!case_begin("%s %s T%zu K%zu E%zu H%zu alignment %zu capacity %zu shift %zu",
                  dtype_name(p.dtype), dtype_name(p.index), p.tokens, p.topk, p.experts, p.cols,
                  p.alignment, p.capacity, p.shift)) {
    return;
  }
  // The group takes more tokens than there are, so that its memory is not packed.
  NVTEEpGroupConfig config = group_config((int)p.experts, (int)p.tokens + 3, (int)p.capacity);
  nvte_ep_shutdown();
  nvte_ep_initialize(NULL, &config);
  NVTEEpLayerConfig layer = layer_config(p.topk, p.alignment);
  size_t bytes = nvte_ep_handle_mem_size(&layer);
  if (!EXPECT_OK()) return;
  Plan plan = plan_of(&p);
  size_t slots = p.tokens * p.topk, size = dtype_size(p.dtype), index = dtype_size(p.index);
  Buffer *memory = buffer(bytes);
  NVTETensor handle = tensor(memory->ptr, kNVTEByte, SHAPE(bytes));
  NVTETensor chosen = tensor(buffer_from(plan.indices, slots * index, p.shift * index)->ptr,
                             p.index, SHAPE(p.tokens, p.topk));
  Buffer *counts = buffer(p.experts * index), *total = buffer(index);
  NVTETensor counts_tensor = tensor(counts->ptr, p.index, SHAPE(p.experts));
  NVTETensor total_tensor = tensor(total->ptr, p.index, SHAPE(1));

  // Forward, in two calls and in one. Some rows beyond the total are there, or some are missing.
  size_t rows = p.capacity ? p.capacity : (size_t)plan.total + p.shift * 5;
  void *x = random_values(p.dtype, p.tokens * p.cols, -2, 2);
  float *w = random_values(kNVTEFloat32, slots, 0, 1);
  NVTETensor tokens = tensor(buffer_from(x, p.tokens * p.cols * size, p.shift * size)->ptr, p.dtype,
                             SHAPE(p.tokens, p.cols));
  NVTETensor weights =
      tensor(buffer_from(w, slots * 4, p.shift * 4)->ptr, kNVTEFloat32, SHAPE(p.tokens, p.topk));
  for (int fused = 0; fused < 2; fused++) {
    Buffer *received = buffer_shifted(rows * p.cols * size, p.shift * size);
    Buffer *received_w = buffer_shifted(rows * 4, p.shift * 4);
    NVTETensor recv = tensor(received->ptr, p.dtype, SHAPE(rows, p.cols));
    NVTETensor recv_w = tensor(received_w->ptr, kNVTEFloat32, SHAPE(rows));
    if (fused) {
      nvte_ep_prepare_and_dispatch(handle, chosen, tokens, kNoWindow, weights, kNoWindow, recv,
                                   kNoWindow, recv_w, kNoWindow, counts_tensor, total_tensor,
                                   &layer, NULL);
    } else {
      nvte_ep_prepare(handle, chosen, counts_tensor, total_tensor, &layer, NULL);
      nvte_ep_dispatch(handle, chosen, tokens, kNoWindow, weights, kNoWindow, recv, kNoWindow,
                       recv_w, kNoWindow, NULL);
    }
    if (!EXPECT_OK()) return;
    const void *got = buffer_read(counts);
    for (size_t e = 0, bad = 0; e < p.experts && bad < 3; e++) {
      bad += !CHECK(get_index(p.index, got, e) == plan.counts[e], "expert %zu: %lld and %lld", e,
                    (long long)get_index(p.index, got, e), (long long)plan.counts[e]);
    }
    CHECK_EQ(get_index(p.index, buffer_read(total), 0), plan.total);
    check_rows("tokens", received, x, p.cols * size, rows, p.topk, slots, &plan);
    check_rows("weights", received_w, w, 4, rows, 1, slots, &plan);
  }

  // Combination, and the gradients of both.
  void *values = random_values(p.dtype, rows * p.cols, -2, 2);
  float *weight_values = random_values(kNVTEFloat32, rows, -1, 1);
  NVTETensor out = tensor(buffer_from(values, rows * p.cols * size, p.shift * size)->ptr, p.dtype,
                          SHAPE(rows, p.cols));
  NVTETensor out_w =
      tensor(buffer_from(weight_values, rows * 4, 4 * p.shift)->ptr, kNVTEFloat32, SHAPE(rows));
  Buffer *sums = buffer_shifted(p.tokens * p.cols * size, p.shift * size);
  nvte_ep_combine(handle, out, kNoWindow, tensor(sums->ptr, p.dtype, SHAPE(p.tokens, p.cols)),
                  NULL);
  Buffer *grads = buffer_shifted(p.tokens * p.cols * size, p.shift * size);
  Buffer *grad_w = buffer_shifted(slots * 4, p.shift * 4);
  nvte_ep_dispatch_bwd(handle, out, kNoWindow, out_w, kNoWindow,
                       tensor(grads->ptr, p.dtype, SHAPE(p.tokens, p.cols)),
                       tensor(grad_w->ptr, kNVTEFloat32, SHAPE(p.tokens, p.topk)), NULL);
  Buffer *spread = buffer_shifted(rows * p.cols * size, p.shift * size);
  nvte_ep_combine_bwd(handle, tokens, kNoWindow, tensor(spread->ptr, p.dtype, SHAPE(rows, p.cols)),
                      kNoWindow, NULL);
  if (!EXPECT_OK()) return;
  check_sums("result", sums, values, rows, &p, &plan);
  check_sums("grad_tokens", grads, values, rows, &p, &plan);
  check_rows("grad_expert_out", spread, x, p.cols * size, rows, p.topk, slots, &plan);
  const float *got_w = buffer_read(grad_w);
  for (size_t i = 0, bad = 0; i < slots && bad < 3; i++) {
    bool there = plan.rows[i] >= 0 && (size_t)plan.rows[i] < rows;
    float want = there ? weight_values[plan.rows[i]] : 0;
    bad += !CHECK(got_w[i] == want, "grad_topk_weights[%zu]: got %g, expected %g", i,
                  (double)got_w[i], (double)want);
  }
}

// Two layers of different top_k and alignment at once, and two plans of one layer: each has its own
// memory.
static void test_layers(void) {
  enum { TOKENS = 40, EXPERTS = 6, COLS = 16 };
  if (!case_begin("several layers")) return;
  nvte_ep_shutdown();
  NVTEEpGroupConfig config = group_config(EXPERTS, TOKENS, 0);
  nvte_ep_initialize(NULL, &config);
  Problem p[3] = {{kNVTEFloat32, kNVTEInt64, TOKENS, 2, EXPERTS, COLS, 1, 0, 0},
                  {kNVTEFloat32, kNVTEInt64, TOKENS, 3, EXPERTS, COLS, 16, 0, 0},
                  {kNVTEFloat32, kNVTEInt64, 7, 2, EXPERTS, COLS, 1, 0, 0}};
  Plan plans[3];
  NVTETensor handles[3];
  for (int l = 0; l < 3; l++) {
    NVTEEpLayerConfig layer = layer_config(p[l].topk, p[l].alignment);
    size_t bytes = nvte_ep_handle_mem_size(&layer), slots = p[l].tokens * p[l].topk;
    plans[l] = plan_of(&p[l]);
    handles[l] = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
    // Counts may be absent.
    nvte_ep_prepare(handles[l],
                    tensor(buffer_from(plans[l].indices, slots * 8, 0)->ptr, kNVTEInt64,
                           SHAPE(p[l].tokens, p[l].topk)),
                    l == 1 ? empty_tensor() : NULL, NULL, &layer, NULL);
  }
  if (!EXPECT_OK()) return;
  for (int l = 0; l < 3; l++) {
    size_t rows = (size_t)plans[l].total, n = p[l].tokens * COLS;
    void *x = random_values(kNVTEFloat32, n, -1, 1);
    Buffer *received = buffer(rows * COLS * 4);
    nvte_ep_dispatch(handles[l], NULL,
                     tensor(buffer_from(x, n * 4, 0)->ptr, kNVTEFloat32, SHAPE(p[l].tokens, COLS)),
                     kNoWindow, NULL, kNoWindow,
                     tensor(received->ptr, kNVTEFloat32, SHAPE(rows, COLS)), kNoWindow, NULL,
                     kNoWindow, NULL);
    if (!EXPECT_OK()) return;
    check_rows("tokens", received, x, COLS * 4, rows, p[l].topk, p[l].tokens * p[l].topk,
               &plans[l]);
  }
}

// MXFP8: elements and rows of scales are copied.
static void test_mxfp8(void) {
  enum { TOKENS = 21, TOPK = 2, EXPERTS = 5, COLS = 128, PITCH = 4 };
  if (!case_begin("MXFP8")) return;
  nvte_ep_shutdown();
  NVTEEpGroupConfig config = group_config(EXPERTS, TOKENS, 0);
  nvte_ep_initialize(NULL, &config);
  Problem p = {kNVTEFloat8E4M3, kNVTEInt32, TOKENS, TOPK, EXPERTS, COLS, 8, 0, 0};
  NVTEEpLayerConfig layer = layer_config(TOPK, 8);
  size_t bytes = nvte_ep_handle_mem_size(&layer);
  Plan plan = plan_of(&p);
  size_t rows = (size_t)plan.total;
  NVTETensor handle = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
  nvte_ep_prepare(
      handle,
      tensor(buffer_from(plan.indices, TOKENS * TOPK * 4, 0)->ptr, kNVTEInt32, SHAPE(TOKENS, TOPK)),
      NULL, NULL, &layer, NULL);
  unsigned char data[TOKENS * COLS], scales[TOKENS * PITCH];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)random_u64();
  for (size_t i = 0; i < sizeof scales; i++) scales[i] = (unsigned char)random_u64();
  Buffer *out = buffer(rows * COLS), *out_scales = buffer(rows * PITCH);
  NVTETensor in = tensor_of_mode(NVTE_MXFP8_1D_SCALING), to = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  set_param(in, kNVTERowwiseData, buffer_from(data, sizeof data, 0)->ptr, kNVTEFloat8E4M3,
            SHAPE(TOKENS, COLS));
  set_param(in, kNVTERowwiseScaleInv, buffer_from(scales, sizeof scales, 0)->ptr, kNVTEFloat8E8M0,
            SHAPE(TOKENS, PITCH));
  set_param(to, kNVTERowwiseData, out->ptr, kNVTEFloat8E4M3, SHAPE(rows, COLS));
  set_param(to, kNVTERowwiseScaleInv, out_scales->ptr, kNVTEFloat8E8M0, SHAPE(rows, PITCH));
  nvte_ep_dispatch(handle, NULL, in, kNoWindow, NULL, kNoWindow, to, kNoWindow, NULL, kNoWindow,
                   NULL);
  if (!EXPECT_OK()) return;
  check_rows("data", out, data, COLS, rows, TOPK, TOKENS * TOPK, &plan);
  check_rows("scales", out_scales, scales, PITCH, rows, TOPK, TOKENS * TOPK, &plan);
  // The scales of the output lie otherwise.
  set_param(to, kNVTERowwiseScaleInv, out_scales->ptr, kNVTEFloat8E8M0, SHAPE(rows, PITCH / 2));
  nvte_ep_combine_bwd(handle, in, kNoWindow, to, kNoWindow, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvte_ep_combine_bwd: grad_expert_out.scale_inv.shape: ", "or more, 4]");
  NVTETensor plain = tensor(out->ptr, kNVTEFloat8E4M3, SHAPE(rows, COLS));
  nvte_ep_combine_bwd(handle, in, kNoWindow, plain, kNoWindow, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad_expert_out.scaling_mode: ", "as grad");
  nvte_ep_combine_bwd(handle, plain, kNoWindow, plain, kNoWindow, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad.");
  nvte_ep_combine(handle, in, kNoWindow, to, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_combine: expert_out.scaling_mode: ");
  const uint8_t swizzled = 1;
  nvte_set_tensor_param_v2(in, kNVTEWithGEMMSwizzledScales, &swizzled, 1);
  EXPECT_OK();
  set_param(to, kNVTERowwiseScaleInv, out_scales->ptr, kNVTEFloat8E8M0, SHAPE(rows, PITCH));
  nvte_ep_combine_bwd(handle, in, kNoWindow, to, kNoWindow, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad.with_gemm_swizzled_scales: expected 0");
}

static void test_initialize(void) {
  if (!case_begin("groups")) return;
  nvte_ep_shutdown();
  nvte_ep_shutdown();
  EXPECT_OK();
  NVTEEpLayerConfig layer = layer_config(2, 1);
  CHECK_EQ(nvte_ep_handle_mem_size(&layer), 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_handle_mem_size: device: ", "nvte_ep_initialize");
  nvte_ep_combine(empty_tensor(), empty_tensor(), kNoWindow, empty_tensor(), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_combine: device: ", "nvte_ep_initialize");
  nvte_ep_initialize(NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_initialize: group_config: ");
#define REFUSED(status, field, value, text)                                      \
  do {                                                                           \
    NVTEEpGroupConfig c = group_config(8, 16, 64);                               \
    c.field = value;                                                             \
    nvte_ep_initialize(NULL, &c);                                                \
    EXPECT_ERROR(status, "nvte_ep_initialize: group_config." #field ": ", text); \
  } while (0)
  REFUSED(NVTEX_INVALID_ARGUMENT, struct_size, 39, "expected 0, or 40 or more, got 39");
  REFUSED(NVTEX_INVALID_ARGUMENT, ep_size, 0, "expected 1 or more, got 0");
  REFUSED(NVTEX_INVALID_ARGUMENT, ep_size, -2, "expected 1 or more, got -2");
  REFUSED(NVTEX_INVALID_ARGUMENT, num_experts, 0, "expected 1 or more, got 0");
  REFUSED(NVTEX_INVALID_ARGUMENT, max_tokens_per_rank, 0, "expected 1 or more, got 0");
  REFUSED(NVTEX_INVALID_ARGUMENT, max_recv_tokens_per_rank, -1, "expected 0 or more, got -1");
  REFUSED(NVTEX_INVALID_ARGUMENT, max_recv_tokens_per_rank, 0, "because drop_on_overflow is set");
  REFUSED(NVTEX_INVALID_ARGUMENT, hidden_dim, 0, "expected 1 or more, got 0");
  REFUSED(NVTEX_INVALID_ARGUMENT, hidden_dim, 3, "tokens of 16 to 4294967295 bytes");
  REFUSED(NVTEX_INVALID_ARGUMENT, hidden_dim, INT_MAX, "tokens of 16 to 4294967295 bytes");
  REFUSED(NVTEX_INVALID_ARGUMENT, num_comm_sms, -1, "expected 0 or more, got -1");
  REFUSED(NVTEX_INVALID_ARGUMENT, max_token_dtype, (NVTEDType)11, "an NVTEDType");
  REFUSED(NVTEX_UNSUPPORTED, zero_copy, 1, "windows that are all zero");
#undef REFUSED
  // More ranks have a communicator, and must divide the experts.
  NVTEEpGroupConfig c = group_config(8, 16, 64);
  c.ep_size = 4;
  nvte_ep_initialize(NULL, &c);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "ep_comm: expected a communicator of NCCL");
  c.ep_size = 3;
  nvte_ep_initialize(NULL, &c);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "group_config.num_experts: expected a multiple of 3, the ranks, got 8");

  // A struct of an older program, behind which other memory may follow, and one of a newer program.
  struct {
    unsigned char bytes[40];
    unsigned char other[8];
  } older;
  c = group_config(8, 16, 0);
  memcpy(older.bytes, &c, 40);
  memset(older.other, 0x7F, 8);
  const size_t sizes[] = {0, 40};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    memcpy(older.bytes, &sizes[i], sizeof sizes[i]);
    NVTEEpGroupConfig *config = host_memory(sizeof older);
    memcpy(config, &older, sizeof older);
    nvte_ep_initialize(NULL, config);
    EXPECT_OK();
    nvte_ep_shutdown();
  }
  c.struct_size = 1000;
  nvte_ep_initialize((void *)(uintptr_t)16, &c);
  EXPECT_OK();
  nvte_ep_initialize(NULL, &c);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_initialize: device: ", "which has one");
  CHECK(nvte_ep_handle_mem_size(&layer) >= 16 * 2 * 4, "too little memory");
  EXPECT_OK();
  layer.top_k = 0;
  nvte_ep_handle_mem_size(&layer);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "layer_cfg.top_k: expected 1 or more, got 0");
  layer = layer_config(2, 1);
  layer.struct_size = 8;
  nvte_ep_handle_mem_size(&layer);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "layer_cfg.struct_size: expected 0, or 24 or more, got 8");
  nvte_ep_handle_mem_size(NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_handle_mem_size: layer_cfg: ");
}

static void test_wrong(void) {
  enum { TOKENS = 8, TOPK = 2, EXPERTS = 4, COLS = 16, ROWS = 16 };
  if (!case_begin("wrong arguments")) return;
  nvte_ep_shutdown();
  NVTEEpGroupConfig config = group_config(EXPERTS, TOKENS, ROWS);
  nvte_ep_initialize(NULL, &config);
  NVTEEpLayerConfig layer = layer_config(TOPK, 1), other = layer_config(3, 1);
  size_t bytes = nvte_ep_handle_mem_size(&layer);
  EXPECT_OK();
  Buffer *memory = buffer(bytes + 8), *out = buffer((ROWS + 1) * COLS * 4),
         *w_out = buffer(ROWS * 4);
  Buffer *counts = buffer(EXPERTS * 8);
  NVTETensor handle = tensor(memory->ptr, kNVTEByte, SHAPE(bytes)), none = empty_tensor();
  int64_t ids[(TOKENS + 1) * TOPK] = {0};
  Buffer *chosen_data = buffer_from(ids, sizeof ids, 0);
  NVTETensor chosen = tensor(chosen_data->ptr, kNVTEInt64, SHAPE(TOKENS, TOPK));
  NVTETensor per_expert = tensor(counts->ptr, kNVTEInt64, SHAPE(EXPERTS));
#define PREPARE(handle, chosen, counts, total, layer, ...)          \
  do {                                                              \
    nvte_ep_prepare(handle, chosen, counts, total, layer, NULL);    \
    EXPECT_ERROR(ANY_ERROR, "nvte_ep_prepare: ", __VA_ARGS__);      \
    CHECK(untouched(memory), "a refused call wrote");               \
    CHECK(untouched(counts_buffer), "a refused call wrote counts"); \
  } while (0)
  Buffer *counts_buffer = counts;
  PREPARE(NULL, chosen, none, none, &layer, "handle_mem: ");
  PREPARE(tensor(memory->ptr, kNVTEByte, SHAPE(64)), chosen, none, none, &layer,
          "handle_mem.shape: ", "as nvte_ep_handle_mem_size says, got 64");
  PREPARE(tensor(memory->ptr + 4, kNVTEByte, SHAPE(bytes)), chosen, none, none, &layer,
          "handle_mem.data: expected a pointer aligned to 8 bytes");
  PREPARE(tensor(NULL, kNVTEByte, SHAPE(bytes)), chosen, none, none, &layer, "handle_mem.data: ");
  PREPARE(handle, NULL, none, none, &layer, "topk_idx: ");
  PREPARE(handle, chosen, none, none, NULL, "layer_cfg: ");
  PREPARE(handle, chosen, none, none, &other, "topk_idx.shape: expected [8, 3]");
  PREPARE(handle, tensor(chosen_data->ptr, kNVTEInt64, SHAPE(TOKENS * TOPK)), none, none, &layer,
          "topk_idx.shape: expected 2 dimensions");
  PREPARE(handle, tensor(chosen_data->ptr, kNVTEInt64, SHAPE(TOKENS + 1, TOPK)), none, none, &layer,
          "topk_idx.shape: expected at most 8 tokens");
  PREPARE(handle, tensor(chosen_data->ptr, kNVTEFloat32, SHAPE(TOKENS, TOPK)), none, none, &layer,
          "topk_idx.dtype: expected Int32 or Int64, got Float32");
  PREPARE(handle, tensor(NULL, kNVTEInt64, SHAPE(TOKENS, TOPK)), none, none, &layer,
          "topk_idx.data: ");
  PREPARE(handle, tensor(chosen_data->ptr + 4, kNVTEInt64, SHAPE(TOKENS, TOPK)), none, none, &layer,
          "topk_idx.data: expected a pointer aligned to 8 bytes");
  PREPARE(handle, tensor(chosen_data->ptr, kNVTEInt64, SHAPE(5, 3)), none, none, &other,
          "layer_cfg.top_k: expected at most 2 experts of a token, as handle_mem, got 3");
  PREPARE(handle, chosen, tensor(counts->ptr, kNVTEInt64, SHAPE(3)), none, &layer,
          "recv_tokens_per_expert.shape: expected [4], got [3]");
  PREPARE(handle, chosen, tensor(counts->ptr, kNVTEFloat32, SHAPE(EXPERTS)), none, &layer,
          "recv_tokens_per_expert.dtype: expected Int32 or Int64");
  PREPARE(handle, chosen, per_expert, tensor(w_out->ptr, kNVTEInt32, SHAPE(1)), &layer,
          "total_recv_tokens_per_rank.dtype: expected Int64, got Int32");
  PREPARE(handle, chosen, none, tensor(w_out->ptr, kNVTEInt32, SHAPE(2)), &layer,
          "total_recv_tokens_per_rank.shape: expected [1], got [2]");
  PREPARE(handle, chosen, tensor(chosen_data->ptr, kNVTEInt64, SHAPE(EXPERTS)), none, &layer,
          "recv_tokens_per_expert", "memory apart from topk_idx.data");

  nvte_ep_prepare(handle, chosen, NULL, NULL, &layer, NULL);
  EXPECT_OK();
  Buffer *x = buffer(TOKENS * COLS * 4), *w_in = buffer(TOKENS * TOPK * 4);
  NVTETensor tokens = tensor(x->ptr, kNVTEFloat32, SHAPE(TOKENS, COLS));
  NVTETensor recv = tensor(out->ptr, kNVTEFloat32, SHAPE(ROWS, COLS));
  NVTETensor weights = tensor(w_in->ptr, kNVTEFloat32, SHAPE(TOKENS, TOPK));
  NVTETensor recv_w = tensor(w_out->ptr, kNVTEFloat32, SHAPE(ROWS));
#define DISPATCH(tokens, weights, recv, recv_w, ...)                                               \
  do {                                                                                             \
    nvte_ep_dispatch(handle, NULL, tokens, kNoWindow, weights, kNoWindow, recv, kNoWindow, recv_w, \
                     kNoWindow, NULL);                                                             \
    EXPECT_ERROR(ANY_ERROR, "nvte_ep_dispatch: ", __VA_ARGS__);                                    \
    CHECK(untouched(out) && untouched(w_out), "a refused call wrote");                             \
  } while (0)
  DISPATCH(NULL, none, recv, none, "tokens: ");
  DISPATCH(tokens, none, NULL, none, "recv_tokens: ");
  DISPATCH(tensor(x->ptr, kNVTEFloat32, SHAPE(TOKENS * COLS)), none, recv, none,
           "tokens.shape: expected 2 dimensions");
  DISPATCH(tensor(out->ptr, kNVTEFloat32, SHAPE(TOKENS + 1, COLS)), none, recv, none,
           "tokens.shape: expected at most 8 tokens");
  DISPATCH(tokens, none, tensor(out->ptr, kNVTEFloat32, SHAPE(ROWS, COLS - 1)), none,
           "recv_tokens.shape: expected [16, 16], as tokens");
  DISPATCH(tokens, none, tensor(out->ptr, kNVTEFloat16, SHAPE(ROWS, COLS)), none,
           "recv_tokens.dtype: expected Float32");
  DISPATCH(tensor(x->ptr, kNVTEInt32, SHAPE(TOKENS, COLS)), none,
           tensor(out->ptr, kNVTEInt32, SHAPE(ROWS, COLS)), none, "tokens.dtype: ");
  DISPATCH(tokens, none, tensor(NULL, kNVTEFloat32, SHAPE(ROWS, COLS)), none, "recv_tokens.data: ");
  DISPATCH(tokens, none, tensor(x->ptr, kNVTEFloat32, SHAPE(4, COLS)), none,
           "recv_tokens.data: expected memory apart from tokens.data");
  DISPATCH(tokens, none, tensor(memory->ptr, kNVTEFloat32, SHAPE(2, COLS)), none,
           "recv_tokens.data: expected memory apart from handle_mem.data");
  DISPATCH(tokens, weights, recv, tensor(out->ptr, kNVTEFloat32, SHAPE(ROWS)),
           "recv_topk_weights.data: expected memory apart from recv_tokens.data");
  DISPATCH(tokens, weights, recv, none, "recv_topk_weights.shape: expected [16], got [0]");
  DISPATCH(tokens, tensor(w_in->ptr, kNVTEFloat32, SHAPE(4, TOPK)), recv, recv_w,
           "topk_weights.shape: expected [8, top_k], got [4, 2]");
  DISPATCH(tokens, tensor(w_in->ptr, kNVTEInt32, SHAPE(TOKENS, TOPK)), recv, recv_w,
           "topk_weights.dtype: expected Float32");
  DISPATCH(tokens, weights, recv, tensor(w_out->ptr, kNVTEFloat32, SHAPE(ROWS, 1)),
           "recv_topk_weights.shape: expected [16], got [16, 1]");
  NVTETensor block = tensor_of_mode(NVTE_BLOCK_SCALING_1D);
  set_param(block, kNVTERowwiseData, x->ptr, kNVTEFloat8E4M3, SHAPE(TOKENS, COLS));
  DISPATCH(block, none, block, none, "tokens.scaling_mode: ");
  const NVTECommWindow windows[4][4] = {{kWindow, kNoWindow, kNoWindow, kNoWindow},
                                        {kNoWindow, kWindow, kNoWindow, kNoWindow},
                                        {kNoWindow, kNoWindow, kWindow, kNoWindow},
                                        {kNoWindow, kNoWindow, kNoWindow, kWindow}};
  static const char *const names[] = {
      "tokens_win: ", "topk_weights_win: ", "recv_tokens_win: ", "recv_topk_weights_win: "};
  for (int i = 0; i < 4; i++) {
    const NVTECommWindow *win = windows[i];
    nvte_ep_dispatch(handle, NULL, tokens, win[0], weights, win[1], recv, win[2], recv_w, win[3],
                     NULL);
    EXPECT_ERROR(NVTEX_UNSUPPORTED, names[i], "expected all zero, got a window");
  }
  nvte_ep_combine(handle, recv, kWindow, tokens, NULL);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_ep_combine: expert_out_win: ");
  nvte_ep_combine_bwd(handle, tokens, kNoWindow, recv, kWindow, NULL);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_ep_combine_bwd: grad_expert_out_win: ");
  nvte_ep_dispatch_bwd(handle, recv, kNoWindow, recv_w, kWindow, tokens, weights, NULL);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_ep_dispatch_bwd: g_recv_topk_weights_win: ");

  // One call of two: neither half runs if the other one is wrong.
  nvte_ep_prepare_and_dispatch(handle, chosen, tokens, kNoWindow, weights, kNoWindow, recv,
                               kNoWindow, none, kNoWindow, per_expert, NULL, &layer, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_prepare_and_dispatch: recv_topk_weights.");
  CHECK(untouched(counts) && untouched(out), "a refused call wrote");

  nvte_ep_combine(handle, recv, kNoWindow, tensor(x->ptr, kNVTEFloat32, SHAPE(TOKENS, COLS - 1)),
                  NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_combine: result.shape: expected [8, 16]");
  nvte_ep_combine(handle, recv, kNoWindow, tensor(x->ptr, kNVTEBFloat16, SHAPE(TOKENS, COLS)),
                  NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_combine: result.dtype: expected Float32");
  nvte_ep_combine(handle, recv, kNoWindow, tensor(out->ptr, kNVTEFloat32, SHAPE(TOKENS, COLS)),
                  NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "result.data: expected memory apart from expert_out.data");
  nvte_ep_dispatch_bwd(handle, recv, kNoWindow, recv_w, kNoWindow, tokens,
                       tensor(w_out->ptr, kNVTEFloat32, SHAPE(TOKENS, TOPK)), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "grad_topk_weights.data: expected memory apart from g_recv_topk_weights.data");
  nvte_ep_dispatch_bwd(handle, recv, kNoWindow, recv_w, kNoWindow, tokens,
                       tensor(x->ptr, kNVTEFloat32, SHAPE(TOKENS, TOPK)), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "grad_topk_weights.data: expected memory apart from grad_tokens.data");
  nvte_ep_dispatch_bwd(handle, recv, kNoWindow, recv_w, kNoWindow, tokens,
                       tensor(w_in->ptr, kNVTEFloat32, SHAPE(7, TOPK)), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad_topk_weights.shape: expected [8, top_k], got [7, 2]");
  nvte_ep_dispatch_bwd(handle, recv, kNoWindow, recv_w, kNoWindow, tokens,
                       tensor(w_in->ptr, kNVTEFloat32, SHAPE(TOKENS, 3)), NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad_topk_weights: expected at most 2 experts of a token");
  CHECK(untouched(x) && untouched(w_in), "a refused call wrote");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_initialize();
  const struct {
    size_t tokens, topk, experts, cols;
  } sizes[] = {{64, 2, 4, 512}, {1, 1, 1, 1},     {33, 3, 7, 65},  {0, 2, 4, 16}, {17, 1, 40, 9},
               {5, 4, 4, 31},   {300, 8, 64, 24}, {40, 2, 700, 8}, {16, 2, 4, 0}, {2000, 4, 16, 3}};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (size_t d = 0; d < COUNT(kHighPrecision); d++) {
      const size_t alignments[] = {0, 1, 16, 128};
      for (size_t a = 0; a < COUNT(alignments); a++) {
        // Room for all, and for about half of the rows.
        size_t half = sizes[s].tokens * sizes[s].topk / 2 + 1;
        for (size_t c = 0; c < 2; c++) {
          Problem p = {kHighPrecision[d], a % 2 ? kNVTEInt32 : kNVTEInt64,
                       sizes[s].tokens,   sizes[s].topk,
                       sizes[s].experts,  sizes[s].cols,
                       alignments[a],     c ? half : 0,
                       (a + c) % 2};
          check(p);
        }
      }
    }
  }
  test_layers();
  test_mxfp8();
  test_wrong();
  nvte_ep_shutdown();
  return test_end();
}
