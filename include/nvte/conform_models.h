// Random cases of operators of models for `nvte/conform.h`: losses, embeddings, tokens that are
// drawn, and casts that are prepared for products of experts. What they should give is computed
// here, in double.
#ifndef NVTE_CONFORM_MODELS_H
#define NVTE_CONFORM_MODELS_H

#include "nvte/conform_products.h"

// ---- cross_entropy, combine_cross_entropy, total_loss

enum { L_LOGITS, L_TARGETS, L_LOSS, L_LSE, L_GRAD, L_PARTIALS, L_OUT, L_TOTAL, L_COUNT };

enum ConformLoss {
  LOSS_FORWARD,
  LOSS_PARTIAL,
  LOSS_BACKWARD,
  LOSS_FUSED,
  LOSS_COMBINE,
  LOSS_TOTAL
};

enum { CONFORM_IGNORED = -100 };

static inline NVTETensor conform_vector_if(ConformRun *run, int buffer) {
  return run->c->buffers[buffer].count > 0 ? conform_vector(run, buffer) : NULL;
}

static inline void conform_call_loss(const ConformCase *c, ConformRun *run) {
  const size_t tokens = c->n[1], columns = c->n[2];
  NVTEXCrossEntropyOptions options;
  nvtex_cross_entropy_options_init(&options, sizeof options);
  options.vocabulary_start = c->n[3];
  options.vocabulary_size = c->n[4];
  options.label_smoothing = c->f[0];
  options.z_loss = c->f[1];
  options.reduction = (NVTEXLossReduction)c->n[5];
  cudaStream_t stream = run->stream;
  NVTETensor targets = conform_vector(run, L_TARGETS), loss = conform_vector_if(run, L_LOSS);
  NVTETensor lse = conform_vector_if(run, L_LSE), grad = conform_vector_if(run, L_GRAD);
  NVTETensor total = conform_vector_if(run, L_TOTAL), count = conform_vector_if(run, L_COUNT);
  NVTETensor logits = NULL;
  if (c->n[0] != LOSS_COMBINE) logits = conform_matrix_of(run, L_LOGITS, tokens, columns);
  switch ((enum ConformLoss)c->n[0]) {
    case LOSS_PARTIAL:
      nvtex_cross_entropy_partial(logits, targets, conform_matrix_of(run, L_PARTIALS, 4, tokens),
                                  &options, stream);
      break;
    case LOSS_BACKWARD:
      nvtex_cross_entropy_backward(logits, targets, lse, grad, NULL,
                                   conform_matrix_of(run, L_OUT, tokens, columns), &options,
                                   stream);
      break;
    case LOSS_FUSED:
      nvtex_cross_entropy_forward_backward(logits, targets, grad, loss, lse, NULL, NULL, &options,
                                           stream);
      break;
    case LOSS_COMBINE:
      nvtex_cross_entropy_combine(
          conform_tensor(run, L_PARTIALS, CONFORM_SHAPE(c->n[6], 4, tokens)), targets, loss, lse,
          NULL, NULL, &options, stream);
      break;
    default:
      nvtex_cross_entropy_forward(logits, targets, loss, lse, total, count, &options, stream);
  }
}

static inline bool conform_make_loss_case(ConformCase *c, ConformRandom *random, size_t index,
                                          enum ConformLoss kind) {
  const bool partial = kind == LOSS_PARTIAL, backward = kind == LOSS_BACKWARD;
  const bool fused = kind == LOSS_FUSED, combine = kind == LOSS_COMBINE, sum = kind == LOSS_TOTAL;
  const NVTEDType dtype = combine ? kNVTEFloat32 : conform_high_of(index);
  const size_t tokens = c->n[1] = conform_within(random, 1, 20);
  const size_t columns = c->n[2] = conform_within(random, 1, index % 2 ? 1500 : 40);
  c->n[0] = kind;
  c->n[6] = combine ? conform_within(random, 1, 4) : 1;
  const size_t here = columns * c->n[6];
  const size_t start = c->n[3] = partial || backward ? conform_within(random, 0, 50) : 0;
  const size_t all = c->n[4] =
      partial || backward ? start + columns + conform_within(random, 0, 50) : here;
  c->n[5] = sum ? index % 2 ? NVTEX_LOSS_SUM : NVTEX_LOSS_MEAN : NVTEX_LOSS_NONE;
  c->f[0] = conform_chance(random, 40) ? 0.1f : 0;
  c->f[1] = conform_chance(random, 40) ? 0.01f : 0;
  const double smoothing = (double)c->f[0], z = (double)c->f[1];
  const size_t n = tokens * here;
  if (fused) {
    conform_inout(c, random, "logits", dtype, n, -4, 4, 8);
  } else {
    conform_input(c, random, "logits", dtype, n, -4, 4);
  }
  conform_integers(c, random, "targets", CONFORM_INPUT, index / 2 % 2 ? kNVTEInt32 : kNVTEInt64,
                   tokens, 0, (int64_t)all - 1);
  for (size_t t = 0; t < tokens; t++) {
    if (conform_chance(random, 20)) conform_put(c, L_TARGETS, t, CONFORM_IGNORED);
  }
  const bool losses = !partial && !backward;
  conform_sums(c, random, "loss", kNVTEFloat32, losses ? tokens : 0, here, 60);
  if (backward) {
    conform_input(c, random, "logsumexp", kNVTEFloat32, tokens, 4, 8);
  } else {
    conform_sums(c, random, "logsumexp", kNVTEFloat32, losses ? tokens : 0, here, 20);
  }
  conform_input(c, random, "grad_loss", kNVTEFloat32, backward || fused ? tokens : 0, -2, 2);
  if (combine) {
    conform_input(c, random, "partials", kNVTEFloat32, 4 * tokens * c->n[6], 0, 1);
  } else {
    conform_sums(c, random, "partials", kNVTEFloat32, partial ? 4 * tokens : 0, here,
                 4 * (double)here);
  }
  conform_sums(c, random, "grad_logits", dtype, backward ? n : 0, 4, 8);
  conform_sums(c, random, "total", kNVTEFloat32, sum, here, 60 * (double)tokens);
  conform_add(c, "count", CONFORM_EXACT, kNVTEFloat32, sum, 0);
  double *loss = conform_expect(c, L_LOSS), *partials = conform_expect(c, L_PARTIALS);
  double *lse = backward ? NULL : conform_expect(c, L_LSE), *total = conform_expect(c, L_TOTAL);
  double *grads = fused || backward ? conform_expect(c, fused ? L_LOGITS : L_OUT) : NULL;
  double sum_of_losses = 0, counted = 0;
  for (size_t t = 0; t < tokens; t++) {
    const double target =
        conform_number(c->buffers[L_TARGETS].dtype, c->buffers[L_TARGETS].image, t);
    const bool ignored = target < 0;
    double most = -INFINITY, exps = 0, plain = 0, hit = 0;
    for (size_t v = 0; v < here; v++) {
      const double x = conform_element(c, L_LOGITS, t * here + v);
      most = fmax(most, x);
      plain += x;
      if (target == (double)(start + v)) hit = x;
    }
    for (size_t v = 0; v < here; v++)
      exps += exp(conform_element(c, L_LOGITS, t * here + v) - most);
    const double l = backward ? conform_element(c, L_LSE, t) : most + log(exps);
    const double own = l - (1 - smoothing) * hit - smoothing / (double)all * plain + z * l * l;
    const double numbers[] = {most, exps, hit, plain};
    if (losses) loss[t] = ignored ? 0 : own, lse[t] = ignored ? 0 : l;
    if (!ignored) sum_of_losses += own, counted++;
    for (size_t i = 0; i < 4 && partial; i++) {
      partials[i * tokens + t] = !ignored ? numbers[i] : i == 0 ? -INFINITY : 0;
    }
    for (size_t v = 0; v < here && grads; v++) {
      const double x = conform_element(c, L_LOGITS, t * here + v);
      const double at_target = target == (double)(start + v) ? 1 - smoothing : 0;
      const double d = exp(x - l) * (1 + 2 * z * l) - at_target - smoothing / (double)all;
      grads[t * here + v] = ignored ? 0 : conform_element(c, L_GRAD, t) * d;
    }
    // Of each rank the same four numbers, of its columns; of ignored targets none.
    for (size_t rank = 0; rank < c->n[6] && combine; rank++) {
      double m = -INFINITY, e = 0, h = 0, p = 0;
      for (size_t v = rank * columns; v < (rank + 1) * columns; v++) {
        m = fmax(m, conform_element(c, L_LOGITS, t * here + v));
      }
      for (size_t v = rank * columns; v < (rank + 1) * columns; v++) {
        const double x = conform_element(c, L_LOGITS, t * here + v);
        e += exp(x - m);
        p += x;
        if (target == (double)v) h = x;
      }
      const double of_rank[] = {m, e, h, p};
      for (size_t i = 0; i < 4; i++) {
        conform_store(kNVTEFloat32, c->buffers[L_PARTIALS].image, (rank * 4 + i) * tokens + t,
                      of_rank[i]);
      }
    }
  }
  const bool mean = c->n[5] == NVTEX_LOSS_MEAN;
  if (sum) total[0] = mean ? sum_of_losses / fmax(counted, 1) : sum_of_losses;
  if (sum) conform_expect(c, L_COUNT)[0] = counted;
  conform_align(c);
  c->call = conform_call_loss;
  snprintf(c->what, sizeof c->what, "%s, %zu tokens, %zu columns of %zu%s%s%s",
           conform_dtype_name(dtype), tokens, columns, all, smoothing > 0 ? ", smoothing" : "",
           z > 0 ? ", z-loss" : "", mean ? ", mean" : "");
  return true;
}

static inline bool conform_make_cross_entropy(ConformCase *c, ConformRandom *random,
                                              const char *variant, size_t index) {
  static const char *const names[] = {"forward", "partial", "backward", "fused"};
  for (int i = 0; i < 4; i++) {
    if (!conform_is(variant, names[i])) continue;
    return conform_make_loss_case(c, random, index, (enum ConformLoss)i);
  }
  return false;
}

static inline bool conform_make_combine(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  return !*variant && conform_make_loss_case(c, random, index, LOSS_COMBINE);
}

static inline bool conform_make_total(ConformCase *c, ConformRandom *random, const char *variant,
                                      size_t index) {
  return !*variant && conform_make_loss_case(c, random, index, LOSS_TOTAL);
}

// ---- embedding, row_keys, sum_rows

enum { T_TOKENS, T_POSITIONS, T_WEIGHT, T_PLACES, T_OUT, T_WRONG };

static inline void conform_call_embedding(const ConformCase *c, ConformRun *run) {
  const size_t count = c->n[0], cols = c->n[1], rows = c->n[2], places = c->n[3];
  NVTETensor tokens = conform_vector(run, T_TOKENS),
             positions = conform_vector_if(run, T_POSITIONS);
  NVTETensor weight = conform_matrix_of(run, T_WEIGHT, rows, cols), of_places = NULL;
  if (places > 0) of_places = conform_matrix_of(run, T_PLACES, places, cols);
  NVTETensor output = conform_matrix_of(run, T_OUT, count, cols);
  if (!c->flags[0]) {
    nvtex_embedding_forward(tokens, weight, positions, of_places, output,
                            conform_vector_if(run, T_WRONG), c->f[0], c->n[4], c->n[5], c->n[6],
                            run->stream);
    return;
  }
  NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  for (int call = 0; call < 2; call++) {
    nvtex_embedding_backward(tokens, positions, output, weight, of_places, c->flags[1], c->f[0],
                             c->n[4], c->n[5], workspace, run->stream);
    if (call == 0) conform_workspace(run, workspace);
  }
}

static inline bool conform_make_embedding_case(ConformCase *c, ConformRandom *random, size_t index,
                                               bool backward) {
  const NVTEDType dtype = conform_high_of(index), out = conform_high_of(index / 3);
  const NVTEDType ids = index % 2 ? kNVTEInt32 : kNVTEInt64;
  const size_t count = c->n[0] = conform_within(random, 1, 60);
  const size_t cols = c->n[1] = conform_chance(random, 50) ? 8 * conform_within(random, 1, 24)
                                                           : conform_within(random, 1, 60);
  const size_t rows = c->n[2] = conform_within(random, 1, 40);
  const size_t places = c->n[3] = conform_chance(random, 50) ? conform_within(random, 1, 30) : 0;
  const size_t start = c->n[5] = conform_chance(random, 30) ? conform_within(random, 1, 20) : 0;
  const size_t all = c->n[6] = start + rows + conform_within(random, 0, 10);
  const bool given = places > 0 && conform_chance(random, 50);
  c->n[4] = conform_chance(random, 50) ? conform_within(random, 1, count) : 0;
  c->flags[0] = backward;
  c->flags[1] = backward && conform_chance(random, 50);
  c->f[0] = conform_chance(random, 50) ? 1 : (float)conform_uniform(random, 0.5, 2);
  const double scale = (double)c->f[0];
  // A few tokens and positions are none.
  conform_integers(c, random, "tokens", CONFORM_INPUT, ids, count, 0, (int64_t)all - 1);
  if (conform_chance(random, 30)) conform_put(c, T_TOKENS, 0, (int64_t)all);
  conform_integers(c, random, "positions", CONFORM_INPUT, ids, given ? count : 0, 0,
                   (int64_t)places);
  if (backward) {
    conform_inout(c, random, "grad_weight", dtype, rows * cols, -1, 1, 0);
    conform_inout(c, random, "grad_position_weight", dtype, places * cols, -1, 1, 0);
    conform_input(c, random, "grad_output", out, count * cols, -1, 1);
  } else {
    conform_input(c, random, "weight", dtype, rows * cols, -1, 1);
    conform_input(c, random, "position_weight", dtype, places * cols, -1, 1);
    conform_sums(c, random, "output", out, count * cols, 2, 4);
    conform_integers(c, random, "wrong", CONFORM_EXACT, kNVTEInt32, conform_chance(random, 60), 3,
                     3);
  }
  const size_t period = c->n[4] > 0 ? c->n[4] : count;
  double *expected[2], wrong = 3;
  expected[0] = conform_expect(c, backward ? T_WEIGHT : T_OUT);
  expected[1] = backward ? conform_expect(c, T_PLACES) : NULL;
  for (int i = 0; i < 2 && backward; i++) {
    double *magnitudes = conform_magnitudes(c, T_WEIGHT + i);
    ConformBuffer *b = &c->buffers[T_WEIGHT + i];
    b->terms = count + 1;
    for (size_t e = 0; e < b->count; e++) {
      const double x = c->flags[1] ? conform_element(c, T_WEIGHT + i, e) : 0;
      expected[i][e] = x;
      magnitudes[e] = fabs(x) + scale;
    }
  }
  for (size_t t = 0; t < count; t++) {
    const size_t token = conform_count_at(c, T_TOKENS, t);
    const size_t place = given ? conform_count_at(c, T_POSITIONS, t) : t % period;
    const bool here = token >= start && token < start + rows;
    const bool placed = places > 0 && place < places;
    wrong += (token >= all) + (places > 0 && !placed);
    for (size_t j = 0; j < cols; j++) {
      if (backward) {
        const double g = scale * conform_element(c, T_OUT, t * cols + j);
        // Only tokens have a scale.
        if (here) expected[0][(token - start) * cols + j] += g;
        if (here) c->buffers[T_WEIGHT].magnitudes[(token - start) * cols + j] += fabs(g);
        if (placed) expected[1][place * cols + j] += g / scale;
        if (placed) c->buffers[T_PLACES].magnitudes[place * cols + j] += fabs(g / scale);
      } else {
        const double x =
            here ? scale * conform_element(c, T_WEIGHT, (token - start) * cols + j) : 0;
        const double y = placed ? conform_element(c, T_PLACES, place * cols + j) : 0;
        expected[0][t * cols + j] = x + y;
      }
    }
  }
  if (!backward && c->buffers[T_WRONG].count > 0) conform_expect(c, T_WRONG)[0] = wrong;
  conform_align(c);
  c->call = conform_call_embedding;
  snprintf(c->what, sizeof c->what, "%s, %s, %zu tokens, %zu rows of %zu, %zu positions%s",
           conform_dtype_name(dtype), conform_dtype_name(out), count, rows, cols, places,
           c->flags[1] ? ", added" : "");
  return true;
}

static inline bool conform_make_embedding(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  return !*variant && conform_make_embedding_case(c, random, index, false);
}

static inline bool conform_make_embedding_grad(ConformCase *c, ConformRandom *random,
                                               const char *variant, size_t index) {
  return !*variant && conform_make_embedding_case(c, random, index, true);
}

// ---- sample_tokens

// Words 0 and 1 of Philox 4x32-10.
static inline uint64_t conform_philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t x[4] = {(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)};
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
    const uint32_t y[4] = {(uint32_t)(b >> 32) ^ x[1] ^ k0, (uint32_t)b,
                           (uint32_t)(a >> 32) ^ x[3] ^ k1, (uint32_t)a};
    memcpy(x, y, sizeof x);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x[0] | (uint64_t)x[1] << 32;
}

static inline void conform_call_sample(const ConformCase *c, ConformRun *run) {
  nvtex_sample_tokens(conform_matrix_of(run, 0, c->n[0], c->n[1]), conform_vector(run, 1),
                      conform_vector(run, 2), c->f[0], c->n[2], c->f[1], run->stream);
}

// The token of a row; negative if rounding might decide.
static inline int64_t conform_sample(const ConformCase *c, size_t row, size_t top_k) {
  const size_t cols = c->n[1];
  const double temperature = (double)c->f[0], top_p = (double)c->f[1];
  double most = -INFINITY, kept = 0, before = 0, all = 0;
  for (size_t i = 0; i < cols; i++) most = fmax(most, conform_element(c, 0, row * cols + i));
  double *weights = conform_alloc(cols * sizeof *weights);
  bool *taken = conform_alloc(cols * sizeof *taken);
  int64_t token = -1;
  for (size_t i = 0; i < cols; i++) {
    weights[i] = floor(exp((conform_element(c, 0, row * cols + i) - most) / temperature) * 0x1p31);
  }
  size_t *order = conform_alloc(cols * sizeof *order);
  for (size_t k = 0; k < top_k; k++) {
    size_t best = cols;
    for (size_t i = 0; i < cols; i++) {
      const double x = conform_element(c, 0, row * cols + i);
      if (!taken[i] && (best == cols || x > conform_element(c, 0, row * cols + best))) best = i;
    }
    taken[order[k] = best] = true;
    all += weights[best];
  }
  // How far sums of weights may be off by the rounding of exponentials in float32.
  const double slack = 1024.0 * (double)cols, wanted = ceil(top_p * all);
  bool doubtful = false;
  for (size_t k = 0; k < top_k; k++) {
    taken[order[k]] = k == 0 || before < wanted;
    if (taken[order[k]]) kept += weights[order[k]];
    before += weights[order[k]];
    doubtful = doubtful || (top_p < 1 && fabs(before - wanted) < slack);
  }
  const uint64_t r =
      conform_philox((uint64_t)conform_count_at(c, 2, 0), (uint64_t)conform_count_at(c, 2, 1), row);
  const double drawn = (double)r * 0x1p-64 * kept;
  before = 0;
  for (size_t i = 0; i < cols && token < 0; i++) {
    if (!taken[i]) continue;
    before += weights[i];
    doubtful = doubtful || fabs(before - drawn) < slack;
    if (before > drawn) token = (int64_t)i;
  }
  free(weights);
  free(taken);
  free(order);
  return doubtful && top_k > 1 ? -1 : token;
}

static inline bool conform_make_sample(ConformCase *c, ConformRandom *random, const char *variant,
                                       size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t rows = c->n[0] = conform_within(random, 1, 5);
  const size_t cols = c->n[1] = conform_within(random, 1, index % 2 ? 1000 : 30);
  const bool greedy = conform_chance(random, 20);
  c->n[2] = conform_chance(random, 50) ? 0 : conform_within(random, 1, cols);
  c->f[0] = greedy ? 0 : (float)conform_uniform(random, 0.5, 2);
  c->f[1] = conform_chance(random, 50) ? 1 : (float)conform_uniform(random, 0.1, 0.95);
  conform_input(c, random, "logits", dtype, rows * cols, -4, 4);
  conform_exact(c, "tokens", kNVTEInt32, rows);
  conform_integers(c, random, "rng_state", CONFORM_INPUT, kNVTEInt64, 2, 0, (int64_t)1 << 40);
  int64_t tokens[5];
  bool known = true;
  for (size_t row = 0; row < rows; row++) {
    // Without a temperature the greatest logit is taken, of equal ones the first.
    tokens[row] = conform_sample(c, row, greedy ? 1 : c->n[2] > 0 ? c->n[2] : cols);
    known = known && tokens[row] >= 0;
  }
  double *expected = known ? conform_expect(c, 1) : NULL;
  for (size_t row = 0; row < rows && known; row++) expected[row] = (double)tokens[row];
  conform_align(c);
  c->call = conform_call_sample;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu, top_k %zu, top_p %g, temperature %g",
           conform_dtype_name(dtype), rows, cols, c->n[2], (double)c->f[1], (double)c->f[0]);
  return true;
}

// ---- requantize

// Where a code is in tiles of 128 lines and 4 blocks.
static inline size_t conform_tile_at(size_t line, size_t block, size_t blocks) {
  return (line / 128 * (blocks / 4) + block / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 +
         block % 4;
}

static inline void conform_call_requantize(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  NVTETensor input = conform_empty(run, NVTE_MXFP8_1D_SCALING);
  NVTETensor output = conform_empty(run, NVTE_MXFP8_1D_SCALING);
  conform_set(run, input, kNVTERowwiseData, 0, CONFORM_SHAPE(rows, cols));
  conform_set(run, input, kNVTERowwiseScaleInv, 1, CONFORM_SHAPE(rows, cols / 32));
  conform_set(run, output, kNVTEColumnwiseData, 2, CONFORM_SHAPE(rows, cols));
  conform_set(run, output, kNVTERowwiseScaleInv, 3, CONFORM_SHAPE(rows, cols / 32));
  conform_set(run, output, kNVTEColumnwiseScaleInv, 4, CONFORM_SHAPE(rows / 32, cols));
  NVTETensor none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  nvte_group_requantize(input, output, conform_vector(run, 5),
                        c->flags[0] ? conform_matrix_of(run, 6, rows, cols) : none, NULL,
                        run->stream);
}

static inline bool conform_make_requantize(ConformCase *c, ConformRandom *random,
                                           const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType in = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  const size_t groups = conform_within(random, 1, 3),
               cols = c->n[1] = 128 * conform_within(random, 1, 2);
  size_t rows_of[3], rows = 128 * conform_within(random, 0, 1);
  for (size_t g = 0; g < groups; g++) {
    rows += rows_of[g] = 128 * conform_within(random, g > 0 ? 0 : 1, 2);
  }
  c->n[0] = rows;
  c->mode = NVTE_MXFP8_1D_SCALING;
  c->flags[0] = conform_chance(random, 50);
  const size_t blocks = cols / 32, codes = rows * blocks;
  conform_input(c, random, "input", in, rows * cols, -4, 4);
  conform_integers(c, random, "scale_inv", CONFORM_INPUT, kNVTEByte, codes, 117, 133);
  conform_exact(c, "column-wise data", kNVTEFloat8E4M3, rows * cols);
  conform_exact(c, "row scales", kNVTEByte, codes);
  conform_exact(c, "column scales", kNVTEByte, codes);
  conform_add(c, "tensor_offsets", CONFORM_INPUT, kNVTEInt64, groups + 1, 0);
  conform_exact(c, "dequantized", kNVTEBFloat16, c->flags[0] ? rows * cols : 0);
  double *data = conform_expect(c, 2), *of_rows = conform_expect(c, 3);
  double *of_cols = conform_expect(c, 4), *plain = conform_expect(c, 6);
  unsigned char rounded[2];
  size_t first = 0;
  for (size_t g = 0; g < groups; first += rows_of[g++]) {
    conform_put(c, 5, g, (int64_t)(first * cols));
    conform_put(c, 5, g + 1, (int64_t)((first + rows_of[g]) * cols));
    for (size_t row = first; row < first + rows_of[g]; row++) {
      for (size_t block = 0; block < blocks; block++) {
        of_rows[conform_tile_at(row, block, blocks)] = conform_count_at(c, 1, row * blocks + block);
      }
    }
    for (size_t begin = first; begin < first + rows_of[g]; begin += 32) {
      for (size_t col = 0; col < cols; col++) {
        double values[32], amax = 0;
        for (size_t i = 0; i < 32; i++) {
          const size_t at = (begin + i) * cols + col;
          values[i] = ldexp(conform_element(c, 0, at), c->buffers[1].image[at / 32] - 127);
          amax = fmax(amax, fabs(values[i]));
        }
        // The power of two above the largest magnitude over the largest code.
        int exponent;
        if (frexp(amax / 448, &exponent) == 0.5) exponent--;
        const int code = amax > 0 ? exponent + 127 : 0;
        of_cols[first * blocks + conform_tile_at(col, (begin - first) / 32, rows_of[g] / 32)] =
            code;
        for (size_t i = 0; i < 32; i++) {
          const size_t at = (begin + i) * cols + col;
          conform_store(kNVTEFloat8E4M3, rounded, 0, ldexp(values[i], 127 - code));
          data[at] = conform_value(kNVTEFloat8E4M3, rounded, 0);
          if (!c->flags[0]) continue;
          conform_store(kNVTEBFloat16, rounded, 0, values[i]);
          plain[at] = conform_value(kNVTEBFloat16, rounded, 0);
        }
      }
    }
  }
  conform_align(c);
  c->call = conform_call_requantize;
  snprintf(c->what, sizeof c->what, "%s, %zu groups of %zux%zu%s", conform_dtype_name(in), groups,
           first, cols, c->flags[0] ? ", dequantized" : "");
  return true;
}

// ---- nvfp4_quantize with a Hadamard transform

enum { H_INPUT, H_MATRIX, H_ROWS, H_ROW_SCALES, H_ROW_AMAX, H_COLS, H_COL_SCALES, H_COL_AMAX };

static inline void conform_call_nvfp4_hadamard(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  NVTETensor input = conform_matrix_of(run, H_INPUT, rows, cols);
  NVTETensor matrix = conform_matrix_of(run, H_MATRIX, 16, 16);
  NVTETensor output = conform_empty(run, NVTE_NVFP4_1D_SCALING);
  if (c->n[2] == 0) {
    // The function for columns alone writes what the tensor has row-wise.
    conform_set_memory(output, kNVTERowwiseData, run->ptr[H_COLS], kNVTEFloat4E2M1,
                       CONFORM_SHAPE(cols, rows));
    conform_set(run, output, kNVTERowwiseScaleInv, H_COL_SCALES, CONFORM_SHAPE(cols, rows / 16));
    conform_set(run, output, kNVTEAmax, H_COL_AMAX, CONFORM_SHAPE(1));
    nvte_hadamard_transform_cast_fusion_columnwise(input, output, matrix, NULL, run->stream);
    return;
  }
  conform_set_memory(output, kNVTERowwiseData, run->ptr[H_ROWS], kNVTEFloat4E2M1,
                     CONFORM_SHAPE(rows, cols));
  conform_set(run, output, kNVTERowwiseScaleInv, H_ROW_SCALES, CONFORM_SHAPE(rows, cols / 16));
  conform_set(run, output, kNVTEAmax, H_ROW_AMAX, CONFORM_SHAPE(1));
  conform_set_memory(output, kNVTEColumnwiseData, run->ptr[H_COLS], kNVTEFloat4E2M1,
                     CONFORM_SHAPE(cols, rows));
  conform_set(run, output, kNVTEColumnwiseScaleInv, H_COL_SCALES, CONFORM_SHAPE(cols, rows / 16));
  conform_set(run, output, kNVTEColumnwiseAmax, H_COL_AMAX, CONFORM_SHAPE(1));
  if (c->n[2] == 1) {
    nvte_quantize_with_hadamard_transform(input, output, matrix, NULL, run->stream);
    return;
  }
  NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  nvte_group_hadamard_transform_cast_fusion(input, &output, matrix, &rows, 1, NULL, workspace,
                                            run->stream);
}

// Casts one block to NVFP4 as the comments on its arguments define it, each operation rounded to
// float32: the scale and the codes.
static inline void conform_fp4_block(const double *values, float amax, double *scale,
                                     double *codes) {
  const float global = 6.0f * 448.0f / amax;
  double most = 0;
  for (int i = 0; i < 16; i++) most = fmax(most, fabs(values[i]));
  unsigned char byte;
  const float wanted = (float)most * (global * (1.0f / 6.0f));
  conform_store(kNVTEFloat8E4M3, &byte, 0, (double)wanted);
  const float s = (float)conform_value(kNVTEFloat8E4M3, &byte, 0);
  const float product = s * (1.0f / global);
  const float factor = s > 0 ? 1.0f / product : 0x1.fffffep127f;
  *scale = (double)s;
  for (int i = 0; i < 16; i++) {
    const float y = (float)values[i] * factor;
    const double size = fabs((double)y), step = size < 2 ? 0.5 : size < 4 ? 1 : 2;
    const double x = fmin(nearbyint(size / step) * step, 6);
    unsigned code = 0;
    while (conform_fp4(code) < x) code++;
    codes[i] = signbit(y) ? code | 8 : code;
  }
}

// What a direction should be: blocks of 16 elements of lines, two codes in a byte.
static inline void conform_expect_fp4(ConformCase *c, int buffer, size_t line, size_t block,
                                      size_t blocks, const double *values, float amax) {
  double scale, codes[16];
  conform_fp4_block(values, amax, &scale, codes);
  c->buffers[buffer + 1].expected[line * blocks + block] = scale;
  for (size_t i = 0; i < 8; i++) {
    c->buffers[buffer].expected[(line * blocks + block) * 8 + i] =
        codes[2 * i] + 16 * codes[2 * i + 1];
  }
}

static inline bool conform_make_nvfp4_any(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  static const char *const names[] = {"hadamard_columns", "hadamard", "hadamard_group"};
  while (c->n[2] < 3 && !conform_is(variant, names[c->n[2]])) c->n[2]++;
  if (c->n[2] == 3) {
    c->n[2] = 0;
    return conform_make_nvfp4_quantize(c, random, variant, index);
  }
  const bool both = c->n[2] > 0;
  const size_t round = c->n[2] == 2 ? 128 : 16;
  const size_t rows = c->n[0] = round * conform_within(random, 1, 192 / round);
  const size_t cols = c->n[1] = round * conform_within(random, 1, 192 / round);
  c->mode = NVTE_NVFP4_1D_SCALING;
  conform_add(c, "input", CONFORM_INPUT, kNVTEBFloat16, rows * cols, 0);
  conform_add(c, "hadamard_matrix", CONFORM_INPUT, kNVTEBFloat16, 256, 0);
  // Multiples of 1/8 and of 1/4, so that sums of products are exact in float32.
  for (size_t i = 0; i < rows * cols; i++) {
    conform_store(kNVTEBFloat16, c->buffers[H_INPUT].image, i,
                  (double)conform_within(random, 0, 32) / 8 - 2);
  }
  for (size_t i = 0; i < 256; i++) {
    conform_store(kNVTEBFloat16, c->buffers[H_MATRIX].image, i,
                  conform_chance(random, 50) ? 0.25 : -0.25);
  }
  conform_exact(c, "row-wise data", kNVTEByte, both ? rows * cols / 2 : 0);
  conform_exact(c, "row scales", kNVTEFloat8E4M3, both ? rows * cols / 16 : 0);
  conform_float(c, "amax", CONFORM_INPUT, 2);
  conform_exact(c, "column-wise data", kNVTEByte, rows * cols / 2);
  conform_exact(c, "column scales", kNVTEFloat8E4M3, rows * cols / 16);
  conform_float(c, "amax of columns", CONFORM_INPUT, (float)conform_uniform(random, 8, 9));
  for (int i = 0; i < 2; i++) {
    conform_expect(c, H_ROWS + i);
    conform_expect(c, H_COLS + i);
  }
  double values[16];
  for (size_t line = 0; line < rows && both; line++) {
    for (size_t block = 0; block < cols / 16; block++) {
      for (size_t i = 0; i < 16; i++) {
        values[i] = conform_element(c, H_INPUT, line * cols + block * 16 + i);
      }
      conform_expect_fp4(c, H_ROWS, line, block, cols / 16, values, 2);
    }
  }
  const float amax = (float)conform_element(c, H_COL_AMAX, 0);
  for (size_t line = 0; line < cols; line++) {
    for (size_t block = 0; block < rows / 16; block++) {
      for (size_t i = 0; i < 16; i++) {
        double sum = 0;
        for (size_t k = 0; k < 16; k++) {
          sum += conform_element(c, H_INPUT, (block * 16 + k) * cols + line) *
                 conform_element(c, H_MATRIX, k * 16 + i);
        }
        unsigned char rounded[2];
        conform_store(kNVTEBFloat16, rounded, 0, sum);
        values[i] = conform_value(kNVTEBFloat16, rounded, 0);
      }
      conform_expect_fp4(c, H_COLS, line, block, rows / 16, values, amax);
    }
  }
  c->call = conform_call_nvfp4_hadamard;
  snprintf(c->what, sizeof c->what, "%zux%zu", rows, cols);
  return true;
}

#endif  // NVTE_CONFORM_MODELS_H
