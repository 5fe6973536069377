// Forward of attention for compute capability 9.0: bulk copies bring tiles of keys and values into
// a ring in shared memory, warpgroups multiply them.
//
// A block has one thread, or with pages a warpgroup, that copies and two or three warpgroups with
// 64 rows of queries each. Blocks stay and take tiles of queries from a counter, the longest of a
// few heads first, so that these heads' keys and values stay in L2. Inside a warpgroup the scores
// of the next tile of keys are multiplied while those of the last one go through the exponential;
// the warpgroups issue their products in turn, so that one's exponentials hide behind another's
// products.
//
// What limits on an H200 is power: 685 to 695 W of 700 in every run longer than some milliseconds,
// at 1500 to 1900 MHz. Fewer instructions and less waiting count, more overlap alone does not. Most
// tiles of 16-bit keys therefore go without a maximum, see Softmax::follow(): d128, causal 2k, 8k,
// 16k, full 16k: 492, 608, 638, 673 TFLOP/s where finding maxima did 454, 562, 590, 623; d64,
// causal, 8k: 504, 460; with dropout, d128, d64: 419, 273 where it was 388, 262. Tiles of 176 keys:
// 462, 602, 638, 672. Queries of d128 stay in registers, which wait for nothing in shared memory:
// causal 2k, 8k, full 16k: 516, 637, 708, without 510, 620, 681. Three warpgroups with 96 keys do
// not fit.
//
// Rows outside a sequence are never read: a map has the dimension of rows twice, and the second
// coordinate places the end of the bounded first one at the end of the sequence, so that rows past
// it read as zeros. A NaN of a value that no row may see therefore does no harm unless it lies in
// its own sequence beside values that some row of the tile may see.
//
// 8-bit: values are turned on the way, see turn_values(). Probabilities are rounded before they are
// divided by their sum, at up to 2^8.75, which no recipe's scale would improve on; of the scale of
// s and its inverse only the product enters. The amax of s is that of the divided ones, exactly.
// Tiles follow their maxima in whole powers of 2, so that results are seldom multiplied: H200, hot,
// d128, causal 8k, full 16k: 791, 867 TFLOP/s, with the maxima themselves 763, 810. What limits is
// power, and the exponentials' part: without exponentials 10 % more, maxima 4 %, sums 3 %, without
// all of that 1070; the tensor cores are 46 % busy, issue slots 55 %. Two warpgroups with 160 to
// 224 keys, queries in registers or not: 680 to 765.
//
// Dropout: a warp draws what is kept of its scores while it would wait for their product. Draws by
// warps 1 to 3 of the copying warpgroup were slower: H200, d128, causal, 8k: 412 TFLOP/s, with half
// or all of the draws there 381, 399, all three before Softmax::follow(). What limits are the
// instructions of Philox.
//
// ALiBi takes one instruction for each score: what a row's scores of a thread share of the distance
// is added to their maximum instead. A bias comes in tiles beside the keys, in the order in which
// ldmatrix gives a thread the elements of its scores.
//
// Pages: a tile of keys is one box or several, each of one page, copied by the four warps of the
// copying warpgroup; lanes read the table while they would wait for room. H200, d128, causal, 8k:
// 545, 553, 549, 532, 410 TFLOP/s with boxes of 128, 64, 32, 16, 8 rows; one thread that copied all
// came to 215 with 16.
//
// Head dims that leave a panel of 64 columns empty: no copy writes it, and of queries and keys it
// is zero from the beginning.
//
// What was slower than scores of one tile and products in turn (H200, d64, causal, 8k, 487 TFLOP/s
// with maxima of each tile): a quarter of the exponentials as polynomials, 445; scores of two tiles
// in registers, so that the next product never waits, 372 with three warpgroups and 64 keys, 348
// with two and 128. Room for two tiles of queries changes nothing: they are released before the
// last exponentials, and their tile is found a tile ahead.
//
// Instances: BF16 and F16 with head dims up to 64, 128, 192 with 128, and 256, the same with
// dropout, and with ALiBi, a bias or pages for dims up to 64, 128 and 256; E4M3 with 64 and 128.

#include "common/mma.cuh"
#include "common/philox.cuh"
#include "common/tma.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"
#include "nvte/backend/attention.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The kernels are empty there: "declared but never referenced" of all that they are made of.
#pragma nv_diag_suppress 177
#endif

namespace nvte {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;
constexpr float kInfinity = __builtin_huge_valf();
constexpr int kUnbounded = 1 << 30;

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct Side {
  const int32_t *cu, *starts;
  int max_seqlen, tokens;

  __device__ __forceinline__ int length(int i) const {
    int n = max_seqlen;
    if (cu != nullptr) n = min(n, cu[i + 1] - cu[i]);
    if (starts != nullptr) n = starts[i] < 0 ? 0 : min(n, tokens - starts[i]);
    return max(n, 0);
  }
  __device__ __forceinline__ bool ragged() const { return starts != nullptr; }
  // Row of the tensor, or of a dense sequence.
  __device__ __forceinline__ int first(int i) const { return ragged() ? starts[i] : 0; }
};

// Where the first row of a tile is for a map of encode_rows(), head dims aside.
struct Box {
  int row, end, head, batch;
};

// A tile of queries, as the copying thread tells it to the warpgroups.
struct Tile {
  int batch, head;
  int m;           // First row of the block.
  int rows;        // Of the sequence.
  int keys;        // Of the sequence.
  int begin, end;  // Tiles of keys.
  int low, high;   // Those of them that need no mask.
  Box q, kv;
  int q_rows[3];  // Of the warpgroups.
  float slope;    // ALiBi, of products of queries and keys.
  unsigned next;  // Of the block's tiles.
};

struct Params {
  CUtensorMap q, k, v, bias;
  void *o;
  int64_t o_batch, o_row, o_head;
  int dim_v;
  int panels_qk, panels_v;  // That the tensors have.
  int bias_rows;            // Of a box: 1 if the rows share one.
  bool bias_batch, bias_head;
  const int *k_pages, *v_pages;
  int max_k_pages, max_v_pages;
  unsigned last_k_page, last_v_page;  // Of the tensors: page numbers past them read these.
  int page_log2, page_boxes;          // Rows of a box of keys, and boxes of a page.
  Side q_side, kv_side;
  unsigned heads;
  int group;         // Query heads of a key head.
  int m_tiles;       // Of the longest sequence.
  unsigned pairs;    // Heads of all sequences.
  unsigned tiles;    // Of all heads.
  unsigned section;  // Heads that are worked on together.
  unsigned section_tiles;
  int left, right;  // kUnbounded: no bound.
  bool bottom_right;
  float scale, unscale;  // Its inverse.
  // 8-bit: of q, k, v, o and the probabilities.
  const float *q_scale_inv, *k_scale_inv, *v_scale_inv, *o_scale, *s_scale, *s_scale_inv;
  float *s_amax, *o_amax;
  NVTEDType o_dtype;
  float *stats, *max;
  const float *sink;
  const int64_t *rng_state;
  unsigned drop_level;
  float keep_factor;
  unsigned *next;

  __device__ __forceinline__ int64_t stats_at(const Tile &t, int row) const {
    const int64_t pair = int64_t{t.batch} * heads + t.head;
    return q_side.ragged() ? (int64_t{q_side.starts[t.batch]} + row) * heads + t.head
                           : pair * q_side.max_seqlen + row;
  }
};

// What an attention has besides: for its scores, or in its keys.
enum class Extra { kNone, kDropout, kAlibi, kBias, kPages };

template <class In, int kDimQK_, int kDimV_, int kWarpgroups_, int kKeys_, int kStages_,
          Extra kExtra = Extra::kNone>
struct Config {
  using T = In;
  static constexpr bool kDropout = kExtra == Extra::kDropout, kAlibi = kExtra == Extra::kAlibi,
                        kBias = kExtra == Extra::kBias, kPages = kExtra == Extra::kPages;
  static constexpr int kDimQK = kDimQK_, kDimV = kDimV_, kWarpgroups = kWarpgroups_;
  static constexpr int kKeys = kKeys_, kStages = kStages_;
  static constexpr int kRows = 64 * kWarpgroups, kThreads = 128 * (kWarpgroups + 1);
  static constexpr int kPanel = 128 / T::kBytes;  // Elements of a row of shared memory.
  static constexpr int kPanelsQK = (kDimQK + kPanel - 1) / kPanel;
  static constexpr int kPanelsV = (kDimV + kPanel - 1) / kPanel;
  static constexpr int kQueryBytes = kPanelsQK * 64 * 128, kKeyPanel = kKeys * 128;
  static constexpr int kKeyBytes = kPanelsQK * kKeyPanel, kValueBytes = kPanelsV * kKeyPanel;
  // Values of 8 bits are transposed: a row of shared memory has 128 keys of one column.
  static constexpr bool kTransposed = T::kBytes == 1;
  static constexpr int kTurnedPanel = kDimV * 128;
  static constexpr int kTurnedBytes = kTransposed ? (kKeys + 127) / 128 * kTurnedPanel : 0;
  static constexpr int kAtKeys = kWarpgroups * kQueryBytes;
  static constexpr int kAtValues = kAtKeys + kStages * kKeyBytes;
  static constexpr int kAtTurned = kAtValues + kStages * kValueBytes;
  // What dropout keeps: words of 64 keys of 16 rows, a lane's.
  static constexpr int kKeptWords = kDropout ? (kKeys + 63) / 64 : 0;
  // Panels of 64 columns of the bias, of all warpgroups' rows.
  static constexpr int kPanelsBias = kBias ? (kKeys + 63) / 64 : 0;
  static constexpr int kBiasPanel = kRows * 128, kBiasBytes = kPanelsBias * kBiasPanel;
  static constexpr int kAtBias = kAtTurned + kStages * kTurnedBytes;
  static constexpr int kAtControl = kAtBias + kStages * kBiasBytes;
  // Turning takes registers, of which 8-bit with wide values leaves none.
  static constexpr bool kBusy = kTransposed && kWarpgroups * kDimV < 3 * 128;
  static constexpr int kProducerRegisters = kBusy ? 56 : kWarpgroups == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters =
      kWarpgroups == 2 ? (kBusy ? 224 : 240) : (kBusy ? 152 : 160);
  // Maxima of the bits of scores; slower with narrow 8-bit tiles.
  static constexpr bool kWholeMax = !kAlibi && !(kTransposed && kDimV <= 64);
  // Most tiles go without maxima, see Softmax::follow().
  static constexpr bool kFollows = !kTransposed && (kExtra == Extra::kNone || kPages || kDropout);
  // Queries in registers, which are free where maxima are not looked for.
  static constexpr bool kHoldsQueries =
      !kTransposed && kExtra == Extra::kNone && kDimQK == 128 && kDimV == 128;
  static constexpr int kHeldSteps = kHoldsQueries ? kDimQK / 16 : 1;
  // Probabilities of 8 bits are multiplied by this before they are rounded: almost to 448.
  static constexpr float kLog2Up = kTransposed ? 8.75f : 0.0f;
};

// After the turns of the warpgroups.
constexpr int kCopyBarrier = 4;

// Three may be in use: the one whose queries were released last, with its output to be written, the
// next, and the one that the copying thread finds beside that.
constexpr unsigned kTiles = 4;

template <class C>
struct Control {
  static constexpr int kStages = C::kStages;
  uint64_t q_full[C::kWarpgroups], q_empty[C::kWarpgroups];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t turned_full[kStages], turned_empty[kStages], bias_full[kStages], bias_empty[kStages];
  bool is_end[kStages];  // Nothing follows in v_full.
  Tile tile[kTiles];
};

template <class C>
constexpr int kSharedBytes = C::kAtControl + static_cast<int>(sizeof(Control<C>)) + 1024;

// Stage and parity of a ring.
template <int kStages>
struct Place {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void step() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Row `row` of the sequence that starts at row `first` and has `length` rows.
__device__ __forceinline__ Box place_box(const Side &side, int first, int row, int length, int head,
                                         int batch) {
  return {side.max_seqlen - length + row, first + length, head, side.ragged() ? 0 : batch};
}

// Of a head; the heads past the largest power of two lie between those before it.
__device__ __forceinline__ float alibi_slope(int head, unsigned heads) {
  const int log2 = 31 - __clz(static_cast<int>(heads)), n = 1 << log2;
  const float step = __int_as_float((127 + 3 - log2) << 23);  // 8 / n
  return exp2_of(head < n ? -step * static_cast<float>(head + 1)
                          : -step * (static_cast<float>(head - n) + 0.5f));
}

template <class C>
__device__ __forceinline__ bool find_tile(const Params &p, unsigned index, Tile &t) {
  const unsigned section = index / p.section_tiles, first = section * p.section;
  const unsigned width = p.pairs - first < p.section ? p.pairs - first : p.section;
  const unsigned in = index - section * p.section_tiles, from_last = in / width;
  const unsigned pair = first + in - from_last * width;
  t.m = (p.m_tiles - 1 - static_cast<int>(from_last)) * C::kRows;
  t.batch = static_cast<int>(pair / p.heads);
  t.head = static_cast<int>(pair % p.heads);
  asm volatile("" ::: "memory");  // Lets go of the registers.
  t.rows = p.q_side.length(t.batch);
  t.keys = p.kv_side.length(t.batch);
  if (p.q_side.ragged() && t.m >= t.rows) return false;
  asm volatile("" ::: "memory");
  const int shift = p.bottom_right ? t.keys - t.rows : 0;
  const int last = (t.m + C::kRows < t.rows ? t.m + C::kRows : t.rows) - 1 + shift;
  const auto ceil = [](int x) { return x <= 0 ? 0 : (x + C::kKeys - 1) / C::kKeys; };
  const auto floor = [](int x) { return x <= 0 ? 0 : x / C::kKeys; };
  t.begin = p.left == kUnbounded ? 0 : floor(t.m + shift - p.left);
  t.low = p.left == kUnbounded ? 0 : ceil(last - p.left);
  asm volatile("" ::: "memory");
  const auto right_of = [&](int row) {
    return p.right == kUnbounded || row + p.right + 1 > t.keys ? t.keys : row + p.right + 1;
  };
  t.end = ceil(right_of(last));
  t.high = floor(right_of(t.m + shift));
  if (t.m >= t.rows || t.end < t.begin) t.end = t.begin;
  asm volatile("" ::: "memory");
  t.q = place_box(p.q_side, p.q_side.first(t.batch), t.m, t.rows, t.head, t.batch);
  // A warpgroup wholly past the sequence gets its last row, and its results go nowhere: no box may
  // begin outside a map of encode_rows(), see load_box().
#pragma unroll
  for (int w = 0; w < C::kWarpgroups; ++w) {
    t.q_rows[w] = min(t.q.row + 64 * w, p.q_side.max_seqlen - 1);
  }
  if constexpr (C::kAlibi) t.slope = alibi_slope(t.head, p.heads) * p.unscale;
  t.kv = place_box(p.kv_side, p.kv_side.first(t.batch), 0, t.keys, t.head / p.group, t.batch);
  return true;
}

// Copies rows from `row` on.
template <class C, int kPanels>
__device__ __forceinline__ void load_panels(unsigned char *to, int panel_bytes, int panels,
                                            const CUtensorMap *map, uint64_t *full, const Box &box,
                                            int row) {
  arrive_expecting(full, static_cast<uint32_t>(panels * panel_bytes));
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    if (kPanels > 1 && panel >= panels) break;
    load_box(to + panel * panel_bytes, map, full,
             {panel * C::kPanel, row, box.end, box.head, box.batch});
  }
}

// Where a part of a tile of keys or of values is, of one page.
struct PageBox {
  int first, end, number;
};

// Lane i finds the i-th box of tile n. Rows past the sequence's end in its last page read as zeros,
// see encode_pages(); boxes past that are that page's again.
template <class C>
__device__ __forceinline__ PageBox find_page(const Params &p, const int *pages, unsigned last_page,
                                             const Tile &t, int n) {
  const int log2 = p.page_log2, page_size = p.page_boxes << log2;
  const int box = (n * C::kKeys >> log2) + static_cast<int>(threadIdx.x % 32);
  const int at = min(box, (t.keys - 1) >> log2), page = p.page_boxes > 1 ? at / p.page_boxes : at;
  const int end = min(page_size, t.keys - page * page_size);
  return {page_size - end + ((at - page * p.page_boxes) << log2), end,
          static_cast<int>(min(static_cast<unsigned>(pages[page]), last_page))};
}

// Each warp of the copying warpgroup copies every fourth box.
template <class C, int kPanels>
__device__ __forceinline__ void load_pages(const Params &p, unsigned char *to, int panels,
                                           const CUtensorMap *map, const PageBox &lanes,
                                           uint64_t *full, int head) {
  if (threadIdx.x == 0) arrive_expecting(full, static_cast<uint32_t>(panels * C::kKeyPanel));
  const int boxes = C::kKeys >> p.page_log2;
#pragma unroll 1
  for (int i = __shfl_sync(0xffffffff, threadIdx.x / 32, 0); i < boxes; i += 4) {
    const int first = __shfl_sync(0xffffffff, lanes.first, i);
    const int end = __shfl_sync(0xffffffff, lanes.end, i);
    const int number = __shfl_sync(0xffffffff, lanes.number, i);
    if (threadIdx.x % 32 != 0) continue;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      if (kPanels > 1 && panel >= panels) break;
      load_box(to + panel * C::kKeyPanel + (i << p.page_log2) * 128, map, full,
               {panel * C::kPanel, first, end, head, number});
    }
  }
}

// By a thread, or with pages by a warpgroup.
template <class C>
__device__ __forceinline__ void copy_tiles(const Params &p, unsigned char *shared,
                                           Control<C> &control) {
  Place<C::kStages> k_at, v_at;
  const bool leads = !C::kPages || threadIdx.x == 0;
  // The tile of a number, or of the first number after it that has one. Everybody has left what was
  // there: the queries of a later tile have been released.
  const auto find = [&](Tile &t, unsigned index) {
    while (index < p.tiles) {
      t.next = atomicAdd(p.next, 1u);
      if (find_tile<C>(p, index, t)) break;
      index = t.next;
    }
    if (index >= p.tiles) {
      t.batch = -1;
      t.begin = t.end = 0;
    }
    // The queries have to wait for the last tile's.
    if (t.end > t.begin) {
#pragma unroll 1
      for (int i = 0; i < C::kWarpgroups * C::kPanelsQK; ++i) {
        const int panel = i / C::kWarpgroups;
        if (panel >= p.panels_qk) break;
        prefetch_box(
            &p.q, {panel * C::kPanel, t.q_rows[i % C::kWarpgroups], t.q.end, t.q.head, t.q.batch});
      }
    }
  };
  const auto prepare = [&](Tile &t, unsigned index) {
    if (leads) find(t, index);
    if constexpr (C::kPages) sync_threads(kCopyBarrier, 128);
  };
  prepare(control.tile[0], blockIdx.x);
  for (unsigned count = 0;; ++count) {
    const Tile &t = control.tile[count % kTiles];
    // The tile is read from shared memory again each time: there are few registers here.
#pragma unroll 1
    for (int n = t.end; n >= t.begin; --n) {
      if (n > t.begin) {
        uint64_t *const full = &control.k_full[k_at.stage];
        // Before the wait, beside which it comes.
        PageBox page;
        if constexpr (C::kPages) {
          page = find_page<C>(p, p.k_pages + int64_t{t.batch} * p.max_k_pages, p.last_k_page, t,
                              n - 1);
        }
        wait_barrier(&control.k_empty[k_at.stage], k_at.parity ^ 1);
        unsigned char *const to = shared + C::kAtKeys + k_at.stage * C::kKeyBytes;
        if constexpr (C::kPages) {
          load_pages<C, C::kPanelsQK>(p, to, p.panels_qk, &p.k, page, full, t.kv.head);
        } else {
          load_panels<C, C::kPanelsQK>(to, C::kKeyPanel, p.panels_qk, &p.k, full, t.kv,
                                       t.kv.row + (n - 1) * C::kKeys);
        }
        if constexpr (C::kBias) {
          uint64_t *const bias_full = &control.bias_full[k_at.stage];
          wait_barrier(&control.bias_empty[k_at.stage], k_at.parity ^ 1);
          arrive_expecting(bias_full, static_cast<uint32_t>(C::kPanelsBias * 128 * p.bias_rows));
#pragma unroll
          for (int panel = 0; panel < C::kPanelsBias; ++panel) {
            // No box may begin outside, nor where no 16 bytes begin; what a tile has past the keys
            // is masked.
            load_box(
                shared + C::kAtBias + k_at.stage * C::kBiasBytes + panel * C::kBiasPanel, &p.bias,
                bias_full,
                {min((n - 1) * C::kKeys + panel * 64, (p.kv_side.max_seqlen - 1) & ~7),
                 p.bias_rows > 1 ? t.m : 0, p.bias_head ? t.head : 0, p.bias_batch ? t.batch : 0});
          }
        }
        k_at.step();
      }
      if (n == t.end) {
#pragma unroll 1
        for (int w = 0; w < C::kWarpgroups; ++w) {
          uint64_t *const full = &control.q_full[w];
          wait_barrier(&control.q_empty[w], ~count & 1);
          if (!leads) continue;
          if (n == t.begin) {
            arrive(full);
          } else {
            load_panels<C, C::kPanelsQK>(shared + w * C::kQueryBytes, 64 * 128, p.panels_qk, &p.q,
                                         full, t.q, t.q_rows[w]);
          }
        }
      } else {
        uint64_t *const full = &control.v_full[v_at.stage];
        PageBox page;
        if constexpr (C::kPages) {
          page = find_page<C>(p, p.v_pages + int64_t{t.batch} * p.max_v_pages, p.last_v_page, t, n);
        }
        wait_barrier(&control.v_empty[v_at.stage], v_at.parity ^ 1);
        unsigned char *const to = shared + C::kAtValues + v_at.stage * C::kValueBytes;
        if constexpr (C::kPages) {
          load_pages<C, C::kPanelsV>(p, to, p.panels_v, &p.v, page, full, t.kv.head);
        } else {
          load_panels<C, C::kPanelsV>(to, C::kKeyPanel, p.panels_v, &p.v, full, t.kv,
                                      t.kv.row + n * C::kKeys);
        }
        v_at.step();
      }
      // Early enough to wait for the number and for the first look at the queries beside the
      // products, and late enough to have loads under way.
      if (n == (t.end > t.begin ? t.end - 1 : t.end) && t.batch >= 0) {
        prepare(control.tile[(count + 1) % kTiles], t.next);
      }
    }
    if (t.batch < 0) break;
  }
  if constexpr (C::kTransposed) {
    wait_barrier(&control.v_empty[v_at.stage], v_at.parity ^ 1);
    control.is_end[v_at.stage] = true;
    arrive(&control.v_full[v_at.stage]);
  }
}

// Warps 1 to 3 of the copying warpgroup: values of 8 bits, key by key in rows, become rows of a
// column, the keys of each 16 in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, in which a thread
// has the scores of a row.
template <class C>
__device__ __forceinline__ void turn_values(unsigned char *shared, Control<C> &control) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - 1,
            lane = static_cast<int>(threadIdx.x) % 32;
  for (Place<C::kStages> at;; at.step()) {
    wait_barrier(&control.v_full[at.stage], at.parity);
    if (control.is_end[at.stage]) break;
    wait_barrier(&control.turned_empty[at.stage], at.parity ^ 1);
    const uint32_t from =
        shared_address(shared + C::kAtValues + at.stage * C::kValueBytes) + lane * 128;
    // Matrix i of four of 8 keys and 8 pairs of columns: columns of parity i % 2, keys 16 (i / 2)
    // on.
    const int column = 2 * (lane % 8) + lane / 8 % 2;
    const uint32_t to =
        shared_address(shared + C::kAtTurned + at.stage * C::kTurnedBytes) + column * 128;
    // Blocks of 32 keys and 16 columns; a warp's keys are constants but for the first.
    constexpr int kBlocks = C::kKeys / 32, kTogether = C::kWarpgroups == 2 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < (kBlocks + 2) / 3; ++i) {
      const int keys = warp + 3 * i;
      if (kBlocks % 3 != 0 && keys >= kBlocks) break;
      const uint32_t row = from + keys * 32 * 128;
      const uint32_t unit = static_cast<uint32_t>((2 * (keys % 4) + lane / 16) ^ (column % 8)) * 16;
      const uint32_t turned_row = to + keys / 4 * C::kTurnedPanel + unit;
#pragma unroll
      for (int first = 0; first < C::kDimV / 16; first += kTogether) {
        uint32_t w[kTogether][4];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const int columns = first + j;
          asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                       : "=r"(w[j][0]), "=r"(w[j][1]), "=r"(w[j][2]), "=r"(w[j][3])
                       : "r"(row + columns / 8 * C::kKeyPanel +
                             static_cast<uint32_t>((columns % 8) ^ (lane % 8)) * 16)
                       : "memory");
        }
        // A word has two keys of two columns.
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                       :
                       : "r"(turned_row + (first + j) * 16 * 128),
                         "r"(__byte_perm(w[j][0], w[j][1], 0x6420)),
                         "r"(__byte_perm(w[j][0], w[j][1], 0x7531)),
                         "r"(__byte_perm(w[j][2], w[j][3], 0x6420)),
                         "r"(__byte_perm(w[j][2], w[j][3], 0x7531))
                       : "memory");
        }
      }
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      arrive(&control.turned_full[at.stage]);
      arrive(&control.v_empty[at.stage]);
    }
  }
}

// Per thread two rows, h = 0 and 1, eight apart.
template <class C>
struct Softmax {
  float max[2], sum[2];

  // The exponent of 2 that a row's exponentials lack. 8-bit: whole, so that few maxima move it.
  static __device__ __forceinline__ float base_of(float m, float scale_log2) {
    if constexpr (!C::kTransposed) return m * scale_log2;
    constexpr float kRound = 0x1.8p23f;
    return __fadd_rn(__fadd_ru(m * scale_log2, kRound), -kRound);
  }

  // Scores become exp(x - max) with the maximum of the tiles before, which is quicker than to find
  // another. False if they grew too large for T or for sums, or if one is NaN: the scores are then
  // lost.
  __device__ __forceinline__ bool follow(float (&s)[C::kKeys / 2], float scale_log2) {
    constexpr float kMost = C::T::kDtype == kNVTEFloat16 ? 0x1p14f : 0x1p30f;
    float total[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = max[h] * scale_log2;
#pragma unroll
      for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &x = s[4 * j + 2 * h + e];
          x = exp2_of(__fmaf_rn(x, scale_log2, -base));
          total[h] = __fadd_rn(total[h], x);
        }
      }
    }
    if (__any_sync(0xffffffff, !(total[0] + total[1] <= kMost))) return false;
    sum[0] += total[0];
    sum[1] += total[1];
    return true;
  }

  // Scores become exp(x - max); `grown` is by what earlier results have to be multiplied. `apart`:
  // what the scores of a row lack. `slack`: by how much scores may pass the maximum before it
  // follows.
  template <bool kFirst>
  __device__ __forceinline__ void update(float (&s)[C::kKeys / 2], float scale_log2,
                                         float (&grown)[2], const float (&apart)[2], float slack) {
    float largest[2];
    const auto find_largest = [&] {
      // Four chains: each alone would wait for itself.
      float most[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
#pragma unroll
      for (int i = 4; i < C::kKeys / 2; ++i) {
        most[i / 2 % 2][i % 2] = fmaxf(most[i / 2 % 2][i % 2], s[i]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float m = fmaxf(most[h][0], most[h][1]);
        if constexpr (C::kAlibi) m += apart[h];
        m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 1));
        largest[h] = fmaxf(m, __shfl_xor_sync(0xffffffff, m, 2));
      }
    };
    if constexpr (kFirst || !C::kWholeMax) {
      find_largest();
    } else {
      // Of bits as integers there is a maximum of three, which is the floats' unless all of them,
      // and what was before, are negative.
      int bits[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto at = [&](int j, int e) { return __float_as_int(s[4 * j + 2 * h + e]); };
        int most[2] = {__float_as_int(max[h]), ::max(at(0, 0), at(0, 1))};
#pragma unroll
        for (int j = 1; j < C::kKeys / 8; ++j) {
          most[j % 2] = __vimax3_s32(most[j % 2], at(j, 0), at(j, 1));
        }
        int m = ::max(most[0], most[1]);
        m = ::max(m, __shfl_xor_sync(0xffffffff, m, 1));
        bits[h] = ::max(m, __shfl_xor_sync(0xffffffff, m, 2));
        largest[h] = __int_as_float(bits[h]);
      }
      if (__any_sync(0xffffffff, (bits[0] | bits[1]) < 0)) find_largest();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = largest[h];
      if (!kFirst) m = m > max[h] + slack ? m : max[h];
      const float base = base_of(m, scale_log2);
      // Of a row without a key so far, or with none but those of the lowest bias there is.
      const bool none = (C::kBias ? base : m) == -kInfinity;
      float up = C::kLog2Up - (none ? 0.0f : base);
      if constexpr (kFirst) {
        grown[h] = 1.0f;
      } else if constexpr (C::kTransposed) {
        grown[h] = exp2_of(base_of(max[h], scale_log2) - (none ? 0.0f : base));
      } else {
        grown[h] = exp2_of(__fmaf_rn(max[h], scale_log2, none ? 0.0f : -base));
      }
      if constexpr (C::kAlibi) up = __fmaf_rn(apart[h], scale_log2, up);
      max[h] = m;
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &x = s[4 * j + 2 * h + e];
          x = exp2_of(__fmaf_rn(x, scale_log2, up));
          total = __fadd_rn(total, x);
        }
      }
      sum[h] = kFirst ? total : __fmaf_rn(sum[h], grown[h], total);
    }
  }
};

// slope (c - r) but for what a row's scores of the thread share, which goes to `apart`.
template <class C>
__device__ __forceinline__ void add_distances(float (&s)[C::kKeys / 2], float (&apart)[2],
                                              const Tile &t, int n, int w) {
  const float slope = t.slope;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int first =
      n * C::kKeys + 2 * (thread % 4) - (t.m + 64 * w + thread / 32 * 16 + thread % 32 / 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) apart[h] = slope * static_cast<float>(first - 8 * h);
#pragma unroll
  for (int i = 0; i < C::kKeys / 2; ++i) {
    const int column = i / 4 * 8 + i % 2;
    if (column > 0) s[i] = __fmaf_rn(slope, static_cast<float>(column), s[i]);
  }
}

// `bias`: the warpgroups' rows in shared memory, or one row.
template <class C>
__device__ __forceinline__ void add_bias(float (&s)[C::kKeys / 2], uint32_t bias, bool one_row,
                                         float unscale, int w) {
  const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
  const int row = one_row ? 0 : 64 * w + thread / 32 * 16 + lane % 16;
  bias += static_cast<uint32_t>(row) * 128;
#pragma unroll
  for (int i = 0; i < C::kKeys / 16; ++i) {
    uint32_t words[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(bias + i / 4 * C::kBiasPanel +
                       static_cast<uint32_t>((i % 4 * 2 + lane / 16) ^ (row % 8)) * 16)
                 : "memory");
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      float pair[2];
      C::T::to_float(words[g], pair);
#pragma unroll
      for (int e = 0; e < 2; ++e)
        s[8 * i + 2 * g + e] = __fmaf_rn(pair[e], unscale, s[8 * i + 2 * g + e]);
    }
  }
}

template <class C>
__device__ __forceinline__ void mask_scores(float (&s)[C::kKeys / 2], const Params &p,
                                            const Tile &t, int n, int w) {
  const int shift = p.bottom_right ? t.keys - t.rows : 0;
  const int column = n * C::kKeys + 2 * static_cast<int>(threadIdx.x % 4);
  const int row =
      t.m + 64 * w + static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int diagonal = row + 8 * h + shift;
    const int right = p.right == kUnbounded ? t.keys : diagonal + p.right + 1;
    const int end = (right < t.keys ? right : t.keys) - column;
#pragma unroll
    for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e >= end) s[4 * j + 2 * h + e] = -kInfinity;
      }
    }
    if (p.left == kUnbounded) continue;
    const int begin = diagonal - p.left - column;
#pragma unroll
    for (int j = 0; j < C::kKeys / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < begin) s[4 * j + 2 * h + e] = -kInfinity;
      }
    }
  }
}

template <class C>
using Held = uint32_t[C::kHeldSteps][4];

template <class C>
__device__ __forceinline__ void hold_queries(Held<C> &held, uint32_t q) {
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < C::kHeldSteps; ++i) {
    const int vector = (i % 4 * 2 + lane / 16) ^ (row % 8);
    load_matrices(q + i / 4 * 64 * 128 + row * 128 + static_cast<uint32_t>(vector) * 16, held[i]);
  }
}

template <class C>
__device__ __forceinline__ void multiply_scores(float (&s)[C::kKeys / 2], uint32_t q,
                                                const Held<C> &held, uint32_t k) {
  using P = Product<typename C::T, C::kKeys>;
  constexpr int kStep = 32 / C::T::kBytes;
  const uint64_t a = operand_k(q), b = operand_k(k);
#pragma unroll
  for (int i = 0; i < C::kDimQK / kStep; ++i) {
    const uint32_t in = (i % 4) * 32;
    const uint64_t right = operand_at(b, (i / 4) * C::kKeyPanel + in);
    if constexpr (C::kHoldsQueries) {
      P::registers(s, held[i], right, i > 0);
    } else {
      P::shared(s, operand_at(a, (i / 4) * 64 * 128 + in), right, i > 0);
    }
  }
}

// The scores of a warp once more, by products of a warp: the others may have gone on.
template <class C>
__device__ __forceinline__ void restore_scores(float (&s)[C::kKeys / 2], uint32_t q, uint32_t k) {
  // Read anew: what is known of a thread would wait for this in registers.
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const int lane = thread & 31, row = (thread & 96) / 2 + lane % 16;
  const int key = lane % 8 + lane / 16 * 8;
#pragma unroll
  for (int j = 0; j < C::kKeys / 16; ++j) {
    float sums[2][4] = {};
#pragma unroll 1
    for (int i = 0; i < C::kDimQK / 16; ++i) {
      uint32_t a[4], b[4];
      load_matrices(q + i / 4 * 64 * 128 + row * 128 +
                        static_cast<uint32_t>((i % 4 * 2 + lane / 16) ^ (row % 8)) * 16,
                    a);
      load_matrices(k + i / 4 * C::kKeyPanel + (16 * j + key) * 128 +
                        static_cast<uint32_t>((i % 4 * 2 + lane / 8 % 2) ^ (key % 8)) * 16,
                    b);
      multiply<typename C::T>(sums[0], a, b[0], b[1]);
      multiply<typename C::T>(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) s[8 * j + i] = sums[i / 4][i % 4];
  }
}

template <class C>
constexpr int kSteps = C::kKeys * C::T::kBytes / 32;

template <class C>
__device__ __forceinline__ void multiply_values(float (&o)[C::kDimV / 2],
                                                const uint32_t (&a)[kSteps<C>][4], uint32_t v) {
  using Values = Product<typename C::T, C::kDimV>;
  const uint64_t b = C::kTransposed ? operand_k(v) : operand_mn(v, C::kKeyPanel);
#pragma unroll
  for (int i = 0; i < kSteps<C>; ++i) {
    if constexpr (C::kTransposed) {
      Values::registers(o, a[i], operand_at(b, i / 4 * C::kTurnedPanel + i % 4 * 32), true);
    } else {
      Values::template registers<true>(o, a[i], operand_at(b, i * 2048), true);
    }
  }
}

// What dropout keeps of a tile, as KeptScores gives it.
template <class C>
using Kept = uint32_t[C::kKeptWords + !C::kDropout];

template <class C>
__device__ __forceinline__ void round_scores(const float (&s)[C::kKeys / 2], const Kept<C> &kept,
                                             uint32_t (&a)[kSteps<C>][4]) {
#pragma unroll
  for (int i = 0; i < kSteps<C> * 4; ++i) {
    if constexpr (C::kTransposed) {
      const int at = i / 4 * 16 + i % 4 / 2 * 8 + i % 2 * 2;
      const float four[4] = {s[at], s[at + 1], s[at + 4], s[at + 5]};
      a[i / 4][i % 4] = C::T::from_float(four);
    } else {
      const float pair[2] = {s[2 * i], s[2 * i + 1]};
      a[i / 4][i % 4] = C::T::from_float(pair);
      if constexpr (C::kDropout) a[i / 4][i % 4] &= kept_pair(kept[i / 16], i / 4 % 4, i % 4);
    }
  }
}

// Word i of lane l of four becomes word l of lane i.
__device__ __forceinline__ void transpose_words(uint32_t (&w)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    const bool high = threadIdx.x & static_cast<unsigned>(step);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffff, high ? w[i] : w[i + step], step);
      w[i] = high ? got : w[i];
      w[i + step] = high ? w[i + step] : got;
    }
  }
}

__device__ __forceinline__ float scale_at(const float *p) { return p != nullptr ? *p : 1.0f; }

// Largest values of what a thread has written, 8-bit only.
struct Amax {
  float s = 0.0f, o = 0.0f;
};

// Output, as elements of Out, and statistics of a warpgroup's rows of a tile.
template <class C, class Out>
__device__ __forceinline__ void write_tile(const Params &p, const Tile &t, int w,
                                           float (&o)[C::kDimV / 2], const Softmax<C> &softmax,
                                           float scale_log2, Amax &amax) {
  // Read anew: what is known of a thread would wait for this in registers.
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  thread = static_cast<int>(static_cast<unsigned>(thread) % 128);
  const int lane = thread % 32;
  const int written = p.q_side.ragged() ? t.rows : p.q_side.max_seqlen;
  const int64_t first = p.q_side.first(t.batch), batch = p.q_side.ragged() ? 0 : t.batch;
  float o_scale = 1.0f, v_scale = 1.0f;
  if constexpr (C::kTransposed) {
    v_scale = scale_at(p.v_scale_inv) * scale_at(p.s_scale) * scale_at(p.s_scale_inv);
    if (kIsFp8<Out>) o_scale = scale_at(p.o_scale);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = t.m + 64 * w + thread / 32 * 16 + lane / 4 + 8 * h;
    float sum = softmax.sum[h];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const bool empty = r >= t.rows || softmax.max[h] == -kInfinity || (C::kBias && sum == 0.0f);
    const float max = empty ? -kInfinity : softmax.max[h] * (scale_log2 * kLn2);
    // What the sum is a multiple of.
    float unit = max;
    if constexpr (C::kTransposed) {
      unit = empty ? -kInfinity : Softmax<C>::base_of(softmax.max[h], scale_log2) * kLn2;
    }
    float stats = unit, factor = 1.0f;
    if (p.sink != nullptr) {
      const float sink = p.sink[t.head];
      stats = fmaxf(unit, sink);
      factor = exp2_of((unit - stats) * kLog2E);
      sum = sum * factor + exp2_of((sink - stats) * kLog2E + C::kLog2Up);
    }
    factor = __fdividef(factor, sum);
    if constexpr (C::kDropout) factor *= p.keep_factor;
    stats = empty ? -kInfinity : stats + (__log2f(sum) - C::kLog2Up) * kLn2;
    if (lane % 4 == 0 && r < written) {
      const int64_t at = p.stats_at(t, r);
      p.stats[at] = stats;
      if (p.max != nullptr) p.max[at] = max;
    }
    if constexpr (C::kTransposed) {
      if (!empty) amax.s = fmaxf(amax.s, exp2_of((max - stats) * kLog2E));
      factor *= v_scale;
    }
    // The four lanes of a row have its columns in turns of two; they write 16 bytes each.
    constexpr int kEach = 16 / Out::kBytes;
    using Element = typename Out::Bits;
    Element *const to = static_cast<Element *>(p.o) + batch * p.o_batch + (first + r) * p.o_row +
                        t.head * p.o_head + kEach * (lane % 4);
#pragma unroll
    for (int j = 0; j < C::kDimV / 8; j += kEach / 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x[4 / Out::kBytes];
#pragma unroll
        for (int e = 0; e < 4 / Out::kBytes; ++e) {
          float &from = o[4 * (j + i * (4 / Out::kBytes) / 2 + e / 2) + 2 * h + e % 2];
          // One group after the other: more at a time would need more registers.
          asm volatile("" : "+f"(from));
          x[e] = empty ? 0.0f : from * factor;
          if constexpr (C::kTransposed) {
            amax.o = fmaxf(amax.o, fabsf(x[e]));
            x[e] *= o_scale;
          }
        }
        words[i] = Out::from_float(x);
      }
      transpose_words(words);
      if constexpr (kIsFp8<Out>) {
        // A word has two columns of the lane's first eight, and two of its second.
        const uint32_t low[2] = {__byte_perm(words[0], words[1], 0x5410),
                                 __byte_perm(words[2], words[3], 0x5410)};
        words[3] = __byte_perm(words[2], words[3], 0x7632);
        words[2] = __byte_perm(words[0], words[1], 0x7632);
        words[0] = low[0];
        words[1] = low[1];
      }
      if (r < written && 8 * j + kEach * (lane % 4) < p.dim_v) {
        store_bytes<16>(to + 8 * j, words);
      }
    }
  }
}

// Of a tile that has no key.
__device__ __forceinline__ void write_nothing(const Params &p, const Tile &t, int w) {
  const bool wide = p.o_dtype == kNVTEBFloat16 || p.o_dtype == kNVTEFloat16;
  const int written = p.q_side.ragged() ? t.rows : p.q_side.max_seqlen;
  const int units = p.dim_v / (wide ? 8 : 16), bytes = wide ? 2 : 1;
  const int64_t first = p.q_side.first(t.batch), batch = p.q_side.ragged() ? 0 : t.batch;
  const int thread = static_cast<int>(threadIdx.x) % 128, begin = t.m + 64 * w;
  const int rows = written - begin < 64 ? written - begin : 64;
#pragma unroll 1
  for (int i = thread; i < rows * units; i += 128) {
    const uint32_t zeros[4] = {};
    const int64_t at =
        batch * p.o_batch + (first + begin + i / units) * p.o_row + t.head * p.o_head;
    store_bytes<16>(static_cast<char *>(p.o) + at * bytes + i % units * 16, zeros);
  }
  if (thread >= rows) return;
  const int64_t at = p.stats_at(t, begin + thread);
  p.stats[at] = -kInfinity;
  if (p.max != nullptr) p.max[at] = -kInfinity;
}

// Of a warp's threads; the value before is 0 or another thread's.
__device__ __forceinline__ void raise_amax(float *amax, float x) {
  if (amax == nullptr) return;
  const unsigned most = __reduce_max_sync(0xffffffff, __float_as_uint(x));
  if (threadIdx.x % 32 == 0) atomicMax(reinterpret_cast<unsigned *>(amax), most);
}

template <class C>
__device__ __forceinline__ void multiply_tiles(const Params &p, unsigned char *shared,
                                               Control<C> &control, int w) {
  // The order of the warpgroups' products: barrier 1 + w is w's turn.
  const int turn = 1 + w, next_turn = 1 + (w + 1) % C::kWarpgroups;
  if (w == C::kWarpgroups - 1) arrive_threads(next_turn, 256);
  const uint32_t q = shared_address(shared + w * C::kQueryBytes);
  const auto release = [](uint64_t *barrier) {
    if (threadIdx.x % 32 == 0) arrive(barrier);
  };
  auto *const v_full = C::kTransposed ? control.turned_full : control.v_full;
  auto *const v_empty = C::kTransposed ? control.turned_empty : control.v_empty;
  Place<C::kStages> k_at, v_at;
  float s[C::kKeys / 2], o[C::kDimV / 2], grown[2];
  uint32_t a[kSteps<C>][4];
  Held<C> held;
  Softmax<C> softmax;
  Kept<C> kept = {};
  const auto draw = [&](const Tile &t, int n) {
    if constexpr (C::kDropout) {
      const KeptScores<false> keep(p.rng_state, p.drop_level, uint64_t{p.heads} * t.batch + t.head,
                                   p.q_side.max_seqlen, p.kv_side.max_seqlen);
      keep.draw(t.m + 64 * w + threadIdx.x % 128 / 32 * 16, n * C::kKeys, kept);
    }
  };
  const auto keys = [&] { return shared_address(shared + C::kAtKeys + k_at.stage * C::kKeyBytes); };
  const auto values = [&] {
    return C::kTransposed ? shared_address(shared + C::kAtTurned + v_at.stage * C::kTurnedBytes)
                          : shared_address(shared + C::kAtValues + v_at.stage * C::kValueBytes);
  };
  const auto release_keys = [&] {
    release(&control.k_empty[k_at.stage]);
    k_at.step();
  };
  const auto release_values = [&] {
    release(&v_empty[v_at.stage]);
    v_at.step();
  };
  // By every thread: each has read of the tiles before.
  const auto release_tile = [&] { arrive(&control.q_empty[w]); };
  float apart[2];
  const auto add_extras = [&](const Tile &t, int n, const Place<C::kStages> &at) {
    if constexpr (C::kAlibi) add_distances<C>(s, apart, t, n, w);
    if constexpr (C::kBias) {
      wait_barrier(&control.bias_full[at.stage], at.parity);
      add_bias<C>(s, shared_address(shared + C::kAtBias + at.stage * C::kBiasBytes),
                  p.bias_rows == 1, p.unscale, w);
      __syncwarp();
      release(&control.bias_empty[at.stage]);
    }
  };
  bool open = false;  // The last tile waits for its last product.
  // What the scores lack as exponents of 2.
  float scale_log2 = p.scale * kLog2E;
  if constexpr (C::kTransposed) scale_log2 *= scale_at(p.q_scale_inv) * scale_at(p.k_scale_inv);
  // Exponentials up to 2^8 instead of results that are multiplied each time.
  const float slack = C::kTransposed || p.max != nullptr ? 0.0f : 8.0f / scale_log2;
  Amax amax;
  for (unsigned count = 0;; ++count) {
    wait_barrier(&control.q_full[w], count & 1);
    // Read again wherever it is used: registers are what the loop below is short of.
    const Tile &t = control.tile[count % kTiles];
    const bool any = t.end > t.begin;
    if (!any && !open) {
      if (t.batch < 0) break;
      write_nothing(p, t, w);
      release_tile();
      continue;
    }
    // The first scores of this tile beside the last product of the tile before. Without one of them
    // its operands are whatever lies there and nobody looks at the result: products under a
    // condition would run one by one.
    int n = t.end - 1;
    if (any) wait_barrier(&control.k_full[k_at.stage], k_at.parity);
    if (open) wait_barrier(&v_full[v_at.stage], v_at.parity);
    sync_threads(turn, 256);
    pin(s);
    pin(o);
    if constexpr (C::kHoldsQueries) hold_queries<C>(held, q);
    begin_products();
    multiply_scores<C>(s, q, held, keys());
    commit_products();
    begin_products();
    multiply_values<C>(o, a, values());
    commit_products();
    arrive_threads(next_turn, 256);
    if (any) draw(t, n);
    wait_products<0>();
    pin(s);
    pin(o);
    const Place<C::kStages> first_at = k_at;
    if (any) {
      release_keys();
      if (n == t.begin) release_tile();
    }
    if (open) {
      release_values();
      const Tile &last = control.tile[(count - 1) % kTiles];
      if constexpr (!C::kTransposed) {
        write_tile<C, typename C::T>(p, last, w, o, softmax, scale_log2, amax);
      } else if (p.o_dtype == kNVTEBFloat16) {
        write_tile<C, BF16>(p, last, w, o, softmax, scale_log2, amax);
      } else if (p.o_dtype == kNVTEFloat16) {
        write_tile<C, F16>(p, last, w, o, softmax, scale_log2, amax);
      } else {
        write_tile<C, E4M3>(p, last, w, o, softmax, scale_log2, amax);
      }
      open = false;
    }
    if (!any) {
      if (t.batch < 0) break;
      write_nothing(p, t, w);
      release_tile();
      continue;
    }
    open = true;
    add_extras(t, n, first_at);
    if (n >= t.high || n < t.low) mask_scores<C>(s, p, t, n, w);
    softmax.template update<true>(s, scale_log2, grown, apart, slack);
    round_scores<C>(s, kept, a);
#pragma unroll
    for (int i = 0; i < C::kDimV / 2; ++i) o[i] = 0.0f;
    // The shuffles tell the compiler that a warp agrees on them.
    const int begin = __shfl_sync(0xffffffff, t.begin, 0), low = __shfl_sync(0xffffffff, t.low, 0),
              high = __shfl_sync(0xffffffff, t.high, 0);
#pragma unroll 1
    for (bool more = n > begin; more;) {
      --n;
      wait_barrier(&control.k_full[k_at.stage], k_at.parity);
      sync_threads(turn, 256);
      pin(s);
      pin(o);
      begin_products();
      multiply_scores<C>(s, q, held, keys());
      commit_products();
      wait_barrier(&v_full[v_at.stage], v_at.parity);
      begin_products();
      multiply_values<C>(o, a, values());
      commit_products();
      arrive_threads(next_turn, 256);
      const bool masked = n >= high || n < low;
      more = n > begin;
      // The last tile's products are to release the queries, which would be needed again.
      bool follows = false;
      if constexpr (C::kFollows) {
        follows = !masked && more && p.max == nullptr &&
                  __all_sync(0xffffffff, fminf(softmax.max[0], softmax.max[1]) > -kInfinity);
      }
      draw(t, n);
      wait_products<1>();
      pin(s);
      if constexpr (C::kFollows) {
        if (follows) {
          follows = softmax.follow(s, scale_log2);
          if (!follows) restore_scores<C>(s, q, keys());
        }
      }
      const Place<C::kStages> at = k_at;
      release_keys();
      if (!follows) {
        // Early: the next queries come while this goes through the exponential.
        if (!more) release_tile();
        add_extras(t, n, at);
        if (masked) mask_scores<C>(s, p, t, n, w);
        softmax.template update<false>(s, scale_log2, grown, apart, slack);
        // Never taken. Without a branch on the sums the assembler moves the wait before the
        // exponentials, which are to run beside the second product.
        if (__any_sync(0xffffffff, softmax.sum[0] + softmax.sum[1] < 0.0f)) __nanosleep(0);
      }
      wait_products<0>();
      pin(o);
      release_values();
      round_scores<C>(s, kept, a);
      // Rare after a few tiles.
      if (!follows && __any_sync(0xffffffff, grown[0] != 1.0f || grown[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < C::kDimV / 2; ++i) o[i] *= grown[i / 2 % 2];
      }
    }
  }
  if constexpr (C::kTransposed) {
    raise_amax(p.s_amax, amax.s);
    raise_amax(p.o_amax, amax.o);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    attention_forward_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *const shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto &control = *reinterpret_cast<Control<C> *>(shared + C::kAtControl);
  if (threadIdx.x == 0) {
    for (int w = 0; w < C::kWarpgroups; ++w) {
      init_barrier(&control.q_full[w], 1);
      init_barrier(&control.q_empty[w], 128);
    }
    for (int i = 0; i < C::kStages; ++i) {
      init_barrier(&control.k_full[i], 1);
      init_barrier(&control.v_full[i], 1);
      init_barrier(&control.turned_full[i], 3);
      init_barrier(&control.bias_full[i], 1);
      init_barrier(&control.bias_empty[i], 4 * C::kWarpgroups);
      init_barrier(&control.k_empty[i], 4 * C::kWarpgroups);
      init_barrier(&control.turned_empty[i], 4 * C::kWarpgroups);
      init_barrier(&control.v_empty[i], C::kTransposed ? 3 : 4 * C::kWarpgroups);
      control.is_end[i] = false;
    }
    publish_barriers();
  }
  // Columns of queries and keys that no tensor has, which no copy writes.
  if (C::kPanelsQK > 1 && p.panels_qk < C::kPanelsQK) {
    const auto clear = [&](unsigned char *tile, int panel_bytes) {
      const int first = p.panels_qk * panel_bytes, end = C::kPanelsQK * panel_bytes;
      for (int i = first + static_cast<int>(threadIdx.x) * 16; i < end; i += C::kThreads * 16) {
        *reinterpret_cast<uint4 *>(tile + i) = make_uint4(0, 0, 0, 0);
      }
    };
    for (int i = 0; i < C::kWarpgroups; ++i) {
      clear(shared + i * C::kQueryBytes, 64 * 128);
    }
    for (int i = 0; i < C::kStages; ++i) {
      clear(shared + C::kAtKeys + i * C::kKeyBytes, C::kKeyPanel);
    }
    fence_async_proxy();
  }
  __syncthreads();
  wait_for_stream();
  if (threadIdx.x < 128) {
    give_registers<C::kProducerRegisters>();
    if (C::kPages || threadIdx.x == 0) {
      copy_tiles<C>(p, shared, control);
    } else if (C::kTransposed && threadIdx.x >= 32) {
      turn_values<C>(shared, control);
    }
  } else {
    take_registers<C::kConsumerRegisters>();
    // The shuffle tells the compiler that a warp agrees on it.
    const int w = static_cast<int>(__shfl_sync(0xffffffff, threadIdx.x / 128, 0)) - 1;
    multiply_tiles<C>(p, shared, control, w);
  }
#endif
}

// Each block begins with the tile of its number.
__global__ void begin_kernel(unsigned *next, unsigned blocks, float *s_amax, float *o_amax) {
  wait_for_stream();
  let_next_start();
  *next = blocks;
  if (s_amax != nullptr) *s_amax = 0.0f;
  if (o_amax != nullptr) *o_amax = 0.0f;
}

// The rows of a tensor twice, see above.
NVTEXOutcome encode_rows(CUtensorMap *map, const NVTEXAttentionTensor &tensor,
                         const NVTEXAttentionSide &side, size_t batch, size_t dim, size_t heads,
                         uint32_t rows, bool is_fp8) {
  const uint64_t bytes = is_fp8 ? 1 : 2, step = static_cast<uint64_t>(tensor.row) * bytes;
  const bool ragged = side.starts != nullptr;
  const uint64_t bound = side.max_seqlen;
  const uint64_t dims[5] = {dim, bound, bound + (ragged ? side.tokens : bound) + 1, heads,
                            ragged ? 1 : batch};
  const uint64_t steps[4] = {
      step, step, heads > 1 ? static_cast<uint64_t>(tensor.head) * bytes : step,
      !ragged && batch > 1 ? static_cast<uint64_t>(tensor.batch) * bytes : step};
  const uint32_t box[5] = {is_fp8 ? 128u : 64u, rows, 1, 1, 1};
  const CUtensorMapDataType type = is_fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : tensor.dtype == kNVTEFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode_map(map, type, 5, static_cast<const char *>(tensor.data) - bound * step, dims,
                    steps, box);
}

// Likewise of pages.
NVTEXOutcome encode_pages(CUtensorMap *map, const NVTEXAttentionTensor &tensor, size_t page_size,
                          size_t num_pages, size_t dim, size_t heads, int rows) {
  const uint64_t step = static_cast<uint64_t>(tensor.row) * 2;
  const uint64_t dims[5] = {dim, page_size, page_size + 1, heads, num_pages};
  const uint64_t steps[4] = {step, step, heads > 1 ? static_cast<uint64_t>(tensor.head) * 2 : step,
                             tensor.batch > 0 ? static_cast<uint64_t>(tensor.batch) * 2 : step};
  const uint32_t box[5] = {64, static_cast<uint32_t>(rows), 1, 1, 1};
  return encode_map(map,
                    tensor.dtype == kNVTEFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                    5, static_cast<const char *>(tensor.data) - page_size * step, dims, steps, box);
}

template <class C>
NVTEXOutcome run(const NVTEXAttentionArgs &a, cudaStream_t stream) {
  Params p = {};
  constexpr bool kFp8 = C::T::kBytes == 1;
  if constexpr (C::kPages) {
    p.k_pages = a.page_table_k;
    p.v_pages = a.page_table_v;
    p.max_k_pages = static_cast<int>(a.max_pages_k);
    p.max_v_pages = static_cast<int>(a.max_pages_v);
    p.last_k_page = static_cast<unsigned>(a.num_pages_k - 1);
    p.last_v_page = static_cast<unsigned>(a.num_pages_v - 1);
    const int size = static_cast<int>(a.page_size_k);
    int rows = C::kKeys;
    while (size % rows != 0) rows /= 2;
    while (rows >> p.page_log2 > 1) ++p.page_log2;
    p.page_boxes = size / rows;
  }
  const auto encode = [&](CUtensorMap *map, const NVTEXAttentionTensor &tensor,
                          const NVTEXAttentionSide &side, size_t dim, int rows) {
    return encode_rows(map, tensor, side, a.batch, dim, side.heads, static_cast<uint32_t>(rows),
                       kFp8 && tensor.dtype == a.q.dtype);
  };
  const auto encode_keys = [&](CUtensorMap *map, const NVTEXAttentionTensor &tensor,
                               size_t num_pages, size_t dim) {
    if constexpr (C::kPages) {
      return encode_pages(map, tensor, a.page_size_k, num_pages, dim, a.kv_side.heads,
                          1 << p.page_log2);
    } else {
      return encode(map, tensor, a.kv_side, dim, C::kKeys);
    }
  };
  for (const NVTEXOutcome &done :
       {encode(&p.q, a.q, a.q_side, a.dim_qk, 64), encode_keys(&p.k, a.k, a.num_pages_k, a.dim_qk),
        encode_keys(&p.v, a.v, a.num_pages_v, a.dim_v)}) {
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const auto side = [](const NVTEXAttentionSide &s) {
    return Side{s.cu_seqlens, s.starts, static_cast<int>(s.max_seqlen), static_cast<int>(s.tokens)};
  };
  if constexpr (C::kBias) {
    const NVTEXAttentionTensor &b = a.bias;
    const auto size = [](int64_t step, size_t n) { return step != 0 ? uint64_t{n} : 1; };
    // Where there is one, any step does.
    const auto step = [](int64_t x) { return x != 0 ? static_cast<uint64_t>(x) * 2 : 16; };
    const uint64_t dims[4] = {a.kv_side.max_seqlen, size(b.row, a.q_side.max_seqlen),
                              size(b.head, a.q_side.heads), size(b.batch, a.batch)};
    const uint64_t steps[3] = {step(b.row), step(b.head), step(b.batch)};
    p.bias_rows = b.row != 0 ? C::kRows : 1;
    p.bias_head = b.head != 0;
    p.bias_batch = b.batch != 0;
    const uint32_t box[4] = {64, static_cast<uint32_t>(p.bias_rows), 1, 1};
    const NVTEXOutcome done = encode_map(&p.bias,
                                         b.dtype == kNVTEFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                         4, b.data, dims, steps, box);
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  const auto panels = [](size_t dim) {
    return static_cast<int>(ceil_div(dim, static_cast<size_t>(C::kPanel)));
  };
  p.panels_qk = panels(a.dim_qk);
  p.panels_v = panels(a.dim_v);
  p.q_side = side(a.q_side);
  p.kv_side = side(a.kv_side);
  p.heads = static_cast<unsigned>(a.q_side.heads);
  p.group = static_cast<int>(a.q_side.heads / a.kv_side.heads);
  p.pairs = static_cast<unsigned>(a.batch * a.q_side.heads);
  p.m_tiles = static_cast<int>(ceil_div(a.q_side.max_seqlen, C::kRows));
  const auto bound = [](int64_t w) {
    return w < 0 || w >= kUnbounded ? kUnbounded : static_cast<int>(w);
  };
  p.left = bound(a.window_left);
  p.right = bound(a.window_right);
  p.bottom_right = a.bottom_right;
  // Keys and values of a section stay in L2. H200, d128, causal 8k, 16k: 660, 695 TFLOP/s with 32
  // MB, 646, 680 with 16; without a mask 2k, 8k: 591, 673 and 614, 686.
  const size_t section_bytes = size_t{a.window_right >= 0 ? 32u : 16u} << 20;
  const size_t head_bytes = a.kv_side.max_seqlen * (a.dim_qk + a.dim_v) * C::T::kBytes;
  const size_t fit = section_bytes / head_bytes;
  const size_t most = (fit < 1 ? 1 : fit) * static_cast<size_t>(p.group);
  p.section = static_cast<unsigned>(ceil_div(p.pairs, ceil_div(p.pairs, most)));
  p.section_tiles = p.section * static_cast<unsigned>(p.m_tiles);
  p.o = a.o.data;
  p.o_batch = a.o.batch;
  p.o_row = a.o.row;
  p.o_head = a.o.head;
  p.dim_v = static_cast<int>(a.dim_v);
  p.scale = a.scale;
  p.unscale = 1.0f / a.scale;
  p.q_scale_inv = a.q.scale_inv;
  p.k_scale_inv = a.k.scale_inv;
  p.v_scale_inv = a.v.scale_inv;
  p.o_scale = a.o.scale;
  p.s_scale = a.s.scale;
  p.s_scale_inv = a.s.scale_inv;
  p.s_amax = kFp8 ? a.s.amax : nullptr;
  p.o_amax = kFp8 ? a.o.amax : nullptr;
  p.o_dtype = a.o.dtype;
  p.stats = a.stats;
  p.max = a.max;
  p.sink = a.sink;
  p.rng_state = a.rng_state;
  p.drop_level = dropout_level(a.dropout);
  p.keep_factor = 1.0f / (1.0f - a.dropout);
  p.next = static_cast<unsigned *>(a.workspace);
  p.tiles = p.pairs * static_cast<unsigned>(p.m_tiles);
  const unsigned sms = static_cast<unsigned>(device.sm_count);
  const unsigned grid = p.tiles < sms ? p.tiles : sms;
  const NVTEXOutcome begun =
      launch(begin_kernel, dim3(1), 1, stream, p.next, grid, p.s_amax, p.o_amax);
  if (begun.status != NVTEX_BACKEND_OK) return begun;
  return launch_shared(attention_forward_kernel<C>, dim3(grid), C::kThreads, kSharedBytes<C>,
                       stream, p);
}

// A launcher by head dims.
using Run = NVTEXOutcome (*)(const NVTEXAttentionArgs &, cudaStream_t);

template <class T, Extra kExtra>
Run choose_16bit(size_t dim_qk, size_t dim_v) {
  const size_t dim = dim_qk > dim_v ? dim_qk : dim_v;
  const bool is_192 = dim_qk <= 192 && dim_v <= 128;
  if constexpr (kExtra == Extra::kNone) {
    return dim <= 64    ? run<Config<T, 64, 64, 3, 128, 3>>
           : dim <= 128 ? run<Config<T, 128, 128, 2, 128, 2>>
           : is_192     ? run<Config<T, 192, 128, 2, 112, 2>>
                        : run<Config<T, 256, 256, 2, 80, 2>>;
  } else if constexpr (kExtra == Extra::kDropout) {
    return dim <= 64    ? run<Config<T, 64, 64, 3, 96, 3, kExtra>>
           : dim <= 128 ? run<Config<T, 128, 128, 2, 128, 2, kExtra>>
           : is_192     ? run<Config<T, 192, 128, 2, 112, 2, kExtra>>
                        : run<Config<T, 256, 256, 2, 64, 2, kExtra>>;
  } else if constexpr (kExtra == Extra::kAlibi) {
    return dim <= 64    ? run<Config<T, 64, 64, 3, 128, 3, kExtra>>
           : dim <= 128 ? run<Config<T, 128, 128, 2, 128, 2, kExtra>>
                        : run<Config<T, 256, 256, 2, 80, 2, kExtra>>;
  } else if constexpr (kExtra == Extra::kPages) {
    return dim <= 64    ? run<Config<T, 64, 64, 3, 128, 3, kExtra>>
           : dim <= 128 ? run<Config<T, 128, 128, 2, 128, 2, kExtra>>
                        : run<Config<T, 256, 256, 2, 64, 2, kExtra>>;
  } else {
    return dim <= 64    ? run<Config<T, 64, 64, 3, 96, 2, kExtra>>
           : dim <= 128 ? run<Config<T, 128, 128, 2, 128, 2, kExtra>>
                        : run<Config<T, 256, 256, 2, 64, 2, kExtra>>;
  }
}

template <class T>
Run choose(size_t dim_qk, size_t dim_v, Extra extra) {
  switch (extra) {
    case Extra::kDropout:
      return choose_16bit<T, Extra::kDropout>(dim_qk, dim_v);
    case Extra::kAlibi:
      return choose_16bit<T, Extra::kAlibi>(dim_qk, dim_v);
    case Extra::kBias:
      return choose_16bit<T, Extra::kBias>(dim_qk, dim_v);
    case Extra::kPages:
      return choose_16bit<T, Extra::kPages>(dim_qk, dim_v);
    default:
      return choose_16bit<T, Extra::kNone>(dim_qk, dim_v);
  }
}

template <>
Run choose<E4M3>(size_t dim_qk, size_t dim_v, Extra) {
  const size_t dim = dim_qk > dim_v ? dim_qk : dim_v;
  return dim <= 64 ? run<Config<E4M3, 64, 64, 3, 128, 3>> : run<Config<E4M3, 128, 128, 3, 96, 3>>;
}

bool whole_units(const NVTEXAttentionTensor &tensor, int64_t bytes) {
  return aligned(tensor.data, 16) && tensor.batch * bytes % 16 == 0 &&
         tensor.row * bytes % 16 == 0 && tensor.head * bytes % 16 == 0 && tensor.row > 0 &&
         tensor.head >= 0 && tensor.batch >= 0;
}

}  // namespace
}  // namespace nvte

const char *nvte_attention_sm90_forward_reject(const NVTEXAttentionArgs *args,
                                               size_t *workspace) noexcept {
  using namespace nvte;
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
  const size_t most = fp8 ? 128 : 256;
  if (a.dim_qk > most || a.dim_v > most) {
    return fp8 ? "takes head dims up to 128 in FP8" : "takes head dims up to 256";
  }
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
  return nullptr;
}

NVTEXOutcome nvte_attention_sm90_forward(const NVTEXAttentionArgs *args,
                                         cudaStream_t stream) noexcept {
  using namespace nvte;
  const NVTEXAttentionArgs &a = *args;
  if (a.batch == 0 || a.q_side.heads == 0 || a.q_side.max_seqlen == 0) return ok();
  const Extra extra = a.dropout != 0.0f        ? Extra::kDropout
                      : a.bias.data != nullptr ? Extra::kBias
                      : a.alibi                ? Extra::kAlibi
                      : a.page_table_k         ? Extra::kPages
                                               : Extra::kNone;
  return dispatch<BF16, F16, E4M3>(a.q.dtype, [&](auto tag) {
    return choose<decltype(tag)>(a.dim_qk, a.dim_v, extra)(a, stream);
  });
}
