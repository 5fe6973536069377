// Messages between GPUs of one host by their copy engines. Each device has memory that the others
// write to: a slot for what arrives, and counters of what has arrived and what has been taken away.

#include <cstring>
#include <new>

#include "common/capture.cuh"
#include "common/launch.cuh"
#include "nvte/backend/outcome.h"
#include "nvtex/peer.cuh"

// A message to another device. The same struct is in src/parallel/peer.rs.
struct PeerMessage {
  const void *send;
  size_t bytes;
  // The slot of the device that gets the message, and its counter of arrivals.
  void *their_slot;
  uint64_t *their_arrived;
  // Of this message, counted from 1.
  const uint64_t *number;
  // A kernel stores the message.
  bool stores;
};

// The counters of slots one behind the other, of which each holds one message at a time. The same
// struct is in src/parallel/peer.rs.
struct PeerSlots {
  enum { kMost = 32 };

  // Of the first slot, in own memory.
  char *counters;
  // Of each slot: where the device that has sent the message learns that it was taken away.
  uint64_t *their_taken[kMost];
  size_t count;
  // Memory of the host: not 0 when nobody is to wait any more.
  const int *stop;
};

namespace nvte {
namespace {

// Counters of a slot: how many messages have arrived there, and how many of the own ones have been
// taken away, which other devices write; and the number of the next message, the same for what is
// sent and for what comes. Each has a line of the cache of its own.
constexpr size_t kCounterBytes = 128;
constexpr size_t kCounters = 3;
constexpr size_t kSlotCounters = kCounters * kCounterBytes;

struct Counters {
  uint64_t *arrived, *taken, *number;
};

__device__ __forceinline__ Counters counters_of(const PeerSlots &a, size_t slot) {
  char *first = a.counters + slot * kSlotCounters;
  const auto counter = [&](size_t i) {
    return reinterpret_cast<uint64_t *>(first + i * kCounterBytes);
  };
  return {counter(0), counter(1), counter(2)};
}

constexpr unsigned kStoreBlocks = 16, kStoreThreads = 512;

// The message, in units of 16 bytes as far as they go.
__global__ void __launch_bounds__(kStoreThreads)
    store_kernel(const __grid_constant__ PeerMessage a, size_t units) {
  const size_t first = blockIdx.x * size_t{kStoreThreads} + threadIdx.x;
  constexpr size_t kStep = size_t{kStoreBlocks} * kStoreThreads;
  for (size_t i = first; i < units; i += kStep) {
    static_cast<uint4 *>(a.their_slot)[i] = static_cast<const uint4 *>(a.send)[i];
  }
  for (size_t i = units * sizeof(uint4) + first; i < a.bytes; i += kStep) {
    static_cast<char *>(a.their_slot)[i] = static_cast<const char *>(a.send)[i];
  }
}

// The message has been stored.
__global__ void __launch_bounds__(32) announce_kernel(const __grid_constant__ PeerMessage a) {
  if (threadIdx.x == 0) store_release(a.their_arrived, *a.number);
}

// Waits until the messages before have been taken away: there is room for the next ones.
__global__ void __launch_bounds__(32) room_kernel(const __grid_constant__ PeerSlots a) {
  if (threadIdx.x >= a.count) return;
  const Counters own = counters_of(a, threadIdx.x);
  wait_for(own.taken, *own.number - 1, a.stop);
}

// Waits for the messages that come to the slots.
__global__ void __launch_bounds__(32) arrive_kernel(const __grid_constant__ PeerSlots a) {
  if (threadIdx.x >= a.count) return;
  const Counters own = counters_of(a, threadIdx.x);
  wait_for(own.arrived, *own.number, a.stop);
}

// Messages have been taken away, and the own ones have been sent.
__global__ void __launch_bounds__(32) take_kernel(const __grid_constant__ PeerSlots a) {
  if (threadIdx.x >= a.count) return;
  const Counters own = counters_of(a, threadIdx.x);
  const uint64_t number = *own.number;
  *own.number = number + 1;
  store_release(a.their_taken[threadIdx.x], number);
}

// Products may leave no multiprocessor to a kernel (large ones take the shared memory of all of
// them), so that copies alone are between what is sent and its arrival: that of the message's
// number follows that of its bytes. Where both devices are of one process a kernel stores the
// message all the same. To queue a copy there takes a lock of the other device, which the driver
// keeps while another thread waits for that device in a call such as cudaFree, maybe for this very
// message; and on the default stream a copy waits for the default stream of the other device.
NVTEXOutcome send(const PeerMessage &a, cudaStream_t stream) {
  if (a.stores) {
    const size_t units = aligned(a.send, sizeof(uint4)) ? a.bytes / sizeof(uint4) : 0;
    const dim3 grid(kStoreBlocks);
    const auto done = launch_grid(false, store_kernel, grid, kStoreThreads, stream, a, units);
    if (done.status != NVTEX_BACKEND_OK) return done;
    return launch_grid(false, announce_kernel, dim3(1), 32, stream, a);
  }
  const cudaMemcpyKind kind = cudaMemcpyDeviceToDevice;
  if (const cudaError_t error = cudaMemcpyAsync(a.their_slot, a.send, a.bytes, kind, stream)) {
    return outcome(error);
  }
  return outcome(cudaMemcpyAsync(a.their_arrived, a.number, sizeof(*a.number), kind, stream));
}

// The stream of the last call of a communicator, and an event behind that call.
struct Order {
  cudaEvent_t event = nullptr;
  cudaStream_t stream = nullptr;
  unsigned long long capture = 0;
  bool used = false;
};

// The number of the capture of a stream; 0 without one.
cudaError_t capture_of(cudaStream_t stream, unsigned long long *capture) {
  cudaStreamCaptureStatus status;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, capture);
  if (status != cudaStreamCaptureStatusActive) *capture = 0;
  return error;
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

// Memory of zeros of the current device, that other processes may open by the handle, but for the
// numbers of the first messages of so many slots. Waits for all that the device does, whatever
// becomes of the memory.
extern "C" NVTEXOutcome nvte_cuda_peer_allocate(size_t bytes, size_t slots, void **memory,
                                                int *device, void *handle) noexcept {
  nvte::RelaxedCapture relaxed;
  cudaIpcMemHandle_t made;
  if (const cudaError_t error = cudaDeviceSynchronize()) return nvte::outcome(error);
  if (const cudaError_t error = cudaGetDevice(device)) return nvte::outcome(error);
  if (const cudaError_t error = cudaMalloc(memory, bytes)) return nvte::outcome(error);
  cudaError_t error = cudaMemset(*memory, 0, bytes);
  if (error == cudaSuccess && slots > 0) {
    char *numbers = static_cast<char *>(*memory) + 2 * nvte::kCounterBytes;
    // The lowest byte of each is 1.
    error = cudaMemset2D(numbers, nvte::kSlotCounters, 1, 1, slots);
  }
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
    char counters[nvte::kSlotCounters];
    const char *from = static_cast<const char *>(memory) + i * sizeof(counters);
    const cudaMemcpyKind kind = cudaMemcpyDeviceToHost;
    if (const cudaError_t error = cudaMemcpy(counters, from, sizeof(counters), kind)) {
      return nvte::outcome(error);
    }
    uint64_t taken, number;
    std::memcpy(&taken, counters + nvte::kCounterBytes, sizeof(taken));
    std::memcpy(&number, counters + 2 * nvte::kCounterBytes, sizeof(number));
    *settled = taken + 1 == number;
  }
  return nvte::ok();
}

// Queues a message to another device.
extern "C" NVTEXOutcome nvte_cuda_peer_send(const PeerMessage *args, cudaStream_t stream) noexcept {
  return nvte::send(*args, stream);
}

// Waits until slots of other devices have room for messages.
extern "C" NVTEXOutcome nvte_cuda_peer_room(const PeerSlots *args, cudaStream_t stream) noexcept {
  return nvte::launch_grid(false, nvte::room_kernel, dim3(1), 32, stream, *args);
}

// Waits for the messages that come to slots.
extern "C" NVTEXOutcome nvte_cuda_peer_arrive(const PeerSlots *args, cudaStream_t stream) noexcept {
  return nvte::launch_grid(false, nvte::arrive_kernel, dim3(1), 32, stream, *args);
}

// Says that they are not needed any more.
extern "C" NVTEXOutcome nvte_cuda_peer_take(const PeerSlots *args, cudaStream_t stream) noexcept {
  return nvte::launch_grid(false, nvte::take_kernel, dim3(1), 32, stream, *args);
}

// The number of the capture of a stream; 0 without one.
extern "C" NVTEXOutcome nvte_cuda_peer_capture(cudaStream_t stream,
                                               unsigned long long *capture) noexcept {
  return nvte::outcome(nvte::capture_of(stream, capture));
}

// Makes a call on the stream follow the one before, which may be on another stream.
extern "C" NVTEXOutcome nvte_cuda_peer_follow(void **order, cudaStream_t stream) noexcept {
  using namespace nvte;
  if (*order == nullptr) {
    auto *made = new (std::nothrow) Order;
    if (made == nullptr) return {NVTEX_BACKEND_DEVICE_ERROR, "out of host memory"};
    *order = made;
    return outcome(cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming));
  }
  const Order &last = *static_cast<Order *>(*order);
  if (!last.used || last.stream == stream) return ok();
  unsigned long long capture = 0;
  if (const cudaError_t error = capture_of(stream, &capture)) return outcome(error);
  // What is captured does not run yet, and follows nothing outside of its graph.
  if (capture != last.capture) return ok();
  return outcome(cudaStreamWaitEvent(stream, last.event, 0));
}

// The call has been queued.
extern "C" NVTEXOutcome nvte_cuda_peer_queued(void *order, cudaStream_t stream) noexcept {
  using namespace nvte;
  Order &last = *static_cast<Order *>(order);
  if (const cudaError_t error = capture_of(stream, &last.capture)) return outcome(error);
  last.stream = stream;
  last.used = true;
  return outcome(cudaEventRecord(last.event, stream));
}

extern "C" void nvte_cuda_peer_end_order(void *order) noexcept {
  if (order == nullptr) return;
  auto *last = static_cast<nvte::Order *>(order);
  (void)cudaEventDestroy(last->event);
  delete last;
}
