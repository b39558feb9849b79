#include "attention_runs.h"

#include <stdexcept>
#include <string>

#include "checked.h"
#include "rows.h"

namespace flash_core {

namespace {

// Where rows from byte `offset` on begin, of which none is outside.
const uint8_t* checked_rows(const char* name, View<const uint8_t> bytes, int64_t offset,
                            const Checked& length, size_t run) {
  const Checked begin = Checked::from_signed(offset, name);
  const Checked end = begin + length;
  if (end > Checked(bytes.size)) {
    throw std::out_of_range("run " + std::to_string(run) + ": its " + name + " end at byte " +
                            std::to_string(end.get()) + ", outside " + std::to_string(bytes.size) +
                            " bytes");
  }
  return bytes.data + begin.get();
}

}  // namespace

void HeadRuns::assign_layer(const uint8_t* keys, const uint8_t* values, size_t kv_heads,
                            size_t capacity, size_t row_bytes) {
  runs_.resize(kv_heads);
  first_.resize(kv_heads);
  rows_.assign(kv_heads, capacity);
  for (size_t head = 0; head < kv_heads; ++head) {
    const size_t begin = head * capacity * row_bytes;
    runs_[head] = {keys + begin, values + begin, capacity};
    first_[head] = head;
  }
}

void HeadRuns::assign(View<const uint8_t> keys, View<const uint8_t> values,
                      Matrix<const int64_t> runs, View<const int32_t> ends, size_t row_bytes) {
  if (runs.columns != 3) {
    throw std::invalid_argument("runs has rows of " + std::to_string(runs.columns) +
                                " numbers; expected 3");
  }
  check_runs("run_ends", ends, runs.rows);
  runs_.resize(runs.rows);
  first_.resize(ends.size);
  rows_.assign(ends.size, 0);
  for (size_t head = 0; head < ends.size; ++head) {
    first_[head] = run_begin(ends, head);
    Checked rows(0);
    for (size_t run = first_[head]; run < run_begin(ends, head + 1); ++run) {
      const int64_t* const told = runs.row(run);
      if (told[2] < 1) {
        throw std::invalid_argument("run " + std::to_string(run) + " has " +
                                    std::to_string(told[2]) + " rows");
      }
      const Checked count(static_cast<uint64_t>(told[2]));
      const Checked length = count * Checked(row_bytes);
      runs_[run] = {checked_rows("keys", keys, told[0], length, run),
                    checked_rows("values", values, told[1], length, run), count.get()};
      rows = rows + count;
    }
    if (rows == Checked(0)) {
      throw std::invalid_argument("head " + std::to_string(head) + " of keys has no rows");
    }
    rows_[head] = rows.get();
  }
}

}  // namespace flash_core
