#include "quantised_input.h"

#include <cstring>

#include "rounding.h"

namespace flash_core {

namespace {

void split(const int32_t* numbers, size_t count, int8_t* high, int8_t* low) {
  for (size_t i = 0; i < count; ++i) {
    const int32_t rest = ((numbers[i] + 64) & 127) - 64;
    low[i] = static_cast<int8_t>(rest);
    high[i] = static_cast<int8_t>((numbers[i] - rest) / 128);
  }
}

// The nearest numbers without a low half.
void round_to_high(int32_t* numbers) {
  for (size_t i = 0; i < kGroup; ++i) numbers[i] -= ((numbers[i] + 64) & 127) - 64;
}

void sum_lanes(const int32_t* numbers, size_t lanes, int32_t* seeds) {
  for (size_t lane = 0; lane < lanes; ++lane) {
    const int32_t* four = numbers + 4 * lane;
    seeds[lane] -= four[0] + four[1] + four[2] + four[3];
  }
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
  for (size_t g = 0; g < groups; ++g) {
    float last[kGroup] = {};
    const float* values = x + g * kGroup;
    if (columns - g * kGroup < kGroup) {
      std::memcpy(last, values, (columns - g * kGroup) * sizeof(float));
      values = last;
    }
    int32_t numbers[kGroup];
    const float scale = round_together(values, kGroup, numbers);
    if (only_high_) round_to_high(numbers);
    int32_t* seeds = seeds_.data() + g * lanes;
    scales_[g] = scale / static_cast<float>(byte_unit(dtype));
    if (dtype == DType::int8) {
      split(numbers, kGroup, high_.data() + g * kGroup, low_.data() + g * kGroup);
      sum_lanes(numbers, lanes, seeds);
      continue;
    }
    for (size_t half = 0; half < 2; ++half) {
      const size_t at = half * half_stride + g * kGroup / 2;
      const int32_t* from = numbers + half * kGroup / 2;
      split(from, kGroup / 2, high_.data() + at, low_.data() + at);
      sum_lanes(from, lanes, seeds);
    }
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
