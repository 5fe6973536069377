// How values of several ranks become one.
#pragma once

#include <cuda_runtime.h>

namespace nvte {

// The greater of two values; NaN if one of them is.
__device__ __forceinline__ float greater(float a, float b) { return a >= b || isnan(a) ? a : b; }

// Adds values of the next rank, in Float32.
template <bool kMax, int N>
__device__ __forceinline__ void add_rank(float (&sum)[N], const float (&x)[N], bool first) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    sum[i] = first ? x[i] : kMax ? greater(sum[i], x[i]) : sum[i] + x[i];
  }
}

}  // namespace nvte
