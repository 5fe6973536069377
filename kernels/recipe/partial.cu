// Amax and casts of a part of a matrix, by blocks of the whole. H200, 8192 x 8192 bf16, GB/s: amax
// of 128 x 128 4410, of MXFP8 3940; casts 4210 and, both directions, 3530; without aligned vectors
// 3100, 1140, 1460, 1300.

#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "common/scale.cuh"
#include "common/widened.cuh"
#include "nvte/backend/recipe.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 8;  // Vectors of a thread in flight.

// The elements of N neighbouring columns that are in the shard: [low, high) of them, from `at` on.
struct Span {
  size_t at;  // The index in the shard; it wraps if the shard begins in the span.
  int low, high;
};

template <int N>
__device__ __forceinline__ Span span_of(const NVTEXShard &s, size_t row, size_t col) {
  if (row >= s.rows || col >= s.cols) return {0, 0, 0};
  const size_t at = row * s.cols + col, end = s.start + s.length;
  const size_t low = at < s.start ? s.start - at : 0, high = at < end ? end - at : 0;
  const size_t width = s.cols - col < N ? s.cols - col : N;
  return {at - s.start, static_cast<int>(low < N ? low : N),
          static_cast<int>(high < width ? high : width)};
}

// Whether the shard has all of N columns from `col` on in kCount rows that are `step` apart.
template <int N, int kCount>
__device__ __forceinline__ bool inside_shard(const NVTEXShard &s, size_t row, size_t step,
                                             size_t col) {
  const size_t last = row + (kCount - 1) * step;
  return last < s.rows && col + N <= s.cols && row * s.cols + col >= s.start &&
         last * s.cols + col + N <= s.start + s.length;
}

// The elements of a span, and zeros where it has none.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_span(const void *base, const Span &span) {
  if constexpr (N == 1) {
    return load<T, 1>(base, span.at, span.low < span.high);
  } else {
    constexpr int kPer = Vec<T, N>::kPerWord;
    Vec<T, N> x = {};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const bool inside = span.low <= i && i < span.high;
      const uint32_t bits = inside ? *element<typename T::Bits>(base, span.at + i) : 0;
      x.w[i / kPer] |= bits << (i % kPer * 8 * T::kBytes);
    }
    return x;
  }
}

// N columns of kCount rows that are `step` apart; zeros for elements that are not in the shard.
template <class T, int N, int kCount>
__device__ __forceinline__ void load_rows(const NVTEXShard &s, size_t row, size_t step, size_t col,
                                          Vec<T, N> (&x)[kCount]) {
  if (inside_shard<N, kCount>(s, row, step, col)) {
    const size_t at = row * s.cols + col - s.start;
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
      x[r] = load_as<T, N>(s.dtype, s.input, at + r * step * s.cols, true);
    }
    return;
  }
#pragma unroll
  for (int r = 0; r < kCount; ++r) {
    const Span span = span_of<N>(s, row + r * step, col);
    if constexpr (kIsWidened<T>) {
      x[r] = widened_from<N>(s.dtype,
                             [&](auto tag) { return load_span<decltype(tag), N>(s.input, span); });
    } else {
      x[r] = load_span<T, N>(s.input, span);
    }
  }
}

template <class T, int N>
__device__ __forceinline__ void store_span(void *base, const Span &span, const Vec<T, N> &v) {
  if (span.low == 0 && span.high == N) {
    store(base, span.at, v);
  } else if constexpr (N > 1) {
    constexpr int kPer = Vec<T, N>::kPerWord;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (span.low <= i && i < span.high) {
        *element<typename T::Bits>(base, span.at + i) =
            static_cast<typename T::Bits>(v.w[i / kPer] >> (i % kPer * 8 * T::kBytes));
      }
    }
  }
}

// Whether the vectors of N columns that lie in the shard are aligned.
bool vectors_of(int n, const NVTEXShard &s, const void *base, size_t bytes) {
  const size_t vector = n * bytes < 16 ? n * bytes : 16;
  return s.cols % n == 0 && (reinterpret_cast<uintptr_t>(base) - s.start * bytes) % vector == 0;
}

// Each block of threads has a block of 128 x 128.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    partial_amax_kernel(const __grid_constant__ NVTEXPartialAmaxArgs a, size_t across) {
  constexpr int kLanes = 128 / N, kRows = kThreads / kLanes;
  __shared__ BlockMax<kThreads> block;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t down = blockIdx.x / across, right = blockIdx.x % across;
  const size_t row = down * 128 + threadIdx.x / kLanes,
               col = right * 128 + threadIdx.x % kLanes * N;
  AbsMax<T> partial;
  for (int r0 = 0; r0 < 128; r0 += kRows * kBatch) {
    Vec<T, N> x[kBatch];
    load_rows(a.shard, row + r0, kRows, col, x);
#pragma unroll
    for (int r = 0; r < kBatch; ++r) partial.add(x[r]);
  }
  block.put(partial.bits());
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const float amax = __int_as_float(block.get());
  if (threadIdx.x == 0) {
    static_cast<float *>(a.rowwise)[down * a.rowwise_stride + right * a.block_step] = amax;
  }
}

// A warp for each 32 rows and 32 N columns: N columns per lane.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    partial_amax_mx_kernel(const __grid_constant__ NVTEXPartialAmaxArgs a, size_t across,
                           size_t tiles, bool col_vec) {
  using V = Vec<T, N>;
  constexpr int kLanes = 32 / N;  // Lanes of a block of 32 columns.
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t tile = size_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (tile >= tiles) return;
  const size_t row0 = tile / across * 32, padded = (a.shard.cols + 127) / 128 * 128;
  const size_t col = (tile % across * 32 + threadIdx.x % 32) * N;
  V columns = {};
  for (int r0 = 0; r0 < 32; r0 += kBatch) {
    V x[kBatch];
    load_rows(a.shard, row0 + r0, 1, col, x);
#pragma unroll
    for (int r = 0; r < kBatch; ++r) {
      AbsMax<T> partial;
      partial.add(x[r]);
      int bits = partial.bits();
#pragma unroll
      for (int offset = 1; offset < kLanes; offset *= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, bits, offset);
        bits = bits > other ? bits : other;
      }
      const float amax[1] = {__int_as_float(bits)};
      const size_t row = row0 + r0 + r;
      if (a.rowwise != nullptr && threadIdx.x % kLanes == 0 && row < a.shard.rows && col < padded) {
        store_as(a.shard.dtype, a.rowwise, row * a.rowwise_stride + col / 32,
                 from_float<T, 1>(amax));
      }
#pragma unroll
      for (int i = 0; i < V::kWords; ++i) {
        columns.w[i] = max_packed<T>(columns.w[i], magnitudes<T>(x[r].w[i]));
      }
    }
  }
  if (a.colwise == nullptr || col >= padded) return;
  const size_t to = row0 / 32 * a.colwise_stride + col;
  if (col_vec) {
    store_as(a.shard.dtype, a.colwise, to, columns);
  } else {
    store_some_as(a.shard.dtype, a.colwise, to, N, columns);
  }
}

template <class T, int N>
NVTEXOutcome partial_amax(const NVTEXPartialAmaxArgs &a, cudaStream_t stream) {
  const NVTEXShard &s = a.shard;
  if (a.mode == NVTE_MXFP8_1D_SCALING) {
    const size_t across = ceil_div(ceil_div(s.cols, 128) * 128, 32 * N);
    const size_t tiles = ceil_div(s.rows, 32) * across, blocks = ceil_div(tiles, kThreads / 32);
    if (blocks > kMaxBlocks) return unimplemented("the matrix has too many blocks");
    return launch(partial_amax_mx_kernel<T, N>, dim3(static_cast<unsigned>(blocks)), kThreads,
                  stream, a, across, tiles, aligned(a.colwise, 16));
  }
  const size_t across = ceil_div(s.cols, 128), down = ceil_div(s.rows, 128);
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many blocks");
  return launch(partial_amax_kernel<T, N>, dim3(static_cast<unsigned>(across * down)), kThreads,
                stream, a, across);
}

// The factor that undoes an E8M0 code.
__device__ __forceinline__ float code_factor(uint32_t code) {
  return __uint_as_float(code == 0xff ? 0x7fffffff : e8m0_reciprocal(code));
}

// A warp for each kRows rows, which share their blocks of rows, and 32 N columns.
template <class In, class Out, int N, bool kMx>
__global__ void __launch_bounds__(kThreads)
    partial_cast_kernel(const __grid_constant__ NVTEXPartialCastArgs a, size_t first_row,
                        size_t across, size_t tiles) {
  constexpr int kRows = 4;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t tile = size_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (tile >= tiles) return;
  const size_t row0 = first_row + tile / across * kRows;
  const size_t col = (tile % across * 32 + threadIdx.x % 32) * N;
  if (col >= a.shard.cols) return;
  Vec<In, N> x[kRows];
  load_rows(a.shard, row0, 1, col, x);
  // All scales are loaded before the first store, which could be to any of them as far as the
  // compiler knows.
  float row_factors[kRows] = {}, col_factors[N] = {};
  if (!kMx) {
    row_factors[0] = static_cast<const float *>(
        a.rowwise_scales)[row0 / 128 * a.rowwise_stride + col / 128 * a.block_step];
#pragma unroll
    for (int r = 1; r < kRows; ++r) row_factors[r] = row_factors[0];
  } else if (a.rowwise != nullptr) {
    const auto *codes = static_cast<const uint8_t *>(a.rowwise_scales) + col / 32;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const size_t row = row0 + r;
      if (row < a.shard.rows) row_factors[r] = code_factor(codes[row * a.rowwise_stride]);
    }
  }
  if (kMx && a.colwise != nullptr) {
    const auto codes =
        load<Raw<uint8_t>, N>(a.colwise_scales, row0 / 32 * a.colwise_stride + col, true);
#pragma unroll
    for (int i = 0; i < N; ++i) col_factors[i] = code_factor(codes.w[i / 4] >> (i % 4 * 8) & 0xff);
  }
  const bool inside = inside_shard<N, kRows>(a.shard, row0, 1, col);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const size_t row = row0 + r;
    const Span span = inside ? Span{row * a.shard.cols + col - a.shard.start, 0, N}
                             : span_of<N>(a.shard, row, col);
    if (a.rowwise != nullptr) {
      float factors[N];
#pragma unroll
      for (int i = 0; i < N; ++i) factors[i] = row_factors[r];
      store_span(a.rowwise, span, scaled<Out>(x[r], factors));
    }
    if (kMx && a.colwise != nullptr) store_span(a.colwise, span, scaled<Out>(x[r], col_factors));
  }
}

template <class In, class Out, int N>
NVTEXOutcome partial_cast(const NVTEXPartialCastArgs &a, cudaStream_t stream) {
  constexpr size_t kRows = 4;
  const NVTEXShard &s = a.shard;
  const size_t first_row = s.start / s.cols / kRows * kRows;
  const size_t rows = ceil_div(s.start + s.length, s.cols) - first_row;
  const size_t across = ceil_div(s.cols, 32 * N), tiles = ceil_div(rows, kRows) * across;
  const size_t blocks = ceil_div(tiles, kThreads / 32);
  if (blocks > kMaxBlocks) return unimplemented("the shard has too many elements");
  const dim3 grid(static_cast<unsigned>(blocks));
  return a.mode == NVTE_MXFP8_1D_SCALING ? launch(partial_cast_kernel<In, Out, N, true>, grid,
                                                  kThreads, stream, a, first_row, across, tiles)
                                         : launch(partial_cast_kernel<In, Out, N, false>, grid,
                                                  kThreads, stream, a, first_row, across, tiles);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_partial_amax(const NVTEXPartialAmaxArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch_bf16_or_widened(args->shard.dtype, [&](auto in) {
    using In = decltype(in);
    constexpr int kVec = 16 / In::kBytes;
    const size_t bytes = bytes_of<In>(args->shard.dtype);
    return vectors_of(kVec, args->shard, args->shard.input, bytes)
               ? partial_amax<In, kVec>(*args, stream)
               : partial_amax<In, 1>(*args, stream);
  });
}

extern "C" NVTEXOutcome nvte_cuda_partial_cast(const NVTEXPartialCastArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch_bf16_or_widened(args->shard.dtype, [&](auto in) {
    return dispatch<E4M3, E5M2>(args->output_dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      constexpr int kVec = 16;
      const NVTEXShard &s = args->shard;
      const bool vectors = vectors_of(kVec, s, s.input, bytes_of<In>(s.dtype)) &&
                           (args->rowwise == nullptr || vectors_of(kVec, s, args->rowwise, 1)) &&
                           (args->colwise == nullptr || (vectors_of(kVec, s, args->colwise, 1) &&
                                                         aligned(args->colwise_scales, kVec)));
      return vectors ? partial_cast<In, Out, kVec>(*args, stream)
                     : partial_cast<In, Out, 1>(*args, stream);
    });
  });
}
