// Transposes of matrices of 4-bit elements, and of scales of 16 x 16 of them (optim_nvfp4.md,
// section 18).

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/transpose.h"

namespace nvte {
namespace {

constexpr int kPiece = 16;  // Elements of 8 bytes.
// Of a tile. H200, GB/s at 8192 x 8192 and 16384 x 16384: 128 x 512 3669 and 3910, 256 x 256 3606
// and 3811, 128 x 256 3656 and 3791, 64 x 512 3168 and 3632, 256 x 128 3154 and 3221.
constexpr int kTileRows = 128, kTileCols = 512;
constexpr int kDown = kTileRows / kPiece, kAcross = kTileCols / kPiece;
constexpr int kThreads = kDown * kAcross;

using Piece = Vec<Raw<uint8_t>, 8>;

// Exchanges the upper half of each 2 `bits` of a with the lower half of those of b.
template <int kBits>
__device__ __forceinline__ void exchange(uint32_t &a, uint32_t &b) {
  const uint32_t x = a, y = b;
  if constexpr (kBits == 16) {
    a = __byte_perm(x, y, 0x5410), b = __byte_perm(x, y, 0x7632);
  } else if constexpr (kBits == 8) {
    a = __byte_perm(x, y, 0x6240), b = __byte_perm(x, y, 0x7351);
  } else {
    a = (x & 0x0f0f0f0f) | (y << 4 & 0xf0f0f0f0);
    b = (x >> 4 & 0x0f0f0f0f) | (y & 0xf0f0f0f0);
  }
}

template <int kBits, int kStep>
__device__ __forceinline__ void exchange_step(uint32_t (&w)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if ((i & kStep) == 0) exchange<kBits>(w[i], w[i + kStep]);
  }
}

// 8 rows of 8 elements: word i becomes column i.
__device__ __forceinline__ void transpose_words(uint32_t (&w)[8]) {
  exchange_step<16, 4>(w);
  exchange_step<8, 2>(w);
  exchange_step<4, 1>(w);
}

// A thread transposes 16 x 16 elements in registers; the tile is put together in shared memory, in
// pieces whose places are exchanged so that lanes meet different banks.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const __grid_constant__ NVTEXNvfp4TransposeArgs a, unsigned down) {
  __shared__ uint2 tile[kTileCols][kDown];
  const size_t row0 = size_t{blockIdx.x % down} * kTileRows;
  const size_t col0 = size_t{blockIdx.x / down} * kTileCols;
  const size_t in_pitch = a.cols / 2, out_pitch = a.rows / 2;
  // Bytes of a line of which a piece has `left` and more are inside.
  const auto count = [](size_t left) { return left < 8 ? static_cast<int>(left) : 8; };
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  {
    const int across = threadIdx.x % kAcross, lot = threadIdx.x / kAcross;
    const size_t row = row0 + lot * kPiece, byte = col0 / 2 + across * 8;
    const int bytes = byte < in_pitch ? count(in_pitch - byte) : 0;
    Piece x[kPiece];
#pragma unroll
    for (int r = 0; r < kPiece; ++r) {
      const bool inside = row + r < a.rows && bytes > 0;
      const size_t at = (row + r) * in_pitch + byte;
      x[r] = kVectors ? load<Raw<uint8_t>, 8>(a.input, at, inside)
                      : load_some<Raw<uint8_t>, 8>(a.input, at, inside ? bytes : 0);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low[8], high[8];
#pragma unroll
      for (int r = 0; r < 8; ++r) low[r] = x[r].w[half], high[r] = x[r + 8].w[half];
      transpose_words(low);
      transpose_words(high);
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        tile[across * kPiece + half * 8 + c][lot ^ across % kDown] = make_uint2(low[c], high[c]);
      }
    }
  }
  __syncthreads();
  const int piece = threadIdx.x % kDown;
  const size_t byte = row0 / 2 + piece * 8;
  const int bytes = byte < out_pitch ? count(out_pitch - byte) : 0;
#pragma unroll 4
  for (int c = threadIdx.x / kDown; c < kTileCols; c += kThreads / kDown) {
    if (col0 + c >= a.cols || bytes == 0) return;
    const uint2 y = tile[c][piece ^ c / kPiece % kDown];
    const Piece v = {{y.x, y.y}};
    const size_t at = (col0 + c) * out_pitch + byte;
    if (kVectors) {
      store(a.output, at, v);
    } else {
      store_some(a.output, at, bytes, v);
    }
  }
}

NVTEXOutcome transpose(const NVTEXNvfp4TransposeArgs &a, cudaStream_t stream) {
  const size_t down = ceil_div(a.rows, kTileRows), across = ceil_div(a.cols, kTileCols);
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  const bool vectors =
      a.rows % kPiece == 0 && a.cols % kPiece == 0 && aligned(a.input, 8) && aligned(a.output, 8);
  return launch(vectors ? transpose_kernel<true> : transpose_kernel<false>,
                dim3(static_cast<unsigned>(down * across)), kThreads, stream, a,
                static_cast<unsigned>(down));
}

constexpr int kScaleTiles = 32, kScaleCols = 128;

// A tile of 128 columns of 32 x 16 rows. Every 16th row of the input is read, every row of the
// output written.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads)
    scale_transpose_kernel(const __grid_constant__ NVTEXNvfp4ScaleTransposeArgs a, unsigned down) {
  constexpr int kPer = 16, kAcross = kScaleCols / kPer;
  // 16 bytes more, so that rows lie in other banks.
  __shared__ __align__(16) uint8_t tile[kScaleTiles][kScaleCols + 16];
  const auto *in = static_cast<const uint8_t *>(a.input);
  const size_t tile0 = size_t{blockIdx.x % down} * kScaleTiles;
  const size_t col0 = size_t{blockIdx.x / down} * kScaleCols;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % kScaleTiles, first = threadIdx.x / kScaleTiles;
#pragma unroll
  for (int i = 0; i < kScaleCols; i += kThreads / kScaleTiles) {
    const size_t col = col0 + first + i, t = tile0 + lane;
    const bool inside = t < a.row_tiles && col < a.cols;
    tile[lane][first + i] = inside ? in[16 * col * a.input_stride + t] : 0;
  }
  __syncthreads();
  const int piece = threadIdx.x % kAcross;
  const size_t col = col0 + piece * kPer;
  if (col >= a.cols) return;
  const int count = a.cols - col < kPer ? static_cast<int>(a.cols - col) : kPer;
#pragma unroll 4
  for (int r = threadIdx.x / kAcross; r < kScaleTiles * 16; r += kThreads / kAcross) {
    const size_t row = tile0 * 16 + r;
    if (row >= a.rows) return;
    const auto y = *reinterpret_cast<const uint4 *>(&tile[r / 16][piece * kPer]);
    const Vec<Raw<uint8_t>, kPer> v = {{y.x, y.y, y.z, y.w}};
    const size_t at = row * a.output_stride + col;
    if (kVectors && count == kPer) {
      store(a.output, at, v);
    } else {
      store_some(a.output, at, count, v);
    }
  }
}

NVTEXOutcome scale_transpose(const NVTEXNvfp4ScaleTransposeArgs &a, cudaStream_t stream) {
  const size_t down = ceil_div(a.rows, kScaleTiles * 16), across = ceil_div(a.cols, kScaleCols);
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  const bool vectors = a.output_stride % 16 == 0 && aligned(a.output, 16);
  return launch(vectors ? scale_transpose_kernel<true> : scale_transpose_kernel<false>,
                dim3(static_cast<unsigned>(down * across)), kThreads, stream, a,
                static_cast<unsigned>(down));
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_nvfp4_transpose(const NVTEXNvfp4TransposeArgs *args,
                                                  cudaStream_t stream) noexcept {
  return nvte::transpose(*args, stream);
}

extern "C" NVTEXOutcome nvte_cuda_nvfp4_scale_transpose(const NVTEXNvfp4ScaleTransposeArgs *args,
                                                        cudaStream_t stream) noexcept {
  return nvte::scale_transpose(*args, stream);
}
