#include "quantised_input.h"

#include <algorithm>
#include <cstring>

#include "exponentials.h"
#include "rounding.h"

namespace flash_core {

namespace {

// Where the numbers of a vector go, as DotInput says.
struct Halves {
  int8_t* high;
  int8_t* low;
  int32_t* seeds;
  float* scales;
  size_t half_stride;
};

constexpr size_t kGroupsAtOnce = 16;
constexpr size_t kAtOnce = kGroupsAtOnce * kGroup;

// At most kGroupsAtOnce whole groups of x, where weights have four bits, or eight. Step by step in
// memory of its own, so that compilers make vectors of each.
template <bool kFourBits>
[[gnu::always_inline]] inline void round_some_groups(const float* x, size_t groups, bool only_high,
                                                     float unit, const Halves& to) {
  constexpr size_t kTogether = kFourBits ? kGroup / 2 : kGroup;
  int32_t numbers[kAtOnce];
  int8_t high[kAtOnce];
  int8_t low[kAtOnce];
  int32_t sums[kAtOnce / 4];
  const size_t count = groups * kGroup;
  for (size_t g = 0; g < groups; ++g) {
    to.scales[g] = round_together(x + g * kGroup, kGroup, numbers + g * kGroup) / unit;
  }
  if (only_high) {  // the nearest numbers without a low half
    for (size_t i = 0; i < count; ++i) numbers[i] -= ((numbers[i] + 64) & 127) - 64;
  }
  for (size_t i = 0; i < count; ++i) {
    const int32_t rest = ((numbers[i] + 64) & 127) - 64;
    low[i] = static_cast<int8_t>(rest);
    high[i] = static_cast<int8_t>((numbers[i] - rest) >> 7);  // a whole multiple of 128
  }
  for (size_t i = 0; i < count / 4; ++i) {
    const int32_t* const four = numbers + 4 * i;
    sums[i] = four[0] + four[1] + four[2] + four[3];
  }
  for (size_t g = 0; g < groups; ++g) {
    for (size_t half = 0; half < kGroup / kTogether; ++half) {
      const size_t from = g * kGroup + half * kTogether;
      const size_t at = half * to.half_stride + g * kTogether;
      std::memcpy(to.high + at, high + from, kTogether);
      std::memcpy(to.low + at, low + from, kTogether);
      for (size_t lane = 0; lane < kTogether / 4; ++lane) {
        to.seeds[g * kTogether / 4 + lane] -= sums[from / 4 + lane];
      }
    }
  }
}

template <bool kFourBits>
[[gnu::always_inline]] inline void round_groups(const float* x, size_t groups, bool only_high,
                                                float unit, Halves to) {
  constexpr size_t kTogether = kFourBits ? kGroup / 2 : kGroup;
  for (size_t g = 0; g < groups; g += kGroupsAtOnce) {
    round_some_groups<kFourBits>(x + g * kGroup, std::min(groups - g, kGroupsAtOnce), only_high,
                                 unit, to);
    to.high += kGroupsAtOnce * kTogether;
    to.low += kGroupsAtOnce * kTogether;
    to.seeds += kGroupsAtOnce * kTogether / 4;
    to.scales += kGroupsAtOnce;
  }
}

FLASH_WIDE void round_groups_of_eight_bits(const float* x, size_t groups, bool only_high,
                                           float unit, const Halves& to) {
  round_groups<false>(x, groups, only_high, unit, to);
}

FLASH_WIDE void round_groups_of_four_bits(const float* x, size_t groups, bool only_high, float unit,
                                          const Halves& to) {
  round_groups<true>(x, groups, only_high, unit, to);
}

}  // namespace

DotInput QuantisedInput::prepare(DType dtype, const float* x, size_t columns) {
  DotInput input = {};
  input.values = x;
  input.columns = columns;
  if (!is_grouped(dtype)) return input;
  const size_t groups = group_count(columns);
  const size_t padded = (groups + kInputGroups - 1) / kInputGroups * kInputGroups;
  const size_t lanes = group_bytes(dtype) / 4;
  const size_t half_stride = padded * kGroup / 2;
  high_.assign(padded * kGroup, 0);
  low_.assign(padded * kGroup, 0);
  seeds_.assign(padded * lanes, 0);
  scales_.assign(padded, 0.0F);
  const auto unit = static_cast<float>(byte_unit(dtype));
  const auto round = [&](const float* from, size_t first, size_t count) {
    const size_t at = first * group_bytes(dtype);
    const Halves to = {high_.data() + at, low_.data() + at, seeds_.data() + first * lanes,
                       scales_.data() + first, half_stride};
    if (dtype == DType::int8) {
      round_groups_of_eight_bits(from, count, only_high_, unit, to);
    } else {
      round_groups_of_four_bits(from, count, only_high_, unit, to);
    }
  };
  const size_t whole = columns / kGroup;
  round(x, 0, whole);
  if (whole < groups) {
    float last[kGroup] = {};
    std::memcpy(last, x + whole * kGroup, (columns - whole * kGroup) * sizeof(float));
    round(last, whole, 1);
  }
  input.high = high_.data();
  input.low = low_.data();
  input.seeds = seeds_.data();
  input.scales = scales_.data();
  input.half_stride = half_stride;
  input.only_high = only_high_;
  return input;
}

}  // namespace flash_core
