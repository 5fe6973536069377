// A plugin with one fault, which its option `fault` chooses: each of them is a promise of
// nvte/plugin.h that is not kept, and `nvtex-conform` finds all of them. Without the option it has
// none.
//
//     NVTE_OP_PLUGIN_FAULTY_FAULT=wrong nvtex-conform $PWD/libfaulty.so
#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "elements.h"

typedef enum Fault {
  NONE,
  WRONG,          // One element is another.
  ONE_ULP,        // One element is off by one unit in the last place, with NVTEX_NUMERICS_BITS.
  SILENT,         // Says that it is done, and has done nothing.
  NO_AMAX,        // Leaves out one of the outputs.
  IGNORES_NOOP,   // Writes although the flag says not to.
  BEYOND,         // Writes a byte behind its output.
  INPUT,          // Changes its input.
  DECLINES_LATE,  // Declines after it has written.
  FAILS,          // Fails a call that it had accepted.
  STATUS,         // Answers with a number that does not exist.
  RANDOM,         // Gives other bits the second time, with NVTEX_IMPL_DETERMINISTIC.
  PROMISES,       // Registers a dtype that it always declines.
  MOODY,          // Its predicate answers differently the second time.
  READS,          // Its predicate reads an operand.
  SCRATCH,        // Writes behind its scratch memory.
  SIZES,          // Takes a call when it is asked for sizes, and declines it then.
  THREADS,        // Keeps what belongs to one call in a variable of the process.
  CRASHES,        // Ends the process.
  FAULTS
} Fault;

static const char *const kFaults[FAULTS] = {
    "none",  "wrong",         "one-ulp", "silent",  "no-amax", "ignores-noop", "beyond",
    "input", "declines-late", "fails",   "status",  "random",  "promises",     "moody",
    "reads", "scratch",       "sizes",   "threads", "crashes"};

static Fault g_fault;
static unsigned g_calls;
static const NVTEXCast *volatile g_cast;

static const NVTEXCast *cast_of(const NVTEXCall *call) {
  return &((const NVTEXQuantizeArgs *)call->args)->cast;
}

static int32_t supports(void *user, const NVTEXCall *call) {
  (void)user;
  const NVTEXCast *cast = cast_of(call);
  const bool bfloat16 = cast->input_dtype == kNVTEBFloat16 || cast->output_dtype == kNVTEBFloat16;
  const bool declines = (g_fault == PROMISES && bfloat16) ||
                        (g_fault == MOODY && g_calls++ % 2 == 1) ||
                        (g_fault == READS && load(cast->input_dtype, cast->input, 0) == 1234);
  return declines ? NVTEX_PLUGIN_DECLINED : NVTEX_PLUGIN_OK;
}

static int32_t needs(void *user, const NVTEXCall *call, NVTEXNeeds *needs) {
  (void)user;
  needs->scratch_bytes = 100;
  if (g_fault == SIZES && !(call->flags & NVTEX_CALL_QUERY)) return NVTEX_PLUGIN_DECLINED;
  return NVTEX_PLUGIN_OK;
}

static int32_t execute(void *user, const NVTEXCall *call) {
  (void)user;
  memset(call->scratch, 1, g_fault == SCRATCH ? call->scratch_bytes + 1 : call->scratch_bytes);
  const NVTEXCast *cast = cast_of(call);
  if (g_fault == SILENT) return NVTEX_PLUGIN_OK;
  if (g_fault == FAILS) return NVTEX_PLUGIN_FAILED;
  if (g_fault == STATUS) return 77;
  if (g_fault == CRASHES) abort();
  if (g_fault == THREADS) {
    g_cast = cast;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    cast = g_cast;
  }
  if (g_fault != IGNORES_NOOP && cast->noop && *cast->noop == 1) return NVTEX_PLUGIN_OK;
  const size_t n = cast->rows * cast->cols;
  float amax = cast->amax ? *cast->amax : 0;
  for (size_t i = 0; i < n; i++) {
    float x = load(cast->input_dtype, cast->input, i);
    if (fabsf(x) > amax) amax = fabsf(x);
    if (g_fault == WRONG && i == n / 2) x += 1;
    if (g_fault == RANDOM && i == n / 2 && g_calls++ % 2 == 1) x *= 1.0001f;
    store(cast->output_dtype, cast->rowwise, i, x);
  }
  if (cast->amax && g_fault != NO_AMAX) *cast->amax = amax;
  const size_t size = cast->output_dtype == kNVTEFloat32 ? 4 : 2;
  if (g_fault == ONE_ULP && n > 0) *((unsigned char *)cast->rowwise + n / 2 * size) ^= 1;
  if (g_fault == BEYOND) ((unsigned char *)cast->rowwise)[n * size] = 0;
  if (g_fault == INPUT && n > 0) *(unsigned char *)(uintptr_t)cast->input ^= 1;
  return g_fault == DECLINES_LATE ? NVTEX_PLUGIN_DECLINED : NVTEX_PLUGIN_OK;
}

int32_t nvtex_plugin_v0(const NVTEXHost *host, NVTEXPlugin *plugin) {
  plugin->name = "faulty";
  plugin->version = "1.0";
  plugin->vendor = "example";
  const char *fault = host->option(host->context, "fault");
  for (unsigned i = 0; fault && i < FAULTS; i++) {
    if (strcmp(fault, kFaults[i]) == 0) g_fault = (Fault)i;
  }
  const NVTEXImpl impl = {
      .struct_size = sizeof impl,
      .op = "quantize.cast",
      .op_version = NVTEX_BUILT_WITH(QUANTIZE),
      .id = "example.faulty",
      .vendor = "example",
      .domain = "cpu",
      .kind = NVTEX_KIND_VENDOR,
      .priority = NVTEX_PRIORITY_OF_KIND,
      .dtypes = EXAMPLE_DTYPES,
      .modes = 1u << NVTE_DELAYED_TENSOR_SCALING,
      .features = NVTEX_QUANTIZE_NOOP | NVTEX_QUANTIZE_AMAX,
      .flags = NVTEX_IMPL_DETERMINISTIC | NVTEX_IMPL_FORK_SAFE,
      // With APPROX other bits are allowed from one implementation to the next, but not from call
      // to call.
      .numerics = g_fault == RANDOM ? NVTEX_NUMERICS_APPROX : NVTEX_NUMERICS_BITS,
      .rtol = g_fault == RANDOM ? 0.1f : 0,
      .supports = supports,
      .needs = needs,
      .execute = execute,
  };
  return host->add_impl(host->context, &impl) == NVTEX_PLUGIN_FAILED;
}
