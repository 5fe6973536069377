// LayerNorm and RMSNorm, forward and backward. The threads of a group share a row: each copies its
// elements to shared memory ahead of time, and one exchange between the warps of the group gives
// what the row needs. Rows too long for that are read again from global memory.

#include <cfloat>
#include <type_traits>

#include "common/scale.cuh"
#include "common/stream.cuh"

extern "C" NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *, cudaStream_t) noexcept;

namespace nvte {
namespace {

constexpr int kVec = 8;          // Columns that a thread handles together.
constexpr int kRun = 32 * kVec;  // A warp.
constexpr int kMostWarps = 32;

// How the columns of a row lie over the threads of a group.
struct Layout {
  int cols;
  int group;         // Threads; a multiple of 32.
  int warps, width;  // Of a group, and the next power of two.
  int groups;        // Of a block.
  int inverse;       // What divides by warps: divisions take time before the first load.
  // The columns of a vector lie side by side. Else they are `group` apart, so that a warp accesses
  // single elements side by side.
  bool adjacent;

  void set_group(int threads) {
    group = threads;
    warps = threads / 32;
    for (width = 1; width < warps;) width *= 2;
    inverse = 65536 / warps + 1;  // Exact for the warps of a block.
  }
  __device__ __forceinline__ int index() const {
    return static_cast<int>(threadIdx.x / 32 * inverse) >> 16;
  }
};

// The columns of one thread: vectors, one in each `span` columns. kVectorised: every access to a
// vector is aligned, and inside or outside the row as a whole.
template <bool kVectorised>
struct Columns {
  int cols, first, step, span;

  __device__ Columns(const Layout &l, int thread)
      : cols(l.cols),
        first(kVectorised || l.adjacent ? thread * kVec : thread),
        step(kVectorised || l.adjacent ? 1 : l.group),
        span(l.group * kVec) {}

  __device__ __forceinline__ int column(int v) const { return first + v * span; }
  __device__ __forceinline__ bool has(int v, int i) const {
    return column(v) + (kVectorised ? 0 : i * step) < cols;
  }

  // Vector v of the row that begins at element `row`; zeros outside, or if there is no such row.
  template <class T>
  __device__ __forceinline__ Vec<T, kVec> load(const void *base, size_t row, int v,
                                               bool exists) const {
    const int col = column(v);
    if constexpr (kVectorised) {
      return nvte::load<T, kVec>(base, row + col, exists && col < cols);
    }
    constexpr int kPer = Vec<T, kVec>::kPerWord;
    Vec<T, kVec> x = {};
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const uint32_t bits =
          exists && has(v, i) ? *element<typename T::Bits>(base, row + col + i * step) : 0;
      x.w[i / kPer] |= bits << (i % kPer * 8 * T::kBytes);
    }
    return x;
  }

  template <class T>
  __device__ __forceinline__ void store(void *base, size_t row, int v,
                                        const Vec<T, kVec> &x) const {
    const int col = column(v);
    if constexpr (kVectorised) {
      if (col < cols) nvte::store(base, row + col, x);
      return;
    }
    constexpr int kPer = Vec<T, kVec>::kPerWord;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (has(v, i)) {
        *element<typename T::Bits>(base, row + col + i * step) =
            static_cast<typename T::Bits>(x.w[i / kPer] >> (i % kPer * 8 * T::kBytes));
      }
    }
  }

  // Of any high-precision type.
  __device__ __forceinline__ void load_floats(const void *base, NVTEDType dtype, size_t row, int v,
                                              float (&f)[kVec]) const {
    if (dtype == kNVTEFloat32) {
      to_float(load<F32>(base, row, v, true), f);
    } else if (dtype == kNVTEBFloat16) {
      to_float(load<BF16>(base, row, v, true), f);
    } else {
      to_float(load<F16>(base, row, v, true), f);
    }
  }

  __device__ __forceinline__ void store_floats(void *base, NVTEDType dtype, size_t row, int v,
                                               const float (&f)[kVec]) const {
    if (dtype == kNVTEFloat32) {
      store(base, row, v, from_float<F32>(f));
    } else if (dtype == kNVTEBFloat16) {
      store(base, row, v, from_float<BF16>(f));
    } else {
      store(base, row, v, from_float<F16>(f));
    }
  }

  // Elements of a thread in `count` vectors.
  __device__ __forceinline__ float elements(int from, int count) const {
    int n = 0;
    for (int v = from; v < from + count; ++v) {
      for (int i = 0; i < kVec; ++i) n += has(v, i);
    }
    return static_cast<float>(n);
  }
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <int N>
__device__ __forceinline__ void warp_sums(float (&x)[N]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < (N < 2 ? N : 2); ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
  }
}

template <int N>
__device__ __forceinline__ void lanes_sums(float (&x)[N], int width) {
  for (int step = 1; step < width; step *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
  }
}

// NaN for NaN.
__device__ __forceinline__ float at_least_0(float x) { return x < 0.0f ? 0.0f : x; }

// Over each `width` lanes, a power of two.
__device__ __forceinline__ float lanes_sum(float x, int width) {
  for (int step = 1; step < width; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The threads that share a row, and their exchange of kCount floats for each warp. One barrier
// each: successive exchanges use different memory.
template <int kCount>
struct Group {
  const Layout &layout;  // Constant memory: no registers.
  int index, thread;
  int turn = 0;
  float (*memory)[kMostWarps][kCount];  // [2]

  __device__ Group(const Layout &l, float (*memory)[kMostWarps][kCount])
      : layout(l), index(l.index()), thread(threadIdx.x - index * l.group), memory(memory) {}

  // `mine` of a warp becomes, in lane w % width, that of warp w of the group, or zeros.
  __device__ __forceinline__ void exchange(float (&mine)[kCount]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) memory[turn][warp][i] = mine[i];
    }
    __syncwarp();  // The barrier counts warps.
    asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(layout.group) : "memory");
    const int from = lane & (layout.width - 1);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      mine[i] = from < layout.warps ? memory[turn][index * layout.warps + from][i] : 0.0f;
    }
    turn ^= 1;
  }
};

// 16 bytes of shared memory: `bytes` from global memory, then zeros.
__device__ __forceinline__ void copy_async(uint4 *to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

// Until at most `pending` of the latest commits are incomplete.
__device__ __forceinline__ void wait_for_copies(int pending) {
  if (pending > 1) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  } else if (pending > 0) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
}

// Elements of this thread that are on their way to shared memory, where only it reads them again:
// kPlaces vectors; 0 if their number is known at run time only.
template <class T, bool kVectorised, int kPlaces = 0>
struct Staged {
  static constexpr int kChunks = Vec<T, kVec>::kBytes / 16;

  uint4 *memory;  // Of the first thread.

  __device__ __forceinline__ uint4 *slot(int place, int chunk) const {
    const int at = place * kChunks + chunk;
    if (kPlaces == 0) return memory + at * static_cast<int>(blockDim.x) + threadIdx.x;
    return memory + (threadIdx.x / 32 * (kPlaces * kChunks) + at) * 32 + threadIdx.x % 32;
  }
  __device__ __forceinline__ void set(int place, const Vec<T, kVec> &x) const {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) store_bytes<16>(slot(place, k), x.w + 4 * k);
  }
  __device__ __forceinline__ Vec<T, kVec> get(int place) const {
    Vec<T, kVec> x;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      uint32_t w[4];
      load_shared(reinterpret_cast<const uint32_t *>(slot(place, k)), w);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.w[4 * k + i] = w[i];
    }
    return x;
  }
  // Vector v of a row, of which `from` is the thread's first: `left` elements from there on, and
  // zeros.
  template <bool kSkewed>
  __device__ __forceinline__ void fetch(int place, const char *from, int v, int left) const {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int start = v * kRun + k * (16 / T::kBytes), rest = (left - start) * T::kBytes;
      const int bytes = kSkewed && rest < 16 ? rest : 16;
      copy_async(slot(place, k), from + start * T::kBytes, rest > 0 ? bytes : 0);
    }
  }
  // Vector v of the row that begins at element `row`; zeros if there is no such row.
  __device__ __forceinline__ void fetch(const Columns<kVectorised> &c, int place, const void *base,
                                        size_t row, int v, bool exists) const {
    if constexpr (kVectorised) {
      const bool inside = exists && c.column(v) < c.cols;
      const auto *from = element<typename T::Bits>(base, inside ? row + c.column(v) : 0);
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        copy_async(slot(place, k), reinterpret_cast<const char *>(from) + k * 16, inside ? 16 : 0);
      }
    } else {
      set(place, c.template load<T>(base, row, v, exists));
    }
  }
};

// The weight g of vector v; zeros outside the row.
template <bool kVectorised>
__device__ __forceinline__ void load_gamma(const Columns<kVectorised> &c, const NVTEXGamma &gamma,
                                           int v, float (&g)[kVec]) {
  c.load_floats(gamma.data, gamma.dtype, 0, v, g);
  if (!gamma.zero_centered) return;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    g[i] = c.has(v, i) ? g[i] + 1.0f : 0.0f;
  }
  if (!gamma.rounded) return;
  if (gamma.dtype == kNVTEFloat16) to_float(from_float<F16>(g), g);
  if (gamma.dtype == kNVTEBFloat16) to_float(from_float<BF16>(g), g);
}

__device__ __forceinline__ float scalar(const void *base, NVTEDType dtype, size_t i) {
  float pair[2];
  if (dtype == kNVTEFloat32) return *element<float>(base, i);
  if (dtype == kNVTEFloat16) {
    F16::to_float(*element<uint16_t>(base, i), pair);
  } else {
    BF16::to_float(*element<uint16_t>(base, i), pair);
  }
  return pair[0];
}

__device__ __forceinline__ float rounded(float x, NVTEDType dtype) {
  float pair[2] = {x, 0.0f};
  if (dtype == kNVTEFloat16) F16::to_float(F16::from_float(pair), pair);
  if (dtype == kNVTEBFloat16) BF16::to_float(BF16::from_float(pair), pair);
  return pair[0];
}

// A predicate, not a branch: the barriers at which so many of them meet again would spill.
template <class B>
__device__ __forceinline__ void store_if(bool inside, B *to, B bits) {
  asm volatile(
      "{.reg .pred inside;\n"
      "setp.ne.b32 inside, %3, 0;\n"
      "@inside st.global.b%2 [%0], %1;}" ::"l"(to),
      "r"(uint32_t{bits}), "n"(8 * sizeof(B)), "r"(int{inside})
      : "memory");
}

// How a group holds a row in vectors that are aligned whatever the row begins with: a warp has V
// runs of kRun positions one after the other, and a thread kVec side by side of each. If kSkewed,
// rows are not a multiple of kVec long, and positions count from the last aligned element at or
// before a row's first, which has position `begin`. The rows of a block all have the same: it takes
// every kVec-th.
template <bool kSkewed, int V>
struct Span {
  static constexpr int kEvery = kSkewed ? kVec : 1;

  size_t row;        // The group's first.
  int begin, first;  // first: the thread's position.
  int left;          // Positions from there to the end of a row, or negative.

  __device__ __forceinline__ Span(int cols, int offset, int groups, int group, int thread)
      : row((size_t{blockIdx.x / kEvery} * groups + group) * kEvery + blockIdx.x % kEvery),
        begin(kSkewed ? static_cast<int>((offset + row * cols) % kVec) : 0),
        first(thread / 32 * (V * kRun) + thread % 32 * kVec),
        left(begin + cols - first) {}

  // Vector v has elements of a row.
  __device__ __forceinline__ bool has(int v) const { return v * kRun < left; }
  // A bit for each element of vector v. One register, where comparisons would take many.
  __device__ __forceinline__ unsigned mask(int v) const {
    const int rest = left - v * kRun, end = rest < 0 ? 0 : rest > kVec ? kVec : rest;
    const unsigned bits = (1u << end) - 1;
    return kSkewed && v == 0 && first < begin ? bits & (~0u << (begin - first)) : bits;
  }
  __device__ __forceinline__ bool has_all(int v) const {
    return v * kRun + kVec <= left && first + v * kRun >= begin;
  }
  // What copies cannot leave out: elements of the row before this one.
  template <class T>
  __device__ __forceinline__ void clear_before(int v, T (&f)[kVec]) const {
    if constexpr (kSkewed) {
      if (v != 0 || first >= begin) return;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (first + i < begin) f[i] = 0;
      }
    }
  }
  // Elements of vector v.
  __device__ __forceinline__ float elements_of(int v) const {
    return static_cast<float>(__popc(mask(v)));
  }
  // Elements of a warp's part of a row.
  __device__ __forceinline__ float elements() const {
    const int lane = threadIdx.x % 32, from = first - lane * kVec, until = from + V * kRun;
    const int end = left + first;
    const int n = (until < end ? until : end) - (from > begin ? from : begin);
    return static_cast<float>(n > 0 ? n : 0);
  }

  template <class T>
  __device__ __forceinline__ char *at(const void *base, int cols, size_t row) const {
    return static_cast<char *>(const_cast<void *>(base)) +
           (static_cast<ptrdiff_t>(row * cols) + first - begin) * T::kBytes;
  }
  // `z` becomes vector v of a row, of which `to` is the thread's first. `together`: it is aligned.
  template <class T>
  __device__ __forceinline__ void put(char *to, int v, const Vec<T, kVec> &z, bool together) const {
    if constexpr (!kSkewed) {
      if (has(v)) store(to, v * kRun, z);
    } else if (together && has_all(v)) {
      store(to, v * kRun, z);
    } else {
      constexpr int kPer = Vec<T, kVec>::kPerWord;
      const unsigned here = mask(v);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const auto bits =
            static_cast<typename T::Bits>(z.w[i / kPer] >> (i % kPer * 8 * T::kBytes));
        store_if(here >> i & 1, element<typename T::Bits>(to, v * kRun + i), bits);
      }
    }
  }
  // The other way; zeros outside.
  template <class T>
  __device__ __forceinline__ Vec<T, kVec> get(const char *from, int v, bool together) const {
    if constexpr (!kSkewed) {
      return load<T, kVec>(from, v * kRun, has(v));
    } else {
      if (together && has_all(v)) return load<T, kVec>(from, v * kRun, true);
      constexpr int kPer = Vec<T, kVec>::kPerWord;
      Vec<T, kVec> x = {};
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const bool here = mask(v) >> i & 1;
        const uint32_t bits = here ? *element<typename T::Bits>(from, v * kRun + i) : 0;
        x.w[i / kPer] |= bits << (i % kPer * 8 * T::kBytes);
      }
      return x;
    }
  }
};

// Threads of a block, at most, are tuned for the registers of sm_90; other architectures get slack
// instead of spills.
constexpr int threads_here(int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  return threads * 3 / 4;
#else
  return threads;
#endif
}
int threads_on(const Device &device, int threads) {
  return device.arch == 90 ? threads : threads * 3 / 4;
}

// Divides by n, 0 by 0.
struct Divisor {
  float n, inverse;

  __host__ __device__ explicit Divisor(float n) : n(n), inverse(n > 0.0f ? 1.0f / n : 0.0f) {}
  __device__ __forceinline__ float divide(float x) const {
    const float q = x * inverse, better = fmaf(fmaf(-q, n, x), inverse, q);
    return fabsf(q) <= FLT_MAX ? better : q;  // Infinity minus infinity is none.
  }
};

// kVec floats for each vector of a thread, in shared memory.
template <int V>
struct Weights {
  uint32_t at;  // Of the thread's first, in shared memory.

  __device__ __forceinline__ Weights(const float *memory, int thread)
      : at(static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + thread / 32 * (V * kRun * 4) +
           thread % 32 * 16) {}

  __host__ __device__ static constexpr size_t floats(int threads) {
    return size_t(threads) * kVec * V;
  }

  __device__ __forceinline__ void set(int v, const float (&f)[kVec]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + (v * 2 + k) * 512),
                   "f"(f[4 * k]), "f"(f[4 * k + 1]), "f"(f[4 * k + 2]), "f"(f[4 * k + 3])
                   : "memory");
    }
  }
  // Of float i of all threads; four at a time lie side by side.
  static __device__ __forceinline__ int position(int i) {
    return i / (V * kRun) * (V * kRun) + i / kRun % V * kRun + i % 128 / 4 * kVec + i % 4 +
           i / 128 % 2 * 4;
  }

  // A half of them.
  __device__ __forceinline__ void get(int v, int half, float (&f)[kVec / 2]) const {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3])
                 : "r"(at + (v * 2 + half) * 512)
                 : "memory");
  }
  __device__ __forceinline__ void get(int v, float (&f)[kVec]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[kVec / 2];
      get(v, half, part);
#pragma unroll
      for (int i = 0; i < kVec / 2; ++i) f[half * (kVec / 2) + i] = part[i];
    }
  }
};

// Gamma and beta (if there is any) of the thread's vector v. The loads of both are on their way
// together: with few rows, their time counts.
template <class T, bool kBeta, bool kSkewed, int V>
__device__ __forceinline__ void weights_of(const Span<kSkewed, V> &span, const NVTEXGamma &gamma,
                                           const void *beta, int v, float (&g)[kVec],
                                           float (&b)[kVec]) {
  // A row of them.
  const auto *const gammas = span.template at<T>(gamma.data, 0, 0);
  const auto *const betas = span.template at<T>(beta, 0, 0);
  const Vec<T, kVec> raw = span.template get<T>(gammas, v, false);
  if (kBeta) to_float(span.template get<T>(betas, v, false), b);
  to_float(raw, g);
  if (!gamma.zero_centered) return;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (span.mask(v) >> i & 1) g[i] += 1.0f;
  }
  if (gamma.rounded) to_float(from_float<T>(g), g);
}

// Into shared memory, by the groups of a block together. `In`: likely their type.
template <class In, bool kBeta, bool kSkewed, int V>
__device__ __forceinline__ void share_weights(const Span<kSkewed, V> &span, int group, int groups,
                                              const NVTEXGamma &gamma, const void *beta,
                                              const Weights<V> &gammas, const Weights<V> &betas) {
  for (int v = group; v < V; v += groups) {
    float g[kVec], b[kVec];
    if (gamma.dtype == In::kDtype) {
      weights_of<In, kBeta>(span, gamma, beta, v, g, b);
    } else if (gamma.dtype == kNVTEFloat32) {
      weights_of<F32, kBeta>(span, gamma, beta, v, g, b);
    } else if (gamma.dtype == kNVTEBFloat16) {
      weights_of<BF16, kBeta>(span, gamma, beta, v, g, b);
    } else {
      weights_of<F16, kBeta>(span, gamma, beta, v, g, b);
    }
    gammas.set(v, g);
    if (kBeta) betas.set(v, b);
  }
}

// ---- Forward

struct ForwardArgs {
  NVTEXNormForwardArgs norm;
  Layout layout;
  Divisor by_cols = Divisor(1.0f);
  size_t rows;  // With those that only have padding of scales.
  // Of row-wise scales; blocks are 0 with one scale per tensor.
  ScaleMatrix scales;
  FloatScale float_scale;
  MxScale mx_scale;
  int block;
  int stages;
  // Of the first element from the last aligned one; whether the output has the same.
  int offset;
  bool together;
  size_t step;  // Rows that all groups have at a time.
};

// The dtype of the output, when it is known at run time only.
struct Any {};

// Casts and stores vectors of a row.
struct Output {
  const ForwardArgs &a;
  float scale;
  float amax = 0.0f;
  int seen = 0;  // Thread 0: the amax so far. Read early, for it takes time.

  __device__ explicit Output(const ForwardArgs &args) : a(args), scale(given_scale()) {
    if (a.norm.cast.amax != nullptr && threadIdx.x == 0) {
      seen = __ldcg(reinterpret_cast<int *>(a.norm.cast.amax));
    }
  }

  __device__ __forceinline__ float given_scale() const {
    return a.norm.cast.scale != nullptr ? *a.norm.cast.scale : 1.0f;
  }

  template <int N>
  __device__ __forceinline__ static float largest(const float (&f)[N]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) most = fmaxf(most, fabsf(f[i]));
    return most;
  }

  // Elements from column `col` of a row on, by whole warps; those outside the row are 0 or NaN.
  // store(z) takes what is inside. kBlocks: N columns side by side, and there may be scales of
  // blocks.
  template <class Out, bool kBlocks, int N, class Store>
  __device__ __forceinline__ void put(size_t row, int col, float (&f)[N], const Store &store) {
    const NVTEXQuantizeArgs &cast = a.norm.cast;
    if constexpr (std::is_same_v<Out, Any>) {
      switch (cast.output_dtype) {
        case kNVTEFloat32:
          return put<F32, kBlocks>(row, col, f, store);
        case kNVTEFloat16:
          return put<F16, kBlocks>(row, col, f, store);
        case kNVTEBFloat16:
          return put<BF16, kBlocks>(row, col, f, store);
        default:
          return put<E4M3, kBlocks>(row, col, f, store);
      }
    } else if constexpr (kIsFp8<Out>) {
      float factor = scale;
      if (kBlocks || cast.amax != nullptr) {
        const float most = largest(f);
        amax = fmaxf(amax, most);
        if (kBlocks && a.block != 0) factor = block_factor<N>(row, col, most);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = __fmul_rn(f[i], factor);
      if (kBlocks && row >= cast.rows) return;
      if (cast.output_dtype == kNVTEFloat8E5M2) {
        store(from_float<E5M2>(f));
      } else {
        store(from_float<E4M3>(f));
      }
    } else {
      const Vec<Out, N> z = from_float<Out>(f);
      if (cast.amax != nullptr) {
        AbsMax<Out> most;
        most.add(z);
        amax = fmaxf(amax, __int_as_float(most.bits()));
      }
      if (!kBlocks || row < cast.rows) store(z);
    }
  }

  template <int N>
  __device__ __forceinline__ float block_factor(size_t row, int col, float most) {
    const int lanes = a.block / N, cols = a.layout.cols;
    const bool exists = row < a.norm.cast.rows;
    for (int step = 1; step < lanes; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    const bool writer = threadIdx.x % lanes == 0;
    const size_t at = a.scales.index(row, col / a.block);
    if (a.norm.cast.mode == NVTE_MXFP8_1D_SCALING) {
      uint8_t entry;
      const float factor = a.mx_scale.factor(most, entry);
      // Padding reaches to the next multiple of four blocks.
      if (writer && col < (cols + 127) / 128 * 128) {
        static_cast<uint8_t *>(a.scales.entries)[at] = exists && col < cols ? entry : 0;
      }
      return factor;
    }
    float entry;
    const float factor = a.float_scale.factor(most, entry);
    if (writer && exists && col < cols) static_cast<float *>(a.scales.entries)[at] = entry;
    return factor;
  }

  __device__ __forceinline__ void finish() {
    const NVTEXQuantizeArgs &cast = a.norm.cast;
    if (cast.amax != nullptr) {
      __shared__ int most;
      if (threadIdx.x == 0) most = 0;
      __syncwarp();  // After the stores at the edges of skewed rows, where a warp parts.
      __syncthreads();
      const int bits = warp_max(__float_as_int(amax));
      if (threadIdx.x % 32 == 0) atomicMax(&most, bits);
      __syncthreads();
      // Atomics on one address are slow: an amax that was already reached needs none.
      if (threadIdx.x == 0 && most > seen) atomicMax(reinterpret_cast<int *>(cast.amax), most);
    }
    if (a.block == 0 && blockIdx.x == 0 && threadIdx.x == 0) {
      const float inverse = __frcp_rn(given_scale());
      if (cast.rowwise_scale_inv != nullptr)
        *static_cast<float *>(cast.rowwise_scale_inv) = inverse;
      if (cast.colwise_scale_inv != nullptr)
        *static_cast<float *>(cast.colwise_scale_inv) = inverse;
    }
  }
};

// Threads of a block, at most: what the registers hold.
template <class In, bool kLayer, bool kBlocks, bool kSkewed, int V>
__host__ __device__ constexpr int row_threads() {
  if (V == 4) return 768;
  if (V == 3) return kSkewed ? 768 : kLayer ? 800 : 736;
  return kBlocks || (kSkewed && V == 2) ? 896 : 1024;
}

// A group goes over its rows, of which it holds one in registers while the next one is on its way
// to shared memory, where gamma and beta are too. Each warp has the sums of deviations from a value
// near its mean and of their squares, from which the mean and the variance of the row follow.
template <class In, class Out, bool kLayer, bool kBlocks, bool kSkewed, int V>
__global__ void __launch_bounds__(threads_here(row_threads<In, kLayer, kBlocks, kSkewed, V>()), 1)
    rows_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kCount = kLayer ? 3 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormForwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const int threads = args.layout.group, cols = args.layout.cols, groups = args.layout.groups;
  const Span<kSkewed, V> span(cols, args.offset, groups, group.index, group.thread);

  using Part = Staged<In, true, V>;
  const int stage_size = V * Part::kChunks * static_cast<int>(blockDim.x);
  const auto fetch = [&](size_t row, int stage) {
    const Part part = {stages + stage * stage_size};
    const char *from = span.template at<In>(a.cast.input, cols, row);
    const int left = row < a.cast.rows ? span.left : 0;
#pragma unroll
    for (int v = 0; v < V; ++v) part.template fetch<kSkewed>(v, from, v, left);
    commit_copies();
  };
  for (int i = 0; i < args.stages; ++i) fetch(span.row + i * args.step, i);

  const float *const floats = reinterpret_cast<float *>(stages + args.stages * stage_size);
  const Weights<V> gamma(floats, group.thread);
  const Weights<V> beta(floats + Weights<V>::floats(threads), group.thread);
  share_weights<In, kLayer>(span, group.index, groups, a.gamma, a.beta, gamma, beta);
  __syncthreads();

  const float n = kLayer ? span.elements() : 0.0f;
  const float inverse = n > 0.0f ? 1.0f / n : 0.0f;
  const float n0 = kLayer ? __shfl_sync(0xffffffffu, span.elements_of(0), 0) : 0.0f;
  const float inverse0 = n0 > 0.0f ? 1.0f / n0 : 0.0f;
  Output output(args);

  int stage = 0;
#pragma unroll 1
  for (size_t row = span.row; row < args.rows; row += args.step) {
    float f[V][kVec];
    wait_for_copies(args.stages - 1);
    const Part part = {stages + stage * stage_size};
#pragma unroll
    for (int v = 0; v < V; ++v) to_float(part.get(v), f[v]);
    fetch(row + args.stages * args.step, stage);
    stage = stage + 1 == args.stages ? 0 : stage + 1;
    span.clear_before(0, f[0]);

    // The warp's sums of the deviations from a value near its mean, and of their squares: both at
    // once. In a row of one value the deviations are 0.
    float m[kCount] = {}, center = 0.0f;
    if constexpr (kLayer) {
      const float (&x)[kVec] = f[0];
      const float near = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
      center = __shfl_sync(0xffffffffu, near, 0) * inverse0;
      if (!(fabsf(center) <= FLT_MAX)) center = 0.0f;
    }
    float sums[4] = {}, squares[4] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float here = kLayer && span.has(v) ? center : 0.0f;
      float apart[kVec];
#pragma unroll
      for (int i = 0; i < kVec; ++i) apart[i] = kLayer ? f[v][i] - here : f[v][i];
      if (kLayer && kSkewed && !span.has_all(v)) {
        const unsigned inside = span.mask(v);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          if ((inside >> i & 1) == 0) apart[i] = 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        squares[i % 4] += apart[i] * apart[i];
        if (kLayer) sums[i % 4] += apart[i];
      }
    }
    m[0] = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    if (kLayer) m[1] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    warp_sums(m);

    const Divisor &by_cols = args.by_cols;
    float mu = 0.0f, variance;
    if constexpr (kLayer) {
      const float shift = m[1] * inverse;  // The warp's mean is that more than the center.
      if (args.layout.warps == 1) {
        mu = center + shift;
        variance = by_cols.divide(fmaf(-m[1], shift, m[0]));
      } else {
        m[0] = fmaf(-m[1], shift, m[0]);
        m[1] = center + shift;
        m[2] = n;
        group.exchange(m);
        // The same with the means, from that of the first warp.
        const float first = __shfl_sync(0xffffffffu, m[1], 0);
        const float from = fabsf(first) <= FLT_MAX ? first : 0.0f, apart = m[1] - from;
        float both[2] = {m[2] * apart, fmaf(m[2] * apart, apart, m[0])};
        lanes_sums(both, args.layout.width);
        const float more = by_cols.divide(both[0]);
        mu = from + more;
        variance = by_cols.divide(fmaf(-both[0], more, both[1]));
      }
      variance = at_least_0(variance);  // Rounding.
    } else {
      if (args.layout.warps > 1) {
        group.exchange(m);
        lanes_sums(m, args.layout.width);
      }
      variance = by_cols.divide(m[0]);
    }
    const float rsigma = rsqrtf(variance + a.epsilon);
    if (group.thread == 0 && row < a.cast.rows) {
      if (kLayer) a.mu[row] = mu;
      a.rsigma[row] = rsigma;
    }

    if (a.cast.rowwise != nullptr) {
      char *const to = span.template at<Out>(a.cast.rowwise, cols, row);
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float g[kVec / 2], b[kVec / 2];
          gamma.get(v, half, g);
          if (kLayer) beta.get(v, half, b);
#pragma unroll
          for (int i = 0; i < kVec / 2; ++i) {
            float &y = f[v][half * (kVec / 2) + i];
            // Not y rsigma - mu rsigma: in a row of one value the difference must be 0.
            y = kLayer ? fmaf(g[i], rsigma * (y - mu), b[i]) : g[i] * (y * rsigma);
          }
        }
        output.template put<Out, kBlocks>(row, span.first + v * kRun, f[v], [&](const auto &z) {
          span.put(to, v, z, args.together);
        });
      }
    }
  }
  wait_for_copies(0);
  output.finish();
}

// Threads of a block, at most. Single elements take more registers.
constexpr int forward_threads(bool vectorised) { return vectorised ? 1024 : 512; }

// The same with rows of any length and outputs of any type, and sums with a residual: the next row
// is on its way to shared memory (kStaged; else rows are too long for that and are read again from
// global memory).
template <class In, bool kLayer, bool kVectorised, bool kStaged>
__global__ void __launch_bounds__(forward_threads(kVectorised), 1)
    forward_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kCount = kLayer ? 3 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormForwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const Columns<kVectorised> c(args.layout, group.thread);
  const size_t cols = a.cast.cols;
  const int groups = blockDim.x / args.layout.group;
  const int vectors = (c.cols + c.span - 1) / c.span;
  const float n = kLayer ? warp_sum(c.elements(0, vectors)) : 0.0f;
  Output output(args);

  using Part = Staged<In, kVectorised>;
  const int stage_size = (a.residual != nullptr ? 2 : 1) * vectors * Part::kChunks * blockDim.x;
  auto fetch = [&](size_t row, int stage) {
    const Part to = {stages + stage * stage_size};
    for (int v = 0; v < vectors; ++v) {
      to.fetch(c, v, a.cast.input, row * cols, v, row < a.cast.rows);
      if (a.residual != nullptr) {
        to.fetch(c, vectors + v, a.residual, row * cols, v, row < a.cast.rows);
      }
    }
    commit_copies();
  };

  const size_t step = size_t{gridDim.x} * groups;
  size_t row = size_t{blockIdx.x} * groups + group.index;
  if (kStaged) {
    for (int i = 0; i < args.stages; ++i) fetch(row + i * step, i);
  }
  for (int stage = 0; row < args.rows; row += step) {
    const Part part = {stages + stage * stage_size};
    const size_t at = row * cols;
    const bool exists = row < a.cast.rows;
    auto get = [&](int v, float (&f)[kVec]) {
      if constexpr (kStaged) {
        to_float(part.get(v), f);
      } else {
        const void *x = a.residual != nullptr ? a.sum : a.cast.input;
        to_float(c.template load<In>(x, at, v, exists), f);
      }
    };
    if (kStaged) wait_for_copies(args.stages - 1);
    if (a.residual != nullptr) {
      for (int v = 0; v < vectors; ++v) {
        float f[kVec], g[kVec];
        if constexpr (kStaged) {
          to_float(part.get(v), f);
          to_float(part.get(vectors + v), g);
        } else {
          to_float(c.template load<In>(a.cast.input, at, v, exists), f);
          to_float(c.template load<In>(a.residual, at, v, exists), g);
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) f[i] += g[i];
        const Vec<In, kVec> sum = from_float<In>(f);
        if (kStaged) part.set(v, sum);
        if (exists) c.store(a.sum, at, v, sum);
      }
      __syncwarp();  // The sum is read again below.
    }

    // The sum of squares, and for LayerNorm that of deviations, the sum, the length.
    float m[kCount] = {};
    float center = 0.0f;
    if constexpr (kLayer) {
      for (int v = 0; v < vectors; ++v) {
        float f[kVec];
        get(v, f);
#pragma unroll
        for (int i = 0; i < kVec; ++i) m[1] += f[i];
      }
      m[1] = warp_sum(m[1]);
      m[2] = n;
      center = n > 0.0f ? m[1] / n : 0.0f;
    }
    for (int v = 0; v < vectors; ++v) {
      float f[kVec];
      get(v, f);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float apart = f[i] - center;
        if (!kLayer || c.has(v, i)) m[0] += apart * apart;
      }
    }
    m[0] = warp_sum(m[0]);

    if (args.layout.warps > 1) group.exchange(m);
    float squares = m[0], mu = 0.0f;
    if constexpr (kLayer) {
      mu = (args.layout.warps > 1 ? lanes_sum(m[1], args.layout.width) : m[1]) / c.cols;
      const float apart = m[2] > 0.0f ? m[1] / m[2] - mu : 0.0f;
      if (args.layout.warps > 1) squares += m[2] * apart * apart;
    }
    if (args.layout.warps > 1) squares = lanes_sum(squares, args.layout.width);
    const float rsigma = rsqrtf(squares / c.cols + a.epsilon);
    if (group.thread == 0 && exists) {
      if (kLayer) a.mu[row] = mu;
      a.rsigma[row] = rsigma;
    }

    if (a.cast.rowwise != nullptr) {
      for (int v = 0; v < vectors; ++v) {
        float f[kVec], g[kVec], b[kVec];
        load_gamma(c, a.gamma, v, g);
        if (kLayer) c.load_floats(a.beta, a.gamma.dtype, 0, v, b);
        get(v, f);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float y = rsigma * (f[i] - mu);
          f[i] = kLayer ? g[i] * y + b[i] : g[i] * y;
        }
        output.template put<Any, true>(row, c.column(v), f,
                                       [&](const auto &z) { c.store(a.cast.rowwise, at, v, z); });
      }
    }
    if (kStaged) {
      fetch(row + args.stages * step, stage);
      stage = stage + 1 == args.stages ? 0 : stage + 1;
    }
  }
  wait_for_copies(0);
  output.finish();
}

// Threads of a group for V vectors each.
int group_of(size_t cols, int vectors) {
  return static_cast<int>(ceil_div(cols, size_t(32) * kVec * vectors)) * 32;
}

// Groups in a block of at most `threads`; each of more than a warp has a barrier of its own.
int groups_of(int group, int threads) {
  const int groups = threads / group;
  return groups < 1 ? 1 : groups > 15 && group > 32 ? 15 : groups;
}

// As many groups of a block as go over the rows in the same number of turns. Few rows get a
// multiprocessor each.
int balanced(int groups, size_t rows, size_t sms) {
  const size_t turns = ceil_div(rows, sms * groups);
  return turns == 0 ? 1 : static_cast<int>(ceil_div(rows, sms * turns));
}

// At most `most` of them; a multiple of `every`.
unsigned blocks_for(size_t rows, int groups, size_t most, size_t every) {
  size_t blocks = ceil_div(rows, size_t(groups));
  if (blocks > most) blocks = most;
  blocks = blocks / every * every;
  return static_cast<unsigned>(blocks == 0 ? every : blocks);  // One writes scale_inv.
}

// Elements from the last place that is aligned for a vector.
struct Alignment {
  int offset;

  Alignment(const void *p, NVTEDType dtype) {
    const size_t bytes = dtype == kNVTEFloat32                             ? 4
                         : dtype == kNVTEFloat16 || dtype == kNVTEBFloat16 ? 2
                                                                           : 1;
    const size_t vector = kVec * bytes < 16 ? kVec * bytes : 16;
    offset = static_cast<int>(reinterpret_cast<uintptr_t>(p) % vector / bytes);
  }
};

// Shared memory that the blocks of a multiprocessor can share.
size_t shared_room(const Device &device) {
  switch (device.arch) {
    case 90:
    case 100:
      return 220 * 1024;
    case 80:
      return 156 * 1024;
    default:
      return 94 * 1024;
  }
}

// How a kernel is launched: V vectors for each thread of a group, `threads` in a block, `stages` of
// rows in flight for each group, `blocks` on a multiprocessor.
struct Tuning {
  int vectors, threads, stages, blocks;
};

template <class In, bool kLayer, bool kVectorised, bool kStaged>
NVTEXOutcome launch_forward(ForwardArgs &args, const Tuning &t, cudaStream_t stream) {
  const int group = group_of(args.layout.cols, t.vectors), groups = groups_of(group, t.threads);
  args.layout.set_group(group);
  args.stages = t.stages;
  const size_t row = size_t(group) * t.vectors * kVec * In::kBytes;
  const size_t stage = (args.norm.residual != nullptr ? 2 : 1) * groups * row;
  size_t blocks = ceil_div(args.rows, size_t(groups));
  const size_t most = size_t(args.norm.sm_count) * t.blocks;
  if (blocks > most) blocks = most;
  if (blocks == 0) blocks = 1;  // For scale_inv.
  return launch_shared(forward_kernel<In, kLayer, kVectorised, kStaged>,
                       dim3(static_cast<unsigned>(blocks)), group * groups,
                       kStaged ? t.stages * stage : 0, stream, args);
}

// ---- Backward

// Means over a row of (sum of d y, sum of d), from a thread's sums.
template <bool kLayer>
__device__ __forceinline__ void row_means(Group<kLayer ? 2 : 1> &group, const Divisor &by_cols,
                                          float (&sums)[kLayer ? 2 : 1]) {
  warp_sums(sums);
  if (group.layout.warps > 1) {
    group.exchange(sums);
    lanes_sums(sums, group.layout.width);
  }
#pragma unroll
  for (float &sum : sums) sum = by_cols.divide(sum);
}

struct BackwardArgs {
  NVTEXNormBackwardArgs norm;
  Layout layout;
  Divisor by_cols = Divisor(1.0f);
  int stages;
  // Of the first element from the last aligned one; whether all that dx is read or written with has
  // the same.
  int offset;
  bool together;
  size_t step;  // Rows that all groups have at a time.
};

// Threads of a block, at most: the sums stay in registers.
template <class T, bool kLayer, bool kSkewed, int V>
__host__ __device__ constexpr int backward_threads() {
  constexpr int kSums = (kLayer ? 2 : 1) * V, kLess = kSkewed ? 128 : 0;
  if (T::kBytes == 4) return kSums == 1 ? 1024 : kSums <= 3 ? 576 - kLess : 384;
  if (kSums <= 2) return (kLayer ? 896 : 1024) - kLess;
  if (kSums == 3 || (kLayer && kSums == 4)) return 768 - kLess;
  return kSums == 4 ? 640 : kSums == 8 ? 512 - kLess : 512;
}

// A block goes over its rows, each by a group, and keeps the sums over them in registers. The next
// rows of a group are on their way to shared memory, where gamma is too. x and dz have one dtype.
template <class T, bool kLayer, bool kSkewed, int V>
__global__ void __launch_bounds__(threads_here(backward_threads<T, kLayer, kSkewed, V>()), 1)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  using Part = Staged<T, true, 2 * V>;
  constexpr int kCount = kLayer ? 2 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormBackwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const int cols = args.layout.cols, groups = args.layout.groups;
  const int stage_size = 2 * V * Part::kChunks * static_cast<int>(blockDim.x);
  const Span<kSkewed, V> span(cols, args.offset, groups, group.index, group.thread);
  float sums[kCount][V][kVec] = {};

  auto fetch = [&](size_t row, int stage) {
    const Part to = {stages + stage * stage_size};
    const char *const x = span.template at<T>(a.x, cols, row);
    const char *const dz = span.template at<T>(a.dz, cols, row);
    const int left = row < a.rows ? span.left : 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      to.template fetch<kSkewed>(v, x, v, left);
      to.template fetch<kSkewed>(V + v, dz, v, left);
    }
    commit_copies();
  };
  for (int i = 0; i < args.stages; ++i) fetch(span.row + i * args.step, i);

  const Weights<V> gamma(reinterpret_cast<float *>(stages + args.stages * stage_size),
                         group.thread);
  share_weights<T, false>(span, group.index, groups, a.gamma, nullptr, gamma, gamma);
  __syncthreads();

  float next_mu = 0.0f, next_rsigma = 0.0f;
  const auto look_ahead = [&](size_t row) {
    if (row >= a.rows) return;
    if (kLayer) next_mu = a.mu[row];
    next_rsigma = a.rsigma[row];
  };
  look_ahead(span.row);
  int stage = 0;
#pragma unroll 1
  for (size_t row = span.row; row < a.rows; row += args.step) {
    const Part part = {stages + stage * stage_size};
    const float mu = next_mu, rsigma = next_rsigma;
    look_ahead(row + args.step);
    // y, dz and d = g dz of a vector.
    auto terms = [&](int v, float (&y)[kVec], float (&z)[kVec], float (&d)[kVec]) {
      to_float(part.get(v), y);
      to_float(part.get(V + v), z);
      span.clear_before(v, y);
      span.clear_before(v, z);
      gamma.get(v, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        d[i] *= z[i];
        y[i] = rsigma * (y[i] - mu);
      }
    };
    wait_for_copies(args.stages - 1);
    float means[kCount] = {}, more[kCount] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float y[kVec], z[kVec], d[kVec];
      terms(v, y, z, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        float (&to)[kCount] = i % 2 == 0 ? means : more;
        to[0] += d[i] * y[i];
        sums[0][v][i] += z[i] * y[i];
        if constexpr (kLayer) {
          to[1] += d[i];
          sums[1][v][i] += z[i];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) means[k] += more[k];
    row_means<kLayer>(group, args.by_cols, means);
    char *const to = span.template at<T>(a.dx, cols, row);
    const char *const add = span.template at<T>(a.add, cols, row);
#pragma unroll 1
    for (int v = 0; v < V; ++v) {
      float y[kVec], z[kVec], d[kVec];
      terms(v, y, z, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        d[i] = rsigma * (d[i] - (kLayer ? means[0] * y[i] + means[1] : means[0] * y[i]));
      }
      if (a.add != nullptr) {
        to_float(span.template get<T>(add, v, args.together), z);
#pragma unroll
        for (int i = 0; i < kVec; ++i) d[i] += z[i];
      }
      span.put(to, v, from_float<T>(d), args.together);
    }
    fetch(row + args.stages * args.step, stage);
    stage = stage + 1 == args.stages ? 0 : stage + 1;
  }

  // The sums of all groups into shared memory, and from there one after the other.
  wait_for_copies(0);
  float *const shared = reinterpret_cast<float *>(stages);
  const int floats = static_cast<int>(Weights<V>::floats(args.layout.group));
  const Weights<V> mine(shared + floats * group.index, group.thread);
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    float *const out = a.partial + (k * a.parts + blockIdx.x) * a.cols;
    if (groups == 1) {
      char *const to = span.template at<F32>(out, 0, 0);
#pragma unroll
      for (int v = 0; v < V; ++v) span.put(to, v, from_float<F32>(sums[k][v]), false);
      continue;
    }
    __syncwarp();  // After the stores at the edges of skewed rows, where a warp parts.
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v) mine.set(v, sums[k][v]);
    __syncthreads();
    for (int i = threadIdx.x * 4; i < floats; i += blockDim.x * 4) {
      float4 sum = *reinterpret_cast<float4 *>(shared + i);
      for (int g = 1; g < groups; ++g) {
        const float4 more = *reinterpret_cast<float4 *>(shared + i + g * floats);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      const int col = Weights<V>::position(i) - span.begin;
      if (!kSkewed) {
        if (col < cols) *reinterpret_cast<float4 *>(out + col) = sum;
        continue;
      }
      if (col >= 0 && col < cols) out[col] = sum.x;
      if (col >= -1 && col + 1 < cols) out[col + 1] = sum.y;
      if (col >= -2 && col + 2 < cols) out[col + 2] = sum.z;
      if (col >= -3 && col + 3 < cols) out[col + 3] = sum.w;
    }
  }
}

// Rows of any length, and x and dz of any dtypes: dx, reading each row twice.
template <bool kLayer, bool kVectorised, int kThreads>
__global__ void __launch_bounds__(kThreads) dx_kernel(const __grid_constant__ BackwardArgs args) {
  constexpr int kCount = kLayer ? 2 : 1;
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormBackwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const Columns<kVectorised> c(args.layout, group.thread);
  for (size_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const size_t start = row * a.cols;
    const float mu = kLayer ? a.mu[row] : 0.0f, rsigma = a.rsigma[row];
    auto parts = [&](int v, float (&y)[kVec], float (&d)[kVec]) {
      float g[kVec];
      c.load_floats(a.x, a.x_dtype, start, v, y);
      c.load_floats(a.dz, a.gamma.dtype, start, v, d);
      load_gamma(c, a.gamma, v, g);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        y[i] = rsigma * (y[i] - mu);
        d[i] *= g[i];
      }
    };
    float means[kCount] = {};
    for (int v = 0; v * c.span < c.cols; ++v) {
      float y[kVec], d[kVec];
      parts(v, y, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        means[0] += d[i] * y[i];
        if constexpr (kLayer) means[1] += d[i];
      }
    }
    row_means<kLayer>(group, args.by_cols, means);
    for (int v = 0; v * c.span < c.cols; ++v) {
      float y[kVec], d[kVec];
      parts(v, y, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        d[i] = rsigma * (d[i] - (kLayer ? means[0] * y[i] + means[1] : means[0] * y[i]));
      }
      if (a.add != nullptr) {
        c.load_floats(a.add, a.gamma.dtype, start, v, y);
#pragma unroll
        for (int i = 0; i < kVec; ++i) d[i] += y[i];
      }
      c.store_floats(a.dx, a.x_dtype, start, v, d);
    }
  }
}

// As above: the sums over rows blockIdx.y, blockIdx.y + parts, ... of the columns of the block.
template <bool kLayer, bool kVectorised, int kThreads>
__global__ void __launch_bounds__(kThreads) sums_kernel(const __grid_constant__ BackwardArgs args) {
  wait_for_stream();
  let_next_start();
  const NVTEXNormBackwardArgs &a = args.norm;
  const Columns<kVectorised> c(args.layout, threadIdx.x);
  const int v = blockIdx.x;
  float sums[kLayer ? 2 : 1][kVec] = {};
  for (size_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const float mu = kLayer ? a.mu[row] : 0.0f, rsigma = a.rsigma[row];
    float y[kVec], dz[kVec];
    c.load_floats(a.x, a.x_dtype, row * a.cols, v, y);
    c.load_floats(a.dz, a.gamma.dtype, row * a.cols, v, dz);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      sums[0][i] += dz[i] * (rsigma * (y[i] - mu));
      if constexpr (kLayer) sums[1][i] += dz[i];
    }
  }
#pragma unroll
  for (int k = 0; k < (kLayer ? 2 : 1); ++k) {
    c.store(a.partial, (k * a.parts + blockIdx.y) * a.cols, v, from_float<F32>(sums[k]));
  }
}

constexpr int kTotalThreads = 512;

// dgamma, and for blockIdx.y = 1 dbeta: 32 columns of a block, by 16 warps that take every 16th
// part.
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const __grid_constant__ BackwardArgs args, size_t parts) {
  constexpr int kWarps = kTotalThreads / 32;
  __shared__ float sums[kWarps][32];
  wait_for_stream();
  let_next_start();
  const NVTEXNormBackwardArgs &a = args.norm;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t col = size_t{blockIdx.x} * 32 + lane;
  const float *partial = a.partial + blockIdx.y * a.parts * a.cols;
  float sum = 0.0f;
  if (col < a.cols) {
#pragma unroll 4
    for (size_t part = warp; part < parts; part += kWarps) sum += partial[part * a.cols + col];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || col >= a.cols) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
  void *to = blockIdx.y == 0 ? a.dgamma : a.dbeta;
  if (a.gamma.dtype == kNVTEFloat32) {
    *element<float>(to, col) = sum;
  } else {
    const float pair[2] = {sum, 0.0f};
    *element<uint16_t>(to, col) = static_cast<uint16_t>(
        a.gamma.dtype == kNVTEFloat16 ? F16::from_float(pair) : BF16::from_float(pair));
  }
}

template <bool kLayer, bool kVectorised>
NVTEXOutcome launch_backward_twice(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  constexpr int kSumThreads = 128, kRowThreads = 512;
  const NVTEXNormBackwardArgs &a = args.norm;
  *blocks = static_cast<unsigned>(a.parts < a.rows ? a.parts : a.rows);
  if (*blocks > 65535) *blocks = 65535;
  // The sums first: dx may be one of the inputs.
  args.layout.set_group(kSumThreads);
  const unsigned across = static_cast<unsigned>(ceil_div(a.cols, kSumThreads * kVec));
  const NVTEXOutcome summed = launch(sums_kernel<kLayer, kVectorised, kSumThreads>,
                                     dim3(across, *blocks), kSumThreads, stream, args);
  if (summed.status != NVTEX_BACKEND_OK) return summed;
  const int group = group_of(a.cols, 1);
  args.layout.set_group(group < kRowThreads ? group : kRowThreads);
  size_t rows = size_t(a.sm_count) * (2048 / args.layout.group);
  if (rows > a.rows) rows = a.rows;
  return launch(dx_kernel<kLayer, kVectorised, kRowThreads>, dim3(static_cast<unsigned>(rows)),
                args.layout.group, stream, args);
}

// Vectors of a thread: as few as leave little of a multiprocessor idle, but LayerNorm, which keeps
// more sums, shares weights between more. H200, bf16, GB/s by V from 1 on: LayerNorm 4096 columns
// 2640, 3580, 3330, 3340; 7168 3050, 3210, 3060, 3650; 12288 1550, 3780, 3990, 4000; RMSNorm 4096
// 3920, 3460, 3460, 3530; 5120 3360, 3550, 3560, 3580; 8192 3970, 3660, 3660, 3690.
template <class T, bool kLayer, bool kSkewed, int V = 1>
int backward_vectors(const Device &device, size_t width) {
  if (width > 2 * kRun && width <= 3 * kRun) return 3;
  if constexpr (V < 4) {
    const int threads = threads_on(device, backward_threads<T, kLayer, kSkewed, V>());
    const int group = group_of(width, V), groups = group <= threads ? groups_of(group, threads) : 0;
    const bool idle = 4 * group * groups < 3 * threads;
    const bool long_ones = kLayer && width > 1024 && (V == 1 || (V == 2 && groups == 1));
    if (idle || long_ones) return backward_vectors<T, kLayer, kSkewed, V + 1>(device, width);
  }
  return V;
}

template <class T, bool kLayer, bool kSkewed, int V>
NVTEXOutcome launch_backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  constexpr int kEvery = Span<kSkewed, V>::kEvery;
  const NVTEXNormBackwardArgs &a = args.norm;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  constexpr int kThreads = backward_threads<T, kLayer, kSkewed, V>();
  const int threads = threads_on(device, kThreads);
  const int group = group_of(a.cols + kEvery - 1, V);
  const int groups = balanced(groups_of(group, threads), a.rows, a.sm_count);
  const size_t weights = Weights<V>::floats(group) * sizeof(float);
  const size_t stage = size_t(group) * groups * 2 * V * kVec * T::kBytes;
  const size_t sums = Weights<V>::floats(group) * groups * sizeof(float);
  const size_t room = shared_room(device);
  size_t most = a.sm_count;
  if (most > a.parts) most = a.parts;
  args.stages = 2 * stage + weights <= room ? 2 : 1;
  const size_t loop = args.stages * stage + weights, shared = loop > sums ? loop : sums;
  if (group > threads || shared > room || most < kEvery) {
    return launch_backward_twice<kLayer, !kSkewed>(args, blocks, stream);
  }
  args.layout.set_group(group);
  args.layout.groups = groups;
  *blocks = blocks_for(a.rows, groups, most, kEvery);
  args.step = size_t{*blocks} * groups;
  return launch_shared(backward_kernel<T, kLayer, kSkewed, V>, dim3(*blocks), group * groups,
                       shared, stream, args);
}

template <class T, bool kLayer, bool kSkewed>
NVTEXOutcome backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const NVTEXNormBackwardArgs &a = args.norm;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  int v = backward_vectors<T, kLayer, kSkewed>(device, a.cols + (kSkewed ? kVec - 1 : 0));
  switch (v) {
    case 1:
      return launch_backward<T, kLayer, kSkewed, 1>(args, blocks, stream);
    case 2:
      return launch_backward<T, kLayer, kSkewed, 2>(args, blocks, stream);
    case 3:
      return launch_backward<T, kLayer, kSkewed, 3>(args, blocks, stream);
    default:
      return launch_backward<T, kLayer, kSkewed, 4>(args, blocks, stream);
  }
}

template <bool kLayer>
NVTEXOutcome backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const NVTEXNormBackwardArgs &a = args.norm;
  const bool whole = a.cols % kVec == 0;
  const Alignment x(a.x, a.x_dtype), dz(a.dz, a.x_dtype), dx(a.dx, a.x_dtype);
  const Alignment add(a.add == nullptr ? a.dx : a.add, a.x_dtype);
  if (a.x_dtype != a.gamma.dtype || x.offset != dz.offset) {
    bool vectorised = whole;
    for (const void *p : {a.dz, a.x, a.add, a.gamma.data, static_cast<const void *>(a.dx)}) {
      vectorised = vectorised && aligned(p, 16);
    }
    return vectorised ? launch_backward_twice<kLayer, true>(args, blocks, stream)
                      : launch_backward_twice<kLayer, false>(args, blocks, stream);
  }
  args.offset = x.offset;
  args.together = dx.offset == x.offset && add.offset == x.offset;
  const bool straight = whole && x.offset == 0 && args.together && aligned(a.gamma.data, 16);
  return dispatch<F32, F16, BF16>(a.x_dtype, [&](auto type) {
    using T = decltype(type);
    return straight ? backward<T, kLayer, false>(args, blocks, stream)
                    : backward<T, kLayer, true>(args, blocks, stream);
  });
}

// ---- Casts in blocks along the columns

struct TileArgs {
  NVTEXNormForwardArgs norm;
  ScaleMatrix row_scales, col_scales;
  FloatScale float_scale;
  MxScale mx_scale;
};

constexpr int kTile = 128, kTileThreads = 256, kPitch = kTile + 1;
constexpr int kSpans = kTile / 32;  // Of 32 rows each, the blocks of MXFP8.

// A tile of 128 x 128 values, computed again from mu and rsigma. A thread has a column, and half of
// the rows.
template <class Out>
__global__ void __launch_bounds__(kTileThreads, 1)
    tile_kernel(const __grid_constant__ TileArgs args) {
  extern __shared__ float tile[];  // [kTile][kPitch]
  __shared__ float maxima[kSpans][kTile], factors[kSpans][kTile];
  wait_for_stream();
  let_next_start();
  const NVTEXNormForwardArgs &a = args.norm;
  const NVTEXQuantizeArgs &cast = a.cast;
  const bool mx = cast.mode == NVTE_MXFP8_1D_SCALING, square = cast.mode == NVTE_BLOCK_SCALING_2D;
  const size_t across = (cast.cols + kTile - 1) / kTile;
  const size_t row0 = blockIdx.x / across * kTile, col0 = blockIdx.x % across * kTile;
  const int height = row0 + kTile < cast.rows ? kTile : static_cast<int>(cast.rows - row0);
  const int width = col0 + kTile < cast.cols ? kTile : static_cast<int>(cast.cols - col0);

  const int c = threadIdx.x % kTile, half = threadIdx.x / kTile;
  const size_t col = col0 + c;
  const void *x = a.residual != nullptr ? a.sum : cast.input;
  float g = 0.0f, b = 0.0f;
  if (c < width) {
    g = scalar(a.gamma.data, a.gamma.dtype, col);
    if (a.gamma.zero_centered) g += 1.0f;
    if (a.gamma.rounded) g = rounded(g, a.gamma.dtype);
    if (a.beta != nullptr) b = scalar(a.beta, a.gamma.dtype, col);
  }
  for (int span = half * 2; span < half * 2 + 2; ++span) {
    float most = 0.0f;
    for (int r = span * 32; r < span * 32 + 32; ++r) {
      float v = 0.0f;
      if (c < width && r < height) {
        const size_t row = row0 + r;
        const float y = a.rsigma[row] * (scalar(x, cast.input_dtype, row * cast.cols + col) -
                                         (a.mu != nullptr ? a.mu[row] : 0.0f));
        v = a.beta != nullptr ? g * y + b : g * y;
      }
      tile[r * kPitch + c] = v;
      most = fmaxf(most, fabsf(v));
    }
    maxima[span][c] = most;
  }
  __syncthreads();

  if (threadIdx.x < kTile) {
    float column = 0.0f;
    for (int span = 0; span < kSpans; ++span) column = fmaxf(column, maxima[span][c]);
    if (square) {
      for (int other = 0; other < kTile; ++other) {
        for (int span = 0; span < kSpans; ++span) column = fmaxf(column, maxima[span][other]);
      }
    }
    for (int span = 0; span < kSpans; ++span) {
      if (mx) {
        const bool inside = c < width && span * 32 < height;
        uint8_t entry;
        factors[span][c] = args.mx_scale.factor(maxima[span][c], entry);
        static_cast<uint8_t *>(
            args.col_scales.entries)[args.col_scales.index(col, row0 / 32 + span)] =
            inside ? entry : 0;
      } else {
        float entry;
        factors[span][c] = args.float_scale.factor(column, entry);
        if (span != 0 || c >= width || (square && c != 0)) continue;
        if (cast.colwise != nullptr) {
          static_cast<float *>(args.col_scales.entries)[args.col_scales.index(col, row0 / kTile)] =
              entry;
        }
        if (square && cast.rowwise != nullptr) {
          static_cast<float *>(args.row_scales.entries)[args.row_scales.index(row0, col0 / kTile)] =
              entry;
        }
      }
    }
    if (mx && cast.rowwise == nullptr && cast.amax != nullptr) {
      const int bits = warp_max(__float_as_int(column));
      if (c % 32 == 0) atomicMax(reinterpret_cast<int *>(cast.amax), bits);
    }
  }
  __syncthreads();

  auto code = [&](int r, int column) {
    const float four[4] = {__fmul_rn(tile[r * kPitch + column], factors[r / 32][column])};
    return static_cast<uint8_t>(Out::from_float(four));
  };
  uint8_t *const by_row = static_cast<uint8_t *>(mx       ? cast.colwise
                                                 : square ? cast.rowwise
                                                          : nullptr);
  if (by_row != nullptr && c < width) {
    for (int r = half; r < height; r += 2) by_row[(row0 + r) * cast.cols + col] = code(r, c);
  }
  if (!mx && cast.colwise != nullptr && c < height) {
    // Here c is a row.
    for (int i = half; i < width; i += 2) {
      static_cast<uint8_t *>(cast.colwise)[(col0 + i) * cast.rows + row0 + c] = code(c, i);
    }
  }
}

// ---- Choice of the kernels

// Rows that registers do not hold.
Tuning forward_tuning(const ForwardArgs &args, size_t bytes, int most_threads, size_t room) {
  const size_t vectors = ceil_div(args.layout.cols, kVec);
  // A thread has up to 4 vectors, while 32 threads have so many.
  size_t v = vectors < 128 ? 1 : vectors < 384 ? 3 : 4;
  while (v * most_threads < vectors) ++v;
  Tuning t = {static_cast<int>(v), 256, 1, 1};
  const int group = group_of(args.layout.cols, t.vectors);
  const int threads = group * groups_of(group, t.threads);
  const size_t stage = size_t(threads) * t.vectors * kVec * bytes;
  if (stage > room) t.stages = 0;
  t.blocks = 1024 / threads;
  if (t.stages > 0 && size_t(t.blocks) > room / stage) t.blocks = static_cast<int>(room / stage);
  return t;
}

template <class In, bool kLayer, bool kVectorised>
NVTEXOutcome forward_any(ForwardArgs &args, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t room = shared_room(device);
  const size_t bytes = (args.norm.residual != nullptr ? 2 : 1) * In::kBytes;
  const Tuning t = forward_tuning(args, bytes, forward_threads(kVectorised), room);
  return t.stages > 0 ? launch_forward<In, kLayer, kVectorised, true>(args, t, stream)
                      : launch_forward<In, kLayer, kVectorised, false>(args, t, stream);
}

template <class In, bool kLayer>
NVTEXOutcome forward_any(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  return vectorised ? forward_any<In, kLayer, true>(args, stream)
                    : forward_any<In, kLayer, false>(args, stream);
}

template <class In, class Out, bool kLayer, bool kBlocks, bool kSkewed, int V>
NVTEXOutcome launch_rows(ForwardArgs &args, cudaStream_t stream) {
  constexpr int kEvery = Span<kSkewed, V>::kEvery;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t cols = args.norm.cast.cols, sms = args.norm.sm_count;
  constexpr int kThreads = row_threads<In, kLayer, kBlocks, kSkewed, V>();
  const int group = group_of(cols + kEvery - 1, V), threads = threads_on(device, kThreads);
  const size_t weights = Weights<V>::floats(group) * sizeof(float) * (kLayer ? 2 : 1);
  const int groups = balanced(groups_of(group, threads), args.rows, sms);
  args.stages = 1;
  const size_t stage = size_t(group) * groups * V * kVec * In::kBytes, room = shared_room(device);
  const size_t shared = args.stages * stage + weights;
  if (group > threads || shared > room) return forward_any<In, kLayer>(args, !kSkewed, stream);
  args.layout.set_group(group);
  args.layout.groups = groups;
  const unsigned blocks = blocks_for(args.rows, groups, sms, kEvery);
  args.step = size_t{blocks} * groups;
  return launch_shared(rows_kernel<In, Out, kLayer, kBlocks, kSkewed, V>, dim3(blocks),
                       group * groups, shared, stream, args);
}

// H200, bf16, GB/s to bf16 and to fp8: LayerNorm 4096 columns 3570 and 3360, 12288 3680 and 3620;
// RMSNorm 3640 and 3470, 3730 and 3680. With two vectors of a thread, LayerNorm 3530 and 3250, 3550
// and 2960. A second row on its way for each group gains nothing.
template <class In, class Out, bool kLayer, bool kSkewed>
NVTEXOutcome forward_rows(ForwardArgs &args, cudaStream_t stream) {
  const size_t cols = args.norm.cast.cols;
  // Few rows get more threads.
  const bool few = args.rows < size_t(args.norm.sm_count) * 4;
  if (args.block != 0) {
    if constexpr (kIsFp8<Out> && !kSkewed) {
      return launch_rows<In, Out, kLayer, true, false, 2>(args, stream);
    } else {
      return forward_any<In, kLayer>(args, !kSkewed, stream);
    }
  }
  const size_t width = cols + (kSkewed ? kVec - 1 : 0);
  const auto filled = [&](int v) { return ceil_div(width, v * kRun) * v; };
  int v = kSkewed                                      ? (filled(2) < filled(3) ? 2 : 3)
          : width <= 6 * kRun && filled(3) < filled(4) ? 3
                                                       : 4;
  if (width <= kRun || (few && width <= 32 * kRun)) v = 1;
  switch (v) {
    case 1:
      return launch_rows<In, Out, kLayer, false, kSkewed, 1>(args, stream);
    case 2:
      return launch_rows<In, Out, kLayer, false, kSkewed, 2>(args, stream);
    default:
      break;
  }
  // Three vectors of one kind would spill.
  constexpr bool kTight = kSkewed && kLayer && kIsFp8<Out> && std::is_same_v<In, F16>;
  if constexpr (In::kBytes == 4 || kTight) {
    return launch_rows<In, Out, kLayer, false, kSkewed, 2>(args, stream);
  } else if (kSkewed || v == 3) {
    return launch_rows<In, Out, kLayer, false, kSkewed, 3>(args, stream);
  } else {
    return launch_rows<In, Out, kLayer, false, false, 4>(args, stream);
  }
}

template <class In, class Out, bool kLayer>
NVTEXOutcome forward_rows(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const NVTEXQuantizeArgs &cast = args.norm.cast;
  args.offset = Alignment(cast.input, In::kDtype).offset;
  args.together = Alignment(cast.rowwise, cast.output_dtype).offset == args.offset;
  return vectorised ? forward_rows<In, Out, kLayer, false>(args, stream)
                    : forward_rows<In, Out, kLayer, true>(args, stream);
}

template <class In, bool kLayer>
NVTEXOutcome forward(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const NVTEDType dtype = args.norm.cast.output_dtype;
  if (args.norm.residual == nullptr) {
    if (dtype == In::kDtype) return forward_rows<In, In, kLayer>(args, vectorised, stream);
    if (dtype == kNVTEFloat8E4M3 || dtype == kNVTEFloat8E5M2) {
      return forward_rows<In, E4M3, kLayer>(args, vectorised, stream);
    }
  }
  return forward_any<In, kLayer>(args, vectorised, stream);
}

ScaleMatrix scale_matrix(const NVTEXQuantizeArgs &cast, bool colwise) {
  void *entries = colwise ? cast.colwise_scale_inv : cast.rowwise_scale_inv;
  const size_t stride = colwise ? cast.colwise_scale_stride : cast.rowwise_scale_stride;
  const bool mx = cast.mode == NVTE_MXFP8_1D_SCALING;
  const bool block_major = cast.mode == NVTE_BLOCK_SCALING_1D || (mx && colwise);
  const size_t tiles = mx && cast.swizzled ? ceil_div(colwise ? cast.rows : cast.cols, 128) : 0;
  return {entries, block_major ? 1 : stride, block_major ? stride : 1, tiles,
          cast.mode == NVTE_BLOCK_SCALING_2D ? 7 : 0};
}

NVTEXOutcome forward(const NVTEXNormForwardArgs &a, cudaStream_t stream) {
  const NVTEXQuantizeArgs &cast = a.cast;
  const bool mx = cast.mode == NVTE_MXFP8_1D_SCALING, square = cast.mode == NVTE_BLOCK_SCALING_2D;
  const bool per_tensor = cast.mode == NVTE_DELAYED_TENSOR_SCALING;
  if (cast.cols > (1 << 30)) return unimplemented("more than 2^30 columns");
  ForwardArgs args = {};
  args.norm = a;
  if (square) args.norm.cast.rowwise = nullptr;
  args.layout.cols = static_cast<int>(cast.cols);
  args.by_cols = Divisor(static_cast<float>(cast.cols));
  args.layout.adjacent = !per_tensor;
  args.rows = mx && cast.rowwise != nullptr ? ceil_div(cast.rows, 128) * 128 : cast.rows;
  const float fp8_max = cast.output_dtype == kNVTEFloat8E5M2 ? 57344.0f : 448.0f;
  args.scales = scale_matrix(cast, false);
  args.float_scale = {fp8_max, 0.0f, FLT_MAX, ~0u};
  args.mx_scale = {1.0f / fp8_max};
  args.block = per_tensor ? 0 : mx ? 32 : 128;
  bool vectorised = cast.cols % kVec == 0;
  for (const void *p : {cast.input, a.residual, static_cast<const void *>(a.sum), a.gamma.data,
                        a.beta, static_cast<const void *>(cast.rowwise)}) {
    vectorised = vectorised && aligned(p, 16);
  }
  const NVTEXOutcome rows = dispatch<F32, F16, BF16>(cast.input_dtype, [&](auto in) {
    using In = decltype(in);
    return a.norm == LayerNorm ? forward<In, true>(args, vectorised, stream)
                               : forward<In, false>(args, vectorised, stream);
  });
  if (rows.status != NVTEX_BACKEND_OK || cast.rows == 0) return rows;
  if (per_tensor && cast.colwise != nullptr) {
    const size_t size = cast.output_dtype == kNVTEFloat32 ? 4
                        : cast.output_dtype == kNVTEFloat16 || cast.output_dtype == kNVTEBFloat16
                            ? 2
                            : 1;
    const NVTEXTransposeArgs transpose = {cast.rowwise, cast.colwise, nullptr,
                                          cast.rows,    cast.cols,    size};
    return nvte_cuda_transpose(&transpose, stream);
  }
  if (per_tensor || (cast.colwise == nullptr && !square)) return ok();
  const TileArgs tile = {a, args.scales, scale_matrix(cast, true), args.float_scale, args.mx_scale};
  const size_t tiles = ceil_div(cast.rows, kTile) * ceil_div(cast.cols, kTile);
  if (tiles > kMaxBlocks) return unimplemented("the matrix has too many tiles");
  return dispatch<E4M3, E5M2>(cast.output_dtype, [&](auto out) {
    return launch_shared(tile_kernel<decltype(out)>, dim3(static_cast<unsigned>(tiles)),
                         kTileThreads, sizeof(float) * kTile * kPitch, stream, tile);
  });
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_norm_forward(const NVTEXNormForwardArgs *args,
                                               cudaStream_t stream) noexcept {
  return nvte::forward(*args, stream);
}

extern "C" NVTEXOutcome nvte_cuda_norm_backward(const NVTEXNormBackwardArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXNormBackwardArgs &a = *args;
  if (a.cols > (1 << 30)) return unimplemented("more than 2^30 columns");
  BackwardArgs b = {};
  b.norm = a;
  b.layout.cols = static_cast<int>(a.cols);
  b.by_cols = Divisor(static_cast<float>(a.cols));
  const bool layer = a.norm == LayerNorm;
  unsigned parts = 0;
  if (a.rows > 0) {
    const NVTEXOutcome rows =
        layer ? backward<true>(b, &parts, stream) : backward<false>(b, &parts, stream);
    if (rows.status != NVTEX_BACKEND_OK) return rows;
  }
  const unsigned across = static_cast<unsigned>(ceil_div(a.cols, 32));
  return launch(total_kernel, dim3(across, layer ? 2 : 1), kTotalThreads, stream, b, size_t{parts});
}
