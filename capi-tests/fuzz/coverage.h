// What coverage.c gives its inputs to.
#ifndef NVTE_FUZZ_COVERAGE_H
#define NVTE_FUZZ_COVERAGE_H

typedef void (*KeepInput)(const unsigned char *bytes, size_t size);

typedef struct Target {
  const char *name;
  // Makes what `run` needs, and the first inputs.
  void (*begin)(KeepInput keep);
  void (*run)(const unsigned char *bytes, size_t size);
  // Puts the checksum of the input to its place; returns its size.
  size_t (*seal)(unsigned char *bytes, size_t size, size_t room);
  const char *words[48];  // up to a null one
} Target;

static void keep_text(KeepInput keep, const char *text) {
  keep((const unsigned char *)text, strlen(text));
}

static const char *write_input(const char *name, const unsigned char *bytes, size_t size) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", g_folder, name);
  file_write(path, bytes, size);
  return path;
}

// ---- A model that files are loaded into

static struct {
  NVTEXContext context;
  NVTEXModule module;
  NVTEXOptimizer optimizer;
  NVTEXCheckpointConfig config;
} g_model;

static void make_model(size_t features) {
  g_model.context = nvtex_context_create(NULL);
  NVTEXLinearConfig c;
  nvtex_linear_config_init(&c, sizeof c);
  c.name = "l";
  c.in_features = c.out_features = features;
  c.dtype = kNVTEBFloat16;
  g_model.module = nvtex_linear_create(g_model.context, &c, NULL);
  NVTEXOptimizerConfig o;
  nvtex_optimizer_config_init(&o, sizeof o, NVTEX_UPDATE_ADAMW);
  g_model.optimizer = nvtex_optimizer_create(g_model.context, &o, &g_model.module, 1, NULL);
  nvtex_checkpoint_config_init(&g_model.config, sizeof g_model.config);
  g_model.config.modules = &g_model.module;
  g_model.config.num_modules = 1;
  g_model.config.optimizer = g_model.optimizer;
  EXPECT_OK();
}

// ---- State of delayed scaling

static uint32_t crc_of(const unsigned char *bytes, size_t size) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < size; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xedb88320u & (0 - (crc & 1)));
  }
  return ~crc;
}

static size_t seal_state(unsigned char *bytes, size_t size, size_t room) {
  (void)room;
  if (size < 4) return size;
  const uint32_t crc = crc_of(bytes, size - 4);
  memcpy(bytes + size - 4, &crc, 4);
  return size;
}

static void begin_state(KeepInput keep) {
  make_model(16);
  const uint16_t x[256] = {0x3f80};
  Buffer *in = buffer_from(x, sizeof x, 0), *out = buffer(sizeof x);
  const NVTETensor input = tensor(in->ptr, kNVTEBFloat16, SHAPE(16, 16)),
                   output = tensor(out->ptr, kNVTEBFloat16, SHAPE(16, 16));
  NVTEXRecipeConfig r;
  nvtex_recipe_config_init(&r, sizeof r, NVTEX_RECIPE_DELAYED_SCALING);
  r.amax_history_len = 2;
  const NVTEXRecipe recipe = nvtex_recipe_create(&r);
  nvtex_context_begin(g_model.context, recipe, NVTEX_CONTEXT_ENABLED, NULL);
  nvtex_module_forward(g_model.module, &input, 1, &output, 1, NULL, NULL, NULL);
  nvtex_context_end(g_model.context);
  EXPECT_OK();
  unsigned char bytes[4096];
  keep(bytes, nvtex_context_save(g_model.context, bytes, sizeof bytes, NULL));
  EXPECT_OK();
}

static void run_state(const unsigned char *bytes, size_t size) {
  nvtex_context_load(g_model.context, bytes, size, NULL);
}

// ---- Checkpoints

// The SHA-256 goes to where the header has it, if the header can still be found.
static size_t seal_checkpoint(unsigned char *bytes, size_t size, size_t room) {
  (void)room;
  static const char key[] = "nvte.sha256\":\"";
  for (size_t i = 8; i + sizeof key - 1 + 64 <= size; i++) {
    if (memcmp(bytes + i, key, sizeof key - 1) != 0) continue;
    char digits[65];
    memset(bytes + i + sizeof key - 1, '0', 64);
    sha256(bytes, size, digits);
    memcpy(bytes + i + sizeof key - 1, digits, 64);
    break;
  }
  return size;
}

// The header gets the length that the text up to the last brace has.
static size_t seal_header(unsigned char *bytes, size_t size, size_t room) {
  if (size < 8) return size;
  uint64_t length = 0;
  for (size_t i = 8; i + 1 < size; i++) {
    if (bytes[i] == '}' && bytes[i + 1] == '}') length = i + 2 - 8;
  }
  if (length && random_below(4)) memcpy(bytes, &length, 8);
  return seal_checkpoint(bytes, size, room);
}

static void begin_checkpoint(KeepInput keep) {
  make_model(4);
  const char *path = write_input("checkpoint", (const unsigned char *)"", 0);
  nvtex_checkpoint_save(path, &g_model.config, NULL);
  EXPECT_OK();
  size_t size;
  const unsigned char *bytes = file_read(path, &size);
  if (bytes) keep(bytes, size < 4096 ? size : 4096);
}

static void run_checkpoint(const unsigned char *bytes, size_t size) {
  nvtex_checkpoint_load(write_input("checkpoint", bytes, size), &g_model.config, NULL);
}

// ---- Weights of others: an index of files, or one file

static const char kIndex[] = "{\"weight_map\":{\"w\":\"a.safetensors\",\"b\":\"b.safetensors\"}}";

static void begin_pretrained(KeepInput keep) {
  make_model(4);
  static unsigned char file[256];
  static const char header[] =
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]},"
      "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[64,72]}}";
  const uint64_t length = sizeof header - 1;
  memcpy(file, &length, 8);
  memcpy(file + 8, header, length);
  keep(file, 8 + length + 72);
  write_input("a.safetensors", file, 8 + length + 72);
  write_input("b.safetensors", file, 8 + length + 72);
  keep_text(keep, kIndex);
}

static void run_pretrained(const unsigned char *bytes, size_t size) {
  const NVTEXSourceRows w = {"w", 0, 0}, b = {"b", 0, 0};
  const NVTEXPretrainedParameter parameters[] = {{g_model.module, 0, &w, 1},
                                                 {g_model.module, 1, &b, 1}};
  const bool index = size > 0 && bytes[0] == '{';
  const char *name = index ? "input.json" : "input.safetensors";
  nvtex_pretrained_load(write_input(name, bytes, size), parameters, 2, g_model.optimizer, NULL);
}

// ---- Texts

static void begin_policy(KeepInput keep) {
  keep_text(keep, "prefer=vendor;strict=1;gemm=vendor:acme|*;order=default|impl:a.b|reference");
  keep_text(keep, "allow_vendors=a,b;deny_vendors=none;deterministic=1;domain=auto");
}

static void run_policy(const unsigned char *bytes, size_t size) {
  char text[4097];
  memcpy(text, bytes, size);
  text[size] = 0;
  const NVTEXPolicy policy = nvtex_policy_create(NULL, text);
  if (!policy) return;
  // What a policy says of itself makes the same policy. Each text stays for ever, so that few are
  // asked for.
  if (size < 80 && bytes[0] % 16 == 0) {
    const NVTEXPolicy again = nvtex_policy_create(NULL, nvtex_policy_text(policy));
    if (!again) abort();
    nvtex_policy_destroy(again);
  }
  nvtex_policy_destroy(policy);
}

static void begin_manifest(KeepInput keep) {
  keep_text(keep,
            "# A comment\nname = acme\nlibrary = nothing.so\nabi = 0.1\noption.threads = 4\n");
  keep_text(keep, "name=a\nlibrary=/nonexistent/b.so\nother = 1\n");
}

// Nothing is loaded that the folder or the system has.
static void run_manifest(const unsigned char *bytes, size_t size) {
  for (size_t i = 0; i + 3 < size; i++) {
    if (memcmp(bytes + i, "/lib", 4) == 0 || memcmp(bytes + i, "/usr", 4) == 0) return;
  }
  nvtex_plugin_load(write_input("input.nvtex", bytes, size));
}

// ---- Sequences of calls

enum { HANDLES = 8, MEMORY = 4096 };

static struct {
  unsigned char *memory[HANDLES];
  const unsigned char *next, *end;
} g_calls;

static unsigned byte(void) { return g_calls.next < g_calls.end ? *g_calls.next++ : 0; }

// A page before one that cannot be accessed.
static unsigned char *guarded_page(void) {
  unsigned char *pages =
      mmap(NULL, 2 * MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages + MEMORY, MEMORY, PROT_NONE)) abort();
  return pages;
}

static void begin_calls(KeepInput keep) {
  // Ends at a page that cannot be accessed.
  for (size_t i = 0; i < HANDLES; i++) g_calls.memory[i] = guarded_page();
  unsigned char bytes[240];
  for (int seed = 0; seed < 40; seed++) {
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)random_u64();
    keep(bytes, sizeof bytes);
  }
}

static NVTEShape any_shape(size_t *elements) {
  static const size_t sizes[] = {0, 1, 2, 3, 4, 8, 16, 32, 64, 128};
  NVTEShape shape;
  memset(&shape, 0, sizeof shape);
  shape.ndim = byte() % 4;
  *elements = 1;
  for (size_t i = 0; i < shape.ndim; i++) {
    *elements *= shape.data[i] = sizes[byte() % COUNT(sizes)];
  }
  return shape;
}

static void run_calls(const unsigned char *bytes, size_t size) {
  g_calls.next = bytes;
  g_calls.end = bytes + size;
  NVTETensor t[HANDLES] = {0};
  NVTEQuantizationConfig configs[2] = {0};
  NVTEXPolicy policies[2] = {0};
  for (int turn = 0; turn < 64 && g_calls.next < g_calls.end; turn++) {
    const unsigned call = byte() % 24, i = byte() % HANDLES, j = byte() % HANDLES,
                   k = byte() % HANDLES;
    switch (call) {
      case 0:
        if (!t[i]) t[i] = nvte_create_tensor((NVTEScalingMode)(byte() % 6));
        break;
      case 1:
        nvte_destroy_tensor(t[i]);
        t[i] = NULL;
        break;
      case 2:
      case 3:
      case 4:
      case 5: {
        size_t elements;
        const NVTEShape shape = any_shape(&elements);
        const unsigned dtype = byte() % 12;
        const size_t bits = dtype < 11 ? dtype_bits((NVTEDType)dtype) : 64;
        if ((elements * bits + 7) / 8 > MEMORY) break;
        unsigned char *data = g_calls.memory[byte() % HANDLES];
        set_param(t[i], (NVTETensorParam)(byte() % 8),
                  byte() % 8 ? data + MEMORY - (elements * bits + 7) / 8 : NULL, (NVTEDType)dtype,
                  shape);
        break;
      }
      case 6: {
        unsigned char value[64];
        size_t written = 0;
        nvte_get_tensor_param_v2(t[i], (NVTETensorParam)(byte() % 12), value, byte() % 64,
                                 &written);
        break;
      }
      case 7: {
        const unsigned char value[64] = {(unsigned char)byte()};
        nvte_set_tensor_param_v2(t[i], (NVTETensorParam)(7 + byte() % 4), value, byte() % 9);
        break;
      }
      case 8:
        if (!configs[i % 2]) configs[i % 2] = nvte_create_quantization_config();
        break;
      case 9: {
        // Attribute 1 holds the address of a tensor.
        const unsigned attribute = byte() % 12;
        uint64_t value = byte();
        if (attribute == kNVTEQuantizationConfigNoopTensor) value = (uint64_t)(uintptr_t)t[j];
        nvte_set_quantization_config_attribute(
            configs[i % 2], (NVTEQuantizationConfigAttribute)attribute, &value, byte() % 9);
        break;
      }
      case 10:
        nvte_destroy_quantization_config(configs[i % 2]);
        configs[i % 2] = NULL;
        break;
      case 11:
        nvte_quantize_v2(t[i], t[j], configs[k % 2], NULL);
        break;
      case 12:
        nvte_dequantize(t[i], t[j], NULL);
        break;
      case 13:
        nvte_gelu(t[i], t[j], NULL);
        break;
      case 14:
        nvte_dswiglu(t[i], t[j], t[k], NULL);
        break;
      case 15:
        nvte_rmsnorm_fwd(t[i], t[j], 1e-5f, t[k], t[byte() % HANDLES], t[byte() % HANDLES],
                         (int)byte(), byte() % 2, NULL);
        break;
      case 16:
        nvte_scaled_softmax_forward(t[i], t[j], 0.5f, NULL);
        break;
      case 17:
        nvte_transpose(t[i], t[j], NULL);
        break;
      case 18:
        nvte_cublas_gemm(t[i], t[j], t[k], NULL, NULL, byte() % 2, byte() % 2, false,
                         t[byte() % HANDLES], false, byte() % 2, 0, NULL);
        break;
      case 19:
        nvte_swizzle_scaling_factors(t[i], t[j], NULL);
        break;
      case 20:
        nvte_compute_amax(t[i], t[j], NULL);
        break;
      case 21:
        if (!policies[i % 2])
          policies[i % 2] = nvtex_policy_create(
              policies[1 - i % 2], byte() % 2 ? "deterministic=1" : "prefer=reference");
        break;
      case 22:
        nvtex_policy_destroy(policies[i % 2]);
        policies[i % 2] = NULL;
        break;
      default:
        nvte_tensor_shape(t[i]);
        nvte_tensor_scaling_mode(t[j]);
    }
    // The first error stays, and only a defect is one here.
    if (nvtex_last_status() == NVTEX_INTERNAL_ERROR) break;
    nvtex_clear_error();
  }
  for (size_t i = 0; i < HANDLES; i++) nvte_destroy_tensor(t[i]);
  for (size_t i = 0; i < 2; i++) {
    nvte_destroy_quantization_config(configs[i]);
    nvtex_policy_destroy(policies[i]);
  }
}

static const Target kTargets[] = {
    {"state", begin_state, run_state, seal_state, {"l", NULL}},
    {"checkpoint",
     begin_checkpoint,
     run_checkpoint,
     seal_header,
     {"\"dtype\":\"F32\"",
      "\"shape\":[",
      "\"data_offsets\":[",
      "BF16",
      "F16",
      "I32",
      "I64",
      "U8",
      "F8_E4M3",
      "BOOL",
      "__metadata__",
      "nvte.checkpoint",
      "l.weight",
      "l.bias",
      "optimizer.exp_avg.l.weight",
      "optimizer.counters",
      "optimizer.scalars",
      "recipe.state",
      "tokens.position",
      "extra.",
      "},",
      "[",
      "]",
      "\\u0000",
      "-",
      "1e9",
      NULL}},
    {"pretrained",
     begin_pretrained,
     run_pretrained,
     seal_header,
     {"\"dtype\":\"F32\"", "\"shape\":[", "\"data_offsets\":[", "BF16", "F16", "F64", "weight_map",
      "a.safetensors", "../", "/", "input.json", "{", "}", "[", "null", "\\ud800", NULL}},
    {"policy",
     begin_policy,
     run_policy,
     NULL,
     {"prefer=",
      "strict=",
      "order=",
      "allow_vendors=",
      "deny_vendors=",
      "deterministic=",
      "domain=",
      "vendor:",
      "impl:",
      "*",
      "|",
      ";",
      ",",
      "none",
      "all",
      "auto",
      "gemm",
      "softmax",
      "softmax.causal_forward",
      "default",
      "reference",
      "flagos",
      "cpu",
      NULL}},
    {"manifest",
     begin_manifest,
     run_manifest,
     NULL,
     {"name", "library", "abi", "option.", "=", "\n", "#", "..", "/", NULL}},
    {"calls", begin_calls, run_calls, NULL, {NULL}},
};

#endif  // NVTE_FUZZ_COVERAGE_H
