// Ends the program with a message where something is not as expected.

#pragma once

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#define EXPECT(condition) expect((condition), __FILE__, __LINE__, #condition)

inline void expect(bool condition, const char *file, int line, const char *text) {
  if (condition) return;
  std::fprintf(stderr, "%s:%d: expected %s\n", file, line, text);
  std::exit(1);
}

// The text of the std::runtime_error that `body` throws; empty if it throws none.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const std::runtime_error &error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string &text, const char *part) {
  return text.find(part) != std::string::npos;
}
