// Attention over encoded keys and values of any shape, and writing their rows: wrong sizes and
// positions are refused, nothing outside is touched, and results are those of wide arithmetic.
#include <cstring>

#include "row_case.h"

using namespace flash_core;

namespace {

constexpr size_t kHeadsMax = 6;
constexpr size_t kCapacityMax = 90;  // more than a tile

struct AttendCase {
  HeadRows rows = {};
  size_t sharing = 1;  // query heads of each head of keys
  size_t capacity = 0;
  Positions seen = {};
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
  std::vector<float> query;
  std::vector<float> sinks;  // of each head, or none
  std::vector<float> out;

  Attend task() {
    return {view_of(query), view_of(keys), view_of(values), rows,
            seen,           0.25F,         out_view(&out),  view_of(sinks)};
  }
  Wide row_bytes() const { return wide_row_bytes(rows.dtype, Wide{rows.columns}); }
};

// Rows of small values, or where `is_wild` of anything.
std::vector<uint8_t> make_cache(FuzzInput* input, const AttendCase& one, size_t size) {
  SeededValues values(input->word(2));
  std::vector<uint8_t> cache(size);
  for (uint8_t& byte : cache) byte = static_cast<uint8_t>(values.next());
  if (input->byte() % 4 == 0 || one.rows.columns < 1) return cache;
  if (one.row_bytes() > Wide{size}) return cache;  // also where a row's bytes are no size_t
  const auto columns = static_cast<size_t>(one.rows.columns);
  const auto bytes = static_cast<size_t>(one.row_bytes());
  const EncodeFunction encode = scalar_kernels().encode[static_cast<size_t>(one.rows.dtype)];
  for (size_t at = 0; at + bytes <= size; at += bytes) {
    encode(values.values(columns, 2).data(), columns, cache.data() + at);
  }
  return cache;
}

AttendCase make_case(FuzzInput* input) {
  AttendCase one;
  one.rows.dtype = kDTypesAll[input->byte() % kDTypes];
  one.rows.columns = input->byte() % 16 == 15 ? input->any() : input->within(0, 130);
  one.rows.kv_heads = input->byte() % 16 == 15 ? input->any() : input->within(0, 3);
  one.sharing = input->size_within(1, 3);
  one.capacity = input->size_within(0, kCapacityMax);
  one.seen.end = input->byte() % 16 == 15 ? input->any()
                                          : input->within(0, static_cast<int64_t>(one.capacity));
  one.seen.first = input->flag() ? 0 : input->within(-1, 90);
  const bool is_usual = one.rows.columns >= 0 && one.rows.columns <= 130 &&
                        one.rows.kv_heads >= 0 && one.rows.kv_heads <= 3;
  const size_t heads = is_usual ? static_cast<size_t>(one.rows.kv_heads) : 1;
  const size_t columns = is_usual ? static_cast<size_t>(one.rows.columns) : 16;
  const size_t row = is_usual ? static_cast<size_t>(one.row_bytes()) : 32;
  const size_t wrong = input->byte() % 16 == 15 ? 1 : 0;
  one.keys = make_cache(input, one, heads * one.capacity * row + wrong);
  one.values = make_cache(input, one, one.keys.size() + (input->byte() % 16 == 15 ? 1 : 0));
  one.query = make_vector(input, heads * one.sharing * columns + (input->byte() % 16 == 15));
  one.out.assign(one.query.size() + (input->byte() % 16 == 15), 3.0F);
  if (input->byte() % 4 == 3) {
    one.sinks = make_vector(input, heads * one.sharing + (input->byte() % 16 == 15));
  }
  return one;
}

bool is_valid(const AttendCase& one) {
  constexpr int64_t kMost = int64_t{1} << 40;  // far more than any case has
  if (one.rows.columns < 1 || one.rows.kv_heads < 1) return false;
  if (one.rows.columns > kMost || one.rows.kv_heads > kMost) return false;
  const Wide layer = one.row_bytes() * one.rows.kv_heads;
  if (one.keys.size() % layer != 0 || one.values.size() != one.keys.size()) return false;
  const Wide shared = Wide{one.rows.columns} * one.rows.kv_heads;
  if (one.query.empty() || one.query.size() % shared != 0 || one.out.size() != one.query.size()) {
    return false;
  }
  const size_t heads = one.query.size() / static_cast<size_t>(one.rows.columns);
  if (!one.sinks.empty() && one.sinks.size() != heads) return false;
  return one.seen.first >= 0 && one.seen.first < one.seen.end &&
         Wide{one.seen.end} <= one.keys.size() / layer;
}

// The values of a row of the layer's keys or values.
std::vector<float> row_values(const AttendCase& one, const std::vector<uint8_t>& cache,
                              size_t row) {
  RowCase all;
  all.dtype = one.rows.dtype;
  all.columns = static_cast<size_t>(one.rows.columns);
  all.stride = static_cast<int64_t>(one.row_bytes());
  all.bytes = cache;
  all.ids = {static_cast<int32_t>(row)};
  return decoded(all);
}

// Softmax and sum in doubles. In groups a query loses up to a share of 2^-13 of its largest value,
// and so do the weights: `lost` bounds what comes of both.
void check_head(const AttendCase& one, size_t head, size_t capacity) {
  const auto columns = static_cast<size_t>(one.rows.columns);
  const auto kv_heads = static_cast<size_t>(one.rows.kv_heads);
  const size_t heads = one.query.size() / columns;
  const size_t kv_head = head / (heads / kv_heads);
  std::vector<double> weights;
  std::vector<std::vector<float>> values;
  double most = -1e300;
  for (int64_t at = one.seen.first; at < one.seen.end; ++at) {
    const size_t row = kv_head * capacity + static_cast<size_t>(at);
    const std::vector<float> key = row_values(one, one.keys, row);
    values.push_back(row_values(one, one.values, row));
    double dot = 0;
    for (size_t c = 0; c < columns; ++c) dot += double{key[c]} * one.query[head * columns + c];
    weights.push_back(dot * 0.25);
    most = std::max(most, weights.back());
  }
  double sum = 0;
  if (!one.sinks.empty()) {
    most = std::max(most, double{one.sinks[head]});
    sum = std::exp(one.sinks[head] - most);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - most);
  for (size_t c = 0; c < columns; ++c) {
    double expected = 0;
    double largest = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      expected += weights[i] / sum * values[i][c];
      largest = std::max(largest, std::fabs(double{values[i][c]}));
    }
    // A score of up to 130 * 2 * 8 / 4 is wrong by a share of 2^-13 in groups, of 2^-20 without.
    const double lost = is_grouped(one.rows.dtype) ? 0.25 : 2e-3;
    REQUIRE(std::fabs(one.out[head * columns + c] - expected) <= lost * (largest + 2.1) + 1e-6);
  }
}

bool is_small(const AttendCase& one) {
  const auto layer = static_cast<size_t>(one.row_bytes() * one.rows.kv_heads);
  const size_t capacity = one.keys.size() / layer;
  for (size_t row = 0; row < capacity * static_cast<size_t>(one.rows.kv_heads); ++row) {
    for (const std::vector<uint8_t>* cache : {&one.keys, &one.values}) {
      for (const float value : row_values(one, *cache, row)) {
        if (!(std::fabs(value) <= 2.1F)) return false;
      }
    }
  }
  return true;
}

// Several tokens have the bits that each has alone.
void check_many(FuzzInput* input) {
  AttendCase one = make_case(input);
  const int64_t tokens = input->byte() % 16 == 15 ? input->any() : input->within(0, 40);
  const int64_t window = input->byte() % 16 == 15 ? input->any() : input->within(0, 70);
  const auto times = static_cast<size_t>(tokens >= 1 && tokens <= 40 ? tokens : 1);
  const size_t width = one.query.size();
  one.query = make_vector(input, width * times);
  one.out.assign(one.query.size() + (input->byte() % 16 == 15), 3.0F);
  one.seen.first = 0;
  AttendCase last = one;
  last.query.resize(width);
  last.out.assign(width, 0.0F);
  const bool valid = is_valid(last) && one.out.size() == one.query.size() && tokens >= 1 &&
                     window >= 0 && tokens <= 40 && tokens <= one.seen.end;
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    const AttendMany task = {view_of(one.query),
                             view_of(one.keys),
                             view_of(one.values),
                             one.rows,
                             tokens,
                             one.seen.end,
                             window,
                             0.25F,
                             out_view(&one.out),
                             view_of(one.sinks)};
    REQUIRE(valid == accepts([&] { kernels.attend_many(task); }));
    if (!valid || !is_moderate(one.query) || !is_moderate(one.sinks) || !is_small(one)) continue;
    for (size_t t = 0; t < times; ++t) {
      std::copy_n(one.query.begin() + static_cast<std::ptrdiff_t>(t * width), width,
                  last.query.begin());
      last.seen.end = one.seen.end - tokens + static_cast<int64_t>(t) + 1;
      const bool is_hidden = window != 0 && last.seen.end > window;
      last.seen.first = is_hidden ? last.seen.end - window : 0;
      kernels.attend(last.task());
      REQUIRE(std::memcmp(last.out.data(), one.out.data() + t * width, width * sizeof(float)) == 0);
    }
  }
}

// Two contexts have the bits that each has alone.
void check_each(FuzzInput* input) {
  AttendCase one = make_case(input);
  one.seen.first = 0;
  one.out.assign(one.query.size(), 3.0F);
  AttendCase other = one;
  other.seen.end = input->byte() % 16 == 15
                       ? input->any()
                       : input->within(0, static_cast<int64_t>(other.capacity));
  const int64_t window = input->byte() % 16 == 15 ? input->any() : input->within(0, 70);
  const bool valid = is_valid(one) && is_valid(other) && window >= 0;
  const size_t width = one.query.size();
  std::vector<float> queries = one.query;
  queries.insert(queries.end(), one.query.begin(), one.query.end());
  std::vector<float> out(queries.size(), 3.0F);
  const std::vector<int64_t> ends = {one.seen.end, other.seen.end};
  const AttendEach task = {{queries.data(), 2, width},
                           {view_of(one.keys), view_of(one.keys)},
                           {view_of(one.values), view_of(one.values)},
                           one.rows,
                           view_of(ends),
                           window,
                           0.25F,
                           {out.data(), 2, width},
                           view_of(one.sinks)};
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(2, table->name);
    REQUIRE(valid == accepts([&] { kernels.attend_each(task); }));
    if (!valid || !is_moderate(one.query) || !is_moderate(one.sinks) || !is_small(one)) continue;
    for (size_t i = 0; i < 2; ++i) {
      AttendCase* const alone = i == 0 ? &one : &other;
      const bool is_hidden = window != 0 && ends[i] > window;
      alone->seen = {is_hidden ? ends[i] - window : 0, ends[i]};
      kernels.attend(alone->task());
      REQUIRE(std::memcmp(alone->out.data(), out.data() + i * width, width * sizeof(float)) == 0);
    }
  }
}

// Rows of a layer named by runs: any runs are accepted or refused as they fit, and those that are
// the layer's positions give its bits.
void check_runs(FuzzInput* input) {
  AttendCase one = make_case(input);
  one.seen.first = 0;
  const bool is_layer = is_valid(one);
  const auto heads = is_layer ? static_cast<size_t>(one.rows.kv_heads) : 1;
  const int64_t row = is_layer ? static_cast<int64_t>(one.row_bytes()) : 16;
  const int64_t capacity =
      is_layer ? static_cast<int64_t>(one.keys.size()) / row / one.rows.kv_heads : 1;
  std::vector<int64_t> runs;
  std::vector<int32_t> ends;
  bool is_whole = is_layer;  // where there are too many runs, the last heads lack some
  for (size_t head = 0; head < heads; ++head) {
    int64_t at = 0;
    while (at < one.seen.end && runs.size() < 600) {
      const int64_t count = std::min(input->within(1, 20), one.seen.end - at);
      const int64_t begin = (static_cast<int64_t>(head) * capacity + at) * row;
      runs.insert(runs.end(), {begin, begin, count});
      at += count;
    }
    is_whole = is_whole && at == one.seen.end;
    ends.push_back(static_cast<int32_t>(runs.size() / 3));
  }
  if (input->byte() % 4 == 3 && !runs.empty()) {
    is_whole = false;
    runs[input->size_within(0, runs.size() - 1)] =
        input->flag() ? input->any() : input->within(-1, 9000);
    if (input->flag())
      ends[input->size_within(0, ends.size() - 1)] = static_cast<int32_t>(input->within(-1, 700));
  }
  const Wide bytes = one.rows.columns < 1 ? 0 : one.row_bytes();
  bool fits = one.rows.columns >= 1 && one.rows.columns <= (int64_t{1} << 40);
  int32_t previous = 0;
  for (const int32_t end : ends) {
    fits = fits && end > previous;
    previous = end;
  }
  fits = fits && static_cast<size_t>(previous) == runs.size() / 3;
  for (size_t i = 0; fits && i < runs.size(); i += 3) {
    fits = runs[i] >= 0 && runs[i + 1] >= 0 && runs[i + 2] >= 1 &&
           Wide{runs[i]} + bytes * runs[i + 2] <= one.keys.size() &&
           Wide{runs[i + 1]} + bytes * runs[i + 2] <= one.values.size();
  }
  if (fits) {
    const Wide shared = Wide{one.rows.columns} * ends.size();
    fits = !one.query.empty() && one.query.size() % shared == 0 &&
           one.out.size() == one.query.size() &&
           (one.sinks.empty() ||
            one.sinks.size() == one.query.size() / static_cast<size_t>(one.rows.columns));
  }
  const AttendRuns task = {view_of(one.query),  view_of(one.keys),
                           view_of(one.values), one.rows.dtype,
                           one.rows.columns,    {runs.data(), runs.size() / 3, 3},
                           view_of(ends),       0.25F,
                           out_view(&one.out),  view_of(one.sinks)};
  const bool is_comparable =
      is_whole && is_moderate(one.query) && is_moderate(one.sinks) && is_small(one);
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    REQUIRE(fits == accepts([&] { kernels.attend_runs(task); }));
    if (!fits || !is_comparable) continue;
    const std::vector<float> found = one.out;
    kernels.attend(one.task());
    REQUIRE(std::memcmp(found.data(), one.out.data(), found.size() * sizeof(float)) == 0);
  }
}

void check_attention(FuzzInput* input) {
  AttendCase one = make_case(input);
  const bool valid = is_valid(one);
  const bool is_comparable = valid && is_moderate(one.query) && is_moderate(one.sinks);
  for (const KernelTable* table : available_kernels()) {
    REQUIRE(valid == accepts([&] { Kernels(1, table->name).attend(one.task()); }));
    if (!is_comparable) continue;
    if (!is_small(one)) continue;
    const auto layer = static_cast<size_t>(one.row_bytes() * one.rows.kv_heads);
    const size_t heads = one.query.size() / static_cast<size_t>(one.rows.columns);
    for (size_t head = 0; head < heads; ++head) check_head(one, head, one.keys.size() / layer);
  }
}

// Rows of tokens: those that were written decode to the values, and the others stay.
void check_writing(FuzzInput* input) {
  AttendCase one = make_case(input);
  const auto columns = static_cast<size_t>(one.rows.columns & 0xFF);
  const size_t shared = columns * static_cast<size_t>(one.rows.kv_heads & 3);
  const size_t tokens = input->size_within(0, 5);
  const std::vector<float> values =
      make_vector(input, tokens * shared + (input->byte() % 16 == 15 ? 1 : 0));
  const int64_t position = input->byte() % 16 == 15 ? input->any() : input->within(-1, 90);
  std::vector<uint8_t> first;
  for (const KernelTable* table : available_kernels()) {
    std::vector<uint8_t> cache = one.keys;
    bool is_accepted = false;
    try {
      is_accepted = accepts([&] {
        Kernels(1, table->name)
            .write_head_rows(one.rows, view_of(values), position, out_view(&cache));
      });
    } catch (const std::overflow_error&) {
      REQUIRE(!is_moderate(values) || one.rows.dtype == DType::f16 || is_grouped(one.rows.dtype));
      return;
    }
    if (!is_accepted) return;
    if (first.empty()) first = cache;
    REQUIRE(cache == first);
    const auto bytes = static_cast<size_t>(one.row_bytes());
    const auto heads = static_cast<size_t>(one.rows.kv_heads);
    const size_t capacity = cache.size() / bytes / heads;
    const size_t count = values.size() / heads / static_cast<size_t>(one.rows.columns);
    REQUIRE(position >= 0 && static_cast<size_t>(position) + count <= capacity);
    for (size_t at = 0; at < cache.size(); ++at) {
      const size_t token = at / bytes % capacity;
      const bool is_written =
          token >= static_cast<size_t>(position) && token < static_cast<size_t>(position) + count;
      REQUIRE(is_written || cache[at] == one.keys[at]);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const uint8_t what = input.byte();
  if (what >= 224) {
    check_runs(&input);
  } else if (what >= 208) {
    check_each(&input);
  } else if (what >= 192) {
    check_many(&input);
  } else if (what % 3 == 0) {
    check_writing(&input);
  } else {
    check_attention(&input);
  }
  return 0;
}
