#include "attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "checked.h"

namespace flash_core {

namespace {

// Positions whose rows stay in the first cache while the heads that share them take turns. The
// scores of a head are in order whatever this is.
constexpr size_t kTile = 64;
static_assert(kTile % kRowsPerAdd == 0, "only the last tile may end within a group");

// The one place that knows how rows of an encoding are multiplied.
struct RowFunctions {
  DotFunction dot;
  AddFunction add_one;
  AddFunction add_four;

  RowFunctions(const KernelTable& table, DType dtype)
      : dot(table.dot[static_cast<size_t>(dtype)]),
        add_one(table.add_one[static_cast<size_t>(dtype)]),
        add_four(table.add_four[static_cast<size_t>(dtype)]) {}
};

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

size_t head_row_bytes(const HeadRows& rows) {
  return (Checked(positive(rows.columns, "columns")) * Checked(item_bytes(rows.dtype))).get();
}

// e to the power of values that are 0 or less, within a few units in the last place. Without a
// library's help, whose last bits differ from machine to machine, and in a loop that compilers
// make vectors of.
void exponentials(float* values, size_t count) {
  constexpr float kLowest = -87.0F;  // below it the result would be no normal number
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;  // few bits, so that a whole multiple of it is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves a whole number
  for (size_t i = 0; i < count; ++i) {
    const float x = values[i];
    const float bounded = x < kLowest ? kLowest : x;
    const float shifted = bounded * kLog2E + kRound;
    const float whole = shifted - kRound;
    const float rest = (bounded - whole * kLn2High) - whole * kLn2Low;
    // Taylor's terms to the sixth: the next one is below 2^-23 of the sum, where |rest| <= 0.347.
    float power = 1.0F / 720 * rest + 1.0F / 120;
    power = power * rest + 1.0F / 24;
    power = power * rest + 1.0F / 6;
    power = power * rest + 0.5F;
    power = power * rest + 1.0F;
    power = power * rest + 1.0F;
    uint32_t bits = 0;
    std::memcpy(&bits, &shifted, sizeof(bits));
    power *= float_from_bits((bits + 127U) << 23);  // the low bits of `shifted` are `whole`
    values[i] = x < kLowest ? 0.0F : power;
  }
}

void softmax(float* scores, size_t count) {
  float most = scores[0];
  for (size_t i = 1; i < count; ++i) most = scores[i] > most ? scores[i] : most;
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
  const float inverse = 1.0F / sum;
  for (size_t k = 0; k < count; ++k) scores[k] *= inverse;
}

// Query heads that share one head of keys and values, and what they are computed in.
struct Group {
  const RowFunctions& functions;
  const AttendSizes& sizes;
  size_t kv_head;
  size_t first_head;
  size_t last_head;
  float* scores;

  const uint8_t* row(View<const uint8_t> rows, size_t position) const {
    return rows.data + (kv_head * sizes.capacity + position) * sizes.row_bytes;
  }
  float* scores_of(size_t head) const { return scores + head * sizes.seen(); }
};

void score(const Attend& task, const Group& group, size_t begin, size_t end) {
  const AttendSizes& sizes = group.sizes;
  for (size_t head = group.first_head; head < group.last_head; ++head) {
    const float* query = task.query.data + head * sizes.columns;
    float* scores = group.scores_of(head);
    for (size_t at = begin; at < end; ++at) {
      const uint8_t* next = group.row(task.keys, std::min(at + 1, sizes.end - 1));
      const float product =
          group.functions.dot(group.row(task.keys, at), next, query, sizes.columns);
      scores[at - sizes.first] = task.scale * product;
    }
  }
}

void mix(const Attend& task, const Group& group, size_t begin, size_t end) {
  const AttendSizes& sizes = group.sizes;
  for (size_t head = group.first_head; head < group.last_head; ++head) {
    float* out = task.out.data + head * sizes.columns;
    const float* weights = group.scores_of(head) + (begin - sizes.first);
    size_t at = begin;
    for (; at + kRowsPerAdd <= end; at += kRowsPerAdd, weights += kRowsPerAdd) {
      std::array<const uint8_t*, kRowsPerAdd> rows = {};
      std::array<const uint8_t*, kRowsPerAdd> next = {};
      for (size_t r = 0; r < kRowsPerAdd; ++r) {
        rows[r] = group.row(task.values, at + r);
        next[r] = group.row(task.values, std::min(at + r + kRowsPerAdd, sizes.end - 1));
      }
      group.functions.add_four(rows.data(), next.data(), weights, out, sizes.columns);
    }
    for (; at < end; ++at, ++weights) {
      const uint8_t* row = group.row(task.values, at);
      group.functions.add_one(&row, &row, weights, out, sizes.columns);
    }
  }
}

void attend_group(const Attend& task, const Group& group) {
  const AttendSizes& sizes = group.sizes;
  for (size_t at = sizes.first; at < sizes.end; at += kTile) {
    score(task, group, at, std::min(at + kTile, sizes.end));
  }
  std::fill(task.out.data + group.first_head * sizes.columns,
            task.out.data + group.last_head * sizes.columns, 0.0F);
  for (size_t head = group.first_head; head < group.last_head; ++head) {
    softmax(group.scores_of(head), sizes.seen());
  }
  for (size_t at = sizes.first; at < sizes.end; at += kTile) {
    mix(task, group, at, std::min(at + kTile, sizes.end));
  }
}

}  // namespace

AttendSizes check_attend(const Attend& task) {
  AttendSizes sizes = {};
  sizes.row_bytes = head_row_bytes(task.rows);
  sizes.columns = static_cast<size_t>(task.rows.columns);
  sizes.capacity = capacity_of(task.rows, task.keys.size, sizes.row_bytes, "keys");
  sizes.kv_heads = static_cast<size_t>(task.rows.kv_heads);
  if (task.values.size != task.keys.size) {
    throw std::invalid_argument("values has " + std::to_string(task.values.size) +
                                " bytes, and keys has " + std::to_string(task.keys.size));
  }
  const size_t shared = (Checked(sizes.columns) * Checked(sizes.kv_heads)).get();
  if (task.query.size == 0 || task.query.size % shared != 0 || task.out.size != task.query.size) {
    throw std::invalid_argument("query has " + std::to_string(task.query.size) + " values and out " +
                                std::to_string(task.out.size) + "; a multiple of " +
                                std::to_string(shared) + " was expected of both");
  }
  sizes.heads = task.query.size / sizes.columns;
  if (task.seen.first < 0 || task.seen.end <= task.seen.first ||
      static_cast<uint64_t>(task.seen.end) > sizes.capacity) {
    throw std::out_of_range("positions " + std::to_string(task.seen.first) + " to " +
                            std::to_string(task.seen.end) + " of " +
                            std::to_string(sizes.capacity));
  }
  sizes.first = static_cast<size_t>(task.seen.first);
  sizes.end = static_cast<size_t>(task.seen.end);
  return sizes;
}

void attend_heads(const KernelTable& table, const Attend& task, const AttendSizes& sizes,
                  size_t first_head, size_t last_head, float* scores) {
  const RowFunctions functions(table, task.rows.dtype);
  const size_t sharing = sizes.heads / sizes.kv_heads;
  for (size_t head = first_head; head < last_head;) {
    const size_t kv_head = head / sharing;
    const size_t end = std::min(last_head, (kv_head + 1) * sharing);
    attend_group(task, {functions, sizes, kv_head, head, end, scores});
    head = end;
  }
}

namespace {

// Nearest, ties to even. 65520 and more would become an infinity.
uint16_t f16_from_float(float value) {
  constexpr uint32_t kInfinity = 0x7F800000U;
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude >= kInfinity) throw std::invalid_argument("a value is no finite number");
  if (magnitude >= 0x477FF000U) throw std::overflow_error(std::to_string(value) + " is beyond f16");
  if (magnitude >= 0x38800000U) {
    const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
    return static_cast<uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
  }
  // Below 2^-14 the step is 2^-24: adding 1/2 leaves as many steps in the low bits, rounded.
  float absolute = 0;
  std::memcpy(&absolute, &magnitude, sizeof(absolute));
  absolute += 0.5F;
  std::memcpy(&bits, &absolute, sizeof(bits));
  return static_cast<uint16_t>(sign | (bits - 0x3F000000U));
}

void encode_row(const float* values, size_t columns, DType dtype, uint8_t* row) {
  for (size_t c = 0; c < columns; ++c) {
    if (dtype == DType::f16) {
      const uint16_t half = f16_from_float(values[c]);
      std::memcpy(row + 2 * c, &half, sizeof(half));
    } else {
      if (!std::isfinite(values[c])) throw std::invalid_argument("a value is no finite number");
      std::memcpy(row + 4 * c, values + c, sizeof(float));
    }
  }
}

}  // namespace

void write_head_rows(const HeadRows& rows, View<const float> values, int64_t position,
                     View<uint8_t> cache) {
  const size_t row_bytes = head_row_bytes(rows);
  const size_t capacity = capacity_of(rows, cache.size, row_bytes, "cache");
  const auto columns = static_cast<size_t>(rows.columns);
  const auto kv_heads = static_cast<size_t>(rows.kv_heads);
  if (values.size % (Checked(columns) * Checked(kv_heads)).get() != 0) {
    throw std::invalid_argument("values has " + std::to_string(values.size) +
                                " values; whole rows for every head were expected");
  }
  const size_t tokens = values.size / columns / kv_heads;
  if (Checked::from_signed(position, "position") + Checked(tokens) > Checked(capacity)) {
    throw std::out_of_range(std::to_string(tokens) + " rows from " + std::to_string(position) +
                            " on are beyond " + std::to_string(capacity));
  }
  const float* from = values.data;
  for (size_t head = 0; head < kv_heads; ++head) {
    uint8_t* to = cache.data + (head * capacity + static_cast<size_t>(position)) * row_bytes;
    for (size_t t = 0; t < tokens; ++t, from += columns, to += row_bytes) {
      encode_row(from, columns, rows.dtype, to);
    }
  }
}

}  // namespace flash_core
