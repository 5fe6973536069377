// What the forward and the backward of normalizations share: how rows lie over threads, how these
// copy them ahead of time and exchange what they know of them, and gamma and beta.
#pragma once

#include <cfloat>
#include <type_traits>

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "common/warp.cuh"
#include "common/widened.cuh"
#include "nvte/backend/normalization.h"

namespace nvte {
namespace norm {

constexpr int kVec = 8;          // Columns that a thread handles together.
constexpr int kRun = 32 * kVec;  // Elements that a warp takes in one step.
constexpr int kMostWarps = 32;

// How the columns of a row lie over the threads of a group.
struct Layout {
  int cols;
  int group;         // Threads; a multiple of 32.
  int warps, width;  // Warps of a group, and the next power of two.
  int groups;        // Groups of a block.
  int inverse;  // A number whose product divides by warps, because divisions take time before the
                // first load.
  // The columns of a vector lie side by side. Else they are `group` apart, so that a warp accesses
  // single elements side by side.
  bool adjacent;

  void set_group(int threads) {
    group = threads;
    warps = threads / 32;
    for (width = 1; width < warps;) width *= 2;
    inverse = 65536 / warps + 1;  // Exact for the warps of a block.
  }
  __device__ __forceinline__ int index() const {
    return static_cast<int>(threadIdx.x / 32 * inverse) >> 16;
  }
};

// The columns of one thread: vectors, one in each `span` columns. kVectorised: every access to a
// vector is aligned, and inside or outside the row as a whole.
template <bool kVectorised>
struct Columns {
  int cols, first, step, span;

  __device__ Columns(const Layout &l, int thread)
      : cols(l.cols),
        first(kVectorised || l.adjacent ? thread * kVec : thread),
        step(kVectorised || l.adjacent ? 1 : l.group),
        span(l.group * kVec) {}

  __device__ __forceinline__ int column(int v) const { return first + v * span; }
  __device__ __forceinline__ bool has(int v, int i) const {
    return column(v) + (kVectorised ? 0 : i * step) < cols;
  }

  // Vector v of the row that begins at element `row`; zeros outside, or if there is no such row.
  template <class T>
  __device__ __forceinline__ Vec<T, kVec> load(const void *base, size_t row, int v,
                                               bool exists) const {
    const int col = column(v);
    if constexpr (kVectorised) {
      return nvte::load<T, kVec>(base, row + col, exists && col < cols);
    }
    constexpr int kPer = Vec<T, kVec>::kPerWord;
    Vec<T, kVec> x = {};
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const uint32_t bits =
          exists && has(v, i) ? *element<typename T::Bits>(base, row + col + i * step) : 0;
      x.w[i / kPer] |= bits << (i % kPer * 8 * T::kBytes);
    }
    return x;
  }

  // The same of a T that is Widened, or `dtype`'s tag.
  template <class T>
  __device__ __forceinline__ Vec<T, kVec> load_as(NVTEDType dtype, const void *base, size_t row,
                                                  int v, bool exists) const {
    if constexpr (!kIsWidened<T>) {
      return load<T>(base, row, v, exists);
    } else {
      return widened_from<kVec>(
          dtype, [&](auto tag) { return load<decltype(tag)>(base, row, v, exists); });
    }
  }

  template <class T>
  __device__ __forceinline__ void store(void *base, size_t row, int v,
                                        const Vec<T, kVec> &x) const {
    const int col = column(v);
    if constexpr (kVectorised) {
      if (col < cols) nvte::store(base, row + col, x);
      return;
    }
    constexpr int kPer = Vec<T, kVec>::kPerWord;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (has(v, i)) {
        *element<typename T::Bits>(base, row + col + i * step) =
            static_cast<typename T::Bits>(x.w[i / kPer] >> (i % kPer * 8 * T::kBytes));
      }
    }
  }

  // Vector v of a row of F32, F16 or BF16, as float32.
  __device__ __forceinline__ void load_floats(const void *base, NVTEDType dtype, size_t row, int v,
                                              float (&f)[kVec]) const {
    if (dtype == kNVTEFloat32) {
      to_float(load<F32>(base, row, v, true), f);
    } else if (dtype == kNVTEBFloat16) {
      to_float(load<BF16>(base, row, v, true), f);
    } else {
      to_float(load<F16>(base, row, v, true), f);
    }
  }

  __device__ __forceinline__ void store_floats(void *base, NVTEDType dtype, size_t row, int v,
                                               const float (&f)[kVec]) const {
    if (dtype == kNVTEFloat32) {
      store(base, row, v, from_float<F32>(f));
    } else if (dtype == kNVTEBFloat16) {
      store(base, row, v, from_float<BF16>(f));
    } else {
      store(base, row, v, from_float<F16>(f));
    }
  }

  // Elements of a thread in `count` vectors.
  __device__ __forceinline__ float elements(int from, int count) const {
    int n = 0;
    for (int v = from; v < from + count; ++v) {
      for (int i = 0; i < kVec; ++i) n += has(v, i);
    }
    return static_cast<float>(n);
  }
};

template <int N>
__device__ __forceinline__ void warp_sums(float (&x)[N]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < (N < 2 ? N : 2); ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
  }
}

template <int N>
__device__ __forceinline__ void lanes_sums(float (&x)[N], int width) {
  for (int step = 1; step < width; step *= 2) {
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += __shfl_xor_sync(0xffffffffu, x[i], step);
  }
}

// NaN for NaN.
__device__ __forceinline__ float at_least_0(float x) { return x < 0.0f ? 0.0f : x; }

// The sum over each `width` lanes, a power of two.
__device__ __forceinline__ float lanes_sum(float x, int width) {
  for (int step = 1; step < width; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// The threads that share a row, and their exchange of kCount floats for each warp. One barrier
// each: successive exchanges use different memory. kAlone: a group of several warps has the block
// for itself, and takes one of the multiprocessor's 64 barriers instead of 16.
template <int kCount, bool kAlone = false>
struct Group {
  const Layout &layout;  // Constant memory: no registers.
  int index, thread;
  int turn = 0;
  float (*memory)[kMostWarps][kCount];  // [2]

  __device__ Group(const Layout &l, float (*memory)[kMostWarps][kCount])
      : layout(l), index(l.index()), thread(threadIdx.x - index * l.group), memory(memory) {}

  __device__ __forceinline__ void wait() const {
    __syncwarp();  // The barrier counts warps.
    if constexpr (kAlone) {
      __syncthreads();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(layout.group) : "memory");
    }
  }
  // At the end. `less`: this group had one row less than others of all blocks. It waits as often as
  // they do, since what looks for races orders accesses of threads by their count of barriers.
  __device__ __forceinline__ void wait_equally(bool less) const {
    if (less && layout.warps > 1) wait();
  }

  // `mine` of a warp becomes, in lane w % width, that of warp w of the group, or zeros.
  __device__ __forceinline__ void exchange(float (&mine)[kCount]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) memory[turn][warp][i] = mine[i];
    }
    wait();
    const int from = lane & (layout.width - 1);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      mine[i] = from < layout.warps ? memory[turn][index * layout.warps + from][i] : 0.0f;
    }
    turn ^= 1;
  }
};

// 16 bytes of shared memory: `bytes` from global memory, then zeros. Through L1, as the stores:
// H200, bf16 to fp8, LayerNorm of 4096 columns 3900 GB/s (copies that bypass it: 3410), RMSNorm
// 3890 (3530), backward of 12288 columns 3840 (3810) and 3910 (3810).
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

// Waits until at most `pending` (0 or 1) of the latest commits are incomplete.
__device__ __forceinline__ void wait_for_copies(int pending) {
  if (pending > 0) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
}

// Elements of this thread that are on their way to shared memory, where only it reads them again:
// kPlaces vectors; 0 if their number is known at run time only. They lie there as in global memory,
// in `dtype` if T is Widened.
template <class T, bool kVectorised, int kPlaces = 0>
struct Staged {
  static constexpr int kMostChunks = Vec<T, kVec>::kBytes / 16;

  // 16 bytes each.
  static __host__ __device__ __forceinline__ constexpr int chunks(NVTEDType dtype) {
    return kVec * bytes_of<T>(dtype) / 16;
  }

  uint32_t memory;  // The thread's first 16 bytes.
  NVTEDType dtype;

  __device__ __forceinline__ Staged(uint32_t memory, NVTEDType dtype)
      : memory(memory), dtype(dtype) {}
  __device__ __forceinline__ Staged(const uint4 *stage, NVTEDType dtype)
      : memory(shared_address(stage) +
               16 * (kPlaces == 0
                         ? threadIdx.x
                         : threadIdx.x / 32 * (kPlaces * chunks(dtype) * 32) + threadIdx.x % 32)),
        dtype(dtype) {}

  __device__ __forceinline__ uint32_t slot(int place, int chunk) const {
    const int at = place * chunks(dtype) + chunk;
    return memory + at * (kPlaces == 0 ? 16 * static_cast<int>(blockDim.x) : 512);
  }
  // Whether a vector has that chunk.
  __device__ __forceinline__ bool has(int chunk) const {
    return !kIsWidened<T> || chunk < chunks(dtype);
  }
  __device__ __forceinline__ void set(int place, const Vec<T, kVec> &x) const {
    narrowed(dtype, x, [&](const auto &z) {
#pragma unroll
      for (int k = 0; k < z.kBytes / 16; ++k) {
        const uint32_t *w = z.w + 4 * k;
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(slot(place, k)), "r"(w[0]),
                     "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
      }
    });
  }
  __device__ __forceinline__ Vec<T, kVec> get(int place) const {
    Vec<T, kVec> x = {};
#pragma unroll
    for (int k = 0; k < kMostChunks; ++k) {
      if (!has(k)) break;
      uint32_t *w = x.w + 4 * k;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                   : "r"(slot(place, k))
                   : "memory");
    }
    if constexpr (kIsWidened<T>) {
      return widened<kVec>(dtype, x.w);
    } else {
      return x;
    }
  }
  // Vector v of a row, of which `from` is the thread's first: `left` elements from there on, and
  // zeros.
  template <bool kSkewed>
  __device__ __forceinline__ void fetch(int place, const char *from, int v, int left) const {
    const int size = bytes_of<T>(dtype);
#pragma unroll
    for (int k = 0; k < kMostChunks; ++k) {
      if (!has(k)) break;
      const int start = v * kRun + k * (16 / size), rest = (left - start) * size;
      const int bytes = kSkewed && rest < 16 ? rest : 16;
      copy_async(slot(place, k), from + start * size, rest > 0 ? bytes : 0);
    }
  }
  // Vector v of the row that begins at element `row`; zeros if there is no such row.
  __device__ __forceinline__ void fetch(const Columns<kVectorised> &c, int place, const void *base,
                                        size_t row, int v, bool exists) const {
    if constexpr (kVectorised) {
      const bool inside = exists && c.column(v) < c.cols;
      const void *from = address_of<T>(dtype, base, inside ? row + c.column(v) : 0);
#pragma unroll
      for (int k = 0; k < kMostChunks; ++k) {
        if (!has(k)) break;
        copy_async(slot(place, k), static_cast<const char *>(from) + k * 16, inside ? 16 : 0);
      }
    } else {
      set(place, c.template load_as<T>(dtype, base, row, v, exists));
    }
  }
};

// The weight g of vector v; zeros outside the row.
template <bool kVectorised>
__device__ __forceinline__ void load_gamma(const Columns<kVectorised> &c, const NVTEXGamma &gamma,
                                           int v, float (&g)[kVec]) {
  c.load_floats(gamma.data, gamma.dtype, 0, v, g);
  if (!gamma.zero_centered) return;
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    g[i] = c.has(v, i) ? g[i] + 1.0f : 0.0f;
  }
  if (!gamma.rounded) return;
  if (gamma.dtype == kNVTEFloat16) to_float(from_float<F16>(g), g);
  if (gamma.dtype == kNVTEBFloat16) to_float(from_float<BF16>(g), g);
}

__device__ __forceinline__ float scalar(const void *base, NVTEDType dtype, size_t i) {
  float pair[2];
  if (dtype == kNVTEFloat32) return *element<float>(base, i);
  if (dtype == kNVTEFloat16) {
    F16::to_float(*element<uint16_t>(base, i), pair);
  } else {
    BF16::to_float(*element<uint16_t>(base, i), pair);
  }
  return pair[0];
}

__device__ __forceinline__ float rounded(float x, NVTEDType dtype) {
  float pair[2] = {x, 0.0f};
  if (dtype == kNVTEFloat16) F16::to_float(F16::from_float(pair), pair);
  if (dtype == kNVTEBFloat16) BF16::to_float(BF16::from_float(pair), pair);
  return pair[0];
}

// A predicate, not a branch: the barriers at which so many of them meet again would spill.
template <class B>
__device__ __forceinline__ void store_if(bool inside, B *to, B bits) {
  asm volatile(
      "{.reg .pred inside;\n"
      "setp.ne.b32 inside, %3, 0;\n"
      "@inside st.global.b%2 [%0], %1;}" ::"l"(to),
      "r"(uint32_t{bits}), "n"(8 * sizeof(B)), "r"(int{inside})
      : "memory");
}

// The first row of a group that goes over every (gridDim.x * groups)-th one. Those of a block lie
// side by side, which suits the memory (H200, bf16, LayerNorm backward of 4096 columns: 101 us,
// else 110), or `apart`: if the last turn has rows for a part of the groups only, blocks share them
// (768 columns: 23.9 us, else 25.1). kSkewed: they are the same modulo kVec, as is the number of
// blocks.
template <bool kSkewed, class Group>
__device__ __forceinline__ size_t first_row(const Group &group, bool apart) {
  if (apart) return size_t{gridDim.x} * group.index + blockIdx.x;
  constexpr unsigned kEvery = kSkewed ? kVec : 1;
  const unsigned begin = blockIdx.x % kEvery;
  return size_t{blockIdx.x - begin} * group.layout.groups + group.index * kEvery + begin;
}
// Whether rows are so short that a group takes rows that lie apart.
inline bool lie_apart(size_t cols, size_t bytes) { return cols * bytes < 8192; }

// How a group holds a row in vectors that are aligned whatever the row begins with: a warp has V
// runs of kRun positions one after the other, and a thread kVec side by side of each. If kSkewed,
// rows are not a multiple of kVec long, and positions count from the last aligned element at or
// before a row's first, which has position `begin`. The rows of a block all have the same: there is
// a multiple of kVec of blocks, which take turns.
template <bool kSkewed, int V>
struct Span {
  static constexpr int kEvery = kSkewed ? kVec : 1;

  int begin, first;  // first: the thread's position.
  int left;          // Positions from there to the end of a row, or negative.

  // `row`: one of the group's rows.
  __device__ __forceinline__ Span(int cols, int offset, size_t row, int thread)
      : begin(kSkewed ? static_cast<int>((offset + row * cols) % kVec) : 0),
        first(thread / 32 * (V * kRun) + thread % 32 * kVec),
        left(begin + cols - first) {}

  // Vector v has elements of a row.
  __device__ __forceinline__ bool has(int v) const { return v * kRun < left; }
  // A bit for each element of vector v. One register, where comparisons would take many.
  __device__ __forceinline__ unsigned mask(int v) const {
    const int rest = left - v * kRun, end = rest < 0 ? 0 : rest > kVec ? kVec : rest;
    const unsigned bits = (1u << end) - 1;
    return kSkewed && v == 0 && first < begin ? bits & (~0u << (begin - first)) : bits;
  }
  __device__ __forceinline__ bool has_all(int v) const {
    return v * kRun + kVec <= left && first + v * kRun >= begin;
  }
  // Zeros what copies cannot leave out: elements of the row before this one.
  template <class T>
  __device__ __forceinline__ void clear_before(int v, T (&f)[kVec]) const {
    if constexpr (kSkewed) {
      if (v != 0 || first >= begin) return;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        if (first + i < begin) f[i] = 0;
      }
    }
  }
  // Elements of vector v.
  __device__ __forceinline__ float elements_of(int v) const {
    return static_cast<float>(__popc(mask(v)));
  }
  // Elements of a warp's part of a row.
  __device__ __forceinline__ float elements() const {
    const int lane = threadIdx.x % 32, from = first - lane * kVec, until = from + V * kRun;
    const int end = left + first;
    const int n = (until < end ? until : end) - (from > begin ? from : begin);
    return static_cast<float>(n > 0 ? n : 0);
  }

  // Where the thread's first element of a row is, in bytes from the begin of the tensor.
  template <class T>
  __device__ __forceinline__ ptrdiff_t offset(int cols, size_t row,
                                              NVTEDType dtype = T::kDtype) const {
    return (static_cast<ptrdiff_t>(row * cols) + first - begin) * bytes_of<T>(dtype);
  }
  template <class T>
  __device__ __forceinline__ char *at(const void *base, int cols, size_t row,
                                      NVTEDType dtype = T::kDtype) const {
    return static_cast<char *>(const_cast<void *>(base)) + offset<T>(cols, row, dtype);
  }
  // `z` becomes vector v of a row, of which `to` is the thread's first. `together`: it is aligned.
  template <class T>
  __device__ __forceinline__ void put(char *to, int v, const Vec<T, kVec> &z, bool together) const {
    if constexpr (!kSkewed) {
      if (has(v)) store(to, v * kRun, z);
    } else if (together && has_all(v)) {
      store(to, v * kRun, z);
    } else {
      constexpr int kPer = Vec<T, kVec>::kPerWord;
      const unsigned here = mask(v);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const auto bits =
            static_cast<typename T::Bits>(z.w[i / kPer] >> (i % kPer * 8 * T::kBytes));
        store_if(here >> i & 1, element<typename T::Bits>(to, v * kRun + i), bits);
      }
    }
  }
  // Loads vector v; zeros outside of the row.
  template <class T>
  __device__ __forceinline__ Vec<T, kVec> get(const char *from, int v, bool together) const {
    if constexpr (!kSkewed) {
      return load<T, kVec>(from, v * kRun, has(v));
    } else {
      if (together && has_all(v)) return load<T, kVec>(from, v * kRun, true);
      constexpr int kPer = Vec<T, kVec>::kPerWord;
      Vec<T, kVec> x = {};
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const bool here = mask(v) >> i & 1;
        const uint32_t bits = here ? *element<typename T::Bits>(from, v * kRun + i) : 0;
        x.w[i / kPer] |= bits << (i % kPer * 8 * T::kBytes);
      }
      return x;
    }
  }
};

// Threads of a block, at most, are tuned for the registers of sm_90; other architectures get slack
// instead of spills.
constexpr int threads_here(int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
  return threads * 3 / 4;
#else
  return threads;
#endif
}
inline int threads_on(const Device &device, int threads) {
  return device.arch == 90 ? threads : threads * 3 / 4;
}

// Divides by n; by 0 it gives 0.
struct FloatDivisor {
  float n, inverse;

  __host__ __device__ explicit FloatDivisor(float n) : n(n), inverse(n > 0.0f ? 1.0f / n : 0.0f) {}
  __device__ __forceinline__ float divide(float x) const {
    const float q = x * inverse, better = fmaf(fmaf(-q, n, x), inverse, q);
    return fabsf(q) <= FLT_MAX ? better : q;  // Infinity minus infinity is none.
  }
};

// kVec floats for each vector of a thread, in shared memory.
template <int V>
struct Weights {
  uint32_t at;  // The address of the thread's first float in shared memory.

  __device__ __forceinline__ Weights(const float *memory, int thread)
      : at(static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + thread / 32 * (V * kRun * 4) +
           thread % 32 * 16) {}

  __host__ __device__ static constexpr size_t floats(int threads) {
    return size_t(threads) * kVec * V;
  }

  __device__ __forceinline__ void set(int v, const float (&f)[kVec]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + (v * 2 + k) * 512),
                   "f"(f[4 * k]), "f"(f[4 * k + 1]), "f"(f[4 * k + 2]), "f"(f[4 * k + 3])
                   : "memory");
    }
  }
  // The position of float i of all threads; four at a time lie side by side.
  static __device__ __forceinline__ int position(int i) {
    return i / (V * kRun) * (V * kRun) + i / kRun % V * kRun + i % 128 / 4 * kVec + i % 4 +
           i / 128 % 2 * 4;
  }

  // Loads a half of the elements of vector v.
  __device__ __forceinline__ void get(int v, int half, float (&f)[kVec / 2]) const {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3])
                 : "r"(at + (v * 2 + half) * 512)
                 : "memory");
  }
  __device__ __forceinline__ void get(int v, float (&f)[kVec]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float part[kVec / 2];
      get(v, half, part);
#pragma unroll
      for (int i = 0; i < kVec / 2; ++i) f[half * (kVec / 2) + i] = part[i];
    }
  }
};

// Gamma and beta (if there is any) of the thread's vector v. The loads of both are on their way
// together: with few rows, their time counts.
template <class T, bool kBeta, bool kCentered, bool kSkewed, int V>
__device__ __forceinline__ void weights_of(const Span<kSkewed, V> &span, const NVTEXGamma &gamma,
                                           const void *beta, int v, float (&g)[kVec],
                                           float (&b)[kVec]) {
  // The gammas of a row.
  const auto *const gammas = span.template at<T>(gamma.data, 0, 0);
  const auto *const betas = span.template at<T>(beta, 0, 0);
  const Vec<T, kVec> raw = span.template get<T>(gammas, v, false);
  if (kBeta) to_float(span.template get<T>(betas, v, false), b);
  to_float(raw, g);
  if constexpr (kCentered) {
    if (!gamma.zero_centered) return;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (span.mask(v) >> i & 1) g[i] += 1.0f;
    }
    if (gamma.rounded) to_float(from_float<T>(g), g);
  }
}

// Into shared memory, by the groups of a block together. `In`: likely their type.
template <class In, bool kBeta, bool kSkewed, int V>
__device__ __forceinline__ void share_weights(const Span<kSkewed, V> &span, int group, int groups,
                                              const NVTEXGamma &gamma, const void *beta,
                                              const Weights<V> &gammas, const Weights<V> &betas) {
  for (int v = group; v < V; v += groups) {
    float g[kVec], b[kVec];
    if (!kIsWidened<In> && gamma.dtype == In::kDtype) {
      weights_of<In, kBeta, true>(span, gamma, beta, v, g, b);
    } else if (gamma.dtype == kNVTEFloat32) {
      weights_of<F32, kBeta, true>(span, gamma, beta, v, g, b);
    } else if (gamma.dtype == kNVTEBFloat16) {
      weights_of<BF16, kBeta, true>(span, gamma, beta, v, g, b);
    } else {
      weights_of<F16, kBeta, true>(span, gamma, beta, v, g, b);
    }
    gammas.set(v, g);
    if (kBeta) betas.set(v, b);
  }
}

// Threads of a group so that each has V vectors.
inline int group_of(size_t cols, int vectors) {
  return static_cast<int>(ceil_div(cols, size_t(32) * kVec * vectors)) * 32;
}

// Groups in a block of at most `threads`; each of more than a warp has a barrier of its own.
inline int groups_of(int group, int threads) {
  const int groups = threads / group;
  return groups < 1 ? 1 : groups > 15 && group > 32 ? 15 : groups;
}

// As many groups of a block as go over the rows in the same number of turns. Few rows get a
// multiprocessor each.
inline int balanced(int groups, size_t rows, size_t sms) {
  const size_t turns = ceil_div(rows, sms * groups);
  return turns == 0 ? 1 : static_cast<int>(ceil_div(rows, sms * turns));
}

// At most `most` blocks, a multiple of `every`.
inline unsigned blocks_for(size_t rows, int groups, size_t most, size_t every) {
  size_t blocks = ceil_div(rows, size_t(groups));
  if (blocks > most) blocks = most;
  blocks = blocks / every * every;
  // At least one block is needed, which writes scale_inv.
  return static_cast<unsigned>(blocks == 0 ? every : blocks);
}

// Elements from the last place that is aligned for a vector.
struct Alignment {
  int offset;

  Alignment(const void *p, NVTEDType dtype) {
    const size_t bytes = dtype == kNVTEFloat32                             ? 4
                         : dtype == kNVTEFloat16 || dtype == kNVTEBFloat16 ? 2
                                                                           : 1;
    const size_t vector = kVec * bytes < 16 ? kVec * bytes : 16;
    offset = static_cast<int>(reinterpret_cast<uintptr_t>(p) % vector / bytes);
  }
};

}  // namespace norm
}  // namespace nvte
