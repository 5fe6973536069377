// The instances for heads of up to 128 elements, as their launchers see them.
#pragma once

#include "launch.cuh"
#include "short_layout.cuh"

namespace nvte {
namespace sm90_backward {

// T: the dtype of products, F16 for FP8. kD: 64 or 128 elements of a head. Defined in
// short_kernel.cuh.
template <class T, int kD, bool kDropout, Extra kExtra>
Instance instance();

}  // namespace sm90_backward
}  // namespace nvte
