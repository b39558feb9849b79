// Rows encoded, decoded and copied: every instruction set gives the same bytes, values come back
// within what their encoding may lose, and wrong sizes and ids are refused.
#include <cstring>

#include "row_case.h"

using namespace flash_core;

namespace {

bool are_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float one) { return std::isfinite(one); });
}

// What a value may lose, `largest` being the largest magnitude of its group.
double most_lost(DType dtype, float value, double largest) {
  const double magnitude = std::fabs(double{value});
  switch (dtype) {
    case DType::f32:
      return 0;
    case DType::f16:
      return magnitude * 0x1p-11 + 0x1p-25;
    case DType::bf16:
      return magnitude * 0x1p-8 + 0x1p-133;
    case DType::int8:
      return largest / 127 / 2 * 1.01 + 0x1p-18;  // subnormal scales are steps of 2^-24
    case DType::mxfp4:
      return largest * 0.25 + 0x1p-129;  // from 6 to 8 times a scale all become 6
    default:
      return largest * 0.41 + 0x1p-21;  // chosen by the sum of squares: one may lose more
  }
}

void check_lost(const RowCase& one, const std::vector<float>& values,
                const std::vector<float>& back) {
  for (size_t row = 0; row * one.columns < values.size(); ++row) {
    for (size_t c = 0; c < one.columns; ++c) {
      const size_t group = c / kGroup * kGroup;
      double largest = 0;
      for (size_t k = group; k < std::min(one.columns, group + kGroup); ++k) {
        largest = std::max(largest, std::fabs(double{values[row * one.columns + k]}));
      }
      const size_t at = row * one.columns + c;
      // f16 has no room above 65504: such a value becomes an infinity.
      if (one.dtype == DType::f16 && std::fabs(values[at]) > 65504) continue;
      if (one.dtype == DType::bf16 && std::fabs(values[at]) > 3.38e38F) continue;
      REQUIRE(std::fabs(double{back[at]} - values[at]) <=
              most_lost(one.dtype, values[at], largest));
    }
  }
}

void check_encoding(FuzzInput* input) {
  RowCase one;
  one.dtype = kDTypesAll[input->byte() % kDTypes];
  one.columns = pick_columns(input);
  const size_t count = input->size_within(0, 9);
  const bool is_whole = input->byte() % 8 != 0;
  const std::vector<float> values =
      make_vector(input, is_whole ? count * one.columns : input->size_within(0, kColumnsMax));
  const Wide row = wide_row_bytes(one.dtype, Wide{one.columns});
  const size_t wanted = static_cast<size_t>(row) * count;
  const size_t size = input->byte() % 8 == 0 ? input->size_within(0, 4096) : wanted;
  const bool fits = one.columns > 0 && values.size() % one.columns == 0 &&
                    row * Wide{values.size() / one.columns} == Wide{size};
  std::vector<uint8_t> expected;
  bool is_held = false;
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    std::vector<uint8_t> bytes(size);
    const bool is_accepted = accepts(
        [&] { kernels.encode_rows(view_of(values), one.columns, one.dtype, out_view(&bytes)); });
    REQUIRE(fits || !is_accepted);
    REQUIRE(!is_accepted || are_finite(values));
    if (table == available_kernels().front()) {
      expected = bytes;
      is_held = is_accepted;
    }
    REQUIRE(is_accepted == is_held && (!is_accepted || bytes == expected));
  }
  if (!is_held) {
    // Refused for their size, or for a value: of those that are moderate none is.
    REQUIRE(!fits || !are_finite(values) || !is_moderate(values) || is_grouped(one.dtype));
    return;
  }
  one.stride = static_cast<int64_t>(row);
  one.bytes = expected;
  for (size_t i = 0; i < values.size() / one.columns; ++i) {
    one.ids.push_back(static_cast<int32_t>(i));
  }
  check_lost(one, values, decoded(one));
}

// Any rows: the same values by every set, none read outside.
void check_decoding(FuzzInput* input) {
  const RowCase one = make_rows(input);
  const size_t room = one.ids.size() * one.columns + (input->byte() % 16 == 0 ? 1 : 0);
  const bool is_valid = one.is_valid() && room == one.ids.size() * one.columns;
  std::vector<float> expected;
  for (const KernelTable* table : available_kernels()) {
    std::vector<float> out(room);
    const bool is_accepted = accepts([&] {
      Kernels(1, table->name)
          .decode_rows(one.rows(), view_of(one.ids), one.columns, out_view(&out));
    });
    REQUIRE(is_accepted == is_valid);
    if (expected.empty()) expected = out;
    REQUIRE(out.empty() ||
            std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
  }
}

void check_copying(FuzzInput* input) {
  const int64_t row = input->byte() % 8 == 0 ? input->any() : input->within(0, 200);
  const auto bytes_of = [&](size_t rows) {
    const Wide wanted = Wide{row} * static_cast<Wide>(rows);
    return wanted < 0 || wanted > 8192 ? size_t{100} : static_cast<size_t>(wanted);
  };
  std::vector<uint8_t> from(bytes_of(input->size_within(0, 20)));
  std::vector<uint8_t> to(bytes_of(input->size_within(0, 20)), 1);
  SeededValues values(input->word(2));
  for (uint8_t& byte : from) byte = static_cast<uint8_t>(values.next());
  const size_t count = input->size_within(0, 12);
  std::vector<int32_t> from_ids;
  std::vector<int32_t> to_ids;
  for (size_t i = 0; i < count; ++i) {
    from_ids.push_back(
        static_cast<int32_t>(input->byte() % 32 == 31 ? input->any() : input->within(0, 19)));
    to_ids.push_back(static_cast<int32_t>(i));  // distinct, as they must be
  }
  if (input->byte() % 16 == 0) to_ids.push_back(0);
  const auto is_within = [row](const std::vector<int32_t>& ids, size_t size) {
    return std::all_of(ids.begin(), ids.end(), [row, size](int32_t id) {
      return id >= 0 && (Wide{id} + 1) * row <= static_cast<Wide>(size);
    });
  };
  const bool is_valid = row >= 1 && from_ids.size() == to_ids.size() &&
                        is_within(from_ids, from.size()) && is_within(to_ids, to.size());
  std::vector<uint8_t> expected = to;
  REQUIRE(is_valid == accepts([&] {
            Kernels(1, "scalar")
                .copy_rows(view_of(from), view_of(from_ids), row, out_view(&to), view_of(to_ids));
          }));
  for (size_t i = 0; is_valid && i < count; ++i) {
    const auto bytes = static_cast<size_t>(row);
    std::copy_n(from.begin() + from_ids[i] * row, bytes, expected.begin() + to_ids[i] * row);
  }
  REQUIRE(to == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  switch (input.byte() % 4) {
    case 0:
      check_copying(&input);
      break;
    case 1:
      check_decoding(&input);
      break;
    default:
      check_encoding(&input);
  }
  return 0;
}
