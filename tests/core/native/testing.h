// The little that the core's own tests need: named cases, checks, and a count at the end.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace testing {

struct Case {
  const char* name;
  void (*body)();
};

std::vector<Case>& cases();

struct Registration {
  Registration(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  std::ostringstream message;
  message << file << ":" << line << ": " << what;
  throw Failure(message.str());
}

// Calls `body`, which must throw an Error whose message contains `part`.
template <class Error, class Body>
void check_throws(const Body& body, const std::string& part, const char* file, int line) {
  try {
    body();
  } catch (const Error& error) {
    check(std::string(error.what()).find(part) != std::string::npos, error.what(), file, line);
    return;
  }
  check(false, "nothing was thrown", file, line);
}

}  // namespace testing

#define TEST(name)                                                   \
  static void name();                                                \
  static const testing::Registration name##_registered(#name, name); \
  static void name()
#define CHECK(condition) testing::check(condition, #condition, __FILE__, __LINE__)
#define CHECK_THROWS(Error, part, ...) \
  testing::check_throws<Error>([&] { __VA_ARGS__; }, part, __FILE__, __LINE__)
