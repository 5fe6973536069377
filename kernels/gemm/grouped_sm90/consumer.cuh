// A consumer: a warpgroup that multiplies 64 rows of a tile. There are two of them.
//
// kPromote, H200, November 2026, TFLOP/s: 1160 without promotion, 727 with, 683 (scales in blocks
// of 1 x 128 of both operands) to 715 with scales in blocks.
#pragma once

#include "common/wgmma.cuh"
#include "epilogue.cuh"

namespace nvte {
namespace sm90_grouped {

template <class C>
__device__ __forceinline__ void consume_tiles(const Params &p, const unsigned char *shared,
                                              Control<C> &control, int w) {
  PipelineState<C::kStages> at;
  PipelineState<kTiles> slot;
  const unsigned lane = threadIdx.x % 32;
  // Both blocks of a cluster copy to both, so that a stage is released at both. The threads of a
  // warp meet before, because all of them have read scales.
  [[maybe_unused]] const unsigned other = cluster_ctarank() ^ 1;
  const auto release = [&](int stage) {
    if constexpr (C::kPromote) {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control.stages.empty[stage]);
      if (lane == 1) mbarrier_arrive_remote(&control.stages.empty[stage], other);
    } else {
      if (lane < 2) mbarrier_arrive_remote(&control.stages.empty[stage], lane);
    }
  };
  const uint32_t base = shared_address(shared);
  const uint64_t rows_at = C::kMnRows ? descriptor_mn_major(base + w * kChunkBytes, kChunkBytes)
                                      : descriptor_k_major(base + w * kChunkBytes);
  const uint64_t cols_at = C::kMnCols ? descriptor_mn_major(base + C::kRowBytes, kChunkBytes)
                                      : descriptor_k_major(base + C::kRowBytes);
  float *staging = control.staging[(threadIdx.x - C::kProducerThreads) / 32];
  constexpr uint32_t kRowStep = C::kMnRows ? 2048 : 32, kColStep = C::kMnCols ? 2048 : 32;
  for (;;) {
    control.tiles.consumer_wait(slot);
    const Tile &t = control.tile[slot.stage];
    const Problem *problem = t.problem;
    // The shuffles tell the compiler that all lanes of a warp have the same values.
    if (__shfl_sync(0xffffffff, problem == nullptr, 0)) break;
    const int row = t.row + 64 * w, col = t.col;
    const int blocks = __shfl_sync(0xffffffff, t.blocks, 0);
    const bool any = row < problem->n && col < problem->m;
    const int products = __shfl_sync(0xffffffff, any ? blocks : 0, 0);
    float d[C::kCols / 2];
#pragma unroll
    for (int i = 0; i < C::kCols / 2; ++i) d[i] = 0.0f;
    pin(d);
    const auto multiply = [&](float (&sum)[C::kCols / 2], bool add) {
      const uint64_t rows = advance_descriptor(rows_at, at.stage * C::kStageBytes),
                     cols = advance_descriptor(cols_at, at.stage * C::kStageBytes);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < C::kSteps; ++s) {
        const uint64_t x = advance_descriptor(rows, s * kRowStep),
                       y = advance_descriptor(cols, s * kColStep);
        if constexpr (C::kBytes == 2) {
          Product<typename C::In, C::kCols>::template shared<C::kMnRows, C::kMnCols>(sum, x, y,
                                                                                     add || s > 0);
        } else {
          Product<typename C::In, C::kCols>::shared(sum, x, y, add || s > 0);
        }
      }
      wgmma_commit_group();
    };
    if constexpr (C::kPromote) {
      const bool rows_2d = p.rows_mode == NVTE_BLOCK_SCALING_2D,
                 cols_2d = p.cols_mode == NVTE_BLOCK_SCALING_2D;
      const bool scaled = p.rows_mode != NVTE_DELAYED_TENSOR_SCALING;
      // Where one operand has one scale for all of its part of the tile: one for each 128 of the
      // inner dimension.
      const float *tile_scales =
          rows_2d || cols_2d ? element<float>(rows_2d ? problem->rows_scales : problem->cols_scales,
                                              static_cast<size_t>((rows_2d ? t.row : col) / 128) *
                                                  static_cast<size_t>((blocks + 3) / 4 * 4))
                             : nullptr;
      float next = tile_scales != nullptr && products > 0 ? tile_scales[0] : 1.0f;
#pragma unroll 1
      for (int i = 0; i < products; ++i) {
        float part[C::kCols / 2];
        control.stages.consumer_wait(at);
        multiply(part, false);
        const float tile_scale = next;
        if (tile_scales != nullptr && i + 1 < products) next = tile_scales[i + 1];
        float row_scale[2] = {tile_scale, tile_scale};
        if (scaled && !rows_2d) {
          const float *from = control.row_scales[at.stage] + 64 * w + threadIdx.x % 128 / 32 * 16;
#pragma unroll
          for (int h = 0; h < 2; ++h) row_scale[h] = from[lane / 4 + 8 * h];
        }
        wgmma_wait_group<0>();
        pin(part);
        const float *col_scales = control.col_scales[at.stage] + 2 * (lane % 4);
        // The scale of B comes first unless it is the tile's.
        const auto promote = [&](auto first, auto second) {
#pragma unroll
          for (int j = 0; j < C::kCols / 2; ++j) {
            d[j] = __fmaf_rn(__fmul_rn(part[j], first(j)), second(j), d[j]);
          }
        };
        const auto of_row = [&](int j) { return row_scale[j / 2 % 2]; };
        const auto of_col = [&](int j) { return col_scales[j / 4 * 8 + j % 2]; };
        const auto of_tile = [&](int) { return tile_scale; };
        if (!scaled || cols_2d) {
          promote(of_row, of_tile);
        } else if (rows_2d) {
          promote(of_col, of_tile);
        } else {
          promote(of_row, of_col);
        }
        release(at.stage);
        at.advance();
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < products; ++i) {
        control.stages.consumer_wait(at);
        multiply(d, true);
        wgmma_wait_group<1>();
        if (i > 0) release(at.stage == 0 ? C::kStages - 1 : at.stage - 1);
        at.advance();
      }
      wgmma_wait_group<0>();
      pin(d);
      if (products > 0) release(at.stage == 0 ? C::kStages - 1 : at.stage - 1);
    }
#pragma unroll 1
    for (int i = products; i < blocks; ++i, at.advance()) {
      control.stages.consumer_wait(at);
      release(at.stage);
    }
    if (any) {
      const Output out = {
          problem->c,     problem->d,
          problem->n,     problem->m,
          problem->alpha, problem->beta,
          p.d_dtype,      C::kPromote && p.rows_mode != NVTE_DELAYED_TENSOR_SCALING};
      if (p.d_dtype == kNVTEFloat32) {
        write_tile<4>(out, row, col, d, staging);
      } else {
        write_tile<2>(out, row, col, d, staging);
      }
    }
    // All lanes have read the description of the tile, also where there were no products.
    __syncwarp();
    if (lane == 0) control.tiles.consumer_release(slot);
    slot.advance();
  }
}

}  // namespace sm90_grouped
}  // namespace nvte
