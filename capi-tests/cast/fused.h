// Expected results of fused casts (quantize.md sections 1.2 to 1.9, 2 and 4), in double: elements
// v, each with a bound on its error, and what a cast of one matrix of them may have written. Plain,
// relu and srelu have bounds of 0, so that every bit is checked; with the others a result may lie
// on either side of a rounding boundary that is as near as the bound.
#ifndef NVTE_CAPI_TESTS_FUSED_H
#define NVTE_CAPI_TESTS_FUSED_H

#include "support.h"

typedef enum Function { F_PLAIN, F_GELU, F_SILU, F_RELU, F_QGELU, F_SRELU, F_COUNT } Function;

static const char *const kFunctionNames[] = {"plain", "gelu", "silu", "relu", "qgelu", "srelu"};

static inline bool is_exact(Function f) { return f == F_PLAIN || f == F_RELU || f == F_SRELU; }

static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static inline double function_value(Function f, double x) {
  switch (f) {
    case F_GELU:
      return x * (0.5 + 0.5 * tanh(x * (0.79788456 + 0.03567741 * x * x)));
    case F_SILU:
      return x * sigmoid(x);
    case F_QGELU:
      return x * sigmoid(1.702 * x);
    case F_RELU:
      return x > 0 ? x : 0;
    case F_SRELU:
      return x > 0 ? (float)(x * x) : 0;
    default:
      return x;
  }
}

static inline double function_slope(Function f, double x) {
  double s, t;
  switch (f) {
    case F_GELU:
      t = tanh(0.79788456 * x * (1 + 0.044715 * x * x));
      return 0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t);
    case F_SILU:
      s = sigmoid(x);
      return x * s * (1 - s) + s;
    case F_QGELU:
      s = sigmoid(1.702 * x);
      return 1.702 * x * s * (1 - s) + s;
    case F_RELU:
      return x > 0;
    case F_SRELU:
      return x > 0 ? 2 * x : 0;
    default:
      return 1;
  }
}

// Elements of a matrix, computed from inputs, with bounds on the error of each.
typedef struct Elements {
  double *v, *error;
} Elements;

static inline Elements elements_of(size_t n) {
  return (Elements){host_memory(n * sizeof(double)), host_memory(n * sizeof(double))};
}

// A product that is rounded to Float32 if the function is exact, in which case it is what float
// arithmetic gives; else with a bound for the error of the function, which is of the size of 1.
static inline void put_element(Elements e, size_t i, Function f, double a, double b, double c) {
  double product = is_exact(f) ? (float)((float)(a * b) * c) : a * b * c;
  e.v[i] = product;
  e.error[i] = is_exact(f) ? 0 : 1e-5 * fabs(product) + 3e-6 * fmax(fabs(b), fabs(b * c));
}

// The elements v = f'(act) * input, or the input.
static inline void derivative_elements(Elements e, Function f, NVTEDType dtype, const void *input,
                                       const void *act, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double slope = f == F_PLAIN ? 1 : function_slope(f, get_value(dtype, act, i));
    put_element(e, i, f, slope, get_value(dtype, input, i), 1);
  }
}

// act = (a | g) in rows of cols: v = (f'(a) * input * g | input * f(a)).
static inline void gated_elements(Elements e, Function f, NVTEDType dtype, const void *input,
                                  const void *act, size_t rows, size_t cols) {
  for (size_t r = 0; r < rows; r++) {
    for (size_t h = 0; h < cols / 2; h++) {
      double x = get_value(dtype, input, r * (cols / 2) + h);
      double a = get_value(dtype, act, r * cols + h);
      double g = get_value(dtype, act, r * cols + cols / 2 + h);
      put_element(e, r * cols + h, f, function_slope(f, a), x, g);
      put_element(e, r * cols + cols / 2 + h, f, function_value(f, a), x, 1);
    }
  }
}

// ---- One matrix: layouts and values

// What a cast of elements wrote, in host memory.
typedef struct Matrix {
  NVTEScalingMode mode;
  NVTEDType in, out;
  size_t rows, cols;
  bool pow2, square, swizzled;
  float epsilon, scale;  // scale: mode 0
  size_t pitch[2];       // from one row of a scale matrix to the next, row-wise and column-wise
  Elements elements;
  const unsigned char *data[2], *scales[2];  // null: not wanted
} Matrix;

static const NVTEScalingMode kAllModes[] = {NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING,
                                            NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D};
static const char *const kModeNames[] = {"per tensor", "MXFP8", "1D", "2D"};

static inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
static inline size_t round_up(size_t a, size_t b) { return ceil_div(a, b) * b; }

static inline bool is_mx(NVTEScalingMode mode) { return mode == NVTE_MXFP8_1D_SCALING; }

// First dimension of a scale matrix, and the second without slack.
static inline void scale_dims(NVTEScalingMode mode, int col, size_t rows, size_t cols,
                              size_t dims[2]) {
  size_t down = ceil_div(rows, 128), across = ceil_div(cols, 128);
  switch (mode) {
    case NVTE_DELAYED_TENSOR_SCALING:
      dims[0] = dims[1] = 1;
      break;
    case NVTE_MXFP8_1D_SCALING:
      dims[0] = col ? round_up(ceil_div(rows, 32), 4) : round_up(rows, 128);
      dims[1] = col ? round_up(cols, 128) : round_up(ceil_div(cols, 32), 4);
      break;
    case NVTE_BLOCK_SCALING_1D:
      dims[0] = col ? down : across;
      dims[1] = col ? cols : rows;
      break;
    default:
      dims[0] = col ? across : down;
      dims[1] = col ? down : across;
  }
}

static inline size_t scale_size(NVTEScalingMode mode) { return is_mx(mode) ? 1 : 4; }

static inline size_t scale_at(const Matrix *m, int col, size_t r, size_t c) {
  size_t pitch = m->pitch[col];
  switch (m->mode) {
    case NVTE_MXFP8_1D_SCALING: {
      if (!m->swizzled) return col ? r / 32 * pitch + c : r * pitch + c / 32;
      size_t i = col ? c : r, j = (col ? r : c) / 32;
      size_t tiles = ceil_div(col ? m->rows : m->cols, 128);
      return (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
    }
    case NVTE_BLOCK_SCALING_1D:
      return col ? r / 128 * pitch + c : c / 128 * pitch + r;
    default:
      return col ? c / 128 * pitch + r / 128 : r / 128 * pitch + c / 128;
  }
}

// The smallest code whose power of two is not less than v.
static inline int mx_code(const Matrix *m, double amax) {
  volatile float inverse_max = 1.0f / (float)format_of(m->out).largest;
  volatile float v = (float)amax * inverse_max;
  int code = 0;
  while (code < 254 && ldexp(1, code - 127) < (double)v) code++;
  return code;
}

static inline float block_scale(const Matrix *m, double block_amax) {
  float amax = (float)block_amax;
  if (amax < m->epsilon) amax = m->epsilon;
  if (amax == 0 || isinf(amax)) return 1;
  volatile float scale = (float)format_of(m->out).largest / amax;
  if (isinf(scale)) scale = (float)format_of(m->in).largest;
  return m->pow2 ? (float)ldexp(1, ilogb((double)scale)) : scale;
}

typedef struct Interval {
  double low, high;
} Interval;

// v as it is cast: rounded, in blocks to the input's dtype.
static inline Interval element(const Matrix *m, size_t i) {
  NVTEDType dtype = m->mode == NVTE_DELAYED_TENSOR_SCALING ? kNVTEFloat32 : m->in;
  double v = m->elements.v[i], error = m->elements.error[i];
  if (error == 0) return (Interval){round_to(dtype, v), round_to(dtype, v)};
  return (Interval){round_to(dtype, v - error), round_to(dtype, v + error)};
}

static inline Interval magnitude(Interval x) {
  double low = fmin(fabs(x.low), fabs(x.high)), high = fmax(fabs(x.low), fabs(x.high));
  return (Interval){x.low < 0 && x.high > 0 ? 0 : low, high};
}

// One block of one direction: its scale, then its elements.
static inline bool check_block(const Matrix *m, int col, size_t top, size_t left, size_t height,
                               size_t width, unsigned char *stored) {
  size_t bottom = top + height < m->rows ? top + height : m->rows;
  size_t right = left + width < m->cols ? left + width : m->cols;
  bool per_tensor = m->mode == NVTE_DELAYED_TENSOR_SCALING;
  const char *side = col ? "columnwise" : "rowwise";
  Interval scale = {(double)m->scale, (double)m->scale};
  if (!per_tensor) {
    Interval amax = {0, 0};
    for (size_t r = top; r < bottom; r++) {
      for (size_t c = left; c < right; c++) {
        Interval a = magnitude(element(m, r * m->cols + c));
        amax.low = fmax(amax.low, a.low);
        amax.high = fmax(amax.high, a.high);
      }
    }
    // Is it 0 or is it small? Nothing follows for the scale.
    if (amax.low == 0 && amax.high > 0) return true;
    size_t entry = scale_at(m, col, top, left);
    for (size_t r = top; r < bottom; r++) {
      for (size_t c = left; c < right; c++) {
        size_t at = scale_at(m, col, r, c);
        stored[at] = 1;
        size_t size = scale_size(m->mode);
        if (!CHECK(memcmp(m->scales[col] + at * size, m->scales[col] + entry * size, size) == 0,
                   "%s scales of the block at row %zu, col %zu differ", side, top, left)) {
          return false;
        }
      }
    }
    if (is_mx(m->mode)) {
      int got = m->scales[col][entry], low = mx_code(m, amax.low), high = mx_code(m, amax.high);
      if (!CHECK(got >= low && got <= high, "%s code of row %zu, col %zu: %d, not %d to %d", side,
                 top, left, got, low, high)) {
        return false;
      }
      scale.low = scale.high = ldexp(1, 127 - got);
    } else {
      float got, low = block_scale(m, amax.high), high = block_scale(m, amax.low);
      memcpy(&got, m->scales[col] + 4 * entry, 4);
      volatile float least = 1.0f / high, most = 1.0f / low;
      if (!CHECK(got >= least && got <= most, "%s scale of row %zu, col %zu: %a, not %a to %a",
                 side, top, left, (double)got, (double)least, (double)most)) {
        return false;
      }
      scale = (Interval){(double)low, (double)high};
    }
  }
  for (size_t r = top; r < bottom; r++) {
    for (size_t c = left; c < right; c++) {
      Interval x = element(m, r * m->cols + c);
      double low = x.low, high = x.high;
      if (is_fp8(m->out)) {
        // A product of two floats is exact in double: one rounding to float.
        double products[] = {x.low * scale.low, x.low * scale.high, x.high * scale.low,
                             x.high * scale.high};
        low = high = (float)products[0];
        for (int i = 1; i < 4; i++) {
          low = fmin(low, (float)products[i]);
          high = fmax(high, (float)products[i]);
        }
      }
      uint32_t least = encode_bits(m->out, low), most = encode_bits(m->out, high);
      bool transposed = col && !is_mx(m->mode);
      size_t at = transposed ? c * m->rows + r : r * m->cols + c;
      uint32_t got = get_bits(m->out, m->data[col], at);
      double value = decode_bits(m->out, got);
      bool ok = same_bits(m->out, got, least) || same_bits(m->out, got, most) ||
                (value >= decode_bits(m->out, least) && value <= decode_bits(m->out, most) &&
                 least != most);
      if (!CHECK(ok, "%s of row %zu, col %zu: v %a, scale %a: got 0x%x, not 0x%x to 0x%x", side, r,
                 c, x.low, scale.low, got, least, most)) {
        return false;
      }
    }
  }
  return true;
}

// `entries` is the number of entries of the scale matrix, padding included.
static inline void check_matrix(const Matrix *m) {
  for (int col = 0; col < 2; col++) {
    if (!m->data[col] || m->rows * m->cols == 0) continue;
    size_t side = is_mx(m->mode) ? 32 : 128, dims[2];
    bool square = is_mx(m->mode) ? m->square : m->mode != NVTE_BLOCK_SCALING_1D;
    size_t height = square || col ? side : 1, width = square || !col ? side : 1;
    scale_dims(m->mode, col, m->rows, m->cols, dims);
    size_t entries = dims[0] * m->pitch[col], bad = 0;
    unsigned char *stored = host_memory(entries);
    for (size_t top = 0; top < m->rows && bad < 3; top += height) {
      for (size_t left = 0; left < m->cols && bad < 3; left += width) {
        bad += !check_block(m, col, top, left, height, width, stored);
      }
    }
    if (bad || m->mode == NVTE_DELAYED_TENSOR_SCALING || !is_mx(m->mode)) continue;
    for (size_t i = 0; i < entries; i++) {
      if (!stored[i] && m->scales[col][i] != 0) {
        // Blocks of an unknown scale are not in `stored`: only codes outside of the matrix count.
        bool inside =
            m->swizzled || (col ? i % m->pitch[1] < m->cols && i / m->pitch[1] * 32 < m->rows
                                : i % m->pitch[0] * 32 < m->cols && i / m->pitch[0] < m->rows);
        if (!CHECK(inside, "padding of %s codes: entry %zu is %d", col ? "columnwise" : "rowwise",
                   i, m->scales[col][i])) {
          break;
        }
      }
    }
  }
}

// Sums over the rows, in Float32 in some order, rounded to the dtype.
static inline void check_dbias(NVTEDType dtype, size_t rows, size_t cols, Elements e,
                               const void *got) {
  size_t bad = 0;
  for (size_t c = 0; c < cols && bad < 3; c++) {
    double sum = 0, size = 0, error = 0;
    for (size_t r = 0; r < rows; r++) {
      sum += e.v[r * cols + c];
      size += fabs(e.v[r * cols + c]);
      error += e.error[r * cols + c];
    }
    error += size * (double)FLT_EPSILON * (8 + (double)rows / 512);
    double low = round_to(dtype, (float)(sum - error)),
           high = round_to(dtype, (float)(sum + error));
    double value = get_value(dtype, got, c);
    bad += !CHECK(value >= low && value <= high, "dbias[%zu] of %zu rows: %a, not %a to %a", c,
                  rows, value, low, high);
  }
}

#endif  // NVTE_CAPI_TESTS_FUSED_H
