// Forward pass of rows of BF16, for which the kernels are tuned.

#include "forward_rows.cuh"

namespace nvte {
namespace norm {

NVTEXOutcome forward_rows_bf16(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  return forward_rows<BF16>(args, vectorised, stream);
}

}  // namespace norm
}  // namespace nvte
