// The report: how often each function was called, what was found, and where a signal came from.
#ifndef NVTE_FUZZ_REPORT_H
#define NVTE_FUZZ_REPORT_H

#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace {

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

}  // namespace

#endif  // NVTE_FUZZ_REPORT_H
