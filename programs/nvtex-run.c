// nvtex-run: starts the ranks of a program on this host. Each gets RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE and NVTEX_RENDEZVOUS, from which nvtex_communicator_from_environment makes their
// communicator. If a rank fails, the others have a few seconds to say why, and are then ended. Exit
// status: that of the first rank that has failed.
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 128, PATIENCE = 10 };

static const char kUsage[] =
    "usage: nvtex-run -n RANKS [--gpus] PROGRAM [ARGUMENTS]\n"
    "  --gpus  rank r sees the r-th GPU alone\n";

static pid_t g_ranks[MOST_RANKS];
static volatile sig_atomic_t g_ending;

static void end_all(int signal_number) {
  for (int r = 0; r < MOST_RANKS; r++) {
    if (g_ranks[r] > 0) kill(g_ranks[r], signal_number);
  }
}

// Of this program: the first signal goes to all ranks, and after some time those left are killed.
static void on_signal(int signal_number) {
  int kept = errno;
  end_all(g_ending || signal_number == SIGALRM ? SIGKILL : signal_number);
  g_ending = 1;
  alarm(PATIENCE);
  errno = kept;
}

static void set(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

// The GPU of a rank: the r-th of those that this program sees.
static void set_gpu(int rank) {
  const char *seen = getenv("CUDA_VISIBLE_DEVICES");
  if (!seen || !*seen) {
    set("CUDA_VISIBLE_DEVICES", rank);
    return;
  }
  char *list = strdup(seen), *place = list, *device = NULL;
  for (int r = 0; r <= rank; r++) device = strtok(r ? NULL : place, ",");
  if (device) setenv("CUDA_VISIBLE_DEVICES", device, 1);
  free(list);
  if (device) return;
  fprintf(stderr, "nvtex-run: rank %d has no GPU: CUDA_VISIBLE_DEVICES is %s\n", rank, seen);
  exit(2);
}

int main(int argc, char **argv) {
  int size = 0, at = 1, gpus = 0;
  for (; at < argc && argv[at][0] == '-'; at++) {
    if (strcmp(argv[at], "-n") == 0 && at + 1 < argc) {
      size = atoi(argv[++at]);
    } else if (strcmp(argv[at], "--gpus") == 0) {
      gpus = 1;
    } else {
      break;
    }
  }
  if (size < 1 || size > MOST_RANKS || at >= argc || argv[at][0] == '-') {
    fprintf(stderr, "%s", kUsage);
    return 2;
  }
  char name[64];
  snprintf(name, sizeof name, "run-%ld-%lld", (long)getpid(), (long long)time(NULL));
  setenv("NVTEX_RENDEZVOUS", name, 1);
  set("WORLD_SIZE", size);
  set("LOCAL_WORLD_SIZE", size);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGALRM, &action, NULL);
  for (int r = 0; r < size; r++) {
    pid_t pid = fork();
    if (pid < 0) {
      perror("nvtex-run: fork");
      end_all(SIGKILL);
      return 2;
    }
    if (pid == 0) {
      set("RANK", r);
      set("LOCAL_RANK", r);
      if (gpus) set_gpu(r);
      execvp(argv[at], argv + at);
      fprintf(stderr, "nvtex-run: %s: %s\n", argv[at], strerror(errno));
      _exit(127);
    }
    g_ranks[r] = pid;
  }
  int result = 0;
  for (int left = size; left > 0;) {
    int status;
    pid_t pid = wait(&status);
    if (pid < 0) {
      if (errno == EINTR) continue;
      break;
    }
    for (int r = 0; r < size; r++) {
      if (g_ranks[r] != pid) continue;
      g_ranks[r] = 0;
      left--;
      int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (code == 0 || result != 0) continue;
      result = code;
      fprintf(stderr, "nvtex-run: rank %d (process %ld) ended with status %d\n", r, (long)pid,
              code);
      // The others learn it from their communicators; whoever is still there then is ended.
      alarm(PATIENCE);
    }
  }
  return result;
}
