// What the kernels of casts to NVFP4 share: the problem as the launcher sees it, members of a
// group, scales of tensors, and the random words of blocks.
#pragma once

#include "common/launch.cuh"
#include "common/nvfp4.cuh"
#include "common/philox.cuh"
#include "common/reduce.cuh"
#include "common/scale.cuh"
#include "nvte/backend/nvfp4.h"

namespace nvte {
namespace {

constexpr int kTile = 64;
constexpr int kThreads = 256;
constexpr int kPitch = kTile + 1;
constexpr float kBf16Max = 0x1.FEp127f;

// What the launcher works out for the kernel.
struct Problem {
  NVTEXNvfp4QuantizeArgs a;
  bool vectorised;     // The input is aligned to 16 bytes, rows too.
  size_t strip_tiles;  // Tiles of a strip, for the order of the random words.
};

// Rows of a member of a group.
struct Member {
  size_t index;
  size_t first;
  size_t rows;
};

__device__ __forceinline__ bool propagates_nan(NVTEXNvfp4Variant variant) {
  return variant >= NVTEX_NVFP4_HADAMARD_COLUMNS;
}

__device__ Nvfp4Scale scale_of(const NVTEXNvfp4QuantizeArgs &a, const float *amax, float &global) {
  global = 1.0f;
  if (amax != nullptr) {
    const float most = *amax;
    if (a.variant == NVTEX_NVFP4_HADAMARD || a.variant == NVTEX_NVFP4_HADAMARD_GROUP) {
      global = most > 0.0f ? fminf(__fdiv_rn(a.e4m3_max * kE2m1Max, most), FLT_MAX) : 1.0f;
    } else if (a.variant == NVTEX_NVFP4_HADAMARD_COLUMNS && most != most) {
      global = most;
    } else {
      global = nvfp4_global_scale(most, a.e4m3_max);
    }
  }
  return nvfp4_scale(global);
}

struct Call {
  uint64_t sequence;
  uint32_t call;
  bool exchanged;  // The block's halves.
};

// Sequence and call of the generator for the words of the block that begins at (r, c) of a tile of
// 128 rows and columns: of the variant TUNED, with `calls` for a quarter of the tile.
__device__ __forceinline__ Call tuned_call(uint64_t tile, unsigned calls, bool colwise, unsigned r,
                                           unsigned c) {
  const unsigned in_r = r % 64, in_c = c % 64, first = (r / 64 * 2 + c / 64) * calls;
  if (colwise) {
    const unsigned lane = in_c / 2, warp = (in_r / 16 + 4 - lane / 2 % 4) % 4;
    return {32 * warp + lane + 128 * tile, first + 2 + c % 2, false};
  }
  const unsigned thread = in_r % 32 * 4 + in_c / 16;
  return {thread + 128 * tile, first + in_r / 32, thread % 32 >= 16};
}

// The same of all variants without a transform.
__device__ __forceinline__ Call call_in_tile(const NVTEXNvfp4QuantizeArgs &a, uint64_t tile,
                                             bool colwise, unsigned r, unsigned c) {
  const bool by_row = a.rowwise.data != nullptr, by_col = a.colwise.data != nullptr;
  if (a.variant == NVTEX_NVFP4_TUNED) return tuned_call(tile, by_col ? 4 : 2, colwise, r, c);
  if (a.variant == NVTEX_NVFP4_SQUARE) {
    const unsigned calls = by_row && by_col ? 4 : 2;
    const unsigned call = r / 32 * calls + r % 32 / 16;
    if (colwise) return {c + 128 * tile, call, false};
    const unsigned thread = r % 16 * 8 + c / 16;
    return {thread + 128 * tile, call + calls - 2, thread % 32 >= 16};
  }
  if (colwise) {
    const unsigned thread = c / 2 % 32 * 8 + r / 16;
    return {thread + 256 * tile, (by_row ? 4 : 0) + c / 64 * 2 + c % 2, false};
  }
  return {r % 32 * 8 + c / 16 + 256 * tile, r / 32, false};
}

// The same for the block that begins at (r, c) of the matrix, of all variants.
__device__ Call random_call(const Problem &p, bool colwise, size_t r, size_t c) {
  const NVTEXNvfp4QuantizeArgs &a = p.a;
  r += a.first_row;
  const unsigned tile_r = r % 128, tile_c = c % 128;
  const uint64_t across = (a.cols + 127) / 128, tile = c / 128 + r / 128 * across;
  if (a.variant <= NVTEX_NVFP4_GENERAL) return call_in_tile(a, tile, colwise, tile_r, tile_c);
  const unsigned height = a.variant == NVTEX_NVFP4_HADAMARD_COLUMNS ? 64 : 128;
  const uint64_t per = p.strip_tiles, down = r / height, strip = down % per;
  const uint64_t lin = per * (c / 128 + down / per * across);
  if (a.variant == NVTEX_NVFP4_HADAMARD_COLUMNS) {
    return {tile_c + 256 * strip + 256 * lin, tile_r % 64 / 16, false};
  }
  const uint64_t sequence = 512 * strip + 512 * lin;
  if (colwise) return {128 + tile_c + sequence, tile_r / 16, false};
  if (a.variant == NVTEX_NVFP4_HADAMARD) {
    const unsigned thread = tile_r / 16 * 32 + tile_r % 16 * 2 + tile_c / 64;
    return {768 + thread + sequence, tile_c % 64 / 16, false};
  }
  const unsigned thread = tile_r % 32 / 4 * 32 + tile_r % 4 * 8 + tile_c / 16;
  const uint64_t rows = a.offsets != nullptr ? a.offsets[a.num_tensors] / a.cols : a.total_rows;
  return {768 + thread + sequence + 512 * per * across * (rows / 128), tile_r / 32, false};
}

// The keys of Philox's rounds in shared memory, for blocks of threads that draw often.
struct RoundKeys {
  static constexpr unsigned kRounds = 10;
  alignas(16) uint64_t key[kRounds];

  // By the block's first threads; the others see them after a barrier.
  __device__ __forceinline__ void set(uint64_t seed) {
    const uint32_t round = threadIdx.x;
    if (round >= kRounds) return;
    const uint32_t low = static_cast<uint32_t>(seed) + round * 0x9E3779B9;
    const uint32_t high = static_cast<uint32_t>(seed >> 32) + round * 0xBB67AE85;
    key[round] = uint64_t{high} << 32 | low;
  }
  template <int N>
  __device__ __forceinline__ void operator()(Words (&words)[N]) const {
#pragma unroll
    for (unsigned i = 0; i < kRounds; i += 2) {
      const ulonglong2 two = *reinterpret_cast<const ulonglong2 *>(&key[i]);
      philox_rounds<1>(two.x, words);
      philox_rounds<1>(two.y, words);
    }
  }
};

// The state of the generator.
struct Generator {
  uint64_t seed, offset;

  __device__ __forceinline__ explicit Generator(const NVTEXNvfp4QuantizeArgs &a)
      : seed(a.rng_state != nullptr ? a.rng_state[0] : 0),
        offset(a.rng_state != nullptr ? a.rng_state[1] : 0) {}
  // Without a seed: draw() takes the rounds, which have it, from its caller.
  __device__ __forceinline__ explicit Generator(uint64_t offset) : seed(0), offset(offset) {}

  // The random words of blocks, halves in order; `rounds` goes from counters to words.
  template <int N, class Rounds>
  __device__ __forceinline__ void draw(const Call (&at)[N], Words (&words)[N],
                                       const Rounds &rounds) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint64_t low = offset + at[n].call;
      words[n] = counter_words(low, at[n].sequence + (low < offset ? 1 : 0));
    }
    rounds(words);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (!at[n].exchanged) continue;
      words[n] = {{words[n].w[2], words[n].w[3], words[n].w[0], words[n].w[1]}};
    }
  }
  __device__ __forceinline__ Words operator()(const Call &at) const {
    const Call calls[1] = {at};
    Words words[1];
    draw(calls, words, [&](Words(&w)[1]) { philox_rounds<10>(seed, w); });
    return words[0];
  }
};

__device__ __forceinline__ Member member_of(const NVTEXNvfp4QuantizeArgs &a, size_t row) {
  if (a.offsets == nullptr) return {0, 0, a.rows};
  size_t low = 0, high = a.num_tensors;  // The last member that begins at or before the row.
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (static_cast<size_t>(a.offsets[middle]) / a.cols <= row ? low : high) = middle;
  }
  // Wrong offsets still give whole blocks of the matrix's rows, or none.
  const size_t from = static_cast<size_t>(a.offsets[low]) / a.cols;
  const size_t to = static_cast<size_t>(a.offsets[low + 1]) / a.cols;
  const size_t first = (from < row ? from : row) / 128 * 128;
  const size_t end = (to < a.rows ? to : a.rows) / 128 * 128;
  const size_t rows = end > first ? end - first : 0;
  return {low, first, rows};
}

// Column-wise scales from one column to the next.
__device__ __forceinline__ size_t stride_of(const NVTEXNvfp4QuantizeArgs &a, const Member &member) {
  return a.offsets == nullptr ? a.colwise.scale_stride : member.rows / 16;
}

__device__ __forceinline__ const float *amax_of(const NVTEXNvfp4Lines &lines,
                                                const Member &member) {
  return lines.amax == nullptr ? nullptr : lines.amax + member.index;
}

}  // namespace
}  // namespace nvte
