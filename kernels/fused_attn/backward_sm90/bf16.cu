// BF16, heads of up to 128 elements, or 192 of queries and keys.

#include "short_kernel.cuh"

namespace nvte {
namespace sm90_backward {

template Instance instance<BF16, 64, false, Extra::kNone>();
template Instance instance<BF16, 64, false, Extra::kAlibi>();
template Instance instance<BF16, 64, false, Extra::kBias>();
template Instance instance<BF16, 64, true, Extra::kNone>();
template Instance instance<BF16, 64, true, Extra::kAlibi>();
template Instance instance<BF16, 64, true, Extra::kBias>();
template Instance instance<BF16, 128, false, Extra::kNone>();
template Instance instance<BF16, 128, false, Extra::kAlibi>();
template Instance instance<BF16, 128, false, Extra::kBias>();
template Instance instance<BF16, 128, true, Extra::kNone>();
template Instance instance<BF16, 128, true, Extra::kAlibi>();
template Instance instance<BF16, 128, true, Extra::kBias>();
template Instance instance<BF16, 192, false, Extra::kNone>();

}  // namespace sm90_backward
}  // namespace nvte
