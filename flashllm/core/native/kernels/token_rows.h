// Rows of tokens in f32, between the products: norms, heads, gates, sums of shares.
//
// Goals: the same bits on every instruction set, for every number of threads, and for a token
// alone or among others: plain loops, that compilers make vectors of. Not a goal: encodings.
#pragma once

#include <cstddef>
#include <cstdint>

#include "view.h"

namespace flash_core {

// out [rows, columns] = x, normed: divided by its root mean square, or after its mean is taken off
// by its standard deviation; then times `weight` and plus `bias`, [columns] or none.
struct NormRows {
  Matrix<const float> x;
  View<const float> weight;
  View<const float> bias;
  bool centred;
  double eps;
  Matrix<float> out;
};

void check_norm(const NormRows& task);
void norm_rows(const NormRows& task, size_t first, size_t end);

// out [heads, tokens, columns] = the heads of x [tokens, heads * columns], each normed by its root
// mean square and times `weight` [columns], or not; then with pairs from the two halves of their
// first columns turned by angles of which `cos` and `sin` [tokens, pairs] are given, or not.
struct PlaceHeads {
  Matrix<const float> x;
  int64_t columns;
  View<const float> weight;
  double eps;
  Matrix<const float> cos;
  Matrix<const float> sin;
  View<float> out;
};

void check_place(const PlaceHeads& task);
void place_heads(const PlaceHeads& task, size_t first_token, size_t end_token);

// out [rows, columns] = g * sigmoid(slope * g) * (u + up_offset), where g is what the gate gives
// and u what up does, or 1 without it. A limit that is not 0 is the most that g and u count, and
// minus it the least of u. Rows of gate and up may lie apart.
struct GateRows {
  const float* gate;
  int64_t gate_apart;
  const float* up;  // nullptr: none
  int64_t up_apart;
  float slope;
  float limit;
  float up_offset;
  Matrix<float> out;
};

void gate_rows(const GateRows& task);

// out [n] = x times the share of the normal distribution that is below it, within 2e-7; or, not
// exact, times the sigmoid of 2 * sqrt(2 / pi) * (x + 0.044715 x^3), which is near that. Source:
// Hendrycks and Gimpel, arXiv 1606.08415, section 2.
struct Gelu {
  View<const float> x;
  bool exact;
  View<float> out;
};

void gelu(const Gelu& task);

// Row ids[i] of `out` += weights[i] * row i of `rows`, in order of i.
struct AddShares {
  Matrix<const float> rows;
  View<const float> weights;
  View<const int32_t> ids;
  Matrix<float> out;
};

void check_add(const AddShares& task);
void add_shares(const AddShares& task, size_t first_column, size_t end_column);

}  // namespace flash_core
