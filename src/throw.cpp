// Error mode `throw`: what a C++ caller of the ABI expects to catch.

#include <stdexcept>

extern "C" void nvte_throw_runtime_error(const char *message) { throw std::runtime_error(message); }
