// A weighted sum's rows, put together in groups that a kernel adds at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernel_table.h"
#include "rows.h"
#include "view.h"

namespace flash_core {

// The rows of a weighted sum, those of weight 0 apart, in groups that are added at once.
class Groups {
 public:
  // Of the ids from number `first` on.
  Groups(const Rows& rows, View<const int32_t> ids, const float* weights,
         View<const int32_t> block_ends, size_t first = 0)
      : rows_(rows), ids_(ids), weights_(weights), block_ends_(block_ends), at_(first) {}

  // False when there are no more.
  bool next(AddRows* group) {
    while (!left_in_block()) {
      if (block_ == block_ends_.size) return false;
      block_end_ = static_cast<size_t>(block_ends_.data[block_++]);
      begins_ = true;
    }
    group->begins = begins_;
    group->count = 0;
    begins_ = false;
    while (group->count < kRowsPerAdd && left_in_block()) {
      group->rows[group->count] = row_at(rows_, ids_.data[at_]);
      group->weights[group->count++] = weights_[at_++];
    }
    group->ends = !left_in_block();
    return true;
  }

 private:
  bool left_in_block() {
    while (at_ < block_end_ && weights_[at_] == 0.0F) ++at_;
    return at_ < block_end_;
  }

  const Rows& rows_;
  View<const int32_t> ids_;
  const float* weights_;
  View<const int32_t> block_ends_;
  size_t at_;
  size_t block_ = 0;
  size_t block_end_ = 0;
  bool begins_ = false;
};

// While a group is added, the rows of the one after it are fetched.
inline void add_groups(AddFunction add, Groups groups, const ColumnRange& columns, float* partial,
                       float* out) {
  AddRows pending = {};
  AddRows incoming = {};
  bool more = groups.next(&pending);
  while (more) {
    more = groups.next(&incoming);
    for (size_t r = 0; r < pending.count; ++r) {
      pending.next[r] = more ? incoming.rows[std::min(r, incoming.count - 1)] : pending.rows[r];
    }
    add(pending, columns, partial, out);
    pending = incoming;
  }
}

}  // namespace flash_core
