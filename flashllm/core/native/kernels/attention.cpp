#include "attention.h"

#include "attention_tiles.h"
#include "attention_together.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "checked.h"
#include "exponentials.h"
#include "row_dots.h"

namespace flash_core {

namespace {

constexpr float kF16End = 65520;  // what is as large or larger is rounded to an infinity

size_t positive(int64_t value, const char* name) {
  if (value < 1) throw std::invalid_argument(std::string(name) + " is " + std::to_string(value));
  return static_cast<size_t>(value);
}

// Rows that a layer has room for in each head.
size_t capacity_of(const HeadRows& rows, size_t bytes, size_t row_bytes, const char* name) {
  const Checked one = Checked(row_bytes) * Checked(positive(rows.kv_heads, "kv_heads"));
  if (bytes % one.get() != 0) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(bytes) +
                                " bytes; whole rows of " + std::to_string(row_bytes) + " for " +
                                std::to_string(rows.kv_heads) + " heads were expected");
  }
  return bytes / one.get();
}

size_t whole_units(size_t columns) {
  return (columns + kColumnUnit - 1) / kColumnUnit * kColumnUnit;
}

size_t head_row_bytes(const HeadRows& rows) {
  return row_bytes(rows.dtype, positive(rows.columns, "columns")).get();
}

}  // namespace

FLASH_WIDE void softmax(float* scores, size_t count, const float* sink) {
  float most = sink != nullptr ? *sink : scores[0];
  for (size_t i = 0; i < count; ++i) most = scores[i] > most ? scores[i] : most;
  for (size_t i = 0; i < count; ++i) scores[i] -= most;
  exponentials(scores, count);
  std::array<float, 16> sums = {};
  size_t i = 0;
  for (; i + sums.size() <= count; i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += scores[i + lane];
  }
  for (size_t lane = 0; i < count; ++i, ++lane) sums[lane] += scores[i];
  float sum = 0;
  for (const float lane : sums) sum += lane;
  if (sink != nullptr) {
    float dropped = *sink - most;
    exponentials(&dropped, 1);
    sum += dropped;
  }
  const float inverse = 1.0F / sum;
  for (size_t k = 0; k < count; ++k) scores[k] *= inverse;
}

namespace {

// Rows of a head of keys that are seen.
SeenRows seen_by(const Attention& task, size_t kv_head) {
  return task.seen.end != 0 ? task.seen : SeenRows{0, task.runs.rows(kv_head)};
}

// Query heads that share one head of keys and values, and what they are computed in.
struct Group {
  const KernelTable& table;
  const Attention& task;
  SeenRows seen;
  size_t kv_head;
  size_t first_head;
  size_t last_head;
  HeadRoom room;

  float* scores_of(size_t head) const {
    return room.scores + (head - first_head) * task.sizes.capacity;
  }
  RunCursor cursor(RowKind kind) const { return cursor_of(kv_head, kind); }

  // What is read after the keys, and after the values: behind the last key come the values, behind
  // them the keys of the next head.
  RowsAhead ahead(RowKind kind) const {
    if (kind == RowKind::keys) {
      return {cursor(kind), seen.end, cursor(RowKind::values), seen.first, seen.end};
    }
    if (kv_head + 1 == task.sizes.kv_heads) {
      return {cursor(kind), seen.end, cursor(kind), seen.end - 1, seen.end};
    }
    const SeenRows later = seen_by(task, kv_head + 1);
    return {cursor(kind), seen.end, cursor_of(kv_head + 1, RowKind::keys), later.first, later.end};
  }

 private:
  RunCursor cursor_of(size_t head, RowKind kind) const {
    return {task.runs.of(head), kind, task.sizes.row_bytes};
  }
};

// Sums and dots of groups take so long that memory keeps up by itself, and asking it from afar
// holds them up.
bool asks_far_ahead(DType dtype) { return !is_grouped(dtype); }

void score(const Group& group) {
  const SeenRows seen = group.seen;
  for (size_t head = group.first_head; head < group.last_head; ++head) {
    HeadQuery* const query = group.room.queries + head - group.first_head;
    const float* const values = group.task.query + head * group.task.sizes.columns;
    query->input = query->rounded.prepare(group.task.dtype, values, group.task.sizes.columns);
  }
  const DotFunction dot = group.table.dot[static_cast<size_t>(group.task.dtype)];
  const bool far = asks_far_ahead(group.task.dtype);
  const size_t row_bytes = group.task.sizes.row_bytes;
  const size_t ahead = rows_ahead(row_bytes, kRowsPerDot);
  RunCursor cursor = group.cursor(RowKind::keys);
  RowsAhead after = group.ahead(RowKind::keys);
  TileRows tile;
  for (size_t begin = seen.first; begin < seen.end; begin += kAttendTile) {
    const size_t end = std::min(begin + kAttendTile, seen.end);
    tile.fill(&cursor, begin, end, end - 1);
    if (far) after.fill(begin + ahead, end - begin);
    for (size_t head = group.first_head; head < group.last_head; ++head) {
      float* const scores = group.scores_of(head) + begin - seen.first;
      const auto row = [&](size_t i) { return tile.row(begin + i); };
      const RowRange all = {0, end - begin, row_bytes};
      const DotInput& query = group.room.queries[head - group.first_head].input;
      if (far) {
        const auto later = [&](size_t i) { return after.row(i - ahead); };
        dot_each(dot, all, row, later, &query, {scores, 1, all.end});
      } else {
        dot_each(dot, all, row, query, scores);
      }
    }
  }
}

// Each tile's values are summed apart and then added.
void mix(const Group& group) {
  const SeenRows seen = group.seen;
  const size_t columns = group.task.sizes.columns;
  const AddFunction add = group.table.add[static_cast<size_t>(group.task.dtype)];
  const bool far = asks_far_ahead(group.task.dtype);
  const size_t ahead = rows_ahead(group.task.sizes.row_bytes, kRowsPerAdd);
  RunCursor cursor = group.cursor(RowKind::values);
  RowsAhead after = group.ahead(RowKind::values);
  TileRows tile;
  for (size_t begin = seen.first; begin < seen.end; begin += kAttendTile) {
    const size_t end = std::min(begin + kAttendTile, seen.end);
    tile.fill(&cursor, begin, end, seen.end - 1);
    if (far) after.fill(begin + ahead, end - begin);
    const auto later = [&](size_t at) {
      return far ? after.row(at - begin) : tile.row(std::min(at + kRowsPerAdd, seen.end - 1));
    };
    for (size_t head = group.first_head; head < group.last_head; ++head) {
      const float* const weights = group.scores_of(head);
      add_tile(
          add, [&](size_t at) { return tile.row(at); }, later,
          [&](size_t at) { return weights[at - seen.first]; }, begin, end, columns,
          group.room.partial, group.task.out + head * columns);
    }
  }
}

// From scores to weights, in place.
void weigh(const Group& group) {
  const Attention& task = group.task;
  for (size_t head = group.first_head; head < group.last_head; ++head) {
    float* const scores = group.scores_of(head);
    for (size_t i = 0; i < group.seen.count(); ++i) scores[i] *= task.scale;
    softmax(scores, group.seen.count(), sink_of(task.sinks, head));
  }
}

void attend_group(const Group& group) {
  const Attention& task = group.task;
  const size_t columns = task.sizes.columns;
  const size_t heads = group.last_head - group.first_head;
  float* const out = task.out + group.first_head * columns;
  std::fill_n(out, heads * columns, 0.0F);
  if (!Together::gains(group.table, task.dtype, heads, group.seen.count())) {
    score(group);
    weigh(group);
    mix(group);
    return;
  }
  TogetherScratch* const scratch = together_scratch();
  scratch->queries.clear();
  for (size_t head = group.first_head; head < group.last_head; ++head) {
    scratch->queries.push_back(task.query + head * columns);
  }
  scratch->seen.assign(heads, group.seen.count());
  const Together together(group.table, task.dtype, task.sizes, task.runs.of(group.kv_head),
                          group.seen.first, scratch);
  together.score(group.room.scores, task.sizes.capacity);
  weigh(group);
  together.mix(group.room.scores, task.sizes.capacity, {out, heads, columns});
}

// Heads of one token, whose query, out and sinks fit to them.
AttendSizes check_heads(const AttendSizes& rows, View<const float> query, size_t out,
                        View<const float> sinks) {
  AttendSizes sizes = rows;
  const size_t shared = (Checked(sizes.columns) * Checked(sizes.kv_heads)).get();
  if (query.size == 0 || query.size % shared != 0 || out != query.size) {
    throw std::invalid_argument("query has " + std::to_string(query.size) + " values and out " +
                                std::to_string(out) + "; a multiple of " + std::to_string(shared) +
                                " was expected of both");
  }
  sizes.heads = query.size / sizes.columns;
  if (sinks.size != 0 && sinks.size != sizes.heads) {
    throw std::invalid_argument("sinks has " + std::to_string(sinks.size) + " values for " +
                                std::to_string(sizes.heads) + " heads");
  }
  return sizes;
}

}  // namespace

AttendSizes check_attend(const Attend& task, HeadRuns* runs) {
  AttendSizes sizes = {};
  sizes.row_bytes = head_row_bytes(task.rows);
  sizes.columns = static_cast<size_t>(task.rows.columns);
  sizes.capacity = capacity_of(task.rows, task.keys.size, sizes.row_bytes, "keys");
  sizes.kv_heads = static_cast<size_t>(task.rows.kv_heads);
  if (task.values.size != task.keys.size) {
    throw std::invalid_argument("values has " + std::to_string(task.values.size) +
                                " bytes, and keys has " + std::to_string(task.keys.size));
  }
  sizes = check_heads(sizes, task.query, task.out.size, task.sinks);
  if (task.seen.first < 0 || task.seen.end <= task.seen.first ||
      static_cast<uint64_t>(task.seen.end) > sizes.capacity) {
    throw std::out_of_range("positions " + std::to_string(task.seen.first) + " to " +
                            std::to_string(task.seen.end) + " of " +
                            std::to_string(sizes.capacity));
  }
  runs->assign_layer(task.keys.data, task.values.data, sizes.kv_heads, sizes.capacity,
                     sizes.row_bytes);
  return sizes;
}

AttendSizes check_attend_runs(const AttendRuns& task, HeadRuns* runs) {
  constexpr size_t kPositionsAtOnce = 1024;  // a growing context moves scores once in so many
  AttendSizes sizes = {};
  const auto kv_heads = static_cast<int64_t>(task.run_ends.size);
  sizes.row_bytes = head_row_bytes({task.dtype, task.columns, kv_heads});
  sizes.columns = static_cast<size_t>(task.columns);
  sizes.kv_heads = positive(kv_heads, "kv_heads");
  sizes = check_heads(sizes, task.query, task.out.size, task.sinks);
  runs->assign(task.keys, task.values, task.runs, task.run_ends, sizes.row_bytes);
  sizes.capacity = Checked(runs->rows_max()).round_up(kPositionsAtOnce).get();
  return sizes;
}

void AttendScratch::make_room(size_t heads, const AttendSizes& sizes) {
  // For all positions that there is room for, so that a growing context moves nothing.
  const size_t most = (Checked(heads) * Checked(sizes.capacity)).get();
  if (scores.size() < most) {
    std::vector<float>().swap(scores);  // never the former and the new ones at once
    scores.resize(most);
  }
  partials.resize(std::max(partials.size(), heads * whole_units(sizes.columns)));
  if (queries.size() < heads) queries.resize(heads);
}

HeadRoom AttendScratch::from(size_t head, const AttendSizes& sizes) {
  return {scores.data() + head * sizes.capacity,
          partials.data() + head * whole_units(sizes.columns), queries.data() + head};
}

void attend_heads(const KernelTable& table, const Attention& task, size_t first_head,
                  size_t last_head, const HeadRoom& room) {
  const AttendSizes& sizes = task.sizes;
  for (size_t head = first_head; head < last_head;) {
    const size_t kv_head = head / sizes.sharing();
    const size_t end = std::min(last_head, (kv_head + 1) * sizes.sharing());
    const size_t number = head - first_head;
    attend_group({table,
                  task,
                  seen_by(task, kv_head),
                  kv_head,
                  head,
                  end,
                  {room.scores + number * sizes.capacity, room.partial, room.queries + number}});
    head = end;
  }
}

WriteSizes check_write(const HeadRows& rows, View<const float> values, int64_t position,
                       View<uint8_t> cache) {
  WriteSizes sizes = {};
  sizes.row_bytes = head_row_bytes(rows);
  sizes.capacity = capacity_of(rows, cache.size, sizes.row_bytes, "cache");
  sizes.columns = static_cast<size_t>(rows.columns);
  sizes.kv_heads = static_cast<size_t>(rows.kv_heads);
  if (values.size % (Checked(sizes.columns) * Checked(sizes.kv_heads)).get() != 0) {
    throw std::invalid_argument("values has " + std::to_string(values.size) +
                                " values; whole rows for every head were expected");
  }
  sizes.tokens = values.size / sizes.columns / sizes.kv_heads;
  if (Checked::from_signed(position, "position") + Checked(sizes.tokens) >
      Checked(sizes.capacity)) {
    throw std::out_of_range(std::to_string(sizes.tokens) + " rows from " +
                            std::to_string(position) + " on are beyond " +
                            std::to_string(sizes.capacity));
  }
  return sizes;
}

size_t write_rows(const KernelTable& table, DType dtype, const float* values, size_t count,
                  size_t columns, uint8_t* to) {
  const EncodeFunction encode = table.encode[static_cast<size_t>(dtype)];
  const size_t stride = row_bytes(dtype, columns).get();
  for (size_t i = 0; i < count; ++i, values += columns, to += stride) {
    if (!encode(values, columns, to)) return i;
    if (dtype != DType::f16) continue;
    float largest = 0;
    for (size_t c = 0; c < columns; ++c) largest = std::max(largest, std::fabs(values[c]));
    if (largest >= kF16End) return i;
  }
  return count;
}

size_t encoding_work(DType dtype, size_t values) {
  // 0.3 ns a value were measured in f32 and bf16, 1.7 in f16 and mxfp4, 1.1 in int8 and 5.5 in
  // int4, which tries seven scales, where memory gives 25 GB/s.
  switch (dtype) {
    case DType::int4:
      return 128 * values;
    case DType::int8:
      return 24 * values;
    case DType::f16:
    case DType::mxfp4:
      return 40 * values;
    default:
      return 8 * values;
  }
}

void refuse_row(DType dtype, const float* values, size_t columns) {
  float largest = 0;
  for (size_t c = 0; c < columns; ++c) {
    if (!std::isfinite(values[c])) throw std::invalid_argument("a value is no finite number");
    if (std::fabs(values[c]) > std::fabs(largest)) largest = values[c];
  }
  throw std::overflow_error(std::to_string(largest) + " is too large for " + dtype_name(dtype));
}

}  // namespace flash_core
