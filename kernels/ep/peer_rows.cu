// Rows of tokens to the GPUs of their experts and back by stores to the memory of these GPUs. Each
// device has memory that the others write to: a slot for every token of every rank, and a counter
// for each piece of a slot by which its reader waits for it. Some warps of a block send while the
// others take what has come, so that the links and the own memory are busy at the same time.
//
// A call has a number, by which all of its counters are known; it begins to write when all devices
// have finished the call before.

#include "common/launch.cuh"
#include "common/vec.cuh"
#include "nvtex/peer.cuh"

// The same struct is in src/parallel/peer_rows.rs.
struct PeerRows {
  PeerCall call;
  // [planes, tokens]: the slots of a token, one for each rank that has some of its experts.
  const int *map;
  // [planes, ranks * limit]: the rows of the experts of the token in a slot.
  const int *of_slots;
  size_t tokens;
  // Most tokens of a rank.
  size_t limit;
  size_t planes;
  // Rows that there are.
  size_t rows;
  // A slot's parts that travel by themselves.
  size_t pieces;
  PeerPart data;
  // Of MXFP8; without width if there are none.
  PeerPart scales;
  // Float32, one for each of so many choices of a token; a row has one.
  PeerPart weights;
  size_t choices;
  // Of sums: factors of the choices of the token in a slot, [slots, planes], or null.
  const float *probs;
  // Of sums: the dtype of rows and results.
  NVTEDType dtype;
  // The output has slots, of which those are written that have rows.
  bool slots_only;
  // Where a dispatch is to zero the rows that no token has: the first row of each expert, and how
  // many choices there are, of which at most `most` have rows unless that is 0.
  const int64_t *starts;
  const int64_t *lengths;
  size_t experts;
  size_t most;
};

namespace nvte {
namespace {

constexpr unsigned kWarps = kPeerThreads / 32;

// Warps of a block that send.
constexpr unsigned kSenders = 4, kSummers = 8;

__device__ __forceinline__ size_t pitch_of(size_t width) { return (width + 15) / 16 * 16; }

// What a warp does, and its place among those of all blocks that do the same.
struct Role {
  bool sends;
  size_t warp, warps;

  __device__ explicit Role(unsigned senders) {
    const unsigned own = threadIdx.x / 32;
    sends = own < senders;
    warp = (sends ? own : own - senders) * gridDim.x + blockIdx.x;
    warps = (sends ? senders : kWarps - senders) * gridDim.x;
  }
};

// Where a slot's part is in the memory of a rank.
__device__ __forceinline__ char *slot_of(const PeerCall &a, size_t rank, const PeerPart &part,
                                         size_t slot) {
  return a.places[rank] + kPeerData + part.offset + slot * pitch_of(part.width);
}

// The slots that others write to, in the order in which these send: slot i of all of them, then
// the next one.
__device__ __forceinline__ size_t other_slot(const PeerRows &a, size_t i) {
  const size_t others = a.call.ranks - 1, source = i % others;
  return (source + (source >= a.call.rank)) * a.limit + i / others;
}

// The lane's row of the token in a slot, or below 0.
__device__ __forceinline__ int row_of(const PeerRows &a, size_t slot, unsigned lane) {
  if (lane >= a.planes) return -1;
  const int row = a.of_slots[lane * a.call.ranks * a.limit + slot];
  return row >= 0 && static_cast<size_t>(row) < a.rows ? row : -1;
}

// Copies units of type V of a row, from the piece's first one on, to where the lanes of `mask` say.
template <class V>
__device__ __forceinline__ void copy_units(const void *from, char *to, unsigned mask, size_t begin,
                                           size_t end) {
  constexpr int kAhead = 8;
  const V *source = static_cast<const V *>(from);
  for (size_t first = begin + threadIdx.x % 32; first - threadIdx.x % 32 < end;
       first += 32 * kAhead) {
    V v[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + 32 * j < end) v[j] = __ldcg(source + first + 32 * j);
    }
    for (unsigned left = mask; left != 0; left &= left - 1) {
      const auto address = __shfl_sync(~0u, reinterpret_cast<uint64_t>(to), __ffs(left) - 1);
      V *target = reinterpret_cast<V *>(address);
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (first + 32 * j < end) target[first + 32 * j] = v[j];
      }
    }
  }
}

// Units of a piece of a row. Pieces are the same bytes on all devices, whatever their units are.
struct Range {
  size_t begin, end;

  __device__ Range(size_t width, size_t unit, size_t piece, size_t pieces) {
    const size_t part = (pitch_of(width) / 16 + pieces - 1) / pieces * 16;
    begin = (piece * part < width ? piece * part : width) / unit;
    end = ((piece + 1) * part < width ? (piece + 1) * part : width) / unit;
  }
};

// Copies a piece of a row of a part.
__device__ __forceinline__ void copy_piece(const PeerPart &part, const void *from, char *to,
                                           unsigned mask, size_t piece, size_t pieces) {
  if (has_units<uint4>(part)) {
    const Range range(part.width, sizeof(uint4), piece, pieces);
    copy_units<uint4>(from, to, mask, range.begin, range.end);
  } else {
    const Range range(part.width, 2, piece, pieces);
    copy_units<unsigned short>(from, to, mask, range.begin, range.end);
  }
}

// A piece of a token to the slots on other devices.
__device__ __forceinline__ void send_token(const PeerRows &a, size_t unit, uint64_t number) {
  const unsigned lane = threadIdx.x % 32;
  const size_t t = unit / a.pieces, piece = unit % a.pieces, rank = a.call.rank;
  const int place = lane < a.planes ? a.map[lane * a.tokens + t] : -1;
  const size_t to = place < 0 ? rank : place / a.limit;
  const bool remote = to != rank;
  const unsigned mask = __ballot_sync(~0u, remote);
  if (mask == 0) return;
  const size_t slot = remote ? rank * a.limit + place % a.limit : 0;
  const auto copy = [&](const PeerPart &part, size_t piece, size_t pieces) {
    const char *from = static_cast<const char *>(part.input) + t * part.width;
    char *target = slot_of(a.call, to, part, slot);
    copy_piece(part, from, target, mask, piece, pieces);
  };
  copy(a.data, piece, a.pieces);
  if (piece == 0) {
    if (a.scales.width > 0) copy(a.scales, 0, 1);
    if (a.choices > 0) copy(a.weights, 0, 1);
  }
  __syncwarp();
  if (remote) store_release(arrived(a.call.places[to], slot * a.pieces + piece), with_rows(number));
}

// A piece of an own token, or of one that another device has sent, to its rows.
__device__ __forceinline__ void take_token(const PeerRows &a, size_t unit, uint64_t number) {
  const unsigned lane = threadIdx.x % 32;
  const size_t i = unit / a.pieces, piece = unit % a.pieces, rank = a.call.rank;
  const bool own = i < a.tokens;
  size_t slot;
  if (own) {
    const int place = lane < a.planes ? a.map[lane * a.tokens + i] : -1;
    const unsigned here = __ballot_sync(~0u, place >= 0 && place / a.limit == rank);
    if (here == 0) return;
    slot = static_cast<size_t>(__shfl_sync(~0u, place, __ffs(here) - 1));
  } else {
    slot = other_slot(a, i - a.tokens);
  }
  int row = row_of(a, slot, lane);
  const int weight_row = row;
  unsigned mask = __ballot_sync(~0u, row >= 0);
  if (mask == 0) return;
  if (a.slots_only) {
    row = static_cast<int>(slot);
    mask = 1;
  }
  if (!own) {
    if (lane == 0) {
      const uint64_t *counter = arrived(a.call.places[rank], slot * a.pieces + piece);
      wait_in(a.call, counter, without_rows(number));
    }
    __syncwarp();
  }
  const auto source = [&](const PeerPart &part) -> const char * {
    if (!own) return slot_of(a.call, rank, part, slot);
    return static_cast<const char *>(part.input) + i * part.width;
  };
  const auto copy = [&](const PeerPart &part, size_t piece, size_t pieces) {
    char *to = static_cast<char *>(part.output) + (row < 0 ? 0 : row) * part.width;
    copy_piece(part, source(part), to, mask, piece, pieces);
  };
  copy(a.data, piece, a.pieces);
  if (piece > 0) return;
  if (a.scales.width > 0) copy(a.scales, 0, 1);
  if (lane < a.choices && weight_row >= 0) {
    const auto *weights = reinterpret_cast<const float *>(source(a.weights));
    static_cast<float *>(a.weights.output)[weight_row] = __ldcg(weights + lane);
  }
}

// Zeros what no token has of rows of so many bytes; see zero_gaps_kernel in expert_rows.cu.
__device__ __forceinline__ void zero_gaps(const PeerRows &a, const PeerPart &part, size_t width,
                                          size_t warp, size_t warps) {
  const auto zero = [&](size_t expert, size_t first, size_t step) {
    size_t rows = static_cast<size_t>(a.lengths[expert]);
    if (a.most > 0 && rows > a.most) rows = a.most;
    const size_t begin = static_cast<size_t>(a.starts[expert]) + rows;
    size_t end = expert + 1 == a.experts ? a.rows : static_cast<size_t>(a.starts[expert + 1]);
    end = (end < a.rows ? end : a.rows) * width;
    char *output = static_cast<char *>(part.output);
    if (width % sizeof(uint4) == 0 && has_units<uint4>(part)) {
      for (size_t i = begin * width + 16 * first; i < end; i += 16 * step) {
        *reinterpret_cast<uint4 *>(output + i) = uint4{};
      }
    } else {
      for (size_t i = begin * width + 2 * first; i < end; i += 2 * step) {
        *reinterpret_cast<unsigned short *>(output + i) = 0;
      }
    }
  };
  const unsigned lane = threadIdx.x % 32;
  for (size_t expert = warp; expert + 1 < a.experts; expert += warps) zero(expert, lane, 32);
  if (a.experts > 0) zero(a.experts - 1, warp * 32 + lane, warps * 32);
}

__global__ void __launch_bounds__(kPeerThreads)
    send_rows_kernel(const __grid_constant__ PeerRows a, unsigned senders) {
  const uint64_t number = begin(a.call);
  const Role role(senders);
  if (role.sends) {
    for (size_t i = role.warp; i < a.tokens * a.pieces; i += role.warps) send_token(a, i, number);
  } else {
    zero_gaps(a, a.data, a.data.width, role.warp, role.warps);
    if (a.scales.width > 0) zero_gaps(a, a.scales, a.scales.width, role.warp, role.warps);
    if (a.choices > 0) zero_gaps(a, a.weights, sizeof(float), role.warp, role.warps);
    const size_t slots = a.tokens + (a.call.ranks - 1) * a.limit;
    for (size_t i = role.warp; i < slots * a.pieces; i += role.warps) take_token(a, i, number);
  }
  finish(a.call, number);
}

// Adds rows, of which each lane of `mask` knows one with its factor, in the order of the lanes.
template <class T, int V, int U>
__device__ __forceinline__ void add_rows(const void *rows, size_t cols, int row, float factor,
                                         unsigned mask, size_t first, size_t end,
                                         float (&sum)[U][V]) {
  constexpr int kAhead = 4;
  for (unsigned left = mask; left != 0;) {
    Vec<T, V> x[kAhead][U];
    float p[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const bool there = left != 0;
      const int k = there ? __ffs(left) - 1 : 0;
      left &= left - 1;
      const size_t at = static_cast<size_t>(__shfl_sync(~0u, row, k)) * cols;
      p[i] = __shfl_sync(~0u, factor, k);
      if (!there) p[i] = 0.0f;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const size_t v = first + 32 * u;
        x[i][u] = load<T, V>(rows, at + v * V, there && v < end);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int u = 0; u < U; ++u) {
        float f[V];
        to_float(x[i][u], f);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[u][j] = fmaf(f[j], p[i], sum[u][j]);
      }
    }
  }
}

// What the lane knows of the token in a slot: a row of one of its experts, and its factor.
struct Choice {
  int row;
  float factor;
  unsigned mask;

  __device__ Choice(const PeerRows &a, size_t slot, unsigned lane)
      : row(row_of(a, slot, lane)), factor(1.0f) {
    mask = __ballot_sync(~0u, row >= 0);
    if (a.probs != nullptr && row >= 0) factor = a.probs[slot * a.planes + lane];
    if (row < 0) row = 0;
  }
};

// A piece of the sum of the rows of the token in a slot, to the device that has the token. The
// counter says also whether there were rows.
template <class T, int V>
__device__ __forceinline__ void send_sum(const PeerRows &a, size_t unit, uint64_t number) {
  constexpr int U = 2;
  const unsigned lane = threadIdx.x % 32;
  const size_t piece = unit % a.pieces, slot = other_slot(a, unit / a.pieces), rank = a.call.rank;
  const size_t to = slot / a.limit, there = rank * a.limit + slot % a.limit;
  uint64_t *flag = arrived(a.call.places[to], there * a.pieces + piece);
  const Choice choice(a, slot, lane);
  if (choice.mask == 0) {
    if (lane == 0) store_release(flag, without_rows(number));
    return;
  }
  const size_t cols = a.data.width / T::kBytes;
  const Range range(a.data.width, V * T::kBytes, piece, a.pieces);
  char *target = slot_of(a.call, to, a.data, there);
  for (size_t first = range.begin; first < range.end; first += 32 * U) {
    float sum[U][V] = {};
    add_rows<T, V, U>(a.data.input, cols, choice.row, choice.factor, choice.mask, first + lane,
                      range.end, sum);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const size_t v = first + lane + 32 * u;
      if (v < range.end) store(target, v * V, from_float<T, V>(sum[u]));
    }
  }
  if (piece == 0 && lane < a.choices) {
    const auto *from = static_cast<const float *>(a.weights.input);
    auto *weights = reinterpret_cast<float *>(slot_of(a.call, to, a.weights, there));
    weights[lane] = choice.mask >> lane & 1 ? from[choice.row] : 0.0f;
  }
  __syncwarp();
  if (lane == 0) store_release(flag, with_rows(number));
}

// A piece of an own token: what the ranks have made of it, in the order of its choices.
template <class T, int V>
__device__ __forceinline__ void take_sum(const PeerRows &a, size_t unit, uint64_t number) {
  constexpr int U = 2;
  const unsigned lane = threadIdx.x % 32;
  const size_t t = unit / a.pieces, piece = unit % a.pieces, rank = a.call.rank;
  const int place = lane < a.planes ? a.map[lane * a.tokens + t] : -1;
  const bool remote = place >= 0 && place / a.limit != rank;
  const unsigned own = __ballot_sync(~0u, place >= 0 && !remote);
  const Choice choice(a, own == 0 ? 0 : __shfl_sync(~0u, place, own == 0 ? 0 : __ffs(own) - 1),
                      lane);
  bool has = place >= 0 && (remote || choice.mask != 0);
  if (remote) {
    const size_t at = static_cast<size_t>(place) * a.pieces + piece;
    has = wait_in(a.call, arrived(a.call.places[rank], at), without_rows(number)) & 1;
  }
  const unsigned ranks = __ballot_sync(~0u, has);
  const size_t cols = a.data.width / T::kBytes, pitch = pitch_of(a.data.width) / T::kBytes;
  const Range range(a.data.width, V * T::kBytes, piece, a.pieces);
  const char *slots = slot_of(a.call, rank, a.data, 0);
  for (size_t first = range.begin; first < range.end; first += 32 * U) {
    float sum[U][V] = {};
    // Sums of other ranks before that of this one, that one, and those behind it.
    const unsigned before = own == 0 ? ~0u : own - 1;
    add_rows<T, V, U>(slots, pitch, place, 1.0f, ranks & before & ~own, first + lane, range.end,
                      sum);
    if (ranks & own) {
      float part[U][V] = {};
      add_rows<T, V, U>(a.data.input, cols, choice.row, choice.factor, choice.mask, first + lane,
                        range.end, part);
#pragma unroll
      for (int u = 0; u < U; ++u) {
        float rounded[V];
        to_float(from_float<T, V>(part[u]), rounded);
#pragma unroll
        for (int j = 0; j < V; ++j) sum[u][j] += rounded[j];
      }
    }
    add_rows<T, V, U>(slots, pitch, place, 1.0f, ranks & ~before & ~own, first + lane, range.end,
                      sum);
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const size_t v = first + lane + 32 * u;
      if (v < range.end) store(a.data.output, t * cols + v * V, from_float<T, V>(sum[u]));
    }
  }
  if (piece > 0 || a.choices == 0) return;
  float sum = 0.0f;
  for (unsigned left = ranks; left != 0; left &= left - 1) {
    const int k = __ffs(left) - 1;
    const int slot = __shfl_sync(~0u, place, k);
    if (lane >= a.choices) continue;
    if (own >> k & 1) {
      const auto *from = static_cast<const float *>(a.weights.input);
      if (choice.mask >> lane & 1) sum += from[choice.row];
    } else {
      const char *from = slot_of(a.call, rank, a.weights, static_cast<size_t>(slot));
      sum += __ldcg(reinterpret_cast<const float *>(from) + lane);
    }
  }
  if (lane < a.choices) static_cast<float *>(a.weights.output)[t * a.choices + lane] = sum;
}

template <class T, int V>
__global__ void __launch_bounds__(kPeerThreads)
    sum_rows_kernel(const __grid_constant__ PeerRows a, unsigned senders) {
  const uint64_t number = begin(a.call);
  const Role role(senders);
  if (role.sends) {
    const size_t slots = (a.call.ranks - 1) * a.limit;
    for (size_t i = role.warp; i < slots * a.pieces; i += role.warps) send_sum<T, V>(a, i, number);
  } else {
    for (size_t i = role.warp; i < a.tokens * a.pieces; i += role.warps) {
      take_sum<T, V>(a, i, number);
    }
  }
  finish(a.call, number);
}

// Blocks that are resident together: those of all devices wait for each other.
cudaError_t resident_grid(dim3 *grid) {
  Device device;
  const cudaError_t error = current_device(&device);
  *grid = dim3(static_cast<unsigned>(device.sm_count));
  return error;
}

}  // namespace
}  // namespace nvte

// Rows of own tokens to their experts on all devices, and those of other devices' tokens to experts
// here.
extern "C" NVTEXOutcome nvte_cuda_peer_send_rows(const PeerRows *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  dim3 grid;
  if (const cudaError_t error = resident_grid(&grid)) return outcome(error);
  return launch(send_rows_kernel, grid, kPeerThreads, stream, *args, kSenders);
}

// Sums of the rows of the experts of each own token.
extern "C" NVTEXOutcome nvte_cuda_peer_sum_rows(const PeerRows *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  dim3 grid;
  if (const cudaError_t error = resident_grid(&grid)) return outcome(error);
  return dispatch<F32, F16, BF16>(args->dtype, [&](auto t) {
    using T = decltype(t);
    if (has_units<uint4>(args->data)) {
      return launch(sum_rows_kernel<T, 16 / T::kBytes>, grid, kPeerThreads, stream, *args,
                    kSummers);
    }
    return launch(sum_rows_kernel<T, 1>, grid, kPeerThreads, stream, *args, kSummers);
  });
}
