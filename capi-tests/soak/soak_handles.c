// Handles of every kind that are made, used and destroyed: 2 * 10^5 times, or as often as the first
// argument says. A handle is never the one of an object before it, a destroyed one stays refused,
// and memory does not grow.
#define _POSIX_C_SOURCE 200809L
#include "soak.h"

static void round_trip(NVTETensor *last) {
  static float value;
  const NVTEBasicTensor data = basic(&value, kNVTEFloat32, SHAPE(1));
  const NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_set_tensor_param_v2(t, kNVTERowwiseData, &data, sizeof data);
  CHECK(t != *last && nvte_tensor_data(t) == (void *)&value, "handle %p after %p, data %p", t,
        *last, nvte_tensor_data(t));
  *last = t;
  NVTETensor many[3];
  nvte_create_tensors(NVTE_MXFP8_1D_SCALING, many, COUNT(many));
  nvte_destroy_tensors(many, COUNT(many));
  nvte_destroy_grouped_tensor(
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(4, 4)));
  nvte_destroy_quantization_config(nvte_create_quantization_config());
  nvte_destroy_matmul_config(nvte_create_matmul_config());
  nvte_destroy_fused_attn_config(nvte_create_fused_attn_config());
  nvte_destroy_tensor(t);
}

int main(int argc, char **argv) {
  test_begin(1, argv);
  const size_t count = wanted(argc, argv, 200000);
  case_begin("%zu handles", count);
  NVTETensor last = NULL;
  for (size_t i = 0; i < count / 10; i++) round_trip(&last);
  const size_t host = host_bytes(), device = free_device_bytes();
  const double start = seconds();
  for (size_t i = 0; i < count; i++) round_trip(&last);
  EXPECT_OK();
  printf("%.0f ns for each round of eight objects\n", (seconds() - start) / (double)count * 1e9);
  check_growth(host, device);
  nvte_tensor_data(last);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_data: tensor");
  return test_end();
}
