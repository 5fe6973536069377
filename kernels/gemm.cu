// Matrix products that cuBLASLt refuses because nothing is summed: k = 0.

#include "common/launch.cuh"
#include "common/vec.cuh"
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
  const float bias = with_bias ? read(a.bias, i, a.bias_dtype) : 0.0f;
  float sum = 0.0f;
  for (size_t j = 0; j < a.n; ++j) {
    const size_t at = j * a.m + i;
    float v = bias;
    if (a.beta != 0.0f) v += a.beta * read(a.c, at, a.d_dtype);
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

}  // namespace
}  // namespace nvte

// D in high precision. Not tuned: it is the answer to an unusual question.
extern "C" NVTEXOutcome nvte_cuda_empty_product(const NVTEXGemmArgs *args,
                                                cudaStream_t stream) noexcept {
  const size_t blocks = nvte::ceil_div(args->m, nvte::kThreads);
  return nvte::launch(nvte::empty_product_kernel, dim3(static_cast<unsigned>(blocks)),
                      nvte::kThreads, stream, *args);
}
