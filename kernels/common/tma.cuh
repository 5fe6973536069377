// Bulk copies of tiles between global and shared memory and the barriers they complete on (compute
// capability 9.0 and later), and tensor maps, which the host makes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "launch.cuh"
#include "ptx.cuh"

namespace nvte {

// Barriers in shared memory. A phase ends after `count` arrivals and all announced bytes. Waiting
// for a parity returns once the phase of that parity is over; on a fresh barrier, parity 1 counts
// as over.
__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(shared_address(barrier)), "r"(count)
               : "memory");
}
// Between the last mbarrier_init() and the __syncthreads() that the first copies come after.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
               :
               : "r"(shared_address(barrier))
               : "memory");
}
// Arrives and announces bytes that copies will bring.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t *barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;}"
      :
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
}

// Orders this thread's ordinary accesses to shared memory before later ones by wgmma and bulk
// copies.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders accesses to global memory that this thread knows of before its later bulk copies.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- Clusters of blocks

__device__ __forceinline__ unsigned cluster_ctarank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// Arrives at the barrier of block `rank` of the cluster, at the address that it has in this block.
// Relaxed: orders no memory accesses.
__device__ __forceinline__ void mbarrier_arrive_remote(uint64_t *barrier, unsigned rank) {
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there];}"
      :
      : "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}

// ---- Bulk copies

// The box of a map at coordinates, innermost first, of which there are N = 2 to 5; by one thread.
// Elements outside the tensor read as zeros, wherever the box lies. But a box whose first element
// lies outside, in any dimension, makes the hardware look at the map's base: if the base is not the
// tensor's and lies where there is no memory, the load faults (seen on an H200; prefetches do not
// fault). A box that begins inside may end anywhere.
template <int N>
__device__ __forceinline__ void cp_async_bulk_tensor_load(void *to, const CUtensorMap *map,
                                                          uint64_t *barrier, const int (&at)[N]) {
  const uint32_t dst = shared_address(to), done = shared_address(barrier);
  if constexpr (N == 2) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4}], [%2];"
        :
        : "r"(dst), "l"(map), "r"(done), "r"(at[0]), "r"(at[1])
        : "memory");
  } else if constexpr (N == 3) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5}], [%2];"
        :
        : "r"(dst), "l"(map), "r"(done), "r"(at[0]), "r"(at[1]), "r"(at[2])
        : "memory");
  } else if constexpr (N == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];"
        :
        : "r"(dst), "l"(map), "r"(done), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
        : "memory");
  } else {
    static_assert(N == 5, "2 to 5 dimensions");
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2];"
        :
        : "r"(dst), "l"(map), "r"(done), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
        : "memory");
  }
}

// Loads a box to both blocks of a cluster of two, at the same addresses, completing on the barrier
// of each.
__device__ __forceinline__ void cp_async_bulk_tensor_load_multicast(void *to,
                                                                    const CUtensorMap *map,
                                                                    uint64_t *barrier, int x,
                                                                    int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
      :
      : "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y),
        "h"(static_cast<uint16_t>(3))
      : "memory");
}

// Brings the box into L2.
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor(const CUtensorMap *map,
                                                              const int (&at)[5]) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];"
               :
               : "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
               : "memory");
}

// Stores a box from shared to global memory, in the thread's bulk group; parts of the box outside
// the tensor are not written.
template <int N>
__device__ __forceinline__ void cp_async_bulk_tensor_store(const CUtensorMap *map, const void *from,
                                                           const int (&at)[N]) {
  const uint32_t src = shared_address(from);
  if constexpr (N == 2) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 :
                 : "l"(map), "r"(src), "r"(at[0]), "r"(at[1])
                 : "memory");
  } else if constexpr (N == 3) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :
                 : "l"(map), "r"(src), "r"(at[0]), "r"(at[1]), "r"(at[2])
                 : "memory");
  } else if constexpr (N == 4) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
        :
        : "l"(map), "r"(src), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
        : "memory");
  } else {
    static_assert(N == 5, "2 to 5 dimensions");
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
        :
        : "l"(map), "r"(src), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
        : "memory");
  }
}

// Loads contiguous bytes; addresses and counts are multiples of 16.
__device__ __forceinline__ void cp_async_bulk_load(void *to, const void *from, uint32_t bytes,
                                                   uint64_t *barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Copies contiguous bytes, a multiple of 16, from shared to global memory, in the thread's bulk
// group.
__device__ __forceinline__ void cp_async_bulk_store(void *to, const void *from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all but the last N groups have read their shared memory.
template <int N>
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(N) : "memory");
}
// Waits until all but the last N groups are complete.
template <int N>
__device__ __forceinline__ void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(N) : "memory");
}

// ---- Tensor maps

// Call this before a thread uses a map that a kernel has written to global memory.
__device__ __forceinline__ void fence_proxy_tensormap_acquire(const CUtensorMap *map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" : : "l"(map) : "memory");
}

// Makes a map of `rank` dimensions, innermost first; `steps[i]`: bytes between neighbours of
// dimension i + 1, multiples of 16. Elements outside the tensor read as zero. A box row of 128
// bytes lies at row * 128 with its 16-byte units permuted by unit ^= row % 8 if `swizzle` is
// CU_TENSOR_MAP_SWIZZLE_128B; the box then starts at a multiple of 1024.
inline NVTEXOutcome encode_tensor_map(CUtensorMap *map, CUtensorMapDataType type, unsigned rank,
                                      const void *base, const uint64_t *dims, const uint64_t *steps,
                                      const uint32_t *box,
                                      CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  // The function comes from the driver that the runtime has loaded, because there is nothing to
  // link against.
  static const Encode encode = [] {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encode>(function)
               : nullptr;
  }();
  if (encode == nullptr) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "the driver has no cuTensorMapEncodeTiled"};
  }
  const uint32_t unit[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode(map, type, rank, const_cast<void *>(base), dims, steps, box, unit,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "cuTensorMapEncodeTiled refused a tensor"};
  }
  return ok();
}

}  // namespace nvte
