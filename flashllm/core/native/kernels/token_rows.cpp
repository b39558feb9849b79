#include "token_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>

#include "checked.h"
#include "exponentials.h"

namespace flash_core {

namespace {

void expect(bool holds, const char* what, size_t found, size_t expected) {
  if (holds) return;
  throw std::invalid_argument(std::string(what) + " has " + std::to_string(found) + " values; " +
                              std::to_string(expected) + " were expected");
}

void expect_none_or(View<const float> values, const char* what, size_t expected) {
  expect(values.size == 0 || values.size == expected, what, values.size, expected);
}

void expect_shape(size_t rows, size_t columns, const char* what, Matrix<const float> like) {
  if (rows == like.rows && columns == like.columns) return;
  throw std::invalid_argument(std::string(what) + " is [" + std::to_string(rows) + ", " +
                              std::to_string(columns) + "]; [" + std::to_string(like.rows) + ", " +
                              std::to_string(like.columns) + "] was expected");
}

// In double and in lanes: squares of any float fit, and what is left of the sum's order is fixed.
template <class Term>
double sum(size_t count, const Term& term) {
  std::array<double, 8> sums = {};
  size_t i = 0;
  for (; i + sums.size() <= count; i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += term(i + lane);
  }
  for (size_t lane = 0; i < count; ++i, ++lane) sums[lane] += term(i);
  double all = 0;
  for (const double lane : sums) all += lane;
  return all;
}

// 1 / sqrt(the mean of squares of what is left of x without its offset).
float inverse_deviation(const float* x, size_t count, double offset, double eps) {
  const double squares = sum(count, [&](size_t i) {
    const double rest = static_cast<double>(x[i]) - offset;
    return rest * rest;
  });
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(count) + eps));
}

void times(const float* factors, size_t count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] *= factors[i];
}

void turn(const float* cos, const float* sin, size_t pairs, float* head) {
  float* const other = head + pairs;
  for (size_t i = 0; i < pairs; ++i) {
    const float first = head[i];
    const float second = other[i];
    head[i] = first * cos[i] - second * sin[i];
    other[i] = second * cos[i] + first * sin[i];
  }
}

// The shares of the normal distribution that are below values: its density at each, times a
// polynomial of 1 / (1 + 0.4 |x|), which is fitted by least squares of the share's error (below
// 3e-9 without rounding).
inline void normal_shares(float* values, size_t count) {
  constexpr size_t kAtOnce = 256;
  std::array<float, kAtOnce> powers;
  for (size_t first = 0; first < count; first += kAtOnce) {
    float* const x = values + first;
    const size_t end = std::min(kAtOnce, count - first);
    for (size_t i = 0; i < end; ++i) powers[i] = -0.5F * x[i] * x[i];
    exponentials(powers.data(), end);
    for (size_t i = 0; i < end; ++i) {
      const float near = 1.0F / (1.0F + 0.4F * std::fabs(x[i]));
      float beyond = -0.0241925066F * near + 0.179385271F;
      beyond = beyond * near - 0.519498896F;
      beyond = beyond * near + 0.652505806F;
      beyond = beyond * near - 0.205663021F;
      beyond = beyond * near + 0.279363377F;
      beyond = beyond * near + 0.136125574F;
      beyond = beyond * near + 0.00197439888F;
      beyond *= powers[i];
      const float below = 1.0F - beyond;
      x[i] = x[i] < 0 ? beyond : below;
    }
  }
}

constexpr size_t kGatesAtOnce = 256;

FLASH_WIDE void gelu_of(const float* x, size_t count, bool exact, float* out) {
  std::array<float, kGatesAtOnce> shares;
  if (exact) {
    std::copy_n(x, count, shares.data());
    normal_shares(shares.data(), count);
  } else {
    constexpr float kTwiceRootOfTwoByPi = 1.59576912F;
    for (size_t i = 0; i < count; ++i) {
      shares[i] = (0.044715F * x[i] * x[i] * x[i] + x[i]) * kTwiceRootOfTwoByPi;
    }
    sigmoids(shares.data(), count);
  }
  for (size_t i = 0; i < count; ++i) out[i] = shares[i] * x[i];
}

FLASH_WIDE void gate_row(const GateRows& task, const float* gate, const float* up, size_t count,
                         float* out) {
  const float limit = task.limit;
  std::array<float, kGatesAtOnce> shares;
  for (size_t i = 0; i < count; ++i) {
    out[i] = limit != 0 && gate[i] > limit ? limit : gate[i];
    shares[i] = task.slope * out[i];
  }
  sigmoids(shares.data(), count);
  times(shares.data(), count, out);
  if (up == nullptr) return;
  for (size_t i = 0; i < count; ++i) {
    const float most = limit != 0 && up[i] > limit ? limit : up[i];
    const float within = limit != 0 && most < -limit ? -limit : most;
    out[i] *= within + task.up_offset;
  }
}

}  // namespace

void check_norm(const NormRows& task) {
  expect_none_or(task.weight, "weight", task.x.columns);
  expect_none_or(task.bias, "bias", task.x.columns);
  expect_shape(task.out.rows, task.out.columns, "out", task.x);
}

void norm_rows(const NormRows& task, size_t first, size_t end) {
  const size_t columns = task.x.columns;
  for (size_t row = first; row < end; ++row) {
    const float* const x = task.x.row(row);
    float* const out = task.out.row(row);
    double mean = 0;
    if (task.centred) {
      mean = sum(columns, [&](size_t i) { return static_cast<double>(x[i]); });
      mean /= static_cast<double>(columns);
    }
    const float inverse = inverse_deviation(x, columns, mean, task.eps);
    const auto offset = static_cast<float>(mean);
    for (size_t i = 0; i < columns; ++i) out[i] = (x[i] - offset) * inverse;
    if (task.weight.size != 0) times(task.weight.data, columns, out);
    if (task.bias.size == 0) continue;
    for (size_t i = 0; i < columns; ++i) out[i] += task.bias.data[i];
  }
}

void check_place(const PlaceHeads& task) {
  if (task.columns < 1) {
    throw std::invalid_argument("columns is " + std::to_string(task.columns));
  }
  const auto columns = static_cast<size_t>(task.columns);
  if (task.x.columns % columns != 0) {
    throw std::invalid_argument("x has rows of " + std::to_string(task.x.columns) +
                                " values; whole heads of " + std::to_string(columns) +
                                " were expected");
  }
  expect_none_or(task.weight, "weight", columns);
  expect_shape(task.sin.rows, task.sin.columns, "sin", task.cos);
  expect(task.cos.rows == 0 || task.cos.rows == task.x.rows, "a column of cos", task.cos.rows,
         task.x.rows);
  if (task.cos.columns > columns / 2) {
    throw std::invalid_argument("cos has " + std::to_string(task.cos.columns) +
                                " pairs; a head has " + std::to_string(columns / 2));
  }
  expect(task.out.size == task.x.rows * task.x.columns, "out", task.out.size,
         task.x.rows * task.x.columns);
}

void place_heads(const PlaceHeads& task, size_t first_token, size_t end_token) {
  const auto columns = static_cast<size_t>(task.columns);
  const size_t heads = task.x.columns / columns;
  for (size_t token = first_token; token < end_token; ++token) {
    for (size_t head = 0; head < heads; ++head) {
      const float* const from = task.x.row(token) + head * columns;
      float* const to = task.out.data + (head * task.x.rows + token) * columns;
      if (task.weight.size != 0) {
        const float inverse = inverse_deviation(from, columns, 0, task.eps);
        for (size_t i = 0; i < columns; ++i) to[i] = from[i] * inverse;
        times(task.weight.data, columns, to);
      } else {
        std::copy_n(from, columns, to);
      }
      if (task.cos.rows != 0) {
        turn(task.cos.row(token), task.sin.row(token), task.cos.columns, to);
      }
    }
  }
}

void gate_rows(const GateRows& task) {
  const size_t columns = task.out.columns;
  for (size_t row = 0; row < task.out.rows; ++row) {
    const float* const gate = task.gate + static_cast<int64_t>(row) * task.gate_apart;
    const float* const up =
        task.up == nullptr ? nullptr : task.up + static_cast<int64_t>(row) * task.up_apart;
    for (size_t first = 0; first < columns; first += kGatesAtOnce) {
      const size_t count = std::min(kGatesAtOnce, columns - first);
      gate_row(task, gate + first, up == nullptr ? nullptr : up + first, count,
               task.out.row(row) + first);
    }
  }
}

void gelu(const Gelu& task) {
  expect(task.out.size == task.x.size, "out", task.out.size, task.x.size);
  for (size_t first = 0; first < task.x.size; first += kGatesAtOnce) {
    const size_t count = std::min(kGatesAtOnce, task.x.size - first);
    gelu_of(task.x.data + first, count, task.exact, task.out.data + first);
  }
}

void check_add(const AddShares& task) {
  expect(task.weights.size == task.rows.rows, "weights", task.weights.size, task.rows.rows);
  expect(task.ids.size == task.rows.rows, "ids", task.ids.size, task.rows.rows);
  expect(task.out.columns == task.rows.columns, "a row of out", task.out.columns,
         task.rows.columns);
  for (size_t i = 0; i < task.ids.size; ++i) {
    const int32_t id = task.ids.data[i];
    if (id < 0 || static_cast<size_t>(id) >= task.out.rows) {
      throw std::out_of_range("id " + std::to_string(id) + " of " + std::to_string(task.out.rows) +
                              " rows");
    }
  }
}

void add_shares(const AddShares& task, size_t first_column, size_t end_column) {
  for (size_t i = 0; i < task.rows.rows; ++i) {
    const float weight = task.weights.data[i];
    const float* const from = task.rows.row(i);
    float* const to = task.out.row(static_cast<size_t>(task.ids.data[i]));
    for (size_t c = first_column; c < end_column; ++c) to[c] += weight * from[c];
  }
}

}  // namespace flash_core
