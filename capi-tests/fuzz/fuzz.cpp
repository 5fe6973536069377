// A library for LD_PRELOAD that stands between a test program and libnvte. Before the program's
// calls it makes calls of its own, with copies of the arguments of which one or two are changed,
// and looks at what the library does: a crash, an access outside of a declared buffer, a call that
// does not end, a refused call that has written, an error that the library itself takes for a
// defect.
//
// Every buffer of such a call is private. On the CPU its last byte (or its first) lies at a page
// that cannot be accessed; on CUDA it is an allocation of exactly its size, which compute-sanitizer
// guards. What is declared is always there: a tensor whose shape was changed gets a buffer of the
// changed size. So whatever the arguments are, the library has no right to a byte outside.
//
// NVTE_FUZZ_SEED       switches the fuzzer on; a run with the same seed makes the same calls
// NVTE_FUZZ_RATE       changed calls for each call of the program, on average (0.5)
// NVTE_FUZZ_CALL       makes only the changed call of this number
// NVTE_FUZZ_REPORT     file for the report; its first 8 KiB hold the call that runs
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "nvte/nvte.h"

namespace {

enum Kind {
  PLAIN,  // passed on
  INTEGER,
  FLOAT,
  BOOL,
  ENUM,
  STRING,
  SHAPE,
  TENSOR,
  GROUPED,
  QUANT_CONFIG,
  MATMUL_CONFIG,
  GROUPED_MATMUL_CONFIG,
  ATTENTION_CONFIG,
  FORWARD_PARAMS,
  BACKWARD_PARAMS,
  OBJECT,        // any other handle
  TENSORS,       // an array of tensors
  TENSOR_LISTS,  // an array of arrays of tensors
  PACK,
  HOST_ARRAY,
  DEVICE_ARRAY,
  STRUCT,
  OUT,   // a pointer to what the call returns
  TAPE,  // likewise, a tape
};

struct Field {
  Kind kind;
  const char *name;
  size_t offset, size;
};

// One argument of a changed call. Arrays have `element` bytes for each of `count` elements, which
// is the index of the argument that counts them (and that of the inner count), and `more` elements
// beyond.
struct Arg {
  Kind kind;
  const char *name;
  void *value;
  size_t bytes, element;
  int count, inner_count;
  size_t more;
  const Field *fields;
};

enum { FOUND = 86, LEFT = 78, NOTE_BYTES = 8192, REPORT_BYTES = 1 << 20, SECONDS = 20 };
constexpr size_t kMaxBuffer = 4 << 20, kMaxCall = 16 << 20, kGrown = 256 << 10,
                 kMaxWorkspace = 64 << 20;

// Memory of a changed call.
struct Buffer {
  std::string name;
  unsigned char *map = nullptr, *ptr = nullptr;
  size_t map_bytes = 0, bytes = 0;
  size_t low = 0, high = 0;  // of the map, what can be accessed
  bool on_device = false, giant = false;
  std::vector<unsigned char> before;  // what can be accessed, when the call began
};

struct Allocation {
  unsigned char *ptr;
  size_t bytes;
};

struct Counts {
  unsigned made, accepted, refused;
};

struct State {
  bool on, cuda, inside;
  pid_t pid;
  double rate;
  uint64_t seed, rng, only;
  uint64_t call;  // number of the next changed call
  int error_mode, function;
  char *report;
  size_t report_used;
  std::vector<Counts> counts;
  std::vector<Allocation> allocations;
  // The changed call that runs
  unsigned changes_left;
  bool running, give_up;
  volatile sig_atomic_t stopped;
  size_t bytes;
  std::string changes;
  std::vector<Buffer> buffers;
  std::vector<std::pair<Kind, void *>> copies;
  std::map<void *, void *> copied;
  std::map<std::pair<void *, size_t>, void *> copied_buffers;
  std::vector<NVTETensor> tensors;
  std::vector<void *> host;
  cudaStream_t stream;
  void **tape;
  void *stale;
} g;

// ---- Report

void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) {
  if (!g.report) return;
  va_list args;
  va_start(args, format);
  size_t left = REPORT_BYTES - NOTE_BYTES - g.report_used;
  int n = vsnprintf(g.report + NOTE_BYTES + g.report_used, left, format, args);
  va_end(args);
  if (n > 0) g.report_used += std::min(left - 1, (size_t)n);
}

const char *name_of(size_t function);
size_t number_of_functions();

void note_counts() {
  for (size_t i = 0; i < g.counts.size(); i++) {
    const Counts &c = g.counts[i];
    if (c.made) note("count %s %u %u %u\n", name_of(i), c.made, c.accepted, c.refused);
  }
}

[[noreturn]] void leave(int status) {
  note_counts();
  _exit(status);
}

[[noreturn]] void found(const char *format, ...) __attribute__((format(printf, 1, 2)));
void found(const char *format, ...) {
  char text[2048];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  note("found %s\n", text);
  fprintf(stderr, "fuzz: %s\nfuzz: %s\n", text, g.report ? g.report : "");
  leave(FOUND);
}

void on_signal(int number, siginfo_t *info, void *) {
  if (!g.on || getpid() != g.pid) {
    signal(number, SIG_DFL);
    if (number == SIGABRT || number == SIGTERM || number == SIGALRM) raise(number);
    return;
  }
  if (number == SIGTERM && !g.running) leave(0);
  if (number == SIGTERM) {
    // A call that does not end is found by its alarm only if it may run until then.
    g.stopped = true;
    return;
  }
  auto address = (unsigned char *)info->si_addr;
  char where[512] = "";
  if (g.running && (number == SIGSEGV || number == SIGBUS)) {
    snprintf(where, sizeof where, " at address %p", (void *)address);
    for (const Buffer &b : g.buffers) {
      if (address < b.map || address >= b.map + b.map_bytes) continue;
      // The declared size is larger than what memory can hold, so the access is legal.
      if (b.giant) leave(LEFT);
      long long off = address < b.ptr ? b.ptr - address : address - (b.ptr + b.bytes);
      snprintf(where, sizeof where, ", %lld bytes %s %s of %zu bytes", off,
               address < b.ptr ? "before" : "past the end of", b.name.c_str(), b.bytes);
    }
  }
  const char *what = number == SIGALRM ? "the call does not end" : strsignal(number);
  note("found %s%s%s\n", what, where, g.running ? "" : " (outside of a changed call)");
  void *frames[40];
  int depth = backtrace(frames, 40);
  for (int i = 2; i < depth; i++) {
    Dl_info at;
    if (!dladdr(frames[i], &at) || !at.dli_fname) continue;
    const char *slash = strrchr(at.dli_fname, '/');
    note("frame %s+0x%zx\n", slash ? slash + 1 : at.dli_fname,
         (size_t)((unsigned char *)frames[i] - (unsigned char *)at.dli_fbase));
  }
  leave(FOUND);
}

// ---- Random numbers (splitmix64)

uint64_t random_u64() {
  uint64_t z = (g.rng += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

size_t below(size_t n) { return (size_t)(random_u64() % n); }

bool one_in(size_t n) { return below(n) == 0; }

uint64_t changed_integer(uint64_t x) {
  const uint64_t values[] = {0,
                             1,
                             (uint64_t)-1,
                             x + 1,
                             x - 1,
                             x + 1,
                             x - 1,
                             x * 2,
                             x / 2,
                             x + 16,
                             0 - x,
                             1ull << 31,
                             (1ull << 31) - 1,
                             (1ull << 32) + 1,
                             1ull << 63,
                             (1ull << 63) - 1,
                             (1ull << 62) + 1,
                             below(8),
                             below(300),
                             random_u64()};
  return values[below(std::size(values))];
}

float changed_float(float x) {
  const float values[] = {0,        -0.0f,     1,   -1,    x * 2,  -x,   1e-45f,
                          INFINITY, -INFINITY, NAN, 3e38f, 1e-30f, x + 1};
  return values[below(std::size(values))];
}

void changed(const char *format, ...) __attribute__((format(printf, 1, 2)));
void changed(const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  g.changes += g.changes.empty() ? "" : "; ";
  g.changes += text;
}

// Changes an integer of 1, 4 or 8 bytes.
void change_bytes(void *at, size_t size, const std::string &name) {
  uint64_t x = 0;
  memcpy(&x, at, size);
  if (size == 4) x = (uint64_t)(int64_t)(int32_t)x;
  uint64_t y = changed_integer(x);
  memcpy(at, &y, size);
  changed("%s: %lld -> %lld", name.c_str(), (long long)x, (long long)(size == 4 ? (int32_t)y : y));
}

// ---- Memory

bool read_host(void *to, const void *from, size_t bytes) {
  iovec local = {to, bytes}, remote = {const_cast<void *>(from), bytes};
  return bytes == 0 || process_vm_readv(g.pid, &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

bool of_device(const void *address) {
  auto at = (const unsigned char *)address;
  for (const Allocation &a : g.allocations)
    if (at >= a.ptr && at < a.ptr + a.bytes) return true;
  return false;
}

bool read_device(void *to, const void *from, size_t bytes) {
  if (!g.cuda) return read_host(to, from, bytes);
  auto at = (const unsigned char *)from;
  for (const Allocation &a : g.allocations) {
    if (at < a.ptr || at + bytes > a.ptr + a.bytes) continue;
    nvtex_memcpy_to_host(to, from, bytes, nullptr);
    nvtex_stream_synchronize(nullptr);
    return true;
  }
  return false;
}

// Memory of `bytes` bytes with the contents of `from`, as far as there are any, and random bytes
// behind.
unsigned char *new_buffer(const std::string &name, const void *from, size_t from_bytes,
                          size_t bytes, bool on_device, size_t shift = 0,
                          bool may_be_giant = true) {
  Buffer b;
  b.name = name;
  b.bytes = bytes;
  b.on_device = on_device && g.cuda;
  std::vector<unsigned char> image;
  // What a workspace holds matters to nobody, and it may be large.
  bool scratch =
      name.find("workspace") != std::string::npos && bytes > kGrown && bytes <= 2 * kMaxWorkspace;
  if (scratch) from_bytes = 0;
  if (scratch) {
    b.on_device = on_device && g.cuda;
  } else if (bytes > kMaxBuffer || g.bytes + bytes > kMaxCall) {
    if (b.on_device || bytes <= 4 * kMaxBuffer || !may_be_giant) {
      g.give_up = true;
      return nullptr;
    }
    // Addresses without memory: an access stops the run, but is no finding.
    b.giant = true;
    b.map_bytes = std::min(bytes, (size_t)1 << 40);
    b.map = (unsigned char *)mmap(nullptr, b.map_bytes, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.map == MAP_FAILED) {
      g.give_up = true;
      return nullptr;
    }
    b.ptr = b.map;
    g.buffers.push_back(b);
    return b.ptr;
  }
  g.bytes += scratch ? 0 : bytes;
  if (!scratch) image.resize(bytes + shift);
  if (from_bytes > bytes) from_bytes = bytes;
  auto content = image.data() + shift;
  if (scratch || !from ||
      !(on_device ? read_device(content, from, from_bytes) : read_host(content, from, from_bytes)))
    from_bytes = 0;
  int fill = (int)below(3);
  for (size_t i = from_bytes; i < bytes && !scratch; i++) {
    content[i] = fill == 0 ? 0 : fill == 1 ? 0xFF : (unsigned char)random_u64();
  }
  if (b.on_device) {
    // Kernels may read, but not write, up to the end of the aligned 16 bytes that hold the last
    // byte.
    const size_t room = std::max<size_t>((bytes + shift + 15) / 16 * 16, 16);
    if (!scratch) image.resize(room, 0xA5);
    b.map = (unsigned char *)nvtex_malloc(room);
    if (!b.map) {
      nvtex_clear_error();
      g.give_up = true;
      return nullptr;
    }
    b.ptr = b.map + shift;
    b.map_bytes = b.high = room;
    if (!scratch) nvtex_memcpy_to_device(b.map, image.data(), room, nullptr);
    b.before = image;
  } else {
    const size_t page = 4096;
    size_t pages = std::max((bytes + shift + page - 1) / page, (size_t)1) * page;
    b.map_bytes = pages + 2 * page;
    b.low = page;
    b.high = page + pages;
    b.map =
        (unsigned char *)mmap(nullptr, b.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.map == MAP_FAILED || mprotect(b.map + b.low, pages, PROT_READ | PROT_WRITE) != 0) {
      g.give_up = true;
      return nullptr;
    }
    bool at_start = one_in(4);
    b.ptr = at_start && !shift ? b.map + b.low : b.map + b.high - bytes - shift;
    if (!scratch) {
      memset(b.map + b.low, 0xA5, pages);
      memcpy(b.ptr, content, bytes);
      b.before.assign(b.map + b.low, b.map + b.high);
    }
  }
  g.buffers.push_back(b);
  return g.buffers.back().ptr;
}

void *new_host(const std::string &name, const void *from, size_t from_bytes, size_t bytes) {
  return new_buffer(name, from, from_bytes, bytes, false);
}

// ---- Tensors

const size_t kBits[] = {8, 16, 32, 64, 32, 16, 16, 8, 8, 8, 4};
const char *const kDtypes[] = {"Byte",       "Int16",      "Int32",     "Int64",
                               "Float32",    "Float16",    "BFloat16",  "Float8E4M3",
                               "Float8E5M2", "Float8E8M0", "Float4E2M1"};
const char *const kParams[] = {"data",      "columnwise_data",      "scale",          "amax",
                               "scale_inv", "columnwise_scale_inv", "columnwise_amax"};
const char *const kGroupedParams[] = {
    "data",      "columnwise_data",      "scale",           "amax",
    "scale_inv", "columnwise_scale_inv", "columnwise_amax", "first_dims",
    "last_dims", "tensor_offsets"};

size_t numel_of(const NVTEShape &shape) {
  size_t n = 1;
  for (size_t i = 0; i < shape.ndim && i < 15; i++) {
    if (__builtin_mul_overflow(n, shape.data[i], &n)) return SIZE_MAX / 8;
  }
  return n;
}

size_t bytes_of(const NVTEBasicTensor &t) {
  size_t n = numel_of(t.shape), bits = (unsigned)t.dtype < std::size(kBits) ? kBits[t.dtype] : 64;
  return n > (SIZE_MAX / 128) ? SIZE_MAX / 16 : (n * bits + 7) / 8;
}

std::string text_of(const NVTEBasicTensor &t) {
  std::string text =
      (unsigned)t.dtype < std::size(kDtypes) ? kDtypes[t.dtype] : std::to_string((int)t.dtype);
  text += "[";
  for (size_t i = 0; i < t.shape.ndim && i < 15; i++)
    text += (i ? "," : "") + std::to_string(t.shape.data[i]);
  return text + (t.data_ptr ? "]" : "]null");
}

bool is_integer(NVTEDType dtype) { return dtype == kNVTEInt32 || dtype == kNVTEInt64; }

enum Change {
  NOTHING,
  DIMENSION,
  SHORTER,  // one dimension less
  LONGER,   // one more
  DTYPE,
  NULL_POINTER,
  MISALIGNED,
  UNSET,
  CONTENTS,
  SAME_MEMORY,  // as another buffer of the call
};

// Gives the parameter memory of its own, changed or not.
void own_memory(NVTEBasicTensor &t, const std::string &name, Change change) {
  NVTEBasicTensor old = t;
  size_t old_bytes = bytes_of(t), shift = 0;
  void *from = t.data_ptr;
  switch (change) {
    case DIMENSION: {
      if (t.shape.ndim == 0 || t.shape.ndim > 15) break;
      size_t i = below(t.shape.ndim);
      t.shape.data[i] = (size_t)changed_integer(t.shape.data[i]);
      // What runs over large shapes takes long without a defect.
      for (int tries = 0;
           bytes_of(t) > std::max(kGrown, old_bytes) && bytes_of(t) < ((size_t)1 << 36); tries++) {
        t.shape.data[i] =
            tries < 8 ? (size_t)changed_integer(old.shape.data[i]) : old.shape.data[i];
      }
      break;
    }
    case SHORTER:
      if (t.shape.ndim > 0 && t.shape.ndim <= 15) t.shape.ndim--;
      break;
    case LONGER:
      if (t.shape.ndim < 15) t.shape.data[t.shape.ndim++] = 1;
      break;
    case DTYPE:
      t.dtype = (NVTEDType)below(one_in(8) ? 16 : 11);
      break;
    case MISALIGNED:
      shift = 1 + below(3);
      break;
    case UNSET:
      memset(&t, 0, sizeof t);
      t.dtype = kNVTEFloat32;
      t.shape.ndim = 1;
      break;
    default:
      break;
  }
  size_t bytes = bytes_of(t);
  auto key = std::make_pair(from, bytes);
  if (change == UNSET) {
  } else if (change == NULL_POINTER) {
    t.data_ptr = nullptr;
  } else if (change == SAME_MEMORY && !g.buffers.empty()) {
    const Buffer &b = g.buffers[below(g.buffers.size())];
    if (b.bytes >= bytes && b.on_device == g.cuda)
      t.data_ptr = b.ptr;
    else
      t.data_ptr = new_buffer(name, from, old_bytes, bytes, true);
  } else if (from && change == NOTHING && g.copied_buffers.count(key)) {
    t.data_ptr = g.copied_buffers[key];
  } else if (from || change == DIMENSION) {
    t.data_ptr =
        from ? new_buffer(name, from, old_bytes, bytes, true, shift, change != NOTHING) : nullptr;
    if (from) g.copied_buffers[key] = t.data_ptr;
  }
  if (change == CONTENTS && t.data_ptr && !g.buffers.empty() &&
      g.buffers.back().ptr == t.data_ptr && bytes > 0 && !g.buffers.back().before.empty()) {
    Buffer &b = g.buffers.back();
    size_t offset = (size_t)(b.ptr - b.map) - b.low;
    unsigned char *image = b.before.data() + offset;
    if (is_integer(t.dtype)) {
      size_t size = kBits[t.dtype] / 8;
      for (size_t n = 1 + below(3); n > 0; n--) {
        size_t i = below(bytes / size);
        change_bytes(image + i * size, size, name + "[" + std::to_string(i) + "]");
      }
    } else {
      int fill = (int)below(4);
      for (size_t i = 0; i < bytes; i++) {
        if (fill == 0) image[i] = 0;
        if (fill == 1) image[i] = 0xFF;
        if (fill == 2) image[i] = (unsigned char)random_u64();
        if (fill == 3 && one_in(16)) image[i] = (unsigned char)(one_in(2) ? 0x7F : 0x80);
      }
      changed("%s: contents %d", name.c_str(), fill);
    }
    if (b.on_device)
      nvtex_memcpy_to_device(b.ptr, image, bytes, nullptr);
    else
      memcpy(b.ptr, image, bytes);
  } else if (change != NOTHING) {
    const char *words = change == MISALIGNED    ? " misaligned"
                        : change == SAME_MEMORY ? " in other memory"
                                                : "";
    changed("%s: %s -> %s%s", name.c_str(), text_of(old).c_str(), text_of(t).c_str(), words);
  }
}

Change any_change() {
  const Change all[] = {DIMENSION, DIMENSION, DIMENSION, DIMENSION,    SHORTER,    LONGER,
                        DTYPE,     DTYPE,     DTYPE,     NULL_POINTER, MISALIGNED, UNSET,
                        CONTENTS,  CONTENTS,  CONTENTS,  SAME_MEMORY};
  return all[below(std::size(all))];
}

bool ok() {
  bool fine = nvtex_last_status() == NVTEX_OK;
  nvtex_clear_error();
  return fine;
}

void *wrong_handle(void *original, const std::string &name) {
  void *handle = nullptr;
  const char *what = "null";
  switch (below(4)) {
    case 0:
      break;
    case 1:
      handle = g.stale;
      what = "a destroyed tensor";
      break;
    case 2:
      if (g.copies.empty()) break;
      handle = g.copies[below(g.copies.size())].second;
      what = "another handle of the call";
      break;
    case 3:
      handle = (void *)(one_in(2) ? random_u64() : (uint64_t)(uintptr_t)original + 1);
      what = "a number";
      break;
  }
  changed("%s: %s", name.c_str(), what);
  return handle;
}

// A copy of a tensor with memory of its own; `change`: one thing of it is changed.
NVTETensor copy_tensor(NVTETensor original, const std::string &name, bool change) {
  if (change && one_in(6)) return wrong_handle(original, name);
  if (!original) return nullptr;
  auto known = g.copied.find(original);
  if (known != g.copied.end() && !change) return known->second;
  NVTEScalingMode mode = nvte_tensor_scaling_mode(original);
  if (!ok()) return original;
  NVTEBasicTensor params[7];
  int used[7], n = 0;
  for (int i = 0; i < 7; i++) {
    nvte_get_tensor_param_v2(original, (NVTETensorParam)i, &params[i], sizeof params[i], nullptr);
    if (!ok()) return original;
    if (params[i].data_ptr || numel_of(params[i].shape) > 0) used[n++] = i;
  }
  int target = -1, flag = -1;
  if (change) {
    size_t choice = below(8);
    if (choice == 0) {
      const NVTEScalingMode modes[] = {NVTE_DELAYED_TENSOR_SCALING, NVTE_MXFP8_1D_SCALING,
                                       NVTE_BLOCK_SCALING_1D,       NVTE_BLOCK_SCALING_2D,
                                       NVTE_NVFP4_1D_SCALING,       NVTE_INVALID_SCALING};
      NVTEScalingMode other = modes[below(std::size(modes))];
      changed("%s: mode %d -> %d", name.c_str(), (int)mode, (int)other);
      mode = other;
    } else if (choice == 1) {
      flag = 7 + (int)below(3);
    } else if (choice == 2 && n > 0) {
      // A parameter that is not set, or another one, becomes like one that is.
      target = (int)below(7);
      NVTEBasicTensor like = params[used[below((size_t)n)]];
      changed("%s.%s: %s -> %s", name.c_str(), kParams[target], text_of(params[target]).c_str(),
              text_of(like).c_str());
      params[target] = like;
      target = -1;
    } else if (n > 0) {
      target = used[below((size_t)n)];
    }
  }
  NVTETensor copy = nvte_create_tensor(mode);
  if (!ok()) return original;
  g.copies.emplace_back(TENSOR, copy);
  g.tensors.push_back(copy);
  for (int i = 0; i < 7; i++) {
    own_memory(params[i], name + "." + kParams[i], i == target ? any_change() : NOTHING);
    nvte_set_tensor_param_v2(copy, (NVTETensorParam)i, &params[i], sizeof params[i]);
    if (!ok()) changed("(the setter refused it)");
  }
  for (int i = 7; i < 10; i++) {
    int value = 0;
    size_t size = i == 9 ? sizeof(int) : 1;
    nvte_get_tensor_param_v2(original, (NVTETensorParam)i, &value, size, nullptr);
    if (!ok()) continue;
    if (i == flag) {
      int other = i == 9 ? (one_in(2) ? 256 : 448) : !value;
      changed("%s: parameter %d: %d -> %d", name.c_str(), i, value, other);
      value = other;
    }
    nvte_set_tensor_param_v2(copy, (NVTETensorParam)i, &value, size);
    ok();
  }
  g.copied[original] = copy;
  return copy;
}

NVTEGroupedTensor copy_grouped(NVTEGroupedTensor original, const std::string &name, bool change) {
  if (change && one_in(6)) return wrong_handle(original, name);
  if (!original) return nullptr;
  auto known = g.copied.find(original);
  if (known != g.copied.end() && !change) return known->second;
  NVTEScalingMode mode = nvte_grouped_tensor_scaling_mode(original);
  if (!ok()) return original;
  size_t num = nvte_grouped_tensor_num_tensors(original);
  NVTEShape shape = nvte_get_grouped_tensor_logical_shape(original);
  NVTEBasicTensor params[10];
  int used[10], n = 0, target = -1;
  for (int i = 0; i < 10; i++) {
    nvte_get_grouped_tensor_param(original, (NVTEGroupedTensorParam)i, &params[i], sizeof params[i],
                                  nullptr);
    if (!ok()) return original;
    if (params[i].data_ptr) used[n++] = i;
  }
  uint8_t swizzled = 0;
  nvte_get_grouped_tensor_param(original, kNVTEGroupedWithGEMMSwizzledScales, &swizzled, 1,
                                nullptr);
  ok();
  if (change) {
    switch (below(8)) {
      case 0: {
        NVTEScalingMode other = (NVTEScalingMode)below(5);
        changed("%s: mode %d -> %d", name.c_str(), (int)mode, (int)other);
        mode = other;
        break;
      }
      case 1: {
        size_t other = (size_t)changed_integer(num);
        changed("%s: members %zu -> %zu", name.c_str(), num, other);
        num = other;
        break;
      }
      case 2: {
        size_t i = below(2), other = (size_t)changed_integer(shape.data[i]);
        changed("%s: logical shape[%zu] %zu -> %zu", name.c_str(), i, shape.data[i], other);
        shape.data[i] = other;
        break;
      }
      case 3:
        swizzled = !swizzled;
        changed("%s: swizzled -> %d", name.c_str(), swizzled);
        break;
      default:
        if (n > 0) target = used[below((size_t)n)];
    }
  }
  NVTEGroupedTensor copy = nvte_create_grouped_tensor(mode, num, shape);
  if (!ok()) return original;
  g.copies.emplace_back(GROUPED, copy);
  for (int i = 0; i < 10; i++) {
    own_memory(params[i], name + "." + kGroupedParams[i], i == target ? any_change() : NOTHING);
    nvte_set_grouped_tensor_param(copy, (NVTEGroupedTensorParam)i, &params[i], sizeof params[i]);
    if (!ok()) changed("(the setter refused it)");
  }
  nvte_set_grouped_tensor_param(copy, kNVTEGroupedWithGEMMSwizzledScales, &swizzled, 1);
  ok();
  g.copied[original] = copy;
  return copy;
}

// A pack of auxiliary tensors: what the call finds there, and whether it is the program's first
// call, in which the pack is an output.
NVTETensorPack *copy_pack(const NVTETensorPack *original, const std::string &name, bool change) {
  NVTETensorPack pack;
  if (!original || !read_host(&pack, original, sizeof pack))
    return const_cast<NVTETensorPack *>(original);
  if (change && one_in(4))
    change_bytes(&pack.size, sizeof pack.size, name + ".size"), change = false;
  size_t target = change ? below(std::max<size_t>(1, std::min<size_t>(pack.size, 10))) : 10;
  for (size_t i = 0; i < 10; i++) {
    pack.tensors[i] =
        copy_tensor(pack.tensors[i], name + ".tensors[" + std::to_string(i) + "]", i == target);
  }
  auto copy = (NVTETensorPack *)new_host(name, nullptr, 0, sizeof pack);
  if (copy) {
    memcpy((void *)copy, (void *)&pack, sizeof pack);
    Buffer &b = g.buffers.back();
    b.before.assign(b.map + b.low, b.map + b.high);
  }
  return copy;
}

// ---- Configs: objects with numbered attributes

struct ConfigType {
  Kind kind;
  void *(*create)();
  void (*get)(void *, int, void *, size_t, size_t *);
  void (*set)(void *, int, const void *, size_t);
  void (*destroy)(void *);
  int attributes;
  uint64_t tensors;  // a bit for each attribute that is one
  int pack, stream;
};

#define CONFIG(kind, noun, Attribute, attributes, tensors, pack, stream) \
  {kind,                                                                 \
   [] { return (void *)nvte_create_##noun(); },                          \
   [](void *c, int a, void *buf, size_t n, size_t *w) {                  \
     nvte_get_##noun##_attribute(c, (Attribute)a, buf, n, w);            \
   },                                                                    \
   [](void *c, int a, const void *buf, size_t n) {                       \
     nvte_set_##noun##_attribute(c, (Attribute)a, buf, n);               \
   },                                                                    \
   [](void *c) { nvte_destroy_##noun(c); },                              \
   attributes,                                                           \
   tensors,                                                              \
   pack,                                                                 \
   stream}

const ConfigType kConfigs[] = {
    CONFIG(QUANT_CONFIG, quantization_config, NVTEQuantizationConfigAttribute,
           kNVTEQuantizationConfigNumAttributes,
           1 << kNVTEQuantizationConfigNoopTensor | 1 << kNVTEQuantizationConfigRNGState, -1, -1),
    CONFIG(MATMUL_CONFIG, matmul_config, NVTEMatmulConfigAttribute, kNVTEMatmulConfigNumAttributes,
           1 << kNVTEMatmulConfigBiasTensor | 1 << kNVTEMatmulConfigDBiasTensor |
               1 << kNVTEMatmulConfigEpilogueAuxTensor,
           -1, -1),
    CONFIG(GROUPED_MATMUL_CONFIG, grouped_matmul_config, NVTEGroupedMatmulConfigAttribute,
           kNVTEGroupedMatmulConfigNumAttributes, 0, -1, -1),
    CONFIG(ATTENTION_CONFIG, fused_attn_config, NVTEFusedAttnConfigAttribute,
           kNVTEFusedAttnConfigNumAttributes, 0, -1, -1),
    CONFIG(FORWARD_PARAMS, fused_attn_fwd_params, NVTEFusedAttnFwdParamsAttribute,
           kNVTEFusedAttnFwdParamsNumAttributes, 0x7F7F | 1ull << kNVTEFusedAttnFwdParamsWorkspace,
           kNVTEFusedAttnFwdParamsAuxCtxTensors, kNVTEFusedAttnFwdParamsStream),
    CONFIG(BACKWARD_PARAMS, fused_attn_bwd_params, NVTEFusedAttnBwdParamsAttribute,
           kNVTEFusedAttnBwdParamsNumAttributes, 0x1FF7F | 1ull << kNVTEFusedAttnBwdParamsWorkspace,
           kNVTEFusedAttnBwdParamsAuxCtxTensors, kNVTEFusedAttnBwdParamsStream),
};

const ConfigType &config_type(Kind kind) { return kConfigs[kind - QUANT_CONFIG]; }

void *copy_config(Kind kind, void *original, const std::string &name, bool change) {
  if (change && one_in(6)) return wrong_handle(original, name);
  if (!original) return nullptr;
  const ConfigType &type = config_type(kind);
  void *copy = type.create();
  if (!ok()) return original;
  g.copies.emplace_back(kind, copy);
  int target = change ? (int)below((size_t)type.attributes) : -1;
  for (int i = 0; i < type.attributes; i++) {
    unsigned char value[64] = {0};
    size_t size = 0;
    type.get(original, i, nullptr, 0, &size);
    if (!ok() || size == 0 || size > sizeof value) continue;
    type.get(original, i, value, size, nullptr);
    if (!ok()) return original;
    std::string attribute = name + ".attribute" + std::to_string(i);
    void *handle;
    memcpy(&handle, value, sizeof handle);
    if (type.tensors >> i & 1) {
      handle = copy_tensor(handle, attribute, i == target);
      memcpy(value, &handle, sizeof handle);
    } else if (i == type.pack) {
      handle = copy_pack((NVTETensorPack *)handle, attribute, i == target);
      memcpy(value, &handle, sizeof handle);
    } else if (i == type.stream) {
      memcpy(&g.stream, value, sizeof g.stream);
    } else if (i == target && size == 4 && one_in(4)) {
      float x = changed_float(1);
      memcpy(value, &x, 4);
      changed("%s: as float %g", attribute.c_str(), (double)x);
    } else if (i == target && size == 1) {
      value[0] = !value[0];
      changed("%s: -> %d", attribute.c_str(), value[0]);
    } else if (i == target && (size == 4 || size == 8)) {
      change_bytes(value, size, attribute);
    }
    type.set(copy, i, value, size);
    if (!ok() && i == target) changed("(the setter refused it)");
  }
  return copy;
}

// ---- Arguments

int64_t integer_of(const Arg &a) {
  int64_t x = 0;
  memcpy(&x, a.value, a.bytes);
  return a.bytes == 4 ? (int32_t)x : x;
}

void *pointer_of(const Arg &a) {
  void *p;
  memcpy(&p, a.value, sizeof p);
  return p;
}

void set_pointer(const Arg &a, const void *p) { memcpy(a.value, &p, sizeof p); }

// Elements of an array argument before (`old`) and after the changes. False if no memory can hold
// them.
bool counts_of(const Arg *args, const Arg &a, const int64_t *old, size_t &before, size_t &after) {
  before = after = a.more;
  if (a.count >= 0) {
    int64_t now = integer_of(args[a.count]);
    if (old[a.count] < 0 || (uint64_t)old[a.count] > kMaxBuffer) return false;
    before += (size_t)old[a.count];
    after += now < 0 && args[a.count].bytes == 4 ? 0 : (size_t)now;
  }
  return after <= kMaxBuffer / 8;
}

void build_tensors(const Arg *args, const Arg &a, const int64_t *old, bool change) {
  auto list = (NVTETensor *)pointer_of(a);
  if (!list) return;
  size_t before, after;
  if (!counts_of(args, a, old, before, after) || (change && one_in(8))) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  std::vector<NVTETensor> tensors(after);
  if (!read_host(tensors.data(), list, std::min(before, after) * sizeof(NVTETensor))) {
    g.give_up = true;
    return;
  }
  size_t target = change && after > 0 ? below(after) : after;
  for (size_t i = 0; i < after && !g.give_up; i++) {
    if (i >= before && before > 0) tensors[i] = tensors[below(before)];
    // More elements than the program has repeat copies.
    if (i < before || before == 0)
      tensors[i] =
          copy_tensor(tensors[i], std::string(a.name) + "[" + std::to_string(i) + "]", i == target);
  }
  void *copy = new_host(a.name, nullptr, 0, after * sizeof(NVTETensor));
  if (!copy) return;
  memcpy(copy, tensors.data(), after * sizeof(NVTETensor));
  g.buffers.back().before.assign(g.buffers.back().map + g.buffers.back().low,
                                 g.buffers.back().map + g.buffers.back().high);
  set_pointer(a, copy);
}

void build_lists(const Arg *args, const Arg &a, const int64_t *old, bool change) {
  auto lists = (NVTETensor **)pointer_of(a);
  if (!lists || a.count < 0 || a.inner_count < 0) return;
  int64_t outer = integer_of(args[a.count]), inner = integer_of(args[a.inner_count]);
  bool fits = outer >= 0 && inner >= 0 && outer <= 64 && inner <= 4096;
  if (!fits || old[a.count] > 64 || old[a.inner_count] > 4096 || (change && one_in(8))) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  std::vector<NVTETensor *> outers((size_t)outer);
  size_t known = (size_t)std::min(outer, old[a.count]),
         inner_known = (size_t)std::min(inner, old[a.inner_count]);
  if (!read_host(outers.data(), lists, known * sizeof *lists)) {
    g.give_up = true;
    return;
  }
  size_t total = (size_t)outer * (size_t)inner, target = change && total > 0 ? below(total) : total;
  for (size_t i = 0; i < (size_t)outer && !g.give_up; i++) {
    std::vector<NVTETensor> tensors((size_t)inner);
    if (i < known && !read_host(tensors.data(), outers[i], inner_known * sizeof(NVTETensor))) {
      g.give_up = true;
      return;
    }
    for (size_t j = 0; j < (size_t)inner; j++) {
      std::string name =
          std::string(a.name) + "[" + std::to_string(i) + "][" + std::to_string(j) + "]";
      if (i >= known || j >= inner_known) {
        tensors[j] = g.tensors.empty() ? nullptr : g.tensors[below(g.tensors.size())];
      } else {
        tensors[j] = copy_tensor(tensors[j], name, i * (size_t)inner + j == target);
      }
    }
    outers[i] = (NVTETensor *)new_host(a.name, nullptr, 0, tensors.size() * sizeof(NVTETensor));
    if (!outers[i]) return;
    memcpy(outers[i], tensors.data(), tensors.size() * sizeof(NVTETensor));
    Buffer &b = g.buffers.back();
    b.before.assign(b.map + b.low, b.map + b.high);
  }
  void *copy = new_host(a.name, nullptr, 0, outers.size() * sizeof(void *));
  if (!copy) return;
  memcpy(copy, outers.data(), outers.size() * sizeof(void *));
  Buffer &b = g.buffers.back();
  b.before.assign(b.map + b.low, b.map + b.high);
  set_pointer(a, copy);
}

void build_array(const Arg *args, const Arg &a, const int64_t *old, bool change) {
  void *array = pointer_of(a);
  if (!array) return;
  size_t before, after;
  if (!counts_of(args, a, old, before, after) || (change && one_in(8))) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  // Alpha and beta of NVFP4 products lie on the device, others on the host.
  bool on_device = a.kind == DEVICE_ARRAY || of_device(array);
  size_t bytes = after * a.element;
  unsigned char *copy = new_buffer(a.name, array, before * a.element, bytes, on_device);
  if (!copy) return;
  set_pointer(a, copy);
  Buffer &b = g.buffers.back();
  if (!change || bytes == 0 || b.before.empty()) return;
  unsigned char *image = b.before.data() + (size_t)(b.ptr - b.map) - b.low;
  size_t i = below(after);
  change_bytes(image + i * a.element, a.element,
               std::string(a.name) + "[" + std::to_string(i) + "]");
  if (b.on_device)
    nvtex_memcpy_to_device(b.ptr, image, bytes, nullptr);
  else
    memcpy(b.ptr, image, bytes);
}

void build_struct(const Arg &a, bool change) {
  auto original = (const unsigned char *)pointer_of(a);
  if (!original) return;
  if (change && one_in(12)) {
    set_pointer(a, nullptr);
    changed("%s: null", a.name);
    return;
  }
  size_t bytes = a.element,
         offset_of_size = strcmp(a.fields[0].name, "struct_size") == 0 ? 0 : SIZE_MAX;
  if (offset_of_size == 0 && !read_host(&bytes, original, sizeof bytes)) bytes = SIZE_MAX;
  if (bytes > 4 * a.element || bytes < 8) {
    g.give_up = true;
    return;
  }
  std::vector<unsigned char> image(std::max(bytes, a.element));
  if (!read_host(image.data(), original, bytes)) {
    g.give_up = true;
    return;
  }
  size_t n = 0;
  while (a.fields[n].name) n++;
  size_t target = change ? below(n) : n;
  for (size_t i = 0; i < n; i++) {
    const Field &f = a.fields[i];
    if (f.offset + f.size > bytes) continue;
    unsigned char *at = image.data() + f.offset;
    std::string name = std::string(a.name) + "." + f.name;
    bool is_size = f.offset == offset_of_size;
    switch (f.kind) {
      case TENSOR: {
        void *handle;
        memcpy(&handle, at, sizeof handle);
        handle = copy_tensor(handle, name, i == target);
        memcpy(at, &handle, sizeof handle);
        break;
      }
      case OBJECT:
        if (i == target) {
          void *handle;
          memcpy(&handle, at, sizeof handle);
          handle = wrong_handle(handle, name);
          memcpy(at, &handle, sizeof handle);
        }
        break;
      case STRING:
      case HOST_ARRAY:
        if (i == target) {
          memset(at, 0, sizeof(void *));
          changed("%s: null", name.c_str());
        }
        break;
      case FLOAT:
        if (i == target) {
          float x;
          memcpy(&x, at, 4);
          float y = changed_float(x);
          memcpy(at, &y, 4);
          changed("%s: %g -> %g", name.c_str(), (double)x, (double)y);
        }
        break;
      case BOOL:
        if (i == target) {
          *at = !*at;
          changed("%s -> %d", name.c_str(), *at);
        }
        break;
      case INTEGER:
      case ENUM:
        if (i != target) break;
        if (strcmp(f.name, "num_splits") == 0) {
          // Nobody knows how long the array is.
          uint64_t x;
          memcpy(&x, at, 8);
          x = x ? below((size_t)x) : 0;
          memcpy(at, &x, 8);
          changed("%s -> %llu", name.c_str(), (unsigned long long)x);
        } else if (is_size) {
          const size_t sizes[] = {0,         1,         8,         bytes - 8,   bytes - 4,
                                  bytes - 1, bytes + 1, bytes + 8, below(bytes)};
          size_t other = sizes[below(std::size(sizes))];
          memcpy(at, &other, sizeof other);
          changed("%s: %zu -> %zu", name.c_str(), bytes, other);
        } else {
          change_bytes(at, f.size, name);
        }
        break;
      default:
        break;
    }
  }
  size_t declared = bytes;
  if (offset_of_size == 0) memcpy(&declared, image.data(), sizeof declared);
  declared = std::max<size_t>(declared, 8);
  image.resize(std::max(image.size(), declared));
  void *copy = new_host(a.name, nullptr, 0, declared);
  if (!copy) return;
  memcpy(copy, image.data(), declared);
  Buffer &b = g.buffers.back();
  b.before.assign(b.map + b.low, b.map + b.high);
  set_pointer(a, copy);
}

void change_scalar(const Arg &a) {
  switch (a.kind) {
    case INTEGER:
      change_bytes(a.value, a.bytes, a.name);
      break;
    case ENUM: {
      int32_t x, y;
      memcpy(&x, a.value, 4);
      y = one_in(4) ? (int32_t)changed_integer((uint64_t)x) : (int32_t)below(30);
      memcpy(a.value, &y, 4);
      changed("%s: %d -> %d", a.name, x, y);
      break;
    }
    case FLOAT: {
      float x, y;
      memcpy(&x, a.value, 4);
      y = changed_float(x);
      memcpy(a.value, &y, 4);
      changed("%s: %g -> %g", a.name, (double)x, (double)y);
      break;
    }
    case BOOL: {
      unsigned char x;
      memcpy(&x, a.value, 1);
      x = !x;
      memcpy(a.value, &x, 1);
      changed("%s -> %d", a.name, x);
      break;
    }
    case STRING: {
      const char *const texts[] = {nullptr, "",     "max",  "most_recent",
                                   "add",   "copy", "none", "\xff\xfe"};
      const char *text = texts[below(std::size(texts))];
      set_pointer(a, text);
      changed("%s: \"%s\"", a.name, text ? text : "(null)");
      break;
    }
    case SHAPE: {
      auto shape = (NVTEShape *)a.value;
      size_t i = below(3);
      if (i == 2)
        change_bytes(&shape->ndim, 8, std::string(a.name) + ".ndim");
      else
        change_bytes(&shape->data[i], 8, a.name);
      break;
    }
    case OBJECT:
      set_pointer(a, wrong_handle(pointer_of(a), a.name));
      break;
    default:
      break;
  }
}

std::string text_of_call(const Arg *args, size_t n) {
  std::string text = std::string(name_of((size_t)g.function)) + "(";
  for (size_t i = 0; i < n; i++) {
    const Arg &a = args[i];
    text += (i ? ", " : "") + std::string(a.name) + "=";
    char number[64] = "";
    float x;
    switch (a.kind) {
      case INTEGER:
      case ENUM:
        text += std::to_string((long long)integer_of(a));
        break;
      case BOOL:
        text += *(unsigned char *)a.value ? "true" : "false";
        break;
      case FLOAT:
        memcpy(&x, a.value, 4);
        snprintf(number, sizeof number, "%g", (double)x);
        text += number;
        break;
      case TENSOR: {
        NVTETensor t = pointer_of(a);
        if (!t) {
          text += "null";
          break;
        }
        int mode = (int)nvte_tensor_scaling_mode(t);
        if (!ok()) {
          text += "?";
          break;
        }
        text += "{mode " + std::to_string(mode);
        for (int p = 0; p < 7; p++) {
          NVTEBasicTensor b;
          nvte_get_tensor_param_v2(t, (NVTETensorParam)p, &b, sizeof b, nullptr);
          if (ok() && (b.data_ptr || numel_of(b.shape)))
            text += std::string(" ") + kParams[p] + " " + text_of(b);
        }
        text += "}";
        break;
      }
      case GROUPED: {
        NVTEGroupedTensor t = pointer_of(a);
        int mode = (int)nvte_grouped_tensor_scaling_mode(t);
        if (!t || !ok()) {
          text += t ? "?" : "null";
          break;
        }
        NVTEShape shape = nvte_get_grouped_tensor_logical_shape(t);
        text += "{mode " + std::to_string(mode) + " members " +
                std::to_string(nvte_grouped_tensor_num_tensors(t)) + " of " +
                std::to_string(shape.data[0]) + "x" + std::to_string(shape.data[1]);
        for (int p = 0; p < 10; p++) {
          NVTEBasicTensor b;
          nvte_get_grouped_tensor_param(t, (NVTEGroupedTensorParam)p, &b, sizeof b, nullptr);
          if (ok() && b.data_ptr) text += std::string(" ") + kGroupedParams[p] + " " + text_of(b);
        }
        text += "}";
        break;
      }
      default:
        text += "..";
    }
  }
  return text + ")";
}

// ---- The calls

void start() {
  static bool started;
  if (started) return;
  started = true;
  const char *seed = getenv("NVTE_FUZZ_SEED");
  if (!seed) return;
  g.inside = true;
  const char *backend = nvtex_backend_name();
  nvtex_clear_error();
  g.inside = false;
  if (!backend) return;
  g.cuda = strcmp(backend, "cuda") == 0;
  g.seed = strtoull(seed, nullptr, 0);
  const char *rate = getenv("NVTE_FUZZ_RATE"), *only = getenv("NVTE_FUZZ_CALL");
  g.rate = rate ? atof(rate) : 0.5;
  g.only = only ? strtoull(only, nullptr, 0) : UINT64_MAX;
  g.pid = getpid();
  g.counts.resize(number_of_functions());
  if (const char *path = getenv("NVTE_FUZZ_REPORT")) {
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file >= 0 && ftruncate(file, REPORT_BYTES) == 0) {
      void *map = mmap(nullptr, REPORT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (map != MAP_FAILED) g.report = (char *)map;
    }
    close(file);
  }
  // A changed size must fail to be allocated rather than use up the machine's memory.
  rlimit limit = {(rlim_t)3 << 30, (rlim_t)3 << 30};
  if (!g.cuda) setrlimit(RLIMIT_DATA, &limit);
  static unsigned char stack[64 << 10];
  stack_t alternate = {};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM, SIGTERM}) {
    sigaction(number, &action, nullptr);
  }
  void *frames[2];
  backtrace(frames, 2);  // loads what it needs
  pthread_atfork(nullptr, nullptr, [] { g.on = false; });
  g.on = true;
}

struct Finish {
  ~Finish() {
    if (g.on && getpid() == g.pid) note_counts();
    g.on = false;
  }
} finish;

// How many changed calls precede this call of the program.
unsigned begin_calls(int function) {
  if (g.inside) return 0;
  start();
  if (!g.on || g.error_mode != NVTEX_ERROR_RETURN || (pid_t)syscall(SYS_gettid) != g.pid) return 0;
  if (nvtex_last_status() != NVTEX_OK) return 0;
  g.function = function;
  g.rng = g.seed ^ ++g.call * 0xD1B54A32D192ED03u;
  if (g.only != UINT64_MAX) return g.call == g.only;
  double rate = g.rate;
  unsigned n = (unsigned)rate;
  return n + ((double)(random_u64() >> 11) * 0x1p-53 < rate - n);
}

void release() {
  for (auto copy = g.copies.rbegin(); copy != g.copies.rend(); ++copy) {
    auto [kind, handle] = *copy;
    if (kind == TENSOR)
      nvte_destroy_tensor(handle), g.stale = handle;
    else if (kind == GROUPED)
      nvte_destroy_grouped_tensor(handle);
    else
      config_type(kind).destroy(handle);
  }
  for (Buffer &b : g.buffers) {
    if (b.on_device)
      nvtex_free(b.map);
    else
      munmap(b.map, b.map_bytes);
  }
  g.copies.clear();
  g.buffers.clear();
  g.copied.clear();
  g.copied_buffers.clear();
  g.tensors.clear();
  nvtex_clear_error();
}

// Queries, keys and values of these layouts lie in each other's gaps: the memory that one of them
// may use is not what its shape says.
bool interleaved(int64_t layout) {
  return layout >= NVTE_SB3HD && layout < NVTE_THD_THD_THD && layout != NVTE_SBHD_SBHD_SBHD &&
         layout != NVTE_BSHD_BSHD_BSHD;
}

bool interleaved(const Arg &a) {
  if (a.kind == ENUM && strstr(a.name, "qkv_layout")) return interleaved(integer_of(a));
  if ((a.kind != FORWARD_PARAMS && a.kind != BACKWARD_PARAMS) || !pointer_of(a)) return false;
  bool is = false;
  for (int attribute :
       {(int)kNVTEFusedAttnFwdParamsQKVLayout, (int)kNVTEFusedAttnBwdParamsDQKVLayout}) {
    int32_t value = 0;
    size_t size = 0;
    const ConfigType &type = config_type(a.kind);
    type.get(pointer_of(a), attribute, nullptr, 0, &size);
    if (size == sizeof value) type.get(pointer_of(a), attribute, &value, sizeof value, nullptr);
    bool layout = attribute == kNVTEFusedAttnFwdParamsQKVLayout || a.kind == BACKWARD_PARAMS;
    is |= layout && ok() && interleaved(value);
  }
  return is;
}

// Whether the strides of an input, which are arguments of their own, lead past what its shape
// declares. A strided view may do so, since its shape counts the elements that it has and not those
// between them. One function is given such a view without strides: its input is the first of three
// interleaved parts.
bool leads_out(const Arg *args, size_t n) {
  if (strcmp(name_of((size_t)g.function), "nvte_prepare_flash_attn_fwd") == 0) return true;
  const char *const names[] = {"stride_s_or_t", "s", "stride_b", "b",
                               "stride_h",      "h", "stride_d", "d"};
  __int128 values[8], last = 0;
  const Arg *format = nullptr;
  size_t known = 0;
  for (size_t i = 0; i < n; i++) {
    if (strcmp(args[i].name, "qkv_format") == 0) format = &args[i];
    for (size_t j = 0; j < 8; j++) {
      if (strcmp(args[i].name, names[j]) == 0) values[j] = integer_of(args[i]), known++;
    }
  }
  if (known < 8 || !format) return false;
  NVTEBasicTensor input;
  nvte_get_tensor_param_v2(pointer_of(args[0]), kNVTERowwiseData, &input, sizeof input, nullptr);
  if (!ok()) return false;
  if (integer_of(*format) == NVTE_THD)
    values[1] = (__int128)input.shape.data[0], values[2] = 0, values[3] = 1;
  for (size_t j = 0; j < 8; j += 2) {
    if (values[j] < 0 || values[j + 1] < 1) return false;
    last += values[j] * (values[j + 1] - 1);
  }
  return last >= (__int128)numel_of(input.shape);
}

// Replaces the arguments by changed copies; false if that cannot be done.
bool begin_call(Arg *args, size_t n) {
  g.inside = true;
  g.changes.clear();
  g.bytes = 0;
  g.give_up = false;
  g.stream = nullptr;
  g.tape = nullptr;
  std::vector<unsigned> marks(n);
  int64_t old[64];
  size_t sites = 0;
  for (size_t i = 0; i < n; i++) {
    old[i] = args[i].kind == INTEGER ? integer_of(args[i]) : 0;
    if (strcmp(args[i].name, "stream") == 0) g.stream = (cudaStream_t)pointer_of(args[i]);
    if (args[i].kind != PLAIN && args[i].kind != OUT && args[i].kind != TAPE) sites++;
  }
  if (g.cuda) nvtex_stream_synchronize(g.stream);
  for (size_t changes = one_in(12) ? 0 : one_in(4) ? 2 : 1; changes > 0 && sites > 0; changes--) {
    size_t site = below(sites);
    for (size_t i = 0; i < n; i++) {
      if (args[i].kind == PLAIN || args[i].kind == OUT || args[i].kind == TAPE) continue;
      if (site-- == 0) marks[i]++;
    }
  }
  for (size_t i = 0; i < n; i++) {
    if (marks[i]) change_scalar(args[i]);
  }
  for (size_t i = 0; i < n && !g.give_up; i++) {
    const Arg &a = args[i];
    bool change = marks[i] > 0;
    g.give_up = interleaved(a);
    switch (a.kind) {
      case TENSOR:
        set_pointer(a, copy_tensor(pointer_of(a), a.name, change));
        break;
      case GROUPED:
        set_pointer(a, copy_grouped(pointer_of(a), a.name, change));
        break;
      case QUANT_CONFIG:
      case MATMUL_CONFIG:
      case GROUPED_MATMUL_CONFIG:
      case ATTENTION_CONFIG:
      case FORWARD_PARAMS:
      case BACKWARD_PARAMS:
        set_pointer(a, copy_config(a.kind, pointer_of(a), a.name, change));
        break;
      case TENSORS:
        build_tensors(args, a, old, change);
        break;
      case TENSOR_LISTS:
        build_lists(args, a, old, change);
        break;
      case PACK:
        set_pointer(a, copy_pack((NVTETensorPack *)pointer_of(a), a.name, change));
        break;
      case HOST_ARRAY:
      case DEVICE_ARRAY:
        build_array(args, a, old, change);
        break;
      case STRUCT:
        build_struct(a, change);
        break;
      case OUT:
      case TAPE:
        if (void *original = pointer_of(a)) {
          void *copy = new_host(a.name, a.kind == OUT ? original : nullptr, 8, 8);
          if (!copy) break;
          if (a.kind == TAPE) {
            memset(copy, 0, 8);
            Buffer &b = g.buffers.back();
            b.before.assign(b.map + b.low, b.map + b.high);
            g.tape = (void **)copy;
          }
          set_pointer(a, copy);
        }
        break;
      default:
        break;
    }
  }
  for (size_t i = 0; i < n && !g.give_up; i++) g.give_up = interleaved(args[i]);
  g.give_up = g.give_up || leads_out(args, n);
  if (g.give_up) {
    release();
    g.inside = false;
    return false;
  }
  if (g.cuda) nvtex_stream_synchronize(nullptr);
  nvtex_clear_error();
  std::string text = "call " + std::to_string(g.call) + ": " +
                     (g.changes.empty() ? "nothing changed" : g.changes) + "\n" +
                     text_of_call(args, n);
  if (g.report) {
    snprintf(g.report, NOTE_BYTES, "%s", text.c_str());
  }
  g.counts[(size_t)g.function].made++;
  g.running = true;
  alarm(g.cuda ? 6 * SECONDS : SECONDS);
  return true;
}

void end_call() {
  NVTEXStatus status = nvtex_last_status();
  std::string text = nvtex_last_error();
  if (g.cuda) {
    nvtex_clear_error();
    nvtex_stream_synchronize(g.stream);
    nvtex_stream_synchronize(nullptr);
    // A product whose counters nobody clears says so at the next synchronisation.
    const char *error = nvtex_last_error();
    if (nvtex_last_status() != NVTEX_OK && !strstr(error, "NVTE_WAIT_SECONDS"))
      found("the device failed: %s", error);
  }
  alarm(0);
  g.running = false;
  Counts &counts = g.counts[(size_t)g.function];
  (status == NVTEX_OK ? counts.accepted : counts.refused)++;
  const char *function = name_of((size_t)g.function);
  if (status == NVTEX_INTERNAL_ERROR) found("an error of the library itself: %s", text.c_str());
  // The program's own allocation callbacks may call nvtex_malloc, and the first error stays.
  bool of_callback = text.compare(0, 14, "nvtex_malloc: ") == 0;
  if (status != NVTEX_OK && !of_callback && text.compare(0, strlen(function), function) != 0)
    found("the message does not begin with the function's name: %s", text.c_str());
  bool refused = status == NVTEX_INVALID_ARGUMENT || status == NVTEX_UNSUPPORTED;
  for (const Buffer &b : g.buffers) {
    const bool exact = b.bytes + (size_t)(b.ptr - b.map) == b.map_bytes;
    if (b.before.empty() || (b.on_device && !refused && exact)) continue;
    std::vector<unsigned char> after(b.high - b.low);
    if (b.on_device)
      nvtex_memcpy_to_host(after.data(), b.map, after.size(), nullptr),
          nvtex_stream_synchronize(nullptr);
    else
      memcpy(after.data(), b.map + b.low, after.size());
    size_t first = (size_t)(b.ptr - b.map) - b.low;
    for (size_t i = 0; i < after.size(); i++) {
      if (after[i] == b.before[i]) continue;
      if (i >= first && i < first + b.bytes) {
        if (refused)
          found("refused, but %s has changed at byte %zu: %s", b.name.c_str(), i - first,
                text.c_str());
        i = first + b.bytes - 1;
      } else {
        found("written outside of %s of %zu bytes, at byte %lld", b.name.c_str(), b.bytes,
              (long long)i - (long long)first);
      }
    }
  }
  if (g.tape && *g.tape) nvtex_tape_destroy(*g.tape);
  release();
  if (g.report) g.report[0] = 0;
  g.inside = false;
  if (g.stopped) leave(0);
}

template <class T>
T end_call(T handle) {
  end_call();
  return handle;
}

template <class F>
F *next(F *, const char *name) {
  auto found = (F *)dlsym(RTLD_NEXT, name);
  if (!found) {
    fprintf(stderr, "fuzz: no %s behind this library\n", name);
    _exit(1);
  }
  return found;
}

}  // namespace

extern "C" void *nvtex_malloc(size_t bytes) {
  static const auto real = next(&nvtex_malloc, "nvtex_malloc");
  void *p = real(bytes);
  if (p && g.cuda && !g.inside) g.allocations.push_back({(unsigned char *)p, bytes});
  return p;
}

extern "C" void nvtex_free(void *p) {
  static const auto real = next(&nvtex_free, "nvtex_free");
  auto same = [&](const Allocation &a) { return a.ptr == p; };
  if (g.cuda && !g.inside) {
    auto at = std::find_if(g.allocations.begin(), g.allocations.end(), same);
    if (at != g.allocations.end()) g.allocations.erase(at);
  }
  real(p);
}

extern "C" NVTEXErrorMode nvtex_set_error_mode(NVTEXErrorMode mode) {
  static const auto real = next(&nvtex_set_error_mode, "nvtex_set_error_mode");
  NVTEXErrorMode old = real(mode);
  if ((unsigned)mode <= NVTEX_ERROR_THROW) g.error_mode = (int)mode;
  return old;
}

#include "wrappers.inc"

namespace {
const char *name_of(size_t function) { return kFunctions[function]; }
size_t number_of_functions() { return std::size(kFunctions); }
}  // namespace
