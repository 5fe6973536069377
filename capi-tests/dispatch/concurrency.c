// Threads that dispatch while others register plugins and change policies, and forks at any moment.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "child.h"
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

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "--race") == 0) return race_for_the_first_use();
  if (argc == 2 && strcmp(argv[1], "--forks") == 0) return fork_while_busy();
  test_begin(argc, argv);
  test_first_use();
  test_forks();
  test_threads();
  return test_end();
}
