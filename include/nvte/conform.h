// Checks implementations of operators against the promises of `nvte/plugin.h`, by public functions
// alone. Header-only, C11 with POSIX; the program `nvtex-conform` is a command line for it.
//
// Define _POSIX_C_SOURCE as 200809L before the first header, link nvte, and of the C library
// threads, dlopen and mathematics (-lpthread -ldl -lm), and:
//
//     NVTEXConformOptions options = {.plugin = "acme", .cases = 100, .seed = 1, .out = stdout};
//     return nvtex_conform(&options) == 0 ? 0 : 1;
//
// Each case is a call of a public function with random arguments (nvte/conform_operators.h). It
// runs under a policy in which only the implementation may run the operator, and by the reference
// on the host, and what both have written is compared as the implementation's `numerics` say. Where
// the case has computed its results by itself, both are also compared with these.
#ifndef NVTE_CONFORM_H
#define NVTE_CONFORM_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvte/conform_operators.h"

typedef struct NVTEXConformOptions {
  const char *plugin;  // whose implementations are judged; null: those of the library
  const char *op;      // only this operator or variant; null: all
  unsigned
      cases;  // of each variant, that the implementation accepts; up to 16 times as many are tried
  uint64_t seed;
  long only;     // only this case, from 0 on; negative: all
  bool isolate;  // a process for each variant, so that a crash is one failure; before the first use
                 // of a device
  bool json;     // one line of JSON for each variant
  FILE *out;
  const char *repeat;  // how a failure is repeated: the beginning of a command line
} NVTEXConformOptions;

// ---- What is judged

enum { CONFORM_THREADS = 4, CONFORM_SHOWN = 5, CONFORM_GUARD = 256, CONFORM_GUARD_BYTE = 0xA5 };

typedef struct ConformJudge {
  const NVTEXConformOptions *options;
  NVTEXImplInfo impl;
  const NVTEXOpInfo *op;
  const char *variant;  // full name
  NVTEXPolicy test, reference;
  bool host_memory;  // whether this process can address the memory of the domain
  unsigned cases, accepted, declined, failures;
  double worst;  // largest error over what is allowed
  char worst_where[256];
  uint64_t seen_dtypes, accepted_dtypes;
  uint32_t seen_modes, accepted_modes;
  char failure[2048];
} ConformJudge;

#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
static inline void conform_fail(ConformJudge *judge, const ConformCase *c, const char *fix,
                                const char *format, ...) {
  if (judge->failures++ >= CONFORM_SHOWN) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  const NVTEXConformOptions *o = judge->options;
  if (!judge->failure[0]) snprintf(judge->failure, sizeof judge->failure, "%s. %s", text, fix);
  if (o->json) return;
  fprintf(o->out, "  FAILED: %s", text);
  if (c) fprintf(o->out, "\n    case:   %zu, %s", c->index, c->what);
  fprintf(o->out, "\n    to fix: %s\n", fix);
  if (c && o->repeat) {
    fprintf(o->out, "    repeat: %s --op %s --seed %llu --case %zu\n", o->repeat, judge->variant,
            (unsigned long long)o->seed, c->index);
  }
}

// ---- One run of a case

static inline void conform_end(ConformRun *run) {
  for (int i = 0; i < run->num_tensors; i++) nvte_destroy_tensor(run->tensors[i]);
  for (int i = 0; i < run->num_blocks; i++) nvtex_free(run->blocks[i]);
  run->num_tensors = run->num_blocks = 0;
}

// The status of the calls since the last one that was cleared.
static inline void conform_status(ConformRun *run) {
  run->status = nvtex_last_status();
  snprintf(run->error, sizeof run->error, "%s", nvtex_last_error());
  nvtex_clear_error();
}

static inline size_t conform_total(const ConformBuffer *b) {
  return CONFORM_GUARD + b->shift + b->bytes + CONFORM_GUARD;
}

// Allocates the buffers, between guards, and calls.
static inline void conform_begin(ConformRun *run, const ConformCase *c, cudaStream_t stream) {
  memset(run, 0, sizeof *run);
  run->c = c;
  run->stream = stream;
  nvtex_clear_error();
  for (int i = 0; i < c->num_buffers; i++) {
    const ConformBuffer *b = &c->buffers[i];
    const size_t total = conform_total(b);
    unsigned char *image = conform_alloc(total);
    memset(image, CONFORM_GUARD_BYTE, total);
    if (b->bytes) memcpy(image + CONFORM_GUARD + b->shift, b->image, b->bytes);
    run->base[i] = nvtex_malloc(total);
    run->ptr[i] = run->base[i] + CONFORM_GUARD + b->shift;
    nvtex_memcpy_to_device(run->base[i], image, total, stream);
    nvtex_stream_synchronize(stream);
    free(image);
  }
  conform_status(run);
}

static inline void conform_fetch(ConformRun *run) {
  nvtex_stream_synchronize(run->stream);
  conform_status(run);
  for (int i = 0; i < run->c->num_buffers; i++) {
    const size_t total = conform_total(&run->c->buffers[i]);
    if (!run->got[i]) run->got[i] = conform_alloc(total);
    nvtex_memcpy_to_host(run->got[i], run->base[i], total, run->stream);
  }
  nvtex_stream_synchronize(run->stream);
  conform_end(run);
}

static inline void conform_finish(ConformRun *run) {
  for (int i = 0; i < run->c->num_buffers; i++) {
    nvtex_free(run->base[i]);
    free(run->got[i]);
  }
}

static inline void conform_run(ConformRun *run, const ConformCase *c, cudaStream_t stream) {
  conform_begin(run, c, stream);
  if (run->status != NVTEX_OK) return;
  c->call(c, run);
  conform_fetch(run);
}

static inline const unsigned char *conform_data(const ConformRun *run, int i) {
  return run->got[i] + CONFORM_GUARD + run->c->buffers[i].shift;
}

// ---- What a run has written

// The guards are whole, and inputs (all buffers, if nothing may be written) as they were.
static inline bool conform_check_memory(ConformJudge *judge, const ConformRun *run, bool all) {
  const ConformCase *c = run->c;
  for (int i = 0; i < c->num_buffers; i++) {
    const ConformBuffer *b = &c->buffers[i];
    const size_t total = conform_total(b), first = CONFORM_GUARD + b->shift;
    for (size_t at = 0; at < total; at++) {
      if (at == first) at += b->bytes;
      if (run->got[i][at] == CONFORM_GUARD_BYTE) continue;
      conform_fail(judge, c, "Write no element outside of the sizes in the arguments.",
                   "%s: byte %lld of a buffer of %zu bytes was written", b->name,
                   (long long)at - (long long)first, b->bytes);
      return false;
    }
    if ((!all && b->role != CONFORM_INPUT) || !b->bytes) continue;
    if (memcmp(conform_data(run, i), b->image, b->bytes) != 0) {
      conform_fail(
          judge, c,
          all ? "Decide before the first write: after NVTEX_PLUGIN_DECLINED another "
                "implementation does the call over again."
              : "Inputs are read only; what needs room goes to the scratch memory of `needs`.",
          all ? "%s was written by a call that was declined" : "%s, an input, was changed",
          b->name);
      return false;
    }
  }
  return true;
}

// How far an element may be from the reference's, or with `summed` from what the case has computed,
// where sums are in an order of their own in any class.
static inline double conform_allowance(const ConformJudge *judge, const ConformBuffer *b, size_t i,
                                       double reference, bool summed) {
  const NVTEXImplInfo *impl = &judge->impl;
  const double magnitude =
      b->magnitudes ? b->magnitudes[i] : b->relative * fabs(reference) + b->absolute;
  if (impl->numerics == NVTEX_NUMERICS_APPROX) {
    return b->slack + (double)impl->atol + (double)impl->rtol * fmax(fabs(reference), magnitude);
  }
  // Both may be off by one unit: where a format is coarse, the reference is the nearest number and
  // is not.
  const double ulps = (b->dtype == kNVTEFloat32 ? 2 : 1) * conform_ulp(b->dtype, reference);
  const double terms = summed || impl->numerics == NVTEX_NUMERICS_ORDER ? (double)b->terms : 1;
  return b->slack + ulps + 2 * 4 * sqrt(terms) * 0x1p-24 * magnitude;
}

// Beyond the largest number of a dtype comes what would follow it, so that Inf is one unit from it.
static inline double conform_finite(NVTEDType dtype, double x) {
  const double max = conform_format(dtype).max;
  return isinf(x) ? copysign(max + conform_ulp(dtype, max), x) : x;
}

static inline bool conform_check_output(ConformJudge *judge, const ConformRun *run,
                                        const ConformRun *reference, int i) {
  const ConformCase *c = run->c;
  const ConformBuffer *b = &c->buffers[i];
  const unsigned char *got = conform_data(run, i), *want = conform_data(reference, i);
  const bool number = conform_format(b->dtype).exponent_bits > 0;
  const bool bits =
      !number || b->role == CONFORM_EXACT || judge->impl.numerics == NVTEX_NUMERICS_BITS;
  for (size_t e = 0; e < b->count; e++) {
    const uint64_t g = conform_bits(b->dtype, got, e), w = conform_bits(b->dtype, want, e);
    if (g == w) continue;
    const double x = number ? conform_decode(b->dtype, g) : 0;
    const double y = number ? conform_decode(b->dtype, w) : 0;
    if (number && isnan(x) && isnan(y)) continue;
    const double error = fabs(conform_finite(b->dtype, x) - conform_finite(b->dtype, y));
    const double allowed = conform_allowance(judge, b, e, conform_finite(b->dtype, y), false);
    const bool comparable = !bits && isnan(x) == isnan(y);
    if (comparable && error > judge->worst * allowed) {
      judge->worst = allowed > 0 ? error / allowed : INFINITY;
      snprintf(judge->worst_where, sizeof judge->worst_where, "case %zu, %s[%zu]", c->index,
               b->name, e);
    }
    // A result of 16 bits may be what was there before, and another rounding of it is not.
    if (comparable && error <= allowed) continue;
    const uint64_t before = conform_bits(b->dtype, b->image, e);
    if (g == before) {
      conform_fail(judge, c,
                   "Write every output that the arguments have, or do not declare the feature.",
                   "%s[%zu] of %zu was not written", b->name, e, b->count);
      return false;
    }
    if (w == before) {
      conform_fail(judge, c, "Leave alone what the reference does; see the notes on the arguments.",
                   "%s[%zu] of %zu was written, and should not be", b->name, e, b->count);
      return false;
    }
    if (!comparable) {
      conform_fail(
          judge, c,
          bits && number && b->role != CONFORM_EXACT
              ? "If only the rounding differs, register with the NVTEX_NUMERICS that is kept."
              : "This has to be equal to the reference whatever the numerics are.",
          "%s[%zu] of %zu: expected 0x%llx (%g), got 0x%llx (%g)", b->name, e, b->count,
          (unsigned long long)w, y, (unsigned long long)g, x);
      return false;
    }
    conform_fail(judge, c,
                 "Compute more exactly, or register with the NVTEX_NUMERICS that is kept.",
                 "%s[%zu] of %zu: expected %g, got %g: off by %g, %g is allowed", b->name, e,
                 b->count, y, x, error, allowed);
    return false;
  }
  return true;
}

// Compares an output with what the case has computed.
static inline bool conform_check_expected(ConformJudge *judge, const ConformRun *run, int i,
                                          const char *fix) {
  const ConformCase *c = run->c;
  const ConformBuffer *b = &c->buffers[i];
  const unsigned char *got = conform_data(run, i);
  const bool number = conform_format(b->dtype).exponent_bits > 0;
  for (size_t e = 0; b->expected && e < b->count; e++) {
    const double y = b->expected[e];
    if (isnan(y)) {
      if (conform_bits(b->dtype, got, e) == conform_bits(b->dtype, b->image, e)) continue;
      conform_fail(judge, c, fix, "%s[%zu] of %zu was written, and should be as before", b->name, e,
                   b->count);
      return false;
    }
    const double x = conform_number(b->dtype, got, e);
    double error = fabs(x - y), allowed = 0;
    if (number && b->role != CONFORM_EXACT) {
      error = fabs(conform_finite(b->dtype, x) - conform_finite(b->dtype, y));
      allowed = conform_allowance(judge, b, e, conform_finite(b->dtype, y), true);
    }
    if (error <= allowed) continue;
    conform_fail(judge, c, fix,
                 "%s[%zu] of %zu: computed in double %g, got %g: off by %g, %g is allowed", b->name,
                 e, b->count, y, x, error, allowed);
    return false;
  }
  return true;
}

static inline bool conform_check_outputs(ConformJudge *judge, const ConformRun *run,
                                         const ConformRun *reference) {
  const char *wrong = "This is a defect of the library or of the kit: please report it.";
  const char *fix = "See what the comments on the arguments define.";
  for (int i = 0; i < run->c->num_buffers; i++) {
    const ConformRole role = run->c->buffers[i].role;
    if (role == CONFORM_INPUT || role == CONFORM_SCRATCH) continue;
    if (!conform_check_output(judge, run, reference, i) ||
        !conform_check_expected(judge, run, i, fix) ||
        !conform_check_expected(judge, reference, i, wrong))
      return false;
  }
  return true;
}

// ---- Predicates

typedef struct ConformAnswer {
  bool asked, accepted;
  char variant[128];
  char reason[512];
} ConformAnswer;

static inline void conform_note_answer(void *user, const NVTEXExplanation *explanation) {
  const ConformJudge *judge = ((void **)user)[0];
  ConformAnswer *answer = ((void **)user)[1];
  const size_t length = strlen(judge->op->name);
  if (strncmp(explanation->name, judge->op->name, length) != 0 ||
      (explanation->name[length] != '.' && explanation->name[length] != 0))
    return;
  answer->asked = true;
  answer->accepted = explanation->chosen && strcmp(explanation->chosen, judge->impl.id) == 0;
  snprintf(answer->variant, sizeof answer->variant, "%s", explanation->name);
  for (size_t i = 0; i < explanation->num_others; i++) {
    const NVTEXRefusal *other = &explanation->others[i];
    if (strcmp(other->id, judge->impl.id) != 0 || !other->reason) continue;
    snprintf(answer->reason, sizeof answer->reason, "%s", other->reason);
  }
}

// Who would run the case, without running it.
static inline ConformAnswer conform_ask(ConformJudge *judge, const ConformCase *c,
                                        ConformRun *run) {
  ConformAnswer answer;
  memset(&answer, 0, sizeof answer);
  void *user[] = {judge, &answer};
  nvtex_explain_begin(conform_note_answer, user);
  c->call(c, run);
  nvtex_explain_end();
  nvtex_clear_error();
  conform_end(run);
  return answer;
}

// Asks in a process of its own, with operands that nobody can read.
static inline void conform_ask_blindly(ConformJudge *judge, const ConformCase *c) {
  fflush(NULL);
  const pid_t pid = fork();
  if (pid < 0) return;
  if (pid == 0) {
    ConformRun run;
    memset(&run, 0, sizeof run);
    run.c = c;
    for (int i = 0; i < c->num_buffers; i++) {
      const size_t bytes = c->buffers[i].bytes + c->buffers[i].shift + 1;
      void *page = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
      if (page == MAP_FAILED) _exit(0);
      run.ptr[i] = (unsigned char *)page + c->buffers[i].shift;
    }
    conform_ask(judge, c, &run);
    _exit(0);
  }
  int status = 0;
  if (waitpid(pid, &status, 0) == pid && WIFSIGNALED(status)) {
    conform_fail(judge, c, "`supports` and `needs` read the arguments, never what they point to.",
                 "a predicate ended the process with signal %d when operands could not be read",
                 WTERMSIG(status));
  }
}

// ---- Several threads

typedef struct ConformThread {
  ConformJudge *judge;
  const ConformCase *c;
  const ConformRun *reference;
  ConformRun run;
  pthread_t thread;
  bool bad;
  char error[512];
} ConformThread;

static inline void *conform_thread(void *data) {
  ConformThread *thread = data;
  nvtex_policy_push(thread->judge->test);
  cudaStream_t stream = nvtex_stream_create();
  nvtex_clear_error();  // A domain with one stream creates no others.
  // What a thread finds goes to a judge of its own: nothing is printed here.
  static const NVTEXConformOptions silent = {.json = true};
  ConformJudge *judge = conform_alloc(sizeof *judge);
  *judge = *thread->judge;
  judge->options = &silent;
  judge->failures = 0;
  judge->failure[0] = 0;
  for (int i = 0; i < 4 && !thread->bad; i++) {
    conform_run(&thread->run, thread->c, stream);
    if (thread->run.status != NVTEX_OK) {
      thread->bad = true;
      snprintf(thread->error, sizeof thread->error, "%.500s", thread->run.error);
    } else if (!conform_check_memory(judge, &thread->run, false) ||
               !conform_check_outputs(judge, &thread->run, thread->reference)) {
      thread->bad = true;
      snprintf(thread->error, sizeof thread->error, "%.500s", judge->failure);
    }
    conform_finish(&thread->run);
  }
  if (stream) nvtex_stream_destroy(stream);
  nvtex_policy_pop();
  free(judge);
  return NULL;
}

// Cases that ran alone, with what the reference made of them, all at a time.
static inline void conform_check_threads(ConformJudge *judge, const ConformCase *cases,
                                         const ConformRun *references, int count) {
  ConformThread *threads = conform_alloc(CONFORM_THREADS * sizeof *threads);
  for (int i = 0; i < CONFORM_THREADS; i++) {
    threads[i].judge = judge;
    threads[i].c = &cases[i % count];
    threads[i].reference = &references[i % count];
    if (pthread_create(&threads[i].thread, NULL, conform_thread, &threads[i]) != 0) abort();
  }
  bool bad = false;
  for (int i = 0; i < CONFORM_THREADS; i++) {
    pthread_join(threads[i].thread, NULL);
    if (threads[i].bad && !bad) {
      conform_fail(judge, threads[i].c,
                   "Functions are called from several threads at a time: keep nothing of a call in "
                   "variables of the process.",
                   "with %d threads, on a stream each: %s", CONFORM_THREADS, threads[i].error);
    }
    bad = bad || threads[i].bad;
  }
  free(threads);
}

// ---- Capture

// Functions of CUDA's driver. The kit needs no header of CUDA, and no driver where there is none.
typedef struct ConformDriver {
  int (*begin)(cudaStream_t, int mode);
  int (*end)(cudaStream_t, void **graph);
  int (*instantiate)(void **exec, void *graph, unsigned long long flags);
  int (*launch)(void *exec, cudaStream_t);
  int (*destroy_exec)(void *exec);
  int (*destroy)(void *graph);
} ConformDriver;

static inline bool conform_driver(ConformDriver *driver) {
  const char *const names[] = {"cuStreamBeginCapture_v2",     "cuStreamEndCapture",
                               "cuGraphInstantiateWithFlags", "cuGraphLaunch",
                               "cuGraphExecDestroy",          "cuGraphDestroy"};
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *functions[6] = {NULL};
  for (int i = 0; i < 6; i++) {
    if (!library || !(functions[i] = dlsym(library, names[i]))) return false;
  }
  memcpy(driver, functions, sizeof functions);
  return true;
}

// Captures a case in a graph, launches that, and looks at what it has written. Memory for
// workspaces is allocated meanwhile, which the mode of the capture has to allow.
static inline void conform_check_capture(ConformJudge *judge, const ConformCase *c,
                                         const ConformRun *reference) {
  enum { RELAXED = 2 };
  ConformDriver driver;
  if (strcmp(judge->impl.domain, "cuda") != 0 || !(judge->impl.flags & NVTEX_IMPL_CAPTURABLE))
    return;
  // It runs in the default stream, which no graph captures.
  if (strcmp(judge->op->name, "sort_pairs") == 0 || !conform_driver(&driver)) return;
  const char *fix =
      "`execute` only queues work on the call's stream; it neither waits nor allocates.";
  nvtex_policy_push(judge->test);
  cudaStream_t stream = nvtex_stream_create();
  ConformRun run;
  conform_begin(&run, c, stream);
  void *graph = NULL, *exec = NULL;
  int error = driver.begin(stream, RELAXED);
  if (error == 0) {
    c->call(c, &run);
    error = driver.end(stream, &graph);
    conform_status(&run);
  }
  if (error == 0) error = driver.instantiate(&exec, graph, 0);
  if (error == 0) error = driver.launch(exec, stream);
  const bool called = run.status == NVTEX_OK;
  if (!called) {
    conform_fail(judge, c, fix, "captured in a graph the call failed: %s", run.error);
  } else if (error != 0) {
    conform_fail(judge, c, fix, "captured in a graph: the driver's error %d", error);
  }
  conform_fetch(&run);
  if (called && error == 0 && conform_check_memory(judge, &run, false)) {
    conform_check_outputs(judge, &run, reference);
  }
  if (exec) driver.destroy_exec(exec);
  if (graph) driver.destroy(graph);
  conform_finish(&run);
  nvtex_stream_destroy(stream);
  nvtex_policy_pop();
}

// ---- One variant

static inline uint64_t conform_dtypes_of(const ConformCase *c) {
  uint64_t dtypes = 0;
  for (int i = 0; i < c->num_buffers; i++) dtypes |= (uint64_t)1 << c->buffers[i].dtype;
  return dtypes;
}

// One case; true if it was accepted and right, and its reference is still needed.
static inline bool conform_judge_case(ConformJudge *judge, const ConformCase *c,
                                      ConformRun *reference) {
  judge->cases++;
  const uint64_t dtypes = conform_dtypes_of(c);
  judge->seen_dtypes |= dtypes;
  judge->seen_modes |= 1u << c->mode;
  memset(reference, 0, sizeof *reference);
  reference->c = c;
  const unsigned failures = judge->failures;
  ConformRun run, again;
  nvtex_policy_push(judge->test);
  conform_begin(&run, c, NULL);
  if (run.status != NVTEX_OK) {
    conform_fail(judge, c, "The domain's malloc and memcpy have to work.", "no memory: %s",
                 run.error);
    nvtex_policy_pop();
    return false;
  }
  const ConformAnswer first = conform_ask(judge, c, &run), second = conform_ask(judge, c, &run);
  if (first.accepted != second.accepted) {
    conform_fail(judge, c, "`supports` and `needs` give the same answer for the same call.",
                 "asked twice, the implementation %s the call first and %s it then",
                 first.accepted ? "took" : "declined", second.accepted ? "took" : "declined");
  } else if (judge->host_memory && judge->cases <= 4) {
    conform_ask_blindly(judge, c);
  }
  if (!first.asked || strcmp(first.variant, judge->variant) != 0) {
    conform_fail(judge, c, "This is a defect of the kit: please report it.",
                 "the case is one of %s", first.asked ? first.variant : "another operator");
  }
  // Most of what is outside of the limits is not run, because there may be much of it.
  if (!first.accepted && !second.accepted && judge->declined >= 20) {
    judge->declined++;
    conform_finish(&run);
    nvtex_policy_pop();
    return false;
  }
  c->call(c, &run);
  conform_fetch(&run);
  bool good = false;
  if (run.status == NVTEX_UNSUPPORTED) {
    judge->declined++;
    conform_check_memory(judge, &run, true);
  } else if (run.status != NVTEX_OK) {
    conform_fail(judge, c,
                 "Decline what cannot be done (NVTEX_PLUGIN_DECLINED, before anything is written); "
                 "other answers fail the operator.",
                 "the call failed: %s", run.error);
  } else {
    judge->accepted++;
    judge->accepted_dtypes |= dtypes;
    judge->accepted_modes |= 1u << c->mode;
    nvtex_policy_push(judge->reference);
    conform_run(reference, c, NULL);
    nvtex_policy_pop();
    if (reference->status != NVTEX_OK) {
      conform_fail(judge, c, "This is a defect of the kit: please report it.",
                   "the reference did not run: %s", reference->error);
      conform_finish(&run);
      nvtex_policy_pop();
      return false;
    }
    good =
        conform_check_memory(judge, &run, false) && conform_check_outputs(judge, &run, reference);
    conform_run(&again, c, NULL);
    if (good && again.status != NVTEX_OK) {
      conform_fail(judge, c, "The same call gets the same answer.",
                   "the second time the call failed: %s", again.error);
    }
    const bool same_bits = (judge->impl.flags & NVTEX_IMPL_DETERMINISTIC) != 0;
    for (int i = 0; good && same_bits && i < c->num_buffers && again.status == NVTEX_OK; i++) {
      if (c->buffers[i].role == CONFORM_SCRATCH ||
          memcmp(run.got[i], again.got[i], conform_total(&c->buffers[i])) == 0)
        continue;
      conform_fail(judge, c, "Take NVTEX_IMPL_DETERMINISTIC away, or add in a fixed order.",
                   "%s: the second time the call gave other bits", c->buffers[i].name);
      break;
    }
    conform_finish(&again);
  }
  conform_finish(&run);
  nvtex_policy_pop();
  return good && judge->failures == failures;
}

// Everything that was promised was accepted at least once.
static inline void conform_check_promises(ConformJudge *judge) {
  const char *fix = "Promise in `dtypes`, `modes` and `features` what is taken, no more.";
  if (judge->accepted == 0) {
    conform_fail(judge, NULL, fix, "none of %u cases was accepted", judge->cases);
    return;
  }
  const uint64_t promised = judge->impl.dtypes ? judge->impl.dtypes : judge->seen_dtypes;
  const uint64_t missing = promised & judge->seen_dtypes & ~judge->accepted_dtypes;
  for (unsigned dtype = 0; dtype < 64; dtype++) {
    if (!(missing >> dtype & 1)) continue;
    conform_fail(judge, NULL, fix,
                 "no case with %s was accepted, and the implementation promises it",
                 conform_dtype_name((NVTEDType)dtype));
  }
  const uint32_t modes = judge->impl.modes ? judge->impl.modes : judge->seen_modes;
  for (unsigned mode = 0; mode < 32; mode++) {
    if (!((modes & judge->seen_modes & ~judge->accepted_modes) >> mode & 1)) continue;
    conform_fail(judge, NULL, fix, "no case with scaling mode %u was accepted, which is promised",
                 mode);
  }
}

static inline void conform_json_text(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', out);
    if ((unsigned char)*text >= ' ') fputc(*text, out);
  }
  fputc('"', out);
}

static inline void conform_report(const ConformJudge *judge) {
  static const char *const numerics[] = {"BITS", "ROUNDED", "ORDER", "APPROX"};
  const NVTEXConformOptions *o = judge->options;
  const char *kind = numerics[judge->impl.numerics & 3];
  if (!o->json) {
    fprintf(o->out, "%s: %s %s, %s: %u cases accepted, %u declined, %u failures",
            judge->failures ? "FAIL" : "pass", judge->impl.id, judge->variant, kind,
            judge->accepted, judge->declined, judge->failures);
    if (judge->worst > 0) {
      fprintf(o->out, ", largest error %.3g of what is allowed (%s)", judge->worst,
              judge->worst_where);
    }
    fprintf(o->out, "\n");
    return;
  }
  fprintf(o->out, "{\"id\": ");
  conform_json_text(o->out, judge->impl.id);
  fprintf(o->out, ", \"variant\": ");
  conform_json_text(o->out, judge->variant);
  fprintf(o->out,
          ", \"numerics\": \"%s\", \"cases\": %u, \"accepted\": %u, \"declined\": %u, "
          "\"failures\": %u, \"error_over_allowed\": %.6g, \"first_failure\": ",
          kind, judge->cases, judge->accepted, judge->declined, judge->failures, judge->worst);
  conform_json_text(o->out, judge->failure);
  fprintf(o->out, "}\n");
}

// Frees the memory of a run of the reference, which is in the reference's domain.
static inline void conform_release(const ConformJudge *judge, ConformRun *reference) {
  nvtex_policy_push(judge->reference);
  conform_finish(reference);
  nvtex_policy_pop();
}

// Why a domain of the library itself cannot be used here; null if it can.
static inline const char *conform_unusable(const char *domain) {
  for (size_t i = 0; i < nvtex_domain_count(); i++) {
    NVTEXDomainInfo info = {.struct_size = sizeof info};
    if (nvtex_domain_info(i, &info) && conform_is(info.name, domain)) return info.unusable;
  }
  return NULL;
}

// All cases of a variant; the number of failures.
static inline unsigned conform_judge_variant(ConformJudge *judge) {
  const NVTEXConformOptions *o = judge->options;
  const char *dot = strchr(judge->variant, '.');
  const ConformGenerator *generator = conform_generator(judge->op->name);
  const char *unreachable = conform_unreachable(judge->variant);
  // The domain of the host is always there, and its judge forks, which a process that has started a
  // device cannot.
  if (!unreachable && !o->plugin && !judge->host_memory) {
    unreachable = conform_unusable(judge->impl.domain);
  }
  if (unreachable) {
    if (!o->json) {
      fprintf(o->out, "not judged: %s %s: %s\n", judge->impl.id, judge->variant, unreachable);
    }
    return 0;
  }
  char text[256];
  snprintf(text, sizeof text, "domain=%s;%s=impl:%s", judge->impl.domain, judge->op->name,
           judge->impl.id);
  judge->test = nvtex_policy_create(NULL, text);
  judge->reference = nvtex_policy_create(NULL, "domain=cpu;order=impl:reference.cpu");
  ConformCase *cases = conform_alloc((CONFORM_THREADS + 1) * sizeof *cases);
  ConformRun *references = conform_alloc((CONFORM_THREADS + 1) * sizeof *references);
  int kept = 0;
  const size_t first = o->only >= 0 ? (size_t)o->only : 0;
  const size_t end = o->only >= 0 ? first + 1 : 16 * (size_t)o->cases;
  for (size_t index = first; index < end && judge->accepted < o->cases; index++) {
    ConformCase *c = &cases[kept];
    memset(c, 0, sizeof *c);
    ConformRandom random = {o->seed * 0x100000001B3u + index};
    for (const char *p = judge->variant; *p; p++) {
      random.state = (random.state ^ (unsigned char)*p) * 0x100000001B3u;
    }
    if (!generator || !generator->make(c, &random, dot ? dot + 1 : "", index)) {
      conform_fail(
          judge, NULL,
          "Test this variant by programs of its own; the kit has no cases for it, and does "
          "not vouch for it.",
          "%s was not judged", judge->variant);
      break;
    }
    c->index = index;
    const bool keep = conform_judge_case(judge, c, &references[kept]);
    if (keep && kept < CONFORM_THREADS) {
      kept++;
      continue;
    }
    conform_release(judge, &references[kept]);
    conform_free_case(c);
  }
  if (judge->cases > 0 && o->only < 0) conform_check_promises(judge);
  if (kept > 0 && judge->failures == 0) conform_check_threads(judge, cases, references, kept);
  for (int i = 0; i < kept && judge->failures == 0; i++) {
    conform_check_capture(judge, &cases[i], &references[i]);
  }
  for (int i = 0; i < kept; i++) {
    conform_release(judge, &references[i]);
    conform_free_case(&cases[i]);
  }
  free(cases);
  free(references);
  nvtex_policy_destroy(judge->test);
  nvtex_policy_destroy(judge->reference);
  conform_report(judge);
  fflush(o->out);
  return judge->failures;
}

// In a process of its own if that is wanted.
static inline unsigned conform_judge_isolated(ConformJudge *judge) {
  const NVTEXConformOptions *o = judge->options;
  if (!o->isolate) return conform_judge_variant(judge);
  fflush(NULL);
  const pid_t pid = fork();
  if (pid == 0) {
    const unsigned failures = conform_judge_variant(judge);
    fflush(NULL);
    _exit(failures < 100 ? (int)failures : 100);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) abort();
  if (WIFEXITED(status)) return (unsigned)WEXITSTATUS(status);
  conform_fail(judge, NULL, "Run it under a debugger without --isolate.",
               "the process ended with signal %d", WTERMSIG(status));
  conform_report(judge);
  return judge->failures;
}

// ---- All implementations of a plugin

static inline bool conform_wanted(const char *wanted, const char *op, const char *variant) {
  return !wanted || strcmp(wanted, op) == 0 || strcmp(wanted, variant) == 0;
}

// Calls `body` for each variant of each implementation of the plugin, and adds what it returns.
static inline unsigned conform_for_each(const NVTEXConformOptions *o, unsigned *variants,
                                        unsigned (*body)(ConformJudge *)) {
  unsigned sum = 0;
  *variants = 0;
  for (size_t i = 0; i < nvtex_impl_count(); i++) {
    ConformJudge *judge = conform_alloc(sizeof *judge);
    judge->options = o;
    judge->impl.struct_size = sizeof judge->impl;
    const bool known = nvtex_impl_info(i, &judge->impl);
    const char *plugin = judge->impl.plugin;
    if (known && (plugin && o->plugin ? strcmp(plugin, o->plugin) == 0 : plugin == o->plugin)) {
      const NVTEXImplInfo impl = judge->impl;
      const NVTEXOpInfo *op = nvtex_op_info(impl.op);
      for (size_t v = 0; v < op->variant_count; v++) {
        const bool covered =
            strcmp(impl.name, op->name) == 0 || strcmp(impl.name, op->variants[v]) == 0;
        if (!covered || !conform_wanted(o->op, op->name, op->variants[v])) continue;
        memset(judge, 0, sizeof *judge);
        judge->options = o;
        judge->impl = impl;
        judge->op = op;
        judge->variant = op->variants[v];
        judge->host_memory = strcmp(impl.domain, "cpu") == 0;
        (*variants)++;
        sum += body(judge);
      }
    }
    free(judge);
  }
  return sum;
}

// Judges the implementations of a plugin that is loaded. Returns the number of failures; a plugin
// that has nothing to judge is one.
static inline unsigned nvtex_conform(const NVTEXConformOptions *options) {
  unsigned variants = 0;
  const bool checked = nvtex_dispatch_check(true);
  const unsigned failures = conform_for_each(options, &variants, conform_judge_isolated);
  nvtex_dispatch_check(checked);
  if (variants > 0) return failures;
  fprintf(options->out, "FAIL: plugin %s has no implementation%s%s\n",
          options->plugin ? options->plugin : "(none)", options->op ? " of " : "",
          options->op ? options->op : "");
  return 1;
}

static inline unsigned conform_list_one(ConformJudge *judge) {
  ConformCase *c = conform_alloc(sizeof *c);
  ConformRandom random = {1};
  const char *dot = strchr(judge->variant, '.');
  const ConformGenerator *generator = conform_generator(judge->op->name);
  const bool cases = generator && generator->make(c, &random, dot ? dot + 1 : "", 0);
  const char *unreachable = conform_unreachable(judge->variant);
  fprintf(judge->options->out, "%s %s (domain %s)%s%s\n", judge->impl.id, judge->variant,
          judge->impl.domain, cases ? "" : ": ",
          cases         ? ""
          : unreachable ? unreachable
                        : "the kit has no cases for it");
  conform_free_case(c);
  free(c);
  return 0;
}

// Lists what would be judged.
static inline void nvtex_conform_list(const NVTEXConformOptions *options) {
  unsigned variants;
  conform_for_each(options, &variants, conform_list_one);
}

#endif  // NVTE_CONFORM_H
