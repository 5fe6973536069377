// The casts by scaling mode: quantize.cu chooses one of these functions, and the source of the
// function's name defines it. sum_dbias() and sum_columns() are in quantize_elements.cu,
// dequantize_blocks() in dequantize_block.cu.
#pragma once

#include "common/launch.cuh"
#include "nvte/backend/cast.h"

namespace nvte {

// Casts to FP8 in tiles. Mode 0 is `quantize_tensor`; it also takes neither output, for dbias
// alone.
NVTEXOutcome quantize_tensor(const NVTEXCast &q, cudaStream_t stream);
NVTEXOutcome quantize_1d(const NVTEXCast &q, cudaStream_t stream);
NVTEXOutcome quantize_2d(const NVTEXCast &q, cudaStream_t stream);
NVTEXOutcome quantize_mx(const NVTEXCast &q, cudaStream_t stream);
NVTEXOutcome quantize_mx_square(const NVTEXCast &q, cudaStream_t stream);

// Functions of the input to any type, element by element, in mode 0 and without dbias. Column-wise
// output only if there is no other.
NVTEXOutcome quantize_elements(const NVTEXCast &q, cudaStream_t stream);

// Groups to 16 or 32 bits in mode 0, without dbias.
NVTEXOutcome quantize_group_wide(const NVTEXCast &q, cudaStream_t stream);

// dbias from the sums over 128 rows that a cast left in the workspace.
NVTEXOutcome sum_dbias(const NVTEXCast &q, cudaStream_t stream);
// The sums of tiles that it adds up, of high precision: with no output, or a derivative's.
bool sums_columns(const NVTEXCast &q);
NVTEXOutcome sum_columns(const NVTEXCast &q, cudaStream_t stream);

NVTEXOutcome dequantize_blocks(const NVTEXDequantizeArgs &a, cudaStream_t stream);

}  // namespace nvte
