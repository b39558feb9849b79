// Dots of many rows with one vector, put together in groups that a kernel computes at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernel_table.h"

namespace flash_core {

// Rows number `first` to `end`, each of so many bytes.
struct RowRange {
  size_t first;
  size_t end;
  size_t row_bytes;
};

// out[i] of row_of(i), for each i of the range. Memory is asked for the next group of rows ahead,
// and at least so many bytes that it has come when they are needed.
template <class RowOf>
void dot_each(DotFunction dot, const RowRange& range, const RowOf& row_of, const DotInput& x,
              float* out) {
  constexpr size_t kBytesAhead = 8192;
  const size_t rows_ahead = (kBytesAhead + range.row_bytes - 1) / range.row_bytes;
  const size_t ahead = std::max(rows_ahead, kRowsPerDot);
  DotRows group = {};
  for (size_t i = range.first; i < range.end; i += group.count) {
    group.count = std::min(kRowsPerDot, range.end - i);
    for (size_t r = 0; r < group.count; ++r) {
      group.rows[r] = row_of(i + r);
      group.next[r] = row_of(std::min(i + r + ahead, range.end - 1));
    }
    dot(group, x, out + i);
  }
}

}  // namespace flash_core
