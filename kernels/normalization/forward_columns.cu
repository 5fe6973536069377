// Casts of norms in blocks along the columns and in square blocks: the values are computed again
// from mu and rsigma, tile by tile.

#include "forward.cuh"

namespace nvte {
namespace norm {
namespace {

struct TileArgs {
  NVTEXNormForwardArgs norm;
  ScaleMatrix row_scales, col_scales;
  FloatScale float_scale;
  MxScale mx_scale;
};

constexpr int kTile = 128, kTileThreads = 256, kPitch = kTile + 1;
constexpr int kSpans = kTile / 32;  // Spans of 32 rows each, the blocks of MXFP8.

// A tile of 128 x 128 values, computed again from mu and rsigma. A thread has a column, and half of
// the rows.
template <class Out>
__global__ void __launch_bounds__(kTileThreads, 1)
    tile_kernel(const __grid_constant__ TileArgs args) {
  extern __shared__ float tile[];  // [kTile][kPitch]
  __shared__ float maxima[kSpans][kTile], factors[kSpans][kTile];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const NVTEXNormForwardArgs &a = args.norm;
  const NVTEXCast &cast = a.cast;
  const bool mx = cast.mode == NVTE_MXFP8_1D_SCALING, square = cast.mode == NVTE_BLOCK_SCALING_2D;
  const size_t across = (cast.cols + kTile - 1) / kTile;
  const size_t row0 = blockIdx.x / across * kTile, col0 = blockIdx.x % across * kTile;
  const int height = row0 + kTile < cast.rows ? kTile : static_cast<int>(cast.rows - row0);
  const int width = col0 + kTile < cast.cols ? kTile : static_cast<int>(cast.cols - col0);

  const int c = threadIdx.x % kTile, half = threadIdx.x / kTile;
  const size_t col = col0 + c;
  const void *x = a.residual != nullptr ? a.sum : cast.input;
  float g = 0.0f, b = 0.0f;
  if (c < width) {
    g = scalar(a.gamma.data, a.gamma.dtype, col);
    if (a.gamma.zero_centered) g += 1.0f;
    if (a.gamma.rounded) g = rounded(g, a.gamma.dtype);
    if (a.beta != nullptr) b = scalar(a.beta, a.gamma.dtype, col);
  }
  for (int span = half * 2; span < half * 2 + 2; ++span) {
    float most = 0.0f;
    for (int r = span * 32; r < span * 32 + 32; ++r) {
      float v = 0.0f;
      if (c < width && r < height) {
        const size_t row = row0 + r;
        const float y = a.rsigma[row] * (scalar(x, cast.input_dtype, row * cast.cols + col) -
                                         (a.mu != nullptr ? a.mu[row] : 0.0f));
        v = a.beta != nullptr ? g * y + b : g * y;
      }
      tile[r * kPitch + c] = v;
      most = fmaxf(most, fabsf(v));
    }
    maxima[span][c] = most;
  }
  __syncthreads();

  if (threadIdx.x < kTile) {
    float column = 0.0f;
    for (int span = 0; span < kSpans; ++span) column = fmaxf(column, maxima[span][c]);
    if (square) {
      for (int other = 0; other < kTile; ++other) {
        for (int span = 0; span < kSpans; ++span) column = fmaxf(column, maxima[span][other]);
      }
    }
    for (int span = 0; span < kSpans; ++span) {
      if (mx) {
        const bool inside = c < width && span * 32 < height;
        uint8_t entry;
        factors[span][c] = args.mx_scale.factor(maxima[span][c], entry);
        static_cast<uint8_t *>(
            args.col_scales.entries)[args.col_scales.index(col, row0 / 32 + span)] =
            inside ? entry : 0;
      } else {
        float entry;
        factors[span][c] = args.float_scale.factor(column, entry);
        if (span != 0 || c >= width || (square && c != 0)) continue;
        if (cast.colwise != nullptr) {
          static_cast<float *>(args.col_scales.entries)[args.col_scales.index(col, row0 / kTile)] =
              entry;
        }
        if (square && cast.rowwise != nullptr) {
          static_cast<float *>(args.row_scales.entries)[args.row_scales.index(row0, col0 / kTile)] =
              entry;
        }
      }
    }
    if (mx && cast.rowwise == nullptr && cast.amax != nullptr) {
      const int bits = warp_max(__float_as_int(column));
      if (c % 32 == 0) atomicMax(reinterpret_cast<int *>(cast.amax), bits);
    }
  }
  __syncthreads();

  auto code = [&](int r, int column) {
    const float four[4] = {__fmul_rn(tile[r * kPitch + column], factors[r / 32][column])};
    return static_cast<uint8_t>(Out::from_float(four));
  };
  uint8_t *const by_row = static_cast<uint8_t *>(mx       ? cast.colwise
                                                 : square ? cast.rowwise
                                                          : nullptr);
  if (by_row != nullptr && c < width) {
    for (int r = half; r < height; r += 2) by_row[(row0 + r) * cast.cols + col] = code(r, c);
  }
  if (!mx && cast.colwise != nullptr && c < height) {
    // In this loop c is a row.
    for (int i = half; i < width; i += 2) {
      static_cast<uint8_t *>(cast.colwise)[(col0 + i) * cast.rows + row0 + c] = code(c, i);
    }
  }
}

}  // namespace

NVTEXOutcome forward_columns(const NVTEXNormForwardArgs &a, const FloatScale &float_scale,
                             const MxScale &mx_scale, cudaStream_t stream) {
  const NVTEXCast &cast = a.cast;
  const TileArgs tile = {a, scales_of(cast, false), scales_of(cast, true), float_scale, mx_scale};
  const size_t tiles = ceil_div(cast.rows, kTile) * ceil_div(cast.cols, kTile);
  if (tiles > kMaxBlocks) return unimplemented("the matrix has too many tiles");
  return dispatch<E4M3, E5M2>(cast.output_dtype, [&](auto out) {
    return launch_shared(tile_kernel<decltype(out)>, dim3(static_cast<unsigned>(tiles)),
                         kTileThreads, sizeof(float) * kTile * kPitch, stream, tile);
  });
}

}  // namespace norm
}  // namespace nvte
