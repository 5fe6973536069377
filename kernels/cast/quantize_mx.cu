// Casts to FP8 with an E8M0 scale for 32 elements of a row or a column.

#include "quantize.cuh"

namespace nvte {

NVTEXOutcome quantize_mx(const NVTEXCast &q, cudaStream_t stream) {
  return quantize_tiles<MxScale, false>(q, stream);
}

}  // namespace nvte
