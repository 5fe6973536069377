// NVTE_TRACE: a Chrome trace of the operators of a process. Each process under test is a child,
// which begins with the environment that the case sets.
#define _POSIX_C_SOURCE 200809L
#include <ctype.h>
#include <pthread.h>
#include <unistd.h>

#include "child.h"

enum { BYTES = 4096, ROWS = 32, COLS = 64 };

static char g_path[64];

static void operators(void) {
  unsigned char *bytes = nvtex_malloc(BYTES);
  nvte_memset(bytes, 7, BYTES, NULL);
  const NVTEShape shape = {.data = {ROWS, COLS}, .ndim = 2};
  NVTETensor input = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor output = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  const NVTEBasicTensor x = {bytes, kNVTEBFloat16, shape};
  void *y = nvtex_malloc(ROWS * COLS * 4);
  const NVTEBasicTensor z = {y, kNVTEFloat32, shape};
  nvte_set_tensor_param(&input, kNVTERowwiseData, &x);
  nvte_set_tensor_param(&output, kNVTERowwiseData, &z);
  nvte_gelu(input, output, NULL);
  nvtex_stream_synchronize(NULL);
  if (nvtex_last_status() != NVTEX_OK) _exit(3);
  nvte_destroy_tensor(input);
  nvte_destroy_tensor(output);
  nvtex_free(bytes);
  nvtex_free(y);
}

static void *on_a_thread(void *unused) {
  operators();
  return unused;
}

static void on_two_threads(void) {
  pthread_t thread;
  operators();
  if (pthread_create(&thread, NULL, on_a_thread, NULL) != 0) _exit(4);
  pthread_join(thread, NULL);
}

// A child of the traced process computes on its own.
static void and_in_a_child(void) {
  operators();
  if (on_cuda()) return;
  pid_t pid = fork();
  if (pid == 0) {
    operators();
    exit(0);
  }
  if (wait_for_child(pid) != 0) _exit(5);
}

static void nothing(void) {}

// Runs `body` in a process with NVTE_TRACE=value.
static int run(const char *value, void (*body)(void)) {
  pid_t pid = fork_child();
  if (pid == 0) {
    setenv("NVTE_TRACE", value, 1);
    body();
    exit(0);
  }
  return wait_for_child(pid);
}

static char *contents(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) return NULL;
  static char text[1 << 20];
  size_t n = fread(text, 1, sizeof text - 1, file);
  text[n] = 0;
  fclose(file);
  return text;
}

// A value of JSON at `text`; returns what follows it, or null.
static const char *json_value(const char *text) {
  while (isspace((unsigned char)*text)) text++;
  if (*text == '"') {
    for (text++; *text && *text != '"'; text++) text += *text == '\\';
    return *text ? text + 1 : NULL;
  }
  if (*text == '[' || *text == '{') {
    const char end = *text == '[' ? ']' : '}';
    const char *next = text + 1;
    while (isspace((unsigned char)*next)) next++;
    if (*next == end) return next + 1;
    while (true) {
      if (end == '}') {
        if (!(next = json_value(next)) || *next++ != ':') return NULL;
      }
      if (!(next = json_value(next))) return NULL;
      while (isspace((unsigned char)*next)) next++;
      if (*next == end) return next + 1;
      if (*next++ != ',') return NULL;
      while (isspace((unsigned char)*next)) next++;
    }
  }
  char *end;
  (void)strtod(text, &end);
  return end == text ? NULL : end;
}

static bool is_json(const char *text) {
  const char *end = json_value(text);
  while (end && isspace((unsigned char)*end)) end++;
  return end && !*end;
}

// The lines of `text` that hold all of up to three parts.
static size_t lines_with(const char *text, const char *a, const char *b, const char *c) {
  size_t found = 0;
  while (*text) {
    const char *end = strchr(text, '\n');
    size_t length = end ? (size_t)(end - text) : strlen(text);
    char line[1024];
    snprintf(line, sizeof line, "%.*s", (int)length, text);
    found += strstr(line, a) && strstr(line, b) && strstr(line, c);
    text += length + (end != NULL);
  }
  return found;
}

static double number_after(const char *text, const char *key) {
  const char *at = strstr(text, key);
  return at ? strtod(at + strlen(key), NULL) : -1;
}

static void test_events(void) {
  if (!case_begin("an event for each operator of each thread")) return;
  CHECK_EQ(run(g_path, on_two_threads), 0);
  const char *text = contents(g_path);
  if (!CHECK(text != NULL, "no file %s", g_path)) return;
  CHECK(is_json(text), "not JSON: %.200s", text);
  const size_t rows = on_cuda() ? 2 : 1;
  CHECK_EQ(lines_with(text, "\"name\":\"memset\"", "\"ph\":\"X\"", "\"bytes\":4096"), 2 * rows);
  // BF16 is read, F32 is written.
  CHECK_EQ(lines_with(text, "\"name\":\"quantize.gelu\"", "\"cat\":", "\"bytes\":12288"), 2 * rows);
  const char *id =
      on_cuda() ? "\"implementation\":\"vendor.nvidia\"" : "\"implementation\":\"reference.cpu\"";
  CHECK_EQ(lines_with(text, "\"ph\":\"X\"", id, "\"stream\":\""), 4 * rows);
  CHECK_EQ(lines_with(text, "\"ph\":\"X\"", "", ""), 4 * rows);
  const double first = number_after(text, "\"tid\":");
  char tid[64];
  snprintf(tid, sizeof tid, "\"tid\":%.0f,", first);
  const size_t of_first = lines_with(text, "\"ph\":\"X\"", tid, "");
  // Rows of a device are those of its streams, which both threads share.
  CHECK(of_first == 2 || (on_cuda() && of_first == 4), "%zu of the first row", of_first);
  const double at = number_after(text, "\"ts\":"), lasted = number_after(text, "\"dur\":");
  CHECK(at >= 0 && lasted > 0 && lasted < 60e6, "from %g us for %g us", at, lasted);
  if (on_cuda()) CHECK_EQ(lines_with(text, "thread_name", "cuda 0 stream", ""), 1);
  remove(g_path);
}

static void test_names(void) {
  if (case_begin("a process without operators leaves no file")) {
    CHECK_EQ(run(g_path, nothing), 0);
    CHECK(!contents(g_path), "there is a file");
  }
  if (case_begin("%%p stands for the process, and a child has a file of its own")) {
    pid_t pid = fork_child();
    if (pid == 0) {
      char value[96];
      snprintf(value, sizeof value, "%s.%%p", g_path);
      setenv("NVTE_TRACE", value, 1);
      operators();
      exit(0);
    }
    CHECK_EQ(wait_for_child(pid), 0);
    char path[96];
    snprintf(path, sizeof path, "%s.%d", g_path, (int)pid);
    const char *text = contents(path);
    CHECK(text && is_json(text), "%s: %.100s", path, text ? text : "no file");
    remove(path);
  }
  if (!on_cuda() && case_begin("a child of fork has a file of its own")) {
    char command[160], names[256] = "";
    CHECK_EQ(run(g_path, and_in_a_child), 0);
    const char *text = contents(g_path);
    CHECK(text && is_json(text), "%.200s", text ? text : "no file");
    if (text) CHECK_EQ(lines_with(text, "\"ph\":\"X\"", "", ""), 2);
    snprintf(command, sizeof command, "ls %s.*", g_path);
    FILE *list = popen(command, "r");
    if (!list) abort();
    if (fgets(names, sizeof names, list)) names[strcspn(names, "\n")] = 0;
    pclose(list);
    text = contents(names);
    CHECK(text && is_json(text), "\"%s\": %.200s", names, text ? text : "no file");
    if (text) CHECK_EQ(lines_with(text, "\"ph\":\"X\"", "", ""), 2);
    remove(names);
    remove(g_path);
  }
}

static void write_nowhere(void) {
  operators();
  operators();
}

static void test_failures(void) {
  if (case_begin("operators run where no file can be written")) {
    CHECK_EQ(run("/nonexistent/folder/trace.json", write_nowhere), 0);
  }
  if (case_begin("ranges alone write no file")) {
    CHECK_EQ(run("nvtx", operators), 0);
    CHECK(!contents("nvtx"), "there is a file named nvtx");
  }
}

int main(int argc, char **argv) {
  test_arguments(argc, argv);
  const char *backend = getenv("NVTE_BACKEND");
  g_test.backend = backend ? backend : "auto";
  // Children come before this process uses a device, so whether there is one is asked for in a
  // child, too.
  pid_t pid = fork_child();
  if (pid == 0) {
    test_begin(argc, argv);
    _exit(0);
  }
  if (WEXITSTATUS(wait_for_child(pid)) == TEST_SKIP) return TEST_SKIP;
  snprintf(g_path, sizeof g_path, "/tmp/nvte_trace_%d.json", (int)getpid());
  test_events();
  test_names();
  test_failures();
  case_end();
  return test_end();
}
