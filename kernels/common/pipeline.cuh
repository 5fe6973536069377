// A ring of buffers in shared memory that producers fill and consumers read (compute capability 9.0
// and later): the mechanism by which copies run ahead of the products that need them.
//
// A producer acquires a buffer, fills it and commits it, by its own stores or by bulk copies whose
// bytes it announces. A consumer waits for the buffer, reads it and releases it. Each of them walks
// the ring with a PipelineState of its own.
#pragma once

#include "tma.cuh"

namespace nvte {

// The buffer that a producer or consumer comes to next. `phase` is the parity of the number of
// times that it has been round the ring.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// The barriers of a ring, in shared memory. fence_mbarrier_init() and __syncthreads() come between
// init() and their first use.
template <int kStages>
struct Pipeline {
  using State = PipelineState<kStages>;

  uint64_t full[kStages], empty[kStages];

  // How many arrivals commit a buffer, and how many release it.
  __device__ __forceinline__ void init(unsigned producers, unsigned consumers) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full[i], producers);
      mbarrier_init(&empty[i], consumers);
    }
  }

  // Waits until the buffer's consumers have released it. A fresh ring's buffers are free.
  __device__ __forceinline__ void producer_acquire(const State &at) {
    mbarrier_wait(&empty[at.stage], at.phase ^ 1);
  }
  __device__ __forceinline__ void producer_commit(const State &at) {
    mbarrier_arrive(&full[at.stage]);
  }
  // Commits what `bytes` of bulk copies to barrier(at) will bring.
  __device__ __forceinline__ void producer_expect(const State &at, uint32_t bytes) {
    mbarrier_arrive_expect_tx(&full[at.stage], bytes);
  }
  // The barrier on which bulk copies to the buffer complete.
  __device__ __forceinline__ uint64_t *barrier(const State &at) { return &full[at.stage]; }

  __device__ __forceinline__ void consumer_wait(const State &at) {
    mbarrier_wait(&full[at.stage], at.phase);
  }
  __device__ __forceinline__ void consumer_release(const State &at) {
    mbarrier_arrive(&empty[at.stage]);
  }
};

}  // namespace nvte
