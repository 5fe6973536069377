// Values that only the device knows (sums of lengths, slots of caches, start positions) and host
// sizes that are smaller than what is written: no access outside of the declared buffers. The arena
// checks the guard bytes.
#include "support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const int32_t kBad[][3] = {{0, 1000000, 8}, {-7, 4, 8}, {8, 4, 0}, {0, 4, INT32_MAX}};

static NVTETensor ints(const int32_t *values, size_t n) {
  return tensor(buffer_from(values, n * 4, 0)->ptr, kNVTEInt32, SHAPE(n));
}

static NVTETensor floats(Buffer *b, NVTEShape shape) { return tensor(b->ptr, kNVTEFloat32, shape); }

static void bad_sums(void) {
  for (size_t i = 0; i < COUNT(kBad); i++) {
    if (!case_begin("sums of lengths %zu", i)) continue;
    NVTETensor cu = ints(kBad[i], 3), packed = floats(buffer(8 * 16), SHAPE(8, 1, 4));
    NVTETensor dense = floats(buffer(8 * 16), SHAPE(2, 4, 1, 4));
    nvte_convert_thd_to_bshd(packed, cu, dense, 2, 4, NULL);
    EXPECT_OK();
    nvte_convert_bshd_to_thd(dense, cu, packed, 8, NULL);
    EXPECT_OK();
    NVTETensor half = floats(buffer(4 * 16), SHAPE(4, 1, 4));
    nvte_cp_thd_read_half_tensor(&packed, &cu, half, 1, NULL);
    EXPECT_OK();
    nvte_cp_thd_grad_correction(packed, &half, &cu, "add", "none", NULL);
    EXPECT_OK();
    const int32_t slots[2] = {kBad[i][1], kBad[i][2]};
    nvte_copy_to_kv_cache(dense, dense, floats(buffer(8 * 16), SHAPE(2, 4, 1, 4)),
                          floats(buffer(8 * 16), SHAPE(2, 4, 1, 4)), ints(slots, 2), cu, cu,
                          NVTE_BSHD, 2, 4, 4, 1, 1, NULL);
    EXPECT_OK();
  }
}

static void small_caches(void) {
  if (!case_begin("a cache of fewer slots than sequences")) return;
  Buffer *cache = buffer(4 * 16);
  NVTETensor rows = floats(buffer(8 * 16), SHAPE(2, 4, 1, 4));
  NVTETensor k = floats(cache, SHAPE(1, 4, 1, 4));
  const int32_t sums[3] = {0, 4, 8};
  NVTETensor cu = ints(sums, 3), table = ints((const int32_t[]){0, 1}, 2);
  nvte_copy_to_kv_cache(rows, rows, k, k, table, cu, cu, NVTE_BSHD, 2, 4, 4, 1, 1, NULL);
  EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_copy_to_kv_cache: k_cache.shape", "2 (b) or more",
               "[1, 4, 1, 4]");
  CHECK(untouched(cache), "written");
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  bad_sums();
  small_caches();
  return test_end();
}
