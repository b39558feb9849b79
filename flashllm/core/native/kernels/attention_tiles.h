// What attention of one token and of many have in common; inside kernels/ only.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernel_table.h"
#include "view.h"

namespace flash_core {

// Positions whose rows stay in the first cache while the heads that share them take turns. Values
// are summed in tiles of so many from the first position on.
constexpr size_t kAttendTile = 64;
static_assert(kAttendTile % kRowsPerAdd == 0, "only the last tile may end within a group");
static_assert(kAttendTile <= kBlockRows, "a tile is a block of sums");

// In place; one value at least. A `sink` is one more score, whose share is dropped; null for none.
void softmax(float* scores, size_t count, const float* sink);

// The sink of a head; null where there are none.
inline const float* sink_of(View<const float> sinks, size_t head) {
  return sinks.size == 0 ? nullptr : sinks.data + head;
}

// out += a tile's values, summed apart: weight_of(at) times row_of(at) for positions begin to
// end - 1. Memory is asked for at later_row(at) while position `at` is added.
template <class RowOf, class LaterRow, class WeightOf>
void add_tile(AddFunction add, const RowOf& row_of, const LaterRow& later_row,
              const WeightOf& weight_of, size_t begin, size_t end, size_t columns, float* partial,
              float* out) {
  AddRows rows = {};
  for (size_t at = begin; at < end; at += rows.count) {
    rows.count = std::min(kRowsPerAdd, end - at);
    rows.begins = at == begin;
    rows.ends = at + rows.count == end;
    for (size_t r = 0; r < rows.count; ++r) {
      rows.rows[r] = row_of(at + r);
      rows.next[r] = later_row(at + r);
      rows.weights[r] = weight_of(at + r);
    }
    add(rows, {0, columns, columns}, partial, out);
  }
}

}  // namespace flash_core
