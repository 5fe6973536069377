// LayerNorm and RMSNorm, backward. The threads of a group share a row: each copies its elements to
// shared memory ahead of time, and one exchange between the warps of the group gives what the row
// needs. Rows too long for that are read again from global memory.

#include "common/normalization.cuh"

namespace nvte {
namespace {

using namespace norm;

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
    const Part to(stages + stage * stage_size);
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
    const Part part(stages + stage * stage_size);
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

constexpr int kTotalThreads = 1024;

// dgamma, and for blockIdx.y = 1 dbeta: 32 columns of a block, by 32 warps that take every 32nd
// part. A batch of loads has the parts of 160 blocks: with few rows the time of a second one
// counts.
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
  constexpr int kBatch = 5;
  for (size_t first = warp; first < parts; first += kBatch * kWarps) {
    float batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const size_t part = first + i * kWarps;
      batch[i] = col < a.cols && part < parts ? partial[part * a.cols + col] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) sum += batch[i];
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
// 3920, 3460, 3460, 3530; 5120 3360, 3550, 3560, 3580; 8192 3970, 3660, 3660, 3690; 768 columns,
// LayerNorm 2735 by one and 2824 by three, RMSNorm 2942 and 2839.
// LayerNorm of 4096 columns stays at 3560 to 3620: 77 % of the issue slots are taken, and blocks
// wait for the slowest. Running addresses instead of products take 11 % fewer instructions, and
// reach 3480; the second pass unrolled 3470; two or four blocks of a multiprocessor one after the
// other, each with its partial sums, 3550 and 3090.
template <class T, bool kLayer, bool kSkewed, int V = 1>
int backward_vectors(const Device &device, size_t width) {
  if (kLayer && width > 2 * kRun && width <= 3 * kRun) return 3;
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

}  // namespace
}  // namespace nvte

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
