// Beside the matrix products of cuBLASLt: those that it refuses because nothing is summed, k = 0,
// and the values of NVFP4 operands.

#include "common/launch.cuh"
#include "common/nvfp4.cuh"
#include "common/scale.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {
namespace {

constexpr int kThreads = 128;

__device__ float read(const void *p, size_t i, NVTEDType dtype) {
  if (dtype == kNVTEFloat32) return static_cast<const float *>(p)[i];
  float f[1];
  if (dtype == kNVTEFloat16) {
    to_float(load<F16, 1>(p, i, true), f);
  } else {
    to_float(load<BF16, 1>(p, i, true), f);
  }
  return f[0];
}

__device__ void write(void *p, size_t i, NVTEDType dtype, float value) {
  const float f[1] = {value};
  if (dtype == kNVTEFloat32) {
    static_cast<float *>(p)[i] = value;
  } else if (dtype == kNVTEFloat16) {
    store(p, i, from_float<F16>(f));
  } else {
    store(p, i, from_float<BF16>(f));
  }
}

__device__ float gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

__device__ float dgelu(float x) {
  const float t = tanhf(0.79788456f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}

// A thread takes a column of D and goes down its rows, so that it can sum them.
__global__ void __launch_bounds__(kThreads)
    empty_product_kernel(const __grid_constant__ NVTEXGemmArgs a) {
  wait_for_stream();
  let_next_start();
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (a.epilogue == NVTEX_EPILOGUE_BGRAD) {
    for (size_t j = i; j < a.n; j += size_t{gridDim.x} * kThreads) {
      write(a.bias, j, a.bias_dtype, 0.0f);
    }
  }
  if (i >= a.m) return;
  const bool with_bias =
      a.epilogue == NVTEX_EPILOGUE_BIAS || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS;
  const bool with_gelu =
      a.epilogue == NVTEX_EPILOGUE_GELU || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS;
  const bool with_dgelu =
      a.epilogue == NVTEX_EPILOGUE_DGELU || a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD;
  const float beta = a.nvfp4.beta != nullptr ? *a.nvfp4.beta : a.beta;
  const float bias = with_bias ? read(a.bias, i, a.bias_dtype) : 0.0f;
  float sum = 0.0f;
  for (size_t j = 0; j < a.n; ++j) {
    const size_t at = j * a.m + i;
    float v = bias;
    if (beta != 0.0f) v += beta * read(a.c, at, a.d_dtype);
    if (with_gelu) {
      write(a.aux, at, a.aux_dtype, v);
      v = gelu(v);
    } else if (with_dgelu) {
      v *= dgelu(read(a.aux, at, a.aux_dtype));
    }
    sum += v;
    write(a.d, at, a.d_dtype, v);
  }
  if (a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD) write(a.bias, i, a.bias_dtype, sum);
}

constexpr int kLot = 8;

// A thread for 8 elements. The product of a code and its scale is exact.
__global__ void __launch_bounds__(kThreads)
    nvfp4_values_kernel(const void *codes, const __grid_constant__ ScaleMatrix scales, size_t lots,
                        size_t lots_per_row, void *values, bool vectors) {
  wait_for_stream();
  let_next_start();
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

// D in high precision. Not tuned: it is the answer to an unusual question.
extern "C" NVTEXOutcome nvte_cuda_empty_product(const NVTEXGemmArgs *args,
                                                cudaStream_t stream) noexcept {
  const size_t blocks = nvte::ceil_div(args->m, nvte::kThreads);
  return nvte::launch(nvte::empty_product_kernel, dim3(static_cast<unsigned>(blocks)),
                      nvte::kThreads, stream, *args);
}
