// A device of a plugin: a private heap with one stream, which the host can address. The library's
// memory functions and operators run on it, and the reference stands in for what the plugin lacks.
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>

#include "child.h"
#include "nvte/activation.h"
#include "nvte/cast.h"
#include "nvte/multi_stream.h"
#include "nvte/permutation.h"
#include "offer.h"

enum { HEAP = 1 << 20 };

// The heap gives memory away and never takes it back.
static struct {
  _Alignas(256) unsigned char bytes[HEAP];
  size_t used;
  int mallocs, frees, copies, synchronized, devices;
  bool fails;
} g_heap = {.devices = 1};

static int32_t device_count(void *user, int32_t *count) {
  CHECK(user == &g_heap, "the pointer of the domain");
  *count = g_heap.devices;
  return NVTEX_PLUGIN_OK;
}

static int32_t current_device(void *user, int32_t *device) {
  (void)user;
  *device = 0;
  return NVTEX_PLUGIN_OK;
}

static int32_t device_arch(void *user, int32_t device, uint32_t *arch) {
  (void)user;
  (void)device;
  *arch = 120;
  return NVTEX_PLUGIN_OK;
}

static int32_t heap_malloc(void *user, void **pointer, size_t bytes) {
  (void)user;
  size_t rounded = (bytes + 255) / 256 * 256;
  if (g_heap.fails || rounded > HEAP - g_heap.used) return NVTEX_PLUGIN_FAILED;
  *pointer = g_heap.bytes + g_heap.used;
  g_heap.used += rounded;
  g_heap.mallocs++;
  return NVTEX_PLUGIN_OK;
}

static int32_t heap_free(void *user, void *pointer) {
  (void)user;
  CHECK((unsigned char *)pointer >= g_heap.bytes && (unsigned char *)pointer < g_heap.bytes + HEAP,
        "memory of another domain is freed");
  g_heap.frees++;
  return NVTEX_PLUGIN_OK;
}

static int32_t heap_memcpy(void *user, void *to, const void *from, size_t bytes, int32_t kind,
                           cudaStream_t stream) {
  (void)user;
  (void)kind;
  (void)stream;
  memmove(to, from, bytes);
  g_heap.copies++;
  return NVTEX_PLUGIN_OK;
}

static int32_t synchronize(void *user, cudaStream_t stream) {
  (void)user;
  (void)stream;
  g_heap.synchronized++;
  return NVTEX_PLUGIN_OK;
}

static const char *last_error(void *user) {
  (void)user;
  return "the heap is full";
}

static NVTEXDomain heap_domain(const char *name) {
  NVTEXDomain domain;
  memset(&domain, 0, sizeof domain);
  domain.struct_size = sizeof domain;
  domain.name = name;
  domain.flags = NVTEX_DOMAIN_HOST_ACCESSIBLE;
  domain.user = &g_heap;
  domain.device_count = device_count;
  domain.current_device = current_device;
  domain.device_arch = device_arch;
  domain.malloc = heap_malloc;
  domain.free = heap_free;
  domain.memcpy = heap_memcpy;
  domain.stream_synchronize = synchronize;
  domain.last_error = last_error;
  return domain;
}

static Offer g_offers[] = {
    {.id = "heap.memset", .domain = "heap", .tag = 80},
    {.id = "host.memset", .tag = 81},
    {.id = "heap.new", .domain = "heap", .tag = 82, .min_arch = 121, .priority = 500},
    {.id = "heap.scratch", .domain = "heap", .tag = 83, .scratch = 1000, .priority = 1},
};

static NVTEXPolicy g_heap_policy;

static void test_memory(void) {
  if (!case_begin("memory and streams")) return;
  nvtex_policy_push(g_heap_policy);
  CHECK(strcmp(nvtex_backend_name(), "heap") == 0, "%s", nvtex_backend_name());
  int mallocs = g_heap.mallocs;
  unsigned char *memory = nvtex_malloc(100), back[4];
  CHECK(memory >= g_heap.bytes && memory < g_heap.bytes + HEAP, "memory is not of the heap");
  CHECK_EQ(g_heap.mallocs, mallocs + 1);
  nvtex_memcpy_to_device(memory, "abcd", 4, NULL);
  nvtex_memcpy_on_device(memory + 50, memory, 4, NULL);
  nvtex_memcpy_to_host(back, memory + 50, 4, NULL);
  nvtex_stream_synchronize(NULL);
  CHECK(memcmp(back, "abcd", 4) == 0, "%.4s", back);
  CHECK(g_heap.copies >= 3 && g_heap.synchronized >= 1, "%d copies", g_heap.copies);
  CHECK(nvte_get_compute_stream(0) == NULL, "a stream of a domain that has none");
  EXPECT_OK();
  CHECK(nvtex_stream_create() == NULL, "a stream of a domain that has one");
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvtex_stream_create: domain heap has one stream, null");
  g_heap.fails = true;
  CHECK(nvtex_malloc(100) == NULL, "memory that there is not");
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, "nvtex_malloc: heap (malloc): the heap is full");
  g_heap.fails = false;
  nvtex_free(memory);
  CHECK(g_heap.frees > 0, "nothing was freed");
  CHECK(nvte_is_non_tn_fp8_gemm_supported() == 0 || nvte_is_non_tn_fp8_gemm_supported() == 1, "?");
  nvtex_policy_pop();
  EXPECT_OK();
}

static void test_operators(void) {
  if (!case_begin("operators of the domain, of the host, and the reference")) return;
  use_policy(NULL);
  EXPECT_RUNS(81);
  nvtex_policy_push(g_heap_policy);
  EXPECT_RUNS(80);
  nvtex_policy_pop();
  NVTEXPolicy reference = nvtex_policy_create(g_heap_policy, "prefer=reference");
  NVTEXPolicy scratch = nvtex_policy_create(g_heap_policy, "memset=impl:heap.scratch");
  NVTEXPolicy host = nvtex_policy_create(g_heap_policy, "memset=impl:host.memset|impl:heap.new");
  nvtex_policy_push(reference);
  int synchronized = g_heap.synchronized;
  EXPECT_RUNS(0);
  CHECK_EQ(g_heap.synchronized, synchronized + 1);  // What is queued on the device comes before.
  CHECK(strcmp(nvtex_impl_last("memset"), "reference.cpu") == 0, "%s", nvtex_impl_last("memset"));
  nvtex_policy_pop();
  nvtex_policy_push(scratch);
  int mallocs = g_heap.mallocs;
  EXPECT_RUNS(83);
  EXPECT_RUNS(83);
  CHECK_EQ(g_heap.mallocs, mallocs + 1);
  nvtex_policy_pop();
  nvtex_policy_push(host);
  CHECK_EQ(who_ran(), -1);
  EXPECT_ERROR(NVTEX_UNSUPPORTED, "host.memset: domain cpu, the call is on heap",
               "heap.new: architecture 120, needs 121");
  nvtex_policy_pop();
  // An operator that the plugin does not have.
  nvtex_policy_push(g_heap_policy);
  float *values = nvtex_malloc(64), *results = nvtex_malloc(64);
  for (int i = 0; i < 16; i++) values[i] = (float)i - 8;
  NVTETensor input = tensor(values, kNVTEFloat32, SHAPE(4, 4));
  NVTETensor output = tensor(results, kNVTEFloat32, SHAPE(4, 4));
  nvte_relu(input, output, NULL);
  EXPECT_OK();
  for (int i = 0; i < 16; i++) CHECK_FLOAT(results[i], i < 8 ? 0 : (float)i - 8);
  nvtex_free(values);
  nvtex_free(results);
  nvtex_policy_pop();
  nvtex_policy_destroy(reference);
  nvtex_policy_destroy(scratch);
  nvtex_policy_destroy(host);
  EXPECT_OK();
}

// ---- Which domain a process uses that says nothing

static NVTEXDomain g_domain;

static void register_domain(const char *name) {
  g_domain = heap_domain(name);
  g_offered.domain = &g_domain;
  g_offered.offers = NULL;
  g_offered.count = 0;
  g_offered.name = name;
  nvtex_plugin_register(offer_entry);
}

// In a process of its own: domains, NVTE_BACKEND, and what nvtex_backend_name says.
static const struct {
  const char *domains[2], *backend;
  int devices;
  const char *name, *error;
} g_defaults[] = {
    {{"heap"}, "heap", 1, "heap", NULL},
    {{"heap"}, "HEAP", 1, "heap", NULL},
    {{"heap"}, "cpu", 1, "cpu", NULL},
    {{"heap"}, "heap", 0, "heap", NULL},
    {{"heap"}, "pile", 1, NULL, "NVTE_BACKEND: expected one of auto, cpu, "},
    {{NULL}, "heap", 1, NULL, "got \"heap\""},
    {{"heap"}, NULL, 1, "heap", NULL},
    {{"heap"}, "auto", 1, "heap", NULL},
    {{"heap"}, "auto", 0, "cpu", NULL},
    {{"heap", "pile"}, "auto", 1, NULL, "expected heap or pile, which both have devices, got auto"},
    {{"heap", "pile"}, "pile", 1, "pile", NULL},
};

static int run_default(size_t i) {
  g_heap.devices = g_defaults[i].devices;
  for (int d = 0; d < 2; d++) {
    if (g_defaults[i].domains[d]) register_domain(g_defaults[i].domains[d]);
  }
  if (nvtex_last_status() != NVTEX_OK) return 1;
  const char *name = nvtex_backend_name(), *expected = g_defaults[i].name;
  // A device of CUDA comes before those of plugins.
  const char *asked = g_defaults[i].backend;
  if ((!asked || strcmp(asked, "auto") == 0) && name && strcmp(name, "cuda") == 0) return 7;
  if ((name != NULL) != (expected != NULL)) return 2;
  if (name) return strcmp(name, expected) == 0 && nvtex_last_status() == NVTEX_OK ? 7 : 3;
  if (nvtex_last_status() != NVTEX_UNSUPPORTED) return 4;
  return strstr(nvtex_last_error(), g_defaults[i].error) ? 7 : 5;
}

static void test_defaults(void) {
  for (size_t i = 0; i < COUNT(g_defaults); i++) {
    const char *backend = g_defaults[i].backend;
    if (!case_begin("NVTE_BACKEND=%s, case %zu", backend ? backend : "(unset)", i)) continue;
    pid_t pid = fork_child();
    if (pid == 0) {
      unsetenv("NVTE_BACKEND");
      if (backend) setenv("NVTE_BACKEND", backend, 1);
      setenv("NVTE_VERBOSE", "none", 1);
      char number[16];
      snprintf(number, sizeof number, "%zu", i);
      execl("/proc/self/exe", "own_domain", "--default", number, (char *)NULL);
      _exit(8);
    }
    int status = wait_for_child(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status 0x%x", status);
  }
}

static void test_fork(void) {
  if (!case_begin("a fork after the first use")) return;
  pid_t pid = fork_child();
  if (pid == 0) {
    nvtex_policy_push(g_heap_policy);
    bool refused = who_ran() == -1 && nvtex_last_status() == NVTEX_UNSUPPORTED &&
                   strstr(nvtex_last_error(), "domain heap cannot be used in a process forked");
    nvtex_clear_error();
    nvtex_policy_pop();
    use_policy("prefer=reference");
    if (!refused) _exit(1);
    if (who_ran() != 0 || nvtex_last_status() != NVTEX_OK) _exit(2);
    // A plugin that does not say that it survives a fork is not asked.
    use_policy("memset=impl:host.memset");
    if (who_ran() != -1 || !strstr(nvtex_last_error(), "host.memset: forked process")) _exit(3);
    nvtex_clear_error();
    // What is registered in the child runs there.
    static Offer offers[] = {{.id = "child.memset", .tag = 90}};
    g_offered.domain = NULL;
    if (!offer_all("child", offers, 1)) _exit(4);
    use_policy("memset=impl:child.memset");
    _exit(who_ran() == 90 ? 7 : 5);
  }
  int status = wait_for_child(pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7, "status 0x%x", status);
  use_policy(NULL);
  EXPECT_RUNS(81);
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "--default") == 0) return run_default((size_t)atoi(argv[2]));
  test_begin(argc, argv);
  test_defaults();
  g_domain = heap_domain("heap");
  g_offered.domain = &g_domain;
  if (!offer_all("heap", g_offers, COUNT(g_offers))) return test_end();
  g_heap_policy = nvtex_policy_create(NULL, "domain=heap");
  test_memory();
  test_operators();
  test_fork();
  return test_end();
}
