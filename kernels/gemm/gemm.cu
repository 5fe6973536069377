// Beside the matrix products of cuBLASLt: what is left to do with products that come as sums in
// float32, because the library has no such epilogue or result, because nothing is summed, k = 0, or
// because they are computed in parts; and the values of operands in blocks of MXFP8 and NVFP4.

#include "common/launch.cuh"
#include "common/nvfp4.cuh"
#include "common/scale.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {

// A part of a product: rows n to n + ns and columns m to m + ms of D, and k to k + ks of what is
// summed. The same struct is in src/backend/cuda.rs.
struct ProductPart {
  size_t m, n, k;
  size_t ms, ns, ks;
};

namespace {

constexpr int kThreads = 128;

template <class T>
__device__ float read_as(const void *p, size_t i) {
  float f[1];
  to_float(load<T, 1>(p, i, true), f);
  return f[0];
}

template <class T>
__device__ void write_as(void *p, size_t i, float value) {
  const float f[1] = {value};
  store(p, i, from_float<T>(f));
}

__device__ float read(const void *p, size_t i, NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat32:
      return read_as<F32>(p, i);
    case kNVTEFloat16:
      return read_as<F16>(p, i);
    case kNVTEFloat8E4M3:
      return read_as<E4M3>(p, i);
    case kNVTEFloat8E5M2:
      return read_as<E5M2>(p, i);
    default:
      return read_as<BF16>(p, i);
  }
}

__device__ void write(void *p, size_t i, NVTEDType dtype, float value) {
  switch (dtype) {
    case kNVTEFloat32:
      return write_as<F32>(p, i, value);
    case kNVTEFloat16:
      return write_as<F16>(p, i, value);
    case kNVTEFloat8E4M3:
      return write_as<E4M3>(p, i, value);
    case kNVTEFloat8E5M2:
      return write_as<E5M2>(p, i, value);
    default:
      return write_as<BF16>(p, i, value);
  }
}

__device__ float gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

__device__ float dgelu(float x) {
  const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}

// NVFP4: E4M3 codes.
struct Nvfp4BlockScale {
  static constexpr int kBlock = kNvfp4Block;
  static __device__ __forceinline__ float value(uint8_t entry) { return decode_e4m3(entry); }
};

template <class Scale>
__device__ __forceinline__ float scale_at(const ScaleMatrix &scales, size_t line, size_t block) {
  return Scale::value(static_cast<const uint8_t *>(scales.entries)[scales.index(line, block)]);
}

// Scales of an MXFP8 operand [outer, k], which are column-wise ones where it is stored as [k,
// outer].
__host__ __device__ inline ScaleMatrix mx_scales(const NVTEXGemmScales &scales, bool colwise,
                                                 size_t k) {
  const size_t tiles = scales.swizzled ? k / 128 + (k % 128 != 0) : 0;
  return scale_matrix(scales.mode, const_cast<void *>(scales.inv), scales.stride, colwise, tiles);
}

__device__ float alpha_of(const NVTEXGemmArgs &a) {
  if (a.nvfp4.alpha != nullptr) return *a.nvfp4.alpha;
  if (a.nvfp4.amax_a == nullptr) return a.alpha;
  return a.alpha * *a.nvfp4.amax_a * *a.nvfp4.amax_b * a.nvfp4.factor;
}

// A part of D of its sums [ns, ms] before alpha, or of zeros if they are null. A thread takes a
// column and goes down `height` rows, so that it can sum them; where D's rows are in several parts,
// `columns` has what the parts before have summed. An FP8 D raises its amax, which is 0 before.
__global__ void __launch_bounds__(kThreads)
    finish_product_kernel(const __grid_constant__ NVTEXGemmArgs a,
                          const __grid_constant__ ProductPart part, const float *sums,
                          float *columns, size_t height) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t x = size_t{blockIdx.x} * kThreads + threadIdx.x, i = part.m + x;
  if (x >= part.ms) return;
  const bool with_bias =
      a.epilogue == NVTEX_EPILOGUE_BIAS || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS;
  const bool with_gelu =
      a.epilogue == NVTEX_EPILOGUE_GELU || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS;
  const bool with_dgelu =
      a.epilogue == NVTEX_EPILOGUE_DGELU || a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD;
  const bool is_fp8 = a.d_dtype == kNVTEFloat8E4M3 || a.d_dtype == kNVTEFloat8E5M2;
  const float scale = is_fp8 && a.scale_d != nullptr ? *a.scale_d : 1.0f;
  const float alpha = alpha_of(a);
  const float beta = a.nvfp4.beta != nullptr ? *a.nvfp4.beta : a.beta;
  const float bias = with_bias ? read(a.bias, i, a.bias_dtype) : 0.0f;
  const size_t begin = blockIdx.y * height, end = min(begin + height, part.ns);
  float sum = 0.0f, amax = 0.0f;
  for (size_t y = begin; y < end; ++y) {
    const size_t at = (part.n + y) * a.m + i;
    float v = sums != nullptr ? alpha * sums[y * part.ms + x] : 0.0f;
    if (beta != 0.0f) v += beta * read(a.c, at, a.d_dtype);
    v += bias;
    if (with_gelu) {
      write(a.aux, at, a.aux_dtype, v);
      v = gelu(v);
    } else if (with_dgelu) {
      v *= dgelu(read(a.aux, at, a.aux_dtype));
    }
    sum += v;
    amax = fmaxf(amax, fabsf(v));
    write(a.d, at, a.d_dtype, is_fp8 ? v * scale : v);
  }
  if (a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD) {
    if (part.n > 0) sum += columns[i];
    if (part.n + part.ns == a.n) {
      write(a.bias, i, a.bias_dtype, sum);
    } else {
      columns[i] = sum;
    }
  }
  if (is_fp8 && a.amax_d != nullptr) {
    // Floats that are not negative are ordered as integers.
    atomicMax(reinterpret_cast<int *>(a.amax_d), __float_as_int(amax));
  }
}

// The gradient of a bias: sums over k of an operand B with one scale, or of MXFP8. A block takes a
// j.
__global__ void __launch_bounds__(kThreads)
    operand_sums_kernel(const __grid_constant__ NVTEXGemmArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const float scale = a.scales_b.inv != nullptr && a.scales_b.mode == NVTE_DELAYED_TENSOR_SCALING
                          ? *static_cast<const float *>(a.scales_b.inv)
                          : 1.0f;
  const bool is_mx = a.scales_b.mode == NVTE_MXFP8_1D_SCALING;
  const ScaleMatrix scales = mx_scales(a.scales_b, a.transb, a.k);
  __shared__ float warps[kThreads / 32];
  for (size_t j = blockIdx.x; j < a.n; j += gridDim.x) {
    float sum = 0.0f;
    for (size_t p = threadIdx.x; p < a.k; p += kThreads) {
      float x = read(a.b, a.transb ? p * a.n + j : j * a.k + p, a.b_dtype);
      if (is_mx) x *= scale_at<MxScale>(scales, j, p / MxScale::kBlock);
      sum += x;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < kThreads / 32; ++w) sum += warps[w];
      write(a.bias, j, a.bias_dtype, sum * scale);
    }
    __syncthreads();
  }
}

constexpr int kLot = 8;

// What is cast of an operand: `lots` of up to 8 of the `length` elements of each of its rows.
struct Source {
  const void *data;
  ScaleMatrix scales;
  size_t row, col, pitch;  // Where it begins, and elements from one row to the next.
  uint32_t lots, lots_per_row, length;
  bool vectors;
};

// kAlongK: scales are for elements of a row, else of a column. Rows of values have no gaps.
template <class T, class Scale, bool kAlongK>
__global__ void __launch_bounds__(kThreads)
    operand_values_kernel(const __grid_constant__ Source from, void *values) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const uint32_t lot = blockIdx.x * kThreads + threadIdx.x;
  if (lot >= from.lots) return;
  const uint32_t down = lot / from.lots_per_row, across = lot % from.lots_per_row * kLot;
  const int count = static_cast<int>(min(from.length - across, uint32_t{kLot}));
  const size_t row = from.row + down, col = from.col + across, at = row * from.pitch + col;
  float f[kLot], factor[kLot];
  T::load(from.data, at, count, from.vectors, f);
  if constexpr (kAlongK) {
    factor[0] = scale_at<Scale>(from.scales, row, col / Scale::kBlock);
#pragma unroll
    for (int i = 1; i < kLot; ++i) factor[i] = factor[0];
  } else {
#pragma unroll
    for (int i = 0; i < kLot; ++i) {
      factor[i] = i < count ? scale_at<Scale>(from.scales, col + i, row / Scale::kBlock) : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kLot; ++i) f[i] = __fmul_rn(f[i], factor[i]);
  const size_t to = size_t{down} * from.length + across;
  if (from.vectors) {
    store(values, to, from_float<BF16>(f));
  } else {
    store_some(values, to, count, from_float<BF16>(f));
  }
}

// Elements of an operand as its values without scales.
template <class T>
struct Codes {
  static __device__ __forceinline__ void load(const void *data, size_t at, int count, bool vectors,
                                              float (&f)[kLot]) {
    const auto x =
        vectors ? nvte::load<T, kLot>(data, at, true) : load_some<T, kLot>(data, at, count);
    to_float(x, f);
  }
};

// Two in a byte. Their number is a multiple of 16.
struct E2M1Codes {
  static __device__ __forceinline__ void load(const void *data, size_t at, int, bool vectors,
                                              float (&f)[kLot]) {
    using T = Raw<uint8_t>;
    const auto x = vectors ? nvte::load<T, kLot / 2>(data, at / 2, true)
                           : load_some<T, kLot / 2>(data, at / 2, kLot / 2);
#pragma unroll
    for (int i = 0; i < kLot; ++i) f[i] = decode_e2m1(x.w[0] >> 4 * i & 0xf);
  }
};

}  // namespace
}  // namespace nvte

// The values of a part of A or B, of MXFP8 or NVFP4, in BF16, stored the way round that the operand
// is.
extern "C" NVTEXOutcome nvte_cuda_operand_values(const NVTEXGemmArgs *args, bool of_b,
                                                 const nvte::ProductPart *part, void *values,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGemmArgs &a = *args;
  const NVTEXGemmScales &scales = of_b ? a.scales_b : a.scales_a;
  const NVTEDType dtype = of_b ? a.b_dtype : a.a_dtype;
  const bool along_k = of_b ? !a.transb : a.transa;
  const size_t outer = of_b ? a.n : a.m, first = of_b ? part->n : part->m;
  const size_t outers = of_b ? part->ns : part->ms;
  const size_t rows = along_k ? outers : part->ks, length = along_k ? part->ks : outers;
  const size_t lots_per_row = ceil_div(length, kLot), lots = rows * lots_per_row;
  if (lots > UINT32_MAX || length > UINT32_MAX) {
    return unimplemented("the operand has too many elements");
  }
  Source from = {};
  from.data = of_b ? a.b : a.a;
  from.row = along_k ? first : part->k;
  from.col = along_k ? part->k : first;
  from.pitch = along_k ? a.k : outer;
  from.lots = static_cast<uint32_t>(lots);
  from.lots_per_row = static_cast<uint32_t>(lots_per_row);
  from.length = static_cast<uint32_t>(length);
  const dim3 grid(static_cast<unsigned>(ceil_div(lots, kThreads)));
  const bool is_fp4 = dtype == kNVTEFloat4E2M1;
  from.vectors = aligned(from.data, is_fp4 ? kLot / 2 : kLot) && from.pitch % kLot == 0 &&
                 from.col % kLot == 0 && length % kLot == 0;
  if (is_fp4) {
    const size_t tiles = scales.swizzled ? scales.stride / 4 : 0;
    from.scales = {const_cast<void *>(scales.inv), scales.stride, 1, tiles, 0};
    return launch(operand_values_kernel<E2M1Codes, Nvfp4BlockScale, true>, grid, kThreads, stream,
                  from, values);
  }
  from.scales = mx_scales(scales, !along_k, a.k);
  return dispatch<E4M3, E5M2>(dtype, [&](auto tag) {
    using T = Codes<decltype(tag)>;
    const auto kernel = along_k ? operand_values_kernel<T, MxScale, true>
                                : operand_values_kernel<T, MxScale, false>;
    return launch(kernel, grid, kThreads, stream, from, values);
  });
}

// A part of D, its amax and what the epilogue writes, from sums in float32 before alpha; zeros if
// `sums` is null. `columns`, of m floats, is used where D's rows are in several parts, which come
// in their order. Not tuned: it is the answer to unusual questions.
extern "C" NVTEXOutcome nvte_cuda_finish_product(const NVTEXGemmArgs *args,
                                                 const nvte::ProductPart *part, const float *sums,
                                                 float *columns, cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGemmArgs &a = *args;
  if (a.epilogue == NVTEX_EPILOGUE_BGRAD && part->m == 0 && part->n == 0) {
    const unsigned blocks = a.n < 4096 ? static_cast<unsigned>(a.n) : 4096;
    const NVTEXOutcome done = launch(operand_sums_kernel, dim3(blocks), kThreads, stream, a);
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  constexpr size_t kHeight = 16, kMostBlocks = 65535;
  const size_t columns_of_blocks = ceil_div(part->ms, kThreads);
  if (columns_of_blocks > kMaxBlocks) return unimplemented("the result has too many columns");
  // Sums over the rows of D have one thread for each column.
  size_t rows = a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD ? 1 : ceil_div(part->ns, kHeight);
  if (rows > kMostBlocks) rows = kMostBlocks;
  const dim3 grid(static_cast<unsigned>(columns_of_blocks), static_cast<unsigned>(rows));
  return launch(finish_product_kernel, grid, kThreads, stream, a, *part, sums, columns,
                ceil_div(part->ns, rows));
}
