// What moves tokens around attention: rows between orders, halves of packed sequences, caches, and
// corrections of context parallelism.

#include "common/dtype.cuh"
#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "common/vec.cuh"
#include "nvte/backend/fused_attn.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;

// First tokens of sequences.
struct Sequences {
  const int32_t *cu;
  size_t count;

  __device__ __forceinline__ size_t start(size_t s, unsigned unit) const {
    return static_cast<unsigned>(cu[s]) / unit;
  }
  __device__ __forceinline__ size_t length(size_t s) const {
    const int n = cu[s + 1] - cu[s];
    return n > 0 ? static_cast<size_t>(n) : 0;
  }
  // The sequence of a token, empty ones left out.
  __device__ size_t of(size_t token, unsigned unit) const {
    size_t low = 0, high = count;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (start(middle + 1, unit) <= token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < count ? low : count - 1;
  }
};

// Token i of a rank.
__device__ size_t of_rank(const Sequences &sequences, size_t i, size_t rank, size_t world) {
  const unsigned unit = static_cast<unsigned>(world);
  const size_t s = sequences.of(i, unit), first = sequences.start(s, unit);
  const size_t half = (sequences.start(s + 1, unit) - first) / 2, r = i - first;
  return r + first * world + half * (r < half ? rank : 2 * (world - 1) - rank);
}

// Copies `bytes` in units of kVec bytes, by `lanes` threads of which this is number `lane`.
template <class Unit>
__device__ __forceinline__ void copy_units(char *dst, const char *src, size_t bytes, size_t lane,
                                           size_t lanes) {
  const Unit *from = reinterpret_cast<const Unit *>(src);
  Unit *to = reinterpret_cast<Unit *>(dst);
  for (size_t i = lane; i < bytes / sizeof(Unit); i += lanes) to[i] = from[i];
}

// `unit`: what divides every address and length; 16, 4 or 1.
__device__ __forceinline__ void copy_bytes(int unit, void *dst, const void *src, size_t bytes,
                                           size_t lane, size_t lanes) {
  char *to = static_cast<char *>(dst);
  const char *from = static_cast<const char *>(src);
  if (unit == 16) {
    copy_units<uint4>(to, from, bytes, lane, lanes);
  } else if (unit == 4) {
    copy_units<uint32_t>(to, from, bytes, lane, lanes);
  } else {
    copy_units<uint8_t>(to, from, bytes, lane, lanes);
  }
}

int common_unit(uintptr_t bits) { return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1; }

// Threads that share a row: a power of two, at most a warp.
int lanes_of(size_t bytes, int unit) {
  int lanes = 1;
  while (lanes < 32 && static_cast<size_t>(lanes) * static_cast<size_t>(unit) < bytes) lanes *= 2;
  return lanes;
}

unsigned blocks_for(size_t rows, int lanes) {
  const size_t blocks = ceil_div(rows, static_cast<size_t>(kThreads / lanes));
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

__device__ __forceinline__ bool moved(const NVTEXMoveRowsArgs &a, size_t i, size_t &src,
                                      size_t &dst) {
  const Sequences cu = {a.cu, a.sequences}, valid = {a.cu_valid, a.sequences};
  switch (a.map) {
    case NVTEX_ROWS_HALF:
      if (i >= cu.start(cu.count, 2)) return false;
      dst = i;
      src = i + cu.start(cu.of(i, 2) + a.index, 2);
      return true;
    case NVTEX_ROWS_TO_RANKS:
    case NVTEX_ROWS_FROM_RANKS: {
      const size_t each = a.rows / a.world, j = of_rank(cu, i % each, i / each, a.world);
      const bool to = a.map == NVTEX_ROWS_TO_RANKS;
      src = to ? j : i;
      dst = to ? i : j;
      return true;
    }
    case NVTEX_ROWS_VALID: {
      const size_t s = cu.of(i, 1), first = cu.start(s, 1);
      src = dst = i;
      return i >= first && i - first < valid.length(s);
    }
    case NVTEX_ROWS_UNPACK:
    case NVTEX_ROWS_PACK: {
      const size_t s = i / a.length, r = i % a.length, packed = cu.start(s, 1) + r;
      const bool unpack = a.map == NVTEX_ROWS_UNPACK;
      src = unpack ? packed : i;
      dst = unpack ? i : packed;
      return r < cu.length(s);
    }
    case NVTEX_ROWS_TO_CACHE: {
      const size_t s = i / a.length, n = i % a.length, fresh = cu.length(s);
      const size_t end = valid.length(s) + n;
      if (n >= fresh || end < fresh) return false;
      const size_t position = end - fresh;
      if (a.page_table != nullptr && position >= a.pages * a.page) return false;
      src = a.index == NVTE_BSHD   ? i
            : a.index == NVTE_SBHD ? n * a.sequences + s
                                   : cu.start(s, 1) + n;
      const size_t page =
          a.page_table == nullptr
              ? s
              : static_cast<unsigned>(a.page_table[s * a.pages + position / a.page]);
      dst = page * a.page + position % a.page;
      return true;
    }
  }
  return false;
}

__global__ void __launch_bounds__(kThreads)
    move_rows_kernel(const __grid_constant__ NVTEXMoveRowsArgs a, int unit, int lanes) {
  wait_for_stream();
  let_next_start();
  const size_t per_block = static_cast<size_t>(kThreads / lanes);
  const size_t rows = a.rows * a.outer, lane = threadIdx.x % static_cast<unsigned>(lanes);
  for (size_t row = blockIdx.x * per_block + threadIdx.x / static_cast<unsigned>(lanes); row < rows;
       row += gridDim.x * per_block) {
    const size_t outer = row / a.rows;
    size_t src, dst;
    if (!moved(a, row % a.rows, src, dst) || src >= a.src_rows || dst >= a.dst_rows) continue;
    copy_bytes(unit, static_cast<char *>(a.dst) + (outer * a.dst_outer + dst) * a.row_bytes,
               static_cast<const char *>(a.src) + (outer * a.src_outer + src) * a.row_bytes,
               a.row_bytes, lane, static_cast<size_t>(lanes));
  }
}

// A thread has one place of every slot and moves its bytes in the order of the slots.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    reindex_cache_kernel(const __grid_constant__ NVTEXReindexCacheArgs a) {
  wait_for_stream();
  let_next_start();
  const size_t per_row = a.row_bytes / sizeof(Unit), per_slot = a.page * per_row;
  const Sequences fresh = {a.cu_new, a.sequences}, cached = {a.cu_cached, a.sequences};
  size_t active = a.sequences;
  for (size_t i = a.sequences - 1; i > 0; --i) {
    if (a.from[i] < a.from[i - 1]) {
      active = i;
      break;
    }
  }
  Unit *cache = static_cast<Unit *>(a.cache);
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t at = size_t{blockIdx.x} * kThreads + threadIdx.x; at < per_slot; at += stride) {
    const size_t token = at / per_row;
    for (size_t i = 0; i < active; ++i) {
      const size_t from = static_cast<unsigned>(a.from[i]);
      if ((a.from[0] == 0 && from == i) || from >= a.slots) continue;
      if (token + fresh.length(i) < cached.length(i)) {
        cache[i * per_slot + at] = cache[from * per_slot + at];
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    grad_correction_kernel(const __grid_constant__ NVTEXGradCorrectionArgs a, int lanes) {
  wait_for_stream();
  let_next_start();
  const Sequences cu = {a.cu, a.sequences};
  const size_t per_block = static_cast<size_t>(kThreads / lanes), end = cu.start(cu.count, 1);
  const size_t step_tokens = a.full ? a.tokens : a.tokens / 2;
  const size_t lane = threadIdx.x % static_cast<unsigned>(lanes);
  for (size_t row = blockIdx.x * per_block + threadIdx.x / static_cast<unsigned>(lanes);
       row < a.tokens * a.outer; row += gridDim.x * per_block) {
    const size_t outer = row / a.tokens, t = row % a.tokens;
    if (t >= end) continue;
    const size_t s = cu.of(t, 1), first = cu.start(s, 1), half = cu.length(s) / 2, r = t - first;
    const NVTEXHalfOp op = r < half ? a.first : a.second;
    if (op == NVTEX_HALF_NONE) continue;
    const size_t u = a.full ? t : first / 2 + (r < half ? r : r - half);
    if (op != NVTEX_HALF_ZERO && u >= step_tokens) continue;
    const size_t to = row * a.width, from = (outer * step_tokens + u) * a.width;
    for (size_t i = lane; i < a.width; i += static_cast<size_t>(lanes)) {
      Vec<T, 1> v = {};
      if (op != NVTEX_HALF_ZERO) v = load<T, 1>(a.step, from + i, true);
      if constexpr (T::kBytes > 1) {
        if (op == NVTEX_HALF_ADD) {
          float x[1], y[1];
          to_float(load<T, 1>(a.grad, to + i, true), x);
          to_float(v, y);
          x[0] = __fadd_rn(x[0], y[0]);
          v = from_float<T>(x);
        }
      }
      store(a.grad, to + i, v);
    }
  }
}

struct HalfPlace {
  size_t lse, step;
  bool inside;  // Whether both positions exist.
};

// Positions in a row of each, and the row.
__device__ __forceinline__ HalfPlace place_of(size_t row, size_t lse_len, size_t step_len,
                                              size_t in_lse, size_t in_step) {
  return {row * lse_len + in_lse, row * step_len + in_step, in_lse < lse_len && in_step < step_len};
}

// Of token t of the halves, for a head.
__device__ __forceinline__ HalfPlace half_place(const Sequences &cu, bool packed, size_t heads,
                                                size_t lse_len, size_t step_len, size_t head,
                                                size_t t) {
  const size_t s = cu.of(t, 2), first = cu.start(s, 2), end = cu.start(s + 1, 2);
  if (packed) return place_of(head, lse_len, step_len, t + end, t);
  const size_t r = t - first;
  return place_of(s * heads + head, lse_len, step_len, r + end - first, r);
}

__device__ __forceinline__ float log_sum(float a, float b) {
  const float most = fmaxf(a, b), least = fminf(a, b);
  return most == -__int_as_float(0x7f800000) ? most : most + log1pf(expf(least - most));
}

__global__ void __launch_bounds__(kThreads)
    half_lse_kernel(const __grid_constant__ NVTEXHalfLseArgs a) {
  wait_for_stream();
  let_next_start();
  const Sequences cu = {a.cu, a.sequences};
  // No more than step has room for, whatever the sequences say.
  const size_t tokens = min(cu.start(cu.count, 2), (a.packed ? 1 : a.sequences) * a.step_len);
  const size_t all = tokens * a.heads;
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += stride) {
    const HalfPlace at =
        half_place(cu, a.packed, a.heads, a.lse_len, a.step_len, i / tokens, i % tokens);
    if (!at.inside) continue;
    if (a.correct) {
      a.lse[at.lse] = log_sum(a.lse[at.lse], a.step[at.step]);
    } else {
      a.step[at.step] = a.lse[at.lse];
    }
  }
}

// x exp(from - to); 0 for 0.
__device__ __forceinline__ float rescaled(float x, float factor) {
  return x == 0.0f ? 0.0f : __fmul_rn(x, factor);
}
__device__ __forceinline__ float factor_of(float from, float to) {
  return from == -__int_as_float(0x7f800000) ? 0.0f : expf(from - to);
}

// A row is one head of one token.
template <class T>
__global__ void __launch_bounds__(kThreads)
    out_correction_kernel(const __grid_constant__ NVTEXOutCorrectionArgs a, int lanes) {
  wait_for_stream();
  let_next_start();
  const unsigned unit = a.second_half ? 2 : 1;
  const Sequences cu = {a.cu, a.sequences};
  const size_t end = cu.start(cu.count, unit), per_block = static_cast<size_t>(kThreads / lanes);
  const size_t lane = threadIdx.x % static_cast<unsigned>(lanes);
  for (size_t row = blockIdx.x * per_block + threadIdx.x / static_cast<unsigned>(lanes);
       row < a.tokens * a.heads; row += gridDim.x * per_block) {
    const size_t t = row / a.heads, head = row % a.heads;
    if (t >= end) continue;
    const size_t s = cu.of(t, unit);
    const size_t token = a.second_half ? t + cu.start(s + 1, 2) : t;
    HalfPlace at;
    if (a.second_half) {
      at = half_place(cu, a.packed, a.heads, a.lse_len, a.step_len, head, t);
    } else if (a.packed) {
      at = place_of(head, a.lse_len, a.step_len, t, t);
    } else {
      const size_t r = t - cu.start(s, 1);
      at = place_of(s * a.heads + head, a.lse_len, a.step_len, r, r);
    }
    if (!at.inside || token >= a.out_tokens) continue;
    const float lse = a.lse[at.lse];
    const float old_factor = factor_of(a.old_lse[at.lse], lse);
    const float step_factor = factor_of(a.step_lse[at.step], lse);
    const size_t to = (token * a.heads + head) * a.width, from = row * a.width;
    for (size_t i = lane; i < a.width; i += static_cast<size_t>(lanes)) {
      float x[1], y[1];
      to_float(load<T, 1>(a.out, to + i, true), x);
      to_float(load<T, 1>(a.step, from + i, true), y);
      x[0] = __fadd_rn(rescaled(x[0], old_factor), rescaled(y[0], step_factor));
      store(a.out, to + i, from_float<T>(x));
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    partition_kernel(const __grid_constant__ NVTEXPartitionArgs a) {
  wait_for_stream();
  let_next_start();
  const Sequences cu = {a.cu, a.sequences};
  const size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < a.tokens) a.indices[i] = static_cast<int32_t>(of_rank(cu, i, a.rank, a.world));
}

__global__ void seed_kernel(const __grid_constant__ NVTEXSeedArgs a) {
  wait_for_stream();
  let_next_start();
  const auto sum = [](const int64_t *at, int64_t value) {
    const uint64_t base = at != nullptr ? static_cast<uint64_t>(*at) : 0;
    return static_cast<int64_t>(base + static_cast<uint64_t>(value));
  };
  a.state[0] = sum(a.seed_at, a.seed);
  a.state[1] = sum(a.offset_at, a.offset);
}

// As many entries as fit into kernel parameters at the usual launch cost.
constexpr int kEntries = 32;

struct CopyBatch {
  NVTEXCopyRowsEntry entries[kEntries];
  size_t first_row[kEntries + 1];  // Rows of the entries before.
  int unit[kEntries];
  int count;
};

__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const __grid_constant__ CopyBatch batch, int lanes) {
  wait_for_stream();
  let_next_start();
  const size_t per_block = static_cast<size_t>(kThreads / lanes);
  const size_t lane = threadIdx.x % static_cast<unsigned>(lanes), step = static_cast<size_t>(lanes);
  for (size_t row = blockIdx.x * per_block + threadIdx.x / static_cast<unsigned>(lanes);
       row < batch.first_row[batch.count]; row += gridDim.x * per_block) {
    int n = 0;
    while (row >= batch.first_row[n + 1]) ++n;
    const NVTEXCopyRowsEntry &e = batch.entries[n];
    const size_t in = row - batch.first_row[n];
    const size_t k = in % e.dims[2], rest = in / e.dims[2], j = rest % e.dims[1];
    const size_t i = rest / e.dims[1];
    char *dst =
        static_cast<char *>(e.dst) + i * e.dst_steps[0] + j * e.dst_steps[1] + k * e.dst_steps[2];
    copy_bytes(batch.unit[n], dst,
               static_cast<const char *>(e.src) + i * e.src_steps[0] + j * e.src_steps[1] +
                   k * e.src_steps[2],
               e.src_bytes, lane, step);
    const int unit = batch.unit[n];
    char *pad = dst + e.src_bytes;
    const size_t bytes = e.dst_bytes - e.src_bytes;
    if (unit == 16) {
      for (size_t b = lane; b < bytes / 16; b += step) {
        reinterpret_cast<uint4 *>(pad)[b] = make_uint4(0, 0, 0, 0);
      }
    } else {
      for (size_t b = lane; b < bytes; b += step) pad[b] = 0;
    }
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_move_rows(const NVTEXMoveRowsArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  const int unit = common_unit(reinterpret_cast<uintptr_t>(args->src) |
                               reinterpret_cast<uintptr_t>(args->dst) | args->row_bytes);
  const int lanes = lanes_of(args->row_bytes, unit);
  return launch(move_rows_kernel, dim3(blocks_for(args->rows * args->outer, lanes)), kThreads,
                stream, *args, unit, lanes);
}

extern "C" NVTEXOutcome nvte_cuda_reindex_cache(const NVTEXReindexCacheArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  const int unit = common_unit(reinterpret_cast<uintptr_t>(args->cache) | args->row_bytes);
  const size_t units = args->page * args->row_bytes / static_cast<size_t>(unit);
  const dim3 grid(blocks_for(units, 1));
  if (unit == 16) return launch(reindex_cache_kernel<uint4>, grid, kThreads, stream, *args);
  if (unit == 4) return launch(reindex_cache_kernel<uint32_t>, grid, kThreads, stream, *args);
  return launch(reindex_cache_kernel<uint8_t>, grid, kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_grad_correction(const NVTEXGradCorrectionArgs *args,
                                                  cudaStream_t stream) noexcept {
  using namespace nvte;
  const int lanes = lanes_of(args->width, 1);
  const dim3 grid(blocks_for(args->tokens * args->outer, lanes));
  if (args->dtype == kNVTEByte) {
    return launch(grad_correction_kernel<E4M3>, grid, kThreads, stream, *args, lanes);
  }
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    return launch(grad_correction_kernel<decltype(t)>, grid, kThreads, stream, *args, lanes);
  });
}

extern "C" NVTEXOutcome nvte_cuda_half_lse(const NVTEXHalfLseArgs *args,
                                           cudaStream_t stream) noexcept {
  using namespace nvte;
  // There are no more tokens than places for them in a step.
  const size_t most = args->heads * args->step_len * (args->packed ? 1 : args->sequences);
  return launch(half_lse_kernel, dim3(blocks_for(most, 1)), kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_out_correction(const NVTEXOutCorrectionArgs *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  const int lanes = lanes_of(args->width, 1);
  const dim3 grid(blocks_for(args->tokens * args->heads, lanes));
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    return launch(out_correction_kernel<decltype(t)>, grid, kThreads, stream, *args, lanes);
  });
}

extern "C" NVTEXOutcome nvte_cuda_partition(const NVTEXPartitionArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(partition_kernel, dim3(blocks_for(args->tokens, 1)), kThreads, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_seed(const NVTEXSeedArgs *args, cudaStream_t stream) noexcept {
  return nvte::launch(nvte::seed_kernel, dim3(1), 1, stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_copy_rows(const NVTEXCopyRowsArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  for (size_t done = 0; done < args->num_entries;) {
    const size_t left = args->num_entries - done;
    CopyBatch batch = {};
    batch.count = static_cast<int>(left < kEntries ? left : kEntries);
    int lanes = 1;
    for (int n = 0; n < batch.count; ++n) {
      const NVTEXCopyRowsEntry &e = batch.entries[n] = args->entries[done + static_cast<size_t>(n)];
      uintptr_t bits = reinterpret_cast<uintptr_t>(e.src) | reinterpret_cast<uintptr_t>(e.dst) |
                       e.src_bytes | e.dst_bytes;
      for (int i = 0; i < 3; ++i) bits |= e.src_steps[i] | e.dst_steps[i];
      batch.unit[n] = common_unit(bits);
      batch.first_row[n + 1] = batch.first_row[n] + e.dims[0] * e.dims[1] * e.dims[2];
      const int wanted = lanes_of(e.dst_bytes, batch.unit[n]);
      lanes = lanes > wanted ? lanes : wanted;
    }
    const NVTEXOutcome launched =
        launch(copy_rows_kernel, dim3(blocks_for(batch.first_row[batch.count], lanes)), kThreads,
               stream, batch, lanes);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    done += static_cast<size_t>(batch.count);
  }
  return ok();
}
