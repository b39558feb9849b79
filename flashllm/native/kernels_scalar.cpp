// The plain version: the oracle of the others, and what runs where there is none.
#include "kernel_table.h"

namespace flash_core {

namespace {

struct F32 {
  static float load(const uint8_t* row, size_t column) {
    float value = 0;
    std::memcpy(&value, row + column * 4, 4);
    return value;
  }
};

uint16_t load_half(const uint8_t* row, size_t column) {
  uint16_t half = 0;
  std::memcpy(&half, row + column * 2, 2);
  return half;
}

struct F16 {
  static float load(const uint8_t* row, size_t column) {
    return float_from_f16(load_half(row, column));
  }
};

struct BF16 {
  static float load(const uint8_t* row, size_t column) {
    return float_from_bf16(load_half(row, column));
  }
};

template <class Encoding>
float dot(const uint8_t* row, const uint8_t* /*next*/, const float* x, size_t columns) {
  float sum = 0;
  for (size_t c = 0; c < columns; ++c) sum += Encoding::load(row, c) * x[c];
  return sum;
}

template <class Encoding, size_t Rows>
void add(const uint8_t* const* rows, const uint8_t* const* /*next*/, const float* weights,
         float* sum, size_t columns) {
  for (size_t r = 0; r < Rows; ++r) {
    for (size_t c = 0; c < columns; ++c) sum[c] += weights[r] * Encoding::load(rows[r], c);
  }
}

}  // namespace

const KernelTable& scalar_kernels() {
  static const KernelTable table = {
      "scalar",
      {dot<F32>, dot<F16>, dot<BF16>},
      {add<F32, 1>, add<F16, 1>, add<BF16, 1>},
      {add<F32, kRowsPerAdd>, add<F16, kRowsPerAdd>, add<BF16, kRowsPerAdd>}};
  return table;
}

}  // namespace flash_core
