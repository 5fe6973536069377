// Whether operators give the same bits each time, and whether a row's result depends on the rows
// beside it: the table of docs/determinism.md. Every call runs many times while other threads keep
// the machine and the device busy, and on CUDA as often from captured graphs. NVTE_TEST_REPEATS=N
// says how often; NVTE_TEST_TABLE=1 prints a row of the table for each case.
#include <pthread.h>
#include <stdatomic.h>

#include "support.h"

enum {
  ROWS = 192,
  COLS = 256,
  EXPERTS = 16,
  TOPK = 2,
  HEADS = 4,
  DIM = 64,
  SEQUENCE = 128,
  BATCH = 2
};
enum { LOAD_THREADS = 2, MAX_OUTPUTS = 8 };

static cudaStream_t g_stream;
static size_t g_repeats;
static bool g_table;

// ---- Other work

static atomic_bool g_stop;

static void *load(void *argument) {
  (void)argument;
  const cudaStream_t stream = nvtex_stream_create();
  enum { N = 128 };
  void *memory = nvtex_malloc(2 * N * N * 4);
  nvte_memset(memory, 0, 2 * N * N * 4, stream);
  NVTETensor x[2];
  for (int i = 0; i < 2; i++) {
    const NVTEBasicTensor data = basic((char *)memory + i * N * N * 4, kNVTEFloat32, SHAPE(N, N));
    x[i] = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
    nvte_set_tensor_param_v2(x[i], kNVTERowwiseData, &data, sizeof data);
  }
  while (!g_stop) {
    for (int i = 0; i < 16; i++) nvte_gelu(x[0], x[1], stream);
    nvtex_stream_synchronize(stream);
  }
  nvte_destroy_tensors(x, 2);
  nvtex_free(memory);
  nvtex_stream_destroy(stream);
  return NULL;
}

// ---- The same call again and again

static struct {
  Buffer *buffer;
  void *before, *first;
} g_outputs[MAX_OUTPUTS];
static size_t g_num_outputs;

// What a call writes; before each call it holds what it does now.
static Buffer *output_from(const void *values, size_t bytes) {
  Buffer *b = values ? buffer_from(values, bytes, 0) : buffer(bytes);
  g_outputs[g_num_outputs].before = buffer_read(b);
  g_outputs[g_num_outputs].first = host_memory(bytes);
  g_outputs[g_num_outputs++].buffer = b;
  return b;
}

static NVTETensor output(NVTEDType dtype, NVTEShape shape) {
  return tensor(output_from(NULL, numel(shape) * dtype_bits(dtype) / 8)->ptr, dtype, shape);
}

static NVTETensor input(NVTEDType dtype, NVTEShape shape, double low, double high) {
  const size_t n = numel(shape);
  return tensor(buffer_from(random_values(dtype, n, low, high), n * dtype_size(dtype), 0)->ptr,
                dtype, shape);
}

typedef struct Repeats {
  size_t done, differ;
  bool may_differ;
} Repeats;

static bool in_graph(const Repeats *r) { return on_cuda() && r->done >= g_repeats; }

static bool next(Repeats *r) {
  if (r->done == g_repeats * (on_cuda() ? 2 : 1)) {
    if (!r->may_differ) CHECK(r->differ == 0, "%zu of %zu results differ", r->differ, r->done);
    if (g_table) printf("| %s | %s |\n", g_test.name, r->differ ? "no" : "yes");
    g_num_outputs = 0;
    return false;
  }
  for (size_t i = 0; i < g_num_outputs; i++)
    upload(g_outputs[i].buffer->ptr, g_outputs[i].before, g_outputs[i].buffer->bytes);
  if (in_graph(r)) nvtex_graph_begin(g_stream);
  return true;
}

static void compare(Repeats *r) {
  if (in_graph(r)) {
    const NVTEXGraph graph = nvtex_graph_end(g_stream);
    nvtex_graph_replay(graph, g_stream);
    nvtex_stream_synchronize(g_stream);
    nvtex_graph_destroy(graph);
  }
  nvtex_stream_synchronize(g_stream);
  if (!EXPECT_OK()) r->differ++;
  bool same = true;
  for (size_t i = 0; i < g_num_outputs; i++) {
    const size_t bytes = g_outputs[i].buffer->bytes;
    void *to = r->done == 0 ? g_outputs[i].first : malloc(bytes);
    download(to, g_outputs[i].buffer->ptr, bytes);
    if (r->done == 0) {
      CHECK(memcmp(to, g_outputs[i].before, bytes) != 0, "output %zu was not written", i);
      continue;
    }
    same = same && memcmp(to, g_outputs[i].first, bytes) == 0;
    free(to);
  }
  r->differ += !same;
  r->done++;
}

// Runs a call again and again, and compares the bits of all outputs.
#define REPEAT(...) REPEAT_IF(false, __VA_ARGS__)
#define REPEAT_IF(may, ...) \
  for (Repeats r = {.may_differ = (may)}; next(&r); compare(&r)) __VA_ARGS__

// The workspace that a call asks for: `name` is used in the call.
#define WORKSPACE(name, ...)                                         \
  NVTETensor name = empty_tensor();                                  \
  __VA_ARGS__;                                                       \
  {                                                                  \
    const NVTEShape shape_ = nvte_tensor_shape(name);                \
    const NVTEDType dtype_ = nvte_tensor_type(name);                 \
    const size_t bytes_ = numel(shape_) * dtype_bits(dtype_) / 8;    \
    name = tensor(buffer(bytes_ ? bytes_ : 1)->ptr, dtype_, shape_); \
  }

static void test_pointwise(void) {
  const NVTEShape shape = SHAPE(ROWS, COLS), half = SHAPE(ROWS, COLS / 2);
  if (case_begin("activation, GELU")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), y = output(kNVTEBFloat16, shape);
    REPEAT({ nvte_gelu(x, y, g_stream); })
  }
  if (case_begin("activation, gradient of SwiGLU")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), g = input(kNVTEBFloat16, half, -2, 2);
    NVTETensor y = output(kNVTEBFloat16, shape);
    REPEAT({ nvte_dswiglu(g, x, y, g_stream); })
  }
  if (case_begin("dropout")) {
    const int64_t state[2] = {11, 4};
    NVTETensor rng = tensor(buffer_from(state, sizeof state, 0)->ptr, kNVTEInt64, SHAPE(2));
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), y = output(kNVTEBFloat16, shape);
    NVTETensor mask = output(kNVTEByte, SHAPE(ROWS * COLS / 8));
    REPEAT({ nvte_dropout_fwd(x, y, mask, rng, 0.25f, g_stream); })
  }
}

static void test_casts(void) {
  const NVTEShape shape = SHAPE(ROWS, COLS);
  if (case_begin("cast to FP8 with its amax")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), y = output(kNVTEFloat8E4M3, shape);
    const float zero = 0;
    set_param(y, kNVTEScale, buffer_float(3)->ptr, kNVTEFloat32, SHAPE(1));
    set_param(y, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
    set_param(y, kNVTEAmax, output_from(&zero, 4)->ptr, kNVTEFloat32, SHAPE(1));
    REPEAT({ nvte_quantize(x, y, g_stream); })
  }
  if (case_begin("cast to MXFP8")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), y = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
    const NVTEShape scales = SHAPE((ROWS + 127) / 128 * 128, COLS / 32);
    set_param(y, kNVTERowwiseData, output_from(NULL, ROWS * COLS)->ptr, kNVTEFloat8E4M3, shape);
    set_param(y, kNVTERowwiseScaleInv, output_from(NULL, numel(scales))->ptr, kNVTEFloat8E8M0,
              scales);
    REPEAT({ nvte_quantize(x, y, g_stream); })
  }
  if (case_begin("cast to FP8 in blocks of 128")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), y = tensor_of_mode(NVTE_BLOCK_SCALING_1D);
    const NVTEShape scales = SHAPE(COLS / 128, ROWS);
    set_param(y, kNVTERowwiseData, output_from(NULL, ROWS * COLS)->ptr, kNVTEFloat8E4M3, shape);
    set_param(y, kNVTERowwiseScaleInv, output_from(NULL, numel(scales) * 4)->ptr, kNVTEFloat32,
              scales);
    REPEAT({ nvte_quantize(x, y, g_stream); })
  }
  if (case_begin("cast with a bias gradient")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), y = output(kNVTEFloat8E4M3, shape);
    NVTETensor bias = output(kNVTEBFloat16, SHAPE(COLS));
    set_param(y, kNVTEScale, buffer_float(3)->ptr, kNVTEFloat32, SHAPE(1));
    set_param(y, kNVTERowwiseScaleInv, buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
    WORKSPACE(work, nvte_quantize_dbias(x, y, bias, work, g_stream))
    REPEAT({ nvte_quantize_dbias(x, y, bias, work, g_stream); })
  }
  if (case_begin("amax")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), y = empty_tensor();
    const float zero = 0;
    set_param(y, kNVTEAmax, output_from(&zero, 4)->ptr, kNVTEFloat32, SHAPE(1));
    set_param(y, kNVTERowwiseData, buffer(ROWS * COLS)->ptr, kNVTEFloat8E4M3, shape);
    set_param(y, kNVTEScale, buffer_float(3)->ptr, kNVTEFloat32, SHAPE(1));
    REPEAT({ nvte_compute_amax(x, y, g_stream); })
  }
}

static void test_norms(void) {
  const NVTEShape shape = SHAPE(ROWS, COLS), row = SHAPE(COLS), column = SHAPE(ROWS);
  if (case_begin("LayerNorm")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), gamma = input(kNVTEBFloat16, row, 0, 2);
    NVTETensor beta = input(kNVTEBFloat16, row, -1, 1), z = output(kNVTEBFloat16, shape);
    NVTETensor mu = output(kNVTEFloat32, column), sigma = output(kNVTEFloat32, column);
    WORKSPACE(work,
              nvte_layernorm_fwd(x, gamma, beta, 1e-5f, z, mu, sigma, work, 132, false, g_stream))
    REPEAT({ nvte_layernorm_fwd(x, gamma, beta, 1e-5f, z, mu, sigma, work, 132, false, g_stream); })
  }
  if (case_begin("RMSNorm")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), gamma = input(kNVTEBFloat16, row, 0, 2);
    NVTETensor z = output(kNVTEBFloat16, shape), sigma = output(kNVTEFloat32, column);
    WORKSPACE(work, nvte_rmsnorm_fwd(x, gamma, 1e-5f, z, sigma, work, 132, false, g_stream))
    REPEAT({ nvte_rmsnorm_fwd(x, gamma, 1e-5f, z, sigma, work, 132, false, g_stream); })
  }
  if (case_begin("LayerNorm, gradients")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), dz = input(kNVTEBFloat16, shape, -2, 2);
    NVTETensor gamma = input(kNVTEBFloat16, row, 0, 2), mu = input(kNVTEFloat32, column, -1, 1);
    NVTETensor sigma = input(kNVTEFloat32, column, 1, 2), dx = output(kNVTEBFloat16, shape);
    NVTETensor dgamma = output(kNVTEBFloat16, row), dbeta = output(kNVTEBFloat16, row);
    WORKSPACE(work, nvte_layernorm_bwd(dz, x, mu, sigma, gamma, dx, dgamma, dbeta, work, 132, false,
                                       g_stream))
    REPEAT({
      nvte_layernorm_bwd(dz, x, mu, sigma, gamma, dx, dgamma, dbeta, work, 132, false, g_stream);
    })
  }
  if (case_begin("RMSNorm, gradients")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -2, 2), dz = input(kNVTEBFloat16, shape, -2, 2);
    NVTETensor gamma = input(kNVTEBFloat16, row, 0, 2), sigma = input(kNVTEFloat32, column, 1, 2);
    NVTETensor dx = output(kNVTEBFloat16, shape), dgamma = output(kNVTEBFloat16, row);
    WORKSPACE(work, nvte_rmsnorm_bwd(dz, x, sigma, gamma, dx, dgamma, work, 132, false, g_stream))
    REPEAT({ nvte_rmsnorm_bwd(dz, x, sigma, gamma, dx, dgamma, work, 132, false, g_stream); })
  }
}

static void test_softmax(void) {
  const NVTEShape shape = SHAPE(2, 3, 64, 64), triangle = SHAPE(6, 64, 64);
  if (case_begin("softmax")) {
    NVTETensor x = input(kNVTEBFloat16, shape, -4, 4), y = output(kNVTEBFloat16, shape);
    REPEAT({ nvte_scaled_softmax_forward(x, y, 0.5f, g_stream); })
  }
  if (case_begin("softmax, causal, gradient")) {
    NVTETensor g = input(kNVTEBFloat16, triangle, -1, 1), p = input(kNVTEBFloat16, triangle, 0, 1);
    NVTETensor dx = output(kNVTEBFloat16, triangle);
    REPEAT({ nvte_scaled_upper_triang_masked_softmax_backward(g, p, dx, 0.5f, g_stream); })
  }
}

// A product with a workspace; D is row-major [n, m], as A is [m, k] transposed and B [n, k].
static void product(NVTETensor a, NVTETensor b, NVTETensor d, NVTETensor bias, NVTETensor none,
                    NVTETensor work, bool transa, bool transb, bool accumulate) {
  nvte_cublas_gemm(a, b, d, bias, none, transa, transb, false, work, accumulate, false, 0,
                   g_stream);
}

static void test_products(void) {
  const size_t bytes = 32 << 20;
  enum { M = 160, N = 96, K = 1024 };
  if (case_begin("product, BF16 with a bias")) {
    NVTETensor a = input(kNVTEBFloat16, SHAPE(M, K), -1, 1),
               b = input(kNVTEBFloat16, SHAPE(N, K), -1, 1);
    NVTETensor d = output(kNVTEBFloat16, SHAPE(N, M)), bias = input(kNVTEBFloat16, SHAPE(M), -1, 1);
    NVTETensor none = empty_tensor(), work = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
    REPEAT({ product(a, b, d, bias, none, work, true, false, false); })
  }
  if (case_begin("product, a weight gradient that is added in FP32")) {
    NVTETensor a = input(kNVTEBFloat16, SHAPE(K, M), -1, 1),
               b = input(kNVTEBFloat16, SHAPE(K, N), -1, 1);
    const void *old = random_values(kNVTEFloat32, N * M, -1, 1);
    NVTETensor d = tensor(output_from(old, N * M * 4)->ptr, kNVTEFloat32, SHAPE(N, M));
    NVTETensor none = empty_tensor(), work = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
    REPEAT({ product(a, b, d, none, none, work, false, true, true); })
  }
}

typedef struct Attention {
  NVTETensor q, k, v, o, d_o, dq, dk, dv, none, stats, rng, cu, work;
  NVTETensorPack pack;
  float dropout;
} Attention;

static void attention_forward(Attention *a) {
  nvte_fused_attn_fwd(a->q, a->k, a->v, a->none, a->none, a->none, a->o, &a->pack, a->none, a->none,
                      a->none, a->none, a->none, a->none, a->rng, SEQUENCE, SEQUENCE, true, false,
                      false, 0.125f, a->dropout, NVTE_BSHD_BSHD_BSHD, NVTE_BSHD,
                      NVTE_QKV_Format_NOT_SET, NVTE_NO_BIAS, NVTE_CAUSAL_MASK, NVTE_VANILLA_SOFTMAX,
                      -1, 0, false, a->work, g_stream);
}

static void attention_backward(Attention *a, bool deterministic) {
  nvte_fused_attn_bwd(a->q, a->k, a->v, a->o, a->d_o, a->none, a->none, &a->pack, a->dq, a->dk,
                      a->dv, a->none, a->none, a->none, a->none, a->none, a->none, SEQUENCE,
                      SEQUENCE, 0.125f, a->dropout, NVTE_BSHD_BSHD_BSHD, NVTE_BSHD, NVTE_BSHD,
                      NVTE_BSHD_BSHD_BSHD, NVTE_QKV_Format_NOT_SET, NVTE_QKV_Format_NOT_SET,
                      NVTE_NO_BIAS, NVTE_CAUSAL_MASK, NVTE_VANILLA_SOFTMAX, -1, 0, false,
                      deterministic, false, a->work, g_stream);
}

static void build_attention(Attention *a, size_t batch) {
  const NVTEShape shape = SHAPE(batch, SEQUENCE, HEADS, DIM);
  memset(a, 0, sizeof *a);
  NVTETensor *const inputs[] = {&a->q, &a->k, &a->v, &a->d_o};
  for (size_t i = 0; i < COUNT(inputs); i++) *inputs[i] = input(kNVTEBFloat16, shape, -1, 1);
  a->none = empty_tensor();
  const int64_t state[2] = {5, 8};
  a->rng = tensor(buffer_from(state, sizeof state, 0)->ptr, kNVTEInt64, SHAPE(2));
  a->o = tensor(buffer(numel(shape) * 2)->ptr, kNVTEBFloat16, shape);
  nvte_tensor_pack_create(&a->pack);
  a->work = empty_tensor();
  attention_forward(a);
  EXPECT_OK();
  const size_t work = nvte_tensor_shape(a->work).data[0];
  a->work = tensor(buffer(work)->ptr, kNVTEByte, SHAPE(work));
  const NVTEShape stats = SHAPE(batch, HEADS, SEQUENCE, 1);
  set_param(a->pack.tensors[0], kNVTERowwiseData, buffer(numel(stats) * 4)->ptr, kNVTEFloat32,
            stats);
}

static void test_attention(void) {
  const NVTEShape shape = SHAPE(BATCH, SEQUENCE, HEADS, DIM);
  for (int dropout = 0; dropout < 2; dropout++) {
    if (!case_begin("attention%s", dropout ? ", dropout" : "")) continue;
    Attention a;
    build_attention(&a, BATCH);
    a.dropout = dropout ? 0.1f : 0;
    a.o = output(kNVTEBFloat16, shape);
    REPEAT({ attention_forward(&a); })
    nvte_tensor_pack_destroy(&a.pack);
  }
  for (int deterministic = 0; deterministic < 2; deterministic++) {
    if (!case_begin("attention, gradients%s", deterministic ? ", `deterministic`" : "")) continue;
    Attention a;
    build_attention(&a, BATCH);
    attention_forward(&a);
    a.dq = output(kNVTEBFloat16, shape);
    a.dk = output(kNVTEBFloat16, shape);
    a.dv = output(kNVTEBFloat16, shape);
    a.work = empty_tensor();
    attention_backward(&a, deterministic);
    EXPECT_OK();
    const size_t work = nvte_tensor_shape(a.work).data[0];
    a.work = tensor(buffer(work)->ptr, kNVTEByte, SHAPE(work));
    // Without the option, blocks on CUDA add to dQ as they come.
    REPEAT_IF(!deterministic && on_cuda(), { attention_backward(&a, deterministic); })
    nvte_tensor_pack_destroy(&a.pack);
  }
}

static void test_experts(void) {
  const NVTEShape shape = SHAPE(ROWS, EXPERTS), wide = SHAPE(ROWS, COLS);
  if (case_begin("router")) {
    NVTETensor x = input(kNVTEFloat32, shape, -3, 3), probs = output(kNVTEFloat32, shape);
    NVTETensor map = output(kNVTEByte, shape), inter = output(kNVTEFloat32, shape);
    NVTETensor none = empty_tensor();
    REPEAT({
      nvte_fused_topk_with_score_function_forward(x, ROWS, EXPERTS, TOPK, 0, 1, 1, 1.0f, 1, none,
                                                  probs, map, inter, g_stream);
    })
  }
  if (case_begin("auxiliary loss")) {
    NVTETensor probs = input(kNVTEFloat32, shape, 0, 1),
               counts = input(kNVTEFloat32, SHAPE(EXPERTS), 0, 20);
    NVTETensor loss = output(kNVTEFloat32, SHAPE(1)), constant = output(kNVTEFloat32, SHAPE(2));
    REPEAT({
      nvte_fused_moe_aux_loss_forward(probs, counts, ROWS, EXPERTS, ROWS, EXPERTS, TOPK, 0.01f,
                                      loss, constant, g_stream);
    })
  }
  if (case_begin("permutation")) {
    int *map = host_memory(ROWS * TOPK * 4);
    for (int i = 0; i < ROWS * TOPK; i++) map[i] = (i * 7 + 3) % (ROWS * TOPK);
    NVTETensor ids =
        tensor(buffer_from(map, ROWS * TOPK * 4, 0)->ptr, kNVTEInt32, SHAPE(ROWS * TOPK));
    NVTETensor x = input(kNVTEBFloat16, wide, -1, 1), none = empty_tensor();
    NVTETensor y = output(kNVTEBFloat16, SHAPE(ROWS * TOPK, COLS));
    NVTETensor sorted = output(kNVTEInt32, SHAPE(ROWS * TOPK));
    REPEAT({
      nvte_permute(x, y, ids, sorted, none, none, none, ROWS, TOPK, COLS, ROWS * TOPK, g_stream);
    })
  }
  if (case_begin("unpermutation, a sum of the rows of a token")) {
    int *map = host_memory(ROWS * TOPK * 4);
    for (int i = 0; i < ROWS * TOPK; i++) map[i] = (i * 7 + 3) % (ROWS * TOPK);
    NVTETensor ids =
        tensor(buffer_from(map, ROWS * TOPK * 4, 0)->ptr, kNVTEInt32, SHAPE(ROWS * TOPK));
    NVTETensor x = input(kNVTEBFloat16, SHAPE(ROWS * TOPK, COLS), -1, 1),
               y = output(kNVTEBFloat16, wide);
    NVTETensor p = input(kNVTEFloat32, SHAPE(ROWS, TOPK), 0, 1);
    REPEAT({ nvte_unpermute(x, y, ids, p, ROWS, TOPK, COLS, g_stream); })
  }
}

static void test_language(void) {
  enum { VOCABULARY = 512 };
  if (case_begin("cross entropy with gradients")) {
    int64_t *ids = host_memory(ROWS * 8);
    for (int i = 0; i < ROWS; i++) ids[i] = i * 5 % VOCABULARY;
    NVTETensor targets = tensor(buffer_from(ids, ROWS * 8, 0)->ptr, kNVTEInt64, SHAPE(ROWS));
    const void *values = random_values(kNVTEBFloat16, ROWS * VOCABULARY, -4, 4);
    NVTETensor logits = tensor(output_from(values, ROWS * VOCABULARY * 2)->ptr, kNVTEBFloat16,
                               SHAPE(ROWS, VOCABULARY));
    NVTETensor loss = output(kNVTEFloat32, SHAPE(ROWS)), lse = output(kNVTEFloat32, SHAPE(ROWS));
    NVTETensor total = output(kNVTEFloat32, SHAPE(1)), count = output(kNVTEFloat32, SHAPE(1));
    NVTETensor grad = tensor(buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
    NVTEXCrossEntropyOptions options;
    nvtex_cross_entropy_options_init(&options, sizeof options);
    REPEAT({
      nvtex_cross_entropy_forward_backward(logits, targets, grad, loss, lse, total, count, &options,
                                           g_stream);
    })
  }
  if (case_begin("embedding, gradient of the table")) {
    int64_t *ids = host_memory(ROWS * 8);
    for (int i = 0; i < ROWS; i++) ids[i] = i * i % 17;  // most rows are asked for many times
    NVTETensor tokens = tensor(buffer_from(ids, ROWS * 8, 0)->ptr, kNVTEInt64, SHAPE(ROWS));
    NVTETensor grad = input(kNVTEBFloat16, SHAPE(ROWS, COLS), -1, 1), none = empty_tensor();
    NVTETensor dw = output(kNVTEFloat32, SHAPE(VOCABULARY, COLS));
    WORKSPACE(work, nvtex_embedding_backward(tokens, none, grad, dw, none, false, 1, 0, 0, work,
                                             g_stream))
    REPEAT(
        { nvtex_embedding_backward(tokens, none, grad, dw, none, false, 1, 0, 0, work, g_stream); })
  }
}

static void test_lists(void) {
  if (case_begin("Adam")) {
    enum { COUNT_OF_VALUES = 7001 };
    const int zero = 0;
    NVTETensor noop = tensor(buffer_from(&zero, 4, 0)->ptr, kNVTEInt32, SHAPE(1));
    NVTETensor gradient = input(kNVTEFloat32, SHAPE(COUNT_OF_VALUES), -1, 1), all[4] = {gradient};
    for (int i = 1; i < 4; i++) {
      // The parameter, and its two moments.
      const void *values = random_values(kNVTEFloat32, COUNT_OF_VALUES, i == 1 ? -1 : 0, 1);
      all[i] = tensor(output_from(values, COUNT_OF_VALUES * 4)->ptr, kNVTEFloat32,
                      SHAPE(COUNT_OF_VALUES));
    }
    NVTETensor *lists[] = {&all[0], &all[1], &all[2], &all[3]};
    REPEAT({
      nvte_multi_tensor_adam_cuda(512, noop, lists, 4, 1, 1e-2f, 0.9f, 0.99f, 1e-8f, 3, 1, 1, 0.1f,
                                  g_stream);
    })
  }
  if (!case_begin("norm of a list of tensors")) return;
  NVTETensor a = input(kNVTEFloat32, SHAPE(70001), -1, 1),
             b = input(kNVTEFloat32, SHAPE(33), -1, 1);
  const int zero = 0;
  NVTETensor noop = tensor(buffer_from(&zero, 4, 0)->ptr, kNVTEInt32, SHAPE(1));
  NVTETensor all[] = {a, b}, *lists[] = {all};
  const float zeros[320] = {0};
  NVTETensor part = tensor(buffer_from(zeros, sizeof zeros, 0)->ptr, kNVTEFloat32, SHAPE(320));
  NVTETensor parts = tensor(buffer_from(zeros, sizeof zeros, 0)->ptr, kNVTEFloat32, SHAPE(2, 160));
  NVTETensor norm = output(kNVTEFloat32, SHAPE(1)), each = output(kNVTEFloat32, SHAPE(2));
  REPEAT({
    nvte_multi_tensor_l2norm_cuda(512, noop, lists, 1, 2, part, parts, norm, each, 1, 160,
                                  g_stream);
  })
}

// ---- A row alone, and among others

// Computes `rows` rows from `x` to `y`, both of which have COLS elements of BF16 in a row.
typedef void (*RowCall)(void *x, void *y, size_t rows);

static NVTETensor rows_of_bf16(void *ptr, size_t rows) {
  return tensor(ptr, kNVTEBFloat16, SHAPE(rows, COLS));
}

static NVTETensor g_weight, g_gamma;

static void row_gelu(void *x, void *y, size_t rows) {
  nvte_gelu(rows_of_bf16(x, rows), rows_of_bf16(y, rows), g_stream);
}

static void row_rmsnorm(void *x, void *y, size_t rows) {
  NVTETensor in = rows_of_bf16(x, rows), out = rows_of_bf16(y, rows);
  NVTETensor sigma = tensor(buffer(rows * 4)->ptr, kNVTEFloat32, SHAPE(rows));
  WORKSPACE(work, nvte_rmsnorm_fwd(in, g_gamma, 1e-5f, out, sigma, work, 132, false, g_stream))
  nvte_rmsnorm_fwd(in, g_gamma, 1e-5f, out, sigma, work, 132, false, g_stream);
}

static void row_softmax(void *x, void *y, size_t rows) {
  const NVTEShape shape = SHAPE(1, 1, rows, COLS);
  nvte_scaled_softmax_forward(tensor(x, kNVTEBFloat16, shape), tensor(y, kNVTEBFloat16, shape), 1,
                              g_stream);
}

static void row_product(void *x, void *y, size_t rows) {
  enum { BYTES = 32 << 20 };
  NVTETensor work = tensor(buffer(BYTES)->ptr, kNVTEByte, SHAPE(BYTES)), none = empty_tensor();
  product(g_weight, rows_of_bf16(x, rows), rows_of_bf16(y, rows), none, none, work, true, false,
          false);
}

static void test_rows(void) {
  static const struct {
    const char *name;
    RowCall call;
    bool must;  // a row's result may not depend on the rows beside it
  } calls[] = {{"activation", row_gelu, true},
               {"RMSNorm", row_rmsnorm, true},
               {"softmax", row_softmax, true},
               {"product", row_product, false}};
  enum { MOST = 260, ROW_BYTES = COLS * 2 };
  static const size_t counts[] = {1, 4, 64, MOST};
  for (size_t i = 0; i < COUNT(calls); i++) {
    if (!case_begin("%s, a row alone and among others", calls[i].name)) continue;
    g_gamma = input(kNVTEBFloat16, SHAPE(COLS), 0, 2);
    g_weight = input(kNVTEBFloat16, SHAPE(COLS, COLS), -1, 1);
    Buffer *x = buffer_from(random_values(kNVTEBFloat16, MOST * COLS, -2, 2), MOST * ROW_BYTES, 0);
    Buffer *y = buffer(MOST * ROW_BYTES);
    calls[i].call(x->ptr, y->ptr, MOST);
    EXPECT_OK();
    nvtex_stream_synchronize(g_stream);
    const char *all = buffer_read(y);
    size_t differ = 0, compared = 0;
    for (size_t c = 0; c < COUNT(counts); c++) {
      // Softmax takes rows in fours.
      const size_t rows = calls[i].call == row_softmax && counts[c] < 4 ? 4 : counts[c];
      for (size_t first = 0; first + rows <= MOST; first += 52, compared++) {
        calls[i].call(x->ptr + first * ROW_BYTES, y->ptr, rows);
        if (!EXPECT_OK()) return;
        nvtex_stream_synchronize(g_stream);
        const void *got = buffer_read(y);
        differ += memcmp(got, all + first * ROW_BYTES, rows * ROW_BYTES) != 0;
      }
    }
    if (calls[i].must) CHECK(differ == 0, "%zu of %zu parts of a batch differ", differ, compared);
    if (g_table) printf("| %s | %s |\n", g_test.name, differ ? "no" : "yes");
  }
}

// A sequence alone, and the same as the second of a batch.
static void test_sequences(void) {
  if (!case_begin("attention, a sequence alone and among others")) return;
  Attention all, one;
  build_attention(&all, BATCH);
  attention_forward(&all);
  const size_t bytes = SEQUENCE * HEADS * DIM * 2;
  build_attention(&one, 1);
  NVTETensor *const from[] = {&all.q, &all.k, &all.v}, *const to[] = {&one.q, &one.k, &one.v};
  for (size_t i = 0; i < 3; i++)
    *to[i] = tensor((char *)nvte_tensor_data(*from[i]) + bytes, kNVTEBFloat16,
                    SHAPE(1, SEQUENCE, HEADS, DIM));
  attention_forward(&one);
  EXPECT_OK();
  nvtex_stream_synchronize(g_stream);
  char *a = host_memory(bytes), *b = host_memory(bytes);
  download(a, (char *)nvte_tensor_data(all.o) + bytes, bytes);
  download(b, nvte_tensor_data(one.o), bytes);
  const bool same = memcmp(a, b, bytes) == 0;
  CHECK(same, "the second sequence of a batch differs from itself alone");
  if (g_table) printf("| %s | %s |\n", g_test.name, same ? "yes" : "no");
  nvte_tensor_pack_destroy(&all.pack);
  nvte_tensor_pack_destroy(&one.pack);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  const char *repeats = getenv("NVTE_TEST_REPEATS"), *table = getenv("NVTE_TEST_TABLE");
  g_repeats = repeats ? strtoul(repeats, NULL, 10) : on_cuda() ? 50 : 5;
  g_table = table != NULL && strcmp(table, "1") == 0;
  g_stream = nvtex_stream_create();
  pthread_t threads[LOAD_THREADS];
  for (int i = 0; i < LOAD_THREADS; i++) pthread_create(&threads[i], NULL, load, NULL);
  test_pointwise();
  test_casts();
  test_norms();
  test_softmax();
  test_products();
  test_attention();
  test_experts();
  test_language();
  test_lists();
  test_rows();
  test_sequences();
  g_stop = true;
  for (int i = 0; i < LOAD_THREADS; i++) pthread_join(threads[i], NULL);
  case_end();
  nvtex_stream_destroy(g_stream);
  return test_end();
}
