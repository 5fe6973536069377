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

constexpr int kVec = 8;  // Columns that a thread handles together.
constexpr int kMostWarps = 32;

// How the columns of a row lie over the threads of a group.
struct Layout {
  int cols;
  int group;  // Threads; a multiple of 32.
  // The columns of a vector lie side by side. Else they are `group` apart, so that a warp accesses
  // single elements side by side.
  bool adjacent;
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

// Over each `width` lanes, a power of two.
__device__ __forceinline__ float lanes_sum(float x, int width) {
  for (int step = 1; step < width; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The threads that share a row, and their exchange of kCount floats for each warp. One barrier
// each: successive exchanges use different memory.
template <int kCount>
struct Group {
  int index, thread, warps;
  int width = 1;  // The next power of two of warps.
  int turn = 0;
  float (*memory)[kMostWarps][kCount];  // [2]

  __device__ Group(const Layout &l, float (*memory)[kMostWarps][kCount])
      : index(threadIdx.x / l.group),
        thread(threadIdx.x % l.group),
        warps(l.group / 32),
        memory(memory) {
    while (width < warps) width *= 2;
  }

  // `mine` of a warp becomes, in lane w % width, that of warp w of the group, or zeros.
  __device__ __forceinline__ void exchange(float (&mine)[kCount]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) memory[turn][warp][i] = mine[i];
    }
    asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(warps * 32) : "memory");
    const int from = lane & (width - 1);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      mine[i] = from < warps ? memory[turn][index * warps + from][i] : 0.0f;
    }
    turn ^= 1;
  }
};

// 16 bytes of shared memory from global memory, or zeros.
__device__ __forceinline__ void copy_async(uint4 *to, const void *from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

// Until at most `pending` of the latest commits are incomplete.
__device__ __forceinline__ void wait_for_copies(int pending) {
  if (pending > 0) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
}

// Elements of this thread that are on their way to shared memory, where only it reads them again.
// kThreads: of the block, or more; 0 for just as many.
template <class T, bool kVectorised, int kThreads = 0>
struct Staged {
  static constexpr int kChunks = Vec<T, kVec>::kBytes / 16;

  uint4 *memory;  // Of the first thread.

  __device__ __forceinline__ uint4 *slot(int place, int chunk) const {
    const int pitch = kThreads != 0 ? kThreads : static_cast<int>(blockDim.x);
    return memory + (place * kChunks + chunk) * pitch + threadIdx.x;
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
  // A vector, or zeros.
  __device__ __forceinline__ void fetch(int place, const char *from, bool inside) const {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) copy_async(slot(place, k), from + k * 16, inside);
  }
  // Vector v of the row that begins at element `row`; zeros if there is no such row.
  __device__ __forceinline__ void fetch(const Columns<kVectorised> &c, int place, const void *base,
                                        size_t row, int v, bool exists) const {
    if constexpr (kVectorised) {
      const bool inside = exists && c.column(v) < c.cols;
      const auto *from = element<typename T::Bits>(base, inside ? row + c.column(v) : 0);
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        copy_async(slot(place, k), reinterpret_cast<const char *>(from) + k * 16, inside);
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

// Where the rows of a matrix begin.
template <class T>
struct RowPointer {
  char *base;
  uint32_t pitch;

  __device__ __forceinline__ RowPointer(const void *base, int cols)
      : base(static_cast<char *>(const_cast<void *>(base))), pitch(bytes(cols)) {}

  static __device__ __forceinline__ uint32_t bytes(int columns) {
    return static_cast<uint32_t>(columns) * T::kBytes;
  }
  __device__ __forceinline__ char *at(size_t row, int col) const {
    return base + row * pitch + bytes(col);
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
    const float q = x * inverse;
    return fmaf(fmaf(-q, n, x), inverse, q);
  }
};

// The weight of a column; 0 outside the row.
__device__ __forceinline__ float gamma_at(const NVTEXGamma &gamma, int cols, int col) {
  if (col >= cols) return 0.0f;
  const float g = scalar(gamma.data, gamma.dtype, col);
  if (!gamma.zero_centered) return g;
  return gamma.rounded ? rounded(g + 1.0f, gamma.dtype) : g + 1.0f;
}

// The same number, of which the compiler keeps no multiples in registers.
__device__ __forceinline__ int renewed(int n) {
  asm volatile("" : "+r"(n));
  return n;
}

// Vectors of N floats for each thread of a group, in shared memory: chunks of neighbouring threads
// lie side by side.
template <int N>
struct Weights {
  static constexpr int kChunk = N < 4 ? N : 4, kChunks = N / kChunk;

  uint32_t first, pitch;  // Bytes of shared memory.

  __device__ __forceinline__ Weights(const float *memory, int threads, int thread)
      : first(static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + thread * kChunk * 4),
        pitch(threads * kChunk * 4) {}

  __device__ __forceinline__ Weights again() const {
    Weights same = *this;
    same.pitch = renewed(pitch);
    return same;
  }
  __device__ __forceinline__ void set(int v, const float (&f)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t at = first + (v * kChunks + i / kChunk) * pitch + i % kChunk * 4;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(f[i]) : "memory");
    }
  }
  __device__ __forceinline__ void get(int v, float (&f)[N]) const {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const uint32_t at = first + (v * kChunks + k) * pitch;
      if constexpr (kChunk < 4) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(f[k]) : "r"(at) : "memory");
      } else {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(f[4 * k]), "=f"(f[4 * k + 1]), "=f"(f[4 * k + 2]), "=f"(f[4 * k + 3])
                     : "r"(at)
                     : "memory");
      }
    }
  }
};

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
};

// The dtype of the output, when it is known at run time only.
struct Any {};

// Casts and stores vectors of a row.
struct Output {
  const ForwardArgs &a;
  float scale;
  float amax = 0.0f;

  __device__ explicit Output(const ForwardArgs &args) : a(args), scale(given_scale()) {}

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
      if (row >= cast.rows) return;
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
      if (row < cast.rows) store(z);
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
      __syncthreads();
      const int bits = warp_max(__float_as_int(amax));
      if (threadIdx.x % 32 == 0) atomicMax(&most, bits);
      __syncthreads();
      // Atomics on one address are slow: an amax that was already reached needs none.
      int *const to = reinterpret_cast<int *>(cast.amax);
      if (threadIdx.x == 0 && most > __ldcg(to)) atomicMax(to, most);
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

// What a thread holds of a row: V times N elements side by side.
template <class In, int N, int V>
struct Row {
  static constexpr int kWords = Vec<In, N>::kWords * V;

  Vec<In, N> x[V];

  // Hides the elements from the compiler, which would keep what it converted them to.
  __device__ __forceinline__ void renew() {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (uint32_t &w : x[v].w) asm volatile("" : "+r"(w));
    }
  }
};

// Threads of a block, at most: what the registers hold.
template <class In, bool kLayer, bool kBlocks, int N, int V>
__host__ __device__ constexpr int row_threads() {
  if (Row<In, N, V>::kWords > 8) return N == 1 && kLayer ? 640 : 768;
  return kBlocks ? 896 : 1024;
}

// A group goes over its rows, of which it holds one in registers while the next one is on its way
// to shared memory (single elements are loaded when their turn comes). Gamma and beta are in shared
// memory. The variance is that within each warp about the warp's mean, and what these means add to
// it.
template <class In, class Out, bool kLayer, bool kBlocks, int N, int V>
__global__ void __launch_bounds__(threads_here(row_threads<In, kLayer, kBlocks, N, V>()), 1)
    rows_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kCount = kLayer ? 3 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormForwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const int threads = args.layout.group, cols = args.layout.cols, span = threads * N;
  const int groups = blockDim.x / threads, thread = group.thread, col0 = thread * N;

  const size_t step = size_t{gridDim.x} * groups;
  size_t row = size_t{blockIdx.x} * groups + group.index;
  constexpr bool kStaged = N == kVec;
  constexpr int kMostThreads = row_threads<In, kLayer, kBlocks, N, V>();
  using Part = Staged<In, true, kMostThreads>;
  const Part part = {stages};
  const Columns<true> c(args.layout, thread);
  Row<In, N, V> x;
  const RowPointer<In> input(a.cast.input, cols);
  const auto fetch = [&](size_t row) {
    const char *from = input.at(row, col0);
    const int span = renewed(args.layout.group * N);
#pragma unroll
    for (int v = 0; v < V; ++v, from += input.bytes(span)) {
      const bool inside = row < a.cast.rows && col0 + v * span < cols;
      if constexpr (kStaged) {
        part.fetch(v, from, inside);
      } else {
        x.x[v] = load<In, N>(from, 0, inside);
      }
    }
    if (kStaged) commit_copies();
  };
  if (kStaged) fetch(row);

  // Gamma, then beta.
  const Weights<N> weights(
      reinterpret_cast<float *>(stages + (kStaged ? V * Part::kChunks * kMostThreads : 0)), threads,
      thread);
  for (int v = group.index; v < V; v += groups) {
    float g[N], b[N];
    if constexpr (kStaged) {
      load_gamma(c, a.gamma, v, g);
      if (kLayer) c.load_floats(a.beta, a.gamma.dtype, 0, v, b);
    } else {
      const int col = col0 + v * span;
      g[0] = gamma_at(a.gamma, cols, col);
      if (kLayer) b[0] = col < cols ? scalar(a.beta, a.gamma.dtype, col) : 0.0f;
    }
    weights.set(v, g);
    if (kLayer) weights.set(V + v, b);
  }
  __syncthreads();

  float n = 0.0f;
  if (kLayer) {
    for (int v = 0; v < V; ++v) {
      const int left = cols - col0 - v * span;
      n += static_cast<float>(left < 0 ? 0 : left < N ? left : N);
    }
    n = warp_sum(n);
  }
  const Divisor by_n(n);
  const Divisor &by_cols = args.by_cols;
  const RowPointer<Out> out(a.cast.rowwise, cols);
  Output output(args);

#pragma unroll 1
  for (; row < args.rows; row += step) {
    if constexpr (kStaged) {
      wait_for_copies(0);
#pragma unroll
      for (int v = 0; v < V; ++v) x.x[v] = part.get(v);
      fetch(row + step);
    } else {
      fetch(row);
    }
    float m[kCount] = {};
    float center = 0.0f;
    if constexpr (kLayer) {
      float sums[4] = {};
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float f[N];
        to_float(x.x[v], f);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[(v * N + i) % 4] += f[i];
      }
      center = by_n.divide(warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3])));
      m[1] = center;
      m[2] = n;
      x.renew();
    }
    {
      float sums[4] = {};
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float f[N];
        to_float(x.x[v], f);
        if (kLayer && col0 + v * span >= cols) continue;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float apart = f[i] - center;
          sums[(v * N + i) % 4] += apart * apart;
        }
      }
      m[0] = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    x.renew();

    float squares = m[0], mu = kLayer ? m[1] : 0.0f;
    if (group.warps > 1) {
      group.exchange(m);
      squares = m[0];
      if constexpr (kLayer) {
        mu = by_cols.divide(lanes_sum(m[2] * m[1], group.width));
        const float apart = m[1] - mu;
        squares += m[2] * apart * apart;
      }
      squares = lanes_sum(squares, group.width);
    }
    const float rsigma = rsqrtf(by_cols.divide(squares) + a.epsilon);
    if (thread == 0 && row < a.cast.rows) {
      if (kLayer) a.mu[row] = mu;
      a.rsigma[row] = rsigma;
    }

    if (a.cast.rowwise != nullptr) {
      char *to = out.at(row, col0);
      const int span = renewed(args.layout.group * N);
      const Weights<N> w = weights.again();
#pragma unroll
      for (int v = 0; v < V; ++v, to += out.bytes(span)) {
        const int col = col0 + v * span;
        float f[N], g[N], b[N];
        to_float(x.x[v], f);
        w.get(v, g);
        if (kLayer) w.get(V + v, b);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          // Not f rsigma - mu rsigma: in a row of one value the difference must be 0.
          const float y = rsigma * (f[i] - (kLayer ? mu : 0.0f));
          f[i] = kLayer ? g[i] * y + b[i] : g[i] * y;
        }
        output.template put<Out, kBlocks>(row, col, f, [&](const auto &z) {
          if (col < cols) store(to, 0, z);
        });
      }
    }
  }
  if (kStaged) wait_for_copies(0);
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

    if (group.warps > 1) group.exchange(m);
    float squares = m[0], mu = 0.0f;
    if constexpr (kLayer) {
      mu = (group.warps > 1 ? lanes_sum(m[1], group.width) : m[1]) / c.cols;
      const float apart = m[2] > 0.0f ? m[1] / m[2] - mu : 0.0f;
      if (group.warps > 1) squares += m[2] * apart * apart;
    }
    if (group.warps > 1) squares = lanes_sum(squares, group.width);
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

// Groups in a block of at most `threads`; each has a barrier of its own.
int groups_of(int group, int threads) {
  const int groups = threads / group;
  return groups < 1 ? 1 : groups > 15 ? 15 : groups;
}

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
  args.layout.group = group;
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
__device__ __forceinline__ void row_means(Group<kLayer ? 2 : 1> &group, int cols,
                                          float (&sums)[kLayer ? 2 : 1]) {
#pragma unroll
  for (float &sum : sums) sum = warp_sum(sum);
  if (group.warps > 1) {
    group.exchange(sums);
#pragma unroll
    for (float &sum : sums) sum = lanes_sum(sum, group.width);
  }
#pragma unroll
  for (float &sum : sums) sum /= cols;
}

struct BackwardArgs {
  NVTEXNormBackwardArgs norm;
  Layout layout;
  int stages;
};

// Threads of a block, at most: the sums stay in registers, and what else a thread has of a row if
// its elements are single ones.
constexpr int backward_threads(bool layer, int bytes, int length, int vectors) {
  if (length == 1) return layer ? 640 : 768;
  const int sums = (layer ? 2 : 1) * vectors;
  if (bytes == 4) return sums == 1 ? 1024 : sums <= 3 ? 576 : 384;
  return sums <= 2                           ? (layer ? 896 : 1024)
         : sums == 3 || (layer && sums == 4) ? 768
         : sums == 4                         ? 640
                                             : 512;
}

// A block goes over its rows, each by a group, and keeps the sums over them in registers. The next
// rows of a group are on their way to shared memory (single elements: to registers), where gamma is
// too. x and dz have one dtype; a thread has V times N elements side by side, every access to which
// is aligned, and inside or outside the row as a whole.
template <class T, bool kLayer, int N, int V>
__global__ void __launch_bounds__(threads_here(backward_threads(kLayer, T::kBytes, N, V)), 1)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  using Part = Staged<T, true>;
  constexpr bool kStaged = N == kVec;
  constexpr int kCount = kLayer ? 2 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormBackwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const Columns<true> c(args.layout, group.thread);
  const int threads = args.layout.group, cols = args.layout.cols, span = threads * N;
  const int groups = blockDim.x / threads, col0 = group.thread * N;
  const size_t step = size_t{gridDim.x} * groups;
  const int stage_size = kStaged ? 2 * V * Part::kChunks * blockDim.x : 0;
  float sums[kCount][V][N] = {};

  constexpr int kKept = kStaged ? 1 : V;
  Vec<T, N> x[kKept], dz[kKept], next_x[kKept], next_dz[kKept];
  const RowPointer<T> all_x(a.x, cols), all_dz(a.dz, cols), all_dx(a.dx, cols);
  auto fetch = [&](size_t row, int stage) {
    const Part to = {stages + stage * stage_size};
    const char *from_x = all_x.at(row, col0), *from_dz = all_dz.at(row, col0);
    const int span = renewed(threads * N);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const bool inside = row < a.rows && col0 + v * span < cols;
      if constexpr (kStaged) {
        to.fetch(v, from_x, inside);
        to.fetch(V + v, from_dz, inside);
      } else {
        next_x[v] = load<T, N>(from_x, 0, inside);
        next_dz[v] = load<T, N>(from_dz, 0, inside);
      }
      from_x += all_x.bytes(span), from_dz += all_x.bytes(span);
    }
    if (kStaged) commit_copies();
  };
  size_t row = size_t{blockIdx.x} * groups + group.index;
  for (int i = 0; i < args.stages; ++i) fetch(row + i * step, i);

  float *const weights = reinterpret_cast<float *>(stages + args.stages * stage_size);
  const Weights<N> gamma(weights, threads, group.thread);
  for (int v = group.index; v < V; v += groups) {
    float g[N];
    if constexpr (kStaged) {
      load_gamma(c, a.gamma, v, g);
    } else {
      g[0] = gamma_at(a.gamma, cols, col0 + v * span);
    }
    gamma.set(v, g);
  }
  __syncthreads();

  float next_mu = 0.0f, next_rsigma = 0.0f;
  const auto look_ahead = [&](size_t row) {
    if (row >= a.rows) return;
    if (kLayer) next_mu = a.mu[row];
    next_rsigma = a.rsigma[row];
  };
  look_ahead(row);
#pragma unroll 1
  for (int stage = 0; row < a.rows; row += step) {
    const Part part = {stages + stage * stage_size};
    const float mu = next_mu, rsigma = next_rsigma;
    look_ahead(row + step);
    const Weights<N> weights_here = gamma.again();
    // y, dz and d = g dz of a vector.
    auto terms = [&](int v, float (&y)[N], float (&z)[N], float (&d)[N]) {
      if constexpr (kStaged) {
        to_float(part.get(v), y);
        to_float(part.get(V + v), z);
      } else {
        to_float(x[v], y);
        to_float(dz[v], z);
      }
      weights_here.get(v, d);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        d[i] *= z[i];
        y[i] = rsigma * (y[i] - mu);
      }
    };
    if constexpr (kStaged) {
      wait_for_copies(args.stages - 1);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) x[v] = next_x[v], dz[v] = next_dz[v];
      fetch(row + step, 0);
    }
    float means[kCount] = {}, more[kCount] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float y[N], z[N], d[N];
      terms(v, y, z, d);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float (&to)[kCount] = (v * N + i) % 2 == 0 ? means : more;
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
    row_means<kLayer>(group, cols, means);
    char *to = all_dx.at(row, col0);
    const int span = renewed(threads * N);
#pragma unroll(kKept)
    for (int v = 0; v < V; ++v, to += all_dx.bytes(span)) {
      const int col = col0 + v * span;
      float y[N], z[N], d[N];
      terms(v, y, z, d);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        d[i] = rsigma * (d[i] - (kLayer ? means[0] * y[i] + means[1] : means[0] * y[i]));
      }
      if (a.add != nullptr) {
        to_float(load<T, N>(a.add, row * a.cols + col, col < cols), z);
#pragma unroll
        for (int i = 0; i < N; ++i) d[i] += z[i];
      }
      if (col < cols) store(to, 0, from_float<T>(d));
    }
    if (kStaged) {
      fetch(row + args.stages * step, stage);
      stage = stage + 1 == args.stages ? 0 : stage + 1;
    }
  }

  // The groups add their sums one after the other.
  wait_for_copies(0);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    for (int turn = 1; turn < groups; ++turn) {
      const bool mine = group.index == turn;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (mine) gamma.set(v, sums[k][v]);
      }
      __syncthreads();
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float other[N];
        gamma.get(v, other);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (group.index == 0) sums[k][v][i] += other[i];
        }
      }
      __syncthreads();
    }
    if (group.index == 0) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int col = col0 + v * span;
        const size_t at = (k * a.parts + blockIdx.x) * a.cols + col;
        if (col < cols) store(a.partial, at, from_float<F32>(sums[k][v]));
      }
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
    row_means<kLayer>(group, c.cols, means);
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

// Threads of a group for V times N elements each.
int backward_group(size_t cols, int length, int vectors) {
  return static_cast<int>(ceil_div(cols, size_t(32) * length * vectors)) * 32;
}

template <bool kLayer, bool kVectorised>
NVTEXOutcome launch_backward_twice(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  constexpr int kSumThreads = 128, kRowThreads = 512;
  const NVTEXNormBackwardArgs &a = args.norm;
  *blocks = static_cast<unsigned>(a.parts < a.rows ? a.parts : a.rows);
  if (*blocks > 65535) *blocks = 65535;
  // The sums first: dx may be one of the inputs.
  args.layout.group = kSumThreads;
  const unsigned across = static_cast<unsigned>(ceil_div(a.cols, kSumThreads * kVec));
  const NVTEXOutcome summed = launch(sums_kernel<kLayer, kVectorised, kSumThreads>,
                                     dim3(across, *blocks), kSumThreads, stream, args);
  if (summed.status != NVTEX_BACKEND_OK) return summed;
  const int group = group_of(a.cols, 1);
  args.layout.group = group < kRowThreads ? group : kRowThreads;
  size_t rows = size_t(a.sm_count) * (2048 / args.layout.group);
  if (rows > a.rows) rows = a.rows;
  return launch(dx_kernel<kLayer, kVectorised, kRowThreads>, dim3(static_cast<unsigned>(rows)),
                args.layout.group, stream, args);
}

// Vectors of a thread. H200, bf16, GB/s: LayerNorm 4096 columns 3760 (V 1:
// 3275, 3: 3304), 12288 3836 (V 2: 3593); RMSNorm 4096 3925 (V 2: 3367).
int backward_vectors(bool layer, int bytes, const Device &device, size_t cols) {
  for (int v = layer && cols > 1024 ? 2 : 1; v <= 4; ++v) {
    const int threads = threads_on(device, backward_threads(layer, bytes, kVec, v));
    const int most = layer && v > 1 && threads > 512 ? 512 : threads;
    if (backward_group(cols, kVec, v) <= most) return v;
  }
  return 4;
}

template <class T, bool kLayer, int N, int V>
NVTEXOutcome launch_backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const NVTEXNormBackwardArgs &a = args.norm;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const int threads = threads_on(device, backward_threads(kLayer, T::kBytes, N, V));
  const int group = backward_group(a.cols, N, V);
  int groups = groups_of(group, threads);
  // Few rows get a multiprocessor each.
  if (const size_t each = ceil_div(a.rows, a.sm_count); each < size_t(groups)) {
    groups = static_cast<int>(each);
  }
  const size_t row = size_t(group) * V * N, weights = row * sizeof(float);
  const size_t stage = N == kVec ? row * groups * 2 * T::kBytes : 0, room = shared_room(device);
  if (group > threads || stage + weights > room) {
    return launch_backward_twice<kLayer, N == kVec>(args, blocks, stream);
  }
  args.layout.group = group;
  args.stages = N == kVec && 2 * stage + weights <= room ? 2 : 1;
  const size_t parts = ceil_div(a.rows, groups);
  size_t most = a.sm_count;
  if (most > a.parts) most = a.parts;
  *blocks = static_cast<unsigned>(parts < most ? parts : most);
  return launch_shared(backward_kernel<T, kLayer, N, V>, dim3(*blocks), group * groups,
                       args.stages * stage + weights, stream, args);
}

template <bool kLayer, bool kVectorised>
NVTEXOutcome backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const NVTEXNormBackwardArgs &a = args.norm;
  if (a.x_dtype != a.gamma.dtype) {
    return launch_backward_twice<kLayer, kVectorised>(args, blocks, stream);
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  return dispatch<F32, F16, BF16>(a.x_dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (kVectorised) {
      switch (backward_vectors(kLayer, T::kBytes, device, a.cols)) {
        case 1:
          return launch_backward<T, kLayer, kVec, 1>(args, blocks, stream);
        case 2:
          return launch_backward<T, kLayer, kVec, 2>(args, blocks, stream);
        case 3:
          return launch_backward<T, kLayer, kVec, 3>(args, blocks, stream);
        default:
          return launch_backward<T, kLayer, kVec, 4>(args, blocks, stream);
      }
    } else {
      return launch_backward<T, kLayer, 1, 8>(args, blocks, stream);
    }
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

template <class In, class Out, bool kLayer, bool kBlocks, int N, int V>
NVTEXOutcome launch_rows(ForwardArgs &args, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t cols = args.norm.cast.cols, sms = args.norm.sm_count;
  const int group = static_cast<int>(ceil_div(cols, size_t(32) * N * V)) * 32;
  constexpr int kThreads = row_threads<In, kLayer, kBlocks, N, V>();
  int groups = threads_on(device, kThreads) / group;
  if (group > 32 && groups > 15) groups = 15;  // Each has a barrier of its own.
  // Few rows get a multiprocessor each.
  if (const size_t each = ceil_div(args.rows, sms); each < size_t(groups)) {
    groups = each > 0 ? static_cast<int>(each) : 1;
  }
  const size_t weights = size_t(group) * N * V * sizeof(float) * (kLayer ? 2 : 1);
  const size_t stage = N == kVec ? size_t(kThreads) * N * V * In::kBytes : 0;
  if (groups == 0 || weights + stage > shared_room(device)) {
    return forward_any<In, kLayer>(args, N == kVec, stream);
  }
  args.layout.group = group;
  size_t blocks = ceil_div(args.rows, groups);
  if (blocks > sms) blocks = sms;
  if (blocks == 0) blocks = 1;  // For scale_inv.
  return launch_shared(rows_kernel<In, Out, kLayer, kBlocks, N, V>,
                       dim3(static_cast<unsigned>(blocks)), group * groups, stage + weights, stream,
                       args);
}

// H200, bf16, GB/s to bf16 and to fp8: LayerNorm 4096 columns 3520 and 3350, 12288 3600 and 3420;
// RMSNorm 3610 and 3490, 3710 and 3650. With 8 words of a thread instead of 16, LayerNorm 4096 lost
// 2 and 5 %, 8192 20 and 3 %; RMSNorm is the same.
template <class In, class Out, bool kLayer>
NVTEXOutcome forward_rows(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const size_t cols = args.norm.cast.cols;
  // Words of a row that a thread holds.
  constexpr int kFew = 4, kSome = 8, kMany = 16, kWords = Vec<In, kVec>::kWords;
  constexpr int kShort = kWords < kFew ? kFew / kWords : 1, kMiddle = kSome / kWords;
  constexpr int kLong = kMany / kWords;
  const bool few = args.rows < size_t(args.norm.sm_count) * 4;
  if (args.block != 0) {
    if constexpr (kIsFp8<Out>) {
      if (vectorised) return launch_rows<In, Out, kLayer, true, kVec, kMiddle>(args, stream);
    }
    return forward_any<In, kLayer>(args, vectorised, stream);
  }
  // Few rows get more threads.
  const auto short_for = [&](size_t elements) { return cols <= elements * (few ? 1024 : 32); };
  if (vectorised) {
    if (short_for(kVec * kShort)) {
      return launch_rows<In, Out, kLayer, false, kVec, kShort>(args, stream);
    }
    if (few && short_for(kVec * kMiddle)) {
      return launch_rows<In, Out, kLayer, false, kVec, kMiddle>(args, stream);
    }
    return launch_rows<In, Out, kLayer, false, kVec, kLong>(args, stream);
  }
  if (short_for(kFew)) return launch_rows<In, Out, kLayer, false, 1, kFew>(args, stream);
  return launch_rows<In, Out, kLayer, false, 1, kMany>(args, stream);
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
  bool vectorised = a.cols % kVec == 0;
  for (const void *p : {a.dz, a.x, a.add, a.gamma.data, static_cast<const void *>(a.dx)}) {
    vectorised = vectorised && aligned(p, 16);
  }
  const bool layer = a.norm == LayerNorm;
  unsigned parts = 0;
  if (a.rows > 0) {
    const NVTEXOutcome rows = layer        ? vectorised ? backward<true, true>(b, &parts, stream)
                                                        : backward<true, false>(b, &parts, stream)
                                     : vectorised ? backward<false, true>(b, &parts, stream)
                                           : backward<false, false>(b, &parts, stream);
    if (rows.status != NVTEX_BACKEND_OK) return rows;
  }
  const unsigned across = static_cast<unsigned>(ceil_div(a.cols, 32));
  return launch(total_kernel, dim3(across, layer ? 2 : 1), kTotalThreads, stream, b, size_t{parts});
}
