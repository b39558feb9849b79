// Which of many scores exceed their limits, what a predictor names; and in which runs they lie.
//
// Goal: one pass that branches on nothing, since nobody can foresee which score is above.
#pragma once

#include <cstddef>
#include <cstdint>

#include "view.h"

namespace flash_core {

// Writes the positions of the scores above their limits, ascending, to the front of `ids`; returns
// how many. A NaN is above nothing. invalid_argument where the views differ in size.
size_t ids_above(View<const float> scores, View<const float> limits, View<int32_t> ids);

// The same positions as keys of an order: ascending, they begin with what exceeds its limit the
// most, and with the first of equals. The position is in the lower 32 bits.
size_t keys_above(View<const float> scores, View<const float> limits, View<int64_t> keys);

// Truths of several rows, a byte each, of which rows may lie apart.
struct Mask {
  const uint8_t* truths;
  int64_t apart;
  size_t rows;
  size_t columns;
};

// Writes the columns of what is true, row after row and ascending in each, to the front of
// `columns`, and to `ends` [rows] where each row's end there; returns how many. invalid_argument
// where `columns` has no room for them.
size_t true_columns(const Mask& mask, View<int32_t> columns, View<int32_t> ends);

// Cuts the ids of several vectors, ascending in each, where one belongs to another block of
// `block_ids` than the one before, or to another vector: writes the ends of these runs to the front
// of `out`, and returns how many. `vector_ends` says where each vector's ids end. invalid_argument
// where they are no ends of all ids, or `out` has no room.
size_t run_ends(View<const int32_t> ids, View<const int32_t> vector_ends, int32_t block_ids,
                View<int32_t> out);

}  // namespace flash_core
