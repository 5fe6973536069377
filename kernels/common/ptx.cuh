// Instructions that CUDA C++ has no words for: programmatic dependent launch, predicated loads, and
// asynchronous copies to shared memory. Wrappers have the names of their PTX instructions.
#pragma once

#include <cstdint>

namespace nvte {

__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The same address of shared memory, kept in a register from here on: the compiler does not see
// what it is, and cannot compute it again wherever it is used.
template <class T>
__device__ __forceinline__ T *keep_shared_address(T *p) {
  uint32_t address = shared_address(p);
  asm volatile("" : "+r"(address));
  return static_cast<T *>(__cvta_shared_to_generic(address));
}

// Everything earlier in the stream is complete and visible after this. A kernel that was launched
// with the overlap attribute may fetch into L2 before it, but must not read or write anything that
// other kernels write or read.
__device__ __forceinline__ void griddepcontrol_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of the stream may be scheduled once every block has executed this or has ended.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Words that blocks of a kernel tell each other of, with what was written before them.
__device__ __forceinline__ int load_acquire(const int *p) {
  int v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_release(int *p, int v) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

// Copies to shared memory that the thread does not wait for; zeros if `inside` is false. They
// belong to the thread's next group.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_8(uint32_t to, const void *from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_4(uint32_t to, const void *from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 4 : 0)
               : "memory");
}
// Copies the first `bytes` of 16, and writes zeros after them.
__device__ __forceinline__ void cp_async_first_bytes(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the last kLeft groups of this thread have arrived.
template <int kLeft>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Data, or zeros if `inside` is false: a predicate, so that a batch of loads has no branch in it.
// Volatile keeps the load behind griddepcontrol_wait(). There is no cache hint: loads that bypass
// L1 beside stores that do not cost 10 % of the memory rate (H200, BF16 to FP8, 8192 x 8192: 53 us
// against 47.6 us).
template <int kBytes>
__device__ __forceinline__ void load_once(const void *p, bool inside, uint32_t *w) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "one load instruction");
  if constexpr (kBytes == 16) {
    asm volatile(
        "{.reg .pred inside;\n"
        "setp.ne.b32 inside, %5, 0;\n"
        "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
        "@inside ld.global.v4.b32 {%0, %1, %2, %3}, [%4];}"
        : "=&r"(w[0]), "=&r"(w[1]), "=&r"(w[2]), "=&r"(w[3])
        : "l"(p), "r"(int{inside}));
  } else if constexpr (kBytes == 8) {
    asm volatile(
        "{.reg .pred inside;\n"
        "setp.ne.b32 inside, %3, 0;\n"
        "mov.b32 %0, 0; mov.b32 %1, 0;\n"
        "@inside ld.global.v2.b32 {%0, %1}, [%2];}"
        : "=&r"(w[0]), "=&r"(w[1])
        : "l"(p), "r"(int{inside}));
  } else {
    asm volatile(
        "{.reg .pred inside;\n"
        "setp.ne.b32 inside, %2, 0;\n"
        "mov.b32 %0, 0;\n"
        "@inside ld.global.b32 %0, [%1];}"
        : "=&r"(w[0])
        : "l"(p), "r"(int{inside}));
  }
}

// 16 bytes of shared memory. Volatile, so that the load itself gets no branch around it where its
// use has one.
__device__ __forceinline__ void load_shared(const uint32_t *p, uint32_t (&w)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "r"(shared_address(p))
               : "memory");
}

template <int kBytes>
__device__ __forceinline__ void store_bytes(void *p, const uint32_t *w) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "one store instruction");
  if constexpr (kBytes == 16) {
    *static_cast<uint4 *>(p) = make_uint4(w[0], w[1], w[2], w[3]);
  } else if constexpr (kBytes == 8) {
    *static_cast<uint2 *>(p) = make_uint2(w[0], w[1]);
  } else {
    *static_cast<uint32_t *>(p) = w[0];
  }
}

}  // namespace nvte
