// Rotary embedding. A block turns some heads of a few rows, which are tokens, or positions of all
// sequences; the sines of a row are computed once for the block.

#include <cmath>

#include "common/launch.cuh"
#include "common/vec.cuh"

namespace nvte {
namespace {

constexpr unsigned kThreads = 256;
// What a block should have to do: 4 units, of 16 or 32 bytes, for each thread.
constexpr size_t kUnitsPerBlock = 4 * kThreads;
constexpr size_t kMostRows = 64;
constexpr size_t kTableFloats = 8 << 10;

struct Problem {
  NVTEXRopeArgs args;
  size_t rows, rows_per_block;
  // A line is a head of a sequence. A row has all lines of a position if the sequences share the
  // angles, else those of its sequence.
  size_t lines, lines_per_block;
  bool shared;
  unsigned heads;  // Of a sequence.
  // Units of a head, and of these the ones that turn: a pair of vectors, or one vector that holds
  // pairs. The others are a vector that is copied.
  unsigned units, turning;
  unsigned units_per_block;
  unsigned threads_per_row;  // A multiple of that.
  unsigned tables;           // Of a row: of queries and of keys, or one for both.
};

// A row: where in the tensors it lies, and its row of freqs, negative if it is not to be written.
struct Place {
  size_t position, sequence;
  int64_t f;
};

// Of position i of a sequence with `length` local positions.
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

// By a whole warp.
__device__ __forceinline__ Place find(const Problem &p, size_t row) {
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

// A unit of one line; without an output there is none.
template <class T, int N>
struct Unit {
  void *output;
  int table;  // Negative: to be copied.
  Vec<T, N> a, b;
};

// kInterleaved: the pairs lie in one vector.
template <class T, int N, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) rope_kernel(const __grid_constant__ Problem p) {
  wait_for_stream();
  let_next_start();
  // For each row and table: the cosines, then the factors of the partners.
  __shared__ alignas(16) float tables[kTableFloats];
  __shared__ Place places[kMostRows];
  const NVTEXRopeArgs &args = p.args;
  const unsigned rotated = static_cast<unsigned>(args.rotated);
  const size_t first_row = blockIdx.x * p.rows_per_block;
  const unsigned rows = static_cast<unsigned>(
      p.rows - first_row < p.rows_per_block ? p.rows - first_row : p.rows_per_block);
  for (unsigned r = threadIdx.x / 32; r < rows; r += kThreads / 32) {
    const Place place = find(p, first_row + r);
    if (threadIdx.x % 32 == 0) places[r] = place;
  }
  __syncthreads();

  // This thread's unit of a head, and the lines that it has it of.
  const unsigned member = threadIdx.x % p.threads_per_row;
  const unsigned unit = blockIdx.z * p.units_per_block + member % p.units_per_block;
  const unsigned step = p.threads_per_row / p.units_per_block;
  const size_t first_line = blockIdx.y * p.lines_per_block + member / p.units_per_block;
  const size_t end = (blockIdx.y + 1) * p.lines_per_block;
  const size_t last_line = end < p.lines ? end : p.lines;
  const unsigned row_step = kThreads / p.threads_per_row;
  unsigned r = threadIdx.x / p.threads_per_row;
  if (r >= row_step || unit >= p.units || first_line >= last_line) r = rows;
  size_t line = first_line;

  const bool turns = unit < p.turning, pair = turns && !kInterleaved;
  const unsigned half = args.interleaved ? 1 : rotated / 2;
  const unsigned first = !turns             ? rotated + (unit - p.turning) * N
                         : kInterleaved     ? unit * N
                         : args.interleaved ? unit * 2
                                            : unit * N;
  const unsigned second = first + half;

  const auto fetch = [&] {
    Unit<T, N> u = {};
    if (r >= rows) return u;
    const Place place = places[r];
    if (place.f < 0) return u;
    const unsigned l = static_cast<unsigned>(line);
    const size_t sequence = p.shared ? l / p.heads : place.sequence;
    unsigned head = p.shared ? l % p.heads : l;
    unsigned i = 0;
    for (; head >= args.parts[i].heads; ++i) head -= static_cast<unsigned>(args.parts[i].heads);
    const NVTEXRopePart &part = args.parts[i];
    const unsigned per_group = static_cast<unsigned>(part.heads_per_group);
    const auto at = [&](const NVTEXRopeStrides &s) {
      return place.position * s.position + sequence * s.sequence + head / per_group * s.group +
             head % per_group * s.head;
    };
    const size_t from = at(part.input_strides), element_step = part.input_strides.element;
    u.output = element<typename T::Bits>(part.output, at(part.output_strides));
    u.table = turns && part.freqs != nullptr ? static_cast<int>(r * p.tables + i % p.tables) : -1;
    u.a = load<T, N>(part.input, from + first * element_step, true);
    u.b = load<T, N>(part.input, from + second * element_step, pair);
    return u;
  };
  Unit<T, N> now = fetch();

  for (unsigned i = threadIdx.x; i < rows * p.tables * rotated; i += kThreads) {
    const unsigned table = i / rotated, j = i % rotated;
    const float *freqs = args.parts[table % p.tables].freqs;
    const int64_t f = places[table / p.tables].f;
    if (freqs == nullptr || f < 0) continue;
    const bool upper = args.interleaved ? j % 2 == 1 : j >= half;
    float sine, cosine;
    sincosf(freqs[f * rotated + j], &sine, &cosine);
    float *const entry = tables + table * 2 * rotated;
    entry[j] = cosine;
    // In the backward the sine turns the partner.
    const unsigned turned = !args.backward ? j : upper ? j - half : j + half;
    entry[rotated + turned] = upper ? sine : -sine;
  }
  __syncthreads();

  int held = -1;
  Factors<N> a, b;
  while (r < rows) {
    const Unit<T, N> u = now;
    line += step;
    if (line >= last_line) {
      line = first_line;
      r += row_step;
    }
    now = fetch();
    if (u.output == nullptr) continue;
    Vec<T, N> ya = u.a, yb = u.b;
    if (u.table >= 0) {
      if (u.table != held) {
        const float *const cosines = tables + u.table * 2 * rotated;
        a.load_from(cosines + first, cosines + rotated + first);
        if constexpr (!kInterleaved) b.load_from(cosines + second, cosines + rotated + second);
        held = u.table;
      }
      float xa[N], xb[N];
      to_float(u.a, xa);
      if constexpr (kInterleaved) {
#pragma unroll
        for (int i = 0; i < N; ++i) xb[i] = xa[i ^ 1];
        ya = a.template apply<T>(xa, xb);
      } else {
        to_float(u.b, xb);
        ya = a.template apply<T>(xa, xb);
        yb = b.template apply<T>(xb, xa);
      }
    }
    store(u.output, first, ya);
    if (pair) store(u.output, second, yb);
  }
}

template <class T, int N, bool kInterleaved>
NVTEXOutcome run(const NVTEXRopeArgs &args, cudaStream_t stream) {
  Problem p = {};
  p.args = args;
  size_t heads = 0;
  for (const NVTEXRopePart &part : args.parts) heads += part.heads;
  constexpr size_t kMost = 0xffffffff;
  if (heads > kMost || args.dim > kMost) return unimplemented("rope: more than 2^32 heads");
  const bool packed = args.cu_seqlens != nullptr;
  p.heads = static_cast<unsigned>(heads);
  p.shared = !packed && args.start_positions == nullptr && args.sequences <= kMost / heads;
  p.lines = p.shared ? heads * args.sequences : heads;
  p.rows = packed || p.shared ? args.positions : args.positions * args.sequences;
  p.turning = static_cast<unsigned>(args.rotated / (kInterleaved ? N : 2 * N));
  p.units = p.turning + static_cast<unsigned>((args.dim - args.rotated) / N);
  p.units_per_block = p.units < kThreads ? p.units : kThreads;
  const size_t step = p.lines < kThreads / p.units_per_block ? p.lines : kThreads / p.units_per_block;
  p.threads_per_row = static_cast<unsigned>(step) * p.units_per_block;
  const auto &[queries, keys, values] = args.parts;
  p.tables = keys.heads == 0 || keys.freqs == queries.freqs ? 1 : 2;

  constexpr size_t kMostGridY = 65535;
  p.lines_per_block = kUnitsPerBlock / p.threads_per_row * step;
  if (p.lines_per_block < p.lines / kMostGridY + 1) p.lines_per_block = p.lines / kMostGridY + 1;
  if (p.lines_per_block > p.lines) p.lines_per_block = p.lines;
  const size_t row_floats = args.rotated * 2 * p.tables;
  if (row_floats > kTableFloats) return unimplemented("rope: heads of more than 2048 elements");
  p.rows_per_block = kUnitsPerBlock / (p.lines_per_block * p.units_per_block);
  if (p.rows_per_block > kMostRows) p.rows_per_block = kMostRows;
  if (p.rows_per_block * row_floats > kTableFloats) p.rows_per_block = kTableFloats / row_floats;
  if (p.rows_per_block == 0) p.rows_per_block = 1;
  const dim3 grid(static_cast<unsigned>(ceil_div(p.rows, p.rows_per_block)),
                  static_cast<unsigned>(ceil_div(p.lines, p.lines_per_block)),
                  static_cast<unsigned>(ceil_div(p.units, p.units_per_block)));
  return launch(rope_kernel<T, N, kInterleaved>, grid, kThreads, stream, p);
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
