// Gradients of learnable sinks of packed sequences, of this library and of the one whose path is
// the first argument, beside the exact ones. The other library's are wrong on Hopper with cuDNN
// before 9.26.
#include "library.h"

int main(int argc, char **argv) {
  Library list[2];
  begin(argv);
  const size_t count = libraries(argc, argv, list);
  static const int lengths[] = {37, 5, 64};
  Run x;
  memset(&x, 0, sizeof x);
  g_text = "packed, causal, learnable sinks";
  x.p = (Problem){.b = 3,
                  .hq = 4,
                  .hkv = 2,
                  .sq = 64,
                  .skv = 64,
                  .dqk = 64,
                  .dv = 64,
                  .scale = 0.125,
                  .left = -1,
                  .right = 0};
  x.c = (Config){.layout = NVTE_THD_THD_THD,
                 .dqkv_layout = NVTE_THD_THD_THD,
                 .mask = NVTE_PADDING_CAUSAL_MASK,
                 .softmax = NVTE_LEARNABLE_SOFTMAX,
                 .o_order = THD,
                 .do_order = THD,
                 .dtype = kNVTEBFloat16,
                 .o_dtype = kNVTEBFloat16,
                 .do_dtype = kNVTEBFloat16,
                 .dqkv_dtype = kNVTEBFloat16,
                 .left = -1,
                 .right = 0,
                 .training = true};
  for (size_t i = 0; i < x.p.b; i++) {
    x.p.lq[i] = x.p.lk[i] = lengths[i];
    for (int side = 0; side < 2; side++) x.c.starts[side][i + 1] = x.c.starts[side][i] + lengths[i];
  }
  x.c.tokens[0] = x.c.tokens[1] = x.c.starts[0][x.p.b];
  build_forward(&x);
  reference_forward(&x.p);
  nvte_tensor_pack_create(&x.pack);
  const size_t stats = (size_t)x.c.tokens[0] * x.p.hq * sizeof(float);
  x.stats_data = buffer(stats);
  build_backward(&x);
  // O of the backward pass is each library's own.
  reference_backward(&x.p);
  float *got[2];
  for (size_t n = 0; n < count; n++) {
    attention_by(&list[n], &x, true);
    if (n == 0) EXPECT_OK();
    got[n] = values_of(x.dsink_data);
  }
  printf("head  exact       %s%s%s\n", list[0].name, count > 1 ? "  " : "",
         count > 1 ? list[1].name : "");
  for (size_t j = 0; j < x.p.hq; j++) {
    printf("%4zu  %10.6f  %10.6f", j, x.p.dsink[j], (double)got[0][j]);
    if (count > 1) printf("  %10.6f", (double)got[1][j]);
    printf("\n");
    CHECK(fabs((double)got[0][j] - x.p.dsink[j]) <= 2e-2 * fmax(1, fabs(x.p.dsink[j])),
          "head %zu: %g, exactly %g", j, (double)got[0][j], x.p.dsink[j]);
  }
  return test_end();
}
