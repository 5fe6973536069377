// The instances of the kernel of grouped products, as their launcher sees them.
#pragma once

#include "common/launch.cuh"
#include "common/wgmma.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_grouped {

// How products are made. kPromote: sums of each 128 of the inner dimension are added up outside of
// the tensor cores, whose own sums of 8-bit products have fewer bits, and multiplied by scales.
// kShort: as kPlain, for inner dimensions so short that a tile takes about as long to store as to
// multiply.
// kMx: MXFP8 becomes BF16 on its way to where products read it.
enum class Kind { kPlain, kShort, kPromote, kMx };

// Whether results leave in bulk from shared memory of their own, while the next tile is multiplied.
// That costs one of four stages of the ring.
constexpr bool stores_in_bulk(Kind kind) { return kind == Kind::kShort || kind == Kind::kPromote; }

// In: a tag of Product. kMn*: that operand is stored with its inner dimension first. Defined in
// kernel.cuh; each other source of this folder makes some instances.
template <class In, Kind kKind, bool kMnRows, bool kMnCols>
NVTEXOutcome run(const Params &p, unsigned clusters, cudaStream_t stream);

}  // namespace sm90_grouped
}  // namespace nvte
