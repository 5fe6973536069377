// Ranks as child processes of a test: a device does not survive a fork, so that the parent calls
// nothing of the library.
#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

// How a child has ended that was killed.
enum { DIED = 99 };

typedef void (*Body)(int rank, int size);

static pid_t start(int rank, int size, Body body) {
  fflush(NULL);
  const pid_t pid = fork();
  if (pid < 0) abort();
  if (pid > 0) return pid;
  // Not longer than the test, whatever happens.
  alarm(60);
  body(rank, size);
  nvtex_clear_error();
  fflush(NULL);
  _exit(atomic_load(&g_bad) ? TEST_FAIL : TEST_PASS);
}

// How a child has ended: its status, DIED if it was killed, or 128 more than the signal that has
// ended it.
static int finish(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) != pid) {
    if (errno != EINTR) abort();
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return WTERMSIG(status) == SIGKILL ? DIED : 128 + WTERMSIG(status);
}

// Instead of test_begin() of a program that forks: a child asks for the backend.
static int begin_children(int argc, char **argv) {
  enum { CUDA = 2 };
  test_arguments(argc, argv);
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0) {
    test_begin(1, argv);
    _exit(on_cuda() ? CUDA : TEST_PASS);
  }
  const int backend = finish(pid);
  g_test.backend = backend == CUDA ? "cuda" : "cpu";
  return backend == CUDA ? TEST_PASS : backend;
}
