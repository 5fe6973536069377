// The cases of nvte/conform.h are valid: the reference runs all of them, and is found to agree with
// itself and with what the cases have computed. Every variant has cases, or a reason why not.
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE

#include "nvte/conform.h"

#include "support.h"

static unsigned g_variants;

// How many variants of each operator must have cases, so that none is lost.
static const struct {
  const char *op;
  unsigned variants;
} kCovered[] = {{"padding", 1},
                {"quantize", 33},
                {"dequantize", 1},
                {"norm_forward", 2},
                {"norm_backward", 2},
                {"softmax", 8},
                {"rope", 4},
                {"transpose", 1},
                {"swap_first_dims", 1},
                {"amax", 1},
                {"memset", 1},
                {"gemm", 5},
                {"adam", 4},
                {"sgd", 1},
                {"l2_norm", 1},
                {"scale_tensors", 1},
                {"scales_from_amax", 2},
                {"dropout", 2},
                {"row_map", 1},
                {"permute", 2},
                {"unpermute", 2},
                {"sort_pairs", 1},
                {"topk", 1},
                {"router_forward", 6},
                {"router_backward", 6},
                {"router_histogram", 1},
                {"aux_loss", 1},
                {"aux_loss_backward", 1},
                {"delayed_scaling", 2},
                {"scale_from_amax", 1},
                {"partial_amax", 2},
                {"partial_cast", 2},
                {"swizzle", 2},
                {"hadamard", 1},
                {"hadamard_amax", 2},
                {"nvfp4_quantize", 6},
                {"nvfp4_dequantize", 1},
                {"nvfp4_global_scale", 1},
                {"nvfp4_block_scale", 1},
                {"nvfp4_transpose", 1},
                {"nvfp4_scale_transpose", 1},
                {"nvfp4_partial_amax", 1},
                {"nvfp4_partial_cast", 1},
                {"nvfp4_alpha", 1},
                {"transpose_dbias", 1},
                {"host_copy", 1},
                {"offsets", 1},
                {"widen", 1},
                {"attention", 2},
                {"scaled_activation", 8},
                {"scale_codes", 1},
                {"group_amax", 1},
                {"move_rows", 7},
                {"reindex_cache", 1},
                {"grad_correction", 1},
                {"half_lse", 2},
                {"out_correction", 1},
                {"partition", 1},
                {"seed", 1},
                {"copy_rows", 1},
                {"grouped_gemm", 4},
                {"grouped_bias", 1},
                {"counters", 2},
                {"cross_entropy", 4},
                {"combine_cross_entropy", 1},
                {"total_loss", 1},
                {"embedding", 1},
                {"row_keys", 1},
                {"sum_rows", 1},
                {"sample_tokens", 1},
                {"requantize", 1}};

// A judge that prints nothing.
static const NVTEXConformOptions kSilent = {.json = true};

static unsigned judge_own(ConformJudge *judge) {
  const char *dot = strchr(judge->variant, '.');
  const ConformGenerator *generator = conform_generator(judge->op->name);
  ConformCase *c = host_memory(sizeof *c);
  ConformRandom random = {1};
  const bool made = generator && generator->make(c, &random, dot ? dot + 1 : "", 0);
  conform_free_case(c);
  if (!made || strcmp(judge->impl.domain, "cpu") != 0) return 0;
  g_variants++;
  unsigned failures = conform_judge_variant(judge);
  CHECK(failures == 0, "%s: %s", judge->variant, judge->failure);
  return failures;
}

// Changes what one element of each output of a case should be, which must be noticed.
static unsigned spoil(ConformJudge *judge) {
  const char *dot = strchr(judge->variant, '.');
  const ConformGenerator *generator = conform_generator(judge->op->name);
  if (!generator || strcmp(judge->impl.domain, "cpu") != 0) return 0;
  NVTEXPolicy reference = nvtex_policy_create(NULL, "domain=cpu;order=impl:reference.cpu");
  nvtex_policy_push(reference);
  judge->options = &kSilent;
  for (size_t index = 0; index < 4; index++) {
    ConformCase *c = host_memory(sizeof *c);
    ConformRandom random = {index + 1};
    const bool made = generator->make(c, &random, dot ? dot + 1 : "", index);
    for (int i = 0; i < c->num_buffers && made; i++) {
      double *expected = c->buffers[i].expected;
      size_t e = c->buffers[i].count;
      while (expected && e > 0 && !isfinite(expected[e - 1])) e--;
      if (!expected || e == 0) continue;
      ConformRun run;
      conform_run(&run, c, NULL);
      EXPECT_OK();
      judge->failures = 0;
      CHECK(conform_check_outputs(judge, &run, &run), "%s: %s", judge->variant, judge->failure);
      expected[e - 1] += 100;
      CHECK(!conform_check_outputs(judge, &run, &run), "%s: %s is not compared", judge->variant,
            c->buffers[i].name);
      expected[e - 1] -= 100;
      conform_finish(&run);
      g_variants++;
    }
    conform_free_case(c);
  }
  nvtex_policy_pop();
  nvtex_policy_destroy(reference);
  return 0;
}

static void test_expected(void) {
  if (!case_begin("what cases have computed is compared")) return;
  const NVTEXConformOptions all = {.only = -1, .out = stdout};
  unsigned variants;
  g_variants = 0;
  conform_for_each(&all, &variants, spoil);
  CHECK(g_variants > 100, "%u outputs", g_variants);
}

static unsigned count_gaps(ConformJudge *judge) {
  const char *dot = strchr(judge->variant, '.');
  const ConformGenerator *generator = conform_generator(judge->op->name);
  ConformCase *c = host_memory(sizeof *c);
  ConformRandom random = {1};
  const bool made = generator && generator->make(c, &random, dot ? dot + 1 : "", 0);
  conform_free_case(c);
  CHECK(made != (conform_unreachable(judge->variant) != NULL), "%s: %s", judge->variant,
        made ? "has cases, and a reason why not" : "neither has cases nor a reason why not");
  return 0;
}

static void test_gaps(void) {
  if (!case_begin("every variant has cases or a reason why not")) return;
  const NVTEXConformOptions all = {.only = -1, .out = stdout};
  unsigned variants;
  conform_for_each(&all, &variants, count_gaps);
  CHECK(variants >= 190, "%u variants", variants);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  if (on_cuda()) {
    fprintf(stderr, "SKIP: the cases are those of the host's memory\n");
    return TEST_SKIP;
  }
  // Every operator that has cases is here.
  CHECK_EQ(COUNT(kCovered), sizeof conform_generators / sizeof *conform_generators);
  for (size_t i = 0; i < COUNT(kCovered); i++) {
    if (!case_begin("%s", kCovered[i].op)) continue;
    NVTEXConformOptions options = {
        .op = kCovered[i].op, .cases = 30, .seed = 7, .only = -1, .out = stdout};
    unsigned all;
    g_variants = 0;
    conform_for_each(&options, &all, judge_own);
    CHECK_EQ(g_variants, kCovered[i].variants);
  }
  test_expected();
  test_gaps();
  return test_end();
}
