// Casts back from FP8 with a scale per block of elements: 1 x 128 and 128 x 128 with float scales,
// 1 x 32 with E8M0 scales; of row-wise or column-wise data.

#include "common/cast_block.cuh"
#include "common/scale.cuh"
#include "common/tile.cuh"

namespace nvte {
namespace {

// Input [lines, length], whose scales are those of its own rows; the output is its transpose.
template <class In_, class Out_>
struct DequantizeColumns {
  using In = In_;
  using Out = Out_;
  static constexpr bool kHasAmax = false;
  static constexpr bool kByPlace = true;

  ScaleMatrix scales;
  size_t lines, length;

  struct State {
    __device__ bool skip() const { return false; }
  };
  __device__ State begin() const { return {}; }

  template <int N>
  __device__ __forceinline__ Vec<Out, N> apply(const State &, const Vec<In, N> &x, size_t line,
                                               size_t at) const {
    static_assert(FloatScale::kBlock % N == 0, "a vector lies in one block");
    float scale = 0.0f;
    if (line < lines && at < length) {
      const size_t index = scales.index(line, at / FloatScale::kBlock);
      scale = static_cast<const float *>(scales.entries)[index];
    }
    return scaled<Out>(x, scale);
  }
  __device__ void finish(const State &) const {}
};

struct DequantizeRowsArgs {
  const void *in;
  void *out;
  size_t rows;
  size_t cols;
  ScaleMatrix scales;
  unsigned pieces_per_row;
  bool colwise;   // The scale is that of the column.
  bool vec;       // Whether every vector is aligned and inside or outside as a whole.
  bool code_vec;  // Whether the codes of a vector of columns are, too.
};

constexpr int kRowThreads = 256;

// Elements of a thread: one store.
template <class Out>
constexpr int kRowVec = 16 / Out::kBytes;

// A warp has one piece of a row.
template <class In, class Out, class Scale>
__global__ void __launch_bounds__(kRowThreads)
    dequantize_kernel(const __grid_constant__ DequantizeRowsArgs a) {
  using Entry = typename Scale::Entry;
  constexpr int kCount = kRowVec<Out>;
  wait_for_stream();
  let_next_start();
  const size_t row = size_t{blockIdx.x / a.pieces_per_row} * (kRowThreads / 32) + threadIdx.x / 32;
  const size_t col = (size_t{blockIdx.x % a.pieces_per_row} * 32 + threadIdx.x % 32) * kCount;
  if (row >= a.rows || col >= a.cols) return;
  const size_t at = row * a.cols + col;
  const int count = left_of(a.cols - col, kCount);
  const auto *entries = static_cast<const Entry *>(a.scales.entries);

  const Vec<In, kCount> x =
      a.vec ? load<In, kCount>(a.in, at, true) : load_some<In, kCount>(a.in, at, count);
  float factors[kCount];
  if (Scale::kMx && a.code_vec) {
    using Codes = Raw<uint8_t>;
    const auto codes = load<Codes, kCount>(entries, a.scales.index(col, row / Scale::kBlock), true);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      factors[i] = Scale::value(static_cast<Entry>(codes.w[i / 4] >> (i % 4 * 8) & 0xff));
    }
  } else if (Scale::kMx && a.colwise) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      factors[i] =
          i < count ? Scale::value(entries[a.scales.index(col + i, row / Scale::kBlock)]) : 0.0f;
    }
  } else {
    const float factor = Scale::value(entries[a.scales.index(row, col / Scale::kBlock)]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) factors[i] = factor;
  }
  const Vec<Out, kCount> y = scaled<Out>(x, factors);
  if (a.vec) {
    store(a.out, at, y);
  } else {
    store_some(a.out, at, count, y);
  }
}

template <class In, class Out, class Scale>
NVTEXOutcome dequantize(const NVTEXDequantizeArgs &a, const ScaleMatrix &scales,
                        cudaStream_t stream) {
  constexpr int kCount = kRowVec<Out>;
  const size_t pieces = ceil_div(a.cols, 32 * kCount), lots = ceil_div(a.rows, kRowThreads / 32);
  if (pieces > kMaxBlocks / lots) return unimplemented("the matrix has too many pieces");
  DequantizeRowsArgs args;
  args.in = a.input;
  args.out = a.output;
  args.rows = a.rows;
  args.cols = a.cols;
  args.scales = scales;
  args.pieces_per_row = static_cast<unsigned>(pieces);
  args.colwise = a.colwise;
  args.vec = aligned(a.input, kCount) && aligned(a.output, 16) && a.cols % kCount == 0;
  args.code_vec = a.colwise && scales.tiles == 0 && aligned(a.scale_inv, kCount) &&
                  a.scale_stride % kCount == 0 && a.cols % kCount == 0;
  return launch(dequantize_kernel<In, Out, Scale>, dim3(static_cast<unsigned>(pieces * lots)),
                kRowThreads, stream, args);
}

template <class In, class Out>
NVTEXOutcome dequantize(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  const bool mx = a.mode == NVTE_MXFP8_1D_SCALING;
  const size_t tiles = mx && a.swizzled ? ceil_div(a.colwise ? a.rows : a.cols, 128) : 0;
  // Entries are only read.
  const ScaleMatrix scales =
      scale_matrix(a.mode, const_cast<void *>(a.scale_inv), a.scale_stride, a.colwise, tiles);
  if (mx) return dequantize<In, Out, MxScale>(a, scales, stream);
  if (a.mode != NVTE_BLOCK_SCALING_1D && a.mode != NVTE_BLOCK_SCALING_2D) {
    return unimplemented("no CUDA kernel for this scaling mode");
  }
  if (!a.colwise) return dequantize<In, Out, FloatScale>(a, scales, stream);
  const DequantizeColumns<In, Out> op = {scales, a.cols, a.rows};
  return launch_tile(a.input, nullptr, a.output, a.cols, a.rows, op, stream);
}

}  // namespace

NVTEXOutcome dequantize_blocks(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  return dispatch<E4M3, E5M2>(a.input_dtype, [&](auto in) {
    return dispatch<F32, F16, BF16>(a.output_dtype, [&](auto out) {
      return dequantize<decltype(in), decltype(out)>(a, stream);
    });
  });
}

}  // namespace nvte
