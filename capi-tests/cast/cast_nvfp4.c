// Casts to NVFP4 and back against a reference of their definition (optim_nvfp4.md, sections 8 to
// 13). The random words are laid out as by the threads of the kernels that the specification
// describes.
#include "nvte/cast.h"

#include "nvfp4.h"

// ---- A case

typedef enum Mode { PLAIN, SQUARE, SCALED, ABSOLUTE, SQUARES, ABSOLUTE_SQUARE } Mode;

static const char *const kModes[] = {"1D",         "2D",         "row-scaled",
                                     "4over6 MAE", "4over6 MSE", "4over6 MAE 2D"};

typedef struct Case {
  NVTEDType dtype;
  size_t rows, cols;
  Mode mode;
  Directions directions;
  bool swizzled, stochastic, fast_math, fast_error, misaligned, specials, general_amax;
  bool bounds;  // Rows have what lies around the bounds between codes, in place of what is random.
  int e4m3_max;
  float noop;  // 0 for none
  uint64_t rng[2];
  // These fields are filled in by the run.
  float *x;
  float amax[2];
  Buffer *data[2], *scales[2], *amaxes[2];
  // One word for each 4 elements of a block, [direction][line][block][4].
  uint32_t *words[2];
} Case;

static size_t lines_of(const Case *c, int d) { return d ? c->cols : c->rows; }
static size_t length_of(const Case *c, int d) { return d ? c->rows : c->cols; }

// ---- Random words: each thread takes those of its calls one after the other.

typedef struct Stream {
  uint64_t seed, offset, sequence, next;
  uint32_t words[4];
} Stream;

static uint32_t draw(Stream *s) {
  if (s->next % 4 == 0) philox(s->seed, s->offset, s->sequence, s->next / 4, s->words);
  return s->words[s->next++ % 4];
}

static void give(Case *c, int d, size_t line, size_t from, Stream *s, int quarter, int count) {
  for (int i = 0; i < count; i++) {
    uint32_t word = draw(s);
    if (line >= lines_of(c, d) || from >= length_of(c, d)) continue;
    c->words[d][(line * up(length_of(c, d), 16) + from) / 4 + quarter + i] = word;
  }
}

static void draw_words(Case *c) {
  bool row = c->directions & ROWWISE, col = c->directions & COLWISE;
  bool aligned = c->dtype == kNVTEBFloat16 && c->rows % 32 == 0 && c->cols % 32 == 0;
  for (int d = 0; d < 2; d++) {
    c->words[d] = host_memory(lines_of(c, d) * up(length_of(c, d), 16));
  }
  size_t across = (c->cols + 127) / 128, down = (c->rows + 127) / 128;
  for (size_t by = 0; by < down; by++) {
    for (size_t bx = 0; bx < across; bx++) {
      size_t r0 = 128 * by, c0 = 128 * bx, tile = bx + by * across;
      int threads = aligned && (row || c->mode == SQUARE) ? 128 : 256;
      for (int t = 0; t < threads; t++) {
        Stream s = {c->rng[0], c->rng[1], t + threads * tile, 0, {0}};
        int lane = t % 32, warp = t / 32;
        if (threads == 256) {
          for (int it = 0; it < 4 && row; it++) {
            give(c, 0, r0 + t / 8 + 32 * it, c0 + 16 * (t % 8), &s, 0, 4);
          }
          for (int it = 0; it < 4 && col; it++) {
            give(c, 1, c0 + 2 * (t / 8 + 32 * (it / 2)) + it % 2, r0 + 16 * (t % 8), &s, 0, 4);
          }
        } else if (c->mode == SQUARE) {
          for (int strip = 0; strip < 4; strip++) {
            size_t r = r0 + 32 * strip;
            for (int it = 0; it < 2 && col; it++) give(c, 1, c0 + t, r + 16 * it, &s, 0, 4);
            for (int it = 0; it < 2 && row; it++) {
              for (int w = 0; w < 2; w++) {
                give(c, 0, r + t / 8 + 16 * it, c0 + 16 * (t % 8), &s, (w + lane / 16) % 2 * 2, 2);
              }
            }
          }
        } else {
          for (int sub = 0; sub < 4; sub++) {
            size_t r = r0 + 64 * (sub / 2), left = c0 + 64 * (sub % 2);
            for (int it = 0; it < 2; it++) {
              for (int w = 0; w < 2; w++) {
                give(c, 0, r + t / 4 + 32 * it, left + 16 * (t % 4), &s, (w + lane / 16) % 2 * 2,
                     2);
              }
            }
            for (int w = 0; w < 2 && col; w++) {
              give(c, 1, left + 2 * lane + w, r + 16 * ((lane / 2 + warp) % 4), &s, 0, 4);
            }
          }
        }
      }
    }
  }
}

// ---- The reference

static float at(const Case *c, int d, size_t line, size_t i) {
  if (line >= lines_of(c, d) || i >= length_of(c, d)) return 0;
  return c->x[d ? i * c->cols + line : line * c->cols + i];
}

static float block_amax(const Case *c, int d, size_t line, size_t from) {
  bool square = c->mode == SQUARE || c->mode == ABSOLUTE_SQUARE;
  size_t first = square ? line / 16 * 16 : line, last = square ? first + 16 : first + 1;
  float most = 0;
  for (size_t l = first; l < last; l++) {
    for (size_t i = from; i < from + 16; i++) most = fmaxf(most, fabsf(at(c, d, l, i)));
  }
  return most;
}

static float line_amax(const Case *c, int d, size_t line) {
  float most = 0;
  for (size_t i = 0; i < length_of(c, d); i++) most = fmaxf(most, fabsf(at(c, d, line, i)));
  return most;
}

// One candidate of 4over6: its codes and its error.
static float candidate(const Case *c, int d, size_t line, size_t from, float amax, float scale,
                       unsigned s, unsigned codes[16]) {
  float factor = fminf(1 / (e4m3_value(s) * (1 / scale)), FLT_MAX), sum = 0;
  for (int i = 0; i < 16; i++) {
    float x = at(c, d, line, from + i);
    float y = x * factor;
    codes[i] = e2m1(y);
    float value = (float)e2m1_value(codes[i]) * e4m3_value(s);
    float error;
    if (c->fast_error) {
      float target = x * scale;
      error = value - target;
    } else {
      float product = value * amax;
      error = product / (6 * (float)c->e4m3_max) - x;
    }
    float square = error * error;
    sum += c->mode == SQUARES ? square : fabsf(error);
  }
  return sum;
}

static float pairs(float *sums, int n) {
  for (n /= 2; n > 0; n /= 2) {
    for (int i = 0; i < n; i++) sums[i] += sums[i + n];
  }
  return sums[0];
}

static unsigned reference(const Case *c, int d, size_t line, size_t from, unsigned codes[16]) {
  float amax = c->mode == SCALED ? line_amax(c, d, line) : c->amax[d];
  float scale = global_scale(amax, (float)c->e4m3_max), b = block_amax(c, d, line, from);
  if (c->mode >= ABSOLUTE) {
    float sixth = b / 6;
    float base = sixth * scale, base4 = base * 1.5f, errors[2][16];
    unsigned s[2] = {e4m3(fminf(base, 448)), e4m3(fminf(base4, 448))}, other[16];
    if (c->mode == ABSOLUTE_SQUARE) {
      for (size_t l = 0; l < 16; l++) {
        for (int k = 0; k < 2; k++) {
          errors[k][l] = candidate(c, d, line / 16 * 16 + l, from, amax, scale, s[k], other);
        }
      }
      pairs(errors[0], 16), pairs(errors[1], 16);
    } else {
      for (int k = 0; k < 2; k++) {
        errors[k][0] = candidate(c, d, line, from, amax, scale, s[k], other);
      }
    }
    int best = errors[1][0] < errors[0][0];
    candidate(c, d, line, from, amax, scale, s[best], codes);
    return s[best];
  }
  float sixth = scale * (1.0f / 6);
  float product = b * sixth;
  unsigned s = e4m3(fminf(product, FLT_MAX));
  float scaled = e4m3_value(s) * (1 / scale);
  float factor = fminf(1 / scaled, FLT_MAX);
  bool aligned = c->dtype == kNVTEBFloat16 && c->rows % 32 == 0 && c->cols % 32 == 0;
  bool fast = c->fast_math && aligned && c->mode != SQUARE && c->directions & ROWWISE;
  if (fast) factor = (float)round_to(kNVTEBFloat16, fminf(scale / e4m3_value(s), 0x1.FEp127f));
  for (int i = 0; i < 16; i++) {
    float y = at(c, d, line, from + i) * factor;
    if (fast && y == 0) y = fabsf(y);
    if (!c->stochastic) {
      codes[i] = e2m1(y);
      continue;
    }
    uint32_t word = c->words[d][(line * up(length_of(c, d), 16) + from + i) / 4];
    codes[i] = stochastic(y, word >> (8 * (i % 4)) & 255);
  }
  return s;
}

// ---- Run and compare

static size_t scale_at(const Case *c, int d, size_t line, size_t block) {
  return scale_index(line, block, up((length_of(c, d) + 15) / 16, 4), c->swizzled);
}

// 16 elements of a row: one that sets the scale, and the BF16 numbers next to each bound.
static void put_bounds(const Case *c, void *bits, size_t at) {
  static const double kBounds[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5};
  float scale = global_scale(c->amax[0], (float)c->e4m3_max), sixth = scale * (1.0f / 6);
  double b = round_to(kNVTEBFloat16, random_uniform(0.01, 1) * c->amax[0]);
  float scaled = e4m3_value(e4m3((float)b * sixth)) * (1 / scale);
  put_value(c->dtype, bits, at, b);
  put_value(c->dtype, bits, at + 1, 0);
  for (size_t i = 0; i < COUNT(kBounds); i++) {
    double x = kBounds[i] * (double)scaled, unit = ldexp(1, ilogb(x) - 7);
    for (int k = 0; k < 2; k++) {
      double v = (floor(x / unit) + k) * unit;
      put_value(c->dtype, bits, at + 2 + 2 * i + k, random_u64() % 2 ? v : -v);
    }
  }
}

static NVTETensor build(Case *c, NVTETensor *input) {
  // A power of two as scale, so that ties occur, or any.
  c->amax[0] = c->general_amax ? 7.3f : (float)c->e4m3_max * 6 / 256;
  c->amax[1] = c->general_amax ? 11.1f : (float)c->e4m3_max * 6 / 512;
  size_t n = c->rows * c->cols, size = dtype_size(c->dtype);
  unsigned char *bits = host_memory(n * size);
  c->x = host_memory(n * sizeof *c->x);
  for (size_t i = 0; i < n; i++) {
    double v = random_uniform(-1, 1);
    v *= ldexp(1, (int)(random_u64() % 12) - 6);
    // Some values are multiples of a quarter, which are ties between codes.
    if (random_u64() % 4 == 0) v = (double)(random_u64() % 49) / 4 - 6;
    if (random_u64() % 32 == 0) v = random_u64() % 2 ? 0.0 : -0.0;
    if (c->specials && random_u64() % 64 == 0) v = random_u64() % 2 ? NAN : -1e-30;
    if (c->specials && random_u64() % 512 == 0) v = -INFINITY;
    put_value(c->dtype, bits, i, v);
    if (c->bounds && i % 16 == 15) put_bounds(c, bits, i - 15);
  }
  for (size_t i = 0; i < n; i++) {
    c->x[i] = (float)get_value(c->dtype, bits, i);
  }
  Buffer *in = buffer_from(bits, n * size, c->misaligned ? size : 0);
  *input = tensor(in->ptr, c->dtype, SHAPE(c->rows, c->cols));
  NVTETensor t = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
  uint8_t flag = c->swizzled, scaled = c->mode == SCALED;
  nvte_set_tensor_param_v2(t, kNVTEWithGEMMSwizzledScales, &flag, sizeof flag);
  nvte_set_tensor_param_v2(t, kNVTERowScaledNVFP4, &scaled, sizeof scaled);
  nvte_set_tensor_param_v2(t, kNVTENVFP4E4M3Max, &c->e4m3_max, sizeof c->e4m3_max);
  for (int d = 0; d < 2; d++) {
    if (!(c->directions & (d ? COLWISE : ROWWISE))) continue;
    size_t lines = lines_of(c, d), length = length_of(c, d);
    size_t dims[2] = {up(lines, 128), up((length + 15) / 16, 4)};
    c->data[d] = buffer_shifted(lines * length / 2, c->misaligned);
    c->scales[d] = buffer_shifted(dims[0] * dims[1], c->misaligned);
    c->amaxes[d] = c->mode == SCALED ? buffer(lines * 4) : buffer_float(c->amax[d]);
    set_param(t, d ? kNVTEColumnwiseData : kNVTERowwiseData, c->data[d]->ptr, kNVTEFloat4E2M1,
              SHAPE(lines, length));
    set_param(t, d ? kNVTEColumnwiseScaleInv : kNVTERowwiseScaleInv, c->scales[d]->ptr,
              kNVTEFloat8E4M3, SHAPE(dims[0], dims[1]));
    set_param(t, d ? kNVTEColumnwiseAmax : kNVTEAmax, c->amaxes[d]->ptr, kNVTEFloat32,
              SHAPE(c->mode == SCALED ? lines : 1));
  }
  EXPECT_OK();
  return t;
}

static NVTEQuantizationConfig config_of(const Case *c) {
  NVTEQuantizationConfig config = quant_config();
  uint8_t one = 1, over = c->mode >= ABSOLUTE ? (c->mode == SQUARES ? 2 : 1) : 0;
  if (c->mode == SQUARE || c->mode == ABSOLUTE_SQUARE) {
    set_quant(config, kNVTEQuantizationConfigNVFP42DQuantization, &one, 1);
  }
  set_quant(config, kNVTEQuantizationConfigNVFP44Over6Mode, &over, 1);
  if (c->fast_error) set_quant(config, kNVTEQuantizationConfigNVFP44Over6ErrUseFastMath, &one, 1);
  if (c->fast_math) set_quant(config, kNVTEQuantizationConfigUseFastMath, &one, 1);
  if (c->stochastic) {
    set_quant(config, kNVTEQuantizationConfigStochasticRounding, &one, 1);
    Buffer *state = buffer_from(c->rng, sizeof c->rng, 0);
    NVTETensor rng = tensor(state->ptr, kNVTEInt64, SHAPE(2));
    set_quant(config, kNVTEQuantizationConfigRNGState, &rng, sizeof rng);
  }
  if (c->noop != 0) {
    NVTETensor noop = float_tensor(buffer_float(c->noop));
    set_quant(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof noop);
  }
  return config;
}

static void compare(Case *c) {
  for (int d = 0; d < 2; d++) {
    if (!c->data[d]) continue;
    const unsigned char *data = buffer_read(c->data[d]), *scales = buffer_read(c->scales[d]);
    const float *amax = buffer_read(c->amaxes[d]);
    size_t lines = lines_of(c, d), length = length_of(c, d), bad = 0;
    unsigned char *written = host_memory(c->scales[d]->bytes);
    memset(written, 0, c->scales[d]->bytes);
    for (size_t line = 0; line < lines && bad < 3; line++) {
      if (c->mode == SCALED) {
        float most = line_amax(c, d, line);
        bad += !CHECK(amax[line] == most, "%s amax[%zu]: got %a, expected %a", d ? "col" : "row",
                      line, amax[line], most);
      }
      for (size_t from = 0; from < length && bad < 3; from += 16) {
        unsigned codes[16], s = reference(c, d, line, from, codes);
        size_t at_scale = scale_at(c, d, line, from / 16);
        written[at_scale] = 1;
        bad += !CHECK(scales[at_scale] == s, "%s scale[%zu][%zu]: got 0x%02x, expected 0x%02x",
                      d ? "col" : "row", line, from / 16, scales[at_scale], s);
        for (size_t i = 0; i < 16 && from + i < length && bad < 3; i++) {
          size_t element = line * length + from + i;
          unsigned got = data[element / 2] >> (element % 2 * 4) & 15;
          bad += !CHECK(got == codes[i], "%s [%zu][%zu] x = %a: got %x, expected %x",
                        d ? "col" : "row", line, from + i, at(c, d, line, from + i), got, codes[i]);
        }
      }
    }
    size_t padding = 0;
    for (size_t i = 0; i < c->scales[d]->bytes; i++) {
      padding += !written[i] && scales[i] != POISON_VALUE;
    }
    CHECK(padding == 0 || bad > 0, "%zu scales of the padding were written", padding);
  }
}

static void run(Case c) {
  static const char *const kDirections[] = {"", "rows", "columns", "both"};
  if (!case_begin("%zux%zu %s %s %s%s%s%s%s%s%s%s%s %d", c.rows, c.cols, dtype_name(c.dtype),
                  kModes[c.mode], kDirections[c.directions], c.swizzled ? " swizzled" : "",
                  c.stochastic ? " stochastic" : "", c.fast_math ? " fast" : "",
                  c.fast_error ? " fast-error" : "", c.misaligned ? " misaligned" : "",
                  c.specials ? " specials" : "", c.general_amax ? " amax" : "",
                  c.bounds ? " bounds" : "", c.e4m3_max)) {
    return;
  }
  NVTETensor input, output = build(&c, &input);
  NVTEQuantizationConfig config = config_of(&c);
  if (c.stochastic) draw_words(&c);
  nvte_quantize_v2(input, output, config, NULL);
  if (!EXPECT_OK()) return;
  compare(&c);
}

static void test_quantize(void) {
  static const size_t shapes[][2] = {{32, 32}, {128, 128}, {64, 192},  {160, 96}, {16, 16},
                                     {48, 80}, {2, 2},     {130, 254}, {18, 34},  {272, 304}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
      for (int mode = PLAIN; mode <= ABSOLUTE_SQUARE; mode++) {
        for (int directions = ROWWISE; directions <= BOTH; directions++) {
          Case c = {.dtype = kHighPrecision[t],
                    .rows = shapes[s][0],
                    .cols = shapes[s][1],
                    .mode = (Mode)mode,
                    .directions = (Directions)directions,
                    .e4m3_max = 448,
                    .rng = {0x123456789ABCDEF, UINT64_MAX - 3}};
          bool blocks = c.rows % 16 == 0 && c.cols % 16 == 0;
          if (mode >= SCALED && !blocks) continue;
          // The reference takes long for these modes.
          if (mode == ABSOLUTE_SQUARE && c.rows * c.cols > 4096) continue;
          if (c.rows * c.cols > 40000 && mode > SQUARE) continue;
          if (mode == SCALED && directions == COLWISE) continue;
          if (mode == ABSOLUTE_SQUARE && directions == COLWISE) continue;
          run(c);
          c.general_amax = true;
          run(c);
          c.swizzled = true;
          run(c);
          if (mode >= ABSOLUTE) {
            c.e4m3_max = 256, c.fast_error = true;
            run(c);
            c.e4m3_max = 448;
          } else {
            c.stochastic = true;
            run(c);
            c.stochastic = false, c.fast_math = true;
            run(c);
          }
          c.swizzled = false, c.misaligned = true;
          run(c);
          c.misaligned = false, c.general_amax = false, c.specials = true;
          run(c);
        }
      }
    }
  }
}

// More tiles than any GPU has room for, and every bound between codes.
static void test_bounds(void) {
  static const size_t shapes[][2] = {{35984, 16}, {16, 36016}, {512, 256}};
  static const size_t drawn[][2] = {{36000, 32}, {32, 36000}};
  for (int kind = 0; kind < 4; kind++) {
    Case c = {.dtype = kNVTEBFloat16,
              .directions = BOTH,
              .general_amax = kind % 2,
              .swizzled = kind / 2,
              .bounds = true,
              .e4m3_max = 448};
    for (size_t s = 0; s < COUNT(shapes); s++) {
      c.rows = shapes[s][0], c.cols = shapes[s][1];
      run(c);
    }
    for (int mode = ABSOLUTE; mode <= SQUARES; mode++) {
      c.mode = (Mode)mode;
      for (int fast = 0; fast < 2; fast++) {
        c.fast_error = fast;
        run(c);
      }
    }
    c.mode = PLAIN, c.fast_error = false, c.stochastic = true;
    c.rng[0] = 0x123456789abcdef0u, c.rng[1] = kind < 2 ? 77 : UINT64_MAX - 3;
    for (size_t s = 0; s < COUNT(drawn); s++) {
      c.rows = drawn[s][0], c.cols = drawn[s][1];
      run(c);
    }
  }
}

static void test_noop(void) {
  for (int mode = PLAIN; mode <= SCALED; mode++) {
    for (int flag = 1; flag <= 2; flag++) {
      if (!case_begin("noop %d %s", flag, kModes[mode])) continue;
      Case c = {.dtype = kNVTEBFloat16,
                .rows = 64,
                .cols = 96,
                .mode = (Mode)mode,
                .directions = BOTH,
                .e4m3_max = 448,
                .noop = (float)flag};
      NVTETensor input, output = build(&c, &input);
      if (mode == PLAIN) {
        nvte_quantize_noop(input, output, float_tensor(buffer_float(c.noop)), NULL);
      } else {
        nvte_quantize_v2(input, output, config_of(&c), NULL);
      }
      if (!EXPECT_OK()) continue;
      if (flag == 2) {
        compare(&c);
        continue;
      }
      for (int d = 0; d < 2; d++) {
        CHECK(untouched(c.data[d]) && untouched(c.scales[d]), "direction %d was written", d);
        if (mode == SCALED) CHECK(untouched(c.amaxes[d]), "amax of direction %d was written", d);
      }
    }
  }
}

static void test_dequantize(void) {
  static const size_t shapes[][2] = {{1, 16}, {32, 32}, {130, 272}};
  for (size_t s = 0; s < COUNT(shapes); s++) {
    for (size_t t = 0; t < COUNT(kHighPrecision); t++) {
      for (int kind = 0; kind < 8; kind++) {
        size_t rows = shapes[s][0], cols = shapes[s][1];
        NVTEDType dtype = kHighPrecision[t];
        Case c = {.rows = rows,
                  .cols = cols,
                  .mode = kind & 1 ? SCALED : PLAIN,
                  .swizzled = kind & 2,
                  .misaligned = kind & 4,
                  .e4m3_max = kind & 4 ? 256 : 448};
        if (!case_begin("dequantize %zux%zu %s%s%s%s", rows, cols, dtype_name(dtype),
                        kind & 1 ? " row-scaled" : "", kind & 2 ? " swizzled" : "",
                        kind & 4 ? " misaligned" : "")) {
          continue;
        }
        size_t n_scales = up(rows, 128) * up(cols / 16, 4), lines = c.mode == SCALED ? rows : 1;
        unsigned char *codes = host_memory(rows * cols / 2), *scales = host_memory(n_scales);
        float *amax = host_memory(lines * 4);
        for (size_t i = 0; i < rows * cols / 2; i++) codes[i] = (unsigned char)random_u64();
        for (size_t i = 0; i < n_scales; i++) scales[i] = random_u64() % 0x7F;
        for (size_t i = 0; i < lines; i++) amax[i] = (float)random_uniform(0, 50);
        NVTETensor input = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
        uint8_t swizzled = c.swizzled, scaled = c.mode == SCALED;
        nvte_set_tensor_param_v2(input, kNVTEWithGEMMSwizzledScales, &swizzled, 1);
        nvte_set_tensor_param_v2(input, kNVTERowScaledNVFP4, &scaled, 1);
        nvte_set_tensor_param_v2(input, kNVTENVFP4E4M3Max, &c.e4m3_max, sizeof c.e4m3_max);
        set_param(input, kNVTERowwiseData, buffer_from(codes, rows * cols / 2, c.misaligned)->ptr,
                  kNVTEFloat4E2M1, SHAPE(rows, cols));
        set_param(input, kNVTERowwiseScaleInv, buffer_from(scales, n_scales, c.misaligned)->ptr,
                  kNVTEFloat8E4M3, SHAPE(up(rows, 128), up(cols / 16, 4)));
        set_param(input, kNVTEAmax, buffer_from(amax, lines * 4, 0)->ptr, kNVTEFloat32,
                  SHAPE(lines));
        Buffer *out =
            buffer_shifted(rows * cols * dtype_size(dtype), c.misaligned ? dtype_size(dtype) : 0);
        nvte_dequantize(input, tensor(out->ptr, dtype, SHAPE(rows, cols)), NULL);
        if (!EXPECT_OK()) continue;
        const void *got = buffer_read(out);
        for (size_t i = 0, bad = 0; i < rows * cols && bad < 3; i++) {
          size_t r = i / cols, j = i % cols;
          float factor = e4m3_value(scales[scale_at(&c, 0, r, j / 16)]) * amax[scaled ? r : 0];
          factor *= 1 / (6 * (float)c.e4m3_max);
          float y = (float)e2m1_value(codes[i / 2] >> (i % 2 * 4) & 15) * factor;
          uint32_t expected = encode_bits(dtype, y);
          bad += !CHECK(same_bits(dtype, get_bits(dtype, got, i), expected),
                        "[%zu][%zu]: got 0x%x, expected 0x%x", r, j, get_bits(dtype, got, i),
                        expected);
        }
      }
    }
  }
}

// Rows of a matrix to several tensors, against a cast of each.
static void test_group(void) {
  static const size_t splits[] = {64, 0, 160, 32, 48};
  enum { N = COUNT(splits) };
  for (int variant = 0; variant < 4; variant++) {
    int kind = variant % 2;
    bool swizzled = variant / 2;
    if (!case_begin("group %s%s", kind ? "stochastic" : "nearest", swizzled ? " swizzled" : "")) {
      continue;
    }
    Case c = {.dtype = kNVTEBFloat16,
              .rows = 304,
              .cols = 160,
              .mode = SQUARE,
              .directions = ROWWISE,
              .e4m3_max = 448,
              .stochastic = kind,
              .rng = {7, 5}};
    NVTETensor input, whole = build(&c, &input), outputs[N];
    (void)whole;
    if (kind) {
      c.rows = 320;  // The order of words is that of whole blocks of 32 rows.
      draw_words(&c);
      c.rows = 304;
    }
    c.mode = PLAIN;
    Buffer *scales[N], *amax[N];
    size_t row = 0;
    for (int i = 0; i < N; i++) {
      outputs[i] = NULL;
      if (splits[i] == 0) continue;
      outputs[i] = tensor_of_mode(NVTE_NVFP4_1D_SCALING);
      scales[i] = buffer(up(splits[i], 128) * 12);
      amax[i] = buffer_float(3.0f + (float)i);
      set_param(outputs[i], kNVTERowwiseData, (char *)c.data[0]->ptr + row * 80, kNVTEFloat4E2M1,
                SHAPE(splits[i], 160));
      set_param(outputs[i], kNVTERowwiseScaleInv, scales[i]->ptr, kNVTEFloat8E4M3,
                SHAPE(up(splits[i], 128), 12));
      set_param(outputs[i], kNVTEAmax, amax[i]->ptr, kNVTEFloat32, SHAPE(1));
      uint8_t flag = swizzled;
      nvte_set_tensor_param_v2(outputs[i], kNVTEWithGEMMSwizzledScales, &flag, sizeof flag);
      row += splits[i];
    }
    nvte_group_nvfp4_quantize_with_amax(input, outputs, splits, N, config_of(&c), NULL);
    if (!EXPECT_OK()) continue;
    const unsigned char *data = buffer_read(c.data[0]);
    row = 0;
    for (int i = 0; i < N; i++) {
      if (splits[i] == 0) continue;
      c.amax[0] = 3.0f + (float)i;
      const unsigned char *got = buffer_read(scales[i]);
      for (size_t r = 0, bad = 0; r < splits[i] && bad < 3; r++) {
        for (size_t from = 0; from < 160 && bad < 3; from += 16) {
          unsigned codes[16], s = reference(&c, 0, row + r, from, codes);
          unsigned scale = got[scale_index(r, from / 16, 12, swizzled)];
          bad += !CHECK(scale == s, "tensor %d, scale[%zu][%zu]: 0x%02x, 0x%02x", i, r, from / 16,
                        scale, s);
          for (size_t k = 0; k < 16 && bad < 3; k++) {
            size_t element = (row + r) * 160 + from + k;
            unsigned code = data[element / 2] >> (element % 2 * 4) & 15;
            bad += !CHECK(code == codes[k], "tensor %d [%zu][%zu]: got %x, expected %x", i, r,
                          from + k, code, codes[k]);
          }
        }
      }
      row += splits[i];
    }
  }
}

// Swizzled scales need whole tiles, compact ones only those of the rows.
static void test_group_scales(void) {
  static const size_t rows[] = {64, 128, 16}, cols[] = {64, 192, 16};
  for (size_t s = 0; s < COUNT(rows); s++) {
    for (int wrong = 0; wrong < 4; wrong++) {
      size_t blocks = cols[s] / 16, lines = up(rows[s], 128), stride = up(blocks, 4);
      bool swizzled = wrong != 3;
      // Rows of scales too few, a line that does not end with a tile; compact ones are enough then.
      if (wrong == 1) lines--;
      if (wrong == 2) stride++;
      if (wrong == 3) lines = rows[s], stride = blocks;
      if (!case_begin("group scales [%zu, %zu] of %zux%zu%s", lines, stride, rows[s], cols[s],
                      swizzled ? " swizzled" : "")) {
        continue;
      }
      Case c = {.dtype = kNVTEBFloat16,
                .rows = rows[s],
                .cols = cols[s],
                .mode = PLAIN,
                .directions = ROWWISE,
                .swizzled = swizzled,
                .e4m3_max = 448};
      NVTETensor input, output = build(&c, &input);
      c.scales[0] = buffer(lines * stride);
      set_param(output, kNVTERowwiseScaleInv, c.scales[0]->ptr, kNVTEFloat8E4M3,
                SHAPE(lines, stride));
      nvte_group_nvfp4_quantize_with_amax(input, &output, &rows[s], 1, config_of(&c), NULL);
      if (wrong == 1 || wrong == 2) {
        EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "outputs[0].scale_inv.shape", "swizzled");
        CHECK(untouched(c.data[0]) && untouched(c.scales[0]), "outputs were written");
        continue;
      }
      if (!EXPECT_OK()) continue;
      const unsigned char *got = buffer_read(c.scales[0]);
      for (size_t r = 0, bad = 0; r < rows[s] && bad < 3; r++) {
        for (size_t block = 0; block < blocks && bad < 3; block++) {
          unsigned codes[16], expected = reference(&c, 0, r, 16 * block, codes);
          unsigned scale = got[scale_index(r, block, stride, swizzled)];
          bad += !CHECK(scale == expected, "scale[%zu][%zu]: got 0x%02x, expected 0x%02x", r, block,
                        scale, expected);
        }
      }
    }
  }
}

static void test_empty_and_wrong(void) {
  if (case_begin("empty")) {
    Case c = {.dtype = kNVTEBFloat16,
              .rows = 0,
              .cols = 64,
              .mode = PLAIN,
              .directions = BOTH,
              .e4m3_max = 448};
    NVTETensor input, output = build(&c, &input);
    nvte_quantize(input, output, NULL);
    EXPECT_OK();
  }
  Case good = {.dtype = kNVTEBFloat16,
               .rows = 64,
               .cols = 64,
               .mode = PLAIN,
               .directions = BOTH,
               .e4m3_max = 448};
  NVTETensor input;
  if (case_begin("wrong: shape of the scales")) {
    NVTETensor output = build(&good, &input);
    set_param(output, kNVTERowwiseScaleInv, good.scales[0]->ptr, kNVTEFloat8E4M3, SHAPE(64, 4));
    nvte_quantize(input, output, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "output.scale_inv");
  }
  if (case_begin("wrong: 4over6 with stochastic rounding")) {
    good.mode = ABSOLUTE, good.stochastic = true;
    NVTETensor output = build(&good, &input);
    nvte_quantize_v2(input, output, config_of(&good), NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "quant_config.stochastic_rounding");
    CHECK(untouched(good.data[0]), "data was written");
  }
  if (case_begin("wrong: 256 without 4over6")) {
    good.mode = PLAIN, good.stochastic = false, good.e4m3_max = 256;
    nvte_quantize(input, build(&good, &input), NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvfp4_e4m3_max");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_quantize();
  test_bounds();
  test_noop();
  test_dequantize();
  test_group();
  test_group_scales();
  test_empty_and_wrong();
  return test_end();
}
