// A plugin that cannot do everything, and says so: limits that the library checks, a function for
// what they cannot say, scratch memory, and an option.
//
// Its SiLU takes float32 only (a static limit), rows whose length is a multiple of 8 (`supports`),
// and computes with a row of scratch memory (`needs`). With NVTE_OP_PLUGIN_LIMITS_COLUMNS=N the
// multiple is another. What it declines, the next implementation does; if there is none, the error
// lists every reason:
//
//     nvte_silu: quantize.silu: no implementation: example.silu: 130 columns, expected a multiple
//     of 8; ...
#include <stdio.h>
#include <stdlib.h>

#include "elements.h"

static const NVTEXCast *cast_of(const NVTEXCall *call) {
  return &((const NVTEXQuantizeArgs *)call->args)->cast;
}

// Asked before each call that passes the static limits. It reads the arguments, never the operands.
static int32_t supports(void *user, const NVTEXCall *call) {
  const size_t multiple = *(const size_t *)user, cols = cast_of(call)->cols;
  if (cols % multiple == 0) return NVTEX_PLUGIN_OK;
  snprintf(call->reason, call->reason_bytes, "%zu columns, expected a multiple of %zu", cols,
           multiple);
  return NVTEX_PLUGIN_DECLINED;
}

static int32_t needs(void *user, const NVTEXCall *call, NVTEXNeeds *needs) {
  (void)user;
  needs->scratch_bytes = cast_of(call)->cols * sizeof(float);
  return NVTEX_PLUGIN_OK;
}

static int32_t silu(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXCast *cast = cast_of(call);
  float *row = call->scratch;
  for (size_t r = 0; r < cast->rows; r++) {
    const float *x = (const float *)cast->input + r * cast->cols;
    for (size_t c = 0; c < cast->cols; c++) row[c] = (float)(x[c] / (1 + exp(-(double)x[c])));
    memcpy((float *)cast->rowwise + r * cast->cols, row, cast->cols * sizeof(float));
  }
  return NVTEX_PLUGIN_OK;
}

int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin) {
  static size_t multiple = 8;
  // The name comes first: options of a plugin without a manifest are found by it.
  plugin->name = "limits";
  plugin->version = "1.0";
  plugin->vendor = "example";
  const char *option = host->option(host->context, "columns");
  if (option) multiple = strtoul(option, NULL, 10);
  if (multiple == 0) {
    host->log(NVTEX_LOG_ERROR, "limits: option columns: expected a number of at least 1");
    return NVTEX_PLUGIN_FAILED;
  }
  const NVTEXImpl impl = {
      .struct_size = sizeof impl,
      .op = "quantize.silu",
      .op_version = NVTEX_BUILT_WITH(QUANTIZE),
      .id = "example.silu",
      .vendor = "example",
      .domain = "cpu",
      .kind = NVTEX_KIND_VENDOR,
      .priority = NVTEX_PRIORITY_OF_KIND,
      .dtypes = 1u << kNVTEFloat32,
      .modes = 1u << NVTE_DELAYED_TENSOR_SCALING,
      .flags = NVTEX_IMPL_DETERMINISTIC | NVTEX_IMPL_FORK_SAFE,
      .numerics = NVTEX_NUMERICS_ROUNDED,
      .supports = supports,
      .needs = needs,
      .execute = silu,
      .user = &multiple,
  };
  return host->add_impl(host->context, &impl) == NVTEX_PLUGIN_FAILED;
}
