#ifndef NVTE_BACKEND_GROUPED_GEMM_H
#define NVTE_BACKEND_GROUPED_GEMM_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/backend/gemm.h"

/**
 * One matrix of a [`GroupedMatrix`] whose members have buffers of their own.
 */
typedef struct NVTEXGroupedMember {
  /**
   * Null only without elements.
   */
  void *data;
  /**
   * As [`GroupedMatrix::scale_inv`], of this member alone.
   */
  const void *scale_inv;
  size_t outer;
  size_t inner;
} NVTEXGroupedMember;

/**
 * One operand of a grouped product: matrices `[outer_t, inner_t]` for t < num_tensors, contiguous,
 * stored as such, or `transposed`, as `[inner_t, outer_t]`. In A and B the inner dimension is the one
 * that is summed; in C and D it is m. Everything about storage is decided here: no transa, no transb,
 * no direction is left to choose.
 *
 * Either `members` is a host array of `num_tensors`, valid during the call only, and no other pointer
 * is set; or the members lie one after the other in `data`, and member t begins at element
 * `offsets[t]`, without `offsets` where the one before ends.
 *
 * What the arrays on the device hold is not trusted: see [`GroupedGemmArgs`].
 */
typedef struct NVTEXGroupedMatrix {
  /**
   * Null if there is nothing to read or write, because no member has an element.
   */
  void *data;
  /**
   * On the host, or null.
   */
  const struct NVTEXGroupedMember *members;
  /**
   * On the device, `num_tensors` entries, not negative; null: `outer` each.
   */
  const int64_t *outer_dims;
  /**
   * On the device, `num_tensors` entries, not negative; null: `inner` each.
   */
  const int64_t *inner_dims;
  /**
   * On the device, `num_tensors` entries; or null.
   */
  const int64_t *offsets;
  /**
   * FP8 A and B only. Mode 0: one float for each member. Else the scale matrices of the members, one
   * after the other, each with its padding; their positions do not depend on `offsets`. With
   * `ceil128(x) = ceil(x / 128)`, of a member:
   * mode 1: `roundup(outer, 128) * roundup(ceil(inner / 32), 4)` bytes (E8M0), with `swizzled` in the
   * tiles of [`SwizzleArgs`], else `[roundup(outer, 128), roundup(ceil(inner / 32), 4)]`, or that of
   * the other order if `transposed`; mode 2: floats `[ceil128(inner), roundup(outer, 4)]`; mode 3:
   * floats `[ceil128(outer), roundup(ceil128(inner), 4)]`.
   */
  const void *scale_inv;
  /**
   * Elements that `data` has room for.
   */
  size_t elements;
  /**
   * Floats, or in mode 1 codes, that `scale_inv` has room for.
   */
  size_t scale_entries;
  /**
   * Ignored where `outer_dims` or `members` say more; then not the size of any member.
   */
  size_t outer;
  /**
   * As `outer`.
   */
  size_t inner;
  NVTEScalingMode mode;
  /**
   * A and B: F16, BF16, E4M3, E5M2. C and D: F32, F16, BF16.
   */
  NVTEDType dtype;
  /**
   * False in modes 2 and 3, and in C and D.
   */
  bool transposed;
  /**
   * Mode 1.
   */
  bool swizzled;
} NVTEXGroupedMatrix;

/**
 * `D[t] = alpha[t] * scale_a[t] * scale_b[t] * (B[t] A[t]^T) + beta[t] * C[t]` for t < num_tensors, with
 * `A[t] [m_t, k_t]`, `B[t] [n_t, k_t]`, `C[t]` and `D[t] [n_t, m_t]`, outer dimension first as in
 * [`GroupedMatrix`]; sums and scales of FP8 blocks and MXFP8 as in [`GemmArgs`].
 *
 * The dimensions of a member agree between the operands, except that `m_t` and `n_t` are those of D and
 * `k_t` is that of A. Any of them may be 0: without m or n nothing is written, without k D is
 * `beta * C`. C is not read where beta is 0. Elements that no member has are not touched. The result of
 * a member does not depend on the others.
 *
 * A member is left out if `m_t`, `n_t` or `k_t` is negative (CUDA: or 2^29 or more), or if one of its
 * matrices or their scales alone would be more than the operand has room for. A matrix that would begin
 * before or end after the data, or its scales, is taken to lie at their end.
 */
typedef struct NVTEXGroupedGemmArgs {
  struct NVTEXGroupedMatrix a;
  struct NVTEXGroupedMatrix b;
  /**
   * May be D, also in part. Its dtype is that of D.
   */
  struct NVTEXGroupedMatrix c;
  struct NVTEXGroupedMatrix d;
  /**
   * On the device: of member t at `alpha[t * alpha_stride]`.
   */
  const float *alpha;
  /**
   * Beta, likewise.
   */
  const float *beta;
  /**
   * 0: one for all; 1: one for each member.
   */
  size_t alpha_stride;
  size_t beta_stride;
  /**
   * At least 1.
   */
  size_t num_tensors;
  /**
   * Aligned to 16 bytes, at least `92 * num_tensors + 256`. Contents are arbitrary.
   */
  void *setup_workspace;
  size_t setup_bytes;
  /**
   * Aligned to 256 bytes, at least 32 MiB less up to 255 bytes. Contents are arbitrary.
   */
  void *workspace;
  size_t workspace_bytes;
  /**
   * Expected sizes of a member, for the choice of tiles; any value is right.
   */
  size_t mean_m;
  size_t mean_n;
  size_t mean_k;
  /**
   * As in [`GemmArgs`].
   */
  bool split_accumulator;
  /**
   * Multiprocessors to use, 0 for all.
   */
  int sm_count;
} NVTEXGroupedGemmArgs;

/**
 * `output[r][c] = cast(output[r][c] + bias[g(r)][c] * scale[r])`, one rounding, where g(r) is the member
 * of a group that row r belongs to. Rows after those of the last member are not touched, nor are those
 * that `rows` does not have, whatever `first_dims` says; a member of a negative number of rows or of more
 * than `rows` has none.
 */
typedef struct NVTEXGroupedBiasArgs {
  /**
   * `[rows, cols]`
   */
  void *output;
  /**
   * `[num_tensors, cols]`
   */
  const void *bias;
  /**
   * `[rows]`, or null for 1.
   */
  const float *scale;
  /**
   * On the device: rows of the members, not negative; null: `rows / num_tensors` each.
   */
  const int64_t *first_dims;
  size_t num_tensors;
  size_t rows;
  size_t cols;
  /**
   * F32, F16 or BF16, of output and bias.
   */
  NVTEDType dtype;
} NVTEXGroupedBiasArgs;

/**
 * `output[i] = input[i] * factor` in 64-bit arithmetic that wraps.
 */
typedef struct NVTEXWidenArgs {
  const int32_t *input;
  int64_t *output;
  size_t length;
  int64_t factor;
} NVTEXWidenArgs;

/**
 * Counters by which products on different streams wait for each other's chunks.
 */
typedef struct NVTEXCountersArgs {
  int32_t *counters;
  size_t length;
  /**
   * Nanoseconds after which waiting ends without success. The CPU backend then reports a device error;
   * CUDA does so at the next synchronisation of a stream or the next wait, and the stream goes on.
   */
  uint64_t limit;
  /**
   * Wait until all are 0, instead of setting them to 0 after what came before on the stream.
   */
  bool wait;
} NVTEXCountersArgs;

#endif  /* NVTE_BACKEND_GROUPED_GEMM_H */
