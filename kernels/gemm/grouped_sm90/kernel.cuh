// The kernel of grouped products and its launch. Blocks stay on their multiprocessors; each has a
// producer and two consumers.
#pragma once

#include "consumer.cuh"
#include "producer.cuh"

namespace nvte {
namespace sm90_grouped {

template <class C>
__global__ void NVTE_PAIRS __launch_bounds__(C::kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *const shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto &control = *reinterpret_cast<Control<C> *>(shared + C::kAtControl);
  if (threadIdx.x == 0) {
    control.stages.init(C::kCommits, C::kReleases);
    control.tiles.init(1, 8);
    control.pairs.init(1, 2);
    fence_mbarrier_init();
  }
  cluster_sync();
  griddepcontrol_wait();
  if (threadIdx.x < C::kProducerThreads) {
    setmaxnreg_dec<C::kProducerRegs>();
    produce_tiles<C>(p, shared, control, cluster_ctarank());
  } else {
    setmaxnreg_inc<C::kConsumerRegs>();
    // The shuffle tells the compiler that all lanes of a warp have the same number.
    const int w =
        static_cast<int>(__shfl_sync(0xffffffff, (threadIdx.x - C::kProducerThreads) / 128, 0));
    consume_tiles<C>(p, shared, control, w);
  }
#endif
}

template <class In, Kind kKind, bool kMnRows, bool kMnCols>
NVTEXOutcome run(const Params &p, unsigned clusters, cudaStream_t stream) {
  using C = Config<In, kKind, kMnRows, kMnCols>;
  static_assert(kSharedBytes<C> <= most_shared(90), "shared memory of a block");
  return launch_shared(grouped_gemm_kernel<C>, dim3(2 * clusters), C::kThreads, kSharedBytes<C>,
                       stream, p);
}

}  // namespace sm90_grouped
}  // namespace nvte
