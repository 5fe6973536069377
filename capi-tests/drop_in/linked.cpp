// A program that is linked to libtransformer_engine.so: nothing but the link puts it into place.
#include <nvte/nvtex.h>
#include <transformer_engine/comm_gemm_overlap.h>
#include <transformer_engine/transformer_engine.h>

#include "expect.h"

namespace transformer_engine {
size_t typeToSize(DType type);
}

int main() {
  using transformer_engine::DType;
  EXPECT(transformer_engine::typeToSize(DType::kBFloat16) == 2);
  // What the library set when it was loaded.
  EXPECT(nvtex_set_drop_in(true));
  EXPECT(nvtex_set_error_mode(NVTEX_ERROR_THROW) == NVTEX_ERROR_THROW);
  EXPECT(!transformer_engine::ubuf_built_with_mpi());
  transformer_engine::CommOverlapBase overlap;
  EXPECT(!overlap.is_p2p_overlap() && !overlap.is_atomic_gemm() && !overlap.with_cublasmp());
  return 0;
}
