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
constexpr int kMostStages = 2;

// Elements of this thread that are on their way to shared memory, where only it reads them again.
template <class T, bool kVectorised>
struct Staged {
  static constexpr int kChunks = Vec<T, kVec>::kBytes / 16;

  uint4 *memory;  // Of the first thread.

  __device__ __forceinline__ uint4 *slot(int place, int chunk) const {
    return memory + (place * kChunks + chunk) * static_cast<int>(blockDim.x) + threadIdx.x;
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
  int stages;
};

// The dtype of the output, when it is known at run time only.
struct Any {
  static constexpr int kBytes = 0;
};

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
      if (cast.rowwise_scale_inv != nullptr)
        *static_cast<float *>(cast.rowwise_scale_inv) = inverse;
      if (cast.colwise_scale_inv != nullptr)
        *static_cast<float *>(cast.colwise_scale_inv) = inverse;
    }
  }
};

// Threads of a block, at most. Single elements take more registers.
constexpr int forward_threads(bool vectorised) { return vectorised ? 1024 : 512; }

// A group goes over its rows, kRows at a time, the next of which are on their way to shared memory
// (kStaged; else rows are too long for that and are read again from global memory). The variance is
// that within each warp about the warp's mean, and what these means add to it.
template <class In, class Out, bool kLayer, int kRows, bool kVectorised, bool kStaged>
__global__ void __launch_bounds__(forward_threads(kVectorised), 1)
    forward_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kCount = kLayer ? 3 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kRows * kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormForwardArgs &a = args.norm;
  Group<kRows * kCount> group(args.layout, memory);
  const Columns<kVectorised> c(args.layout, group.thread);
  const size_t cols = a.cast.cols;
  const int groups = blockDim.x / args.layout.group;
  const int vectors = (c.cols + c.span - 1) / c.span, places = kRows * vectors;
  const float n = kLayer ? warp_sum(c.elements(0, vectors)) : 0.0f;
  Output output(args);

  using Part = Staged<In, kVectorised>;
  const int stage_size = (a.residual != nullptr ? 2 : 1) * places * Part::kChunks * blockDim.x;
  auto fetch = [&](size_t row0, int stage) {
    const Part to = {stages + stage * stage_size};
    for (int v = 0; v < vectors; ++v) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const size_t row = row0 + r;
        to.fetch(c, v * kRows + r, a.cast.input, row * cols, v, row < a.cast.rows);
        if (a.residual != nullptr) {
          to.fetch(c, places + v * kRows + r, a.residual, row * cols, v, row < a.cast.rows);
        }
      }
    }
    commit_copies();
  };

  const size_t step = size_t{gridDim.x} * groups * kRows;
  size_t row0 = (size_t{blockIdx.x} * groups + group.index) * kRows;
  if (kStaged) {
    for (int i = 0; i < args.stages; ++i) fetch(row0 + i * step, i);
  }
  for (int stage = 0; row0 < args.rows; row0 += step) {
    const Part part = {stages + stage * stage_size};
    auto get = [&](int v, int r, float (&f)[kVec]) {
      if constexpr (kStaged) {
        to_float(part.get(v * kRows + r), f);
      } else {
        const void *x = a.residual != nullptr ? a.sum : a.cast.input;
        to_float(c.template load<In>(x, (row0 + r) * cols, v, row0 + r < a.cast.rows), f);
      }
    };
    if (kStaged) wait_for_copies(args.stages - 1);
    if (a.residual != nullptr) {
      for (int v = 0; v < vectors; ++v) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const size_t row = (row0 + r) * cols;
          const bool exists = row0 + r < a.cast.rows;
          float f[kVec], g[kVec];
          if constexpr (kStaged) {
            to_float(part.get(v * kRows + r), f);
            to_float(part.get(places + v * kRows + r), g);
          } else {
            to_float(c.template load<In>(a.cast.input, row, v, exists), f);
            to_float(c.template load<In>(a.residual, row, v, exists), g);
          }
#pragma unroll
          for (int i = 0; i < kVec; ++i) f[i] += g[i];
          const Vec<In, kVec> sum = from_float<In>(f);
          if (kStaged) part.set(v * kRows + r, sum);
          if (exists) c.store(a.sum, row, v, sum);
        }
      }
      __syncwarp();  // The sum is read again below.
    }

    // Of each row: the sum of squares, and for LayerNorm that of deviations, the sum, the length.
    float moments[kRows * kCount] = {};
    float center[kRows] = {};
    if constexpr (kLayer) {
      for (int v = 0; v < vectors; ++v) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float f[kVec];
          get(v, r, f);
#pragma unroll
          for (int i = 0; i < kVec; ++i) moments[r * kCount + 1] += f[i];
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float *m = moments + r * kCount;
        m[1] = warp_sum(m[1]);
        m[2] = n;
        center[r] = n > 0.0f ? m[1] / n : 0.0f;
      }
    }
    for (int v = 0; v < vectors; ++v) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float f[kVec];
        get(v, r, f);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float apart = f[i] - center[r];
          if (!kLayer || c.has(v, i)) moments[r * kCount] += apart * apart;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) moments[r * kCount] = warp_sum(moments[r * kCount]);

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

    if (a.cast.rowwise != nullptr) {
      for (int v = 0; v < vectors; ++v) {
        float g[kVec], b[kVec];
        load_gamma(c, a.gamma, v, g);
        if (kLayer) c.load_floats(a.beta, a.gamma.dtype, 0, v, b);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float f[kVec];
          get(v, r, f);
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            const float y = rsigma[r] * (f[i] - mu[r]);
            f[i] = kLayer ? g[i] * y + b[i] : g[i] * y;
          }
          output.template put<Out>(c, row0 + r, v, f);
        }
      }
    }
    if (kStaged) {
      fetch(row0 + args.stages * step, stage);
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
// kRows rows in flight for each group, `blocks` on a multiprocessor.
struct Tuning {
  int vectors, threads, stages, blocks;
};

template <class In, class Out, bool kLayer, int kRows, bool kVectorised, bool kStaged>
NVTEXOutcome launch_forward(ForwardArgs &args, const Tuning &t, cudaStream_t stream) {
  const int group = group_of(args.layout.cols, t.vectors), groups = groups_of(group, t.threads);
  args.layout.group = group;
  args.stages = t.stages;
  const size_t row = size_t(group) * t.vectors * kVec * In::kBytes;
  const size_t stage = (args.norm.residual != nullptr ? 2 : 1) * kRows * groups * row;
  size_t blocks = ceil_div(args.rows, size_t(groups) * kRows);
  const size_t most = size_t(args.norm.sm_count) * t.blocks;
  if (blocks > most) blocks = most;
  if (blocks == 0) blocks = 1;  // For scale_inv.
  return launch_shared(forward_kernel<In, Out, kLayer, kRows, kVectorised, kStaged>,
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

constexpr int kBackwardThreads = 512;

// A block goes over its rows, each by a group, the next ones of which are on their way to shared
// memory, and keeps the sums over them in registers. x and dz have one dtype; every access to a
// vector is aligned.
template <class T, bool kLayer, int V>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  using Part = Staged<T, true>;
  constexpr int kCount = kLayer ? 2 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormBackwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const Columns<true> c(args.layout, group.thread);
  const int groups = blockDim.x / args.layout.group;
  const size_t step = size_t{gridDim.x} * groups;
  const float offset = a.gamma.zero_centered ? 1.0f : 0.0f;
  const int stage_size = 2 * V * Part::kChunks * blockDim.x;
  // Short rows stay in registers between the two passes over them, and so does gamma.
  constexpr bool kKeep = V <= 2;
  constexpr int kKept = kKeep ? V : 1;
  Vec<T, kVec> x[kKept], dz[kKept], gamma[kKept];
  float sums[kCount][V][kVec] = {};
  auto load_weight = [&](int v) {
    gamma[v % kKept] = c.template load<T>(a.gamma.data, 0, v, true);
  };
  if (kKeep) {
#pragma unroll
    for (int v = 0; v < V; ++v) load_weight(v);
  }

  auto fetch = [&](size_t row, int stage) {
    const Part to = {stages + stage * stage_size};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      to.fetch(c, v, a.x, row * a.cols, v, row < a.rows);
      to.fetch(c, V + v, a.dz, row * a.cols, v, row < a.rows);
    }
    commit_copies();
  };
  size_t row = size_t{blockIdx.x} * groups + group.index;
  for (int i = 0; i < args.stages; ++i) fetch(row + i * step, i);
#pragma unroll 1
  for (int stage = 0; row < a.rows; row += step) {
    const Part part = {stages + stage * stage_size};
    const float mu = kLayer ? a.mu[row] : 0.0f, rsigma = a.rsigma[row];
    auto take = [&](int v) {
      x[v % kKept] = part.get(v);
      dz[v % kKept] = part.get(V + v);
      if (!kKeep) load_weight(v);
    };
    // y, dz and d = g dz of a vector.
    auto terms = [&](int v, float (&y)[kVec], float (&z)[kVec], float (&d)[kVec]) {
      to_float(x[v % kKept], y);
      to_float(dz[v % kKept], z);
      to_float(gamma[v % kKept], d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        y[i] = rsigma * (y[i] - mu);
        d[i] += offset;
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) d[i] *= z[i];
    };
    wait_for_copies(args.stages - 1);
    float means[kCount] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float y[kVec], z[kVec], d[kVec];
      take(v);
      terms(v, y, z, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        means[0] += d[i] * y[i];
        sums[0][v][i] += z[i] * y[i];
        if constexpr (kLayer) {
          means[1] += d[i];
          sums[1][v][i] += z[i];
        }
      }
    }
    if (kKeep) fetch(row + args.stages * step, stage);
    row_means<kLayer>(group, c.cols, means);
#pragma unroll kKept
    for (int v = 0; v < V; ++v) {
      float y[kVec], z[kVec], d[kVec];
      if (!kKeep) take(v);
      terms(v, y, z, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        d[i] = rsigma * (d[i] - (kLayer ? means[0] * y[i] + means[1] : means[0] * y[i]));
      }
      if (a.add != nullptr) {
        to_float(c.template load<T>(a.add, row * a.cols, v, true), z);
#pragma unroll
        for (int i = 0; i < kVec; ++i) d[i] += z[i];
      }
      c.store(a.dx, row * a.cols, v, from_float<T>(d));
    }
    if (!kKeep) fetch(row + args.stages * step, stage);
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

template <class T, bool kLayer, int V>
NVTEXOutcome launch_backward(BackwardArgs &args, const Tuning &t, unsigned *blocks,
                             cudaStream_t stream) {
  const int group = group_of(args.layout.cols, V), groups = groups_of(group, t.threads);
  args.layout.group = group;
  args.stages = t.stages;
  const size_t stage = size_t(group) * groups * 2 * V * kVec * T::kBytes;
  size_t most = size_t(args.norm.sm_count) * t.blocks;
  if (most > args.norm.parts) most = args.norm.parts;
  const size_t parts = ceil_div(args.norm.rows, groups);
  *blocks = static_cast<unsigned>(parts < most ? parts : most);
  return launch_shared(backward_kernel<T, kLayer, V>, dim3(*blocks), group * groups,
                       t.stages * stage, stream, args);
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

// Vectors of a thread for rows of `vectors`, such that most threads of a block have some.
int backward_vectors(size_t vectors) {
  int best = 3;
  double most = 0;
  for (int v : {2, 1, 3}) {
    const int group = static_cast<int>(ceil_div(vectors, 32 * v)) * 32;
    if (group > kBackwardThreads) continue;
    const double busy = double(vectors) / v * groups_of(group, kBackwardThreads);
    if (busy > most * 1.02) most = busy, best = v;
  }
  return best;
}

template <bool kLayer, bool kVectorised>
NVTEXOutcome backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const NVTEXNormBackwardArgs &a = args.norm;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t vectors = ceil_div(a.cols, kVec), room = shared_room(device);
  Tuning t = {backward_vectors(vectors), kBackwardThreads, kMostStages, 1};
  if (t.vectors == 1) t.blocks = 2;
  const int group = group_of(a.cols, t.vectors);
  const size_t stage = size_t(group) * groups_of(group, t.threads) * t.vectors * 2 * kVec *
                       (a.x_dtype == kNVTEFloat32 ? 4 : 2);
  while (t.stages > 1 && t.stages * stage * t.blocks > room) --t.stages;
  if (!kVectorised || a.gamma.rounded || a.x_dtype != a.gamma.dtype || group > t.threads ||
      stage * t.blocks > room) {
    return launch_backward_twice<kLayer, kVectorised>(args, blocks, stream);
  }
  return dispatch<F32, F16, BF16>(a.x_dtype, [&](auto type) {
    using T = decltype(type);
    switch (t.vectors) {
      case 1:
        return launch_backward<T, kLayer, 1>(args, t, blocks, stream);
      case 2:
        return launch_backward<T, kLayer, 2>(args, t, blocks, stream);
      default:
        return launch_backward<T, kLayer, 3>(args, t, blocks, stream);
    }
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

// H200, bf16, 16384 rows, GB/s. LayerNorm to bf16: 4096 columns 3140 (V 2, group 256: 3050),
// 12288 3090, 768 2140; to fp8 2240, 2270, 1450. RMSNorm to bf16 3500, 3570, 2800; to fp8 3050,
// 3120, 2130. A second stage gains where little is computed: RMSNorm to bf16 3560, 3580. Blocks for
// all of the threads, each over many rows, instead of blocks for one row each: 10 % for all.
Tuning forward_tuning(const ForwardArgs &args, int rows, size_t bytes, int most_threads,
                      size_t room) {
  const size_t vectors = ceil_div(args.layout.cols, kVec);
  // A thread has up to 4 vectors, while 32 threads have so many; few rows get more threads.
  const bool few = args.rows < size_t(args.norm.sm_count) * 4;
  size_t v = few ? 1 : vectors < 128 ? 1 : vectors < 384 ? 3 : vectors < 768 ? 5 : 4;
  while (v * most_threads < vectors) ++v;
  Tuning t = {static_cast<int>(v), 256, 1, 1};
  const int group = group_of(args.layout.cols, t.vectors);
  const int threads = group * groups_of(group, t.threads);
  const size_t stage = size_t(threads) * t.vectors * kVec * rows * bytes;
  if (stage > room) t.stages = 0;
  t.blocks = 1024 / threads;
  if (t.stages > 0 && size_t(t.blocks) > room / stage) t.blocks = static_cast<int>(room / stage);
  return t;
}

template <class In, class Out, bool kLayer>
NVTEXOutcome forward(ForwardArgs &args, cudaStream_t stream) {
  constexpr bool kVectorised = !std::is_same_v<Out, Any>;
  // What the registers of 1024 threads hold.
  constexpr bool kWide = In::kBytes == 4 || Out::kBytes == 4 || (kLayer && kIsFp8<Out>);
  constexpr int kRows = kVectorised && !kWide ? 2 : 1;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t room = shared_room(device);
  const size_t bytes = (args.norm.residual != nullptr ? 2 : 1) * In::kBytes;
  const int threads = forward_threads(kVectorised);
  const Tuning t = forward_tuning(args, kRows, bytes, threads, room);
  if (t.stages > 0) {
    return launch_forward<In, Out, kLayer, kRows, kVectorised, true>(args, t, stream);
  }
  const Tuning unstaged = forward_tuning(args, 1, bytes, threads, room);
  return launch_forward<In, Out, kLayer, 1, kVectorised, false>(args, unstaged, stream);
}

template <class In>
NVTEXOutcome forward(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const NVTEDType dtype = args.norm.cast.output_dtype;
  auto run = [&](auto out) {
    using Out = decltype(out);
    return args.norm.norm == LayerNorm ? forward<In, Out, true>(args, stream)
                                       : forward<In, Out, false>(args, stream);
  };
  if (!vectorised) return run(Any{});
  return dispatch<F32, F16, BF16, E4M3, E5M2>(dtype, run);
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
  const NVTEXOutcome rows = dispatch<F32, F16, BF16>(
      cast.input_dtype, [&](auto in) { return forward<decltype(in)>(args, vectorised, stream); });
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
