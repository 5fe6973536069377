// Casts to FP8 with a float32 scale for 128 elements of a row or a column.

#include "quantize.cuh"

namespace nvte {

NVTEXOutcome quantize_1d(const NVTEXCast &q, cudaStream_t stream) {
  return quantize_tiles<FloatScale, false>(q, stream);
}

}  // namespace nvte
