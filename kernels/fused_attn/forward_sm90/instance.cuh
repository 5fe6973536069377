// An instance of the kernel, as its launcher sees it.
#pragma once

#include "scheduler.cuh"
#include "tuning.cuh"

namespace nvte {
namespace sm90_forward {

struct Instance {
  void (*kernel)(Params);
  unsigned threads;
  size_t shared;  // Bytes of shared memory.
};

// The instance of the row of kTunings with these arguments. It is defined in kernel.cuh.
template <class T, Extra kExtra, int kDimQK, int kDimV>
Instance instance();

}  // namespace sm90_forward
}  // namespace nvte
