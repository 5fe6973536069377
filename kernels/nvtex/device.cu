// Devices, memory, streams, the pool of compute streams and events of each device, and the counters
// by which streams wait for each other.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

#include "common/capture.cuh"
#include "common/launch.cuh"
#include "common/limits.cuh"
#include "common/ptx.cuh"
#include "nvte/backend/grouped_gemm.h"
#include "nvte/backend/nvtex.h"

#include <cuda.h>

namespace nvte {
namespace {

constexpr int kMaxDevices = 128;
constexpr int kPool = 4;

// sm_count * 1000 + arch; 0: not asked yet.
std::atomic<int> g_devices[kMaxDevices];

struct Pool {
  std::mutex mutex;
  cudaStream_t streams[kPool];
  cudaEvent_t events[kPool];
};
Pool g_pools[kMaxDevices];

cudaError_t current_ordinal(int *ordinal) {
  if (const cudaError_t error = cudaGetDevice(ordinal)) return error;
  return *ordinal < kMaxDevices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t create_stream(cudaStream_t *stream) {
  int least, greatest;
  if (const cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest)) return error;
  // -1 as other libraries with this ABI; `greatest` is smaller where more levels exist.
  const int priority = greatest < -1 ? -1 : greatest;
  return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, priority);
}

// Entry `index` of the current device's pool, made by `create` on first use.
template <class T, class Create>
NVTEXOutcome pooled(T (Pool::*entries)[kPool], int index, T *out, Create create) {
  if (index < 0 || index >= kPool) return unimplemented("the pool has 4 entries");
  int ordinal;
  if (const cudaError_t error = current_ordinal(&ordinal)) return outcome(error);
  Pool &pool = g_pools[ordinal];
  std::lock_guard<std::mutex> lock(pool.mutex);
  T &entry = (pool.*entries)[index];
  if (entry == nullptr) {
    RelaxedCapture relaxed;
    if (const cudaError_t error = create(&entry)) {
      entry = nullptr;
      return outcome(error);
    }
  }
  *out = entry;
  return ok();
}

// Streams of a thread for work side by side, and the event that orders them. Of a thread and not of
// the process: while one thread captures, the streams belong to its graph.
class Branches {
 public:
  ~Branches() {
    for (const cudaStream_t stream : streams_) {
      if (stream != nullptr) (void)cudaStreamDestroy(stream);
    }
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }

  cudaError_t fork(cudaStream_t from, int count, cudaStream_t *branches) {
    if (const cudaError_t error = create(count)) return error;
    if (const cudaError_t error = cudaEventRecord(event_, from)) return error;
    for (int i = 0; i < count; ++i) {
      if (const cudaError_t error = cudaStreamWaitEvent(streams_[i], event_, 0)) return error;
      branches[i] = streams_[i];
    }
    return cudaSuccess;
  }

  cudaError_t join(cudaStream_t to, int count) {
    for (int i = 0; i < count; ++i) {
      if (const cudaError_t error = cudaEventRecord(event_, streams_[i])) return error;
      if (const cudaError_t error = cudaStreamWaitEvent(to, event_, 0)) return error;
    }
    return cudaSuccess;
  }

 private:
  cudaError_t create(int count) {
    RelaxedCapture relaxed;
    if (event_ == nullptr) {
      if (const cudaError_t error = cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)) {
        return error;
      }
    }
    for (int i = 0; i < count; ++i) {
      if (streams_[i] != nullptr) continue;
      if (const cudaError_t error = create_stream(&streams_[i])) return error;
    }
    return cudaSuccess;
  }

  cudaStream_t streams_[kPool] = {};
  cudaEvent_t event_ = nullptr;
};

// The branches of the current device and this thread; null without memory.
Branches *branches_of(int ordinal) {
  thread_local std::unique_ptr<Branches> branches[kMaxDevices];
  if (branches[ordinal] == nullptr) branches[ordinal].reset(new (std::nothrow) Branches);
  return branches[ordinal].get();
}

template <class Body>
NVTEXOutcome with_branches(int count, Body body) {
  if (count < 0 || count > kPool) return unimplemented("there are 4 branches");
  int ordinal;
  if (const cudaError_t error = current_ordinal(&ordinal)) return outcome(error);
  Branches *branches = branches_of(ordinal);
  return outcome(branches != nullptr ? body(*branches) : cudaErrorMemoryAllocation);
}

// Host memory that all devices see: not 0 after a wait for counters that ended without success.
// Made by the first wait; it lives as long as the process.
std::atomic<int *> g_overdue;

cudaError_t overdue_flag(int **flag) {
  static std::mutex one_by_one;
  const std::lock_guard<std::mutex> lock(one_by_one);
  *flag = g_overdue.load(std::memory_order_acquire);
  if (*flag != nullptr) return cudaSuccess;
  RelaxedCapture relaxed;
  void *made = nullptr;
  const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
  if (const cudaError_t error = cudaHostAlloc(&made, sizeof(int), flags)) return error;
  *flag = static_cast<int *>(made);
  **flag = 0;
  g_overdue.store(*flag, std::memory_order_release);
  return cudaSuccess;
}

// Reports, once, a wait that ended without success.
NVTEXOutcome take_overdue() {
  int *flag = g_overdue.load(std::memory_order_acquire);
  if (flag == nullptr || __atomic_exchange_n(flag, 0, __ATOMIC_ACQ_REL) == 0) return ok();
  return {NVTEX_BACKEND_DEVICE_ERROR,
          "a product waited longer than NVTE_WAIT_SECONDS for its counters, which nobody cleared; "
          "it has run without them, and its result is not to be used"};
}

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

constexpr int kCounterThreads = 256;

// Runs in one block. It waits for the counters of a product, or sets them. It must not stop the
// context, so a wait that takes too long only sets the flag.
__global__ void __launch_bounds__(kCounterThreads)
    counters_kernel(const __grid_constant__ NVTEXCountersArgs a, int *overdue) {
  griddepcontrol_wait();
  const uint64_t begin = nanoseconds();
  for (size_t i = threadIdx.x; i < a.length; i += kCounterThreads) {
    volatile int32_t *counter = a.counters + i;
    if (!a.wait) {
      __threadfence_system();
      *counter = 0;
      continue;
    }
    while (*counter != 0) {
      if (nanoseconds() - begin <= a.limit) continue;
      *static_cast<volatile int *>(overdue) = 1;
      __threadfence_system();
      return;
    }
  }
  __threadfence_system();
}

// In a thread that has called nothing of CUDA yet, the runtime makes the context of its device
// current when it first needs one. Functions of the driver, such as those that encode tensor maps,
// fail until then.
cudaError_t have_context(int ordinal) {
  thread_local bool done = false;
  if (done) return cudaSuccess;
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (const cudaError_t error = cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &function, 4000,
                                                                 cudaEnableDefault, &found)) {
    return error;
  }
  if (found != cudaDriverEntryPointSuccess) return cudaErrorUnknown;
  CUcontext context = nullptr;
  const auto get = reinterpret_cast<decltype(&cuCtxGetCurrent)>(function);
  if (get(&context) != CUDA_SUCCESS || context == nullptr) {
    if (const cudaError_t error = cudaSetDevice(ordinal)) return error;
  }
  done = true;
  return cudaSuccess;
}

#if defined(NVTE_ASSUMED_ARCH)
// What the device is taken for: the architecture of the code, or a later one that runs it too.
int assumed_arch() {
  static const int arch = [] {
    const char *later = std::getenv("NVTE_ASSUME_ARCH");
    const int wanted = later == nullptr ? 0 : std::atoi(later);
    return wanted > NVTE_ASSUMED_ARCH ? wanted : NVTE_ASSUMED_ARCH;
  }();
  return arch;
}
#endif

// Waits for the stream where a copy from or to memory that is not pinned would: the driver waits
// with a lock of the device, which calls for another device of the process may need, maybe those of
// another rank for which the stream waits. Copies of up to 64 KiB to the device, which the driver
// stages itself, do not wait.
cudaError_t wait_before_copy(const void *host, size_t bytes, NVTEXCopyKind kind,
                             cudaStream_t stream) {
  constexpr size_t kStaged = size_t{64} << 10;
  if (kind == NVTEX_COPY_TO_DEVICE && bytes <= kStaged) return cudaSuccess;
  cudaPointerAttributes found;
  if (const cudaError_t error = cudaPointerGetAttributes(&found, host)) return error;
  if (found.type != cudaMemoryTypeUnregistered) return cudaSuccess;
  cudaStreamCaptureStatus capture;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &capture)) return error;
  if (capture != cudaStreamCaptureStatusNone) return cudaSuccess;
  // Another stream of the process may be being captured meanwhile.
  RelaxedCapture relaxed;
  return cudaStreamSynchronize(stream);
}

}  // namespace

cudaError_t allow_shared(const void *kernel, size_t bytes) {
  // A kernel may have 48 KB in all unless it asks; what it then may have is more than that.
  constexpr size_t kUnasked = 48 * 1024;
  const int wanted = static_cast<int>(bytes > kUnasked ? bytes : kUnasked + 16);
  cudaFuncAttributes now;
  const auto has = [&] {
    return now.sharedSizeBytes + bytes <= kUnasked || now.maxDynamicSharedSizeBytes >= wanted;
  };
  // The first look at a kernel loads it, which may wait for what the device does: for a message,
  // say, of another rank whose thread wants to launch a kernel. So nothing is locked yet.
  if (const cudaError_t error = cudaFuncGetAttributes(&now, kernel)) return error;
  if (has()) return cudaSuccess;
#if defined(NVTE_ASSUMED_ARCH)
  // A block of the assumed architecture may have less than here.
  if (now.sharedSizeBytes + bytes > most_shared(assumed_arch())) {
    return cudaErrorInvalidConfiguration;
  }
#endif
  // Nobody lowers what another thread has raised.
  static std::mutex one_by_one;
  const std::lock_guard<std::mutex> lock(one_by_one);
  if (const cudaError_t error = cudaFuncGetAttributes(&now, kernel)) return error;
  if (has()) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, wanted);
}

cudaError_t current_device(Device *device) {
  int ordinal;
  if (const cudaError_t error = current_ordinal(&ordinal)) return error;
  if (const cudaError_t error = have_context(ordinal)) return error;
  int packed = g_devices[ordinal].load(std::memory_order_relaxed);
  if (packed == 0) {
    int sms, major, minor;
    if (const cudaError_t error =
            cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, ordinal)) {
      return error;
    }
    if (const cudaError_t error =
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal)) {
      return error;
    }
    if (const cudaError_t error =
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal)) {
      return error;
    }
#if defined(NVTE_ASSUMED_ARCH)
    major = assumed_arch() / 10;
    minor = assumed_arch() % 10;
#endif
    packed = sms * 1000 + major * 10 + minor;
    g_devices[ordinal].store(packed, std::memory_order_relaxed);
  }
  *device = {packed / 1000, packed % 1000};
  return cudaSuccess;
}

}  // namespace nvte

namespace nvte {

const char *lacking_architecture() {
  constexpr int kBuilt[] = {__CUDA_ARCH_LIST__};  // 900 for sm_90.
  thread_local char text[512];
  const int size = static_cast<int>(sizeof(text));
  int end = std::snprintf(text, sizeof(text), "this build has kernels for");
  for (const int arch : kBuilt) {
    end += std::snprintf(text + end, static_cast<size_t>(size - end), "%s sm_%d",
                         arch == kBuilt[0] ? "" : ",", arch / 10);
    if (end > size / 2) break;
  }
  int ordinal;
  cudaDeviceProp device;
  if (cudaGetDevice(&ordinal) != cudaSuccess ||
      cudaGetDeviceProperties(&device, ordinal) != cudaSuccess) {
    (void)cudaGetLastError();
    std::snprintf(text + end, static_cast<size_t>(size - end), ", none of which this device runs");
    return text;
  }
  // Kernels for these architectures use instructions that only they have, which the suffix says.
  const int arch = device.major * 10 + device.minor;
  const char *const suffix = arch == 90 || arch == 100 || arch == 120 ? "a" : "";
  std::snprintf(text + end, static_cast<size_t>(size - end),
                "; the device %.200s is sm_%d: build with NVTE_CUDA_ARCHS=%d%s", device.name, arch,
                arch, suffix);
  return text;
}

}  // namespace nvte

// OK with the number of usable devices, or unimplemented with the reason why there is none.
extern "C" NVTEXOutcome nvte_cuda_probe(int *device_count) noexcept {
  *device_count = 0;
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    (void)cudaGetLastError();
    return nvte::unimplemented("no CUDA driver");
  }
  const cudaError_t error = cudaGetDeviceCount(device_count);
  if (error == cudaSuccess && *device_count > 0) return nvte::ok();
  (void)cudaGetLastError();
  *device_count = 0;
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return nvte::unimplemented("no CUDA device");
  }
  return nvte::unimplemented(cudaGetErrorString(error));
}

extern "C" NVTEXOutcome nvte_cuda_current_device(int *device) noexcept {
  return nvte::outcome(cudaGetDevice(device));
}

extern "C" NVTEXOutcome nvte_cuda_device_arch(int *arch) noexcept {
  nvte::Device device;
  if (const cudaError_t error = nvte::current_device(&device)) return nvte::outcome(error);
  *arch = device.arch;
  return nvte::ok();
}

extern "C" NVTEXOutcome nvte_cuda_device_properties(NVTEXDeviceProperties *properties) noexcept {
  nvte::Device device;
  if (const cudaError_t error = nvte::current_device(&device)) return nvte::outcome(error);
  properties->multiprocessors = device.sm_count;
  // The workspace is what cuBLASLt asks for on Hopper.
  properties->product_workspace = size_t{32} << 20;
  return nvte::outcome(cudaGetDevice(&properties->device));
}

extern "C" NVTEXOutcome nvte_cuda_device_malloc(void **ptr, size_t bytes) noexcept {
  // Contexts may need more memory for a call while its stream is being captured.
  nvte::RelaxedCapture relaxed;
  return nvte::outcome(cudaMalloc(ptr, bytes));
}

extern "C" NVTEXOutcome nvte_cuda_device_free(void *ptr) noexcept {
  return nvte::outcome(cudaFree(ptr));
}

extern "C" NVTEXOutcome nvte_cuda_device_memcpy(void *dst, const void *src, size_t bytes,
                                                NVTEXCopyKind kind, cudaStream_t stream) noexcept {
  const cudaMemcpyKind direction = kind == NVTEX_COPY_TO_DEVICE ? cudaMemcpyHostToDevice
                                   : kind == NVTEX_COPY_TO_HOST ? cudaMemcpyDeviceToHost
                                                                : cudaMemcpyDeviceToDevice;
  if (kind != NVTEX_COPY_ON_DEVICE) {
    const void *host = kind == NVTEX_COPY_TO_HOST ? dst : src;
    if (const cudaError_t error = nvte::wait_before_copy(host, bytes, kind, stream)) {
      return nvte::outcome(error);
    }
  }
  return nvte::outcome(cudaMemcpyAsync(dst, src, bytes, direction, stream));
}

extern "C" NVTEXOutcome nvte_cuda_read_back(void *dst, const void *src, size_t bytes, bool *copied,
                                            cudaStream_t stream) noexcept {
  *copied = false;
  cudaStreamCaptureStatus capture;
  if (const cudaError_t error = cudaStreamIsCapturing(stream, &capture)) {
    return nvte::outcome(error);
  }
  if (capture != cudaStreamCaptureStatusNone) return nvte::ok();
  // Another stream of the process may be being captured meanwhile.
  nvte::RelaxedCapture relaxed;
  if (const cudaError_t error = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream)) {
    return nvte::outcome(error);
  }
  if (const cudaError_t error = cudaStreamSynchronize(stream)) return nvte::outcome(error);
  *copied = true;
  return nvte::ok();
}

extern "C" NVTEXOutcome nvte_cuda_stream_create(cudaStream_t *stream) noexcept {
  return nvte::outcome(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
}

extern "C" NVTEXOutcome nvte_cuda_stream_destroy(cudaStream_t stream) noexcept {
  return nvte::outcome(cudaStreamDestroy(stream));
}

extern "C" NVTEXOutcome nvte_cuda_stream_synchronize(cudaStream_t stream) noexcept {
  if (const cudaError_t error = cudaStreamSynchronize(stream)) return nvte::outcome(error);
  return nvte::take_overdue();
}

extern "C" NVTEXOutcome nvte_cuda_stream_is_capturing(cudaStream_t stream,
                                                      bool *capturing) noexcept {
  cudaStreamCaptureStatus status;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  // The default stream cannot be asked while another one is being captured.
  if (error == cudaErrorStreamCaptureImplicit) {
    (void)cudaGetLastError();
    *capturing = true;
    return nvte::ok();
  }
  if (error == cudaSuccess) *capturing = status != cudaStreamCaptureStatusNone;
  return nvte::outcome(error);
}

extern "C" NVTEXOutcome nvte_cuda_compute_stream(int index, cudaStream_t *stream) noexcept {
  return nvte::pooled(&nvte::Pool::streams, index, stream, nvte::create_stream);
}

extern "C" NVTEXOutcome nvte_cuda_compute_event(int index, cudaEvent_t *event) noexcept {
  return nvte::pooled(&nvte::Pool::events, index, event, [](cudaEvent_t *created) {
    return cudaEventCreateWithFlags(created, cudaEventDisableTiming);
  });
}

extern "C" NVTEXOutcome nvte_cuda_fork(cudaStream_t stream, int count,
                                       cudaStream_t *branches) noexcept {
  return nvte::with_branches(
      count, [&](nvte::Branches &own) { return own.fork(stream, count, branches); });
}

extern "C" NVTEXOutcome nvte_cuda_join(cudaStream_t stream, int count) noexcept {
  return nvte::with_branches(count, [&](nvte::Branches &own) { return own.join(stream, count); });
}

extern "C" NVTEXOutcome nvte_cuda_counters(const NVTEXCountersArgs *args,
                                           cudaStream_t stream) noexcept {
  int *overdue = nullptr;
  if (args->wait) {
    const NVTEXOutcome before = nvte::take_overdue();
    if (before.status != NVTEX_BACKEND_OK) return before;
    if (const cudaError_t error = nvte::overdue_flag(&overdue)) return nvte::outcome(error);
  }
  return nvte::launch(nvte::counters_kernel, dim3(1), nvte::kCounterThreads, stream, *args,
                      overdue);
}
