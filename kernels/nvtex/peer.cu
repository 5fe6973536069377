// Messages between GPUs of one host by their copy engines. Each device has memory that the others
// write to: a slot for what arrives, and counters of what has arrived and what has been taken away.

#include <cstdint>
#include <cstring>

#include "common/capture.cuh"
#include "common/launch.cuh"
#include "nvte/backend/outcome.h"

// A message to one device, and one from another. The same struct is in src/parallel/peer.rs.
struct PeerShift {
  const void *send;
  void *recv;
  size_t bytes;
  // The slot of the device that gets the message, and its counter of arrivals.
  void *their_slot;
  uint64_t *their_arrived;
  // In own memory: how many messages that device has taken away.
  const uint64_t *taken;
  // The own slot, and the counter of what has arrived there.
  const void *slot;
  const uint64_t *arrived;
  // What the device that sends the other message waits for.
  uint64_t *their_taken;
  // Messages so far.
  uint64_t *count;
  // Memory of the host: not 0 when nobody is to wait any more.
  const int *stop;
};

namespace nvte {
namespace {

// Counters of a slot: arrived, taken, count. Each has a line of the cache of its own.
constexpr size_t kCounterBytes = 128;
constexpr size_t kCounters = 3;

__device__ __forceinline__ uint64_t load_acquire(const uint64_t *counter) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(uint64_t *counter, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

// Waits for another device, until somebody stops it.
__device__ __forceinline__ void wait_for(const uint64_t *counter, uint64_t least, const int *stop) {
  constexpr unsigned kLooks = 256;
  for (unsigned i = 1; load_acquire(counter) < least; ++i) {
    if (i % kLooks == 0 && *static_cast<const volatile int *>(stop) != 0) return;
    __nanosleep(64);
  }
}

// The slot is free.
__global__ void __launch_bounds__(32) begin_kernel(const __grid_constant__ PeerShift a) {
  if (threadIdx.x != 0) return;
  const uint64_t number = *a.count + 1;
  *a.count = number;
  wait_for(a.taken, number - 1, a.stop);
}

// The message has been sent, and the other one has come.
__global__ void __launch_bounds__(32) arrive_kernel(const __grid_constant__ PeerShift a) {
  if (threadIdx.x != 0) return;
  const uint64_t number = *a.count;
  store_release(a.their_arrived, number);
  wait_for(a.arrived, number, a.stop);
}

// The other message has been taken away.
__global__ void __launch_bounds__(32) take_kernel(const __grid_constant__ PeerShift a) {
  if (threadIdx.x == 0) store_release(a.their_taken, *a.count);
}

NVTEXOutcome shift(const PeerShift &a, cudaStream_t stream) {
  NVTEXOutcome done = launch_grid(false, begin_kernel, dim3(1), 32, stream, a);
  if (done.status != NVTEX_BACKEND_OK) return done;
  const cudaMemcpyKind kind = cudaMemcpyDeviceToDevice;
  if (const cudaError_t error = cudaMemcpyAsync(a.their_slot, a.send, a.bytes, kind, stream)) {
    return outcome(error);
  }
  done = launch_grid(false, arrive_kernel, dim3(1), 32, stream, a);
  if (done.status != NVTEX_BACKEND_OK) return done;
  if (const cudaError_t error = cudaMemcpyAsync(a.recv, a.slot, a.bytes, kind, stream)) {
    return outcome(error);
  }
  return launch_grid(false, take_kernel, dim3(1), 32, stream, a);
}

}  // namespace
}  // namespace nvte

// A word of the host, 0, that kernels may read.
extern "C" NVTEXOutcome nvte_cuda_peer_word(int **word) noexcept {
  nvte::RelaxedCapture relaxed;
  void *made = nullptr;
  const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
  if (const cudaError_t error = cudaHostAlloc(&made, sizeof(int), flags)) {
    return nvte::outcome(error);
  }
  *word = static_cast<int *>(made);
  **word = 0;
  return nvte::ok();
}

extern "C" NVTEXOutcome nvte_cuda_peer_free_word(int *word) noexcept {
  nvte::RelaxedCapture relaxed;
  return nvte::outcome(cudaFreeHost(word));
}

// Memory of zeros of the current device, that other processes may open by the handle. Waits for all
// that the device does, whatever becomes of the memory.
extern "C" NVTEXOutcome nvte_cuda_peer_allocate(size_t bytes, void **memory, int *device,
                                                void *handle) noexcept {
  nvte::RelaxedCapture relaxed;
  cudaIpcMemHandle_t made;
  if (const cudaError_t error = cudaDeviceSynchronize()) return nvte::outcome(error);
  if (const cudaError_t error = cudaGetDevice(device)) return nvte::outcome(error);
  if (const cudaError_t error = cudaMalloc(memory, bytes)) return nvte::outcome(error);
  cudaError_t error = cudaMemset(*memory, 0, bytes);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaIpcGetMemHandle(&made, *memory);
  if (error != cudaSuccess) {
    (void)cudaFree(*memory);
    return nvte::outcome(error);
  }
  std::memcpy(handle, &made, sizeof(made));
  return nvte::ok();
}

extern "C" NVTEXOutcome nvte_cuda_peer_free(void *memory) noexcept {
  nvte::RelaxedCapture relaxed;
  return nvte::outcome(cudaFree(memory));
}

// Lets the current device use the memory of another one of this process.
extern "C" NVTEXOutcome nvte_cuda_peer_reach(int device) noexcept {
  nvte::RelaxedCapture relaxed;
  const cudaError_t error = cudaDeviceEnablePeerAccess(device, 0);
  if (error != cudaErrorPeerAccessAlreadyEnabled) return nvte::outcome(error);
  (void)cudaGetLastError();
  return nvte::ok();
}

// Memory of another process.
extern "C" NVTEXOutcome nvte_cuda_peer_open(const void *handle, void **memory) noexcept {
  nvte::RelaxedCapture relaxed;
  cudaIpcMemHandle_t given;
  std::memcpy(&given, handle, sizeof(given));
  return nvte::outcome(cudaIpcOpenMemHandle(memory, given, cudaIpcMemLazyEnablePeerAccess));
}

extern "C" NVTEXOutcome nvte_cuda_peer_close(void *memory) noexcept {
  nvte::RelaxedCapture relaxed;
  return nvte::outcome(cudaIpcCloseMemHandle(memory));
}

// Whether all that was sent from so many slots has been taken away.
extern "C" NVTEXOutcome nvte_cuda_peer_settled(const void *memory, size_t slots,
                                               bool *settled) noexcept {
  nvte::RelaxedCapture relaxed;
  *settled = true;
  for (size_t i = 0; i < slots && *settled; ++i) {
    char counters[nvte::kCounters * nvte::kCounterBytes];
    const char *from = static_cast<const char *>(memory) + i * sizeof(counters);
    const cudaMemcpyKind kind = cudaMemcpyDeviceToHost;
    if (const cudaError_t error = cudaMemcpy(counters, from, sizeof(counters), kind)) {
      return nvte::outcome(error);
    }
    *settled = std::memcmp(counters + nvte::kCounterBytes, counters + 2 * nvte::kCounterBytes,
                           sizeof(uint64_t)) == 0;
  }
  return nvte::ok();
}

// Queues a message to one device and one from another.
extern "C" NVTEXOutcome nvte_cuda_peer_shift(const PeerShift *args, cudaStream_t stream) noexcept {
  return nvte::shift(*args, stream);
}
