// The C++20 classes of nvte/cpp/nvte.hpp: results against products in float64, ownership, and
// exceptions.

#include <nvte/cpp/nvte.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

int failures = 0;

#define CHECK(condition, ...)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      ++failures;                                                                  \
      std::fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                           \
      std::fprintf(stderr, "\n");                                                  \
    }                                                                              \
  } while (0)

// Runs `body`, which must throw an nvte::Error with the part in its text.
template <typename Body>
void expect_error(const char *part, NVTEXStatus status, Body body) {
  try {
    body();
    CHECK(false, "no error with \"%s\"", part);
  } catch (const nvte::Error &error) {
    CHECK(std::strstr(error.what(), part) != nullptr, "no \"%s\" in \"%s\"", part, error.what());
    CHECK(error.status() == status, "status %d", error.status());
  }
  CHECK(nvtex_last_status() == NVTEX_OK, "an error was left: %s", nvtex_last_error());
}

using Matrix = std::vector<float>;

// Numbers between -1 and 1.
Matrix numbers(size_t count, uint64_t state) {
  Matrix values(count);
  for (float &value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(state >> 40) / (1 << 23) - 1;
  }
  return values;
}

// `op(a) op(b)`, of which element (i, j) is the sum over p of at(a, i, p) at(b, p, j).
void check_product(const char *what, const Matrix &got, size_t m, size_t n, size_t k, auto a,
                   auto b, double tolerance) {
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t p = 0; p < k; ++p) sum += double{a(i, p)} * b(p, j);
      const double error = std::abs(sum - got[i * n + j]);
      if (!(error <= tolerance)) {
        CHECK(false, "%s[%zu, %zu]: expected %g, got %g", what, i, j, sum, got[i * n + j]);
        return;
      }
    }
  }
}

// Elements are at most 1. FP8 rounds them by up to 1/16 (E4M3) or 1/8 (E5M2); sums of up to 96
// products, whose errors have both signs, stay far below 2.
void linear(bool fp8) {
  constexpr size_t m = 64, k = 32, n = 96;
  const Matrix weight = numbers(n * k, 1), input = numbers(m * k, 2), grad = numbers(m * n, 3);
  nvte::Stream stream;
  nvte::Context context;
  nvte::Linear layer(
      context,
      [](auto &config) {
        config.name = "layer";
        config.in_features = k;
        config.out_features = n;
        config.bias = false;
      },
      stream);
  const nvte::Tensor w(std::span<const float>(weight), {n, k}, stream);
  const nvte::Tensor x(std::span<const float>(input), {m, k}, stream);
  const nvte::Tensor dy(std::span<const float>(grad), {m, n}, stream);
  const nvte::Tensor y({m, n}, kNVTEFloat32, stream), dx({m, k}, kNVTEFloat32, stream);
  const nvte::Tensor dw({n, k}, kNVTEFloat32, stream);
  layer.bind(0, w);
  layer.bind_gradient(0, dw);

  const nvte::Recipe recipe(NVTEX_RECIPE_CURRENT_SCALING, [](auto &) {});
  nvte::Tape tape = [&] {
    if (!fp8) return layer.forward({x}, {y}, nullptr, stream);
    const nvte::Region region = context.autocast(recipe);
    return layer.forward({x}, {y}, nullptr, stream);
  }();
  const NVTEXSlotScaling expected = fp8 ? NVTEX_SLOT_CURRENT : NVTEX_SLOT_HIGH_PRECISION;
  CHECK(layer.precision(0, NVTEX_ROLE_WEIGHT).scaling == expected, "fp8 %d", fp8);
  // Outside of the region products are in high precision again.
  nvte::Tape moved = std::move(tape);
  layer.backward(moved, {dy}, {dx}, stream);

  // Tensor cores take FP32 as TF32.
  const double tolerance = fp8 ? 2 : std::strcmp(nvtex_backend_name(), "cuda") == 0 ? 2e-2 : 1e-4;
  check_product(
      "y", y.to_vector<float>(stream), m, n, k,
      [&](size_t i, size_t p) { return input[i * k + p]; },
      [&](size_t p, size_t j) { return weight[j * k + p]; }, tolerance);
  check_product(
      "dx", dx.to_vector<float>(stream), m, k, n,
      [&](size_t i, size_t p) { return grad[i * n + p]; },
      [&](size_t p, size_t j) { return weight[p * k + j]; }, tolerance);
  check_product(
      "dw", dw.to_vector<float>(stream), n, k, m,
      [&](size_t i, size_t p) { return grad[p * n + i]; },
      [&](size_t p, size_t j) { return input[p * k + j]; }, tolerance);
  layer.infer({x}, {y}, nullptr, stream);
  CHECK(layer.precision(0, NVTEX_ROLE_WEIGHT).scaling == NVTEX_SLOT_HIGH_PRECISION, "after it");
}

void transformer_layer() {
  nvte::Context context;
  nvte::TransformerLayer layer(context, [](auto &config) {
    config.attention.num_attention_heads = 2;
    config.mlp.hidden_size = 32;
    config.mlp.ffn_hidden_size = 64;
    config.mlp.activation = SWIGLU;
    config.mlp.norm.kind = RMSNorm;
  });
  bool found = false;
  std::vector<nvte::Tensor> grads;
  for (const nvte::Parameter &p : layer.parameters()) {
    if (p.name == "layernorm_mlp.fc1_weight") found = p.shape == nvte::Shape{128, 32};
    grads.emplace_back(p.shape, kNVTEFloat32);
    layer.bind_gradient(p.index, grads.back());
  }
  CHECK(found, "no fc1_weight [128, 32]");
  const Matrix values = numbers(8 * 2 * 32, 4);
  const nvte::Tensor x(std::span<const float>(values), {8, 2, 32});
  const nvte::Tensor y({8, 2, 32}, kNVTEFloat32), dx({8, 2, 32}, kNVTEFloat32);
  const nvte::Tape tape = layer.forward({x}, {y});
  // The last norm's output only reaches y through its residual, so the gradient of the sum is not
  // 0.
  layer.backward(tape, {x}, {dx});
  bool any = false;
  for (const float value : dx.to_vector<float>()) {
    CHECK(std::isfinite(value), "%g", value);
    any |= value != 0;
  }
  CHECK(any, "all gradients are 0");
}

// A row of two linear layers gives what they give one after the other.
void sequential() {
  nvte::Context context;
  const auto set = [](auto &config) { config.in_features = config.out_features = 16; };
  nvte::Linear first(context, set), second(context, set);
  nvte::Sequential row(context, {{"first", first}, {"second", second}});
  CHECK(row.num_parameters() == 4, "%zu parameters", row.num_parameters());
  CHECK(row.parameter(2).name == "second.weight", "%s", row.parameter(2).name.c_str());
  const Matrix values = numbers(64, 5);
  const nvte::Tensor x(std::span<const float>(values), {4, 16});
  const nvte::Tensor h({4, 16}, kNVTEFloat32), y({4, 16}, kNVTEFloat32), z({4, 16}, kNVTEFloat32);
  first.infer({x}, {h});
  second.infer({h}, {y});
  row.infer({x}, {z});
  CHECK(y.to_vector<float>() == z.to_vector<float>(), "other results");
  const auto dotted = [&] { nvte::Sequential(context, {{"a.b", first}}); };
  expect_error("nvtex_sequential_create", NVTEX_INVALID_ARGUMENT, dotted);
}

void state_of_recipes() {
  const nvte::Recipe recipe(NVTEX_RECIPE_DELAYED_SCALING,
                            [](auto &config) { config.amax_history_len = 4; });
  nvte::Context context, other;
  nvte::Linear layer(context, [](auto &config) {
    config.name = "layer";
    config.in_features = config.out_features = 16;
  });
  const Matrix ones(256, 1);
  const nvte::Tensor x(std::span<const float>(ones), {16, 16}), y({16, 16}, kNVTEFloat32);
  {
    const nvte::Region region = context.autocast(recipe);
    const nvte::Tape tape = layer.forward({x}, {y});
  }
  context.forward_update();
  const std::vector<std::byte> state = context.save();
  CHECK(!state.empty(), "no state");
  other.load(state);
  CHECK(other.save() == state, "another state");
  expect_error("nvtex_context_load", NVTEX_INVALID_ARGUMENT,
               [&] { other.load(std::span(state).first(state.size() - 1)); });
}

void tensors() {
  static_assert(!std::is_copy_constructible_v<nvte::Tensor>);
  static_assert(std::is_nothrow_move_constructible_v<nvte::Module>);
  const std::vector<int64_t> values = {1, -2, 3};
  nvte::Tensor tensor(std::span<const int64_t>(values), {3});
  const nvte::Tensor same = nvte::Tensor::view(tensor.data(), {3, 1}, kNVTEInt64);
  CHECK(same.to_vector<int64_t>() == values, "a view of the same memory");
  // Multiples of 1/4 up to 2^6 are numbers of BFloat16.
  const Matrix quarters = {0.25f, -1.75f, 63.75f, 0};
  const nvte::Tensor full(std::span<const float>(quarters), {4});
  const nvte::Tensor half({4}, kNVTEBFloat16), back({4}, kNVTEFloat32);
  full.cast_to(half);
  half.cast_to(back);
  CHECK(back.to_vector<float>() == quarters, "a cast to BFloat16 and back");
  const nvte::Tensor empty({0, 4}, kNVTEFloat32);
  CHECK(empty.to_vector<float>().empty(), "no elements");
  expect_error("expected 3 elements of dtype 3, got 3 of 4", NVTEX_INVALID_ARGUMENT,
               [&] { tensor.to_vector<float>(); });
}

void errors() {
  nvte::Context context;
  const auto create = [&] {
    nvte::Linear layer(context, [](auto &config) { config.in_features = 16; });
  };
  expect_error("out_features", NVTEX_INVALID_ARGUMENT, create);
  // The mode of the process makes no difference.
  const NVTEXErrorMode before = nvtex_set_error_mode(NVTEX_ERROR_THROW);
  expect_error("out_features", NVTEX_INVALID_ARGUMENT, create);
  nvtex_set_error_mode(before);
  // An error that the thread had before stays in its place.
  nvtex_recipe_create(nullptr);
  const std::string first = nvtex_last_error();
  try {
    create();
    CHECK(false, "no error");
  } catch (const nvte::Error &error) {
    CHECK(std::strstr(error.what(), "out_features") != nullptr, "%s", error.what());
  }
  CHECK(!first.empty() && first == nvtex_last_error(), "\"%s\"", nvtex_last_error());
  nvtex_clear_error();
}

}  // namespace

int main() {
  const char *backend = std::getenv("NVTE_BACKEND");
  if (nvtex_backend_name() == nullptr) {
    std::fprintf(stderr, "skipped: %s cannot run\n", backend != nullptr ? backend : "no backend");
    return 77;
  }
  linear(false);
  linear(true);
  transformer_layer();
  sequential();
  state_of_recipes();
  tensors();
  errors();
  if (failures == 0) std::puts("module_cpp20: ok");
  return failures != 0;
}
