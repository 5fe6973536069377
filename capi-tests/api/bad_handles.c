// Wrong calls of the functions that make, set, read and destroy handles, and handles of every wrong
// kind where configs, grouped tensors and parameters of attention are asked for.
#define _POSIX_C_SOURCE 200809L
#include <limits.h>

#include "child.h"
#include "refusals.h"

static void wrong_destroyed_handles(void) {
  for (int k = 0; k < BAD_HANDLES; k++) {
    if (!case_begin("destroying handle %d", k)) continue;
    const char *what;
    NVTETensor bad = bad_handle(k, false, &what);
    REFUSED(nvte_destroy_tensor, "tensor", bad);
    REFUSED(nvte_destroy_tensors, "tensors", &bad, 1);
    NVTETensorPack pack = {{NULL}, 0};
    pack.tensors[9] = bad;
    REFUSED(nvte_tensor_pack_destroy, "pack", &pack);
  }
}

// ---- Wrong values of handle functions

// Buffers that no tensor may hold, at the places where they are set.
static void wrong_basic_tensors(void) {
  static size_t word;
  const size_t half = SIZE_MAX / 2 + 1;
  const struct {
    const char *what;
    int dtype;
    NVTEShape shape;
  } rows[] = {
      {"dtype 11", kNVTENumTypes, SHAPE(4)},
      {"dtype -1", -1, SHAPE(4)},
      {"dtype 12", 12, SHAPE(4)},
      {"dtype 1000", 1000, SHAPE(4)},
      {"dtype INT_MIN", INT_MIN, SHAPE(4)},
      {"2^63 bytes", kNVTEByte, SHAPE(half)},
      {"2^64 - 1 elements", kNVTEInt64, SHAPE(SIZE_MAX)},
      {"2^63 elements of 4 bits", kNVTEFloat4E2M1, SHAPE(half, 2)},
      {"2^64 elements", kNVTEByte, SHAPE((size_t)1 << 32, (size_t)1 << 32)},
      {"2^90 elements", kNVTEFloat32, SHAPE((size_t)1 << 30, (size_t)1 << 30, (size_t)1 << 30)},
      {"rows and columns that overflow behind a zero", kNVTEByte, SHAPE(half, 0, 2)},
      {"2^61 int64", kNVTEInt64, SHAPE((size_t)1 << 61)}};
  NVTEShape too_many = SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
  const size_t ranks[] = {16, 17, 255, (size_t)1 << 32, SIZE_MAX};
  for (size_t r = 0; r < COUNT(rows) + COUNT(ranks); r++) {
    NVTEBasicTensor b = basic(&word, kNVTEFloat32, too_many);
    const char *what = "rank";
    if (r < COUNT(rows)) {
      what = rows[r].what;
      b = basic(&word, (NVTEDType)rows[r].dtype, rows[r].shape);
    } else {
      b.shape.ndim = ranks[r - COUNT(rows)];
    }
    if (!case_begin("setting %s, row %zu", what, r)) continue;
    NVTETensor t = random_tensor(kNVTEFloat32, SHAPE(2, 2));
    for (int p = kNVTERowwiseData; p <= kNVTEColumnwiseAmax; p++) {
      NVTEBasicTensor old = nvte_get_tensor_param(t, (NVTETensorParam)p);
      REFUSED(nvte_set_tensor_param_v2, "buf", t, (NVTETensorParam)p, &b, sizeof b);
      REFUSED(nvte_set_tensor_param, "param", &t, (NVTETensorParam)p, &b);
      NVTEBasicTensor now = nvte_get_tensor_param(t, (NVTETensorParam)p);
      CHECK(old.data_ptr == now.data_ptr && old.dtype == now.dtype &&
                same_shape(old.shape, now.shape),
            "%s was stored in parameter %d", what, p);
    }
    NVTEGroupedTensor g = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(4, 4));
    for (int p = kNVTEGroupedRowwiseData; p < kNVTEGroupedWithGEMMSwizzledScales; p++) {
      if (r >= COUNT(rows) && p >= kNVTEGroupedFirstDims) b.dtype = kNVTEInt64;
      REFUSED(nvte_set_grouped_tensor_param, "buf", g, (NVTEGroupedTensorParam)p, &b, sizeof b);
    }
    nvte_destroy_grouped_tensor(g);
  }
}

// Counts that no array can have. In a child with little time: a library that does not refuse them
// takes all memory, or walks off the array.
static void wrong_counts(void) {
  for (int k = 0; k < 2; k++) {
    const char *const function = k ? "nvte_destroy_tensors" : "nvte_create_tensors";
    if (!case_begin("%s of SIZE_MAX tensors", function)) continue;
    pid_t child = fork_child();
    if (child == 0) {
      alarm(3);
      NVTETensor list[2] = {NULL, NULL};
      if (k) {
        nvte_destroy_tensors(list, SIZE_MAX);
      } else {
        nvte_create_tensors(NVTE_DELAYED_TENSOR_SCALING, list, SIZE_MAX);
      }
      const char *text = nvtex_last_error();
      bool ok = nvtex_last_status() == NVTEX_INVALID_ARGUMENT && strstr(text, function) &&
                strstr(text, ": N: expected") && strstr(text, "got") && !list[0] && !list[1];
      if (!ok) fprintf(stderr, "\"%s\"\n", text);
      _exit(ok ? 0 : 1);
    }
    int status = wait_for_child(child);
    g_refused += CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: N: wait status 0x%x",
                       function, (unsigned)status);
  }
}

static void wrong_numbers(void) {
  const int numbers[] = {-1, 12, 99, 101, 1000, INT_MAX, INT_MIN};
  if (case_begin("enumerations")) {
    NVTETensor t = random_tensor(kNVTEFloat32, SHAPE(2, 2)), out[3] = {t, t, t};
    NVTEGroupedTensor g = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(4, 4));
    NVTEQuantizationConfig q = quant_config();
    NVTEMatmulConfig m = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
    NVTEGroupedMatmulConfig gm = nvte_create_grouped_matmul_config();
    NVTEBasicTensor b = basic(NULL, kNVTEFloat32, SHAPE(0));
    size_t n = 0;
    for (size_t i = 0; i < COUNT(numbers); i++) {
      int k = numbers[i];
      REFUSED(nvte_create_tensor, "scaling_mode", (NVTEScalingMode)k);
      REFUSED(nvte_create_tensors, "scaling_mode", (NVTEScalingMode)k, out, 3);
      CHECK(out[0] == t && out[2] == t, "a handle was written");
      REFUSED(nvte_create_grouped_tensor, "scaling_mode", (NVTEScalingMode)k, 2, SHAPE(4, 4));
      REFUSED(nvte_set_tensor_param, "param_name", &t, (NVTETensorParam)k, &b);
      REFUSED(nvte_get_tensor_param, "param_name", t, (NVTETensorParam)k);
      REFUSED(nvte_set_tensor_param_v2, "param", t, (NVTETensorParam)k, &b, sizeof b);
      REFUSED(nvte_get_tensor_param_v2, "param", t, (NVTETensorParam)k, &b, sizeof b, &n);
      REFUSED(nvte_set_grouped_tensor_param, "param", g, (NVTEGroupedTensorParam)k, &b, sizeof b);
      REFUSED(nvte_get_grouped_tensor_param, "param", g, (NVTEGroupedTensorParam)k, &b, sizeof b,
              &n);
      REFUSED(nvte_set_quantization_config_attribute, "attr", q, (NVTEQuantizationConfigAttribute)k,
              &b, 8);
      REFUSED(nvte_get_quantization_config_attribute, "attr", q, (NVTEQuantizationConfigAttribute)k,
              &b, 8, &n);
      REFUSED(nvte_set_matmul_config_attribute, "attr", m, (NVTEMatmulConfigAttribute)k, &b, 8);
      REFUSED(nvte_get_matmul_config_attribute, "attr", m, (NVTEMatmulConfigAttribute)k, &b, 8, &n);
      REFUSED(nvte_set_grouped_matmul_config_attribute, "attr", gm,
              (NVTEGroupedMatmulConfigAttribute)k, &b, 8);
      REFUSED(nvte_get_grouped_matmul_config_attribute, "attr", gm,
              (NVTEGroupedMatmulConfigAttribute)k, &b, 8, &n);
      if (k != 2) REFUSED(nvte_get_compute_stream, "idx", k);
      if (k != 2) REFUSED(nvte_get_compute_stream_event, "idx", k);
    }
    // The counts of the enumerations are not values.
    REFUSED(nvte_create_tensor, "scaling_mode", (NVTEScalingMode)5);
    REFUSED(nvte_set_tensor_param_v2, "param", t, kNVTENumTensorParams, &b, sizeof b);
    REFUSED(nvte_set_grouped_tensor_param, "param", g, kNVTENumGroupedTensorParams, &b, sizeof b);
    REFUSED(nvte_set_quantization_config_attribute, "attr", q, kNVTEQuantizationConfigNumAttributes,
            &b, 8);
    REFUSED(nvte_set_matmul_config_attribute, "attr", m, kNVTEMatmulConfigNumAttributes, &b, 8);
    REFUSED(nvte_set_grouped_matmul_config_attribute, "attr", gm,
            kNVTEGroupedMatmulConfigNumAttributes, &b, 8);
    nvte_destroy_grouped_tensor(g);
    nvte_destroy_grouped_matmul_config(gm);
  }
  if (case_begin("shapes and counts")) {
    size_t dims[20] = {1};
    NVTETensor t = random_tensor(kNVTEFloat32, SHAPE(2, 2));
    NVTEShape rank16 = SHAPE(1, 1), huge = SHAPE((size_t)1 << 32, (size_t)1 << 32);
    rank16.ndim = 16;
    const NVTEScalingMode mode = NVTE_DELAYED_TENSOR_SCALING;
    REFUSED(nvte_make_shape, "ndim", dims, 16);
    REFUSED(nvte_make_shape, "ndim", dims, SIZE_MAX);
    REFUSED(nvte_tensor_size, "dim", t, 2);
    REFUSED(nvte_tensor_size, "dim", t, SIZE_MAX);
    REFUSED(nvte_create_grouped_tensor, "num_tensors", mode, 0, SHAPE(4, 4));
    REFUSED(nvte_create_grouped_tensor, "logical_shape", mode, 1, SHAPE(4));
    REFUSED(nvte_create_grouped_tensor, "logical_shape", mode, 1, SHAPE(4, 4, 4));
    REFUSED(nvte_create_grouped_tensor, "logical_shape", mode, 1, rank16);
    REFUSED(nvte_create_grouped_tensor, "logical_shape", mode, 1, huge);
    REFUSED(nvte_create_tensors, "tensors", mode, NULL, 1);
    REFUSED(nvte_destroy_tensors, "tensors", NULL, 1);
    REFUSED(nvte_tensor_pack_create, "pack", NULL);
    REFUSED(nvte_tensor_pack_destroy, "pack", NULL);
  }
  if (case_begin("bytes")) {
    Buffer *b = buffer(64);
    unsigned char host[64] = {0};
    REFUSED(nvte_memset, "ptr", NULL, 0, 64, NULL);
    REFUSED(nvte_memset, "ptr", NULL, 0, 0, NULL);
    REFUSED(nvte_memset, "size_in_bytes", b->ptr, 0, SIZE_MAX, NULL);
    REFUSED(nvte_memset, "size_in_bytes", b->ptr, 0, SIZE_MAX / 2 + 1, NULL);
    REFUSED(nvte_copy_host_to_device_via_kernel, "host_ptr", NULL, b->ptr, 64, NULL);
    REFUSED(nvte_copy_host_to_device_via_kernel, "device_ptr", host, NULL, 64, NULL);
    REFUSED(nvte_copy_host_to_device_via_kernel, "device_ptr", host, b->ptr + 2, 8, NULL);
    REFUSED(nvte_copy_host_to_device_via_kernel, "num_bytes", host, b->ptr, SIZE_MAX, NULL);
    NVTETensor t = tensor(b->ptr, kNVTEInt64, SHAPE(8));
    uint64_t words[9] = {0};
    REFUSED(nvte_convert_pointers_to_tensor, "host_ptrs", NULL, t, 8, NULL);
    REFUSED(nvte_convert_pointers_to_tensor, "output", words, t, 9, NULL);
    REFUSED(nvte_convert_pointers_to_tensor, "output", words, t, INT64_MAX, NULL);
    REFUSED(nvte_convert_pointers_to_tensor, "count", words, t, -1, NULL);
    REFUSED(nvte_convert_pointers_to_tensor, "count", words, t, INT64_MIN, NULL);
    REFUSED(nvtex_malloc, "bytes", SIZE_MAX);
    REFUSED(nvtex_memcpy_to_device, "dst", NULL, host, 64, NULL);
    REFUSED(nvtex_memcpy_to_device, "src", b->ptr, NULL, 64, NULL);
    REFUSED(nvtex_memcpy_to_device, "bytes", b->ptr, host, SIZE_MAX, NULL);
    REFUSED(nvtex_memcpy_to_host, "dst", NULL, b->ptr, 64, NULL);
    REFUSED(nvtex_memcpy_to_host, "src", host, NULL, 64, NULL);
    REFUSED(nvtex_memcpy_to_host, "bytes", host, b->ptr, SIZE_MAX, NULL);
    REFUSED(nvtex_memcpy_on_device, "dst", NULL, b->ptr, 64, NULL);
    REFUSED(nvtex_memcpy_on_device, "src", b->ptr, NULL, 64, NULL);
    REFUSED(nvtex_memcpy_on_device, "bytes", b->ptr, b->ptr, SIZE_MAX, NULL);
    REFUSED(nvtex_set_error_mode, "mode", (NVTEXErrorMode)3);
    REFUSED(nvtex_set_error_mode, "mode", (NVTEXErrorMode)-1);
  }
}

// ---- Handles of grouped tensors and configs; null and sizes at their setters and getters

// Attention: no object, and one tensor at a time that is none.
static void wrong_attention_handles(void *h, NVTETensor t) {
  REFUSED(nvte_get_fused_attn_backend_v2, "config", h, NULL);
  REFUSED(nvtex_fused_attn_query, "config", h, NVTEX_ATTENTION_FORWARD, NULL, NULL, NULL);
  REFUSED(nvte_fused_attn_fwd_v2, "params", h);
  REFUSED(nvte_fused_attn_bwd_v2, "params", h);
  if (h == NULL || h == t) return;  // absent, and a tensor
  static const char *const forward[] = {"Q",
                                        "K",
                                        "V",
                                        "Bias",
                                        "SoftmaxOffset",
                                        "S",
                                        "O",
                                        "cu_seqlens_q",
                                        "cu_seqlens_kv",
                                        "cu_seqlens_q_padded",
                                        "cu_seqlens_kv_padded",
                                        "page_table_k",
                                        "page_table_v",
                                        "rng_state"};
  static const char *const backward[] = {"Q",
                                         "K",
                                         "V",
                                         "O",
                                         "dO",
                                         "S",
                                         "dP",
                                         "dQ",
                                         "dK",
                                         "dV",
                                         "dBias",
                                         "dSoftmaxOffset",
                                         "cu_seqlens_q",
                                         "cu_seqlens_kv",
                                         "cu_seqlens_q_padded",
                                         "cu_seqlens_kv_padded"};
  NVTETensorPack pack = {{NULL}, 0};
  const NVTE_QKV_Layout layout = NVTE_BSHD_BSHD_BSHD;
  const NVTE_QKV_Format none = NVTE_QKV_Format_NOT_SET;
  for (size_t i = 0; i < COUNT(backward); i++) {
    NVTETensor a[COUNT(backward)];
    for (size_t n = 0; n < COUNT(a); n++) a[n] = n == i ? h : t;
    if (i < COUNT(forward)) {
      REFUSED(nvte_fused_attn_fwd, forward[i], a[0], a[1], a[2], a[3], a[4], a[5], a[6], &pack,
              a[7], a[8], a[9], a[10], a[11], a[12], a[13], 8, 8, true, false, false, 1, 0, layout,
              none, none, NVTE_NO_BIAS, NVTE_NO_MASK, NVTE_VANILLA_SOFTMAX, -1, -1, true, t, NULL);
    }
    REFUSED(nvte_fused_attn_bwd, backward[i], a[0], a[1], a[2], a[3], a[4], a[5], a[6], &pack, a[7],
            a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15], 8, 8, 1, 0, layout, none, none,
            NVTE_QKV_Layout_NOT_SET, none, none, NVTE_NO_BIAS, NVTE_NO_MASK, NVTE_VANILLA_SOFTMAX,
            -1, -1, true, false, false, t, NULL);
  }
}

static void wrong_config_handles(void) {
  NVTEQuantizationConfig q = nvte_create_quantization_config();
  NVTEMatmulConfig m = nvte_create_matmul_config();
  NVTEGroupedMatmulConfig gm = nvte_create_grouped_matmul_config();
  NVTEGroupedTensor g = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(4, 4));
  NVTEQuantizationConfig old_q = nvte_create_quantization_config();
  NVTEMatmulConfig old_m = nvte_create_matmul_config();
  NVTEGroupedMatmulConfig old_gm = nvte_create_grouped_matmul_config();
  NVTEGroupedTensor old_g = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(4, 4));
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_destroy_quantization_config(old_q);
  nvte_destroy_matmul_config(old_m);
  nvte_destroy_grouped_matmul_config(old_gm);
  nvte_destroy_grouped_tensor(old_g);
  void *const others[] = {
      q, m, gm, g, old_q, old_m, old_gm, old_g, t, &t, (void *)(uintptr_t)1, (void *)UINTPTR_MAX};
  const NVTEQuantizationConfigAttribute pow2 = kNVTEQuantizationConfigForcePow2Scales;
  const NVTEMatmulConfigAttribute split = kNVTEMatmulConfigUseSplitAccumulator;
  const NVTEGroupedMatmulConfigAttribute grouped_split =
      kNVTEGroupedMatmulConfigUseSplitAccumulator;
  const NVTEGroupedTensorParam swizzled = kNVTEGroupedWithGEMMSwizzledScales;
  uint8_t flag = 1;
  size_t n = 0;
  for (size_t i = 0; i <= COUNT(others); i++) {
    if (!case_begin("handle %zu for grouped tensors and configs", i)) continue;
    void *h = i < COUNT(others) ? others[i] : NULL;
    wrong_attention_handles(h, t);
    if (h != q) {
      REFUSED(nvte_set_quantization_config_attribute, "config", h, pow2, &flag, 1);
      REFUSED(nvte_get_quantization_config_attribute, "config", h, pow2, &flag, 1, &n);
      if (h) {
        REFUSED(nvte_destroy_quantization_config, "config", h);
      }
    }
    if (h != m) {
      REFUSED(nvte_set_matmul_config_attribute, "config", h, split, &flag, 1);
      REFUSED(nvte_get_matmul_config_attribute, "config", h, split, &flag, 1, &n);
      if (h) REFUSED(nvte_destroy_matmul_config, "config", h);
    }
    if (h != gm) {
      REFUSED(nvte_set_grouped_matmul_config_attribute, "config", h, grouped_split, &flag, 1);
      REFUSED(nvte_get_grouped_matmul_config_attribute, "config", h, grouped_split, &flag, 1, &n);
      if (h) {
        REFUSED(nvte_destroy_grouped_matmul_config, "config", h);
      }
    }
    if (h != gm && h) {
      REFUSED(nvte_grouped_gemm, "config", g, 1, g, 0, NULL, g, t, t, t, t, h, NULL);
    }
    if (h != g) {
      REFUSED(nvte_grouped_gemm, "A", h, 1, g, 0, NULL, g, t, t, t, t, gm, NULL);
      REFUSED(nvte_grouped_gemm, "B", g, 1, h, 0, NULL, g, t, t, t, t, gm, NULL);
      REFUSED(nvte_grouped_bias_add, "output", h, g, NULL);
      REFUSED(nvte_grouped_bias_add, "bias", g, h, NULL);
      REFUSED(nvte_set_grouped_tensor_param, "tensor", h, swizzled, &flag, 1);
      if (!h) continue;
      REFUSED(nvte_get_grouped_tensor_param, "tensor", h, swizzled, &flag, 1, &n);
      REFUSED(nvte_grouped_tensor_num_tensors, "tensor", h);
      REFUSED(nvte_grouped_tensor_type, "tensor", h);
      REFUSED(nvte_grouped_tensor_scaling_mode, "tensor", h);
      REFUSED(nvte_get_grouped_tensor_logical_shape, "tensor", h);
      REFUSED(nvte_destroy_grouped_tensor, "tensor", h);
    }
  }
  if (case_begin("sizes and null buffers")) {
    NVTEBasicTensor b = basic(NULL, kNVTEFloat32, SHAPE(0));
    REFUSED(nvte_set_tensor_param_v2, "size_in_bytes", t, kNVTEAmax, &b, sizeof b - 1);
    REFUSED(nvte_set_tensor_param_v2, "size_in_bytes", t, kNVTENVFP4E4M3Max, &b, 3);
    REFUSED(nvte_set_tensor_param_v2, "buf", t, kNVTEAmax, NULL, sizeof b);
    REFUSED(nvte_get_tensor_param_v2, "size_in_bytes", t, kNVTEAmax, &b, 0, &n);
    REFUSED(nvte_set_tensor_param, "tensor", NULL, kNVTEAmax, &b);
    REFUSED(nvte_set_tensor_param, "param", &t, kNVTEAmax, NULL);
    REFUSED(nvte_set_grouped_tensor_param, "size_in_bytes", g, kNVTEGroupedAmax, &b, 8);
    REFUSED(nvte_set_grouped_tensor_param, "buf", g, kNVTEGroupedAmax, NULL, sizeof b);
    REFUSED(nvte_set_grouped_tensor_param, "buf", g, kNVTEGroupedFirstDims, &b, sizeof b);
    REFUSED(nvte_get_grouped_tensor_param, "size_in_bytes", g, kNVTEGroupedAmax, &b, 143, &n);
    REFUSED(nvte_set_quantization_config_attribute, "size_in_bytes", q, pow2, &flag, 0);
    REFUSED(nvte_set_quantization_config_attribute, "buf", q, pow2, NULL, 1);
    REFUSED(nvte_get_quantization_config_attribute, "size_in_bytes", q, pow2, &flag, 0, &n);
    flag = 3;
    REFUSED(nvte_set_quantization_config_attribute, "buf", q,
            kNVTEQuantizationConfigNVFP44Over6Mode, &flag, 1);
    REFUSED(nvte_set_matmul_config_attribute, "size_in_bytes", m, kNVTEMatmulConfigSMCount, &b, 3);
    REFUSED(nvte_set_matmul_config_attribute, "buf", m, split, NULL, 1);
    REFUSED(nvte_get_matmul_config_attribute, "size_in_bytes", m, split, &flag, 0, &n);
    REFUSED(nvte_get_matmul_config_attribute, "size_written", m, split, &flag, 1, NULL);
    REFUSED(nvte_set_grouped_matmul_config_attribute, "size_in_bytes", gm,
            kNVTEGroupedMatmulConfigAvgM, &b, 7);
    REFUSED(nvte_set_grouped_matmul_config_attribute, "buf", gm, grouped_split, NULL, 1);
    REFUSED(nvte_get_grouped_matmul_config_attribute, "size_in_bytes", gm, grouped_split, &flag, 0,
            &n);
    REFUSED(nvte_get_grouped_matmul_config_attribute, "size_written", gm, grouped_split, &flag, 1,
            NULL);
    // A field whose dtype is not Float32 is no float pointer.
    b = basic(&flag, kNVTEInt32, SHAPE(1));
    nvte_set_tensor_param_v2(t, kNVTEAmax, &b, sizeof b);
    nvte_set_tensor_param_v2(t, kNVTEScale, &b, sizeof b);
    REFUSED(nvte_tensor_amax, "tensor", t);
    REFUSED(nvte_tensor_scale, "tensor", t);
    b = basic(NULL, kNVTEFloat4E2M1, SHAPE(2));
    nvte_set_tensor_param_v2(t, kNVTERowwiseData, &b, sizeof b);
    REFUSED(nvte_tensor_element_size, "tensor", t);
  }
  case_end();
  nvte_destroy_quantization_config(q);
  nvte_destroy_matmul_config(m);
  nvte_destroy_grouped_matmul_config(gm);
  nvte_destroy_grouped_tensor(g);
  nvte_destroy_tensor(t);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  setenv("NVTE_VERBOSE", "none", 0);  // hundreds of messages that are expected
  test_begin(argc, argv);
  wrong_destroyed_handles();
  wrong_basic_tensors();
  wrong_counts();
  wrong_numbers();
  wrong_config_handles();
  return refusals_end();
}
