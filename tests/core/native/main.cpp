// Runs every case, or those whose name contains the first argument; the second is how many times.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "testing.h"

namespace testing {

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

}  // namespace testing

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 1;
  int passed = 0;
  int failed = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const testing::Case& one : testing::cases()) {
      if (std::string(one.name).find(wanted) == std::string::npos) continue;
      try {
        one.body();
        ++passed;
      } catch (const std::exception& error) {
        std::printf("FAILED %s: %s\n", one.name, error.what());
        ++failed;
      }
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
