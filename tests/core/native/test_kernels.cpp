// Every instruction set against 64-bit arithmetic; ends of rows at the ends of allocations.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels.h"
#include "testing.h"

using namespace flash_core;

namespace {

constexpr DType kAll[] = {DType::f32, DType::f16, DType::bf16};

struct Case {
  std::vector<uint8_t> bytes;  // rows without anything between them
  std::vector<double> values;  // what they mean
  size_t columns;
  DType dtype;

  Rows rows() const {
    return {
        {bytes.data(), bytes.size()}, static_cast<int64_t>(columns * item_bytes(dtype)), 0, dtype};
  }
};

double decode(const uint8_t* from, DType dtype) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, from, 4);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, from, 2);
  return dtype == DType::f16 ? float_from_f16(half) : float_from_bf16(half);
}

// Random encoded weights: small numbers of both signs in each encoding.
Case make_case(size_t count, size_t columns, DType dtype) {
  std::mt19937 random(static_cast<uint32_t>(count * 1000 + columns));
  Case result = {{}, {}, columns, dtype};
  const size_t item = item_bytes(dtype);
  result.bytes.resize(count * columns * item);
  for (size_t i = 0; i < count * columns; ++i) {
    const uint32_t sign = random() & 1U;
    const uint32_t fraction = random() & 0x3FFU;
    uint32_t code = (sign << 15) | (0x0EU << 10) | fraction;                              // f16
    if (dtype == DType::bf16) code = (sign << 15) | 0x3F00U | (fraction >> 3);            // bf16
    if (dtype == DType::f32) code = (sign << 31) | 0x3F000000U | (fraction << 13) | 77U;  // f32
    for (size_t b = 0; b < item; ++b) {
      result.bytes[i * item + b] = static_cast<uint8_t>(code >> (8 * b));
    }
    result.values.push_back(decode(result.bytes.data() + i * item, dtype));
  }
  return result;
}

std::vector<float> some_floats(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(static_cast<int>(i % 13) - 6);
  return values;
}

bool close(double got, double expected, double scale) {
  return std::fabs(got - expected) <= 1e-5 * scale + 1e-30;
}

template <class T>
View<const T> view(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

View<float> out_view(std::vector<float>* values) { return {values->data(), values->size()}; }

}  // namespace

TEST(half_precision_is_decoded) {
  CHECK(float_from_f16(0x3C00) == 1.0F);
  CHECK(float_from_f16(0xC000) == -2.0F);
  CHECK(float_from_f16(0x0001) == 0x1p-24F);
  CHECK(float_from_f16(0x8001) == -0x1p-24F);
  CHECK(float_from_f16(0x03FF) == 1023 * 0x1p-24F);
  CHECK(float_from_f16(0x0400) == 0x1p-14F);
  CHECK(float_from_f16(0x7BFF) == 65504.0F);
  CHECK(std::isinf(float_from_f16(0xFC00)));
  CHECK(std::isnan(float_from_f16(0x7C01)));
  CHECK(std::signbit(float_from_f16(0x8000)));
  CHECK(float_from_bf16(0x3F80) == 1.0F);
}

TEST(dots_agree_with_wide_arithmetic_for_every_set_encoding_and_width) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 3, 7, 16, 33, 64, 100, 257, 1025}) {
        const Case rows = make_case(5, columns, dtype);
        const std::vector<float> x = some_floats(columns);
        const std::vector<int32_t> ids = {4, 0, 2};
        std::vector<float> out(3);
        Kernels(2, table->name).dot_rows(rows.rows(), view(ids), view(x), out_view(&out));
        for (size_t i = 0; i < 3; ++i) {
          double expected = 0;
          double scale = 0;
          for (size_t c = 0; c < columns; ++c) {
            const double w = rows.values[static_cast<size_t>(ids[i]) * columns + c];
            expected += w * x[c];
            scale += std::fabs(w * x[c]);
          }
          CHECK(close(out[i], expected, scale));
        }
      }
    }
  }
}

TEST(weighted_sums_agree_with_wide_arithmetic_for_every_set_encoding_and_width) {
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 8, 7};
  const std::vector<float> weights = {1.5F, -2, 0, 0.25F, 3, 1, 1, -1};
  const std::vector<int32_t> ends = {0, 6, 8};
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 3, 7, 16, 33, 64, 100, 257, 1025}) {
        const Case rows = make_case(9, columns, dtype);
        std::vector<float> out(columns, 1.0F);
        Kernels(3, table->name)
            .weighted_sum_rows(rows.rows(), view(ids), view(weights), view(ends), out_view(&out));
        for (size_t c = 0; c < columns; ++c) {
          double expected = 1;
          double scale = 1;
          for (size_t i = 0; i < ids.size(); ++i) {
            const double w = rows.values[static_cast<size_t>(ids[i]) * columns + c];
            expected += w * weights[i];
            scale += std::fabs(w * weights[i]);
          }
          CHECK(close(out[c], expected, scale));
        }
      }
    }
  }
}

TEST(bits_do_not_depend_on_the_number_of_threads) {
  for (const KernelTable* table : available_kernels()) {
    const Case rows = make_case(200, 1000, DType::f16);
    std::vector<int32_t> ids(200);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % 200);
    const std::vector<int32_t> ends = {64, 128, 200};
    const std::vector<float> x = some_floats(1000);
    const std::vector<float> weights = some_floats(200);
    std::vector<std::vector<float>> dots(3, std::vector<float>(200));
    std::vector<std::vector<float>> sums(3, std::vector<float>(1000));
    for (size_t t = 0; t < 3; ++t) {
      Kernels kernels(static_cast<int>(2 * t + 1), table->name);
      kernels.dot_rows(rows.rows(), view(ids), view(x), out_view(&dots[t]));
      kernels.weighted_sum_rows(rows.rows(), view(ids), view(weights), view(ends),
                                out_view(&sums[t]));
    }
    CHECK(dots[0] == dots[1] && dots[0] == dots[2]);
    CHECK(sums[0] == sums[1] && sums[0] == sums[2]);
  }
}

TEST(wrong_ids_and_sizes_are_refused) {
  const Case rows = make_case(4, 8, DType::f32);
  const std::vector<float> x = some_floats(8);
  std::vector<float> out(1);
  Kernels kernels(1, "scalar");
  const auto dot = [&](int32_t id, int64_t stride, int64_t offset) {
    const std::vector<int32_t> ids = {id};
    const Rows changed = {{rows.bytes.data(), rows.bytes.size()}, stride, offset, DType::f32};
    kernels.dot_rows(changed, view(ids), view(x), out_view(&out));
  };
  dot(3, 32, 0);
  CHECK_THROWS(std::out_of_range, "outside 128 bytes", dot(4, 32, 0));
  CHECK_THROWS(std::out_of_range, "negative", dot(-1, 32, 0));
  CHECK_THROWS(std::out_of_range, "outside", dot(3, 32, 1));
  CHECK_THROWS(std::out_of_range, "", dot(3, std::numeric_limits<int64_t>::max(), 0));
  CHECK_THROWS(std::out_of_range, "", dot(0, 32, std::numeric_limits<int64_t>::max()));
  CHECK_THROWS(std::invalid_argument, "row_stride", dot(0, 0, 0));
  CHECK_THROWS(std::invalid_argument, "row_offset", dot(0, 32, -4));
  CHECK_THROWS(std::invalid_argument, "available: scalar", Kernels(1, "vax"));
  CHECK_THROWS(std::invalid_argument, "threads is 0", Kernels(0, "scalar"));
  kernels.close();
  CHECK_THROWS(std::invalid_argument, "closed", dot(3, 32, 0));
}
