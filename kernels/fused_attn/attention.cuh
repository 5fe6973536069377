// What all kernels of attention agree on: where a sequence lies, which scores it admits, what is
// added to them, and which of them dropout keeps. Positions inside a sequence are 32-bit,
// everything that becomes an address 64-bit.
#pragma once

#include <new>

#include "common/launch.cuh"
#include "common/mma.cuh"
#include "common/philox.cuh"
#include "common/ptx.cuh"
#include "fused_attn/implementations.cuh"
#include "nvte/backend/attention.h"

namespace nvte {

constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// Longest sequence; twice as far is past every window without an overflow of 32 bits.
constexpr size_t kMaxLength = size_t{1} << 29;

__host__ __device__ inline bool is_fp8(NVTEDType dtype) {
  return dtype == kNVTEFloat8E4M3 || dtype == kNVTEFloat8E5M2;
}
inline bool is_16bit(NVTEDType dtype) { return dtype == kNVTEFloat16 || dtype == kNVTEBFloat16; }

// A scale, 1 where there is none.
__device__ __forceinline__ float factor_of(const float *scale) {
  return scale != nullptr ? *scale : 1.0f;
}

// 2^x.
__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- Sequences

// Of sequence i, inside the tensor.
__device__ __forceinline__ int length(const NVTEXAttentionSide &side, unsigned i) {
  int n = static_cast<int>(side.max_seqlen);
  if (side.cu_seqlens != nullptr) n = min(n, side.cu_seqlens[i + 1] - side.cu_seqlens[i]);
  if (side.starts != nullptr) {
    n = side.starts[i] < 0 ? 0 : min(n, static_cast<int>(side.tokens) - side.starts[i]);
  }
  return max(n, 0);
}

// First row of sequence i in ragged tensors.
__device__ __forceinline__ int64_t start(const NVTEXAttentionSide &side, unsigned i) {
  return side.starts != nullptr ? side.starts[i] : 0;
}

// Rows of a tensor's head that have to be written: those past the sequence too if it is dense.
__device__ __forceinline__ int written(const NVTEXAttentionSide &side, int length) {
  return side.starts != nullptr ? length : static_cast<int>(side.max_seqlen);
}

// Element 0 of row 0 of head j.
__device__ __forceinline__ int64_t head_offset(const NVTEXAttentionTensor &t,
                                               const NVTEXAttentionSide &side, unsigned i,
                                               unsigned j) {
  const int64_t sequence = side.starts != nullptr ? start(side, i) * t.row : i * t.batch;
  return sequence + j * t.head;
}

// Statistics of head j: the index of row 0, and the step from row to row.
struct StatsRows {
  size_t first, step;
  __device__ __forceinline__ StatsRows(const NVTEXAttentionSide &side, unsigned i, unsigned j)
      : first(side.starts != nullptr ? start(side, i) * side.heads + j
                                     : (i * side.heads + j) * side.max_seqlen),
        step(side.starts != nullptr ? side.heads : 1) {}
  __device__ __forceinline__ size_t operator()(int r) const { return first + r * step; }
};
inline size_t stats_count(const NVTEXAttentionArgs &a) {
  const NVTEXAttentionSide &side = a.q_side;
  return (side.starts != nullptr ? side.tokens : a.batch * side.max_seqlen) * side.heads;
}

// ---- Scores

// Admissible columns of row r: begin(r) <= c < end(r). Neither falls from one row to the next.
struct Band {
  int left, right, keys;

  __device__ __forceinline__ Band(const NVTEXAttentionArgs &a, int q_length, int kv_length)
      : keys(kv_length) {
    constexpr int64_t kFar = 2 * static_cast<int64_t>(kMaxLength);
    const int64_t shift = a.bottom_right ? kv_length - q_length : 0;
    left = a.window_left < 0 ? -static_cast<int>(kFar)
                             : static_cast<int>(shift - min(int64_t{a.window_left}, kFar / 2));
    right = a.window_right < 0
                ? static_cast<int>(kFar)
                : static_cast<int>(shift + min(int64_t{a.window_right}, kFar / 2 - 1) + 1);
  }
  __device__ __forceinline__ int begin(int r) const { return max(0, r + left); }
  __device__ __forceinline__ int end(int r) const { return min(keys, r + right); }
  // Rows that may admit some of the columns in [c, end).
  __device__ __forceinline__ int first_row(int c) const { return max(0, c - right + 1); }
  __device__ __forceinline__ int last_row(int end, int rows) const { return min(rows, end - left); }
  // Every row in [r0, r1) admits every column in [c0, c1).
  __device__ __forceinline__ bool admits(int r0, int r1, int c0, int c1) const {
    return c0 >= begin(r1 - 1) && c1 <= end(r0);
  }
};

// Of a head; the heads past the largest power of two lie between those before it.
__device__ __forceinline__ float alibi_slope(unsigned j, unsigned heads) {
  const unsigned n = 1u << (31 - __clz(heads));
  const float exponent = j < n ? -8.0f * (j + 1) / n : -4.0f * (2 * (j - n) + 1) / n;
  return exp2f(exponent);
}

// Scores in units of log2 from products of queries and keys.
template <class T, bool kExtras>
struct Scores {
  float scale, slope;
  const char *bias;
  int64_t bias_row;
  bool has_bias;

  __device__ __forceinline__ Scores(const NVTEXAttentionArgs &a, float scale_log2, unsigned i,
                                    unsigned j)
      : scale(scale_log2), slope(0.0f), bias(nullptr), bias_row(0), has_bias(false) {
    if constexpr (kExtras) {
      if (a.alibi) slope = alibi_slope(j, static_cast<unsigned>(a.q_side.heads)) * kLog2e;
      has_bias = a.bias.data != nullptr;
      bias =
          static_cast<const char *>(a.bias.data) + (i * a.bias.batch + j * a.bias.head) * T::kBytes;
      bias_row = a.bias.row * T::kBytes;
    }
  }
  // `inside`: row and column exist.
  __device__ __forceinline__ float operator()(float product, int r, int c, bool inside) const {
    float x = product * scale;
    if constexpr (kExtras) {
      x = fmaf(slope, static_cast<float>(c - r), x);
      if (has_bias && inside) {
        const char *at = bias + r * bias_row + c * int64_t{T::kBytes};
        float f[4 / T::kBytes];
        T::to_float(*reinterpret_cast<const typename T::Bits *>(at), f);
        x = fmaf(f[0], kLog2e, x);
      }
    }
    return x;
  }
};

// ---- Dropout

struct Dropout {
  unsigned level;
  float scale;  // 1 / (1 - probability)

  explicit Dropout(const NVTEXAttentionArgs &a)
      : level(dropout_level(a.dropout)),
        scale(static_cast<float>(1.0 / (1.0 - static_cast<double>(a.dropout)))) {}
  __device__ __forceinline__ HeadDropout of_head(const NVTEXAttentionArgs &a, unsigned i,
                                                 unsigned j) const {
    return {a.dropout != 0.0f ? a.rng_state : nullptr, level, uint64_t{i} * a.q_side.heads + j,
            static_cast<uint32_t>(a.q_side.max_seqlen),
            static_cast<uint32_t>(a.kv_side.max_seqlen)};
  }
};

// ---- Results of a row

// m: its largest score or something less than it by little; l: sum of 2^(x - m); both in units of
// log2. The result is the sum of the weighted values times `factor`.
struct RowResult {
  float factor, stats;

  __device__ __forceinline__ RowResult(float m, float l, const float *sink, unsigned j) {
    if (l == 0.0f) {
      factor = 0.0f, stats = -INFINITY;
      return;
    }
    float most = m, share = 1.0f;
    if (sink != nullptr) {
      const float a = sink[j] * kLog2e;
      most = fmaxf(m, a);
      share = power2(m - most);
      l = l * share + power2(a - most);
    }
    factor = share / l;
    stats = (most + log2f(l)) * kLn2;
  }
};

// For floats of at least 0.
__device__ __forceinline__ void raise_amax(float *amax, float value) {
  if (amax == nullptr) return;
  const int most = __reduce_max_sync(0xffffffffu, __float_as_int(value));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int *>(amax), most);
}
inline cudaError_t clear_amax(float *amax, cudaStream_t stream) {
  return amax != nullptr ? cudaMemsetAsync(amax, 0, sizeof(float), stream) : cudaSuccess;
}

// ---- Rows of tensors

// Rows of a head. In the kernels on matrix instructions elements have 2 bytes, or 1 and become half
// precision.
struct Rows {
  const char *base;
  int64_t row;       // Bytes.
  const int *pages;  // Or null.
  int64_t page;      // Bytes.
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

template <int kBytes>
__device__ __forceinline__ Rows query_rows(const NVTEXAttentionArgs &a,
                                           const NVTEXAttentionTensor &t, unsigned i, unsigned j) {
  return {t, kBytes, head_offset(t, a.q_side, i, j)};
}
// Of head j of the keys.
template <int kBytes>
__device__ __forceinline__ Rows key_rows(const NVTEXAttentionArgs &a, const NVTEXAttentionTensor &t,
                                         const int *pages, size_t max_pages, size_t page_size,
                                         size_t num_pages, unsigned i, unsigned j) {
  if (pages == nullptr) return {t, kBytes, head_offset(t, a.kv_side, i, j)};
  Rows rows(t, kBytes, j * t.head);
  rows.pages = pages + i * max_pages;
  rows.page = t.batch * kBytes;
  rows.page_size = static_cast<int>(page_size);
  rows.last_page = static_cast<unsigned>(num_pages - 1);
  return rows;
}
template <int kBytes>
__device__ __forceinline__ Rows k_rows(const NVTEXAttentionArgs &a, unsigned i, unsigned j) {
  return key_rows<kBytes>(a, a.k, a.page_table_k, a.max_pages_k, a.page_size_k, a.num_pages_k, i,
                          j);
}
template <int kBytes>
__device__ __forceinline__ Rows v_rows(const NVTEXAttentionArgs &a, unsigned i, unsigned j) {
  return key_rows<kBytes>(a, a.v, a.page_table_v, a.max_pages_v, a.page_size_v, a.num_pages_v, i,
                          j);
}

// Rows `first` to `first` + kRows of `dim` elements into a tile; zeros from row `end` on and from
// element `dim` on. `first` is a multiple of kRows and less than `end` if there are pages.
template <int kD, int kRows, int kThreads, bool kFp8>
__device__ __forceinline__ void load_tile(uint32_t tile, const Rows &rows, int first, int end,
                                          int dim, int thread) {
  // Threads side by side in a row, and rows that the block copies at once: steps that leave the
  // permutation of chunks alone, so that they are constants.
  constexpr int kAcross = Tile<kD>::kChunks % 8 == 0 ? 8 : 4, kDown = kThreads / kAcross;
  constexpr int kChunk = kFp8 ? 8 : 16;  // Bytes.
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
        copy_async16(to + c * kAcross * 16, source, inside);
      }
    }
    from += kDown * rows.row;
  }
}

// Accumulators as the left operand of another product. kFp8: rounded to FP8 first.
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

// Two neighbours of a tensor whose dtype the kernel does not know, times its scale.
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

// ---- Host

// Why no kernel takes these arguments, or null.
inline const char *attention_limits(const NVTEXAttentionArgs &a) {
  Device device;
  if (current_device(&device) != cudaSuccess) return "no current device";
  if (device.arch < 80) return "needs compute capability 8.0";
  if (a.q_side.max_seqlen > kMaxLength || a.kv_side.max_seqlen > kMaxLength) {
    return "sequences over 2^29";
  }
  if (a.kv_side.heads == 0 || a.q_side.heads % a.kv_side.heads != 0) return "heads of q and k";
  if (a.q_side.heads > 65536 || a.batch > 0x7fffffff) return "heads or sequences";
  return nullptr;
}

// Why no kernel on matrix instructions does.
inline const char *attention_unsupported(const NVTEXAttentionArgs &a) {
  if (const char *reason = attention_limits(a)) return reason;
  const NVTEDType dtype = a.q.dtype;
  const bool fp8 = is_fp8(dtype);
  if (!fp8 && !is_16bit(dtype)) return "q is neither F16, BF16 nor FP8";
  const auto like_q = [&](const NVTEXAttentionTensor &t) {
    return fp8 ? is_fp8(t.dtype) : t.dtype == dtype;
  };
  const auto result = [&](const NVTEXAttentionTensor &t) {
    return t.dtype == dtype ||
           (fp8 && (is_fp8(t.dtype) || is_16bit(t.dtype) || t.dtype == kNVTEFloat32));
  };
  const auto in_vectors = [](const NVTEXAttentionTensor &t) {
    const int64_t elements = is_fp8(t.dtype) ? 16 : 8;
    return t.batch % elements == 0 && t.row % elements == 0 && t.head % elements == 0 &&
           reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  };
  if (!like_q(a.k) || !like_q(a.v)) return "dtypes of q, k and v";
  if (!result(a.o)) return "dtype of o";
  bool vectors = in_vectors(a.q) && in_vectors(a.k) && in_vectors(a.v) && in_vectors(a.o);
  if (a.backward) {
    if (!like_q(a.d_o)) return "dtype of do";
    if (!result(a.dq) || !result(a.dk) || !result(a.dv)) return "dtypes of dq, dk and dv";
    vectors =
        vectors && in_vectors(a.d_o) && in_vectors(a.dq) && in_vectors(a.dk) && in_vectors(a.dv);
  }
  if (!vectors) return "strides that are no multiples of 16 bytes";
  if (a.dim_qk % 8 != 0 || a.dim_v % 8 != 0) return "head dimensions that are no multiples of 8";
  if (a.dim_qk > 256 || a.dim_v > 256) return "head dimensions over 256";
  if (fp8 && (a.bias.data != nullptr || a.dbias.data != nullptr)) return "bias of FP8";
  if (a.bias.data != nullptr && a.bias.dtype != dtype) return "dtype of the bias";
  if (a.dbias.data != nullptr && a.dbias.dtype != dtype) return "dtype of the bias' gradient";
  return nullptr;
}

// Whether scores are more than positive multiples of products.
inline bool has_extras(const NVTEXAttentionArgs &a) {
  return a.bias.data != nullptr || a.alibi || a.dropout != 0.0f || !(a.scale > 0.0f);
}

}  // namespace nvte
