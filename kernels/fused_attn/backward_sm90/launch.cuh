// The host's side of the backward for compute capability 9.0: the workspace, tensor maps, and the
// order of the passes.
#pragma once

#include "common/launch.cuh"
#include "common/tma.cuh"
#include "problem.cuh"

namespace nvte {
namespace sm90_backward {

// Which dimensions dbias sums over.
struct BiasSums {
  BiasGradient to = BiasGradient::kNone;
  bool batch = false, heads = false;
  size_t members = 0;   // Sequences times heads that it has.
  size_t gathered = 0;  // Bytes of ds of every score.

  explicit BiasSums(const NVTEXAttentionArgs &a) {
    if (a.dbias.data == nullptr) return;
    batch = a.dbias.batch == 0 && a.batch > 1;
    heads = a.dbias.head == 0 && a.q_side.heads > 1;
    members = (batch ? 1 : a.batch) * (heads ? 1 : a.q_side.heads);
    const size_t scores = a.q_side.max_seqlen * a.kv_side.max_seqlen;
    gathered = a.batch * a.q_side.heads * scores * 2;
    // Sums that many add to have no order and take longer than the bytes.
    const bool gathers = a.deterministic || gathered <= size_t{1} << 30 ||
                         gathered <= members * scores * sizeof(float);
    to = a.dbias.row == 0 && a.q_side.max_seqlen > 1 ? BiasGradient::kRows
         : !batch && !heads                          ? BiasGradient::kStored
         : gathers                                   ? BiasGradient::kGathered
                                                     : BiasGradient::kSummed;
  }
};

// How many blocks of keys are worked on whole, and how many blocks of threads share each of the
// others, which are those of a last round that would leave most of the device idle. None are shared
// where sums have to be added in order, nor where the last blocks are the shortest ones anyway.
struct Shares {
  size_t whole, parts = 1;

  Shares(const NVTEXAttentionArgs &a, size_t queries, size_t keys) {
    const size_t blocks = a.kv_side.heads * a.batch * ceil_div(a.kv_side.max_seqlen, keys);
    const size_t rounds = a.q_side.heads / a.kv_side.heads * ceil_div(a.q_side.max_seqlen, queries);
    whole = blocks;
    Device device;
    if (a.deterministic || a.q_side.max_seqlen == 0 || current_device(&device) != cudaSuccess)
      return;
    const size_t sms = static_cast<size_t>(device.sm_count);
    const bool even = a.window_left < 0 && a.window_right < 0 && a.q_side.cu_seqlens == nullptr &&
                      a.kv_side.cu_seqlens == nullptr;
    if (blocks > sms && !even) return;
    const size_t rest = blocks % sms;
    constexpr size_t kOverhead = 4;  // The cost of beginning a part, in rounds.
    size_t least = rounds + kOverhead / 2;
    for (size_t n = 2; n <= 16 && n <= rounds; ++n) {
      const size_t cost = ceil_div(rest * n, sms) * (ceil_div(rounds, n) + kOverhead);
      if (cost < least) least = cost, parts = n;
    }
    if (parts > 1) whole = blocks - rest;
  }
};

// Where things lie in the workspace.
struct Layout {
  size_t blocks, rows, sums, turns, parts, bytes, shared_blocks, shared_sum, shared_turns;
  size_t bias_sum, bias_bytes;  // Bytes that have to be cleared.
  size_t sum_parts, cleared;
  Shares shares;

  Layout(const NVTEXAttentionArgs &a, const BlockShape &tile) : shares(a, tile.queries, tile.keys) {
    const size_t queries = tile.queries;
    blocks = a.q_side.starts != nullptr ? a.q_side.tokens / queries + a.batch + 1
                                        : a.batch * ceil_div(a.q_side.max_seqlen, queries);
    const size_t all = blocks * a.q_side.heads;
    size_t end = 0;
    const auto take = [&](size_t bytes) {
      const size_t at = end;
      end += ceil_div(bytes, 256) * 256;
      return at;
    };
    rows = take(all * queries * 2 * sizeof(float));
    sums = take(all * queries * tile.dim_qk * sizeof(float));
    turns = take(a.deterministic ? all * 4 * kConsumers * sizeof(int) : 0);
    parts = take(a.dsink != nullptr ? all * sizeof(float) : 0);
    const size_t query_blocks = a.batch * ceil_div(a.q_side.max_seqlen, queries);
    sum_parts =
        take(a.sums != nullptr ? 2 * query_blocks * a.q_side.heads * a.dim_qk * sizeof(float) : 0);
    shared_blocks =
        a.kv_side.heads * a.batch * ceil_div(a.kv_side.max_seqlen, tile.keys) - shares.whole;
    shared_sum = take(shared_blocks * tile.shared_floats() * sizeof(float));
    shared_turns = take(shared_blocks * sizeof(int));
    cleared = take(a.batch * a.kv_side.heads * sizeof(int));
    const BiasSums bias(a);
    const size_t keys = ceil_div(a.kv_side.max_seqlen, tile.keys) * tile.keys;
    bias_bytes =
        bias.to == BiasGradient::kRows ? a.batch * a.q_side.heads * keys * sizeof(float)
        : bias.to == BiasGradient::kSummed
            ? bias.members * ceil_div(a.q_side.max_seqlen, queries) * queries * keys * sizeof(float)
            : 0;
    bias_sum = take(bias.to == BiasGradient::kGathered ? bias.gathered : bias_bytes);
    bytes = end;
  }
};

// A map of [sequences, heads, rows, elements] with boxes of `rows` times 128 bytes.
inline NVTEXOutcome map_rows(CUtensorMap *map, const NVTEXAttentionTensor &x,
                             const NVTEXAttentionSide &side, size_t batch, size_t dim, int rows) {
  const bool ragged = side.starts != nullptr, fp8 = is_fp8(x.dtype);
  const unsigned bytes = fp8 ? 1 : 2;
  const uint64_t dims[4] = {dim, ragged ? side.tokens : side.max_seqlen, side.heads,
                            ragged ? 1 : batch};
  const int64_t strides[3] = {x.row, x.head, x.batch};
  uint64_t steps[3];
  for (int i = 0; i < 3; ++i) {
    steps[i] = dims[i + 1] == 1 ? 16 : static_cast<uint64_t>(strides[i]) * bytes;
  }
  const uint32_t box[4] = {128 / bytes, static_cast<uint32_t>(rows), 1, 1};
  return encode_tensor_map(map,
                           fp8                        ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                           : x.dtype == kNVTEBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                      : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                           4, x.data, dims, steps, box);
}

// The problem in tiles, in a workspace of this layout.
inline Problem problem_of(const NVTEXAttentionArgs &a, const BlockShape &tile,
                          const Layout &layout) {
  char *workspace = static_cast<char *>(a.workspace);
  Problem p(a);
  p.scale_v = p.mask.scale;
  p.scale_k = a.scale * p.mask.scale;
  p.keep_scale = 1.0f;
  p.scale_d = 1.0f / p.mask.scale;
  p.heads = static_cast<int>(a.q_side.heads);
  p.group = static_cast<int>(a.q_side.heads / a.kv_side.heads);
  p.turn = 0;
  p.head_blocks = static_cast<int>(layout.blocks);
  p.query_blocks = static_cast<int>(ceil_div(a.q_side.max_seqlen, tile.queries));
  p.key_blocks = static_cast<int>(ceil_div(a.kv_side.max_seqlen, tile.keys));
  p.panels_qk = static_cast<int>(ceil_div(a.dim_qk, 64));
  p.panels_v = static_cast<int>(ceil_div(a.dim_v, 64));
  p.rows = reinterpret_cast<float *>(workspace + layout.rows);
  p.dq_sum = reinterpret_cast<float *>(workspace + layout.sums);
  p.cleared = reinterpret_cast<int *>(workspace + layout.cleared);
  p.turns = reinterpret_cast<int *>(workspace + layout.turns);
  p.sink_part = reinterpret_cast<float *>(workspace + layout.parts);
  p.sum_parts =
      a.sums != nullptr ? reinterpret_cast<float *>(workspace + layout.sum_parts) : nullptr;
  p.whole = static_cast<int>(layout.shares.whole);
  p.parts = static_cast<int>(layout.shares.parts);
  p.shared_blocks = static_cast<int>(layout.shared_blocks);
  p.shared_sum = reinterpret_cast<float *>(workspace + layout.shared_sum);
  p.shared_floats = static_cast<int64_t>(tile.shared_floats());
  p.shared_turns = reinterpret_cast<int *>(workspace + layout.shared_turns);
  const BiasSums sums(a);
  p.bias_batch = a.bias.batch != 0;
  p.bias_heads = a.bias.head != 0;
  p.bias_rows = a.bias.row != 0;
  p.to_bias = sums.to;
  p.sum_batch = sums.batch;
  p.sum_heads = sums.heads;
  p.bias_sum = reinterpret_cast<float *>(workspace + layout.bias_sum);
  p.scores = a.dbias;
  if (sums.to == BiasGradient::kGathered) {
    p.scores.data = p.bias_sum;
    p.scores.row = static_cast<int64_t>(a.kv_side.max_seqlen);
    p.scores.head = p.scores.row * static_cast<int64_t>(a.q_side.max_seqlen);
    p.scores.batch = p.scores.head * p.heads;
  }
  const size_t units = a.kv_side.heads * a.batch;
  // Queries, do and dq of the heads that are worked on together stay in L2. Teams are about equal:
  // a last one of few heads would begin its longest blocks when the others end. By list scheduling
  // on 132 multiprocessors, causal, time over the mean load: 16 x 12 heads of 1024 queries 1.01,
  // with teams of 63, 63, 63 and 3 heads 1.09; 2 x 16 of 8192 1.00, with teams of 3 heads 1.05.
  // Nor are they so small that the longest blocks of the last one have nothing short to be paired
  // with: 8 key heads of 4 query heads each of 8192 1.01, with teams of one 1.23.
  const size_t each =
      a.q_side.max_seqlen * static_cast<size_t>(p.group) * (tile.dim_qk + tile.dim_v) * 4;
  const size_t room = (size_t{a.window_right >= 0 ? 32u : 16u} << 20) / (each > 0 ? each : 1);
  constexpr size_t kBlocks = 128;  // Of keys, that are begun together.
  const size_t least = a.window_right < 0 || p.key_blocks == 0
                           ? 1
                           : ceil_div(kBlocks, static_cast<size_t>(p.key_blocks));
  const size_t most = room < least ? least : room;
  const size_t teams = units > most ? (units + most / 2) / most : 1;
  p.team = static_cast<int>(units > 0 ? ceil_div(units, teams) : 1);
  return p;
}

// Why the kernels do not take these arguments, or null; `workspace`: bytes.
inline const char *tiles_reject(const NVTEXAttentionArgs &a, const BlockShape &tile,
                                size_t *workspace) {
  for (const NVTEXAttentionTensor *x : {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.dq, &a.dk, &a.dv}) {
    for (const int64_t stride : {x->batch, x->row, x->head}) {
      if (stride < 0 || stride >= int64_t{1} << 38) {
        return "a stride of 2^39 bytes or more; nearest: contiguous tensors";
      }
    }
  }
  if (a.page_table_k != nullptr || a.page_table_v != nullptr) {
    return "paged keys; nearest: keys without pages";
  }
  if (a.q_side.tokens > kMaxLength || a.kv_side.tokens > kMaxLength) return "over 2^29 tokens";
  const Layout layout(a, tile);
  if (layout.blocks * a.q_side.heads > kMaxBlocks ||
      a.batch * a.q_side.heads * ceil_div(a.q_side.max_seqlen, tile.queries) > kMaxBlocks ||
      a.batch * a.kv_side.heads * ceil_div(a.kv_side.max_seqlen, tile.keys) > kMaxBlocks) {
    return "2^31 blocks or more";
  }
  *workspace = layout.bytes;
  return nullptr;
}

// Why no backward for Hopper takes these arguments, or null.
inline const char *hopper_reject(const NVTEXAttentionArgs &a) {
  if (const char *reason = attention_unsupported(a)) return reason;
  Device device;
  if (current_device(&device) != cudaSuccess || device.arch != 90) {
    return "the device is not of compute capability 9.0";
  }
  return a.backward ? nullptr : "a forward pass";
}

// The backward of heads of more than 128 elements, in backward_sm90_long.cu: what a block works on,
// and all passes.
BlockShape long_shape(const NVTEXAttentionArgs &a);
NVTEXOutcome run_long(const NVTEXAttentionArgs &a, cudaStream_t stream);

// The kernels of an instance. `rows` and `convert` take a block of threads for each block of
// queries, `sink` for each head, `gradient` for each block of keys or share of one.
struct Instance {
  BlockShape tile;
  void (*rows)(Problem);
  void (*sink)(Problem);
  void (*gradient)(Problem);
  void (*convert)(Problem);                // Rounds the sums of dq.
  size_t gradient_shared, convert_shared;  // Bytes of dynamic shared memory.
  bool clears_sums;                        // `gradient` calls clear_sums().
  void (*sums)(Problem) = nullptr;  // Adds up sums of blocks of queries, where there are any.
};

// Runs all passes. `more_maps` makes the tensor maps that not every kernel has.
template <class MoreMaps>
NVTEXOutcome run_passes(Problem &p, const Instance &instance, const Layout &layout,
                        cudaStream_t stream, MoreMaps &&more_maps) {
  if (p.workspace_bytes < layout.bytes) {
    return {NVTEX_BACKEND_DEVICE_ERROR, "the workspace is smaller than planned"};
  }
  if (!instance.clears_sums) p.cleared = nullptr;
  const size_t row_blocks = p.batch * p.q_side.heads * static_cast<size_t>(p.query_blocks);
  const size_t key_blocks = p.batch * p.kv_side.heads * static_cast<size_t>(p.key_blocks);
  NVTEXOutcome o = ok();
  const auto next = [&](auto &&f) {
    if (o.status == NVTEX_BACKEND_OK) o = f();
  };
  const auto launch = [&](void (*kernel)(Problem), size_t blocks, unsigned threads, size_t shared) {
    next([&] {
      return launch_shared(kernel, dim3(static_cast<unsigned>(blocks)), threads, shared, stream, p);
    });
  };
  const auto has_rows = [](const NVTEXAttentionSide &x) {
    return x.starts == nullptr || x.tokens > 0;
  };
  // Without rows and keys there is nothing to load, and no tensor map can be made.
  if (row_blocks > 0 && key_blocks > 0 && has_rows(p.q_side) && has_rows(p.kv_side)) {
    const int queries = static_cast<int>(instance.tile.queries);
    const int keys = static_cast<int>(instance.tile.keys);
    next([&] { return map_rows(&p.maps.q, p.q, p.q_side, p.batch, p.dim_qk, queries); });
    next([&] { return map_rows(&p.maps.d_o, p.d_o, p.q_side, p.batch, p.dim_v, queries); });
    next([&] { return map_rows(&p.maps.k, p.k, p.kv_side, p.batch, p.dim_qk, keys); });
    next([&] { return map_rows(&p.maps.v, p.v, p.kv_side, p.batch, p.dim_v, keys); });
    next(more_maps);
  }
  if (layout.bias_bytes > 0) {
    next([&] { return outcome(cudaMemsetAsync(p.bias_sum, 0, layout.bias_bytes, stream)); });
  }
  if (row_blocks > 0) launch(instance.rows, row_blocks, kHelperThreads, 0);
  if (p.dsink != nullptr) launch(instance.sink, p.q_side.heads, kHelperThreads, 0);
  if (key_blocks > 0) {
    const size_t blocks = layout.shares.whole + layout.shared_blocks * layout.shares.parts;
    launch(instance.gradient, blocks, kThreads, instance.gradient_shared);
  }
  if (row_blocks > 0) {
    launch(instance.convert, row_blocks, kHelperThreads, instance.convert_shared);
  }
  if (p.sum_parts != nullptr) {
    const size_t columns = p.q_side.heads * p.dim_qk;
    next([&] {
      return launch_shared(instance.sums, dim3(static_cast<unsigned>(ceil_div(columns, 32)), 3),
                           kHelperThreads, 0, stream, p);
    });
  }
  return o;
}

}  // namespace sm90_backward
}  // namespace nvte
