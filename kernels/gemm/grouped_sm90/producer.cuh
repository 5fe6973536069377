// The producer: it takes pairs of tiles from a counter and copies both operands of each tile.
//
// A cluster of two blocks works on a pair of tiles side by side or one below the other, and each
// block copies half of the operand that they share to both. One thread copies in bulk. Operands
// that bulk copies cannot take, because addresses or pitches are no multiples of 16 bytes, are
// copied by all threads of the warpgroup.
#pragma once

#include "mxfp8.cuh"

namespace nvte {
namespace sm90_grouped {

// The member that a pair of tiles, or a run of them, belongs to.
__device__ __forceinline__ unsigned find_member(const Params &p, unsigned pair) {
  unsigned low = 0, high = p.count;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    if (p.first[middle] <= pair) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The tile of block `rank` of the cluster in a pair.
template <class C>
__device__ __forceinline__ void find_tile(const Params &p, unsigned pair, unsigned rank, Tile &t) {
  // The compiler shall not keep the address of the number of all pairs.
  unsigned count = p.count;
  asm volatile("" : "+r"(count));
  if (pair >= p.first[count]) {
    t.problem = nullptr;
    return;
  }
  const unsigned member = find_member(p, pair);
  const Problem &problem = p.problems[member];
  unsigned in = pair - p.first[member];
  const unsigned col_tiles = tiles(static_cast<unsigned>(problem.m), C::kCols);
  const Strips strips(static_cast<unsigned>(problem.n));
  unsigned row, col;
  t.shares_cols = in < strips.pairs * col_tiles;
  if (t.shares_cols) {
    const unsigned band = in / (kBand * col_tiles), above = band * kBand;
    const unsigned height = min(strips.pairs - above, kBand);
    in -= above * col_tiles;
    col = in / height;
    row = (above + in % height) * 2 + rank;
  } else {
    in -= strips.pairs * col_tiles;
    const unsigned each = tiles(col_tiles, 2);
    row = strips.pairs * 2 + in / each;
    col = in % each * 2 + rank;
  }
  t.problem = &problem;
  t.row = static_cast<int>(row * kRows);
  t.col = static_cast<int>(col * C::kCols);
  t.blocks = static_cast<int>(tiles(static_cast<unsigned>(problem.k), C::kDepth));
  t.bulk = problem.bulk;
}

// Copies a chunk of an operand, from outer `outer` and inner `inner` on, with ordinary loads.
// Elements have 2 bytes, or 1; rows in global memory begin at any address.
template <int kBytes, bool kMn>
__device__ __forceinline__ void copy_chunk(unsigned char *to, const void *data, int outers,
                                           int inners, int outer, int inner) {
  const int lines = kMn ? inners : outers, length = (kMn ? outers : inners) * kBytes;
  const int line0 = kMn ? inner : outer, at = (kMn ? outer : inner) * kBytes;
  const int unit = static_cast<int>(threadIdx.x % 8);  // 16 bytes of a row
  const int r = static_cast<int>(threadIdx.x / 8), begin = at + 16 * unit;
  constexpr int kAll = 4, kLines = kBytes == 2 ? 4 : 2;  // Lines that lie 16 apart, and at a time.
#pragma unroll 1
  for (int first = 0; first < kAll; first += kLines) {
    uint32_t words[kLines][5];
    int shift[kLines], bytes[kLines];
#pragma unroll
    for (int j = 0; j < kLines; ++j) {
      const int line = line0 + r + 16 * (first + j);
      const char *from = static_cast<const char *>(data) + int64_t{line} * length + begin;
      shift[j] = static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
      bytes[j] = line < lines ? max(min(length - begin, 16), 0) : 0;
#pragma unroll
      for (int i = 0; i < 5; ++i) {
        // Words without a byte of the member are not read.
        load_once<4>(from - shift[j] + 4 * i, bytes[j] > 0 && 4 * i < bytes[j] + shift[j],
                     &words[j][i]);
      }
    }
#pragma unroll
    for (int j = 0; j < kLines; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = __funnelshift_r(words[j][i], words[j][i + 1], 8 * static_cast<unsigned>(shift[j]));
        const int left = bytes[j] - 4 * i;
        if (left < 4) w[i] &= left > 0 ? (1u << (8 * left)) - 1 : 0;
      }
      *reinterpret_cast<uint4 *>(to + (r + 16 * (first + j)) * 128 + ((unit ^ (r % 8)) * 16)) =
          make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

// Brings C of a tile into L2; by all warps of the producer but the first.
template <class C>
__device__ __forceinline__ void fetch_c(const Params &p, const Problem &problem, const Tile &t) {
  const int64_t bytes = p.d_dtype == kNVTEFloat32 ? 4 : 2;
  const int64_t length = min(problem.m - t.col, C::kCols) * bytes;
  if (length <= 0) return;
  for (int r = static_cast<int>(threadIdx.x) - 32; r < min(problem.n - t.row, kRows);
       r += C::kProducerThreads - 32) {
    const auto begin =
        reinterpret_cast<uintptr_t>(problem.c) + ((int64_t{t.row} + r) * problem.m + t.col) * bytes;
    const auto first = begin / 16 * 16, end = (begin + length + 15) / 16 * 16;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
                 :
                 : "l"(first), "r"(static_cast<uint32_t>(end - first))
                 : "memory");
  }
}

// Copies the operands of a tile in bulk, by one thread.
template <class C>
__device__ __forceinline__ void copy_bulk(unsigned char *shared, Control<C> &control, const Tile &t,
                                          PipelineState<C::kStages> &at, unsigned rank) {
  constexpr int kColChunks = C::kCols / kChunk;
  const Problem &problem = *t.problem;
  const CUtensorMap *rows_map = &problem.rows_map, *cols_map = &problem.cols_map;
  fence_proxy_tensormap_acquire(rows_map);
  fence_proxy_tensormap_acquire(cols_map);
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.advance()) {
    unsigned char *rows = shared + at.stage * C::kStageBytes, *cols = rows + C::kRowBytes;
    uint64_t *full = control.stages.barrier(at);
    const int inner = i * C::kDepth;
    control.stages.producer_acquire(at);
    mbarrier_arrive_expect_tx(full, C::kStageBytes);
    const auto chunk = [&](bool share, unsigned char *to, const CUtensorMap *map, bool mn,
                           int outer) {
      const int x = mn ? outer : inner, y = mn ? inner : outer;
      if (share) {
        cp_async_bulk_tensor_load_multicast(to, map, full, x, y);
      } else {
        cp_async_bulk_tensor_load(to, map, full, {x, y});
      }
    };
    const int half = static_cast<int>(rank);
    if (t.shares_cols) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        chunk(false, rows + j * kChunkBytes, rows_map, C::kMnRows, t.row + j * kChunk);
      }
#pragma unroll
      for (int j = 0; j < kColChunks / 2; ++j) {
        const int c = half * (kColChunks / 2) + j;
        chunk(true, cols + c * kChunkBytes, cols_map, C::kMnCols, t.col + c * kChunk);
      }
    } else {
      chunk(true, rows + half * kChunkBytes, rows_map, C::kMnRows, t.row + half * kChunk);
#pragma unroll
      for (int j = 0; j < kColChunks; ++j) {
        chunk(false, cols + j * kChunkBytes, cols_map, C::kMnCols, t.col + j * kChunk);
      }
    }
  }
}

// Copies the scales of a tile that is promoted in bulk, by one thread of another warp: one thread
// alone would take longer to start all copies of a stage than its products take.
template <class C>
__device__ __forceinline__ void copy_scales(const Params &p, Control<C> &control, const Tile &t,
                                            PipelineState<C::kStages> &at) {
  const Problem &problem = *t.problem;
  struct Lines {
    const float *from;
    int pitch;
    uint32_t bytes;
  };
  const auto lines = [](NVTEScalingMode mode, const void *scales, int outers, int outer, int most) {
    const int pitch = (outers + 3) / 4 * 4;
    const int count = mode == NVTE_BLOCK_SCALING_1D ? max(min(pitch - outer, most), 0) : 0;
    return Lines{static_cast<const float *>(scales) + outer, pitch,
                 static_cast<uint32_t>(count) * 4};
  };
  Lines rows = lines(p.rows_mode, problem.rows_scales, problem.n, t.row, kRows);
  Lines cols = lines(p.cols_mode, problem.cols_scales, problem.m, t.col, C::kCols);
  // At most one operand has scales of whole blocks.
  const bool of_rows = p.rows_mode == NVTE_BLOCK_SCALING_2D;
  const int outers = of_rows ? problem.n : problem.m, outer = of_rows ? t.row : t.col;
  const bool any = (of_rows || p.cols_mode == NVTE_BLOCK_SCALING_2D) && outer < outers;
  const bool second = any && !of_rows && outer + 128 < outers;
  const int pitch = (t.blocks + 3) / 4 * 4;
  const float *const blocks =
      static_cast<const float *>(of_rows ? problem.rows_scales : problem.cols_scales) +
      int64_t{outer / 128} * pitch;
  const uint32_t bytes = rows.bytes + cols.bytes + (any ? 16 : 0) + (second ? 16 : 0);
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.advance()) {
    uint64_t *full = control.stages.barrier(at);
    control.stages.producer_acquire(at);
    mbarrier_arrive_expect_tx(full, bytes);
    const auto copy = [&](float *to, Lines &x) {
      if (x.bytes != 0) cp_async_bulk_load(to, x.from, x.bytes, full);
      x.from += x.pitch;
    };
    copy(control.row_scales[at.stage], rows);
    copy(control.col_scales[at.stage], cols);
    auto &to = control.block_scales[at.stage];
    if (any) cp_async_bulk_load(to[0], blocks + i / 4 * 4, 16, full);
    if (second) cp_async_bulk_load(to[1], blocks + pitch + i / 4 * 4, 16, full);
  }
}

// Writes scales of MXFP8 of a stage as powers of two, by all warps of the producer but the first.
template <class C>
__device__ __forceinline__ void copy_mx_scales(const Params &p, Control<C> &control, const Tile &t,
                                               PipelineState<C::kStages> &at) {
  constexpr int kWriters = C::kProducerThreads - 32, kLines = (kRows + C::kCols) / kWriters;
  static_assert(kLines * kWriters == kRows + C::kCols);
  const Problem &problem = *t.problem;
  // Computed anew for each tile, because there are no registers to keep what follows from it.
  int thread = static_cast<int>(threadIdx.x) - 32;
  asm volatile("" : "+r"(thread));
  const int last = (problem.k + 31) / 32;
  // Four scales of each line of the thread, which are one word in either order.
  const unsigned char *from[kLines];
  uint32_t next[kLines];
  int to[kLines];
#pragma unroll
  for (int l = 0; l < kLines; ++l) {
    const int line = thread + l * kWriters;
    const bool is_row = line < kRows;
    const MxOperand x = mx_operand<C>(p, t, is_row);
    const int outer = x.outer + (is_row ? line : line - kRows);
    from[l] = outer < x.outers ? x.scales + x.scale_at(outer, 0) : nullptr;
    to[l] = is_row ? mx_row(line) : mx_col(line - kRows);
  }
  const auto fetch = [&](int i) {
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      const bool is_row = thread + l * kWriters < kRows;
      const bool swizzled = is_row ? p.rows_swizzled : p.cols_swizzled;
      next[l] = i < t.blocks && from[l] != nullptr
                    ? __ldg(reinterpret_cast<const uint32_t *>(from[l] + i * (swizzled ? 512 : 4)))
                    : 0x7f7f7f7f;
    }
  };
  fetch(0);
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.advance()) {
    uint32_t words[kLines];
    bool special = i == last / C::kSteps;
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      words[l] = next[l];
      special = special || has_special(words[l]);
    }
    fetch(i + 1);
    control.stages.producer_acquire(at);
    auto *const scales = control.mx_scales + at.stage * C::kSteps;
    if (!special) {
#pragma unroll
      for (int l = 0; l < kLines; ++l) {
#pragma unroll
        for (int s = 0; s < C::kSteps; ++s) {
          scales[s][to[l]] =
              __uint_as_float((s < 3 ? words[l] << (23 - 8 * s) : words[l] >> 1) & 0x7f800000);
        }
      }
    } else {
      // What lies behind the scales may be anything, and its products are zeros.
#pragma unroll 1
      for (int s = 0; s < C::kSteps; ++s) {
        const bool inside = i * C::kSteps + s < last;
#pragma unroll
        for (int l = 0; l < kLines; ++l) {
          scales[s][to[l]] = inside ? decode_e8m0(words[l] >> (8 * s) & 0xff) : 0.0f;
        }
      }
    }
    // A lane commits for its warp, which racecheck does not follow, see copy_odd().
    __syncwarp();
    if (threadIdx.x % 32 == 0) control.stages.producer_commit(at);
  }
}

// Copies a tile without bulk copies, by the warpgroup.
template <class C>
__device__ __forceinline__ void copy_odd(const Params &p, unsigned char *shared,
                                         Control<C> &control, const Tile &t,
                                         PipelineState<C::kStages> &at) {
  constexpr int kColChunks = C::kCols / kChunk;
  const Problem &problem = *t.problem;
#pragma unroll 1
  for (int i = 0; i < t.blocks; ++i, at.advance()) {
    unsigned char *rows = shared + at.stage * C::kStageBytes, *cols = rows + C::kRowBytes;
    control.stages.producer_acquire(at);
#pragma unroll 1
    for (int j = 0; j < 2; ++j) {
      copy_chunk<C::kBytes, C::kMnRows>(rows + j * kChunkBytes, problem.rows_data, problem.n,
                                        problem.k, t.row + j * kChunk, i * C::kDepth);
    }
#pragma unroll 1
    for (int j = 0; j < kColChunks; ++j) {
      copy_chunk<C::kBytes, C::kMnCols>(cols + j * kChunkBytes, problem.cols_data, problem.m,
                                        problem.k, t.col + j * kChunk, i * C::kDepth);
    }
    if constexpr (C::kMx) {
#pragma unroll 1
      for (int line = static_cast<int>(threadIdx.x); line < kRows + C::kCols; line += 128) {
        const bool is_row = line < kRows;
        const MxOperand x = mx_operand<C>(p, t, is_row);
        const int in = is_row ? line : line - kRows;
#pragma unroll 1
        for (int s = 0; s < C::kSteps; ++s) {
          const int step = at.stage * C::kSteps + s, block = i * C::kSteps + s;
          control.mx_scales[step][is_row ? mx_row(in) : mx_col(in)] =
              block < x.blocks() ? decode_e8m0(x.scale(x.outer + in, block)) : 0.0f;
        }
      }
    } else if constexpr (C::kPromote) {
      const auto scales = [&](NVTEScalingMode mode, float *to, const void *from, int outers,
                              int outer, int most) {
        if (mode != NVTE_BLOCK_SCALING_1D) return;
        const int64_t line = int64_t{i} * ((outers + 3) / 4 * 4) + outer;
#pragma unroll 1
        for (int j = static_cast<int>(threadIdx.x); j < min(most, outers - outer); j += 128) {
          to[j] = *element<float>(from, static_cast<size_t>(line + j));
        }
      };
      scales(p.rows_mode, control.row_scales[at.stage], problem.rows_scales, problem.n, t.row,
             kRows);
      scales(p.cols_mode, control.col_scales[at.stage], problem.cols_scales, problem.m, t.col,
             C::kCols);
      const auto blocks = [&](NVTEScalingMode mode, const void *from, int outers, int outer,
                              int count) {
        const int j = static_cast<int>(threadIdx.x);
        if (mode != NVTE_BLOCK_SCALING_2D || j >= count || outer + 128 * j >= outers) return;
        const int64_t where = int64_t{outer / 128 + j} * ((t.blocks + 3) / 4 * 4) + i;
        control.block_scales[at.stage][j][i % 4] =
            *element<float>(from, static_cast<size_t>(where));
      };
      blocks(p.rows_mode, problem.rows_scales, problem.n, t.row, 1);
      blocks(p.cols_mode, problem.cols_scales, problem.m, t.col, 2);
    }
    fence_proxy_async();
    // A thread commits for all that have passed the barrier, as one lane of a warp releases a
    // stage for all. racecheck does not follow that and reports the scales; it reports nothing if
    // every thread commits and releases for itself.
    bar_sync(kProducerBarrier, 128);
    if (threadIdx.x % 32 == 0 && threadIdx.x / 32 < C::kCommits) control.stages.producer_commit(at);
  }
}

// Sends the number of a pair of tiles to both blocks of the cluster.
template <class Control>
__device__ __forceinline__ void send_pair(Control &control, int slot, unsigned pair) {
#pragma unroll
  for (unsigned rank = 0; rank < 2; ++rank) {
    asm volatile(
        "{.reg .b32 to, barrier;\n"
        "mapa.shared::cluster.u32 to, %0, %3;\n"
        "mapa.shared::cluster.u32 barrier, %1, %3;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [to], %2, [barrier];}"
        :
        : "r"(shared_address(&control.pair[slot])), "r"(shared_address(&control.pairs.full[slot])),
          "r"(pair), "r"(rank)
        : "memory");
  }
}

template <class C>
__device__ __forceinline__ void produce_tiles(const Params &p, unsigned char *shared,
                                              Control<C> &control, unsigned rank) {
  PipelineState<C::kStages> at;
  PipelineState<kTiles> slot;  // Of a tile or run, and of the number of the next one.
  for (unsigned pair = blockIdx.x / 2;;) {
    if (threadIdx.x == 0) {
      control.tiles.producer_acquire(slot);
      find_tile<C>(p, pair, rank, control.tile[slot.stage]);
      control.tiles.producer_commit(slot);
    }
    bar_sync(kProducerBarrier, C::kProducerThreads);
    const Tile t = control.tile[slot.stage];
    if (t.problem == nullptr) break;
    // The next number is asked for now, so that it is there when it is needed.
    unsigned next = 0;
    if (threadIdx.x == 0 && rank == 0) next = atomicAdd(p.next, 1u);
    if (threadIdx.x >= 32 && t.problem->beta != 0.0f) fetch_c<C>(p, *t.problem, t);
    if constexpr (C::kMxCast) {
      copy_mx<C>(p, shared, control, t, at);
    } else if (!t.bulk) {
      copy_odd<C>(p, shared, control, t, at);
    } else if (threadIdx.x == 0) {
      copy_bulk<C>(shared, control, t, at, rank);
    } else if (C::kMx && threadIdx.x >= 32) {
      if constexpr (C::kMx) copy_mx_scales<C>(p, control, t, at);
    } else if (C::kPromote && threadIdx.x == 32) {
      if constexpr (!C::kMx) copy_scales<C>(p, control, t, at);
    } else {
      for (int i = 0; i < t.blocks; ++i) at.advance();
    }
    if (threadIdx.x == 0) {
      if (rank == 0) {
        control.pairs.producer_acquire(slot);
        send_pair(control, slot.stage, next);
      }
      control.pairs.producer_expect(slot, sizeof(unsigned));
      control.pairs.consumer_wait(slot);
      pair = control.pair[slot.stage];
      mbarrier_arrive_remote(&control.pairs.empty[slot.stage], 0);
    }
    slot.advance();
  }
  // A block must not end before the other one has arrived at its barriers for the last time.
  for (int i = 0; i < C::kStages; ++i, at.advance()) {
    control.stages.producer_acquire(at);
  }
  if (threadIdx.x == 0 && rank == 0) {
    for (int i = 0; i < kTiles; ++i, slot.advance()) {
      control.pairs.producer_acquire(slot);
    }
  }
}

}  // namespace sm90_grouped
}  // namespace nvte
