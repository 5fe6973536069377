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
// NVTE_FUZZ_REPORT     new file for the report; its first 8 KiB hold the call that runs
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "arguments.h"

namespace {

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
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    // Where ranks are processes, the one that comes first changes calls and reports.
    if (file < 0) return;
    // With its blocks: where the disk is full, a store into a hole would be a signal.
    if (posix_fallocate(file, 0, REPORT_BYTES) == 0) {
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
            g.tape = (NVTEXTape *)copy;
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
