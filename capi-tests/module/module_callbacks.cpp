// Functions of the program that modules call: C++ exceptions that leave them become errors, and
// calls back into the context that has called them are refused.

#include <nvte/nvte.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>

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

// The last call failed, and its text has the part.
#define EXPECT_ERROR(part)                                                                  \
  do {                                                                                      \
    CHECK(nvtex_last_status() != NVTEX_OK && std::strstr(nvtex_last_error(), part),         \
          "no \"%s\" in status %d, \"%s\"", part, nvtex_last_status(), nvtex_last_error()); \
    nvtex_clear_error();                                                                    \
  } while (0)
#define EXPECT_OK() \
  CHECK(nvtex_last_status() == NVTEX_OK, "status %d: %s", nvtex_last_status(), nvtex_last_error())

constexpr size_t kSize = 32;

// Called by the functions besides their work.
std::function<void()> on_allocate, on_release, on_choose, on_reduce;
std::set<void *> live;

void call(const std::function<void()> &body) {
  if (body) body();
}

void *allocate(void *, size_t bytes, size_t, NVTEXLifetime, cudaStream_t) {
  call(on_allocate);
  void *ptr = nvtex_malloc(bytes);
  live.insert(ptr);
  return ptr;
}

void release(void *, void *ptr, size_t, NVTEXLifetime, cudaStream_t stream) {
  live.erase(ptr);
  nvtex_stream_synchronize(stream);
  nvtex_free(ptr);
  call(on_release);
}

int choose(void *, const char *, NVTEXRole role, NVTEXSlotChoice *choice) {
  choice->scaling = NVTEX_SLOT_CURRENT;
  choice->dtype = role == NVTEX_ROLE_GRAD_OUTPUT ? kNVTEFloat8E5M2 : kNVTEFloat8E4M3;
  call(on_choose);
  return 0;
}

int reduce(void *, void *, float *, size_t, cudaStream_t) {
  call(on_reduce);
  return 0;
}

NVTETensor matrix(void *data) {
  NVTEBasicTensor basic{};
  basic.data_ptr = data;
  basic.dtype = kNVTEFloat32;
  basic.shape.ndim = 2;
  basic.shape.data[0] = basic.shape.data[1] = kSize;
  const NVTETensor tensor = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_set_tensor_param_v2(tensor, kNVTERowwiseData, &basic, sizeof basic);
  return tensor;
}

// A context with the functions above, a linear layer in it, and tensors for it.
struct Setup {
  NVTEXContext context = nullptr;
  NVTEXModule layer = nullptr;
  NVTEXRecipe recipe = nullptr;
  void *memory = nullptr;
  NVTETensor x = nullptr, y = nullptr;

  explicit Setup(NVTEXRecipeKind kind = NVTEX_RECIPE_CUSTOM) {
    on_allocate = on_release = on_choose = on_reduce = nullptr;
    NVTEXContextConfig config;
    nvtex_context_config_init(&config, sizeof config);
    config.allocate = allocate;
    config.release = release;
    config.all_reduce_max = reduce;
    context = nvtex_context_create(&config);
    layer = make("layer");
    NVTEXRecipeConfig options;
    nvtex_recipe_config_init(&options, sizeof options, kind);
    if (kind == NVTEX_RECIPE_CUSTOM) options.choose = choose;
    recipe = nvtex_recipe_create(&options);
    const size_t bytes = kSize * kSize * sizeof(float);
    memory = nvtex_malloc(2 * bytes);
    nvte_memset(memory, 0, 2 * bytes, nullptr);
    x = matrix(memory);
    y = matrix(static_cast<char *>(memory) + bytes);
    EXPECT_OK();
  }

  ~Setup() {
    on_allocate = on_release = on_choose = on_reduce = nullptr;
    nvte_destroy_tensor(x);
    nvte_destroy_tensor(y);
    nvtex_module_destroy(layer);
    nvtex_recipe_destroy(recipe);
    nvtex_context_destroy(context);
    nvtex_free(memory);
    EXPECT_OK();
    CHECK(live.empty(), "%zu blocks are left", live.size());
  }

  NVTEXModule make(const char *name) const {
    NVTEXLinearConfig config;
    nvtex_linear_config_init(&config, sizeof config);
    config.name = name;
    config.in_features = config.out_features = kSize;
    return nvtex_linear_create(context, &config, nullptr);
  }

  NVTEXTape forward() const {
    NVTEXTape tape = nullptr;
    nvtex_context_begin(context, recipe, NVTEX_CONTEXT_ENABLED, context);
    nvtex_module_forward(layer, &x, 1, &y, 1, nullptr, &tape, nullptr);
    nvtex_context_end(context);
    return tape;
  }

  // A step after an error must work.
  void works() const {
    on_allocate = on_release = on_choose = on_reduce = nullptr;
    const NVTEXTape tape = forward();
    nvtex_module_backward(layer, tape, &y, 1, &x, 1, nullptr);
    nvtex_tape_destroy(tape);
    nvtex_context_forward_update(context, nullptr);
    EXPECT_OK();
  }
};

void test_exceptions() {
  const auto thrown = [] { throw std::runtime_error("thrown by the test"); };
  {
    Setup s;
    on_choose = thrown;
    CHECK(!s.forward(), "a tape");
    EXPECT_ERROR(
        "recipe.choose(layer, input): the function threw an exception: thrown by the test");
    on_choose = [] { throw 7; };
    CHECK(!s.forward(), "a tape");
    EXPECT_ERROR("the function threw an exception: an exception that is no std::exception");
    // Texts longer than the room for them are cut.
    on_choose = [] { throw std::runtime_error(std::string(5000, 'x')); };
    CHECK(!s.forward(), "a tape");
    EXPECT_ERROR("xxxxxxxx");
    s.works();
  }
  {
    // Every allocation of a step throws once.
    Setup s;
    s.works();
    for (int at = 0, failed = 1; failed; at++) {
      int left = at;
      failed = 0;
      on_allocate = [&] {
        if (left-- == 0) {
          failed = 1;
          throw std::runtime_error("no memory");
        }
      };
      const NVTEXTape tape = s.forward();
      if (tape) nvtex_module_backward(s.layer, tape, &s.y, 1, &s.x, 1, nullptr);
      if (failed) EXPECT_ERROR("allocator.allocate: the function threw an exception: no memory");
      EXPECT_OK();
      nvtex_tape_destroy(tape);
      CHECK(at < 1000, "it never ends");
    }
    on_allocate = thrown;
    CHECK(!s.make("another"), "a module");
    EXPECT_ERROR("nvtex_linear_create: allocator.allocate: the function threw");
    s.works();
  }
  {
    // The block counts as released, and the call goes on.
    Setup s;
    on_release = thrown;
    const NVTEXTape tape = s.forward();
    nvtex_module_backward(s.layer, tape, &s.y, 1, &s.x, 1, nullptr);
    nvtex_tape_destroy(tape);
    EXPECT_OK();
    s.works();
  }
  {
    Setup s(NVTEX_RECIPE_DELAYED_SCALING);
    s.works();
    on_reduce = thrown;
    nvtex_context_forward_update(s.context, nullptr);
    EXPECT_ERROR("config.all_reduce_max: the function threw an exception: thrown by the test");
    s.works();
  }
}

// In mode `throw` an error within a function becomes an exception, and that one of the outer call.
void test_mode_throw() {
  Setup s;
  nvtex_set_error_mode(NVTEX_ERROR_THROW);
  on_allocate = [] { nvtex_malloc(static_cast<size_t>(1) << 62); };
  std::string text;
  try {
    s.make("another");
  } catch (const std::runtime_error &error) {
    text = error.what();
  }
  nvtex_set_error_mode(NVTEX_ERROR_RETURN);
  nvtex_clear_error();
  CHECK(text.find("nvtex_linear_create: allocator.allocate: the function threw") == 0 &&
            text.find("nvtex_malloc") != std::string::npos,
        "%s", text.c_str());
  s.works();
}

void test_nested() {
  const char *const text = "in use by the call that called this function";
  Setup s;
  NVTEXKVCacheConfig sizes;
  nvtex_kv_cache_config_init(&sizes, sizeof sizes);
  sizes.max_batch_size = sizes.max_sequence_length = 1;
  const NVTEXKVCache cache = nvtex_kv_cache_create(s.context, &sizes, nullptr);
  const NVTEXTape tape = s.forward();
  EXPECT_OK();
  const std::function<void()> calls[] = {
      [&] { nvtex_context_state_size(s.context); },
      [&] { nvtex_context_begin(s.context, s.recipe, 1, nullptr); },
      [&] { nvtex_context_destroy(s.context); },
      [&] { nvtex_context_trim(s.context, 0); },
      [&] { nvtex_module_num_parameters(s.layer); },
      [&] { nvtex_module_set_gradient(s.layer, 0, nullptr, false); },
      [&] { nvtex_module_forward(s.layer, &s.x, 1, &s.y, 1, nullptr, nullptr, nullptr); },
      [&] { nvtex_module_backward(s.layer, tape, &s.y, 1, &s.x, 1, nullptr); },
      [&] { nvtex_module_destroy(s.layer); },
      [&] { nvtex_tape_destroy(tape); },
      [&] { nvtex_kv_cache_length(cache, 0); },
      [&] { nvtex_kv_cache_destroy(cache); },
      [&] { s.make("another"); },
  };
  for (const auto &nested : calls) {
    for (auto *hook : {&on_choose, &on_allocate, &on_release}) {
      int runs = 0;
      *hook = [&] {
        if (runs++) return;
        nested();
        EXPECT_ERROR(text);
      };
      // A recipe of its own, so that the chooser is asked.
      NVTEXRecipeConfig options;
      nvtex_recipe_config_init(&options, sizeof options, NVTEX_RECIPE_CUSTOM);
      options.choose = choose;
      const NVTEXRecipe old = s.recipe;
      s.recipe = nvtex_recipe_create(&options);
      nvtex_tape_destroy(s.forward());
      EXPECT_OK();
      CHECK(runs > 0, "the function was not called");
      *hook = nullptr;
      nvtex_recipe_destroy(old);
    }
  }
  // Another context may be used.
  int runs = 0;
  on_allocate = [&] {
    if (runs++) return;
    const NVTEXContext other = nvtex_context_create(nullptr);
    CHECK(nvtex_context_state_size(other) > 0, "no size");
    nvtex_context_destroy(other);
  };
  nvtex_tape_destroy(s.forward());
  EXPECT_OK();
  CHECK(runs > 0, "the function was not called");
  on_allocate = nullptr;
  nvtex_tape_destroy(tape);
  nvtex_kv_cache_destroy(cache);
}

}  // namespace

int main() {
  if (nvtex_backend_name() == nullptr) {
    std::fprintf(stderr, "skipped: %s\n", nvtex_last_error());
    return 77;
  }
  test_exceptions();
  test_mode_throw();
  test_nested();
  if (failures) std::fprintf(stderr, "%d checks failed\n", failures);
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
