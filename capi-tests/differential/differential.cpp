// Random valid calls of all operators, made by two libraries, or by one library on two backends, in
// one process:
//
//     nvte-differential LIB_A BACKEND_A LIB_B BACKEND_B SEED SECONDS [OPERATOR [INDEX]]
//
// BACKEND is cpu or cuda, and may be followed by variables that the library reads when it starts:
// `cpu,NVTE_OP_PLUGINS=/path`. LIB_B may be another library with this ABI that has none of the
// functions nvtex_*: it then works in the memory of LIB_A, and what it throws is a refusal.
// OPERATOR is an operator, a variant or `all`, INDEX one case of it.
//
// The cases are those of the conformance kit (nvte/conform_operators.h), and outputs have to be as
// near to each other as the kit asks of an implementation: what LIB_A computes is taken for the
// reference. If A and B are the same library with the same settings, bits have to be equal under a
// policy with `deterministic=1`. Of each variant one failure is shown. Its sizes are made smaller
// and its options left out as long as it fails, and it becomes a C program in the folder
// NVTE_DIFFERENTIAL_OUT (the current one).
//
// The calls are made in a child process, so that a crash, a call that does not end, or one after
// which the device takes no calls any more is a failure among others. With NVTE_DIFFERENTIAL_WRITE
// in the environment calls without a failure become programs, too, if an INDEX is given. Exit
// status: 0 nothing was found, 1 something was, 2 it could not begin, 77 there is no such backend
// here.
#include <sys/mman.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>

#include "cases.h"
#include "record.h"
#include "wrappers.inc"

namespace {

enum { MOST_VARIANTS = 1024, HANG_SECONDS = 120, SHRINKS = 400, SHRINKS_OF_CRASH = 24 };
constexpr size_t kMostBytes = 64 << 20;

struct Arguments {
  const char *path[2], *settings[2], *only = nullptr;
  uint64_t seed, index = UINT64_MAX;
  double seconds;
  std::string folder;
} g_args;

// What the child tells its parent.
struct Shared {
  uint64_t turn, beat;
  bool inside;   // of the calls of `recipe`
  bool foreign;  // B has no memory functions of its own
  Recipe recipe;
  char op[64], variant[128];
  bool found[MOST_VARIANTS];
  size_t number;  // of the variant
  uint64_t compared, refused[3], missing, findings, variants, bytes;
  bool seen[MOST_VARIANTS], told[MOST_VARIANTS];
  double worst;
  char worst_where[160], lost[512];
} *g_shared;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

enum Outcome { SAME, DIFFERENT, REFUSED, MISSING };

struct Result {
  Outcome outcome = SAME;
  int refused = 0;  // bit i: library i has refused
  std::string what;
  size_t buffer = 0, element = 0;
  double worst = 0;
  CaseRun *runs[2] = {};
};

// The run of a case by one library. What it throws, and an error that it returns, are the text of a
// refusal.
bool run_by(int library, const Case *c, Result *result, bool record = false) {
  g_current = library;
  const char *error = "";
  try {
    result->runs[library] = run_begin(c);
    if (record) {
      RunBuffer buffers[MOST_BUFFERS];
      const size_t n = run_buffers(result->runs[library], buffers);
      for (size_t i = 0; i < n; i++) {
        g_record.regions[(uintptr_t)buffers[i].base + buffers[i].lead] = {text("b%zu", i),
                                                                          buffers[i].bytes};
      }
    }
    g_record.on = record;
    run_call(result->runs[library]);
    g_record.on = false;
    run_fetch(result->runs[library]);
    if (run_status(result->runs[library], &error) == NVTEX_OK) return true;
    result->what = error;
  } catch (const Missing &missing) {
    result->outcome = MISSING;
    result->what = missing.function;
  } catch (const std::exception &thrown) {
    result->what = thrown.what();
  } catch (...) {
    result->what = "something was thrown";
  }
  g_record.on = false;
  if (result->outcome != MISSING) {
    result->outcome = REFUSED;
    result->refused |= 1 << library;
  }
  return false;
}

void release(Result *result) {
  for (int i = 0; i < 2; i++) {
    g_current = i;
    try {
      if (result->runs[i]) run_free(result->runs[i]);
    } catch (...) {
      // A library that cannot give back a handle has failed before.
    }
    result->runs[i] = nullptr;
  }
}

// Whether the same library makes each call twice with the same settings. Its bits are then the
// same.
bool repeats() {
  return same_file(g_args.path[0], g_args.path[1]) &&
         strcmp(g_args.settings[0], g_args.settings[1]) == 0;
}

Nearness nearness(const std::string &op) {
  Nearness near = {NVTEX_NUMERICS_BITS, 0, 0, repeats()};
  // Another build may add in another order.
  const bool other = !same_file(g_args.path[0], g_args.path[1]);
  if (other) near.numerics = NVTEX_NUMERICS_ORDER;
  for (const Library &library : g_libraries) {
    if (!library.own) continue;
    const NVTEXImplInfo info = nearness_of(library, op);
    if (info.numerics > near.numerics) near.numerics = info.numerics;
    if (info.rtol > near.rtol) near.rtol = info.rtol;
    if (info.atol > near.atol) near.atol = info.atol;
  }
  return near;
}

// Ends the process if its device takes no calls any more, as after a kernel that read outside of
// its memory: every call would be refused from here on.
void end_if_lost() {
  const Library &library = g_libraries[0];
  const auto allocate = symbol(library, &nvtex_malloc, "nvtex_malloc");
  const auto release = symbol(library, &nvtex_free, "nvtex_free");
  const auto synchronize = symbol(library, &nvtex_stream_synchronize, "nvtex_stream_synchronize");
  const auto status = symbol(library, &nvtex_last_status, "nvtex_last_status");
  const auto error = symbol(library, &nvtex_last_error, "nvtex_last_error");
  const auto clear = symbol(library, &nvtex_clear_error, "nvtex_clear_error");
  clear();
  void *memory = allocate(256);
  if (memory && status() == NVTEX_OK) synchronize(nullptr);
  const bool good = memory && status() == NVTEX_OK;
  if (!good) {
    snprintf(g_shared->lost, sizeof g_shared->lost, "the device is lost: %s", error());
    raise(SIGKILL);
  }
  release(memory);
  clear();
}

// Runs the case of a recipe by both libraries and compares. False if there is no such case.
bool try_recipe(Recipe *recipe, Result *result) {
  Case *c = case_make(recipe);
  if (!c || case_bytes(c) > kMostBytes) {
    if (c) case_free(c);
    return false;
  }
  g_shared->beat++;
  memcpy(&g_shared->recipe, recipe, sizeof *recipe);
  g_shared->inside = true;
  const bool first = run_by(0, c, result);
  const Outcome of_first = result->outcome;
  bool second = false;
  if (of_first != MISSING) second = run_by(1, c, result);
  if (first && second) {
    char what[2400];
    const Nearness near = nearness(recipe->op);
    run_compare(result->runs[0], result->runs[1], &near, what, sizeof what, &result->buffer,
                &result->element, &result->worst);
    result->what = what;
    result->outcome = *what ? DIFFERENT : SAME;
    g_shared->bytes += case_bytes(c);
  } else if (result->outcome == REFUSED && result->refused != 3 && g_libraries[0].own &&
             same_file(g_args.path[0], g_args.path[1])) {
    // Two backends of a library differ in what they can do, and not in what they take for wrong.
    const char *error;
    const CaseRun *run = result->runs[first ? 1 : 0];
    if (run && run_status(run, &error) != NVTEX_UNSUPPORTED) {
      result->outcome = DIFFERENT;
      result->what = std::string("only ") + (first ? "B" : "A") + " refuses: " + error;
    }
  }
  if (result->outcome == REFUSED) end_if_lost();
  release(result);
  case_free(c);
  g_shared->inside = false;
  return true;
}

// ---- Smaller

template <class F>
void shrink(Recipe *recipe, int budget, F fails) {
  static Recipe tried;
  bool better = true;
  while (better && budget > 0) {
    better = false;
    for (size_t i = 0; i < recipe->num_choices && i < 256 && budget > 0; i++) {
      const Choice choice = recipe->choices[i];
      const size_t targets[] = {choice.least, choice.least + (choice.value - choice.least) / 2,
                                choice.value - 1};
      for (const size_t target : targets) {
        if (target >= choice.value || target < choice.least || budget-- <= 0) continue;
        memcpy(&tried, recipe, sizeof tried);
        tried.choices[i].value = target;
        if (!fails(&tried)) continue;
        memcpy(recipe, &tried, sizeof tried);
        better = true;
        break;
      }
    }
  }
}

// ---- The program

void emit_bytes(const unsigned char *bytes, size_t n) {
  for (size_t i = 0; i < n; i++) emit("%u,%s", bytes[i], i % 24 == 23 ? "\n" : "");
}

bool is_filled(const RunBuffer &b) {
  for (size_t i = 0; i < b.bytes; i++)
    if (b.image[i] != 0xFF) return false;
  return true;
}

const char kHelpers[] = R"(#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvte/nvte.h"

// With -DWITH_CUDART for a library that has no memory functions of its own.
#ifdef WITH_CUDART
#include <cuda_runtime_api.h>
#define nvtex_last_error() ""
static void *allocated(size_t bytes) {
  void *p = NULL;
  cudaMalloc(&p, bytes);
  return p;
}
static void to_device(void *to, const void *from, size_t bytes) {
  cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
}
static void to_host(void *to, const void *from, size_t bytes) {
  cudaDeviceSynchronize();
  cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
}
#else
static void *allocated(size_t bytes) { return nvtex_malloc(bytes); }
static void to_device(void *to, const void *from, size_t bytes) {
  nvtex_memcpy_to_device(to, from, bytes, NULL);
  nvtex_stream_synchronize(NULL);
}
static void to_host(void *to, const void *from, size_t bytes) {
  nvtex_stream_synchronize(NULL);
  nvtex_memcpy_to_host(to, from, bytes, NULL);
  nvtex_stream_synchronize(NULL);
}
#endif

// `bytes` bytes of device memory, `shift` bytes past a boundary of 256, with these contents or, without any, 0xFF.
static unsigned char *device(const unsigned char *contents, size_t bytes, size_t shift) {
  unsigned char *all = malloc(bytes + 1), *p = (unsigned char *)allocated(bytes + shift + 256) + shift;
  memset(all, 0xFF, bytes);
  if (contents) memcpy(all, contents, bytes);
  to_device(p, all, bytes);
  free(all);
  return p;
}

)";

// Makes the case and runs it by library B, and writes all that down. The program is whole up to a
// call that ends the process; end_program closes it then.
std::string write_program(Recipe *recipe, const std::string &what, const Result *difference) {
  char name[256];
  snprintf(name, sizeof name, "/%s-%" PRIu64 ".c", recipe->variant, recipe->index);
  const std::string path = g_args.folder + name;
  g_record = Record{};
  g_record.file = fopen(path.c_str(), "w");
  if (!g_record.file) fail("cannot write " + path);
  Case *c = case_make(recipe);
  Result result;
  emit("// %s: %s\n// %s\n// A: %s (%s)\n// B: %s (%s)\n", recipe->variant, case_text(c),
       what.c_str(), g_args.path[0], g_args.settings[0], g_args.path[1], g_args.settings[1]);
  std::string settings = g_args.settings[1];
  for (char &letter : settings) letter = letter == ',' ? ' ' : letter;
  emit("//\n//     cc -I include %s -L lib -lnvte && NVTE_BACKEND=%s ./a.out\n", name + 1,
       settings.c_str());
  fputs(kHelpers, g_record.file);
  run_by(0, c, &result);
  RunBuffer buffers[MOST_BUFFERS];
  const size_t n = result.runs[0] ? run_buffers(result.runs[0], buffers) : 0;
  for (size_t i = 0; i < n; i++) {
    if (is_filled(buffers[i])) continue;
    emit("static const unsigned char kBytes%zu[] = {\n", i);
    emit_bytes(buffers[i].image, buffers[i].bytes);
    emit("};\n");
  }
  emit("\nint main(void) {\n");
  for (size_t i = 0; i < n; i++) {
    const std::string bytes = is_filled(buffers[i]) ? "NULL" : text("kBytes%zu", i);
    emit("  unsigned char *b%zu = device(%s, %zu, %zu);  // %s\n", i, bytes.c_str(),
         buffers[i].bytes, buffers[i].lead % 256, buffers[i].name);
  }
  fflush(g_record.file);
  const bool ran = run_by(1, c, &result, true);
  size_t shown = difference ? difference->buffer : 0;
  if (shown == MOST_BUFFERS) {
    for (shown = 0; shown + 1 < n && !buffers[shown].output;) shown++;
  }
  if (ran && difference && buffers[shown].output) {
    const RunBuffer &b = buffers[shown];
    const size_t at = difference->element * b.element;
    emit("  // Of library A.\n  static const unsigned char expected[] = {");
    emit_bytes(run_result(result.runs[0], shown) + at, b.element);
    emit("};\n  unsigned char got[sizeof expected];\n");
    emit("  to_host(got, b%zu + %zu, sizeof got);\n", shown, at);
    emit("  printf(\"%s[%zu]:\");\n", b.name, difference->element);
    emit("  for (size_t i = sizeof got; i-- > 0;) printf(\" %%02x\", got[i]);\n");
    emit("  printf(\", of A\");\n");
    emit("  for (size_t i = sizeof got; i-- > 0;) printf(\" %%02x\", expected[i]);\n");
    emit(
        "  printf(\" %%s\\n\", nvtex_last_error());\n  return memcmp(got, expected, sizeof got) != "
        "0;\n}\n");
  } else {
    emit("  return printf(\"%%s\\n\", nvtex_last_error()) > 1;\n}\n");
  }
  fclose(g_record.file);
  release(&result);
  case_free(c);
  return path;
}

void say_finding(const Recipe *recipe, const std::string &what, const std::string &program) {
  printf("FINDING %s, case %" PRIu64
         ": %s\n  program: %s\n  again:   nvte-differential %s %s %s %s %" PRIu64 " 0 %s %" PRIu64
         "\n",
         recipe->variant, recipe->index, what.c_str(), program.c_str(), g_args.path[0],
         g_args.settings[0], g_args.path[1], g_args.settings[1], recipe->seed, recipe->variant,
         recipe->index);
  fflush(stdout);
  g_shared->findings++;
}

// ---- The child

void start_libraries() {
  for (int i = 0; i < 2; i++) load(i, g_args.path[i], g_args.settings[i]);
  g_shared->foreign = !g_libraries[1].own;
  for (const Library &library : g_libraries) {
    if (repeats()) make_deterministic(library);
  }
}

// In a child of its own, which has to load the libraries again. True if it ends by a signal.
bool crashes(Recipe *recipe, bool record, const std::string &what) {
  fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(HANG_SECONDS);
    start_libraries();
    Result result;
    const bool made =
        record ? (write_program(recipe, what, nullptr), true) : try_recipe(recipe, &result);
    _exit(made ? 0 : 1);
  }
  int status = 0;
  return pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status);
}

void found_difference(const Recipe *recipe, const Result &first) {
  static Recipe smaller;
  memcpy(&smaller, recipe, sizeof smaller);
  std::string what = first.what;
  Result difference = first;
  shrink(&smaller, SHRINKS, [&](Recipe *tried) {
    Result result;
    if (!try_recipe(tried, &result) || result.outcome != DIFFERENT) return false;
    difference = result;
    what = result.what;
    return true;
  });
  const Case *c = case_make(&smaller);
  what = std::string(c ? case_text(c) : "") + ": " + what;
  if (c) case_free(const_cast<Case *>(c));
  say_finding(&smaller, what, write_program(&smaller, what, &difference));
}

// A program of a case in which the libraries agree.
void write_same(Recipe *recipe) {
  Result result;
  result.buffer = MOST_BUFFERS;
  const std::string path = write_program(recipe, "the libraries agree", &result);
  printf("%s\n", path.c_str());
}

void child(double end) {
  start_libraries();
  std::vector<Variant> all = variants_of(g_libraries[0]), variants;
  for (const Variant &one : all) {
    if (!g_args.only || one.op == g_args.only || one.name == g_args.only) variants.push_back(one);
  }
  if (variants.empty() || variants.size() > MOST_VARIANTS) fail("no such operator");
  static Recipe recipe;
  std::set<std::string> without;
  const bool once = g_args.index != UINT64_MAX;
  for (; once ? g_shared->turn < variants.size() : now() < end; g_shared->turn++) {
    const uint64_t turn = g_shared->turn, round = turn / variants.size();
    // Each variant once in an order of the seed's, then all again.
    const uint64_t step = mix(g_args.seed + round);
    const size_t number = (size_t)((turn + step) % variants.size());
    const Variant &variant = variants[number];
    if (without.size() == variants.size()) break;
    if (g_shared->found[number]) {
      without.insert(variant.name);
      continue;
    }
    recipe.num_choices = 0;
    recipe.seed = g_args.seed;
    recipe.index = once ? g_args.index : mix(g_args.seed ^ round) % 1000000;
    snprintf(g_shared->op, sizeof g_shared->op, "%s", variant.op.c_str());
    snprintf(g_shared->variant, sizeof g_shared->variant, "%s", variant.name.c_str());
    recipe.op = g_shared->op;
    recipe.variant = g_shared->variant;
    g_shared->number = number;
    Result result;
    if (!try_recipe(&recipe, &result)) {
      without.insert(variant.name);
      continue;
    }
    if (!g_shared->seen[number] && result.outcome == SAME) {
      g_shared->seen[number] = true;
      g_shared->variants++;
    }
    switch (result.outcome) {
      case SAME:
        g_shared->compared++;
        if (once && getenv("NVTE_DIFFERENTIAL_WRITE")) write_same(&recipe);
        break;
      case DIFFERENT:
        g_shared->compared++;
        g_shared->found[number] = true;
        found_difference(&recipe, result);
        break;
      case REFUSED:
        g_shared->refused[result.refused - 1]++;
        if (!g_shared->told[number]) {
          g_shared->told[number] = true;
          printf("refused by %s: %s, case %" PRIu64 ": %s\n",
                 result.refused == 3   ? "both"
                 : result.refused == 1 ? "A"
                                       : "B",
                 recipe.variant, recipe.index, result.what.c_str());
          fflush(stdout);
        }
        break;
      case MISSING:
        g_shared->missing++;
        break;
    }
    if (result.outcome == SAME && result.worst > g_shared->worst) {
      g_shared->worst = result.worst;
      snprintf(g_shared->worst_where, sizeof g_shared->worst_where, "%s, case %" PRIu64,
               recipe.variant, recipe.index);
    }
  }
}

// ---- The parent

void found_crash(const std::string &how) {
  static Recipe recipe;
  memcpy(&recipe, &g_shared->recipe, sizeof recipe);
  g_shared->inside = false;
  g_shared->found[g_shared->number] = true;
  g_shared->turn++;
  // Another library takes seconds to load.
  const int budget = g_shared->foreign ? 0 : SHRINKS_OF_CRASH;
  shrink(&recipe, budget, [](Recipe *tried) { return crashes(tried, false, ""); });
  const bool cut = crashes(&recipe, true, how);
  const std::string path =
      g_args.folder + "/" + recipe.variant + "-" + std::to_string(recipe.index) + ".c";
  FILE *file = cut ? fopen(path.c_str(), "a") : nullptr;
  if (file) {
    fputs("  return 0;\n}\n", file);
    fclose(file);
  }
  say_finding(&recipe, how, path);
}

// The status of a child; one that has done nothing for long is ended.
int wait_for(pid_t pid, std::string *how) {
  uint64_t beat = g_shared->beat;
  double since = now();
  for (;;) {
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == pid) {
      if (WIFSIGNALED(status)) *how = text("the process was ended by signal %d", WTERMSIG(status));
      if (WIFSIGNALED(status) && g_shared->lost[0]) *how = g_shared->lost;
      g_shared->lost[0] = 0;
      return status;
    }
    if (g_shared->beat != beat) beat = g_shared->beat, since = now();
    if (now() - since > HANG_SECONDS) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      *how = text("the call had not ended after %d seconds", (int)HANG_SECONDS);
      return status;
    }
    usleep(2000);
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 7 || argc > 9) {
    fprintf(stderr,
            "usage: nvte-differential LIB_A BACKEND_A LIB_B BACKEND_B SEED SECONDS [OPERATOR "
            "[INDEX]]\n");
    return 2;
  }
  for (int i = 0; i < 2; i++)
    g_args.path[i] = argv[1 + 2 * i], g_args.settings[i] = argv[2 + 2 * i];
  g_args.seed = strtoull(argv[5], nullptr, 10);
  g_args.seconds = atof(argv[6]);
  if (argc > 7 && strcmp(argv[7], "all") != 0) g_args.only = argv[7];
  if (argc > 8) g_args.index = strtoull(argv[8], nullptr, 10);
  const char *folder = getenv("NVTE_DIFFERENTIAL_OUT");
  g_args.folder = folder ? folder : ".";
  setenv("NVTE_VERBOSE", "none", 0);
  g_shared = (Shared *)mmap(nullptr, sizeof *g_shared, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (g_shared == MAP_FAILED) return 2;
  const double end = now() + g_args.seconds;
  for (int crashed = 0; crashed < 50;) {
    const pid_t pid = fork();
    if (pid < 0) return 2;
    if (pid == 0) {
      child(end);
      fflush(nullptr);
      _exit(0);
    }
    std::string how;
    const int status = wait_for(pid, &how);
    if (how.empty() && WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
    if (how.empty()) break;
    if (!g_shared->inside) fail(how + ", outside of a case");
    found_crash(how);
    crashed++;
  }
  const Shared &s = *g_shared;
  printf("%" PRIu64 " calls compared, of %" PRIu64 " variants, %.1f MB; refused by A %" PRIu64
         ", by B %" PRIu64 ", by both %" PRIu64 "; %" PRIu64 " without a function; %" PRIu64
         " findings; largest error %.3g of what is allowed (%s)\n",
         s.compared, s.variants, (double)s.bytes / 1e6, s.refused[0], s.refused[1], s.refused[2],
         s.missing, s.findings, s.worst, s.worst_where);
  if (s.compared == 0) return 2;
  return s.findings ? 1 : 0;
}
