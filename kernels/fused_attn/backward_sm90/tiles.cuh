// Tiles of a block in registers and shared memory, and how results leave it.
#pragma once

#include "common/mma.cuh"
#include "common/reduce.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"
#include "fused_attn/rows.cuh"
#include "work.cuh"

namespace nvte {

// A product of 24 columns of 16-bit tensors, both operands in shared memory.
template <class In>
struct Product<In, 24> {
  template <bool kMnA = false, bool kMnB = false>
  static __device__ __forceinline__ void shared(float (&d)[12], uint64_t a, uint64_t b, bool add) {
#define NVTE_PRODUCT_24(types)                                                              \
  asm volatile(                                                                             \
      "{.reg .pred add;\nsetp.ne.b32 add, %14, 0;\n"                                        \
      "wgmma.mma_async.sync.aligned.m64n24k16.f32." types                                   \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, %12, %13, add, 1, 1, %15, "     \
      "%16;}"                                                                               \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])                        \
      : "l"(a), "l"(b), "r"(int{add}), "n"(int{kMnA}), "n"(int{kMnB}))
    if constexpr (In::kDtype == kNVTEBFloat16) {
      NVTE_PRODUCT_24("bf16.bf16");
    } else {
      NVTE_PRODUCT_24("f16.f16");
    }
#undef NVTE_PRODUCT_24
  }
};

namespace sm90_backward {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ void add_global(float *to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

// Descriptors of operands in shared memory by their low words, see descriptor_k_major() and
// descriptor_mn_major(). Offsets are added to the low words, in units of 16 bytes; the high words
// are all the same.
__device__ __forceinline__ uint32_t low_k(uint32_t p) {
  return static_cast<uint32_t>(descriptor_k_major(p));
}
__device__ __forceinline__ uint32_t low_mn(uint32_t p, uint32_t panel) {
  return static_cast<uint32_t>(descriptor_mn_major(p, panel));
}
__device__ __forceinline__ uint64_t operand(uint32_t low, int offset) {
  uint64_t d;
  asm("mov.b64 %0, {%1, %2};"
      : "=l"(d)
      : "r"(low + static_cast<uint32_t>(offset >> 4)),
        "n"(static_cast<uint32_t>(uint64_t{1} << 62 >> 32 | 64)));
  return d;
}

// Clears the panels of tiles that no load fills. By every thread, before the barriers are used.
__device__ __forceinline__ void clear_panels(unsigned char *tiles, int count, int panel, int from,
                                             int panels) {
  for (int tile = 0; tile < count; ++tile) {
    unsigned char *first = tiles + (tile * panels + from) * panel;
    const int end = (panels - from) * panel;
    for (int at = static_cast<int>(threadIdx.x) * 16; at < end; at += kThreads * 16) {
      *reinterpret_cast<uint4 *>(first + at) = make_uint4(0, 0, 0, 0);
    }
  }
}

// Clears rows [from, kRows) of a tile; by every thread of the consumers.
template <int kRows, int kPanels>
__device__ __forceinline__ void clear_rows(unsigned char *tile, int from, int thread) {
#pragma unroll 1
  for (int at = from * 128 + thread * 16; at < kRows * 128; at += 128 * kConsumers * 16) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      *reinterpret_cast<uint4 *>(tile + panel * kRows * 128 + at) = make_uint4(0, 0, 0, 0);
    }
  }
  fence_proxy_async();
  bar_sync(kConsumerBarrier, 128 * kConsumers);
}

template <class T, int kN>
__device__ __forceinline__ void round_pairs(uint32_t (&out)[kN / 8][4], const float (&d)[kN]) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const float pair[2] = {d[2 * i], d[2 * i + 1]};
    out[i / 4][i % 4] = T::from_float(pair);
  }
}

// Turns four words of each of the four lanes of a quad: word i of lane j becomes word j of lane i.
__device__ __forceinline__ void turn_quad(uint32_t (&w)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      uint32_t &low = w[i], &high = w[i + bit];
      const uint32_t other = __shfl_xor_sync(~0u, lane & bit ? low : high, bit);
      (lane & bit ? low : high) = other;
    }
  }
}
// The same of half words, two of which are in each word.
__device__ __forceinline__ uint2 turn_quad(uint32_t low, uint32_t high, int lane) {
  const uint32_t other = __shfl_xor_sync(~0u, lane & 2 ? low : high, 2);
  (lane & 2 ? low : high) = other;
  const uint32_t odd = __byte_perm(low, high, 0x7632), even = __byte_perm(low, high, 0x5410);
  const uint32_t mine = lane & 1 ? odd : even;
  const uint32_t theirs = __shfl_xor_sync(~0u, lane & 1 ? even : odd, 1);
  return make_uint2(__byte_perm(mine, theirs, lane & 1 ? 0x1054 : 0x5410),
                    __byte_perm(mine, theirs, lane & 1 ? 0x3276 : 0x7632));
}

// Rows of a warp of a product [64, D] of FP8 tensors to global memory. A quad of lanes has pairs of
// neighbours, of which it makes whole sectors.
template <int kD>
__device__ __forceinline__ void write_rows(const Problem &a, const NVTEXAttentionTensor &to,
                                           int dim, float (&d)[kD / 2], float factor, int sequence,
                                           int key_head, int first, int length, int lane) {
  const int end = written(a.kv_side, length);
  const float scale = is_fp8(to.dtype) ? factor_of(to.scale) : 1.0f;
  const int64_t offset = head_offset(to, a.kv_side, sequence, key_head);
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) {
    const bool inside = first + lane / 4 + i / 2 % 2 * 8 < length && i / 4 * 8 < dim;
    const float x = inside ? d[i] * factor : 0.0f;
    most = fmaxf(most, fabsf(x));
    d[i] = x * scale;
  }
  with_dtype(to.dtype, [&](auto tag) {
    using T = decltype(tag);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = first + lane / 4 + 8 * h;
#pragma unroll
      for (int j = 0; j < kD / 8; j += 4) {
        const auto at = [&](int n, int e) { return d[(j + n) * 4 + 2 * h + e]; };
        const int mine = (j + lane % 4) * 8;  // After the turn: eight elements from here on.
        auto *out = static_cast<typename T::Bits *>(to.data) + offset + r * to.row;
        if constexpr (T::kBytes == 4) {
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int column = (j + n) * 8;
            if (r < end && column < dim) {
              *reinterpret_cast<float2 *>(out + column + lane % 4 * 2) =
                  make_float2(at(n, 0), at(n, 1));
            }
          }
        } else if constexpr (T::kBytes == 2) {
          uint32_t w[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) w[n] = T::from_float({at(n, 0), at(n, 1)});
          turn_quad(w, lane);
          if (r < end && mine < dim) {
            *reinterpret_cast<uint4 *>(out + mine) = make_uint4(w[0], w[1], w[2], w[3]);
          }
        } else {
          const float four[2][4] = {{at(0, 0), at(0, 1), at(1, 0), at(1, 1)},
                                    {at(2, 0), at(2, 1), at(3, 0), at(3, 1)}};
          const uint2 w = turn_quad(T::from_float(four[0]), T::from_float(four[1]), lane);
          if (r < end && mine < dim) *reinterpret_cast<uint2 *>(out + mine) = w;
        }
      }
    }
  });
  raise_amax_if_more(to.amax, most);
}

// Rows of a warp of a product [64, D] to global memory, through 16 rows of shared memory.
template <class T, int kKeys, int kD>
__device__ __forceinline__ void write_rows(const Problem &a, const NVTEXAttentionTensor &to,
                                           size_t dim, unsigned char *panels,
                                           const float (&d)[kD / 2], float scale, int sequence,
                                           int key_head, int first, int length, int lane) {
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kD / 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float pair[2] = {d[4 * j + 2 * h] * scale, d[4 * j + 2 * h + 1] * scale};
      const int r = lane / 4 + 8 * h;
      *reinterpret_cast<uint32_t *>(panels + j / 8 * (kKeys * 128) + r * 128 +
                                    ((j % 8 ^ (r & 7)) << 4) + lane % 4 * 4) = T::from_float(pair);
    }
  }
  __syncwarp();
  constexpr int kUnits = kD / 8;  // Units of a row, 16 bytes each.
  // Rows past a sequence are zero in dense tensors and not touched in ragged ones.
  const int end = written(a.kv_side, length);
  typename T::Bits *out = row_of<T>(to, a.kv_side, sequence, key_head, 0);
  AbsMax<T> amax;
#pragma unroll
  for (int at = 0; at < 16 * kUnits; at += 32) {
    const int r = (at + lane) / kUnits, unit = (at + lane) % kUnits;
    uint4 value = *reinterpret_cast<const uint4 *>(panels + unit / 8 * (kKeys * 128) + r * 128 +
                                                   ((unit % 8 ^ (r & 7)) << 4));
    if (first + r >= length) value = make_uint4(0, 0, 0, 0);
    if (first + r < end && unit * 8 < dim) {
      amax.add(Vec<T, 8>{value.x, value.y, value.z, value.w});
      *reinterpret_cast<uint4 *>(out + (first + r) * to.row + unit * 8) = value;
    }
  }
  raise_amax_if_more(a.grads_amax, __int_as_float(amax.bits()));
}

// Adds a thread's gradients to the sum of those of all parts, in fours that are `step` floats
// apart.
template <int kN>
__device__ __forceinline__ void add_part(const float (&d)[kN], float *to, int step) {
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    add_global(to + j * step, d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
  }
}
template <int kN>
__device__ __forceinline__ void get_part(float (&d)[kN], const float *from, int step) {
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    const float4 v = __ldcg(reinterpret_cast<const float4 *>(from + j * step));
    d[4 * j] = v.x, d[4 * j + 1] = v.y, d[4 * j + 2] = v.z, d[4 * j + 3] = v.w;
  }
}
// After the additions, by every thread of the consumers: whether this was the last part, so that
// the sum is complete. `flag`: four bytes of shared memory.
__device__ __forceinline__ bool is_last_part(const Problem &a, int shared, void *flag) {
  __threadfence();
  int *before = static_cast<int *>(flag);
  bar_sync(kConsumerBarrier, 128 * kConsumers);
  if (threadIdx.x == 128) *before = atomicAdd(a.shared_turns + shared, 1);
  bar_sync(kConsumerBarrier, 128 * kConsumers);
  if (*before != a.parts - 1) return false;
  __threadfence();
  return true;
}

// Adds contiguous float32 in shared memory to as many in global memory.
__device__ __forceinline__ void cp_reduce_async_bulk_add(float *to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               :
               : "l"(to), "r"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_four(uint32_t to, const float *d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3])
               : "memory");
}

// How a warp adds a part of dq to the sum over the blocks of keys. The part may come in pieces.
template <bool kBegins_, bool kEnds_, int kBulk_, int kOthers_>
struct Piece {
  // This is the first piece, or the last one.
  static constexpr bool kBegins = kBegins_, kEnds = kEnds_;
  // Of so many rows of 32 fours the sums are bulk copies: a warp's own additions hold it up.
  static constexpr int kBulk = kBulk_;
  // Pieces whose copies may still be under way when `staging` is written again.
  static constexpr int kOthers = kOthers_;
};

// If the result has to be deterministic, blocks of keys add in their order, a warp by itself.
// `staging`: shared memory that the warp has for this piece. At its end the warp calls
// finish_query_gradients().
template <class P, class Work, int kN>
__device__ __forceinline__ void add_query_gradient(const Problem &a, const Work &work,
                                                   const float (&dq)[kN], float *to, int *turn,
                                                   int m0, [[maybe_unused]] uint32_t staging,
                                                   int lane) {
  int first = 0;
  if (P::kBulk > 0 && !a.deterministic) {
    first = P::kBulk;
    if (lane == 0) cp_async_bulk_wait_group_read<P::kOthers>();
    __syncwarp();
#pragma unroll
    for (int j = 0; j < P::kBulk; ++j) store_four(staging + (j * 32 + lane) * 16, dq + 4 * j);
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      cp_reduce_async_bulk_add(to, staging, P::kBulk * 512);
      cp_async_bulk_commit_group();
    }
    if (P::kBulk == kN / 4) return;
  }
  const int mine = a.deterministic ? work.turn(a, m0) : 0;
  if (P::kBegins && a.deterministic) {
    if (lane == 0) {
      while (load_acquire(turn) != mine) __nanosleep(20);
    }
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j < kN / 4; ++j) {
    if (j >= P::kBulk || j >= first) {
      add_global(to + (j * 32 + lane) * 4, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    }
  }
  if (P::kEnds && a.deterministic) {
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(turn, mine + 1);
  }
}
__device__ __forceinline__ void finish_query_gradients(int lane) {
  if (lane == 0) cp_async_bulk_wait_group<0>();
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace sm90_backward
}  // namespace nvte
