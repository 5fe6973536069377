// Grouped products of F16 operands of short inner dimensions.

#include "short.cuh"

namespace nvte {
namespace sm90_grouped {

template NVTEXOutcome run_short<F16, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run_short<F16, false, true>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run_short<F16, true, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run_short<F16, true, true>(const Params &, unsigned, cudaStream_t);

}  // namespace sm90_grouped
}  // namespace nvte
