// What a plugin may register and what not, by entry functions that are part of this program. A
// plugin is registered whole or not at all.
#define _DEFAULT_SOURCE

#include "child.h"
#include "nvte/dispatch.h"
#include "nvte/transformer_engine.h"

static int32_t decline(void *user, const NVTEXCall *call) {
  (void)user;
  (void)call;
  return NVTEX_PLUGIN_DECLINED;
}

// What the next entry does.
static struct {
  const char *name;
  void (*body)(const NVTEXHost *host, NVTEXPlugin *plugin);
  int32_t result;
} g_next;

static int32_t entry(const NVTEXHost *host, NVTEXPlugin *plugin) {
  CHECK_EQ(host->struct_size, sizeof *host);
  CHECK_EQ(plugin->struct_size, sizeof *plugin);
  CHECK_EQ(host->abi_major, NVTEX_PLUGIN_ABI_MAJOR);
  CHECK_EQ(host->abi_minor, NVTEX_PLUGIN_ABI_MINOR);
  CHECK(strcmp(host->library_version, nvtex_version()) == 0, "%s", host->library_version);
  plugin->name = g_next.name;
  plugin->version = "1";
  plugin->vendor = "test";
  g_next.body(host, plugin);
  return g_next.result;
}

static NVTEXImpl impl_of(const char *id) {
  NVTEXImpl impl = {.struct_size = sizeof impl,
                    .op = "padding",
                    .op_version = NVTEX_BUILT_WITH(PADDING),
                    .id = id,
                    .vendor = "test",
                    .domain = "cpu",
                    .kind = NVTEX_KIND_VENDOR,
                    .priority = NVTEX_PRIORITY_OF_KIND,
                    .execute = decline};
  return impl;
}

static int32_t add(const NVTEXHost *host, const NVTEXImpl *impl) {
  return host->add_impl(host->context, impl);
}

static bool attempt(const char *name, void (*body)(const NVTEXHost *, NVTEXPlugin *),
                    int32_t result) {
  g_next.name = name;
  g_next.body = body;
  g_next.result = result;
  return nvtex_plugin_register(entry);
}

static NVTEXPluginInfo last(void) {
  NVTEXPluginInfo info = {.struct_size = sizeof info};
  CHECK(nvtex_plugin_info(nvtex_plugin_count() - 1, &info), "no plugin");
  return info;
}

// ---- One implementation of which one thing is wrong

static char g_long[(1 << 20) + 1];
static NVTEXImpl g_impl;
static int32_t g_answer;
static bool g_late;  // What is wrong comes out when the entry function has returned.

static void add_given(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)plugin;
  NVTEXImpl good = impl_of("good");
  CHECK_EQ(add(host, &good), NVTEX_PLUGIN_OK);
  g_answer = add(host, &g_impl);
}

#define WRONG(change, ...)                                                   \
  do {                                                                       \
    g_impl = impl_of("wrong");                                               \
    change;                                                                  \
    CHECK(!attempt("wrong", add_given, 0), "registered");                    \
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvtex_plugin_register: ", __VA_ARGS__); \
    CHECK_EQ(g_answer, g_late ? NVTEX_PLUGIN_OK : NVTEX_PLUGIN_FAILED);      \
    CHECK(last().refused && last().implementations == 0, "not refused");     \
  } while (0)

static void test_wrong(void) {
  if (!case_begin("wrong implementations")) return;
  memset(g_long, 'x', sizeof g_long - 1);
  WRONG(g_impl.struct_size = 0, "impl.struct_size: expected its size, at least", "got 0");
  WRONG(g_impl.struct_size = sizeof g_impl - 1, "impl.struct_size: expected its size");
  WRONG(g_impl.op = NULL, "impl.op: expected the name of an operator, got null");
  WRONG(g_impl.op = g_long, "impl.op: expected at most 126 bytes");
  WRONG(g_impl.id = NULL, "impl.id: expected a name, got null");
  WRONG(g_impl.id = "", "impl.id: expected a name");
  WRONG(g_impl.id = "Acme", "impl.id: expected a name of a-z");
  WRONG(g_impl.id = "a b", "impl.id: expected a name of a-z");
  WRONG(g_impl.id = g_long, "impl.id: expected at most 63 bytes");
  WRONG(g_impl.vendor = g_long, "impl.vendor: expected at most 63 bytes");
  WRONG(g_impl.vendor = "\x01", "impl.vendor: expected printable ASCII");
  WRONG(g_impl.domain = NULL, "impl.domain: expected a name, got null");
  WRONG(g_impl.execute = NULL, "padding: wrong: impl.execute: expected a function, got null");
  WRONG(g_impl.kind = 0, "impl.kind: expected an NVTEX_KIND, got 0");
  WRONG(g_impl.kind = 4, "impl.kind: expected an NVTEX_KIND, got 4");
  WRONG(g_impl.priority = -2, "impl.priority: ", "got -2");
  WRONG(g_impl.priority = 1001, "impl.priority: ", "got 1001");
  WRONG((g_impl.min_arch = 90, g_impl.max_arch = 80), "impl.max_arch: ", "got 80");
  WRONG(g_impl.flags = 1u << 31, "impl.flags: ", "0x80000000");
  WRONG(g_impl.numerics = 4, "impl.numerics: ", "got 4");
  WRONG(g_impl.rtol = 1, "impl.rtol: ", "got 1");
  WRONG((g_impl.numerics = NVTEX_NUMERICS_APPROX, g_impl.atol = -1), "impl.atol: ", "got -1");
  WRONG((g_impl.numerics = NVTEX_NUMERICS_APPROX, g_impl.rtol = NAN), "impl.rtol: ", "got NaN");
  WRONG(g_impl.args_size = 1, "impl.args_size: expected the size of the argument struct", "got 1");
  // A later minor version may have longer arguments, up to a limit.
  WRONG((g_impl.op_version++, g_impl.args_size = 5000), "impl.args_size: ", "4096", "got 5000");
  g_late = true;
  WRONG(g_impl.id = "good", "good (padding): the plugin has another implementation");
  WRONG(g_impl.domain = "nowhere", "wrong (padding): domain: expected one that is registered");
  g_late = false;
}

// ---- Structs of other sizes

static struct {
  NVTEXImpl impl;
  unsigned char more[24];
} g_longer;

static void add_longer(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)plugin;
  g_answer = add(host, &g_longer.impl);
}

static void test_sizes(void) {
  if (!case_begin("longer structs")) return;
  memset(&g_longer, 0, sizeof g_longer);
  g_longer.impl = impl_of("longer");
  g_longer.impl.struct_size = sizeof g_longer;
  g_longer.more[23] = 1;
  CHECK(!attempt("longer", add_longer, 0), "registered");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "impl: byte ", "is not 0", "a newer library is needed");
  g_longer.more[23] = 0;
  CHECK(attempt("longer", add_longer, 0), "not registered");
  EXPECT_OK();
  CHECK_EQ(g_answer, NVTEX_PLUGIN_OK);
}

// ---- Argument structs of a later minor version: longer, and the rest of them 0

typedef struct Later {
  NVTEXPaddingArgs args;
  unsigned char more[200];
} Later;

static size_t g_later_calls;

static int32_t later_execute(void *user, const NVTEXCall *call) {
  (void)user;
  const Later *later = call->args;
  unsigned char all = 0;
  for (size_t i = 0; i < sizeof later->more; i++) all |= later->more[i];
  CHECK_EQ(all, 0);
  CHECK_EQ(call->args_size, sizeof *later);
  for (size_t i = 0; i < later->args.num_tensors; i++) {
    const NVTEXPaddedTensor *tensor = &later->args.tensors[i];
    memcpy(tensor->output, tensor->input, tensor->copied);
    memset((char *)tensor->output + tensor->copied, 0, tensor->zeroed);
  }
  g_later_calls++;
  return NVTEX_PLUGIN_OK;
}

static void add_later(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)plugin;
  NVTEXImpl impl = impl_of("later");
  impl.op_version++;
  impl.args_size = sizeof(Later);
  impl.execute = later_execute;
  CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_OK);
}

static void test_later(void) {
  if (!case_begin("built with longer arguments")) return;
  CHECK(attempt("later", add_later, 0), "not registered");
  EXPECT_OK();
  const float values[] = {1, 2, 3, 4, 5, 6};
  Buffer *in = buffer_from(values, sizeof values, 0), *out = buffer(8 * sizeof(float));
  NVTETensor inputs[] = {tensor(in->ptr, kNVTEFloat32, SHAPE(3, 2))};
  NVTETensor outputs[] = {tensor(out->ptr, kNVTEFloat32, SHAPE(4, 2))};
  int32_t rows[] = {4};
  NVTEXPolicy policy = nvtex_policy_create(NULL, "padding=impl:later");
  nvtex_policy_push(policy);
  nvte_multi_padding(1, inputs, outputs, rows, NULL);
  nvtex_policy_pop();
  nvtex_policy_destroy(policy);
  EXPECT_OK();
  CHECK_EQ(g_later_calls, 1);
  const float *got = buffer_read(out);
  CHECK(memcmp(got, values, sizeof values) == 0 && got[6] == 0 && got[7] == 0, "other values");
}

// ---- What is left out, while the rest stands

static void add_unknown(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)plugin;
  NVTEXImpl impl = impl_of("of.unknown.operator");
  impl.op = "teleport";
  CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_DECLINED);
  impl = impl_of("of.unknown.variant");
  impl.op = "padding.teleport";
  CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_DECLINED);
  impl = impl_of("of.other.version");
  impl.op_version += 1u << 16;
  CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_DECLINED);
  impl = impl_of("kept");
  CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_OK);
}

static void test_left_out(void) {
  if (!case_begin("unknown operators")) return;
  CHECK(attempt("left.out", add_unknown, 0), "not registered");
  EXPECT_OK();
  NVTEXPluginInfo info = last();
  CHECK_EQ(info.implementations, 1);
  const char *const parts[] = {
      "teleport: of.unknown.operator: this library has no operator or variant of that name",
      "padding.teleport: of.unknown.variant: this library has no operator",
      "padding: of.other.version: it was built with version"};
  for (size_t i = 0; i < COUNT(parts); i++) {
    CHECK(strstr(info.notes, parts[i]), "no \"%s\" in \"%s\"", parts[i], info.notes);
  }
}

// ---- All or nothing

static void add_three(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)plugin;
  const char *const ids[] = {"three.a", "three.b", "three.c"};
  for (size_t i = 0; i < COUNT(ids); i++) {
    NVTEXImpl impl = impl_of(ids[i]);
    CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_OK);
  }
}

static void test_all_or_nothing(void) {
  if (!case_begin("an entry that fails after three registrations")) return;
  CHECK(!attempt("three", add_three, 5), "registered");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "its entry function returned 5");
  CHECK_EQ(last().implementations, 0);
  // Neither the name of the plugin nor those of its implementations are taken.
  CHECK(attempt("three", add_three, 0), "not registered");
  EXPECT_OK();
  CHECK_EQ(last().implementations, 3);
  CHECK(!attempt("three", add_three, 0), "registered twice");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "a plugin named three is loaded already");
  CHECK(!attempt("four", add_three, 0), "the same implementations from another plugin");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "three.a");
}

// ---- The plugin itself

static void change_plugin(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)host;
  if (strcmp(g_next.name, "newer") == 0) plugin->abi_minor = NVTEX_PLUGIN_ABI_MINOR + 1;
  if (strcmp(g_next.name, "nameless") == 0) plugin->name = NULL;
  if (strcmp(g_next.name, "versionless") == 0) plugin->version = NULL;
  if (strcmp(g_next.name, "vendorless") == 0) plugin->vendor = NULL;
}

static void test_plugin(void) {
  if (!case_begin("what a plugin says of itself")) return;
  CHECK(!nvtex_plugin_register(NULL), "null was registered");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_plugin_register: entry: expected a function");
  const struct {
    const char *name, *expected;
  } wrong[] = {{"newer", "needs minor version"},
               {"nameless", "plugin.name: expected a text, got null"},
               {"versionless", "plugin.version: expected a text, got null"},
               {"vendorless", "plugin.vendor: expected a text, got null"},
               {"Upper", "plugin.name: expected a name"},
               {"", "plugin.name: expected a name"},
               {"path", "reserved"}};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    CHECK(!attempt(wrong[i].name, change_plugin, 0), "%s was registered", wrong[i].name);
    EXPECT_ERROR(NVTEX_UNSUPPORTED, wrong[i].expected);
  }
  NVTEXPluginInfo info = {.struct_size = sizeof info};
  CHECK(!nvtex_plugin_info(nvtex_plugin_count(), &info), "one plugin too many");
  EXPECT_OK();
  info.struct_size = 0;
  CHECK(!nvtex_plugin_info(0, &info), "without a size");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_plugin_info: info.struct_size: expected", "got 0");
  nvtex_plugin_info(0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_plugin_info: info: expected a struct, got null");
}

// ---- Calls of the library inside of the entry function

static void nested_register(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)host;
  (void)plugin;
  CHECK(!nvtex_plugin_register(entry), "registered");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "a plugin that is being loaded may neither run operators nor");
  CHECK(!nvtex_plugin_load("/nothing.so"), "loaded");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "a plugin that is being loaded may neither");
}

static const NVTEXHost *g_host;

static void options(const NVTEXHost *host, NVTEXPlugin *plugin) {
  g_host = host;
  // The name by which options are found in the environment.
  plugin->name = "with-options";
  const char *value = host->option(host->context, "some.key");
  CHECK(value && strcmp(value, "some value") == 0, "%s", value ? value : "null");
  CHECK(!host->option(host->context, "other"), "an option that is not set");
  CHECK(!host->option(host->context, NULL), "an option without a name");
  const NVTEXOpInfo *info = host->op_info(0);
  CHECK(info && info->op == 0 && info->args_size > 0 && info->variant_count > 0, "operator 0");
  CHECK(!host->op_info(1u << 20), "an operator of that number");
  CHECK_EQ(host->add_impl(NULL, NULL), NVTEX_PLUGIN_FAILED);
  host->log(1, NULL);
}

static void test_host(void) {
  if (!case_begin("functions of the host")) return;
  CHECK(attempt("nested", nested_register, 0), "not registered");
  EXPECT_OK();
  setenv("NVTE_OP_PLUGIN_WITH_OPTIONS_SOME_KEY", "some value", 1);
  CHECK(attempt("options", options, 0), "not registered");
  EXPECT_OK();
  // After the entry function nothing can be registered any more.
  NVTEXImpl late = impl_of("late");
  CHECK_EQ(add(g_host, &late), NVTEX_PLUGIN_FAILED);
}

// ---- Many

static size_t g_count;

static void add_many(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)plugin;
  for (size_t i = 0; i < 1000; i++) {
    char id[32];
    snprintf(id, sizeof id, "many.%zu", g_count++);
    NVTEXImpl impl = impl_of(id);
    CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_OK);
  }
}

static void add_one(const NVTEXHost *host, NVTEXPlugin *plugin) {
  (void)plugin;
  char id[32];
  snprintf(id, sizeof id, "many.%zu", g_count++);
  NVTEXImpl impl = impl_of(id);
  CHECK_EQ(add(host, &impl), NVTEX_PLUGIN_OK);
}

static void test_many(void) {
  if (!case_begin("1000 implementations, 1000 plugins")) return;
  CHECK(attempt("thousand", add_many, 0), "not registered");
  EXPECT_OK();
  CHECK_EQ(last().implementations, 1000);
  for (size_t i = 0; i < 1000; i++) {
    char name[32];
    snprintf(name, sizeof name, "many.%zu", i);
    if (!CHECK(attempt(name, add_one, 0), "%s: not registered", name)) break;
  }
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  if (on_cuda()) {
    fprintf(stderr, "SKIP: what plugins may register does not depend on the backend\n");
    return TEST_SKIP;
  }
  test_wrong();
  test_sizes();
  test_later();
  test_left_out();
  test_all_or_nothing();
  test_plugin();
  test_host();
  test_many();
  return test_end();
}
