// The two libraries that are compared. The public functions of this program are those of
// wrappers.py: each calls the function of the same name of the library that is current.
#ifndef NVTE_DIFFERENTIAL_LIBRARIES_H
#define NVTE_DIFFERENTIAL_LIBRARIES_H

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../fuzz/kinds.h"
#include "nvte/dispatch.h"

namespace {

// A case needs a function that the current library does not have.
struct Missing {
  const char *function;
};

struct Library {
  std::string path, settings;
  void *file = nullptr;
  bool own = false;  // has memory functions, statuses and a list of implementations
  std::string backend;
  std::vector<std::pair<void *, bool>> functions;  // and whether it was looked for
};

Library g_libraries[2];
int g_current;

template <class F>
F *symbol(const Library &library, F *, const char *name) {
  return (F *)dlsym(library.file, name);
}

// Memory and statuses of a library that has none are those of the other one.
bool of_memory(const char *name) {
  static const char *const names[] = {"nvtex_malloc",
                                      "nvtex_free",
                                      "nvtex_memcpy_to_device",
                                      "nvtex_memcpy_to_host",
                                      "nvtex_stream_synchronize",
                                      "nvtex_last_status",
                                      "nvtex_last_error",
                                      "nvtex_clear_error"};
  for (const char *one : names)
    if (strcmp(name, one) == 0) return true;
  return false;
}

template <class F>
F *function_of(F *, size_t number, const char *name) {
  Library &library = g_libraries[g_current];
  if (library.functions.size() <= number) library.functions.resize(number + 64);
  auto &[function, known] = library.functions[number];
  if (!known) {
    const bool borrowed = !library.own && of_memory(name);
    function = dlsym(borrowed ? g_libraries[1 - g_current].file : library.file, name);
    known = true;
  }
  if (!function) throw Missing{name};
  return (F *)function;
}

[[noreturn]] void fail(const std::string &text) {
  fprintf(stderr, "nvte-differential: %s\n", text.c_str());
  _exit(2);
}

// A library can be loaded twice only from two files.
std::string copy_of(const std::string &path) {
  char folder[] = "/tmp/nvte-differential-XXXXXX";
  if (!mkdtemp(folder)) fail("no folder for a copy of the library");
  const std::string copy = std::string(folder) + "/libnvte.so.0";
  FILE *from = fopen(path.c_str(), "rb"), *to = fopen(copy.c_str(), "wb");
  std::vector<char> part(1 << 20);
  bool good = from && to;
  for (size_t n; good && (n = fread(part.data(), 1, part.size(), from)) > 0;) {
    good = fwrite(part.data(), 1, n, to) == n;
  }
  if (from) fclose(from);
  if (to) good = fclose(to) == 0 && good;
  if (!good) fail("cannot copy " + path);
  return copy;
}

bool same_file(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Loads a library and lets it read its settings from the environment: `cuda`, or
// `cpu,NVTE_OP_PLUGINS=/path` with variables of its own.
void load(int index, const char *path, const char *settings) {
  Library &library = g_libraries[index];
  library.path = path;
  library.settings = settings;
  const bool twice = index == 1 && same_file(path, g_libraries[0].path.c_str());
  const std::string file = twice ? copy_of(path) : path;
  std::vector<std::string> names;
  std::string rest = std::string("NVTE_BACKEND=") + settings;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string one = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const size_t equals = one.find('=');
    if (equals == std::string::npos) fail("expected NAME=VALUE, got " + one);
    names.push_back(one.substr(0, equals));
    setenv(names.back().c_str(), one.c_str() + equals + 1, 1);
  }
  library.file = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library.file) fail(dlerror());
  if (twice) {
    unlink(file.c_str());
    rmdir(file.substr(0, file.rfind('/')).c_str());
  }
  const auto backend_name = symbol(library, &nvtex_backend_name, "nvtex_backend_name");
  library.own = backend_name != nullptr;
  if (library.own) {
    const char *backend = backend_name();
    if (!backend) {
      fprintf(stderr, "%s: no backend %s: %s\n", path, settings,
              symbol(library, &nvtex_last_error, "nvtex_last_error")());
      _exit(77);
    }
    library.backend = backend;
    // What an operator needs is read when the list of implementations is.
    if (const auto count = symbol(library, &nvtex_impl_count, "nvtex_impl_count")) count();
  } else if (index == 0) {
    fail("the first library needs nvtex_malloc; another one may be the second");
  } else {
    library.backend = g_libraries[0].backend;
  }
  for (const std::string &name : names) unsetenv(name.c_str());
}

// Attention's gradients are added in a fixed order only if that is asked for.
void make_deterministic(const Library &library) {
  const auto create = symbol(library, &nvtex_policy_create, "nvtex_policy_create");
  const auto set = symbol(library, &nvtex_policy_set, "nvtex_policy_set");
  const NVTEXPolicy policy = create && set ? create(nullptr, "deterministic=1") : nullptr;
  if (!policy) fail("no policy with deterministic=1");
  set(policy);
}

// An operator with the variants that the library knows.
struct Variant {
  std::string op, name;
};

std::vector<Variant> variants_of(const Library &library) {
  const auto count = symbol(library, &nvtex_impl_count, "nvtex_impl_count");
  const auto info = symbol(library, &nvtex_impl_info, "nvtex_impl_info");
  const auto op_info = symbol(library, &nvtex_op_info, "nvtex_op_info");
  if (!count || !info || !op_info) fail("the first library has no list of its operators");
  std::vector<Variant> variants;
  std::set<uint32_t> ops;
  for (size_t i = 0; i < count(); i++) {
    NVTEXImplInfo impl;
    memset(&impl, 0, sizeof impl);
    impl.struct_size = sizeof impl;
    if (!info(i, &impl) || !ops.insert(impl.op).second) continue;
    const NVTEXOpInfo *op = op_info(impl.op);
    for (size_t v = 0; v < op->variant_count; v++) variants.push_back({op->name, op->variants[v]});
  }
  return variants;
}

// The widest promise of a library's implementations of an operator in its backend.
NVTEXImplInfo nearness_of(const Library &library, const std::string &op) {
  NVTEXImplInfo widest;
  memset(&widest, 0, sizeof widest);
  const auto count = symbol(library, &nvtex_impl_count, "nvtex_impl_count");
  const auto info = symbol(library, &nvtex_impl_info, "nvtex_impl_info");
  const auto op_info = symbol(library, &nvtex_op_info, "nvtex_op_info");
  for (size_t i = 0; count && i < count(); i++) {
    NVTEXImplInfo one;
    memset(&one, 0, sizeof one);
    one.struct_size = sizeof one;
    // What a plugin promises is not known to be kept.
    if (!info(i, &one) || library.backend != one.domain || one.plugin) continue;
    const NVTEXOpInfo *of = op_info(one.op);
    if (!of || op != of->name || one.numerics < widest.numerics) continue;
    widest.numerics = one.numerics;
    if (one.rtol > widest.rtol) widest.rtol = one.rtol;
    if (one.atol > widest.atol) widest.atol = one.atol;
  }
  return widest;
}

}  // namespace

#endif  // NVTE_DIFFERENTIAL_LIBRARIES_H
