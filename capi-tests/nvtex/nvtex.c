// The additions of this library to the ABI: errors and their modes, version, backend, device
// memory, streams.
#define _POSIX_C_SOURCE 200809L
#include "nvte/nvtex.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"

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
  char text[8192];  // The text of stderr.
} Child;

// Runs `body` with NVTE_ON_ERROR and NVTE_VERBOSE as given (null: unset). Must come before the
// parent's first use of a device: a CUDA context does not survive fork.
static Child run_child(void (*body)(void), const char *on_error, const char *verbose) {
  Child child = {0};
  int ends[2];
  if (pipe(ends) != 0) abort();
  pid_t pid = fork_child();
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
  child.status = wait_for_child(pid);
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

// Runs a failing call in a child whose stderr cannot be written.
static void fail_with_stderr(int descriptor) {
  if (descriptor < 0) {
    close(STDERR_FILENO);
  } else if (dup2(descriptor, STDERR_FILENO) < 0) {
    _exit(9);
  }
  fail_and_survive();
}

static void fail_with_full_stderr(void) { fail_with_stderr(open("/dev/full", O_WRONLY)); }
static void fail_with_closed_stderr(void) { fail_with_stderr(-1); }

static void fail_with_a_pipe_nobody_reads(void) {
  int ends[2];
  if (pipe(ends) != 0) _exit(9);
  close(ends[0]);
  fail_with_stderr(ends[1]);
}

#ifndef __SANITIZE_ADDRESS__
// Creates tensors until the memory that the process may have is used up. Expects an error, and
// tensors that can be used as before.
static void run_out_of_memory(void) {
  enum { MOST = 1 << 20 };
  static NVTETensor tensors[MOST];
  nvte_destroy_tensor(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING));
  FILE *file = fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (!file || fscanf(file, "%lu", &pages) != 1) _exit(9);
  fclose(file);
  rlim_t limit = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (32u << 20);
  struct rlimit bytes = {limit, limit};
  if (setrlimit(RLIMIT_AS, &bytes) != 0) _exit(9);
  size_t n = 0;
  while (n < MOST && (tensors[n] = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING))) n++;
  if (n == MOST || nvtex_last_status() != NVTEX_DEVICE_ERROR) _exit(10);
  if (!strstr(nvtex_last_error(), "nvte_create_tensor: out of host memory: ")) _exit(11);
  nvtex_clear_error();
  for (size_t i = 0; i < n; i++) {
    if (nvte_tensor_ndims(tensors[i]) != 1) _exit(12);
    nvte_destroy_tensor(tensors[i]);
  }
  NVTETensor again = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  _exit(again && nvtex_last_status() == NVTEX_OK ? 7 : 13);
}

// A memory checker takes memory of the process for itself.
static bool under_valgrind(void) {
  const char *libraries = getenv("LD_PRELOAD");
  return libraries && strstr(libraries, "vgpreload");
}
#endif

static void search_wrong_folders(void) {
  char folder[] = "/tmp/nvte_test_XXXXXX", paths[256];
  if (!mkdtemp(folder) || chmod(folder, 0777) != 0) _exit(9);
  snprintf(paths, sizeof paths, "relative/folder:%s:/nonexistent/folder:/usr", folder);
  setenv("NVTE_CUDA_LIB_PATH", paths, 1);
  fail();
  rmdir(folder);
  _exit(7);
}

static void test_children(void) {
  if (case_begin("stderr that cannot be written")) {
    void (*const bodies[])(void) = {fail_with_full_stderr, fail_with_closed_stderr,
                                    fail_with_a_pipe_nobody_reads};
    for (size_t i = 0; i < COUNT(bodies); i++) {
      Child c = run_child(bodies[i], NULL, NULL);
      CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "%zu: status 0x%x", i, c.status);
      CHECK(c.text[0] == 0, "%zu: \"%s\"", i, c.text);
      // A variable with a wrong word warns before the level of messages is known.
      c = run_child(bodies[i], "sometimes", NULL);
      CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "%zu: status 0x%x", i, c.status);
    }
  }
#ifndef __SANITIZE_ADDRESS__
  if (!under_valgrind() && case_begin("tensors without memory")) {
    Child c = run_child(run_out_of_memory, NULL, "none");
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x: %s", c.status, c.text);
  }
#endif
  if (case_begin("NVTE_CUDA_LIB_PATH with folders of others")) {
    Child c = run_child(search_wrong_folders, NULL, "none");
    CHECK(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 7, "status 0x%x", c.status);
    CHECK(strstr(c.text,
                 "NVTE_CUDA_LIB_PATH: relative/folder is not searched: the path is not "
                 "absolute\n"),
          "\"%s\"", c.text);
    CHECK(strstr(c.text, "is not searched: every user can write to it\n"), "\"%s\"", c.text);
    CHECK(strstr(c.text, "NVTE_CUDA_LIB_PATH: /nonexistent/folder is not searched: "), "\"%s\"",
          c.text);
    CHECK(!strstr(c.text, "/usr "), "\"%s\"", c.text);
    CHECK(lines_of(c.text) == 3, "\"%s\"", c.text);
  }
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
    const char *first = nvtex_last_error();
    nvte_tensor_numel(NULL);
    nvtex_set_error_mode((NVTEXErrorMode)3);
    CHECK(nvtex_last_error() == first && strstr(first, "nvte_tensor_ndims:"),
          "not the first one: \"%s\"", nvtex_last_error());
    nvtex_clear_error();
    CHECK_EQ(nvtex_last_status(), NVTEX_OK);
    CHECK(nvtex_last_error()[0] == 0, "\"%s\"", nvtex_last_error());
    nvtex_clear_error();
    EXPECT_OK();
  }
  if (case_begin("errors of one's own calls")) {
    uint64_t start = nvtex_error_count();
    CHECK(nvtex_take_error(start) == NULL, "an error before any");
    fail();
    CHECK_EQ(nvtex_error_count(), start + 1);
    nvtex_clear_error();
    CHECK_EQ(nvtex_error_count(), start + 1);  // clearing does not turn it back
    uint64_t before = nvtex_error_count();
    CHECK(nvtex_take_error(before) == NULL, "an error without a call");
    nvte_tensor_numel(NULL);
    nvte_tensor_size(NULL, 3);
    const char *text = nvtex_take_error(before);
    CHECK(text && strstr(text, "nvte_tensor_size:"), "not the newest: \"%s\"", text ? text : "");
    CHECK_EQ(nvtex_last_status(), NVTEX_OK);  // both came after `before`

    fail();
    before = nvtex_error_count();
    nvte_tensor_numel(NULL);
    text = nvtex_take_error(before);
    CHECK(text && strstr(text, "nvte_tensor_numel:"), "\"%s\"", text ? text : "");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_tensor_ndims:");  // was there before, and stays
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

// ---- In destructors of an ending thread

typedef struct Ending {
  NVTETensor tensor;
  bool ran, ok;
} Ending;

static pthread_key_t g_ending;

static void calls_while_ending(void *argument) {
  Ending *e = argument;
  e->ran = true;
  e->ok = nvtex_last_status() == NVTEX_INVALID_ARGUMENT;  // of the thread's last call
  nvtex_clear_error();
  e->ok = e->ok && nvtex_last_status() == NVTEX_OK && nvtex_last_error()[0] == 0;
  e->ok = e->ok && nvte_tensor_ndims(e->tensor) == 1;
  nvte_destroy_tensor(e->tensor);
  NVTETensor another = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  nvte_destroy_tensor(another);
  nvte_destroy_quantization_config(nvte_create_quantization_config());
  e->ok = e->ok && another && nvtex_last_status() == NVTEX_OK;
  uint64_t before = nvtex_error_count();
  for (int i = 0; i < 3; i++) nvte_destroy_tensor(another);
  e->ok = e->ok && nvtex_error_count() == before + 3;
  e->ok = e->ok && nvtex_last_status() == NVTEX_INVALID_ARGUMENT && nvtex_last_error()[0] != 0;
  const char *text = nvtex_take_error(before);
  e->ok = e->ok && text && text[0] != 0 && nvtex_last_status() == NVTEX_OK;
}

static void *end_with_calls(void *argument) {
  Ending *e = argument;
  pthread_setspecific(g_ending, e);
  e->tensor = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  fail();
  return NULL;
}

static void test_ending_threads(void) {
  if (!case_begin("calls while a thread is ending")) return;
  CHECK_EQ(pthread_key_create(&g_ending, calls_while_ending), 0);
  for (int i = 0; i < 3; i++) {
    Ending e = {0};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, end_with_calls, &e), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(e.ran && e.ok, "ran %d, ok %d", e.ran, e.ok);
  }
  CHECK_EQ(pthread_key_delete(g_ending), 0);
}

// ---- fork

static atomic_bool g_stop;

static void *create_and_destroy(void *unused) {
  NVTETensor t[200];
  while (!atomic_load(&g_stop)) {
    for (size_t i = 0; i < COUNT(t); i++) t[i] = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
    for (size_t i = 0; i < COUNT(t); i++) nvte_destroy_tensor(t[i]);
  }
  return unused;
}

// In the child: handles and errors work; operators do on the CPU, and are refused on CUDA.
static int calls_after_fork(NVTETensor inherited, unsigned char *bytes) {
  NVTETensor t[300];
  for (size_t i = 0; i < COUNT(t); i++) t[i] = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  for (size_t i = 0; i < COUNT(t); i++) {
    if (nvte_tensor_ndims(t[i]) != 1) return 1;
    nvte_destroy_tensor(t[i]);
  }
  if (nvte_tensor_numel(inherited) != 4) return 2;
  nvte_destroy_tensor(inherited);
  if (nvtex_last_status() != NVTEX_OK) return 3;
  nvte_destroy_tensor(inherited);
  if (nvtex_last_status() != NVTEX_INVALID_ARGUMENT) return 4;
  nvtex_clear_error();
  nvte_memset(bytes, 0x5A, 4, NULL);
  if (on_cuda()) {
    bool named = strstr(nvtex_last_error(), "nvte_memset: CUDA cannot be used in a process forked");
    return nvtex_last_status() == NVTEX_UNSUPPORTED && named ? 7 : 5;
  }
  return nvtex_last_status() == NVTEX_OK && bytes[0] == 0x5A && bytes[3] == 0x5A ? 7 : 6;
}

static void test_fork(void) {
  enum { THREADS = 4, FORKS = 100 };
  if (!case_begin("%d forks beside %d busy threads", FORKS, THREADS)) return;
  Buffer *b = buffer(4);
  NVTETensor inherited = tensor(b->ptr, kNVTEByte, SHAPE(4));
  pthread_t threads[THREADS];
  atomic_store(&g_stop, false);
  for (int i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, create_and_destroy, NULL), 0);
  }
  fflush(NULL);
  for (int i = 0; i < FORKS; i++) {
    pid_t pid = fork();
    if (pid < 0) abort();
    if (pid == 0) {
      alarm(60);  // ends a child that hangs
      dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
      _exit(calls_after_fork(inherited, b->ptr));
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (!CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "fork %d: status 0x%x", i, status))
      break;
  }
  atomic_store(&g_stop, true);
  for (int i = 0; i < THREADS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
  CHECK_EQ(nvte_tensor_numel(inherited), 4);
  CHECK(untouched(b), "a child wrote into its parent's memory");
}

static void test_names(void) {
  if (case_begin("version")) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", NVTE_VERSION_MAJOR, NVTE_VERSION_MINOR,
             NVTE_VERSION_PATCH);
    CHECK(strcmp(nvtex_version(), text) == 0, "\"%s\", the headers say %s", nvtex_version(), text);
    CHECK_EQ(nvtex_version_number(), NVTE_VERSION);
    CHECK_EQ(NVTE_MAKE_VERSION(1, 20, 3), 1020003);
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
    if (!on_cuda()) {
      nvtex_malloc(SIZE_MAX / 4);
      EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nvtex_malloc", "out of host memory: 4611686018427387903");
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

// ---- Threads of the CPU backend

enum { T_ROWS = 300, T_COLS = 500, T_DEPTH = 700 };

// Results of operators that share their work, one after the other.
static uint8_t *run_shared(const void *values) {
  enum { D_BYTES = T_ROWS * T_COLS * 2, Y_BYTES = T_ROWS * T_DEPTH * 4 };
  uint8_t *results = host_memory(D_BYTES + Y_BYTES + 4);
  Buffer *x = buffer_from(values, (T_ROWS + T_COLS) * T_DEPTH * 4, 0);
  Buffer *d = buffer(D_BYTES), *y = buffer(Y_BYTES), *amax = buffer_float(0);
  Buffer *workspace = buffer(32 << 20);
  float *second = (float *)x->ptr + T_ROWS * T_DEPTH;
  NVTETensor a = tensor(second, kNVTEFloat32, SHAPE(T_COLS, T_DEPTH));
  NVTETensor b = tensor(x->ptr, kNVTEFloat32, SHAPE(T_ROWS, T_DEPTH));
  NVTETensor d_tensor = tensor(d->ptr, kNVTEBFloat16, SHAPE(T_ROWS, T_COLS));
  NVTETensor y_tensor = tensor(y->ptr, kNVTEFloat32, SHAPE(T_ROWS, T_DEPTH));
  set_param(y_tensor, kNVTEAmax, amax->ptr, kNVTEFloat32, SHAPE(1));
  NVTETensor none = empty_tensor();
  NVTETensor space = tensor(workspace->ptr, kNVTEByte, SHAPE(32 << 20));
  nvte_cublas_gemm(a, b, d_tensor, none, none, true, false, false, space, false, false, 0, NULL);
  nvte_gelu(b, y_tensor, NULL);
  EXPECT_OK();
  download(results, d->ptr, D_BYTES);
  download(results + D_BYTES, y->ptr, Y_BYTES);
  download(results + D_BYTES + Y_BYTES, amax->ptr, 4);
  return results;
}

static void test_threads(void) {
  if (case_begin("number of threads")) {
    nvtex_set_num_threads(3);
    CHECK_EQ(nvtex_num_threads(), 3);
    nvtex_set_num_threads(1025);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_set_num_threads: num_threads", "expected",
                 "got 1025");
    CHECK_EQ(nvtex_num_threads(), 3);
    nvtex_set_num_threads(0);
    CHECK(nvtex_num_threads() >= 1, "no thread");
    EXPECT_OK();
  }
  if (case_begin("results do not depend on the number of threads")) {
    float *values = random_values(kNVTEFloat32, (T_ROWS + T_COLS) * T_DEPTH, -1, 1);
    nvtex_set_num_threads(1);
    uint8_t *one = run_shared(values);
    nvtex_set_num_threads(3);
    uint8_t *three = run_shared(values);
    nvtex_set_num_threads(0);
    const size_t bytes = T_ROWS * T_COLS * 2 + T_ROWS * T_DEPTH * 4 + 4;
    for (size_t i = 0; i < bytes; i++) {
      if (!CHECK(one[i] == three[i], "byte %zu: %d and %d", i, one[i], three[i])) break;
    }
  }
}

static void print_threads(void) { fprintf(stderr, "threads: %zu", nvtex_num_threads()); }

static void test_thread_variable(void) {
  static const struct {
    const char *value, *text;
  } rows[] = {{"1", "threads: 1"},
              {"3", "threads: 3"},
              {"0", "warning: NVTE_NUM_THREADS"},
              {"many", "warning: NVTE_NUM_THREADS"},
              {"1025", "warning: NVTE_NUM_THREADS"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (!case_begin("NVTE_NUM_THREADS=%s", rows[i].value)) continue;
    setenv("NVTE_NUM_THREADS", rows[i].value, 1);
    Child child = run_child(print_threads, NULL, NULL);
    unsetenv("NVTE_NUM_THREADS");
    CHECK(child.status == 0, "status %x", (unsigned)child.status);
    CHECK(strstr(child.text, rows[i].text), "no \"%s\" in \"%s\"", rows[i].text, child.text);
  }
}

static void test_arrays(void) {
  if (!case_begin("arrays")) return;
  const float values[6] = {1, -2, 3, 4.5f, 5, 6};
  float read[6] = {0};
  NVTETensor array = nvtex_array_create(kNVTEFloat32, (size_t[]){2, 3}, 2);
  EXPECT_OK();
  CHECK(same_shape(nvte_tensor_shape(array), SHAPE(2, 3)), "%s",
        shape_text(nvte_tensor_shape(array)));
  nvtex_array_set(array, values, sizeof values, NULL);
  nvtex_array_get(array, read, sizeof read, NULL);
  EXPECT_OK();
  CHECK(memcmp(values, read, sizeof read) == 0, "other values");
  nvtex_array_get(array, read, sizeof read - 4, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "bytes", "24");
  nvtex_array_destroy(array);
  nvtex_array_destroy(NULL);
  EXPECT_OK();
  nvtex_array_destroy(array);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "array", "live");
  CHECK(nvtex_array_create(kNVTEFloat32, (size_t[]){SIZE_MAX / 8, 64}, 2) == NULL, "made");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "2^63");
  array = nvtex_array_create(kNVTEInt64, NULL, 0);
  EXPECT_OK();
  CHECK_EQ(nvte_tensor_numel(array), 1);
  nvtex_array_destroy(array);
}

// A graph copies what is there when it is replayed.
static void test_graphs(void) {
  if (!case_begin("graphs")) return;
  cudaStream_t stream = nvtex_stream_create();
  nvtex_graph_begin(stream);
  if (!on_cuda()) {
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "has no graphs");
    CHECK(nvtex_graph_end(stream) == NULL, "a graph");
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "has no graphs");
    nvtex_graph_replay(NULL, stream);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "graph", "null");
    return;
  }
  NVTETensor a = nvtex_array_create(kNVTEFloat32, (size_t[]){1}, 1);
  NVTETensor b = nvtex_array_create(kNVTEFloat32, (size_t[]){1}, 1);
  nvtex_memcpy_on_device(nvte_tensor_data(b), nvte_tensor_data(a), sizeof(float), stream);
  NVTEXGraph graph = nvtex_graph_end(stream);
  EXPECT_OK();
  for (float value = 1; value < 4; value++) {
    float read = 0;
    nvtex_array_set(a, &value, sizeof value, stream);
    nvtex_graph_replay(graph, stream);
    nvtex_array_get(b, &read, sizeof read, stream);
    EXPECT_OK();
    CHECK_FLOAT(read, value);
  }
  nvtex_graph_end(stream);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "stream", "being recorded");
  nvtex_graph_begin(NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "stream", "null");
  nvtex_graph_destroy(graph);
  nvtex_graph_destroy(NULL);
  EXPECT_OK();
  nvtex_graph_replay(graph, stream);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "graph", "live");
  nvtex_array_destroy(a);
  nvtex_array_destroy(b);
  nvtex_stream_destroy(stream);
}

int main(int argc, char **argv) {
  test_arguments(argc, argv);
  g_test.backend = "auto";
  test_children();
  test_thread_variable();
  case_end();
  test_begin(argc, argv);
  test_errors();
  test_ending_threads();
  test_fork();
  test_names();
  test_arrays();
  test_graphs();
  test_memory();
  test_streams();
  test_threads();
  return test_end();
}
