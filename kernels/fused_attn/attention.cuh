// What all kernels of attention agree on: where a sequence lies, which scores it admits, what is
// added to them, which of them dropout keeps, and what the statistics of a row are. Positions
// inside a sequence have 32 bits, everything that becomes an address has 64.
#pragma once

#include <new>
#include <type_traits>

#include "common/dtype.cuh"
#include "common/launch.cuh"
#include "common/math.cuh"
#include "common/philox.cuh"
#include "common/ptx.cuh"
#include "common/runtime_float.cuh"
#include "fused_attn/implementations.cuh"
#include "nvte/backend/attention.h"

namespace nvte {

// The longest sequence. Twice as much lies past every window and still fits into 32 bits.
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

// A side whose numbers have 32 bits, for kernels that are short of registers.
struct Side {
  const int32_t *cu_seqlens, *starts;
  int max_seqlen, tokens;

  Side() = default;
  explicit Side(const NVTEXAttentionSide &side)
      : cu_seqlens(side.cu_seqlens),
        starts(side.starts),
        max_seqlen(static_cast<int>(side.max_seqlen)),
        tokens(static_cast<int>(side.tokens)) {}

  __device__ __forceinline__ bool ragged() const { return starts != nullptr; }
  // The first row of sequence i in a ragged tensor, else 0.
  __device__ __forceinline__ int first(int i) const { return ragged() ? starts[i] : 0; }
};

// The length of sequence i, as far as it lies inside the tensor.
template <class AnySide, class Index>
__device__ __forceinline__ int length(const AnySide &side, Index i) {
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

// How many rows of a head have to be written: in dense tensors those past the sequence too.
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
  // Whether every row in [r0, r1) admits every column in [c0, c1).
  __device__ __forceinline__ bool admits(int r0, int r1, int c0, int c1) const {
    return c0 >= begin(r1 - 1) && c1 <= end(r0);
  }
};

// The slopes of ALiBi. The heads past the largest power of two lie between those before it.
struct AlibiSlopes {
  int whole;        // The largest power of two that is not more than the number of heads.
  float half_step;  // Half the step from head to head, in units of log2.

  AlibiSlopes() = default;
  __host__ __device__ explicit AlibiSlopes(size_t heads) : whole(1) {
    while (2 * static_cast<size_t>(whole) <= heads) whole *= 2;
    half_step = -4.0f / static_cast<float>(whole);
  }
  __device__ __forceinline__ float operator()(int head) const {
    const bool first = head < whole;
    return power2(half_step * static_cast<float>(first ? 2 * head + 2 : 2 * (head - whole) + 1));
  }
};

// Scores in units of log2 from products of queries and keys. T: the dtype of the bias.
template <class T, bool kExtras>
struct Scores {
  float scale, slope;
  const char *bias;
  int64_t bias_row;
  bool has_bias;
  NVTEDType bias_dtype;  // The dtype of the bias, which RuntimeFloat reads.

  __device__ __forceinline__ Scores(const NVTEXAttentionArgs &a, float scale_log2, unsigned i,
                                    unsigned j)
      : scale(scale_log2),
        slope(0.0f),
        bias(nullptr),
        bias_row(0),
        has_bias(false),
        bias_dtype(a.bias.dtype) {
    if constexpr (kExtras) {
      if (a.alibi) slope = AlibiSlopes(a.q_side.heads)(static_cast<int>(j)) * kLog2e;
      has_bias = a.bias.data != nullptr;
      const int64_t bytes = bias_bytes();
      bias = static_cast<const char *>(a.bias.data) + (i * a.bias.batch + j * a.bias.head) * bytes;
      bias_row = a.bias.row * bytes;
    }
  }
  // `inside`: row and column exist.
  __device__ __forceinline__ float operator()(float product, int r, int c, bool inside) const {
    float x = product * scale;
    if constexpr (kExtras) {
      x = fmaf(slope, static_cast<float>(c - r), x);
      if (has_bias && inside) {
        const char *at = bias + r * bias_row + c * int64_t{bias_bytes()};
        if constexpr (std::is_same_v<T, RuntimeFloat>) {
          x = fmaf(load_float(bias_dtype, at), kLog2e, x);
        } else {
          float f[4 / T::kBytes];
          T::to_float(*reinterpret_cast<const typename T::Bits *>(at), f);
          x = fmaf(f[0], kLog2e, x);
        }
      }
    }
    return x;
  }

 private:
  __device__ __forceinline__ int bias_bytes() const {
    if constexpr (std::is_same_v<T, RuntimeFloat>) {
      return float_bytes(bias_dtype);
    } else {
      return T::kBytes;
    }
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
    const uint64_t head = uint64_t{i} * (a.q_side.heads + a.other_heads) + a.heads_before + j;
    return {a.dropout != 0.0f ? a.rng_state : nullptr, level, head,
            static_cast<uint32_t>(a.q_side.max_seqlen),
            static_cast<uint32_t>(a.kv_side.max_seqlen)};
  }
};

// ---- Results of a row

// m: the row's largest score, or a little less; l: the sum of 2^(x - m). Both are in units of log2.
// The result is the sum of the weighted values times `factor`.
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

// Raises `amax`, which may be null, to the largest value of a warp. The values are not negative, so
// that they compare like integers.
__device__ __forceinline__ void raise_amax(float *amax, float value) {
  if (amax == nullptr) return;
  const int most = __reduce_max_sync(0xffffffffu, __float_as_int(value));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<int *>(amax), most);
}
inline cudaError_t clear_amax(float *amax, cudaStream_t stream) {
  return amax != nullptr ? cudaMemsetAsync(amax, 0, sizeof(float), stream) : cudaSuccess;
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

// Why no kernel on matrix instructions takes these arguments, or null.
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
