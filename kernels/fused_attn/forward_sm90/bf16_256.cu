// BF16, heads of more than 128 elements.

#include "kernel.cuh"

namespace nvte {
namespace sm90_forward {

template Instance instance<BF16, Extra::kNone, 192, 128>();
template Instance instance<BF16, Extra::kNone, 256, 256>();
template Instance instance<BF16, Extra::kDropout, 192, 128>();
template Instance instance<BF16, Extra::kDropout, 256, 256>();
template Instance instance<BF16, Extra::kAlibi, 256, 256>();
template Instance instance<BF16, Extra::kBias, 256, 256>();
template Instance instance<BF16, Extra::kPages, 256, 256>();

}  // namespace sm90_forward
}  // namespace nvte
