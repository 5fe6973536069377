// A plugin that refuses what a CUDA device before compute capability 8.9 refuses: products in FP8,
// and products of groups. With these variables the CPU stands for such a device, so that its
// refusals can be tested without one:
//
//   NVTE_TEST_OLDER_DEVICE=1 NVTE_OP_PLUGINS=/folder/older_device.so
//   NVTE_OP_ORDER='gemm.fp8=vendor:older;gemm.fp8_blocks=vendor:older;grouped_gemm=vendor:older'
#include <stdio.h>

#include "nvte/plugin.h"

static int32_t refuse(void *user, const NVTEXCall *call) {
  (void)user;
  snprintf(call->reason, call->reason_bytes, "grouped products run on compute capability 9.0");
  return NVTEX_PLUGIN_DECLINED;
}

int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = "older_device";
  plugin->version = "1.0";
  plugin->vendor = "older";
  NVTEXImpl impl = {
      .struct_size = sizeof impl,
      .op = "gemm",
      .op_version = NVTEX_BUILT_WITH(GEMM),
      .id = "older.gemm",
      .domain = "cpu",
      .kind = NVTEX_KIND_VENDOR,
      .priority = NVTEX_PRIORITY_OF_KIND,
      .features = ~0ull,
      .supports = refuse,
      .execute = refuse,
  };
  if (host->add_impl(host->context, &impl) == NVTEX_PLUGIN_FAILED) return 1;
  impl.op = "grouped_gemm";
  impl.op_version = NVTEX_OP_GROUPED_GEMM_VERSION;
  impl.args_size = NVTEX_OP_GROUPED_GEMM_SIZE;
  impl.id = "older.grouped_gemm";
  return host->add_impl(host->context, &impl) == NVTEX_PLUGIN_FAILED;
}
