// Encodings of weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace flash_core {

enum class DType { f32, f16, bf16 };

constexpr size_t kDTypes = 3;

// invalid_argument for a name that is none of "f32", "f16" and "bf16".
DType parse_dtype(const std::string& name);

constexpr size_t item_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

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

}  // namespace flash_core
