// Calls functions of the program. Rust cannot catch the C++ exceptions that may leave them.

#include <cstddef>
#include <cstring>
#include <exception>

// Calls `body(data)`. False if it threw: the first bytes of the exception's text are in `message`
// then.
extern "C" bool nvte_call_guarded(void (*body)(void *), void *data, char *message,
                                  std::size_t size) noexcept {
  const auto explain = [=](const char *text) {
    std::strncpy(message, text != nullptr ? text : "an exception without a text", size - 1);
    message[size - 1] = '\0';
  };
  try {
    body(data);
    return true;
  } catch (const std::exception &error) {
    explain(error.what());
  } catch (...) {
    explain("an exception that is no std::exception");
  }
  return false;
}
