// Encodings of weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "checked.h"

namespace flash_core {

// int8, int4 and mxfp4: whole numbers by groups of kGroup columns, the last group filled up with
// zeros. A row is the numbers of its groups, then a scale for each; a weight is number * scale.
// int8 has a signed byte a number. int4 has 16 bytes a group, byte i with number i in its low
// half and number i + 16 in its high half, 8 added to each. Scales of both are in f16. mxfp4 has
// codes in the places of int4's numbers, and scales of a byte (mxfp4.h).
enum class DType { f32, f16, bf16, int8, int4, mxfp4 };

constexpr size_t kDTypes = 6;
constexpr size_t kGroup = 32;

// invalid_argument for a name that is none of the six.
DType parse_dtype(const std::string& name);
const char* dtype_name(DType dtype);

constexpr bool is_grouped(DType dtype) {
  return dtype == DType::int8 || dtype == DType::int4 || dtype == DType::mxfp4;
}
constexpr size_t group_count(size_t columns) { return (columns + kGroup - 1) / kGroup; }
constexpr size_t group_bytes(DType dtype) { return dtype == DType::int8 ? kGroup : kGroup / 2; }
constexpr size_t scale_bytes(DType dtype) { return dtype == DType::mxfp4 ? 1 : 2; }

// What numbers are multiplied by in the bytes that products take.
constexpr int byte_unit(DType dtype) {
  return dtype == DType::int4 ? 16 : dtype == DType::mxfp4 ? 8 : 1;
}

// Of one value, where values lie one by one: not for groups.
constexpr size_t item_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// invalid_argument when there are no columns, out_of_range past 64 bits.
Checked row_bytes(DType dtype, uint64_t columns);

inline float float_from_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float float_from_bf16(uint16_t half) {
  return float_from_bits(static_cast<uint32_t>(half) << 16);
}

inline float float_from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7FFF;
  if (rest >= 0x7C00) return float_from_bits(sign | 0x7F800000 | ((rest & 0x3FF) << 13));
  if (rest >= 0x0400) return float_from_bits(sign | ((rest << 13) + (112U << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24F;  // subnormal
  return sign != 0 ? -magnitude : magnitude;
}

inline uint32_t bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Both round to the nearest, halves to even, and have no branch, so that loops become vectors.
inline uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Not for NaN.
inline uint16_t f16_from_float(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t rest = bits & 0x7FFFFFFF;
  const uint32_t normal = (rest - (112U << 23) + 0xFFF + ((rest >> 13) & 1)) >> 13;
  // From 0.5 to 1 floats are 2^-24 apart, as are subnormal halves: the addition rounds.
  const uint32_t subnormal = bits_of(float_from_bits(rest) + 0.5F) - bits_of(0.5F);
  const uint32_t finite = rest < (113U << 23) ? subnormal : normal;
  return static_cast<uint16_t>(sign | (rest >= (143U << 23) ? 0x7C00 : finite));
}

}  // namespace flash_core
