#include "kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "checked.h"

namespace flash_core {

namespace {

constexpr int kMaxThreads = 1024;
constexpr size_t kColumnUnit = 64;          // columns are divided between threads in these
constexpr size_t kBytesPerThread = 262144;  // less is not worth waking another thread

const KernelTable& choose(const char* isa) {
  if (isa == nullptr) isa = std::getenv("FLASHLLM_ISA");
  return find_kernels(isa == nullptr ? "" : isa);
}

void check_equal(const char* what, size_t count, size_t ids) {
  if (count != ids) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(count) +
                                " values for " + std::to_string(ids) + " ids");
  }
}

Checked row_bytes(DType dtype, size_t columns) {
  if (columns == 0) throw std::invalid_argument("a row has no columns");
  return Checked(columns) * Checked(item_bytes(dtype));
}

void check_ids(const Rows& rows, View<const int32_t> ids, size_t columns) {
  const Checked bytes = row_bytes(rows.dtype, columns);
  if (rows.stride < 1 || rows.offset < 0) {
    throw std::invalid_argument("row_stride is " + std::to_string(rows.stride) +
                                " and row_offset " + std::to_string(rows.offset));
  }
  const Checked stride(static_cast<uint64_t>(rows.stride));
  const Checked tail = Checked(static_cast<uint64_t>(rows.offset)) + bytes;
  for (size_t i = 0; i < ids.size; ++i) {
    const Checked end = Checked::from_signed(ids.data[i], "id") * stride + tail;
    if (end > Checked(rows.bytes.size)) {
      throw std::out_of_range("id " + std::to_string(ids.data[i]) + ": its row ends at byte " +
                              std::to_string(end.get()) + ", outside " +
                              std::to_string(rows.bytes.size) + " bytes");
    }
  }
}

void check_block_ends(View<const int32_t> block_ends, size_t count) {
  int64_t previous = 0;
  for (size_t b = 0; b < block_ends.size; ++b) {
    if (block_ends.data[b] < previous) throw std::invalid_argument("block_ends must not fall");
    previous = block_ends.data[b];
  }
  if (static_cast<uint64_t>(previous) != count) {
    throw std::invalid_argument("block_ends must rise to the number of ids, " +
                                std::to_string(count));
  }
}

const uint8_t* row_at(const Rows& rows, int32_t id) {
  return rows.bytes.data + static_cast<uint64_t>(id) * static_cast<uint64_t>(rows.stride) +
         static_cast<uint64_t>(rows.offset);
}

// The first of `count` things that part `part` of `parts` has.
size_t part_begin(size_t count, int part, int parts) {
  return count / static_cast<size_t>(parts) * static_cast<size_t>(part) +
         std::min(count % static_cast<size_t>(parts), static_cast<size_t>(part));
}

// Rows to be added at once; while they are, those of the next group are fetched.
struct Group {
  std::array<const uint8_t*, kRowsPerAdd> starts = {};
  std::array<float, kRowsPerAdd> weights = {};
  size_t count = 0;

  void append(const uint8_t* start, float weight) {
    starts[count] = start;
    weights[count] = weight;
    ++count;
  }
};

struct Columns {
  float* sum;  // [last - first]
  size_t first;
  size_t last;
};

// Adds the rows of one block, those of weight 0 apart, in the order of their ids.
void add_block(const KernelTable& table, const Rows& rows, View<const int32_t> ids,
               const float* weights, const Columns& columns) {
  const AddFunction add_one = table.add_one[static_cast<size_t>(rows.dtype)];
  const AddFunction add_four = table.add_four[static_cast<size_t>(rows.dtype)];
  const size_t width = columns.last - columns.first;
  const size_t skip = columns.first * item_bytes(rows.dtype);
  Group pending;
  Group incoming;
  for (size_t i = 0; i < ids.size; ++i) {
    if (weights[i] == 0.0F) continue;
    incoming.append(row_at(rows, ids.data[i]) + skip, weights[i]);
    if (incoming.count < kRowsPerAdd) continue;
    if (pending.count > 0) {
      add_four(pending.starts.data(), incoming.starts.data(), pending.weights.data(), columns.sum,
               width);
    }
    pending = incoming;
    incoming.count = 0;
  }
  if (pending.count > 0) {
    add_four(pending.starts.data(), incoming.starts.data(), pending.weights.data(), columns.sum,
             width);
  }
  for (size_t r = 0; r < incoming.count; ++r) {
    const uint8_t* const* next = &incoming.starts[std::min(r + 1, incoming.count - 1)];
    add_one(&incoming.starts[r], next, &incoming.weights[r], columns.sum, width);
  }
}

}  // namespace

Kernels::Kernels(int threads, const char* isa) : table_(choose(isa)), threads_(threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; expected 1 to " +
                                std::to_string(kMaxThreads));
  }
  pool_ = std::make_unique<ComputePool>(threads);
  partials_.resize(static_cast<size_t>(threads));
}

std::unique_lock<std::mutex> Kernels::enter() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!pool_) throw std::invalid_argument("the kernels are closed");
  return lock;
}

void Kernels::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  pool_.reset();
}

int Kernels::parts_for(size_t bytes) const {
  const size_t worth = std::max<size_t>(bytes / kBytesPerThread, 1);
  return static_cast<int>(std::min(worth, static_cast<size_t>(threads_)));
}

void Kernels::matvec(View<const uint8_t> rows, DType dtype, View<const float> x, View<float> out) {
  const auto lock = enter();
  const Checked bytes = row_bytes(dtype, x.size);
  if (bytes * Checked(out.size) != Checked(rows.size)) {
    throw std::invalid_argument("rows has " + std::to_string(rows.size) + " bytes; " +
                                std::to_string(out.size) + " rows of " +
                                std::to_string(bytes.get()) + " were expected");
  }
  const DotFunction dot = table_.dot[static_cast<size_t>(dtype)];
  const size_t stride = bytes.get();
  const int parts = parts_for(rows.size);
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(out.size, part + 1, parts);
    for (size_t i = part_begin(out.size, part, parts); i < end; ++i) {
      const uint8_t* row = rows.data + i * stride;
      out.data[i] = dot(row, i + 1 < end ? row + stride : row, x.data, x.size);
    }
  });
}

void Kernels::dot_rows(const Rows& rows, View<const int32_t> ids, View<const float> x,
                       View<float> out) {
  const auto lock = enter();
  check_equal("out", out.size, ids.size);
  check_ids(rows, ids, x.size);
  const DotFunction dot = table_.dot[static_cast<size_t>(rows.dtype)];
  const size_t bytes = x.size * item_bytes(rows.dtype);
  const int parts = parts_for(ids.size * bytes);
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(ids.size, part + 1, parts);
    for (size_t i = part_begin(ids.size, part, parts); i < end; ++i) {
      const uint8_t* next = row_at(rows, ids.data[std::min(i + 1, end - 1)]);
      out.data[i] = dot(row_at(rows, ids.data[i]), next, x.data, x.size);
    }
  });
}

void Kernels::weighted_sum_rows(const Rows& rows, View<const int32_t> ids,
                                View<const float> weights, View<const int32_t> block_ends,
                                View<float> out) {
  const auto lock = enter();
  check_equal("weights", weights.size, ids.size);
  check_ids(rows, ids, out.size);
  check_block_ends(block_ends, ids.size);
  const size_t item = item_bytes(rows.dtype);
  const size_t units = (out.size + kColumnUnit - 1) / kColumnUnit;
  const int parts =
      static_cast<int>(std::min(units, static_cast<size_t>(parts_for(ids.size * out.size * item))));
  for (std::vector<float>& partial : partials_) partial.resize(std::max(partial.size(), out.size));
  pool_->run(parts, [&](int part) {
    const size_t first = part_begin(units, part, parts) * kColumnUnit;
    const size_t last = std::min(part_begin(units, part + 1, parts) * kColumnUnit, out.size);
    float* partial = partials_[static_cast<size_t>(part)].data();
    size_t begin = 0;
    for (size_t b = 0; b < block_ends.size; ++b) {
      const auto end = static_cast<size_t>(block_ends.data[b]);
      std::fill_n(partial, last - first, 0.0F);
      add_block(table_, rows, {ids.data + begin, end - begin}, weights.data + begin,
                {partial, first, last});
      for (size_t c = first; c < last; ++c) out.data[c] += partial[c - first];
      begin = end;
    }
  });
}

void Kernels::attend(const Attend& task) {
  const auto lock = enter();
  const AttendSizes sizes = check_attend(task);
  // For all positions that there are room for, so that a growing context moves nothing.
  const size_t most = sizes.heads * sizes.capacity;
  if (scores_.size() < most) scores_.resize(most);
  const size_t bytes = 2 * sizes.kv_heads * sizes.seen() * sizes.row_bytes;
  const int parts =
      static_cast<int>(std::min(sizes.heads, static_cast<size_t>(parts_for(bytes))));
  pool_->run(parts, [&](int part) {
    attend_heads(table_, task, sizes, part_begin(sizes.heads, part, parts),
                 part_begin(sizes.heads, part + 1, parts), scores_.data());
  });
}

}  // namespace flash_core
