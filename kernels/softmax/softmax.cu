// Softmax over rows of scores, with masks, and its backward. A team of threads keeps a row in
// registers; one that is too long or not aligned it reads three times, mostly from the caches.

#include <cmath>
#include <type_traits>

#include "cast/function.cuh"
#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/softmax.h"

namespace nvte {
namespace {

constexpr float kMaskedScore = -10000.0f;

struct Problem {
  const void *input;
  const void *results;
  void *output;
  const uint8_t *mask;
  size_t matrices_per_mask, rows, queries, keys;
  bool causal;
  ptrdiff_t shift;  // The shift of the diagonal: query i sees the keys below i + 1 + shift.
  float scale;

  __device__ __forceinline__ size_t visible(size_t row) const {
    if (!causal) return keys;
    const ptrdiff_t end = static_cast<ptrdiff_t>(row % queries) + 1 + shift;
    return end < 0 ? 0 : static_cast<size_t>(end) < keys ? static_cast<size_t>(end) : keys;
  }
  // Index of the row's first byte in the mask.
  __device__ __forceinline__ size_t mask_row(size_t row) const {
    return (row / queries / matrices_per_mask * queries + row % queries) * keys;
  }
};

struct Max {
  static constexpr float kStart = -INFINITY;
  static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};
struct Sum {
  static constexpr float kStart = 0.0f;
  static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

// Over a team of up to a warp, or over a block that is one team. `shared` serves one call between
// two barriers.
template <class Op, int kTeam>
__device__ __forceinline__ float reduce(float value, float *shared) {
#pragma unroll
  for (int step = kTeam < 32 ? kTeam / 2 : 16; step > 0; step /= 2) {
    value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  if constexpr (kTeam > 32) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x % 32 < kTeam / 32 ? shared[threadIdx.x % 32] : Op::kStart;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      value = Op::of(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
  }
  return value;
}

// exp(t - most), given most * log2(e).
__device__ __forceinline__ float exp_below(float t, float most_log2) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(t, kLog2e, -most_log2)));
  return e;
}

// The factor of the exponentials that makes their sum 1.
__device__ __forceinline__ float weight(float most, float sum) {
  return most == kMaskedScore ? 0.0f : __frcp_rn(sum);
}

// Zeros the elements from `count` on.
template <class T, int N>
__device__ __forceinline__ Vec<T, N> first(Vec<T, N> v, ptrdiff_t count) {
  constexpr int kPer = Vec<T, N>::kPerWord;
  if (count >= N) return v;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) {
    const ptrdiff_t left = count - i * kPer;
    if (left <= 0) {
      v.w[i] = 0;
    } else if (left < kPer) {
      v.w[i] &= 0xffff;  // Keeps the first of two elements in a word.
    }
  }
  return v;
}

// Whether kernels with kMasked are called with a mask alone. Those of BF16 are; other dtypes have
// no instances of their own for rows without a mask, since kernels take time to compile.
template <class T>
constexpr bool kAlwaysMasked = std::is_same_v<T, BF16>;

// One row, as a team sees it: vectors of N elements, of which thread `lane` has every kTeam-th.
template <class T, int N, int kTeam, bool kMasked>
struct Row {
  const Problem &a;
  size_t start, mask_start, visible;
  unsigned lane;

  __device__ __forceinline__ Row(const Problem &problem, size_t row, unsigned team_lane)
      : a(problem), start(row * problem.keys), mask_start(0), visible(0), lane(team_lane) {
    if (row >= a.rows) return;
    visible = a.visible(row);
    if constexpr (kMasked) {
      if (kAlwaysMasked<T> || a.mask != nullptr) mask_start = a.mask_row(row);
    }
  }
  __device__ __forceinline__ size_t col(size_t v) const { return (v * kTeam + lane) * N; }
  // Whether some thread has visible elements in vector v.
  __device__ __forceinline__ bool any(size_t v) const { return v * (kTeam * N) < visible; }
  __device__ __forceinline__ ptrdiff_t count(size_t v) const {
    return static_cast<ptrdiff_t>(visible) - static_cast<ptrdiff_t>(col(v));
  }
  __device__ __forceinline__ Vec<T, N> load_from(const void *tensor, size_t v) const {
    return load<T, N>(tensor, start + col(v), col(v) < visible);
  }
  __device__ __forceinline__ Vec<Raw<uint8_t>, N> load_mask(size_t v) const {
    const bool inside = (kAlwaysMasked<T> || a.mask != nullptr) && col(v) < visible;
    return load<Raw<uint8_t>, N>(a.mask, mask_start + col(v), inside);
  }
  __device__ __forceinline__ void store_to(size_t v, const float (&f)[N]) const {
    store(a.output, start + col(v), first(from_float<T>(f), count(v)));
  }

  // The scaled scores of vector v, -Inf where nothing is visible.
  __device__ __forceinline__ void scores(size_t v, const Vec<T, N> &x,
                                         const Vec<Raw<uint8_t>, N> &mask, float (&t)[N]) const {
    to_float(x, t);
    const int left = static_cast<int>(count(v) < N ? count(v) : N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      t[i] *= a.scale;
      if constexpr (kMasked) {
        if ((mask.w[i / 4] >> (i % 4 * 8) & 0xff) == 1) t[i] = kMaskedScore;
      }
      if (i >= left) t[i] = -INFINITY;
    }
  }
  __device__ __forceinline__ void load_scores(size_t v, float (&t)[N]) const {
    Vec<Raw<uint8_t>, N> mask = {};
    const Vec<T, N> x = load_from(a.input, v);
    if constexpr (kMasked) mask = load_mask(v);
    scores(v, x, mask, t);
  }
};

template <int N>
__device__ __forceinline__ float max_of(const float (&t)[N], float most) {
#pragma unroll
  for (int i = 0; i < N; ++i) most = fmaxf(most, t[i]);
  return most;
}

// Gradients of the scores, in place of those of the results.
template <int N>
__device__ __forceinline__ void gradients(float (&g)[N], const float (&y)[N], float sum,
                                          float scale) {
#pragma unroll
  for (int i = 0; i < N; ++i) g[i] = scale * (y[i] * (g[i] - sum));
}

template <int N>
__device__ __forceinline__ float dot(const float (&g)[N], const float (&y)[N], float sum) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum = fmaf(g[i], y[i], sum);
  return sum;
}

template <class T, int N, int kTeam, int kVecs, int kThreads, bool kMasked>
__global__ void __launch_bounds__(kThreads) held_forward_kernel(const __grid_constant__ Problem a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float shared[2][32];
  const size_t index = blockIdx.x * size_t{kThreads / kTeam} + threadIdx.x / kTeam;
  const Row<T, N, kTeam, kMasked> row(a, index, threadIdx.x % kTeam);
  Vec<T, N> x[kVecs];
  Vec<Raw<uint8_t>, N> mask[kVecs];
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    x[v] = row.load_from(a.input, v);
    if constexpr (kMasked) mask[v] = row.load_mask(v);
  }
  float t[kVecs][N];
  float most = -INFINITY;
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    if (!row.any(v)) break;
    row.scores(v, x[v], mask[v], t[v]);
    most = max_of(t[v], most);
  }
  most = reduce<Max, kTeam>(most, shared[0]);
  const float most_log2 = most * kLog2e;
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    if (!row.any(v)) break;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += t[v][i] = exp_below(t[v][i], most_log2);
  }
  const float factor = weight(most, reduce<Sum, kTeam>(sum, shared[1]));
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    if (index >= a.rows || row.col(v) >= a.keys) break;
    float p[N];
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = row.any(v) ? t[v][i] * factor : 0.0f;
    row.store_to(v, p);
  }
}

template <class T, int N, int kTeam, int kVecs, int kThreads>
__global__ void __launch_bounds__(kThreads)
    held_backward_kernel(const __grid_constant__ Problem a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float shared[32];
  const size_t index = blockIdx.x * size_t{kThreads / kTeam} + threadIdx.x / kTeam;
  const Row<T, N, kTeam, false> row(a, index, threadIdx.x % kTeam);
  Vec<T, N> dy[kVecs], y[kVecs];
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    dy[v] = row.load_from(a.input, v);
    y[v] = row.load_from(a.results, v);
  }
  float g[N], p[N];
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    if (!row.any(v)) break;
    to_float(first(dy[v], row.count(v)), g);
    to_float(first(y[v], row.count(v)), p);
    sum = dot(g, p, sum);
  }
  sum = reduce<Sum, kTeam>(sum, shared);
#pragma unroll
  for (int v = 0; v < kVecs; ++v) {
    if (index >= a.rows || row.col(v) >= a.keys) break;
    to_float(dy[v], g);
    to_float(y[v], p);
    gradients(g, p, sum, a.scale);
    row.store_to(v, g);
  }
}

template <class T, int N, int kTeam, int kThreads, bool kMasked>
__global__ void __launch_bounds__(kThreads) long_forward_kernel(const __grid_constant__ Problem a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float shared[2][32];
  constexpr size_t kTeams = kThreads / kTeam;
  constexpr int kUnroll = N == 1 ? 2 : 4;
  for (size_t base = blockIdx.x * kTeams; base < a.rows; base += gridDim.x * kTeams) {
    const size_t index = base + threadIdx.x / kTeam;
    const Row<T, N, kTeam, kMasked> row(a, index, threadIdx.x % kTeam);
    float t[N];
    float most = -INFINITY;
#pragma unroll kUnroll
    for (size_t v = 0; row.any(v); ++v) {
      row.load_scores(v, t);
      most = max_of(t, most);
    }
    most = reduce<Max, kTeam>(most, shared[0]);
    const float most_log2 = most * kLog2e;
    float sum = 0.0f;
#pragma unroll kUnroll
    for (size_t v = 0; row.any(v); ++v) {
      row.load_scores(v, t);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += exp_below(t[i], most_log2);
    }
    const float factor = weight(most, reduce<Sum, kTeam>(sum, shared[1]));
    if (index >= a.rows) continue;
    for (size_t v = 0; row.col(v) < a.keys; ++v) {
      row.load_scores(v, t);
#pragma unroll
      for (int i = 0; i < N; ++i) t[i] = exp_below(t[i], most_log2) * factor;
      row.store_to(v, t);
    }
  }
}

template <class T, int N, int kTeam, int kThreads>
__global__ void __launch_bounds__(kThreads)
    long_backward_kernel(const __grid_constant__ Problem a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float shared[2][32];
  constexpr size_t kTeams = kThreads / kTeam;
  constexpr int kUnroll = N == 1 ? 2 : 4;
  int turn = 0;
  for (size_t base = blockIdx.x * kTeams; base < a.rows; base += gridDim.x * kTeams) {
    const size_t index = base + threadIdx.x / kTeam;
    const Row<T, N, kTeam, false> row(a, index, threadIdx.x % kTeam);
    float g[N], p[N];
    float sum = 0.0f;
#pragma unroll kUnroll
    for (size_t v = 0; row.any(v); ++v) {
      to_float(first(row.load_from(a.input, v), row.count(v)), g);
      to_float(first(row.load_from(a.results, v), row.count(v)), p);
      sum = dot(g, p, sum);
    }
    sum = reduce<Sum, kTeam>(sum, shared[turn ^= 1]);
    if (index >= a.rows) continue;
    for (size_t v = 0; row.col(v) < a.keys; ++v) {
      to_float(row.load_from(a.input, v), g);
      to_float(row.load_from(a.results, v), p);
      gradients(g, p, sum, a.scale);
      row.store_to(v, g);
    }
  }
}

// The masked forward pass also takes rows without a mask, but not of BF16 (see kAlwaysMasked).
enum class Pass { kForward, kMaskedForward, kBackward };

template <class T, Pass kPass, int kTeam, int kVecs, int kThreads>
NVTEXOutcome launch_held(const Problem &a, cudaStream_t stream) {
  constexpr int N = 16 / T::kBytes;
  // Rows have at least 16 bytes, so that a grid with more blocks than there can be would need more
  // memory than there is.
  const dim3 grid(static_cast<unsigned>(ceil_div(a.rows, kThreads / kTeam)));
  if constexpr (kPass == Pass::kBackward) {
    return launch(held_backward_kernel<T, N, kTeam, kVecs, kThreads>, grid, kThreads, stream, a);
  } else {
    constexpr bool kMasked = kPass == Pass::kMaskedForward;
    return launch(held_forward_kernel<T, N, kTeam, kVecs, kThreads, kMasked>, grid, kThreads,
                  stream, a);
  }
}

template <class T, Pass kPass, int N, int kTeam, int kThreads>
NVTEXOutcome launch_long(const Problem &a, cudaStream_t stream) {
  const size_t blocks = ceil_div(a.rows, kThreads / kTeam);
  const dim3 grid(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
  if constexpr (kPass == Pass::kBackward) {
    return launch(long_backward_kernel<T, N, kTeam, kThreads>, grid, kThreads, stream, a);
  } else {
    constexpr bool kMasked = kPass == Pass::kMaskedForward;
    return launch(long_forward_kernel<T, N, kTeam, kThreads, kMasked>, grid, kThreads, stream, a);
  }
}

template <class T, Pass kPass>
NVTEXOutcome run(const Problem &a, cudaStream_t stream) {
  constexpr int N = 16 / T::kBytes;
  const bool vectorised = a.keys % N == 0 && aligned(a.input, 16) && aligned(a.results, 16) &&
                          aligned(a.output, 16) && aligned(a.mask, N);
  if (!vectorised) {
    return a.keys <= 1024 ? launch_long<T, kPass, 1, 32, 128>(a, stream)
                          : launch_long<T, kPass, 1, 512, 512>(a, stream);
  }
  const size_t vectors = a.keys / N;
  if constexpr (kPass != Pass::kBackward) {
    // The forward keeps its row as float32: with registers to spare fewer rows are in flight. H200,
    // bf16, rows of 1024 and 16384: 4154 and 3839 GB/s (with the counts below: 3672 and 2370).
    if (vectors <= 8) return launch_held<T, kPass, 8, 1, 256>(a, stream);
    if (vectors > 16 && vectors <= 32) return launch_held<T, kPass, 32, 1, 256>(a, stream);
    if (vectors > 64 && vectors <= 128) return launch_held<T, kPass, 32, 4, 128>(a, stream);
    if (vectors > 256 && vectors <= 512) return launch_held<T, kPass, 128, 4, 128>(a, stream);
    if (vectors > 1024 && vectors <= 2048) return launch_held<T, kPass, 512, 4, 512>(a, stream);
  }
  if (vectors <= 16) return launch_held<T, kPass, 8, 2, 256>(a, stream);
  if (vectors <= 64) return launch_held<T, kPass, 32, 2, 256>(a, stream);
  // Masked, bf16: 3930 GB/s, with 64, 128 and 256 threads 3910, 3885, 3280.
  constexpr int kLongThreads = kPass == Pass::kMaskedForward ? 32 : 128;
  if (vectors <= 256) return launch_held<T, kPass, 32, 8, kLongThreads>(a, stream);
  if (vectors <= 1024) return launch_held<T, kPass, 128, 8, 128>(a, stream);
  if (vectors <= 4096) return launch_held<T, kPass, 512, 8, 512>(a, stream);
  return launch_long<T, kPass, N, 512, 512>(a, stream);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_softmax(const NVTEXSoftmaxArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  const bool backward = args->results != nullptr;
  const bool masked = args->visible == NVTEX_SOFTMAX_BYTES && !backward;
  const bool bottom_right = args->visible == NVTEX_SOFTMAX_CAUSAL_BOTTOM_RIGHT;
  const ptrdiff_t below =
      static_cast<ptrdiff_t>(args->keys) - static_cast<ptrdiff_t>(args->queries);
  const Problem a = {args->input,
                     args->results,
                     args->output,
                     masked ? args->mask : nullptr,
                     args->matrices_per_mask,
                     args->matrices * args->queries,
                     args->queries,
                     args->keys,
                     bottom_right || args->visible == NVTEX_SOFTMAX_CAUSAL,
                     bottom_right ? below : 0,
                     args->scale};
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    if (backward) return run<T, Pass::kBackward>(a, stream);
    if constexpr (kAlwaysMasked<T>) {
      if (!masked) return run<T, Pass::kForward>(a, stream);
    }
    return run<T, Pass::kMaskedForward>(a, stream);
  });
}
