// What the long-running programs share: how long they run, and what the process holds. They end
// after seconds unless the first argument says otherwise.
#ifndef NVTE_CAPI_TESTS_SOAK_H
#define NVTE_CAPI_TESTS_SOAK_H

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include "../support.h"

// Growth that is no leak: pages of the host's allocator and of the driver.
enum { HOST_SLACK = 16 << 20, DEVICE_SLACK = 32 << 20 };

// The number that the program's first argument is, or else a default.
static inline size_t wanted(int argc, char **argv, size_t otherwise) {
  if (argc < 2) return otherwise;
  char *end;
  const unsigned long long n = strtoull(argv[1], &end, 10);
  if (*end == 0 && n > 0) return (size_t)n;
  fprintf(stderr, "%s: expected a number above 0, got %s\n", argv[0], argv[1]);
  exit(TEST_FAIL);
}

static inline double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Bytes of the process in memory.
static inline size_t host_bytes(void) {
  FILE *file = fopen("/proc/self/statm", "r");
  unsigned long pages = 0, resident = 0;
  if (file == NULL || fscanf(file, "%lu %lu", &pages, &resident) != 2) resident = 0;
  if (file != NULL) fclose(file);
  return resident * (size_t)sysconf(_SC_PAGESIZE);
}

// Free bytes of the device, by the driver; 0 without one. Other processes take of it, too.
static inline size_t free_device_bytes(void) {
  int (*info)(size_t *, size_t *) = NULL;
  void *driver = on_cuda() ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
  if (driver != NULL) *(void **)&info = dlsym(driver, "cuMemGetInfo_v2");
  size_t available = 0, total = 0;
  return info != NULL && info(&available, &total) == 0 ? available : 0;
}

// Whether another process may have taken memory: what this one leaks, it leaks again.
static inline bool may_be_of_others(size_t device) {
  return free_device_bytes() + DEVICE_SLACK < device;
}

// Compares what the process holds with what it held after it had warmed up.
static inline void check_growth(size_t host, size_t device) {
  const size_t host_after = host_bytes(), device_after = free_device_bytes();
  CHECK(host_after <= host + HOST_SLACK, "host: %zu bytes, then %zu", host, host_after);
  CHECK(device_after + DEVICE_SLACK >= device, "device: %zu bytes free, then %zu", device,
        device_after);
}

#endif  // NVTE_CAPI_TESTS_SOAK_H
