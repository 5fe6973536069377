#include "nvte_torch.h"

#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <utility>

#ifdef NVTE_TORCH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace nvte_torch {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Runs calls of the library; the first that fails becomes an exception of PyTorch.
template <class Body>
void checked(Body &&body) {
  const uint64_t before = nvtex_error_count();
  body();
  if (nvtex_error_count() == before) return;
  const char *message = nvtex_take_error(before);
  TORCH_CHECK(false, message != nullptr ? message : "nvte gave no message");
}

bool on_cuda() { return std::strcmp(nvtex_backend_name(), "cuda") == 0; }

c10::DeviceType device() { return on_cuda() ? c10::DeviceType::CUDA : c10::DeviceType::CPU; }

cudaStream_t current_stream() {
#ifdef NVTE_TORCH_CUDA
  if (on_cuda()) return c10::cuda::getCurrentCUDAStream().stream();
#endif
  TORCH_CHECK(!on_cuda(),
              "this extension was built without CUDA; NVTE_BACKEND=cpu keeps nvte on the CPU");
  return nullptr;
}

NVTEDType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return kNVTEByte;
    case at::kInt:
      return kNVTEInt32;
    case at::kLong:
      return kNVTEInt64;
    case at::kFloat:
      return kNVTEFloat32;
    case at::kHalf:
      return kNVTEFloat16;
    case at::kBFloat16:
      return kNVTEBFloat16;
    default:
      TORCH_CHECK(false, "nvte has no dtype ", type);
  }
}

at::ScalarType type_of(NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat32:
      return at::kFloat;
    case kNVTEFloat16:
      return at::kHalf;
    case kNVTEBFloat16:
      return at::kBFloat16;
    default:
      TORCH_CHECK(false, "a parameter has a dtype that this extension does not take");
  }
}

struct DestroyTensor {
  void operator()(void *tensor) const { nvte_destroy_tensor(tensor); }
};
using Handle = std::unique_ptr<void, DestroyTensor>;

NVTEBasicTensor basic(const at::Tensor &tensor, NVTEDType dtype) {
  TORCH_CHECK(tensor.is_contiguous(), "nvte needs contiguous tensors");
  TORCH_CHECK(tensor.device().type() == device(), "nvte runs on ", nvtex_backend_name(),
              ", and a tensor is on ", tensor.device(),
              ": NVTE_BACKEND chooses for the whole process");
  const std::vector<size_t> shape(tensor.sizes().begin(), tensor.sizes().end());
  return {tensor.data_ptr(), dtype, nvte_make_shape(shape.data(), shape.size())};
}

void set(const Handle &handle, NVTETensorParam param, const at::Tensor &tensor, NVTEDType dtype) {
  const NVTEBasicTensor buffer = basic(tensor, dtype);
  nvte_set_tensor_param_v2(handle.get(), param, &buffer, sizeof buffer);
}

Handle handle_of(const at::Tensor &tensor, NVTEDType dtype) {
  Handle handle(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING));
  set(handle, kNVTERowwiseData, tensor, dtype);
  return handle;
}

Handle handle_of(const at::Tensor &tensor) {
  return handle_of(tensor, dtype_of(tensor.scalar_type()));
}

// Memory of PyTorch's caching allocator, which belongs to the current stream, which is
// the one that the library was called with.
void *allocate(void *, size_t bytes, size_t, NVTEXLifetime, cudaStream_t) {
  return c10::GetAllocator(device())->raw_allocate(bytes);
}

void release(void *, void *memory, size_t, NVTEXLifetime, cudaStream_t) {
  c10::GetAllocator(device())->raw_deallocate(memory);
}

// The backward pass of a module, as a node of autograd, which keeps the tape. Its inputs are the
// gradient of the output, its outputs those of the input and of all parameters.
struct ModuleBackward : torch::autograd::Node {
  ~ModuleBackward() override { nvtex_tape_destroy(tape); }

  variable_list apply(variable_list &&grads) override {
    TORCH_CHECK(tape != nullptr,
                "the backward pass of a module of nvte runs once, unless the graph is retained");
    const at::NoGradGuard no_grad;
    const at::Tensor grad =
        grads[0].defined() ? grads[0].contiguous() : at::zeros(output_shape, x.options());
    const std::vector<at::Tensor> parameters = module->parameters();
    variable_list results(1 + parameters.size());
    if (task_should_compute_output(0)) results[0] = at::empty_like(x);
    std::vector<Handle> handles(results.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (task_should_compute_output(i + 1)) results[i + 1] = at::empty_like(parameters[i]);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].defined()) handles[i] = handle_of(results[i]);
    }
    const Handle grad_output = handle_of(grad);
    checked([&] {
      for (size_t i = 0; i < parameters.size(); ++i) {
        nvtex_module_set_gradient(module->handle(), i, handles[i + 1].get(), false);
      }
      const NVTETensor outputs[] = {grad_output.get()}, inputs[] = {handles[0].get()};
      nvtex_module_backward(module->handle(), tape, outputs, 1, inputs, 1, current_stream());
    });
    return results;
  }

  void release_variables() override {
    nvtex_tape_destroy(std::exchange(tape, nullptr));
    x.reset();
  }

  std::string name() const override { return "NvteModuleBackward"; }

  NVTEXTape tape = nullptr;
  ModulePtr module;
  // What the tape refers to.
  at::Tensor x;
  std::vector<int64_t> output_shape;
};

struct Activation {
  const char *name;
  bool gated;
  NVTE_Activation_Type type;
  void (*forward)(NVTETensor, NVTETensor, cudaStream_t);
  void (*backward)(NVTETensor, NVTETensor, NVTETensor, cudaStream_t);
};
constexpr Activation kActivations[] = {
    {"gelu", false, GELU, nvte_gelu, nvte_dgelu},
    {"silu", false, SILU, nvte_silu, nvte_dsilu},
    {"qgelu", false, QGELU, nvte_qgelu, nvte_dqgelu},
    {"relu", false, RELU, nvte_relu, nvte_drelu},
    {"srelu", false, SRELU, nvte_srelu, nvte_dsrelu},
    {"geglu", true, GEGLU, nvte_geglu, nvte_dgeglu},
    {"swiglu", true, SWIGLU, nvte_swiglu, nvte_dswiglu},
    {"qgeglu", true, QGEGLU, nvte_qgeglu, nvte_dqgeglu},
    {"reglu", true, REGLU, nvte_reglu, nvte_dreglu},
    {"sreglu", true, SREGLU, nvte_sreglu, nvte_dsreglu},
};

const Activation &activation_of(const std::string &name) {
  for (const Activation &activation : kActivations) {
    if (name == activation.name) return activation;
  }
  TORCH_CHECK(false, "nvte has no activation ", name);
}

struct ActivationPass : torch::autograd::Function<ActivationPass> {
  static at::Tensor forward(AutogradContext *ctx, const at::Tensor &input, int64_t kind) {
    const at::Tensor x = input.contiguous();
    std::vector<int64_t> shape = x.sizes().vec();
    TORCH_CHECK(!shape.empty(), "expected an input with a last dimension");
    if (kActivations[kind].gated) shape.back() /= 2;
    const at::Tensor y = at::empty(shape, x.options());
    const Handle in = handle_of(x), out = handle_of(y);
    checked([&] { kActivations[kind].forward(in.get(), out.get(), current_stream()); });
    ctx->save_for_backward({x});
    ctx->saved_data["kind"] = kind;
    return y;
  }

  static variable_list backward(AutogradContext *ctx, variable_list grads) {
    const at::Tensor x = ctx->get_saved_variables()[0], grad = grads[0].contiguous(),
                     dx = at::empty_like(x);
    const Handle in = handle_of(x), of_output = handle_of(grad), of_input = handle_of(dx);
    const Activation &kind = kActivations[ctx->saved_data["kind"].toInt()];
    checked([&] { kind.backward(of_output.get(), in.get(), of_input.get(), current_stream()); });
    return {dx, Variable()};
  }
};

// A config with the defaults of the library.
template <class Config>
Config defaults(void (*init)(Config *, size_t)) {
  Config config;
  init(&config, sizeof config);
  return config;
}

template <class Config>
ModulePtr create(const ContextPtr &context,
                 NVTEXModule (*function)(NVTEXContext, const Config *, cudaStream_t),
                 const Config &config, int64_t out_features) {
  NVTEXModule module = nullptr;
  checked([&] { module = function(context->handle(), &config, current_stream()); });
  return c10::make_intrusive<Module>(context, module, out_features);
}

NVTEXLinearConfig linear_config(int64_t in_features, int64_t out_features, bool bias,
                                at::ScalarType dtype, int64_t seed) {
  auto config = defaults<NVTEXLinearConfig>(nvtex_linear_config_init);
  config.in_features = static_cast<size_t>(in_features),
  config.out_features = static_cast<size_t>(out_features);
  config.bias = bias, config.dtype = dtype_of(dtype), config.seed = static_cast<uint64_t>(seed);
  return config;
}

NVTEXLayerNormMLPConfig mlp_config(int64_t hidden, int64_t ffn_hidden,
                                   const std::string &activation, at::ScalarType dtype,
                                   int64_t seed) {
  auto config = defaults<NVTEXLayerNormMLPConfig>(nvtex_layernorm_mlp_config_init);
  config.hidden_size = static_cast<size_t>(hidden),
  config.ffn_hidden_size = static_cast<size_t>(ffn_hidden);
  config.activation = activation_of(activation).type;
  config.dtype = dtype_of(dtype), config.seed = static_cast<uint64_t>(seed);
  return config;
}

}  // namespace

Context::Context() {
  auto config = NVTEXContextConfig{};
  config.struct_size = sizeof config;
  // On the CPU PyTorch aligns memory less than the library asks for, which has a pool of its own
  // there.
  if (on_cuda()) {
    config.allocate = allocate, config.release = release;
    // PyTorch's allocator exists from the first tensor on a device on.
    at::empty({1}, at::TensorOptions().device(at::kCUDA));
  }
  checked([&] { context_ = nvtex_context_create(&config); });
}

Context::~Context() {
  for (NVTEXRecipe recipe : recipes_) nvtex_recipe_destroy(recipe);
  nvtex_context_destroy(context_);
}

void Context::begin(const std::string &name) {
  static const std::pair<const char *, NVTEXRecipeKind> kinds[] = {
      {"delayed_scaling", NVTEX_RECIPE_DELAYED_SCALING},
      {"current_scaling", NVTEX_RECIPE_CURRENT_SCALING},
      {"block_scaling", NVTEX_RECIPE_BLOCK_SCALING},
      {"mxfp8", NVTEX_RECIPE_MXFP8},
      {"nvfp4", NVTEX_RECIPE_NVFP4},
  };
  for (const auto &[word, kind] : kinds) {
    if (name != word) continue;
    checked([&, kind = kind] {
      NVTEXRecipeConfig config;
      nvtex_recipe_config_init(&config, sizeof config, kind);
      const NVTEXRecipe recipe = nvtex_recipe_create(&config);
      recipes_.push_back(recipe);
      nvtex_context_begin(context_, recipe, NVTEX_CONTEXT_ENABLED, nullptr);
    });
    return;
  }
  TORCH_CHECK(false, "nvte has no recipe ", name);
}

void Context::end() {
  TORCH_CHECK(!recipes_.empty(), "no region is open");
  checked([&] { nvtex_context_end(context_); });
  nvtex_recipe_destroy(recipes_.back());
  recipes_.pop_back();
}

void Context::forward_update() {
  checked([&] { nvtex_context_forward_update(context_, current_stream()); });
}

void Context::backward_update() {
  checked([&] { nvtex_context_backward_update(context_, current_stream()); });
}

Module::Module(ContextPtr context, NVTEXModule module, int64_t out_features)
    : context_(std::move(context)), module_(module), out_features_(out_features) {
  const at::NoGradGuard no_grad;
  checked([&] {
    for (size_t i = 0; i < nvtex_module_num_parameters(module_); ++i) {
      NVTEXParameter parameter = {};
      parameter.struct_size = sizeof parameter;
      nvtex_module_parameter(module_, i, &parameter);
      const std::vector<int64_t> shape(parameter.shape.data,
                                       parameter.shape.data + parameter.shape.ndim);
      const auto options = at::TensorOptions().dtype(type_of(parameter.dtype)).device(device());
      // The value moves into memory of PyTorch, which the module reads from then on.
      at::Tensor value = at::from_blob(nvte_tensor_data(parameter.value), shape, options).clone();
      nvtex_module_set_parameter(module_, i, handle_of(value).get());
      value.set_requires_grad(true);
      parameters_.push_back(value);
      names_.emplace_back(parameter.name);
    }
  });
}

Module::~Module() { nvtex_module_destroy(module_); }

at::Tensor Module::forward(const at::Tensor &input) {
  // Whether a backward pass may come, before autograd is turned off for what follows.
  bool tracked = input.requires_grad();
  for (const at::Tensor &parameter : parameters_) tracked = tracked || parameter.requires_grad();
  tracked = tracked && at::GradMode::is_enabled();
  const auto node =
      std::shared_ptr<ModuleBackward>(new ModuleBackward(), torch::autograd::deleteNode);
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor x = input.detach().contiguous();
    TORCH_CHECK(x.dim() > 0, "expected an input with a last dimension of features");
    node->output_shape = x.sizes().vec();
    if (out_features_ != 0) node->output_shape.back() = out_features_;
    node->x = x;
    y = at::empty(node->output_shape, x.options());
    const Handle in = handle_of(x), out = handle_of(y);
    checked([&] {
      for (size_t i = 0; i < parameters_.size(); ++i) {
        // What is bound says only which gradients there will be: the backward pass binds their
        // memory.
        const Handle bound = handle_of(parameters_[i]);
        nvtex_module_set_gradient(
            module_, i, tracked && parameters_[i].requires_grad() ? bound.get() : nullptr, false);
      }
      const NVTETensor inputs[] = {in.get()}, outputs[] = {out.get()};
      nvtex_module_forward(module_, inputs, 1, outputs, 1, nullptr, tracked ? &node->tape : nullptr,
                           current_stream());
    });
  }
  if (!tracked) return y;
  node->module = ModulePtr::reclaim_copy(this);
  torch::autograd::edge_list edges = {torch::autograd::impl::gradient_edge(input)};
  if (!input.requires_grad()) edges[0] = {};
  for (const at::Tensor &parameter : parameters_) {
    edges.push_back(parameter.requires_grad() ? torch::autograd::impl::gradient_edge(parameter)
                                              : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  torch::autograd::set_history(y, node);
  return y;
}

ModulePtr linear(const ContextPtr &context, int64_t in_features, int64_t out_features, bool bias,
                 at::ScalarType dtype, int64_t seed) {
  return create(context, nvtex_linear_create,
                linear_config(in_features, out_features, bias, dtype, seed), out_features);
}

ModulePtr layernorm_linear(const ContextPtr &context, int64_t in_features, int64_t out_features,
                           bool bias, at::ScalarType dtype, int64_t seed) {
  auto config = defaults<NVTEXLayerNormLinearConfig>(nvtex_layernorm_linear_config_init);
  config.linear = linear_config(in_features, out_features, bias, dtype, seed);
  return create(context, nvtex_layernorm_linear_create, config, out_features);
}

ModulePtr layernorm_mlp(const ContextPtr &context, int64_t hidden, int64_t ffn_hidden,
                        const std::string &activation, at::ScalarType dtype, int64_t seed) {
  return create(context, nvtex_layernorm_mlp_create,
                mlp_config(hidden, ffn_hidden, activation, dtype, seed), 0);
}

ModulePtr transformer_layer(const ContextPtr &context, int64_t hidden, int64_t ffn_hidden,
                            int64_t heads, const std::string &activation, at::ScalarType dtype,
                            int64_t seed) {
  auto config = defaults<NVTEXTransformerLayerConfig>(nvtex_transformer_layer_config_init);
  config.mlp = mlp_config(hidden, ffn_hidden, activation, dtype, seed);
  config.attention.num_attention_heads = static_cast<size_t>(heads);
  config.attention.dtype = config.mlp.dtype;
  return create(context, nvtex_transformer_layer_create, config, 0);
}

at::Tensor activation(const at::Tensor &x, const std::string &name) {
  return ActivationPass::apply(x, static_cast<int64_t>(&activation_of(name) - kActivations));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize(const at::Tensor &input) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = input.contiguous();
  TORCH_CHECK(x.dim() == 2, "expected a matrix, got ", x.dim(), " dimensions");
  const at::Tensor codes = at::empty(x.sizes(), x.options().dtype(at::kByte));
  const at::Tensor transposed = at::empty({x.size(1), x.size(0)}, codes.options());
  const at::Tensor scale = at::empty({1}, x.options().dtype(at::kFloat)),
                   scale_inv = at::empty_like(scale);
  const at::Tensor amax = at::zeros_like(scale);
  const Handle in = handle_of(x), out = handle_of(codes, kNVTEFloat8E4M3);
  set(out, kNVTEColumnwiseData, transposed, kNVTEFloat8E4M3);
  set(out, kNVTERowwiseScaleInv, scale_inv, kNVTEFloat32);
  set(out, kNVTEColumnwiseScaleInv, scale_inv, kNVTEFloat32);
  set(out, kNVTEScale, scale, kNVTEFloat32);
  set(out, kNVTEAmax, amax, kNVTEFloat32);
  checked([&] {
    const NVTEQuantizationConfig config = nvte_create_quantization_config();
    nvte_compute_amax(in.get(), out.get(), current_stream());
    nvte_compute_scale_from_amax(out.get(), config, current_stream());
    nvte_quantize(in.get(), out.get(), current_stream());
    nvte_destroy_quantization_config(config);
  });
  return {codes, transposed, scale_inv};
}

at::Tensor dequantize(const at::Tensor &codes, const at::Tensor &scale_inv, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::empty(codes.sizes(), codes.options().dtype(dtype));
  const Handle in = handle_of(codes, kNVTEFloat8E4M3), out = handle_of(x);
  set(in, kNVTERowwiseScaleInv, scale_inv, kNVTEFloat32);
  checked([&] { nvte_dequantize(in.get(), out.get(), current_stream()); });
  return x;
}

TORCH_LIBRARY(nvte, library) {
  library.class_<Context>("Context")
      .def(torch::init<>())
      .def("begin", &Context::begin)
      .def("end", &Context::end)
      .def("forward_update", &Context::forward_update)
      .def("backward_update", &Context::backward_update);
  library.class_<Module>("Module")
      .def("forward", &Module::forward)
      .def("parameters", &Module::parameters)
      .def("names", &Module::names);
  library.def("linear", linear);
  library.def("layernorm_linear", layernorm_linear);
  library.def("layernorm_mlp", layernorm_mlp);
  library.def("transformer_layer", transformer_layer);
  library.def("activation", activation);
  library.def("quantize", quantize);
  library.def("dequantize", dequantize);
}

}  // namespace nvte_torch
