// Wrong arguments of the operators: tables of what may be wrong with each tensor and handle of a
// valid call, one thing at a time, and calls with wrong numbers.
#define _POSIX_C_SOURCE 200809L
#include <limits.h>

#include "refusals.h"

// ---- Operators on tensors: valid arguments, of which one thing at a time is spoilt

enum { MAX_HANDLES = 8 };

typedef struct Args {
  NVTETensor t[MAX_HANDLES];
  void *config;
} Args;

// What may be wrong with a parameter of a tensor: one bit each, of which a row of a table holds a
// set.
#define BIT(n) (UINT64_C(1) << (n))
#define NULL_POINTER BIT(0)  // of data that has elements
#define MISALIGNED BIT(1)    // by one byte
#define UNSET BIT(2)         // as on a new tensor
#define LONGER BIT(3)        // first dimension + 1
#define FLAT BIT(4)          // one dimension
#define RANK_3 BIT(5)        // a leading 1
#define SCALAR BIT(6)        // a pointer to one float where there was nothing
#define NARROWER BIT(7)      // last dimension - 1
#define WIDER BIT(8)         // last dimension + 1
#define NO_MODE BIT(9)       // the scaling mode is NVTE_INVALID_SCALING
#define MODE(mode) BIT(16 + (mode))
#define DTYPE(dtype) BIT(32 + (dtype))

#define MISSING (NULL_POINTER | UNSET)
#define INTEGERS                                                                  \
  (DTYPE(kNVTEByte) | DTYPE(kNVTEInt16) | DTYPE(kNVTEInt32) | DTYPE(kNVTEInt64) | \
   DTYPE(kNVTEFloat8E8M0) | DTYPE(kNVTEFloat4E2M1))
#define FP8 (DTYPE(kNVTEFloat8E4M3) | DTYPE(kNVTEFloat8E5M2))
// Wrong forms of what must hold one Float32.
#define NO_FLOAT (LONGER | MISALIGNED | DTYPE(kNVTEFloat16) | DTYPE(kNVTEInt32))
#define OTHER_MODES                                                                          \
  (MODE(NVTE_MXFP8_1D_SCALING) | MODE(NVTE_BLOCK_SCALING_1D) | MODE(NVTE_BLOCK_SCALING_2D) | \
   NO_MODE)

typedef struct Wrong {
  const char *argument;  // the message goes on with this after the function's name
  int handle;
  NVTETensorParam param;
  uint64_t changes;
} Wrong;

// A question mark behind the name of a handle or of the config says that it may be null.
typedef struct Op {
  const char *function, *variant;
  void (*build)(Args *);
  void (*call)(const Args *);
  const Wrong *wrongs;
  size_t num_wrongs;
  const char *handles[MAX_HANDLES];
  const char *config;
  bool config_of_matmul;
} Op;

#define WRONGS(array) array, COUNT(array)

// Makes the change of one bit.
static void spoil(Args *args, const Wrong *w, uint64_t change) {
  NVTETensor t = args->t[w->handle];
  NVTEBasicTensor b = nvte_get_tensor_param(t, w->param);
  int mode = NVTE_INVALID_SCALING;
  for (int m = 0; m < 16; m++) mode = change == MODE(m) ? m : mode;
  for (int d = 0; d < 32; d++) b.dtype = change == DTYPE(d) ? (NVTEDType)d : b.dtype;
  if (change == NULL_POINTER) b.data_ptr = NULL;
  if (change == MISALIGNED) b.data_ptr = (unsigned char *)b.data_ptr + 1;
  if (change == UNSET) b = basic(NULL, kNVTEFloat32, SHAPE(0));
  if (change == LONGER) b.shape.data[0]++;
  if (change == FLAT) b.shape = SHAPE(numel(b.shape));
  if (change == RANK_3) b.shape = SHAPE(1, rows_of(b.shape), cols_of(b.shape));
  if (change == NARROWER) b.shape.data[b.shape.ndim - 1]--;
  if (change == WIDER) b.shape.data[b.shape.ndim - 1]++;
  if (change == SCALAR) b = basic(buffer_float(1)->ptr, kNVTEFloat32, SHAPE(1));
  if (change == NO_MODE || mode != NVTE_INVALID_SCALING) {
    args->t[w->handle] = tensor_of_mode((NVTEScalingMode)mode);
    for (int p = kNVTERowwiseData; p <= kNVTEColumnwiseAmax; p++) {
      b = nvte_get_tensor_param(t, (NVTETensorParam)p);
      nvte_set_tensor_param_v2(args->t[w->handle], (NVTETensorParam)p, &b, sizeof b);
    }
  } else {
    nvte_set_tensor_param_v2(t, w->param, &b, sizeof b);
  }
}

static Args built(const Op *op) {
  Args args = {0};
  op->build(&args);
  return args;
}

static void call_refused(const Op *op, const Args *args, const char *argument, const char *what) {
  before_call();
  op->call(args);
  after_call(__FILE__, __LINE__, op->function, argument, what);
}

// The name without its question mark; whether null is wrong too.
static bool needed(const char *name, char *without, size_t size) {
  snprintf(without, size, "%.*s", (int)strcspn(name, "?"), name);
  return !strchr(name, '?');
}

static void run_op(const Op *op) {
  char what[200], name[64];
  if (case_begin("%s%s valid", op->function, op->variant)) {
    Args args = built(op);
    op->call(&args);
    EXPECT_OK();  // what is spoilt below is right before
  }
  for (size_t w = 0; w < op->num_wrongs; w++) {
    const Wrong *wrong = &op->wrongs[w];
    for (unsigned bit = 0; bit < 64; bit++) {
      if (!(wrong->changes & BIT(bit))) continue;
      if (!case_begin("%s%s %s row %zu, change %u", op->function, op->variant, wrong->argument, w,
                      bit))
        continue;
      Args args = built(op);
      spoil(&args, wrong, BIT(bit));
      snprintf(what, sizeof what, "parameter %d, change %u", (int)wrong->param, bit);
      call_refused(op, &args, wrong->argument, what);
    }
  }
  for (int h = 0; h < MAX_HANDLES && op->handles[h]; h++) {
    for (int k = needed(op->handles[h], name, sizeof name) ? -1 : 0; k < BAD_HANDLES; k++) {
      const char *handle = "null";
      if (!case_begin("%s%s %s handle %d", op->function, op->variant, name, k)) continue;
      Args args = built(op);
      args.t[h] = k < 0 ? NULL : bad_handle(k, false, &handle);
      call_refused(op, &args, name, handle);
    }
  }
  if (!op->config) return;
  for (int k = needed(op->config, name, sizeof name) ? -1 : 0; k < BAD_HANDLES; k++) {
    if (k == 0 && op->config_of_matmul) continue;  // a stale handle of the other kind
    const char *handle = "null";
    if (!case_begin("%s%s %s handle %d", op->function, op->variant, name, k)) continue;
    Args args = built(op);
    args.config = k < 0 ? NULL : bad_handle(k, true, &handle);
    call_refused(op, &args, name, handle);
  }
}

#define ROW kNVTERowwiseData
#define COL kNVTEColumnwiseData
#define SCALE kNVTEScale
#define AMAX kNVTEAmax
#define INV kNVTERowwiseScaleInv
#define COL_INV kNVTEColumnwiseScaleInv

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

#define CAST_WRONGS                                                                       \
  {"input.data", 0, ROW, MISSING | MISALIGNED},                                           \
      {"input", 0, ROW, INTEGERS | OTHER_MODES | DTYPE(kNVTEFloat8E4M3)},                 \
      {"input.scale", 0, SCALE, SCALAR}, {"input.scale_inv", 0, INV, SCALAR},             \
      {"output.data", 1, ROW, NULL_POINTER | LONGER | FLAT | RANK_3},                     \
      {"output.columnwise_data", 1, COL, NULL_POINTER | LONGER | DTYPE(kNVTEFloat8E5M2)}, \
      {"output", 1, ROW, INTEGERS | OTHER_MODES},                                         \
      {"output.scale_inv", 1, INV, MISSING | NO_FLOAT},                                   \
      {"output.columnwise_scale_inv", 1, COL_INV, MISSING | NO_FLOAT},                    \
      {"output.amax", 1, AMAX, NO_FLOAT}, {"output.scale", 1, SCALE, NO_FLOAT}, {         \
    "output.scaling_mode", 1, ROW, NO_MODE                                                \
  }

static const Wrong kCastWrongs[] = {CAST_WRONGS,
                                    {"output.data.dtype", 1, ROW, MODE(NVTE_NVFP4_1D_SCALING)}};
static const Wrong kCastNoopWrongs[] = {CAST_WRONGS,
                                        {"output.data.dtype", 1, ROW, MODE(NVTE_NVFP4_1D_SCALING)},
                                        {"noop", 2, ROW, NO_FLOAT}};
static const Wrong kCastConfigWrongs[] = {
    CAST_WRONGS,
    {"output.data.dtype", 1, ROW, MODE(NVTE_NVFP4_1D_SCALING)},
    {"quant_config", 2, ROW, NO_FLOAT}};
static const Wrong kCastTransposeNoopWrongs[] = {
    CAST_WRONGS,
    {"output.scaling_mode", 1, ROW, MODE(NVTE_NVFP4_1D_SCALING)},
    {"noop", 2, ROW, NO_FLOAT}};
static const Wrong kCastTransposeWrongs[] = {
    CAST_WRONGS,
    {"output.scaling_mode", 1, ROW, MODE(NVTE_NVFP4_1D_SCALING)},
    {"output.data", 1, ROW, UNSET},
    {"output.columnwise_data", 1, COL, UNSET},
    {"output.columnwise_scale_inv", 1, COL_INV, SCALAR}};
static const Wrong kHighWrongs[] = {{"output.scale", 1, SCALE, SCALAR},
                                    {"output.scale_inv", 1, INV, SCALAR},
                                    {"output.columnwise_scale_inv", 1, COL_INV, SCALAR},
                                    {"output.data", 1, ROW, MISALIGNED | NULL_POINTER},
                                    {"output", 1, ROW, INTEGERS | UNSET}};

static void build_dequantize(Args *args) {
  args->t[0] = random_tensor(kNVTEFloat8E4M3, SHAPE(16, 32));
  set_param(args->t[0], INV, buffer_float(2)->ptr, kNVTEFloat32, SHAPE(1));
  args->t[1] = tensor(buffer(16 * 32 * 2)->ptr, kNVTEFloat16, SHAPE(16, 32));
}
static void call_dequantize(const Args *args) { nvte_dequantize(args->t[0], args->t[1], NULL); }

static const Wrong kDequantizeWrongs[] = {
    {"input", 0, ROW,
     MISSING | INTEGERS | DTYPE(kNVTEBFloat16) | MODE(NVTE_BLOCK_SCALING_1D) |
         MODE(NVTE_BLOCK_SCALING_2D)},
    {"input.scale_inv", 0, INV, MISSING | NO_FLOAT},
    {"input.data.dtype", 0, ROW, MODE(NVTE_NVFP4_1D_SCALING)},
    {"input.scaling_mode", 0, ROW, NO_MODE},
    {"output.data", 1, ROW, MISSING | MISALIGNED | LONGER | FLAT},
    {"output", 1, ROW, INTEGERS | DTYPE(kNVTEFloat8E5M2)},
    {"output.scale", 1, SCALE, SCALAR},
    {"output.scale_inv", 1, INV, SCALAR}};

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
#define SCALE_MATRIX(argument, handle, param)                                  \
  {argument, handle, param, MISSING},                                          \
      {argument ".shape", handle, param, LONGER | NARROWER | FLAT | RANK_3}, { \
    argument ".dtype", handle, param,                                          \
        DTYPE(kNVTEFloat16) | DTYPE(kNVTEInt32) | DTYPE(kNVTEFloat8E4M3)       \
  }
#define BLOCK_WRONGS                                                        \
  {"input.data", 0, ROW, MISSING},                                          \
      {"input", 0, ROW, INTEGERS | OTHER_MODES | DTYPE(kNVTEFloat8E4M3)},   \
      {"output.data", 1, ROW, NULL_POINTER | LONGER | FLAT},                \
      {"output.columnwise_data", 1, COL, NULL_POINTER},                     \
      {"output.columnwise_data.shape", 1, COL, LONGER},                     \
      {"output.columnwise_data.dtype", 1, COL, DTYPE(kNVTEFloat8E5M2)},     \
      {"output", 1, ROW, INTEGERS | MODE(NVTE_DELAYED_TENSOR_SCALING)},     \
      {"output.dtype", 1, ROW, DTYPE(kNVTEFloat32) | DTYPE(kNVTEBFloat16)}, \
      SCALE_MATRIX("output.scale_inv", 1, INV),                             \
      SCALE_MATRIX("output.columnwise_scale_inv", 1, COL_INV),              \
      {"output.data.dtype", 1, ROW, MODE(NVTE_NVFP4_1D_SCALING)}, {         \
    "output.scaling_mode", 1, ROW, NO_MODE                                  \
  }
#define FLOAT_BLOCK_WRONGS                                                             \
  BLOCK_WRONGS, {"output.scale_inv", 1, INV, MISALIGNED},                              \
      {"output.columnwise_scale_inv", 1, COL_INV, MISALIGNED},                         \
      {"output.scale_inv.dtype", 1, INV, DTYPE(kNVTEFloat8E8M0) | DTYPE(kNVTEByte)}, { \
    "output", 1, ROW, MODE(NVTE_MXFP8_1D_SCALING)                                      \
  }

static const Wrong kBlocksWrongs[] = {FLOAT_BLOCK_WRONGS, {"quant_config", 2, ROW, NO_FLOAT}};
static const Wrong kBlocks1dWrongs[] = {FLOAT_BLOCK_WRONGS,
                                        {"noop", 2, ROW, NO_FLOAT},
                                        {"output.scale_inv", 1, ROW, MODE(NVTE_BLOCK_SCALING_2D)}};
static const Wrong kMxfp8Wrongs[] = {
    BLOCK_WRONGS,
    {"output.scale_inv.shape", 1, INV, WIDER},
    {"output.columnwise_scale_inv.shape", 1, COL_INV, WIDER},
    {"output.scale_inv.dtype", 1, INV, DTYPE(kNVTEFloat32)},
    {"output.scale_inv.dtype", 1, ROW, MODE(NVTE_BLOCK_SCALING_1D)},
    {"output.amax", 1, AMAX, NO_FLOAT}};

// The opposite direction: input and output change places.
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

static const Wrong kBack1dWrongs[] = {
    {"input.data", 0, ROW, NULL_POINTER},
    {"input.dtype", 0, ROW, DTYPE(kNVTEBFloat16)},
    {"input", 0, ROW, INTEGERS},
    SCALE_MATRIX("input.scale_inv", 0, INV),
    {"input.scale_inv", 0, INV, MISALIGNED},
    {"input.data.shape", 0, ROW, MODE(NVTE_NVFP4_1D_SCALING)},
    {"input.scaling_mode", 0, ROW, NO_MODE},
    {"input.scale_inv", 0, ROW, MODE(NVTE_MXFP8_1D_SCALING) | MODE(NVTE_BLOCK_SCALING_2D)},
    {"output.data", 1, ROW, MISSING},
    {"output.data.shape", 1, ROW, LONGER | FLAT},
    {"output", 1, ROW, OTHER_MODES | DTYPE(kNVTEFloat8E5M2)}};
static const Wrong kBackMxfp8Wrongs[] = {
    {"input.columnwise_data", 0, COL, NULL_POINTER},
    {"input.dtype", 0, COL, UNSET},
    {"output.data.shape", 0, COL, LONGER},
    SCALE_MATRIX("input.columnwise_scale_inv", 0, COL_INV),
    {"input.columnwise_scale_inv.shape", 0, COL_INV, WIDER},
    {"input.columnwise_scale_inv.dtype", 0, COL_INV, DTYPE(kNVTEFloat32)}};

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

#define TRANSPOSE_WRONGS(out)                                                                   \
  {"input", 0, ROW, MISSING | INTEGERS | MISALIGNED | FLAT | RANK_3}, {                         \
    out, 1, ROW, MISSING | INTEGERS | MISALIGNED | LONGER | FLAT | RANK_3 | DTYPE(kNVTEFloat16) \
  }

static const Wrong kTransposeWrongs[] = {TRANSPOSE_WRONGS("transposed_output")};
static const Wrong kTransposeNoopWrongs[] = {TRANSPOSE_WRONGS("output"),
                                             {"noop", 2, ROW, NO_FLOAT}};

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

#define AMAX_WRONGS                                                                 \
  {"input.data", 0, ROW, MISSING | MISALIGNED},                                     \
      {"input", 0, ROW, INTEGERS | OTHER_MODES | DTYPE(kNVTEFloat8E4M3)},           \
      {"input.scale", 0, SCALE, SCALAR}, {"output", 1, AMAX, MISSING | NO_FLOAT}, { \
    "output", 1, ROW, OTHER_MODES                                                   \
  }

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

static const Wrong kScaleWrongs[] = {
    {"output.amax", 0, AMAX, MISSING | NO_FLOAT},
    {"output.scale", 0, SCALE, MISSING | NO_FLOAT},
    {"output", 0, ROW, INTEGERS | OTHER_MODES | DTYPE(kNVTEBFloat16)}};

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

static const Wrong kDelayedWrongs[] = {
    {"amax_history", 0, ROW, MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16) | FLAT | RANK_3},
    {"scale", 1, ROW, MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16) | LONGER},
    {"updated_amax_history", 2, ROW,
     MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16) | LONGER | FLAT},
    {"updated_scale", 3, ROW, MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16) | LONGER}};

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

static const Wrong kReductionWrongs[] = {
    {"amax_reduction_buffer", 0, ROW, MISALIGNED | LONGER | DTYPE(kNVTEFloat16)},
    {"amax_histories", 1, ROW, MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16) | FLAT},
    {"amax_histories", 2, ROW, LONGER},
    {"amax_histories[1]", 2, ROW, MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16)},
    {"scales", 3, ROW, MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16) | LONGER},
    {"scales[1]", 4, ROW, MISSING | INTEGERS | MISALIGNED | DTYPE(kNVTEFloat16) | LONGER}};

static void wrong_recipe_values(void) {
  if (!case_begin("recipe values")) return;
  const char *const algos[] = {NULL, "", "MAX", "max ", "most_recen", "mean"};
  const int dtypes[] = {
      kNVTEByte,     kNVTEFloat32, kNVTEBFloat16, kNVTEFloat8E8M0, kNVTEFloat4E2M1,
      kNVTENumTypes, -1,           1000,          INT_MIN};
  Args a = {0}, r = {0};
  build_delayed(&a);
  build_reduction(&r);
  for (size_t i = 0; i < COUNT(algos); i++) {
    REFUSED(nvte_delayed_scaling_recipe_amax_and_scale_update, "amax_compute_algo", a.t[0], a.t[1],
            a.t[2], a.t[3], algos[i], kNVTEFloat8E4M3, 0, NULL);
    REFUSED(nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction, "amax_compute_algo",
            r.t[0], r.t + 1, r.t + 3, 2, algos[i], kNVTEFloat8E4M3, 0, NULL);
  }
  for (size_t i = 0; i < COUNT(dtypes); i++) {
    REFUSED(nvte_delayed_scaling_recipe_amax_and_scale_update, "fp8_dtype", a.t[0], a.t[1], a.t[2],
            a.t[3], "max", (NVTEDType)dtypes[i], 0, NULL);
    REFUSED(nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction, "fp8_dtype", r.t[0],
            r.t + 1, r.t + 3, 2, "max", (NVTEDType)dtypes[i], 0, NULL);
  }
  REFUSED(nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction, "amax_histories",
          r.t[0], NULL, r.t + 3, 2, "max", kNVTEFloat8E4M3, 0, NULL);
  REFUSED(nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction, "num_tensors", r.t[0],
          r.t + 1, r.t + 3, SIZE_MAX, "max", kNVTEFloat8E4M3, 0, NULL);
  REFUSED(nvtex_delayed_scaling_recipe_amax_and_scale_update_after_reduction, "scales", r.t[0],
          r.t + 1, NULL, 2, "max", kNVTEFloat8E4M3, 0, NULL);
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

// The arguments of a product, with a tensor of counters for the atomic one.
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

#define GEMM_WRONGS                                                          \
  {"A", 0, ROW, MISSING | INTEGERS | OTHER_MODES | MISALIGNED},              \
      {"B", 1, ROW, MISSING | INTEGERS | OTHER_MODES | MISALIGNED | FLAT}, { \
    "D", 2, ROW, MISSING | INTEGERS | OTHER_MODES | MISALIGNED | LONGER      \
  }

static const Wrong kGemmWrongs[] = {GEMM_WRONGS,
                                    {"bias", 3, ROW, INTEGERS | LONGER | MISALIGNED},
                                    {"pre_gelu_out", 4, ROW, INTEGERS | LONGER | MISALIGNED}};
static const Wrong kAtomicGemmWrongs[] = {
    GEMM_WRONGS,
    {"counter", 6, ROW, DTYPE(kNVTEInt64) | DTYPE(kNVTEFloat32) | NARROWER | MISALIGNED}};
static const Wrong kGemmV2Wrongs[] = {GEMM_WRONGS};
static const Wrong kGemmFp8Wrongs[] = {{"A", 0, ROW, MISSING},
                                       {"A.scale_inv", 0, INV, MISSING | NO_FLOAT},
                                       {"B", 1, ROW, MISSING},
                                       {"B.scale_inv", 1, INV, MISSING | NO_FLOAT},
                                       {"D.scale", 2, SCALE, MISSING | NO_FLOAT},
                                       {"D.amax", 2, AMAX, NO_FLOAT},
                                       {"D.scale_inv", 2, INV, NO_FLOAT},
                                       {"D", 2, ROW, INTEGERS | LONGER | NULL_POINTER}};

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
    REFUSED(nvte_cublas_gemm, "math_sm_count", a.t[0], a.t[1], a.t[2], NULL, NULL, true, false,
            false, a.t[5], false, false, -1, NULL);
    REFUSED(nvte_cublas_gemm_scaled, "math_sm_count", a.t[0], a.t[1], a.t[2], NULL, NULL, true,
            false, false, a.t[5], 1, 0, false, INT_MIN, NULL);
    // Inner dimensions that differ.
    REFUSED(nvte_cublas_gemm, "B", a.t[0], a.t[1], a.t[2], NULL, NULL, false, false, false, a.t[5],
            false, false, 0, NULL);
    REFUSED(nvte_cublas_gemm, "B", a.t[0], a.t[1], a.t[2], NULL, NULL, true, true, false, a.t[5],
            false, false, 0, NULL);
    // An FP8 D does not accumulate.
    REFUSED(nvte_cublas_gemm, "accumulate", f.t[0], f.t[1], f.t[2], NULL, NULL, true, false, false,
            f.t[5], true, false, 0, NULL);
    REFUSED(nvte_cublas_gemm_scaled, "beta", f.t[0], f.t[1], f.t[2], NULL, NULL, true, false, false,
            f.t[5], 1, 0.5f, false, 0, NULL);
    REFUSED(nvte_cublas_gemm_v2, "beta", 1, 0, &one, f.t[0], f.t[1], &one, f.t[2], f.t[2], f.t[5],
            NULL, NULL);
    REFUSED(nvte_cublas_gemm_v2, "alpha", 1, 0, NULL, a.t[0], a.t[1], &zero, a.t[2], a.t[2], NULL,
            NULL, NULL);
    REFUSED(nvte_cublas_gemm_v2, "beta", 1, 0, &one, a.t[0], a.t[1], NULL, a.t[2], a.t[2], NULL,
            NULL, NULL);
    for (int k = 0; k < BAD_HANDLES; k++) {
      const char *what;
      void *bad = bad_handle(k, false, &what);
      REFUSED(nvte_cublas_gemm_v2, "C", 1, 0, &one, a.t[0], a.t[1], &zero, bad, a.t[2], NULL, NULL,
              NULL);
    }
    REFUSED(nvte_cublas_gemm_v2, "C", 1, 0, &one, a.t[0], a.t[1], &one, a.t[0], a.t[2], NULL, NULL,
            NULL);
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
    REFUSED(nvte_cublas_gemm, argument, a.t[0], a.t[1], a.t[2], NULL, NULL, transa, transb, false,
            NULL, false, false, 0, NULL);
    REFUSED(nvte_cublas_gemm_v2, argument, transa, transb, &one, a.t[0], a.t[1], &zero, a.t[2],
            a.t[2], NULL, NULL, NULL);
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
    REFUSED(nvte_cublas_gemm_v2, "config", 1, 0, &one, a.t[0], a.t[1], &zero, a.t[2], a.t[2],
            a.t[5], config, NULL);
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

static const Wrong kOffsets2dWrongs[] = {
    {"first_dims", 0, ROW,
     MISSING | MISALIGNED | DTYPE(kNVTEFloat32) | DTYPE(kNVTEByte) | DTYPE(kNVTEInt16) | RANK_3},
    {"last_dims", 1, ROW,
     MISSING | MISALIGNED | DTYPE(kNVTEFloat32) | DTYPE(kNVTEByte) | DTYPE(kNVTEInt16) | RANK_3 |
         LONGER},
    {"output", 2, ROW,
     MISSING | MISALIGNED | DTYPE(kNVTEFloat32) | DTYPE(kNVTEByte) | DTYPE(kNVTEInt16) | RANK_3 |
         LONGER}};
static const Wrong kOffsetsMultiWrongs[] = {
    {"split_sizes", 0, ROW,
     MISSING | MISALIGNED | DTYPE(kNVTEFloat32) | DTYPE(kNVTEByte) | DTYPE(kNVTEInt16) | RANK_3},
    {"outputs", 1, ROW,
     MISSING | MISALIGNED | DTYPE(kNVTEFloat32) | DTYPE(kNVTEByte) | DTYPE(kNVTEInt16) | RANK_3 |
         LONGER},
    {"outputs[1]", 2, ROW,
     MISSING | MISALIGNED | DTYPE(kNVTEFloat32) | DTYPE(kNVTEByte) | DTYPE(kNVTEInt16) | RANK_3 |
         LONGER}};

static void wrong_offsets_values(void) {
  if (!case_begin("offsets values")) return;
  Buffer *in = buffer(64), *out = buffer(72);
  int64_t *s = (int64_t *)(void *)in->ptr, *o = (int64_t *)(void *)out->ptr;
  REFUSED(nvte_splits_to_offsets, "split_sizes", NULL, o, 8, 1, NULL);
  REFUSED(nvte_splits_to_offsets, "output", s, NULL, 8, 1, NULL);
  REFUSED(nvte_splits_to_offsets, "num_splits", s, o, 0, 1, NULL);
  REFUSED(nvte_splits_to_offsets, "num_splits", s, o, SIZE_MAX, 1, NULL);
  REFUSED(nvte_splits_to_offsets, "num_splits", s, o, SIZE_MAX / 8, 1, NULL);
  REFUSED(nvte_splits_to_offsets, "stride", s, o, 8, 0, NULL);
  REFUSED(nvte_splits_to_offsets, "stride", s, o, 8, INT64_MIN, NULL);
  for (uintptr_t k = 1; k < 8; k++) {
    REFUSED(nvte_splits_to_offsets, "split_sizes", (int64_t *)((uintptr_t)s + k), o, 7, 1, NULL);
    REFUSED(nvte_splits_to_offsets, "output", s, (int64_t *)((uintptr_t)o + k), 7, 1, NULL);
  }
  Args a = {0};
  build_offsets_multi(&a);
  const int64_t strides[2] = {1, 2};
  const int leading[2] = {0, 1};
  REFUSED(nvte_splits_to_offsets_multi, "outputs", a.t[0], NULL, strides, leading, 2, NULL);
  REFUSED(nvte_splits_to_offsets_multi, "strides", a.t[0], a.t + 1, NULL, leading, 2, NULL);
  REFUSED(nvte_splits_to_offsets_multi, "num_outputs", a.t[0], a.t + 1, strides, leading, SIZE_MAX,
          NULL);
  REFUSED(nvte_splits_to_offsets_multi, "include_leading_zero", a.t[0], a.t + 1, strides, NULL, 2,
          NULL);
}

// ---- Functions of one handle

static void build_one(Args *args) { args->t[0] = random_tensor(kNVTEFloat32, SHAPE(4, 4)); }

#define ONE_HANDLE(function, may_be_null) \
  {#function,                             \
   "",                                    \
   build_one,                             \
   call_##function,                       \
   NULL,                                  \
   0,                                     \
   .handles = {may_be_null ? "tensor?" : "tensor"}}
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
static const Wrong kPointersWrongs[] = {
    {"output", 0, ROW, MISSING | MISALIGNED | DTYPE(kNVTEByte)}};

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
#define LIST_WRONGS(i)                                       \
  {OF_LIST(i) ".data", i, ROW, NULL_POINTER | MISALIGNED}, { \
    OF_LIST(i), i, ROW, INTEGERS | DTYPE(kNVTEFloat8E4M3)    \
  }
#define OTHER_LIST_WRONGS(i) \
  LIST_WRONGS(i), {OF_LIST(i) ".shape", i, ROW, NARROWER}, { OF_LIST(i), i, ROW, UNSET }
#define FLAG_WRONGS(name)                                           \
  {name, 5, ROW, UNSET | DTYPE(kNVTEFloat32) | DTYPE(kNVTEByte)}, { \
    name ".data", 5, ROW, NULL_POINTER | MISALIGNED                 \
  }

static const Wrong kAdamWrongs[] = {LIST_WRONGS(0),
                                    OTHER_LIST_WRONGS(1),
                                    OTHER_LIST_WRONGS(2),
                                    OTHER_LIST_WRONGS(3),
                                    OTHER_LIST_WRONGS(4),
                                    {OF_LIST(2), 2, ROW, DTYPE(kNVTEFloat16)},
                                    {OF_LIST(3), 3, ROW, DTYPE(kNVTEBFloat16)},
                                    {OF_LIST(4), 4, ROW, DTYPE(kNVTEBFloat16)}};
static const Wrong kSgdWrongs[] = {LIST_WRONGS(0),
                                   OTHER_LIST_WRONGS(1),
                                   OTHER_LIST_WRONGS(2),
                                   {OF_LIST(1), 1, ROW, DTYPE(kNVTEFloat16)},
                                   {OF_LIST(2), 2, ROW, DTYPE(kNVTEFloat16)},
                                   FLAG_WRONGS("noop_flag")};
static const Wrong kNormWrongs[] = {LIST_WRONGS(0),
                                    FLAG_WRONGS("noop_flag"),
                                    {"output.shape", 6, ROW, NARROWER},
                                    {"output.data", 6, ROW, NULL_POINTER | MISALIGNED},
                                    {"output", 6, ROW, DTYPE(kNVTEInt32)},
                                    {"ret", 7, ROW, DTYPE(kNVTEFloat16) | UNSET},
                                    {"ret.data", 7, ROW, MISALIGNED}};
static const Wrong kScaleTensorsWrongs[] = {LIST_WRONGS(0),
                                            OTHER_LIST_WRONGS(1),
                                            FLAG_WRONGS("is_infinite"),
                                            {"scale", 7, ROW, DTYPE(kNVTEFloat16) | UNSET},
                                            {"scale.data", 7, ROW, NULL_POINTER}};
static const Wrong kAmaxScalesWrongs[] = {LIST_WRONGS(0),
                                          OTHER_LIST_WRONGS(1),
                                          OTHER_LIST_WRONGS(2),
                                          {OF_LIST(0), 0, ROW, DTYPE(kNVTEBFloat16)}};

#define LIST_OP(name, call, wrongs)                                                             \
  {                                                                                             \
    "nvte_multi_tensor_" name, "", build_lists, call, WRONGS(wrongs), .handles = { OF_LIST(0) } \
  }

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

#define ROUTER_WRONGS                                                                \
  {"logits", 0, ROW, MISSING | INTEGERS | FP8 | LONGER | WIDER | FLAT | MISALIGNED}, \
      {"expert_bias", 1, ROW, INTEGERS | FP8 | LONGER | RANK_3 | MISALIGNED},        \
      {"probs", 2, ROW, MISSING | LONGER | WIDER | FLAT | MISALIGNED}, {             \
    "intermediate_output", 4, ROW, MISSING | LONGER | WIDER | FLAT | MISALIGNED      \
  }

static const Wrong kRouterWrongs[] = {ROUTER_WRONGS,
                                      {"routing_map", 3, ROW, MISSING | LONGER | WIDER | FLAT}};
static const Wrong kRouterIndicesWrongs[] = {
    ROUTER_WRONGS,
    {"topk_indices", 3, ROW,
     MISSING | FP8 | LONGER | WIDER | FLAT | MISALIGNED | DTYPE(kNVTEByte) | DTYPE(kNVTEFloat32)}};
static const Wrong kRouterBackwardWrongs[] = {
    {"routing_map", 0, ROW, MISSING | LONGER | WIDER | FLAT},
    {"intermediate_output", 1, ROW, MISSING | LONGER | WIDER | FLAT | MISALIGNED},
    {"grad_probs", 2, ROW, MISSING | LONGER | WIDER | FLAT | MISALIGNED},
    {"grad_logits", 3, ROW, MISSING | INTEGERS | FP8 | LONGER | WIDER | FLAT | MISALIGNED}};
static const Wrong kAuxLossWrongs[] = {
    {"probs", 0, ROW, MISSING | INTEGERS | FP8 | LONGER | WIDER | FLAT | MISALIGNED},
    {"tokens_per_expert", 1, ROW,
     NULL_POINTER | LONGER | MISALIGNED | DTYPE(kNVTEByte) | DTYPE(kNVTEFloat16)},
    {"aux_loss", 2, ROW, NULL_POINTER},
    {"Const_buf", 3, ROW, NULL_POINTER | NARROWER}};
static const Wrong kPermuteWrongs[] = {
    {"input", 0, ROW, MISSING | INTEGERS | FP8 | MISALIGNED | NARROWER},
    {"output", 1, ROW, MISSING | MISALIGNED | NARROWER | DTYPE(kNVTEFloat16)},
    {"sorted_row_id", 2, ROW, MISSING | MISALIGNED | NARROWER | DTYPE(kNVTEInt64)},
    {"row_id_map", 3, ROW, MISSING | MISALIGNED | NARROWER | DTYPE(kNVTEFloat32)}};
static const Wrong kUnpermuteWrongs[] = {
    {"input", 0, ROW, INTEGERS | FP8 | NULL_POINTER | MISALIGNED},
    {"output", 1, ROW, MISSING | MISALIGNED | NARROWER | DTYPE(kNVTEFloat32)},
    {"row_id_map", 2, ROW, MISSING | MISALIGNED | NARROWER | DTYPE(kNVTEInt16)},
    {"prob", 3, ROW, NARROWER | MISALIGNED | DTYPE(kNVTEBFloat16)}};
static const Wrong kPaddingWrongs[] = {
    {"input_list[1]", 1, ROW, MISSING | MISALIGNED | FLAT | RANK_3 | DTYPE(kNVTEByte)},
    {"output_list[0]", 2, ROW, MISSING | MISALIGNED | FLAT | RANK_3 | DTYPE(kNVTEByte) | LONGER},
    {"output_list[1]", 3, ROW,
     MISSING | MISALIGNED | FLAT | RANK_3 | DTYPE(kNVTEByte) | WIDER | NARROWER},
    {"input_list[0]", 0, ROW, NULL_POINTER | DTYPE(kNVTEFloat4E2M1)}};
static const Wrong kTopkWrongs[] = {
    {"keys_in", 0, ROW, MISSING | INTEGERS | FP8 | MISALIGNED | NARROWER},
    {"lengths_in", 1, ROW, NARROWER | MISALIGNED | DTYPE(kNVTEInt64)},
    {"keys_out", 2, ROW, MISSING | MISALIGNED | NARROWER},
    {"indices_out", 3, ROW, MISSING | MISALIGNED | NARROWER},
    {"workspace", 4, ROW, NARROWER}};

static const Op kOps[] = {
    LIST_OP("adam_cuda", call_adam, kAdamWrongs),
    LIST_OP("sgd_cuda", call_sgd, kSgdWrongs),
    LIST_OP("unscale_l2norm_cuda", call_l2norm, kNormWrongs),
    LIST_OP("scale_tensor_cuda", call_scale_tensors, kScaleTensorsWrongs),
    LIST_OP("compute_scale_and_scale_inv_cuda", call_amax_scales, kAmaxScalesWrongs),
    {"nvte_quantize", "", build_quantize, call_quantize, WRONGS(kCastWrongs),
     .handles = {"input", "output"}},
    {"nvte_quantize", " to Float16", build_quantize_high, call_quantize, WRONGS(kHighWrongs),
     .handles = {"input", "output"}},
    {"nvte_quantize_noop", "", build_quantize_noop, call_quantize_noop, WRONGS(kCastNoopWrongs),
     .handles = {"input", "output", "noop?"}},
    {"nvte_quantize_v2", "", build_quantize_v2, call_quantize_v2, WRONGS(kCastConfigWrongs),
     .handles = {"input", "output"}, .config = "quant_config?"},
    {"nvte_quantize", " MXFP8", build_mxfp8, call_quantize, WRONGS(kMxfp8Wrongs),
     .handles = {"input", "output"}},
    {"nvte_quantize_noop", " 1D blocks", build_blocks_1d, call_quantize_noop,
     WRONGS(kBlocks1dWrongs), .handles = {"input", "output", "noop?"}},
    {"nvte_quantize_v2", " 2D blocks", build_blocks_2d, call_quantize_v2, WRONGS(kBlocksWrongs),
     .handles = {"input", "output"}, .config = "quant_config?"},
    {"nvte_cast_transpose", "", build_quantize, call_cast_transpose, WRONGS(kCastTransposeWrongs),
     .handles = {"input", "output"}},
    {"nvte_cast_transpose_with_noop", "", build_quantize_noop, call_cast_transpose_noop,
     WRONGS(kCastTransposeNoopWrongs), .handles = {"input", "output", "noop?"}},
    {"nvte_dequantize", "", build_dequantize, call_dequantize, WRONGS(kDequantizeWrongs),
     .handles = {"input", "output"}},
    {"nvte_dequantize", " 1D blocks", build_back_1d, call_dequantize, WRONGS(kBack1dWrongs),
     .handles = {"input", "output"}},
    {"nvte_dequantize", " MXFP8 columns", build_back_mxfp8_columns, call_dequantize,
     WRONGS(kBackMxfp8Wrongs), .handles = {"input", "output"}},
    {"nvte_transpose", "", build_transpose, call_transpose, WRONGS(kTransposeWrongs),
     .handles = {"input", "transposed_output"}},
    {"nvte_transpose_with_noop", "", build_transpose, call_transpose_noop,
     WRONGS(kTransposeNoopWrongs), .handles = {"input", "output", "noop?"}},
    {"nvte_compute_amax", "", build_amax, call_amax, WRONGS(kAmaxWrongs),
     .handles = {"input", "output"}},
    {"nvte_compute_amax_with_config", "", build_amax, call_amax_config, WRONGS(kAmaxWrongs),
     .handles = {"input", "output"}, .config = "config?"},
    {"nvte_compute_scale_from_amax", "", build_scale, call_scale, WRONGS(kScaleWrongs),
     .handles = {"output"}, .config = "config"},
    {"nvte_delayed_scaling_recipe_amax_and_scale_update", "", build_delayed, call_delayed,
     WRONGS(kDelayedWrongs),
     .handles = {"amax_history", "scale", "updated_amax_history", "updated_scale"}},
    {AFTER_REDUCTION, "", build_reduction, call_reduction, WRONGS(kReductionWrongs),
     .handles = {"amax_reduction_buffer?", "amax_histories", "amax_histories[1]", "scales",
                 "scales[1]"}},
    {"nvte_cublas_gemm", "", build_gemm, call_gemm, WRONGS(kGemmWrongs),
     .handles = {"A", "B", "D", "bias?", "pre_gelu_out?", "workspace?"}},
    {"nvte_cublas_atomic_gemm", "", build_atomic_gemm, call_atomic_gemm, WRONGS(kAtomicGemmWrongs),
     .handles = {"A", "B", "D", "bias?", "pre_gelu_out?", "workspace?", "counter?"}},
    {"nvte_cublas_gemm", " FP8", build_gemm_fp8, call_gemm, WRONGS(kGemmFp8Wrongs),
     .handles = {"A", "B", "D"}},
    {"nvte_cublas_gemm_scaled", "", build_gemm, call_gemm_scaled, WRONGS(kGemmWrongs),
     .handles = {"A", "B", "D", "bias?", "pre_gelu_out?", "workspace?"}},
    {"nvte_cublas_gemm_scaled", " FP8", build_gemm_fp8, call_gemm_scaled, WRONGS(kGemmFp8Wrongs),
     .handles = {"A", "B", "D"}},
    {"nvte_cublas_gemm_v2", "", build_gemm_v2, call_gemm_v2, WRONGS(kGemmV2Wrongs),
     .handles = {"A", "B", "D", "workspace?"}, .config = "config?", .config_of_matmul = true},
    {"nvte_splits_to_offsets_2d", "", build_offsets_2d, call_offsets_2d, WRONGS(kOffsets2dWrongs),
     .handles = {"first_dims", "last_dims", "output"}},
    {"nvte_splits_to_offsets_multi", "", build_offsets_multi, call_offsets_multi,
     WRONGS(kOffsetsMultiWrongs), .handles = {"split_sizes", "outputs", "outputs[1]"}},
    {"nvte_convert_pointers_to_tensor", "", build_pointers, call_pointers, WRONGS(kPointersWrongs),
     .handles = {"output"}},
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
    {"nvte_fused_topk_with_score_function_forward", "", build_router, call_router,
     WRONGS(kRouterWrongs),
     .handles = {"logits", "expert_bias", "probs", "routing_map", "intermediate_output"}},
    {"nvte_fused_topk_with_score_function_forward_with_indices", "", build_router_indices,
     call_router_indices, WRONGS(kRouterIndicesWrongs),
     .handles = {"logits", "expert_bias", "probs", "topk_indices", "intermediate_output"}},
    {"nvte_fused_topk_with_score_function_backward", "", build_router_backward,
     call_router_backward, WRONGS(kRouterBackwardWrongs),
     .handles = {"routing_map", "intermediate_output", "grad_probs", "grad_logits"}},
    {"nvte_fused_moe_aux_loss_forward", "", build_aux_loss, call_aux_loss, WRONGS(kAuxLossWrongs),
     .handles = {"probs", "tokens_per_expert", "aux_loss", "Const_buf"}},
    {"nvte_permute", "", build_permute, call_permute, WRONGS(kPermuteWrongs),
     .handles = {"input", "output", "sorted_row_id", "row_id_map"}},
    {"nvte_unpermute", "", build_unpermute, call_unpermute, WRONGS(kUnpermuteWrongs),
     .handles = {"input?", "output", "row_id_map", "prob?"}},
    {"nvte_multi_padding", "", build_padding, call_padding, WRONGS(kPaddingWrongs),
     .handles = {"input_list[0]", "input_list[1]", "output_list[0]", "output_list[1]"}},
    {"nvte_multi_unpadding", "", build_unpadding, call_unpadding, WRONGS(kPaddingWrongs),
     .handles = {"input_list[0]", "input_list[1]", "output_list[0]", "output_list[1]"}},
    {"nvte_topk", "", build_topk, call_topk, WRONGS(kTopkWrongs),
     .handles = {"keys_in", "lengths_in", "keys_out", "indices_out", "workspace"}}};

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
    REFUSED(nvte_fused_topk_with_score_function_forward, kWrong[i].argument, a.t[0],
            kWrong[i].tokens, kWrong[i].experts, kWrong[i].topk, 0, kWrong[i].groups,
            kWrong[i].group_topk, 2, kWrong[i].score, a.t[1], a.t[2], a.t[3], a.t[4], NULL);
  }
  REFUSED(nvte_fused_topk_with_score_function_forward_v2, "routing_map_format", a.t[0],
          ROUTED_TOKENS, ROUTED_EXPERTS, ROUTED, 0, 4, 2, 2, 0, a.t[1], a.t[2], a.t[3],
          (NVTERoutingMapFormat)2, a.t[4], NULL);
  build_permute(&a);
  REFUSED(nvte_permute, "num_rows", a.t[0], a.t[1], a.t[2], a.t[3], NULL, NULL, NULL, -1, 2, 8, 12,
          NULL);
  REFUSED(nvte_permute, "topK", a.t[0], a.t[1], a.t[2], a.t[3], NULL, NULL, NULL, 1 << 20, 1 << 12,
          8, 12, NULL);
  REFUSED(nvte_permute, "num_out_tokens", a.t[0], a.t[1], a.t[2], a.t[3], NULL, NULL, NULL, 6, 2, 8,
          -1, NULL);
  build_padding(&a);
  NVTETensor *outputs = &a.t[2];
  const int32_t few[] = {8, 6}, more[] = {5, 9};
  REFUSED(nvte_multi_padding, "padded_num_rows_list[1]", 2, a.t, outputs, few, NULL);
  REFUSED(nvte_multi_padding, "input_list", 2, NULL, outputs, few, NULL);
  REFUSED(nvte_multi_padding, "output_list", 2, a.t, NULL, few, NULL);
  REFUSED(nvte_multi_padding, "padded_num_rows_list", 2, a.t, outputs, NULL, NULL);
  build_unpadding(&a);
  REFUSED(nvte_multi_unpadding, "unpadded_num_rows_list[1]", 2, a.t, outputs, more, NULL);
  build_topk(&a);
  REFUSED(nvte_topk, "batch_size", NULL, a.t[0], a.t[1], a.t[2], a.t[3], a.t[4], -1, 40, 5);
  REFUSED(nvte_topk, "seq_len", NULL, a.t[0], a.t[1], a.t[2], a.t[3], a.t[4], 3, -40, 5);
  REFUSED(nvte_topk, "k", NULL, a.t[0], a.t[1], a.t[2], a.t[3], a.t[4], 3, 40, -5);
}

int main(int argc, char **argv) {
  setenv("NVTE_VERBOSE", "none", 0);  // two thousand messages that are expected
  test_begin(argc, argv);
  g_basic = basic(NULL, kNVTEFloat32, SHAPE(0));
  for (size_t i = 0; i < COUNT(kOps); i++) run_op(&kOps[i]);
  wrong_recipe_values();
  wrong_gemm_values();
  wrong_offsets_values();
  wrong_routing_numbers();
  return refusals_end();
}
