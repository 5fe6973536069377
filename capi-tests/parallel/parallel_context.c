// Attention over threads that share each sequence: outputs and gradients against the same modules
// on one rank with whole sequences. Values depend on positions, so that chunks in another order are
// a large error.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>

#include "threads.h"

enum { MOST = 4, PARAMETERS = 24 };

typedef enum Kind { CORE, MULTIHEAD, LAYER } Kind;

typedef struct Case {
  const char *name;
  Kind kind;
  NVTEXContextParallelKind how;
  int ranks;
  NVTEDType dtype;
  NVTE_QKV_Format format;
  NVTE_Mask_Type mask;
  int64_t left, right;
  NVTE_Softmax_Type softmax;
  size_t batch, length, heads, groups, dim, dim_v;
  bool checkpoint, qk_norm;
} Case;

// Tensors of a pass over whole sequences, a row for each token, sequence by sequence.
typedef struct Pass {
  const Case *c;
  size_t rows, num_inputs, widths[4];  // of the inputs and of the output
  double *inputs[3], *grads[3], *output, *doutput;
  double *parameters[MOST][PARAMETERS];  // gradients on each rank
  size_t counts[PARAMETERS], num_parameters;
  size_t scratch[MOST];  // the most that each rank has had
  char names[PARAMETERS][80];
} Pass;

// Packed sequences: where they begin, and their lengths without padding.
static const int32_t kStarts[] = {0, 48, 64}, kSums[] = {0, 43, 59};

// ---- What a rank has

static size_t chunk_row(size_t local, size_t length, size_t rank, size_t ranks) {
  size_t chunk = length / (2 * ranks), which = local / chunk;
  return (which ? 2 * ranks - 1 - rank : rank) * chunk + local % chunk;
}

// The row among those of whole sequences of a row in the memory of a rank.
static size_t row_of(const Case *c, size_t at, size_t rank, size_t ranks) {
  size_t local = c->length / ranks;
  if (c->format == NVTE_SBHD) {
    return at % c->batch * c->length + chunk_row(at / c->batch, c->length, rank, ranks);
  }
  if (c->format == NVTE_BSHD) {
    return at / local * c->length + chunk_row(at % local, c->length, rank, ranks);
  }
  for (size_t s = 0; s + 1 < COUNT(kStarts); s++) {
    size_t first = (size_t)kStarts[s], length = (size_t)kStarts[s + 1] - first;
    if (at < (first + length) / ranks) {
      return first + chunk_row(at - first / ranks, length, rank, ranks);
    }
  }
  abort();
}

// A row that belongs to a sequence.
static bool is_token(const Case *c, size_t row) {
  if (c->format != NVTE_THD) return true;
  size_t s = row >= (size_t)kStarts[1];
  return row - (size_t)kStarts[s] < (size_t)(kSums[s + 1] - kSums[s]);
}

static NVTETensor make(void *memory, NVTEDType dtype, NVTEShape shape) {
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  set_param(t, kNVTERowwiseData, memory, dtype, shape);
  return t;
}

// Values of a rank's rows on the device.
static char *local_rows(const Pass *p, const double *values, size_t width, size_t rank,
                        size_t ranks, NVTEDType dtype) {
  size_t rows = p->rows / ranks;
  char *host = malloc(rows * width * dtype_size(dtype));
  if (!host) abort();
  for (size_t i = 0; i < rows; i++) {
    size_t from = row_of(p->c, i, rank, ranks);
    for (size_t j = 0; j < width; j++) {
      put_value(dtype, host, i * width + j, values ? values[from * width + j] : 0);
    }
  }
  char *device = device_copy(host, rows * width * dtype_size(dtype));
  free(host);
  return device;
}

static void whole_rows(const Pass *p, double *values, const char *device, size_t width, size_t rank,
                       size_t ranks, NVTEDType dtype) {
  size_t rows = p->rows / ranks;
  char *host = malloc(rows * width * dtype_size(dtype));
  if (!host) abort();
  nvtex_memcpy_to_host(host, device, rows * width * dtype_size(dtype), NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t i = 0; i < rows; i++) {
    size_t to = row_of(p->c, i, rank, ranks);
    if (!is_token(p->c, to)) continue;
    for (size_t j = 0; j < width; j++) {
      values[to * width + j] = get_value(dtype, host, i * width + j);
    }
  }
  free(host);
}

static NVTEShape heads_shape(const Case *c, size_t ranks, size_t width, size_t dim) {
  size_t local = c->length / ranks, heads = width / dim;
  if (c->kind != CORE) {
    if (c->format == NVTE_THD) return SHAPE(c->batch * local, width);
    return c->format == NVTE_SBHD ? SHAPE(local, c->batch, width) : SHAPE(c->batch, local, width);
  }
  if (c->format == NVTE_THD) return SHAPE(c->batch * local, heads, dim);
  return c->format == NVTE_SBHD ? SHAPE(local, c->batch, heads, dim)
                                : SHAPE(c->batch, local, heads, dim);
}

// ---- A pass of a module

// Ranks drop the same elements as one of them does.
static bool drops(const Case *c) { return strstr(c->name, "dropout") != NULL; }

// Queries, keys and values are multiplied in FP8.
static bool casts(const Case *c) { return strstr(c->name, "fp8") != NULL; }

// The products around an attention stay as they are: their scales are those of a rank's rows.
static int high_precision(void *user, const char *layer, NVTEXRole role, NVTEXSlotChoice *choice) {
  (void)user, (void)layer, (void)role;
  choice->scaling = NVTEX_SLOT_HIGH_PRECISION;
  return 0;
}

static NVTEXAttentionConfig attention_config(const Case *c, NVTEDType dtype, bool shared) {
  NVTEXAttentionConfig a;
  nvtex_attention_config_init(&a, sizeof a);
  a.num_attention_heads = c->heads;
  a.num_gqa_groups = c->groups;
  a.head_dim_qk = c->dim;
  a.head_dim_v = c->dim_v;
  a.qkv_format = c->format;
  a.attn_mask_type = c->mask;
  a.window_size_left = c->left;
  a.window_size_right = c->right;
  a.softmax_type = c->softmax;
  a.dtype = dtype;
  a.parallel.context_parallel_size = shared ? 0 : 1;
  a.context_parallel_kind = c->how;
  if (drops(c)) a.attention_dropout = 0.25f;
  if (c->kind != CORE) {
    a.checkpoint_core_attention = c->checkpoint;
    if (c->qk_norm) a.qk_norm_type = NVTEX_QK_NORM_RMS;
  }
  return a;
}

static NVTEXModule module_of(const Case *c, NVTEXContext context, NVTEDType dtype, bool shared) {
  NVTEXAttentionConfig attention = attention_config(c, dtype, shared);
  if (c->kind == CORE) return nvtex_attention_create(context, &attention, NULL);
  if (c->kind == MULTIHEAD) {
    NVTEXMultiheadAttentionConfig config;
    nvtex_multihead_attention_config_init(&config, sizeof config);
    config.attention = attention;
    config.hidden_size = c->heads * c->dim;
    config.seed = 7;
    config.init_std = config.output_init_std = 0.15f;
    return nvtex_multihead_attention_create(context, &config, NULL);
  }
  NVTEXTransformerLayerConfig config;
  nvtex_transformer_layer_config_init(&config, sizeof config);
  config.attention = attention;
  config.mlp.hidden_size = c->heads * c->dim;
  config.mlp.ffn_hidden_size = 2 * c->heads * c->dim;
  config.mlp.seed = 7;
  config.mlp.dtype = dtype;
  config.mlp.init_std = config.mlp.output_init_std = 0.15f;
  return nvtex_transformer_layer_create(context, &config, NULL);
}

static void run_pass(Pass *p, NVTEXCommunicator comm, NVTEDType dtype) {
  const Case *c = p->c;
  size_t rank = 0, ranks = 1;
  NVTEXContext context = nvtex_context_create(NULL);
  if (comm) {
    rank = (size_t)nvtex_communicator_rank(comm);
    ranks = (size_t)nvtex_communicator_size(comm);
    NVTEXGridConfig config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.cp = ranks;
    NVTEXGrid grid = nvtex_grid_create(comm, &config);
    nvtex_context_set_grid(context, grid);
    nvtex_grid_destroy(grid);
  }
  int r = (int)rank;
  RANK_OK(r);
  NVTEXModule module = module_of(c, context, dtype, comm != NULL);
  RANK_OK(r);

  // Parameters, of which those that are zeros get values, and memory for their gradients.
  size_t num = nvtex_module_num_parameters(module);
  char *grads[PARAMETERS];
  NVTETensor bound[PARAMETERS];
  if (!RANK_CHECK(num <= PARAMETERS, "%zu parameters", num)) return;
  for (size_t i = 0; i < num; i++) {
    NVTEXParameter parameter;
    memset(&parameter, 0, sizeof parameter);
    parameter.struct_size = sizeof parameter;
    nvtex_module_parameter(module, i, &parameter);
    size_t count = numel(parameter.shape);
    if (rank == 0) {
      p->counts[i] = count;
      p->num_parameters = num;
      snprintf(p->names[i], sizeof p->names[i], "%s", parameter.name);
    }
    if (strstr(parameter.name, "softmax_offset")) {
      float *values = malloc(count * sizeof *values);
      if (!values) abort();
      for (size_t j = 0; j < count; j++) values[j] = (float)j * 0.4f - 1;
      char *memory = device_copy(values, count * sizeof *values);
      NVTETensor t = make(memory, kNVTEFloat32, parameter.shape);
      nvtex_module_assign_parameter(module, i, t, NULL);
      nvtex_stream_synchronize(NULL);
      nvte_destroy_tensor(t);
      nvtex_free(memory);
      free(values);
    }
    double *zeros = calloc(count, sizeof *zeros);
    if (!zeros) abort();
    grads[i] = device_copy(zeros, count * sizeof(float));
    bound[i] = make(grads[i], kNVTEFloat32, parameter.shape);
    nvtex_module_set_gradient(module, i, bound[i], false);
    free(zeros);
  }
  RANK_OK(r);

  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  static const int64_t kRandom[] = {1234, 64};
  char *sums = NULL, *starts = NULL, *angles = NULL, *random = NULL;
  NVTETensor lists[4] = {0};
  if (drops(c)) {
    random = device_copy(kRandom, sizeof kRandom);
    step.rng_state = lists[3] = make(random, kNVTEInt64, SHAPE(COUNT(kRandom)));
  }
  if (c->format == NVTE_THD) {
    sums = device_copy(kSums, sizeof kSums);
    starts = device_copy(kStarts, sizeof kStarts);
    lists[0] = make(sums, kNVTEInt32, SHAPE(COUNT(kSums)));
    lists[1] = make(starts, kNVTEInt32, SHAPE(COUNT(kStarts)));
    step.cu_seqlens_q = step.cu_seqlens_kv = lists[0];
    step.cu_seqlens_q_padded = step.cu_seqlens_kv_padded = lists[1];
    if (c->kind == CORE) step.max_seqlen_q = step.max_seqlen_kv = 48;
  }
  if (c->kind != CORE) {
    size_t turned = c->dim / 2, length = c->format == NVTE_THD ? p->rows : c->length;
    angles = nvtex_malloc(length * turned * sizeof(float));
    lists[2] = make(angles, kNVTEFloat32, SHAPE(length, 1, 1, turned));
    nvtex_rotary_frequencies(lists[2], NULL, NULL);
    step.rotary_frequencies = lists[2];
  }

  size_t n = p->num_inputs;
  char *memory[8] = {0};
  NVTETensor inputs[3], dinputs[3], output, doutput;
  for (size_t i = 0; i < n; i++) {
    size_t dim = i == 2 ? c->dim_v : c->dim;
    NVTEShape shape = heads_shape(c, ranks, p->widths[i], dim);
    memory[i] = local_rows(p, p->inputs[i], p->widths[i], rank, ranks, dtype);
    memory[3 + i] = local_rows(p, NULL, p->widths[i], rank, ranks, dtype);
    inputs[i] = make(memory[i], dtype, shape);
    dinputs[i] = make(memory[3 + i], dtype, shape);
  }
  NVTEShape shape = heads_shape(c, ranks, p->widths[n], c->kind == CORE ? c->dim_v : c->dim);
  memory[6] = local_rows(p, NULL, p->widths[n], rank, ranks, dtype);
  memory[7] = local_rows(p, p->doutput, p->widths[n], rank, ranks, dtype);
  output = make(memory[6], dtype, shape);
  doutput = make(memory[7], dtype, shape);
  NVTEXTape tape = NULL;
  NVTEXRecipe recipe = NULL;
  // The exact pass is in Float32.
  if (casts(c) && dtype == c->dtype) {
    NVTEXRecipeConfig config;
    nvtex_recipe_config_init(&config, sizeof config, NVTEX_RECIPE_CURRENT_SCALING);
    config.fp8_dpa = true;
    config.choose = high_precision;
    recipe = nvtex_recipe_create(&config);
  }
  nvtex_context_begin(context, recipe, recipe ? NVTEX_CONTEXT_ENABLED : 0, NULL);
  nvtex_module_forward(module, inputs, n, &output, 1, &step, &tape, NULL);
  RANK_OK(r);
  if (tape) nvtex_module_backward(module, tape, &doutput, 1, dinputs, n, NULL);
  RANK_OK(r);
  nvtex_context_end(context);
  nvtex_recipe_destroy(recipe);
  for (size_t i = 0; i < n; i++) {
    whole_rows(p, p->grads[i], memory[3 + i], p->widths[i], rank, ranks, dtype);
  }
  whole_rows(p, p->output, memory[6], p->widths[n], rank, ranks, dtype);
  for (size_t i = 0; i < num; i++) {
    NVTEXParameter parameter;
    memset(&parameter, 0, sizeof parameter);
    parameter.struct_size = sizeof parameter;
    nvtex_module_parameter(module, i, &parameter);
    size_t count = numel(parameter.shape);
    float *host = malloc(count * sizeof *host);
    double *values = malloc(count * sizeof *values);
    if (!host || !values) abort();
    nvtex_memcpy_to_host(host, grads[i], count * sizeof *host, NULL);
    nvtex_stream_synchronize(NULL);
    for (size_t j = 0; j < count; j++) values[j] = host[j];
    p->parameters[rank][i] = values;
    free(host);
    nvte_destroy_tensor(bound[i]);
  }
  RANK_OK(r);
  NVTEXMemoryUse use = {.struct_size = sizeof use};
  nvtex_context_memory(context, &use);
  p->scratch[rank] = use.most_scratch;
  nvtex_tape_destroy(tape);
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  for (size_t i = 0; i < n; i++) {
    nvte_destroy_tensor(inputs[i]);
    nvte_destroy_tensor(dinputs[i]);
  }
  nvte_destroy_tensor(output);
  nvte_destroy_tensor(doutput);
  for (size_t i = 0; i < COUNT(lists); i++) {
    if (lists[i]) nvte_destroy_tensor(lists[i]);
  }
  for (size_t i = 0; i < num; i++) nvtex_free(grads[i]);
  for (size_t i = 0; i < COUNT(memory); i++) nvtex_free(memory[i]);
  nvtex_free(sums);
  nvtex_free(starts);
  nvtex_free(angles);
  nvtex_free(random);
  RANK_OK(r);
}

static void pass_of_rank(Rank *r) {
  Pass *p = r->argument;
  run_pass(p, r->comm, p->c->dtype);
}

// ---- Comparison

static double *doubles(size_t n) { return host_memory((n ? n : 1) * sizeof(double)); }

static Pass new_pass(const Case *c) {
  Pass p;
  memset(&p, 0, sizeof p);
  p.c = c;
  p.rows = c->batch * c->length;
  size_t hidden = c->heads * c->dim;
  if (c->kind == CORE) {
    p.num_inputs = 3;
    p.widths[0] = hidden;
    p.widths[1] = c->groups * c->dim;
    p.widths[2] = c->groups * c->dim_v;
    p.widths[3] = c->heads * c->dim_v;
  } else {
    p.num_inputs = 1;
    p.widths[0] = p.widths[1] = hidden;
  }
  size_t n = p.num_inputs;
  for (size_t i = 0; i <= n; i++) {
    size_t count = p.rows * p.widths[i];
    double *values = doubles(count);
    for (size_t j = 0; j < count; j++) {
      // Values and incoming gradients grow with the position, keys and queries are large enough for
      // peaks.
      double position = (double)(j / p.widths[i] % c->length) / (double)c->length;
      double x = random_uniform(-1.5, 1.5);
      if (i == 2 || i == n || c->kind != CORE) x += 2 * position;
      values[j] = round_to(c->dtype, x);
    }
    if (i == n) {
      p.doutput = values;
      p.output = doubles(count);
    } else {
      p.inputs[i] = values;
      p.grads[i] = doubles(count);
    }
  }
  return p;
}

static Pass same_inputs(const Pass *other) {
  Pass p = *other;
  memset(p.parameters, 0, sizeof p.parameters);
  for (size_t i = 0; i < p.num_inputs; i++) p.grads[i] = doubles(p.rows * p.widths[i]);
  p.output = doubles(p.rows * p.widths[p.num_inputs]);
  return p;
}

static double error_of(const double *got, const double *expected, size_t count) {
  double error = 0, size = 1e-300;
  for (size_t i = 0; i < count; i++) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return isfinite(error) ? sqrt(error / size) : (double)INFINITY;
}

// Close to the serial pass; and where rounding can be told apart from it, no further from the pass
// in Float32 than the serial one, but for a tenth. Gradients of gathered keys and values are sums
// of several that have been rounded, and so is everything that a ring computes.
static void compare(const Case *c, const char *what, const double *got, const double *serial,
                    const double *exact, size_t count) {
  NVTEDType dtype = c->dtype;
  // On tensor cores products of Float32 have 10 bits behind the point.
  double float32 = on_cuda() && c->kind != CORE ? 2e-3 : 1e-5;
  double bound = dtype == kNVTEFloat32 ? float32 : dtype == kNVTEFloat16 ? 5e-3 : 2.5e-2;
  // Codes are those of one rank, but the probabilities of a part of the keys have codes of their
  // own.
  if (casts(c) && c->how != NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL) {
    // Values of the second packed sequence are nearly alike, so that gradients of its scores are
    // small differences of outputs with the error of FP8. Below they are compared with exact ones.
    bound = c->format == NVTE_THD ? 0.25 : 6e-2;
  }
  double distance = error_of(got, serial, count);
  CHECK(distance <= bound, "%s: relative distance to one rank %g", what, distance);
  if (!exact) return;
  double error = error_of(got, exact, count), least = error_of(serial, exact, count);
  bool gathered = c->how == NVTEX_CONTEXT_PARALLEL_ALL_GATHER;
  bool rounded =
      c->how == NVTEX_CONTEXT_PARALLEL_RING || (what[0] == 'd' && what[1] != 'q' && gathered);
  CHECK(error <= (rounded ? 1.5 : 1.1) * least + 1e-5, "%s: error %g, on one rank %g", what, error,
        least);
}

static void check_case(const Case *c) {
  Pass serial = new_pass(c);
  Pass shared = same_inputs(&serial), exact = same_inputs(&serial);
  bool reference = c->kind == CORE && c->dtype != kNVTEFloat32;
  run_pass(&serial, NULL, c->dtype);
  if (reference) run_pass(&exact, NULL, kNVTEFloat32);
  unsigned bad = failed_checks();
  if (!CHECK(bad == 0, "%u checks of one rank failed", bad)) return;
  run_ranks(c->ranks, 60, pass_of_rank, &shared);
  size_t n = serial.num_inputs;
  static const char *const names[] = {"dq", "dk", "dv"};
  compare(c, "output", shared.output, serial.output, reference ? exact.output : NULL,
          serial.rows * serial.widths[n]);
  for (size_t i = 0; i < n; i++) {
    compare(c, n == 1 ? "dx" : names[i], shared.grads[i], serial.grads[i],
            reference ? exact.grads[i] : NULL, serial.rows * serial.widths[i]);
  }
  for (size_t i = 0; i < serial.num_parameters; i++) {
    double *sum = doubles(serial.counts[i]);
    for (int r = 0; r < c->ranks; r++) {
      if (!shared.parameters[r][i]) continue;
      for (size_t j = 0; j < serial.counts[i]; j++) sum[j] += shared.parameters[r][i][j];
      free(shared.parameters[r][i]);
    }
    compare(c, serial.names[i], sum, serial.parameters[0][i], NULL, serial.counts[i]);
    free(serial.parameters[0][i]);
    if (reference) free(exact.parameters[0][i]);
  }
}

#define TO_ALL NVTEX_CONTEXT_PARALLEL_ALL_TO_ALL
#define GATHER NVTEX_CONTEXT_PARALLEL_ALL_GATHER
#define AUTO NVTEX_CONTEXT_PARALLEL_AUTOMATIC
#define RING NVTEX_CONTEXT_PARALLEL_RING
#define F32 kNVTEFloat32
#define F16 kNVTEFloat16
#define BF16 kNVTEBFloat16
#define VANILLA NVTE_VANILLA_SOFTMAX
#define LEARNED NVTE_LEARNABLE_SOFTMAX
#define ONE NVTE_OFF_BY_ONE_SOFTMAX
#define PACKED NVTE_PADDING_CAUSAL_MASK
#define PADDED NVTE_PADDING_MASK
#define CAUSAL NVTE_CAUSAL_MASK
#define NONE NVTE_NO_MASK

static const Case kCases[] = {
    {"causal", CORE, RING, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"causal", CORE, RING, 4, F32, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 64, 3, 1, 32, 32, 0, 0},
    {"causal", CORE, RING, 3, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 1, 48, 4, 2, 32, 32, 0, 0},
    {"no mask", CORE, RING, 4, F32, NVTE_SBHD, NONE, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"no mask", CORE, RING, 2, F32, NVTE_BSHD, NONE, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"values", CORE, RING, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 4, 32, 16, 0, 0},
    {"causal", CORE, RING, 2, BF16, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 2, 64, 64, 0, 0},
    {"causal", CORE, RING, 4, F16, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 2, 64, 64, 0, 0},
    {"no mask", CORE, RING, 4, BF16, NVTE_SBHD, NONE, -1, -1, VANILLA, 1, 128, 4, 2, 64, 64, 0, 0},
    {"window", CORE, RING, 4, F32, NVTE_BSHD, CAUSAL, 5, 0, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"window", CORE, RING, 2, F32, NVTE_SBHD, CAUSAL, 40, 0, LEARNED, 2, 64, 4, 2, 32, 32, 0, 0},
    {"window", CORE, RING, 4, BF16, NVTE_BSHD, CAUSAL, 21, 0, VANILLA, 1, 128, 4, 2, 64, 64, 0, 0},
    {"band", CORE, RING, 4, F32, NVTE_SBHD, NONE, 9, 13, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"sink", CORE, RING, 4, F32, NVTE_BSHD, CAUSAL, -1, -1, LEARNED, 2, 64, 4, 2, 32, 32, 0, 0},
    {"sink", CORE, RING, 2, F32, NVTE_SBHD, NONE, -1, -1, LEARNED, 2, 64, 4, 2, 32, 32, 0, 0},
    {"sink", CORE, RING, 3, F32, NVTE_SBHD, CAUSAL, -1, -1, ONE, 1, 48, 4, 2, 32, 32, 0, 0},
    {"sink", CORE, RING, 4, BF16, NVTE_SBHD, CAUSAL, -1, -1, LEARNED, 1, 128, 4, 2, 64, 64, 0, 0},
    {"packed", CORE, RING, 2, F32, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 32, 32, 0, 0},
    {"packed", CORE, RING, 4, F32, NVTE_THD, PACKED, -1, -1, LEARNED, 1, 64, 3, 1, 32, 32, 0, 0},
    {"packed", CORE, RING, 4, F32, NVTE_THD, PADDED, -1, -1, VANILLA, 1, 64, 4, 2, 32, 16, 0, 0},
    {"packed", CORE, RING, 2, F32, NVTE_THD, PADDED, -1, -1, LEARNED, 1, 64, 4, 2, 32, 32, 0, 0},
    {"packed", CORE, RING, 4, BF16, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 64, 64, 0, 0},
    {"packed window", CORE, RING, 4, F32, NVTE_THD, PACKED, 7, 0, LEARNED, 1, 64, 4, 2, 32, 32, 0,
     0},
    {"packed", CORE, GATHER, 2, F32, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 32, 32, 0, 0},
    {"packed", CORE, GATHER, 4, F32, NVTE_THD, PACKED, -1, -1, LEARNED, 1, 64, 3, 1, 32, 32, 0, 0},
    {"packed", CORE, GATHER, 4, F32, NVTE_THD, PADDED, -1, -1, VANILLA, 1, 64, 4, 2, 32, 16, 0, 0},
    {"packed", CORE, GATHER, 4, BF16, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 6, 2, 64, 64, 0, 0},
    {"packed", CORE, AUTO, 4, F32, NVTE_THD, PADDED, -1, -1, LEARNED, 1, 64, 6, 2, 32, 32, 0, 0},
    {"packed window", CORE, GATHER, 2, F32, NVTE_THD, PACKED, 11, 0, VANILLA, 1, 64, 4, 2, 32, 32,
     0, 0},
    {"fp8 packed", CORE, GATHER, 2, BF16, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 64, 64, 0,
     0},
    {"fp8 packed", CORE, RING, 4, BF16, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 64, 64, 0,
     0},
    {"packed", MULTIHEAD, RING, 2, F32, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 16, 16, 1,
     0},
    {"packed", MULTIHEAD, GATHER, 4, F32, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 16, 16, 0,
     1},
    {"packed", LAYER, RING, 4, F32, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 16, 16, 0, 0},
    {"rotary", MULTIHEAD, RING, 4, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 16, 16, 0,
     0},
    {"again, norms", MULTIHEAD, RING, 2, F32, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 16,
     16, 1, 1},
    {"layer", LAYER, RING, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 16, 16, 0, 0},
    {"fp8", CORE, TO_ALL, 2, BF16, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 2, 64, 64, 0, 0},
    {"fp8", CORE, TO_ALL, 4, BF16, NVTE_BSHD, NONE, -1, -1, VANILLA, 2, 128, 8, 4, 64, 64, 0, 0},
    {"fp8", CORE, GATHER, 2, BF16, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 256, 4, 2, 64, 64, 0, 0},
    {"fp8", CORE, RING, 4, BF16, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 1, 512, 4, 2, 64, 64, 0, 0},
    {"fp8 rotary", MULTIHEAD, TO_ALL, 2, BF16, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 2, 64,
     64, 1, 0},
    {"fp8 packed", CORE, TO_ALL, 2, BF16, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 64, 64, 0,
     0},
    {"causal", CORE, GATHER, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"causal", CORE, GATHER, 4, F32, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 64, 3, 1, 32, 32, 0, 0},
    {"causal", CORE, TO_ALL, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"causal", CORE, TO_ALL, 4, F32, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 64, 8, 4, 32, 32, 0, 0},
    {"no mask", CORE, GATHER, 4, F32, NVTE_SBHD, NONE, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"no mask", CORE, TO_ALL, 2, F32, NVTE_BSHD, NONE, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"window", CORE, GATHER, 2, F32, NVTE_BSHD, CAUSAL, 11, 0, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"window", CORE, GATHER, 4, F32, NVTE_SBHD, CAUSAL, 5, 0, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"window", CORE, TO_ALL, 2, F32, NVTE_SBHD, CAUSAL, 11, 0, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"band", CORE, GATHER, 4, F32, NVTE_BSHD, NONE, 9, 13, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"band", CORE, GATHER, 2, F32, NVTE_SBHD, NONE, 40, 3, VANILLA, 2, 64, 4, 2, 32, 32, 0, 0},
    {"left", CORE, GATHER, 4, F32, NVTE_SBHD, NONE, 9, -1, VANILLA, 1, 64, 4, 2, 32, 32, 0, 0},
    {"right", CORE, GATHER, 4, F32, NVTE_SBHD, NONE, -1, 9, VANILLA, 1, 64, 4, 2, 32, 32, 0, 0},
    {"sink", CORE, GATHER, 4, F32, NVTE_BSHD, CAUSAL, 9, 0, LEARNED, 2, 64, 4, 2, 32, 32, 0, 0},
    {"sink", CORE, TO_ALL, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, LEARNED, 2, 64, 4, 2, 32, 32, 0, 0},
    {"values", CORE, GATHER, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 4, 32, 16, 0, 0},
    {"values", CORE, TO_ALL, 4, F32, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 4, 32, 16, 0, 0},
    {"causal", CORE, GATHER, 2, BF16, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 2, 64, 64, 0,
     0},
    {"causal", CORE, GATHER, 4, F16, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 2, 64, 64, 0,
     0},
    {"window", CORE, GATHER, 4, BF16, NVTE_SBHD, CAUSAL, 37, 0, VANILLA, 1, 128, 4, 2, 64, 64, 0,
     0},
    {"causal", CORE, TO_ALL, 4, BF16, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 4, 64, 64, 0,
     0},
    {"causal", CORE, TO_ALL, 2, F16, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 128, 4, 2, 64, 64, 0,
     0},
    {"dropout", CORE, TO_ALL, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 32, 32, 0,
     0},
    {"dropout", CORE, AUTO, 4, F32, NVTE_BSHD, CAUSAL, 9, 0, VANILLA, 2, 64, 8, 4, 32, 32, 0, 0},
    {"dropout", MULTIHEAD, TO_ALL, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 16, 16,
     1, 0},
    {"packed", CORE, TO_ALL, 2, F32, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 32, 32, 0, 0},
    {"packed", CORE, AUTO, 4, BF16, NVTE_THD, PADDED, -1, -1, VANILLA, 1, 64, 8, 4, 32, 32, 0, 0},
    {"rotary", MULTIHEAD, GATHER, 4, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 16, 16,
     0, 0},
    {"rotary", MULTIHEAD, TO_ALL, 2, F32, NVTE_BSHD, CAUSAL, -1, -1, LEARNED, 2, 64, 4, 4, 16, 16,
     0, 0},
    {"rotary", MULTIHEAD, AUTO, 2, BF16, NVTE_SBHD, CAUSAL, 17, 0, VANILLA, 2, 64, 4, 2, 16, 16, 0,
     0},
    {"again, norms", MULTIHEAD, GATHER, 2, F32, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 16,
     16, 1, 1},
    {"packed", MULTIHEAD, TO_ALL, 2, F32, NVTE_THD, PACKED, -1, -1, VANILLA, 1, 64, 4, 2, 16, 16, 1,
     0},
    {"layer", LAYER, GATHER, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 2, 16, 16, 0, 0},
    {"layer", LAYER, TO_ALL, 4, F32, NVTE_BSHD, CAUSAL, -1, -1, VANILLA, 2, 64, 4, 4, 16, 16, 0, 0},
};

static void attention_cases(void) {
  static const char *const how[] = {"automatic", "all-to-all", "all-gather", "ring"};
  static const char *const kinds[] = {"attention", "multihead", "layer"};
  for (size_t i = 0; i < COUNT(kCases); i++) {
    const Case *c = &kCases[i];
    if (!case_begin("%s, %s, %s, %d ranks, %s, case %zu", kinds[c->kind], c->name, how[c->how],
                    c->ranks, dtype_name(c->dtype), i)) {
      continue;
    }
    check_case(c);
  }
}

// The scratch memory of a ring depends on the rows of a rank, not on those of all of them, and so
// does that of a window.
static void ring_memory(void) {
  Case c = {"", CORE, RING, 2, F32, NVTE_SBHD, CAUSAL, -1, -1, VANILLA, 1, 64, 4, 4, 32, 32, 0, 0};
  size_t most[3][2];
  for (size_t how = 0; how < 3; how++) {
    for (size_t i = 0; i < 2; i++) {
      c.how = how ? GATHER : RING;
      c.left = how == 2 ? 32 : -1;
      c.ranks = i ? 4 : 2;
      c.length = 128 * (size_t)c.ranks;
      Pass pass = new_pass(&c);
      run_ranks(c.ranks, 60, pass_of_rank, &pass);
      most[how][i] = 0;
      for (int r = 0; r < c.ranks; r++) {
        if (pass.scratch[r] > most[how][i]) most[how][i] = pass.scratch[r];
        for (size_t p = 0; p < pass.num_parameters; p++) free(pass.parameters[r][p]);
      }
    }
  }
  CHECK_EQ(most[0][1], most[0][0]);
  CHECK(most[1][1] > most[1][0] && most[1][1] > most[0][1], "all-gather: %zu and %zu, ring: %zu",
        most[1][0], most[1][1], most[0][1]);
  // Of a window the rows that a rank reads count: those of two ranges may lie side by side.
  CHECK(most[2][1] * 3 < most[2][0] * 4, "window: %zu and %zu", most[2][0], most[2][1]);
}

// ---- Rows of tokens

static void arrange(Rank *r) {
  static const NVTEDType dtypes[] = {kNVTEInt64, kNVTEByte, kNVTEBFloat16};
  enum { LENGTH = 24, BATCH = 3, WIDTH = 5 };
  for (size_t d = 0; d < COUNT(dtypes) * 2; d++) {
    NVTEDType dtype = dtypes[d / 2];
    NVTE_QKV_Format format = d % 2 ? NVTE_BSHD : NVTE_SBHD;
    size_t element = dtype_size(dtype), local = LENGTH / (size_t)r->size;
    size_t bytes = LENGTH * BATCH * WIDTH * element;
    unsigned char host[LENGTH * BATCH * WIDTH * 8], got[sizeof host];
    for (size_t i = 0; i < bytes; i++) host[i] = (unsigned char)mixed(i + 77 * d);
    char *whole = device_copy(host, bytes), *part = nvtex_malloc(bytes);
    char *back = nvtex_malloc(bytes);
    bool first = format == NVTE_SBHD;
    NVTEShape all = first ? SHAPE(LENGTH, BATCH, WIDTH) : SHAPE(BATCH, LENGTH, WIDTH);
    NVTEShape some = first ? SHAPE(local, BATCH, WIDTH) : SHAPE(BATCH, local, WIDTH);
    NVTETensor tensors[] = {make(whole, dtype, all), make(part, dtype, some),
                            make(back, dtype, all)};
    nvtex_context_parallel_split(r->comm, tensors[0], tensors[1], format, NULL);
    RANK_OK(r->rank);
    nvtex_memcpy_to_host(got, part, bytes / (size_t)r->size, NULL);
    nvtex_stream_synchronize(NULL);
    size_t row = WIDTH * element;
    for (size_t s = 0; s < local; s++) {
      size_t from = chunk_row(s, LENGTH, (size_t)r->rank, (size_t)r->size);
      for (size_t b = 0; b < BATCH; b++) {
        size_t to_row = first ? s * BATCH + b : b * local + s;
        size_t from_row = first ? from * BATCH + b : b * LENGTH + from;
        RANK_CHECK(!memcmp(got + to_row * row, host + from_row * row, row), "rank %d: row %zu",
                   r->rank, to_row);
      }
    }
    nvtex_context_parallel_merge(r->comm, tensors[1], tensors[2], format, NULL);
    RANK_OK(r->rank);
    nvtex_memcpy_to_host(got, back, bytes, NULL);
    nvtex_stream_synchronize(NULL);
    RANK_CHECK(!memcmp(got, host, bytes), "rank %d: merged rows", r->rank);
    // A part of another length is refused.
    nvtex_context_parallel_split(r->comm, tensors[0], tensors[2], format, NULL);
    RANK_ERROR(r->rank, "part");
    nvtex_context_parallel_split(r->comm, tensors[0], tensors[1], NVTE_THD, NULL);
    RANK_ERROR(r->rank, "format");
    for (size_t i = 0; i < COUNT(tensors); i++) nvte_destroy_tensor(tensors[i]);
    nvtex_free(whole);
    nvtex_free(part);
    nvtex_free(back);
  }
}

// ---- What is refused

static void refusals(Rank *r) {
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXGridConfig grid_config;
  memset(&grid_config, 0, sizeof grid_config);
  grid_config.struct_size = sizeof grid_config;
  grid_config.cp = (size_t)r->size;
  NVTEXGrid grid = nvtex_grid_create(r->comm, &grid_config);
  nvtex_context_set_grid(context, grid);
  nvtex_grid_destroy(grid);
  RANK_OK(r->rank);
  const Case base = {"",      CORE, AUTO, 2, F32, NVTE_SBHD, CAUSAL, -1, -1,
                     VANILLA, 1,    8,    3, 3,   16,        16,     0,  0};
  NVTEXAttentionConfig a = attention_config(&base, F32, true);
  a.attention_dropout = 0.1f;
  RANK_CHECK(!nvtex_attention_create(context, &a, NULL), "dropout");
  RANK_ERROR(r->rank, "config.attention_dropout");
  a = attention_config(&base, F32, true);
  a.context_parallel_kind = TO_ALL;
  RANK_CHECK(!nvtex_attention_create(context, &a, NULL), "heads");
  RANK_ERROR(r->rank, "multiples of 2");
  a = attention_config(&base, F32, true);
  a.qkv_format = NVTE_THD;
  a.attn_mask_type = PADDED;
  a.window_size_left = 3;
  a.context_parallel_kind = GATHER;
  RANK_CHECK(!nvtex_attention_create(context, &a, NULL), "packed, with a window and no mask");
  RANK_ERROR(r->rank, "config.attn_mask_type: expected a mask without padding, or packed tokens");
  a = attention_config(&base, F32, true);
  a.context_parallel_kind = RING;
  a.attn_mask_type = NONE;
  a.window_size_right = 2;
  RANK_CHECK(!nvtex_attention_create(context, &a, NULL), "a window to the right in a ring");
  RANK_ERROR(r->rank, "config.window_size_right: expected -1 (a ring has a window to the right");
  a = attention_config(&base, F32, true);
  a.context_parallel_kind = RING;
  a.attn_mask_type = PACKED;
  RANK_CHECK(!nvtex_attention_create(context, &a, NULL), "padding in a ring");
  RANK_ERROR(r->rank, "config.attn_mask_type");
  a = attention_config(&base, F32, true);
  a.parallel.context_parallel_size = 3;
  RANK_CHECK(!nvtex_attention_create(context, &a, NULL), "size");
  RANK_ERROR(r->rank, "config.parallel.context_parallel_size");
  // Three rows are no two chunks.
  a = attention_config(&base, F32, true);
  NVTEXModule module = nvtex_attention_create(context, &a, NULL);
  RANK_OK(r->rank);
  char *memory[4];
  NVTETensor tensors[4];
  for (int i = 0; i < 4; i++) {
    memory[i] = nvtex_malloc(3 * 48 * sizeof(float));
    tensors[i] = make(memory[i], F32, SHAPE(3, 1, 3, 16));
  }
  nvtex_module_forward(module, tensors, 3, tensors + 3, 1, NULL, NULL, NULL);
  RANK_ERROR(r->rank, "an even length");
  for (int i = 0; i < 4; i++) {
    nvte_destroy_tensor(tensors[i]);
    nvtex_free(memory[i]);
  }
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  RANK_OK(r->rank);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  attention_cases();
  if (case_begin("memory of a ring")) ring_memory();
  for (int size = 2; size <= MOST; size++) {
    if (case_begin("rows of tokens, %d ranks", size)) run_ranks(size, 60, arrange, NULL);
  }
  if (case_begin("what is refused")) run_ranks(2, 60, refusals, NULL);
  return test_end();
}
