// Modules and operators of libnvte.so for at::Tensor: with autograd, on PyTorch's current stream,
// with memory of PyTorch's allocators. The same classes and operators are registered with
// TORCH_LIBRARY under `nvte`, so that a program that loads libnvte_torch.so has them as
// torch::class_ and torch.ops.nvte.
#ifndef NVTE_TORCH_H
#define NVTE_TORCH_H

#include <ATen/ATen.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "nvte/nvte.h"

namespace nvte_torch {

// What modules belong to: the memory, and the recipe of the region that is open.
class Context : public torch::CustomClassHolder {
 public:
  Context();
  ~Context() override;
  Context(const Context &) = delete;
  Context &operator=(const Context &) = delete;

  // Opens a region in which modules multiply in FP8: "delayed_scaling", "current_scaling",
  // "block_scaling", "mxfp8" or "nvfp4". Regions nest; `end` closes the innermost one.
  void begin(const std::string &recipe);
  void end();
  // Make the scales of the next step, for delayed scaling: after the forward and after the backward
  // pass.
  void forward_update();
  void backward_update();

  NVTEXContext handle() const { return context_; }

 private:
  NVTEXContext context_ = nullptr;
  std::vector<NVTEXRecipe> recipes_;
};
using ContextPtr = c10::intrusive_ptr<Context>;

// A module of the library. Its parameters are tensors that require gradients; what changes them in
// place, as optimizers do, changes the module.
class Module : public torch::CustomClassHolder {
 public:
  // Takes the handle. `out_features` is the last dimension of the output, 0 if it is that of the
  // input.
  Module(ContextPtr context, NVTEXModule module, int64_t out_features);
  ~Module() override;
  Module(const Module &) = delete;
  Module &operator=(const Module &) = delete;

  at::Tensor forward(const at::Tensor &x);
  std::vector<at::Tensor> parameters() const { return parameters_; }
  std::vector<std::string> names() const { return names_; }

  NVTEXModule handle() const { return module_; }
  int64_t out_features() const { return out_features_; }

 private:
  ContextPtr context_;
  NVTEXModule module_;
  int64_t out_features_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
};
using ModulePtr = c10::intrusive_ptr<Module>;

// Inputs are [..., in_features], or [sequence, batch, hidden] of a layer.
ModulePtr linear(const ContextPtr &context, int64_t in_features, int64_t out_features, bool bias,
                 at::ScalarType dtype, int64_t seed);
ModulePtr layernorm_linear(const ContextPtr &context, int64_t in_features, int64_t out_features,
                           bool bias, at::ScalarType dtype, int64_t seed);
ModulePtr layernorm_mlp(const ContextPtr &context, int64_t hidden, int64_t ffn_hidden,
                        const std::string &activation, at::ScalarType dtype, int64_t seed);
ModulePtr transformer_layer(const ContextPtr &context, int64_t hidden, int64_t ffn_hidden,
                            int64_t heads, const std::string &activation, at::ScalarType dtype,
                            int64_t seed);

// gelu, silu, qgelu, relu, srelu, and with inputs of twice the width geglu, swiglu, qgeglu, reglu,
// sreglu.
at::Tensor activation(const at::Tensor &x, const std::string &name);
// A matrix in FP8 (E4M3) with one scale from its own maximum: codes, those of the transpose,
// scale_inv. Codes are bytes, because older releases of PyTorch have no FP8.
std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize(const at::Tensor &x);
at::Tensor dequantize(const at::Tensor &codes, const at::Tensor &scale_inv, at::ScalarType dtype);

}  // namespace nvte_torch

#endif  // NVTE_TORCH_H
