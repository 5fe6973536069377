// Products of few rows of B, n <= 16, with a weight A along k, in 16 bits: what a token, or a few
// of them, ask of a layer. Reading A is all that they cost. A thread copies tiles of A, and the
// same part along k of B, ahead to a ring in shared memory, over the ends of tiles; warps divide
// what lies there along k, and their sums are added in one order. If A is ready before the kernel
// in front has ended, the ring fills with A as soon as that leaves the multiprocessor.
//
// H200, us by n = 1, 8, 16, BF16, one after the other with A ready: A of 6144 x 4096 12.9, 13.1,
// 14.7, of 4096 x 4096 9.1, 9.4, 10.5, of 28672 x 4096 58.2, 56.0, 59.1, of 4096 x
// 14336 29.4, 28.8, 29.7 (3.2 to 4.2 TB/s). For the first: without A ready 14.2, 14.1, 14.8; half
// of the ring, so that two such kernels share a multiprocessor, 14.7, 15.1, 17.7; tiles of 32
// columns with 512 bytes of k 13.8, 14.5, 15.9, of 64 13.9, 14.9, 16.1. Bulk copies of single rows
// take 37 ns each, whatever their length: 17.9, 22.8, 28.6. FP8 gains nothing over cuBLASLt: 16
// rows, A of 16384 x 4096 20.1, of 4096 x 4096 7.8, of 4096 x 16384 19.2.

#include "common/launch.cuh"
#include "common/mma.cuh"
#include "common/tma.cuh"
#include "epilogue.cuh"

namespace nvte {
namespace {

constexpr size_t kMostRows = 16;
// Columns of D of a tile.
constexpr int kTile = 16;
// A stage has blocks of 128 bytes along k, one for each warp that multiplies: lines of 128 bytes,
// by block and row.
constexpr int kLine = 128, kWarps = 8, kDepth = kWarps * kLine / 2;
constexpr int kThreads = 32 * (kWarps + 1);
// Bytes of the ring and the sums.
constexpr int kSharedBytes = 200 * 1024, kMostStages = 8;

struct Params {
  CUtensorMap a_map, b_map;
  NVTEXGemmArgs args;
  int m, n;
  int tiles, chunks;  // Along m, and stages along k.
  int stages, stage_bytes;
  bool vectors;  // Four elements of a row of D, C, bias and aux may be accessed at once.
};

struct Barriers {
  uint64_t full[kMostStages], empty[kMostStages];
};

// A piece of 16 bytes of a line of a stage, which the copies have permuted by the line's number.
__device__ __forceinline__ uint32_t place_of(int line, int piece) {
  return static_cast<uint32_t>(line * kLine + ((piece ^ (line & 7)) << 4));
}

// Fills the ring: the stages of all tiles of the block, in turn. By one thread.
__device__ __forceinline__ void produce(const Params &p, Barriers &barriers, unsigned char *ring) {
  const auto copy_a = [&](int tile, int chunk, int stage) {
    mbarrier_arrive_expect_tx(&barriers.full[stage], (kTile + p.n) * kWarps * kLine);
    cp_async_bulk_tensor_load(ring + stage * p.stage_bytes, &p.a_map, &barriers.full[stage],
                              {0, tile * kTile, chunk * kWarps});
  };
  const auto copy_b = [&](int chunk, int stage) {
    cp_async_bulk_tensor_load(ring + stage * p.stage_bytes + kTile * kWarps * kLine, &p.b_map,
                              &barriers.full[stage], {0, 0, chunk * kWarps});
  };
  const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
  const int count = (p.tiles - first + step - 1) / step * p.chunks;
  const int ahead = p.args.a_is_ready ? min(p.stages, count) : 0;
  const auto tile_of = [&](int i) { return first + i / p.chunks * step; };
  for (int i = 0; i < ahead; ++i) copy_a(tile_of(i), i % p.chunks, i);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (int i = 0; i < ahead; ++i) copy_b(i % p.chunks, i);
  int stage = ahead % p.stages, tile = tile_of(ahead), chunk = ahead % p.chunks;
  uint32_t phase = ahead == p.stages ? 0 : 1;
  for (int i = ahead; i < count; ++i) {
    mbarrier_wait(&barriers.empty[stage], phase);
    copy_a(tile, chunk, stage);
    copy_b(chunk, stage);
    if (++chunk == p.chunks) chunk = 0, tile += step;
    if (++stage == p.stages) stage = 0, phase ^= 1;
  }
}

// Blocks take tiles in turn.
template <class T, int kRowTiles>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kRows = 8 * kRowTiles;
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ Barriers barriers;
  // Of two tiles, so that one is written while the other is read.
  __shared__ __align__(16) float all[2][kWarps][kRows][kTile + 4];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      mbarrier_init(&barriers.full[i], 1);
      mbarrier_init(&barriers.empty[i], kWarps);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp == kWarps) {
    if (lane == 0) produce(p, barriers, ring);
    return;
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();

  // Where the lane's rows of four matrices lie, in each 64 bytes of the warp's block: two times 16
  // rows of A, and four times eight of B.
  uint32_t a_at[4], b_at[kRowTiles][2];
  const uint32_t base = shared_address(ring);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a_at[i] = base + place_of(warp * kTile + lane % 16, 2 * i + lane / 16);
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    const int line = kWarps * kTile + warp * p.n + min(8 * r + lane % 8, p.n - 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) b_at[r][i] = base + place_of(line, 4 * i + lane / 8);
  }
  const int step = static_cast<int>(gridDim.x);
  int stage = 0, turn = 0;
  uint32_t phase = 0;
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x); tile < p.tiles; tile += step, ++turn) {
    float sums[kRowTiles][4] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const uint32_t from = stage * p.stage_bytes;
      uint32_t left[4][4], right[kRowTiles][2][4];
      mbarrier_wait(&barriers.full[stage], phase);
#pragma unroll
      for (int i = 0; i < 4; ++i) ldmatrix_x4(a_at[i] + from, left[i]);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) ldmatrix_x4(b_at[r][i] + from, right[r][i]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          const auto &b = right[r][i / 2];
          multiply<T>(sums[r], left[i], b[i % 2 * 2], b[i % 2 * 2 + 1]);
        }
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&barriers.empty[stage]);
      if (++stage == p.stages) stage = 0, phase ^= 1;
    }
    auto &of_tile = all[turn % 2];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        of_tile[warp][8 * r + lane % 4 * 2 + e % 2][lane / 4 + e / 2 * 8] = sums[r][e];
      }
    }
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kWarps) : "memory");
    // The warps finish tiles in turn, while the others go on. Four neighbours of a row of D.
    if (warp != turn % kWarps) continue;
    constexpr int kPieces = kTile / 4;
    for (int i = lane; i < p.n * kPieces; i += 32) {
      const int row = i / kPieces, in = i % kPieces * 4, col = tile * kTile + in;
      float v[4] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 x = *reinterpret_cast<const float4 *>(&of_tile[w][row][in]);
        v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
      }
      if (p.vectors) {
        if (col < p.m) finish(p.args, p.args.alpha, row, col, v);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float one[1] = {v[j]};
          if (col + j < p.m) finish(p.args, p.args.alpha, row, col + j, one);
        }
      }
    }
  }
#endif
}

// Lines of 128 bytes along k, of which a box has those of `rows` rows in each block of a stage.
NVTEXOutcome lines_of(CUtensorMap *map, const void *matrix, size_t outer, size_t k, size_t rows) {
  const uint64_t dims[3] = {kLine / 2, outer, ceil_div(k, kLine / 2)}, steps[2] = {2 * k, kLine};
  const uint32_t box[3] = {kLine / 2, static_cast<uint32_t>(rows), kWarps};
  return encode_tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, matrix, dims, steps, box);
}

template <class T, int kRowTiles>
NVTEXOutcome run(const NVTEXGemmArgs &args, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  if (device.arch != 90) return unimplemented("the kernel of few rows: other devices");
  Params p = {};
  p.args = args;
  p.m = static_cast<int>(args.m), p.n = static_cast<int>(args.n);
  const size_t tiles = ceil_div(args.m, kTile);
  p.tiles = static_cast<int>(tiles), p.chunks = static_cast<int>(ceil_div(args.k, kDepth));
  const NVTEXOutcome a = lines_of(&p.a_map, args.a, args.m, args.k, kTile);
  if (a.status != NVTEX_BACKEND_OK) return a;
  const NVTEXOutcome b = lines_of(&p.b_map, args.b, args.n, args.k, args.n);
  if (b.status != NVTEX_BACKEND_OK) return b;
  p.stage_bytes = (kTile + p.n) * kWarps * kLine;
  constexpr int kSums = 2 * kWarps * 8 * kRowTiles * (kTile + 4) * 4;
  p.stages = (kSharedBytes - kSums) / p.stage_bytes;
  if (p.stages > kMostStages) p.stages = kMostStages;
  p.vectors = args.m % 4 == 0 && aligned(args.d, 16) &&
              (args.beta == 0.0f || aligned(args.c, 16)) && aligned(args.bias, 16) &&
              aligned(args.aux, 16);
  // Blocks with as many tiles each.
  const size_t rounds = ceil_div(tiles, static_cast<size_t>(device.sm_count));
  const dim3 grid(static_cast<unsigned>(ceil_div(tiles, rounds)));
  return launch_shared(few_rows_kernel<T, kRowTiles>, grid, kThreads,
                       static_cast<size_t>(p.stages * p.stage_bytes), stream, p);
}

template <class T>
NVTEXOutcome run_any(const NVTEXGemmArgs &args, cudaStream_t stream) {
  return args.n <= 8 ? run<T, 1>(args, stream) : run<T, 2>(args, stream);
}

}  // namespace
}  // namespace nvte

// D of at most 16 rows, of A and B in 16 bits along k. Anything else is unimplemented.
extern "C" NVTEXOutcome nvte_cuda_few_rows_gemm(const NVTEXGemmArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGemmArgs &a = *args;
  constexpr size_t kMost = size_t{1} << 30, kLeast = size_t{1} << 20;
  const bool in_16_bits = a.a_dtype == kNVTEBFloat16 || a.a_dtype == kNVTEFloat16;
  if (!a.transa || a.transb || !in_16_bits || a.a_dtype != a.b_dtype) {
    return unimplemented("the kernel of few rows: other operands");
  }
  // Lines of k are whole. Smaller weights are not worth the preparation.
  if (a.n > kMostRows || a.m > kMost || a.k > kMost || a.m * a.k < kLeast ||
      a.k % (kLine / 2) != 0 || !aligned(a.a, 16) || !aligned(a.b, 16)) {
    return unimplemented("the kernel of few rows: other sizes or addresses");
  }
  const bool is_float =
      a.d_dtype == kNVTEFloat32 || a.d_dtype == kNVTEFloat16 || a.d_dtype == kNVTEBFloat16;
  // The warp that finishes a tile would wait for a bias, and the others for it: 37 us instead of
  // cuBLASLt's 33.6 for 16 rows and A of 12288 x 4096.
  if (!is_float || a.sm_count != 0 || a.nvfp4.alpha != nullptr || a.nvfp4.amax_a != nullptr ||
      a.epilogue != NVTEX_EPILOGUE_NONE) {
    return unimplemented("the kernel of few rows: other results");
  }
  return a.a_dtype == kNVTEFloat16 ? run_any<F16>(a, stream) : run_any<BF16>(a, stream);
}
