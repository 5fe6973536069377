// Casts to FP8 with one scale per tensor.

#include "common/quantize.cuh"

namespace nvte {

NVTEXOutcome quantize_tensor(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  return quantize_tiles<TensorScale, false>(q, stream);
}

}  // namespace nvte
