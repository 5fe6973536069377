// Products of few rows of B, n <= 32, with a weight A in FP8 that lies the other way round than
// tensor cores of Hopper take it: the gradients of inputs of few tokens. Reading A is all that they
// cost, so that it goes once through rings in shared memory as it lies, and becomes 16-bit values
// for products of a warp in registers. A warp has 128 columns of D and parts of k; the sums of the
// warps of a block, and of the blocks of a cluster, which divide k, are added in one order.
//
// H200, 16 rows, us: A of 16384 x 4096 27.6, of 4096 x 16384 20.6, of 12288 x 4096 23.8, of
// 4096 x 4096 12.0; a transpose of A takes 34.6 of the first, and cuBLASLt's product after it 22.3.
// What limits it is not known: with a smaller share of the work in each block, some microseconds of
// each launch remain, and more with more rows. Bulk copies into the same ring are as fast (28.8,
// 21.6, 23.8 and 13.5). For operands of 16 bits, and for A along k, cuBLASLt is faster.

#include "common/fp8.cuh"
#include "common/limits.cuh"
#include "common/mma.cuh"
#include "common/tma.cuh"
#include "common/vec.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
// Columns of D of a block, and elements along k of a stage.
constexpr int kTile = 128, kDepth = 32;
constexpr size_t kMostRows = 32;
// Blocks of a cluster, and those that share a multiprocessor.
constexpr unsigned kMostSplit = 8, kBlocks = 2;
constexpr int kSharedBytes = 108 * 1024;
static_assert(kBlocks * kSharedBytes <= most_shared(90), "shared memory of a multiprocessor");
// Floats from one row of sums to the next.
constexpr int kPitch = kTile + 4;
// Pieces of 16 bytes of A of each lane in a stage.
constexpr int kPieces = kTile * kDepth / 512;

// A stage of a warp: A in pieces, each in the place of the lane that reads what it has copied, and
// kDepth elements of all rows of B. In a product, lane 4 g + q has 16 columns of A and a row of B
// of each tile that g counts, and eight neighbours along k that q counts.
template <int kRowTiles>
struct Stage {
  static constexpr int kAtRows = kPieces * 512;
  static constexpr int kBytes = kAtRows + 8 * kRowTiles * kDepth;
  static constexpr int kCount = kSharedBytes / (kWarps * kBytes);
  static_assert(kWarps * 8 * kRowTiles * kPitch * 4 <= kSharedBytes, "sums take the ring's place");
};

// The place of a lane's piece among those of its warp, so that neither the eight pieces of a line
// of A nor those of eight neighbouring lanes meet in a bank. In the order of the lanes, copies
// meet, and all takes twice as long.
__device__ __forceinline__ int place_of(int piece, int g, int q) {
  return (piece * 32 + q * 8 + (g ^ 2 * q)) * 16;
}

struct Params {
  NVTEXGemmArgs args;
  int m, n, k;
  int chunks;  // Stages along k.
  bool b_e5m2;
  bool vectors;  // Four elements of a row of D, C, bias and aux may be accessed at once.
};

// Copies a stage of a warp.
template <int kRowTiles>
__device__ __forceinline__ void copy_stage(const Params &p, uint32_t to, int first, int k0,
                                           int lane) {
  const int g = lane / 4, q = lane % 4;
  const char *const a = static_cast<const char *>(p.args.a);
  const char *const b = static_cast<const char *>(p.args.b);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int col = first + 16 * g, k = k0 + 8 * q + i;
    const bool inside = col < p.m && k < p.k;
    cp_async_16(to + place_of(i, g, q), a + (inside ? int64_t{k} * p.m + col : 0), inside);
  }
#pragma unroll
  for (int piece = lane; piece < 8 * kRowTiles * kDepth / 16; piece += 32) {
    const int row = piece / 2, k = k0 + piece % 2 * 16;
    const bool inside = row < p.n && k < p.k;
    cp_async_16(to + Stage<kRowTiles>::kAtRows + piece * 16,
                b + (inside ? int64_t{row} * p.k + k : 0), inside);
  }
}

// Adds the products of a stage to the sums.
template <int kRowTiles>
__device__ __forceinline__ void multiply_stage(const Params &p, uint32_t from, int lane,
                                               float (&sums)[8][kRowTiles][4]) {
  const int g = lane / 4, q = lane % 4;
  // The lane's elements of B in 16 bits, four for each step of 16 along k.
  uint32_t right[kRowTiles][2][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    uint32_t w[2];
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(w[0]), "=r"(w[1])
                 : "r"(from + Stage<kRowTiles>::kAtRows + (8 * r + g) * kDepth + q * 8)
                 : "memory");
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (p.b_e5m2) {
        decode_fp8x4<false>(w[s], right[r][s][0], right[r][s][1]);
      } else {
        decode_fp8x4<true>(w[s], right[r][s][0], right[r][s][1]);
      }
    }
  }
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    uint32_t x[4][4];  // Elements along k; 16 columns.
#pragma unroll
    for (int i = 0; i < 4; ++i) load_chunk(from + place_of(4 * s + i, g, q), x[i]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Pairs of neighbours along k of four columns, which are two tiles of products.
      uint32_t left[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t even = x[2 * h][j], odd = x[2 * h + 1][j];
        decode_fp8x4<true>(__byte_perm(even, odd, 0x5140), left[0][2 * h], left[0][2 * h + 1]);
        decode_fp8x4<true>(__byte_perm(even, odd, 0x7362), left[1][2 * h], left[1][2 * h + 1]);
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply<F16>(sums[2 * j + u][r], left[u], right[r][s][0], right[r][s][1]);
        }
      }
    }
  }
}

__device__ __forceinline__ float4 load_remote(const float *at, unsigned rank) {
  float4 v;
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared_address(at)), "r"(rank)
      : "memory");
  return v;
}

__device__ __forceinline__ float tanh_of_gelu(float x) {
  return tanhf(0.79788456f * (x + 0.044715f * x * x * x));
}

// Neighbours in D or a side buffer, of any float type.
template <int N>
__device__ __forceinline__ void read(const void *from, NVTEDType dtype, size_t at, float (&v)[N]) {
  if (dtype == kNVTEFloat32) {
    to_float(load<F32, N>(from, at, true), v);
  } else if (dtype == kNVTEFloat16) {
    to_float(load<F16, N>(from, at, true), v);
  } else {
    to_float(load<BF16, N>(from, at, true), v);
  }
}
template <int N>
__device__ __forceinline__ void write(void *to, NVTEDType dtype, size_t at, const float (&v)[N]) {
  if (dtype == kNVTEFloat32) {
    store(to, at, from_float<F32>(v));
  } else if (dtype == kNVTEFloat16) {
    store(to, at, from_float<F16>(v));
  } else {
    store(to, at, from_float<BF16>(v));
  }
}

// Sums of neighbours in a row of D to D.
template <int N>
__device__ __forceinline__ void finish(const NVTEXGemmArgs &a, float scale, int row, int col,
                                       float (&v)[N]) {
  const size_t at = static_cast<size_t>(row) * a.m + static_cast<size_t>(col);
  float old[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] *= scale;
  if (a.beta != 0.0f) {
    read(a.c, a.d_dtype, at, old);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = fmaf(a.beta, old[i], v[i]);
  }
  if (a.epilogue == NVTEX_EPILOGUE_BIAS || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS) {
    read(a.bias, a.bias_dtype, static_cast<size_t>(col), old);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] += old[i];
  }
  if (a.epilogue == NVTEX_EPILOGUE_GELU || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS) {
    write(a.aux, a.aux_dtype, at, v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = 0.5f * v[i] * (1.0f + tanh_of_gelu(v[i]));
  } else if (a.epilogue == NVTEX_EPILOGUE_DGELU) {
    read(a.aux, a.aux_dtype, at, old);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = old[i], t = tanh_of_gelu(x);
      v[i] *=
          0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
    }
  }
  write(a.d, a.d_dtype, at, v);
}

template <int kRowTiles>
__global__ void __launch_bounds__(kThreads, kBlocks)
    narrow_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using S = Stage<kRowTiles>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4, q = lane % 4;
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  const unsigned rank = cluster_ctarank();
  const int first = static_cast<int>(blockIdx.x / blocks) * kTile;
  const int begin = static_cast<int>(static_cast<unsigned>(p.chunks) * rank / blocks) + warp;
  const int end = static_cast<int>(static_cast<unsigned>(p.chunks) * (rank + 1) / blocks);
  const uint32_t ring = shared_address(shared) + warp * S::kCount * S::kBytes;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const auto copy = [&](int chunk, int stage) {
    if (chunk < end) {
      copy_stage<kRowTiles>(p, ring + stage * S::kBytes, first, chunk * kDepth, lane);
    }
    cp_async_commit_group();
  };
#pragma unroll 1
  for (int i = 0; i < S::kCount - 1; ++i) copy(begin + i * kWarps, i);
  float sums[8][kRowTiles][4] = {};
  int stage = 0, last = S::kCount - 1;
#pragma unroll 1
  for (int chunk = begin; chunk < end; chunk += kWarps) {
    cp_async_wait_group<S::kCount - 2>();
    __syncwarp();  // All lanes' pieces are there, and all lanes have read the stage before.
    copy(chunk + (S::kCount - 1) * kWarps, last);
    multiply_stage<kRowTiles>(p, ring + stage * S::kBytes, lane, sums);
    last = stage;
    stage = stage + 1 == S::kCount ? 0 : stage + 1;
  }
  cp_async_wait_group<0>();
  __syncthreads();
  // Sums of a warp: rows and columns of D.
  float *const all = reinterpret_cast<float *>(shared);
  float *const own = all + warp * 8 * kRowTiles * kPitch;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float *const row = own + (8 * r + 2 * q + e) * kPitch + 16 * g;
#pragma unroll
      for (int t = 0; t < 8; t += 2) {
        *reinterpret_cast<float4 *>(row + 2 * t) =
            make_float4(sums[t][r][e], sums[t][r][2 + e], sums[t + 1][r][e], sums[t + 1][r][2 + e]);
      }
    }
  }
  __syncthreads();
  for (int row = warp; row < p.n; row += kWarps) {
    float *const at = all + row * kPitch + 4 * lane;
    float4 v = *reinterpret_cast<const float4 *>(at);
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float4 x = *reinterpret_cast<const float4 *>(at + w * 8 * kRowTiles * kPitch);
      v = make_float4(v.x + x.x, v.y + x.y, v.z + x.z, v.w + x.w);
    }
    *reinterpret_cast<float4 *>(at) = v;
  }
  cluster_sync();
  const auto scale_of = [](const void *inv) {
    return inv == nullptr ? 1.0f : *static_cast<const float *>(inv);
  };
  const float scale = p.args.alpha * scale_of(p.args.scales_a.inv) * scale_of(p.args.scales_b.inv);
  const int col = first + 4 * lane;
  for (int row = static_cast<int>(rank) * kWarps + warp; row < p.n;
       row += static_cast<int>(blocks) * kWarps) {
    const float *const at = all + row * kPitch + 4 * lane;
    float4 parts[kMostSplit];
#pragma unroll
    for (unsigned i = 0; i < kMostSplit; ++i) {
      if (i < blocks) parts[i] = load_remote(at, i);
    }
    float v[4] = {};
#pragma unroll
    for (unsigned i = 0; i < kMostSplit; ++i) {
      if (i < blocks)
        v[0] += parts[i].x, v[1] += parts[i].y, v[2] += parts[i].z, v[3] += parts[i].w;
    }
    if (col >= p.m) continue;
    if (p.vectors) {
      finish(p.args, scale, row, col, v);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float one[1] = {v[i]};
        finish(p.args, scale, row, col + i, one);
      }
    }
  }
  cluster_sync();  // What other blocks read stays until they have.
#endif
}

template <int kRowTiles>
NVTEXOutcome run(const NVTEXGemmArgs &args, cudaStream_t stream) {
  const auto kernel = narrow_kernel<kRowTiles>;
  if (const cudaError_t error = allow_shared(kernel, kSharedBytes)) return outcome(error);
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  Params p = {args,
              static_cast<int>(args.m),
              static_cast<int>(args.n),
              static_cast<int>(args.k),
              static_cast<int>(ceil_div(args.k, kDepth)),
              args.b_dtype == kNVTEFloat8E5M2,
              aligned(args.d, 16) && (args.beta == 0.0f || aligned(args.c, 16)) &&
                  aligned(args.bias, 16) && aligned(args.aux, 16)};
  const auto tiles = static_cast<unsigned>(ceil_div(args.m, kTile));
  // As many blocks as run at the same time: they share the memory's rate evenly.
  const unsigned room = kBlocks * static_cast<unsigned>(device.sm_count);
  unsigned split = room / tiles;
  split = split < 1 ? 1 : split > kMostSplit ? kMostSplit : split;
  const auto most = static_cast<unsigned>(ceil_div(static_cast<size_t>(p.chunks), kWarps));
  if (split > most) split = most;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {split, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(tiles * split);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = NVTE_OVERLAP ? 2 : 1;
  return outcome(cudaLaunchKernelEx(&config, kernel, p));
}

}  // namespace
}  // namespace nvte

// D of at most 32 rows, of A in E4M3 that lies along m, and of B in FP8 along k, with one scale
// each. Anything else is unimplemented.
extern "C" NVTEXOutcome nvte_cuda_narrow_gemm(const NVTEXGemmArgs *args,
                                              cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGemmArgs &a = *args;
  constexpr size_t kMost = size_t{1} << 30;
  if (a.n > kMostRows || a.m > kMost || a.k > kMost || a.m % 16 != 0 || a.k % 16 != 0 ||
      !aligned(a.a, 16) || !aligned(a.b, 16)) {
    return unimplemented("the kernel of products of few rows: other sizes or addresses");
  }
  const bool fp8 = a.a_dtype == kNVTEFloat8E4M3 &&
                   (a.b_dtype == kNVTEFloat8E4M3 || a.b_dtype == kNVTEFloat8E5M2);
  if (!fp8 || a.transa || a.transb) {
    return unimplemented("the kernel of products of few rows: other operands");
  }
  const bool is_float =
      a.d_dtype == kNVTEFloat32 || a.d_dtype == kNVTEFloat16 || a.d_dtype == kNVTEBFloat16;
  if (!is_float || a.sm_count != 0 || a.epilogue == NVTEX_EPILOGUE_BGRAD ||
      a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD) {
    return unimplemented("the kernel of products of few rows: other results");
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  if (device.arch != 90) return unimplemented("the kernel of products of few rows: other devices");
  return a.n <= 8 ? run<1>(a, stream) : a.n <= 16 ? run<2>(a, stream) : run<4>(a, stream);
}
