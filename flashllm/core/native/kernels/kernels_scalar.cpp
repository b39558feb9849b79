// The plain version: the oracle of the others, and what runs where there is none.
#include <algorithm>

#include "kernel_table.h"
#include "mxfp4.h"
#include "rounding.h"

#define FLASH_TARGET

namespace flash_core {

namespace {

uint16_t load_half(const uint8_t* from) {
  uint16_t half = 0;
  std::memcpy(&half, from, sizeof(half));
  return half;
}

// Each gives the value of one column of a row.
struct F32 {
  static float load(const uint8_t* row, size_t column) {
    float value = 0;
    std::memcpy(&value, row + column * 4, 4);
    return value;
  }
};

struct F16 {
  static float load(const uint8_t* row, size_t column) {
    return float_from_f16(load_half(row + column * 2));
  }
};

struct BF16 {
  static float load(const uint8_t* row, size_t column) {
    return float_from_bf16(load_half(row + column * 2));
  }
};

template <class Encoding>
float scale_of(const uint8_t* row, size_t group, size_t groups) {
  constexpr DType dtype = Encoding::dtype;
  return Encoding::scale(row + groups * group_bytes(dtype) + group * scale_bytes(dtype));
}

struct Int8 {
  static constexpr DType dtype = DType::int8;
  static float scale(const uint8_t* from) { return float_from_f16(load_half(from)); }
  static int number(const uint8_t* row, size_t column) { return static_cast<int8_t>(row[column]); }
  static int input(const DotInput& x, size_t column) {
    return 128 * x.high[column] + x.low[column];
  }
};

// Four bits a number: which they are, and what they are multiplied with.
int code_of(const uint8_t* row, size_t column) {
  const int both = row[column / kGroup * (kGroup / 2) + column % (kGroup / 2)];
  return column % kGroup < kGroup / 2 ? both & 15 : both >> 4;
}

int input_of_code(const DotInput& x, size_t column) {
  const size_t half = column % kGroup < kGroup / 2 ? 0 : x.half_stride;
  const size_t at = half + column / kGroup * (kGroup / 2) + column % (kGroup / 2);
  return 128 * x.high[at] + x.low[at];
}

struct Int4 {
  static constexpr DType dtype = DType::int4;
  static float scale(const uint8_t* from) { return float_from_f16(load_half(from)); }
  static int number(const uint8_t* row, size_t column) { return code_of(row, column) - 8; }
  static int input(const DotInput& x, size_t column) { return input_of_code(x, column); }
};

struct Mxfp4 {
  static constexpr DType dtype = DType::mxfp4;
  static float scale(const uint8_t* from) { return mxfp4_scale(*from); }
  static int number(const uint8_t* row, size_t column) {
    return mxfp4_number(code_of(row, column));
  }
  static int input(const DotInput& x, size_t column) { return input_of_code(x, column); }
};

template <class Encoding>
float dot(const uint8_t* row, const DotInput& x) {
  float sum = 0;
  for (size_t c = 0; c < x.columns; ++c) sum += Encoding::load(row, c) * x.values[c];
  return sum;
}

template <class Encoding>
float dot_groups(const uint8_t* row, const DotInput& x) {
  constexpr int kUnit = byte_unit(Encoding::dtype);  // x.scales are divided by it
  const size_t groups = group_count(x.columns);
  float sum = 0;
  for (size_t g = 0; g < groups; ++g) {
    int32_t total = 0;
    for (size_t c = g * kGroup; c < (g + 1) * kGroup; ++c) {
      total += kUnit * Encoding::number(row, c) * Encoding::input(x, c);
    }
    sum += static_cast<float>(total) * (scale_of<Encoding>(row, g, groups) * x.scales[g]);
  }
  return sum;
}

template <float (*Dot)(const uint8_t* row, const DotInput& x)>
void each(const DotRows& rows, const DotInput& x, float* out) {
  for (size_t r = 0; r < rows.count; ++r) out[r] = Dot(rows.rows[r], x);
}

template <class Encoding>
void add(const AddRows& rows, const ColumnRange& columns, float* partial, float* out) {
  for (size_t c = columns.first; c < columns.last; ++c) {
    float* const sum = partial + (c - columns.first);
    if (rows.begins) *sum = 0;
    for (size_t r = 0; r < rows.count; ++r) {
      *sum += rows.weights[r] * Encoding::load(rows.rows[r], c);
    }
    if (rows.ends) out[c] += *sum;
  }
}

template <class Encoding>
void add_groups(const AddRows& rows, const ColumnRange& columns, float* partial, float* out) {
  const size_t groups = group_count(columns.count);
  float scale = 0;
  int32_t numbers[kRowsPerAdd];
  for (size_t c = columns.first; c < columns.last; ++c) {
    if (c % kGroup == 0) {
      float scaled[kRowsPerAdd];
      for (size_t r = 0; r < rows.count; ++r) {
        scaled[r] = rows.weights[r] * scale_of<Encoding>(rows.rows[r], c / kGroup, groups);
      }
      scale = round_together(scaled, rows.count, numbers);
    }
    int32_t total = 0;
    for (size_t r = 0; r < rows.count; ++r) {
      total += Encoding::number(rows.rows[r], c) * numbers[r];
    }
    float* const sum = partial + (c - columns.first);
    if (rows.begins) *sum = 0;
    *sum += static_cast<float>(total) * scale;
    if (rows.ends) out[c] += *sum;
  }
}

#include "encode_loops.h"

KernelTable make_table() {
  KernelTable table = {};
  table.name = "scalar";
  table.dot = {each<dot<F32>>,         each<dot<F16>>,         each<dot<BF16>>,
               each<dot_groups<Int8>>, each<dot_groups<Int4>>, each<dot_groups<Mxfp4>>};
  table.add = {add<F32>,         add<F16>,         add<BF16>,
               add_groups<Int8>, add_groups<Int4>, add_groups<Mxfp4>};
  set_encoding(&table);
  return table;
}

}  // namespace

const KernelTable& scalar_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace flash_core
