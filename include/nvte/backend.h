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
  struct NVTEXOutcome (*norm_forward)(const struct NVTEXNormForwardArgs*, cudaStream_t);
  struct NVTEXOutcome (*norm_backward)(const struct NVTEXNormBackwardArgs*, cudaStream_t);
} NVTEXOpTable;

#endif  /* NVTE_BACKEND_H */
