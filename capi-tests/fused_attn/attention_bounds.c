// Values that only the device knows (sums of lengths, page numbers, slots of caches, start
// positions): no access outside of the declared buffers, which the arena's guard bytes show. With
// NVTE_CHECK=device, in a process of its own because the environment is read once, the same calls
// are refused by name and write nothing. Also what attention refuses by values of the host, and
// keys and values that are not numbers.
#define _POSIX_C_SOURCE 200809L

#include <time.h>

#include "attention_common.h"
#include "child.h"
#include "nvte/fused_rope.h"

// ---- Outputs of a call, and what it must say

static Buffer *g_outputs[8];
static size_t g_output_count;

static NVTETensor floats(Buffer *b, NVTEShape shape) { return tensor(b->ptr, kNVTEFloat32, shape); }

static NVTETensor input(NVTEShape shape) {
  const void *values = random_values(kNVTEFloat32, numel(shape), -1, 1);
  return floats(buffer_from(values, numel(shape) * 4, 0), shape);
}

static Buffer *output_buffer(Buffer *b) { return g_outputs[g_output_count++] = b; }

static NVTETensor output(NVTEShape shape) {
  return floats(output_buffer(buffer(numel(shape) * 4)), shape);
}

// Checks a call that got a wrong value at `index` of the array `name`, or none if that is negative.
static void verdict(const char *name, int index, int64_t value) {
  nvtex_stream_synchronize(NULL);
  if (g_checked && index >= 0) {
    char where[64], got[32];
    snprintf(where, sizeof where, ": %s[%d]: ", name, index);
    snprintf(got, sizeof got, "got %lld", (long long)value);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, where, got);
    for (size_t i = 0; i < g_output_count; i++)
      CHECK(untouched(g_outputs[i]), "a refused call wrote output %zu", i);
  } else {
    EXPECT_OK();
  }
  g_output_count = 0;
}

// First tokens of two sequences and the end, of 8 tokens; the first that is wrong, if one is.
static const struct Sums {
  int values[3], wrong;
} kSums[] = {{{0, 4, 8}, -1},        {{0, 1000000, 8}, 1},
             {{-7, 4, 8}, 0},        {{8, 4, 0}, 1},
             {{0, 4, INT32_MAX}, 2}, {{INT32_MIN, INT32_MAX, 8}, 0},
             {{0, INT32_MIN, 8}, 1}, {{INT32_MAX, INT32_MAX, INT32_MAX}, 0}};

static void sums_verdict(const char *name, const struct Sums *sums) {
  verdict(name, sums->wrong, sums->wrong < 0 ? 0 : sums->values[sums->wrong]);
}

static const int kBadNumbers[] = {INT32_MIN, -1, 1000, INT32_MAX};

// ---- Helpers of packed sequences and of context parallelism

static const struct Helper {
  const char *name, *array;
} kHelpers[] = {{"packed to padded", "cu_seqlens"},
                {"padded to packed", "cu_seqlens"},
                {"second half", "cu_seqlens"},
                {"first half of a pair", "cu_seqlens"},
                {"add to a half", "cu_seqlens"},
                {"copy a half and clear the other", "cu_seqlens"},
                {"add and copy", "cu_seqlens"},
                {"correct logarithms", "cu_seqlens"},
                {"correct packed logarithms", "cu_seqlens"},
                {"read logarithms", "cu_seqlens"},
                {"read packed logarithms", "cu_seqlens"},
                {"correct outputs", "cu_seqlens"},
                {"correct outputs, packed logarithms", "cu_seqlens"},
                {"correct second halves of outputs", "cu_seqlens"},
                {"correct second halves, packed logarithms", "cu_seqlens"},
                {"indices of a rank", "cu_seqlens"},
                {"order by rank", "cu_seqlens"},
                {"order by sequence", "cu_seqlens"},
                {"valid tokens, wrong places", "cu_seqlens_padded"},
                {"valid tokens, wrong lengths", "cu_seqlens"},
                {"cache, wrong new lengths", "cu_new_lens"},
                {"cache, wrong lengths", "cu_cached_lens"},
                {"rotary embedding", "cu_seqlens"}};

static void correct_out(NVTETensor cu, bool second_half, bool packed) {
  NVTETensor step = input(SHAPE(second_half ? 4 : 8, 1, 4));
  NVTETensor lse = packed ? input(SHAPE(1, 8)) : input(SHAPE(2, 1, 4));
  size_t length = second_half ? 2 : 4;
  NVTETensor step_lse = packed ? input(SHAPE(1, 2 * length)) : input(SHAPE(2, 1, length));
  nvte_cp_thd_out_correction(output(SHAPE(8, 1, 4)), &step, &lse, &lse, &step_lse, &cu, second_half,
                             packed, NULL);
}

static void call_helper(size_t helper, NVTETensor cu) {
  NVTETensor all = input(SHAPE(8, 1, 4)), half = input(SHAPE(4, 1, 4)), pair, step;
  NVTETensor dense = input(SHAPE(2, 4, 1, 4)), good = ints(kSums[0].values, 3), cache;
  switch (helper) {
    case 0:
      nvte_convert_thd_to_bshd(all, cu, output(SHAPE(2, 4, 1, 4)), 2, 4, NULL);
      break;
    case 1:
      nvte_convert_bshd_to_thd(dense, cu, output(SHAPE(8, 1, 4)), 8, NULL);
      break;
    case 2:
      nvte_cp_thd_read_half_tensor(&all, &cu, output(SHAPE(4, 1, 4)), 1, NULL);
      break;
    case 3:
      pair = input(SHAPE(2, 8, 1, 4));
      nvte_cp_thd_read_half_tensor(&pair, &cu, output(SHAPE(2, 4, 1, 4)), 0, NULL);
      break;
    case 4:
      nvte_cp_thd_grad_correction(output(SHAPE(8, 1, 4)), &half, &cu, "add", "none", NULL);
      break;
    case 5:
      nvte_cp_thd_grad_correction(output(SHAPE(8, 1, 4)), &half, &cu, "zero", "copy", NULL);
      break;
    case 6:
      nvte_cp_thd_grad_correction(output(SHAPE(8, 1, 4)), &all, &cu, "add", "copy", NULL);
      break;
    case 7:
      step = input(SHAPE(2, 1, 2));
      nvte_cp_thd_second_half_lse_correction(output(SHAPE(2, 1, 4)), &step, &cu, 0, NULL);
      break;
    case 8:
      step = input(SHAPE(1, 4));
      nvte_cp_thd_second_half_lse_correction(output(SHAPE(1, 8)), &step, &cu, 1, NULL);
      break;
    case 9:
      step = input(SHAPE(2, 1, 4));
      nvte_cp_thd_read_second_half_lse(&step, &cu, output(SHAPE(2, 1, 2)), 0, 2, NULL);
      break;
    case 10:
      step = input(SHAPE(1, 8));
      nvte_cp_thd_read_second_half_lse(&step, &cu, output(SHAPE(1, 4)), 1, 4, NULL);
      break;
    case 11:
    case 12:
    case 13:
    case 14:
      correct_out(cu, helper >= 13, helper % 2 == 0);
      break;
    case 15:
      nvte_cp_thd_get_partitioned_indices(
          &cu, tensor(output_buffer(buffer(4 * 4))->ptr, kNVTEInt32, SHAPE(4)), 8, 2, 1, NULL);
      break;
    case 16:
      nvte_thd_sequence_order_to_cp_rank_order(&all, &cu, output(SHAPE(8, 1, 4)), 2, 8, NULL);
      break;
    case 17:
      nvte_thd_cp_rank_order_to_sequence_order(&all, &cu, output(SHAPE(8, 1, 4)), 2, 8, NULL);
      break;
    case 18:
    case 19:
      nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(&all, helper == 18 ? &cu : &good,
                                                              helper == 19 ? &cu : &good,
                                                              output(SHAPE(8, 1, 4)), 8, NULL);
      break;
    case 20:
    case 21:
      cache = output(SHAPE(2, 4, 1, 4));
      nvte_copy_to_kv_cache(dense, dense, cache, output(SHAPE(2, 4, 1, 4)),
                            ints((const int[]){1, 0}, 2), helper == 20 ? cu : good,
                            helper == 21 ? cu : good, NVTE_BSHD, 2, 4, 4, 1, 1, NULL);
      break;
    default:
      nvte_fused_rope_forward(all, cu, input(SHAPE(8, 1, 1, 4)), NULL, output(SHAPE(8, 1, 4)),
                              NVTE_THD, false, 1, 0, 8, 2, 1, 4, 4, 4, 0, 4, 1, NULL);
  }
}

static void test_helpers(void) {
  for (size_t h = 0; h < COUNT(kHelpers); h++) {
    for (size_t i = 0; i < COUNT(kSums); i++) {
      if (!case_begin("%s, sums %zu", kHelpers[h].name, i)) continue;
      call_helper(h, ints(kSums[i].values, 3));
      sums_verdict(kHelpers[h].array, &kSums[i]);
    }
  }
}

// ---- Caches

static void test_caches(void) {
  for (int paged = 0; paged < 2; paged++) {
    for (size_t i = 0; i < COUNT(kBadNumbers); i++) {
      if (!case_begin("cache, %s %d", paged ? "page" : "slot", kBadNumbers[i])) continue;
      NVTETensor rows = input(SHAPE(2, 4, 1, 4)), sums = ints(kSums[0].values, 3);
      NVTEShape shape = paged ? SHAPE(4, 2, 1, 4) : SHAPE(2, 4, 1, 4);
      NVTETensor k = output(shape), v = output(shape);
      const int table[] = {1, kBadNumbers[i], 2, 3};
      nvte_copy_to_kv_cache(rows, rows, k, v, ints(table, paged ? 4 : 2), sums, sums, NVTE_BSHD, 2,
                            4, 4, paged ? 2 : 1, !paged, NULL);
      verdict("page_table", 1, kBadNumbers[i]);
    }
  }
  if (!case_begin("a cache of fewer slots than sequences")) return;
  NVTETensor rows = input(SHAPE(2, 4, 1, 4)), k = output(SHAPE(1, 4, 1, 4));
  NVTETensor sums = ints(kSums[0].values, 3), table = ints((const int[]){0, 1}, 2);
  nvte_copy_to_kv_cache(rows, rows, k, k, table, sums, sums, NVTE_BSHD, 2, 4, 4, 1, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_copy_to_kv_cache: k_cache.shape", "2 (b) or more",
               "[1, 4, 1, 4]");
  CHECK(untouched(g_outputs[--g_output_count]), "written");
}

// ---- Rotary embedding of 6 positions of 2 sequences with angles of 8 positions

enum { POSITIONS = 6, ANGLES = 8, DIM = 8 };

static void rope(NVTETensor x, NVTETensor freqs, NVTETensor starts, NVTETensor y) {
  nvte_fused_rope_forward(x, NULL, freqs, starts, y, NVTE_SBHD, false, 1, 0, POSITIONS, 2, 1, DIM,
                          DIM, 2 * DIM, DIM, DIM, 1, NULL);
}

static void test_rope(void) {
  static const int starts[] = {2, INT32_MIN, -1, ANGLES, 1000, INT32_MAX};
  NVTEShape shape = SHAPE(POSITIONS, 2, 1, DIM), angles = SHAPE(ANGLES, 1, 1, DIM);
  for (size_t i = 0; i < COUNT(starts); i++) {
    int wrong = i == 0 ? -1 : 0;
    if (case_begin("start position %d", starts[i])) {
      float *x = random_values(kNVTEFloat32, numel(shape), -1, 1);
      float *freqs = random_values(kNVTEFloat32, numel(angles), -3, 3);
      NVTETensor start_positions = ints((const int[]){starts[i], 1}, 2);
      NVTETensor y = output(shape);
      const Buffer *result = g_outputs[0];
      rope(floats(buffer_from(x, numel(shape) * 4, 0), shape),
           floats(buffer_from(freqs, numel(angles) * 4, 0), angles), start_positions, y);
      verdict("start_positions", wrong, starts[i]);
      const float *got = buffer_read(result);
      // The other sequence must be right.
      for (int n = 0; (!g_checked || wrong < 0) && n < POSITIONS * DIM; n++) {
        int row = n / DIM, j = n % DIM, partner = (j + DIM / 2) % DIM;
        const float *head = x + (2 * row + 1) * DIM, *angle = freqs + (row + 1) * DIM;
        double sign = j < DIM / 2 ? -1 : 1;
        double want =
            head[j] * cos((double)angle[j]) + sign * head[partner] * sin((double)angle[j]);
        double y_j = got[(2 * row + 1) * DIM + j];
        CHECK(fabs(y_j - want) < 1e-5, "row %d, element %d: %g for %g", row, j, y_j, want);
      }
    }
    if (case_begin("start position %d, queries, keys and values", starts[i])) {
      NVTETensor qkv = input(SHAPE(POSITIONS, 2, 1, 3 * DIM));
      NVTETensor freqs = input(angles), start_positions = ints((const int[]){starts[i], 1}, 2);
      NVTETensor q = output(shape), k = output(shape), v = output(shape);
      nvte_fused_qkv_rope_forward(qkv, freqs, freqs, start_positions, q, k, v, NVTE_SBHD, false, 1,
                                  0, POSITIONS, 2, 1, DIM, DIM, DIM, DIM, DIM, NULL);
      verdict("start_positions", wrong, starts[i]);
    }
  }
  if (case_begin("no angles")) {
    NVTETensor none = floats(buffer(DIM * 4), SHAPE(0, 1, 1, DIM)), x = input(shape);
    NVTETensor start_positions = ints((const int[]){0, 0}, 2), y = output(shape);
    rope(x, none, start_positions, y);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_rope_forward: freqs.shape", "[1 or more",
                 "got [0, 1, 1, 8]");
    rope(x, none, NULL, y);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_rope_forward: freqs.shape", "[6 or more",
                 "got [0, 1, 1, 8]");
    CHECK(untouched(g_outputs[--g_output_count]), "written");
  }
}

// ---- Attention

// A run of two sequences, in which the masks with padding leave rows out.
static Run small_run(int layout, NVTEDType dtype, int mask) {
  Run x = {0};
  LayoutInfo l = layout_info(layout);
  bool all = l.together == 3, padding = mask % 2 == 1;
  x.p = (Problem){.b = 2, .hq = 4, .hkv = all ? 4 : 2, .sq = all ? 96 : 70, .skv = 96};
  x.p.dqk = x.p.dv = 64, x.p.scale = 0.125, x.p.left = x.p.right = -1;
  for (size_t i = 0; i < 2; i++) {
    x.p.lq[i] = padding && i == 1 ? 37 : (int)x.p.sq;
    x.p.lk[i] = padding && i == 1 ? 41 : (int)x.p.skv;
  }
  x.c = (Config){.layout = layout, .dqkv_layout = layout, .mask = mask, .left = -1, .right = -1};
  x.c.o_order = x.c.do_order = l.q;
  x.c.dtype = x.c.o_dtype = x.c.do_dtype = x.c.dqkv_dtype = x.c.bias_dtype = dtype;
  x.c.training = true;
  const int starts[2][3] = {{0, 98, 140}, {3, 100, 142}};
  memcpy(x.c.starts[0], starts[0], sizeof starts[0]);
  memcpy(x.c.starts[1], starts[!all], sizeof starts[1]);
  for (int side = 0; side < 2; side++) x.c.tokens[side] = x.c.starts[side][2] + 1;
  x.c.page_size = 32, x.c.per_sequence = 3, x.c.pages = 8;
  const size_t dims[4] = {1, 4, x.p.sq, x.p.skv};
  memcpy(x.p.bias_dims, dims, sizeof dims);
  g_text = g_test.name;
  return x;
}

// A forward as far as its call; false if the backend declines it.
static bool prepare(Run *x) {
  size_t planned = 0;
  nvte_tensor_pack_create(&x->pack);
  if (declined(x, call_forward, NVTEX_ATTENTION_FORWARD, &planned)) return false;
  if (!query_workspace(x, call_forward, planned)) return false;
  NVTEShape shape = stats_shape(x);
  x->stats_data = buffer(numel(shape) * sizeof(float));
  set_param(x->pack.tensors[0], kNVTERowwiseData, x->stats_data->ptr, kNVTEFloat32, shape);
  if (x->c.max_logit) {
    x->max_data = buffer(numel(shape) * sizeof(float));
    set_param(x->pack.tensors[1], kNVTERowwiseData, x->max_data->ptr, kNVTEFloat32, shape);
  }
  return true;
}

static void end(Run *x) { nvte_tensor_pack_destroy(&x->pack); }

// The rows of a sequence before `rows` are those of the reference.
static void check_rows(const Run *x, const char *name, const View *v, size_t i, size_t rows,
                       const double *values) {
  const unsigned char *got = buffer_read(v->buffer);
  Bound bound = bound_of(&x->p, v->dtype);
  size_t bad = 0;
  for (size_t n = 0; n < rows * v->heads * v->dim && bad < 3; n++) {
    size_t r = n / v->dim / v->heads, j = n / v->dim % v->heads, d = n % v->dim;
    double want = values[i * v->rows * v->heads * v->dim + n];
    double value = get_value(v->dtype, got, place_at(v, i, r, j, d));
    bad += !CHECK(fabs(value - want) <= bound.element * (1 + fabs(want)),
                  "%s of sequence %zu, row %zu, head %zu, element %zu: %g for %g", name, i, r, j, d,
                  value, want);
  }
}

static void test_pages(void) {
  for (int layout = NVTE_Paged_KV_BSHD_BSHD_BSHD; layout <= NVTE_Paged_KV_THD_SBHD_SBHD; layout++) {
    for (size_t n = 0; n < 3 * COUNT(kBadNumbers); n++) {
      const char *name = n % 3 == 0 ? "page_table_k" : n % 3 == 1 ? "page_table_v" : "page tables";
      const int bad = kBadNumbers[n / 3];
      for (int one = 0; one < 2; one++) {
        if (!case_begin("layout %d, %s %d, %s", layout, name, bad,
                        one ? "one query" : "many queries"))
          continue;
        Run x = small_run(layout, kNVTEBFloat16, NVTE_PADDING_MASK);
        if (one) x.p.sq = 1, x.p.lq[0] = x.p.lq[1] = 1;
        build_forward(&x);
        for (size_t which = 0; which < 2; which++) {
          if (n % 3 == 1 - which) continue;
          int table[6];
          download(table, nvte_tensor_data(x.tables[which]), sizeof table);
          // The second sequence has two pages.
          table[3] = table[4] = bad;
          x.tables[which] =
              tensor(buffer_from(table, sizeof table, 0)->ptr, kNVTEInt32, SHAPE(2, 3));
        }
        const void *k = buffer_read(x.k.buffer), *v = buffer_read(x.v.buffer);
        if (prepare(&x)) {
          output_buffer(x.o.buffer), output_buffer(x.stats_data);
          call_forward(&x);
          verdict(n % 3 == 1 ? "page_table_v" : "page_table_k", 3, bad);
          CHECK(memcmp(k, buffer_read(x.k.buffer), x.k.buffer->bytes) == 0, "keys changed");
          CHECK(memcmp(v, buffer_read(x.v.buffer), x.v.buffer->bytes) == 0, "values changed");
          reference_forward(&x.p);
          if (!g_checked) check_rows(&x, "o", &x.o, 0, (size_t)x.p.lq[0], x.p.o);
        }
        end(&x);
      }
    }
  }
}

// Sums of lengths, and places of packed sequences, that lead out of the tensors, in both passes.
static void test_lengths(void) {
  static const int layouts[] = {NVTE_BSHD_BSHD_BSHD, NVTE_SBH3D, NVTE_THD_THD_THD, NVTE_T3HD};
  for (size_t n = 0; n < COUNT(layouts) * COUNT(kSums) * 4; n++) {
    int layout = layouts[n / COUNT(kSums) / 4];
    const struct Sums *sums = &kSums[n / 4 % COUNT(kSums)];
    int side = n % 2;
    bool places = n % 4 >= 2, packed = layout_info(layout).q == THD;
    if (sums->wrong < 0 || (places && !packed) || (places && layout == NVTE_T3HD && side)) continue;
    if (!case_begin("layout %d, %s of side %d, sums %zu", layout, places ? "places" : "lengths",
                    side, n / 4 % COUNT(kSums)))
      continue;
    char name[32];
    snprintf(name, sizeof name, "cu_seqlens_%s%s", side ? "kv" : "q", places ? "_padded" : "");
    // Starts of rows may be in any order, and cumulative lengths may begin anywhere.
    int64_t value = sums->values[sums->wrong];
    bool named = places ? value < -1 || value >= 1000000 : sums->values[0] != INT32_MAX;
    Run x = small_run(layout, kNVTEBFloat16, NVTE_PADDING_MASK);
    build_forward(&x);
    NVTETensor *array = places ? &x.padded[side] : &x.cu[side], good = *array;
    if (prepare(&x)) {
      *array = ints(sums->values, 3);
      output_buffer(x.o.buffer), output_buffer(x.stats_data);
      call_forward(&x);
      verdict(name, named ? sums->wrong : -1, value);
      *array = good;
      call_forward(&x);
      size_t planned = 0;
      if (EXPECT_OK()) {
        reference_forward(&x.p);
        build_backward(&x);
        if (!declined(&x, call_backward, NVTEX_ATTENTION_BACKWARD, &planned) &&
            query_workspace(&x, call_backward, planned)) {
          *array = ints(sums->values, 3);
          output_buffer(x.dq.buffer), output_buffer(x.dk.buffer), output_buffer(x.dv.buffer);
          call_backward(&x);
          verdict(name, named ? sums->wrong : -1, value);
        }
      }
    }
    end(&x);
  }
}

// A call again, with the workspace that it asks for.
static void call_again(Run *x, void (*call)(Run *)) {
  x->workspace = empty_tensor();
  call(x);
  if (!EXPECT_OK()) return;
  size_t bytes = nvte_tensor_shape(x->workspace).data[0];
  if (!CHECK(bytes < 64 << 20, "workspace of %zu bytes", bytes)) return;
  x->workspace = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
  call(x);
  EXPECT_OK();
}

// A call that names a far longer longest sequence than there are packed tokens: its outputs, which
// are poisoned before, have to be written as before.
static void again_longer(Run *x, void (*call)(Run *), Buffer *const *outputs, size_t count) {
  for (size_t n = 0; n < count; n++) {
    unsigned char *bytes = host_memory(outputs[n]->bytes);
    memset(bytes, POISON_VALUE, outputs[n]->bytes);
    upload(outputs[n]->ptr, bytes, outputs[n]->bytes);
  }
  size_t sq = x->p.sq, skv = x->p.skv;
  x->p.sq = x->p.skv = INT32_MAX;
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  call_again(x, call);
  nvtex_stream_synchronize(NULL);
  clock_gettime(CLOCK_MONOTONIC, &now);
  CHECK(now.tv_sec - begin.tv_sec < 20, "%lld seconds", (long long)(now.tv_sec - begin.tv_sec));
  x->p.sq = sq, x->p.skv = skv;
}

static void test_longest(void) {
  for (int layout = NVTE_T3HD; layout <= NVTE_THD_THD_THD; layout++) {
    if (!case_begin("longest of 2147483647 tokens, layout %d", layout)) continue;
    Run x = small_run(layout, kNVTEBFloat16, NVTE_PADDING_CAUSAL_MASK);
    x.p.right = 0;
    build_forward(&x);
    if (run_forward(&x)) {
      again_longer(&x, call_forward, (Buffer *[]){x.o.buffer, x.stats_data}, 2);
      check_forward(&x);
      run_backward(&x);
      again_longer(&x, call_backward, (Buffer *[]){x.dq.buffer, x.dk.buffer, x.dv.buffer}, 3);
      check_backward(&x);
    }
    end(&x);
  }
}

// ---- What is refused by values of the host

// A tensor with the data and another dtype or shape.
static NVTETensor like(NVTETensor t, NVTEDType dtype, NVTEShape shape) {
  return tensor(nvte_tensor_data(t), dtype, shape);
}

// Another number of elements, or another dtype, of a tensor of the pack.
static void relabel(NVTETensor t, NVTEDType dtype, NVTEShape shape) {
  set_param(t, kNVTERowwiseData, nvte_tensor_data(t), dtype, shape);
}

static void stats_dtype(Run *x) { relabel(x->pack.tensors[0], kNVTEBFloat16, stats_shape(x)); }
static void stats_few(Run *x) { relabel(x->pack.tensors[0], kNVTEFloat32, SHAPE(2, 4, 69, 1)); }
static void max_dtype(Run *x) { relabel(x->pack.tensors[1], kNVTEFloat16, stats_shape(x)); }
static void max_few(Run *x) { relabel(x->pack.tensors[1], kNVTEFloat32, SHAPE(2)); }
static void max_missing(Run *x) { relabel(x->pack.tensors[1], kNVTEFloat32, SHAPE(0)); }
static void state_dtype(Run *x) { x->rng = like(x->rng, kNVTEInt32, SHAPE(4)); }
static void state_few(Run *x) { x->rng = like(x->rng, kNVTEInt64, SHAPE(1)); }
static void bias_dtype(Run *x) {
  x->bias = like(x->bias, kNVTEFloat16, nvte_tensor_shape(x->bias));
}
static void bias_byte(Run *x) { x->bias = like(x->bias, kNVTEByte, nvte_tensor_shape(x->bias)); }

// A pack of the caller, whose tensor `slot` is another one.
static NVTETensorPack *pack_with(const Run *x, size_t slot, NVTETensor t) {
  NVTETensorPack *pack = host_memory(sizeof *pack);
  *pack = *x->saved;
  pack->tensors[slot] = t;
  if (pack->size <= slot) pack->size = slot + 1;
  return pack;
}

static void saved_stats_dtype(Run *x) {
  x->saved = pack_with(x, 0, like(x->saved->tensors[0], kNVTEFloat16, stats_shape(x)));
}
static void saved_stats_few(Run *x) {
  x->saved = pack_with(x, 0, like(x->saved->tensors[0], kNVTEFloat32, SHAPE(2, 4, 69, 1)));
}
static void saved_state_dtype(Run *x) {
  x->saved = pack_with(x, 1, like(x->saved->tensors[1], kNVTEFloat32, SHAPE(2)));
}
static void saved_state_few(Run *x) {
  x->saved = pack_with(x, 1, like(x->saved->tensors[1], kNVTEInt64, SHAPE(1)));
}
// The pack as the forward with `return_max_logit` leaves it: Max is where the state should be.
static void saved_with_max(Run *x) { x->saved = &x->pack; }
// Turns the saved tensors into those of a forward pass whose offset is where the bias should be.
static void saved_offset(Run *x) {
  x->saved = pack_with(x, 2, floats(buffer(4 * 4), SHAPE(1, 4, 1, 1)));
}
static void saved_bias_dtype(Run *x) {
  x->saved = pack_with(x, 2, like(x->bias, kNVTEFloat16, nvte_tensor_shape(x->bias)));
}
static void dbias_dtype(Run *x) {
  x->dbias = like(x->dbias, kNVTEFloat16, nvte_tensor_shape(x->dbias));
}

static const struct Wrong {
  const char *what;
  bool backward, max_logit, dropout, bias;
  void (*spoil)(Run *);
  const char *argument, *expected;
} kWrong[] = {
    {"Stats, dtype", 0, 0, 0, 0, stats_dtype, "tensors[0] (Stats)", "Float32"},
    {"Stats, elements", 0, 0, 0, 0, stats_few, "tensors[0] (Stats)", "560 elements or more"},
    {"Max, dtype", 0, 1, 0, 0, max_dtype, "tensors[1] (Max)", "Float32"},
    {"Max, elements", 0, 1, 0, 0, max_few, "tensors[1] (Max)", "560 elements or more"},
    {"Max, none", 0, 1, 0, 0, max_missing, "tensors[1] (Max)", "560 elements or more"},
    {"state, dtype", 0, 0, 1, 0, state_dtype, "rng_state", "Int64"},
    {"state, elements", 0, 0, 1, 0, state_few, "rng_state", "2 elements or more"},
    {"bias, dtype", 0, 0, 0, 1, bias_dtype, "Bias", "BFloat16"},
    {"bias, bytes", 0, 0, 0, 1, bias_byte, "Bias", "BFloat16"},
    {"saved Stats, dtype", 1, 0, 0, 0, saved_stats_dtype, "tensors[0] (Stats)", "Float32"},
    {"saved Stats, elements", 1, 0, 0, 0, saved_stats_few, "tensors[0] (Stats)",
     "560 elements or more"},
    {"saved state, dtype", 1, 0, 1, 0, saved_state_dtype, "tensors[1] (rng_state)", "Int64"},
    {"saved state, elements", 1, 0, 1, 0, saved_state_few, "tensors[1] (rng_state)",
     "2 elements or more"},
    {"saved with Max", 1, 1, 1, 0, saved_with_max, "tensors[1] (rng_state)", "Int64"},
    {"saved bias, another dtype", 1, 0, 0, 1, saved_bias_dtype, "Bias", "BFloat16"},
    {"saved bias, an offset instead", 1, 0, 0, 1, saved_offset, "Bias", "26880 elements or more"},
    {"dBias, dtype", 1, 0, 0, 1, dbias_dtype, "dBias", "BFloat16"},
};

// The run has memory for everything, a workspace included. It is spoilt last, must be refused, and
// nothing may be written.
static void test_refusals(void) {
  for (size_t n = 0; n < 2 * COUNT(kWrong); n++) {
    const struct Wrong *w = &kWrong[n / 2];
    if (!case_begin("%s, v%zu", w->what, 2 - n % 2)) continue;
    Run x = small_run(NVTE_BSHD_BSHD_BSHD, kNVTEBFloat16, NVTE_CAUSAL_MASK);
    x.p.right = 0;
    x.c.v1 = n % 2;
    x.c.max_logit = w->max_logit;
    x.p.dropout = w->dropout ? 0.25 : 0;
    x.c.bias = w->bias ? NVTE_POST_SCALE_BIAS : NVTE_NO_BIAS;
    build_forward(&x);
    const char *function = "nvte_fused_attn_fwd";
    if (!w->backward && prepare(&x)) {
      w->spoil(&x);
      output_buffer(x.o.buffer), output_buffer(x.stats_data);
      call_forward(&x);
    } else if (w->backward && run_forward(&x)) {
      size_t planned = 0;
      function = "nvte_fused_attn_bwd";
      build_backward(&x);
      if (declined(&x, call_backward, NVTEX_ATTENTION_BACKWARD, &planned) ||
          !query_workspace(&x, call_backward, planned)) {
        end(&x);
        continue;
      }
      w->spoil(&x);
      output_buffer(x.dq.buffer), output_buffer(x.dk.buffer), output_buffer(x.dv.buffer);
      call_backward(&x);
    }
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, function, w->argument, w->expected, "got");
    while (g_output_count > 0) CHECK(untouched(g_outputs[--g_output_count]), "written");
    end(&x);
  }
}

// Parts of layouts that interleave, of which one lies elsewhere.
static void test_interleaved(void) {
  for (int layout = 0; layout < 14; layout++) {
    LayoutInfo l = layout_info(layout);
    if (l.together == 1) continue;
    for (int part = 1; part < 3; part++) {
      if (part == 1 && l.together == 2) continue;
      for (int backward = 0; backward < 2; backward++) {
        for (int near = 0; near < 2; near++) {
          if (!case_begin("layout %d, %s%c %s", layout, backward ? "d" : "", "QKV"[part],
                          near ? "16 bytes off" : "in a buffer of its own"))
            continue;
          Run x =
              small_run(layout, kNVTEBFloat16, l.q == THD ? NVTE_PADDING_MASK : NVTE_CAUSAL_MASK);
          if (l.q != THD) x.p.right = 0;
          build_forward(&x);
          size_t planned = 0;
          bool ready = backward ? run_forward(&x) : prepare(&x);
          if (ready && backward) {
            build_backward(&x);
            ready = !declined(&x, call_backward, NVTEX_ATTENTION_BACKWARD, &planned) &&
                    query_workspace(&x, call_backward, planned);
          }
          if (ready) {
            View *v = backward ? (part == 1 ? &x.dk : &x.dv) : (part == 1 ? &x.k : &x.v);
            unsigned char *at = nvte_tensor_data(v->handle);
            at = near ? at - 16 : buffer(v->buffer->bytes)->ptr;
            v->handle = tensor(at, v->dtype, nvte_tensor_shape(v->handle));
            Buffer *out = backward ? x.dq.buffer : x.o.buffer;
            backward ? call_backward(&x) : call_forward(&x);
            char name[16];
            snprintf(name, sizeof name, ": %s%c.data", backward ? "d" : "", "QKV"[part]);
            EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, "qkv_layout interleaves", "got");
            CHECK(untouched(out), "written");
          }
          end(&x);
        }
      }
    }
  }
}

// ---- Keys and values that are not numbers

// All elements of the rows of keys and values from a row of each sequence on.
static void fill_rows(const Run *x, const int *from, double value) {
  const View *const views[] = {&x->k, &x->v};
  for (size_t which = 0; which < 2; which++) {
    const View *v = views[which];
    unsigned char *host = buffer_read(v->buffer);
    for (size_t i = 0; i < x->p.b; i++)
      for (size_t r = (size_t)from[i]; r < v->rows; r++)
        for (size_t n = 0; n < v->heads * v->dim; n++)
          put_value(v->dtype, host, place_at(v, i, r, n / v->dim, n % v->dim), value);
    upload(v->buffer->ptr, host, v->buffer->bytes);
  }
}

// Past the end of a sequence nothing may reach a result. In the other layouts rows that nobody
// fills are NaN, too.
static void test_padding_values(void) {
  static const int layouts[] = {NVTE_BSHD_BSHD_BSHD, NVTE_SBHD_SBHD_SBHD, NVTE_BSHD_BS2HD};
  static const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
  static const int masks[] = {NVTE_PADDING_MASK, NVTE_PADDING_CAUSAL_MASK};
  for (size_t n = 0; n < COUNT(layouts) * COUNT(kHighPrecision) * COUNT(values) * 2; n++) {
    int mask = masks[n % 2], layout = layouts[n / 2 % COUNT(layouts)];
    double value = values[n / 2 / COUNT(layouts) % COUNT(values)];
    NVTEDType dtype = kHighPrecision[n / 2 / COUNT(layouts) / COUNT(values)];
    if (!case_begin("%g behind the ends, %s, layout %d, mask %d", value, dtype_name(dtype), layout,
                    mask))
      continue;
    Run x = small_run(layout, dtype, mask);
    if (mask == NVTE_PADDING_CAUSAL_MASK) x.p.right = 0;
    build_forward(&x);
    fill_rows(&x, x.p.lk, value);
    if (run_forward(&x)) run_backward(&x);
    end(&x);
  }
}

// Keys that only later queries see must not reach an earlier one.
static void test_causal_values(void) {
  static const double values[] = {(double)NAN, (double)INFINITY};
  if (on_cuda()) {
    printf(
        "skipped on cuda: keys and values behind the causal mask that are not numbers (a tile "
        "on the diagonal multiplies them by 0)\n");
    return;
  }
  for (size_t n = 0; n < COUNT(kHighPrecision) * COUNT(values); n++) {
    NVTEDType dtype = kHighPrecision[n / COUNT(values)];
    double value = values[n % COUNT(values)];
    if (!case_begin("%g for later queries, %s", value, dtype_name(dtype))) continue;
    Run x = small_run(NVTE_BSHD_BSHD_BSHD, dtype, NVTE_CAUSAL_MASK);
    x.p.right = 0;
    const int from[2] = {33, 50};
    build_forward(&x);
    fill_rows(&x, from, value);
    if (prepare(&x)) {
      call_forward(&x);
      EXPECT_OK();
      reference_forward(&x.p);
      for (size_t i = 0; i < 2; i++) check_rows(&x, "o", &x.o, i, (size_t)from[i], x.p.o);
      build_backward(&x);
      call_again(&x, call_backward);
      reference_backward(&x.p);
      for (size_t i = 0; i < 2; i++) check_rows(&x, "dq", &x.dq, i, (size_t)from[i], x.p.dq);
    }
    end(&x);
  }
}

static int run_all(int argc, char **argv) {
  test_begin(argc, argv);
  test_helpers();
  test_caches();
  test_rope();
  test_pages();
  test_lengths();
  if (!g_checked) {
    test_longest();
    test_refusals();
    test_interleaved();
    test_padding_values();
    test_causal_values();
  }
  return test_end();
}

int main(int argc, char **argv) { return run_checked_and_unchecked(run_all, argc, argv); }
