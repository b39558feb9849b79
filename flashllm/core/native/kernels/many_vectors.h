// What products of the same rows with many vectors are made of; inside kernels/ only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "checked.h"
#include "kernel_table.h"
#include "kernels.h"

namespace flash_core {

// Packed rows of a thread: what the second-level cache has room for.
constexpr size_t kPanelBytes = 192 << 10;

inline size_t ceil_div(size_t count, size_t by) { return (count + by - 1) / by; }

// Memory that a thread keeps until it ends.
class LineScratch {
 public:
  uint8_t* room(size_t nbytes) {
    lines_.resize(std::max(lines_.size(), ceil_div(nbytes, sizeof(CacheLine))));
    return lines_.data()->bytes;
  }

 private:
  std::vector<CacheLine> lines_;
};

// Memory of this thread for its panel or its decoded rows.
inline uint8_t* scratch(size_t nbytes) {
  static thread_local LineScratch lines;
  return lines.room(nbytes);
}

inline void check_vectors(const char* what, size_t count, const char* result, size_t vectors) {
  if (count != vectors) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(count) + " rows and " +
                                result + " " + std::to_string(vectors) + ": one a vector");
  }
}

inline void check_matrix(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                         Matrix<float> out) {
  check_vectors("x", x.rows, "out", out.rows);
  const Checked bytes = row_bytes(dtype, x.columns);
  if (bytes * Checked(out.columns) == Checked(rows.size)) return;
  throw std::invalid_argument("rows has " + std::to_string(rows.size) + " bytes; " +
                              std::to_string(out.columns) + " rows of " +
                              std::to_string(bytes.get()) + " were expected");
}

// Rows of a panel that are whole tiles, or fewer where there are no more.
inline size_t panel_rows(const ProductKernel& kernel, size_t tile_bytes) {
  const size_t most = std::max(kPanelRows / kernel.rows, size_t{1});
  return std::min(std::max(kPanelBytes / tile_bytes, size_t{1}), most) * kernel.rows;
}

// What a block's rows weigh for each vector, without those that weigh nothing.
struct BlockLists {
  std::vector<uint32_t> rows;
  std::vector<float> weights;
  std::vector<size_t> counts;

  explicit BlockLists(size_t vectors) { make_room(vectors); }

  // For so many at least.
  void make_room(size_t vectors) {
    if (vectors <= counts.size()) return;
    rows.resize(vectors * kBlockRows);
    weights.resize(vectors * kBlockRows);
    counts.resize(vectors);
  }

  // Of vector `v`, the `n` rows from the first on.
  void fill_one(const SumKernel& kernel, size_t v, const float* from, size_t n) {
    uint32_t* const at = rows.data() + v * kBlockRows;
    float* const to = weights.data() + v * kBlockRows;
    size_t count = 0;
    for (uint64_t bits = kernel.nonzero(from, n); bits != 0; bits &= bits - 1) {
      const auto r = static_cast<uint32_t>(__builtin_ctzll(bits));
      at[count] = r;
      to[count++] = from[r];
    }
    counts[v] = count;
  }

  // Of rows number `first` to `end`.
  void fill(const SumKernel& kernel, Matrix<const float> all, size_t first, size_t end) {
    for (size_t v = 0; v < all.rows; ++v) fill_one(kernel, v, all.row(v) + first, end - first);
  }
};

// Columns first to last of a block of float rows, decoded a stretch at a time for all vectors; out
// is that of column 0. `decoded` has room for kDecodedColumns of each row.
inline void sum_decoded(const KernelTable& table, DType dtype,
                        const std::array<const uint8_t*, kBlockRows>& rows, size_t count,
                        const BlockLists& lists, const ColumnRange& range, float* decoded,
                        Matrix<float> out) {
  const size_t item = item_bytes(dtype);
  for (size_t c = range.first; c < range.last; c += kDecodedColumns) {
    const size_t columns = std::min(kDecodedColumns, range.last - c);
    std::array<const uint8_t*, kBlockRows> from;
    for (size_t r = 0; r < count; ++r) from[r] = rows[r] + c * item;
    table.sums.decode[static_cast<size_t>(dtype)](from.data(), count, columns, decoded);
    const BlockSums block = {
        decoded, count, lists.rows.data(), lists.weights.data(), lists.counts.data(), out.rows};
    table.sums.sum(block, columns, out.data + c, out.columns);
  }
}

}  // namespace flash_core
