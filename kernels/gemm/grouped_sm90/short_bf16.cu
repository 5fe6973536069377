// Grouped products of BF16 operands of short inner dimensions.

#include "short.cuh"

namespace nvte {
namespace sm90_grouped {

template NVTEXOutcome run_short<BF16, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run_short<BF16, false, true>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run_short<BF16, true, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run_short<BF16, true, true>(const Params &, unsigned, cudaStream_t);

}  // namespace sm90_grouped
}  // namespace nvte
