// Which experts are chosen, by hand.
#include <cmath>
#include <limits>
#include <vector>

#include "routing.h"
#include "testing.h"
#include "views.h"

using namespace flash_core;

namespace {

using Floats = std::vector<float>;

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

Floats weights_of(const Floats& logits, const Floats& bias, const Routing& routing) {
  Floats weights(logits.size(), -7);
  expert_weights({logits.data(), 1, logits.size()}, view(bias), routing,
                 {weights.data(), 1, weights.size()});
  return weights;
}

std::vector<size_t> chosen(const Floats& weights) {
  std::vector<size_t> ids;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] != 0) ids.push_back(i);
  }
  return ids;
}

using Ids = std::vector<size_t>;

}  // namespace

TEST(the_largest_logits_are_chosen_and_weighed) {
  const Floats logits = {1, 3, 3, 0, 3, kNone};
  const Floats by_sigmoid = weights_of(logits, {}, {2, true, 1, 1, false, 0, 2});
  CHECK(chosen(by_sigmoid) == (Ids{1, 2}));
  CHECK(std::fabs(by_sigmoid[1] - 2 / (1 + std::exp(-3.0))) < 1e-6);
  const Floats shared = weights_of({1, 3, 3, 0}, {}, {2, false, 1, 1, true, 0, 1});
  CHECK(shared == (Floats{0, 0.5, 0.5, 0}));
  CHECK(chosen(weights_of(logits, {}, {6, true, 1, 1, false, 0, 1})).size() == 6);
  CHECK(chosen(weights_of({kNone, 1, kNone}, {}, {2, true, 1, 1, false, 0, 1})) == (Ids{0, 1}));
}

TEST(a_bias_decides_who_is_chosen_and_not_what_counts) {
  const Floats found = weights_of({5, 0, 0}, {0, 0, 9}, {1, true, 1, 1, false, 0, 1});
  CHECK(found == (Floats{0, 0, 0.5}));
}

TEST(groups_are_kept_by_their_two_best) {
  // The best expert is alone in its group; the next two together count more.
  const Floats logits = {3, -9, 2, 2, -9, -9};
  CHECK(chosen(weights_of(logits, {}, {1, true, 3, 1, false, 0, 1})) == (Ids{2}));
  CHECK(chosen(weights_of(logits, {}, {1, true, 3, 2, false, 0, 1})) == (Ids{0}));
  CHECK(chosen(weights_of(logits, {}, {1, true, 6, 1, false, 0, 1})) == (Ids{0}));
  const Floats bias = {0, 0, 0, 0, 2, 2};
  CHECK(chosen(weights_of(logits, bias, {2, true, 3, 1, false, 0, 1})) == (Ids{4, 5}));
}

TEST(numbers_of_experts_that_do_not_fit_are_refused) {
  const Floats logits(6);
  Floats weights(6);
  const auto refused = [&](const char* told, const Routing& routing, size_t bias = 0,
                           size_t rows = 1, size_t columns = 6) {
    CHECK_THROWS(std::invalid_argument, told,
                 expert_weights({logits.data(), 1, 6}, {logits.data(), bias}, routing,
                                {weights.data(), rows, columns}));
  };
  const Routing fits = {2, false, 1, 1, false, 0, 1};
  refused("weights is [0, 6]", fits, 0, 0);
  refused("weights is [1, 5], for [1, 6] logits", fits, 0, 1, 5);
  refused("choice_bias has 5 values", fits, 5);
  refused("0 groups", {2, false, 0, 1, false, 0, 1});
  refused("4 groups", {2, false, 4, 1, false, 0, 1});
  refused("0 of 2 groups kept", {2, false, 2, 0, false, 0, 1});
  refused("3 of 2 groups kept", {2, false, 2, 3, false, 0, 1});
  refused("0 experts a token", {0, false, 1, 1, false, 0, 1});
  refused("7 experts a token", {7, false, 1, 1, false, 0, 1});
}
