// Attention and the rows that it reads against doubles; copies of rows against a plain loop.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "attention.h"
#include "kernels.h"
#include "testing.h"
#include "views.h"

using namespace flash_core;

namespace {

constexpr DType kAll[] = {DType::f32,  DType::f16,  DType::bf16,
                          DType::int8, DType::int4, DType::mxfp4};

std::vector<float> some(size_t count, float most, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = most * static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31F;
  }
  return values;
}

// A layer of keys and values whose rows are all written.
struct Layer {
  Layer(DType dtype, int64_t columns, int64_t kv_heads, size_t capacity, size_t sharing)
      : rows{dtype, columns, kv_heads}, capacity(capacity) {
    const size_t shared = static_cast<size_t>(columns * kv_heads);
    const size_t bytes = row_bytes(dtype, static_cast<uint64_t>(columns)).get() *
                         static_cast<size_t>(kv_heads) * capacity;
    keys.resize(bytes);
    values.resize(bytes);
    query = some(shared * sharing, 1, 1);
    out.assign(query.size(), 7.0F);
    Kernels kernels(1, "scalar");
    kernels.write_head_rows(rows, view(some(shared * capacity, 1, 2)), 0, out_view(&keys));
    kernels.write_head_rows(rows, view(some(shared * capacity, 1, 3)), 0, out_view(&values));
  }

  Attend task(int64_t first, int64_t end, float scale) {
    return {view(query),  view(keys), view(values),   rows,
            {first, end}, scale,      out_view(&out), view(sinks)};
  }

  // What the rows of a cache mean, [kv_heads, capacity, columns].
  std::vector<float> decoded(const std::vector<uint8_t>& cache) const {
    const auto stride =
        static_cast<int64_t>(row_bytes(rows.dtype, static_cast<uint64_t>(rows.columns)).get());
    std::vector<int32_t> ids(cache.size() / static_cast<size_t>(stride));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    std::vector<float> found(ids.size() * static_cast<size_t>(rows.columns));
    Kernels(1, "scalar")
        .decode_rows({view(cache), stride, 0, rows.dtype}, view(ids),
                     static_cast<size_t>(rows.columns), out_view(&found));
    return found;
  }

  HeadRows rows;
  size_t capacity;
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
  std::vector<float> query;
  std::vector<float> sinks;
  std::vector<float> out;
};

// Attention in doubles, one head after the other.
std::vector<double> expected_of(const Layer& layer, const Attend& task) {
  const auto columns = static_cast<size_t>(layer.rows.columns);
  const size_t heads = layer.query.size() / columns;
  const size_t sharing = heads / static_cast<size_t>(layer.rows.kv_heads);
  const std::vector<float> keys = layer.decoded(layer.keys);
  const std::vector<float> values = layer.decoded(layer.values);
  std::vector<double> result;
  for (size_t head = 0; head < heads; ++head) {
    const auto row = [&](int64_t at) {
      return (head / sharing * layer.capacity + static_cast<size_t>(at)) * columns;
    };
    std::vector<double> weights;
    for (int64_t at = task.seen.first; at < task.seen.end; ++at) {
      double dot = 0;
      for (size_t c = 0; c < columns; ++c) {
        dot += double{keys[row(at) + c]} * layer.query[head * columns + c];
      }
      weights.push_back(dot * task.scale);
    }
    double most = *std::max_element(weights.begin(), weights.end());
    if (!layer.sinks.empty()) most = std::max(most, double{layer.sinks[head]});
    double sum = layer.sinks.empty() ? 0 : std::exp(layer.sinks[head] - most);
    for (double& weight : weights) sum += weight = std::exp(weight - most);
    for (size_t c = 0; c < columns; ++c) {
      double total = 0;
      for (size_t i = 0; i < weights.size(); ++i) {
        total += weights[i] / sum * values[row(task.seen.first + static_cast<int64_t>(i)) + c];
      }
      result.push_back(total);
    }
  }
  return result;
}

}  // namespace

TEST(heads_that_share_keys_have_together_the_bits_of_each_alone) {
  for (const KernelTable* table : available_kernels()) {
    KernelTable apart = *table;
    for (ProductKernel& product : apart.product) product.rows = 0;  // one vector after the other
    for (const DType dtype : kAll) {
      for (const size_t sharing : {1, 2, 9}) {
        for (const int64_t first : {0, 5}) {
          Layer layer(dtype, 72, 2, 210, sharing);
          layer.sinks = some(2 * sharing, 2, 4);
          std::vector<float> found[2];
          for (const bool together : {false, true}) {
            // A scale with which some weights are exactly zero.
            const Attend given = layer.task(first, 203, 30.0F);
            HeadRuns runs;
            const AttendSizes sizes = check_attend(given, &runs);
            const SeenRows seen = {static_cast<size_t>(first), 203};
            const Attention task = {dtype,       sizes,          runs,       seen, given.query.data,
                                    given.scale, given.out.data, given.sinks};
            AttendScratch scratch;
            scratch.make_room(sizes.heads, sizes);
            attend_heads(together ? *table : apart, task, 0, sizes.heads, scratch.from(0, sizes));
            found[together ? 1 : 0] = layer.out;
          }
          CHECK(found[0] == found[1]);
        }
      }
    }
  }
}

TEST(attention_agrees_with_wide_arithmetic_for_every_set_and_encoding) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t sharing : {1, 3}) {
        Layer layer(dtype, 40, 2, 150, sharing);
        // With the last scale the best position leaves nothing to those far below it.
        for (const float scale : {0.0F, 0.25F, 30.0F}) {
          for (const auto& seen : {Positions{0, 1}, {0, 150}, {3, 67}, {64, 128}, {149, 150}}) {
            const Attend task = layer.task(seen.first, seen.end, scale);
            Kernels(1, table->name).attend(task);
            const std::vector<double> expected = expected_of(layer, task);
            // In groups a query is rounded by half of 2^-13 of its largest value at most, in each
            // of 40 columns; values, which are below 1, change by as much as their weights do.
            const double lost = is_grouped(dtype) ? (40 * scale + 2) / 8127 : 1e-5 * (scale + 1);
            for (size_t i = 0; i < expected.size(); ++i) {
              CHECK(std::fabs(layer.out[i] - expected[i]) <= lost);
            }
          }
        }
      }
    }
  }
}

TEST(sinks_take_their_share_of_each_head) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      Layer layer(dtype, 40, 2, 150, 3);
      // One sink far below all scores, one far above, and some between.
      layer.sinks = {-40.0F, 0.5F, 40.0F, -1.0F, 0.0F, 2.0F};
      for (const auto& seen : {Positions{0, 1}, {3, 67}, {0, 150}}) {
        const Attend task = layer.task(seen.first, seen.end, 0.25F);
        Kernels(1, table->name).attend(task);
        const std::vector<double> expected = expected_of(layer, task);
        const double lost = is_grouped(dtype) ? 12.0 / 8127 : 1.25e-5;
        for (size_t i = 0; i < expected.size(); ++i) {
          CHECK(std::fabs(layer.out[i] - expected[i]) <= lost);
        }
      }
    }
  }
}

TEST(attention_has_the_same_bits_for_every_number_of_threads) {
  Layer layer(DType::f32, 128, 4, 300, 2);
  std::vector<std::vector<float>> found;
  for (const int threads : {1, 2, 5}) {
    Kernels(threads, "").attend(layer.task(0, 300, 0.1F));
    found.push_back(layer.out);
  }
  CHECK(found[0] == found[1] && found[0] == found[2]);
}

TEST(attention_of_many_has_the_bits_of_each_alone) {
  constexpr size_t kEnd = 150;
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t tokens : {1, 9, 150}) {
        for (const int64_t window : {0, 70}) {
          Layer layer(dtype, 72, 2, kEnd + 3, 3);
          if (window != 0) layer.sinks = {-3.0F, 0.5F, 1.0F, -1.0F, 0.0F, 2.0F};
          const size_t width = layer.query.size();
          const std::vector<float> queries = some(tokens * width, 1, 7);
          std::vector<float> found(queries.size(), 7.0F);
          Kernels kernels(3, table->name);
          kernels.attend_many({view(queries), view(layer.keys), view(layer.values), layer.rows,
                               static_cast<int64_t>(tokens), kEnd, window, 0.25F, out_view(&found),
                               view(layer.sinks)});
          for (size_t t = 0; t < tokens; ++t) {
            const auto end = static_cast<int64_t>(kEnd - tokens + t + 1);
            const int64_t first = window != 0 && end > window ? end - window : 0;
            std::copy_n(queries.begin() + static_cast<std::ptrdiff_t>(t * width), width,
                        layer.query.begin());
            kernels.attend(layer.task(first, end, 0.25F));
            CHECK(std::memcmp(layer.out.data(), found.data() + t * width, width * sizeof(float)) ==
                  0);
          }
        }
      }
    }
  }
}

namespace {

// Contexts of different lengths, of which each has keys and values of its own.
struct Contexts {
  Contexts(DType dtype, size_t sharing, bool with_sinks, int64_t kv_heads = 2, int64_t columns = 40,
           const std::vector<size_t>& capacities = {150, 3, 65, 200, 1}) {
    for (const size_t capacity : capacities) {
      layers.emplace_back(dtype, columns, kv_heads, capacity, sharing);
      Layer& layer = layers.back();
      layer.query = some(layer.query.size(), 1, static_cast<uint32_t>(capacity));
      ends.push_back(static_cast<int64_t>(capacity - capacity / 9));
      queries.insert(queries.end(), layer.query.begin(), layer.query.end());
    }
    const auto heads = layers[0].query.size() / static_cast<size_t>(columns);
    if (with_sinks) sinks = some(heads, 2, 5);
    out.assign(queries.size(), 7.0F);
  }

  AttendEach task(int64_t window) {
    const size_t width = queries.size() / layers.size();
    AttendEach each = {{queries.data(), layers.size(), width},
                       {},
                       {},
                       layers[0].rows,
                       view(ends),
                       window,
                       0.25F,
                       {out.data(), layers.size(), width},
                       view(sinks)};
    for (const Layer& layer : layers) {
      each.keys.push_back(view(layer.keys));
      each.values.push_back(view(layer.values));
    }
    return each;
  }

  std::vector<Layer> layers;
  std::vector<int64_t> ends;
  std::vector<float> queries;
  std::vector<float> sinks;
  std::vector<float> out;
};

}  // namespace

TEST(attention_of_each_has_the_bits_of_a_context_alone) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t sharing : {1, 3}) {
        for (const int64_t window : {0, 70}) {
          Contexts contexts(dtype, sharing, window != 0);
          Kernels kernels(3, table->name);
          kernels.attend_each(contexts.task(window));
          const float* found = contexts.out.data();
          for (size_t i = 0; i < contexts.layers.size(); ++i) {
            Layer& layer = contexts.layers[i];
            layer.sinks = contexts.sinks;
            const int64_t end = contexts.ends[i];
            kernels.attend(layer.task(window != 0 && end > window ? end - window : 0, end, 0.25F));
            CHECK(std::memcmp(layer.out.data(), found, layer.out.size() * sizeof(float)) == 0);
            found += layer.out.size();
          }
        }
      }
    }
  }
}

TEST(rows_of_each_context_are_those_that_are_written_alone) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      Contexts together(dtype, 1, false);
      Contexts alone(dtype, 1, false);
      const std::vector<float> values = some(together.layers.size() * 80, 1, 11);
      WriteEach task = {
          {values.data(), together.layers.size(), 80}, together.layers[0].rows, {}, {}};
      std::vector<int64_t> positions;
      for (const int64_t end : together.ends) positions.push_back(end - 1);
      task.positions = view(positions);
      Kernels kernels(3, table->name);
      for (size_t i = 0; i < together.layers.size(); ++i) {
        task.caches.push_back(out_view(&together.layers[i].keys));
        kernels.write_head_rows(task.rows, {values.data() + i * 80, 80}, positions[i],
                                out_view(&alone.layers[i].keys));
      }
      kernels.write_head_rows_each(task);
      for (size_t i = 0; i < together.layers.size(); ++i) {
        CHECK(together.layers[i].keys == alone.layers[i].keys);
      }
    }
  }
}

TEST(threads_share_out_heads_of_many_contexts) {
  // Few heads of keys and many threads: heads that share them are taken apart.
  for (const DType dtype : kAll) {
    for (const auto& [kv_heads, sharing] : {std::pair<int64_t, size_t>{1, 11}, {3, 4}, {8, 1}}) {
      Contexts contexts(dtype, sharing, true, kv_heads, 128, {900, 1, 700, 33, 900, 64, 8});
      std::vector<std::vector<float>> found;
      for (const int threads : {1, 2, 3, 7}) {
        Kernels(threads, "").attend_each(contexts.task(0));
        found.push_back(contexts.out);
      }
      CHECK(found[0] == found[1] && found[0] == found[2] && found[0] == found[3]);
      Kernels kernels(3, "");
      const float* out = found[0].data();
      for (size_t i = 0; i < contexts.layers.size(); ++i) {
        Layer& layer = contexts.layers[i];
        layer.sinks = contexts.sinks;
        kernels.attend(layer.task(0, contexts.ends[i], 0.25F));
        CHECK(std::memcmp(layer.out.data(), out, layer.out.size() * sizeof(float)) == 0);
        out += layer.out.size();
      }
    }
  }
}

TEST(threads_share_out_rows_of_many_contexts) {
  constexpr size_t kContexts = 70;
  constexpr size_t kWidth = size_t{8} * 256;
  for (const DType dtype : kAll) {
    const HeadRows rows = {dtype, 256, 8};
    const size_t bytes = row_bytes(dtype, 256).get() * 8 * 2;
    std::vector<float> values = some(kContexts * kWidth, 1, 11);
    std::vector<std::vector<uint8_t>> alone(kContexts, std::vector<uint8_t>(bytes, 9));
    std::vector<std::vector<uint8_t>> together = alone;
    std::vector<int64_t> positions;
    WriteEach task = {{values.data(), kContexts, kWidth}, rows, {}, {}};
    Kernels kernels(3, "");
    for (size_t i = 0; i < kContexts; ++i) {
      positions.push_back(static_cast<int64_t>(i % 2));
      task.caches.push_back(out_view(&together[i]));
      kernels.write_head_rows(rows, {values.data() + i * kWidth, kWidth}, positions[i],
                              out_view(&alone[i]));
    }
    task.positions = view(positions);
    kernels.write_head_rows_each(task);
    CHECK(together == alone);
    // Of two rows in other parts the first one is told.
    values[60 * kWidth] = std::numeric_limits<float>::infinity();
    values[5 * kWidth + 300] = dtype == DType::f16 ? 70000.0F : std::nanf("");
    if (dtype == DType::f16) {
      CHECK_THROWS(std::overflow_error, "70000", kernels.write_head_rows_each(task));
    } else {
      CHECK_THROWS(std::invalid_argument, "no finite number", kernels.write_head_rows_each(task));
    }
  }
}

TEST(contexts_that_do_not_fit_are_refused_before_any_is_computed) {
  Kernels kernels(2, "scalar");
  Contexts contexts(DType::f16, 3, true);
  const auto refused = [&](const auto& change, const char* told) {
    AttendEach task = contexts.task(0);
    change(&task);
    CHECK_THROWS(std::invalid_argument, told, kernels.attend_each(task));
  };
  refused([](AttendEach* task) { task->window = -1; }, "window is -1");
  refused([](AttendEach* task) { task->keys.pop_back(); }, "4 keys for 5 contexts");
  refused([](AttendEach* task) { task->values.pop_back(); }, "4 values for 5 contexts");
  refused([](AttendEach* task) { --task->ends.size; }, "4 ends for 5 contexts");
  refused([](AttendEach* task) { --task->out.rows; }, "4 rows of out for 5 contexts");
  refused([](AttendEach* task) { task->out.columns -= 80; }, "a multiple of 80");
  refused([](AttendEach* task) { --task->values[4].size; }, "values has 159 bytes, and keys has");
  refused([](AttendEach* task) { --task->sinks.size; }, "sinks has 5 values for");
  refused([](AttendEach* task) { task->query.columns -= 1; }, "a multiple of 80");
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t end : {int64_t{0}, int64_t{2}, int64_t{-1}, kLeast, kMost}) {
    contexts.ends[4] = end;
    CHECK_THROWS(std::out_of_range, "of 1", kernels.attend_each(contexts.task(0)));
  }
  CHECK(std::count(contexts.out.begin(), contexts.out.end(), 7.0F) ==
        static_cast<std::ptrdiff_t>(contexts.out.size()));
  AttendEach none = contexts.task(0);
  none.query.rows = none.out.rows = none.ends.size = 0;
  none.keys.clear();
  none.values.clear();
  kernels.attend_each(none);
}

TEST(rows_of_contexts_that_do_not_fit_are_refused) {
  Kernels kernels(2, "scalar");
  std::vector<float> values = some(160, 1, 3);
  std::vector<uint8_t> first(160 * 4, 9);
  std::vector<uint8_t> second(160 * 2, 9);
  std::vector<int64_t> positions = {3, 1};
  const auto task = [&] {
    return WriteEach{{values.data(), 2, 80},
                     {DType::f16, 40, 2},
                     view(positions),
                     {out_view(&first), out_view(&second)}};
  };
  const auto refused = [&](const auto& change, const char* told) {
    WriteEach one = task();
    change(&one);
    CHECK_THROWS(std::invalid_argument, told, kernels.write_head_rows_each(one));
  };
  refused([](WriteEach* one) { --one->positions.size; }, "1 positions for 2 contexts");
  refused([](WriteEach* one) { one->caches.pop_back(); }, "1 caches for 2 contexts");
  refused([](WriteEach* one) { one->values = {one->values.data, 1, 160}; }, "2 positions for 1");
  refused([](WriteEach* one) { --one->values.columns; }, "rows of 79; a token of 80");
  refused([](WriteEach* one) { one->rows.columns = 20; }, "rows of 80; a token of 40");
  refused([](WriteEach* one) { one->rows.columns = 0; }, "columns is 0");
  refused([](WriteEach* one) { one->rows.kv_heads = 0; }, "kv_heads is 0");
  refused([](WriteEach* one) { --one->caches[1].size; }, "cache has 319 bytes");
  refused([](WriteEach* one) { one->caches[1] = one->caches[0]; }, "have the same cache");
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t position : {int64_t{-1}, int64_t{2}, kLeast, kMost}) {
    positions[1] = position;
    bool is_refused = false;
    try {
      kernels.write_head_rows_each(task());
    } catch (const std::out_of_range&) {
      is_refused = true;
    }
    CHECK(is_refused);
  }
  positions[1] = 0;
  CHECK(std::count(first.begin(), first.end(), 9) == static_cast<std::ptrdiff_t>(first.size()));
  values[159] = 70000;
  CHECK_THROWS(std::overflow_error, "too large for f16", kernels.write_head_rows_each(task()));
  values[100] = std::numeric_limits<float>::infinity();
  values[159] = 1;
  CHECK_THROWS(std::invalid_argument, "no finite number", kernels.write_head_rows_each(task()));
  values[100] = 1;
  kernels.write_head_rows_each(task());
  WriteEach none = task();
  none.values.rows = none.positions.size = 0;
  none.caches.clear();
  kernels.write_head_rows_each(none);
}

namespace {

// A layer's first rows in runs of other places, each head's cut in pieces of its own.
struct Scattered {
  Scattered(const Layer& layer, size_t first, size_t end, uint32_t seed)
      : row(row_bytes(layer.rows.dtype, static_cast<uint64_t>(layer.rows.columns)).get()) {
    std::mt19937 random(seed);
    const auto heads = static_cast<size_t>(layer.rows.kv_heads);
    keys.assign(heads * layer.capacity * (row + 3) * 2, 0xFF);  // what is in no run is anything
    values.assign(keys.size() + 64, 0xFF);
    size_t used = 0;
    for (size_t head = 0; head < heads; ++head) {
      for (size_t at = first; at < end;) {
        const size_t count = std::min(size_t{1} + random() % 40, end - at);
        used += random() % 3;  // rows need not be aligned
        const size_t from = (head * layer.capacity + at) * row;
        std::copy_n(layer.keys.begin() + static_cast<std::ptrdiff_t>(from), count * row,
                    keys.end() - static_cast<std::ptrdiff_t>(used + count * row));
        std::copy_n(layer.values.begin() + static_cast<std::ptrdiff_t>(from), count * row,
                    values.begin() + static_cast<std::ptrdiff_t>(used));
        runs.insert(runs.end(), {static_cast<int64_t>(keys.size() - used - count * row),
                                 static_cast<int64_t>(used), static_cast<int64_t>(count)});
        used += count * row;
        at += count;
      }
      ends.push_back(static_cast<int32_t>(runs.size() / 3));
    }
  }

  AttendRuns task(Layer* layer, View<const float> query, View<float> out) const {
    return {query,
            view(keys),
            view(values),
            layer->rows.dtype,
            layer->rows.columns,
            {runs.data(), runs.size() / 3, 3},
            view(ends),
            0.25F,
            out,
            view(layer->sinks)};
  }

  size_t row;
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
  std::vector<int64_t> runs;
  std::vector<int32_t> ends;
};

}  // namespace

TEST(attention_over_runs_has_the_bits_of_one_piece) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const auto& seen : {Positions{0, 1}, {0, 150}, {3, 140}, {64, 128}}) {
        Layer layer(dtype, 72, 2, 150, 3);
        if (seen.first != 0) layer.sinks = {-3.0F, 0.5F, 1.0F, -1.0F, 0.0F, 2.0F};
        const Scattered runs(layer, static_cast<size_t>(seen.first), static_cast<size_t>(seen.end),
                             11);
        std::vector<float> found(layer.query.size(), 7.0F);
        Kernels kernels(2, table->name);
        kernels.attend_runs(runs.task(&layer, view(layer.query), out_view(&found)));
        kernels.attend(layer.task(seen.first, seen.end, 0.25F));
        CHECK(found == layer.out);
      }
    }
  }
}

TEST(heads_of_keys_may_have_rows_of_their_own_number) {
  Layer layer(DType::f16, 40, 2, 150, 3);
  Scattered few(layer, 0, 20, 1);
  const Scattered many(layer, 0, 150, 2);
  Kernels kernels(2, "");
  std::vector<float> found(layer.query.size());
  kernels.attend(layer.task(0, 20, 0.25F));
  const std::vector<float> first = layer.out;
  kernels.attend(layer.task(0, 150, 0.25F));
  // The first head's runs of the one, and the second's of the other, whose bytes lie behind.
  std::vector<int64_t> runs(few.runs.begin(), few.runs.begin() + few.ends[0] * 3);
  for (size_t i = static_cast<size_t>(many.ends[0]) * 3; i < many.runs.size(); i += 3) {
    runs.push_back(many.runs[i] + static_cast<int64_t>(few.keys.size()));
    runs.push_back(many.runs[i + 1] + static_cast<int64_t>(few.values.size()));
    runs.push_back(many.runs[i + 2]);
  }
  few.ends[1] = static_cast<int32_t>(runs.size() / 3);
  few.runs = runs;
  few.keys.insert(few.keys.end(), many.keys.begin(), many.keys.end());
  few.values.insert(few.values.end(), many.values.begin(), many.values.end());
  kernels.attend_runs(few.task(&layer, view(layer.query), out_view(&found)));
  const auto half = static_cast<std::ptrdiff_t>(found.size() / 2);
  CHECK(std::equal(found.begin(), found.begin() + half, first.begin()));
  CHECK(std::equal(found.begin() + half, found.end(), layer.out.begin() + half));
}

TEST(attention_of_many_over_runs_has_the_bits_of_one_piece) {
  constexpr size_t kTokens = 33;
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const int64_t window : {0, 70}) {
        Layer layer(dtype, 72, 2, 150, 3);
        const Scattered runs(layer, 0, 150, 5);
        const std::vector<float> queries = some(kTokens * layer.query.size(), 1, 7);
        std::vector<float> expected(queries.size());
        std::vector<float> found(queries.size(), 7.0F);
        Kernels kernels(3, table->name);
        kernels.attend_many({view(queries), view(layer.keys), view(layer.values), layer.rows,
                             kTokens, 150, window, 0.25F, out_view(&expected), view(layer.sinks)});
        kernels.attend_many_runs(
            {runs.task(&layer, view(queries), out_view(&found)), kTokens, window});
        CHECK(found == expected);
      }
    }
  }
}

TEST(runs_that_do_not_fit_are_refused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Kernels kernels(1, "scalar");
  Layer layer(DType::f16, 8, 2, 10, 3);
  const Scattered whole(layer, 0, 10, 3);
  std::vector<float> out(layer.query.size(), 7.0F);
  const auto attend = [&](const Scattered& runs) {
    kernels.attend_runs(runs.task(&layer, view(layer.query), out_view(&out)));
  };
  const auto outside = [&](size_t number, int64_t value, const char* told) {
    Scattered runs = whole;
    runs.runs[number] = value;
    CHECK_THROWS(std::out_of_range, told, attend(runs));
  };
  outside(0, -1, "keys is negative: -1");
  outside(1, -1, "values is negative: -1");
  outside(0, static_cast<int64_t>(whole.keys.size()) - 15, "its keys end at byte");
  outside(1, static_cast<int64_t>(whole.values.size()) - 15, "its values end at byte");
  outside(0, kMost, "its keys end at byte");
  outside(2, kMost, "a size exceeds 64 bits");
  outside(2, kMost >> 5, "its keys end at byte");
  const auto refused = [&](const auto& change, const char* told) {
    Scattered runs = whole;
    change(&runs);
    CHECK_THROWS(std::invalid_argument, told, attend(runs));
  };
  refused([](Scattered* runs) { runs->runs[2] = 0; }, "run 0 has 0 rows");
  refused([](Scattered* runs) { runs->runs[5] = -1; }, "run 1 has -1 rows");
  refused([](Scattered* runs) { runs->ends[0] = runs->ends[1]; }, "head 1 of keys has no rows");
  refused([](Scattered* runs) { runs->ends[0] = runs->ends[1] + 1; }, "run_ends must not fall");
  refused([](Scattered* runs) { runs->ends[0] = -1; }, "run_ends must not fall");
  refused([](Scattered* runs) { ++runs->ends[1]; }, "run_ends must rise to the number");
  refused([](Scattered* runs) { runs->ends.clear(); }, "kv_heads is 0");
  refused([](Scattered* runs) { runs->ends.push_back(runs->ends[1]); },
          "head 2 of keys has no rows");
  AttendRuns task = whole.task(&layer, view(layer.query), out_view(&out));
  task.columns = 0;
  CHECK_THROWS(std::invalid_argument, "columns is 0", kernels.attend_runs(task));
  task = whole.task(&layer, view(layer.query), out_view(&out));
  task.runs.columns = 1;
  CHECK_THROWS(std::invalid_argument, "runs has rows of 1", kernels.attend_runs(task));
  CHECK(std::count(out.begin(), out.end(), 7.0F) == static_cast<std::ptrdiff_t>(out.size()));
  attend(whole);
  Scattered uneven = whole;
  ++uneven.runs[uneven.runs.size() - 1];
  task = uneven.task(&layer, view(layer.query), out_view(&out));
  kernels.attend_runs(task);
  CHECK_THROWS(std::invalid_argument, "head 1 of keys has 11 rows, and head 0 has 10",
               kernels.attend_many_runs({task, 1, 0}));
  task = whole.task(&layer, view(layer.query), out_view(&out));
  CHECK_THROWS(std::invalid_argument, "tokens is 0", kernels.attend_many_runs({task, 0, 0}));
  CHECK_THROWS(std::invalid_argument, "window is -1", kernels.attend_many_runs({task, 1, -1}));
  CHECK_THROWS(std::invalid_argument, "for 5 tokens", kernels.attend_many_runs({task, 5, 0}));
}

TEST(attention_of_many_over_what_does_not_fit_is_refused) {
  Kernels kernels(1, "scalar");
  Layer layer(DType::f16, 8, 2, 10, 3);
  const std::vector<float> queries = some(3 * layer.query.size(), 1, 7);
  std::vector<float> out(queries.size(), 7.0F);
  const auto task = [&] {
    return AttendMany{view(queries), view(layer.keys), view(layer.values), layer.rows, 3, 5, 0,
                      1.0F,          out_view(&out),   view(layer.sinks)};
  };
  const auto refused = [&](const auto& change, const char* told) {
    AttendMany one = task();
    change(&one);
    CHECK_THROWS(std::invalid_argument, told, kernels.attend_many(one));
  };
  refused([](AttendMany* one) { one->tokens = 0; }, "tokens is 0");
  refused([](AttendMany* one) { one->tokens = -1; }, "tokens is -1");
  refused([](AttendMany* one) { one->window = -1; }, "window is -1");
  refused([](AttendMany* one) { one->tokens = 5; }, "query has 144 values and out 144, for 5");
  refused([](AttendMany* one) { --one->out.size; }, "query has 144 values and out 143");
  refused([](AttendMany* one) { one->tokens = 2; }, "query has 72 values");
  for (const int64_t end : {0, 2, 11}) {
    AttendMany one = task();
    one.end = end;
    CHECK_THROWS(std::out_of_range, end == 2 ? "3 tokens of 2 positions" : "of 10",
                 kernels.attend_many(one));
  }
  CHECK(std::count(out.begin(), out.end(), 7.0F) == static_cast<std::ptrdiff_t>(out.size()));
  kernels.attend_many(task());
}

TEST(attention_over_what_does_not_fit_is_refused) {
  Kernels kernels(1, "scalar");
  const auto refused = [&kernels](const auto& change, const char* told) {
    Layer layer(DType::f16, 8, 2, 10, 3);
    Attend task = layer.task(2, 5, 1);
    kernels.attend(task);
    layer.out.assign(layer.out.size(), 7.0F);
    change(&task);
    CHECK_THROWS(std::invalid_argument, told, kernels.attend(task));
    CHECK(std::count(layer.out.begin(), layer.out.end(), 7.0F) ==
          static_cast<std::ptrdiff_t>(layer.out.size()));
  };
  refused([](Attend* task) { task->rows.columns = 0; }, "columns is 0");
  refused([](Attend* task) { task->rows.columns = -8; }, "columns is -8");
  refused([](Attend* task) { task->rows.kv_heads = 0; }, "kv_heads is 0");
  refused([](Attend* task) { --task->keys.size; }, "keys has 319 bytes; whole rows of 16 for 2");
  refused([](Attend* task) { task->values.size -= 32; }, "values has 288 bytes, and keys has 320");
  refused([](Attend* task) { task->query.size = 0; }, "query has 0 values and out 48");
  refused([](Attend* task) { task->query.size -= 8; }, "query has 40 values");
  refused([](Attend* task) { task->out.size -= 16; }, "out 32; a multiple of 16");
  const std::vector<float> sinks(5);
  refused([&](Attend* task) { task->sinks = view(sinks); }, "sinks has 5 values for");
  Layer layer(DType::f16, 8, 2, 10, 3);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& seen : {Positions{-1, 5}, {5, 5}, {6, 5}, {0, 11}, {0, kMost}, {kMost, 1}}) {
    CHECK_THROWS(std::out_of_range, "of 10", kernels.attend(layer.task(seen.first, seen.end, 1)));
  }
}

TEST(rows_are_written_where_they_belong_and_nowhere_else) {
  constexpr size_t kHeads = 4;
  for (const DType dtype : kAll) {
    for (const size_t tokens : {0, 1, 3, 310}) {  // the last ones by several threads
      const size_t stride = row_bytes(dtype, 128).get();
      const size_t capacity = tokens + 5;
      const std::vector<float> values = some(kHeads * tokens * 128, 2, 4);
      std::vector<uint8_t> encoded(kHeads * tokens * stride);
      std::vector<uint8_t> cache(kHeads * capacity * stride, 0xA5);
      std::vector<uint8_t> expected = cache;
      Kernels kernels(3, "scalar");
      kernels.encode_rows(view(values), 128, dtype, out_view(&encoded));
      for (size_t head = 0; head < kHeads; ++head) {
        std::copy_n(encoded.begin() + static_cast<std::ptrdiff_t>(head * tokens * stride),
                    tokens * stride,
                    expected.begin() + static_cast<std::ptrdiff_t>((head * capacity + 2) * stride));
      }
      kernels.write_head_rows({dtype, 128, kHeads}, view(values), 2, out_view(&cache));
      CHECK(cache == expected);
    }
  }
}

TEST(rows_that_cannot_be_written_are_refused) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int threads : {1, 3}) {
    const size_t tokens = threads == 1 ? 3 : 400;  // enough for several parts
    for (const DType dtype : kAll) {
      std::vector<float> values = some(4 * tokens * 128, 2, 5);
      std::vector<uint8_t> cache(4 * tokens * row_bytes(dtype, 128).get());
      Kernels kernels(threads, "");
      const auto write = [&](float value) {
        values[values.size() - 200] = value;
        kernels.write_head_rows({dtype, 128, 4}, view(values), 0, out_view(&cache));
      };
      for (const float value : {kInfinity, -kInfinity, std::nanf("")}) {
        CHECK_THROWS(std::invalid_argument, "no finite number", write(value));
      }
      const bool is_narrow = dtype == DType::f16 || (is_grouped(dtype) && dtype != DType::mxfp4);
      for (const float value : {9e7F, -9e7F}) {
        if (is_narrow) {
          const std::string told = std::to_string(value) + " is too large for " + dtype_name(dtype);
          CHECK_THROWS(std::overflow_error, told, write(value));
        } else {
          write(value);
        }
      }
      if (dtype != DType::f16) continue;
      write(std::nextafter(65520.0F, 0.0F));  // the greatest that is not rounded to an infinity
      CHECK_THROWS(std::overflow_error, "65520.000000 is too large for f16", write(65520.0F));
      CHECK_THROWS(std::overflow_error, "-65520.000000 is too", write(-65520.0F));
    }
  }
}

TEST(rows_beyond_the_cache_are_refused) {
  Kernels kernels(1, "scalar");
  const std::vector<float> values = some(2 * 3 * 8, 1, 6);
  std::vector<uint8_t> cache(2 * 5 * 16, 0xA5);
  const auto write = [&](const HeadRows& rows, size_t count, int64_t position) {
    kernels.write_head_rows(rows, {values.data(), count}, position, out_view(&cache));
  };
  const HeadRows rows = {DType::f16, 8, 2};
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  CHECK_THROWS(std::out_of_range, "3 rows from 3 on are beyond 5", write(rows, 48, 3));
  CHECK_THROWS(std::out_of_range, "beyond 5", write(rows, 48, kMost));
  CHECK_THROWS(std::out_of_range, "position is negative: -1", write(rows, 48, -1));
  CHECK_THROWS(std::invalid_argument, "values has 40 values; whole rows", write(rows, 40, 0));
  CHECK_THROWS(std::invalid_argument, "columns is 0", write({DType::f16, 0, 2}, 48, 0));
  CHECK_THROWS(std::invalid_argument, "kv_heads is -2", write({DType::f16, 8, -2}, 48, 0));
  CHECK_THROWS(std::invalid_argument, "cache has 160 bytes", write({DType::f16, 8, 3}, 48, 0));
  CHECK(cache == std::vector<uint8_t>(cache.size(), 0xA5));
  write(rows, 48, 2);
}

TEST(rows_are_copied_to_other_places) {
  for (const int64_t row : {1, 7, 4096}) {
    const auto bytes = static_cast<size_t>(row);
    std::vector<uint8_t> from(200 * bytes);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>((i * 2654435761U) >> 9);
    std::vector<int32_t> from_ids(190);
    std::vector<int32_t> to_ids(190);
    for (size_t i = 0; i < from_ids.size(); ++i) {
      from_ids[i] = static_cast<int32_t>(i * i % 200);  // some of them twice
      to_ids[i] = static_cast<int32_t>(i * 7 % 211);    // 211 is prime: distinct
    }
    std::vector<uint8_t> to(211 * bytes, 0xA5);
    std::vector<uint8_t> expected = to;
    for (size_t i = 0; i < to_ids.size(); ++i) {
      std::memcpy(expected.data() + static_cast<size_t>(to_ids[i]) * bytes,
                  from.data() + static_cast<size_t>(from_ids[i]) * bytes, bytes);
    }
    for (const int threads : {1, 3}) {
      std::fill(to.begin(), to.end(), 0xA5);
      Kernels kernels(threads, "");
      kernels.copy_rows(view(from), view(from_ids), row, out_view(&to), view(to_ids));
      CHECK(to == expected);
    }
  }
}

TEST(rows_are_copied_from_and_to_nowhere_else) {
  Kernels kernels(1, "");
  const std::vector<uint8_t> from(40, 1);
  std::vector<uint8_t> to(30, 0xA5);
  using Ids = std::vector<int32_t>;
  const auto copy = [&](const Ids& from_ids, const Ids& to_ids, int64_t row) {
    kernels.copy_rows(view(from), view(from_ids), row, out_view(&to), view(to_ids));
  };
  CHECK_THROWS(std::invalid_argument, "to_ids has 1 values for 2 ids", copy({0, 1}, {0}, 10));
  for (const int64_t row : {0, -10})
    CHECK_THROWS(std::invalid_argument, "row", copy({0}, {0}, row));
  for (const int32_t id : {-1, 4}) CHECK_THROWS(std::out_of_range, "id", copy({0, id}, {0, 1}, 10));
  for (const int32_t id : {-1, 3}) CHECK_THROWS(std::out_of_range, "id", copy({0, 1}, {0, id}, 10));
  CHECK_THROWS(std::out_of_range, "outside", copy({0}, {0}, std::numeric_limits<int64_t>::max()));
  CHECK(to == std::vector<uint8_t>(30, 0xA5));
  copy({3}, {2}, 10);
}
