// Files of the tests of training: a folder for them, SHA-256, and safetensors files, which are
// written and read here apart from the library's own code. A program that includes this defines
// _POSIX_C_SOURCE as 200809L before.
#ifndef NVTE_CAPI_TESTS_SAFETENSORS_H
#define NVTE_CAPI_TESTS_SAFETENSORS_H

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

// ---- A folder

static char g_folder[] = "/tmp/nvte-train-XXXXXX";

static inline void folder_begin(void) {
  if (!mkdtemp(g_folder)) {
    perror(g_folder);
    exit(TEST_FAIL);
  }
}

// The path of a file in the folder, or of the folder for an empty name.
static inline const char *in_folder(const char *name) {
  const size_t room = strlen(g_folder) + strlen(name) + 2;
  char *path = host_memory(room);
  snprintf(path, room, *name ? "%s/%s" : "%s%s", g_folder, name);
  return path;
}

// Names in a folder but "." and "..". If `remove`, files go.
static inline size_t folder_entries(const char *path, bool remove) {
  DIR *folder = opendir(path);
  size_t count = 0;
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    count++;
    char name[1024];
    snprintf(name, sizeof name, "%.700s/%s", path, entry->d_name);
    if (remove && unlink(name)) {
      folder_entries(name, true);
      rmdir(name);
    }
  }
  if (folder) closedir(folder);
  return count;
}

static inline void folder_end(void) {
  folder_entries(g_folder, true);
  rmdir(g_folder);
}

static inline void file_write(const char *path, const void *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(bytes, 1, size, file) != size || fclose(file)) {
    perror(path);
    exit(TEST_FAIL);
  }
}

static inline unsigned char *file_read(const char *path, size_t *size) {
  struct stat about;
  *size = 0;
  FILE *file = fopen(path, "rb");
  if (!CHECK(file && !stat(path, &about), "%s cannot be read", path)) return NULL;
  unsigned char *bytes = host_memory((size_t)about.st_size);
  *size = fread(bytes, 1, (size_t)about.st_size, file);
  fclose(file);
  return bytes;
}

// ---- SHA-256

static inline uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

// The first 32 bits of the fraction of a root of a prime, which the constants of the digest are.
static inline uint32_t root_bits(unsigned prime, bool cube) {
  const long double root = cube ? cbrtl((long double)prime) : sqrtl((long double)prime);
  return (uint32_t)((root - floorl(root)) * 4294967296.0L);
}

static inline void sha256(const unsigned char *bytes, size_t size, char digits[65]) {
  uint32_t k[64], h[8];
  for (unsigned n = 0, prime = 2; n < 64; prime++) {
    bool is_prime = true;
    for (unsigned d = 2; d * d <= prime; d++) is_prime = is_prime && prime % d;
    if (!is_prime) continue;
    if (n < 8) h[n] = root_bits(prime, false);
    k[n++] = root_bits(prime, true);
  }
  const size_t blocks = (size + 8) / 64 + 1;
  unsigned char *padded = calloc(blocks, 64);
  if (!padded) abort();
  memcpy(padded, bytes, size);
  padded[size] = 0x80;
  for (int i = 0; i < 8; i++)
    padded[blocks * 64 - 1 - (size_t)i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
  for (size_t b = 0; b < blocks; b++) {
    uint32_t w[64], s[8];
    for (size_t i = 0; i < 16; i++) {
      const unsigned char *p = padded + b * 64 + i * 4;
      w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (size_t i = 16; i < 64; i++) {
      const uint32_t x = w[i - 15], y = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (rotated(x, 7) ^ rotated(x, 18) ^ x >> 3) +
             (rotated(y, 17) ^ rotated(y, 19) ^ y >> 10);
    }
    memcpy(s, h, sizeof s);
    for (size_t i = 0; i < 64; i++) {
      const uint32_t a = s[0], e = s[4];
      const uint32_t t1 = s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                          ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
      const uint32_t t2 = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) +
                          ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      memmove(s + 1, s, 7 * sizeof *s);
      s[4] += t1;
      s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
  }
  free(padded);
  for (int i = 0; i < 8; i++) snprintf(digits + 8 * i, 9, "%08x", h[i]);
}

// ---- Safetensors

// A file in memory: 8 bytes with the length of the header, the header, the data.
typedef struct Image {
  unsigned char *bytes;
  size_t size;
} Image;

static inline size_t header_length(const Image *image) {
  uint64_t length = 0;
  memcpy(&length, image->bytes, 8);
  return (size_t)length;
}

static inline char *header_text(const Image *image) {
  char *text = host_memory(header_length(image) + 1);
  memcpy(text, image->bytes + 8, header_length(image));
  return text;
}

// An image of a header and data.
static inline Image image_of(const char *header, size_t length, const void *data, size_t size) {
  Image image = {host_memory(8 + length + size), 8 + length + size};
  const uint64_t long_length = length;
  memcpy(image.bytes, &long_length, 8);
  memcpy(image.bytes + 8, header, length);
  if (size) memcpy(image.bytes + 8 + length, data, size);
  return image;
}

static inline Image image_read(const char *path) {
  Image image;
  image.bytes = file_read(path, &image.size);
  if (!CHECK(image.size >= 8 && header_length(&image) <= image.size - 8, "%s has %zu bytes", path,
             image.size)) {
    image = image_of("{}", 2, NULL, 0);
  }
  return image;
}

static inline void image_write(const Image *image, const char *path) {
  file_write(path, image->bytes, image->size);
}

// Puts the SHA-256 that a checkpoint has to the place of the digest, which is there already, and
// returns it.
static inline const char *image_seal(Image *image) {
  static char digits[65];
  const char *key = "\"nvte.sha256\":\"", *text = header_text(image), *found = strstr(text, key);
  if (!CHECK(found, "no digest in %s", text)) return "";
  unsigned char *place = image->bytes + 8 + (found - text) + strlen(key);
  memset(place, '0', 64);
  sha256(image->bytes, image->size, digits);
  memcpy(place, digits, 64);
  return digits;
}

// The image with another text in its header, and its digest.
static inline Image image_with(const Image *image, const char *from, const char *to) {
  const char *text = header_text(image), *found = strstr(text, from);
  if (!CHECK(found, "no %s in %s", from, text)) return *image;
  const size_t length = header_length(image) - strlen(from) + strlen(to);
  char *changed = host_memory(length + 1);
  memcpy(changed, text, (size_t)(found - text));
  strcpy(changed + (found - text), to);
  strcat(changed, found + strlen(from));
  const size_t head = 8 + header_length(image);
  Image result = image_of(changed, length, image->bytes + head, image->size - head);
  if (strstr(changed, "nvte.sha256\":\"")) image_seal(&result);
  return result;
}

// A tensor as the header describes it.
typedef struct Stored {
  char dtype[8];
  NVTEShape shape;
  size_t begin, end;
  const unsigned char *data;
} Stored;

static inline Stored stored(const Image *image, const char *name) {
  Stored s = {0};
  char key[300];
  snprintf(key, sizeof key, "\"%s\":{", name);
  char *text = strstr(header_text(image), key);
  if (!CHECK(text, "no %s in the file", name)) return s;
  *strchr(text, '}') = 0;
  const char *dtype = strstr(text, "\"dtype\":\""), *shape = strstr(text, "\"shape\":[");
  const char *offsets = strstr(text, "\"data_offsets\":[");
  if (!CHECK(dtype && shape && offsets, "%s", text)) return s;
  sscanf(dtype + 9, "%7[A-Z0-9]", s.dtype);
  for (shape += 9; *shape && *shape != ']';) {
    char *rest;
    s.shape.data[s.shape.ndim++] = strtoul(shape, &rest, 10);
    shape = *rest == ',' ? rest + 1 : rest;
  }
  sscanf(offsets + 16, "%zu,%zu", &s.begin, &s.end);
  const size_t head = 8 + header_length(image);
  if (!CHECK(s.begin <= s.end && s.end <= image->size - head, "%s lies at %zu to %zu", name,
             s.begin, s.end)) {
    s.begin = s.end = 0;
  }
  s.data = image->bytes + head + s.begin;
  return s;
}

static inline size_t count_text(const char *text, const char *part) {
  size_t count = 0;
  for (; (text = strstr(text, part)); text += strlen(part)) count++;
  return count;
}

// A tensor to be written: `[rows]`, or `[rows, cols]` if `cols` is not 0.
typedef struct Entry {
  const char *name;
  NVTEDType dtype;
  size_t rows, cols;
  const void *data;
} Entry;

static inline size_t entry_bytes(const Entry *e) {
  return e->rows * (e->cols ? e->cols : 1) * dtype_size(e->dtype);
}

static inline Image image_of_entries(const Entry *entries, size_t count) {
  size_t used = 1, at = 0, room = 300 * count + 16;
  for (size_t i = 0; i < count; i++) at += entry_bytes(&entries[i]);
  char *header = host_memory(room);
  unsigned char *data = host_memory(at);
  header[0] = '{';
  at = 0;
  for (size_t i = 0; i < count; i++) {
    const Entry *e = &entries[i];
    static const char *const names[] = {"U8", "I16", "I32", "I64", "F32", "F16", "BF16"};
    char cols[32] = "";
    if (e->cols) snprintf(cols, sizeof cols, ",%zu", e->cols);
    used += (size_t)snprintf(
        header + used, room - used,
        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%zu%s],\"data_offsets\":[%zu,%zu]}", i ? "," : "",
        e->name, names[e->dtype], e->rows, cols, at, at + entry_bytes(e));
    memcpy(data + at, e->data, entry_bytes(e));
    at += entry_bytes(e);
  }
  header[used++] = '}';
  return image_of(header, used, data, at);
}

static inline void write_entries(const char *path, const Entry *entries, size_t count) {
  const Image image = image_of_entries(entries, count);
  image_write(&image, path);
}

// ---- Parameters

static inline NVTEXParameter parameter_of(NVTEXModule module, size_t index) {
  NVTEXParameter p = {.struct_size = sizeof p};
  nvtex_module_parameter(module, index, &p);
  return p;
}

static inline size_t basic_bytes(NVTEBasicTensor t) { return numel(t.shape) * dtype_size(t.dtype); }

static inline void *basic_read(NVTEBasicTensor t) {
  void *host = host_memory(basic_bytes(t));
  download(host, t.data_ptr, basic_bytes(t));
  return host;
}

static inline NVTEBasicTensor value_of(NVTEXModule module, size_t index) {
  return nvte_get_tensor_param(parameter_of(module, index).value, kNVTERowwiseData);
}

#endif  // NVTE_CAPI_TESTS_SAFETENSORS_H
