// Copies of many tensors with zeros after them. A block takes a piece of one tensor; which one it
// finds in the list of first pieces, which comes with the launch.

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvte/backend/padding.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;
constexpr size_t kPiece = size_t{kThreads} * kUnroll * 16;
constexpr int kMostTensors = 96;  // Tensors of a launch, whose parameters stay below 4 KB.

struct Batch {
  NVTEXPaddedTensor tensors[kMostTensors];
  unsigned first[kMostTensors + 1];  // The first piece of each tensor.
  int count;
};

// In vectors of `kBytes`, which the addresses are aligned to; vectors in which the copy or the
// whole ends go byte by byte.
template <int kBytes, class B>
__device__ __forceinline__ void copy_piece(const NVTEXPaddedTensor &t, size_t begin) {
  constexpr int N = kBytes / sizeof(B);
  const size_t all = t.copied + t.zeroed, end = min(begin + kPiece, all);
#pragma unroll 1
  for (size_t i = begin + threadIdx.x * kBytes; i < end; i += size_t{kThreads} * kBytes * kUnroll) {
    Vec<Raw<B>, N> part[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const size_t at = i + size_t{kThreads} * kBytes * u;
      part[u] = load<Raw<B>, N>(t.input, at / sizeof(B), at + kBytes <= t.copied);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const size_t at = i + size_t{kThreads} * kBytes * u;
      const bool whole = at + kBytes <= t.copied || at >= t.copied;
      if (whole && at + kBytes <= end) store(t.output, at / sizeof(B), part[u]);
    }
  }
  for (const size_t edge : {t.copied, all}) {
    const size_t at = edge / kBytes * kBytes + threadIdx.x;
    if (edge % kBytes == 0 || threadIdx.x >= kBytes || at < begin || at >= end) continue;
    *element<uint8_t>(t.output, at) = at < t.copied ? *element<uint8_t>(t.input, at) : 0;
  }
}

__global__ void __launch_bounds__(kThreads) padding_kernel(const __grid_constant__ Batch batch) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  int low = 0, high = batch.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (batch.first[middle] <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const NVTEXPaddedTensor t = batch.tensors[low];
  const size_t begin = size_t{blockIdx.x - batch.first[low]} * kPiece;
  const size_t addresses = reinterpret_cast<size_t>(t.input) | reinterpret_cast<size_t>(t.output);
  if (addresses % 16 == 0) {
    copy_piece<16, uint32_t>(t, begin);
  } else if (addresses % 4 == 0) {
    copy_piece<4, uint32_t>(t, begin);
  } else {
    copy_piece<1, uint8_t>(t, begin);
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_padding(const NVTEXPaddingArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  constexpr size_t kMostPieces = kMaxBlocks / 2;
  for (size_t i = 0; i < args->num_tensors;) {
    Batch batch = {};
    size_t pieces = 0;
    while (i < args->num_tensors && batch.count < kMostTensors) {
      const NVTEXPaddedTensor &t = args->tensors[i];
      const size_t more = ceil_div(t.copied + t.zeroed, kPiece);
      if (more > kMostPieces) return unimplemented("padding: a tensor of more than 2^44 bytes");
      if (pieces + more > kMostPieces) break;
      batch.first[batch.count] = static_cast<unsigned>(pieces);
      batch.tensors[batch.count++] = t;
      pieces += more;
      ++i;
    }
    batch.first[batch.count] = static_cast<unsigned>(pieces);
    const NVTEXOutcome launched =
        launch(padding_kernel, dim3(static_cast<unsigned>(pieces)), kThreads, stream, batch);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
  }
  return ok();
}
