// Encoded rows of any shape, place and content, for the targets of kernels: and what they mean,
// computed apart.
//
// The bytes end where their allocation ends, so that a sanitizer sees a read behind them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz_input.h"
#include "kernels.h"
#include "mxfp4.h"
#include "rounding.h"

namespace flash_core {

using Wide = __int128;

constexpr DType kDTypesAll[] = {DType::f32,  DType::f16,  DType::bf16,
                                DType::int8, DType::int4, DType::mxfp4};
constexpr size_t kColumnsMax = 1100;
constexpr size_t kIdsMax = 24;
constexpr size_t kRowsMax = 32;

template <class T>
View<const T> view_of(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

template <class T>
View<T> out_view(std::vector<T>* values) {
  return {values->data(), values->size()};
}

// The wide types' arithmetic: bytes of a row, 0 for no columns.
inline Wide wide_row_bytes(DType dtype, Wide columns) {
  if (!is_grouped(dtype)) return columns * (dtype == DType::f32 ? 4 : 2);
  return (columns + 31) / 32 * (dtype == DType::int8 ? 34 : dtype == DType::int4 ? 18 : 17);
}

struct RowCase {
  DType dtype = DType::f32;
  size_t columns = 0;
  int64_t stride = 0;
  int64_t offset = 0;
  size_t misplaced = 0;  // bytes before the first, so that rows begin at odd addresses
  std::vector<uint8_t> bytes;
  std::vector<int32_t> ids;

  Rows rows() const {
    return {{bytes.data() + misplaced, bytes.size() - misplaced}, stride, offset, dtype};
  }

  // Whether every id is a row within the bytes.
  bool is_valid() const {
    if (columns == 0 || stride < 1 || offset < 0) return false;
    return std::all_of(ids.begin(), ids.end(), [this](int32_t id) {
      const Wide end = Wide{id} * stride + offset + wide_row_bytes(dtype, Wide{columns});
      return id >= 0 && end <= Wide{bytes.size() - misplaced};
    });
  }
};

inline size_t pick_columns(FuzzInput* input) {
  return input->flag() ? input->size_within(0, 96) : input->size_within(0, kColumnsMax);
}

// Either valid weights in each row that fits, or bytes that may mean anything.
inline void fill_rows(RowCase* one, FuzzInput* input) {
  SeededValues values(input->word(2));
  for (size_t i = one->misplaced; i < one->bytes.size(); ++i) {
    one->bytes[i] = static_cast<uint8_t>(values.next());
  }
  if (input->byte() % 4 == 0 || one->columns == 0 || one->stride < 1 || one->offset < 0) return;
  const EncodeFunction encode = scalar_kernels().encode[static_cast<size_t>(one->dtype)];
  const Wide row = wide_row_bytes(one->dtype, Wide{one->columns});
  const Wide size = Wide{one->bytes.size() - one->misplaced};
  for (size_t id = 0; id < kRowsMax; ++id) {
    const Wide begin = Wide{id} * one->stride + one->offset;
    if (begin + row > size) break;
    const std::vector<float> weights = values.values(one->columns, 2);
    encode(weights.data(), one->columns,
           one->bytes.data() + one->misplaced + static_cast<size_t>(begin));
  }
}

inline RowCase make_rows(FuzzInput* input) {
  RowCase one;
  one.dtype = kDTypesAll[input->byte() % kDTypes];
  one.columns = pick_columns(input);
  const Wide row = wide_row_bytes(one.dtype, Wide{one.columns});
  const uint8_t shape = input->byte();
  one.offset = (shape & 1) != 0 ? 0 : input->within(-1, 70);
  one.stride = static_cast<int64_t>(row);
  if ((shape & 2) != 0) one.stride += input->within(-40, 87);
  if ((shape & 0x1C) == 0x1C) one.stride = input->any();
  if ((shape & 0xE0) == 0xE0) one.offset = input->any();
  one.misplaced = input->byte() % 8;
  const size_t n_rows = input->size_within(0, kRowsMax);
  const Wide whole = Wide{one.stride} * static_cast<Wide>(n_rows) + one.offset;
  size_t size = whole > 0 && whole < (1 << 18) ? static_cast<size_t>(whole) : 1000;
  if (input->byte() % 4 == 0) size = input->size_within(0, 4096);
  one.bytes.resize(one.misplaced + size);
  fill_rows(&one, input);
  const size_t count = input->size_within(0, kIdsMax);
  const auto end = static_cast<int64_t>(std::max<size_t>(n_rows, 1));
  for (size_t i = 0; i < count; ++i) {
    const int64_t id = input->byte() % 32 == 31 ? input->any() : input->within(0, end - 1);
    one.ids.push_back(static_cast<int32_t>(id));
  }
  return one;
}

// The values of the case's ids, one row after another; the ids are valid.
inline std::vector<float> decoded(const RowCase& one) {
  std::vector<float> values(one.ids.size() * one.columns);
  const DecodeFunction decode = scalar_kernels().decode[static_cast<size_t>(one.dtype)];
  const Rows rows = one.rows();
  for (size_t i = 0; i < one.ids.size(); ++i) {
    decode(row_at(rows, one.ids[i]), one.columns, values.data() + i * one.columns);
  }
  return values;
}

// The largest scale of a row of groups.
inline double largest_scale(const RowCase& one, int32_t id) {
  const size_t groups = group_count(one.columns);
  const uint8_t* scales = row_at(one.rows(), id) + groups * group_bytes(one.dtype);
  double largest = 0;
  for (size_t g = 0; g < groups; ++g) {
    if (one.dtype == DType::mxfp4) {
      largest = std::max(largest, double{mxfp4_scale(scales[g])});
      continue;
    }
    const auto bits = static_cast<uint16_t>(scales[2 * g] | scales[2 * g + 1] << 8);
    largest = std::max(largest, std::fabs(double{float_from_f16(bits)}));
  }
  return largest;
}

// Small numbers, or with `wild` any floats at all.
inline std::vector<float> make_vector(FuzzInput* input, size_t count) {
  const bool is_wild = input->byte() % 4 == 0;
  SeededValues values(input->word(2));
  if (!is_wild) return values.values(count, 8);
  std::vector<float> result(count);
  for (float& one : result) one = float_from_bits(values.next());
  return result;
}

// Whether products of such values are far from the ends of what floats hold.
inline bool is_moderate(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::fabs(value) < 1e9F; });
}

// The same of weights: in mxfp4 of scales too, which may be huge where all numbers are zeros.
inline bool are_rows_moderate(const RowCase& one) {
  if (one.dtype == DType::mxfp4) {
    for (const int32_t id : one.ids) {
      if (largest_scale(one, id) >= 1e9) return false;
    }
  }
  return is_moderate(decoded(one));
}

// Ends of runs that rise to `count`, or anything.
inline std::vector<int32_t> make_ends(FuzzInput* input, size_t count) {
  std::vector<int32_t> ends;
  const size_t runs = input->size_within(0, 6);
  int32_t at = 0;
  for (size_t i = 0; i < runs; ++i) {
    at += static_cast<int32_t>(input->within(0, 6));
    at = std::min(at, static_cast<int32_t>(count));
    ends.push_back(input->byte() % 32 == 31 ? static_cast<int32_t>(input->any()) : at);
  }
  if (input->byte() % 8 != 0 && !ends.empty()) ends.back() = static_cast<int32_t>(count);
  return ends;
}

inline bool is_rising(const std::vector<int32_t>& ends, size_t count) {
  int64_t before = 0;
  for (const int32_t end : ends) {
    if (end < before) return false;
    before = end;
  }
  return before == static_cast<int64_t>(count);
}

// Whether the call was accepted; anything but the two errors of wrong arguments ends the program.
template <class Call>
bool accepts(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument&) {
    return false;
  } catch (const std::out_of_range&) {
    return false;
  }
  return true;
}

}  // namespace flash_core
