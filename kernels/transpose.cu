// Bit copy of a transposed matrix: output[c][r] = input[r][c].

#include "common/tile.cuh"

namespace nvte {
namespace {

template <class T>
struct Copy {
  using In = T;
  using Out = T;
  static constexpr bool kHasAmax = false;
  static constexpr bool kByPlace = false;

  const float *noop;

  struct State {
    float flag;
    __device__ bool skip() const { return flag == 1.0f; }
  };
  __device__ State begin() const { return {noop != nullptr ? *noop : 0.0f}; }

  template <int N>
  __device__ __forceinline__ Vec<T, N> apply(const State &, const Vec<T, N> &x) const {
    return x;
  }
  __device__ void finish(const State &) const {}
};

template <class Bits>
NVTEXOutcome transpose(const NVTEXTransposeArgs &a, cudaStream_t stream) {
  const Copy<Raw<Bits>> op = {a.noop};
  return launch_tile(a.input, nullptr, a.output, a.rows, a.cols, op, stream);
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_transpose(const NVTEXTransposeArgs *args,
                                            cudaStream_t stream) noexcept {
  switch (args->element_size) {
    case 1:
      return nvte::transpose<uint8_t>(*args, stream);
    case 2:
      return nvte::transpose<uint16_t>(*args, stream);
    case 4:
      return nvte::transpose<uint32_t>(*args, stream);
    default:
      return nvte::unimplemented("transpose: elements of 1, 2 or 4 bytes");
  }
}
