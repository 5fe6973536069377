// Functions of one or two inputs, gated or not, to any type, element by element; and the second
// step of the sums over rows.

#include "modes.cuh"
#include "function.cuh"
#include "common/group.cuh"
#include "common/reduce.cuh"
#include "common/stream.cuh"
#include "common/widened.cuh"

namespace nvte {
namespace {

constexpr int kThreads = 256;
constexpr int kVec = 8;

struct ElementsArgs {
  const void *input, *act_input;
  void *out;
  size_t rows, cols;  // Size of the output, or of half of it for a gated derivative.
  size_t vectors, per_row;
  const float *scale;
  float *amax, *rowwise_scale_inv, *colwise_scale_inv;
  Function function;
  // The row of vector j: (high word of j magic + j) >> shift.
  uint32_t magic, shift;
  bool e5m2;
  bool vec;         // Whether all vectors are aligned and whole.
  bool transposed;  // out is [cols, rows].
  NVTEDType input_dtype, output_dtype;
};

// Scales, casts and accumulates the maximum of what a thread makes. An `Out` of FP8 is that format
// or the other one, as the output's dtype says.
template <class Out>
struct Caster {
  const ElementsArgs &a;
  float scale;
  int seen;
  AbsMax<F32> amax;

  __device__ __forceinline__ explicit Caster(const ElementsArgs &a)
      : a(a),
        scale(to_fp8() && a.scale != nullptr ? *a.scale : 1.0f),
        seen(a.amax != nullptr && threadIdx.x == 0 ? __ldcg(reinterpret_cast<int *>(a.amax)) : 0) {}

  __device__ __forceinline__ bool to_fp8() const {
    return kIsWidened<Out> ? a.output_dtype >= kNVTEFloat8E4M3 : kIsFp8<Out>;
  }

  // Elements from `count` on are not of the matrix. Widened ones still need to be narrowed().
  template <int N>
  __device__ __forceinline__ Vec<Out, N> cast(float (&v)[N], int count = N) {
    if (a.amax != nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const uint32_t bits = __float_as_uint(v[i]);
        if (i < count) amax.packed = max_packed<F32>(amax.packed, magnitudes<F32>(bits));
      }
    }
    if (to_fp8()) {
      // The product of a NaN is the positive NaN, so that every NaN becomes 0x7F.
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = __fmul_rn(v[i], scale);
    }
    if constexpr (kIsFp8<Out>) {
      if (a.e5m2) {
        const Vec<E5M2, N> other = from_float<E5M2>(v);
        Vec<Out, N> y;
#pragma unroll
        for (int i = 0; i < Vec<Out, N>::kWords; ++i) y.w[i] = other.w[i];
        return y;
      }
    }
    return from_float<Out>(v);
  }

  // Called by all threads of the block.
  template <int kThreads>
  __device__ __forceinline__ void finish() {
    if (a.amax != nullptr) {
      __shared__ BlockMax<kThreads> block;
      block.put(amax.bits());
      __syncthreads();
      if (threadIdx.x < 32) {
        const int bits = block.get();
        if (threadIdx.x == 0 && bits > seen) atomicMax(reinterpret_cast<int *>(a.amax), bits);
      }
    }
    if (to_fp8() && blockIdx.x == 0 && threadIdx.x == 0) {
      const float inverse = __frcp_rn(scale);
      if (a.rowwise_scale_inv != nullptr) *a.rowwise_scale_inv = inverse;
      if (a.colwise_scale_inv != nullptr) *a.colwise_scale_inv = inverse;
    }
  }
};

// Where a vector lies in a matrix of single width, and in one with two halves.
struct At {
  size_t once, twice;
};

template <class In, NVTEXForm kForm, int N, class Load>
__device__ __forceinline__ void load_inputs(const ElementsArgs &a, const At &at,
                                            Vec<In, N> (&x)[kInputsOf<kForm>], const Load &load) {
  constexpr int kInputs = kInputsOf<kForm>;
  x[0] = load(a.input, kForm == NVTEX_FORM_GATED ? at.twice : at.once);
  if constexpr (kForm == NVTEX_FORM_GATED) {
    x[1] = load(a.input, at.twice + a.cols);
  } else if constexpr (kInputs > 1) {
    x[1] = load(a.act_input, kHalvesOf<kForm> == 2 ? at.twice : at.once);
  }
  if constexpr (kInputs > 2) x[2] = load(a.act_input, at.twice + a.cols);
}

// Elements of a thread side by side, how often, turns of which the next one's loads are on their
// way, and blocks of a multiprocessor: the loads of some hide the arithmetic of others. H200, bf16
// 8192 x 8192, GB/s: gelu to bf16 4100 (2 turns 3800, 16 3790, without an end 3940; one turn,
// twice, 4 blocks 3820; from the table below 3730), dgelu 4320 (once, 4: 4100), swiglu 4340 (once,
// 5: 4110), to fp8 4020 (3: 3900), dswiglu 4300 (4: 3870), to fp8 3470 (4: 3420; 16 elements, 2:
// 3260).
template <class In, class Out, NVTEXForm kForm>
struct FastShape {
  static constexpr int kInputs = kInputsOf<kForm>;
  static constexpr bool kNarrow = In::kBytes == 2 && Out::kBytes == 1;
  static constexpr int kLength = kNarrow && kInputs < 3 ? 16 : 8;
  static constexpr bool kSame = In::kBytes == 2 && Out::kBytes > 1;
  static constexpr int kUnroll = kSame && kInputs == 2 ? 2 : 1;
  static constexpr int kTurns = kSame && kInputs == 1 ? 4 : 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  static constexpr int kBlocks = 2;
#else
  static constexpr int kBlocks = kInputs == 1   ? (kTurns > 1 ? 7 : 6)
                                 : kInputs == 2 ? (kUnroll == 2 ? 3 : 5)
                                                : 3;
#endif
};

// The functions that are used most, of aligned and whole vectors.
template <class In, class Out, NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads, (FastShape<In, Out, kForm>::kBlocks))
    fast_kernel(const __grid_constant__ ElementsArgs a) {
  using Shape = FastShape<In, Out, kForm>;
  constexpr int N = Shape::kLength, kUnroll = Shape::kUnroll, kHalves = kHalvesOf<kForm>;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  Caster<Out> caster(a);
  constexpr uint32_t kStep = kThreads * kUnroll;
  const auto vectors = static_cast<uint32_t>(a.vectors);
  struct Batch {
    Vec<In, N> x[kUnroll][kInputsOf<kForm>];
    At at[kUnroll];
  };
  const auto fetch = [&](uint32_t first, Batch &batch) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t j = first + u * kThreads;
      const bool inside = j < vectors;
      At &at = batch.at[u];
      at.once = size_t{j} * N;
      if constexpr (kForm == NVTEX_FORM_GATED || kHalves == 2) {
        const uint32_t row = (__umulhi(j, a.magic) + j) >> a.shift;
        at.twice = at.once + row * a.cols;
      }
      load_inputs<In, kForm>(a, at, batch.x[u], [&](const void *p, size_t i) {
        return load_as<In, N>(a.input_dtype, p, i, inside);
      });
    }
  };
  uint32_t first = blockIdx.x * (kStep * Shape::kTurns) + threadIdx.x;
  Batch now;
  fetch(first, now);
#pragma unroll 1
  for (int left = Shape::kTurns; left > 0; --left) {
    [[maybe_unused]] Batch next;
    if constexpr (Shape::kTurns > 1) {
      if (left > 1) fetch(first + kStep, next);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool inside = first + u * kThreads < vectors;
      const At &at = now.at[u];
      float v[kHalves][N];
      apply_each<kForm>(a.function.linear, now.x[u], v);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const Vec<Out, N> y = caster.cast(v[h]);
        const size_t to = (kHalves == 2 ? at.twice : at.once) + h * a.cols;
        if (inside) store_as<true>(a.output_dtype, a.out, to, y);
      }
    }
    first += kStep;
    if constexpr (Shape::kTurns > 1) now = next;
  }
  caster.template finish<kThreads>();
}

// bfloat16 has so few values that the sigmoids of those where it varies fit into shared memory:
// those from 2^-25 to 2^7, of either sign. Beyond, it is that of the ends.
constexpr int kTableThreads = 1024, kTableSize = 4096;
constexpr uint32_t kTableFirst = (127 - 25) << 7;

// The cast to FP8 with a table of the function, because the polynomial takes longer than the
// memory. H200, gelu of bf16 8192 x 8192: 4070 GB/s (fast_kernel: 3150).
__global__ void __launch_bounds__(kTableThreads, 1)
    table_kernel(const __grid_constant__ ElementsArgs a) {
  constexpr int N = 16;
  __shared__ float table[2 * kTableSize];
  const SigmoidLinear &f = a.function.linear;
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < 2 * kTableSize; i += kTableThreads) {
    const uint32_t bits = (i % kTableSize + kTableFirst) << 16 | i / kTableSize << 31;
    float near;
    table[i] = f.sigmoid(__uint_as_float(bits), near);
  }
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  Caster<E4M3> caster(a);
  const size_t step = size_t{gridDim.x} * kTableThreads;
  size_t j = size_t{blockIdx.x} * kTableThreads + threadIdx.x;
  Vec<BF16, N> next = load<BF16, N>(a.input, j * N, j < a.vectors);
  __syncthreads();
  const auto entry = [&](uint32_t place) {
    return *reinterpret_cast<const float *>(reinterpret_cast<const char *>(table) + place);
  };
  for (; j < a.vectors; j += step) {
    const Vec<BF16, N> x = next;
    next = load<BF16, N>(a.input, (j + step) * N, j + step < a.vectors);
    float v[N];
    to_float(x, v);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      // Magnitudes that begin with the first one and end with the last, then the signs.
      constexpr uint32_t kFirst = (0x10000 - kTableFirst) * 0x10001;
      constexpr uint32_t kLast = (kTableSize - 1) * 0x10001, kSign = kTableSize * 0x10001;
      const uint32_t w = x.w[i];
      const uint32_t places =
          (__viaddmin_s16x2_relu(w & 0x7fff7fff, kFirst, kLast) | (w >> 3 & kSign)) * 4;
      v[2 * i] = __fmul_rn(at_least(v[2 * i], -f.far), entry(places & 0xffff));
      v[2 * i + 1] = __fmul_rn(at_least(v[2 * i + 1], -f.far), entry(places >> 16));
    }
    store(a.out, j * N, caster.cast(v));
  }
  caster.finish<kTableThreads>();
}

// Blocks of a multiprocessor, as many as the registers allow.
template <class In, NVTEXForm kForm>
constexpr int general_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  return 2;
#else
  constexpr int kInputs = kInputsOf<kForm>;
  if (kIsWidened<In>) return kInputs == 3 ? 2 : 4;
  return kInputs == 1 ? 6 : kInputs == 2 ? 5 : 4;
#endif
}

// Stores a vector of kVec columns, of which `count` are of the matrix, that is element `at` of the
// output if this is not transposed.
template <class Out>
__device__ __forceinline__ void store_anywhere(const ElementsArgs &a, size_t at, size_t row,
                                               size_t col, int count, const Vec<Out, kVec> &y) {
  if (a.vec) {
    store(a.out, at, y);
  } else if (!a.transposed) {
    store_some(a.out, at, count, y);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      constexpr int kPer = Vec<Out, kVec>::kPerWord;
      const Vec<Out, 1> one = {{y.w[i / kPer] >> (i % kPer * 8 * Out::kBytes)}};
      if (i < count) store(a.out, (col + i) * a.rows + row, one);
    }
  }
}

// The kernel for every function, at any alignment.
template <class In, class Out, NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads, (general_blocks<In, kForm>()))
    elements_kernel(const __grid_constant__ ElementsArgs a) {
  constexpr int kHalves = kHalvesOf<kForm>;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  Caster<Out> caster(a);
  for (size_t j = size_t{blockIdx.x} * kThreads + threadIdx.x; j < a.vectors;
       j += size_t{gridDim.x} * kThreads) {
    const size_t row = a.rows == 1 ? 0 : j / a.per_row, col = (j - row * a.per_row) * kVec;
    const int count = a.cols - col < kVec ? static_cast<int>(a.cols - col) : kVec;
    const At at = {row * a.cols + col, 2 * row * a.cols + col};
    Vec<In, kVec> x[kInputsOf<kForm>];
    load_inputs<In, kForm>(a, at, x, [&](const void *p, size_t i) {
      return a.vec ? load_as<In, kVec>(a.input_dtype, p, i, true)
                   : load_some_as<In, kVec>(a.input_dtype, p, i, count);
    });
    float v[kHalves][kVec];
    apply<kForm>(a.function, x, v);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const size_t to = (kHalves == 2 ? at.twice : at.once) + h * a.cols;
      narrowed<true>(a.output_dtype, caster.cast(v[h], count), [&](const auto &y) {
        store_anywhere(a, to, row, h * a.cols + col, count, y);
      });
    }
  }
  caster.template finish<kThreads>();
}

// Sets the divisor that gives the row of a vector, for less than 2^31 vectors; it is right for any
// quotient of 31 bits.
void set_divisor(ElementsArgs &a) {
  const auto d = static_cast<uint32_t>(a.per_row);
  while ((uint64_t{1} << a.shift) < d) ++a.shift;
  a.magic = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << a.shift) - d)) / d + 1);
}

template <class In, class Out, NVTEXForm kForm>
NVTEXOutcome launch_elements(const NVTEXCast &q, cudaStream_t stream) {
  constexpr int kHalves = kHalvesOf<kForm>;
  ElementsArgs a = {q.input,
                    q.fusion.act_input,
                    q.rowwise,
                    q.rows,
                    q.cols / kHalves,
                    0,
                    0,
                    q.scale,
                    q.amax,
                    static_cast<float *>(q.rowwise_scale_inv),
                    static_cast<float *>(q.colwise_scale_inv),
                    Function(q.fusion),
                    0,
                    0,
                    q.output_dtype == kNVTEFloat8E5M2,
                    false,
                    false,
                    q.input_dtype,
                    q.output_dtype};
  if (q.rowwise == nullptr) {
    a.out = q.colwise;
    a.transposed = true;
  } else if (kForm == NVTEX_FORM_ACTIVATION || kForm == NVTEX_FORM_DERIVATIVE) {
    a.cols *= a.rows;
    a.rows = 1;
  }
  using Shape = FastShape<In, Out, kForm>;
  const auto whole = [&](int length) {
    const bool fp8 = q.output_dtype >= kNVTEFloat8E4M3;
    const int bytes = length * (fp8 ? 1 : bytes_of<Widened>(q.output_dtype));
    return !a.transposed && a.cols % length == 0 && aligned(a.input, 16) &&
           aligned(a.act_input, 16) && aligned(a.out, bytes < 16 ? bytes : 16);
  };
  const auto divide = [&](int length) {
    a.per_row = ceil_div(a.cols, length);
    a.vectors = a.rows * a.per_row;
  };
  divide(Shape::kLength);
  if (a.function.is_linear() && whole(Shape::kLength) && a.vectors >> 31 == 0) {
    if constexpr (std::is_same_v<In, BF16> && kForm == NVTEX_FORM_ACTIVATION && kIsFp8<Out>) {
      // With fewer vectors the table does not pay.
      if (a.vectors >= size_t{1} << 18) {
        Device device;
        if (const cudaError_t error = current_device(&device)) return outcome(error);
        return launch(table_kernel, dim3(static_cast<unsigned>(device.sm_count)), kTableThreads,
                      stream, a);
      }
    }
    set_divisor(a);
    const size_t blocks = ceil_div(a.vectors, kThreads * Shape::kUnroll * Shape::kTurns);
    return launch(fast_kernel<In, Out, kForm>, dim3(static_cast<unsigned>(blocks)), kThreads,
                  stream, a);
  }
  divide(kVec);
  a.vec = whole(kVec);
  size_t blocks = ceil_div(a.vectors, kThreads);
  if (blocks > kMaxBlocks) blocks = kMaxBlocks;
  return launch(elements_kernel<In, Out, kForm>, dim3(static_cast<unsigned>(blocks)), kThreads,
                stream, a);
}

// Stores an element of the dtype that In stands for.
template <class In>
__device__ __forceinline__ void store_one(NVTEDType dtype, void *to, size_t at, float value) {
  store_as(dtype, to, at, from_float<In>({value}));
}

// Rows of a tile, as tiles_of has them; of a group, whose sums are added up one after the other;
// and of a lot, which is added up first.
constexpr int kTileRows = 128, kGroupRows = 8, kLotRows = 4;
constexpr int kFewRows = 16;
constexpr int kTileWarps = kThreads / 32, kWarpGroups = kTileRows / kGroupRows / kTileWarps;

// The sums of columns of a tile, added up as the tile kernels do: a vector of columns for each
// lane, 16 rows for each warp. With a derivative v also goes to `out`, in the input's type. The
// sums of a single tile are those of the matrix, and go to `dbias`.
template <class In>
constexpr int kColumnsOf = 16 / In::kBytes;
template <class In, NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads, (kForm == NVTEX_FORM_PLAIN ? 4
                                             : kIsWidened<In>          ? 2
                                                                       : 3))
    columns_kernel(const void *input, const void *act_input, void *out, float *partial, void *dbias,
                   size_t rows, size_t per_row, unsigned blocks_per_row,
                   const __grid_constant__ Function function, NVTEDType dtype) {
  constexpr int N = kColumnsOf<In>, kInputs = kInputsOf<kForm>, kColumns = 32 * N;
  __shared__ alignas(16) float sums[kTileRows / kGroupRows][kColumns];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t tile = blockIdx.x / blocks_per_row, first = tile * kTileRows, cols = per_row * N;
  const size_t vector = size_t{blockIdx.x % blocks_per_row} * 32 + lane;
  const size_t last = vector < per_row ? rows : 0;
#pragma unroll 1
  for (int g = 0; g < kWarpGroups; ++g) {
    const int group = g * kTileWarps + warp;
    float total[N] = {};
    // Of few rows most warps have none.
    if (first + static_cast<size_t>(group) * kGroupRows < rows) {
#pragma unroll
      for (int lot = 0; lot < kGroupRows / kLotRows; ++lot) {
        const size_t row0 = first + group * kGroupRows + lot * kLotRows;
        Vec<In, N> x[kLotRows][kInputs];
#pragma unroll
        for (int r = 0; r < kLotRows; ++r) {
          const size_t at = (row0 + r) * cols + vector * N;
          x[r][0] = load_as<In, N>(dtype, input, at, row0 + r < last);
          if constexpr (kInputs > 1) {
            x[r][1] = load_as<In, N>(dtype, act_input, at, row0 + r < last);
          }
        }
        float four[N];
#pragma unroll
        for (int r = 0; r < kLotRows; ++r) {
          float v[1][N];
          if constexpr (kForm == NVTEX_FORM_PLAIN) {
            to_float(x[r][0], v[0]);
          } else {
            apply_each<kForm>(function.linear, x[r], v);
            const size_t at = (row0 + r) * cols + vector * N;
            if (row0 + r < last) {
              store_as(dtype, out, at, from_float<In>(v[0]));
            }
          }
#pragma unroll
          for (int i = 0; i < N; ++i) {
            const float term = row0 + r < last ? v[0][i] : 0.0f;
            four[i] = r == 0 ? term : __fadd_rn(four[i], term);
          }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) total[i] = lot == 0 ? four[i] : __fadd_rn(total[i], four[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float4 *>(&sums[group][lane * N + i]) =
          make_float4(total[i], total[i + 1], total[i + 2], total[i + 3]);
    }
  }
  __syncthreads();
  const size_t col = size_t{blockIdx.x % blocks_per_row} * kColumns + threadIdx.x;
  if (threadIdx.x >= kColumns || col >= cols) return;
  float sum = sums[0][threadIdx.x];
#pragma unroll
  for (int g = 1; g < kTileRows / kGroupRows; ++g) sum = __fadd_rn(sum, sums[g][threadIdx.x]);
  if (rows <= kTileRows) {
    store_one<In>(dtype, dbias, col, sum);
  } else {
    partial[tile * cols + col] = sum;
  }
}

// The same of at most kFewRows: all warps have rows, whose values are added up in the same order.
template <class In, NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads)
    columns_of_few_rows_kernel(const void *input, const void *act_input, void *out, void *dbias,
                               int rows, size_t per_row, const __grid_constant__ Function function,
                               NVTEDType dtype) {
  constexpr int N = kColumnsOf<In>, kInputs = kInputsOf<kForm>, kColumns = 32 * N;
  __shared__ alignas(16) float values[kFewRows][kColumns];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % 32;
  const size_t cols = per_row * N, vector = size_t{blockIdx.x} * 32 + lane;
  for (int row = threadIdx.x / 32; row < kFewRows; row += kTileWarps) {
    const size_t at = static_cast<size_t>(row) * cols + vector * N;
    float v[1][N] = {};
    if (row < rows && vector < per_row) {
      Vec<In, N> x[kInputs];
      x[0] = load_as<In, N>(dtype, input, at, true);
      if constexpr (kInputs > 1) x[1] = load_as<In, N>(dtype, act_input, at, true);
      if constexpr (kForm == NVTEX_FORM_PLAIN) {
        to_float(x[0], v[0]);
      } else {
        apply_each<kForm>(function.linear, x, v);
        store_as(dtype, out, at, from_float<In>(v[0]));
      }
    }
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float4 *>(&values[row][lane * N + i]) =
          make_float4(v[0][i], v[0][i + 1], v[0][i + 2], v[0][i + 3]);
    }
  }
  __syncthreads();
  const size_t col = size_t{blockIdx.x} * kColumns + threadIdx.x;
  if (threadIdx.x >= kColumns || col >= cols) return;
  float sum = 0.0f;
#pragma unroll
  for (int group = 0; group < kFewRows; group += kGroupRows) {
    float total = 0.0f;
#pragma unroll
    for (int lot = 0; lot < kGroupRows; lot += kLotRows) {
      float four = values[group + lot][threadIdx.x];
#pragma unroll
      for (int r = 1; r < kLotRows; ++r) {
        four = __fadd_rn(four, values[group + lot + r][threadIdx.x]);
      }
      total = lot == 0 ? four : __fadd_rn(total, four);
    }
    sum = group == 0 ? total : __fadd_rn(sum, total);
  }
  // As if the groups of all rows of a tile were there.
  store_one<In>(dtype, dbias, col, __fadd_rn(sum, 0.0f));
}

constexpr int kSumColumns = 32, kSums = 8;

// Adds up what the sums of a column have, the kSums of them, one after the other.
template <class In>
__device__ __forceinline__ void finish_sum(NVTEDType dtype, float sum, void *dbias, size_t at,
                                           bool inside) {
  __shared__ float sums[kSums][kSumColumns];
  const int lane = threadIdx.x % kSumColumns, first = threadIdx.x / kSumColumns;
  sums[first][lane] = sum;
  __syncthreads();
  if (first != 0 || !inside) return;
#pragma unroll
  for (int i = 1; i < kSums; ++i) sum = __fadd_rn(sum, sums[i][lane]);
  store_one<In>(dtype, dbias, at, sum);
}

// A block has 32 columns, of one member of a group.
template <class In>
__global__ void __launch_bounds__(kSumColumns *kSums)
    group_sum_kernel(const float *partial, void *dbias, size_t rows, size_t cols,
                     unsigned blocks_per_row, const __grid_constant__ NVTEXGroup group,
                     NVTEDType dtype) {
  // The other way round: what comes next begins by waiting for this short launch, which waits here.
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  Member m;
  size_t before[1];
  find_member(
      group, rows, cols, blockIdx.x / blocks_per_row, [](uint32_t, uint32_t) { return 1u; },
      [](uint32_t rows, uint32_t, int) { return size_t{tiles_of(rows)}; }, m, before);
  const size_t begin = row_tiles_begin(group, rows, m, before[0]);
  const int lane = threadIdx.x % kSumColumns, first = threadIdx.x / kSumColumns;
  const size_t col = size_t{blockIdx.x % blocks_per_row} * kSumColumns + lane;
  const size_t tiles = tiles_of(m.rows);
  float sum = 0.0f;
  if (col < cols) {
#pragma unroll 8
    for (size_t i = first; i < tiles; i += kSums) {
      sum = __fadd_rn(sum, partial[(begin + i) * cols + col]);
    }
  }
  finish_sum<In>(dtype, sum, dbias, m.index * cols + col, col < cols);
}

// The same of a lone matrix, in little code, whose instructions come from memory: it is short.
// H200, 8192 x 8192: the cast of plain elements and this one take 71.1 to 71.6 us, with that of
// groups 71.7, without any sum 69.4.
template <class In>
__global__ void __launch_bounds__(kSumColumns *kSums)
    sum_kernel(const float *partial, void *dbias, size_t tiles, size_t cols, NVTEDType dtype) {
  // The parts of 16384 rows are loaded together.
  constexpr int kBatch = 16;
  griddepcontrol_launch_dependents();
  const size_t col = size_t{blockIdx.x} * kSumColumns + threadIdx.x % kSumColumns;
  const size_t end = col < cols ? tiles : 0, step = kSums * cols;
  size_t i = threadIdx.x / kSumColumns;
  const float *from = partial + i * cols + col;
  griddepcontrol_wait();
  float sum = 0.0f;
#pragma unroll 1
  for (; i < end; i += kSums * kBatch, from += kBatch * step) {
    float x[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) x[j] = i + j * kSums < end ? __ldcg(from + j * step) : 0.0f;
    // Rows past the end add +0, which changes no sum that began with +0.
#pragma unroll
    for (int j = 0; j < kBatch; ++j) sum = __fadd_rn(sum, x[j]);
  }
  finish_sum<In>(dtype, sum, dbias, col, col < cols);
}

}  // namespace

// BF16 to itself and to FP8 are tuned, all other pairs share an instance.
NVTEXOutcome quantize_elements(const NVTEXCast &q, cudaStream_t stream) {
  const bool fp8 = q.output_dtype == kNVTEFloat8E4M3 || q.output_dtype == kNVTEFloat8E5M2;
  const bool bf16 = q.input_dtype == kNVTEBFloat16;
  return dispatch_form(q.fusion.form, [&](auto form) {
    constexpr NVTEXForm kForm = decltype(form)::value;
    if constexpr (kForm == NVTEX_FORM_PLAIN) {
      return unimplemented("no function to apply");
    } else {
      if (bf16 && fp8) return launch_elements<BF16, E4M3, kForm>(q, stream);
      if (bf16 && q.output_dtype == q.input_dtype) {
        return launch_elements<BF16, BF16, kForm>(q, stream);
      }
      return launch_elements<Widened, Widened, kForm>(q, stream);
    }
  });
}

// Whether `sum_columns` can do this: no output, or a derivative in the input's type.
bool sums_columns(const NVTEXCast &q) {
  if (q.mode != NVTE_DELAYED_TENSOR_SCALING) return false;
  const size_t length = q.input_dtype == kNVTEFloat32 ? 4 : 8;
  const bool derivative = q.fusion.form == NVTEX_FORM_DERIVATIVE;
  if (!derivative && q.fusion.form != NVTEX_FORM_PLAIN) return false;
  if (derivative ? q.rowwise == nullptr || q.output_dtype != q.input_dtype || q.amax != nullptr ||
                       !Function(q.fusion).is_linear()
                 : q.rowwise != nullptr) {
    return false;
  }
  const size_t blocks = ceil_div(q.cols / length, 32);
  return q.group.num_tensors == 0 && q.colwise == nullptr && q.noop == nullptr &&
         q.cols % length == 0 && aligned(q.input, 16) && aligned(q.rowwise, 16) &&
         aligned(q.fusion.act_input, 16) && blocks <= kMaxBlocks / tiles_of(q.rows);
}

NVTEXOutcome sum_columns(const NVTEXCast &q, cudaStream_t stream) {
  return dispatch_bf16_or_widened(q.input_dtype, [&](auto in) {
    using In = decltype(in);
    const size_t per_row = q.cols / kColumnsOf<In>;
    const auto blocks = static_cast<unsigned>(ceil_div(per_row, 32));
    if (q.rows <= kFewRows) {
      const auto run = [&](auto kernel) {
        return launch(kernel, dim3(blocks), kThreads, stream, q.input, q.fusion.act_input,
                      q.rowwise, q.fusion.dbias, static_cast<int>(q.rows), per_row,
                      Function(q.fusion), q.input_dtype);
      };
      return q.fusion.form == NVTEX_FORM_PLAIN
                 ? run(columns_of_few_rows_kernel<In, NVTEX_FORM_PLAIN>)
                 : run(columns_of_few_rows_kernel<In, NVTEX_FORM_DERIVATIVE>);
    }
    const auto run = [&](auto kernel) {
      return launch(kernel, dim3(static_cast<unsigned>(tiles_of(q.rows)) * blocks), kThreads,
                    stream, q.input, q.fusion.act_input, q.rowwise, q.fusion.workspace,
                    q.fusion.dbias, q.rows, per_row, blocks, Function(q.fusion), q.input_dtype);
    };
    return q.fusion.form == NVTEX_FORM_PLAIN ? run(columns_kernel<In, NVTEX_FORM_PLAIN>)
                                             : run(columns_kernel<In, NVTEX_FORM_DERIVATIVE>);
  });
}

NVTEXOutcome sum_dbias(const NVTEXCast &q, cudaStream_t stream) {
  const size_t members = q.group.num_tensors != 0 ? q.group.num_tensors : 1;
  const size_t per_row = ceil_div(q.cols, kSumColumns);
  if (per_row > kMaxBlocks / members) return unimplemented("dbias is too long");
  const dim3 blocks(static_cast<unsigned>(per_row * members));
  return dispatch_bf16_or_widened(q.input_dtype, [&](auto in) {
    using In = decltype(in);
    if (q.group.num_tensors == 0) {
      return launch(sum_kernel<In>, blocks, kSumColumns * kSums, stream, q.fusion.workspace,
                    q.fusion.dbias, tiles_of(q.rows), q.cols, q.input_dtype);
    }
    return launch(group_sum_kernel<In>, blocks, kSumColumns * kSums, stream, q.fusion.workspace,
                  q.fusion.dbias, q.rows, q.cols, static_cast<unsigned>(per_row), q.group,
                  q.input_dtype);
  });
}

}  // namespace nvte
