// The greatest elements of rows. Both forms find the key of the last that is chosen digit by digit,
// from histograms of the keys that share the digits above.
//
// Rows of at most 65536 elements, from compute capability 9.0 on: a cluster of blocks reads a row
// once and keeps its keys in registers. Its blocks read the histograms of each other.
//
// Others: many blocks count digits of 11 bits in memory in two or three passes; then chunks of the
// row count what they have of greater and of equal keys, and write theirs after those of the chunks
// before.

#include "common/launch.cuh"
#include "common/tma.cuh"
#include "common/vec.cuh"
#include "common/warp.cuh"
#include "nvte/backend/topk.h"

namespace nvte {
namespace {

using Args = NVTEXTopkArgs;

constexpr int kThreads = 512;
constexpr size_t kChunk = NVTEX_TOPK_CHUNK;
constexpr int kDigits = 2048;

// Of a row, all 0 at first. `prefix` and `left`: of the last one's key the digits found so far, and
// which of the keys with this prefix it is.
struct Row {
  uint32_t histogram[kDigits];
  uint32_t prefix, above, done, unused;
};
static_assert(sizeof(Row) == NVTEX_TOPK_ROW_BYTES, "what the caller provides");

struct Counts {
  uint32_t greater, equal;
};

__device__ __forceinline__ Row &row_of(const Args &a, size_t row) {
  return static_cast<Row *>(a.workspace)[row];
}
__device__ __forceinline__ Counts &counts_of(const Args &a, size_t row, size_t chunk) {
  Counts *counts = reinterpret_cast<Counts *>(static_cast<Row *>(a.workspace) + a.rows);
  return counts[row * gridDim.x + chunk];
}

__device__ __forceinline__ size_t length_of(const Args &a, size_t row) {
  if (a.lengths == nullptr) return a.cols;
  const int length = a.lengths[row];
  return length < 0 ? 0 : static_cast<size_t>(length) < a.cols ? length : a.cols;
}

template <class T>
__device__ __forceinline__ uint32_t key_at(const Args &a, size_t row, size_t i) {
  uint32_t bits = *element<typename T::Bits>(a.keys, row * a.cols + i);
  if constexpr (T::kBytes == 2) bits <<= 16;
  return T::kBytes == 2 ? ordered_bits(bits) & 0xffff0000u : ordered_bits(bits);
}

// ---- Rows that a cluster of blocks holds

constexpr unsigned kHolders = 256;      // Threads of a block, one for each value of a digit.
constexpr unsigned kMostBlocks = 8;     // Of a cluster.
constexpr unsigned kHeldElements = 32;  // Of a thread, the most.

// A word of another block's shared memory, at the address that it has in this block.
[[maybe_unused]] __device__ __forceinline__ uint32_t ld_shared_cluster(const uint32_t *p,
                                                                       unsigned rank) {
  uint32_t word;
  asm volatile(
      "{.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.b32 %0, [there];}"
      : "=r"(word)
      : "r"(shared_address(p)), "r"(rank)
      : "memory");
  return word;
}
// Orders no memory accesses.
[[maybe_unused]] __device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
[[maybe_unused]] __device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Sum over the lanes before this one and this one. Fields of the words do not overflow.
[[maybe_unused]] __device__ __forceinline__ uint32_t sum_to_lane(uint32_t value) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kFullWarp, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// Keys of a thread: vectors of 16 bytes, which go around the warp. Keys of 16 bits share words.
template <class T, int kEach>
struct HeldKeys {
  static constexpr int kBits = 8 * T::kBytes, kPer = 32 / kBits, kVector = 4 * kPer;
  uint32_t w[kEach / kPer];

  __device__ __forceinline__ uint32_t operator[](int i) const {
    return kPer == 1 ? w[i] : w[i / kPer] >> i % kPer * 16 & 0xffff;
  }
  // `first`: the index of the first element of the lane. Elements from `length` on become the least
  // key; those that have this key and belong to the row come before them.
  __device__ __forceinline__ void load_row(const void *row, unsigned first, unsigned length,
                                           bool vectors) {
    using Bits = typename T::Bits;
    if (vectors) {
#pragma unroll
      for (int v = 0; v < kEach / kVector; ++v) {
        const unsigned i = first + v * 32 * kVector;
        load_once<16>(element<Bits>(row, i), i < length, w + v * 4);
      }
    } else {
      const Bits *at = element<Bits>(row, first);
      const int left = static_cast<int>(length - first);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int offset = i / kVector * 32 * kVector + i % kVector;
        const uint32_t bits = offset < left ? at[offset] : 0;
        w[i / kPer] = i % kPer == 0 ? bits : w[i / kPer] | bits << 16;
      }
    }
#pragma unroll
    for (uint32_t &word : w) {
      // Each key is what ordered_bits makes of an element.
      constexpr uint32_t kSigns = kPer == 1 ? 0x80000000u : 0x80008000u;
      const uint32_t signs = word & kSigns;
      word ^= (signs - (signs >> (kBits - 1))) | kSigns;
    }
    const int left = static_cast<int>(length - first);
    if (left >= 32 * kEach) return;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i / kVector * 32 * kVector + i % kVector >= left) {
        w[i / kPer] &= kPer == 1 ? 0 : ~(0xffffu << i % kPer * 16);
      }
    }
  }
};

template <class T, int kEach>
__global__ void __launch_bounds__(kHolders, 4)
    held_kernel(const __grid_constant__ Args a, unsigned log_blocks, bool vectors) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  using Keys = HeldKeys<T, kEach>;
  using Bits = typename T::Bits;
  constexpr unsigned kWarps = kHolders / 32;
  constexpr int kVector = Keys::kVector, kVectors = kEach / kVector;
  // What the digits found so far say of the last chosen key: how many keys of the row are above all
  // with this prefix, how many have it, and how many of both are in the blocks before this one.
  // `shift`: the bits below the prefix.
  struct Found {
    uint32_t shift, prefix, above, equal, above_before, equal_before;
  };
  __shared__ uint32_t histograms[T::kBytes][kHolders];
  __shared__ uint2 warps[kWarps];
  __shared__ uint32_t held[kWarps], starts[kWarps][kVectors];
  __shared__ Found found;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = 1u << log_blocks;
  const unsigned rank = blockIdx.x & (blocks - 1);
  const size_t r = blockIdx.x >> log_blocks;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t length = length_of(a, r);
  const void *row = element<Bits>(a.keys, r * a.cols);
  auto write = [&](size_t at, Bits key, size_t index) {
    *element<Bits>(a.top_keys, r * a.k + at) = key;
    a.top_indices[r * a.k + at] = static_cast<int>(index);
  };
  if (length <= a.k) {
    const float minus_one[2] = {-1.0f, -1.0f};
    const Bits none = static_cast<Bits>(
        T::from_float(reinterpret_cast<const float (&)[4 / T::kBytes]>(minus_one)));
    for (size_t i = rank * kHolders + threadIdx.x; i < a.k; i += size_t{blocks} * kHolders) {
      write(i, i < length ? *element<Bits>(row, i) : none, i < length ? i : ~size_t{0});
    }
    return;  // All blocks of the cluster do.
  }
#pragma unroll
  for (int pass = 0; pass < T::kBytes; ++pass) histograms[pass][threadIdx.x] = 0;
  if (threadIdx.x == 0) found = {};
  const unsigned first = ((rank * kWarps + warp) * kEach * 32) + lane * kVector;
  Keys keys;
  keys.load_row(row, first, static_cast<unsigned>(length), vectors);
  __syncthreads();

  uint32_t prefix = 0;
  const uint32_t k = static_cast<uint32_t>(a.k);
#pragma unroll 1
  for (int pass = 0; pass < T::kBytes; ++pass) {
    const unsigned shift = Keys::kBits - 8 - 8 * pass;
    uint32_t *histogram = histograms[pass];
    if (pass == 0) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) atomicAdd(&histogram[keys[i] >> (Keys::kBits - 8)], 1u);
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const uint32_t digit = (keys[i] >> shift) - (prefix << 8);
        if (digit < 256) atomicAdd(&histogram[digit], 1u);
      }
    }
    cluster_sync();
    // Thread 0 has the greatest digit.
    const unsigned digit = kHolders - 1 - threadIdx.x;
    uint32_t counts[kMostBlocks], equal = 0, equal_here = 0;
#pragma unroll
    for (unsigned b = 0; b < kMostBlocks; ++b) {
      counts[b] = 0;
      if (b < blocks) counts[b] = ld_shared_cluster(&histogram[digit], b);
    }
#pragma unroll
    for (unsigned b = 0; b < kMostBlocks; ++b) {
      equal += counts[b];
      if (b < rank) equal_here += counts[b];
    }
    uint32_t greater = sum_to_lane(equal), greater_here = sum_to_lane(equal_here);
    if (lane == 31) warps[warp] = make_uint2(greater, greater_here);
    greater -= equal, greater_here -= equal_here;
    const uint32_t wanted = k - found.above;
    __syncthreads();
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) {
      const uint2 all = warps[w];
      if (w < warp) greater += all.x, greater_here += all.y;
    }
    if (greater < wanted && wanted <= greater + equal) {
      found = {shift,
               prefix << 8 | digit,
               found.above + greater,
               equal,
               found.above_before + greater_here,
               equal_here};
    }
    __syncthreads();
    prefix = found.prefix;
    // If all keys with this prefix are chosen, the other digits do not matter. All blocks see that.
    if (found.above + found.equal == k) break;
  }
  // Read anew: of a shift that it knew, the compiler would keep the digits of the last pass, in as
  // many registers as the keys have.
  const unsigned shift = found.shift;
  cluster_arrive_relaxed();  // No block reads another's memory any more.

  uint32_t above = 0, equal = 0;  // Bits of the thread's keys.
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t digits = keys[i] >> shift;
    above |= digits > prefix ? 1u << i : 0;
    equal |= digits == prefix ? 1u << i : 0;
  }
  // Counts of each vector: of even and of odd ones in a word each. Over a warp they are at most 128
  // for vectors of 4 keys, and have 8 bits; at most 256 for vectors of 8, and have 16.
  constexpr unsigned kField = kVector == 4 ? 8 : 16;
  auto count = [](uint32_t bits, uint32_t (&counts)[2]) {
    bits -= bits >> 1 & 0x55555555;
    bits = (bits & 0x33333333) + (bits >> 2 & 0x33333333);
    if (kVector == 8) bits = (bits & 0x0f0f0f0f) + (bits >> 4 & 0x0f0f0f0f);
    counts[0] = bits & (kVector == 4 ? 0x0f0f0f0f : 0x00ff00ff);
    counts[1] = bits >> kVector & (kVector == 4 ? 0x0f0f0f0f : 0x00ff00ff);
  };
  // The count of vector `v`.
  auto field = [](const uint32_t (&counts)[2], unsigned v) {
    return (v % 2 ? counts[1] : counts[0]) >> v / 2 * kField & ((1u << kField) - 1);
  };
  uint32_t before[2][2], all[2][2];  // Of lanes before this one, and of all; above, and equal.
  count(above, before[0]);
  count(equal, before[1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t to_lane = sum_to_lane(before[i / 2][i % 2]);
    all[i / 2][i % 2] = __shfl_sync(kFullWarp, to_lane, 31);
    before[i / 2][i % 2] = to_lane - before[i / 2][i % 2];
  }
  // A lane for each vector: how many keys are before it in the block. Both counts share a word.
  const uint32_t mine =
      lane < kVectors ? field(all[0], lane % kVectors) | field(all[1], lane % kVectors) << 16 : 0;
  const uint32_t to_vector = sum_to_lane(mine);
  if (lane == 31) held[warp] = to_vector;
  __syncthreads();
  uint32_t earlier = to_vector - mine;
#pragma unroll
  for (unsigned w = 0; w < kWarps; ++w) earlier += w < warp ? held[w] : 0;
  if (lane < kVectors) starts[warp][lane] = earlier;
  __syncwarp();
  const uint32_t ties = k - found.above;
  // Few elements are chosen. They are read again, because registers have no run-time index.
  for (uint32_t left = above | equal; left != 0; left &= left - 1) {
    const unsigned i = __ffs(left) - 1, v = i / kVector;
    const uint32_t start = starts[warp][v], lower = (1u << i) - (1u << v * kVector);
    const uint32_t g =
        found.above_before + (start & 0xffff) + field(before[0], v) + __popc(above & lower);
    const uint32_t e =
        found.equal_before + (start >> 16) + field(before[1], v) + __popc(equal & lower);
    if ((above >> i & 1) != 0 || e < ties) {
      const unsigned index = first + v * 32 * kVector + i % kVector;
      write(g + min(e, ties), *element<Bits>(row, index), index);
    }
  }
  __syncwarp();
  cluster_wait();
#endif
}

template <class T, int kEach>
NVTEXOutcome launch_held(const Args &a, cudaStream_t stream) {
  unsigned log_blocks = 0;
  while (a.cols > size_t{kHolders * kEach} << log_blocks) ++log_blocks;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {1u << log_blocks, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(a.rows << log_blocks));
  config.blockDim = dim3(kHolders);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = NVTE_OVERLAP ? 2 : 1;
  const bool vectors = a.cols % (16 / T::kBytes) == 0 && aligned(a.keys, 16);
  return outcome(cudaLaunchKernelEx(&config, held_kernel<T, kEach>, a, log_blocks, vectors));
}

// ---- Rows of any length

// Sum over the threads before this one; `all`: over all.
__device__ uint32_t sum_before(uint32_t value, uint32_t &all) {
  __shared__ uint32_t warps[kThreads / 32];
  const unsigned lane = threadIdx.x % 32;
  uint32_t sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  uint32_t before = 0;
  all = 0;
  for (unsigned w = 0; w < kThreads / 32; ++w) {
    if (w < threadIdx.x / 32) before += warps[w];
    all += warps[w];
  }
  return before + sum - value;
}

// Digit `key >> kShift` of the keys that share the digits above it.
template <class T, int kShift, int kBits>
__global__ void __launch_bounds__(kThreads) digit_kernel(const __grid_constant__ Args a) {
  __shared__ uint32_t histogram[1 << kBits];
  __shared__ bool last;
  constexpr int kEach = (1 << kBits) / kThreads;
  constexpr uint32_t kAbove = kShift + kBits == 32 ? 0 : ~0u << (kShift + kBits) % 32;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const size_t length = length_of(a, r);
    if (length <= a.k) continue;
    Row &row = row_of(a, r);
    for (int i = threadIdx.x; i < 1 << kBits; i += kThreads) histogram[i] = 0;
    __syncthreads();
    const uint32_t prefix = row.prefix;
    const size_t begin = blockIdx.x * kChunk, end = min(begin + kChunk, length);
#pragma unroll 4
    for (size_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const uint32_t key = key_at<T>(a, r, i);
      if (((key ^ prefix) & kAbove) == 0) {
        atomicAdd(&histogram[key >> kShift & ((1 << kBits) - 1)], 1u);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 1 << kBits; i += kThreads) {
      if (histogram[i] != 0) atomicAdd(&row.histogram[i], histogram[i]);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&row.done, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last) continue;
    __threadfence();
    // Thread 0 has the greatest digits.
    uint32_t counts[kEach], mine = 0, all;
    const int top = (1 << kBits) - 1 - static_cast<int>(threadIdx.x) * kEach;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      counts[i] = __ldcg(&row.histogram[top - i]);
      mine += counts[i];
      row.histogram[top - i] = 0;
    }
    const uint32_t above = row.above, wanted = static_cast<uint32_t>(a.k) - above;
    uint32_t before = sum_before(mine, all);
    if (before < wanted && wanted <= before + mine) {
      int i = 0;
      while (before + counts[i] < wanted) before += counts[i++];
      row.prefix = prefix | static_cast<uint32_t>(top - i) << kShift;
      row.above = above + before;
      row.done = 0;
    }
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ Args a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const size_t length = length_of(a, r);
    if (length <= a.k) continue;
    const uint32_t bound = row_of(a, r).prefix;
    const size_t begin = blockIdx.x * kChunk, end = min(begin + kChunk, length);
    uint32_t greater = 0, equal = 0;
#pragma unroll 4
    for (size_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const uint32_t key = key_at<T>(a, r, i);
      greater += key > bound;
      equal += key == bound;
    }
    Counts counts;
    sum_before(greater, counts.greater);
    sum_before(equal, counts.equal);
    if (threadIdx.x == 0) counts_of(a, r, blockIdx.x) = counts;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) write_kernel(const __grid_constant__ Args a) {
  using Bits = typename T::Bits;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  for (size_t r = blockIdx.y; r < a.rows; r += gridDim.y) {
    const size_t length = length_of(a, r), begin = blockIdx.x * kChunk;
    auto write = [&](size_t at, Bits key, size_t index) {
      *element<Bits>(a.top_keys, r * a.k + at) = key;
      a.top_indices[r * a.k + at] = static_cast<int>(index);
    };
    auto bits = [&](size_t i) { return *element<Bits>(a.keys, r * a.cols + i); };
    if (length <= a.k) {
      const size_t end = blockIdx.x + 1 == gridDim.x ? a.k : min(begin + kChunk, a.k);
      const float minus_one[2] = {-1.0f, -1.0f};
      const Bits none = static_cast<Bits>(
          T::from_float(reinterpret_cast<const float (&)[4 / T::kBytes]>(minus_one)));
      for (size_t i = begin + threadIdx.x; i < end; i += kThreads) {
        write(i, i < length ? bits(i) : none, i < length ? i : ~size_t{0});
      }
      continue;
    }
    const uint32_t bound = row_of(a, r).prefix;
    uint32_t greater = 0, equal = 0;
    for (size_t c = threadIdx.x; c < blockIdx.x; c += kThreads) {
      const Counts counts = counts_of(a, r, c);
      greater += counts.greater;
      equal += counts.equal;
    }
    sum_before(greater, greater);
    sum_before(equal, equal);
    const uint32_t ties = static_cast<uint32_t>(a.k) - row_of(a, r).above;
    const size_t end = min(begin + kChunk, length);
    for (size_t tile = begin; tile < end; tile += kThreads) {
      const size_t i = tile + threadIdx.x;
      const uint32_t key = i < end ? key_at<T>(a, r, i) : 0;
      const bool is_greater = i < end && key > bound, is_equal = i < end && key == bound;
      // Both sums are in one number: a tile has fewer than 2^16.
      uint32_t all;
      const uint32_t before = sum_before(is_greater | uint32_t{is_equal} << 16, all);
      const uint32_t ties_before = equal + (before >> 16);
      if (is_greater || (is_equal && ties_before < ties)) {
        write(greater + (before & 0xffff) + min(ties_before, ties), bits(i), i);
      }
      greater += all & 0xffff;
      equal += all >> 16;
    }
  }
}

template <class T>
NVTEXOutcome topk(const Args &a, cudaStream_t stream) {
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  constexpr unsigned kMostHeld = kMostBlocks * kHolders * kHeldElements;
  if (device.arch >= 90 && a.k < a.cols && a.cols <= kMostHeld &&
      a.rows <= kMaxBlocks / kMostBlocks) {
    return a.cols <= 8 * kHolders ? launch_held<T, 8>(a, stream)
                                  : launch_held<T, kHeldElements>(a, stream);
  }
  const size_t chunks = a.cols > kChunk ? ceil_div(a.cols, kChunk) : 1;
  const dim3 grid(static_cast<unsigned>(chunks),
                  static_cast<unsigned>(a.rows < 65535 ? a.rows : 65535));
  if (a.cols > a.k) {
    const cudaError_t error = cudaMemsetAsync(a.workspace, 0, a.rows * sizeof(Row), stream);
    if (error != cudaSuccess) return outcome(error);
    NVTEXOutcome launched = launch(digit_kernel<T, 21, 11>, grid, kThreads, stream, a);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    launched = launch(digit_kernel<T, 10, 11>, grid, kThreads, stream, a);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
    if constexpr (T::kBytes == 4) {
      launched = launch(digit_kernel<T, 0, 10>, grid, kThreads, stream, a);
      if (launched.status != NVTEX_BACKEND_OK) return launched;
    }
    launched = launch(count_kernel<T>, grid, kThreads, stream, a);
    if (launched.status != NVTEX_BACKEND_OK) return launched;
  }
  return launch(write_kernel<T>, grid, kThreads, stream, a);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_topk(const NVTEXTopkArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype,
                                  [&](auto t) { return topk<decltype(t)>(*args, stream); });
}
