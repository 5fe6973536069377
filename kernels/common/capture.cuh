// Work of a library call that a capture of the caller's stream must not refuse.
#pragma once

#include <cuda_runtime.h>

namespace nvte {

// While an object of this class lives, its thread may call what a capture on any stream would
// otherwise forbid, such as allocations: they happen at once and are no part of the graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture &) = delete;
  RelaxedCapture &operator=(const RelaxedCapture &) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace nvte
