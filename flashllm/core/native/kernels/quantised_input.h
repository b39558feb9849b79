// A vector rounded to 14 bits by groups, for products with rows of groups.
//
// Goal: integer instructions do the products, and give exact sums within a group, so that what
// weights lost by rounding is all that shows. Memory is kept from call to call.
// Not a goal: encodings of which the vector is used as it is.
#pragma once

#include <vector>

#include "kernel_table.h"

namespace flash_core {

class QuantisedInput {
 public:
  // What the dots of `dtype` take; it refers to `x` and to this object, until the next call.
  DotInput prepare(DType dtype, const float* x, size_t columns);

 private:
  std::vector<int8_t> high_;
  std::vector<int8_t> low_;
  std::vector<int32_t> seeds_;
  std::vector<float> scales_;
};

}  // namespace flash_core
