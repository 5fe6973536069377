// Optimizers, norms and scales of many tensors at once. Their addresses travel as kernel
// parameters, as many as fit; a block finds its chunk of a tensor by its index.

#include <cfloat>
#include <type_traits>

#include "common/launch.cuh"
#include "common/philox.cuh"
#include "common/reduce.cuh"
#include "common/scale.cuh"
#include "nvte/backend/multi_tensor.h"

namespace nvte {
namespace {

// H200, Adam in float32, 64 tensors of 4M: 4122 GB/s; chunks of 16384 and 32768: 4086 and 4077.
constexpr int kThreads = 512;
constexpr size_t kChunk = 8192;
// Nearly all that kernel parameters can hold. 1000 tensors of 16000 elements take 115 us, with 4 KB
// 157 us. It costs the host 2 us a launch.
constexpr size_t kBatchBytes = 30000;

// A part of a tensor.
struct Chunk {
  int tensor;
  size_t start;
  unsigned count;
};

// The tensors of one launch.
template <int kBuffers>
struct Batch {
  struct Tensor {
    void *data[kBuffers];
    size_t numel;
  };
  static constexpr int kCapacity = kBatchBytes / (sizeof(Tensor) + sizeof(unsigned));

  Tensor of[kCapacity];
  unsigned first[kCapacity];  // First chunk of each tensor.
  int count;
  unsigned chunks;

  // The tensor and the place in it of a chunk; chunks have `size` elements each.
  __device__ __forceinline__ Chunk find(unsigned chunk, size_t size) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first[middle] <= chunk) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const size_t start = (chunk - first[low]) * size, left = of[low].numel - start;
    return {low, start, static_cast<unsigned>(left < size ? left : size)};
  }
};

// Calls `run(batch, index of its first tensor)` until all tensors were in a batch, or until it
// fails.
template <int kBuffers, class Run>
NVTEXOutcome in_batches(const NVTEXMultiTensor *tensors, size_t num_tensors, size_t chunk,
                        Run &&run) {
  for (size_t t = 0; t < num_tensors; ++t) {
    if (ceil_div(tensors[t].numel, chunk) > kMaxBlocks) return unimplemented("too many chunks");
  }
  Batch<kBuffers> batch;
  for (size_t at = 0; at < num_tensors;) {
    const size_t begin = at;
    size_t chunks = 0;
    batch.count = 0;
    for (; at < num_tensors && batch.count < batch.kCapacity; ++at) {
      const NVTEXMultiTensor &tensor = tensors[at];
      const size_t more = ceil_div(tensor.numel, chunk);
      if (chunks + more > kMaxBlocks) break;
      auto &slot = batch.of[batch.count];
      for (int i = 0; i < kBuffers; ++i) slot.data[i] = tensor.data[i];
      slot.numel = tensor.numel;
      batch.first[batch.count++] = static_cast<unsigned>(chunks);
      chunks += more;
    }
    batch.chunks = static_cast<unsigned>(chunks);
    if (const NVTEXOutcome outcome = run(batch, begin); outcome.status != NVTEX_BACKEND_OK) {
      return outcome;
    }
  }
  return ok();
}

// A buffer from the chunk's first element on.
struct Span {
  char *data;
  int bytes;  // Bytes of an element.

  __device__ __forceinline__ Span(void *buffer, const Chunk &chunk, int element_bytes)
      : data(static_cast<char *>(buffer) + chunk.start * element_bytes), bytes(element_bytes) {}
};

// Elements before the first one where all buffers are aligned for vectors of N; all if there is
// none.
template <int N, int kSpans>
__device__ __forceinline__ unsigned head(const Span (&spans)[kSpans], unsigned count) {
  unsigned head = 0;
#pragma unroll
  for (int i = 0; i < kSpans; ++i) {
    if (spans[i].bytes * N > 16) continue;
    head = -static_cast<unsigned>(reinterpret_cast<uintptr_t>(spans[i].data) / spans[i].bytes) % N;
  }
#pragma unroll
  for (int i = 0; i < kSpans; ++i) {
    const int bytes = spans[i].bytes * N < 16 ? spans[i].bytes * N : 16;
    const auto address = reinterpret_cast<uintptr_t>(spans[i].data + head * spans[i].bytes);
    if (address % bytes != 0) return count;
  }
  return head < count ? head : count;
}

// Work over the `count` elements of a chunk, by W::Step<N>: load(work, index, inside) of kUnroll
// vectors, then finish(work, index) of each.
template <int N, int kUnroll, class W>
__device__ __forceinline__ void for_each(W &work, unsigned count, unsigned head) {
  const unsigned vectors = (count - head) / N;
  for (unsigned v = threadIdx.x; v < vectors; v += kThreads * kUnroll) {
    typename W::template Step<N> steps[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned at = v + u * kThreads;
      steps[u].load(work, head + at * N, at < vectors);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const unsigned at = v + u * kThreads;
      if (at < vectors) steps[u].finish(work, head + at * N);
    }
  }
  const unsigned singles = count - vectors * N;
  for (unsigned i = threadIdx.x; i < singles; i += kThreads) {
    const unsigned at = i < head ? i : i + vectors * N;
    typename W::template Step<1> step;
    step.load(work, at, true);
    step.finish(work, at);
  }
}

// N elements of a dtype that is known at run time, so that kernels need no instance for each.
template <int N>
struct RuntimeVec {
  Vec<F32, N> wide;
  Vec<BF16, N> narrow;

  __device__ __forceinline__ void load(NVTEDType dtype, const void *base, size_t index,
                                       bool inside) {
    const bool is_wide = dtype == kNVTEFloat32;
    wide = nvte::load<F32, N>(base, index, inside && is_wide);
    narrow = nvte::load<BF16, N>(base, index, inside && !is_wide);
  }
  __device__ __forceinline__ void to_float(NVTEDType dtype, float (&f)[N]) const {
    if (dtype == kNVTEFloat32) {
      nvte::to_float(wide, f);
    } else if (dtype == kNVTEBFloat16) {
      nvte::to_float(narrow, f);
    } else {
      Vec<F16, N> half;
#pragma unroll
      for (int i = 0; i < half.kWords; ++i) half.w[i] = narrow.w[i];
      nvte::to_float(half, f);
    }
  }
  static __device__ __forceinline__ void store(NVTEDType dtype, void *base, size_t index,
                                               const float (&f)[N]) {
    if (dtype == kNVTEFloat32) {
      nvte::store(base, index, from_float<F32>(f));
    } else if (dtype == kNVTEBFloat16) {
      nvte::store(base, index, from_float<BF16>(f));
    } else {
      nvte::store(base, index, from_float<F16>(f));
    }
  }
};

// ---- Adam

struct AdamRule {
  float lr, beta1, beta2, rest1, rest2, epsilon, weight_decay, inv_bias1, inv_bias2, grad_scale;
  bool l2, store_grads;
  NVTEDType grad_dtype;
};

struct AdamScalars {
  const float *lr;
  const int *step;
  const float *grad_scale;
  const int *noop;
};

// 1 - beta^step, by squaring: the same products in the same order on every backend.
__device__ inline float bias_correction(float beta, int step) {
  double power = 1.0, square = beta;
  for (int bits = step; bits > 0; bits >>= 1) {
    if (bits & 1) power = __dmul_rn(power, square);
    square = __dmul_rn(square, square);
  }
  return static_cast<float>(__dadd_rn(1.0, -power));
}

// Halves of a parameter with a remainder, two elements in a word.
__device__ __forceinline__ void join(uint32_t high, uint32_t low, float (&master)[2]) {
  master[0] = __uint_as_float((high - (low >> 15 & 1)) << 16 | (low & 0xffff));
  master[1] = __uint_as_float(((high >> 16) - (low >> 31)) << 16 | low >> 16);
}
// A NaN becomes one whose high half is NaN, too.
__device__ __forceinline__ uint32_t master_bits(float master) {
  return isnan(master) ? 0x7fc00000 : __float_as_uint(master);
}
__device__ __forceinline__ void split(const float (&master)[2], uint32_t &high, uint32_t &low) {
  const uint32_t a = master_bits(master[0]), b = master_bits(master[1]);
  high = (((a >> 16) + (a >> 15 & 1)) & 0xffff) | ((b >> 16) + (b >> 15 & 1)) << 16;
  low = (a & 0xffff) | b << 16;
}

// The formula for one element; the gradient has its factor.
__device__ __forceinline__ void adam_update(const AdamRule &r, float g, float &p, float &m,
                                            float &v) {
  if (r.l2) g = __fadd_rn(g, __fmul_rn(r.weight_decay, p));
  m = __fadd_rn(__fmul_rn(r.beta1, m), __fmul_rn(r.rest1, g));
  v = __fadd_rn(__fmul_rn(r.beta2, v), __fmul_rn(__fmul_rn(r.rest2, g), g));
  const float root = __fsqrt_rn(__fmul_rn(v, r.inv_bias2));
  float update = __fdiv_rn(__fmul_rn(m, r.inv_bias1), __fadd_rn(root, r.epsilon));
  if (!r.l2) update = __fadd_rn(update, __fmul_rn(r.weight_decay, p));
  p = __fsub_rn(p, __fmul_rn(r.lr, update));
}

template <class P, class M, NVTEXAdamMaster kMaster>
struct Adam {
  static constexpr bool kFloatMaster = kMaster == NVTEX_ADAM_FLOAT_MASTER;
  static constexpr bool kRemainder = kMaster == NVTEX_ADAM_REMAINDER;
  static constexpr int kBuffers = kIsFp8<P> ? 8 : kMaster == NVTEX_ADAM_NO_MASTER ? 4 : 5;

  AdamRule rule;
  void *g, *p, *m, *v, *master;
  float scale = 1.0f;
  float amax = 0.0f;

  template <int N>
  struct Step {
    RuntimeVec<N> g;
    Vec<P, N> p;
    Vec<M, N> m, v;
    Vec<F32, N> master;
    Vec<Raw<uint16_t>, N> remainder;

    __device__ __forceinline__ void load(const Adam &a, unsigned at, bool inside) {
      g.load(a.rule.grad_dtype, a.g, at, inside);
      if constexpr (!kFloatMaster) p = nvte::load<P, N>(a.p, at, inside);
      m = nvte::load<M, N>(a.m, at, inside);
      v = nvte::load<M, N>(a.v, at, inside);
      if constexpr (kFloatMaster) master = nvte::load<F32, N>(a.master, at, inside);
      if constexpr (kRemainder) {
        remainder = nvte::load<Raw<uint16_t>, N>(a.master, at, inside);
      }
    }

    __device__ __forceinline__ void finish(Adam &a, unsigned at) {
      const AdamRule &r = a.rule;
      float gf[N], pf[N], mf[N], vf[N];
      g.to_float(r.grad_dtype, gf);
      to_float(m, mf);
      to_float(v, vf);
      if constexpr (kFloatMaster) {
        to_float(master, pf);
      } else if constexpr (kRemainder) {
#pragma unroll
        for (int i = 0; i < p.kWords; ++i) {
          float two[2];
          join(p.w[i], remainder.w[i], two);
#pragma unroll
          for (int j = 0; j < 2 && 2 * i + j < N; ++j) pf[2 * i + j] = two[j];
        }
      } else {
        to_float(p, pf);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) gf[i] = __fmul_rn(gf[i], r.grad_scale);
      if (r.store_grads) RuntimeVec<N>::store(r.grad_dtype, a.g, at, gf);
#pragma unroll
      for (int i = 0; i < N; ++i) adam_update(r, gf[i], pf[i], mf[i], vf[i]);
      store(a.m, at, from_float<M>(mf));
      store(a.v, at, from_float<M>(vf));
      if constexpr (kFloatMaster) store(a.master, at, from_float<F32>(pf));
      if constexpr (kRemainder) {
#pragma unroll
        for (int i = 0; i < p.kWords; ++i) {
          const float two[2] = {pf[2 * i], 2 * i + 1 < N ? pf[2 * i + 1] : 0.0f};
          split(two, p.w[i], remainder.w[i]);
        }
        store(a.master, at, remainder);
      } else {
        if constexpr (kIsFp8<P>) {
#pragma unroll
          for (int i = 0; i < N; ++i) {
            a.amax = fmaxf(a.amax, fabsf(pf[i]));
            pf[i] = __fmul_rn(pf[i], a.scale);
          }
        }
        p = from_float<P>(pf);
      }
      store(a.p, at, p);
    }
  };
};

template <class P, class M, NVTEXAdamMaster kMaster>
__global__ void __launch_bounds__(kThreads)
    adam_kernel(const __grid_constant__ Batch<Adam<P, M, kMaster>::kBuffers> batch,
                const __grid_constant__ AdamRule rule,
                const __grid_constant__ AdamScalars scalars) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (scalars.noop != nullptr && *scalars.noop == 1) return;
  using Work = Adam<P, M, kMaster>;
  const Chunk chunk = batch.find(blockIdx.x, kChunk);
  const auto &data = batch.of[chunk.tensor].data;
  Work work;
  work.rule = rule;
  if (scalars.lr != nullptr) work.rule.lr = *scalars.lr;
  if (scalars.grad_scale != nullptr) work.rule.grad_scale = *scalars.grad_scale;
  if (scalars.step != nullptr) {
    const int step = *scalars.step;
    work.rule.inv_bias1 = __frcp_rn(bias_correction(rule.beta1, step));
    work.rule.inv_bias2 = __frcp_rn(bias_correction(rule.beta2, step));
  }
  if constexpr (kIsFp8<P>) {
    const auto *scale = static_cast<const float *>(data[5]);
    auto *scale_inv = static_cast<float *>(data[7]);
    if (scale != nullptr) work.scale = *scale;
    if (scale_inv != nullptr && chunk.start == 0 && threadIdx.x == 0) {
      *scale_inv = __frcp_rn(work.scale);
    }
  }

  const Span g(data[0], chunk, float_bytes(rule.grad_dtype)), p(data[1], chunk, P::kBytes);
  const Span m(data[2], chunk, M::kBytes), v(data[3], chunk, M::kBytes);
  constexpr int N = P::kBytes == 4 && M::kBytes == 4 ? 4 : 8;
  unsigned first;
  if constexpr (kMaster == NVTEX_ADAM_NO_MASTER) {
    first = head<N>({g, p, m, v}, chunk.count);
  } else {
    const Span master(data[4], chunk, Work::kFloatMaster ? 4 : 2);
    work.master = master.data;
    first = head<N>({g, p, m, v, master}, chunk.count);
  }
  work.g = g.data, work.p = p.data, work.m = m.data, work.v = v.data;
  for_each<N, 8 / N>(work, chunk.count, first);

  if constexpr (kIsFp8<P>) {
    if (data[6] == nullptr) return;
    __shared__ BlockMax<kThreads> block;
    block.put(__float_as_int(work.amax));
    __syncthreads();
    if (threadIdx.x >= 32) return;
    const int bits = block.get();
    if (threadIdx.x == 0) atomicMax(static_cast<int *>(data[6]), bits);
  }
}

AdamRule rule_of(const NVTEXAdamArgs &a) {
  return {a.lr,           a.beta1,   a.beta2,        1.0f - a.beta1,
          1.0f - a.beta2, a.epsilon, a.weight_decay, 1.0f / a.bias1,
          1.0f / a.bias2, 1.0f,      a.l2,           a.inv_scale != nullptr,
          a.grad_dtype};
}

AdamScalars scalars_of(const NVTEXAdamArgs &a) {
  const float *grad_scale = a.inv_scale != nullptr ? a.inv_scale : a.grad_scale;
  return {a.device_lr, a.device_step, grad_scale, a.noop};
}

template <class P, class M, NVTEXAdamMaster kMaster>
NVTEXOutcome adam(const NVTEXAdamArgs &a, cudaStream_t stream) {
  const AdamRule rule = rule_of(a);
  const AdamScalars scalars = scalars_of(a);
  using Work = Adam<P, M, kMaster>;
  return in_batches<Work::kBuffers>(a.tensors, a.num_tensors, kChunk,
                                    [&](const auto &batch, size_t) {
                                      return launch(adam_kernel<P, M, kMaster>, dim3(batch.chunks),
                                                    kThreads, stream, batch, rule, scalars);
                                    });
}

// ---- Adam with moments in E4M3

constexpr unsigned kMomentBlock = 128;
constexpr int kPerLane = kMomentBlock / 32;

// Four neighbouring elements that are aligned, or unless kWhole the first `own` of them at any
// address.
template <class T, bool kWhole>
__device__ __forceinline__ Vec<T, kPerLane> load_four(const void *base, size_t index, int own) {
  if constexpr (kWhole) return load<T, kPerLane>(base, index, own > 0);
  return load_some<T, kPerLane>(base, index, own);
}
template <class T, bool kWhole>
__device__ __forceinline__ void store_four(void *base, size_t index, int own,
                                           const Vec<T, kPerLane> &v) {
  if constexpr (kWhole) {
    store(base, index, v);
  } else {
    store_some(base, index, own, v);
  }
}
// The same of a dtype that is known at run time. Elements of two bytes have the first two words.
struct RuntimeFour {
  uint32_t w[kPerLane];

  __device__ __forceinline__ void to_float(NVTEDType dtype, float (&f)[kPerLane]) const {
    if (dtype == kNVTEFloat32) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) f[i] = __uint_as_float(w[i]);
    } else if (dtype == kNVTEBFloat16) {
      nvte::to_float(Vec<BF16, kPerLane>{{w[0], w[1]}}, f);
    } else {
      nvte::to_float(Vec<F16, kPerLane>{{w[0], w[1]}}, f);
    }
  }
};
template <bool kWhole>
__device__ __forceinline__ RuntimeFour load_four(NVTEDType dtype, const void *base, size_t index,
                                                 int own) {
  if (dtype == kNVTEFloat32) {
    const auto v = load_four<F32, kWhole>(base, index, own);
    return {{v.w[0], v.w[1], v.w[2], v.w[3]}};
  }
  const auto v = load_four<BF16, kWhole>(base, index, own);
  return {{v.w[0], v.w[1], 0, 0}};
}
template <bool kWhole>
__device__ __forceinline__ void store_four(NVTEDType dtype, void *base, size_t index, int own,
                                           const float (&f)[kPerLane]) {
  if (dtype == kNVTEFloat32) {
    store_four<F32, kWhole>(base, index, own, from_float<F32>(f));
  } else {
    const Vec<F16, kPerLane> half = from_float<F16>(f);
    Vec<BF16, kPerLane> narrow = from_float<BF16>(f);
#pragma unroll
    for (int i = 0; i < 2; ++i) narrow.w[i] = dtype == kNVTEFloat16 ? half.w[i] : narrow.w[i];
    store_four<BF16, kWhole>(base, index, own, narrow);
  }
}

// The code of x times a power of two. The magnitude is rounded up if the bits below those of a code
// and `below` carry; kRoots: one above 0 keeps a code above 0, and none has a sign.
template <bool kRoots>
__device__ __forceinline__ uint32_t moment_code(float x, float inverse, uint32_t below) {
  const float magnitude = __fmul_rn(fabsf(x), inverse);
  if (!(magnitude < INFINITY)) return 0x7f;
  // The exponents of E4M3 are the lowest ones of float32 then, also below normal numbers.
  const uint32_t bits = __float_as_uint(__fmul_rz(magnitude, 0x1p-120f)) + below;
  uint32_t code = bits >> 20 < 0x7e ? bits >> 20 : 0x7e;
  if (kRoots && magnitude > 0.0f && code == 0) code = 1;
  return kRoots ? code : code | (__float_as_uint(x) >> 24 & 0x80);
}

// The same for four numbers that are finite, and of roots not so much smaller than the largest one
// of the block that their magnitude would be 0; `random` has numbers in the lower halves of words,
// kRoots: in the upper ones.
template <bool kRoots>
__device__ __forceinline__ uint32_t finite_moment_codes(const float (&x)[4], float inverse,
                                                        const uint32_t (&random)[4]) {
  uint32_t word[4];  // The highest byte is a code.
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float magnitude = __fmul_rn(fabsf(x[j]), inverse);
    const uint32_t below = __byte_perm(random[j], 0x80, kRoots ? 0x5324 : 0x5104);
    word[j] = (__float_as_uint(__fmul_rz(magnitude, 0x1p-120f)) << 4) + below;
    if (kRoots) {
      const uint32_t least = min(__float_as_uint(x[j]), 1u << 24);
      word[j] = max(word[j], least);
    }
  }
  uint32_t codes = __byte_perm(__byte_perm(word[0], word[1], 0x0073),
                               __byte_perm(word[2], word[3], 0x0073), 0x5410);
  codes -= (codes + 0x01010101) >> 7 & 0x01010101;  // 0x7f, which is NaN, becomes 0x7e.
  if (kRoots) return codes;
  const uint32_t signs =
      __byte_perm(__byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x0073),
                  __byte_perm(__float_as_uint(x[2]), __float_as_uint(x[3]), 0x0073), 0x5410);
  return codes | (signs & 0x80808080);
}

__device__ __forceinline__ float larger_or_nan(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
#else
  return a > b || a != a ? a : b;
#endif
}

// Encodes the moments of a block that a warp holds, and stores its scale. Only the lane's first
// `own` ones count, all if the block is whole.
template <bool kRoots>
__device__ __forceinline__ Vec<E4M3, kPerLane> encode_moments(const float (&x)[kPerLane], int own,
                                                              bool whole, float *scale,
                                                              const uint32_t (&random)[kPerLane]) {
  constexpr uint32_t kInfinite = 0x7f800000;
  float largest = 0.0f;
  if (whole) {
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) largest = larger_or_nan(largest, fabsf(x[j]));
  }
  uint32_t bits = __reduce_max_sync(0xffffffff, __float_as_uint(largest));
  const bool usual = whole && bits < kInfinite;
  if (!usual) {
    largest = 0.0f;  // Of numbers that are no NaN.
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      if (j < own) largest = fmaxf(largest, fabsf(x[j]));
    }
    bits = __reduce_max_sync(0xffffffff, __float_as_uint(largest));
  }
  // The least power of two that brings the largest magnitude to 448, 1.75 * 2^8, or less.
  const int least_exponent = static_cast<int>((bits >> 23) + ((bits & 0x7fffff) > 0x600000)) - 8;
  const uint32_t exponent = least_exponent > 1 ? least_exponent : 1;
  if (threadIdx.x % 32 == 0) *scale = __uint_as_float(exponent << 23);
  const float inverse = __uint_as_float((254 - exponent) << 23);
  if (usual) return {{finite_moment_codes<kRoots>(x, inverse, random)}};
  uint32_t codes = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    const uint32_t below = ((kRoots ? random[j] >> 12 : random[j] << 4) & 0xffff0) | 8;
    codes |= moment_code<kRoots>(x[j], inverse, below) << (8 * j);
  }
  return {{codes}};
}

// Square roots and quotients of numbers in the ranges below are exact after these steps, which are
// those of the compiler, without its branches for others; zeros come out right, too.
__device__ __forceinline__ float usual_root(float v) {
  float about;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(fmaxf(v, 0x1p-100f)));
  const float root = __fmul_rn(v, about);
  return __fmaf_rn(__fmaf_rn(-root, root, v), __fmul_rn(about, 0.5f), root);
}
__device__ __forceinline__ float usual_quotient(float a, float b) {
  float about;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(about) : "f"(b));
  about = __fmaf_rn(about, __fmaf_rn(-b, about, 1.0f), about);
  const float quotient = __fmul_rn(a, about);
  return __fmaf_rn(about, __fmaf_rn(-b, quotient, a), quotient);
}
// Whether a number is +0 or has a magnitude from 2^-kRange to 2^kRange.
template <int kRange>
__device__ __forceinline__ bool is_usual(float f) {
  constexpr uint32_t kLeast = (127u - kRange) << 24, kSpan = (2u * kRange) << 24;
  const uint32_t bits = __float_as_uint(f);
  return (bits == 0) | ((bits << 1) - kLeast <= kSpan);
}
__device__ __forceinline__ bool is_usual(const AdamRule &r) {
  return r.epsilon >= 0x1p-60f && r.epsilon <= 0x1p60f && r.inv_bias2 >= 1.0f &&
         r.inv_bias2 <= 0x1p20f;
}

// adam_update() of four elements, and the roots of v in its place. By a whole warp.
__device__ __forceinline__ void adam_update_roots(const AdamRule &r, bool usual, float (&g)[4],
                                                  float (&p)[4], float (&m)[4], float (&v)[4]) {
  float above[4], below[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (r.l2) g[j] = __fadd_rn(g[j], __fmul_rn(r.weight_decay, p[j]));
    m[j] = __fadd_rn(__fmul_rn(r.beta1, m[j]), __fmul_rn(r.rest1, g[j]));
    v[j] = __fadd_rn(__fmul_rn(r.beta2, v[j]), __fmul_rn(__fmul_rn(r.rest2, g[j]), g[j]));
    above[j] = __fmul_rn(m[j], r.inv_bias1);
    below[j] = __fmul_rn(v[j], r.inv_bias2);
    usual = usual & is_usual<80>(v[j]) & is_usual<60>(above[j]);
  }
  if (__all_sync(0xffffffff, usual)) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      above[j] = usual_quotient(above[j], __fadd_rn(usual_root(below[j]), r.epsilon));
      v[j] = usual_root(v[j]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      above[j] = __fdiv_rn(above[j], __fadd_rn(__fsqrt_rn(below[j]), r.epsilon));
      v[j] = __fsqrt_rn(v[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (!r.l2) above[j] = __fadd_rn(above[j], __fmul_rn(r.weight_decay, p[j]));
    p[j] = __fsub_rn(p[j], __fmul_rn(r.lr, above[j]));
  }
}

// What a step reads of four elements. `p` has the master in float32 if there is one; the last two
// words have the remainders.
struct MomentStep {
  RuntimeFour g, p;
  Vec<E4M3, kPerLane> m, v;
  float of_m, of_v;  // Scales.
};

// A warp takes blocks of moments, a lane four neighbouring elements of each, which it loads while
// it computes the block before.
__global__ void __launch_bounds__(kThreads, 2)
    adam_fp8_moments_kernel(const __grid_constant__ Batch<7> batch, AdamRule rule,
                            AdamScalars scalars, NVTEDType param_dtype, NVTEXAdamMaster master) {
  // Numbers of a block's elements, of which a lane draws those of elements 32 apart.
  __shared__ __align__(16) uint32_t numbers[kThreads / 32][kMomentBlock];
  __shared__ float inverse_bias[2];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (scalars.noop != nullptr && *scalars.noop == 1) return;
  const int step = *scalars.step;
  const Chunk chunk = batch.find(blockIdx.x, kChunk);
  const auto &data = batch.of[chunk.tensor].data;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool floats = master == NVTEX_ADAM_FLOAT_MASTER,
             split_master = master == NVTEX_ADAM_REMAINDER;
  auto is_aligned = [](const void *p, unsigned bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  };
  const bool aligned =
      is_aligned(data[0], kPerLane * float_bytes(rule.grad_dtype)) &&
      is_aligned(data[1], kPerLane * float_bytes(param_dtype)) && is_aligned(data[2], kPerLane) &&
      is_aligned(data[3], kPerLane) &&
      (!(floats || split_master) || is_aligned(data[4], kPerLane * (floats ? 4 : 2)));
  auto is_whole = [&](unsigned first) { return aligned && chunk.count - first >= kMomentBlock; };
  auto owned = [&](unsigned first) {  // Not above 0: there are none.
    const int left = static_cast<int>(chunk.count - first - lane * kPerLane);
    return left < kPerLane ? left : kPerLane;
  };
  auto fetch_as = [&](auto whole, unsigned first) {
    constexpr bool kWhole = decltype(whole)::value;
    const size_t at = chunk.start + first + lane * kPerLane;
    const int own = kWhole ? kPerLane : owned(first);
    MomentStep s;
    s.g = load_four<kWhole>(rule.grad_dtype, data[0], at, own);
    s.p =
        load_four<kWhole>(floats ? kNVTEFloat32 : param_dtype, floats ? data[4] : data[1], at, own);
    if (split_master) {
      const auto rest = load_four<BF16, kWhole>(data[4], at, own);
      s.p.w[2] = rest.w[0], s.p.w[3] = rest.w[1];
    }
    s.m = load_four<E4M3, kWhole>(data[2], at, own);
    s.v = load_four<E4M3, kWhole>(data[3], at, own);
    s.of_m = static_cast<const float *>(data[5])[(chunk.start + first) / kMomentBlock];
    s.of_v = static_cast<const float *>(data[6])[(chunk.start + first) / kMomentBlock];
    return s;
  };
  auto fetch = [&](unsigned first) {
    return is_whole(first) ? fetch_as(std::true_type(), first) : fetch_as(std::false_type(), first);
  };
  constexpr unsigned kStep = kThreads / 32 * kMomentBlock;
  MomentStep next = {};
  if (warp * kMomentBlock < chunk.count) next = fetch(warp * kMomentBlock);
  if (threadIdx.x < 2) {
    const float beta = threadIdx.x == 0 ? rule.beta1 : rule.beta2;
    inverse_bias[threadIdx.x] = __frcp_rn(bias_correction(beta, step));
  }
  if (scalars.lr != nullptr) rule.lr = *scalars.lr;
  if (scalars.grad_scale != nullptr) rule.grad_scale = *scalars.grad_scale;
  __syncthreads();
  rule.inv_bias1 = inverse_bias[0], rule.inv_bias2 = inverse_bias[1];
  const bool usual = is_usual(rule);
  for (unsigned first = warp * kMomentBlock; first < chunk.count; first += kStep) {
    const MomentStep s = next;
    if (first + kStep < chunk.count) next = fetch(first + kStep);
    const size_t start = chunk.start + first, at = start + lane * kPerLane;
    const int own = owned(first);
    const bool whole = is_whole(first);
    const uint64_t counters[1] = {lane | static_cast<uint64_t>(static_cast<uint32_t>(step)) << 32};
    Words words[1];
    philox<7>(0, start / kMomentBlock, counters, words);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; ++j) numbers[warp][lane + 32 * j] = words[0].w[j];
    __syncwarp();
    uint32_t random[kPerLane];
    load_shared(&numbers[warp][lane * kPerLane], random);
    float g[kPerLane], p[kPerLane], m[kPerLane], v[kPerLane];
    s.g.to_float(rule.grad_dtype, g);
    if (split_master) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float two[2];
        join(s.p.w[i], s.p.w[2 + i], two);
        p[2 * i] = two[0], p[2 * i + 1] = two[1];
      }
    } else {
      s.p.to_float(floats ? kNVTEFloat32 : param_dtype, p);
    }
    to_float(s.m, m);
    to_float(s.v, v);
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      g[j] = __fmul_rn(g[j], rule.grad_scale);
      m[j] = __fmul_rn(m[j], s.of_m);
      v[j] = __fmul_rn(v[j], s.of_v);
      v[j] = __fmul_rn(v[j], v[j]);
    }
    adam_update_roots(rule, usual, g, p, m, v);
    float *const scales[2] = {static_cast<float *>(data[5]) + start / kMomentBlock,
                              static_cast<float *>(data[6]) + start / kMomentBlock};
    const auto codes_m = encode_moments<false>(m, own, whole, scales[0], random);
    const auto codes_v = encode_moments<true>(v, own, whole, scales[1], random);
    auto put = [&](auto whole) {
      constexpr bool kWhole = decltype(whole)::value;
      store_four<E4M3, kWhole>(data[2], at, own, codes_m);
      store_four<E4M3, kWhole>(data[3], at, own, codes_v);
      if (split_master) {
        Vec<BF16, kPerLane> high, low;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float two[2] = {p[2 * i], p[2 * i + 1]};
          split(two, high.w[i], low.w[i]);
        }
        store_four<BF16, kWhole>(data[1], at, own, high);
        store_four<BF16, kWhole>(data[4], at, own, low);
        return;
      }
      if (floats) store_four<F32, kWhole>(data[4], at, own, from_float<F32>(p));
      store_four<kWhole>(param_dtype, data[1], at, own, p);
    };
    whole ? put(std::true_type()) : put(std::false_type());
  }
}

// ---- SGD

struct SgdRule {
  float minus_lr, momentum, rest, weight_decay, scale, grad_scale;
  bool nesterov, first_run, decay_before, decay_after;
  NVTEDType grad_dtype, copy_dtype;
};

template <class W>
struct Sgd {
  SgdRule rule;
  void *g, *w, *b, *copy;

  template <int N>
  struct Step {
    RuntimeVec<N> g;
    Vec<W, N> w, b;

    __device__ __forceinline__ void load(const Sgd &a, unsigned at, bool inside) {
      const SgdRule &r = a.rule;
      g.load(r.grad_dtype, a.g, at, inside);
      w = nvte::load<W, N>(a.w, at, inside);
      b = nvte::load<W, N>(a.b, at, inside && r.momentum != 0.0f && !r.first_run);
    }

    __device__ __forceinline__ void finish(const Sgd &a, unsigned at) {
      const SgdRule &r = a.rule;
      float gf[N], wf[N], bf[N];
      g.to_float(r.grad_dtype, gf);
      to_float(w, wf);
      to_float(b, bf);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float d = __fmul_rn(__fmul_rn(gf[i], r.grad_scale), r.scale);
        if (r.decay_before) d = __fadd_rn(d, __fmul_rn(r.weight_decay, wf[i]));
        if (r.momentum != 0.0f) {
          bf[i] = r.first_run ? d : __fadd_rn(__fmul_rn(bf[i], r.momentum), __fmul_rn(r.rest, d));
          d = r.nesterov ? __fadd_rn(d, __fmul_rn(r.momentum, bf[i])) : bf[i];
        }
        if (r.decay_after) d = __fadd_rn(d, __fmul_rn(r.weight_decay, wf[i]));
        gf[i] = __fmul_rn(r.minus_lr, d);
      }
      to_float(from_float<W>(gf), gf);
#pragma unroll
      for (int i = 0; i < N; ++i) wf[i] = __fadd_rn(wf[i], gf[i]);
      store(a.w, at, from_float<W>(wf));
      if (r.momentum != 0.0f) store(a.b, at, from_float<W>(bf));
      if constexpr (W::kBytes == 4) {
        if (a.copy != nullptr) RuntimeVec<N>::store(r.copy_dtype, a.copy, at, wf);
      }
    }
  };
};

template <class W>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(const __grid_constant__ Batch<4> batch, SgdRule rule, const float *lr,
               const float *grad_scale, const int *noop) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (*noop != 0) return;
  // The rule is no __grid_constant__: nvcc 13.0 drops this store to the first member of a copy of
  // one.
  if (lr != nullptr) rule.minus_lr = -*lr;
  if (grad_scale != nullptr) rule.grad_scale = *grad_scale;
  const Chunk chunk = batch.find(blockIdx.x, kChunk);
  const auto &data = batch.of[chunk.tensor].data;
  const Span g(data[0], chunk, float_bytes(rule.grad_dtype)), w(data[1], chunk, W::kBytes);
  const Span b(data[2], chunk, W::kBytes);
  // Without a copy another buffer stands in its place, and nothing is stored to it.
  const bool has_copy = data[3] != nullptr;
  const Span copy = has_copy ? Span(data[3], chunk, 2) : w;
  Sgd<W> work = {rule, g.data, w.data, b.data, has_copy ? copy.data : nullptr};
  constexpr int N = 16 / W::kBytes;
  for_each<N, 2>(work, chunk.count, head<N>({g, w, b, copy}, chunk.count));
}

// ---- Muon

struct MuonMomentum {
  void *g, *b, *u;
  NVTEDType grad_dtype;
  float momentum, grad_scale;
  bool nesterov;

  template <int N>
  struct Step {
    RuntimeVec<N> g;
    Vec<F32, N> b;

    __device__ __forceinline__ void load(const MuonMomentum &a, unsigned at, bool inside) {
      g.load(a.grad_dtype, a.g, at, inside);
      b = nvte::load<F32, N>(a.b, at, inside);
    }
    __device__ __forceinline__ void finish(const MuonMomentum &a, unsigned at) {
      float gf[N], bf[N];
      g.to_float(a.grad_dtype, gf);
      to_float(b, bf);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        gf[i] = __fmul_rn(gf[i], a.grad_scale);
        bf[i] = __fadd_rn(__fmul_rn(a.momentum, bf[i]), gf[i]);
        gf[i] = a.nesterov ? __fadd_rn(gf[i], __fmul_rn(a.momentum, bf[i])) : bf[i];
      }
      store(a.b, at, from_float<F32>(bf));
      store(a.u, at, from_float<BF16>(gf));
    }
  };
};

__global__ void __launch_bounds__(kThreads)
    muon_momentum_kernel(const __grid_constant__ Batch<3> batch, NVTEDType grad_dtype,
                         float momentum, bool nesterov, const float *grad_scale, const int *noop) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (*noop == 1) return;
  const Chunk chunk = batch.find(blockIdx.x, kChunk);
  const auto &data = batch.of[chunk.tensor].data;
  const Span g(data[0], chunk, float_bytes(grad_dtype)), b(data[1], chunk, F32::kBytes);
  const Span u(data[2], chunk, BF16::kBytes);
  MuonMomentum work = {g.data, b.data, u.data, grad_dtype, momentum, *grad_scale, nesterov};
  for_each<8, 1>(work, chunk.count, head<8>({g, b, u}, chunk.count));
}

struct MuonNormalize {
  void *u;
  float divisor;

  template <int N>
  struct Step {
    Vec<BF16, N> u;

    __device__ __forceinline__ void load(const MuonNormalize &a, unsigned at, bool inside) {
      u = nvte::load<BF16, N>(a.u, at, inside);
    }
    __device__ __forceinline__ void finish(const MuonNormalize &a, unsigned at) {
      float f[N];
      to_float(u, f);
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = __fdiv_rn(f[i], a.divisor);
      store(a.u, at, from_float<BF16>(f));
    }
  };
};

__global__ void __launch_bounds__(kThreads)
    muon_normalize_kernel(const __grid_constant__ Batch<1> batch, const float *norms,
                          float epsilon) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Chunk chunk = batch.find(blockIdx.x, kChunk);
  const Span u(batch.of[chunk.tensor].data[0], chunk, BF16::kBytes);
  MuonNormalize work = {u.data, __fadd_rn(norms[chunk.tensor], epsilon)};
  for_each<8, 2>(work, chunk.count, head<8>({u}, chunk.count));
}

// ---- Scale

template <class In, class Out>
struct Scale {
  static constexpr int kVector = In::kBytes == 4 && Out::kBytes == 4 ? 4 : 8;
  static constexpr int kUnroll = 4;
  // The elements of a single turn of a block.
  static constexpr size_t kChunk = kThreads * kUnroll * kVector;

  const void *x;
  void *y;
  float scale;
  bool finite;

  template <int N>
  struct Step {
    Vec<In, N> x;

    __device__ __forceinline__ void load(const Scale &a, unsigned at, bool inside) {
      x = nvte::load<In, N>(a.x, at, inside);
    }
    __device__ __forceinline__ void finish(Scale &a, unsigned at) {
      float f[N];
      to_float(x, f);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        a.finite = a.finite && fabsf(f[i]) < INFINITY;
        f[i] = __fmul_rn(f[i], a.scale);
      }
      store(a.y, at, from_float<Out>(f));
    }
  };
};

template <class In, class Out>
__global__ void __launch_bounds__(kThreads)
    scale_tensors_kernel(const __grid_constant__ Batch<2> batch, float scale,
                         const float *device_scale, int *non_finite) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (device_scale != nullptr) scale = *device_scale;
  using Work = Scale<In, Out>;
  const Chunk chunk = batch.find(blockIdx.x, Work::kChunk);
  const auto &data = batch.of[chunk.tensor].data;
  const Span x(data[0], chunk, In::kBytes), y(data[1], chunk, Out::kBytes);
  Work work = {x.data, y.data, scale, true};
  constexpr int N = Work::kVector;
  for_each<N, Work::kUnroll>(work, chunk.count, head<N>({x, y}, chunk.count));
  if (!work.finite) *non_finite = 1;
}

// ---- L2 norm

constexpr int kNormThreads = 1024;

// Over a block, to its first thread. Ends with a barrier, so that it may follow itself.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float warps[kNormThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x < kNormThreads / 32 ? warps[threadIdx.x] : 0.0f;
  if (threadIdx.x < 32) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  __syncthreads();
  return value;
}

// A sum of squares that a thread keeps in several parts, so that additions do not wait.
template <class T>
struct Squares {
  static constexpr int kParts = 16 / T::kBytes;
  float inv_scale;
  float parts[kParts] = {};

  template <int N>
  __device__ __forceinline__ void add(const Vec<T, N> &v) {
    float f[N];
    to_float(v, f);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float scaled = f[i] * inv_scale;
      parts[i] = fmaf(scaled, scaled, parts[i]);
    }
  }
  __device__ __forceinline__ float take() {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      sum += parts[i];
      parts[i] = 0.0f;
    }
    return sum;
  }
};

// Blocks take chunks in turn. Each leaves the sum of its own in workspace[block], of each chunk in
// chunk_sums[tensor * chunks + chunk] if that is wanted.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    sum_of_squares_kernel(const __grid_constant__ Batch<1> batch, size_t chunk_size,
                          const float *inv_scale, float *workspace, bool first_batch,
                          float *chunk_sums, size_t chunks, int *non_finite) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int N = 16 / T::kBytes, kUnroll = 4;
  Squares<T> squares;
  squares.inv_scale = inv_scale != nullptr ? *inv_scale : 1.0f;
  float total = 0.0f;
  bool finite = true;
  for (unsigned c = blockIdx.x; c < batch.chunks; c += gridDim.x) {
    const Chunk chunk = batch.find(c, chunk_size);
    const Span x(batch.of[chunk.tensor].data[0], chunk, T::kBytes);
    const unsigned first = head<N>({x}, chunk.count), vectors = (chunk.count - first) / N;
    for (unsigned v = threadIdx.x; v < vectors; v += kNormThreads * kUnroll) {
      Vec<T, N> loaded[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const unsigned at = v + u * kNormThreads;
        loaded[u] = load<T, N>(x.data, first + at * N, at < vectors);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) squares.add(loaded[u]);
    }
    for (unsigned i = threadIdx.x; i < chunk.count - vectors * N; i += kNormThreads) {
      squares.add(load<T, 1>(x.data, i < first ? i : i + vectors * N, true));
    }
    if (chunk_sums != nullptr) {
      const float sum = block_sum(squares.take());
      total += sum;
      finite = finite && sum < INFINITY;
      if (threadIdx.x == 0) {
        chunk_sums[chunk.tensor * chunks + (c - batch.first[chunk.tensor])] = sum;
      }
    }
  }
  total += block_sum(squares.take());
  if (threadIdx.x != 0) return;
  if (!(finite && total < INFINITY)) *non_finite = 1;
  workspace[blockIdx.x] = first_batch ? total : workspace[blockIdx.x] + total;
}

// The square root of the sum of `count` floats, by one warp.
__device__ __forceinline__ void norm_of(const float *sums, size_t count, float *norm) {
  double sum = 0.0;
  for (size_t i = threadIdx.x % 32; i < count; i += 32) sum += sums[i];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) *norm = static_cast<float>(sqrt(sum));
}

// Warp 0 of block 0: all tensors; the next ones: a tensor each.
__global__ void norms_kernel(const float *workspace, unsigned partials, float *norm,
                             const float *chunk_sums, size_t chunks, float *tensor_norms,
                             size_t num_tensors) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t warp = (size_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (warp == 0) {
    norm_of(workspace, partials, norm);
  } else if (warp <= num_tensors) {
    norm_of(chunk_sums + (warp - 1) * chunks, chunks, tensor_norms + warp - 1);
  }
}

template <class T>
NVTEXOutcome l2_norm(const NVTEXL2NormArgs &a, cudaStream_t stream) {
  constexpr size_t kNormChunk = 65536 / T::kBytes;
  const bool each = a.tensor_norms != nullptr;
  const size_t chunk = each ? a.chunk : kNormChunk;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  size_t chunks = 0;
  for (size_t t = 0; t < a.num_tensors; ++t) chunks += ceil_div(a.tensors[t].numel, chunk);
  // As many blocks as fit at once, and the same number for every batch.
  size_t blocks = 2 * static_cast<size_t>(device.sm_count);
  if (blocks > a.partials) blocks = a.partials;
  if (blocks > chunks) blocks = chunks;
  bool first_batch = true;
  const NVTEXOutcome summed = in_batches<1>(
      a.tensors, blocks == 0 ? 0 : a.num_tensors, chunk, [&](const auto &batch, size_t begin) {
        float *sums = each ? a.tensor_workspace + begin * a.chunks : nullptr;
        const bool is_first = first_batch;
        first_batch = false;
        return launch(sum_of_squares_kernel<T>, dim3(static_cast<unsigned>(blocks)), kNormThreads,
                      stream, batch, chunk, a.inv_scale, a.workspace, is_first, sums, a.chunks,
                      a.non_finite);
      });
  if (summed.status != NVTEX_BACKEND_OK) return summed;
  constexpr unsigned kWarps = 4;
  const size_t norms = 1 + (each ? a.num_tensors : 0), grid = ceil_div(norms, kWarps);
  if (grid > kMaxBlocks) return unimplemented("too many tensors");
  return launch(norms_kernel, dim3(static_cast<unsigned>(grid)), kWarps * 32, stream, a.workspace,
                static_cast<unsigned>(blocks), a.norm, a.tensor_workspace, a.chunks, a.tensor_norms,
                norms - 1);
}

// ---- Scales

constexpr size_t kWarpChunk = 32;

// A warp takes a chunk.
__global__ void __launch_bounds__(kThreads)
    scales_from_amax_kernel(const __grid_constant__ Batch<3> batch, FloatScale rule) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned c = (blockIdx.x * kThreads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (c >= batch.chunks) return;
  const Chunk chunk = batch.find(c, kWarpChunk);
  if (lane >= chunk.count) return;
  const auto &data = batch.of[chunk.tensor].data;
  const size_t at = chunk.start + lane;
  float scale_inv;
  static_cast<float *>(data[1])[at] =
      rule.factor(static_cast<const float *>(data[0])[at], scale_inv);
  static_cast<float *>(data[2])[at] = scale_inv;
}

__global__ void __launch_bounds__(kThreads)
    codes_from_amax_kernel(const __grid_constant__ Batch<2> batch, float inverse_max) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned c = (blockIdx.x * kThreads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (c >= batch.chunks) return;
  const Chunk chunk = batch.find(c, kWarpChunk);
  if (lane >= chunk.count) return;
  const auto &data = batch.of[chunk.tensor].data;
  const size_t at = chunk.start + lane;
  float amax[1];
  to_float(load<BF16, 1>(data[0], at, true), amax);
  const float v = __fmul_rn(fabsf(amax[0]), inverse_max);
  static_cast<uint8_t *>(data[1])[at] =
      isnan(v) ? 0xff : static_cast<uint8_t>(e8m0_code(__float_as_uint(v)));
}

dim3 scale_grid(unsigned chunks) {
  return dim3(static_cast<unsigned>(ceil_div(chunks, kThreads / kWarpChunk)));
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_adam(const NVTEXAdamArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->moment_dtype == kNVTEFloat8E4M3) {
    return in_batches<7>(args->tensors, args->num_tensors, kChunk, [&](const auto &batch, size_t) {
      return launch(adam_fp8_moments_kernel, dim3(batch.chunks), kThreads, stream, batch,
                    rule_of(*args), scalars_of(*args), args->param_dtype, args->master);
    });
  }
  if (args->master == NVTEX_ADAM_FLOAT_MASTER && args->moment_dtype == kNVTEFloat32) {
    if (args->param_dtype == kNVTEFloat8E4M3) {
      return adam<E4M3, F32, NVTEX_ADAM_FLOAT_MASTER>(*args, stream);
    }
    if (args->param_dtype == kNVTEFloat8E5M2) {
      return adam<E5M2, F32, NVTEX_ADAM_FLOAT_MASTER>(*args, stream);
    }
  }
  return dispatch<F32, BF16>(args->moment_dtype, [&](auto m) {
    using M = decltype(m);
    if (args->master == NVTEX_ADAM_REMAINDER) {
      return adam<BF16, M, NVTEX_ADAM_REMAINDER>(*args, stream);
    }
    return dispatch<F32, F16, BF16>(args->param_dtype, [&](auto p) {
      using P = decltype(p);
      return args->master == NVTEX_ADAM_FLOAT_MASTER
                 ? adam<P, M, NVTEX_ADAM_FLOAT_MASTER>(*args, stream)
                 : adam<P, M, NVTEX_ADAM_NO_MASTER>(*args, stream);
    });
  });
}

extern "C" NVTEXOutcome nvte_cuda_sgd(const NVTEXSgdArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXSgdArgs &a = *args;
  const bool decays = a.weight_decay != 0.0f;
  const SgdRule rule = {-a.lr,
                        a.momentum,
                        1.0f - a.dampening,
                        a.weight_decay,
                        a.scale,
                        1.0f,
                        a.nesterov,
                        a.first_run,
                        decays && !a.decay_after_momentum,
                        decays && a.decay_after_momentum,
                        a.grad_dtype,
                        a.copy_dtype};
  return dispatch<F32, F16, BF16>(a.weight_dtype, [&](auto w) {
    return in_batches<4>(a.tensors, a.num_tensors, kChunk, [&](const auto &batch, size_t) {
      return launch(sgd_kernel<decltype(w)>, dim3(batch.chunks), kThreads, stream, batch, rule,
                    a.device_lr, a.grad_scale, a.noop);
    });
  });
}

extern "C" NVTEXOutcome nvte_cuda_muon(const NVTEXMuonArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXMuonArgs &a = *args;
  if (a.part == NVTEX_MUON_MOMENTUM) {
    return in_batches<3>(a.tensors, a.num_tensors, kChunk, [&](const auto &batch, size_t) {
      return launch(muon_momentum_kernel, dim3(batch.chunks), kThreads, stream, batch, a.grad_dtype,
                    a.momentum, a.nesterov, a.grad_scale, a.noop);
    });
  }
  return in_batches<1>(a.tensors, a.num_tensors, kChunk, [&](const auto &batch, size_t begin) {
    return launch(muon_normalize_kernel, dim3(batch.chunks), kThreads, stream, batch,
                  a.norms + begin, a.epsilon);
  });
}

extern "C" NVTEXOutcome nvte_cuda_scale_tensors(const NVTEXScaleTensorsArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXScaleTensorsArgs &a = *args;
  return dispatch<F32, F16, BF16>(a.input_dtype, [&](auto i) {
    return dispatch<F32, F16, BF16>(a.output_dtype, [&](auto o) {
      using In = decltype(i);
      using Out = decltype(o);
      const auto kernel = scale_tensors_kernel<In, Out>;
      constexpr size_t kScaleChunk = Scale<In, Out>::kChunk;
      return in_batches<2>(a.tensors, a.num_tensors, kScaleChunk, [&](const auto &batch, size_t) {
        return launch(kernel, dim3(batch.chunks), kThreads, stream, batch, a.scale, a.device_scale,
                      a.non_finite);
      });
    });
  });
}

extern "C" NVTEXOutcome nvte_cuda_l2_norm(const NVTEXL2NormArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype,
                                  [&](auto t) { return l2_norm<decltype(t)>(*args, stream); });
}

extern "C" NVTEXOutcome nvte_cuda_scales_from_amax(const NVTEXScalesFromAmaxArgs *args,
                                                   cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXScalesFromAmaxArgs &a = *args;
  if (a.e8m0) {
    return in_batches<2>(a.tensors, a.num_tensors, kWarpChunk, [&](const auto &batch, size_t) {
      return launch(codes_from_amax_kernel, scale_grid(batch.chunks), kThreads, stream, batch,
                    1.0f / 448.0f);
    });
  }
  const FloatScale rule = {a.fp8_max, a.epsilon, FLT_MAX, a.pow2 ? 0xff800000 : 0xffffffff};
  return in_batches<3>(a.tensors, a.num_tensors, kWarpChunk, [&](const auto &batch, size_t) {
    return launch(scales_from_amax_kernel, scale_grid(batch.chunks), kThreads, stream, batch, rule);
  });
}
