// Forward pass of rows of F32 and F16, which share instances.

#include "forward_rows.cuh"

namespace nvte {
namespace norm {

NVTEXOutcome forward_rows_widened(ForwardArgs &args, bool vectorised, cudaStream_t stream) {
  return forward_rows<Widened>(args, vectorised, stream);
}

}  // namespace norm
}  // namespace nvte
