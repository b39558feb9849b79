// Attention of a token of each of several contexts, and writing their rows.
//
// A part is some of the heads of some contexts, which a thread computes alone: for many contexts
// threads meet once, not once for each.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "checked.h"
#include "kernels.h"
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

AttendScratch* thread_scratch() {
  static thread_local AttendScratch scratch;
  return &scratch;
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
  std::vector<AttendSizes> sizes;
  size_t work = 0;
  for (size_t i = 0; i < contexts; ++i) {
    const Attend one = attend_of(task, i);
    sizes.push_back(check_attend(one, &attend_scratch_.runs));
    work += static_cast<size_t>(one.seen.end - one.seen.first) * sizes[i].row_bytes *
            sizes[i].heads * 2;
  }
  if (contexts == 0) return;
  // Heads of queries that share one of keys stay together.
  const size_t kv_heads = sizes[0].kv_heads;
  const size_t sharing = sizes[0].sharing();
  const size_t groups = (Checked(contexts) * Checked(kv_heads)).get();
  const int parts =
      parts_for(work, std::min(groups, kPartsPerThread * static_cast<size_t>(threads_)));
  pool_->run(parts, [&](int part) {
    AttendScratch* const scratch = thread_scratch();
    size_t group = part_begin(groups, part, parts);
    const size_t end = part_begin(groups, part + 1, parts);
    while (group < end) {
      const size_t i = group / kv_heads;
      const Attend one = attend_of(task, i);
      scratch->runs.assign_layer(one.keys.data, one.values.data, kv_heads, sizes[i].capacity,
                                 sizes[i].row_bytes);
      scratch->make_room(sharing, sizes[i]);
      const Attention attention = {
          task.rows.dtype, sizes[i],
          scratch->runs,   {static_cast<size_t>(one.seen.first), static_cast<size_t>(one.seen.end)},
          one.query.data,  task.scale,
          one.out.data,    task.sinks};
      for (; group < end && group / kv_heads == i; ++group) {
        const size_t head = group % kv_heads * sharing;
        attend_heads(table_, attention, head, head + sharing, scratch->from(0, sizes[i]));
      }
    }
  });
}

void Kernels::write_head_rows_each(const WriteEach& task) {
  const auto lock = enter();
  const size_t contexts = task.values.rows;
  check_count("positions", task.positions.size, contexts);
  check_count("caches", task.caches.size(), contexts);
  std::vector<WriteSizes> sizes;
  for (size_t i = 0; i < contexts; ++i) {
    sizes.push_back(check_write(task.rows, {task.values.row(i), task.values.columns},
                                task.positions.data[i], task.caches[i]));
    if (sizes[i].tokens == 1) continue;
    throw std::invalid_argument("values has " + std::to_string(sizes[i].tokens) +
                                " tokens of each context; one was expected");
  }
  if (contexts == 0) return;
  const size_t kv_heads = sizes[0].kv_heads;
  const size_t columns = sizes[0].columns;
  const size_t count = (Checked(contexts) * Checked(kv_heads)).get();
  const size_t most = kPartsPerThread * static_cast<size_t>(threads_);
  const int parts = parts_for(count * columns * sizeof(float), std::min(count, most));
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
