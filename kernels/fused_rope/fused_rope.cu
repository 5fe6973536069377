// Rotary embedding. A block turns some heads of a few rows, which are tokens, or positions of all
// sequences; the sines of a row are computed once for the block.

#include <cmath>

#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "nvte/backend/fused_rope.h"

namespace nvte {
namespace {

constexpr unsigned kThreads = 128;
// What a block should have to do: some units, of two vectors, for each thread.
constexpr size_t kUnitsPerThread = 8;
// Heads whose loads are on their way together, if a thread has several. H200, 4096 x 4 x 32 x 128,
// GB/s by units and these: 3860 (8, 2: 3780; 8, 3: 3850; 16, 4: 3660; 4, 4: 3630; 4, 2: 3780; 256
// threads, 4, 2: 3820; the next two on their way as well: 3820; registers for five blocks of a
// multiprocessor instead of four: 3838). Smaller blocks wait longer for the angles: (2, 2) 3300.
constexpr int kSeveral = 4;
constexpr size_t kEnoughBlocks = 512;
constexpr size_t kMostRows = 32, kMostHeads = 128, kMostFloats = 4 << 10;
constexpr size_t kMostGridY = 65535;

struct Problem {
  NVTEXRopeArgs args;
  // A row has the heads of a position of all sequences if these share the angles, else those of one
  // token.
  size_t rows, heads;
  bool shared;
  unsigned heads_of_sequence;
  unsigned rows_per_block, heads_per_block;
  // A unit is a pair of vectors of a head, the second one `gap` elements after the first; the last
  // one of the two kinds may lack it.
  unsigned turning, turning_gap, turning_pairs;
  unsigned copied, copied_gap, copied_pairs;
  unsigned units_per_block;
  // Tables of a row: two if queries and keys have their own angles, otherwise one.
  unsigned tables;
};

// A row: where in the tensors it lies, and its row of freqs, negative if it is not to be written.
struct RowPosition {
  size_t position, sequence;
  int64_t f;
};

// The row of angles of position i of a sequence with `length` local positions.
__device__ __forceinline__ int64_t freqs_row(const NVTEXRopeArgs &a, size_t i, size_t length,
                                             size_t sequence) {
  int64_t f = static_cast<int64_t>(i);
  if (a.start_positions != nullptr) f += a.start_positions[sequence];
  if (a.cp_size > 1) {
    f += i < length / 2 ? a.cp_rank * length / 2
                        : length * a.cp_size - (a.cp_rank + 1) * length / 2 - length / 2;
  }
  return f;
}

// Called by a whole warp.
__device__ __forceinline__ RowPosition find(const Problem &p, size_t row) {
  const NVTEXRopeArgs &a = p.args;
  if (a.cu_seqlens == nullptr) {
    const size_t position = p.shared ? row : row / a.sequences;
    const size_t sequence = p.shared ? 0 : row % a.sequences;
    return {position, sequence, freqs_row(a, position, a.positions, sequence)};
  }
  const auto start = [&](size_t n) { return static_cast<size_t>(a.cu_seqlens[n]) / a.cp_size; };
  size_t begun = 0;  // Sequences, and the end of the last one, that start at or before the token.
  for (size_t n = 0; n <= a.sequences; n += 32) {
    const size_t mine = n + threadIdx.x % 32;
    begun += __popc(__ballot_sync(0xffffffffu, mine <= a.sequences && start(mine) <= row));
  }
  if (begun == 0 || begun > a.sequences) return {row, 0, -1};
  const size_t first = start(begun - 1);
  return {row, 0, freqs_row(a, row - first, start(begun) - first, begun - 1)};
}

template <int N>
__device__ __forceinline__ void load_floats(const float *p, float (&f)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 v = *reinterpret_cast<const float4 *>(p + i);
      f[i] = v.x, f[i + 1] = v.y, f[i + 2] = v.z, f[i + 3] = v.w;
    }
  } else {
    f[0] = p[0];
  }
}

// Factors of a vector: y = x * cosine + partner * turn.
template <int N>
struct Factors {
  float cosine[N], turn[N];

  __device__ __forceinline__ void load_from(const float *cosines, const float *turns) {
    load_floats(cosines, cosine);
    load_floats(turns, turn);
  }
  template <class T>
  __device__ __forceinline__ Vec<T, N> apply(const float (&x)[N], const float (&partner)[N]) const {
    float y[N];
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = fmaf(x[i], cosine[i], partner[i] * turn[i]);
    return from_float<T>(y);
  }
};

// A head in a row of the block.
struct Head {
  const void *input;
  void *output;      // Null: not to be written.
  int table;         // Negative: to be copied.
  unsigned element;  // Stride of the input.
};

// kInterleaved: the partners lie in one vector; else they are the two vectors of a unit. kTogether:
// heads of a thread at a time; a token of 128 heads takes 2.26 us by 1, 2.47 by 4.
template <class T, int N, bool kInterleaved, int kTogether>
__global__ void __launch_bounds__(kThreads) rope_kernel(const __grid_constant__ Problem p) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  // For each row and table: the cosines, then the factors of the partners.
  __shared__ alignas(16) float tables[kMostFloats];
  __shared__ RowPosition places[kMostRows];
  __shared__ Head heads[kMostHeads];
  const NVTEXRopeArgs &args = p.args;
  const unsigned rotated = static_cast<unsigned>(args.rotated);
  const size_t first_row = blockIdx.x * size_t{p.rows_per_block};
  const unsigned rows = static_cast<unsigned>(
      p.rows - first_row < p.rows_per_block ? p.rows - first_row : p.rows_per_block);
  for (unsigned r = threadIdx.x / 32; r < rows; r += kThreads / 32) {
    RowPosition place = find(p, first_row + r);
    // Where a sequence begins is known only on the device.
    place.f = min(place.f, static_cast<int64_t>(args.freqs_rows - 1));
    if (threadIdx.x % 32 == 0) places[r] = place;
  }
  __syncthreads();

  const auto locate = [&](unsigned at) -> Head {
    const unsigned r = at / p.heads_per_block;
    const size_t i = blockIdx.y * size_t{p.heads_per_block} + at % p.heads_per_block;
    const RowPosition place = places[r];
    if (i >= p.heads || place.f < 0) return {nullptr, nullptr, -1, 0};
    const unsigned index = static_cast<unsigned>(i);
    const size_t sequence = p.shared ? index / p.heads_of_sequence : place.sequence;
    unsigned head = p.shared ? index % p.heads_of_sequence : index;
    unsigned n = 0;
    for (; head >= args.parts[n].heads; ++n) head -= static_cast<unsigned>(args.parts[n].heads);
    const NVTEXRopePart &part = args.parts[n];
    const unsigned per_group = static_cast<unsigned>(part.heads_per_group);
    const auto offset = [&](const NVTEXRopeStrides &s) {
      return place.position * s.position + sequence * s.sequence + head / per_group * s.group +
             head % per_group * s.head;
    };
    return {element<typename T::Bits>(part.input, offset(part.input_strides)),
            element<typename T::Bits>(part.output, offset(part.output_strides)),
            part.freqs != nullptr ? static_cast<int>(r * p.tables + n % p.tables) : -1,
            static_cast<unsigned>(part.input_strides.element)};
  };
  const unsigned count = rows * p.heads_per_block;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) heads[i] = locate(i);

  __syncthreads();

  // This thread's unit, in every step-th head.
  const unsigned step = kThreads / p.units_per_block;
  const unsigned unit = blockIdx.z * p.units_per_block + threadIdx.x % p.units_per_block;
  unsigned i = threadIdx.x / p.units_per_block;
  const unsigned end = i < step && unit < p.turning + p.copied ? count : 0;
  const bool turns = unit < p.turning;
  const unsigned copy = unit - p.turning;
  const bool pair = turns ? unit < p.turning_pairs : copy < p.copied_pairs;
  const bool scalar_pairs = N == 1 && args.interleaved;
  const unsigned first = turns ? unit * (scalar_pairs ? 2 : N) : rotated + copy * N;
  const unsigned second = first + (turns ? p.turning_gap : p.copied_gap);

  Head head[kTogether];
  Vec<T, N> a[kTogether], b[kTogether];
  const auto fetch = [&] {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      head[k] = i + k * step < end ? heads[i + k * step] : Head{};
      const bool there = head[k].output != nullptr;
      a[k] = load<T, N>(head[k].input, size_t{first} * head[k].element, there);
      b[k] = load<T, N>(head[k].input, size_t{second} * head[k].element, there && pair);
    }
  };
  fetch();  // The loads are on their way while the tables are made.

  for (unsigned i = threadIdx.x; i < rows * p.tables * rotated; i += kThreads) {
    const unsigned table = i / rotated, j = i % rotated;
    const float *freqs = args.parts[table % p.tables].freqs;
    const int64_t f = places[table / p.tables].f;
    if (freqs == nullptr || f < 0) continue;
    const unsigned gap = args.interleaved ? 1 : rotated / 2;
    const bool upper = args.interleaved ? j % 2 == 1 : j >= gap;
    float sine, cosine;
    sincosf(freqs[f * rotated + j], &sine, &cosine);
    float *const entry = tables + table * 2 * rotated;
    entry[j] = cosine;
    // In the backward the sine turns the partner.
    const unsigned turned = !args.backward ? j : upper ? j - gap : j + gap;
    entry[rotated + turned] = upper ? sine : -sine;
  }
  __syncthreads();

  AbsMax<T> amax;
  int held = -1;
  Factors<N> fa = {}, fb = {};
  while (i < end) {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      if (head[k].output == nullptr) continue;
      if (turns && head[k].table >= 0) {
        if (head[k].table != held) {
          held = head[k].table;
          const float *const cosines = tables + held * 2 * rotated;
          fa.load_from(cosines + first, cosines + rotated + first);
          if (pair) fb.load_from(cosines + second, cosines + rotated + second);
        }
        float xa[N], xb[N];
        to_float(a[k], xa);
        to_float(b[k], xb);
        if constexpr (kInterleaved) {
          float pa[N], pb[N];
#pragma unroll
          for (int j = 0; j < N; ++j) pa[j] = xa[j ^ 1], pb[j] = xb[j ^ 1];
          a[k] = fa.template apply<T>(xa, pa);
          b[k] = fb.template apply<T>(xb, pb);
        } else {
          a[k] = fa.template apply<T>(xa, xb);
          b[k] = fb.template apply<T>(xb, xa);
        }
      }
      store(head[k].output, first, a[k]);
      if (pair) store(head[k].output, second, b[k]);
      amax.add(a[k]);
      if (pair) amax.add(b[k]);
    }
    i += kTogether * step;
    fetch();
  }
  if (args.amax == nullptr) return;
  const int most = warp_max(amax.bits());
  int *const to = reinterpret_cast<int *>(args.amax);
  if (threadIdx.x % 32 == 0 && most > __ldcg(to)) atomicMax(to, most);
}

template <class T, int N, bool kInterleaved>
NVTEXOutcome run(const NVTEXRopeArgs &args, cudaStream_t stream) {
  Problem p = {};
  p.args = args;
  size_t heads = 0;
  for (const NVTEXRopePart &part : args.parts) heads += part.heads;
  constexpr size_t kMost = kMostGridY * kMostHeads;
  if (heads > kMost) return unimplemented("rope: more than 8 million heads");
  const auto &[queries, keys, values] = args.parts;
  p.tables = keys.heads == 0 || keys.freqs == queries.freqs ? 1 : 2;
  const size_t row_floats = args.rotated * 2 * p.tables;
  if (row_floats > kMostFloats) return unimplemented("rope: heads of more than 1024 elements");

  const bool packed = args.cu_seqlens != nullptr;
  p.shared = !packed && args.start_positions == nullptr && args.sequences <= kMost / heads;
  p.heads_of_sequence = static_cast<unsigned>(heads);
  p.heads = p.shared ? heads * args.sequences : heads;
  p.rows = packed || p.shared ? args.positions : args.positions * args.sequences;

  const unsigned turning = static_cast<unsigned>(args.rotated / N);
  const unsigned copied = static_cast<unsigned>((args.dim - args.rotated) / N);
  p.turning = (turning + 1) / 2;
  p.turning_pairs = turning / 2;
  p.turning_gap = N == 1 && args.interleaved ? 1 : p.turning * N;
  p.copied = (copied + 1) / 2;
  p.copied_pairs = copied / 2;
  p.copied_gap = p.copied * N;
  const unsigned units = p.turning + p.copied;
  p.units_per_block = units < kThreads ? units : kThreads;

  // If there are few units, blocks do less, but there is a unit for each thread.
  const size_t step = kThreads / p.units_per_block;
  size_t block_heads = step * kUnitsPerThread;
  while (block_heads > step && p.rows * p.heads / block_heads < kEnoughBlocks) block_heads -= step;
  if (block_heads > kMostHeads || p.heads / block_heads >= kMostGridY) block_heads = kMostHeads;
  const size_t of_row = p.heads < block_heads ? p.heads : block_heads;
  size_t rows = block_heads / of_row;
  if (rows > kMostRows) rows = kMostRows;
  if (rows * row_floats > kMostFloats) rows = kMostFloats / row_floats;
  p.heads_per_block = static_cast<unsigned>(of_row);
  p.rows_per_block = static_cast<unsigned>(rows);
  const dim3 grid(static_cast<unsigned>(ceil_div(p.rows, rows)),
                  static_cast<unsigned>(ceil_div(p.heads, of_row)),
                  static_cast<unsigned>(ceil_div(units, p.units_per_block)));
  return rows * of_row <= step
             ? launch(rope_kernel<T, N, kInterleaved, 1>, grid, kThreads, stream, p)
             : launch(rope_kernel<T, N, kInterleaved, kSeveral>, grid, kThreads, stream, p);
}

// Vectors of N elements never leave a half, or the part that turns, and are aligned.
bool vectorised(const NVTEXRopeArgs &a, size_t n, size_t element_size) {
  const auto whole = [&](const NVTEXRopeStrides &s) {
    return s.element == 1 && s.position % n == 0 && s.sequence % n == 0 && s.group % n == 0 &&
           s.head % n == 0;
  };
  for (const NVTEXRopePart &part : a.parts) {
    if (part.heads == 0) continue;
    if (!aligned(part.input, n * element_size) || !aligned(part.output, n * element_size) ||
        !whole(part.input_strides) || !whole(part.output_strides)) {
      return false;
    }
  }
  return a.dim % n == 0 && (a.interleaved ? a.rotated : a.rotated / 2) % n == 0;
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_rope(const NVTEXRopeArgs *args, cudaStream_t stream) noexcept {
  using namespace nvte;
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    constexpr int N = 16 / T::kBytes;
    if (!vectorised(*args, N, T::kBytes)) return run<T, 1, false>(*args, stream);
    return args->interleaved ? run<T, N, true>(*args, stream) : run<T, N, false>(*args, stream);
  });
}
