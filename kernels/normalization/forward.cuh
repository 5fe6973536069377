// What the parts of the forward pass of LayerNorm and RMSNorm share: arguments, and how results are
// cast and stored.
#pragma once

#include "normalization.cuh"
#include "common/reduce.cuh"
#include "common/scale.cuh"
#include "nvte/backend/normalization.h"

namespace nvte {
namespace norm {

struct ForwardArgs {
  NVTEXNormForwardArgs norm;
  Layout layout;
  FloatDivisor by_cols = FloatDivisor(1.0f);
  size_t rows;  // Rows, with those that only have padding of scales.
  // The row-wise scales; blocks are 0 with one scale per tensor.
  ScaleMatrix scales;
  FloatScale float_scale;
  MxScale mx_scale;
  int block;
  int stages;
  // Of the first element from the last aligned one; whether the output has the same.
  int offset;
  bool together;
  size_t step;   // Rows that all groups have at a time.
  size_t turns;  // Rows of a group, of some groups one less.
  bool apart;    // In rows_kernel: how first_row() assigns rows to groups.
};

namespace {

// Casts and stores vectors of a row. Of each source its own, as are its kernels: the addresses of
// what they share in a block are then known when they are compiled.
struct Output {
  const ForwardArgs &a;
  float scale;
  float amax = 0.0f;
  int seen = 0;  // Thread 0: the amax so far. Read early, for it takes time.

  __device__ explicit Output(const ForwardArgs &args) : a(args), scale(given_scale()) {
    if (a.norm.cast.amax != nullptr && threadIdx.x == 0) {
      seen = __ldcg(reinterpret_cast<int *>(a.norm.cast.amax));
    }
  }

  __device__ __forceinline__ float given_scale() const {
    return a.norm.cast.scale != nullptr ? *a.norm.cast.scale : 1.0f;
  }

  template <int N>
  __device__ __forceinline__ static float largest(const float (&f)[N]) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) most = fmaxf(most, fabsf(f[i]));
    return most;
  }

  // Elements from column `col` of a row on, by whole warps; those outside the row are 0 or NaN.
  // store(z) takes what is inside. kBlocks: N columns side by side, and there may be scales of
  // blocks.
  template <class Out, bool kBlocks, int N, class Store>
  __device__ __forceinline__ void put(size_t row, int col, float (&f)[N], const Store &store) {
    const NVTEXCast &cast = a.norm.cast;
    if constexpr (kIsWidened<Out>) {
      switch (cast.output_dtype) {
        case kNVTEFloat32:
          return put<F32, kBlocks>(row, col, f, store);
        case kNVTEFloat16:
          return put<F16, kBlocks>(row, col, f, store);
        case kNVTEBFloat16:
          return put<BF16, kBlocks>(row, col, f, store);
        default:
          return put<E4M3, kBlocks>(row, col, f, store);
      }
    } else if constexpr (kIsFp8<Out>) {
      float factor = scale;
      if (kBlocks || cast.amax != nullptr) {
        const float most = largest(f);
        amax = fmaxf(amax, most);
        if (kBlocks && a.block != 0) factor = block_factor<N>(row, col, most);
      }
#pragma unroll
      for (int i = 0; i < N; ++i) f[i] = __fmul_rn(f[i], factor);
      if (kBlocks && row >= cast.rows) return;
      if (cast.output_dtype == kNVTEFloat8E5M2) {
        store(from_float<E5M2>(f));
      } else {
        store(from_float<E4M3>(f));
      }
    } else {
      const Vec<Out, N> z = from_float<Out>(f);
      if (cast.amax != nullptr) {
        AbsMax<Out> most;
        most.add(z);
        amax = fmaxf(amax, __int_as_float(most.bits()));
      }
      if (!kBlocks || row < cast.rows) store(z);
    }
  }

  template <int N>
  __device__ __forceinline__ float block_factor(size_t row, int col, float most) {
    const int lanes = a.block / N, cols = a.layout.cols;
    const bool exists = row < a.norm.cast.rows;
    for (int step = 1; step < lanes; step *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    const bool writer = threadIdx.x % lanes == 0;
    const size_t at = a.scales.index(row, col / a.block);
    if (a.norm.cast.mode == NVTE_MXFP8_1D_SCALING) {
      uint8_t entry;
      const float factor = a.mx_scale.factor(most, entry);
      // Padding reaches to the next multiple of four blocks.
      if (writer && col < (cols + 127) / 128 * 128) {
        static_cast<uint8_t *>(a.scales.entries)[at] = exists && col < cols ? entry : 0;
      }
      return factor;
    }
    float entry;
    const float factor = a.float_scale.factor(most, entry);
    if (writer && exists && col < cols) static_cast<float *>(a.scales.entries)[at] = entry;
    return factor;
  }

  __device__ __forceinline__ void finish() {
    const NVTEXCast &cast = a.norm.cast;
    if (cast.amax != nullptr) {
      __shared__ int most;
      if (threadIdx.x == 0) most = 0;
      __syncwarp();  // After the stores at the edges of skewed rows, where a warp parts.
      __syncthreads();
      const int bits = warp_max(__float_as_int(amax));
      if (threadIdx.x % 32 == 0) atomicMax(&most, bits);
      __syncthreads();
      // Atomics on one address are slow: an amax that was already reached needs none.
      if (threadIdx.x == 0 && most > seen) atomicMax(reinterpret_cast<int *>(cast.amax), most);
    }
    if (a.block == 0 && blockIdx.x == 0 && threadIdx.x == 0) {
      const float inverse = __frcp_rn(given_scale());
      if (cast.rowwise_scale_inv != nullptr)
        *static_cast<float *>(cast.rowwise_scale_inv) = inverse;
      if (cast.colwise_scale_inv != nullptr)
        *static_cast<float *>(cast.colwise_scale_inv) = inverse;
    }
  }
};

}  // namespace

// The scale matrix of a cast's row-wise or column-wise data.
inline ScaleMatrix scales_of(const NVTEXCast &cast, bool colwise) {
  const bool tiled = cast.mode == NVTE_MXFP8_1D_SCALING && cast.swizzled;
  return scale_matrix(cast.mode, colwise ? cast.colwise_scale_inv : cast.rowwise_scale_inv,
                      colwise ? cast.colwise_scale_stride : cast.rowwise_scale_stride, colwise,
                      tiled ? ceil_div(colwise ? cast.rows : cast.cols, 128) : 0);
}

inline size_t input_bytes(const ForwardArgs &args) {
  return static_cast<size_t>(bytes_of<Widened>(args.norm.cast.input_dtype));
}

// Rows that registers hold, to the dtype of the input or to FP8. Both also take what they do not
// have a kernel for, and give it to forward_any_length().
NVTEXOutcome forward_rows_bf16(ForwardArgs &args, bool vectorised, cudaStream_t stream);
NVTEXOutcome forward_rows_widened(ForwardArgs &args, bool vectorised, cudaStream_t stream);

// Rows of any length to any dtype, and sums with a residual. `vectorised`: every vector is aligned,
// and inside or outside of a row as a whole.
NVTEXOutcome forward_any_length(ForwardArgs &args, bool vectorised, cudaStream_t stream);

// Casts in blocks along the columns and in square blocks, after the row-wise pass.
NVTEXOutcome forward_columns(const NVTEXNormForwardArgs &a, const FloatScale &float_scale,
                             const MxScale &mx_scale, cudaStream_t stream);

}  // namespace norm
}  // namespace nvte
