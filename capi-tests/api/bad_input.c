// Wrong calls of every exported function: each must be refused with a message that names function
// and argument, what was expected and what came, and must leave every buffer as it was.
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

static unsigned g_refused;

// ---- Contents of all device buffers of the case

static unsigned char *contents(size_t *bytes) {
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

static void before_call(void) {
  free(g_before);
  g_before = contents(&g_before_bytes);
  EXPECT_OK();
}

static void after_call(const char *file, int line, const char *function, const char *argument,
                       const char *what) {
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

#define REFUSED(function, argument, call)                      \
  do {                                                         \
    before_call();                                             \
    (void)(call);                                              \
    after_call(__FILE__, __LINE__, function, argument, #call); \
  } while (0)
#define REFUSED_VOID(function, argument, ...) REFUSED(function, argument, ((__VA_ARGS__), 0))

// ---- Operators on tensors: valid arguments, of which one thing at a time is spoilt

enum { MAX_HANDLES = 8 };

typedef struct Args {
  NVTETensor t[MAX_HANDLES];
  void *config;
} Args;

typedef enum Change {
  NULL_POINTER,  // of data that has elements
  MISALIGNED,    // by one byte
  UNSET,         // as on a new tensor
  DTYPE,         // value: the dtype
  LONGER,        // first dimension + 1
  FLAT,          // one dimension
  RANK_3,        // a leading 1
  SCALAR,        // a pointer to one float where there was nothing
  MODE,          // value: the scaling mode
  NARROWER,      // last dimension - 1
  WIDER,         // last dimension + 1
  SWIZZLED,      // the tensor's flag for swizzled scales
} Change;

typedef struct Wrong {
  const char *argument;  // the message goes on with this after the function's name
  int handle;
  NVTETensorParam param;
  Change change;
  int value;
} Wrong;

typedef struct Op {
  const char *function, *variant;
  void (*build)(Args *);
  void (*call)(const Args *);
  struct {
    const char *name;
    bool may_be_null;
  } handles[MAX_HANDLES];
  struct {
    const char *name;
    bool may_be_null, is_matmul;
  } config;
  const Wrong *wrongs;
  size_t num_wrongs;
} Op;

#define WRONGS(array) array, COUNT(array)

static void spoil(Args *args, const Wrong *w) {
  NVTETensor t = args->t[w->handle];
  NVTEBasicTensor b = nvte_get_tensor_param(t, w->param);
  switch (w->change) {
    case NULL_POINTER:
      b.data_ptr = NULL;
      break;
    case MISALIGNED:
      b.data_ptr = (unsigned char *)b.data_ptr + 1;
      break;
    case UNSET:
      b = basic(NULL, kNVTEFloat32, SHAPE(0));
      break;
    case DTYPE:
      b.dtype = (NVTEDType)w->value;
      break;
    case LONGER:
      b.shape.data[0]++;
      break;
    case FLAT:
      b.shape = SHAPE(numel(b.shape));
      break;
    case RANK_3:
      b.shape = SHAPE(1, rows_of(b.shape), cols_of(b.shape));
      break;
    case NARROWER:
      b.shape.data[b.shape.ndim - 1]--;
      break;
    case WIDER:
      b.shape.data[b.shape.ndim - 1]++;
      break;
    case SWIZZLED: {
      uint8_t yes = 1;
      nvte_set_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &yes, sizeof yes);
      return;
    }
    case SCALAR:
      b = basic(buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
      break;
    case MODE: {
      NVTETensor copy = tensor_of_mode((NVTEScalingMode)w->value);
      for (int p = kNVTERowwiseData; p <= kNVTEColumnwiseAmax; p++) {
        b = nvte_get_tensor_param(t, (NVTETensorParam)p);
        nvte_set_tensor_param_v2(copy, (NVTETensorParam)p, &b, sizeof b);
      }
      args->t[w->handle] = copy;
      return;
    }
  }
  nvte_set_tensor_param_v2(t, w->param, &b, sizeof b);
}

// Handles that no function may take for a tensor, or for a config.
enum { BAD_HANDLES = 9 };

static void *bad_handle(int k, bool for_config, const char **what) {
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

static void run_op(const Op *op) {
  Args args;
  char what[200];
  if (case_begin("%s%s valid", op->function, op->variant)) {
    memset(&args, 0, sizeof args);
    op->build(&args);
    op->call(&args);
    EXPECT_OK();  // what is spoilt below is right before
  }
  for (size_t w = 0; w < op->num_wrongs; w++) {
    const Wrong *wrong = &op->wrongs[w];
    if (!case_begin("%s%s %s wrong %zu", op->function, op->variant, wrong->argument, w)) continue;
    memset(&args, 0, sizeof args);
    op->build(&args);
    spoil(&args, wrong);
    snprintf(what, sizeof what, "parameter %d, change %d to %d", (int)wrong->param,
             (int)wrong->change, wrong->value);
    before_call();
    op->call(&args);
    after_call(__FILE__, __LINE__, op->function, wrong->argument, what);
  }
  for (int h = 0; h < MAX_HANDLES && op->handles[h].name; h++) {
    for (int k = -1; k < BAD_HANDLES; k++) {
      if (k < 0 && op->handles[h].may_be_null) continue;
      const char *handle = "null";
      if (!case_begin("%s%s %s handle %d", op->function, op->variant, op->handles[h].name, k))
        continue;
      memset(&args, 0, sizeof args);
      op->build(&args);
      args.t[h] = k < 0 ? NULL : bad_handle(k, false, &handle);
      before_call();
      op->call(&args);
      after_call(__FILE__, __LINE__, op->function, op->handles[h].name, handle);
    }
  }
  for (int k = -1; op->config.name && k < BAD_HANDLES; k++) {
    if (k < 0 && op->config.may_be_null) continue;
    if (k == 0 && op->config.is_matmul) continue;  // a stale handle of the other kind
    const char *handle = "null";
    if (!case_begin("%s%s %s handle %d", op->function, op->variant, op->config.name, k)) continue;
    memset(&args, 0, sizeof args);
    op->build(&args);
    args.config = k < 0 ? NULL : bad_handle(k, true, &handle);
    before_call();
    op->call(&args);
    after_call(__FILE__, __LINE__, op->function, op->config.name, handle);
  }
}

#define ROW kNVTERowwiseData
#define COL kNVTEColumnwiseData
#define SCALE kNVTEScale
#define AMAX kNVTEAmax
#define INV kNVTERowwiseScaleInv
#define COL_INV kNVTEColumnwiseScaleInv

// Rows for a field that must hold one Float32; `absent`: may also be missing or null.
#define ONE_FLOAT(argument, handle, param)                                        \
  {argument, handle, param, LONGER, 0}, {argument, handle, param, MISALIGNED, 0}, \
      {argument, handle, param, DTYPE, kNVTEFloat16}, {                           \
    argument, handle, param, DTYPE, kNVTEInt32                                    \
  }
#define NEEDED_FLOAT(argument, handle, param)                              \
  ONE_FLOAT(argument, handle, param), {argument, handle, param, UNSET, 0}, \
      {argument, handle, param, NULL_POINTER, 0}
#define OTHER_MODES(argument, handle)                         \
  {argument, handle, ROW, MODE, NVTE_MXFP8_1D_SCALING},       \
      {argument, handle, ROW, MODE, NVTE_BLOCK_SCALING_1D},   \
      {argument, handle, ROW, MODE, NVTE_BLOCK_SCALING_2D}, { \
    argument, handle, ROW, MODE, NVTE_INVALID_SCALING         \
  }
#define NO_INTEGERS(argument, handle, param)                                                      \
  {argument, handle, param, DTYPE, kNVTEByte}, {argument, handle, param, DTYPE, kNVTEInt16},      \
      {argument, handle, param, DTYPE, kNVTEInt32}, {argument, handle, param, DTYPE, kNVTEInt64}, \
      {argument, handle, param, DTYPE, kNVTEFloat8E8M0}, {                                        \
    argument, handle, param, DTYPE, kNVTEFloat4E2M1                                               \
  }

static NVTETensor random_tensor(NVTEDType dtype, NVTEShape shape) {
  void *x = random_values(dtype, numel(shape), -2, 1);
  return tensor(buffer_from(x, numel(shape) * dtype_size(dtype), 0)->ptr, dtype, shape);
}

// ---- Casts

static void build_cast(Args *args, NVTEDType out, Directions directions) {
  Cast c = {.in = kNVTEBFloat16,
            .out = out,
            .shape = SHAPE(16, 32),
            .directions = directions,
            .has_amax = true,
            .has_scale = true,
            .scale = 2};
  cast_build(&c);
  args->t[0] = c.in_tensor;
  args->t[1] = c.out_tensor;
}

static void build_quantize(Args *args) { build_cast(args, kNVTEFloat8E4M3, BOTH); }
static void build_quantize_high(Args *args) { build_cast(args, kNVTEFloat16, ROWWISE); }

static void build_quantize_noop(Args *args) {
  build_quantize(args);
  args->t[2] = float_tensor(buffer_float(0));
}

static void build_quantize_v2(Args *args) {
  build_quantize_noop(args);
  args->config = quant_config();
  set_quant(args->config, kNVTEQuantizationConfigNoopTensor, &args->t[2], sizeof(NVTETensor));
}

static void call_quantize(const Args *args) { nvte_quantize(args->t[0], args->t[1], NULL); }
static void call_quantize_noop(const Args *args) {
  nvte_quantize_noop(args->t[0], args->t[1], args->t[2], NULL);
}
static void call_quantize_v2(const Args *args) {
  nvte_quantize_v2(args->t[0], args->t[1], args->config, NULL);
}
static void call_cast_transpose(const Args *args) {
  nvte_cast_transpose(args->t[0], args->t[1], NULL);
}
static void call_cast_transpose_noop(const Args *args) {
  nvte_cast_transpose_with_noop(args->t[0], args->t[2], args->t[1], NULL);
}

#define CAST_WRONGS                                                                               \
  {"input.data", 0, ROW, NULL_POINTER, 0}, {"input.data", 0, ROW, MISALIGNED, 0},                 \
      {"input.data", 0, ROW, UNSET, 0}, NO_INTEGERS("input", 0, ROW),                             \
      {"input", 0, ROW, DTYPE, kNVTEFloat8E4M3}, {"input.scale", 0, SCALE, SCALAR, 0},            \
      {"input.scale_inv", 0, INV, SCALAR, 0}, OTHER_MODES("input", 0),                            \
      {"output.data", 1, ROW, NULL_POINTER, 0}, {"output.data", 1, ROW, LONGER, 0},               \
      {"output.data", 1, ROW, FLAT, 0}, {"output.data", 1, ROW, RANK_3, 0},                       \
      {"output.columnwise_data", 1, COL, NULL_POINTER, 0},                                        \
      {"output.columnwise_data", 1, COL, LONGER, 0}, {"output.columnwise_data", 1, COL, FLAT, 0}, \
      {"output.columnwise_data", 1, COL, DTYPE, kNVTEFloat8E5M2}, NO_INTEGERS("output", 1, ROW),  \
      NEEDED_FLOAT("output.scale_inv", 1, INV),                                                   \
      NEEDED_FLOAT("output.columnwise_scale_inv", 1, COL_INV), ONE_FLOAT("output.amax", 1, AMAX), \
      ONE_FLOAT("output.scale", 1, SCALE), OTHER_MODES("output", 1),                              \
      {"output.scaling_mode", 1, ROW, MODE, NVTE_INVALID_SCALING},                                \
      {"output.with_gemm_swizzled_scales", 1, ROW, SWIZZLED, 0}

#define NOT_NVFP4 {"output.data.dtype", 1, ROW, MODE, NVTE_NVFP4_1D_SCALING}

static const Wrong kCastWrongs[] = {CAST_WRONGS, NOT_NVFP4};
static const Wrong kCastNoopWrongs[] = {CAST_WRONGS, NOT_NVFP4, ONE_FLOAT("noop", 2, ROW)};
static const Wrong kCastConfigWrongs[] = {CAST_WRONGS, NOT_NVFP4,
                                          ONE_FLOAT("quant_config", 2, ROW)};
static const Wrong kCastTransposeNoopWrongs[] = {
    CAST_WRONGS,
    {"output.scaling_mode", 1, ROW, MODE, NVTE_NVFP4_1D_SCALING},
    ONE_FLOAT("noop", 2, ROW)};
static const Wrong kCastTransposeWrongs[] = {
    CAST_WRONGS,
    {"output.scaling_mode", 1, ROW, MODE, NVTE_NVFP4_1D_SCALING},
    {"output.data", 1, ROW, UNSET, 0},
    {"output.columnwise_data", 1, COL, UNSET, 0},
    {"output.columnwise_scale_inv", 1, COL_INV, SCALAR, 0}};
static const Wrong kHighWrongs[] = {{"output.scale", 1, SCALE, SCALAR, 0},
                                    {"output.scale_inv", 1, INV, SCALAR, 0},
                                    {"output.columnwise_scale_inv", 1, COL_INV, SCALAR, 0},
                                    {"output.data", 1, ROW, MISALIGNED, 0},
                                    {"output.data", 1, ROW, NULL_POINTER, 0},
                                    {"output", 1, ROW, UNSET, 0},
                                    NO_INTEGERS("output", 1, ROW)};

static void build_dequantize(Args *args) {
  args->t[0] = random_tensor(kNVTEFloat8E4M3, SHAPE(16, 32));
  set_param(args->t[0], INV, buffer_float(2)->ptr, kNVTEFloat32, SHAPE(1));
  args->t[1] = tensor(buffer(16 * 32 * 2)->ptr, kNVTEFloat16, SHAPE(16, 32));
}
static void call_dequantize(const Args *args) { nvte_dequantize(args->t[0], args->t[1], NULL); }

static const Wrong kDequantizeWrongs[] = {
    {"input", 0, ROW, NULL_POINTER, 0},
    {"input", 0, ROW, UNSET, 0},
    {"input", 0, ROW, DTYPE, kNVTEBFloat16},
    NO_INTEGERS("input", 0, ROW),
    NEEDED_FLOAT("input.scale_inv", 0, INV),
    {"input", 0, ROW, MODE, NVTE_BLOCK_SCALING_1D},
    {"input", 0, ROW, MODE, NVTE_BLOCK_SCALING_2D},
    {"input.data.dtype", 0, ROW, MODE, NVTE_NVFP4_1D_SCALING},
    {"input.scaling_mode", 0, ROW, MODE, NVTE_INVALID_SCALING},
    {"input.with_gemm_swizzled_scales", 0, ROW, SWIZZLED, 0},
    {"output.data", 1, ROW, NULL_POINTER, 0},
    {"output.data", 1, ROW, MISALIGNED, 0},
    {"output.data", 1, ROW, UNSET, 0},
    {"output.data", 1, ROW, LONGER, 0},
    {"output.data", 1, ROW, FLAT, 0},
    {"output", 1, ROW, DTYPE, kNVTEFloat8E5M2},
    NO_INTEGERS("output", 1, ROW),
    {"output.scale", 1, SCALE, SCALAR, 0},
    {"output.scale_inv", 1, INV, SCALAR, 0}};

// ---- Casts in blocks: of 40 x 200 elements, in both directions

static void build_blocks(Args *args, NVTEScalingMode mode) {
  bool mx = mode == NVTE_MXFP8_1D_SCALING;
  NVTEShape shape = SHAPE(5, 8, 200);
  NVTEShape row = mx ? SHAPE(128, 8) : mode == NVTE_BLOCK_SCALING_1D ? SHAPE(2, 40) : SHAPE(1, 2);
  NVTEShape col = mx ? SHAPE(4, 256) : mode == NVTE_BLOCK_SCALING_1D ? SHAPE(1, 200) : SHAPE(2, 1);
  NVTEDType type = mx ? kNVTEFloat8E8M0 : kNVTEFloat32;
  args->t[0] = random_tensor(kNVTEBFloat16, shape);
  NVTETensor out = args->t[1] = tensor_of_mode(mode);
  set_param(out, ROW, buffer(8000)->ptr, kNVTEFloat8E4M3, shape);
  set_param(out, COL, buffer(8000)->ptr, kNVTEFloat8E4M3, mx ? shape : transposed_shape(shape));
  set_param(out, INV, buffer(numel(row) * dtype_size(type))->ptr, type, row);
  set_param(out, COL_INV, buffer(numel(col) * dtype_size(type))->ptr, type, col);
  args->t[2] = float_tensor(buffer_float(0));
  args->config = quant_config();
  set_quant(args->config, kNVTEQuantizationConfigNoopTensor, &args->t[2], sizeof(NVTETensor));
}

static void build_blocks_1d(Args *args) { build_blocks(args, NVTE_BLOCK_SCALING_1D); }
static void build_blocks_2d(Args *args) { build_blocks(args, NVTE_BLOCK_SCALING_2D); }
static void build_mxfp8(Args *args) {
  build_blocks(args, NVTE_MXFP8_1D_SCALING);
  set_param(args->t[1], AMAX, buffer_float(0)->ptr, kNVTEFloat32, SHAPE(1));
}

// What must hold of the scales of one direction; `argument` is also a prefix of argument.shape.
#define SCALE_MATRIX(argument, handle, param)                                                     \
  {argument, handle, param, UNSET, 0}, {argument, handle, param, NULL_POINTER, 0},                \
      {argument ".shape", handle, param, LONGER, 0},                                              \
      {argument ".shape", handle, param, NARROWER, 0},                                            \
      {argument ".shape", handle, param, FLAT, 0}, {argument ".shape", handle, param, RANK_3, 0}, \
      {argument ".dtype", handle, param, DTYPE, kNVTEFloat16},                                    \
      {argument ".dtype", handle, param, DTYPE, kNVTEInt32}, {                                    \
    argument ".dtype", handle, param, DTYPE, kNVTEFloat8E4M3                                      \
  }
#define BLOCK_WRONGS                                                                            \
  {"input.data", 0, ROW, NULL_POINTER, 0}, {"input.data", 0, ROW, UNSET, 0},                    \
      NO_INTEGERS("input", 0, ROW), {"input", 0, ROW, DTYPE, kNVTEFloat8E4M3},                  \
      OTHER_MODES("input", 0), {"output.data", 1, ROW, NULL_POINTER, 0},                        \
      {"output.data", 1, ROW, LONGER, 0}, {"output.data", 1, ROW, FLAT, 0},                     \
      {"output.columnwise_data", 1, COL, NULL_POINTER, 0},                                      \
      {"output.columnwise_data.shape", 1, COL, LONGER, 0},                                      \
      {"output.columnwise_data.shape", 1, COL, FLAT, 0},                                        \
      {"output.columnwise_data.dtype", 1, COL, DTYPE, kNVTEFloat8E5M2},                         \
      NO_INTEGERS("output", 1, ROW), {"output.dtype", 1, ROW, DTYPE, kNVTEFloat32},             \
      {"output.dtype", 1, ROW, DTYPE, kNVTEBFloat16}, SCALE_MATRIX("output.scale_inv", 1, INV), \
      SCALE_MATRIX("output.columnwise_scale_inv", 1, COL_INV),                                  \
      {"output.data.dtype", 1, ROW, MODE, NVTE_NVFP4_1D_SCALING},                               \
      {"output.scaling_mode", 1, ROW, MODE, NVTE_INVALID_SCALING}, {                            \
    "output", 1, ROW, MODE, NVTE_DELAYED_TENSOR_SCALING                                         \
  }
#define FLOAT_BLOCK_WRONGS                                         \
  BLOCK_WRONGS, {"output.scale_inv", 1, INV, MISALIGNED, 0},       \
      {"output.columnwise_scale_inv", 1, COL_INV, MISALIGNED, 0},  \
      {"output.scale_inv.dtype", 1, INV, DTYPE, kNVTEFloat8E8M0},  \
      {"output.scale_inv.dtype", 1, INV, DTYPE, kNVTEByte},        \
      {"output.with_gemm_swizzled_scales", 1, ROW, SWIZZLED, 0}, { \
    "output", 1, ROW, MODE, NVTE_MXFP8_1D_SCALING                  \
  }

static const Wrong kBlocksWrongs[] = {FLOAT_BLOCK_WRONGS, ONE_FLOAT("quant_config", 2, ROW)};
static const Wrong kBlocks1dWrongs[] = {FLOAT_BLOCK_WRONGS,
                                        ONE_FLOAT("noop", 2, ROW),
                                        {"output.scale_inv", 1, ROW, MODE, NVTE_BLOCK_SCALING_2D}};
static const Wrong kMxfp8Wrongs[] = {
    BLOCK_WRONGS,
    {"output.scale_inv.shape", 1, INV, WIDER, 0},
    {"output.columnwise_scale_inv.shape", 1, COL_INV, WIDER, 0},
    {"output.scale_inv.dtype", 1, INV, DTYPE, kNVTEFloat32},
    {"output.columnwise_data.shape", 1, ROW, MODE, NVTE_BLOCK_SCALING_1D},
    ONE_FLOAT("output.amax", 1, AMAX)};

// The other way: input and output change places.
static void build_back(Args *args, NVTEScalingMode mode) {
  build_blocks(args, mode);
  NVTETensor high = args->t[0];
  args->t[0] = args->t[1];
  args->t[1] = high;
}
static void build_back_1d(Args *args) { build_back(args, NVTE_BLOCK_SCALING_1D); }
static void build_back_mxfp8_columns(Args *args) {
  build_back(args, NVTE_MXFP8_1D_SCALING);
  set_param(args->t[0], ROW, NULL, kNVTEFloat32, SHAPE(0));
}

static const Wrong kBack1dWrongs[] = {{"input.data", 0, ROW, NULL_POINTER, 0},
                                      {"input.dtype", 0, ROW, DTYPE, kNVTEBFloat16},
                                      NO_INTEGERS("input", 0, ROW),
                                      SCALE_MATRIX("input.scale_inv", 0, INV),
                                      {"input.scale_inv", 0, INV, MISALIGNED, 0},
                                      {"input.with_gemm_swizzled_scales", 0, ROW, SWIZZLED, 0},
                                      {"input.data.shape", 0, ROW, MODE, NVTE_NVFP4_1D_SCALING},
                                      {"input.scaling_mode", 0, ROW, MODE, NVTE_INVALID_SCALING},
                                      {"input.scale_inv", 0, ROW, MODE, NVTE_MXFP8_1D_SCALING},
                                      {"input.scale_inv", 0, ROW, MODE, NVTE_BLOCK_SCALING_2D},
                                      {"output.data", 1, ROW, NULL_POINTER, 0},
                                      {"output.data", 1, ROW, UNSET, 0},
                                      {"output.data.shape", 1, ROW, LONGER, 0},
                                      {"output.data.shape", 1, ROW, FLAT, 0},
                                      {"output", 1, ROW, DTYPE, kNVTEFloat8E5M2},
                                      OTHER_MODES("output", 1)};
static const Wrong kBackMxfp8Wrongs[] = {
    {"input.columnwise_data", 0, COL, NULL_POINTER, 0},
    {"input.dtype", 0, COL, UNSET, 0},
    {"output.data.shape", 0, COL, LONGER, 0},
    SCALE_MATRIX("input.columnwise_scale_inv", 0, COL_INV),
    {"input.columnwise_scale_inv.shape", 0, COL_INV, WIDER, 0},
    {"input.columnwise_scale_inv.dtype", 0, COL_INV, DTYPE, kNVTEFloat32}};

// ---- Transposes

static void build_transpose(Args *args) {
  args->t[0] = random_tensor(kNVTEBFloat16, SHAPE(16, 32));
  args->t[1] = tensor(buffer(16 * 32 * 2)->ptr, kNVTEBFloat16, SHAPE(32, 16));
  args->t[2] = float_tensor(buffer_float(0));
}
static void call_transpose(const Args *args) { nvte_transpose(args->t[0], args->t[1], NULL); }
static void call_transpose_noop(const Args *args) {
  nvte_transpose_with_noop(args->t[0], args->t[2], args->t[1], NULL);
}

#define TRANSPOSE_WRONGS(out)                                                                     \
  {"input", 0, ROW, NULL_POINTER, 0}, {"input", 0, ROW, MISALIGNED, 0},                           \
      {"input", 0, ROW, UNSET, 0}, {"input", 0, ROW, FLAT, 0}, {"input", 0, ROW, RANK_3, 0},      \
      NO_INTEGERS("input", 0, ROW), {out, 1, ROW, NULL_POINTER, 0}, {out, 1, ROW, MISALIGNED, 0}, \
      {out, 1, ROW, UNSET, 0}, {out, 1, ROW, LONGER, 0}, {out, 1, ROW, FLAT, 0},                  \
      {out, 1, ROW, RANK_3, 0}, {out, 1, ROW, DTYPE, kNVTEFloat16}, NO_INTEGERS(out, 1, ROW)

static const Wrong kTransposeWrongs[] = {TRANSPOSE_WRONGS("transposed_output")};
static const Wrong kTransposeNoopWrongs[] = {TRANSPOSE_WRONGS("output"), ONE_FLOAT("noop", 2, ROW)};

// ---- Recipes

static void build_amax(Args *args) {
  args->t[0] = random_tensor(kNVTEBFloat16, SHAPE(16, 32));
  args->t[1] = empty_tensor();
  set_param(args->t[1], AMAX, buffer_float(3)->ptr, kNVTEFloat32, SHAPE(1));
  args->t[2] = float_tensor(buffer_float(0));
  args->config = quant_config();
  set_quant(args->config, kNVTEQuantizationConfigNoopTensor, &args->t[2], sizeof(NVTETensor));
}
static void call_amax(const Args *args) { nvte_compute_amax(args->t[0], args->t[1], NULL); }
static void call_amax_config(const Args *args) {
  nvte_compute_amax_with_config(args->t[0], args->t[1], args->config, NULL);
}

#define AMAX_WRONGS                                                                                \
  {"input.data", 0, ROW, NULL_POINTER, 0}, {"input.data", 0, ROW, MISALIGNED, 0},                  \
      {"input.data", 0, ROW, UNSET, 0}, {"input", 0, ROW, DTYPE, kNVTEFloat8E4M3},                 \
      NO_INTEGERS("input", 0, ROW), {"input.scale", 0, SCALE, SCALAR, 0}, OTHER_MODES("input", 0), \
      NEEDED_FLOAT("output", 1, AMAX), OTHER_MODES("output", 1)

static const Wrong kAmaxWrongs[] = {AMAX_WRONGS};

static void build_scale(Args *args) {
  args->t[0] = tensor(buffer(16 * 32)->ptr, kNVTEFloat8E4M3, SHAPE(16, 32));
  set_param(args->t[0], AMAX, buffer_float(3)->ptr, kNVTEFloat32, SHAPE(1));
  set_param(args->t[0], SCALE, buffer(4)->ptr, kNVTEFloat32, SHAPE(1));
  set_param(args->t[0], INV, buffer(4)->ptr, kNVTEFloat32, SHAPE(1));
  args->config = quant_config();
}
static void call_scale(const Args *args) {
  nvte_compute_scale_from_amax(args->t[0], args->config, NULL);
}

static const Wrong kScaleWrongs[] = {NEEDED_FLOAT("output.amax", 0, AMAX),
                                     NEEDED_FLOAT("output.scale", 0, SCALE),
                                     {"output", 0, ROW, DTYPE, kNVTEBFloat16},
                                     NO_INTEGERS("output", 0, ROW),
                                     OTHER_MODES("output", 0)};

static void build_delayed(Args *args) {
  args->t[0] = random_tensor(kNVTEFloat32, SHAPE(4, 3));
  args->t[1] = random_tensor(kNVTEFloat32, SHAPE(3));
  args->t[2] = tensor(buffer(4 * 3 * 4)->ptr, kNVTEFloat32, SHAPE(4, 3));
  args->t[3] = tensor(buffer(3 * 4)->ptr, kNVTEFloat32, SHAPE(3));
}
static void call_delayed(const Args *args) {
  nvte_delayed_scaling_recipe_amax_and_scale_update(args->t[0], args->t[1], args->t[2], args->t[3],
                                                    "max", kNVTEFloat8E4M3, 0, NULL);
}

#define FLOATS_WRONGS(name, handle)                                            \
  {name, handle, ROW, NULL_POINTER, 0}, {name, handle, ROW, MISALIGNED, 0},    \
      {name, handle, ROW, UNSET, 0}, {name, handle, ROW, DTYPE, kNVTEFloat16}, \
      NO_INTEGERS(name, handle, ROW)

static const Wrong kDelayedWrongs[] = {FLOATS_WRONGS("amax_history", 0),
                                       {"amax_history", 0, ROW, FLAT, 0},
                                       {"amax_history", 0, ROW, RANK_3, 0},
                                       FLOATS_WRONGS("scale", 1),
                                       {"scale", 1, ROW, LONGER, 0},
                                       FLOATS_WRONGS("updated_amax_history", 2),
                                       {"updated_amax_history", 2, ROW, LONGER, 0},
                                       {"updated_amax_history", 2, ROW, FLAT, 0},
                                       FLOATS_WRONGS("updated_scale", 3),
                                       {"updated_scale", 3, ROW, LONGER, 0}};

#define AFTER_REDUCTION "nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction"

static void build_reduction(Args *args) {
  args->t[0] = random_tensor(kNVTEFloat32, SHAPE(5));
  args->t[1] = random_tensor(kNVTEFloat32, SHAPE(4, 3));
  args->t[2] = random_tensor(kNVTEFloat32, SHAPE(4, 2));
  args->t[3] = random_tensor(kNVTEFloat32, SHAPE(3));
  args->t[4] = random_tensor(kNVTEFloat32, SHAPE(2));
}
static void call_reduction(const Args *args) {
  nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
      args->t[0], args->t + 1, args->t + 3, 2, "max", kNVTEFloat8E4M3, 0, NULL);
}

static const Wrong kReductionWrongs[] = {{"amax_reduction_buffer", 0, ROW, MISALIGNED, 0},
                                         {"amax_reduction_buffer", 0, ROW, LONGER, 0},
                                         {"amax_reduction_buffer", 0, ROW, DTYPE, kNVTEFloat16},
                                         FLOATS_WRONGS("amax_histories", 1),
                                         {"amax_histories", 1, ROW, FLAT, 0},
                                         {"amax_histories", 2, ROW, LONGER, 0},
                                         FLOATS_WRONGS("amax_histories[1]", 2),
                                         FLOATS_WRONGS("scales", 3),
                                         {"scales", 3, ROW, LONGER, 0},
                                         FLOATS_WRONGS("scales[1]", 4),
                                         {"scales[1]", 4, ROW, LONGER, 0}};

static void wrong_recipe_values(void) {
  if (!case_begin("recipe values")) return;
  const char *const names[] = {"nvte_delayed_scaling_recipe_amax_and_scale_update",
                               AFTER_REDUCTION};
  const char *const algos[] = {NULL, "", "MAX", "max ", "most_recen", "mean"};
  const int dtypes[] = {
      kNVTEByte,     kNVTEFloat32, kNVTEBFloat16, kNVTEFloat8E8M0, kNVTEFloat4E2M1,
      kNVTENumTypes, -1,           1000,          INT_MIN};
  Args a = {0}, r = {0};
  build_delayed(&a);
  build_reduction(&r);
  for (size_t i = 0; i < COUNT(algos); i++) {
    REFUSED_VOID(names[0], "amax_compute_algo",
                 nvte_delayed_scaling_recipe_amax_and_scale_update(
                     a.t[0], a.t[1], a.t[2], a.t[3], algos[i], kNVTEFloat8E4M3, 0, NULL));
    REFUSED_VOID(names[1], "amax_compute_algo",
                 nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
                     r.t[0], r.t + 1, r.t + 3, 2, algos[i], kNVTEFloat8E4M3, 0, NULL));
  }
  for (size_t i = 0; i < COUNT(dtypes); i++) {
    REFUSED_VOID(names[0], "fp8_dtype",
                 nvte_delayed_scaling_recipe_amax_and_scale_update(
                     a.t[0], a.t[1], a.t[2], a.t[3], "max", (NVTEDType)dtypes[i], 0, NULL));
    REFUSED_VOID(names[1], "fp8_dtype",
                 nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
                     r.t[0], r.t + 1, r.t + 3, 2, "max", (NVTEDType)dtypes[i], 0, NULL));
  }
  REFUSED_VOID(names[1], "amax_histories",
               nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
                   r.t[0], NULL, r.t + 3, 2, "max", kNVTEFloat8E4M3, 0, NULL));
  REFUSED_VOID(names[1], "num_tensors",
               nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
                   r.t[0], r.t + 1, r.t + 3, SIZE_MAX, "max", kNVTEFloat8E4M3, 0, NULL));
  REFUSED_VOID(names[1], "scales",
               nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction(
                   r.t[0], r.t + 1, NULL, 2, "max", kNVTEFloat8E4M3, 0, NULL));
}

// ---- Products

// A, B, D, bias, pre_gelu_out, workspace
static void build_gemm(Args *args) {
  args->t[0] = random_tensor(kNVTEBFloat16, SHAPE(16, 32));
  args->t[1] = random_tensor(kNVTEBFloat16, SHAPE(48, 32));
  args->t[2] = tensor(buffer(48 * 16 * 2)->ptr, kNVTEBFloat16, SHAPE(48, 16));
  args->t[3] = random_tensor(kNVTEBFloat16, SHAPE(16));
  args->t[4] = tensor(buffer(48 * 16 * 2)->ptr, kNVTEBFloat16, SHAPE(48, 16));
  args->t[5] = tensor(buffer(65536)->ptr, kNVTEByte, SHAPE(65536));
}

static NVTETensor fp8_operand(NVTEShape shape) {
  NVTETensor t = random_tensor(kNVTEFloat8E4M3, shape);
  set_param(t, INV, buffer_float(0.5f)->ptr, kNVTEFloat32, SHAPE(1));
  return t;
}

// And a counter.
static void build_atomic_gemm(Args *args) {
  const int32_t ones[] = {1, 1, 1};
  build_gemm(args);
  args->t[6] = tensor(buffer_from(ones, sizeof ones, 0)->ptr, kNVTEInt32, SHAPE(3));
}

// FP8, and an FP8 D
static void build_gemm_fp8(Args *args) {
  args->t[0] = fp8_operand(SHAPE(16, 32));
  args->t[1] = fp8_operand(SHAPE(48, 32));
  args->t[2] = tensor(buffer(48 * 16)->ptr, kNVTEFloat8E4M3, SHAPE(48, 16));
  set_param(args->t[2], SCALE, buffer_float(2)->ptr, kNVTEFloat32, SHAPE(1));
  set_param(args->t[2], AMAX, buffer_float(0)->ptr, kNVTEFloat32, SHAPE(1));
  set_param(args->t[2], INV, buffer(4)->ptr, kNVTEFloat32, SHAPE(1));
  args->t[5] = tensor(buffer(65536)->ptr, kNVTEByte, SHAPE(65536));
}

static void build_gemm_v2(Args *args) {
  build_gemm(args);
  args->config = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
  uint8_t yes = 1;
  nvte_set_matmul_config_attribute(args->config, kNVTEMatmulConfigBiasTensor, &args->t[3], 8);
  nvte_set_matmul_config_attribute(args->config, kNVTEMatmulConfigWithGELUEpilogue, &yes, 1);
  nvte_set_matmul_config_attribute(args->config, kNVTEMatmulConfigEpilogueAuxTensor, &args->t[4],
                                   8);
  NVTETensor workspace = args->t[5];
  args->t[3] = workspace;  // the handles that the function takes come first
}

static void call_gemm(const Args *args) {
  nvte_cublas_gemm(args->t[0], args->t[1], args->t[2], args->t[3], args->t[4], true, false, false,
                   args->t[5], false, false, 0, NULL);
}
static void call_atomic_gemm(const Args *args) {
  nvte_cublas_atomic_gemm(args->t[0], args->t[1], args->t[2], args->t[3], args->t[4], true, false,
                          false, args->t[5], false, false, 0, 1, 3, true, args->t[6], NULL);
}
static void call_gemm_scaled(const Args *args) {
  nvte_cublas_gemm_scaled(args->t[0], args->t[1], args->t[2], args->t[3], args->t[4], true, false,
                          false, args->t[5], 1, 0, false, 0, NULL);
}
static void call_gemm_v2(const Args *args) {
  float one = 1, zero = 0;
  nvte_cublas_gemm_v2(1, 0, &one, args->t[0], args->t[1], &zero, args->t[2], args->t[2], args->t[3],
                      args->config, NULL);
}

#define GEMM_WRONGS                                                                      \
  {"A", 0, ROW, NULL_POINTER, 0}, {"A", 0, ROW, MISALIGNED, 0}, {"A", 0, ROW, UNSET, 0}, \
      NO_INTEGERS("A", 0, ROW), OTHER_MODES("A", 0), {"B", 1, ROW, NULL_POINTER, 0},     \
      {"B", 1, ROW, MISALIGNED, 0}, {"B", 1, ROW, UNSET, 0}, {"B", 1, ROW, FLAT, 0},     \
      NO_INTEGERS("B", 1, ROW), OTHER_MODES("B", 1), {"D", 2, ROW, NULL_POINTER, 0},     \
      {"D", 2, ROW, MISALIGNED, 0}, {"D", 2, ROW, UNSET, 0}, {"D", 2, ROW, LONGER, 0},   \
      NO_INTEGERS("D", 2, ROW), OTHER_MODES("D", 2)

static const Wrong kGemmWrongs[] = {GEMM_WRONGS,
                                    {"bias", 3, ROW, LONGER, 0},
                                    {"bias", 3, ROW, MISALIGNED, 0},
                                    NO_INTEGERS("bias", 3, ROW),
                                    {"pre_gelu_out", 4, ROW, LONGER, 0},
                                    {"pre_gelu_out", 4, ROW, MISALIGNED, 0},
                                    NO_INTEGERS("pre_gelu_out", 4, ROW)};
static const Wrong kAtomicGemmWrongs[] = {GEMM_WRONGS,
                                          {"counter", 6, ROW, DTYPE, kNVTEInt64},
                                          {"counter", 6, ROW, DTYPE, kNVTEFloat32},
                                          {"counter", 6, ROW, NARROWER, 0},
                                          {"counter", 6, ROW, MISALIGNED, 0}};
static const Wrong kGemmV2Wrongs[] = {GEMM_WRONGS};
static const Wrong kGemmFp8Wrongs[] = {{"A", 0, ROW, NULL_POINTER, 0},
                                       {"A", 0, ROW, UNSET, 0},
                                       NEEDED_FLOAT("A.scale_inv", 0, INV),
                                       {"B", 1, ROW, NULL_POINTER, 0},
                                       {"B", 1, ROW, UNSET, 0},
                                       NEEDED_FLOAT("B.scale_inv", 1, INV),
                                       NEEDED_FLOAT("D.scale", 2, SCALE),
                                       ONE_FLOAT("D.amax", 2, AMAX),
                                       ONE_FLOAT("D.scale_inv", 2, INV),
                                       {"D", 2, ROW, LONGER, 0},
                                       {"D", 2, ROW, NULL_POINTER, 0},
                                       NO_INTEGERS("D", 2, ROW)};

static void set_matmul(NVTEMatmulConfig c, NVTEMatmulConfigAttribute attr, const void *value,
                       size_t n) {
  nvte_set_matmul_config_attribute(c, attr, value, n);
  EXPECT_OK();
}

static void wrong_gemm_values(void) {
  Args a = {0}, f = {0};
  float one = 1, zero = 0;
  if (case_begin("gemm values")) {
    build_gemm(&a);
    build_gemm_fp8(&f);
    REFUSED_VOID("nvte_cublas_gemm", "math_sm_count",
                 nvte_cublas_gemm(a.t[0], a.t[1], a.t[2], NULL, NULL, true, false, false, a.t[5],
                                  false, false, -1, NULL));
    REFUSED_VOID("nvte_cublas_gemm_scaled", "math_sm_count",
                 nvte_cublas_gemm_scaled(a.t[0], a.t[1], a.t[2], NULL, NULL, true, false, false,
                                         a.t[5], 1, 0, false, INT_MIN, NULL));
    // Inner dimensions that differ.
    REFUSED_VOID("nvte_cublas_gemm", "B",
                 nvte_cublas_gemm(a.t[0], a.t[1], a.t[2], NULL, NULL, false, false, false, a.t[5],
                                  false, false, 0, NULL));
    REFUSED_VOID("nvte_cublas_gemm", "B",
                 nvte_cublas_gemm(a.t[0], a.t[1], a.t[2], NULL, NULL, true, true, false, a.t[5],
                                  false, false, 0, NULL));
    // An FP8 D does not accumulate.
    REFUSED_VOID("nvte_cublas_gemm", "accumulate",
                 nvte_cublas_gemm(f.t[0], f.t[1], f.t[2], NULL, NULL, true, false, false, f.t[5],
                                  true, false, 0, NULL));
    REFUSED_VOID("nvte_cublas_gemm_scaled", "beta",
                 nvte_cublas_gemm_scaled(f.t[0], f.t[1], f.t[2], NULL, NULL, true, false, false,
                                         f.t[5], 1, 0.5f, false, 0, NULL));
    REFUSED_VOID(
        "nvte_cublas_gemm_v2", "beta",
        nvte_cublas_gemm_v2(1, 0, &one, f.t[0], f.t[1], &one, f.t[2], f.t[2], f.t[5], NULL, NULL));
    REFUSED_VOID(
        "nvte_cublas_gemm_v2", "alpha",
        nvte_cublas_gemm_v2(1, 0, NULL, a.t[0], a.t[1], &zero, a.t[2], a.t[2], NULL, NULL, NULL));
    REFUSED_VOID(
        "nvte_cublas_gemm_v2", "beta",
        nvte_cublas_gemm_v2(1, 0, &one, a.t[0], a.t[1], NULL, a.t[2], a.t[2], NULL, NULL, NULL));
    for (int k = 0; k < BAD_HANDLES; k++) {
      const char *what;
      void *bad = bad_handle(k, false, &what);
      REFUSED_VOID(
          "nvte_cublas_gemm_v2", "C",
          nvte_cublas_gemm_v2(1, 0, &one, a.t[0], a.t[1], &zero, bad, a.t[2], NULL, NULL, NULL));
    }
    REFUSED_VOID(
        "nvte_cublas_gemm_v2", "C",
        nvte_cublas_gemm_v2(1, 0, &one, a.t[0], a.t[1], &one, a.t[0], a.t[2], NULL, NULL, NULL));
  }
  // FP8 operands need a layout that is contiguous along k.
  for (int k = 0; k < 4; k++) {
    bool transa = k & 1, transb = k & 2;
    if (!case_begin("gemm fp8 layout %d", k) || (transa && !transb)) continue;
    if (nvte_is_non_tn_fp8_gemm_supported()) continue;
    memset(&a, 0, sizeof a);
    a.t[0] = fp8_operand(SHAPE(32, 32));
    a.t[1] = fp8_operand(SHAPE(32, 32));
    a.t[2] = tensor(buffer(32 * 32 * 2)->ptr, kNVTEBFloat16, SHAPE(32, 32));
    const char *argument = transa ? "B.columnwise_data" : "A.columnwise_data";
    REFUSED_VOID("nvte_cublas_gemm", argument,
                 nvte_cublas_gemm(a.t[0], a.t[1], a.t[2], NULL, NULL, transa, transb, false, NULL,
                                  false, false, 0, NULL));
    REFUSED_VOID("nvte_cublas_gemm_v2", argument,
                 nvte_cublas_gemm_v2(transa, transb, &one, a.t[0], a.t[1], &zero, a.t[2], a.t[2],
                                     NULL, NULL, NULL));
  }
  for (int k = 0; k < 10; k++) {
    if (!case_begin("gemm config %d", k)) continue;
    memset(&a, 0, sizeof a);
    build_gemm(&a);
    NVTEMatmulConfig config = own(OWN_MATMUL_CONFIG, nvte_create_matmul_config());
    const char *what;
    void *bad = bad_handle(k % 5 + 3, false, &what);
    uint8_t yes = 1;
    int32_t negative = -5;
    NVTETensor longer = random_tensor(kNVTEBFloat16, SHAPE(17));
    switch (k) {
      case 0:  // both biases
        set_matmul(config, kNVTEMatmulConfigBiasTensor, &a.t[3], 8);
        set_matmul(config, kNVTEMatmulConfigDBiasTensor, &a.t[3], 8);
        break;
      case 1:  // forward and backward GELU
        set_matmul(config, kNVTEMatmulConfigWithGELUEpilogue, &yes, 1);
        set_matmul(config, kNVTEMatmulConfigWithDGELUEpilogue, &yes, 1);
        set_matmul(config, kNVTEMatmulConfigEpilogueAuxTensor, &a.t[4], 8);
        break;
      case 2:  // GELU without its tensor
        set_matmul(config, kNVTEMatmulConfigWithGELUEpilogue, &yes, 1);
        break;
      case 3:
        set_matmul(config, kNVTEMatmulConfigWithDGELUEpilogue, &yes, 1);
        break;
      case 4:
        set_matmul(config, kNVTEMatmulConfigSMCount, &negative, 4);
        break;
      case 5:
        set_matmul(config, kNVTEMatmulConfigBiasTensor, &bad, 8);
        break;
      case 6:
        set_matmul(config, kNVTEMatmulConfigDBiasTensor, &bad, 8);
        break;
      case 7:
        set_matmul(config, kNVTEMatmulConfigWithGELUEpilogue, &yes, 1);
        set_matmul(config, kNVTEMatmulConfigEpilogueAuxTensor, &bad, 8);
        break;
      case 8:
        set_matmul(config, kNVTEMatmulConfigBiasTensor, &longer, 8);
        break;
      default:
        set_matmul(config, kNVTEMatmulConfigWithDGELUEpilogue, &yes, 1);
        set_matmul(config, kNVTEMatmulConfigEpilogueAuxTensor, &longer, 8);
        break;
    }
    REFUSED_VOID("nvte_cublas_gemm_v2", "config",
                 nvte_cublas_gemm_v2(1, 0, &one, a.t[0], a.t[1], &zero, a.t[2], a.t[2], a.t[5],
                                     config, NULL));
  }
}

// ---- Offsets

static NVTETensor splits_tensor(size_t n) {
  int64_t *x = host_memory(8 * n);
  for (size_t i = 0; i < n; i++) x[i] = (int64_t)i;
  return tensor(buffer_from(x, 8 * n, 0)->ptr, kNVTEInt64, SHAPE(n));
}

static void build_offsets_2d(Args *args) {
  args->t[0] = splits_tensor(6);
  args->t[1] = splits_tensor(6);
  args->t[2] = tensor(buffer(7 * 8)->ptr, kNVTEInt64, SHAPE(7));
}
static void call_offsets_2d(const Args *args) {
  nvte_splits_to_offsets_2d(args->t[0], args->t[1], args->t[2], NULL);
}

static void build_offsets_multi(Args *args) {
  args->t[0] = splits_tensor(6);
  args->t[1] = tensor(buffer(6 * 8)->ptr, kNVTEInt64, SHAPE(6));
  args->t[2] = tensor(buffer(7 * 4)->ptr, kNVTEInt32, SHAPE(7));
}
static void call_offsets_multi(const Args *args) {
  NVTETensor outputs[2] = {args->t[1], args->t[2]};
  const int64_t strides[2] = {1, 2};
  const int leading[2] = {0, 1};
  nvte_splits_to_offsets_multi(args->t[0], outputs, strides, leading, 2, NULL);
}

#define INTEGER_WRONGS(name, handle)                                                 \
  {name, handle, ROW, NULL_POINTER, 0}, {name, handle, ROW, MISALIGNED, 0},          \
      {name, handle, ROW, UNSET, 0}, {name, handle, ROW, DTYPE, kNVTEFloat32},       \
      {name, handle, ROW, DTYPE, kNVTEByte}, {name, handle, ROW, DTYPE, kNVTEInt16}, \
      {name, handle, ROW, RANK_3, 0}

static const Wrong kOffsets2dWrongs[] = {INTEGER_WRONGS("first_dims", 0),
                                         INTEGER_WRONGS("last_dims", 1),
                                         {"last_dims", 1, ROW, LONGER, 0},
                                         INTEGER_WRONGS("output", 2),
                                         {"output", 2, ROW, LONGER, 0}};
static const Wrong kOffsetsMultiWrongs[] = {INTEGER_WRONGS("split_sizes", 0),
                                            INTEGER_WRONGS("outputs", 1),
                                            {"outputs", 1, ROW, LONGER, 0},
                                            INTEGER_WRONGS("outputs[1]", 2),
                                            {"outputs[1]", 2, ROW, LONGER, 0}};

static void wrong_offsets_values(void) {
  if (!case_begin("offsets values")) return;
  Buffer *in = buffer(64), *out = buffer(72);
  int64_t *s = (int64_t *)(void *)in->ptr, *o = (int64_t *)(void *)out->ptr;
  const char *const name = "nvte_splits_to_offsets";
  REFUSED_VOID(name, "split_sizes", nvte_splits_to_offsets(NULL, o, 8, 1, NULL));
  REFUSED_VOID(name, "output", nvte_splits_to_offsets(s, NULL, 8, 1, NULL));
  REFUSED_VOID(name, "num_splits", nvte_splits_to_offsets(s, o, 0, 1, NULL));
  REFUSED_VOID(name, "num_splits", nvte_splits_to_offsets(s, o, SIZE_MAX, 1, NULL));
  REFUSED_VOID(name, "num_splits", nvte_splits_to_offsets(s, o, SIZE_MAX / 8, 1, NULL));
  REFUSED_VOID(name, "stride", nvte_splits_to_offsets(s, o, 8, 0, NULL));
  REFUSED_VOID(name, "stride", nvte_splits_to_offsets(s, o, 8, INT64_MIN, NULL));
  for (uintptr_t k = 1; k < 8; k++) {
    REFUSED_VOID(name, "split_sizes",
                 nvte_splits_to_offsets((int64_t *)((uintptr_t)s + k), o, 7, 1, NULL));
    REFUSED_VOID(name, "output",
                 nvte_splits_to_offsets(s, (int64_t *)((uintptr_t)o + k), 7, 1, NULL));
  }
  Args a = {0};
  build_offsets_multi(&a);
  const int64_t strides[2] = {1, 2};
  const int leading[2] = {0, 1};
  const char *const multi = "nvte_splits_to_offsets_multi";
  REFUSED_VOID(multi, "outputs",
               nvte_splits_to_offsets_multi(a.t[0], NULL, strides, leading, 2, NULL));
  REFUSED_VOID(multi, "strides",
               nvte_splits_to_offsets_multi(a.t[0], a.t + 1, NULL, leading, 2, NULL));
  REFUSED_VOID(multi, "num_outputs",
               nvte_splits_to_offsets_multi(a.t[0], a.t + 1, strides, leading, SIZE_MAX, NULL));
  REFUSED_VOID(multi, "include_leading_zero",
               nvte_splits_to_offsets_multi(a.t[0], a.t + 1, strides, NULL, 2, NULL));
}

// ---- Functions of one handle

static void build_one(Args *args) { args->t[0] = random_tensor(kNVTEFloat32, SHAPE(4, 4)); }

#define ONE_HANDLE(function, may_be_null)                                                      \
  {#function, "", build_one, call_##function, {{"tensor", may_be_null}}, {NULL, false, false}, \
   NULL,      0}
#define DEFINE_CALL(function, ...) \
  static void call_##function(const Args *args) { (void)function(args->t[0] __VA_ARGS__); }
#define COMMA ,

DEFINE_CALL(nvte_tensor_data, )
DEFINE_CALL(nvte_tensor_columnwise_data, )
DEFINE_CALL(nvte_tensor_shape, )
DEFINE_CALL(nvte_tensor_columnwise_shape, )
DEFINE_CALL(nvte_tensor_ndims, )
DEFINE_CALL(nvte_tensor_size, COMMA 0)
DEFINE_CALL(nvte_tensor_size_bytes, )
DEFINE_CALL(nvte_tensor_numel, )
DEFINE_CALL(nvte_tensor_element_size, )
DEFINE_CALL(nvte_tensor_element_size_bits, )
DEFINE_CALL(nvte_tensor_type, )
DEFINE_CALL(nvte_tensor_amax, )
DEFINE_CALL(nvte_tensor_scale, )
DEFINE_CALL(nvte_tensor_scale_inv, )
DEFINE_CALL(nvte_tensor_scale_inv_shape, )
DEFINE_CALL(nvte_tensor_scaling_mode, )
DEFINE_CALL(nvte_zero_tensor, COMMA NULL)
DEFINE_CALL(nvte_get_tensor_param, COMMA kNVTEScale)

static NVTEBasicTensor g_basic;
static size_t g_size;

DEFINE_CALL(nvte_set_tensor_param_v2, COMMA kNVTEScale COMMA &g_basic COMMA sizeof g_basic)
DEFINE_CALL(nvte_get_tensor_param_v2,
            COMMA kNVTEScale COMMA &g_basic COMMA sizeof g_basic COMMA &g_size)

static void call_nvte_set_tensor_param(const Args *args) {
  NVTETensor t = args->t[0];
  nvte_set_tensor_param(&t, kNVTEScale, &g_basic);
}

static void build_pointers(Args *args) {
  args->t[0] = tensor(buffer(64)->ptr, kNVTEInt64, SHAPE(8));
}
static void call_pointers(const Args *args) {
  const uint64_t host[8] = {1, 2, 3};
  nvte_convert_pointers_to_tensor(host, args->t[0], 8, NULL);
}

// The buffer is copied word by word: its address is a multiple of 4, if not of the dtype.
static const Wrong kPointersWrongs[] = {{"output", 0, ROW, NULL_POINTER, 0},
                                        {"output", 0, ROW, MISALIGNED, 0},
                                        {"output", 0, ROW, UNSET, 0},
                                        {"output", 0, ROW, DTYPE, kNVTEByte}};

// ---- Lists of tensors, of one tensor each: the first handles; then a flag and scratch

static void build_lists(Args *args) {
  for (int i = 0; i < 5; i++) args->t[i] = random_tensor(kNVTEFloat32, SHAPE(16, 32));
  const int32_t zero = 0;
  args->t[5] = tensor(buffer_from(&zero, 4, 0)->ptr, kNVTEInt32, SHAPE(1));
  args->t[6] = tensor(buffer_from(host_memory(1280), 1280, 0)->ptr, kNVTEFloat32, SHAPE(320));
  args->t[7] = tensor(buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
}

#define LIST(i) ((NVTETensor[]){args->t[i]})
static void call_adam(const Args *args) {
  NVTETensor *lists[] = {LIST(0), LIST(1), LIST(2), LIST(3), LIST(4)};
  nvte_multi_tensor_adam_cuda(1, NULL, lists, 5, 1, 1, 0.5f, 0.5f, 1, 1, 0, 1, 0, NULL);
}
static void call_sgd(const Args *args) {
  NVTETensor *lists[] = {LIST(0), LIST(1), LIST(2)};
  nvte_multi_tensor_sgd_cuda(1, args->t[5], lists, 3, 1, 0, 0, 0, 1, 0, 0, 0, 1, NULL);
}
static void call_l2norm(const Args *args) {
  NVTETensor *lists[] = {LIST(0)};
  nvte_multi_tensor_unscale_l2norm_cuda(1, args->t[5], lists, 1, 1, args->t[6], NULL, args->t[7],
                                        NULL, args->t[7], 0, 0, NULL);
}
static void call_scale_tensors(const Args *args) {
  NVTETensor *lists[] = {LIST(0), LIST(1)};
  nvte_multi_tensor_scale_tensor_cuda(1, args->t[5], lists, 2, 1, args->t[7], NULL);
}
static void call_amax_scales(const Args *args) {
  NVTETensor *lists[] = {LIST(0), LIST(1), LIST(2)};
  nvte_multi_tensor_compute_scale_and_scale_inv_cuda(1, NULL, lists, 3, 1, 448, 0, 0, NULL);
}

#define OF_LIST(i) "tensor_lists[" #i "][0]"
#define LIST_WRONGS(i)                                                                        \
  {OF_LIST(i) ".data", i, ROW, NULL_POINTER, 0}, {OF_LIST(i) ".data", i, ROW, MISALIGNED, 0}, \
      NO_INTEGERS(OF_LIST(i), i, ROW), {                                                      \
    OF_LIST(i), i, ROW, DTYPE, kNVTEFloat8E4M3                                                \
  }
#define OTHER_LIST_WRONGS(i) \
  LIST_WRONGS(i), {OF_LIST(i) ".shape", i, ROW, NARROWER, 0}, {OF_LIST(i), i, ROW, UNSET, 0}
#define FLAG_WRONGS(name)                                                           \
  {name, 5, ROW, UNSET, 0}, {name ".data", 5, ROW, NULL_POINTER, 0},                \
      {name ".data", 5, ROW, MISALIGNED, 0}, {name, 5, ROW, DTYPE, kNVTEFloat32}, { \
    name, 5, ROW, DTYPE, kNVTEByte                                                  \
  }

static const Wrong kAdamWrongs[] = {LIST_WRONGS(0),
                                    OTHER_LIST_WRONGS(1),
                                    OTHER_LIST_WRONGS(2),
                                    OTHER_LIST_WRONGS(3),
                                    OTHER_LIST_WRONGS(4),
                                    {OF_LIST(2), 2, ROW, DTYPE, kNVTEFloat16},
                                    {OF_LIST(3), 3, ROW, DTYPE, kNVTEBFloat16},
                                    {OF_LIST(4), 4, ROW, DTYPE, kNVTEBFloat16}};
static const Wrong kSgdWrongs[] = {LIST_WRONGS(0),
                                   OTHER_LIST_WRONGS(1),
                                   OTHER_LIST_WRONGS(2),
                                   {OF_LIST(1), 1, ROW, DTYPE, kNVTEFloat16},
                                   {OF_LIST(2), 2, ROW, DTYPE, kNVTEFloat16},
                                   FLAG_WRONGS("noop_flag")};
static const Wrong kNormWrongs[] = {LIST_WRONGS(0),
                                    FLAG_WRONGS("noop_flag"),
                                    {"output.shape", 6, ROW, NARROWER, 0},
                                    {"output.data", 6, ROW, NULL_POINTER, 0},
                                    {"output.data", 6, ROW, MISALIGNED, 0},
                                    {"output", 6, ROW, DTYPE, kNVTEInt32},
                                    {"ret", 7, ROW, DTYPE, kNVTEFloat16},
                                    {"ret.data", 7, ROW, MISALIGNED, 0},
                                    {"ret", 7, ROW, UNSET, 0}};
static const Wrong kScaleTensorsWrongs[] = {LIST_WRONGS(0),
                                            OTHER_LIST_WRONGS(1),
                                            FLAG_WRONGS("is_infinite"),
                                            {"scale", 7, ROW, DTYPE, kNVTEFloat16},
                                            {"scale.data", 7, ROW, NULL_POINTER, 0},
                                            {"scale", 7, ROW, UNSET, 0}};
static const Wrong kAmaxScalesWrongs[] = {LIST_WRONGS(0),
                                          OTHER_LIST_WRONGS(1),
                                          OTHER_LIST_WRONGS(2),
                                          {OF_LIST(0), 0, ROW, DTYPE, kNVTEBFloat16}};

#define LIST_OP(name, call, wrongs)                              \
  {"nvte_multi_tensor_" name, "",           build_lists,   call, \
   {{OF_LIST(0), false}},     {NULL, 0, 0}, WRONGS(wrongs)}

// ---- Mixtures of experts: 6 tokens, 16 experts, of which 4 are chosen

enum { ROUTED_TOKENS = 6, ROUTED_EXPERTS = 16, ROUTED = 4 };

static NVTETensor written_tensor(NVTEDType dtype, NVTEShape shape) {
  return tensor(buffer(numel(shape) * dtype_size(dtype))->ptr, dtype, shape);
}

// logits, expert_bias, probs, routing_map, intermediate_output
static void build_router(Args *args) {
  NVTEShape all = SHAPE(ROUTED_TOKENS, ROUTED_EXPERTS);
  args->t[0] = random_tensor(kNVTEBFloat16, all);
  args->t[1] = random_tensor(kNVTEFloat32, SHAPE(ROUTED_EXPERTS));
  args->t[2] = written_tensor(kNVTEBFloat16, all);
  args->t[3] = written_tensor(kNVTEByte, all);
  args->t[4] = written_tensor(kNVTEFloat32, all);
}

static void build_router_indices(Args *args) {
  build_router(args);
  args->t[3] = written_tensor(kNVTEInt32, SHAPE(ROUTED_TOKENS, ROUTED));
}

static void call_router(const Args *a) {
  nvte_fused_topk_with_score_function_forward(a->t[0], ROUTED_TOKENS, ROUTED_EXPERTS, ROUTED, 0, 4,
                                              2, 2, 0, a->t[1], a->t[2], a->t[3], a->t[4], NULL);
}

static void call_router_indices(const Args *a) {
  nvte_fused_topk_with_score_function_forward_with_indices(a->t[0], ROUTED_TOKENS, ROUTED_EXPERTS,
                                                           ROUTED, 0, 4, 2, 2, 0, a->t[1], a->t[2],
                                                           a->t[3], a->t[4], NULL);
}

// routing_map, intermediate_output, grad_probs, grad_logits
static void build_router_backward(Args *args) {
  NVTEShape all = SHAPE(ROUTED_TOKENS, ROUTED_EXPERTS);
  args->t[0] = written_tensor(kNVTEByte, all);
  args->t[1] = random_tensor(kNVTEFloat32, all);
  args->t[2] = random_tensor(kNVTEBFloat16, all);
  args->t[3] = written_tensor(kNVTEBFloat16, all);
}

static void call_router_backward(const Args *a) {
  nvte_fused_topk_with_score_function_backward(a->t[0], a->t[1], a->t[2], ROUTED_TOKENS,
                                               ROUTED_EXPERTS, ROUTED, 0, 2, 0, a->t[3], NULL);
}

// probs, tokens_per_expert, aux_loss, Const_buf
static void build_aux_loss(Args *args) {
  args->t[0] = random_tensor(kNVTEFloat32, SHAPE(ROUTED_TOKENS, ROUTED_EXPERTS));
  args->t[1] = random_tensor(kNVTEFloat32, SHAPE(ROUTED_EXPERTS));
  args->t[2] = written_tensor(kNVTEFloat32, SHAPE(1));
  args->t[3] = written_tensor(kNVTEFloat32, SHAPE(2));
}

static void call_aux_loss(const Args *a) {
  nvte_fused_moe_aux_loss_forward(a->t[0], a->t[1], ROUTED_TOKENS, ROUTED_EXPERTS, ROUTED_TOKENS,
                                  ROUTED_EXPERTS, ROUTED, 0.5f, a->t[2], a->t[3], NULL);
}

// input, output, sorted_row_id, row_id_map; rows of 8 elements, two for each token
static void build_permute(Args *args) {
  int32_t slots[2 * ROUTED_TOKENS];
  for (int i = 0; i < 2 * ROUTED_TOKENS; i++) slots[i] = 2 * ROUTED_TOKENS - 1 - i;
  args->t[0] = random_tensor(kNVTEBFloat16, SHAPE(ROUTED_TOKENS, 8));
  args->t[1] = written_tensor(kNVTEBFloat16, SHAPE(2 * ROUTED_TOKENS, 8));
  args->t[2] = tensor(
      buffer_from(memcpy(host_memory(sizeof slots), slots, sizeof slots), sizeof slots, 0)->ptr,
      kNVTEInt32, SHAPE(2 * ROUTED_TOKENS));
  args->t[3] = written_tensor(kNVTEInt32, SHAPE(2, ROUTED_TOKENS));
}

static void call_permute(const Args *a) {
  nvte_permute(a->t[0], a->t[1], a->t[2], a->t[3], NULL, NULL, NULL, ROUTED_TOKENS, 2, 8,
               2 * ROUTED_TOKENS, NULL);
}

// input, output, row_id_map, prob
static void build_unpermute(Args *args) {
  build_permute(args);
  NVTETensor rows = args->t[1], map = args->t[2];
  args->t[1] = args->t[0];
  args->t[0] = rows;
  args->t[2] = map;
  args->t[3] = random_tensor(kNVTEFloat32, SHAPE(ROUTED_TOKENS, 2));
}

static void call_unpermute(const Args *a) {
  nvte_unpermute(a->t[0], a->t[1], a->t[2], a->t[3], ROUTED_TOKENS, 2, 8, NULL);
}

// Two matrices of 5 x 8 and of 7 x 8 with 8 rows each.
static void build_padding(Args *args) {
  args->t[0] = random_tensor(kNVTEBFloat16, SHAPE(5, 8));
  args->t[1] = random_tensor(kNVTEBFloat16, SHAPE(7, 8));
  args->t[2] = written_tensor(kNVTEBFloat16, SHAPE(8, 8));
  args->t[3] = written_tensor(kNVTEBFloat16, SHAPE(8, 8));
}

static void call_padding(const Args *a) {
  const int32_t rows[] = {8, 8};
  NVTETensor outputs[] = {a->t[2], a->t[3]};
  nvte_multi_padding(2, a->t, outputs, rows, NULL);
}

static void build_unpadding(Args *args) {
  build_padding(args);
  for (int i = 0; i < 2; i++) {
    NVTETensor padded = args->t[2 + i];
    args->t[2 + i] = args->t[i];
    args->t[i] = padded;
  }
}

static void call_unpadding(const Args *a) {
  const int32_t rows[] = {5, 7};
  NVTETensor outputs[] = {a->t[2], a->t[3]};
  nvte_multi_unpadding(2, a->t, outputs, rows, NULL);
}

// keys_in, lengths_in, keys_out, indices_out, workspace: 3 rows of 40, of which the best 5
static void call_topk(const Args *a) {
  nvte_topk(NULL, a->t[0], a->t[1], a->t[2], a->t[3], a->t[4], 3, 40, 5);
}

static void build_topk(Args *args) {
  args->t[0] = random_tensor(kNVTEBFloat16, SHAPE(3, 40));
  args->t[1] = tensor(buffer_from(host_memory(12), 12, 0)->ptr, kNVTEInt32, SHAPE(3));
  args->t[2] = written_tensor(kNVTEBFloat16, SHAPE(3, 5));
  args->t[3] = written_tensor(kNVTEInt32, SHAPE(3, 5));
  args->t[4] = empty_tensor();
  call_topk(args);
  NVTEBasicTensor wanted = nvte_get_tensor_param(args->t[4], ROW);
  args->t[4] = written_tensor(wanted.dtype, wanted.shape);
}

// Of a tensor that must be there, of exactly one shape.
#define EXACT(argument, handle)                                                \
  {argument, handle, ROW, NULL_POINTER, 0}, {argument, handle, ROW, UNSET, 0}, \
      {argument, handle, ROW, LONGER, 0}, {argument, handle, ROW, WIDER, 0},   \
      {argument, handle, ROW, FLAT, 0}
// Of a tensor that must be there, with enough elements.
#define ENOUGH(argument, handle)                                               \
  {argument, handle, ROW, NULL_POINTER, 0}, {argument, handle, ROW, UNSET, 0}, \
      {argument, handle, ROW, MISALIGNED, 0}, {argument, handle, ROW, NARROWER, 0}
#define NO_FP8(argument, handle) \
  {argument, handle, ROW, DTYPE, kNVTEFloat8E4M3}, { argument, handle, ROW, DTYPE, kNVTEFloat8E5M2 }
#define ROUTER_WRONGS                                                                              \
  EXACT("logits", 0), {"logits", 0, ROW, MISALIGNED, 0}, NO_INTEGERS("logits", 0, ROW),            \
      NO_FP8("logits", 0), {"expert_bias", 1, ROW, LONGER, 0}, {"expert_bias", 1, ROW, RANK_3, 0}, \
      {"expert_bias", 1, ROW, MISALIGNED, 0}, NO_INTEGERS("expert_bias", 1, ROW),                  \
      NO_FP8("expert_bias", 1), EXACT("probs", 2), {"probs", 2, ROW, MISALIGNED, 0},               \
      EXACT("intermediate_output", 4), {"intermediate_output", 4, ROW, MISALIGNED, 0}

static const Wrong kRouterWrongs[] = {ROUTER_WRONGS, EXACT("routing_map", 3)};
static const Wrong kRouterIndicesWrongs[] = {ROUTER_WRONGS,
                                             EXACT("topk_indices", 3),
                                             {"topk_indices", 3, ROW, MISALIGNED, 0},
                                             {"topk_indices", 3, ROW, DTYPE, kNVTEByte},
                                             {"topk_indices", 3, ROW, DTYPE, kNVTEFloat32},
                                             NO_FP8("topk_indices", 3)};
static const Wrong kRouterBackwardWrongs[] = {EXACT("routing_map", 0),
                                              EXACT("intermediate_output", 1),
                                              {"intermediate_output", 1, ROW, MISALIGNED, 0},
                                              EXACT("grad_probs", 2),
                                              {"grad_probs", 2, ROW, MISALIGNED, 0},
                                              EXACT("grad_logits", 3),
                                              {"grad_logits", 3, ROW, MISALIGNED, 0},
                                              NO_INTEGERS("grad_logits", 3, ROW),
                                              NO_FP8("grad_logits", 3)};
static const Wrong kAuxLossWrongs[] = {EXACT("probs", 0),
                                       {"probs", 0, ROW, MISALIGNED, 0},
                                       NO_INTEGERS("probs", 0, ROW),
                                       NO_FP8("probs", 0),
                                       {"tokens_per_expert", 1, ROW, NULL_POINTER, 0},
                                       {"tokens_per_expert", 1, ROW, LONGER, 0},
                                       {"tokens_per_expert", 1, ROW, MISALIGNED, 0},
                                       {"tokens_per_expert", 1, ROW, DTYPE, kNVTEByte},
                                       {"tokens_per_expert", 1, ROW, DTYPE, kNVTEFloat16},
                                       {"aux_loss", 2, ROW, NULL_POINTER, 0},
                                       {"Const_buf", 3, ROW, NULL_POINTER, 0},
                                       {"Const_buf", 3, ROW, NARROWER, 0}};
static const Wrong kPermuteWrongs[] = {ENOUGH("input", 0),
                                       NO_INTEGERS("input", 0, ROW),
                                       NO_FP8("input", 0),
                                       ENOUGH("output", 1),
                                       {"output", 1, ROW, DTYPE, kNVTEFloat16},
                                       ENOUGH("sorted_row_id", 2),
                                       {"sorted_row_id", 2, ROW, DTYPE, kNVTEInt64},
                                       ENOUGH("row_id_map", 3),
                                       {"row_id_map", 3, ROW, DTYPE, kNVTEFloat32}};
static const Wrong kUnpermuteWrongs[] = {{"input", 0, ROW, NULL_POINTER, 0},
                                         {"input", 0, ROW, MISALIGNED, 0},
                                         NO_INTEGERS("input", 0, ROW),
                                         NO_FP8("input", 0),
                                         ENOUGH("output", 1),
                                         {"output", 1, ROW, DTYPE, kNVTEFloat32},
                                         ENOUGH("row_id_map", 2),
                                         {"row_id_map", 2, ROW, DTYPE, kNVTEInt16},
                                         {"prob", 3, ROW, NARROWER, 0},
                                         {"prob", 3, ROW, MISALIGNED, 0},
                                         {"prob", 3, ROW, DTYPE, kNVTEBFloat16}};
#define MATRIX_WRONGS(argument, handle)                                             \
  {argument, handle, ROW, NULL_POINTER, 0}, {argument, handle, ROW, MISALIGNED, 0}, \
      {argument, handle, ROW, UNSET, 0}, {argument, handle, ROW, FLAT, 0},          \
      {argument, handle, ROW, RANK_3, 0}, {                                         \
    argument, handle, ROW, DTYPE, kNVTEByte                                         \
  }
static const Wrong kPaddingWrongs[] = {MATRIX_WRONGS("input_list[1]", 1),
                                       MATRIX_WRONGS("output_list[0]", 2),
                                       MATRIX_WRONGS("output_list[1]", 3),
                                       {"input_list[0]", 0, ROW, NULL_POINTER, 0},
                                       {"input_list[0]", 0, ROW, DTYPE, kNVTEFloat4E2M1},
                                       {"output_list[0]", 2, ROW, LONGER, 0},
                                       {"output_list[1]", 3, ROW, WIDER, 0},
                                       {"output_list[1]", 3, ROW, NARROWER, 0}};
static const Wrong kTopkWrongs[] = {ENOUGH("keys_in", 0),
                                    NO_INTEGERS("keys_in", 0, ROW),
                                    NO_FP8("keys_in", 0),
                                    {"lengths_in", 1, ROW, NARROWER, 0},
                                    {"lengths_in", 1, ROW, MISALIGNED, 0},
                                    {"lengths_in", 1, ROW, DTYPE, kNVTEInt64},
                                    ENOUGH("keys_out", 2),
                                    ENOUGH("indices_out", 3),
                                    {"workspace", 4, ROW, NARROWER, 0}};

static const Op kOps[] = {
    LIST_OP("adam_cuda", call_adam, kAdamWrongs),
    LIST_OP("sgd_cuda", call_sgd, kSgdWrongs),
    LIST_OP("unscale_l2norm_cuda", call_l2norm, kNormWrongs),
    LIST_OP("scale_tensor_cuda", call_scale_tensors, kScaleTensorsWrongs),
    LIST_OP("compute_scale_and_scale_inv_cuda", call_amax_scales, kAmaxScalesWrongs),
    {"nvte_quantize",
     "",
     build_quantize,
     call_quantize,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kCastWrongs)},
    {"nvte_quantize",
     " to Float16",
     build_quantize_high,
     call_quantize,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kHighWrongs)},
    {"nvte_quantize_noop",
     "",
     build_quantize_noop,
     call_quantize_noop,
     {{"input", false}, {"output", false}, {"noop", true}},
     {NULL, false, false},
     WRONGS(kCastNoopWrongs)},
    {"nvte_quantize_v2",
     "",
     build_quantize_v2,
     call_quantize_v2,
     {{"input", false}, {"output", false}},
     {"quant_config", true, false},
     WRONGS(kCastConfigWrongs)},
    {"nvte_quantize",
     " MXFP8",
     build_mxfp8,
     call_quantize,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kMxfp8Wrongs)},
    {"nvte_quantize_noop",
     " 1D blocks",
     build_blocks_1d,
     call_quantize_noop,
     {{"input", false}, {"output", false}, {"noop", true}},
     {NULL, false, false},
     WRONGS(kBlocks1dWrongs)},
    {"nvte_quantize_v2",
     " 2D blocks",
     build_blocks_2d,
     call_quantize_v2,
     {{"input", false}, {"output", false}},
     {"quant_config", true, false},
     WRONGS(kBlocksWrongs)},
    {"nvte_cast_transpose",
     "",
     build_quantize,
     call_cast_transpose,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kCastTransposeWrongs)},
    {"nvte_cast_transpose_with_noop",
     "",
     build_quantize_noop,
     call_cast_transpose_noop,
     {{"input", false}, {"output", false}, {"noop", true}},
     {NULL, false, false},
     WRONGS(kCastTransposeNoopWrongs)},
    {"nvte_dequantize",
     "",
     build_dequantize,
     call_dequantize,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kDequantizeWrongs)},
    {"nvte_dequantize",
     " 1D blocks",
     build_back_1d,
     call_dequantize,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kBack1dWrongs)},
    {"nvte_dequantize",
     " MXFP8 columns",
     build_back_mxfp8_columns,
     call_dequantize,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kBackMxfp8Wrongs)},
    {"nvte_transpose",
     "",
     build_transpose,
     call_transpose,
     {{"input", false}, {"transposed_output", false}},
     {NULL, false, false},
     WRONGS(kTransposeWrongs)},
    {"nvte_transpose_with_noop",
     "",
     build_transpose,
     call_transpose_noop,
     {{"input", false}, {"output", false}, {"noop", true}},
     {NULL, false, false},
     WRONGS(kTransposeNoopWrongs)},
    {"nvte_compute_amax",
     "",
     build_amax,
     call_amax,
     {{"input", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kAmaxWrongs)},
    {"nvte_compute_amax_with_config",
     "",
     build_amax,
     call_amax_config,
     {{"input", false}, {"output", false}},
     {"config", true, false},
     WRONGS(kAmaxWrongs)},
    {"nvte_compute_scale_from_amax",
     "",
     build_scale,
     call_scale,
     {{"output", false}},
     {"config", false, false},
     WRONGS(kScaleWrongs)},
    {"nvte_delayed_scaling_recipe_amax_and_scale_update",
     "",
     build_delayed,
     call_delayed,
     {{"amax_history", false},
      {"scale", false},
      {"updated_amax_history", false},
      {"updated_scale", false}},
     {NULL, false, false},
     WRONGS(kDelayedWrongs)},
    {AFTER_REDUCTION,
     "",
     build_reduction,
     call_reduction,
     {{"amax_reduction_buffer", true},
      {"amax_histories", false},
      {"amax_histories[1]", false},
      {"scales", false},
      {"scales[1]", false}},
     {NULL, false, false},
     WRONGS(kReductionWrongs)},
    {"nvte_cublas_gemm",
     "",
     build_gemm,
     call_gemm,
     {{"A", false},
      {"B", false},
      {"D", false},
      {"bias", true},
      {"pre_gelu_out", true},
      {"workspace", true}},
     {NULL, false, false},
     WRONGS(kGemmWrongs)},
    {"nvte_cublas_atomic_gemm",
     "",
     build_atomic_gemm,
     call_atomic_gemm,
     {{"A", false},
      {"B", false},
      {"D", false},
      {"bias", true},
      {"pre_gelu_out", true},
      {"workspace", true},
      {"counter", true}},
     {NULL, false, false},
     WRONGS(kAtomicGemmWrongs)},
    {"nvte_cublas_gemm",
     " FP8",
     build_gemm_fp8,
     call_gemm,
     {{"A", false}, {"B", false}, {"D", false}},
     {NULL, false, false},
     WRONGS(kGemmFp8Wrongs)},
    {"nvte_cublas_gemm_scaled",
     "",
     build_gemm,
     call_gemm_scaled,
     {{"A", false},
      {"B", false},
      {"D", false},
      {"bias", true},
      {"pre_gelu_out", true},
      {"workspace", true}},
     {NULL, false, false},
     WRONGS(kGemmWrongs)},
    {"nvte_cublas_gemm_scaled",
     " FP8",
     build_gemm_fp8,
     call_gemm_scaled,
     {{"A", false}, {"B", false}, {"D", false}},
     {NULL, false, false},
     WRONGS(kGemmFp8Wrongs)},
    {"nvte_cublas_gemm_v2",
     "",
     build_gemm_v2,
     call_gemm_v2,
     {{"A", false}, {"B", false}, {"D", false}, {"workspace", true}},
     {"config", true, true},
     WRONGS(kGemmV2Wrongs)},
    {"nvte_splits_to_offsets_2d",
     "",
     build_offsets_2d,
     call_offsets_2d,
     {{"first_dims", false}, {"last_dims", false}, {"output", false}},
     {NULL, false, false},
     WRONGS(kOffsets2dWrongs)},
    {"nvte_splits_to_offsets_multi",
     "",
     build_offsets_multi,
     call_offsets_multi,
     {{"split_sizes", false}, {"outputs", false}, {"outputs[1]", false}},
     {NULL, false, false},
     WRONGS(kOffsetsMultiWrongs)},
    {"nvte_convert_pointers_to_tensor",
     "",
     build_pointers,
     call_pointers,
     {{"output", false}},
     {NULL, false, false},
     WRONGS(kPointersWrongs)},
    ONE_HANDLE(nvte_tensor_data, true),
    ONE_HANDLE(nvte_tensor_columnwise_data, true),
    ONE_HANDLE(nvte_tensor_shape, false),
    ONE_HANDLE(nvte_tensor_columnwise_shape, false),
    ONE_HANDLE(nvte_tensor_ndims, false),
    ONE_HANDLE(nvte_tensor_size, false),
    ONE_HANDLE(nvte_tensor_size_bytes, true),
    ONE_HANDLE(nvte_tensor_numel, false),
    ONE_HANDLE(nvte_tensor_element_size, true),
    ONE_HANDLE(nvte_tensor_element_size_bits, true),
    ONE_HANDLE(nvte_tensor_type, true),
    ONE_HANDLE(nvte_tensor_amax, true),
    ONE_HANDLE(nvte_tensor_scale, true),
    ONE_HANDLE(nvte_tensor_scale_inv, true),
    ONE_HANDLE(nvte_tensor_scale_inv_shape, true),
    ONE_HANDLE(nvte_tensor_scaling_mode, true),
    ONE_HANDLE(nvte_zero_tensor, true),
    ONE_HANDLE(nvte_get_tensor_param, true),
    ONE_HANDLE(nvte_get_tensor_param_v2, true),
    ONE_HANDLE(nvte_set_tensor_param, false),
    ONE_HANDLE(nvte_set_tensor_param_v2, false),
    {"nvte_fused_topk_with_score_function_forward",
     "",
     build_router,
     call_router,
     {{"logits", false},
      {"expert_bias", false},
      {"probs", false},
      {"routing_map", false},
      {"intermediate_output", false}},
     {NULL, false, false},
     WRONGS(kRouterWrongs)},
    {"nvte_fused_topk_with_score_function_forward_with_indices",
     "",
     build_router_indices,
     call_router_indices,
     {{"logits", false},
      {"expert_bias", false},
      {"probs", false},
      {"topk_indices", false},
      {"intermediate_output", false}},
     {NULL, false, false},
     WRONGS(kRouterIndicesWrongs)},
    {"nvte_fused_topk_with_score_function_backward",
     "",
     build_router_backward,
     call_router_backward,
     {{"routing_map", false},
      {"intermediate_output", false},
      {"grad_probs", false},
      {"grad_logits", false}},
     {NULL, false, false},
     WRONGS(kRouterBackwardWrongs)},
    {"nvte_fused_moe_aux_loss_forward",
     "",
     build_aux_loss,
     call_aux_loss,
     {{"probs", false}, {"tokens_per_expert", false}, {"aux_loss", false}, {"Const_buf", false}},
     {NULL, false, false},
     WRONGS(kAuxLossWrongs)},
    {"nvte_permute",
     "",
     build_permute,
     call_permute,
     {{"input", false}, {"output", false}, {"sorted_row_id", false}, {"row_id_map", false}},
     {NULL, false, false},
     WRONGS(kPermuteWrongs)},
    {"nvte_unpermute",
     "",
     build_unpermute,
     call_unpermute,
     {{"input", true}, {"output", false}, {"row_id_map", false}, {"prob", true}},
     {NULL, false, false},
     WRONGS(kUnpermuteWrongs)},
    {"nvte_multi_padding",
     "",
     build_padding,
     call_padding,
     {{"input_list[0]", false},
      {"input_list[1]", false},
      {"output_list[0]", false},
      {"output_list[1]", false}},
     {NULL, false, false},
     WRONGS(kPaddingWrongs)},
    {"nvte_multi_unpadding",
     "",
     build_unpadding,
     call_unpadding,
     {{"input_list[0]", false},
      {"input_list[1]", false},
      {"output_list[0]", false},
      {"output_list[1]", false}},
     {NULL, false, false},
     WRONGS(kPaddingWrongs)},
    {"nvte_topk",
     "",
     build_topk,
     call_topk,
     {{"keys_in", false},
      {"lengths_in", false},
      {"keys_out", false},
      {"indices_out", false},
      {"workspace", false}},
     {NULL, false, false},
     WRONGS(kTopkWrongs)}};

static void wrong_destroyed_handles(void) {
  for (int k = 0; k < BAD_HANDLES; k++) {
    if (!case_begin("destroying handle %d", k)) continue;
    const char *what;
    NVTETensor bad = bad_handle(k, false, &what);
    REFUSED_VOID("nvte_destroy_tensor", "tensor", nvte_destroy_tensor(bad));
    REFUSED_VOID("nvte_destroy_tensors", "tensors", nvte_destroy_tensors(&bad, 1));
    NVTETensorPack pack = {{NULL}, 0};
    pack.tensors[9] = bad;
    REFUSED_VOID("nvte_tensor_pack_destroy", "pack", nvte_tensor_pack_destroy(&pack));
  }
}

// ---- Wrong values of handle functions

// Buffers that no tensor may hold, at the places where they are set.
static void wrong_basic_tensors(void) {
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
    NVTEBasicTensor b = basic(&g_size, kNVTEFloat32, too_many);
    const char *what = "rank";
    if (r < COUNT(rows)) {
      what = rows[r].what;
      b = basic(&g_size, (NVTEDType)rows[r].dtype, rows[r].shape);
    } else {
      b.shape.ndim = ranks[r - COUNT(rows)];
    }
    if (!case_begin("setting %s, row %zu", what, r)) continue;
    NVTETensor t = random_tensor(kNVTEFloat32, SHAPE(2, 2));
    for (int p = kNVTERowwiseData; p <= kNVTEColumnwiseAmax; p++) {
      NVTEBasicTensor old = nvte_get_tensor_param(t, (NVTETensorParam)p);
      REFUSED_VOID("nvte_set_tensor_param_v2", "buf",
                   nvte_set_tensor_param_v2(t, (NVTETensorParam)p, &b, sizeof b));
      REFUSED_VOID("nvte_set_tensor_param", "param",
                   nvte_set_tensor_param(&t, (NVTETensorParam)p, &b));
      NVTEBasicTensor now = nvte_get_tensor_param(t, (NVTETensorParam)p);
      CHECK(old.data_ptr == now.data_ptr && old.dtype == now.dtype &&
                same_shape(old.shape, now.shape),
            "%s was stored in parameter %d", what, p);
    }
    NVTEGroupedTensor g = nvte_create_grouped_tensor(NVTE_DELAYED_TENSOR_SCALING, 2, SHAPE(4, 4));
    for (int p = kNVTEGroupedRowwiseData; p < kNVTEGroupedWithGEMMSwizzledScales; p++) {
      if (r >= COUNT(rows) && p >= kNVTEGroupedFirstDims) b.dtype = kNVTEInt64;
      REFUSED_VOID("nvte_set_grouped_tensor_param", "buf",
                   nvte_set_grouped_tensor_param(g, (NVTEGroupedTensorParam)p, &b, sizeof b));
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
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) abort();
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
    int status = -1;
    if (waitpid(child, &status, 0) != child) abort();
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
      REFUSED("nvte_create_tensor", "scaling_mode", nvte_create_tensor((NVTEScalingMode)k));
      REFUSED_VOID("nvte_create_tensors", "scaling_mode",
                   nvte_create_tensors((NVTEScalingMode)k, out, 3));
      CHECK(out[0] == t && out[2] == t, "a handle was written");
      REFUSED("nvte_create_grouped_tensor", "scaling_mode",
              nvte_create_grouped_tensor((NVTEScalingMode)k, 2, SHAPE(4, 4)));
      REFUSED_VOID("nvte_set_tensor_param", "param_name",
                   nvte_set_tensor_param(&t, (NVTETensorParam)k, &b));
      REFUSED("nvte_get_tensor_param", "param_name",
              nvte_get_tensor_param(t, (NVTETensorParam)k).data_ptr);
      REFUSED_VOID("nvte_set_tensor_param_v2", "param",
                   nvte_set_tensor_param_v2(t, (NVTETensorParam)k, &b, sizeof b));
      REFUSED_VOID("nvte_get_tensor_param_v2", "param",
                   nvte_get_tensor_param_v2(t, (NVTETensorParam)k, &b, sizeof b, &n));
      REFUSED_VOID("nvte_set_grouped_tensor_param", "param",
                   nvte_set_grouped_tensor_param(g, (NVTEGroupedTensorParam)k, &b, sizeof b));
      REFUSED_VOID("nvte_get_grouped_tensor_param", "param",
                   nvte_get_grouped_tensor_param(g, (NVTEGroupedTensorParam)k, &b, sizeof b, &n));
      REFUSED_VOID(
          "nvte_set_quantization_config_attribute", "attr",
          nvte_set_quantization_config_attribute(q, (NVTEQuantizationConfigAttribute)k, &b, 8));
      REFUSED_VOID(
          "nvte_get_quantization_config_attribute", "attr",
          nvte_get_quantization_config_attribute(q, (NVTEQuantizationConfigAttribute)k, &b, 8, &n));
      REFUSED_VOID("nvte_set_matmul_config_attribute", "attr",
                   nvte_set_matmul_config_attribute(m, (NVTEMatmulConfigAttribute)k, &b, 8));
      REFUSED_VOID("nvte_get_matmul_config_attribute", "attr",
                   nvte_get_matmul_config_attribute(m, (NVTEMatmulConfigAttribute)k, &b, 8, &n));
      REFUSED_VOID(
          "nvte_set_grouped_matmul_config_attribute", "attr",
          nvte_set_grouped_matmul_config_attribute(gm, (NVTEGroupedMatmulConfigAttribute)k, &b, 8));
      REFUSED_VOID("nvte_get_grouped_matmul_config_attribute", "attr",
                   nvte_get_grouped_matmul_config_attribute(gm, (NVTEGroupedMatmulConfigAttribute)k,
                                                            &b, 8, &n));
      if (k != 2) REFUSED("nvte_get_compute_stream", "idx", nvte_get_compute_stream(k));
      if (k != 2) REFUSED("nvte_get_compute_stream_event", "idx", nvte_get_compute_stream_event(k));
    }
    // The counts of the enumerations are not values.
    REFUSED("nvte_create_tensor", "scaling_mode", nvte_create_tensor((NVTEScalingMode)5));
    REFUSED_VOID("nvte_set_tensor_param_v2", "param",
                 nvte_set_tensor_param_v2(t, kNVTENumTensorParams, &b, sizeof b));
    REFUSED_VOID("nvte_set_grouped_tensor_param", "param",
                 nvte_set_grouped_tensor_param(g, kNVTENumGroupedTensorParams, &b, sizeof b));
    REFUSED_VOID(
        "nvte_set_quantization_config_attribute", "attr",
        nvte_set_quantization_config_attribute(q, kNVTEQuantizationConfigNumAttributes, &b, 8));
    REFUSED_VOID("nvte_set_matmul_config_attribute", "attr",
                 nvte_set_matmul_config_attribute(m, kNVTEMatmulConfigNumAttributes, &b, 8));
    REFUSED_VOID(
        "nvte_set_grouped_matmul_config_attribute", "attr",
        nvte_set_grouped_matmul_config_attribute(gm, kNVTEGroupedMatmulConfigNumAttributes, &b, 8));
    nvte_destroy_grouped_tensor(g);
    nvte_destroy_grouped_matmul_config(gm);
  }
  if (case_begin("shapes and counts")) {
    size_t dims[20] = {1};
    NVTETensor t = random_tensor(kNVTEFloat32, SHAPE(2, 2));
    NVTEShape rank16 = SHAPE(1, 1), huge = SHAPE((size_t)1 << 32, (size_t)1 << 32);
    rank16.ndim = 16;
    const NVTEScalingMode mode = NVTE_DELAYED_TENSOR_SCALING;
    REFUSED("nvte_make_shape", "ndim", nvte_make_shape(dims, 16).ndim);
    REFUSED("nvte_make_shape", "ndim", nvte_make_shape(dims, SIZE_MAX).ndim);
    REFUSED("nvte_tensor_size", "dim", nvte_tensor_size(t, 2));
    REFUSED("nvte_tensor_size", "dim", nvte_tensor_size(t, SIZE_MAX));
    REFUSED("nvte_create_grouped_tensor", "num_tensors",
            nvte_create_grouped_tensor(mode, 0, SHAPE(4, 4)));
    REFUSED("nvte_create_grouped_tensor", "logical_shape",
            nvte_create_grouped_tensor(mode, 1, SHAPE(4)));
    REFUSED("nvte_create_grouped_tensor", "logical_shape",
            nvte_create_grouped_tensor(mode, 1, SHAPE(4, 4, 4)));
    REFUSED("nvte_create_grouped_tensor", "logical_shape",
            nvte_create_grouped_tensor(mode, 1, rank16));
    REFUSED("nvte_create_grouped_tensor", "logical_shape",
            nvte_create_grouped_tensor(mode, 1, huge));
    REFUSED_VOID("nvte_create_tensors", "tensors", nvte_create_tensors(mode, NULL, 1));
    REFUSED_VOID("nvte_destroy_tensors", "tensors", nvte_destroy_tensors(NULL, 1));
    REFUSED_VOID("nvte_tensor_pack_create", "pack", nvte_tensor_pack_create(NULL));
    REFUSED_VOID("nvte_tensor_pack_destroy", "pack", nvte_tensor_pack_destroy(NULL));
  }
  if (case_begin("bytes")) {
    Buffer *b = buffer(64);
    unsigned char host[64] = {0};
    const char *const copy = "nvte_copy_host_to_device_via_kernel";
    const char *const pointers = "nvte_convert_pointers_to_tensor";
    REFUSED_VOID("nvte_memset", "ptr", nvte_memset(NULL, 0, 64, NULL));
    REFUSED_VOID("nvte_memset", "ptr", nvte_memset(NULL, 0, 0, NULL));
    REFUSED_VOID("nvte_memset", "size_in_bytes", nvte_memset(b->ptr, 0, SIZE_MAX, NULL));
    REFUSED_VOID("nvte_memset", "size_in_bytes", nvte_memset(b->ptr, 0, SIZE_MAX / 2 + 1, NULL));
    REFUSED_VOID(copy, "host_ptr", nvte_copy_host_to_device_via_kernel(NULL, b->ptr, 64, NULL));
    REFUSED_VOID(copy, "device_ptr", nvte_copy_host_to_device_via_kernel(host, NULL, 64, NULL));
    REFUSED_VOID(copy, "device_ptr",
                 nvte_copy_host_to_device_via_kernel(host, b->ptr + 2, 8, NULL));
    REFUSED_VOID(copy, "num_bytes",
                 nvte_copy_host_to_device_via_kernel(host, b->ptr, SIZE_MAX, NULL));
    NVTETensor t = tensor(b->ptr, kNVTEInt64, SHAPE(8));
    uint64_t words[9] = {0};
    REFUSED_VOID(pointers, "host_ptrs", nvte_convert_pointers_to_tensor(NULL, t, 8, NULL));
    REFUSED_VOID(pointers, "output", nvte_convert_pointers_to_tensor(words, t, 9, NULL));
    REFUSED_VOID(pointers, "output", nvte_convert_pointers_to_tensor(words, t, INT64_MAX, NULL));
    REFUSED_VOID(pointers, "count", nvte_convert_pointers_to_tensor(words, t, -1, NULL));
    REFUSED_VOID(pointers, "count", nvte_convert_pointers_to_tensor(words, t, INT64_MIN, NULL));
    REFUSED("nvtex_malloc", "bytes", nvtex_malloc(SIZE_MAX));
    REFUSED_VOID("nvtex_memcpy_to_device", "dst", nvtex_memcpy_to_device(NULL, host, 64, NULL));
    REFUSED_VOID("nvtex_memcpy_to_device", "src", nvtex_memcpy_to_device(b->ptr, NULL, 64, NULL));
    REFUSED_VOID("nvtex_memcpy_to_device", "bytes",
                 nvtex_memcpy_to_device(b->ptr, host, SIZE_MAX, NULL));
    REFUSED_VOID("nvtex_memcpy_to_host", "dst", nvtex_memcpy_to_host(NULL, b->ptr, 64, NULL));
    REFUSED_VOID("nvtex_memcpy_to_host", "src", nvtex_memcpy_to_host(host, NULL, 64, NULL));
    REFUSED_VOID("nvtex_memcpy_to_host", "bytes",
                 nvtex_memcpy_to_host(host, b->ptr, SIZE_MAX, NULL));
    REFUSED_VOID("nvtex_memcpy_on_device", "dst", nvtex_memcpy_on_device(NULL, b->ptr, 64, NULL));
    REFUSED_VOID("nvtex_memcpy_on_device", "src", nvtex_memcpy_on_device(b->ptr, NULL, 64, NULL));
    REFUSED_VOID("nvtex_memcpy_on_device", "bytes",
                 nvtex_memcpy_on_device(b->ptr, b->ptr, SIZE_MAX, NULL));
    REFUSED("nvtex_set_error_mode", "mode", nvtex_set_error_mode((NVTEXErrorMode)3));
    REFUSED("nvtex_set_error_mode", "mode", nvtex_set_error_mode((NVTEXErrorMode)-1));
  }
}

// ---- Handles of grouped tensors and configs; null and sizes at their setters and getters

// Attention: no object, and one tensor at a time that is none.
static void wrong_attention_handles(void *h, NVTETensor t) {
  REFUSED("nvte_get_fused_attn_backend_v2", "config", nvte_get_fused_attn_backend_v2(h, NULL));
  REFUSED("nvtex_fused_attn_query", "config",
          nvtex_fused_attn_query(h, NVTEX_ATTENTION_FORWARD, NULL, NULL, NULL));
  REFUSED_VOID("nvte_fused_attn_fwd_v2", "params", nvte_fused_attn_fwd_v2(h));
  REFUSED_VOID("nvte_fused_attn_bwd_v2", "params", nvte_fused_attn_bwd_v2(h));
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
      REFUSED_VOID("nvte_fused_attn_fwd", forward[i],
                   nvte_fused_attn_fwd(a[0], a[1], a[2], a[3], a[4], a[5], a[6], &pack, a[7], a[8],
                                       a[9], a[10], a[11], a[12], a[13], 8, 8, true, false, false,
                                       1, 0, layout, none, none, NVTE_NO_BIAS, NVTE_NO_MASK,
                                       NVTE_VANILLA_SOFTMAX, -1, -1, true, t, NULL));
    }
    REFUSED_VOID(
        "nvte_fused_attn_bwd", backward[i],
        nvte_fused_attn_bwd(a[0], a[1], a[2], a[3], a[4], a[5], a[6], &pack, a[7], a[8], a[9],
                            a[10], a[11], a[12], a[13], a[14], a[15], 8, 8, 1, 0, layout, none,
                            none, NVTE_QKV_Layout_NOT_SET, none, none, NVTE_NO_BIAS, NVTE_NO_MASK,
                            NVTE_VANILLA_SOFTMAX, -1, -1, true, false, false, t, NULL));
  }
}

// Numbers of the router, of permutations, of paddings and of the best elements.
static void wrong_routing_numbers(void) {
  if (!case_begin("numbers of mixtures of experts")) return;
  Args a;
  memset(&a, 0, sizeof a);
  build_router(&a);
  static const struct {
    const char *argument;
    int tokens, experts, topk, groups, group_topk, score;
  } kWrong[] = {{"num_tokens", -1, 16, 4, 4, 2, 0},     {"num_experts", 6, 0, 4, 4, 2, 0},
                {"num_experts", 6, -16, 4, 4, 2, 0},    {"topk", 6, 16, 0, 4, 2, 0},
                {"topk", 6, 16, -4, 4, 2, 0},           {"topk", 6, 16, 17, 4, 2, 0},
                {"num_groups", 6, 16, 4, 0, 2, 0},      {"num_groups", 6, 16, 4, 3, 2, 0},
                {"group_topk", 6, 16, 4, 4, 5, 0},      {"group_topk", 6, 16, 4, 4, 3, 0},
                {"group_topk", 6, 16, 16, 8, 4, 0},     {"score_function", 6, 16, 4, 4, 2, 3},
                {"score_function", 6, 16, 4, 4, 2, -1}, {"logits", 7, 16, 4, 4, 2, 0},
                {"logits", 6, 20, 4, 4, 2, 0}};
  for (size_t i = 0; i < COUNT(kWrong); i++) {
    REFUSED_VOID(
        "nvte_fused_topk_with_score_function_forward", kWrong[i].argument,
        nvte_fused_topk_with_score_function_forward(
            a.t[0], kWrong[i].tokens, kWrong[i].experts, kWrong[i].topk, 0, kWrong[i].groups,
            kWrong[i].group_topk, 2, kWrong[i].score, a.t[1], a.t[2], a.t[3], a.t[4], NULL));
  }
  REFUSED_VOID("nvte_fused_topk_with_score_function_forward_v2", "routing_map_format",
               nvte_fused_topk_with_score_function_forward_v2(
                   a.t[0], ROUTED_TOKENS, ROUTED_EXPERTS, ROUTED, 0, 4, 2, 2, 0, a.t[1], a.t[2],
                   a.t[3], (NVTERoutingMapFormat)2, a.t[4], NULL));
  build_permute(&a);
  REFUSED_VOID("nvte_permute", "num_rows",
               nvte_permute(a.t[0], a.t[1], a.t[2], a.t[3], NULL, NULL, NULL, -1, 2, 8, 12, NULL));
  REFUSED_VOID("nvte_permute", "topK",
               nvte_permute(a.t[0], a.t[1], a.t[2], a.t[3], NULL, NULL, NULL, 1 << 20, 1 << 12, 8,
                            12, NULL));
  REFUSED_VOID("nvte_permute", "num_out_tokens",
               nvte_permute(a.t[0], a.t[1], a.t[2], a.t[3], NULL, NULL, NULL, 6, 2, 8, -1, NULL));
  build_padding(&a);
  NVTETensor *outputs = &a.t[2];
  const int32_t few[] = {8, 6}, more[] = {5, 9};
  REFUSED_VOID("nvte_multi_padding", "padded_num_rows_list[1]",
               nvte_multi_padding(2, a.t, outputs, few, NULL));
  REFUSED_VOID("nvte_multi_padding", "input_list", nvte_multi_padding(2, NULL, outputs, few, NULL));
  REFUSED_VOID("nvte_multi_padding", "output_list", nvte_multi_padding(2, a.t, NULL, few, NULL));
  REFUSED_VOID("nvte_multi_padding", "padded_num_rows_list",
               nvte_multi_padding(2, a.t, outputs, NULL, NULL));
  build_unpadding(&a);
  REFUSED_VOID("nvte_multi_unpadding", "unpadded_num_rows_list[1]",
               nvte_multi_unpadding(2, a.t, outputs, more, NULL));
  build_topk(&a);
  REFUSED_VOID("nvte_topk", "batch_size",
               nvte_topk(NULL, a.t[0], a.t[1], a.t[2], a.t[3], a.t[4], -1, 40, 5));
  REFUSED_VOID("nvte_topk", "seq_len",
               nvte_topk(NULL, a.t[0], a.t[1], a.t[2], a.t[3], a.t[4], 3, -40, 5));
  REFUSED_VOID("nvte_topk", "k",
               nvte_topk(NULL, a.t[0], a.t[1], a.t[2], a.t[3], a.t[4], 3, 40, -5));
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
      REFUSED_VOID("nvte_set_quantization_config_attribute", "config",
                   nvte_set_quantization_config_attribute(h, pow2, &flag, 1));
      REFUSED_VOID("nvte_get_quantization_config_attribute", "config",
                   nvte_get_quantization_config_attribute(h, pow2, &flag, 1, &n));
      if (h) {
        REFUSED_VOID("nvte_destroy_quantization_config", "config",
                     nvte_destroy_quantization_config(h));
      }
    }
    if (h != m) {
      REFUSED_VOID("nvte_set_matmul_config_attribute", "config",
                   nvte_set_matmul_config_attribute(h, split, &flag, 1));
      REFUSED_VOID("nvte_get_matmul_config_attribute", "config",
                   nvte_get_matmul_config_attribute(h, split, &flag, 1, &n));
      if (h) REFUSED_VOID("nvte_destroy_matmul_config", "config", nvte_destroy_matmul_config(h));
    }
    if (h != gm) {
      REFUSED_VOID("nvte_set_grouped_matmul_config_attribute", "config",
                   nvte_set_grouped_matmul_config_attribute(h, grouped_split, &flag, 1));
      REFUSED_VOID("nvte_get_grouped_matmul_config_attribute", "config",
                   nvte_get_grouped_matmul_config_attribute(h, grouped_split, &flag, 1, &n));
      if (h) {
        REFUSED_VOID("nvte_destroy_grouped_matmul_config", "config",
                     nvte_destroy_grouped_matmul_config(h));
      }
    }
    if (h != gm && h) {
      REFUSED_VOID("nvte_grouped_gemm", "config",
                   nvte_grouped_gemm(g, 1, g, 0, NULL, g, t, t, t, t, h, NULL));
    }
    if (h != g) {
      REFUSED_VOID("nvte_grouped_gemm", "A",
                   nvte_grouped_gemm(h, 1, g, 0, NULL, g, t, t, t, t, gm, NULL));
      REFUSED_VOID("nvte_grouped_gemm", "B",
                   nvte_grouped_gemm(g, 1, h, 0, NULL, g, t, t, t, t, gm, NULL));
      REFUSED_VOID("nvte_grouped_bias_add", "output", nvte_grouped_bias_add(h, g, NULL));
      REFUSED_VOID("nvte_grouped_bias_add", "bias", nvte_grouped_bias_add(g, h, NULL));
      REFUSED_VOID("nvte_set_grouped_tensor_param", "tensor",
                   nvte_set_grouped_tensor_param(h, swizzled, &flag, 1));
      if (!h) continue;
      REFUSED_VOID("nvte_get_grouped_tensor_param", "tensor",
                   nvte_get_grouped_tensor_param(h, swizzled, &flag, 1, &n));
      REFUSED("nvte_grouped_tensor_num_tensors", "tensor", nvte_grouped_tensor_num_tensors(h));
      REFUSED("nvte_grouped_tensor_type", "tensor", nvte_grouped_tensor_type(h));
      REFUSED("nvte_grouped_tensor_scaling_mode", "tensor", nvte_grouped_tensor_scaling_mode(h));
      REFUSED("nvte_get_grouped_tensor_logical_shape", "tensor",
              nvte_get_grouped_tensor_logical_shape(h).ndim);
      REFUSED_VOID("nvte_destroy_grouped_tensor", "tensor", nvte_destroy_grouped_tensor(h));
    }
  }
  if (case_begin("sizes and null buffers")) {
    NVTEBasicTensor b = basic(NULL, kNVTEFloat32, SHAPE(0));
    REFUSED_VOID("nvte_set_tensor_param_v2", "size_in_bytes",
                 nvte_set_tensor_param_v2(t, kNVTEAmax, &b, sizeof b - 1));
    REFUSED_VOID("nvte_set_tensor_param_v2", "size_in_bytes",
                 nvte_set_tensor_param_v2(t, kNVTENVFP4E4M3Max, &b, 3));
    REFUSED_VOID("nvte_set_tensor_param_v2", "buf",
                 nvte_set_tensor_param_v2(t, kNVTEAmax, NULL, sizeof b));
    REFUSED_VOID("nvte_get_tensor_param_v2", "size_in_bytes",
                 nvte_get_tensor_param_v2(t, kNVTEAmax, &b, 0, &n));
    REFUSED_VOID("nvte_set_tensor_param", "tensor", nvte_set_tensor_param(NULL, kNVTEAmax, &b));
    REFUSED_VOID("nvte_set_tensor_param", "param", nvte_set_tensor_param(&t, kNVTEAmax, NULL));
    REFUSED_VOID("nvte_set_grouped_tensor_param", "size_in_bytes",
                 nvte_set_grouped_tensor_param(g, kNVTEGroupedAmax, &b, 8));
    REFUSED_VOID("nvte_set_grouped_tensor_param", "buf",
                 nvte_set_grouped_tensor_param(g, kNVTEGroupedAmax, NULL, sizeof b));
    REFUSED_VOID("nvte_set_grouped_tensor_param", "buf",
                 nvte_set_grouped_tensor_param(g, kNVTEGroupedFirstDims, &b, sizeof b));
    REFUSED_VOID("nvte_get_grouped_tensor_param", "size_in_bytes",
                 nvte_get_grouped_tensor_param(g, kNVTEGroupedAmax, &b, 143, &n));
    REFUSED_VOID("nvte_set_quantization_config_attribute", "size_in_bytes",
                 nvte_set_quantization_config_attribute(q, pow2, &flag, 0));
    REFUSED_VOID("nvte_set_quantization_config_attribute", "buf",
                 nvte_set_quantization_config_attribute(q, pow2, NULL, 1));
    REFUSED_VOID("nvte_get_quantization_config_attribute", "size_in_bytes",
                 nvte_get_quantization_config_attribute(q, pow2, &flag, 0, &n));
    flag = 3;
    REFUSED_VOID("nvte_set_quantization_config_attribute", "buf",
                 nvte_set_quantization_config_attribute(q, kNVTEQuantizationConfigNVFP44Over6Mode,
                                                        &flag, 1));
    REFUSED_VOID("nvte_set_matmul_config_attribute", "size_in_bytes",
                 nvte_set_matmul_config_attribute(m, kNVTEMatmulConfigSMCount, &b, 3));
    REFUSED_VOID("nvte_set_matmul_config_attribute", "buf",
                 nvte_set_matmul_config_attribute(m, split, NULL, 1));
    REFUSED_VOID("nvte_get_matmul_config_attribute", "size_in_bytes",
                 nvte_get_matmul_config_attribute(m, split, &flag, 0, &n));
    REFUSED_VOID("nvte_get_matmul_config_attribute", "size_written",
                 nvte_get_matmul_config_attribute(m, split, &flag, 1, NULL));
    REFUSED_VOID("nvte_set_grouped_matmul_config_attribute", "size_in_bytes",
                 nvte_set_grouped_matmul_config_attribute(gm, kNVTEGroupedMatmulConfigAvgM, &b, 7));
    REFUSED_VOID("nvte_set_grouped_matmul_config_attribute", "buf",
                 nvte_set_grouped_matmul_config_attribute(gm, grouped_split, NULL, 1));
    REFUSED_VOID("nvte_get_grouped_matmul_config_attribute", "size_in_bytes",
                 nvte_get_grouped_matmul_config_attribute(gm, grouped_split, &flag, 0, &n));
    REFUSED_VOID("nvte_get_grouped_matmul_config_attribute", "size_written",
                 nvte_get_grouped_matmul_config_attribute(gm, grouped_split, &flag, 1, NULL));
    // A field whose dtype is not Float32 is no float pointer.
    b = basic(&flag, kNVTEInt32, SHAPE(1));
    nvte_set_tensor_param_v2(t, kNVTEAmax, &b, sizeof b);
    nvte_set_tensor_param_v2(t, kNVTEScale, &b, sizeof b);
    REFUSED("nvte_tensor_amax", "tensor", nvte_tensor_amax(t));
    REFUSED("nvte_tensor_scale", "tensor", nvte_tensor_scale(t));
    b = basic(NULL, kNVTEFloat4E2M1, SHAPE(2));
    nvte_set_tensor_param_v2(t, kNVTERowwiseData, &b, sizeof b);
    REFUSED("nvte_tensor_element_size", "tensor", nvte_tensor_element_size(t));
  }
  case_end();
  nvte_destroy_quantization_config(q);
  nvte_destroy_matmul_config(m);
  nvte_destroy_grouped_matmul_config(gm);
  nvte_destroy_grouped_tensor(g);
  nvte_destroy_tensor(t);
  EXPECT_OK();
}

// ---- Memory: outputs that declare fewer bytes than are written, and outputs that overlap

// A tensor from a byte of a buffer on.
#define AT(b, byte, dtype, ...) tensor((b)->ptr + (byte), dtype, SHAPE(__VA_ARGS__))

static void wrong_byte_counts(void) {
  const NVTEDType f32 = kNVTEFloat32, bf16 = kNVTEBFloat16, e4m3 = kNVTEFloat8E4M3;
  if (!case_begin("outputs of too few bytes")) return;
  // Each tensor ends where it says; the bytes behind it are guards.
  NVTETensor none = empty_tensor(), x = AT(buffer(256), 0, f32, 8, 8);
  NVTETensor y = AT(buffer(256), 0, f32, 8, 8), inter = AT(buffer(256), 0, f32, 8, 8);
  NVTETensor short_y = AT(buffer(128), 0, bf16, 8, 8), fp8 = AT(buffer(64), 0, e4m3, 8, 8);
  NVTETensor map = AT(buffer(64), 0, kNVTEByte, 8, 8), ints = AT(buffer(256), 0, kNVTEInt32, 8, 8);
  NVTETensor half_map = AT(buffer(32), 0, kNVTEFloat4E2M1, 8, 8);
  NVTETensor work = AT(buffer(1 << 18), 0, kNVTEByte, 1 << 18);

  REFUSED_VOID("nvte_topk", "indices_out.shape",
               nvte_topk(NULL, x, none, y, short_y, work, 8, 8, 8));
  REFUSED_VOID("nvte_topk", "keys_out.shape",
               nvte_topk(NULL, x, none, short_y, ints, work, 8, 8, 8));

#define ROUTER(logits, probs, map, inter)                                                       \
  nvte_fused_topk_with_score_function_forward(logits, 8, 8, 2, 0, 0, 0, 1, 0, none, probs, map, \
                                              inter, NULL)
  const char *router = "nvte_fused_topk_with_score_function_forward";
  REFUSED_VOID(router, "probs.shape", ROUTER(x, short_y, map, inter));
  REFUSED_VOID(router, "intermediate_output.shape", ROUTER(x, y, map, fp8));
  REFUSED_VOID(router, "routing_map.shape", ROUTER(x, y, half_map, inter));
#undef ROUTER
  const char *back = "nvte_fused_topk_with_score_function_backward";
  REFUSED_VOID(
      back, "intermediate_output.shape",
      nvte_fused_topk_with_score_function_backward(map, short_y, x, 8, 8, 2, 0, 1, 0, y, NULL));
  REFUSED_VOID(
      back, "grad_probs.shape",
      nvte_fused_topk_with_score_function_backward(map, inter, short_y, 8, 8, 2, 0, 1, 0, y, NULL));
  const char *score = "nvte_fused_score_for_moe_aux_loss_forward";
  REFUSED_VOID(score, "scores.shape",
               nvte_fused_score_for_moe_aux_loss_forward(x, 8, 8, 2, 0, fp8, map, inter, NULL));
  REFUSED_VOID(score, "intermediate_output.shape",
               nvte_fused_score_for_moe_aux_loss_forward(x, 8, 8, 2, 0, y, map, short_y, NULL));
  NVTETensor counts = AT(buffer(32), 0, kNVTEInt32, 8), loss = AT(buffer(4), 0, f32, 1);
  NVTETensor short_loss = AT(buffer(2), 0, bf16, 1), short_pair = AT(buffer(4), 0, bf16, 2);
  const char *aux = "nvte_fused_moe_aux_loss_forward";
  REFUSED_VOID(aux, "aux_loss.shape",
               nvte_fused_moe_aux_loss_forward(x, counts, 8, 8, 8, 8, 2, 1, short_loss, y, NULL));
  REFUSED_VOID(
      aux, "Const_buf.shape",
      nvte_fused_moe_aux_loss_forward(x, counts, 8, 8, 8, 8, 2, 1, loss, short_pair, NULL));
  REFUSED_VOID("nvte_fused_moe_aux_loss_backward", "grad_probs.shape",
               nvte_fused_moe_aux_loss_backward(y, counts, 8, 8, loss, short_y, NULL));

  // Rows of codes so far apart that their product with the rows does not fit 64 bits.
  NVTETensor in = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  NVTETensor out = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  Buffer *data = buffer(128 * 128), *codes = buffer(1024);
  set_param(in, kNVTERowwiseData, data->ptr, e4m3, SHAPE(128, 128));
  set_param(in, kNVTERowwiseScaleInv, codes->ptr, kNVTEFloat8E8M0, SHAPE(1, (size_t)1 << 57));
  set_param(out, kNVTEColumnwiseData, buffer(128 * 128)->ptr, e4m3, SHAPE(128, 128));
  set_param(out, kNVTERowwiseScaleInv, buffer(512)->ptr, kNVTEFloat8E8M0, SHAPE(128, 4));
  set_param(out, kNVTEColumnwiseScaleInv, buffer(512)->ptr, kNVTEFloat8E8M0, SHAPE(4, 128));
  NVTETensor offsets = AT(buffer(16), 0, kNVTEInt64, 2);
  REFUSED_VOID("nvte_group_requantize", "input.scale_inv.shape",
               nvte_group_requantize(in, out, offsets, NULL, NULL, NULL));

  // Sorting takes what the first call asks for.
  size_t given = 0;
  unsigned char *storage = buffer(256)->ptr;
  int *numbers[4];
  for (size_t i = 0; i < 4; i++) numbers[i] = (int *)buffer(64)->ptr;
  REFUSED_VOID("nvte_device_radix_sort_pairs", "temp_storage_bytes",
               nvte_device_radix_sort_pairs(storage, &given, numbers[0], numbers[1], numbers[2],
                                            numbers[3], 16));
}

static void wrong_strides(void) {
  if (!case_begin("strides of partial casts")) return;
  const NVTEDType f32 = kNVTEFloat32;
  NVTETensor x = AT(buffer(256 * 128 * 4), 0, f32, 256 * 128), two = AT(buffer(8), 0, f32, 2, 1);
  NVTETensor out = AT(buffer(256 * 128), 0, kNVTEByte, 256 * 128);
  const struct {
    size_t h, w;
    const char *amax;
  } strides[] = {{2, 1, "amax.shape"},        {40, 1, "amax.shape"},
                 {SIZE_MAX, 1, "amax.shape"}, {SIZE_MAX / 2 + 1, SIZE_MAX, "amax.shape"},
                 {0, 0, "amax_stride_h"},     {0, 1, "amax_stride_h"}};
  for (size_t i = 0; i < COUNT(strides); i++) {
    const size_t h = strides[i].h, w = strides[i].w;
    REFUSED_VOID("nvte_fp8_block_scaling_compute_partial_amax", strides[i].amax,
                 nvte_fp8_block_scaling_compute_partial_amax(x, two, 256, 128, h, w, 0, 128, NULL));
    // Scales are only read: blocks may share one.
    if (h == 0) continue;
    REFUSED_VOID("nvte_fp8_block_scaling_partial_cast", "scale.shape",
                 nvte_fp8_block_scaling_partial_cast(x, out, two, 256, 128, h, w, 0, 128,
                                                     kNVTEFloat8E4M3, NULL));
  }
  // 16 x 8 blocks of 16 x 16.
  NVTETensor all = AT(buffer(128 * 4), 0, f32, 128), one = AT(buffer(4), 0, f32, 1);
  NVTETensor packed = AT(buffer(256 * 64), 0, kNVTEByte, 256 * 64);
  const char *amax = "nvte_nvfp4_2d_compute_partial_amax";
  REFUSED_VOID(amax, "amax.shape",
               nvte_nvfp4_2d_compute_partial_amax(x, all, 256, 128, 9, 1, 0, 16, NULL));
  REFUSED_VOID(amax, "amax.shape",
               nvte_nvfp4_2d_compute_partial_amax(x, all, 256, 128, 8, SIZE_MAX / 7, 0, 16, NULL));
  REFUSED_VOID(amax, "amax_stride_h",
               nvte_nvfp4_2d_compute_partial_amax(x, all, 256, 128, 7, 1, 0, 16, NULL));
  REFUSED_VOID("nvte_nvfp4_2d_partial_cast", "scale.shape",
               nvte_nvfp4_2d_partial_cast(x, packed, all, one, 256, 128, 9, 1, 0, 16, NULL));
}

static void wrong_overlaps(void) {
  if (!case_begin("outputs that overlap")) return;
  const NVTEDType f32 = kNVTEFloat32, bf16 = kNVTEBFloat16, e4m3 = kNVTEFloat8E4M3;
  NVTETensor none = empty_tensor();
  Buffer *b = buffer(1 << 16);  // where things meet
  NVTETensor x = AT(b, 0, f32, 8, 8), shifted = AT(b, 4, f32, 8, 8), y = AT(b, 512, f32, 8, 8);
  NVTETensor inter = AT(b, 1024, f32, 8, 8), ints = AT(b, 1536, kNVTEInt32, 8, 8);
  NVTETensor map = AT(b, 2048, kNVTEByte, 8, 8);
  Buffer *w = buffer(1 << 18);
  NVTETensor work = AT(w, 0, kNVTEByte, 1 << 18), keys = AT(w, 64, f32, 8, 8);
  NVTETensor one = AT(b, 2304, f32, 1), flag = AT(b, 2308, kNVTEInt32, 1);

  REFUSED_VOID("nvte_topk", "keys_out.data", nvte_topk(NULL, x, none, x, ints, work, 8, 8, 4));
  REFUSED_VOID("nvte_topk", "indices_out.data",
               nvte_topk(NULL, x, none, y, AT(b, 516, kNVTEInt32, 8, 8), work, 8, 8, 4));
  REFUSED_VOID("nvte_topk", "workspace.data", nvte_topk(NULL, keys, none, y, ints, work, 8, 8, 4));
  const char *router = "nvte_fused_topk_with_score_function_forward";
  REFUSED_VOID(router, "intermediate_output.data",
               nvte_fused_topk_with_score_function_forward(x, 8, 8, 2, 0, 0, 0, 1, 0, none, y, map,
                                                           y, NULL));
  REFUSED_VOID(router, "routing_map.data",
               nvte_fused_topk_with_score_function_forward(
                   x, 8, 8, 2, 0, 0, 0, 1, 0, none, y, AT(b, 255, kNVTEByte, 8, 8), inter, NULL));
  REFUSED_VOID(
      "nvte_fused_topk_with_score_function_backward", "grad_logits.data",
      nvte_fused_topk_with_score_function_backward(map, inter, x, 8, 8, 2, 0, 1, 0, shifted, NULL));
  REFUSED_VOID("nvte_permute", "output.data",
               nvte_permute(x, shifted, ints, AT(b, 1792, kNVTEInt32, 8), NULL, NULL, NULL, 8, 1, 8,
                            8, NULL));
  REFUSED_VOID("nvte_permute", "row_id_map.data",
               nvte_permute(x, y, ints, ints, NULL, NULL, NULL, 8, 1, 8, 8, NULL));
  REFUSED_VOID("nvte_unpermute", "output.data", nvte_unpermute(x, x, ints, NULL, 8, 1, 8, NULL));
  size_t given = SIZE_MAX;
  int *numbers = (int *)b->ptr;
  REFUSED_VOID("nvte_device_radix_sort_pairs", "keys_out",
               nvte_device_radix_sort_pairs(w->ptr, &given, numbers, numbers + 15, numbers + 32,
                                            numbers + 64, 16));

  REFUSED_VOID("nvte_transpose", "transposed_output.data", nvte_transpose(x, x, NULL));
  REFUSED_VOID("nvte_swap_first_dims", "output.data", nvte_swap_first_dims(x, x, NULL));
  REFUSED_VOID("nvte_swap_first_dims", "output.data",
               nvte_swap_first_dims(x, AT(b, 252, f32, 8, 8), NULL));
  NVTETensor ins[] = {x, y}, outs[] = {inter, AT(b, 516, f32, 8, 12)};
  REFUSED_VOID("nvte_multi_tensor_pad_last_dim", "outputs[1]",
               nvte_multi_tensor_pad_last_dim(ins, outs, 2, NULL));
  int32_t rows[] = {8, 8};
  outs[1] = AT(b, 640, f32, 8, 8);
  REFUSED_VOID("nvte_multi_padding", "output_list[1].data",
               nvte_multi_padding(2, ins, outs, rows, NULL));
  REFUSED_VOID("nvte_nvfp4_data_transpose", "output.data",
               nvte_nvfp4_data_transpose(map, AT(b, 2048, kNVTEByte, 16, 4), NULL));

  REFUSED_VOID(
      "nvte_scaled_softmax_forward", "softmax_results.data",
      nvte_scaled_softmax_forward(AT(b, 0, f32, 1, 1, 8, 8), AT(b, 32, f32, 1, 1, 8, 8), 1, NULL));
  NVTETensor rng = AT(buffer_from((const int64_t[]){1, 0}, 16, 0), 0, kNVTEInt64, 2);
  REFUSED_VOID("nvte_dropout_fwd", "output",
               nvte_dropout_fwd(x, shifted, AT(b, 3000, kNVTEByte, 8), rng, 0.5f, NULL));
  REFUSED_VOID("nvte_dropout_fwd", "mask",
               nvte_dropout_fwd(x, y, AT(b, 8, kNVTEByte, 8), rng, 0.5f, NULL));

  NVTETensor *scaled[] = {&x, &shifted};
  REFUSED_VOID("nvte_multi_tensor_scale_cuda", "tensor_lists[1][0].data",
               nvte_multi_tensor_scale_cuda(64, flag, scaled, 2, 1, 2, NULL));
  NVTETensor g = AT(b, 4096, bf16, 64), p = AT(b, 4352, bf16, 64), m = AT(b, 4608, f32, 64);
  NVTETensor v = AT(b, 5120, f32, 64), low = AT(b, 4352, kNVTEInt16, 64);
  NVTETensor *halves[] = {&g, &p, &m, &v, &low};
  REFUSED_VOID("nvte_multi_tensor_adam_param_remainder_cuda", "tensor_lists[4][0].data",
               nvte_multi_tensor_adam_param_remainder_cuda(64, flag, halves, 5, 1, 1e-3f, 0.9f,
                                                           0.99f, 1e-8f, 1, 1, 1, 0, NULL));

  NVTETensor gamma = AT(b, 6144, f32, 8), rsigma = AT(b, 6208, f32, 8);
  REFUSED_VOID("nvte_rmsnorm_fwd", "z.data",
               nvte_rmsnorm_fwd(x, gamma, 1e-5f, shifted, rsigma, work, 1, false, NULL));
  REFUSED_VOID("nvte_rmsnorm_fwd", "rsigma",
               nvte_rmsnorm_fwd(x, gamma, 1e-5f, y, AT(b, 512, f32, 8), work, 1, false, NULL));
  REFUSED_VOID(
      "nvte_rmsnorm_bwd", "dgamma",
      nvte_rmsnorm_bwd(x, y, rsigma, gamma, inter, AT(b, 1024, f32, 8), work, 1, false, NULL));

  REFUSED_VOID("nvte_gelu", "output.data", nvte_gelu(x, shifted, NULL));
  REFUSED_VOID("nvte_dgelu", "output.data", nvte_dgelu(y, x, shifted, NULL));
  REFUSED_VOID("nvte_geglu", "output.data", nvte_geglu(x, AT(b, 0, f32, 8, 4), NULL));
  REFUSED_VOID("nvte_dgeglu", "output.data", nvte_dgeglu(AT(b, 512, f32, 8, 4), x, x, NULL));
  REFUSED_VOID(
      "nvte_scaled_swiglu", "output",
      nvte_scaled_swiglu(AT(b, 0, f32, 8, 64), AT(b, 8192, f32, 8), AT(b, 0, f32, 8, 32), 0, NULL));
  NVTETensor cast = empty_tensor();
  set_param(cast, kNVTERowwiseData, b->ptr + 512, e4m3, SHAPE(8, 8));
  set_param(cast, kNVTERowwiseScaleInv, b->ptr + 2304, f32, SHAPE(1));
  set_param(cast, kNVTEColumnwiseScaleInv, b->ptr + 2304, f32, SHAPE(1));
  set_param(cast, kNVTEColumnwiseData, b->ptr + 512, e4m3, SHAPE(8, 8));
  REFUSED_VOID("nvte_quantize", "output.columnwise_data", nvte_quantize(x, cast, NULL));
  set_param(cast, kNVTEColumnwiseData, b->ptr + 255, e4m3, SHAPE(8, 8));
  REFUSED_VOID("nvte_quantize", "output.columnwise_data", nvte_quantize(x, cast, NULL));
  REFUSED_VOID("nvte_dequantize", "output.data",
               nvte_dequantize(cast, AT(b, 512, f32, 8, 8), NULL));
  NVTETensor blocks = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  set_param(blocks, kNVTERowwiseData, b->ptr + 512, e4m3, SHAPE(8, 8));
  set_param(blocks, kNVTERowwiseScaleInv, b->ptr + 192, kNVTEFloat8E8M0, SHAPE(128, 4));
  REFUSED_VOID("nvte_quantize", "output.scale_inv", nvte_quantize(x, blocks, NULL));
  NVTETensor swizzled = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  const unsigned char yes = 1;
  nvte_set_tensor_param_v2(swizzled, kNVTEWithGEMMSwizzledScales, &yes, 1);
  set_param(swizzled, kNVTERowwiseData, NULL, e4m3, SHAPE(8, 8));
  set_param(swizzled, kNVTERowwiseScaleInv, b->ptr + 200, kNVTEFloat8E8M0, SHAPE(128, 4));
  REFUSED_VOID("nvte_swizzle_scaling_factors", "output.scale_inv",
               nvte_swizzle_scaling_factors(blocks, swizzled, NULL));
  REFUSED_VOID("nvte_hadamard_transform", "output.data",
               nvte_hadamard_transform(AT(b, 0, bf16, 16, 16), AT(b, 2, bf16, 16, 16), 0, 0, NULL));
  REFUSED_VOID("nvte_nvfp4_compute_global_scale", "global_scale",
               nvte_nvfp4_compute_global_scale(x, shifted, NULL));
  REFUSED_VOID("nvte_nvfp4_compute_per_block_scale", "scale",
               nvte_nvfp4_compute_per_block_scale(x, shifted, one, NULL));
  REFUSED_VOID("nvte_fp8_block_scaling_compute_partial_amax", "amax",
               nvte_fp8_block_scaling_compute_partial_amax(x, AT(b, 128, f32, 1, 1), 8, 8, 1, 1, 0,
                                                           128, NULL));
}

int main(int argc, char **argv) {
  setenv("NVTE_VERBOSE", "none", 0);  // two thousand messages that are expected
  test_begin(argc, argv);
  g_basic = basic(NULL, kNVTEFloat32, SHAPE(0));
  for (size_t i = 0; i < COUNT(kOps); i++) run_op(&kOps[i]);
  wrong_destroyed_handles();
  wrong_recipe_values();
  wrong_gemm_values();
  wrong_offsets_values();
  wrong_basic_tensors();
  wrong_counts();
  wrong_numbers();
  wrong_routing_numbers();
  wrong_config_handles();
  wrong_byte_counts();
  wrong_strides();
  wrong_overlaps();
  printf("%u wrong calls refused\n", g_refused);
  return test_end();
}
