// Casts back from NVFP4. A lane takes 8 neighbouring elements of 8 rows, so that a warp reads 128
// and, of two bytes each, writes 512 neighbouring bytes at once; two lanes share a block of a row.

#include "nvfp4_problem.cuh"

namespace nvte {
namespace {

struct DequantizeProblem {
  NVTEXNvfp4DequantizeArgs a;
  size_t tiles;  // Tiles of the scales in a row; 0 if they are compact.
};

// A block has 32 rows of 512 columns.
constexpr unsigned kRows = 8, kLanes = 64;
constexpr unsigned kWide = kLanes * 8, kTall = kThreads / kLanes * kRows;

// Float32 numbers of eight codes. The selectors of PRMT look the upper bytes of BF16 numbers up,
// four at a time.
__device__ __forceinline__ void decode_codes(uint32_t codes, float (&f)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t four = half == 0 ? codes : codes >> 16, magnitudes = four & 0x7777;
    // 0, 1/2, 1 and 3/2; 2, 3, 4 and 6.
    const uint32_t low = __byte_perm(0xc0800000, 0xc0804000, magnitudes);
    const uint32_t high = __byte_perm(0x3f3f3f00, 0x40404040, magnitudes);
    // A selector with its highest bit replicates the sign of a byte, here that of 0x80.
    uint32_t signs;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(signs) : "r"(0x80808080), "r"(four));
    const uint32_t upper = high | (signs << 1 & 0x80808080);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint32_t two = __byte_perm(low, upper, (5 + i) << 12 | (1 + i) << 8 | (4 + i) << 4 | i);
      f[half * 4 + i] = __uint_as_float(two << 16);
      f[half * 4 + i + 1] = __uint_as_float(two & 0xffff0000);
    }
  }
}

template <class Out>
__global__ void __launch_bounds__(kThreads)
    nvfp4_dequantize_kernel(const __grid_constant__ DequantizeProblem p) {
  const NVTEXNvfp4DequantizeArgs &a = p.a;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned across = static_cast<unsigned>((a.cols + kWide - 1) / kWide);
  const size_t row0 = size_t{blockIdx.x / across} * kTall + threadIdx.x / kLanes * kRows;
  const size_t col = size_t{blockIdx.x % across} * kWide + threadIdx.x % kLanes * 8;
  if (row0 >= a.rows || col >= a.cols) return;
  const auto rows = static_cast<unsigned>(a.rows - row0 < kRows ? a.rows - row0 : kRows);
  const size_t stride = a.input.scale_stride;
  const ScaleMatrix scales = {nullptr, stride, 1, p.tiles, 0};
  const uint8_t *const from_scales =
      static_cast<const uint8_t *>(a.input.scales) + scales.index(row0, col / 16);
  const size_t scale_step = p.tiles != 0 ? 16 : stride;  // Also in tiles, within 32 rows.
  const size_t first = row0 * a.cols + col;
  const uint8_t *const from = static_cast<const uint8_t *>(a.input.data) + first / 2;
  const bool words = reinterpret_cast<uintptr_t>(a.input.data) % 4 == 0;
  const bool vectors = reinterpret_cast<uintptr_t>(a.output) % 16 == 0;
  uint32_t codes[kRows], scale[kRows];
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i) {
    load_once<4>(from + i * (a.cols / 2), words && i < rows, &codes[i]);
    scale[i] = i < rows ? from_scales[i * scale_step] : 0;
  }
  if (!words) {
    for (unsigned i = 0; i < rows * 4; ++i) {
      const uint32_t byte = from[i / 4 * (a.cols / 2) + i % 4] << (i % 4 * 8);
#pragma unroll
      for (unsigned k = 0; k < kRows; ++k) codes[k] |= k == i / 4 ? byte : 0;
    }
  }
  const float inverse = __frcp_rn(6.0f * a.e4m3_max);
  const float amax = a.scaled_lines ? 0.0f : *a.input.amax;
#pragma unroll
  for (unsigned i = 0; i < kRows; ++i) {
    if (i >= rows) break;
    const float most = a.scaled_lines ? a.input.amax[row0 + i] : amax;
    const float factor = __fmul_rn(__fmul_rn(decode_e4m3(scale[i]), most), inverse);
    float y[8];
    decode_codes(codes[i], y);
#pragma unroll
    for (int k = 0; k < 8; ++k) y[k] = __fmul_rn(y[k], factor);
    const Vec<Out, 8> out = from_float<Out>(y);
    const size_t at = first + i * a.cols;
    if (vectors) {
      store(a.output, at, out);
    } else {
      store_some(a.output, at, 8, out);
    }
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_nvfp4_dequantize(const NVTEXNvfp4DequantizeArgs *args,
                                                   cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t blocks = ceil_div(args->rows, kTall) * ceil_div(args->cols, kWide);
  if (blocks > kMaxBlocks) return unimplemented("nvfp4_dequantize: more than 2^31 tiles");
  return dispatch<F32, F16, BF16>(args->output_dtype, [&](auto out) {
    const DequantizeProblem p = {*args, args->swizzled ? ceil_div(args->input.scale_stride, 4) : 0};
    return launch(nvfp4_dequantize_kernel<decltype(out)>, dim3(static_cast<unsigned>(blocks)),
                  kThreads, stream, p);
  });
}
