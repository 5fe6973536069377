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

inline NVTEXOutcome outcome(cudaError_t error) {
  if (error == cudaSuccess) return ok();
  (void)cudaGetLastError();  // Reported here; the caller's own checks must not find it again.
  return {NVTEX_BACKEND_DEVICE_ERROR, cudaGetErrorString(error)};
}

struct Device {
  int sm_count;
  int arch;  // 10 * major + minor
};

// Of the current device; asks the driver once per device.
cudaError_t current_device(Device *device);

// `overlap`: the kernel waits for the stream by itself, in wait_for_stream().
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

// With dynamic shared memory.
template <class Args>
NVTEXOutcome launch_shared(void (*kernel)(Args), dim3 grid, unsigned threads, size_t shared,
                           cudaStream_t stream, const Args &args) {
  const auto most = cudaFuncAttributeMaxDynamicSharedMemorySize;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, most, static_cast<int>(shared))) {
    return outcome(error);
  }
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
