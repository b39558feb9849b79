// New inputs from old ones.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace fuzzing {

using Bytes = std::vector<uint8_t>;

// A changed copy of one of `inputs`, of `bytes_max` at most: bits, bytes and numbers changed,
// stretches removed, repeated, moved, or taken from another input.
Bytes mutated(const std::vector<Bytes>& inputs, size_t bytes_max, std::mt19937_64* random);

}  // namespace fuzzing
