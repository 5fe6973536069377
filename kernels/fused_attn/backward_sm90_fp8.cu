// Backward of attention for compute capability 9.0: q, k and v of E4M3, do of E4M3 or E5M2, heads
// of up to 128 elements.
//
// FP8 products read what they sum over as the inner dimension of both operands. Scores and the
// gradients of probabilities sum over elements of a head and take the tensors as they are. dv, dk
// and dq sum over queries or keys: they would need q, do and K transposed too, and p and ds with
// the elements of each row permuted. They are products of half precision, which has every value of
// FP8: widen_kernel makes contiguous copies of q, k and do, and p and ds are rounded to FP8 in
// registers on the way to half precision. p stays float32 until ds is there. Both come multiplied
// by their scales, which are positive.
//
// The kernels are those of 16-bit tensors. The scales of tensors are read from memory, and the
// dtype of results is known at run time only.
//
// H200, November 2026, do of E5M2, 16 heads of 128, TFLOP/s, batch 2 of 8192 causal and 1 of 16384
// full, and 32 heads of 64, batch 2 of 8192 causal: 545, 635 and 398. Without scales in the
// statistics and D: 545, 620 and 378; with all products of half precision besides: 480, 560 and
// 341. The general kernel has 70, 77 and 42. Issue slots are 30 % busy, tensor cores 47 % and L2 57
// %: the rest of the time goes to waiting for one another.
//
// Instances of gradient_kernel: {64, 128} elements of a head x {no dropout, dropout} x do of {E4M3,
// E5M2}.

#include <algorithm>

#include "backward_sm90/short_instance.cuh"
#include "common/fp8.cuh"
#include "common/ptx.cuh"

namespace nvte {
namespace {

using namespace sm90_backward;

constexpr int kWidenThreads = 256, kWidenRows = 16;

// A tensor and its copy.
struct Widened {
  NVTEXAttentionTensor from;
  uint16_t *to;  // [tokens, heads, dim]
  int64_t tokens;
  int length;  // Tokens of a sequence; 0: the tensor is ragged.
  int heads, dim;

  size_t bytes() const {
    return static_cast<size_t>(tokens) * static_cast<size_t>(heads) * static_cast<size_t>(dim) * 2;
  }
  // A tensor of half precision with the shape of `from`.
  NVTEXAttentionTensor copy() const {
    NVTEXAttentionTensor t = from;
    t.data = to;
    t.dtype = kNVTEFloat16;
    t.head = dim;
    t.row = int64_t{heads} * dim;
    t.batch = length * t.row;
    return t;
  }
};

struct WidenArgs {
  Widened tensors[3];
  float *amax[4];  // Maxima that are set to 0.
};

// A block takes kWidenRows tokens of a tensor.
__global__ void __launch_bounds__(kWidenThreads)
    widen_kernel(const __grid_constant__ WidenArgs args) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned thread = threadIdx.x;
  if (blockIdx.x == 0 && blockIdx.y == 0 && thread < 4 && args.amax[thread] != nullptr) {
    *args.amax[thread] = 0.0f;
  }
  const Widened &t = args.tensors[blockIdx.y];
  const int64_t first = int64_t{blockIdx.x} * kWidenRows;
  if (first >= t.tokens) return;
  const unsigned units = static_cast<unsigned>(t.dim) / 8;
  const unsigned of_token = units * static_cast<unsigned>(t.heads);
  const unsigned rows = static_cast<unsigned>(min(int64_t{kWidenRows}, t.tokens - first));
  const unsigned length = static_cast<unsigned>(t.length);
  const int64_t sequence = length != 0 ? first / length : 0;
  const unsigned row = length != 0 ? static_cast<unsigned>(first % length) : 0;
  const auto *from = static_cast<const uint8_t *>(t.from.data) + sequence * t.from.batch +
                     (length != 0 ? 0 : first * t.from.row);
  uint16_t *to = t.to + first * of_token * 8;
  const bool e4m3 = t.from.dtype == kNVTEFloat8E4M3;
#pragma unroll 4
  for (unsigned i = thread; i < rows * of_token; i += kWidenThreads) {
    const unsigned token = i / of_token, head = i % of_token / units, unit = i % units;
    // The token is in the sequence of the first one, or in one after it.
    const unsigned r = row + token, further = length != 0 ? r / length : 0;
    const uint2 codes = *reinterpret_cast<const uint2 *>(from + further * t.from.batch +
                                                         (r - further * length) * t.from.row +
                                                         head * t.from.head + unit * 8);
    uint4 w;
    if (e4m3) {
      decode_fp8x4<true>(codes.x, w.x, w.y);
      decode_fp8x4<true>(codes.y, w.z, w.w);
    } else {
      decode_fp8x4<false>(codes.x, w.x, w.y);
      decode_fp8x4<false>(codes.y, w.z, w.w);
    }
    *reinterpret_cast<uint4 *>(to + size_t{i} * 8) = w;
  }
}

// The copies of q, k and do, one after the other from `workspace` on.
void widen_all(const NVTEXAttentionArgs &a, char *workspace, Widened (&all)[3]) {
  const auto widened = [&](const NVTEXAttentionTensor &t, const NVTEXAttentionSide &side,
                           size_t dim) -> Widened {
    const bool ragged = side.starts != nullptr;
    const size_t tokens = ragged ? side.tokens : a.batch * side.max_seqlen;
    const Widened w = {t,
                       reinterpret_cast<uint16_t *>(workspace),
                       static_cast<int64_t>(tokens),
                       ragged ? 0 : static_cast<int>(side.max_seqlen),
                       static_cast<int>(side.heads),
                       static_cast<int>(dim)};
    workspace += ceil_div(w.bytes(), 256) * 256;
    return w;
  };
  all[0] = widened(a.q, a.q_side, a.dim_qk);
  all[1] = widened(a.k, a.kv_side, a.dim_qk);
  all[2] = widened(a.d_o, a.q_side, a.dim_v);
}

template <class F>
auto with_instance(const NVTEXAttentionArgs &a, F &&f) {
  const auto with_dim = [&](auto dropout, auto extra) {
    return a.dim_qk <= 64 && a.dim_v <= 64 ? f(std::integral_constant<int, 64>{}, dropout, extra)
                                           : f(std::integral_constant<int, 128>{}, dropout, extra);
  };
  const auto with_dropout = [&](auto extra) {
    return a.dropout != 0.0f ? with_dim(std::true_type{}, extra)
                             : with_dim(std::false_type{}, extra);
  };
  return a.d_o.dtype == kNVTEFloat8E4M3
             ? with_dropout(std::integral_constant<Extra, Extra::kFp8>{})
             : with_dropout(std::integral_constant<Extra, Extra::kFp8E5M2>{});
}

NVTEXOutcome run(const NVTEXAttentionArgs &a, const Instance &instance, cudaStream_t stream) {
  const int queries = static_cast<int>(instance.tile.queries);
  const Layout layout(a, instance.tile);
  WidenArgs widen = {{}, {a.dp.amax, a.dq.amax, a.dk.amax, a.dv.amax}};
  widen_all(a, static_cast<char *>(a.workspace) + layout.bytes, widen.tensors);
  size_t planned = layout.bytes;
  for (const Widened &t : widen.tensors) planned += ceil_div(t.bytes(), 256) * 256;
  if (a.workspace_bytes < planned) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "the workspace is smaller than planned"};
  }
  const int64_t rows = std::max(widen.tensors[0].tokens, widen.tensors[1].tokens);
  const size_t blocks = ceil_div(static_cast<size_t>(rows), kWidenRows);
  const NVTEXOutcome o = launch(widen_kernel, dim3(static_cast<unsigned>(blocks ? blocks : 1), 3),
                                kWidenThreads, stream, widen);
  if (o.status != NVTEX_BACKEND_OK) return o;

  NVTEXAttentionArgs wide = a;
  wide.q = widen.tensors[0].copy();
  wide.k = widen.tensors[1].copy();
  wide.d_o = widen.tensors[2].copy();
  Problem p = problem_of(wide, instance.tile, layout);
  p.scale_d = a.scale;
  p.turn = instance.tile.dim_qk == 128 && a.window_right >= 0 && !a.deterministic ? 7 : 0;
  return run_passes(p, instance, layout, stream, [&]() -> NVTEXOutcome {
    NVTEXOutcome made = map_rows(&p.maps.q8, a.q, a.q_side, a.batch, a.dim_qk, queries);
    if (made.status == NVTEX_BACKEND_OK) {
      made = map_rows(&p.maps.k8, a.k, a.kv_side, a.batch, a.dim_qk, kKeys);
    }
    if (made.status == NVTEX_BACKEND_OK) {
      made = map_rows(&p.maps.o8, a.d_o, a.q_side, a.batch, a.dim_v, queries);
    }
    return made;
  });
}

}  // namespace
}  // namespace nvte

// The workspace: that of 16-bit tensors, and two bytes for each element of q, k and do.
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
  const char *reason = with_instance(a, [&](auto dim, auto dropout, auto extra) {
    return tiles_reject(a, kTile<dim.value, dropout.value, extra.value>, workspace);
  });
  if (reason != nullptr) return reason;
  if (a.batch > (size_t{1} << 34) / (a.q_side.max_seqlen + a.kv_side.max_seqlen + 1)) {
    return "2^34 tokens or more";
  }
  Widened all[3];
  widen_all(a, nullptr, all);
  for (const Widened &t : all) *workspace += ceil_div(t.bytes(), 256) * 256;
  return nullptr;
}

NVTEXOutcome nvte_attention_sm90_fp8_backward(const NVTEXAttentionArgs *args,
                                              cudaStream_t stream) noexcept {
  using namespace nvte;
  return with_instance(*args, [&](auto dim, auto dropout, auto extra) {
    return run(*args, instance<F16, dim.value, dropout.value, extra.value>(), stream);
  });
}
