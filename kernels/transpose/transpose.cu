// Bit copies of a transposed matrix, output[c][r] = input[r][c], and of one whose elements are rows
// of bytes.

#include "common/tile.cuh"
#include "nvte/backend/transpose.h"

extern "C" NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *args,
                                            cudaStream_t stream) noexcept;

namespace nvte {
namespace {

template <class T>
struct Copy {
  using In = T;
  using Out = T;
  static constexpr bool kHasAmax = false;
  static constexpr bool kByPlace = false;

  const float *noop;

  struct State {
    float flag;
    __device__ bool skip() const { return flag == 1.0f; }
  };
  __device__ State begin() const { return {noop != nullptr ? *noop : 0.0f}; }

  template <int N>
  __device__ __forceinline__ Vec<T, N> apply(const State &, const Vec<T, N> &x) const {
    return x;
  }
  __device__ void finish(const State &) const {}
};

template <class Bits>
NVTEXOutcome transpose(const NVTEXTransposeArgs &a, cudaStream_t stream) {
  const Copy<Raw<Bits>> op = {a.noop};
  return launch_tile(a.input, nullptr, a.output, a.rows, a.cols, op, stream);
}

// Transposes elements of 8 and 16 bytes.
template <class Unit>
__global__ void __launch_bounds__(256) swap_units_kernel(const Unit *in, Unit *out, size_t rows,
                                                         size_t cols, unsigned tiles_per_line) {
  constexpr int kSide = 32, kStep = 256 / kSide, kCount = kSide / kStep;
  __shared__ Unit tile[kSide][kSide + 1];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t row0 = size_t{blockIdx.x % tiles_per_line} * kSide;
  const size_t col0 = size_t{blockIdx.x / tiles_per_line} * kSide;
  const int height = left_of(rows - row0, kSide), width = left_of(cols - col0, kSide);
  const int lane = threadIdx.x % kSide, first = threadIdx.x / kSide;
  Unit x[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int r = first + k * kStep;
    if (r < height && lane < width) x[k] = in[(row0 + r) * cols + col0 + lane];
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) tile[first + k * kStep][lane] = x[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int c = first + k * kStep;
    if (c < width && lane < height) out[(col0 + c) * rows + row0 + lane] = tile[lane][c];
  }
}

struct SwapRowsArgs {
  const void *in;
  void *out;
  size_t first, second;
  size_t length;    // Length of a row, in vectors.
  unsigned lanes;   // Threads that have a piece of a row; a power of two.
  unsigned pieces;  // Pieces of a row.
};

constexpr int kSwapThreads = 256, kSwapRows = 4;

// Elements of any number of vectors, in the order of the output.
template <class Vector>
__global__ void __launch_bounds__(kSwapThreads)
    swap_rows_kernel(const __grid_constant__ SwapRowsArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned step = kSwapThreads / a.lanes;
  const size_t at = size_t{blockIdx.x % a.pieces} * a.lanes + threadIdx.x % a.lanes;
  const size_t row0 = size_t{blockIdx.x / a.pieces} * step * kSwapRows + threadIdx.x / a.lanes;
  const auto *in = static_cast<const Vector *>(a.in);
  auto *out = static_cast<Vector *>(a.out);
  if (at >= a.length) return;
  Vector x[kSwapRows];
#pragma unroll
  for (int k = 0; k < kSwapRows; ++k) {
    const size_t row = row0 + k * step, j = row / a.first, i = row % a.first;
    if (j < a.second) x[k] = in[(i * a.second + j) * a.length + at];
  }
#pragma unroll
  for (int k = 0; k < kSwapRows; ++k) {
    const size_t row = row0 + k * step;
    if (row < a.first * a.second) out[row * a.length + at] = x[k];
  }
}

template <class Vector>
NVTEXOutcome swap_rows(const NVTEXSwapFirstDimsArgs &a, cudaStream_t stream) {
  const size_t length = a.row_bytes / sizeof(Vector);
  if (length == 1 && sizeof(Vector) >= 8) {
    const size_t down = ceil_div(a.first, 32), across = ceil_div(a.second, 32);
    if (across > kMaxBlocks / down) return unimplemented("the tensor has too many tiles");
    return launch(swap_units_kernel<Vector>, dim3(static_cast<unsigned>(across * down)), 256,
                  stream, static_cast<const Vector *>(a.input), static_cast<Vector *>(a.output),
                  a.first, a.second, static_cast<unsigned>(down));
  }
  // The widest pieces among those that leave the fewest threads idle.
  unsigned lanes = 1;
  for (unsigned l = 2; l <= kSwapThreads; l *= 2) {
    const bool covers = l / 2 < length,
               wasteful = l > 32 && ceil_div(length, l) * l > ceil_div(length, lanes) * lanes;
    if (covers && !wasteful) lanes = l;
  }
  const size_t pieces = ceil_div(length, lanes);
  const size_t lots = ceil_div(a.first * a.second, kSwapThreads / lanes * kSwapRows);
  if (pieces > kMaxBlocks / lots) return unimplemented("the tensor has too many rows");
  const SwapRowsArgs args = {
      a.input, a.output, a.first, a.second, length, lanes, static_cast<unsigned>(pieces)};
  return launch(swap_rows_kernel<Vector>, dim3(static_cast<unsigned>(pieces * lots)), kSwapThreads,
                stream, args);
}

NVTEXOutcome swap_first_dims(const NVTEXSwapFirstDimsArgs &a, cudaStream_t stream) {
  size_t width = 16;  // Bytes of a vector.
  while (a.row_bytes % width != 0 || !aligned(a.input, width) || !aligned(a.output, width)) {
    width /= 2;
  }
  if (a.row_bytes == width && width <= 4) {
    const NVTEXTransposeArgs args = {a.input, a.output, nullptr, a.first, a.second, width};
    return nvte_cuda_transpose(&args, stream);
  }
  switch (width) {
    case 1:
      return swap_rows<uint8_t>(a, stream);
    case 2:
      return swap_rows<uint16_t>(a, stream);
    case 4:
      return swap_rows<uint32_t>(a, stream);
    case 8:
      return swap_rows<uint2>(a, stream);
    default:
      return swap_rows<uint4>(a, stream);
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_swap_first_dims(const NVTEXSwapFirstDimsArgs *args,
                                                  cudaStream_t stream) noexcept {
  return nvte::swap_first_dims(*args, stream);
}

extern "C" NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *args,
                                            cudaStream_t stream) noexcept {
  switch (args->element_size) {
    case 1:
      return nvte::transpose<uint8_t>(*args, stream);
    case 2:
      return nvte::transpose<uint16_t>(*args, stream);
    case 4:
      return nvte::transpose<uint32_t>(*args, stream);
    default:
      return nvte::unimplemented("transpose: elements of 1, 2 or 4 bytes");
  }
}
