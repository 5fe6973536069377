// Dropout: its random bits from a Philox that is written here, its values from products in double
// (pointwise_norm.md, section 10).
#include "nvte/dropout.h"

#include "support.h"

typedef struct Words {
  uint32_t w[4];
} Words;

// Philox4x32 with 10 rounds, as its authors define it.
static Words philox(Words c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = 0xD2511F53ull * c.w[0], p1 = 0xCD9E8D57ull * c.w[2];
    Words next = {{(uint32_t)(p1 >> 32) ^ c.w[1] ^ k0, (uint32_t)p1,
                   (uint32_t)(p0 >> 32) ^ c.w[3] ^ k1, (uint32_t)p0}};
    c = next;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The known answers of Random123's kat_vectors.
static void test_philox(void) {
  if (!case_begin("the Philox of this test")) return;
  const uint32_t pi[] = {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0};
  const Words expected[] = {{{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}},
                            {{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}},
                            {{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}}};
  const Words ones = {{~0u, ~0u, ~0u, ~0u}}, zeros = {{0}}, digits = {{pi[0], pi[1], pi[2], pi[3]}};
  const Words got[] = {philox(zeros, 0, 0), philox(ones, ~0u, ~0u), philox(digits, pi[4], pi[5])};
  CHECK(memcmp(got, expected, sizeof got) == 0, "other words");
}

// Word i of the stream that begins at `offset` of the given subsequence.
static uint32_t word_at(uint64_t seed, uint64_t subsequence, uint64_t offset, unsigned i) {
  uint64_t block = offset / 4 + (offset % 4 + i) / 4;
  Words counter = {{(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)subsequence,
                    (uint32_t)(subsequence >> 32)}};
  return philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32)).w[(offset + i) % 4];
}

static bool kept(uint64_t seed, uint64_t offset, float p, size_t e) {
  // Word and byte of each of 16 elements.
  static const unsigned char places[16][2] = {{0, 2}, {0, 0}, {1, 2}, {1, 0}, {2, 2}, {2, 0},
                                              {3, 2}, {3, 0}, {0, 3}, {0, 1}, {1, 3}, {1, 1},
                                              {2, 3}, {2, 1}, {3, 3}, {3, 1}};
  const unsigned char *place = places[e % 16];
  uint32_t byte = word_at(seed, e / 16, offset, place[0]) >> (8 * place[1]) & 0xFF;
  return byte >= (uint32_t)floor((double)p * 256);
}

typedef struct Dropout {
  NVTEDType in, out;
  size_t n;
  float p;
  uint64_t seed, offset;
  size_t shift, mask_shift;
  bool in_place;
} Dropout;

static void check_values(const Dropout *d, const void *x, double scale_inv,
                         const unsigned char *mask, const void *y) {
  float scale = 1.0f / (1.0f - d->p);
  for (size_t e = 0, bad = 0; e < d->n && bad < 3; e++) {
    double v = get_value(d->in, x, e);
    if (is_fp8(d->in)) v = (float)(v * scale_inv);
    bool keep = mask[e / 8] >> (e % 8) & 1;
    // Products of floats are exact in double: each of these is rounded once.
    uint32_t expected = keep ? encode_bits(d->out, (float)(v * (double)scale)) : 0;
    uint32_t got = get_bits(d->out, y, e);
    bad += !CHECK(same_bits(d->out, got, expected), "y[%zu] of %g, %s: got 0x%x, expected 0x%x", e,
                  v, keep ? "kept" : "dropped", got, expected);
  }
}

static void check(const Dropout *d) {
  size_t in_size = dtype_size(d->in), out_size = dtype_size(d->out), mask_bytes = (d->n + 7) / 8;
  const uint64_t state[] = {d->seed, d->offset};
  const float scale_inv = 0.37f;
  void *x = mixed_values(d->in, d->n, true);
  Buffer *input = buffer_from(x, d->n * in_size, d->shift * in_size);
  Buffer *output = d->in_place ? input : buffer_shifted(d->n * out_size, d->shift * out_size);
  Buffer *mask = buffer_shifted(mask_bytes, d->mask_shift), *rng = buffer_from(state, 16, 0);
  NVTETensor in = tensor(input->ptr, d->in, SHAPE(d->n));
  if (is_fp8(d->in)) {
    set_param(in, kNVTERowwiseScaleInv, buffer_float(scale_inv)->ptr, kNVTEFloat32, SHAPE(1));
  }
  NVTETensor mask_tensor = tensor(mask->ptr, kNVTEByte, SHAPE(mask_bytes));
  nvte_dropout_fwd(in, tensor(output->ptr, d->out, SHAPE(1, d->n)), mask_tensor,
                   tensor(rng->ptr, kNVTEInt64, SHAPE(2)), d->p, NULL);
  if (!EXPECT_OK()) return;
  const unsigned char *bits = buffer_read(mask);
  for (size_t e = 0, bad = 0; e < mask_bytes * 8 && bad < 3; e++) {
    bool expected = e < d->n && kept(d->seed, d->offset, d->p, e);
    bad += !CHECK((bits[e / 8] >> (e % 8) & 1) == expected, "bit %zu of the mask is not %d", e,
                  expected);
  }
  check_values(d, x, (double)scale_inv, bits, buffer_read(output));
  if (is_fp8(d->in)) return;

  // The backward takes any mask.
  unsigned char *other = host_memory(mask_bytes);
  for (size_t i = 0; i < mask_bytes; i++) other[i] = (unsigned char)random_u64();
  upload(mask->ptr, other, mask_bytes);
  Buffer *grads = buffer_from(x, d->n * in_size, d->shift * in_size);
  Buffer *dx = d->in_place ? grads : buffer_shifted(d->n * out_size, d->shift * out_size);
  nvte_dropout_bwd(tensor(grads->ptr, d->in, SHAPE(d->n)), mask_tensor,
                   tensor(dx->ptr, d->out, SHAPE(d->n)), d->p, NULL);
  if (!EXPECT_OK()) return;
  check_values(d, x, 1, other, buffer_read(dx));
  CHECK(memcmp(buffer_read(mask), other, mask_bytes) == 0, "the backward changed the mask");
}

static void test_values(void) {
  const size_t sizes[] = {1, 7, 8, 15, 16, 17, 100, 511, 512, 513, 1024, 4096, 5000, 100003};
  const float probabilities[] = {0.5f, 0.1f, 0.0f, 0.9f, 0.003f, 0.99999f};
  const uint64_t seeds[] = {0, 1234567, 0x299F31D0A4093822u, ~(uint64_t)0};
  const uint64_t offsets[] = {0, 4, 8, 1, 2, 3, 0x3FFFFFFFFu, ~(uint64_t)0};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (size_t i = 0; i < COUNT(kFloats); i++) {
      for (size_t o = 0; o < COUNT(kHighPrecision); o++) {
        NVTEDType in = kFloats[i], out = kHighPrecision[o];
        if (!is_fp8(in) && in != out) continue;
        size_t turn = s + 3 * i + o;
        Dropout d = {.in = in,
                     .out = out,
                     .n = sizes[s],
                     .p = probabilities[turn % COUNT(probabilities)],
                     .seed = seeds[turn % COUNT(seeds)],
                     .offset = offsets[turn % COUNT(offsets)],
                     .shift = turn % 4 == 1,
                     .mask_shift = turn % 4 == 2,
                     .in_place = !is_fp8(in) && turn % 3 == 0};
        if (!case_begin("%s to %s, %zu, p %g, seed %llu, offset %llu, shift %zu, mask shift %zu%s",
                        dtype_name(in), dtype_name(out), d.n, (double)d.p,
                        (unsigned long long)d.seed, (unsigned long long)d.offset, d.shift,
                        d.mask_shift, d.in_place ? " in place" : "")) {
          continue;
        }
        check(&d);
      }
    }
  }
}

// As many are dropped as the probability says, to within 2.6 standard deviations.
static void test_rate(void) {
  const float probabilities[] = {0.1f, 0.5f, 0.75f};
  for (size_t i = 0; i < COUNT(probabilities); i++) {
    double p = floor((double)probabilities[i] * 256) / 256, dropped = 0;
    if (!case_begin("rate of p %g", p)) continue;
    enum { N = 1 << 20 };
    const uint64_t state[] = {42 + i, 0};
    Buffer *x = buffer(2 * N), *mask = buffer(N / 8), *rng = buffer_from(state, 16, 0);
    NVTETensor t = tensor(x->ptr, kNVTEBFloat16, SHAPE(N));
    // 16-bit elements: any dtype with as many bits as there are elements.
    nvte_dropout_fwd(t, t, tensor(mask->ptr, kNVTEInt16, SHAPE(N / 16)),
                     tensor(rng->ptr, kNVTEInt64, SHAPE(2)), probabilities[i], NULL);
    if (!EXPECT_OK()) continue;
    const unsigned char *bits = buffer_read(mask);
    for (size_t e = 0; e < N; e++) dropped += !(bits[e / 8] >> (e % 8) & 1);
    double z = (dropped - N * p) / sqrt(N * p * (1 - p));
    CHECK(fabs(z) < 2.6, "%g of %d dropped, z = %g", dropped, (int)N, z);
  }
}

// Bias before, residual after: three roundings to float and one to the dtype.
static void check_add(NVTEDType dtype, size_t rows, size_t cols, float p, bool with_bias,
                      size_t shift, int aliased) {
  size_t n = rows * cols, size = dtype_size(dtype), mask_bytes = (n + 7) / 8;
  const uint64_t state[] = {random_u64(), random_u64() >> 8};
  void *x = mixed_values(dtype, n, true), *r = mixed_values(dtype, n, true);
  void *b = mixed_values(dtype, cols, true);
  Buffer *input = buffer_from(x, n * size, shift * size);
  Buffer *residual = buffer_from(r, n * size, shift * size);
  Buffer *bias = buffer_from(b, cols * size, shift * size);
  Buffer *output = aliased == 1   ? input
                   : aliased == 2 ? residual
                                  : buffer_shifted(n * size, shift * size);
  Buffer *mask = buffer(mask_bytes), *rng = buffer_from(state, 16, 0);
  nvtex_bias_dropout_add(tensor(input->ptr, dtype, SHAPE(rows, cols)),
                         with_bias ? tensor(bias->ptr, dtype, SHAPE(cols)) : NULL,
                         tensor(residual->ptr, dtype, SHAPE(n)),
                         tensor(output->ptr, dtype, SHAPE(n)),
                         tensor(mask->ptr, kNVTEByte, SHAPE(mask_bytes)),
                         tensor(rng->ptr, kNVTEInt64, SHAPE(2)), p, NULL);
  if (!EXPECT_OK()) return;
  const unsigned char *bits = buffer_read(mask);
  const void *y = buffer_read(output);
  double scale = (double)(1.0f / (1.0f - p));
  for (size_t e = 0, bad = 0; e < n && bad < 3; e++) {
    bool keep = kept(state[0], state[1], p, e);
    bad += !CHECK((bits[e / 8] >> (e % 8) & 1) == keep, "bit %zu of the mask is not %d", e, keep);
    double v = get_value(dtype, x, e);
    // Sums and products of floats are rounded correctly through double.
    if (with_bias) v = (double)(float)(v + get_value(dtype, b, e % cols));
    v = keep ? (double)(float)(v * scale) : 0;
    uint32_t expected = encode_bits(dtype, (double)(float)(get_value(dtype, r, e) + v));
    uint32_t got = get_bits(dtype, y, e);
    bad += !CHECK(same_bits(dtype, got, expected), "y[%zu]: got 0x%x, expected 0x%x", e, got,
                  expected);
  }
}

static void test_add(void) {
  const size_t shapes[][2] = {{1, 1},    {3, 7},    {5, 8},    {64, 64},
                              {7, 1000}, {9, 1024}, {4, 4104}, {1000, 9}};
  const float probabilities[] = {0.1f, 0.0f, 0.5f};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (size_t turn = 0; turn < 12; turn++) {
      NVTEDType dtype = kHighPrecision[turn % 3];
      float p = probabilities[(turn + s) % 3];
      bool with_bias = turn / 3 != 1;
      size_t shift = turn / 3 == 2;
      int aliased = (int)((turn + s) % 3);
      if (!case_begin("sums around dropout, %s, %zux%zu, p %g%s, shift %zu, output %d",
                      dtype_name(dtype), shapes[s][0], shapes[s][1], (double)p,
                      with_bias ? "" : ", no bias", shift, aliased)) {
        continue;
      }
      check_add(dtype, shapes[s][0], shapes[s][1], p, with_bias, shift, aliased);
    }
  }
}

static void test_empty(void) {
  if (!case_begin("empty")) return;
  Buffer *any = buffer(16);
  NVTETensor none = tensor(NULL, kNVTEFloat16, SHAPE(0, 16)),
             bits = tensor(any->ptr, kNVTEByte, SHAPE(0));
  nvte_dropout_fwd(none, none, bits, tensor(any->ptr, kNVTEInt64, SHAPE(2)), 0.5f, NULL);
  EXPECT_OK();
  nvte_dropout_bwd(none, bits, none, 0.5f, NULL);
  EXPECT_OK();
  nvtex_bias_dropout_add(none, NULL, none, none, bits, tensor(any->ptr, kNVTEInt64, SHAPE(2)), 0.5f,
                         NULL);
  EXPECT_OK();
  CHECK(untouched(any), "written");
}

static void test_errors(void) {
  if (!case_begin("wrong arguments")) return;
  const char *const fwd = "nvte_dropout_fwd", *const bwd = "nvte_dropout_bwd";
  Buffer *any = buffer(1024);
  const NVTEDType f16 = kNVTEFloat16;
  NVTETensor x = tensor(any->ptr, f16, SHAPE(8, 16)), bits = tensor(any->ptr, kNVTEByte, SHAPE(16));
  NVTETensor rng = tensor(any->ptr, kNVTEInt64, SHAPE(2));
  const float wrong[] = {-0.1f, 1.0f, 2.0f, (float)NAN};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    nvte_dropout_fwd(x, x, bits, rng, wrong[i], NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": dropout_probability", "less than 1");
    nvte_dropout_bwd(x, bits, x, wrong[i], NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bwd, ": dropout_probability", "less than 1");
  }
  nvte_dropout_fwd(NULL, x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": input", "expected", "got");
  nvte_dropout_fwd(tensor(NULL, f16, SHAPE(8, 16)), x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": input.data", "got null");
  nvte_dropout_fwd(x, tensor(any->ptr, kNVTEBFloat16, SHAPE(128)), bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": input.dtype", "expected BFloat16", "got Float16");
  nvte_dropout_fwd(x, tensor(any->ptr, f16, SHAPE(127)), bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": output.shape", "128 elements", "[127]");
  nvte_dropout_fwd(x, x, tensor(any->ptr, kNVTEByte, SHAPE(17)), rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": mask.shape", "16 bytes", "[17]");
  nvte_dropout_fwd(x, x, tensor(NULL, kNVTEByte, SHAPE(16)), rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": mask.data", "got null");
  nvte_dropout_fwd(x, x, bits, tensor(any->ptr, kNVTEFloat32, SHAPE(2)), 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": rng_state.dtype", "expected Int64");
  nvte_dropout_fwd(x, x, bits, tensor(any->ptr, kNVTEInt64, SHAPE(3)), 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": rng_state.shape", "[2]");
  nvte_dropout_fwd(x, x, bits, NULL, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": rng_state", "expected", "got");
  nvte_dropout_fwd(tensor(any->ptr, kNVTEFloat8E4M3, SHAPE(128)), x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": input.scale_inv", "Float32");
  nvte_dropout_fwd(x, tensor(any->ptr, kNVTEInt16, SHAPE(128)), bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": output.dtype", "got Int16");
  nvte_dropout_bwd(x, NULL, x, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bwd, ": mask", "expected", "got");
  NVTETensor fp8 = tensor(any->ptr, kNVTEFloat8E5M2, SHAPE(128));
  set_param(fp8, kNVTERowwiseScaleInv, any->ptr, kNVTEFloat32, SHAPE(1));
  nvte_dropout_bwd(fp8, bits, x, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bwd, ": grad_output.dtype", "expected Float16");
  nvte_dropout_bwd(x, bits, tensor(any->ptr, f16, SHAPE(64)), 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bwd, ": grad_input.shape", "128 elements");
  const char *const add = "nvtex_bias_dropout_add";
  nvtex_bias_dropout_add(x, x, x, x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, add, ": bias.shape", "[16]", "[8, 16]");
  nvtex_bias_dropout_add(x, tensor(any->ptr, kNVTEFloat32, SHAPE(16)), x, x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, add, ": bias.dtype", "expected Float16");
  nvtex_bias_dropout_add(x, NULL, NULL, x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, add, ": residual", "expected", "got");
  nvtex_bias_dropout_add(x, NULL, tensor(any->ptr, f16, SHAPE(127)), x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, add, ": residual.shape", "128 elements", "[127]");
  nvtex_bias_dropout_add(fp8, NULL, x, x, bits, rng, 0.5f, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, add, ": input.dtype", "Float32");
  CHECK(untouched(any), "written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_philox();
  test_values();
  test_rate();
  test_add();
  test_empty();
  test_errors();
  return test_end();
}
