// What kernels need that store in the memory of other devices: each device has memory that the
// others write to, and counters by which their kernels wait for each other.
//
// A call has a number, by which all of its counters are known; it begins to write when all devices
// have finished the call before.
#pragma once

#include "common/vec.cuh"

// The same structs are in src/parallel/peer_rows.rs.
struct PeerCall {
  enum { kMostRanks = 16 };

  // Of all ranks: counters of finished calls, then those of slots, then data.
  char *places[kMostRanks];
  size_t rank;
  size_t ranks;
  // Memory of the host: not 0 when nobody is to wait any more.
  const int *stop;
};

// Bytes of a token that travel, and where they are in the data of a rank.
struct PeerPart {
  const void *input;
  void *output;
  size_t width;
  size_t offset;
};

namespace nvte {

__device__ __forceinline__ uint64_t load_acquire(const uint64_t *counter) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ uint64_t load_relaxed(const uint64_t *counter) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(counter) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(uint64_t *counter, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(counter), "l"(value) : "memory");
}

// Waits for another device until the counter is `least` or more, which it returns, or until
// somebody stops all waits. Looks that have no order with other accesses leave the first cache of
// the multiprocessor alone.
//
// `stop` is a word of the host. Where many warps wait, `stopped` is one of this device that tells
// them what one of them has read there: a thousand warps that read memory of the host make a call
// of 1 ms last 50 to 130 ms.
__device__ __forceinline__ uint64_t wait_for(const uint64_t *counter, uint64_t least,
                                             const int *stop, int *stopped = nullptr) {
  constexpr unsigned kLooks = 256, kHostLooks = 1 << 17, kLongest = 512;
  unsigned pause = 16;
  for (unsigned i = 1; load_relaxed(counter) < least; ++i) {
    if (i % kLooks == 0) {
      const bool asks_host = stopped == nullptr || i % kHostLooks == 0;
      const bool stops = *static_cast<const volatile int *>(asks_host ? stop : stopped) != 0;
      if (stops && asks_host && stopped != nullptr) *static_cast<volatile int *>(stopped) = 1;
      if (stops) break;
    }
    __nanosleep(pause);
    // Many looks slow down the stores of others.
    if (pause < kLongest) pause *= 2;
  }
  return load_acquire(counter);
}

constexpr unsigned kPeerThreads = 512;

// Counters have lines of the cache of their own: one of each rank that says which call it has
// finished, the number of the last call, how many blocks have finished it, and whether to stop.
constexpr size_t kPeerLine = 128;
constexpr size_t kPeerNumber = PeerCall::kMostRanks * kPeerLine;
constexpr size_t kPeerBlocks = kPeerNumber + kPeerLine;
constexpr size_t kPeerStopped = kPeerBlocks + kPeerLine;
constexpr size_t kPeerSlots = 64 << 10;
constexpr size_t kPeerData = 4 << 20;

__device__ __forceinline__ uint64_t *counter(char *place, size_t at) {
  return reinterpret_cast<uint64_t *>(place + at);
}

// The counter of a piece of a slot.
__device__ __forceinline__ uint64_t *arrived(char *place, size_t piece) {
  return counter(place, kPeerSlots) + piece;
}

// Counters say also whether a piece has rows.
__device__ __forceinline__ uint64_t without_rows(uint64_t number) { return 2 * number; }
__device__ __forceinline__ uint64_t with_rows(uint64_t number) { return 2 * number + 1; }

// Waits for what other devices write to the own memory.
__device__ __forceinline__ uint64_t wait_in(const PeerCall &a, const uint64_t *counter,
                                            uint64_t least) {
  auto *stopped = reinterpret_cast<int *>(a.places[a.rank] + kPeerStopped);
  return wait_for(counter, least, a.stop, stopped);
}

// The number of this call; other devices have finished the one before.
__device__ __forceinline__ uint64_t begin(const PeerCall &a) {
  griddepcontrol_wait();
  char *own = a.places[a.rank];
  const uint64_t number = *static_cast<volatile uint64_t *>(counter(own, kPeerNumber)) + 1;
  if (threadIdx.x < a.ranks && threadIdx.x != a.rank) {
    wait_in(a, counter(own, threadIdx.x * kPeerLine), number - 1);
  }
  __syncthreads();
  return number;
}

// Tells the other devices that this block has stored its share, and waits for those of all of their
// blocks: which elements a block has depends on the alignment of its device's memory.
__device__ __forceinline__ void meet(const PeerCall &a, uint64_t number) {
  const size_t blocks = gridDim.x, other = threadIdx.x / blocks;
  __syncthreads();
  if (threadIdx.x < a.ranks && threadIdx.x != a.rank) {
    uint64_t *counter = arrived(a.places[threadIdx.x], a.rank * blocks + blockIdx.x);
    store_release(counter, with_rows(number));
  }
  if (other < a.ranks && other != a.rank) {
    wait_in(a, arrived(a.places[a.rank], threadIdx.x), without_rows(number));
  }
  __syncthreads();
}

// The last block tells the other devices.
__device__ __forceinline__ void finish(const PeerCall &a, uint64_t number) {
  griddepcontrol_launch_dependents();
  __shared__ bool last;
  __syncthreads();
  char *own = a.places[a.rank];
  if (threadIdx.x == 0) {
    __threadfence();
    auto *blocks = reinterpret_cast<unsigned *>(own + kPeerBlocks);
    last = atomicAdd(blocks, 1) == gridDim.x - 1;
    if (last) {
      *blocks = 0;
      *counter(own, kPeerNumber) = number;
    }
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x < a.ranks && threadIdx.x != a.rank) {
    store_release(counter(a.places[threadIdx.x], a.rank * kPeerLine), number);
  }
}

// Whether the memory of a part of this device is of units of type V.
template <class V>
__host__ __device__ __forceinline__ bool has_units(const PeerPart &part) {
  const auto input = reinterpret_cast<uintptr_t>(part.input);
  const auto output = reinterpret_cast<uintptr_t>(part.output);
  return (input | output | part.width) % sizeof(V) == 0;
}

}  // namespace nvte
