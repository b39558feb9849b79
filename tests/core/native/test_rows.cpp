// Encodings by name, and ids, runs and sizes from outside, against plain loops.
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "rows.h"
#include "testing.h"
#include "views.h"

using namespace flash_core;

namespace {

using Numbers = std::vector<int32_t>;

constexpr DType kAll[] = {DType::f32,  DType::f16,  DType::bf16,
                          DType::int8, DType::int4, DType::mxfp4};

// Whether `body` was accepted; any other error than the two kinds of the core's goes on.
template <class Body>
bool is_accepted(const Body& body) {
  try {
    body();
  } catch (const std::invalid_argument&) {
    return false;
  } catch (const std::out_of_range&) {
    return false;
  }
  return true;
}

// Calls `use` with every list of up to `most` numbers from -1 to `last`.
template <class Use>
void for_each_list(size_t most, int32_t last, Numbers* list, const Use& use) {
  use(*list);
  if (list->size() == most) return;
  for (int32_t number = -1; number <= last; ++number) {
    list->push_back(number);
    for_each_list(most, last, list, use);
    list->pop_back();
  }
}

}  // namespace

TEST(encodings_have_names_that_are_read_again) {
  const std::vector<std::string> names = {"f32", "f16", "bf16", "int8", "int4", "mxfp4"};
  for (size_t i = 0; i < names.size(); ++i) {
    CHECK(parse_dtype(names[i]) == kAll[i]);
    CHECK(dtype_name(kAll[i]) == names[i]);
  }
  for (const char* name : {"", "f64", "F16", "int", "int44", "f16 "}) {
    CHECK_THROWS(std::invalid_argument, std::string("dtype is '") + name + "'", parse_dtype(name));
  }
}

TEST(rows_have_the_bytes_of_their_values_or_whole_groups) {
  for (uint64_t columns = 1; columns < 100; ++columns) {
    const uint64_t groups = (columns + 31) / 32;
    CHECK(row_bytes(DType::f32, columns).get() == 4 * columns);
    CHECK(row_bytes(DType::f16, columns).get() == 2 * columns);
    CHECK(row_bytes(DType::bf16, columns).get() == 2 * columns);
    CHECK(row_bytes(DType::int8, columns).get() == groups * (32 + 2));
    CHECK(row_bytes(DType::int4, columns).get() == groups * (16 + 2));
    CHECK(row_bytes(DType::mxfp4, columns).get() == groups * (16 + 1));
  }
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  for (const DType dtype : kAll) {
    CHECK_THROWS(std::invalid_argument, "no columns", row_bytes(dtype, 0));
    // These have less than a byte for each: their rows are always below 64 bits.
    if (dtype == DType::int4 || dtype == DType::mxfp4) continue;
    CHECK_THROWS(std::out_of_range, "64 bits", row_bytes(dtype, kMost));
  }
  CHECK(row_bytes(DType::int4, kMost).get() == (uint64_t{1} << 59) * 18);
  CHECK(row_bytes(DType::mxfp4, kMost).get() == (uint64_t{1} << 59) * 17);
}

TEST(runs_rise_to_the_number_of_ids) {
  Numbers list;
  for_each_list(4, 3, &list, [](const Numbers& ends) {
    for (size_t count = 0; count <= 3; ++count) {
      bool is_right = (ends.empty() ? 0 : ends.back()) == static_cast<int32_t>(count);
      int32_t before = 0;
      for (const int32_t end : ends) {
        is_right &= end >= before;
        before = end;
      }
      CHECK(is_right == is_accepted([&] { check_runs("ends", view(ends), count); }));
    }
  });
  CHECK_THROWS(std::invalid_argument, "ends must not fall",
               check_runs("ends", view(list = {2, 1}), 1));
  CHECK_THROWS(std::invalid_argument, "ends must rise to the number of ids, 3",
               check_runs("ends", view(list = {1, 2}), 3));
}

TEST(runs_of_a_part_of_the_ids_are_those_that_end_in_it) {
  Numbers list;
  for_each_list(4, 4, &list, [](const Numbers& ends) {
    const size_t count = ends.empty() || ends.back() < 0 ? 0 : static_cast<size_t>(ends.back());
    if (!is_accepted([&] { check_runs("ends", view(ends), count); })) return;
    for (size_t begin = 0; begin <= count; ++begin) {
      for (size_t end = begin; end <= count; ++end) {
        Numbers expected;
        for (const int32_t one : ends) {
          if (begin < end && one > static_cast<int32_t>(begin) &&
              one <= static_cast<int32_t>(end)) {
            expected.push_back(one);
          }
        }
        const bool fits =
            begin == end || (!expected.empty() && expected.back() == static_cast<int32_t>(end));
        Numbers found;
        CHECK(fits == is_accepted([&] {
                const View<const int32_t> runs = runs_within(view(ends), begin, end);
                found.assign(runs.data, runs.data + runs.size);
              }));
        if (fits) CHECK(found == expected);
      }
    }
  });
}

TEST(values_are_whole_vectors) {
  for (size_t size = 0; size < 30; ++size) {
    for (size_t vectors = 1; vectors < 30; ++vectors) {
      const bool is_whole = size / vectors * vectors == size;
      CHECK(is_whole ==
            is_accepted([&] { CHECK(columns_of("x", size, vectors) * vectors == size); }));
    }
  }
  CHECK_THROWS(std::invalid_argument, "x has 8 values for 0 vectors", columns_of("x", 8, 0));
  CHECK_THROWS(std::invalid_argument, "x has 0 values for 0 vectors", columns_of("x", 0, 0));
}

TEST(rows_that_lie_inside_are_told_from_all_others) {
  const std::vector<uint8_t> bytes(60);
  for (const DType dtype : kAll) {
    for (size_t columns = 1; columns < 9; ++columns) {
      const auto length = static_cast<int64_t>(row_bytes(dtype, columns).get());
      for (int64_t stride = -1; stride < 30; ++stride) {
        for (int64_t offset = -1; offset < 5; ++offset) {
          for (int32_t id = -1; id < 5; ++id) {
            const Rows rows = {view(bytes), stride, offset, dtype};
            const int64_t begin = id * stride + offset;
            const bool is_inside = id >= 0 && stride >= 1 && offset >= 0 && begin + length <= 60;
            const Numbers ids = {0, id};
            const bool is_first_inside = offset + length <= 60;
            CHECK((is_inside && is_first_inside) == is_accepted([&] {
                    CHECK(check_ids(rows, view(ids), columns) == static_cast<size_t>(length));
                  }));
            if (is_inside) CHECK(row_at(rows, id) == bytes.data() + begin);
          }
        }
      }
    }
  }
}

TEST(what_begins_inside_and_ends_outside_is_refused) {
  for (int64_t begin = -1; begin < 9; ++begin) {
    for (uint64_t length = 0; length < 9; ++length) {
      const std::vector<int64_t> begins = {0, begin};
      const bool is_inside = length <= 7 && begin >= 0 && begin + static_cast<int64_t>(length) <= 7;
      CHECK(is_inside == is_accepted([&] { check_begins(view(begins), Checked(length), 7); }));
    }
  }
  const std::vector<int64_t> last = {std::numeric_limits<int64_t>::max()};
  CHECK_THROWS(std::out_of_range, "are beyond 7", check_begins(view(last), Checked(1), 7));
}
