// Dropout: a warp takes 512 elements, each of its lanes the random bits of 16 of them.

#include "common/launch.cuh"
#include "common/vec.cuh"

namespace nvte {
namespace {

constexpr int kThreads = 256;
constexpr size_t kPerWarp = 512;

struct Problem {
  const void *input;
  void *output;
  uint8_t *mask;
  const uint64_t *rng_state;
  const float *scale_inv;
  size_t numel;
  float scale;
  uint32_t least;   // A random byte below it drops.
  bool vectorised;  // Input and output, and the mask in halves of words.
};

struct Words {
  uint32_t w[4];
};

// Philox4x32-10.
__device__ __forceinline__ Words philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t x = static_cast<uint32_t>(low), y = static_cast<uint32_t>(low >> 32);
  uint32_t z = static_cast<uint32_t>(high), w = static_cast<uint32_t>(high >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x, b = uint64_t{0xCD9E8D57} * z;
    x = static_cast<uint32_t>(b >> 32) ^ y ^ k0;
    y = static_cast<uint32_t>(b);
    z = static_cast<uint32_t>(a >> 32) ^ w ^ k1;
    w = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{x, y, z, w}};
}

// The mask of elements 16 c to 16 c + 15.
__device__ __forceinline__ uint32_t kept(const Problem &a, size_t c) {
  const uint64_t seed = a.rng_state[0], offset = a.rng_state[1];
  Words r = philox(seed, offset / 4, c);
  if (const int from = static_cast<int>(offset % 4)) {
    const Words next = philox(seed, offset / 4 + 1, c);
    const uint32_t w[8] = {r.w[0],    r.w[1],    r.w[2],    r.w[3],
                           next.w[0], next.w[1], next.w[2], next.w[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) r.w[i] = from == 1 ? w[i + 1] : from == 2 ? w[i + 2] : w[i + 3];
  }
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int byte = i / 8 + (i % 2 == 0 ? 2 : 0);
    const bool keep = (r.w[i % 8 / 2] >> (8 * byte) & 0xff) >= a.least;
    bits |= static_cast<uint32_t>(keep) << i;
  }
  return bits;
}

template <class In, class Out, int N>
__device__ __forceinline__ Vec<Out, N> apply(const Vec<In, N> &x, uint32_t bits, float scale_inv,
                                             float scale) {
  float f[N];
  to_float(x, f);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (kIsFp8<In>) f[i] = __fmul_rn(f[i], scale_inv);
    f[i] = bits >> i & 1 ? __fmul_rn(f[i], scale) : 0.0f;
  }
  return from_float<Out>(f);
}

template <class In, class Out, bool kForward>
__global__ void __launch_bounds__(kThreads) dropout_kernel(const __grid_constant__ Problem a) {
  wait_for_stream();
  let_next_start();
  constexpr int N = 16 / Out::kBytes;
  constexpr int kVecs = static_cast<int>(kPerWarp) / 32 / N;
  constexpr int kPer = 16 / N;  // Vectors with bits of one lane.
  const unsigned lane = threadIdx.x % 32;
  const size_t start = (blockIdx.x * size_t{kThreads} + threadIdx.x) / 32 * kPerWarp;
  if (start >= a.numel) return;
  const size_t left = a.numel - start;
  const bool whole = a.vectorised && left >= kPerWarp;

  Vec<In, N> x[kVecs];
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    const unsigned at = (v * 32 + lane) * N;
    const int count = left <= at ? 0 : left - at < N ? static_cast<int>(left - at) : N;
    x[v] = whole ? load<In, N>(a.input, start + at, true)
                 : load_some<In, N>(a.input, start + at, count);
  }

  float scale_inv = 1.0f;
  if constexpr (kIsFp8<In>) scale_inv = *a.scale_inv;
  uint32_t drawn = 0;
  if constexpr (kForward) {
    drawn = kept(a, start / 16 + lane);
    const size_t first = start / 8 + lane * 2;
    if (whole) {
      *reinterpret_cast<uint16_t *>(a.mask + first) = static_cast<uint16_t>(drawn);
    } else if (left > lane * 16) {
      const size_t rest = left - lane * 16;
      if (rest < 16) drawn &= (1u << rest) - 1;
      a.mask[first] = static_cast<uint8_t>(drawn);
      if (rest > 8) a.mask[first + 1] = static_cast<uint8_t>(drawn >> 8);
    }
  }

#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    const unsigned at = (v * 32 + lane) * N;
    uint32_t bits;
    if constexpr (kForward) {
      bits = __shfl_sync(0xffffffffu, drawn, (v * 32 + lane) / kPer) >> (lane % kPer * N);
    } else {
      bits = left > at ? a.mask[(start + at) / 8] >> (at % 8) : 0;
    }
    const Vec<Out, N> y = apply<In, Out>(x[v], bits, scale_inv, a.scale);
    const int count = left <= at ? 0 : left - at < N ? static_cast<int>(left - at) : N;
    if (whole) {
      store(a.output, start + at, y);
    } else {
      store_some(a.output, start + at, count, y);
    }
  }
}

template <class In, class Out>
NVTEXOutcome run(const Problem &a, cudaStream_t stream) {
  const size_t blocks = ceil_div(a.numel, kPerWarp * (kThreads / 32));
  // Of 4096 elements each: more would need more memory than there is.
  const dim3 grid(static_cast<unsigned>(blocks));
  if (a.rng_state != nullptr) {
    return launch(dropout_kernel<In, Out, true>, grid, kThreads, stream, a);
  }
  if constexpr (!kIsFp8<In>) {
    return launch(dropout_kernel<In, Out, false>, grid, kThreads, stream, a);
  }
  return unimplemented("dropout: backward of FP8");
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_dropout(const NVTEXDropoutArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  const Problem a = {args->input,
                     args->output,
                     args->mask,
                     args->rng_state,
                     args->scale_inv,
                     args->numel,
                     1.0f / (1.0f - args->probability),
                     static_cast<uint32_t>(args->probability * 256.0f),
                     aligned(args->input, 16) && aligned(args->output, 16) &&
                         aligned(args->mask, 2)};
  return dispatch<F32, F16, BF16>(args->output_dtype, [&](auto o) {
    using Out = decltype(o);
    if (args->input_dtype == Out::kDtype) return run<Out, Out>(a, stream);
    return dispatch<E4M3, E5M2>(args->input_dtype, [&](auto i) {
      return run<decltype(i), Out>(a, stream);
    });
  });
}
