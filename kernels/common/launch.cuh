// Kernel launches and the answers of launchers.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "nvte/backend/outcome.h"

// 1: every kernel may be scheduled while its predecessor in the stream drains (compute capability
// 9.0 and later); 0: only where a launcher asks for it.
#ifndef NVTE_OVERLAP
#define NVTE_OVERLAP 1
#endif

namespace nvte {

inline NVTEXOutcome ok() { return {NVTEX_BACKEND_OK, nullptr}; }

inline NVTEXOutcome unimplemented(const char *reason) {
  return {NVTEX_BACKEND_UNIMPLEMENTED, reason};
}

// Says which architectures this build has kernels for, which one the current device has, and how to
// build for it. Valid until the thread asks again.
const char *lacking_architecture();

inline NVTEXOutcome outcome(cudaError_t error) {
  if (error == cudaSuccess) return ok();
  (void)cudaGetLastError();  // Reported here; the caller's own checks must not find it again.
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    return {NVTEX_BACKEND_DEVICE_ERROR, lacking_architecture()};
  }
  return {NVTEX_BACKEND_DEVICE_ERROR, cudaGetErrorString(error)};
}

struct Device {
  int sm_count;
  int arch;  // 10 * major + minor
};

// Gives the properties of the current device; asks the driver once per device.
cudaError_t current_device(Device *device);

// `overlap`: the kernel waits for the stream by itself, in griddepcontrol_wait().
template <class... Params, class... Args>
NVTEXOutcome launch_grid(bool overlap, void (*kernel)(Params...), dim3 grid, unsigned threads,
                         cudaStream_t stream, Args &&...args) {
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.stream = stream;
  if (overlap) {
    Device device;
    if (const cudaError_t error = current_device(&device)) return outcome(error);
    if (device.arch >= 90) {
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      config.attrs = &attribute;
      config.numAttrs = 1;
    }
  }
  return outcome(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...));
}

template <class... Params, class... Args>
NVTEXOutcome launch(void (*kernel)(Params...), dim3 grid, unsigned threads, cudaStream_t stream,
                    Args &&...args) {
  return launch_grid(NVTE_OVERLAP, kernel, grid, threads, stream, std::forward<Args>(args)...);
}

// Bytes of dynamic shared memory that the blocks of a multiprocessor can share, beside a few KB of
// their own.
inline size_t shared_room(const Device &device) {
  switch (device.arch) {
    case 90:
    case 100:
      return 220 * 1024;
    case 80:
      return 156 * 1024;
    default:
      return 94 * 1024;
  }
}

// Lets a kernel have so much dynamic shared memory. What it may have never shrinks: another thread
// may be about to launch it with more. Not inline: the headers that it needs take half a second of
// each source's time to compile.
cudaError_t allow_shared(const void *kernel, size_t bytes);

template <class... Params>
cudaError_t allow_shared(void (*kernel)(Params...), size_t bytes) {
  return allow_shared(reinterpret_cast<const void *>(kernel), bytes);
}

// Launches a kernel with dynamic shared memory.
template <class Args>
NVTEXOutcome launch_shared(void (*kernel)(Args), dim3 grid, unsigned threads, size_t shared,
                           cudaStream_t stream, const Args &args) {
  if (const cudaError_t error = allow_shared(kernel, shared)) return outcome(error);
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = NVTE_OVERLAP && device.arch >= 90 ? 1 : 0;
  return outcome(cudaLaunchKernelEx(&config, kernel, args));
}

inline size_t ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }

constexpr size_t kMaxBlocks = 0x7fffffff;

}  // namespace nvte
