// Small device utilities of transformer_engine.h: fill bytes, prefix sums of splits.

#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "common/vec.cuh"
#include "nvte/backend/transformer_engine.h"

namespace nvte {
namespace {

constexpr size_t kMemsetBytes = 4096;
constexpr int kMemsetThreads = kMemsetBytes / 16;

__global__ void __launch_bounds__(kMemsetThreads)
    memset_kernel(uint8_t *ptr, unsigned vectors, unsigned bytes, uint32_t word) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (threadIdx.x < vectors) {
    reinterpret_cast<uint4 *>(ptr)[threadIdx.x] = make_uint4(word, word, word, word);
  }
  for (unsigned i = vectors * 16 + threadIdx.x; i < bytes; i += kMemsetThreads) {
    ptr[i] = static_cast<uint8_t>(word);
  }
}

constexpr int kScanThreads = 1024;
constexpr int kScanOutputs = 128;

struct ScanArgs {
  const void *first;
  const void *last;
  size_t length;
  bool first_is_64;
  bool last_is_64;
  int num_outputs;
  NVTEXOffsetsOutput outputs[kScanOutputs];
};

__device__ __forceinline__ uint64_t integer(const void *p, bool is_64, size_t i) {
  return is_64 ? static_cast<const uint64_t *>(p)[i]
               : static_cast<uint64_t>(int64_t{static_cast<const int32_t *>(p)[i]});
}

__device__ __forceinline__ void put_integer(const NVTEXOffsetsOutput &out, size_t i,
                                            uint64_t value) {
  if (out.dtype == kNVTEInt64) {
    static_cast<uint64_t *>(out.ptr)[i] = value;
  } else {
    static_cast<uint32_t *>(out.ptr)[i] = static_cast<uint32_t>(value);
  }
}

__device__ __forceinline__ uint64_t warp_scan(uint64_t value, int lane) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t below = __shfl_up_sync(0xffffffffu, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

// Sums are unsigned, because they may wrap.
__global__ void __launch_bounds__(kScanThreads) offsets_kernel(const __grid_constant__ ScanArgs a) {
  // Two sets: the warps of a chunk write one while slower warps still read the other.
  __shared__ uint64_t sums[2][kScanThreads / 32];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int k = threadIdx.x; k < a.num_outputs; k += kScanThreads) {
    if (a.outputs[k].leading_zero) put_integer(a.outputs[k], 0, 0);
  }
  uint64_t carry = 0;
  int set = 0;
  for (size_t base = 0; base < a.length; base += kScanThreads, set ^= 1) {
    const size_t i = base + threadIdx.x;
    uint64_t value = 0;
    if (i < a.length) {
      value = integer(a.first, a.first_is_64, i);
      if (a.last != nullptr) value *= integer(a.last, a.last_is_64, i);
    }
    value = warp_scan(value, lane);
    if (lane == 31) sums[set][warp] = value;
    __syncthreads();
    // Every warp scans the sums by itself, which saves a barrier.
    const uint64_t totals = warp_scan(sums[set][lane], lane);
    const uint64_t before = __shfl_sync(0xffffffffu, totals, (warp + 31) % 32);
    value += carry + (warp == 0 ? 0 : before);
    carry += __shfl_sync(0xffffffffu, totals, 31);
    if (i < a.length) {
      for (int k = 0; k < a.num_outputs; ++k) {
        const NVTEXOffsetsOutput &out = a.outputs[k];
        put_integer(out, i + out.leading_zero, static_cast<uint64_t>(out.stride) * value);
      }
    }
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_memset(const NVTEXMemsetArgs *args,
                                         cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->bytes > kMemsetBytes) {
    return outcome(cudaMemsetAsync(args->ptr, args->value, args->bytes, stream));
  }
  const unsigned bytes = static_cast<unsigned>(args->bytes);
  const unsigned vectors = aligned(args->ptr, 16) ? bytes / 16 : 0;
  return launch(memset_kernel, dim3(1), kMemsetThreads, stream, static_cast<uint8_t *>(args->ptr),
                vectors, bytes, args->value * 0x01010101u);
}

extern "C" NVTEXOutcome nvte_cuda_offsets(const NVTEXOffsetsArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  ScanArgs scan = {};
  scan.first = args->first;
  scan.last = args->last;
  scan.length = args->length;
  scan.first_is_64 = args->first_dtype == kNVTEInt64;
  scan.last_is_64 = args->last_dtype == kNVTEInt64;
  for (size_t done = 0; done < args->num_outputs; done += scan.num_outputs) {
    const size_t left = args->num_outputs - done;
    scan.num_outputs = static_cast<int>(left < kScanOutputs ? left : kScanOutputs);
    for (int k = 0; k < scan.num_outputs; ++k) scan.outputs[k] = args->outputs[done + k];
    const NVTEXOutcome launched = launch(offsets_kernel, dim3(1), kScanThreads, stream, scan);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
  }
  return ok();
}
