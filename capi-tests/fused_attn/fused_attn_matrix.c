// Attention, both passes, on configurations drawn from everything that can be combined, against the
// reference in float64; and the reference against differences.
#include "attention_common.h"

// ---- The reference

// Differences of the loss sum(o d_o) confirm the gradients of the reference.
static void check_derivative(Problem *p, const char *name, double *value, double gradient) {
  const double h = 1e-5, old = *value;
  double loss[2];
  for (int side = 0; side < 2; side++) {
    *value = old + (side ? -h : h);
    Problem moved = *p;
    reference_forward(&moved);
    loss[side] = dot(moved.o, p->d_o, p->b * p->sq * p->hq * p->dv);
  }
  *value = old;
  double got = (loss[0] - loss[1]) / (2 * h);
  CHECK(fabs(got - gradient) <= 1e-7 * (1 + fabs(gradient)), "%s: difference %g, gradient %g", name,
        got, gradient);
}

static void test_reference(void) {
  for (int variant = 0; variant < 12; variant++) {
    if (!case_begin("reference, variant %d", variant)) continue;
    Problem p = {.b = 2, .hq = 4, .hkv = variant % 2 ? 2 : 4, .sq = 5, .skv = 7, .dqk = 3, .dv = 4};
    p.lq[0] = 5, p.lk[0] = 7, p.lq[1] = 4, p.lk[1] = variant == 7 ? 2 : 6;
    p.scale = 0.7, p.left = p.right = -1;
    p.inv_q = p.inv_k = p.inv_v = p.inv_o = p.inv_do = p.inv_s = p.inv_dp = 1;
    if (variant >= 3) p.right = variant % 3;
    if (variant >= 5) p.left = 2;
    p.bottom_right = variant >= 6;
    p.alibi = variant == 4;
    p.dropout = variant >= 9 ? 0.3 : 0;
    p.seed = 77, p.offset = 12;
    struct {
      const char *name;
      double **values, **gradients;
      size_t count;
    } inputs[] = {{"q", &p.q, &p.dq, p.b * p.sq * p.hq * p.dqk},
                  {"k", &p.k, &p.dk, p.b * p.skv * p.hkv * p.dqk},
                  {"v", &p.v, &p.d_v, p.b * p.skv * p.hkv * p.dv},
                  {"bias", &p.bias, &p.dbias, 0},
                  {"sink", &p.sink, &p.dsink, 0},
                  {"d_o", &p.d_o, NULL, p.b * p.sq * p.hq * p.dv}};
    const size_t dims[4] = {variant & 1 ? 1 : p.b, variant & 2 ? 1 : p.hq, variant & 4 ? 1 : p.sq,
                            p.skv};
    memcpy(p.bias_dims, dims, sizeof dims);
    if (variant % 4 != 1) inputs[3].count = dims[0] * dims[1] * dims[2] * dims[3];
    if (variant % 3 != 1) inputs[4].count = p.hq;
    for (size_t t = 0; t < COUNT(inputs); t++) {
      if (inputs[t].count == 0) continue;
      *inputs[t].values = doubles(inputs[t].count);
      for (size_t n = 0; n < inputs[t].count; n++) (*inputs[t].values)[n] = random_uniform(-1, 1);
    }
    reference_forward(&p);
    reference_backward(&p);
    for (size_t t = 0; t < COUNT(inputs) - 1; t++) {
      for (int n = 0; n < 12 && inputs[t].count; n++) {
        size_t at = random_below(inputs[t].count);
        check_derivative(&p, inputs[t].name, *inputs[t].values + at, (*inputs[t].gradients)[at]);
      }
    }
  }
}

// ---- Configurations

static int pick(const int *from, size_t n) { return from[random_below(n)]; }
#define PICK(...) pick((const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int))

static void draw_lengths(Problem *p, bool padding, bool same) {
  for (size_t i = 0; i < p->b; i++) {
    p->lq[i] = (int)p->sq, p->lk[i] = (int)p->skv;
    if (!padding) continue;
    for (int side = 0; side < 2; side++) {
      int *length = side ? &p->lk[i] : &p->lq[i], most = *length;
      switch (random_below(8)) {
        case 0:
          *length = 0;
          break;
        case 1:
          *length = most < 1 ? most : 1;
          break;
        case 2:
          break;
        default:
          *length = (int)random_below((size_t)most + 1);
      }
    }
    if (same) p->lk[i] = p->lq[i];
  }
}

// Draws where packed sequences begin: with room between them, or (no_padded) without.
static void draw_starts(const Problem *p, Config *c, int side) {
  const int *lengths = side ? p->lk : p->lq;
  int at = c->no_padded ? 0 : (int)random_below(4);
  for (size_t i = 0; i < p->b; i++) {
    c->starts[side][i] = at;
    at += lengths[i] + (c->no_padded ? 0 : (int)random_below(4));
  }
  c->starts[side][p->b] = at;
  c->tokens[side] = at + (int)random_below(3);
  if (c->tokens[side] == 0) c->tokens[side] = 1;
}

static void draw(Run *x) {
  Problem *p = &x->p;
  Config *c = &x->c;
  c->dtype = (NVTEDType)PICK(kNVTEFloat32, kNVTEFloat16, kNVTEFloat16, kNVTEBFloat16, kNVTEBFloat16,
                             kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E4M3, kNVTEFloat8E5M2);
  bool fp8 = is_fp8(c->dtype);
  c->layout = (int)random_below(26);
  LayoutInfo l = layout_info(c->layout);
  bool ragged = l.q == THD || l.kv == THD;
  c->mask = ragged || l.paged ? PICK(1, 3, 5) : (int)random_below(6);
  bool padding = c->mask % 2 == 1;
  c->o_dtype = c->do_dtype = c->dqkv_dtype = c->bias_dtype = c->dtype;
  if (fp8) {
    c->o_dtype = (NVTEDType)PICK(kNVTEFloat8E4M3, kNVTEBFloat16, kNVTEFloat16);
    c->do_dtype = (NVTEDType)PICK(kNVTEFloat8E4M3, kNVTEFloat8E5M2);
    c->dqkv_dtype = (NVTEDType)PICK(kNVTEFloat8E5M2, kNVTEFloat8E4M3, kNVTEBFloat16, kNVTEFloat16);
    c->bias_dtype = (NVTEDType)PICK(kNVTEFloat32, kNVTEBFloat16);
  }
  p->b = 1 + random_below(3);
  p->hkv = (size_t)PICK(1, 1, 2, 3);
  p->hq = l.together == 3 ? p->hkv : p->hkv * (size_t)PICK(1, 1, 2, 3);
  p->dqk = (size_t)PICK(16, 32, 64, 64, 128);
  if (!fp8 && random_below(3) == 0)
    p->dqk = (size_t)PICK(8, 24, 40, 72, 96, 136, 192, 192, 224, 256, 256);
  if (fp8 && random_below(4) == 0) p->dqk = (size_t)PICK(96, 144, 192, 256, 256);
  if (random_below(12) == 0) p->dqk = (size_t)PICK(1, 5, 20, 67, 300);
  p->dv = l.together > 1 || random_below(4) ? p->dqk : (size_t)PICK(16, 32, 64, 128);
  if (l.together < 2 && p->dqk > 128 && random_below(2)) p->dv = (size_t)PICK(128, 128, 256);
  if (l.together == 1 && random_below(20) == 0) p->dv = (size_t)PICK(3, 33, 264);
  static const int lengths[] = {1,   2,   7,   16,  33,  64,  65,  100, 127, 128,
                                129, 136, 200, 260, 264, 300, 513, 520, 1025};
  do {
    p->sq = (size_t)pick(lengths, COUNT(lengths));
    p->skv = random_below(2) ? p->sq : (size_t)pick(lengths, COUNT(lengths));
    if (l.together == 3) p->skv = p->sq;
  } while (p->b * p->hq * p->sq * p->skv * (p->dqk + p->dv) > (on_cuda() ? 10000000u : 6000000u));
  draw_lengths(p, padding, l.together == 3);
  c->left = random_below(3) ? -1 : PICK(0, 1, 4, 40, 130, 1000);
  c->right = random_below(3) ? -1 : PICK(0, 0, 1, 3, 50, 1000);
  c->bottom_right = random_below(2);
  bool causal = c->mask > 1;
  p->left = c->left, p->right = causal ? 0 : c->right;
  p->bottom_right = causal ? c->mask > 3 : c->bottom_right;
  c->bias = PICK(0, 0, 0, 2, 2, 3);
  if (fp8 && random_below(4)) c->bias = 0;
  p->alibi = c->bias == 3;
  const size_t dims[4] = {random_below(2) ? p->b : 1, random_below(2) ? p->hq : 1,
                          random_below(4) ? p->sq : 1, p->skv};
  memcpy(p->bias_dims, dims, sizeof dims);
  c->softmax = PICK(0, 0, 1, 2, 2);
  c->null_sink = c->softmax == 1 && random_below(2);
  p->dropout = (float)(random_below(3) ? 0 : 0.1 * (double)PICK(1, 5, 9));
  p->scale = (float)(random_below(4) ? 1 / sqrt((double)p->dqk) : 0.7);
  c->max_logit = random_below(3) == 0;
  c->deterministic = random_below(2);
  c->training = p->dropout > 0 || random_below(2);
  c->v1 = random_below(2);
  c->no_padded = random_below(4) == 0;
  draw_starts(p, c, 0);
  draw_starts(p, c, 1);
  if (l.together == 3) {
    memcpy(c->starts[1], c->starts[0], sizeof c->starts[0]);
    c->tokens[1] = c->tokens[0];
  }
  if (l.paged) {
    c->page_size = PICK(1, 4, 8, 16, 32, 48, 64, 128);
    c->per_sequence = (int)p->skv / c->page_size + 1 + (int)random_below(2);
    c->pages = 1 + (int)random_below(3);
    for (size_t i = 0; i < p->b; i++) c->pages += (p->lk[i] + c->page_size - 1) / c->page_size;
  }
  c->o_order = c->do_order = l.q;
  c->dqkv_layout = c->layout;
  if (l.q != THD && random_below(4) == 0) {
    c->o_order = (Order)PICK(SBHD, BSHD, BHSD), c->do_order = (Order)PICK(SBHD, BSHD, BHSD);
  }
  if (random_below(5) == 0 && !l.paged) {
    // Any layout of the same kind.
    int base = l.q == THD && l.kv == THD ? 10 : (int)random_below(2) * 5;
    if (l.q == THD && l.kv != THD) base = c->layout;
    c->dqkv_layout = base == c->layout ? base : base + 4;
    if (base != c->layout && p->dqk == p->dv && random_below(2))
      c->dqkv_layout = base + 2 + (int)random_below(2);
  }
}

static const char *describe(const Run *x) {
  static char text[512];
  const Problem *p = &x->p;
  const Config *c = &x->c;
  int n =
      snprintf(text, sizeof text,
               "layout %d->%d o%d do%d, %s->%s,%s,%s, b%zu h%zu/%zu s%zu,%zu d%zu,%zu, mask %d, "
               "window %lld,%lld br%d, bias %d %zux%zux%zu, softmax %d%s, dropout %g, max %d, "
               "det %d, v%d, page %d, pad %d, lengths",
               c->layout, c->dqkv_layout, c->o_order, c->do_order, dtype_name(c->dtype),
               dtype_name(c->o_dtype), dtype_name(c->do_dtype), dtype_name(c->dqkv_dtype), p->b,
               p->hq, p->hkv, p->sq, p->skv, p->dqk, p->dv, c->mask, (long long)c->left,
               (long long)c->right, c->bottom_right, c->bias, p->bias_dims[0], p->bias_dims[1],
               p->bias_dims[2], c->softmax, c->null_sink ? " (no offsets)" : "", p->dropout,
               c->max_logit, c->deterministic, c->v1 ? 1 : 2, c->page_size, !c->no_padded);
  for (size_t i = 0; i < p->b; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, " %d,%d", p->lq[i], p->lk[i]);
  return text;
}

static void run_both(Run *x) {
  g_text = describe(x);
  build_forward(x);
  bool ran = run_forward(x);
  if (ran && !layout_info(x->c.layout).paged) run_backward(x);
  nvte_tensor_pack_destroy(&x->pack);
}

static void test_matrix(void) {
  const int count = 1200;
  for (int n = 0; n < count; n++) {
    if (!case_begin("matrix %d", n)) continue;
    Run x = {0};
    draw(&x);
    run_both(&x);
  }
}

// FP8 with so many queries for each key that it pays to turn the values: without a mask, causal
// from the top, causal from the bottom, and causal with a window.
static void test_many_queries(void) {
  for (int n = 0; n < 32; n++) {
    if (!case_begin("many queries %d", n)) continue;
    Run x = {0};
    Problem *p = &x.p;
    Config *c = &x.c;
    bool packed = n % 2 == 1;
    int causal = (int[]){0, 2, 4, 2}[n / 4 % 4];
    c->layout = c->dqkv_layout = packed ? NVTE_THD_THD_THD : NVTE_BSHD_BSHD_BSHD;
    c->mask = causal + packed;
    c->dtype = c->do_dtype = c->dqkv_dtype = c->bias_dtype = kNVTEFloat8E4M3;
    c->o_dtype = n % 4 < 2 ? kNVTEBFloat16 : kNVTEFloat8E4M3;
    c->o_order = c->do_order = layout_info(c->layout).q;
    c->left = p->left = n % 16 >= 12 ? 200 : -1;
    c->right = p->right = causal ? 0 : -1;
    p->bottom_right = causal == 4;
    p->b = packed ? 2 : 1, p->hq = 8, p->hkv = 1, p->sq = 512;
    p->skv = (size_t[]){130, 300, 33, 129}[n % 4] + (causal ? 260 : 0);
    p->dqk = (size_t[]){128, 128, 96, 112, 256, 144, 96, 240}[n % 4 + n / 16 * 4];
    p->dv = n < 16 ? p->dqk : (size_t[]){256, 256, 144, 208}[n % 4];
    p->scale = (float)(1 / sqrt((double)p->dqk));
    draw_lengths(p, packed, false);
    draw_starts(p, c, 0);
    draw_starts(p, c, 1);
    g_text = describe(&x);
    build_forward(&x);
    run_forward(&x);
    nvte_tensor_pack_destroy(&x.pack);
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_reference();
  test_matrix();
  test_many_queries();
  int status = test_end();
  printf("%u passes ran, %u declined\n", g_ran, g_declined_passes);
  return status;
}
