// What is above its limit, by hand.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "selection.h"
#include "testing.h"

using namespace flash_core;

namespace {

const std::vector<float> kScores = {1, NAN, 3, -2, 0, INFINITY, 3};
const std::vector<float> kLimits = {0.5, 0, 1, -3, 0, 1, 1};

TEST(scores_above_their_limits_are_found_in_order) {
  std::vector<int32_t> ids(kScores.size());
  const size_t count = ids_above({kScores.data(), kScores.size()}, {kLimits.data(), kLimits.size()},
                                 {ids.data(), ids.size()});
  ids.resize(count);
  CHECK(ids == (std::vector<int32_t>{0, 2, 3, 5, 6}));
}

TEST(keys_begin_with_what_exceeds_its_limit_the_most) {
  std::vector<int64_t> keys(kScores.size());
  const size_t count = keys_above({kScores.data(), kScores.size()},
                                  {kLimits.data(), kLimits.size()}, {keys.data(), keys.size()});
  keys.resize(count);
  std::sort(keys.begin(), keys.end());
  std::vector<int32_t> ids;
  for (const int64_t key : keys) ids.push_back(static_cast<int32_t>(key & 0xFFFFFFFF));
  CHECK(ids == (std::vector<int32_t>{5, 2, 6, 3, 0}));
}

TEST(columns_of_what_is_true_are_found_by_row) {
  // Rows of ten, three bytes apart; any byte that is not zero is true.
  std::vector<uint8_t> truths(39, 0);
  for (const size_t at : {0, 9, 13 + 7, 13 + 8, 26 + 10}) truths[at] = 1;
  truths[26 + 4] = 0x80;
  std::vector<int32_t> columns(5, -7);
  std::vector<int32_t> ends(3, -7);
  const Mask mask = {truths.data(), 13, 3, 10};
  CHECK(true_columns(mask, {columns.data(), 5}, {ends.data(), 3}) == 5);
  CHECK(columns == (std::vector<int32_t>{0, 9, 7, 8, 4}));
  CHECK(ends == (std::vector<int32_t>{2, 4, 5}));
  CHECK_THROWS(std::invalid_argument, "more is true than columns has room for, 4",
               true_columns(mask, {columns.data(), 4}, {ends.data(), 3}));
  CHECK_THROWS(std::invalid_argument, "2 ends for 3 rows",
               true_columns(mask, {columns.data(), 5}, {ends.data(), 2}));
}

TEST(runs_of_ids_end_with_a_block_or_a_vector) {
  const std::vector<int32_t> ids = {0, 63, 64, 130, 131, 5, 6, 200};
  const std::vector<int32_t> vectors = {5, 5, 8};
  std::vector<int32_t> ends(ids.size(), -7);
  const auto cut = [&](size_t room) {
    return run_ends({ids.data(), ids.size()}, {vectors.data(), 3}, 64, {ends.data(), room});
  };
  CHECK(cut(ids.size()) == 5);
  CHECK(ends == (std::vector<int32_t>{2, 3, 5, 7, 8, -7, -7, -7}));
  CHECK_THROWS(std::invalid_argument, "8 ids, and room for 7 ends", cut(7));
}

TEST(views_of_other_sizes_are_refused) {
  const size_t n = kScores.size();
  std::vector<int32_t> ids(n, -7);
  std::vector<int64_t> keys(n, -7);
  const auto refused = [&](size_t limits, size_t room, const char* told) {
    CHECK_THROWS(std::invalid_argument, told,
                 ids_above({kScores.data(), n}, {kLimits.data(), limits}, {ids.data(), room}));
    CHECK_THROWS(std::invalid_argument, told,
                 keys_above({kScores.data(), n}, {kLimits.data(), limits}, {keys.data(), room}));
  };
  refused(n, n - 1, "7 scores, 7 limits, and room for 6");
  refused(n - 1, n, "7 scores, 6 limits, and room for 7");
  refused(0, n, "7 scores, 0 limits, and room for 7");
  CHECK(ids == std::vector<int32_t>(n, -7) && keys == std::vector<int64_t>(n, -7));
}

}  // namespace
