// Floats rounded to whole numbers of 14 bits that share a scale: 128 * high + low, both from -64
// to 63, so that byte products of every instruction set can take them in two halves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "dtype.h"

namespace flash_core {

constexpr float kMostRounded = 8127;  // 128 * 63 + 63
// Floats that are all below this count as zeros: what they add is lost beside anything a layer has.
constexpr float kLeastRounded = 0x1p-100F;
// Added to a float and taken from its bits, rounds it to a whole number, halves to even.
constexpr float kRounding = 12582912.0F;

// numbers [count] = values / scale, rounded; returns the scale, NaN where a value is not finite.
inline float round_together(const float* values, size_t count, int32_t* numbers) {
  uint32_t largest_bits = 0;
  for (size_t i = 0; i < count; ++i) {
    largest_bits = std::max(largest_bits, bits_of(values[i]) & 0x7FFFFFFF);
  }
  const float largest = float_from_bits(largest_bits);
  if (!(largest >= kLeastRounded && largest <= std::numeric_limits<float>::max())) {
    std::fill_n(numbers, count, 0);
    return largest < kLeastRounded ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = kMostRounded / largest;
  for (size_t i = 0; i < count; ++i) {
    numbers[i] =
        static_cast<int32_t>(bits_of(values[i] * inverse + kRounding) - bits_of(kRounding));
  }
  return largest / kMostRounded;
}

}  // namespace flash_core
