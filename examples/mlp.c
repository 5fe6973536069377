/* Trains a two-layer perceptron on 8x8 images of digits four times: in float32, in bfloat16, and in
 * FP8 with delayed and with current scaling. The program is the same on a GPU and on a CPU: memory,
 * copies and the stream come from nvtex_*. Forward and backward run in nvte_*; loss and optimizer
 * on the host, in float32. */
#include <math.h>
#include <nvte/nvte.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* FP8 GEMMs want dimensions that are multiples of 16: ten classes become 16 outputs. */
enum { PIXELS = 64, HIDDEN = 256, CLASSES = 10, OUTPUTS = 16, BATCH = 128, EPOCHS = 25 };
enum { AMAX_HISTORY = 16, WORKSPACE_BYTES = 32 << 20, MAX_RESOURCES = 64 };

enum { WEIGHT1, BIAS1, WEIGHT2, BIAS2, NUM_PARAMETERS };

typedef enum { FLOAT32, BFLOAT16, FP8_DELAYED, FP8_CURRENT, NUM_PRECISIONS } Precision;
static const char *const names[] = {"float32", "bfloat16", "FP8 delayed", "FP8 current"};

/* A call that fails sets a status and a message, and leaves its outputs alone. */
static void stop_on_error(int line) {
  if (nvtex_last_status() == NVTEX_OK) return;
  fprintf(stderr, "mlp.c:%d: %s\n", line, nvtex_last_error());
  exit(EXIT_FAILURE);
}
#define CALL(expression) ((expression), stop_on_error(__LINE__))

static void fail(const char *subject, const char *text) {
  fprintf(stderr, "mlp: %s: %s\n", subject, text);
  exit(EXIT_FAILURE);
}

static void *allocate(size_t bytes) {
  void *ptr = calloc(1, bytes);
  if (ptr == NULL) fail("calloc", "out of memory");
  return ptr;
}

typedef struct {
  size_t count;
  float (*pixels)[PIXELS]; /* 0 to 1 */
  int *labels;
} Dataset;

static Dataset read_dataset(const char *path) {
  FILE *file = fopen(path, "r");
  if (file == NULL) fail(path, "cannot be read");
  Dataset data = {0};
  for (int c; (c = fgetc(file)) != EOF;) data.count += c == '\n';
  if (data.count < 2 * BATCH) fail(path, "expected at least 256 lines");
  data.pixels = allocate(data.count * sizeof *data.pixels);
  data.labels = allocate(data.count * sizeof *data.labels);
  rewind(file);
  for (size_t i = 0; i < data.count; ++i) {
    for (int p = 0; p <= PIXELS; ++p) {
      int value;
      const int limit = p < PIXELS ? 16 : CLASSES - 1;
      const bool ok = fscanf(file, p < PIXELS ? "%2d," : "%2d", &value) == 1;
      if (!ok || value < 0 || value > limit) fail(path, "expected 64 pixels (0-16) and a digit");
      if (p < PIXELS) data.pixels[i][p] = (float)value / 16;
      if (p == PIXELS) data.labels[i] = value;
    }
  }
  fclose(file);
  return data;
}

/* splitmix64: every run sees the same numbers. */
static uint64_t next_random(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static void shuffle(size_t *items, size_t count, uint64_t *state) {
  for (size_t i = count - 1; i > 0; --i) {
    const size_t j = next_random(state) % (i + 1), item = items[i];
    items[i] = items[j];
    items[j] = item;
  }
}

/* What FP8 tensors of one type share: entry i of each array belongs to tensor i. */
typedef struct {
  NVTEDType dtype;
  size_t used;
  float *scale, *scale_inv, *amax; /* on the device; amax is the first row of the history */
  NVTETensor scales, history;
} Scaling;

/* A matrix as other operators see it and, in the FP8 runs, as the GEMMs read it. */
typedef struct {
  NVTETensor full, fp8;
} Operand;

/* float32 on the host, and its images on the device. */
typedef struct {
  size_t count;
  float *value, *grad, *momentum, *variance;
  NVTETensor device, device_grad;
} Parameter;

typedef struct {
  Precision precision;
  NVTEDType dtype; /* of all that is not FP8 */
  uint64_t random;
  cudaStream_t stream;
  void *buffers[MAX_RESOURCES];
  NVTETensor tensors[MAX_RESOURCES];
  NVTEMatmulConfig configs[MAX_RESOURCES];
  size_t num_buffers, num_tensors, num_configs;

  NVTETensor workspace, staging, ones;
  float *staging_buffer;
  NVTEQuantizationConfig quantization;
  Scaling forward, backward;

  Parameter parameters[NUM_PARAMETERS];
  Operand x, w1, h, w2, dlogits, dz; /* z = x w1^T + bias1, h = gelu(z), logits = h w2^T + bias2 */
  NVTETensor z, logits;
  NVTEMatmulConfig fprop1, fprop2, dgrad2, wgrad1, wgrad2;
} Run;

static bool is_fp8(const Run *run) { return run->precision >= FP8_DELAYED; }

/* Notes what end_run() has to give back. */
static void *keep(void **list, size_t *count, void *item) {
  if (*count == MAX_RESOURCES) fail("MAX_RESOURCES", "too small");
  return list[(*count)++] = item;
}

static void *device_buffer(Run *run, size_t bytes) {
  void *ptr;
  CALL(ptr = nvtex_malloc(bytes));
  return keep(run->buffers, &run->num_buffers, ptr);
}

static size_t num_elements(NVTEShape shape) {
  size_t count = 1;
  for (size_t i = 0; i < shape.ndim; ++i) count *= shape.data[i];
  return count;
}

static NVTEShape vector(size_t n) { return (NVTEShape){.data = {n}, .ndim = 1}; }
static NVTEShape matrix(size_t rows, size_t cols) {
  return (NVTEShape){.data = {rows, cols}, .ndim = 2};
}

static void set_buffer(NVTETensor tensor, NVTETensorParam which, void *ptr, NVTEDType dtype,
                       NVTEShape shape) {
  const NVTEBasicTensor buffer = {.data_ptr = ptr, .dtype = dtype, .shape = shape};
  CALL(nvte_set_tensor_param_v2(tensor, which, &buffer, sizeof buffer));
}

static NVTETensor tensor_of(Run *run, void *ptr, NVTEDType dtype, NVTEShape shape) {
  NVTETensor tensor; /* the mode means: one scale for the whole tensor, or none */
  CALL(tensor = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING));
  keep(run->tensors, &run->num_tensors, tensor);
  set_buffer(tensor, kNVTERowwiseData, ptr, dtype, shape);
  return tensor;
}

static NVTETensor new_tensor(Run *run, NVTEDType dtype, NVTEShape shape) {
  const size_t element = dtype == kNVTEFloat32 ? 4 : 2;
  return tensor_of(run, device_buffer(run, element * num_elements(shape)), dtype, shape);
}

static Scaling new_scaling(Run *run, NVTEDType dtype, size_t count) {
  float ones[] = {1, 1, 1, 1};
  Scaling s = {.dtype = dtype};
  s.scale = device_buffer(run, count * sizeof(float));
  s.scale_inv = device_buffer(run, count * sizeof(float));
  s.amax = device_buffer(run, AMAX_HISTORY * count * sizeof(float));
  CALL(nvtex_memcpy_to_device(s.scale, ones, count * sizeof(float), run->stream));
  CALL(nvte_memset(s.amax, 0, AMAX_HISTORY * count * sizeof(float), run->stream));
  s.scales = tensor_of(run, s.scale, kNVTEFloat32, vector(count));
  s.history = tensor_of(run, s.amax, kNVTEFloat32, matrix(AMAX_HISTORY, count));
  return s;
}

/* Hopper's FP8 tensor cores only multiply rows by rows. A GEMM that sums over the rows of a matrix
 * reads a transposed copy, the column-wise data, which the cast writes beside the row-wise data. */
static Operand new_operand(Run *run, size_t rows, size_t cols, Scaling *scaling) {
  Operand op = {.full = new_tensor(run, run->dtype, matrix(rows, cols))};
  if (!is_fp8(run)) return op;
  const size_t i = scaling->used++;
  op.fp8 = tensor_of(run, device_buffer(run, rows * cols), scaling->dtype, matrix(rows, cols));
  set_buffer(op.fp8, kNVTEColumnwiseData, device_buffer(run, rows * cols), scaling->dtype,
             matrix(cols, rows));
  set_buffer(op.fp8, kNVTEScale, scaling->scale + i, kNVTEFloat32, vector(1));
  set_buffer(op.fp8, kNVTEAmax, scaling->amax + i, kNVTEFloat32, vector(1));
  set_buffer(op.fp8, kNVTERowwiseScaleInv, scaling->scale_inv + i, kNVTEFloat32, vector(1));
  set_buffer(op.fp8, kNVTEColumnwiseScaleInv, scaling->scale_inv + i, kNVTEFloat32, vector(1));
  return op;
}

/* Copies through float32 staging memory; a quantize without scales casts to the tensor's type.
 * The host may reuse its memory at once. */
static void upload(Run *run, const float *host, NVTETensor tensor) {
  const NVTEShape shape = nvte_tensor_shape(tensor);
  CALL(nvtex_memcpy_to_device(run->staging_buffer, host, num_elements(shape) * sizeof(float),
                              run->stream));
  set_buffer(run->staging, kNVTERowwiseData, run->staging_buffer, kNVTEFloat32, shape);
  CALL(nvte_quantize_v2(run->staging, tensor, NULL, run->stream));
}

/* The values are there after the next nvtex_stream_synchronize. */
static void download(Run *run, NVTETensor tensor, float *host) {
  const NVTEShape shape = nvte_tensor_shape(tensor);
  set_buffer(run->staging, kNVTERowwiseData, run->staging_buffer, kNVTEFloat32, shape);
  CALL(nvte_quantize_v2(tensor, run->staging, NULL, run->stream));
  CALL(nvtex_memcpy_to_host(host, run->staging_buffer, num_elements(shape) * sizeof(float),
                            run->stream));
}

/* Delayed scaling casts with a scale from earlier steps and records the maximum: one pass.
 * Current scaling takes the maximum first, then casts: two passes, and the scale always fits. */
static void quantize(Run *run, const Operand *op) {
  if (run->precision == FP8_DELAYED) {
    CALL(nvte_cast_transpose(op->full, op->fp8, run->stream));
  } else if (run->precision == FP8_CURRENT) {
    CALL(nvte_compute_amax(op->full, op->fp8, run->stream));
    CALL(nvte_compute_scale_from_amax(op->fp8, run->quantization, run->stream));
    CALL(nvte_quantize_v2(op->full, op->fp8, run->quantization, run->stream));
  }
}

/* scale = (largest FP8 number) / (largest maximum in the history); then the history moves on. */
static void update_scales(Run *run, const Scaling *s) {
  CALL(nvte_delayed_scaling_recipe_amax_and_scale_update(
      s->history, s->scales, s->history, s->scales, "max", s->dtype, 0, run->stream));
}

typedef struct {
  NVTETensor bias, dbias, aux;
  bool gelu, dgelu, accurate;
} Options;

static NVTEMatmulConfig new_config(Run *run, Options o) {
  NVTEMatmulConfig c;
  CALL(c = nvte_create_matmul_config());
  keep(run->configs, &run->num_configs, c);
  CALL(nvte_set_matmul_config_attribute(c, kNVTEMatmulConfigBiasTensor, &o.bias, sizeof o.bias));
  CALL(nvte_set_matmul_config_attribute(c, kNVTEMatmulConfigDBiasTensor, &o.dbias, sizeof o.dbias));
  CALL(nvte_set_matmul_config_attribute(c, kNVTEMatmulConfigEpilogueAuxTensor, &o.aux,
                                        sizeof o.aux));
  CALL(nvte_set_matmul_config_attribute(c, kNVTEMatmulConfigWithGELUEpilogue, &o.gelu, 1));
  CALL(nvte_set_matmul_config_attribute(c, kNVTEMatmulConfigWithDGELUEpilogue, &o.dgelu, 1));
  CALL(nvte_set_matmul_config_attribute(c, kNVTEMatmulConfigUseSplitAccumulator, &o.accurate, 1));
  return c;
}

/* d = (b or b^T) (a or a^T): what BLAS, column-major, calls the first operand stands on the right.
 */
static void gemm(Run *run, NVTETensor a, bool transpose_a, NVTETensor b, bool transpose_b,
                 NVTETensor d, NVTEMatmulConfig config) {
  const float alpha = 1, beta = 0;
  CALL(nvte_cublas_gemm_v2(transpose_a, transpose_b, &alpha, a, b, &beta, d, d, run->workspace,
                           config, run->stream));
}

static NVTETensor input(const Operand *op) { return op->fp8 != NULL ? op->fp8 : op->full; }

static Parameter new_parameter(Run *run, NVTETensor device, float bound) {
  const NVTEShape shape = nvte_tensor_shape(device);
  Parameter p = {.count = num_elements(shape), .device = device};
  p.device_grad = new_tensor(run, kNVTEFloat32, shape);
  p.value = allocate(4 * p.count * sizeof(float));
  p.grad = p.value + p.count;
  p.momentum = p.grad + p.count;
  p.variance = p.momentum + p.count;
  for (size_t i = 0; i < p.count; ++i) {
    p.value[i] = bound * (2 * (float)(next_random(&run->random) >> 40) / (1 << 24) - 1);
  }
  return p;
}

static void adam(Parameter *p, float rate, int step) {
  const float unbias1 = 1 / (1 - powf(0.9f, (float)step));
  const float unbias2 = 1 / (1 - powf(0.999f, (float)step));
  for (size_t i = 0; i < p->count; ++i) {
    const float g = p->grad[i];
    p->momentum[i] += 0.1f * (g - p->momentum[i]);
    p->variance[i] += 0.001f * (g * g - p->variance[i]);
    p->value[i] -= rate * unbias1 * p->momentum[i] / (sqrtf(unbias2 * p->variance[i]) + 1e-8f);
  }
}

static Run *start_run(Precision precision) {
  Run *run = allocate(sizeof *run);
  run->precision = precision;
  run->dtype = precision == FLOAT32 ? kNVTEFloat32 : kNVTEBFloat16;
  run->random = 1;
  CALL(run->stream = nvtex_stream_create());
  CALL(run->quantization = nvte_create_quantization_config());
  run->workspace =
      tensor_of(run, device_buffer(run, WORKSPACE_BYTES), kNVTEByte, vector(WORKSPACE_BYTES));
  run->staging_buffer = device_buffer(run, BATCH * HIDDEN * sizeof(float)); /* fits the largest */
  run->staging = tensor_of(run, run->staging_buffer, kNVTEFloat32, vector(1));

  /* E4M3 has more precision, E5M2 more range: values take the first, gradients the second. */
  run->forward = new_scaling(run, kNVTEFloat8E4M3, 4);
  run->backward = new_scaling(run, kNVTEFloat8E5M2, 2);
  run->x = new_operand(run, BATCH, PIXELS, &run->forward);
  run->w1 = new_operand(run, HIDDEN, PIXELS, &run->forward);
  run->h = new_operand(run, BATCH, HIDDEN, &run->forward);
  run->w2 = new_operand(run, OUTPUTS, HIDDEN, &run->forward);
  run->dlogits = new_operand(run, BATCH, OUTPUTS, &run->backward);
  run->dz = new_operand(run, BATCH, HIDDEN, &run->backward);
  run->z = new_tensor(run, run->dtype, matrix(BATCH, HIDDEN));
  run->logits = new_tensor(run, run->dtype, matrix(BATCH, OUTPUTS));
  run->ones = new_tensor(run, run->dtype, matrix(1, BATCH));

  Parameter *p = run->parameters;
  p[WEIGHT1] = new_parameter(run, run->w1.full, sqrtf(6.0f / PIXELS));
  p[BIAS1] = new_parameter(run, new_tensor(run, run->dtype, vector(HIDDEN)), 0);
  p[WEIGHT2] = new_parameter(run, run->w2.full, sqrtf(3.0f / HIDDEN));
  p[BIAS2] = new_parameter(run, new_tensor(run, run->dtype, vector(OUTPUTS)), 0);

  float ones[BATCH];
  for (int i = 0; i < BATCH; ++i) ones[i] = 1;
  upload(run, ones, run->ones);

  /* Gradients span many magnitudes: in FP8 they want the accurate ("split") accumulator. The bias
   * epilogue of a weight gradient is not for FP8 operands: there backward() sums in full precision.
   */
  const NVTETensor dbias1 = is_fp8(run) ? NULL : p[BIAS1].device_grad;
  const NVTETensor dbias2 = is_fp8(run) ? NULL : p[BIAS2].device_grad;
  run->fprop1 = new_config(run, (Options){.bias = p[BIAS1].device, .gelu = true, .aux = run->z});
  run->fprop2 = new_config(run, (Options){.bias = p[BIAS2].device});
  run->dgrad2 = new_config(run, (Options){.dgelu = true, .aux = run->z, .accurate = true});
  run->wgrad1 = new_config(run, (Options){.dbias = dbias1, .accurate = true});
  run->wgrad2 = new_config(run, (Options){.dbias = dbias2, .accurate = true});
  return run;
}

static void end_run(Run *run) {
  for (int i = 0; i < NUM_PARAMETERS; ++i) free(run->parameters[i].value);
  for (size_t i = 0; i < run->num_configs; ++i) CALL(nvte_destroy_matmul_config(run->configs[i]));
  CALL(nvte_destroy_quantization_config(run->quantization));
  CALL(nvte_destroy_tensors(run->tensors, run->num_tensors));
  for (size_t i = 0; i < run->num_buffers; ++i) CALL(nvtex_free(run->buffers[i]));
  CALL(nvtex_stream_destroy(run->stream));
  free(run);
}

static void load_weights(Run *run) {
  for (int i = 0; i < NUM_PARAMETERS; ++i) {
    upload(run, run->parameters[i].value, run->parameters[i].device);
  }
  quantize(run, &run->w1);
  quantize(run, &run->w2);
}

static void forward(Run *run, const float *pixels, float *logits) {
  upload(run, pixels, run->x.full);
  quantize(run, &run->x);
  gemm(run, input(&run->w1), true, input(&run->x), false, run->h.full, run->fprop1);
  quantize(run, &run->h);
  gemm(run, input(&run->w2), true, input(&run->h), false, run->logits, run->fprop2);
  download(run, run->logits, logits);
  CALL(nvtex_stream_synchronize(run->stream));
}

static void backward(Run *run, const float *dlogits) {
  upload(run, dlogits, run->dlogits.full);
  quantize(run, &run->dlogits);
  gemm(run, input(&run->w2), false, input(&run->dlogits), false, run->dz.full, run->dgrad2);
  quantize(run, &run->dz);
  Parameter *p = run->parameters;
  gemm(run, input(&run->h), false, input(&run->dlogits), true, p[WEIGHT2].device_grad, run->wgrad2);
  gemm(run, input(&run->x), false, input(&run->dz), true, p[WEIGHT1].device_grad, run->wgrad1);
  if (is_fp8(run)) { /* a row of ones times a matrix: its column sums */
    gemm(run, run->dlogits.full, false, run->ones, false, p[BIAS2].device_grad, NULL);
    gemm(run, run->dz.full, false, run->ones, false, p[BIAS1].device_grad, NULL);
  }
  for (int i = 0; i < NUM_PARAMETERS; ++i) download(run, p[i].device_grad, p[i].grad);
  if (run->precision == FP8_DELAYED) {
    update_scales(run, &run->forward);
    update_scales(run, &run->backward);
  }
  CALL(nvtex_stream_synchronize(run->stream));
}

/* Softmax cross-entropy, mean over the batch. Padding outputs take no part: their gradient is 0. */
static float loss_and_gradient(float (*logits)[OUTPUTS], const int *labels,
                               float (*grad)[OUTPUTS]) {
  float loss = 0;
  for (int n = 0; n < BATCH; ++n) {
    float largest = logits[n][0], sum = 0;
    for (int c = 1; c < CLASSES; ++c) largest = fmaxf(largest, logits[n][c]);
    for (int c = 0; c < CLASSES; ++c) sum += expf(logits[n][c] - largest);
    for (int c = 0; c < OUTPUTS; ++c) {
      const float p = c < CLASSES ? expf(logits[n][c] - largest) / sum : 0;
      grad[n][c] = (p - (c == labels[n])) / BATCH;
    }
    loss += (logf(sum) + largest - logits[n][labels[n]]) / BATCH;
  }
  return loss;
}

typedef struct {
  float loss, accuracy; /* of the last epoch; of the test images, in per cent */
  double step_ms;
} Result;

typedef struct {
  float pixels[BATCH][PIXELS], logits[BATCH][OUTPUTS], grad[BATCH][OUTPUTS];
  int labels[BATCH];
} Batch;

/* Fewer images than a batch leave the rest as it was. */
static void fill(Batch *batch, const Dataset *data, const size_t *indices, size_t count) {
  for (size_t n = 0; n < count; ++n) {
    memcpy(batch->pixels[n], data->pixels[indices[n]], sizeof batch->pixels[n]);
    batch->labels[n] = data->labels[indices[n]];
  }
}

static float train_step(Run *run, Batch *batch, float rate, int step) {
  load_weights(run);
  forward(run, batch->pixels[0], batch->logits[0]);
  const float loss = loss_and_gradient(batch->logits, batch->labels, batch->grad);
  backward(run, batch->grad[0]);
  for (int i = 0; i < NUM_PARAMETERS; ++i) adam(&run->parameters[i], rate, step);
  return loss;
}

static float test_accuracy(Run *run, Batch *batch, const Dataset *data, const size_t *indices,
                           size_t count) {
  size_t correct = 0;
  load_weights(run);
  for (size_t first = 0; first < count; first += BATCH) {
    const size_t images = count - first < BATCH ? count - first : BATCH;
    fill(batch, data, indices + first, images);
    forward(run, batch->pixels[0], batch->logits[0]);
    for (size_t n = 0; n < images; ++n) {
      int best = 0;
      for (int c = 1; c < CLASSES; ++c)
        best = batch->logits[n][c] > batch->logits[n][best] ? c : best;
      correct += best == batch->labels[n];
    }
  }
  return 100 * (float)correct / (float)count;
}

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One line that rewrites itself on a terminal; five lines per run elsewhere. */
static void show_progress(Precision precision, int step, int steps, float loss, double elapsed) {
  const bool terminal = isatty(STDOUT_FILENO);
  if (!terminal && step * 5 / steps == (step - 1) * 5 / steps) return;
  printf("%s%-12s %3d %%   loss %.4f   %.0f steps/s%s", terminal ? "\r" : "", names[precision],
         100 * step / steps, loss, step / elapsed, terminal && step < steps ? "    " : "\n");
  fflush(stdout);
}

static Result train(Precision precision, const Dataset *data, const size_t *split) {
  const size_t train_count = data->count * 4 / 5, batches = train_count / BATCH;
  const int steps = EPOCHS * (int)batches;
  Result result = {0};
  Run *run = start_run(precision);
  Batch *batch = allocate(sizeof *batch);
  size_t *order = allocate(train_count * sizeof *order);
  memcpy(order, split, train_count * sizeof *order);

  const double start = seconds();
  for (int step = 1; step <= steps; ++step) {
    const size_t position = (size_t)(step - 1) % batches;
    if (position == 0) {
      shuffle(order, train_count, &run->random);
      result.loss = 0;
    }
    fill(batch, data, order + position * BATCH, BATCH);
    const float rate = 4e-3f * (1 - (float)(step - 1) / (float)steps);
    const float loss = train_step(run, batch, rate, step);
    result.loss += loss / (float)batches;
    show_progress(precision, step, steps, loss, seconds() - start);
  }
  result.step_ms = 1e3 * (seconds() - start) / steps;
  result.accuracy = test_accuracy(run, batch, data, split + train_count, data->count - train_count);
  free(order);
  free(batch);
  end_run(run);
  return result;
}

int main(int argc, char **argv) {
  const Dataset data = read_dataset(argc > 1 ? argv[1] : "digits.csv");
  size_t *split = allocate(data.count * sizeof *split);
  for (size_t i = 0; i < data.count; ++i) split[i] = i;
  uint64_t random = 2;
  shuffle(split, data.count, &random);
  const char *backend;
  CALL(backend = nvtex_backend_name());
  printf("nvte %s, backend %s, %zu images\n", nvtex_version(), backend, data.count);

  Result results[NUM_PRECISIONS];
  float lowest = 100, highest = 0;
  for (int p = 0; p < NUM_PRECISIONS; ++p) {
    results[p] = train((Precision)p, &data, split);
    lowest = fminf(lowest, results[p].accuracy);
    highest = fmaxf(highest, results[p].accuracy);
  }
  printf("\nrun            loss   test accuracy   time per step\n");
  for (int p = 0; p < NUM_PRECISIONS; ++p) {
    printf("%-12s %.4f        %5.2f %%      %7.3f ms\n", names[p], results[p].loss,
           results[p].accuracy, results[p].step_ms);
  }
  const bool learned = lowest > 95, agree = highest - lowest <= 1.5f;
  printf("\nall above 95 %%: %s; all within 1.5 points: %s\n", learned ? "yes" : "NO",
         agree ? "yes" : "NO");
  free(data.pixels);
  free(data.labels);
  free(split);
  return learned && agree ? EXIT_SUCCESS : EXIT_FAILURE;
}
