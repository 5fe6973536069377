// The numbers of an optimizer that change from step to step: they follow from those of the step
// before on the device, so that a captured step can be replayed.

#include "common/launch.cuh"
#include "common/reduce.cuh"
#include "nvte/backend/multi_tensor.h"

namespace nvte {
namespace {

__device__ float scheduled_rate(const NVTEXStepNumbersArgs &a, float base, int steps_before) {
  const double rate = base, s = steps_before, warmup = a.warmup_steps;
  if (steps_before < a.warmup_steps) {
    return static_cast<float>(__ddiv_rn(__dmul_rn(rate, s + 1.0), warmup + 1.0));
  }
  if (a.schedule == NVTEX_RATE_CONSTANT) return base;
  const double decay = static_cast<double>(a.total_steps) - warmup;
  const double p = s - warmup < decay ? __ddiv_rn(s - warmup, decay) : 1.0;
  const double last = a.last, rest = 1.0 - last;
  const double left = a.schedule == NVTEX_RATE_LINEAR ? __dadd_rn(1.0, -p)
                                                      : __dmul_rn(0.5, __dadd_rn(1.0, cospi(p)));
  return static_cast<float>(__dmul_rn(rate, __dadd_rn(last, __dmul_rn(rest, left))));
}

__global__ void step_numbers_kernel(const __grid_constant__ NVTEXStepNumbersArgs a) {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  __shared__ float rate;
  if (threadIdx.x == 0) {
    NVTEXStepNumbers n = *a.numbers;
    double sum = 0.0;
    for (size_t i = 0; i < a.num_norms; ++i) {
      const double norm = a.norms[i];
      sum = __dadd_rn(sum, __dmul_rn(norm, norm));
    }
    const float unscale = __fdiv_rn(a.factor, n.loss_scale);
    n.norm = __fmul_rn(static_cast<float>(__dsqrt_rn(sum)), unscale);
    n.grad_scale = unscale;
    if (a.max_norm > 0.0f) {
      const float clip = __fdiv_rn(a.max_norm, __fadd_rn(n.norm, 1e-6f));
      if (clip < 1.0f) n.grad_scale = __fmul_rn(unscale, clip);
    }
    n.skip = n.non_finite != 0 || !(n.norm < INFINITY);
    n.non_finite = 0;
    const int before = n.step;
    if (n.skip) {
      n.skipped += 1;
      n.good_steps = 0;
      if (a.growth_interval > 0) {
        n.loss_scale = fmaxf(a.least_scale, __fmul_rn(n.loss_scale, a.backoff));
      }
    } else {
      n.step += 1;
      n.good_steps += 1;
      if (a.growth_interval > 0 && n.good_steps >= a.growth_interval) {
        n.loss_scale = fminf(a.most_scale, __fmul_rn(n.loss_scale, a.growth));
        n.good_steps = 0;
      }
    }
    n.rate = scheduled_rate(a, n.base_rate, before);
    rate = n.rate;
    *a.numbers = n;
  }
  __syncthreads();
  for (size_t i = threadIdx.x; i < a.num_rates; i += blockDim.x) {
    a.rates[i] = __fmul_rn(rate, a.factors[i]);
  }
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_step_numbers(const NVTEXStepNumbersArgs *args,
                                               cudaStream_t stream) noexcept {
  using namespace nvte;
  return launch(step_numbers_kernel, dim3(1), 32, stream, *args);
}
