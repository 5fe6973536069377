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
  size_t before;  // The total of what was asked for over the members before it.
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
  constexpr size_t kEnd = UINT32_MAX - (1u << 20);
  return static_cast<uint32_t>(most < kEnd ? most : kEnd);
}

// Whether at most one dimension varies, and sums of it have 32 bits.
inline bool one_varies(const NVTEXGroup &group, size_t rows, size_t cols) {
  const size_t most = UINT32_MAX - 128 * (group.num_tensors + 1);
  return (group.first_dims == nullptr || group.last_dims == nullptr) &&
         group.num_tensors < (1u << 24) && rows < most && cols < most;
}

// Tiles of 128 rows before a member in the workspace for dbias, of a group of `rows`.
__device__ __forceinline__ size_t row_tiles_begin(const NVTEXGroup &group, size_t rows,
                                                  const Member &m) {
  return place_within(m.before, tiles_of(m.rows), tiles_of(rows) + group.num_tensors);
}

__device__ __forceinline__ size_t warp_sum(size_t value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// For groups of which one_varies(): the member of line `wanted`, for all lanes of a full warp,
// false if there are not so many. A member has a line for each 2^shift of the dimension that
// varies, or less. `unit` becomes the line, `before` what `total` is up to the member. Every block
// begins with this, at the pace of a lone warp: few instructions and hardly a branch. H200, casts
// of bf16 in both directions, 8 members, GB/s by find_member() and by this: 1D 3394 and 3584, 2D
// 3497 and 3703, MXFP8 3142 and 3383; without the steps that 8 members do not need and without
// divisions, while no warp that looks up prefetches, 3552 and 3649, 3788 and 3820, 3399 and 3480.
__device__ __forceinline__ bool find_line(const NVTEXGroup &group, size_t rows, size_t cols,
                                          uint32_t wanted, uint32_t shift, const MemberTotal &total,
                                          Member &m) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const bool rows_vary = group.last_dims == nullptr;
  const int64_t *dims = rows_vary ? group.first_dims : group.last_dims;
  const auto most = static_cast<uint32_t>(group.most_dim);
  const MemberTotal lines = {1, shift, 0};
  uint32_t index, own, unit, before = 0;
  if (dims == nullptr) {
    own = static_cast<uint32_t>(rows) / count;
    const uint32_t each = lines.count(own);
    index = each != 0 ? wanted / each : count;
    if (index >= count) return false;
    unit = wanted - index * each, before = index * total.count(own);
  } else {
    // A lane has a run of members, so that one prefix sum serves many.
    constexpr uint32_t kRun = 4;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t first = lane * kRun;; first += 32 * kRun) {
      if (first - lane * kRun >= count) return false;
      uint32_t dim[kRun], until = 0;
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) {
        dim[k] = first + k < count ? dim_within(dims[first + k], most) : 0;
      }
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) until += lines.count(dim[k]);
      const uint32_t all = until;
      // There are as many steps as lanes with members.
#pragma unroll 1
      for (uint32_t step = 1; step < 32 && step * kRun < count; step *= 2) {
        const uint32_t lower = __shfl_up_sync(0xffffffffu, until, step);
        if (lane >= step) until += lower;
      }
      const unsigned hits = __ballot_sync(0xffffffffu, wanted < until);
      const uint32_t owner = hits != 0 ? __ffs(static_cast<int>(hits)) - 1 : 32;
      // Members that end at or before the wanted line: those of the owner's run, all of the lanes
      // before it.
      const uint32_t left = lane < owner ? ~0u : lane == owner ? wanted - (until - all) : 0;
      index = first, own = dim[0], unit = left;
      uint32_t behind = 0;
#pragma unroll
      for (uint32_t k = 0; k < kRun; ++k) {
        behind += lines.count(dim[k]);
        const bool passed = left >= behind;
        before += passed ? total.count(dim[k]) : 0;
        if (k + 1 < kRun && passed) index = first + k + 1, own = dim[k + 1], unit = left - behind;
      }
      if (hits != 0) {
        index = __shfl_sync(0xffffffffu, index, owner);
        own = __shfl_sync(0xffffffffu, own, owner);
        unit = __shfl_sync(0xffffffffu, unit, owner);
        before = __reduce_add_sync(0xffffffffu, before);
        break;
      }
      wanted -= __shfl_sync(0xffffffffu, until, 31);
    }
  }
  // Sums of wrong dimensions may not fit 32 bits.
  if (unit >= lines.count(own)) return false;
  m = {index, rows_vary ? own : static_cast<uint32_t>(rows),
       rows_vary ? static_cast<uint32_t>(cols) : own, unit, total.each * before};
  return true;
}

// For other groups. Every member has units(rows, cols) units of work: finds the one of unit
// `wanted` likewise, and totals size(rows, cols) up to it. `rows` and `cols` are those of the
// group. Several warps total several sizes faster than one.
template <class Units, class Size>
__device__ __forceinline__ bool find_member(const NVTEXGroup &group, size_t rows, size_t cols,
                                            uint32_t wanted, const Units &units, const Size &size,
                                            Member &m) {
  const auto count = static_cast<uint32_t>(group.num_tensors);
  const uint32_t lane = threadIdx.x % 32;
  size_t before = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < count; first += 32) {
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
    if (lane < owner && i < count) before += size(r, c);
    if (hits != 0) {
      m.index = first + owner;
      m.rows = __shfl_sync(0xffffffffu, r, owner);
      m.cols = __shfl_sync(0xffffffffu, c, owner);
      m.unit = wanted - __shfl_sync(0xffffffffu, until - own, owner);
      m.before = warp_sum(before);
      // Sums of wrong dimensions may not fit 32 bits.
      return m.unit < units(m.rows, m.cols);
    }
    wanted -= __shfl_sync(0xffffffffu, until, 31);
  }
  return false;
}

}  // namespace nvte
