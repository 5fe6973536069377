// Attention modules and layers: results against a reference in float64, gradients against
// differences of that reference along random directions.
#include "support.h"

// ---- A model: its options, and its parameters by name

enum { MAX_PARAMETERS = 40, MAX_BATCH = 4 };

typedef enum Kind { CORE, MULTIHEAD, LAYER } Kind;

typedef struct Model {
  Kind kind;
  NVTEDType dtype;
  size_t length, length_kv, batch, hidden, heads, groups, dim, dim_v, ffn, rotary;
  NVTE_QKV_Format format;
  NVTE_Mask_Type mask;
  NVTE_Softmax_Type softmax;
  bool cross, norm, rms, bias, interleaved;
  bool decoder, post_norm, output_norm, parallel, norm_before_rope;
  NVTEXQKNorm qk_norm;
  int32_t lengths[MAX_BATCH], lengths_kv[MAX_BATCH];  // with a padding mask
  float dropout, attention_dropout;
} Model;

typedef struct Parameter {
  char name[80];
  size_t count;
  double *value;
  Buffer *grad;
} Parameter;

typedef struct Parameters {
  Parameter list[MAX_PARAMETERS];
  size_t count;
} Parameters;

static double *doubles(size_t n) { return host_memory((n ? n : 1) * sizeof(double)); }

static const double *find(const Parameters *p, const char *prefix, const char *name) {
  char full[160];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  for (size_t i = 0; i < p->count; i++) {
    if (!strcmp(p->list[i].name, full)) return p->list[i].value;
  }
  return NULL;
}

static bool padded(const Model *m) {
  return m->mask == NVTE_PADDING_MASK || m->mask == NVTE_PADDING_CAUSAL_MASK;
}

static bool causal(const Model *m) {
  return m->mask == NVTE_CAUSAL_MASK || m->mask == NVTE_PADDING_CAUSAL_MASK;
}

// Row of a position of a sequence, among `length` of each.
static size_t row_of(const Model *m, size_t length, size_t b, size_t s) {
  return m->format == NVTE_SBHD ? s * m->batch + b : b * length + s;
}

// ---- The reference

static void ref_norm(const Model *m, const Parameters *p, const char *prefix, const char *weight,
                     const char *bias, const double *x, double *y, size_t rows) {
  const double *gamma = find(p, prefix, weight), *beta = find(p, prefix, bias);
  const double h = (double)m->hidden;
  for (size_t i = 0; i < rows; i++) {
    double mean = 0, squares = 0;
    for (size_t j = 0; j < m->hidden && !m->rms; j++) mean += x[i * m->hidden + j] / h;
    for (size_t j = 0; j < m->hidden; j++) {
      squares += (x[i * m->hidden + j] - mean) * (x[i * m->hidden + j] - mean);
    }
    for (size_t j = 0; j < m->hidden; j++) {
      const double t = (x[i * m->hidden + j] - mean) / sqrt(squares / h + 1e-5);
      y[i * m->hidden + j] = gamma[j] * t + (beta ? beta[j] : 0);
    }
  }
}

static double *ref_linear(const Parameters *p, const char *prefix, const char *weight,
                          const char *bias, const double *x, size_t rows, size_t out, size_t in) {
  const double *w = find(p, prefix, weight), *b = find(p, prefix, bias);
  double *y = malloc(rows * out * sizeof *y);
  for (size_t i = 0; i < rows; i++) {
    for (size_t j = 0; j < out; j++) {
      double sum = b ? b[j] : 0;
      for (size_t k = 0; k < in; k++) sum += x[i * in + k] * w[j * in + k];
      y[i * out + j] = sum;
    }
  }
  return y;
}

// Heads at `data + row * stride + head`.
typedef struct Heads {
  double *data;
  size_t stride, head, first;
} Heads;

static double *head_at(Heads h, size_t row, size_t head) {
  return h.data + row * h.stride + h.first + head * h.head;
}

static void turn(const Model *m, double *x, size_t position) {
  const size_t half = m->rotary / 2;
  for (size_t i = 0; i < half; i++) {
    const double angle = (double)position * pow(10000, -2.0 * (double)i / (double)m->rotary);
    double *a = m->interleaved ? x + 2 * i : x + i;
    double *b = m->interleaved ? x + 2 * i + 1 : x + i + half;
    const double u = *a, v = *b;
    *a = u * cos(angle) - v * sin(angle);
    *b = v * cos(angle) + u * sin(angle);
  }
}

static void norm_head(const Model *m, const Parameters *p, const char *prefix, const char *layer,
                      double *x) {
  char name[140];
  snprintf(name, sizeof name, "%s%s", prefix, layer);
  const double *gamma = find(p, name, "weight"), *beta = find(p, name, "bias");
  double mean = 0, squares = 0;
  for (size_t e = 0; e < m->dim && m->qk_norm == NVTEX_QK_NORM_LAYER; e++) {
    mean += x[e] / (double)m->dim;
  }
  for (size_t e = 0; e < m->dim; e++) squares += (x[e] - mean) * (x[e] - mean);
  if (m->qk_norm != NVTEX_QK_NORM_L2) squares /= (double)m->dim;
  for (size_t e = 0; e < m->dim; e++) {
    x[e] = (x[e] - mean) / sqrt(squares + 1e-6) * (gamma ? gamma[e] : 1) + (beta ? beta[e] : 0);
  }
}

// A head of queries or keys of self attention.
static void prepare(const Model *m, const Parameters *p, const char *prefix, const char *layer,
                    double *x, size_t position) {
  if (m->qk_norm && m->norm_before_rope) norm_head(m, p, prefix, layer, x);
  turn(m, x, position);
  if (m->qk_norm && !m->norm_before_rope) norm_head(m, p, prefix, layer, x);
}

static void ref_attention(const Model *m, const double *offset, Heads q, Heads k, Heads v, Heads o,
                          size_t length_kv, bool masked) {
  double *scores = malloc(length_kv * sizeof *scores);
  for (size_t b = 0; b < m->batch; b++) {
    const bool pad = masked && padded(m);
    const size_t used_q = pad ? (size_t)m->lengths[b] : m->length;
    const size_t used_kv = pad ? (size_t)m->lengths_kv[b] : length_kv;
    for (size_t h = 0; h < m->heads; h++) {
      const size_t group = h / (m->heads / m->groups);
      for (size_t i = 0; i < m->length; i++) {
        double *out = head_at(o, row_of(m, m->length, b, i), h);
        for (size_t e = 0; e < m->dim_v; e++) out[e] = 0;
        if (i >= used_q) continue;
        const double *x = head_at(q, row_of(m, m->length, b, i), h);
        double sum = m->softmax == NVTE_OFF_BY_ONE_SOFTMAX ? 1 : offset ? exp(offset[h]) : 0;
        for (size_t j = 0; j < used_kv; j++) {
          if (masked && causal(m) && j > i) break;
          const double *y = head_at(k, row_of(m, length_kv, b, j), group);
          double dot = 0;
          for (size_t e = 0; e < m->dim; e++) dot += x[e] * y[e];
          scores[j] = exp(dot / sqrt((double)m->dim));
          sum += scores[j];
        }
        for (size_t j = 0; j < used_kv; j++) {
          if (masked && causal(m) && j > i) break;
          const double *y = head_at(v, row_of(m, length_kv, b, j), group);
          for (size_t e = 0; e < m->dim_v; e++) out[e] += scores[j] / sum * y[e];
        }
      }
    }
  }
  free(scores);
}

// The result, without the residual. `z` takes the norm's result if there is one.
static double *ref_multihead(const Model *m, const Parameters *p, const char *prefix, bool cross,
                             bool norm, const double *x, const double *memory, double *z) {
  const size_t rows = m->length * m->batch, d = m->dim, per = m->heads / m->groups;
  const size_t q_cols = m->heads * d, kv_cols = 2 * m->groups * d;
  const char *first = cross  ? norm ? "layernorm_query." : "query_layer."
                      : norm ? "layernorm_qkv."
                             : "qkv.";
  char name[120];
  snprintf(name, sizeof name, "%s%s", prefix, first);
  if (norm) {
    ref_norm(m, p, name, "layer_norm_weight", "layer_norm_bias", x, z, rows);
    x = z;
  }
  const size_t cols = cross ? q_cols : q_cols + kv_cols;
  double *a = ref_linear(p, name, "weight", "bias", x, rows, cols, m->hidden), *kv = a;
  const size_t length_kv = cross ? m->length_kv : m->length;
  // In the queries, the heads of a group follow each other.
  double *queries = malloc(rows * q_cols * sizeof *queries);
  for (size_t i = 0; i < rows; i++) {
    for (size_t h = 0; h < m->heads; h++) {
      const size_t at = cross ? h : h / per * (per + 2) + h % per;
      memcpy(queries + (i * m->heads + h) * d, a + i * cols + at * d, d * sizeof *queries);
    }
  }
  Heads q = {queries, q_cols, d, 0}, k, v;
  if (cross) {
    snprintf(name, sizeof name, "%skey_value.", prefix);
    kv = ref_linear(p, name, "weight", "bias", memory, length_kv * m->batch, kv_cols, m->hidden);
    k = (Heads){kv, kv_cols, 2 * d, 0};
    v = (Heads){kv, kv_cols, 2 * d, d};
  } else {
    k = (Heads){a, cols, (per + 2) * d, per * d};
    v = (Heads){a, cols, (per + 2) * d, (per + 1) * d};
  }
  for (size_t b = 0; !cross && b < m->batch; b++) {
    for (size_t s = 0; s < m->length; s++) {
      const size_t row = row_of(m, m->length, b, s);
      for (size_t h = 0; h < m->heads; h++) {
        prepare(m, p, prefix, "q_norm.", head_at(q, row, h), s);
      }
      for (size_t h = 0; h < m->groups; h++) {
        prepare(m, p, prefix, "k_norm.", head_at(k, row, h), s);
      }
    }
  }
  double *o = malloc(rows * q_cols * sizeof *o);
  snprintf(name, sizeof name, "%score_attention.", prefix);
  ref_attention(m, find(p, name, "softmax_offset"), q, k, v, (Heads){o, q_cols, d, 0}, length_kv,
                !cross || m->kind == MULTIHEAD);
  snprintf(name, sizeof name, "%sproj.", prefix);
  double *y = ref_linear(p, name, "weight", "bias", o, rows, m->hidden, q_cols);
  if (kv != a) free(kv);
  free(a);
  free(queries);
  free(o);
  return y;
}

static double *ref_mlp(const Model *m, const Parameters *p, const double *x, double *z) {
  const char *prefix = "layernorm_mlp.";
  const size_t rows = m->length * m->batch;
  ref_norm(m, p, prefix, "layer_norm_weight", "layer_norm_bias", x, z, rows);
  double *h = ref_linear(p, prefix, "fc1_weight", "fc1_bias", z, rows, 2 * m->ffn, m->hidden);
  double *a = malloc(rows * m->ffn * sizeof *a);
  for (size_t i = 0; i < rows; i++) {
    for (size_t j = 0; j < m->ffn; j++) {  // SwiGLU
      const double g = h[2 * i * m->ffn + j], l = h[(2 * i + 1) * m->ffn + j];
      a[i * m->ffn + j] = g / (1 + exp(-g)) * l;
    }
  }
  double *y = ref_linear(p, prefix, "fc2_weight", "fc2_bias", a, rows, m->hidden, m->ffn);
  free(h);
  free(a);
  return y;
}

static void add_to(double *y, const double *x, size_t n) {
  for (size_t i = 0; i < n; i++) y[i] += x[i];
}

enum { INPUTS = 3 };

static void ref_forward(const Model *m, const Parameters *p, double *const *in, double *y) {
  const size_t rows = m->length * m->batch, n = rows * m->hidden;
  if (m->kind == CORE) {
    const Heads q = {in[0], m->heads * m->dim, m->dim, 0};
    const Heads k = {in[1], m->groups * m->dim, m->dim, 0};
    const Heads v = {in[2], m->groups * m->dim_v, m->dim_v, 0};
    ref_attention(m, find(p, "", "softmax_offset"), q, k, v,
                  (Heads){y, m->heads * m->dim_v, m->dim_v, 0}, m->length_kv, true);
    return;
  }
  double *z = malloc(n * sizeof *z);
  if (m->kind == MULTIHEAD) {
    double *a = ref_multihead(m, p, "", m->cross, m->norm, in[0], in[1], z);
    memcpy(y, a, n * sizeof *y);
    free(a);
    free(z);
    return;
  }
  double *a = ref_multihead(m, p, "self_attention.", false, !m->output_norm, in[0], NULL, z);
  if (m->parallel) {
    double *b = ref_mlp(m, p, in[0], z);
    memcpy(y, in[0], n * sizeof *y);
    add_to(y, a, n);
    add_to(y, b, n);
    free(b);
  } else {
    add_to(a, m->post_norm ? z : in[0], n);
    if (m->decoder) {
      double *c = ref_multihead(m, p, "inter_attention.", true, true, a, in[1], z);
      add_to(a, c, n);
      free(c);
    }
    double *b = ref_mlp(m, p, a, z);
    memcpy(y, b, n * sizeof *y);
    add_to(y, m->post_norm ? z : a, n);
    if (m->output_norm) {
      memcpy(z, y, n * sizeof *z);
      ref_norm(m, p, "layernorm.", "weight", "bias", z, y, rows);
    }
    free(b);
  }
  free(a);
  free(z);
}

// ---- The module

static NVTEXAttentionConfig attention_config(const Model *m) {
  NVTEXAttentionConfig c;
  nvtex_attention_config_init(&c, sizeof c);
  c.num_attention_heads = m->heads;
  c.num_gqa_groups = m->groups;
  c.head_dim_qk = m->dim;
  c.head_dim_v = m->dim_v;
  c.attention_dropout = m->attention_dropout;
  c.qkv_format = m->format;
  c.attn_mask_type = m->mask;
  c.softmax_type = m->softmax;
  c.qk_norm_type = m->qk_norm;
  c.qk_norm_before_rope = m->norm_before_rope;
  c.dtype = m->dtype;
  return c;
}

static NVTEXModule create(NVTEXContext context, const Model *m) {
  const NVTEXAttentionConfig attention = attention_config(m);
  if (m->kind == CORE) return nvtex_attention_create(context, &attention, NULL);
  if (m->kind == MULTIHEAD) {
    NVTEXMultiheadAttentionConfig c;
    nvtex_multihead_attention_config_init(&c, sizeof c);
    c.hidden_size = m->hidden;
    c.attention = attention;
    c.input_layernorm = m->norm;
    c.norm.kind = m->rms ? RMSNorm : LayerNorm;
    c.cross_attention = m->cross;
    c.bias = m->bias;
    c.rotary_interleaved = m->interleaved;
    return nvtex_multihead_attention_create(context, &c, NULL);
  }
  NVTEXTransformerLayerConfig c;
  nvtex_transformer_layer_config_init(&c, sizeof c);
  c.attention = attention;
  c.mlp.hidden_size = m->hidden;
  c.mlp.ffn_hidden_size = m->ffn;
  c.mlp.activation = SWIGLU;
  c.mlp.norm.kind = m->rms ? RMSNorm : LayerNorm;
  c.mlp.bias = m->bias;
  c.mlp.dtype = m->dtype;
  c.hidden_dropout = m->dropout;
  c.decoder = m->decoder;
  c.residual_post_layernorm = m->post_norm;
  c.output_layernorm = m->output_norm;
  c.parallel_attention_mlp = m->parallel;
  c.rotary_interleaved = m->interleaved;
  return nvtex_transformer_layer_create(context, &c, NULL);
}

typedef struct Subject {
  NVTEXContext context;
  NVTEXModule module;
  Parameters p;
  size_t num_inputs, counts[INPUTS], outputs;
  double *in[INPUTS];
  Buffer *bin[INPUTS], *din[INPUTS], *out, *dout;
  NVTETensor tin[INPUTS], tdin[INPUTS], tout, tdout;
  double *dy;
  NVTEXStep step;
} Subject;

static Buffer *random_tensor(NVTEDType dtype, size_t count, double low, double high, double *v) {
  void *host = random_values(dtype, count, low, high);
  for (size_t i = 0; i < count; i++) v[i] = get_value(dtype, host, i);
  return buffer_from(host, count * dtype_size(dtype), 0);
}

static NVTEShape order(const Model *m, size_t length, size_t heads, size_t dim) {
  const size_t a = m->format == NVTE_SBHD ? length : m->batch;
  const size_t b = m->format == NVTE_SBHD ? m->batch : length;
  return heads ? SHAPE(a, b, heads, dim) : SHAPE(a, b, dim);
}

static NVTETensor lengths_tensor(const Model *m, const int32_t *lengths) {
  int32_t sums[MAX_BATCH + 1] = {0};
  for (size_t b = 0; b < m->batch; b++) sums[b + 1] = sums[b] + lengths[b];
  Buffer *b = buffer_from(sums, (m->batch + 1) * sizeof *sums, 0);
  return tensor(b->ptr, kNVTEInt32, SHAPE(m->batch + 1));
}

static Subject new_subject(const Model *m) {
  Subject s;
  memset(&s, 0, sizeof s);
  s.context = nvtex_context_create(NULL);
  s.module = create(s.context, m);
  EXPECT_OK();
  s.p.count = nvtex_module_num_parameters(s.module);
  if (!CHECK(s.p.count <= MAX_PARAMETERS, "%zu parameters", s.p.count)) exit(TEST_FAIL);
  for (size_t i = 0; i < s.p.count; i++) {
    NVTEXParameter described;
    memset(&described, 0, sizeof described);
    described.struct_size = sizeof described;
    nvtex_module_parameter(s.module, i, &described);
    EXPECT_OK();
    Parameter *p = &s.p.list[i];
    snprintf(p->name, sizeof p->name, "%s", described.name);
    p->count = numel(described.shape);
    p->value = doubles(p->count);
    const bool gamma = strstr(p->name, "norm_weight") || strstr(p->name, "norm.weight");
    const double bound = described.shape.ndim == 2 ? 1.5 / sqrt((double)m->hidden) : 0.4;
    const NVTEDType dtype = described.dtype;
    Buffer *value = random_tensor(dtype, p->count, gamma - bound, gamma + bound, p->value);
    nvtex_module_assign_parameter(s.module, i, tensor(value->ptr, dtype, described.shape), NULL);
    p->grad = buffer(p->count * sizeof(float));
    nvtex_module_set_gradient(s.module, i, tensor(p->grad->ptr, kNVTEFloat32, described.shape),
                              false);
    EXPECT_OK();
  }
  NVTEShape shapes[INPUTS] = {order(m, m->length, 0, m->hidden)}, out = shapes[0];
  s.num_inputs = m->kind == CORE ? 3 : m->cross || m->decoder ? 2 : 1;
  if (m->kind == CORE) {
    shapes[0] = order(m, m->length, m->heads, m->dim);
    shapes[1] = order(m, m->length_kv, m->groups, m->dim);
    shapes[2] = order(m, m->length_kv, m->groups, m->dim_v);
    out = order(m, m->length, m->heads, m->dim_v);
  } else {
    shapes[1] = order(m, m->length_kv, 0, m->hidden);
  }
  const size_t size = dtype_size(m->dtype);
  for (size_t i = 0; i < s.num_inputs; i++) {
    s.counts[i] = numel(shapes[i]);
    s.in[i] = doubles(s.counts[i]);
    s.bin[i] = random_tensor(m->dtype, s.counts[i], -1.5, 1.5, s.in[i]);
    s.din[i] = buffer(s.counts[i] * size);
    s.tin[i] = tensor(s.bin[i]->ptr, m->dtype, shapes[i]);
    s.tdin[i] = tensor(s.din[i]->ptr, m->dtype, shapes[i]);
  }
  s.outputs = numel(out);
  s.out = buffer(s.outputs * size);
  s.tout = tensor(s.out->ptr, m->dtype, out);
  s.dy = doubles(s.outputs);
  s.dout = random_tensor(m->dtype, s.outputs, -1, 1, s.dy);
  s.tdout = tensor(s.dout->ptr, m->dtype, out);
  nvtex_step_init(&s.step, sizeof s.step);
  if (padded(m)) {
    s.step.cu_seqlens_q = lengths_tensor(m, m->lengths);
    s.step.cu_seqlens_kv = lengths_tensor(m, m->lengths_kv);
  }
  if (m->rotary) {
    const size_t rows = m->length + 3;  // more than are needed
    Buffer *b = buffer(rows * m->rotary * sizeof(float));
    NVTETensor frequencies = tensor(b->ptr, kNVTEFloat32, SHAPE(rows, 1, 1, m->rotary));
    NVTEXRotaryConfig rotary;
    nvtex_rotary_config_init(&rotary, sizeof rotary);
    rotary.interleaved = m->interleaved;
    nvtex_rotary_frequencies(frequencies, &rotary, NULL);
    EXPECT_OK();
    s.step.rotary_frequencies = frequencies;
  }
  return s;
}

static bool pass_forward(Subject *s, NVTEXTape *tape) {
  nvtex_module_forward(s->module, s->tin, s->num_inputs, &s->tout, 1, &s->step, tape, NULL);
  return EXPECT_OK();
}

static bool pass(Subject *s) {
  NVTEXTape tape = NULL;
  if (!pass_forward(s, &tape)) return false;
  nvtex_module_backward(s->module, tape, &s->tdout, 1, s->tdin, s->num_inputs, NULL);
  nvtex_tape_destroy(tape);
  return EXPECT_OK();
}

static void end_subject(Subject *s) {
  nvtex_module_destroy(s->module);
  nvtex_context_destroy(s->context);
  EXPECT_OK();
}

static double relative_error(NVTEDType dtype, const Buffer *got, const double *expected, size_t n) {
  const void *values = buffer_read(got);
  double error = 0, size = 1e-300;
  for (size_t i = 0; i < n; i++) {
    const double d = get_value(dtype, values, i) - expected[i];
    error += d * d;
    size += expected[i] * expected[i];
  }
  return isfinite(error) ? sqrt(error / size) : (double)INFINITY;
}

static double objective(const Model *m, Subject *s, double *y) {
  double sum = 0;
  ref_forward(m, &s->p, s->in, y);
  for (size_t i = 0; i < s->outputs; i++) sum += y[i] * s->dy[i];
  return sum;
}

// A gradient against differences of the reference.
static void check_grad(const Model *m, Subject *s, const char *name, double *at, size_t count,
                       NVTEDType dtype, const Buffer *grad, double tolerance, double *y) {
  const void *values = buffer_read(grad);
  double size = 0;
  for (size_t i = 0; i < count; i++) {
    const double g = get_value(dtype, values, i);
    size += g * g;
  }
  double *old = doubles(count), *direction = doubles(count);
  memcpy(old, at, count * sizeof *old);
  for (int repeat = 0; repeat < 4; repeat++) {
    const double step = 1e-5;
    double dot = 0;
    for (size_t i = 0; i < count; i++) {
      direction[i] = random_uniform(-1.7, 1.7);
      dot += direction[i] * get_value(dtype, values, i);
    }
    for (size_t i = 0; i < count; i++) at[i] = old[i] + step * direction[i];
    const double up = objective(m, s, y);
    for (size_t i = 0; i < count; i++) at[i] = old[i] - step * direction[i];
    const double down = objective(m, s, y);
    memcpy(at, old, count * sizeof *old);
    const double expected = (up - down) / (2 * step);
    // Keys that all move together change nothing: what is left is rounding.
    const double least = strstr(name, "k_norm.bias") ? 1 : 1e-2;
    CHECK(fabs(dot - expected) <= tolerance * (sqrt(size) + least),
          "%s: %g along a direction, expected %g; size %g", name, dot, expected, sqrt(size));
  }
}

static double tolerance_of(const Model *m) {
  const NVTEDType dtype = m->dtype;
  // Tensor cores multiply float32 with 10 bits behind the point; attention does not use them for
  // it.
  if (dtype == kNVTEFloat32 && on_cuda() && m->kind != CORE) return 1.5e-3;
  return dtype == kNVTEFloat32 ? 5e-6 : dtype == kNVTEFloat16 ? 3e-3 : 2.4e-2;
}

static void check_model(const Model *m) {
  Subject s = new_subject(m);
  double *y = doubles(s.outputs), *probe = doubles(s.outputs);
  const double tolerance = tolerance_of(m);
  // The pass runs without a tape, and with one.
  ref_forward(m, &s.p, s.in, y);
  if (!pass_forward(&s, NULL)) {
    end_subject(&s);
    return;
  }
  double error = relative_error(m->dtype, s.out, y, s.outputs);
  CHECK(error <= tolerance, "y: relative error %g", error);
  if (!pass(&s)) {
    end_subject(&s);
    return;
  }
  error = relative_error(m->dtype, s.out, y, s.outputs);
  CHECK(error <= tolerance, "y with a tape: relative error %g", error);
  for (size_t i = 0; i < s.num_inputs; i++) {
    check_grad(m, &s, "input", s.in[i], s.counts[i], m->dtype, s.din[i], 4 * tolerance, probe);
  }
  for (size_t i = 0; i < s.p.count; i++) {
    Parameter *p = &s.p.list[i];
    check_grad(m, &s, p->name, p->value, p->count, kNVTEFloat32, p->grad, 4 * tolerance, probe);
  }
  end_subject(&s);
}

// ---- Cases

static Model base(Kind kind) {
  Model m;
  memset(&m, 0, sizeof m);
  m.kind = kind;
  m.dtype = kNVTEFloat32;
  m.length = m.length_kv = 7;
  m.batch = 2;
  m.hidden = 24;
  m.heads = m.groups = 3;
  m.dim = m.dim_v = 8;
  m.ffn = 20;
  m.bias = true;
  m.format = NVTE_SBHD;
  m.mask = NVTE_CAUSAL_MASK;
  m.softmax = NVTE_VANILLA_SOFTMAX;
  return m;
}

static void pad(Model *m, NVTE_Mask_Type mask) {
  m->mask = mask;
  for (size_t b = 0; b < m->batch; b++) {
    m->lengths[b] = m->lengths_kv[b] = (int32_t)(m->length - 2 * b);
  }
}

static void cases_core(void) {
  static const NVTE_Mask_Type masks[] = {NVTE_NO_MASK, NVTE_CAUSAL_MASK, NVTE_PADDING_MASK,
                                         NVTE_PADDING_CAUSAL_MASK};
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (size_t k = 0; k < COUNT(masks); k++) {
      for (int softmax = 0; softmax < 3; softmax++) {
        Model m = base(CORE);
        m.dtype = kHighPrecision[t];
        m.format = softmax ? NVTE_BSHD : NVTE_SBHD;
        m.softmax = (NVTE_Softmax_Type)softmax;
        m.groups = softmax == 1 ? 1 : 3;
        m.dim_v = softmax == 2 ? 16 : 8;
        m.mask = masks[k];
        if (padded(&m)) pad(&m, masks[k]);
        if (masks[k] == NVTE_NO_MASK) m.length_kv = 9;
        if (case_begin("attention %s mask %d softmax %d", dtype_name(m.dtype), (int)m.mask,
                       softmax))
          check_model(&m);
      }
    }
  }
}

static void cases_multihead(void) {
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (int variant = 0; variant < 8; variant++) {
      Model m = base(MULTIHEAD);
      m.dtype = kHighPrecision[t];
      m.format = variant & 1 ? NVTE_BSHD : NVTE_SBHD;
      m.norm = variant & 2;
      m.rms = variant & 1;
      m.bias = !(variant & 4);
      m.groups = variant & 4 ? 1 : 3;
      m.rotary = variant == 1 || variant == 6 ? 8 : variant == 3 ? 4 : 0;
      m.interleaved = variant == 6;
      if (variant == 5) pad(&m, NVTE_PADDING_CAUSAL_MASK);
      if (variant == 3) m.softmax = NVTE_LEARNABLE_SOFTMAX;
      if (case_begin("multihead %s variant %d", dtype_name(m.dtype), variant)) check_model(&m);
      m.cross = true;
      m.mask = NVTE_NO_MASK;
      m.rotary = 0;
      m.length_kv = 5;
      if (case_begin("multihead %s cross variant %d", dtype_name(m.dtype), variant))
        check_model(&m);
    }
  }
}

static void cases_qk_norm(void) {
  static const char *const norms[] = {"none", "l2", "rms", "layer"};
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (int norm = 1; norm < 4; norm++) {
      for (int variant = 0; variant < 4; variant++) {
        Model m = base(variant & 2 ? LAYER : MULTIHEAD);
        m.dtype = kHighPrecision[t];
        m.format = (variant + norm) % 2 ? NVTE_BSHD : NVTE_SBHD;
        m.qk_norm = (NVTEXQKNorm)norm;
        m.norm_before_rope = variant & 1;
        m.groups = variant == 1 ? 1 : 3;
        m.rotary = variant == 2 ? 0 : 8;
        m.interleaved = norm == 2;
        if (case_begin("%s norm of heads %s variant %d", norms[norm], dtype_name(m.dtype), variant))
          check_model(&m);
      }
    }
  }
}

static const char *const kLayers[] = {"encoder",  "post norm", "output norm",
                                      "parallel", "decoder",   "llama"};

static Model layer(size_t variant) {
  Model m = base(LAYER);
  m.post_norm = variant == 1;
  m.output_norm = variant == 2;
  m.parallel = variant == 3;
  m.decoder = variant == 4;
  m.format = variant % 2 ? NVTE_BSHD : NVTE_SBHD;
  if (variant == 4) m.length_kv = 5;
  if (variant == 5) {
    m.rms = true;
    m.bias = false;
    m.groups = 1;
    m.rotary = 8;
  }
  return m;
}

static void cases_layer(void) {
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (size_t variant = 0; variant < COUNT(kLayers); variant++) {
      Model m = layer(variant);
      m.dtype = kHighPrecision[t];
      if (case_begin("layer %s %s", kLayers[variant], dtype_name(m.dtype))) check_model(&m);
    }
  }
}

// Sizes at which norms and attention add up gradients of biases in different ways.
static void cases_sums(void) {
  static const struct {
    size_t length, hidden, dim;
  } sizes[] = {{150, 24, 64}, {90, 24, 128}, {9, 20, 4}, {9, 280, 8}, {9, 520, 8}, {9, 1032, 8}};
  for (size_t i = 0; i < COUNT(sizes); i++) {
    Model m = layer(0);
    m.dtype = kNVTEBFloat16;
    m.length = m.length_kv = sizes[i].length;
    m.hidden = sizes[i].hidden;
    m.dim = m.dim_v = sizes[i].dim;
    if (case_begin("layer of %zu, %zu rows, heads of %zu", m.hidden, m.length, m.dim))
      check_model(&m);
  }
}

// Differences of the module itself, for the same random numbers.
static double module_objective(Subject *s) {
  NVTEXTape tape = NULL;
  pass_forward(s, &tape);
  nvtex_tape_destroy(tape);
  const float *y = buffer_read(s->out);
  double sum = 0;
  for (size_t i = 0; i < s->outputs; i++) sum += (double)y[i] * s->dy[i];
  return sum;
}

static void cases_dropout(void) {
  for (size_t variant = 0; variant < COUNT(kLayers); variant++) {
    if (!case_begin("dropout %s", kLayers[variant])) continue;
    Model m = layer(variant);
    m.dropout = 0.25f;
    m.attention_dropout = 0.125f;
    Subject s = new_subject(&m);
    NVTEXTape tape = NULL;
    nvtex_module_forward(s.module, s.tin, s.num_inputs, &s.tout, 1, NULL, &tape, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "step.rng_state: expected Int64 [2]");
    // Without a tape there is no dropout.
    double *y = doubles(s.outputs);
    ref_forward(&m, &s.p, s.in, y);
    if (!pass_forward(&s, NULL)) {
      end_subject(&s);
      continue;
    }
    const double exact = 2 * tolerance_of(&m);
    CHECK(relative_error(m.dtype, s.out, y, s.outputs) < exact, "dropout without a tape");
    const int64_t seed[2][2] = {{5, 0}, {5, 128}};
    Buffer *state = buffer_from(seed[0], sizeof seed[0], 0);
    s.step.rng_state = tensor(state->ptr, kNVTEInt64, SHAPE(2));
    if (!pass(&s)) {
      end_subject(&s);
      continue;
    }
    const void *first = buffer_read(s.out);
    pass(&s);
    CHECK(!memcmp(buffer_read(s.out), first, s.out->bytes), "the same state, another result");
    // The state may change before the backward pass.
    NVTEXTape late = NULL;
    pass_forward(&s, &late);
    upload(state->ptr, seed[1], sizeof seed[1]);
    const void *grad = buffer_read(s.din[0]);
    nvtex_module_backward(s.module, late, &s.tdout, 1, s.tdin, s.num_inputs, NULL);
    nvtex_tape_destroy(late);
    CHECK(!memcmp(buffer_read(s.din[0]), grad, s.din[0]->bytes), "the tape lost its state");
    pass(&s);
    CHECK(memcmp(buffer_read(s.out), first, s.out->bytes) != 0, "another state, the same result");
    // On CUDA products are rounded, so that differences say nothing.
    for (size_t i = 0; i < s.num_inputs && !on_cuda(); i++) {
      const float *g = buffer_read(s.din[i]);
      float *x = buffer_read(s.bin[i]), *moved = host_memory(s.bin[i]->bytes);
      const float step = 2e-3f;
      double dot = 0, size = 0, sums[2];
      float *direction = host_memory(s.bin[i]->bytes);
      for (size_t e = 0; e < s.counts[i]; e++) {
        direction[e] = (float)random_uniform(-1, 1);
        dot += (double)direction[e] * g[e];
        size += (double)g[e] * g[e];
      }
      for (int sign = 0; sign < 2; sign++) {
        for (size_t e = 0; e < s.counts[i]; e++) {
          moved[e] = x[e] + (sign ? -step : step) * direction[e];
        }
        upload(s.bin[i]->ptr, moved, s.bin[i]->bytes);
        sums[sign] = module_objective(&s);
      }
      upload(s.bin[i]->ptr, x, s.bin[i]->bytes);
      const double expected = (sums[0] - sums[1]) / (2 * (double)step);
      CHECK(fabs(dot - expected) < 0.02 * sqrt(size), "input %zu: %g, expected %g; size %g", i, dot,
            expected, sqrt(size));
    }
    end_subject(&s);
  }
}

// FP8 against high precision, with the same parameters.
static void cases_recipes(void) {
  static const struct {
    NVTEXRecipeKind kind;
    const char *name;
    bool fp8_dpa;
  } recipes[] = {{NVTEX_RECIPE_DELAYED_SCALING, "delayed", false},
                 {NVTEX_RECIPE_DELAYED_SCALING, "delayed, FP8 attention", true},
                 {NVTEX_RECIPE_CURRENT_SCALING, "current, FP8 attention", true},
                 {NVTEX_RECIPE_CURRENT_SCALING, "current", false},
                 {NVTEX_RECIPE_BLOCK_SCALING, "block", false},
                 {NVTEX_RECIPE_MXFP8, "mxfp8", false}};
  for (size_t r = 0; r < COUNT(recipes); r++) {
    for (size_t variant = 0; variant < COUNT(kLayers); variant++) {
      if (!case_begin("layer %s %s", kLayers[variant], recipes[r].name)) continue;
      Model m = layer(variant);
      m.dtype = kNVTEBFloat16;
      m.length = m.length_kv = 16;
      m.hidden = 64;
      m.heads = 4;
      m.groups = m.groups == 1 ? 2 : 4;
      m.dim = m.dim_v = 16;
      m.ffn = 96;
      Subject s = new_subject(&m);
      if (!pass(&s)) {
        end_subject(&s);
        continue;
      }
      double *y = doubles(s.outputs), *dx = doubles(s.counts[0]), *dw[MAX_PARAMETERS];
      const void *bits = buffer_read(s.out);
      for (size_t i = 0; i < s.outputs; i++) y[i] = get_value(m.dtype, bits, i);
      bits = buffer_read(s.din[0]);
      for (size_t i = 0; i < s.counts[0]; i++) dx[i] = get_value(m.dtype, bits, i);
      for (size_t p = 0; p < s.p.count; p++) {
        dw[p] = doubles(s.p.list[p].count);
        const float *grad = buffer_read(s.p.list[p].grad);
        for (size_t i = 0; i < s.p.list[p].count; i++) dw[p][i] = (double)grad[i];
      }
      NVTEXRecipeConfig config;
      nvtex_recipe_config_init(&config, sizeof config, recipes[r].kind);
      config.fp8_dpa = recipes[r].fp8_dpa;
      NVTEXRecipe recipe = nvtex_recipe_create(&config);
      nvtex_context_begin(s.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
      for (int step = 0; step < 2; step++) {
        pass(&s);
        nvtex_context_forward_update(s.context, NULL);
        nvtex_context_backward_update(s.context, NULL);
      }
      double error = relative_error(m.dtype, s.out, y, s.outputs);
      CHECK(error > 1e-4 && error < 0.08, "y: relative error %g", error);
      error = relative_error(m.dtype, s.din[0], dx, s.counts[0]);
      CHECK(error < 0.12, "dx: relative error %g", error);
      for (size_t p = 0; p < s.p.count; p++) {
        error = relative_error(kNVTEFloat32, s.p.list[p].grad, dw[p], s.p.list[p].count);
        CHECK(error < 0.25, "%s: relative error %g", s.p.list[p].name, error);
      }
      nvtex_context_end(s.context);
      nvtex_recipe_destroy(recipe);
      end_subject(&s);
    }
  }
}

// Attention alone in FP8, against the reference; gradients against those in high precision.
static void cases_fp8_core(void) {
  static const NVTE_Mask_Type masks[] = {NVTE_NO_MASK, NVTE_CAUSAL_MASK, NVTE_PADDING_CAUSAL_MASK};
  for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
    for (size_t k = 0; k < COUNT(masks); k++) {
      if (!case_begin("FP8 attention %s mask %d", dtype_name(kHighPrecision[t]), (int)masks[k])) {
        continue;
      }
      Model m = base(CORE);
      m.dtype = kHighPrecision[t];
      m.format = k == 1 ? NVTE_BSHD : NVTE_SBHD;
      m.groups = k == 1 ? 1 : 3;
      m.dim = m.dim_v = 32;
      m.mask = masks[k];
      if (padded(&m)) pad(&m, masks[k]);
      Subject s = new_subject(&m);
      double *y = doubles(s.outputs), *grads[INPUTS];
      ref_forward(&m, &s.p, s.in, y);
      if (!pass(&s)) {
        end_subject(&s);
        continue;
      }
      const void *plain = buffer_read(s.out);
      for (size_t i = 0; i < s.num_inputs; i++) {
        grads[i] = doubles(s.counts[i]);
        const void *values = buffer_read(s.din[i]);
        for (size_t e = 0; e < s.counts[i]; e++) grads[i][e] = get_value(m.dtype, values, e);
      }
      NVTEXRecipeConfig config;
      nvtex_recipe_config_init(&config, sizeof config, NVTEX_RECIPE_CURRENT_SCALING);
      config.fp8_dpa = true;
      NVTEXRecipe recipe = nvtex_recipe_create(&config);
      nvtex_context_begin(s.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
      for (int repeat = 0; repeat < 2; repeat++) {
        if (!pass(&s)) break;
        double error = relative_error(m.dtype, s.out, y, s.outputs);
        CHECK(error < 0.06, "y: relative error %g", error);
        CHECK(memcmp(buffer_read(s.out), plain, s.out->bytes) != 0, "the same bits without FP8");
        for (size_t i = 0; i < s.num_inputs; i++) {
          error = relative_error(m.dtype, s.din[i], grads[i], s.counts[i]);
          CHECK(error < 0.1, "gradient %zu: relative error %g", i, error);
        }
      }
      nvtex_context_end(s.context);
      nvtex_recipe_destroy(recipe);
      end_subject(&s);
    }
  }
}

static void case_packed_tokens(void) {
  if (!case_begin("packed tokens")) return;
  // Two sequences of 3 and 5 tokens against each alone.
  Model m = base(CORE);
  m.mask = NVTE_PADDING_CAUSAL_MASK;
  m.format = NVTE_THD;
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXModule packed = create(context, &m);
  m.format = NVTE_BSHD;
  m.mask = NVTE_CAUSAL_MASK;
  m.batch = 1;
  NVTEXModule alone = create(context, &m);
  EXPECT_OK();
  const size_t row = m.heads * m.dim;
  double values[8 * 24];
  NVTETensor in[3], grads[3];
  Buffer *data[4], *results[4];
  for (int i = 0; i < 4; i++) {
    data[i] = random_tensor(kNVTEFloat32, 8 * row, -1, 1, values);
    results[i] = buffer(8 * row * sizeof(float));
    if (i == 3) break;
    in[i] = tensor(data[i]->ptr, kNVTEFloat32, SHAPE(8, m.heads, m.dim));
    grads[i] = tensor(results[i]->ptr, kNVTEFloat32, SHAPE(8, m.heads, m.dim));
  }
  NVTETensor out = tensor(results[3]->ptr, kNVTEFloat32, SHAPE(8, row));
  NVTETensor dout = tensor(data[3]->ptr, kNVTEFloat32, SHAPE(8, row));
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  const int32_t sums[] = {0, 3, 8};
  step.cu_seqlens_q = step.cu_seqlens_kv =
      tensor(buffer_from(sums, sizeof sums, 0)->ptr, kNVTEInt32, SHAPE(3));
  step.max_seqlen_q = step.max_seqlen_kv = 5;
  NVTEXTape tape = NULL;
  nvtex_module_forward(packed, in, 3, &out, 1, &step, &tape, NULL);
  bool runs = EXPECT_OK();
  if (runs) {
    nvtex_module_backward(packed, tape, &dout, 1, grads, 3, NULL);
    nvtex_tape_destroy(tape);
    runs = EXPECT_OK();
  }
  for (int sequence = 0; runs && sequence < 2; sequence++) {
    const size_t first = sequence ? 3 : 0, length = sequence ? 5 : 3;
    const size_t at = first * row * sizeof(float), bytes = length * row * sizeof(float);
    NVTETensor parts[3], part_grads[3];
    Buffer *got[4];
    for (int i = 0; i < 4; i++) {
      got[i] = buffer(bytes);
      if (i == 3) break;
      parts[i] = tensor(data[i]->ptr + at, kNVTEFloat32, SHAPE(1, length, m.heads, m.dim));
      part_grads[i] = tensor(got[i]->ptr, kNVTEFloat32, SHAPE(1, length, m.heads, m.dim));
    }
    NVTETensor part_out = tensor(got[3]->ptr, kNVTEFloat32, SHAPE(1, length, row));
    NVTETensor part_dout = tensor(data[3]->ptr + at, kNVTEFloat32, SHAPE(1, length, row));
    nvtex_module_forward(alone, parts, 3, &part_out, 1, NULL, &tape, NULL);
    nvtex_module_backward(alone, tape, &part_dout, 1, part_grads, 3, NULL);
    nvtex_tape_destroy(tape);
    EXPECT_OK();
    for (int i = 0; i < 4; i++) {
      const float *a = buffer_read(got[i]), *b = buffer_read(results[i]);
      for (size_t e = 0; e < length * row; e++) {
        const double d = (double)a[e] - (double)b[first * row + e];
        if (!CHECK(fabs(d) < 1e-5, "sequence %d, tensor %d[%zu]: %g", sequence, i, e, d)) break;
      }
    }
  }
  nvtex_module_destroy(packed);
  nvtex_module_destroy(alone);
  nvtex_context_destroy(context);
}

static void case_rotary(void) {
  if (!case_begin("rotary frequencies")) return;
  const size_t rows = 6, cols = 8;
  Buffer *b = buffer(rows * cols * sizeof(float));
  NVTETensor t = tensor(b->ptr, kNVTEFloat32, SHAPE(rows, 1, 1, cols));
  for (int variant = 0; variant < 4; variant++) {
    NVTEXRotaryConfig config;
    nvtex_rotary_config_init(&config, sizeof config);
    config.base = 500;
    config.offset = 2;
    config.interleaved = variant & 1;
    double divisor = 1;
    if (variant == 2) config.interpolation_factor = 4, divisor = 4;
    if (variant == 3) config.interpolation_factor = 1, config.pretrained_length = 3, divisor = 2;
    nvtex_rotary_frequencies(t, &config, NULL);
    EXPECT_OK();
    const float *angles = buffer_read(b);
    for (size_t i = 0; i < rows * cols; i++) {
      const size_t pair = variant & 1 ? i % cols / 2 : i % cols % (cols / 2);
      const double expected =
          ((double)(i / cols) + 2) / divisor * pow(500, -2.0 * (double)pair / (double)cols);
      CHECK(fabs(angles[i] - expected) < 1e-6, "[%zu]: %g, expected %g", i, (double)angles[i],
            expected);
    }
  }
  NVTEXRotaryConfig far_away;
  nvtex_rotary_config_init(&far_away, sizeof far_away);
  far_away.offset = SIZE_MAX;
  nvtex_rotary_frequencies(t, &far_away, NULL);
  EXPECT_OK();
  const float *last = (const float *)buffer_read(b) + (rows - 1) * cols;
  CHECK(*last == 0x1p64f, "%g, expected 2^64", (double)*last);
  nvtex_rotary_frequencies(tensor(b->ptr, kNVTEFloat32, SHAPE(rows, 1, 1, 7)), NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "frequencies.shape: expected [rows, 1, 1, d2]");
}

static void case_refusals(void) {
  if (!case_begin("refusals")) return;
  NVTEXContext context = nvtex_context_create(NULL);
  Model m = base(CORE);
  m.groups = 2;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.num_gqa_groups: expected a divisor of");
  m = base(MULTIHEAD);
  m.format = NVTE_THD;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "config.attn_mask_type: expected a mask with padding (qkv_format is NVTE_THD)");
  m = base(MULTIHEAD);
  m.qk_norm = (NVTEXQKNorm)4;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.attention.qk_norm_type: expected an NVTEXQKNorm");
  m.qk_norm = NVTEX_QK_NORM_RMS;
  m.cross = true;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.cross_attention: expected false (qk_norm_type");
  m.kind = CORE;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.qk_norm_type: expected NVTEX_QK_NORM_NONE");
  m = base(LAYER);
  m.decoder = true;
  m.qk_norm = NVTEX_QK_NORM_L2;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.decoder: expected false (qk_norm_type");
  NVTEXMultiheadAttentionConfig c;
  nvtex_multihead_attention_config_init(&c, sizeof c);
  c.hidden_size = 16;
  c.attention.num_attention_heads = 2;
  c.attention.parallel.tensor_parallel_size = 2;
  CHECK(!nvtex_multihead_attention_create(context, &c, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_multihead_attention_create: config.attention.parallel.tensor_parallel_size: "
               "expected 1 (nvtex_context_set_grid gives");
  c.attention.parallel.tensor_parallel_size = 1;
  c.attention.parallel.context_parallel_size = 4;
  CHECK(!nvtex_multihead_attention_create(context, &c, NULL), "a module");
  EXPECT_ERROR(
      NVTEX_INVALID_ARGUMENT,
      "config.attention.parallel.context_parallel_size: expected 1 (nvtex_context_set_grid");
  c.attention.parallel.context_parallel_size = 1;
  c.attention.reserved[2] = 7;
  CHECK(!nvtex_multihead_attention_create(context, &c, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.attention.reserved[2]: expected 0, as");
  NVTEXTransformerLayerConfig l;
  nvtex_transformer_layer_config_init(&l, sizeof l);
  l.attention.num_attention_heads = 1;
  l.mlp.hidden_size = l.mlp.ffn_hidden_size = 16;
  l.mlp.parallel.sequence_parallel = true;
  CHECK(!nvtex_transformer_layer_create(context, &l, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.mlp.parallel: expected the same as config.parallel");
  NVTEXRecipeConfig recipe;
  nvtex_recipe_config_init(&recipe, sizeof recipe, NVTEX_RECIPE_BLOCK_SCALING);
  recipe.fp8_dpa = true;
  CHECK(!nvtex_recipe_create(&recipe), "a recipe");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "nvtex_recipe_create: config.fp8_dpa: expected false (FP8 att");
  NVTEXLinearConfig linear;
  nvtex_linear_config_init(&linear, sizeof linear);
  linear.in_features = linear.out_features = 16;
  linear.parallel.tensor_parallel_size = 2;
  NVTEXParallelOptions options = {.struct_size = sizeof options, .mode = NVTEX_PARALLEL_ROW};
  linear.parallel.options = &options;
  CHECK(!nvtex_linear_create(context, &linear, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "config.parallel.tensor_parallel_size: expected 1 (nvtex_context_set_grid gives");
  m = base(MULTIHEAD);
  m.attention_dropout = 1;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.attention.attention_dropout");
  m = base(LAYER);
  m.parallel = m.decoder = true;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.decoder: expected false (parallel");
  m.parallel = m.decoder = false;
  m.post_norm = m.output_norm = true;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.residual_post_layernorm: expected false");
  m = base(LAYER);
  m.dropout = -1;
  CHECK(!create(context, &m), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.hidden_dropout");
  m = layer(4);
  m.dtype = kNVTEBFloat16;
  Subject s = new_subject(&m);
  nvtex_module_forward(s.module, s.tin, 1, &s.tout, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs[1]: expected a tensor handle, got null");
  s.tin[1] = s.tin[0];
  nvtex_module_forward(s.module, &s.tin[1], 1, &s.tin[0], 0, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "outputs[0]: expected a tensor handle, got null");
  end_subject(&s);
  // Shapes that do not fit each other, in the words of the module; what only the operator knows,
  // with the names of both.
  NVTEXAttentionConfig core;
  nvtex_attention_config_init(&core, sizeof core);
  core.name = "core";
  core.num_attention_heads = 2;
  core.head_dim_qk = 16;
  core.window_size_left = -7;
  CHECK(!nvtex_attention_create(context, &core, NULL), "a module");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.window_size_left: expected -1 (unbounded) or more");
  core.window_size_left = -1;
  core.attn_mask_type = NVTE_PADDING_MASK;
  NVTEXModule attention = nvtex_attention_create(context, &core, NULL);
  EXPECT_OK();
  Buffer *in = buffer(5 * 3 * 2 * 16 * sizeof(float)), *out = buffer(in->bytes);
#define HEADS_OF(length, batch) tensor(in->ptr, kNVTEFloat32, SHAPE(length, batch, 2, 16))
  NVTETensor o = tensor(out->ptr, kNVTEFloat32, SHAPE(4, 2, 2, 16));
  NVTETensor parts[] = {HEADS_OF(4, 2), HEADS_OF(4, 3), HEADS_OF(4, 3)};
  nvtex_module_forward(attention, parts, 3, &o, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "forward: inputs[1].shape: expected a batch of 2, as in");
  parts[1] = parts[0];
  parts[2] = HEADS_OF(5, 2);
  nvtex_module_forward(attention, parts, 3, &o, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "forward: inputs[2].shape: expected batch and length of in");
  parts[2] = parts[0];
  nvtex_module_forward(attention, parts, 3, &o, 1, NULL, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
               "step.cu_seqlens_q: expected Int32 [b + 1] (the mask has padding), got null");
  NVTEXStep step;
  nvtex_step_init(&step, sizeof step);
  step.cu_seqlens_q = step.cu_seqlens_kv = tensor(in->ptr, kNVTEInt32, SHAPE(2));
  nvtex_module_forward(attention, parts, 3, &o, 1, &step, NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "layer \"core\": operator attention: cu_seqlens_q.shape");
  CHECK(untouched(out), "a refused call wrote");
  nvtex_module_destroy(attention);
  nvtex_context_destroy(context);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_refusals();
  case_rotary();
  case_packed_tokens();
  cases_core();
  cases_multihead();
  cases_qk_norm();
  cases_layer();
  cases_sums();
  cases_dropout();
  cases_recipes();
  cases_fp8_core();
  return test_end();
}
