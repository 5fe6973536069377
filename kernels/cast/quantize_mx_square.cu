// Casts to FP8 with an E8M0 scale for 32 x 32 elements.

#include "quantize.cuh"

namespace nvte {

NVTEXOutcome quantize_mx_square(const NVTEXCast &q, cudaStream_t stream) {
  return quantize_tiles<MxScale, true>(q, stream);
}

}  // namespace nvte
