// Casts to NVFP4: blocks of 16 elements of a row, of a column (stored transposed) or of both, with
// an E4M3 scale each (see Nvfp4QuantizeArgs).

#include "nvfp4_choice.cuh"
#include "nvfp4_patches.cuh"
#include "nvfp4_squares.cuh"
#include "nvfp4_tiles.cuh"

namespace nvte {
namespace {

// Whether a cast is of whole blocks, and chooses between two scales for each, not for squares.
bool chooses_in_tiles(const NVTEXNvfp4QuantizeArgs &a) {
  return a.choice != NVTEX_NVFP4_SIX && a.input_dtype == kNVTEBFloat16 && !a.stochastic &&
         !a.fast_math && !a.square && !a.scaled_lines && a.hadamard == nullptr &&
         a.variant <= NVTEX_NVFP4_GENERAL && a.rows % 16 == 0 && a.cols % 16 == 0 &&
         a.rows < kLongest && a.cols < kLongest && aligned(a.input, 16) &&
         aligned(a.rowwise.data, 8) && aligned(a.colwise.data, 8);
}

// Whether a cast is one of those of the kernels for large tiles.
bool in_large_tiles(const NVTEXNvfp4QuantizeArgs &a) {
  const bool bf16 = a.input_dtype == kNVTEBFloat16, hadamard = a.variant > NVTEX_NVFP4_GENERAL;
  return (bf16 || !(a.fast_math || a.stochastic || hadamard)) && a.choice == NVTEX_NVFP4_SIX &&
         (hadamard ? !a.fast_math && !a.stochastic : a.hadamard == nullptr) && a.rows % 16 == 0 &&
         a.cols % 16 == 0 && (!a.stochastic || a.first_row % kSide == 0) && a.rows < kLongest &&
         a.cols < kLongest && aligned(a.input, 16) && aligned(a.rowwise.data, 4) &&
         aligned(a.colwise.data, 8);
}

template <class In>
__global__ void __launch_bounds__(kThreads, 2)
    nvfp4_quantize_kernel(const __grid_constant__ Problem p) {
  __shared__ General shared;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (p.a.noop != nullptr && *p.a.noop == 1.0f) return;
  const size_t tiles_across = (p.a.cols + kTile - 1) / kTile;
  general_tile<In, false>(p, blockIdx.x / tiles_across * kTile, blockIdx.x % tiles_across * kTile,
                          shared);
}

// Largest magnitudes of all rows and columns, into zeros: a thread takes 16 bytes of 8 rows.
template <class In>
constexpr int kAmaxCols = 16 * (16 / In::kBytes);
template <class In>
__global__ void __launch_bounds__(kThreads)
    nvfp4_line_amax_kernel(const __grid_constant__ Problem p) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  constexpr int N = 16 / In::kBytes;
  __shared__ int columns[kAmaxCols<In>];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (a.noop != nullptr && *a.noop == 1.0f) return;
  if (threadIdx.x < kAmaxCols<In>) columns[threadIdx.x] = 0;
  const unsigned tiles_across = (a.cols + kAmaxCols<In> - 1) / kAmaxCols<In>;
  const unsigned chunk = threadIdx.x % 16, first = threadIdx.x / 16;
  const size_t row0 = size_t{blockIdx.x / tiles_across} * kSide + first;
  const size_t col0 = size_t{blockIdx.x % tiles_across} * kAmaxCols<In> + chunk * N;
  const size_t left = col0 < a.cols ? a.cols - col0 : 0;
  Vec<In, N> x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const size_t row = row0 + 16 * i, at = row * a.cols + col0;
    const size_t inside = row < a.rows ? left : 0;
    x[i] = p.vectorised ? load<In, N>(a.input, at, inside > 0)
                        : load_some<In, N>(a.input, at, inside < N ? inside : N);
  }
  __syncthreads();
  float column[N] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float f[N], most = 0.0f;
    to_float(x[i], f);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      most = fmaxf(most, fabsf(f[k]));
      column[k] = fmaxf(column[k], fabsf(f[k]));
    }
    if (a.rowwise.data == nullptr) continue;
    most = most_of_tile(most);
    const size_t row = row0 + 16 * i;
    if (chunk == 0 && row < a.rows) {
      atomicMax(reinterpret_cast<int *>(a.rowwise.amax) + row, __float_as_int(most));
    }
  }
  if (a.colwise.data == nullptr) return;
#pragma unroll
  for (int k = 0; k < N; ++k) atomicMax(&columns[chunk * N + k], __float_as_int(column[k]));
  __syncthreads();
  const size_t col = col0 - chunk * N + threadIdx.x;
  if (threadIdx.x < kAmaxCols<In> && col < a.cols) {
    atomicMax(reinterpret_cast<int *>(a.colwise.amax) + col, columns[threadIdx.x]);
  }
}

__global__ void __launch_bounds__(kThreads)
    nvfp4_clear_amax_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (p.a.noop != nullptr && *p.a.noop == 1.0f) return;
  const size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x;
  if (p.a.rowwise.data != nullptr && i < p.a.rows) p.a.rowwise.amax[i] = 0.0f;
  if (p.a.colwise.data != nullptr && i < p.a.cols) p.a.colwise.amax[i] = 0.0f;
}

// Rows of the strips in which HADAMARD_COLUMNS counts its words.
size_t strip_rows(size_t rows, size_t cols) {
  if (rows == 8192 || cols == 8192) {
    switch (rows == 8192 ? cols : rows) {
      case 512:
        return 256;
      case 3584:
      case 5120:
        return 512;
      case 10240:
      case 11328:
        return 1024;
      case 2560:
        return 1280;
    }
  }
  return rows < 1024 || cols < 1024 ? 512 : 1024;
}

size_t strip_tiles(const NVTEXNvfp4QuantizeArgs &a) {
  const size_t rows = a.total_rows;
  size_t tiles = ceil_div(rows < 1024 ? rows : 1024, 128);
  if (a.variant == NVTEX_NVFP4_HADAMARD_COLUMNS) {
    const size_t strip = strip_rows(rows, a.cols);
    tiles = (strip < rows ? strip : rows) / 64;
  }
  return tiles > 0 ? tiles : 1;
}

// Whether blocks that stay for many tiles cast both directions faster than one block for each tile:
// they take 71 us where those take 77 on an H200, with 6144 bits to its memory, and 92 where those
// take 83 on an H100, with 5120.
cudaError_t has_wide_memory(bool *wide) {
  int device = 0, bits = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  const cudaError_t error = cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device);
  *wide = bits > 5120;
  return error;
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_nvfp4_quantize(const NVTEXNvfp4QuantizeArgs *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t blocks = ceil_div(args->rows, kTile) * ceil_div(args->cols, kTile);
  if (blocks > kMaxBlocks) return unimplemented("nvfp4_quantize: more than 2^31 tiles");
  return dispatch<F32, F16, BF16>(args->input_dtype, [&](auto in) {
    using In = decltype(in);
    const bool whole = aligned(args->input, 16) && args->cols % (16 / In::kBytes) == 0;
    const Problem p = {*args, whole, strip_tiles(*args)};
    const dim3 grid(static_cast<unsigned>(blocks));
    if (args->scaled_lines) {
      const size_t longest = args->rows > args->cols ? args->rows : args->cols;
      const dim3 clears(static_cast<unsigned>(ceil_div(longest, kThreads)));
      const NVTEXOutcome cleared = launch(nvfp4_clear_amax_kernel, clears, kThreads, stream, p);
      if (cleared.status != NVTEX_BACKEND_OK) return cleared;
      const dim3 takes(
          static_cast<unsigned>(ceil_div(args->rows, kSide) * ceil_div(args->cols, kAmaxCols<In>)));
      const NVTEXOutcome most = launch(nvfp4_line_amax_kernel<In>, takes, kThreads, stream, p);
      if (most.status != NVTEX_BACKEND_OK) return most;
    }
    if (in_large_tiles(*args)) {
      constexpr int kWide = In::kBytes == 4 ? kSide / 2 : kSide;
      const dim3 tiles(
          static_cast<unsigned>(ceil_div(args->rows, kSide) * ceil_div(args->cols, kWide)));
      if constexpr (std::is_same_v<In, BF16>) {
        if (args->square && !args->stochastic && !args->scaled_lines && args->hadamard == nullptr) {
          return launch(nvfp4_squares_kernel, tiles, kThreads, stream, p);
        }
        bool stays = args->stochastic && args->variant == NVTEX_NVFP4_TUNED;
        if (!args->stochastic) {
          if (const cudaError_t error = has_wide_memory(&stays)) return outcome(error);
        }
        if (stays && args->rowwise.data != nullptr && args->colwise.data != nullptr &&
            !args->square && !args->scaled_lines && !args->fast_math && args->hadamard == nullptr &&
            args->offsets == nullptr) {
          Device device;
          if (const cudaError_t error = current_device(&device)) return outcome(error);
          const unsigned resident = kPatchBlocks * static_cast<unsigned>(device.sm_count);
          const dim3 grid(tiles.x < resident ? tiles.x : resident);
          return args->stochastic ? launch_shared(nvfp4_patches_kernel<true>, grid, kThreads,
                                                  sizeof(PatchMemory<true>), stream, p)
                                  : launch_shared(nvfp4_patches_kernel<false>, grid, kThreads,
                                                  sizeof(PatchMemory<false>), stream, p);
        }
        const bool rows = args->colwise.data == nullptr && !args->square && !args->stochastic;
        if (rows && !args->scaled_lines) {
          const size_t blocks = ceil_div(args->rows, kRowsTall) * ceil_div(args->cols, kRowsWide);
          return launch(nvfp4_halves_kernel<BF16, false, false, false, true>,
                        dim3(static_cast<unsigned>(blocks)), kThreads, stream, p);
        }
      }
      auto start = [&](auto lines) {
        constexpr bool kLines = decltype(lines)::value;
        if constexpr (std::is_same_v<In, F16>) {
          return launch(nvfp4_halves_kernel<F16, false, false, kLines, false>, tiles, kThreads,
                        stream, p);
        } else {
          const auto kernel = args->hadamard != nullptr && args->colwise.data != nullptr
                                  ? nvfp4_halves_kernel<BF16, true, false, kLines, false>
                              : args->stochastic
                                  ? nvfp4_halves_kernel<BF16, false, true, kLines, false>
                                  : nvfp4_halves_kernel<BF16, false, false, kLines, false>;
          return launch(kernel, tiles, kThreads, stream, p);
        }
      };
      if constexpr (std::is_same_v<In, F32>) {
        return launch(nvfp4_floats_kernel, tiles, kThreads, stream, p);
      } else {
        return args->scaled_lines ? start(std::true_type{}) : start(std::false_type{});
      }
    }
    if constexpr (std::is_same_v<In, BF16>) {
      if (chooses_in_tiles(*args)) {
        const auto kernel = args->choice == NVTEX_NVFP4_LEAST_SQUARES ? nvfp4_choice_kernel<true>
                                                                      : nvfp4_choice_kernel<false>;
        const size_t tiles = ceil_div(args->rows, kSide) * ceil_div(args->cols, kSide);
        return launch(kernel, dim3(static_cast<unsigned>(tiles)), kThreads, stream, p);
      }
    }
    return launch(nvfp4_quantize_kernel<In>, grid, kThreads, stream, p);
  });
}
