// The n-th least of some values, for orders that no processor can foresee.
#pragma once

#include <algorithm>
#include <cstddef>

namespace flash_core {

inline double median_of(double a, double b, double c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// Moves the values that belong to the front there; returns how many. Which way a value goes can
// not be predicted, so nothing branches on it.
template <class Belongs>
inline size_t move_to_front(double* values, size_t count, const Belongs& belongs) {
  size_t front = 0;
  for (size_t i = 0; i < count; ++i) {
    const double value = values[i];
    values[i] = values[front];
    values[front] = value;
    front += static_cast<size_t>(belongs(value));
  }
  return front;
}

// The value that would be at `at` if they were in order; they are moved about. Several times as
// fast as std::nth_element, which guesses at each comparison.
inline double nth_least(double* values, size_t count, size_t at) {
  constexpr size_t kFew = 32;
  constexpr int kRounds = 40;  // far more than it takes, unless the order is made to defy it
  for (int round = 0; count > kFew && round < kRounds; ++round) {
    const double pivot = median_of(values[0], values[count / 2], values[count - 1]);
    const size_t less =
        move_to_front(values, count, [pivot](double value) { return value < pivot; });
    if (at < less) {
      count = less;
      continue;
    }
    values += less;
    count -= less;
    at -= less;
    const size_t equal =
        move_to_front(values, count, [pivot](double value) { return value == pivot; });
    if (at < equal) return pivot;
    values += equal;
    count -= equal;
    at -= equal;
  }
  std::nth_element(values, values + at, values + count);
  return values[at];
}

}  // namespace flash_core
