// The instances of the kernel of grouped products, as their launcher sees them.
#pragma once

#include "common/launch.cuh"
#include "common/wgmma.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_grouped {

// How products are made. kPromote: sums of each 128 of the inner dimension are added up outside of
// the tensor cores, whose own sums of 8-bit products have fewer bits, and multiplied by scales.
// kMx: MXFP8 becomes BF16 on its way to where products read it.
enum class Kind { kPlain, kPromote, kMx };

// In: a tag of Product. kMn*: that operand is stored with its inner dimension first. Defined in
// kernel.cuh; each other source of this folder makes some instances.
template <class In, Kind kKind, bool kMnRows, bool kMnCols>
NVTEXOutcome run(const Params &p, unsigned clusters, cudaStream_t stream);

}  // namespace sm90_grouped
}  // namespace nvte
