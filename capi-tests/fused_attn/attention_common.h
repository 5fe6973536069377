// What the tests of attention share: a float64 reference, element by element (attention.md sections
// 3 to 8 and 12), tensors of every layout, and one attention through either generation of the
// interface. Outputs and what must not be read are poisoned.
#ifndef NVTE_CAPI_TESTS_ATTENTION_COMMON_H
#define NVTE_CAPI_TESTS_ATTENTION_COMMON_H

#include "nvte/fused_attn.h"
#include "support.h"

// ---- Reference

// An attention of logical tensors: q [b, s_q, h_q, d_qk], k [b, s_kv, h_kv, d_qk], v, o and so on.
typedef struct Problem {
  size_t b, hq, hkv, sq, skv, dqk, dv;
  int lq[8], lk[8];
  double scale, dropout;
  int64_t left, right;
  bool bottom_right, alibi;
  // A dimension is 1 where the bias is broadcast.
  size_t bias_dims[4];
  uint64_t seed, offset;
  // FP8: type of p and of the scores' gradient, and the factors of the tensors.
  bool fp8;
  NVTEDType p_type, ds_type;
  double inv_q, inv_k, inv_v, inv_o, inv_do, scale_s, inv_s, scale_dp, inv_dp;
  double *q, *k, *v, *d_o, *bias, *sink;
  // Results of the forward pass, which the backward pass reads.
  double *o, *stats;
  double *max, *dq, *dk, *d_v, *dbias, *dsink;
  double amax_s, amax_dp;
} Problem;

static inline double *doubles(size_t n) { return host_memory(n * sizeof(double)); }

// Philox with seven rounds.
static inline void philox(uint64_t seed, uint64_t counter, uint64_t group, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t x0 = (uint32_t)counter, x1 = (uint32_t)(counter >> 32), x2 = (uint32_t)group,
           x3 = (uint32_t)(group >> 32);
  for (int round = 0; round < 7; round++) {
    uint64_t a = (uint64_t)0xD2511F53u * x0, b = (uint64_t)0xCD9E8D57u * x2;
    uint32_t y0 = (uint32_t)(b >> 32) ^ x1 ^ k0, y2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
    x1 = (uint32_t)b, x3 = (uint32_t)a, x0 = y0, x2 = y2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

static inline bool kept(const Problem *p, size_t i, size_t j, size_t r, size_t c) {
  if (p->dropout == 0) return true;
  // A call for two rows, two columns and what lies eight from them, in tiles of 16 by 16.
  uint64_t tile = ((i * p->hq + j) * ((p->sq + 15) / 16) + r / 16) * ((p->skv + 15) / 16) + c / 16;
  unsigned rows = (unsigned)(r % 8 / 2), columns = (unsigned)(c % 8 / 2);
  uint32_t words[4];
  philox(p->seed, p->offset / 4, 16 * tile + 4 * rows + columns, words);
  uint32_t byte = words[2 * (r % 2) + c % 2] >> (8 * (2 * (c / 8 % 2) + r / 8 % 2)) & 0xFF;
  unsigned level = (unsigned)floor(4096 * p->dropout + 0.5);
  return 16 * byte + 4 * ((rows + columns) % 4) + rows >= (level < 4080 ? level : 4080);
}

static inline bool admissible(const Problem *p, size_t i, int64_t r, int64_t c) {
  int64_t shift = p->bottom_right ? p->lk[i] - p->lq[i] : 0;
  if (r >= p->lq[i] || c >= p->lk[i]) return false;
  if (p->right != -1 && c > r + shift + p->right) return false;
  return p->left == -1 || c >= r + shift - p->left;
}

static inline double alibi_slope(size_t heads, size_t j) {
  size_t n = 1;
  while (2 * n <= heads) n *= 2;
  if (j < n) return pow(2, -8.0 * (double)(j + 1) / (double)n);
  return pow(2, -4.0 * (double)(2 * (j - n) + 1) / (double)n);
}

static inline double *q_at(const Problem *p, double *q, size_t i, size_t r, size_t j, size_t dim) {
  return q + ((i * p->sq + r) * p->hq + j) * dim;
}

static inline double *kv_at(const Problem *p, double *k, size_t i, size_t c, size_t j, size_t dim) {
  return k + ((i * p->skv + c) * p->hkv + j / (p->hq / p->hkv)) * dim;
}

static inline size_t bias_at(const Problem *p, size_t i, size_t j, size_t r, size_t c) {
  const size_t *d = p->bias_dims;
  return ((i % d[0] * d[1] + j % d[1]) * d[2] + r % d[2]) * d[3] + c;
}

static inline double dot(const double *a, const double *b, size_t n) {
  double sum = 0;
  for (size_t x = 0; x < n; x++) sum += a[x] * b[x];
  return sum;
}

static inline double score(const Problem *p, size_t i, size_t j, size_t r, size_t c) {
  double x = p->scale * p->inv_q * p->inv_k *
             dot(q_at(p, p->q, i, r, j, p->dqk), kv_at(p, p->k, i, c, j, p->dqk), p->dqk);
  if (p->bias) x += p->bias[bias_at(p, i, j, r, c)];
  if (p->alibi) x += alibi_slope(p->hq, j) * ((double)c - (double)r);
  return x;
}

// Scores of a row, -inf where not admissible.
static inline void row_scores(const Problem *p, size_t i, size_t j, size_t r, double *x) {
  for (size_t c = 0; c < p->skv; c++) {
    x[c] = admissible(p, i, (int64_t)r, (int64_t)c) ? score(p, i, j, r, c) : -(double)INFINITY;
  }
}

static inline void reference_forward(Problem *p) {
  double *x = doubles(p->skv);
  p->o = doubles(p->b * p->sq * p->hq * p->dv);
  p->stats = doubles(p->b * p->hq * p->sq);
  p->max = doubles(p->b * p->hq * p->sq);
  p->amax_s = 0;
  for (size_t row = 0; row < p->b * p->hq * p->sq; row++) {
    size_t r = row % p->sq, j = row / p->sq % p->hq, i = row / p->sq / p->hq;
    double *o = q_at(p, p->o, i, r, j, p->dv), most = -(double)INFINITY, sum = 0;
    row_scores(p, i, j, r, x);
    for (size_t c = 0; c < p->skv; c++) most = fmax(most, x[c]);
    p->max[row] = p->stats[row] = most;
    if (isinf(most)) continue;
    if (p->sink) most = fmax(most, p->sink[j]);
    if (p->sink) sum += exp(p->sink[j] - most);
    for (size_t c = 0; c < p->skv; c++) sum += exp(x[c] - most);
    p->stats[row] = most + log(sum);
    for (size_t c = 0; c < p->skv; c++) {
      if (isinf(x[c]) || !kept(p, i, j, r, c)) continue;
      double z = exp(x[c] - most) / sum / (1 - p->dropout);
      if (p->fp8) {
        p->amax_s = fmax(p->amax_s, z);
        z = round_to(p->p_type, z * p->scale_s);
      }
      const double *v = kv_at(p, p->v, i, c, j, p->dv);
      for (size_t d = 0; d < p->dv; d++) o[d] += z * v[d];
    }
    for (size_t d = 0; d < p->dv; d++) o[d] *= p->inv_s * p->inv_v;
  }
}

static inline void reference_backward(Problem *p) {
  size_t dqk = p->dqk, dv = p->dv;
  double *x = doubles(p->skv);
  p->dq = doubles(p->b * p->sq * p->hq * dqk);
  p->dk = doubles(p->b * p->skv * p->hkv * dqk);
  p->d_v = doubles(p->b * p->skv * p->hkv * dv);
  p->dsink = doubles(p->hq);
  const size_t *dims = p->bias_dims;
  if (p->bias) p->dbias = doubles(dims[0] * dims[1] * dims[2] * dims[3]);
  p->amax_dp = 0;
  for (size_t row = 0; row < p->b * p->hq * p->sq; row++) {
    size_t r = row % p->sq, j = row / p->sq % p->hq, i = row / p->sq / p->hq;
    if ((int)r >= p->lq[i]) continue;
    const double *d_o = q_at(p, p->d_o, i, r, j, dv), *q = q_at(p, p->q, i, r, j, dqk);
    double *dq = q_at(p, p->dq, i, r, j, dqk), stats = p->stats[row];
    double total = dot(d_o, q_at(p, p->o, i, r, j, dv), dv) * p->inv_do * p->inv_o;
    if (isinf(stats)) continue;
    if (p->sink) p->dsink[j] -= exp(p->sink[j] - stats) * total;
    row_scores(p, i, j, r, x);
    for (size_t c = 0; c < p->skv; c++) {
      if (isinf(x[c])) continue;
      const double *k = kv_at(p, p->k, i, c, j, dqk), *v = kv_at(p, p->v, i, c, j, dv);
      double *dk = kv_at(p, p->dk, i, c, j, dqk), *dvalue = kv_at(p, p->d_v, i, c, j, dv);
      double keep = kept(p, i, j, r, c) ? 1 / (1 - p->dropout) : 0, prob = exp(x[c] - stats);
      double ds = prob * (keep * dot(d_o, v, dv) * p->inv_do * p->inv_v - total);
      double z = keep * prob;
      if (p->bias) p->dbias[bias_at(p, i, j, r, c)] += ds;
      ds *= p->scale;
      if (p->fp8) {
        p->amax_dp = fmax(p->amax_dp, fabs(ds));
        ds = round_to(p->ds_type, ds * p->scale_dp) * p->inv_dp;
        z = round_to(p->p_type, z * p->scale_s) * p->inv_s;
      }
      for (size_t d = 0; d < dqk; d++) dq[d] += ds * k[d] * p->inv_k;
      for (size_t d = 0; d < dqk; d++) dk[d] += ds * q[d] * p->inv_q;
      for (size_t d = 0; d < dv; d++) dvalue[d] += z * d_o[d] * p->inv_do;
    }
  }
}

// ---- Tensors in memory

typedef enum Order { SBHD, BSHD, THD, BHSD } Order;

static const NVTE_QKV_Format kFormats[] = {NVTE_SBHD, NVTE_BSHD, NVTE_THD, NVTE_BHSD};

// Layouts by the table of section 2: tensors that lie together, between heads or between rows, and
// the orders of both sides.
typedef struct LayoutInfo {
  int together, inner;
  Order q, kv;
  bool paged;
} LayoutInfo;

static inline LayoutInfo layout_info(int id) {
  static const Order orders[] = {SBHD, BSHD, THD};
  static const int together[] = {3, 3, 2, 2, 1}, inner[] = {0, 1, 0, 1, 0};
  static const Order mixed[][2] = {{SBHD, BSHD}, {BSHD, SBHD}, {THD, BSHD},  {THD, SBHD},
                                   {BSHD, BSHD}, {BSHD, SBHD}, {SBHD, BSHD}, {SBHD, SBHD},
                                   {THD, BSHD},  {THD, SBHD},  {BHSD, BHSD}};
  if (id < 15) {
    return (LayoutInfo){together[id % 5], inner[id % 5], orders[id / 5], orders[id / 5], false};
  }
  return (LayoutInfo){1, 0, mixed[id - 15][0], mixed[id - 15][1], id >= 19 && id < 25};
}

// A logical [b, s, h, d] in a buffer of elements.
typedef struct View {
  Buffer *buffer;
  NVTEDType dtype;
  size_t first, batch, row, head, dim, rows, heads, count;
  Order order;
  const int *starts;
  NVTETensor handle;
  Buffer *scale, *scale_inv, *amax;
  double factor;
} View;

typedef struct Config {
  int layout, dqkv_layout, mask, bias, softmax;
  Order o_order, do_order;
  // Keys from `masked_from` on, unless it is 0, have this bias.
  size_t masked_from;
  double lowest_bias;
  NVTEDType dtype, o_dtype, do_dtype, dqkv_dtype, bias_dtype;
  int64_t left, right;
  bool bottom_right, max_logit, deterministic, null_sink, no_padded, v1, training;
  int starts[2][10], tokens[2], page_size, per_sequence, pages;
} Config;

static inline size_t place_at(const View *v, size_t i, size_t r, size_t j, size_t d) {
  size_t row = v->order == THD ? ((size_t)v->starts[i] + r) * v->row : i * v->batch + r * v->row;
  return v->first + row + j * v->head + d;
}

// One of `together` tensors in a buffer that is made for the first of them.
static inline View make_view(const Problem *p, const Config *c, int side, Order order, size_t dim,
                             NVTEDType dtype, int together, int inner, int part, Buffer *shared) {
  size_t h = side ? p->hkv : p->hq, s = side ? p->skv : p->sq, n = (size_t)together;
  size_t width = n * h * dim;
  View v = {.dtype = dtype, .dim = dim, .rows = s, .heads = h, .order = order, .factor = 1};
  v.starts = c->starts[side];
  size_t elements = order == THD ? (size_t)c->tokens[side] * width : p->b * s * width;
  v.first = (size_t)part * (inner ? dim : h * dim);
  v.head = inner ? n * dim : dim;
  v.row = order == SBHD ? p->b * width : width;
  v.batch = order == SBHD ? width : s * width;
  if (order == BHSD) v.batch = h * s * dim, v.head = s * dim, v.row = dim;
  v.buffer = shared ? shared : buffer(elements * dtype_size(dtype));
  v.count = elements;
  NVTEShape shapes[] = {SHAPE(s, p->b, h, dim), SHAPE(p->b, s, h, dim),
                        SHAPE((size_t)c->tokens[side], h, dim), SHAPE(p->b, h, s, dim)};
  v.handle = tensor(v.buffer->ptr + v.first * dtype_size(dtype), dtype, shapes[order]);
  return v;
}

static inline void make_views(const Problem *p, const Config *c, int layout, NVTEDType dtype,
                              View *q, View *k, View *v) {
  LayoutInfo l = layout_info(layout);
  bool all = l.together == 3;
  int kv = l.together;
  *q = make_view(p, c, 0, l.q, p->dqk, dtype, all ? 3 : 1, l.inner, 0, NULL);
  *k = make_view(p, c, all ? 0 : 1, l.kv, p->dqk, dtype, kv, l.inner, all, all ? q->buffer : NULL);
  *v = make_view(p, c, all ? 0 : 1, l.kv, p->dv, dtype, kv, l.inner, all ? 2 : kv == 2,
                 kv > 1 ? k->buffer : NULL);
}

static inline void set_float(View *v, NVTETensorParam param, Buffer **field, float value) {
  *field = buffer_float(value);
  set_param(v->handle, param, (*field)->ptr, kNVTEFloat32, SHAPE(1));
}

// Values of the rows inside the sequences; the others stay poisoned.
static inline void fill_view(const Problem *p, const View *v, const int *lengths,
                             const double *values) {
  unsigned char *host = buffer_read(v->buffer);
  for (size_t i = 0; i < p->b; i++)
    for (size_t r = 0; r < (size_t)lengths[i]; r++)
      for (size_t j = 0; j < v->heads; j++)
        for (size_t d = 0; d < v->dim; d++)
          put_value(v->dtype, host, place_at(v, i, r, j, d),
                    values[((i * v->rows + r) * v->heads + j) * v->dim + d]);
  upload(v->buffer->ptr, host, v->buffer->bytes);
}

// Values of U(-top, top) that the dtype can represent.
static inline double *rounded_values(NVTEDType dtype, size_t n, double top) {
  double *values = doubles(n);
  for (size_t i = 0; i < n; i++) values[i] = round_to(dtype, random_uniform(-top, top));
  return values;
}

// ---- Comparison

// How far an element and the whole may be off: spec section 19, and by the size of the values.
typedef struct Bound {
  double element, rms;
} Bound;

static inline Bound bound_of(const Problem *p, NVTEDType dtype) {
  if (p->fp8) return (Bound){0.1, on_cuda() ? 0.06 : 0.02};
  // Tensor cores take probabilities and gradients of scores in 16 bits. Dropout keeps one in n of
  // them and multiplies it by n: the error of their sum grows by the root of n.
  double more = on_cuda() ? 1.5 / sqrt(1 - p->dropout) : 1;
  switch (dtype) {
    case kNVTEFloat16:
      return (Bound){1e-3 * more, 2e-3};
    case kNVTEBFloat16:
      return (Bound){1.5e-2 * more, 1e-2};
    default:
      return (Bound){2e-5, 1e-5};
  }
}

static const char *g_text;  // the configuration, for messages

// Elements of a buffer that are expected; NaN: untouched, -0: exactly 0.
typedef struct Expected {
  Buffer *buffer;
  NVTEDType dtype;
  double *values;
  size_t count;
} Expected;

static inline Expected expected_of(const View *v) {
  Expected e = {v->buffer, v->dtype, doubles(v->count), v->count};
  for (size_t n = 0; n < v->count; n++) e.values[n] = (double)NAN;
  return e;
}

static inline void expect_view(const Problem *p, Expected *e, const View *v, const int *lengths,
                               const double *values) {
  for (size_t i = 0; i < p->b; i++) {
    size_t rows = v->order == THD ? (size_t)lengths[i] : v->rows;
    for (size_t r = 0; r < rows; r++)
      for (size_t j = 0; j < v->heads; j++)
        for (size_t d = 0; d < v->dim; d++) {
          double value = values[((i * v->rows + r) * v->heads + j) * v->dim + d];
          e->values[place_at(v, i, r, j, d)] = r < (size_t)lengths[i] ? value * v->factor : -0.0;
        }
  }
}

// What may be left of FP8 values that cancel: tensor cores add products of FP8 with fewer bits than
// float32 has, to about 2^-13 of the largest. Results in FP8 are multiplied by 32 or 64.
static inline double residue(bool fp8_out) { return !on_cuda() ? 1e-6 : fp8_out ? 6e-3 : 1e-4; }

static inline void compare(const Problem *p, const char *name, const Expected *e, Bound bound) {
  const unsigned char *got = buffer_read(e->buffer);
  double top = 0, squares = 0;
  size_t count = 0, bad = 0;
  bool fp8_out = is_fp8(e->dtype);
  for (size_t n = 0; n < e->count; n++)
    if (isfinite(e->values[n])) top = fmax(top, fabs(e->values[n]));
  for (size_t n = 0; n < e->count && bad < 3; n++) {
    uint32_t bits = get_bits(e->dtype, got, n);
    double want = e->values[n], x = decode_bits(e->dtype, bits);
    if (isnan(want)) {
      uint32_t poison = dtype_size(e->dtype) == 4 ? UINT32_MAX : (1u << dtype_bits(e->dtype)) - 1;
      bad += !CHECK(bits == poison, "%s[%zu] of %zu was written: %g; %s", name, n, e->count, x,
                    g_text);
      continue;
    }
    if (isinf(want)) {
      bad += !CHECK(x == want, "%s[%zu] of %zu: %g for %g; %s", name, n, e->count, x, want, g_text);
      continue;
    }
    bool exact = want == 0 && signbit(want);
    if (fp8_out && want != 0) want = round_to(e->dtype, want);
    double allowed =
        p->fp8 ? bound.element * top + (fp8_out ? 0.25 * fabs(want) : 0) + residue(fp8_out)
               : bound.element * (1 + fabs(want));
    if (exact) allowed = 0;
    bad += !CHECK(fabs(x - want) <= allowed, "%s[%zu] of %zu: %g for %g (allowed %g); %s", name, n,
                  e->count, x, want, allowed, g_text);
    squares += (x - want) * (x - want);
    count++;
  }
  if (bad || count == 0) return;
  double rms = sqrt(squares / (double)count);
  // Where values cancel, float32 leaves a few units of its error.
  double least = p->fp8 ? fmax(1e-5, residue(fp8_out)) : 1e-5;
  CHECK(rms <= bound.rms * top + least, "%s: rms %g of values up to %g; %s", name, rms, top,
        g_text);
}

static inline void compare_view(const Problem *p, const char *name, const View *v,
                                const int *lengths, const double *values) {
  Expected e = expected_of(v);
  expect_view(p, &e, v, lengths, values);
  compare(p, name, &e, bound_of(p, v->dtype));
}

static inline void check_amax(const char *name, const Buffer *amax, double want) {
  if (!amax) return;
  double got = read_float(amax), allowed = (on_cuda() ? 0.12 : 0.02) * want + residue(false);
  CHECK(fabs(got - want) <= allowed, "amax of %s: %g for %g; %s", name, got, want, g_text);
}

static inline double largest(const double *values, size_t n) {
  double top = 0;
  for (size_t i = 0; i < n; i++) top = fmax(top, fabs(values[i]));
  return top;
}

// ---- One attention through the interface

typedef struct Run {
  Problem p;
  Config c;
  View q, k, v, o, d_o, dq, dk, dv;
  NVTETensor bias, sink, s, dp, cu[2], padded[2], tables[2], rng, dbias, dsink;
  Buffer *bias_data, *sink_data, *dbias_data, *dsink_data, *s_amax, *dp_amax;
  Expected stats, max;
  Buffer *stats_data, *max_data;
  NVTETensorPack pack;
  NVTETensor workspace;
  const NVTETensorPack *saved;
} Run;

static inline NVTEShape stats_shape(const Run *x) {
  if (x->o.starts && layout_info(x->c.layout).q == THD)
    return SHAPE((size_t)x->c.tokens[0], x->p.hq, 1);
  return SHAPE(x->p.b, x->p.hq, x->p.sq, 1);
}

typedef void (*Setter)(void *params, int attr, const void *value, size_t bytes);

static inline void set_forward(void *params, int attr, const void *value, size_t bytes) {
  nvte_set_fused_attn_fwd_params_attribute(params, (NVTEFusedAttnFwdParamsAttribute)attr, value,
                                           bytes);
}

static inline void set_backward(void *params, int attr, const void *value, size_t bytes) {
  nvte_set_fused_attn_bwd_params_attribute(params, (NVTEFusedAttnBwdParamsAttribute)attr, value,
                                           bytes);
}

// The attributes that both passes have: the first ones, those from the mask to the format of O,
// and those from the longest sequences to the workspace.
static inline void set_common(const Run *x, Setter set, void *params, const void *const *handles,
                              int num_handles, int mask, int max_seqlen) {
  const Config *c = &x->c;
  const Problem *p = &x->p;
  float scale = (float)p->scale, dropout = (float)p->dropout;
  uint8_t bottom_right = c->bottom_right;
  NVTE_QKV_Format o_format = kFormats[c->o_order];
  for (int i = 0; i < num_handles; i++) set(params, i, &handles[i], 8);
  set(params, mask, &c->mask, 4);
  set(params, mask + 1, &c->bias, 4);
  set(params, mask + 2, &c->left, 8);
  set(params, mask + 3, &c->right, 8);
  set(params, mask + 4, &bottom_right, 1);
  set(params, mask + 5, &c->softmax, 4);
  set(params, mask + 6, &dropout, 4);
  set(params, mask + 7, &scale, 4);
  set(params, mask + 8, &c->layout, 4);
  set(params, mask + 9, &o_format, 4);
  set(params, max_seqlen, &p->sq, 8);
  set(params, max_seqlen + 1, &p->skv, 8);
  set(params, max_seqlen + 2, &x->workspace, 8);
}

static inline void call_forward(Run *x) {
  const Config *c = &x->c;
  const Problem *p = &x->p;
  float scale = (float)p->scale, dropout = (float)p->dropout;
  NVTE_QKV_Format o_format = kFormats[c->o_order];
  NVTETensorPack *pack = &x->pack;
  if (c->v1) {
    nvte_fused_attn_fwd(
        x->q.handle, x->k.handle, x->v.handle, x->bias, x->sink, x->s, x->o.handle, pack, x->cu[0],
        x->cu[1], x->padded[0], x->padded[1], x->tables[0], x->tables[1], x->rng, p->sq, p->skv,
        c->training, c->max_logit, false, scale, dropout, (NVTE_QKV_Layout)c->layout, o_format,
        NVTE_QKV_Format_NOT_SET, (NVTE_Bias_Type)c->bias, (NVTE_Mask_Type)c->mask,
        (NVTE_Softmax_Type)c->softmax, c->left, c->right, c->bottom_right, x->workspace, NULL);
    return;
  }
  NVTEFusedAttnFwdParams params = nvte_create_fused_attn_fwd_params();
  uint8_t training = c->training, max_logit = c->max_logit;
  const void *const handles[] = {x->q.handle,  x->k.handle,  x->v.handle,  x->bias,      x->sink,
                                 x->s,         x->o.handle,  pack,         x->cu[0],     x->cu[1],
                                 x->padded[0], x->padded[1], x->tables[0], x->tables[1], x->rng};
  set_common(x, set_forward, params, handles, COUNT(handles), 18, 29);
  set_forward(params, 15, &training, 1);
  set_forward(params, 17, &max_logit, 1);
  nvte_fused_attn_fwd_v2(params);
  nvte_destroy_fused_attn_fwd_params(params);
}

static inline void call_backward(Run *x) {
  const Config *c = &x->c;
  const Problem *p = &x->p;
  float scale = (float)p->scale, dropout = (float)p->dropout;
  NVTE_QKV_Format o_format = kFormats[c->o_order], do_format = kFormats[c->do_order];
  if (c->v1) {
    nvte_fused_attn_bwd(x->q.handle, x->k.handle, x->v.handle, x->o.handle, x->d_o.handle, x->s,
                        x->dp, x->saved, x->dq.handle, x->dk.handle, x->dv.handle, x->dbias,
                        x->dsink, x->cu[0], x->cu[1], x->padded[0], x->padded[1], p->sq, p->skv,
                        scale, dropout, (NVTE_QKV_Layout)c->layout, o_format, do_format,
                        (NVTE_QKV_Layout)c->dqkv_layout, NVTE_QKV_Format_NOT_SET,
                        NVTE_QKV_Format_NOT_SET, (NVTE_Bias_Type)c->bias, (NVTE_Mask_Type)c->mask,
                        (NVTE_Softmax_Type)c->softmax, c->left, c->right, c->bottom_right,
                        c->deterministic, false, x->workspace, NULL);
    return;
  }
  NVTEFusedAttnBwdParams params = nvte_create_fused_attn_bwd_params();
  uint8_t deterministic = c->deterministic;
  const void *const handles[] = {
      x->q.handle, x->k.handle, x->v.handle,  x->o.handle,  x->d_o.handle, x->s,
      x->dp,       x->saved,    x->dq.handle, x->dk.handle, x->dv.handle,  x->dbias,
      x->dsink,    x->cu[0],    x->cu[1],     x->padded[0], x->padded[1]};
  set_common(x, set_backward, params, handles, COUNT(handles), 19, 33);
  set_backward(params, 17, &deterministic, 1);
  set_backward(params, 29, &do_format, 4);
  set_backward(params, 30, &c->dqkv_layout, 4);
  nvte_fused_attn_bwd_v2(params);
  nvte_destroy_fused_attn_bwd_params(params);
}

static inline NVTEFusedAttnConfig make_config(const Run *x) {
  const Config *c = &x->c;
  const Problem *p = &x->p;
  NVTEFusedAttnConfig config = nvte_create_fused_attn_config();
  uint8_t training = c->training, max_logit = c->max_logit, bottom_right = c->bottom_right,
          deterministic = c->deterministic;
  float dropout = (float)p->dropout, scale = (float)p->scale;
  NVTE_QKV_Format o_format = kFormats[c->o_order], do_format = kFormats[c->do_order];
  size_t tokens[2] = {(size_t)c->tokens[0], (size_t)c->tokens[1]};
  size_t pages[3] = {(size_t)c->pages, (size_t)c->page_size, (size_t)c->per_sequence};
  const struct {
    int attr;
    const void *value;
    size_t bytes;
  } words[] = {{0, &training, 1},         {1, &deterministic, 1},
               {3, &max_logit, 1},        {4, &c->mask, 4},
               {5, &c->bias, 4},          {6, &c->left, 8},
               {7, &c->right, 8},         {8, &bottom_right, 1},
               {9, &c->softmax, 4},       {11, &dropout, 4},
               {12, &scale, 4},           {13, &c->dtype, 4},
               {14, &c->o_dtype, 4},      {15, &c->do_dtype, 4},
               {16, &c->dqkv_dtype, 4},   {17, &c->layout, 4},
               {18, &o_format, 4},        {19, &do_format, 4},
               {20, &c->dqkv_layout, 4},  {23, &p->b, 8},
               {24, &p->hq, 8},           {25, &p->hkv, 8},
               {26, &p->dqk, 8},          {27, &p->dv, 8},
               {28, &p->sq, 8},           {29, &p->skv, 8},
               {30, &tokens[0], 8},       {31, &tokens[1], 8},
               {32, &pages[0], 8},        {33, &pages[0], 8},
               {34, &pages[1], 8},        {35, &pages[1], 8},
               {36, &pages[2], 8},        {37, &pages[2], 8},
               {38, &p->bias_dims[0], 8}, {39, &p->bias_dims[1], 8},
               {40, &p->bias_dims[2], 8}, {41, &p->bias_dims[3], 8}};
  for (size_t i = 0; i < COUNT(words); i++) {
    nvte_set_fused_attn_config_attribute(config, (NVTEFusedAttnConfigAttribute)words[i].attr,
                                         words[i].value, words[i].bytes);
  }
  return config;
}

// Whether the backend has an implementation of a pass, and its workspace.
static inline bool supported(const Run *x, NVTEXAttentionPass pass, size_t *workspace,
                             const char **why) {
  NVTEFusedAttnConfig config = make_config(x);
  const char *name = "", *rejected = "";
  NVTE_Fused_Attn_Backend kind = nvtex_fused_attn_query(config, pass, &name, &rejected, workspace);
  EXPECT_OK();
  *why = rejected;
  bool found = kind != NVTE_No_Backend;
  CHECK(found == (name != NULL), "kind %d, name %s", (int)kind, name ? name : "null");
  if (found) CHECK_EQ(kind, x->p.fp8 ? NVTE_FP8 : NVTE_F16_arbitrary_seqlen);
  const char *message = NULL;
  if (pass == NVTEX_ATTENTION_FORWARD && !x->c.training) {
    char kept_text[512];
    snprintf(kept_text, sizeof kept_text, "%s", rejected);
    CHECK_EQ(nvte_get_fused_attn_backend_v2(config, &message), kind);
    CHECK(message && (message[0] == 0) == found, "message \"%s\"", message ? message : "null");
    static char kept_why[512];
    memcpy(kept_why, kept_text, sizeof kept_why);
    *why = kept_why;
  }
  nvte_destroy_fused_attn_config(config);
  return found;
}

static unsigned g_ran, g_declined_passes;

// A pass that the query says is declined must be refused, and write nothing.
static inline bool declined(Run *x, void (*call)(Run *), NVTEXAttentionPass pass,
                            size_t *workspace) {
  const char *why;
  if (supported(x, pass, workspace, &why)) {
    g_ran++;
    return false;
  }
  CHECK(why[0] != 0, "declined without a reason; %s", g_text);
  CHECK(on_cuda() && x->p.fp8, "declined: %s; %s", why, g_text);
  if (g_declined_passes++ < 40) printf("declined: %s\n  %s\n", g_text, why);
  x->workspace = empty_tensor();
  call(x);
  EXPECT_ERROR(ANY_ERROR, "nvte_fused_attn");
  return true;
}

static inline bool query_workspace(Run *x, void (*call)(Run *), size_t planned) {
  x->workspace = empty_tensor();
  call(x);
  if (!EXPECT_OK()) return false;
  NVTEShape shape = nvte_tensor_shape(x->workspace);
  CHECK_EQ(nvte_tensor_type(x->workspace), kNVTEByte);
  CHECK(shape.ndim == 1, "%zu dimensions", shape.ndim);
  size_t bytes = shape.data[0];
  CHECK(bytes == (planned ? planned : 1), "workspace of %zu bytes, planned %zu; %s", bytes, planned,
        g_text);
  x->workspace = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
  return true;
}

static inline NVTETensor ints(const int *values, size_t n) {
  return tensor(buffer_from(values, n * sizeof(int), 0)->ptr, kNVTEInt32, SHAPE(n));
}

static inline void make_pages(Run *x, View *view, NVTETensor *table, size_t dim,
                              const double *values) {
  Problem *p = &x->p;
  Config *c = &x->c;
  size_t pages = (size_t)c->pages, size = (size_t)c->page_size, per = (size_t)c->per_sequence;
  size_t width = p->hkv * dim;
  bool sbhd = layout_info(c->layout).kv == SBHD;
  int *entries = host_memory(p->b * per * sizeof(int)), *order = host_memory(pages * sizeof(int));
  for (size_t n = 0; n < pages; n++) order[n] = (int)n;
  for (size_t n = pages; n > 1; n--) {
    size_t other = random_below(n);
    int kept_page = order[n - 1];
    order[n - 1] = order[other], order[other] = kept_page;
  }
  size_t used = 0;
  *view = (View){.dtype = c->dtype, .dim = dim, .factor = 1};
  view->buffer = buffer(pages * size * width * dtype_size(c->dtype));
  unsigned char *host = buffer_read(view->buffer);
  for (size_t i = 0; i < p->b; i++) {
    for (size_t n = 0; n < per; n++)
      entries[i * per + n] = n * size < (size_t)p->lk[i] ? order[used++] : (int)pages + 1000;
    for (size_t t = 0; t < (size_t)p->lk[i]; t++) {
      size_t page = (size_t)entries[i * per + t / size], slot = t % size;
      size_t at = sbhd ? (slot * pages + page) * width : (page * size + slot) * width;
      for (size_t e = 0; e < width; e++)
        put_value(c->dtype, host, at + e, values[(i * p->skv + t) * width + e]);
    }
  }
  upload(view->buffer->ptr, host, view->buffer->bytes);
  view->handle = tensor(view->buffer->ptr, c->dtype,
                        sbhd ? SHAPE(size, pages, p->hkv, dim) : SHAPE(pages, size, p->hkv, dim));
  *table =
      tensor(buffer_from(entries, p->b * per * sizeof(int), 0)->ptr, kNVTEInt32, SHAPE(p->b, per));
}

// Builds everything that a forward pass takes.
static inline void build_forward(Run *x) {
  Problem *p = &x->p;
  Config *c = &x->c;
  LayoutInfo l = layout_info(c->layout);
  p->fp8 = is_fp8(c->dtype);
  p->p_type = c->dtype, p->ds_type = c->do_dtype;
  p->inv_q = p->inv_k = p->inv_v = p->inv_o = p->inv_do = p->inv_s = p->inv_dp = 1;
  p->scale_s = p->scale_dp = 1;
  double top = p->fp8 ? 3 : 1;
  p->q = rounded_values(c->dtype, p->b * p->sq * p->hq * p->dqk, top);
  p->k = rounded_values(c->dtype, p->b * p->skv * p->hkv * p->dqk, top);
  p->v = rounded_values(c->dtype, p->b * p->skv * p->hkv * p->dv, top);
  if (l.paged) {
    View unused_k, unused_v;
    make_views(p, c, c->layout, c->dtype, &x->q, &unused_k, &unused_v);
    make_pages(x, &x->k, &x->tables[0], p->dqk, p->k);
    make_pages(x, &x->v, &x->tables[1], p->dv, p->v);
  } else {
    make_views(p, c, c->layout, c->dtype, &x->q, &x->k, &x->v);
    fill_view(p, &x->k, p->lk, p->k);
    fill_view(p, &x->v, p->lk, p->v);
  }
  fill_view(p, &x->q, p->lq, p->q);
  x->o = make_view(p, c, 0, c->o_order, p->dv, c->o_dtype, 1, 0, 0, NULL);
  x->s = empty_tensor();
  x->dp = empty_tensor();
  if (p->fp8) {
    p->inv_q = 0.5, p->inv_k = 0.25, p->inv_v = 0.375;
    p->scale_s = 128, p->inv_s = 1.0 / 128, p->scale_dp = 64, p->inv_dp = 1.0 / 64;
    set_float(&x->q, kNVTERowwiseScaleInv, &x->q.scale_inv, (float)p->inv_q);
    set_float(&x->k, kNVTERowwiseScaleInv, &x->k.scale_inv, (float)p->inv_k);
    set_float(&x->v, kNVTERowwiseScaleInv, &x->v.scale_inv, (float)p->inv_v);
    View s = {.handle = x->s}, dp = {.handle = x->dp};
    set_float(&s, kNVTEScale, &s.scale, (float)p->scale_s);
    set_float(&s, kNVTERowwiseScaleInv, &s.scale_inv, (float)p->inv_s);
    set_float(&s, kNVTEAmax, &x->s_amax, 1e9f);
    set_float(&dp, kNVTEScale, &dp.scale, (float)p->scale_dp);
    set_float(&dp, kNVTERowwiseScaleInv, &dp.scale_inv, (float)p->inv_dp);
    set_float(&dp, kNVTEAmax, &x->dp_amax, 1e9f);
    set_float(&x->o, kNVTEAmax, &x->o.amax, 1e9f);
    if (is_fp8(c->o_dtype)) {
      x->o.factor = 64;
      p->inv_o = 1.0 / 64;
      set_float(&x->o, kNVTEScale, &x->o.scale, 64);
      set_float(&x->o, kNVTERowwiseScaleInv, &x->o.scale_inv, 1.0f / 64);
    }
  }
  if (c->bias == 2) {
    size_t n = p->bias_dims[0] * p->bias_dims[1] * p->bias_dims[2] * p->bias_dims[3];
    p->bias = rounded_values(c->bias_dtype, n, 2);
    for (size_t e = 0; c->masked_from != 0 && e < n; e++) {
      if (e % p->skv >= c->masked_from) p->bias[e] = c->lowest_bias;
    }
    unsigned char *host = host_memory(n * dtype_size(c->bias_dtype));
    for (size_t e = 0; e < n; e++) put_value(c->bias_dtype, host, e, p->bias[e]);
    x->bias_data = buffer_from(host, n * dtype_size(c->bias_dtype), 0);
    // The handle of the bias gets a wrong dtype, as front ends give it.
    NVTEDType label = p->fp8 ? c->bias_dtype : kNVTEFloat32;
    x->bias = tensor(x->bias_data->ptr, label,
                     SHAPE(p->bias_dims[0], p->bias_dims[1], p->bias_dims[2], p->bias_dims[3]));
    set_param(x->bias, kNVTERowwiseData, x->bias_data->ptr, label,
              SHAPE(p->bias_dims[0], p->bias_dims[1], p->bias_dims[2], p->bias_dims[3]));
  }
  if (c->softmax) {
    float *host = host_memory(p->hq * sizeof(float));
    p->sink = doubles(p->hq);
    for (size_t j = 0; j < p->hq && !c->null_sink; j++)
      p->sink[j] = host[j] = (float)random_uniform(-2, 2);
    x->sink_data = buffer_from(host, p->hq * sizeof(float), 0);
    if (!c->null_sink) x->sink = tensor(x->sink_data->ptr, kNVTEFloat32, SHAPE(1, p->hq, 1, 1));
  }
  bool padding = c->mask % 2 == 1;
  for (int side = 0; side < 2; side++) {
    const int *lengths = side ? p->lk : p->lq;
    Order order = side ? l.kv : l.q;
    int cu[10] = {0};
    // Only differences of cumulative lengths count, unless the rows begin there.
    if (order != THD || !c->no_padded) cu[0] = (int)random_below(3) * 5;
    for (size_t i = 0; i < p->b; i++) cu[i + 1] = cu[i] + lengths[i];
    if (padding) x->cu[side] = ints(cu, p->b + 1);
    int own = l.together == 3 ? 0 : side;
    if (order == THD && !c->no_padded) x->padded[side] = ints(c->starts[own], p->b + 1);
  }
  const int64_t state[2] = {(int64_t)random_u64(),
                            (int64_t)(random_u64() >> (random_below(2) * 40))};
  p->seed = (uint64_t)state[0], p->offset = (uint64_t)state[1];
  x->rng = tensor(buffer_from(state, sizeof state, 0)->ptr, kNVTEInt64, SHAPE(2));
}

// A tensor like the statistics: poisoned, and what is expected there.
static inline Expected expected_stats(const Run *x, Buffer *data, const double *values) {
  const Problem *p = &x->p;
  bool ragged = layout_info(x->c.layout).q == THD;
  size_t n = ragged ? (size_t)x->c.tokens[0] * p->hq : p->b * p->hq * p->sq;
  Expected e = {data, kNVTEFloat32, doubles(n), n};
  for (size_t at = 0; at < n; at++) e.values[at] = (double)NAN;
  for (size_t i = 0; i < p->b; i++)
    for (size_t j = 0; j < p->hq; j++)
      for (size_t r = 0; r < p->sq; r++) {
        double value = values[(i * p->hq + j) * p->sq + r];
        if (!ragged) e.values[(i * p->hq + j) * p->sq + r] = value;
        if (ragged && (int)r < p->lq[i])
          e.values[((size_t)x->c.starts[0][i] + r) * p->hq + j] = value;
      }
  return e;
}

static inline void check_forward(Run *x) {
  Problem *p = &x->p;
  reference_forward(p);
  compare_view(p, "o", &x->o, p->lq, p->o);
  Bound bound = p->fp8 ? (Bound){1e-3, 1e-3} : (Bound){1e-4, 1e-4};
  Problem plain = {.b = p->b};
  Expected stats = expected_stats(x, x->stats_data, p->stats);
  compare(&plain, "stats", &stats, bound);
  if (x->c.max_logit) {
    Expected max = expected_stats(x, x->max_data, p->max);
    compare(&plain, "max", &max, bound);
  }
  check_amax("s", x->s_amax, p->amax_s);
  check_amax("o", x->o.amax, largest(p->o, p->b * p->sq * p->hq * p->dv));
}

// Runs a forward and checks it; false if the backend declines it.
static inline bool run_forward(Run *x) {
  size_t planned = 0;
  nvte_tensor_pack_create(&x->pack);
  x->pack.size = 0;
  if (declined(x, call_forward, NVTEX_ATTENTION_FORWARD, &planned)) return false;
  if (!query_workspace(x, call_forward, planned)) return false;
  const Config *c = &x->c;
  size_t slots = 2u + c->max_logit + (c->bias == 2) + (c->softmax != 0), slot = 0;
  CHECK_EQ(x->pack.size, slots);
  NVTEShape shape = stats_shape(x);
  size_t bytes = numel(shape) * sizeof(float);
  x->stats_data = buffer(bytes);
  CHECK(same_shape(nvte_tensor_shape(x->pack.tensors[0]), shape), "shape of stats; %s", g_text);
  CHECK_EQ(nvte_tensor_type(x->pack.tensors[0]), kNVTEFloat32);
  set_param(x->pack.tensors[slot++], kNVTERowwiseData, x->stats_data->ptr, kNVTEFloat32, shape);
  if (c->max_logit) {
    x->max_data = buffer(bytes);
    CHECK(same_shape(nvte_tensor_shape(x->pack.tensors[slot]), shape), "shape of max");
    set_param(x->pack.tensors[slot++], kNVTERowwiseData, x->max_data->ptr, kNVTEFloat32, shape);
  }
  CHECK_EQ(nvte_tensor_type(x->pack.tensors[slot]), kNVTEInt64);
  call_forward(x);
  if (!EXPECT_OK()) return false;
  CHECK(nvte_tensor_data(x->pack.tensors[slot]) == nvte_tensor_data(x->rng), "rng_state's slot");
  slot++;
  if (c->bias == 2)
    CHECK(nvte_tensor_data(x->pack.tensors[slot++]) == x->bias_data->ptr, "slot of the bias");
  if (c->softmax)
    CHECK(nvte_tensor_data(x->pack.tensors[slot]) == (c->null_sink ? NULL : x->sink_data->ptr),
          "slot of the offset");
  check_forward(x);
  return true;
}

// Everything that a backward takes besides: O and the statistics are those of the reference, so
// that errors do not add up.
static inline void build_backward(Run *x) {
  Problem *p = &x->p;
  Config *c = &x->c;
  size_t o_count = p->b * p->sq * p->hq * p->dv;
  x->o.buffer = NULL;
  x->o = make_view(p, c, 0, c->o_order, p->dv, c->o_dtype, 1, 0, 0, NULL);
  double o_scale = p->fp8 && is_fp8(c->o_dtype) ? 64 : 1;
  if (p->fp8) {
    // The amax of an output means nothing to who reads that tensor.
    if (o_scale != 1) set_float(&x->o, kNVTERowwiseScaleInv, &x->o.scale_inv, 1.0f / 64);
  }
  for (size_t n = 0; n < o_count; n++) p->o[n] = round_to(c->o_dtype, p->o[n] * o_scale);
  fill_view(p, &x->o, p->lq, p->o);
  p->d_o = rounded_values(c->do_dtype, o_count, p->fp8 ? 2 : 1);
  x->d_o = make_view(p, c, 0, c->do_order, p->dv, c->do_dtype, 1, 0, 0, NULL);
  fill_view(p, &x->d_o, p->lq, p->d_o);
  Expected stats = expected_stats(x, x->stats_data, p->stats);
  float *host = host_memory(stats.count * sizeof(float));
  for (size_t n = 0; n < stats.count; n++) host[n] = (float)stats.values[n];
  upload(x->stats_data->ptr, host, stats.count * sizeof(float));
  make_views(p, c, c->dqkv_layout, c->dqkv_dtype, &x->dq, &x->dk, &x->dv);
  if (p->fp8) {
    p->inv_do = 0.125;
    set_float(&x->d_o, kNVTERowwiseScaleInv, &x->d_o.scale_inv, (float)p->inv_do);
    View *grads[] = {&x->dq, &x->dk, &x->dv};
    for (int g = 0; g < 3; g++) {
      set_float(grads[g], kNVTEAmax, &grads[g]->amax, 1e9f);
      if (!is_fp8(c->dqkv_dtype)) continue;
      grads[g]->factor = 32;
      set_float(grads[g], kNVTEScale, &grads[g]->scale, 32);
    }
  }
  if (c->bias == 2) {
    x->dbias_data = buffer(x->bias_data->bytes);
    x->dbias = tensor(x->dbias_data->ptr, c->bias_dtype,
                      SHAPE(p->bias_dims[0], p->bias_dims[1], p->bias_dims[2], p->bias_dims[3]));
  }
  if (c->softmax) {
    x->dsink_data = buffer(p->hq * sizeof(float));
    x->dsink = tensor(x->dsink_data->ptr, kNVTEFloat32, SHAPE(1, p->hq, 1, 1));
  }
  // The saved pack is without Max, which the backward pass does not know.
  NVTETensorPack *saved = host_memory(sizeof *saved);
  for (size_t n = 0; n < x->pack.size; n++) {
    if (n == 1 && c->max_logit) continue;
    saved->tensors[saved->size++] = x->pack.tensors[n];
  }
  x->saved = saved;
}

static inline void check_backward(Run *x) {
  Problem *p = &x->p;
  const Config *c = &x->c;
  reference_backward(p);
  LayoutInfo l = layout_info(c->dqkv_layout);
  Bound bound = bound_of(p, c->dqkv_dtype), sums = bound;
  // Those of keys and values are sums over rows, and over the heads of a group, of products with
  // rounded probabilities, which are large where keys are few.
  if (on_cuda()) {
    sums.element *= sqrt(fmax(1, (double)(p->sq * p->hq / p->hkv) / 256));
    sums.element *= fmax(1, 3 / sqrt((double)p->skv));
  }
  Expected dq = expected_of(&x->dq), dk = expected_of(&x->dk), dv = expected_of(&x->dv);
  // Tensors that lie together are compared together.
  Expected *of_k = l.together == 3 ? &dq : &dk, *of_v = l.together > 1 ? of_k : &dv;
  expect_view(p, &dq, &x->dq, p->lq, p->dq);
  expect_view(p, of_k, &x->dk, p->lk, p->dk);
  expect_view(p, of_v, &x->dv, p->lk, p->d_v);
  compare(p, l.together == 3 ? "dqkv" : "dq", &dq, l.together == 3 ? sums : bound);
  if (l.together < 3) compare(p, l.together == 2 ? "dkv" : "dk", &dk, sums);
  if (l.together == 1) compare(p, "dv", &dv, sums);
  if (c->bias == 2) {
    size_t n = p->bias_dims[0] * p->bias_dims[1] * p->bias_dims[2] * p->bias_dims[3];
    Expected e = {x->dbias_data, c->bias_dtype, p->dbias, n};
    Problem plain = {.b = p->b};
    Bound wide = {bound.element * sqrt((double)(p->b * p->hq * p->sq)), bound.rms};
    compare(&plain, "dbias", &e, p->fp8 ? (Bound){0.02, 0.02} : wide);
  }
  if (c->softmax) {
    Expected e = {x->dsink_data, kNVTEFloat32, p->dsink, p->hq};
    Problem plain = {.b = p->b};
    compare(&plain, "dsink", &e, (Bound){1e-3, 1e-3});
  }
  check_amax("dp", x->dp_amax, p->amax_dp);
  check_amax("dq", x->dq.amax, largest(p->dq, p->b * p->sq * p->hq * p->dqk));
  check_amax("dk", x->dk.amax, largest(p->dk, p->b * p->skv * p->hkv * p->dqk));
  check_amax("dv", x->dv.amax, largest(p->d_v, p->b * p->skv * p->hkv * p->dv));
}

static inline void run_backward(Run *x) {
  size_t planned = 0;
  build_backward(x);
  if (declined(x, call_backward, NVTEX_ATTENTION_BACKWARD, &planned)) return;
  if (!query_workspace(x, call_backward, planned)) return;
  call_backward(x);
  if (EXPECT_OK()) check_backward(x);
}

#endif  // NVTE_CAPI_TESTS_ATTENTION_COMMON_H
