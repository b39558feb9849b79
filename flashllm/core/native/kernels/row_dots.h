// Dots of many rows with one vector, put together in groups that a kernel computes at once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernel_table.h"
#include "view.h"

namespace flash_core {

// Rows number `first` to `end`, each of so many bytes.
struct RowRange {
  size_t first;
  size_t end;
  size_t row_bytes;
};

// So many bytes ahead in each of several places.
constexpr size_t kBytesAheadApart = 1024;

// So many rows ahead memory is asked for: the next `group` of them, and at least so many bytes that
// it has come when they are needed.
inline size_t rows_ahead(size_t row_bytes, size_t group) {
  constexpr size_t kBytesAhead = 8192;
  return std::max((kBytesAhead + row_bytes - 1) / row_bytes, group);
}

// Of each vector number v, of which there is one input, out.row(v)[i] of row_of(i), for each i of
// the range. Memory is asked for at later_row(i) for an i that is ahead, and may be behind the
// range.
template <class RowOf, class LaterRow>
void dot_each(DotFunction dot, const RowRange& range, const RowOf& row_of,
              const LaterRow& later_row, const DotInput* inputs, Matrix<float> out) {
  const size_t ahead = rows_ahead(range.row_bytes, kRowsPerDot);
  DotRows group = {};
  for (size_t i = range.first; i < range.end; i += group.count) {
    group.count = std::min(kRowsPerDot, range.end - i);
    for (size_t r = 0; r < group.count; ++r) {
      group.rows[r] = row_of(i + r);
      group.next[r] = later_row(i + r + ahead);
    }
    for (size_t v = 0; v < out.rows; ++v) {
      dot(group, inputs[v], out.row(v) + i);
      group.next = group.rows;  // what is ahead has been asked for
    }
  }
}

// The same where nothing behind the range is asked for.
template <class RowOf>
void dot_each(DotFunction dot, const RowRange& range, const RowOf& row_of, const DotInput* inputs,
              Matrix<float> out) {
  const auto later_row = [&](size_t i) { return row_of(std::min(i, range.end - 1)); };
  dot_each(dot, range, row_of, later_row, inputs, out);
}

// The same for one vector.
template <class RowOf>
void dot_each(DotFunction dot, const RowRange& range, const RowOf& row_of, const DotInput& x,
              float* out) {
  dot_each(dot, range, row_of, &x, {out, 1, range.end});
}

// The same of rows of weights, for all vectors. Those that are computed at once lie in as many
// quarters of the range: from one place alone memory gives less than from several.
template <class RowOf>
void dot_apart(DotFunction dot, const RowRange& range, const RowOf& row_of, const DotInput* inputs,
               Matrix<float> out) {
  const size_t ahead = kBytesAheadApart / range.row_bytes + 1;
  const size_t quarter = (range.end - range.first) / kRowsPerDot;
  DotRows group = {};
  group.count = kRowsPerDot;
  for (size_t i = range.first; i < range.first + quarter; ++i) {
    for (size_t r = 0; r < kRowsPerDot; ++r) {
      const size_t at = i + r * quarter;
      group.rows[r] = row_of(at);
      group.next[r] = row_of(std::min(at + ahead, range.end - 1));
    }
    for (size_t v = 0; v < out.rows; ++v) {
      std::array<float, kRowsPerDot> found;
      dot(group, inputs[v], found.data());
      for (size_t r = 0; r < kRowsPerDot; ++r) out.row(v)[i + r * quarter] = found[r];
      group.next = group.rows;  // what is ahead has been asked for
    }
  }
  const size_t rest = range.first + kRowsPerDot * quarter;
  group.count = range.end - rest;
  if (group.count == 0) return;
  for (size_t r = 0; r < group.count; ++r) group.rows[r] = group.next[r] = row_of(rest + r);
  for (size_t v = 0; v < out.rows; ++v) dot(group, inputs[v], out.row(v) + rest);
}

// For one vector.
template <class RowOf>
void dot_apart(DotFunction dot, const RowRange& range, const RowOf& row_of, const DotInput& x,
               float* out) {
  dot_apart(dot, range, row_of, &x, {out, 1, range.end});
}

}  // namespace flash_core
