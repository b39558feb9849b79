// Where tiles keep what products of several rows with several vectors are made of.
//
// A dot adds up in four chains of steps, of which each takes a vector's width of lanes
// (kernel_loops.h, grouped_dots.h). The chains do not meet before the end, so a tile of rows and
// vectors takes one after the other, each sum in a register of its own, and gives each product the
// bits that it has alone. A packed tile of vectors has chain after chain, in each step after step,
// and in each step a piece of every vector. A panel of rows has the tiles' parts of kTileSteps
// steps one after another, so that it is read in order.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernel_table.h"

namespace flash_core {

// So many steps of a chain are taken before the next tile of rows: pieces of the vectors stay in
// the first-level cache meanwhile.
constexpr size_t kTileSteps = 64;

struct Chains {
  std::array<size_t, 4> steps;
  std::array<size_t, 5> begin;  // steps before each chain, and all

  explicit Chains(const std::array<size_t, 4>& counts) : steps(counts), begin{} {
    for (size_t j = 0; j < 4; ++j) begin[j + 1] = begin[j] + steps[j];
  }
  size_t total() const { return begin[4]; }

  // Of `tiles` tiles in a panel, where number `tile` has a step, counted in steps.
  size_t in_panel(size_t chain, size_t step, size_t tile, size_t tiles) const {
    const size_t first = step / kTileSteps * kTileSteps;
    const size_t part = std::min(kTileSteps, steps[chain] - first);
    return (begin[chain] + first) * tiles + tile * part + step - first;
  }
};

// Of floats: whole fours of vectors; those left go to the first chain, and a part of one to the
// second.
inline Chains float_chains(size_t columns, size_t width) {
  const size_t fours = columns / (4 * width);
  const size_t left = columns % (4 * width);
  return Chains({fours + left / width, fours + (left % width != 0 ? 1 : 0), fours, fours});
}

// Of groups: vectors of bytes in turn.
inline Chains grouped_chains(size_t bytes, size_t width) {
  const size_t vectors = (bytes + 4 * width - 1) / (4 * width);
  return Chains({(vectors + 3) / 4, (vectors + 2) / 4, (vectors + 1) / 4, vectors / 4});
}

}  // namespace flash_core
