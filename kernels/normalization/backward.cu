// LayerNorm and RMSNorm, backward. The threads of a group share a row: each copies its elements to
// shared memory ahead of time, and one exchange between the warps of the group gives what the row
// needs. Rows too long for that are read again from global memory.

#include <climits>

#include "normalization.cuh"

namespace nvte {
namespace {

using namespace norm;

// Means over a row of (sum of d y, sum of d), from a thread's sums. Of two, each half of a warp
// adds one up.
template <bool kLayer>
__device__ __forceinline__ void row_means(Group<kLayer ? 2 : 1> &group, const FloatDivisor &by_cols,
                                          float (&sums)[kLayer ? 2 : 1]) {
  constexpr int kLanes = kLayer ? 16 : 32;
  const int lane = threadIdx.x % 32, warps = group.layout.warps;
  float sum = sums[0];
  if constexpr (kLayer) {
    const bool second = lane >= kLanes;
    sum = second ? sums[1] : sums[0];
    sum += __shfl_xor_sync(0xffffffffu, second ? sums[0] : sums[1], kLanes);
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (warps > 1) {
    float *const all = &group.memory[group.turn][0][0] + lane / kLanes * kMostWarps;
    group.turn ^= 1;
    if (lane % kLanes == 0) all[threadIdx.x / 32] = sum;
    group.wait();
    const float *const mine = all + group.index * warps;
    const int from = lane % kLanes;
    sum = from < warps ? mine[from] : 0.0f;
    if (kLayer && from + kLanes < warps) sum += mine[from + kLanes];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
  }
#pragma unroll
  for (int k = 0; k < (kLayer ? 2 : 1); ++k) {
    sums[k] = by_cols.divide(kLayer ? __shfl_sync(0xffffffffu, sum, k * kLanes) : sum);
  }
}

struct BackwardArgs {
  NVTEXNormBackwardArgs norm;
  Layout layout;
  FloatDivisor by_cols = FloatDivisor(1.0f);
  int stages;
  // Of the first element from the last aligned one; whether all that dx is read or written with has
  // the same.
  int offset;
  bool together;
  size_t step;  // Rows that all groups have at a time.
  int turns;    // Rows of a group, of some groups one less.
  bool apart;   // How first_row() has them.
  bool summed;  // The sums of `add` and dx are there.

  bool wants_sums() const { return norm.add_sums != nullptr || norm.dx_sums != nullptr; }
};

// y and d stay in registers from the sums over a row to its results, or are computed again: that
// takes more instructions, but leaves room for longer rows.
template <class T, bool kLayer, bool kSkewed, int V>
constexpr bool kHolds = !(kLayer && V == 4) && !(kIsWidened<T> && V > (kSkewed ? 1 : 3));

// Threads of a block, at most: what the registers hold. Those of float32 are as many as its own
// kernels once had: the order of the sums over a row depends on them.
template <bool kLayer, bool kSkewed, int V, bool kSums>
__host__ __device__ constexpr int backward_threads(NVTEDType dtype) {
  if (kSums) return V == 1 ? 512 : V == 2 ? 384 : 256;
  if (dtype == kNVTEFloat32) {
    if (V == 1) return kLayer ? 768 : 1024;
    return 384;
  }
  if (V == 1) return kLayer && kSkewed ? 896 : 1024;
  if (V == 2) return 512;
  return V == 4 ? (kSkewed ? 384 : 512) : kLayer ? 384 : 512;
}

// Whether an instance also adds up `add` and dx: one that holds a row in registers.
template <class T, bool kSkewed, int V>
constexpr bool kHasSums = std::is_same_v<T, BF16> && !kSkewed && V < 4;

// A block goes over its rows, each by a group, and keeps the sums over them in registers. The next
// rows of a group are on their way to shared memory, where gamma is too. x and dz have one dtype.
template <class T, bool kLayer, bool kSkewed, int V, bool kSums>
__global__ void __launch_bounds__(
    threads_here(backward_threads<kLayer, kSkewed, V, kSums>(BF16::kDtype)), 1)
    backward_kernel(const __grid_constant__ BackwardArgs args) {
  using Part = Staged<T, true, 2 * V>;
  constexpr int kCount = kLayer ? 2 : 1, kAll = kCount + (kSums ? 2 : 0);
  constexpr bool kHeld = kHolds<T, kLayer, kSkewed, V>;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXNormBackwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const int cols = args.layout.cols, groups = args.layout.groups;
  const size_t row = first_row<kSkewed>(group, args.apart);
  const Span<kSkewed, V> span(cols, args.offset, row, group.thread);
  const size_t last = row + (args.turns - 1) * args.step;
  const int turns = args.turns - (last < a.rows ? 0 : 1);
  float sums[kAll][V][kVec] = {};

  // Bytes from the begin of tensors; running ones, of which later turns take few instructions.
  const NVTEDType dtype = a.x_dtype;
  const ptrdiff_t step = static_cast<ptrdiff_t>(args.step * cols) * bytes_of<T>(dtype);
  ptrdiff_t at = span.template offset<T>(cols, row, dtype), ahead = at;
  const uint32_t stage_size = 2 * V * Part::chunks(dtype) * 16 * blockDim.x;
  const uint32_t first_stage = Part(stages, dtype).memory;
  const auto fetch = [&](uint32_t stage, bool exists) {
    const Part to(stage, dtype);
    const char *const x = static_cast<const char *>(a.x) + ahead;
    const char *const dz = static_cast<const char *>(a.dz) + ahead;
    const int left = exists ? span.left : 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      to.template fetch<kSkewed>(v, x, v, left);
      to.template fetch<kSkewed>(V + v, dz, v, left);
    }
    commit_copies();
    ahead += step;
  };
  for (int i = 0; i < args.stages; ++i) fetch(first_stage + i * stage_size, i < turns);

  const Weights<V> gamma(reinterpret_cast<float *>(stages) + args.stages * stage_size / 4,
                         group.thread);
  share_weights<T, false>(span, group.index, groups, a.gamma, nullptr, gamma, gamma);
  __syncthreads();

  const float *mus = a.mu + row, *rsigmas = a.rsigma + row;
  float next_mu = 0.0f, next_rsigma = 0.0f;
  const auto look_ahead = [&](bool exists) {
    if (!exists) return;
    if (kLayer) next_mu = *mus;
    next_rsigma = *rsigmas;
    mus += args.step;
    rsigmas += args.step;
  };
  look_ahead(turns > 0);
  // What is added to the next row is on its way in registers, where there are any: a load within a
  // row's turn would be waited for.
  constexpr bool kAhead = kHeld && !kSkewed && !kIsWidened<T> && (V == 2 || V == 3);
  [[maybe_unused]] Vec<T, kVec> added[V];
  if constexpr (kAhead) {
    if (a.add != nullptr) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        added[v] = {};
        if (turns > 0) {
          added[v] = span.template get<T>(static_cast<const char *>(a.add) + at, v, args.together);
        }
      }
    }
  }
  uint32_t stage = first_stage;
#pragma unroll 1
  for (int left = turns; left > 0; --left) {
    const float mu = next_mu, rsigma = next_rsigma;
    look_ahead(left > 1);
    wait_for_copies(args.stages - 1);
    // y, dz and d = g dz of a vector.
    const auto terms = [&](int v, float (&y)[kVec], float (&z)[kVec], float (&d)[kVec]) {
      to_float(Part(stage, dtype).get(v), y);
      to_float(Part(stage, dtype).get(V + v), z);
      span.clear_before(v, y);
      span.clear_before(v, z);
      gamma.get(v, d);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        y[i] = rsigma * (y[i] - mu);
        d[i] *= z[i];
      }
    };
    float y[kHeld ? V : 1][kVec], z[kVec], d[kHeld ? V : 1][kVec];
    float means[kCount] = {}, more[kCount] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int h = kHeld ? v : 0;
      terms(v, y[h], z, d[h]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        float (&to)[kCount] = i % 2 == 0 ? means : more;
        to[0] += d[h][i] * y[h][i];
        sums[0][v][i] += z[i] * y[h][i];
        if constexpr (kLayer) {
          to[1] += d[h][i];
          sums[1][v][i] += z[i];
        }
      }
    }
    if (kHeld) fetch(stage, left > args.stages);
#pragma unroll
    for (int k = 0; k < kCount; ++k) means[k] += more[k];
    row_means<kLayer>(group, args.by_cols, means);

    // dx = rsigma (d - (means[0] y + means[1])).
    const float by_y = -rsigma * means[0], by_1 = kLayer ? -rsigma * means[kCount - 1] : 0.0f;
    char *const to = static_cast<char *>(a.dx) + at;
    const char *const add = static_cast<const char *>(a.add) + at;
    at += step;
#pragma unroll(kHeld ? V : 1)
    for (int v = 0; v < V; ++v) {
      const int h = kHeld ? v : 0;
      if (!kHeld) terms(v, y[h], z, d[h]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float apart = kLayer ? fmaf(by_y, y[h][i], by_1) : by_y * y[h][i];
        d[h][i] = fmaf(rsigma, d[h][i], apart);
      }
      if (a.add != nullptr) {
        if constexpr (kIsWidened<T>) {
          const auto x = widened_from<kVec>(dtype, [&](auto tag) {
            return span.template get<decltype(tag)>(add, v, args.together);
          });
          to_float(x, z);
        } else if constexpr (kAhead) {
          to_float(added[v], z);
          // dx may be what is added: this row's store does not touch the next row.
          if (left > 1) added[v] = span.template get<T>(add + step, v, args.together);
        } else {
          to_float(span.template get<T>(add, v, args.together), z);
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          d[h][i] += z[i];
          if constexpr (kSums) sums[kCount][v][i] += z[i];
        }
      }
      if constexpr (kSums) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) sums[kCount + 1][v][i] += d[h][i];
      }
      narrowed(dtype, from_float<T>(d[h]),
               [&](const auto &x) { span.put(to, v, x, args.together); });
    }
    if (!kHeld) fetch(stage, left > args.stages);
    stage = stage == first_stage && args.stages > 1 ? first_stage + stage_size : first_stage;
  }
  wait_for_copies(0);
  group.wait_equally(turns < args.turns);

  // The sums of all groups into shared memory, and from there one after the other.
  if (groups == 1) {
#pragma unroll
    for (int k = 0; k < kAll; ++k) {
      float *const out = a.partial + (k * a.parts + blockIdx.x) * a.cols;
      char *const to = span.template at<F32>(out, 0, 0);
#pragma unroll
      for (int v = 0; v < V; ++v) span.put(to, v, from_float<F32>(sums[k][v]), false);
    }
    return;
  }
  float *const shared = reinterpret_cast<float *>(stages);
  const int floats = static_cast<int>(Weights<V>::floats(args.layout.group));
  __syncwarp();  // After the stores at the edges of skewed rows, where a warp parts.
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kAll; ++k) {
    const Weights<V> mine(shared + floats * (groups * k + group.index), group.thread);
#pragma unroll
    for (int v = 0; v < V; ++v) mine.set(v, sums[k][v]);
  }
  __syncthreads();
  for (int i = threadIdx.x * 4; i < kAll * floats; i += blockDim.x * 4) {
    const int k = kSums ? i / floats : i < floats ? 0 : 1, place = i - k * floats;
    const float *const from = shared + k * groups * floats + place;
    float4 sum = *reinterpret_cast<const float4 *>(from);
    for (int g = 1; g < groups; ++g) {
      const float4 more = *reinterpret_cast<const float4 *>(from + g * floats);
      sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    float *const out = a.partial + (k * a.parts + blockIdx.x) * a.cols;
    const int col = Weights<V>::position(place) - span.begin;
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

// Rows of any length, and x and dz of any dtypes: dx, reading each row twice.
template <bool kLayer, bool kVectorised, int kThreads>
__global__ void __launch_bounds__(kThreads) dx_kernel(const __grid_constant__ BackwardArgs args) {
  constexpr int kCount = kLayer ? 2 : 1;
  __shared__ float memory[2][kMostWarps][kCount];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
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

// Rows of any length: the sums over rows blockIdx.y, blockIdx.y + gridDim.y, ... of the columns of
// the block.
template <bool kLayer, bool kVectorised, int kThreads>
__global__ void __launch_bounds__(kThreads) sums_kernel(const __grid_constant__ BackwardArgs args) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
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

// Sums of the columns of `add` and dx, over the same rows, for what no instance of backward_kernel
// adds up.
template <bool kVectorised, int kThreads>
__global__ void __launch_bounds__(kThreads)
    more_sums_kernel(const __grid_constant__ BackwardArgs args) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXNormBackwardArgs &a = args.norm;
  const Columns<kVectorised> c(args.layout, threadIdx.x);
  const int v = blockIdx.x, before = a.norm == LayerNorm ? 2 : 1;
  float sums[2][kVec] = {};
#pragma unroll 4
  for (size_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    float add[kVec] = {}, dx[kVec];
    if (a.add != nullptr) c.load_floats(a.add, a.gamma.dtype, row * a.cols, v, add);
    c.load_floats(a.dx, a.x_dtype, row * a.cols, v, dx);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      sums[0][i] += add[i];
      sums[1][i] += dx[i];
    }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    c.store(a.partial, ((before + k) * a.parts + blockIdx.y) * a.cols, v, from_float<F32>(sums[k]));
  }
}

constexpr int kTotalThreads = 1024;

// dgamma, then dbeta, then the sums of `add` and dx, by blockIdx.y: 32 columns of a block, by 32
// warps that take every 32nd part. A batch of loads has the parts of 160 blocks: with few rows the
// time of a second one counts.
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const __grid_constant__ BackwardArgs args, size_t parts) {
  constexpr int kWarps = kTotalThreads / 32;
  __shared__ float sums[kWarps][32];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXNormBackwardArgs &a = args.norm;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int before = a.norm == LayerNorm ? 2 : 1, which = static_cast<int>(blockIdx.y);
  void *const to = which == 0        ? a.dgamma
                   : which < before  ? a.dbeta
                   : which == before ? a.add_sums
                                     : a.dx_sums;
  if (to == nullptr) return;
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

NVTEXOutcome launch_more_sums(BackwardArgs &args, unsigned parts, cudaStream_t stream) {
  constexpr int kSumThreads = 128;
  const NVTEXNormBackwardArgs &a = args.norm;
  args.layout.set_group(kSumThreads);
  const dim3 blocks(static_cast<unsigned>(ceil_div(a.cols, kSumThreads * kVec)), parts);
  const bool vectorised = a.cols % kVec == 0 && aligned(a.add, 16) && aligned(a.dx, 16);
  return vectorised
             ? launch(more_sums_kernel<true, kSumThreads>, blocks, kSumThreads, stream, args)
             : launch(more_sums_kernel<false, kSumThreads>, blocks, kSumThreads, stream, args);
}

// Vectors of a thread. LayerNorm: a warp for a row, or from two on; RMSNorm: from one on. H200,
// bf16, us by V from 1 on, LayerNorm 768 columns 24.3, 25.1, 23.9; 1536 41.8, 41.3, 42.4; 4096 103,
// 101, 112, 112; 5120 143, 134, 134, 134; 7168 179, 174, 174, 174; 4099 150, 152, 105; RMSNorm
// 768 23.5, 24.4, 23.8; 4096 99, 108, 108, 109; 5120 127, 136, 135, 134; 7168 170, 174, 181; 12288
// by V = 2: 315, 3: 312; 4099 133, 108, 105. By three stages of rows instead of two up to 3 %
// slower, with bulk copies (4096 columns) LayerNorm 103, RMSNorm 107.
template <bool kLayer, bool kSkewed, int V = 1>
int backward_vectors(const Device &device, NVTEDType dtype, size_t width) {
  if (kLayer && width <= 3 * kRun) return static_cast<int>(ceil_div(width, kRun));
  if constexpr (V < 4) {
    const int threads = threads_on(device, backward_threads<kLayer, kSkewed, V, false>(dtype));
    const int group = group_of(width, V);
    const bool idle =
        kSkewed && group <= threads && 4 * group * groups_of(group, threads) < 3 * threads;
    const bool slow = V == (kLayer ? 1 : 2);
    if (group > threads || idle || slow) {
      return backward_vectors<kLayer, kSkewed, V + 1>(device, dtype, width);
    }
  }
  return V;
}

template <class T, bool kLayer, bool kSkewed, int V, bool kSums>
NVTEXOutcome launch_instance(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  constexpr int kEvery = Span<kSkewed, V>::kEvery;
  const NVTEXNormBackwardArgs &a = args.norm;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const int threads = threads_on(device, backward_threads<kLayer, kSkewed, V, kSums>(a.x_dtype));
  const int group = group_of(a.cols + kEvery - 1, V);
  const int groups = balanced(groups_of(group, threads), a.rows, a.sm_count);
  const size_t weights = Weights<V>::floats(group) * sizeof(float);
  const size_t stage = size_t(group) * groups * 2 * V * kVec * bytes_of<T>(a.x_dtype);
  constexpr int kAll = (kLayer ? 2 : 1) + (kSums ? 2 : 0);
  const size_t sums = Weights<V>::floats(group) * groups * kAll * sizeof(float);
  const size_t room = shared_room(device);
  size_t most = a.sm_count;
  if (most > a.parts) most = a.parts;
  // RMSNorm of 4096 columns, from run to run: 3790 to 3950 GB/s with one stage, 3660 to 4080 with
  // two.
  const bool short_of_room = 2 * stage + weights > room;
  args.stages = short_of_room || (!kLayer && V == 1 && group >= 512) ? 1 : 2;
  const size_t loop = args.stages * stage + weights, shared = loop > sums ? loop : sums;
  if (a.rows > INT_MAX || group > threads || shared > room || most < kEvery) {
    return launch_backward_twice<kLayer, !kSkewed>(args, blocks, stream);
  }
  args.layout.set_group(group);
  args.layout.groups = groups;
  *blocks = blocks_for(a.rows, groups, most, kEvery);
  args.step = size_t{*blocks} * groups;
  args.turns = static_cast<int>(ceil_div(a.rows, args.step));
  args.apart = lie_apart(a.cols, bytes_of<T>(a.x_dtype));
  args.summed = kSums;
  return launch_shared(backward_kernel<T, kLayer, kSkewed, V, kSums>, dim3(*blocks), group * groups,
                       shared, stream, args);
}

template <class T, bool kLayer, bool kSkewed, int V>
NVTEXOutcome launch_backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  if constexpr (kHasSums<T, kSkewed, V>) {
    if (args.wants_sums()) {
      return launch_instance<T, kLayer, kSkewed, V, true>(args, blocks, stream);
    }
  }
  return launch_instance<T, kLayer, kSkewed, V, false>(args, blocks, stream);
}

template <class T, bool kLayer, bool kSkewed>
NVTEXOutcome backward(BackwardArgs &args, unsigned *blocks, cudaStream_t stream) {
  const NVTEXNormBackwardArgs &a = args.norm;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t width = a.cols + (kSkewed ? kVec - 1 : 0);
  switch (backward_vectors<kLayer, kSkewed>(device, a.x_dtype, width)) {
    case 1:
      return launch_backward<T, kLayer, kSkewed, 1>(args, blocks, stream);
    case 2:
      if constexpr (kLayer) return launch_backward<T, kLayer, kSkewed, 2>(args, blocks, stream);
      [[fallthrough]];  // RMSNorm has no use for it.
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
  return dispatch_bf16_or_widened(a.x_dtype, [&](auto type) {
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
  b.by_cols = FloatDivisor(static_cast<float>(a.cols));
  const bool layer = a.norm == LayerNorm;
  unsigned parts = 0;
  if (a.rows > 0) {
    const NVTEXOutcome rows =
        layer ? backward<true>(b, &parts, stream) : backward<false>(b, &parts, stream);
    if (rows.status != NVTEX_BACKEND_OK) return rows;
  }
  unsigned sums = layer ? 2 : 1;
  if (b.wants_sums()) {
    sums += 2;
    if (parts > 0 && !b.summed) {
      const NVTEXOutcome more = launch_more_sums(b, parts, stream);
      if (more.status != NVTEX_BACKEND_OK) return more;
    }
  }
  const unsigned across = static_cast<unsigned>(ceil_div(a.cols, 32));
  return launch(total_kernel, dim3(across, sums), kTotalThreads, stream, b, size_t{parts});
}
