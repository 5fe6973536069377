// What is ours beyond the ABI: errors and their modes, version, backend, device memory, streams.
#define _POSIX_C_SOURCE 200809L
#include "nvte/nvtex.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

#ifdef __SANITIZE_ADDRESS__
// Too much memory shall give null, not end the program.
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
#endif

// A call that fails without a device, and what its message must hold.
static void fail(void) { nvte_tensor_ndims(NULL); }

// ---- In a process of their own, which reads the environment anew

typedef struct Child {
  int status;
  char text[8192];  // of stderr
} Child;

// Runs `body` with NVTE_ON_ERROR and NVTE_VERBOSE as given (null: unset). Must come before the
// parent's first use of a device: a CUDA context does not survive fork.
static Child run_child(void (*body)(void), const char *on_error, const char *verbose) {
  Child child = {0};
  int ends[2];
  if (pipe(ends) != 0) abort();
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) abort();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    on_error ? setenv("NVTE_ON_ERROR", on_error, 1) : unsetenv("NVTE_ON_ERROR");
    verbose ? setenv("NVTE_VERBOSE", verbose, 1) : unsetenv("NVTE_VERBOSE");
    body();
    _exit(0);
  }
  close(ends[1]);
  size_t used = 0;
  ssize_t n;
  while ((n = read(ends[0], child.text + used, sizeof child.text - 1 - used)) > 0)
    used += (size_t)n;
  close(ends[0]);
  if (waitpid(pid, &child.status, 0) != pid) abort();
  return child;
}

static bool is_message(const char *text) {
  return strstr(text, "nvte_tensor_ndims") && strstr(text, "tensor") && strstr(text, "expected") &&
         strstr(text, "got");
}

static size_t lines_of(const char *text) {
  size_t n = 0;
  for (; *text; text++) n += *text == '\n';
  return n;
}

static void fail_and_survive(void) {
  fail();
  _exit(nvtex_last_status() == NVTEX_INVALID_ARGUMENT && is_message(nvtex_last_error()) ? 7 : 8);
}

static void fail_in_abort_mode(void) {
  if (nvtex_set_error_mode(NVTEX_ERROR_ABORT) != NVTEX_ERROR_RETURN) _exit(9);
  fail();
}

static void leave_abort_mode(void) {
  if (nvtex_set_error_mode(NVTEX_ERROR_RETURN) != NVTEX_ERROR_ABORT) _exit(9);
  if (nvtex_set_error_mode(NVTEX_ERROR_RETURN) != NVTEX_ERROR_RETURN) _exit(10);
  fail_and_survive();
}

static void succeed_in_abort_mode(void) {
  nvtex_set_error_mode(NVTEX_ERROR_ABORT);
  nvte_destroy_tensor(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING));
  nvte_destroy_tensor(NULL);
  _exit(7);
}

static void ask_for_a_wrong_backend(void) {
  setenv("NVTE_BACKEND", "abacus", 1);
  if (nvtex_backend_name() != NULL) _exit(9);
  if (nvtex_last_status() == NVTEX_OK || !strstr(nvtex_last_error(), "abacus")) _exit(10);
  nvtex_clear_error();
  int x = 5;
  nvte_memset(&x, 0, sizeof x, NULL);
  if (nvtex_last_status() == NVTEX_OK || !strstr(nvtex_last_error(), "nvte_memset")) _exit(11);
  _exit(x == 5 ? 7 : 12);
}

static void test_children(void) {
  if (case_begin("mode return prints one line")) {
    Child c = run_child(fail_and_survive, NULL, NULL);
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x", c.status);
    CHECK(is_message(c.text), "\"%s\"", c.text);
    CHECK(lines_of(c.text) == 1, "\"%s\"", c.text);
  }
  if (case_begin("NVTE_ON_ERROR=return")) {
    Child c = run_child(fail_and_survive, "return", NULL);
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x", c.status);
  }
  if (case_begin("NVTE_VERBOSE=none is silent")) {
    Child c = run_child(fail_and_survive, NULL, "none");
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x", c.status);
    CHECK(c.text[0] == 0, "\"%s\"", c.text);
  }
  if (case_begin("NVTE_VERBOSE=error prints")) {
    Child c = run_child(fail_and_survive, NULL, "error");
    CHECK(is_message(c.text), "\"%s\"", c.text);
  }
  if (case_begin("mode abort")) {
    Child c = run_child(fail_in_abort_mode, NULL, NULL);
    CHECK(WIFSIGNALED(c.status) && WTERMSIG(c.status) == SIGABRT, "status 0x%x", c.status);
    CHECK(is_message(c.text), "\"%s\"", c.text);
  }
  if (case_begin("NVTE_ON_ERROR=abort")) {
    Child c = run_child(fail, "abort", NULL);
    CHECK(WIFSIGNALED(c.status) && WTERMSIG(c.status) == SIGABRT, "status 0x%x", c.status);
    CHECK(is_message(c.text), "\"%s\"", c.text);
  }
  if (case_begin("NVTE_ON_ERROR=abort, left by the program")) {
    Child c = run_child(leave_abort_mode, "abort", NULL);
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x", c.status);
  }
  if (case_begin("mode abort without an error")) {
    Child c = run_child(succeed_in_abort_mode, NULL, NULL);
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x: %s", c.status, c.text);
  }
  if (case_begin("NVTE_BACKEND with a wrong word")) {
    Child c = run_child(ask_for_a_wrong_backend, NULL, NULL);
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x: %s", c.status, c.text);
  }
}

// ---- Status and message

static void *fail_on_a_thread(void *wrong) {
  *(bool *)wrong = nvtex_last_status() != NVTEX_OK || nvtex_last_error()[0] != 0;
  nvte_tensor_size(NULL, 3);
  *(bool *)wrong |=
      nvtex_last_status() == NVTEX_OK || !strstr(nvtex_last_error(), "nvte_tensor_size:");
  return NULL;
}

static void test_errors(void) {
  if (case_begin("status and message")) {
    CHECK_EQ(nvtex_last_status(), NVTEX_OK);
    CHECK(nvtex_last_error() && nvtex_last_error()[0] == 0, "a message without an error");
    fail();
    CHECK_EQ(nvtex_last_status(), NVTEX_INVALID_ARGUMENT);
    CHECK(is_message(nvtex_last_error()), "\"%s\"", nvtex_last_error());
    CHECK(strncmp(nvtex_last_error(), "nvte_tensor_ndims: tensor: expected ", 36) == 0, "\"%s\"",
          nvtex_last_error());
    nvte_destroy_tensor(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING));
    CHECK_EQ(nvtex_last_status(), NVTEX_INVALID_ARGUMENT);  // sticky through success
    nvte_tensor_numel(NULL);
    CHECK(strstr(nvtex_last_error(), "nvte_tensor_numel:"), "not the last one: \"%s\"",
          nvtex_last_error());
    nvtex_clear_error();
    CHECK_EQ(nvtex_last_status(), NVTEX_OK);
    CHECK(nvtex_last_error()[0] == 0, "\"%s\"", nvtex_last_error());
    nvtex_clear_error();
    EXPECT_OK();
  }
  if (case_begin("an error belongs to its thread")) {
    fail();
    bool wrong = true;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, fail_on_a_thread, &wrong), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(!wrong, "the thread saw another's error");
    CHECK(is_message(nvtex_last_error()), "\"%s\"", nvtex_last_error());
    nvtex_clear_error();
  }
  if (case_begin("modes")) {
    CHECK_EQ(nvtex_set_error_mode(NVTEX_ERROR_RETURN), NVTEX_ERROR_RETURN);
    EXPECT_OK();
    const int wrong[] = {3, -1, 1000};
    for (size_t i = 0; i < COUNT(wrong); i++) {
      nvtex_set_error_mode((NVTEXErrorMode)wrong[i]);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_set_error_mode: mode", "expected", "got");
    }
    CHECK_EQ(nvtex_set_error_mode(NVTEX_ERROR_RETURN), NVTEX_ERROR_RETURN);
    fail();  // still alive
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_ndims");
  }
}

static void test_names(void) {
  if (case_begin("version")) {
    CHECK(strcmp(nvtex_version(), "0.1.0") == 0, "\"%s\"", nvtex_version());
    EXPECT_OK();
  }
  if (case_begin("backend name")) {
    const char *name = nvtex_backend_name(), *asked = getenv("NVTE_BACKEND");
    CHECK(strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0, "\"%s\"", name);
    if (asked && *asked && strcmp(asked, "auto") != 0) {
      CHECK(strcmp(name, asked) == 0, "\"%s\", asked for \"%s\"", name, asked);
    }
    CHECK(nvtex_backend_name() == name, "another address");
    EXPECT_OK();
  }
}

// ---- Memory and streams

static void test_memory(void) {
  if (case_begin("malloc and free")) {
    CHECK(nvtex_malloc(0) == NULL, "memory of 0 bytes");
    EXPECT_OK();
    nvtex_free(NULL);
    EXPECT_OK();
    void *p[24];
    for (size_t i = 0; i < COUNT(p); i++) {
      p[i] = nvtex_malloc((size_t)1 << i);
      EXPECT_OK();
      CHECK(p[i] != NULL && (uintptr_t)p[i] % 256 == 0, "%p for %zu bytes", p[i], (size_t)1 << i);
      for (size_t j = 0; j < i; j++) CHECK(p[i] != p[j], "%zu and %zu", i, j);
    }
    for (size_t i = 0; i < COUNT(p); i++) nvtex_free(p[i]);
    EXPECT_OK();
  }
  if (case_begin("malloc of too much")) {
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 4};
    for (size_t i = 0; i < COUNT(sizes); i++) {
      CHECK(nvtex_malloc(sizes[i]) == NULL, "memory of %zu bytes", sizes[i]);
      EXPECT_ERROR(ANY_ERROR, "nvtex_malloc");
    }
  }
  const size_t sizes[] = {1, 2, 3, 4, 15, 16, 17, 255, 4096, 65537, 1 << 20};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (size_t shift = 0; shift < 5; shift += 2) {
      if (!case_begin("copies of %zu bytes shifted %zu", sizes[s], shift)) continue;
      unsigned char *x = host_memory(sizes[s]), *y = host_memory(sizes[s]);
      for (size_t i = 0; i < sizes[s]; i++) x[i] = (unsigned char)random_u64();
      Buffer *a = buffer_shifted(sizes[s], shift), *b = buffer_shifted(sizes[s], 3 * shift);
      nvtex_memcpy_to_device(a->ptr, x, sizes[s], NULL);
      nvtex_memcpy_on_device(b->ptr, a->ptr, sizes[s], NULL);
      nvtex_memcpy_to_host(y, b->ptr, sizes[s], NULL);
      nvtex_stream_synchronize(NULL);
      EXPECT_OK();
      CHECK(memcmp(x, y, sizes[s]) == 0, "other bytes came back");
    }
  }
  if (case_begin("copies of nothing")) {
    nvtex_memcpy_to_device(NULL, NULL, 0, NULL);
    nvtex_memcpy_to_host(NULL, NULL, 0, NULL);
    nvtex_memcpy_on_device(NULL, NULL, 0, NULL);
    EXPECT_OK();
  }
  if (case_begin("copies refused")) {
    Buffer *b = buffer(16);
    char host[16] = "unchanged";
    nvtex_memcpy_to_device(NULL, host, 16, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_memcpy_to_device: dst", "expected", "got");
    nvtex_memcpy_to_device(b->ptr, NULL, 16, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_memcpy_to_device: src", "expected", "got");
    nvtex_memcpy_to_host(NULL, b->ptr, 16, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_memcpy_to_host: dst", "expected", "got");
    nvtex_memcpy_to_host(host, NULL, 16, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_memcpy_to_host: src", "expected", "got");
    nvtex_memcpy_on_device(NULL, b->ptr, 16, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_memcpy_on_device: dst", "expected", "got");
    nvtex_memcpy_on_device(b->ptr, NULL, 16, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_memcpy_on_device: src", "expected", "got");
    nvtex_memcpy_to_host(host, b->ptr, SIZE_MAX, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_memcpy_to_host: bytes", "expected", "got");
    CHECK(untouched(b) && strcmp(host, "unchanged") == 0, "written");
  }
}

static void test_streams(void) {
  if (case_begin("streams")) {
    enum { STREAMS = 8, BYTES = 10000 };
    cudaStream_t streams[STREAMS];
    Buffer *b[STREAMS];
    unsigned char *y[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
      streams[i] = nvtex_stream_create();
      EXPECT_OK();
      CHECK(streams[i] != NULL || !on_cuda(), "null");
      b[i] = buffer(BYTES);
      y[i] = host_memory(BYTES);
    }
    for (int i = 0; i < STREAMS; i++) {
      nvte_memset(b[i]->ptr, 1, BYTES, streams[i]);
      nvte_memset(b[i]->ptr, 10 + i, BYTES, streams[i]);
      nvtex_memcpy_to_host(y[i], b[i]->ptr, BYTES, streams[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
      nvtex_stream_synchronize(streams[i]);
      EXPECT_OK();
      for (int k = 0; k < BYTES; k++) {
        if (!CHECK(y[i][k] == 10 + i, "stream %d, byte %d: %d", i, k, y[i][k])) break;
      }
      nvtex_stream_destroy(streams[i]);
      EXPECT_OK();
    }
  }
  if (case_begin("null stream")) {
    nvtex_stream_synchronize(NULL);
    nvtex_stream_destroy(NULL);
    EXPECT_OK();
  }
}

int main(int argc, char **argv) {
  test_arguments(argc, argv);
  g_test.backend = "auto";
  test_children();
  case_end();
  test_begin(argc, argv);
  test_errors();
  test_names();
  test_memory();
  test_streams();
  return test_end();
}
