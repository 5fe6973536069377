// The kernel of grouped products of short inner dimensions, such as gradients of the weights of
// many experts, which take about as long to store as to multiply.
//
// A cluster of two blocks takes a run of tiles that lie side by side. Their rows stay in shared
// memory while columns come and go, if the inner dimension has no more than kSlots blocks. The two
// consumers of a block have the left and the right half of each tile, with a ring of columns each:
// while one of them stores its results, the other one multiplies. If the inner dimension is longer,
// rows come again with each tile, block by block.
#pragma once

#include "common/mma.cuh"
#include "consumer.cuh"
#include "producer.cuh"

namespace nvte {
namespace sm90_grouped {

template <class In_, bool kMnRows_, bool kMnCols_>
struct ShortConfig {
  using In = In_;
  static constexpr bool kMnRows = kMnRows_, kMnCols = kMnCols_;
  static constexpr int kCols = 256, kHalf = kCols / 2;
  static constexpr int kDepth = 64;  // Elements of the inner dimension in a slot.
  static constexpr int kSteps = 4;   // Products of a slot.
  static constexpr int kSlots = 4;   // Of rows, and of the columns of each consumer.
  static constexpr int kSlotBytes = 128 * 128;
  static constexpr int kAtCols = kSlots * kSlotBytes, kRingBytes = kSlots * kSlotBytes;
  // Results of each warp on their way to D: two buffers of kShortLines lines.
  static constexpr int kAtResults = kAtCols + 2 * kRingBytes;
  static constexpr int kBufferBytes = kShortLines * 128, kResultBytes = 2 * kBufferBytes;
  static constexpr int kAtControl = kAtResults + 8 * kResultBytes;
  static constexpr int kProducerThreads = 128, kThreads = kProducerThreads + 256;
  static constexpr int kConsumerRegs = 208, kProducerRegs = 88;
};

// A run of tiles of one row of them, as the producer describes it to the consumers.
struct ShortRun {
  const Problem *problem;  // Null: there are no more.
  int row, col;            // The first row and column of the tiles.
  int tiles, step;         // How many tiles, and columns from one to the next.
  int blocks;              // Blocks of the inner dimension.
  bool shares_cols;        // Blocks of the cluster share columns.
  bool bulk;
  bool stays;  // The rows are copied for the first tile only.
};

template <class C>
struct ShortControl {
  Pipeline<C::kSlots> rows, cols[2];
  Pipeline<kTiles> runs;
  ShortRun run[kTiles];
  // Numbers of runs, as Control::pairs.
  Pipeline<kTiles> pairs;
  unsigned pair[kTiles];
};

template <class C>
constexpr int kShortSharedBytes = C::kAtControl + static_cast<int>(sizeof(ShortControl<C>)) + 1024;

// The run of block `rank` of the cluster.
template <class C>
__device__ __forceinline__ void find_run(const Params &p, unsigned number, unsigned rank,
                                         ShortRun &t) {
  if (number >= p.first[p.count]) {
    t.problem = nullptr;
    return;
  }
  const unsigned member = find_member(p, number);
  const Problem &problem = p.problems[member];
  unsigned in = number - p.first[member];
  const unsigned col_tiles = tiles(static_cast<unsigned>(problem.m), C::kCols);
  const Strips strips(static_cast<unsigned>(problem.n));
  const unsigned paired = strips.pairs * tiles(col_tiles, kRun);
  t.shares_cols = in < paired;
  if (!t.shares_cols) in -= paired;
  // Tiles, or pairs of them side by side, in one row; runs of about the same length.
  const unsigned across = t.shares_cols ? col_tiles : tiles(col_tiles, 2);
  const unsigned runs = tiles(across, kRun), length = tiles(across, runs);
  const unsigned first = in % runs * length, strip = in / runs;
  const unsigned row = t.shares_cols ? strip * 2 + rank : strips.pairs * 2 + strip;
  const unsigned col = t.shares_cols ? first : first * 2 + rank;
  t.problem = &problem;
  t.row = static_cast<int>(row * kRows);
  t.col = static_cast<int>(col * C::kCols);
  t.step = t.shares_cols ? C::kCols : 2 * C::kCols;
  t.tiles = static_cast<int>(first < across ? min(length, across - first) : 0);
  t.blocks = static_cast<int>(tiles(static_cast<unsigned>(problem.k), C::kDepth));
  t.bulk = problem.bulk;
  t.stays = t.bulk && t.blocks <= C::kSlots;
}

// Copies a run in bulk, by one thread.
template <class C>
__device__ __forceinline__ void copy_run(unsigned char *shared, ShortControl<C> &control,
                                         const ShortRun &t, PipelineState<C::kSlots> &rows_at,
                                         PipelineState<C::kSlots> &cols_at, unsigned rank) {
  const Problem &problem = *t.problem;
  const CUtensorMap *rows_map = &problem.rows_map, *cols_map = &problem.cols_map;
  fence_proxy_tensormap_acquire(rows_map);
  fence_proxy_tensormap_acquire(cols_map);
  const int mine = static_cast<int>(rank);
  // Copies 128 rows or columns of a block to a slot: if both blocks of the cluster need them, half
  // of them to both.
  const auto copy = [&](auto &ring, const PipelineState<C::kSlots> &at, unsigned char *to,
                        bool share, const CUtensorMap *map, bool mn, int outer, int block) {
    ring.producer_acquire(at);
    ring.producer_expect(at, C::kSlotBytes);
    to += at.stage * C::kSlotBytes;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (share && j != mine) continue;
      const int first = outer + j * kChunk, inner = block * C::kDepth;
      const int x = mn ? first : inner, y = mn ? inner : first;
      if (share) {
        cp_async_bulk_tensor_load_multicast(to + j * kChunkBytes, map, ring.barrier(at), x, y);
      } else {
        cp_async_bulk_tensor_load(to + j * kChunkBytes, map, ring.barrier(at), {x, y});
      }
    }
  };
  const auto copy_rows = [&](int block) {
    copy(control.rows, rows_at, shared, !t.shares_cols, rows_map, C::kMnRows, t.row, block);
    rows_at.advance();
  };
  const auto copy_cols = [&](int w, const PipelineState<C::kSlots> &at, int col, int block) {
    copy(control.cols[w], at, shared + C::kAtCols + w * C::kRingBytes, t.shares_cols, cols_map,
         C::kMnCols, col + w * C::kHalf, block);
  };
#pragma unroll 1
  for (int j = 0; j < t.tiles; ++j) {
    const int col = t.col + j * t.step;
    if (t.stays) {
      PipelineState<C::kSlots> at = cols_at;
#pragma unroll 1
      for (int w = 0; w < 2; ++w) {
        at = cols_at;
#pragma unroll 1
        for (int i = 0; i < t.blocks; ++i, at.advance()) {
          if (j == 0 && w == 0) copy_rows(i);
          copy_cols(w, at, col, i);
        }
      }
      cols_at = at;
    } else {
#pragma unroll 1
      for (int i = 0; i < t.blocks; ++i, cols_at.advance()) {
        copy_rows(i);
        copy_cols(0, cols_at, col, i);
        copy_cols(1, cols_at, col, i);
      }
    }
  }
}

// Copies a run without bulk copies, by the warpgroup.
template <class C>
__device__ __forceinline__ void copy_odd_run(unsigned char *shared, ShortControl<C> &control,
                                             const ShortRun &t, PipelineState<C::kSlots> &rows_at,
                                             PipelineState<C::kSlots> &cols_at) {
  const Problem &problem = *t.problem;
#pragma unroll 1
  for (int j = 0; j < t.tiles; ++j) {
#pragma unroll 1
    for (int i = 0; i < t.blocks; ++i, rows_at.advance(), cols_at.advance()) {
      control.rows.producer_acquire(rows_at);
      control.cols[0].producer_acquire(cols_at);
      control.cols[1].producer_acquire(cols_at);
#pragma unroll 1
      for (int c = 0; c < 2; ++c) {
        copy_chunk<2, C::kMnRows>(shared + rows_at.stage * C::kSlotBytes + c * kChunkBytes,
                                  problem.rows_data, problem.n, problem.k, t.row + c * kChunk,
                                  i * C::kDepth);
      }
#pragma unroll 1
      for (int c = 0; c < 4; ++c) {
        copy_chunk<2, C::kMnCols>(shared + C::kAtCols + c / 2 * C::kRingBytes +
                                      cols_at.stage * C::kSlotBytes + c % 2 * kChunkBytes,
                                  problem.cols_data, problem.m, problem.k,
                                  t.col + j * t.step + c * kChunk, i * C::kDepth);
      }
      fence_proxy_async();
      bar_sync(kProducerBarrier, C::kProducerThreads);
      if (threadIdx.x == 0) {
        control.rows.producer_commit(rows_at);
        control.cols[0].producer_commit(cols_at);
        control.cols[1].producer_commit(cols_at);
      }
    }
  }
}

template <class C>
__device__ __forceinline__ void produce_runs(const Params &p, unsigned char *shared,
                                             ShortControl<C> &control, unsigned rank) {
  PipelineState<C::kSlots> rows_at, cols_at;
  PipelineState<kTiles> slot;  // Of a run, and of the number of the next one.
  for (unsigned number = blockIdx.x / 2;;) {
    if (threadIdx.x == 0) {
      control.runs.producer_acquire(slot);
      find_run<C>(p, number, rank, control.run[slot.stage]);
      control.runs.producer_commit(slot);
    }
    bar_sync(kProducerBarrier, C::kProducerThreads);
    const ShortRun t = control.run[slot.stage];
    if (t.problem == nullptr) break;
    // The next number is asked for now, so that it is there when it is needed.
    unsigned next = 0;
    if (threadIdx.x == 0 && rank == 0) next = atomicAdd(p.next, 1u);
    if (!t.bulk) {
      copy_odd_run<C>(shared, control, t, rows_at, cols_at);
    } else if (threadIdx.x == 0) {
      copy_run<C>(shared, control, t, rows_at, cols_at, rank);
    } else {
      const int all = t.blocks * t.tiles;
      for (int i = 0; i < all; ++i) cols_at.advance();
      for (int i = 0; i < (t.stays && t.tiles > 0 ? t.blocks : all); ++i) rows_at.advance();
    }
    if (threadIdx.x == 0) {
      if (rank == 0) {
        control.pairs.producer_acquire(slot);
        send_pair(control, slot.stage, next);
      }
      control.pairs.producer_expect(slot, sizeof(unsigned));
      control.pairs.consumer_wait(slot);
      number = control.pair[slot.stage];
      mbarrier_arrive_remote(&control.pairs.empty[slot.stage], 0);
    }
    slot.advance();
  }
  // A block must not end before the other one has arrived at its barriers for the last time.
  for (int i = 0; i < C::kSlots; ++i, rows_at.advance(), cols_at.advance()) {
    control.rows.producer_acquire(rows_at);
    control.cols[0].producer_acquire(cols_at);
    control.cols[1].producer_acquire(cols_at);
  }
  if (threadIdx.x == 0 && rank == 0) {
    for (int i = 0; i < kTiles; ++i, slot.advance()) {
      control.pairs.producer_acquire(slot);
    }
  }
}

// Sends results of a warp to D in bulk: kShortLines lines of 128 bytes at a time through shared
// memory, from which its first lane copies or adds them to D while the next ones are written.
template <class C, class Out>
__device__ __forceinline__ void store_lines(const Problem &problem, int row, int col,
                                            const float (&d)[C::kHalf / 2],
                                            unsigned char *results) {
  constexpr int kChunkCols = 128 / Out::kBytes;
  const int lane = current_lane();
  const float alpha = problem.alpha;
  const bool adds = problem.stores == Stores::kBulkAdd;
#pragma unroll
  for (int first = 0; first < C::kHalf; first += kChunkCols) {
    unsigned char *const buffer = results + first / kChunkCols % 2 * C::kBufferBytes;
    if (lane == 0) cp_async_bulk_wait_group_read<1>();
    __syncwarp();
    if constexpr (Out::kBytes == 4) {
#pragma unroll
      for (int i = 0; i < kChunkCols / 4; ++i) {
        const int j = i / 2, h = i % 2, line = lane / 4 + 8 * h;
        const float *const from = d + first / 2 + 4 * j + 2 * h;
        *reinterpret_cast<float2 *>(buffer + line * 128 +
                                    ((32 * j + lane % 4 * 8) ^ (line % 8 * 16))) =
            make_float2(alpha * from[0], alpha * from[1]);
      }
    } else {
      const uint32_t to = shared_address(buffer) + lane % 16 * 128;
#pragma unroll
      for (int j = 0; j < kChunkCols / 8; j += 2) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float *const from = d + first / 2 + 4 * j + 2 * i;
          const float both[2] = {alpha * from[0], alpha * from[1]};
          w[i] = from_float<Out>(both).w[0];
        }
        stmatrix_x4(to + ((j + lane / 16) ^ (lane % 8)) * 16, w);
      }
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
      const int x = col + first;
      if (x < problem.m && row < problem.n) {
        if (adds) {
          cp_reduce_async_bulk_tensor_add(&problem.d_map, buffer, x, row);
        } else {
          cp_async_bulk_tensor_store(&problem.d_map, buffer, {x, row});
        }
      }
      cp_async_bulk_commit_group();
    }
  }
}

// Brings what a warp will add its results to into L2, a line for each lane.
template <class C>
__device__ __forceinline__ void prefetch_lines(const Problem &problem, int row, int col) {
  const int warp = static_cast<int>(threadIdx.x / 32 % 4);
  row += warp * kShortLines + current_lane() % 16 + current_lane() / 16 * kChunk;
  // Only float32 is added to in bulk.
  const int bytes = 4 * min(problem.m - col, C::kHalf);
  if (row >= problem.n || bytes <= 0) return;
  const char *const from =
      static_cast<const char *>(problem.d) + (int64_t{row} * problem.m + col) * 4;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(from), "r"(bytes) : "memory");
}

// Writes half of tile `j` of a run, the results of a consumer. The description is looked up and
// read again, because products need all registers.
template <class C>
__device__ __forceinline__ void store_half_tile(const Params &p, unsigned char *shared,
                                                ShortControl<C> &control, int place, int j,
                                                const float (&d)[2][C::kHalf / 2]) {
  asm volatile("" : "+r"(place));
  const ShortRun &t = control.run[place];
  const Problem &problem = *t.problem;
  const int warp = static_cast<int>((threadIdx.x - C::kProducerThreads) / 32);
  const int col = t.col + j * t.step + warp / 4 * C::kHalf;
  unsigned char *const results = shared + C::kAtResults + warp * C::kResultBytes;
  const bool words = problem.stores == Stores::kWords;
  if (words) {
    // The staging memory is that of results, which may still be read.
    if (current_lane() == 0) cp_async_bulk_wait_group_read<0>();
    __syncwarp();
  }
  const Output out = {problem.c,     problem.d,    problem.n, problem.m,
                      problem.alpha, problem.beta, p.d_dtype, false};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = t.row + h * kChunk, own = row + warp % 4 * kShortLines;
    if (words) {
      if (p.d_dtype == kNVTEFloat32) {
        write_tile<4>(out, row, col, d[h], reinterpret_cast<float *>(results));
      } else {
        write_tile<2>(out, row, col, d[h], reinterpret_cast<float *>(results));
      }
    } else if (p.d_dtype == kNVTEFloat32) {
      store_lines<C, F32>(problem, own, col, d[h], results);
    } else if (p.d_dtype == kNVTEFloat16) {
      store_lines<C, F16>(problem, own, col, d[h], results);
    } else {
      store_lines<C, BF16>(problem, own, col, d[h], results);
    }
  }
}

template <class C>
__device__ __forceinline__ void consume_runs(const Params &p, unsigned char *shared,
                                             ShortControl<C> &control, int w) {
  static_assert(C::kSlots == 4 && kTiles == 2, "places are counted with so many bits");
  unsigned rows = 0, cols = 0, slot = 0;
  const auto state = [](unsigned place) {
    return PipelineState<C::kSlots>{static_cast<int>(place % 4), place / 4 % 2};
  };
  const auto run_state = [](unsigned place) {
    return PipelineState<kTiles>{static_cast<int>(place % 2), place / 2 % 2};
  };
  // Both blocks of a cluster copy to both, so that a slot is released at both.
  const auto release = [](uint64_t *empty, unsigned place) {
    const int lane = current_lane();
    if (lane < 2) mbarrier_arrive_remote(empty + place % 4, static_cast<unsigned>(lane));
  };
  auto &ring = control.cols[w];
  const uint32_t base = shared_address(shared), base_cols = base + C::kAtCols + w * C::kRingBytes;
  const uint64_t rows_desc =
      C::kMnRows ? descriptor_mn_major(base, kChunkBytes) : descriptor_k_major(base);
  const uint64_t cols_desc =
      C::kMnCols ? descriptor_mn_major(base_cols, kChunkBytes) : descriptor_k_major(base_cols);
  constexpr uint32_t kRowStep = C::kMnRows ? 2048 : 32, kColStep = C::kMnCols ? 2048 : 32;
  for (;; ++slot) {
    control.runs.consumer_wait(run_state(slot));
    const ShortRun &t = control.run[slot % 2];
    // The shuffles tell the compiler that all lanes of a warp have the same values.
    if (__shfl_sync(0xffffffff, t.problem == nullptr, 0)) break;
    const int blocks = __shfl_sync(0xffffffff, t.blocks, 0);
    const int count = __shfl_sync(0xffffffff, t.tiles, 0);
    // A number, because predicates that live long are kept in memory.
    int stays = __shfl_sync(0xffffffff, int{t.stays}, 0);
    asm volatile("" : "+r"(stays));
    if (t.problem->stores != Stores::kWords && current_lane() == 0) {
      fence_proxy_tensormap_acquire(&t.problem->d_map);
    }
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      const int col = t.col + j * t.step + w * C::kHalf;
      int any = __shfl_sync(0xffffffff, int{col < t.problem->m}, 0);
      if (t.problem->stores == Stores::kBulkAdd) prefetch_lines<C>(*t.problem, t.row, col);
      float d[2][C::kHalf / 2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < C::kHalf / 2; ++i) d[h][i] = 0.0f;
        pin(d[h]);
      }
      // Rows that stay go back after the last tile.
      int returns = stays == 0 || j + 1 == count ? 1 : 0;
      asm volatile("" : "+r"(any), "+r"(returns));
#pragma unroll 1
      for (int i = 0; i < blocks; ++i, ++rows, ++cols) {
        if (stays == 0 || j == 0) control.rows.consumer_wait(state(rows));
        ring.consumer_wait(state(cols));
        if (any != 0) {
          const uint64_t x = advance_descriptor(rows_desc, rows % 4 * C::kSlotBytes),
                         y = advance_descriptor(cols_desc, cols % 4 * C::kSlotBytes);
          const auto multiply = [&](int h, int s) {
            Product<typename C::In, C::kHalf>::template shared<C::kMnRows, C::kMnCols>(
                d[h], advance_descriptor(x, h * kChunkBytes + s * kRowStep),
                advance_descriptor(y, s * kColStep), true);
          };
          wgmma_fence();
#pragma unroll
          for (int s = 0; s < C::kSteps; ++s) multiply(0, s), multiply(1, s);
          wgmma_commit_group();
          wgmma_wait_group<1>();
        }
        if (i > 0) {
          if (returns != 0) release(control.rows.empty, rows - 1);
          release(ring.empty, cols - 1);
        }
      }
      wgmma_wait_group<0>();
#pragma unroll
      for (int h = 0; h < 2; ++h) pin(d[h]);
      if (blocks > 0) {
        if (returns != 0) release(control.rows.empty, rows - 1);
        release(ring.empty, cols - 1);
      }
      if (returns == 0) rows -= static_cast<unsigned>(blocks);
      if (any != 0) store_half_tile<C>(p, shared, control, static_cast<int>(slot % 2), j, d);
    }
    // All lanes have read the description of the run.
    __syncwarp();
    if (current_lane() == 0) control.runs.consumer_release(run_state(slot));
  }
  if (current_lane() == 0) cp_async_bulk_wait_group<0>();
}

template <class C>
__global__ void NVTE_PAIRS __launch_bounds__(C::kThreads, 1)
    grouped_gemm_short_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *const shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto &control = *reinterpret_cast<ShortControl<C> *>(shared + C::kAtControl);
  if (threadIdx.x == 0) {
    control.rows.init(1, 16);  // Released by the eight warps of the consumers of both blocks.
    for (auto &ring : control.cols) ring.init(1, 8);  // By those of one consumer in both blocks.
    control.runs.init(1, 8);
    control.pairs.init(1, 2);
    fence_mbarrier_init();
  }
  cluster_sync();
  griddepcontrol_wait();
  if (threadIdx.x < C::kProducerThreads) {
    setmaxnreg_dec<C::kProducerRegs>();
    produce_runs<C>(p, shared, control, cluster_ctarank());
  } else {
    setmaxnreg_inc<C::kConsumerRegs>();
    // The shuffle tells the compiler that all lanes of a warp have the same number.
    const int w =
        static_cast<int>(__shfl_sync(0xffffffff, (threadIdx.x - C::kProducerThreads) / 128, 0));
    consume_runs<C>(p, shared, control, w);
  }
#endif
}

template <class In, bool kMnRows, bool kMnCols>
NVTEXOutcome run_short(const Params &p, unsigned clusters, cudaStream_t stream) {
  using C = ShortConfig<In, kMnRows, kMnCols>;
  static_assert(kShortSharedBytes<C> <= most_shared(90), "shared memory of a block");
  return launch_shared(grouped_gemm_short_kernel<C>, dim3(2 * clusters), C::kThreads,
                       kShortSharedBytes<C>, stream, p);
}

}  // namespace sm90_grouped
}  // namespace nvte
