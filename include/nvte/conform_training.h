// Random cases of operators of training for `nvte/conform.h`: optimizers, dropout, experts,
// recipes, scales of blocks, NVFP4.
#ifndef NVTE_CONFORM_TRAINING_H
#define NVTE_CONFORM_TRAINING_H

#include "nvte/conform_cases.h"

// ---- Buffers

// Values from a range, for a buffer that exists.
static inline void conform_fill(ConformCase *c, ConformRandom *random, int buffer, double low,
                                double high) {
  ConformBuffer *b = &c->buffers[buffer];
  for (size_t e = 0; e < b->count; e++) {
    conform_store(b->dtype, b->image, e, conform_uniform(random, low, high));
  }
}

// An output that is read, too. Sums and products of it are at most `absolute`.
static inline int conform_inout(ConformCase *c, ConformRandom *random, const char *name,
                                NVTEDType dtype, size_t count, double low, double high,
                                double absolute) {
  const int i = conform_output(c, random, name, dtype, count);
  conform_fill(c, random, i, low, high);
  c->buffers[i].absolute = absolute;
  return i;
}

// An output of so many terms, whose magnitudes add up to `absolute` at most.
static inline int conform_sums(ConformCase *c, ConformRandom *random, const char *name,
                               NVTEDType dtype, size_t count, size_t terms, double absolute) {
  const int i = conform_output(c, random, name, dtype, count);
  c->buffers[i].terms = terms;
  c->buffers[i].absolute = absolute;
  return i;
}

static inline int conform_exact(ConformCase *c, const char *name, NVTEDType dtype, size_t count) {
  return conform_add(c, name, CONFORM_EXACT, dtype, count, 0);
}

// Memory for the call, whose contents after it mean nothing.
static inline int conform_scratch(ConformCase *c, const char *name, NVTEDType dtype, size_t count) {
  const int i = conform_add(c, name, CONFORM_SCRATCH, dtype, count, 0);
  memset(c->buffers[i].image, 0, c->buffers[i].bytes);
  return i;
}

static inline void conform_put(ConformCase *c, int buffer, size_t i, int64_t value) {
  const size_t size = conform_size(c->buffers[buffer].dtype);
  memcpy(c->buffers[buffer].image + i * size, &value, size);
}

// Integers from a range.
static inline int conform_integers(ConformCase *c, ConformRandom *random, const char *name,
                                   ConformRole role, NVTEDType dtype, size_t count, int64_t least,
                                   int64_t most) {
  const int i = conform_add(c, name, role, dtype, count, 0);
  for (size_t e = 0; e < count; e++) {
    conform_put(c, i, e, least + (int64_t)conform_within(random, 0, (size_t)(most - least)));
  }
  return i;
}

// The numbers below `count` in a random order.
static inline void conform_shuffle(ConformRandom *random, int32_t *numbers, size_t count) {
  for (size_t i = 0; i < count; i++) numbers[i] = (int32_t)i;
  for (size_t i = count; i-- > 1;) {
    const size_t j = conform_within(random, 0, i);
    const int32_t number = numbers[i];
    numbers[i] = numbers[j];
    numbers[j] = number;
  }
}

// A buffer as a tensor of one dimension; null for one that the case does not have.
static inline NVTETensor conform_vector(ConformRun *run, int buffer) {
  if (buffer == CONFORM_NONE) return NULL;
  return conform_tensor(run, buffer, CONFORM_SHAPE(run->c->buffers[buffer].count));
}

static inline NVTETensor conform_matrix_of(ConformRun *run, int buffer, size_t rows, size_t cols) {
  return conform_tensor(run, buffer, CONFORM_SHAPE(rows, cols));
}

static inline bool conform_is(const char *variant, const char *name) {
  return strcmp(variant, name) == 0;
}

// ---- adam, sgd, l2_norm, scale_tensors, scales_from_amax

enum { CONFORM_LISTS = 8, CONFORM_MEMBERS = 2 };

// The buffers of a case in lists: those of list l are `l * members` and following.
typedef struct ConformLists {
  NVTETensor tensors[CONFORM_LISTS][CONFORM_MEMBERS];
  NVTETensor *lists[CONFORM_LISTS];
} ConformLists;

static inline void conform_make_lists(ConformRun *run, ConformLists *l, size_t lists,
                                      size_t members) {
  for (size_t i = 0; i < lists; i++) {
    for (size_t j = 0; j < members; j++) {
      l->tensors[i][j] = conform_vector(run, (int)(i * members + j));
    }
    l->lists[i] = l->tensors[i];
  }
}

static inline void conform_call_adam(const ConformCase *c, ConformRun *run) {
  const size_t lists = c->n[0], members = c->n[1];
  const int32_t mode = c->flags[1], correct = c->flags[2], step = (int32_t)c->n[2];
  const int next = (int)(lists * members);
  const float lr = 0.01f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-6f, decay = c->f[0];
  const NVTEDType fp8 = (NVTEDType)c->n[3];
  cudaStream_t stream = run->stream;
  ConformLists l;
  conform_make_lists(run, &l, lists, members);
  if (c->flags[0]) {
    NVTETensor noop = conform_vector(run, next), rate = conform_vector(run, next + 1);
    NVTETensor steps = conform_vector(run, next + 2), inv_scale = conform_vector(run, next + 3);
    (lists == 5 ? nvte_multi_tensor_adam_capturable_master_cuda
                : nvte_multi_tensor_adam_capturable_cuda)(2048, noop, l.lists, lists, members, rate,
                                                          beta1, beta2, epsilon, steps, mode,
                                                          correct, decay, inv_scale, stream);
    return;
  }
  NVTETensor noop = conform_vector(run, next);
  if (c->flags[3]) {
    nvte_multi_tensor_adam_param_remainder_cuda(2048, noop, l.lists, lists, members, lr, beta1,
                                                beta2, epsilon, step, mode, correct, decay, stream);
  } else if (lists == 8) {
    nvte_multi_tensor_adam_fp8_cuda(2048, noop, l.lists, lists, members, lr, beta1, beta2, epsilon,
                                    step, mode, correct, decay, fp8, stream);
  } else {
    nvte_multi_tensor_adam_cuda(2048, noop, l.lists, lists, members, lr, beta1, beta2, epsilon,
                                step, mode, correct, decay, stream);
  }
}

static inline bool conform_make_adam(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index) {
  const bool master = conform_is(variant, "master"), remainder = conform_is(variant, "remainder");
  const bool fp8 = conform_is(variant, "fp8");
  if (!master && !remainder && !fp8 && !conform_is(variant, "plain")) return false;
  const size_t members = conform_within(random, 1, 2);
  const bool capturable = !remainder && !fp8 && conform_chance(random, 40);
  const NVTEDType g = conform_high_of(index);
  const NVTEDType out = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  const NVTEDType p = fp8 ? out : remainder ? kNVTEBFloat16 : conform_high_of(index / 3);
  const NVTEDType moments = !fp8 && conform_chance(random, 20) ? kNVTEBFloat16 : kNVTEFloat32;
  size_t sizes[2];
  for (size_t t = 0; t < members; t++) {
    sizes[t] = conform_chance(random, 20) ? 1 : conform_within(random, 1, 3000);
  }
  for (size_t t = 0; t < members; t++) {
    if (capturable) {
      conform_inout(c, random, "gradient", g, sizes[t], -1, 1, 8);
    } else {
      conform_input(c, random, "gradient", g, sizes[t], -1, 1);
    }
  }
  for (size_t t = 0; t < members; t++) {
    conform_inout(c, random, "parameter", p, sizes[t], -2, 2, 64);
  }
  for (size_t t = 0; t < members; t++) {
    conform_inout(c, random, "first moment", moments, sizes[t], -1, 1, 8);
  }
  for (size_t t = 0; t < members; t++) {
    conform_inout(c, random, "second moment", moments, sizes[t], 0.01, 1, 64);
  }
  for (size_t t = 0; t < members && (master || fp8); t++) {
    conform_inout(c, random, "master", kNVTEFloat32, sizes[t], -2, 2, 8);
  }
  for (size_t t = 0; t < members && remainder; t++) {
    conform_integers(c, random, "remainder", CONFORM_EXACT, kNVTEInt16, sizes[t], -32768, 32767);
  }
  if (fp8) {
    for (size_t t = 0; t < members; t++) {
      conform_float(c, "scale", CONFORM_INPUT, (float)conform_uniform(random, 1, 16));
    }
    for (size_t t = 0; t < members; t++) {
      const int amax = conform_float(c, "amax", CONFORM_OUTPUT, 0.5f);
      c->buffers[amax].absolute = 8;
    }
    for (size_t t = 0; t < members; t++) conform_float(c, "scale_inv", CONFORM_EXACT, -7);
  }
  const size_t step = conform_within(random, 1, 1000);
  conform_integers(c, random, "noop flag", CONFORM_INPUT, kNVTEInt32, 1, 0,
                   capturable && conform_chance(random, 30));
  if (capturable) {
    conform_float(c, "lr", CONFORM_INPUT, 0.01f);
    conform_integers(c, random, "step", CONFORM_INPUT, kNVTEInt32, 1, (int64_t)step, (int64_t)step);
    conform_float(c, "inv_scale", CONFORM_INPUT, (float)conform_uniform(random, 0.25, 4));
  }
  c->n[0] = fp8 ? 8 : master || remainder ? 5 : 4;
  c->n[1] = members;
  c->n[2] = step;
  c->n[3] = out;
  c->f[0] = conform_chance(random, 50) ? 0.1f : 0;
  c->flags[0] = capturable;
  c->flags[1] = conform_chance(random, 50);
  c->flags[2] = conform_chance(random, 70);
  c->flags[3] = remainder;
  c->call = conform_call_adam;
  snprintf(c->what, sizeof c->what,
           "%s, parameters %s, moments %s, %zu tensors, the first of %zu%s", conform_dtype_name(g),
           conform_dtype_name(p), conform_dtype_name(moments), members, sizes[0],
           capturable ? ", with arguments of the device" : "");
  return true;
}

static inline void conform_call_sgd(const ConformCase *c, ConformRun *run) {
  ConformLists l;
  conform_make_lists(run, &l, c->n[0], c->n[1]);
  nvte_multi_tensor_sgd_cuda(2048, conform_vector(run, (int)(c->n[0] * c->n[1])), l.lists, c->n[0],
                             c->n[1], 0.01f, c->f[0], c->f[1], 0.1f, c->flags[0], c->flags[1],
                             c->flags[2], 0.5f, run->stream);
}

static inline bool conform_make_sgd(ConformCase *c, ConformRandom *random, const char *variant,
                                    size_t index) {
  if (*variant) return false;
  const NVTEDType g = conform_high_of(index);
  const bool copies = index / 3 % 3 == 2;
  const NVTEDType w = !copies && index / 3 % 3 == 1 ? g : kNVTEFloat32;
  const size_t members = conform_within(random, 1, 2), n = conform_within(random, 1, 3000);
  const bool momentum = conform_chance(random, 70);
  for (size_t t = 0; t < members; t++) conform_input(c, random, "gradient", g, n, -1, 1);
  for (size_t t = 0; t < members; t++) conform_inout(c, random, "weight", w, n, -2, 2, 8);
  for (size_t t = 0; t < members; t++) conform_inout(c, random, "momentum", w, n, -1, 1, 8);
  for (size_t t = 0; t < members && copies; t++) {
    const int copy = conform_output(c, random, "copy", index % 2 ? kNVTEFloat16 : kNVTEBFloat16, n);
    c->buffers[copy].absolute = 8;
  }
  conform_integers(c, random, "noop flag", CONFORM_INPUT, kNVTEInt32, 1, 0,
                   conform_chance(random, 20));
  c->n[0] = copies ? 4 : 3;
  c->n[1] = members;
  c->f[0] = momentum ? 0.9f : 0;
  c->f[1] = momentum && conform_chance(random, 30) ? 0.1f : 0;
  c->flags[0] = momentum && c->f[1] == 0 && conform_chance(random, 50);
  c->flags[1] = conform_chance(random, 30);
  c->flags[2] = conform_chance(random, 30);
  c->call = conform_call_sgd;
  snprintf(c->what, sizeof c->what, "%s, weights %s, %zu tensors of %zu%s%s", conform_dtype_name(g),
           conform_dtype_name(w), members, n, copies ? ", copies" : "",
           momentum ? ", momentum" : "");
  return true;
}

static inline void conform_call_l2_norm(const ConformCase *c, ConformRun *run) {
  const size_t members = c->n[0];
  const int next = (int)members;
  ConformLists l;
  conform_make_lists(run, &l, 1, members);
  NVTETensor flag = conform_vector(run, next), output = conform_vector(run, next + 1);
  NVTETensor parts = conform_vector(run, next + 2), ret = conform_vector(run, next + 3);
  NVTETensor each = conform_vector(run, next + 4);
  const int32_t chunks = (int32_t)c->n[1], per_tensor = c->flags[0];
  if (c->flags[1]) {
    nvte_multi_tensor_unscale_l2norm_cuda(2048, flag, l.lists, 1, members, output, parts, ret, each,
                                          conform_vector(run, next + 5), per_tensor, chunks,
                                          run->stream);
  } else {
    nvte_multi_tensor_l2norm_cuda(2048, flag, l.lists, 1, members, output, parts, ret, each,
                                  per_tensor, chunks, run->stream);
  }
}

static inline bool conform_make_l2_norm(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t members = conform_within(random, 1, 2);
  size_t terms = 0;
  for (size_t t = 0; t < members; t++) {
    const size_t n = conform_within(random, 1, 5000);
    conform_input(c, random, "x", dtype, n, -2, 2);
    terms += n;
  }
  c->flags[0] = conform_chance(random, 50);
  c->flags[1] = conform_chance(random, 40);
  c->n[0] = members;
  c->n[1] = 3;
  conform_integers(c, random, "noop flag", CONFORM_EXACT, kNVTEInt32, 1, 0, 0);
  conform_scratch(c, "output", kNVTEFloat32, 320);
  conform_scratch(c, "output_per_tensor", kNVTEFloat32, members * c->n[1]);
  const int ret = conform_output(c, random, "norm", kNVTEFloat32, 1);
  const int each = conform_output(c, random, "norms of the tensors", kNVTEFloat32, members);
  c->buffers[ret].relative = c->buffers[each].relative = 1;
  c->buffers[ret].terms = c->buffers[each].terms = terms;
  if (c->flags[1]) {
    conform_float(c, "inv_scale", CONFORM_INPUT, (float)conform_uniform(random, 0.25, 4));
  }
  c->call = conform_call_l2_norm;
  snprintf(c->what, sizeof c->what, "%s, %zu tensors of %zu elements together%s%s",
           conform_dtype_name(dtype), members, terms, c->flags[0] ? ", norms of each" : "",
           c->flags[1] ? ", inv_scale" : "");
  return true;
}

static inline void conform_call_scale_tensors(const ConformCase *c, ConformRun *run) {
  const int next = (int)(2 * c->n[0]);
  ConformLists l;
  conform_make_lists(run, &l, 2, c->n[0]);
  NVTETensor flag = conform_vector(run, next);
  if (c->flags[0]) {
    nvte_multi_tensor_scale_tensor_cuda(2048, flag, l.lists, 2, c->n[0],
                                        conform_vector(run, next + 1), run->stream);
  } else {
    nvte_multi_tensor_scale_cuda(2048, flag, l.lists, 2, c->n[0], c->f[0], run->stream);
  }
}

static inline bool conform_make_scale_tensors(ConformCase *c, ConformRandom *random,
                                              const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType in = conform_high_of(index), out = conform_high_of(index / 3);
  const size_t members = conform_within(random, 1, 2), n = conform_within(random, 1, 3000);
  const bool wild = conform_chance(random, 20);
  for (size_t t = 0; t < members; t++) {
    if (wild) {
      conform_input_bits(c, random, "x", in, n);
    } else {
      conform_input(c, random, "x", in, n, -2, 2);
    }
  }
  for (size_t t = 0; t < members; t++) {
    c->buffers[conform_output(c, random, "y", out, n)].relative = 1;
  }
  conform_integers(c, random, "is_infinite", CONFORM_EXACT, kNVTEInt32, 1, 0, 0);
  c->flags[0] = conform_chance(random, 50);
  c->f[0] = (float)conform_uniform(random, 0.1, 4);
  if (c->flags[0]) conform_float(c, "scale", CONFORM_INPUT, c->f[0]);
  c->n[0] = members;
  c->call = conform_call_scale_tensors;
  snprintf(c->what, sizeof c->what, "%s to %s, %zu tensors of %zu%s", conform_dtype_name(in),
           conform_dtype_name(out), members, n, wild ? ", any bits" : "");
  return true;
}

static inline void conform_call_scales_from_amax(const ConformCase *c, ConformRun *run) {
  ConformLists l;
  conform_make_lists(run, &l, c->flags[0] ? 2 : 3, c->n[0]);
  if (c->flags[0]) {
    nvte_multi_tensor_compute_scale_inv_e8m0_cuda(2048, l.lists, 2, c->n[0], run->stream);
  } else {
    nvte_multi_tensor_compute_scale_and_scale_inv_cuda(
        2048, conform_vector(run, (int)(3 * c->n[0])), l.lists, 3, c->n[0], 448, c->flags[1],
        c->f[0], run->stream);
  }
}

static inline bool conform_make_scales_from_amax(ConformCase *c, ConformRandom *random,
                                                 const char *variant, size_t index) {
  c->flags[0] = conform_is(variant, "e8m0");
  if (!c->flags[0] && !conform_is(variant, "floats")) return false;
  const size_t members = conform_within(random, 1, 2), n = conform_within(random, 1, 300);
  const NVTEDType dtype = c->flags[0] ? kNVTEBFloat16 : kNVTEFloat32;
  for (size_t t = 0; t < members; t++) {
    const int amax = conform_input(c, random, "amax", dtype, n, 0, 100);
    if (index % 3 == 0) memset(c->buffers[amax].image, 0, conform_size(dtype));
  }
  for (size_t t = 0; t < members; t++) {
    if (c->flags[0]) {
      conform_exact(c, "scale_inv", kNVTEByte, n);
    } else {
      c->buffers[conform_output(c, random, "scale", dtype, n)].relative = 1;
    }
  }
  for (size_t t = 0; t < members && !c->flags[0]; t++) {
    c->buffers[conform_output(c, random, "scale_inv", dtype, n)].relative = 2;
  }
  if (!c->flags[0]) conform_integers(c, random, "noop", CONFORM_INPUT, kNVTEInt32, 1, 0, 0);
  c->n[0] = members;
  c->flags[1] = conform_chance(random, 40);
  c->f[0] = conform_chance(random, 30) ? 0.5f : 0;
  c->call = conform_call_scales_from_amax;
  snprintf(c->what, sizeof c->what, "%zu tensors of %zu%s", members, n,
           c->flags[1] && !c->flags[0] ? ", powers of two" : "");
  return true;
}

// ---- dropout

static inline void conform_call_dropout(const ConformCase *c, ConformRun *run) {
  NVTETensor x = conform_matrix_of(run, 0, c->n[0], c->n[1]);
  NVTETensor y = conform_matrix_of(run, 1, c->n[0], c->n[1]), mask = conform_vector(run, 2);
  if (c->flags[0]) {
    nvte_dropout_bwd(x, mask, y, c->f[0], run->stream);
    return;
  }
  NVTETensor state = conform_vector(run, 3);
  if (c->flags[1]) {
    nvtex_bias_dropout_add(x, c->flags[2] ? conform_vector(run, 5) : NULL,
                           conform_matrix_of(run, 4, c->n[0], c->n[1]), y, mask, state, c->f[0],
                           run->stream);
    return;
  }
  if (c->flags[3]) conform_set(run, x, kNVTERowwiseScaleInv, 4, CONFORM_SHAPE(1));
  nvte_dropout_fwd(x, y, mask, state, c->f[0], run->stream);
}

static inline bool conform_make_dropout(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  c->flags[0] = conform_is(variant, "backward");
  if (!c->flags[0] && !conform_is(variant, "forward")) return false;
  const NVTEDType out = conform_high_of(index);
  const bool fp8 = !c->flags[0] && index / 3 % 4 == 3;
  const NVTEDType in = !fp8 ? out : index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  size_t rows, cols;
  conform_matrix(random, &rows, &cols);
  const size_t n = rows * cols;
  conform_input(c, random, c->flags[0] ? "grad_output" : "input", in, n, -2, 2);
  const int y = conform_output(c, random, c->flags[0] ? "grad_input" : "output", out, n);
  c->buffers[y].relative = 2;
  c->buffers[y].absolute = 8;
  if (c->flags[0]) {
    conform_integers(c, random, "mask", CONFORM_INPUT, kNVTEByte, (n + 7) / 8, 0, 255);
  } else {
    conform_exact(c, "mask", kNVTEByte, (n + 7) / 8);
    const int state =
        conform_integers(c, random, "rng_state", CONFORM_INPUT, kNVTEInt64, 2, 0, 1 << 30);
    conform_put(c, state, 1, 4 * (int64_t)conform_within(random, 0, 1000));
  }
  c->flags[1] = !c->flags[0] && !fp8 && conform_chance(random, 40);
  c->flags[2] = conform_chance(random, 60);
  c->flags[3] = fp8;
  if (fp8) conform_float(c, "scale_inv", CONFORM_INPUT, (float)conform_uniform(random, 0.25, 2));
  if (c->flags[1]) {
    conform_input(c, random, "residual", out, n, -2, 2);
    if (c->flags[2]) conform_input(c, random, "bias", out, cols, -1, 1);
  }
  c->n[0] = rows;
  c->n[1] = cols;
  c->f[0] = index % 5 == 0 ? 0 : (float)conform_uniform(random, 0, 0.9);
  c->call = conform_call_dropout;
  snprintf(c->what, sizeof c->what, "%s to %s, %zux%zu, p %g%s%s", conform_dtype_name(in),
           conform_dtype_name(out), rows, cols, (double)c->f[0], c->flags[1] ? ", residual" : "",
           c->flags[1] && c->flags[2] ? ", bias" : "");
  return true;
}

// ---- row_map, permute, unpermute, sort_pairs, topk

static inline void conform_call_permute(const ConformCase *c, ConformRun *run) {
  const size_t tokens = c->n[0], topk = c->n[1], cols = c->n[2], rows = c->n[3];
  NVTETensor input = conform_matrix_of(run, 0, tokens, cols);
  NVTETensor output = conform_matrix_of(run, 1, rows, cols);
  NVTETensor map = conform_vector(run, 2), sorted = NULL, forward = NULL, prob = NULL, grad = NULL;
  if (c->n[4] == 0) {
    sorted = conform_vector(run, 3);
  } else {
    forward = conform_matrix_of(run, 3, rows, cols);
  }
  if (c->n[4] == 2) {
    prob = conform_matrix_of(run, 4, tokens, topk);
    grad = conform_matrix_of(run, 5, tokens, topk);
  }
  nvte_permute(input, output, sorted, map, prob, grad, forward, (int32_t)tokens, (int32_t)topk,
               (int32_t)cols, (int32_t)rows, run->stream);
}

static inline void conform_call_unpermute(const ConformCase *c, ConformRun *run) {
  const size_t tokens = c->n[0], topk = c->n[1], cols = c->n[2], rows = c->n[3];
  nvte_unpermute(conform_matrix_of(run, 0, rows, cols), conform_matrix_of(run, 1, tokens, cols),
                 conform_vector(run, 2), c->flags[0] ? conform_vector(run, 3) : NULL,
                 (int32_t)tokens, (int32_t)topk, (int32_t)cols, run->stream);
}

// Sizes of a case of experts, and of n[4] what is computed: 0 the copy of rows, 1 their gradients
// without probabilities, 2 with them.
static inline NVTEDType conform_make_experts(ConformCase *c, ConformRandom *random, size_t index,
                                             size_t kind) {
  c->n[0] = conform_within(random, 1, 40);
  c->n[1] = conform_within(random, 1, 6);
  c->n[2] = conform_chance(random, 50) ? 8 * conform_within(random, 1, 32)
                                       : conform_within(random, 1, 100);
  c->n[3] = c->n[0] * c->n[1];
  if (conform_chance(random, 40)) c->n[3] = conform_within(random, 1, c->n[3]);
  c->n[4] = kind;
  const NVTEDType dtype = conform_high_of(index);
  snprintf(c->what, sizeof c->what, "%s, %zu tokens, topk %zu, %zu columns, %zu rows",
           conform_dtype_name(dtype), c->n[0], c->n[1], c->n[2], c->n[3]);
  return dtype;
}

// A map from slots to rows, -1 for slots without one.
static inline void conform_make_map(ConformCase *c, ConformRandom *random, const char *name) {
  const size_t slots = c->n[0] * c->n[1];
  int32_t *places = conform_alloc(slots * sizeof *places);
  conform_shuffle(random, places, slots);
  const int map = conform_add(c, name, CONFORM_INPUT, kNVTEInt32, slots, 0);
  for (size_t i = 0; i < slots; i++) {
    conform_put(c, map, i, (size_t)places[i] < c->n[3] ? places[i] : -1);
  }
  free(places);
}

static inline bool conform_make_permute(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  const bool gradient = conform_is(variant, "gradient");
  if (!gradient && *variant && !conform_is(variant, "plain")) return false;
  const NVTEDType dtype = conform_make_experts(c, random, index, gradient ? 2 : 0);
  const size_t slots = c->n[0] * c->n[1];
  conform_input(c, random, "input", dtype, c->n[0] * c->n[2], -2, 2);
  const int output = conform_output(c, random, "output", dtype, c->n[3] * c->n[2]);
  c->buffers[output].relative = 1;
  if (gradient) {
    conform_make_map(c, random, "row_id_map");
    conform_input(c, random, "input_fwd", dtype, c->n[3] * c->n[2], -2, 2);
    conform_input(c, random, "prob", kNVTEFloat32, slots, 0, 1);
    conform_sums(c, random, "prob_grad", kNVTEFloat32, slots, c->n[2], 4 * (double)c->n[2]);
  } else {
    conform_exact(c, "row_id_map", kNVTEInt32, slots);
    int32_t *order = conform_alloc(slots * sizeof *order);
    conform_shuffle(random, order, slots);
    const int sorted = conform_add(c, "sorted_row_id", CONFORM_INPUT, kNVTEInt32, slots, 0);
    for (size_t i = 0; i < slots; i++) conform_put(c, sorted, i, order[i]);
    free(order);
  }
  c->call = conform_call_permute;
  return true;
}

static inline bool conform_make_unpermute(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  c->flags[0] = conform_is(variant, "weighted");
  if (!c->flags[0] && !conform_is(variant, "plain")) return false;
  const NVTEDType dtype = conform_make_experts(c, random, index, 0);
  conform_input(c, random, "input", dtype, c->n[3] * c->n[2], -2, 2);
  conform_sums(c, random, "output", dtype, c->n[0] * c->n[2], c->n[1], 2 * (double)c->n[1]);
  conform_make_map(c, random, "row_id_map");
  if (c->flags[0]) conform_input(c, random, "prob", kNVTEFloat32, c->n[0] * c->n[1], 0, 1);
  c->call = conform_call_unpermute;
  return true;
}

static inline void conform_call_sort_pairs(const ConformCase *c, ConformRun *run) {
  const size_t n = c->n[0];
  int32_t *keys = (int32_t *)run->ptr[0], *values = (int32_t *)run->ptr[1];
  int32_t *keys_out = (int32_t *)run->ptr[2], *values_out = (int32_t *)run->ptr[3];
  size_t bytes = 0;
  nvte_device_radix_sort_pairs(NULL, &bytes, keys, keys_out, values, values_out, n);
  if (nvtex_last_status() != NVTEX_OK) return;
  void *memory = run->blocks[run->num_blocks++] = nvtex_malloc(bytes ? bytes : 1);
  nvte_device_radix_sort_pairs(memory, &bytes, keys, keys_out, values, values_out, n);
}

static inline bool conform_make_sort_pairs(ConformCase *c, ConformRandom *random,
                                           const char *variant, size_t index) {
  if (*variant) return false;
  const size_t n = c->n[0] = conform_within(random, 1, index % 2 ? 5000 : 40);
  const bool ties = conform_chance(random, 50);
  conform_integers(c, random, "keys", CONFORM_INPUT, kNVTEInt32, n, ties ? 0 : INT32_MIN,
                   ties ? 9 : INT32_MAX);
  conform_integers(c, random, "values", CONFORM_INPUT, kNVTEInt32, n, 0, INT32_MAX);
  conform_exact(c, "sorted keys", kNVTEInt32, n);
  conform_exact(c, "values of sorted keys", kNVTEInt32, n);
  c->call = conform_call_sort_pairs;
  snprintf(c->what, sizeof c->what, "%zu pairs%s", n, ties ? ", few different keys" : "");
  return true;
}

static inline void conform_call_topk(const ConformCase *c, ConformRun *run) {
  const size_t batch = c->n[0], length = c->n[1], k = c->n[2];
  NVTETensor keys = conform_matrix_of(run, 0, batch, length);
  NVTETensor best = conform_matrix_of(run, 1, batch, k);
  NVTETensor indices = conform_matrix_of(run, 2, batch, k);
  NVTETensor lengths = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  if (c->flags[0]) conform_set(run, lengths, kNVTERowwiseData, 3, CONFORM_SHAPE(batch));
  NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  for (int call = 0; call < 2; call++) {
    nvte_topk(run->stream, keys, lengths, best, indices, workspace, (int32_t)batch, (int32_t)length,
              (int32_t)k);
    if (call == 0) conform_workspace(run, workspace);
  }
}

static inline bool conform_make_topk(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t batch = c->n[0] = conform_within(random, 1, 4);
  const size_t length = c->n[1] = conform_within(random, 1, index % 2 ? 4000 : 60);
  const size_t k = c->n[2] = conform_within(random, 1, length < 64 ? length : 64);
  if (conform_chance(random, 30)) {
    conform_input_bits(c, random, "keys", dtype, batch * length);
  } else {
    conform_input(c, random, "keys", dtype, batch * length, -4, 4);
  }
  conform_exact(c, "greatest keys", dtype, batch * k);
  conform_exact(c, "indices", kNVTEInt32, batch * k);
  c->flags[0] = conform_chance(random, 50);
  if (c->flags[0]) {
    conform_integers(c, random, "lengths", CONFORM_INPUT, kNVTEInt32, batch, 0, (int64_t)length);
  }
  c->call = conform_call_topk;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu, k %zu%s", conform_dtype_name(dtype), batch,
           length, k, c->flags[0] ? ", lengths" : "");
  return true;
}

// ---- router_forward, router_backward, router_histogram, aux_loss, aux_loss_backward

// The function of a variant that begins with `topk_` or `scores_`; negative for others.
static inline int conform_score(const char *variant) {
  static const char *const functions[] = {"sigmoid", "softmax", "sqrtsoftplus"};
  const char *name = strchr(variant, '_');
  for (int i = 0; name && i < 3; i++) {
    if (strcmp(name + 1, functions[i]) == 0) return i;
  }
  return -1;
}

static inline void conform_call_router(const ConformCase *c, ConformRun *run) {
  const size_t tokens = c->n[0], experts = c->n[1];
  const int32_t t = (int32_t)tokens, e = (int32_t)experts, k = (int32_t)c->n[2];
  const int32_t function = (int32_t)c->n[3], groups = (int32_t)c->n[4];
  const int32_t group_topk = (int32_t)c->n[5], pre = c->flags[1];
  const NVTERoutingMapFormat format =
      c->flags[2] ? NVTE_ROUTING_MAP_FORMAT_BITMAP_U8 : NVTE_ROUTING_MAP_FORMAT_BYTEMAP;
  const size_t width = c->flags[2] ? (experts + 7) / 8 : experts;
  cudaStream_t stream = run->stream;
  NVTETensor a = conform_matrix_of(run, 0, tokens, experts);
  NVTETensor b = conform_matrix_of(run, 1, tokens, experts);
  NVTETensor third = conform_matrix_of(run, 2, tokens, experts);
  if (c->flags[0] && c->flags[3]) {  // Gradients of the scores of all experts.
    nvte_fused_score_for_moe_aux_loss_backward(b, a, t, e, k, function, third, stream);
    return;
  }
  NVTETensor map = conform_matrix_of(run, 3, tokens, width);
  if (c->flags[0]) {
    nvte_fused_topk_with_score_function_backward_v2(map, format, b, a, t, e, k, pre, c->f[0],
                                                    function, third, stream);
  } else if (c->flags[3]) {
    nvte_fused_score_for_moe_aux_loss_forward_v2(a, t, e, k, function, b, map, format, third,
                                                 stream);
  } else {
    NVTETensor bias = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
    if (c->flags[4]) conform_set(run, bias, kNVTERowwiseData, 4, CONFORM_SHAPE(experts));
    nvte_fused_topk_with_score_function_forward_v2(a, t, e, k, pre, groups, group_topk, c->f[0],
                                                   function, bias, b, map, format, third, stream);
  }
}

static inline bool conform_make_router(ConformCase *c, ConformRandom *random, const char *variant,
                                       size_t index, bool backward) {
  const int function = conform_score(variant);
  const bool scores = strncmp(variant, "scores_", 7) == 0;
  if (function < 0 || (!scores && strncmp(variant, "topk_", 5) != 0)) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t groups = conform_chance(random, 30) ? 4 : 0;
  const size_t tokens = c->n[0] = conform_within(random, 1, 20);
  const size_t experts = c->n[1] =
      groups ? groups * conform_within(random, 2, 16) : conform_within(random, 1, 70);
  const size_t most = experts < 8 ? experts : 8;
  const size_t topk = c->n[2] = groups ? 2 : conform_within(random, 1, most);
  c->n[3] = (size_t)function;
  const bool grouped = groups && !backward && !scores;
  c->n[4] = grouped ? groups : 0;
  c->n[5] = grouped ? 2 : 0;
  c->f[0] = scores ? 1 : (float)conform_uniform(random, 0.5, 2);
  c->flags[0] = backward;
  c->flags[1] = function == 1 && !scores && conform_chance(random, 50);
  c->flags[2] = conform_chance(random, 40);
  c->flags[3] = scores;
  c->flags[4] = function != 1 && !scores && !backward && conform_chance(random, 50);
  const size_t n = tokens * experts, width = c->flags[2] ? (experts + 7) / 8 : experts;
  const size_t terms = scores ? experts : topk;
  if (backward) {
    conform_input(c, random, scores ? "grad_scores" : "grad_probs", dtype, n, -1, 1);
    conform_input(c, random, "intermediate_output", kNVTEFloat32, n, function == 2 ? -3 : 0.01,
                  function == 2 ? 3 : 0.9);
    conform_sums(c, random, "grad_logits", dtype, n, terms, 400);
  } else {
    conform_input(c, random, "logits", dtype, n, -4, 4);
    conform_sums(c, random, scores ? "scores" : "probs", dtype, n, terms, 8);
    conform_sums(c, random, "intermediate_output", kNVTEFloat32, n, terms, 8);
  }
  if (!backward) {
    conform_exact(c, "routing_map", kNVTEByte, tokens * width);
  } else if (!scores) {
    const int map = conform_add(c, "routing_map", CONFORM_INPUT, kNVTEByte, tokens * width, 0);
    memset(c->buffers[map].image, 0, tokens * width);
    int32_t *order = conform_alloc(experts * sizeof *order);
    for (size_t t = 0; t < tokens; t++) {
      conform_shuffle(random, order, experts);
      for (size_t k = 0; k < topk; k++) {
        const size_t e = (size_t)order[k];
        unsigned char *row = c->buffers[map].image + t * width;
        if (c->flags[2]) {
          row[e / 8] = (unsigned char)(row[e / 8] | 1u << e % 8);
        } else {
          row[e] = 1;
        }
      }
    }
    free(order);
  }
  if (c->flags[4]) conform_input(c, random, "expert_bias", kNVTEFloat32, experts, -0.2, 0.2);
  c->call = conform_call_router;
  snprintf(c->what, sizeof c->what, "%s, %zu tokens, %zu experts, topk %zu%s%s%s%s",
           conform_dtype_name(dtype), tokens, experts, topk, grouped ? ", groups" : "",
           c->flags[1] ? ", softmax first" : "", c->flags[2] ? ", map of bits" : "",
           c->flags[4] ? ", bias" : "");
  return true;
}

static inline bool conform_make_router_forward(ConformCase *c, ConformRandom *random,
                                               const char *variant, size_t index) {
  return conform_make_router(c, random, variant, index, false);
}

static inline bool conform_make_router_backward(ConformCase *c, ConformRandom *random,
                                                const char *variant, size_t index) {
  return conform_make_router(c, random, variant, index, true);
}

static inline void conform_call_histogram(const ConformCase *c, ConformRun *run) {
  nvte_qb_histogram_accumulate_unchecked(conform_matrix_of(run, 0, c->n[0], c->n[1]),
                                         conform_vector(run, 1), conform_vector(run, 2),
                                         conform_matrix_of(run, 3, c->n[1], c->n[2]), run->stream);
}

static inline bool conform_make_histogram(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  if (*variant) return false;
  const size_t tokens = c->n[0] = conform_within(random, 1, 60);
  const size_t experts = c->n[1] = conform_within(random, 1, 70);
  const size_t bins = c->n[2] = conform_within(random, 1, index % 2 ? 300 : 20);
  conform_input(c, random, "raw_scores", kNVTEFloat32, tokens * experts, 0, 1);
  conform_input(c, random, "cutoff", kNVTEFloat32, tokens, 0, 1);
  const int bounds = conform_add(c, "bin_bounds", CONFORM_INPUT, kNVTEFloat32, 2, 0);
  conform_store(kNVTEFloat32, c->buffers[bounds].image, 0, -0.9);
  conform_store(kNVTEFloat32, c->buffers[bounds].image, 1, 0.8);
  conform_integers(c, random, "histogram", CONFORM_EXACT, kNVTEInt32, experts * bins, 0, 9);
  c->call = conform_call_histogram;
  snprintf(c->what, sizeof c->what, "%zu tokens, %zu experts, %zu bins", tokens, experts, bins);
  return true;
}

static inline void conform_call_aux_loss(const ConformCase *c, ConformRun *run) {
  const int32_t rows = (int32_t)c->n[0], cols = (int32_t)c->n[1];
  NVTETensor probs = conform_matrix_of(run, 0, c->n[0], c->n[1]), counts = conform_vector(run, 1);
  NVTETensor loss = conform_vector(run, 2), constants = conform_vector(run, 3);
  if (c->flags[0]) {
    nvte_fused_moe_aux_loss_backward(constants, counts, rows, cols, loss, probs, run->stream);
  } else if (c->flags[1]) {
    nvte_fused_moe_aux_loss_forward_graph_safe(probs, counts, conform_vector(run, 4), cols, rows,
                                               cols, 2, 0.01f, loss, constants, run->stream);
  } else {
    nvte_fused_moe_aux_loss_forward(probs, counts, rows, cols, rows, cols, 2, 0.01f, loss,
                                    constants, run->stream);
  }
}

static inline bool conform_make_loss(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index, bool backward) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t rows = c->n[0] = conform_within(random, 1, 60);
  const size_t cols = c->n[1] = conform_within(random, 1, 70), n = rows * cols;
  c->flags[0] = backward;
  c->flags[1] = !backward && conform_chance(random, 40);
  if (backward) {
    c->buffers[conform_output(c, random, "grad_probs", dtype, n)].relative = 2;
  } else {
    conform_input(c, random, "probs", dtype, n, 0, 1);
  }
  if (index % 2) {
    conform_integers(c, random, "tokens_per_expert", CONFORM_INPUT, kNVTEInt32, cols, 0, 100);
  } else {
    conform_input(c, random, "tokens_per_expert", kNVTEFloat32, cols, 0, 100);
  }
  if (backward) {
    conform_input(c, random, "grad_aux_loss", dtype, 1, -2, 2);
    conform_input(c, random, "Const_buf", kNVTEFloat32, 1, 0, 0.1);
  } else {
    // All terms are positive, so that their sum is that of their magnitudes.
    const int loss = conform_output(c, random, "aux_loss", dtype, 1);
    const int constants = conform_output(c, random, "Const_buf", kNVTEFloat32, 2);
    c->buffers[loss].relative = c->buffers[constants].relative = 2;
    c->buffers[loss].terms = c->buffers[constants].terms = n;
  }
  if (c->flags[1]) {
    conform_integers(c, random, "total_num_tokens", CONFORM_INPUT, kNVTEInt64, 1, (int64_t)rows,
                     (int64_t)rows);
  }
  c->call = conform_call_aux_loss;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu%s", conform_dtype_name(dtype), rows, cols,
           c->flags[1] ? ", tokens counted on the device" : "");
  return true;
}

static inline bool conform_make_aux_loss(ConformCase *c, ConformRandom *random, const char *variant,
                                         size_t index) {
  return conform_make_loss(c, random, variant, index, false);
}

static inline bool conform_make_aux_loss_backward(ConformCase *c, ConformRandom *random,
                                                  const char *variant, size_t index) {
  return conform_make_loss(c, random, variant, index, true);
}

// ---- delayed_scaling, scale_from_amax

static inline void conform_call_delayed_scaling(const ConformCase *c, ConformRun *run) {
  nvte_delayed_scaling_recipe_amax_and_scale_update(
      conform_matrix_of(run, 0, c->n[0], c->n[1]), conform_vector(run, 1),
      conform_matrix_of(run, 2, c->n[0], c->n[1]), conform_vector(run, 3),
      c->flags[0] ? "max" : "most_recent", (NVTEDType)c->n[2], c->f[0], run->stream);
}

static inline bool conform_make_delayed_scaling(ConformCase *c, ConformRandom *random,
                                                const char *variant, size_t index) {
  c->flags[0] = conform_is(variant, "max");
  if (!c->flags[0] && !conform_is(variant, "most_recent")) return false;
  const size_t length = c->n[0] = conform_within(random, 1, 40);
  const size_t n = c->n[1] = conform_within(random, 1, 50);
  c->n[2] = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  c->f[0] = index % 3 ? 0 : 1;
  const int history = conform_input(c, random, "amax_history", kNVTEFloat32, length * n, 0, 100);
  if (conform_chance(random, 30)) {
    for (size_t i = 0; i < length; i++) {
      conform_store(kNVTEFloat32, c->buffers[history].image, i * n, 0);
    }
  }
  conform_input(c, random, "scale", kNVTEFloat32, n, 0.5, 100);
  conform_exact(c, "updated_amax_history", kNVTEFloat32, length * n);
  c->buffers[conform_output(c, random, "updated_scale", kNVTEFloat32, n)].relative = 1;
  c->call = conform_call_delayed_scaling;
  snprintf(c->what, sizeof c->what, "%zux%zu, %s", length, n,
           conform_dtype_name((NVTEDType)c->n[2]));
  return true;
}

static inline void conform_call_scale_from_amax(const ConformCase *c, ConformRun *run) {
  NVTETensor output = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  conform_set(run, output, kNVTERowwiseData, 2, CONFORM_SHAPE(1));
  conform_set(run, output, kNVTEAmax, 0, CONFORM_SHAPE(1));
  conform_set(run, output, kNVTEScale, 1, CONFORM_SHAPE(1));
  NVTEQuantizationConfig config = nvte_create_quantization_config();
  const bool pow2 = c->flags[0];
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigForcePow2Scales, &pow2,
                                         sizeof pow2);
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigAmaxEpsilon, &c->f[0],
                                         sizeof c->f[0]);
  nvte_compute_scale_from_amax(output, config, run->stream);
  nvte_destroy_quantization_config(config);
}

static inline bool conform_make_scale_from_amax(ConformCase *c, ConformRandom *random,
                                                const char *variant, size_t index) {
  static const float special[] = {0, INFINITY, NAN, 1e-42f};
  if (*variant) return false;
  conform_float(c, "amax", CONFORM_INPUT,
                index % 3 ? (float)conform_uniform(random, 0, 100) : special[index / 3 % 4]);
  c->buffers[conform_float(c, "scale", CONFORM_OUTPUT, -7)].relative = 1;
  const NVTEDType dtype = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  conform_add(c, "data", CONFORM_INPUT, dtype, 1, 0);
  c->flags[0] = conform_chance(random, 40);
  c->f[0] = conform_chance(random, 40) ? 0.5f : 0;
  c->call = conform_call_scale_from_amax;
  snprintf(c->what, sizeof c->what, "%s, amax %g%s", conform_dtype_name(dtype),
           conform_element(c, 0, 0), c->flags[0] ? ", power of two" : "");
  return true;
}

// ---- partial_amax, partial_cast

static inline void conform_call_partial(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1], start = c->n[2];
  const size_t down = c->n[3], across = c->n[4];
  cudaStream_t stream = run->stream;
  NVTETensor input = conform_vector(run, 0);
  if (c->mode == NVTE_MXFP8_1D_SCALING) {
    const NVTEShape by_row = CONFORM_SHAPE((rows + 127) / 128 * 128, (cols + 127) / 128 * 4);
    const NVTEShape by_col = CONFORM_SHAPE((rows + 127) / 128 * 4, (cols + 127) / 128 * 128);
    NVTETensor rowwise = conform_tensor(run, 1, by_row), colwise = conform_tensor(run, 2, by_col);
    if (c->flags[0]) {
      nvte_mxfp8_scaling_partial_cast(input, conform_vector(run, 3), conform_vector(run, 4),
                                      rowwise, colwise, (int)rows, (int)cols, start, stream);
    } else {
      nvte_mxfp8_scaling_compute_partial_amax(input, rowwise, colwise, (int)rows, (int)cols, start,
                                              stream);
    }
    return;
  }
  NVTETensor blocks = conform_matrix_of(run, 1, down, across);
  if (c->flags[0]) {
    nvte_fp8_block_scaling_partial_cast(input, conform_vector(run, 2), blocks, rows, cols, across,
                                        1, start, 128, c->buffers[2].dtype, stream);
  } else {
    nvte_fp8_block_scaling_compute_partial_amax(input, blocks, rows, cols, across, 1, start, 128,
                                                stream);
  }
}

static inline bool conform_make_partial(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index, bool cast) {
  const bool mxfp8 = conform_is(variant, "mxfp8");
  if (!mxfp8 && !conform_is(variant, "fp8_blocks")) return false;
  const NVTEDType dtype = conform_high_of(index);
  const NVTEDType out = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  const size_t rows = c->n[0] = conform_within(random, 1, 150);
  const size_t cols = c->n[1] = conform_within(random, 1, 150);
  c->mode = mxfp8 ? NVTE_MXFP8_1D_SCALING : NVTE_BLOCK_SCALING_2D;
  c->n[2] = conform_within(random, 0, rows * cols - 1);
  const size_t n = conform_within(random, 1, rows * cols - c->n[2]);
  c->n[3] = (rows + 127) / 128;
  c->n[4] = (cols + 127) / 128;
  c->flags[0] = cast;
  conform_input(c, random, "input", dtype, n, -2, 2);
  const size_t scales = mxfp8 ? 512 * c->n[3] * c->n[4] : c->n[3] * c->n[4];
  for (int i = 0; i < (mxfp8 ? 2 : 1); i++) {
    if (!cast) {
      conform_exact(c, "largest magnitudes", mxfp8 ? dtype : kNVTEFloat32, scales);
    } else if (mxfp8) {
      conform_integers(c, random, "scales", CONFORM_INPUT, kNVTEByte, scales, 119, 125);
    } else {
      conform_input(c, random, "scales", kNVTEFloat32, scales, 1, 100);
    }
  }
  for (int i = 0; cast && i < (mxfp8 ? 2 : 1); i++) {
    c->buffers[conform_output(c, random, "output", out, n)].relative = 1;
  }
  c->call = conform_call_partial;
  snprintf(c->what, sizeof c->what, "%s, %zu elements from %zu of %zux%zu",
           conform_dtype_name(dtype), n, c->n[2], rows, cols);
  return true;
}

static inline bool conform_make_partial_amax(ConformCase *c, ConformRandom *random,
                                             const char *variant, size_t index) {
  return conform_make_partial(c, random, variant, index, false);
}

static inline bool conform_make_partial_cast(ConformCase *c, ConformRandom *random,
                                             const char *variant, size_t index) {
  return conform_make_partial(c, random, variant, index, true);
}

// ---- swizzle, scale_codes

// A tensor without data that has scales.
static inline NVTETensor conform_scales(ConformRun *run, int scales, bool in_tiles) {
  const size_t rows = run->c->n[0], cols = run->c->n[1], block = run->c->n[2];
  const size_t down = (rows + 127) / 128 * 128, across = (cols / block + 3) / 4 * 4;
  NVTETensor tensor = conform_empty(run, run->c->mode);
  const NVTEDType data = run->c->mode == NVTE_NVFP4_1D_SCALING ? kNVTEFloat4E2M1 : kNVTEFloat8E4M3;
  conform_set_memory(tensor, kNVTERowwiseData, NULL, data, CONFORM_SHAPE(rows, cols));
  conform_set(run, tensor, kNVTERowwiseScaleInv, scales, CONFORM_SHAPE(down, across));
  const uint8_t flag = in_tiles;
  nvte_set_tensor_param_v2(tensor, kNVTEWithGEMMSwizzledScales, &flag, sizeof flag);
  return tensor;
}

static inline void conform_call_swizzle(const ConformCase *c, ConformRun *run) {
  (c->flags[0] ? nvte_unswizzle_scaling_factors : nvte_swizzle_scaling_factors)(
      conform_scales(run, 0, c->flags[0]), conform_scales(run, 1, !c->flags[0]), run->stream);
}

static inline bool conform_make_swizzle(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  c->flags[0] = conform_is(variant, "from_tiles");
  if (!c->flags[0] && !conform_is(variant, "to_tiles")) return false;
  const bool nvfp4 = index % 2;
  c->mode = nvfp4 ? NVTE_NVFP4_1D_SCALING : NVTE_MXFP8_1D_SCALING;
  c->n[2] = nvfp4 ? 16 : 32;
  const size_t rows = c->n[0] = conform_within(random, 1, 300);
  const size_t cols = c->n[1] = 32 * conform_within(random, 1, 20);
  const size_t n = (rows + 127) / 128 * 128 * ((cols / c->n[2] + 3) / 4 * 4);
  const NVTEDType dtype = nvfp4 ? kNVTEFloat8E4M3 : kNVTEByte;
  conform_input_bits(c, random, "scales", dtype, n);
  conform_exact(c, "moved scales", dtype, n);
  c->buffers[0].shift = 0;
  c->call = conform_call_swizzle;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu", nvfp4 ? "NVFP4" : "MXFP8", rows, cols);
  return true;
}

// ---- hadamard, hadamard_amax, group_amax

static inline void conform_call_hadamard(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  NVTETensor input = conform_matrix_of(run, 0, rows, cols);
  if (c->n[2] == 0) {
    nvte_hadamard_transform(input, conform_matrix_of(run, 1, cols, rows), 0, (int)c->n[3],
                            run->stream);
    return;
  }
  NVTETensor outputs[2];
  size_t sections[2];
  for (size_t i = 0; i < 2; i++) {
    outputs[i] = conform_empty(run, NVTE_NVFP4_1D_SCALING);
    conform_set(run, outputs[i], kNVTEAmax, 1 + 2 * (int)i, CONFORM_SHAPE(1));
    conform_set(run, outputs[i], kNVTEColumnwiseAmax, 2 + 2 * (int)i, CONFORM_SHAPE(1));
    sections[i] = i == 0 ? c->n[4] : rows - c->n[4];
  }
  if (c->n[2] == 1) {
    nvte_group_hadamard_transform_amax(input, outputs, sections, 2, 0, (int)c->n[3], run->stream);
  } else {
    nvte_group_amax(input, outputs, sections, 2, run->stream);
  }
}

static inline bool conform_make_hadamard_case(ConformCase *c, ConformRandom *random, size_t kind) {
  const size_t rows = c->n[0] = 16 * conform_within(random, 2, 12);
  const size_t cols = c->n[1] = 16 * conform_within(random, 1, 12);
  c->n[2] = kind;
  c->n[3] = conform_within(random, 0, 0xFFFF);
  c->n[4] = 16 * conform_within(random, 1, rows / 16 - 1);
  conform_input(c, random, "input", kNVTEBFloat16, rows * cols, -2, 2);
  c->buffers[0].shift = 0;
  if (kind == 0) {
    const int output = conform_sums(c, random, "output", kNVTEBFloat16, rows * cols, 16, 8);
    c->buffers[output].shift = 0;
  }
  for (int i = 0; kind != 0 && i < 4; i++) {
    const int amax = conform_float(c, i % 2 ? "columnwise_amax" : "amax", CONFORM_OUTPUT, -7);
    // That of the transform is rounded to BFloat16 on the way.
    c->buffers[amax].absolute = kind == 1 && i % 2 ? 8 * 0x1p14 : 2;
    c->buffers[amax].terms = kind == 1 && i % 2 ? 16 : 1;
  }
  c->call = conform_call_hadamard;
  snprintf(c->what, sizeof c->what, "%zux%zu, signs 0x%zx", rows, cols, c->n[3]);
  return true;
}

static inline bool conform_make_hadamard(ConformCase *c, ConformRandom *random, const char *variant,
                                         size_t index) {
  (void)index;
  return !*variant && conform_make_hadamard_case(c, random, 0);
}

static inline bool conform_make_hadamard_amax(ConformCase *c, ConformRandom *random,
                                              const char *variant, size_t index) {
  (void)index;
  if (!conform_is(variant, "transform") && !conform_is(variant, "plain")) return false;
  return conform_make_hadamard_case(c, random, conform_is(variant, "transform") ? 1 : 2);
}

// ---- nvfp4_quantize, nvfp4_dequantize and what prepares their scales

static inline void conform_call_nvfp4(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  const size_t down = (rows + 127) / 128 * 128, across = (cols / 16 + 3) / 4 * 4;
  const bool dequantize = c->flags[0], square = c->flags[1];
  NVTETensor plain = conform_matrix_of(run, 0, rows, cols);
  NVTETensor packed = conform_empty(run, NVTE_NVFP4_1D_SCALING);
  conform_set_memory(packed, kNVTERowwiseData, run->ptr[1], kNVTEFloat4E2M1,
                     CONFORM_SHAPE(rows, cols));
  conform_set_memory(packed, kNVTERowwiseScaleInv, run->ptr[2], kNVTEFloat8E4M3,
                     CONFORM_SHAPE(down, across));
  conform_set(run, packed, kNVTEAmax, 3, CONFORM_SHAPE(1));
  if (dequantize) {
    nvte_dequantize(packed, plain, run->stream);
    return;
  }
  NVTEQuantizationConfig config = nvte_create_quantization_config();
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigNVFP42DQuantization,
                                         &square, sizeof square);
  nvte_quantize_v2(plain, packed, config, run->stream);
  nvte_destroy_quantization_config(config);
}

static inline bool conform_make_nvfp4_case(ConformCase *c, ConformRandom *random, size_t index,
                                           bool dequantize, bool square, NVTEDType dtype) {
  // Casts of BFloat16 in multiples of 32 are variants of their own.
  const size_t round = dtype == kNVTEBFloat16 && !dequantize ? 32 : 16;
  const size_t rows = c->n[0] = round * conform_within(random, 1, 192 / round);
  const size_t cols = c->n[1] = round * conform_within(random, 1, 192 / round);
  const size_t scales = (rows + 127) / 128 * 128 * ((cols / 16 + 3) / 4 * 4);
  c->mode = NVTE_NVFP4_1D_SCALING;
  c->flags[0] = dequantize;
  c->flags[1] = square;
  if (dequantize) {
    c->buffers[conform_output(c, random, "output", dtype, rows * cols)].relative = 4;
    conform_integers(c, random, "input", CONFORM_INPUT, kNVTEByte, rows * cols / 2, 0, 255);
    conform_integers(c, random, "scales", CONFORM_INPUT, kNVTEByte, scales, 0x20, 0x60);
  } else {
    conform_input(c, random, "input", dtype, rows * cols, -2, 2);
    conform_exact(c, "output", kNVTEByte, rows * cols / 2);
    conform_exact(c, "scales", kNVTEByte, scales);
  }
  c->buffers[0].shift = 0;
  conform_float(c, "amax", CONFORM_INPUT, index % 5 ? 2 : (float)conform_uniform(random, 1, 4));
  c->call = conform_call_nvfp4;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu%s", conform_dtype_name(dtype), rows, cols,
           square ? ", square blocks" : "");
  return true;
}

static inline bool conform_make_nvfp4_quantize(ConformCase *c, ConformRandom *random,
                                               const char *variant, size_t index) {
  const bool tuned = conform_is(variant, "tuned"), square = conform_is(variant, "square");
  if (!tuned && !square && !conform_is(variant, "general")) return false;
  const NVTEDType dtype = tuned || square ? kNVTEBFloat16 : conform_high_of(index % 2);
  return conform_make_nvfp4_case(c, random, index, false, square, dtype);
}

static inline bool conform_make_nvfp4_dequantize(ConformCase *c, ConformRandom *random,
                                                 const char *variant, size_t index) {
  return !*variant &&
         conform_make_nvfp4_case(c, random, index, true, false, conform_high_of(index));
}

static inline void conform_call_nvfp4_scales(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  cudaStream_t stream = run->stream;
  switch (c->n[2]) {
    case 0:
      nvte_nvfp4_compute_global_scale(conform_vector(run, 0), conform_vector(run, 1), stream);
      break;
    case 1:
      nvte_nvfp4_compute_per_block_scale(conform_vector(run, 0), conform_vector(run, 1),
                                         conform_vector(run, 2), stream);
      break;
    case 2:
      nvte_nvfp4_data_transpose(conform_matrix_of(run, 0, rows, cols / 2),
                                conform_matrix_of(run, 1, cols, rows / 2), stream);
      break;
    case 3:
      nvte_nvfp4_scale_transpose(conform_matrix_of(run, 0, rows, cols / 16),
                                 conform_matrix_of(run, 1, cols, rows / 16), rows / 16, cols / 16,
                                 stream);
      break;
    case 4:
      nvte_nvfp4_2d_compute_partial_amax(conform_vector(run, 0),
                                         conform_matrix_of(run, 1, rows / 16, cols / 16), rows,
                                         cols, cols / 16, 1, c->n[3], 16, stream);
      break;
    case 5:
      nvte_nvfp4_2d_partial_cast(conform_vector(run, 0), conform_vector(run, 3),
                                 conform_matrix_of(run, 1, rows / 16, cols / 16),
                                 conform_vector(run, 2), rows, cols, cols / 16, 1, c->n[3], 16,
                                 stream);
      break;
    default: {
      NVTETensor factors[2];
      for (int i = 0; i < 2; i++) {
        factors[i] = conform_empty(run, NVTE_NVFP4_1D_SCALING);
        conform_set(run, factors[i], kNVTEAmax, i, CONFORM_SHAPE(1));
      }
      nvte_nvfp4_compute_per_tensor_scale(factors[0], true, factors[1], true, c->f[0],
                                          conform_vector(run, 2), stream);
    }
  }
}

static inline bool conform_make_nvfp4_scales(ConformCase *c, ConformRandom *random, size_t kind,
                                             size_t index) {
  const NVTEDType dtype = conform_high_of(index);
  const size_t rows = c->n[0] = 16 * conform_within(random, 1, 12);
  const size_t cols = c->n[1] = 16 * conform_within(random, 1, 12), n = rows * cols;
  c->n[2] = kind;
  size_t part = 0;
  if (kind == 0) {
    conform_input(c, random, "global_amax", kNVTEFloat32, cols, 0, 100);
    c->buffers[conform_output(c, random, "global_scale", kNVTEFloat32, cols)].relative = 2;
  } else if (kind == 1) {
    conform_input(c, random, "block_amax", kNVTEFloat32, cols, 0, 4);
    c->buffers[conform_output(c, random, "scale", kNVTEFloat32, cols)].relative = 4;
    conform_float(c, "global_amax", CONFORM_INPUT, 4);
  } else if (kind == 2) {
    conform_integers(c, random, "input", CONFORM_INPUT, kNVTEByte, n / 2, 0, 255);
    conform_exact(c, "output", kNVTEByte, n / 2);
  } else if (kind == 3) {
    conform_integers(c, random, "input", CONFORM_INPUT, kNVTEByte, n / 16, 0, 255);
    conform_exact(c, "output", kNVTEByte, n / 16);
  } else if (kind < 6) {
    c->n[3] = conform_within(random, 0, n - 1);
    part = conform_within(random, 1, n - c->n[3]);
    conform_input(c, random, "input", dtype, part, -2, 2);
    if (kind == 4) conform_exact(c, "largest magnitudes", kNVTEFloat32, n / 256);
    if (kind == 5) {
      conform_input(c, random, "scales", kNVTEFloat32, n / 256, 1, 400);
      conform_float(c, "global_scale", CONFORM_INPUT, (float)conform_uniform(random, 100, 1000));
      const size_t first = c->n[3] / 2, last = (c->n[3] + part - 1) / 2;
      conform_integers(c, random, "output", CONFORM_EXACT, kNVTEByte, last - first + 1, 0, 255);
    }
  } else {
    conform_float(c, "amax of A", CONFORM_INPUT, (float)conform_uniform(random, 0.1, 10));
    conform_float(c, "amax of B", CONFORM_INPUT, (float)conform_uniform(random, 0.1, 10));
    c->buffers[conform_float(c, "alpha", CONFORM_OUTPUT, -7)].relative = 4;
    c->f[0] = (float)conform_uniform(random, 0.5, 2);
  }
  c->call = conform_call_nvfp4_scales;
  snprintf(c->what, sizeof c->what, "%zux%zu", rows, cols);
  if (part) {
    snprintf(c->what, sizeof c->what, "%s, %zu elements from %zu of %zux%zu",
             conform_dtype_name(dtype), part, c->n[3], rows, cols);
  }
  return true;
}

#define CONFORM_NVFP4_SCALES(NAME, KIND)                                              \
  static inline bool conform_make_nvfp4_##NAME(ConformCase *c, ConformRandom *random, \
                                               const char *variant, size_t index) {   \
    return !*variant && conform_make_nvfp4_scales(c, random, KIND, index);            \
  }
CONFORM_NVFP4_SCALES(global_scale, 0)
CONFORM_NVFP4_SCALES(block_scale, 1)
CONFORM_NVFP4_SCALES(transpose, 2)
CONFORM_NVFP4_SCALES(scale_transpose, 3)
CONFORM_NVFP4_SCALES(partial_amax, 4)
CONFORM_NVFP4_SCALES(partial_cast, 5)
CONFORM_NVFP4_SCALES(alpha, 6)

// ---- transpose_dbias, host_copy, offsets, widen

static inline void conform_call_small(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  if (c->n[2] == 0) {
    NVTETensor input = conform_matrix_of(run, 0, rows, cols);
    NVTETensor output = conform_matrix_of(run, 1, cols, rows), dbias = conform_vector(run, 2);
    NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
    conform_set(run, input, kNVTERowwiseScaleInv, 3, CONFORM_SHAPE(1));
    conform_set(run, output, kNVTERowwiseScaleInv, 3, CONFORM_SHAPE(1));
    for (int call = 0; call < 2; call++) {
      nvte_fp8_transpose_dbias(input, output, dbias, workspace, run->stream);
      if (call == 0) conform_workspace(run, workspace);
    }
  } else if (c->n[2] == 1) {
    nvte_copy_host_to_device_via_kernel(c->function, run->ptr[0], c->buffers[0].bytes, run->stream);
  } else if (c->n[2] == 2) {
    nvte_splits_to_offsets((const int64_t *)run->ptr[0], (int64_t *)run->ptr[1], rows,
                           (int64_t)cols, run->stream);
  } else {
    nvte_convert_int32_to_int64_with_multiplier(
        (const int32_t *)run->ptr[0], (int64_t *)run->ptr[1], rows, (int64_t)cols, run->stream);
  }
}

static inline bool conform_make_transpose_dbias(ConformCase *c, ConformRandom *random,
                                                const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType in = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  const NVTEDType out = conform_high_of(index / 2);
  size_t rows, cols;
  conform_matrix(random, &rows, &cols);
  c->n[0] = rows;
  c->n[1] = cols;
  conform_input(c, random, "input", in, rows * cols, -4, 4);
  conform_exact(c, "transposed_output", in, rows * cols);
  conform_sums(c, random, "dbias", out, cols, rows, 16 * (double)rows);
  conform_float(c, "scale_inv", CONFORM_INPUT, (float)conform_uniform(random, 0.5, 2));
  c->call = conform_call_small;
  snprintf(c->what, sizeof c->what, "%s, dbias %s, %zux%zu", conform_dtype_name(in),
           conform_dtype_name(out), rows, cols);
  return true;
}

static inline bool conform_make_host_copy(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  static const unsigned char bytes[] =
      "What a process keeps in its own memory arrives on the device with the arguments of a "
      "kernel.";
  (void)index;
  if (*variant) return false;
  c->n[2] = 1;
  c->function = bytes;
  conform_exact(c, "memory", kNVTEByte, conform_within(random, 1, sizeof bytes));
  c->call = conform_call_small;
  snprintf(c->what, sizeof c->what, "%zu bytes", c->buffers[0].bytes);
  return true;
}

static inline bool conform_make_offsets(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  (void)index;
  if (*variant) return false;
  c->n[0] = conform_within(random, 1, 300);
  c->n[1] = conform_within(random, 1, 5000);
  c->n[2] = 2;
  conform_integers(c, random, "split_sizes", CONFORM_INPUT, kNVTEInt64, c->n[0], 0, 1000);
  conform_exact(c, "offsets", kNVTEInt64, c->n[0] + 1);
  c->call = conform_call_small;
  snprintf(c->what, sizeof c->what, "%zu sizes, stride %zu", c->n[0], c->n[1]);
  return true;
}

static inline bool conform_make_widen(ConformCase *c, ConformRandom *random, const char *variant,
                                      size_t index) {
  (void)index;
  if (*variant) return false;
  c->n[0] = conform_within(random, 1, 300);
  c->n[1] = conform_within(random, 1, 5000);
  c->n[2] = 3;
  conform_integers(c, random, "input", CONFORM_INPUT, kNVTEInt32, c->n[0], INT32_MIN, INT32_MAX);
  conform_exact(c, "output", kNVTEInt64, c->n[0]);
  c->call = conform_call_small;
  snprintf(c->what, sizeof c->what, "%zu numbers times %zu", c->n[0], c->n[1]);
  return true;
}

// ---- scaled_activation, rope of queries, keys and values together, scale_codes, group_amax

static inline void conform_call_scaled(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1], wide = c->n[2];
  const int64_t interleave = (int64_t)c->n[4];
  cudaStream_t stream = run->stream;
  NVTETensor x = conform_matrix_of(run, 0, rows, wide), scales = conform_vector(run, 1);
  NVTETensor y = conform_matrix_of(run, 2, rows, c->flags[0] ? wide : cols);
  if (!c->flags[0]) {
    if (c->n[3] == 0) nvte_scaled_swiglu(x, scales, y, interleave, stream);
    if (c->n[3] == 1) nvte_scaled_srelu(x, scales, y, stream);
    if (c->n[3] == 2) nvte_scaled_situglu(x, scales, y, 1.5f, 2, interleave, stream);
    if (c->n[3] == 3) {
      nvte_scaled_clamped_swiglu(x, scales, y, 2, 1.702f, 1, interleave, stream);
    }
    return;
  }
  NVTETensor grad = conform_matrix_of(run, 3, rows, cols);
  NVTETensor of_scales = c->flags[1] ? conform_vector(run, 4) : NULL;
  if (c->n[3] == 0) nvte_scaled_dswiglu(grad, x, scales, y, of_scales, interleave, stream);
  if (c->n[3] == 1) nvte_scaled_dsrelu(grad, x, scales, y, of_scales, stream);
  if (c->n[3] == 2) {
    nvte_scaled_dsituglu(grad, x, scales, y, of_scales, 1.5f, 2, interleave, stream);
  }
  if (c->n[3] == 3) {
    nvte_scaled_clamped_dswiglu(grad, x, scales, y, of_scales, 2, 1.702f, 1, interleave, stream);
  }
}

static inline bool conform_make_scaled(ConformCase *c, ConformRandom *random, const char *variant,
                                       size_t index) {
  static const char *const names[] = {"swiglu", "srelu", "situglu", "clamped_swiglu"};
  c->flags[0] = *variant == 'd';
  const char *name = c->flags[0] ? variant + 1 : variant;
  while (c->n[3] < 4 && !conform_is(name, names[c->n[3]])) c->n[3]++;
  if (c->n[3] == 4) return false;
  const bool gated = c->n[3] != 1;
  const NVTEDType dtype = conform_high_of(index), of_scales = conform_high_of(index / 3);
  const size_t rows = c->n[0] = conform_within(random, 1, 40);
  c->n[4] = gated && conform_chance(random, 30) ? 32 : 0;
  const size_t cols = c->n[1] =
      c->n[4] ? 32 * conform_within(random, 1, 6) : conform_within(random, 1, 200);
  const size_t wide = c->n[2] = gated ? 2 * cols : cols;
  c->flags[1] = c->flags[0] && conform_chance(random, 70);
  conform_input(c, random, "input", dtype, rows * wide, -3, 3);
  conform_input(c, random, "act_scales", of_scales, rows, 0, 2);
  conform_sums(c, random, c->flags[0] ? "grad_input" : "output", dtype,
               rows * (c->flags[0] ? wide : cols), 1, 100);
  if (c->flags[0]) conform_input(c, random, "grad", dtype, rows * cols, -1, 1);
  if (c->flags[1]) {
    conform_sums(c, random, "grad_act_scales", of_scales, rows, cols, 12 * (double)cols);
  }
  c->call = conform_call_scaled;
  snprintf(c->what, sizeof c->what, "%s, scales %s, %zux%zu%s%s", conform_dtype_name(dtype),
           conform_dtype_name(of_scales), rows, cols, c->n[4] ? ", interleaved" : "",
           c->flags[1] ? ", gradients of the scales" : "");
  return true;
}

static inline void conform_call_qkv_rope(const ConformCase *c, ConformRun *run) {
  const size_t s = c->n[0], b = c->n[1], h = c->n[2], d = c->n[3], d2 = c->n[4], more = c->n[5];
  const bool bshd = c->flags[1];
  const size_t outer = bshd ? b : s, inner = bshd ? s : b;
  const size_t q = more * d, heads[] = {h * more, h, h};
  NVTETensor all = conform_tensor(run, 0, CONFORM_SHAPE(outer, inner, h, q + 2 * d));
  NVTETensor parts[3], freqs[2];
  for (int i = 0; i < 3; i++) {
    parts[i] = conform_tensor(run, 1 + i, CONFORM_SHAPE(outer, inner, heads[i], d));
  }
  for (int i = 0; i < 2; i++) freqs[i] = conform_tensor(run, 4 + i, CONFORM_SHAPE(s, 1, 1, d2));
  const int32_t sizes[] = {(int32_t)s, (int32_t)b, (int32_t)h, (int32_t)d, (int32_t)d2};
  const NVTE_QKV_Format format = bshd ? NVTE_BSHD : NVTE_SBHD;
  if (c->flags[0]) {
    nvte_fused_qkv_rope_backward(parts[0], parts[1], parts[2], freqs[0], freqs[1], all, format,
                                 c->flags[2], 1, 0, sizes[0], sizes[1], sizes[2], sizes[3],
                                 sizes[4], (int32_t)q, sizes[3], sizes[3], run->stream);
  } else {
    NVTETensor none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
    nvte_fused_qkv_rope_forward(all, freqs[0], freqs[1], none, parts[0], parts[1], parts[2], format,
                                c->flags[2], 1, 0, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                                (int32_t)q, sizes[3], sizes[3], run->stream);
  }
}

static inline bool conform_make_any_rope(ConformCase *c, ConformRandom *random, const char *variant,
                                         size_t index) {
  static const char *const names[] = {"queries", "keys", "values"};
  c->flags[0] = conform_is(variant, "qkv_backward");
  if (!c->flags[0] && !conform_is(variant, "qkv_forward")) {
    return conform_make_rope(c, random, variant, index);
  }
  const NVTEDType dtype = conform_high_of(index);
  const size_t s = c->n[0] = conform_within(random, 1, 20);
  const size_t b = c->n[1] = conform_within(random, 1, 3);
  const size_t h = c->n[2] = conform_within(random, 1, 3);
  const size_t d = c->n[3] = 2 * conform_within(random, 1, 40);
  const size_t d2 = c->n[4] = conform_chance(random, 60) ? d : 2 * conform_within(random, 1, d / 2);
  const size_t more = c->n[5] = conform_within(random, 1, 3);
  c->flags[1] = conform_chance(random, 50);
  c->flags[2] = conform_chance(random, 50);
  const size_t rows = s * b * h * d;
  if (c->flags[0]) {
    conform_sums(c, random, "gradients of all", dtype, rows * (more + 2), 2, 4);
  } else {
    conform_input(c, random, "all", dtype, rows * (more + 2), -2, 2);
  }
  for (int i = 0; i < 3; i++) {
    const size_t n = i == 0 ? rows * more : rows;
    if (c->flags[0]) {
      conform_input(c, random, names[i], dtype, n, -2, 2);
    } else {
      conform_sums(c, random, names[i], dtype, n, 2, 4);
    }
  }
  for (int i = 0; i < 2; i++) conform_input(c, random, "freqs", kNVTEFloat32, s * d2, -4, 4);
  c->call = conform_call_qkv_rope;
  snprintf(c->what, sizeof c->what, "%s, %s, s %zu, b %zu, %zu groups of %zu and 1 heads of %zu",
           conform_dtype_name(dtype), c->flags[1] ? "BSHD" : "SBHD", s, b, h, more, d);
  return true;
}

static inline void conform_call_scale_codes(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  NVTETensor input = conform_empty(run, c->mode);
  NVTETensor output = conform_empty(run, NVTE_MXFP8_1D_SCALING);
  conform_set(run, input, kNVTERowwiseData, 0, CONFORM_SHAPE(rows, cols));
  conform_set(run, output, kNVTERowwiseData, 0, CONFORM_SHAPE(rows, cols));
  conform_set(run, input, kNVTERowwiseScaleInv, 1, conform_scale_shape(c->mode, rows, cols, false));
  conform_set(run, output, kNVTERowwiseScaleInv, 2,
              conform_scale_shape(NVTE_MXFP8_1D_SCALING, rows, cols, false));
  const uint8_t in_tiles = true;
  nvte_set_tensor_param_v2(output, kNVTEWithGEMMSwizzledScales, &in_tiles, sizeof in_tiles);
  nvte_swizzle_block_scaling_to_mxfp8_scaling_factors(input, output, run->stream);
}

static inline bool conform_make_scale_codes(ConformCase *c, ConformRandom *random,
                                            const char *variant, size_t index) {
  if (*variant) return false;
  c->mode = index % 2 ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D;
  const size_t rows = c->n[0] = 32 * conform_within(random, 1, 10);
  const size_t cols = c->n[1] = 32 * conform_within(random, 1, 10);
  const NVTEShape shape = conform_scale_shape(c->mode, rows, cols, false);
  conform_add(c, "data", CONFORM_INPUT, kNVTEFloat8E4M3, rows * cols, 0);
  conform_input(c, random, "scale_inv", kNVTEFloat32, shape.data[0] * shape.data[1], 0.01, 100);
  c->buffers[1].shift = 0;
  conform_exact(c, "codes", kNVTEByte, 512 * ((rows + 127) / 128) * ((cols + 127) / 128));
  c->call = conform_call_scale_codes;
  snprintf(c->what, sizeof c->what, "%zux%zu%s", rows, cols, conform_mode_name(c->mode));
  return true;
}

static inline void conform_set_member(ConformRun *run, NVTEGroupedTensor tensor,
                                      NVTEGroupedTensorParam param, int buffer, NVTEShape shape) {
  NVTEBasicTensor basic;
  memset(&basic, 0, sizeof basic);
  basic.data_ptr = run->ptr[buffer];
  basic.dtype = run->c->buffers[buffer].dtype;
  basic.shape = shape;
  nvte_set_grouped_tensor_param(tensor, param, &basic, sizeof basic);
}

static inline void conform_call_group_amax(const ConformCase *c, ConformRun *run) {
  const size_t members = c->n[0], rows = c->n[1], cols = c->n[2];
  const NVTEShape shape = CONFORM_SHAPE(rows, cols);
  NVTEGroupedTensor input = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, members, shape);
  NVTEGroupedTensor output =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, members, shape);
  conform_set_member(run, input, kNVTEGroupedRowwiseData, 0, CONFORM_SHAPE(rows * cols));
  conform_set_member(run, output, kNVTEGroupedAmax, 1, CONFORM_SHAPE(members));
  nvte_group_compute_amax_with_config(input, output, NULL, run->stream);
  nvte_destroy_grouped_tensor(input);
  nvte_destroy_grouped_tensor(output);
}

static inline bool conform_make_group_amax(ConformCase *c, ConformRandom *random,
                                           const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t members = c->n[0] = conform_within(random, 1, 5);
  const size_t rows = c->n[1] = members * conform_within(random, 1, 60);
  const size_t cols = c->n[2] = conform_within(random, 1, 100);
  conform_input(c, random, "input", dtype, rows * cols, -10, 10);
  c->buffers[0].shift = 0;
  conform_exact(c, "amax", kNVTEFloat32, members);
  c->call = conform_call_group_amax;
  snprintf(c->what, sizeof c->what, "%s, %zu members, %zux%zu together", conform_dtype_name(dtype),
           members, rows, cols);
  return true;
}

// ---- quantize: groups

static inline void conform_call_group(const ConformCase *c, ConformRun *run) {
  const size_t members = c->n[0], rows = c->n[1], cols = c->n[2];
  const NVTEShape shape = CONFORM_SHAPE(rows, cols), flat = CONFORM_SHAPE(rows * cols);
  NVTEGroupedTensor input = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, members, shape);
  NVTEGroupedTensor output = nvte_create_grouped_tensor(c->mode, members, shape);
  conform_set_member(run, input, kNVTEGroupedRowwiseData, 0, flat);
  conform_set_member(run, output, kNVTEGroupedRowwiseData, 1, flat);
  const NVTEShape scales = CONFORM_SHAPE(c->buffers[2].count);
  conform_set_member(
      run, output,
      c->mode == NVTE_MXFP8_1D_SCALING ? kNVTEGroupedRowwiseScaleInv : kNVTEGroupedScale, 2,
      scales);
  if (c->flags[0]) {
    conform_set_member(run, output, kNVTEGroupedFirstDims, 3, CONFORM_SHAPE(members));
    conform_set_member(run, output, kNVTEGroupedTensorOffsets, 4, CONFORM_SHAPE(members + 1));
  }
  if (c->mode != NVTE_MXFP8_1D_SCALING) {
    conform_set_member(run, output, kNVTEGroupedRowwiseScaleInv, c->num_buffers - 1, scales);
  }
  nvte_group_quantize(input, output, NULL, run->stream);
  nvte_destroy_grouped_tensor(input);
  nvte_destroy_grouped_tensor(output);
}

// Casts of single tensors, and one in four of a group of tensors.
static inline bool conform_make_quantize_or_group(ConformCase *c, ConformRandom *random,
                                                  const char *variant, size_t index) {
  if (!conform_is(variant, "cast") || index % 4 != 3) {
    return conform_make_quantize(c, random, variant, index);
  }
  const bool mxfp8 = index / 4 % 2;
  const NVTEDType in = conform_high_of(index / 8);
  const NVTEDType out = index / 8 % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  const size_t members = c->n[0] = conform_within(random, 1, 4), round = mxfp8 ? 128 : 16;
  const size_t cols = c->n[2] = 32 * conform_within(random, 1, 5);
  c->mode = mxfp8 ? NVTE_MXFP8_1D_SCALING : NVTE_DELAYED_TENSOR_SCALING;
  c->flags[0] = conform_chance(random, 50);
  int64_t of_member[4];
  const int64_t most = mxfp8 ? 2 : 6, same = (int64_t)conform_within(random, 1, (size_t)most);
  for (size_t t = 0; t < members; t++) {
    of_member[t] =
        (int64_t)round *
        (c->flags[0] ? (int64_t)conform_within(random, t > 0 ? 0 : 1, (size_t)most) : same);
    c->n[1] += (size_t)of_member[t];
  }
  const size_t rows = c->n[1];
  conform_input(c, random, "input", in, rows * cols, -4, 4);
  c->buffers[conform_output(c, random, "output", out, rows * cols)].relative = 1;
  if (mxfp8) {
    conform_exact(c, "scales", kNVTEByte, rows * 4 * ((cols + 127) / 128));
  } else {
    conform_input(c, random, "scale", kNVTEFloat32, members, 0.5, 8);
  }
  if (c->flags[0]) {
    const int dims = conform_add(c, "first_dims", CONFORM_INPUT, kNVTEInt64, members, 0);
    const int offsets = conform_add(c, "tensor_offsets", CONFORM_INPUT, kNVTEInt64, members + 1, 0);
    int64_t offset = 0;
    for (size_t t = 0; t < members; t++) {
      conform_put(c, dims, t, of_member[t]);
      conform_put(c, offsets, t, offset);
      offset += of_member[t] * (int64_t)cols;
    }
    conform_put(c, offsets, members, offset);
  }
  if (!mxfp8) conform_input(c, random, "scale_inv", kNVTEFloat32, members, 0.1, 2);
  for (int i = 0; i < c->num_buffers; i++) c->buffers[i].shift = 0;
  c->call = conform_call_group;
  snprintf(c->what, sizeof c->what, "%s to %s, a group of %zu, %zux%zu together%s",
           conform_dtype_name(in), conform_dtype_name(out), members, rows, cols,
           conform_mode_name(c->mode));
  return true;
}

#endif  // NVTE_CONFORM_TRAINING_H
