#include "selection.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "rows.h"

namespace flash_core {

namespace {

void check_sizes(size_t scores, size_t limits, size_t out) {
  if (limits != scores || out != scores) {
    throw std::invalid_argument(std::to_string(scores) + " scores, " + std::to_string(limits) +
                                " limits, and room for " + std::to_string(out));
  }
}

constexpr size_t kTruthsAtOnce = sizeof(uint64_t);
constexpr uint64_t kHighestBits = 0x8080808080808080;

}  // namespace

size_t ids_above(View<const float> scores, View<const float> limits, View<int32_t> ids) {
  check_sizes(scores.size, limits.size, ids.size);
  size_t count = 0;
  for (size_t i = 0; i < scores.size; ++i) {
    ids.data[count] = static_cast<int32_t>(i);
    count += static_cast<size_t>(scores.data[i] > limits.data[i]);
  }
  return count;
}

// Floats above zero are ordered as their bits are; turned round, the greatest comes first.
size_t keys_above(View<const float> scores, View<const float> limits, View<int64_t> keys) {
  check_sizes(scores.size, limits.size, keys.size);
  size_t count = 0;
  for (size_t i = 0; i < scores.size; ++i) {
    const float excess = scores.data[i] - limits.data[i];
    uint32_t bits = 0;
    std::memcpy(&bits, &excess, sizeof(bits));
    const uint64_t rank = std::numeric_limits<int32_t>::max() - bits;
    keys.data[count] = static_cast<int64_t>(rank << 32 | i);
    count += static_cast<size_t>(excess > 0);
  }
  return count;
}

size_t true_columns(const Mask& mask, View<int32_t> columns, View<int32_t> ends) {
  if (ends.size != mask.rows) {
    throw std::invalid_argument(std::to_string(ends.size) + " ends for " +
                                std::to_string(mask.rows) + " rows");
  }
  size_t count = 0;
  for (size_t row = 0; row < mask.rows; ++row) {
    const uint8_t* const truths = mask.truths + static_cast<int64_t>(row) * mask.apart;
    for (size_t c = 0; c < mask.columns; c += kTruthsAtOnce) {
      uint64_t some = 0;
      std::memcpy(&some, truths + c, std::min(kTruthsAtOnce, mask.columns - c));
      // The highest bit of each byte that is not zero.
      some = (((some & ~kHighestBits) + ~kHighestBits) | some) & kHighestBits;
      for (; some != 0; some &= some - 1) {
        if (count == columns.size) {
          throw std::invalid_argument("more is true than columns has room for, " +
                                      std::to_string(columns.size));
        }
        columns.data[count++] = static_cast<int32_t>(c) + __builtin_ctzll(some) / 8;
      }
    }
    ends.data[row] = static_cast<int32_t>(count);
  }
  return count;
}

size_t run_ends(View<const int32_t> ids, View<const int32_t> vector_ends, int32_t block_ids,
                View<int32_t> out) {
  if (block_ids < 1) throw std::invalid_argument("blocks of " + std::to_string(block_ids));
  check_runs("vector_ends", vector_ends, ids.size);
  if (out.size < ids.size) {
    throw std::invalid_argument(std::to_string(ids.size) + " ids, and room for " +
                                std::to_string(out.size) + " ends");
  }
  size_t count = 0;
  size_t at = 0;
  for (size_t v = 0; v < vector_ends.size; ++v) {
    const auto end = static_cast<size_t>(vector_ends.data[v]);
    if (at == end) continue;
    int32_t block = ids.data[at] / block_ids;
    for (++at; at < end; ++at) {
      const int32_t next = ids.data[at] / block_ids;
      out.data[count] = static_cast<int32_t>(at);
      count += static_cast<size_t>(next != block);
      block = next;
    }
    out.data[count++] = static_cast<int32_t>(end);
  }
  return count;
}

}  // namespace flash_core
