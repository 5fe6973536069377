// Products that are known to be symmetric, D = alpha A B^T + beta C + diagonal I with D [n, n], for
// compute capability 9.0: tiles on or below the diagonal are multiplied, and each is written twice.
//
// A cluster of two blocks has 256 x 256 of D, each block 128 rows, and copies half of the columns
// to both. Clusters stay on their multiprocessors and take one tile after the other. What does not
// fill all of them, at the end, is divided along k: sums of parts go to the workspace, and another
// kernel adds them in one order.
//
// H100, November 2026, BF16, us: 4096 x 16384 386, 4096 x 4096 157, 8192 x 8192 786. What limits
// are stores, during which the tensor cores wait: about 70 us of the first two.

#include "common/dtype.cuh"
#include "common/launch.cuh"
#include "common/limits.cuh"
#include "common/pipeline.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {
namespace {

// Compilers refuse clusters for GPUs before compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NVTE_PAIRS __cluster_dims__(2, 1, 1)
#else
#define NVTE_PAIRS
#endif

constexpr int kTile = 256, kRows = 128, kDepth = 64, kStages = 4;
constexpr int kChunk = 64, kChunkBytes = kChunk * 128;
constexpr int kRowBytes = kRows * 128, kStageBytes = kRowBytes + kTile * 128;
constexpr int kThreads = 384;
// Columns of results that a warp turns round at a time, and floats from one row of them to the
// next.
constexpr int kStagingCols = 32, kStagingPitch = 40;

struct Params {
  CUtensorMap a, b;
  const void *c;
  void *d;
  float *sums;  // Of parts of tiles.
  int n, blocks;
  unsigned whole, tiles, split;  // Tiles that are not divided, all, and parts of each other tile.
  float alpha, beta, diagonal;
};

struct Control {
  Pipeline<kStages> stages;
  alignas(16) float staging[8][16 * kStagingPitch];
};
constexpr int kSharedBytes = kStages * kStageBytes + static_cast<int>(sizeof(Control)) + 1024;
static_assert(kSharedBytes <= most_shared(90), "shared memory of a block");

// What a cluster does at a time: a tile, or a part of it along k.
struct Unit {
  int row, col;       // In tiles.
  int first, blocks;  // Along k.
  int part;           // The place of its sums, or -1.
};

__host__ __device__ inline Unit place_of(unsigned tile) {
  int row = static_cast<int>((sqrtf(8.0f * static_cast<float>(tile) + 1.0f) - 1.0f) / 2.0f);
  while (static_cast<unsigned>(row + 1) * static_cast<unsigned>(row + 2) / 2 <= tile) ++row;
  while (static_cast<unsigned>(row) * static_cast<unsigned>(row + 1) / 2 > tile) --row;
  return {row, static_cast<int>(tile) - row * (row + 1) / 2, 0, 0, -1};
}

__device__ __forceinline__ Unit unit_of(const Params &p, unsigned index) {
  if (index < p.whole) {
    Unit unit = place_of(index);
    unit.blocks = p.blocks;
    return unit;
  }
  const unsigned part = index - p.whole;
  Unit unit = place_of(p.whole + part / p.split);
  const int i = static_cast<int>(part % p.split), parts = static_cast<int>(p.split);
  unit.first = p.blocks * i / parts;
  unit.blocks = p.blocks * (i + 1) / parts - unit.first;
  unit.part = static_cast<int>(part);
  return unit;
}

__device__ __forceinline__ unsigned units_of(const Params &p) {
  return p.whole + (p.tiles - p.whole) * p.split;
}

template <bool kMn>
__device__ __forceinline__ void produce(const Params &p, unsigned char *shared, Control &control,
                                        int rank) {
  PipelineState<kStages> at;
  for (unsigned u = blockIdx.x / 2; u < units_of(p); u += gridDim.x / 2) {
    const Unit unit = unit_of(p, u);
    const int row = unit.row * kTile + rank * kRows, col = unit.col * kTile + rank * kRows;
    for (int i = 0; i < unit.blocks; ++i, at.advance()) {
      unsigned char *rows = shared + at.stage * kStageBytes, *cols = rows + kRowBytes;
      control.stages.producer_acquire(at);
      control.stages.producer_expect(at, kStageBytes);
      uint64_t *full = control.stages.barrier(at);
      const int inner = (unit.first + i) * kDepth;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int outer = row + j * kChunk;
        cp_async_bulk_tensor_load(rows + j * kChunkBytes, &p.a, full,
                                  {kMn ? outer : inner, kMn ? inner : outer});
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int outer = col + j * kChunk;
        cp_async_bulk_tensor_load_multicast(cols + (2 * rank + j) * kChunkBytes, &p.b, full,
                                            kMn ? outer : inner, kMn ? inner : outer);
      }
    }
  }
  // A block must not end before the other one has arrived at its barriers for the last time.
  for (int i = 0; i < kStages; ++i, at.advance()) control.stages.producer_acquire(at);
}

// Writes 16 rows of a warp to D and to its mirror image. Sums are turned round in shared memory.
template <class T>
__device__ __forceinline__ void write_twice(const Params &p, int row, int col,
                                            const float (&sum)[kTile / 2], float *staging) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= p.n) return;
  // Only there do rows and columns meet.
  const bool diagonal = row < col + kTile && col < row + 16;
#pragma unroll
  for (int part = 0; part < kTile / kStagingCols; ++part) {
    const int first = col + part * kStagingCols;
    if (first >= p.n) break;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kStagingCols / 4; ++i) {
      const int j = i / 2, h = i % 2;
      const float *from = sum + part * (kStagingCols / 2) + 4 * j + 2 * h;
      *reinterpret_cast<float2 *>(staging + (lane / 4 + 8 * h) * kStagingPitch + 8 * j +
                                  2 * (lane % 4)) = make_float2(from[0], from[1]);
    }
    __syncwarp();
    float v[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = lane / 8 + 4 * i, x = lane % 8 * 4;
      const float4 four = *reinterpret_cast<const float4 *>(staging + r * kStagingPitch + x);
      const float all[4] = {four.x, four.y, four.z, four.w};
      const size_t at = static_cast<size_t>(row + r) * p.n + first + x;
      const bool inside = first + x < p.n;
      float c[4] = {};
      if (p.beta != 0.0f) to_float(load<T, 4>(p.c, at, inside), c);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        v[i][e] = p.alpha * all[e] + p.beta * c[e] + (row + r == first + x + e ? p.diagonal : 0.0f);
      }
      if (!inside) continue;
      if (!diagonal) {
        store(p.d, at, from_float<T>(v[i]));
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float one[1] = {v[i][e]};
          if (row + r >= first + x + e) store(p.d, at + e, from_float<T>(one));
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<float4 *>(staging + (lane / 8 + 4 * i) * kStagingPitch + lane % 8 * 4) =
          make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
    }
    __syncwarp();
    // Two lanes write a sector of 32 bytes.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int x = 16 * i + lane / 2, r = lane % 2 * 8;
      if (first + x >= p.n) continue;
      float f[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) f[e] = staging[(r + e) * kStagingPitch + x];
      const size_t at = static_cast<size_t>(first + x) * p.n + row + r;
      if (!diagonal) {
        store(p.d, at, from_float<T>(f));
        continue;
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const float one[1] = {f[e]};
        if (row + r + e > first + x) store(p.d, at + e, from_float<T>(one));
      }
    }
  }
}

template <class T, bool kMn>
__device__ __forceinline__ void consume(const Params &p, unsigned char *shared, Control &control,
                                        int w, int rank) {
  PipelineState<kStages> at;
  const uint32_t base = shared_address(shared);
  const uint32_t rows_base = base + w * kChunkBytes, cols_base = base + kRowBytes;
  const uint64_t rows_at =
      kMn ? descriptor_mn_major(rows_base, kChunkBytes) : descriptor_k_major(rows_base);
  const uint64_t cols_at =
      kMn ? descriptor_mn_major(cols_base, kChunkBytes) : descriptor_k_major(cols_base);
  constexpr uint32_t kStep = kMn ? 2048 : 32;
  // Both blocks of a cluster copy to both, so that a stage is released at both.
  const auto release = [&](int stage) {
    const unsigned lane = threadIdx.x % 32;
    if (lane < 2) mbarrier_arrive_remote(&control.stages.empty[stage], lane);
  };
  for (unsigned u = blockIdx.x / 2; u < units_of(p); u += gridDim.x / 2) {
    const Unit unit = unit_of(p, u);
    float sum[kTile / 2];
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) sum[i] = 0.0f;
    pin(sum);
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < unit.blocks; ++i) {
      control.stages.consumer_wait(at);
      const uint64_t rows = advance_descriptor(rows_at, at.stage * kStageBytes),
                     cols = advance_descriptor(cols_at, at.stage * kStageBytes);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        Product<T, kTile>::template shared<kMn, kMn>(sum, advance_descriptor(rows, s * kStep),
                                                     advance_descriptor(cols, s * kStep), true);
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (i > 0) release(before);
      before = at.stage;
      at.advance();
    }
    wgmma_wait_group<0>();
    pin(sum);
    release(before);
    const int warp = static_cast<int>(threadIdx.x / 32 % 4), lane = threadIdx.x % 32;
    const int in = rank * kRows + 64 * w + 16 * warp;  // The first row of the warp in the tile.
    if (unit.part < 0) {
      write_twice<T>(p, unit.row * kTile + in, unit.col * kTile, sum,
                     control.staging[4 * w + warp]);
    } else {
      float *const to = p.sums + (static_cast<size_t>(unit.part) * kTile + in) * kTile;
#pragma unroll
      for (int j = 0; j < kTile / 4; ++j) {
        *reinterpret_cast<float2 *>(to + (lane / 4 + 8 * (j % 2)) * kTile + 8 * (j / 2) +
                                    2 * (lane % 4)) = make_float2(sum[2 * j], sum[2 * j + 1]);
      }
    }
  }
}

template <class T, bool kMn>
__global__ void NVTE_PAIRS __launch_bounds__(kThreads, 1)
    symmetric_gemm_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *const shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto &control = *reinterpret_cast<Control *>(shared + kStages * kStageBytes);
  if (threadIdx.x == 0) {
    control.stages.init(1, 16);
    fence_mbarrier_init();
  }
  cluster_sync();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int rank = static_cast<int>(cluster_ctarank());
  if (threadIdx.x < 128) {
    setmaxnreg_dec<40>();
    if (threadIdx.x == 0) produce<kMn>(p, shared, control, rank);
  } else {
    setmaxnreg_inc<232>();
    // The shuffle tells the compiler that all lanes of a warp have the same number.
    const int w = static_cast<int>(__shfl_sync(0xffffffff, (threadIdx.x - 128) / 128, 0));
    consume<T, kMn>(p, shared, control, w, rank);
  }
#endif
}

// Adds the parts of tiles that were divided: a block has 32 x 32 of a tile.
constexpr int kSquare = 32;
template <class T>
__global__ void __launch_bounds__(256) symmetric_gemm_sum_kernel(const __grid_constant__ Params p) {
  __shared__ float square[kSquare][kSquare + 1];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kAcross = kTile / kSquare;
  const unsigned tile = blockIdx.x / (kAcross * kAcross), in = blockIdx.x % (kAcross * kAcross);
  const Unit unit = place_of(p.whole + tile);
  const int r = static_cast<int>(in) / kAcross * kSquare,
            c = static_cast<int>(in) % kAcross * kSquare;
  const int row = unit.row * kTile + r, col = unit.col * kTile + c;
  if (col > row || row >= p.n) return;
  const int x = static_cast<int>(threadIdx.x % 32), y = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int i = 0; i < kSquare; i += 8) {
    const float *from =
        p.sums + (static_cast<size_t>(tile) * p.split * kTile + r + y + i) * kTile + c + x;
    float sum = 0.0f;
#pragma unroll 4
    for (unsigned part = 0; part < p.split; ++part) sum += from[size_t{part} * kTile * kTile];
    const size_t at = static_cast<size_t>(row + y + i) * p.n + col + x;
    const bool inside = row + y + i < p.n && col + x < p.n;
    float old[1];
    to_float(load<T, 1>(p.c, at, inside && p.beta != 0.0f), old);
    sum = p.alpha * sum + p.beta * old[0] + (row + y + i == col + x ? p.diagonal : 0.0f);
    square[y + i][x] = sum;
    const float one[1] = {sum};
    if (inside && row + y + i >= col + x) store(p.d, at, from_float<T>(one));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSquare; i += 8) {
    const float one[1] = {square[x][y + i]};
    if (row + x < p.n && col + y + i < p.n && row + x > col + y + i) {
      store(p.d, static_cast<size_t>(col + y + i) * p.n + row + x, from_float<T>(one));
    }
  }
}

template <class T, bool kMn>
NVTEXOutcome multiply(const NVTEXSymmetricGemmArgs &a, unsigned clusters, cudaStream_t stream) {
  Params p = {};
  p.c = a.c, p.d = a.d;
  p.n = static_cast<int>(a.n), p.blocks = static_cast<int>(ceil_div(a.k, kDepth));
  p.alpha = a.alpha, p.beta = a.beta, p.diagonal = a.diagonal;
  const auto rows = static_cast<unsigned>(ceil_div(a.n, kTile));
  p.tiles = rows * (rows + 1) / 2;
  p.whole = p.tiles, p.split = 1;
  auto *at = static_cast<unsigned char *>(a.workspace);
  at += (256 - reinterpret_cast<uintptr_t>(at) % 256) % 256;
  const size_t room = static_cast<unsigned char *>(a.workspace) + a.workspace_bytes > at
                          ? static_cast<unsigned char *>(a.workspace) + a.workspace_bytes - at
                          : 0;
  const unsigned rest = p.tiles % clusters;
  unsigned split = rest == 0 ? 1 : clusters / rest;
  if (split > static_cast<unsigned>(p.blocks) / 4) split = static_cast<unsigned>(p.blocks) / 4;
  if (split > 1 && size_t{rest} * split * kTile * kTile * 4 <= room) {
    p.whole = p.tiles - rest, p.split = split;
    p.sums = reinterpret_cast<float *>(at);
  }
  const uint64_t dims[2] = {kMn ? a.n : a.k, kMn ? a.k : a.n}, steps[1] = {dims[0] * 2};
  const uint32_t box[2] = {64, kChunk};
  const CUtensorMapDataType type = T::kDtype == kNVTEFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  for (const auto &[map, data] : {std::pair{&p.a, a.a}, std::pair{&p.b, a.b}}) {
    const NVTEXOutcome done = encode_tensor_map(map, type, 2, data, dims, steps, box);
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  const NVTEXOutcome done = launch_shared(symmetric_gemm_kernel<T, kMn>, dim3(2 * clusters),
                                          kThreads, kSharedBytes, stream, p);
  if (done.status != NVTEX_BACKEND_OK || p.split == 1) return done;
  return launch(symmetric_gemm_sum_kernel<T>, dim3((p.tiles - p.whole) * 64), 256, stream, p);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_symmetric_gemm(const NVTEXSymmetricGemmArgs *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXSymmetricGemmArgs &a = *args;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  if (device.arch != 90) return unimplemented("symmetric products run on compute capability 9.0");
  const bool fits = a.n % 16 == 0 && a.k % 8 == 0 && a.n <= 1u << 20 && a.k <= 1u << 29 &&
                    a.k > 0 && aligned(a.a, 16) && aligned(a.b, 16) && aligned(a.c, 16) &&
                    aligned(a.d, 16);
  if (!fits) return unimplemented("symmetric products of such sizes or addresses");
  const auto clusters = static_cast<unsigned>(device.sm_count) / 2;
  const size_t across = ceil_div(a.n, kTile);
  if (across * across <= clusters) {
    return unimplemented("whole products of so few tiles are as fast");
  }
  return dispatch<BF16, F16>(a.dtype, [&](auto tag) {
    using T = decltype(tag);
    return a.transposed ? multiply<T, true>(a, clusters, stream)
                        : multiply<T, false>(a, clusters, stream);
  });
}
