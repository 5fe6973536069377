// Random cases of operators for `nvte/conform.h`: their buffers, and the call of a public function.
// Here are casts, activations, norms, products and copies; the other headers `nvte/conform_*.h`
// have the others.
//
// A new operator is a function that makes its case `index`, and a row in `conform_generators` of
// nvte/conform_operators.h.
#ifndef NVTE_CONFORM_CASES_H
#define NVTE_CONFORM_CASES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvte/nvte.h"

// ---- Random numbers (splitmix64)

typedef struct ConformRandom {
  uint64_t state;
} ConformRandom;

static inline uint64_t conform_u64(ConformRandom *random) {
  uint64_t z = (random->state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Sizes and options of cases are chosen by two functions. A program that looks for a smaller case
// with the same failure defines this macro before it includes the header: it is given what was
// drawn, with the least and the most that it may be, and gives what is taken.
#ifndef CONFORM_CHOOSE
#define CONFORM_CHOOSE(drawn, least, most) (drawn)
#endif

// A number from `least` to `most`.
static inline size_t conform_within(ConformRandom *random, size_t least, size_t most) {
  const size_t drawn = least + (size_t)(conform_u64(random) % (most - least + 1));
  return CONFORM_CHOOSE(drawn, least, most);
}

static inline bool conform_chance(ConformRandom *random, unsigned percent) {
  const size_t drawn = conform_u64(random) % 100 < percent;
  return CONFORM_CHOOSE(drawn, (size_t)0, (size_t)1);
}

static inline double conform_uniform(ConformRandom *random, double low, double high) {
  return low + (high - low) * (double)(conform_u64(random) >> 11) * 0x1p-53;
}

// ---- Number formats

typedef struct ConformFormat {
  int exponent_bits, mantissa_bits, bias;
  double max;
  bool infinity;
} ConformFormat;

// The format of a dtype; no exponent bits for one that is no binary float.
static inline ConformFormat conform_format(NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat32:
      return (ConformFormat){8, 23, 127, 0x1.fffffep127, true};
    case kNVTEFloat16:
      return (ConformFormat){5, 10, 15, 65504, true};
    case kNVTEBFloat16:
      return (ConformFormat){8, 7, 127, 0x1.fep127, true};
    case kNVTEFloat8E4M3:
      return (ConformFormat){4, 3, 7, 448, false};
    case kNVTEFloat8E5M2:
      return (ConformFormat){5, 2, 15, 57344, true};
    default:
      return (ConformFormat){0, 0, 0, 0, false};
  }
}

static inline size_t conform_size(NVTEDType dtype) {
  switch (dtype) {
    case kNVTEInt64:
      return 8;
    case kNVTEInt32:
    case kNVTEFloat32:
      return 4;
    case kNVTEInt16:
    case kNVTEFloat16:
    case kNVTEBFloat16:
      return 2;
    default:
      return 1;
  }
}

static inline const char *conform_dtype_name(NVTEDType dtype) {
  static const char *const names[] = {"Byte",       "Int16",      "Int32",     "Int64",
                                      "Float32",    "Float16",    "BFloat16",  "Float8E4M3",
                                      "Float8E5M2", "Float8E8M0", "Float4E2M1"};
  return (unsigned)dtype < sizeof names / sizeof *names ? names[dtype] : "?";
}

static inline uint64_t conform_bits(NVTEDType dtype, const void *data, size_t i) {
  uint64_t bits = 0;
  memcpy(&bits, (const char *)data + i * conform_size(dtype), conform_size(dtype));
  return bits;
}

static inline double conform_decode(NVTEDType dtype, uint64_t bits) {
  const ConformFormat f = conform_format(dtype);
  const uint64_t mantissas = 1u << f.mantissa_bits, exponents = 1u << f.exponent_bits;
  const uint64_t mantissa = bits % mantissas, exponent = bits / mantissas % exponents;
  const double sign = bits / mantissas / exponents % 2 ? -1 : 1;
  if (f.infinity && exponent == exponents - 1) return mantissa ? (double)NAN : sign * INFINITY;
  if (!f.infinity && exponent == exponents - 1 && mantissa == mantissas - 1) return (double)NAN;
  if (exponent == 0) return sign * ldexp((double)mantissa, 1 - f.bias - f.mantissa_bits);
  return sign * ldexp((double)(mantissa + mantissas), (int)exponent - f.bias - f.mantissa_bits);
}

static inline double conform_value(NVTEDType dtype, const void *data, size_t i) {
  return conform_decode(dtype, conform_bits(dtype, data, i));
}

// An element of any dtype: integers have a sign, but for bytes.
static inline double conform_number(NVTEDType dtype, const void *data, size_t i) {
  const uint64_t bits = conform_bits(dtype, data, i);
  if (conform_format(dtype).exponent_bits > 0) return conform_decode(dtype, bits);
  switch (dtype) {
    case kNVTEInt64:
      return (double)(int64_t)bits;
    case kNVTEInt32:
      return (double)(int32_t)bits;
    case kNVTEInt16:
      return (double)(int16_t)bits;
    default:
      return (double)bits;
  }
}

// The distance between numbers of the dtype near x.
static inline double conform_ulp(NVTEDType dtype, double x) {
  const ConformFormat f = conform_format(dtype);
  int exponent = 1 - f.bias;
  if (fabs(x) >= ldexp(1, exponent)) exponent = ilogb(fmin(fabs(x), f.max));
  return ldexp(1, exponent - f.mantissa_bits);
}

// Stores the nearest number of the dtype; x is none that overflows.
static inline void conform_store(NVTEDType dtype, void *data, size_t i, double x) {
  const ConformFormat f = conform_format(dtype);
  const double ulp = conform_ulp(dtype, x), magnitude = fabs(nearbyint(x / ulp) * ulp);
  int exponent = 0;
  double mantissa = magnitude / ldexp(1, 1 - f.bias - f.mantissa_bits);
  if (magnitude >= ldexp(1, 1 - f.bias)) {
    exponent = ilogb(magnitude) + f.bias;
    mantissa = ldexp(magnitude, f.mantissa_bits - ilogb(magnitude)) - ldexp(1, f.mantissa_bits);
  }
  uint64_t bits = (uint64_t)mantissa | (uint64_t)exponent << f.mantissa_bits;
  if (signbit(x)) bits |= (uint64_t)1 << (f.mantissa_bits + f.exponent_bits);
  memcpy((char *)data + i * conform_size(dtype), &bits, conform_size(dtype));
}

// ---- Cases

enum { CONFORM_BUFFERS = 24, CONFORM_TENSORS = 64, CONFORM_BLOCKS = 8 };

typedef enum ConformRole {
  CONFORM_INPUT,    // must not change
  CONFORM_OUTPUT,   // compared as the implementation's numerics say
  CONFORM_EXACT,    // an output with the reference's bits in every class: scales, indices, flags
  CONFORM_SCRATCH,  // memory for the call, whose contents after it mean nothing
} ConformRole;

typedef struct ConformBuffer {
  const char *name;
  ConformRole role;
  NVTEDType dtype;
  size_t count, bytes;
  size_t shift;          // bytes by which it misses an alignment of 256
  unsigned char *image;  // contents before the call
  // Of an output: how many terms its elements are sums of, and the sum of their magnitudes: of each
  // element, or `relative * |element| + absolute`.
  size_t terms;
  double *magnitudes, relative, absolute;
  // What one code makes of an output that is computed from codes which may differ by one.
  double slack;
  // What the elements of an output should be, which the case has computed by itself in double; NaN:
  // as before the call. Null: what the reference writes is all that is known.
  double *expected;
} ConformBuffer;

struct ConformRun;

typedef struct ConformCase {
  size_t index;
  char what[192];
  ConformBuffer buffers[CONFORM_BUFFERS];
  int num_buffers;
  // What `call` calls; it reads nothing but the case and the run.
  void (*call)(const struct ConformCase *, struct ConformRun *);
  const void *function;
  size_t n[8];
  float f[4];
  bool flags[8];
  NVTEScalingMode mode;
} ConformCase;

// A call of a case: its buffers in the memory of a domain.
typedef struct ConformRun {
  const ConformCase *c;
  cudaStream_t stream;
  unsigned char *base[CONFORM_BUFFERS], *ptr[CONFORM_BUFFERS];  // with guards; the buffer itself
  unsigned char *got[CONFORM_BUFFERS];  // what is in it after the call, with guards
  NVTETensor tensors[CONFORM_TENSORS];
  int num_tensors;
  void *blocks[CONFORM_BLOCKS];  // workspaces
  int num_blocks;
  NVTEXStatus status;
  char error[768];
} ConformRun;

enum { CONFORM_NONE = -1 };

static inline void *conform_alloc(size_t bytes) {
  void *memory = calloc(bytes ? bytes : 1, 1);
  if (!memory) abort();
  return memory;
}

// Adds a buffer of bytes 0xFF, which is NaN in every float and -1 in every integer.
static inline int conform_add(ConformCase *c, const char *name, ConformRole role, NVTEDType dtype,
                              size_t count, size_t shift) {
  if (c->num_buffers == CONFORM_BUFFERS) abort();
  ConformBuffer *b = &c->buffers[c->num_buffers];
  *b = (ConformBuffer){.name = name, .role = role, .dtype = dtype, .count = count};
  b->bytes = count * conform_size(dtype);
  b->shift = shift * conform_size(dtype);
  b->image = conform_alloc(b->bytes);
  memset(b->image, 0xFF, b->bytes);
  b->terms = 1;
  return c->num_buffers++;
}

// By how many elements the buffers of a case are off their alignment; 0 for most cases.
static inline size_t conform_shift(ConformRandom *random) {
  return conform_chance(random, 70) ? 0 : conform_within(random, 1, 7);
}

static inline int conform_output(ConformCase *c, ConformRandom *random, const char *name,
                                 NVTEDType dtype, size_t count) {
  return conform_add(c, name, CONFORM_OUTPUT, dtype, count, conform_shift(random));
}

// Values from a range.
static inline int conform_input(ConformCase *c, ConformRandom *random, const char *name,
                                NVTEDType dtype, size_t count, double low, double high) {
  const int i = conform_add(c, name, CONFORM_INPUT, dtype, count, conform_shift(random));
  for (size_t e = 0; e < count; e++) {
    conform_store(dtype, c->buffers[i].image, e, conform_uniform(random, low, high));
  }
  return i;
}

// Any bits: NaN, Inf, denormals and large numbers among them.
static inline int conform_input_bits(ConformCase *c, ConformRandom *random, const char *name,
                                     NVTEDType dtype, size_t count) {
  const int i = conform_add(c, name, CONFORM_INPUT, dtype, count, conform_shift(random));
  for (size_t b = 0; b < c->buffers[i].bytes; b++) {
    c->buffers[i].image[b] = (unsigned char)conform_u64(random);
  }
  return i;
}

static inline int conform_float(ConformCase *c, const char *name, ConformRole role, float value) {
  const int i = conform_add(c, name, role, kNVTEFloat32, 1, 0);
  memcpy(c->buffers[i].image, &value, sizeof value);
  return i;
}

static inline double conform_element(const ConformCase *c, int buffer, size_t i) {
  return conform_value(c->buffers[buffer].dtype, c->buffers[buffer].image, i);
}

// Room for what an output should be; what is not filled in should be as before the call.
static inline double *conform_expect(ConformCase *c, int buffer) {
  ConformBuffer *b = &c->buffers[buffer];
  b->expected = conform_alloc(b->count * sizeof *b->expected);
  for (size_t i = 0; i < b->count; i++) b->expected[i] = (double)NAN;
  return b->expected;
}

// Room for the magnitudes of the elements of an output.
static inline double *conform_magnitudes(ConformCase *c, int buffer) {
  ConformBuffer *b = &c->buffers[buffer];
  return b->magnitudes = conform_alloc(b->count * sizeof *b->magnitudes);
}

static inline void conform_free_case(ConformCase *c) {
  for (int i = 0; i < c->num_buffers; i++) {
    free(c->buffers[i].image);
    free(c->buffers[i].magnitudes);
    free(c->buffers[i].expected);
  }
  c->num_buffers = 0;
}

// ---- Tensors of a run

#define CONFORM_SHAPE(...)                     \
  conform_shape((const size_t[]){__VA_ARGS__}, \
                sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t))

static inline NVTEShape conform_shape(const size_t *dims, size_t ndim) {
  NVTEShape shape;
  memset(&shape, 0, sizeof shape);
  shape.ndim = ndim;
  memcpy(shape.data, dims, ndim * sizeof *dims);
  return shape;
}

static inline NVTETensor conform_empty(ConformRun *run, NVTEScalingMode mode) {
  if (run->num_tensors == CONFORM_TENSORS) abort();
  return run->tensors[run->num_tensors++] = nvte_create_tensor(mode);
}

static inline void conform_set_memory(NVTETensor tensor, NVTETensorParam param, void *data,
                                      NVTEDType dtype, NVTEShape shape) {
  NVTEBasicTensor basic;
  memset(&basic, 0, sizeof basic);
  basic.data_ptr = data;
  basic.dtype = dtype;
  basic.shape = shape;
  nvte_set_tensor_param_v2(tensor, param, &basic, sizeof basic);
}

// Nothing for a buffer that the case does not have.
static inline void conform_set(ConformRun *run, NVTETensor tensor, NVTETensorParam param,
                               int buffer, NVTEShape shape) {
  if (buffer == CONFORM_NONE) return;
  conform_set_memory(tensor, param, run->ptr[buffer], run->c->buffers[buffer].dtype, shape);
}

static inline NVTETensor conform_tensor(ConformRun *run, int buffer, NVTEShape shape) {
  NVTETensor tensor = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  conform_set(run, tensor, kNVTERowwiseData, buffer, shape);
  return tensor;
}

// Gives a workspace the memory that a first call has asked for.
static inline void conform_workspace(ConformRun *run, NVTETensor workspace) {
  const NVTEShape shape = nvte_tensor_shape(workspace);
  const NVTEDType dtype = nvte_tensor_type(workspace);
  size_t bytes = conform_size(dtype);
  for (size_t i = 0; i < shape.ndim; i++) bytes *= shape.data[i];
  if (shape.ndim == 0 || bytes == 0 || run->num_blocks == CONFORM_BLOCKS) return;
  void *memory = run->blocks[run->num_blocks++] = nvtex_malloc(bytes);
  conform_set_memory(workspace, kNVTERowwiseData, memory, dtype, shape);
}

// ---- Choices that several operators share

static inline NVTEDType conform_high(ConformRandom *random) {
  static const NVTEDType dtypes[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};
  return dtypes[conform_u64(random) % 3];
}

// The dtype of a case, so that all of them come up soon.
static inline NVTEDType conform_high_of(size_t index) {
  static const NVTEDType dtypes[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};
  return dtypes[index % 3];
}

static inline NVTEDType conform_any_of(size_t index) {
  static const NVTEDType dtypes[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3,
                                     kNVTEFloat8E5M2};
  return dtypes[index % 5];
}

static inline bool conform_is_fp8(NVTEDType dtype) {
  return dtype == kNVTEFloat8E4M3 || dtype == kNVTEFloat8E5M2;
}

// Odd, tiny, round and long ones.
static inline void conform_matrix(ConformRandom *random, size_t *rows, size_t *cols) {
  switch (conform_u64(random) % 4) {
    case 0:
      *rows = conform_within(random, 1, 5), *cols = conform_within(random, 1, 40);
      break;
    case 1:
      *rows = 16 * conform_within(random, 1, 6), *cols = 16 * conform_within(random, 1, 12);
      break;
    case 2:
      *rows = conform_within(random, 1, 3), *cols = conform_within(random, 1, 4000);
      break;
    default:
      *rows = conform_within(random, 1, 100), *cols = conform_within(random, 1, 100);
  }
}

// ---- padding

static inline void conform_call_padding(const ConformCase *c, ConformRun *run) {
  const size_t count = c->n[0], cols = c->n[1];
  NVTETensor inputs[4], outputs[4];
  int32_t rows[4];
  for (size_t i = 0; i < count; i++) {
    const size_t from = c->buffers[2 * i].count / cols, to = c->buffers[2 * i + 1].count / cols;
    inputs[i] = conform_tensor(run, (int)(2 * i), CONFORM_SHAPE(from, cols));
    outputs[i] = conform_tensor(run, (int)(2 * i + 1), CONFORM_SHAPE(to, cols));
    rows[i] = (int32_t)to;
  }
  (c->flags[0] ? nvte_multi_unpadding : nvte_multi_padding)(count, inputs, outputs, rows,
                                                            run->stream);
}

static inline bool conform_make_padding(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  static const NVTEDType dtypes[] = {kNVTEByte,     kNVTEFloat32,    kNVTEFloat16,
                                     kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEInt64};
  if (*variant) return false;
  const NVTEDType dtype = dtypes[index % 6];
  const size_t count = conform_within(random, 1, 4), cols = conform_within(random, 1, 80);
  c->flags[0] = index % 2;
  for (size_t i = 0; i < count; i++) {
    const size_t less = conform_within(random, i > 0 ? 0 : 1, 60);
    const size_t more = less + (conform_chance(random, 80) ? conform_within(random, 0, 40) : 0);
    conform_input_bits(c, random, "input", dtype, (c->flags[0] ? more : less) * cols);
    conform_output(c, random, "output", dtype, (c->flags[0] ? less : more) * cols);
  }
  c->n[0] = count;
  c->n[1] = cols;
  c->call = conform_call_padding;
  snprintf(c->what, sizeof c->what, "%zu tensors of %s, %zu columns%s", count,
           conform_dtype_name(dtype), cols, c->flags[0] ? ", rows left out" : "");
  return true;
}

// ---- quantize: casts and activations per tensor, casts to blocks

typedef enum ConformCall {
  CONFORM_CAST,
  CONFORM_ACTIVATION,
  CONFORM_DERIVATIVE,
  CONFORM_LIMITED,
  CONFORM_LIMITED_DERIVATIVE,
  CONFORM_DBIAS,
  CONFORM_DBIAS_DERIVATIVE,
} ConformCall;

typedef void (*ConformForward)(NVTETensor, NVTETensor, cudaStream_t);
typedef void (*ConformBackward)(NVTETensor, NVTETensor, NVTETensor, cudaStream_t);
typedef void (*ConformLimited)(NVTETensor, NVTETensor, float, float, cudaStream_t);
typedef void (*ConformLimitedBackward)(NVTETensor, NVTETensor, NVTETensor, float, float,
                                       cudaStream_t);
typedef void (*ConformDbias)(NVTETensor, NVTETensor, NVTETensor, NVTETensor, NVTETensor,
                             cudaStream_t);

typedef struct ConformActivation {
  const char *name;
  bool gated;
  ConformForward forward;
  ConformBackward backward;
  ConformDbias dbias;
  ConformLimited limited;
  ConformLimitedBackward limited_backward;
} ConformActivation;

static inline const ConformActivation *conform_activation(const char *name) {
  static const ConformActivation activations[] = {
      {"gelu", false, nvte_gelu, nvte_dgelu, nvte_quantize_dbias_dgelu, NULL, NULL},
      {"silu", false, nvte_silu, nvte_dsilu, nvte_quantize_dbias_dsilu, NULL, NULL},
      {"qgelu", false, nvte_qgelu, nvte_dqgelu, nvte_quantize_dbias_dqgelu, NULL, NULL},
      {"relu", false, nvte_relu, nvte_drelu, nvte_quantize_dbias_drelu, NULL, NULL},
      {"srelu", false, nvte_srelu, nvte_dsrelu, nvte_quantize_dbias_dsrelu, NULL, NULL},
      {"geglu", true, nvte_geglu, nvte_dgeglu, NULL, NULL, NULL},
      {"swiglu", true, nvte_swiglu, nvte_dswiglu, NULL, NULL, NULL},
      {"qgeglu", true, nvte_qgeglu, nvte_dqgeglu, NULL, NULL, NULL},
      {"reglu", true, nvte_reglu, nvte_dreglu, NULL, NULL, NULL},
      {"sreglu", true, nvte_sreglu, nvte_dsreglu, NULL, NULL, NULL},
      {"glu", true, nvte_glu, nvte_dglu, NULL, NULL, NULL},
      {"clamped_swiglu", true, NULL, NULL, NULL, nvte_clamped_swiglu, nvte_clamped_dswiglu},
      {"situglu", true, NULL, NULL, NULL, nvte_situglu, nvte_dsituglu},
  };
  for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
    if (strcmp(activations[i].name, name) == 0) return &activations[i];
  }
  return NULL;
}

enum {
  Q_INPUT,
  Q_ROWWISE,
  Q_COLWISE,
  Q_SCALE,
  Q_AMAX,
  Q_SCALE_INV,
  Q_COL_SCALE_INV,
  Q_NOOP,
  Q_OTHER,
  Q_DBIAS,
  Q_COUNT
};

// The shape of the scales of a matrix in a scaling mode, of its rows or of its columns.
static inline NVTEShape conform_scale_shape(NVTEScalingMode mode, size_t rows, size_t cols,
                                            bool columns) {
  const size_t down = (rows + 127) / 128, across = (cols + 127) / 128;
  switch (mode) {
    case NVTE_MXFP8_1D_SCALING:
      return columns ? CONFORM_SHAPE(4 * down, 128 * across)
                     : CONFORM_SHAPE(128 * down, 4 * across);
    case NVTE_BLOCK_SCALING_1D:
      return columns ? CONFORM_SHAPE(down, cols) : CONFORM_SHAPE(across, rows);
    case NVTE_BLOCK_SCALING_2D:
      return columns ? CONFORM_SHAPE(across, down) : CONFORM_SHAPE(down, across);
    default:
      return CONFORM_SHAPE(1);
  }
}

// A scaling mode of blocks for one case in two, and what it is called.
static inline NVTEScalingMode conform_mode_of(size_t index) {
  static const NVTEScalingMode modes[] = {NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D,
                                          NVTE_BLOCK_SCALING_2D};
  return index % 2 ? modes[index / 2 % 3] : NVTE_DELAYED_TENSOR_SCALING;
}

static inline const char *conform_mode_name(NVTEScalingMode mode) {
  return mode == NVTE_MXFP8_1D_SCALING   ? ", MXFP8"
         : mode == NVTE_BLOCK_SCALING_1D ? ", scales of 1x128"
         : mode == NVTE_BLOCK_SCALING_2D ? ", scales of 128x128"
                                         : "";
}

// Where the buffers of a cast are: `n[4]` has a digit for each, 0 for none.
static inline int conform_cast_buffer(const ConformCase *c, int which) {
  return (int)(c->n[4] >> 5 * which & 31) - 1;
}

static inline void conform_call_quantize(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1], in_cols = c->n[2];
  int b[Q_COUNT];
  for (int i = 0; i < Q_COUNT; i++) b[i] = conform_cast_buffer(c, i);
  NVTETensor input = conform_tensor(run, b[Q_INPUT], CONFORM_SHAPE(rows, in_cols));
  NVTETensor output = conform_empty(run, c->mode);
  const bool transposed = c->mode != NVTE_MXFP8_1D_SCALING;
  conform_set(run, output, kNVTERowwiseData, b[Q_ROWWISE], CONFORM_SHAPE(rows, cols));
  conform_set(run, output, kNVTEColumnwiseData, b[Q_COLWISE],
              transposed ? CONFORM_SHAPE(cols, rows) : CONFORM_SHAPE(rows, cols));
  conform_set(run, output, kNVTEScale, b[Q_SCALE], CONFORM_SHAPE(1));
  conform_set(run, output, kNVTEAmax, b[Q_AMAX], CONFORM_SHAPE(1));
  const NVTEShape row_scales = conform_scale_shape(c->mode, rows, cols, false);
  const NVTEShape col_scales = conform_scale_shape(c->mode, rows, cols, true);
  if (b[Q_ROWWISE] != CONFORM_NONE) {
    conform_set(run, output, kNVTERowwiseScaleInv, b[Q_SCALE_INV], row_scales);
  }
  if (b[Q_COLWISE] != CONFORM_NONE) {
    conform_set(run, output, kNVTEColumnwiseScaleInv,
                b[Q_COL_SCALE_INV] != CONFORM_NONE ? b[Q_COL_SCALE_INV] : b[Q_SCALE_INV],
                col_scales);
  }
  const ConformActivation *activation = c->function;
  NVTETensor other = NULL, dbias = NULL, workspace = NULL;
  const size_t other_cols = activation && activation->gated ? 2 * in_cols : in_cols;
  if (b[Q_OTHER] != CONFORM_NONE) {
    other = conform_tensor(run, b[Q_OTHER], CONFORM_SHAPE(rows, other_cols));
  }
  if (b[Q_DBIAS] != CONFORM_NONE) {
    dbias = conform_tensor(run, b[Q_DBIAS], CONFORM_SHAPE(cols));
    workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  }
  switch ((ConformCall)c->n[3]) {
    case CONFORM_CAST:
      if (b[Q_NOOP] == CONFORM_NONE) {
        nvte_quantize(input, output, run->stream);
      } else {
        NVTETensor noop = conform_tensor(run, b[Q_NOOP], CONFORM_SHAPE(1));
        nvte_quantize_noop(input, output, noop, run->stream);
      }
      break;
    case CONFORM_ACTIVATION:
      activation->forward(input, output, run->stream);
      break;
    case CONFORM_DERIVATIVE:
      activation->backward(input, other, output, run->stream);
      break;
    case CONFORM_LIMITED:
      activation->limited(input, output, c->f[0], c->f[1], run->stream);
      break;
    case CONFORM_LIMITED_DERIVATIVE:
      activation->limited_backward(input, other, output, c->f[0], c->f[1], run->stream);
      break;
    case CONFORM_DBIAS:
      nvte_quantize_dbias(input, output, dbias, workspace, run->stream);
      conform_workspace(run, workspace);
      nvte_quantize_dbias(input, output, dbias, workspace, run->stream);
      break;
    case CONFORM_DBIAS_DERIVATIVE:
      activation->dbias(input, other, output, dbias, workspace, run->stream);
      conform_workspace(run, workspace);
      activation->dbias(input, other, output, dbias, workspace, run->stream);
  }
}

// Magnitudes of what is cast, times the scale: the functions multiply by at most 1 + |x|.
static inline void conform_cast_magnitudes(ConformCase *c, const int *b, double scale) {
  const ConformActivation *activation = c->function;
  const size_t rows = c->n[0], cols = c->n[1];
  const bool gated = activation && activation->gated, backward = b[Q_OTHER] != CONFORM_NONE;
  double *magnitudes = conform_alloc(rows * cols * sizeof *magnitudes), most = 0;
  for (size_t i = 0; i < rows * cols; i++) {
    const size_t row = i / cols, col = i % cols;
    double m;
    if (!gated) {
      m = fabs(conform_element(c, b[Q_INPUT], i));
      if (backward) m *= 1 + fabs(conform_element(c, b[Q_OTHER], i));
    } else {
      const size_t half = backward ? cols / 2 : cols, at = row * 2 * half + col % half;
      const int halves = b[backward ? Q_OTHER : Q_INPUT];
      m = (1 + fabs(conform_element(c, halves, at))) *
          (1 + fabs(conform_element(c, halves, at + half)));
      if (backward) m *= fabs(conform_element(c, b[Q_INPUT], row * half + col % half));
    }
    magnitudes[i] = m * scale;
    if (m > most) most = m;
  }
  c->buffers[b[Q_ROWWISE]].magnitudes = magnitudes;
  if (b[Q_AMAX] != CONFORM_NONE) c->buffers[b[Q_AMAX]].absolute = most;
  if (b[Q_DBIAS] != CONFORM_NONE) {
    c->buffers[b[Q_DBIAS]].terms = rows;
    c->buffers[b[Q_DBIAS]].absolute = most * (double)rows;
  }
}

static inline bool conform_make_quantize(ConformCase *c, ConformRandom *random, const char *variant,
                                         size_t index) {
  const bool dbias = strncmp(variant, "dbias", 5) == 0;
  const char *name = strncmp(variant, "dbias_d", 7) == 0 ? variant + 7 : variant;
  const ConformActivation *activation = conform_activation(name);
  bool backward = name != variant;
  if (!activation && *name == 'd') backward = (activation = conform_activation(name + 1)) != NULL;
  const bool cast = strcmp(variant, "cast") == 0;
  if (!cast && !activation && strcmp(variant, "dbias") != 0) return false;
  c->function = activation;
  const bool gated = activation && activation->gated;
  const NVTEDType in = conform_high_of(index);
  NVTEDType out = conform_any_of(index / 3);
  c->mode = cast ? conform_mode_of(index / 2) : NVTE_DELAYED_TENSOR_SCALING;
  const bool mxfp8 = c->mode == NVTE_MXFP8_1D_SCALING;
  const bool blocks = c->mode != NVTE_DELAYED_TENSOR_SCALING;
  if (blocks) out = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  size_t rows, cols;
  conform_matrix(random, &rows, &cols);
  if (blocks) rows = (rows + 31) / 32 * 32, cols = (cols + 31) / 32 * 32;
  const size_t in_cols = gated && !backward ? 2 * cols : cols;
  const size_t out_cols = gated && backward ? 2 * cols : cols;
  int b[Q_COUNT];
  for (int i = 0; i < Q_COUNT; i++) b[i] = CONFORM_NONE;
  const bool wild = cast && !blocks && conform_chance(random, 20);
  b[Q_INPUT] = wild ? conform_input_bits(c, random, "input", in, rows * in_cols)
                    : conform_input(c, random, "input", in, rows * in_cols, -4, 4);
  if (backward) {
    b[Q_OTHER] =
        conform_input(c, random, "the input of the activation", in, rows * out_cols, -4, 4);
  }
  const bool both = cast && conform_chance(random, 40), col = both && conform_chance(random, 30);
  if (!col) b[Q_ROWWISE] = conform_output(c, random, "row-wise data", out, rows * out_cols);
  if (both) b[Q_COLWISE] = conform_output(c, random, "column-wise data", out, rows * cols);
  if ((!blocks || mxfp8) && conform_chance(random, 60)) {
    b[Q_AMAX] = conform_float(c, "amax", CONFORM_OUTPUT, conform_chance(random, 50) ? 0 : 2.5f);
  }
  double scale = 1;
  if (conform_is_fp8(out) && !blocks) {
    scale = ldexp(conform_uniform(random, 1, 2), (int)conform_within(random, 0, 4));
    b[Q_SCALE] = conform_float(c, "scale", CONFORM_INPUT, (float)scale);
    b[Q_SCALE_INV] = conform_float(c, "scale_inv", CONFORM_EXACT, -7);
  }
  if (blocks) {
    const NVTEDType codes = mxfp8 ? kNVTEByte : kNVTEFloat32;
    const NVTEShape of_rows = conform_scale_shape(c->mode, rows, cols, false);
    const NVTEShape of_cols = conform_scale_shape(c->mode, rows, cols, true);
    if (!col) {
      b[Q_SCALE_INV] =
          conform_add(c, "row scales", CONFORM_EXACT, codes, of_rows.data[0] * of_rows.data[1], 0);
    }
    if (both) {
      b[Q_COL_SCALE_INV] = conform_add(c, "column scales", CONFORM_EXACT, codes,
                                       of_cols.data[0] * of_cols.data[1], 0);
    }
  }
  if (cast && conform_chance(random, 30)) {
    b[Q_NOOP] = conform_float(c, "noop", CONFORM_INPUT, conform_chance(random, 60) ? 1 : 0);
  }
  if (dbias) b[Q_DBIAS] = conform_output(c, random, "dbias", in, cols);
  c->n[0] = rows;
  c->n[1] = out_cols;
  c->n[2] = in_cols;
  c->f[0] = 2;
  c->f[1] = 1.702f;
  if (activation && activation->limited) {
    c->n[3] = backward ? CONFORM_LIMITED_DERIVATIVE : CONFORM_LIMITED;
  } else if (dbias) {
    c->n[3] = backward ? CONFORM_DBIAS_DERIVATIVE : CONFORM_DBIAS;
  } else {
    c->n[3] = cast ? CONFORM_CAST : backward ? CONFORM_DERIVATIVE : CONFORM_ACTIVATION;
  }
  for (int i = 0; i < Q_COUNT; i++) c->n[4] |= (size_t)(b[i] + 1) << 5 * i;
  if (!cast) conform_cast_magnitudes(c, b, scale);
  c->call = conform_call_quantize;
  snprintf(c->what, sizeof c->what, "%s to %s, %zux%zu%s%s%s%s%s", conform_dtype_name(in),
           conform_dtype_name(out), rows, out_cols, conform_mode_name(c->mode),
           wild ? ", any bits" : "", b[Q_AMAX] != CONFORM_NONE ? ", amax" : "",
           col    ? ", column-wise"
           : both ? ", both directions"
                  : "",
           b[Q_NOOP] != CONFORM_NONE ? ", noop" : "");
  return true;
}

// ---- dequantize

static inline void conform_call_dequantize(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  NVTETensor input = conform_empty(run, c->mode);
  conform_set(run, input, kNVTERowwiseData, 0, CONFORM_SHAPE(rows, cols));
  conform_set(run, input, kNVTERowwiseScaleInv, 1, conform_scale_shape(c->mode, rows, cols, false));
  nvte_dequantize(input, conform_tensor(run, 2, CONFORM_SHAPE(rows, cols)), run->stream);
}

static inline bool conform_make_dequantize(ConformCase *c, ConformRandom *random,
                                           const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType in = index % 2 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
  const NVTEDType out = conform_high_of(index / 2);
  c->mode = conform_mode_of(index / 2);
  const bool mxfp8 = c->mode == NVTE_MXFP8_1D_SCALING;
  size_t rows, cols;
  conform_matrix(random, &rows, &cols);
  if (c->mode != NVTE_DELAYED_TENSOR_SCALING) {
    rows = (rows + 31) / 32 * 32, cols = (cols + 31) / 32 * 32;
  }
  conform_input_bits(c, random, "input", in, rows * cols);
  const NVTEShape shape = conform_scale_shape(c->mode, rows, cols, false);
  const size_t scales = shape.data[0] * (shape.ndim > 1 ? shape.data[1] : 1);
  const int inv =
      conform_add(c, "scale_inv", CONFORM_INPUT, mxfp8 ? kNVTEByte : kNVTEFloat32, scales, 0);
  for (size_t i = 0; i < scales; i++) {
    if (mxfp8) {
      c->buffers[inv].image[i] = (unsigned char)conform_within(random, 117, 133);
    } else {
      conform_store(kNVTEFloat32, c->buffers[inv].image, i, conform_uniform(random, 0.01, 4));
    }
  }
  conform_output(c, random, "output", out, rows * cols);
  c->n[0] = rows;
  c->n[1] = cols;
  c->call = conform_call_dequantize;
  snprintf(c->what, sizeof c->what, "%s to %s, %zux%zu%s", conform_dtype_name(in),
           conform_dtype_name(out), rows, cols, conform_mode_name(c->mode));
  return true;
}

// ---- norm_forward, norm_backward

static inline void conform_call_norm_forward(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  const bool layer = c->flags[0], fp8 = c->flags[2], amax = c->flags[3];
  NVTETensor x = conform_tensor(run, 0, CONFORM_SHAPE(rows, cols));
  NVTETensor gamma = conform_tensor(run, 1, CONFORM_SHAPE(cols));
  NVTETensor z = conform_tensor(run, 2, CONFORM_SHAPE(rows, cols));
  NVTETensor rsigma = conform_tensor(run, 3, CONFORM_SHAPE(rows));
  int next = 4;
  NVTETensor beta = NULL, mu = NULL;
  if (layer) {
    beta = conform_tensor(run, next++, CONFORM_SHAPE(cols));
    mu = conform_tensor(run, next++, CONFORM_SHAPE(rows));
  }
  if (fp8) {
    conform_set(run, z, kNVTEScale, next++, CONFORM_SHAPE(1));
    conform_set(run, z, kNVTERowwiseScaleInv, next++, CONFORM_SHAPE(1));
  }
  if (amax) conform_set(run, z, kNVTEAmax, next++, CONFORM_SHAPE(1));
  NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  for (int call = 0; call < 2; call++) {
    if (layer) {
      nvte_layernorm_fwd(x, gamma, beta, 1e-5f, z, mu, rsigma, workspace, 8, c->flags[1],
                         run->stream);
    } else {
      nvte_rmsnorm_fwd(x, gamma, 1e-5f, z, rsigma, workspace, 8, c->flags[1], run->stream);
    }
    if (call == 0) conform_workspace(run, workspace);
  }
}

static inline bool conform_make_norm_forward(ConformCase *c, ConformRandom *random,
                                             const char *variant, size_t index) {
  const bool layer = strcmp(variant, "layernorm") == 0;
  if (!layer && strcmp(variant, "rmsnorm") != 0) return false;
  const NVTEDType in = conform_high_of(index), out = conform_any_of(index / 3);
  const NVTEDType weights = conform_chance(random, 60) ? in : conform_high(random);
  size_t rows, cols;
  conform_matrix(random, &rows, &cols);
  if (layer && cols < 8) cols += 8;  // Few elements may be nearly equal, and then everything is.
  c->flags[0] = layer;
  c->flags[1] = conform_chance(random, 30);
  c->flags[2] = conform_is_fp8(out);
  c->flags[3] = c->flags[2] && conform_chance(random, 70);
  conform_input(c, random, "x", in, rows * cols, -2, 2);
  conform_input(c, random, "gamma", weights, cols, -1, 1);
  const int z = conform_output(c, random, "z", out, rows * cols);
  const int rsigma = conform_add(c, "rsigma", CONFORM_OUTPUT, kNVTEFloat32, rows, 0);
  c->buffers[rsigma].relative = 1;
  c->buffers[rsigma].terms = cols;
  double scale = 1;
  if (layer) {
    conform_input(c, random, "beta", weights, cols, -1, 1);
    const int mu = conform_add(c, "mu", CONFORM_OUTPUT, kNVTEFloat32, rows, 0);
    c->buffers[mu].absolute = 2;
    c->buffers[mu].terms = cols;
  }
  if (c->flags[2]) {
    scale = conform_uniform(random, 1, 8);
    conform_float(c, "scale", CONFORM_INPUT, (float)scale);
    conform_float(c, "scale_inv", CONFORM_EXACT, -7);
  }
  // Two of |x| rsigma g + beta, rsigma being at most 1 or so.
  c->buffers[z].relative = 2;
  c->buffers[z].absolute = 10 * scale;
  c->buffers[z].terms = cols;
  if (c->flags[3]) {
    const int amax = conform_float(c, "amax", CONFORM_OUTPUT, 0);
    c->buffers[amax].relative = 2;
    c->buffers[amax].absolute = 10;
    c->buffers[amax].terms = cols;
  }
  c->n[0] = rows;
  c->n[1] = cols;
  c->call = conform_call_norm_forward;
  snprintf(c->what, sizeof c->what, "%s, gamma %s, to %s, %zux%zu%s%s", conform_dtype_name(in),
           conform_dtype_name(weights), conform_dtype_name(out), rows, cols,
           c->flags[1] ? ", gamma centred at 0" : "", c->flags[3] ? ", amax" : "");
  return true;
}

static inline void conform_call_norm_backward(const ConformCase *c, ConformRun *run) {
  const size_t rows = c->n[0], cols = c->n[1];
  const bool layer = c->flags[0];
  NVTETensor dz = conform_tensor(run, 0, CONFORM_SHAPE(rows, cols));
  NVTETensor x = conform_tensor(run, 1, CONFORM_SHAPE(rows, cols));
  NVTETensor rsigma = conform_tensor(run, 2, CONFORM_SHAPE(rows));
  NVTETensor gamma = conform_tensor(run, 3, CONFORM_SHAPE(cols));
  NVTETensor dx = conform_tensor(run, 4, CONFORM_SHAPE(rows, cols));
  NVTETensor dgamma = conform_tensor(run, 5, CONFORM_SHAPE(cols));
  NVTETensor mu = NULL, dbeta = NULL, workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  if (layer) {
    mu = conform_tensor(run, 6, CONFORM_SHAPE(rows));
    dbeta = conform_tensor(run, 7, CONFORM_SHAPE(cols));
  }
  for (int call = 0; call < 2; call++) {
    if (layer) {
      nvte_layernorm_bwd(dz, x, mu, rsigma, gamma, dx, dgamma, dbeta, workspace, 8, c->flags[1],
                         run->stream);
    } else {
      nvte_rmsnorm_bwd(dz, x, rsigma, gamma, dx, dgamma, workspace, 8, c->flags[1], run->stream);
    }
    if (call == 0) conform_workspace(run, workspace);
  }
}

static inline bool conform_make_norm_backward(ConformCase *c, ConformRandom *random,
                                              const char *variant, size_t index) {
  const bool layer = strcmp(variant, "layernorm") == 0;
  if (!layer && strcmp(variant, "rmsnorm") != 0) return false;
  const NVTEDType in = conform_high_of(index);
  const NVTEDType weights = conform_chance(random, 60) ? in : conform_high(random);
  size_t rows, cols;
  conform_matrix(random, &rows, &cols);
  c->flags[0] = layer;
  c->flags[1] = conform_chance(random, 30);
  conform_input(c, random, "dz", weights, rows * cols, -1, 1);
  conform_input(c, random, "x", in, rows * cols, -2, 2);
  conform_input(c, random, "rsigma", kNVTEFloat32, rows, 0.5, 1.5);
  conform_input(c, random, "gamma", weights, cols, -1, 1);
  const int dx = conform_output(c, random, "dx", in, rows * cols);
  c->buffers[dx].terms = cols;
  c->buffers[dx].absolute = 100;  // rsigma (d + |y| mean |d y| + mean |d|), |y| < 4.5, |d| < 2
  const int dgamma = conform_output(c, random, "dgamma", weights, cols);
  c->buffers[dgamma].terms = rows;
  c->buffers[dgamma].absolute = 4.5 * (double)rows;
  if (layer) {
    conform_input(c, random, "mu", kNVTEFloat32, rows, -0.5, 0.5);
    const int dbeta = conform_output(c, random, "dbeta", weights, cols);
    c->buffers[dbeta].terms = rows;
    c->buffers[dbeta].absolute = (double)rows;
  }
  c->n[0] = rows;
  c->n[1] = cols;
  c->call = conform_call_norm_backward;
  snprintf(c->what, sizeof c->what, "x %s, gamma %s, %zux%zu%s", conform_dtype_name(in),
           conform_dtype_name(weights), rows, cols, c->flags[1] ? ", gamma centred at 0" : "");
  return true;
}

// ---- softmax

static inline void conform_call_softmax(const ConformCase *c, ConformRun *run) {
  const size_t b = c->n[0], h = c->n[1], q = c->n[2], k = c->n[3];
  const float scale = c->f[0];
  cudaStream_t stream = run->stream;
  const bool three = c->n[4] == 2;
  const NVTEShape shape = three ? CONFORM_SHAPE(b * h, q, k) : CONFORM_SHAPE(b, h, q, k);
  NVTETensor x = conform_tensor(run, 0, shape), y = conform_tensor(run, 1, shape);
  NVTETensor last = NULL;
  if (c->flags[0]) last = conform_tensor(run, 2, shape);
  if (!c->flags[0] && c->n[4] == 1) last = conform_tensor(run, 2, CONFORM_SHAPE(b, 1, q, k));
  switch (2 * c->n[4] + c->flags[0]) {
    case 0:
      nvte_scaled_softmax_forward(x, y, scale, stream);
      break;
    case 1:
      nvte_scaled_softmax_backward(x, y, last, scale, stream);
      break;
    case 2:
      nvte_scaled_masked_softmax_forward(x, last, y, scale, stream);
      break;
    case 3:
      nvte_scaled_masked_softmax_backward(x, y, last, scale, stream);
      break;
    case 4:
      nvte_scaled_upper_triang_masked_softmax_forward(x, y, scale, stream);
      break;
    case 5:
      nvte_scaled_upper_triang_masked_softmax_backward(x, y, last, scale, stream);
      break;
    case 6:
      nvte_scaled_aligned_causal_masked_softmax_forward(x, y, scale, stream);
      break;
    default:
      nvte_scaled_aligned_causal_masked_softmax_backward(x, y, last, scale, stream);
  }
}

static inline bool conform_make_softmax(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  static const char *const masks[] = {"plain", "masked", "causal", "causal_bottom"};
  size_t mask = 0;
  for (; mask < 4; mask++) {
    const size_t length = strlen(masks[mask]);
    if (strncmp(variant, masks[mask], length) == 0 && variant[length] == '_' &&
        (strcmp(variant + length, "_forward") == 0 || strcmp(variant + length, "_backward") == 0))
      break;
  }
  if (mask == 4) return false;
  c->flags[0] = strstr(variant, "_backward") != NULL;
  const NVTEDType dtype = conform_high_of(index);
  const size_t b = conform_within(random, 1, 2), h = conform_within(random, 1, 3);
  const size_t k = conform_chance(random, 50) ? conform_within(random, 1, 70)
                                              : 8 * conform_within(random, 1, 64);
  const size_t q = mask == 2 ? k : conform_within(random, 1, 12), n = b * h * q * k;
  c->f[0] = (float)conform_uniform(random, 0.1, 1);
  if (c->flags[0]) {
    // The gradients are overwritten in the order of the function's parameters: dy, y, dx.
    conform_input(c, random, "gradients of the results", dtype, n, -1, 1);
    conform_input(c, random, "results", dtype, n, 0, 2 / (double)k);
    const int dx = conform_output(c, random, "gradients of the input", dtype, n);
    c->buffers[dx].terms = k;
    c->buffers[dx].absolute = 6 / (double)k;
  } else {
    conform_input(c, random, "input", dtype, n, -3, 3);
    const int y = conform_output(c, random, "results", dtype, n);
    c->buffers[y].terms = k;
    c->buffers[y].relative = 4;
    if (mask == 1) {
      const int bytes = conform_add(c, "mask", CONFORM_INPUT, kNVTEByte, b * q * k, 0);
      for (size_t i = 0; i < b * q * k; i++) {
        c->buffers[bytes].image[i] = (unsigned char)conform_within(random, 0, 1);
      }
    }
  }
  c->n[0] = b;
  c->n[1] = h;
  c->n[2] = q;
  c->n[3] = k;
  c->n[4] = mask;
  c->call = conform_call_softmax;
  snprintf(c->what, sizeof c->what, "%s, [%zu, %zu, %zu, %zu], scale %g", conform_dtype_name(dtype),
           b, h, q, k, (double)c->f[0]);
  return true;
}

// ---- rope

static inline void conform_call_rope(const ConformCase *c, ConformRun *run) {
  const int32_t s = (int32_t)c->n[0], b = (int32_t)c->n[1], h = (int32_t)c->n[2];
  const int32_t d = (int32_t)c->n[3], d2 = (int32_t)c->n[4];
  const bool bshd = c->flags[1];
  const NVTEShape shape = bshd ? CONFORM_SHAPE(c->n[1], c->n[0], c->n[2], c->n[3])
                               : CONFORM_SHAPE(c->n[0], c->n[1], c->n[2], c->n[3]);
  NVTETensor none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  (c->flags[0] ? nvte_fused_rope_backward : nvte_fused_rope_forward)(
      conform_tensor(run, 0, shape), none,
      conform_tensor(run, 1, CONFORM_SHAPE(c->n[0], 1, 1, c->n[4])), none,
      conform_tensor(run, 2, shape), bshd ? NVTE_BSHD : NVTE_SBHD, c->flags[2], 1, 0, s, b, h, d,
      d2, bshd ? h * d : b * h * d, bshd ? s * h * d : h * d, d, 1, run->stream);
}

static inline bool conform_make_rope(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index) {
  c->flags[0] = strcmp(variant, "backward") == 0;
  if (!c->flags[0] && strcmp(variant, "forward") != 0) return false;
  const NVTEDType dtype = conform_high_of(index);
  c->flags[1] = conform_chance(random, 50);
  c->flags[2] = conform_chance(random, 50);
  c->n[0] = conform_within(random, 1, 20);
  c->n[1] = conform_within(random, 1, 3);
  c->n[2] = conform_within(random, 1, 4);
  c->n[3] = 2 * conform_within(random, 1, 40);
  c->n[4] = conform_chance(random, 60) ? c->n[3] : 2 * conform_within(random, 1, c->n[3] / 2);
  const size_t n = c->n[0] * c->n[1] * c->n[2] * c->n[3];
  conform_input(c, random, "input", dtype, n, -2, 2);
  conform_add(c, "freqs", CONFORM_INPUT, kNVTEFloat32, c->n[0] * c->n[4], 0);
  for (size_t i = 0; i < c->buffers[1].count; i++) {
    conform_store(kNVTEFloat32, c->buffers[1].image, i, conform_uniform(random, -4, 4));
  }
  const int out = conform_output(c, random, "output", dtype, n);
  c->buffers[out].terms = 2;
  c->buffers[out].absolute = 4;
  c->call = conform_call_rope;
  snprintf(c->what, sizeof c->what, "%s, %s, s %zu, b %zu, h %zu, d %zu, d2 %zu%s",
           conform_dtype_name(dtype), c->flags[1] ? "BSHD" : "SBHD", c->n[0], c->n[1], c->n[2],
           c->n[3], c->n[4], c->flags[2] ? ", interleaved" : "");
  return true;
}

// ---- transpose, swap_first_dims, amax

static inline void conform_call_transpose(const ConformCase *c, ConformRun *run) {
  nvte_transpose(conform_tensor(run, 0, CONFORM_SHAPE(c->n[0], c->n[1])),
                 conform_tensor(run, 1, CONFORM_SHAPE(c->n[1], c->n[0])), run->stream);
}

static inline bool conform_make_transpose(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_any_of(index);
  conform_matrix(random, &c->n[0], &c->n[1]);
  conform_input_bits(c, random, "input", dtype, c->n[0] * c->n[1]);
  conform_output(c, random, "output", dtype, c->n[0] * c->n[1]);
  c->call = conform_call_transpose;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu", conform_dtype_name(dtype), c->n[0], c->n[1]);
  return true;
}

static inline void conform_call_swap(const ConformCase *c, ConformRun *run) {
  nvte_swap_first_dims(conform_tensor(run, 0, CONFORM_SHAPE(c->n[0], c->n[1], c->n[2])),
                       conform_tensor(run, 1, CONFORM_SHAPE(c->n[1], c->n[0], c->n[2])),
                       run->stream);
}

static inline bool conform_make_swap(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_any_of(index);
  c->n[0] = conform_within(random, 1, 20);
  c->n[1] = conform_within(random, 1, 20);
  c->n[2] = conform_within(random, 1, 70);
  const size_t n = c->n[0] * c->n[1] * c->n[2];
  conform_input_bits(c, random, "input", dtype, n);
  conform_output(c, random, "output", dtype, n);
  c->call = conform_call_swap;
  snprintf(c->what, sizeof c->what, "%s, %zux%zux%zu", conform_dtype_name(dtype), c->n[0], c->n[1],
           c->n[2]);
  return true;
}

static inline void conform_call_amax(const ConformCase *c, ConformRun *run) {
  NVTETensor output = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  conform_set(run, output, kNVTEAmax, 1, CONFORM_SHAPE(1));
  nvte_compute_amax(conform_tensor(run, 0, CONFORM_SHAPE(c->n[0], c->n[1])), output, run->stream);
}

static inline bool conform_make_amax(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  conform_matrix(random, &c->n[0], &c->n[1]);
  const bool wild = conform_chance(random, 30);
  if (wild) {
    conform_input_bits(c, random, "input", dtype, c->n[0] * c->n[1]);
  } else {
    conform_input(c, random, "input", dtype, c->n[0] * c->n[1], -10, 10);
  }
  conform_float(c, "amax", CONFORM_EXACT, -7);
  c->call = conform_call_amax;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu%s", conform_dtype_name(dtype), c->n[0], c->n[1],
           wild ? ", any bits" : "");
  return true;
}

// ---- memset

static inline void conform_call_memset(const ConformCase *c, ConformRun *run) {
  nvte_memset(run->ptr[0], (int32_t)c->n[0], c->buffers[0].bytes, run->stream);
}

static inline bool conform_make_memset(ConformCase *c, ConformRandom *random, const char *variant,
                                       size_t index) {
  if (*variant) return false;
  c->n[0] = index % 4 ? conform_within(random, 0, 254) : 0;
  conform_output(c, random, "memory", kNVTEByte, conform_within(random, 1, 5000));
  c->call = conform_call_memset;
  snprintf(c->what, sizeof c->what, "%zu bytes of %zu", c->buffers[0].count, c->n[0]);
  return true;
}

// ---- gemm

// The shape of the scales of an operand of `outer` rows along k. Rows of scales of 128 x 128 are
// padded to four, as cuBLASLt takes them.
static inline NVTEShape conform_operand_scales(NVTEScalingMode mode, size_t outer, size_t k) {
  NVTEShape shape = conform_scale_shape(mode, outer, k, false);
  if (mode == NVTE_BLOCK_SCALING_2D) shape.data[1] = (shape.data[1] + 3) / 4 * 4;
  return shape;
}

static inline void conform_call_gemm(const ConformCase *c, ConformRun *run) {
  const size_t m = c->n[0], n = c->n[1], k = c->n[2];
  const bool transa = c->flags[0], transb = c->flags[1], fp8 = c->flags[3];
  const NVTEScalingMode b_mode = c->flags[4] ? NVTE_BLOCK_SCALING_1D : c->mode;
  NVTETensor a = conform_empty(run, c->mode), b = conform_empty(run, b_mode);
  conform_set(run, a, kNVTERowwiseData, 0, transa ? CONFORM_SHAPE(m, k) : CONFORM_SHAPE(k, m));
  conform_set(run, b, kNVTERowwiseData, 1, transb ? CONFORM_SHAPE(k, n) : CONFORM_SHAPE(n, k));
  if (fp8) {
    conform_set(run, a, kNVTERowwiseScaleInv, 3, conform_operand_scales(c->mode, m, k));
    conform_set(run, b, kNVTERowwiseScaleInv, 4, conform_operand_scales(b_mode, n, k));
    const uint8_t in_tiles = c->mode == NVTE_MXFP8_1D_SCALING;
    nvte_set_tensor_param_v2(a, kNVTEWithGEMMSwizzledScales, &in_tiles, sizeof in_tiles);
    nvte_set_tensor_param_v2(b, kNVTEWithGEMMSwizzledScales, &in_tiles, sizeof in_tiles);
  }
  NVTETensor none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  const size_t bytes = 32u << 20;
  void *memory = run->blocks[run->num_blocks++] = nvtex_malloc(bytes);
  conform_set_memory(workspace, kNVTERowwiseData, memory, kNVTEByte, CONFORM_SHAPE(bytes));
  nvte_cublas_gemm(a, b, conform_tensor(run, 2, CONFORM_SHAPE(n, m)), none, none, transa, transb,
                   false, workspace, c->flags[2], false, 0, run->stream);
}

static inline bool conform_make_gemm(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index) {
  const bool mxfp8 = strcmp(variant, "mxfp8") == 0, blocks = strcmp(variant, "fp8_blocks") == 0;
  const bool fp8 = mxfp8 || blocks || strcmp(variant, "fp8") == 0;
  if (!fp8 && strcmp(variant, "high_precision") != 0) return false;
  // Of FP8 blocks, those of B are of 1 x 128.
  c->flags[4] = blocks;
  if (mxfp8) c->mode = NVTE_MXFP8_1D_SCALING;
  if (blocks) c->mode = index % 2 ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D;
  const NVTEDType high = conform_high_of(index);
  const NVTEDType in = fp8 ? kNVTEFloat8E4M3 : high;
  const NVTEDType out = conform_chance(random, 60) ? high : kNVTEFloat32;
  const size_t round = fp8 || conform_chance(random, 50) ? 16 : 1;
  const size_t m = round * conform_within(random, 1, 48 / round + 1);
  const size_t n = round * conform_within(random, 1, 48 / round + 1);
  const size_t of_k = blocks ? 128 : mxfp8 ? 32 : round;
  const size_t k = of_k * conform_within(random, 1, blocks ? 2 : 96 / of_k);
  // FP8 operands are read along k.
  const bool transa = fp8 || conform_chance(random, 50),
             transb = !fp8 && conform_chance(random, 50);
  c->flags[0] = transa;
  c->flags[1] = transb;
  c->flags[2] = conform_chance(random, 30);
  c->flags[3] = fp8;
  const size_t aligned = 0;
  const int a = conform_add(c, "A", CONFORM_INPUT, in, m * k, aligned);
  const int b = conform_add(c, "B", CONFORM_INPUT, in, n * k, aligned);
  const int d = conform_add(c, "D", CONFORM_OUTPUT, out, m * n, aligned);
  const int operands[] = {a, b, d};
  for (int i = 0; i < (c->flags[2] ? 3 : 2); i++) {
    ConformBuffer *buffer = &c->buffers[operands[i]];
    for (size_t e = 0; e < buffer->count; e++) {
      conform_store(buffer->dtype, buffer->image, e, conform_uniform(random, -1, 1));
    }
  }
  double scale = 1;
  if (fp8) {
    for (int i = 0; i < 2; i++) {
      const NVTEScalingMode mode = i == 1 && blocks ? NVTE_BLOCK_SCALING_1D : c->mode;
      const NVTEShape shape = conform_operand_scales(mode, i == 0 ? m : n, k);
      const size_t count = shape.data[0] * (shape.ndim > 1 ? shape.data[1] : 1);
      const int inv = conform_add(c, i == 0 ? "scale_inv of A" : "scale_inv of B", CONFORM_INPUT,
                                  mxfp8 ? kNVTEByte : kNVTEFloat32, count, 0);
      for (size_t e = 0; e < count; e++) {
        if (mxfp8) {
          c->buffers[inv].image[e] = (unsigned char)conform_within(random, 125, 128);
        } else {
          conform_store(kNVTEFloat32, c->buffers[inv].image, e, conform_uniform(random, 0.1, 2));
        }
      }
      scale *= 2;
    }
  }
  double *magnitudes = c->buffers[d].magnitudes = conform_alloc(m * n * sizeof(double));
  for (size_t j = 0; j < n; j++) {
    for (size_t i = 0; i < m; i++) {
      double sum = 0;
      for (size_t l = 0; l < k; l++) {
        sum += fabs(conform_element(c, a, transa ? i * k + l : l * m + i) *
                    conform_element(c, b, transb ? l * n + j : j * k + l));
      }
      if (c->flags[2]) sum += fabs(conform_element(c, d, j * m + i));
      magnitudes[j * m + i] = sum * (scale > 1 ? scale : 1);
    }
  }
  c->buffers[d].terms = k + 1;
  c->n[0] = m;
  c->n[1] = n;
  c->n[2] = k;
  c->call = conform_call_gemm;
  snprintf(c->what, sizeof c->what, "%s to %s, m %zu, n %zu, k %zu, %c%c%s", conform_dtype_name(in),
           conform_dtype_name(out), m, n, k, transa ? 'T' : 'N', transb ? 'T' : 'N',
           c->flags[2] ? ", added to D" : "");
  return true;
}

#endif  // NVTE_CONFORM_CASES_H
