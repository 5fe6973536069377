// Casts of a matrix, rowwise and transposed: y = cast(x * scale), with amax and scale_inv, and
// y = cast(x * scale_inv) back.

#include "modes.cuh"
#include "common/stream.cuh"
#include "common/tile.cuh"
#include "nvte/backend/transpose.h"

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
    int seen;  // The amax that the block's first thread saw when it began.
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

  // Called by the block's first warp. Atomics on one address are slow, so a block skips them if its
  // amax was already reached when the block began.
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
NVTEXOutcome quantize(const NVTEXCast &a, cudaStream_t stream) {
  const Quantize<In, Out> op = {a.scale, a.noop, a.amax, static_cast<float *>(a.rowwise_scale_inv),
                                static_cast<float *>(a.colwise_scale_inv)};
  if (a.colwise == nullptr) {
    return launch_stream(a.input, a.rowwise, a.rows * a.cols, op, stream);
  }
  if constexpr (In::kBytes == 2 && kIsFp8<Out>) {
    // Smaller tiles where others are too few for all multiprocessors: H200, 512 x 1024 1.58 us (256
    // threads 1.63, 512 2.05).
    Device device;
    if (const cudaError_t error = current_device(&device)) return outcome(error);
    const auto most = static_cast<size_t>(device.sm_count);
    using Shape = TileShape<Quantize<In, Out>, default_tile<Quantize<In, Out>>().threads, 1>;
    if (ceil_div(a.rows, Shape::kRows) * ceil_div(a.cols, Shape::kCols) < most) {
      return launch_tile<Quantize<In, Out>, 128, 1, 4>(a.input, a.rowwise, a.colwise, a.rows,
                                                       a.cols, op, stream);
    }
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

extern "C" NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *, cudaStream_t) noexcept;

namespace nvte {
namespace {

NVTEXOutcome quantize_plain(const NVTEXCast &q, cudaStream_t stream) {
  return dispatch<F32, F16, BF16>(q.input_dtype, [&](auto in) {
    return dispatch<F32, F16, BF16, E4M3, E5M2>(
        q.output_dtype, [&](auto out) { return quantize<decltype(in), decltype(out)>(q, stream); });
  });
}

// Casts to outputs of 16 or 32 bits.
NVTEXOutcome quantize_wide(const NVTEXCast &q, cudaStream_t stream) {
  if (q.fusion.form == NVTEX_FORM_PLAIN) return quantize_plain(q, stream);
  if (q.fusion.row_scales != nullptr) return unimplemented("no CUDA kernel for scales of rows");
  const NVTEXOutcome cast = quantize_elements(q, stream);
  if (cast.status != NVTEX_BACKEND_OK || q.rowwise == nullptr || q.colwise == nullptr) return cast;
  const size_t size = q.output_dtype == kNVTEFloat32 ? 4 : 2;
  const NVTEXTransposeArgs transpose = {q.rowwise, q.colwise, nullptr, q.rows, q.cols, size};
  return nvte_cuda_transpose(&transpose, stream);
}

NVTEXOutcome quantize_per_tensor(const NVTEXCast &q, cudaStream_t stream) {
  const bool dbias = q.fusion.dbias != nullptr;
  if (dbias && q.rowwise == nullptr && q.colwise == nullptr) return quantize_tensor(q, stream);
  if (q.output_dtype != kNVTEFloat8E4M3 && q.output_dtype != kNVTEFloat8E5M2) {
    const NVTEXOutcome cast =
        q.group.num_tensors != 0 ? quantize_group_wide(q, stream) : quantize_wide(q, stream);
    if (cast.status != NVTEX_BACKEND_OK || !dbias) return cast;
    NVTEXCast sums = q;
    sums.rowwise = sums.colwise = nullptr;
    sums.amax = nullptr;
    sums.rowwise_scale_inv = sums.colwise_scale_inv = nullptr;
    sums.scale = nullptr;
    return quantize_tensor(sums, stream);
  }
  if (dbias || q.group.num_tensors != 0 || q.fusion.row_scales != nullptr) {
    return quantize_tensor(q, stream);
  }
  if (q.fusion.form == NVTEX_FORM_PLAIN) return quantize_plain(q, stream);
  return q.colwise == nullptr ? quantize_elements(q, stream) : quantize_tensor(q, stream);
}

NVTEXOutcome quantize_in_mode(const NVTEXCast &q, cudaStream_t stream) {
  switch (q.mode) {
    case NVTE_DELAYED_TENSOR_SCALING:
      return quantize_per_tensor(q, stream);
    case NVTE_MXFP8_1D_SCALING:
      return q.square_blocks ? quantize_mx_square(q, stream) : quantize_mx(q, stream);
    case NVTE_BLOCK_SCALING_1D:
      return quantize_1d(q, stream);
    case NVTE_BLOCK_SCALING_2D:
      return quantize_2d(q, stream);
    default:
      return unimplemented("no CUDA kernel for this scaling mode");
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_quantize(const NVTEXQuantizeArgs *args,
                                           cudaStream_t stream) noexcept {
  const NVTEXCast &q = args->cast;
  const NVTEXForm form = q.fusion.form;
  if (q.fusion.dbias != nullptr && form != NVTEX_FORM_PLAIN && form != NVTEX_FORM_DERIVATIVE) {
    return nvte::unimplemented("no CUDA kernel for dbias of this form");
  }
  if (q.fusion.dbias != nullptr && nvte::sums_columns(q)) {
    const NVTEXOutcome sums = nvte::sum_columns(q, stream);
    // If there is one tile, its sums are the result, and no second step is needed.
    if (sums.status != NVTEX_BACKEND_OK || q.rows <= 128) return sums;
    return nvte::sum_dbias(q, stream);
  }
  const NVTEXOutcome cast = nvte::quantize_in_mode(q, stream);
  if (cast.status != NVTEX_BACKEND_OK || q.fusion.dbias == nullptr) return cast;
  return nvte::sum_dbias(q, stream);
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
