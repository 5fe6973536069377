// What code compiled on a newer machine expects of its C and C++ libraries, for those of glibc 2.28 and GCC 8.
// It is linked into the libraries of the wheel and shown by none of them.

#include <sys/stat.h>
#include <new>

// The versioned functions that glibc had in place of these.
extern "C" int __xstat64(int version, const char *path, struct stat64 *result);
extern "C" int __fxstat64(int version, int file, struct stat64 *result);
extern "C" int __lxstat64(int version, const char *path, struct stat64 *result);
extern "C" int __fxstatat64(int version, int folder, const char *path, struct stat64 *result,
                            int flags);

namespace {
// The layout of the structure on x86-64.
constexpr int kVersion = 1;
}  // namespace

extern "C" {

int stat64(const char *path, struct stat64 *result) noexcept {
  return __xstat64(kVersion, path, result);
}

int fstat64(int file, struct stat64 *result) noexcept {
  return __fxstat64(kVersion, file, result);
}

int lstat64(const char *path, struct stat64 *result) noexcept {
  return __lxstat64(kVersion, path, result);
}

int fstatat64(int folder, const char *path, struct stat64 *result, int flags) noexcept {
  return __fxstatat64(kVersion, folder, path, result, flags);
}

// Whether the process has one thread only. Code that reads it may count with plain instructions then.
char __libc_single_threaded = 0;
}

namespace std {

void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
