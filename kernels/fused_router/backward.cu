// Gradients of the router's logits. A warp takes a token, or two of at most 64 experts. If only the
// chosen experts count, and there are more than 128, it lists them, a lane computes one, and the
// row of zeros and gradients is put together in shared memory; otherwise lanes compute all.

#include <cmath>

#include "common/runtime_float.cuh"
#include "common/launch.cuh"
#include "router.cuh"
#include "nvte/backend/fused_router.h"

namespace nvte {
namespace {

using Args = NVTEXRouterBackwardArgs;

constexpr int kWarps = 4;
constexpr int kShortBlocks = 16;  // Of a multiprocessor, with at most 64 experts.

__device__ __forceinline__ size_t index_at(const NVTEXRouting &from, size_t at) {
  if (from.index_dtype == kNVTEInt16) {
    return static_cast<size_t>(int64_t{*element<int16_t>(from.indices, at)});
  }
  if (from.index_dtype == kNVTEInt32) {
    return static_cast<size_t>(int64_t{*element<int32_t>(from.indices, at)});
  }
  return static_cast<size_t>(*element<int64_t>(from.indices, at));
}

__device__ __forceinline__ bool routed_at(const Args &a, size_t token, size_t e) {
  if (a.routing.bytes != nullptr) return a.routing.bytes[token * a.experts + e] != 0;
  return a.routing.bits[token * ((a.experts + 7) / 8) + e / 8] >> (e % 8) & 1;
}

// Which of the lane's elements are routed, as bits. kLanes lanes share a token; of those that have
// none, `token` is not below `a.tokens`. More than one token in a warp goes with one vector.
template <int V, int C, int kLanes = 32>
__device__ __forceinline__ uint32_t routed_elements(const Args &a, size_t token) {
  static_assert(kLanes == 32 || C == 1, "one vector");
  const unsigned lane = threadIdx.x % kLanes;
  const bool live = kLanes == 32 || token < a.tokens;
  uint32_t routed = 0;
  if (a.routing.bytes != nullptr) {
    const uint8_t *row = a.routing.bytes + token * a.experts;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const unsigned e = (c * kLanes + lane) * V;
      if constexpr (V == 4) {
        uint32_t w[1];
        load_once<4>(row + e, live && e < a.experts, w);
        routed |= (__vminu4(w[0], 0x01010101) * 0x10204080u >> 28) << (4 * c);
      } else {
        routed |= (live && e < a.experts && row[e] != 0) << c;
      }
    }
  } else if (a.routing.bits != nullptr) {
    const uint8_t *row = a.routing.bits + token * ((a.experts + 7) / 8);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const unsigned e = (c * kLanes + lane) * V;
      const uint32_t byte = live && e < a.experts ? row[e / 8] : 0;
      routed |= (byte >> (e % 8) & (V == 4 ? 15 : 1)) << (V * c);
    }
  } else {
    for (size_t first = 0; first < a.topk; first += kLanes) {
      const size_t left = a.topk - first;
      const bool some = lane < left && live;
      const size_t mine = some ? index_at(a.routing, token * a.topk + first + lane) : ~size_t{0};
      const unsigned number = mine < a.experts ? static_cast<unsigned>(mine) : ~0u;
      for (unsigned i = 0; i < kLanes && i < left; ++i) {
        const unsigned e = __shfl_sync(kFullWarp, number, i, kLanes);
        const unsigned vector = e / V;
        if (e != ~0u && vector % kLanes == lane) routed |= 1u << (vector / kLanes * V + e % V);
      }
    }
  }
  return routed;
}

// The sums over all experts that a token's gradients need.
struct Sums {
  float inverse;  // 1 / S, 1 without normalisation
  float dot;
};

template <int kLanes>
__device__ __forceinline__ float sum_over(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(kFullWarp, value, step);
  }
  return value;
}

template <int kLanes = 32>
__device__ __forceinline__ Sums sums_of(const Args &a, float y, float gy) {
  gy = sum_over<kLanes>(gy);
  if (a.score == NVTEX_ROUTER_SOFTMAX) return {1.0f, gy};
  if (!a.all && a.topk <= 1) return {1.0f, 0.0f};
  return {1.0f / (sum_over<kLanes>(y) + kEpsilon), gy};
}

// The gradient of an expert with the score y of the intermediate value x and the gradient g.
__device__ __forceinline__ float gradient(const Args &a, const Sums &sums, float x, float y,
                                          float g) {
  if (a.score == NVTEX_ROUTER_SOFTMAX) return y * (g - sums.dot);
  const bool normalised = a.all || a.topk > 1;
  if (normalised) g = (g - sums.dot * sums.inverse) * sums.inverse;
  if (a.score == NVTEX_ROUTER_SIGMOID) return g * y * (1.0f - y);
  const float slope = x > 20.0f ? 1.0f : sigmoid(x);
  return g * __fdividef(slope, 2.0f * y + kEpsilon);
}

__device__ __forceinline__ float score_of(const Args &a, float x) {
  return a.score == NVTEX_ROUTER_SQRTSOFTPLUS ? sqrtsoftplus(x) : x;
}

// kLanes lanes share a token. With few of them, what is routed of the next tokens is under way
// meanwhile.
template <class T, bool kAll, int V, int C, int kLanes>
__global__ void __launch_bounds__(32 * kWarps, kLanes < 32 ? kShortBlocks : 1)
    held_kernel(const __grid_constant__ Args a) {
  using G = std::conditional_t<kAll, RuntimeFloat, T>;
  constexpr int N = V * C;
  constexpr uint32_t kVector = (1u << V) - 1;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr unsigned kTokens = 32 / kLanes;
  const unsigned lane = threadIdx.x % kLanes;
  constexpr bool kAhead = !kAll && kLanes < 32;
  const size_t step = size_t{gridDim.x} * kWarps * kTokens;
  size_t first = (size_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kTokens;
  [[maybe_unused]] uint32_t next = 0;
  if constexpr (kAhead) {
    next = routed_elements<V, C, kLanes>(a, first + threadIdx.x % 32 / kLanes);
  }
  for (; first < a.tokens; first += step) {
    const size_t token = first + threadIdx.x % 32 / kLanes, row = token * a.experts;
    const bool live = kLanes == 32 || token < a.tokens;
    uint32_t routed = kFullWarp;
    if constexpr (!kAll) routed = kAhead ? next : routed_elements<V, C, kLanes>(a, token);
    const bool everywhere = kAll || a.pre_softmax;
    Vec<F32, V> values[C];
    Vec<G, V> grads[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const unsigned e = (c * kLanes + lane) * V;
      const bool some = live && e < a.experts && (routed >> (c * V) & kVector) != 0;
      values[c] =
          load<F32, V>(a.intermediate, row + e, some || (everywhere && live && e < a.experts));
      grads[c] = load<G, V>(a.grad_dtype, a.grad, row + e, some);
    }
    if constexpr (kAhead) next = routed_elements<V, C, kLanes>(a, token + step);
    float x[N], y[N], g[N], sum = 0.0f, dot = 0.0f;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const bool inside = live && (c * kLanes + lane) * V < a.experts;
      float xs[V], gs[V];
      to_float(values[c], xs);
      to_float(a.grad_dtype, grads[c], gs);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int i = c * V + j;
        const bool in = inside && (routed >> i & 1);
        x[i] = xs[j];
        y[i] = in || everywhere ? score_of(a, x[i]) : 0.0f;
        g[i] = in ? gs[j] * a.scaling_factor : 0.0f;
        sum += in ? y[i] : 0.0f;
        dot += in ? g[i] * y[i] : 0.0f;
      }
    }
    const Sums sums = sums_of<kLanes>(a, sum, dot);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const unsigned e = (c * kLanes + lane) * V;
      float dx[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int i = c * V + j;
        const bool in = everywhere || (routed >> i & 1);
        dx[j] = in ? gradient(a, sums, x[i], y[i], g[i]) : 0.0f;
      }
      if (live && e < a.experts) store<T>(a.dtype, a.grad_logits, row + e, dx);
    }
  }
}

// Loads a row from shared memory.
template <class T, int V>
__device__ __forceinline__ void copy(void *to, size_t index, const void *from, unsigned e) {
  Vec<T, V> part;
  if constexpr (V == 1) {
    part.w[0] = *element<typename T::Bits>(from, e);
  } else {
#pragma unroll
    for (int w = 0; w < Vec<T, V>::kWords; ++w) {
      part.w[w] = element<uint32_t>(from, e * T::kBytes / 4)[w];
    }
  }
  store(to, index, part);
}

// Experts that are not chosen get 0.
template <class T, int V, int C>
__global__ void __launch_bounds__(32 * kWarps) chosen_kernel(const __grid_constant__ Args a) {
  constexpr unsigned kMost = 32 * V * C;
  __shared__ uint16_t lists[kWarps][kMost];
  __shared__ uint4 rows[kWarps][kMost / 4];  // Rows of 16-bit elements use one half.
  const unsigned lane = threadIdx.x % 32;
  uint16_t *list = lists[threadIdx.x / 32];
  uint4 *row = rows[threadIdx.x / 32];
  const unsigned vectors = kMost / 16 * (is_float32<T>(a.dtype) ? 4 : 2);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t step = size_t{gridDim.x} * kWarps;
  for (size_t token = size_t{blockIdx.x} * kWarps + threadIdx.x / 32; token < a.tokens;
       token += step) {
    const size_t start = token * a.experts;
    unsigned count = 0;
    if (a.routing.indices != nullptr) {
      for (size_t first = 0; first < a.topk; first += 32) {
        const bool slot = first + lane < a.topk;
        const size_t e = slot ? index_at(a.routing, token * a.topk + first + lane) : ~size_t{0};
        const unsigned lanes = __ballot_sync(kFullWarp, e < a.experts);
        if (e < a.experts) {
          list[count + __popc(lanes & lanes_below())] = static_cast<uint16_t>(e);
        }
        count += __popc(lanes);
      }
    } else {
      uint32_t routed = routed_elements<V, C>(a, token);
      const unsigned mine = __popc(routed);
      unsigned before = mine;
#pragma unroll
      for (int s = 1; s < 32; s *= 2) {
        const unsigned other = __shfl_up_sync(kFullWarp, before, s);
        if (lane >= s) before += other;
      }
      count = __shfl_sync(kFullWarp, before, 31);
      before -= mine;
      for (; routed != 0; routed &= routed - 1) {
        const unsigned i = __ffs(routed) - 1;
        list[before++] = static_cast<uint16_t>((i / V * 32 + lane) * V + i % V);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kMost / 4; i += 32) {
      if (i + lane < vectors) row[i + lane] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
    auto read = [&](unsigned s, float &x, float &g) {
      const size_t e = start + list[s];
      float f[1];
      x = a.intermediate[e];
      load_floats<T>(a.dtype, a.grad, e, f);
      g = f[0] * a.scaling_factor;
    };
    // The first 32 experts stay in registers.
    float x = 0.0f, y = 0.0f, g = 0.0f, sum = 0.0f, dot = 0.0f;
    if (lane < count) {
      read(lane, x, g);
      y = score_of(a, x);
      sum = y;
      dot = g * y;
    }
    for (unsigned s = lane + 32; s < count; s += 32) {
      float other, grad;
      read(s, other, grad);
      other = score_of(a, other);
      sum += other;
      dot += grad * other;
    }
    const Sums sums = sums_of(a, sum, dot);
    auto write = [&](unsigned s, float dx) {
      const float f[1] = {dx};
      store<T>(a.dtype, row, list[s], f);
    };
    if (lane < count) write(lane, gradient(a, sums, x, y, g));
    for (unsigned s = lane + 32; s < count; s += 32) {
      float other, grad;
      read(s, other, grad);
      write(s, gradient(a, sums, other, score_of(a, other), grad));
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const unsigned e = lane_element<V>(c);
      if (e >= a.experts) continue;
      if (is_float32<T>(a.dtype)) {
        copy<F32, V>(a.grad_logits, start + e, row, e);
      } else {
        copy<BF16, V>(a.grad_logits, start + e, row, e);
      }
    }
    __syncwarp();
  }
}

// Any number of experts: the row is read twice. Chosen experts that come as indices are written
// over the row.
template <bool kAll>
__global__ void __launch_bounds__(32 * kWarps) long_kernel(const __grid_constant__ Args a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned lane = threadIdx.x % 32;
  const bool indexed = !kAll && a.routing.indices != nullptr;
  const bool everywhere = kAll || a.pre_softmax;
  const size_t step = size_t{gridDim.x} * kWarps;
  for (size_t token = size_t{blockIdx.x} * kWarps + threadIdx.x / 32; token < a.tokens;
       token += step) {
    const size_t row = token * a.experts;
    auto grad = [&](size_t e) {
      float g[1];
      load_floats<RuntimeFloat>(a.grad_dtype, a.grad, row + e, g);
      return g[0] * a.scaling_factor;
    };
    auto for_each_routed = [&](auto &&body) {
      if (indexed) {
        for (size_t i = lane; i < a.topk; i += 32) {
          const size_t e = index_at(a.routing, token * a.topk + i);
          if (e < a.experts) body(e);
        }
      } else {
        for (size_t e = lane; e < a.experts; e += 32) {
          if (kAll || routed_at(a, token, e)) body(e);
        }
      }
    };
    auto write = [&](size_t e, float dx) {
      const float out[1] = {dx};
      store<RuntimeFloat>(a.dtype, a.grad_logits, row + e, out);
    };
    float sum = 0.0f, dot = 0.0f;
    for_each_routed([&](size_t e) {
      const float y = score_of(a, a.intermediate[row + e]);
      sum += y;
      dot += grad(e) * y;
    });
    const Sums sums = sums_of(a, sum, dot);
    auto of = [&](size_t e, float g) {
      const float x = a.intermediate[row + e];
      return gradient(a, sums, x, score_of(a, x), g);
    };
    for (size_t e = lane; e < a.experts; e += 32) {
      const bool routed = kAll || (!indexed && routed_at(a, token, e));
      write(e, routed || everywhere ? of(e, routed ? grad(e) : 0.0f) : 0.0f);
    }
    if (indexed) {
      __syncwarp();
      for_each_routed([&](size_t e) { write(e, of(e, grad(e))); });
      __syncwarp();
    }
  }
}

template <int N>
using Size = std::integral_constant<int, N>;

template <bool kAll>
NVTEXOutcome run(const Args &a, cudaStream_t stream) {
  const bool vectors = a.experts % 4 == 0 && aligned(a.intermediate, 16) &&
                       aligned(a.grad, 4 * float_bytes(a.grad_dtype)) &&
                       aligned(a.grad_logits, 4 * float_bytes(a.dtype)) &&
                       aligned(a.routing.bytes, 4);
  auto start = [&](auto kernel, size_t tokens_of_warp = 1, size_t most = kMaxBlocks) {
    const size_t blocks = ceil_div(a.tokens, kWarps * tokens_of_warp);
    const dim3 grid(static_cast<unsigned>(blocks < most ? blocks : most));
    return launch(kernel, grid, 32 * kWarps, stream, a);
  };
  if (a.experts > 1024) return start(long_kernel<kAll>);
  auto of_size = [&](auto t, auto v, auto c) {
    using T = decltype(t);
    constexpr int V = decltype(v)::value, C = decltype(c)::value;
    if constexpr (V * C == 4 && V == 4) {
      if (a.experts <= 64) {
        Device device;
        if (const cudaError_t error = current_device(&device)) return outcome(error);
        return start(held_kernel<T, kAll, V, C, 16>, 2, size_t(device.sm_count) * kShortBlocks);
      }
    } else if constexpr (!kAll) {
      if (!a.pre_softmax) return start(chosen_kernel<T, V, C>);
    }
    return start(held_kernel<T, kAll, V, C, 32>);
  };
  if (!vectors) {
    if (a.experts <= 128) return of_size(RuntimeFloat{}, Size<1>{}, Size<4>{});
    if (a.experts <= 256) return of_size(RuntimeFloat{}, Size<1>{}, Size<8>{});
    return of_size(RuntimeFloat{}, Size<1>{}, Size<32>{});
  }
  if (a.experts <= 256) {
    return dispatch<F32, F16, BF16>(a.dtype, [&](auto t) {
      if constexpr (!std::is_same_v<decltype(t), F16>) {
        if (a.experts <= 128) return of_size(t, Size<4>{}, Size<1>{});
      }
      return of_size(t, Size<4>{}, Size<2>{});
    });
  }
  if (a.experts <= 512) return of_size(RuntimeFloat{}, Size<4>{}, Size<4>{});
  return of_size(RuntimeFloat{}, Size<4>{}, Size<8>{});
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_router_backward(const NVTEXRouterBackwardArgs *args,
                                                  cudaStream_t stream) noexcept {
  using namespace nvte;
  return args->all ? run<true>(*args, stream) : run<false>(*args, stream);
}
