// Weighted sums of the same rows for many vectors. The order of summation is that of a vector by
// itself, so the bits are.
#include <algorithm>
#include <vector>

#include "caches.h"
#include "kernels.h"
#include "many_vectors.h"
#include "parts.h"
#include "row_groups.h"

namespace flash_core {

namespace {

// For fewer vectors a row is read from the caches for each of them.
constexpr size_t kVectorsDecoded = 12;
constexpr size_t kVectorsUnpacked = 3;
// Columns that every set takes whole, of groups and of floats.
constexpr size_t kWideColumns = 512;
// Sums that stay in a core's cache while all blocks of rows pass by, at least so many bytes.
constexpr size_t kNearSumBytes = 256 << 10;

size_t vectors_near() {
  return std::max(core_cache_bytes() / 4, kNearSumBytes) / sizeof(float) / kWideColumns;
}

// The vectors that weigh each row of a block, as a GroupedBlock has them.
struct WholeVectors {
  std::vector<const float*> weights;
  std::vector<float*> out;

  // Takes those that have no weight of 0; calls rest(v) for the others.
  template <class Rest>
  void take(Matrix<const float> all, size_t first, size_t count, Matrix<float> to,
            const Rest& rest) {
    weights.clear();
    out.clear();
    for (size_t v = 0; v < all.rows; ++v) {
      const float* const of_block = all.row(v) + first;
      if (std::find(of_block, of_block + count, 0.0F) == of_block + count) {
        weights.push_back(of_block);
        out.push_back(to.row(v));
      } else {
        rest(v);
      }
    }
  }
};

// Weighted sums of the same rows for some vectors over some of their columns, on one thread.
class SumsOfMany {
 public:
  SumsOfMany(const KernelTable& table, const Rows& rows, View<const int32_t> ids,
             View<const int32_t> block_ends, float* partial)
      : table_(table),
        add_(table.add[static_cast<size_t>(rows.dtype)]),
        rows_(rows),
        ids_(ids),
        block_ends_(block_ends),
        partial_(partial) {}

  void add(Matrix<const float> weights, const ColumnRange& range, Matrix<float> out) {
    const auto sum_grouped = table_.grouped_sums[static_cast<size_t>(rows_.dtype)];
    const bool unpacked = sum_grouped != nullptr && out.rows >= kVectorsUnpacked;
    const bool decoded =
        !is_grouped(rows_.dtype) && table_.sums.sum != nullptr && out.rows >= kVectorsDecoded;
    BlockLists lists(decoded ? out.rows : 0);
    for (size_t b = 0; b < block_ends_.size; ++b) {
      const size_t first = run_begin(block_ends_, b);
      const size_t count = run_begin(block_ends_, b + 1) - first;
      if (count == 0) continue;
      const auto alone = [&](size_t v) {
        const Groups groups(rows_, ids_, weights.row(v), {block_ends_.data + b, 1}, first);
        add_groups(add_, groups, range, partial_ + range.first, out.row(v));
      };
      if (!(unpacked || decoded) || count > kBlockRows) {
        for (size_t v = 0; v < out.rows; ++v) alone(v);
        continue;
      }
      std::array<const uint8_t*, kBlockRows> from;
      for (size_t r = 0; r < count; ++r) from[r] = row_at(rows_, ids_.data[first + r]);
      if (unpacked) {
        whole_.take(weights, first, count, out, alone);
        const GroupedBlock block = {from.data(), count, whole_.weights.data(), whole_.out.data(),
                                    whole_.out.size()};
        if (block.vectors != 0) sum_grouped(block, range, scratch(kUnpackedBytes));
      } else {
        lists.fill(table_.sums, weights, first, first + count);
        auto* const values =
            reinterpret_cast<float*>(scratch(count * kDecodedColumns * sizeof(float)));
        sum_decoded(table_, rows_.dtype, from, count, lists, range, values, out);
      }
    }
  }

 private:
  const KernelTable& table_;
  AddFunction add_;
  const Rows& rows_;
  View<const int32_t> ids_;
  View<const int32_t> block_ends_;
  float* partial_;  // of column 0
  WholeVectors whole_;
};

}  // namespace

void Kernels::weighted_sum_rows_all(const Rows& rows, View<const int32_t> ids,
                                    Matrix<const float> weights, View<const int32_t> block_ends,
                                    Matrix<float> out) {
  const auto lock = enter();
  check_vectors("weights", weights.rows, "out", out.rows);
  check_equal("weights", weights.columns, ids.size);
  const size_t bytes = check_ids(rows, ids, out.columns);
  check_runs("block_ends", block_ends, ids.size);
  if (out.rows == 0) return;
  const auto threads = static_cast<size_t>(threads_);
  const size_t unit = out.columns >= threads * kWideColumns ? kWideColumns : kColumnUnit;
  const size_t units = ceil_div(out.columns, unit);
  const int parts =
      parts_for(ids.size * bytes * out.rows, std::min(units, kPartsPerThread * threads));
  partial_.resize(std::max(partial_.size(), units * unit));
  // The same rows pass by again for other vectors, and for other columns.
  const size_t near = vectors_near();
  const size_t vectors = std::min(out.rows, near);
  const size_t wide = near / vectors * kWideColumns;
  pool_->run(parts, [&](int part) {
    const size_t end = std::min(part_begin(units, part + 1, parts) * unit, out.columns);
    SumsOfMany sums(table_, rows, ids, block_ends, partial_.data());
    for (size_t c = part_begin(units, part, parts) * unit; c < end; c += wide) {
      for (size_t v = 0; v < out.rows; v += vectors) {
        const size_t count = std::min(vectors, out.rows - v);
        sums.add({weights.row(v), count, weights.columns},
                 {c, std::min(c + wide, end), out.columns}, {out.row(v), count, out.columns});
      }
    }
  });
}

}  // namespace flash_core
