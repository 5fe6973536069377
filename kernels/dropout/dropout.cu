// Dropout: a warp takes 1024 elements, each of its lanes the random bits of 32 of them. Backward: a
// thread takes a vector.

#include "common/launch.cuh"
#include "common/philox.cuh"
#include "common/vec.cuh"
#include "nvte/backend/dropout.h"

namespace nvte {
namespace {

constexpr int kThreads = 128;
constexpr size_t kPerWarp = 1024;

struct Problem {
  const void *input;
  void *output;
  uint8_t *mask;
  const uint64_t *rng_state;
  const float *scale_inv;
  size_t numel;
  float scale;
  uint32_t least;   // A random byte below it drops.
  bool vectorised;  // Input, output, residual, bias with its rows, and mask are aligned.
  const void *residual;
  const void *bias;
  size_t cols;
  size_t first;  // Groups of 16 elements of the whole before these.
};

// The mask of elements 16 c to 16 c + 15.
__device__ __forceinline__ uint32_t kept(uint64_t seed, uint64_t offset, uint32_t least, size_t c) {
  Words r = philox(seed, offset / 4, c);
  if (const int from = static_cast<int>(offset % 4)) {
    const Words next = philox(seed, offset / 4 + 1, c);
    const uint32_t w[8] = {r.w[0],    r.w[1],    r.w[2],    r.w[3],
                           next.w[0], next.w[1], next.w[2], next.w[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) r.w[i] = from == 1 ? w[i + 1] : from == 2 ? w[i + 2] : w[i + 3];
  }
  // The top bit of each byte: whether it is at least `least`, by its low 7 bits and then its own.
  constexpr uint32_t kTop = 0x80808080;
  const uint32_t low = (least & 0x7f) * 0x01010101, small = least < 128 ? ~0u : 0u;
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t w = r.w[i], d = (w | kTop) - low;
    const uint32_t keep = ((w & d) | ((w | d) & small)) & kTop;
    // Bytes 2, 0, 3 and 1 belong to elements 2 i, 2 i + 1, 2 i + 8 and 2 i + 9.
    bits |= ((keep >> 23 | keep >> 6) & 0x0303) << (2 * i);
  }
  return bits;
}

// Column of an element that is less than kPerWarp after one in column `first`.
__device__ __forceinline__ size_t column(size_t first, unsigned after, size_t cols) {
  const size_t col = first + after;
  if (cols < kPerWarp) return static_cast<unsigned>(col) % static_cast<unsigned>(cols);
  return col < cols ? col : col - cols;
}

template <class In, class Out, bool kAdd>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const __grid_constant__ Problem a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int N = 16 / Out::kBytes;
  constexpr int kVecs = static_cast<int>(kPerWarp) / 32 / N;
  constexpr int kPer = 32 / N;  // Vectors with bits of one lane.
  const unsigned lane = threadIdx.x % 32;
  const size_t start = (blockIdx.x * size_t{kThreads} + threadIdx.x) / 32 * kPerWarp;
  if (start >= a.numel) return;
  const size_t left = a.numel - start;
  const bool whole = a.vectorised && left >= kPerWarp;

  const size_t first = start / 8 + lane * 4;
  const size_t rest = left > lane * 32 ? left - lane * 32 : 0;
  const size_t first_col = kAdd && a.bias != nullptr ? start % a.cols : 0;
  Vec<In, N> x[kVecs], bias[kVecs], residual[kVecs];
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    const unsigned at = (v * 32 + lane) * N;
    const int count = left <= at ? 0 : left - at < N ? static_cast<int>(left - at) : N;
    x[v] = whole ? load<In, N>(a.input, start + at, true)
                 : load_some<In, N>(a.input, start + at, count);
    if constexpr (kAdd) {
      residual[v] = whole ? load<In, N>(a.residual, start + at, true)
                          : load_some<In, N>(a.residual, start + at, count);
      bias[v] = {};
      if (whole) {
        const size_t col = column(first_col, at, a.cols);
        bias[v] = load<In, N>(a.bias, col, a.bias != nullptr);
      } else if (a.bias != nullptr) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (i >= count) break;
          const auto one = load<In, 1>(a.bias, column(first_col, at + i, a.cols), true);
          bias[v].w[i / bias[v].kPerWord] |= one.w[0] << (i % bias[v].kPerWord * 8 * In::kBytes);
        }
      }
    }
  }

  float scale_inv = 1.0f;
  if constexpr (kIsFp8<In>) scale_inv = *a.scale_inv;
  const uint64_t seed = a.rng_state[0], offset = a.rng_state[1];
  const size_t chunk = a.first + start / 16 + lane * 2;
  // A word of the mask for each lane.
  uint32_t drawn = kept(seed, offset, a.least, chunk) | kept(seed, offset, a.least, chunk + 1)
                                                            << 16;
  if (whole) {
    *reinterpret_cast<uint32_t *>(a.mask + first) = drawn;
  } else {
    if (rest < 32) drawn &= (1u << rest) - 1;
    for (unsigned byte = 0; byte < 4 && byte * 8 < rest; ++byte) {
      a.mask[first + byte] = static_cast<uint8_t>(drawn >> (byte * 8));
    }
  }

#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    const unsigned at = (v * 32 + lane) * N;
    const uint32_t bits =
        __shfl_sync(0xffffffffu, drawn, (v * 32 + lane) / kPer) >> (lane % kPer * N);
    float f[N];
    to_float(x[v], f);
    [[maybe_unused]] float before[N], after[N];
    if constexpr (kAdd) {
      to_float(bias[v], before);
      to_float(residual[v], after);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kIsFp8<In>) f[i] = __fmul_rn(f[i], scale_inv);
      if constexpr (kAdd) {
        if (a.bias != nullptr) f[i] = __fadd_rn(f[i], before[i]);
      }
      f[i] = bits >> i & 1 ? __fmul_rn(f[i], a.scale) : 0.0f;
      if constexpr (kAdd) f[i] = __fadd_rn(after[i], f[i]);
    }
    const Vec<Out, N> y = from_float<Out>(f);
    const int count = left <= at ? 0 : left - at < N ? static_cast<int>(left - at) : N;
    if (whole) {
      store(a.output, start + at, y);
    } else {
      store_some(a.output, start + at, count, y);
    }
  }
}

// H200, bf16, 8192 x 8192, GB/s: 4190; 128, 512 or 1024 threads 3490, 4120, 3970; two vectors for
// each of 256 threads 4170, four 4080.
constexpr int kBackwardThreads = 256;

template <class T>
__global__ void __launch_bounds__(kBackwardThreads)
    dropout_backward_kernel(const __grid_constant__ Problem a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int N = 16 / T::kBytes;
  const size_t start = (blockIdx.x * size_t{kBackwardThreads} + threadIdx.x) * N;
  if (start >= a.numel) return;
  const int count = a.numel - start < N ? static_cast<int>(a.numel - start) : N;
  const bool whole = a.vectorised && count == N;
  const Vec<T, N> x =
      whole ? load<T, N>(a.input, start, true) : load_some<T, N>(a.input, start, count);
  const unsigned bits = a.mask[start / 8] >> start % 8;
  float f[N];
  to_float(x, f);
#pragma unroll
  for (int i = 0; i < N; ++i) f[i] = bits >> i & 1 ? __fmul_rn(f[i], a.scale) : 0.0f;
  const Vec<T, N> y = from_float<T>(f);
  if (whole) {
    store(a.output, start, y);
  } else {
    store_some(a.output, start, count, y);
  }
}

// Blocks have 1024 elements or more each, so that a grid with more blocks than there can be would
// need more memory than there is.
template <class In, class Out>
NVTEXOutcome run(const Problem &a, cudaStream_t stream) {
  if (a.rng_state == nullptr) {
    if constexpr (kIsFp8<In>) {
      return unimplemented("dropout: backward of FP8");
    } else {
      const size_t vectors = ceil_div(a.numel, size_t{16 / In::kBytes});
      const dim3 grid(static_cast<unsigned>(ceil_div(vectors, size_t{kBackwardThreads})));
      return launch(dropout_backward_kernel<In>, grid, kBackwardThreads, stream, a);
    }
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(a.numel, kPerWarp * (kThreads / 32))));
  if constexpr (!kIsFp8<In>) {
    if (a.residual != nullptr) {
      return launch(dropout_kernel<In, Out, true>, grid, kThreads, stream, a);
    }
  }
  return launch(dropout_kernel<In, Out, false>, grid, kThreads, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_dropout(const NVTEXDropoutArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  // Vectors of the output's elements.
  const size_t lanes = args->output_dtype == kNVTEFloat32 ? 4 : 8;
  const bool whole_rows = args->bias == nullptr || args->cols % lanes == 0;
  const Problem a = {args->input,
                     args->output,
                     args->mask,
                     args->rng_state,
                     args->scale_inv,
                     args->numel,
                     1.0f / (1.0f - args->probability),
                     static_cast<uint32_t>(args->probability * 256.0f),
                     whole_rows && aligned(args->input, 16) && aligned(args->output, 16) &&
                         aligned(args->mask, 4) && aligned(args->residual, 16) &&
                         aligned(args->bias, 16),
                     args->residual,
                     args->bias,
                     args->cols,
                     args->first};
  return dispatch<F32, F16, BF16>(args->output_dtype, [&](auto o) {
    using Out = decltype(o);
    if (args->input_dtype == Out::kDtype) return run<Out, Out>(a, stream);
    return dispatch<E4M3, E5M2>(args->input_dtype,
                                [&](auto i) { return run<decltype(i), Out>(a, stream); });
  });
}
