// Backward of attention for compute capability 9.0: 16-bit tensors, heads of 129 to 256 elements,
// but for plain ones of up to 192 elements of queries and keys and 128 of values, which
// backward_sm90.cu takes.
// The kernels are in backward_sm90/: long_consumer.cuh multiplies, long_kernel.cuh loads and rounds
// dq.
//
// The passes are those of shorter heads, as are dropout and ALiBi.
//
// H200, November 2026, BF16, 16 heads of 256, TFLOP/s, batch 2 of 8192 causal and 1 of 16384 full:
// 415 and 433. The L2 cache is 81 % busy then: 64 keys are
// few for the queries, do and dq that pass through it, and 128 have no room in registers.
//
// Instances of the main kernel: {BF16, F16} x {192 and 128 elements of keys and values with ALiBi
// or dropout or both, 256 and 256 with these or with nothing}.

#include "backward_sm90/long_kernel.cuh"

namespace nvte {
namespace sm90_backward {
namespace {

bool is_short(const NVTEXAttentionArgs &a) { return a.dim_qk <= 192 && a.dim_v <= 128; }

NVTEXOutcome run(const NVTEXAttentionArgs &a, const Instance &instance, cudaStream_t stream) {
  const Layout layout(a, instance.tile);
  Problem p = problem_of(a, instance.tile, layout);
  return run_passes(p, instance, layout, stream, [] { return ok(); });
}

}  // namespace

BlockShape long_shape(const NVTEXAttentionArgs &a) {
  const size_t dim_qk = is_short(a) ? 192 : 256, dim_v = is_short(a) ? 128 : 256;
  return {long_heads::kM, long_heads::kKeys, dim_qk, dim_v};
}

NVTEXOutcome run_long(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  return dispatch<BF16, F16>(a.q.dtype, [&](auto t) {
    using T = decltype(t);
    const auto with_extras = [&](auto extras) {
      return run(a, long_heads::instance<T, 256, 256, extras.value>(), stream);
    };
    if (is_short(a)) return run(a, long_heads::instance<T, 192, 128, true>(), stream);
    return a.alibi || a.dropout != 0.0f ? with_extras(std::true_type{})
                                        : with_extras(std::false_type{});
  });
}

}  // namespace sm90_backward
}  // namespace nvte
