// Layouts, configs and parameters of attention, and the helpers around it (attention.md sections 2,
// 9, 14 to 18). Tokens carry their place in their value, and the places are counted here one by
// one.
#include "nvte/fused_attn.h"

#include "support.h"

// ---- Layouts and objects

static void test_layouts(void) {
  if (!case_begin("layouts")) return;
  // Group and format of all three, of queries, of keys and values, for each layout.
  static const int expected[26][4] = {
      {0, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {4, 0, 0, 0}, {0, 1, 1, 1},
      {1, 1, 1, 1}, {2, 1, 1, 1}, {3, 1, 1, 1}, {4, 1, 1, 1}, {0, 2, 2, 2}, {1, 2, 2, 2},
      {2, 2, 2, 2}, {3, 2, 2, 2}, {4, 2, 2, 2}, {4, 4, 0, 1}, {4, 3, 1, 0}, {4, 5, 2, 1},
      {4, 6, 2, 0}, {5, 1, 1, 1}, {5, 3, 1, 0}, {5, 4, 0, 1}, {5, 0, 0, 0}, {5, 5, 2, 1},
      {5, 6, 2, 0}, {6, 7, 7, 7}};
  for (int i = 0; i < 26; i++) {
    NVTE_QKV_Layout layout = (NVTE_QKV_Layout)i;
    CHECK((int)nvte_get_qkv_layout_group(layout) == expected[i][0], "group of %d", i);
    CHECK((int)nvte_get_qkv_format(layout) == expected[i][1], "format of %d", i);
    CHECK((int)nvte_get_q_format(layout) == expected[i][2], "q format of %d", i);
    CHECK((int)nvte_get_kv_format(layout) == expected[i][3], "kv format of %d", i);
  }
  EXPECT_OK();
  const int wrong[] = {-1, 26, 27, 1000};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    NVTE_QKV_Layout layout = (NVTE_QKV_Layout)wrong[i];
    nvte_get_qkv_layout_group(layout);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_qkv_layout_group: qkv_layout", "expected",
                 "got");
    nvte_get_qkv_format(layout);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_qkv_format: qkv_layout");
    nvte_get_q_format(layout);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_q_format: qkv_layout");
    nvte_get_kv_format(layout);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_kv_format: qkv_layout");
  }
}

// Sizes and defaults of attributes in the order of their numbers, as runs of equal ones: how many,
// of which kind (f flag, i number of 4 bytes, n number or handle of 8 bytes), and the default.
typedef struct Run {
  size_t count;
  char kind;
  uint64_t value;
} Run;

enum { ONE_BITS = 0x3F800000 };
#define UNBOUNDED UINT64_MAX
static const Run config_attributes[] = {
    {1, 'f', 1},        {3, 'f', 0}, {2, 'i', 0},  {2, 'n', UNBOUNDED}, {1, 'f', 1},  {3, 'i', 0},
    {1, 'i', ONE_BITS}, {4, 'i', 6}, {1, 'i', 26}, {2, 'i', 8},         {1, 'i', 26}, {2, 'i', 8},
    {19, 'n', 0},       {0, 0, 0}};
static const Run fwd_attributes[] = {
    {15, 'n', 0}, {1, 'f', 1},        {2, 'f', 0},  {2, 'i', 0}, {2, 'n', UNBOUNDED}, {1, 'f', 1},
    {2, 'i', 0},  {1, 'i', ONE_BITS}, {1, 'i', 26}, {2, 'i', 8}, {4, 'n', 0},         {0, 0, 0}};
static const Run bwd_attributes[] = {
    {17, 'n', 0}, {2, 'f', 0},        {2, 'i', 0},  {2, 'n', UNBOUNDED}, {1, 'f', 1},
    {2, 'i', 0},  {1, 'i', ONE_BITS}, {1, 'i', 26}, {2, 'i', 8},         {1, 'i', 26},
    {2, 'i', 8},  {4, 'n', 0},        {0, 0, 0}};

typedef struct Attribute {
  char kind;
  uint64_t value;
} Attribute;

enum { MAX_ATTRIBUTES = 64 };

static size_t attributes_of(const Run *runs, Attribute *attributes) {
  size_t count = 0;
  for (; runs->count; runs++) {
    for (size_t i = 0; i < runs->count; i++) {
      attributes[count++] = (Attribute){runs->kind, runs->value};
    }
  }
  return count;
}

static size_t attribute_size(Attribute a) { return a.kind == 'f' ? 1 : a.kind == 'i' ? 4 : 8; }

#define OBJECT_TEST(NAME, TYPE, ENUM, RUNS)                                                    \
  static void test_##NAME(void) {                                                              \
    if (!case_begin(#NAME)) return;                                                            \
    Attribute table[MAX_ATTRIBUTES];                                                           \
    const size_t count = attributes_of(RUNS, table);                                           \
    TYPE object = nvte_create_fused_attn_##NAME();                                             \
    EXPECT_OK();                                                                               \
    for (size_t i = 0; i < count; i++) {                                                       \
      ENUM attr = (ENUM)i;                                                                     \
      size_t size = attribute_size(table[i]), written = 0;                                     \
      uint64_t value = 0, guarded[2] = {0x5555555555555555u, 0x5555555555555555u};             \
      nvte_get_fused_attn_##NAME##_attribute(object, attr, &value, size, &written);            \
      EXPECT_OK();                                                                             \
      CHECK(written == size && value == table[i].value, "attribute %zu: %zu bytes, 0x%llx", i, \
            written, (unsigned long long)value);                                               \
      nvte_get_fused_attn_##NAME##_attribute(object, attr, guarded, sizeof guarded, NULL);     \
      unsigned char byte = ((unsigned char *)guarded)[size];                                   \
      CHECK(byte == 0x55, "attribute %zu wrote past its size", i);                             \
      nvte_get_fused_attn_##NAME##_attribute(NULL, attr, NULL, 0, &written);                   \
      EXPECT_OK();                                                                             \
      uint64_t set = table[i].kind == 'f' ? 0x40 : 0x1122334455667788u;                        \
      nvte_set_fused_attn_##NAME##_attribute(object, attr, &set, size);                        \
      value = 0;                                                                               \
      nvte_get_fused_attn_##NAME##_attribute(object, attr, &value, 8, NULL);                   \
      uint64_t got = table[i].kind == 'f' ? 1 : table[i].kind == 'i' ? (uint32_t)set : set;    \
      CHECK(value == got, "attribute %zu: 0x%llx", i, (unsigned long long)value);              \
      EXPECT_OK();                                                                             \
      nvte_get_fused_attn_##NAME##_attribute(object, attr, &value, size - 1, NULL);            \
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "size_in_bytes", "expected", "got");                \
      nvte_set_fused_attn_##NAME##_attribute(object, attr, &value, size - 1);                  \
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "size_in_bytes", "expected", "got");                \
      nvte_set_fused_attn_##NAME##_attribute(object, attr, NULL, 8);                           \
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "buf", "expected", "got");                          \
      nvte_set_fused_attn_##NAME##_attribute(NULL, attr, &value, 8);                           \
      EXPECT_ERROR(ANY_ERROR, "nvte_set_fused_attn_" #NAME "_attribute");                      \
    }                                                                                          \
    uint64_t value = 0;                                                                        \
    const int wrong[] = {-1, (int)count, 1000};                                                \
    for (size_t i = 0; i < COUNT(wrong); i++) {                                                \
      nvte_get_fused_attn_##NAME##_attribute(object, (ENUM)wrong[i], &value, 8, NULL);         \
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "attr", "expected", "got");                         \
      nvte_set_fused_attn_##NAME##_attribute(object, (ENUM)wrong[i], &value, 8);               \
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "attr", "expected", "got");                         \
    }                                                                                          \
    nvte_destroy_fused_attn_##NAME(object);                                                    \
    EXPECT_OK();                                                                               \
    nvte_destroy_fused_attn_##NAME(object);                                                    \
    EXPECT_ERROR(ANY_ERROR, "nvte_destroy_fused_attn_" #NAME);                                 \
    nvte_destroy_fused_attn_##NAME(NULL);                                                      \
    EXPECT_ERROR(ANY_ERROR, "nvte_destroy_fused_attn_" #NAME);                                 \
  }

OBJECT_TEST(config, NVTEFusedAttnConfig, NVTEFusedAttnConfigAttribute, config_attributes)
OBJECT_TEST(fwd_params, NVTEFusedAttnFwdParams, NVTEFusedAttnFwdParamsAttribute, fwd_attributes)
OBJECT_TEST(bwd_params, NVTEFusedAttnBwdParams, NVTEFusedAttnBwdParamsAttribute, bwd_attributes)

// ---- Random generators

static void test_seeds(void) {
  if (!case_begin("seeds")) return;
  int64_t seed = 0x123456789ABCDEF, offset = 1000, got[2];
  Buffer *state = buffer(16), *at_seed = buffer_from(&seed, 8, 0);
  Buffer *at_offset = buffer_from(&offset, 8, 0);
  nvte_extract_seed_and_offset((int64_t *)(void *)state->ptr, 0, NULL, 77, NULL, 88, 5, NULL);
  EXPECT_OK();
  memcpy(got, buffer_read(state), sizeof got);
  CHECK(got[0] == 77 && got[1] == 88, "%lld and %lld", (long long)got[0], (long long)got[1]);
  nvte_extract_seed_and_offset((int64_t *)(void *)state->ptr, 1, (int64_t *)(void *)at_seed->ptr,
                               77, (int64_t *)(void *)at_offset->ptr, 88, 5, NULL);
  EXPECT_OK();
  memcpy(got, buffer_read(state), sizeof got);
  CHECK(got[0] == seed && got[1] == offset + 5, "%lld and %lld", (long long)got[0],
        (long long)got[1]);
  // The first calls of this thread: 0, then 16 on, then 33 = ceil(130 * 32 / 128) on.
  const int64_t offsets[] = {0, 16, 49};
  const NVTE_Fused_Attn_Backend backends[] = {NVTE_F16_arbitrary_seqlen, NVTE_FP8, NVTE_FP8};
  for (size_t i = 0; i < COUNT(offsets); i++) {
    nvte_populate_rng_state_async(state->ptr, at_seed->ptr, 130, 32, backends[i], NULL);
    EXPECT_OK();
    memcpy(got, buffer_read(state), sizeof got);
    CHECK(got[0] == seed && got[1] == offsets[i], "call %zu: offset %lld", i, (long long)got[1]);
  }
  nvte_populate_rng_state_async(NULL, at_seed->ptr, 1, 1, NVTE_FP8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_populate_rng_state_async: rng_state_dst");
  nvte_populate_rng_state_async(state->ptr, NULL, 1, 1, NVTE_FP8, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_populate_rng_state_async: seed");
  nvte_extract_seed_and_offset(NULL, 0, NULL, 0, NULL, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_extract_seed_and_offset: rng_state_ptr");
  nvte_extract_seed_and_offset((int64_t *)(void *)state->ptr, 1, NULL, 0, NULL, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_extract_seed_and_offset: seed_ptr");
}

static void test_segments(void) {
  if (!case_begin("segments")) return;
  const int32_t cu[] = {0, 3, 0, 7, -1, 9};
  Buffer *b = buffer_from(cu, sizeof cu, 0), *workspace = buffer(4);
  for (size_t len = 0; len <= COUNT(cu); len++) {
    uint32_t expected = 0;
    for (size_t i = 0; i < len; i++) expected += cu[i] > 0;
    CHECK_EQ(nvte_get_runtime_num_segments(b->ptr, workspace->ptr, len, NULL), expected);
    EXPECT_OK();
  }
  nvte_get_runtime_num_segments(NULL, workspace->ptr, 3, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_runtime_num_segments: cu_seqlens");
}

// ---- Packed sequences

enum { HEADS = 3, DIM = 8, WIDTH = HEADS * DIM, SEQUENCES = 4 };
// Tokens of the sequences: multiples of 8, one of them empty.
static const int32_t cu_host[SEQUENCES + 1] = {0, 8, 8, 32, 48};
enum { TOKENS = 48 };

static NVTETensor integers(const int32_t *values, size_t n) {
  return tensor(buffer_from(values, 4 * n, 0)->ptr, kNVTEInt32, SHAPE(n));
}

static int sequence_of(int token) {
  int s = 0;
  while (cu_host[s + 1] <= token) s++;
  return s;
}

// Rows of random bits of a dtype.
static void *random_rows(NVTEDType dtype, size_t rows) {
  unsigned char *p = host_memory(rows * WIDTH * dtype_size(dtype));
  for (size_t i = 0; i < rows * WIDTH * dtype_size(dtype); i++) p[i] = (unsigned char)random_u64();
  return p;
}

static void test_read_half(NVTEDType dtype, bool two, size_t shift) {
  size_t outer = two ? 2 : 1, row = WIDTH * dtype_size(dtype);
  for (int half = 0; half < 2; half++) {
    if (!case_begin("half %d of %s, two %d, shift %zu", half, dtype_name(dtype), two, shift))
      continue;
    unsigned char *x = random_rows(dtype, outer * TOKENS);
    Buffer *in = buffer_from(x, outer * TOKENS * row, shift);
    Buffer *out = buffer_shifted(outer * TOKENS / 2 * row, shift);
    NVTETensor t =
        tensor(in->ptr, dtype, two ? SHAPE(2, TOKENS, HEADS, DIM) : SHAPE(TOKENS, HEADS, DIM));
    NVTETensor h = tensor(out->ptr, dtype,
                          two ? SHAPE(2, TOKENS / 2, HEADS, DIM) : SHAPE(TOKENS / 2, HEADS, DIM));
    NVTETensor cu = integers(cu_host, SEQUENCES + 1);
    nvte_cp_thd_read_half_tensor(&t, &cu, h, half, NULL);
    EXPECT_OK();
    const unsigned char *got = buffer_read(out);
    for (size_t o = 0; o < outer; o++) {
      size_t to = 0;
      for (int s = 0; s < SEQUENCES; s++) {
        int length = cu_host[s + 1] - cu_host[s];
        for (int r = 0; r < length / 2; r++, to++) {
          size_t from = o * TOKENS + (size_t)(cu_host[s] + half * length / 2 + r);
          CHECK(memcmp(got + (o * TOKENS / 2 + to) * row, x + from * row, row) == 0, "row %zu", to);
        }
      }
    }
  }
}

// The tokens of a rank in order: of each sequence chunk `rank` and the one as far from the end.
static size_t tokens_of_rank(int world, int rank, int *tokens) {
  size_t n = 0;
  for (int s = 0; s < SEQUENCES; s++) {
    int chunk = (cu_host[s + 1] - cu_host[s]) / (2 * world);
    const int chunks[] = {rank, 2 * world - 1 - rank};
    for (int c = 0; c < 2; c++) {
      for (int r = 0; r < chunk; r++) tokens[n++] = cu_host[s] + chunks[c] * chunk + r;
    }
  }
  return n;
}

static void test_ranks(int world, size_t row) {
  if (!case_begin("world %d, rows of %zu bytes", world, row)) return;
  NVTETensor cu = integers(cu_host, SEQUENCES + 1);
  int tokens[TOKENS], all[TOKENS];
  size_t n = 0;
  for (int rank = 0; rank < world; rank++) {
    size_t count = tokens_of_rank(world, rank, tokens);
    memcpy(all + n, tokens, count * sizeof *tokens);
    n += count;
    Buffer *indices = buffer(4 * count);
    NVTETensor output = tensor(indices->ptr, kNVTEInt32, SHAPE(count));
    nvte_cp_thd_get_partitioned_indices(&cu, output, TOKENS, world, rank, NULL);
    EXPECT_OK();
    CHECK(memcmp(buffer_read(indices), tokens, 4 * count) == 0, "indices of rank %d", rank);
  }
  unsigned char *x = host_memory(TOKENS * row);
  for (size_t i = 0; i < TOKENS * row; i++) x[i] = (unsigned char)random_u64();
  Buffer *in = buffer_from(x, TOKENS * row, 0), *there = buffer(TOKENS * row);
  Buffer *back = buffer(TOKENS * row);
  NVTETensor a = tensor(in->ptr, kNVTEByte, SHAPE(TOKENS, row));
  NVTETensor b = tensor(there->ptr, kNVTEByte, SHAPE(TOKENS, row));
  NVTETensor c = tensor(back->ptr, kNVTEByte, SHAPE(TOKENS, row));
  nvte_thd_sequence_order_to_cp_rank_order(&a, &cu, b, world, TOKENS, NULL);
  nvte_thd_cp_rank_order_to_sequence_order(&b, &cu, c, world, TOKENS, NULL);
  EXPECT_OK();
  const unsigned char *got = buffer_read(there);
  for (size_t i = 0; i < TOKENS; i++) {
    CHECK(memcmp(got + i * row, x + (size_t)all[i] * row, row) == 0, "row %zu by rank", i);
  }
  CHECK(memcmp(buffer_read(back), x, TOKENS * row) == 0, "not the inverse");
}

static void test_valid(void) {
  if (!case_begin("valid tokens")) return;
  // Slots of 4, 0, 6 and 3 tokens from token 2 on, of which 2, 0, 6 and 1 are no padding.
  const int32_t padded[] = {2, 6, 6, 12, 15}, valid[] = {0, 2, 2, 8, 9};
  enum { N = 17 };
  unsigned char *x = random_rows(kNVTEFloat32, N);
  size_t row = WIDTH * 4;
  Buffer *in = buffer_from(x, N * row, 0), *out = buffer(N * row);
  NVTETensor a = tensor(in->ptr, kNVTEFloat32, SHAPE(N, HEADS, DIM));
  NVTETensor b = tensor(out->ptr, kNVTEFloat32, SHAPE(N, HEADS, DIM));
  NVTETensor cu_padded = integers(padded, 5), cu = integers(valid, 5);
  nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(&a, &cu_padded, &cu, b, N, NULL);
  EXPECT_OK();
  const int copied[] = {2, 3, 6, 7, 8, 9, 10, 11, 12};
  const unsigned char *got = buffer_read(out);
  for (size_t i = 0, k = 0; i < N; i++) {
    bool is = k < COUNT(copied) && copied[k] == (int)i;
    k += is;
    for (size_t j = 0; j < row; j++) {
      if (!CHECK(got[i * row + j] == (is ? x[i * row + j] : POISON_VALUE), "row %zu", i)) break;
    }
  }
}

static void test_lse(bool packed, bool correct) {
  if (!case_begin("log-sum-exp, packed %d, correct %d", packed, correct)) return;
  enum { LONGEST = 24 };
  size_t lse_rows = packed ? HEADS : SEQUENCES * HEADS, lse_len = packed ? TOKENS : LONGEST;
  size_t step_len = packed ? TOKENS / 2 + 5 : LONGEST / 2;
  size_t n = lse_rows * lse_len, m = lse_rows * step_len;
  float *lse = random_values(kNVTEFloat32, n, -20, 20),
        *step = random_values(kNVTEFloat32, m, -20, 20);
  lse[n / 2] = -INFINITY;
  step[m / 2] = -INFINITY;
  for (size_t i = 0; i < n; i += 7) lse[i] = -INFINITY;
  for (size_t i = 0; i < m; i += 5) step[i] = -INFINITY;
  Buffer *a = buffer_from(lse, 4 * n, 0), *b = buffer_from(step, 4 * m, 0);
  NVTETensor lse_tensor = tensor(a->ptr, kNVTEFloat32,
                                 packed ? SHAPE(HEADS, TOKENS) : SHAPE(SEQUENCES, HEADS, LONGEST));
  NVTETensor step_tensor = tensor(
      b->ptr, kNVTEFloat32, packed ? SHAPE(HEADS, step_len) : SHAPE(SEQUENCES, HEADS, step_len));
  NVTETensor cu = integers(cu_host, SEQUENCES + 1);
  if (correct) {
    nvte_cp_thd_second_half_lse_correction(lse_tensor, &step_tensor, &cu, packed, NULL);
  } else {
    nvte_cp_thd_read_second_half_lse(&lse_tensor, &cu, step_tensor, packed, (int)step_len, NULL);
  }
  EXPECT_OK();
  float *want_lse = host_memory(4 * n), *want_step = host_memory(4 * m);
  memcpy(want_lse, lse, 4 * n);
  memcpy(want_step, step, 4 * m);
  for (size_t head = 0; head < HEADS; head++) {
    size_t t = 0;
    for (size_t s = 0; s < SEQUENCES; s++) {
      size_t half = (size_t)(cu_host[s + 1] - cu_host[s]) / 2;
      for (size_t r = 0; r < half; r++, t++) {
        size_t at = packed ? head * lse_len + (size_t)cu_host[s] + half + r
                           : (s * HEADS + head) * lse_len + half + r;
        size_t in = packed ? head * step_len + t : (s * HEADS + head) * step_len + r;
        double x = lse[at], y = step[in];
        if (correct) {
          double most = x > y ? x : y;
          want_lse[at] =
              isinf(most) ? -INFINITY : (float)(most + log(exp(x - most) + exp(y - most)));
        } else {
          want_step[in] = lse[at];
        }
      }
    }
  }
  const float *got_lse = buffer_read(a), *got_step = buffer_read(b);
  for (size_t i = 0; i < n; i++) {
    bool close = same_float(got_lse[i], want_lse[i]) ||
                 fabsf(got_lse[i] - want_lse[i]) <= 1e-6f * (1 + fabsf(want_lse[i]));
    CHECK(close, "lse[%zu] is %g, not %g", i, (double)got_lse[i], (double)want_lse[i]);
  }
  CHECK(memcmp(got_step, want_step, 4 * m) == 0, "step");
}

static void test_out_correction(NVTEDType dtype, bool half, bool packed) {
  if (!case_begin("out correction %s, half %d, packed %d", dtype_name(dtype), half, packed)) return;
  enum { LONGEST = 24 };
  size_t tokens = half ? TOKENS / 2 : TOKENS, n = TOKENS * WIDTH, m = tokens * WIDTH;
  size_t rows = packed ? HEADS : SEQUENCES * HEADS, len = packed ? TOKENS : LONGEST;
  size_t step_len = half ? len / 2 : len;
  void *out = random_values(dtype, n, -2, 2), *step = random_values(dtype, m, -2, 2);
  float *old = random_values(kNVTEFloat32, rows * len, -3, 3);
  float *lse = random_values(kNVTEFloat32, rows * len, -3, 3);
  float *step_lse = random_values(kNVTEFloat32, rows * step_len, -3, 3);
  for (size_t i = 0; i < n; i += 11) put_value(dtype, out, i, 0);
  // In a row without keys -inf is added to -inf.
  for (size_t i = 0; i < rows * len; i += 13) old[i] = -INFINITY;
  Buffer *b[] = {buffer_from(out, n * dtype_size(dtype), 0),
                 buffer_from(step, m * dtype_size(dtype), 0), buffer_from(old, 4 * rows * len, 0),
                 buffer_from(lse, 4 * rows * len, 0),
                 buffer_from(step_lse, 4 * rows * step_len, 0)};
  NVTEShape long_shape = packed ? SHAPE(HEADS, TOKENS) : SHAPE(SEQUENCES, HEADS, LONGEST);
  NVTEShape step_shape = packed ? SHAPE(HEADS, step_len) : SHAPE(SEQUENCES, HEADS, step_len);
  NVTETensor out_t = tensor(b[0]->ptr, dtype, SHAPE(TOKENS, HEADS, DIM));
  NVTETensor step_t = tensor(b[1]->ptr, dtype, SHAPE(tokens, HEADS, DIM));
  NVTETensor old_t = tensor(b[2]->ptr, kNVTEFloat32, long_shape);
  NVTETensor lse_t = tensor(b[3]->ptr, kNVTEFloat32, long_shape);
  NVTETensor step_lse_t = tensor(b[4]->ptr, kNVTEFloat32, step_shape);
  NVTETensor cu = integers(cu_host, SEQUENCES + 1);
  nvte_cp_thd_out_correction(out_t, &step_t, &old_t, &lse_t, &step_lse_t, &cu, half, packed, NULL);
  EXPECT_OK();
  const void *got = buffer_read(b[0]);
  size_t taken = 0;
  for (size_t token = 0; token < TOKENS; token++) {
    size_t s = (size_t)sequence_of((int)token), r = token - (size_t)cu_host[s];
    size_t halfway = (size_t)(cu_host[s + 1] - cu_host[s]) / 2;
    bool changes = !half || r >= halfway;
    size_t in_step = half ? taken : token;
    for (size_t i = 0; i < WIDTH; i++) {
      size_t head = i / DIM, at = token * WIDTH + i;
      double x = get_value(dtype, out, at), want = x, size = 0;
      if (changes) {
        size_t l = packed ? head * len + token : (s * HEADS + head) * len + r;
        size_t k = packed ? head * step_len + in_step
                          : (s * HEADS + head) * step_len + (half ? r - halfway : r);
        double y = get_value(dtype, step, in_step * WIDTH + i);
        double from_old = x == 0 ? 0 : x * exp((double)old[l] - lse[l]);
        double from_step = y == 0 ? 0 : y * exp((double)step_lse[k] - lse[l]);
        want = from_old + from_step;
        size = fabs(from_old) + fabs(from_step);
      }
      double error = fabs(get_value(dtype, got, at) - want);
      double tolerance = changes ? (dtype == kNVTEFloat32   ? 1e-5
                                    : dtype == kNVTEFloat16 ? 1e-3
                                                            : 8e-3)
                                 : 0;
      CHECK(error <= tolerance * (size + 1e-3), "out[%zu]: %g, not %g", at,
            get_value(dtype, got, at), want);
    }
    taken += changes;
  }
}

static void test_grad_correction(NVTEDType dtype, const char *first, const char *second, bool two) {
  if (!case_begin("gradient %s, %s and %s, two %d", dtype_name(dtype), first, second, two)) return;
  const char *const ops[] = {first, second};
  bool full = strcmp(first, "none") && strcmp(first, "zero") && strcmp(second, "none") &&
              strcmp(second, "zero");
  size_t outer = two ? 2 : 1, step_tokens = full ? TOKENS : TOKENS / 2;
  size_t n = outer * TOKENS * WIDTH, m = outer * step_tokens * WIDTH;
  // Bytes are only moved.
  bool floats = dtype != kNVTEByte;
  void *grad = floats ? random_values(dtype, n, -2, 2) : random_rows(dtype, n / WIDTH);
  void *step = floats ? random_values(dtype, m, -2, 2) : random_rows(dtype, m / WIDTH);
  Buffer *a = buffer_from(grad, n * dtype_size(dtype), 0);
  Buffer *b = buffer_from(step, m * dtype_size(dtype), 0);
  NVTETensor grad_t =
      tensor(a->ptr, dtype, two ? SHAPE(2, TOKENS, HEADS, DIM) : SHAPE(TOKENS, HEADS, DIM));
  NVTETensor step_t = tensor(
      b->ptr, dtype, two ? SHAPE(2, step_tokens, HEADS, DIM) : SHAPE(step_tokens, HEADS, DIM));
  NVTETensor cu = integers(cu_host, SEQUENCES + 1);
  nvte_cp_thd_grad_correction(grad_t, &step_t, &cu, first, second, NULL);
  EXPECT_OK();
  const void *got = buffer_read(a);
  for (size_t o = 0; o < outer; o++) {
    size_t taken[2] = {0, 0};
    for (size_t token = 0; token < TOKENS; token++) {
      size_t s = (size_t)sequence_of((int)token), r = token - (size_t)cu_host[s];
      int part = r >= (size_t)(cu_host[s + 1] - cu_host[s]) / 2;
      size_t row = full ? token : taken[part]++;
      for (size_t i = 0; i < WIDTH; i++) {
        size_t at = (o * TOKENS + token) * WIDTH + i, in = (o * step_tokens + row) * WIDTH + i;
        uint32_t want = get_bits(dtype, grad, at);
        if (!strcmp(ops[part], "zero")) want = 0;
        if (!strcmp(ops[part], "copy")) want = get_bits(dtype, step, in);
        if (!strcmp(ops[part], "add")) {
          float sum = (float)get_value(dtype, grad, at) + (float)get_value(dtype, step, in);
          want = encode_bits(dtype, sum);
        }
        CHECK(get_bits(dtype, got, at) == want, "token %zu of %zu, element %zu", token, o, i);
      }
    }
  }
}

static void test_convert(NVTEDType dtype, size_t shift) {
  if (!case_begin("packed and padded %s, shift %zu", dtype_name(dtype), shift)) return;
  enum { LONGEST = 24 };
  size_t row = WIDTH * dtype_size(dtype);
  unsigned char *x = random_rows(dtype, TOKENS);
  Buffer *in = buffer_from(x, TOKENS * row, shift);
  Buffer *wide = buffer_shifted(SEQUENCES * LONGEST * row, shift);
  Buffer *back = buffer_shifted(TOKENS * row, shift);
  NVTETensor packed = tensor(in->ptr, dtype, SHAPE(TOKENS, HEADS, DIM));
  NVTETensor padded = tensor(wide->ptr, dtype, SHAPE(SEQUENCES, LONGEST, HEADS, DIM));
  NVTETensor again = tensor(back->ptr, dtype, SHAPE(TOKENS, HEADS, DIM));
  NVTETensor cu = integers(cu_host, SEQUENCES + 1);
  nvte_convert_thd_to_bshd(packed, cu, padded, SEQUENCES, LONGEST, NULL);
  nvte_convert_bshd_to_thd(padded, cu, again, TOKENS, NULL);
  EXPECT_OK();
  const unsigned char *got = buffer_read(wide);
  for (int s = 0; s < SEQUENCES; s++) {
    for (int r = 0; r < LONGEST; r++) {
      bool is = r < cu_host[s + 1] - cu_host[s];
      for (size_t j = 0; j < row; j++) {
        unsigned char want = is ? x[(size_t)(cu_host[s] + r) * row + j] : POISON_VALUE;
        if (!CHECK(got[(size_t)(s * LONGEST + r) * row + j] == want, "%d, %d", s, r)) break;
      }
    }
  }
  CHECK(memcmp(buffer_read(back), x, TOKENS * row) == 0, "not the inverse");
}

// ---- Caches

static void test_cache(NVTE_QKV_Format format, bool paged) {
  if (!case_begin("cache, format %d, paged %d", (int)format, paged)) return;
  enum { B = 3, CONTEXT = 4, PAGE = 4, PAGES = 3, LONGEST = PAGE * PAGES, SLOTS = B * PAGES };
  const int fresh[B] = {1, 4, 0}, total[B] = {6, 12, 3};
  int32_t cu_new[B + 1] = {0}, cu_cached[B + 1] = {0}, table[SLOTS];
  for (int i = 0; i < B; i++) {
    cu_new[i + 1] = cu_new[i] + fresh[i];
    cu_cached[i + 1] = cu_cached[i] + total[i];
  }
  // Pages in disorder, or old slots 0, 2 and 4 of five.
  for (int i = 0; i < SLOTS; i++) table[i] = paged ? (i * 4 + 3) % SLOTS : 0;
  if (!paged) table[1] = 2, table[2] = 4;
  size_t pages = paged ? SLOTS : 5, page = paged ? PAGE : LONGEST;
  size_t dims[2] = {DIM, 5};  // keys and values differ
  Buffer *news[2], *caches[2];
  unsigned char *new_host[2], *cache_host[2];
  NVTETensor new_t[2], cache_t[2];
  size_t rows = format == NVTE_THD ? (size_t)cu_new[B] : B * CONTEXT;
  for (int i = 0; i < 2; i++) {
    size_t row = HEADS * dims[i] * 2;
    new_host[i] = host_memory(rows * row);
    cache_host[i] = host_memory(pages * page * row);
    for (size_t j = 0; j < rows * row; j++) new_host[i][j] = (unsigned char)random_u64();
    for (size_t j = 0; j < pages * page * row; j++) cache_host[i][j] = (unsigned char)random_u64();
    news[i] = buffer_from(new_host[i], rows * row, 0);
    caches[i] = buffer_from(cache_host[i], pages * page * row, 0);
    NVTEShape shape = format == NVTE_BSHD   ? SHAPE(B, CONTEXT, HEADS, dims[i])
                      : format == NVTE_SBHD ? SHAPE(CONTEXT, B, HEADS, dims[i])
                                            : SHAPE(rows, HEADS, dims[i]);
    new_t[i] = tensor(news[i]->ptr, kNVTEFloat16, shape);
    cache_t[i] = tensor(caches[i]->ptr, kNVTEFloat16, SHAPE(pages, page, HEADS, dims[i]));
  }
  NVTETensor table_t = integers(table, paged ? SLOTS : B);
  nvte_copy_to_kv_cache(new_t[0], new_t[1], cache_t[0], cache_t[1], table_t,
                        integers(cu_new, B + 1), integers(cu_cached, B + 1), format, B,
                        format == NVTE_THD ? 1 : CONTEXT, LONGEST, paged ? PAGES : 1, !paged, NULL);
  EXPECT_OK();
  for (int c = 0; c < 2; c++) {
    size_t row = HEADS * dims[c] * 2;
    unsigned char *want = cache_host[c];
    for (int i = 0; !paged && i < B; i++) {
      memmove(want + (size_t)i * page * row, want + (size_t)table[i] * page * row,
              (size_t)(total[i] - fresh[i]) * row);
    }
    for (int i = 0; i < B; i++) {
      for (int n = 0; n < fresh[i]; n++) {
        int position = total[i] - fresh[i] + n;
        size_t slot = paged ? (size_t)table[i * PAGES + position / PAGE] : (size_t)i;
        size_t from = format == NVTE_BSHD   ? (size_t)(i * CONTEXT + n)
                      : format == NVTE_SBHD ? (size_t)(n * B + i)
                                            : (size_t)(cu_new[i] + n);
        memcpy(want + (slot * page + (size_t)position % page) * row, new_host[c] + from * row, row);
      }
    }
    CHECK(memcmp(buffer_read(caches[c]), want, pages * page * row) == 0, "cache %d", c);
  }
}

// ---- Orders

static void test_flash(NVTEDType dtype, size_t dim) {
  if (!case_begin("flash %s, dim %zu", dtype_name(dtype), dim)) return;
  enum { S = 5, B = 3, N = 2 };
  size_t n = S * B * N * dim, row = dim * 2;
  unsigned char *x = host_memory(3 * n * 2);
  for (size_t i = 0; i < 3 * n * 2; i++) x[i] = (unsigned char)random_u64();
  Buffer *mixed = buffer_from(x, 3 * n * 2, 0), *apart = buffer(3 * n * 2),
         *back = buffer(3 * n * 2);
  NVTETensor qkvi = tensor(mixed->ptr, dtype, SHAPE(S, B, N, dim));
  NVTETensor qkv = tensor(apart->ptr, dtype, SHAPE(3, B, S, N, dim));
  nvte_prepare_flash_attn_fwd(qkvi, qkv, NULL);
  EXPECT_OK();
  const unsigned char *got = buffer_read(apart);
  for (size_t s = 0; s < S; s++) {
    for (size_t b = 0; b < B; b++) {
      for (size_t h = 0; h < N; h++) {
        for (size_t c = 0; c < 3; c++) {
          size_t from = ((s * B + b) * N + h) * 3 + c, to = ((c * B + b) * S + s) * N + h;
          CHECK(memcmp(got + to * row, x + from * row, row) == 0, "row %zu", to);
        }
      }
    }
  }
  NVTETensor parts[3];
  for (size_t c = 0; c < 3; c++)
    parts[c] = tensor(apart->ptr + c * n * 2, dtype, SHAPE(B, S, N, dim));
  NVTETensor again = tensor(back->ptr, dtype, SHAPE(S, B, N, 3 * dim));
  nvte_prepare_flash_attn_bwd(parts[0], parts[1], parts[2], again, NULL);
  EXPECT_OK();
  CHECK(memcmp(buffer_read(back), x, 3 * n * 2) == 0, "not the inverse");
}

static void test_transpose(NVTE_QKV_Format format, NVTEDType dtype, size_t dim, size_t wide) {
  if (!case_begin("to bhsd, format %d, %s, %zu to %zu", (int)format, dtype_name(dtype), dim, wide))
    return;
  enum { B = 2, TENSORS = 40 };
  NVTETensor inputs[TENSORS], outputs[TENSORS];
  Buffer *out[TENSORS];
  unsigned char *x[TENSORS];
  size_t size = dtype_size(dtype);
  for (size_t t = 0; t < TENSORS; t++) {
    size_t s = t % 5, h = 1 + t % 3, n = B * s * h;
    x[t] = host_memory(n * dim * size);
    for (size_t i = 0; i < n * dim * size; i++) x[t][i] = (unsigned char)random_u64();
    Buffer *in = buffer_from(x[t], n * dim * size, 0);
    out[t] = buffer(n * wide * size);
    inputs[t] =
        tensor(in->ptr, dtype, format == NVTE_BSHD ? SHAPE(B, s, h, dim) : SHAPE(s, B, h, dim));
    outputs[t] = tensor(out[t]->ptr, dtype, SHAPE(B, h, s, wide));
  }
  nvte_multi_tensor_transpose_to_bhsd(inputs, outputs, TENSORS, format, NULL);
  EXPECT_OK();
  for (size_t t = 0; t < TENSORS; t++) {
    size_t seq = t % 5, heads = 1 + t % 3;
    const unsigned char *got = buffer_read(out[t]);
    for (size_t b = 0; b < B; b++) {
      for (size_t h = 0; h < heads; h++) {
        for (size_t s = 0; s < seq; s++) {
          size_t from = format == NVTE_BSHD ? (b * seq + s) * heads + h : (s * B + b) * heads + h;
          const unsigned char *row = got + ((b * heads + h) * seq + s) * wide * size;
          bool good = memcmp(row, x[t] + from * dim * size, dim * size) == 0;
          for (size_t i = dim * size; i < wide * size; i++) good = good && row[i] == 0;
          CHECK(good, "tensor %zu, row %zu, %zu, %zu", t, b, h, s);
        }
      }
    }
  }
}

static void test_pad(NVTEDType dtype, size_t cols, size_t wide) {
  if (!case_begin("pad %s from %zu to %zu", dtype_name(dtype), cols, wide)) return;
  enum { TENSORS = 3 };
  const size_t rows[TENSORS] = {7, 0, 33};
  NVTETensor inputs[TENSORS], outputs[TENSORS];
  Buffer *out[TENSORS];
  unsigned char *x[TENSORS];
  size_t size = dtype_size(dtype);
  for (size_t t = 0; t < TENSORS; t++) {
    size_t n = rows[t] * cols * size;
    x[t] = host_memory(n);
    for (size_t i = 0; i < n; i++) x[t][i] = (unsigned char)random_u64();
    inputs[t] = tensor(buffer_from(x[t], n, size)->ptr, dtype, SHAPE(rows[t], cols));
    out[t] = buffer_shifted(rows[t] * wide * size, size);
    outputs[t] = tensor(out[t]->ptr, dtype, SHAPE(rows[t], wide));
  }
  nvte_multi_tensor_pad_last_dim(inputs, outputs, TENSORS, NULL);
  EXPECT_OK();
  for (size_t t = 0; t < TENSORS; t++) {
    const unsigned char *got = buffer_read(out[t]);
    for (size_t r = 0; r < rows[t]; r++) {
      const unsigned char *row = got + r * wide * size;
      bool good = memcmp(row, x[t] + r * cols * size, cols * size) == 0;
      for (size_t i = cols * size; i < wide * size; i++) good = good && row[i] == 0;
      CHECK(good, "tensor %zu, row %zu", t, r);
    }
  }
}

// ---- Wrong arguments

static void test_refused(void) {
  if (!case_begin("refused")) return;
  Buffer *b = buffer(4 * TOKENS * WIDTH), *c = buffer(4 * TOKENS * WIDTH);
  NVTETensor t = tensor(b->ptr, kNVTEFloat32, SHAPE(TOKENS, HEADS, DIM));
  NVTETensor half = tensor(c->ptr, kNVTEFloat32, SHAPE(TOKENS / 2, HEADS, DIM));
  NVTETensor same = tensor(c->ptr, kNVTEFloat32, SHAPE(TOKENS, HEADS, DIM));
  NVTETensor f16 = tensor(c->ptr, kNVTEFloat16, SHAPE(TOKENS / 2, HEADS, DIM));
  NVTETensor cu = integers(cu_host, SEQUENCES + 1), wrong_cu = float_tensor(buffer(20));
  NVTETensor nothing = empty_tensor();
  const char *name = "nvte_cp_thd_read_half_tensor";
  nvte_cp_thd_read_half_tensor(NULL, &cu, half, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": tensor", "expected", "got");
  nvte_cp_thd_read_half_tensor(&nothing, &cu, half, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": tensor.data", "expected", "got");
  nvte_cp_thd_read_half_tensor(&t, &wrong_cu, half, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": cu_seqlens.dtype", "Int32", "Float32");
  nvte_cp_thd_read_half_tensor(&t, &cu, f16, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": half.dtype", "Float32", "Float16");
  nvte_cp_thd_read_half_tensor(&t, &cu, same, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": half.shape", "[24, 3, 8]", "[48, 3, 8]");
  nvte_cp_thd_read_half_tensor(&t, &cu, half, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": half_idx", "0 or 1", "2");
  name = "nvte_cp_thd_grad_correction";
  nvte_cp_thd_grad_correction(t, &half, &cu, "add", "zero", NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "first_half and second_half", "expected");
  nvte_cp_thd_grad_correction(t, &half, &cu, "plus", "none", NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": first_half", "plus");
  nvte_cp_thd_grad_correction(t, &half, &cu, "add", NULL, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": second_half", "null");
  nvte_cp_thd_grad_correction(t, &half, &cu, "add", "copy", NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": grad_per_step.shape");
  name = "nvte_cp_thd_get_partitioned_indices";
  NVTETensor indices = tensor(c->ptr, kNVTEInt32, SHAPE(TOKENS / 2));
  nvte_cp_thd_get_partitioned_indices(&cu, indices, TOKENS + 2, 2, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": total_tokens", "a multiple of");
  nvte_cp_thd_get_partitioned_indices(&cu, indices, TOKENS, 2, 2, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": rank", "from 0 to 1", "2");
  nvte_cp_thd_get_partitioned_indices(&cu, indices, TOKENS, 0, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": world_size");
  nvte_thd_sequence_order_to_cp_rank_order(&t, &cu, half, 2, TOKENS, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_thd_sequence_order_to_cp_rank_order: out.shape");
  nvte_convert_thd_to_bshd(t, cu, same, SEQUENCES, 24, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_convert_thd_to_bshd: new_tensor.shape");
  nvte_convert_bshd_to_thd(t, cu, same, TOKENS, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_convert_bshd_to_thd: tensor.shape");
  nvte_prepare_flash_attn_fwd(t, same, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_prepare_flash_attn_fwd: qkvi.dtype");
  // Outputs that lie in the memory of their inputs.
  NVTETensor inside = tensor(b->ptr, kNVTEFloat32, SHAPE(TOKENS / 2, HEADS, DIM));
  nvte_cp_thd_read_half_tensor(&t, &cu, inside, 0, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "half: expected memory apart from tensor");
  nvte_thd_sequence_order_to_cp_rank_order(&t, &cu, t, 2, TOKENS, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "out: expected memory apart from inp");
  nvte_cp_thd_grad_correction(t, &t, &cu, "add", "copy", NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "grad: expected memory apart from grad_per_step");
  NVTETensor lse = tensor(b->ptr, kNVTEFloat32, SHAPE(HEADS, TOKENS));
  nvte_cp_thd_second_half_lse_correction(lse, &lse, &cu, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "lse: expected memory apart from lse_per_step");
  nvte_cp_thd_out_correction(t, &same, &lse, &lse, &lse, &cu, 0, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "out: expected memory apart from old_lse");
  NVTETensor rows = tensor(b->ptr, kNVTEFloat32, SHAPE(SEQUENCES, 1, HEADS, DIM));
  nvte_convert_thd_to_bshd(t, cu, rows, SEQUENCES, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "new_tensor: expected memory apart from tensor");
  nvte_convert_bshd_to_thd(rows, cu, t, TOKENS, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "new_tensor: expected memory apart from tensor");
  NVTETensor queries = tensor(b->ptr, kNVTEFloat16, SHAPE(2, 2, 2, 32));
  NVTETensor parts = tensor((char *)b->ptr + 1024, kNVTEFloat16, SHAPE(3, 2, 2, 2, 32));
  nvte_prepare_flash_attn_fwd(queries, parts, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "qkv: expected memory apart from qkvi");
  nvte_prepare_flash_attn_bwd(queries, queries, queries, parts, NULL);
  EXPECT_OK();
  parts = tensor(b->ptr, kNVTEFloat16, SHAPE(3, 2, 2, 2, 32));
  nvte_prepare_flash_attn_bwd(queries, queries, queries, parts, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "qkv: expected memory apart from q (");
  name = "nvte_multi_tensor_pad_last_dim";
  NVTETensor narrow = tensor(c->ptr, kNVTEFloat32, SHAPE(4, 3)),
             wide = tensor(b->ptr, kNVTEFloat32, SHAPE(4, 8));
  nvte_multi_tensor_pad_last_dim(&wide, &narrow, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": outputs[0].shape", "[4, 8 or more]", "[4, 3]");
  nvte_multi_tensor_pad_last_dim(NULL, &narrow, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": inputs", "null");
  nvte_multi_tensor_pad_last_dim(NULL, NULL, 0, NULL);
  EXPECT_OK();
  nvte_multi_tensor_transpose_to_bhsd(&t, &same, 1, NVTE_THD, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_multi_tensor_transpose_to_bhsd: original_format");
  nvte_copy_to_kv_cache(nothing, t, t, t, cu, cu, cu, NVTE_BSHD, 4, 1, 1, 1, 1, NULL);
  EXPECT_OK();
  nvte_copy_to_kv_cache(t, t, t, t, cu, cu, cu, NVTE_BHSD, 4, 1, 1, 1, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_copy_to_kv_cache: qkv_format");
  CHECK(untouched(b) && untouched(c), "written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_layouts();
  test_config();
  test_fwd_params();
  test_bwd_params();
  test_seeds();
  test_segments();
  const NVTEDType dtypes[] = {kNVTEFloat32, kNVTEBFloat16, kNVTEFloat8E4M3};
  for (size_t i = 0; i < COUNT(dtypes); i++) {
    for (size_t shift = 0; shift < 2; shift++) {
      test_read_half(dtypes[i], false, shift * dtype_size(dtypes[i]));
      test_read_half(dtypes[i], true, shift * dtype_size(dtypes[i]));
      test_convert(dtypes[i], shift * dtype_size(dtypes[i]));
    }
  }
  for (int world = 1; world <= 4; world *= 2) {
    test_ranks(world, 64);
    test_ranks(world, 1000);
    test_ranks(world, 3);
  }
  test_valid();
  for (int kind = 0; kind < 4; kind++) {
    test_lse(kind & 1, kind & 2);
    test_out_correction(kNVTEFloat32, kind & 1, kind & 2);
    test_out_correction(kNVTEFloat16, kind & 1, kind & 2);
    test_out_correction(kNVTEBFloat16, kind & 1, kind & 2);
  }
  static const char *const modes[][2] = {{"add", "none"},  {"none", "add"},  {"copy", "none"},
                                         {"none", "copy"}, {"copy", "zero"}, {"zero", "copy"},
                                         {"add", "copy"},  {"copy", "add"}};
  for (size_t i = 0; i < COUNT(modes); i++) {
    for (int two = 0; two < 2; two++) {
      test_grad_correction(kNVTEFloat32, modes[i][0], modes[i][1], two);
      test_grad_correction(kNVTEBFloat16, modes[i][0], modes[i][1], two);
    }
  }
  test_grad_correction(kNVTEByte, "copy", "zero", false);
  test_grad_correction(kNVTEByte, "zero", "copy", true);
  const NVTE_QKV_Format formats[] = {NVTE_BSHD, NVTE_SBHD, NVTE_THD};
  for (size_t i = 0; i < COUNT(formats); i++) {
    test_cache(formats[i], false);
    test_cache(formats[i], true);
  }
  test_flash(kNVTEBFloat16, 128);
  test_flash(kNVTEFloat16, 40);
  for (int i = 0; i < 2; i++) {
    test_transpose(formats[i], kNVTEBFloat16, 64, 64);
    test_transpose(formats[i], kNVTEFloat8E4M3, 5, 16);
    test_transpose(formats[i], kNVTEInt64, 4, 6);
  }
  test_pad(kNVTEByte, 3, 8);
  test_pad(kNVTEFloat32, 16, 16);
  test_pad(kNVTEBFloat16, 64, 96);
  test_refused();
  return test_end();
}
