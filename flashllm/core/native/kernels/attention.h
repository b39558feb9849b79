// Attention of one token over the encoded keys and values of a layer, and writing their rows.
//
// A layer's keys, and its values, lie as [kv_heads, capacity, row], so that what one head reads is
// one stretch of memory from its first token to its last; or in runs (attention_runs.h).
//
// Goals: each row comes from DRAM once for all heads that share it; the same bits for every number
// of threads and for every capacity, and for a token alone or among others.
// Threads: none of its own; Kernels shares the heads out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention_runs.h"
#include "dtype.h"
#include "kernel_table.h"
#include "quantised_input.h"
#include "view.h"

namespace flash_core {

// How the rows of one layer's keys, or values, lie.
struct HeadRows {
  DType dtype;
  int64_t columns;   // of a head
  int64_t kv_heads;  // as many query heads share one as there are more of them
};

// Positions that a token sees, itself among them: first to end - 1.
struct Positions {
  int64_t first;
  int64_t end;
};

struct Attend {
  View<const float> query;     // [heads, columns]
  View<const uint8_t> keys;    // [kv_heads, capacity, row]
  View<const uint8_t> values;  // as keys
  HeadRows rows;
  Positions seen;
  float scale;
  View<float> out;          // as query
  View<const float> sinks;  // [heads], or none: a score of each head that takes its share of the
                            // softmax and brings no value
};

// Attention of the last `tokens` of `end` positions, each of which sees those before it and itself,
// `window` of them where that is not 0.
struct AttendMany {
  View<const float> query;     // [tokens, heads, columns]
  View<const uint8_t> keys;    // as of Attend
  View<const uint8_t> values;  // as keys
  HeadRows rows;
  int64_t tokens;
  int64_t end;
  int64_t window;
  float scale;
  View<float> out;          // as query
  View<const float> sinks;  // as of Attend
};

// Attention of a token of each of several contexts, which have keys and values of their own: of
// context i to the last `window` of ends[i] positions, or to all of them where `window` is 0.
struct AttendEach {
  Matrix<const float> query;                // [contexts, heads * columns]
  std::vector<View<const uint8_t>> keys;    // of each context, as of Attend
  std::vector<View<const uint8_t>> values;  // as keys
  HeadRows rows;
  View<const int64_t> ends;  // [contexts]
  int64_t window;
  float scale;
  Matrix<float> out;        // as query
  View<const float> sinks;  // as of Attend
};

// Rows of a token of each of several contexts, which become those of positions[i] of caches[i].
struct WriteEach {
  Matrix<const float> values;  // [contexts, kv_heads * columns]
  HeadRows rows;
  View<const int64_t> positions;      // [contexts]
  std::vector<View<uint8_t>> caches;  // of each context [kv_heads, capacity, row]; none twice
};

// As Attend, of rows in runs: each head of keys has its own, and all of them are seen.
struct AttendRuns {
  View<const float> query;     // [heads, columns]
  View<const uint8_t> keys;    // anything that has such rows
  View<const uint8_t> values;  // as keys
  DType dtype;
  int64_t columns;
  Matrix<const int64_t> runs;    // [runs, 3], as HeadRuns::assign takes them
  View<const int32_t> run_ends;  // [kv_heads]
  float scale;
  View<float> out;          // as query
  View<const float> sinks;  // as of Attend
};

// As AttendMany, of rows in runs; every head of keys has as many, the positions of the last token.
struct AttendManyRuns {
  AttendRuns rows;  // query and out are [tokens, heads, columns]
  int64_t tokens;
  int64_t window;
};

// What one token's heads multiply, once it was checked.
struct AttendSizes {
  size_t heads;
  size_t kv_heads;
  size_t columns;
  size_t row_bytes;
  size_t capacity;  // rows of a head that there may be scores of

  size_t sharing() const { return heads / kv_heads; }
};

// Rows of a head's runs that are seen.
struct SeenRows {
  size_t first;
  size_t end;

  size_t count() const { return end - first; }
};

// One token's attention, checked.
struct Attention {
  DType dtype;
  AttendSizes sizes;
  const HeadRuns& runs;
  SeenRows seen;  // of every head of keys; none for all of its rows
  const float* query;
  float scale;
  float* out;
  View<const float> sinks;
};

// invalid_argument where sizes do not fit together, out_of_range for positions beyond the rows.
// `runs` becomes the layer's.
AttendSizes check_attend(const Attend& task, HeadRuns* runs);

// The same of runs; out_of_range for runs that leave the bytes.
AttendSizes check_attend_runs(const AttendRuns& task, HeadRuns* runs);

// A head's query, in a line of the cache of its own: other threads have those beside it.
struct alignas(64) HeadQuery {
  QuantisedInput rounded;
  DotInput input = {};
};

// Where some heads that follow one another are computed, the first of them first.
struct HeadRoom {
  float* scores;   // [heads, capacity]
  float* partial;  // [columns in whole units]
  HeadQuery* queries;
};

// Memory that is kept from call to call.
struct AttendScratch {
  HeadRuns runs;
  std::vector<float> scores;       // [heads, capacity]
  std::vector<float> partials;     // [heads, columns in whole units]
  std::vector<HeadQuery> queries;  // of each head

  // For so many heads of a layer.
  void make_room(size_t heads, const AttendSizes& sizes);
  // From head number `head` of them on.
  HeadRoom from(size_t head, const AttendSizes& sizes);
};

// out of heads first_head to last_head - 1: softmax(scale * query @ keys) @ values, the softmax
// over the head's sink too, where there are sinks.
void attend_heads(const KernelTable& table, const Attention& task, size_t first_head,
                  size_t last_head, const HeadRoom& room);

struct WriteSizes {
  size_t kv_heads;
  size_t tokens;
  size_t columns;
  size_t row_bytes;
  size_t capacity;
};

// As check_attend, for Kernels::write_head_rows.
WriteSizes check_write(const HeadRows& rows, View<const float> values, int64_t position,
                       View<uint8_t> cache);

// Encodes rows of `columns` values, one after the other; the first that cannot be, or `count`.
size_t write_rows(const KernelTable& table, DType dtype, const float* values, size_t count,
                  size_t columns, uint8_t* to);

// How much work it is to encode so many values, as the bytes that it takes as long to read.
size_t encoding_work(DType dtype, size_t values);

// What is wrong with a row that could not be written: throws.
[[noreturn]] void refuse_row(DType dtype, const float* values, size_t columns);

}  // namespace flash_core
