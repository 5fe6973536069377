// Hadamard transforms of 16 rows and largest magnitudes, also of the members of a group
// (optim_nvfp4.md, sections 14 and 15). A thread has 16 rows of some columns in registers. H200,
// 8192 x 8192, GB/s: transform 3920, maxima 3970, of them in a group of 64 3760, without a
// transform 4180; a copy 4180.

#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "nvte/backend/hadamard_transform.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 16;
constexpr unsigned kFull = 0xffffffffu;

// A factor of 1/4 or -1/4 for each of the rows.
struct Factors {
  float of[kRows];
};

Factors factors(uint32_t sign_mask) {
  Factors f;
  for (int k = 0; k < kRows; ++k) f.of[k] = (sign_mask >> k & 1) != 0 ? -0.25f : 0.25f;
  return f;
}

// The steps of the transform but the last. The factors, powers of two, are part of the first.
__device__ __forceinline__ void three_steps(float (&v)[kRows], const Factors &f) {
#pragma unroll
  for (int k = 0; k < kRows; k += 2) {
    const float b = __fmul_rn(v[k + 1], f.of[k + 1]), a = v[k];
    v[k] = __fmaf_rn(a, f.of[k], b);
    v[k + 1] = __fmaf_rn(a, f.of[k], -b);
  }
#pragma unroll
  for (int step = 2; step < 8; step *= 2) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      if ((k & step) != 0) continue;
      const float a = v[k], b = v[k + step];
      v[k] = __fadd_rn(a, b);
      v[k + step] = __fsub_rn(a, b);
    }
  }
}

// Column `col` of the rows.
template <int N>
__device__ __forceinline__ void column(const Vec<BF16, N> (&x)[kRows], int col, float (&v)[kRows]) {
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const uint32_t w = x[k].w[col / 2];
    v[k] = __uint_as_float(col % 2 == 0 ? w << 16 : w & 0xffff0000);
  }
}

constexpr int kTileCols = 64, kTileRows = 128;

// Tiles of 64 columns and 128 rows: a warp for each 16 rows, two columns per lane. The transposed
// tile is put together in shared memory, in pieces of 8 elements whose places are exchanged so that
// lanes meet different banks.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads, 4)
    hadamard_kernel(const __grid_constant__ NVTEXHadamardArgs a, const __grid_constant__ Factors f,
                    unsigned down) {
  constexpr int kPieces = kTileRows / 8;
  __shared__ uint4 tile[kTileCols][kPieces];
  const size_t row0 = size_t{blockIdx.x % down} * kTileRows;
  const size_t col0 = size_t{blockIdx.x / down} * kTileCols;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t row = row0 + warp * kRows, col = col0 + lane * 2;
  const bool inside = row < a.rows && col < a.cols;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  Vec<BF16, 2> x[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    const size_t at = (row + k) * a.cols + col;
    x[k] = kVectors ? load<BF16, 2>(a.input, at, inside)
                    : load_some<BF16, 2>(a.input, at, inside ? 2 : 0);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float v[kRows], y[kRows];
    column(x, j, v);
    three_steps(v, f);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      y[k] = __fadd_rn(v[k], v[k + 8]);
      y[k + 8] = __fsub_rn(v[k], v[k + 8]);
    }
    const Vec<BF16, kRows> out = from_float<BF16>(y);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tile[lane * 2 + j][(warp * 2 + h) ^ (lane & 7)] =
          make_uint4(out.w[4 * h], out.w[4 * h + 1], out.w[4 * h + 2], out.w[4 * h + 3]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < kTileCols * kPieces; i += kThreads) {
    const int c = i / kPieces, piece = i % kPieces;
    const uint4 y = tile[c][piece ^ (c / 2 & 7)];
    if (col0 + c >= a.cols || row0 + piece * 8 >= a.rows) continue;
    const size_t at = (col0 + c) * a.rows + row0 + piece * 8;
    const Vec<BF16, 8> v = {{y.x, y.y, y.z, y.w}};
    if (kVectors) {
      store(a.output, at, v);
    } else {
      store_some(a.output, at, 8, v);
    }
  }
}

NVTEXOutcome hadamard(const NVTEXHadamardArgs &a, cudaStream_t stream) {
  const size_t down = ceil_div(a.rows, kTileRows), across = ceil_div(a.cols, kTileCols);
  if (down == 0 || across == 0) return ok();
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  const dim3 grid(static_cast<unsigned>(down * across));
  const auto tiles_down = static_cast<unsigned>(down);
  const bool vectors = aligned(a.input, 4) && aligned(a.output, 16);
  return launch(vectors ? hadamard_kernel<true> : hadamard_kernel<false>, grid, kThreads, stream, a,
                factors(a.sign_mask), tiles_down);
}

// Where the maxima of a member go; `end` is the first element after it.
struct Target {
  size_t end;
  float *amax, *colwise;
};

constexpr int kTargets = 64;

// The members of a list or of a group.
struct Members {
  NVTEXGroup group;
  float *amax, *colwise;  // Maxima of a group.
  size_t cols;
  size_t each;  // Elements of a member of a group without first_dims.
  uint32_t count;
  bool is_list;
  Target list[kTargets];

  __device__ __forceinline__ size_t begin(uint32_t i) const {
    if (is_list) return i == 0 ? 0 : list[i - 1].end;
    return group.offsets != nullptr ? group.offsets[i] : i * each;
  }
  __device__ __forceinline__ size_t end(uint32_t i) const {
    if (is_list) return list[i].end;
    return begin(i) + (group.first_dims != nullptr ? group.first_dims[i] * cols : each);
  }
  // The last member that begins at or before an element.
  __device__ __forceinline__ uint32_t find(size_t at) const {
    uint32_t low = 0;
    for (uint32_t n = count; n > 1;) {
      const uint32_t half = n / 2;
      if (begin(low + half) <= at)
        low += half, n -= half;
      else
        n = half;
    }
    return low;
  }
  // The same as find(), by all lanes of a warp together.
  __device__ __forceinline__ uint32_t find_together(size_t at) const {
    uint32_t before = 0;
    for (uint32_t i = threadIdx.x % 32, done = 0; done < count; i += 32, done += 32) {
      const unsigned hits = __ballot_sync(kFull, i < count && begin(i) <= at);
      before += __popc(hits);
      if (hits != kFull) break;
    }
    return before == 0 ? 0 : before - 1;
  }
  __device__ __forceinline__ float *target(uint32_t i, bool of_transform) const {
    if (is_list) return of_transform ? list[i].colwise : list[i].amax;
    float *base = of_transform ? colwise : amax;
    return base == nullptr ? nullptr : base + i;
  }
};

// Zeroes the maxima and lets the reduction start. Waiting first makes everything earlier in the
// stream complete, so that the reduction may read without waiting.
__global__ void __launch_bounds__(kThreads) zero_kernel(const __grid_constant__ Members m) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= m.count) return;
  for (const bool of_transform : {false, true}) {
    float *target = m.target(i, of_transform);
    if (target != nullptr) *target = 0.0f;
  }
}

__device__ __forceinline__ void raise(float *amax, int bits) {
  int *target = reinterpret_cast<int *>(amax);
  if (target != nullptr && *static_cast<volatile int *>(target) < bits) atomicMax(target, bits);
}

__device__ __forceinline__ int rounded(float x) {
  const float pair[2] = {x, 0.0f};
  return static_cast<int>(BF16::from_float(pair) << 16);
}

// A unit is N columns of 16 rows, and a block has kThreads of them, along the rows first. Usually
// they are all of one member, for which the first warp looks while the elements are on their way.
// The larger of |a + b| and |a - b| is |a| + |b|, which saves most of the last step, and a maximum
// is the same rounded before or after.
template <int N, bool kTransform>
__global__ void __launch_bounds__(kThreads, 4)
    amax_kernel(const void *in, uint32_t units, uint32_t across, const __grid_constant__ Factors f,
                const __grid_constant__ Members m) {
  __shared__ BlockMax<kThreads> rows_max, transform_max;
  __shared__ uint32_t member;
  __shared__ bool common;
  griddepcontrol_launch_dependents();
  const uint32_t first = blockIdx.x * kThreads, unit = first + threadIdx.x;
  const bool inside = unit < units;
  const size_t row = size_t{unit / across} * kRows, col = size_t{unit % across} * N;
  const size_t at = row * m.cols + col;
  Vec<BF16, N> x[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) x[k] = load<BF16, N>(in, at + k * m.cols, inside);
  if (threadIdx.x < 32) {
    const uint32_t last = units - first < kThreads ? units - 1 : first + kThreads - 1;
    const size_t from = size_t{first / across} * kRows * m.cols;
    const size_t until = size_t{last / across} * kRows * m.cols;
    const uint32_t found = m.find_together(from);
    if (threadIdx.x == 0) {
      member = found;
      common = m.begin(found) <= from && until < m.end(found);
    }
  }
  AbsMax<BF16> plain;
#pragma unroll
  for (int k = 0; k < kRows; ++k) plain.add(x[k]);
  float most = 0.0f;
  if constexpr (kTransform) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float v[kRows];
      column(x, j, v);
      three_steps(v, f);
#pragma unroll
      for (int k = 0; k < 8; ++k) most = fmaxf(most, __fadd_rn(fabsf(v[k]), fabsf(v[k + 8])));
    }
  }
  const int row_bits = plain.bits(), transform_bits = kTransform ? rounded(most) : row_bits;
  rows_max.put(row_bits);
  if (kTransform) transform_max.put(transform_bits);
  __syncthreads();
  if (common) {
    if (threadIdx.x >= 32) return;
    const int row_most = rows_max.get();
    const int transform_most = kTransform ? transform_max.get() : row_most;
    griddepcontrol_wait();
    if (threadIdx.x != 0) return;
    raise(m.target(member, false), row_most);
    raise(m.target(member, true), transform_most);
  } else if (inside) {
    const size_t line = row * m.cols;
    const uint32_t own = m.find(line);
    griddepcontrol_wait();
    if (line < m.begin(own) || line >= m.end(own)) return;
    raise(m.target(own, false), row_bits);
    raise(m.target(own, true), transform_bits);
  }
}

template <int N>
NVTEXOutcome amax(const void *in, size_t rows, const Factors &f, bool transform, const Members &m,
                  cudaStream_t stream) {
  const size_t zero_blocks = ceil_div(m.count, kThreads);
  const NVTEXOutcome zeroed =
      launch(zero_kernel, dim3(static_cast<unsigned>(zero_blocks)), kThreads, stream, m);
  const size_t across = m.cols / N, units = rows / kRows * across;
  if (zeroed.status != NVTEX_BACKEND_OK || units == 0) return zeroed;
  const dim3 grid(static_cast<unsigned>(ceil_div(units, kThreads)));
  return launch_grid(true, transform ? amax_kernel<N, true> : amax_kernel<N, false>, grid, kThreads,
                     stream, in, static_cast<uint32_t>(units), static_cast<uint32_t>(across), f, m);
}

NVTEXOutcome hadamard_amax(const NVTEXHadamardAmaxArgs &a, cudaStream_t stream) {
  constexpr int kVec = 4;
  const bool vectors = aligned(a.input, 2 * kVec);
  const size_t width = vectors ? kVec : 1, count = a.group.num_tensors;
  if (a.rows / kRows * (a.cols / width) > 0xffffff00u || count > 0xffffff00u) {
    return unimplemented("the matrix has too many elements");
  }
  const auto run = [&](const void *in, size_t rows, const Members &m) {
    const Factors f = factors(a.sign_mask);
    return vectors ? amax<kVec>(in, rows, f, a.transform, m, stream)
                   : amax<1>(in, rows, f, a.transform, m, stream);
  };
  Members m = {};
  m.cols = a.cols;
  if (a.members == nullptr) {
    m.group = a.group;
    m.amax = a.amax, m.colwise = a.colwise_amax;
    m.count = static_cast<uint32_t>(count);
    m.each = a.rows / count * a.cols;
    return run(a.input, a.rows, m);
  }
  m.is_list = true;
  const char *in = static_cast<const char *>(a.input);
  for (size_t i = 0; i < a.num_members;) {
    size_t rows = 0;
    for (m.count = 0; i < a.num_members && m.count < kTargets; ++i) {
      const NVTEXHadamardMember &member = a.members[i];
      rows += member.rows;
      m.list[m.count++] = {rows * a.cols, member.amax, member.colwise_amax};
    }
    const NVTEXOutcome done = run(in, rows, m);
    if (done.status != NVTEX_BACKEND_OK) return done;
    in += rows * a.cols * BF16::kBytes;
  }
  return ok();
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_hadamard(const NVTEXHadamardArgs *args,
                                           cudaStream_t stream) noexcept {
  return nvte::hadamard(*args, stream);
}

extern "C" NVTEXOutcome nvte_cuda_hadamard_amax(const NVTEXHadamardAmaxArgs *args,
                                                cudaStream_t stream) noexcept {
  return nvte::hadamard_amax(*args, stream);
}
