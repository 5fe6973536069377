// What the kernels of few rows do with sums on their way to D.
#pragma once

#include "common/vec.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {

__device__ __forceinline__ float tanh_of_gelu(float x) {
  return tanhf(0.79788456f * (x + 0.044715f * x * x * x));
}

// Neighbours in D or a side buffer, of any float type.
template <int N>
__device__ __forceinline__ void read(const void *from, NVTEDType dtype, size_t at, float (&v)[N]) {
  if (dtype == kNVTEFloat32) {
    to_float(load<F32, N>(from, at, true), v);
  } else if (dtype == kNVTEFloat16) {
    to_float(load<F16, N>(from, at, true), v);
  } else {
    to_float(load<BF16, N>(from, at, true), v);
  }
}
template <int N>
__device__ __forceinline__ void write(void *to, NVTEDType dtype, size_t at, const float (&v)[N]) {
  if (dtype == kNVTEFloat32) {
    store(to, at, from_float<F32>(v));
  } else if (dtype == kNVTEFloat16) {
    store(to, at, from_float<F16>(v));
  } else {
    store(to, at, from_float<BF16>(v));
  }
}

// Sums of neighbours in a row of D to D.
template <int N>
__device__ __forceinline__ void finish(const NVTEXGemmArgs &a, float scale, int row, int col,
                                       float (&v)[N]) {
  const size_t at = static_cast<size_t>(row) * a.m + static_cast<size_t>(col);
  float old[N];
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] *= scale;
  if (a.beta != 0.0f) {
    read(a.c, a.d_dtype, at, old);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = fmaf(a.beta, old[i], v[i]);
  }
  if (a.epilogue == NVTEX_EPILOGUE_BIAS || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS) {
    read(a.bias, a.bias_dtype, static_cast<size_t>(col), old);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] += old[i];
  }
  if (a.epilogue == NVTEX_EPILOGUE_GELU || a.epilogue == NVTEX_EPILOGUE_GELU_BIAS) {
    write(a.aux, a.aux_dtype, at, v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = 0.5f * v[i] * (1.0f + tanh_of_gelu(v[i]));
  } else if (a.epilogue == NVTEX_EPILOGUE_DGELU) {
    read(a.aux, a.aux_dtype, at, old);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = old[i], t = tanh_of_gelu(x);
      v[i] *=
          0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
    }
  }
  write(a.d, a.d_dtype, at, v);
}

}  // namespace nvte
