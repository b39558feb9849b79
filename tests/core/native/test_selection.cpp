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

TEST(views_of_other_sizes_are_refused) {
  std::vector<int32_t> ids(kScores.size() - 1);
  CHECK_THROWS(std::invalid_argument, "room for 6",
               ids_above({kScores.data(), kScores.size()}, {kLimits.data(), kLimits.size()},
                         {ids.data(), ids.size()}));
}

}  // namespace
