// Calls functions of plugins. Rust cannot catch the C++ exceptions that may leave them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>

#include "nvte/plugin.h"

namespace {

void explain(const char *text, char *reason, std::size_t bytes) noexcept {
  if (reason == nullptr || bytes == 0) return;
  std::strncpy(reason, text != nullptr ? text : "an exception without a text", bytes - 1);
  reason[bytes - 1] = '\0';
}

// What `function` returns, or NVTEX_PLUGIN_FAILED with the first bytes of an exception's text in
// `reason`.
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
  return NVTEX_PLUGIN_FAILED;
}

}  // namespace

// `supports` and `execute` of an implementation. Nothing is kept across the call but the record,
// because several of these may belong to one call of an operator.
extern "C" std::int32_t nvte_plugin_call(std::int32_t (*function)(void *, const NVTEXCall *),
                                         void *user, const NVTEXCall *call) noexcept {
  try {
    return function(user, call);
  } catch (const std::exception &error) {
    explain(error.what(), call->reason, call->reason_bytes);
  } catch (...) {
    explain(nullptr, call->reason, call->reason_bytes);
  }
  return NVTEX_PLUGIN_FAILED;
}

// `needs` of an implementation.
extern "C" std::int32_t nvte_plugin_needs(std::int32_t (*function)(void *, const NVTEXCall *,
                                                                   NVTEXNeeds *),
                                          void *user, const NVTEXCall *call,
                                          NVTEXNeeds *needs) noexcept {
  return guarded(call->reason, call->reason_bytes, function, user, call, needs);
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
