// One instruction set's versions of the two inner loops, for every encoding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtype.h"

namespace flash_core {

// Sum of row[c] * x[c] over `columns`, in an order that depends on nothing but their number.
// `next` is the row that will be asked for after this one, or this one: it is fetched meanwhile.
using DotFunction = float (*)(const uint8_t* row, const uint8_t* next, const float* x,
                              size_t columns);

constexpr size_t kRowsPerAdd = 4;

// sum[c] += weights[0] * rows[0][c], then += weights[1] * rows[1][c], and so on: rows one after
// the other for each column, so that the bits are those of adding them one by one; and each
// column is computed alike wherever a range begins and ends, so that any split of the columns
// gives the same bits. Several at a time since the sum then goes through the cache less often.
// `next` are as many rows that will be added after these, or any others.
using AddFunction = void (*)(const uint8_t* const* rows, const uint8_t* const* next,
                             const float* weights, float* sum, size_t columns);

struct KernelTable {
  const char* name;
  std::array<DotFunction, kDTypes> dot;  // by DType
  std::array<AddFunction, kDTypes> add_one;
  std::array<AddFunction, kDTypes> add_four;  // kRowsPerAdd
};

const KernelTable& scalar_kernels();  // what the others are tested against
#if defined(__x86_64__)
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
#elif defined(__aarch64__)
const KernelTable& neon_kernels();
#endif

// Those that this processor runs, the best last; scalar is always there.
std::vector<const KernelTable*> available_kernels();

// The named one, or the best for "". invalid_argument naming those that there are.
const KernelTable& find_kernels(const char* name);

}  // namespace flash_core
