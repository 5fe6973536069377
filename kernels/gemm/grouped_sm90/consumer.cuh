// A consumer: a warpgroup that multiplies 64 rows of a tile. There are two of them.
//
// Where sums of 128 of the inner dimension are promoted, a consumer does so for half of its columns
// at a time. For each of them tensor cores take 256 cycles, and the promotion 64 FFMA of each
// thread (128 FP32 instructions and 16 loads of scales if both operands have a scale for each row)
// of the 256 issue slots of a scheduler, while the other consumer multiplies. Other parts of the
// columns, three consumers and turns of them are no faster; BENCHMARKS.md has what was measured.
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

// A value that all lanes of the warp have, as the compiler knows of what a reduction gives: then it
// keeps what follows from it in registers of the warp, of which descriptors are made at once.
__device__ __forceinline__ int uniform(int value) {
  return static_cast<int>(__reduce_or_sync(0xffffffff, static_cast<unsigned>(value)));
}

// Which scales partial sums are multiplied by.
enum class Scales {
  kNone,
  kBlockCols,  // One for each row, one for each 128 columns.
  kBlockRows,  // One for the rows of the tile, one for each column.
  kLines,      // One for each row, one for each column.
};

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

// Scales of a stage, as a thread needs them for the sums of its rows.
struct StageScales {
  float row[2];    // Of its two rows of each 16.
  float block[2];  // Of each half of the columns, or the first of the rows.
};

template <class C, Scales kScales>
__device__ __forceinline__ StageScales read_scales(const Control<C> &control, int stage,
                                                   int block) {
  StageScales scales = {{1.0f, 1.0f}, {1.0f, 1.0f}};
  if constexpr (kScales == Scales::kBlockCols || kScales == Scales::kLines) {
    const float *from = control.row_scales[stage] + (threadIdx.x - C::kProducerThreads) / 32 * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) scales.row[h] = from[current_lane() / 4 + 8 * h];
  }
  if constexpr (kScales == Scales::kBlockCols || kScales == Scales::kBlockRows) {
#pragma unroll
    for (int half = 0; half < (kScales == Scales::kBlockRows ? 1 : 2); ++half) {
      scales.block[half] = control.block_scales[stage][half][block % 4];
    }
  }
  return scales;
}

// Scales of columns, which are loaded a few at a time before those that are used.
constexpr int kColBatch = 4;
struct ColScales {
  float2 of[kColBatch];  // Of two columns of each 8.

  __device__ __forceinline__ void load(const float *scales, int first) {
    const float *from = scales + 8 * first + 2 * (current_lane() % 4);
#pragma unroll
    for (int i = 0; i < kColBatch; ++i) of[i] = *reinterpret_cast<const float2 *>(from + 8 * i);
  }
};

// Adds the sums `part` of a stage and half of the columns to those of the tile. `next`: scales of
// the first columns, if every column has one.
template <class C, Scales kScales>
__device__ __forceinline__ void promote(const StageScales &scales, const float *col_scales,
                                        ColScales &next, int half,
                                        const float (&part)[kPartCols / 2],
                                        float (&d)[C::kCols / 2]) {
  float *const sum = d + half * kPartCols / 2;
  if constexpr (kScales == Scales::kNone) {
#pragma unroll
    for (int j = 0; j < kPartCols / 2; ++j) sum[j] += part[j];
  } else if constexpr (kScales == Scales::kBlockCols) {
    const float scale[2] = {scales.row[0] * scales.block[half], scales.row[1] * scales.block[half]};
#pragma unroll
    for (int j = 0; j < kPartCols / 2; ++j) {
      sum[j] = __fmaf_rn(part[j], scale[j / 2 % 2], sum[j]);
    }
  } else {
#pragma unroll
    for (int first = 0; first < kPartCols / 8; first += kColBatch) {
      const ColScales cols = next;
      if (first + kColBatch < kPartCols / 8) next.load(col_scales, first + kColBatch);
#pragma unroll
      for (int j = 4 * first; j < 4 * (first + kColBatch); ++j) {
        const float2 both = cols.of[j / 4 - first];
        const float own = j % 2 == 0 ? both.x : both.y;
        sum[j] = kScales == Scales::kBlockRows
                     ? __fmaf_rn(part[j], own * scales.block[0], sum[j])
                     : __fmaf_rn(__fmul_rn(part[j], scales.row[j / 2 % 2]), own, sum[j]);
      }
    }
  }
}

// Multiplies a tile of `blocks` stages, whose partial sums are promoted. What does not depend on
// the products comes while they are made: the stage before goes back by `release`, the next one is
// waited for, and its scales are read.
template <class C, Scales kScales, class Release>
__device__ __forceinline__ void multiply_promoted(Control<C> &control, Places<C::kStages> &at,
                                                  uint64_t rows_at, uint64_t cols_at, int blocks,
                                                  int halves, float (&d)[C::kCols / 2],
                                                  Release release) {
  if (blocks == 0) return;
  control.stages.consumer_wait(at.stage());
  StageScales next = read_scales<C, kScales>(control, at.stage().stage, 0);
#pragma unroll 1
  for (int i = 0; i < blocks; ++i) {
    const int stage = at.stage().stage;
    const StageScales scales = next;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half == halves) break;
      float part[kPartCols / 2];
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < C::kSteps; ++s) {
        Product<typename C::In, kPartCols>::shared(
            part, advance_descriptor(rows_at, stage * C::kStageBytes + s * 32),
            advance_descriptor(cols_at, stage * C::kStageBytes + half * kPartCols * 128 + s * 32),
            s > 0);
      }
      wgmma_commit_group();
      if (half == 0 && i > 0) release(at.last_stage());
      if (half + 1 == halves) {
        at.advance_stage();
        if (i + 1 < blocks) {
          control.stages.consumer_wait(at.stage());
          next = read_scales<C, kScales>(control, at.stage().stage, i + 1);
        }
      }
      const float *const col_scales = control.col_scales[stage] + half * kPartCols;
      ColScales cols;
      if constexpr (kScales == Scales::kBlockRows || kScales == Scales::kLines) {
        cols.load(col_scales, 0);
      }
      wgmma_wait_group<0>();
      pin(part);
      promote<C, kScales>(scales, col_scales, cols, half, part, d);
    }
  }
  release(at.last_stage());
}

// Four scales that lie behind each other in shared memory.
__device__ __forceinline__ float4 load_scales(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

// A descriptor in registers of the warp.
__device__ __forceinline__ uint64_t uniform_descriptor(uint64_t operand) {
  return (operand & 0xffffffff00000000) | static_cast<uint32_t>(uniform(static_cast<int>(operand)));
}

// Multiplies a tile in MXFP8: codes by the tensor cores, whose sums of each 32 are multiplied by
// both scales. A part is 64 columns of all rows, or of the upper half, so that the scale of a
// column is read once for both.
template <class C, int kHalves, class Release>
__device__ __forceinline__ void multiply_mx(Control<C> &control, Places<C::kStages> &at,
                                            uint64_t rows_at, uint64_t cols_at, int w, int blocks,
                                            float (&d)[kRows], Release release) {
  constexpr int kParts = C::kOwnCols / 64;
  const uint32_t thread = threadIdx.x % 128, scales = shared_address(control.mx_scales);
  uint32_t own_rows = scales + thread / 4 * 16,
           own_cols = scales + (kRows + w * kMxCols + thread % 4 * kMxPitch) * 4;
  asm volatile("" : "+r"(own_rows), "+r"(own_cols));
  rows_at = uniform_descriptor(rows_at), cols_at = uniform_descriptor(cols_at);
#pragma unroll 1
  for (int i = 0; i < blocks; ++i) {
    const int stage = at.stage().stage;
    control.stages.consumer_wait(at.stage());
#pragma unroll 1
    for (int s = 0; s < C::kSteps; ++s) {
      const uint32_t step = (stage * C::kSteps + s) * sizeof(control.mx_scales[0]);
      const float4 row = load_scales(own_rows + step);
      const uint64_t rows = advance_descriptor(rows_at, stage * C::kStageBytes + s * 32),
                     cols = advance_descriptor(cols_at, stage * C::kStageBytes + s * 32);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float sums[kHalves][32];
        wgmma_fence();
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          Product<typename C::In, 64>::shared(sums[half],
                                              advance_descriptor(rows, half * kChunkBytes),
                                              advance_descriptor(cols, part * kChunkBytes), false);
        }
        wgmma_commit_group();
        float4 col[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) col[j] = load_scales(own_cols + step + 64 * part + 16 * j);
        wgmma_wait_group<0>();
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          pin(sums[half]);
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            const float4 &four = col[j / 8];
            const float by_col =
                j / 4 % 2 == 0 ? (j % 2 == 0 ? four.x : four.y) : (j % 2 == 0 ? four.z : four.w);
            const float by_row =
                half == 0 ? (j / 2 % 2 == 0 ? row.x : row.y) : (j / 2 % 2 == 0 ? row.z : row.w);
            float &sum = d[64 * half + 32 * part + j];
            sum = __fmaf_rn(__fmul_rn(sums[half][j], by_row), by_col, sum);
          }
        }
      }
    }
    release(stage);
    at.advance_stage();
  }
}

template <class C>
__device__ __forceinline__ void consume_tiles(const Params &p, unsigned char *shared,
                                              Control<C> &control, int w) {
  Places<C::kStages> at;
  // Both blocks of a cluster copy to both, so that a stage is released at both. The threads of a
  // warp meet before, because all of them have read scales.
  [[maybe_unused]] const unsigned other = cluster_ctarank() ^ 1;
  const auto release = [&](int stage) {
    const int lane = current_lane();
    if constexpr (C::kMxCast) {
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
  // The first row and column of the consumer in a tile.
  const int own_row = C::kOwnRows < kRows ? w * C::kOwnRows : 0;
  const int own_col = C::kOwnCols < C::kCols ? w * C::kOwnCols : 0;
  const uint32_t rows_base = base + own_row * 128, cols_base = base + C::kRowBytes + own_col * 128;
  const uint64_t rows_at =
      C::kMnRows ? descriptor_mn_major(rows_base, kChunkBytes) : descriptor_k_major(rows_base);
  const uint64_t cols_at =
      C::kMnCols ? descriptor_mn_major(cols_base, kChunkBytes) : descriptor_k_major(cols_base);
  constexpr uint32_t kRowStep = C::kMnRows ? 2048 : 32, kColStep = C::kMnCols ? 2048 : 32;
  for (;;) {
    control.tiles.consumer_wait(at.tile());
    const Tile &t = control.tile[at.tile().stage];
    const Problem *problem = t.problem;
    if (__any_sync(0xffffffff, problem == nullptr)) break;
    const int row = t.row + own_row, col = t.col + own_col;
    const int blocks = uniform(t.blocks);
    const bool any = row < problem->n && col < problem->m;
    const int products = uniform(any ? blocks : 0);
    at.bits = uniform(at.bits);
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
    if constexpr (C::kMx) {
      if (uniform(row + 64 < problem->n) != 0) {
        multiply_mx<C, 2>(control, at, rows_at, cols_at, w, products, d, release);
      } else {
        multiply_mx<C, 1>(control, at, rows_at, cols_at, w, products, d, release);
      }
    } else if constexpr (C::kPromote) {
      const int halves = uniform(col + kPartCols < problem->m ? 2 : 1);
      const auto promote = [&](auto scales) {
        multiply_promoted<C, decltype(scales)::value>(control, at, rows_at, cols_at, products,
                                                      halves, d, release);
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
    for (int i = products; i < blocks; ++i, at.advance_stage()) {
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
      const int row = t.row + (C::kOwnRows < kRows ? w * C::kOwnRows : 0);
      const int col = t.col + (C::kOwnCols < C::kCols ? w * C::kOwnCols : 0);
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
          p.d_dtype,      !C::kMx && C::kPromote && p.rows_mode != NVTE_DELAYED_TENSOR_SCALING};
      if (C::kBulkStores && problem->stores != Stores::kWords) {
        if (threadIdx.x % 128 == 0) fence_proxy_tensormap_acquire(&problem->d_map);
      }
#pragma unroll
      for (int half = 0; half < C::kOwnRows / 64; ++half) {
        if (half > 0 && row + 64 >= problem->n) break;
        constexpr int kSums = C::kOwnCols / 2;
        const auto &sums = *reinterpret_cast<const float (*)[kSums]>(d + half * kSums);
        if (C::kBulkStores && problem->stores != Stores::kWords) {
          if constexpr (C::kBulkStores) {
            if (p.d_dtype == kNVTEFloat32) {
              store_tile<C, 4>(*problem, row + 64 * half, col, false, sums, results, w);
            } else {
              store_tile<C, 2>(*problem, row + 64 * half, col, p.d_dtype == kNVTEFloat16, sums,
                               results, w);
            }
          }
        } else if (p.d_dtype == kNVTEFloat32) {
          write_tile<4>(out, row + 64 * half, col, sums, staging);
        } else {
          write_tile<2>(out, row + 64 * half, col, sums, staging);
        }
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
