// The producer: bulk copies of queries, keys, values and biases to shared memory, and for FP8 the
// transposition of values there.
//
// One thread copies. With pages the four warps of its warpgroup do: a tile of keys is one box or
// several, each of one page, whose numbers the lanes read while they would wait for room. H200,
// November 2026, heads of 128, causal 8k, pages of 16 rows: 532 TFLOP/s; by one thread 215.
#pragma once

#include "common/mma.cuh"
#include "layout.cuh"

namespace nvte {
namespace sm90_forward {

// Copies the rows of a tile from `row` on, panel by panel.
template <class C, int kPanels>
__device__ __forceinline__ void load_panels(unsigned char *to, int panel_bytes, int panels,
                                            const CUtensorMap *map, uint64_t *full, const Box &box,
                                            int row) {
  mbarrier_arrive_expect_tx(full, static_cast<uint32_t>(panels * panel_bytes));
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    if (kPanels > 1 && panel >= panels) break;
    cp_async_bulk_tensor_load(to + panel * panel_bytes, map, full,
                              {panel * C::kPanel, row, box.end, box.head, box.batch});
  }
}

// The place of the part of a tile of keys or values that is in one page.
struct PageBox {
  int first, end, number;
};

// Lane i finds the i-th box of tile n. Rows past the sequence's end in its last page read as zeros,
// see encode_pages(); boxes after that page are copies of it, which the mask hides.
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

// Each warp of the producer copies every fourth box.
template <class C, int kPanels>
__device__ __forceinline__ void load_pages(const Params &p, unsigned char *to, int panels,
                                           const CUtensorMap *map, const PageBox &lanes,
                                           uint64_t *full, int head) {
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(full, static_cast<uint32_t>(panels * C::kKeyPanel));
  }
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
      cp_async_bulk_tensor_load(to + panel * C::kKeyPanel + (i << p.page_log2) * 128, map, full,
                                {panel * C::kPanel, first, end, head, number});
    }
  }
}

// By one thread, or with pages by the warpgroup. A tile of queries has its tiles of keys from the
// last to the first. The keys of a tile come one step before its values, because the consumers
// multiply the scores of the next tile beside the values of the last one.
template <class C>
__device__ __forceinline__ void produce_tiles(const Params &p, unsigned char *shared,
                                              Control<C> &control) {
  PipelineState<C::kStages> k_at, v_at;
  const bool leads = !C::kPages || threadIdx.x == 0;
  // Writes the tile of number `index`, or of the first number after it that has one, to `t`. All
  // consumers are done with what was there, since the queries of a later tile have been released.
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
    // The queries themselves have to wait for room; until then they come to L2.
    if (t.end > t.begin) {
#pragma unroll 1
      for (int i = 0; i < C::kConsumers * C::kPanelsQK; ++i) {
        const int panel = i / C::kConsumers;
        if (panel >= p.panels_qk) break;
        cp_async_bulk_prefetch_tensor(
            &p.q, {panel * C::kPanel, t.q_rows[i % C::kConsumers], t.q.end, t.q.head, t.q.batch});
      }
    }
  };
  const auto prepare = [&](Tile &t, unsigned index) {
    if (leads) find(t, index);
    if constexpr (C::kPages) bar_sync(kProducerBarrier, 128);
  };
  [[maybe_unused]] bool all_turned = false;
  prepare(control.tile[0], blockIdx.x);
  for (unsigned count = 0;; ++count) {
    const Tile &t = control.tile[count % kTiles];
    // The tile is read from shared memory again each time: there are few registers here.
#pragma unroll 1
    for (int n = t.end; n >= t.begin; --n) {
      if (n > t.begin) {
        uint64_t *const full = control.k.barrier(k_at);
        // The number of the page is loaded before the wait, so that it arrives meanwhile.
        PageBox page;
        if constexpr (C::kPages) {
          page = find_page<C>(p, p.k_pages + int64_t{t.batch} * p.max_k_pages, p.last_k_page, t,
                              n - 1);
        }
        control.k.producer_acquire(k_at);
        unsigned char *const to = shared + C::kAtKeys + k_at.stage * C::kKeyBytes;
        if constexpr (C::kPages) {
          load_pages<C, C::kPanelsQK>(p, to, p.panels_qk, &p.k, page, full, t.kv.head);
        } else {
          load_panels<C, C::kPanelsQK>(to, C::kKeyPanel, p.panels_qk, &p.k, full, t.kv,
                                       t.kv.row + (n - 1) * C::kKeys);
        }
        if constexpr (C::kBias) {
          control.bias.producer_acquire(k_at);
          control.bias.producer_expect(k_at,
                                       static_cast<uint32_t>(C::kPanelsBias * 128 * p.bias_rows));
#pragma unroll
          for (int panel = 0; panel < C::kPanelsBias; ++panel) {
            // No box may begin outside the tensor, nor at an address that is no multiple of 16
            // bytes. What a tile of the bias has past the keys is masked.
            cp_async_bulk_tensor_load(
                shared + C::kAtBias + k_at.stage * C::kBiasBytes + panel * C::kBiasPanel, &p.bias,
                control.bias.barrier(k_at),
                {min((n - 1) * C::kKeys + panel * 64, (p.kv_side.max_seqlen - 1) & ~7),
                 p.bias_rows > 1 ? t.m : 0, p.bias_head ? t.head : 0, p.bias_batch ? t.batch : 0});
          }
        }
        k_at.advance();
      }
      if (n == t.end) {
#pragma unroll 1
        for (int w = 0; w < C::kConsumers; ++w) {
          const PipelineState<C::kQueries> at = C::queries_at(w, count);
          control.q.producer_acquire(at);
          if (!leads) continue;
          if (n == t.begin) {
            control.q.producer_commit(at);
          } else {
            load_panels<C, C::kPanelsQK>(shared + at.stage * C::kQueryBytes, 64 * 128, p.panels_qk,
                                         &p.q, control.q.barrier(at), t.q, t.q_rows[w]);
          }
        }
      } else {
        uint64_t *const full = control.v.barrier(v_at);
        PageBox page;
        if constexpr (C::kPages) {
          page = find_page<C>(p, p.v_pages + int64_t{t.batch} * p.max_v_pages, p.last_v_page, t, n);
        }
        control.v.producer_acquire(v_at);
        unsigned char *const to = shared + C::kAtValues + v_at.stage * C::kValueBytes;
        if constexpr (C::kPages) {
          load_pages<C, C::kPanelsV>(p, to, p.panels_v, &p.v, page, full, t.kv.head);
        } else if constexpr (C::kTurned) {
          const unsigned image = t.images + static_cast<unsigned>(n);
          if (!all_turned) {
            all_turned = load_acquire(p.turned.done) ==
                         static_cast<int>(C::kPanelsV * p.turned.units * p.turned.sequence_tiles);
            while (!all_turned && load_acquire(p.turned.ready + image) < C::kPanelsV)
              __nanosleep(20);
            fence_proxy_async_global();
          }
          mbarrier_arrive_expect_tx(full, C::kValueBytes);
          cp_async_bulk_load(to, p.turned.image(image), C::kValueBytes, full);
        } else {
          load_panels<C, C::kPanelsV>(to, C::kKeyPanel, p.panels_v, &p.v, full, t.kv,
                                      t.kv.row + n * C::kKeys);
        }
        v_at.advance();
      }
      // The next tile is found late enough to have loads under way, and early enough for its number
      // and the prefetch of its queries to arrive beside the products.
      if (n == (t.end > t.begin ? t.end - 1 : t.end) && t.batch >= 0) {
        prepare(control.tile[(count + 1) % kTiles], t.next);
      }
    }
    if (t.batch < 0) break;
  }
  if constexpr (C::kTransposes) {
    control.v.producer_acquire(v_at);
    control.is_end[v_at.stage] = true;
    control.v.producer_commit(v_at);
  }
}

// FP8: values lie key by key in rows; products need rows of the keys of a column. The keys of each
// 16 get the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, in which a thread has the scores of a
// row. By a warp, of a tile in shared memory: the 32 keys of number `keys`, and kBlocks blocks of
// 16 columns.
template <class C, int kBlocks>
__device__ __forceinline__ void transpose_block(uint32_t from, uint32_t to, int keys, int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t row = from + static_cast<uint32_t>(keys * 32 + lane) * 128;
  // Of four matrices of 8 keys and 8 pairs of columns, matrix i has the columns of parity i % 2
  // and keys from 16 (i / 2) on.
  const int column = 2 * (lane % 8) + lane / 8 % 2;
  const uint32_t unit = static_cast<uint32_t>((2 * (keys % 4) + lane / 16) ^ (column % 8)) * 16;
  const uint32_t transposed_row =
      to + static_cast<uint32_t>(keys / 4 * C::kTransposedPanel + column * 128) + unit;
  uint32_t w[kBlocks][4];
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const int columns = first + j;
    ldmatrix_x4_trans(
        row + static_cast<uint32_t>(columns / 8 * C::kKeyPanel + ((columns % 8) ^ (lane % 8)) * 16),
        w[j]);
  }
  // A word has two keys of two columns.
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const uint32_t turned[4] = {
        __byte_perm(w[j][0], w[j][1], 0x6420), __byte_perm(w[j][0], w[j][1], 0x7531),
        __byte_perm(w[j][2], w[j][3], 0x6420), __byte_perm(w[j][2], w[j][3], 0x7531)};
    stmatrix_x4(transposed_row + static_cast<uint32_t>((first + j) * 16 * 128), turned);
  }
}

// By warps 1 to 3 of the producer's warpgroup, together for each tile.
template <class C>
__device__ __forceinline__ void transpose_values(unsigned char *shared, Control<C> &control) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - 1,
            lane = static_cast<int>(threadIdx.x) % 32;
  for (PipelineState<C::kStages> at;; at.advance()) {
    control.v.consumer_wait(at);
    // The lane that releases the buffer is the one that reads here: racecheck follows no order
    // through __syncwarp().
    if (__shfl_sync(0xffffffff, lane == 0 && control.is_end[at.stage], 0)) break;
    control.transposed.producer_acquire(at);
    const uint32_t from = shared_address(shared + C::kAtValues + at.stage * C::kValueBytes);
    const uint32_t to = shared_address(shared + C::kAtTransposed + at.stage * C::kTransposedBytes);
    constexpr int kBlocks = C::kKeys / 32, kTogether = C::kConsumers == 2 ? 4 : 2;
#pragma unroll
    for (int i = 0; i < (kBlocks + 2) / 3; ++i) {
      const int keys = warp + 3 * i;
      if (kBlocks % 3 != 0 && keys >= kBlocks) break;
#pragma unroll
      for (int first = 0; first < C::kDimV / 16; first += kTogether) {
        transpose_block<C, kTogether>(from, to, keys, first);
      }
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      control.transposed.producer_commit(at);
      control.v.consumer_release(at);
    }
  }
}

// By warps of the producer's warpgroup from the second on, each by itself: writes parts of images,
// see turned_values.cuh, until none is left; those of the last keys first, as produce_tiles() needs
// them.
template <class C>
__device__ __forceinline__ void turn_values(const Params &p, unsigned char *shared,
                                            Control<C> &control) {
  const int warp = static_cast<int>(threadIdx.x) / 32 - 1,
            lane = static_cast<int>(threadIdx.x) % 32;
  const TurnedValues &turned = p.turned;
  unsigned char *const from = shared + C::kAtTurning + warp * (2 * kTurnedBytes);
  unsigned char *const to = from + kTurnedBytes;
  uint64_t *const full = &control.turning[warp];
  const auto take = [&] { return lane == 0 ? atomicAdd(turned.next, 1u) : 0; };
  uint32_t phase = 0;
  unsigned following = take();
#pragma unroll 1
  for (;;) {
    const unsigned taken = __shfl_sync(0xffffffff, following, 0);
    const unsigned i = taken / C::kPanelsV, panel = taken % C::kPanelsV;
    const unsigned from_last = i / turned.units;
    if (from_last >= turned.sequence_tiles) break;
    following = take();
    const unsigned unit = i - from_last * turned.units;
    const int sequence = static_cast<int>(unit / turned.key_heads);
    const int head = static_cast<int>(unit - sequence * turned.key_heads);
    const int tile = static_cast<int>(turned.sequence_tiles - 1 - from_last);
    const int keys = length(p.kv_side, sequence);
    if (tile * kTurnedKeys >= keys) {
      if (lane == 0) atomicAdd(turned.done, 1);
      continue;
    }
    const unsigned number = turned.first(p.kv_side, sequence, head) + static_cast<unsigned>(tile);
    if (lane == 0) {
      const Box box =
          place_box(p.kv_side, p.kv_side.first(sequence), tile * kTurnedKeys, keys, head, sequence);
      mbarrier_arrive_expect_tx(full, kTurnedBytes);
      cp_async_bulk_tensor_load(
          from, &p.v, full,
          {static_cast<int>(panel) * C::kPanel, box.row, box.end, box.head, box.batch});
    }
    mbarrier_wait(full, phase);
    phase ^= 1;
#pragma unroll 1
    for (int b = 0; b < kTurnedKeys / 32 * 8; b += 2) {
      transpose_block<C, 2>(shared_address(from), shared_address(to), b / 8, b % 8);
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      cp_async_bulk_store(turned.image(number) + panel * kTurnedBytes, to, kTurnedBytes);
      cp_async_bulk_commit_group();
      cp_async_bulk_wait_group<0>();
      __threadfence();
      atomicAdd(turned.ready + number, 1);
      atomicAdd(turned.done, 1);
    }
  }
}

}  // namespace sm90_forward
}  // namespace nvte
