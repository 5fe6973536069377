// Forward pass of rows that registers hold. The threads of a group share a row, and one exchange
// between their warps gives what the row needs.
#pragma once

#include <type_traits>

#include "forward.cuh"

namespace nvte {
namespace norm {
namespace {

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
      inverse0 = 1.0f / kVec;  // A thread without elements has sums of 0.
    }
  }

  // get(v, f): the elements of vector v.
  template <class Get>
  __device__ __forceinline__ void of(const Get &get, float &mu, float &rsigma) const {
    // Computes both sums at once. In a row of one value the deviations are 0.
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

    const FloatDivisor &by_cols = args.by_cols;
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
      variance = at_least_0(variance);  // Rounding may have made it negative.
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
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
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
            // The form y rsigma - mu rsigma would not do: in a row of one value the difference must
            // be 0.
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
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
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
          // The form f rsigma - mu rsigma would not do: in a row of one value the difference must
          // be 0.
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
  const size_t stage = size_t(group) * groups * V * kVec * input_bytes(args);
  const size_t room = shared_room(device);
  const size_t shared = args.stages * stage + weights;
  if (group > threads || shared > room) return forward_any_length(args, !kSkewed, stream);
  args.layout.set_group(group);
  args.layout.groups = groups;
  const unsigned blocks = blocks_for(args.rows, groups, sms, kEvery);
  args.step = size_t{blocks} * groups;
  args.turns = ceil_div(args.rows, args.step);
  args.apart = lie_apart(cols, input_bytes(args));
  return launch_shared(rows_kernel<In, Out, kLayer, kBlocks, kSkewed, V>, dim3(blocks),
                       group * groups, shared, stream, args);
}

template <class T, class Out, bool kLayer, int V>
NVTEXOutcome launch_whole(ForwardArgs &args, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  constexpr int kWarps = 2;  // Warps of a block, if each row has a block.
  const int group = group_of(args.norm.cast.cols, V), groups = group > 32 ? 1 : kWarps;
  if (group * groups > threads_on(device, whole_threads<T, V>())) {
    return forward_any_length(args, true, stream);
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
// nothing. Few rows get more threads. `two`: registers do not hold more than two.
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
  const NVTEXCast &cast = args.norm.cast;
  const bool few = args.rows < size_t(args.norm.sm_count) * 4;
  // The instance for scales of blocks, each of which a few lanes of a warp share.
  constexpr bool kBlocks = !kSkewed && (kIsFp8<Out> || kIsWidened<Out>);
  if (args.block != 0) {
    if constexpr (kBlocks) return launch_rows<In, Out, kLayer, true, false, 2>(args, stream);
    return forward_any_length(args, !kSkewed, stream);
  }
  if constexpr (!kSkewed && kIsWidened<In>) {
    if (cast.input_dtype == kNVTEFloat16 && is_whole<F16, kLayer>(args, few)) {
      return forward_whole<F16, kLayer>(args, stream);
    }
  } else if constexpr (!kSkewed) {
    if (is_whole<In, kLayer>(args, few)) return forward_whole<In, kLayer>(args, stream);
  }
  // With float32 elements, and in one case of half precision, three vectors would spill.
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
  const NVTEXCast &cast = args.norm.cast;
  args.offset = Alignment(cast.input, cast.input_dtype).offset;
  args.together = Alignment(cast.rowwise, cast.output_dtype).offset == args.offset;
  return vectorised ? forward_rows<In, Out, kLayer, false>(args, stream)
                    : forward_rows<In, Out, kLayer, true>(args, stream);
}

// Kernels of inputs of In, to their own dtype or to FP8.
template <class In, bool kLayer>
NVTEXOutcome forward_rows(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  const NVTEXCast &cast = args.norm.cast;
  if constexpr (kIsWidened<In>) {
    return forward_rows<In, Widened, kLayer>(args, vectorised, stream);
  } else {
    return cast.output_dtype == In::kDtype
               ? forward_rows<In, In, kLayer>(args, vectorised, stream)
               : forward_rows<In, E4M3, kLayer>(args, vectorised, stream);
  }
}

template <class In>
NVTEXOutcome forward_rows(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  return args.norm.norm == LayerNorm ? forward_rows<In, true>(args, vectorised, stream)
                                     : forward_rows<In, false>(args, vectorised, stream);
}

}  // namespace
}  // namespace norm
}  // namespace nvte
