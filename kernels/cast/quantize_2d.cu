// Casts to FP8 with a float32 scale for 128 x 128 elements.

#include "quantize.cuh"

namespace nvte {

NVTEXOutcome quantize_2d(const NVTEXCast &q, cudaStream_t stream) {
  return quantize_tiles<FloatScale, true>(q, stream);
}

}  // namespace nvte
