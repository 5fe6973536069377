// Little data between GPUs of one host: a kernel stores them in the memory of the others, and takes
// what comes.

#include <cstring>

#include "common/capture.cuh"
#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvtex/peer.cuh"
#include "nvtex/reduce.cuh"

// The same structs are in src/parallel/peer_rows.rs.
// What all ranks have for each other: part r of `input` goes to part `rank` of the `output` of rank
// r.
struct PeerShare {
  PeerCall call;
  PeerPart parts[2];
  // All ranks get the same part.
  bool gather;
};

// Elements of all ranks, which become one in the order of the ranks.
struct PeerReduce {
  PeerCall call;
  const void *input;
  void *output;
  size_t count;
  NVTEDType dtype;
  bool max;
};

namespace nvte {
namespace {

// Most blocks, of which each thread waits for one of one rank.
constexpr size_t kMostBlocks = kPeerThreads / PeerCall::kMostRanks;

// The blocks for so many bytes, the same on all devices.
dim3 grid_of(size_t bytes) {
  const size_t blocks = ceil_div(bytes, kPeerThreads * sizeof(uint4));
  return dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
}

// Each block has a share of every part.
template <class V>
__global__ void __launch_bounds__(kPeerThreads) share_kernel(const __grid_constant__ PeerShare a) {
  const uint64_t number = begin(a.call);
  const size_t rank = a.call.rank, ranks = a.call.ranks;
  const size_t step = size_t{gridDim.x} * kPeerThreads,
               first = size_t{blockIdx.x} * kPeerThreads + threadIdx.x;
  const auto parts = [&](size_t other, auto copy) {
#pragma unroll
    for (const PeerPart &part : a.parts) {
      const size_t units = part.width / sizeof(V);
      const V *from = static_cast<const V *>(part.input) + (a.gather ? 0 : other * units);
      V *to = static_cast<V *>(part.output) + other * units;
      char *own = a.call.places[rank] + kPeerData + part.offset + other * part.width;
      char *there = a.call.places[other] + kPeerData + part.offset + rank * part.width;
      for (size_t i = first; i < units; i += step) {
        copy(from + i, to + i, reinterpret_cast<V *>(own) + i, reinterpret_cast<V *>(there) + i);
      }
    }
  };
  for (size_t distance = 1; distance < ranks; ++distance) {
    parts((rank + distance) % ranks, [](const V *from, V *, V *, V *there) { *there = *from; });
  }
  parts(rank, [](const V *from, V *to, V *, V *) {
    if (from != to) *to = *from;
  });
  meet(a.call, number);
  for (size_t distance = 1; distance < ranks; ++distance) {
    parts((rank + distance) % ranks, [](const V *, V *to, V *own, V *) { *to = __ldcg(own); });
  }
  finish(a.call, number);
}

// Each block has a share of the elements, which lie in slots of the ranks.
template <class T, bool kMax>
__global__ void __launch_bounds__(kPeerThreads)
    reduce_kernel(const __grid_constant__ PeerReduce a) {
  constexpr int N = 16 / T::kBytes;
  const uint64_t number = begin(a.call);
  const size_t rank = a.call.rank, ranks = a.call.ranks, vectors = (a.count + N - 1) / N;
  const size_t step = size_t{gridDim.x} * kPeerThreads;
  const size_t begun = size_t{blockIdx.x} * kPeerThreads + threadIdx.x;
  const bool in = reinterpret_cast<uintptr_t>(a.input) % 16 == 0;
  const bool out = reinterpret_cast<uintptr_t>(a.output) % 16 == 0;
  const auto some = [&](size_t v) {
    return a.count - v * N < N ? static_cast<int>(a.count - v * N) : N;
  };
  const auto own = [&](size_t v) {
    return in && some(v) == N ? load<T, N>(a.input, v * N, true)
                              : load_some<T, N>(a.input, v * N, some(v));
  };
  const auto slot = [&](size_t place, size_t of) {
    return a.call.places[place] + kPeerData + of * vectors * 16;
  };
  for (size_t v = begun; v < vectors; v += step) {
    const Vec<T, N> x = own(v);
    for (size_t distance = 1; distance < ranks; ++distance) {
      store(slot((rank + distance) % ranks, rank), v * N, x);
    }
  }
  meet(a.call, number);
  for (size_t v = begun; v < vectors; v += step) {
    float sum[N];
    for (size_t r = 0; r < ranks; ++r) {
      float x[N];
      to_float(r == rank ? own(v) : load<T, N>(slot(rank, r), v * N, true), x);
      add_rank<kMax>(sum, x, r == 0);
    }
    const Vec<T, N> result = from_float<T, N>(sum);
    if (out && some(v) == N) {
      store(a.output, v * N, result);
    } else {
      store_some(a.output, v * N, some(v), result);
    }
  }
  finish(a.call, number);
}

}  // namespace
}  // namespace nvte

// Small parts of all ranks to all others.
extern "C" NVTEXOutcome nvte_cuda_peer_share(const PeerShare *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  const PeerPart &first = args->parts[0], &second = args->parts[1];
  const dim3 grid = grid_of(first.width + second.width);
  if (has_units<uint4>(first) && has_units<uint4>(second)) {
    return launch(share_kernel<uint4>, grid, kPeerThreads, stream, *args);
  }
  if (has_units<unsigned>(first) && has_units<unsigned>(second)) {
    return launch(share_kernel<unsigned>, grid, kPeerThreads, stream, *args);
  }
  return launch(share_kernel<unsigned char>, grid, kPeerThreads, stream, *args);
}

// Elements of all ranks, which become one.
extern "C" NVTEXOutcome nvte_cuda_peer_reduce(const PeerReduce *args,
                                              cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    const dim3 grid = grid_of(args->count * T::kBytes);
    const auto kernel = args->max ? reduce_kernel<T, true> : reduce_kernel<T, false>;
    return launch(kernel, grid, kPeerThreads, stream, *args);
  });
}

// Whether all other ranks have finished the calls that this one has.
extern "C" NVTEXOutcome nvte_cuda_peer_rows_settled(const void *memory, size_t rank, size_t ranks,
                                                    bool *settled) noexcept {
  using namespace nvte;
  RelaxedCapture relaxed;
  char counters[kPeerBlocks];
  const cudaMemcpyKind kind = cudaMemcpyDeviceToHost;
  if (const cudaError_t error = cudaMemcpy(counters, memory, sizeof(counters), kind)) {
    return outcome(error);
  }
  *settled = true;
  for (size_t other = 0; other < ranks; ++other) {
    const bool same =
        std::memcmp(counters + other * kPeerLine, counters + kPeerNumber, sizeof(uint64_t)) == 0;
    *settled = *settled && (other == rank || same);
  }
  return ok();
}
