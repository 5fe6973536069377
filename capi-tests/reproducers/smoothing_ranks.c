// Label smoothing of a vocabulary that is divided among ranks: the part of the weight that is
// spread belongs to all columns, not to those of a rank. A rank that spreads it over its own
// columns gives other losses, which the last column shows beside the exact ones and those of this
// library.
#include "../support.h"

enum { TOKENS = 6, COLUMNS = 40, RANKS = 4, EACH = COLUMNS / RANKS };

static double logsumexp(const float *x, size_t n) {
  double top = -(double)INFINITY, sum = 0;
  for (size_t i = 0; i < n; i++) top = fmax(top, (double)x[i]);
  for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
  return top + log(sum);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  case_begin("label smoothing over %d ranks", RANKS);
  const double smoothing = 0.1;
  const float *x = random_values(kNVTEFloat32, TOKENS * COLUMNS, -4, 4);
  int64_t ids[TOKENS];
  for (int t = 0; t < TOKENS; t++) ids[t] = t * 7 % COLUMNS;
  NVTETensor targets = tensor(buffer_from(ids, sizeof ids, 0)->ptr, kNVTEInt64, SHAPE(TOKENS));
  NVTEXCrossEntropyOptions options;
  nvtex_cross_entropy_options_init(&options, sizeof options);
  options.vocabulary_size = COLUMNS;
  options.label_smoothing = (float)smoothing;
  options.reduction = NVTEX_LOSS_NONE;
  Buffer *partials = buffer(RANKS * 4 * TOKENS * sizeof(float)),
         *loss = buffer(TOKENS * sizeof(float)), *log_sum = buffer(TOKENS * sizeof(float));
  for (size_t r = 0; r < RANKS; r++) {
    float *part = host_memory(TOKENS * EACH * sizeof *part);
    for (size_t t = 0; t < TOKENS; t++)
      memcpy(part + t * EACH, x + t * COLUMNS + r * EACH, EACH * sizeof *part);
    Buffer *b = buffer_from(part, TOKENS * EACH * sizeof *part, 0);
    options.vocabulary_start = r * EACH;
    nvtex_cross_entropy_partial(
        tensor(b->ptr, kNVTEFloat32, SHAPE(TOKENS, EACH)), targets,
        tensor(partials->ptr + r * 4 * TOKENS * sizeof *part, kNVTEFloat32, SHAPE(4, TOKENS)),
        &options, NULL);
    EXPECT_OK();
  }
  options.vocabulary_start = 0;
  nvtex_cross_entropy_combine(tensor(partials->ptr, kNVTEFloat32, SHAPE(RANKS, 4, TOKENS)), targets,
                              tensor(loss->ptr, kNVTEFloat32, SHAPE(TOKENS)),
                              tensor(log_sum->ptr, kNVTEFloat32, SHAPE(TOKENS)), NULL, NULL,
                              &options, NULL);
  EXPECT_OK();
  nvtex_stream_synchronize(NULL);
  const float *got = buffer_read(loss);
  printf("token  exact      this library  spread over a rank's own columns\n");
  for (size_t t = 0; t < TOKENS; t++) {
    const float *row = x + t * COLUMNS, *own = row + (size_t)ids[t] / EACH * EACH;
    const double whole = logsumexp(row, COLUMNS), target = (double)row[ids[t]];
    double all = 0, part = 0;
    for (size_t i = 0; i < COLUMNS; i++) all += (double)row[i] / COLUMNS;
    for (size_t i = 0; i < EACH; i++) part += (double)own[i] / EACH;
    const double exact = whole - (1 - smoothing) * target - smoothing * all;
    const double wrong = whole - (1 - smoothing) * target - smoothing * part;
    printf("%5zu  %9.6f  %12.6f  %9.6f\n", t, exact, (double)got[t], wrong);
    CHECK(fabs((double)got[t] - exact) < 1e-5, "token %zu: %g, exactly %g", t, (double)got[t],
          exact);
  }
  return test_end();
}
