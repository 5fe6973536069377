// The extension against the same formulas in LibTorch, with autograd, on the device of nvte's
// backend; a line for each check.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "nvte_torch.h"

namespace {

using nvte_torch::Context;
using nvte_torch::ContextPtr;
using nvte_torch::ModulePtr;
using Tensors = std::vector<at::Tensor>;

int g_failed = 0;

bool on_cuda() { return std::strcmp(nvtex_backend_name(), "cuda") == 0; }

at::Tensor normal(at::IntArrayRef shape) {
  return at::randn(shape, on_cuda() ? at::kCUDA : at::kCPU);
}

// Of products in float32, which the tensor cores of GPUs take as TF32.
double bound_of_products() { return on_cuda() ? 2e-3 : 1e-5; }

void check(const std::string &name, bool good, const std::string &what = "") {
  std::printf("LibTorch: %s ... %s\n", name.c_str(), good ? "ok" : "FAILED");
  if (!good) std::printf("  %s\n", what.c_str());
  g_failed += !good;
}

// Norm of the difference, relative to that of b.
double distance(const at::Tensor &a, const at::Tensor &b) {
  return ((a - b).to(at::kDouble).norm() / b.to(at::kDouble).norm()).item<double>();
}

Tensors gradients(const at::Tensor &y, const at::Tensor &weights, const Tensors &of) {
  for (const at::Tensor &tensor : of) tensor.mutable_grad() = at::Tensor();
  (y * weights).sum().backward();
  Tensors found;
  for (const at::Tensor &tensor : of) found.push_back(tensor.grad().clone());
  return found;
}

// Compares results and gradients of the input and of all parameters.
void compare(const std::string &name, const ModulePtr &module, const at::Tensor &x,
             const std::function<at::Tensor(const at::Tensor &, const Tensors &)> &formula) {
  Tensors of = module->parameters();
  of.insert(of.begin(), x);
  const at::Tensor y = module->forward(x), expected = formula(x, module->parameters());
  double worst = distance(y.detach(), expected.detach());
  const at::Tensor weights = at::randn_like(y);
  const Tensors ours = gradients(y, weights, of), theirs = gradients(expected, weights, of);
  for (size_t i = 0; i < of.size(); ++i) worst = std::max(worst, distance(ours[i], theirs[i]));
  check(name, worst < bound_of_products(), "relative difference " + std::to_string(worst));
}

at::Tensor input(at::IntArrayRef shape) { return normal(shape).set_requires_grad(true); }

at::Tensor norm(const at::Tensor &x, const Tensors &p) {
  return at::layer_norm(x, {x.size(-1)}, p[0], p[1]);
}

// A layer with attention of heads in interleaved order is compared by its derivative, which its
// gradient must be.
void derivative(const ContextPtr &context) {
  const ModulePtr layer =
      nvte_torch::transformer_layer(context, 32, 64, 4, "swiglu", at::kFloat, 5);
  const at::Tensor x = input({6, 2, 32}), direction = at::randn_like(x),
                   weights = normal({6, 2, 32});
  (layer->forward(x) * weights).sum().backward();
  const double along = (x.grad() * direction).sum().item<double>();
  const at::NoGradGuard no_grad;
  // TF32 leaves noise in the values, which a longer way divides.
  const double h = on_cuda() ? 5e-2 : 1e-2;
  const auto value = [&](double t) {
    return (layer->forward(x + t * direction) * weights).to(at::kDouble).sum().item<double>();
  };
  const double expected = (value(h) - value(-h)) / (2 * h);
  check("gradient of a layer along a direction",
        std::abs(along - expected) < (on_cuda() ? 20 : 1) * (2e-3 * std::abs(expected) + 2e-2),
        std::to_string(along) + ", expected " + std::to_string(expected));
  for (const at::Tensor &parameter : layer->parameters()) {
    if (!parameter.grad().defined())
      return check("gradients of all parameters of a layer", false, "one is missing");
  }
  check("gradients of all parameters of a layer", true);
}

// Two passes in flight, whose backward passes run in the order of the passes, add their gradients.
void in_flight(const ContextPtr &context) {
  const ModulePtr module = nvte_torch::linear(context, 8, 4, false, at::kFloat, 3);
  const at::Tensor a = input({5, 8}), b = input({3, 8}), weight = module->parameters()[0];
  const at::Tensor first = module->forward(a), second = module->forward(b);
  first.sum().backward(), second.sum().backward();
  const at::Tensor expected = (a.sum(0) + b.sum(0)).detach().expand({4, 8});
  check("two passes in flight", distance(weight.grad(), expected) < bound_of_products());
}

void train(const ContextPtr &context, const std::string &recipe) {
  at::manual_seed(1);
  const ModulePtr layer = nvte_torch::transformer_layer(context, 32, 64, 4, "gelu", at::kFloat, 7);
  const ModulePtr head = nvte_torch::layernorm_linear(context, 32, 32, true, at::kFloat, 8);
  Tensors parameters = layer->parameters();
  for (const at::Tensor &parameter : head->parameters()) parameters.push_back(parameter);
  const at::Tensor x = normal({16, 2, 32}), target = at::sin(x * 2);
  double first = 0, last = 0;
  for (int step = 0; step < 40; ++step) {
    if (!recipe.empty()) context->begin(recipe);
    const at::Tensor loss = (head->forward(layer->forward(x)) - target).square().mean();
    if (!recipe.empty()) context->end();
    context->forward_update();
    for (const at::Tensor &parameter : parameters) parameter.mutable_grad() = at::Tensor();
    loss.backward();
    context->backward_update();
    const at::NoGradGuard no_grad;
    for (at::Tensor &parameter : parameters) parameter -= 0.2 * parameter.grad();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  check("training " + (recipe.empty() ? "in float32" : "with " + recipe), last < 0.6 * first,
        std::to_string(first) + " -> " + std::to_string(last));
}

void operators() {
  const at::Tensor x = input({6, 10}), y = nvte_torch::activation(x, "silu"),
                   weights = at::randn_like(x);
  const Tensors ours = gradients(y, weights, {x}), theirs = gradients(at::silu(x), weights, {x});
  check("silu",
        distance(y.detach(), at::silu(x).detach()) < 1e-5 && distance(ours[0], theirs[0]) < 1e-5);
  const at::Tensor gated = nvte_torch::activation(x, "swiglu");
  const at::Tensor expected = at::silu(x.narrow(1, 0, 5)) * x.narrow(1, 5, 5);
  check("swiglu", distance(gated.detach(), expected.detach()) < 1e-5);

  const at::Tensor matrix = normal({8, 24});
  const auto [codes, transposed, scale_inv] = nvte_torch::quantize(matrix);
  const at::Tensor back = nvte_torch::dequantize(codes, scale_inv, at::kFloat);
  check("quantize", distance(back, matrix) < 0.04 && distance(back, matrix) > 0.005 &&
                        transposed.t().equal(codes));
  const double scale = matrix.abs().max().item<double>() / 448;
  check("scale_inv", std::abs(scale_inv.item<double>() / scale - 1) < 1e-5);
}

void errors(const ContextPtr &context) {
  const ModulePtr module = nvte_torch::linear(context, 8, 4, false, at::kFloat, 3);
  std::string message;
  try {
    module->forward(normal({5, 9}));
  } catch (const c10::Error &error) {
    message = error.what_without_backtrace();
  }
  check("a wrong shape is an exception with the library's text",
        message.find("expected") != std::string::npos, message);
}

}  // namespace

int main() {
  at::manual_seed(2);
  const auto context = c10::make_intrusive<Context>();
  compare("linear", nvte_torch::linear(context, 24, 16, true, at::kFloat, 1), input({3, 5, 24}),
          [](const at::Tensor &x, const Tensors &p) { return at::linear(x, p[0], p[1]); });
  compare("layernorm_linear", nvte_torch::layernorm_linear(context, 24, 16, true, at::kFloat, 1),
          input({3, 5, 24}),
          [](const at::Tensor &x, const Tensors &p) { return at::linear(norm(x, p), p[2], p[3]); });
  compare("layernorm_mlp", nvte_torch::layernorm_mlp(context, 24, 40, "silu", at::kFloat, 1),
          input({3, 5, 24}), [](const at::Tensor &x, const Tensors &p) {
            return at::linear(at::silu(at::linear(norm(x, p), p[2], p[3])), p[4], p[5]);
          });
  derivative(context);
  in_flight(context);
  operators();
  errors(context);
  for (const char *recipe : {"", "delayed_scaling", "current_scaling", "block_scaling", "mxfp8"})
    train(context, recipe);
  return g_failed != 0;
}
