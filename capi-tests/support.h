// Harness of the C tests: cases with a reproduction line, guarded device buffers, tensor builders
// and number formats. The formats are written here for the tests, in double, apart from the
// library's own.
#ifndef NVTE_CAPI_TESTS_SUPPORT_H
#define NVTE_CAPI_TESTS_SUPPORT_H

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvte/nvte.h"

// ---- Cases and checks

enum { TEST_PASS = 0, TEST_FAIL = 1, TEST_SKIP = 77 };

static struct {
  const char *program, *filter, *backend;
  char name[256];
  unsigned every, cases, failed_cases, failures_in_case, checks, declined, refused_cases;
  bool case_refused;
  uint64_t rng;
} g_test;

static inline bool on_cuda(void) { return strcmp(g_test.backend, "cuda") == 0; }

// Whether kernels for compute capability 9.0 cannot run. NVTE_TEST_OLDER_DEVICE says that a plugin
// refuses on the CPU what such a device refuses.
static inline bool on_other_than_hopper(void) {
  if (!on_cuda()) return getenv("NVTE_TEST_OLDER_DEVICE") != NULL;
  NVTEXDomainInfo info = {.struct_size = sizeof info};
  for (size_t i = 0; i < nvtex_domain_count(); i++) {
    if (nvtex_domain_info(i, &info) && strcmp(info.name, "cuda") == 0) return info.arch != 90;
  }
  return false;
}

// Whether a call has failed, by its name, because only kernels for compute capability 9.0 compute
// what it was asked for: some products in FP8, and all products of groups.
static inline bool is_documented_refusal(const char *text) {
  static const char *const reasons[] = {
      "grouped products run on compute capability 9.0",
      "the only layout that FP8 tensor cores take here",
  };
  const char *reason = strncmp(text, "nvte", 4) == 0 ? strstr(text, ": ") : NULL;
  for (size_t i = 0; reason && i < sizeof reasons / sizeof *reasons; i++) {
    if (strstr(reason, reasons[i])) return on_other_than_hopper();
  }
  return false;
}

// A case in which a call has been refused so is over: it counts as refused, and nothing else of it
// as a failure. The text may be of another thread, or of an error that has been cleared.
static inline bool case_is_refused(const char *text) {
  if (g_test.case_refused || !is_documented_refusal(text)) return g_test.case_refused;
  if (g_test.refused_cases++ < 3) printf("refused: %s\n  %s\n", g_test.name, text);
  return g_test.case_refused = true;
}

#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
static inline bool check_at(bool ok, const char *file, int line, const char *what,
                            const char *format, ...) {
  g_test.checks++;
  if (ok || case_is_refused(nvtex_last_error())) return ok;
  if (g_test.failures_in_case++ == 0) g_test.failed_cases++;
  if (g_test.failures_in_case <= 5 && g_test.failed_cases <= 50) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: failed: %s: ", file, line, what);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n  repro: NVTE_BACKEND=%s %s '%s'\n", g_test.backend ? g_test.backend : "",
            g_test.program, g_test.name);
    va_end(args);
  }
  return false;
}

static inline bool check_passed(void) {
  g_test.checks++;
  return true;
}

// CHECK(condition, "format", values...): the values explain a failure, and are computed only then.
#define CHECK(condition, ...) \
  ((condition) ? check_passed() : check_at(false, __FILE__, __LINE__, #condition, __VA_ARGS__))
#define CHECK_EQ(a, b) check_eq_at((long long)(a), (long long)(b), __FILE__, __LINE__, #a " == " #b)

static inline bool check_eq_at(long long a, long long b, const char *file, int line,
                               const char *what) {
  return check_at(a == b, file, line, what, "%lld and %lld", a, b);
}

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Equal bits, or both NaN.
static inline bool same_float(float a, float b) {
  return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

#define CHECK_FLOAT(a, b) check_float_at((a), (b), __FILE__, __LINE__, #a " is " #b)

static inline bool check_float_at(float a, float b, const char *file, int line, const char *what) {
  return check_at(same_float(a, b), file, line, what, "%a (0x%08x) and %a (0x%08x)", (double)a,
                  bits_of(a), (double)b, bits_of(b));
}

// ---- Errors

#define EXPECT_OK() expect_ok_at(__FILE__, __LINE__)

static inline bool expect_ok_at(const char *file, int line) {
  NVTEXStatus status = nvtex_last_status();
  bool ok = check_at(status == NVTEX_OK, file, line, "no error", "status %d: %s", (int)status,
                     nvtex_last_error());
  nvtex_clear_error();
  return ok;
}

// The last call failed with this status (negative: any) and a text with all the given parts.
#define EXPECT_ERROR(status, ...) \
  expect_error_at((int)(status), __FILE__, __LINE__, (const char *[]){__VA_ARGS__, NULL})
enum { ANY_ERROR = -1 };

static inline bool expect_error_at(int status, const char *file, int line,
                                   const char *const *parts) {
  int got = (int)nvtex_last_status();
  const char *text = nvtex_last_error();
  bool ok = check_at(got != NVTEX_OK && (status < 0 || got == status), file, line, "an error",
                     "status %d, expected %d (%s): \"%s\"", got, status, parts[0], text);
  for (; ok && *parts; parts++) {
    ok = check_at(strstr(text, *parts) != NULL, file, line, "the error's text",
                  "no \"%s\" in \"%s\"", *parts, text);
  }
  nvtex_clear_error();
  return ok;
}

// ---- Random numbers (splitmix64), seeded by the name of the case

static inline uint64_t random_u64(void) {
  uint64_t z = (g_test.rng += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static inline size_t random_below(size_t n) { return (size_t)(random_u64() % n); }

static inline double random_uniform(double low, double high) {
  return low + (high - low) * (double)(random_u64() >> 11) * 0x1p-53;
}

// ---- Arena of a case: device buffers, host memory and handles go when the case ends

enum { GUARD_BYTES = 256, GUARD_VALUE = 0xA5, POISON_VALUE = 0xFF };

// `bytes` bytes of device memory at `ptr`, filled with POISON_VALUE (NaN in every float format,
// -1 in every integer), with guard bytes on both sides.
typedef struct Buffer {
  unsigned char *base, *ptr;
  size_t bytes, lead;
} Buffer;

typedef enum Owned { OWN_BUFFER, OWN_HOST, OWN_TENSOR, OWN_QUANT_CONFIG, OWN_MATMUL_CONFIG } Owned;

static struct {
  struct {
    Owned kind;
    void *item;
  } *items;
  size_t count, capacity;
} g_arena;

static inline void *own(Owned kind, void *item) {
  if (g_arena.count == g_arena.capacity) {
    g_arena.capacity = g_arena.capacity ? 2 * g_arena.capacity : 64;
    g_arena.items = realloc(g_arena.items, g_arena.capacity * sizeof *g_arena.items);
    if (!g_arena.items) abort();
  }
  g_arena.items[g_arena.count].kind = kind;
  g_arena.items[g_arena.count++].item = item;
  return item;
}

static inline void *host_memory(size_t bytes) {
  void *p = calloc(bytes ? bytes : 1, 1);
  if (!p) abort();
  return own(OWN_HOST, p);
}

static inline void upload(void *device, const void *host, size_t bytes) {
  nvtex_memcpy_to_device(device, host, bytes, NULL);
  nvtex_stream_synchronize(NULL);
}

static inline void download(void *host, const void *device, size_t bytes) {
  nvtex_memcpy_to_host(host, device, bytes, NULL);
  nvtex_stream_synchronize(NULL);
}

// `shift` bytes past a 256-byte boundary.
static inline Buffer *buffer_shifted(size_t bytes, size_t shift) {
  Buffer *b = calloc(1, sizeof *b);
  if (!b) abort();
  b->bytes = bytes;
  b->lead = GUARD_BYTES + shift;
  size_t total = b->lead + bytes + GUARD_BYTES;
  b->base = nvtex_malloc(total);
  if (!b->base) {
    fprintf(stderr, "nvtex_malloc(%zu): %s\n", total, nvtex_last_error());
    exit(TEST_FAIL);
  }
  b->ptr = b->base + b->lead;
  unsigned char *image = malloc(total);
  if (!image) abort();
  memset(image, GUARD_VALUE, total);
  memset(image + b->lead, POISON_VALUE, bytes);
  upload(b->base, image, total);
  free(image);
  return own(OWN_BUFFER, b);
}

static inline Buffer *buffer(size_t bytes) { return buffer_shifted(bytes, 0); }

static inline Buffer *buffer_from(const void *host, size_t bytes, size_t shift) {
  Buffer *b = buffer_shifted(bytes, shift);
  upload(b->ptr, host, bytes);
  return b;
}

static inline Buffer *buffer_float(float value) { return buffer_from(&value, sizeof value, 0); }

static inline void *buffer_read(const Buffer *b) {
  void *host = host_memory(b->bytes);
  download(host, b->ptr, b->bytes);
  return host;
}

static inline float read_float(const Buffer *b) {
  float x;
  download(&x, b->ptr, sizeof x);
  return x;
}

static inline void check_guards(const Buffer *b) {
  size_t total = b->lead + b->bytes + GUARD_BYTES, bad = 0, first = 0;
  unsigned char *image = malloc(total);
  if (!image) abort();
  download(image, b->base, total);
  for (size_t i = 0; i < total; i++) {
    if (i >= b->lead && i < b->lead + b->bytes) continue;
    if (image[i] != GUARD_VALUE && bad++ == 0) first = i;
  }
  free(image);
  CHECK(bad == 0, "%zu guard bytes of a %zu-byte buffer changed, the first at byte %lld", bad,
        b->bytes, (long long)first - (long long)b->lead);
}

static inline bool all_bytes(const Buffer *b, int value) {
  unsigned char *host = malloc(b->bytes ? b->bytes : 1);
  if (!host) abort();
  download(host, b->ptr, b->bytes);
  bool all = true;
  for (size_t i = 0; i < b->bytes; i++) all = all && host[i] == value;
  free(host);
  return all;
}

static inline bool untouched(const Buffer *b) { return all_bytes(b, POISON_VALUE); }

static inline void arena_release(void) {
  for (size_t i = 0; i < g_arena.count; i++) {
    if (g_arena.items[i].kind == OWN_BUFFER) check_guards(g_arena.items[i].item);
  }
  while (g_arena.count > 0) {
    void *item = g_arena.items[--g_arena.count].item;
    switch (g_arena.items[g_arena.count].kind) {
      case OWN_BUFFER:
        nvtex_free(((Buffer *)item)->base);
        free(item);
        break;
      case OWN_HOST:
        free(item);
        break;
      case OWN_TENSOR:
        nvte_destroy_tensor(item);
        break;
      case OWN_QUANT_CONFIG:
        nvte_destroy_quantization_config(item);
        break;
      case OWN_MATMUL_CONFIG:
        nvte_destroy_matmul_config(item);
        break;
    }
  }
  EXPECT_OK();
}

static inline void case_end(void) {
  // What a refused call has left is checked as ever.
  if (g_test.case_refused) nvtex_clear_error();
  g_test.case_refused = false;
  if (g_test.name[0]) arena_release();
  g_test.name[0] = 0;
  g_test.failures_in_case = 0;
}

// Ends the case before. False if the case is left out: by the program's argument, a part of the
// names of those to run, or by NVTE_TEST_EVERY=N, which keeps the first and about one of N.
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
static inline bool case_begin(const char *format, ...) {
  char name[sizeof g_test.name];
  va_list args;
  va_start(args, format);
  vsnprintf(name, sizeof name, format, args);
  va_end(args);
  case_end();
  if (g_test.filter && !strstr(name, g_test.filter)) return false;
  g_test.rng = 1469598103934665603u;
  for (const char *c = name; *c; c++)
    g_test.rng = (g_test.rng ^ (unsigned char)*c) * 1099511628211u;
  if (g_test.cases > 0 && g_test.every > 1 &&
      (g_test.rng * 0x9E3779B97F4A7C15u >> 32) % g_test.every)
    return false;
  memcpy(g_test.name, name, sizeof name);
  g_test.cases++;
  return true;
}

static inline void test_arguments(int argc, char **argv) {
  g_test.program = argv[0];
  g_test.filter = argc > 1 ? argv[1] : NULL;
  const char *every = getenv("NVTE_TEST_EVERY");
  g_test.every = every ? (unsigned)strtoul(every, NULL, 10) : 1;
}

// Leaves the program if the backend that NVTE_BACKEND asks for cannot run here.
static inline void test_begin(int argc, char **argv) {
  // What is killed later has said how far it came.
  setvbuf(stdout, NULL, _IOLBF, 0);
  test_arguments(argc, argv);
  g_test.backend = nvtex_backend_name();
  if (g_test.backend) return;
  fprintf(stderr, "no backend: %s\n", nvtex_last_error());
  exit(nvtex_last_status() == NVTEX_INVALID_ARGUMENT ? TEST_FAIL : TEST_SKIP);
}

static inline int test_end(void) {
  case_end();
  free(g_arena.items);
  memset(&g_arena, 0, sizeof g_arena);
  printf("%s: %u cases, %u checks, %u cases failed", g_test.backend, g_test.cases, g_test.checks,
         g_test.failed_cases);
  if (g_test.declined) printf(", %u declined as unsupported", g_test.declined);
  if (g_test.refused_cases) printf(", %u cases refused as documented", g_test.refused_cases);
  printf("\n");
  if (g_test.cases == 0) {
    fprintf(stderr, "no case matches '%s'\n", g_test.filter ? g_test.filter : "");
    return TEST_FAIL;
  }
  return g_test.failed_cases ? TEST_FAIL : TEST_PASS;
}

// ---- Element types

static const NVTEDType kHighPrecision[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};
static const NVTEDType kFloat8[] = {kNVTEFloat8E4M3, kNVTEFloat8E5M2};
static const NVTEDType kFloats[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3,
                                    kNVTEFloat8E5M2};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static inline const char *dtype_name(NVTEDType dtype) {
  static const char *const names[] = {"Byte",       "Int16",      "Int32",     "Int64",
                                      "Float32",    "Float16",    "BFloat16",  "Float8E4M3",
                                      "Float8E5M2", "Float8E8M0", "Float4E2M1"};
  return (unsigned)dtype < COUNT(names) ? names[dtype] : "?";
}

static inline bool is_fp8(NVTEDType dtype) {
  return dtype == kNVTEFloat8E4M3 || dtype == kNVTEFloat8E5M2;
}

static inline size_t dtype_bits(NVTEDType dtype) {
  static const size_t bits[] = {8, 16, 32, 64, 32, 16, 16, 8, 8, 8, 4};
  return bits[dtype];
}

static inline size_t dtype_size(NVTEDType dtype) { return dtype_bits(dtype) / 8; }

// A binary float: `mantissa` stored bits, the exponent of its smallest normal, its largest finite
// value.
typedef struct Format {
  int mantissa, min_exponent, bits;
  double largest;
} Format;

static inline Format format_of(NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat32:
      return (Format){23, -126, 32, FLT_MAX};
    case kNVTEFloat16:
      return (Format){10, -14, 16, 65504};
    case kNVTEBFloat16:
      return (Format){7, -126, 16, 0x1.FEp127};
    case kNVTEFloat8E4M3:
      return (Format){3, -6, 8, 448};
    case kNVTEFloat8E5M2:
      return (Format){2, -14, 8, 57344};
    default:
      abort();
  }
}

// Nearest value of the format, ties to even; beyond the largest finite one FP8 stays finite and the
// others go to Inf. x is exact in double, so there is one rounding.
static inline double round_to(NVTEDType dtype, double x) {
  Format f = format_of(dtype);
  if (isnan(x) || x == 0) return x;
  if (isinf(x)) return is_fp8(dtype) ? copysign(f.largest, x) : x;
  int exponent = ilogb(x) < f.min_exponent ? f.min_exponent : ilogb(x);
  double step = ldexp(1, exponent - f.mantissa);
  double y = nearbyint(x / step) * step;
  if (fabs(y) > f.largest) y = copysign(is_fp8(dtype) ? f.largest : (double)INFINITY, x);
  return copysign(y, x);
}

// Bits of the nearest value. Every FP8 NaN is 0x7F.
static inline uint32_t encode_bits(NVTEDType dtype, double x) {
  Format f = format_of(dtype);
  uint32_t sign = signbit(x) ? 1u << (f.bits - 1) : 0;
  uint32_t exponents = (1u << (f.bits - 1 - f.mantissa)) - 1;
  if (isnan(x)) return is_fp8(dtype) ? 0x7F : exponents << f.mantissa | 1u << (f.mantissa - 1);
  double y = fabs(round_to(dtype, x));
  if (isinf(y)) return sign | exponents << f.mantissa;
  if (y < ldexp(1, f.min_exponent)) {
    return sign | (uint32_t)ldexp(y, f.mantissa - f.min_exponent);
  }
  int exponent = ilogb(y);
  uint32_t fraction = (uint32_t)ldexp(y, f.mantissa - exponent) - (1u << f.mantissa);
  return sign | (uint32_t)(exponent - f.min_exponent + 1) << f.mantissa | fraction;
}

static inline double decode_bits(NVTEDType dtype, uint32_t bits) {
  Format f = format_of(dtype);
  uint32_t exponents = (1u << (f.bits - 1 - f.mantissa)) - 1;
  uint32_t exponent = bits >> f.mantissa & exponents;
  uint32_t fraction = bits & ((1u << f.mantissa) - 1);
  double sign = bits >> (f.bits - 1) & 1 ? -1 : 1;
  if (dtype == kNVTEFloat8E4M3) {
    if ((bits & 0x7F) == 0x7F) return (double)NAN;
  } else if (exponent == exponents) {
    return fraction ? (double)NAN : sign * (double)INFINITY;
  }
  if (exponent == 0) return sign * ldexp(fraction, f.min_exponent - f.mantissa);
  return sign *
         ldexp((1u << f.mantissa) + fraction, (int)exponent - 1 + f.min_exponent - f.mantissa);
}

static inline uint32_t get_bits(NVTEDType dtype, const void *data, size_t i) {
  uint32_t bits = 0;  // little-endian hosts only, as the ABI's
  size_t size = dtype_size(dtype);
  memcpy(&bits, (const unsigned char *)data + i * size, size);
  return bits;
}

static inline void put_bits(NVTEDType dtype, void *data, size_t i, uint32_t bits) {
  size_t size = dtype_size(dtype);
  memcpy((unsigned char *)data + i * size, &bits, size);
}

static inline double get_value(NVTEDType dtype, const void *data, size_t i) {
  return decode_bits(dtype, get_bits(dtype, data, i));
}

static inline void put_value(NVTEDType dtype, void *data, size_t i, double x) {
  put_bits(dtype, data, i, encode_bits(dtype, x));
}

// Equal bits, or both some NaN (FP8: the NaN 0x7F only).
static inline bool same_bits(NVTEDType dtype, uint32_t a, uint32_t b) {
  if (a == b) return true;
  return !is_fp8(dtype) && isnan(decode_bits(dtype, a)) && isnan(decode_bits(dtype, b));
}

// n values of U(low, high).
static inline void *random_values(NVTEDType dtype, size_t n, double low, double high) {
  void *data = host_memory(n * dtype_size(dtype));
  for (size_t i = 0; i < n; i++) put_value(dtype, data, i, random_uniform(low, high));
  return data;
}

// n values, half of them of U(-2, 1), the others any bit pattern: NaN, Inf, subnormals, zeros.
// Without `specials`, NaN and Inf become 1.
static inline void *mixed_values(NVTEDType dtype, size_t n, bool specials) {
  void *data = host_memory(n * dtype_size(dtype));
  for (size_t i = 0; i < n; i++) {
    uint64_t r = random_u64();
    uint32_t bits = r & 1 ? (uint32_t)(r >> 32) : encode_bits(dtype, random_uniform(-2, 1));
    if (dtype_size(dtype) < 4) bits &= (1u << dtype_bits(dtype)) - 1;
    if ((r & 0xFF00) == 0) bits &= 1u << (dtype_bits(dtype) - 1);
    if (!specials && !isfinite(decode_bits(dtype, bits))) bits = encode_bits(dtype, 1);
    put_bits(dtype, data, i, bits);
  }
  return data;
}

// ---- Shapes and tensors

#define SHAPE(...) \
  shape_of((const size_t[]){__VA_ARGS__}, sizeof((const size_t[]){__VA_ARGS__}) / sizeof(size_t))

static inline NVTEShape shape_of(const size_t *dims, size_t ndim) {
  NVTEShape shape;
  memset(&shape, 0, sizeof shape);
  if (ndim > 0) memcpy(shape.data, dims, ndim * sizeof *dims);
  shape.ndim = ndim;
  return shape;
}

static inline size_t numel(NVTEShape shape) {
  size_t n = 1;
  for (size_t i = 0; i < shape.ndim; i++) n *= shape.data[i];
  return n;
}

static inline size_t cols_of(NVTEShape shape) {
  return shape.ndim ? shape.data[shape.ndim - 1] : 1;
}

static inline size_t rows_of(NVTEShape shape) {
  size_t n = 1;
  for (size_t i = 0; i + 1 < shape.ndim; i++) n *= shape.data[i];
  return n;
}

// The last dimension first, as per-tensor columnwise data is stored.
static inline NVTEShape transposed_shape(NVTEShape shape) {
  NVTEShape t = shape;
  if (shape.ndim == 0) return t;
  t.data[0] = shape.data[shape.ndim - 1];
  for (size_t i = 1; i < shape.ndim; i++) t.data[i] = shape.data[i - 1];
  return t;
}

static inline bool same_shape(NVTEShape a, NVTEShape b) {
  return a.ndim == b.ndim && memcmp(a.data, b.data, a.ndim * sizeof *a.data) == 0;
}

static inline const char *shape_text(NVTEShape shape) {
  static char text[4][160];
  static unsigned turn;
  char *s = text[turn++ % 4];
  size_t used = 0;
  s[0] = 0;
  for (size_t i = 0; i < shape.ndim && i < 15; i++) {
    used += (size_t)snprintf(s + used, 160 - used, i ? "x%zu" : "%zu", shape.data[i]);
  }
  if (shape.ndim == 0) strcpy(s, "scalar");
  return s;
}

static inline NVTEBasicTensor basic(void *ptr, NVTEDType dtype, NVTEShape shape) {
  NVTEBasicTensor b;
  memset(&b, 0, sizeof b);
  b.data_ptr = ptr;
  b.dtype = dtype;
  b.shape = shape;
  return b;
}

static inline void set_param(NVTETensor t, NVTETensorParam param, void *ptr, NVTEDType dtype,
                             NVTEShape shape) {
  NVTEBasicTensor b = basic(ptr, dtype, shape);
  nvte_set_tensor_param_v2(t, param, &b, sizeof b);
}

static inline NVTETensor tensor_of_mode(NVTEScalingMode mode) {
  NVTETensor t = nvte_create_tensor(mode);
  EXPECT_OK();
  return own(OWN_TENSOR, t);
}

static inline NVTETensor empty_tensor(void) { return tensor_of_mode(NVTE_DELAYED_TENSOR_SCALING); }

static inline NVTETensor tensor(void *ptr, NVTEDType dtype, NVTEShape shape) {
  NVTETensor t = empty_tensor();
  set_param(t, kNVTERowwiseData, ptr, dtype, shape);
  return t;
}

static inline NVTETensor float_tensor(Buffer *b) {
  return tensor(b->ptr, kNVTEFloat32, SHAPE(b->bytes / 4));
}

static inline NVTEQuantizationConfig quant_config(void) {
  return own(OWN_QUANT_CONFIG, nvte_create_quantization_config());
}

static inline void set_quant(NVTEQuantizationConfig config, NVTEQuantizationConfigAttribute attr,
                             const void *value, size_t bytes) {
  nvte_set_quantization_config_attribute(config, attr, value, bytes);
  EXPECT_OK();
}

// ---- One per-tensor cast: build, call, compare with the definition

typedef enum Directions { ROWWISE = 1, COLWISE = 2, BOTH = 3 } Directions;

// Fields may be changed between cast_build and the call.
typedef struct Cast {
  NVTEDType in, out;
  NVTEShape shape;
  Directions directions;
  bool has_scale, has_amax, specials, misaligned;
  float scale, old_amax;
  void *values;  // host, input
  Buffer *input, *rowwise, *colwise, *scale_buffer, *amax, *scale_inv;
  NVTETensor in_tensor, out_tensor;
} Cast;

static inline void cast_build(Cast *c) {
  size_t n = numel(c->shape), in_size = dtype_size(c->in), out_size = dtype_size(c->out);
  if (!c->values) c->values = mixed_values(c->in, n, c->specials);
  c->input = buffer_from(c->values, n * in_size, c->misaligned ? in_size : 0);
  c->in_tensor = tensor(c->input->ptr, c->in, c->shape);
  c->out_tensor = empty_tensor();
  size_t shift = c->misaligned ? out_size : 0;
  if (c->directions & ROWWISE) {
    c->rowwise = buffer_shifted(n * out_size, shift);
    set_param(c->out_tensor, kNVTERowwiseData, c->rowwise->ptr, c->out, c->shape);
  }
  if (c->directions & COLWISE) {
    c->colwise = buffer_shifted(n * out_size, shift);
    set_param(c->out_tensor, kNVTEColumnwiseData, c->colwise->ptr, c->out,
              transposed_shape(c->shape));
  }
  if (is_fp8(c->out)) {
    c->scale_inv = buffer(4);
    if (c->directions & ROWWISE) {
      set_param(c->out_tensor, kNVTERowwiseScaleInv, c->scale_inv->ptr, kNVTEFloat32, SHAPE(1));
    }
    if (c->directions & COLWISE) {
      set_param(c->out_tensor, kNVTEColumnwiseScaleInv, c->scale_inv->ptr, kNVTEFloat32, SHAPE(1));
    }
    if (c->has_scale) {
      c->scale_buffer = buffer_float(c->scale);
      set_param(c->out_tensor, kNVTEScale, c->scale_buffer->ptr, kNVTEFloat32, SHAPE(1));
    }
  }
  if (c->has_amax) {
    c->amax = buffer_float(c->old_amax);
    set_param(c->out_tensor, kNVTEAmax, c->amax->ptr, kNVTEFloat32, SHAPE(1));
  }
  EXPECT_OK();
}

static inline uint32_t cast_expected(const Cast *c, size_t i) {
  double x = get_value(c->in, c->values, i);
  // A product of two floats is exact in double: one rounding to float.
  if (is_fp8(c->out) && c->has_scale) x = (float)(x * (double)c->scale);
  return encode_bits(c->out, x);
}

static inline float amax_of(NVTEDType dtype, const void *values, size_t n) {
  double amax = 0;
  for (size_t i = 0; i < n; i++) {
    double x = fabs(get_value(dtype, values, i));
    if (x > amax) amax = x;
  }
  return (float)amax;
}

// The outputs are those of a run that wrote everything.
static inline void cast_check(const Cast *c) {
  if (!EXPECT_OK()) return;
  size_t rows = rows_of(c->shape), cols = cols_of(c->shape), n = rows * cols, bad = 0;
  const unsigned char *row = c->rowwise ? buffer_read(c->rowwise) : NULL;
  const unsigned char *col = c->colwise ? buffer_read(c->colwise) : NULL;
  for (size_t i = 0; i < n && bad < 3; i++) {
    uint32_t expected = cast_expected(c, i);
    if (row) {
      uint32_t got = get_bits(c->out, row, i);
      bad +=
          !CHECK(same_bits(c->out, got, expected), "rowwise[%zu]: x = %a: got 0x%x, expected 0x%x",
                 i, get_value(c->in, c->values, i), got, expected);
    }
    if (col) {
      uint32_t got = get_bits(c->out, col, i % cols * rows + i / cols);
      bad += !CHECK(same_bits(c->out, got, expected),
                    "columnwise, of row %zu, col %zu: x = %a: got 0x%x, expected 0x%x", i / cols,
                    i % cols, get_value(c->in, c->values, i), got, expected);
    }
  }
  float scale = c->has_scale ? c->scale : 1;
  if (c->amax) CHECK_FLOAT(read_float(c->amax), fmaxf(c->old_amax, amax_of(c->in, c->values, n)));
  if (c->scale_inv) CHECK_FLOAT(read_float(c->scale_inv), 1.0f / scale);
  if (c->scale_buffer) CHECK_FLOAT(read_float(c->scale_buffer), c->scale);
  const void *input = buffer_read(c->input);
  CHECK(memcmp(input, c->values, n * dtype_size(c->in)) == 0, "the input changed");
}

// Nothing was written.
static inline void cast_check_untouched(const Cast *c) {
  if (c->rowwise) CHECK(untouched(c->rowwise), "rowwise data was written");
  if (c->colwise) CHECK(untouched(c->colwise), "columnwise data was written");
  if (c->scale_inv) CHECK(untouched(c->scale_inv), "scale_inv was written");
  if (c->amax) CHECK_FLOAT(read_float(c->amax), c->old_amax);
}

#endif  // NVTE_CAPI_TESTS_SUPPORT_H
