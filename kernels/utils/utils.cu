// Host bytes to the device inside kernel parameters, which the launch snapshots.

#include <cstring>

#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "nvte/backend/utils.h"

namespace nvte {
namespace {

constexpr int kCopyThreads = 256;

template <int kBytes>
struct Payload {
  uint32_t words[kBytes / 4];
};

// Word stores: the device pointer is aligned to 4 bytes, and chunks are whole words but the last.
template <int kBytes>
__global__ void __launch_bounds__(kCopyThreads)
    host_copy_kernel(void *device, unsigned bytes,
                     const __grid_constant__ Payload<kBytes> payload) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned i = blockIdx.x * kCopyThreads + threadIdx.x;
  if (i < bytes / 4) {
    static_cast<uint32_t *>(device)[i] = payload.words[i];
  } else if (i == bytes / 4) {
    const uint32_t word = bytes % 4 != 0 ? payload.words[i] : 0;
    for (unsigned b = 0; b < bytes % 4; ++b) {
      static_cast<uint8_t *>(device)[i * 4 + b] = static_cast<uint8_t>(word >> (8 * b));
    }
  }
}

template <int kBytes>
NVTEXOutcome host_copy(const char *host, char *device, size_t bytes, cudaStream_t stream) {
  Payload<kBytes> payload;
  memcpy(payload.words, host, bytes);
  memset(reinterpret_cast<char *>(payload.words) + bytes, 0, kBytes - bytes);
  const unsigned blocks = static_cast<unsigned>(ceil_div(bytes / 4 + 1, kCopyThreads));
  return launch(host_copy_kernel<kBytes>, dim3(blocks), kCopyThreads, stream,
                static_cast<void *>(device), static_cast<unsigned>(bytes), payload);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_host_copy(const NVTEXHostCopyArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  // Kernel parameters hold 4 KB at the usual launch cost, 32 KB at a higher one.
  constexpr size_t kFew = 3840, kMany = 32000;
  const char *host = static_cast<const char *>(args->host);
  char *device = static_cast<char *>(args->device);
  for (size_t done = 0; done < args->bytes;) {
    const size_t left = args->bytes - done;
    const size_t bytes = left < kMany ? left : kMany;
    const NVTEXOutcome launched = bytes <= kFew
                                      ? host_copy<kFew>(host + done, device + done, bytes, stream)
                                      : host_copy<kMany>(host + done, device + done, bytes, stream);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    done += bytes;
  }
  return ok();
}
