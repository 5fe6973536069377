// The state of a random generator, from values of the host or of the device.

#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "nvte/backend/fused_attn.h"

namespace nvte {
namespace {

__global__ void seed_kernel(const __grid_constant__ NVTEXSeedArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const auto sum = [](const int64_t *at, int64_t value) {
    const uint64_t base = at != nullptr ? static_cast<uint64_t>(*at) : 0;
    return static_cast<int64_t>(base + static_cast<uint64_t>(value));
  };
  a.state[0] = sum(a.seed_at, a.seed);
  a.state[1] = sum(a.offset_at, a.offset);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_seed(const NVTEXSeedArgs *args, cudaStream_t stream) noexcept {
  return nvte::launch(nvte::seed_kernel, dim3(1), 1, stream, *args);
}
