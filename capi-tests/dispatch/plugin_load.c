// From where plugins are loaded, and from where not. Each case runs in a process of its own,
// because the library reads the environment once and keeps what it has loaded. NVTE_TEST_PLUGINS is
// the folder of the test plugins.
#define _DEFAULT_SOURCE

#include <pthread.h>
#include <sys/stat.h>

#include "child.h"
#include "nvte/dispatch.h"
#include "nvte/fused_attn.h"
#include "nvte/transformer_engine.h"

static char g_root[256], g_text[4096];

// Lives as long as the test.
static const char *path_of(const char *folder, const char *name) {
  const size_t size = strlen(folder) + strlen(name) + 2;
  char *path = host_memory(size);
  snprintf(path, size, "%s/%s", folder, name);
  return path;
}

static void write_file(const char *path, const void *bytes, size_t size, mode_t mode) {
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) || chmod(path, mode)) {
    perror(path);
    exit(TEST_FAIL);
  }
}

static void write_text(const char *path, const char *text) {
  write_file(path, text, strlen(text), 0644);
}

// A copy of a test plugin, because the folder of the build may be writable by a group.
static void copy_plugin(const char *name, const char *to, mode_t mode) {
  const char *folder = getenv("NVTE_TEST_PLUGINS");
  FILE *file = fopen(path_of(folder ? folder : ".", name), "rb");
  if (!file) {
    fprintf(stderr, "NVTE_TEST_PLUGINS: no %s in %s\n", name, folder ? folder : "(unset)");
    exit(TEST_FAIL);
  }
  static char bytes[1 << 20];
  size_t size = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  write_file(to, bytes, size, mode);
}

static void make_folder(const char *path, mode_t mode) {
  if (mkdir(path, 0755) || chmod(path, mode)) {
    perror(path);
    exit(TEST_FAIL);
  }
}

static void manifest(const char *path, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  write_text(path, text);
}

static NVTEXPluginInfo info(size_t index) {
  NVTEXPluginInfo info = {.struct_size = sizeof info};
  CHECK(nvtex_plugin_info(index, &info), "there is no plugin %zu", index);
  return info;
}

// `nvtex_plugin_load` fails with these texts, and the record says why.
#define REFUSED(path, ...)                                               \
  do {                                                                   \
    size_t before = nvtex_plugin_count();                                \
    CHECK(!nvtex_plugin_load(path), "%s was loaded", path);              \
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvtex_plugin_load: ", __VA_ARGS__); \
    CHECK_EQ(nvtex_plugin_count(), before + 1);                          \
    CHECK(info(before).refused, "%s is recorded as loaded", path);       \
  } while (0)

static void run_operator(void) {
  unsigned char bytes[4] = {1, 1, 1, 1};
  nvte_memset(bytes, 0, sizeof bytes, NULL);
}

static void test_good(void) {
  const char *library = path_of(g_root, "minimal.so");
  size_t first = nvtex_plugin_count();
  CHECK(nvtex_plugin_load(library), "not loaded");
  EXPECT_OK();
  CHECK_EQ(nvtex_plugin_count(), first + 1);
  NVTEXPluginInfo loaded = info(first);
  CHECK(strcmp(loaded.name, "minimal") == 0 && strcmp(loaded.version, "1.2") == 0 &&
            strcmp(loaded.vendor, "test") == 0,
        "%s %s %s", loaded.name, loaded.version, loaded.vendor);
  CHECK(strcmp(loaded.path, library) == 0, "%s", loaded.path);
  CHECK(!loaded.refused && loaded.notes[0] == 0, "%s %s", loaded.refused, loaded.notes);
  CHECK_EQ(loaded.implementations, 1);
  // The same name again, also from another file.
  REFUSED(library, "a plugin named minimal is loaded already");
  copy_plugin("minimal.so", path_of(g_root, "copy.so"), 0755);
  REFUSED(path_of(g_root, "copy.so"), "a plugin named minimal is loaded already");
  // With a name of its own, from a manifest, it is another plugin.
  manifest(path_of(g_root, "other.nvtex"),
           "name = other\nlibrary = minimal.so\nabi = 0.0\noption.name = other\ncolour = red\n");
  CHECK(nvtex_plugin_load(path_of(g_root, "other.nvtex")), "not loaded");
  EXPECT_OK();
  loaded = info(nvtex_plugin_count() - 1);
  CHECK(strcmp(loaded.name, "other") == 0, "%s", loaded.name);
  CHECK(strstr(loaded.notes, "colour"), "notes: %s", loaded.notes);
  // A plugin that fails leaves nothing behind, and can be loaded once it does not fail.
  manifest(path_of(g_root, "third.nvtex"),
           "name = third\nlibrary = minimal.so\noption.name = third\noption.fails = 1\n");
  REFUSED(path_of(g_root, "third.nvtex"), "its entry function returned 7");
  manifest(path_of(g_root, "third.nvtex"),
           "name = third\nlibrary = minimal.so\noption.name = third\n");
  CHECK(nvtex_plugin_load(path_of(g_root, "third.nvtex")), "not loaded");
  EXPECT_OK();
  run_operator();
  EXPECT_OK();
}

static void test_wrong_files(void) {
  CHECK(!nvtex_plugin_load(NULL), "null was loaded");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "path: expected an absolute path, got null");
  CHECK(!nvtex_plugin_load("minimal.so"), "a relative path was loaded");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "path: expected an absolute path", "minimal.so");
  CHECK(!nvtex_plugin_load(""), "an empty path was loaded");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "path: expected an absolute path");
  REFUSED(path_of(g_root, "missing.so"), "missing.so: No such file or directory");
  REFUSED(g_root, "not a regular file");
  const char *fifo = path_of(g_root, "fifo");
  if (mkfifo(fifo, 0600)) perror(fifo);
  REFUSED(fifo, "fifo: not a regular file");
  write_text(path_of(g_root, "text.so"), "no library\n");
  REFUSED(path_of(g_root, "text.so"), "text.so", "file too short");
  unsigned char narrow[4096] = {0x7F, 'E', 'L', 'F', 1, 1, 1};
  narrow[16] = 3;  // A shared object, of 32 bits.
  narrow[18] = 3;
  narrow[20] = 1;
  write_file(path_of(g_root, "narrow.so"), narrow, sizeof narrow, 0755);
  REFUSED(path_of(g_root, "narrow.so"), "narrow.so", "wrong ELF class");
  copy_plugin("other_major.so", path_of(g_root, "major.so"), 0755);
  REFUSED(path_of(g_root, "major.so"), "speaks version 2 of the plugin ABI",
          "this library speaks 0");
}

static void test_trust(void) {
  const char *library = path_of(g_root, "own.so");
  copy_plugin("minimal.so", library, 0775);
  REFUSED(library, "own.so: its group can write to it; chmod go-w makes it acceptable");
  copy_plugin("minimal.so", library, 0757);
  REFUSED(library, "own.so: every user can write to it");
  copy_plugin("minimal.so", library, 0755);
  const char *bad = path_of(g_root, "shared");
  make_folder(bad, 0775);
  copy_plugin("minimal.so", path_of(bad, "inside.so"), 0755);
  REFUSED(path_of(bad, "inside.so"), "shared: its group can write to it");
  // A link in a good folder to a file in a bad one, and the other way round.
  CHECK_EQ(symlink(path_of(bad, "inside.so"), path_of(g_root, "link.so")), 0);
  REFUSED(path_of(g_root, "link.so"), "shared: its group can write to it");
  CHECK_EQ(symlink(library, path_of(bad, "link.so")), 0);
  REFUSED(path_of(bad, "link.so"), "shared: its group can write to it");
  // A good manifest whose library is not.
  manifest(path_of(g_root, "trust.nvtex"), "name = trust\nlibrary = %s/inside.so\n", bad);
  REFUSED(path_of(g_root, "trust.nvtex"), "shared: its group can write to it");
  if (geteuid() == 0) {
    CHECK_EQ(chown(library, 12345, 12345), 0);
    REFUSED(library, "own.so: it belongs to user 12345");
  }
}

static void test_manifests(void) {
  const struct {
    const char *text, *expected;
  } wrong[] = {
      {"name = a\n", "no line `library = FILE`"},
      {"name = a\nlibrary = minimal.so\nabi = 1\n", "speaks version 1 of the plugin ABI"},
      {"name = a\nlibrary = minimal.so\n", "names it \"a\", and it names itself \"minimal\""},
      {"name = A\nlibrary = minimal.so\n", "line 1: expected a name"},
      {"name = a\nlibrary = ../minimal.so\n", "line 2: expected an absolute path"},
      {"name = a\nlibrary = missing.so\n", "missing.so: No such file"},
      {"no manifest\n", "line 1: expected `key = value`"},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    write_text(path_of(g_root, "wrong.nvtex"), wrong[i].text);
    REFUSED(path_of(g_root, "wrong.nvtex"), wrong[i].expected);
  }
}

// Texts that are no manifests: none of them does harm, and each has a reason.
static void test_garbled(void) {
  const char *path = path_of(g_root, "garbled.nvtex");
  static unsigned char bytes[1 << 16];
  uint64_t state = 1;
  for (int round = 0; round < 300; round++) {
    size_t size = round % 3 == 0 ? (size_t)round * 200 : (size_t)round;
    const char *good = "name = garbled\nlibrary = minimal.so\nabi = 0\noption.name = garbled\n";
    for (size_t i = 0; i < size; i++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const unsigned char any = (unsigned char)(state >> 56);
      // Any bytes; lines of such bytes; or a good manifest of which some bytes are others.
      bytes[i] = round % 3 == 1 && any > 250 ? '\n' : any;
      if (round % 3 == 2) bytes[i] = any < 8 ? any : (unsigned char)good[i % strlen(good)];
    }
    write_file(path, bytes, size, 0644);
    const size_t before = nvtex_plugin_count();
    const bool loaded = nvtex_plugin_load(path);
    if (!CHECK_EQ(nvtex_plugin_count(), before + 1)) return;
    CHECK(loaded == !info(before).refused, "round %d", round);
    CHECK(loaded || strlen(nvtex_last_error()) > 30, "round %d: %s", round, nvtex_last_error());
    nvtex_clear_error();
  }
  // A library that is cut within its header.
  for (size_t size = 0; size < 64; size += 9) {
    copy_plugin("minimal.so", path_of(g_root, "cut.so"), 0755);
    CHECK_EQ(truncate(path_of(g_root, "cut.so"), (off_t)size), 0);
    REFUSED(path_of(g_root, "cut.so"), "cut.so");
  }
  run_operator();
  EXPECT_OK();
}

// A binary that was built when the headers were new still runs, and is never handed a call that it
// would misread.
static void test_first_headers(void) {
  copy_plugin("first_headers.so", path_of(g_root, "first.so"), 0755);
  CHECK(nvtex_plugin_load(path_of(g_root, "first.so")), "not loaded");
  EXPECT_OK();
  nvtex_policy_destroy(
      nvtex_policy_set(nvtex_policy_create(NULL, "order=impl:first.memset|impl:first.grads")));
  unsigned char bytes[4] = {0};
  nvte_memset(bytes, 5, sizeof bytes, NULL);
  EXPECT_OK();
  CHECK(bytes[0] == 6 && bytes[3] == 6, "%d %d", bytes[0], bytes[3]);
  static float grad[2 * 8], step[2 * 8];
  static int32_t cu[] = {0, 2};
  NVTETensor g = tensor(grad, kNVTEFloat32, SHAPE(2, 1, 8)),
             starts = tensor(cu, kNVTEInt32, SHAPE(2));
  NVTETensor half = tensor(step, kNVTEFloat32, SHAPE(1, 1, 8));
  nvte_cp_thd_grad_correction(g, &half, &starts, "add", "none", NULL);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "first.grads: the old one was asked, features 0");
  // It does not know the feature of a whole step, whatever that may mean.
  NVTETensor whole = tensor(step, kNVTEFloat32, SHAPE(2, 1, 8));
  nvte_cp_thd_grad_correction(g, &whole, &starts, "add", "copy", NULL);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "first.grads: does not take feature FULL");
}

// Discovery fails, and so does every operator, with this text.
#define NO_OPERATOR(...)                                                      \
  do {                                                                        \
    CHECK(!nvtex_plugins_discover(), "discovery succeeded");                  \
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvtex_plugins_discover: ", __VA_ARGS__); \
    run_operator();                                                           \
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_memset: ", __VA_ARGS__);            \
  } while (0)

static void folder_of_manifests(void) {
  const char *folder = path_of(g_root, "plugins.d");
  make_folder(folder, 0755);
  copy_plugin("minimal.so", path_of(folder, "minimal.so"), 0755);
  const char *const names[] = {"b", "a"};
  for (size_t i = 0; i < COUNT(names); i++) {
    char file[16];
    snprintf(file, sizeof file, "%s.nvtex", names[i]);
    manifest(path_of(folder, file), "name = %s\nlibrary = minimal.so\noption.name = %s\n", names[i],
             names[i]);
  }
  write_text(path_of(folder, "c.nvtex"), "wrong\n");
  setenv("NVTE_OP_PLUGIN_PATH", folder, 1);
}

static void test_folder(void) {
  folder_of_manifests();
  CHECK_EQ(nvtex_plugin_count(), 0);
  run_operator();  // The first operator discovers.
  EXPECT_OK();
  CHECK(nvtex_plugins_discover(), "discovery failed");
  CHECK_EQ(nvtex_plugin_count(), 3);
  CHECK(strcmp(info(0).name, "a") == 0 && !info(0).refused, "%s", info(0).name);
  CHECK(strcmp(info(1).name, "b") == 0 && !info(1).refused, "%s", info(1).name);
  CHECK(info(2).refused && strstr(info(2).refused, "line 1"), "%s", info(2).refused);
}

static void test_named(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGINS", "b, ?missing", 1);
  setenv("NVTE_OP_PLUGIN_A_NAME", "renamed", 1);
  run_operator();
  EXPECT_OK();
  CHECK_EQ(nvtex_plugin_count(), 3);
  CHECK(strcmp(info(0).name, "b") == 0, "%s", info(0).name);
  // The environment's option beats the manifest's, whose name then is not the plugin's.
  CHECK(info(1).refused && strstr(info(1).refused, "names itself \"renamed\""), "%s",
        info(1).refused);
}

// An operator that the first operator's plugin runs while it is being loaded is refused, and all
// goes on.
static void test_nested(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGIN_A_CALLS", "1", 1);
  run_operator();
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_memset: ", "a plugin that is being loaded may neither");
  CHECK_EQ(nvtex_error_count(), 1);
  CHECK(strcmp(info(0).name, "a") == 0 && !info(0).refused, "%s", info(0).name);
  CHECK_EQ(nvtex_plugin_count(), 3);
  run_operator();
  EXPECT_OK();
}

// What `body` made of a child of this process: TEST_PASS if all its checks passed.
static void in_child(void (*body)(void)) {
  pid_t pid = fork_child();
  if (pid == 0) {
    alarm(20);
    body();
    fflush(NULL);
    _exit(g_test.failures_in_case ? TEST_FAIL : TEST_PASS);
  }
  int status = wait_for_child(pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == TEST_PASS, "wait status %d", status);
}

static void child_of_loaded(void) {
  CHECK(getenv("NVTE_TEST_FORKED"), "after_fork_child was not called");
  CHECK_EQ(nvtex_plugin_count(), 3);
  run_operator();
  EXPECT_OK();
}

static void test_fork(void) {
  folder_of_manifests();
  run_operator();
  EXPECT_OK();
  in_child(child_of_loaded);
  CHECK(!getenv("NVTE_TEST_FORKED"), "after_fork_child was called in the parent");
}

static void *discover(void *data) {
  (void)data;
  run_operator();
  return NULL;
}

// A thread loads plugins while another forks: the fork waits, so that the child has all of them.
static void test_fork_while_loading(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGIN_B_SLEEPS", "1", 1);
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, discover, NULL), 0);
  usleep(200000);
  in_child(child_of_loaded);
  pthread_join(thread, NULL);
  run_operator();
  EXPECT_OK();
}

static void child_of_slow(void) {
  run_operator();
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "the process was forked while its plugins were being loaded");
}

// A plugin that takes longer than a fork waits: the child does not wait for a thread that it does
// not have.
static void test_fork_while_slow(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGIN_B_SLEEPS", "13", 1);
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, discover, NULL), 0);
  usleep(200000);
  in_child(child_of_slow);
  pthread_join(thread, NULL);
  run_operator();
  EXPECT_OK();
}

static void test_none(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGINS", "none", 1);
  run_operator();
  EXPECT_OK();
  CHECK_EQ(nvtex_plugin_count(), 0);
}

static void test_named_missing(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGINS", "?c,missing", 1);
  NO_OPERATOR("NVTE_OP_PLUGINS: missing: there is no missing.nvtex in any of");
}

static void test_named_wrong(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGINS", "c,a", 1);
  NO_OPERATOR("NVTE_OP_PLUGINS: c: ", "line 1", "`?c` would make it optional");
  // Those that follow are loaded nevertheless.
  CHECK(nvtex_plugin_count() >= 2 && strcmp(info(1).name, "a") == 0, "%s", info(1).name);
}

static void test_relative(void) {
  setenv("NVTE_OP_PLUGINS", "./minimal.so", 1);
  NO_OPERATOR("NVTE_OP_PLUGINS: expected absolute paths", "./minimal.so");
}

static void test_privileged(void) {
  folder_of_manifests();
  setenv("NVTE_OP_PLUGINS", "missing", 1);
  if (seteuid(12345)) perror("seteuid");
  run_operator();
  EXPECT_OK();
  CHECK_EQ(nvtex_plugin_count(), 0);
  CHECK_EQ(seteuid(0), 0);
}

#define THREADS 16

static void *first_call(void *failures) {
  run_operator();
  *(uint64_t *)failures = nvtex_error_count();
  return NULL;
}

// All of them wait for the one that discovers.
static void test_many_first_calls(void) {
  folder_of_manifests();
  pthread_t threads[THREADS];
  uint64_t failures[THREADS] = {0};
  for (size_t i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, first_call, &failures[i]), 0);
  }
  for (size_t i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    CHECK_EQ(failures[i], 0);
  }
  CHECK_EQ(nvtex_plugin_count(), 3);
}

static void run(const char *name, void (*test)(void)) {
  if (!case_begin("%s", name)) return;
  pid_t pid = fork_child();
  if (pid == 0) {
    snprintf(g_root, sizeof g_root, "/tmp/nvte-plugins-XXXXXX");
    if (!mkdtemp(g_root) || chmod(g_root, 0755)) exit(TEST_FAIL);
    copy_plugin("minimal.so", path_of(g_root, "minimal.so"), 0755);
    test();
    snprintf(g_text, sizeof g_text, "rm -rf '%s'", g_root);
    if (system(g_text)) perror("rm");
    fflush(NULL);
    _exit(g_test.failures_in_case ? TEST_FAIL : TEST_PASS);
  }
  int status = wait_for_child(pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == TEST_PASS, "wait status %d", status);
}

int main(int argc, char **argv) {
  test_arguments(argc, argv);
  const char *backend = getenv("NVTE_BACKEND");
  g_test.backend = backend ? backend : "cpu";
  if (on_cuda()) {
    fprintf(stderr, "SKIP: where plugins come from does not depend on the backend\n");
    return TEST_SKIP;
  }
  unsetenv("NVTE_OP_PLUGINS");
  unsetenv("NVTE_OP_PLUGIN_PATH");
  run("good plugins", test_good);
  run("wrong files", test_wrong_files);
  run("files that others can replace", test_trust);
  run("wrong manifests", test_manifests);
  run("garbled files", test_garbled);
  run("built with the first headers", test_first_headers);
  run("folder", test_folder);
  run("named", test_named);
  run("an operator inside of the entry function", test_nested);
  run("a child of fork", test_fork);
  run("a child of fork while plugins are loaded", test_fork_while_loading);
  run("a child of fork while plugins take long to load", test_fork_while_slow);
  run("none", test_none);
  run("a named one that is missing", test_named_missing);
  run("a named one that is wrong", test_named_wrong);
  run("a relative path", test_relative);
  run("16 threads whose first call it is", test_many_first_calls);
  if (geteuid() == 0) run("more privileges than the user", test_privileged);
  return test_end();
}
