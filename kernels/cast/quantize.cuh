// Launches of the casts to FP8 in tiles. Each scaling mode has a source of its own, in which the
// kernels for it are compiled.
#pragma once

#include <cfloat>

#include "quantize_tile.cuh"

namespace nvte {

// The largest finite value of an input type.
inline float largest_of(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? FLT_MAX : dtype == kNVTEFloat16 ? 65504.0f : 0x1.FEp127f;
}

inline bool is_e5m2(const NVTEXCast &q) { return q.output_dtype == kNVTEFloat8E5M2; }

inline void make_scale(const NVTEXCast &, TensorScale *) {}
inline void make_scale(const NVTEXCast &q, FloatScale *scale) {
  *scale = {is_e5m2(q) ? 57344.0f : 448.0f, q.epsilon, largest_of(q.input_dtype),
            q.pow2 ? 0xff800000 : ~0u};
}
inline void make_scale(const NVTEXCast &q, MxScale *scale) {
  *scale = {1.0f / (is_e5m2(q) ? 57344.0f : 448.0f)};
}

template <class Scale, NVTEXForm kForm>
TileCastArgs<Scale> tile_args(const NVTEXCast &q) {
  TileCastArgs<Scale> args = {
      q, {}, {}, Function(q.fusion), is_e5m2(q), false, false, {}, 0, 0, 0, 0, false, {}, {}};
  make_scale(q, &args.scale);
  args.down = q.rowwise == nullptr && !Scale::kMx;
  // A block of elements must not have columns of both halves.
  const size_t width = q.cols / kHalvesOf<kForm>;
  args.split = width != q.cols && (std::is_same_v<Scale, TensorScale> || width % kTile == 0);
  return args;
}

template <class In, class Scale, bool kSquare, NVTEXForm kForm, bool kLoop>
NVTEXOutcome launch_group(const TileCastArgs<Scale> &args, size_t blocks, cudaStream_t stream) {
  constexpr size_t kQueue = kForm == NVTEX_FORM_PLAIN ? 0 : sizeof(RowQueue<In, kForm>);
  return launch_shared(quantize_group_kernel<In, Scale, kSquare, kForm, kLoop>,
                       dim3(static_cast<unsigned>(blocks)), kThreads, kQueue, stream, args);
}

// The tiles of a lone matrix.
template <class In, class Scale, NVTEXForm kForm>
NVTEXOutcome set_tiles(TileCastArgs<Scale> &args) {
  const NVTEXCast &q = args.q;
  const size_t across = tiles_of(args.split ? q.cols / 2 : q.cols), down = tiles_of(q.rows);
  if (across > kMaxBlocks / down) return unimplemented("the matrix has too many tiles");
  set_data<In, Scale, kForm>(args.matrix, q, 0, q.rows, q.cols, 0);
  args.matrix.row_scales = q.rowwise_scale_inv;
  args.matrix.col_scales = q.colwise_scale_inv;
  args.matrix.row_stride = q.rowwise_scale_stride;
  args.matrix.col_stride = q.colwise_scale_stride;
  args.tiles_per_line = FastDivisor(static_cast<uint32_t>(args.down ? down : across));
  args.tiles = static_cast<uint32_t>(across * down);
  args.ahead = args.tiles;
  return ok();
}

template <class In, class Scale, bool kSquare, NVTEXForm kForm>
NVTEXOutcome quantize_single(const NVTEXCast &q, cudaStream_t stream) {
  auto args = tile_args<Scale, kForm>(q);
  const NVTEXOutcome set = set_tiles<In, Scale, kForm>(args);
  if (set.status != NVTEX_BACKEND_OK) return set;
  size_t blocks = args.tiles;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const auto processors = static_cast<unsigned>(device.sm_count);
  if constexpr (kForm == NVTEX_FORM_PLAIN) {
    if (Scale::kMx && !kSquare) args.ahead = 2 * processors;
  } else if (kPairs<In> && blocks > size_t{4} * processors) {
    // A block has two, and while one is worked on the next one comes: H200, bf16 8192 x 8192 in
    // mode 0, GB/s, SwiGLU 3698 instead of 3494, its derivative 3738 of 3592, that of GELU 3421 of
    // 3330.
    blocks = ceil_div(blocks, 2);
  }
  if constexpr (kLoneInLoop<In, kForm>) {
    args.end_tile = args.tiles;
    return launch_group<In, Scale, kSquare, kForm, true>(args, blocks, stream);
  } else {
    constexpr size_t kQueue = kForm == NVTEX_FORM_PLAIN ? 0 : sizeof(RowQueue<In, kForm>);
    return launch_shared(quantize_kernel<In, Scale, kSquare, kForm>,
                         dim3(static_cast<unsigned>(blocks)), kThreads, kQueue, stream, args);
  }
}

// A block for each tile that the group has if no tile is partial, then a loop over the rest, often
// none: blocks without a tile are not free.
template <class In, class Scale, bool kSquare, NVTEXForm kForm>
NVTEXOutcome quantize_group(const NVTEXCast &q, cudaStream_t stream) {
  auto args = tile_args<Scale, kForm>(q);
  const NVTEXGroup &group = q.group;
  const bool uniform = group.first_dims == nullptr && group.last_dims == nullptr;
  const bool varying = group.first_dims != nullptr && group.last_dims != nullptr;
  // The kernels look up dimensions of members with 32 bits.
  if (!varying && (q.rows > UINT32_MAX || q.cols > UINT32_MAX)) {
    return unimplemented("the group is too large");
  }
  args.lines = one_varies(group, q.rows, q.cols);
  if (args.lines) {
    const bool rows_vary = group.last_dims == nullptr;
    const auto other = static_cast<uint32_t>(rows_vary ? q.cols : q.rows);
    args.tiles_across = FastDivisor(tiles_of(other));
    args.totals[0] = {other, 0, 0};
    args.totals[1] = {1, 7, 0};
    for (int i = 2; i < 4; ++i) {
      args.totals[i] = scale_total(kModeOf<Scale, kSquare>, i == 3, rows_vary, other);
    }
  }
  args.tiles_per_line = FastDivisor(static_cast<uint32_t>(tiles_of(args.down ? q.rows : q.cols)));
  size_t full = tiles_of(q.rows) * tiles_of(q.cols);
  if (uniform) {
    full = group.num_tensors * tiles_of(q.rows / group.num_tensors) * tiles_of(q.cols);
  } else if (varying) {
    full = ceil_div(q.rows * q.cols, kTile * kTile);
  }
  args.end_tile = most_tiles(group, q.rows, q.cols);
  if (full > kMaxBlocks) return unimplemented("the group has too many tiles");
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  auto blocks = static_cast<unsigned>(device.sm_count);
  if constexpr (!kLoopAlone<In, Scale, kSquare, kForm>) {
    const NVTEXOutcome first = launch_group<In, Scale, kSquare, kForm, false>(args, full, stream);
    if (uniform || first.status != NVTEX_BACKEND_OK) return first;
    args.first_tile = static_cast<uint32_t>(full);
    blocks *= 2;
  }
  return launch_group<In, Scale, kSquare, kForm, true>(args, blocks, stream);
}

template <class Scale, bool kSquare>
NVTEXOutcome quantize_tiles(const NVTEXCast &q, cudaStream_t stream) {
  const auto launch = [&](auto in, auto form) {
    using In = decltype(in);
    constexpr NVTEXForm kForm = decltype(form)::value;
    if (q.group.num_tensors == 0) return quantize_single<In, Scale, kSquare, kForm>(q, stream);
    if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
      return unimplemented("no CUDA kernel for gated derivatives of groups");
    } else {
      return quantize_group<In, Scale, kSquare, kForm>(q, stream);
    }
  };
  return dispatch_bf16_or_widened(q.input_dtype, [&](auto in) {
    return dispatch_form(q.fusion.form, [&](auto form) {
      // Only weights have square blocks, and they are cast without a function.
      constexpr bool kRare = kSquare && decltype(form)::value != NVTEX_FORM_PLAIN;
      return launch(std::conditional_t<kRare, Widened, decltype(in)>{}, form);
    });
  });
}

}  // namespace nvte
