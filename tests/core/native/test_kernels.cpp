// Every instruction set against 64-bit arithmetic; ends of rows at the ends of allocations.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "kernels.h"
#include "mxfp4.h"
#include "testing.h"
#include "views.h"

using namespace flash_core;

namespace {

constexpr DType kAll[] = {DType::f32,  DType::f16,  DType::bf16,
                          DType::int8, DType::int4, DType::mxfp4};

struct Case {
  std::vector<uint8_t> bytes;  // rows without anything between them
  std::vector<double> values;  // what they mean
  size_t columns;
  DType dtype;

  Rows rows() const {
    return {{bytes.data(), bytes.size()},
            static_cast<int64_t>(row_bytes(dtype, columns).get()),
            0,
            dtype};
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

// Those of mxfp4 by code, without their sign.
constexpr double kFloats[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Random numbers, and scales near 1, of whole groups.
void fill_groups(Case* result, size_t count, std::mt19937* random) {
  const size_t groups = group_count(result->columns);
  const size_t numbers = groups * group_bytes(result->dtype);
  const size_t scale_size = scale_bytes(result->dtype);
  const size_t stride = numbers + groups * scale_size;
  result->bytes.resize(count * stride);
  for (size_t r = 0; r < count; ++r) {
    uint8_t* row = result->bytes.data() + r * stride;
    for (size_t i = 0; i < numbers; ++i) row[i] = static_cast<uint8_t>((*random)());
    for (size_t g = 0; g < groups; ++g) {
      auto scale = static_cast<uint16_t>(0x3800 + ((*random)() & 0x7FF));
      if (result->dtype == DType::mxfp4) scale = static_cast<uint16_t>(125 + (scale & 3));
      std::memcpy(row + numbers + g * scale_size, &scale, scale_size);
    }
    for (size_t c = 0; c < result->columns; ++c) {
      const size_t g = c / kGroup;
      const size_t at = c % kGroup;
      const uint8_t* scale = row + numbers + g * scale_size;
      const uint8_t both = row[g * (kGroup / 2) + at % (kGroup / 2)];
      const int code = at < kGroup / 2 ? both % 16 : both / 16;
      if (result->dtype == DType::mxfp4) {
        const double value = kFloats[code % 8] * std::ldexp(1, *scale - 127);
        result->values.push_back(code < 8 ? value : -value);
      } else {
        const int number = result->dtype == DType::int4 ? code - 8 : static_cast<int8_t>(row[c]);
        result->values.push_back(number * decode(scale, DType::f16));
      }
    }
  }
}

// Random encoded weights: small numbers of both signs in each encoding.
Case make_case(size_t count, size_t columns, DType dtype) {
  std::mt19937 random(static_cast<uint32_t>(count * 1000 + columns));
  Case result = {{}, {}, columns, dtype};
  if (is_grouped(dtype)) {
    fill_groups(&result, count, &random);
    return result;
  }
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

TEST(codes_and_scales_of_mxfp4_are_decoded) {
  for (int code = 0; code < 16; ++code) {
    CHECK(mxfp4_number(code) == static_cast<int>((code < 8 ? 2 : -2) * kFloats[code % 8]));
  }
  for (int s = 0; s < 256; ++s) {
    CHECK(mxfp4_scale(static_cast<uint8_t>(s)) == std::ldexp(1.0F, s - 128));
  }
}

TEST(every_scale_of_mxfp4_is_the_same_for_every_set) {
  // Rows of one group whose numbers add up to 1, a scale each; of no more than f32 holds.
  const std::vector<float> x(32, 1.0F);
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    std::vector<uint8_t> bytes(255 * 17, 0);
    for (size_t s = 0; s < 255; ++s) {
      bytes[s * 17 + 5] = 0x2A;  // -1 and 1
      bytes[s * 17 + 9] = 0x02;
      bytes[s * 17 + 16] = static_cast<uint8_t>(s);
    }
    std::vector<float> out(255);
    kernels.matvec(view(bytes), DType::mxfp4, view(x), out_view(&out));
    for (int s = 0; s < 255; ++s) {
      const float expected = std::ldexp(1.0F, s - 127);
      // What is below f32's normal numbers loses bits in the product of both scales.
      CHECK(std::fabs(out[static_cast<size_t>(s)] - expected) <= expected * 1e-6 + 0x1p-132);
    }
  }
}

TEST(dots_agree_with_wide_arithmetic_for_every_set_encoding_and_width) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 3, 7, 16, 33, 64, 100, 128, 257, 480, 1025}) {
        const Case rows = make_case(11, columns, dtype);
        const std::vector<float> x = some_floats(columns);
        const std::vector<int32_t> ids = {4, 0, 2, 10, 9, 1, 5};  // whole groups of them and a part
        std::vector<float> out(ids.size());
        Kernels(2, table->name).dot_rows(rows.rows(), view(ids), view(x), out_view(&out));
        for (size_t i = 0; i < ids.size(); ++i) {
          double expected = 0;
          double scale = 0;
          for (size_t c = 0; c < columns; ++c) {
            const double w = rows.values[static_cast<size_t>(ids[i]) * columns + c];
            expected += w * x[c];
            scale += std::fabs(w) * 6;
          }
          // In groups x is rounded to 14 bits, 8,127 steps to its largest value.
          const double lost = is_grouped(dtype) ? scale / 8127 / 2 : 0;
          CHECK(close(out[i], expected, scale) || std::fabs(out[i] - expected) <= lost * 1.01);
        }
      }
    }
  }
}

TEST(a_row_gets_the_same_bits_alone_and_among_others) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 33, 64, 96, 128, 480, 512, 1000, 1056}) {
        const Case rows = make_case(23, columns, dtype);
        const std::vector<float> x = some_floats(columns);
        Kernels kernels(1, table->name);
        std::vector<float> all(23);
        kernels.matvec({rows.bytes.data(), rows.bytes.size()}, dtype, view(x), out_view(&all));
        for (int32_t id = 0; id < 23; ++id) {
          const std::vector<int32_t> ids = {id};
          std::vector<float> alone(1);
          kernels.dot_rows(rows.rows(), view(ids), view(x), out_view(&alone));
          CHECK(alone[0] == all[static_cast<size_t>(id)]);
        }
      }
    }
  }
}

TEST(weighted_sums_agree_with_wide_arithmetic_for_every_set_encoding_and_width) {
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 8, 7};
  const std::vector<float> weights = {1.5F, -2, 0, 0.25F, 3, 1, 1, -1};
  const std::vector<int32_t> ends = {0, 6, 8};
  // Of whole numbers, weights times scales, which are below 1, are rounded to this at most.
  const double step = 3 / 8127.0;
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 3, 7, 16, 33, 64, 100, 257, 1025, 2048, 2080, 4100}) {
        const Case rows = make_case(9, columns, dtype);
        std::vector<float> out(columns, 1.0F);
        std::vector<float> plain(columns, 1.0F);
        Kernels(3, table->name)
            .weighted_sum_rows(rows.rows(), view(ids), view(weights), view(ends), out_view(&out));
        Kernels(1, "scalar")
            .weighted_sum_rows(rows.rows(), view(ids), view(weights), view(ends), out_view(&plain));
        for (size_t c = 0; c < columns; ++c) {
          double expected = 1;
          double scale = 1;
          for (size_t i = 0; i < ids.size(); ++i) {
            const double w = rows.values[static_cast<size_t>(ids[i]) * columns + c];
            expected += w * weights[i];
            scale += std::fabs(w * weights[i]);
          }
          CHECK(close(out[c], plain[c], scale));
          const double rounding = is_grouped(dtype) ? 128 * step / 2 * ids.size() : 0;
          CHECK(std::fabs(out[c] - expected) <= 1e-5 * scale + rounding);
        }
      }
    }
  }
}

TEST(a_weight_that_is_not_finite_makes_its_sums_no_numbers) {
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<int32_t> ends = {9};
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const float wrong :
           {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
            std::numeric_limits<float>::infinity()}) {
        const Case rows = make_case(9, 100, dtype);
        std::vector<float> weights(ids.size(), wrong);
        std::vector<float> out(100, 1.0F);
        Kernels(1, table->name)
            .weighted_sum_rows(rows.rows(), view(ids), view(weights), view(ends), out_view(&out));
        for (const float value : out) CHECK(!std::isfinite(value));
      }
    }
  }
}

TEST(bits_do_not_depend_on_the_number_of_threads) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      const Case rows = make_case(200, 1000, dtype);
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
}

TEST(several_vectors_get_the_bits_of_each_alone) {
  const std::vector<int32_t> ids = {0, 70, 130, 199, 3, 64, 65, 66, 128};
  const std::vector<int32_t> vector_ends = {0, 4, 4, 9};
  const std::vector<int32_t> block_ends = {1, 2, 4, 5, 8, 9};
  const std::vector<float> weights = some_floats(ids.size());
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      const Case rows = make_case(200, 1000, dtype);
      const std::vector<float> x = some_floats(4000);
      std::vector<float> dots(ids.size());
      std::vector<float> sums(4000, 1.0F);
      Kernels kernels(3, table->name);
      kernels.dot_rows_each(rows.rows(), view(ids), view(vector_ends), view(x), out_view(&dots));
      kernels.weighted_sum_rows_each(rows.rows(), view(ids), view(weights), view(vector_ends),
                                     view(block_ends), out_view(&sums));
      std::vector<float> alone(5);
      kernels.dot_rows(rows.rows(), {ids.data() + 4, 5}, {x.data() + 3000, 1000}, out_view(&alone));
      CHECK(std::equal(alone.begin(), alone.end(), dots.begin() + 4));
      const std::vector<int32_t> ends = {1, 4, 5};
      std::vector<float> total(1000, 1.0F);
      kernels.weighted_sum_rows(rows.rows(), {ids.data() + 4, 5}, {weights.data() + 4, 5},
                                view(ends), out_view(&total));
      CHECK(std::equal(total.begin(), total.end(), sums.begin() + 3000));
      CHECK(std::count(sums.begin() + 2000, sums.begin() + 3000, 1.0F) == 1000);
    }
  }
}

TEST(matrices_that_begin_anywhere_get_the_bits_of_each_alone) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      const size_t columns = 1000;
      const std::vector<uint8_t> bytes = make_case(600, columns, dtype).bytes;
      const auto row = static_cast<int64_t>(row_bytes(dtype, columns).get());
      const std::vector<int64_t> begins = {300 * row, 0, 7 * row};
      const std::vector<float> x = some_floats(3 * columns);
      Kernels kernels(3, table->name);
      for (const size_t vectors : {size_t{1}, size_t{3}}) {
        std::vector<float> out(3 * 300);
        kernels.matvec_each(view(bytes), view(begins), dtype, {x.data(), vectors, columns},
                            {out.data(), 3, 300});
        for (size_t i = 0; i < 3; ++i) {
          std::vector<float> alone(300);
          kernels.matvec({bytes.data() + begins[i], static_cast<size_t>(300 * row)}, dtype,
                         {x.data() + (vectors == 1 ? 0 : i * columns), columns}, out_view(&alone));
          CHECK(std::equal(alone.begin(), alone.end(), out.begin() + 300 * static_cast<long>(i)));
        }
      }
      std::vector<float> out(600);
      CHECK_THROWS(std::invalid_argument, "out has 2",
                   kernels.matvec_each(view(bytes), view(begins), dtype, {x.data(), 1, columns},
                                       {out.data(), 2, 300}));
      CHECK_THROWS(std::invalid_argument, "x has 2",
                   kernels.matvec_each(view(bytes), view(begins), dtype, {x.data(), 2, columns},
                                       {out.data(), 3, 200}));
    }
  }
}

TEST(vectors_that_share_a_block_are_refused) {
  const Case rows = make_case(4, 8, DType::f32);
  const std::vector<int32_t> ids = {0, 1};
  const std::vector<int32_t> vector_ends = {1, 2};
  const std::vector<int32_t> block_ends = {2};
  const std::vector<float> weights = some_floats(2);
  std::vector<float> out(16);
  Kernels kernels(1, "scalar");
  CHECK_THROWS(std::invalid_argument, "rows of two vectors",
               kernels.weighted_sum_rows_each(rows.rows(), view(ids), view(weights),
                                              view(vector_ends), view(block_ends), out_view(&out)));
}

TEST(rows_encoded_by_every_set_are_the_same_and_decode_to_what_was_encoded) {
  for (const DType dtype : kAll) {
    for (const size_t columns : {1, 31, 32, 33, 64, 513}) {
      std::mt19937 random(static_cast<uint32_t>(columns));
      std::vector<float> values(7 * columns);
      for (float& value : values) {
        value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31F;
      }
      const size_t stride = row_bytes(dtype, columns).get();
      std::vector<uint8_t> expected(7 * stride);
      Kernels(1, "scalar")
          .encode_rows(view(values), columns, dtype, {expected.data(), expected.size()});
      const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6};
      for (const KernelTable* table : available_kernels()) {
        Kernels kernels(2, table->name);
        std::vector<uint8_t> bytes(7 * stride);
        kernels.encode_rows(view(values), columns, dtype, {bytes.data(), bytes.size()});
        CHECK(bytes == expected);
        std::vector<float> decoded(7 * columns);
        const Rows rows = {{bytes.data(), bytes.size()}, static_cast<int64_t>(stride), 0, dtype};
        kernels.decode_rows(rows, view(ids), columns, out_view(&decoded));
        const double most = dtype == DType::mxfp4 ? 0.25 : dtype == DType::int4 ? 0.2 : 0.01;
        for (size_t i = 0; i < values.size(); ++i) {
          CHECK(std::fabs(decoded[i] - values[i]) <= most);
        }
      }
    }
  }
}

TEST(groups_of_zeros_are_zeros_among_others) {
  std::vector<float> values(3 * 80, 0.0F);
  for (size_t c = 32; c < 64; ++c) values[80 + c] = static_cast<float>(c) - 40;
  values[5] = -0.0F;
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : {DType::int8, DType::int4, DType::mxfp4}) {
      Kernels kernels(1, table->name);
      std::vector<uint8_t> bytes(3 * row_bytes(dtype, 80).get(), 0xA5);
      kernels.encode_rows(view(values), 80, dtype, out_view(&bytes));
      const auto stride = static_cast<int64_t>(bytes.size() / 3);
      const std::vector<int32_t> ids = {0, 1, 2};
      std::vector<float> decoded(values.size(), 7.0F);
      kernels.decode_rows({view(bytes), stride, 0, dtype}, view(ids), 80, out_view(&decoded));
      for (size_t i = 0; i < values.size(); ++i) {
        CHECK(std::fabs(decoded[i] - values[i]) <= (values[i] == 0 ? 0 : 4));
      }
      CHECK(decoded[80 + 63] > 20);
    }
  }
}

TEST(values_that_cannot_be_encoded_are_refused) {
  std::vector<float> values(3 * 40, 1.0F);
  for (const DType dtype : kAll) {
    std::vector<uint8_t> bytes(3 * row_bytes(dtype, 40).get());
    const View<uint8_t> out = {bytes.data(), bytes.size()};
    Kernels kernels(2, "");
    values[50] = std::numeric_limits<float>::quiet_NaN();
    CHECK_THROWS(std::invalid_argument, "row 1 has a value",
                 kernels.encode_rows(view(values), 40, dtype, out));
    values[50] = 1;
    kernels.encode_rows(view(values), 40, dtype, out);
    CHECK_THROWS(std::invalid_argument, "columns",
                 kernels.encode_rows(view(values), 0, dtype, out));
    CHECK_THROWS(std::invalid_argument, "were expected",
                 kernels.encode_rows(view(values), 41, dtype, out));
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
  for (const int threads : {-1, 0, 1025}) {
    const std::string told = "threads is " + std::to_string(threads) + "; expected 1 to 1024";
    CHECK_THROWS(std::invalid_argument, told, Kernels(threads, "scalar"));
  }
  kernels.close();
  CHECK_THROWS(std::invalid_argument, "closed", dot(3, 32, 0));
}

TEST(the_environment_says_which_set_where_the_caller_does_not) {
  const char* const before = std::getenv("FLASHLLM_ISA");
  const std::string kept = before == nullptr ? "" : before;
  const std::string best = available_kernels().back()->name;
  unsetenv("FLASHLLM_ISA");
  CHECK(Kernels(1, nullptr).isa() == best);
  setenv("FLASHLLM_ISA", "scalar", 1);
  CHECK(Kernels(1, nullptr).isa() == std::string("scalar"));
  CHECK(Kernels(1, "").isa() == best);
  setenv("FLASHLLM_ISA", "vax", 1);
  CHECK_THROWS(std::invalid_argument, "isa is 'vax'; available: scalar", Kernels(1, nullptr));
  unsetenv("FLASHLLM_ISA");
  if (before != nullptr) setenv("FLASHLLM_ISA", kept.c_str(), 1);
}
