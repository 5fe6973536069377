#ifndef NVTE_BACKEND_SCALING_H
#define NVTE_BACKEND_SCALING_H

/* Generated from src/scaling.rs by tests/abi.rs. */

#include "nvte/types.h"

/**
 * ROW(mode, lines, length, line_padding, block_padding, transposes, block_major, scale_bytes) of
 * each scaling mode.
 *
 * `lines`, `length`: lines that share a scale, and elements of a line that do; 0 if the tensor has
 * one scale. `line_padding`, `block_padding`: lines and blocks of the scale matrix are rounded up
 * to multiples of these. `transposes`: column-wise data and their scales are stored transposed.
 * `block_major`: scales of one block of all lines lie side by side, not those of one line.
 */
#define NVTEX_SCALING_MODES(ROW) \
  ROW(NVTE_DELAYED_TENSOR_SCALING, 0, 0, 1, 1, true, false, 4) \
  ROW(NVTE_MXFP8_1D_SCALING, 1, 32, 128, 4, false, false, 1) \
  ROW(NVTE_BLOCK_SCALING_1D, 1, 128, 1, 1, true, true, 4) \
  ROW(NVTE_BLOCK_SCALING_2D, 128, 128, 1, 1, true, false, 4) \
  ROW(NVTE_NVFP4_1D_SCALING, 1, 16, 128, 4, true, false, 1)

#endif  /* NVTE_BACKEND_SCALING_H */
