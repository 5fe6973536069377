#ifndef NVTE_BACKEND_H
#define NVTE_BACKEND_H

/* Generated from the Rust sources by capi-tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"

/**
 * Bump when a struct below changes incompatibly.
 */
#define NVTEX_BACKEND_API_VERSION 4

/**
 * Answer of a backend.
 */
typedef enum NVTEXBackendStatus {
  /**
   * Done, or queued on the stream.
   */
  NVTEX_BACKEND_OK = 0,
  /**
   * This backend cannot do this case; nothing was written.
   */
  NVTEX_BACKEND_UNIMPLEMENTED = 1,
  /**
   * The device, its driver or a library failed.
   */
  NVTEX_BACKEND_DEVICE_ERROR = 2,
} NVTEXBackendStatus;

/**
 * How the elements v that are cast come from the inputs, in float32. `f'` is the derivative, G the
 * function of the linear half (the identity unless the function says otherwise).
 */
typedef enum NVTEXForm {
  /**
   * `v = input`
   */
  NVTEX_FORM_PLAIN = 0,
  /**
   * `v = f(input)`
   */
  NVTEX_FORM_ACTIVATION = 1,
  /**
   * `v = f'(act_input) * input`
   */
  NVTEX_FORM_DERIVATIVE = 2,
  /**
   * Input `[rows, 2 cols]` = (a | g): `v = f(a) * G(g)`
   */
  NVTEX_FORM_GATED = 3,
  /**
   * Input `[rows, cols / 2]`, act_input `[rows, cols]` = (a | g): the left half is
   * `v = (f'(a) * input) * G(g)`, the right half `v = (G'(g) * input) * f(a)`.
   */
  NVTEX_FORM_GATED_DERIVATIVE = 4,
} NVTEXForm;

/**
 * A function f of one number, with its parameters a, b and c.
 */
typedef enum NVTEXFunction {
  /**
   * `x`
   */
  NVTEX_IDENTITY = 0,
  /**
   * `x / (1 + exp(-2 x (0.79788456 + 0.03567741 x^2)))`, the tanh form of GELU.
   */
  NVTEX_GELU = 1,
  /**
   * `x / (1 + exp(-x))`
   */
  NVTEX_SILU = 2,
  /**
   * `x / (1 + exp(-1.702 x))`
   */
  NVTEX_QGELU = 3,
  /**
   * `max(x, 0)`, 0 for NaN
   */
  NVTEX_RELU = 4,
  /**
   * `max(x, 0)^2`, 0 for NaN
   */
  NVTEX_SRELU = 5,
  /**
   * `1 / (1 + exp(-x))`
   */
  NVTEX_SIGMOID = 6,
  /**
   * `m / (1 + exp(-b m))` with `m = min(x, a)`; the other half of a gated form becomes
   * `min(max(x, -a), a) + c`.
   */
  NVTEX_CLAMPED_SILU = 7,
  /**
   * `a tanh(x / a) / (1 + exp(-x))`; the other half of a gated form becomes `b tanh(x / b)`.
   */
  NVTEX_SITU = 8,
} NVTEXFunction;

/**
 * Which amax of the history sets the scale.
 */
typedef enum NVTEXAmaxAlgo {
  NVTEX_AMAX_ALGO_MAX = 0,
  NVTEX_AMAX_ALGO_MOST_RECENT = 1,
} NVTEXAmaxAlgo;

/**
 * What happens to `v = alpha * scale_a * scale_b * (Bop Aop) + beta * C` on its way to D.
 */
typedef enum NVTEXGemmEpilogue {
  /**
   * `D = v`
   */
  NVTEX_EPILOGUE_NONE = 0,
  /**
   * `D = v + bias`
   */
  NVTEX_EPILOGUE_BIAS = 1,
  /**
   * `aux = v; D = gelu(v)`
   */
  NVTEX_EPILOGUE_GELU = 2,
  /**
   * `aux = v + bias; D = gelu(v + bias)`
   */
  NVTEX_EPILOGUE_GELU_BIAS = 3,
  /**
   * `D = v; bias[j] = sum over k of Bop[j, k]`, length n
   */
  NVTEX_EPILOGUE_BGRAD = 4,
  /**
   * `D = v * dgelu(aux)`
   */
  NVTEX_EPILOGUE_DGELU = 5,
  /**
   * `D = v * dgelu(aux); bias[i] = sum over rows of D[:, i]`, length m
   */
  NVTEX_EPILOGUE_DGELU_BGRAD = 6,
} NVTEXGemmEpilogue;

/**
 * Which keys a query of a softmax sees.
 */
typedef enum NVTEXSoftmaxMask {
  /**
   * All.
   */
  NVTEX_SOFTMAX_UNMASKED = 0,
  /**
   * All; where the byte of the mask is 1, the score is -10000.
   */
  NVTEX_SOFTMAX_BYTES = 1,
  /**
   * Query i sees the keys `j <= i`.
   */
  NVTEX_SOFTMAX_CAUSAL = 2,
  /**
   * Query i sees the keys `j <= i + keys - queries`.
   */
  NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT = 3,
} NVTEXSoftmaxMask;

/**
 * Direction of a copy.
 */
typedef enum NVTEXCopyKind {
  NVTEX_COPY_TO_DEVICE = 0,
  NVTEX_COPY_TO_HOST = 1,
  NVTEX_COPY_ON_DEVICE = 2,
} NVTEXCopyKind;

/**
 * What rows a [`MoveRowsArgs`] moves. `s` is the sequence of token t: `cu[s] <= t < cu[s + 1]`.
 */
typedef enum NVTEXRowMap {
  /**
   * Row t of `dst` is the row of the first (`index` 0) or second (1) half of its sequence, for
   * `c = cu / 2`: `dst[t] = src[t + c[s + index]]`.
   */
  NVTEX_ROWS_HALF = 0,
  /**
   * `dst[i] = src[j]` with token j of rank `i / (rows / world)`, see [`PartitionArgs`].
   */
  NVTEX_ROWS_TO_RANKS = 1,
  /**
   * `dst[j] = src[i]`, the inverse.
   */
  NVTEX_ROWS_FROM_RANKS = 2,
  /**
   * `dst[t] = src[t]` for the first `cu_valid[s + 1] - cu_valid[s]` tokens of each sequence.
   */
  NVTEX_ROWS_VALID = 3,
  /**
   * Row i is token `i % length` of sequence `i / length` in dst, packed in src.
   */
  NVTEX_ROWS_UNPACK = 4,
  /**
   * The inverse.
   */
  NVTEX_ROWS_PACK = 5,
  /**
   * Token n of the new ones of sequence s (`cu`), row i = s `length` + n: to its place in a cache, where
   * `cu_valid` counts cached and new tokens together. In src it is row `i` (`index`
   * `NVTE_BSHD`), `n sequences + s` (`NVTE_SBHD`) or `cu[s] + n` (`NVTE_THD`). Token p of a sequence lies
   * on page `page_table[s pages + p / page]`, or with a null table on page s.
   */
  NVTEX_ROWS_TO_CACHE = 6,
} NVTEXRowMap;

/**
 * What a correction does to a half of each sequence.
 */
typedef enum NVTEXHalfOp {
  NVTEX_HALF_NONE = 0,
  NVTEX_HALF_COPY = 1,
  NVTEX_HALF_ADD = 2,
  NVTEX_HALF_ZERO = 3,
} NVTEXHalfOp;

/**
 * What holds the parameters of an [`AdamArgs`] in float32.
 */
typedef enum NVTEXAdamMaster {
  /**
   * Nothing: `data[1]` is read and written.
   */
  NVTEX_ADAM_NO_MASTER = 0,
  /**
   * `data[4]`, of F32: `data[1]` is only written, from the new master.
   */
  NVTEX_ADAM_FLOAT_MASTER = 1,
  /**
   * `data[1]`, of BF16, and `data[4]`, of Int16: the remainder is the low half of the master's bits,
   * the parameter the high half, plus 1 if the remainder is negative.
   */
  NVTEX_ADAM_REMAINDER = 2,
} NVTEXAdamMaster;

/**
 * Status and, unless OK, a text that stays valid until the thread's next backend call.
 */
typedef struct NVTEXOutcome {
  enum NVTEXBackendStatus status;
  const char *reason;
} NVTEXOutcome;

/**
 * Form and function of a fused cast.
 */
typedef struct NVTEXFusion {
  enum NVTEXForm form;
  enum NVTEXFunction function;
  float a;
  float b;
  float c;
  /**
   * For the derivatives, of the input's dtype.
   */
  const void *act_input;
  /**
   * For NVTEX_FORM_PLAIN and NVTEX_FORM_DERIVATIVE: `[cols]` (groups: `[num_tensors, cols]`) of the
   * input's dtype, or null: the sum of v over the rows (of a member), in float32 in this order:
   * within each 128 rows (that begin a member) the sums of 4 rows one after the other, then pairs of
   * those, then the 16 pairs one after the other; of those blocks the i-th is added to sum i % 8, and
   * these 8 are added one after the other. Sums begin at +0, so that none is -0.
   */
  void *dbias;
  /**
   * With dbias: `dbias_workspace_rows() * cols` floats.
   */
  float *workspace;
  /**
   * For NVTEX_FORM_GATED of groups or to blocks: `[rows]` of the input's dtype, or null; v is
   * multiplied by its row's. The row of a member's element is that of the whole,
   * `(offset + element) / cols`.
   */
  const void *row_scales;
} NVTEXFusion;

/**
 * Member matrices that lie one after the other in one buffer; dimensions are on the device.
 *
 * Member t is `[first_dims[t], last_dims[t]]`, contiguous and row-major, and begins at element
 * `offsets[t]`; column-wise data of it begin there too. A null `first_dims` stands for `rows` of the
 * arguments (`rows / num_tensors` if `last_dims` is null, too), a null `last_dims` for `cols`, null
 * `offsets` for members without gaps. The matrices that a mode's scales form are concatenated
 * likewise, each padded as that of a lone matrix. Elements that no member has are not touched.
 */
typedef struct NVTEXGroup {
  /**
   * 0: a single matrix, and no other field is read.
   */
  size_t num_tensors;
  const int64_t *first_dims;
  const int64_t *last_dims;
  /**
   * `num_tensors + 1` entries.
   */
  const int64_t *offsets;
} NVTEXGroup;

/**
 * Cast of the elements v of a `[rows, cols]` matrix, by scaling mode. Without a fusion v is the
 * input x; else, in modes 1 to 3, v is rounded to the input's dtype first.
 *
 * Per tensor (mode 0): `y = cast(x * scale)` for FP8 outputs, `y = cast(x)` otherwise; `amax =
 * max(amax, max|x|)` (NaN ignored); `scale_inv = 1 / scale`.
 *
 * FP8 blocks (modes 2 and 3): each block of 128 elements (1D: of a row for row-wise data, of a column
 * for column-wise data; 2D: 128 x 128) has `a = max(max|x|, epsilon)`, `s = fp8_max / a` (1 if `a` is
 * 0, Inf or NaN; an infinite quotient becomes the largest finite value of the input dtype; with `pow2`
 * the mantissa is cleared), `y = cast(x * s)` and `scale_inv = 1 / s`, a float. Scale matrices:
 * 1D row-wise `[cols / 128][row]`, column-wise `[rows / 128][col]`;
 * 2D row-wise `[rows / 128][cols / 128]`, column-wise `[cols / 128][rows / 128]`.
 *
 * MXFP8 (mode 1): blocks of 32 (of a row, of a column, or 32 x 32 with `square_blocks`) with the E8M0
 * code `e = e8m0(max|x| / fp8_max)`, rounded up, and `y = cast(x * 2^(127 - e))`. Codes: row-wise
 * `[row][cols / 32]`, column-wise `[rows / 32][col]`, or with `swizzled` in tiles of 128 x 4; padding up
 * to multiples of 128 and 4 is set to 0.
 */
typedef struct NVTEXQuantizeArgs {
  /**
   * `[rows, cols]` (see [`Form`]), F32, F16 or BF16.
   */
  const void *input;
  /**
   * `[rows, cols]`, or null.
   */
  void *rowwise;
  /**
   * `[cols, rows]` (MXFP8: `[rows, cols]`), or null.
   */
  void *colwise;
  /**
   * Mode 0: one float (groups: one per member), or null for 1. Read only if the output is FP8.
   */
  const float *scale;
  /**
   * Modes 0 and 1: one non-negative float, accumulated with integer max, or null (groups: null).
   */
  float *amax;
  /**
   * Mode 0: one float each, or null (groups: null). Else the scale matrix of each direction that is written.
   */
  void *rowwise_scale_inv;
  void *colwise_scale_inv;
  /**
   * One float, or null: exactly 1 means that nothing may be written.
   */
  const float *noop;
  size_t rows;
  size_t cols;
  /**
   * Elements from one row of a scale matrix to the next; 0 in mode 0.
   */
  size_t rowwise_scale_stride;
  size_t colwise_scale_stride;
  /**
   * Modes 2 and 3.
   */
  float epsilon;
  NVTEScalingMode mode;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType input_dtype;
  /**
   * E4M3 or E5M2; in mode 0 also F32, F16 and BF16.
   */
  NVTEDType output_dtype;
  /**
   * Modes 2 and 3.
   */
  bool pow2;
  /**
   * Mode 1.
   */
  bool square_blocks;
  /**
   * Mode 1.
   */
  bool swizzled;
  struct NVTEXFusion fusion;
  /**
   * The output's members, and the input's.
   */
  struct NVTEXGroup group;
} NVTEXQuantizeArgs;

/**
 * `y = cast(float(x) * scale_inv)` of `[rows, cols]`, with scales as [`QuantizeArgs`] describes
 * them. With `colwise` the input are column-wise data: `[cols, rows]` (MXFP8: `[rows, cols]`).
 */
typedef struct NVTEXDequantizeArgs {
  const void *input;
  void *output;
  /**
   * Mode 0: one float (groups: one per member). Else the scale matrix of the direction that is read.
   */
  const void *scale_inv;
  size_t rows;
  size_t cols;
  /**
   * Elements from one row of the scale matrix to the next; 0 in mode 0 and for groups.
   */
  size_t scale_stride;
  NVTEScalingMode mode;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType input_dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType output_dtype;
  bool colwise;
  /**
   * Mode 1.
   */
  bool swizzled;
  /**
   * The members of input and output.
   */
  struct NVTEXGroup group;
} NVTEXDequantizeArgs;

/**
 * Bit copy `output[c][r] = input[r][c]` of a `[rows, cols]` matrix.
 */
typedef struct NVTEXTransposeArgs {
  const void *input;
  void *output;
  const float *noop;
  size_t rows;
  size_t cols;
  /**
   * 1, 2 or 4 bytes.
   */
  size_t element_size;
} NVTEXTransposeArgs;

/**
 * `amax = max|x|` over `numel` elements (0 for none; NaN ignored).
 */
typedef struct NVTEXAmaxArgs {
  const void *input;
  float *amax;
  const float *noop;
  /**
   * May be 0.
   */
  size_t numel;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXAmaxArgs;

/**
 * `a = max(amax, epsilon)`; `scale = fp8_max / a`, 1 if `a` is 0, Inf or NaN; an infinite quotient
 * becomes the largest float; with `pow2` the mantissa is cleared.
 */
typedef struct NVTEXScaleFromAmaxArgs {
  const float *amax;
  float *scale;
  const float *noop;
  float fp8_max;
  float epsilon;
  bool pow2;
  /**
   * Values in each array.
   */
  size_t length;
  /**
   * `1 / scale`, or null.
   */
  float *scale_inv;
  /**
   * The same again, or null.
   */
  float *colwise_scale_inv;
} NVTEXScaleFromAmaxArgs;

/**
 * One tensor of a delayed-scaling update; in place if the outputs equal the inputs.
 */
typedef struct NVTEXDelayedScalingEntry {
  /**
   * `[length, num_scales]`, row 0 is the newest.
   */
  const float *history;
  const float *scale;
  float *new_history;
  float *new_scale;
  size_t num_scales;
} NVTEXDelayedScalingEntry;

/**
 * Rolls amax histories by one row and sets the scales from them.
 *
 * For each column, with `last = history[0]` (or the reduced value, if there is one that is not 0):
 * row i takes row i + 1, the last row takes `last`, row 0 becomes 0;
 * `scale = scaled_max / amax` if `amax` is finite and positive, else unchanged; an infinite scale
 * becomes the largest float. With `keep_if_unused`, a column whose `last` is 0 keeps its history,
 * and its amax is 0.
 */
typedef struct NVTEXDelayedScalingArgs {
  /**
   * Host array.
   */
  const struct NVTEXDelayedScalingEntry *entries;
  size_t num_entries;
  /**
   * Concatenation of `num_scales` reduced amax values for each entry, or null.
   */
  const float *reduced_amax;
  /**
   * Rows of every history, at least 1.
   */
  size_t length;
  /**
   * `fp8_max * 2^-margin`.
   */
  float scaled_max;
  enum NVTEXAmaxAlgo algo;
  bool keep_if_unused;
} NVTEXDelayedScalingArgs;

/**
 * Scales of one operand of a matrix product, as [`QuantizeArgs`] describes them: row-wise ones if the
 * operand is stored `[outer, k]`, column-wise ones of MXFP8 data that are stored `[k, outer]`.
 */
typedef struct NVTEXGemmScales {
  /**
   * FP8 operands: one float in mode 0, else the scale matrix. Null for other operands.
   */
  const void *inv;
  /**
   * Elements from one row of the scale matrix to the next; 0 in mode 0.
   */
  size_t stride;
  NVTEScalingMode mode;
  /**
   * Mode 1.
   */
  bool swizzled;
} NVTEXGemmScales;

/**
 * `D = epilogue(alpha * scale_a * scale_b * (Bop Aop) + beta * C)`, row-major D `[n, m]`.
 *
 * `Aop [k, m]` is A `[k, m]`, or with `transa` A^T of A `[m, k]`; `Bop [n, k]` is B `[n, k]`, or with
 * `transb` B^T of B `[k, n]`. Read column-major this is the BLAS product with the same flags. An FP8 D
 * is `cast(v * scale_d)`, with `amax_d = max|v|` and `scale_inv_d = 1 / scale_d`.
 *
 * Operands in blocks have other scales along k, so these go into the sum: in MXFP8 (both operands in
 * mode 1) each element is multiplied by its scale. In FP8 blocks (modes 2 and 3, one of them in mode 2;
 * `transa`, not `transb`) the partial sums p of each 128 of k are added up as `y = fma(p * s, t, y)`,
 * where s is the scale of B and t that of A, or the other way round if B is in mode 3; if `beta` is 1,
 * `alpha * y` is rounded to D's dtype before C is added. The epilogues of FP8 blocks are none, bias and
 * dGELU.
 */
typedef struct NVTEXGemmArgs {
  const void *a;
  const void *b;
  /**
   * Read only if `beta` is not 0; may equal `d`. Its dtype is that of D.
   */
  const void *c;
  void *d;
  struct NVTEXGemmScales scales_a;
  struct NVTEXGemmScales scales_b;
  /**
   * FP8 D only; each may be null.
   */
  const float *scale_d;
  float *amax_d;
  float *scale_inv_d;
  /**
   * Bias, read or written as the epilogue says.
   */
  void *bias;
  /**
   * `[n, m]`, read or written as the epilogue says.
   */
  void *aux;
  void *workspace;
  size_t workspace_bytes;
  size_t m;
  size_t n;
  /**
   * May be 0.
   */
  size_t k;
  float alpha;
  float beta;
  NVTEDType a_dtype;
  NVTEDType b_dtype;
  NVTEDType d_dtype;
  NVTEDType bias_dtype;
  NVTEDType aux_dtype;
  enum NVTEXGemmEpilogue epilogue;
  bool transa;
  bool transb;
  /**
   * Promote FP8 partial sums to full float32 registers every 128 products; FP8 blocks always do.
   */
  bool split_accumulator;
  /**
   * Multiprocessors to use, 0 for all.
   */
  int sm_count;
} NVTEXGemmArgs;

/**
 * Sets bytes.
 */
typedef struct NVTEXMemsetArgs {
  void *ptr;
  size_t bytes;
  uint8_t value;
} NVTEXMemsetArgs;

/**
 * Copies host bytes to the device; the host buffer may be reused on return.
 */
typedef struct NVTEXHostCopyArgs {
  const void *host;
  /**
   * Aligned to 4 bytes.
   */
  void *device;
  size_t bytes;
} NVTEXHostCopyArgs;

/**
 * One output of a prefix sum.
 */
typedef struct NVTEXOffsetsOutput {
  void *ptr;
  /**
   * `out[i] = stride * prefix(i)`, in 64-bit arithmetic that wraps.
   */
  int64_t stride;
  /**
   * Int32 (truncates) or Int64.
   */
  NVTEDType dtype;
  /**
   * The output starts with a 0 and has one entry more.
   */
  bool leading_zero;
} NVTEXOffsetsOutput;

/**
 * Prefix sums: `prefix(i) = sum of first[j] * last[j], j <= i` (`last` null: 1).
 */
typedef struct NVTEXOffsetsArgs {
  const void *first;
  const void *last;
  /**
   * Host array.
   */
  const struct NVTEXOffsetsOutput *outputs;
  size_t num_outputs;
  size_t length;
  /**
   * Int32 or Int64.
   */
  NVTEDType first_dtype;
  NVTEDType last_dtype;
} NVTEXOffsetsArgs;

/**
 * An activation whose rows have scales, or its derivatives, in float32. With v of [`Form`] without
 * the scales:
 *
 * Forward: `output[r][h] = cast(v * scales[r])`.
 *
 * Backward: with `sg = grad * scales[r]`, plain `output = cast(sg * f'(a))`; gated, the left half is
 * `cast(sg * (f'(a) * G(g)))`, the right half `cast(sg * (G'(g) * f(a)))`. `grad_scales[r] = cast(sum
 * of grad * w)` with `w = f(a)`, or `f(a) * G(g)`, in this order: the product of element h is added
 * to sum h % 1024; neighbouring pairs of these 1024 sums are added, then neighbouring pairs of the
 * results, until one is left.
 */
typedef struct NVTEXScaledActivationArgs {
  /**
   * `[rows, cols]`, gated `[rows, 2 cols]`.
   */
  const void *input;
  /**
   * `[rows, cols]`, or null: forward.
   */
  const void *grad;
  /**
   * Forward `[rows, cols]`, backward as the input.
   */
  void *output;
  /**
   * `[rows]`
   */
  const void *scales;
  /**
   * `[rows]`, or null. Only backward.
   */
  void *grad_scales;
  size_t rows;
  size_t cols;
  /**
   * A gated row is a sequence of `interleave` elements of a, as many of g, and so on: `cols` for
   * the usual halves, else a divisor of it that is a multiple of 32.
   */
  size_t interleave;
  bool gated;
  enum NVTEXFunction function;
  float a;
  float b;
  float c;
  /**
   * Each F32, F16 or BF16.
   */
  NVTEDType input_dtype;
  NVTEDType grad_dtype;
  NVTEDType output_dtype;
  NVTEDType scales_dtype;
  NVTEDType grad_scales_dtype;
} NVTEXScaledActivationArgs;

/**
 * Softmax over the keys that a query sees, 0 for those that it does not; of `[matrices, queries,
 * keys]` elements.
 *
 * Forward: `y = exp(t - max t) / sum exp(t - max t)` with `t = scale * x`, and with a mask of bytes 0
 * in rows whose largest `t` is -10000. Backward: `dx = scale * y * (dy - sum(dy * y))`. Float32
 * throughout, one rounding to the dtype; a NaN that is seen makes its row NaN.
 */
typedef struct NVTEXSoftmaxArgs {
  /**
   * x; dy for the backward.
   */
  const void *input;
  /**
   * y for the backward, null for the forward.
   */
  const void *results;
  /**
   * May be `input`.
   */
  void *output;
  /**
   * Forward with `NVTEX_SOFTMAX_BYTES`: matrix m has the bytes `[queries, keys]` from
   * `m / matrices_per_mask * queries * keys` on.
   */
  const uint8_t *mask;
  size_t matrices_per_mask;
  size_t matrices;
  size_t queries;
  size_t keys;
  float scale;
  enum NVTEXSoftmaxMask visible;
  /**
   * F32, F16 or BF16, of all tensors.
   */
  NVTEDType dtype;
} NVTEXSoftmaxArgs;

/**
 * `y = keep ? cast(x * 1 / (1 - probability)) : 0`; bit `i % 8` of the byte `i / 8` of the mask says
 * whether element i is kept, and the bits after the last element are 0.
 *
 * Forward: the bits are drawn. Elements 16 c to 16 c + 15 take the 16 bytes of four words of Philox
 * 4x32-10 with the seed as key and the counter `offset / 4 + 2^64 c`, from word `offset % 4` on;
 * element i of them takes of word `i % 8 / 2` the byte `i / 8 + (i even ? 2 : 0)`, the least
 * significant one being 0, and is kept unless that is less than `floor(256 * probability)`.
 *
 * With a residual the forward is `y = cast(residual + (keep ? (x + bias) * 1 / (1 - probability) : 0))`,
 * in float32.
 */
typedef struct NVTEXDropoutArgs {
  const void *input;
  /**
   * May be `input`.
   */
  void *output;
  /**
   * `ceil(numel / 8)` bytes; read by the backward.
   */
  uint8_t *mask;
  /**
   * Seed and offset for the forward, null for the backward.
   */
  const uint64_t *rng_state;
  /**
   * FP8 inputs: x is multiplied by this float first.
   */
  const float *scale_inv;
  size_t numel;
  /**
   * At least 0 and less than 1.
   */
  float probability;
  /**
   * F32, F16, BF16, E4M3 or E5M2.
   */
  NVTEDType input_dtype;
  /**
   * F32, F16 or BF16; as the input unless that is FP8.
   */
  NVTEDType output_dtype;
  /**
   * As the input, which is not FP8 then, or null.
   */
  const void *residual;
  /**
   * `[cols]` of the input's dtype, for each row of the input, or null; null without a residual.
   */
  const void *bias;
  size_t cols;
} NVTEXDropoutArgs;

/**
 * Elements from one index to the next.
 */
typedef struct NVTEXRopeStrides {
  /**
   * From one position to the next; of packed sequences: from one token.
   */
  size_t position;
  size_t sequence;
  /**
   * From one group of heads to the next.
   */
  size_t group;
  /**
   * From one head of a group to the next.
   */
  size_t head;
  size_t element;
} NVTEXRopeStrides;

/**
 * Heads that turn by the same angles.
 */
typedef struct NVTEXRopePart {
  const void *input;
  /**
   * May be `input` if the strides are equal.
   */
  void *output;
  /**
   * `[.., rotated]` angles in radians, or null: the part is copied.
   */
  const float *freqs;
  /**
   * Of all groups; 0 for a part that is not there.
   */
  size_t heads;
  size_t heads_per_group;
  struct NVTEXRopeStrides input_strides;
  /**
   * The element stride is 1.
   */
  struct NVTEXRopeStrides output_strides;
} NVTEXRopePart;

/**
 * Rotary embedding of heads of `dim` elements, the first `rotated` of which turn in pairs (j, p):
 * `p = j + rotated / 2`, or `p = j + 1` for even j if interleaved.
 *
 * Forward: `y_j = x_j cos(a_j) - x_p sin(a_j)`, `y_p = x_p cos(a_p) + x_j sin(a_p)`. Backward, its
 * adjoint: `y_j = x_j cos(a_j) + x_p sin(a_p)`, `y_p = x_p cos(a_p) - x_j sin(a_j)`. Float32, one
 * rounding to the dtype; other elements are copied.
 *
 * The angles a of position i of sequence n are row `f = i + start_positions[n]` of freqs; with
 * `cp_size > 1` and the local length L, `f + cp_rank L / 2` for `i < L / 2`, else
 * `f + L cp_size - (cp_rank + 1) L / 2 - L / 2`.
 */
typedef struct NVTEXRopeArgs {
  struct NVTEXRopePart parts[3];
  /**
   * `[sequences + 1]`, or null. Packed sequences: n has the tokens from `cu_seqlens[n] / cp_size` to
   * `cu_seqlens[n + 1] / cp_size`; tokens of no sequence are not written.
   */
  const int32_t *cu_seqlens;
  /**
   * `[sequences]`, or null.
   */
  const int32_t *start_positions;
  /**
   * Positions of each sequence, tokens of all if they are packed.
   */
  size_t positions;
  size_t sequences;
  size_t dim;
  /**
   * Even, at most `dim`.
   */
  size_t rotated;
  size_t cp_size;
  size_t cp_rank;
  bool interleaved;
  bool backward;
  /**
   * F32, F16 or BF16, of inputs and outputs.
   */
  NVTEDType dtype;
} NVTEXRopeArgs;

/**
 * Swap of the first two dimensions: `output[j][i] = input[i][j]` of rows of bytes.
 */
typedef struct NVTEXSwapFirstDimsArgs {
  /**
   * `[first, second, row_bytes]`
   */
  const void *input;
  /**
   * `[second, first, row_bytes]`
   */
  void *output;
  size_t first;
  size_t second;
  size_t row_bytes;
} NVTEXSwapFirstDimsArgs;

/**
 * Transpose of an FP8 matrix with the sums of its columns: `output[c][r] = input[r][c]`, bit by bit,
 * and `dbias[c] = cast(sum over r of float(input[r][c]) * scale_inv)`, products rounded to float32 and
 * added in the order of [`Fusion::dbias`], each sum from 0 on.
 */
typedef struct NVTEXTransposeDbiasArgs {
  /**
   * `[rows, cols]`
   */
  const void *input;
  /**
   * `[cols, rows]`
   */
  void *output;
  /**
   * One float, or null for 1.
   */
  const float *scale_inv;
  /**
   * `[cols]`
   */
  void *dbias;
  /**
   * `rows.div_ceil(128) * cols` floats.
   */
  float *workspace;
  /**
   * May be 0.
   */
  size_t rows;
  size_t cols;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType dtype;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dbias_dtype;
} NVTEXTransposeDbiasArgs;

/**
 * Row-wise MXFP8 data to column-wise ones, for groups of whole rows.
 *
 * `v = float(input) * 2^(code - 127)`, rounded to BF16 with `through_bf16`; `dequantized = bf16(v)`;
 * `colwise` and its codes as [`QuantizeArgs`] has them for an input v. Codes of both directions are in
 * tiles of 128 x 4: of the row-wise ones, which are copied, as of one matrix; of the column-wise ones,
 * group by group. Rows from `offsets[num_groups]` on are not touched.
 */
typedef struct NVTEXRequantizeArgs {
  /**
   * `[rows, cols]`, aligned to 16 bytes, as are `colwise` and `dequantized`.
   */
  const void *input;
  /**
   * `[row][cols / 32]`
   */
  const uint8_t *codes;
  /**
   * `[rows, cols]`, E4M3.
   */
  void *colwise;
  uint8_t *rowwise_codes;
  uint8_t *colwise_codes;
  /**
   * `[rows, cols]`, BF16, or null.
   */
  void *dequantized;
  /**
   * First element of each group and the end, on the device: multiples of `128 * cols`, ascending.
   */
  const int64_t *offsets;
  size_t num_groups;
  /**
   * Multiples of 128.
   */
  size_t rows;
  size_t cols;
  /**
   * Codes from one row to the next.
   */
  size_t code_stride;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType input_dtype;
  bool through_bf16;
} NVTEXRequantizeArgs;

/**
 * A matrix of one-byte block scales for a product: `[m, k]`, a row for each row of the operand and a
 * column for each block along the contraction.
 *
 * Entry (i, j) lies at `i * k + j` in the compact order (`j * m + i` if `transposed`), and at
 * `((i / 128) * (k / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4` in tiles.
 */
typedef struct NVTEXSwizzleEntry {
  const void *source;
  /**
   * Not the source.
   */
  void *destination;
  /**
   * A multiple of 128. Groups: this and the next three follow from the members, and are not read.
   */
  size_t m;
  /**
   * A multiple of 4.
   */
  size_t k;
  /**
   * To tiles: entries with i >= valid_m or j >= valid_k become 0.
   */
  size_t valid_m;
  size_t valid_k;
  bool transposed;
} NVTEXSwizzleEntry;

/**
 * Moves block scales from the compact order to tiles, or back.
 *
 * With a group, an entry stands for the matrices of all members, one after the other: those of the
 * row-wise scales (`transposed`: of the column-wise ones) of MXFP8 data.
 */
typedef struct NVTEXSwizzleArgs {
  /**
   * Host array; groups: at most 2.
   */
  const struct NVTEXSwizzleEntry *entries;
  size_t num_entries;
  /**
   * From tiles to the compact order, padding included.
   */
  bool unswizzle;
  /**
   * Of the group.
   */
  size_t rows;
  size_t cols;
  struct NVTEXGroup group;
} NVTEXSwizzleArgs;

/**
 * Exponents of the row-wise scales of FP8 blocks as E8M0 codes of MXFP8 blocks, in tiles: all four
 * codes of 128 columns are `bits(scale) >> 23 & 0xFF`.
 */
typedef struct NVTEXScaleCodesArgs {
  /**
   * 1D: `[cols / 128][row]`; `square`: `[rows / 128][cols / 128]`.
   */
  const float *scales;
  /**
   * Tiles of `[rows, cols / 32]` codes; those of rows past the end are 0 (`square`: those of the
   * block).
   */
  void *codes;
  size_t rows;
  size_t cols;
  /**
   * Elements from one row of `scales` to the next.
   */
  size_t stride;
  bool square;
} NVTEXScaleCodesArgs;

/**
 * `amax[t] = max|x|` over the elements of member t (0 for none; NaN ignored).
 */
typedef struct NVTEXGroupAmaxArgs {
  const void *input;
  /**
   * One for each member.
   */
  float *amax;
  const float *noop;
  /**
   * Elements of the input, gaps between members and what follows the last of them included.
   */
  size_t numel;
  size_t rows;
  size_t cols;
  struct NVTEXGroup group;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXGroupAmaxArgs;

/**
 * A part of a row-major matrix `[rows, cols]`: the elements from `start` on, `length` of them.
 */
typedef struct NVTEXShard {
  const void *input;
  size_t start;
  size_t length;
  size_t rows;
  size_t cols;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXShard;

/**
 * `max|x|` over the elements of a shard in each block of the whole matrix (0 for none; NaN ignored).
 */
typedef struct NVTEXPartialAmaxArgs {
  /**
   * `length` may be 0.
   */
  struct NVTEXShard shard;
  /**
   * Mode 3: floats, block (i, j) of 128 x 128 at `i * rowwise_stride + j * block_step`.
   * Mode 1: of the input's dtype, block j of 32 in row i at `i * rowwise_stride + j`, or null;
   * entries up to the next multiple of 4 in a row become 0.
   */
  void *rowwise;
  /**
   * Mode 1: of the input's dtype, block i of 32 in column j at `i * colwise_stride + j`, or null;
   * entries up to the next multiple of 128 in a row become 0.
   */
  void *colwise;
  size_t rowwise_stride;
  size_t colwise_stride;
  size_t block_step;
  /**
   * 1 or 3.
   */
  NVTEScalingMode mode;
} NVTEXPartialAmaxArgs;

/**
 * Casts a shard with scales of the whole matrix, laid out as those maxima. Mode 3:
 * `y = cast(x * scale)`. Mode 1: `y = cast(x / 2^e)` with E8M0 codes, once for blocks along the rows,
 * once for blocks along the columns.
 */
typedef struct NVTEXPartialCastArgs {
  struct NVTEXShard shard;
  /**
   * `length` elements each; mode 1: or null.
   */
  void *rowwise;
  /**
   * Mode 1 only, as its scales.
   */
  void *colwise;
  const void *rowwise_scales;
  const void *colwise_scales;
  size_t rowwise_stride;
  size_t colwise_stride;
  size_t block_step;
  /**
   * 1 or 3.
   */
  NVTEScalingMode mode;
  /**
   * E4M3 or E5M2.
   */
  NVTEDType output_dtype;
} NVTEXPartialCastArgs;

/**
 * The weight of a normalization, `g = gamma`, or `gamma + 1` if it is stored centred at zero.
 */
typedef struct NVTEXGamma {
  /**
   * `[cols]`
   */
  const void *data;
  /**
   * F32, F16 or BF16; also of beta and, backward, of `dz`, `add`, `dgamma` and `dbeta`.
   */
  NVTEDType dtype;
  bool zero_centered;
  /**
   * Rounds `gamma + 1` to gamma's dtype.
   */
  bool rounded;
} NVTEXGamma;

/**
 * Normalizes each row x of a matrix, in float32, and casts the result.
 *
 * LayerNorm: `mu = mean(x)`, `rsigma = 1 / sqrt(mean((x - mu)^2) + epsilon)`,
 * `v = g (rsigma (x - mu)) + beta`. RMSNorm: `rsigma = 1 / sqrt(mean(x^2) + epsilon)`,
 * `v = g (rsigma x)`. v is cast as [`QuantizeArgs`] says of an input in F32, except that the amax of
 * an output in F32, F16 or BF16 is that of the rounded values.
 */
typedef struct NVTEXNormForwardArgs {
  /**
   * From x, `[rows, cols]`, to the result; without a fusion, a group or a noop flag. There may be
   * no rows, but at least one column. In mode 0 there are row-wise data.
   */
  struct NVTEXQuantizeArgs cast;
  /**
   * As x, or null: what is added to x before it is normalized, and where the sum, rounded to the
   * dtype of x, goes (it may be x or `residual`).
   */
  const void *residual;
  void *sum;
  struct NVTEXGamma gamma;
  /**
   * `[cols]`; null for RMSNorm.
   */
  const void *beta;
  /**
   * `[rows]`; null for RMSNorm.
   */
  float *mu;
  /**
   * `[rows]`
   */
  float *rsigma;
  float epsilon;
  NVTE_Norm_Type norm;
  /**
   * Multiprocessors to use at most.
   */
  int sm_count;
} NVTEXNormForwardArgs;

/**
 * Gradients of a normalization, in float32. With `y = rsigma (x - mu)` (RMSNorm: `mu = 0`) and
 * `d = g dz`, for each row: `dx = rsigma (d - mean(d y) y - mean(d)) + add` (RMSNorm: without
 * `mean(d)`); over the rows: `dgamma = sum(dz y)`, `dbeta = sum(dz)`.
 */
typedef struct NVTEXNormBackwardArgs {
  /**
   * `[rows, cols]`
   */
  const void *dz;
  /**
   * `[rows, cols]`
   */
  const void *x;
  /**
   * `[rows, cols]`, or null.
   */
  const void *add;
  /**
   * `[rows]`; null for RMSNorm.
   */
  const float *mu;
  /**
   * `[rows]`
   */
  const float *rsigma;
  struct NVTEXGamma gamma;
  /**
   * `[rows, cols]`, of the dtype of x; may be `dz`, `x` or `add` if that has this dtype.
   */
  void *dx;
  /**
   * `[cols]`
   */
  void *dgamma;
  /**
   * `[cols]`; null for RMSNorm.
   */
  void *dbeta;
  /**
   * Room for sums over some of the rows, `[parts, cols]` for dgamma, then for dbeta.
   */
  float *partial;
  /**
   * As `parts()` says; at least 1.
   */
  size_t parts;
  /**
   * May be 0.
   */
  size_t rows;
  /**
   * At least 1.
   */
  size_t cols;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType x_dtype;
  NVTE_Norm_Type norm;
  /**
   * Multiprocessors to use at most.
   */
  int sm_count;
} NVTEXNormBackwardArgs;

/**
 * Moves rows of bytes between places that sequences on the device determine.
 */
typedef struct NVTEXMoveRowsArgs {
  const void *src;
  void *dst;
  size_t row_bytes;
  /**
   * Rows of the map: of dst, or of the padded side.
   */
  size_t rows;
  /**
   * The map is applied to `outer` matrices, `src_outer` and `dst_outer` rows apart.
   */
  size_t outer;
  size_t src_outer;
  size_t dst_outer;
  /**
   * `sequences + 1` first tokens.
   */
  const int32_t *cu;
  const int32_t *cu_valid;
  size_t sequences;
  size_t index;
  size_t world;
  size_t length;
  const int32_t *page_table;
  size_t pages;
  size_t page;
  enum NVTEXRowMap map;
} NVTEXMoveRowsArgs;

/**
 * Moves the sequences of a cache `[slots, page, ...]` to the front: for i from 0 to n, ascending, the first
 * `cached - new` tokens of slot `from[i]` become those of slot i. n is the position after the last
 * descent of `from`, or `sequences`. Nothing moves where `from[0]` is 0 and `from[i]` is i.
 */
typedef struct NVTEXReindexCacheArgs {
  void *cache;
  const int32_t *from;
  const int32_t *cu_new;
  const int32_t *cu_cached;
  size_t sequences;
  size_t page;
  size_t row_bytes;
} NVTEXReindexCacheArgs;

/**
 * `grad[t] op= step[u]` by halves of sequences; u is t if `full`, else t counted in halves.
 */
typedef struct NVTEXGradCorrectionArgs {
  void *grad;
  const void *step;
  const int32_t *cu;
  size_t sequences;
  /**
   * Tokens of grad; step has as many if `full`, else half.
   */
  size_t tokens;
  /**
   * Elements of a token.
   */
  size_t width;
  /**
   * Matrices of tokens one after the other.
   */
  size_t outer;
  /**
   * F32, F16 or BF16; Byte without additions.
   */
  NVTEDType dtype;
  enum NVTEXHalfOp first;
  enum NVTEXHalfOp second;
  bool full;
} NVTEXGradCorrectionArgs;

/**
 * Logarithms of sums of exponentials `[heads, len]` (packed) or `[sequences, heads, len]`: those of the
 * second half of each sequence, with `c = cu / 2` and t from 0 to `c[sequences]`.
 *
 * Packed: position `t + c[s + 1]` of lse belongs to t of step; else `r + c[s + 1] - c[s]` to
 * `r = t - c[s]`. Read: `step = lse`. Correct: `lse = log(exp(lse) + exp(step))`.
 */
typedef struct NVTEXHalfLseArgs {
  float *lse;
  float *step;
  const int32_t *cu;
  size_t sequences;
  size_t heads;
  size_t lse_len;
  size_t step_len;
  bool packed;
  bool correct;
} NVTEXHalfLseArgs;

/**
 * `out = out exp(old_lse - lse) + step exp(step_lse - lse)` for tokens `[tokens, heads, width]`, where
 * a zero element contributes 0 whatever its factor. With `second_half` step has the second halves of the
 * sequences.
 */
typedef struct NVTEXOutCorrectionArgs {
  void *out;
  const void *step;
  const float *old_lse;
  const float *lse;
  const float *step_lse;
  const int32_t *cu;
  size_t sequences;
  /**
   * Tokens of step.
   */
  size_t tokens;
  size_t heads;
  size_t width;
  /**
   * As in [`HalfLseArgs`].
   */
  size_t lse_len;
  size_t step_len;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
  bool second_half;
  bool packed;
} NVTEXOutCorrectionArgs;

/**
 * Tokens of a rank: each sequence (`e = cu / world`, `L = e[s + 1] - e[s]` tokens for each rank) is cut
 * into `2 world` chunks, of which rank k has chunk k and the k-th from the end.
 * Token i of the rank, `r = i - e[s]`, is token
 * `r + e[s] world + (L / 2) (r < L / 2 ? k : 2 (world - 1) - k)`.
 */
typedef struct NVTEXPartitionArgs {
  int32_t *indices;
  const int32_t *cu;
  size_t sequences;
  /**
   * Tokens of a rank.
   */
  size_t tokens;
  size_t world;
  size_t rank;
} NVTEXPartitionArgs;

/**
 * `state = {seed, offset}`, of which each is a value, or a value added to one on the device.
 */
typedef struct NVTEXSeedArgs {
  int64_t *state;
  const int64_t *seed_at;
  const int64_t *offset_at;
  int64_t seed;
  int64_t offset;
} NVTEXSeedArgs;

/**
 * One matrix of rows of a [`CopyRowsArgs`], with up to three dimensions of rows; steps in bytes.
 */
typedef struct NVTEXCopyRowsEntry {
  const void *src;
  void *dst;
  size_t dims[3];
  size_t src_steps[3];
  size_t dst_steps[3];
  size_t src_bytes;
  /**
   * Not less than `src_bytes`; zeros behind those.
   */
  size_t dst_bytes;
} NVTEXCopyRowsEntry;

/**
 * Copies rows from one order to another.
 */
typedef struct NVTEXCopyRowsArgs {
  /**
   * Host array; no entry is empty.
   */
  const struct NVTEXCopyRowsEntry *entries;
  size_t num_entries;
} NVTEXCopyRowsArgs;

/**
 * A tensor of attention. Element x of row r and head j of sequence i is at
 * `i * batch + r * row + j * head + x`; if the side is ragged, at
 * `(starts[i] + r) * row + j * head + x`; of a page p of paged keys and values, at
 * `p * batch + r * row + j * head + x`.
 */
typedef struct NVTEXAttentionTensor {
  /**
   * Null: the tensor is not there. Aligned to 16 bytes if those of a head, or of a row of a bias, are a
   * multiple of that, else to an element: who reads vectors looks at the strides.
   */
  void *data;
  NVTEDType dtype;
  /**
   * Elements; times the element's size a multiple of 16 bytes wherever `data` is read or written by
   * vectors.
   */
  int64_t batch;
  int64_t row;
  int64_t head;
  /**
   * Of FP8 tensors; may be null (1, and no amax). An output has its amax written before it is
   * multiplied by `scale`; `scale_inv` is not written.
   */
  const float *scale;
  const float *scale_inv;
  float *amax;
} NVTEXAttentionTensor;

/**
 * The queries' or the keys' side of attention.
 */
typedef struct NVTEXAttentionSide {
  /**
   * Sequence i has `cu_seqlens[i + 1] - cu_seqlens[i]` rows; null: all have `max_seqlen`.
   */
  const int32_t *cu_seqlens;
  /**
   * First rows of the sequences, `batch + 1`, or null: the side is dense, `max_seqlen` rows each.
   */
  const int32_t *starts;
  size_t max_seqlen;
  /**
   * Rows of a ragged tensor.
   */
  size_t tokens;
  size_t heads;
} NVTEXAttentionSide;

/**
 * Softmax(scale q k^T + bias) v and its gradients, one args struct for both passes.
 *
 * Scores of sequence i, head j, row r, column c:
 * `x = scale * (q_r . k_c) + bias + slope_j (c - r)`, admissible iff r and c are inside their lengths
 * Lq and Lk, `c <= r + shift + window_right` and `c >= r + shift - window_left` (-1: no bound), with
 * `shift = Lk - Lq` if `bottom_right`, else 0. Query head j reads key head
 * `j / (q_side.heads / kv_side.heads)`.
 *
 * Forward: `m = max x`, `l = sum exp(x - m)`, both with the sink `a_j` as one more score without a
 * value; `stats = m + ln l`; `p = exp(x - stats)`; `z = keep p / (1 - dropout)`; `o = sum z v`. A row
 * without an admissible column has o = 0 and stats = max = -inf, with a sink too. Rows of dense tensors that lie past
 * their sequence become 0 (stats, max: -inf); of ragged tensors they are not touched.
 *
 * Backward: `D = sum do o`, `dp = do . v_c`, `ds = p (keep dp / (1 - dropout) - D)`,
 * `dv = sum z do`, `dbias = sum ds`, `dq = scale sum ds k`, `dk = scale sum ds q`,
 * `dsink_j = -sum exp(a_j - stats) D`. p is selected by the mask, since stats may be -inf.
 *
 * FP8 (spec of `s` and `dp`): `x = acc scale q.scale_inv k.scale_inv`; p, after dropout, is multiplied by
 * `s.scale` and cast to q's dtype, o gets `s.scale_inv v.scale_inv`; `s.amax = max p` before that.
 * Backward: ds is multiplied by `scale`, its amax goes to `dp.amax`, and `ds dp.scale` is cast to do's
 * dtype; dq and dk get `dp.scale_inv` and k's and q's `scale_inv`.
 *
 * Dropout: each call of Philox 4x32-7, with the seed as key and the counter `offset / 4 + 2^64 G`, serves
 * 16 elements of a tile of 16 rows and columns: element (i, j, r, c) takes byte
 * `2 (c / 8 % 2) + r / 8 % 2` of word `2 (r % 2) + c % 2`, the least significant byte being 0, with
 * `G = 16 (((i heads + j) ceil(q_side.max_seqlen / 16) + r / 16) ceil(kv_side.max_seqlen / 16) + c / 16)
 * + 4 (r % 8 / 2) + c % 8 / 2`. It is dropped iff
 * `16 byte + 4 ((r % 8 / 2 + c % 8 / 2) % 4) + r % 8 / 2 < min(floor(4096 dropout + 0.5), 4080)`, in
 * float32: the probability is rounded to multiples of 1/4096, which a tile has as a mean.
 *
 * There is a batch, a head and an element of each; the length of a side may be 0, and what lies outside a
 * sequence may be NaN.
 */
typedef struct NVTEXAttentionArgs {
  struct NVTEXAttentionTensor q;
  struct NVTEXAttentionTensor k;
  struct NVTEXAttentionTensor v;
  /**
   * Written by the forward, read by the backward.
   */
  struct NVTEXAttentionTensor o;
  /**
   * The following four are the backward's; its absence is what tells the forward.
   */
  struct NVTEXAttentionTensor d_o;
  struct NVTEXAttentionTensor dq;
  struct NVTEXAttentionTensor dk;
  struct NVTEXAttentionTensor dv;
  /**
   * Of q's dtype, of FP8 q in high precision, or null; `batch`, `head` and `row` are 0 where the bias is
   * broadcast.
   */
  struct NVTEXAttentionTensor bias;
  /**
   * Likewise, contiguous with a 0 stride where it is summed, or null. All of it is written. Of FP8 scores
   * too it is the sum of ds before `scale` and the cast.
   */
  struct NVTEXAttentionTensor dbias;
  /**
   * FP8 only: scale, scale_inv and amax of the probabilities and of the scores' gradient.
   */
  struct NVTEXAttentionTensor s;
  struct NVTEXAttentionTensor dp;
  struct NVTEXAttentionSide q_side;
  struct NVTEXAttentionSide kv_side;
  size_t batch;
  /**
   * Elements of a head of q and k.
   */
  size_t dim_qk;
  /**
   * Elements of a head of v and o.
   */
  size_t dim_v;
  /**
   * F32, written by the forward, read by the backward: natural logarithm. Element (i, j, r) is at
   * `(i heads + j) q_side.max_seqlen + r`; if q is ragged at `(starts[i] + r) heads + j`.
   */
  float *stats;
  /**
   * Largest admissible x of each row without the sink, laid out as `stats`; or null.
   */
  float *max;
  /**
   * `[q_side.heads]`, or null: no sink.
   */
  const float *sink;
  float *dsink;
  /**
   * `[batch, max_pages]`, or null: not paged. Page numbers of the keys; token t of sequence i is row
   * `t % page_size` of page `page_table_k[i * max_pages_k + t / page_size_k]`.
   */
  const int32_t *page_table_k;
  const int32_t *page_table_v;
  size_t max_pages_k;
  size_t max_pages_v;
  size_t page_size_k;
  size_t page_size_v;
  float scale;
  /**
   * Probability that an element is dropped; 0: none is.
   */
  float dropout;
  /**
   * Seed and offset, on the device.
   */
  const int64_t *rng_state;
  /**
   * -1: unbounded.
   */
  int64_t window_left;
  int64_t window_right;
  bool bottom_right;
  /**
   * `n = 2^floor(log2 heads)`; `slope_j = 2^(-8 (j + 1) / n)` for `j < n`, else
   * `2^(-4 (2 (j - n) + 1) / n)`.
   */
  bool alibi;
  bool backward;
  /**
   * The backward adds in a fixed order.
   */
  bool deterministic;
  void *workspace;
  /**
   * At least what [`AttentionPlan`] says.
   */
  size_t workspace_bytes;
} NVTEXAttentionArgs;

/**
 * What a backend would do with an [`AttentionArgs`], whose pointers may be null where only their
 * being there does not matter: a plan looks at shapes, strides, dtypes and options, and takes a
 * pointer that is not null as "is there".
 */
typedef struct NVTEXAttentionPlan {
  size_t workspace_bytes;
  /**
   * Name of the implementation, static.
   */
  const char *implementation;
  /**
   * "name: reason" of those that were rejected before it, one a line; valid until the thread's next
   * backend call.
   */
  const char *rejected;
} NVTEXAttentionPlan;

/**
 * One of the tensors that an operator takes a list of: what `data` is, each operator says.
 */
typedef struct NVTEXMultiTensor {
  void *data[8];
  /**
   * Elements of each buffer; not 0 unless the operator says so.
   */
  size_t numel;
} NVTEXMultiTensor;

/**
 * One step of Adam on many tensors, in this order of operations, each rounded to float32:
 *
 * `g *= inv_scale`; if `l2`, `g += weight_decay * p`;
 * `m = beta1 * m + (1 - beta1) * g`; `v = beta2 * v + ((1 - beta2) * g) * g`;
 * `u = (m * (1 / bias1)) / (sqrt(v * (1 / bias2)) + epsilon)`; unless `l2`, `u += weight_decay * p`;
 * `p = p - lr * u`.
 *
 * Data of a tensor: gradient g, parameter p, moments m and v, master (see [`AdamMaster`]). FP8
 * parameters have a float master and three floats: scale, amax and scale_inv, or null each. Then
 * `data[1] = cast(p * scale)` (1 without a scale), `amax = max(amax, max|p|)` by the integer maximum of
 * the bits, NaN ignored, and `scale_inv = 1 / scale`.
 */
typedef struct NVTEXAdamArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float lr;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  float bias1;
  float bias2;
  /**
   * On the device, or null: instead of `lr`.
   */
  const float *device_lr;
  /**
   * On the device, or null: `bias1 = 1 - beta1^step`, `bias2 = 1 - beta2^step` instead, as
   * `bias_correction` computes them.
   */
  const int32_t *device_step;
  /**
   * On the device, or null for 1; if there is one, the scaled gradient is also stored.
   */
  const float *inv_scale;
  /**
   * Null, or a flag that forbids everything if it is 1.
   */
  const int32_t *noop;
  bool l2;
  enum NVTEXAdamMaster master;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType grad_dtype;
  /**
   * F32, F16, BF16, E4M3 or E5M2.
   */
  NVTEDType param_dtype;
  /**
   * F32 or BF16; F32 if the parameters are FP8.
   */
  NVTEDType moment_dtype;
} NVTEXAdamArgs;

/**
 * One step of gradient descent on many tensors, in this order of operations, each rounded to float32:
 *
 * `g *= scale`; `g += weight_decay * w` unless `decay_after_momentum`; with a momentum that is not 0,
 * `b = g` in the first run, else `b = b * momentum + (1 - dampening) * g`, then
 * `g = g + momentum * b` if `nesterov`, else `g = b`; `g += weight_decay * w` if
 * `decay_after_momentum`; `d = -lr * g`, rounded to the dtype of the weights; `w = w + d`.
 * Decay of 0 adds nothing. Data of a tensor: gradient, weight w, momentum b, copy of the new weight or
 * null. Without momentum b is not touched.
 */
typedef struct NVTEXSgdArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float lr;
  float momentum;
  float dampening;
  float weight_decay;
  float scale;
  bool nesterov;
  bool first_run;
  bool decay_after_momentum;
  /**
   * A flag that forbids everything unless it is 0.
   */
  const int32_t *noop;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType grad_dtype;
  /**
   * F32, F16 or BF16, of weights and momentum.
   */
  NVTEDType weight_dtype;
  /**
   * F16 or BF16 beside F32 weights, of all copies.
   */
  NVTEDType copy_dtype;
} NVTEXSgdArgs;

/**
 * `norm = sqrt(sum (x * inv_scale)^2)` over the elements of all tensors, squared and summed in float32 or
 * better, in a fixed order. Data of a tensor: x. Tensors may be empty; there may be none.
 */
typedef struct NVTEXL2NormArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  /**
   * On the device, or null for 1.
   */
  const float *inv_scale;
  float *norm;
  /**
   * The norm of each tensor, or null.
   */
  float *tensor_norms;
  /**
   * Workspace of `partials` floats.
   */
  float *workspace;
  size_t partials;
  /**
   * With `tensor_norms`: workspace of `num_tensors * chunks` floats, `ceil(numel / chunk) <= chunks`.
   */
  float *tensor_workspace;
  size_t chunks;
  size_t chunk;
  /**
   * Set to 1 if the sum of some part is not finite.
   */
  int32_t *non_finite;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType dtype;
} NVTEXL2NormArgs;

/**
 * `y = cast(x * scale)` of many tensors. Data of a tensor: x, y, which may be the same.
 */
typedef struct NVTEXScaleTensorsArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float scale;
  /**
   * On the device, or null: instead of `scale`.
   */
  const float *device_scale;
  /**
   * Set to 1 if some x is not finite.
   */
  int32_t *non_finite;
  /**
   * F32, F16 or BF16.
   */
  NVTEDType input_dtype;
  NVTEDType output_dtype;
} NVTEXScaleTensorsArgs;

/**
 * Scales of many tensors from their amax.
 *
 * Floats: amax, scale, scale_inv, as [`ScaleFromAmaxArgs`] defines them. E8M0: a BF16 amax and the code
 * of `amax / 448`, rounded up to a power of two: 0xff for NaN, at most 0xfe otherwise.
 */
typedef struct NVTEXScalesFromAmaxArgs {
  /**
   * Host array.
   */
  const struct NVTEXMultiTensor *tensors;
  size_t num_tensors;
  float fp8_max;
  float epsilon;
  bool pow2;
  bool e8m0;
} NVTEXScalesFromAmaxArgs;

/**
 * Functions of a backend. A null entry is unimplemented.
 */
typedef struct NVTEXOpTable {
  /**
   * Bytes of this struct as the backend was built.
   */
  size_t struct_size;
  /**
   * `NVTEX_BACKEND_API_VERSION` as the backend was built.
   */
  uint32_t api_version;
  struct NVTEXOutcome (*quantize)(const struct NVTEXQuantizeArgs*, cudaStream_t);
  struct NVTEXOutcome (*dequantize)(const struct NVTEXDequantizeArgs*, cudaStream_t);
  struct NVTEXOutcome (*transpose)(const struct NVTEXTransposeArgs*, cudaStream_t);
  struct NVTEXOutcome (*amax)(const struct NVTEXAmaxArgs*, cudaStream_t);
  struct NVTEXOutcome (*scale_from_amax)(const struct NVTEXScaleFromAmaxArgs*, cudaStream_t);
  struct NVTEXOutcome (*delayed_scaling)(const struct NVTEXDelayedScalingArgs*, cudaStream_t);
  struct NVTEXOutcome (*gemm)(const struct NVTEXGemmArgs*, cudaStream_t);
  struct NVTEXOutcome (*memset)(const struct NVTEXMemsetArgs*, cudaStream_t);
  struct NVTEXOutcome (*host_copy)(const struct NVTEXHostCopyArgs*, cudaStream_t);
  struct NVTEXOutcome (*offsets)(const struct NVTEXOffsetsArgs*, cudaStream_t);
  struct NVTEXOutcome (*scaled_activation)(const struct NVTEXScaledActivationArgs*, cudaStream_t);
  struct NVTEXOutcome (*softmax)(const struct NVTEXSoftmaxArgs*, cudaStream_t);
  struct NVTEXOutcome (*dropout)(const struct NVTEXDropoutArgs*, cudaStream_t);
  struct NVTEXOutcome (*rope)(const struct NVTEXRopeArgs*, cudaStream_t);
  /**
   * 10 * major + minor of the current device, 0 for a backend without one.
   */
  struct NVTEXOutcome (*device_arch)(int *arch);
  /**
   * Memory of the current device, aligned to 256 bytes. `bytes` is not 0.
   */
  struct NVTEXOutcome (*device_malloc)(void **ptr, size_t bytes);
  struct NVTEXOutcome (*device_free)(void *ptr);
  /**
   * Asynchronous on the stream, except that copies from and to pageable memory may block.
   */
  struct NVTEXOutcome (*device_memcpy)(void *dst,
                                       const void *src,
                                       size_t bytes,
                                       enum NVTEXCopyKind kind,
                                       cudaStream_t stream);
  struct NVTEXOutcome (*stream_create)(cudaStream_t *stream);
  struct NVTEXOutcome (*stream_destroy)(cudaStream_t stream);
  struct NVTEXOutcome (*stream_synchronize)(cudaStream_t stream);
  /**
   * Stream `index` of the current device's pool, created on first use.
   */
  struct NVTEXOutcome (*compute_stream)(int index, cudaStream_t *stream);
  /**
   * Event `index` of the current device's pool, created on first use.
   */
  struct NVTEXOutcome (*compute_event)(int index, cudaEvent_t *event);
  struct NVTEXOutcome (*swap_first_dims)(const struct NVTEXSwapFirstDimsArgs*, cudaStream_t);
  struct NVTEXOutcome (*transpose_dbias)(const struct NVTEXTransposeDbiasArgs*, cudaStream_t);
  struct NVTEXOutcome (*requantize)(const struct NVTEXRequantizeArgs*, cudaStream_t);
  struct NVTEXOutcome (*swizzle)(const struct NVTEXSwizzleArgs*, cudaStream_t);
  struct NVTEXOutcome (*scale_codes)(const struct NVTEXScaleCodesArgs*, cudaStream_t);
  struct NVTEXOutcome (*group_amax)(const struct NVTEXGroupAmaxArgs*, cudaStream_t);
  struct NVTEXOutcome (*partial_amax)(const struct NVTEXPartialAmaxArgs*, cudaStream_t);
  struct NVTEXOutcome (*partial_cast)(const struct NVTEXPartialCastArgs*, cudaStream_t);
  struct NVTEXOutcome (*norm_forward)(const struct NVTEXNormForwardArgs*, cudaStream_t);
  struct NVTEXOutcome (*norm_backward)(const struct NVTEXNormBackwardArgs*, cudaStream_t);
  struct NVTEXOutcome (*move_rows)(const struct NVTEXMoveRowsArgs*, cudaStream_t);
  struct NVTEXOutcome (*reindex_cache)(const struct NVTEXReindexCacheArgs*, cudaStream_t);
  struct NVTEXOutcome (*grad_correction)(const struct NVTEXGradCorrectionArgs*, cudaStream_t);
  struct NVTEXOutcome (*half_lse)(const struct NVTEXHalfLseArgs*, cudaStream_t);
  struct NVTEXOutcome (*out_correction)(const struct NVTEXOutCorrectionArgs*, cudaStream_t);
  struct NVTEXOutcome (*partition)(const struct NVTEXPartitionArgs*, cudaStream_t);
  struct NVTEXOutcome (*seed)(const struct NVTEXSeedArgs*, cudaStream_t);
  struct NVTEXOutcome (*copy_rows)(const struct NVTEXCopyRowsArgs*, cudaStream_t);
  /**
   * The implementation of a pass and its workspace; UNIMPLEMENTED with all reasons if there is none.
   */
  struct NVTEXOutcome (*attention_plan)(const struct NVTEXAttentionArgs*, struct NVTEXAttentionPlan*);
  struct NVTEXOutcome (*attention)(const struct NVTEXAttentionArgs*, cudaStream_t);
  struct NVTEXOutcome (*adam)(const struct NVTEXAdamArgs*, cudaStream_t);
  struct NVTEXOutcome (*sgd)(const struct NVTEXSgdArgs*, cudaStream_t);
  struct NVTEXOutcome (*l2_norm)(const struct NVTEXL2NormArgs*, cudaStream_t);
  struct NVTEXOutcome (*scale_tensors)(const struct NVTEXScaleTensorsArgs*, cudaStream_t);
  struct NVTEXOutcome (*scales_from_amax)(const struct NVTEXScalesFromAmaxArgs*, cudaStream_t);
} NVTEXOpTable;

#endif  /* NVTE_BACKEND_H */
