// A plugin with three operators for the host's memory, one of each kind of numerics: copies
// (padding), elements one by one (GELU), and sums (RMSNorm).
//
//     cc -std=c11 -O2 -shared -fPIC host_ops.c -o libhost_ops.so $(pkg-config --cflags nvte) -lm
//     NVTE_OP_PLUGINS=$PWD/libhost_ops.so NVTE_VERBOSE=dispatch ./program
#include "elements.h"

// ---- padding: rows of tensors, and zeros after them

static int32_t padding(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXPaddingArgs *args = call->args;
  for (size_t i = 0; i < args->num_tensors; i++) {
    const NVTEXPaddedTensor *tensor = &args->tensors[i];
    if (tensor->copied > 0) memcpy(tensor->output, tensor->input, tensor->copied);
    if (tensor->zeroed > 0) memset((char *)tensor->output + tensor->copied, 0, tensor->zeroed);
  }
  return NVTEX_PLUGIN_OK;
}

// ---- quantize.gelu: y = cast(gelu(x)), and the largest |gelu(x)|

static float gelu(float x) {
  double inner = 0.79788456f + 0.03567741f * (double)x * x;
  return (float)(x / (1 + exp(-2 * x * inner)));
}

static int32_t quantize_gelu(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXCast *cast = &((const NVTEXQuantizeArgs *)call->args)->cast;
  // A call that declares NVTEX_QUANTIZE_NOOP has this flag in the memory of its domain.
  if (cast->noop && *cast->noop == 1) return NVTEX_PLUGIN_OK;
  float amax = cast->amax ? *cast->amax : 0;
  for (size_t i = 0; i < cast->rows * cast->cols; i++) {
    float y = gelu(load(cast->input_dtype, cast->input, i));
    if (fabsf(y) > amax) amax = fabsf(y);  // False for NaN, which does not count.
    store(cast->output_dtype, cast->rowwise, i, y);
  }
  if (cast->amax) *cast->amax = amax;
  return NVTEX_PLUGIN_OK;
}

// ---- norm_forward.rmsnorm: y = g x / sqrt(mean(x^2) + epsilon)

static int32_t rmsnorm(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXNormForwardArgs *args = call->args;
  const NVTEXCast *cast = &args->cast;
  const NVTEXGamma *gamma = &args->gamma;
  float amax = cast->amax ? *cast->amax : 0;
  for (size_t row = 0; row < cast->rows; row++) {
    float squares = 0;
    for (size_t col = 0; col < cast->cols; col++) {
      float x = load(cast->input_dtype, cast->input, row * cast->cols + col);
      squares += x * x;
    }
    float rsigma = 1 / sqrtf(squares / (float)cast->cols + args->epsilon);
    args->rsigma[row] = rsigma;
    for (size_t col = 0; col < cast->cols; col++) {
      float g = load(gamma->dtype, gamma->data, col) + (gamma->zero_centered ? 1 : 0);
      if (gamma->rounded) g = rounded(gamma->dtype, g);
      float x = load(cast->input_dtype, cast->input, row * cast->cols + col);
      float y = rounded(cast->output_dtype, g * (rsigma * x));
      if (fabsf(y) > amax) amax = fabsf(y);
      store(cast->output_dtype, cast->rowwise, row * cast->cols + col, y);
    }
  }
  if (cast->amax) *cast->amax = amax;
  return NVTEX_PLUGIN_OK;
}

// ---- The entry

int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = "host-ops";
  plugin->version = "1.0";
  plugin->vendor = "example";
  // What all three have in common. Fields that are not named are 0, which for most means "any" or
  // "none".
  const NVTEXImpl common = {
      .struct_size = sizeof common,
      .vendor = "example",
      .domain = "cpu",
      .kind = NVTEX_KIND_VENDOR,
      .priority = NVTEX_PRIORITY_OF_KIND,
      .flags = NVTEX_IMPL_DETERMINISTIC | NVTEX_IMPL_FORK_SAFE,
  };
  NVTEXImpl impls[3] = {common, common, common};

  impls[0].op = "padding";
  impls[0].op_version = NVTEX_OP_PADDING_VERSION;
  impls[0].args_size = NVTEX_OP_PADDING_SIZE;
  impls[0].id = "example.padding";
  impls[0].numerics = NVTEX_NUMERICS_BITS;
  impls[0].execute = padding;

  impls[1].op = "quantize.gelu";
  impls[1].op_version = NVTEX_OP_QUANTIZE_VERSION;
  impls[1].args_size = NVTEX_OP_QUANTIZE_SIZE;
  impls[1].id = "example.gelu";
  impls[1].numerics = NVTEX_NUMERICS_ROUNDED;
  impls[1].dtypes = EXAMPLE_DTYPES;
  impls[1].modes = 1u << NVTE_DELAYED_TENSOR_SCALING;
  // Whatever is not listed here, column-wise data for example, never reaches this implementation.
  impls[1].features = NVTEX_QUANTIZE_NOOP | NVTEX_QUANTIZE_AMAX;
  impls[1].execute = quantize_gelu;

  impls[2].op = "norm_forward.rmsnorm";
  impls[2].op_version = NVTEX_OP_NORM_FORWARD_VERSION;
  impls[2].args_size = NVTEX_OP_NORM_FORWARD_SIZE;
  impls[2].id = "example.rmsnorm";
  impls[2].numerics = NVTEX_NUMERICS_ORDER;
  impls[2].dtypes = EXAMPLE_DTYPES;
  impls[2].modes = 1u << NVTE_DELAYED_TENSOR_SCALING;
  impls[2].features = NVTEX_NORM_FORWARD_AMAX | NVTEX_NORM_FORWARD_ZERO_CENTERED;
  impls[2].execute = rmsnorm;

  for (size_t i = 0; i < 3; i++) {
    // NVTEX_PLUGIN_DECLINED means that this library does not know the operator: go on with the
    // others.
    if (host->add_impl(host->context, &impls[i]) == NVTEX_PLUGIN_FAILED) return NVTEX_PLUGIN_FAILED;
  }
  return NVTEX_PLUGIN_OK;
}
