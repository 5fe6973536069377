// Products of the members of groups, D[t] = alpha[t] B[t] A[t]^T + beta[t] C[t], for compute
// capability 9.0, where only the device knows sizes. This is their launch; the kernels are in
// grouped_sm90/: setup.cuh makes a problem of each member, layout.cuh has shared memory,
// producer.cuh and mxfp8.cuh copy, consumer.cuh multiplies, epilogue.cuh writes D; short.cuh has
// the kernel of short inner dimensions.
//
// Tiles are 128 rows (of B) by 256 columns (rows of A). A pair is two tiles one below the other, or
// in the last rows two side by side; half a tile without rows is not multiplied, but by kShort.
// Every sum runs over k in one order, whatever the other members are.
//
// H200, November 2026, TFLOP/s at the clock that its power allows, BF16: 8 members of 4096^3 in all
// layouts 655 (cuBLASLt, one product of the summed size: 687); 64 of 256 rows by 2048, k 7168, 615,
// with uneven rows 497, of which tiles without all their rows take a fifth; 64 of 16 rows by 7168,
// k 2048, 4.2 TB/s. 64 by 7168 x 2048, k 256, 536 in BF16 (Kind::kShort), whose operands and
// results of 1.9 GB all pass L2; 418 by Kind::kBulk, which is as fast from 320 on. Tiles dealt out
// beforehand, without a counter, are 3 to 4 % slower with uneven rows.

#include "grouped_sm90/instance.cuh"
#include "grouped_sm90/setup.cuh"

namespace nvte {
namespace sm90_grouped {
namespace {

using Run = NVTEXOutcome (*)(const Params &, unsigned clusters, cudaStream_t);

template <class T, Kind kKind>
Run choose(bool mn_rows, bool mn_cols) {
  return mn_rows ? (mn_cols ? run<T, kKind, true, true> : run<T, kKind, true, false>)
                 : (mn_cols ? run<T, kKind, false, true> : run<T, kKind, false, false>);
}

template <class T>
Run choose_short(bool mn_rows, bool mn_cols) {
  return mn_rows ? (mn_cols ? run_short<T, true, true> : run_short<T, true, false>)
                 : (mn_cols ? run_short<T, false, true> : run_short<T, false, false>);
}

template <class T>
Run choose_fp8(Kind kind) {
  return kind == Kind::kMx        ? run<T, Kind::kMx, false, false>
         : kind == Kind::kPromote ? run<T, Kind::kPromote, false, false>
                                  : run<T, Kind::kPlain, false, false>;
}

Run choose_fp8(NVTEDType rows, NVTEDType cols, Kind kind) {
  const bool rows_e4m3 = rows == kNVTEFloat8E4M3, cols_e4m3 = cols == kNVTEFloat8E4M3;
  const auto choose = rows_e4m3 ? (cols_e4m3 ? choose_fp8<E4M3> : choose_fp8<E4M3TimesE5M2>)
                                : (cols_e4m3 ? choose_fp8<E5M2TimesE4M3> : choose_fp8<E5M2>);
  return choose(kind);
}

unsigned clusters_of(const Device &device, int sm_count) {
  const int sms = sm_count > 0 && sm_count < device.sm_count ? sm_count : device.sm_count;
  return sms < 2 ? 1 : static_cast<unsigned>(sms) / 2;
}

// A map of D, by which chunks of results are stored.
NVTEXOutcome map_of_d(CUtensorMap *map, NVTEDType dtype, void *data, const uint64_t (&dims)[2],
                      const uint64_t (&steps)[1], uint32_t lines) {
  const bool f32 = dtype == kNVTEFloat32;
  const uint32_t box[2] = {f32 ? 32u : 64u, lines};
  const CUtensorMapDataType type = f32                     ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : dtype == kNVTEFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                           : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode_tensor_map(map, type, 2, data, dims, steps, box);
}

// Mean inner dimensions up to which a kernel of 16-bit operands is the fastest one: where rows stay
// in shared memory; where results leave in bulk, of gradients of weights and of other products.
constexpr size_t kShortInnerDimension = 256;
constexpr size_t kBulkGradients = 2048, kBulkInnerDimension = 1024;

// Columns of a tile, see Config.
constexpr unsigned kTileCols = 256;

}  // namespace
}  // namespace sm90_grouped
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_grouped_gemm(const NVTEXGroupedGemmArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  using namespace nvte::sm90_grouped;
  const NVTEXGroupedGemmArgs &a = *args;
  Device device;
  if (const cudaError_t error = current_device(&device)) return outcome(error);
  if (device.arch != 90) return unimplemented("grouped products run on compute capability 9.0");
  const auto count = static_cast<unsigned>(a.num_tensors);
  const bool is_16bit = a.a.dtype == kNVTEBFloat16 || a.a.dtype == kNVTEFloat16;
  const auto is_fp8 = [](NVTEDType t) { return t == kNVTEFloat8E4M3 || t == kNVTEFloat8E5M2; };
  if (is_16bit ? a.a.dtype != a.b.dtype : !is_fp8(a.a.dtype) || !is_fp8(a.b.dtype)) {
    return unimplemented("grouped products take A and B in BF16, in F16 or in FP8");
  }
  const bool is_mx = !is_16bit && a.a.mode == NVTE_MXFP8_1D_SCALING;
  if (!is_16bit && !is_mx && (a.a.transposed || a.b.transposed)) {
    return unimplemented("grouped products take FP8 with the inner dimension last");
  }
  for (const NVTEXGroupedMatrix *x : {&a.a, &a.b, &a.d}) {
    bool fits = x->members != nullptr || ((x->outer_dims != nullptr || x->outer <= kMaxSize) &&
                                          (x->inner_dims != nullptr || x->inner <= kMaxSize));
    for (size_t i = 0; x->members != nullptr && i < a.num_tensors; ++i) {
      fits = fits && x->members[i].outer <= kMaxSize && x->members[i].inner <= kMaxSize;
    }
    if (!fits) return unimplemented("grouped products take sizes up to 2^29");
  }
  const bool blocks = !is_16bit && !is_mx && a.a.mode != NVTE_DELAYED_TENSOR_SCALING;
  const bool promote = blocks || (!is_16bit && !is_mx && a.split_accumulator);

  const size_t bulk_k = a.a.transposed && a.b.transposed ? kBulkGradients : kBulkInnerDimension;
  const Kind kind = is_mx       ? (a.a.transposed || a.b.transposed ? Kind::kMxCast : Kind::kMx)
                    : !is_16bit ? (promote ? Kind::kPromote : Kind::kPlain)
                    : a.mean_k <= kShortInnerDimension ? Kind::kShort
                    : a.mean_k <= bulk_k               ? Kind::kBulk
                                                       : Kind::kPlain;

  auto *at = static_cast<unsigned char *>(a.workspace);
  at += (256 - reinterpret_cast<uintptr_t>(at) % 256) % 256;
  auto *const end = static_cast<unsigned char *>(a.workspace) + a.workspace_bytes;
  SetupParams setup = {};
  setup.problems = reinterpret_cast<Problem *>(at);
  at += a.num_tensors * sizeof(Problem);
  auto *listed = reinterpret_cast<NVTEXGroupedMember *>(at);
  for (const NVTEXGroupedMatrix *x : {&a.a, &a.b, &a.c, &a.d}) {
    if (x->members != nullptr) at += a.num_tensors * sizeof(NVTEXGroupedMember);
  }
  setup.first = reinterpret_cast<unsigned *>(at);
  setup.next = setup.first + a.num_tensors + 1;
  at += (a.num_tensors + 2) * sizeof(unsigned);
  if (a.num_tensors > (1u << 24) || at > end) {
    return unimplemented("more members than the workspace has room for");
  }
  const auto matrix = [&](const NVTEXGroupedMatrix &x, Matrix *to) {
    const NVTEXGroupedMember *members = nullptr;
    if (x.members != nullptr) {
      members = listed;
      for (unsigned i = 0; i < count; i += kListed) {
        MemberList list = {};
        list.to = listed + i;
        list.count = count - i < kListed ? count - i : kListed;
        for (unsigned j = 0; j < list.count; ++j) list.members[j] = x.members[i + j];
        const NVTEXOutcome done = launch(grouped_gemm_list_kernel, dim3(1), 128, stream, list);
        if (done.status != NVTEX_BACKEND_OK) return done;
      }
      listed += count;
    }
    const int bytes = x.dtype == kNVTEFloat32                               ? 4
                      : x.dtype == kNVTEBFloat16 || x.dtype == kNVTEFloat16 ? 2
                                                                            : 1;
    *to = {x.data,      members,     x.outer_dims, x.inner_dims,
           x.offsets,   x.scale_inv, x.elements,   x.scale_entries * scale_bytes(x.mode),
           x.outer,     x.inner,     x.mode,       bytes,
           x.transposed};
    return ok();
  };
  for (const NVTEXOutcome &done : {matrix(a.a, &setup.a), matrix(a.b, &setup.b),
                                   matrix(a.c, &setup.c), matrix(a.d, &setup.d)}) {
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  setup.alpha = a.alpha;
  setup.beta = a.beta;
  setup.alpha_stride = a.alpha_stride;
  setup.beta_stride = a.beta_stride;
  setup.count = count;
  setup.clusters = clusters_of(device, a.sm_count);
  setup.tile_cols = kTileCols;
  setup.run = kind == Kind::kShort ? kRun : 1;
  {
    const uint64_t dims[2] = {64, 64}, steps[1] = {128};
    const uint32_t box[2] = {is_16bit ? 64u : 128u, kChunk};
    const NVTEXOutcome done =
        encode_tensor_map(&setup.map,
                          a.a.dtype == kNVTEFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                          : is_16bit                ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_UINT8,
                          2, setup.problems, dims, steps, box);
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  setup.bulk_stores = stores_in_bulk(kind);
  if (setup.bulk_stores) {
    const uint64_t dims[2] = {64, 64}, steps[1] = {256};
    const NVTEXOutcome done = map_of_d(&setup.d_map, a.d.dtype, setup.problems, dims, steps,
                                       kind == Kind::kShort ? kShortLines : kChunk);
    if (done.status != NVTEX_BACKEND_OK) return done;
  }
  const unsigned threads = count < kSetupThreads ? (count + 31) / 32 * 32 : kSetupThreads;
  const NVTEXOutcome done = launch(grouped_gemm_setup_kernel, dim3(1), threads, stream, setup);
  if (done.status != NVTEX_BACKEND_OK) return done;
  const Params p = {setup.problems,
                    setup.first,
                    setup.next,
                    count,
                    a.d.dtype,
                    a.b.mode,
                    a.a.mode,
                    a.b.dtype == kNVTEFloat8E5M2,
                    a.a.dtype == kNVTEFloat8E5M2,
                    a.b.swizzled,
                    a.a.swizzled};
  if (kind == Kind::kMxCast) {
    const auto run_cast = !a.b.transposed  ? run<BF16, Kind::kMxCast, false, true>
                          : a.a.transposed ? run<BF16, Kind::kMxCast, true, true>
                                           : run<BF16, Kind::kMxCast, true, false>;
    return run_cast(p, setup.clusters, stream);
  }
  if (!is_16bit) {
    return choose_fp8(a.b.dtype, a.a.dtype, kind)(p, setup.clusters, stream);
  }
  return dispatch<BF16, F16>(a.a.dtype, [&](auto tag) {
    using T = decltype(tag);
    const bool mn_rows = a.b.transposed, mn_cols = a.a.transposed;
    const auto run = kind == Kind::kShort  ? choose_short<T>(mn_rows, mn_cols)
                     : kind == Kind::kBulk ? choose<T, Kind::kBulk>(mn_rows, mn_cols)
                                           : choose<T, Kind::kPlain>(mn_rows, mn_cols);
    return run(p, setup.clusters, stream);
  });
}
