// A backward pass follows the policy of its forward pass, on any thread and whatever the thread's
// own policy is; and a context stays in the domain of its memory.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>

#include "nvte/module.h"
#include "offer.h"

enum { ROWS = 4, COLS = 8 };

// It is asked to run the backward pass of a norm, and leaves that to the next one.
static Offer g_marker = {
    .op = "norm_backward", .id = "tape.marker", .features = ~0ull, .status = NVTEX_PLUGIN_DECLINED};

static NVTEXModule g_module;
static float g_x[ROWS * COLS], g_y[ROWS * COLS], g_dy[ROWS * COLS], g_dx[ROWS * COLS];

static NVTEXTape forward(void) {
  NVTETensor x = tensor(g_x, kNVTEFloat32, SHAPE(ROWS, COLS));
  NVTETensor y = tensor(g_y, kNVTEFloat32, SHAPE(ROWS, COLS));
  NVTEXTape tape = NULL;
  nvtex_module_forward(g_module, &x, 1, &y, 1, NULL, &tape, NULL);
  EXPECT_OK();
  return tape;
}

// The gradients of rows of a LayerNorm sum to 0.
static void check_gradients(void) {
  for (int row = 0; row < ROWS; row++) {
    double sum = 0, largest = 0;
    for (int col = 0; col < COLS; col++) {
      double g = (double)g_dx[row * COLS + col];
      sum += g;
      if (fabs(g) > largest) largest = fabs(g);
    }
    CHECK(largest > 1e-3 && fabs(sum) < 1e-4, "row %d: sum %g, largest %g", row, sum, largest);
  }
}

static void *backward(void *tape) {
  NVTETensor dy = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor dx = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  set_param(dy, kNVTERowwiseData, g_dy, kNVTEFloat32, SHAPE(ROWS, COLS));
  set_param(dx, kNVTERowwiseData, g_dx, kNVTEFloat32, SHAPE(ROWS, COLS));
  memset(g_dx, 0, sizeof g_dx);
  nvtex_module_backward(g_module, tape, &dy, 1, &dx, 1, NULL);
  nvte_destroy_tensor(dy);
  nvte_destroy_tensor(dx);
  return (void *)(long)(nvtex_last_status() == NVTEX_OK);
}

static void backward_on_a_thread(NVTEXTape tape) {
  pthread_t thread;
  void *good = NULL;
  CHECK_EQ(pthread_create(&thread, NULL, backward, tape), 0);
  CHECK_EQ(pthread_join(thread, &good), 0);
  CHECK(good != NULL, "the backward pass failed");
  check_gradients();
}

static void test_tapes(void) {
  if (!case_begin("a tape keeps the policy of its forward pass")) return;
  use_policy("norm_backward=reference");
  NVTEXPolicy marked = nvtex_policy_create(NULL, "domain=cpu;norm_backward=impl:tape.marker|*");
  NVTEXTape plain = forward();
  nvtex_policy_push(marked);
  NVTEXTape with_policy = forward();
  nvtex_policy_pop();
  CHECK_EQ(g_marker.ran, 0);
  backward_on_a_thread(with_policy);
  CHECK_EQ(g_marker.ran, 1);
  backward(with_policy);
  CHECK_EQ(g_marker.ran, 2);
  backward_on_a_thread(plain);
  CHECK_EQ(g_marker.ran, 2);
  nvtex_policy_push(marked);
  nvtex_policy_destroy(marked);
  backward(plain);
  CHECK_EQ(g_marker.ran, 2);
  // The stack is as it was.
  nvtex_tape_destroy(forward());
  CHECK(strstr(nvtex_policy_text(nvtex_policy_current()), "tape.marker"), "another policy");
  nvtex_policy_pop();
  nvtex_policy_pop();
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "no policy on its stack");
  nvtex_tape_destroy(plain);
  nvtex_tape_destroy(with_policy);
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  if (!offer_all("tape", &g_marker, 1)) return test_end();
  use_policy(NULL);
  for (int i = 0; i < ROWS * COLS; i++) {
    g_x[i] = (float)random_uniform(-1, 1);
    g_dy[i] = (float)random_uniform(-1, 1);
  }
  NVTEXContextConfig config;
  nvtex_context_config_init(&config, sizeof config);
  NVTEXContext context = nvtex_context_create(&config);
  NVTEXNormConfig norm;
  nvtex_norm_config_init(&norm, sizeof norm);
  norm.hidden_size = COLS;
  g_module = nvtex_norm_create(context, &norm, NULL);
  EXPECT_OK();
  test_tapes();
  nvtex_module_destroy(g_module);
  nvtex_context_destroy(context);
  EXPECT_OK();
  return test_end();
}
