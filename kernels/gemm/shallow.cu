// Products that sum up few elements, k <= 64: weight gradients of few tokens. What they write is
// all that they cost, so that each block computes a tile of D from operands that it reads once, and
// writes whole sectors.
//
// H200, D of 16384 x 4096 in BF16, k 16: 35 us from BF16 and 34 from FP8, where writing D takes 32;
// cuBLASLt's kernels, which are made for a long loop over k, take 48 and 69 to 76. With a quad's
// results exchanged by shuffles instead of columns permuted: 47.

#include "common/launch.cuh"
#include "common/mma.cuh"
#include "common/vec.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;
// A block's tile of D.
constexpr int kTileRows = 64, kTileCols = 128;
constexpr size_t kMostDepth = 64;
// Blocks that share a multiprocessor: as many as have the registers for the next tile's operands.
template <int kDepth>
constexpr int kBlocks = kDepth == 16 ? 3 : 2;
// A warp has 32 rows and 32 columns of a tile of D.
constexpr int kRowTiles = 2, kColTiles = 4;

// The 16-bit type that holds all elements of a type.
template <class In>
using Widest = std::conditional_t<kIsFp8<In>, F16, In>;

// Eight elements as 16-bit ones.
template <class In>
__device__ __forceinline__ void widen(const Vec<In, 8> &x, uint32_t (&w)[4]) {
  if constexpr (kIsFp8<In>) {
    constexpr bool kE4M3 = In::kDtype == kNVTEFloat8E4M3;
    decode_fp8x4<kE4M3>(x.w[0], w[0], w[1]);
    decode_fp8x4<kE4M3>(x.w[1], w[2], w[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = x.w[i];
  }
}

// An operand: [outers, k] with kKMajor, else [k, outers].
struct Operand {
  const void *data;
  int outers;
  bool vectors;  // Eight elements of a row may be loaded at once.
};

// A tile of an operand: chunks of eight elements, in the operand's own order, with kDepth along k.
// In shared memory a row has one chunk more than it fills, so that their number is odd and eight
// rows lie in different banks.
//
// kMixed: of 32 columns of D, tile j of a product has columns 8 q + 2 j and the next one, for q
// from 0 to 3, so that lane q of a quad gets eight neighbours of a row of D with four tiles.
template <class In, bool kKMajor, int kTile, int kDepth, bool kMixed>
struct Part {
  static constexpr int kChunks = kTile * kDepth / 8;
  static constexpr int kEach = (kChunks + kThreads - 1) / kThreads;  // Of a thread.
  static constexpr int kRow = (kKMajor ? kDepth : kTile) / 8;        // Chunks of a row.
  static constexpr int kPitch = (kRow + 1) * 8;                      // Elements.
  static constexpr int kElements = (kKMajor ? kTile : kDepth) * kPitch;
  Vec<In, 8> chunks[kEach];

  // Loads the thread's chunks of the tile from outer `first` on; zeros where there is nothing.
  __device__ __forceinline__ void fetch(const Operand &from, int first, int k) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
      const int row = chunk / kRow, begin = chunk % kRow * 8;
      const int line = kKMajor ? first + row : row, col = kKMajor ? begin : first + begin;
      const int lines = kKMajor ? from.outers : k, length = kKMajor ? k : from.outers;
      const bool there = line < lines && (kChunks % kThreads == 0 || chunk < kChunks);
      const int count = there ? min(max(length - col, 0), 8) : 0;
      const size_t at = static_cast<size_t>(line) * length + col;
      // Rows of whole chunks have a whole one or none.
      chunks[i] = from.vectors ? load<In, 8>(from.data, count > 0 ? at : 0, count > 0)
                               : load_some<In, 8>(from.data, at, count);
    }
  }
  __device__ __forceinline__ void put(uint16_t *to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
      if (kChunks % kThreads != 0 && chunk >= kChunks) continue;
      uint32_t w[4];
      widen(chunks[i], w);
      const int row = chunk / kRow, col = chunk % kRow;
      if constexpr (kMixed && !kKMajor) {
        uint16_t *const tiles = to + row * kPitch + col / 4 * 32 + col % 4 * 2;
#pragma unroll
        for (int j = 0; j < 4; ++j) *reinterpret_cast<uint32_t *>(tiles + 8 * j) = w[j];
      } else {
        const int slot =
            kMixed ? row / 32 * 32 + row % 8 / 2 * 8 + row % 32 / 8 * 2 + row % 2 : row;
        *reinterpret_cast<uint4 *>(to + slot * kPitch + col * 8) =
            make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
};

// v = scale * v + beta * c of N neighbours, to D, which may be C.
template <class Out, int N>
__device__ __forceinline__ void finish(const NVTEXGemmArgs &a, size_t at, const Vec<Out, N> &c,
                                       float (&v)[N]) {
  if (a.beta != 0.0f) {
    float old[N];
    to_float(c, old);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = fmaf(a.beta, old[j], v[j]);
  }
  store(a.d, at, from_float<Out>(v));
}

// Writes a warp's part of D, from row `row` and column `col` on. Each store of a warp fills whole
// sectors, which half as many bytes of a sector at a time take twice as long for.
template <class Out>
__device__ __forceinline__ void write_part(const NVTEXGemmArgs &a, bool vectors, float scale,
                                           int row, int col,
                                           const float (&sums)[kRowTiles][kColTiles][4]) {
  // Neighbours that a lane stores at once: 16 bytes. Of FP32, two lanes exchange halves of what
  // they have, so that they store eight neighbours together.
  constexpr int N = 16 / Out::kBytes, kPieces = 8 / N;
  const int lane = static_cast<int>(threadIdx.x % 32), odd = kPieces == 2 ? lane % 2 : 0;
  const int own = col + lane % 4 * 8, first = own - odd * 4;
  const int rows = static_cast<int>(a.n), cols = static_cast<int>(a.m);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const int y = row + i * 16 + lane / 4;
    const auto inside = [&](int h, int x) { return y + 8 * h < rows && x < cols; };
    const auto place = [&](int h, int x) { return static_cast<size_t>(y + 8 * h) * a.m + x; };
    Vec<Out, N> c[2][kPieces] = {};
    if (vectors && a.beta != 0.0f) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          const bool reads = inside(h, first + 8 * p);
          c[h][p] = load<Out, N>(a.c, reads ? place(h, first + 8 * p) : 0, reads);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = scale * sums[i][j / 2][2 * h + j % 2];
      if (!vectors) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (!inside(h, own + j)) continue;
          float one[1] = {v[j]};
          finish(a, place(h, own + j), load<Out, 1>(a.c, place(h, own + j), a.beta != 0.0f), one);
        }
        continue;
      }
      if constexpr (kPieces == 2) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float got = __shfl_xor_sync(0xffffffffu, odd ? v[j] : v[4 + j], 1);
          (odd ? v[j] : v[4 + j]) = got;
        }
      }
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if (!inside(h, first + 8 * p)) continue;
        float piece[N];
#pragma unroll
        for (int j = 0; j < N; ++j) piece[j] = v[p * N + j];
        finish(a, place(h, first + 8 * p), c[h][p], piece);
      }
    }
  }
}

// Blocks take tiles in turn, and load the operands of the next one while they write.
template <class A, class B, bool kAK, bool kBK, int kDepth>
__global__ void __launch_bounds__(kThreads, kBlocks<kDepth>)
    shallow_kernel(const __grid_constant__ NVTEXGemmArgs args, const Operand a, const Operand b,
                   unsigned across, unsigned tiles, bool vectors) {
  using T = Widest<A>;
  using OfA = Part<A, kAK, kTileCols, kDepth, true>;
  using OfB = Part<B, kBK, kTileRows, kDepth, false>;
  __shared__ __align__(16) uint16_t of_a[OfA::kElements], of_b[OfB::kElements];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int k = static_cast<int>(args.k), thread = static_cast<int>(threadIdx.x);
  const auto row_of = [&](unsigned tile) { return static_cast<int>(tile / across) * kTileRows; };
  const auto col_of = [&](unsigned tile) { return static_cast<int>(tile % across) * kTileCols; };
  OfA next_a;
  OfB next_b;
  const auto fetch = [&](unsigned tile) {
    next_a.fetch(a, col_of(tile), k);
    next_b.fetch(b, row_of(tile), k);
  };
  const auto scale_of = [](const void *inv) {
    return inv == nullptr ? 1.0f : *static_cast<const float *>(inv);
  };
  const int warp = thread / 32, lane = thread % 32;
  const int part_row = warp / 4 * 32, part_col = warp % 4 * 32;
  // Lanes have the rows of four 8 x 8 matrices, as ldmatrix takes them: of B those of 16 rows of D
  // for k and then for k + 8, of A those for k and k + 8 of 8 columns and then of the next 8.
  const int in = lane % 8, second = lane / 8 % 2, third = lane / 16;
  unsigned tile = blockIdx.x;
  fetch(tile);
  const float scale = args.alpha * scale_of(args.scales_a.inv) * scale_of(args.scales_b.inv);
  for (; tile < tiles; tile += gridDim.x) {
    __syncthreads();  // All warps have read the tile before.
    next_a.put(of_a);
    next_b.put(of_b);
    __syncthreads();
    if (tile + gridDim.x < tiles) fetch(tile + gridDim.x);
    float sums[kRowTiles][kColTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kDepth; step += 16) {
      uint32_t left[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const int outer = part_row + 16 * i;
        if constexpr (kBK) {
          const int at = (outer + 8 * second + in) * OfB::kPitch + step + 8 * third;
          ldmatrix_x4(shared_address(of_b + at), left[i]);
        } else {
          const int at = (step + 8 * third + in) * OfB::kPitch + outer + 8 * second;
          ldmatrix_x4_trans(shared_address(of_b + at), left[i]);
        }
      }
#pragma unroll
      for (int j = 0; j < kColTiles; j += 2) {
        const int outer = part_col + 8 * j;
        uint32_t right[4];
        if constexpr (kAK) {
          const int at = (outer + 8 * third + in) * OfA::kPitch + step + 8 * second;
          ldmatrix_x4(shared_address(of_a + at), right);
        } else {
          const int at = (step + 8 * second + in) * OfA::kPitch + outer + 8 * third;
          ldmatrix_x4_trans(shared_address(of_a + at), right);
        }
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply<T>(sums[i][j], left[i], right[0], right[1]);
          multiply<T>(sums[i][j + 1], left[i], right[2], right[3]);
        }
      }
    }
    const int row = row_of(tile) + part_row, col = col_of(tile) + part_col;
    if (args.d_dtype == kNVTEFloat32) {
      write_part<F32>(args, vectors, scale, row, col, sums);
    } else if (args.d_dtype == kNVTEFloat16) {
      write_part<F16>(args, vectors, scale, row, col, sums);
    } else {
      write_part<BF16>(args, vectors, scale, row, col, sums);
    }
  }
}

template <class A, class B, bool kAK, bool kBK, int kDepth>
NVTEXOutcome run_deep(const NVTEXGemmArgs &args, cudaStream_t stream) {
  const auto operand = [&](const void *data, size_t outers, int bytes, bool k_major) {
    const bool whole = (k_major ? args.k : outers) % 8 == 0;
    return Operand{data, static_cast<int>(outers), whole && aligned(data, 8 * bytes)};
  };
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const auto across = static_cast<unsigned>(ceil_div(args.m, kTileCols));
  const auto tiles = static_cast<unsigned>(across * ceil_div(args.n, kTileRows));
  const auto most = static_cast<unsigned>(kBlocks<kDepth> * device.sm_count);
  const bool vectors =
      args.m % 8 == 0 && aligned(args.d, 16) && (args.beta == 0.0f || aligned(args.c, 16));
  return launch(shallow_kernel<A, B, kAK, kBK, kDepth>, dim3(tiles < most ? tiles : most), kThreads,
                stream, args, operand(args.a, args.m, A::kBytes, kAK),
                operand(args.b, args.n, B::kBytes, kBK), across, tiles, vectors);
}

template <class A, class B, bool kAK, bool kBK>
NVTEXOutcome run(const NVTEXGemmArgs &args, cudaStream_t stream) {
  return args.k <= 16 ? run_deep<A, B, kAK, kBK, 16>(args, stream)
                      : run_deep<A, B, kAK, kBK, static_cast<int>(kMostDepth)>(args, stream);
}

// Both orders of both operands.
template <class In>
NVTEXOutcome run_any(const NVTEXGemmArgs &args, cudaStream_t stream) {
  if (args.transa) {
    return args.transb ? run<In, In, true, false>(args, stream)
                       : run<In, In, true, true>(args, stream);
  }
  return args.transb ? run<In, In, false, false>(args, stream)
                     : run<In, In, false, true>(args, stream);
}

}  // namespace
}  // namespace nvte

// D without an epilogue, from operands of 16 bits, or of FP8 with one scale that both lie along k.
// Anything else is unimplemented, as are products for which other kernels are as good.
extern "C" NVTEXOutcome nvte_cuda_shallow_gemm(const NVTEXGemmArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGemmArgs &a = *args;
  constexpr size_t kLeast = 128, kLeastArea = size_t{1} << 18, kMost = 0x7fffffff - kTileCols;
  const bool deep = a.k == 0 || a.k > kMostDepth;
  const bool small = a.m < kLeast || a.n < kLeast || a.m * a.n < kLeastArea;
  if (deep || small || a.m > kMost || a.n > kMost ||
      ceil_div(a.m, kTileCols) * ceil_div(a.n, kTileRows) > kMaxBlocks) {
    return unimplemented("the kernel of shallow products: other sizes");
  }
  const bool plain = a.epilogue == NVTEX_EPILOGUE_NONE && a.nvfp4.alpha == nullptr &&
                     a.nvfp4.amax_a == nullptr && a.sm_count == 0;
  const bool is_float =
      a.d_dtype == kNVTEFloat32 || a.d_dtype == kNVTEFloat16 || a.d_dtype == kNVTEBFloat16;
  if (!plain || !is_float) return unimplemented("the kernel of shallow products: other results");
  if (a.a_dtype == kNVTEBFloat16 && a.b_dtype == kNVTEBFloat16) return run_any<BF16>(a, stream);
  if (a.a_dtype == kNVTEFloat16 && a.b_dtype == kNVTEFloat16) return run_any<F16>(a, stream);
  if (a.transa && !a.transb) {
    const bool wide_a = a.a_dtype == kNVTEFloat8E5M2, wide_b = a.b_dtype == kNVTEFloat8E5M2;
    const bool fp8_a = wide_a || a.a_dtype == kNVTEFloat8E4M3;
    const bool fp8_b = wide_b || a.b_dtype == kNVTEFloat8E4M3;
    if (fp8_a && fp8_b) {
      return wide_a   ? wide_b ? run<E5M2, E5M2, true, true>(a, stream)
                               : run<E5M2, E4M3, true, true>(a, stream)
               : wide_b ? run<E4M3, E5M2, true, true>(a, stream)
                      : run<E4M3, E4M3, true, true>(a, stream);
    }
  }
  return unimplemented("the kernel of shallow products: other operands");
}
