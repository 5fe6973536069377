// The cases of nvte/conform.h are valid: the reference runs all of them, and is found to agree with
// itself.
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE

#include "nvte/conform.h"

#include "support.h"

static unsigned g_variants;

// How many variants of each operator must have cases, so that none is lost.
static const struct {
  const char *op;
  unsigned variants;
} kCovered[] = {{"padding", 1},         {"quantize", 33}, {"dequantize", 1}, {"norm_forward", 2},
                {"norm_backward", 2},   {"softmax", 8},   {"rope", 2},       {"transpose", 1},
                {"swap_first_dims", 1}, {"amax", 1},      {"memset", 1},     {"gemm", 2}};

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

int main(int argc, char **argv) {
  test_begin(argc, argv);
  if (on_cuda()) {
    fprintf(stderr, "SKIP: the cases are those of the host's memory\n");
    return TEST_SKIP;
  }
  for (size_t i = 0; i < COUNT(kCovered); i++) {
    if (!case_begin("%s", kCovered[i].op)) continue;
    NVTEXConformOptions options = {
        .op = kCovered[i].op, .cases = 60, .seed = 7, .only = -1, .out = stdout};
    unsigned all;
    g_variants = 0;
    conform_for_each(&options, &all, judge_own);
    CHECK_EQ(g_variants, kCovered[i].variants);
  }
  return test_end();
}
