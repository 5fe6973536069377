// The kernel of casts to FP8 in tiles, of the input or a function of it: row-wise, column-wise or
// both from one read of the inputs; of one matrix or of a group.
#pragma once

#include "block_scales.cuh"
#include "row_queue.cuh"

namespace nvte {

// Has L2 fetch the elements of a tile of a plain cast, in whole lines and before its loads, while
// the launch before this one ends. H200, bf16 8192 x 8192 in both directions, GB/s without and
// with: mode 0 3844 and 3897, 1D 3730 and 3817, 2D 3812 and 3880, mode 0 of 128 members 3767 and
// 3806. Of tiles that come 264 or 396 blocks later: mode 0 3733 and 3257, 1D 3678 and 3185; MXFP8
// alone gains by that, 3728 with 264, 3664 with its own, 3633 without. Functions lose up to 12 % by
// it.
template <class In, class Scale>
__device__ __forceinline__ void prefetch_tile(const TileCastArgs<Scale> &args, uint32_t tile) {
  const NVTEXCast &q = args.q;
  const int bytes = bytes_of<In>(q.input_dtype), length = 128 / bytes, lines = kTile / length;
  const uint32_t index = args.tiles_per_line.quotient(tile);
  const uint32_t place = tile - index * args.tiles_per_line.value;
#pragma unroll
  for (int i = kThreads - 1 - threadIdx.x; i < kTile * lines; i += kThreads) {
    const size_t row = size_t{args.down ? place : index} * kTile + i / lines;
    const size_t col = size_t{args.down ? index : place} * kTile + i % lines * length;
    if (row < q.rows && col < q.cols) {
      const void *line = address_of<In>(q.input_dtype, q.input, row * q.cols + col);
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  }
}

// The sums of a thread's rows, to be added up by add_sums() when all threads have put theirs.
template <class Shared>
__device__ __forceinline__ void put_sums(Shared &shared, const ThreadTile &my,
                                         float (&sums)[kVec]) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    sums[i] = __fadd_rn(sums[i], __shfl_xor_sync(0xffffffffu, sums[i], kLanes));
  }
  if (my.word == 0) {
    auto *to = reinterpret_cast<float4 *>(shared.sums + my.warp * kTile + my.col);
    to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
  }
}
template <class Shared>
__device__ __forceinline__ void add_sums(const Shared &shared, float *workspace, const Matrix &m,
                                         const ThreadTile &my) {
  const int c = threadIdx.x;
  if (c >= my.width) return;
  float sum = shared.sums[c];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum = __fadd_rn(sum, shared.sums[w * kTile + c]);
  workspace[(m.row_tiles + my.row0 / kTile) * m.cols + my.col0 + c] = sum;
}

__device__ __forceinline__ bool is_noop(const NVTEXCast &q) {
  return q.noop != nullptr && *q.noop == 1.0f;
}

// The thread's rows of a tile of a plain cast.
template <class In>
using Rows = Vec<In, kVec>[kPack][1];
template <class In, class Scale>
__device__ __forceinline__ void load_tile(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, Rows<In> &x) {
  const NVTEXCast &q = args.q;
  if (m.in_vec) {
    const size_t at = m.at + (my.row0 + my.row) * m.cols + my.col0 + my.col;
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      x[p][0] =
          load_as<In, kVec>(q.input_dtype, q.input, at + p * m.cols, p < my.rows && 0 < my.cols);
    }
  } else {
#pragma unroll
    for (int p = 0; p < kPack; ++p) load_row<In, NVTEX_FORM_PLAIN>(args, m, my, p, x[p]);
  }
}

// `rows`: those of the tile, or of a function the queue that they come from; request(row) asks for
// those of this tile, or of the next one from kPack on.
template <class In, class Scale, bool kSquare, NVTEXForm kForm, class Shared, class Source,
          class Request>
__device__ __forceinline__ void cast_tile(const TileCastArgs<Scale> &args, const Matrix &m,
                                          const ThreadTile &my, Shared &shared, Source &rows,
                                          const Request &request) {
  constexpr bool kTensor = Shared::kTensor, kHalved = kHalvesOf<kForm> == 2;
  constexpr bool kDbias = kForm == NVTEX_FORM_PLAIN || kForm == NVTEX_FORM_DERIVATIVE;
  const NVTEXCast &q = args.q;
  const float scale = kTensor && m.scale != nullptr ? *m.scale : 1.0f;
  const int seen = kTensor && q.amax != nullptr && threadIdx.x == 0
                       ? __ldcg(reinterpret_cast<int *>(q.amax))
                       : 0;

  // What is stored in the end: codes, or elements of the input's type that still need their scales.
  using Row = std::conditional_t<kTensor, Codes, Vec<In, kVec>>;
  Row y[kHalvesOf<kForm>][kPack];
  float sums[kVec];
  AbsMax<F32> amax;
  const auto consume = [&](float (&v)[kHalvesOf<kForm>][kVec], int p) {
    if constexpr (kDbias) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[i] = p == 0 ? v[0][i] : __fadd_rn(sums[i], v[0][i]);
    }
#pragma unroll
    for (int h = 0; h < kHalvesOf<kForm>; ++h) {
      if constexpr (kTensor) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          amax.packed = max_packed<F32>(amax.packed, magnitudes<F32>(__float_as_uint(v[h][i])));
          v[h][i] = __fmul_rn(v[h][i], scale);
        }
        append(y[h], encode(args.e5m2, v[h]));
      } else if constexpr (kForm != NVTEX_FORM_PLAIN) {
        append(y[h], from_float_as<In>(q.input_dtype, v[h]));
      }
    }
  };
  if constexpr (kForm == NVTEX_FORM_PLAIN) {
    if (kTensor || q.fusion.dbias != nullptr) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) {
        float v[1][kVec];
        to_float(rows[p][0], v[0]);
        consume(v, p);
      }
    }
    if constexpr (!kTensor) {
#pragma unroll
      for (int p = 0; p < kPack; ++p) y[0][p] = rows[p][0];
    }
  } else {
    produce<In, kForm>(args, m, my, rows, request, consume);
  }
  if constexpr (kDbias) {
    if (q.fusion.dbias != nullptr) put_sums(shared, my, sums);
  }
  if constexpr (kTensor) shared.block.put(amax.bits());

  const auto finish = [&](const ThreadTile &my, const Row(&y)[kPack]) {
    if constexpr (kTensor) {
      if (q.rowwise != nullptr) store_rows(q.rowwise, m.row_vec, m, my, y);
      if (q.colwise != nullptr) store_columns(shared.tile, q.colwise, m, my, y);
    } else {
      cast_blocks<In, Scale, kSquare>(args, m, my, y, shared);
    }
  };
  if constexpr (kHalved) {
    ThreadTile half = my;
#pragma unroll 1
    for (int h = 0;; ++h) {
      finish(half, y[0]);
      if (h == 1 || !args.split) break;
      half.col0 += m.cols / 2;
#pragma unroll
      for (int p = 0; p < kPack; ++p) y[0][p] = y[1][p];
      __syncthreads();
    }
  } else {
    finish(my, y[0]);
  }

  if (kTensor || (kDbias && q.fusion.dbias != nullptr)) __syncthreads();
  if constexpr (kDbias) {
    if (q.fusion.dbias != nullptr) add_sums(shared, q.fusion.workspace, m, my);
  }
  if constexpr (kTensor) {
    if (q.amax != nullptr && my.warp == 0) {
      const int bits = shared.block.get();
      if (threadIdx.x == 0 && bits > seen) {
        atomicMax(reinterpret_cast<int *>(q.amax), bits);
      }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      const float inverse = __frcp_rn(scale);
      if (q.rowwise_scale_inv != nullptr) *static_cast<float *>(q.rowwise_scale_inv) = inverse;
      if (q.colwise_scale_inv != nullptr) *static_cast<float *>(q.colwise_scale_inv) = inverse;
    }
  }
}

// Blocks of a multiprocessor. H200, bf16 8192 x 8192 in both directions, us with 2 and 3: 1D 76.6
// and 71.8, 2D 72.1 and 69.9, MXFP8 73.8 and 75.3, MXFP8 square 73.5 and 73.3. float32 does not fit
// 3.
template <class In, class Scale, bool kSquare, NVTEXForm kForm>
constexpr int blocks_of() {
  constexpr bool kTensor = std::is_same_v<Scale, TensorScale>;
  if (kForm == NVTEX_FORM_PLAIN) {
    return In::kBytes == 2 && (Scale::kBlock == 128 || kSquare) ? 3 : 2;
  }
  const bool halves = kForm == NVTEX_FORM_GATED_DERIVATIVE;
  return In::kBytes == 4 || (halves && !kTensor) ? 1 : 2;
}

// Whether a block has two tiles of a function: those of float32 leave too few registers.
template <class In>
constexpr bool kPairs = In::kBytes == 2;

template <class In, class Scale, bool kSquare, NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads,
                                  blocks_here<kThreads>(blocks_of<In, Scale, kSquare, kForm>()))
    quantize_kernel(const __grid_constant__ TileCastArgs<Scale> args) {
  constexpr bool kDbias = kForm == NVTEX_FORM_PLAIN || kForm == NVTEX_FORM_DERIVATIVE;
  constexpr bool kPlain = kForm == NVTEX_FORM_PLAIN, kHalved = kHalvesOf<kForm> == 2;
  __shared__ TileShared<In, Scale, kSquare, kDbias> shared;
  // Without this alignment copies to it would straddle lines.
  extern __shared__ __align__(128) uint4 memory[];
  auto &queue = *reinterpret_cast<RowQueue<In, kForm> *>(memory);
  const NVTEXCast &q = args.q;
  // Data may be fetched before what is in them is there.
  if (kPlain && blockIdx.x < args.ahead) prefetch_tile<In>(args, blockIdx.x);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Matrix &m = args.matrix;
  const auto place = [&](uint32_t tile) {
    const uint32_t line = args.tiles_per_line.quotient(tile);
    const uint32_t place = tile - line * args.tiles_per_line.value;
    return ThreadTile(m, size_t{args.down ? place : line} * kTile,
                      size_t{args.down ? line : place} * kTile,
                      kHalved && args.split ? m.cols / 2 : m.cols);
  };
  if constexpr (kPlain) {
    const uint32_t next = blockIdx.x + args.ahead;
    if (next < args.tiles) prefetch_tile<In>(args, next);
    const bool noop = is_noop(q);
    const ThreadTile my = place(blockIdx.x);
    Rows<In> x;
    load_tile(args, m, my, x);
    if (noop) return;
    cast_tile<In, Scale, kSquare, kForm>(args, m, my, shared, x, [](int) {});
  } else if constexpr (!kPairs<In>) {
    const ThreadTile my = place(blockIdx.x);
    with_rows<In, kForm>(args, m, my, queue, [&](const auto &request) {
      cast_tile<In, Scale, kSquare, kForm>(args, m, my, shared, queue, request);
    });
  } else {
    uint32_t tile = blockIdx.x;
    ThreadTile my = place(tile);
#pragma unroll
    for (int p = 0; p < RowQueue<In, kForm>::kAhead; ++p) queue.request(args, m, my, p);
    for (;;) {
      tile += gridDim.x;
      const ThreadTile next = place(tile);
      const bool more = tile < args.tiles;
      cast_tile<In, Scale, kSquare, kForm>(args, m, my, shared, queue, [&](int p) {
        if (p < kPack) {
          queue.request(args, m, my, p);
        } else if (more) {
          queue.request(args, m, next, p - kPack);
        } else {
          cp_async_commit_group();
        }
      });
      if (!more) return;
      __syncthreads();
      my = next;
    }
  }
}

// A tile of a group.
struct Found {
  Matrix matrix;
  uint32_t row0, col0;  // Of the tile.
  bool any;             // Whether there is such a tile.
};

// Warps that look up a tile: the first finds the member's data and its tiles of 128 rows in the
// workspace for dbias, the second its scales.
template <class Scale>
constexpr unsigned kFinders = std::is_same_v<Scale, TensorScale> ? 1 : 2;

// Looks up a tile, for each of these warps.
template <class In, class Scale, bool kSquare, NVTEXForm kForm>
__device__ __forceinline__ void find_tile(const TileCastArgs<Scale> &args, uint32_t tile,
                                          Found &found) {
  constexpr bool kTensor = std::is_same_v<Scale, TensorScale>;
  constexpr NVTEScalingMode kMode = kModeOf<Scale, kSquare>;
  constexpr int kTotals = 2;
  const NVTEXCast &q = args.q;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Member member;
  size_t before[kTotals];
  uint32_t across = 0;  // The tile's place in the line of tiles `member.unit`.
  bool any;
  if (args.lines) {
    const uint32_t line = args.tiles_across.quotient(tile);
    across = tile - line * args.tiles_across.value;
    MemberTotal totals[kTotals];
#pragma unroll
    for (int t = 0; t < kTotals; ++t) totals[t] = args.totals[kTotals * warp + t];
    any = find_line(q.group, q.rows, q.cols, line, 7, totals, member, before);
  } else {
    const auto tiles = [&](uint32_t rows, uint32_t cols) {
      return scales_fit(q.group, kMode, rows, cols) ? tiles_of(rows) * tiles_of(cols) : 0;
    };
    const auto size = [&](uint32_t rows, uint32_t cols, int t) -> size_t {
      if (warp == 1) return scale_entries(kMode, t == 1, rows, cols);
      return t == 0 ? size_t{rows} * cols : tiles_of(rows);
    };
    any = find_member(q.group, q.rows, q.cols, tile, tiles, size, member, before);
  }
  Matrix &m = found.matrix;
  if (threadIdx.x == 0) found.any = any && !(kForm == NVTEX_FORM_PLAIN && is_noop(q));
  if (!any) return;
  if (threadIdx.x == 0) {
    uint32_t line = member.unit, place = across;
    if (args.down || q.group.last_dims != nullptr) {
      const uint32_t per_line = tiles_of(args.down ? member.rows : member.cols);
      const uint32_t unit = line * args.tiles_across.value + place;
      line = unit / per_line, place = unit - line * per_line;
    }
    found.row0 = (args.down ? place : line) * kTile;
    found.col0 = (args.down ? line : place) * kTile;
    const size_t at = data_begin(q.group, member.index, member.rows, member.cols, before[0]);
    set_data<In, Scale, kForm>(m, q, member.index, member.rows, member.cols, at);
    m.row_tiles = row_tiles_begin(q.group, q.rows, member, before[1]);
  }
  if constexpr (!kTensor) {
    if (warp == 1 && lane < 2) {
      const bool colwise = lane == 1;
      void *const scales = colwise ? q.colwise_scale_inv : q.rowwise_scale_inv;
      (colwise ? m.col_scales : m.row_scales) =
          static_cast<typename Scale::Entry *>(scales) +
          scales_begin(q.group, kMode, colwise, member.rows, member.cols, before[colwise ? 1 : 0]);
      (colwise ? m.col_stride : m.row_stride) =
          scale_pitch(kMode, colwise, member.rows, member.cols);
    }
  }
}

// Kernels take time to compile: functions of groups, other than gated ones to MXFP8, and other
// inputs than BF16 have the loop over tiles alone. Where they are functions of other inputs, it
// also has the tiles of a lone matrix.
template <class In, class Scale, bool kSquare, NVTEXForm kForm>
constexpr bool kLoopAlone =
    kIsWidened<In> ||
    (kForm != NVTEX_FORM_PLAIN && (kForm != NVTEX_FORM_GATED || !Scale::kMx || kSquare));
template <class In, NVTEXForm kForm>
constexpr bool kLoneInLoop =
    kIsWidened<In> && kForm != NVTEX_FORM_PLAIN && kForm != NVTEX_FORM_GATED_DERIVATIVE;

// kLoop: the rest of a group's tiles, or all of them, which takes more registers than one tile.
// Functions and other inputs than BF16 take too many for two blocks on a multiprocessor.
template <class In, class Scale, bool kSquare, NVTEXForm kForm, bool kLoop>
constexpr int group_blocks_of() {
  if (kLoopAlone<In, Scale, kSquare, kForm>) return 1;
  return kLoop ? 2 : blocks_of<In, Scale, kSquare, kForm>();
}

template <class In, class Scale, bool kSquare, NVTEXForm kForm, bool kLoop>
__global__ void __launch_bounds__(
    kThreads, blocks_here<kThreads>(group_blocks_of<In, Scale, kSquare, kForm, kLoop>()))
    quantize_group_kernel(const __grid_constant__ TileCastArgs<Scale> args) {
  constexpr bool kDbias = kForm == NVTEX_FORM_PLAIN || kForm == NVTEX_FORM_DERIVATIVE;
  constexpr bool kPlain = kForm == NVTEX_FORM_PLAIN, kHalved = kHalvesOf<kForm> == 2;
  __shared__ TileShared<In, Scale, kSquare, kDbias> shared;
  __shared__ Found found;
  extern __shared__ __align__(128) uint4 memory[];
  auto &queue = *reinterpret_cast<RowQueue<In, kForm> *>(memory);
  const NVTEXCast &q = args.q;
  if (kPlain && !kLoop && !kIsWidened<In>) prefetch_tile<In>(args, blockIdx.x);
  // The rest of a group's tiles, none of which the first launch has: what comes before in the
  // stream was complete when the blocks of that one let this one start. Most often it finds
  // nothing, while the first one ends.
  const bool late = kLoop && args.first_tile != 0;
  if (!late) griddepcontrol_wait();
  griddepcontrol_launch_dependents();
#pragma unroll 1
  for (uint32_t tile = args.first_tile + blockIdx.x; tile < args.end_tile; tile += gridDim.x) {
    if (threadIdx.x < 32 * kFinders<Scale>) {
      if (kLoneInLoop<In, kForm> && q.group.num_tensors == 0) {
        if (threadIdx.x == 0) {
          const uint32_t line = args.tiles_per_line.quotient(tile);
          const uint32_t place = tile - line * args.tiles_per_line.value;
          found = {args.matrix, (args.down ? place : line) * kTile,
                   (args.down ? line : place) * kTile, true};
        }
      } else {
        find_tile<In, Scale, kSquare, kForm>(args, tile, found);
      }
    }
    __syncthreads();
    if (!found.any) break;
    const Matrix &m = found.matrix;
    const ThreadTile my(m, found.row0, found.col0, kHalved && args.split ? m.cols / 2 : m.cols);
    if constexpr (kPlain) {
      Rows<In> x;
      load_tile(args, m, my, x);
      cast_tile<In, Scale, kSquare, kForm>(args, m, my, shared, x, [](int) {});
    } else {
      with_rows<In, kForm>(args, m, my, queue, [&](const auto &request) {
        cast_tile<In, Scale, kSquare, kForm>(args, m, my, shared, queue, request);
      });
    }
    if (!kLoop) break;
    __syncthreads();
  }
  // A launch that waits for this one must also wait for the one before it.
  if (late) griddepcontrol_wait();
}

}  // namespace nvte
