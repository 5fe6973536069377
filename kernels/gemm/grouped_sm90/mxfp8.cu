// MXFP8 that does not lie along the inner dimension in both operands, multiplied as BF16.

#include "kernel.cuh"

namespace nvte {
namespace sm90_grouped {

template NVTEXOutcome run<BF16, Kind::kMxCast, false, true>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<BF16, Kind::kMxCast, true, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<BF16, Kind::kMxCast, true, true>(const Params &, unsigned, cudaStream_t);

}  // namespace sm90_grouped
}  // namespace nvte
