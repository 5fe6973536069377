// Events by which a trace learns when the work of operators began and ended on a device. All of it
// may be called while some thread captures a stream.

#include "common/capture.cuh"
#include "common/launch.cuh"

extern "C" NVTEXOutcome nvte_cuda_event_create(cudaEvent_t *event) noexcept {
  nvte::RelaxedCapture relaxed;
  return nvte::outcome(cudaEventCreate(event));
}

extern "C" NVTEXOutcome nvte_cuda_event_record(cudaEvent_t event, cudaStream_t stream) noexcept {
  nvte::RelaxedCapture relaxed;
  return nvte::outcome(cudaEventRecord(event, stream));
}

extern "C" NVTEXOutcome nvte_cuda_event_wait(cudaEvent_t event) noexcept {
  nvte::RelaxedCapture relaxed;
  return nvte::outcome(cudaEventSynchronize(event));
}

// Whether both events have happened, and if so the milliseconds between them.
extern "C" NVTEXOutcome nvte_cuda_event_elapsed(cudaEvent_t first, cudaEvent_t second,
                                                bool *happened, float *milliseconds) noexcept {
  nvte::RelaxedCapture relaxed;
  *happened = false;
  const cudaError_t error = cudaEventQuery(second);
  if (error == cudaErrorNotReady) {
    // It is kept as an error, which it is not.
    (void)cudaGetLastError();
    return nvte::ok();
  }
  if (error != cudaSuccess) return nvte::outcome(error);
  *happened = true;
  return nvte::outcome(cudaEventElapsedTime(milliseconds, first, second));
}
