// Threads that dispatch while others register plugins, change policies and look, with a trace and
// with tapes that go from thread to thread; and forks at any moment.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "child.h"
#include "nvte/module.h"
#include "offer.h"

enum { THREADS = 8, REGISTRATIONS = 300 };

static atomic_bool g_stop;
static atomic_int g_wrong;

// Every implementation of this test writes what was asked for, so that the result never depends on
// which one runs. A call sees a whole list of candidates or the one before.
static void *dispatch(void *user) {
  long calls = 0;
  unsigned seed = (unsigned)(uintptr_t)user;
  NVTEXPolicy policies[] = {nvtex_policy_create(NULL, "domain=cpu;prefer=vendor"),
                            nvtex_policy_create(NULL, "domain=cpu;memset=reference"),
                            nvtex_policy_create(NULL, "domain=cpu;memset=vendor|*;deny_vendors=x")};
  for (; !atomic_load(&g_stop) || calls < 1000; calls++) {
    seed = seed * 1103515245 + 12345;
    bool scoped = seed >> 16 & 1;
    if (scoped) nvtex_policy_push(policies[(seed >> 20) % COUNT(policies)]);
    unsigned char bytes[8] = {0};
    unsigned char value = (unsigned char)(seed >> 8);
    nvte_memset(bytes, value, sizeof bytes, NULL);
    for (size_t i = 0; i < sizeof bytes; i++) {
      if (bytes[i] != value) atomic_fetch_add(&g_wrong, 1);
    }
    if (nvtex_last_status() != NVTEX_OK) atomic_fetch_add(&g_wrong, 1000);
    if (scoped) nvtex_policy_pop();
    if (calls % 64 == 0) sched_yield();
  }
  for (size_t i = 0; i < COUNT(policies); i++) nvtex_policy_destroy(policies[i]);
  return (void *)calls;
}

static void *change_policies(void *user) {
  static const char *const texts[] = {"domain=cpu", "domain=cpu;prefer=vendor",
                                      "domain=cpu;memset=*", "domain=cpu;deterministic=1"};
  (void)user;
  for (unsigned i = 0; !atomic_load(&g_stop); i++) {
    NVTEXPolicy policy = nvtex_policy_create(NULL, texts[i % COUNT(texts)]);
    nvtex_policy_destroy(nvtex_policy_set(policy));
    nvtex_policy_destroy(policy);
    nvtex_dispatch_fingerprint();
    sched_yield();
  }
  return NULL;
}

static Offer g_offers[REGISTRATIONS];
static char g_names[REGISTRATIONS][16];

static bool register_next(int i) {
  snprintf(g_names[i], sizeof g_names[i], "busy.%03d", i);
  // Some decline, some are never reached, some come first.
  int32_t priority = 1 + i * 7 % 1000;
  g_offers[i] = (Offer){.id = g_names[i],
                        .priority = priority,
                        .predicate = i % 3 == 0,
                        .supported = i % 2 ? NVTEX_PLUGIN_DECLINED : NVTEX_PLUGIN_OK};
  g_offered.name = g_names[i];
  g_offered.offers = &g_offers[i];
  g_offered.count = 1;
  return nvtex_plugin_register(offer_entry);
}

static void test_threads(void) {
  if (!case_begin("%d threads dispatch, one registers, one changes policies", THREADS)) return;
  pthread_t threads[THREADS], changer;
  atomic_store(&g_stop, false);
  // The memory of the calls is the host's.
  NVTEXPolicy of_host = nvtex_policy_create(NULL, "domain=cpu");
  nvtex_policy_destroy(nvtex_policy_set(of_host));
  nvtex_policy_destroy(of_host);
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK_EQ(pthread_create(&threads[i], NULL, dispatch, (void *)(i + 1)), 0);
  }
  CHECK_EQ(pthread_create(&changer, NULL, change_policies, NULL), 0);
  uint64_t generation = nvtex_dispatch_generation();
  for (int i = 0; i < REGISTRATIONS; i++) {
    if (!CHECK(register_next(i), "%s", nvtex_last_error())) break;
  }
  atomic_store(&g_stop, true);
  for (int i = 0; i < THREADS; i++) {
    void *calls = NULL;
    CHECK_EQ(pthread_join(threads[i], &calls), 0);
    CHECK((long)calls >= 1000, "%ld calls", (long)calls);
  }
  CHECK_EQ(pthread_join(changer, NULL), 0);
  CHECK_EQ(atomic_load(&g_wrong), 0);
  CHECK_EQ(nvtex_dispatch_generation(), generation + REGISTRATIONS);
  // The list that came out is the right one: the highest priority that takes the call.
  use_policy("prefer=vendor");
  int best = -1;
  for (int i = 0; i < REGISTRATIONS; i++) {
    if (g_offers[i].predicate && g_offers[i].supported != NVTEX_PLUGIN_OK) continue;
    if (best < 0 || g_offers[i].priority > g_offers[best].priority) best = i;
  }
  EXPECT_RUNS(0);
  CHECK(strcmp(nvtex_impl_last("memset"), g_names[best]) == 0, "%s, not %s",
        nvtex_impl_last("memset"), g_names[best]);
  EXPECT_OK();
}

// ---- The first use of the library, by many threads at once

static pthread_barrier_t g_start;

static void *first_use(void *user) {
  (void)user;
  pthread_barrier_wait(&g_start);
  unsigned char byte = 1;
  nvte_memset(&byte, 0, 1, NULL);
  return (void *)(long)(byte == 0 && nvtex_last_status() == NVTEX_OK);
}

static int race_for_the_first_use(void) {
  enum { RACERS = 16 };
  pthread_t threads[RACERS];
  if (pthread_barrier_init(&g_start, NULL, RACERS) != 0) return 1;
  for (int i = 0; i < RACERS; i++) {
    if (pthread_create(&threads[i], NULL, first_use, NULL) != 0) return 2;
  }
  int good = 0;
  for (int i = 0; i < RACERS; i++) {
    void *result = NULL;
    pthread_join(threads[i], &result);
    good += result != NULL;
  }
  return good == RACERS ? 7 : 3;
}

static void test_first_use(void) {
  if (!case_begin("the first use, by 16 threads")) return;
  for (int round = 0; round < 10; round++) {
    pid_t pid = fork_child();
    if (pid == 0) {
      setenv("NVTE_BACKEND", "cpu", 1);
      execl("/proc/self/exe", "concurrency", "--race", (char *)NULL);
      _exit(8);
    }
    int status = wait_for_child(pid);
    if (!CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status 0x%x", status)) break;
  }
}

// ---- Forks

static atomic_int g_registered;

static void *register_all(void *user) {
  (void)user;
  for (int i = 0; i < REGISTRATIONS && !atomic_load(&g_stop); i++) {
    register_next(i);
    atomic_fetch_add(&g_registered, 1);
  }
  return NULL;
}

// Other threads are amid of commits and calls whenever the process forks; the child goes on.
static int fork_while_busy(void) {
  enum { FORKS = 60 };
  // A process that forks while it looks for plugins has a child without operators.
  if (!nvtex_plugins_discover()) return 6;
  pthread_t writer, threads[2];
  if (pthread_create(&writer, NULL, register_all, NULL) != 0) return 1;
  for (uintptr_t i = 0; i < COUNT(threads); i++) {
    if (pthread_create(&threads[i], NULL, dispatch, (void *)(i + 1)) != 0) return 2;
  }
  int result = 7;
  for (int i = 0; i < FORKS && result == 7; i++) {
    pid_t pid = fork();
    if (pid < 0) return 3;
    if (pid == 0) {
      alarm(30);
      NVTEXPolicy policy = nvtex_policy_create(NULL, "domain=cpu;memset=*");
      nvtex_policy_push(policy);
      // Plugins that do not survive a fork are left out, the library's own runs.
      if (who_ran() != 0 || nvtex_last_status() != NVTEX_OK) _exit(1);
      if (strcmp(nvtex_impl_last("memset"), "reference.cpu") != 0) _exit(2);
      static Offer offers[] = {{.id = "child", .priority = 1000, .tag = 5}};
      g_offered.name = "child";
      g_offered.offers = offers;
      g_offered.count = 1;
      if (!nvtex_plugin_register(offer_entry) || who_ran() != 5) _exit(3);
      _exit(7);
    }
    int status = wait_for_child(pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) {
      result = WIFEXITED(status) ? 10 + WEXITSTATUS(status) : 30 + WTERMSIG(status);
    }
    sched_yield();
  }
  atomic_store(&g_stop, true);
  pthread_join(writer, NULL);
  for (size_t i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
  if (atomic_load(&g_registered) == 0) return 4;
  return atomic_load(&g_wrong) == 0 ? result : 5;
}

static void test_forks(void) {
  if (!case_begin("forks beside threads that register and dispatch")) return;
  pid_t pid = fork_child();
  if (pid == 0) {
    setenv("NVTE_BACKEND", "cpu", 1);
    execl("/proc/self/exe", "concurrency", "--forks", (char *)NULL);
    _exit(8);
  }
  int status = wait_for_child(pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status 0x%x", status);
}

// ---- A trace, counters, explanations and tapes

enum { TAPES = 40, ROWS = 3, COLS = 8 };

static void count_explanations(void *user, const NVTEXExplanation *explanation) {
  if (explanation->chosen) ++*(int *)user;
}

// Explains and runs, with names and counters of what is registered meanwhile.
static void *look(void *user) {
  (void)user;
  for (int i = 0; !atomic_load(&g_stop); i++) {
    unsigned char byte = 1;
    int explained = 0;
    nvtex_explain_begin(count_explanations, &explained);
    nvte_memset(&byte, 0, 1, NULL);
    nvtex_explain_end();
    if (explained != 1 || byte != 1) atomic_fetch_add(&g_wrong, 1);
    nvtex_dispatch_counters(i % 2);
    NVTEXImplInfo impl = {.struct_size = sizeof impl};
    nvtex_impl_info(nvtex_impl_count() - 1, &impl);
    NVTEXPluginInfo plugin = {.struct_size = sizeof plugin};
    if (nvtex_plugin_count() > 0) nvtex_plugin_info(nvtex_plugin_count() - 1, &plugin);
    if (!nvtex_impl_last("memset")) atomic_fetch_add(&g_wrong, 1);
    sched_yield();
  }
  return NULL;
}

// A module whose tapes one thread makes and another one uses, one at a time.
typedef struct Relay {
  NVTEXContext context;
  NVTEXModule module;
  NVTEXTape tape;
  float x[ROWS * COLS], y[ROWS * COLS], dy[ROWS * COLS], dx[ROWS * COLS];
  pthread_t thread;
} Relay;

static NVTETensor matrix(float *data) {
  NVTETensor t = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
  const NVTEBasicTensor basic = {data, kNVTEFloat32, {.data = {ROWS, COLS}, .ndim = 2}};
  nvte_set_tensor_param(&t, kNVTERowwiseData, &basic);
  return t;
}

static void *go_back(void *user) {
  Relay *relay = user;
  NVTETensor dy = matrix(relay->dy), dx = matrix(relay->dx);
  nvtex_module_backward(relay->module, relay->tape, &dy, 1, &dx, 1, NULL);
  nvte_destroy_tensor(dy);
  nvte_destroy_tensor(dx);
  return (void *)(uintptr_t)(nvtex_last_status() == NVTEX_OK);
}

static void *run_relay(void *user) {
  Relay *relay = user;
  NVTEXPolicy own = nvtex_policy_create(NULL, "domain=cpu;norm_backward=reference");
  for (int i = 0; i < TAPES; i++) {
    NVTETensor x = matrix(relay->x), y = matrix(relay->y);
    if (i % 2) nvtex_policy_push(own);
    relay->tape = NULL;
    nvtex_module_forward(relay->module, &x, 1, &y, 1, NULL, &relay->tape, NULL);
    if (i % 2) nvtex_policy_pop();
    pthread_t other;
    void *good = NULL;
    if (pthread_create(&other, NULL, go_back, relay) == 0) pthread_join(other, &good);
    if (!good || nvtex_last_status() != NVTEX_OK) atomic_fetch_add(&g_wrong, 1);
    nvtex_tape_destroy(relay->tape);
    nvte_destroy_tensor(x);
    nvte_destroy_tensor(y);
  }
  nvtex_policy_destroy(own);
  return NULL;
}

static int trace_while_busy(void) {
  enum { RELAYS = 3 };
  static Relay relays[RELAYS];
  pthread_t writer, looker, changer, threads[2];
  for (int i = 0; i < RELAYS; i++) {
    NVTEXContextConfig config;
    nvtex_context_config_init(&config, sizeof config);
    relays[i].context = nvtex_context_create(&config);
    NVTEXNormConfig norm;
    nvtex_norm_config_init(&norm, sizeof norm);
    norm.hidden_size = COLS;
    relays[i].module = nvtex_norm_create(relays[i].context, &norm, NULL);
    for (int j = 0; j < ROWS * COLS; j++) relays[i].x[j] = relays[i].dy[j] = (float)(j % 7) - 3;
  }
  unsigned char byte = 1;
  nvte_memset(&byte, 0, 1, NULL);
  if (nvtex_last_status() != NVTEX_OK) return 1;
  if (pthread_create(&writer, NULL, register_all, NULL) != 0) return 2;
  if (pthread_create(&looker, NULL, look, NULL) != 0) return 2;
  if (pthread_create(&changer, NULL, change_policies, NULL) != 0) return 2;
  for (uintptr_t i = 0; i < COUNT(threads); i++) {
    if (pthread_create(&threads[i], NULL, dispatch, (void *)(i + 1)) != 0) return 2;
  }
  for (int i = 0; i < RELAYS; i++) {
    if (pthread_create(&relays[i].thread, NULL, run_relay, &relays[i]) != 0) return 2;
  }
  for (int i = 0; i < RELAYS; i++) pthread_join(relays[i].thread, NULL);
  atomic_store(&g_stop, true);
  const pthread_t others[] = {writer, looker, changer, threads[0], threads[1]};
  for (size_t i = 0; i < COUNT(others); i++) pthread_join(others[i], NULL);
  for (int i = 0; i < RELAYS; i++) {
    nvtex_module_destroy(relays[i].module);
    nvtex_context_destroy(relays[i].context);
  }
  return atomic_load(&g_wrong) == 0 && nvtex_last_status() == NVTEX_OK ? 7 : 5;
}

static void test_trace(void) {
  if (!case_begin("a trace, counters, explanations and tapes")) return;
  char path[64] = "/tmp/nvte_trace_XXXXXX";
  int file = mkstemp(path);
  if (!CHECK(file >= 0, "no file in /tmp")) return;
  pid_t pid = fork_child();
  if (pid == 0) {
    setenv("NVTE_BACKEND", "cpu", 1);
    setenv("NVTE_TRACE", path, 1);
    execl("/proc/self/exe", "concurrency", "--trace", (char *)NULL);
    _exit(8);
  }
  int status = wait_for_child(pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status 0x%x", status);
  // The file is whole: a list that ends, with the operators of all threads.
  FILE *lines = fdopen(file, "r");
  char line[1024] = "";
  bool begins = lines && fgets(line, sizeof line, lines) && line[0] == '[';
  bool norms = false, memsets = false;
  while (lines && fgets(line, sizeof line, lines)) {
    norms = norms || strstr(line, "norm_backward");
    memsets = memsets || strstr(line, "memset");
  }
  CHECK(begins && line[0] == ']', "the last line: %s", line);
  CHECK(norms && memsets, "operators are missing");
  if (lines) fclose(lines);
  unlink(path);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "--trace") == 0) return trace_while_busy();
  if (argc == 2 && strcmp(argv[1], "--race") == 0) return race_for_the_first_use();
  if (argc == 2 && strcmp(argv[1], "--forks") == 0) return fork_while_busy();
  test_begin(argc, argv);
  test_first_use();
  test_forks();
  test_trace();
  test_threads();
  return test_end();
}
