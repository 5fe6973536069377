// Forward passes of queries, keys and values in E4M3.

#include "kernel.cuh"

namespace nvte {
namespace sm90_forward {

template Instance instance<E4M3, Extra::kNone, 64, 64>();
template Instance instance<E4M3, Extra::kNone, 128, 128>();
template Instance instance<E4M3, Extra::kTurned, 128, 128>();
template Instance instance<E4M3, Extra::kNone, 256, 256>();
template Instance instance<E4M3, Extra::kTurned, 256, 256>();

}  // namespace sm90_forward
}  // namespace nvte
