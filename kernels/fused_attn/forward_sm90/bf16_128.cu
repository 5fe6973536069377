// BF16, heads of up to 128 elements.

#include "kernel.cuh"

namespace nvte {
namespace sm90_forward {

template Instance instance<BF16, Extra::kNone, 64, 64>();
template Instance instance<BF16, Extra::kNone, 128, 128>();
template Instance instance<BF16, Extra::kDropout, 64, 64>();
template Instance instance<BF16, Extra::kDropout, 128, 128>();
template Instance instance<BF16, Extra::kAlibi, 64, 64>();
template Instance instance<BF16, Extra::kAlibi, 128, 128>();
template Instance instance<BF16, Extra::kBias, 64, 64>();
template Instance instance<BF16, Extra::kBias, 128, 128>();
template Instance instance<BF16, Extra::kPages, 64, 64>();
template Instance instance<BF16, Extra::kPages, 128, 128>();

}  // namespace sm90_forward
}  // namespace nvte
