// Lines of the library that go to a function of the program instead of stderr.
#define _POSIX_C_SOURCE 200809L
#include "nvte/nvtex.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "child.h"

enum { KEPT = 4 };

// What a callback has got.
typedef struct Log {
  atomic_int lines;
  int levels[KEPT];
  char texts[KEPT][512];
  bool fails;  // The callback makes a call that fails.
} Log;

static void keep(int32_t level, const char *text, void *user) {
  Log *log = user;
  int line = atomic_fetch_add(&log->lines, 1);
  if (line < KEPT) {
    log->levels[line] = level;
    snprintf(log->texts[line], sizeof log->texts[line], "%s", text);
  }
  if (log->fails) nvte_tensor_ndims(NULL);
}

static void count(int32_t level, const char *text, void *user) {
  (void)level, (void)text;
  atomic_fetch_add((atomic_int *)user, 1);
}

static void set(Log *log, NVTEXLogLevel level) {
  nvtex_set_log(log ? keep : NULL, level, log);
  EXPECT_OK();
}

static void fail(void) {
  nvte_tensor_ndims(NULL);
  nvtex_clear_error();
}

// What `body` writes to stderr.
static size_t written(void (*body)(void), char *text, size_t bytes) {
  FILE *file = tmpfile();
  if (!file) abort();
  fflush(stderr);
  int before = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  body();
  dup2(before, STDERR_FILENO);
  close(before);
  rewind(file);
  size_t n = fread(text, 1, bytes - 1, file);
  text[n] = 0;
  fclose(file);
  return n;
}

static void test_callback(void) {
  char text[2048];
  if (case_begin("a callback gets the errors that stderr had")) {
    Log log = {0};
    size_t before = written(fail, text, sizeof text);
    CHECK(before > 0 && strstr(text, "nvte_tensor_ndims"), "stderr: \"%s\"", text);
    set(&log, NVTEX_LOG_ERROR);
    CHECK_EQ(written(fail, text, sizeof text), 0);
    CHECK_EQ(log.lines, 1);
    CHECK_EQ(log.levels[0], NVTEX_LOG_ERROR);
    CHECK(strstr(log.texts[0], "nvte: error: nvte_tensor_ndims: ") == log.texts[0], "\"%s\"",
          log.texts[0]);
    CHECK(!strchr(log.texts[0], '\n'), "a line has its end: \"%s\"", log.texts[0]);
    set(NULL, NVTEX_LOG_NONE);
    CHECK_EQ(written(fail, text, sizeof text), (long long)before);
    CHECK_EQ(log.lines, 1);
  }
  if (case_begin("its level takes the place of the variable's")) {
    Log log = {0};
    Buffer *memory = buffer(64);
    set(&log, NVTEX_LOG_NONE);
    fail();
    CHECK_EQ(log.lines, 0);
    set(&log, NVTEX_LOG_EXEC);
    nvte_memset(memory->ptr, 3, 64, NULL);
    EXPECT_OK();
    set(NULL, NVTEX_LOG_NONE);
    bool found = false;
    for (int i = 0; i < log.lines && i < KEPT; i++) {
      found |= log.levels[i] == NVTEX_LOG_EXEC && strstr(log.texts[i], "nvte,exec,") &&
               strstr(log.texts[i], "memset");
    }
    CHECK(found, "%d lines, first \"%s\"", (int)log.lines, log.texts[0]);
  }
  if (case_begin("lines that a callback causes go to stderr")) {
    Log log = {.fails = true};
    set(&log, NVTEX_LOG_ERROR);
    size_t nested = written(fail, text, sizeof text);
    set(NULL, NVTEX_LOG_NONE);
    CHECK_EQ(log.lines, 1);
    CHECK(nested > 0 && strstr(text, "nvte_tensor_ndims"), "stderr: \"%s\"", text);
  }
  if (case_begin("a level that is none is refused and changes nothing")) {
    Log log = {0};
    set(&log, NVTEX_LOG_ERROR);
    nvtex_set_log(NULL, (NVTEXLogLevel)5, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_set_log: level", "NVTEXLogLevel from 0 to 4",
                 "got 5");
    CHECK_EQ(log.lines, 1);
    set(NULL, NVTEX_LOG_NONE);
  }
}

static atomic_bool g_stop;

static void *fail_often(void *failures) {
  while (!atomic_load(&g_stop)) {
    fail();
    atomic_fetch_add((atomic_int *)failures, 1);
  }
  return NULL;
}

// Threads write lines while the callback changes: each line goes to one of the two, none is lost.
static void test_threads(void) {
  if (!case_begin("no line is lost while callbacks change")) return;
  enum { THREADS = 4, CHANGES = 2000 };
  static atomic_int failures, lines[2];
  pthread_t threads[THREADS];
  nvtex_set_log(count, NVTEX_LOG_ERROR, &lines[0]);
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, fail_often, &failures);
  for (int i = 0; i < CHANGES; i++) nvtex_set_log(count, NVTEX_LOG_ERROR, &lines[i % 2]);
  while (atomic_load(&failures) < THREADS * 10) nvtex_set_log(count, NVTEX_LOG_ERROR, &lines[1]);
  atomic_store(&g_stop, true);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  nvtex_set_log(NULL, NVTEX_LOG_NONE, NULL);
  EXPECT_OK();
  CHECK_EQ(atomic_load(&lines[0]) + atomic_load(&lines[1]), atomic_load(&failures));
}

int main(int argc, char **argv) {
  unsetenv("NVTE_VERBOSE");
  test_begin(argc, argv);
  test_callback();
  test_threads();
  return test_end();
}
