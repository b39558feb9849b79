// A vector rounded to 14 bits by groups, or to 7, for products with rows of groups.
//
// Goal: integer instructions do the products, and give exact sums within a group, so that what
// weights lost by rounding is all that shows; with 7 bits half of the products, and as much as the
// weights' own 8 or 4 bits lose shows too. Memory is kept from call to call.
// Not a goal: encodings of which the vector is used as it is.
#pragma once

#include <vector>

#include "kernel_table.h"

namespace flash_core {

class QuantisedInput {
 public:
  explicit QuantisedInput(bool only_high = false) : only_high_(only_high) {}

  // What the dots of `dtype` take; it refers to `x` and to this object, until the next call.
  DotInput prepare(DType dtype, const float* x, size_t columns);

 private:
  bool only_high_;
  std::vector<int8_t> high_;
  std::vector<int8_t> low_;
  std::vector<int32_t> seeds_;
  std::vector<float> scales_;
};

}  // namespace flash_core
