// LayerNorm and RMSNorm, forward: which of the kernels computes what, and what follows.

#include "forward.cuh"
#include "nvte/backend/transpose.h"

extern "C" NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *, cudaStream_t) noexcept;

namespace nvte {
namespace {

using namespace norm;

NVTEXOutcome norm_forward(const NVTEXNormForwardArgs &a, cudaStream_t stream) {
  const NVTEXCast &cast = a.cast;
  const bool mx = cast.mode == NVTE_MXFP8_1D_SCALING, square = cast.mode == NVTE_BLOCK_SCALING_2D;
  const bool per_tensor = cast.mode == NVTE_DELAYED_TENSOR_SCALING;
  if (cast.cols > (1 << 30)) return unimplemented("more than 2^30 columns");
  ForwardArgs args = {};
  args.norm = a;
  if (square) args.norm.cast.rowwise = nullptr;
  args.layout.cols = static_cast<int>(cast.cols);
  args.by_cols = FloatDivisor(static_cast<float>(cast.cols));
  args.layout.adjacent = !per_tensor;
  args.rows = mx && cast.rowwise != nullptr ? ceil_div(cast.rows, 128) * 128 : cast.rows;
  const float fp8_max = cast.output_dtype == kNVTEFloat8E5M2 ? 57344.0f : 448.0f;
  args.scales = scales_of(cast, false);
  args.float_scale = {fp8_max, 0.0f, FLT_MAX, ~0u};
  args.mx_scale = {1.0f / fp8_max};
  args.block = with_fp8_scaling(
      cast.mode, [](auto scaling) { return static_cast<int>(decltype(scaling)::kLength); });
  bool vectorised = cast.cols % kVec == 0;
  for (const void *p : {cast.input, a.residual, static_cast<const void *>(a.sum), a.gamma.data,
                        a.beta, static_cast<const void *>(cast.rowwise)}) {
    vectorised = vectorised && aligned(p, 16);
  }
  const NVTEDType input = cast.input_dtype, output = cast.output_dtype;
  const bool held = a.residual == nullptr &&
                    (output == input || output == kNVTEFloat8E4M3 || output == kNVTEFloat8E5M2);
  const NVTEXOutcome rows = dispatch_bf16_or_widened(input, [&](auto in) {
    if (!held) return forward_any_length(args, vectorised, stream);
    return kIsWidened<decltype(in)> ? forward_rows_widened(args, vectorised, stream)
                                    : forward_rows_bf16(args, vectorised, stream);
  });
  if (rows.status != NVTEX_BACKEND_OK || cast.rows == 0) return rows;
  if (per_tensor && cast.colwise != nullptr) {
    const size_t size = cast.output_dtype == kNVTEFloat32 ? 4
                        : cast.output_dtype == kNVTEFloat16 || cast.output_dtype == kNVTEBFloat16
                            ? 2
                            : 1;
    const NVTEXTransposeArgs transpose = {cast.rowwise, cast.colwise, nullptr,
                                          cast.rows,    cast.cols,    size};
    return nvte_cuda_transpose(&transpose, stream);
  }
  if (per_tensor || (cast.colwise == nullptr && !square)) return ok();
  return forward_columns(a, args.float_scale, args.mx_scale, stream);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_norm_forward(const NVTEXNormForwardArgs *args,
                                               cudaStream_t stream) noexcept {
  return nvte::norm_forward(*args, stream);
}
