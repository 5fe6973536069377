// Scales of NVFP4 tensors, and amax and casts of a part of a matrix by blocks of 16 x 16 of the
// whole (optim_nvfp4.md, section 17). H200, 8192 x 8192 bf16, GB/s: amax 4090; casts 3380, because
// the codes and the factors take the issue slots: 2 and 4 times as many elements per thread gave
// 3300 and 3200. Without aligned vectors 3560 and 790.

#include "common/launch.cuh"
#include "common/nvfp4.cuh"
#include "common/reduce.cuh"
#include "nvte/backend/recipe.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;
constexpr int kBlock = kNvfp4Block;

__device__ __forceinline__ float global_scale(float amax) {
  return amax > 0.0f ? fminf(__fdiv_rn(2688.0f, fmaxf(amax, FLT_MIN)), FLT_MAX) : 1.0f;
}

__global__ void alpha_kernel(const __grid_constant__ NVTEXNvfp4AlphaArgs a) {
  griddepcontrol_wait();
  const float product = __fmul_rn(__fmul_rn(a.alpha, *a.amax_a), *a.amax_b);
  a.output[0] = __fmul_rn(product, a.factor);
  if (a.with_beta) a.output[1] = a.beta;
}

__global__ void __launch_bounds__(kThreads)
    global_scale_kernel(const __grid_constant__ NVTEXNvfp4GlobalScaleArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < a.length) a.scale[i] = global_scale(a.amax[i]);
}

// A thread for each block; it writes the codes of the block's rows.
__global__ void __launch_bounds__(kThreads)
    block_scale_kernel(const __grid_constant__ NVTEXNvfp4BlockScaleArgs a, size_t lines) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i == 0 && a.target_amax != nullptr) *a.target_amax = *a.global_amax;
  const size_t line = i / a.tile_cols, col = i % a.tile_cols;
  if (line >= lines) return;
  float scale = 0.0f;
  if (line < a.tile_rows) {
    scale = a.input[i];
    if (a.global_amax != nullptr) {
      const float sixth = __fmul_rn(global_scale(*a.global_amax), 1.0f / kE2m1Max);
      scale = fminf(__fmul_rn(scale, sixth), FLT_MAX);
    }
    if (a.scale != nullptr) a.scale[i] = scale;
  }
  if (a.codes == nullptr) return;
  auto *codes = static_cast<uint8_t *>(a.codes);
  const auto code = static_cast<uint8_t>(encode_e4m3(scale));
  const size_t row = line * a.block_len;
  for (size_t r = 0; r < a.block_len && row + r < a.rows; ++r) {
    codes[(row + r) * a.tile_cols + col] = code;
  }
}

// Elements [low, high) of the N from `at` of the matrix on are in the shard.
struct Span {
  int low, high;
};
template <int N>
__device__ __forceinline__ Span span_of(const NVTEXShard &s, size_t at, size_t width) {
  const size_t end = s.start + s.length;
  const size_t low = at < s.start ? s.start - at : 0, high = at < end ? end - at : 0;
  return {static_cast<int>(low < N ? low : N), static_cast<int>(high < width ? high : width)};
}

// A thread for N columns of 16 rows; kBlock / N lanes share a block.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    partial_amax_kernel(const __grid_constant__ NVTEXNvfp4PartialAmaxArgs a, size_t across,
                        size_t units) {
  constexpr int kLanes = kBlock / N;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXShard &s = a.shard;
  const size_t unit = size_t{blockIdx.x} * kThreads + threadIdx.x;
  const size_t row = unit / across * kBlock, col = unit % across * N;
  AbsMax<T> amax;
  const size_t first = row * s.cols + col;
  if (unit < units && col < s.cols) {
    const bool inside = row + kBlock <= s.rows && first >= s.start &&
                        first + (kBlock - 1) * s.cols + N <= s.start + s.length &&
                        col + N <= s.cols;
    if (inside) {
      Vec<T, N> x[kBlock];
#pragma unroll
      for (int r = 0; r < kBlock; ++r) {
        x[r] = load<T, N>(s.input, first + r * s.cols - s.start, true);
      }
#pragma unroll
      for (int r = 0; r < kBlock; ++r) amax.add(x[r]);
    } else {
      const size_t width = s.cols - col < N ? s.cols - col : N;
      for (size_t r = 0; r < kBlock && row + r < s.rows; ++r) {
        const size_t at = first + r * s.cols;
        const Span span = span_of<N>(s, at, width);
        for (int i = span.low; i < span.high; ++i) {
          amax.add(load<T, 1>(s.input, at + i - s.start, true));
        }
      }
    }
  }
  int bits = amax.bits();
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    const int other = __shfl_xor_sync(0xffffffffu, bits, step);
    bits = other > bits ? other : bits;
  }
  if (unit >= units || threadIdx.x % kLanes != 0) return;
  a.amax[row / kBlock * a.stride + col / kBlock * a.step] = __int_as_float(bits);
}

template <class T>
NVTEXOutcome partial_amax(const NVTEXNvfp4PartialAmaxArgs &a, cudaStream_t stream) {
  constexpr int kVec = 16 / T::kBytes;
  const NVTEXShard &s = a.shard;
  const uintptr_t origin = reinterpret_cast<uintptr_t>(s.input) - s.start * T::kBytes;
  const bool vectors = s.cols % kVec == 0 && origin % 16 == 0;
  // Whole blocks, so that all lanes of one are there.
  const size_t across = ceil_div(s.cols, kBlock) * (kBlock / (vectors ? kVec : 1));
  const size_t units = ceil_div(s.rows, kBlock) * across, blocks = ceil_div(units, kThreads);
  if (blocks > kMaxBlocks) return unimplemented("the matrix has too many elements");
  return launch(vectors ? partial_amax_kernel<T, kVec> : partial_amax_kernel<T, 1>,
                dim3(static_cast<unsigned>(blocks)), kThreads, stream, a, across, units);
}

struct Multipliers {
  const NVTEXNvfp4PartialCastArgs &a;
  float inverse;  // The reciprocal of the global scale.

  __device__ __forceinline__ explicit Multipliers(const NVTEXNvfp4PartialCastArgs &args) : a(args) {
    const float global = *a.global_scale;
    inverse = __frcp_rn(global <= 0.0f ? 1.0f : global);
  }
  __device__ __forceinline__ float of(size_t row, size_t col) const {
    const float entry = a.scale[row / kBlock * a.stride + col / kBlock * a.step];
    const float scale = decode_e4m3(encode_e4m3(entry));
    if (!(scale > 0.0f)) return FLT_MAX;
    return fminf(__frcp_rn(__fmul_rn(scale, inverse)), FLT_MAX);
  }
};

// 32 bits where they suffice: the division of 64 costs more than a cast.
__device__ __forceinline__ size_t divide(size_t a, size_t b) {
  return ((a | b) >> 32) == 0 ? static_cast<uint32_t>(a) / static_cast<uint32_t>(b) : a / b;
}

// kVectors: a thread for 16 elements, which are of one block. Else a thread for a byte, whose two
// elements may be of different rows.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads)
    partial_cast_kernel(const __grid_constant__ NVTEXNvfp4PartialCastArgs a, size_t units) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXShard &s = a.shard;
  const size_t unit = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (unit >= units) return;
  if constexpr (kVectors) {
    const Vec<T, kBlock> x = load<T, kBlock>(s.input, unit * kBlock, true);
    const size_t place = s.start / kBlock + unit, per_row = s.cols / kBlock;
    const size_t row = divide(place, per_row);
    const float factor = Multipliers(a).of(row, (place - row * per_row) * kBlock);
    float f[kBlock];
    to_float(x, f);
    Vec<Raw<uint8_t>, 8> codes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i] = __fmul_rn(f[8 * h + i], factor);
      codes.w[h] = encode_e2m1x8(y);
    }
    store(a.output, unit * 8, codes);
  } else {
    uint8_t *byte = static_cast<uint8_t *>(a.output) + unit;
    const size_t place = (s.start / 2 + unit) * 2;
    const bool inside[2] = {place >= s.start, place + 1 < s.start + s.length};
    float x[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float f[1];
      to_float(load<T, 1>(s.input, place + i - s.start, inside[i]), f);
      x[i] = f[0];
    }
    const Multipliers multipliers(a);
    size_t row = divide(place, s.cols), col = place - row * s.cols;
    float factor = multipliers.of(row, col);
    uint32_t code = inside[0] && inside[1] ? 0 : *byte;
    if (inside[0]) code = (code & 0xf0) | encode_e2m1(__fmul_rn(x[0], factor));
    if (++col == s.cols) ++row, col = 0;
    if (inside[1]) {
      if (col % kBlock == 0) factor = multipliers.of(row, col);
      code = (code & 0x0f) | encode_e2m1(__fmul_rn(x[1], factor)) << 4;
    }
    *byte = static_cast<uint8_t>(code);
  }
}

template <class T>
NVTEXOutcome partial_cast(const NVTEXNvfp4PartialCastArgs &a, cudaStream_t stream) {
  const NVTEXShard &s = a.shard;
  const bool vectors = s.cols % kBlock == 0 && s.start % kBlock == 0 && s.length % kBlock == 0 &&
                       aligned(s.input, 16) && aligned(a.output, 8);
  const size_t bytes = (s.start + s.length + 1) / 2 - s.start / 2;
  const size_t units = vectors ? s.length / kBlock : bytes, blocks = ceil_div(units, kThreads);
  if (blocks > kMaxBlocks) return unimplemented("the shard has too many elements");
  return launch(vectors ? partial_cast_kernel<T, true> : partial_cast_kernel<T, false>,
                dim3(static_cast<unsigned>(blocks)), kThreads, stream, a, units);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_nvfp4_alpha(const NVTEXNvfp4AlphaArgs *args,
                                              cudaStream_t stream) noexcept {
  return nvte::launch(nvte::alpha_kernel, dim3(1), 1, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_nvfp4_global_scale(const NVTEXNvfp4GlobalScaleArgs *args,
                                                     cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t blocks = ceil_div(args->length, kThreads);
  if (blocks > kMaxBlocks) return unimplemented("too many scales");
  return launch(global_scale_kernel, dim3(static_cast<unsigned>(blocks)), kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_nvfp4_block_scale(const NVTEXNvfp4BlockScaleArgs *args,
                                                    cudaStream_t stream) noexcept {
  using namespace nvte;
  size_t lines = args->codes != nullptr ? ceil_div(args->rows, args->block_len) : 0;
  if (lines < args->tile_rows) lines = args->tile_rows;
  const size_t blocks = ceil_div(lines * args->tile_cols, kThreads);
  if (blocks > kMaxBlocks) return unimplemented("too many scales");
  return launch(block_scale_kernel, dim3(static_cast<unsigned>(blocks)), kThreads, stream, *args,
                lines);
}

extern "C" NVTEXOutcome nvte_cuda_nvfp4_partial_amax(const NVTEXNvfp4PartialAmaxArgs *args,
                                                     cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(
      args->shard.dtype, [&](auto in) { return partial_amax<decltype(in)>(*args, stream); });
}

extern "C" NVTEXOutcome nvte_cuda_nvfp4_partial_cast(const NVTEXNvfp4PartialCastArgs *args,
                                                     cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(
      args->shard.dtype, [&](auto in) { return partial_cast<decltype(in)>(*args, stream); });
}
