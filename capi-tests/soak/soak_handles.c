// Handles of every kind that are made, used and destroyed: 2 * 10^5 times, or as often as the first
// argument says. A handle is never the one of an object before it, a destroyed one stays refused,
// and memory does not grow. First in a fixed order, then at random: NVTE_TEST_SEED=N gives another
// order.
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

// ---- At random: up to 64 objects live at a time, and 64 dead handles are remembered

enum { OBJECTS = 64 };

typedef enum Kind { TENSOR, GROUPED, QUANTIZATION, MATMUL, ATTENTION, KINDS } Kind;

typedef struct Object {
  Kind kind;
  void *handle;  // null: none
  uint64_t value;
} Object;

static struct {
  Object live[OBJECTS], dead[OBJECTS];
  uint64_t made[KINDS], refused;
} g_random;

static float g_memory[OBJECTS * 4];

static Object made(Kind kind) {
  Object o = {.kind = kind, .value = random_u64()};
  switch (kind) {
    case TENSOR: {
      const NVTEBasicTensor data =
          basic(&g_memory[o.value % COUNT(g_memory)], kNVTEFloat32, SHAPE(1));
      o.handle = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
      nvte_set_tensor_param_v2(o.handle, kNVTERowwiseData, &data, sizeof data);
      break;
    }
    case GROUPED:
      o.handle = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 1 + o.value % 7,
                                            SHAPE(4 * (1 + o.value % 7), 4));
      break;
    case QUANTIZATION: {
      const float epsilon = (float)(o.value % 1000);
      o.handle = nvte_create_quantization_config();
      nvte_set_quantization_config_attribute(o.handle, kNVTEQuantizationConfigAmaxEpsilon, &epsilon,
                                             sizeof epsilon);
      break;
    }
    case MATMUL:
      o.handle = nvte_create_matmul_config();
      break;
    default:
      o.handle = nvte_create_fused_attn_config();
  }
  g_random.made[kind]++;
  return o;
}

// A live object has what it was given. True if the call was accepted.
static bool used(const Object *o, bool live) {
  if (o->kind == TENSOR) {
    const void *data = nvte_tensor_data(o->handle);
    if (live)
      CHECK(data == &g_memory[o->value % COUNT(g_memory)], "tensor %p has %p", o->handle, data);
  } else if (o->kind == GROUPED) {
    const size_t members = nvte_grouped_tensor_num_tensors(o->handle);
    if (live) CHECK(members == 1 + o->value % 7, "grouped tensor %p has %zu", o->handle, members);
  } else if (o->kind == QUANTIZATION) {
    float epsilon = -1;
    nvte_get_quantization_config_attribute(o->handle, kNVTEQuantizationConfigAmaxEpsilon, &epsilon,
                                           sizeof epsilon, NULL);
    if (live)
      CHECK(epsilon == (float)(o->value % 1000), "config %p has %g", o->handle, (double)epsilon);
  } else {
    size_t size = 0;
    if (o->kind == MATMUL)
      nvte_get_matmul_config_attribute(o->handle, kNVTEMatmulConfigBiasTensor, NULL, 0, &size);
    else
      nvte_get_fused_attn_config_attribute(o->handle, kNVTEFusedAttnConfigQKVLayout, NULL, 0,
                                           &size);
  }
  const bool accepted = nvtex_last_status() == NVTEX_OK;
  nvtex_clear_error();
  return accepted;
}

static void destroyed(Object *o) {
  switch (o->kind) {
    case TENSOR:
      nvte_destroy_tensor(o->handle);
      break;
    case GROUPED:
      nvte_destroy_grouped_tensor(o->handle);
      break;
    case QUANTIZATION:
      nvte_destroy_quantization_config(o->handle);
      break;
    case MATMUL:
      nvte_destroy_matmul_config(o->handle);
      break;
    default:
      nvte_destroy_fused_attn_config(o->handle);
  }
  g_random.dead[random_below(OBJECTS)] = *o;
  o->handle = NULL;
}

static void random_step(void) {
  Object *o = &g_random.live[random_below(OBJECTS)];
  if (!o->handle) {
    *o = made((Kind)random_below(KINDS));
  } else if (random_below(2)) {
    CHECK(used(o, true), "a live handle of kind %d is refused", (int)o->kind);
  } else {
    destroyed(o);
  }
  const Object *dead = &g_random.dead[random_below(OBJECTS)];
  // Errors cost their text.
  if (!dead->handle || random_below(64)) return;
  CHECK(!used(dead, false), "a dead handle of kind %d is accepted", (int)dead->kind);
  g_random.refused++;
}

static void at_random(size_t count) {
  const char *seed = getenv("NVTE_TEST_SEED");
  case_begin("%zu steps at random", count);
  if (seed) g_test.rng ^= strtoull(seed, NULL, 10);
  const NVTEXErrorMode mode = nvtex_set_error_mode(NVTEX_ERROR_RETURN);
  for (size_t i = 0; i < count / 10; i++) random_step();
  const size_t host = host_bytes(), device = free_device_bytes();
  for (size_t i = 0; i < count; i++) random_step();
  check_growth(host, device);
  for (size_t i = 0; i < OBJECTS; i++) {
    if (g_random.live[i].handle) destroyed(&g_random.live[i]);
  }
  EXPECT_OK();
  for (int kind = 0; kind < KINDS; kind++) CHECK(g_random.made[kind] > 0, "none of kind %d", kind);
  CHECK(g_random.refused > 0, "no dead handle was used");
  nvtex_set_error_mode(mode);
}

int main(int argc, char **argv) {
  // The texts of the errors that are expected.
  setenv("NVTE_VERBOSE", "none", 0);
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
  at_random(count);
  return test_end();
}
