// Beside the matrix products of cuBLASLt: what is left to do with products that come as sums in
// float32, because the library has no such epilogue or result or because nothing is summed, k = 0;
// and the values of NVFP4 operands.

#include "common/launch.cuh"
#include "common/nvfp4.cuh"
#include "common/scale.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {
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

// D of `sums` [n, m], alpha and the scales of operands included, or of zeros if that is null. A
// thread takes a column of D and goes down `height` rows, so that it can sum them. An FP8 D raises
// its amax, which is 0 before.
__global__ void __launch_bounds__(kThreads)
    finish_product_kernel(const __grid_constant__ NVTEXGemmArgs a, const float *sums,
                          size_t height) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.m) return;
  const bool with_bias =
      a.epilogue == NVTEX_EPILOGUE_BIAS || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS;
  const bool with_gelu =
      a.epilogue == NVTEX_EPILOGUE_GELU || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS;
  const bool with_dgelu =
      a.epilogue == NVTEX_EPILOGUE_DGELU || a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD;
  const bool is_fp8 = a.d_dtype == kNVTEFloat8E4M3 || a.d_dtype == kNVTEFloat8E5M2;
  const float scale = is_fp8 && a.scale_d != nullptr ? *a.scale_d : 1.0f;
  const float beta = a.nvfp4.beta != nullptr ? *a.nvfp4.beta : a.beta;
  const float bias = with_bias ? read(a.bias, i, a.bias_dtype) : 0.0f;
  const size_t begin = blockIdx.y * height, end = min(begin + height, a.n);
  float sum = 0.0f, amax = 0.0f;
  for (size_t j = begin; j < end; ++j) {
    const size_t at = j * a.m + i;
    float v = sums != nullptr ? sums[at] : 0.0f;
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
  if (a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD) write(a.bias, i, a.bias_dtype, sum);
  if (is_fp8 && a.amax_d != nullptr) {
    // Floats that are not negative are ordered as integers.
    atomicMax(reinterpret_cast<int *>(a.amax_d), __float_as_int(amax));
  }
}

// The gradient of a bias: sums over k of an operand B with one scale. A block takes a j.
__global__ void __launch_bounds__(kThreads)
    operand_sums_kernel(const __grid_constant__ NVTEXGemmArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const float scale = a.scales_b.inv != nullptr && a.scales_b.mode == NVTE_DELAYED_TENSOR_SCALING
                          ? *static_cast<const float *>(a.scales_b.inv)
                          : 1.0f;
  __shared__ float warps[kThreads / 32];
  for (size_t j = blockIdx.x; j < a.n; j += gridDim.x) {
    float sum = 0.0f;
    for (size_t p = threadIdx.x; p < a.k; p += kThreads) {
      sum += read(a.b, a.transb ? p * a.n + j : j * a.k + p, a.b_dtype);
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

// A thread for 8 elements. The product of a code and its scale is exact.
__global__ void __launch_bounds__(kThreads)
    nvfp4_values_kernel(const void *codes, const __grid_constant__ ScaleMatrix scales, size_t lots,
                        size_t lots_per_row, void *values, bool vectors) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= lots) return;
  using Codes = Vec<Raw<uint8_t>, kLot / 2>;
  const Codes x = vectors ? load<Raw<uint8_t>, kLot / 2>(codes, i * (kLot / 2), true)
                          : load_some<Raw<uint8_t>, kLot / 2>(codes, i * (kLot / 2), kLot / 2);
  const size_t row = i / lots_per_row, block = i % lots_per_row / (kNvfp4Block / kLot);
  const float scale =
      decode_e4m3(static_cast<const uint8_t *>(scales.entries)[scales.index(row, block)]);
  float f[kLot];
#pragma unroll
  for (int k = 0; k < kLot; ++k) f[k] = decode_e2m1(x.w[0] >> 4 * k & 0xf) * scale;
  store(values, i * kLot, from_float<BF16>(f));
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_nvfp4_values(const void *codes, const NVTEXGemmScales *scales,
                                               size_t outer, size_t k, void *values,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t lots = outer * k / kLot, blocks = ceil_div(lots, kThreads);
  if (blocks > kMaxBlocks) return unimplemented("the operand has too many elements");
  const ScaleMatrix matrix = {const_cast<void *>(scales->inv), scales->stride, 1,
                              scales->swizzled ? scales->stride / 4 : 0, 0};
  return launch(nvfp4_values_kernel, dim3(static_cast<unsigned>(blocks)), kThreads, stream, codes,
                matrix, lots, k / kLot, values, aligned(codes, kLot / 2));
}

// D, its amax and what the epilogue writes, from sums in float32; zeros if `sums` is null. Not
// tuned: it is the answer to unusual questions.
extern "C" NVTEXOutcome nvte_cuda_finish_product(const NVTEXGemmArgs *args, const float *sums,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXGemmArgs &a = *args;
  if (a.epilogue == NVTEX_EPILOGUE_BGRAD) {
    const unsigned blocks = a.n < 4096 ? static_cast<unsigned>(a.n) : 4096;
    const NVTEXOutcome done = launch(operand_sums_kernel, dim3(blocks), kThreads, stream, a);
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  constexpr size_t kHeight = 16, kMostBlocks = 65535;
  const size_t columns = ceil_div(a.m, kThreads);
  if (columns > kMaxBlocks) return unimplemented("the result has too many columns");
  // Sums over the rows of D have one thread for each column.
  size_t rows = a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD ? 1 : ceil_div(a.n, kHeight);
  if (rows > kMostBlocks) rows = kMostBlocks;
  return launch(finish_product_kernel,
                dim3(static_cast<unsigned>(columns), static_cast<unsigned>(rows)), kThreads, stream,
                a, sums, ceil_div(a.n, rows));
}
