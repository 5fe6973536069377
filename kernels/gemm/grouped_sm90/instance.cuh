// The instances of the kernel of grouped products, as their launcher sees them.
#pragma once

#include "common/launch.cuh"
#include "common/wgmma.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_grouped {

// Compilers refuse clusters for GPUs before compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NVTE_PAIRS __cluster_dims__(2, 1, 1)
#else
#define NVTE_PAIRS
#endif

// How products are made. kPromote: sums of each 128 of the inner dimension are added up outside of
// the tensor cores, whose own sums of 8-bit products have fewer bits, and multiplied by scales.
// kBulk: as kPlain, for inner dimensions so short that it counts how results get to D. kShort: for
// still shorter ones, see short.cuh.
// kMx: MXFP8 along the inner dimension, as kPromote for each 32. kMxCast: other MXFP8 becomes BF16
// on its way to where products read it.
enum class Kind { kPlain, kBulk, kShort, kPromote, kMx, kMxCast };

constexpr bool promotes(Kind kind) { return kind == Kind::kPromote || kind == Kind::kMx; }

// Whether results leave in bulk from shared memory of their own, while the next tile is multiplied.
// That costs one of four stages of the ring.
constexpr bool stores_in_bulk(Kind kind) {
  return kind == Kind::kBulk || kind == Kind::kShort || promotes(kind);
}

// In: a tag of Product. kMn*: that operand is stored with its inner dimension first. Defined in
// kernel.cuh; each other source of this folder makes some instances.
template <class In, Kind kKind, bool kMnRows, bool kMnCols>
NVTEXOutcome run(const Params &p, unsigned clusters, cudaStream_t stream);
// That of kShort, in short.cuh.
template <class In, bool kMnRows, bool kMnCols>
NVTEXOutcome run_short(const Params &p, unsigned clusters, cudaStream_t stream);

}  // namespace sm90_grouped
}  // namespace nvte
