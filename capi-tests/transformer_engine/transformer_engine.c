// Handles, their parameters and queries, configs, grouped tensors, and the small utilities of
// transformer_engine.h (core.md sections 3 to 13 and 16).
#define _POSIX_C_SOURCE 200809L
#include "nvte/transformer_engine.h"

#include <pthread.h>

#include "support.h"

static const NVTEScalingMode kModes[] = {NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING,
                                         NVTE_BLOCK_SCALING_1D,       NVTE_BLOCK_SCALING_2D,
                                         NVTE_NVFP4_1D_SCALING,       NVTE_INVALID_SCALING};

static bool is_unset(NVTEBasicTensor b, NVTEDType dtype) {
  return b.data_ptr == NULL && b.dtype == dtype && b.shape.ndim == 1 && b.shape.data[0] == 0;
}

static bool same_basic(NVTEBasicTensor a, NVTEBasicTensor b) {
  return a.data_ptr == b.data_ptr && a.dtype == b.dtype && same_shape(a.shape, b.shape);
}

// An address that nothing dereferences.
static void *address(size_t k) { return (void *)(uintptr_t)(0x10000 + 256 * k); }

// ---- Lifetimes

static void test_lifetime(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    if (!case_begin("create and destroy mode %d", (int)kModes[m])) continue;
    NVTETensor a = nvte_create_tensor(kModes[m]), b = nvte_create_tensor(kModes[m]);
    EXPECT_OK();
    CHECK(a != NULL && b != NULL && a != b, "%p and %p", a, b);
    CHECK_EQ(nvte_tensor_scaling_mode(a), kModes[m]);
    CHECK(is_unset(nvte_get_tensor_param(a, kNVTERowwiseData), kNVTEFloat32), "not empty");
    nvte_destroy_tensor(a);
    EXPECT_OK();
    CHECK_EQ(nvte_tensor_scaling_mode(b), kModes[m]);
    EXPECT_OK();
    nvte_destroy_tensor(b);
    nvte_destroy_tensor(NULL);
    EXPECT_OK();
  }
}

// Every function that takes a handle refuses this one. The name of the handle is `tensor`.
static void check_refused(NVTETensor t, const char *why) {
  NVTEBasicTensor b = basic(NULL, kNVTEFloat32, SHAPE(1));
  size_t written = 77;
  const NVTEBasicTensor poison = basic(address(3), kNVTEInt16, SHAPE(5, 6));
  NVTEBasicTensor out = poison;
#define REFUSED(function, call) \
  (void)(call);                 \
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, function ": tensor: expected", "got", why)
  REFUSED("nvte_tensor_data", nvte_tensor_data(t));
  REFUSED("nvte_tensor_columnwise_data", nvte_tensor_columnwise_data(t));
  REFUSED("nvte_tensor_shape", nvte_tensor_shape(t));
  REFUSED("nvte_tensor_columnwise_shape", nvte_tensor_columnwise_shape(t));
  REFUSED("nvte_tensor_ndims", nvte_tensor_ndims(t));
  REFUSED("nvte_tensor_size", nvte_tensor_size(t, 0));
  REFUSED("nvte_tensor_size_bytes", nvte_tensor_size_bytes(t));
  REFUSED("nvte_tensor_numel", nvte_tensor_numel(t));
  REFUSED("nvte_tensor_element_size", nvte_tensor_element_size(t));
  REFUSED("nvte_tensor_element_size_bits", nvte_tensor_element_size_bits(t));
  REFUSED("nvte_tensor_type", nvte_tensor_type(t));
  REFUSED("nvte_tensor_amax", nvte_tensor_amax(t));
  REFUSED("nvte_tensor_scale", nvte_tensor_scale(t));
  REFUSED("nvte_tensor_scale_inv", nvte_tensor_scale_inv(t));
  REFUSED("nvte_tensor_scale_inv_shape", nvte_tensor_scale_inv_shape(t));
  REFUSED("nvte_tensor_scaling_mode", nvte_tensor_scaling_mode(t));
  REFUSED("nvte_zero_tensor", (nvte_zero_tensor(t, NULL), 0));
  REFUSED("nvte_set_tensor_param", (nvte_set_tensor_param(&t, kNVTERowwiseData, &b), 0));
  REFUSED("nvte_get_tensor_param", nvte_get_tensor_param(t, kNVTERowwiseData).data_ptr);
  REFUSED("nvte_set_tensor_param_v2",
          (nvte_set_tensor_param_v2(t, kNVTERowwiseData, &b, sizeof b), 0));
  REFUSED("nvte_get_tensor_param_v2",
          (nvte_get_tensor_param_v2(t, kNVTERowwiseData, &out, sizeof out, &written), 0));
  REFUSED("nvte_destroy_tensor", (nvte_destroy_tensor(t), 0));
#undef REFUSED
  CHECK(same_basic(out, poison), "a refused getter wrote");
  nvte_destroy_tensors(&t, 1);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_tensors: tensors", "expected", "got", why);
}

static void test_stale_handles(void) {
  if (case_begin("use after destroy")) {
    NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
    nvte_destroy_tensor(t);
    EXPECT_OK();
    check_refused(t, "");
  }
  if (case_begin("use after destroy, the slot taken again")) {
    NVTETensor old = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
    set_param(old, kNVTERowwiseData, address(1), kNVTEFloat32, SHAPE(3));
    nvte_destroy_tensor(old);
    NVTETensor fresh[100];
    nvte_create_tensors(NVTE_MXFP8_1D_SCALING, fresh, COUNT(fresh));
    EXPECT_OK();
    for (size_t i = 0; i < COUNT(fresh); i++) {
      CHECK(fresh[i] != old, "a handle was given out twice");
      CHECK(nvte_tensor_data(fresh[i]) == NULL, "a new tensor holds old data");
    }
    check_refused(old, "");
    nvte_destroy_tensors(fresh, COUNT(fresh));
    EXPECT_OK();
  }
  if (case_begin("one slot, many generations")) {
    enum { ROUNDS = 5000 };
    NVTETensor *seen = host_memory(ROUNDS * sizeof *seen);
    for (size_t i = 0; i < ROUNDS; i++) {
      seen[i] = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
      nvte_destroy_tensor(seen[i]);
    }
    EXPECT_OK();
    NVTETensor live = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
    for (size_t i = 0; i < ROUNDS; i++) {
      CHECK(seen[i] != live, "handle %zu came back", i);
      nvte_tensor_ndims(seen[i]);
      CHECK(nvtex_last_status() == NVTEX_INVALID_ARGUMENT, "handle %zu is alive again", i);
      nvtex_clear_error();
    }
    nvte_destroy_tensor(live);
    EXPECT_OK();
  }
  // The generation of a handle has 24 bits: afterwards the slot may not begin anew.
  if (case_begin("one slot, all its generations")) {
    NVTETensor first = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
    nvte_destroy_tensor(first);
    bool again = false;
    for (size_t i = 0; i < ((size_t)1 << 24) + 1000 && !again; i++) {
      NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
      again = t == first;
      nvte_destroy_tensor(t);
    }
    EXPECT_OK();
    CHECK(!again, "a handle was issued twice");
    nvte_destroy_tensor(first);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_tensor: tensor", "destroyed");
  }
}

static void test_wrong_kinds(void) {
  NVTEGroupedTensor grouped =
      nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(4, 4));
  NVTEQuantizationConfig config = nvte_create_quantization_config();
  NVTEMatmulConfig matmul = nvte_create_matmul_config();
  NVTEGroupedMatmulConfig grouped_matmul = nvte_create_grouped_matmul_config();
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  EXPECT_OK();
  if (case_begin("wrong kinds as tensor")) {
    check_refused(grouped, "grouped tensor");
    check_refused(config, "quantization config");
    check_refused(matmul, "matmul config");
    check_refused(grouped_matmul, "grouped matmul config");
  }
  if (case_begin("invented handles as tensor")) {
    int on_stack = 0;
    const uintptr_t invented[] = {1,
                                  2,
                                  12345,
                                  0xFFFFFFFF,
                                  UINTPTR_MAX,
                                  UINTPTR_MAX / 2,
                                  (uintptr_t)&on_stack,
                                  (uintptr_t)t + 1000000,
                                  (uintptr_t)t ^ 0x80,
                                  (uintptr_t)t ^ (uintptr_t)1 << 40,
                                  (uintptr_t)t << 8};
    for (size_t i = 0; i < COUNT(invented); i++) check_refused((NVTETensor)invented[i], "");
    for (int i = 0; i < 300; i++) {
      uintptr_t bits = (uintptr_t)random_u64();
      if (bits != (uintptr_t)t && bits != 0) check_refused((NVTETensor)bits, "");
    }
  }
  if (case_begin("wrong kinds as grouped tensor and configs")) {
    float value = 0;
    size_t n = 0;
    nvte_destroy_grouped_tensor(t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_grouped_tensor: tensor", "expected", "got");
    nvte_grouped_tensor_num_tensors(t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_tensor_num_tensors: tensor", "expected",
                 "got");
    nvte_grouped_tensor_type(config);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_tensor_type: tensor", "expected", "got");
    nvte_grouped_tensor_scaling_mode(t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_tensor_scaling_mode: tensor", "got");
    nvte_get_grouped_tensor_logical_shape(t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_grouped_tensor_logical_shape: tensor", "got");
    nvte_get_quantization_config_attribute(t, kNVTEQuantizationConfigAmaxEpsilon, &value, 4, &n);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_quantization_config_attribute: config", "got");
    nvte_set_quantization_config_attribute(matmul, kNVTEQuantizationConfigAmaxEpsilon, &value, 4);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_quantization_config_attribute: config", "got");
    nvte_destroy_quantization_config(matmul);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_quantization_config: config", "got");
  }
  nvte_destroy_tensor(t);
  nvte_destroy_grouped_tensor(grouped);
  nvte_destroy_quantization_config(config);
  nvte_destroy_matmul_config(matmul);
  nvte_destroy_grouped_matmul_config(grouped_matmul);
  EXPECT_OK();
  if (case_begin("double destroy")) {
    nvte_destroy_tensor(t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_tensor: tensor", "expected", "got");
    nvte_destroy_grouped_tensor(grouped);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_grouped_tensor: tensor", "expected", "got");
    nvte_destroy_quantization_config(config);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_quantization_config: config", "got");
    nvte_grouped_tensor_num_tensors(grouped);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_grouped_tensor_num_tensors: tensor", "got");
    nvte_get_grouped_tensor_logical_shape(grouped);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_grouped_tensor_logical_shape: tensor", "got");
  }
}

static void test_many(void) {
  enum { TENSORS = 50000, GROUPED = 20000 };
  if (case_begin("%d live tensors", TENSORS)) {
    NVTETensor *t = host_memory(TENSORS * sizeof *t);
    for (size_t i = 0; i < TENSORS; i++) {
      t[i] = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
      set_param(t[i], kNVTERowwiseData, address(i), kNVTEByte, SHAPE(i + 1));
    }
    EXPECT_OK();
    size_t wrong = 0;
    for (size_t i = 0; i < TENSORS; i++) {
      wrong += nvte_tensor_data(t[i]) != address(i) || nvte_tensor_numel(t[i]) != i + 1;
    }
    CHECK_EQ(wrong, 0);
    for (size_t i = 0; i < TENSORS; i += 2) nvte_destroy_tensor(t[i]);
    EXPECT_OK();
    for (size_t i = 0; i < TENSORS; i++) {
      size_t n = nvte_tensor_numel(t[i]);
      wrong += (nvtex_last_status() == NVTEX_OK) != (i % 2 == 1) || n != (i % 2 ? i + 1 : 0);
      nvtex_clear_error();
    }
    CHECK_EQ(wrong, 0);
    for (size_t i = 0; i < TENSORS; i += 2) t[i] = NULL;
    nvte_destroy_tensors(t, TENSORS);
    EXPECT_OK();
  }
  if (case_begin("%d live grouped tensors", GROUPED)) {
    NVTEGroupedTensor *t = host_memory(GROUPED * sizeof *t);
    for (size_t i = 0; i < GROUPED; i++) {
      t[i] = nvte_create_grouped_tensor(NVTE_MXFP8_1D_SCALING, i + 1, SHAPE(128, i));
    }
    EXPECT_OK();
    size_t wrong = 0;
    for (size_t i = 0; i < GROUPED; i++) {
      wrong += nvte_grouped_tensor_num_tensors(t[i]) != i + 1 ||
               nvte_get_grouped_tensor_logical_shape(t[i]).data[1] != i;
      nvte_destroy_grouped_tensor(t[i]);
    }
    CHECK_EQ(wrong, 0);
    EXPECT_OK();
  }
}

// Handles of one thread, some destroyed by another. Errors are per thread.
enum { THREADS = 4, ROUNDS = 200, PER_ROUND = 50 };

static NVTETensor g_left[THREADS][ROUNDS];

static void *churn(void *argument) {
  size_t self = (size_t)(uintptr_t)argument, wrong = 0;
  for (size_t round = 0; round < ROUNDS; round++) {
    NVTETensor t[PER_ROUND];
    nvte_create_tensors(NVTE_DELAYED_TENSOR_SCALING, t, PER_ROUND);
    for (size_t i = 0; i < PER_ROUND; i++) {
      set_param(t[i], kNVTERowwiseData, address(self), kNVTEByte,
                SHAPE(self + 1, round + 1, i + 1));
    }
    for (size_t i = 0; i < PER_ROUND; i++) {
      NVTEShape shape = nvte_tensor_shape(t[i]);
      wrong += !same_shape(shape, SHAPE(self + 1, round + 1, i + 1)) ||
               nvte_tensor_data(t[i]) != address(self);
    }
    wrong += nvtex_last_status() != NVTEX_OK;
    nvte_tensor_ndims((NVTETensor)(uintptr_t)(self + 1));
    wrong += nvtex_last_status() != NVTEX_INVALID_ARGUMENT;
    nvtex_clear_error();
    g_left[self][round] = t[0];
    nvte_destroy_tensors(t + 1, PER_ROUND - 1);
    NVTEQuantizationConfig config = nvte_create_quantization_config();
    float epsilon = (float)self, got = -1;
    nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, 4);
    nvte_get_quantization_config_attribute(config, kNVTEQuantizationConfigAmaxEpsilon, &got, 4,
                                           NULL);
    nvte_destroy_quantization_config(config);
    wrong += got != epsilon || nvtex_last_status() != NVTEX_OK;
  }
  return (void *)(uintptr_t)wrong;
}

static void test_threads(void) {
  if (!case_begin("%d threads", THREADS)) return;
  for (int generation = 0; generation < 3; generation++) {
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
      CHECK_EQ(pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)i), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
      void *wrong = NULL;
      CHECK_EQ(pthread_join(threads[i], &wrong), 0);
      CHECK_EQ((uintptr_t)wrong, 0);
    }
    EXPECT_OK();  // none of their errors is ours
    for (size_t i = 0; i < THREADS; i++) {
      for (size_t round = 0; round < ROUNDS; round++) {
        CHECK_EQ(nvte_tensor_size(g_left[i][round], 1), round + 1);
      }
      nvte_destroy_tensors(g_left[i], ROUNDS);
    }
    EXPECT_OK();
  }
}

static void test_batches(void) {
  if (case_begin("create_tensors")) {
    NVTETensor t[10] = {0};
    nvte_create_tensors(NVTE_BLOCK_SCALING_2D, t, 10);
    EXPECT_OK();
    for (size_t i = 0; i < 10; i++) {
      CHECK(t[i] != NULL, "slot %zu", i);
      CHECK_EQ(nvte_tensor_scaling_mode(t[i]), NVTE_BLOCK_SCALING_2D);
      for (size_t j = 0; j < i; j++) CHECK(t[i] != t[j], "slots %zu and %zu", i, j);
    }
    NVTETensor kept = t[4];
    t[4] = NULL;  // A null handle is ignored.
    nvte_destroy_tensors(t, 10);
    EXPECT_OK();
    nvte_tensor_ndims(t[9]);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_ndims");
    CHECK_EQ(nvte_tensor_scaling_mode(kept), NVTE_BLOCK_SCALING_2D);
    nvte_destroy_tensor(kept);
    EXPECT_OK();
  }
  if (case_begin("batches of none")) {
    nvte_create_tensors(NVTE_DELAYED_TENSOR_SCALING, NULL, 0);
    nvte_destroy_tensors(NULL, 0);
    EXPECT_OK();
    nvte_create_tensors(NVTE_DELAYED_TENSOR_SCALING, NULL, 2);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_create_tensors: tensors", "expected", "got");
    nvte_destroy_tensors(NULL, 2);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_destroy_tensors: tensors", "expected", "got");
  }
  if (case_begin("tensor pack")) {
    NVTETensorPack pack = {{0}, 3};
    nvte_tensor_pack_create(&pack);
    EXPECT_OK();
    CHECK_EQ(pack.size, 3);
    for (size_t i = 0; i < 10; i++) {
      CHECK(pack.tensors[i] != NULL, "slot %zu", i);
      CHECK_EQ(nvte_tensor_scaling_mode(pack.tensors[i]), NVTE_DELAYED_TENSOR_SCALING);
      for (size_t j = 0; j < i; j++) CHECK(pack.tensors[i] != pack.tensors[j], "%zu and %zu", i, j);
    }
    NVTETensorPack copy = pack;
    nvte_tensor_pack_destroy(&pack);  // all 10, whatever the size
    EXPECT_OK();
    for (size_t i = 0; i < 10; i++) {
      nvte_tensor_ndims(copy.tensors[i]);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_ndims: tensor");
    }
    nvte_tensor_pack_destroy(&copy);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_pack_destroy: pack", "expected", "got");
  }
}

// ---- Tensor parameters

static void test_params(void) {
  if (case_begin("defaults of a new tensor and of null")) {
    NVTETensor handles[2] = {empty_tensor(), NULL};
    for (int h = 0; h < 2; h++) {
      for (int p = kNVTERowwiseData; p <= kNVTEColumnwiseAmax; p++) {
        size_t written = 0;
        NVTEBasicTensor b = basic(address(1), kNVTEByte, SHAPE(9));
        nvte_get_tensor_param_v2(handles[h], (NVTETensorParam)p, &b, sizeof b, &written);
        EXPECT_OK();
        CHECK_EQ(written, sizeof b);
        CHECK(is_unset(b, kNVTEFloat32), "parameter %d", p);
        CHECK(is_unset(nvte_get_tensor_param(handles[h], (NVTETensorParam)p), kNVTEFloat32),
              "parameter %d", p);
        EXPECT_OK();
      }
      uint8_t flag = 7;
      int bound = 7;
      size_t written = 0;
      nvte_get_tensor_param_v2(handles[h], kNVTEWithGEMMSwizzledScales, &flag, 1, &written);
      CHECK_EQ(flag, 0);
      CHECK_EQ(written, 1);
      flag = 7;
      nvte_get_tensor_param_v2(handles[h], kNVTERowScaledNVFP4, &flag, 1, &written);
      CHECK_EQ(flag, 0);
      CHECK_EQ(written, 1);
      nvte_get_tensor_param_v2(handles[h], kNVTENVFP4E4M3Max, &bound, 4, &written);
      CHECK_EQ(bound, 448);
      CHECK_EQ(written, 4);
      EXPECT_OK();
    }
  }
  for (int v1 = 0; v1 < 2; v1++) {
    if (!case_begin("buffers %s", v1 ? "v1" : "v2")) continue;
    NVTETensor t = empty_tensor();
    NVTEBasicTensor set[7], got;
    for (int p = 0; p < 7; p++) {
      set[p] = basic(address((size_t)p), (NVTEDType)p, SHAPE((size_t)p + 1, 2, 3));
      if (p == 5) set[p].shape.ndim = 0;
      if (p == 6) set[p].shape = SHAPE(1, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 3);
      if (v1) {
        nvte_set_tensor_param(&t, (NVTETensorParam)p, &set[p]);
      } else {
        nvte_set_tensor_param_v2(t, (NVTETensorParam)p, &set[p], sizeof set[p]);
      }
      EXPECT_OK();
    }
    for (int p = 0; p < 7; p++) {
      nvte_get_tensor_param_v2(t, (NVTETensorParam)p, &got, sizeof got, NULL);
      EXPECT_OK();
      CHECK(same_basic(got, set[p]), "v2 reads parameter %d differently", p);
      CHECK(same_basic(nvte_get_tensor_param(t, (NVTETensorParam)p), set[p]),
            "v1 reads parameter %d differently", p);
      EXPECT_OK();
    }
    got = basic(NULL, kNVTEFloat32, SHAPE(0));
    nvte_set_tensor_param_v2(t, kNVTERowwiseData, &got, sizeof got);
    CHECK(is_unset(nvte_get_tensor_param(t, kNVTERowwiseData), kNVTEFloat32), "not cleared");
    EXPECT_OK();
  }
  if (case_begin("flags and bound")) {
    NVTETensor t = empty_tensor();
    const NVTETensorParam flags[] = {kNVTEWithGEMMSwizzledScales, kNVTERowScaledNVFP4};
    for (size_t f = 0; f < 2; f++) {
      const uint8_t values[] = {1, 0, 255, 0, 2};
      for (size_t v = 0; v < COUNT(values); v++) {
        uint8_t got = 9, other = 9;
        nvte_set_tensor_param_v2(t, flags[f], &values[v], 1);
        nvte_get_tensor_param_v2(t, flags[f], &got, 1, NULL);
        nvte_get_tensor_param_v2(t, flags[1 - f], &other, 1, NULL);
        EXPECT_OK();
        CHECK_EQ(got, values[v] != 0);
        CHECK_EQ(other, f == 0 ? 0 : 1);  // the first loop leaves its flag set
      }
    }
    int bounds[] = {256, 448, 256};
    for (size_t v = 0; v < COUNT(bounds); v++) {
      int got = 0;
      nvte_set_tensor_param_v2(t, kNVTENVFP4E4M3Max, &bounds[v], sizeof(int));
      nvte_get_tensor_param_v2(t, kNVTENVFP4E4M3Max, &got, sizeof got, NULL);
      EXPECT_OK();
      CHECK_EQ(got, bounds[v]);
    }
    int wrong = 447, got = 0;
    nvte_set_tensor_param_v2(t, kNVTENVFP4E4M3Max, &wrong, sizeof wrong);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_tensor_param_v2", "expected", "got", "447");
    nvte_get_tensor_param_v2(t, kNVTENVFP4E4M3Max, &got, sizeof got, NULL);
    CHECK_EQ(got, 256);
    EXPECT_OK();
  }
  if (case_begin("sizes")) {
    NVTETensor t = empty_tensor();
    const size_t sizes[kNVTENumTensorParams] = {144, 144, 144, 144, 144, 144, 144, 1, 1, 4};
    for (int p = 0; p < kNVTENumTensorParams; p++) {
      unsigned char value[200], zeros[200] = {0};
      int bound = 448;
      size_t written = 0;
      memcpy(zeros, &bound, p == kNVTENVFP4E4M3Max ? sizeof bound : 0);
      nvte_get_tensor_param_v2(t, (NVTETensorParam)p, NULL, 0,
                               &written);  // Asks only for the size.
      EXPECT_OK();
      CHECK_EQ(written, sizes[p]);
      memset(value, 0xEE, sizeof value);
      nvte_set_tensor_param_v2(t, (NVTETensorParam)p, zeros, sizeof zeros);
      nvte_get_tensor_param_v2(t, (NVTETensorParam)p, value, sizeof value, &written);
      EXPECT_OK();
      CHECK_EQ(written, sizes[p]);
      CHECK(value[sizes[p]] == 0xEE, "parameter %d: written past its size", p);
      nvte_set_tensor_param_v2(t, (NVTETensorParam)p, zeros, sizes[p] - 1);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_tensor_param_v2: size_in_bytes", "expected",
                   "got");
      memset(value, 0xEE, sizeof value);
      nvte_get_tensor_param_v2(t, (NVTETensorParam)p, value, sizes[p] - 1, &written);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_tensor_param_v2: size_in_bytes", "expected",
                   "got");
      CHECK(value[0] == 0xEE, "parameter %d: a refused getter wrote", p);
      written = 99;
      nvte_get_tensor_param_v2(t, (NVTETensorParam)p, value, sizes[p] - 1, &written);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_tensor_param_v2: size_in_bytes");
      CHECK_EQ(written, 99);
      NVTETensor gone = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
      nvte_destroy_tensor(gone);
      nvte_get_tensor_param_v2(gone, (NVTETensorParam)p, NULL, 0, &written);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_tensor_param_v2: tensor", "destroyed");
      CHECK_EQ(written, 99);
      nvte_set_tensor_param_v2(t, (NVTETensorParam)p, NULL, sizes[p]);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_tensor_param_v2: buf", "expected", "got");
    }
  }
  if (case_begin("v1 knows buffers only")) {
    NVTETensor t = empty_tensor(), none = NULL;
    NVTEBasicTensor b = basic(NULL, kNVTEFloat32, SHAPE(1));
    for (int p = kNVTEWithGEMMSwizzledScales; p <= kNVTENumTensorParams; p++) {
      nvte_set_tensor_param(&t, (NVTETensorParam)p, &b);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_tensor_param: param_name", "expected", "got");
      nvte_get_tensor_param(t, (NVTETensorParam)p);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_tensor_param: param_name", "expected", "got");
    }
    nvte_set_tensor_param(NULL, kNVTERowwiseData, &b);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_tensor_param: tensor", "expected", "got");
    nvte_set_tensor_param(&none, kNVTERowwiseData, &b);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_tensor_param: tensor", "expected", "got");
    nvte_set_tensor_param(&t, kNVTERowwiseData, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_tensor_param: param", "expected", "got");
  }
}

// ---- Queries

static void test_null_queries(void) {
  if (!case_begin("queries of null")) return;
  CHECK(nvte_tensor_data(NULL) == NULL, "data");
  CHECK(nvte_tensor_columnwise_data(NULL) == NULL, "columnwise data");
  CHECK(nvte_tensor_amax(NULL) == NULL, "amax");
  CHECK(nvte_tensor_scale(NULL) == NULL, "scale");
  CHECK(nvte_tensor_scale_inv(NULL) == NULL, "scale_inv");
  CHECK(same_shape(nvte_tensor_scale_inv_shape(NULL), SHAPE(0)), "scale_inv shape");
  CHECK_EQ(nvte_tensor_scaling_mode(NULL), NVTE_DELAYED_TENSOR_SCALING);
  CHECK_EQ(nvte_tensor_type(NULL), kNVTEFloat32);
  CHECK_EQ(nvte_tensor_element_size(NULL), 4);
  CHECK_EQ(nvte_tensor_element_size_bits(NULL), 32);
  CHECK_EQ(nvte_tensor_size_bytes(NULL), 0);
  EXPECT_OK();
  nvte_tensor_shape(NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_shape: tensor", "expected", "got");
  nvte_tensor_columnwise_shape(NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_columnwise_shape: tensor", "expected", "got");
  CHECK_EQ(nvte_tensor_ndims(NULL), 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_ndims: tensor", "expected", "got");
  CHECK_EQ(nvte_tensor_size(NULL, 0), 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_size: tensor", "expected", "got");
  CHECK_EQ(nvte_tensor_numel(NULL), 0);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_numel: tensor", "expected", "got");
}

static void test_queries(void) {
  if (case_begin("queries")) {
    NVTETensor t = tensor(address(1), kNVTEBFloat16, SHAPE(3, 4, 5));
    set_param(t, kNVTEColumnwiseData, address(2), kNVTEFloat16, SHAPE(5, 3, 4));
    set_param(t, kNVTEScale, address(3), kNVTEFloat32, SHAPE(1));
    set_param(t, kNVTEAmax, address(4), kNVTEFloat32, SHAPE(1));
    set_param(t, kNVTERowwiseScaleInv, address(5), kNVTEFloat8E8M0, SHAPE(128, 4));
    CHECK(nvte_tensor_data(t) == address(1), "data");
    CHECK(nvte_tensor_columnwise_data(t) == address(2), "columnwise data");
    CHECK((void *)nvte_tensor_scale(t) == address(3), "scale");
    CHECK((void *)nvte_tensor_amax(t) == address(4), "amax");
    CHECK((void *)nvte_tensor_scale_inv(t) == address(5), "scale_inv");
    CHECK(same_shape(nvte_tensor_shape(t), SHAPE(3, 4, 5)), "shape");
    CHECK(same_shape(nvte_tensor_columnwise_shape(t), SHAPE(5, 3, 4)), "columnwise shape");
    CHECK(same_shape(nvte_tensor_scale_inv_shape(t), SHAPE(128, 4)), "scale_inv shape");
    CHECK_EQ(nvte_tensor_ndims(t), 3);
    for (size_t i = 0; i < 3; i++) CHECK_EQ(nvte_tensor_size(t, i), 3 + i);
    CHECK_EQ(nvte_tensor_numel(t), 60);
    CHECK_EQ(nvte_tensor_type(t), kNVTEBFloat16);
    CHECK_EQ(nvte_tensor_size_bytes(t), 120);
    CHECK_EQ(nvte_tensor_element_size(t), 2);
    CHECK_EQ(nvte_tensor_element_size_bits(t), 16);
    EXPECT_OK();
    const size_t beyond[] = {3, 14, 15, 16, SIZE_MAX};
    for (size_t i = 0; i < COUNT(beyond); i++) {
      nvte_tensor_size(t, beyond[i]);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_size: dim", "expected", "got");
    }
    set_param(t, kNVTEScale, address(3), kNVTEFloat16, SHAPE(1));
    set_param(t, kNVTEAmax, address(4), kNVTEInt32, SHAPE(1));
    nvte_tensor_scale(t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_scale: tensor.scale", "Float32", "Float16");
    nvte_tensor_amax(t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_amax: tensor.amax", "Float32", "Int32");
  }
  if (case_begin("dtypes")) {
    const size_t bits[] = {8, 16, 32, 64, 32, 16, 16, 8, 8, 8, 4};
    for (int d = 0; d < kNVTENumTypes; d++) {
      NVTETensor t = tensor(address(1), (NVTEDType)d, SHAPE(7, 4));
      CHECK_EQ(nvte_tensor_type(t), d);
      CHECK_EQ(nvte_tensor_element_size_bits(t), bits[d]);
      CHECK_EQ(nvte_tensor_size_bytes(t), 28 * bits[d] / 8);
      CHECK_EQ(nvte_tensor_numel(t), 28);
      EXPECT_OK();
      size_t size = nvte_tensor_element_size(t);
      if (d == kNVTEFloat4E2M1) {
        EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_element_size", "expected", "got");
      } else {
        EXPECT_OK();
        CHECK_EQ(size, bits[d] / 8);
      }
    }
    CHECK_EQ(nvte_tensor_size_bytes(tensor(NULL, kNVTEFloat4E2M1, SHAPE(5))), 2);
    CHECK_EQ(nvte_tensor_size_bytes(tensor(NULL, kNVTEFloat4E2M1, SHAPE(1))), 0);
    EXPECT_OK();
  }
  if (case_begin("presence")) {
    NVTEShape scalar = SHAPE(1);
    scalar.ndim = 0;
    const NVTEShape shapes[] = {SHAPE(0, 128), SHAPE(1), SHAPE(128, 0),
                                SHAPE(0, 0),   scalar,   SHAPE(7)};
    const size_t numels[] = {0, 1, 0, 0, 1, 7};
    for (size_t i = 0; i < COUNT(shapes); i++) {
      // A null pointer with a shape other than (0) counts as present: it hides the columnwise data.
      NVTETensor t = tensor(NULL, kNVTEFloat8E5M2, shapes[i]);
      set_param(t, kNVTEColumnwiseData, address(1), kNVTEFloat16, SHAPE(2, 3));
      CHECK(same_shape(nvte_tensor_shape(t), shapes[i]), "%s", shape_text(nvte_tensor_shape(t)));
      CHECK_EQ(nvte_tensor_type(t), kNVTEFloat8E5M2);
      CHECK_EQ(nvte_tensor_numel(t), numels[i]);
      CHECK_EQ(nvte_tensor_ndims(t), shapes[i].ndim);
      EXPECT_OK();
    }
    NVTETensor t = tensor(address(2), kNVTEFloat8E5M2, SHAPE(0));
    set_param(t, kNVTEColumnwiseData, address(1), kNVTEFloat16, SHAPE(2, 3));
    CHECK(same_shape(nvte_tensor_shape(t), SHAPE(0)), "a pointer with shape (0) is present");
    set_param(t, kNVTERowwiseData, NULL, kNVTEByte, SHAPE(0));
    CHECK(same_shape(nvte_tensor_shape(t), SHAPE(3, 2)), "null with shape (0) is absent");
    CHECK_EQ(nvte_tensor_type(t), kNVTEFloat16);
    CHECK(same_shape(nvte_tensor_shape(empty_tensor()), SHAPE(0)), "an empty tensor");
    CHECK_EQ(nvte_tensor_numel(empty_tensor()), 0);
    EXPECT_OK();
  }
}

// Only columnwise data: stored transposed, except MXFP8.
static void test_columnwise_shapes(void) {
  const struct {
    NVTEShape stored, logical;
  } rows[] = {{SHAPE(5), SHAPE(5)},
              {SHAPE(5, 3), SHAPE(3, 5)},
              {SHAPE(5, 3, 4), SHAPE(3, 4, 5)},
              {SHAPE(160, 5, 4, 3), SHAPE(5, 4, 3, 160)},
              {SHAPE(0, 16), SHAPE(16, 0)},
              {SHAPE(2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3),
               SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 2)}};
  for (size_t m = 0; m < COUNT(kModes); m++) {
    for (size_t r = 0; r < COUNT(rows); r++) {
      if (!case_begin("columnwise shape %s mode %d", shape_text(rows[r].stored), (int)kModes[m])) {
        continue;
      }
      NVTETensor t = tensor_of_mode(kModes[m]);
      set_param(t, kNVTEColumnwiseData, address(1), kNVTEFloat8E4M3, rows[r].stored);
      CHECK(same_shape(nvte_tensor_columnwise_shape(t), rows[r].stored), "stored shape");
      CHECK_EQ(nvte_tensor_type(t), kNVTEFloat8E4M3);
      EXPECT_OK();
      NVTEShape got = nvte_tensor_shape(t);
      if (kModes[m] == NVTE_INVALID_SCALING) {
        EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_shape: tensor", "expected", "got");
        nvte_tensor_numel(t);
        EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_numel: tensor", "expected", "got");
        continue;
      }
      EXPECT_OK();
      NVTEShape want = kModes[m] == NVTE_MXFP8_1D_SCALING ? rows[r].stored : rows[r].logical;
      CHECK(same_shape(got, want), "got %s, expected %s", shape_text(got), shape_text(want));
      CHECK_EQ(nvte_tensor_ndims(t), want.ndim);
      CHECK_EQ(nvte_tensor_size(t, want.ndim - 1), want.data[want.ndim - 1]);
      CHECK_EQ(nvte_tensor_numel(t), numel(want));
      EXPECT_OK();
    }
  }
}

static void test_make_shape(void) {
  if (!case_begin("make_shape")) return;
  size_t dims[16];
  for (size_t i = 0; i < 16; i++) dims[i] = i * i + 1;
  for (size_t n = 0; n <= 15; n++) {
    NVTEShape shape = nvte_make_shape(dims, n);
    EXPECT_OK();
    CHECK_EQ(shape.ndim, n);
    CHECK(memcmp(shape.data, dims, n * sizeof *dims) == 0, "rank %zu", n);
    NVTEShape zeros = nvte_make_shape(NULL, n);
    EXPECT_OK();
    CHECK_EQ(zeros.ndim, n);
    for (size_t i = 0; i < n; i++) CHECK_EQ(zeros.data[i], 0);
  }
  nvte_make_shape(dims, 16);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_make_shape: ndim", "expected", "15", "got", "16");
  nvte_make_shape(NULL, SIZE_MAX);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_make_shape: ndim", "expected", "got");
}

// ---- Device memory

static void test_zero_tensor(void) {
  for (size_t shift = 0; shift < 3; shift++) {
    if (!case_begin("zero_tensor shifted %zu", shift)) continue;
    Buffer *data = buffer_shifted(5000, shift), *amax = buffer(4), *colwise = buffer(5000);
    Buffer *scale = buffer(4), *scale_inv = buffer(4), *colwise_amax = buffer(4);
    NVTETensor t = tensor(data->ptr, kNVTEByte, SHAPE(50, 100));
    set_param(t, kNVTEColumnwiseData, colwise->ptr, kNVTEByte, SHAPE(100, 50));
    set_param(t, kNVTEAmax, amax->ptr, kNVTEFloat32, SHAPE(1));
    set_param(t, kNVTEColumnwiseAmax, colwise_amax->ptr, kNVTEFloat32, SHAPE(1));
    set_param(t, kNVTEScale, scale->ptr, kNVTEFloat32, SHAPE(1));
    set_param(t, kNVTERowwiseScaleInv, scale_inv->ptr, kNVTEFloat32, SHAPE(1));
    nvte_zero_tensor(t, NULL);
    EXPECT_OK();
    CHECK(all_bytes(data, 0), "data");
    CHECK(all_bytes(amax, 0), "amax");
    CHECK(untouched(colwise) && untouched(colwise_amax) && untouched(scale) && untouched(scale_inv),
          "another buffer was written");
  }
  if (case_begin("zero_tensor of little")) {
    nvte_zero_tensor(NULL, NULL);
    nvte_zero_tensor(empty_tensor(), NULL);
    nvte_zero_tensor(tensor(NULL, kNVTEFloat32, SHAPE(3)), NULL);
    EXPECT_OK();
    Buffer *any = buffer(64);
    nvte_zero_tensor(tensor(any->ptr, kNVTEFloat32, SHAPE(0, 16)), NULL);
    EXPECT_OK();
    CHECK(untouched(any), "written");
    nvte_zero_tensor(tensor(any->ptr, kNVTEFloat4E2M1, SHAPE(1, 16)), NULL);  // 8 bytes
    EXPECT_OK();
    const unsigned char *got = buffer_read(any);
    for (size_t i = 0; i < 64; i++) CHECK(got[i] == (i < 8 ? 0 : 0xFF), "byte %zu: %u", i, got[i]);
  }
}

static void test_memset(void) {
  const size_t sizes[] = {0, 1, 4, 9, 16, 128, 4096, 4097, 8192};
  const int values[] = {0, 6, 255, 0x1A7, -2};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (size_t v = 0; v < COUNT(values); v++) {
      for (size_t shift = 0; shift < 17; shift++) {
        if (!case_begin("memset %zu bytes to %d shifted %zu", sizes[s], values[v], shift)) continue;
        Buffer *b = buffer_shifted(sizes[s], shift);
        nvte_memset(b->ptr, values[v], sizes[s], NULL);
        EXPECT_OK();
        CHECK(all_bytes(b, values[v] & 0xFF), "a byte differs");
      }
    }
  }
  if (case_begin("memset null")) {
    nvte_memset(NULL, 0, 4, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_memset: ptr", "expected", "got");
    nvte_memset(NULL, 0, 0, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_memset: ptr", "expected", "got");
  }
}

// ---- Offsets from splits

static const size_t kLengths[] = {1, 4, 255, 256, 257, 1024, 5000};

static int64_t *random_splits(size_t n, int64_t limit) {
  int64_t *s = host_memory(n * sizeof *s);
  for (size_t i = 0; i < n; i++) {
    s[i] = random_below(4) ? (int64_t)random_below((size_t)limit) : 0;
  }
  return s;
}

static Buffer *int_buffer(NVTEDType dtype, const int64_t *values, size_t n) {
  unsigned char *data = host_memory(n * dtype_size(dtype));
  for (size_t i = 0; i < n; i++)
    memcpy(data + i * dtype_size(dtype), &values[i], dtype_size(dtype));
  return buffer_from(data, n * dtype_size(dtype), dtype_size(dtype));
}

static int64_t int_at(NVTEDType dtype, const void *data, size_t i) {
  int32_t narrow;
  int64_t wide;
  memcpy(&narrow, (const unsigned char *)data + 4 * i, 4);
  if (dtype == kNVTEInt32) return narrow;
  memcpy(&wide, (const unsigned char *)data + 8 * i, 8);
  return wide;
}

// Truncation to the output's type, as two's complement.
static int64_t truncated(NVTEDType dtype, uint64_t x) {
  return dtype == kNVTEInt32 ? (int64_t)(int32_t)(uint32_t)x : (int64_t)x;
}

static void test_offsets(void) {
  const int64_t strides[] = {1, 7, 128, INT64_C(1) << 33};
  for (size_t l = 0; l < COUNT(kLengths); l++) {
    for (size_t s = 0; s < COUNT(strides); s++) {
      size_t n = kLengths[l];
      if (!case_begin("splits_to_offsets n=%zu stride=%lld", n, (long long)strides[s])) continue;
      int64_t *splits = random_splits(n, 100000);
      if (n > 2) splits[1] = -5;  // A negative size is not rejected.
      Buffer *in = int_buffer(kNVTEInt64, splits, n), *out = buffer_shifted(8 * (n + 1), 8);
      nvte_splits_to_offsets((const int64_t *)(void *)in->ptr, (int64_t *)(void *)out->ptr, n,
                             strides[s], NULL);
      EXPECT_OK();
      const int64_t *got = buffer_read(out);
      int64_t sum = 0;
      for (size_t i = 0; i <= n; i++) {
        CHECK(got[i] == strides[s] * sum, "[%zu]: got %lld, expected %lld", i, (long long)got[i],
              (long long)(strides[s] * sum));
        if (i < n) sum += splits[i];
      }
    }
  }
}

static void test_offsets_2d(void) {
  const NVTEDType types[] = {kNVTEInt32, kNVTEInt64};
  for (size_t l = 0; l < COUNT(kLengths); l++) {
    for (int k = 0; k < 8; k++) {
      size_t n = kLengths[l];
      NVTEDType f = types[k & 1], s = types[k >> 1 & 1], o = types[k >> 2];
      if (!case_begin("splits_to_offsets_2d n=%zu %s %s %s", n, dtype_name(f), dtype_name(s),
                      dtype_name(o))) {
        continue;
      }
      int64_t *first = host_memory(8 * n), *last = host_memory(8 * n);
      for (size_t i = 0; i < n; i++) {
        first[i] = (int64_t)(i % 17 + 1);
        last[i] = (int64_t)((i % 5 + 1) * 16);
        if (l % 2) first[i] *= 100000, last[i] *= 1000;  // beyond 2^31: Int32 wraps
      }
      Buffer *out = buffer_shifted((n + 1) * dtype_size(o), dtype_size(o));
      nvte_splits_to_offsets_2d(tensor(int_buffer(f, first, n)->ptr, f, SHAPE(n)),
                                tensor(int_buffer(s, last, n)->ptr, s, SHAPE(n)),
                                tensor(out->ptr, o, SHAPE(n + 1)), NULL);
      EXPECT_OK();
      const void *got = buffer_read(out);
      uint64_t sum = 0;
      for (size_t i = 0; i <= n; i++) {
        CHECK(int_at(o, got, i) == truncated(o, sum), "[%zu]: got %lld, expected %lld", i,
              (long long)int_at(o, got, i), (long long)truncated(o, sum));
        if (i < n) sum += (uint64_t)(first[i] * last[i]);
      }
    }
  }
}

static void test_offsets_multi(void) {
  const size_t counts[] = {1, 3, 8, 9, 20};
  for (size_t l = 0; l < COUNT(kLengths); l++) {
    for (size_t c = 0; c < COUNT(counts); c++) {
      for (int wide = 0; wide < 2; wide++) {
        size_t n = kLengths[l], count = counts[c];
        NVTEDType dtype = wide ? kNVTEInt64 : kNVTEInt32;
        if (!case_begin("splits_to_offsets_multi n=%zu %s %zu outputs", n, dtype_name(dtype),
                        count)) {
          continue;
        }
        int64_t *splits = random_splits(n, 1000000000), strides[20];
        int leading[20];
        Buffer *out[20];
        NVTEDType types[20];
        NVTETensor tensors[20];
        for (size_t i = 0; i < count; i++) {
          const int64_t some[] = {1, 1, 768, 0, 785, -3};
          strides[i] = some[i % COUNT(some)];
          leading[i] = i % 3 == 0 ? 0 : (int)i - 5;  // any number but 0 is true
          types[i] = i % 2 ? kNVTEInt64 : kNVTEInt32;
          size_t length = n + (leading[i] != 0);
          out[i] = buffer(length * dtype_size(types[i]));
          tensors[i] = tensor(out[i]->ptr, types[i], SHAPE(length));
        }
        nvte_splits_to_offsets_multi(tensor(int_buffer(dtype, splits, n)->ptr, dtype, SHAPE(n)),
                                     tensors, strides, leading, count, NULL);
        EXPECT_OK();
        for (size_t i = 0; i < count; i++) {
          const void *got = buffer_read(out[i]);
          uint64_t sum = 0;
          size_t at = 0, bad = 0;
          if (leading[i]) bad += !CHECK(int_at(types[i], got, at++) == 0, "output %zu", i);
          for (size_t j = 0; j < n && bad < 2; j++, at++) {
            sum += (uint64_t)splits[j];
            int64_t want = truncated(types[i], sum * (uint64_t)strides[i]);
            bad += !CHECK(int_at(types[i], got, at) == want,
                          "output %zu [%zu]: got %lld, expected %lld", i, at,
                          (long long)int_at(types[i], got, at), (long long)want);
          }
        }
      }
    }
  }
  if (case_begin("splits_to_offsets_multi without outputs")) {
    nvte_splits_to_offsets_multi(NULL, NULL, NULL, NULL, 0, NULL);
    EXPECT_OK();
  }
}

// ---- Quantization configs

static void test_quantization_config(void) {
  if (!case_begin("quantization config")) return;
  const size_t sizes[kNVTEQuantizationConfigNumAttributes] = {1, 4, 8, 4, 8, 1, 1, 1, 1, 1, 1};
  const char *const get = "nvte_get_quantization_config_attribute";
  const char *const set = "nvte_set_quantization_config_attribute";
  NVTEQuantizationConfig config = nvte_create_quantization_config();
  EXPECT_OK();
  CHECK(config != NULL, "null");
  for (int a = 0; a < kNVTEQuantizationConfigNumAttributes; a++) {
    NVTEQuantizationConfigAttribute attr = (NVTEQuantizationConfigAttribute)a;
    bool format = attr == kNVTEQuantizationConfigFloat8BlockScaleTensorFormat;
    unsigned char value[16], initial[16] = {(unsigned char)(format ? 2 : 0)};
    size_t written = 99, size = sizes[a];
    memset(value, 0xEE, sizeof value);
    nvte_get_quantization_config_attribute(config, attr, value, sizeof value, &written);
    EXPECT_OK();
    CHECK_EQ(written, size);
    CHECK(memcmp(value, initial, size) == 0, "the default of attribute %d", a);
    CHECK(value[size] == 0xEE, "attribute %d: written past its size", a);
    nvte_get_quantization_config_attribute(config, attr, value, size, NULL);
    EXPECT_OK();
    written = 99;
    nvte_get_quantization_config_attribute(NULL, attr, NULL, 0, &written);
    EXPECT_OK();
    CHECK_EQ(written, size);

    NVTETensor t = empty_tensor();
    float number = 0.25f;
    uint8_t flag = attr == kNVTEQuantizationConfigNVFP44Over6Mode ? 2 : 128;
    const void *source = size == 8 ? (const void *)&t : size == 4 ? (const void *)&number : &flag;
    nvte_set_quantization_config_attribute(config, attr, source, size);
    EXPECT_OK();
    nvte_get_quantization_config_attribute(config, attr, value, size, &written);
    EXPECT_OK();
    if (format) {
      CHECK(memcmp(value, initial, size) == 0, "the format is not ignored");
    } else if (size == 1) {
      CHECK_EQ(value[0], attr == kNVTEQuantizationConfigNVFP44Over6Mode ? 2 : 1);
    } else {
      CHECK(memcmp(value, source, size) == 0, "attribute %d does not read back", a);
    }

    memset(value, 0xEE, sizeof value);
    nvte_get_quantization_config_attribute(config, attr, value, size - 1, &written);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "size_in_bytes", "expected", "got");
    written = 99;
    nvte_get_quantization_config_attribute(NULL, attr, value, size, &written);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "config", "expected", "got");
    NVTEQuantizationConfig gone = nvte_create_quantization_config();
    nvte_destroy_quantization_config(gone);
    nvte_get_quantization_config_attribute(gone, attr, NULL, 0, &written);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, get, "config", "destroyed");
    CHECK_EQ(written, 99);
    CHECK(value[0] == 0xEE, "a refused getter wrote");
    nvte_set_quantization_config_attribute(config, attr, source, size - 1);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "size_in_bytes", "expected", "got");
    nvte_set_quantization_config_attribute(config, attr, NULL, size);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "buf", "expected", "got");
    nvte_set_quantization_config_attribute(NULL, attr, source, size);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "config", "expected", "got");
  }
  // Setting one attribute left the others alone, and wrong values change nothing.
  float epsilon = 0;
  uint8_t mode = 3, got_mode = 9;
  nvte_get_quantization_config_attribute(config, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, 4,
                                         NULL);
  CHECK_FLOAT(epsilon, 0.25f);
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigNVFP44Over6Mode, &mode, 1);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, set, "expected", "got", "3");
  nvte_get_quantization_config_attribute(config, kNVTEQuantizationConfigNVFP44Over6Mode, &got_mode,
                                         1, NULL);
  CHECK_EQ(got_mode, 2);
  uint8_t no = 0;
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigForcePow2Scales, &no, 1);
  nvte_get_quantization_config_attribute(config, kNVTEQuantizationConfigForcePow2Scales, &got_mode,
                                         1, NULL);
  CHECK_EQ(got_mode, 0);
  nvte_destroy_quantization_config(config);
  nvte_destroy_quantization_config(NULL);
  EXPECT_OK();
}

// ---- Grouped tensors

static void test_grouped(void) {
  for (size_t m = 0; m < COUNT(kModes); m++) {
    if (!case_begin("grouped tensor mode %d", (int)kModes[m])) continue;
    NVTEGroupedTensor g = nvte_create_grouped_tensor(kModes[m], 3, SHAPE(96, 0));
    EXPECT_OK();
    CHECK(g != NULL, "null");
    CHECK_EQ(nvte_grouped_tensor_num_tensors(g), 3);
    CHECK_EQ(nvte_grouped_tensor_scaling_mode(g), kModes[m]);
    CHECK_EQ(nvte_grouped_tensor_type(g), kNVTEFloat32);
    CHECK(same_shape(nvte_get_grouped_tensor_logical_shape(g), SHAPE(96, 0)), "logical shape");
    EXPECT_OK();
    nvte_destroy_grouped_tensor(g);
    nvte_destroy_grouped_tensor(NULL);
    EXPECT_OK();
  }
  if (case_begin("grouped queries of null")) {
    CHECK_EQ(nvte_grouped_tensor_num_tensors(NULL), 0);
    CHECK_EQ(nvte_grouped_tensor_type(NULL), kNVTEFloat32);
    CHECK_EQ(nvte_grouped_tensor_scaling_mode(NULL), NVTE_DELAYED_TENSOR_SCALING);
    CHECK(same_shape(nvte_get_grouped_tensor_logical_shape(NULL), SHAPE(0)), "logical shape");
    EXPECT_OK();
  }
  if (case_begin("grouped creation refused")) {
    nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 0, SHAPE(4, 4));
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_create_grouped_tensor: num_tensors", "expected",
                 "got");
    NVTEShape scalar = SHAPE(1);
    scalar.ndim = 0;
    const NVTEShape shapes[] = {SHAPE(4), SHAPE(4, 4, 4), scalar};
    for (size_t i = 0; i < COUNT(shapes); i++) {
      CHECK(nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 1, shapes[i]) == NULL,
            "created");
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_create_grouped_tensor: logical_shape", "expected",
                   "got");
    }
  }
  const size_t sizes[kNVTENumGroupedTensorParams] = {144, 144, 144, 144, 144, 144,
                                                     144, 144, 144, 144, 1};
  if (case_begin("grouped parameters")) {
    NVTEGroupedTensor g = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 4, SHAPE(8, 8));
    NVTEGroupedTensor handles[2] = {g, NULL};
    for (int p = 0; p < kNVTEGroupedWithGEMMSwizzledScales; p++) {
      NVTEGroupedTensorParam param = (NVTEGroupedTensorParam)p;
      NVTEDType dims = p >= kNVTEGroupedFirstDims ? kNVTEInt64 : kNVTEFloat32;
      NVTEBasicTensor got, b = basic(address((size_t)p), dims == kNVTEInt64 ? dims : kNVTEBFloat16,
                                     SHAPE((size_t)p + 2));
      size_t written = 0;
      for (int h = 0; h < 2; h++) {
        nvte_get_grouped_tensor_param(handles[h], param, &got, sizeof got, &written);
        EXPECT_OK();
        CHECK_EQ(written, sizes[p]);
        CHECK(is_unset(got, dims), "the default of parameter %d", p);
      }
      nvte_set_grouped_tensor_param(g, param, &b, sizeof b);
      nvte_get_grouped_tensor_param(g, param, &got, sizeof got, NULL);
      EXPECT_OK();
      CHECK(same_basic(got, b), "parameter %d does not read back", p);
      if (dims == kNVTEInt64) {
        NVTEBasicTensor wrong = basic(address(99), kNVTEInt32, SHAPE(4));
        nvte_set_grouped_tensor_param(g, param, &wrong, sizeof wrong);
        EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_grouped_tensor_param", "Int64", "Int32");
        nvte_get_grouped_tensor_param(g, param, &got, sizeof got, NULL);
        CHECK(same_basic(got, b), "a refused value was stored in parameter %d", p);
      }
    }
    CHECK_EQ(nvte_grouped_tensor_type(g), kNVTEBFloat16);
    uint8_t flag = 3, got = 9;
    size_t written = 0;
    nvte_get_grouped_tensor_param(NULL, kNVTEGroupedWithGEMMSwizzledScales, &got, 1, &written);
    CHECK_EQ(got, 0);
    CHECK_EQ(written, 1);
    nvte_set_grouped_tensor_param(g, kNVTEGroupedWithGEMMSwizzledScales, &flag, 1);
    nvte_get_grouped_tensor_param(g, kNVTEGroupedWithGEMMSwizzledScales, &got, 1, NULL);
    EXPECT_OK();
    CHECK_EQ(got, 1);
    nvte_destroy_grouped_tensor(g);
    EXPECT_OK();
  }
  if (case_begin("grouped sizes")) {
    NVTEGroupedTensor g = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 4, SHAPE(8, 8));
    for (int p = 0; p < kNVTENumGroupedTensorParams; p++) {
      NVTEGroupedTensorParam param = (NVTEGroupedTensorParam)p;
      NVTEBasicTensor value[2] = {basic(NULL, kNVTEInt64, SHAPE(0)),
                                  basic(NULL, kNVTEInt64, SHAPE(0))};
      size_t written = 0;
      nvte_get_grouped_tensor_param(g, param, NULL, 0, &written);
      EXPECT_OK();
      CHECK_EQ(written, sizes[p]);
      nvte_set_grouped_tensor_param(g, param, value, sizeof value);  // larger is accepted
      EXPECT_OK();
      nvte_set_grouped_tensor_param(g, param, value, sizes[p] - 1);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_grouped_tensor_param: size_in_bytes", "got");
      nvte_get_grouped_tensor_param(g, param, value, sizes[p] - 1, &written);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_grouped_tensor_param: size_in_bytes", "got");
      nvte_set_grouped_tensor_param(g, param, NULL, sizes[p]);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_grouped_tensor_param: buf", "expected", "got");
      nvte_set_grouped_tensor_param(NULL, param, value, sizes[p]);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_set_grouped_tensor_param: tensor", "expected",
                   "got");
    }
    NVTEBasicTensor only = basic(address(1), kNVTEFloat8E5M2, SHAPE(64));
    nvte_set_grouped_tensor_param(g, kNVTEGroupedRowwiseData,
                                  &(NVTEBasicTensor){NULL, kNVTEFloat32, SHAPE(0)}, sizeof only);
    nvte_set_grouped_tensor_param(g, kNVTEGroupedColumnwiseData, &only, sizeof only);
    CHECK_EQ(nvte_grouped_tensor_type(g), kNVTEFloat8E5M2);
    nvte_destroy_grouped_tensor(g);
    EXPECT_OK();
  }
}

static void test_device_query(void) {
  if (!case_begin("is_non_tn_fp8_gemm_supported")) return;
  int answer = nvte_is_non_tn_fp8_gemm_supported();
  EXPECT_OK();
  CHECK(answer == 0 || (answer == 1 && on_cuda()), "%d", answer);
  CHECK_EQ(nvte_is_non_tn_fp8_gemm_supported(), answer);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_lifetime();
  test_stale_handles();
  test_wrong_kinds();
  test_many();
  test_threads();
  test_batches();
  test_params();
  test_null_queries();
  test_queries();
  test_columnwise_shapes();
  test_make_shape();
  test_zero_tensor();
  test_memset();
  test_offsets();
  test_offsets_2d();
  test_offsets_multi();
  test_quantization_config();
  test_grouped();
  test_device_query();
  return test_end();
}
