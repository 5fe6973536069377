// Activations with scales of the rows, and their derivatives. The work per row is the same in all
// dtypes, which are therefore read at run time.

#include "cast/function.cuh"
#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/activation.h"

namespace nvte {
namespace {

using Args = NVTEXScaledActivationArgs;

constexpr int kThreads = 256;
constexpr int kVec = 8;                      // Neighbouring elements of a thread.
constexpr int kMinLanes = 3, kMaxLanes = 7;  // Logarithms of the threads of a row.
static_assert(kVec << kMaxLanes == 1024, "the sums that the arguments speak of");

// kVec elements as they are in memory, from the low bits on.
struct Words {
  uint32_t w[kVec];
};

// Elements of one of three dtypes.
struct Floats {
  void *base;
  NVTEDType dtype;

  __device__ Floats(const void *base, NVTEDType dtype)
      : base(const_cast<void *>(base)), dtype(dtype) {}

  __device__ __forceinline__ bool wide() const { return dtype == kNVTEFloat32; }

  // The first `count` of kVec elements, zeros after them; with kVectors all, aligned to 16 bytes.
  template <bool kVectors>
  __device__ __forceinline__ Words load(size_t at, int count) const {
    Words v = {};
    if constexpr (kVectors) {
      const char *p = static_cast<const char *>(base) + at * (wide() ? 4 : 2);
      load_once<16>(p, true, v.w);
      load_once<16>(p + 16, wide(), v.w + 4);
    } else if (wide()) {
      const Vec<F32, kVec> x = load_some<F32, kVec>(base, at, count);
#pragma unroll
      for (int i = 0; i < kVec; ++i) v.w[i] = x.w[i];
    } else {
      const Vec<F16, kVec> x = load_some<F16, kVec>(base, at, count);
#pragma unroll
      for (int i = 0; i < kVec / 2; ++i) v.w[i] = x.w[i];
    }
    return v;
  }

  template <class T>
  static __device__ __forceinline__ void widen(const Words &v, float (&f)[kVec]) {
    Vec<T, kVec> x;
#pragma unroll
    for (int i = 0; i < Vec<T, kVec>::kWords; ++i) x.w[i] = v.w[i];
    to_float(x, f);
  }

  __device__ __forceinline__ void widen(const Words &v, float (&f)[kVec]) const {
    if (wide()) {
      widen<F32>(v, f);
    } else if (dtype == kNVTEBFloat16) {
      widen<BF16>(v, f);
    } else {
      widen<F16>(v, f);
    }
  }

  template <bool kVectors, class T>
  __device__ __forceinline__ void store_as(size_t at, int count, const float (&f)[kVec]) const {
    const Vec<T, kVec> y = from_float<T>(f);
    if constexpr (kVectors) {
      nvte::store(base, at, y);
    } else {
      store_some(base, at, count, y);
    }
  }

  template <bool kVectors>
  __device__ __forceinline__ void store(size_t at, int count, const float (&f)[kVec]) const {
    if (wide()) {
      store_as<kVectors, F32>(at, count, f);
    } else if (dtype == kNVTEBFloat16) {
      store_as<kVectors, BF16>(at, count, f);
    } else {
      store_as<kVectors, F16>(at, count, f);
    }
  }

  __device__ __forceinline__ float first(size_t at) const {
    float f[kVec];
    widen(load<false>(at, 1), f);
    return f[0];
  }
};

// Elements of a thread: those of its lane, and so on in steps of all lanes of the row. Returns the
// sum of its products.
template <class Curve, bool kGated, bool kBackward, bool kVectors>
__device__ __forceinline__ float do_row(const Args &a, const Curve &curve, size_t row,
                                        unsigned lane, unsigned lanes) {
  const Floats input(a.input, a.input_dtype), grad(a.grad, a.grad_dtype);
  const Floats output(a.output, a.output_dtype);
  const float scale = Floats(a.scales, a.scales_dtype).first(row);
  const size_t start = row * a.cols, wide_start = kGated ? 2 * start : start;
  float sums[kVec] = {};
  for (size_t h = lane * kVec; h < a.cols; h += lanes * kVec) {
    const int count = kVectors || a.cols - h > kVec ? kVec : static_cast<int>(a.cols - h);
    const size_t block = !kGated || a.interleave == a.cols ? 0 : h / a.interleave;
    const size_t at = wide_start + h + block * a.interleave;
    const Words a_words = input.load<kVectors>(at, count);
    Words g_words, grad_words;
    if constexpr (kGated) g_words = input.load<kVectors>(at + a.interleave, count);
    if constexpr (kBackward) grad_words = grad.load<kVectors>(start + h, count);

    float x[kVec], y[kVec];
    input.widen(a_words, x);
    [[maybe_unused]] float g[kVec], dy[kVec], dg[kVec];
    if constexpr (kGated) input.widen(g_words, g);
    if constexpr (kBackward) grad.widen(grad_words, dy);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float f = curve.value(x[i]);
      float gate = 1.0f;
      if constexpr (kGated) gate = curve.gate(g[i]);
      const float v = kGated ? __fmul_rn(f, gate) : f;
      if constexpr (kBackward) {
        const float scaled = __fmul_rn(dy[i], scale), slope = curve.slope(x[i]);
        y[i] = __fmul_rn(scaled, kGated ? __fmul_rn(slope, gate) : slope);
        if constexpr (kGated) dg[i] = __fmul_rn(scaled, __fmul_rn(curve.gate_slope(g[i]), f));
        if (i < count) sums[i] = __fadd_rn(sums[i], __fmul_rn(dy[i], v));
      } else {
        y[i] = __fmul_rn(v, scale);
      }
    }
    const size_t to = kBackward ? at : start + h;
    output.store<kVectors>(to, count, y);
    if constexpr (kBackward && kGated) output.store<kVectors>(to + a.interleave, count, dg);
  }
#pragma unroll
  for (int step = 1; step < kVec; step *= 2) {
#pragma unroll
    for (int i = 0; i < kVec; i += 2 * step) sums[i] = __fadd_rn(sums[i], sums[i + step]);
  }
  return sums[0];
}

// The sum of a row's lanes, neighbours first, in its first lane. All threads of the block call
// this.
__device__ __forceinline__ float sum_lanes(float sum, unsigned lane, unsigned lanes) {
  for (unsigned step = 1; step < lanes && step < 32; step *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
  }
  if (lanes > 32) {
    __shared__ float warps[kThreads / 32];
    const unsigned warp = threadIdx.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[warp] = sum;
    __syncthreads();
    if (lane == 0) {
      sum = __fadd_rn(warps[warp], warps[warp + 1]);
      if (lanes > 64) sum = __fadd_rn(sum, __fadd_rn(warps[warp + 2], warps[warp + 3]));
    }
  }
  return sum;
}

template <class Curve, bool kGated, bool kBackward, bool kVectors>
__global__ void __launch_bounds__(kThreads, 3)
    scaled_activation_kernel(const __grid_constant__ Args a, const __grid_constant__ Curve curve,
                             int log_lanes) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned lanes = 1u << log_lanes, lane = threadIdx.x % lanes;
  const unsigned rows = kThreads >> log_lanes;
  for (size_t first = size_t{blockIdx.x} * rows; first < a.rows;
       first += size_t{gridDim.x} * rows) {
    const size_t row = first + (threadIdx.x >> log_lanes);
    float sum = 0.0f;
    if (row < a.rows) {
      sum = do_row<Curve, kGated, kBackward, kVectors>(a, curve, row, lane, lanes);
    }
    if constexpr (kBackward) {
      if (a.grad_scales == nullptr) continue;
      sum = sum_lanes(sum, lane, lanes);
      if (lane == 0 && row < a.rows) {
        const float f[kVec] = {sum};
        Floats(a.grad_scales, a.grad_scales_dtype).store<false>(row, 1, f);
      }
    }
  }
}

template <bool kGated, bool kBackward, class Curve>
NVTEXOutcome launch_rows(const Args &a, const Curve &curve, cudaStream_t stream) {
  const bool vectors =
      a.cols % kVec == 0 && aligned(a.input, 16) && aligned(a.grad, 16) && aligned(a.output, 16);
  int log_lanes = kMinLanes;
  while (log_lanes < kMaxLanes && (size_t{kVec} << log_lanes) < a.cols) ++log_lanes;
  size_t blocks = ceil_div(a.rows, kThreads >> log_lanes);
  if (blocks > kMaxBlocks) blocks = kMaxBlocks;
  const auto kernel = vectors ? scaled_activation_kernel<Curve, kGated, kBackward, true>
                              : scaled_activation_kernel<Curve, kGated, kBackward, false>;
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, stream, a, curve, log_lanes);
}

template <bool kGated, class Curve>
NVTEXOutcome scaled_activation(const Args &a, const Curve &curve, cudaStream_t stream) {
  return a.grad != nullptr ? launch_rows<kGated, true>(a, curve, stream)
                           : launch_rows<kGated, false>(a, curve, stream);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_scaled_activation(const NVTEXScaledActivationArgs *args,
                                                    cudaStream_t stream) noexcept {
  using namespace nvte;
  const Args &a = *args;
  if (!a.gated && a.function == NVTEX_SRELU) {
    return scaled_activation<false>(a, Srelu{}, stream);
  }
  if (a.gated && a.function == NVTEX_SILU) {
    return scaled_activation<true>(a, SigmoidLinear(1.0f), stream);
  }
  if (a.gated && a.function == NVTEX_CLAMPED_SILU) {
    return scaled_activation<true>(a, ClampedSilu{SigmoidLinear(a.b), a.a, a.c}, stream);
  }
  if (a.gated && a.function == NVTEX_SITU) {
    return scaled_activation<true>(a, Situ{a.a, a.b}, stream);
  }
  return unimplemented("scaled_activation: no kernel for this function");
}
