// Row-wise MXFP8 data to column-wise ones, with the codes of both in tiles of 128 x 4.

#include "common/scale.cuh"
#include "common/tile.cuh"
#include "nvte/backend/cast.h"

namespace nvte {
namespace {

// A tile is 128 x 128: 16 lanes span its columns, a thread has 8 rows of 8 columns.
constexpr int kTile = 128, kBlock = 32, kBlocks = kTile / kBlock;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kLanes = 16, kVec = 8, kHeight = 8;
static_assert(kLanes * kVec == kTile && kThreads / kLanes * kHeight == kTile, "a block is a tile");
static_assert(32 / kLanes * kHeight * 2 == kBlock, "two warps have a block of rows");

// Number of offsets up to a row, for all lanes of a full warp: the last of them begins its group.
__device__ __forceinline__ size_t offsets_until(const NVTEXRequantizeArgs &a, size_t row) {
  const auto at = static_cast<int64_t>(row * a.cols);
  size_t count = 0;
  for (size_t first = 0; first <= a.num_groups; first += 32) {
    const size_t i = first + threadIdx.x % 32;
    const bool here = i <= a.num_groups && a.offsets[i] <= at;
    count += __popc(__ballot_sync(0xffffffffu, here));
  }
  return count;
}

__device__ __forceinline__ void put_word(uint8_t *to, uint32_t word) {
  if (reinterpret_cast<uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<uint32_t *>(to) = word;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

template <class In, bool kCopy, bool kThroughBf16>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(4))
    requantize_kernel(const __grid_constant__ NVTEXRequantizeArgs a) {
  __shared__ alignas(16) uint32_t row_codes[kTile];  // One word has the codes of four blocks.
  __shared__ alignas(16) float maxima[kWarps][kTile];
  __shared__ alignas(16) uint32_t inverses[kBlocks][kTile];
  __shared__ alignas(16) uint8_t col_codes[kTile * kBlocks];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane % kLanes, part = lane / kLanes;
  const int row = (warp * 2 + part) * kHeight, col = group * kVec;
  const size_t tiles = a.cols / kTile, tile = blockIdx.x % tiles;
  const size_t row0 = blockIdx.x / tiles * kTile;
  const size_t at = (row0 + row) * a.cols + tile * kTile + col;

  Vec<In, kVec> x[kHeight];
#pragma unroll
  for (int p = 0; p < kHeight; ++p) x[p] = load<In, kVec>(a.input, at + p * a.cols, true);
  uint32_t line = 0;
  if (threadIdx.x < kTile) {
    const uint8_t *from = a.codes + (row0 + threadIdx.x) * a.code_stride + tile * kBlocks;
    if (reinterpret_cast<uintptr_t>(a.codes) % 4 == 0 && a.code_stride % 4 == 0) {
      line = *reinterpret_cast<const uint32_t *>(from);
    } else {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) line |= uint32_t{from[i]} << (8 * i);
    }
    row_codes[threadIdx.x] = line;
  }
  const size_t passed = offsets_until(a, row0);
  if (passed == 0 || passed > a.num_groups) return;
  __syncthreads();
  if (threadIdx.x < kTile) {
    const int to = threadIdx.x % 32 * 16 + threadIdx.x / 32 * 4;
    put_word(a.rowwise_codes + (row0 / kTile * tiles + tile) * 512 + to, line);
  }

  float factors[kHeight];
#pragma unroll
  for (int p = 0; p < kHeight; ++p) {
    factors[p] = __uint_as_float(e8m0_value(row_codes[row + p] >> (col / kBlock * 8) & 0xff));
  }
  const auto values = [&](int p, int j, float (&v)[4]) {
    In::to_float(x[p].w[j], v);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], factors[p]);
    if constexpr (kThroughBf16) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        float two[2] = {v[i], v[i + 1]};
        BF16::to_float(BF16::from_float(two), two);
        v[i] = two[0], v[i + 1] = two[1];
      }
    }
  };

  float most[kVec] = {};
#pragma unroll
  for (int p = 0; p < kHeight; ++p) {
    Vec<BF16, kVec> copy;
#pragma unroll
    for (int j = 0; j < kVec / 4; ++j) {
      float v[4];
      values(p, j, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) most[j * 4 + i] = fmaxf(most[j * 4 + i], fabsf(v[i]));
      if constexpr (kCopy) {
        copy.w[2 * j] = BF16::from_float({v[0], v[1]});
        copy.w[2 * j + 1] = BF16::from_float({v[2], v[3]});
      }
    }
    if constexpr (kCopy) store(a.dequantized, at + p * a.cols, copy);
  }
  // The two parts of the warp share out the columns.
  float own[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float given = part == 0 ? most[i + 4] : most[i], kept = part == 0 ? most[i] : most[i + 4];
    own[i] = fmaxf(kept, __shfl_xor_sync(0xffffffffu, given, kLanes));
  }
  *reinterpret_cast<float4 *>(&maxima[warp][col + part * 4]) =
      make_float4(own[0], own[1], own[2], own[3]);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kTile * kBlocks / kThreads; ++k) {
    const int c = threadIdx.x % kTile, q = threadIdx.x / kTile + k * (kThreads / kTile);
    const float amax = fmaxf(maxima[2 * q][c], maxima[2 * q + 1][c]);
    const uint32_t code = e8m0_code(__float_as_uint(__fmul_rn(amax, 1.0f / 448.0f)));
    inverses[q][c] = e8m0_reciprocal(code);
    col_codes[c % 32 * 16 + c / 32 * 4 + q] = static_cast<uint8_t>(code);
  }
  __syncthreads();

  uint32_t inverse[2][4];
  load_shared(&inverses[row / kBlock][col], inverse[0]);
  load_shared(&inverses[row / kBlock][col + 4], inverse[1]);
  // A zero that the compiler does not know, because no reciprocal is a NaN, has it compute the
  // values again instead of holding all of them in registers.
  const uint32_t zero = inverse[0][0] == 0xffffffff;
#pragma unroll
  for (int p = 0; p < kHeight; ++p) {
    Vec<E4M3, kVec> y;
#pragma unroll
    for (int j = 0; j < kVec / 4; ++j) {
      float v[4];
      x[p].w[j] ^= zero;
      values(p, j, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = __fmul_rn(v[i], __uint_as_float(inverse[j][i]));
      y.w[j] = E4M3::from_float(v);
    }
    store(a.colwise, at + p * a.cols, y);
  }
  if (threadIdx.x < kTile) {
    // Wrong offsets still give groups of whole tiles, which contain these rows.
    const size_t first = static_cast<size_t>(a.offsets[passed - 1]) / a.cols;
    const size_t last = static_cast<size_t>(a.offsets[passed]) / a.cols;
    const size_t begin = min(first, row0) / kTile * kTile;
    const size_t end = min(max(last, row0 + kTile), a.rows);
    const size_t place = tile * ((end - begin) / kTile) + (row0 - begin) / kTile;
    put_word(a.colwise_codes + begin / kBlock * a.cols + place * 512 + threadIdx.x * 4,
             reinterpret_cast<const uint32_t *>(col_codes)[threadIdx.x]);
  }
}

template <class In, bool kCopy, bool kThroughBf16>
NVTEXOutcome requantize(const NVTEXRequantizeArgs &a, cudaStream_t stream) {
  const size_t across = a.cols / kTile, down = a.rows / kTile;
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  return launch(requantize_kernel<In, kCopy, kThroughBf16>,
                dim3(static_cast<unsigned>(across * down)), kThreads, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_requantize(const NVTEXRequantizeArgs *args,
                                             cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<E4M3, E5M2>(args->input_dtype, [&](auto in) {
    using In = decltype(in);
    if (args->dequantized != nullptr) {
      return args->through_bf16 ? requantize<In, true, true>(*args, stream)
                                : requantize<In, true, false>(*args, stream);
    }
    return args->through_bf16 ? requantize<In, false, true>(*args, stream)
                              : requantize<In, false, false>(*args, stream);
  });
}
