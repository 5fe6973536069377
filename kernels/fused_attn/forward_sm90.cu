// Forward of attention for compute capability 9.0: BF16, F16 and E4M3 on the tensor cores of
// warpgroups. This is the choice of an instance and its launch; the kernel is in forward_sm90/:
// tuning.cuh (the table of instances), layout.cuh (shared memory), scheduler.cuh (the order of
// tiles), producer.cuh, consumer.cuh, softmax.cuh and epilogue.cuh; turned_values.cuh and
// turned_consumer.cuh for long FP8 sequences.
//
// A block has a warpgroup that copies and two or three that multiply, the consumers, with 64 rows
// of queries each. Blocks stay on their multiprocessors and take tiles of queries from a counter,
// the longest of a few heads first, so that the keys and values of these heads stay in L2.
//
// Rows outside a sequence are never read. A tensor map has the dimension of rows twice: the first
// of the two is bounded, and the second places its end at the end of the sequence, so that rows
// past it read as zeros. A NaN in a value that no row may see therefore does no harm unless it lies
// in its own sequence beside values that some row of the tile may see.
//
// FP8: probabilities are rounded before they are divided by their sum, after a multiplication by
// 2^8.75 that takes them almost to the largest value, so that the scale of s would gain nothing. Of
// that scale and its inverse only the product has an effect on o. The amax of s is exactly that of
// the divided probabilities.

#include <algorithm>
#include <utility>

#include "forward_sm90/instance.cuh"

namespace nvte {
namespace sm90_forward {
namespace {

// Each block begins with the tile of its number; no image is ready.
__global__ void begin_kernel(const __grid_constant__ Params p, unsigned blocks) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  if (p.turned.ready != nullptr) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < p.turned.count();
         i += size_t{gridDim.x} * blockDim.x) {
      p.turned.ready[i] = 0;
    }
  }
  if (blockIdx.x > 0 || threadIdx.x > 0) return;
  *p.next = blocks;
  if (p.turned.ready != nullptr) *p.turned.next = *p.turned.done = 0;
  if (p.s_amax != nullptr) *p.s_amax = 0.0f;
  if (p.o_amax != nullptr) *p.o_amax = 0.0f;
}

// Whether to turn values gains more than it takes: each value has enough queries.
bool turns_values(const NVTEXAttentionArgs &a) {
  if (a.q.dtype != kNVTEFloat8E4M3 || (a.dim_qk <= 64 && a.dim_v <= 64) ||
      (a.dim_qk > 128 && a.dim_v <= 128)) {
    return false;
  }
  const size_t rows = a.q_side.max_seqlen;
  size_t queries = a.window_right >= 0 ? rows / 2 : rows;
  if (a.window_left >= 0) queries = std::min(queries, static_cast<size_t>(a.window_left) + 1);
  const TurnedValues turned(a, nullptr);
  // Warps that look for a tile look at those as well that a shorter sequence does not have.
  const size_t tiles = size_t{turned.units} * turned.sequence_tiles;
  return queries * (a.q_side.heads / a.kv_side.heads) >= (turned.parts > 1 ? 1500 : 500) &&
         tiles <= std::min(4 * turned.count(), kMaxBlocks);
}
constexpr size_t kImagesAt = 1024;  // In the workspace, after the numbers that begin_kernel writes.

CUtensorMapDataType map_type(NVTEDType dtype) {
  return dtype == kNVTEFloat16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
         : dtype == kNVTEBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                  : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

// A map of a tensor with the dimension of rows twice.
NVTEXOutcome encode_rows(CUtensorMap *map, const NVTEXAttentionTensor &tensor,
                         const NVTEXAttentionSide &side, size_t batch, size_t dim, uint32_t rows) {
  const bool fp8 = is_fp8(tensor.dtype), ragged = side.starts != nullptr;
  const uint64_t bytes = fp8 ? 1 : 2, step = static_cast<uint64_t>(tensor.row) * bytes;
  const uint64_t bound = side.max_seqlen;
  const uint64_t dims[5] = {dim, bound, bound + (ragged ? side.tokens : bound) + 1, side.heads,
                            ragged ? 1 : batch};
  const uint64_t steps[4] = {
      step, step, side.heads > 1 ? static_cast<uint64_t>(tensor.head) * bytes : step,
      !ragged && batch > 1 ? static_cast<uint64_t>(tensor.batch) * bytes : step};
  const uint32_t box[5] = {fp8 ? 128u : 64u, rows, 1, 1, 1};
  return encode_tensor_map(map, map_type(tensor.dtype), 5,
                           static_cast<const char *>(tensor.data) - bound * step, dims, steps, box);
}

// Encodes the tensor map of a page in the same way. Boxes have `rows` rows.
NVTEXOutcome encode_pages(CUtensorMap *map, const NVTEXAttentionTensor &tensor, size_t page_size,
                          size_t num_pages, size_t dim, size_t heads, int rows) {
  const uint64_t step = static_cast<uint64_t>(tensor.row) * 2;
  const uint64_t dims[5] = {dim, page_size, page_size + 1, heads, num_pages};
  const uint64_t steps[4] = {step, step, heads > 1 ? static_cast<uint64_t>(tensor.head) * 2 : step,
                             tensor.batch > 0 ? static_cast<uint64_t>(tensor.batch) * 2 : step};
  const uint32_t box[5] = {64, static_cast<uint32_t>(rows), 1, 1, 1};
  return encode_tensor_map(map, map_type(tensor.dtype), 5,
                           static_cast<const char *>(tensor.data) - page_size * step, dims, steps,
                           box);
}

// A map of a bias with boxes of `rows` rows. A dimension that is broadcast has one element, for
// which any step does.
NVTEXOutcome encode_bias(CUtensorMap *map, const NVTEXAttentionArgs &a, int rows) {
  const NVTEXAttentionTensor &b = a.bias;
  const auto size = [](int64_t step, size_t n) { return step != 0 ? uint64_t{n} : 1; };
  const auto step = [](int64_t x) { return x != 0 ? static_cast<uint64_t>(x) * 2 : 16; };
  const uint64_t dims[4] = {a.kv_side.max_seqlen, size(b.row, a.q_side.max_seqlen),
                            size(b.head, a.q_side.heads), size(b.batch, a.batch)};
  const uint64_t steps[3] = {step(b.row), step(b.head), step(b.batch)};
  const uint32_t box[4] = {64, static_cast<uint32_t>(rows), 1, 1};
  return encode_tensor_map(map, map_type(b.dtype), 4, b.data, dims, steps, box);
}

NVTEXOutcome run(const NVTEXAttentionArgs &a, const Tuning &tuning, const Instance &instance,
                 cudaStream_t stream) {
  Params p = {};
  const bool fp8 = tuning.bytes == 1;
  const int rows = 64 * tuning.consumers;
  NVTEXOutcome made = encode_rows(&p.q, a.q, a.q_side, a.batch, a.dim_qk, 64);
  const auto then = [&](auto &&make) {
    if (made.status == NVTEX_BACKEND_OK) made = make();
  };
  if (tuning.extra == Extra::kPages) {
    p.k_pages = a.page_table_k;
    p.v_pages = a.page_table_v;
    p.max_k_pages = static_cast<int>(a.max_pages_k);
    p.max_v_pages = static_cast<int>(a.max_pages_v);
    p.last_k_page = static_cast<unsigned>(a.num_pages_k - 1);
    p.last_v_page = static_cast<unsigned>(a.num_pages_v - 1);
    const int size = static_cast<int>(a.page_size_k);
    int box = tuning.keys;
    while (size % box != 0) box /= 2;
    while (box >> p.page_log2 > 1) ++p.page_log2;
    p.page_boxes = size / box;
    const size_t heads = a.kv_side.heads;
    then([&] {
      return encode_pages(&p.k, a.k, a.page_size_k, a.num_pages_k, a.dim_qk, heads, box);
    });
    then(
        [&] { return encode_pages(&p.v, a.v, a.page_size_k, a.num_pages_v, a.dim_v, heads, box); });
  } else {
    const auto box = static_cast<uint32_t>(tuning.keys);
    then([&] { return encode_rows(&p.k, a.k, a.kv_side, a.batch, a.dim_qk, box); });
    then([&] { return encode_rows(&p.v, a.v, a.kv_side, a.batch, a.dim_v, box); });
  }
  if (tuning.extra == Extra::kBias) {
    p.bias_rows = a.bias.row != 0 ? rows : 1;
    p.bias_head = a.bias.head != 0;
    p.bias_batch = a.bias.batch != 0;
    then([&] { return encode_bias(&p.bias, a, p.bias_rows); });
  }
  if (made.status != NVTEX_BACKEND_OK) return made;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const auto panels = [&](size_t dim) {
    return static_cast<int>(ceil_div(dim, 128 / static_cast<size_t>(tuning.bytes)));
  };
  p.panels_qk = panels(a.dim_qk);
  p.panels_v = panels(a.dim_v);
  p.q_side = Side(a.q_side);
  p.kv_side = Side(a.kv_side);
  p.heads = static_cast<unsigned>(a.q_side.heads);
  p.group = static_cast<int>(a.q_side.heads / a.kv_side.heads);
  p.pairs = static_cast<unsigned>(a.batch * a.q_side.heads);
  p.m_tiles = static_cast<int>(ceil_div(a.q_side.max_seqlen, static_cast<size_t>(rows)));
  const auto bound = [](int64_t w) {
    return w < 0 || w >= kUnbounded ? kUnbounded : static_cast<int>(w);
  };
  p.left = bound(a.window_left);
  p.right = bound(a.window_right);
  p.bottom_right = a.bottom_right;
  const size_t section_bytes = section_megabytes(a.window_right >= 0) << 20;
  const size_t head_bytes =
      a.kv_side.max_seqlen * (a.dim_qk + a.dim_v) * static_cast<size_t>(tuning.bytes);
  const size_t fit = section_bytes / head_bytes;
  const size_t most = (fit < 1 ? 1 : fit) * static_cast<size_t>(p.group);
  p.section = static_cast<unsigned>(ceil_div(p.pairs, ceil_div(p.pairs, most)));
  p.section_tiles = p.section * static_cast<unsigned>(p.m_tiles);
  p.o = a.o.data;
  p.o_batch = a.o.batch;
  p.o_row = a.o.row;
  p.o_head = a.o.head;
  p.dim_v = static_cast<int>(a.dim_v);
  p.slopes = AlibiSlopes(a.q_side.heads);
  p.scale = a.scale;
  p.unscale = 1.0f / a.scale;
  p.q_scale_inv = a.q.scale_inv;
  p.k_scale_inv = a.k.scale_inv;
  p.v_scale_inv = a.v.scale_inv;
  p.o_scale = a.o.scale;
  p.s_scale = a.s.scale;
  p.s_scale_inv = a.s.scale_inv;
  p.s_amax = fp8 ? a.s.amax : nullptr;
  p.o_amax = fp8 ? a.o.amax : nullptr;
  p.o_dtype = a.o.dtype;
  p.stats = a.stats;
  p.max = a.max;
  p.sink = a.sink;
  p.rng_state = a.rng_state;
  p.drop_level = dropout_level(a.dropout);
  p.heads_before = static_cast<unsigned>(a.heads_before);
  p.all_heads = static_cast<unsigned>(a.q_side.heads + a.other_heads);
  p.keep_factor = 1.0f / (1.0f - a.dropout);
  p.next = static_cast<unsigned *>(a.workspace);
  p.tiles = p.pairs * static_cast<unsigned>(p.m_tiles);
  const unsigned sms = static_cast<unsigned>(device.sm_count);
  const unsigned grid = p.tiles < sms ? p.tiles : sms;
  unsigned begin_blocks = 1, begin_threads = 1;
  if (tuning.extra == Extra::kTurned) {
    p.turned = TurnedValues(a, static_cast<uint8_t *>(a.workspace) + kImagesAt);
    p.turned.next = p.next + 1;
    p.turned.done = reinterpret_cast<int *>(p.next + 2);
    begin_threads = 256;
    begin_blocks =
        static_cast<unsigned>(std::min(ceil_div(p.turned.count(), size_t{256}), size_t{sms}));
  }
  const NVTEXOutcome begun =
      launch(begin_kernel, dim3(begin_blocks), begin_threads, stream, p, grid);
  if (begun.status != NVTEX_BACKEND_OK) return begun;
  return launch_shared(instance.kernel, dim3(grid), instance.threads, instance.shared, stream, p);
}

// The first row of the table that serves the arguments, of the instances for T.
template <class T, size_t... kRows>
NVTEXOutcome run_first(const NVTEXAttentionArgs &a, Extra extra, cudaStream_t stream,
                       std::index_sequence<kRows...>) {
  NVTEXOutcome done = unimplemented("no instance for these head dims");
  const auto fits = [&](auto row) {
    constexpr const Tuning &kTuning = kTunings[decltype(row)::value];
    if constexpr (kTuning.bytes == T::kBytes) {
      if (kTuning.extra != extra || a.dim_qk > kTuning.dim_qk || a.dim_v > kTuning.dim_v) {
        return false;
      }
      done = run(a, kTuning, instance<T, kTuning.extra, kTuning.dim_qk, kTuning.dim_v>(), stream);
      return true;
    } else {
      return false;
    }
  };
  (void)(fits(std::integral_constant<size_t, kRows>{}) || ...);
  return done;
}

bool whole_units(const NVTEXAttentionTensor &tensor, int64_t bytes) {
  return aligned(tensor.data, 16) && tensor.batch * bytes % 16 == 0 &&
         tensor.row * bytes % 16 == 0 && tensor.head * bytes % 16 == 0 && tensor.row > 0 &&
         tensor.head >= 0 && tensor.batch >= 0;
}

}  // namespace
}  // namespace sm90_forward
}  // namespace nvte

const char *nvte_attention_sm90_forward_reject(const NVTEXAttentionArgs *args,
                                               size_t *workspace) noexcept {
  using namespace nvte;
  using namespace nvte::sm90_forward;
  const NVTEXAttentionArgs &a = *args;
  Device device;
  if (current_device(&device) != cudaSuccess || device.arch != 90) {
    return "runs on compute capability 9.0 only";
  }
  if (a.backward) return "is a forward";
  const bool fp8 = a.q.dtype == kNVTEFloat8E4M3;
  if (!fp8 && a.q.dtype != kNVTEBFloat16 && a.q.dtype != kNVTEFloat16) {
    return "takes q in BF16, F16 and E4M3";
  }
  if (a.k.dtype != a.q.dtype || a.v.dtype != a.q.dtype) return "takes q, k and v of one dtype";
  if (a.o.dtype != a.q.dtype &&
      !(fp8 && (a.o.dtype == kNVTEBFloat16 || a.o.dtype == kNVTEFloat16))) {
    return "takes o of the dtype of q, or of 16 bits with E4M3";
  }
  const size_t unit = fp8 ? 16 : 8;
  if (a.dim_qk > 256 || a.dim_v > 256) return "takes head dims up to 256";
  if (a.dim_qk % unit != 0 || a.dim_v % unit != 0) {
    return fp8 ? "takes head dims that are multiples of 16 in FP8"
               : "takes head dims that are multiples of 8";
  }
  const bool bias = a.bias.data != nullptr, pages = a.page_table_k != nullptr;
  if (fp8 && (a.dropout != 0.0f || bias || a.alibi || pages)) {
    return "takes no dropout, bias, ALiBi and pages in FP8";
  }
  if ((a.dropout != 0.0f) + bias + a.alibi + pages > 1) {
    return "takes one of dropout, a bias, ALiBi and pages";
  }
  if (pages != (a.page_table_v != nullptr)) return "takes pages of keys and values";
  if (pages && (a.page_size_v != a.page_size_k || a.page_size_k == 0 || a.page_size_k % 8 != 0 ||
                a.page_size_k >= size_t{kUnbounded / 2})) {
    return "takes pages of a multiple of 8 rows, alike for keys and values";
  }
  if (pages && (a.num_pages_k == 0 || a.num_pages_v == 0 || a.num_pages_k > kUnbounded ||
                a.num_pages_v > kUnbounded)) {
    return "takes 1 to 2^30 pages";
  }
  if (bias && !(a.bias.dtype == a.q.dtype && aligned(a.bias.data, 16) && a.bias.row % 8 == 0 &&
                a.bias.head % 8 == 0 && a.bias.batch % 8 == 0)) {
    return "takes a bias of the dtype of q whose data and strides are whole 16 bytes";
  }
  if (!(a.scale > 0.0f)) return "takes positive scales";
  for (const NVTEXAttentionTensor *tensor : {&a.q, &a.k, &a.v, &a.o}) {
    if (!whole_units(*tensor, tensor->dtype == kNVTEFloat8E4M3 ? 1 : 2))
      return "takes data and strides of whole 16 bytes";
  }
  if (a.kv_side.max_seqlen == 0) return "takes at least one key";
  for (const NVTEXAttentionSide *side : {&a.q_side, &a.kv_side}) {
    if (side->max_seqlen >= kUnbounded / 2 || side->tokens >= kUnbounded / 2) {
      return "takes less than 2^29 rows";
    }
  }
  if (a.batch * a.q_side.heads * ceil_div(a.q_side.max_seqlen, 64) >= size_t{kUnbounded}) {
    return "takes less than 2^30 tiles of 64 queries";
  }
  *workspace = sizeof(unsigned);
  if (turns_values(a)) *workspace = kImagesAt + TurnedValues(a, nullptr).bytes();
  return nullptr;
}

NVTEXOutcome nvte_attention_sm90_forward(const NVTEXAttentionArgs *args,
                                         cudaStream_t stream) noexcept {
  using namespace nvte;
  using namespace nvte::sm90_forward;
  const NVTEXAttentionArgs &a = *args;
  if (a.batch == 0 || a.q_side.heads == 0 || a.q_side.max_seqlen == 0) return ok();
  const Extra extra = a.dropout != 0.0f        ? Extra::kDropout
                      : a.bias.data != nullptr ? Extra::kBias
                      : a.alibi                ? Extra::kAlibi
                      : a.page_table_k         ? Extra::kPages
                      : turns_values(a)        ? Extra::kTurned
                                               : Extra::kNone;
  return dispatch<BF16, F16, E4M3>(a.q.dtype, [&](auto tag) {
    return run_first<decltype(tag)>(a, extra, stream, std::make_index_sequence<kTuningCount>());
  });
}
