// Products in BF16 whose epilogue is GELU or its derivative, for compute capability 9.0:
// D = gelu(B A + bias), which also keeps what GELU was applied to, or its derivative there, and
// D = (B A) gelu'(aux) or (B A) aux, with the sums of D's columns.
//
// A block keeps its multiprocessor and takes tiles of 128 rows by 192 columns, one after the other.
// A producer copies operands, two consumers multiply 64 rows each and leave the tile, rounded, in
// shared memory, and seven warps apply the function to it while the next tile is multiplied. Blocks
// come in clusters of two that share columns and copy half of their operand each.
//
// H200, November 2026, at the clock that its power allows, 16384 x 3072, k 768: with bias and GELU
// 131 us (cuBLASLt's epilogue 149, its product with a bias and a pass 115 + 50), with the
// derivative and sums 155 (438, 102 + 81). Of these the products take 105, and all but the
// arithmetic 132. With tiles of 256 columns, which leave registers for three warps, 132 and 179.
// Where aux has the derivative 138 and 131.

#include "common/launch.cuh"
#include "common/limits.cuh"
#include "common/pipeline.cuh"
#include "common/vec.cuh"
#include "common/wgmma.cuh"
#include "nvte/backend/gemm.h"

namespace nvte {
namespace sm90_gelu {
namespace {

constexpr int kRows = 128, kCols = 192, kDepth = 64;
constexpr int kStages = 4;
constexpr int kRowBytes = kRows * 128, kStageBytes = kRowBytes + kCols * 128;
constexpr int kPanelBytes = kRows * 128;  // 64 columns of a tile of results.
constexpr int kPanels = kCols / 64;
// Two warpgroups of consumers, a warp that produces, seven that apply the function.
constexpr int kConsumerThreads = 256, kFinishWarps = 7, kFinishThreads = 32 * kFinishWarps;
constexpr int kConsumerRegisters = 144, kOtherRegisters = 112;
constexpr int kThreads = kConsumerThreads + 32 + kFinishThreads;
constexpr int kFinishBarrier = 1;

struct Params {
  CUtensorMap rows, cols;
  const void *bias;  // BF16 [m]; null: none.
  void *aux;         // BF16 [n, m]: read by derivatives, else written.
  void *d;           // BF16 [n, m]
  float *sums;       // [n / kRows, m]: sums of each tile's columns; null: not wanted.
  int n, m, k;
};

// Pieces of a tile, of 16 rows by 64 columns, that a warp applies the function to.
constexpr int kPieceRows = 16, kPiecesDown = kRows / kPieceRows, kPieces = kPanels * kPiecesDown;

struct Control {
  Pipeline<kStages> stages;
  Pipeline<1> tile;  // Results that the consumers have left.
  alignas(16) uint16_t bias[2][kCols];
  alignas(16) float sums[2][kPieces][64];
};

constexpr int kAtTile = kStages * kStageBytes, kAtControl = kAtTile + kPanels * kPanelBytes;
constexpr int kSharedBytes = kAtControl + static_cast<int>(sizeof(Control)) + 1024;
static_assert(kSharedBytes <= most_shared(90), "shared memory of a block");

// The first row and column of a block's tile number i; false if there are no more.
__device__ __forceinline__ bool tile_at(const Params &p, int i, int &row, int &col) {
  const int cols = (p.m + kCols - 1) / kCols;
  const int pair = static_cast<int>(blockIdx.x / 2) + i * static_cast<int>(gridDim.x / 2);
  row = (pair / cols * 2 + static_cast<int>(blockIdx.x % 2)) * kRows;
  col = pair % cols * kCols;
  return row < p.n;
}

template <bool kMnCols>
__device__ __forceinline__ void produce(const Params &p, unsigned char *shared, Control &control) {
  if (threadIdx.x != kConsumerThreads) return;
  const int rank = static_cast<int>(cluster_ctarank());
  PipelineState<kStages> at;
  int row, col;
  for (int i = 0; tile_at(p, i, row, col); ++i) {
    for (int inner = 0; inner < p.k; inner += kDepth, at.advance()) {
      control.stages.producer_acquire(at);
      unsigned char *const rows = shared + at.stage * kStageBytes, *const cols = rows + kRowBytes;
      uint64_t *const full = control.stages.barrier(at);
      const bool with_bias = inner == 0 && p.bias != nullptr;
      const uint32_t bias_bytes = with_bias ? 2 * min(kCols, p.m - col) : 0;
      control.stages.producer_expect(at, kStageBytes + bias_bytes);
      if (with_bias) {
        cp_async_bulk_load(control.bias[i % 2], static_cast<const uint16_t *>(p.bias) + col,
                           bias_bytes, full);
      }
      cp_async_bulk_tensor_load(rows, &p.rows, full, {inner, row});
      // No box may begin outside of the matrix. Columns outside are multiplied for nothing.
      if constexpr (kMnCols) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          cp_async_bulk_tensor_load_multicast(cols + panel * 8192 + rank * 4096, &p.cols, full,
                                              min(col + panel * 64, p.m - 64), inner + rank * 32);
        }
      } else {
        cp_async_bulk_tensor_load_multicast(cols + rank * kCols / 2 * 128, &p.cols, full, inner,
                                            min(col + rank * kCols / 2, p.m - 8));
      }
    }
  }
}

__device__ __forceinline__ void stmatrix(uint32_t to, const uint32_t (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
}

template <bool kMnCols>
__device__ __forceinline__ void consume(const Params &p, unsigned char *shared, Control &control,
                                        int w) {
  PipelineState<kStages> at;
  PipelineState<1> out;
  const int lane = static_cast<int>(threadIdx.x % 32),
            warp = static_cast<int>(threadIdx.x / 32 % 4);
  // Both blocks of a cluster copy to both, so that a stage is released at both.
  const auto release = [&](int stage) {
    if (lane < 2) mbarrier_arrive_remote(&control.stages.empty[stage], static_cast<unsigned>(lane));
  };
  const uint32_t base = shared_address(shared);
  const uint64_t rows_at = descriptor_k_major(base + w * 64 * 128);
  const uint64_t cols_at =
      kMnCols ? descriptor_mn_major(base + kRowBytes, 8192) : descriptor_k_major(base + kRowBytes);
  constexpr uint32_t kColStep = kMnCols ? 2048 : 32;
  // Of the rows that the lane's address of stmatrix is of.
  const int own = 64 * w + 16 * warp + lane / 8 % 2 * 8 + lane % 8;
  const uint32_t to = base + kAtTile + own * 128;
  int row, col;
  for (int i = 0; tile_at(p, i, row, col); ++i) {
    float d[kCols / 2];
    int last = 0;
    for (int inner = 0; inner < p.k; inner += kDepth, at.advance()) {
      control.stages.consumer_wait(at);
      const uint64_t rows = advance_descriptor(rows_at, at.stage * kStageBytes),
                     cols = advance_descriptor(cols_at, at.stage * kStageBytes);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kDepth / 16; ++s) {
        Product<BF16, kCols>::shared<false, kMnCols>(d, advance_descriptor(rows, s * 32),
                                                     advance_descriptor(cols, s * kColStep),
                                                     inner + s > 0);
      }
      wgmma_commit_group();
      wgmma_wait_group<1>();
      if (inner > 0) release(last);
      last = at.stage;
    }
    wgmma_wait_group<0>();
    pin(d);
    release(last);
    control.tile.producer_acquire(out);
    const bool with_bias = p.bias != nullptr;
    const uint32_t *const bias = reinterpret_cast<const uint32_t *>(control.bias[i % 2]) + lane % 4;
#pragma unroll
    for (int j = 0; j < kCols / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float b[2] = {0.0f, 0.0f};
        if (with_bias) BF16::to_float(bias[4 * (j + c)], b);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float *const from = d + 4 * (j + c) + 2 * h;
          const float sum[2] = {from[0] + b[0], from[1] + b[1]};
          words[2 * c + h] = BF16::from_float(sum);
        }
      }
      const int unit = (j + lane / 16) % 8 ^ lane % 8;
      stmatrix(to + j / 8 * kPanelBytes + unit * 16, words);
    }
    __syncwarp();
    if (lane == 0) control.tile.producer_commit(out);
    out.advance();
  }
}

// GELU by tanh, x s with s = 1 / (1 + 2^z), z = x (t1 + t3 x^2), and its derivative. Below -9.9 the
// function is 0, above 9.9 x.
__device__ __forceinline__ float gelu_sigmoid(float x) {
  const float z = x * __fmaf_rn(-0.10294325f, x * x, -2.3022082f);
  float power, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(power + 1.0f));
  return s;
}
__device__ __forceinline__ float at_least(float x, float least) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(least));
  return x;
}
__device__ __forceinline__ float at_most(float x, float most) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(most));
  return x;
}
__device__ __forceinline__ float gelu(float x) {
  x = at_least(x, -9.9f);
  return x * gelu_sigmoid(x);
}
// The derivative at x between -9.9 and 9.9, from s.
__device__ __forceinline__ float slope_of(float x, float s) {
  return __fmaf_rn(x * __fmaf_rn(0.21406446f, x * x, 1.5957692f), __fmaf_rn(-s, s, s), s);
}
__device__ __forceinline__ float gelu_slope(float x) {
  x = at_most(at_least(x, -9.9f), 9.9f);
  return slope_of(x, gelu_sigmoid(x));
}
__device__ __forceinline__ float gelu(float x, float &slope) {
  x = at_least(x, -9.9f);
  const float bounded = at_most(x, 9.9f), s = gelu_sigmoid(bounded);
  slope = slope_of(bounded, s);
  return x * s;
}

__device__ __forceinline__ void prefetch_l2(const void *from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(from), "r"(bytes) : "memory");
}

// What nobody reads soon, or again, leaves L2 to what follows.
__device__ __forceinline__ void store_once(void *to, size_t at, const Vec<BF16, 8> &v) {
  __stcs(reinterpret_cast<uint4 *>(static_cast<uint16_t *>(to) + at),
         make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]));
}
__device__ __forceinline__ Vec<BF16, 8> load_once(const void *from, size_t at, bool exists) {
  uint4 x = {};
  if (exists) x = __ldcs(reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(from) + at));
  return {x.x, x.y, x.z, x.w};
}

// A warp takes pieces, a thread 8 columns of every fourth row. kSlope: `aux` has the derivative.
template <bool kDerivative, bool kSlope>
__device__ __forceinline__ void finish(const Params &p, unsigned char *shared, Control &control) {
  using Lot = Vec<BF16, 8>;
  constexpr int kLots = kPieceRows / 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int t = static_cast<int>(threadIdx.x) - (kThreads - kFinishThreads);
  const int warp = static_cast<int>(__shfl_sync(0xffffffff, t / 32, 0));
  const int unit = lane % 8, first = lane / 8;
  PipelineState<1> in;
  int row, col;
  const size_t pitch = static_cast<size_t>(p.m);
  const auto prefetch = [&](int i) {
    int row, col;
    if (tile_at(p, i, row, col) && t < kRows) {
      prefetch_l2(static_cast<const uint16_t *>(p.aux) + (row + t) * pitch + col,
                  2 * min(kCols, p.m - col));
    }
  };
  if constexpr (kDerivative) prefetch(0);
  for (int i = 0; tile_at(p, i, row, col); ++i) {
    const size_t corner = (row + first) * pitch + col + unit * 8;
    const int pieces = min(kPanels, (p.m - col) / 64) * kPiecesDown;
    const auto place = [&](int piece, int r) {
      return corner + (piece % kPiecesDown * kPieceRows + 4 * r) * pitch + piece / kPiecesDown * 64;
    };
    Lot x[kLots], next[kLots];
    const auto fetch = [&](int piece) {
#pragma unroll
      for (int r = 0; r < kLots; ++r) {
        next[r] = load_once(p.aux, place(piece, r), piece < pieces);
      }
    };
    // The warps take turns in having a piece more.
    const int begin = (warp + i) % kFinishWarps;
    if constexpr (kDerivative) {
      fetch(begin);
      prefetch(i + 1);
    }
    control.tile.consumer_wait(in);
#pragma unroll 1
    for (int piece = begin; piece < pieces; piece += kFinishWarps) {
      if constexpr (kDerivative) {
#pragma unroll
        for (int r = 0; r < kLots; ++r) x[r] = next[r];
        fetch(piece + kFinishWarps);
      }
      const unsigned char *const from = shared + kAtTile + piece / kPiecesDown * kPanelBytes +
                                        (piece % kPiecesDown * kPieceRows + first) * 128;
      // All loads come before the first use, so that the warp waits once.
      Lot v[kLots];
#pragma unroll
      for (int r = 0; r < kLots; ++r) {
        const int swizzled = unit ^ (first + 4 * (r % 2));
        load_shared(reinterpret_cast<const uint32_t *>(from + 4 * r * 128 + swizzled * 16), v[r].w);
      }
      float sum[8] = {};
#pragma unroll
      for (int r = 0; r < kLots; ++r) {
        float f[8];
        to_float(v[r], f);
        if constexpr (kDerivative) {
          float input[8];
          to_float(x[r], input);
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            f[e] *= kSlope ? input[e] : gelu_slope(input[e]);
            sum[e] += f[e];
          }
        } else if constexpr (kSlope) {
          float slopes[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) f[e] = gelu(f[e], slopes[e]);
          store_once(p.aux, place(piece, r), from_float<BF16>(slopes));
        } else {
          store(p.aux, place(piece, r), v[r]);
#pragma unroll
          for (int e = 0; e < 8; ++e) f[e] = gelu(f[e]);
        }
        store(p.d, place(piece, r), from_float<BF16>(f));
      }
      if (kDerivative && p.sums != nullptr) {
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          sum[e] += __shfl_xor_sync(0xffffffff, sum[e], 8);
          sum[e] += __shfl_xor_sync(0xffffffff, sum[e], 16);
        }
        if (lane < 8) {
          float *const to = control.sums[i % 2][piece] + unit * 8;
#pragma unroll
          for (int e = 0; e < 8; ++e) to[e] = sum[e];
        }
      }
    }
    __syncwarp();
    if (lane == 0) control.tile.consumer_release(in);
    if (kDerivative && p.sums != nullptr) {
      bar_sync(kFinishBarrier, kFinishThreads);
      if (t < kCols && col + t < p.m) {
        float all = 0.0f;
#pragma unroll
        for (int part = 0; part < kPiecesDown; ++part) {
          all += control.sums[i % 2][t / 64 * kPiecesDown + part][t % 64];
        }
        p.sums[row / kRows * pitch + col + t] = all;
      }
    }
    in.advance();
  }
}

// Compilers refuse clusters for GPUs before compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define NVTE_PAIRS __cluster_dims__(2, 1, 1)
#else
#define NVTE_PAIRS
#endif

template <bool kMnCols, bool kDerivative, bool kSlope>
__global__ void NVTE_PAIRS __launch_bounds__(kThreads, 1)
    gelu_product_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ unsigned char dynamic[];
  unsigned char *const shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  auto &control = *reinterpret_cast<Control *>(shared + kAtControl);
  if (threadIdx.x == 0) {
    control.stages.init(1, 16);  // Released by the eight warps of the consumers of both blocks.
    control.tile.init(8, kFinishWarps);
    fence_mbarrier_init();
  }
  cluster_sync();
  griddepcontrol_wait();
  // The shuffle tells the compiler that all lanes of a warp have the same number.
  const int warp = static_cast<int>(__shfl_sync(0xffffffff, threadIdx.x / 32, 0));
  if (warp < kConsumerThreads / 32) {
    setmaxnreg_inc<kConsumerRegisters>();
    consume<kMnCols>(p, shared, control, warp / 4);
  } else {
    setmaxnreg_dec<kOtherRegisters>();
    if (warp == kConsumerThreads / 32) {
      produce<kMnCols>(p, shared, control);
    } else {
      finish<kDerivative, kSlope>(p, shared, control);
    }
  }
  // Neither block ends while the other may still arrive at its barriers.
  __syncwarp();
  cluster_sync();
#endif
}

// Sums over the tiles of each column.
constexpr int kSumCols = 32, kSumRows = 16;
__global__ void __launch_bounds__(kSumCols *kSumRows)
    gelu_sums_kernel(const float *sums, int rows, int m, void *to, bool f32) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float parts[kSumRows][kSumCols];
  const int x = static_cast<int>(threadIdx.x % kSumCols),
            y = static_cast<int>(threadIdx.x / kSumCols);
  const int col = static_cast<int>(blockIdx.x) * kSumCols + x;
  float sum = 0.0f;
#pragma unroll 8
  for (int r = y; r < rows; r += kSumRows) sum += sums[static_cast<size_t>(r) * m + col];
  parts[y][x] = sum;
  __syncthreads();
  if (y > 0) return;
#pragma unroll
  for (int r = 1; r < kSumRows; ++r) sum += parts[r][x];
  const float f[1] = {sum};
  if (f32) {
    store(to, static_cast<size_t>(col), from_float<F32>(f));
  } else {
    store(to, static_cast<size_t>(col), from_float<BF16>(f));
  }
}

}  // namespace
}  // namespace sm90_gelu
}  // namespace nvte

// Unimplemented if the product is not one that the kernel takes.
extern "C" NVTEXOutcome nvte_cuda_gelu_product(const NVTEXGemmArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  using namespace nvte::sm90_gelu;
  const NVTEXGemmArgs &a = *args;
  const bool derivative =
      a.epilogue == NVTEX_EPILOGUE_DGELU || a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD;
  const bool with_bias =
      a.epilogue == NVTEX_EPILOGUE_GELU_BIAS || a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD;
  if (!derivative && a.epilogue != NVTEX_EPILOGUE_GELU && a.epilogue != NVTEX_EPILOGUE_GELU_BIAS) {
    return unimplemented("the epilogue is neither GELU nor its derivative");
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  if (device.arch != 90) return unimplemented("these products run on compute capability 9.0");
  const bool dtypes =
      a.a_dtype == kNVTEBFloat16 && a.b_dtype == kNVTEBFloat16 && a.d_dtype == kNVTEBFloat16 &&
      a.aux_dtype == kNVTEBFloat16 &&
      (!with_bias || a.bias_dtype == kNVTEBFloat16 || (derivative && a.bias_dtype == kNVTEFloat32));
  constexpr size_t kMost = 1 << 30;
  const size_t sums = a.epilogue == NVTEX_EPILOGUE_DGELU_BGRAD ? a.n / kRows * a.m * 4 : 0;
  // The bias of a tile comes with its first stage, and that of the next one must not overtake it.
  const bool sizes = a.n % (2 * kRows) == 0 && a.m % 64 == 0 && a.k % kDepth == 0 &&
                     a.k > kStages * kDepth && a.n < kMost && a.m < kMost && a.k < kMost &&
                     sums <= a.workspace_bytes;
  bool aligned_16 = a.m > 0 && a.n > 0;
  for (const void *data : {a.a, a.b, static_cast<const void *>(a.d),
                           static_cast<const void *>(a.aux), static_cast<const void *>(a.bias)}) {
    aligned_16 = aligned_16 && aligned(data, 16);
  }
  if (!dtypes || !sizes || !aligned_16 || a.transb || a.alpha != 1.0f || a.beta != 0.0f ||
      a.sm_count != 0) {
    return unimplemented("the product is not one of whole tiles in BF16");
  }
  if (a.aux_slope && a.transa == derivative) {
    return unimplemented("GELU leaves its derivative to a product with the weight as it lies");
  }
  Params p = {};
  p.bias = a.epilogue == NVTEX_EPILOGUE_GELU_BIAS ? a.bias : nullptr;
  p.aux = a.aux;
  p.d = a.d;
  p.sums = sums > 0 ? static_cast<float *>(a.workspace) : nullptr;
  p.n = static_cast<int>(a.n);
  p.m = static_cast<int>(a.m);
  p.k = static_cast<int>(a.k);
  const auto map = [](CUtensorMap *to, const void *data, size_t outer, size_t inner,
                      uint32_t lines) {
    const uint64_t dims[2] = {inner, outer}, steps[1] = {2 * inner};
    const uint32_t box[2] = {64, lines};
    return encode_tensor_map(to, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, dims, steps, box);
  };
  NVTEXOutcome done = map(&p.rows, a.b, a.n, a.k, kRows);
  if (done.status == NVTEX_BACKEND_OK) {
    done =
        a.transa ? map(&p.cols, a.a, a.m, a.k, kCols / 2) : map(&p.cols, a.a, a.k, a.m, kDepth / 2);
  }
  if (done.status != NVTEX_BACKEND_OK) return done;
  void (*kernel)(Params) = nullptr;
  if (a.aux_slope) {
    kernel = derivative ? gelu_product_kernel<true, true, true>
                        : gelu_product_kernel<false, false, true>;
  } else if (a.transa) {
    kernel = derivative ? gelu_product_kernel<false, true, false>
                        : gelu_product_kernel<false, false, false>;
  } else {
    kernel = derivative ? gelu_product_kernel<true, true, false>
                        : gelu_product_kernel<true, false, false>;
  }
  const dim3 grid(static_cast<unsigned>(device.sm_count) / 2 * 2);
  done = launch_shared(kernel, grid, kThreads, kSharedBytes, stream, p);
  if (done.status != NVTEX_BACKEND_OK || p.sums == nullptr) return done;
  return launch(gelu_sums_kernel, dim3(static_cast<unsigned>(p.m / kSumCols)), kSumCols * kSumRows,
                stream, p.sums, p.n / kRows, p.m, a.bias, a.bias_dtype == kNVTEFloat32);
}
