// A consumer: a warpgroup that multiplies 64 rows of a tile. There are two of them.
//
// Where sums of 128 of the inner dimension are promoted, a consumer does so for half of its columns
// at a time. For each of them tensor cores take 256 cycles, and the promotion 64 FFMA of each
// thread (128 FP32 instructions and 16 loads of scales if both operands have a scale for each row)
// of the 256 issue slots of a scheduler, while the other consumer multiplies. Turns in which one
// waits until the other has multiplied are no faster.
//
// 8 members of 2048 rows by 4096, k 7168, on an H200 at the clock that its power allows, November
// 2026, TFLOP/s: 937 with blocks of 128 x 128 of one operand, 811 with a multiplication more of
// each partial sum, 759 with blocks of 1 x 128 of both. With tiles of 128 columns, which read more
// from L2: 720 and 706.
#pragma once

#include "common/wgmma.cuh"
#include "epilogue.cuh"

namespace nvte {
namespace sm90_grouped {

// Columns whose products are promoted at a time: both a tile's sums and these have to fit into the
// registers.
constexpr int kPartCols = 128;

// The thread's lane, asked for anew each time, because products need all registers.
__device__ __forceinline__ int current_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// Which scales partial sums are multiplied by.
enum class Scales {
  kNone,
  kBlockCols,  // One for each row, one for each 128 columns.
  kBlockRows,  // One for the rows of the tile, one for each column.
  kLines,      // One for each row, one for each column.
};

// The next stage of a tile whose partial sums are promoted. It goes back by `release` as soon as
// its operands and scales have been read.
template <class C, Scales kScales, class Release>
__device__ __forceinline__ void promote_stage(Control<C> &control, uint64_t rows, uint64_t cols,
                                              int stage, int block, bool any, int halves,
                                              float (&d)[C::kCols / 2], Release release) {
  constexpr bool kRowScales = kScales == Scales::kBlockCols || kScales == Scales::kLines;
  constexpr bool kBlockScales = kScales == Scales::kBlockCols || kScales == Scales::kBlockRows;
  constexpr bool kColScales = kScales == Scales::kBlockRows || kScales == Scales::kLines;
  const int lane = current_lane();
  float row_scale[2] = {1.0f, 1.0f};
  if constexpr (kRowScales) {
    const float *from = control.row_scales[stage] + (threadIdx.x - C::kProducerThreads) / 32 * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) row_scale[h] = from[lane / 4 + 8 * h];
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == halves) break;
    if (!any) continue;
    float part[kPartCols / 2];
    const auto multiply = [&](int s) {
      Product<typename C::In, kPartCols>::shared(
          part, advance_descriptor(rows, s * 32),
          advance_descriptor(cols, half * kPartCols * 128 + s * 32), s > 0);
    };
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < C::kSteps; ++s) multiply(s);
    wgmma_commit_group();
    const float block_scale =
        kBlockScales
            ? control.block_scales[stage][kScales == Scales::kBlockRows ? 0 : half][block % 4]
            : 1.0f;
    const float scale[2] = {row_scale[0] * block_scale, row_scale[1] * block_scale};
    // Scales of columns are loaded before those that are used, the first while products are made.
    constexpr int kBatch = 4;
    float2 next[kBatch];
    const auto load_scales = [&](int first) {
      const float *from = control.col_scales[stage] + half * kPartCols + 2 * (lane % 4);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        next[i] = *reinterpret_cast<const float2 *>(from + 8 * (first + i));
      }
    };
    if constexpr (kColScales) load_scales(0);
    wgmma_wait_group<0>();
    pin(part);
    if constexpr (!kColScales) {
      // The values have arrived before the stage goes back.
      asm volatile("" ::"f"(scale[0]), "f"(scale[1]) : "memory");
      if (half + 1 == halves) release();
    }
    float *const sum = d + half * kPartCols / 2;
    if constexpr (kScales == Scales::kNone) {
#pragma unroll
      for (int j = 0; j < kPartCols / 2; ++j) sum[j] += part[j];
    } else if constexpr (kScales == Scales::kBlockCols) {
#pragma unroll
      for (int j = 0; j < kPartCols / 2; ++j) {
        sum[j] = __fmaf_rn(part[j], scale[j / 2 % 2], sum[j]);
      }
    } else {
#pragma unroll
      for (int first = 0; first < kPartCols / 8; first += kBatch) {
        float2 scales[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) scales[i] = next[i];
        if (first + kBatch < kPartCols / 8) load_scales(first + kBatch);
#pragma unroll
        for (int j = 4 * first; j < 4 * (first + kBatch); ++j) {
          const float2 both = scales[j / 4 - first];
          const float own = j % 2 == 0 ? both.x : both.y;
          sum[j] = kScales == Scales::kBlockRows
                       ? __fmaf_rn(part[j], own * block_scale, sum[j])
                       : __fmaf_rn(__fmul_rn(part[j], row_scale[j / 2 % 2]), own, sum[j]);
        }
      }
    }
  }
  if (kColScales || !any) release();
}

// Where a consumer is in the rings of stages and of tiles, in one register.
template <int kStages>
struct Places {
  uint32_t bits = 0;  // Stage, 3 bits, and its phase; tile, 1 bit, and its phase.
  static_assert(kStages <= 8 && kTiles == 2, "the bits are as many as needed");

  __device__ __forceinline__ PipelineState<kStages> stage() const {
    return {static_cast<int>(bits % 8), bits / 8 % 2};
  }
  __device__ __forceinline__ int last_stage() const {
    return bits % 8 == 0 ? kStages - 1 : static_cast<int>(bits % 8) - 1;
  }
  __device__ __forceinline__ PipelineState<kTiles> tile() const {
    return {static_cast<int>(bits / 16 % 2), bits / 32 % 2};
  }
  __device__ __forceinline__ void advance_stage() {
    bits = bits % 8 == kStages - 1 ? (bits - (kStages - 1)) ^ 8 : bits + 1;
  }
  __device__ __forceinline__ void advance_tile() { bits = (bits + 16) % 64; }
};

template <class C>
__device__ __forceinline__ void consume_tiles(const Params &p, unsigned char *shared,
                                              Control<C> &control, int w) {
  Places<C::kStages> at;
  // Both blocks of a cluster copy to both, so that a stage is released at both. The threads of a
  // warp meet before, because all of them have read scales.
  [[maybe_unused]] const unsigned other = cluster_ctarank() ^ 1;
  const auto release = [&](int stage) {
    const int lane = current_lane();
    if constexpr (C::kMx) {
      if (lane == 0) mbarrier_arrive(&control.stages.empty[stage]);
    } else if constexpr (C::kPromote) {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&control.stages.empty[stage]);
      if (lane == 1) mbarrier_arrive_remote(&control.stages.empty[stage], other);
    } else {
      if (lane < 2) {
        mbarrier_arrive_remote(&control.stages.empty[stage], static_cast<unsigned>(lane));
      }
    }
  };
  const uint32_t base = shared_address(shared);
  const uint64_t rows_at = C::kMnRows ? descriptor_mn_major(base + w * kChunkBytes, kChunkBytes)
                                      : descriptor_k_major(base + w * kChunkBytes);
  const uint64_t cols_at = C::kMnCols ? descriptor_mn_major(base + C::kRowBytes, kChunkBytes)
                                      : descriptor_k_major(base + C::kRowBytes);
  constexpr uint32_t kRowStep = C::kMnRows ? 2048 : 32, kColStep = C::kMnCols ? 2048 : 32;
  for (;;) {
    control.tiles.consumer_wait(at.tile());
    const Tile &t = control.tile[at.tile().stage];
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
      const int stage = at.stage().stage;
      const uint64_t rows = advance_descriptor(rows_at, stage * C::kStageBytes),
                     cols = advance_descriptor(cols_at, stage * C::kStageBytes);
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
      const int halves = __shfl_sync(0xffffffff, col + kPartCols < problem->m ? 2 : 1, 0);
      const auto promote = [&](auto scales) {
#pragma unroll 1
        for (int i = 0; i < blocks; ++i, at.advance_stage()) {
          const int stage = at.stage().stage;
          control.stages.consumer_wait(at.stage());
          const auto release_stage = [&] { release(stage); };
          promote_stage<C, decltype(scales)::value>(
              control, advance_descriptor(rows_at, stage * C::kStageBytes),
              advance_descriptor(cols_at, stage * C::kStageBytes), stage, i, any, halves, d,
              release_stage);
        }
      };
      if (p.rows_mode == NVTE_DELAYED_TENSOR_SCALING) {
        promote(std::integral_constant<Scales, Scales::kNone>{});
      } else if (p.cols_mode == NVTE_BLOCK_SCALING_2D) {
        promote(std::integral_constant<Scales, Scales::kBlockCols>{});
      } else if (p.rows_mode == NVTE_BLOCK_SCALING_2D) {
        promote(std::integral_constant<Scales, Scales::kBlockRows>{});
      } else {
        promote(std::integral_constant<Scales, Scales::kLines>{});
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < products; ++i, at.advance_stage()) {
        control.stages.consumer_wait(at.stage());
        multiply(d, true);
        wgmma_wait_group<1>();
        if (i > 0) release(at.last_stage());
      }
      wgmma_wait_group<0>();
      pin(d);
      if (products > 0) release(at.last_stage());
    }
#pragma unroll 1
    for (int i = C::kPromote ? blocks : products; i < blocks; ++i, at.advance_stage()) {
      control.stages.consumer_wait(at.stage());
      release(at.stage().stage);
    }
    if (any) {
      // The description is looked up and read again, because the products need all registers.
      int place = at.tile().stage;
      asm volatile("" : "+r"(place));
      const Tile &t = control.tile[place];
      const Problem *problem = t.problem;
      const int warp = static_cast<int>((threadIdx.x - C::kProducerThreads) / 32);
      const int w = warp / 4;
      const int row = t.row + 64 * w, col = t.col;
      unsigned char *const results = shared + C::kAtResults + w * C::kResultBytes;
      float *const staging =
          C::kBulkStores ? reinterpret_cast<float *>(results) + warp % 4 * 16 * kStagingPitch
                         : control.staging[warp];
      if (C::kBulkStores && problem->stores == Stores::kWords) {
        // The staging memory is that of results, which may still be read.
        if (threadIdx.x % 128 == 0) cp_async_bulk_wait_group_read<0>();
        bar_sync(kStoreBarrier + w, 128);
      }
      const Output out = {
          problem->c,     problem->d,
          problem->n,     problem->m,
          problem->alpha, problem->beta,
          p.d_dtype,      C::kPromote && p.rows_mode != NVTE_DELAYED_TENSOR_SCALING};
      if (C::kBulkStores && problem->stores != Stores::kWords) {
        if constexpr (C::kBulkStores) {
          if (threadIdx.x % 128 == 0) fence_proxy_tensormap_acquire(&problem->d_map);
          if (p.d_dtype == kNVTEFloat32) {
            store_tile<C, 4>(*problem, row, col, false, d, results, w);
          } else {
            store_tile<C, 2>(*problem, row, col, p.d_dtype == kNVTEFloat16, d, results, w);
          }
        }
      } else if (p.d_dtype == kNVTEFloat32) {
        write_tile<4>(out, row, col, d, staging);
      } else {
        write_tile<2>(out, row, col, d, staging);
      }
    }
    // All lanes have read the description of the tile, also where there were no products.
    __syncwarp();
    if (current_lane() == 0) {
      control.tiles.consumer_release(at.tile());
    }
    at.advance_tile();
  }
  if (C::kBulkStores && threadIdx.x % 128 == 0) cp_async_bulk_wait_group<0>();
}

}  // namespace sm90_grouped
}  // namespace nvte
