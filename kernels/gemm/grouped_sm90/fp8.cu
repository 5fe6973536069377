// FP8 of one scale for each tensor or of scales in blocks, and MXFP8 along the inner dimension.

#include "kernel.cuh"

namespace nvte {
namespace sm90_grouped {

template NVTEXOutcome run<E4M3, Kind::kPlain, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<E4M3, Kind::kPromote, false, false>(const Params &, unsigned,
                                                              cudaStream_t);
template NVTEXOutcome run<E4M3TimesE5M2, Kind::kPlain, false, false>(const Params &, unsigned,
                                                                     cudaStream_t);
template NVTEXOutcome run<E4M3TimesE5M2, Kind::kPromote, false, false>(const Params &, unsigned,
                                                                       cudaStream_t);
template NVTEXOutcome run<E5M2TimesE4M3, Kind::kPlain, false, false>(const Params &, unsigned,
                                                                     cudaStream_t);
template NVTEXOutcome run<E5M2TimesE4M3, Kind::kPromote, false, false>(const Params &, unsigned,
                                                                       cudaStream_t);
template NVTEXOutcome run<E5M2, Kind::kPlain, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<E5M2, Kind::kPromote, false, false>(const Params &, unsigned,
                                                              cudaStream_t);
template NVTEXOutcome run<E4M3, Kind::kMx, false, false>(const Params &, unsigned, cudaStream_t);
template NVTEXOutcome run<E4M3TimesE5M2, Kind::kMx, false, false>(const Params &, unsigned,
                                                                  cudaStream_t);
template NVTEXOutcome run<E5M2TimesE4M3, Kind::kMx, false, false>(const Params &, unsigned,
                                                                  cudaStream_t);
template NVTEXOutcome run<E5M2, Kind::kMx, false, false>(const Params &, unsigned, cudaStream_t);

}  // namespace sm90_grouped
}  // namespace nvte
