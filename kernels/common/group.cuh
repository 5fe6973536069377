// Members of a group: which one a block works on, from dimensions that only the device knows. They
// are checked here, where they are read, so that no kernel leaves the buffers, whatever they are:
// the rules are those of NVTEXGroup.
#pragma once

#include "scale.cuh"
#include "nvte/backend/group.h"

namespace nvte {

// One matrix of a group. Dimensions of members have 32 bits: their arithmetic delays every block.
struct Member {
  size_t index;
  uint32_t rows, cols;
  uint32_t unit;  // The wanted unit of work, counted from the member's first.
};

template <class T>
__host__ __device__ constexpr T tiles_of(T n) {
  return n / 128 + (n % 128 != 0);
}

// Quotients of numbers below 2^31 by one that the host knows: a product, where a division takes
// some twenty instructions at the beginning of each block.
struct FastDivisor {
  uint32_t value = 1, factor = 1u << 31, shift = 31;

  FastDivisor() = default;
  explicit FastDivisor(uint32_t n) : value(n > 0 ? n : 1) {
    while ((uint64_t{1} << (shift - 31)) < value) ++shift;
    factor = static_cast<uint32_t>(((uint64_t{1} << shift) + value - 1) / value);
  }
  __device__ uint32_t quotient(uint32_t of) const {
    return static_cast<uint32_t>(uint64_t{of} * factor >> shift);
  }
};

// Lines or blocks, of `each` elements, rounded up to a multiple of `padding`.
template <class T>
__host__ __device__ constexpr T padded_count(T elements, uint32_t each, uint32_t padding) {
  const T unit = each * padding;
  return padding * (elements / unit + (elements % unit != 0));
}

// Both dimensions of a member's scale matrix with its padding. Its rows have a multiple of 4
// entries.
template <class T>
struct ScaleShape {
  T lines, pitch;
};
template <class T>
__host__ __device__ inline ScaleShape<T> scale_shape(NVTEScalingMode mode, bool colwise, T rows,
                                                     T cols) {
  const auto of = [&](auto scaling) {
    using S = decltype(scaling);
    const T down = colwise ? padded_count(rows, S::kLength, S::kBlockPadding)
                           : padded_count(rows, S::kLines, S::kLinePadding);
    const T across = colwise ? padded_count(cols, S::kLines, S::kLinePadding)
                             : padded_count(cols, S::kLength, S::kBlockPadding);
    // Whether the rows of the scale matrix belong to rows of the data.
    const bool upright = S::rows_are_blocks(colwise) == colwise;
    return ScaleShape<T>{upright ? down : across, ((upright ? across : down) + 3) / 4 * 4};
  };
  // All of them, which differ little: a choice among numbers is no branch.
  const ScaleShape<T> mx = of(Scaling<NVTE_MXFP8_1D_SCALING>()),
                      lines = of(Scaling<NVTE_BLOCK_SCALING_1D>()),
                      squares = of(Scaling<NVTE_BLOCK_SCALING_2D>());
  const auto choose = [&](T of_mx, T of_lines, T of_squares) {
    return mode == NVTE_MXFP8_1D_SCALING   ? of_mx
           : mode == NVTE_BLOCK_SCALING_1D ? of_lines
                                           : of_squares;
  };
  return {choose(mx.lines, lines.lines, squares.lines),
          choose(mx.pitch, lines.pitch, squares.pitch)};
}
// Elements from one row of it to the next.
__host__ __device__ inline uint32_t scale_pitch(NVTEScalingMode mode, bool colwise, uint32_t rows,
                                                uint32_t cols) {
  return scale_shape(mode, colwise, rows, cols).pitch;
}
// Entries of a member's scale matrix with its padding; none of a mode without blocks.
template <class T>
__host__ __device__ inline size_t scale_entries(NVTEScalingMode mode, bool colwise, T rows,
                                                T cols) {
  if (mode == NVTE_DELAYED_TENSOR_SCALING) return 0;
  const ScaleShape<T> shape = scale_shape(mode, colwise, rows, cols);
  return size_t{shape.lines} * shape.pitch;
}

// A total over members of a group in which one dimension varies: `each` times the sum of that
// dimension divided by 2^shift, then rounded up to a multiple of round + 1, a power of two.
struct MemberTotal {
  size_t each;
  uint32_t shift, round;

  __host__ __device__ uint32_t count(uint32_t dim) const {
    const uint32_t parts = (dim + ((1u << shift) - 1)) >> shift;
    return (parts + round) & ~round;
  }
};

// Of scale_entries(), where `other` is the dimension that all members share.
inline MemberTotal scale_total(NVTEScalingMode mode, bool colwise, bool rows_vary, uint32_t other) {
  if (mode == NVTE_DELAYED_TENSOR_SCALING) return {0, 0, 0};
  return with_scaling<NVTE_MXFP8_1D_SCALING, NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D>(
      mode, [&](auto scaling) {
        using S = decltype(scaling);
        const bool lines_vary = colwise != rows_vary;
        const bool pitch_varies = lines_vary == S::rows_are_blocks(colwise);
        const uint32_t each = lines_vary ? S::kLines : S::kLength;
        const uint32_t padding = lines_vary ? S::kLinePadding : S::kBlockPadding;
        uint32_t shared = lines_vary ? padded_count(other, S::kLength, S::kBlockPadding)
                                     : padded_count(other, S::kLines, S::kLinePadding);
        if (!pitch_varies) shared = (shared + 3) / 4 * 4;
        MemberTotal total = {size_t{padding} * shared, 0,
                             pitch_varies && padding % 4 != 0 ? 3u : 0};
        while (each * padding >> total.shift > 1) ++total.shift;
        return total;
      });
}

// A dimension from the device, 0 if it is not from 0 to `most`.
__device__ __forceinline__ uint32_t dim_within(int64_t dim, uint32_t most) {
  return static_cast<uint64_t>(dim) <= most ? static_cast<uint32_t>(dim) : 0;
}

// Where something of `length` begins that should begin at `at` but must end by `end`, which is not
// less than `length`. A negative position counts as one behind the end.
__host__ __device__ inline size_t place_within(size_t at, size_t length, size_t end) {
  const size_t last = end - length;
  return at < last ? at : last;
}

// Where the data of a member begin; without offsets at `before`.
__device__ __forceinline__ size_t data_begin(const NVTEXGroup &group, size_t index, size_t rows,
                                             size_t cols, size_t before) {
  if (group.offsets != nullptr) before = static_cast<size_t>(group.offsets[index]);
  return place_within(before, rows * cols, group.elements);
}

// Where the scales of a member begin that come after so many entries.
__device__ __forceinline__ size_t scales_begin(const NVTEXGroup &group, NVTEScalingMode mode,
                                               bool colwise, uint32_t rows, uint32_t cols,
                                               size_t before) {
  return place_within(before, scale_entries(mode, colwise, rows, cols),
                      colwise ? group.col_scales : group.row_scales);
}

// Whether the scales of a member alone fit those of the group, which only is in question if both
// dimensions are on the device.
__device__ __forceinline__ bool scales_fit(const NVTEXGroup &group, NVTEScalingMode mode,
                                           uint32_t rows, uint32_t cols) {
  return scale_entries(mode, false, rows, cols) <= group.row_scales &&
         scale_entries(mode, true, rows, cols) <= group.col_scales;
}

// Rows and columns of a member, of a group of `rows` and `cols`; of those from the device 32 bits.
struct MemberShape {
  size_t rows, cols;
};
__device__ __forceinline__ MemberShape member_shape(const NVTEXGroup &group, size_t rows,
                                                    size_t cols, size_t index) {
  const bool first = group.first_dims != nullptr, last = group.last_dims != nullptr;
  if (!first && !last) return {rows / group.num_tensors, cols};
  const auto most =
      static_cast<uint32_t>(group.most_dim < UINT32_MAX ? group.most_dim : UINT32_MAX);
  const MemberShape m = {first ? dim_within(group.first_dims[index], most) : rows,
                         last ? dim_within(group.last_dims[index], most) : cols};
  if (m.rows * m.cols > rows * cols) return {0, 0};
  return m;
}

// More tiles of `height` rows and `width` columns than the members can have unless the group is
// wrong, which then has no say in how many a kernel looks at; with room for the stride of a loop.
inline uint32_t most_tiles(const NVTEXGroup &group, size_t rows, size_t cols, size_t height = 128,
                           size_t width = 128) {
  const size_t n = group.num_tensors;
  const auto up = [](size_t a, size_t b) { return a / b + (a % b != 0); };
  const bool first = group.first_dims != nullptr, last = group.last_dims != nullptr;
  // Members with one row or one column have the most tiles.
  const size_t most = first && last ? rows * cols / (height < width ? height : width) * 4 + 4 + n
                      : first       ? (up(rows, height) + n) * up(cols, width)
                      : last        ? up(rows, height) * (up(cols, width) + n)
                                    : n * up(rows / n, height) * up(cols, width);
  constexpr size_t kEnd = (size_t{1} << 31) - (1u << 20);  // What FastDivisor divides.
  return static_cast<uint32_t>(most < kEnd ? most : kEnd);
}

// Whether at most one dimension varies, and sums of it have 32 bits.
inline bool one_varies(const NVTEXGroup &group, size_t rows, size_t cols) {
  const size_t most = UINT32_MAX - 128 * (group.num_tensors + 1);
  return (group.first_dims == nullptr || group.last_dims == nullptr) &&
         group.num_tensors < (1u << 24) && rows < most && cols < most;
}

// Where a member's tiles of 128 rows begin in the workspace for dbias, of a group of `rows`.
__device__ __forceinline__ size_t row_tiles_begin(const NVTEXGroup &group, size_t rows,
                                                  const Member &m, size_t before) {
  return place_within(before, tiles_of(m.rows), tiles_of(rows) + group.num_tensors);
}

__device__ __forceinline__ size_t warp_sum(size_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// For groups of which one_varies(): the member of line `wanted`, for all lanes of a full warp,
// false if there are not so many. A member has a line for each 2^shift of the dimension that
// varies, or less. `unit` becomes the line, `before` what each of `totals` is up to the member.
// Every block of a group begins with this, at the pace of a lone warp: few instructions and hardly
// a branch. Totals of whole members follow from the line's number; others take a second pass.
template <int kTotals>
__device__ __forceinline__ bool find_line(const NVTEXGroup &group, size_t rows, size_t cols,
                                          uint32_t wanted, uint32_t shift,
                                          const MemberTotal (&totals)[kTotals], Member &m,
                                          size_t (&before)[kTotals]) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const bool rows_vary = group.last_dims == nullptr;
  const int64_t *dims = rows_vary ? group.first_dims : group.last_dims;
  const auto most = static_cast<uint32_t>(group.most_dim);
  const MemberTotal line = {1, shift, 0};
  const uint32_t lane = threadIdx.x % 32;
  // Of which every dimension must be a multiple so that totals need no rounding.
  uint32_t partial = (1u << shift) - 1;
#pragma unroll
  for (int t = 0; t < kTotals; ++t) partial |= ((totals[t].round + 1) << totals[t].shift) - 1;
  uint32_t index = 0, own = 0, unit = 0;
  bool found = false, whole = true;
  if (dims == nullptr) {
    own = static_cast<uint32_t>(rows) / count;
    const uint32_t each = line.count(own);
    index = each != 0 ? wanted / each : count;
    unit = wanted - index * each;
    found = index < count, whole = (own & partial) == 0;
  } else {
    // A lane has a run of members, so that one prefix sum serves many.
    constexpr uint32_t kRun = 4;
    uint32_t left = wanted;  // Lines from the first of these members on.
#pragma unroll 1
    for (uint32_t first = 0; first < count; first += 32 * kRun) {
      const uint32_t run = first + lane * kRun;
      uint32_t dim[kRun], all = 0, bits = 0;
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) {
        dim[k] = run + k < count ? dim_within(dims[run + k], most) : 0;
        all += line.count(dim[k]), bits |= dim[k];
      }
      uint32_t until = all;
      // There are as many steps as lanes with members.
#pragma unroll 1
      for (uint32_t step = 1; step < 32 && step * kRun < count; step *= 2) {
        const uint32_t lower = __shfl_up_sync(0xffffffffu, until, step);
        if (lane >= step) until += lower;
      }
      const unsigned hits = __ballot_sync(0xffffffffu, left < until);
      whole = whole && !__any_sync(0xffffffffu, (bits & partial) != 0);
      if (hits != 0) {
        index = run, own = dim[0], unit = left - (until - all);
#pragma unroll
        for (uint32_t k = 0; k + 1 < kRun; ++k) {
          // Members that end before the wanted line; what comes after the one that does not stays.
          const uint32_t lines = line.count(dim[k]);
          if (index == run + k && unit >= lines) {
            index = run + k + 1, own = dim[k + 1], unit -= lines;
          }
        }
        const int owner = __ffs(static_cast<int>(hits)) - 1;
        index = __shfl_sync(0xffffffffu, index, owner);
        own = __shfl_sync(0xffffffffu, own, owner);
        unit = __shfl_sync(0xffffffffu, unit, owner);
        found = true;
        break;
      }
      left -= __shfl_sync(0xffffffffu, until, 31);
    }
  }
  m = {index, rows_vary ? own : static_cast<uint32_t>(rows),
       rows_vary ? static_cast<uint32_t>(cols) : own, unit};
  uint32_t parts[kTotals];
#pragma unroll
  for (int t = 0; t < kTotals; ++t) parts[t] = totals[t].count((wanted - unit) << shift);
  if (!whole) {
#pragma unroll
    for (int t = 0; t < kTotals; ++t) parts[t] = dims == nullptr ? index * totals[t].count(own) : 0;
#pragma unroll 1
    for (uint32_t i = lane; dims != nullptr && i < index; i += 32) {
      const uint32_t dim = dim_within(dims[i], most);
#pragma unroll
      for (int t = 0; t < kTotals; ++t) parts[t] += totals[t].count(dim);
    }
    if (dims != nullptr) {
#pragma unroll
      for (int t = 0; t < kTotals; ++t) parts[t] = __reduce_add_sync(0xffffffffu, parts[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTotals; ++t) before[t] = totals[t].each * parts[t];
  // Sums of wrong dimensions may not fit 32 bits.
  return found && unit < line.count(own);
}

// For other groups. Every member has units(rows, cols) units of work: finds the one of unit
// `wanted` likewise, and totals size(rows, cols, t) up to it. `rows` and `cols` are those of the
// group.
template <int kTotals, class Units, class Size>
__device__ __forceinline__ bool find_member(const NVTEXGroup &group, size_t rows, size_t cols,
                                            uint32_t wanted, const Units &units, const Size &size,
                                            Member &m, size_t (&before)[kTotals]) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const uint32_t lane = threadIdx.x % 32;
  bool found = false;
  m = {};
#pragma unroll
  for (int t = 0; t < kTotals; ++t) before[t] = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < count && !found; first += 32) {
    const uint32_t i = first + lane;
    const MemberShape shape = i < count ? member_shape(group, rows, cols, i) : MemberShape{0, 0};
    const auto r = static_cast<uint32_t>(shape.rows), c = static_cast<uint32_t>(shape.cols);
    const uint32_t own = i < count ? units(r, c) : 0;
    uint32_t until = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t lower = __shfl_up_sync(0xffffffffu, until, step);
      if (lane >= step) until += lower;
    }
    const unsigned hits = __ballot_sync(0xffffffffu, wanted < until);
    const uint32_t owner = hits != 0 ? __ffs(static_cast<int>(hits)) - 1 : 32;
    if (lane < owner && i < count) {
#pragma unroll
      for (int t = 0; t < kTotals; ++t) before[t] += size(r, c, t);
    }
    if (hits != 0) {
      m = {first + owner, __shfl_sync(0xffffffffu, r, owner), __shfl_sync(0xffffffffu, c, owner),
           wanted - __shfl_sync(0xffffffffu, until - own, owner)};
#pragma unroll
      for (int t = 0; t < kTotals; ++t) before[t] = warp_sum(before[t]);
      found = true;
    }
    wanted -= __shfl_sync(0xffffffffu, until, 31);
  }
  // Sums of wrong dimensions may not fit 32 bits.
  return found && m.unit < units(m.rows, m.cols);
}

}  // namespace nvte
