// The scales of a tile's blocks: each from the largest magnitude of its block, by exchanges between
// the threads that share it.
#pragma once

#include "tile_cast.cuh"

namespace nvte {

// The maximum over kLength lanes, a power of two, that are kFirst lanes apart.
template <class In, int kLength, int kFirst = 1, int kCount>
__device__ __forceinline__ void lanes_max(uint32_t (&w)[kCount]) {
#pragma unroll
  for (int step = kFirst; step < kFirst * kLength; step *= 2) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      w[i] = max_packed<In>(w[i], __shfl_xor_sync(0xffffffffu, w[i], step));
    }
  }
}

// The largest magnitude in the kBlock columns of the lane's block, in one row: the one of number
// lane % 4 among the four rows of the lane.
template <int kBlock, class In>
__device__ __forceinline__ float own_row_max(const Vec<In, kVec> (&x)[kPack]) {
  AbsMax<In> row[kPack];
#pragma unroll
  for (int p = 0; p < kPack; ++p) row[p].add(x[p]);
  if constexpr (In::kBytes == 2) {
    // Two rows share a word.
    uint32_t w[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a = row[2 * i].packed, b = row[2 * i + 1].packed;
      w[i] = max_packed<In>(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
    }
    lanes_max<In, kBlock / kVec>(w);
    float f[2];
    In::to_float(threadIdx.x & 2 ? w[1] : w[0], f);
    return threadIdx.x & 1 ? f[1] : f[0];
  } else {
    uint32_t w[kPack];
#pragma unroll
    for (int p = 0; p < kPack; ++p) w[p] = row[p].packed;
    lanes_max<In, kBlock / kVec>(w);
    const uint32_t lo = threadIdx.x & 1 ? w[1] : w[0], hi = threadIdx.x & 1 ? w[3] : w[2];
    return __uint_as_float(threadIdx.x & 2 ? hi : lo);
  }
}

template <class Scale>
__device__ __forceinline__ void put_scale(const ScaleMatrix &m, size_t line, size_t block,
                                          bool inside, typename Scale::Entry entry) {
  if (!inside) {
    if (!Scale::kMx) return;
    entry = 0;
  }
  static_cast<typename Scale::Entry *>(m.entries)[m.index(line, block)] = entry;
}

template <class In, class Scale, bool kSquare, bool kDbias>
struct TileShared {
  static constexpr bool kTensor = std::is_same_v<Scale, TensorScale>;
  static constexpr int kBlocks = kTile / Scale::kBlock, kPer = 4 / In::kBytes;
  alignas(16) uint32_t tile[Scale::kMx ? 4 : kTile * kTile / 4];
  alignas(16) uint32_t maxima[kTensor ? 4 : kSquare ? kBlocks * kWarps : kWarps * kTile / kPer];
  alignas(16) float factors[kTensor || kSquare ? 4 : kBlocks * kTile];
  alignas(16) float sums[kDbias ? kWarps * kTile : 4];
  BlockMax<kThreads> block;
};

// Scales and stores a tile of the elements x. kSquare: one scale for kBlock rows and columns, else
// one for each row and one for each column of a block.
template <class In, class Scale, bool kSquare, class Shared>
__device__ __forceinline__ void cast_blocks(const TileCastArgs<Scale> &args, const Matrix &m,
                                            const ThreadTile &my, const Vec<In, kVec> (&x)[kPack],
                                            Shared &shared) {
  using Entry = typename Scale::Entry;
  constexpr int kBlock = Scale::kBlock, kBlocks = kTile / kBlock;
  constexpr int kSpan = kBlock / kVec;         // Lanes of a block.
  constexpr int kHeight = kBlock / kWarpRows;  // Warps of a block.
  constexpr int kColWords = Vec<In, kVec>::kWords, kPer = Vec<In, kVec>::kPerWord;
  const int lane = threadIdx.x % 32;
  const NVTEXCast &q = args.q;

  if (Scale::kMx && q.amax != nullptr) {
    AbsMax<In> amax;
#pragma unroll
    for (int p = 0; p < kPack; ++p) amax.add(x[p]);
    shared.block.put(amax.bits());
    __syncthreads();
    if (my.warp == 0) {
      int *to = reinterpret_cast<int *>(q.amax);
      const int bits = shared.block.get();
      // Atomics on one address are slow, reads of it are not.
      if (lane == 0 && bits > __ldcg(to)) atomicMax(to, bits);
    }
  }

  // The scale of a row is stored by one of four lanes, which have the same rows and block.
  const int own = lane % kPack;
  const size_t own_row = my.row0 + my.row + own, own_block = (my.col0 + my.col) / kBlock;

  if constexpr (kSquare) {
    AbsMax<In> amax;
#pragma unroll
    for (int p = 0; p < kPack; ++p) amax.add(x[p]);
    uint32_t most[1] = {static_cast<uint32_t>(amax.bits())};
    lanes_max<F32, kSpan>(most);
    lanes_max<F32, 2, kLanes>(most);
    if (lane < kLanes && lane % kSpan == 0) {
      shared.maxima[lane / kSpan * kWarps + my.warp] = most[0];
    }
    __syncthreads();
    most[0] = 0;
#pragma unroll
    for (int i = 0; i < kHeight; i += 4) {
      uint32_t w[4];
      load_shared(shared.maxima + my.group / kSpan * kWarps + my.warp / kHeight * kHeight + i, w);
#pragma unroll
      for (int j = 0; j < 4; ++j) most[0] = max_packed<F32>(most[0], w[j]);
    }
    Entry entry;
    const float factor = args.scale.factor(__uint_as_float(most[0]), entry);
    Codes y[kPack];
    scaled_rows(args.e5m2, x, [&](int) { return factor; }, y);
    if (q.rowwise != nullptr) {
      store_rows(q.rowwise, m.row_vec, m, my, y);
      if (Scale::kMx || threadIdx.x == 0) {
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, false), own_row, own_block, own < my.rows,
                         entry);
      }
    }
    if (q.colwise != nullptr) {
      // The eight threads that have the same columns of a block store the scale of one each.
      const int i = my.warp % kHeight * 2 + my.word;
      if (Scale::kMx || threadIdx.x == 0) {
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, true), my.col0 + my.col + i,
                         (my.row0 + my.row) / kBlock, i < my.cols, entry);
      }
      if constexpr (Scale::kMx) {
        store_rows(q.colwise, m.col_vec, m, my, y);
      } else {
        store_columns(shared.tile, q.colwise, m, my, y);
      }
    }
  } else {
    if (q.colwise != nullptr) {
      uint32_t most[kColWords];
#pragma unroll
      for (int i = 0; i < kColWords; ++i) {
        most[i] = 0;
#pragma unroll
        for (int p = 0; p < kPack; ++p)
          most[i] = max_packed<In>(most[i], magnitudes<In>(x[p].w[i]));
      }
      lanes_max<In, 2, kLanes>(most);
      if (lane < kLanes) {
#pragma unroll
        for (int i = 0; i < kColWords; i += 4) {
          store_bytes<16>(shared.maxima + my.warp * (kTile / kPer) + my.group * kColWords + i,
                          most + i);
        }
      }
    }
    if (q.rowwise != nullptr) {
      Entry entry;
      const float factor = args.scale.factor(own_row_max<kBlock, In>(x), entry);
      if (lane % kSpan < kPack) {
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, false), own_row, own_block, own < my.rows,
                         entry);
      }
      Codes y[kPack];
      scaled_rows(
          args.e5m2, x, [&](int p) { return __shfl_sync(0xffffffffu, factor, p, kPack); }, y);
      store_rows(q.rowwise, m.row_vec, m, my, y);
    }
    if (q.colwise != nullptr) {
      __syncthreads();
      if (threadIdx.x < kBlocks * kTile) {
        const int c = threadIdx.x % kTile, b = threadIdx.x / kTile;
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < kHeight; ++i) {
          most = max_packed<In>(most, shared.maxima[(b * kHeight + i) * (kTile / kPer) + c / kPer]);
        }
        float f[kPer];
        In::to_float(most, f);
        Entry entry;
        shared.factors[threadIdx.x] = args.scale.factor(c % kPer == 0 ? f[0] : f[kPer - 1], entry);
        put_scale<Scale>(scales_of<Scale, kSquare>(q, m, true), my.col0 + c, my.row0 / kBlock + b,
                         c < my.width, entry);
      }
      __syncthreads();
      struct {
        float f[kVec];
        __device__ float operator[](int i) const { return f[i]; }
      } factors;
#pragma unroll
      for (int i = 0; i < kVec; i += 4) {
        uint32_t w[4];
        load_shared(
            reinterpret_cast<uint32_t *>(shared.factors) + my.warp / kHeight * kTile + my.col + i,
            w);
#pragma unroll
        for (int j = 0; j < 4; ++j) factors.f[i + j] = __uint_as_float(w[j]);
      }
      Codes y[kPack];
      scaled_rows(args.e5m2, x, [&](int) { return factors; }, y);
      if constexpr (Scale::kMx) {
        store_rows(q.colwise, m.col_vec, m, my, y);
      } else {
        store_columns(shared.tile, q.colwise, m, my, y);
      }
    }
  }
}

}  // namespace nvte
