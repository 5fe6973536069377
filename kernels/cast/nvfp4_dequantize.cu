// Casts back from NVFP4: a thread takes a block of 16 elements.

#include "nvfp4_problem.cuh"

namespace nvte {
namespace {

struct DequantizeProblem {
  NVTEXNvfp4DequantizeArgs a;
  size_t tiles;  // Tiles of the scales in a row; 0 if they are compact.
};

// A thread takes a block.
template <class Out>
__global__ void __launch_bounds__(kThreads)
    nvfp4_dequantize_kernel(const __grid_constant__ DequantizeProblem p) {
  const NVTEXNvfp4DequantizeArgs &a = p.a;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t blocks = a.cols / 16, unit = blockIdx.x * size_t{kThreads} + threadIdx.x;
  if (unit >= a.rows * blocks) return;
  const size_t row = unit / blocks, block = unit % blocks;
  const ScaleMatrix scales = {nullptr, a.input.scale_stride, 1, p.tiles, 0};
  const uint8_t code = static_cast<const uint8_t *>(a.input.scales)[scales.index(row, block)];
  const float amax = a.input.amax[a.scaled_lines ? row : 0];
  const float factor = __fmul_rn(__fmul_rn(decode_e4m3(code), amax), __frcp_rn(6.0f * a.e4m3_max));
  const uint8_t *from = static_cast<const uint8_t *>(a.input.data) + unit * 8;
  uint32_t word[2] = {0, 0};
  if (reinterpret_cast<uintptr_t>(from) % 8 == 0) {
    const uint2 both = *reinterpret_cast<const uint2 *>(from);
    word[0] = both.x, word[1] = both.y;
  } else {
    for (int i = 0; i < 8; ++i) word[i / 4] |= from[i] << (i % 4 * 8);
  }
  constexpr int N = 16 / Out::kBytes;
  const bool whole = reinterpret_cast<uintptr_t>(a.output) % 16 == 0;
#pragma unroll
  for (int v = 0; v < 16 / N; ++v) {
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int at = v * N + i;
      y[i] = __fmul_rn(decode_e2m1(word[at / 8] >> (at % 8 * 4) & 15), factor);
    }
    const Vec<Out, N> out = from_float<Out>(y);
    if (whole) {
      store(a.output, unit * 16 + v * N, out);
    } else {
      store_some(a.output, unit * 16 + v * N, N, out);
    }
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_nvfp4_dequantize(const NVTEXNvfp4DequantizeArgs *args,
                                                   cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t blocks = ceil_div(args->rows * (args->cols / 16), kThreads);
  if (blocks > kMaxBlocks) return unimplemented("nvfp4_dequantize: more than 2^31 blocks");
  return dispatch<F32, F16, BF16>(args->output_dtype, [&](auto out) {
    const DequantizeProblem p = {*args, args->swizzled ? ceil_div(args->input.scale_stride, 4) : 0};
    return launch(nvfp4_dequantize_kernel<decltype(out)>, dim3(static_cast<unsigned>(blocks)),
                  kThreads, stream, p);
  });
}
