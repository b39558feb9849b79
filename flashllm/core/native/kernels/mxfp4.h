// The floats of four bits and the scales of mxfp4, as whole numbers and powers of two.
//
// The format (OCP Microscaling) has a sign, two bits of exponent and one of mantissa: 0, 0.5, 1,
// 1.5, 2, 3, 4 and 6, and a byte s for a scale of 2^(s - 127). Numbers are twice these floats here,
// scales half: so weights are whole numbers times scales as in int4, and every byte has a scale
// that is finite. 255, which is no number in the format, is 2^127, as the rest would have it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace flash_core {

// Of four bits: 0, 1, 2, 3, 4, 6, 8, 12, and the same below zero. Without a branch or a table, so
// that loops become vectors.
constexpr int mxfp4_number(int code) {
  const int step = code & 7;
  const int number = step + std::max(step - 4, 0) + 2 * std::max(step - 6, 0);
  return (code & 8) != 0 ? -number : number;
}

// Of 1/2. Where a vector of scales is longer than the row, the rest is this: zeros would be
// subnormal numbers, which some processors multiply slowly.
constexpr uint8_t kMxfp4NoScale = 127;

// 2^(s - 128), of which the first two are subnormal.
inline float mxfp4_scale(uint8_t s) {
  const int32_t normal = (int32_t{s} - 1) * (1 << 23);
  const int32_t subnormal = (int32_t{s} + 1) * (1 << 21);  // the larger one for 0 and 1 only
  return float_from_bits(static_cast<uint32_t>(std::max(normal, subnormal)));
}

// The bytes that products take, by code.
constexpr std::array<int8_t, 16> mxfp4_bytes() {
  std::array<int8_t, 16> bytes = {};
  for (size_t code = 0; code < bytes.size(); ++code) {
    const int number = mxfp4_number(static_cast<int>(code));
    bytes[code] = static_cast<int8_t>(number * byte_unit(DType::mxfp4));
  }
  return bytes;
}

alignas(16) inline constexpr std::array<int8_t, 16> kMxfp4Bytes = mxfp4_bytes();

}  // namespace flash_core
