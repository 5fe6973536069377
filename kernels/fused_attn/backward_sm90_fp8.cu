// Backward of attention for compute capability 9.0: q, k and v of E4M3, do of E4M3 or E5M2, heads
// of up to 128 elements.
//
// All products are of FP8: p and ds are rounded to it in registers, on the way from one product to
// the next. Those that sum over queries or keys need q, do and K with the elements of a head as
// rows: keys_kernel and rows_kernel write them so, see fp8_layout.cuh. p stays float32 until ds is
// there. Both come multiplied by their scales, which are positive.
//
// The scales of tensors are read from memory, and the dtype of results is known at run time only.
//
// H200, November 2026, do of E5M2, 16 heads of 128, TFLOP/s of all kernels, batch 2 of 8192 causal,
// 1 of 16384 causal and full: 720, 795 and 846, where a kernel before that clears all sums of dq
// had 702, 786 and 838; in another run 717, 789 and 839. Results stored in pairs of codes, which
// are less than a sector, took 9 us of a block's 120: 682, 773 and 833. Blocks of threads that take
// one block of keys after the other: 662, 722 and 753, their loop alone 11 % slower. Against 638,
// 752 and 805 of an earlier form: with dq one round after ds instead of two 636, 745 and 789; with
// dq added by the warps themselves besides 612, 702 and 754; with copies of q, k and do in half
// precision, whose products for dv, dk and dq are half as fast, 556, 653 and 693. The general
// kernel has 70 and 77. Tensor cores are 40 % busy: two warpgroups are few to hide that scores,
// exponentials, dp and ds wait for one another, and accumulators leave no registers for more.
//
// Instances of gradient_kernel: {64, 128} elements of a head x {no dropout, dropout} x do of {E4M3,
// E5M2}.

#include "backward_sm90/fp8_layout.cuh"

namespace nvte {
namespace {

using namespace sm90_backward;
using namespace sm90_backward::fp8_heads;

// Where the images lie in the workspace, after what all tensors need.
struct Images {
  size_t key_blocks, q, o, key, bytes;

  Images(const NVTEXAttentionArgs &a, const BlockShape &tile, const Layout &layout)
      : key_blocks(key_head_blocks(a)), q(layout.bytes) {
    const size_t of_queries = layout.blocks * a.q_side.heads * tile.queries * tile.dim_qk;
    o = q + of_queries;
    key = o + of_queries;
    bytes = key + key_blocks * a.kv_side.heads * tile.keys * tile.dim_qk;
  }
};

// Calls f with what the instance for these arguments is made of: the elements of a head, whether
// there is dropout, and the tag of do.
template <class F>
auto with_instance(const NVTEXAttentionArgs &a, F &&f) {
  const auto with_dim = [&](auto dropout, auto code) {
    return a.dim_qk <= 64 && a.dim_v <= 64 ? f(std::integral_constant<int, 64>{}, dropout, code)
                                           : f(std::integral_constant<int, 128>{}, dropout, code);
  };
  const auto with_dropout = [&](auto code) {
    return a.dropout != 0.0f ? with_dim(std::true_type{}, code) : with_dim(std::false_type{}, code);
  };
  return a.d_o.dtype == kNVTEFloat8E4M3 ? with_dropout(E4M3{}) : with_dropout(E5M2{});
}

template <int kD>
NVTEXOutcome run(const NVTEXAttentionArgs &a, const Instance &instance, cudaStream_t stream) {
  const Layout layout(a, instance.tile);
  const Images images(a, instance.tile, layout);
  if (a.workspace_bytes < images.bytes) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "the workspace is smaller than planned"};
  }
  Problem p = problem_of(a, instance.tile, layout);
  p.scale_d = a.scale;
  uint8_t *workspace = static_cast<uint8_t *>(a.workspace);
  p.q_image = workspace + images.q;
  p.o_image = workspace + images.o;
  p.key_image = workspace + images.key;
  p.key_head_blocks = static_cast<int>(images.key_blocks);
  const size_t blocks = a.batch * a.kv_side.heads * static_cast<size_t>(p.key_blocks);
  const NVTEXOutcome o =
      launch(keys_kernel_of<kD>(), dim3(static_cast<unsigned>(blocks ? blocks : 1)), kHelperThreads,
             stream, p);
  if (o.status != NVTEX_BACKEND_OK) return o;
  return run_passes(p, instance, layout, stream, [] { return ok(); });
}

}  // namespace
}  // namespace nvte

// The workspace: that of 16-bit tensors, and the images.
const char *nvte_attention_sm90_fp8_backward_reject(const NVTEXAttentionArgs *args,
                                                    size_t *workspace) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  *workspace = 0;
  if (const char *reason = hopper_reject(a)) return reason;
  if (!is_fp8(a.q.dtype)) return "dtype; nearest: FP8";
  for (const NVTEXAttentionTensor *x : {&a.q, &a.k, &a.v}) {
    if (x->dtype != kNVTEFloat8E4M3) return "q, k or v of E5M2; nearest: E4M3";
  }
  if (a.dim_qk > 128 || a.dim_v > 128) return "a head of more than 128 elements; nearest: 128";
  if (a.alibi) return "ALiBi; nearest: without";
  return with_instance(a, [&](auto dim, auto, auto) {
    constexpr BlockShape kShape = kTile<dim.value>;
    const char *reason = tiles_reject(a, kShape, workspace);
    if (reason == nullptr) *workspace = Images(a, kShape, Layout(a, kShape)).bytes;
    return reason;
  });
}

NVTEXOutcome nvte_attention_sm90_fp8_backward(const NVTEXAttentionArgs *args,
                                              cudaStream_t stream) noexcept {
  using namespace nvte;
  return with_instance(*args, [&](auto dim, auto dropout, auto code) {
    return run<dim.value>(*args, instance<dim.value, dropout.value, decltype(code)>(), stream);
  });
}
