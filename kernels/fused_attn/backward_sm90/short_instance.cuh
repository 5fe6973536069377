// The instances for heads of up to 128 elements, or 192 of queries and keys, as their launchers see
// them.
#pragma once

#include "launch.cuh"
#include "short_layout.cuh"

namespace nvte {
namespace sm90_backward {

// kD: 64, 128 or 192 elements of queries and keys. Defined in short_kernel.cuh.
template <class T, int kD, bool kDropout, Extra kExtra>
Instance instance();

}  // namespace sm90_backward
}  // namespace nvte
