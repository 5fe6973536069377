// Random files and texts, and sequences of calls, guided by the coverage of the library's code:
//
//     coverage TARGET FOLDER [SECONDS [SEED]]
//
// Without SECONDS it runs each input in FOLDER once, with any library, and finds what was found
// before. With SECONDS the library is one that was compiled for it (`cargo xtask fuzz --coverage
// TARGET`): inputs are changed at random, those that reach new code are kept in FOLDER, and others
// are made of them.
//
// A finding is a crash, an error that the library takes for a defect of its own (a panic), a call
// that takes more than ten seconds, or an allocation beyond two gigabytes. Its input is written to
// FOLDER as `finding-...`.
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

#include "../train/safetensors.h"
#include "coverage.h"

enum {
  MOST_INPUT = 4096,
  MOST_INPUTS = 4096,
  EDGES = 1 << 20,
  PAIRS = 256,
  TARGET_SECONDS = 10,
  WAITING_SECONDS = 300
};

// ---- What the compiled library calls

static uint8_t g_hits[EDGES];
static uint8_t g_seen[EDGES];  // bits of the orders of magnitude of hits
static uint32_t g_edges;
static struct {
  uint64_t a, b;
  unsigned size;
} g_pairs[PAIRS];
static unsigned g_pair_count;

void __sanitizer_cov_trace_pc_guard_init(uint32_t *start, uint32_t *stop) {
  for (uint32_t *guard = start; guard < stop; guard++) {
    if (!*guard && g_edges + 1 < EDGES) *guard = ++g_edges;
  }
}

void __sanitizer_cov_trace_pc_guard(uint32_t *guard) {
  uint8_t *hits = &g_hits[*guard];
  if (*hits < 255) ++*hits;
}

static void compared(uint64_t a, uint64_t b, unsigned size) {
  if (a == b) return;
  g_pairs[g_pair_count % PAIRS].a = a;
  g_pairs[g_pair_count % PAIRS].b = b;
  g_pairs[g_pair_count++ % PAIRS].size = size;
}

#define COMPARISON(bits, type)                                                           \
  void __sanitizer_cov_trace_cmp##bits(type a, type b) { compared(a, b, sizeof(type)); } \
  void __sanitizer_cov_trace_const_cmp##bits(type a, type b) { compared(a, b, sizeof(type)); }
void __sanitizer_cov_trace_cmp1(uint8_t a, uint8_t b);
void __sanitizer_cov_trace_cmp2(uint16_t a, uint16_t b);
void __sanitizer_cov_trace_cmp4(uint32_t a, uint32_t b);
void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b);
void __sanitizer_cov_trace_const_cmp1(uint8_t a, uint8_t b);
void __sanitizer_cov_trace_const_cmp2(uint16_t a, uint16_t b);
void __sanitizer_cov_trace_const_cmp4(uint32_t a, uint32_t b);
void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b);
void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases);
void __sanitizer_cov_trace_pc_guard(uint32_t *guard);
void __sanitizer_cov_trace_pc_guard_init(uint32_t *start, uint32_t *stop);
COMPARISON(1, uint8_t)
COMPARISON(2, uint16_t)
COMPARISON(4, uint32_t)
COMPARISON(8, uint64_t)

void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
  for (uint64_t i = 0; i < cases[0] && i < 16; i++)
    compared(value, cases[2 + i], (unsigned)cases[1] / 8);
}

// ---- Inputs

typedef struct Input {
  unsigned char *bytes;
  size_t size;
} Input;

static struct {
  const Target *target;
  const char *folder;
  Input inputs[MOST_INPUTS];
  size_t count;
  Input running;
  uint64_t runs, findings;
  bool guided;
} g;

// The name that an input has in the folder.
static const char *path_of(const char *kind, const unsigned char *bytes, size_t size) {
  static char path[4096];
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
  snprintf(path, sizeof path, "%s/%s%016llx", g.folder, kind, (unsigned long long)hash);
  return path;
}

static void save(const char *kind, const unsigned char *bytes, size_t size) {
  const char *path = path_of(kind, bytes, size);
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || write(file, bytes, size) != (ssize_t)size || close(file)) {
    perror(path);
    _exit(2);
  }
}

static void finding(const char *what) {
  save("finding-", g.running.bytes, g.running.size);
  fprintf(stderr, "FINDING %s: %s, after %llu runs\n", g.target->name, what,
          (unsigned long long)g.runs);
}

static void on_signal(int number) {
  finding(number == SIGALRM   ? "the calls take too long"
          : number == SIGABRT ? "the process aborts (a panic, or no memory)"
                              : "a crash");
  _exit(86);
}

// True if the input has reached new code.
static bool run(const unsigned char *bytes, size_t size) {
  if (g.running.bytes != bytes) memcpy(g.running.bytes, bytes, size);
  g.running.size = size;
  memset(g_hits, 0, g_edges + 1);
  g.runs++;
  // Seconds of a processor, which others may need too, and so many of waiting.
  const struct itimerval limit = {{0, 0}, {TARGET_SECONDS, 0}}, none = {{0, 0}, {0, 0}},
                         waiting = {{0, 0}, {WAITING_SECONDS, 0}};
  setitimer(ITIMER_PROF, &limit, NULL);
  setitimer(ITIMER_REAL, &waiting, NULL);
  nvtex_clear_error();
  g.target->run(g.running.bytes, size);
  setitimer(ITIMER_PROF, &none, NULL);
  setitimer(ITIMER_REAL, &none, NULL);
  const NVTEXStatus status = nvtex_last_status();
  if (status == NVTEX_INTERNAL_ERROR) {
    finding(nvtex_last_error());
    g.findings++;
  }
  bool news = false;
  for (uint32_t i = 0; i <= g_edges; i++) {
    uint64_t word;
    memcpy(&word, &g_hits[i & ~7u], sizeof word);
    if (!word) i |= 7;  // eight at once
    if (!g_hits[i]) continue;
    const uint8_t order = (uint8_t)(g_hits[i] < 4     ? 1 << (g_hits[i] - 1)
                                    : g_hits[i] < 8   ? 8
                                    : g_hits[i] < 16  ? 16
                                    : g_hits[i] < 32  ? 32
                                    : g_hits[i] < 128 ? 64
                                                      : 128);
    if (!(g_seen[i] & order)) news = true;
    g_seen[i] |= order;
  }
  return news;
}

static void keep(const unsigned char *bytes, size_t size) {
  if (g.count == MOST_INPUTS) return;
  Input *input = &g.inputs[g.count++];
  input->bytes = malloc(size + 1);
  if (!input->bytes) abort();
  memcpy(input->bytes, bytes, size);
  input->size = size;
}

static int by_size(const void *a, const void *b) {
  const size_t x = ((const Input *)a)->size, y = ((const Input *)b)->size;
  return x < y ? -1 : x > y;
}

static void read_folder(void) {
  DIR *folder = opendir(g.folder);
  if (!folder) return;
  for (struct dirent *entry; (entry = readdir(folder));) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", g.folder, entry->d_name);
    struct stat about;
    if (stat(path, &about) || !S_ISREG(about.st_mode)) continue;
    static unsigned char bytes[MOST_INPUT];
    FILE *file = fopen(path, "rb");
    if (!file) continue;
    keep(bytes, fread(bytes, 1, sizeof bytes, file));
    fclose(file);
  }
  closedir(folder);
  qsort(g.inputs, g.count, sizeof *g.inputs, by_size);
}

// ---- Changes

static size_t change_once(unsigned char *bytes, size_t size) {
  const size_t at = size ? random_below(size) : 0, room = MOST_INPUT - size;
  switch (random_below(11)) {
    case 0:
      if (size) bytes[at] ^= (unsigned char)(1 << random_below(8));
      return size;
    case 1:
      if (size) bytes[at] = (unsigned char)random_u64();
      return size;
    case 2: {  // a few bytes less
      const size_t n = size ? 1 + random_below(size - at < 16 ? size - at : 16) : 0;
      memmove(bytes + at, bytes + at + n, size - at - n);
      return size - n;
    }
    case 3: {  // more of a byte
      const size_t n = 1 + random_below(16);
      if (n > room) return size;
      memmove(bytes + at + n, bytes + at, size - at);
      memset(bytes + at, (int)random_u64(), n);
      return size + n;
    }
    case 4:    // a piece is repeated elsewhere
    case 5: {  // a piece of another input
      const Input own = {bytes, size};
      const Input *from = g.count && random_below(2) ? &g.inputs[random_below(g.count)] : &own;
      if (!from->size) return size;
      const size_t first = random_below(from->size), most = from->size - first;
      const size_t n = 1 + random_below(most < 64 ? most : 64);
      unsigned char piece[64];
      memcpy(piece, from->bytes + first, n);
      if (random_below(2) && at + n <= size) {
        memcpy(bytes + at, piece, n);
        return size;
      }
      if (n > room) return size;
      memmove(bytes + at + n, bytes + at, size - at);
      memcpy(bytes + at, piece, n);
      return size + n;
    }
    case 6: {  // a number
      static const uint64_t numbers[] = {
          0,          1,          255,          256,       65535,
          0x7fffffff, 0xffffffff, (uint64_t)-1, INT64_MAX, (uint64_t)1 << 63};
      const size_t width = (size_t)1 << random_below(4);
      uint64_t number = 0;
      if (at + width > size) return size;
      memcpy(&number, bytes + at, width);
      number =
          random_below(2) ? numbers[random_below(COUNT(numbers))] : number + random_below(9) - 4;
      memcpy(bytes + at, &number, width);
      return size;
    }
    case 7: {  // a number of the text
      char text[32];
      const int n =
          snprintf(text, sizeof text, "%lld",
                   random_below(2) ? (long long)random_u64() : (long long)random_below(70));
      if ((size_t)n > room) return size;
      size_t end = at;
      while (end < size && bytes[end] >= '0' && bytes[end] <= '9') end++;
      memmove(bytes + at + n, bytes + end, size - end);
      memcpy(bytes + at, text, (size_t)n);
      return size - (end - at) + (size_t)n;
    }
    case 8: {  // a word of the target
      size_t count = 0;
      while (g.target->words[count]) count++;
      if (!count) return size;
      const char *word = g.target->words[random_below(count)];
      const size_t n = strlen(word);
      if (n > room) return size;
      memmove(bytes + at + n, bytes + at, size - at);
      memcpy(bytes + at, word, n);
      return size + n;
    }
    default: {  // what the library has compared a part of the input with
      if (!g_pair_count) return size;
      const size_t pair = random_below(g_pair_count < PAIRS ? g_pair_count : PAIRS);
      const unsigned width = g_pairs[pair].size;
      for (size_t i = 0; i + width <= size; i++) {
        const size_t place = (at + i) % (size - width + 1);
        if (memcmp(bytes + place, &g_pairs[pair].a, width) == 0) {
          memcpy(bytes + place, &g_pairs[pair].b, width);
          break;
        }
        if (memcmp(bytes + place, &g_pairs[pair].b, width) == 0) {
          memcpy(bytes + place, &g_pairs[pair].a, width);
          break;
        }
      }
      return size;
    }
  }
}

static void search(double seconds) {
  struct timespec now, begin;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  static unsigned char bytes[MOST_INPUT];
  do {
    for (int i = 0; i < 64; i++) {
      const Input *from = &g.inputs[random_below(g.count)];
      size_t size = from->size;
      memcpy(bytes, from->bytes, size);
      for (size_t n = 1 + random_below(6); n > 0; n--) size = change_once(bytes, size);
      if (g.target->seal && random_below(8)) size = g.target->seal(bytes, size, MOST_INPUT);
      if (!run(bytes, size)) continue;
      keep(bytes, size);
      save("", bytes, size);
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while ((double)(now.tv_sec - begin.tv_sec) < seconds);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: coverage TARGET FOLDER [SECONDS [SEED]]\n");
    return 2;
  }
  g_test.program = argv[0];
  g_test.backend = nvtex_backend_name();
  if (!g_test.backend) return TEST_SKIP;
  for (size_t i = 0; i < COUNT(kTargets); i++) {
    if (strcmp(argv[1], kTargets[i].name) == 0) g.target = &kTargets[i];
  }
  if (!g.target) {
    fprintf(stderr, "no target %s\n", argv[1]);
    return 2;
  }
  g.folder = argv[2];
  g.guided = g_edges > 0;
  const double seconds = argc > 3 ? atof(argv[3]) : 0;
  g_test.rng = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
  g.running.bytes = malloc(MOST_INPUT);
  if (!g.running.bytes) abort();
  if (seconds > 0 && !g.guided) {
    fprintf(stderr, "this library was not compiled for coverage\n");
    return 2;
  }
  read_folder();
  const size_t from_folder = g.count;
  // In memory, where there is such a folder.
  if (access("/dev/shm", W_OK) == 0) strcpy(g_folder, "/dev/shm/nvte-XXXXXX");
  folder_begin();
  g.target->begin(keep);
  const struct rlimit limit = {(rlim_t)2 << 30, (rlim_t)2 << 30};
  setrlimit(RLIMIT_DATA, &limit);
  const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGPROF};
  for (size_t i = 0; i < COUNT(signals); i++) signal(signals[i], on_signal);
  // Of equal inputs the small ones come first; those that add nothing are forgotten.
  size_t kept = 0;
  for (size_t i = 0; i < g.count; i++) {
    const bool news = run(g.inputs[i].bytes, g.inputs[i].size);
    if (!news && g.guided) {
      // Names that others have given stay.
      if (i < from_folder && seconds > 0) unlink(path_of("", g.inputs[i].bytes, g.inputs[i].size));
      continue;
    }
    if (i >= from_folder && seconds > 0) save("", g.inputs[i].bytes, g.inputs[i].size);
    g.inputs[kept++] = g.inputs[i];
  }
  g.count = kept;
  if (g.count == 0) {
    fprintf(stderr, "%s: no input\n", g.folder);
    return 2;
  }
  const uint64_t first = g.runs;
  if (seconds > 0) search(seconds);
  uint32_t reached = 0;
  for (uint32_t i = 1; i <= g_edges; i++) reached += g_seen[i] != 0;
  printf("%s: %llu runs, %zu inputs (%zu from the folder), %u of %u edges, %llu findings\n",
         g.target->name, (unsigned long long)(g.runs), g.count, from_folder, reached, g_edges,
         (unsigned long long)g.findings);
  if (first == 0) return 2;
  folder_end();
  return g.findings ? 1 : 0;
}
