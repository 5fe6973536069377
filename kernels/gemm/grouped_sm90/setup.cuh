// The kernel before the products: it makes a Problem of each member, with tensor maps, so that what
// lies outside a member reads as zeros, and counts the pairs of tiles.
#pragma once

#include "common/group.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_grouped {

constexpr int kSetupThreads = 256;

// A tensor of members, as the operand describes it.
struct Matrix {
  const void *data;
  const NVTEXGroupedMember *members;
  const int64_t *outer_dims, *inner_dims, *offsets;
  const void *scale_inv;
  size_t elements, scale_bytes;  // How many there are in the tensor.
  size_t outer, inner;
  NVTEScalingMode mode;
  int bytes;
  bool transposed;
};

struct SetupParams {
  // Maps of chunks of either operand and of D, but for what differs between members.
  CUtensorMap map, d_map;
  bool bulk_stores;  // The kernel can store in bulk, and has a map of D.
  Matrix a, b, c, d;
  const float *alpha, *beta;
  size_t alpha_stride, beta_stride;
  unsigned count;
  int tile_cols;
  unsigned run;  // Most pairs of tiles that a cluster takes at a time.
  Problem *problems;
  unsigned *first, *next;
  unsigned clusters;  // Each cluster begins with the pair of tiles of its own number.
};

// Elements, bytes of scales and pairs of tiles before a member, in everything that has the members
// one after the other.
constexpr int kTotals = 7;
struct Totals {
  size_t v[kTotals];
};

__device__ __forceinline__ size_t dim_of(const int64_t *dims, size_t even, unsigned t) {
  return dims != nullptr ? static_cast<size_t>(dims[t]) : even;
}

__device__ __forceinline__ size_t outer_of(const Matrix &x, unsigned t) {
  return x.members != nullptr ? x.members[t].outer : dim_of(x.outer_dims, x.outer, t);
}
__device__ __forceinline__ size_t inner_of(const Matrix &x, unsigned t) {
  return x.members != nullptr ? x.members[t].inner : dim_of(x.inner_dims, x.inner, t);
}

// The data of a member of `elements`, which fit.
__device__ __forceinline__ const char *data_of(const Matrix &x, unsigned t, size_t before,
                                               size_t elements) {
  if (x.members != nullptr) return static_cast<const char *>(x.members[t].data);
  const size_t at = x.offsets != nullptr ? static_cast<size_t>(x.offsets[t]) : before;
  return static_cast<const char *>(x.data) +
         min(at, x.elements - elements) * static_cast<size_t>(x.bytes);
}

// Bytes of a member's scales.
__device__ __forceinline__ size_t scales_of(const Matrix &x, size_t outer, size_t inner) {
  if (x.mode == NVTE_DELAYED_TENSOR_SCALING) return sizeof(float);
  return scale_entries(x.mode, false, outer, inner) * scale_bytes(x.mode);
}

// The scales of a member, `bytes` of them, which fit.
__device__ __forceinline__ const void *scales_at(const Matrix &x, unsigned t, size_t before,
                                                 size_t bytes) {
  if (x.members != nullptr) return x.members[t].scale_inv;
  if (x.scale_inv == nullptr) return nullptr;
  return static_cast<const char *>(x.scale_inv) + min(before, x.scale_bytes - bytes);
}

// Whether a member `[outer, inner]`, each at most kMaxSize, fits into its tensor. Sizes that only
// the device knows may be wrong, and nothing outside of a tensor must be touched.
__device__ __forceinline__ bool has_room(const Matrix &x, unsigned t, size_t outer, size_t inner) {
  const bool listed = x.members != nullptr;
  const size_t own_outer = listed ? x.members[t].outer : 0;
  const size_t own_inner = listed ? x.members[t].inner : 0;
  if (outer * inner > (listed ? own_outer * own_inner : x.elements)) return false;
  const bool scaled = x.mode != NVTE_DELAYED_TENSOR_SCALING && outer * inner != 0;
  return !scaled || scales_of(x, outer, inner) <=
                        (listed ? scales_of(x, own_outer, own_inner) : x.scale_bytes);
}

// The scale of a tensor.
__device__ __forceinline__ float scale_of(const Matrix &x, const void *scales) {
  if (x.mode != NVTE_DELAYED_TENSOR_SCALING || scales == nullptr) return 1.0f;
  return *static_cast<const float *>(scales);
}

// Sets what differs between the maps of members; `map` is in shared memory.
__device__ __forceinline__ void aim_map(CUtensorMap *map, const void *data, size_t inner,
                                        size_t outer, size_t pitch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const uint32_t at = shared_address(map);
  asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;"
               :
               : "r"(at), "l"(data)
               : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;"
               :
               : "r"(at), "r"(static_cast<uint32_t>(inner))
               : "memory");
  asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;"
               :
               : "r"(at), "r"(static_cast<uint32_t>(outer))
               : "memory");
  asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;"
               :
               : "r"(at), "l"(pitch)
               : "memory");
#endif
}

// The number of a pair of tiles. Wrong sizes could give more of them than can be counted.
__device__ __forceinline__ unsigned pair_of(size_t before) {
  return static_cast<unsigned>(min(before, size_t{INT_MAX}));
}

__device__ __forceinline__ bool whole_units(const void *data, size_t pitch) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && pitch % 16 == 0;
}

// Runs in one block. A thread makes the problem of a member.
static __global__ void __launch_bounds__(kSetupThreads)
    grouped_gemm_setup_kernel(const __grid_constant__ SetupParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(128) CUtensorMap maps[kSetupThreads];
  __shared__ Totals warps[kSetupThreads / 32];
  __shared__ Totals carry;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) carry = {};
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (threadIdx.x == 0) *p.next = p.clusters;
  for (unsigned base = 0; base < p.count; base += blockDim.x) {
    const unsigned t = base + threadIdx.x;
    const bool inside = t < p.count;
    size_t m = 0, n = 0, k = 0;
    Totals own = {};
    if (inside) {
      n = outer_of(p.d, t), m = inner_of(p.d, t), k = inner_of(p.a, t);
      const bool fits = n <= kMaxSize && m <= kMaxSize && k <= kMaxSize && has_room(p.a, t, m, k) &&
                        has_room(p.b, t, n, k) && has_room(p.c, t, n, m) && has_room(p.d, t, n, m);
      if (!fits) n = m = k = 0;
      // Offsets follow from the operands' own sizes, which may disagree.
      const size_t a_inner = k, a_outer = outer_of(p.a, t);
      const size_t b_inner = inner_of(p.b, t), b_outer = outer_of(p.b, t);
      own.v[0] = a_outer * a_inner, own.v[1] = b_outer * b_inner, own.v[2] = own.v[3] = n * m;
      own.v[4] = scales_of(p.a, a_outer, a_inner), own.v[5] = scales_of(p.b, b_outer, b_inner);
      own.v[6] = pairs_of(static_cast<unsigned>(n), static_cast<unsigned>(m),
                          static_cast<unsigned>(p.tile_cols), p.run);
    }
    Totals until = own;
#pragma unroll
    for (int i = 0; i < kTotals; ++i) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const size_t lower = __shfl_up_sync(0xffffffffu, until.v[i], step);
        if (lane >= step) until.v[i] += lower;
      }
    }
    __syncthreads();
    if (lane == 31) warps[warp] = until;
    __syncthreads();
    Totals before;
#pragma unroll
    for (int i = 0; i < kTotals; ++i) {
      before.v[i] = carry.v[i] + until.v[i] - own.v[i];
      for (unsigned w = 0; w < warp; ++w) before.v[i] += warps[w].v[i];
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) {
#pragma unroll
      for (int i = 0; i < kTotals; ++i) carry.v[i] = before.v[i] + own.v[i];
      p.first[min(base + blockDim.x, p.count)] = pair_of(carry.v[6]);
    }
    if (!inside) continue;
    p.first[t] = pair_of(before.v[6]);
    Problem &to = p.problems[t];
    const char *a = data_of(p.a, t, before.v[0], m * k), *b = data_of(p.b, t, before.v[1], n * k);
    to.cols_data = a;
    to.rows_data = b;
    to.c = data_of(p.c, t, before.v[2], n * m);
    to.d = const_cast<char *>(data_of(p.d, t, before.v[3], n * m));
    to.cols_scales = scales_at(p.a, t, before.v[4], scales_of(p.a, m, k));
    to.rows_scales = scales_at(p.b, t, before.v[5], scales_of(p.b, n, k));
    to.alpha =
        p.alpha[t * p.alpha_stride] * scale_of(p.a, to.cols_scales) * scale_of(p.b, to.rows_scales);
    to.beta = p.beta[t * p.beta_stride];
    to.n = static_cast<int>(n);
    to.m = static_cast<int>(m);
    to.k = static_cast<int>(k);
    const auto pitch = [&](const Matrix &x, size_t outer) {
      return (x.transposed ? outer : k) * static_cast<size_t>(x.bytes);
    };
    const auto whole = [&](const Matrix &x, const char *data, const void *scales, size_t outer) {
      return whole_units(data, pitch(x, outer)) &&
             (x.mode == NVTE_DELAYED_TENSOR_SCALING || whole_units(scales, 0));
    };
    const bool bulk = m != 0 && n != 0 && k != 0 && whole(p.a, a, to.cols_scales, m) &&
                      whole(p.b, b, to.rows_scales, n);
    to.bulk = bulk;
    const size_t d_pitch = m * static_cast<size_t>(p.d.bytes);
    // Bulk additions round as ordinary ones do only in float32.
    const bool adds = to.beta == 1.0f && to.c == to.d && p.d.bytes == 4;
    to.stores = !p.bulk_stores || m == 0 || n == 0 || !whole_units(to.d, d_pitch) ? Stores::kWords
                : to.beta == 0.0f                                                 ? Stores::kBulk
                : adds                                                            ? Stores::kBulkAdd
                                                                                  : Stores::kWords;
    const auto make = [&](CUtensorMap *map, const CUtensorMap &like, const void *data, size_t inner,
                          size_t outer, size_t line) {
      CUtensorMap &own_map = maps[threadIdx.x];
      own_map = like;
      aim_map(&own_map, data, inner, outer, line);
      *map = own_map;
    };
    const auto make_operand = [&](CUtensorMap *map, const Matrix &x, const char *data,
                                  size_t outer) {
      make(map, p.map, data, x.transposed ? outer : k, x.transposed ? k : outer, pitch(x, outer));
    };
    if (bulk) make_operand(&to.rows_map, p.b, b, n);
    if (bulk) make_operand(&to.cols_map, p.a, a, m);
    if (to.stores != Stores::kWords) make(&to.d_map, p.d_map, to.d, m, n, d_pitch);
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  }
#endif
}

// Brings a list of members that the host knows to the device.
constexpr int kListed = 100;
struct MemberList {
  NVTEXGroupedMember *to;
  unsigned count;
  NVTEXGroupedMember members[kListed];
};

static __global__ void grouped_gemm_list_kernel(const __grid_constant__ MemberList list) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (threadIdx.x < list.count) list.to[threadIdx.x] = list.members[threadIdx.x];
}

}  // namespace sm90_grouped
}  // namespace nvte
