// An outside program in C11: casts four floats to FP8 with a scale of 2.
#include <nvte/nvte.h>
#include <stdio.h>
#include <string.h>

static void *on_device(const void *host, size_t bytes) {
  void *device = nvtex_malloc(bytes);
  nvtex_memcpy_to_device(device, host, bytes, NULL);
  return device;
}

static void set(NVTETensor tensor, NVTETensorParam param, void *data, NVTEDType dtype, size_t n) {
  NVTEBasicTensor value = {data, dtype, nvte_make_shape(&n, 1)};
  nvte_set_tensor_param_v2(tensor, param, &value, sizeof value);
}

int main(void) {
  const float values[4] = {1, 2, -0.25f, 300}, scale = 2;
  const unsigned char expected[4] = {0x40, 0x48, 0xB0, 0x7E};  // 2, 4, -0.5 and the largest, 448
  unsigned char fp8[4] = {0};
  float scale_inv = 0;
  void *in = on_device(values, sizeof values), *out = on_device(fp8, sizeof fp8);
  void *scale_on_device = on_device(&scale, sizeof scale);
  void *scale_inv_on_device = on_device(&scale_inv, sizeof scale_inv);

  NVTETensor input = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor output = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  set(input, kNVTERowwiseData, in, kNVTEFloat32, 4);
  set(output, kNVTERowwiseData, out, kNVTEFloat8E4M3, 4);
  set(output, kNVTEScale, scale_on_device, kNVTEFloat32, 1);
  set(output, kNVTERowwiseScaleInv, scale_inv_on_device, kNVTEFloat32, 1);
  nvte_quantize(input, output, NULL);
  nvtex_memcpy_to_host(fp8, out, sizeof fp8, NULL);
  nvtex_memcpy_to_host(&scale_inv, scale_inv_on_device, sizeof scale_inv, NULL);
  nvtex_stream_synchronize(NULL);

  nvte_destroy_tensor(input);
  nvte_destroy_tensor(output);
  nvtex_free(in);
  nvtex_free(out);
  nvtex_free(scale_on_device);
  nvtex_free(scale_inv_on_device);
  printf("%s, %s: %02x %02x %02x %02x, 1/scale %g\n", nvtex_version(), nvtex_backend_name(), fp8[0],
         fp8[1], fp8[2], fp8[3], (double)scale_inv);
  return nvtex_last_status() != NVTEX_OK || memcmp(fp8, expected, 4) != 0 || scale_inv != 0.5f;
}
