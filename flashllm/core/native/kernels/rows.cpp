#include "rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace flash_core {

void check_equal(const char* what, size_t count, size_t ids) {
  if (count != ids) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(count) +
                                " values for " + std::to_string(ids) + " ids");
  }
}

void check_ends(View<const int32_t> ids, int64_t stride, const Checked& tail, size_t size) {
  for (size_t i = 0; i < ids.size; ++i) {
    const Checked begin =
        Checked::from_signed(ids.data[i], "id") * Checked(static_cast<uint64_t>(stride));
    const Checked end = begin + tail;
    if (end > Checked(size)) {
      throw std::out_of_range("id " + std::to_string(ids.data[i]) + ": its row ends at byte " +
                              std::to_string(end.get()) + ", outside " + std::to_string(size) +
                              " bytes");
    }
  }
}

void check_begins(View<const int64_t> begins, const Checked& bytes, size_t size) {
  for (size_t i = 0; i < begins.size; ++i) {
    if (Checked::from_signed(begins.data[i], "begin") + bytes <= Checked(size)) continue;
    throw std::out_of_range(std::to_string(bytes.get()) + " bytes from " +
                            std::to_string(begins.data[i]) + " on are beyond " +
                            std::to_string(size));
  }
}

size_t check_ids(const Rows& rows, View<const int32_t> ids, size_t columns) {
  const Checked bytes = row_bytes(rows.dtype, columns);
  if (rows.stride < 1 || rows.offset < 0) {
    throw std::invalid_argument("row_stride is " + std::to_string(rows.stride) +
                                " and row_offset " + std::to_string(rows.offset));
  }
  const Checked tail = Checked(static_cast<uint64_t>(rows.offset)) + bytes;
  check_ends(ids, rows.stride, tail, rows.bytes.size);
  return bytes.get();
}

void check_runs(const char* what, View<const int32_t> ends, size_t count) {
  int64_t previous = 0;
  for (size_t b = 0; b < ends.size; ++b) {
    if (ends.data[b] < previous) throw std::invalid_argument(std::string(what) + " must not fall");
    previous = ends.data[b];
  }
  if (static_cast<uint64_t>(previous) != count) {
    throw std::invalid_argument(std::string(what) + " must rise to the number of ids, " +
                                std::to_string(count));
  }
}

size_t columns_of(const char* what, size_t size, size_t vectors) {
  if (vectors == 0 || size % vectors != 0) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(size) +
                                " values for " + std::to_string(vectors) + " vectors");
  }
  return size / vectors;
}

View<const int32_t> runs_within(View<const int32_t> ends, size_t begin, size_t end) {
  const int32_t* all = ends.data;
  const int32_t* last = all + ends.size;
  const int32_t* first = std::upper_bound(all, last, static_cast<int32_t>(begin));
  const int32_t* behind = std::upper_bound(first, last, static_cast<int32_t>(end));
  const bool fits = begin == end || (behind > first && *(behind - 1) == static_cast<int32_t>(end));
  if (!fits) {
    throw std::invalid_argument("a block has rows of two vectors: none ends at id " +
                                std::to_string(end));
  }
  return {first, begin == end ? 0 : static_cast<size_t>(behind - first)};
}

}  // namespace flash_core
