// Backward of attention for compute capability 9.0: 16-bit tensors, heads of up to 128 elements, or
// 192 of queries and keys; those of up to 256 are in backward_sm90_long.cu. This is the choice of
// an instance, its launch, and the gradient of a bias; the kernels are in backward_sm90/.
//
// Three kernels: rows_kernel has D and the statistics of every query row and clears the accumulator
// of dq; gradient_kernel has one block per 128 keys, which keeps dk and dv in registers while it
// goes over the queries and adds its part of dq in float32; convert_kernel rounds dq. Blocks of
// keys that would leave most of the device idle, see Shares, are cut into parts of the queries.
//
// Dropout: p is recomputed as a whole; what is kept of it enters dv and the term of dp. The factor
// 1 / (1 - probability) is applied at the end: until then ds is p (keep dp - (1 - probability) D).
// With a bias it is applied at once, since ds itself is a result.
//
// ALiBi: the part of the distance that depends on the row, counted from the first row of a block of
// queries, is in the row's statistic already, so that a score costs one addition.
// A bias comes with the queries by bulk copies and is transposed on the way to registers. dbias is
// ds where each of its elements belongs to one score: the tile that the products read is stored as
// it is, and blocks of scores without any are cleared by the warps that load nothing. Summed over
// queries each warp adds its columns. Summed over sequences or heads the tiles go to the workspace
// and are added afterwards, unless there are many: then each score is added to a float32 sum.
//
// H200, November 2026, BF16, batch 2, 16 heads of 128, 4096 queries, TFLOP/s, causal and full:
// plain 449 and 561, ALiBi 452 and 535, a bias and dbias for each score 322 and 370, for each key
// 391 and 443, for all sequences and heads 275 and 342, for all sequences 225 and 319.
//
// Instances of gradient_kernel: {BF16, F16} x {64, 128} elements of a head x {no dropout, dropout}
// x {nothing, ALiBi, a bias}, and 192 elements of queries and keys with 128 of values, plain.

#include "backward_sm90/short_instance.cuh"
#include "common/vec.cuh"

namespace nvte {
namespace {

using namespace sm90_backward;

// dbias from its sums in the order of accumulators. A block of threads: a tile.
template <class T, int kM>
__global__ void __launch_bounds__(kHelperThreads)
    convert_bias_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  constexpr int kPitch = kKeys + 4;  // Stores of a warp hit every bank once.
  extern __shared__ float tile[];
  const int64_t index = blockIdx.x;
  const int key_block = static_cast<int>(index % a.key_blocks);
  const int64_t rest = index / a.key_blocks;
  const int block = static_cast<int>(rest % a.query_blocks);
  const int64_t of_head = rest / a.query_blocks;
  const int heads = a.sum_heads ? 1 : a.heads;
  const int64_t head = of_head % heads, sequence = of_head / heads;
  const int thread = static_cast<int>(threadIdx.x);
  const float4 *sum = reinterpret_cast<const float4 *>(a.bias_sum + index * (kM * kKeys));
#pragma unroll
  for (int i = 0; i < kM * kKeys / 4 / kHelperThreads; ++i) {
    const int f = i * kHelperThreads + thread, t = f % 32, j = f / 32 % (kM / 8),
              warp = f / (4 * kM);
    const float4 v = sum[f];
    const int c = warp * 16 + t / 4, m = j * 8 + t % 4 * 2;
    tile[m * kPitch + c] = v.x;
    tile[(m + 1) * kPitch + c] = v.y;
    tile[m * kPitch + c + 8] = v.z;
    tile[(m + 1) * kPitch + c + 8] = v.w;
  }
  __syncthreads();
  typename T::Bits *out = static_cast<typename T::Bits *>(a.dbias.data) + sequence * a.dbias.batch +
                          head * a.dbias.head + key_block * kKeys;
  constexpr int kUnits = kKeys / 8;
#pragma unroll
  for (int i = 0; i < kM * kUnits / kHelperThreads; ++i) {
    const int r = (i * kHelperThreads + thread) / kUnits, unit = thread % kUnits;
    const int64_t row = block * kM + r;
    Vec<T, 8> v;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float pair[2] = {tile[r * kPitch + unit * 8 + 2 * j],
                             tile[r * kPitch + unit * 8 + 2 * j + 1]};
      v.w[j] = T::from_float(pair);
    }
    if (row < static_cast<int64_t>(a.q_side.max_seqlen) &&
        key_block * kKeys + unit * 8 < static_cast<int>(a.kv_side.max_seqlen)) {
      store(out, static_cast<size_t>(row * a.dbias.row + unit * 8), v);
    }
  }
#endif
}

// dbias of one row from the sums of every sequence and head, in a fixed order.
template <class T>
__global__ void __launch_bounds__(kHelperThreads)
    convert_columns_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int64_t index = int64_t{blockIdx.x} * kHelperThreads + threadIdx.x;
  const int64_t keys = static_cast<int64_t>(a.kv_side.max_seqlen), pitch = a.key_blocks * kKeys;
  const int heads = a.sum_heads ? 1 : a.heads;
  const int64_t c = index % keys, head = index / keys % heads, sequence = index / keys / heads;
  const int64_t batch = static_cast<int64_t>(a.batch);
  if (sequence >= (a.sum_batch ? 1 : batch)) return;
  float sum = 0.0f;
  for (int64_t i = sequence; i < (a.sum_batch ? batch : sequence + 1); ++i) {
    for (int64_t j = head; j < (a.sum_heads ? a.heads : head + 1); ++j) {
      sum += a.bias_sum[(i * a.heads + j) * pitch + c];
    }
  }
  const float pair[2] = {sum, 0.0f};
  static_cast<typename T::Bits *>(
      a.dbias.data)[sequence * a.dbias.batch + head * a.dbias.head + c] =
      static_cast<typename T::Bits>(T::from_float(pair));
#endif
}

// dbias from ds of every score, in a fixed order: eight neighbours of a thread.
template <class T>
__global__ void __launch_bounds__(kHelperThreads)
    sum_scores_kernel(const __grid_constant__ Problem a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int64_t of_head = a.scores.head / 8;
  const int64_t index = int64_t{blockIdx.x} * kHelperThreads + threadIdx.x;
  const int64_t at = index % of_head * 8, member = index / of_head;
  const int64_t heads = a.sum_heads ? 1 : a.heads, batch = static_cast<int64_t>(a.batch);
  const int64_t head = member % heads, sequence = member / heads;
  if (sequence >= (a.sum_batch ? 1 : batch)) return;
  float sum[8] = {};
  for (int64_t i = sequence; i < (a.sum_batch ? batch : sequence + 1); ++i) {
#pragma unroll 4
    for (int64_t j = head; j < (a.sum_heads ? a.heads : head + 1); ++j) {
      float f[8];
      to_float(load<T, 8>(a.scores.data,
                          static_cast<size_t>(i * a.scores.batch + j * a.scores.head + at), true),
               f);
#pragma unroll
      for (int n = 0; n < 8; ++n) sum[n] += f[n];
    }
  }
  Vec<T, 8> v;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float pair[2] = {sum[2 * n], sum[2 * n + 1]};
    v.w[n] = T::from_float(pair);
  }
  store(a.dbias.data, static_cast<size_t>(sequence * a.dbias.batch + head * a.dbias.head + at), v);
#endif
}

Extra extra_of(const NVTEXAttentionArgs &a) {
  return a.bias.data != nullptr ? Extra::kBias : a.alibi ? Extra::kAlibi : Extra::kNone;
}

int tile_dim(const NVTEXAttentionArgs &a) {
  return a.dim_qk <= 64 && a.dim_v <= 64 ? 64 : a.dim_qk <= 128 ? 128 : 192;
}

// Calls f with what the instance for these arguments is made of: the elements of a head, whether
// there is dropout, and what scores have beside products, as types.
template <class F>
auto with_instance(const NVTEXAttentionArgs &a, F &&f) {
  const auto with_extra = [&](auto dim, auto dropout) {
    switch (extra_of(a)) {
      case Extra::kAlibi:
        return f(dim, dropout, std::integral_constant<Extra, Extra::kAlibi>{});
      case Extra::kBias:
        return f(dim, dropout, std::integral_constant<Extra, Extra::kBias>{});
      default:
        return f(dim, dropout, std::integral_constant<Extra, Extra::kNone>{});
    }
  };
  using Plain = std::integral_constant<Extra, Extra::kNone>;
  if (tile_dim(a) == 192) {
    return f(std::integral_constant<int, 192>{}, std::false_type{}, Plain{});
  }
  const auto with_dim = [&](auto dropout) {
    return tile_dim(a) == 64 ? with_extra(std::integral_constant<int, 64>{}, dropout)
                             : with_extra(std::integral_constant<int, 128>{}, dropout);
  };
  return a.dropout != 0.0f ? with_dim(std::true_type{}) : with_dim(std::false_type{});
}

BlockShape short_shape(const NVTEXAttentionArgs &a) {
  return with_instance(a, [](auto dim, auto dropout, auto extra) -> BlockShape {
    return kTile<dim.value, dropout.value, extra.value>;
  });
}

bool is_long(const NVTEXAttentionArgs &a) {
  const size_t most = a.alibi || a.dropout != 0.0f || a.bias.data != nullptr ? 128 : 192;
  return a.dim_qk > most || a.dim_v > 128;
}

// Whether the kernels around the main one can add up the gradients: all rows are there, and the
// probabilities of each add up to 1.
bool adds_up(const NVTEXAttentionArgs &a) {
  const bool equal = a.q_side.cu_seqlens == nullptr && a.q_side.starts == nullptr &&
                     a.kv_side.cu_seqlens == nullptr && a.kv_side.starts == nullptr;
  return equal && a.dropout == 0.0f && a.sink == nullptr && a.q_side.heads == a.kv_side.heads &&
         a.dim_qk == a.dim_v && a.dim_qk <= 128;
}

// A map of a bias or its gradient, boxes of `rows` times 64 scores, or of one row if that is all.
NVTEXOutcome map_scores(CUtensorMap *map, const NVTEXAttentionArgs &a,
                        const NVTEXAttentionTensor &x, int rows) {
  const uint64_t dims[4] = {a.kv_side.max_seqlen, x.row != 0 ? a.q_side.max_seqlen : 1,
                            x.head != 0 ? a.q_side.heads : 1, x.batch != 0 ? a.batch : 1};
  const int64_t strides[3] = {x.row, x.head, x.batch};
  uint64_t steps[3];
  for (int i = 0; i < 3; ++i) {
    steps[i] = strides[i] == 0 ? 16 : static_cast<uint64_t>(strides[i]) * 2;
  }
  const uint32_t box[4] = {64, x.row != 0 ? static_cast<uint32_t>(rows) : 1, 1, 1};
  return encode_tensor_map(
      map,
      x.dtype == kNVTEBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, x.data, dims, steps, box);
}

// Writes dbias from its sums, if it is a sum.
template <class T, int kM>
NVTEXOutcome convert_bias(const Problem &p, cudaStream_t stream) {
  const size_t members = BiasSums(p).members;
  const size_t tiles =
      members * static_cast<size_t>(p.query_blocks) * static_cast<size_t>(p.key_blocks);
  if (p.to_bias == BiasGradient::kSummed && tiles > 0) {
    return launch_shared(convert_bias_kernel<T, kM>, dim3(static_cast<unsigned>(tiles)),
                         kHelperThreads, kM * (kKeys + 4) * 4, stream, p);
  }
  const size_t eights = members * p.q_side.max_seqlen * p.kv_side.max_seqlen / 8;
  if (p.to_bias == BiasGradient::kGathered && eights > 0) {
    return launch_shared(sum_scores_kernel<T>,
                         dim3(static_cast<unsigned>(ceil_div(eights, kHelperThreads))),
                         kHelperThreads, 0, stream, p);
  }
  const size_t columns = members * p.kv_side.max_seqlen;
  if (p.to_bias == BiasGradient::kRows && columns > 0) {
    return launch_shared(convert_columns_kernel<T>,
                         dim3(static_cast<unsigned>(ceil_div(columns, kHelperThreads))),
                         kHelperThreads, 0, stream, p);
  }
  return ok();
}

NVTEXOutcome run(const NVTEXAttentionArgs &a, const Instance &instance, cudaStream_t stream) {
  const bool bias = a.bias.data != nullptr;
  const int queries = static_cast<int>(instance.tile.queries);
  const Layout layout(a, instance.tile);
  Problem p = problem_of(a, instance.tile, layout);
  // With a bias, ds itself is a result.
  const float ds_scale = bias ? 1.0f : p.mask.scale;
  p.scale_k = a.scale * ds_scale;
  p.keep_scale = p.mask.scale / ds_scale;
  p.scale_d = 1.0f / ds_scale;
  const bool plain = extra_of(a) == Extra::kNone && a.dropout == 0.0f;
  const bool turns = instance.tile.dim_qk == 128 && a.window_right >= 0 && !a.deterministic;
  p.turn = turns && !plain ? 7 : 0;
  // A team takes all heads together: otherwise sums of dbias would come and go for every head.
  if (p.to_bias == BiasGradient::kSummed) p.team = static_cast<int>(a.kv_side.heads * a.batch);
  const NVTEXOutcome done = run_passes(p, instance, layout, stream, [&]() -> NVTEXOutcome {
    NVTEXOutcome o = ok();
    if (bias) o = map_scores(&p.maps.bias, a, a.bias, queries);
    if (p.stores_scores() && o.status == NVTEX_BACKEND_OK) {
      o = map_scores(&p.maps.dbias, a, p.scores, queries);
    }
    return o;
  });
  const bool has_queries = a.batch > 0 && a.q_side.heads > 0 && p.query_blocks > 0;
  if (done.status != NVTEX_BACKEND_OK || !bias || !has_queries) return done;
  return dispatch<BF16, F16>(a.q.dtype, [&](auto t) {
    using T = decltype(t);
    return queries == 96   ? convert_bias<T, 96>(p, stream)
           : queries == 64 ? convert_bias<T, 64>(p, stream)
                           : convert_bias<T, 48>(p, stream);
  });
}

}  // namespace
}  // namespace nvte

// The workspace: 8 + 4 D bytes for each query row of each head, D = 64 or 128, rows of a sequence
// rounded up to blocks of queries.
const char *nvte_attention_sm90_backward_reject(const NVTEXAttentionArgs *args,
                                                size_t *workspace) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  *workspace = 0;
  if (const char *reason = hopper_reject(a)) return reason;
  if (!is_16bit(a.q.dtype)) return "dtype; nearest: BF16 or FP16";
  if (is_long(a) && a.bias.data != nullptr) {
    return "a bias with a head of more than 128 elements; nearest: 128, or none";
  }
  const BiasSums sums(a);
  if (a.bias.data != nullptr && a.alibi) return "ALiBi and a bias; nearest: one of them";
  if (a.bias.data == nullptr && a.dbias.data != nullptr) return "dbias without a bias";
  if (a.dbias.data != nullptr && a.q_side.max_seqlen == 0) return "dbias without queries";
  if (a.grads_amax != nullptr && is_long(a)) {
    return "the amax of the gradients with more than 128 elements of a head";
  }
  if (a.sums != nullptr && !adds_up(a)) {
    return "sums of gradients with dropout, a softmax offset, sequences of several lengths, groups "
           "of heads, or more than 128 elements of a head";
  }
  for (const NVTEXAttentionTensor *x : {&a.bias, &a.dbias}) {
    if (x->data == nullptr) continue;
    for (const int64_t stride : {x->batch, x->row, x->head}) {
      if (stride < 0 || stride % 8 != 0 || stride >= int64_t{1} << 38) {
        return "rows of the bias that are no multiples of 16 bytes; nearest: a multiple of 8 keys";
      }
    }
    if (a.kv_side.max_seqlen % 8 != 0 || reinterpret_cast<uintptr_t>(x->data) % 16 != 0) {
      return "rows of the bias that are no multiples of 16 bytes; nearest: a multiple of 8 keys";
    }
  }
  if (sums.to == BiasGradient::kGathered && sums.gathered > size_t{1} << 32) {
    return "a deterministic dbias that is summed over sequences or heads, of more than 4 GiB of "
           "scores; nearest: not deterministic";
  }
  const BlockShape tile = is_long(a) ? long_shape(a) : short_shape(a);
  if (sums.to != BiasGradient::kNone &&
      (sums.members * a.q_side.max_seqlen * a.kv_side.max_seqlen / kHelperThreads > kMaxBlocks ||
       sums.members * ceil_div(a.q_side.max_seqlen, tile.queries) *
               ceil_div(a.kv_side.max_seqlen, kKeys) >
           kMaxBlocks)) {
    return "2^31 blocks of dbias or more";
  }
  return tiles_reject(a, tile, workspace);
}

NVTEXOutcome nvte_attention_sm90_backward(const NVTEXAttentionArgs *args,
                                          cudaStream_t stream) noexcept {
  using namespace nvte;
  if (is_long(*args)) return run_long(*args, stream);
  return dispatch<BF16, F16>(args->q.dtype, [&](auto t) {
    using T = decltype(t);
    return with_instance(*args, [&](auto dim, auto dropout, auto extra) {
      return run(*args, instance<T, dim.value, dropout.value, extra.value>(), stream);
    });
  });
}
