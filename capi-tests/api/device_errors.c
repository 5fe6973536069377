// A device that takes no calls any more, because a kernel wrote outside of memory: every call of
// the library returns an error, also those that train, nothing is said to have been saved, and
// handles can be given back. CUDA only: the CPU has no such state.
#define _POSIX_C_SOURCE 200809L
#include "../train/safetensors.h"

enum { SIDE = 64 };

// Whether a call, or the wait for what it began, ends as an error.
static bool is_error(void) {
  bool error = nvtex_last_status() != NVTEX_OK;
  nvtex_stream_synchronize(NULL);
  error = error || nvtex_last_status() != NVTEX_OK;
  nvtex_clear_error();
  return error;
}

static NVTETensor matrix(void) {
  void *memory = nvtex_malloc(SIDE * SIDE * 4);
  return tensor(memory, kNVTEFloat32, SHAPE(SIDE, SIDE));
}

static void test_lost_device(void) {
  if (!case_begin("calls after a kernel that wrote outside of memory")) return;
  const NVTETensor x = matrix(), y = matrix(), dx = matrix();
  const NVTETensor nowhere = tensor((void *)(uintptr_t)(1 << 20), kNVTEFloat32, SHAPE(SIDE, SIDE));
  NVTEXContext context = nvtex_context_create(NULL);
  NVTEXLinearConfig config;
  nvtex_linear_config_init(&config, sizeof config);
  config.in_features = config.out_features = SIDE;
  config.dtype = kNVTEFloat32;
  NVTEXModule module = nvtex_linear_create(context, &config, NULL);
  NVTEXOptimizerConfig update;
  nvtex_optimizer_config_init(&update, sizeof update, NVTEX_UPDATE_ADAMW);
  NVTEXOptimizer optimizer = nvtex_optimizer_create(context, &update, &module, 1, NULL);
  NVTEXTape tape = NULL, none = NULL;
  nvte_relu(x, y, NULL);
  nvtex_module_forward(module, &x, 1, &y, 1, NULL, &tape, NULL);
  nvtex_stream_synchronize(NULL);
  if (!EXPECT_OK()) return;

  nvte_relu(x, nowhere, NULL);
  nvtex_stream_synchronize(NULL);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nvtex_stream_synchronize");

  nvte_relu(x, y, NULL);
  CHECK(is_error(), "an operator");
  void *memory = nvtex_malloc(4096);
  CHECK(!memory && is_error(), "memory of a device that is lost");
  nvtex_module_forward(module, &x, 1, &y, 1, NULL, &none, NULL);
  CHECK(is_error(), "a forward pass");
  nvtex_module_backward(module, tape, &x, 1, &dx, 1, NULL);
  CHECK(is_error(), "a backward pass");
  nvtex_optimizer_step(optimizer, NULL);
  CHECK(is_error(), "a step of an optimizer");
  NVTEXCheckpointConfig all;
  nvtex_checkpoint_config_init(&all, sizeof all);
  all.modules = &module;
  all.num_modules = 1;
  all.optimizer = optimizer;
  const char *path = in_folder("checkpoint");
  nvtex_checkpoint_save(path, &all, NULL);
  CHECK(is_error(), "a checkpoint");
  struct stat about;
  CHECK(stat(path, &about) != 0, "a checkpoint of a device that is lost");

  // Whether these are errors too does not matter: they end.
  nvtex_tape_destroy(none);
  nvtex_tape_destroy(tape);
  nvtex_optimizer_destroy(optimizer);
  nvtex_module_destroy(module);
  nvtex_context_destroy(context);
  nvtex_clear_error();
}

int main(int argc, char **argv) {
  setenv("NVTE_VERBOSE", "none", 0);  // messages that are expected
  test_begin(argc, argv);
  if (strcmp(g_test.backend, "cuda") != 0) return TEST_SKIP;
  alarm(300);
  folder_begin();
  test_lost_device();
  folder_end();
  return test_end();
}
