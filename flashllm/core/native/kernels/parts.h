// How a job is divided into parts.
#pragma once

#include <algorithm>
#include <cstddef>

namespace flash_core {

// What a thread that is held up holds up: the last of so many parts of its share.
constexpr size_t kPartsPerThread = 8;

// The first of `count` things that part `part` of `parts` has.
inline size_t part_begin(size_t count, int part, int parts) {
  return count / static_cast<size_t>(parts) * static_cast<size_t>(part) +
         std::min(count % static_cast<size_t>(parts), static_cast<size_t>(part));
}

}  // namespace flash_core
