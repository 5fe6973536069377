// Casts of groups to 16 or 32 bits: of the members' elements or a function of them, tile by tile.

#include "quantize.cuh"

namespace nvte {
namespace {

// Calls `f` with the output's type.
template <class F>
__device__ __forceinline__ void with_wide(NVTEDType dtype, const F &f) {
  if (dtype == kNVTEFloat32) {
    f(F32{});
  } else if (dtype == kNVTEFloat16) {
    f(F16{});
  } else {
    f(BF16{});
  }
}

template <class In, NVTEXForm kForm>
__device__ __forceinline__ void cast_wide(const TileCastArgs<TensorScale> &args, const Matrix &m,
                                          size_t row0, size_t col0, RowQueue<In, kForm> &queue) {
  const NVTEXCast &q = args.q;
  const ThreadTile my(m, row0, col0, m.cols);
  const auto consume = [&](float (&v)[1][kVec], int p) {
    if (p >= my.rows) return;
    const size_t row = row0 + my.row + p, col = col0 + my.col;
    with_wide(q.output_dtype, [&](auto out) {
      using Out = decltype(out);
      const Vec<Out, kVec> y = from_float<Out>(v[0]);
      const size_t at = m.at + row * m.cols + col;
      if (q.rowwise != nullptr) {
        if (m.row_vec) {
          if (my.cols > 0) store(q.rowwise, at, y);
        } else {
          store_some(q.rowwise, at, my.cols, y);
        }
      }
      if (q.colwise != nullptr) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const size_t to = m.at + (col + i) * m.rows + row;
          if (i < my.cols) store(q.colwise, to, from_float<Out>({v[0][i]}));
        }
      }
    });
  };
  with_rows<In, kForm>(args, m, my, queue, [&](const auto &request) {
    produce<In, kForm>(args, m, my, queue, request, consume);
  });
}

template <class In, NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads, 1)
    wide_kernel(const __grid_constant__ TileCastArgs<TensorScale> args) {
  __shared__ Matrix matrix;
  __shared__ size_t row0, col0;
  __shared__ bool any;
  extern __shared__ __align__(128) uint4 memory[];
  auto &queue = *reinterpret_cast<RowQueue<In, kForm> *>(memory);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXCast &q = args.q;
  if (q.noop != nullptr && *q.noop == 1.0f) return;
  for (uint32_t tile = blockIdx.x; tile < args.end_tile; tile += gridDim.x) {
    if (threadIdx.x < 32) {
      const auto tiles = [](uint32_t rows, uint32_t cols) {
        return tiles_of(rows) * tiles_of(cols);
      };
      const auto size = [](uint32_t rows, uint32_t cols, int) { return size_t{rows} * cols; };
      Member member;
      size_t before[1];
      const bool found = find_member(q.group, q.rows, q.cols, tile, tiles, size, member, before);
      if (threadIdx.x == 0) {
        any = found;
        if (found) {
          const size_t at = data_begin(q.group, member.index, member.rows, member.cols, before[0]);
          const uint32_t across = tiles_of(member.cols);
          row0 = size_t{member.unit / across} * kTile;
          col0 = size_t{member.unit % across} * kTile;
          set_data<In, TensorScale, kForm>(matrix, q, member.index, member.rows, member.cols, at);
          const size_t width = q.output_dtype == kNVTEFloat32 ? 4 : 2;
          matrix.row_vec = member.cols % kVec == 0 && aligned_to(q.rowwise, at * width, 16);
        }
      }
    }
    __syncthreads();
    if (!any) return;
    cast_wide<In, kForm>(args, matrix, row0, col0, queue);
    __syncthreads();
  }
}

}  // namespace

NVTEXOutcome quantize_group_wide(const NVTEXCast &q, cudaStream_t stream) {
  if (q.rows > UINT32_MAX || q.cols > UINT32_MAX) return unimplemented("the group is too large");
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  // A block looks up its member before it loads: others fill the time.
  const dim3 grid(static_cast<unsigned>(4 * device.sm_count));
  return dispatch_bf16_or_widened(q.input_dtype, [&](auto in) {
    return dispatch_form(q.fusion.form, [&](auto form) {
      using In = decltype(in);
      constexpr NVTEXForm kForm = decltype(form)::value;
      if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
        return unimplemented("no CUDA kernel for gated derivatives of groups");
      } else {
        auto args = tile_args<TensorScale, kForm>(q);
        args.end_tile = most_tiles(q.group, q.rows, q.cols);
        return launch_shared(wide_kernel<In, kForm>, grid, kThreads, sizeof(RowQueue<In, kForm>),
                             stream, args);
      }
    });
  });
}

}  // namespace nvte
