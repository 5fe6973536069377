// Rotary embedding against its definition in double (pointwise_norm.md, section 11).
#include "nvte/fused_rope.h"

#include "support.h"

enum { MOST = 8 };

typedef struct Rope {
  NVTE_QKV_Format format;
  NVTEDType dtype;
  bool interleaved, backward;
  int cp_size, cp_rank, s, b, h, d, d2;
  const int *starts;  // b of them, or none
  int layout;         // 0: contiguous, 1: heads outermost, 2: gaps between everything
  size_t shift;       // Elements off the alignment.
  bool in_place;
  const int *cu;  // THD: b + 1 offsets of all ranks' tokens.
  int tokens;
} Rope;

// Angles of `rows` positions, those of the two partners apart, up to large ones.
static float *angles(int rows, int d2) {
  float *freqs = host_memory((size_t)rows * (size_t)d2 * sizeof *freqs);
  for (int i = 0; i < rows * d2; i++) {
    int j = i % d2;
    freqs[i] = (float)((i / d2) * pow(10000, -(double)j / d2) + random_uniform(-1, 1));
    if (j == d2 / 3) freqs[i] *= 300000;
  }
  return freqs;
}

static Buffer *angles_buffer(const float *freqs, int rows, int d2) {
  return buffer_from(freqs, (size_t)rows * (size_t)d2 * sizeof *freqs, 0);
}

// Row of freqs of local position i of a sequence.
static int row_of(int i, int start, int length, int cp_size, int cp_rank) {
  int f = i + start;
  if (cp_size == 1) return f;
  if (i < length / 2) return f + cp_rank * length / 2;
  return f + length * cp_size - (cp_rank + 1) * length / 2 - length / 2;
}

// Element j of a turned head whose elements are `stride` apart.
static double turned(NVTEDType dtype, const void *x, size_t first, size_t stride, int j, int d2,
                     const float *freqs, bool interleaved, bool backward, double *size) {
  double own = get_value(dtype, x, first + (size_t)j * stride);
  *size = 0;
  if (j >= d2 || !freqs) return own;
  bool upper = interleaved ? j % 2 == 1 : j >= d2 / 2;
  int p = interleaved ? j ^ 1 : upper ? j - d2 / 2 : j + d2 / 2;
  double partner = get_value(dtype, x, first + (size_t)p * stride);
  double sine = sin((double)freqs[backward ? p : j]);
  *size = fabs(own) + fabs(partner);
  return own * cos((double)freqs[j]) + (upper == backward ? -1 : 1) * partner * sine;
}

static bool near(NVTEDType dtype, double got, double expected, double size) {
  double half = ldexp(1, -format_of(dtype).mantissa - 1);
  double smallest = dtype == kNVTEFloat16 ? 0x1p-25 : 0;
  return fabs(got - expected) <= fabs(expected) * half + size * 5e-7 + smallest;
}

typedef struct Strides {
  int s, b, h, d;
} Strides;

static Strides strides_of(const Rope *r) {
  int h = r->h, d = r->d, token = h * d;
  Strides packed = {token, 0, d, 1};
  if (r->format == NVTE_SBHD) packed = (Strides){r->b * token, token, d, 1};
  if (r->format == NVTE_BSHD) packed = (Strides){token, r->s * token, d, 1};
  int positions = r->format == NVTE_THD ? r->tokens : r->s;
  if (r->layout == 1) return (Strides){d, h * positions * d, positions * d, 1};
  if (r->layout == 2) {
    return (Strides){packed.s * 2 + 6, packed.b * 2 + 6 * positions, packed.h * 2 + 2, 2};
  }
  return packed;
}

static void call(const Rope *r, NVTETensor input, NVTETensor cu, NVTETensor freqs,
                 NVTETensor starts, NVTETensor output, Strides t) {
  (r->backward ? nvte_fused_rope_backward : nvte_fused_rope_forward)(
      input, cu, freqs, starts, output, r->format, r->interleaved, r->cp_size, r->cp_rank, r->s,
      r->b, r->h, r->d, r->d2, t.s, t.b, t.h, t.d, NULL);
}

static NVTEShape shape_for(const Rope *r) {
  size_t s = (size_t)r->s, b = (size_t)r->b, h = (size_t)r->h, d = (size_t)r->d;
  if (r->format == NVTE_THD) return SHAPE((size_t)r->tokens, h, d);
  return r->format == NVTE_SBHD ? SHAPE(s, b, h, d) : SHAPE(b, s, h, d);
}

// Compares one token's heads, of sequence n, at local position i, with output token `at`.
static void check_token(const Rope *r, const void *x, size_t from, Strides t, const void *y, int at,
                        const float *row, size_t *bad) {
  for (int h = 0; h < r->h; h++) {
    for (int j = 0; j < r->d && *bad < 3; j++) {
      double size;
      size_t first = from + (size_t)(h * t.h);
      double expected = turned(r->dtype, x, first, (size_t)t.d, j, r->d2, row, r->interleaved,
                               r->backward, &size);
      double got = get_value(r->dtype, y,
                             ((size_t)at * (size_t)r->h + (size_t)h) * (size_t)r->d + (size_t)j);
      *bad += !CHECK(near(r->dtype, got, expected, size),
                     "token %d, head %d, element %d: got %g, expected %g", at, h, j, got, expected);
    }
  }
}

static void check(const Rope *r) {
  NVTEShape shape = shape_for(r);
  size_t size = dtype_size(r->dtype), bytes = numel(shape) * size;
  Strides t = strides_of(r);
  int positions = r->format == NVTE_THD ? r->tokens : r->s;
  size_t extent = 1 + (size_t)((positions - 1) * t.s + (r->h - 1) * t.h + (r->d - 1) * t.d);
  if (r->format != NVTE_THD) extent += (size_t)((r->b - 1) * t.b);
  int most = r->s * r->cp_size;
  for (int n = 0; r->starts && n < r->b; n++) {
    if (r->s * r->cp_size + r->starts[n] > most) most = r->s * r->cp_size + r->starts[n];
  }
  void *x = random_values(r->dtype, extent, -2, 2);
  float *freqs = angles(most, r->d2 ? r->d2 : 2);
  Buffer *input = buffer_from(x, extent * size, r->shift * size);
  Buffer *output = r->in_place ? input : buffer_shifted(bytes, r->shift * size);
  Buffer *table = angles_buffer(freqs, most, r->d2);
  NVTETensor starts = empty_tensor(), cu = empty_tensor();
  if (r->starts) {
    Buffer *b = buffer_from(r->starts, (size_t)r->b * 4, 0);
    starts = tensor(b->ptr, kNVTEInt32, SHAPE((size_t)r->b));
  }
  if (r->cu) {
    Buffer *b = buffer_from(r->cu, (size_t)(r->b + 1) * 4, 0);
    cu = tensor(b->ptr, kNVTEInt32, SHAPE((size_t)r->b + 1));
  }
  NVTETensor freqs_tensor =
      tensor(table->ptr, kNVTEFloat32, SHAPE((size_t)most, 1, 1, (size_t)r->d2));
  call(r, tensor(input->ptr, r->dtype, shape), cu, freqs_tensor, starts,
       tensor(output->ptr, r->dtype, shape), t);
  if (!EXPECT_OK()) return;
  const void *y = buffer_read(output);
  size_t bad = 0;
  for (int n = 0; n < r->b; n++) {
    int first = r->cu ? r->cu[n] / r->cp_size : 0;
    int length = r->cu ? r->cu[n + 1] / r->cp_size - first : r->s;
    int start = r->starts ? r->starts[n] : 0;
    for (int i = 0; i < length; i++) {
      int at = r->cu ? first + i : r->format == NVTE_SBHD ? i * r->b + n : n * r->s + i;
      size_t from = r->cu ? (size_t)(at * t.s) : (size_t)(i * t.s + n * t.b);
      const float *row = freqs + row_of(i, start, length, r->cp_size, r->cp_rank) * r->d2;
      check_token(r, x, from, t, y, at, row, &bad);
    }
  }
  // Tokens that belong to no sequence must not change.
  if (r->cu) {
    size_t written = (size_t)(r->cu[r->b] / r->cp_size) * (size_t)(r->h * r->d) * size;
    for (size_t i = written; i < bytes; i++) {
      bad += bad < 3 &&
             !CHECK(((const unsigned char *)y)[i] == POISON_VALUE, "byte %zu was written", i);
    }
  }
  if (!r->in_place) CHECK(memcmp(buffer_read(input), x, extent * size) == 0, "the input changed");
}

static void run(const Rope *r) {
  static const char *const formats[] = {"sbhd", "bshd", "thd"};
  if (!case_begin("%s %s %s%s s %d b %d h %d d %d of %d, cp %d of %d, layout %d, shift %zu%s%s",
                  formats[r->format], r->backward ? "backward" : "forward", dtype_name(r->dtype),
                  r->interleaved ? " interleaved" : "", r->s, r->b, r->h, r->d2, r->d, r->cp_rank,
                  r->cp_size, r->layout, r->shift, r->starts ? " starts" : "",
                  r->in_place ? " in place" : "")) {
    return;
  }
  check(r);
}

static void test_values(void) {
  // s, b, h, d, d2
  const int sizes[][5] = {{8, 2, 4, 64, 64},    {10, 3, 2, 128, 64}, {2, 1, 1, 2, 2},
                          {6, 3, 5, 10, 6},     {4, 2, 3, 24, 16},   {1, 2, 33, 128, 128},
                          {66, 1, 1, 256, 128}, {12, 5, 7, 80, 48},  {2, 2, 2, 12, 0},
                          {3, 1, 2, 520, 520},  {300, 2, 1, 8, 8},   {2, 90, 20, 32, 32},
                          {4, 1, 2, 1200, 600}};
  static const int starts[MOST] = {3, 0, 17, 5, 1};
  unsigned turn = 0;
  for (size_t i = 0; i < COUNT(sizes); i++) {
    for (size_t d = 0; d < COUNT(kHighPrecision); d++) {
      for (int k = 0; k < 8; k++) {
        turn++;
        const int *n = sizes[i];
        Rope r = {.format = k & 4 ? NVTE_BSHD : NVTE_SBHD,
                  .dtype = kHighPrecision[d],
                  .interleaved = k & 1,
                  .backward = k & 2,
                  .cp_size = n[0] % 2 == 0 && turn % 3 == 0 ? 1 + (int)(turn % 4) : 1,
                  .s = n[0],
                  .b = n[1],
                  .h = n[2],
                  .d = n[3],
                  .d2 = n[4],
                  .starts = turn % 4 == 1 && n[1] <= MOST ? starts : NULL,
                  .layout = turn % 5 == 2   ? 1
                            : turn % 5 == 4 ? 2
                                            : 0,
                  .shift = turn % 7 == 3};
        r.cp_rank = (int)(turn / 3) % r.cp_size;
        r.in_place = r.layout == 0 && turn % 2 == 0;
        run(&r);
      }
    }
  }
}

static void test_packed(void) {
  static const int cu[][MOST] = {{0, 4, 4, 20, 28}, {0, 1, 2, 3, 100}, {0, 64}, {0, 0, 0, 8, 8}};
  static const int sequences[] = {4, 4, 1, 4}, starts[MOST] = {3, 0, 17, 5};
  for (size_t c = 0; c < COUNT(cu); c++) {
    for (int k = 0; k < 16; k++) {
      int b = sequences[c], total = cu[c][b];
      Rope r = {.format = NVTE_THD,
                .dtype = kHighPrecision[(size_t)k % 3],
                .interleaved = k & 1,
                .backward = k & 2,
                .cp_size = (k & 4) && c != 1 ? 2 : 1,
                .s = total,  // rows of freqs
                .b = b,
                .h = 3,
                .d = k & 8 ? 64 : 36,
                .d2 = k & 8 ? 64 : 20,
                .cu = cu[c],
                .layout = k % 3,
                .starts = k % 5 == 3 ? starts : NULL};
      r.cp_rank = r.cp_size - 1;
      r.tokens = total / r.cp_size + 2;
      run(&r);
    }
  }
  if (case_begin("thd of many sequences")) {
    enum { N = 700 };
    int *many = host_memory((N + 1) * sizeof *many);
    for (int i = 0; i < N; i++) many[i + 1] = many[i] + (int)random_below(5);
    Rope r = {.format = NVTE_THD,
              .dtype = kNVTEBFloat16,
              .cp_size = 1,
              .s = 8,
              .b = N,
              .h = 2,
              .d = 16,
              .d2 = 16,
              .cu = many,
              .tokens = many[N]};
    check(&r);
  }
}

// Heads of queries, keys and values of one tensor, there and back.
static void check_qkv(const Rope *r, int q_heads, bool q_turns, bool k_turns) {
  size_t size = dtype_size(r->dtype), d = (size_t)r->d, h = (size_t)r->h;
  size_t tokens = (size_t)r->s * (size_t)r->b, group = ((size_t)q_heads + 2) * d;
  const size_t heads[] = {(size_t)q_heads, 1, 1}, offsets[] = {0, (size_t)q_heads * d, group - d};
  int most = r->s * r->cp_size + 20;
  float *freqs[] = {angles(most, r->d2), angles(most, r->d2), NULL};
  NVTETensor tables[2], parts[3];
  const bool turns[] = {q_turns, k_turns};
  for (int i = 0; i < 2; i++) {
    tables[i] = empty_tensor();
    if (!turns[i]) {
      freqs[i] = NULL;
      continue;
    }
    tables[i] = tensor(angles_buffer(freqs[i], most, r->d2)->ptr, kNVTEFloat32,
                       SHAPE((size_t)most, 1, 1, (size_t)r->d2));
  }
  void *packed = random_values(r->dtype, tokens * h * group, -2, 2), *values[3];
  Buffer *whole = r->backward ? buffer_shifted(tokens * h * group * size, r->shift * size)
                              : buffer_from(packed, tokens * h * group * size, r->shift * size);
  Buffer *buffers[3];
  for (int i = 0; i < 3; i++) {
    size_t n = tokens * h * heads[i] * d;
    values[i] = random_values(r->dtype, n, -2, 2);
    buffers[i] = r->backward ? buffer_from(values[i], n * size, 0) : buffer(n * size);
    parts[i] = tensor(buffers[i]->ptr, r->dtype, SHAPE(n / d, d));
  }
  NVTEShape shape = r->format == NVTE_SBHD ? SHAPE((size_t)r->s, (size_t)r->b, h, group)
                                           : SHAPE((size_t)r->b, (size_t)r->s, h, group);
  NVTETensor whole_tensor = tensor(whole->ptr, r->dtype, shape), starts = empty_tensor();
  int split = q_heads * r->d;
  if (r->backward) {
    nvte_fused_qkv_rope_backward(parts[0], parts[1], parts[2], tables[0], tables[1], whole_tensor,
                                 r->format, r->interleaved, r->cp_size, r->cp_rank, r->s, r->b,
                                 r->h, r->d, r->d2, split, r->d, r->d, NULL);
  } else {
    if (r->starts) {
      Buffer *b = buffer_from(r->starts, (size_t)r->b * 4, 0);
      starts = tensor(b->ptr, kNVTEInt32, SHAPE((size_t)r->b));
    }
    nvte_fused_qkv_rope_forward(whole_tensor, tables[0], tables[1], starts, parts[0], parts[1],
                                parts[2], r->format, r->interleaved, r->cp_size, r->cp_rank, r->s,
                                r->b, r->h, r->d, r->d2, split, r->d, r->d, NULL);
  }
  if (!EXPECT_OK()) return;
  size_t bad = 0;
  const void *result = r->backward ? buffer_read(whole) : NULL;
  for (int i = 0; i < 3; i++) {
    const void *part = r->backward ? values[i] : buffer_read(buffers[i]);
    for (size_t token = 0; token < tokens; token++) {
      bool sbhd = r->format == NVTE_SBHD;
      int position = (int)(sbhd ? token / (size_t)r->b : token % (size_t)r->s);
      int sequence = (int)(sbhd ? token % (size_t)r->b : token / (size_t)r->s);
      int start = r->starts && !r->backward ? r->starts[sequence] : 0;
      int f = row_of(position, start, r->s, r->cp_size, r->cp_rank);
      const float *row = freqs[i] ? freqs[i] + f * r->d2 : NULL;
      for (size_t head = 0; head < h * heads[i] && bad < 3; head++) {
        size_t in_whole = (token * h + head / heads[i]) * group + offsets[i] + head % heads[i] * d;
        size_t in_part = (token * h * heads[i] + head) * d;
        for (int j = 0; j < r->d && bad < 3; j++) {
          double spread;
          double expected =
              turned(r->dtype, r->backward ? part : packed, r->backward ? in_part : in_whole, 1, j,
                     r->d2, row, r->interleaved, r->backward, &spread);
          double got = r->backward ? get_value(r->dtype, result, in_whole + (size_t)j)
                                   : get_value(r->dtype, part, in_part + (size_t)j);
          bad += !CHECK(near(r->dtype, got, expected, spread),
                        "part %d, token %zu, head %zu, element %d: got %g, expected %g", i, token,
                        head, j, got, expected);
        }
      }
    }
  }
}

static void test_qkv(void) {
  static const int starts[MOST] = {3, 0, 17, 5};
  for (int k = 0; k < 32; k++) {
    Rope r = {.format = k & 1 ? NVTE_BSHD : NVTE_SBHD,
              .dtype = kHighPrecision[(size_t)k % 3],
              .interleaved = k & 2,
              .backward = k & 4,
              .cp_size = k & 8 ? 2 : 1,
              .cp_rank = k & 8 ? 1 : 0,
              .s = k % 5 == 0 ? 8 : 2,
              .b = 3,
              .h = 2 + k % 3,
              .d = k & 16 ? 64 : 20,
              .d2 = k & 16 ? 32 : 20,
              .starts = k % 4 == 1 ? starts : NULL,
              .shift = k % 7 == 6};
    int q_heads = 1 + k % 4;
    bool q_turns = k % 6 != 4, k_turns = k % 6 != 3;
    if (case_begin("qkv %d: %d heads of queries", k, q_heads))
      check_qkv(&r, q_heads, q_turns, k_turns);
  }
}

static void test_empty(void) {
  for (int k = 0; k < 4; k++) {
    if (!case_begin("empty %d", k)) continue;
    Rope r = {.format = k == 3 ? NVTE_THD : NVTE_SBHD,
              .dtype = kNVTEFloat16,
              .cp_size = 1,
              .s = k != 0 ? 4 : 0,
              .b = k != 1 ? 2 : 0,
              .h = k != 2 ? 3 : 0,
              .d = 8,
              .d2 = 8};
    Buffer *any = buffer(256);
    NVTETensor none = tensor(NULL, r.dtype, shape_for(&r));
    NVTETensor freqs = tensor(any->ptr, kNVTEFloat32, SHAPE(4, 1, 1, 8));
    NVTETensor cu = k == 3 ? tensor(any->ptr, kNVTEInt32, SHAPE(3)) : empty_tensor();
    call(&r, none, cu, freqs, empty_tensor(), none, strides_of(&r));
    EXPECT_OK();
    CHECK(untouched(any), "written");
  }
}

static void test_errors(void) {
  const char *const name = "nvte_fused_rope_forward";
  Buffer *any = NULL;
  const Rope good = {.format = NVTE_SBHD,
                     .dtype = kNVTEFloat16,
                     .cp_size = 1,
                     .s = 4,
                     .b = 2,
                     .h = 2,
                     .d = 8,
                     .d2 = 8};
  if (case_begin("wrong numbers")) {
    any = buffer(1024);
    NVTETensor x = tensor(any->ptr, kNVTEFloat16, SHAPE(4, 2, 2, 8));
    NVTETensor freqs = tensor(any->ptr, kNVTEFloat32, SHAPE(4, 1, 1, 8));
    const struct {
      int d2, cp_size, cp_rank;
      NVTE_QKV_Format format;
      const char *part;
    } wrong[] = {{10, 1, 0, NVTE_SBHD, ": d2"},
                 {7, 1, 0, NVTE_SBHD, ": d2"},
                 {-2, 1, 0, NVTE_SBHD, ": d2"},
                 {8, 0, 0, NVTE_SBHD, ": cp_size"},
                 {8, 1, 1, NVTE_SBHD, ": cp_rank"},
                 {8, 1, -1, NVTE_SBHD, ": cp_rank"},
                 {8, 3, 0, NVTE_SBHD, ": freqs.shape: expected [12 or more"},
                 {6, 1, 0, NVTE_SBHD, ": freqs.shape"},
                 {8, 1, 0, NVTE_THD, ": cu_seqlens"}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
      Rope r = good;
      r.d2 = wrong[i].d2, r.cp_size = wrong[i].cp_size, r.cp_rank = wrong[i].cp_rank;
      r.format = wrong[i].format;
      call(&r, x, empty_tensor(), freqs, empty_tensor(), x, strides_of(&good));
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, wrong[i].part, "expected", "got");
    }
    Rope odd = good, negative = good, format = good, huge = good;
    odd.s = 3, odd.cp_size = 2;
    call(&odd, x, empty_tensor(), freqs, empty_tensor(), x, strides_of(&good));
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": s:", "even");
    negative.h = -1;
    call(&negative, x, empty_tensor(), freqs, empty_tensor(), x, strides_of(&good));
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": h:", "got -1");
    format.format = (NVTE_QKV_Format)9;
    call(&format, x, empty_tensor(), freqs, empty_tensor(), x, strides_of(&good));
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": qkv_format", "got 9");
    format.format = NVTE_BHSD;
    call(&format, x, empty_tensor(), freqs, empty_tensor(), x, strides_of(&good));
    EXPECT_ERROR(NVTEX_UNSUPPORTED, name, ": qkv_format", "NVTE_SBHD", "got NVTE_BHSD");
    huge.s = huge.b = huge.h = huge.d = 1 << 30;
    call(&huge, x, empty_tensor(), freqs, empty_tensor(), x, strides_of(&good));
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": s, b, h, d", "2^60");
    call(&good, x, empty_tensor(), freqs, empty_tensor(), x, (Strides){32, 16, -8, 1});
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": stride_h", "got -8");
    CHECK(untouched(any), "written");
  }
  if (case_begin("wrong tensors")) {
    any = buffer(1024);
    NVTETensor x = tensor(any->ptr, kNVTEFloat16, SHAPE(4, 2, 2, 8)), none = empty_tensor();
    NVTETensor freqs = tensor(any->ptr, kNVTEFloat32, SHAPE(4, 1, 1, 8));
    Strides t = strides_of(&good);
    call(&good, NULL, none, freqs, none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input", "expected", "got");
    call(&good, x, none, freqs, none, none, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": output.data", "row-wise data");
    call(&good, x, none, freqs, none, tensor(any->ptr, kNVTEBFloat16, SHAPE(4, 2, 2, 8)), t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": output.dtype", "expected Float16");
    call(&good, x, none, freqs, none, tensor(any->ptr, kNVTEFloat16, SHAPE(4, 2, 16)), t);
    EXPECT_OK();
    any = buffer(1024);
    x = tensor(any->ptr, kNVTEFloat16, SHAPE(4, 2, 2, 8));
    call(&good, x, none, freqs, none, tensor(any->ptr, kNVTEFloat16, SHAPE(4, 2, 2, 7)), t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": output.shape", "128 elements");
    call(&good, tensor(any->ptr, kNVTEFloat16, SHAPE(1, 8)), none, freqs, none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input.shape", "128 elements");
    call(&good, x, none, none, none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": freqs.shape", "[4 or more, 1, 1, 8]");
    call(&good, x, none, tensor(any->ptr, kNVTEFloat16, SHAPE(4, 1, 1, 8)), none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": freqs.dtype", "expected Float32");
    call(&good, x, none, tensor(NULL, kNVTEFloat32, SHAPE(4, 1, 1, 8)), none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": freqs.data", "got null");
    call(&good, x, none, freqs, tensor(any->ptr, kNVTEInt64, SHAPE(2)), x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": start_positions.dtype", "expected Int32");
    call(&good, x, none, freqs, tensor(any->ptr, kNVTEInt32, SHAPE(1)), x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": start_positions.shape", "2 elements or more");
    Rope thd = good;
    thd.format = NVTE_THD;
    call(&thd, x, tensor(any->ptr, kNVTEInt32, SHAPE(2)), freqs, none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": cu_seqlens.shape", "3 elements or more");
    call(&thd, x, tensor(any->ptr, kNVTEInt32, SHAPE(3)), freqs, none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": input.shape", "64 elements", "[4, 2, 2, 8]");
    Rope backward = good;
    backward.backward = true;
    call(&backward, NULL, none, freqs, none, x, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_rope_backward: output_grads", "expected");
    call(&backward, x, none, freqs, none, NULL, t);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_rope_backward: input_grads", "expected");
    CHECK(untouched(any), "written");
  }
  if (case_begin("wrong arguments of qkv")) {
    const char *const fwd = "nvte_fused_qkv_rope_forward", *const bwd =
                                                               "nvte_fused_qkv_rope_backward";
    any = buffer(2048);
    NVTETensor none = empty_tensor(), whole = tensor(any->ptr, kNVTEFloat16, SHAPE(4, 2, 1, 24));
    NVTETensor part = tensor(any->ptr, kNVTEFloat16, SHAPE(4, 2, 1, 8));
    nvte_fused_qkv_rope_forward(whole, none, none, none, part, part, part, NVTE_THD, false, 1, 0, 4,
                                2, 1, 8, 8, 8, 8, 8, NULL);
    EXPECT_ERROR(NVTEX_UNSUPPORTED, fwd, ": qkv_format", "NVTE_SBHD or NVTE_BSHD", "got NVTE_THD");
    nvte_fused_qkv_rope_forward(whole, none, none, none, part, part, part, NVTE_SBHD, false, 1, 0,
                                4, 2, 1, 8, 8, 8, 12, 4, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": qkv_split_arg_list_1", "multiple of 8", "got 12");
    nvte_fused_qkv_rope_forward(whole, none, none, none, part, part, part, NVTE_SBHD, false, 1, 0,
                                4, 2, 1, 8, 8, 16, 8, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": qkv_input.shape", "256 elements");
    nvte_fused_qkv_rope_forward(whole, none, none, none, part, whole, part, NVTE_SBHD, false, 1, 0,
                                4, 2, 1, 8, 8, 8, 8, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, fwd, ": k_out.shape", "64 elements");
    nvte_fused_qkv_rope_backward(part, part, NULL, none, none, whole, NVTE_BSHD, false, 1, 0, 4, 2,
                                 1, 8, 8, 8, 8, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bwd, ": v_grad_out", "expected", "got");
    NVTETensor freqs = tensor(any->ptr, kNVTEFloat32, SHAPE(3, 1, 1, 8));
    nvte_fused_qkv_rope_backward(part, part, part, none, freqs, whole, NVTE_BSHD, false, 1, 0, 4, 2,
                                 1, 8, 8, 8, 8, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bwd, ": k_freqs.shape", "[4 or more, 1, 1, 8]");
    nvte_fused_qkv_rope_backward(part, part, part, none, none, NULL, NVTE_BSHD, false, 1, 0, 4, 2,
                                 1, 8, 8, 8, 8, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, bwd, ": qkv_grad_input", "expected", "got");
    CHECK(untouched(any), "written");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_values();
  test_packed();
  test_qkv();
  test_empty();
  test_errors();
  return test_end();
}
