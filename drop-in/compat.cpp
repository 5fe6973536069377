// What code compiled on a newer machine expects of its C and C++ libraries, for those of glibc 2.28
// and GCC 8. It is linked into the libraries of the wheel and shown by none of them.

#include <sys/stat.h>
#include <new>

// What these functions called in the headers of glibc before 2.33. On x86-64 both forms of the
// structure are the same, and 1 is its version.
extern "C" int __xstat64(int version, const char *path, void *result);
extern "C" int __fxstat64(int version, int file, void *result);
extern "C" int __lxstat64(int version, const char *path, void *result);
extern "C" int __fxstatat64(int version, int folder, const char *path, void *result, int flags);

extern "C" {

int stat64(const char *path, struct stat64 *result) noexcept { return __xstat64(1, path, result); }
int stat(const char *path, struct stat *result) noexcept { return __xstat64(1, path, result); }

int fstat64(int file, struct stat64 *result) noexcept { return __fxstat64(1, file, result); }
int fstat(int file, struct stat *result) noexcept { return __fxstat64(1, file, result); }

int lstat64(const char *path, struct stat64 *result) noexcept {
  return __lxstat64(1, path, result);
}
int lstat(const char *path, struct stat *result) noexcept { return __lxstat64(1, path, result); }

int fstatat64(int folder, const char *path, struct stat64 *result, int flags) noexcept {
  return __fxstatat64(1, folder, path, result, flags);
}
int fstatat(int folder, const char *path, struct stat *result, int flags) noexcept {
  return __fxstatat64(1, folder, path, result, flags);
}

// Whether the process has one thread only. Code that reads it may count with plain instructions
// then.
char __libc_single_threaded = 0;
}

namespace std {

void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
