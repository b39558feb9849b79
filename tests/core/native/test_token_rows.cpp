// Norms, heads, gates and shares of tokens, by hand.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels.h"
#include "testing.h"
#include "token_rows.h"
#include "views.h"

using namespace flash_core;

namespace {

using Floats = std::vector<float>;

Matrix<const float> rows_of(const Floats& values, size_t columns) {
  return {values.data(), values.size() / columns, columns};
}

Matrix<float> out_rows(Floats* values, size_t columns) {
  return {values->data(), values->size() / columns, columns};
}

bool near(float found, double expected) { return std::fabs(found - expected) < 1e-5; }

constexpr Matrix<const float> kNoAngles = {nullptr, 0, 0};

}  // namespace

TEST(rows_are_normed_by_their_root_mean_square_or_deviation) {
  const Floats x = {3, 4, 0, 0, 1, 1, 1, 1};
  Floats out(8);
  Kernels kernels(1, nullptr);
  kernels.norm_rows({rows_of(x, 4), {}, {}, false, 0, out_rows(&out, 4)});
  CHECK(near(out[0], 1.2) && near(out[1], 1.6) && out[2] == 0 && near(out[7], 1));
  const Floats weight = {1, 2, 3, 4};
  const Floats bias = {0, 0, 0, 5};
  kernels.norm_rows({rows_of(x, 4), view(weight), view(bias), true, 1e-9, out_rows(&out, 4)});
  const double deviation = std::sqrt((1.25 * 1.25 + 2.25 * 2.25 + 2 * 1.75 * 1.75) / 4);
  CHECK(near(out[0], 1.25 / deviation) && near(out[1], 4.5 / deviation));
  CHECK(near(out[3], -7 / deviation + 5) && out[4] == 0 && out[7] == 5);
}

TEST(a_long_row_is_summed_in_lanes_to_its_end) {
  Floats x;
  double squares = 0;
  for (int i = 0; i < 19; ++i) {  // twice eight, and three
    x.push_back(static_cast<float>(i - 7) / 4);
    squares += static_cast<double>(x.back()) * x.back();
  }
  Floats out(19);
  Kernels kernels(1, nullptr);
  kernels.norm_rows({rows_of(x, 19), {}, {}, false, 0, out_rows(&out, 19)});
  for (size_t i = 0; i < 19; ++i) CHECK(near(out[i], x[i] / std::sqrt(squares / 19)));
}

TEST(norms_of_other_sizes_are_refused) {
  const Floats x(8);
  const Floats five(5);
  Floats out(8);
  Floats few(4);
  const auto refused = [&](const char* told, const NormRows& task) {
    CHECK_THROWS(std::invalid_argument, told, check_norm(task));
  };
  refused("weight has 5 values", {rows_of(x, 4), view(five), {}, false, 0, out_rows(&out, 4)});
  refused("bias has 5 values", {rows_of(x, 4), {}, view(five), false, 0, out_rows(&out, 4)});
  refused("out is [1, 4]", {rows_of(x, 4), {}, {}, false, 0, out_rows(&few, 4)});
  refused("out is [2, 2]", {rows_of(x, 4), {}, {}, false, 0, out_rows(&few, 2)});
}

TEST(heads_lie_one_behind_the_other_and_are_turned) {
  const Floats x = {1, 2, 3, 4, 5, 6, 7, 8};  // two tokens of two heads
  Floats out(8);
  Kernels kernels(1, nullptr);
  kernels.place_heads({rows_of(x, 4), 2, {}, 0, kNoAngles, kNoAngles, out_view(&out)});
  CHECK(out == (Floats{1, 2, 5, 6, 3, 4, 7, 8}));
  const Floats cos = {0, 1};  // the first token's pair by a quarter, the second's not
  const Floats sin = {1, 0};
  kernels.place_heads({rows_of(x, 4), 2, {}, 0, rows_of(cos, 1), rows_of(sin, 1), out_view(&out)});
  CHECK(out == (Floats{-2, 1, 5, 6, -4, 3, 7, 8}));
  const Floats weight = {1, 10};
  kernels.place_heads({rows_of(x, 4), 2, view(weight), 0, kNoAngles, kNoAngles, out_view(&out)});
  CHECK(near(out[0], 1 / std::sqrt(2.5)) && near(out[1], 20 / std::sqrt(2.5)));
}

TEST(heads_of_other_sizes_are_refused) {
  const Floats x(8);
  const Floats two(2);
  const Floats four(4);
  Floats out(8);
  const auto refused = [&](const char* told, const PlaceHeads& task) {
    CHECK_THROWS(std::invalid_argument, told, check_place(task));
  };
  const auto x_rows = rows_of(x, 4);
  refused("columns is 0", {x_rows, 0, {}, 0, kNoAngles, kNoAngles, out_view(&out)});
  refused("whole heads of 3", {x_rows, 3, {}, 0, kNoAngles, kNoAngles, out_view(&out)});
  refused("weight has 4 values", {x_rows, 2, view(four), 0, kNoAngles, kNoAngles, out_view(&out)});
  refused("sin is [0, 0]", {x_rows, 2, {}, 0, rows_of(two, 1), kNoAngles, out_view(&out)});
  refused("a column of cos has 4 values",
          {x_rows, 2, {}, 0, rows_of(four, 1), rows_of(four, 1), out_view(&out)});
  refused("cos has 2 pairs; a head has 1",
          {x_rows, 2, {}, 0, rows_of(four, 2), rows_of(four, 2), out_view(&out)});
  Floats few(7);
  refused("out has 7 values", {x_rows, 2, {}, 0, kNoAngles, kNoAngles, out_view(&few)});
}

TEST(gates_are_cut_off_and_multiplied) {
  const Floats gate = {0, 100, -100, 2};
  const Floats up = {1, 9, 1, -9};
  Floats out(4);
  gate_rows({gate.data(), 4, nullptr, 0, 1, 0, 0, out_rows(&out, 4)});
  CHECK(out[0] == 0 && out[1] == 100 && near(out[2], 0) && near(out[3], 2 / (1 + std::exp(-2.0))));
  gate_rows({gate.data(), 4, up.data(), 4, 2, 7, 1, out_rows(&out, 4)});
  CHECK(near(out[1], 7 / (1 + std::exp(-14.0)) * 8) && near(out[3], 2 / (1 + std::exp(-4.0)) * -6));
  // A row of more than are computed at once, and rows that lie apart.
  const Floats many(2 * 600, 1.0F);
  Floats of_many(2 * 500);
  gate_rows({many.data(), 600, many.data(), 600, 1, 0, 0, out_rows(&of_many, 500)});
  for (const float one : of_many) CHECK(near(one, 1 / (1 + std::exp(-1.0))));
}

TEST(gelu_is_the_share_of_the_normal_distribution) {
  Floats x = {0, 1, -1, 3, -3, 40, -40, 1e30F, -1e30F};
  x.resize(600, 0.5F);  // more than are computed at once
  Floats out(x.size());
  gelu({view(x), true, out_view(&out)});
  for (size_t i = 0; i < x.size(); ++i) {
    const double one = x[i];
    CHECK(near(out[i], one * std::erfc(-one / std::sqrt(2.0)) / 2));
  }
  gelu({view(x), false, out_view(&out)});
  for (size_t i = 0; i < 7; ++i) {
    const double one = x[i];
    const double angle = std::sqrt(2 / std::acos(-1.0)) * (one + 0.044715 * one * one * one);
    CHECK(near(out[i], one * (1 + std::tanh(angle)) / 2));
  }
  CHECK(out[7] == x[7] && out[8] == 0);
  Floats few(3);
  CHECK_THROWS(std::invalid_argument, "out has 3 values; 600 were expected",
               gelu({view(x), true, out_view(&few)}));
}

TEST(shares_are_added_to_their_tokens) {
  const Floats shares = {1, 2, 10, 20, 100, 200};
  const Floats weights = {1, 2, 0.5};
  const std::vector<int32_t> ids = {1, 0, 1};
  Floats sums = {0, 0, 1, 1, 7, 7};
  Kernels kernels(2, nullptr);
  kernels.add_shares({rows_of(shares, 2), view(weights), view(ids), out_rows(&sums, 2)});
  CHECK(sums == (Floats{20, 40, 52, 103, 7, 7}));
}

TEST(shares_of_other_sizes_are_refused) {
  const Floats shares(4);
  const Floats two(2);
  const Floats three(3);
  const std::vector<int32_t> ids = {0, 1};
  Floats sums(6);
  const auto refused = [&](const char* told, const AddShares& task) {
    CHECK_THROWS(std::invalid_argument, told, check_add(task));
  };
  const auto rows = rows_of(shares, 2);
  refused("weights has 3 values", {rows, view(three), view(ids), out_rows(&sums, 2)});
  refused("ids has 1 values", {rows, view(two), {ids.data(), 1}, out_rows(&sums, 2)});
  refused("a row of out has 3 values", {rows, view(two), view(ids), out_rows(&sums, 3)});
  for (const int32_t id : {-1, 3}) {
    const std::vector<int32_t> outside = {0, id};
    CHECK_THROWS(std::out_of_range, "of 3 rows",
                 check_add({rows, view(two), view(outside), out_rows(&sums, 2)}));
  }
}
