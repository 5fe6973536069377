// The kernel of the forward of attention for compute capability 9.0, and what its launcher has to
// know of an instance. Each other source of this folder makes some instances of the table in
// tuning.cuh.
#pragma once

#include "common/launch.cuh"
#include "consumer.cuh"
#include "instance.cuh"
#include "producer.cuh"
#include "turned_consumer.cuh"

namespace nvte {
namespace sm90_forward {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_forward_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  if constexpr (C::kKeepsAddress) shared = keep_shared_address(shared);
  auto &control = *reinterpret_cast<Control<C> *>(shared + C::kAtControl);
  if (threadIdx.x == 0) {
    // Each warp of the consumers releases what all of them read, each thread the queries, which its
    // description of the tile comes with; three warps transpose values.
    constexpr unsigned kWarps = 4 * C::kConsumers;
    control.q.init(1, 128);
    control.k.init(1, kWarps);
    control.v.init(1, C::kTransposes ? 3 : kWarps);
    control.transposed.init(3, kWarps);
    control.bias.init(1, kWarps);
    for (uint64_t &barrier : control.turning) mbarrier_init(&barrier, 1);
    for (int i = 0; i < C::kStages; ++i) control.is_end[i] = false;
    fence_mbarrier_init();
  }
  // Head dims may leave whole panels empty, which no copy writes. Products read those of queries
  // and keys, and the largest magnitude of an FP8 output is also that of columns that are not
  // stored.
  const auto clear = [&](unsigned char *tile, int begin, int end, int panel_bytes) {
    const int first = begin * panel_bytes + static_cast<int>(threadIdx.x) * 16;
    for (int i = first; i < end * panel_bytes; i += C::kThreads * 16) {
      *reinterpret_cast<uint4 *>(tile + i) = make_uint4(0, 0, 0, 0);
    }
  };
  if (C::kPanelsQK > 1 && p.panels_qk < C::kPanelsQK) {
    for (int i = 0; i < C::kQueries; ++i) {
      clear(shared + i * C::kQueryBytes, p.panels_qk, C::kPanelsQK, 64 * 128);
    }
    for (int i = 0; i < C::kStages; ++i) {
      clear(shared + C::kAtKeys + i * C::kKeyBytes, p.panels_qk, C::kPanelsQK, C::kKeyPanel);
    }
    fence_proxy_async();
  }
  if (C::kFp8 && C::kPanelsV > 1 && p.panels_v < C::kPanelsV) {
    for (int i = 0; i < C::kStages; ++i) {
      clear(shared + C::kAtValues + i * C::kValueBytes, p.panels_v, C::kPanelsV, C::kKeyPanel);
    }
  }
  __syncthreads();
  griddepcontrol_wait();
  if (threadIdx.x < 128) {
    setmaxnreg_dec<C::kProducerRegisters>();
    if (C::kPages || threadIdx.x == 0) {
      produce_tiles<C>(p, shared, control);
    } else if (C::kTransposes && threadIdx.x >= 32) {
      transpose_values<C>(shared, control);
    } else if (C::kTurned && threadIdx.x >= 32 && threadIdx.x < 32 * (1 + C::kTurners)) {
      turn_values<C>(p, shared, control);
    }
  } else {
    setmaxnreg_inc<C::kConsumerRegisters>();
    // The shuffle tells the compiler that all lanes of a warp have the same number.
    const int w = static_cast<int>(__shfl_sync(0xffffffff, threadIdx.x / 128, 0)) - 1;
    if constexpr (C::kTurned) {
      consume_turned_tiles<C>(p, shared, control, w);
    } else {
      consume_tiles<C>(p, shared, control, w);
    }
  }
#endif
}

template <class T, Extra kExtra, int kDimQK, int kDimV>
Instance instance() {
  using C = Config<T, kExtra, kDimQK, kDimV>;
  return {attention_forward_kernel<C>, C::kThreads, kSharedBytes<C>};
}

}  // namespace sm90_forward
}  // namespace nvte
