// Token loaders over files that the test writes: the order is that of the header's formula.
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

enum { FILES = 5, SEQUENCE = 5, WINDOWS = 23, ROW = SEQUENCE + 1 };

// Tokens of the files; with windows of 5 they have 12, 4, 0, 0 and 7 of them.
static const size_t kTokens[FILES] = {61, 23, 1, 0, 38};
static const char *g_paths[FILES];

// Every token is another number: its place in all files, above a number that needs all bits of a
// token.
static int32_t first_token(size_t token_bytes) {
  return token_bytes == 1 ? 100 : token_bytes == 2 ? 60000 : 1 << 20;
}

static void write_tokens(const char *path, size_t token_bytes, uint32_t first, size_t count) {
  unsigned char *bytes = host_memory(count * token_bytes);
  for (size_t i = 0; i < count; i++) {
    for (size_t b = 0; b < token_bytes; b++)
      bytes[i * token_bytes + b] = (unsigned char)((first + i) >> 8 * b);
  }
  file_write(path, bytes, count * token_bytes);
}

// Writes the files, and the place of the first token of each window.
static void write_files(size_t token_bytes, size_t starts[WINDOWS]) {
  size_t before = 0, windows = 0;
  for (size_t f = 0; f < FILES; f++) {
    char name[16];
    snprintf(name, sizeof name, "tokens%zu", f);
    g_paths[f] = in_folder(name);
    write_tokens(g_paths[f], token_bytes, (uint32_t)first_token(token_bytes) + (uint32_t)before,
                 kTokens[f]);
    for (size_t at = 0; at + SEQUENCE < kTokens[f]; at += SEQUENCE) starts[windows++] = before + at;
    before += kTokens[f];
  }
  CHECK_EQ(windows, WINDOWS);
}

static NVTEXTokenLoaderConfig config_of(size_t token_bytes) {
  NVTEXTokenLoaderConfig config;
  nvtex_token_loader_config_init(&config, sizeof config);
  CHECK(config.shuffle && config.token_bytes == 2 && config.world == 1, "the defaults");
  config.paths = g_paths;
  config.num_paths = FILES;
  config.token_bytes = token_bytes;
  config.sequence = SEQUENCE;
  config.seed = 11;
  return config;
}

static NVTEXTokenLoader loader_of(const NVTEXTokenLoaderConfig *config) {
  NVTEXTokenLoader loader = nvtex_token_loader_create(config);
  EXPECT_OK();
  return loader;
}

static int32_t *next(NVTEXTokenLoader loader, size_t batch) {
  int32_t *tokens = host_memory(batch * ROW * sizeof *tokens);
  nvtex_token_loader_next(loader, tokens, batch * ROW);
  EXPECT_OK();
  return tokens;
}

static NVTEXTokenPosition position_of(NVTEXTokenLoader loader) {
  NVTEXTokenPosition position = {.struct_size = sizeof position};
  nvtex_token_loader_position(loader, &position);
  EXPECT_OK();
  return position;
}

// The number of the window that a row is, or WINDOWS.
static size_t window_of(const int32_t *row, size_t token_bytes, const size_t starts[WINDOWS]) {
  for (size_t i = 1; i < ROW; i++) CHECK_EQ(row[i], row[0] + (int32_t)i);
  for (size_t w = 0; w < WINDOWS; w++) {
    if (row[0] == first_token(token_bytes) + (int32_t)starts[w]) return w;
  }
  check_at(false, __FILE__, __LINE__, "a window", "a row begins with token %d", row[0]);
  return WINDOWS;
}

// The windows of some epochs, by a loader that gives out one at a time.
static size_t *orders(size_t token_bytes, bool shuffle, uint64_t seed, size_t epochs,
                      const size_t starts[WINDOWS]) {
  NVTEXTokenLoaderConfig config = config_of(token_bytes);
  config.shuffle = shuffle;
  config.seed = seed;
  NVTEXTokenLoader loader = loader_of(&config);
  CHECK_EQ(nvtex_token_loader_epoch_batches(loader), WINDOWS);
  size_t *order = host_memory(epochs * WINDOWS * sizeof *order);
  for (size_t i = 0; i < epochs * WINDOWS; i++)
    order[i] = window_of(next(loader, 1), token_bytes, starts);
  nvtex_token_loader_destroy(loader);
  return order;
}

static void check_permutation(const size_t *order) {
  bool seen[WINDOWS + 1] = {false};
  for (size_t i = 0; i < WINDOWS; i++) {
    CHECK(!seen[order[i]], "window %zu twice", order[i]);
    seen[order[i]] = true;
  }
}

static void order(size_t token_bytes) {
  if (!case_begin("Order, %zu bytes", token_bytes)) return;
  size_t starts[WINDOWS];
  write_files(token_bytes, starts);
  const size_t *sequential = orders(token_bytes, false, 1, 2, starts);
  for (size_t i = 0; i < 2 * WINDOWS; i++) CHECK_EQ(sequential[i], i % WINDOWS);
  const size_t bytes = WINDOWS * sizeof(size_t);
  const size_t *a = orders(token_bytes, true, 11, 3, starts),
               *again = orders(token_bytes, true, 11, 3, starts);
  const size_t *b = orders(token_bytes, true, 12, 3, starts);
  for (size_t epoch = 0; epoch < 3; epoch++) check_permutation(a + epoch * WINDOWS);
  CHECK(!memcmp(a, again, 3 * bytes), "one seed, two orders");
  CHECK(memcmp(a, b, bytes), "two seeds, one order");
  CHECK(memcmp(a, a + WINDOWS, bytes) && memcmp(a + WINDOWS, a + 2 * WINDOWS, bytes),
        "two epochs, one order");
  CHECK(memcmp(a, sequential, bytes), "nothing was shuffled");
}

// Row r of batch n of a rank is the window at n * batch * world + rank * batch + r of an epoch.
static void ranks(bool shuffle, size_t batch, size_t world) {
  if (!case_begin("Ranks, %s, batch %zu, world %zu", shuffle ? "shuffled" : "in order", batch,
                  world))
    return;
  size_t starts[WINDOWS];
  write_files(2, starts);
  const size_t each = WINDOWS / (batch * world);
  const size_t *expected = orders(2, shuffle, 11, 3, starts);
  for (size_t rank = 0; rank < world; rank++) {
    NVTEXTokenLoaderConfig config = config_of(2);
    config.shuffle = shuffle;
    config.batch = batch;
    config.rank = rank;
    config.world = world;
    NVTEXTokenLoader loader = loader_of(&config);
    CHECK_EQ(nvtex_token_loader_epoch_batches(loader), each);
    for (size_t n = 0; n < 3 * each; n++) {
      const int32_t *tokens = next(loader, batch);
      for (size_t r = 0; r < batch; r++) {
        const size_t place = n % each * batch * world + rank * batch + r;
        CHECK_EQ(window_of(tokens + r * ROW, 2, starts), expected[n / each * WINDOWS + place]);
      }
    }
    const NVTEXTokenPosition position = position_of(loader);
    CHECK(position.batches == 3 * each && position.windows == WINDOWS && position.seed == 11 &&
              position.sequence == SEQUENCE && position.rows == batch * world,
          "position %llu of %llu windows", (unsigned long long)position.batches,
          (unsigned long long)position.windows);
    nvtex_token_loader_destroy(loader);
  }
}

// Many windows are mixed well, and come once each.
static void many(size_t windows) {
  if (!case_begin("Permutation of %zu", windows)) return;
  const char *path = in_folder("many");
  write_tokens(path, 4, 0, windows + 1);
  NVTEXTokenLoaderConfig config = config_of(4);
  config.paths = &path;
  config.num_paths = 1;
  config.sequence = 1;
  config.batch = windows;
  NVTEXTokenLoader loader = loader_of(&config);
  int32_t *tokens = host_memory(windows * 2 * sizeof *tokens);
  bool *seen = host_memory(windows);
  nvtex_token_loader_next(loader, tokens, 2 * windows);
  EXPECT_OK();
  size_t fixed = 0, distinct = 0, neighbours = 0;
  for (size_t i = 0; i < windows; i++) {
    const size_t w = (size_t)tokens[2 * i];
    if (!CHECK(w < windows && tokens[2 * i + 1] == tokens[2 * i] + 1, "token %d", tokens[2 * i]))
      break;
    fixed += w == i;
    distinct += !seen[w];
    seen[w] = true;
    neighbours += i > 0 && tokens[2 * i] == tokens[2 * i - 2] + 1;
  }
  CHECK_EQ(distinct, windows);
  // Of a random permutation both numbers are about 1.
  if (windows >= 100)
    CHECK(fixed < 12 && neighbours < 12, "%zu fixed, %zu neighbours", fixed, neighbours);
  nvtex_token_loader_destroy(loader);
}

static void resume(void) {
  if (!case_begin("Resume")) return;
  size_t starts[WINDOWS];
  write_files(2, starts);
  NVTEXTokenLoaderConfig config = config_of(2);
  config.batch = 2;
  config.world = 2;
  enum { STEPS = 13 };
  NVTEXTokenLoader loader = loader_of(&config), other = loader_of(&config);
  config.rank = 1;
  NVTEXTokenLoader second = loader_of(&config), neighbour = loader_of(&config);
  const int32_t *expected[2][STEPS];
  NVTEXTokenPosition positions[STEPS];
  for (size_t n = 0; n < STEPS; n++) {
    positions[n] = position_of(loader);
    expected[0][n] = next(loader, 2);
    expected[1][n] = next(second, 2);
    CHECK(memcmp(expected[0][n], expected[1][n], 2 * ROW * sizeof(int32_t)),
          "ranks have the same rows");
  }
  for (size_t n = STEPS; n-- > 0;) {
    nvtex_token_loader_seek(other, &positions[n]);
    nvtex_token_loader_seek(neighbour, &positions[n]);
    EXPECT_OK();
    for (size_t i = n; i < STEPS; i++) {
      CHECK(!memcmp(next(other, 2), expected[0][i], 2 * ROW * sizeof(int32_t)),
            "batch %zu from %zu", i, n);
      CHECK(!memcmp(next(neighbour, 2), expected[1][i], 2 * ROW * sizeof(int32_t)),
            "rank 1: batch %zu from %zu", i, n);
    }
  }
  uint64_t *const fields[] = {&positions[3].windows, &positions[3].seed, &positions[3].sequence,
                              &positions[3].rows};
  for (size_t i = 0; i < COUNT(fields); i++) {
    ++*fields[i];
    nvtex_token_loader_seek(other, &positions[3]);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "position", "windows", "seed", "rows");
    --*fields[i];
    CHECK_EQ(position_of(other).batches, STEPS);
  }
  nvtex_token_loader_seek(other, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "position");
  // Far positions are as good as near ones: the same place of another epoch.
  NVTEXTokenPosition far = positions[3];
  far.batches = (uint64_t)1 << 40;
  nvtex_token_loader_seek(other, &far);
  EXPECT_OK();
  next(other, 2);
  CHECK(position_of(other).batches == far.batches + 1, "position");
  far.batches = UINT64_MAX;
  nvtex_token_loader_seek(other, &far);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "position.batches: expected less than 2^63");
  NVTEXTokenLoader all[] = {loader, other, second, neighbour};
  for (size_t i = 0; i < COUNT(all); i++) nvtex_token_loader_destroy(all[i]);
}

static void on_device(NVTEDType inputs_dtype, NVTEDType targets_dtype) {
  if (!case_begin("On the device, %s and %s", dtype_name(inputs_dtype), dtype_name(targets_dtype)))
    return;
  size_t starts[WINDOWS];
  write_files(1, starts);
  NVTEXTokenLoaderConfig config = config_of(1);
  config.batch = 3;
  NVTEXTokenLoader loader = loader_of(&config), twin = loader_of(&config);
  const size_t n = 3 * SEQUENCE;
  Buffer *buffers[2] = {buffer(n * dtype_size(inputs_dtype)),
                        buffer(n * dtype_size(targets_dtype))};
  const NVTEDType dtypes[2] = {inputs_dtype, targets_dtype};
  NVTETensor tensors[2];
  for (int i = 0; i < 2; i++) tensors[i] = tensor(buffers[i]->ptr, dtypes[i], SHAPE(3, SEQUENCE));
  for (int step = 0; step < 9; step++) {
    const int32_t *expected = next(twin, 3);
    nvtex_token_loader_next_on_device(loader, tensors[0], tensors[1], NULL);
    EXPECT_OK();
    for (size_t t = 0; t < 2; t++) {
      const void *got = buffer_read(buffers[t]);
      for (size_t i = 0; i < n; i++) {
        const int64_t token =
            dtypes[t] == kNVTEInt64 ? ((const int64_t *)got)[i] : ((const int32_t *)got)[i];
        CHECK_EQ(token, expected[i / SEQUENCE * ROW + i % SEQUENCE + t]);
      }
    }
  }
  const NVTETensor wrong[][2] = {
      {NULL, tensors[1]},
      {tensors[0], NULL},
      {tensor(buffers[0]->ptr, dtypes[0], SHAPE(SEQUENCE, 3)), tensors[1]},
      {tensors[0], tensor(buffers[1]->ptr, dtypes[1], SHAPE(3 * SEQUENCE))},
      {tensors[0], tensor(buffers[1]->ptr, kNVTEFloat32, SHAPE(3, SEQUENCE))},
      {tensor(NULL, dtypes[0], SHAPE(3, SEQUENCE)), tensors[1]},
  };
  static const char *const names[] = {"inputs",  "targets", "inputs",
                                      "targets", "targets", "inputs"};
  for (size_t i = 0; i < COUNT(wrong); i++) {
    nvtex_token_loader_next_on_device(loader, wrong[i][0], wrong[i][1], NULL);
    EXPECT_ERROR(ANY_ERROR, names[i]);
    CHECK_EQ(position_of(loader).batches, 9);
  }
  nvtex_token_loader_destroy(loader);
  nvtex_token_loader_destroy(twin);
}

// Ranks of a 2 x 2 grid have their rows and columns of whole batches; position p of a row of four
// chunks is that of a column.
static void on_grid(void) {
  if (!case_begin("On a grid")) return;
  enum { WIDE = 8, ALL = 4, CHUNK = WIDE / 4 };
  size_t starts[WINDOWS];
  write_files(2, starts);
  NVTEXCommunicator pairs[4][2], all[4];
  for (int i = 0; i < 4; i++) nvtex_communicator_create_local(2, NULL, pairs[i]);
  nvtex_communicator_create_local(4, NULL, all);
  NVTEXTokenLoaderConfig config = config_of(2);
  config.sequence = WIDE;
  config.batch = ALL;
  for (size_t d = 0; d < 2; d++) {
    for (size_t c = 0; c < 2; c++) {
      NVTEXCommunicator groups[NVTEX_GRID_GROUPS] = {0};
      groups[NVTEX_GRID_CP] = pairs[d][c];
      groups[NVTEX_GRID_DP] = pairs[2 + c][d];
      groups[NVTEX_GRID_DP_CP] = groups[NVTEX_GRID_ALL_BUT_PP] = all[2 * d + c];
      const NVTEXGrid grid = nvtex_grid_create_from_communicators(groups);
      EXPECT_OK();
      config.grid = NULL;
      NVTEXTokenLoader whole = loader_of(&config);
      config.grid = grid;
      NVTEXTokenLoader loader = loader_of(&config);
      nvtex_grid_destroy(grid);
      NVTETensor arrays[3];
      for (int i = 0; i < 3; i++)
        arrays[i] = nvtex_array_create(kNVTEInt32, (size_t[]){ALL / 2, WIDE / 2}, 2);
      nvtex_token_loader_positions(loader, arrays[2], NULL);
      for (int step = 0; step < 3; step++) {
        int32_t expected[ALL][WIDE + 1], got[3][ALL / 2][WIDE / 2];
        nvtex_token_loader_next(whole, expected[0], ALL * (WIDE + 1));
        nvtex_token_loader_next_on_device(loader, arrays[0], arrays[1], NULL);
        for (int i = 0; i < 3; i++) nvtex_array_get(arrays[i], got[i], sizeof got[i], NULL);
        EXPECT_OK();
        for (size_t r = 0; r < ALL / 2; r++) {
          for (size_t i = 0; i < WIDE / 2; i++) {
            const size_t chunk = i < CHUNK ? c : 3 - c, column = chunk * CHUNK + i % CHUNK;
            CHECK_EQ(got[0][r][i], expected[d * ALL / 2 + r][column]);
            CHECK_EQ(got[1][r][i], expected[d * ALL / 2 + r][column + 1]);
            CHECK_EQ(got[2][r][i], column);
          }
        }
      }
      const NVTETensor wide = nvtex_array_create(kNVTEInt32, (size_t[]){ALL, WIDE}, 2);
      nvtex_token_loader_positions(loader, wide, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "positions", "[2, 4]", "[4, 8]");
      nvtex_token_loader_next_on_device(loader, wide, wide, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "inputs", "[2, 4]", "[4, 8]");
      nvtex_array_destroy(wide);
      for (int i = 0; i < 3; i++) nvtex_array_destroy(arrays[i]);
      nvtex_token_loader_destroy(loader), nvtex_token_loader_destroy(whole);
    }
  }
  NVTEXCommunicator groups[NVTEX_GRID_GROUPS] = {0};
  groups[NVTEX_GRID_CP] = pairs[0][0];
  groups[NVTEX_GRID_DP] = pairs[2][0];
  groups[NVTEX_GRID_DP_CP] = groups[NVTEX_GRID_ALL_BUT_PP] = all[0];
  config.grid = nvtex_grid_create_from_communicators(groups);
  config.batch = 3;
  CHECK(!nvtex_token_loader_create(&config), "a loader");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.batch", "a multiple of 2", "3");
  config.batch = 2;
  config.sequence = 6;
  CHECK(!nvtex_token_loader_create(&config), "a loader");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.sequence", "a multiple of 4", "6");
  config.sequence = WIDE;
  config.world = 2;
  CHECK(!nvtex_token_loader_create(&config), "a loader");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.world", "0 of 2");
  nvtex_grid_destroy(config.grid);
  CHECK(!nvtex_token_loader_create(&config), "a loader");
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "config.grid");
  for (int i = 0; i < 4; i++) {
    for (int r = 0; r < 2; r++) nvtex_communicator_destroy(pairs[i][r]);
    nvtex_communicator_destroy(all[i]);
  }
}

// ---- Errors

static void refused(const NVTEXTokenLoaderConfig *config, int status, const char *part,
                    const char *other) {
  NVTEXTokenLoader loader = nvtex_token_loader_create(config);
  CHECK(!loader, "a loader");
  EXPECT_ERROR(status, part, other);
  nvtex_token_loader_destroy(loader);
}

static void numbers(void) {
  if (!case_begin("Numbers out of range")) return;
  size_t starts[WINDOWS];
  write_files(2, starts);
  refused(NULL, NVTEX_INVALID_ARGUMENT, "config", "");
  const NVTEXTokenLoaderConfig good = config_of(2);
#define REFUSED(field, value, part)                         \
  do {                                                      \
    NVTEXTokenLoaderConfig config = good;                   \
    config.field = value;                                   \
    refused(&config, NVTEX_INVALID_ARGUMENT, #field, part); \
  } while (0)
  REFUSED(num_paths, 0, "config");
  REFUSED(paths, NULL, "null");
  REFUSED(token_bytes, 0, "1, 2 or 4");
  REFUSED(token_bytes, 3, "1, 2 or 4");
  REFUSED(token_bytes, 8, "1, 2 or 4");
  REFUSED(batch, 0, "0");
  REFUSED(batch, SIZE_MAX, "config");
  REFUSED(sequence, 0, "0");
  REFUSED(sequence, SIZE_MAX, "config");
  REFUSED(world, 0, "0");
  REFUSED(world, SIZE_MAX, "config");
  REFUSED(rank, 1, "config.world, 1");
  REFUSED(vocabulary, SIZE_MAX, "config");
#undef REFUSED
  NVTEXTokenLoaderConfig config = good;
  config.batch = WINDOWS + 1;
  refused(&config, NVTEX_INVALID_ARGUMENT, "config.paths", "23 windows");
  config.batch = 1;
  config.world = WINDOWS + 1;
  refused(&config, NVTEX_INVALID_ARGUMENT, "config.paths", "23 windows");
  config.world = config.batch = 1 << 30;
  refused(&config, NVTEX_INVALID_ARGUMENT, "config.paths", "23 windows");
  config = good;
  config.struct_size = 4;
  refused(&config, NVTEX_INVALID_ARGUMENT, "struct_size", "");
  int32_t tokens[ROW];
  NVTEXTokenLoader loader = loader_of(&good);
  nvtex_token_loader_next(loader, tokens, ROW - 1);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "count", "6", "5");
  nvtex_token_loader_next(loader, NULL, ROW);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "tokens");
  nvtex_token_loader_position(loader, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "position");
  CHECK_EQ(position_of(loader).batches, 0);
  nvtex_token_loader_destroy(loader);
  nvtex_token_loader_next(loader, tokens, ROW);
  EXPECT_ERROR(ANY_ERROR, "loader");
  nvtex_token_loader_destroy(NULL);
  EXPECT_OK();
}

static void files(void) {
  if (!case_begin("Files")) return;
  size_t starts[WINDOWS];
  write_files(2, starts);
  NVTEXTokenLoaderConfig config = config_of(2);
  const char *missing[] = {g_paths[0], in_folder("missing")};
  config.paths = missing;
  config.num_paths = 2;
  refused(&config, NVTEX_DEVICE_ERROR, missing[1], "cannot open");
  missing[1] = NULL;
  refused(&config, NVTEX_INVALID_ARGUMENT, "config.paths[1]", "");
  missing[1] = "";
  refused(&config, NVTEX_INVALID_ARGUMENT, "config.paths[1]", "empty");
  // The bytes of tokens of 2 bytes, but one.
  const char *odd = in_folder("odd");
  file_write(odd, "12345678901", 11);
  missing[1] = odd;
  refused(&config, NVTEX_INVALID_ARGUMENT, odd, "11 bytes");
  config.token_bytes = 4;
  refused(&config, NVTEX_INVALID_ARGUMENT, "bytes", g_paths[0]);
  // No window: an empty file, and a window without the token behind it.
  const char *small = in_folder("small");
  config = config_of(2);
  config.paths = &small;
  config.num_paths = 1;
  for (size_t n = 0; n <= SEQUENCE; n += SEQUENCE) {
    write_tokens(small, 2, 7, n);
    refused(&config, NVTEX_INVALID_ARGUMENT, "config.paths", "0 windows");
  }
  write_tokens(small, 2, 7, SEQUENCE + 1);
  NVTEXTokenLoader loader = loader_of(&config);
  CHECK_EQ(next(loader, 1)[SEQUENCE], 7 + SEQUENCE);
  // The file becomes shorter.
  CHECK(!truncate(small, 2 * SEQUENCE), "truncate");
  int32_t tokens[ROW] = {-9};
  nvtex_token_loader_next(loader, tokens, ROW);
  EXPECT_ERROR(NVTEX_DEVICE_ERROR, small, "cannot read");
  CHECK_EQ(tokens[0], -9);
  CHECK_EQ(position_of(loader).batches, 1);
  write_tokens(small, 2, 7, SEQUENCE + 1);
  CHECK_EQ(next(loader, 1)[0], 7);
  nvtex_token_loader_destroy(loader);
  const char *folder = in_folder("");
  config.paths = &folder;
  refused(&config, ANY_ERROR, folder, "");
}

static void vocabulary(size_t token_bytes) {
  if (!case_begin("Vocabulary, %zu bytes", token_bytes)) return;
  // Tokens 50 to 60 are 200 to 210: window 1 of 5 has 205 to 210, and window 0 the token 205 behind
  // it.
  const char *path = in_folder("vocabulary");
  write_tokens(path, token_bytes, 200, 2 * SEQUENCE + 1);
  NVTEXTokenLoaderConfig config = config_of(token_bytes);
  config.paths = &path;
  config.num_paths = 1;
  config.shuffle = false;
  for (size_t bound = 205; bound <= 211; bound++) {
    config.vocabulary = bound;
    NVTEXTokenLoader loader = loader_of(&config);
    for (size_t w = 0; w < 2; w++) {
      int32_t tokens[ROW] = {-9};
      nvtex_token_loader_next(loader, tokens, ROW);
      const size_t last = 205 + w * SEQUENCE;
      if (last < bound) {
        EXPECT_OK();
        CHECK_EQ(tokens[SEQUENCE], last);
        continue;
      }
      char place[64], less[64];
      // The first of the window's tokens that is not less than the bound.
      snprintf(place, sizeof place, "token %zu", bound - 200);
      snprintf(less, sizeof less, "less than %zu", bound);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, path, place, less);
      CHECK_EQ(tokens[0], -9);
      CHECK_EQ(position_of(loader).batches, w);
      // It stays an error.
      nvtex_token_loader_next(loader, tokens, ROW);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, path, place, less);
      Buffer *inputs = buffer(SEQUENCE * 4), *targets = buffer(SEQUENCE * 4);
      nvtex_token_loader_next_on_device(loader, tensor(inputs->ptr, kNVTEInt32, SHAPE(1, SEQUENCE)),
                                        tensor(targets->ptr, kNVTEInt32, SHAPE(1, SEQUENCE)), NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, path, place, less);
      CHECK(untouched(inputs) && untouched(targets), "an output was written");
      break;
    }
    nvtex_token_loader_destroy(loader);
  }
}

// Tokens that Int32 does not have.
static void large(void) {
  if (!case_begin("Tokens of 2^31")) return;
  const char *path = in_folder("large");
  write_tokens(path, 4, (uint32_t)INT32_MAX - SEQUENCE, ROW);
  NVTEXTokenLoaderConfig config = config_of(4);
  config.paths = &path;
  config.num_paths = 1;
  NVTEXTokenLoader loader = loader_of(&config);
  CHECK_EQ(next(loader, 1)[SEQUENCE], INT32_MAX);
  write_tokens(path, 4, (uint32_t)INT32_MAX - SEQUENCE + 1, ROW);
  int32_t tokens[ROW];
  nvtex_token_loader_next(loader, tokens, ROW);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, path, "token 5", "less than 2147483648", "got 2147483648");
  nvtex_token_loader_destroy(loader);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  folder_begin();
  for (size_t bytes = 1; bytes <= 4; bytes *= 2) {
    order(bytes);
    vocabulary(bytes);
  }
  for (int shuffle = 0; shuffle < 2; shuffle++) {
    static const size_t sizes[][2] = {{1, 1}, {2, 2},  {3, 1},  {1, 5},
                                      {4, 3}, {11, 2}, {23, 1}, {1, 23}};
    for (size_t i = 0; i < COUNT(sizes); i++) ranks(shuffle, sizes[i][0], sizes[i][1]);
  }
  static const size_t counts[] = {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4096, 4097};
  for (size_t i = 0; i < COUNT(counts); i++) many(counts[i]);
  resume();
  on_device(kNVTEInt32, kNVTEInt32);
  on_device(kNVTEInt64, kNVTEInt64);
  on_device(kNVTEInt32, kNVTEInt64);
  on_grid();
  numbers();
  files();
  large();
  case_end();
  folder_end();
  return test_end();
}
