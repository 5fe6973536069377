// Casts of a matrix, rowwise and transposed: y = cast(x * scale), with amax and scale_inv, and
// y = cast(x * scale_inv) back.

#include "common/cast_block.cuh"
#include "common/stream.cuh"
#include "common/tile.cuh"

namespace nvte {
namespace {

template <class In_, class Out_>
struct Quantize {
  using In = In_;
  using Out = Out_;
  static constexpr bool kHasAmax = true;
  static constexpr bool kByPlace = false;

  const float *scale;
  const float *noop;
  float *amax;
  float *rowwise_scale_inv;
  float *colwise_scale_inv;

  struct State {
    float flag;
    float scale;
    int seen;  // Of the block's first thread.
    AbsMax<In> amax;
    __device__ bool skip() const { return flag == 1.0f; }
  };

  __device__ State begin() const {
    State state;
    state.flag = noop != nullptr ? *noop : 0.0f;
    state.scale = kIsFp8<Out> && scale != nullptr ? *scale : 1.0f;
    state.seen = 0;
    if (amax != nullptr && threadIdx.x == 0) state.seen = __ldcg(reinterpret_cast<int *>(amax));
    return state;
  }

  template <int N>
  __device__ __forceinline__ Vec<Out, N> apply(State &state, const Vec<In, N> &x) const {
    state.amax.add(x);
    float f[N];
    to_float(x, f);
    if constexpr (kIsFp8<Out>) {
      // The product of a NaN is the positive NaN, so that every NaN becomes 0x7F.
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = __fmul_rn(f[i], state.scale);
    }
    return from_float<Out>(f);
  }

  // By the block's first warp. Atomics on one address are slow: an amax that was already reached
  // when the block began needs none.
  __device__ void raise_amax(const State &state, int bits) const {
    if (threadIdx.x == 0 && bits > state.seen) atomicMax(reinterpret_cast<int *>(amax), bits);
  }

  __device__ void finish(const State &state) const {
    const float inverse = __frcp_rn(state.scale);
    if (rowwise_scale_inv != nullptr) *rowwise_scale_inv = inverse;
    if (colwise_scale_inv != nullptr) *colwise_scale_inv = inverse;
  }
};

template <class In_, class Out_>
struct Dequantize {
  using In = In_;
  using Out = Out_;
  static constexpr bool kHasAmax = false;
  static constexpr bool kByPlace = false;

  const float *scale_inv;

  struct State {
    float scale_inv;
    __device__ bool skip() const { return false; }
  };
  __device__ State begin() const { return {*scale_inv}; }

  template <int N>
  __device__ __forceinline__ Vec<Out, N> apply(const State &state, const Vec<In, N> &x) const {
    float f[N];
    to_float(x, f);
#pragma unroll
    for (int i = 0; i < N; ++i) f[i] = __fmul_rn(f[i], state.scale_inv);
    return from_float<Out>(f);
  }

  __device__ void finish(const State &) const {}
};

template <class In, class Out>
NVTEXOutcome quantize(const NVTEXQuantizeArgs &a, cudaStream_t stream) {
  const Quantize<In, Out> op = {a.scale, a.noop, a.amax, static_cast<float *>(a.rowwise_scale_inv),
                                static_cast<float *>(a.colwise_scale_inv)};
  if (a.colwise == nullptr) {
    return launch_stream(a.input, a.rowwise, a.rows * a.cols, op, stream);
  }
  return launch_tile(a.input, a.rowwise, a.colwise, a.rows, a.cols, op, stream);
}

template <class In, class Out>
NVTEXOutcome dequantize(const NVTEXDequantizeArgs &a, cudaStream_t stream) {
  const Dequantize<In, Out> op = {static_cast<const float *>(a.scale_inv)};
  if (!a.colwise) return launch_stream(a.input, a.output, a.rows * a.cols, op, stream);
  return launch_tile(a.input, nullptr, a.output, a.cols, a.rows, op, stream);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_quantize(const NVTEXQuantizeArgs *args,
                                           cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->mode != NVTE_DELAYED_TENSOR_SCALING) return quantize_blocks(*args, stream);
  return dispatch<F32, F16, BF16>(args->input_dtype, [&](auto in) {
    return dispatch<F32, F16, BF16, E4M3, E5M2>(args->output_dtype, [&](auto out) {
      return quantize<decltype(in), decltype(out)>(*args, stream);
    });
  });
}

extern "C" NVTEXOutcome nvte_cuda_dequantize(const NVTEXDequantizeArgs *args,
                                             cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->mode != NVTE_DELAYED_TENSOR_SCALING || args->group.num_tensors != 0) {
    return dequantize_blocks(*args, stream);
  }
  return dispatch<E4M3, E5M2>(args->input_dtype, [&](auto in) {
    return dispatch<F32, F16, BF16>(args->output_dtype, [&](auto out) {
      return dequantize<decltype(in), decltype(out)>(*args, stream);
    });
  });
}
