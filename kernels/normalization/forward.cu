// LayerNorm and RMSNorm, forward. The threads of a group share a row, and one exchange between
// their warps gives what the row needs. They hold it in registers, from global memory or from
// shared memory, where each has copied its elements ahead of time; rows too long for that are read
// again.

#include "normalization.cuh"
#include "common/scale.cuh"
#include "common/stream.cuh"
#include "nvte/backend/transpose.h"

extern "C" NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *, cudaStream_t) noexcept;

namespace nvte {
namespace {

using namespace norm;

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
  size_t step;   // Rows that all groups have at a time.
  size_t turns;  // Rows of a group, of some groups one less.
  bool apart;    // Of rows_kernel: how first_row() has them.
};

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
    if constexpr (kIsWidened<Out>) {
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

// mu and rsigma of a row. Each warp has the sums of deviations from a value near its mean and of
// their squares, from which the mean and the variance of the row follow.
template <bool kLayer, bool kSkewed, int V, bool kAlone = false>
struct Moments {
  static constexpr int kCount = kLayer ? 3 : 1;

  const ForwardArgs &args;
  const Span<kSkewed, V> &span;
  Group<kCount, kAlone> &group;
  float n, inverse, inverse0;

  __device__ __forceinline__ Moments(const ForwardArgs &args, const Span<kSkewed, V> &span,
                                     Group<kCount, kAlone> &group)
      : args(args), span(span), group(group), n(kLayer ? span.elements() : 0.0f) {
    constexpr float kWhole = V * kRun;
    inverse = n == kWhole ? 1.0f / kWhole : n > 0.0f ? 1.0f / n : 0.0f;
    if constexpr (kSkewed) {
      const float n0 = kLayer ? __shfl_sync(0xffffffffu, span.elements_of(0), 0) : 0.0f;
      inverse0 = n0 > 0.0f ? 1.0f / n0 : 0.0f;
    } else {
      inverse0 = 1.0f / kVec;  // Without elements their sum is 0.
    }
  }

  // get(v, f): the elements of vector v.
  template <class Get>
  __device__ __forceinline__ void of(const Get &get, float &mu, float &rsigma) const {
    // Both sums at once. In a row of one value the deviations are 0.
    float m[kCount] = {}, center = 0.0f;
    if constexpr (kLayer) {
      float x[kVec];
      get(0, x);
      const float near = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
      center = __shfl_sync(0xffffffffu, near, 0) * inverse0;
      if (!(fabsf(center) <= FLT_MAX)) center = 0.0f;
    }
    float sums[4] = {}, squares[4] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float here = kLayer && span.has(v) ? center : 0.0f;
      float apart[kVec];
      get(v, apart);
#pragma unroll
      for (int i = 0; i < kVec; ++i) apart[i] = kLayer ? apart[i] - here : apart[i];
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
    float variance;
    mu = 0.0f;
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
    rsigma = rsqrtf(variance + args.norm.epsilon);
  }
};

// A group goes over its rows, of which it holds one in registers while the next one is on its way
// to shared memory, where gamma and beta are too.
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
  size_t row = first_row<kSkewed>(group, args.apart);
  const Span<kSkewed, V> span(cols, args.offset, row, group.thread);

  using Part = Staged<In, true, V>;
  const NVTEDType dtype = a.cast.input_dtype;
  const int stage_size = V * Part::chunks(dtype) * static_cast<int>(blockDim.x);
  const auto fetch = [&](size_t row, int stage) {
    const Part part(stages + stage * stage_size, dtype);
    const char *from = span.template at<In>(a.cast.input, cols, row, dtype);
    const int left = row < a.cast.rows ? span.left : 0;
#pragma unroll
    for (int v = 0; v < V; ++v) part.template fetch<kSkewed>(v, from, v, left);
    commit_copies();
  };
  for (int i = 0; i < args.stages; ++i) fetch(row + i * args.step, i);

  const float *const floats = reinterpret_cast<float *>(stages + args.stages * stage_size);
  const Weights<V> gamma(floats, group.thread);
  const Weights<V> beta(floats + Weights<V>::floats(threads), group.thread);
  share_weights<In, kLayer>(span, group.index, groups, a.gamma, a.beta, gamma, beta);
  __syncthreads();

  const Moments<kLayer, kSkewed, V> moments(args, span, group);
  Output output(args);

  int stage = 0;
#pragma unroll 1
  for (; row < args.rows; row += args.step) {
    float f[V][kVec];
    wait_for_copies(args.stages - 1);
    const Part part(stages + stage * stage_size, dtype);
#pragma unroll
    for (int v = 0; v < V; ++v) to_float(part.get(v), f[v]);
    fetch(row + args.stages * args.step, stage);
    stage = stage + 1 == args.stages ? 0 : stage + 1;
    span.clear_before(0, f[0]);

    float mu, rsigma;
    moments.of(
        [&](int v, float (&x)[kVec]) {
#pragma unroll
          for (int i = 0; i < kVec; ++i) x[i] = f[v][i];
        },
        mu, rsigma);
    if (group.thread == 0 && row < a.cast.rows) {
      if (kLayer) a.mu[row] = mu;
      a.rsigma[row] = rsigma;
    }

    if (a.cast.rowwise != nullptr) {
      char *const to = span.template at<Out>(a.cast.rowwise, cols, row, a.cast.output_dtype);
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
  group.wait_equally(row < args.turns * args.step);
  output.finish();
}

// Threads of a block, at most: what caps the registers, and so sets how many blocks fit.
template <class T, int V>
__host__ __device__ constexpr int whole_threads() {
  if (V == 6 && std::is_same_v<T, F16>) return 896;
  return V > 6 ? 768 : 1024;
}

// Rows of aligned vectors, with weights and results of their dtype. A group does a row, or a few if
// not all multiprocessors may work, and the block ends: multiprocessors differ by a fifth in what
// they get from the memory, and those that had an equal share of all rows would wait for the
// slowest. Gamma and beta come out of L1.
template <class T, class Out, bool kLayer, int V>
__global__ void __launch_bounds__(threads_here(whole_threads<T, V>()), 1)
    whole_kernel(const __grid_constant__ ForwardArgs args) {
  using RowMoments = Moments<kLayer, false, V, true>;
  __shared__ float memory[2][kMostWarps][RowMoments::kCount];
  wait_for_stream();
  let_next_start();
  const NVTEXNormForwardArgs &a = args.norm;
  Group<RowMoments::kCount, true> group(args.layout, memory);
  const int cols = args.layout.cols, groups = args.layout.groups;
  const size_t begin = size_t{blockIdx.x} * groups + group.index;
  const Span<false, V> span(cols, 0, begin, group.thread);
  const RowMoments moments(args, span, group);
  Output output(args);
  for (size_t row = begin; row < args.rows; row += args.step) {
    Vec<T, kVec> x[V];
    const char *const from = span.template at<T>(a.cast.input, cols, row);
#pragma unroll
    for (int v = 0; v < V; ++v) x[v] = load<T, kVec>(from, v * kRun, span.has(v));
    float mu, rsigma;
    moments.of([&](int v, float (&f)[kVec]) { to_float(x[v], f); }, mu, rsigma);
    if (group.thread == 0) {
      if (kLayer) a.mu[row] = mu;
      a.rsigma[row] = rsigma;
    }
    char *const to = span.template at<Out>(a.cast.rowwise, cols, row);
    // Few vectors are faster without a branch between their loads; more would take more registers.
    const auto finish = [&](const auto centered) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float f[kVec], g[kVec], b[kVec];
        weights_of<T, kLayer, decltype(centered)::value>(span, a.gamma, a.beta, v, g, b);
        to_float(x[v], f);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          // Not f rsigma - mu rsigma: in a row of one value the difference must be 0.
          f[i] = kLayer ? fmaf(g[i], rsigma * (f[i] - mu), b[i]) : g[i] * (f[i] * rsigma);
        }
        output.template put<Out, false>(row, 0, f,
                                        [&](const auto &z) { span.put(to, v, z, true); });
      }
    };
    if (V > 4 || a.gamma.zero_centered) {
      finish(std::true_type{});
    } else {
      finish(std::false_type{});
    }
  }
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
  const NVTEDType dtype = a.cast.input_dtype;
  const int stage_size =
      (a.residual != nullptr ? 2 : 1) * vectors * Part::chunks(dtype) * blockDim.x;
  auto fetch = [&](size_t row, int stage) {
    const Part to(stages + stage * stage_size, dtype);
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
    const Part part(stages + stage * stage_size, dtype);
    const size_t at = row * cols;
    const bool exists = row < a.cast.rows;
    auto get = [&](int v, float (&f)[kVec]) {
      if constexpr (kStaged) {
        to_float(part.get(v), f);
      } else {
        const void *x = a.residual != nullptr ? a.sum : a.cast.input;
        to_float(c.template load_as<In>(dtype, x, at, v, exists), f);
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
          to_float(c.template load_as<In>(dtype, a.cast.input, at, v, exists), f);
          to_float(c.template load_as<In>(dtype, a.residual, at, v, exists), g);
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) f[i] += g[i];
        const Vec<In, kVec> sum = from_float_as<In>(dtype, f);
        if (kStaged) part.set(v, sum);
        if (exists) narrowed(dtype, sum, [&](const auto &z) { c.store(a.sum, at, v, z); });
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
        output.template put<Widened, true>(row, c.column(v), f,
                                       [&](const auto &z) { c.store(a.cast.rowwise, at, v, z); });
      }
    }
    if (kStaged) {
      fetch(row + args.stages * step, stage);
      stage = stage + 1 == args.stages ? 0 : stage + 1;
    }
  }
  wait_for_copies(0);
  group.wait_equally(row - group.index < args.rows);
  output.finish();
}

template <class In>
size_t in_bytes(const ForwardArgs &args) {
  return static_cast<size_t>(bytes_of<In>(args.norm.cast.input_dtype));
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
  const size_t row = size_t(group) * t.vectors * kVec * in_bytes<In>(args);
  const size_t stage = (args.norm.residual != nullptr ? 2 : 1) * groups * row;
  size_t blocks = ceil_div(args.rows, size_t(groups));
  const size_t most = size_t(args.norm.sm_count) * t.blocks;
  if (blocks > most) blocks = most;
  if (blocks == 0) blocks = 1;  // For scale_inv.
  return launch_shared(forward_kernel<In, kLayer, kVectorised, kStaged>,
                       dim3(static_cast<unsigned>(blocks)), group * groups,
                       kStaged ? t.stages * stage : 0, stream, args);
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
  const size_t bytes = (args.norm.residual != nullptr ? 2 : 1) * in_bytes<In>(args);
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
  const size_t stage = size_t(group) * groups * V * kVec * in_bytes<In>(args);
  const size_t room = shared_room(device);
  const size_t shared = args.stages * stage + weights;
  if (group > threads || shared > room) return forward_any<In, kLayer>(args, !kSkewed, stream);
  args.layout.set_group(group);
  args.layout.groups = groups;
  const unsigned blocks = blocks_for(args.rows, groups, sms, kEvery);
  args.step = size_t{blocks} * groups;
  args.turns = ceil_div(args.rows, args.step);
  args.apart = lie_apart(cols, in_bytes<In>(args));
  return launch_shared(rows_kernel<In, Out, kLayer, kBlocks, kSkewed, V>, dim3(blocks),
                       group * groups, shared, stream, args);
}

template <class T, class Out, bool kLayer, int V>
NVTEXOutcome launch_whole(ForwardArgs &args, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  constexpr int kWarps = 2;  // Of a block, if rows have one.
  const int group = group_of(args.norm.cast.cols, V), groups = group > 32 ? 1 : kWarps;
  if (group * groups > threads_on(device, whole_threads<T, V>())) {
    using In = std::conditional_t<std::is_same_v<T, BF16>, BF16, Widened>;
    return forward_any<In, kLayer>(args, true, stream);
  }
  args.layout.set_group(group);
  args.layout.groups = groups;
  size_t blocks = ceil_div(args.rows, size_t(groups));
  const size_t most = args.norm.sm_count < device.sm_count ? args.norm.sm_count : kMaxBlocks;
  if (blocks > most) blocks = most;
  args.step = blocks * groups;
  return launch(whole_kernel<T, Out, kLayer, V>, dim3(static_cast<unsigned>(blocks)),
                group * groups, stream, args);
}

// H200, bf16, GB/s by V: LayerNorm of 4096 columns 4: 4050, 8: 3940, 2: 3070, 16: 3730; 8192 8:
// 3740, 4: 3870; 12288 6: 4140, 8: 3980, 4: 3340; 16384 8: 3720, 4: 3700; RMSNorm 4096 4: 4030, 8:
// 3980, 2: 3720; 8192 4: 4160, 8: 4070; 12288 4: 4160, 6: 4140, 8: 4090; 768 3: 3650, 1: 2440. More
// rows for a group, the next one in registers meanwhile, are slower: RMSNorm 4096 by twos 3960, by
// fours 3890, 12288 4070 and 4010. So are persistent blocks, that copy rows to shared memory ahead
// (rows_kernel): 3660 and 3790; with bulk copies both ways 3730.
template <class T, bool kLayer>
NVTEXOutcome forward_whole(ForwardArgs &args, cudaStream_t stream) {
  const size_t cols = args.norm.cast.cols;
  const bool sixes = cols % (6 * kRun) == 0;
  if constexpr (!kLayer) {
    if (args.norm.cast.output_dtype != T::kDtype) {
      return sixes ? launch_whole<T, E4M3, false, 6>(args, stream)
                   : launch_whole<T, E4M3, false, 8>(args, stream);
    }
  }
  if (cols <= 3 * kRun || (!kLayer && cols == 6 * kRun)) {
    return launch_whole<T, T, kLayer, 3>(args, stream);
  }
  if (sixes && (cols > 4096 || cols == 6 * kRun)) {
    return launch_whole<T, T, kLayer, 6>(args, stream);
  }
  return kLayer && cols > 4096 ? launch_whole<T, T, kLayer, 8>(args, stream)
                               : launch_whole<T, T, kLayer, 4>(args, stream);
}

// Whether forward_whole() is the fastest: for many rows of 16-bit elements with weights of their
// dtype, of a group that is about full.
template <class T, bool kLayer>
bool is_whole(const ForwardArgs &args, bool few) {
  const size_t cols = args.norm.cast.cols;
  if (few || args.norm.gamma.dtype != T::kDtype) return false;
  if (args.norm.cast.output_dtype != T::kDtype) {
    // To fp8, GB/s by eight vectors and by rows_kernel: 4096 columns 3820 and 3890, 7168 4080 and
    // 3860, 8192 4170 and 3780, 16384 4180 and 3980, but 5120, with a sixth of the threads idle,
    // 3870 and 3990; 12288 by six 4210 and 3820. LayerNorm 3600 and 4060 at best.
    return !kLayer && cols > 4096 && ceil_div(cols, 8 * kRun) * (7 * kRun) <= cols;
  }
  // LayerNorm with eight vectors of a thread: 5120 columns 3390 for 3680 GB/s by rows_kernel, 7168
  // 3500 for 3700, 8192 3740 for 3670.
  const bool half_full = kLayer && cols > 4096 && cols < 8192 && cols % (6 * kRun) != 0;
  return cols > kRun && !half_full;
}

// Vectors of a thread in rows_kernel. H200, bf16, GB/s to bf16 and to fp8: LayerNorm 4096 columns
// 3570 and 3360, 12288 3680 and 3620; RMSNorm 3640 and 3470, 3730 and 3680. With two vectors of a
// thread, LayerNorm 3530 and 3250, 3550 and 2960. A second row on its way for each group gains
// nothing. Few rows get more threads. `two`: more than that many are too many.
template <bool kSkewed>
int vectors_of_rows(size_t cols, bool few, bool two) {
  const size_t width = cols + (kSkewed ? kVec - 1 : 0);
  if (width <= kRun || (few && width <= 32 * kRun)) return 1;
  if (two) return 2;
  const auto filled = [&](int v) { return ceil_div(width, v * kRun) * v; };
  if (kSkewed) return filled(2) < filled(3) ? 2 : 3;
  return width <= 6 * kRun && filled(3) < filled(4) ? 3 : 4;
}

template <class In, class Out, bool kLayer, bool kSkewed>
NVTEXOutcome forward_rows(ForwardArgs &args, cudaStream_t stream) {
  const NVTEXQuantizeArgs &cast = args.norm.cast;
  const bool few = args.rows < size_t(args.norm.sm_count) * 4;
  // With blocks, each is a few threads of a warp.
  constexpr bool kBlocks = !kSkewed && (kIsFp8<Out> || kIsWidened<Out>);
  if (args.block != 0) {
    if constexpr (kBlocks) return launch_rows<In, Out, kLayer, true, false, 2>(args, stream);
    return forward_any<In, kLayer>(args, !kSkewed, stream);
  }
  if constexpr (!kSkewed && kIsWidened<In>) {
    if (cast.input_dtype == kNVTEFloat16 && is_whole<F16, kLayer>(args, few)) {
      return forward_whole<F16, kLayer>(args, stream);
    }
  } else if constexpr (!kSkewed) {
    if (is_whole<In, kLayer>(args, few)) return forward_whole<In, kLayer>(args, stream);
  }
  // Of float32 elements, and in one case of half precision, three vectors would spill.
  const bool half_to_fp8 = kSkewed && kLayer && cast.input_dtype == kNVTEFloat16 &&
                           cast.output_dtype != cast.input_dtype;
  const bool two = kIsWidened<In> && (cast.input_dtype == kNVTEFloat32 || half_to_fp8);
  switch (vectors_of_rows<kSkewed>(cast.cols, few, two)) {
    case 1:
      return launch_rows<In, Out, kLayer, false, kSkewed, 1>(args, stream);
    case 2:
      if constexpr (kSkewed || kIsWidened<In>) {
        return launch_rows<In, Out, kLayer, false, kSkewed, 2>(args, stream);
      }
      [[fallthrough]];
    case 3:
      return launch_rows<In, Out, kLayer, false, kSkewed, 3>(args, stream);
    default:
      break;
  }
  if constexpr (kSkewed) {
    return unimplemented("no such kernel");
  } else {
    return launch_rows<In, Out, kLayer, false, false, 4>(args, stream);
  }
}

template <class In, class Out, bool kLayer>
NVTEXOutcome forward_rows(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const NVTEXQuantizeArgs &cast = args.norm.cast;
  args.offset = Alignment(cast.input, cast.input_dtype).offset;
  args.together = Alignment(cast.rowwise, cast.output_dtype).offset == args.offset;
  return vectorised ? forward_rows<In, Out, kLayer, false>(args, stream)
                    : forward_rows<In, Out, kLayer, true>(args, stream);
}

template <class In, bool kLayer>
NVTEXOutcome forward(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const NVTEXQuantizeArgs &cast = args.norm.cast;
  const bool same = cast.output_dtype == cast.input_dtype;
  const bool fp8 =
      cast.output_dtype == kNVTEFloat8E4M3 || cast.output_dtype == kNVTEFloat8E5M2;
  if (args.norm.residual != nullptr || !(same || fp8)) {
    return forward_any<In, kLayer>(args, vectorised, stream);
  }
  if constexpr (kIsWidened<In>) {
    return forward_rows<In, Widened, kLayer>(args, vectorised, stream);
  } else {
    return same ? forward_rows<In, In, kLayer>(args, vectorised, stream)
                : forward_rows<In, E4M3, kLayer>(args, vectorised, stream);
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
  const NVTEXOutcome rows = dispatch_bf16_or_widened(cast.input_dtype, [&](auto in) {
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
