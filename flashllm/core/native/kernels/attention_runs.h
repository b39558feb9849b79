// Where the rows of a head's positions lie: in runs, each of rows that follow one another.
//
// A layer in one piece is one run a head; keys and values in pages are one run a page. What is
// computed does not depend on where a run ends.
// Goal: no row outside the bytes, whatever the runs are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "attention_tiles.h"
#include "view.h"

namespace flash_core {

// Rows of keys, and of values, of positions that follow one another.
struct RowRun {
  const uint8_t* keys;
  const uint8_t* values;
  size_t rows;
};

enum class RowKind { keys, values };

// The row of a position; near ones are found fastest.
class RunCursor {
 public:
  RunCursor(const RowRun* first, RowKind kind, size_t row_bytes)
      : run_(first), kind_(kind), row_bytes_(row_bytes) {}

  const uint8_t* row(size_t position) {
    while (position < begin_) begin_ -= (--run_)->rows;
    while (position >= begin_ + run_->rows) begin_ += (run_++)->rows;
    const uint8_t* const rows = kind_ == RowKind::keys ? run_->keys : run_->values;
    return rows + (position - begin_) * row_bytes_;
  }

  // The rows of positions begin to end - 1, a run after the other.
  void rows(size_t begin, size_t end, const uint8_t** to) {
    for (size_t at = begin; at < end;) {
      const uint8_t* next = row(at);
      const size_t here = std::min(end, begin_ + run_->rows);
      for (; at < here; ++at, next += row_bytes_) *to++ = next;
    }
  }

 private:
  const RowRun* run_;
  RowKind kind_;
  size_t row_bytes_;
  size_t begin_ = 0;  // positions before the run
};

// The rows of a tile, found once for all heads that share them, and the first ones behind it.
class TileRows {
 public:
  // Positions begin to end - 1, at most a tile; none behind `last` is looked for.
  void fill(RunCursor* cursor, size_t begin, size_t end, size_t last) {
    begin_ = begin;
    cursor->rows(begin, std::min(end + kRowsPerAdd, last + 1), rows_.data());
  }
  const uint8_t* row(size_t position) const { return rows_[position - begin_]; }

 private:
  std::array<const uint8_t*, kAttendTile + kRowsPerAdd> rows_;
  size_t begin_ = 0;
};

// Rows that memory is asked for ahead of a tile's: behind the last one of a head come others.
class RowsAhead {
 public:
  // Positions of `now` up to end - 1, then those of `later` from `first` to `last` - 1.
  RowsAhead(const RunCursor& now, size_t end, const RunCursor& later, size_t first, size_t last)
      : now_(now), end_(end), later_(later), first_(first), last_(last) {}

  // Of `count` positions from `begin` on, at most a tile; the last row stands for all behind it.
  void fill(size_t begin, size_t count) {
    const size_t here = begin < end_ ? std::min(count, end_ - begin) : 0;
    if (here != 0) now_.rows(begin, begin + here, rows_.data());
    if (here == count) return;
    const size_t at = first_ + (begin + here - end_);
    const size_t there = at < last_ ? std::min(count - here, last_ - at) : 0;
    if (there != 0) later_.rows(at, at + there, rows_.data() + here);
    if (here + there == count) return;
    std::fill(rows_.begin() + static_cast<std::ptrdiff_t>(here + there),
              rows_.begin() + static_cast<std::ptrdiff_t>(count), later_.row(last_ - 1));
  }
  const uint8_t* row(size_t number) const { return rows_[number]; }

 private:
  RunCursor now_;
  size_t end_;
  RunCursor later_;
  size_t first_;
  size_t last_;
  std::array<const uint8_t*, kAttendTile> rows_;
};

// The runs of each head of keys, in ascending order of position.
class HeadRuns {
 public:
  // A layer in one piece: `capacity` rows of each head, one head after the other.
  void assign_layer(const uint8_t* keys, const uint8_t* values, size_t kv_heads, size_t capacity,
                    size_t row_bytes);

  // `runs` [count, 3]: the bytes where a run's rows of keys and of values begin, and its rows. Head
  // h has those from ends[h - 1] to ends[h]. invalid_argument for ends that do not fit the runs, a
  // head or a run without rows; out_of_range for rows outside the bytes.
  void assign(View<const uint8_t> keys, View<const uint8_t> values, Matrix<const int64_t> runs,
              View<const int32_t> ends, size_t row_bytes);

  size_t kv_heads() const { return rows_.size(); }
  const RowRun* of(size_t kv_head) const { return runs_.data() + first_[kv_head]; }
  size_t rows(size_t kv_head) const { return rows_[kv_head]; }
  size_t rows_max() const { return *std::max_element(rows_.begin(), rows_.end()); }
  size_t rows_of_all() const { return std::accumulate(rows_.begin(), rows_.end(), size_t{0}); }

 private:
  std::vector<RowRun> runs_;
  std::vector<size_t> first_;  // run of each head
  std::vector<size_t> rows_;   // of each head
};

}  // namespace flash_core
