// FP8, heads of up to 128 elements.

#include "short_kernel.cuh"

namespace nvte {
namespace sm90_backward {

template Instance instance<F16, 64, false, Extra::kFp8>();
template Instance instance<F16, 64, false, Extra::kFp8E5M2>();
template Instance instance<F16, 64, true, Extra::kFp8>();
template Instance instance<F16, 64, true, Extra::kFp8E5M2>();
template Instance instance<F16, 128, false, Extra::kFp8>();
template Instance instance<F16, 128, false, Extra::kFp8E5M2>();
template Instance instance<F16, 128, true, Extra::kFp8>();
template Instance instance<F16, 128, true, Extra::kFp8E5M2>();

}  // namespace sm90_backward
}  // namespace nvte
