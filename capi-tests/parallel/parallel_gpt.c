// The program examples/gpt.c as ranks of one host, which share memory: the losses of every grid lie
// on those of one rank, and a run goes on from the file of another grid.
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "../train/safetensors.h"
#include "ranks.h"

static NVTEXCommunicator communicator_of_rank(void);
static void save_and_end(const char *path, const NVTEXCheckpointConfig *config,
                         cudaStream_t stream);

// Several ranks may have one GPU if it is not NCCL that moves their data.
#define nvtex_communicator_from_environment(config) communicator_of_rank()
#define nvtex_checkpoint_save save_and_end
#define main gpt_main
#include "../../examples/gpt.c"
#undef main
#undef nvtex_checkpoint_save
#undef nvtex_communicator_from_environment

enum { MOST_RANKS = 8, MOST_ARGUMENTS = 40, STEPS = 10 };
// How far losses in high precision and in FP8 may be apart: sums are rounded in other places. The
// last steps fall fast, so that in FP8 what differs by a unit of the last place grows there.
static double g_tolerance[2] = {2e-3, 1e-1};

static char g_key[64];
static int g_rank, g_size;
// Products in FP8 and of experts are refused here.
static bool g_only_dense;
// The number of the save behind which the program ends; 0: it does not.
static int g_saves;
// What is exchanged runs beside products.
static bool g_overlap;

static NVTEXCommunicator communicator_of_rank(void) {
  NVTEXCommunicatorConfig config = communicator_config("world", 60);
  return nvtex_communicator_create_shared(g_key, g_rank, g_size, &config);
}

static void save_and_end(const char *path, const NVTEXCheckpointConfig *config,
                         cudaStream_t stream) {
  nvtex_checkpoint_save(path, config, stream);
  if (--g_saves) return;
  fflush(NULL);
  _exit(0);
}

// Runs the program with these arguments on ranks of their own, whose first writes to a file.
static void run_gpt(int size, const char *const *more, const char *output) {
  static const char *const common[] = {"gpt", "--steps", "10", "--layers",   "2",  "--hidden",
                                       "64",  "--heads", "4",  "--sequence", "16", "--batch",
                                       "8",   "--graph", "0",  "--recipes"};
  const char *arguments[MOST_ARGUMENTS] = {0};
  size_t count = 0;
  for (size_t i = 0; i < COUNT(common); i++) arguments[count++] = common[i];
  for (; *more; more++) arguments[count++] = *more;
  pid_t pids[MOST_RANKS];
  for (g_rank = 0; g_rank < size; g_rank++) {
    fflush(NULL);
    pids[g_rank] = fork();
    if (pids[g_rank] < 0) abort();
    if (pids[g_rank] > 0) continue;
    // Not longer than the test, whatever happens.
    alarm(300);
    g_size = size;
    setenv("NVTE_COMM_OVERLAP", g_overlap ? "1" : "0", 1);
    char names[32];
    snprintf(names, sizeof names, "%s", arguments[COUNT(common)]);
    arguments[COUNT(common)] = names;  // which the program divides
    if (!freopen(g_rank ? "/dev/null" : output, "w", stdout)) abort();
    int status = gpt_main((int)count, (char **)(uintptr_t)arguments);
    fflush(NULL);
    _exit(status);
  }
  for (int r = 0; r < size; r++) {
    int status = 0;
    while (waitpid(pids[r], &status, 0) != pids[r]) {
      if (errno != EINTR) abort();
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d ended with 0x%x", r, status);
  }
}

// The losses that a run has shown.
static size_t losses(const char *output, double *values, size_t most) {
  FILE *file = fopen(output, "r");
  char line[512];
  size_t count = 0;
  while (file && count < most && fgets(line, sizeof line, file)) {
    const char *at = strstr(line, "loss ");
    if (at && strstr(line, "step ")) values[count++] = strtod(at + 5, NULL);
  }
  if (file) fclose(file);
  return count;
}

typedef struct Grid {
  const char *name;
  int ranks;
  const char *arguments[12];
  bool overlap;
} Grid;

static const Grid kGrids[] = {
    {"1 rank", 1, {0}, false},
    {"tp 2", 2, {"--tp", "2"}, false},
    {"cp 2", 2, {"--cp", "2"}, false},
    {"dp 2, all divided", 2, {"--shard", "3"}, true},
    {"dp 2 x tp 2", 4, {"--tp", "2", "--dp", "2", "--shard", "2"}, false},
    {"dp 2 x tp 2 x cp 2, shared rows, all divided",
     8,
     {"--tp", "2", "--cp", "2", "--sp", "1", "--shard", "3"},
     true},
    {"experts on 1 rank", 1, {"--experts", "4"}, false},
    {"experts, ep 2", 2, {"--experts", "4", "--ep", "2", "--shard", "2"}, false},
    {"experts, ep 2 x tp 2, shared rows, room for all choices",
     4,
     {"--experts", "4", "--ep", "2", "--tp", "2", "--sp", "1", "--capacity", "2"},
     false},
};

// Both recipes, one behind the other. Grids are compared with the last rank that was alone.
static void check_grids(void) {
  const size_t steps = g_only_dense ? STEPS : 2 * STEPS;
  double expected[2 * STEPS], got[2 * STEPS];
  for (size_t g = 0; g < COUNT(kGrids); g++) {
    const char *recipes = g_only_dense ? "bf16" : "bf16,delayed";
    const char *arguments[18] = {recipes, "--text", in_folder("text")};
    if (g_only_dense && strstr(kGrids[g].name, "experts")) continue;
    for (size_t i = 0; kGrids[g].arguments[i]; i++) arguments[3 + i] = kGrids[g].arguments[i];
    g_overlap = kGrids[g].overlap;
    run_gpt(kGrids[g].ranks, arguments, in_folder("output"));
    g_overlap = false;
    const bool alone = kGrids[g].ranks == 1;
    const size_t shown = losses(in_folder("output"), alone ? expected : got, steps);
    if (!CHECK(shown == steps, "%s: %zu losses", kGrids[g].name, shown)) continue;
    for (size_t i = 0; !alone && i < shown; i++) {
      CHECK(fabs(got[i] - expected[i]) <= g_tolerance[i / STEPS],
            "%s: %s: loss %zu: got %g, expected %g", kGrids[g].name, i < STEPS ? "bf16" : "delayed",
            i % STEPS, got[i], expected[i]);
    }
  }
}

// Half of the steps on one grid, the others on another one: losses as those of one rank.
static void check_resumed(void) {
  double expected[STEPS], got[STEPS];
  const char *arguments[] = {"bf16", "--text", in_folder("text"), NULL};
  run_gpt(1, arguments, in_folder("output"));
  CHECK_EQ(losses(in_folder("output"), expected, STEPS), STEPS);
  const char *path = in_folder("saved");
  const char *from[] = {
      "bf16", "--text", in_folder("text"), "--checkpoint", path, "--tp", "2", "--shard", "2", NULL};
  g_saves = STEPS / 2;
  run_gpt(4, from, in_folder("output"));
  g_saves = 0;
  size_t shown = losses(in_folder("output"), got, STEPS);
  CHECK_EQ(shown, STEPS / 2);
  const char *to[] = {
      "bf16", "--text", in_folder("text"), "--checkpoint", path, "--cp", "2", "--shard", "3", NULL};
  run_gpt(2, to, in_folder("output"));
  shown += losses(in_folder("output"), got + shown, STEPS - shown);
  for (size_t i = 0; CHECK(shown == STEPS, "%zu losses", shown) && i < STEPS; i++) {
    CHECK(fabs(got[i] - expected[i]) <= g_tolerance[0], "loss %zu: got %g, expected %g", i, got[i],
          expected[i]);
  }
}

// A child asks for the backend and the device, since nobody uses one before a fork.
static void learn_backend(void) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid < 0) abort();
  if (pid == 0) {
    g_test.backend = nvtex_backend_name();
    _exit((on_gpu() ? 2 : 0) | (on_other_than_hopper() ? 4 : 0));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) != pid) {
    if (errno != EINTR) abort();
  }
  if (!WIFEXITED(status)) return;
  g_only_dense = WEXITSTATUS(status) & 4;
  if (WEXITSTATUS(status) & 2) {
    // In BFloat16 the losses of the last steps, which fall fast, differ by 0.05 of 3 between grids.
    // That is what BFloat16 itself is worth here: on the CPU one rank ends step 9 at 3.047 with it
    // and at 3.102 in float32, where grids agree to 5e-5, while grids in BFloat16 lie within 0.017
    // of one rank. Two runs that are each as far as that from float32 may be 0.11 apart.
    g_tolerance[0] = 8e-2;
  }
}

// A text that can be learned.
static void write_text(void) {
  static const char words[][8] = {"one ", "two ", "three ", "four ", "five ", "six ", "seven "};
  FILE *file = fopen(in_folder("text"), "w");
  if (!file) abort();
  for (size_t i = 0; i < 4000; i++) fputs(words[mixed(i) % COUNT(words)], file);
  fclose(file);
}

int main(int argc, char **argv) {
  test_arguments(argc, argv);
  folder_begin();
  snprintf(g_key, sizeof g_key, "capi-gpt-%ld", (long)getpid());
  write_text();
  learn_backend();
  // Ranks are children, since a device does not survive a fork: this process calls nothing before.
  if (case_begin("grids")) check_grids();
  if (case_begin("a run goes on, on another grid")) check_resumed();
  folder_end();
  test_begin(argc, argv);
  return test_end();
}
