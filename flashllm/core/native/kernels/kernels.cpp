#include "kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "attention_together.h"
#include "checked.h"
#include "many_vectors.h"
#include "parts.h"
#include "row_dots.h"
#include "row_groups.h"

namespace flash_core {

namespace {

constexpr int kMaxThreads = 1024;
constexpr size_t kBytesPerThread = 262144;  // less is not worth waking another thread
constexpr size_t kBytesPerPart = 65536;
constexpr size_t kRoundingCost = 8;  // bytes that it takes as long to read as to round a number

const KernelTable& choose(const char* isa) {
  if (isa == nullptr) isa = std::getenv("FLASHLLM_ISA");
  return find_kernels(isa == nullptr ? "" : isa);
}

}  // namespace

Kernels::Kernels(int threads, const char* isa, bool fast)
    : table_(choose(isa)),
      threads_(threads),
      fast_(fast),
      inputs_(kMostByDots, QuantisedInput(fast)) {
  if (threads < 1 || threads > kMaxThreads) {
    throw std::invalid_argument("threads is " + std::to_string(threads) + "; expected 1 to " +
                                std::to_string(kMaxThreads));
  }
  pool_ = std::make_unique<ComputePool>(threads);
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

int Kernels::parts_for(size_t bytes, size_t most) const {
  if (threads_ == 1 || bytes < 2 * kBytesPerThread) return 1;
  return static_cast<int>(std::min(bytes / kBytesPerPart, most));
}

int Kernels::parts_of_vectors(size_t bytes, size_t vectors) const {
  return parts_for(bytes, std::min(vectors, kPartsPerThread * static_cast<size_t>(threads_)));
}

const DotInput* Kernels::prepare_each(DType dtype, Matrix<const float> x, size_t stride) {
  if (inputs_.size() < x.rows) inputs_.resize(x.rows, QuantisedInput(fast_));
  prepared_.resize(std::max(prepared_.size(), x.rows));
  const int parts = parts_of_vectors(kRoundingCost * x.rows * x.columns, x.rows);
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(x.rows, part + 1, parts);
    for (size_t v = part_begin(x.rows, part, parts); v < end; ++v) {
      prepared_[v] = inputs_[v].prepare(dtype, x.data + v * stride, x.columns);
    }
  });
  return prepared_.data();
}

void Kernels::multiply_each(View<const uint8_t> bytes, View<const int64_t> begins, size_t offset,
                            DType dtype, Matrix<const float> x, size_t x_stride,
                            Matrix<float> out) {
  const size_t row = row_bytes(dtype, x.columns).get();
  const DotFunction dot = table_.dot[static_cast<size_t>(dtype)];
  const size_t rows = out.rows * out.columns;
  const int parts = parts_for(rows * row, kPartsPerThread * static_cast<size_t>(threads_));
  const bool one_for_all = x.rows == 1;
  const DotInput* const inputs = prepare_each(dtype, x, x_stride);
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(rows, part + 1, parts);
    for (size_t i = part_begin(rows, part, parts); i < end;) {
      const size_t number = i / out.columns;
      const size_t first = i % out.columns;
      const size_t last = std::min(out.columns, first + end - i);
      const DotInput& input = inputs[one_for_all ? 0 : number];
      const uint8_t* const matrix = bytes.data + begins.data[number] + offset;
      dot_apart(
          dot, {first, last, row}, [&](size_t r) { return matrix + r * row; }, input,
          out.row(number));
      i += last - first;
    }
  });
}

void Kernels::matvec_each(View<const uint8_t> bytes, View<const int64_t> begins, DType dtype,
                          Matrix<const float> x, Matrix<float> out) {
  const auto lock = enter();
  check_equal("out", out.rows, begins.size);
  if (x.rows != 1) check_equal("x", x.rows, begins.size);
  const Checked row = row_bytes(dtype, x.columns);
  check_begins(begins, row * Checked(out.columns), bytes.size);
  multiply_each(bytes, begins, 0, dtype, x, x.columns, out);
}

namespace {

// values [n] += floats that lie anywhere.
void add_bytes(const uint8_t* from, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) {
    float bias = 0;
    std::memcpy(&bias, from + i * sizeof(bias), sizeof(bias));
    values[i] += bias;
  }
}

}  // namespace

void Kernels::apply_experts(const Experts& task) {
  const auto lock = enter();
  check_equal("out", task.out.rows, task.begins.size);
  check_equal("room", task.room.rows, task.begins.size);
  if (task.x.rows != 1) check_equal("x", task.x.rows, task.begins.size);
  const size_t columns = task.x.columns;
  if (task.out.columns != columns || task.room.columns % 2 != 0) {
    throw std::invalid_argument("out has " + std::to_string(task.out.columns) +
                                " columns and room " + std::to_string(task.room.columns) +
                                "; as many as x, " + std::to_string(columns) +
                                ", and twice the neurons were expected");
  }
  if (task.weights.size != 0) {
    check_equal("weights", task.weights.size, task.begins.size);
    check_equal("total", task.total.size, columns);
  }
  const size_t neurons = task.room.columns / 2;
  const Checked gate_up = row_bytes(task.dtype, columns) * Checked(2 * neurons);
  const Checked down = row_bytes(task.dtype, neurons) * Checked(columns);
  const size_t biases = task.has_biases ? (2 * neurons + columns) * sizeof(float) : 0;
  check_begins(task.begins, gate_up + down + Checked(biases), task.bytes.size);
  const size_t biases_at = (gate_up + down).get();
  multiply_each(task.bytes, task.begins, 0, task.dtype, task.x, columns, task.room);
  const auto gate = [&](size_t i) {
    float* const both = task.room.row(i);
    if (task.has_biases) {
      add_bytes(task.bytes.data + task.begins.data[i] + biases_at, 2 * neurons, both);
    }
    flash_core::gate_rows({both, 0, both + neurons, 0, task.slope, task.limit, task.up_offset,
                           Matrix<float>{both, 1, neurons}});
  };
  const size_t experts = task.begins.size;
  const int parts = parts_of_vectors(experts * 2 * neurons * sizeof(float), experts);
  pool_->run(parts, [&](int part) {
    for (size_t i = part_begin(experts, part, parts); i < part_begin(experts, part + 1, parts);
         ++i) {
      gate(i);
    }
  });
  const Matrix<const float> hidden = {task.room.data, experts, neurons};
  multiply_each(task.bytes, task.begins, gate_up.get(), task.dtype, hidden, 2 * neurons, task.out);
  for (size_t i = 0; i < experts; ++i) {
    float* const out = task.out.row(i);
    if (task.has_biases) {
      const uint8_t* const from = task.bytes.data + task.begins.data[i] + biases_at;
      add_bytes(from + 2 * neurons * sizeof(float), columns, out);
    }
    if (task.weights.size == 0) continue;
    const float weight = task.weights.data[i];
    for (size_t c = 0; c < columns; ++c) task.total.data[c] += weight * out[c];
  }
}

size_t Kernels::route(const Route& task) {
  const auto lock = enter();
  const size_t row = row_bytes(task.dtype, task.x.size).get();
  const size_t experts = task.rows.size / row;
  scores_.resize(2 * experts);
  const Matrix<float> logits = {scores_.data(), 1, experts};
  const Matrix<float> weights = {scores_.data() + experts, 1, experts};
  const Matrix<const float> x = {task.x.data, 1, task.x.size};
  check_matrix(task.rows, task.dtype, x, logits);
  const size_t most = static_cast<size_t>(std::max<int64_t>(task.routing.per_token, 0));
  check_equal("ids", task.ids.size, most);
  check_equal("weights", task.weights.size, most);
  if (task.bias.size != 0) check_equal("bias", task.bias.size, experts);
  multiply_matrix(task.rows, task.dtype, x, logits, false);
  for (size_t i = 0; i < task.bias.size; ++i) logits.data[i] += task.bias.data[i];
  expert_weights({logits.data, 1, experts}, task.choice_bias, task.routing, weights);
  size_t count = 0;
  for (size_t i = 0; i < experts && count < most; ++i) {
    if (weights.data[i] == 0) continue;
    task.ids.data[count] = static_cast<int32_t>(i);
    task.weights.data[count++] = weights.data[i];
  }
  return count;
}

void Kernels::dot_rows(const Rows& rows, View<const int32_t> ids, View<const float> x,
                       View<float> out) {
  const auto lock = enter();
  check_equal("out", out.size, ids.size);
  const size_t bytes = check_ids(rows, ids, x.size);
  const DotFunction dot = table_.dot[static_cast<size_t>(rows.dtype)];
  const DotInput input = inputs_[0].prepare(rows.dtype, x.data, x.size);
  const int parts = parts_for(ids.size * bytes, kPartsPerThread * static_cast<size_t>(threads_));
  pool_->run(parts, [&](int part) {
    const size_t first = part_begin(ids.size, part, parts);
    const size_t end = part_begin(ids.size, part + 1, parts);
    const auto row = [&](size_t i) { return row_at(rows, ids.data[i]); };
    dot_apart(dot, {first, end, bytes}, row, input, out.data);
  });
}

void Kernels::weighted_sum_rows(const Rows& rows, View<const int32_t> ids,
                                View<const float> weights, View<const int32_t> block_ends,
                                View<float> out) {
  const auto lock = enter();
  check_equal("weights", weights.size, ids.size);
  const size_t bytes = check_ids(rows, ids, out.size);
  check_runs("block_ends", block_ends, ids.size);
  const AddFunction add = table_.add[static_cast<size_t>(rows.dtype)];
  const Groups groups(rows, ids, weights.data, block_ends);
  const size_t units = (out.size + kColumnUnit - 1) / kColumnUnit;
  // One range a thread: with two, half rows of which the memory is asked for at twice as many
  // places took 2 % longer in f16 and 8 % in int4.
  const int parts = parts_for(ids.size * bytes, std::min(units, static_cast<size_t>(threads_)));
  partial_.resize(std::max(partial_.size(), units * kColumnUnit));
  pool_->run(parts, [&](int part) {
    const size_t first = part_begin(units, part, parts) * kColumnUnit;
    const size_t last = std::min(part_begin(units, part + 1, parts) * kColumnUnit, out.size);
    add_groups(add, groups, {first, last, out.size}, partial_.data() + first, out.data);
  });
}

void Kernels::dot_rows_each(const Rows& rows, View<const int32_t> ids,
                            View<const int32_t> vector_ends, View<const float> x, View<float> out) {
  const auto lock = enter();
  check_equal("out", out.size, ids.size);
  const size_t columns = columns_of("x", x.size, vector_ends.size);
  const size_t bytes = check_ids(rows, ids, columns);
  check_runs("vector_ends", vector_ends, ids.size);
  const DotFunction dot = table_.dot[static_cast<size_t>(rows.dtype)];
  const int parts = parts_of_vectors(ids.size * bytes, vector_ends.size);
  pool_->run(parts, [&](int part) {
    QuantisedInput rounded(fast_);
    const size_t last = part_begin(vector_ends.size, part + 1, parts);
    for (size_t v = part_begin(vector_ends.size, part, parts); v < last; ++v) {
      const DotInput input = rounded.prepare(rows.dtype, x.data + v * columns, columns);
      const size_t first = run_begin(vector_ends, v);
      const size_t end = run_begin(vector_ends, v + 1);
      const auto row = [&](size_t i) { return row_at(rows, ids.data[i]); };
      dot_apart(dot, {first, end, bytes}, row, input, out.data);
    }
  });
}

void Kernels::weighted_sum_rows_each(const Rows& rows, View<const int32_t> ids,
                                     View<const float> weights, View<const int32_t> vector_ends,
                                     View<const int32_t> block_ends, View<float> out) {
  const auto lock = enter();
  check_equal("weights", weights.size, ids.size);
  const size_t columns = columns_of("out", out.size, vector_ends.size);
  const size_t bytes = check_ids(rows, ids, columns);
  check_runs("vector_ends", vector_ends, ids.size);
  check_runs("block_ends", block_ends, ids.size);
  std::vector<View<const int32_t>> blocks;
  for (size_t v = 0; v < vector_ends.size; ++v) {
    blocks.push_back(
        runs_within(block_ends, run_begin(vector_ends, v), run_begin(vector_ends, v + 1)));
  }
  const AddFunction add = table_.add[static_cast<size_t>(rows.dtype)];
  const size_t padded = (columns + kColumnUnit - 1) / kColumnUnit * kColumnUnit;
  const int parts = parts_of_vectors(ids.size * bytes, vector_ends.size);
  partial_.resize(std::max(partial_.size(), padded * static_cast<size_t>(parts)));
  pool_->run(parts, [&](int part) {
    float* partial = partial_.data() + padded * static_cast<size_t>(part);
    const size_t last = part_begin(vector_ends.size, part + 1, parts);
    for (size_t v = part_begin(vector_ends.size, part, parts); v < last; ++v) {
      const Groups groups(rows, ids, weights.data, blocks[v], run_begin(vector_ends, v));
      add_groups(add, groups, {0, columns, columns}, partial, out.data + v * columns);
    }
  });
}

void Kernels::encode_rows(View<const float> values, size_t columns, DType dtype,
                          View<uint8_t> out) {
  const auto lock = enter();
  const Checked bytes = row_bytes(dtype, columns);
  const size_t count = values.size / columns;
  if (values.size % columns != 0 || !(bytes * Checked(count) == Checked(out.size))) {
    throw std::invalid_argument("values has " + std::to_string(values.size) + " values and out " +
                                std::to_string(out.size) + " bytes; rows of " +
                                std::to_string(columns) + " columns and " +
                                std::to_string(bytes.get()) + " bytes were expected");
  }
  const EncodeFunction encode = table_.encode[static_cast<size_t>(dtype)];
  const size_t stride = bytes.get();
  const int parts =
      parts_for(values.size * sizeof(float), kPartsPerThread * static_cast<size_t>(threads_));
  std::vector<size_t> refused(static_cast<size_t>(parts), count);  // the first row, of each part
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(count, part + 1, parts);
    for (size_t i = part_begin(count, part, parts); i < end; ++i) {
      if (encode(values.data + i * columns, columns, out.data + i * stride)) continue;
      refused[static_cast<size_t>(part)] = i;
      break;
    }
  });
  const size_t first = *std::min_element(refused.begin(), refused.end());
  if (first < count) {
    throw std::invalid_argument("row " + std::to_string(first) + " has a value that " +
                                dtype_name(dtype) + " cannot hold: NaN, infinite or too large");
  }
}

template <class RowOf>
void Kernels::decode_each(DType dtype, const RowOf& row_of, View<const int32_t> ids, size_t columns,
                          View<float> out) {
  if (!(Checked(ids.size) * Checked(columns) == Checked(out.size))) {
    throw std::invalid_argument("out has " + std::to_string(out.size) + " values for " +
                                std::to_string(ids.size) + " ids of " + std::to_string(columns) +
                                " columns");
  }
  const DecodeFunction decode = table_.decode[static_cast<size_t>(dtype)];
  const int parts =
      parts_for(out.size * sizeof(float), kPartsPerThread * static_cast<size_t>(threads_));
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(ids.size, part + 1, parts);
    for (size_t i = part_begin(ids.size, part, parts); i < end; ++i) {
      decode(row_of(ids.data[i]), columns, out.data + i * columns);
    }
  });
}

void Kernels::decode_rows(const Rows& rows, View<const int32_t> ids, size_t columns,
                          View<float> out) {
  const auto lock = enter();
  check_ids(rows, ids, columns);
  decode_each(rows.dtype, [&](int32_t id) { return row_at(rows, id); }, ids, columns, out);
}

void Kernels::decode_tiles(View<const uint8_t> rows, DType dtype, View<const int32_t> ids,
                           size_t columns, View<float> out) {
  const auto lock = enter();
  const size_t row = row_bytes(dtype, columns).get();
  const ProductKernel& kernel = tiled_product(dtype, rows.size / row);
  check_ids({rows, static_cast<int64_t>(row), 0, dtype}, ids, columns);
  decode_each(
      dtype,
      [&](int32_t id) {
        const size_t number = static_cast<size_t>(id) % kernel.rows;
        const uint8_t* const tile = rows.data + (static_cast<size_t>(id) - number) * row;
        uint8_t* const to = scratch(row);
        kernel.unpack_row(tile, number, columns, to);
        return to;
      },
      ids, columns, out);
}

void Kernels::copy_rows(View<const uint8_t> from, View<const int32_t> from_ids, int64_t row_bytes,
                        View<uint8_t> to, View<const int32_t> to_ids) {
  const auto lock = enter();
  check_equal("to_ids", to_ids.size, from_ids.size);
  if (row_bytes < 1) {
    throw std::invalid_argument("row_bytes is " + std::to_string(row_bytes));
  }
  const auto bytes = static_cast<size_t>(row_bytes);
  check_ends(from_ids, row_bytes, Checked(bytes), from.size);
  check_ends(to_ids, row_bytes, Checked(bytes), to.size);
  const size_t most = kPartsPerThread * static_cast<size_t>(threads_);
  const int parts = parts_for(from_ids.size * bytes, most);
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(from_ids.size, part + 1, parts);
    for (size_t i = part_begin(from_ids.size, part, parts); i < end; ++i) {
      std::memcpy(to.data + static_cast<size_t>(to_ids.data[i]) * bytes,
                  from.data + static_cast<size_t>(from_ids.data[i]) * bytes, bytes);
    }
  });
}

void Kernels::attend(const Attend& task) {
  const auto lock = enter();
  attend_held(task);
}

void Kernels::attend_held(const Attend& task) {
  HeadRuns* const runs = &attend_scratch_.runs;
  const AttendSizes sizes = check_attend(task, runs);
  const SeenRows seen = {static_cast<size_t>(task.seen.first), static_cast<size_t>(task.seen.end)};
  const size_t rows = sizes.kv_heads * seen.count();
  const Attention one = {task.rows.dtype, sizes,      *runs,         seen,
                         task.query.data, task.scale, task.out.data, task.sinks};
  attend_one(one, rows);
}

void Kernels::attend_runs(const AttendRuns& task) {
  const auto lock = enter();
  HeadRuns* const runs = &attend_scratch_.runs;
  const AttendSizes sizes = check_attend_runs(task, runs);
  attend_one({task.dtype, sizes, *runs, {}, task.query.data, task.scale, task.out.data, task.sinks},
             runs->rows_of_all());
}

void Kernels::attend_one(const Attention& task, size_t rows) {
  const size_t heads = task.sizes.heads;
  attend_scratch_.make_room(heads, task.sizes);
  const size_t most = kPartsPerThread * static_cast<size_t>(threads_);
  // Heads of queries that share a head of keys read it once, and compute with it each.
  const size_t work = 2 * rows * task.sizes.row_bytes * task.sizes.sharing();
  // Heads that share keys stay together where that gains.
  const size_t pieces =
      Together::pieces(table_, task.dtype, task.sizes, static_cast<size_t>(threads_));
  const size_t units = pieces == 0 ? heads : task.sizes.kv_heads * pieces;
  const auto first_head = [&](size_t unit) {
    if (pieces == 0) return unit;
    const size_t sharing = task.sizes.sharing();
    const auto piece = static_cast<int>(unit % pieces);
    return unit / pieces * sharing + part_begin(sharing, piece, static_cast<int>(pieces));
  };
  const int parts = parts_for(work, std::min(units, most));
  pool_->run(parts, [&](int part) {
    const size_t first = first_head(part_begin(units, part, parts));
    const size_t end = first_head(part_begin(units, part + 1, parts));
    attend_heads(table_, task, first, end, attend_scratch_.from(first, task.sizes));
  });
}

void Kernels::write_head_rows(const HeadRows& rows, View<const float> values, int64_t position,
                              View<uint8_t> cache) {
  const auto lock = enter();
  write_held(rows, values, position, cache);
}

void Kernels::write_held(const HeadRows& rows, View<const float> values, int64_t position,
                         View<uint8_t> cache) {
  const WriteSizes sizes = check_write(rows, values, position, cache);
  const size_t head_values = sizes.tokens * sizes.columns;
  const size_t most = kPartsPerThread * static_cast<size_t>(threads_);
  const int parts =
      parts_for(encoding_work(rows.dtype, values.size), std::min(sizes.kv_heads, most));
  std::vector<const float*> refused(static_cast<size_t>(parts), nullptr);
  pool_->run(parts, [&](int part) {
    const size_t end = part_begin(sizes.kv_heads, part + 1, parts);
    for (size_t head = part_begin(sizes.kv_heads, part, parts); head < end; ++head) {
      const size_t first = head * sizes.capacity + static_cast<size_t>(position);
      const float* from = values.data + head * head_values;
      const size_t written = write_rows(table_, rows.dtype, from, sizes.tokens, sizes.columns,
                                        cache.data + first * sizes.row_bytes);
      if (written == sizes.tokens) continue;
      refused[static_cast<size_t>(part)] = from + written * sizes.columns;
      return;
    }
  });
  for (const float* row : refused) {
    if (row != nullptr) refuse_row(rows.dtype, row, sizes.columns);
  }
}

void Kernels::attend_projected(const AttendProjected& task) {
  const auto lock = enter();
  placed_.resize(task.query.size + task.key.size);
  const auto place = [&](View<const float> from, View<const float> norm, float* to) {
    const size_t turned = task.cos.size == 0 ? 0 : 1;
    const PlaceHeads placing = {{from.data, 1, from.size},
                                task.rows.columns,
                                norm,
                                task.eps,
                                {task.cos.data, turned, task.cos.size},
                                {task.sin.data, turned, task.sin.size},
                                {to, from.size}};
    check_place(placing);
    flash_core::place_heads(placing, 0, 1);
    return View<const float>{to, from.size};
  };
  const auto query = place(task.query, task.query_norm, placed_.data());
  const auto key = place(task.key, task.key_norm, placed_.data() + task.query.size);
  const auto write = [&](const char* name, View<const float> values, View<uint8_t> cache) {
    try {
      write_held(task.rows, values, task.position, cache);
    } catch (const std::overflow_error& error) {
      throw std::overflow_error(std::string(name) + ": " + error.what());
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string(name) + ": " + error.what());
    }
  };
  write("key", key, task.keys);
  write("value", task.value, task.values);
  attend_held({query,
               {task.keys.data, task.keys.size},
               {task.values.data, task.values.size},
               task.rows,
               {task.first, task.position + 1},
               task.scale,
               task.out,
               task.sinks});
}

void Kernels::norm_rows(const NormRows& task) {
  const auto lock = enter();
  check_norm(task);
  const size_t rows = task.x.rows;
  const int parts = parts_of_vectors(rows * task.x.columns * sizeof(float), rows);
  pool_->run(parts, [&](int part) {
    flash_core::norm_rows(task, part_begin(rows, part, parts), part_begin(rows, part + 1, parts));
  });
}

void Kernels::place_heads(const PlaceHeads& task) {
  const auto lock = enter();
  check_place(task);
  const size_t tokens = task.x.rows;
  const int parts = parts_of_vectors(tokens * task.x.columns * sizeof(float), tokens);
  pool_->run(parts, [&](int part) {
    flash_core::place_heads(task, part_begin(tokens, part, parts),
                            part_begin(tokens, part + 1, parts));
  });
}

void Kernels::add_shares(const AddShares& task) {
  const auto lock = enter();
  check_add(task);
  // By columns: two rows may go to the same one.
  const size_t units = (task.out.columns + kColumnUnit - 1) / kColumnUnit;
  const size_t bytes = task.rows.rows * task.rows.columns * sizeof(float);
  const int parts = parts_for(bytes, std::min(units, static_cast<size_t>(threads_)));
  pool_->run(parts, [&](int part) {
    flash_core::add_shares(
        task, part_begin(units, part, parts) * kColumnUnit,
        std::min(part_begin(units, part + 1, parts) * kColumnUnit, task.out.columns));
  });
}

}  // namespace flash_core
