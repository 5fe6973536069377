// What the plans of rows for tokens read and write: choices of experts, and numbers of rows, each
// in 32 or 64 bits as the caller has them.
#pragma once

#include "nvte/backend/ep.h"

namespace nvte {
namespace {

__device__ __forceinline__ int64_t chosen_at(const NVTEXExpertRowsArgs &a, size_t i) {
  return a.chosen_dtype == kNVTEInt64 ? static_cast<const int64_t *>(a.chosen)[i]
                                      : static_cast<const int *>(a.chosen)[i];
}

// Writes element i of an array that may be null.
__device__ __forceinline__ void put(void *array, NVTEDType dtype, size_t i, int64_t value) {
  if (array == nullptr) return;
  if (dtype == kNVTEInt64) {
    static_cast<int64_t *>(array)[i] = value;
  } else {
    static_cast<int *>(array)[i] = static_cast<int>(value);
  }
}

}  // namespace
}  // namespace nvte
