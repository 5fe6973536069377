// Functions of one or two inputs, gated or not, to any type, element by element; and the second
// step of the sums over rows.

#include "common/cast_block.cuh"
#include "common/function.cuh"
#include "common/group.cuh"
#include "common/reduce.cuh"
#include "common/stream.cuh"

namespace nvte {
namespace {

constexpr int kThreads = 256;
constexpr int kVec = 8;  // Elements of a thread.

// Blocks of a multiprocessor, as many as the registers allow: the loads of some hide the
// arithmetic of others.
template <class In, NVTEXForm kForm>
constexpr int blocks_of() {
  constexpr int kInputs = kInputsOf<kForm>;
  const int blocks = kInputs == 1 ? 6 : kInputs == 2 ? 5 : 4;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  return 2;
#else
  return In::kBytes == 2 ? blocks : blocks - 1;
#endif
}

struct ElementsArgs {
  const void *input, *act_input;
  void *out;
  size_t rows, cols;  // Of the output; of half of it for a gated derivative.
  size_t vectors, per_row;
  const float *scale;
  float *amax, *rowwise_scale_inv, *colwise_scale_inv;
  Function function;
  bool e5m2;
  bool vec;         // Whether all vectors are aligned and whole.
  bool transposed;  // out is [cols, rows].
};

template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_vector(const void *in, size_t at, bool vectorised,
                                                 int count) {
  return vectorised ? load<T, N>(in, at, true) : load_some<T, N>(in, at, count);
}

// FP8 outputs are E4M3 or E5M2.
template <class In, class Out, NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads, (blocks_of<In, kForm>()))
    elements_kernel(const __grid_constant__ ElementsArgs a) {
  constexpr int kInputs = kInputsOf<kForm>, kHalves = kHalvesOf<kForm>;
  wait_for_stream();
  let_next_start();
  const float scale = kIsFp8<Out> && a.scale != nullptr ? *a.scale : 1.0f;
  const int seen =
      a.amax != nullptr && threadIdx.x == 0 ? __ldcg(reinterpret_cast<int *>(a.amax)) : 0;
  AbsMax<F32> amax;

  for (size_t j = size_t{blockIdx.x} * kThreads + threadIdx.x; j < a.vectors;
       j += size_t{gridDim.x} * kThreads) {
    size_t row = 0, col = j * kVec;
    if (a.per_row != a.vectors) {
      if (a.vectors >> 32 == 0) {
        row = static_cast<unsigned>(j) / static_cast<unsigned>(a.per_row);
      } else {
        row = j / a.per_row;
      }
      col = (j - row * a.per_row) * kVec;
    }
    const int count = a.cols - col < kVec ? static_cast<int>(a.cols - col) : kVec;
    const size_t at = row * a.cols + col, twice = at + row * a.cols;
    Vec<In, kVec> x[kInputs];
    x[0] = load_vector<In, kVec>(a.input, kForm == NVTEX_FORM_GATED ? twice : at, a.vec, count);
    if constexpr (kForm == NVTEX_FORM_GATED) {
      x[1] = load_vector<In, kVec>(a.input, twice + a.cols, a.vec, count);
    } else if constexpr (kInputs > 1) {
      x[1] = load_vector<In, kVec>(a.act_input, kHalves == 2 ? twice : at, a.vec, count);
    }
    if constexpr (kInputs > 2) {
      x[2] = load_vector<In, kVec>(a.act_input, twice + a.cols, a.vec, count);
    }
    float v[kHalves][kVec];
    apply<kForm>(a.function, x, v);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (a.amax != nullptr) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const uint32_t bits = __float_as_uint(v[h][i]);
          if (a.vec || i < count) {
            amax.packed = max_packed<F32>(amax.packed, magnitudes<F32>(bits));
          }
        }
      }
      Vec<Out, kVec> y;
      if constexpr (kIsFp8<Out>) {
        // The product of a NaN is the positive NaN, so that every NaN becomes 0x7F.
#pragma unroll
        for (int i = 0; i < kVec; ++i) v[h][i] = __fmul_rn(v[h][i], scale);
        if (a.e5m2) {
          const Vec<E5M2, kVec> other = from_float<E5M2>(v[h]);
#pragma unroll
          for (int i = 0; i < Vec<Out, kVec>::kWords; ++i) y.w[i] = other.w[i];
        } else {
          y = from_float<E4M3>(v[h]);
        }
      } else {
        y = from_float<Out>(v[h]);
      }
      const size_t to = (kHalves == 2 ? twice : at) + h * a.cols;
      if (a.vec) {
        store(a.out, to, y);
      } else if (!a.transposed) {
        store_some(a.out, to, count, y);
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          constexpr int kPer = Vec<Out, kVec>::kPerWord;
          const Vec<Out, 1> one = {{y.w[i / kPer] >> (i % kPer * 8 * Out::kBytes)}};
          if (i < count) store(a.out, (h * a.cols + col + i) * a.rows + row, one);
        }
      }
    }
  }
  if (a.amax != nullptr) {
    __shared__ BlockMax<kThreads> block;
    block.put(amax.bits());
    __syncthreads();
    if (threadIdx.x < 32) {
      const int bits = block.get();
      if (threadIdx.x == 0 && bits > seen) atomicMax(reinterpret_cast<int *>(a.amax), bits);
    }
  }
  if (kIsFp8<Out> && blockIdx.x == 0 && threadIdx.x == 0) {
    const float inverse = __frcp_rn(scale);
    if (a.rowwise_scale_inv != nullptr) *a.rowwise_scale_inv = inverse;
    if (a.colwise_scale_inv != nullptr) *a.colwise_scale_inv = inverse;
  }
}

template <class In, class Out, NVTEXForm kForm>
NVTEXOutcome launch_elements(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  ElementsArgs a = {q.input,
                    q.fusion.act_input,
                    q.rowwise,
                    q.rows,
                    q.cols / kHalvesOf<kForm>,
                    0,
                    0,
                    q.scale,
                    q.amax,
                    static_cast<float *>(q.rowwise_scale_inv),
                    static_cast<float *>(q.colwise_scale_inv),
                    Function(q.fusion),
                    q.output_dtype == kNVTEFloat8E5M2,
                    false,
                    false};
  if (q.rowwise == nullptr) {
    a.out = q.colwise;
    a.transposed = true;
  } else if (kForm == NVTEX_FORM_ACTIVATION || kForm == NVTEX_FORM_DERIVATIVE) {
    a.cols *= a.rows;
    a.rows = 1;
  }
  a.per_row = ceil_div(a.cols, kVec);
  a.vectors = a.rows * a.per_row;
  a.vec = !a.transposed && a.cols % kVec == 0 && aligned(a.input, 16) && aligned(a.act_input, 16) &&
          aligned(a.out, kVec * Out::kBytes < 16 ? kVec * Out::kBytes : 16);
  size_t blocks = ceil_div(a.vectors, kThreads);
  if (blocks > kMaxBlocks) blocks = kMaxBlocks;
  return launch(elements_kernel<In, Out, kForm>, dim3(static_cast<unsigned>(blocks)), kThreads,
                stream, a);
}

constexpr int kSumColumns = 32, kSums = 8;

// A block has 32 columns of one member.
template <class In>
__global__ void __launch_bounds__(kSumColumns *kSums)
    sum_kernel(const float *partial, void *dbias, size_t rows, size_t cols, unsigned blocks_per_row,
               const __grid_constant__ NVTEXGroup group) {
  __shared__ float sums[kSums][kSumColumns];
  wait_for_stream();
  let_next_start();
  Member m = {};
  if (group.num_tensors != 0) {
    find_member(
        group, rows, cols, blockIdx.x / blocks_per_row, [](uint32_t, uint32_t) { return 1u; },
        [](uint32_t rows, uint32_t) { return size_t{tiles_of(rows)}; }, m);
    rows = m.rows;
  }
  const int lane = threadIdx.x % kSumColumns, first = threadIdx.x / kSumColumns;
  const size_t col = size_t{blockIdx.x % blocks_per_row} * kSumColumns + lane;
  const size_t tiles = tiles_of(rows);
  float sum = 0.0f;
  if (col < cols) {
#pragma unroll 8
    for (size_t i = first; i < tiles; i += kSums) {
      sum = __fadd_rn(sum, partial[(m.before + i) * cols + col]);
    }
  }
  sums[first][lane] = sum;
  __syncthreads();
  if (first != 0 || col >= cols) return;
#pragma unroll
  for (int i = 1; i < kSums; ++i) sum = __fadd_rn(sum, sums[i][lane]);
  store(dbias, m.index * cols + col, from_float<In>({sum}));
}

}  // namespace

NVTEXOutcome quantize_elements(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  return dispatch<F32, F16, BF16>(q.input_dtype, [&](auto in) {
    return dispatch<F32, F16, BF16, E4M3, E5M2>(q.output_dtype, [&](auto out) {
      return dispatch_form(q.fusion.form, [&](auto form) {
        using Given = decltype(out);
        using Out = std::conditional_t<kIsFp8<Given>, E4M3, Given>;
        constexpr NVTEXForm kForm = decltype(form)::value;
        if constexpr (kForm == NVTEX_FORM_PLAIN) {
          return unimplemented("no function to apply");
        } else {
          return launch_elements<decltype(in), Out, kForm>(q, stream);
        }
      });
    });
  });
}

NVTEXOutcome sum_dbias(const NVTEXQuantizeArgs &q, cudaStream_t stream) {
  const size_t members = q.group.num_tensors != 0 ? q.group.num_tensors : 1;
  const size_t per_row = ceil_div(q.cols, kSumColumns);
  if (per_row > kMaxBlocks / members) return unimplemented("dbias is too long");
  return dispatch<F32, F16, BF16>(q.input_dtype, [&](auto in) {
    return launch(sum_kernel<decltype(in)>, dim3(static_cast<unsigned>(per_row * members)),
                  kSumColumns * kSums, stream, q.fusion.workspace, q.fusion.dbias, q.rows, q.cols,
                  static_cast<unsigned>(per_row), q.group);
  });
}

}  // namespace nvte
