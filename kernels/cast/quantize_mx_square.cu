// Casts to FP8 with an E8M0 scale for 32 x 32 elements.

#include "quantize.cuh"

namespace nvte {

// Two would spill.
template <>
constexpr int blocks_of<BF16, MxScale, true, NVTEX_FORM_ACTIVATION, Tiles::kOneEach>() {
  return 1;
}

NVTEXOutcome quantize_mx_square(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  return quantize_tiles<MxScale, true>(q, stream);
}

}  // namespace nvte
