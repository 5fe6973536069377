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
                {"gemm", 4},
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
                {"nvfp4_quantize", 3},
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
                {"scaled_activation", 6},
                {"scale_codes", 1},
                {"group_amax", 1}};

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
  return test_end();
}
