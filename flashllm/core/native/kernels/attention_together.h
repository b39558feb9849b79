// Queries that share a head of keys and values, multiplied with them together; inside kernels/
// only.
//
// Scores are products of tiles (tiles.h), and values sums of decoded rows (tile_sums.h) or of
// groups: both have the order of a query by itself, so each has the bits that it has alone.
#pragma once

#include <cstddef>
#include <vector>

#include "attention.h"
#include "attention_runs.h"
#include "many_vectors.h"
#include "quantised_input.h"
#include "view.h"

namespace flash_core {

// Memory of a thread, kept until it ends.
struct TogetherScratch {
  std::vector<const float*> queries;  // [columns] each
  std::vector<size_t> seen;           // rows that each sees, ascending

  LineScratch packed;
  LineScratch panel;
  LineScratch decoded;
  LineScratch unpacked;
  std::vector<const float*> weights;
  std::vector<float*> out;
  std::vector<float> partial;
  QuantisedInput rounded;
  BlockLists lists{0};
};

TogetherScratch* together_scratch();  // of this thread

// The queries of a scratch, with the rows of a head from number `first` on.
class Together {
 public:
  Together(const KernelTable& table, DType dtype, const AttendSizes& sizes, const RowRun* runs,
           size_t first, TogetherScratch* scratch)
      : table_(table),
        dtype_(dtype),
        sizes_(sizes),
        runs_(runs),
        first_(first),
        scratch_(*scratch) {}

  // Whether an instruction set has tiles of an encoding.
  static bool can(const KernelTable& table, DType dtype) {
    return table.product[static_cast<size_t>(dtype)].rows != 0;
  }

  // Whether so many heads of a token that share keys are faster together than one by one, with so
  // many rows (docs/log/2026-11-29-heads-that-share-keys.md).
  static bool gains(const KernelTable& table, DType dtype, size_t heads, size_t rows);

  // In how many pieces each head of keys has its heads of queries taken by so many threads; 0
  // where they are one by one.
  static size_t pieces(const KernelTable& table, DType dtype, const AttendSizes& sizes,
                       size_t threads);

  // scores[v * stride + i]: query v times the key of row `first` + i, of all that any query sees.
  void score(float* scores, size_t stride) const;
  // Adds to sums [vectors, columns] the values of the rows that each query sees, times scores.
  void mix(const float* scores, size_t stride, Matrix<float> sums) const;

 private:
  size_t vectors() const { return scratch_.queries.size(); }
  size_t count() const { return scratch_.seen.back(); }
  RunCursor cursor(RowKind kind) const { return {runs_, kind, sizes_.row_bytes}; }
  void mix_decoded(const float* scores, size_t stride, Matrix<float> sums) const;
  void mix_grouped(const float* scores, size_t stride, Matrix<float> sums) const;

  const KernelTable& table_;
  DType dtype_;
  const AttendSizes& sizes_;
  const RowRun* runs_;
  size_t first_;
  TogetherScratch& scratch_;
};

}  // namespace flash_core
