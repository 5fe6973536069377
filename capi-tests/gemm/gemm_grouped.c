// Products of groups whose sizes the device alone may know (nvte_grouped_gemm): every member is a
// product of its own, and what no member has stays as it was. Lists of products of sizes that the
// host knows are in gemm_multi_tensor.c. D[t] [n, m] = Bop[t] [n, k] Aop[t] [k, m]; expected values
// in double.
#include "gemm_common.h"

enum { MAX_MEMBERS = 100 };

// Which dimension differs from member to member; the others are the same.
typedef enum Vary { VARY_NONE, VARY_N, VARY_K, VARY_ALL } Vary;
static const char *const kVary[] = {"same", "n", "k", "all"};

// Where C comes from.
typedef enum From { FROM_D, FROM_OTHER, FROM_SOME } From;

typedef struct Product {
  NVTEScalingMode a_mode, b_mode;
  NVTEDType a, b, d;
  bool transa, transb;
  Vary vary;
  size_t count, m, n, k;  // members draw their varying dimensions from 0 to these
  const size_t *dims;     // or they are given
  bool a_list, d_list;
  From c;
  bool alphas, betas;  // one for each member
  float alpha, beta;
  bool integers, fast, unswizzled, mirrored, both_directions, misaligned;
  bool large;  // scales of MXFP8 from 2^6 on
  size_t gap, spare;
} Product;

static size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }
static bool is_mx(NVTEScalingMode mode) { return mode == NVTE_MXFP8_1D_SCALING; }
static bool in_blocks(NVTEScalingMode mode) {
  return mode == NVTE_BLOCK_SCALING_1D || mode == NVTE_BLOCK_SCALING_2D;
}
static const char *mode_name(NVTEScalingMode mode) {
  return is_mx(mode)                           ? "mx"
         : mode == NVTE_BLOCK_SCALING_1D       ? "1d"
         : mode == NVTE_BLOCK_SCALING_2D       ? "2d"
         : mode == NVTE_DELAYED_TENSOR_SCALING ? "tensor"
                                               : "?";
}

// ---- Groups: handles that end with the case

static NVTEGroupedTensor g_groups[8];
static size_t g_group_count;
static NVTEGroupedMatmulConfig g_config;
static void *g_setup;
enum { SETUP_BYTES = 92 * MAX_MEMBERS + 256 };

static NVTEGroupedTensor new_group(NVTEScalingMode mode, size_t count, NVTEShape shape) {
  if (g_group_count == COUNT(g_groups)) abort();
  NVTEGroupedTensor g = nvte_create_grouped_tensor(mode, count, shape);
  EXPECT_OK();
  return g_groups[g_group_count++] = g;
}

static void destroy_groups(void) {
  while (g_group_count > 0) nvte_destroy_grouped_tensor(g_groups[--g_group_count]);
}

static void set_field(NVTEGroupedTensor g, NVTEGroupedTensorParam param, void *ptr, NVTEDType dtype,
                      size_t count) {
  NVTEBasicTensor b = basic(ptr, dtype, SHAPE(count));
  nvte_set_grouped_tensor_param(g, param, &b, sizeof b);
  EXPECT_OK();
}

static void set_int64(NVTEGroupedTensor g, NVTEGroupedTensorParam param, const size_t *values,
                      size_t count) {
  set_field(g, param, buffer_from(values, count * sizeof(int64_t), 0)->ptr, kNVTEInt64, count);
}

// A group of matrices [first, last] that begin `gap` elements after each other.
typedef struct Layout {
  size_t count, first[MAX_MEMBERS], last[MAX_MEMBERS], offsets[MAX_MEMBERS + 1];
  bool first_varies, last_varies;
} Layout;

static NVTEShape logical_shape(const Layout *l, size_t spare) {
  size_t first = 0, last = 0, all = 0;
  for (size_t t = 0; t < l->count; t++) {
    first += l->first[t];
    last += l->last[t];
    all += l->first[t] * l->last[t];
  }
  if (l->first_varies && l->last_varies) return SHAPE(1, all + spare);
  if (l->last_varies) return SHAPE(l->first[0], last + spare);
  return SHAPE(first + (l->first_varies ? spare : 0), l->last[0]);
}

static void lay_out(Layout *l, size_t gap) {
  l->offsets[0] = 0;
  for (size_t t = 0; t < l->count; t++) {
    l->offsets[t + 1] = l->offsets[t] + l->first[t] * l->last[t] + gap;
  }
}

static NVTEGroupedTensor group_of(NVTEScalingMode mode, const Layout *l, size_t gap, size_t spare) {
  NVTEGroupedTensor g = new_group(mode, l->count, logical_shape(l, spare));
  if (l->first_varies) set_int64(g, kNVTEGroupedFirstDims, l->first, l->count);
  if (l->last_varies) set_int64(g, kNVTEGroupedLastDims, l->last, l->count);
  // Offsets are tested with and without the entry of the end.
  size_t entries = l->count + (l->first[0] + l->count) % 2;
  if (gap) set_int64(g, kNVTEGroupedTensorOffsets, l->offsets, entries);
  return g;
}

static size_t capacity(const Layout *l, size_t spare) {
  size_t logical = numel(logical_shape(l, spare)), end = l->offsets[l->count];
  return logical > end ? logical : end;
}

// ---- Operands

// Member t as the product sees it: [outer, k] codes, and the values that they stand for.
typedef struct Operand {
  NVTEScalingMode mode;
  NVTEDType dtype;
  size_t count, outer[MAX_MEMBERS], k[MAX_MEMBERS];
  bool swizzled, k_last, mirrored;
  void *codes[MAX_MEMBERS];
  double *values[MAX_MEMBERS], *scales[MAX_MEMBERS];  // [outer, blocks]
} Operand;

static size_t blocks_of(const Operand *o, size_t t) {
  return o->mode == NVTE_DELAYED_TENSOR_SCALING ? 1 : ceil_div(o->k[t], is_mx(o->mode) ? 32 : 128);
}

static void make_values(const Product *p, Operand *o) {
  bool mx = is_mx(o->mode), scaled = is_fp8(o->dtype);
  size_t block = mx ? 32 : in_blocks(o->mode) ? 128 : SIZE_MAX;
  for (size_t t = 0; t < o->count; t++) {
    size_t outer = o->outer[t], k = o->k[t], blocks = blocks_of(o, t);
    o->codes[t] = host_memory(outer * k * dtype_size(o->dtype));
    o->values[t] = host_memory(outer * k * sizeof(double));
    o->scales[t] = host_memory((outer + 1) * blocks * sizeof(double));
    for (size_t i = 0; i < (outer ? outer : 1); i++) {
      for (size_t j = 0; j < blocks; j++) {
        bool repeated =
            i > 0 && (block == SIZE_MAX || (o->mode == NVTE_BLOCK_SCALING_2D && i % 128 != 0));
        double s = repeated            ? o->scales[t][(i - 1) * blocks + j]
                   : !scaled           ? 1
                   : p->integers || mx ? ldexp(1, (int)random_below(4) + (p->large && mx ? 6 : -1))
                                       : (double)(float)random_uniform(0.3, 3);
        o->scales[t][i * blocks + j] = s;
      }
    }
    for (size_t i = 0; i < outer * k; i++) {
      double x = p->integers ? (double)random_below(5) - 2 : random_uniform(-2, 2);
      put_value(o->dtype, o->codes[t], i, x);
      size_t at = i / k * blocks + (block == SIZE_MAX ? 0 : i % k / block);
      o->values[t][i] = get_value(o->dtype, o->codes[t], i) * o->scales[t][at];
    }
  }
}

// Whether the direction that is read is the column-wise one, and whether it is stored as [k,
// outer].
static bool reads_colwise(const Operand *o) { return is_fp8(o->dtype) ? !o->k_last : o->mirrored; }
static bool stored_flipped(const Operand *o) {
  if (is_mx(o->mode)) return reads_colwise(o);
  return !is_fp8(o->dtype) && o->k_last == o->mirrored;
}

static void store_codes(const Operand *o, size_t t, void *to, size_t at) {
  size_t outer = o->outer[t], k = o->k[t];
  for (size_t i = 0; i < outer * k; i++) {
    size_t place = stored_flipped(o) ? i % k * outer + i / k : i;
    put_bits(o->dtype, to, at + place, get_bits(o->dtype, o->codes[t], i));
  }
}

// First and second dimension of the matrix of scales of member t.
static void scale_shape(const Operand *o, size_t t, size_t dims[2]) {
  size_t blocks = blocks_of(o, t), outer = o->outer[t];
  bool flip = is_mx(o->mode) && reads_colwise(o);
  size_t mx[2] = {round_up(outer, 128), round_up(blocks, 4)};
  if (is_mx(o->mode)) {
    dims[0] = mx[flip];
    dims[1] = mx[!flip];
  } else if (o->mode == NVTE_BLOCK_SCALING_1D) {
    dims[0] = blocks;
    dims[1] = round_up(outer, 4);
  } else if (o->mode == NVTE_BLOCK_SCALING_2D) {
    dims[0] = ceil_div(outer, 128);
    dims[1] = round_up(blocks, 4);
  } else {
    dims[0] = dims[1] = 1;
  }
}

static size_t scale_size(const Operand *o) { return is_mx(o->mode) ? 1 : sizeof(float); }

static void store_scales(const Operand *o, size_t t, unsigned char *to) {
  size_t dims[2], blocks = blocks_of(o, t), tiles = ceil_div(blocks, 4);
  scale_shape(o, t, dims);
  memset(to, 0xFF, dims[0] * dims[1] * scale_size(o));
  if (o->mode == NVTE_DELAYED_TENSOR_SCALING) {
    *(float *)to = (float)o->scales[t][0];
    return;
  }
  for (size_t i = 0; i < o->outer[t]; i++) {
    for (size_t j = 0; j < blocks; j++) {
      double s = o->scales[t][i * blocks + j];
      size_t at = i * dims[1] + j;
      if (o->swizzled) {
        at = (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
      } else if (o->mode == NVTE_BLOCK_SCALING_1D || (is_mx(o->mode) && reads_colwise(o))) {
        at = j * dims[1] + i;
      } else if (!is_mx(o->mode)) {
        at = i / 128 * dims[1] + j;
      }
      if (is_mx(o->mode)) {
        to[at] = (unsigned char)(ilogb(s) + 127);
      } else {
        ((float *)to)[at] = (float)s;
      }
    }
  }
}

static NVTEDType scale_dtype(const Operand *o) {
  return is_mx(o->mode) ? kNVTEFloat8E8M0 : kNVTEFloat32;
}

static NVTEGroupedTensor operand_group(const Product *p, const Operand *o, bool outer_varies,
                                       bool k_varies) {
  Layout l = {.count = o->count};
  l.first_varies = o->k_last ? outer_varies : k_varies;
  l.last_varies = o->k_last ? k_varies : outer_varies;
  memcpy(l.first, o->k_last ? o->outer : o->k, sizeof l.first);
  memcpy(l.last, o->k_last ? o->k : o->outer, sizeof l.last);
  lay_out(&l, p->gap);
  NVTEGroupedTensor g = group_of(o->mode, &l, p->gap, p->spare);
  size_t elements = capacity(&l, p->spare), size = dtype_size(o->dtype), scales = 0;
  unsigned char *data = host_memory(elements * size), *scale = host_memory(1 << 20);
  memset(data, 0xFF, elements * size);
  for (size_t t = 0; t < o->count; t++) {
    size_t dims[2];
    store_codes(o, t, data, l.offsets[t]);
    store_scales(o, t, scale + scales);
    scale_shape(o, t, dims);
    scales += dims[0] * dims[1] * scale_size(o);
  }
  if (scales > 1 << 20) abort();
  bool col = reads_colwise(o);
  size_t shift = p->misaligned ? size : 0;
  if (elements > 0) {
    set_field(g, col ? kNVTEGroupedColumnwiseData : kNVTEGroupedRowwiseData,
              buffer_from(data, elements * size, shift)->ptr, o->dtype, elements);
  }
  if (is_fp8(o->dtype)) {
    set_field(g, col ? kNVTEGroupedColumnwiseScaleInv : kNVTEGroupedRowwiseScaleInv,
              buffer_from(scale, scales, 0)->ptr, scale_dtype(o), scales / scale_size(o));
  }
  if (p->both_directions && elements > 0) {
    set_field(g, col ? kNVTEGroupedRowwiseData : kNVTEGroupedColumnwiseData,
              buffer(elements * size)->ptr, o->dtype, elements);
  }
  uint8_t swizzled = o->swizzled;
  nvte_set_grouped_tensor_param(g, kNVTEGroupedWithGEMMSwizzledScales, &swizzled, sizeof swizzled);
  EXPECT_OK();
  return g;
}

static NVTETensor operand_member(const Product *p, const Operand *o, size_t t) {
  NVTETensor x = tensor_of_mode(o->mode);
  size_t bytes = o->outer[t] * o->k[t] * dtype_size(o->dtype), dims[2];
  bool col = reads_colwise(o), flip = stored_flipped(o);
  uint8_t swizzled = o->swizzled;
  nvte_set_tensor_param_v2(x, kNVTEWithGEMMSwizzledScales, &swizzled, sizeof swizzled);
  if (bytes == 0 && t % 2 == 0) return x;
  unsigned char *data = host_memory(bytes), *scale = host_memory(1 << 20);
  store_codes(o, t, data, 0);
  store_scales(o, t, scale);
  scale_shape(o, t, dims);
  set_param(x, col ? kNVTEColumnwiseData : kNVTERowwiseData,
            buffer_from(data, bytes, p->misaligned ? dtype_size(o->dtype) : 0)->ptr, o->dtype,
            flip ? SHAPE(o->k[t], o->outer[t]) : SHAPE(o->outer[t], o->k[t]));
  if (is_fp8(o->dtype) && bytes > 0) {
    NVTEShape shape = in_blocks(o->mode) || is_mx(o->mode) ? SHAPE(dims[0], dims[1]) : SHAPE(1);
    set_param(x, col ? kNVTEColumnwiseScaleInv : kNVTERowwiseScaleInv,
              buffer_from(scale, dims[0] * dims[1] * scale_size(o), 0)->ptr, scale_dtype(o), shape);
  }
  return x;
}

// ---- One call

// C or D: where members are, as a group or a list.
typedef struct Output {
  Layout layout;
  Buffer *whole, *parts[MAX_MEMBERS];
  NVTEGroupedTensor group;
  NVTETensor list[MAX_MEMBERS];
} Output;

static void make_output(const Product *p, Output *x, const Layout *layout, size_t gap) {
  size_t size = dtype_size(p->d), shift = p->misaligned ? size : 0;
  x->layout = *layout;
  lay_out(&x->layout, gap);
  if (p->d_list) {
    for (size_t t = 0; t < p->count; t++) {
      size_t first = layout->first[t], last = layout->last[t];
      x->parts[t] = buffer_shifted(first * last * size, shift);
      x->list[t] = tensor(x->parts[t]->ptr, p->d, SHAPE(first, last));
    }
    return;
  }
  size_t elements = capacity(&x->layout, p->spare);
  x->whole = buffer_shifted(elements * size, shift);
  x->group = group_of(NVTE_DELAYED_TENSOR_SCALING, &x->layout, gap, p->spare);
  if (elements) set_field(x->group, kNVTEGroupedRowwiseData, x->whole->ptr, p->d, elements);
}

static unsigned char *member_of(const Product *p, const Output *x, size_t t) {
  return p->d_list ? x->parts[t]->ptr : x->whole->ptr + x->layout.offsets[t] * dtype_size(p->d);
}

static void expect_member(const Product *p, size_t t, const Operand *a, const Operand *b,
                          const void *got, const void *c, float alpha, float beta) {
  size_t m = a->outer[t], n = b->outer[t], k = a->k[t], bad = 0;
  bool fp8 = is_fp8(p->a), blocks = in_blocks(p->a_mode);
  double relative = ldexp((double)k, -24) + 0x1p-21;
  // Tensor cores add FP8 products with about 14 bits; MXFP8 that does not lie along k becomes BF16.
  if (on_cuda() && fp8 && (!is_mx(p->a_mode) || (p->transa && !p->transb))) relative = 0x1p-9;
  for (size_t i = 0; i < n * m && bad < 3; i++) {
    double sum = 0, magnitude = 0;
    for (size_t q = 0; q < k; q++) {
      double product = a->values[t][i % m * k + q] * b->values[t][i / m * k + q];
      sum += product;
      magnitude += fabs(product);
    }
    double scaled = (double)alpha * sum, old = beta ? (double)beta * get_value(p->d, c, i) : 0;
    double error = p->integers ? 0 : fabs((double)alpha) * magnitude * relative;
    if (beta != 0 && !p->integers) error += step_at(p->d, fabs(scaled) + fabs(old));
    double value = get_value(p->d, got, i);
    // Sums of blocks are rounded before C is added with beta 1.
    bool good =
        close_enough(p->d, value, scaled + old, error) ||
        (blocks && beta == 1 && close_enough(p->d, value, round_to(p->d, scaled) + old, error));
    bad += !CHECK(good, "D[%zu][%zu][%zu]: got %.9g, expected %.9g + %g +- %g", t, i / m, i % m,
                  value, scaled, old, error);
  }
}

static void set_config(bool split) {
  uint8_t flag = split;
  nvte_set_grouped_matmul_config_attribute(g_config, kNVTEGroupedMatmulConfigUseSplitAccumulator,
                                           &flag, sizeof flag);
}

// Whether the call was refused because only some devices have a kernel.
static bool declined(void) {
  if (!on_cuda() || nvtex_last_status() != NVTEX_UNSUPPORTED) return false;
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_grouped_gemm", "compute capability");
  g_test.declined++;
  return true;
}

// All of D after a call; the case owns it.
typedef struct Bits {
  unsigned char *ptr;
  size_t bytes;
} Bits;

static void run_product_bits(const Product *p, Bits *bits) {
  size_t count = p->count, size = dtype_size(p->d);
  bool n_varies = p->vary == VARY_N || p->vary == VARY_ALL;
  bool k_varies = p->vary == VARY_K || p->vary == VARY_ALL, m_varies = p->vary == VARY_ALL;
  Operand a = {.mode = p->a_mode, .dtype = p->a, .count = count, .k_last = p->transa};
  Operand b = {.mode = p->b_mode, .dtype = p->b, .count = count, .k_last = !p->transb};
  a.swizzled = b.swizzled = is_mx(p->a_mode) && !p->unswizzled;
  a.mirrored = b.mirrored = p->mirrored;
  Layout layout = {.count = count, .first_varies = n_varies, .last_varies = m_varies};
  for (size_t t = 0; t < count; t++) {
    const size_t *own = p->dims ? p->dims + t : NULL;
    size_t m = m_varies ? own ? *own : random_below(p->m + 1) : p->m;
    size_t n = n_varies ? own ? *own : random_below(p->n + 1) : p->n;
    size_t k = k_varies ? own ? *own : random_below(p->k + 1) : p->k;
    layout.last[t] = a.outer[t] = m;
    layout.first[t] = b.outer[t] = n;
    a.k[t] = b.k[t] = k;
  }
  make_values(p, &a);
  make_values(p, &b);
  NVTEGroupedTensor b_group = operand_group(p, &b, n_varies, k_varies), a_group = NULL;
  NVTETensor a_list[MAX_MEMBERS];
  if (!p->a_list) a_group = operand_group(p, &a, m_varies, k_varies);
  for (size_t t = 0; t < count && p->a_list; t++) a_list[t] = operand_member(p, &a, t);

  float alphas[MAX_MEMBERS], betas[MAX_MEMBERS];
  for (size_t t = 0; t < count; t++) {
    alphas[t] = p->alpha * (p->alphas ? ldexpf(t % 3 ? -1 : 1, (int)(t % 4) - 1) : 1);
    betas[t] = p->betas ? (float[]){0, 1, -0.5f}[t % 3] : p->beta;
  }
  NVTETensor alpha = float_tensor(buffer_from(alphas, 4 * (p->alphas ? count : 1), 0));
  NVTETensor beta = float_tensor(buffer_from(betas, 4 * (p->betas ? count : 1), 0));

  static Output d, c;
  memset(&d, 0, sizeof d);
  memset(&c, 0, sizeof c);
  make_output(p, &d, &layout, p->gap);
  if (p->c != FROM_D) make_output(p, &c, &layout, p->gap ? 0 : 24);
  void *old[MAX_MEMBERS];
  for (size_t t = 0; t < count; t++) {
    size_t elements = layout.first[t] * layout.last[t];
    old[t] = host_memory(elements * size);
    for (size_t i = 0; i < elements; i++) put_value(p->d, old[t], i, (double)random_below(17) - 8);
    bool own = p->c == FROM_OTHER || (p->c == FROM_SOME && t % 2);
    if (p->d_list && p->c == FROM_SOME && !own) c.list[t] = NULL;
    // Where beta is 0, C stays NaN.
    if (betas[t] != 0) upload(member_of(p, own ? &c : &d, t), old[t], elements * size);
  }
  unsigned char *before = d.whole ? buffer_read(d.whole) : NULL;

  set_config(!p->fast);
  NVTETensor setup = tensor(g_setup, kNVTEByte, SHAPE(SETUP_BYTES));
  NVTETensor workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
  if (p->a_list) {
    nvte_grouped_gemm_with_discrete_inputA(a_list, count, p->transa, b_group, p->transb, c.group,
                                           d.group, alpha, beta, setup, workspace, g_config, NULL);
  } else if (p->d_list) {
    nvte_grouped_gemm_with_discrete_out(a_group, p->transa, b_group, p->transb, c.list,
                                        p->c == FROM_D ? 0 : count, d.list, count, alpha, beta,
                                        setup, workspace, g_config, NULL);
  } else {
    nvte_grouped_gemm(a_group, p->transa, b_group, p->transb, c.group, d.group, alpha, beta, setup,
                      workspace, g_config, NULL);
  }
  if (declined()) return;
  if (!EXPECT_OK()) return;
  unsigned char *after = d.whole ? buffer_read(d.whole) : NULL;
  if (bits) *bits = (Bits){buffer_read(d.whole), d.whole->bytes};
  for (size_t t = 0; t < count; t++) {
    size_t bytes = layout.first[t] * layout.last[t] * size;
    const void *got = d.whole ? after + d.layout.offsets[t] * size : buffer_read(d.parts[t]);
    expect_member(p, t, &a, &b, got, old[t], alphas[t], betas[t]);
    // The rest of D, which belongs to no member, must not change.
    if (d.whole) memset(after + d.layout.offsets[t] * size, 0, bytes);
    if (d.whole) memset(before + d.layout.offsets[t] * size, 0, bytes);
  }
  if (d.whole) CHECK(memcmp(before, after, d.whole->bytes) == 0, "written outside of members");
}

static void run_product(const Product *p) { run_product_bits(p, NULL); }

static void product_case(const char *what, const Product *p) {
  bool run = case_begin(
      "%s %s %s x %s %s -> %s %c%c %zu members m=%zu n=%zu k=%zu vary %s alpha=%g%s beta=%g%s%s%s%s"
      "%s%s%s%s%s%s%s",
      what, mode_name(p->a_mode), dtype_name(p->a), mode_name(p->b_mode), dtype_name(p->b),
      dtype_name(p->d), p->transa ? 'T' : 'N', p->transb ? 'T' : 'N', p->count, p->m, p->n, p->k,
      kVary[p->vary], (double)p->alpha, p->alphas ? "..." : "", (double)p->beta,
      p->betas ? "..." : "", p->a_list ? " list A" : "", p->d_list ? " list D" : "",
      p->c == FROM_D       ? ""
      : p->c == FROM_OTHER ? " other C"
                           : " some C",
      p->integers ? " integers" : "", p->gap ? " gaps" : "", p->spare ? " spare" : "",
      p->unswizzled ? " unswizzled" : "", p->mirrored ? " mirrored" : "",
      p->misaligned ? " misaligned" : "", p->large ? " large scales" : "");
  if (!run) return;
  run_product(p);
  destroy_groups();
}

// BFloat16, as in the forward pass: rows of B and D vary.
static Product product(size_t count, size_t m, size_t n, size_t k) {
  Product p = {.count = count, .m = m, .n = n, .k = k, .vary = VARY_N, .transa = true, .alpha = 1};
  p.a_mode = p.b_mode = NVTE_DELAYED_TENSOR_SCALING;
  p.a = p.b = p.d = kNVTEBFloat16;
  return p;
}

static const NVTEScalingMode kModes[][2] = {
    {NVTE_DELAYED_TENSOR_SCALING, NVTE_DELAYED_TENSOR_SCALING},
    {NVTE_DELAYED_TENSOR_SCALING, NVTE_DELAYED_TENSOR_SCALING},
    {NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_1D},
    {NVTE_BLOCK_SCALING_2D, NVTE_BLOCK_SCALING_1D},
    {NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D},
    {NVTE_MXFP8_1D_SCALING, NVTE_MXFP8_1D_SCALING}};

// The operands of row `format`: 16 bits, FP8 per tensor, FP8 blocks, MXFP8.
static void set_format(Product *p, size_t format) {
  p->a_mode = kModes[format][0];
  p->b_mode = kModes[format][1];
  if (format > 0) p->a = p->b = kNVTEFloat8E4M3;
}

// Every format in every layout, in each of the three entry points.
static void test_formats(void) {
  const size_t dims[][4] = {{64, 0, 200, 32}, {130, 16, 0, 257}, {128, 128, 384, 256}};
  for (size_t format = 0; format < COUNT(kModes); format++) {
    for (int i = 0; i < 64; i++) {
      size_t s = (size_t)i / 4 % 3;
      Product p = product(4, s == 1 ? 72 : 128, s == 1 ? 48 : 144, s == 2 ? 256 : 160);
      set_format(&p, format);
      p.transa = i & 1;
      p.transb = i & 2;
      p.vary = (Vary)(i / 4 % 4);
      p.dims = dims[s];
      p.a_list = i / 16 == 1;
      p.d_list = i / 16 == 2;
      p.integers = i / 32 != (i & 1);
      p.d = kHighPrecision[(size_t)i % 3];
      p.beta = i / 16 == 2 ? 1 : 0;
      if (format == 0 && i % 5 == 0) p.a = p.b = kNVTEFloat16;
      if (format > 0 && i % 7 == 0) p.b = kNVTEFloat8E5M2;
      p.both_directions = format > 0 && i % 3 == 0;
      p.mirrored = format == 0 && i % 4 == 3;
      product_case("format", &p);
    }
  }
}

// Sizes that are multiples of nothing, addresses too, gaps and spare elements.
static void test_odd_sizes(void) {
  for (size_t format = 0; format < COUNT(kModes); format++) {
    for (int i = 0; i < 24; i++) {
      Product p = product(1 + (size_t)i % 5, 37 + (size_t)i, 61, 131 + 3 * (size_t)i);
      set_format(&p, format);
      p.transa = i & 1;
      p.transb = i & 2;
      p.vary = (Vary)((i / 4 + i) % 4);
      p.integers = i % 3 == 0;
      p.gap = i % 2 ? 8 : 0;
      p.spare = i % 3 ? 5 : 0;
      p.a_list = i / 8 == 1;
      p.d_list = i / 8 == 2;
      p.misaligned = i % 4 == 1;
      p.unswizzled = i % 2;
      product_case("odd", &p);
    }
  }
}

// Members of several tiles, which end in the first or second half of one: rows and columns of D on
// both sides of multiples of 64, 128 and 256, and sums of one block to many.
static void test_tiles(void) {
  const size_t m[] = {96, 128, 132, 256, 264, 400, 520}, n[] = {300, 64, 65, 128, 200, 256, 20};
  const size_t k[] = {128, 640, 272, 16, 1040, 400, 129};
  for (size_t format = 0; format < COUNT(kModes); format++) {
    for (size_t i = 0; i < 2 * COUNT(m); i++) {
      size_t s = i % COUNT(m);
      Product p = product(2, m[s], n[i < COUNT(m) ? s : COUNT(m) - 1 - s], k[(s + format) % 7]);
      set_format(&p, format);
      const size_t depths[2] = {i % 8 > 5 ? 0 : k[s], k[(s + 1) % 7]};
      p.vary = i % 2 ? VARY_N : VARY_NONE;
      if (format == 0 && i % 4 > 1) {
        // As in the backward pass, also with a member whose sums have nothing.
        p.vary = VARY_K;
        p.transa = i % 8 > 5;
        p.transb = true;
        p.dims = depths;
      }
      p.integers = i % 3 == 0;
      p.d = kHighPrecision[i % 3];
      p.beta = i % 4 == 2 ? 1 : 0;
      p.misaligned = i % 5 == 4;
      if (format > 0 && i % 4 == 3) p.b = kNVTEFloat8E5M2;
      product_case("tiles", &p);
    }
  }
}

// Gradients of weights: rows that stay where they are while many columns pass, if sums have no more
// than 256, and members of one row of tiles, of two and of three.
static void test_runs(void) {
  const size_t depths[][2] = {{256, 65}, {257, 0}, {40, 192}, {130, 1}};
  const size_t n[] = {300, 200, 130, 64}, m[] = {2312, 1032, 2056, 4104};
  for (size_t i = 0; i < 2 * COUNT(n); i++) {
    Product p = product(2, m[i % 4], n[i % 4], 257);
    p.vary = VARY_K;
    p.transa = i == 5;
    p.transb = i != 6;
    p.dims = depths[(i + i / 4) % 4];
    p.integers = i % 3 == 0;
    p.d = kHighPrecision[i % 3];
    p.beta = i % 4 == 2 ? 1 : 0;
    if (i == 7) p.a = p.b = kNVTEFloat16;
    product_case("runs", &p);
  }
}

// MXFP8 with scales that leave the conversion to BF16 no room for a factor of its own.
static void test_mxfp8_large(void) {
  for (int i = 0; i < 8; i++) {
    Product p = product(3, 80 + 64 * ((size_t)i % 3), 144, 96 + 32 * ((size_t)i % 4));
    set_format(&p, COUNT(kModes) - 1);
    p.transa = i & 1;
    p.transb = i & 2;
    p.vary = i % 3 == 0 ? VARY_N : VARY_K;
    p.large = true;
    p.d = i / 4 ? kNVTEFloat32 : kNVTEBFloat16;
    p.unswizzled = i / 4;
    if (i % 4 == 2) p.b = kNVTEFloat8E5M2;
    product_case("mxfp8", &p);
  }
}

// MXFP8 with so many rows and columns in a member that operands are cast before they are
// multiplied.
static void test_mxfp8_cast(void) {
  for (int i = 0; i < 16; i++) {
    Product p = product(3, 368 + 16 * ((size_t)i % 3), 384, 96 + 32 * ((size_t)i % 4));
    set_format(&p, COUNT(kModes) - 1);
    p.transa = i & 1;
    p.transb = i & 2;
    p.vary = i % 8 == 5 ? VARY_K : i % 3 == 0 ? VARY_N : VARY_NONE;
    p.integers = i % 4 != 3;
    p.d = kHighPrecision[(size_t)i % 3];
    p.beta = i % 5 == 0 ? 1 : 0;
    p.a_list = i / 4 == 1;
    p.d_list = i / 4 == 2;
    p.unswizzled = i / 8;
    p.gap = i % 6 == 4 ? 32 : 0;
    if (i % 4 == 2) p.b = kNVTEFloat8E5M2;
    product_case("mxfp8 cast", &p);
  }
  Product p = product(1, 1136, 1136, 64);
  set_format(&p, COUNT(kModes) - 1);
  p.vary = VARY_NONE;
  product_case("mxfp8 cast along k", &p);
}

static void test_factors(void) {
  for (size_t format = 0; format < COUNT(kModes); format++) {
    for (int i = 0; i < 24; i++) {
      Product p = product(5, 64, 80, 128);
      set_format(&p, format);
      p.vary = i % 2 ? VARY_K : VARY_N;
      p.transa = p.vary == VARY_N;
      p.transb = !p.transa;
      p.alpha = i % 3 ? 0.5f : 1;
      p.beta = i / 2 % 2 ? 1 : -2;
      p.alphas = i & 4;
      p.betas = i & 2;
      p.c = (From)(i % 3);
      p.d_list = i / 12;
      p.a_list = !p.d_list && i % 4 == 0;
      if (!p.d_list && p.c == FROM_SOME) p.c = FROM_OTHER;
      p.integers = true;
      p.fast = format == 1 && i % 4 == 1;
      p.d = kHighPrecision[(size_t)i % 3];
      product_case("factors", &p);
    }
  }
}

// More members than kernel parameters hold, members without anything, one member.
static void test_counts(void) {
  for (int i = 0; i < 6; i++) {
    Product p = product(i < 4 ? MAX_MEMBERS : 1, 16, 24, 40);
    p.vary = i % 2 ? VARY_K : VARY_ALL;
    p.a_list = i == 1 || i == 4;
    p.d_list = i == 2 || i == 5;
    p.alphas = p.betas = i < 4;
    p.integers = true;
    product_case("count", &p);
  }
  for (int i = 0; i < 12; i++) {
    const size_t zeros[4] = {0};
    Product p = product(4, 32, 48, 64);
    p.vary = i / 3 % 2 ? VARY_K : VARY_N;
    p.transa = p.vary == VARY_N;
    p.transb = !p.transa;
    p.dims = zeros;
    p.a_list = i % 3 == 1;
    p.d_list = i % 3 == 2;
    p.beta = (float)(i / 6);
    p.integers = true;
    product_case("nothing", &p);
  }
  // 64 experts of few tokens, and tiles of every kind.
  for (int i = 0; i < 3; i++) {
    Product p = product(i == 0 ? 64 : 3, i == 0 ? 64 : 300, i == 0 ? 12 : 500, i == 0 ? 96 : 130);
    p.alphas = true;
    p.vary = i == 2 ? VARY_K : VARY_N;
    p.transa = i != 2;
    p.transb = i == 2;
    product_case("many", &p);
  }
}

// The first member of A has no field at all: its part of D becomes beta C. No offsets; m and k are
// the same for all members.
static void test_absent_member(void) {
  enum { MEMBERS = 3, M = 16, N = 24, K = 32 };
  for (int i = 0; i < 4; i++) {
    if (!case_begin("absent member %s beta %d", i & 1 ? "N" : "T", i / 2)) continue;
    bool transa = !(i & 1);
    float beta = (float)(i / 2);
    NVTETensor a_list[MEMBERS] = {tensor_of_mode(NVTE_DELAYED_TENSOR_SCALING)};
    double a[MEMBERS][M * K] = {{0}}, b[MEMBERS * N * K], old[MEMBERS * N * M];
    uint16_t bits[MEMBERS * N * K];
    for (int t = 1; t < MEMBERS; t++) {
      for (size_t e = 0; e < M * K; e++) {
        a[t][e] = (double)random_below(9) - 4;
        put_value(kNVTEBFloat16, bits, e, a[t][e]);
      }
      a_list[t] = tensor(buffer_from(bits, sizeof a[t] / 4, 0)->ptr, kNVTEBFloat16,
                         transa ? SHAPE(M, K) : SHAPE(K, M));
    }
    for (size_t e = 0; e < COUNT(b); e++) {
      b[e] = (double)random_below(9) - 4;
      put_value(kNVTEBFloat16, bits, e, b[e]);
    }
    NVTEGroupedTensor b_group =
        new_group(NVTE_DELAYED_TENSOR_SCALING, MEMBERS, SHAPE(MEMBERS * N, K));
    set_field(b_group, kNVTEGroupedRowwiseData, buffer_from(bits, sizeof bits, 0)->ptr,
              kNVTEBFloat16, COUNT(b));
    float values[MEMBERS * N * M];
    for (size_t e = 0; e < COUNT(old); e++) {
      old[e] = (double)random_below(17) - 8;
      values[e] = beta != 0 ? (float)old[e] : NAN;
    }
    Buffer *d = buffer_from(values, sizeof values, 0);
    NVTEGroupedTensor d_group =
        new_group(NVTE_DELAYED_TENSOR_SCALING, MEMBERS, SHAPE(MEMBERS * N, M));
    set_field(d_group, kNVTEGroupedRowwiseData, d->ptr, kNVTEFloat32, COUNT(values));
    set_config(true);
    nvte_grouped_gemm_with_discrete_inputA(
        a_list, MEMBERS, transa, b_group, 0, NULL, d_group, float_tensor(buffer_float(1)),
        float_tensor(buffer_float(beta)), tensor(g_setup, kNVTEByte, SHAPE(SETUP_BYTES)),
        tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE)), g_config, NULL);
    if (!declined() && EXPECT_OK()) {
      const float *got = buffer_read(d);
      for (size_t e = 0, bad = 0; e < COUNT(values) && bad < 3; e++) {
        size_t t = e / (N * M), n = e / M % N, m = e % M;
        double sum = beta != 0 ? beta * old[e] : 0;
        for (size_t k = 0; k < K; k++) {
          sum += a[t][transa ? m * K + k : k * M + m] * b[(t * N + n) * K + k];
        }
        bad += !CHECK(got[e] == sum, "D[%zu][%zu][%zu]: got %g, expected %g", t, n, m,
                      (double)got[e], sum);
      }
    }
    destroy_groups();
  }
}

// The same bits again, also of averages that are no true ones.
static void test_repeat(void) {
  if (!case_begin("repeat")) return;
  Product p = product(3, 96, 200, 300);
  Bits first = {NULL, 0};
  for (int i = 0; i < 3; i++) {
    int64_t mean = i * 1000;
    for (int attr = kNVTEGroupedMatmulConfigAvgM; attr <= kNVTEGroupedMatmulConfigAvgK; attr++) {
      nvte_set_grouped_matmul_config_attribute(g_config, (NVTEGroupedMatmulConfigAttribute)attr,
                                               &mean, sizeof mean);
    }
    g_test.rng = 1;
    Bits bits = {NULL, 0};
    run_product_bits(&p, &bits);
    destroy_groups();
    if (!bits.ptr) return;
    if (!first.ptr) first = bits;
    CHECK(first.bytes == bits.bytes && memcmp(first.ptr, bits.ptr, bits.bytes) == 0,
          "run %d: other bits", i);
  }
}

// ---- Errors

// A call whose parts are replaced one at a time.
typedef struct Call {
  NVTEGroupedTensor a, b, c, d;
  NVTETensor alpha, beta, setup, workspace;
  NVTEGroupedMatmulConfig config;
  const NVTETensor *a_list, *c_list;
  NVTETensor *d_list;
  size_t a_count, c_count, d_count;
} Call;

static void expect_refusal(Call c, const char *name) {
  if (c.a_list) {
    nvte_grouped_gemm_with_discrete_inputA(c.a_list, c.a_count, 1, c.b, 0, c.c, c.d, c.alpha,
                                           c.beta, c.setup, c.workspace, c.config, NULL);
  } else if (c.d_list) {
    nvte_grouped_gemm_with_discrete_out(c.a, 1, c.b, 0, c.c_list, c.c_count, c.d_list, c.d_count,
                                        c.alpha, c.beta, c.setup, c.workspace, c.config, NULL);
  } else {
    nvte_grouped_gemm(c.a, 1, c.b, 0, c.c, c.d, c.alpha, c.beta, c.setup, c.workspace, c.config,
                      NULL);
  }
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_gemm", name, "expected", "got");
}

static NVTEGroupedTensor plain_group(size_t count, size_t rows, size_t cols, NVTEDType dtype) {
  NVTEGroupedTensor g = new_group(NVTE_DELAYED_TENSOR_SCALING, count, SHAPE(rows, cols));
  set_field(g, kNVTEGroupedRowwiseData, buffer(rows * cols * dtype_size(dtype))->ptr, dtype,
            rows * cols);
  return g;
}

static NVTETensor plain_tensor(size_t rows, size_t cols, NVTEDType dtype) {
  return tensor(buffer(rows * cols * dtype_size(dtype))->ptr, dtype, SHAPE(rows, cols));
}

static void test_errors(void) {
  const NVTEDType bf16 = kNVTEBFloat16;
  for (int i = 0; i < 30; i++) {
    if (!case_begin("error %d", i)) continue;
    Call good = {0};
    good.a = plain_group(2, 32, 24, bf16);
    good.b = plain_group(2, 48, 24, bf16);
    Buffer *whole = buffer((size_t)48 * 16 * 2), *parts[2];
    good.d = new_group(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(48, 16));
    set_field(good.d, kNVTEGroupedRowwiseData, whole->ptr, bf16, (size_t)48 * 16);
    good.alpha = good.beta = float_tensor(buffer_float(0));
    good.setup = tensor(g_setup, kNVTEByte, SHAPE(SETUP_BYTES));
    good.workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE));
    NVTETensor a_list[] = {plain_tensor(16, 24, bf16), plain_tensor(16, 24, bf16)};
    NVTETensor d_list[2];
    for (int t = 0; t < 2; t++) {
      parts[t] = buffer((size_t)24 * 16 * 2);
      d_list[t] = tensor(parts[t]->ptr, bf16, SHAPE(24, 16));
    }
    NVTETensor half = plain_tensor(16, 24, kNVTEFloat16);
    uint64_t none = 0x7FFF0123;
    Call c = good, lists = good;
    const char *name = NULL;
    lists.d_list = d_list;
    lists.a_count = lists.c_count = lists.d_count = 2;
    if (i == 0) c.a = NULL, name = "A";
    if (i == 1) c.b = (NVTEGroupedTensor)(uintptr_t)none, name = "B";
    if (i == 2) c.d = NULL, name = "D";
    if (i == 3) c.a = plain_group(3, 48, 24, bf16), name = "A.num_tensors";
    if (i == 4) c.d = plain_group(3, 48, 16, bf16), name = "D.num_tensors";
    if (i == 5) c.a = plain_group(2, 32, 26, bf16), name = "B (contracted";
    if (i == 6) c.d = plain_group(2, 48, 18, bf16), name = "D (last";
    if (i == 7) c.d = plain_group(2, 50, 16, bf16), name = "D (first";
    if (i == 8) c.a = plain_group(2, 32, 24, kNVTEFloat16), name = "B.dtype";
    if (i == 9) c.a = plain_group(2, 32, 24, kNVTEInt32), name = "A.dtype";
    if (i == 10) c.d = plain_group(2, 48, 16, kNVTEFloat8E4M3), name = "D.dtype";
    if (i == 11) c.c = plain_group(2, 48, 16, kNVTEFloat32), name = "C.dtype";
    if (i == 12) c.c = plain_group(2, 48, 18, bf16), name = "C (last";
    if (i == 13) c.a = new_group(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(32, 24)), name = "A.data";
    if (i == 14) c.a = plain_group(2, 32, 24, kNVTEFloat8E4M3), name = "A.scale_inv";
    if (i == 15) c.alpha = float_tensor(buffer(12)), name = "alpha.shape";
    if (i == 16) c.beta = half, name = "beta.dtype";
    if (i == 17) c.beta = NULL, name = "beta";
    if (i == 18) c.setup = tensor(g_setup, kNVTEByte, SHAPE(400)), name = "workspace_setup";
    if (i == 19) {
      c.setup = tensor((char *)g_setup + 8, kNVTEByte, SHAPE(SETUP_BYTES - 8));
      name = "workspace_setup";
    }
    if (i == 20) {
      c.workspace = tensor(g_workspace, kNVTEByte, SHAPE(WORKSPACE - 1));
      name = "workspace_cublas";
    }
    if (i == 21) c.config = (NVTEGroupedMatmulConfig)(uintptr_t)none, name = "config";
    if (i >= 22 && i <= 25) {
      c = lists;
      c.d_list = NULL;
      c.a_list = a_list;
    }
    if (i >= 26) c = lists;
    if (i == 22) c.a_count = 1, name = "num_a_tensors";
    if (i == 23) a_list[1] = NULL, name = "A_list[1]";
    if (i == 24) a_list[1] = half, name = "A_list[1].data.dtype";
    if (i == 25) a_list[0] = plain_tensor(18, 24, bf16), name = "D (last";
    if (i == 26) c.d_count = 3, name = "num_d_tensors";
    if (i == 27) d_list[1] = NULL, name = "D_list[1]";
    if (i == 28) d_list[1] = plain_tensor(24, 16, kNVTEFloat32), name = "D_list[1].dtype";
    if (i == 29) c.c_list = a_list, name = "C (first";
    expect_refusal(c, name);
    CHECK(untouched(whole) && untouched(parts[0]) && untouched(parts[1]), "D was written");
    destroy_groups();
  }
}

static void test_setup_bytes(void) {
  if (!case_begin("setup bytes")) return;
  CHECK_EQ(nvte_get_grouped_gemm_setup_workspace_size(1), 92 + 56 + 256);
  CHECK_EQ(nvte_get_grouped_gemm_setup_workspace_size(2), 184 + 256);
  CHECK_EQ(nvte_get_grouped_gemm_setup_workspace_size(64), 92 * 64 + 256);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  g_workspace = nvtex_malloc(WORKSPACE);
  g_setup = nvtex_malloc(SETUP_BYTES);
  g_config = nvte_create_grouped_matmul_config();
  EXPECT_OK();
  test_setup_bytes();
  test_formats();
  test_odd_sizes();
  test_tiles();
  test_runs();
  test_mxfp8_large();
  test_mxfp8_cast();
  test_factors();
  test_counts();
  test_absent_member();
  test_repeat();
  test_errors();
  case_end();
  nvte_destroy_grouped_matmul_config(g_config);
  nvtex_free(g_setup);
  nvtex_free(g_workspace);
  return test_end();
}
