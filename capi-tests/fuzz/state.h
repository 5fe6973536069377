// What one changed call is made of, and all that the fuzzer knows while the program runs.
#ifndef NVTE_FUZZ_STATE_H
#define NVTE_FUZZ_STATE_H

#include <sys/types.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kinds.h"

namespace {

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
  NVTEXTape *tape;
  void *stale;
} g;

}  // namespace

#endif  // NVTE_FUZZ_STATE_H
