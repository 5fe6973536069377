// Host values to the device without a copy node (core.md section 14).
#include "nvte/utils.h"

#include "support.h"

static unsigned char *random_bytes(size_t n) {
  unsigned char *p = host_memory(n);
  for (size_t i = 0; i < n; i++) p[i] = (unsigned char)random_u64();
  return p;
}

static void test_copy(void) {
  const size_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 511, 2047, 2048, 2049, 4096, 6001, 32768, 100001};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    for (size_t host_shift = 0; host_shift < 3; host_shift++) {
      for (size_t shift = 0; shift < 16; shift += 4) {
        if (!case_begin("copy %zu bytes, host + %zu, device + %zu", sizes[s], host_shift, shift)) {
          continue;
        }
        unsigned char *x = random_bytes(sizes[s] + host_shift), *copy = host_memory(sizes[s]);
        memcpy(copy, x + host_shift, sizes[s]);
        Buffer *b = buffer_shifted(sizes[s], shift);
        nvte_copy_host_to_device_via_kernel(x + host_shift, b->ptr, sizes[s], NULL);
        memset(x, 0, sizes[s] + host_shift);  // the bytes were taken during the call
        EXPECT_OK();
        CHECK(memcmp(buffer_read(b), copy, sizes[s]) == 0, "other bytes arrived");
      }
    }
  }
  if (case_begin("copy on a stream, one after the other")) {
    cudaStream_t stream = nvtex_stream_create();
    Buffer *b = buffer(5000);
    unsigned char *last = NULL;
    for (int i = 0; i < 20; i++) {
      last = random_bytes(5000);
      nvte_copy_host_to_device_via_kernel(last, b->ptr, 5000, stream);
    }
    nvtex_stream_synchronize(stream);
    EXPECT_OK();
    CHECK(memcmp(buffer_read(b), last, 5000) == 0, "not the last copy");
    nvtex_stream_destroy(stream);
    EXPECT_OK();
  }
  if (case_begin("copy nothing from and to null")) {
    nvte_copy_host_to_device_via_kernel(NULL, NULL, 0, NULL);
    EXPECT_OK();
  }
  if (case_begin("copy refused")) {
    const char *const name = "nvte_copy_host_to_device_via_kernel";
    Buffer *b = buffer(64);
    uint64_t host[8] = {0};
    nvte_copy_host_to_device_via_kernel(NULL, b->ptr, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": host_ptr", "expected", "got");
    nvte_copy_host_to_device_via_kernel(host, NULL, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": device_ptr", "expected", "got");
    for (size_t shift = 1; shift < 4; shift++) {
      nvte_copy_host_to_device_via_kernel(host, b->ptr + shift, 8, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": device_ptr", "expected", "got");
    }
    CHECK(untouched(b), "written");
  }
}

static void test_pointers(void) {
  const int64_t counts[] = {0, 1, 2, 255, 256, 257, 1000, 5000};
  for (size_t c = 0; c < COUNT(counts); c++) {
    for (int k = 0; k < 3; k++) {
      size_t count = (size_t)counts[c];
      if (!case_begin("pointers %zu kind %d", count, k)) continue;
      uint64_t *x = (uint64_t *)(void *)random_bytes(8 * count), *copy = host_memory(8 * count);
      memcpy(copy, x, 8 * count);
      // The buffer has room for more than is written; the rest must stay.
      Buffer *b = buffer(8 * count + (k == 2 ? 40 : 0));
      NVTETensor output = k == 0   ? tensor(b->ptr, kNVTEInt64, SHAPE(count))
                          : k == 1 ? tensor(b->ptr, kNVTEByte, SHAPE(count, 8))
                                   : tensor(b->ptr, kNVTEInt64, SHAPE(count + 5));
      nvte_convert_pointers_to_tensor(x, output, counts[c], NULL);
      memset(x, 0, 8 * count);
      EXPECT_OK();
      const unsigned char *got = buffer_read(b);
      CHECK(memcmp(got, copy, 8 * count) == 0, "other values arrived");
      for (size_t i = 8 * count; i < b->bytes; i++) CHECK(got[i] == POISON_VALUE, "byte %zu", i);
    }
  }
  if (case_begin("pointers refused")) {
    const char *const name = "nvte_convert_pointers_to_tensor";
    Buffer *b = buffer(64);
    uint64_t host[16] = {0};
    NVTETensor output = tensor(b->ptr, kNVTEInt64, SHAPE(8));
    nvte_convert_pointers_to_tensor(host, output, 9, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": output", "expected", "got");
    nvte_convert_pointers_to_tensor(host, output, -1, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": count", "expected", "got");
    nvte_convert_pointers_to_tensor(NULL, output, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": host_ptrs", "expected", "got");
    nvte_convert_pointers_to_tensor(host, NULL, 8, NULL);
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, name, ": output", "expected", "got");
    CHECK(untouched(b), "written");
  }
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_copy();
  test_pointers();
  return test_end();
}
