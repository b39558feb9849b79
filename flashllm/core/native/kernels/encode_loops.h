// Rows from values and back, written once for all instruction sets, as loops that compilers turn
// into vectors. Every set gives the same bytes: whole numbers, comparisons, and float operations
// that are rounded one by one in a fixed order.
//
// Included as kernel_loops.h is, within an unnamed namespace, with FLASH_TARGET defined.

constexpr float kLargestHalf = 65504;
constexpr uint32_t kInfinityBits = 0x7F800000;

FLASH_TARGET inline bool all_finite(const float* values, size_t columns) {
  uint32_t largest = 0;
  for (size_t c = 0; c < columns; ++c) {
    largest = std::max(largest, bits_of(values[c]) & 0x7FFFFFFF);
  }
  return largest < kInfinityBits;
}

struct EncodeF32 {
  FLASH_TARGET static bool encode(const float* values, size_t columns, uint8_t* row) {
    if (!all_finite(values, columns)) return false;
    std::memcpy(row, values, columns * sizeof(float));
    return true;
  }
  FLASH_TARGET static void decode(const uint8_t* row, size_t columns, float* values) {
    std::memcpy(values, row, columns * sizeof(float));
  }
};

struct F16Bits {
  FLASH_TARGET static uint16_t from(float value) { return f16_from_float(value); }
  FLASH_TARGET static float to(uint16_t half) { return float_from_f16(half); }
};

struct BF16Bits {
  FLASH_TARGET static uint16_t from(float value) { return bf16_from_float(value); }
  FLASH_TARGET static float to(uint16_t half) { return float_from_bf16(half); }
};

template <class Bits>
struct EncodeHalves {
  FLASH_TARGET static bool encode(const float* values, size_t columns, uint8_t* row) {
    if (!all_finite(values, columns)) return false;
    for (size_t c = 0; c < columns; ++c) {
      const uint16_t half = Bits::from(values[c]);
      std::memcpy(row + 2 * c, &half, sizeof(half));
    }
    return true;
  }
  FLASH_TARGET static void decode(const uint8_t* row, size_t columns, float* values) {
    for (size_t c = 0; c < columns; ++c) {
      uint16_t half = 0;
      std::memcpy(&half, row + 2 * c, sizeof(half));
      values[c] = Bits::to(half);
    }
  }
};

// values / scale, rounded to whole numbers from `least` to `most`.
FLASH_TARGET inline void round_to(const float* values, float scale, int32_t least, int32_t most,
                                  int32_t* numbers) {
  constexpr float kRounding = 12582912.0F;  // the sum's last bits are those of a whole number
  const float inverse = 1 / scale;
  for (size_t i = 0; i < kGroup; ++i) {
    const auto number =
        static_cast<int32_t>(bits_of(values[i] * inverse + kRounding) - bits_of(kRounding));
    numbers[i] = std::min(std::max(number, least), most);
  }
}

// The largest magnitudes of both signs; bits of floats are in the order of their magnitudes.
struct Extremes {
  float positive;
  float negative;
  float largest;
};

FLASH_TARGET inline Extremes extremes_of(const float* values) {
  int32_t positive = 0;
  uint32_t negative = 0;
  for (size_t i = 0; i < kGroup; ++i) {
    const uint32_t bits = bits_of(values[i]);
    positive = std::max(positive, static_cast<int32_t>(bits));
    negative = std::max(negative, bits);
  }
  Extremes found = {float_from_bits(static_cast<uint32_t>(positive)), 0, 0};
  if ((negative & 0x80000000) != 0) found.negative = float_from_bits(negative & 0x7FFFFFFF);
  found.largest = std::max(found.positive, found.negative);
  return found;
}

struct HalfScales {
  using Scale = uint16_t;
  FLASH_TARGET static float value_of(Scale scale) { return float_from_f16(scale); }
};

struct EncodeInt8 : HalfScales {
  static constexpr DType dtype = DType::int8;
  static constexpr float kMost = 127;
  static constexpr float kLargest = kMost * kLargestHalf;

  // The next one up where rounding would need a number past 127: among subnormal halves only.
  FLASH_TARGET static uint16_t scale_for(const float* /*values*/, const Extremes& found) {
    const uint16_t scale = f16_from_float(found.largest / kMost);
    const bool enough = scale != 0 && found.largest * (1 / float_from_f16(scale)) < 127.5F;
    return static_cast<uint16_t>(scale + (enough ? 0 : 1));
  }
  FLASH_TARGET static void store(const float* values, float scale, uint8_t* to) {
    int32_t numbers[kGroup];
    round_to(values, scale, -127, 127, numbers);
    for (size_t i = 0; i < kGroup; ++i) to[i] = static_cast<uint8_t>(numbers[i]);
  }
  FLASH_TARGET static void store_zeros(uint8_t* to) { std::memset(to, 0, kGroup); }
  FLASH_TARGET static void load(const uint8_t* from, float scale, float* values) {
    for (size_t i = 0; i < kGroup; ++i) {
      values[i] = static_cast<float>(static_cast<int8_t>(from[i])) * scale;
    }
  }
};

struct EncodeInt4 : HalfScales {
  static constexpr DType dtype = DType::int4;
  static constexpr float kMost = 7;
  static constexpr float kLargest = kMost * kLargestHalf;
  // Of the scale with which the value farthest from zero becomes -8. Smaller ones cut it off and
  // round the others less.
  static constexpr std::array<float, 6> kFactors = {1.0F, 0.95F, 0.9F, 0.85F, 0.8F, 1.05F};

  FLASH_TARGET static uint16_t half_of(float scale) {
    const float magnitude = scale < 0 ? -scale : scale;
    const uint16_t half = f16_from_float(std::min(magnitude, kLargestHalf));
    return static_cast<uint16_t>((half == 0 ? 1 : half) | (scale < 0 ? 0x8000 : 0));
  }

  // Eight sums, added in pairs: this order is part of the encoding.
  FLASH_TARGET static double squared_error(const float* values, float scale) {
    int32_t numbers[kGroup];
    round_to(values, scale, -8, 7, numbers);
    double sums[8] = {};
    for (size_t i = 0; i < kGroup; i += 8) {
      for (size_t j = 0; j < 8; ++j) {
        const double rest = values[i + j] - static_cast<float>(numbers[i + j]) * scale;
        sums[j] += rest * rest;
      }
    }
    for (size_t width = 4; width > 0; width /= 2) {
      for (size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
    }
    return sums[0];
  }

  FLASH_TARGET static uint16_t scale_for(const float* values, const Extremes& found) {
    uint16_t best = half_of(found.largest / kMost);
    double least = squared_error(values, float_from_f16(best));
    const float whole = (found.positive >= found.negative ? -found.largest : found.largest) / 8;
    for (const float factor : kFactors) {
      const uint16_t scale = half_of(whole * factor);
      const double error = squared_error(values, float_from_f16(scale));
      if (error < least) {
        least = error;
        best = scale;
      }
    }
    return best;
  }
  FLASH_TARGET static void store(const float* values, float scale, uint8_t* to) {
    int32_t numbers[kGroup];
    round_to(values, scale, -8, 7, numbers);
    for (size_t i = 0; i < kGroup / 2; ++i) {
      to[i] = static_cast<uint8_t>((numbers[i] + 8) | ((numbers[i + kGroup / 2] + 8) << 4));
    }
  }
  FLASH_TARGET static void store_zeros(uint8_t* to) { std::memset(to, 0x88, kGroup / 2); }
  FLASH_TARGET static void load(const uint8_t* from, float scale, float* values) {
    for (size_t i = 0; i < kGroup / 2; ++i) {
      values[i] = static_cast<float>((from[i] & 15) - 8) * scale;
      values[i + kGroup / 2] = static_cast<float>((from[i] >> 4) - 8) * scale;
    }
  }
};

struct EncodeMxfp4 {
  static constexpr DType dtype = DType::mxfp4;
  static constexpr float kLargest = std::numeric_limits<float>::max();
  using Scale = uint8_t;
  FLASH_TARGET static float value_of(Scale scale) { return mxfp4_scale(scale); }

  // The largest value is 4 up to 8 times it, or less where no scale is so small.
  FLASH_TARGET static Scale scale_for(const float* /*values*/, const Extremes& found) {
    const uint32_t exponent = bits_of(found.largest) >> 23;
    return static_cast<Scale>(std::max(exponent, 2U) - 2);
  }
  // The nearest float's, halfway the one whose last bit is zero; of what becomes zero, that of +0.
  FLASH_TARGET static int32_t code_of(float value) {
    const uint32_t bits = bits_of(value);
    const float magnitude = float_from_bits(bits & 0x7FFFFFFF);
    const int32_t code = static_cast<int32_t>(magnitude > 0.25F) + (magnitude >= 0.75F) +
                         (magnitude > 1.25F) + (magnitude >= 1.75F) + (magnitude > 2.5F) +
                         (magnitude >= 3.5F) + (magnitude > 5.0F);
    return code | (code == 0 ? 0 : static_cast<int32_t>((bits >> 28) & 8));
  }
  FLASH_TARGET static void store(const float* values, float scale, uint8_t* to) {
    const float inverse = 0.5F / scale;  // of the format's
    int32_t codes[kGroup];
    for (size_t i = 0; i < kGroup; ++i) codes[i] = code_of(values[i] * inverse);
    for (size_t i = 0; i < kGroup / 2; ++i) {
      to[i] = static_cast<uint8_t>(codes[i] | (codes[i + kGroup / 2] << 4));
    }
  }
  FLASH_TARGET static void store_zeros(uint8_t* to) { std::memset(to, 0, kGroup / 2); }
  FLASH_TARGET static void load(const uint8_t* from, float scale, float* values) {
    for (size_t i = 0; i < kGroup / 2; ++i) {
      values[i] = static_cast<float>(mxfp4_number(from[i] & 15)) * scale;
      values[i + kGroup / 2] = static_cast<float>(mxfp4_number(from[i] >> 4)) * scale;
    }
  }
};

template <class Numbers>
struct EncodeGroups {
  using Scale = typename Numbers::Scale;

  FLASH_TARGET static bool encode(const float* values, size_t columns, uint8_t* row) {
    if (!all_finite(values, columns)) return false;
    const size_t groups = group_count(columns);
    uint8_t* scales = row + groups * group_bytes(Numbers::dtype);
    for (size_t g = 0; g < groups; ++g) {
      float group[kGroup] = {};
      std::memcpy(group, values + g * kGroup,
                  std::min(kGroup, columns - g * kGroup) * sizeof(float));
      const Extremes found = extremes_of(group);
      if (found.largest > Numbers::kLargest) return false;
      uint8_t* to = row + g * group_bytes(Numbers::dtype);
      Scale scale = 0;
      if (found.largest == 0) {
        Numbers::store_zeros(to);
      } else {
        scale = Numbers::scale_for(group, found);
        Numbers::store(group, Numbers::value_of(scale), to);
      }
      std::memcpy(scales + g * sizeof(scale), &scale, sizeof(scale));
    }
    return true;
  }
  FLASH_TARGET static void decode(const uint8_t* row, size_t columns, float* values) {
    const size_t groups = group_count(columns);
    const uint8_t* scales = row + groups * group_bytes(Numbers::dtype);
    for (size_t g = 0; g < groups; ++g) {
      Scale scale = 0;
      std::memcpy(&scale, scales + g * sizeof(scale), sizeof(scale));
      float group[kGroup];
      Numbers::load(row + g * group_bytes(Numbers::dtype), Numbers::value_of(scale), group);
      std::memcpy(values + g * kGroup, group,
                  std::min(kGroup, columns - g * kGroup) * sizeof(float));
    }
  }
};

inline void set_encoding(KernelTable* table) {
  table->encode = {EncodeF32::encode,
                   EncodeHalves<F16Bits>::encode,
                   EncodeHalves<BF16Bits>::encode,
                   EncodeGroups<EncodeInt8>::encode,
                   EncodeGroups<EncodeInt4>::encode,
                   EncodeGroups<EncodeMxfp4>::encode};
  table->decode = {EncodeF32::decode,
                   EncodeHalves<F16Bits>::decode,
                   EncodeHalves<BF16Bits>::decode,
                   EncodeGroups<EncodeInt8>::decode,
                   EncodeGroups<EncodeInt4>::decode,
                   EncodeGroups<EncodeMxfp4>::decode};
}
