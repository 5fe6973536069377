// Rows of tensors of attention on their way into tiles of shared memory and back, for the kernels
// that copy with ordinary threads.
#pragma once

#include "attention.cuh"
#include "common/mma.cuh"

namespace nvte {

// Rows of a head. In the kernels on matrix instructions elements have 2 bytes, or 1 and become half
// precision.
struct Rows {
  const char *base;
  int64_t row;       // Bytes of a row.
  const int *pages;  // The page table, or null.
  int64_t page;      // Bytes of a page.
  int page_size;
  unsigned last_page;  // Page numbers past it read this one.
  bool e5m2;

  __device__ __forceinline__ Rows(const NVTEXAttentionTensor &t, int bytes, int64_t offset)
      : base(static_cast<const char *>(t.data) + offset * bytes),
        row(t.row * bytes),
        pages(nullptr),
        page(0),
        page_size(1),
        last_page(0),
        e5m2(t.dtype == kNVTEFloat8E5M2) {}
  __device__ __forceinline__ const char *at(int r) const {
    if (pages == nullptr) return base + r * row;
    const unsigned number = static_cast<unsigned>(__ldg(pages + r / page_size));
    return base + min(number, last_page) * page + r % page_size * row;
  }
};

// The rows of head j of the queries, with elements of `bytes`.
__device__ __forceinline__ Rows query_rows(int bytes, const NVTEXAttentionArgs &a,
                                           const NVTEXAttentionTensor &t, unsigned i, unsigned j) {
  return {t, bytes, head_offset(t, a.q_side, i, j)};
}
// The rows of head j of the keys.
__device__ __forceinline__ Rows key_rows(int bytes, const NVTEXAttentionArgs &a,
                                         const NVTEXAttentionTensor &t, const int *pages,
                                         size_t max_pages, size_t page_size, size_t num_pages,
                                         unsigned i, unsigned j) {
  if (pages == nullptr) return {t, bytes, head_offset(t, a.kv_side, i, j)};
  Rows rows(t, bytes, j * t.head);
  rows.pages = pages + i * max_pages;
  rows.page = t.batch * bytes;
  rows.page_size = static_cast<int>(page_size);
  rows.last_page = static_cast<unsigned>(num_pages - 1);
  return rows;
}
__device__ __forceinline__ Rows k_rows(int bytes, const NVTEXAttentionArgs &a, unsigned i,
                                       unsigned j) {
  return key_rows(bytes, a, a.k, a.page_table_k, a.max_pages_k, a.page_size_k, a.num_pages_k, i, j);
}
__device__ __forceinline__ Rows v_rows(int bytes, const NVTEXAttentionArgs &a, unsigned i,
                                       unsigned j) {
  return key_rows(bytes, a, a.v, a.page_table_v, a.max_pages_v, a.page_size_v, a.num_pages_v, i, j);
}

// Rows `first` to `first` + kRows of `dim` elements into a tile; zeros from row `end` on and from
// element `dim` on. `first` is a multiple of kRows and less than `end` if there are pages.
template <int kD, int kRows, int kThreads, bool kFp8>
__device__ __forceinline__ void load_tile(uint32_t tile, const Rows &rows, int first, int end,
                                          int dim, int thread) {
  // Threads side by side in a row, and rows that the block copies at once: steps that leave the
  // permutation of chunks alone, so that they are constants.
  constexpr int kAcross = Tile<kD>::kChunks % 8 == 0 ? 8 : 4, kDown = kThreads / kAcross;
  constexpr int kChunk = kFp8 ? 8 : 16;  // Bytes that a copy moves.
  static_assert(kRows % kDown == 0 || kRows < kDown, "whole steps");
  const int row = thread / kAcross, chunk = thread % kAcross;
  const bool together = rows.pages == nullptr || rows.page_size % kRows == 0;
  if (kRows < kDown && row >= kRows) return;
  const char *from = (together ? rows.at(first) : rows.base) + chunk * kChunk;
  if (together) from += row * rows.row;
#pragma unroll
  for (int n = 0; n < (kRows + kDown - 1) / kDown; ++n) {
    const int r = first + n * kDown + row;
    const char *line = from;
    if (!together && r < end) line = rows.at(r) + chunk * kChunk;
    const uint32_t to = tile + Tile<kD>::chunk(n * kDown + row, chunk);
#pragma unroll
    for (int c = 0; c < Tile<kD>::kChunks / kAcross; ++c) {
      const bool inside = r < end && (c * kAcross + chunk) * 8 < dim;
      const char *source = inside ? line + c * kAcross * kChunk : rows.base;
      if constexpr (kFp8) {
        uint2 codes = make_uint2(0, 0);
        if (inside) codes = *reinterpret_cast<const uint2 *>(source);
        uint32_t w[4];
        if (rows.e5m2) {
          decode_fp8x4<false>(codes.x, w[0], w[1]);
          decode_fp8x4<false>(codes.y, w[2], w[3]);
        } else {
          decode_fp8x4<true>(codes.x, w[0], w[1]);
          decode_fp8x4<true>(codes.y, w[2], w[3]);
        }
        store_chunk(to + c * kAcross * 16, w);
      } else {
        cp_async_16(to + c * kAcross * 16, source, inside);
      }
    }
    from += kDown * rows.row;
  }
}

// Turns accumulators into the left operand of another product. kFp8: they are rounded to FP8 first.
template <class T, bool kFp8, int kMt, int kNt>
__device__ __forceinline__ void to_operand(const float (&s)[kMt][kNt][4], bool e5m2,
                                           uint32_t (&p)[kMt][kNt / 2][4]) {
#pragma unroll
  for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
    for (int n = 0; n < kNt; ++n) {
      uint32_t &upper = p[mt][n / 2][n % 2 * 2], &lower = p[mt][n / 2][n % 2 * 2 + 1];
      if constexpr (kFp8) {
        if (e5m2) {
          decode_fp8x4<false>(encode_fp8x4<false>(s[mt][n]), upper, lower);
        } else {
          decode_fp8x4<true>(encode_fp8x4<true>(s[mt][n]), upper, lower);
        }
      } else {
        upper = T::from_float({s[mt][n][0], s[mt][n][1]});
        lower = T::from_float({s[mt][n][2], s[mt][n][3]});
      }
    }
  }
}

// Stores two neighbours, already multiplied by the scale, to a tensor whose dtype is known at run
// time only.
__device__ __forceinline__ void store_pair(const NVTEXAttentionTensor &t, int64_t at, float x,
                                           float y) {
  switch (t.dtype) {
    case kNVTEFloat32:
      static_cast<float2 *>(t.data)[at / 2] = make_float2(x, y);
      break;
    case kNVTEFloat16:
      static_cast<uint32_t *>(t.data)[at / 2] = F16::from_float({x, y});
      break;
    case kNVTEBFloat16:
      static_cast<uint32_t *>(t.data)[at / 2] = BF16::from_float({x, y});
      break;
    case kNVTEFloat8E4M3:
      static_cast<uint16_t *>(t.data)[at / 2] =
          static_cast<uint16_t>(E4M3::from_float({x, y, 0.0f, 0.0f}));
      break;
    default:
      static_cast<uint16_t *>(t.data)[at / 2] =
          static_cast<uint16_t>(E5M2::from_float({x, y, 0.0f, 0.0f}));
  }
}

// A warp's results, kMt x 16 rows from `first` on and kNt x 8 columns from chunk `chunk` on, times
// the factor of each row; zeros from row `rows` on and nothing from row `end` on. They go through
// `staging`, rows of a tile that no other warp touches in these columns.
template <class T, bool kFp8, int kD, int kMt, int kNt>
__device__ __forceinline__ void store_rows(const NVTEXAttentionTensor &t, int64_t offset,
                                           const float (&acc)[kMt][kNt][4],
                                           const float (&factor)[kMt][2], int first, int rows,
                                           int end, int chunk, int dim, uint32_t staging,
                                           int lane) {
  if constexpr (kFp8) {
    const float scale = is_fp8(t.dtype) ? factor_of(t.scale) : 1.0f;
    float most = 0.0f;
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = first + mt * 16 + h * 8 + lane / 4;
#pragma unroll
        for (int n = 0; n < kNt; ++n) {
          const bool valid = r < rows;
          const float x = valid ? acc[mt][n][2 * h] * factor[mt][h] : 0.0f;
          const float y = valid ? acc[mt][n][2 * h + 1] * factor[mt][h] : 0.0f;
          const int column = (chunk + n) * 8 + lane % 4 * 2;
          if (column >= dim) continue;
          most = fmaxf(most, fmaxf(fabsf(x), fabsf(y)));
          if (r < end) store_pair(t, offset + r * t.row + column, x * scale, y * scale);
        }
      }
    }
    raise_amax(t.amax, most);
  } else {
    __syncwarp();
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = mt * 16 + h * 8 + lane / 4;
        const bool valid = first + row < rows;
#pragma unroll
        for (int n = 0; n < kNt; ++n) {
          const float x = acc[mt][n][2 * h] * factor[mt][h];
          const float y = acc[mt][n][2 * h + 1] * factor[mt][h];
          store_word(staging + Tile<kD>::chunk(row, chunk + n) + lane % 4 * 4,
                     valid ? T::from_float({x, y}) : 0);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kMt * 16 * kNt / 32; ++n) {
      const int index = n * 32 + lane;
      const int row = index / kNt, column = chunk + index % kNt;
      uint32_t w[4];
      load_chunk(staging + Tile<kD>::chunk(row, column), w);
      if (first + row < end && column * 8 < dim) {
        auto *to = static_cast<uint16_t *>(t.data) + offset + (first + row) * t.row + column * 8;
        *reinterpret_cast<uint4 *>(to) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
}

}  // namespace nvte
