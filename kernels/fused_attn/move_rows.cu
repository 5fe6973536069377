// Rows of tokens from one order to another: between ranks, sequences and batches, into caches, and
// copies of strided rows.

#include "sequences.cuh"

namespace nvte {
namespace {

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
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
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
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
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
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
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
