// What the tests of wrong calls share: a call must be refused with a message that names function
// and argument, what was expected and what came, and must leave every buffer as it was.
#ifndef NVTE_CAPI_TESTS_REFUSALS_H
#define NVTE_CAPI_TESTS_REFUSALS_H

#include "support.h"

// Calls that were refused as they must be.
static unsigned g_refused;

// Contents of all device buffers of the case.
static inline unsigned char *contents(size_t *bytes) {
  size_t total = 0, at = 0;
  for (size_t i = 0; i < g_arena.count; i++) {
    if (g_arena.items[i].kind == OWN_BUFFER) total += ((Buffer *)g_arena.items[i].item)->bytes;
  }
  unsigned char *image = malloc(total + 1);
  if (!image) abort();
  for (size_t i = 0; i < g_arena.count; i++) {
    if (g_arena.items[i].kind != OWN_BUFFER) continue;
    Buffer *b = g_arena.items[i].item;
    download(image + at, b->ptr, b->bytes);
    at += b->bytes;
  }
  *bytes = total;
  return image;
}

static unsigned char *g_before;
static size_t g_before_bytes;

static inline void before_call(void) {
  free(g_before);
  g_before = contents(&g_before_bytes);
  EXPECT_OK();
}

static inline void after_call(const char *file, int line, const char *function,
                              const char *argument, const char *what) {
  char start[160];
  snprintf(start, sizeof start, "%s: %s", function, argument);
  const char *text = nvtex_last_error();
  int status = (int)nvtex_last_status();
  bool ok = check_at(status == NVTEX_INVALID_ARGUMENT || status == NVTEX_UNSUPPORTED, file, line,
                     "a refusal", "%s, %s: status %d, \"%s\"", start, what, status, text);
  ok = ok && check_at(strncmp(text, start, strlen(start)) == 0, file, line, "function and argument",
                      "%s: \"%s\" does not start with \"%s\"", what, text, start);
  ok = ok && check_at(strstr(text, "expected") && strstr(text, "got"), file, line,
                      "expected and got", "%s: \"%s\"", what, text);
  nvtex_clear_error();
  size_t bytes;
  unsigned char *after = contents(&bytes);
  ok = check_at(bytes == g_before_bytes && memcmp(after, g_before, bytes) == 0, file, line,
                "no buffer changed", "%s, %s", start, what) &&
       ok;
  free(after);
  free(g_before);
  g_before = NULL;
  EXPECT_OK();
  g_refused += ok;
}

// The function refuses these arguments because of the named one.
#define REFUSED(function, argument, ...)                                       \
  do {                                                                         \
    before_call();                                                             \
    (void)function(__VA_ARGS__);                                               \
    after_call(__FILE__, __LINE__, #function, argument, "(" #__VA_ARGS__ ")"); \
  } while (0)

// Handles that no function may take for a tensor, or for a config.
enum { BAD_HANDLES = 9 };

static inline void *bad_handle(int k, bool for_config, const char **what) {
  static int anything;
  static NVTEGroupedTensor grouped;
  static NVTEGroupedMatmulConfig grouped_matmul;
  if (!grouped) {
    grouped = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 1, SHAPE(16, 32));
    grouped_matmul = nvte_create_grouped_matmul_config();
  }
  static const char *const names[BAD_HANDLES] = {
      "stale handle", "grouped tensor", "tensor or config", "grouped matmul config", "the number 1",
      "an address",   "all bits",       "random bits",      "a flipped bit"};
  *what = names[k];
  NVTETensor t;
  switch (k) {
    case 0:
      if (for_config) {
        void *c = nvte_create_quantization_config();
        nvte_destroy_quantization_config(c);
        return c;
      }
      t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
      nvte_destroy_tensor(t);
      return t;
    case 1:
      return grouped;
    case 2:
      return for_config ? empty_tensor() : quant_config();
    case 3:
      return grouped_matmul;
    case 4:
      return (void *)(uintptr_t)1;
    case 5:
      return &anything;
    case 6:
      return (void *)UINTPTR_MAX;
    case 7:
      return (void *)(uintptr_t)(random_u64() | 1);
    default:
      t = empty_tensor();
      return (void *)((uintptr_t)t ^ (uintptr_t)1 << 31);
  }
}

static inline NVTETensor random_tensor(NVTEDType dtype, NVTEShape shape) {
  void *x = random_values(dtype, numel(shape), -2, 1);
  return tensor(buffer_from(x, numel(shape) * dtype_size(dtype), 0)->ptr, dtype, shape);
}

static inline int refusals_end(void) {
  printf("%u wrong calls refused\n", g_refused);
  return test_end();
}

#endif  // NVTE_CAPI_TESTS_REFUSALS_H
