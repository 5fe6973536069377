// Stands in for libcublasLt, which extensions expect to find in the process.
#include <cstddef>

extern "C" size_t cublasLtGetVersion() { return 139901; }
