// Matrix products of a warp on 16-bit tiles in shared memory (compute capability 8.0 and later).
//
// A tile has rows of kD elements in chunks of 8. The chunks of a row are permuted by its number, so
// that eight rows of a column of chunks lie in different banks.
#pragma once

#include "dtype.cuh"
#include "ptx.cuh"

namespace nvte {

__device__ __forceinline__ void store_chunk(uint32_t to, const uint32_t (&w)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
               "r"(w[2]), "r"(w[3])
               : "memory");
}
__device__ __forceinline__ void store_word(uint32_t to, uint32_t w) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(w) : "memory");
}
__device__ __forceinline__ void load_chunk(uint32_t from, uint32_t (&w)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
}

// Four matrices of 8 rows of 8 elements of 16 bits. Eight lanes have the addresses of the rows of
// one matrix: lanes 0 to 7 of the first, and so on.
__device__ __forceinline__ void ldmatrix_x4(uint32_t from, uint32_t (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t from, uint32_t (&w)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(from)
               : "memory");
}

// Stores four matrices to shared memory, the other way round (compute capability 9.0).
__device__ __forceinline__ void stmatrix_x4(uint32_t to, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t to, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

// c += a b of 16 x 16 and 16 x 8 elements. Lane l has of c the rows l / 4 (elements 0, 1) and
// l / 4 + 8, in each the columns 2 (l % 4) and the next; of a likewise, for columns below 8 and
// from 8 on.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (T::kDtype == kNVTEFloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Hides from the compiler what `value` is, so that it does not compute what depends on it ahead of
// a loop and keep the results in registers for all of the loop.
__device__ __forceinline__ void forget(int &value) { asm volatile("" : "+r"(value)); }

template <int kD>
struct Tile {
  static_assert(kD % 32 == 0, "the permutation stays inside groups of four chunks");
  static constexpr int kChunks = kD / 8;
  static constexpr int kRow = kD * 2;  // Bytes of a row.

  // What the chunks of a row are permuted by; the same for rows 8 apart.
  static __device__ __forceinline__ int permutation(int row) {
    return kChunks % 8 == 0 ? row & 7 : row >> 1 & 3;
  }
  static __device__ __forceinline__ uint32_t chunk(int row, int chunk) {
    return static_cast<uint32_t>(row * kRow + ((chunk ^ permutation(row)) << 4));
  }
};

// acc += A B', kMt x 16 rows of A and kNt x 8 rows of B, at shared addresses `a` and `b`.
template <class T, int kD, int kMt, int kNt>
__device__ __forceinline__ void multiply_rows(float (&acc)[kMt][kNt][4], uint32_t a, uint32_t b,
                                              int lane) {
  using Rows = Tile<kD>;
  const int a_row = lane % 16, b_row = lane % 8 + lane / 16 * 8;
  int a_first = Rows::permutation(a_row) ^ lane / 16;
  int b_first = Rows::permutation(b_row) ^ (lane / 8 & 1);
  forget(a_first);
  forget(b_first);
  a += a_row * Rows::kRow;
  b += b_row * Rows::kRow;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    uint32_t left[kMt][4];
#pragma unroll
    for (int mt = 0; mt < kMt; ++mt) {
      ldmatrix_x4(a + mt * 16 * Rows::kRow + ((a_first ^ 2 * k) << 4), left[mt]);
    }
#pragma unroll
    for (int n = 0; n < kNt / 2; ++n) {
      uint32_t right[4];
      ldmatrix_x4(b + n * 16 * Rows::kRow + ((b_first ^ 2 * k) << 4), right);
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt) {
        multiply<T>(acc[mt][2 * n], left[mt], right[0], right[1]);
        multiply<T>(acc[mt][2 * n + 1], left[mt], right[2], right[3]);
      }
    }
  }
}

// acc += P B: P in registers, kKt x 16 rows of B, of which the columns from chunk `first` on.
template <class T, int kD, int kMt, int kKt, int kNt>
__device__ __forceinline__ void multiply_columns(float (&acc)[kMt][kNt][4],
                                                 const uint32_t (&p)[kMt][kKt][4], uint32_t b,
                                                 int first, int lane) {
  using Rows = Tile<kD>;
  const int row = lane % 16;
  int b_first = Rows::permutation(row) ^ lane / 16;
  forget(b_first);
  b += row * Rows::kRow;
#pragma unroll
  for (int k = 0; k < kKt; ++k) {
#pragma unroll
    for (int n = 0; n < kNt / 2; ++n) {
      uint32_t right[4];
      ldmatrix_x4_trans(b + k * 16 * Rows::kRow + (((first + 2 * n) ^ b_first) << 4), right);
#pragma unroll
      for (int mt = 0; mt < kMt; ++mt) {
        multiply<T>(acc[mt][2 * n], p[mt][k], right[0], right[1]);
        multiply<T>(acc[mt][2 * n + 1], p[mt][k], right[2], right[3]);
      }
    }
  }
}

}  // namespace nvte
