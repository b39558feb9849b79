// One instruction set's versions of the inner loops, for every encoding.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtype.h"

// Whether the compiler and the assembler know it (CMakeLists.txt).
#ifndef FLASH_HAS_AVXVNNI
#define FLASH_HAS_AVXVNNI 0
#endif

namespace flash_core {

struct alignas(64) CacheLine {
  uint8_t bytes[64];
};

// The vector of a product. For groups it is rounded to whole numbers too, so that sums within a
// group are exact, the same on every instruction set (quantised_input.h).
struct DotInput {
  const float* values;  // [columns]
  size_t columns;
  // Number i of a group is 128 * high + low, both from -64 to 63. Where weights have four bits, as
  // these lie: the first halves of all groups, and `half_stride` numbers later the second halves.
  const int8_t* high;
  const int8_t* low;
  // Minus the sum of the numbers that meet in one 32-bit lane: what 128, added to the weights
  // times byte_unit() to make them unsigned, adds to a 128th of the dot.
  const int32_t* seeds;
  const float* scales;  // of each group, divided by byte_unit()
  size_t half_stride;
  bool only_high;  // all low halves are 0: products may leave them out
};

// Groups that a DotInput is filled up to, with zeros.
constexpr size_t kInputGroups = 16;

constexpr size_t kRowsPerDot = 4;

// Rows to be multiplied by one vector, and as many that will be after these, or any others: those
// are fetched meanwhile.
struct DotRows {
  std::array<const uint8_t*, kRowsPerDot> rows;
  std::array<const uint8_t*, kRowsPerDot> next;
  size_t count;
};

// out[r] = sum of rows[r][c] * x[c], in an order that depends on nothing but the number of columns,
// so that the bits are those of the row by itself.
using DotFunction = void (*)(const DotRows& rows, const DotInput& x, float* out);

constexpr size_t kRowsPerAdd = 8;
constexpr size_t kColumnUnit = 64;  // columns are divided between threads in these

// Rows of one block to be added at once; `next` are as many that will be added after these, or any
// others.
struct AddRows {
  std::array<const uint8_t*, kRowsPerAdd> rows;
  std::array<const uint8_t*, kRowsPerAdd> next;
  std::array<float, kRowsPerAdd> weights;
  size_t count;
  bool begins;  // the block: its sum is zero so far
  bool ends;
};

// Columns first to last of rows of `count`; first is a multiple of kColumnUnit, and so is last
// where it is not `count`.
struct ColumnRange {
  size_t first;
  size_t last;
  size_t count;
};

// partial[c - first] += weights[0] * rows[0][c], then += weights[1] * rows[1][c], and so on, rows
// one after the other for each column; of groups, += the sum over all the rows with their weights
// times scales rounded together (rounding.h), which is exact but for that. Each column is
// computed alike wherever a range begins and ends, so that any split of the columns gives the same
// bits. Where the block ends, out[c] += the sum instead. `partial` has room for
// whole units of columns.
using AddFunction = void (*)(const AddRows& rows, const ColumnRange& columns, float* partial,
                             float* out);

// Products of several rows with several vectors (tiles.h), in tiles of the instruction set's own
// size. A panel has a tile, or several of at most kPanelRows rows.
constexpr size_t kPanelRows = 24;
constexpr size_t kMostPanelRows = 32;

struct PanelRows {
  std::array<const uint8_t*, kMostPanelRows> rows;
  size_t count;
};

// Packed tiles of so many rows.
struct TilePanel {
  const uint8_t* packed;
  size_t rows;
};

// A packed tile of vectors, of which `count` are there.
struct TileVectors {
  const uint8_t* packed;
  size_t count;
  size_t columns;
  bool only_high;  // as DotInput says
  // Is fetched meanwhile into the second-level cache, a line in every second step: more at once
  // wait for one another.
  const uint8_t* ahead;
};

// At most so many vectors are multiplied with rows as they lie, one after the other.
constexpr size_t kMostByDots = 4;

// Tiles that are multiplied by turns where they come from memory: from one place alone it gives
// less than from several.
constexpr size_t kTilesApart = 4;

// A packed tile has steps(columns) pieces of each of its rows, or vectors. Rows that are not there,
// and vectors, hold anything.
struct ProductKernel {
  size_t rows;  // of a tile; 0 where a vector is taken after the other, by the dots
  size_t vectors;
  size_t row_piece_bytes;
  size_t vector_piece_bytes;
  size_t by_dots;    // so many vectors, or fewer, are faster with rows as they lie
  bool keeps_bytes;  // a packed tile has its rows' bytes in another order
  size_t (*steps)(size_t columns);
  void (*pack_rows)(const PanelRows& rows, size_t columns, uint8_t* to);
  // Row number `row` of a packed tile as it was; only where that keeps bytes.
  void (*unpack_row)(const uint8_t* tile, size_t row, size_t columns, uint8_t* to);
  // As number `member` of a tile of which `members` are there.
  void (*pack_vector)(const DotInput& x, size_t member, size_t members, uint8_t* to);
  // out[v * out_stride + r] has the bits of the dot of row r of the panel with vector v.
  void (*multiply)(const TilePanel& panel, const TileVectors& x, float* out, size_t out_stride);
  // The same of whole tiles in several places with one vector; only where a tile keeps bytes.
  void (*multiply_apart)(const std::array<const uint8_t*, kTilesApart>& tiles, const TileVectors& x,
                         const std::array<float*, kTilesApart>& out);
};

// Weighted sums of the decoded rows of a block, at most so many, for several vectors.
constexpr size_t kBlockRows = 64;
constexpr size_t kDecodedColumns = 256;  // of a row at once: whole units of every width

struct BlockSums {
  const float* values;  // as decode() left them
  size_t count;         // rows
  // Of each vector `counts` rows and weights, those of weight 0 apart; kBlockRows from one vector's
  // to the next one's.
  const uint32_t* rows;
  const float* weights;
  const size_t* counts;
  size_t vectors;
};

struct SumKernel {
  // out[v * out_stride + c] += the sum of column c for vector v; null where a vector is taken after
  // the other.
  void (*sum)(const BlockSums& block, size_t columns, float* out, size_t out_stride);
  // `count` rows' first columns; by DType, of those whose values lie one by one.
  std::array<void (*)(const uint8_t* const* rows, size_t count, size_t columns, float* values), 3>
      decode;
  // Bit i is set where values[i] is not 0; of at most kBlockRows values.
  uint64_t (*nonzero)(const float* values, size_t count);
};

// What a thread has for a block of rows that are unpacked: columns that are taken at once.
constexpr size_t kUnpackedBytes = 64 << 10;

// A block of rows of groups, at most kBlockRows, for vectors that weigh each of them. A weight of 0
// counts among the eight that are rounded together: who leaves such rows out does not give them.
struct GroupedBlock {
  const uint8_t* const* rows;
  size_t count;
  const float* const* weights;  // of each vector
  float* const* out;            // of each vector, column 0
  size_t vectors;
};

// out[v][c] += the sum of column c for vector v, with the bits of AddFunction. `unpacked` has
// kUnpackedBytes.
using GroupedSumFunction = void (*)(const GroupedBlock& block, const ColumnRange& columns,
                                    uint8_t* unpacked);

// A row from finite values; false when no scale reaches one of them, or one is not finite.
using EncodeFunction = bool (*)(const float* values, size_t columns, uint8_t* row);
using DecodeFunction = void (*)(const uint8_t* row, size_t columns, float* values);

struct KernelTable {
  const char* name;
  std::array<DotFunction, kDTypes> dot;  // by DType
  std::array<AddFunction, kDTypes> add;
  std::array<ProductKernel, kDTypes> product;
  SumKernel sums;
  // By DType; null where a vector is taken after the other.
  std::array<GroupedSumFunction, kDTypes> grouped_sums;
  std::array<EncodeFunction, kDTypes> encode;
  std::array<DecodeFunction, kDTypes> decode;
};

const KernelTable& scalar_kernels();  // what the others are tested against
#if defined(__x86_64__)
const KernelTable& avx2_kernels();
#if FLASH_HAS_AVXVNNI
const KernelTable& avxvnni_kernels();
#endif
const KernelTable& avx512_kernels();
const KernelTable& avx512vnni_kernels();
#elif defined(__aarch64__)
const KernelTable& neon_kernels();
#endif

// Those that this processor runs, the best last; scalar is always there.
std::vector<const KernelTable*> available_kernels();

// The named one, or the best for "". invalid_argument naming those that there are.
const KernelTable& find_kernels(const char* name);

}  // namespace flash_core
