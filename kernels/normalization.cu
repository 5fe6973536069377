// LayerNorm and RMSNorm, forward and backward. The threads of a group share a row: its elements are
// read once, stay in registers as they are, and one reduction over the group gives what the row
// needs. Rows too long for that are read twice.

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

// The threads that share a row, and their exchange of kCount floats for each warp. One barrier
// each: successive exchanges use different memory.
template <int kCount>
struct Group {
  int index, thread, warps;
  int turn = 0;
  float (*memory)[kMostWarps][kCount];  // [2]

  __device__ Group(const Layout &l, float (*memory)[kMostWarps][kCount])
      : index(threadIdx.x / l.group),
        thread(threadIdx.x % l.group),
        warps(l.group / 32),
        memory(memory) {}

  // `mine` of a warp becomes, in lane w, that of warp w of the group, or zeros.
  __device__ __forceinline__ void exchange(float (&mine)[kCount]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) memory[turn][warp][i] = mine[i];
    }
    asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(warps * 32) : "memory");
    const int from = index * warps + lane;
#pragma unroll
    for (int i = 0; i < kCount; ++i) mine[i] = lane < warps ? memory[turn][from][i] : 0.0f;
    turn ^= 1;
  }
};

// The weight g of vector v; zeros outside the row.
template <bool kVectorised>
__device__ __forceinline__ void load_gamma(const Columns<kVectorised> &c, const NVTEXGamma &gamma, int v,
                                           float (&g)[kVec]) {
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

// ---- Forward

struct ForwardArgs {
  NVTEXNormForwardArgs norm;
  Layout layout;
  size_t rows;  // With those that only have padding of scales.
  // Of row-wise scales; blocks are 0 with one scale per tensor.
  ScaleMatrix scales;
  FloatScale float_scale;
  MxScale mx_scale;
  int block;
};

// The dtype of the output, when it is known at run time only.
struct Any {};

// Casts and stores vectors of a row.
struct Output {
  const ForwardArgs &a;
  float scale = 1.0f;
  float amax = 0.0f;
  int seen = 0;  // Of the block's first thread.

  __device__ explicit Output(const ForwardArgs &args) : a(args) {
    const NVTEXQuantizeArgs &cast = a.norm.cast;
    if (cast.scale != nullptr) scale = *cast.scale;
    if (cast.amax != nullptr && threadIdx.x == 0) seen = __ldcg(reinterpret_cast<int *>(cast.amax));
  }

  __device__ __forceinline__ static float largest(const float (&f)[kVec]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kVec; ++i) most = fmaxf(most, fabsf(f[i]));
    return most;
  }

  // By whole warps; elements outside the row are 0 or NaN.
  template <class Out, bool kVectorised>
  __device__ __forceinline__ void put(const Columns<kVectorised> &c, size_t row, int v,
                                      float (&f)[kVec]) {
    const NVTEXQuantizeArgs &cast = a.norm.cast;
    const bool exists = row < cast.rows;
    if constexpr (std::is_same_v<Out, Any>) {
      switch (cast.output_dtype) {
        case kNVTEFloat32:
          return put<F32>(c, row, v, f);
        case kNVTEFloat16:
          return put<F16>(c, row, v, f);
        case kNVTEBFloat16:
          return put<BF16>(c, row, v, f);
        case kNVTEFloat8E4M3:
          return put<E4M3>(c, row, v, f);
        default:
          return put<E5M2>(c, row, v, f);
      }
    } else {
      if constexpr (kIsFp8<Out>) {
        float factor = scale;
        if (a.block != 0 || cast.amax != nullptr) {
          const float most = largest(f);
          amax = fmaxf(amax, most);
          if (a.block != 0) factor = block_factor(c, row, v, most, exists);
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) f[i] = __fmul_rn(f[i], factor);
      }
      const Vec<Out, kVec> z = from_float<Out>(f);
      if (!kIsFp8<Out> && cast.amax != nullptr) {
        to_float(z, f);
        amax = fmaxf(amax, largest(f));
      }
      if (exists) c.store(cast.rowwise, row * cast.cols, v, z);
    }
  }

  template <bool kVectorised>
  __device__ __forceinline__ float block_factor(const Columns<kVectorised> &c, size_t row, int v,
                                                float most, bool exists) {
    const int lanes = a.block / kVec, col = c.column(v);
    for (int step = 1; step < lanes; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    const bool writer = threadIdx.x % lanes == 0;
    const size_t at = a.scales.index(row, col / a.block);
    if (a.norm.cast.mode == NVTE_MXFP8_1D_SCALING) {
      uint8_t entry;
      const float factor = a.mx_scale.factor(most, entry);
      // Padding reaches to the next multiple of four blocks.
      if (writer && col < (c.cols + 127) / 128 * 128) {
        static_cast<uint8_t *>(a.scales.entries)[at] = exists && col < c.cols ? entry : 0;
      }
      return factor;
    }
    float entry;
    const float factor = a.float_scale.factor(most, entry);
    if (writer && exists && col < c.cols) static_cast<float *>(a.scales.entries)[at] = entry;
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
      if (threadIdx.x == 0 && most > seen) atomicMax(reinterpret_cast<int *>(cast.amax), most);
    }
    if (a.block == 0 && blockIdx.x == 0 && threadIdx.x == 0) {
      const float inverse = __frcp_rn(scale);
      if (cast.rowwise_scale_inv != nullptr) *static_cast<float *>(cast.rowwise_scale_inv) = inverse;
      if (cast.colwise_scale_inv != nullptr) *static_cast<float *>(cast.colwise_scale_inv) = inverse;
    }
  }
};

// kRows rows of V vectors each are in the registers of a group. kWhole: a row is not longer than
// that; else it is read in pieces, twice. The variance is that within a warp about the warp's mean,
// and what the warps' means add to it.
template <class In, class Out, bool kLayer, int V, int kRows, bool kWhole, bool kVectorised,
          int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    forward_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kCount = kLayer ? 3 : 1;
  __shared__ float memory[2][kMostWarps][kRows * kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormForwardArgs &a = args.norm;
  Group<kRows * kCount> group(args.layout, memory);
  const Columns<kVectorised> c(args.layout, group.thread);
  const size_t cols = a.cast.cols;
  const int groups = blockDim.x / args.layout.group;
  const float whole = kWhole ? warp_sum(c.elements(0, V)) : 0.0f;
  Output output(args);

  auto load = [&](const void *from, size_t row0, int v0, Vec<In, kVec>(&x)[kRows][V]) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        x[r][v] = c.template load<In>(from, (row0 + r) * cols, v0 + v, row0 + r < a.cast.rows);
      }
    }
  };

  const size_t step = size_t{gridDim.x} * groups * kRows;
  size_t row0 = (size_t{blockIdx.x} * groups + group.index) * kRows;
  for (; row0 < args.rows; row0 += step) {
    // For each row: sum of squares, and for LayerNorm those of deviations, the sum and its length.
    float moments[kRows * kCount] = {};
    Vec<In, kVec> x[kRows][V];
    for (int v0 = 0; v0 * c.span < c.cols; v0 += V) {
      load(a.cast.input, row0, v0, x);
      if (a.residual != nullptr) {
        Vec<In, kVec> residual[kRows][V];
        load(a.residual, row0, v0, residual);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            float f[kVec], g[kVec];
            to_float(x[r][v], f);
            to_float(residual[r][v], g);
#pragma unroll
            for (int i = 0; i < kVec; ++i) f[i] += g[i];
            x[r][v] = from_float<In>(f);
            if (row0 + r < a.cast.rows) c.store(a.sum, (row0 + r) * cols, v0 + v, x[r][v]);
          }
        }
      }
      float n = whole;
      if constexpr (kLayer && !kWhole) {
        n = warp_sum(c.elements(v0, V));
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float sum = 0.0f, squares = 0.0f, center = 0.0f;
        if constexpr (kLayer) {
#pragma unroll
          for (int v = 0; v < V; ++v) {
            float f[kVec];
            to_float(x[r][v], f);
#pragma unroll
            for (int i = 0; i < kVec; ++i) sum += f[i];
          }
          sum = warp_sum(sum);
          center = n > 0.0f ? __fdividef(sum, n) : 0.0f;
        }
#pragma unroll
        for (int v = 0; v < V; ++v) {
          float f[kVec];
          to_float(x[r][v], f);
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            if (!kLayer || c.has(v0 + v, i)) squares += (f[i] - center) * (f[i] - center);
          }
        }
        squares = warp_sum(squares);
        float *m = moments + r * kCount;
        if constexpr (kLayer) {
          if (!kWhole && m[2] > 0.0f && n > 0.0f) {
            const float apart = center - m[1] / m[2];
            squares += apart * apart * (m[2] * n / (m[2] + n));
          }
          m[1] += sum;
          m[2] += n;
        }
        m[0] += squares;
      }
      if (kWhole) break;
    }

    if (group.warps > 1) group.exchange(moments);
    float mu[kRows], rsigma[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float *m = moments + r * kCount;
      float squares = m[0];
      mu[r] = 0.0f;
      if constexpr (kLayer) {
        mu[r] = (group.warps > 1 ? warp_sum(m[1]) : m[1]) / c.cols;
        const float apart = m[2] > 0.0f ? m[1] / m[2] - mu[r] : 0.0f;
        if (group.warps > 1) squares += m[2] * apart * apart;
      }
      if (group.warps > 1) squares = warp_sum(squares);
      rsigma[r] = rsqrtf(squares / c.cols + a.epsilon);
      if (group.thread == 0 && row0 + r < a.cast.rows) {
        if (kLayer) a.mu[row0 + r] = mu[r];
        a.rsigma[row0 + r] = rsigma[r];
      }
    }
    if (a.cast.rowwise == nullptr) continue;

    for (int v0 = 0; v0 * c.span < c.cols; v0 += V) {
      if (!kWhole) load(a.residual != nullptr ? a.sum : a.cast.input, row0, v0, x);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float g[kVec], b[kVec];
        load_gamma(c, a.gamma, v0 + v, g);
        if (kLayer) c.load_floats(a.beta, a.gamma.dtype, 0, v0 + v, b);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float f[kVec];
          to_float(x[r][v], f);
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            const float y = rsigma[r] * (f[i] - mu[r]);
            f[i] = kLayer ? g[i] * y + b[i] : g[i] * y;
          }
          output.template put<Out>(c, row0 + r, v0 + v, f);
        }
      }
      if (kWhole) break;
    }
  }
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

template <class In, class Out, bool kLayer, int V, int kRows, bool kWhole, bool kVectorised,
          int kThreads, int kBlocks>
NVTEXOutcome launch_forward(ForwardArgs &args, int threads, cudaStream_t stream) {
  const int group = kWhole ? group_of(args.layout.cols, V) : kThreads;
  const int groups = groups_of(group, threads);
  args.layout.group = group;
  const auto kernel = forward_kernel<In, Out, kLayer, V, kRows, kWhole, kVectorised, kThreads, kBlocks>;
  // As many blocks as run at a time: each goes over several rows.
  size_t blocks = ceil_div(args.rows, size_t(groups) * kRows);
  const size_t most = size_t(args.norm.sm_count) * (kThreads * kBlocks / (group * groups));
  if (blocks > most) blocks = most;
  if (blocks == 0) blocks = 1;  // For scale_inv.
  return launch(kernel, dim3(static_cast<unsigned>(blocks)), group * groups, stream, args);
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
    for (float &sum : sums) sum = warp_sum(sum);
  }
#pragma unroll
  for (float &sum : sums) sum /= cols;
}

struct BackwardArgs {
  NVTEXNormBackwardArgs norm;
  Layout layout;
  int stages;
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
  if (pending >= 2) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
  } else if (pending == 1) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
}
constexpr int kMostStages = 3;

// What is on its way from a row: V vectors of x and of dz for each thread, which only this thread
// reads again.
template <class T, int V, bool kVectorised>
struct Stage {
  static constexpr int kChunks = Vec<T, kVec>::kBytes / 16;
  static constexpr int kBytes = V * kChunks * 16;  // Of a thread.

  static __device__ __forceinline__ uint4 *slot(char *stage, int v, int chunk) {
    return reinterpret_cast<uint4 *>(stage) + (v * kChunks + chunk) * blockDim.x + threadIdx.x;
  }
  static __device__ __forceinline__ void fetch(const Columns<kVectorised> &c, char *stage,
                                               const void *base, size_t row, bool exists) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if constexpr (kVectorised) {
        const bool inside = exists && c.column(v) < c.cols;
        const auto *from = element<typename T::Bits>(base, inside ? row + c.column(v) : 0);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
          copy_async(slot(stage, v, k), reinterpret_cast<const char *>(from) + k * 16, inside);
        }
      } else {
        const Vec<T, kVec> x = c.template load<T>(base, row, v, exists);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) store_bytes<16>(slot(stage, v, k), x.w + 4 * k);
      }
    }
  }
  static __device__ __forceinline__ Vec<T, kVec> get(char *stage, int v) {
    Vec<T, kVec> x;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      uint32_t w[4];
      load_shared(reinterpret_cast<const uint32_t *>(slot(stage, v, k)), w);
#pragma unroll
      for (int i = 0; i < 4; ++i) x.w[4 * k + i] = w[i];
    }
    return x;
  }
};

// A block goes over its rows, each by a group, the next ones of which are on their way to shared
// memory, and keeps the sums over them in registers. x and dz have one dtype.
template <class T, bool kLayer, int V, bool kVectorised, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  using Part = Stage<T, V, kVectorised>;
  constexpr int kCount = kLayer ? 2 : 1;
  extern __shared__ char stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormBackwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const Columns<kVectorised> c(args.layout, group.thread);
  const int groups = blockDim.x / args.layout.group;
  const size_t step = size_t{gridDim.x} * groups;
  const float offset = a.gamma.zero_centered ? 1.0f : 0.0f;
  const int part_bytes = Part::kBytes * blockDim.x;

  Vec<T, kVec> gamma[V];
  float sums[kCount][V][kVec] = {};
#pragma unroll
  for (int v = 0; v < V; ++v) gamma[v] = c.template load<T>(a.gamma.data, 0, v, true);

  auto fetch = [&](size_t row, int stage) {
    char *to = stages + stage * 2 * part_bytes;
    Part::fetch(c, to, a.x, row * a.cols, row < a.rows);
    Part::fetch(c, to + part_bytes, a.dz, row * a.cols, row < a.rows);
    commit_copies();
  };
  size_t row = size_t{blockIdx.x} * groups + group.index;
  for (int i = 0; i < args.stages; ++i) fetch(row + i * step, i);
  for (int stage = 0; row < a.rows; row += step) {
    char *const from = stages + stage * 2 * part_bytes;
    const float mu = kLayer ? a.mu[row] : 0.0f, rsigma = a.rsigma[row];
    // y, dz and d of a vector.
    auto parts = [&](int v, float (&y)[kVec], float (&dz)[kVec], float (&d)[kVec]) {
      to_float(Part::get(from, v), y);
      to_float(Part::get(from + part_bytes, v), dz);
      to_float(gamma[v], d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        y[i] = rsigma * (y[i] - mu);
        d[i] += offset;
      }
      if (a.gamma.rounded) to_float(from_float<T>(d), d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) d[i] *= dz[i];
    };
    wait_for_copies(args.stages - 1);
    float means[kCount] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float y[kVec], dz[kVec], d[kVec];
      parts(v, y, dz, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        means[0] += d[i] * y[i];
        sums[0][v][i] += dz[i] * y[i];
        if constexpr (kLayer) {
          means[1] += d[i];
          sums[1][v][i] += dz[i];
        }
      }
    }
    row_means<kLayer>(group, c.cols, means);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float y[kVec], dz[kVec], d[kVec];
      parts(v, y, dz, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        d[i] = rsigma * (d[i] - (kLayer ? means[0] * y[i] + means[1] : means[0] * y[i]));
      }
      if (a.add != nullptr) {
        to_float(c.template load<T>(a.add, row * a.cols, v, true), dz);
#pragma unroll
        for (int i = 0; i < kVec; ++i) d[i] += dz[i];
      }
      c.store(a.dx, row * a.cols, v, from_float<T>(d));
    }
    fetch(row + args.stages * step, stage);
    stage = stage + 1 == args.stages ? 0 : stage + 1;
  }

  // The groups add their sums one after the other.
  float *const total = reinterpret_cast<float *>(stages);
  wait_for_copies(0);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    for (int turn = 1; turn < groups; ++turn) {
      const bool mine = group.index == turn;
#pragma unroll
      for (int i = 0; i < V * kVec; ++i) {
        if (mine) total[i * args.layout.group + group.thread] = sums[k][i / kVec][i % kVec];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < V * kVec; ++i) {
        const float other = total[i * args.layout.group + group.thread];
        if (group.index == 0) sums[k][i / kVec][i % kVec] += other;
      }
      __syncthreads();
    }
    if (group.index == 0) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        c.store(a.partial, (k * a.parts + blockIdx.x) * a.cols, v, from_float<F32>(sums[k][v]));
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

// dgamma, and for blockIdx.y = 1 dbeta: 32 columns of a block, by 16 warps that take every 16th part.
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

// With dynamic shared memory.
template <class Args>
NVTEXOutcome launch_shared(void (*kernel)(Args), dim3 grid, unsigned threads, size_t shared,
                           cudaStream_t stream, const Args &args) {
  const auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, most, static_cast<int>(shared))) {
    return outcome(error);
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = NVTE_OVERLAP && device.arch >= 90 ? 1 : 0;
  return outcome(cudaLaunchKernelEx(&config, kernel, args));
}

// Shared memory of a multiprocessor that blocks may have on every architecture but 8.6 and the like.
constexpr size_t kStageBytes = 160 * 1024;

template <class T, bool kLayer, int V, bool kVectorised, int kThreads, int kBlocks>
NVTEXOutcome launch_backward(BackwardArgs &args, int threads, unsigned *blocks,
                             cudaStream_t stream) {
  const int group = group_of(args.layout.cols, V), groups = groups_of(group, threads);
  args.layout.group = group;
  const size_t stage = size_t(group) * groups * 2 * Stage<T, V, kVectorised>::kBytes;
  args.stages = kMostStages;
  while (args.stages > 1 && args.stages * stage > kStageBytes / kBlocks) --args.stages;
  const size_t parts = ceil_div(args.norm.rows, groups);
  *blocks = static_cast<unsigned>(args.norm.sm_count) * kBlocks;
  if (*blocks > parts) *blocks = static_cast<unsigned>(parts);
  if (*blocks > args.norm.parts) *blocks = static_cast<unsigned>(args.norm.parts);
  return launch_shared(backward_kernel<T, kLayer, V, kVectorised, kThreads, kBlocks>, dim3(*blocks),
                       group * groups, args.stages * stage, stream, args);
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

template <class T, bool kLayer, bool kVectorised>
NVTEXOutcome backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const size_t vectors = ceil_div(args.norm.cols, kVec);
  if (vectors <= 512) {
    return launch_backward<T, kLayer, 1, kVectorised, 512, 2>(args, 512, blocks, stream);
  }
  if (vectors <= 2 * 768) {
    return launch_backward<T, kLayer, 2, kVectorised, 768, 1>(args, 768, blocks, stream);
  }
  return launch_backward<T, kLayer, 4, kVectorised, 512, 1>(args, 512, blocks, stream);
}

template <bool kLayer, bool kVectorised>
NVTEXOutcome backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const NVTEXNormBackwardArgs &a = args.norm;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  // The smaller multiprocessors of each generation have less shared memory.
  const size_t room = device.arch % 10 == 0 && device.arch != 120 ? kStageBytes : 96 * 1024;
  const size_t bytes = 2 * a.cols * (a.x_dtype == kNVTEFloat32 ? 4 : 2);
  if (a.x_dtype != a.gamma.dtype || a.cols > 16384 || bytes > room) {
    return launch_backward_twice<kLayer, kVectorised>(args, blocks, stream);
  }
  return dispatch<F32, F16, BF16>(a.x_dtype, [&](auto type) {
    return backward<decltype(type), kLayer, kVectorised>(args, blocks, stream);
  });
}

// ---- Casts in blocks along the columns

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
__global__ void __launch_bounds__(kTileThreads) tile_kernel(const __grid_constant__ TileArgs args) {
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
          static_cast<float *>(
              args.col_scales.entries)[args.col_scales.index(col, row0 / kTile)] = entry;
        }
        if (square && cast.rowwise != nullptr) {
          static_cast<float *>(
              args.row_scales.entries)[args.row_scales.index(row0, col0 / kTile)] = entry;
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

template <class In, class Out, bool kLayer>
NVTEXOutcome forward(ForwardArgs &args, cudaStream_t stream) {
  const int cols = args.layout.cols;
  if constexpr (std::is_same_v<Out, Any>) {
    if (cols <= 4 * kVec * 1024) {
      return launch_forward<In, Any, kLayer, 4, 1, true, false, 1024, 1>(args, 512, stream);
    }
    return launch_forward<In, Any, kLayer, 4, 1, false, false, 1024, 1>(args, 1024, stream);
  } else if (cols <= 8192) {
    return launch_forward<In, Out, kLayer, 2, 2, true, true, 512, 2>(args, 256, stream);
  } else {
    return launch_forward<In, Out, kLayer, 4, 1, true, true, 1024, 1>(args, 512, stream);
  }
}

template <class In>
NVTEXOutcome forward(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const NVTEDType dtype = args.norm.cast.output_dtype;
  auto run = [&](auto out) {
    using Out = decltype(out);
    return args.norm.norm == LayerNorm ? forward<In, Out, true>(args, stream)
                                       : forward<In, Out, false>(args, stream);
  };
  if (!vectorised || args.layout.cols > 4 * kVec * 1024) return run(Any{});
  switch (dtype) {
    case kNVTEFloat8E4M3:
      return run(E4M3{});
    case kNVTEFloat8E5M2:
      return run(E5M2{});
    default:
      return dtype == In::kDtype ? run(In{}) : run(Any{});
  }
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
    return forward<decltype(in)>(args, vectorised, stream);
  });
  if (rows.status != NVTEX_BACKEND_OK || cast.rows == 0) return rows;
  if (per_tensor && cast.colwise != nullptr) {
    const size_t size = cast.output_dtype == kNVTEFloat32              ? 4
                        : cast.output_dtype == kNVTEFloat16 ||
                                  cast.output_dtype == kNVTEBFloat16 ? 2
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
    const NVTEXOutcome rows =
        layer ? vectorised ? backward<true, true>(b, &parts, stream)
                           : backward<true, false>(b, &parts, stream)
        : vectorised ? backward<false, true>(b, &parts, stream)
                     : backward<false, false>(b, &parts, stream);
    if (rows.status != NVTEX_BACKEND_OK) return rows;
  }
  const unsigned across = static_cast<unsigned>(ceil_div(a.cols, 32));
  return launch(total_kernel, dim3(across, layer ? 2 : 1), kTotalThreads, stream, b, size_t{parts});
}
