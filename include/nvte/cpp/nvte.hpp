#ifndef NVTE_CPP_NVTE_HPP
#define NVTE_CPP_NVTE_HPP

// C++20 classes over nvte/module.h: contexts, recipes, modules, tapes and tensors that destroy what
// they own, and can be moved but not copied. A call that fails throws nvte::Error, whatever the
// error mode of the process is; destructors never throw. Classes convert to the handles of C, so
// every function of the C headers can be used beside them.
//
// What the library keeps an address of must live long enough, as in C: tensors that are bound to
// parameters as long as the module is used, those of a forward pass until its tape is destroyed.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nvte/cast.h"
#include "nvte/module.h"
#include "nvte/nvtex.h"
#include "nvte/transformer_engine.h"

namespace nvte {

// A call that has failed. The text names the argument, what was expected, and what was got.
class Error : public std::runtime_error {
 public:
  Error(NVTEXStatus status, const char *message) : std::runtime_error(message), status_(status) {}
  NVTEXStatus status() const noexcept { return status_; }

 private:
  NVTEXStatus status_;
};

namespace detail {

// Returns what `body` returns. If a call of C in it fails, throws an Error; an error that the
// thread had before stays.
template <std::invocable Body>
auto checked(Body &&body) {
  struct Check {
    uint64_t before = nvtex_error_count();
    void operator()() const {
      if (nvtex_error_count() == before) return;
      // The status of the thread's first failure, which is this one unless another was left before.
      const NVTEXStatus status = nvtex_last_status();
      const char *message = nvtex_take_error(before);
      throw Error(status, message != nullptr ? message : "the library gave no message");
    }
  };
  const Check check;
  using Result = decltype(body());
  if constexpr (std::is_void_v<Result>) {
    try {
      body();
    } catch (const std::runtime_error &) {
      check();  // In the error mode throw the call itself has thrown.
      throw;
    }
    check();
  } else {
    Result result{};
    try {
      result = body();
    } catch (const std::runtime_error &) {
      check();
      throw;
    }
    check();
    return result;
  }
}

template <auto destroy>
struct Destroy {
  template <typename Handle>
  void operator()(Handle handle) const noexcept {
    try {
      const uint64_t before = nvtex_error_count();
      destroy(handle);
      nvtex_take_error(before);
    } catch (...) {
      // In the error mode throw; there is nobody to tell.
    }
  }
};

template <typename Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<destroy>>;

}  // namespace detail

// What the library calls the types of elements that C++ has.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<uint8_t> : std::integral_constant<NVTEDType, kNVTEByte> {};
template <>
struct DTypeOf<int16_t> : std::integral_constant<NVTEDType, kNVTEInt16> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<NVTEDType, kNVTEInt32> {};
template <>
struct DTypeOf<int64_t> : std::integral_constant<NVTEDType, kNVTEInt64> {};
template <>
struct DTypeOf<float> : std::integral_constant<NVTEDType, kNVTEFloat32> {};

template <typename T>
concept Element = requires { DTypeOf<T>::value; };

using Shape = std::vector<size_t>;

// A queue of work on the device. The default one is null; every function that takes a stream takes
// a cudaStream_t.
class Stream {
 public:
  Stream() : stream_(detail::checked([] { return nvtex_stream_create(); })) {}
  void synchronize() const {
    detail::checked([&] { nvtex_stream_synchronize(stream_.get()); });
  }
  operator cudaStream_t() const noexcept { return stream_.get(); }

 private:
  detail::Owned<cudaStream_t, nvtex_stream_destroy> stream_;
};

// A tensor: a handle, and its memory on the device unless that belongs to the program.
class Tensor {
 public:
  // A tensor with memory of its own, whose bytes are 0.
  Tensor(const Shape &shape, NVTEDType dtype, cudaStream_t stream = nullptr)
      : Tensor(nullptr, shape, dtype) {
    const size_t bytes = detail::checked([&] { return nvte_tensor_size_bytes(handle_.get()); });
    memory_.reset(detail::checked([&] { return nvtex_malloc(bytes); }));
    set(memory_.get());
    if (bytes > 0) detail::checked([&] { nvte_memset(memory_.get(), 0, bytes, stream); });
  }

  // A tensor with memory of its own that has the elements of the host, in row-major order.
  template <Element T>
  Tensor(std::span<const T> values, const Shape &shape, cudaStream_t stream = nullptr)
      : Tensor(shape, DTypeOf<T>::value, stream) {
    write(values, stream);
  }

  // A tensor over memory of the program on the device, which must live as long as the tensor is
  // used.
  static Tensor view(void *data, const Shape &shape, NVTEDType dtype) {
    return Tensor(data, shape, dtype);
  }

  // Copies all elements from the host, on the stream.
  template <Element T>
  void write(std::span<const T> values, cudaStream_t stream = nullptr) {
    check<T>("write", values.size());
    detail::checked(
        [&] { nvtex_memcpy_to_device(data(), values.data(), values.size_bytes(), stream); });
  }

  // Copies all elements to the host, and waits for the stream.
  template <Element T>
  void read(std::span<T> values, cudaStream_t stream = nullptr) const {
    check<T>("read", values.size());
    detail::checked([&] {
      nvtex_memcpy_to_host(values.data(), data(), values.size_bytes(), stream);
      nvtex_stream_synchronize(stream);
    });
  }

  template <Element T>
  std::vector<T> to_vector(cudaStream_t stream = nullptr) const {
    std::vector<T> values(size());
    read(std::span<T>(values), stream);
    return values;
  }

  // Writes the elements to a tensor of this shape, rounded to its type: Float32, Float16 or
  // BFloat16.
  void cast_to(const Tensor &to, cudaStream_t stream = nullptr) const {
    detail::checked([&] { nvte_quantize_v2(handle_.get(), to.handle_.get(), nullptr, stream); });
  }

  const Shape &shape() const noexcept { return shape_; }
  NVTEDType dtype() const noexcept { return dtype_; }
  size_t size() const noexcept {
    size_t count = 1;
    for (const size_t dim : shape_) count *= dim;
    return count;
  }
  void *data() const { return nvte_tensor_data(handle_.get()); }
  operator NVTETensor() const noexcept { return handle_.get(); }

 private:
  Tensor(void *data, const Shape &shape, NVTEDType dtype)
      : handle_(detail::checked([] { return nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING); })),
        shape_(shape),
        dtype_(dtype) {
    set(data);
  }

  void set(void *data) {
    detail::checked([&] {
      const NVTEBasicTensor buffer = {data, dtype_, nvte_make_shape(shape_.data(), shape_.size())};
      nvte_set_tensor_param_v2(handle_.get(), kNVTERowwiseData, &buffer, sizeof buffer);
    });
  }

  template <Element T>
  void check(const char *call, size_t count) const {
    if (DTypeOf<T>::value == dtype_ && count == size()) return;
    const std::string text = std::string("nvte::Tensor::") + call + ": expected " +
                             std::to_string(size()) + " elements of dtype " +
                             std::to_string(dtype_) + ", got " + std::to_string(count) + " of " +
                             std::to_string(DTypeOf<T>::value);
    throw Error(NVTEX_INVALID_ARGUMENT, text.c_str());
  }

  detail::Owned<void *, nvtex_free> memory_;
  detail::Owned<NVTETensor, nvte_destroy_tensor> handle_;
  Shape shape_;
  NVTEDType dtype_;
};

// Some tensors, for an argument: `{x, y}`, or a span of handles. nullptr stands for an optional
// tensor that is missing.
class Tensors {
 public:
  Tensors(std::initializer_list<NVTETensor> handles) : handles_(handles) {}
  Tensors(std::span<const NVTETensor> handles) : handles_(handles.begin(), handles.end()) {}
  const NVTETensor *data() const noexcept { return handles_.data(); }
  size_t size() const noexcept { return handles_.size(); }

 private:
  std::vector<NVTETensor> handles_;
};

// How operands of matrix products are scaled.
class Recipe {
 public:
  static NVTEXRecipeConfig config(NVTEXRecipeKind kind) {
    NVTEXRecipeConfig config;
    detail::checked([&] { nvtex_recipe_config_init(&config, sizeof config, kind); });
    return config;
  }
  explicit Recipe(NVTEXRecipeKind kind) : Recipe(config(kind)) {}
  explicit Recipe(const NVTEXRecipeConfig &config)
      : recipe_(detail::checked([&] { return nvtex_recipe_create(&config); })) {}
  // Sets fields of the defaults: `Recipe(NVTEX_RECIPE_DELAYED_SCALING, [](auto &c) { c.margin = 1;
  // })`.
  template <std::invocable<NVTEXRecipeConfig &> Set>
  Recipe(NVTEXRecipeKind kind, Set &&set) : Recipe(changed(kind, set)) {}
  operator NVTEXRecipe() const noexcept { return recipe_.get(); }

 private:
  template <typename Set>
  static NVTEXRecipeConfig changed(NVTEXRecipeKind kind, Set &set) {
    NVTEXRecipeConfig config = Recipe::config(kind);
    set(config);
    return config;
  }

  detail::Owned<NVTEXRecipe, nvtex_recipe_destroy> recipe_;
};

// A region of a context, which ends with the object.
class Region {
 public:
  Region(NVTEXContext context, NVTEXRecipe recipe, uint32_t flags, void *amax_group) {
    detail::checked([&] { nvtex_context_begin(context, recipe, flags, amax_group); });
    context_.reset(context);
  }

 private:
  detail::Owned<NVTEXContext, nvtex_context_end> context_;
};

// All state of FP8 training that modules share.
class Context {
 public:
  static NVTEXContextConfig config() {
    NVTEXContextConfig config;
    detail::checked([&] { nvtex_context_config_init(&config, sizeof config); });
    return config;
  }
  Context() : context_(detail::checked([] { return nvtex_context_create(nullptr); })) {}
  explicit Context(const NVTEXContextConfig &config)
      : context_(detail::checked([&] { return nvtex_context_create(&config); })) {}

  // Until the result is destroyed, forward passes and creations follow the recipe.
  [[nodiscard]] Region autocast(const Recipe &recipe, uint32_t flags = NVTEX_CONTEXT_ENABLED,
                                void *amax_group = nullptr) {
    return Region(context_.get(), recipe, flags, amax_group);
  }
  void forward_update(cudaStream_t stream = nullptr) {
    detail::checked([&] { nvtex_context_forward_update(context_.get(), stream); });
  }
  void backward_update(cudaStream_t stream = nullptr) {
    detail::checked([&] { nvtex_context_backward_update(context_.get(), stream); });
  }

  // The state of delayed scaling of all layers, by name.
  std::vector<std::byte> save(cudaStream_t stream = nullptr) const {
    return detail::checked([&] {
      std::vector<std::byte> state(nvtex_context_state_size(context_.get()));
      state.resize(nvtex_context_save(context_.get(), state.data(), state.size(), stream));
      return state;
    });
  }
  void load(std::span<const std::byte> state, cudaStream_t stream = nullptr) {
    detail::checked(
        [&] { nvtex_context_load(context_.get(), state.data(), state.size(), stream); });
  }
  size_t trim(size_t bytes_to_keep = 0) {
    return detail::checked([&] { return nvtex_context_trim(context_.get(), bytes_to_keep); });
  }
  operator NVTEXContext() const noexcept { return context_.get(); }

 private:
  detail::Owned<NVTEXContext, nvtex_context_destroy> context_;
};

// What a backward pass needs.
class Tape {
 public:
  explicit Tape(NVTEXTape tape) noexcept : tape_(tape) {}
  operator NVTEXTape() const noexcept { return tape_.get(); }

 private:
  detail::Owned<NVTEXTape, nvtex_tape_destroy> tape_;
};

struct Parameter {
  size_t index;
  std::string name;
  Shape shape;
  NVTEDType dtype;
  bool quantized;    // The value exists in FP8 alone.
  NVTETensor value;  // Valid until the module is destroyed or the value is bound anew.
};

// Options of a forward pass, with their defaults.
inline NVTEXStep step() {
  NVTEXStep step;
  detail::checked([&] { nvtex_step_init(&step, sizeof step); });
  return step;
}

// A module of any kind.
class Module {
 public:
  explicit Module(NVTEXModule module) noexcept : module_(module) {}

  // Runs the forward pass, and returns what the backward pass needs.
  Tape forward(const Tensors &inputs, const Tensors &outputs, const NVTEXStep *step = nullptr,
               cudaStream_t stream = nullptr) {
    NVTEXTape tape = nullptr;
    run(inputs, outputs, step, &tape, stream);
    return Tape(tape);
  }
  // Runs the forward pass alone.
  void infer(const Tensors &inputs, const Tensors &outputs, const NVTEXStep *step = nullptr,
             cudaStream_t stream = nullptr) {
    run(inputs, outputs, step, nullptr, stream);
  }
  // Runs the backward pass: gradients of the inputs, and those of parameters that are bound.
  void backward(const Tape &tape, const Tensors &grad_outputs, const Tensors &grad_inputs,
                cudaStream_t stream = nullptr) {
    detail::checked([&] {
      nvtex_module_backward(module_.get(), tape, grad_outputs.data(), grad_outputs.size(),
                            grad_inputs.data(), grad_inputs.size(), stream);
    });
  }

  size_t num_parameters() const {
    return detail::checked([&] { return nvtex_module_num_parameters(module_.get()); });
  }
  Parameter parameter(size_t index) const {
    NVTEXParameter p = {};
    p.struct_size = sizeof p;
    detail::checked([&] { nvtex_module_parameter(module_.get(), index, &p); });
    return {index,   p.name,      Shape(p.shape.data, p.shape.data + p.shape.ndim),
            p.dtype, p.quantized, p.value};
  }
  std::vector<Parameter> parameters() const {
    std::vector<Parameter> all;
    for (size_t i = 0, n = num_parameters(); i < n; ++i) all.push_back(parameter(i));
    return all;
  }
  // Binds the value of a parameter to a tensor, which every pass reads from then on.
  void bind(size_t index, NVTETensor value) {
    detail::checked([&] { nvtex_module_set_parameter(module_.get(), index, value); });
  }
  // Binds the gradient of a parameter to a tensor; nullptr: no gradient is computed.
  void bind_gradient(size_t index, NVTETensor grad, bool accumulate = false) {
    detail::checked([&] { nvtex_module_set_gradient(module_.get(), index, grad, accumulate); });
  }
  // Copies a tensor to the value of a parameter, and casts it.
  void assign(size_t index, NVTETensor value, cudaStream_t stream = nullptr) {
    detail::checked([&] { nvtex_module_assign_parameter(module_.get(), index, value, stream); });
  }
  // The initial value of a parameter, before rounding.
  std::vector<float> initial_value(size_t index) const {
    size_t count = 1;
    for (const size_t dim : parameter(index).shape) count *= dim;
    std::vector<float> value(count);
    detail::checked([&] { nvtex_module_initial_value(module_.get(), index, value.data(), count); });
    return value;
  }
  // How an operand of the products of a weight was cast in the last forward pass.
  NVTEXSlotChoice precision(size_t index, NVTEXRole role) const {
    NVTEXSlotChoice choice = {};
    detail::checked([&] { nvtex_module_precision(module_.get(), index, role, &choice); });
    return choice;
  }
  operator NVTEXModule() const noexcept { return module_.get(); }

 private:
  void run(const Tensors &inputs, const Tensors &outputs, const NVTEXStep *step, NVTEXTape *tape,
           cudaStream_t stream) {
    detail::checked([&] {
      nvtex_module_forward(module_.get(), inputs.data(), inputs.size(), outputs.data(),
                           outputs.size(), step, tape, stream);
    });
  }

  detail::Owned<NVTEXModule, nvtex_module_destroy> module_;
};

// Modules in a row: the first output of each is the first input of the next. It keeps the others
// alive.
class Sequential : public Module {
 public:
  // Parts and their names, which are unique and have no dots: `Sequential(context, {{"first", a},
  // {"second", b}})`.
  Sequential(const Context &context,
             std::initializer_list<std::pair<const char *, NVTEXModule>> parts)
      : Module(create(context, parts)) {}

 private:
  static NVTEXModule create(NVTEXContext context,
                            std::span<const std::pair<const char *, NVTEXModule>> parts) {
    std::vector<const char *> names;
    std::vector<NVTEXModule> modules;
    for (const auto &[name, module] : parts) {
      names.push_back(name);
      modules.push_back(module);
    }
    return detail::checked([&] {
      return nvtex_sequential_create(context, modules.data(), names.data(), modules.size());
    });
  }
};

// A kind of module: its config, and the functions that fill one and create the module.
template <typename ConfigType, void (*init)(ConfigType *, size_t),
          NVTEXModule (*create)(NVTEXContext, const ConfigType *, cudaStream_t)>
class ModuleOf : public Module {
 public:
  using Config = ConfigType;

  // A config with the library's defaults.
  static Config config() {
    Config config;
    detail::checked([&] { init(&config, sizeof config); });
    return config;
  }
  ModuleOf(const Context &context, const Config &config, cudaStream_t stream = nullptr)
      : Module(detail::checked([&] { return create(context, &config, stream); })) {}
  // Sets fields of the defaults: `Linear(context, [](auto &c) { c.in_features = 64; ... })`.
  template <std::invocable<Config &> Set>
  ModuleOf(const Context &context, Set &&set, cudaStream_t stream = nullptr)
      : ModuleOf(context, changed(set), stream) {}

 private:
  template <typename Set>
  static Config changed(Set &set) {
    Config config = ModuleOf::config();
    set(config);
    return config;
  }
};

}  // namespace nvte

#include "nvte/cpp/modules.hpp"

#endif  // NVTE_CPP_NVTE_HPP
