// What the tests of matrix products share: options, the call, rounding.
#ifndef NVTE_CAPI_TESTS_GEMM_COMMON_H
#define NVTE_CAPI_TESTS_GEMM_COMMON_H

#include "nvte/gemm.h"
#include "support.h"

// A workspace of the usual size, which most cases share.
enum { WORKSPACE = 32 << 20 };
static void *g_workspace;

typedef enum Entry { LEGACY, SCALED, V2 } Entry;

static const char *const kEntryNames[] = {"gemm", "scaled", "v2"};

// What a product is made of; zeros are the plain case.
typedef struct Gemm {
  NVTEDType a, b, d, side;  // side: bias and aux, if not D's dtype
  size_t m, n, k;
  bool transa, transb;
  Entry entry;
  float alpha, beta;
  bool bias, gelu, grad;
  bool integers;       // small integers: every sum is exact, so is the result
  bool one_direction;  // FP8: each operand has only the buffer that is read
  bool rowwise_only;   // FP8: each operand has only row-wise data
  bool null_handles;   // what is absent is a null handle, else an empty tensor
  bool rank3, split, separate_c, may_decline;
  size_t workspace, workspace_shift, misaligned, scale_shift;
  int sm_count;
} Gemm;

static inline double gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static inline double dgelu(double x) {
  double c = sqrt(2 / acos(-1.0)), t = tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 0.134145 * x * x);
}

static inline void gemm_call(const Gemm *g, NVTETensor a, NVTETensor b, NVTETensor c, NVTETensor d,
                             NVTETensor bias, NVTETensor aux, NVTETensor workspace) {
  NVTETensor absent = g->null_handles ? NULL : empty_tensor();
  if (g->entry == V2) {
    NVTEMatmulConfig config = NULL;
    if (bias || aux || g->split || g->sm_count || !g->null_handles) {
      config = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
      uint8_t yes = 1, split = g->split;
      int32_t sm_count = g->sm_count;
      if (bias) {
        nvte_set_matmul_config_attribute(
            config, g->grad ? kNVTEMatmulConfigDBiasTensor : kNVTEMatmulConfigBiasTensor, &bias,
            sizeof bias);
      }
      if (aux) {
        nvte_set_matmul_config_attribute(
            config,
            g->grad ? kNVTEMatmulConfigWithDGELUEpilogue : kNVTEMatmulConfigWithGELUEpilogue, &yes,
            sizeof yes);
        nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigEpilogueAuxTensor, &aux,
                                         sizeof aux);
      }
      nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigUseSplitAccumulator, &split,
                                       sizeof split);
      nvte_set_matmul_config_attribute(config, kNVTEMatmulConfigSMCount, &sm_count,
                                       sizeof sm_count);
      EXPECT_OK();
    }
    nvte_cublas_gemm_v2(g->transa, g->transb, &g->alpha, a, b, &g->beta, c, d, workspace, config,
                        NULL);
    return;
  }
  bias = bias ? bias : absent;
  aux = aux ? aux : absent;
  workspace = workspace ? workspace : absent;
  if (g->entry == LEGACY) {
    nvte_cublas_gemm(a, b, d, bias, aux, g->transa, g->transb, g->grad, workspace, g->beta != 0,
                     g->split, g->sm_count, NULL);
  } else {
    nvte_cublas_gemm_scaled(a, b, d, bias, aux, g->transa, g->transb, g->grad, workspace, g->alpha,
                            g->beta, g->split, g->sm_count, NULL);
  }
}

static inline double step_at(NVTEDType dtype, double x) {
  Format f = format_of(dtype);
  int exponent = x == 0 || ilogb(x) < f.min_exponent ? f.min_exponent : ilogb(x);
  return ldexp(1, exponent - f.mantissa);
}

// |got - want| within `error` before the rounding to dtype, half a step after.
static inline bool close_enough(NVTEDType dtype, double got, double want, double error) {
  double limit = fmin(fabs(want) + error, format_of(dtype).largest);
  return fabs(got - round_to(dtype, want)) <= (error > 0 ? error + step_at(dtype, limit) : 0);
}

#endif
