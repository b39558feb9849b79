// Attention of a token of each of several contexts, and writing their rows.
//
// A part is some of the heads of some contexts, which a thread computes alone: for many contexts
// threads meet once, not once for each. Scores have the memory of one context by itself, which is
// there before they begin.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "checked.h"
#include "kernels.h"
#include "many_vectors.h"
#include "parts.h"

namespace flash_core {

namespace {

void check_count(const char* name, size_t count, size_t contexts) {
  if (count == contexts) return;
  throw std::invalid_argument("there are " + std::to_string(count) + " " + name + " for " +
                              std::to_string(contexts) + " contexts");
}

// A context's task, as of Kernels::attend().
Attend attend_of(const AttendEach& task, size_t i) {
  const int64_t end = task.ends.data[i];
  const int64_t first = task.window != 0 && end > task.window ? end - task.window : 0;
  return {{task.query.row(i), task.query.columns},
          task.keys[i],
          task.values[i],
          task.rows,
          {first, end},
          task.scale,
          {task.out.row(i), task.out.columns},
          task.sinks};
}

// Heads that share one of keys, in pieces of up to so many.
struct Pieces {
  size_t sharing;
  size_t heads;  // of a piece
  size_t of_kv_head;
  size_t of_context;

  // Heads of keys that threads can share out go whole, since they are read once then.
  Pieces(const AttendSizes& sizes, size_t threads)
      : sharing(sizes.sharing()),
        heads(std::min(sharing, std::max(sizes.heads / threads, size_t{1}))),
        of_kv_head(ceil_div(sharing, heads)),
        of_context(sizes.kv_heads * of_kv_head) {}

  size_t first(size_t piece) const {
    return piece / of_kv_head * sharing + piece % of_kv_head * heads;
  }
  size_t end(size_t piece) const {
    return std::min(first(piece) + heads, (piece / of_kv_head + 1) * sharing);
  }
};

// Rows are of one token each; what is wrong with the heads themselves is found with the caches.
void check_width(const WriteEach& task) {
  if (task.rows.columns < 1 || task.rows.kv_heads < 1) return;
  const size_t width = (Checked(static_cast<size_t>(task.rows.columns)) *
                        Checked(static_cast<size_t>(task.rows.kv_heads)))
                           .get();
  if (task.values.columns == width) return;
  throw std::invalid_argument("values has rows of " + std::to_string(task.values.columns) +
                              "; a token of " + std::to_string(width) + " was expected");
}

// Where each context's rows go, of which no two may be in one place.
void check_distinct(const std::vector<View<uint8_t>>& caches) {
  std::vector<const uint8_t*> places;
  for (const View<uint8_t>& cache : caches) places.push_back(cache.data);
  std::sort(places.begin(), places.end());
  if (std::adjacent_find(places.begin(), places.end()) != places.end()) {
    throw std::invalid_argument("two contexts have the same cache");
  }
}

}  // namespace

void Kernels::attend_each(const AttendEach& task) {
  const auto lock = enter();
  const size_t contexts = task.query.rows;
  check_count("keys", task.keys.size(), contexts);
  check_count("values", task.values.size(), contexts);
  check_count("ends", task.ends.size, contexts);
  check_count("rows of out", task.out.rows, contexts);
  if (task.window < 0) {
    throw std::invalid_argument("window is " + std::to_string(task.window));
  }
  if (contexts == 0) return;
  if (runs_of_each_.size() < contexts) runs_of_each_.resize(contexts);
  std::vector<Attention> each;
  AttendSizes largest = {};
  size_t work = 0;
  for (size_t i = 0; i < contexts; ++i) {
    const Attend one = attend_of(task, i);
    const AttendSizes sizes = check_attend(one, &runs_of_each_[i]);
    const SeenRows seen = {static_cast<size_t>(one.seen.first), static_cast<size_t>(one.seen.end)};
    each.push_back({task.rows.dtype, sizes, runs_of_each_[i], seen, one.query.data, task.scale,
                    one.out.data, task.sinks});
    work += 2 * seen.count() * sizes.row_bytes * sizes.heads;
    if (sizes.capacity >= largest.capacity) largest = sizes;
  }
  const auto threads = static_cast<size_t>(threads_);
  const Pieces pieces(largest, threads);
  attend_scratch_.make_room(largest.heads, largest);
  const size_t count = (Checked(contexts) * Checked(pieces.of_context)).get();
  // Each part has room for the heads of a piece.
  const size_t rooms = std::max(largest.heads / pieces.heads, size_t{1});
  const int parts = parts_for(work, std::min({count, rooms, kPartsPerThread * threads}));
  pool_->run(parts, [&](int part) {
    const HeadRoom room = attend_scratch_.from(static_cast<size_t>(part) * pieces.heads, largest);
    const size_t end = part_begin(count, part + 1, parts);
    for (size_t at = part_begin(count, part, parts); at < end; ++at) {
      const size_t piece = at % pieces.of_context;
      attend_heads(table_, each[at / pieces.of_context], pieces.first(piece), pieces.end(piece),
                   room);
    }
  });
}

void Kernels::write_head_rows_each(const WriteEach& task) {
  const auto lock = enter();
  const size_t contexts = task.values.rows;
  check_count("positions", task.positions.size, contexts);
  check_count("caches", task.caches.size(), contexts);
  if (contexts == 0) return;
  check_distinct(task.caches);
  check_width(task);
  std::vector<WriteSizes> sizes;
  for (size_t i = 0; i < contexts; ++i) {
    sizes.push_back(check_write(task.rows, {task.values.row(i), task.values.columns},
                                task.positions.data[i], task.caches[i]));
  }
  const size_t kv_heads = sizes[0].kv_heads;
  const size_t columns = sizes[0].columns;
  const size_t count = (Checked(contexts) * Checked(kv_heads)).get();
  const size_t most = kPartsPerThread * static_cast<size_t>(threads_);
  const int parts =
      parts_for(encoding_work(task.rows.dtype, count * columns), std::min(count, most));
  std::vector<const float*> refused(static_cast<size_t>(parts), nullptr);
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(count, part + 1, parts);
    for (size_t at = part_begin(count, part, parts); at < end; ++at) {
      const size_t i = at / kv_heads;
      const size_t row =
          at % kv_heads * sizes[i].capacity + static_cast<size_t>(task.positions.data[i]);
      const float* const from = task.values.data + at * columns;
      uint8_t* const to = task.caches[i].data + row * sizes[i].row_bytes;
      if (write_rows(table_, task.rows.dtype, from, 1, columns, to) == 1) continue;
      refused[static_cast<size_t>(part)] = from;
      return;
    }
  });
  for (const float* row : refused) {
    if (row != nullptr) refuse_row(task.rows.dtype, row, columns);
  }
}

}  // namespace flash_core
