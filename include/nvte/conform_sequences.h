// Random cases of operators on sequences for `nvte/conform.h`: attention, and what moves and merges
// the rows of packed sequences. What they should give is computed here, in double.
#ifndef NVTE_CONFORM_SEQUENCES_H
#define NVTE_CONFORM_SEQUENCES_H

#include "nvte/conform_training.h"

// ---- Sequences

// First rows of packed sequences, whose lengths are multiples of `unit`, up to `most` of them; the
// last element is the number of all rows.
static inline int conform_starts(ConformCase *c, ConformRandom *random, const char *name,
                                 size_t sequences, size_t unit, size_t most) {
  const int cu = conform_add(c, name, CONFORM_INPUT, kNVTEInt32, sequences + 1, 0);
  size_t end = 0;
  for (size_t s = 0; s <= sequences; s++) {
    conform_put(c, cu, s, (int64_t)end);
    end += unit * conform_within(random, s > 0 ? 0 : 1, most);
  }
  return cu;
}

// An element of a buffer of integers.
static inline size_t conform_count_at(const ConformCase *c, int buffer, size_t i) {
  return (size_t)conform_number(c->buffers[buffer].dtype, c->buffers[buffer].image, i);
}

// Addresses as the functions for attention expect them.
static inline void conform_align(ConformCase *c) {
  for (int i = 0; i < c->num_buffers; i++) c->buffers[i].shift = 0;
}

// ---- move_rows, copy_rows, reindex_cache, partition, seed

enum ConformMove { M_HALF, M_TO_RANKS, M_FROM_RANKS, M_VALID, M_UNPACK, M_PACK, M_TO_CACHE };

// Row of a packed matrix that is token `i` of a rank: sequences are cut into `2 world` chunks, of
// which rank k has number k from the front and from the end.
static inline size_t conform_rank_row(const ConformCase *c, int cu, size_t sequences, size_t world,
                                      size_t rank, size_t i) {
  size_t s = 0;
  while (s + 1 < sequences && i >= conform_count_at(c, cu, s + 1) / world) s++;
  const size_t first = conform_count_at(c, cu, s);
  const size_t chunk = (conform_count_at(c, cu, s + 1) - first) / world / 2;
  const size_t r = i - first / world;
  return first + (r < chunk ? rank * chunk + r : (2 * world - 1 - rank) * chunk + r - chunk);
}

static inline void conform_call_move_rows(const ConformCase *c, ConformRun *run) {
  const size_t tokens = c->n[1], heads = c->n[2], dim = c->n[3], outer = c->n[4], world = c->n[5];
  const size_t sequences = c->n[6], length = c->n[7];
  cudaStream_t stream = run->stream;
  NVTETensor cu = conform_vector(run, 0);
  const NVTEShape packed = CONFORM_SHAPE(tokens, heads, dim);
  const NVTEShape padded = CONFORM_SHAPE(sequences, length, heads, dim);
  const int total = (int)tokens;
  NVTETensor from = NULL, to = NULL, valid = NULL;
  switch ((enum ConformMove)c->n[0]) {
    case M_HALF: {
      const bool two = outer == 2;
      from = conform_tensor(run, 1, two ? CONFORM_SHAPE(2, tokens, heads, dim) : packed);
      to = conform_tensor(
          run, 2,
          two ? CONFORM_SHAPE(2, tokens / 2, heads, dim) : CONFORM_SHAPE(tokens / 2, heads, dim));
      nvte_cp_thd_read_half_tensor(&from, &cu, to, c->flags[0], stream);
      break;
    }
    case M_TO_RANKS:
    case M_FROM_RANKS:
      from = conform_tensor(run, 1, packed);
      to = conform_tensor(run, 2, packed);
      (c->n[0] == M_TO_RANKS
           ? nvte_thd_sequence_order_to_cp_rank_order
           : nvte_thd_cp_rank_order_to_sequence_order)(&from, &cu, to, (int)world, total, stream);
      break;
    case M_VALID:
      from = conform_tensor(run, 1, packed);
      valid = conform_vector(run, 3);
      nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(
          &from, &cu, &valid, conform_tensor(run, 2, packed), total, stream);
      break;
    case M_UNPACK:
      nvte_convert_thd_to_bshd(conform_tensor(run, 1, packed), cu, conform_tensor(run, 2, padded),
                               (int)sequences, (int)length, stream);
      break;
    default:
      nvte_convert_bshd_to_thd(conform_tensor(run, 1, padded), cu, conform_tensor(run, 2, packed),
                               total, stream);
  }
}

// Copies row `from` of buffer 1 to row `to` of what buffer 2 should be.
static inline void conform_expect_row(const ConformCase *c, double *expected, size_t to,
                                      size_t from) {
  const size_t width = c->n[2] * c->n[3];
  for (size_t i = 0; i < width; i++) {
    expected[to * width + i] = conform_element(c, 1, from * width + i);
  }
}

static inline void conform_call_cache(const ConformCase *c, ConformRun *run) {
  const size_t sequences = c->n[1], heads = c->n[2], dim = c->n[3], page = c->n[4];
  const size_t pages = c->n[5], all = c->n[6], length = c->n[7];
  const bool paged = c->flags[0];
  const NVTEShape cache = CONFORM_SHAPE(all, page, heads, dim);
  const size_t rows = c->buffers[1].count / heads / dim;
  static const NVTE_QKV_Format formats[] = {NVTE_BSHD, NVTE_SBHD, NVTE_THD};
  const size_t format = c->flags[1] ? 1 : c->flags[2] ? 2 : 0;
  const NVTEShape shape = format == 2   ? CONFORM_SHAPE(rows, heads, dim)
                          : format == 1 ? CONFORM_SHAPE(length, sequences, heads, dim)
                                        : CONFORM_SHAPE(sequences, length, heads, dim);
  NVTETensor k = conform_tensor(run, 1, shape), v = conform_tensor(run, 2, shape);
  NVTETensor k_cache = conform_tensor(run, 3, cache), v_cache = conform_tensor(run, 4, cache);
  NVTETensor table = paged ? conform_matrix_of(run, 5, sequences, pages) : conform_vector(run, 5);
  nvte_copy_to_kv_cache(k, v, k_cache, v_cache, table, conform_vector(run, 0),
                        conform_vector(run, 6), formats[format], (int)sequences, (int)length,
                        (int)(page * pages), (int)pages, !paged, run->stream);
}

// New keys and values for a cache; `moves`: of slots, some of which move to the front before.
static inline bool conform_make_cache(ConformCase *c, ConformRandom *random, size_t index,
                                      bool moves) {
  const NVTEDType dtype = conform_any_of(index);
  const bool paged = c->flags[0] = !moves && conform_chance(random, 60);
  const size_t sequences = c->n[1] = conform_within(random, 1, 4);
  const size_t heads = c->n[2] = conform_within(random, 1, 3);
  const size_t dim = c->n[3] = 8 * conform_within(random, 1, 4), width = heads * dim;
  const size_t pages = c->n[5] = paged ? conform_within(random, 1, 4) : 1;
  const size_t page = c->n[4] = paged ? 8 : 24, most = page * pages;
  const size_t all = c->n[6] = sequences * pages + conform_within(random, 0, 3);
  const size_t length = c->n[7] = conform_within(random, 1, 6);
  const int cu = conform_starts(c, random, "cu_new_lens", sequences, 1, length);
  const size_t tokens = conform_count_at(c, cu, sequences);
  const size_t format = conform_within(random, 0, 2);
  c->flags[1] = format == 1;
  c->flags[2] = format == 2;
  const size_t rows = format == 2 ? tokens : sequences * length;
  conform_input(c, random, "new keys", dtype, rows * width, -4, 4);
  conform_input(c, random, "new values", dtype, rows * width, -4, 4);
  for (int i = 3; i < 5; i++) {
    conform_exact(c, i == 3 ? "cache of keys" : "cache of values", dtype, all * page * width);
    conform_fill(c, random, i, -4, 4);
  }
  int32_t *order = conform_alloc(all * sizeof *order);
  conform_shuffle(random, order, all);
  const int table = conform_add(c, "page_table", CONFORM_INPUT, kNVTEInt32, sequences * pages, 0);
  for (size_t i = 0, slot = 0; i < sequences * pages; i++, slot++) {
    // Slots go to the front in their order.
    if (!paged && i + all - slot > sequences && slot + sequences - i < all) {
      slot += moves && conform_chance(random, 50);
    }
    conform_put(c, table, i, paged ? order[i] : (int64_t)slot);
  }
  free(order);
  // With the new tokens a sequence has no more than its pages hold.
  const int cached = conform_add(c, "cu_cached_lens", CONFORM_INPUT, kNVTEInt32, sequences + 1, 0);
  for (size_t s = 0, end = 0; s <= sequences; s++) {
    conform_put(c, cached, s, (int64_t)end);
    if (s == sequences) break;
    const size_t fresh = conform_count_at(c, cu, s + 1) - conform_count_at(c, cu, s);
    end += fresh + conform_within(random, 0, most - fresh);
  }
  for (int side = 0; side < 2; side++) {
    double *expected = conform_expect(c, 3 + side);
    for (size_t i = 0; i < all * page * width; i++) expected[i] = conform_element(c, 3 + side, i);
    for (size_t s = 0; s < sequences; s++) {
      const size_t first = conform_count_at(c, cu, s),
                   fresh = conform_count_at(c, cu, s + 1) - first;
      const size_t together = conform_count_at(c, cached, s + 1) - conform_count_at(c, cached, s);
      const size_t slot = conform_count_at(c, table, s * pages);
      if (!paged) {
        memmove(expected + s * page * width, expected + slot * page * width,
                (together - fresh) * width * sizeof *expected);
      }
      for (size_t t = 0; t < fresh; t++) {
        const size_t p = together - fresh + t;
        const size_t place = paged ? conform_count_at(c, table, s * pages + p / page) : s;
        const size_t from = format == 2   ? first + t
                            : format == 1 ? t * sequences + s
                                          : s * length + t;
        for (size_t i = 0; i < width; i++) {
          expected[(place * page + p % page) * width + i] =
              conform_element(c, 1 + side, from * width + i);
        }
      }
    }
  }
  conform_align(c);
  c->call = conform_call_cache;
  snprintf(c->what, sizeof c->what, "%s, %zu sequences, %zu new tokens, %zu pages of %zu%s",
           conform_dtype_name(dtype), sequences, tokens, pages, page,
           paged ? "" : ", a slot for each sequence");
  return true;
}

static inline bool conform_make_reindex(ConformCase *c, ConformRandom *random, const char *variant,
                                        size_t index) {
  return !*variant && conform_make_cache(c, random, index, true);
}

static inline bool conform_make_move_rows(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  static const char *const names[] = {"half",   "to_ranks", "from_ranks", "valid",
                                      "unpack", "pack",     "to_cache"};
  while (c->n[0] < 7 && !conform_is(variant, names[c->n[0]])) c->n[0]++;
  const size_t move = c->n[0];
  if (move == 7) return false;
  if (move == M_TO_CACHE) return conform_make_cache(c, random, index, false);
  const NVTEDType dtype = conform_any_of(index);
  const bool ranks = move == M_TO_RANKS || move == M_FROM_RANKS;
  const bool pads = move == M_UNPACK || move == M_PACK;
  const size_t sequences = c->n[6] = conform_within(random, 1, 4);
  const size_t world = c->n[5] = ranks ? conform_within(random, 1, 4) : 1;
  const size_t outer = c->n[4] = move == M_HALF ? conform_within(random, 1, 2) : 1;
  const size_t heads = c->n[2] = conform_within(random, 1, 4);
  const size_t dim = c->n[3] = 8 * conform_within(random, 1, 8);
  const size_t unit = move == M_HALF || ranks ? 2 * world : 1;
  const int cu = conform_starts(c, random, "cu_seqlens", sequences, unit, 20);
  const size_t tokens = c->n[1] = conform_count_at(c, cu, sequences);
  size_t longest = 0;
  for (size_t s = 0; s < sequences; s++) {
    const size_t own = conform_count_at(c, cu, s + 1) - conform_count_at(c, cu, s);
    if (own > longest) longest = own;
  }
  const size_t length = c->n[7] = longest + conform_within(random, 0, 5);
  const size_t width = heads * dim, slots = sequences * length;
  c->flags[0] = conform_chance(random, 50);
  conform_input(c, random, "source", dtype, (move == M_PACK ? slots : outer * tokens) * width, -4,
                4);
  conform_exact(c, "result", dtype,
                (move == M_HALF     ? outer * tokens / 2
                 : move == M_UNPACK ? slots
                                    : tokens) *
                    width);
  double *expected = conform_expect(c, 2);
  if (move == M_VALID) conform_add(c, "cu_seqlens", CONFORM_INPUT, kNVTEInt32, sequences + 1, 0);
  for (size_t s = 0, valid = 0; s < sequences && !ranks; s++) {
    const size_t first = conform_count_at(c, cu, s);
    const size_t own = conform_count_at(c, cu, s + 1) - first;
    for (size_t o = 0; o < outer && move == M_HALF; o++) {
      for (size_t i = 0; i < own / 2; i++) {
        conform_expect_row(c, expected, (o * tokens + first) / 2 + i,
                           o * tokens + first + (c->flags[0] ? own / 2 : 0) + i);
      }
    }
    for (size_t i = 0; i < own && pads; i++) {
      const size_t slot = s * length + i, token = first + i;
      conform_expect_row(c, expected, move == M_PACK ? token : slot, move == M_PACK ? slot : token);
    }
    if (move != M_VALID) continue;
    const size_t kept = conform_within(random, 0, own);
    for (size_t i = 0; i < kept; i++) conform_expect_row(c, expected, first + i, first + i);
    conform_put(c, 3, s, (int64_t)valid);
    conform_put(c, 3, s + 1, (int64_t)(valid += kept));
  }
  for (size_t i = 0; i < tokens && ranks; i++) {
    const size_t each = tokens / world;
    const size_t row = conform_rank_row(c, cu, sequences, world, i / each, i % each);
    conform_expect_row(c, expected, move == M_TO_RANKS ? i : row, move == M_TO_RANKS ? row : i);
  }
  conform_align(c);
  c->call = conform_call_move_rows;
  snprintf(c->what, sizeof c->what, "%s, %zu sequences of %zu tokens, %zu heads of %zu, %zu ranks",
           conform_dtype_name(dtype), sequences, tokens, heads, dim, world);
  return true;
}

static inline void conform_call_partition(const ConformCase *c, ConformRun *run) {
  NVTETensor cu = conform_vector(run, 0);
  nvte_cp_thd_get_partitioned_indices(&cu, conform_vector(run, 1), (int)c->n[1], (int)c->n[2],
                                      (int)c->n[3], run->stream);
}

static inline bool conform_make_partition(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  (void)index;
  if (*variant) return false;
  const size_t sequences = c->n[0] = conform_within(random, 1, 5);
  const size_t world = c->n[2] = conform_within(random, 1, 6);
  const size_t rank = c->n[3] = conform_within(random, 0, world - 1);
  const int cu = conform_starts(c, random, "cu_seqlens", sequences, 2 * world, 30);
  const size_t tokens = c->n[1] = conform_count_at(c, cu, sequences);
  double *expected = conform_expect(c, conform_exact(c, "indices", kNVTEInt32, tokens / world));
  for (size_t i = 0; i < tokens / world; i++) {
    expected[i] = (double)conform_rank_row(c, cu, sequences, world, rank, i);
  }
  c->call = conform_call_partition;
  snprintf(c->what, sizeof c->what, "%zu sequences of %zu tokens, rank %zu of %zu", sequences,
           tokens, rank, world);
  return true;
}

static inline void conform_call_seed(const ConformCase *c, ConformRun *run) {
  nvte_extract_seed_and_offset((int64_t *)run->ptr[0], c->flags[0], (int64_t *)run->ptr[1], c->n[0],
                               (int64_t *)run->ptr[2], c->n[1], (uint32_t)c->n[2], run->stream);
}

static inline bool conform_make_seed(ConformCase *c, ConformRandom *random, const char *variant,
                                     size_t index) {
  if (*variant) return false;
  const int64_t most = (int64_t)1 << 40;
  double *expected = conform_expect(c, conform_exact(c, "rng_state", kNVTEInt64, 2));
  conform_integers(c, random, "seed", CONFORM_INPUT, kNVTEInt64, 1, 0, most);
  conform_integers(c, random, "offset", CONFORM_INPUT, kNVTEInt64, 1, 0, most);
  for (size_t i = 0; i < 3; i++) c->n[i] = conform_within(random, 0, 1 << 30);
  c->flags[0] = index % 2;
  for (size_t i = 0; i < 2; i++) {
    expected[i] = c->flags[0] ? (double)conform_count_at(c, 1 + (int)i, 0) : (double)c->n[i];
  }
  if (c->flags[0]) expected[1] += (double)c->n[2];
  c->call = conform_call_seed;
  snprintf(c->what, sizeof c->what, "%s", c->flags[0] ? "from the device" : "from the host");
  return true;
}

static inline void conform_call_copy_rows(const ConformCase *c, ConformRun *run) {
  const size_t a = c->n[0], b = c->n[1], heads = c->n[2], from = c->n[3], to = c->n[4];
  NVTETensor inputs[2], outputs[2];
  for (int i = 0; i < 2; i++) {
    if (c->flags[0]) {
      inputs[i] = conform_matrix_of(run, 2 * i, a * b, from);
      outputs[i] = conform_matrix_of(run, 2 * i + 1, a * b, to);
    } else {
      const size_t batch = c->flags[1] ? b : a, length = c->flags[1] ? a : b;
      inputs[i] = conform_tensor(run, 2 * i, CONFORM_SHAPE(a, b, heads, from));
      outputs[i] = conform_tensor(run, 2 * i + 1, CONFORM_SHAPE(batch, heads, length, to));
    }
  }
  if (c->flags[0]) {
    nvte_multi_tensor_pad_last_dim(inputs, outputs, 2, run->stream);
  } else {
    nvte_multi_tensor_transpose_to_bhsd(inputs, outputs, 2, c->flags[1] ? NVTE_SBHD : NVTE_BSHD,
                                        run->stream);
  }
}

static inline bool conform_make_copy_rows(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_any_of(index);
  const bool pad = c->flags[0] = conform_chance(random, 50);
  const bool sbhd = c->flags[1] = conform_chance(random, 50);
  const size_t a = c->n[0] = conform_within(random, 1, 6),
               b = c->n[1] = conform_within(random, 1, 20);
  const size_t heads = c->n[2] = pad ? 1 : conform_within(random, 1, 4);
  const size_t from = c->n[3] = conform_within(random, 1, 40);
  const size_t to = c->n[4] = from + conform_within(random, 0, 9);
  for (int i = 0; i < 2; i++) {
    conform_input(c, random, "input", dtype, a * b * heads * from, -4, 4);
    const int output = conform_exact(c, "output", dtype, a * b * heads * to);
    double *expected = conform_expect(c, output);
    for (size_t row = 0; row < a * b * heads; row++) {
      const size_t head = row % heads, y = row / heads % b, x = row / heads / b;
      const size_t batch = sbhd ? y : x, place = sbhd ? x : y, length = sbhd ? a : b;
      const size_t at = pad ? row : (batch * heads + head) * length + place;
      for (size_t j = 0; j < to; j++) {
        expected[at * to + j] = j < from ? conform_element(c, 2 * i, row * from + j) : 0;
      }
    }
  }
  conform_align(c);
  c->call = conform_call_copy_rows;
  snprintf(c->what, sizeof c->what, "%s, %zux%zu, %zu heads, rows of %zu to %zu%s",
           conform_dtype_name(dtype), a, b, heads, from, to, pad ? "" : ", transposed");
  return true;
}

// ---- grad_correction, half_lse, out_correction

static const char *const conform_halves[][2] = {
    {"add", "none"},  {"none", "add"},  {"copy", "none"}, {"none", "copy"},
    {"copy", "zero"}, {"zero", "copy"}, {"add", "copy"},  {"copy", "add"}};

static inline void conform_call_grad_correction(const ConformCase *c, ConformRun *run) {
  const size_t tokens = c->n[1], outer = c->n[2], heads = c->n[3], dim = c->n[4], step = c->n[5];
  const char *const *halves = conform_halves[c->n[0]];
  const bool two = outer == 2;
  NVTETensor cu = conform_vector(run, 0);
  NVTETensor grad = conform_tensor(
      run, 1, two ? CONFORM_SHAPE(2, tokens, heads, dim) : CONFORM_SHAPE(tokens, heads, dim));
  NVTETensor of_step = conform_tensor(
      run, 2, two ? CONFORM_SHAPE(2, step, heads, dim) : CONFORM_SHAPE(step, heads, dim));
  nvte_cp_thd_grad_correction(grad, &of_step, &cu, halves[0], halves[1], run->stream);
}

static inline bool conform_make_grad_correction(ConformCase *c, ConformRandom *random,
                                                const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const size_t sequences = conform_within(random, 1, 4);
  const char *const *halves = conform_halves[c->n[0] = conform_within(random, 0, 7)];
  const bool full = c->n[0] >= 6;
  const int cu = conform_starts(c, random, "cu_seqlens", sequences, 2, 20);
  const size_t tokens = c->n[1] = conform_count_at(c, cu, sequences);
  const size_t outer = c->n[2] = conform_within(random, 1, 2);
  const size_t heads = c->n[3] = conform_within(random, 1, 3);
  const size_t dim = c->n[4] = 8 * conform_within(random, 1, 6), width = heads * dim;
  const size_t step = c->n[5] = full ? tokens : tokens / 2;
  const int grad = conform_inout(c, random, "grad", dtype, outer * tokens * width, -2, 2, 4);
  conform_input(c, random, "grad_per_step", dtype, outer * step * width, -2, 2);
  double *expected = conform_expect(c, grad);
  for (size_t o = 0; o < outer; o++) {
    for (size_t s = 0; s < sequences; s++) {
      const size_t first = conform_count_at(c, cu, s);
      const size_t half = (conform_count_at(c, cu, s + 1) - first) / 2;
      for (size_t i = 0; i < 2 * half; i++) {
        const size_t to = (o * tokens + first + i) * width;
        const size_t from = (o * step + (full ? first + i : first / 2 + i % half)) * width;
        const char *what = halves[i < half ? 0 : 1];
        for (size_t j = 0; j < width; j++) {
          const double x = conform_element(c, grad, to + j), y = conform_element(c, 2, from + j);
          expected[to + j] = *what == 'a' ? x + y : *what == 'c' ? y : *what == 'z' ? 0 : x;
        }
      }
    }
  }
  conform_align(c);
  c->call = conform_call_grad_correction;
  snprintf(c->what, sizeof c->what, "%s, %zu sequences of %zu tokens, %s and %s",
           conform_dtype_name(dtype), sequences, tokens, halves[0], halves[1]);
  return true;
}

// Where logarithms of sums lie: packed `[heads, length]`, else `[sequences, heads, length]`.
static inline size_t conform_lse_at(bool packed, size_t heads, size_t length, size_t s, size_t head,
                                    size_t packed_row, size_t row) {
  return packed ? head * length + packed_row : (s * heads + head) * length + row;
}

static inline void conform_call_half_lse(const ConformCase *c, ConformRun *run) {
  const size_t heads = c->n[1], length = c->n[2], step = c->n[3], sequences = c->n[4];
  const bool correct = c->flags[0], packed = c->flags[1];
  const NVTEShape all =
      packed ? CONFORM_SHAPE(heads, length) : CONFORM_SHAPE(sequences, heads, length);
  const NVTEShape half =
      packed ? CONFORM_SHAPE(heads, step) : CONFORM_SHAPE(sequences, heads, step);
  NVTETensor lse = conform_tensor(run, 1, all), other = conform_tensor(run, 2, half);
  NVTETensor cu = conform_vector(run, 0);
  if (correct) {
    nvte_cp_thd_second_half_lse_correction(lse, &other, &cu, packed, run->stream);
  } else {
    nvte_cp_thd_read_second_half_lse(&lse, &cu, other, packed, (int)step, run->stream);
  }
}

static inline bool conform_make_half_lse(ConformCase *c, ConformRandom *random, const char *variant,
                                         size_t index) {
  const bool correct = c->flags[0] = conform_is(variant, "correct");
  if (!correct && !conform_is(variant, "read")) return false;
  const bool packed = c->flags[1] = index % 2;
  const size_t sequences = c->n[4] = conform_within(random, 1, 4);
  const size_t heads = c->n[1] = conform_within(random, 1, 4);
  const int cu = conform_starts(c, random, "cu_seqlens", sequences, 2, 20);
  const size_t tokens = conform_count_at(c, cu, sequences);
  const size_t length = c->n[2] = packed ? tokens : 40;
  const size_t step = c->n[3] = packed ? tokens / 2 : 20;
  const size_t all = (packed ? 1 : sequences) * heads * length;
  const size_t half = (packed ? 1 : sequences) * heads * step;
  if (correct) {
    conform_inout(c, random, "lse", kNVTEFloat32, all, -3, 3, 8);
    conform_input(c, random, "lse_per_step", kNVTEFloat32, half, -3, 3);
  } else {
    conform_input(c, random, "lse", kNVTEFloat32, all, -3, 3);
    conform_exact(c, "half_lse", kNVTEFloat32, half);
  }
  double *expected = conform_expect(c, correct ? 1 : 2);
  for (size_t s = 0; s < sequences; s++) {
    const size_t first = conform_count_at(c, cu, s);
    const size_t own = (conform_count_at(c, cu, s + 1) - first) / 2;
    for (size_t head = 0; head < heads; head++) {
      for (size_t r = 0; r < own; r++) {
        const size_t at = conform_lse_at(packed, heads, length, s, head, first + own + r, own + r);
        const size_t from = conform_lse_at(packed, heads, step, s, head, first / 2 + r, r);
        const double x = conform_element(c, 1, at);
        if (correct) {
          expected[at] = log(exp(x) + exp(conform_element(c, 2, from)));
        } else {
          expected[from] = x;
        }
      }
    }
  }
  conform_align(c);
  c->call = conform_call_half_lse;
  snprintf(c->what, sizeof c->what, "%zu sequences of %zu tokens, %zu heads%s", sequences, tokens,
           heads, packed ? ", packed" : "");
  return true;
}

static inline void conform_call_out_correction(const ConformCase *c, ConformRun *run) {
  const size_t tokens = c->n[1], heads = c->n[2], dim = c->n[3], sequences = c->n[4];
  const size_t step = c->n[5], length = c->n[6], step_length = c->n[7];
  const bool half = c->flags[0], packed = c->flags[1];
  const NVTEShape all =
      packed ? CONFORM_SHAPE(heads, length) : CONFORM_SHAPE(sequences, heads, length);
  const NVTEShape part =
      packed ? CONFORM_SHAPE(heads, step_length) : CONFORM_SHAPE(sequences, heads, step_length);
  NVTETensor of_step = conform_tensor(run, 2, CONFORM_SHAPE(step, heads, dim));
  NVTETensor old_lse = conform_tensor(run, 3, all), lse = conform_tensor(run, 4, all);
  NVTETensor step_lse = conform_tensor(run, 5, part), cu = conform_vector(run, 0);
  nvte_cp_thd_out_correction(conform_tensor(run, 1, CONFORM_SHAPE(tokens, heads, dim)), &of_step,
                             &old_lse, &lse, &step_lse, &cu, half, packed, run->stream);
}

static inline bool conform_make_out_correction(ConformCase *c, ConformRandom *random,
                                               const char *variant, size_t index) {
  if (*variant) return false;
  const NVTEDType dtype = conform_high_of(index);
  const bool half = c->flags[0] = conform_chance(random, 50);
  const bool packed = c->flags[1] = conform_chance(random, 50);
  const size_t sequences = c->n[4] = conform_within(random, 1, 4);
  const size_t heads = c->n[2] = conform_within(random, 1, 4);
  const size_t dim = c->n[3] = 8 * conform_within(random, 1, 6);
  const int cu = conform_starts(c, random, "cu_seqlens", sequences, 2, 20);
  const size_t tokens = c->n[1] = conform_count_at(c, cu, sequences);
  const size_t step = c->n[5] = half ? tokens / 2 : tokens;
  const size_t length = c->n[6] = packed ? tokens : 40;
  const size_t step_length = c->n[7] = packed ? step : half ? 20 : 40;
  const size_t all = (packed ? 1 : sequences) * heads * length;
  const size_t part = (packed ? 1 : sequences) * heads * step_length;
  const int out = conform_inout(c, random, "out", dtype, tokens * heads * dim, -2, 2, 0);
  conform_input(c, random, "out_per_step", dtype, step * heads * dim, -2, 2);
  conform_input(c, random, "old_lse", kNVTEFloat32, all, -1, 1);
  conform_input(c, random, "lse", kNVTEFloat32, all, -1, 1);
  conform_input(c, random, "lse_per_step", kNVTEFloat32, part, -1, 1);
  double *expected = conform_expect(c, out), *magnitudes = conform_magnitudes(c, out);
  for (size_t s = 0; s < sequences; s++) {
    const size_t first = conform_count_at(c, cu, s), own = conform_count_at(c, cu, s + 1) - first;
    for (size_t r = half ? own / 2 : 0; r < own; r++) {
      const size_t row = half ? r - own / 2 : r;
      const size_t from = half ? first / 2 + row : first + r;
      for (size_t head = 0; head < heads; head++) {
        const size_t at = conform_lse_at(packed, heads, length, s, head, first + r, r);
        const size_t of_step = conform_lse_at(packed, heads, step_length, s, head, from, row);
        const double lse = conform_element(c, 4, at);
        const double f = exp(conform_element(c, 3, at) - lse);
        const double g = exp(conform_element(c, 5, of_step) - lse);
        for (size_t j = 0; j < dim; j++) {
          const size_t to = ((first + r) * heads + head) * dim + j;
          const double x = f * conform_element(c, out, to);
          const double y = g * conform_element(c, 2, (from * heads + head) * dim + j);
          expected[to] = x + y;
          magnitudes[to] = 4 * (fabs(x) + fabs(y));
        }
      }
    }
  }
  conform_align(c);
  c->call = conform_call_out_correction;
  snprintf(c->what, sizeof c->what, "%s, %zu sequences of %zu tokens, %zu heads of %zu%s%s",
           conform_dtype_name(dtype), sequences, tokens, heads, dim, half ? ", second halves" : "",
           packed ? ", packed" : "");
  return true;
}

// ---- attention

enum {
  A_Q,
  A_K,
  A_V,
  A_O,
  A_STATS,
  A_CU_Q,
  A_CU_KV,
  A_BIAS,
  A_DO,
  A_DQ,
  A_DK,
  A_DV,
  A_DBIAS,
  A_SCALES,  // of FP8: scale_inv of Q, K, V and of the probabilities, and their scale
};

// The sizes of an attention. Buffers that it does not have are empty.
typedef struct ConformAttention {
  size_t batch, heads, heads_kv, len_q, len_kv, dim;
  bool backward, causal, packed, ragged, bias, fp8;
  int64_t window;  // columns left of the row; negative: all
  double scale;
} ConformAttention;

static inline ConformAttention conform_attention(const ConformCase *c) {
  return (ConformAttention){.batch = c->n[0],
                            .heads = c->n[1],
                            .len_q = c->n[2],
                            .len_kv = c->n[3],
                            .dim = c->n[4],
                            .heads_kv = c->n[5],
                            .window = (int64_t)c->n[6] - 1,
                            .backward = c->flags[0],
                            .causal = c->flags[1],
                            .packed = c->flags[2],
                            .ragged = c->flags[3],
                            .bias = c->flags[4],
                            .fp8 = c->flags[5],
                            .scale = (double)c->f[0]};
}

// Tokens of a sequence on one side, and which row of the matrices of all tokens the first one is.
static inline size_t conform_side(const ConformCase *c, const ConformAttention *a, bool keys,
                                  size_t sequence, size_t *first) {
  const size_t most = keys ? a->len_kv : a->len_q;
  const int cu = keys ? A_CU_KV : A_CU_Q;
  *first = sequence * most;
  if (!a->ragged) return most;
  const size_t begin = conform_count_at(c, cu, sequence);
  if (a->packed) *first = begin;
  return conform_count_at(c, cu, sequence + 1) - begin;
}

static inline size_t conform_stats_at(const ConformAttention *a, size_t sequence, size_t head,
                                      size_t first, size_t row) {
  return a->packed ? (first + row) * a->heads + head
                   : (sequence * a->heads + head) * a->len_q + row;
}

static inline void conform_call_attention(const ConformCase *c, ConformRun *run) {
  const ConformAttention a = conform_attention(c);
  const size_t width_q = a.heads * a.dim, width_kv = a.heads_kv * a.dim;
  const size_t tokens = c->buffers[A_Q].count / width_q, keys = c->buffers[A_K].count / width_kv;
  const NVTE_QKV_Layout layout = a.packed ? NVTE_THD_THD_THD : NVTE_BSHD_BSHD_BSHD;
  const NVTE_QKV_Format format = a.packed ? NVTE_THD : NVTE_BSHD;
  const NVTE_Mask_Type mask = a.ragged   ? a.causal ? NVTE_PADDING_CAUSAL_MASK : NVTE_PADDING_MASK
                              : a.causal ? NVTE_CAUSAL_MASK
                                         : NVTE_NO_MASK;
  const NVTE_Bias_Type bias_type = a.bias ? NVTE_POST_SCALE_BIAS : NVTE_NO_BIAS;
  const int64_t right = a.causal ? 0 : -1;
  const NVTEShape shape_q = a.packed ? CONFORM_SHAPE(tokens, a.heads, a.dim)
                                     : CONFORM_SHAPE(a.batch, a.len_q, a.heads, a.dim);
  const NVTEShape shape_kv = a.packed ? CONFORM_SHAPE(keys, a.heads_kv, a.dim)
                                      : CONFORM_SHAPE(a.batch, a.len_kv, a.heads_kv, a.dim);
  const NVTEShape shape_stats =
      a.packed ? CONFORM_SHAPE(tokens, a.heads, 1) : CONFORM_SHAPE(a.batch, a.heads, a.len_q, 1);
  const size_t scores = a.heads * a.len_q * a.len_kv;
  const NVTEShape shape_bias =
      CONFORM_SHAPE(a.bias ? c->buffers[A_BIAS].count / scores : 1, a.heads, a.len_q, a.len_kv);
  NVTETensor q = conform_tensor(run, A_Q, shape_q), k = conform_tensor(run, A_K, shape_kv);
  NVTETensor v = conform_tensor(run, A_V, shape_kv), o = conform_tensor(run, A_O, shape_q);
  NVTETensor none = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor s = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor workspace = conform_empty(run, NVTE_DELAYED_TENSOR_SCALING);
  NVTETensor cu_q = none, cu_kv = none, bias = none;
  if (a.ragged) cu_q = conform_vector(run, A_CU_Q), cu_kv = conform_vector(run, A_CU_KV);
  if (a.bias) bias = conform_tensor(run, A_BIAS, shape_bias);
  if (a.fp8) {
    float *numbers = (float *)run->ptr[A_SCALES];
    const NVTETensor scaled[] = {q, k, v, s};
    for (size_t i = 0; i < 4; i++) {
      conform_set_memory(scaled[i], kNVTERowwiseScaleInv, numbers + i, kNVTEFloat32,
                         CONFORM_SHAPE(1));
    }
    conform_set_memory(s, kNVTEScale, numbers + 4, kNVTEFloat32, CONFORM_SHAPE(1));
  }
  NVTETensorPack pack;
  memset(&pack, 0, sizeof pack);
  nvte_tensor_pack_create(&pack);
  if (a.backward) {
    pack.size = 2;
    conform_set(run, pack.tensors[0], kNVTERowwiseData, A_STATS, shape_stats);
    if (a.bias) conform_set(run, pack.tensors[2], kNVTERowwiseData, A_BIAS, shape_bias);
    if (a.bias) pack.size = 3;
    NVTETensor grad = conform_tensor(run, A_DO, shape_q), dq = conform_tensor(run, A_DQ, shape_q);
    NVTETensor dk = conform_tensor(run, A_DK, shape_kv), dv = conform_tensor(run, A_DV, shape_kv);
    NVTETensor dbias = a.bias ? conform_tensor(run, A_DBIAS, shape_bias) : none;
    for (int call = 0; call < 2; call++) {
      nvte_fused_attn_bwd(q, k, v, o, grad, none, none, &pack, dq, dk, dv, dbias, none, cu_q, cu_kv,
                          none, none, a.len_q, a.len_kv, c->f[0], 0, layout, format, format, layout,
                          NVTE_QKV_Format_NOT_SET, NVTE_QKV_Format_NOT_SET, bias_type, mask,
                          NVTE_VANILLA_SOFTMAX, a.window, right, false, true, false, workspace,
                          run->stream);
      if (call == 0) conform_workspace(run, workspace);
    }
  } else {
    for (int call = 0; call < 2; call++) {
      nvte_fused_attn_fwd(q, k, v, bias, none, s, o, &pack, cu_q, cu_kv, none, none, none, none,
                          none, a.len_q, a.len_kv, true, false, false, c->f[0], 0, layout, format,
                          NVTE_QKV_Format_NOT_SET, bias_type, mask, NVTE_VANILLA_SOFTMAX, a.window,
                          right, false, workspace, run->stream);
      if (call > 0) continue;
      conform_workspace(run, workspace);
      if (pack.size > 0) conform_set(run, pack.tensors[0], kNVTERowwiseData, A_STATS, shape_stats);
    }
  }
  nvte_tensor_pack_destroy(&pack);
}

// A number of a matrix of all tokens, without the scale of FP8.
static inline double conform_of_head(const ConformCase *c, int buffer, size_t row, size_t heads,
                                     size_t head, size_t dim, size_t i) {
  return conform_element(c, buffer, (row * heads + head) * dim + i);
}

// What the passes should give. The output and the statistics of the forward pass, and with
// `grads` the gradients of Q, K, V and of the bias, whose room is 0 before.
typedef struct ConformAttended {
  double *o, *stats, *dq, *dk, *dv, *dbias;
} ConformAttended;

static inline void conform_attend_row(const ConformCase *c, const ConformAttention *a,
                                      const ConformAttended *to, size_t sequence, size_t head,
                                      size_t row, double *p) {
  size_t first, first_kv;
  conform_side(c, a, false, sequence, &first);
  const size_t keys = conform_side(c, a, true, sequence, &first_kv);
  const size_t dim = a->dim, of_keys = head / (a->heads / a->heads_kv);
  const size_t bias_at =
      a->bias
          ? (sequence % (c->buffers[A_BIAS].count / (a->heads * a->len_q * a->len_kv)) * a->heads +
             head) * a->len_q +
                row
          : 0;
  const double fp8 = a->fp8 ? conform_element(c, A_SCALES, 0) * conform_element(c, A_SCALES, 1) : 1;
  const double fp8_v = a->fp8 ? conform_element(c, A_SCALES, 2) : 1;
  const size_t begin = a->window >= 0 && row > (size_t)a->window ? row - (size_t)a->window : 0;
  const size_t end = a->causal && row + 1 < keys ? row + 1 : keys;
  double most = -INFINITY, sum = 0;
  for (size_t j = begin; j < end; j++) {
    p[j] = 0;
    for (size_t l = 0; l < dim; l++) {
      p[j] += conform_of_head(c, A_Q, first + row, a->heads, head, dim, l) *
              conform_of_head(c, A_K, first_kv + j, a->heads_kv, of_keys, dim, l);
    }
    p[j] *= a->scale * fp8;
    if (a->bias) p[j] += conform_element(c, A_BIAS, bias_at * a->len_kv + j);
    most = fmax(most, p[j]);
  }
  for (size_t j = begin; j < end; j++) sum += p[j] = exp(p[j] - most);
  double *o = to->o + ((first + row) * a->heads + head) * dim;
  to->stats[conform_stats_at(a, sequence, head, first, row)] = most + log(sum);
  for (size_t l = 0; l < dim; l++) o[l] = 0;
  for (size_t j = begin; j < end; j++) {
    p[j] /= sum;
    for (size_t l = 0; l < dim; l++) {
      o[l] += p[j] * fp8_v * conform_of_head(c, A_V, first_kv + j, a->heads_kv, of_keys, dim, l);
    }
  }
  if (!to->dq) return;
  // The output and the statistics are inputs of the backward pass, rounded to their dtypes.
  double d = 0;
  for (size_t l = 0; l < dim; l++) {
    d += conform_of_head(c, A_DO, first + row, a->heads, head, dim, l) *
         conform_of_head(c, A_O, first + row, a->heads, head, dim, l);
  }
  for (size_t j = begin; j < end; j++) {
    double dp = 0;
    for (size_t l = 0; l < dim; l++) {
      dp += conform_of_head(c, A_DO, first + row, a->heads, head, dim, l) *
            conform_of_head(c, A_V, first_kv + j, a->heads_kv, of_keys, dim, l);
    }
    const double ds = p[j] * (dp - d);
    if (a->bias) to->dbias[bias_at * a->len_kv + j] += ds;
    for (size_t l = 0; l < dim; l++) {
      const size_t at_q = ((first + row) * a->heads + head) * dim + l;
      const size_t at_k = ((first_kv + j) * a->heads_kv + of_keys) * dim + l;
      to->dq[at_q] += a->scale * ds * conform_element(c, A_K, at_k);
      to->dk[at_k] += a->scale * ds * conform_element(c, A_Q, at_q);
      to->dv[at_k] += p[j] * conform_element(c, A_DO, at_q);
    }
  }
}

static inline void conform_attend(const ConformCase *c, const ConformAttended *to) {
  const ConformAttention a = conform_attention(c);
  double *p = conform_alloc(a.len_kv * sizeof *p);
  for (size_t i = 0; i < a.batch * a.heads; i++) {
    size_t first;
    const size_t rows = conform_side(c, &a, false, i / a.heads, &first);
    for (size_t row = 0; row < rows; row++) {
      conform_attend_row(c, &a, to, i / a.heads, i % a.heads, row, p);
    }
  }
  free(p);
}

// A row without a score gives 0, and -Inf as its statistics; so do rows past the end of a sequence.
static inline void conform_attend_nothing(const ConformCase *c, const ConformAttended *to) {
  for (size_t i = 0; i < c->buffers[A_O].count; i++) to->o[i] = 0;
  for (size_t i = 0; i < c->buffers[A_STATS].count; i++) to->stats[i] = -INFINITY;
}

static inline bool conform_make_attention(ConformCase *c, ConformRandom *random,
                                          const char *variant, size_t index) {
  const bool backward = c->flags[0] = conform_is(variant, "backward");
  if (!backward && !conform_is(variant, "forward")) return false;
  const bool fp8 = c->flags[5] = !backward && index % 7 == 6;
  const bool causal = c->flags[1] = conform_chance(random, 50);
  const bool packed = c->flags[2] = !fp8 && conform_chance(random, 35);
  const bool ragged = c->flags[3] = packed || (!fp8 && conform_chance(random, 20));
  const bool bias = c->flags[4] = !fp8 && !ragged && conform_chance(random, 30);
  const NVTEDType high = conform_high_of(index), dtype = fp8 ? kNVTEFloat8E4M3 : high;
  const size_t b = c->n[0] = conform_within(random, 1, 3);
  const size_t hk = c->n[5] = conform_within(random, 1, 2);
  const size_t h = c->n[1] = hk * conform_within(random, 1, 2);
  size_t sq = conform_within(random, 1, 40);
  size_t sk = conform_chance(random, 50) ? sq : conform_within(random, 1, 40);
  const size_t d = c->n[4] = fp8 ? 64 : 8 * conform_within(random, 1, 8);
  c->n[6] = causal && !bias && conform_chance(random, 30) ? conform_within(random, 1, 12) : 0;
  c->f[0] = (float)(1 / sqrt((double)d));
  // The lengths come first, because packed matrices have as many rows; their buffers do not.
  size_t lengths[2][3] = {{0}}, tokens[2] = {0}, longest[2] = {1, 1};
  for (size_t s = 0; s < b; s++) {
    for (int side = 0; side < 2; side++) {
      lengths[side][s] = conform_within(random, 1, side ? sk : sq);
      tokens[side] += lengths[side][s];
      if (lengths[side][s] > longest[side]) longest[side] = lengths[side][s];
    }
  }
  if (ragged) sq = longest[0], sk = longest[1];
  c->n[2] = sq;
  c->n[3] = sk;
  const size_t rows = packed ? tokens[0] : b * sq, rows_kv = packed ? tokens[1] : b * sk;
  const size_t queries = rows * h * d, keys = rows_kv * hk * d, lines = rows * h;
  const size_t of_bias = bias ? (conform_chance(random, 50) ? b : 1) * h * sq * sk : 0;
  // Sums over channels are followed by sums over keys and, for the gradients, over queries.
  const size_t terms = d + sq + sk;
  const double most = 4 * (double)(d + sq * (h / hk));
  conform_input(c, random, "Q", dtype, queries, -1, 1);
  conform_input(c, random, "K", dtype, keys, -1, 1);
  conform_input(c, random, "V", dtype, keys, -1, 1);
  if (backward) {
    conform_add(c, "O", CONFORM_INPUT, dtype, queries, 0);
    conform_add(c, "statistics", CONFORM_INPUT, kNVTEFloat32, lines, 0);
  } else {
    conform_sums(c, random, "O", high, queries, terms, 4);
    conform_sums(c, random, "statistics", kNVTEFloat32, lines, terms, 8);
    // Probabilities have 8 codes for each power of two, and values are at most 2.
    if (fp8) c->buffers[A_O].slack = 2.0 / 8;
  }
  for (int side = 0; side < 2; side++) {
    const int cu = conform_add(c, side ? "cu_seqlens_kv" : "cu_seqlens_q", CONFORM_INPUT,
                               kNVTEInt32, ragged ? b + 1 : 0, 0);
    for (size_t s = 0, end = 0; s <= b && ragged; s++) {
      conform_put(c, cu, s, (int64_t)end);
      if (s < b) end += lengths[side][s];
    }
  }
  conform_input(c, random, "bias", dtype, of_bias, -1, 1);
  conform_input(c, random, "dO", dtype, backward ? queries : 0, -1, 1);
  conform_sums(c, random, "dQ", dtype, backward ? queries : 0, terms, most);
  conform_sums(c, random, "dK", dtype, backward ? keys : 0, terms, most);
  conform_sums(c, random, "dV", dtype, backward ? keys : 0, terms, most);
  conform_sums(c, random, "dBias", dtype, backward ? of_bias : 0, terms, most);
  conform_input(c, random, "scales", kNVTEFloat32, fp8 ? 5 : 0, 0.5, 2);
  if (fp8) {
    conform_store(kNVTEFloat32, c->buffers[A_SCALES].image, 3, 1.0 / 256);
    conform_store(kNVTEFloat32, c->buffers[A_SCALES].image, 4, 256);
  }
  ConformAttended to = {0};
  if (!backward) {
    to.o = conform_expect(c, A_O);
    to.stats = conform_expect(c, A_STATS);
    conform_attend_nothing(c, &to);
    conform_attend(c, &to);
  } else {
    to.o = conform_alloc(queries * sizeof *to.o);
    to.stats = conform_alloc(lines * sizeof *to.stats);
    conform_attend_nothing(c, &to);
    conform_attend(c, &to);
    for (size_t i = 0; i < queries; i++) conform_store(dtype, c->buffers[A_O].image, i, to.o[i]);
    for (size_t i = 0; i < lines; i++) {
      const float infinite = -INFINITY;
      if (isinf(to.stats[i])) {
        memcpy(c->buffers[A_STATS].image + i * sizeof infinite, &infinite, sizeof infinite);
      } else {
        conform_store(kNVTEFloat32, c->buffers[A_STATS].image, i, to.stats[i]);
      }
    }
    double **grads[] = {&to.dq, &to.dk, &to.dv, &to.dbias};
    for (int i = 0; i < 4; i++) {
      *grads[i] = conform_expect(c, A_DQ + i);
      for (size_t e = 0; e < c->buffers[A_DQ + i].count; e++) (*grads[i])[e] = 0;
    }
    conform_attend(c, &to);
    free(to.o);
    free(to.stats);
  }
  conform_align(c);
  c->call = conform_call_attention;
  snprintf(c->what, sizeof c->what,
           "%s, %zu sequences of %zu and %zu, %zu and %zu heads of %zu%s%s%s%s",
           conform_dtype_name(dtype), b, sq, sk, h, hk, d, causal ? ", causal" : "",
           packed   ? ", packed"
           : ragged ? ", padding"
                    : "",
           bias ? ", bias" : "", c->n[6] > 0 ? ", a window" : "");
  return true;
}

#endif  // NVTE_CONFORM_SEQUENCES_H
