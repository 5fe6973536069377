// Forward pass of rows of any length, to outputs of any dtype, and of sums with a residual.

#include "forward.cuh"

namespace nvte {
namespace norm {
namespace {

// Threads of a block, at most. Single elements take more registers.
constexpr int forward_threads(bool vectorised) { return vectorised ? 1024 : 512; }

// The threads of a group share a row. The next row is on its way to shared memory meanwhile
// (kStaged); rows that are too long for that are read again from global memory.
template <class In, bool kLayer, bool kVectorised, bool kStaged>
__global__ void __launch_bounds__(forward_threads(kVectorised), 1)
    forward_kernel(const __grid_constant__ ForwardArgs args) {
  constexpr int kCount = kLayer ? 3 : 1;
  extern __shared__ uint4 stages[];
  __shared__ float memory[2][kMostWarps][kCount];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXNormForwardArgs &a = args.norm;
  Group<kCount> group(args.layout, memory);
  const Columns<kVectorised> c(args.layout, group.thread);
  const size_t cols = a.cast.cols;
  const int groups = blockDim.x / args.layout.group;
  const int vectors = (c.cols + c.span - 1) / c.span;
  // Whether this is LayerNorm: of single elements one instance has both norms.
  const bool layer = kLayer && (kVectorised || a.norm == LayerNorm);
  const float n = layer ? warp_sum(c.elements(0, vectors)) : 0.0f;
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
      for (int v = 0; v < vectors && layer; ++v) {
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
        if (!layer || c.has(v, i)) m[0] += apart * apart;
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
      if (layer) a.mu[row] = mu;
      a.rsigma[row] = rsigma;
    }

    if (a.cast.rowwise != nullptr) {
      for (int v = 0; v < vectors; ++v) {
        float f[kVec], g[kVec], b[kVec];
        load_gamma(c, a.gamma, v, g);
        if (layer) c.load_floats(a.beta, a.gamma.dtype, 0, v, b);
        get(v, f);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float y = rsigma * (f[i] - mu);
          f[i] = layer ? g[i] * y + b[i] : g[i] * y;
        }
        output.template put<Widened, true>(
            row, c.column(v), f, [&](const auto &z) { c.store(a.cast.rowwise, at, v, z); });
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
  const size_t row = size_t(group) * t.vectors * kVec * input_bytes(args);
  const size_t stage = (args.norm.residual != nullptr ? 2 : 1) * groups * row;
  size_t blocks = ceil_div(args.rows, size_t(groups));
  const size_t most = size_t(args.norm.sm_count) * t.blocks;
  if (blocks > most) blocks = most;
  if (blocks == 0) blocks = 1;  // A block is needed for scale_inv.
  return launch_shared(forward_kernel<In, kLayer, kVectorised, kStaged>,
                       dim3(static_cast<unsigned>(blocks)), group * groups,
                       kStaged ? t.stages * stage : 0, stream, args);
}

// The tuning for rows that registers do not hold.
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
NVTEXOutcome choose_staged(ForwardArgs &args, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const size_t room = shared_room(device);
  const size_t bytes = (args.norm.residual != nullptr ? 2 : 1) * input_bytes(args);
  const Tuning t = forward_tuning(args, bytes, forward_threads(kVectorised), room);
  return t.stages > 0 ? launch_forward<In, kLayer, kVectorised, true>(args, t, stream)
                      : launch_forward<In, kLayer, kVectorised, false>(args, t, stream);
}

}  // namespace

NVTEXOutcome forward_any_length(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  // Single elements are rare enough for one instance of all dtypes.
  if (!vectorised) return choose_staged<Widened, true, false>(args, stream);
  return dispatch_bf16_or_widened(args.norm.cast.input_dtype, [&](auto in) {
    using In = decltype(in);
    return args.norm.norm == LayerNorm ? choose_staged<In, true, true>(args, stream)
                                       : choose_staged<In, false, true>(args, stream);
  });
}

}  // namespace norm
}  // namespace nvte
