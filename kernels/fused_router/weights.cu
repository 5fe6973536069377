// The weights of the chosen experts one behind the other, and the loss of the size of the logits. A
// warp takes a token.

#include <cmath>

#include "common/launch.cuh"
#include "common/ptx.cuh"
#include "common/warp.cuh"
#include "nvte/backend/fused_router.h"

namespace nvte {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ NVTEXRouterWeightsArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const size_t choices = a.tokens * a.topk, step = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < choices; i += step) {
    const size_t expert = static_cast<size_t>(int64_t{a.indices[i]});
    a.weights[i] = expert < a.experts ? a.probs[i / a.topk * a.experts + expert] : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const __grid_constant__ NVTEXRouterWeightsArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned lane = threadIdx.x % 32;
  const size_t step = size_t{gridDim.x} * (kThreads / 32);
  for (size_t t = size_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; t < a.tokens;
       t += step) {
    float *row = a.probs + t * a.experts;
    for (size_t e = lane; e < a.experts; e += 32) row[e] = 0.0f;
    // Lanes write where other lanes have written zeros.
    __syncwarp();
    for (size_t k = lane; k < a.topk; k += 32) {
      const size_t expert = static_cast<size_t>(int64_t{a.indices[t * a.topk + k]});
      if (expert < a.experts) row[expert] = a.weights[t * a.topk + k];
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kThreads)
    z_loss_kernel(const __grid_constant__ NVTEXRouterZLossArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const unsigned lane = threadIdx.x % 32;
  const size_t step = size_t{gridDim.x} * (kThreads / 32);
  const float grad = a.grad_logits == nullptr ? 0.0f : *a.grad_loss;
  for (size_t t = size_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; t < a.tokens;
       t += step) {
    const float *row = a.logits + t * a.experts;
    float most = -INFINITY;
    for (size_t e = lane; e < a.experts; e += 32) most = fmaxf(most, row[e]);
    most = warp_most(most);
    float sum = 0.0f;
    for (size_t e = lane; e < a.experts; e += 32) sum += expf(row[e] - most);
    sum = warp_sum(sum);
    const float log = most + logf(sum);
    if (a.grad_logits == nullptr) {
      if (lane == 0) a.terms[t] = a.factor * log * log;
      continue;
    }
    const float weight = 2.0f * a.factor * grad * log;
    float *grads = a.grad_logits + t * a.experts;
    for (size_t e = lane; e < a.experts; e += 32) grads[e] += weight * expf(row[e] - log);
  }
}

dim3 grid_of(size_t blocks) {
  return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_router_weights(const NVTEXRouterWeightsArgs *args,
                                                 cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->backward) {
    return launch(scatter_kernel, grid_of(ceil_div(args->tokens, kThreads / 32)), kThreads, stream,
                  *args);
  }
  return launch(gather_kernel, grid_of(ceil_div(args->tokens * args->topk, kThreads)), kThreads,
                stream, *args);
}

extern "C" NVTEXOutcome nvte_cuda_router_z_loss(const NVTEXRouterZLossArgs *args,
                                                cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(z_loss_kernel, grid_of(ceil_div(args->tokens, kThreads / 32)), kThreads, stream,
                *args);
}
