// MXFP8, multiplied as BF16.

#include "kernel.cuh"

namespace nvte {
namespace sm90_grouped {

template NVTEXOutcome run<BF16, Kind::kMx, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<BF16, Kind::kMx, false, true>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<BF16, Kind::kMx, true, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<BF16, Kind::kMx, true, true>(const Params &, unsigned, cudaStream_t);

}  // namespace sm90_grouped
}  // namespace nvte
