// Order of block scales: compact matrices, and tiles of 128 x 4 bytes for block-scaled products.

#include "common/group.cuh"
#include "common/launch.cuh"
#include "common/tile.cuh"
#include "nvte/backend/swizzle.h"

namespace nvte {
namespace {

constexpr int kSwizzleThreads = 256;
constexpr int kWarps = kSwizzleThreads / 32;

struct Matrix {
  const char *source;
  char *destination;
  size_t m, k, valid_m, valid_k;
  size_t first;  // The number of pieces before this matrix.
  bool transposed;
  bool wide;

  // What a warp moves at a time: a tile, or four neighbours of which a row has 16 aligned bytes.
  __host__ __device__ size_t pieces() const { return m / 128 * (k / 4) / (wide ? 4 : 1); }
  __host__ __device__ void choose_width() {
    wide = !transposed && k % 16 == 0 && reinterpret_cast<uintptr_t>(source) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(destination) % 16 == 0;
  }
};

__host__ __device__ inline Matrix matrix_of(const NVTEXSwizzleEntry &e) {
  const auto *source = static_cast<const char *>(e.source);
  auto *destination = static_cast<char *>(e.destination);
  return {source, destination, e.m, e.k, e.valid_m, e.valid_k, 0, e.transposed, false};
}

// Loads 4 or 16 bytes at any alignment.
template <int kWords>
__device__ __forceinline__ void load_words(const char *p, bool inside, uint32_t (&w)[kWords]) {
  if (reinterpret_cast<uintptr_t>(p) % (4 * kWords) == 0) {
    load_once<4 * kWords>(p, inside, w);
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    w[i] = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const uint32_t byte = inside ? static_cast<uint8_t>(p[4 * i + b]) : 0;
      w[i] |= byte << (8 * b);
    }
  }
}
template <int kWords>
__device__ __forceinline__ void store_words(char *p, const uint32_t (&w)[kWords]) {
  if (reinterpret_cast<uintptr_t>(p) % (4 * kWords) == 0) {
    store_bytes<4 * kWords>(p, w);
    return;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
#pragma unroll
    for (int b = 0; b < 4; ++b) p[4 * i + b] = static_cast<char>(w[i] >> (8 * b));
  }
}

// The bytes of a word that lie before the end; `at` is the place of the first.
__device__ __forceinline__ uint32_t bytes_before(size_t end, size_t at) {
  if (at >= end) return 0;
  return end - at >= 4 ? 0xffffffffu : (1u << (8 * (end - at))) - 1;
}

// Word i of lane l + 8 g becomes word g of lane l + 8 i; its own inverse.
__device__ __forceinline__ void exchange_words(uint32_t (&w)[4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = lane & (8 * step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t low_word = w[i], high_word = w[i + step];
      const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? low_word : high_word, 8 * step);
      w[i] = high ? got : low_word;
      w[i + step] = high ? high_word : got;
    }
  }
}

// The row of the 16 bytes of a tile that a lane has.
__device__ __forceinline__ int row_in_tile(bool transposed) {
  const int lane = threadIdx.x % 32;
  return transposed ? 4 * (lane % 8) + lane / 8 : lane;
}

// Word g of row r in a tile has the 4 columns of row 32 g + r. Of a transposed matrix a lane
// exchanges words of 4 rows of one column, so that 8 lanes touch 32 neighbouring bytes.
__device__ __forceinline__ void move_tile(const Matrix &a, size_t tile, bool unswizzle) {
  const int lane = threadIdx.x % 32;
  const size_t tiles_per_row = a.k / 4;
  const size_t m0 = tile / tiles_per_row * 128, k0 = tile % tiles_per_row * 4;
  const size_t line0 = a.transposed ? k0 : m0 + lane, line_step = a.transposed ? 1 : 32;
  const size_t at = a.transposed ? m0 + 4 * lane : k0, pitch = a.transposed ? a.m : a.k;
  const size_t tiled = tile * 512 + row_in_tile(a.transposed) * 16;
  uint32_t w[4];
  if (unswizzle) {
    load_words(a.source + tiled, true, w);
    if (a.transposed) {
      exchange_words(w);
      uint32_t t[4];
      transpose_words(w, t);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = t[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word[1] = {w[i]};
      store_words(a.destination + (line0 + i * line_step) * pitch + at, word);
    }
    return;
  }
  const size_t lines = a.transposed ? a.valid_k : a.valid_m;
  const uint32_t mask = bytes_before(a.transposed ? a.valid_m : a.valid_k, at);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const size_t line = line0 + i * line_step;
    uint32_t word[1];
    load_words(a.source + line * pitch + at, line < lines && mask != 0, word);
    w[i] = word[0] & mask;
  }
  if (a.transposed) {
    uint32_t t[4];
    transpose_words(w, t);
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = t[i];
    exchange_words(w);
  }
  store_words(a.destination + tiled, w);
}

// Row 32 i + lane of four tiles is the same word of each of them.
__device__ __forceinline__ void move_wide(const Matrix &a, size_t piece, bool unswizzle) {
  const int lane = threadIdx.x % 32;
  const size_t pieces_per_row = a.k / 16;
  const size_t m0 = piece / pieces_per_row * 128 + lane, k0 = piece % pieces_per_row * 16;
  const size_t tiled = piece * 2048 + lane * 16;
  uint32_t x[4][4], y[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const size_t line = m0 + 32 * i;
    if (unswizzle) {
      load_once<16>(a.source + tiled + 512 * i, true, x[i]);
    } else {
      load_once<16>(a.source + line * a.k + k0, line < a.valid_m && k0 < a.valid_k, x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      y[j][i] = unswizzle ? x[i][j] : x[i][j] & bytes_before(a.valid_k, k0 + 4 * j);
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const size_t to = unswizzle ? (m0 + 32 * j) * a.k + k0 : tiled + 512 * j;
    store_bytes<16>(a.destination + to, y[j]);
  }
}

__device__ __forceinline__ void move_piece(const Matrix &a, size_t piece, bool unswizzle) {
  if (a.wide) {
    move_wide(a, piece, unswizzle);
  } else {
    move_tile(a, piece, unswizzle);
  }
}

template <int kCapacity>
struct Matrices {
  int count;
  bool unswizzle;
  size_t pieces;
  Matrix of[kCapacity];
};

// The last of `count` matrices that begins at or before a piece.
template <class First>
__device__ __forceinline__ int find(int count, size_t piece, First first) {
  int low = 0;
  for (int high = count; high - low > 1;) {
    const int middle = (low + high) / 2;
    (first(middle) <= piece ? low : high) = middle;
  }
  return low;
}

// Each warp moves a piece.
template <int kCapacity>
__global__ void __launch_bounds__(kSwizzleThreads)
    swizzle_kernel(const __grid_constant__ Matrices<kCapacity> a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t piece = size_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (piece >= a.pieces) return;
  const int i = find(a.count, piece, [&](int i) { return a.of[i].first; });
  move_piece(a.of[i], piece - a.of[i].first, a.unswizzle);
}

// Exclusive prefix sums of one value per thread; `prefix[kSwizzleThreads]` is the total.
__device__ __forceinline__ void prefix_sum(size_t value, size_t *prefix) {
  prefix[threadIdx.x + 1] = value;
  if (threadIdx.x == 0) prefix[0] = 0;
  __syncthreads();
  for (int step = 1; step < kSwizzleThreads; step *= 2) {
    const int i = threadIdx.x + 1;
    const size_t before = i > step ? prefix[i - step] : 0;
    __syncthreads();
    prefix[i] += before;
    __syncthreads();
  }
}

struct GroupMatrices {
  NVTEXSwizzleEntry entries[2];
  NVTEXGroup group;
  size_t rows, cols;
  bool unswizzle;
};

// blockIdx.y: entry. Each block adds up the tiles of the members, so many at a time as it has
// threads, and its warps take every so many-th tile.
__global__ void __launch_bounds__(kSwizzleThreads)
    swizzle_group_kernel(const __grid_constant__ GroupMatrices a) {
  __shared__ size_t prefix[kSwizzleThreads + 1];
  __shared__ size_t valid_m[kSwizzleThreads], valid_k[kSwizzleThreads];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Matrix whole = matrix_of(a.entries[blockIdx.y]);
  const NVTEXGroup &group = a.group;
  const size_t room = (whole.transposed ? group.col_scales : group.row_scales) / 512;
  size_t base = 0;
  size_t tile = size_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  for (size_t member0 = 0; member0 < group.num_tensors; member0 += kSwizzleThreads) {
    const size_t member = member0 + threadIdx.x;
    size_t tiles = 0;
    if (member < group.num_tensors) {
      const MemberShape shape = member_shape(group, a.rows, a.cols, member);
      const size_t m = whole.transposed ? shape.cols : shape.rows;
      const size_t k = ((whole.transposed ? shape.rows : shape.cols) + 31) / 32;
      valid_m[threadIdx.x] = m;
      valid_k[threadIdx.x] = k;
      tiles = (m + 127) / 128 * ((k + 3) / 4);
    }
    prefix_sum(tiles, prefix);
    const size_t total = prefix[kSwizzleThreads];
    for (; tile < base + total; tile += size_t{gridDim.x} * kWarps) {
      const int i = find(kSwizzleThreads, tile - base, [&](int i) { return prefix[i]; });
      const size_t first = base + prefix[i];
      if (base + prefix[i + 1] > room) {
        // The members after it have no room either.
        tile = SIZE_MAX;
        break;
      }
      Matrix one = whole;
      one.source += first * 512;
      one.destination += first * 512;
      one.valid_m = valid_m[i];
      one.valid_k = valid_k[i];
      one.m = (one.valid_m + 127) / 128 * 128;
      one.k = (one.valid_k + 3) / 4 * 4;
      move_tile(one, tile - first, a.unswizzle);
    }
    base += total;
    __syncthreads();
  }
}

NVTEXOutcome swizzle_group(const NVTEXSwizzleArgs &args, cudaStream_t stream) {
  if (args.num_entries > 2) return unimplemented("more than the two directions of a group");
  GroupMatrices a = {{}, args.group, args.rows, args.cols, args.unswizzle};
  for (size_t i = 0; i < args.num_entries; ++i) a.entries[i] = args.entries[i];
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  // About as many warps as tiles, if the members are not thin.
  size_t blocks = ceil_div(
      ceil_div(args.rows, 128) * ceil_div(args.cols, 128) + args.group.num_tensors, kWarps);
  const size_t most = 32 * static_cast<size_t>(device.sm_count);
  if (blocks > most) blocks = most;
  return launch(swizzle_group_kernel,
                dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(args.num_entries)),
                kSwizzleThreads, stream, a);
}

template <int kCapacity>
NVTEXOutcome swizzle(const NVTEXSwizzleArgs &args, size_t begin, size_t end, cudaStream_t stream) {
  Matrices<kCapacity> a = {};
  a.unswizzle = args.unswizzle;
  for (size_t i = begin; i < end; ++i) {
    Matrix &matrix = a.of[a.count++] = matrix_of(args.entries[i]);
    matrix.choose_width();
    matrix.first = a.pieces;
    a.pieces += matrix.pieces();
  }
  const size_t blocks = ceil_div(a.pieces, kWarps);
  if (blocks > kMaxBlocks) return unimplemented("the scales have too many tiles");
  return launch(swizzle_kernel<kCapacity>, dim3(static_cast<unsigned>(blocks)), kSwizzleThreads,
                stream, a);
}

// A warp for each tile of four rows of 32 per lane.
__global__ void __launch_bounds__(kSwizzleThreads)
    scale_codes_kernel(const __grid_constant__ NVTEXScaleCodesArgs a, size_t across, size_t tiles) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t tile = size_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (tile >= tiles) return;
  const size_t row0 = tile / across * 128 + threadIdx.x % 32, block = tile % across;
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const size_t row = row0 + 32 * i;
    const size_t at = a.square ? row / 128 * a.stride + block : block * a.stride + row;
    const uint32_t bits = a.square || row < a.rows ? __float_as_uint(a.scales[at]) : 0;
    w[i] = (bits >> 23 & 0xff) * 0x01010101u;
  }
  store_words(static_cast<char *>(a.codes) + tile * 512 + threadIdx.x % 32 * 16, w);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_swizzle(const NVTEXSwizzleArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->group.num_tensors != 0) return swizzle_group(*args, stream);
  // Kernel parameters hold 4 KB at the usual launch cost, 32 KB at a higher one.
  constexpr size_t kFew = 60, kMany = 500;
  for (size_t begin = 0; begin < args->num_entries;) {
    const size_t left = args->num_entries - begin;
    const size_t end = begin + (left < kMany ? left : kMany);
    const NVTEXOutcome launched = left <= kFew ? swizzle<kFew>(*args, begin, end, stream)
                                               : swizzle<kMany>(*args, begin, end, stream);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    begin = end;
  }
  return ok();
}

extern "C" NVTEXOutcome nvte_cuda_scale_codes(const NVTEXScaleCodesArgs *args,
                                              cudaStream_t stream) noexcept {
  using namespace nvte;
  const size_t across = ceil_div(args->cols, 128), tiles = ceil_div(args->rows, 128) * across;
  const size_t blocks = ceil_div(tiles, kWarps);
  if (blocks > kMaxBlocks) return unimplemented("the scales have too many tiles");
  return launch(scale_codes_kernel, dim3(static_cast<unsigned>(blocks)), kSwizzleThreads, stream,
                *args, across, tiles);
}
