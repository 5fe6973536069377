// Calls functions of plugins. Rust cannot catch the C++ exceptions that may leave them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>

namespace {

// NVTEX_PLUGIN_FAILED
constexpr std::int32_t FAILED = 2;

void explain(const char *text, char *reason, std::size_t bytes) noexcept {
  if (reason == nullptr || bytes == 0) return;
  std::strncpy(reason, text != nullptr ? text : "an exception without a text", bytes - 1);
  reason[bytes - 1] = '\0';
}

// What `function` returns, or FAILED with the first bytes of an exception's text in `reason`.
template <typename... Params>
std::int32_t guarded(char *reason, std::size_t bytes, std::int32_t (*function)(Params...),
                     Params... arguments) noexcept {
  try {
    return function(arguments...);
  } catch (const std::exception &error) {
    explain(error.what(), reason, bytes);
  } catch (...) {
    explain("an exception that is no std::exception", reason, bytes);
  }
  return FAILED;
}

}  // namespace

// `supports` and `execute` of an implementation. `reason` is that of the call.
extern "C" std::int32_t nvte_plugin_call(std::int32_t (*function)(void *, const void *), void *user,
                                         const void *call, char *reason,
                                         std::size_t bytes) noexcept {
  return guarded(reason, bytes, function, user, call);
}

// `needs` of an implementation.
extern "C" std::int32_t nvte_plugin_needs(std::int32_t (*function)(void *, const void *, void *),
                                          void *user, const void *call, void *needs, char *reason,
                                          std::size_t bytes) noexcept {
  return guarded(reason, bytes, function, user, call, needs);
}

// The entry of a plugin.
extern "C" std::int32_t nvte_plugin_entry(std::int32_t (*function)(const void *, void *),
                                          const void *host, void *plugin, char *reason,
                                          std::size_t bytes) noexcept {
  return guarded(reason, bytes, function, host, plugin);
}

// What a plugin does in the child of a fork.
extern "C" void nvte_plugin_after_fork(void (*function)(void *), void *user) noexcept {
  try {
    function(user);
  } catch (...) {
  }
}
