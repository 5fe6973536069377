// A layer of a Transformer in FP8 through the C++20 classes: three steps of forward and backward
// passes.
#include <cmath>
#include <cstdio>
#include <nvte/cpp/nvte.hpp>
#include <vector>

int main() try {
  constexpr size_t length = 32, batch = 2, hidden = 64;
  nvte::Stream stream;
  nvte::Context context;
  nvte::TransformerLayer layer(
      context,
      [](auto &config) {
        config.num_attention_heads = 4;
        config.hidden_size = hidden;
        config.ffn_hidden_size = 4 * hidden;
        config.activation = SWIGLU;
      },
      stream);

  std::vector<nvte::Tensor> gradients;
  for (const nvte::Parameter &parameter : layer.parameters()) {
    gradients.emplace_back(parameter.shape, kNVTEFloat32, stream);
    layer.bind_gradient(parameter.index, gradients.back());
  }

  std::vector<float> values(length * batch * hidden);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const nvte::Shape shape = {length, batch, hidden};
  const nvte::Tensor x(std::span<const float>(values), shape, stream);
  const nvte::Tensor y(shape, kNVTEFloat32, stream), dx(shape, kNVTEFloat32, stream);

  const nvte::Recipe recipe(NVTEX_RECIPE_DELAYED_SCALING, [](auto &config) { config.margin = 1; });
  for (int step = 0; step < 3; ++step) {
    const nvte::Tape tape = [&] {
      const nvte::Region region = context.autocast(recipe);  // FP8 until it is destroyed
      return layer.forward({x}, {y}, nullptr, stream);
    }();
    context.forward_update(stream);
    layer.backward(tape, {y}, {dx}, stream);  // the gradient of half the sum of squares
    context.backward_update(stream);

    double sum = 0;
    for (const float value : y.to_vector<float>(stream)) sum += double{value} * value;
    std::printf("step %d on %s: loss %.4f\n", step, nvtex_backend_name(), sum / 2);
  }
  return 0;
} catch (const nvte::Error &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
