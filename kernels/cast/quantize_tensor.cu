// Casts to FP8 with one scale per tensor.

#include "common/fetch.cuh"
#include "quantize.cuh"

namespace nvte {
namespace {

// The functions that are used most, of BF16 elements whose vectors are all aligned and whole.
// Their instructions take longer than the memory, and power that lowers the clock: 43 for each
// element of GELU's derivative became 32. H200, bf16 8192 x 8192 in both directions, GB/s of the
// kernel for everything, then of this one without a table or early fetches, without a table, and as
// it is: GELU's derivative with dbias 3310, 3494, 3509, 3817 (3900 with sum_kernel as it is now);
// SwiGLU 3643, 3731, 3781, 3935 (2 tiles a block: 3863); its derivative 3586, 3748, 3798, 3800.
// GELU's derivative with 8 tiles a block 1 % slower, with equal shares for all blocks 6 %.

// bfloat16 has so few values that a function of those where it varies, from 2^-25 to 2^7 and of
// either sign, fits into shared memory. Beyond, it is that of the ends: sigmoids, and the
// derivatives that come from them.
constexpr int kTableSize = 4096;
constexpr uint32_t kTableFirst = (127 - 25) << 7;
struct Table {
  float entries[2 * kTableSize];

  template <NVTEXForm kForm>
  __device__ __forceinline__ void fill(const SigmoidLinear &f) {
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < 2 * kTableSize; i += kThreads) {
      const float x = __uint_as_float((i % kTableSize + kTableFirst) << 16 | i / kTableSize << 31);
      float near;
      entries[i] = kForm == NVTEX_FORM_DERIVATIVE ? f.slope(x) : f.sigmoid(x, near);
    }
  }
  // The two elements of a word as floats.
  __device__ __forceinline__ void get(uint32_t w, float (&f)[2]) const {
    // Magnitudes that begin with the first one and end with the last, then the signs.
    constexpr uint32_t kFirst = (0x10000 - kTableFirst) * 0x10001;
    constexpr uint32_t kLast = (kTableSize - 1) * 0x10001, kSign = kTableSize * 0x10001;
    const uint32_t places = __viaddmin_s16x2_relu(w & 0x7fff7fff, kFirst, kLast) | (w >> 3 & kSign);
    const auto *bytes = reinterpret_cast<const char *>(entries);
    f[0] = *reinterpret_cast<const float *>(bytes + (places * 4 & 0xffff));
    f[1] = *reinterpret_cast<const float *>(bytes + (places >> 14));
  }
};

// The elements of w, or NaN where those of x are.
__device__ __forceinline__ uint32_t unless_nan(uint32_t w, uint32_t x) {
  uint32_t finite;
  asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(finite) : "r"(x & 0x7fff7fff), "r"(0x3f803f80));
  // w + finite * -0
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(finite), "r"(0x80008000), "r"(w));
  return w;
}

// As apply_each(), by the table and bit for bit the same.
template <NVTEXForm kForm>
__device__ __forceinline__ void look_up(const SigmoidLinear &f, const Table &table,
                                        const Vec<BF16, kVec> (&x)[kInputsOf<kForm>],
                                        float (&v)[kHalvesOf<kForm>][kVec]) {
  constexpr bool kDerivative =
      kForm == NVTEX_FORM_DERIVATIVE || kForm == NVTEX_FORM_GATED_DERIVATIVE;
#pragma unroll
  for (int i = 0; i < kVec / 2; ++i) {
    float entry[2], in[kInputsOf<kForm>][2];
    table.get(x[kDerivative].w[i], entry);
#pragma unroll
    for (int k = 0; k < kInputsOf<kForm>; ++k) {
      const bool slope = kForm == NVTEX_FORM_DERIVATIVE && k == 0;
      BF16::to_float(slope ? unless_nan(x[0].w[i], x[kDerivative].w[i]) : x[k].w[i], in[k]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float &y = v[0][2 * i + j];
      const float s = entry[j], a = in[kDerivative][j], least = at_least(a, -f.far);
      if constexpr (kForm == NVTEX_FORM_DERIVATIVE) {
        y = __fmul_rn(s, in[0][j]);
      } else if constexpr (kForm == NVTEX_FORM_GATED_DERIVATIVE) {
        const float slope = f.slope(at_most(least, f.far), s);
        y = __fmul_rn(__fmul_rn(slope, in[0][j]), in[2][j]);
        v[1][2 * i + j] = __fmul_rn(in[0][j], __fmul_rn(least, s));
      } else {
        y = __fmul_rn(least, s);
        if constexpr (kForm == NVTEX_FORM_GATED) y = __fmul_rn(y, in[1][j]);
      }
    }
  }
}

// Tiles of a block, if there are many. GELU itself, H200, bf16 8192 x 8192 in both directions, GB/s
// of the kernel for everything, then of this one with 2 tiles and 2 rows in flight, with 2 and 4,
// and with 4 and 4: 3125, 3383, 3565, 3691 (row by row 2644, 3063, 3143, 3718).
template <NVTEXForm kForm>
constexpr size_t kTilesOf = kForm == NVTEX_FORM_ACTIVATION || kForm == NVTEX_FORM_GATED ? 4 : 2;

template <NVTEXForm kForm>
struct TensorShared {
  RowQueue<BF16, kForm, kInputsOf<kForm> == 1 ? 4 : 2> queue;
  Table table;
};

// Where a thread's rows begin, one after the other: bytes from the input and from act_input on.
template <NVTEXForm kForm>
struct Cursor {
  static constexpr int kBuffers = kForm == NVTEX_FORM_GATED_DERIVATIVE ? 2 : 1;
  size_t at[kBuffers];
  int left;  // Rows that are inside.

  __device__ __forceinline__ Cursor(const TileCastArgs<TensorScale> &args, const ThreadTile &my)
      : left(0 < my.cols ? my.rows : 0) {
    visit_inputs<kForm>(args, args.matrix, my.row0 + my.row, my.col0 + my.col,
                        [&](const void *, size_t element, int k) {
                          if (k < kBuffers) at[k] = element * BF16::kBytes;
                        });
  }
  __device__ __forceinline__ const char *input(const TileCastArgs<TensorScale> &args, int k) const {
    const size_t cols = args.matrix.cols * BF16::kBytes;
    const auto *input = static_cast<const char *>(args.q.input) + at[0];
    if (k == 0) return input;
    if constexpr (kForm == NVTEX_FORM_GATED) return input + cols;
    const auto *act_input = static_cast<const char *>(args.q.fusion.act_input) + at[kBuffers - 1];
    return k == 1 ? act_input : act_input + cols / 2;
  }
  __device__ __forceinline__ void next(const Matrix &m) {
    const size_t cols = m.cols * BF16::kBytes;
    at[0] += kForm == NVTEX_FORM_GATED ? 2 * cols : kBuffers == 2 ? cols / 2 : cols;
    if constexpr (kBuffers == 2) at[1] += cols;
    --left;
  }
};

// A block has several tiles: while one is worked on, the next one comes. What is outside of the
// matrix becomes 0 by itself, as its inputs are.
template <NVTEXForm kForm>
__global__ void __launch_bounds__(kThreads, blocks_here<kThreads>(2))
    tensor_kernel(const __grid_constant__ TileCastArgs<TensorScale> args) {
  constexpr bool kDbias = kForm == NVTEX_FORM_DERIVATIVE;
  constexpr int kHalves = kHalvesOf<kForm>;
  using Shared = TensorShared<kForm>;
  constexpr int kAhead = decltype(Shared::queue)::kAhead;
  __shared__ TileShared<BF16, TensorScale, false, kDbias> shared;
  extern __shared__ __align__(128) uint4 memory[];
  auto &dynamic = *reinterpret_cast<Shared *>(memory);
  const NVTEXCast &q = args.q;
  const Matrix &m = args.matrix;
  [[maybe_unused]] const bool sum = kDbias && q.fusion.dbias != nullptr;
  const auto place = [&](uint32_t tile) {
    const uint32_t line = args.tiles_per_line.quotient(tile);
    const uint32_t place = tile - line * args.tiles_per_line.value;
    return ThreadTile(m, size_t{args.down ? place : line} * kTile,
                      size_t{args.down ? line : place} * kTile, m.cols / kHalves);
  };
  uint32_t tile = blockIdx.x;
  ThreadTile my = place(tile);
  if (tile < kFetchBlocks) {
    constexpr int kLines = kTile * BF16::kBytes / 128;
    const int row = threadIdx.x / kLines, col = threadIdx.x % kLines * (kTile / kLines);
    static_assert(kTile * kLines <= kThreads);
    if (row < my.height && col < my.width) {
      visit_inputs<kForm>(
          args, m, my.row0 + row, my.col0 + col,
          [](const void *in, size_t at, int) { fetch_line(element<BF16::Bits>(in, at)); });
    }
  }
  dynamic.table.template fill<kForm>(args.function.linear);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  Cursor<kForm> cursor(args, my);
  const auto request = [&](int p) {
#pragma unroll
    for (int k = 0; k < kInputsOf<kForm>; ++k) {
      dynamic.queue.request(p, k, cursor.input(args, k), 0 < cursor.left, kNVTEBFloat16);
    }
    cp_async_commit_group();
    cursor.next(m);
  };
#pragma unroll
  for (int p = 0; p < kAhead; ++p) request(p);
  const float scale = m.scale != nullptr ? *m.scale : 1.0f;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const float inverse = __frcp_rn(scale);
    if (q.rowwise_scale_inv != nullptr) *static_cast<float *>(q.rowwise_scale_inv) = inverse;
    if (q.colwise_scale_inv != nullptr) *static_cast<float *>(q.colwise_scale_inv) = inverse;
  }
  AbsMax<F32> amax;
  __syncthreads();
#pragma unroll 1
  for (;;) {
    tile += gridDim.x;
    Codes y[kHalves][kPack];
    float sums[kVec];
#pragma unroll
    for (int p = 0; p < kPack; ++p) {
      Vec<BF16, kVec> x[kInputsOf<kForm>];
      dynamic.queue.acquire(p, x, kNVTEBFloat16);
      if (p + kAhead == kPack) {
        cursor = Cursor<kForm>(args, place(tile));
        if (tile >= args.tiles) cursor.left = 0;
      }
      request(p + kAhead);
      float v[kHalves][kVec];
      look_up<kForm>(args.function.linear, dynamic.table, x, v);
      if constexpr (kDbias) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) sums[i] = p == 0 ? v[0][i] : __fadd_rn(sums[i], v[0][i]);
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          amax.packed = max_packed<F32>(amax.packed, magnitudes<F32>(__float_as_uint(v[h][i])));
          v[h][i] = __fmul_rn(v[h][i], scale);
        }
        y[h][p] = encode(args.e5m2, v[h]);
      }
    }
    if constexpr (kDbias) {
      if (sum) put_sums(shared, my, sums);
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (q.rowwise != nullptr) store_rows(q.rowwise, true, m, my, y[h]);
      if (q.colwise != nullptr) {
        if (h != 0) __syncthreads();
        store_columns(shared.tile, q.colwise, m, my, y[h]);
      }
      if (h + 1 < kHalves) my.col0 += m.cols / 2;
    }
    if constexpr (kDbias) {
      if (sum) {
        if (q.colwise == nullptr) __syncthreads();
        add_sums(shared, q.fusion.workspace, m, my);
      }
    }
    if (tile >= args.tiles) break;
    __syncthreads();
    my = place(tile);
  }
  if (q.amax == nullptr) return;
  shared.block.put(amax.bits());
  __syncthreads();
  if (my.warp == 0) {
    int *to = reinterpret_cast<int *>(q.amax);
    const int bits = shared.block.get();
    if (threadIdx.x == 0 && bits > __ldcg(to)) atomicMax(to, bits);
  }
}

// Whether tensor_kernel has the function.
bool is_fast(const NVTEXCast &q) {
  return q.group.num_tensors == 0 && q.fusion.form != NVTEX_FORM_PLAIN &&
         q.fusion.row_scales == nullptr && q.input_dtype == kNVTEBFloat16 &&
         Function(q.fusion).is_linear();
}

template <NVTEXForm kForm>
NVTEXOutcome quantize_fast(const NVTEXCast &q, cudaStream_t stream) {
  auto args = tile_args<TensorScale, kForm>(q);
  const NVTEXOutcome set = set_tiles<BF16, TensorScale, kForm>(args);
  if (set.status != NVTEX_BACKEND_OK) return set;
  const Matrix &m = args.matrix;
  if (!m.in_vec || (q.rowwise != nullptr && !m.row_vec) || (q.colwise != nullptr && !m.col_vec)) {
    return quantize_single<BF16, TensorScale, false, kForm>(q, stream);
  }
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  const auto most = size_t{2} * static_cast<unsigned>(device.sm_count);
  size_t blocks = args.tiles;
  if (blocks > most) {
    blocks = blocks > most * kTilesOf<kForm> ? ceil_div(blocks, kTilesOf<kForm>) : most;
  }
  return launch_shared(tensor_kernel<kForm>, dim3(static_cast<unsigned>(blocks)), kThreads,
                       sizeof(TensorShared<kForm>), stream, args);
}

}  // namespace

NVTEXOutcome quantize_tensor(const NVTEXCast &q, cudaStream_t stream) {
  if (is_fast(q)) {
    return dispatch_form(q.fusion.form, [&](auto form) -> NVTEXOutcome {
      constexpr NVTEXForm kForm = decltype(form)::value;
      if constexpr (kForm == NVTEX_FORM_PLAIN) {
        return unimplemented("no function to apply");
      } else {
        return quantize_fast<kForm>(q, stream);
      }
    });
  }
  return quantize_tiles<TensorScale, false>(q, stream);
}

}  // namespace nvte
