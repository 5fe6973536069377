// Parts of a test that need a process of their own. A fork must come before the first use of a
// device: a CUDA context does not survive it. For sources with _POSIX_C_SOURCE.
#ifndef NVTE_CAPI_TESTS_CHILD_H
#define NVTE_CAPI_TESTS_CHILD_H

#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

// Like fork(), but it never fails, and what was printed before is printed once.
static inline pid_t fork_child(void) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) abort();
  return pid;
}

static inline int wait_for_child(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) abort();
  return status;
}

// Whether this process has NVTE_CHECK=device, with which values on the device are checked. The
// library reads the environment once, so that both ways need a process.
static bool g_checked;

// The tests of a program in a child with NVTE_CHECK=device, then here without.
static inline int run_checked_and_unchecked(int (*run_all)(int, char **), int argc, char **argv) {
  pid_t pid = fork_child();
  if (pid == 0) {
    setenv("NVTE_CHECK", "device", 1);
    g_checked = true;
    int result = run_all(argc, argv);
    fflush(NULL);
    // A filter may name a case of the other process alone.
    _exit(g_test.cases == 0 && result != TEST_SKIP ? TEST_PASS : result);
  }
  int status = wait_for_child(pid);
  unsetenv("NVTE_CHECK");
  int result = run_all(argc, argv);
  if (WIFEXITED(status) && WEXITSTATUS(status) == TEST_SKIP) return result;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != TEST_PASS) {
    fprintf(stderr, "with NVTE_CHECK=device: wait status %d\n", status);
    return TEST_FAIL;
  }
  return result;
}

#endif  // NVTE_CAPI_TESTS_CHILD_H
