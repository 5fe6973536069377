// Attention as a call: long sequences, empty ones, repeated runs, both generations of the
// interface, queries of workspaces and of backends, and what is refused.
#define _POSIX_C_SOURCE 200809L
#include "attention_common.h"

// An attention in BF16 without anything special; to be changed and then built.
static Run plain_run(void) {
  Run x = {0};
  x.p = (Problem){.b = 2, .hq = 4, .hkv = 2, .sq = 70, .skv = 90, .dqk = 64, .dv = 64};
  x.p.scale = 0.125, x.p.left = x.p.right = -1;
  for (int i = 0; i < 2; i++) x.p.lq[i] = 70, x.p.lk[i] = 90;
  x.c = (Config){.layout = NVTE_BSHD_BSHD_BSHD, .dqkv_layout = NVTE_BSHD_BSHD_BSHD};
  x.c.o_order = x.c.do_order = BSHD;
  x.c.dtype = x.c.o_dtype = x.c.do_dtype = x.c.dqkv_dtype = x.c.bias_dtype = kNVTEBFloat16;
  x.c.left = x.c.right = -1;
  x.c.training = true;
  const size_t dims[4] = {1, 4, 70, 90};
  memcpy(x.p.bias_dims, dims, sizeof dims);
  return x;
}

// A packed run, with room between the sequences.
static Run packed_run(void) {
  Run x = plain_run();
  x.c.layout = x.c.dqkv_layout = NVTE_THD_THD_THD;
  x.c.o_order = x.c.do_order = THD;
  x.c.mask = NVTE_PADDING_MASK;
  const int starts[2][3] = {{0, 72, 142}, {3, 100, 190}};
  for (int side = 0; side < 2; side++) {
    memcpy(x.c.starts[side], starts[side], sizeof starts[side]);
    x.c.tokens[side] = starts[side][2] + 1;
  }
  return x;
}

static bool start_forward(Run *x) {
  g_text = g_test.name;
  build_forward(x);
  return run_forward(x);
}

static void end(Run *x) { nvte_tensor_pack_destroy(&x->pack); }

static void both_passes(Run *x) {
  if (start_forward(x)) run_backward(x);
  end(x);
}

// ---- The same call once more

static unsigned char *copy_of(const Buffer *b) { return b ? buffer_read(b) : NULL; }

static void check_same(const char *what, const Buffer *b, const unsigned char *before) {
  if (!b) return;
  const unsigned char *after = buffer_read(b);
  CHECK(memcmp(after, before, b->bytes) == 0, "%s differs; %s", what, g_test.name);
}

static void poison(Buffer *b) {
  unsigned char *bytes = host_memory(b->bytes);
  memset(bytes, POISON_VALUE, b->bytes);
  upload(b->ptr, bytes, b->bytes);
}

static void test_again(void) {
  for (int v1 = 0; v1 < 2; v1++) {
    for (int variant = 0; variant < 4; variant++) {
      if (!case_begin("repeated, v%d, then v%d, variant %d", v1 ? 1 : 2, v1 ? 2 : 1, variant))
        continue;
      Run x = variant == 3 ? packed_run() : plain_run();
      x.c.deterministic = true;
      x.c.v1 = v1;
      x.c.max_logit = variant == 1;
      x.c.softmax = variant;
      if (x.c.softmax == 3) x.c.softmax = 0;
      if (variant == 2) x.c.bias = NVTE_POST_SCALE_BIAS;
      if (variant == 1) x.p.dropout = 0.25;
      if (!start_forward(&x)) {
        end(&x);
        continue;
      }
      unsigned char *o = copy_of(x.o.buffer), *stats = copy_of(x.stats_data),
                    *max = copy_of(x.max_data);
      poison(x.o.buffer);
      poison(x.stats_data);
      x.c.v1 = !v1;
      call_forward(&x);
      EXPECT_OK();
      check_same("o", x.o.buffer, o);
      check_same("stats", x.stats_data, stats);
      check_same("max", x.max_data, max);
      x.c.v1 = v1;
      unsigned before = g_declined_passes;
      run_backward(&x);
      if (before == g_declined_passes) {
        Buffer *const grads[] = {x.dq.buffer, x.dk.buffer, x.dv.buffer, x.dbias_data, x.dsink_data};
        unsigned char *copies[COUNT(grads)];
        for (size_t g = 0; g < COUNT(grads); g++) {
          copies[g] = copy_of(grads[g]);
          if (grads[g]) poison(grads[g]);
        }
        x.c.v1 = !v1;
        call_backward(&x);
        EXPECT_OK();
        for (size_t g = 0; g < COUNT(grads); g++) check_same("a gradient", grads[g], copies[g]);
      }
      end(&x);
    }
  }
}

// In place of the other library, short backward passes with a causal mask repeat bit by bit though
// nobody asks for it: several blocks of keys add to each row of dq.
static void test_again_as_a_drop_in(void) {
  for (size_t s = 0; s < 3; s++) {
    const size_t length = (size_t[]){300, 640, 1024}[s];
    if (!case_begin("repeated as a drop-in, %zu tokens", length)) continue;
    Run x = plain_run();
    x.p.hq = 8, x.p.sq = x.p.skv = length;
    for (int i = 0; i < 2; i++) x.p.lq[i] = x.p.lk[i] = length;
    x.c.mask = NVTE_CAUSAL_MASK, x.p.right = 0;
    // Failing calls would throw in such a process.
    const NVTEXErrorMode mode = nvtex_set_error_mode(NVTEX_ERROR_RETURN);
    nvtex_set_drop_in(true);
    const unsigned before = g_declined_passes;
    if (start_forward(&x)) {
      run_backward(&x);
      Buffer *const grads[] = {x.dq.buffer, x.dk.buffer, x.dv.buffer};
      unsigned char *copies[COUNT(grads)];
      for (size_t g = 0; g < COUNT(grads); g++) copies[g] = copy_of(grads[g]);
      for (int again = 0; again < 5 && before == g_declined_passes; again++) {
        for (size_t g = 0; g < COUNT(grads); g++) poison(grads[g]);
        call_backward(&x);
        EXPECT_OK();
        for (size_t g = 0; g < COUNT(grads); g++) check_same("a gradient", grads[g], copies[g]);
      }
    }
    nvtex_set_drop_in(false);
    nvtex_set_error_mode(mode);
    end(&x);
  }
}

// ---- Gradients that nobody asks for, and states that lie elsewhere

static void test_optional(void) {
  if (case_begin("no gradients of bias and offset")) {
    Run x = plain_run();
    x.c.bias = NVTE_POST_SCALE_BIAS;
    x.c.softmax = NVTE_LEARNABLE_SOFTMAX;
    if (start_forward(&x)) {
      build_backward(&x);
      x.dbias = x.dsink = NULL;
      x.workspace = empty_tensor();
      call_backward(&x);
      if (EXPECT_OK()) {
        size_t bytes = nvte_tensor_shape(x.workspace).data[0];
        x.workspace = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
        call_backward(&x);
        EXPECT_OK();
        reference_backward(&x.p);
        compare_view(&x.p, "dq", &x.dq, x.p.lq, x.p.dq);
        CHECK(untouched(x.dbias_data) && untouched(x.dsink_data), "written");
      }
    }
    end(&x);
  }
  if (case_begin("no dropout outside of training")) {
    Run x = plain_run();
    x.p.dropout = 0;
    x.c.training = false;
    build_forward(&x);
    g_text = g_test.name;
    x.rng = NULL;
    if (run_forward(&x)) {
      // A probability without training drops nothing, and needs no state.
      Run again = x;
      unsigned char *o = copy_of(x.o.buffer);
      again.p.dropout = 0.5;
      call_forward(&again);
      EXPECT_OK();
      check_same("o", x.o.buffer, o);
    }
    end(&x);
  }
}

// ---- Long sequences

// Rows of a long sequence depend on a window alone: parts of it are attentions of their own.
static void test_long(void) {
  enum { LENGTH = 128 * 1024, WINDOW = 60, PART = 3 * WINDOW };
  for (int packed = 0; packed < 2; packed++) {
    if (!case_begin("128k tokens, %s", packed ? "packed" : "dense")) continue;
    Run x = packed ? packed_run() : plain_run();
    Problem *p = &x.p;
    p->b = 1, p->hq = 2, p->hkv = 1, p->sq = p->skv = LENGTH, p->dqk = p->dv = 16;
    p->lq[0] = p->lk[0] = LENGTH;
    x.c.left = WINDOW, x.c.mask = packed ? NVTE_PADDING_CAUSAL_MASK : NVTE_CAUSAL_MASK;
    p->left = WINDOW, p->right = 0;
    for (int side = 0; side < 2; side++) {
      x.c.starts[side][0] = 0, x.c.starts[side][1] = LENGTH, x.c.tokens[side] = LENGTH;
    }
    g_text = g_test.name;
    build_forward(&x);
    nvte_tensor_pack_create(&x.pack);
    size_t planned = 0;
    bool ran = !declined(&x, call_forward, NVTEX_ATTENTION_FORWARD, &planned) &&
               query_workspace(&x, call_forward, planned);
    if (ran) {
      NVTEShape shape = stats_shape(&x);
      x.stats_data = buffer(numel(shape) * sizeof(float));
      set_param(x.pack.tensors[0], kNVTERowwiseData, x.stats_data->ptr, kNVTEFloat32, shape);
      call_forward(&x);
      ran = EXPECT_OK();
    }
    p->d_o = rounded_values(kNVTEBFloat16, LENGTH * 2 * 16, 1);
    if (ran) {
      x.d_o = make_view(p, &x.c, 0, x.c.do_order, 16, kNVTEBFloat16, 1, 0, 0, NULL);
      fill_view(p, &x.d_o, p->lq, p->d_o);
      make_views(p, &x.c, x.c.layout, kNVTEBFloat16, &x.dq, &x.dk, &x.dv);
      x.saved = &x.pack;
      ran = !declined(&x, call_backward, NVTEX_ATTENTION_BACKWARD, &planned) &&
            query_workspace(&x, call_backward, planned);
    }
    if (ran) {
      call_backward(&x);
      ran = EXPECT_OK();
    }
    if (ran) {
      const void *o = buffer_read(x.o.buffer), *dq = buffer_read(x.dq.buffer),
                 *dk = buffer_read(x.dk.buffer), *dv = buffer_read(x.dv.buffer);
      for (size_t sample = 0; sample < 40; sample++) {
        size_t at = sample == 0 ? LENGTH - PART : random_below(LENGTH - PART);
        Problem part = *p;
        part.sq = part.skv = PART, part.lq[0] = part.lk[0] = PART;
        part.q = p->q + at * 32, part.k = p->k + at * 16, part.v = p->v + at * 16;
        part.d_o = p->d_o + at * 32;
        reference_forward(&part);
        for (size_t n = 0; n < PART * 32; n++) part.o[n] = round_to(kNVTEBFloat16, part.o[n]);
        reference_backward(&part);
        // The part's first rows miss columns and its last columns miss rows, so those between are
        // compared.
        for (size_t r = WINDOW; r < 2 * WINDOW; r++) {
          for (size_t n = 0; n < 32; n++) {
            double got = get_value(kNVTEBFloat16, o, (at + r) * 32 + n), want = part.o[r * 32 + n];
            CHECK(fabs(got - want) <= 1.5e-2, "o of row %zu: %g for %g", at + r, got, want);
            got = get_value(kNVTEBFloat16, dq, (at + r) * 32 + n), want = part.dq[r * 32 + n];
            CHECK(fabs(got - want) <= 1.5e-2, "dq of row %zu: %g for %g", at + r, got, want);
          }
          for (size_t n = 0; n < 16; n++) {
            double got = get_value(kNVTEBFloat16, dk, (at + r) * 16 + n),
                   want = part.dk[r * 16 + n];
            CHECK(fabs(got - want) <= 3e-2, "dk of row %zu: %g for %g", at + r, got, want);
            got = get_value(kNVTEBFloat16, dv, (at + r) * 16 + n), want = part.d_v[r * 16 + n];
            CHECK(fabs(got - want) <= 3e-2, "dv of row %zu: %g for %g", at + r, got, want);
          }
        }
      }
    }
    end(&x);
  }
}

// ---- Sequences that take more memory than what an allocation may share with others

// Ends of sequences and of rows where a tile of a kernel has whole parts that lie outside: what is
// around the tensors need not be memory. First of all tests, when little memory is.
static void test_edges(void) {
  static const struct {
    size_t heads, length, dqk, dv;
  } shapes[] = {{48, 180, 128, 128}, {192, 120, 64, 64}, {96, 129, 64, 128}, {64, 192, 128, 64}};
  for (size_t i = 0; i < COUNT(shapes); i++) {
    const size_t heads = shapes[i].heads, length = shapes[i].length;
    if (!case_begin("edges, h%zu s%zu d%zu,%zu", heads, length, shapes[i].dqk, shapes[i].dv))
      continue;
    Run x = plain_run();
    x.p.b = 1, x.p.hq = heads, x.p.hkv = heads / 8, x.p.sq = x.p.skv = length;
    x.p.lq[0] = x.p.lk[0] = (int)length;
    x.p.dqk = shapes[i].dqk, x.p.dv = shapes[i].dv;
    x.c.mask = NVTE_CAUSAL_MASK, x.p.right = 0;
    both_passes(&x);
  }
}

// ---- Nothing to do

static void test_empty(void) {
  for (int variant = 0; variant < 16; variant++) {
    if (!case_begin("empty, variant %d", variant)) continue;
    bool packed = variant % 8 >= 4;
    Run x = packed ? packed_run() : plain_run();
    if (variant >= 8) {
      if (variant % 4 == 3)
        continue;  // Without an element no kernel is called, and no amax is written.
      x.c.dtype = x.c.o_dtype = kNVTEFloat8E4M3;
      x.c.do_dtype = x.c.dqkv_dtype = kNVTEFloat8E5M2;
    }
    Problem *p = &x.p;
    switch (variant % 4) {
      case 0:
        p->b = 0;
        for (int side = 0; side < 2 && packed; side++) x.c.tokens[side] = 1;
        break;
      case 1:
        p->sq = 0, p->lq[0] = p->lq[1] = 0;
        memset(x.c.starts[0], 0, sizeof x.c.starts[0]);
        break;
      case 2:
        p->skv = 0, p->lk[0] = p->lk[1] = 0;
        memset(x.c.starts[1], 0, sizeof x.c.starts[1]);
        break;
      case 3:
        p->sq = p->skv = 0;
        for (int i = 0; i < 2; i++) p->lq[i] = p->lk[i] = 0;
        break;
    }
    g_text = g_test.name;
    build_forward(&x);
    nvte_tensor_pack_create(&x.pack);
    x.workspace = empty_tensor();
    call_forward(&x);
    if (!EXPECT_OK()) {
      end(&x);
      continue;
    }
    CHECK_EQ(x.pack.size, 2);
    NVTEShape shape = stats_shape(&x);
    x.stats_data = buffer(numel(shape) * sizeof(float));
    set_param(x.pack.tensors[0], kNVTERowwiseData, x.stats_data->ptr, kNVTEFloat32, shape);
    size_t bytes = nvte_tensor_shape(x.workspace).data[0];
    x.workspace = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
    call_forward(&x);
    EXPECT_OK();
    reference_forward(p);
    if (p->b > 0) {
      compare_view(p, "o", &x.o, p->lq, p->o);
      Expected stats = expected_stats(&x, x.stats_data, p->stats);
      compare(p, "stats", &stats, (Bound){1e-4, 1e-4});
    }
    build_backward(&x);
    x.workspace = empty_tensor();
    call_backward(&x);
    if (EXPECT_OK()) {
      bytes = nvte_tensor_shape(x.workspace).data[0];
      x.workspace = tensor(buffer(bytes)->ptr, kNVTEByte, SHAPE(bytes));
      call_backward(&x);
      if (EXPECT_OK() && p->b > 0) check_backward(&x);
    }
    end(&x);
  }
}

// ---- Heads of several widths

// Loads in panels of 64 elements: one of a tensor's is missing where another tensor has two.
static void test_widths(void) {
  static const size_t widths[][2] = {{64, 128}, {128, 64},  {40, 104},  {104, 40}, {64, 64},
                                     {256, 64}, {256, 256}, {200, 136}, {24, 200}, {192, 192}};
  for (size_t w = 0; w < COUNT(widths); w++) {
    for (int packed = 0; packed < 2; packed++) {
      if (!case_begin("heads of %zu and %zu elements, %s", widths[w][0], widths[w][1],
                      packed ? "packed" : "dense"))
        continue;
      Run x = packed ? packed_run() : plain_run();
      x.p.dqk = widths[w][0], x.p.dv = widths[w][1];
      both_passes(&x);
    }
  }
  for (int side = 0; side < 2; side++) {
    if (!case_begin("a packed side of empty sequences, %s", side ? "keys" : "queries")) continue;
    Run x = packed_run();
    int *lengths = side ? x.p.lk : x.p.lq;
    lengths[0] = lengths[1] = 0;
    both_passes(&x);
  }
}

// ---- What is added to scores

// Biases of one or of all sequences, heads and queries, and ALiBi, whose slopes of six heads are no
// single sequence; keys that are no multiple of a tile, sequences that end before the bias does.
static void test_added(void) {
  static const size_t widths[][2] = {{64, 64}, {128, 128}, {256, 256}, {72, 40}};
  enum { kBiases = 8 };
  for (size_t w = 0; w < COUNT(widths); w++) {
    for (int variant = 0; variant <= kBiases + 1; variant++) {
      if (!case_begin("added, heads of %zu and %zu elements, variant %d", widths[w][0],
                      widths[w][1], variant))
        continue;
      const bool packed = variant % 4 > 1, alibi = variant >= kBiases;
      Run x = packed ? packed_run() : plain_run();
      x.p.dqk = widths[w][0], x.p.dv = widths[w][1];
      x.p.hq = alibi ? 6 : 2, x.p.hkv = alibi ? 3 : 1;
      x.p.sq = 136, x.p.skv = 168;
      x.p.lq[0] = 71, x.p.lk[0] = 96, x.p.lq[1] = 69, x.p.lk[1] = variant % 3 ? 90 : 0;
      x.c.mask = NVTE_PADDING_MASK;
      if (variant % 3 == 1) x.c.mask = NVTE_PADDING_CAUSAL_MASK, x.p.right = 0;
      if (variant % 3 == 2) x.c.left = x.p.left = 50, x.c.right = x.p.right = 20;
      x.c.bias = alibi ? NVTE_ALIBI : NVTE_POST_SCALE_BIAS;
      x.p.alibi = alibi;
      const size_t dims[4] = {variant & 1 ? x.p.b : 1, variant & 2 ? x.p.hq : 1,
                              variant & 4 ? x.p.sq : 1, x.p.skv};
      memcpy(x.p.bias_dims, dims, sizeof dims);
      both_passes(&x);
    }
  }
}

// A bias that masks by the lowest number there is, which is below what the scale of exponentials
// with base 2 leaves finite, for more keys than a tile has.
static void test_lowest_bias(void) {
  for (int variant = 0; variant < 6; variant++) {
    if (!case_begin("lowest bias, variant %d", variant)) continue;
    Run x = plain_run();
    x.p.dqk = x.p.dv = variant / 2 == 0 ? 64 : variant / 2 == 1 ? 128 : 256;
    x.p.scale = 1;
    x.p.sq = 136, x.p.skv = 400;
    for (int i = 0; i < 2; i++) x.p.lq[i] = 136, x.p.lk[i] = 400;
    x.c.bias = NVTE_POST_SCALE_BIAS;
    const size_t dims[4] = {1, 1, variant % 2 ? x.p.sq : 1, x.p.skv};
    memcpy(x.p.bias_dims, dims, sizeof dims);
    x.c.masked_from = 70;
    x.c.lowest_bias = -0x1.fep127;
    both_passes(&x);
  }
}

// ---- Scores that grow

// Scores of later keys far above those of earlier ones, in whatever order a kernel takes them: by
// less than 16 bits of an exponent hold, and by more than any.
static void test_growing(void) {
  static const size_t widths[] = {64, 128, 256};
  static const NVTEDType types[] = {kNVTEBFloat16, kNVTEFloat16};
  static const double scales[] = {0.5, 4, 32};
  for (size_t i = 0; i < COUNT(widths) * COUNT(types) * COUNT(scales); i++) {
    size_t width = widths[i % 3];
    NVTEDType type = types[i / 3 % 2];
    double scale = scales[i / 6];
    if (!case_begin("scores times %g, heads of %zu elements, dtype %d", scale, width, (int)type)) {
      continue;
    }
    Run x = plain_run();
    x.c.dtype = x.c.o_dtype = x.c.do_dtype = x.c.dqkv_dtype = x.c.bias_dtype = type;
    x.p.dqk = x.p.dv = width;
    x.p.skv = 1000, x.p.lk[0] = x.p.lk[1] = 1000;
    x.p.scale = scale;
    x.c.training = false;
    start_forward(&x);
    end(&x);
  }
}

// ---- Pages

// Pages of parts of a tile of keys, of one, of several and of neither; the last ones are not full.
static void test_pages(void) {
  static const size_t widths[] = {64, 128, 256};
  static const int sizes[] = {20, 8, 16, 32, 48, 64, 128, 256};
  for (size_t w = 0; w < COUNT(widths); w++) {
    for (size_t i = 0; i < COUNT(sizes); i++) {
      if (!case_begin("pages of %d rows, heads of %zu elements", sizes[i], widths[w])) continue;
      Run x = plain_run();
      x.p.dqk = x.p.dv = widths[w];
      x.p.sq = 100, x.p.skv = 300;
      x.p.lq[0] = 100, x.p.lk[0] = 300, x.p.lq[1] = 37, x.p.lk[1] = 129;
      x.c.layout = x.c.dqkv_layout = NVTE_Paged_KV_BSHD_BSHD_BSHD;
      x.c.mask = i % 2 ? NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK : NVTE_PADDING_MASK;
      if (i % 2) x.p.right = 0, x.p.bottom_right = true;
      x.c.training = false;
      x.c.page_size = sizes[i];
      x.c.per_sequence = 300 / sizes[i] + 1;
      x.c.pages = 2;
      for (int n = 0; n < 2; n++) x.c.pages += (x.p.lk[n] + sizes[i] - 1) / sizes[i];
      start_forward(&x);
      end(&x);
    }
  }
}

// ---- FP8

// Checks which implementation the backward pass has: that of Hopper, unless a reason against it is
// expected.
static void check_fp8_choice(const Run *x, const char *reason) {
  if (!on_cuda()) return;
  NVTEFusedAttnConfig config = make_config(x);
  const char *name = NULL, *rejected = "";
  nvtex_fused_attn_query(config, NVTEX_ATTENTION_BACKWARD, &name, &rejected, NULL);
  EXPECT_OK();
  nvte_destroy_fused_attn_config(config);
  if (strstr(rejected, "sm90-fp8-backward: the device")) return;
  if (!reason) {
    CHECK(name && !strcmp(name, "sm90-fp8-backward"), "%s: %s", name ? name : "none", rejected);
    return;
  }
  char line[256];
  snprintf(line, sizeof line, "sm90-fp8-backward: %s", reason);
  CHECK(name && strstr(rejected, line), "%s: %s", name ? name : "none", rejected);
}

static void test_fp8(void) {
  const NVTEDType e4m3 = kNVTEFloat8E4M3, e5m2 = kNVTEFloat8E5M2, bf16 = kNVTEBFloat16,
                  f16 = kNVTEFloat16;
  enum { NO = NVTE_NO_MASK, PAD = NVTE_PADDING_MASK, CAUSAL = NVTE_CAUSAL_MASK };
  enum { PAD_CAUSAL = NVTE_PADDING_CAUSAL_MASK, RIGHT = NVTE_CAUSAL_BOTTOM_RIGHT_MASK };
  enum { PAD_RIGHT = NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK };
  const struct {
    NVTEDType q, o, d_o, grads;
    NVTE_QKV_Layout layout;
    int mask, left, right;
    size_t hq, hkv, sq, skv, dqk, dv;
    int lq[2], lk[2];
    int softmax;
    double dropout;
    bool deterministic;
    const char *reason;  // Why Hopper's kernel declines, or null.
  } rows[] = {
      // Delayed and current scaling, both types of gradients.
      {e4m3, e4m3, e5m2, e5m2, NVTE_BSHD_BSHD_BSHD, NO,         -1, -1, 2,     2,
       128,  128,  128,  128,  {128, 128},          {128, 128}, 0,  0,  false, NULL},
      {e4m3, bf16, e5m2, bf16, NVTE_SBHD_SBHD_SBHD, CAUSAL,     -1, -1, 2,    2,
       257,  257,  128,  128,  {257, 257},          {257, 257}, 0,  0,  true, NULL},
      {e4m3, f16, e4m3, f16, NVTE_BHSD_BHSD_BHSD, CAUSAL,     -1, -1, 2,     2,
       130,  130, 64,   64,  {130, 130},          {130, 130}, 0,  0,  false, NULL},
      {e4m3, e4m3, e4m3, e4m3, NVTE_BS3HD, CAUSAL,     -1, -1, 3,    3,
       100,  100,  64,   64,   {100, 100}, {100, 100}, 0,  0,  true, NULL},
      {e4m3, e4m3, e5m2, bf16, NVTE_BSHD_BSH2D, NO,         40, 3, 4,     2,
       190,  190,  128,  128,  {190, 190},      {190, 190}, 0,  0, false, NULL},
      // Groups of heads; keys that are more than queries and the other way round.
      {e4m3, bf16, e5m2, bf16,     NVTE_BSHD_BSHD_BSHD, RIGHT, -1, -1,    6,   2, 77,
       333,  128,  128,  {77, 77}, {333, 333},          2,     0,  false, NULL},
      {e4m3, e4m3, e5m2, e5m2, NVTE_BSHD_BSHD_BSHD, RIGHT,    -1, -1, 8,     1,
       333,  77,   128,  128,  {333, 333},          {77, 77}, 0,  0,  false, NULL},
      // Lengths, empty sequences and single rows.
      {e4m3,     e4m3, e5m2, e5m2,  NVTE_BSHD_BSHD_BSHD,
       PAD,      -1,   -1,   4,     2,
       129,      200,  128,  128,   {0, 129},
       {200, 1}, 0,    0,    false, NULL},
      {e4m3,       e4m3, e4m3, bf16, NVTE_SBHD_SBHD_SBHD,
       PAD_CAUSAL, 30,   -1,   4,    2,
       129,        200,  64,   64,   {1, 100},
       {0, 199},   2,    0,    true, NULL},
      {e4m3,   e4m3, e5m2, bf16,  NVTE_BSHD_BSHD_BSHD,
       PAD,    -1,   -1,   2,     2,
       65,     65,   128,  128,   {0, 0},
       {0, 0}, 0,    0,    false, NULL},
      {e4m3, e4m3, e5m2, e5m2, NVTE_THD_THD_THD, PAD_CAUSAL, -1, -1, 4,     1,
       150,  170,  128,  128,  {150, 33},        {170, 33},  0,  0,  false, NULL},
      {e4m3, bf16, e5m2, bf16, NVTE_THD_THD_THD, PAD_RIGHT, 64, -1, 2,    1,
       100,  260,  64,   64,   {0, 100},         {17, 260}, 1,  0,  true, NULL},
      {e4m3,   e4m3, e4m3, e4m3,  NVTE_BSHD_BSHD_BSHD,
       CAUSAL, -1,   -1,   2,     2,
       1,      1,    128,  128,   {1, 1},
       {1, 1}, 0,    0,    false, NULL},
      // Dimensions between those of the tiles, and two different ones.
      {e4m3, e4m3, e5m2, bf16,     NVTE_BSHD_BSHD_BSHD, NO, -1, -1,    2,   1, 90,
       140,  80,   112,  {90, 90}, {140, 140},          0,  0,  false, NULL},
      {e4m3, e4m3, e5m2, e5m2, NVTE_BSHD_BSHD_BSHD, CAUSAL,     -1, -1, 2,     2,
       140,  140,  48,   16,   {140, 140},          {140, 140}, 0,  0,  false, NULL},
      {e4m3, e4m3, e4m3, bf16, NVTE_BSHD_BSHD_BSHD, CAUSAL,     -1, -1, 2,     2,
       140,  140,  128,  64,   {140, 140},          {140, 140}, 0,  0,  false, NULL},
      {e4m3, bf16, e5m2, bf16, NVTE_BSHD_BSHD_BSHD, CAUSAL,     -1, -1,   2,     2,
       200,  200,  128,  128,  {200, 200},          {200, 200}, 0,  0.25, false, NULL},
      {e4m3, e4m3, e5m2, e5m2, NVTE_BSHD_BSHD_BSHD, NO,         -1, -1,  2,    2,
       200,  100,  64,   64,   {200, 200},          {100, 100}, 0,  0.5, true, NULL},
      // There are more blocks of queries than of keys, so several thread blocks share a block of
      // keys.
      {e4m3, e4m3, e5m2, bf16, NVTE_BSHD_BSHD_BSHD, NO,       -1, -1, 2,     1,
       700,  64,   128,  128,  {700, 700},          {64, 64}, 0,  0,  false, NULL},
      // Cases that Hopper's kernel leaves to the general one.
      {e5m2,     e4m3, e5m2, e5m2,  NVTE_BSHD_BSHD_BSHD,
       CAUSAL,   -1,   -1,   2,     2,
       70,       70,   128,  128,   {70, 70},
       {70, 70}, 0,    0,    false, "q, k or v of E5M2"},
      {e4m3,     e4m3, e5m2, e5m2,  NVTE_BSHD_BSHD_BSHD,
       CAUSAL,   -1,   -1,   2,     2,
       70,       70,   192,  128,   {70, 70},
       {70, 70}, 0,    0,    false, "a head of more than 128 elements"},
  };
  for (size_t n = 0; n < COUNT(rows); n++) {
    if (!case_begin("fp8 %zu", n)) continue;
    Run x = plain_run();
    x.p.hq = rows[n].hq, x.p.hkv = rows[n].hkv;
    x.p.sq = rows[n].sq, x.p.skv = rows[n].skv;
    x.p.dqk = rows[n].dqk, x.p.dv = rows[n].dv;
    x.p.scale = 1 / sqrt((double)x.p.dqk);
    x.p.dropout = (float)rows[n].dropout;
    x.p.seed = 12345, x.p.offset = 16;
    memcpy(x.p.lq, rows[n].lq, sizeof rows[n].lq);
    memcpy(x.p.lk, rows[n].lk, sizeof rows[n].lk);
    x.c.layout = x.c.dqkv_layout = rows[n].layout;
    x.c.o_order = x.c.do_order = layout_info(x.c.layout).q;
    x.c.dtype = rows[n].q, x.c.o_dtype = rows[n].o, x.c.do_dtype = rows[n].d_o;
    x.c.dqkv_dtype = rows[n].grads;
    x.c.mask = rows[n].mask, x.c.softmax = rows[n].softmax;
    x.c.left = rows[n].left, x.c.right = rows[n].right;
    x.c.deterministic = rows[n].deterministic;
    bool causal = x.c.mask > 1;
    x.p.left = x.c.left, x.p.right = causal ? 0 : x.c.right;
    x.p.bottom_right = x.c.mask > 3;
    for (int side = 0; side < 2; side++) {
      const int *lengths = side ? x.p.lk : x.p.lq;
      int at = side + 1;
      for (int i = 0; i < 2; i++) {
        x.c.starts[side][i] = at;
        at += lengths[i] + i;
      }
      x.c.starts[side][2] = at;
      x.c.tokens[side] = at + 2;
    }
    check_fp8_choice(&x, rows[n].reason);
    both_passes(&x);
  }
}

// ---- Choice of an implementation

static NVTE_Fused_Attn_Backend old_choice(NVTEDType q, NVTEDType kv, NVTE_QKV_Layout layout,
                                          NVTE_Bias_Type bias, NVTE_Mask_Type mask, size_t kv_heads,
                                          float dropout, bool training) {
  return nvte_get_fused_attn_backend(training, q, kv, layout, bias, mask, NVTE_VANILLA_SOFTMAX,
                                     dropout, 8, kv_heads, 128, 128, 64, 64, -1, -1, false, false,
                                     false);
}

static void test_choice(void) {
  const NVTEDType bf16 = kNVTEBFloat16;
  const NVTE_QKV_Layout bshd = NVTE_BSHD_BSHD_BSHD;
  if (case_begin("choice by arguments")) {
    NVTE_Fused_Attn_Backend kind =
        old_choice(bf16, bf16, bshd, NVTE_NO_BIAS, NVTE_CAUSAL_MASK, 8, 0, true);
    CHECK_EQ(kind, NVTE_F16_arbitrary_seqlen);
    kind = old_choice(bf16, bf16, NVTE_THD_THD_THD, NVTE_NO_BIAS, NVTE_PADDING_MASK, 2, 0, true);
    CHECK_EQ(kind, NVTE_F16_arbitrary_seqlen);
    kind =
        old_choice(kNVTEFloat8E4M3, kNVTEFloat8E4M3, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 8, 0, true);
    CHECK_EQ(kind, NVTE_FP8);
    kind = old_choice(bf16, bf16, bshd, NVTE_POST_SCALE_BIAS, NVTE_NO_MASK, 8, 0.1f, true);
    CHECK_EQ(kind, NVTE_F16_arbitrary_seqlen);
    kind = old_choice(kNVTEFloat32, kNVTEFloat32, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 8, 0, true);
    CHECK_EQ(kind, NVTE_F16_arbitrary_seqlen);
    EXPECT_OK();
    const struct {
      NVTEDType dtype;
      NVTE_QKV_Layout layout;
      NVTE_Bias_Type bias;
      NVTE_Mask_Type mask;
      size_t kv_heads;
      float dropout;
    } none[] = {{bf16, bshd, NVTE_PRE_SCALE_BIAS, NVTE_NO_MASK, 8, 0},
                {bf16, NVTE_THD_THD_THD, NVTE_NO_BIAS, NVTE_CAUSAL_MASK, 8, 0},
                {bf16, NVTE_Paged_KV_BSHD_BSHD_BSHD, NVTE_NO_BIAS, NVTE_PADDING_MASK, 8, 0},
                {bf16, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 3, 0},
                {bf16, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 0, 0},
                {bf16, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 8, 1},
                {bf16, NVTE_BS3HD, NVTE_NO_BIAS, NVTE_NO_MASK, 4, 0},
                {kNVTEInt32, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 8, 0}};
    for (size_t i = 0; i < COUNT(none); i++) {
      kind = old_choice(none[i].dtype, none[i].dtype, none[i].layout, none[i].bias, none[i].mask,
                        none[i].kv_heads, none[i].dropout, true);
      CHECK(kind == NVTE_No_Backend, "row %zu: %d", i, (int)kind);
      EXPECT_OK();
    }
    kind = old_choice(bf16, kNVTEFloat16, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 8, 0, true);
    CHECK_EQ(kind, NVTE_No_Backend);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_fused_attn_backend: kv_dtype",
                 "expected BFloat16", "got Float16");
    old_choice(bf16, bf16, NVTE_QKV_Layout_NOT_SET, NVTE_NO_BIAS, NVTE_NO_MASK, 8, 0, true);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_fused_attn_backend: qkv_layout", "got 26");
    old_choice((NVTEDType)77, (NVTEDType)77, bshd, NVTE_NO_BIAS, NVTE_NO_MASK, 8, 0, true);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_fused_attn_backend: q_dtype", "got 77");
  }
  if (case_begin("choice by a config")) {
    Run x = plain_run();
    x.c.training = true;
    NVTEFusedAttnConfig config = make_config(&x);
    const char *message = "?", *name = "?", *rejected = "?";
    size_t bytes = 77;
    NVTE_Fused_Attn_Backend kind = nvte_get_fused_attn_backend_v2(config, &message);
    CHECK_EQ(kind, NVTE_F16_arbitrary_seqlen);
    CHECK((message[0] == 0) == (kind != NVTE_No_Backend), "message \"%s\"", message);
    CHECK_EQ(nvte_get_fused_attn_backend_v2(config, NULL), kind);
    EXPECT_OK();
    // No implementation takes a bias before the scale, and the message says what to do.
    int pre = NVTE_PRE_SCALE_BIAS;
    nvte_set_fused_attn_config_attribute(config, kNVTEFusedAttnConfigBiasType, &pre, sizeof pre);
    CHECK_EQ(nvte_get_fused_attn_backend_v2(config, &message), NVTE_No_Backend);
    CHECK(strstr(message, "bias_type: expected NVTE_NO_BIAS, NVTE_POST_SCALE_BIAS") != NULL, "%s",
          message);
    for (int pass = 0; pass < 2; pass++) {
      kind = nvtex_fused_attn_query(config, (NVTEXAttentionPass)pass, &name, &rejected, &bytes);
      CHECK_EQ(kind, NVTE_No_Backend);
      CHECK(name == NULL && bytes == 0, "%s, %zu", name ? name : "null", bytes);
      CHECK(strstr(rejected, "bias_type") && strstr(rejected, "PRE_SCALE"), "%s", rejected);
    }
    CHECK_EQ(nvtex_fused_attn_query(config, NVTEX_ATTENTION_FORWARD, NULL, NULL, NULL),
             NVTE_No_Backend);
    EXPECT_OK();
    nvtex_fused_attn_query(config, (NVTEXAttentionPass)2, &name, &rejected, &bytes);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_fused_attn_query: pass", "got 2");
    nvtex_fused_attn_query(NULL, NVTEX_ATTENTION_FORWARD, &name, &rejected, &bytes);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_fused_attn_query: config", "got null");
    nvte_get_fused_attn_backend_v2(NULL, &message);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_fused_attn_backend_v2: config", "got null");
    CHECK(message[0] == 0, "message \"%s\"", message);
    // Malformed configs, with the argument that the message names.
    const struct {
      int attr, value;
      const char *name;
    } wrong[] = {{4, 6, "attn_mask_type"}, {5, 4, "bias_type"},    {9, 3, "softmax_type"},
                 {10, 7, "scaling_mode"},  {13, 11, "qkv_dtype"},  {14, -1, "o_dtype"},
                 {17, 26, "qkv_layout"},   {17, 30, "qkv_layout"}, {18, 9, "o_format"},
                 {19, 3, "do_format"},     {20, 27, "dqkv_layout"}};
    for (size_t i = 0; i < COUNT(wrong); i++) {
      NVTEFusedAttnConfig other = make_config(&x);
      nvte_set_fused_attn_config_attribute(other, (NVTEFusedAttnConfigAttribute)wrong[i].attr,
                                           &wrong[i].value, 4);
      CHECK_EQ(nvte_get_fused_attn_backend_v2(other, NULL), NVTE_No_Backend);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_get_fused_attn_backend_v2: ", wrong[i].name,
                   "got");
      nvte_destroy_fused_attn_config(other);
    }
    // Configs that are well formed and not possible, with the argument that the message names.
    const size_t huge = (size_t)1 << 40;
    const struct {
      int attr;
      size_t value, bytes;
      const char *name;
    } none[] = {{23, 0, 8, "batch_size"},   {24, 6, 8, ""},
                {24, 5, 8, "num_gqa"},      {26, 0, 8, "head_dim_qk"},
                {28, huge, 8, ""},          {6, (size_t)-2, 8, "window_size_left"},
                {14, 5, 4, "O.dtype"},      {15, 5, 4, "dO.dtype"},
                {18, 2, 4, "o_format"},     {17, 5, 4, "qkv_layout"},
                {20, 14, 4, "dqkv_layout"}, {11, 0x3F800000, 4, "dropout"}};
    for (size_t i = 0; i < COUNT(none); i++) {
      NVTEFusedAttnConfig other = make_config(&x);
      nvte_set_fused_attn_config_attribute(other, (NVTEFusedAttnConfigAttribute)none[i].attr,
                                           &none[i].value, none[i].bytes);
      kind = nvte_get_fused_attn_backend_v2(other, &message);
      EXPECT_OK();
      if (none[i].name[0] == 0) {
        nvte_destroy_fused_attn_config(other);
        continue;
      }
      CHECK(kind == NVTE_No_Backend && strstr(message, none[i].name), "row %zu: %d, %s", i,
            (int)kind, message);
      nvte_destroy_fused_attn_config(other);
    }
    nvte_destroy_fused_attn_config(config);
  }
}

// ---- Wrong calls

// One change, and the argument that the message names.
typedef struct Wrong {
  const char *argument;
  void (*spoil)(Run *x);
} Wrong;

static NVTETensor like(NVTETensor t, NVTEDType dtype, NVTEShape shape) {
  return tensor(nvte_tensor_data(t), dtype, shape);
}

static void spoil_q_null(Run *x) { x->q.handle = NULL; }
static void spoil_q_shape(Run *x) {
  x->q.handle = like(x->q.handle, kNVTEBFloat16, SHAPE(2, 70, 256));
}
static void spoil_q_length(Run *x) {
  x->q.handle = like(x->q.handle, kNVTEBFloat16, SHAPE(2, 69, 4, 64));
}
static void spoil_q_dtype(Run *x) {
  x->q.handle = like(x->q.handle, kNVTEInt16, SHAPE(2, 70, 4, 64));
  x->k.handle = like(x->k.handle, kNVTEInt16, SHAPE(2, 90, 2, 64));
  x->v.handle = like(x->v.handle, kNVTEInt16, SHAPE(2, 90, 2, 64));
  x->o.handle = like(x->o.handle, kNVTEInt16, SHAPE(2, 70, 4, 64));
}
static void spoil_k_dtype(Run *x) {
  x->k.handle = like(x->k.handle, kNVTEFloat16, SHAPE(2, 90, 2, 64));
}
static void spoil_k_heads(Run *x) {
  x->k.handle = like(x->k.handle, kNVTEBFloat16, SHAPE(2, 60, 3, 64));
  x->v.handle = like(x->v.handle, kNVTEBFloat16, SHAPE(2, 60, 3, 64));
  x->p.skv = 60;
}
static void spoil_k_dim(Run *x) {
  x->k.handle = like(x->k.handle, kNVTEBFloat16, SHAPE(2, 90, 2, 32));
}
static void spoil_v_null(Run *x) { x->v.handle = tensor(NULL, kNVTEBFloat16, SHAPE(2, 90, 2, 64)); }
static void spoil_v_address(Run *x) {
  x->v.handle = tensor(x->v.buffer->ptr + 8, kNVTEBFloat16, SHAPE(2, 90, 2, 64));
}
static void spoil_o_shape(Run *x) {
  x->o.handle = like(x->o.handle, kNVTEBFloat16, SHAPE(70, 2, 4, 64));
}
static void spoil_o_dtype(Run *x) {
  x->o.handle = like(x->o.handle, kNVTEFloat32, SHAPE(2, 70, 4, 64));
}
static void spoil_mask(Run *x) { x->c.mask = 9; }
static void spoil_layout(Run *x) { x->c.layout = 26; }
static void spoil_bias_type(Run *x) { x->c.bias = NVTE_PRE_SCALE_BIAS; }
static void spoil_bias(Run *x) { x->c.bias = NVTE_POST_SCALE_BIAS; }
static void spoil_bias_shape(Run *x) {
  x->c.bias = NVTE_POST_SCALE_BIAS;
  x->bias = tensor(x->q.buffer->ptr, kNVTEBFloat16, SHAPE(1, 3, 70, 90));
}
static void spoil_window(Run *x) { x->c.left = -2; }
static void spoil_dropout(Run *x) { x->p.dropout = 1; }
static void spoil_state(Run *x) {
  x->p.dropout = 0.5;
  x->rng = NULL;
}
static void spoil_lengths(Run *x) { x->c.mask = NVTE_PADDING_MASK; }
static void spoil_lengths_size(Run *x) {
  x->c.mask = NVTE_PADDING_MASK;
  x->cu[0] = ints((const int[]){0, 3}, 2);
  x->cu[1] = ints((const int[]){0, 3, 6}, 3);
}
static void spoil_sink(Run *x) { x->c.softmax = NVTE_LEARNABLE_SOFTMAX; }
static void spoil_softmax(Run *x) { x->c.softmax = 3; }
static void spoil_handle(Run *x) { x->k.handle = (NVTETensor)&x->p; }
static void spoil_paged(Run *x) {
  x->c.layout = NVTE_Paged_KV_BSHD_BSHD_BSHD;
  x->c.mask = NVTE_PADDING_MASK;
}

static const Wrong kWrong[] = {{"Q", spoil_q_null},
                               {"Q.shape", spoil_q_shape},
                               {"Q.shape", spoil_q_length},
                               {"Q.dtype", spoil_q_dtype},
                               {"K.dtype", spoil_k_dtype},
                               {"num_gqa_groups", spoil_k_heads},
                               {"K.shape", spoil_k_dim},
                               {"K", spoil_handle},
                               {"V.data", spoil_v_null},
                               {"V.data", spoil_v_address},
                               {"O.shape", spoil_o_shape},
                               {"O.dtype", spoil_o_dtype},
                               {"attn_mask_type", spoil_mask},
                               {"qkv_layout", spoil_layout},
                               {"bias_type", spoil_bias_type},
                               {"Bias.shape", spoil_bias},
                               {"Bias.shape", spoil_bias_shape},
                               {"window_size_left", spoil_window},
                               {"dropout", spoil_dropout},
                               {"rng_state", spoil_state},
                               {"cu_seqlens_q", spoil_lengths},
                               {"cu_seqlens_q", spoil_lengths_size},
                               {"SoftmaxOffset", spoil_sink},
                               {"softmax_type", spoil_softmax},
                               {"page_table_k", spoil_paged}};

static void spoil_do_shape(Run *x) {
  x->d_o.handle = like(x->d_o.handle, kNVTEBFloat16, SHAPE(2, 70, 4, 32));
}
static void spoil_dq_null(Run *x) {
  x->dq.handle = tensor(NULL, kNVTEBFloat16, SHAPE(2, 70, 4, 64));
}
static void spoil_dk_dtype(Run *x) {
  x->dk.handle = like(x->dk.handle, kNVTEFloat32, SHAPE(2, 90, 2, 64));
}
static void spoil_dv_shape(Run *x) {
  x->dv.handle = like(x->dv.handle, kNVTEBFloat16, SHAPE(2, 90, 4, 64));
}
static void spoil_dlayout(Run *x) { x->c.dqkv_layout = NVTE_THD_THD_THD; }
static void spoil_saved(Run *x) { x->saved = NULL; }
static void spoil_stats(Run *x) {
  NVTETensorPack *saved = host_memory(sizeof *saved);
  saved->tensors[0] = empty_tensor();
  saved->tensors[1] = x->rng;
  saved->size = 2;
  x->saved = saved;
}

static const Wrong kWrongBackward[] = {{"dO.shape", spoil_do_shape},
                                       {"dQ.data", spoil_dq_null},
                                       {"dK.dtype", spoil_dk_dtype},
                                       {"dV.shape", spoil_dv_shape},
                                       {"dqkv_layout", spoil_dlayout},
                                       {"Aux_CTX_Tensors", spoil_saved},
                                       {"Aux_CTX_Tensors.tensors[0] (Stats)", spoil_stats},
                                       {"Q", spoil_q_null},
                                       {"K.dtype", spoil_k_dtype},
                                       {"dropout", spoil_dropout},
                                       {"attn_mask_type", spoil_mask},
                                       {"bias_type", spoil_bias_type}};

static void test_errors(void) {
  for (int v1 = 0; v1 < 2; v1++) {
    const char *function = v1 ? "nvte_fused_attn_fwd: " : "nvte_fused_attn_fwd_v2: ";
    for (size_t i = 0; i < COUNT(kWrong); i++) {
      if (!case_begin("v%d forward, wrong %s %zu", v1 ? 1 : 2, kWrong[i].argument, i)) continue;
      Run x = plain_run();
      x.c.v1 = v1;
      build_forward(&x);
      nvte_tensor_pack_create(&x.pack);
      x.pack.size = 2;
      x.stats_data = buffer(numel(stats_shape(&x)) * sizeof(float));
      set_param(x.pack.tensors[0], kNVTERowwiseData, x.stats_data->ptr, kNVTEFloat32,
                stats_shape(&x));
      x.workspace = tensor(buffer(1 << 24)->ptr, kNVTEByte, SHAPE(1 << 24));
      kWrong[i].spoil(&x);
      call_forward(&x);
      char start[128];
      snprintf(start, sizeof start, "%s%s", function, kWrong[i].argument);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, start, "expected", "got");
      CHECK(untouched(x.o.buffer) && untouched(x.stats_data), "written");
      end(&x);
    }
    function = v1 ? "nvte_fused_attn_bwd: " : "nvte_fused_attn_bwd_v2: ";
    for (size_t i = 0; i < COUNT(kWrongBackward); i++) {
      if (!case_begin("v%d backward, wrong %s %zu", v1 ? 1 : 2, kWrongBackward[i].argument, i))
        continue;
      Run x = plain_run();
      if (start_forward(&x)) {
        build_backward(&x);
        x.c.v1 = v1;
        x.workspace = tensor(buffer(1 << 24)->ptr, kNVTEByte, SHAPE(1 << 24));
        kWrongBackward[i].spoil(&x);
        call_backward(&x);
        char start[128];
        snprintf(start, sizeof start, "%s%s", function, kWrongBackward[i].argument);
        EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, start, "expected", "got");
        CHECK(untouched(x.dq.buffer) && untouched(x.dk.buffer) && untouched(x.dv.buffer),
              "written");
      }
      end(&x);
    }
  }
  if (case_begin("wrong packs and workspaces")) {
    Run x = plain_run();
    x.c.v1 = true;
    g_text = g_test.name;
    build_forward(&x);
    nvte_tensor_pack_create(&x.pack);
    x.pack.size = 1;
    x.workspace = tensor(buffer(1 << 24)->ptr, kNVTEByte, SHAPE(1 << 24));
    call_forward(&x);
    EXPECT_ERROR(ANY_ERROR, "nvte_fused_attn_fwd: Aux_CTX_Tensors.size", "got 1");
    x.pack.size = 0;
    call_forward(&x);
    EXPECT_ERROR(ANY_ERROR, "nvte_fused_attn_fwd: Aux_CTX_Tensors.size", "got 0");
    x.pack.size = 2;
    call_forward(&x);
    EXPECT_ERROR(ANY_ERROR, "nvte_fused_attn_fwd: Aux_CTX_Tensors.tensors[0] (Stats)", "null");
    Buffer *stats = buffer(x.p.b * x.p.hq * x.p.sq * sizeof(float));
    set_param(x.pack.tensors[0], kNVTERowwiseData, stats->ptr, kNVTEFloat32,
              SHAPE(x.p.b, x.p.hq, x.p.sq, 1));
    x.workspace = tensor((char *)buffer(1 << 24)->ptr + 4, kNVTEByte, SHAPE((1 << 24) - 4));
    call_forward(&x);
    EXPECT_ERROR(ANY_ERROR, "nvte_fused_attn_fwd: workspace.data", "multiple of 16");
    x.workspace = NULL;
    call_forward(&x);
    EXPECT_ERROR(ANY_ERROR, "nvte_fused_attn_fwd: workspace", "got null");
    nvte_fused_attn_fwd_v2(NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_attn_fwd_v2: params", "got null");
    nvte_fused_attn_bwd_v2(NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_attn_bwd_v2: params", "got null");
    NVTEFusedAttnBwdParams other = nvte_create_fused_attn_bwd_params();
    nvte_fused_attn_fwd_v2(other);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_attn_fwd_v2: params", "got");
    nvte_destroy_fused_attn_bwd_params(other);
    CHECK(untouched(x.o.buffer), "written");
    end(&x);
  }
  // Arguments that only FP8 refuses.
  if (case_begin("scaling in blocks")) {
    Run x = plain_run();
    x.c.dtype = x.c.do_dtype = kNVTEFloat8E4M3;
    build_forward(&x);
    nvte_tensor_pack_create(&x.pack);
    x.q.handle = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
    set_param(x.q.handle, kNVTERowwiseData, x.q.buffer->ptr, kNVTEFloat8E4M3, SHAPE(2, 70, 4, 64));
    x.workspace = empty_tensor();
    call_forward(&x);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_fused_attn_fwd_v2: scaling_mode",
                 "NVTE_DELAYED_TENSOR_SCALING", "NVTE_MXFP8_1D_SCALING");
    end(&x);
  }
}

int main(int argc, char **argv) {
  setenv("NVTE_VERBOSE", "none", 0);  // messages that are expected
  test_begin(argc, argv);
  test_edges();
  if (case_begin("plain")) {
    Run x = plain_run();
    both_passes(&x);
  }
  test_again();
  test_again_as_a_drop_in();
  test_optional();
  test_long();
  test_empty();
  test_widths();
  test_added();
  test_lowest_bias();
  test_growing();
  test_pages();
  test_fp8();
  test_choice();
  test_errors();
  int status = test_end();
  printf("%u passes ran, %u declined\n", g_ran, g_declined_passes);
  return status;
}
