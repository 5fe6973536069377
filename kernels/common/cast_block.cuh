// Casts with a scale per block of elements, modes 1, 2 and 3, and back, also of groups in mode 0.
#pragma once

#include "launch.cuh"

namespace nvte {

NVTEXOutcome quantize_blocks(const NVTEXQuantizeArgs &a, cudaStream_t stream);
NVTEXOutcome dequantize_blocks(const NVTEXDequantizeArgs &a, cudaStream_t stream);

}  // namespace nvte
