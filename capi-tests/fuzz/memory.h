// Buffers of a changed call between pages that cannot be accessed, and reads of the program's
// memory.
#ifndef NVTE_FUZZ_MEMORY_H
#define NVTE_FUZZ_MEMORY_H

#include <sys/mman.h>
#include <sys/uio.h>

#include "random.h"

namespace {

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
  // The contents of a workspace do not matter, and it may be large, so they are not compared.
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

}  // namespace

#endif  // NVTE_FUZZ_MEMORY_H
