#include "coverage.h"

#include <array>
#include <cstdint>

namespace fuzzing {

namespace {

constexpr size_t kEdges = 1 << 16;

std::array<uint8_t, kEdges> counts;  // of this run
std::array<uint8_t, kEdges> seen;    // a bit for each order of magnitude of a count
std::array<uint16_t, kEdges> taken;  // edges of this run, the first n_taken
size_t n_taken = 0;                  // no vector: blocks report until the program's very end
size_t n_edges = 0;
thread_local uintptr_t previous = 0;

uint8_t magnitude(uint8_t count) {
  if (count < 4) return static_cast<uint8_t>(1U << (count - 1));
  if (count < 8) return 8;
  if (count < 16) return 16;
  if (count < 32) return 32;
  return count < 128 ? 64 : 128;
}

}  // namespace

void begin_run() {
  for (size_t i = 0; i < n_taken; ++i) counts[taken[i]] = 0;
  n_taken = 0;
  previous = 0;
}

bool reached_something_new() {
  bool is_new = false;
  for (size_t i = 0; i < n_taken; ++i) {
    const uint16_t edge = taken[i];
    const uint8_t bit = magnitude(counts[edge]);
    if ((seen[edge] & bit) != 0) continue;
    n_edges += static_cast<size_t>(seen[edge] == 0);
    seen[edge] |= bit;
    is_new = true;
  }
  return is_new;
}

size_t edges_reached() { return n_edges; }

}  // namespace fuzzing

// Called by every block of the code under test. An edge is a pair of blocks.
extern "C" void __sanitizer_cov_trace_pc() {
  using namespace fuzzing;
  const auto here = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  const auto edge = static_cast<uint16_t>((here * 0x9E3779B97F4A7C15U >> 48) ^ previous);
  previous = (here * 0x9E3779B97F4A7C15U >> 49) & 0x7FFF;
  if (counts[edge] == 0) taken[n_taken++] = edge;
  if (counts[edge] < 255) ++counts[edge];
}
