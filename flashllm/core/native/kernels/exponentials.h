// e to the power of many values, and what is made of it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace flash_core {

// A function that is compiled for wider vectors too, and taken where the processor has them. No
// bit depends on that: nothing is contracted, and the lanes of sums are written out. Sanitizers
// start before such functions are chosen.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FLASH_WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FLASH_WIDE
#endif

// e to the power of values that are 0 or less, within a few units in the last place. Without a
// library's help, whose last bits differ from machine to machine, and in a loop that compilers
// make vectors of.
inline void exponentials(float* values, size_t count) {
  constexpr float kLowest = -87.0F;  // below it the result would be no normal number
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits, so that a whole multiple of it is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves a whole number
  for (size_t i = 0; i < count; ++i) {
    // By masks: of a choice between two values compilers make a branch, and no vectors.
    const uint32_t kept = 0U - static_cast<uint32_t>(!(values[i] < kLowest));
    const float x = float_from_bits(bits_of(values[i]) & kept);
    const float shifted = x * kLog2E + kRound;
    const float whole = shifted - kRound;
    const float rest = (x - whole * kLn2High) - whole * kLn2Low;
    // Taylor's terms to the sixth: the next one is below 2^-23 of the sum, where |rest| <= 0.347.
    float power = 1.0F / 720 * rest + 1.0F / 120;
    power = power * rest + 1.0F / 24;
    power = power * rest + 1.0F / 6;
    power = power * rest + 0.5F;
    power = power * rest + 1.0F;
    power = power * rest + 1.0F;
    power *= float_from_bits((bits_of(shifted) + 127U) << 23);  // its low bits are `whole`
    values[i] = float_from_bits(bits_of(power) & kept);
  }
}

// 1 / (1 + e^-x) of each: of a power that is at most 1 whatever the sign, so nothing overflows.
inline void sigmoids(float* values, size_t count) {
  constexpr size_t kAtOnce = 256;
  std::array<float, kAtOnce> powers;
  for (size_t first = 0; first < count; first += kAtOnce) {
    float* const x = values + first;
    const size_t end = std::min(kAtOnce, count - first);
    for (size_t i = 0; i < end; ++i) powers[i] = -std::fabs(x[i]);
    exponentials(powers.data(), end);
    for (size_t i = 0; i < end; ++i) x[i] = (x[i] < 0 ? powers[i] : 1.0F) / (1.0F + powers[i]);
  }
}

}  // namespace flash_core
