// Grouped products of F16 operands.

#include "kernel.cuh"

namespace nvte {
namespace sm90_grouped {

template NVTEXOutcome run<F16, Kind::kPlain, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<F16, Kind::kPlain, false, true>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<F16, Kind::kPlain, true, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<F16, Kind::kPlain, true, true>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<F16, Kind::kBulk, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<F16, Kind::kBulk, false, true>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<F16, Kind::kBulk, true, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<F16, Kind::kBulk, true, true>(const Params &, unsigned, cudaStream_t);

}  // namespace sm90_grouped
}  // namespace nvte
