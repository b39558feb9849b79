// Rows within a stretch of bytes, named by ids that come from outside: what is checked of them.
//
// Goal: no byte outside the stretch is read whatever the ids are. Errors are those of Kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checked.h"
#include "dtype.h"
#include "view.h"

namespace flash_core {

// Row `id` begins at byte id * stride + offset.
struct Rows {
  View<const uint8_t> bytes;
  int64_t stride;
  int64_t offset;
  DType dtype;
};

void check_equal(const char* what, size_t count, size_t ids);

// Rows lie `stride` bytes apart and end `tail` bytes behind where they begin.
void check_ends(View<const int32_t> ids, int64_t stride, const Checked& tail, size_t size);

// What begins at these bytes and is as long lies within `size` bytes; out_of_range where not.
void check_begins(View<const int64_t> begins, const Checked& bytes, size_t size);

// Returns the bytes of a row.
size_t check_ids(const Rows& rows, View<const int32_t> ids, size_t columns);

// Ends of runs of ids, one after another, that are all of them.
void check_runs(const char* what, View<const int32_t> ends, size_t count);

// Columns of `size` values that are a vector for each of `vectors`.
size_t columns_of(const char* what, size_t size, size_t vectors);

// Where run number `run` begins.
inline size_t run_begin(View<const int32_t> ends, size_t run) {
  return run == 0 ? 0 : static_cast<size_t>(ends.data[run - 1]);
}

// Those of the runs that the ids from `begin` to `end` are cut into.
View<const int32_t> runs_within(View<const int32_t> ends, size_t begin, size_t end);

inline const uint8_t* row_at(const Rows& rows, int32_t id) {
  return rows.bytes.data + static_cast<uint64_t>(id) * static_cast<uint64_t>(rows.stride) +
         static_cast<uint64_t>(rows.offset);
}

}  // namespace flash_core
