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
#define NVTEX_BACKEND_API_VERSION 3

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
 * Direction of a copy.
 */
typedef enum NVTEXCopyKind {
  NVTEX_COPY_TO_DEVICE = 0,
  NVTEX_COPY_TO_HOST = 1,
  NVTEX_COPY_ON_DEVICE = 2,
} NVTEXCopyKind;

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
   * `[cols]` (groups: `[num_tensors, cols]`) of the input's dtype, or null: the sum of v over the
   * rows (of a member), in float32 in this order: within each 128 rows (that begin a member) the
   * sums of 4 rows one after the other, then pairs of those, then the 16 pairs one after the other;
   * of those blocks the i-th is added to sum i % 8, and these 8 are added one after the other.
   */
  void *dbias;
  /**
   * With dbias: `dbias_workspace_rows() * cols` floats.
   */
  float *workspace;
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
   * Mode 0: one float. Else the scale matrix of the direction that is read.
   */
  const void *scale_inv;
  size_t rows;
  size_t cols;
  /**
   * Elements from one row of the scale matrix to the next; 0 in mode 0.
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
 * `D = epilogue(alpha * scale_a * scale_b * (Bop Aop) + beta * C)`, row-major D `[n, m]`.
 *
 * `Aop [k, m]` is A `[k, m]`, or with `transa` A^T of A `[m, k]`; `Bop [n, k]` is B `[n, k]`, or with
 * `transb` B^T of B `[k, n]`. Read column-major this is the BLAS product with the same flags. An FP8 D
 * is `cast(v * scale_d)`, with `amax_d = max|v|` and `scale_inv_d = 1 / scale_d`.
 */
typedef struct NVTEXGemmArgs {
  const void *a;
  const void *b;
  /**
   * Read only if `beta` is not 0; may equal `d`. Its dtype is that of D.
   */
  const void *c;
  void *d;
  /**
   * One float each for FP8 operands, else null.
   */
  const float *scale_inv_a;
  const float *scale_inv_b;
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
   * Promote FP8 partial sums to full float32 registers every 128 products.
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
  struct NVTEXOutcome (*swizzle)(const struct NVTEXSwizzleArgs*, cudaStream_t);
  struct NVTEXOutcome (*scale_codes)(const struct NVTEXScaleCodesArgs*, cudaStream_t);
  struct NVTEXOutcome (*group_amax)(const struct NVTEXGroupAmaxArgs*, cudaStream_t);
  struct NVTEXOutcome (*partial_amax)(const struct NVTEXPartialAmaxArgs*, cudaStream_t);
  struct NVTEXOutcome (*partial_cast)(const struct NVTEXPartialCastArgs*, cudaStream_t);
} NVTEXOpTable;

#endif  /* NVTE_BACKEND_H */
