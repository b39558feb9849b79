// Products of encoded rows: dot with a vector, and weighted sum; rows encoded and decoded.
//
// Goals: no read outside the rows whatever the ids are; the same bits for every number of
// threads, and for a vector alone or among others. Not a goal: training.
// Threads: calls are served one at a time; each is computed by `threads` of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attention.h"
#include "buffer.h"
#include "compute_pool.h"
#include "dtype.h"
#include "kernel_table.h"
#include "quantised_input.h"
#include "routing.h"
#include "rows.h"
#include "token_rows.h"
#include "view.h"

namespace flash_core {

// A matrix [n, d] that others are multiplied beside, and its product: out [vectors, n], each row
// plus `bias` [n], or none.
struct SharedProduct {
  View<const uint8_t> rows;
  View<const float> bias;
  Matrix<float> out;
};

// Experts that lie at bytes begins[i]: a gate [neurons, d], up of the same and down [d, neurons]
// one behind the other, and where `has_biases` those of the three in f32. Each gets its vector of x
// [experts, d], or the only one; out [experts, d] are their outputs. How gate and up are put
// together is said at GateRows. `room` [experts, 2 * neurons] is memory to work in. Where there are
// `weights` [experts], `total` [d] += each output times its weight, in order.
struct Experts {
  View<const uint8_t> bytes;
  View<const int64_t> begins;
  DType dtype;
  bool has_biases;
  float slope;
  float limit;
  float up_offset;
  Matrix<const float> x;
  Matrix<float> room;
  Matrix<float> out;
  View<const float> weights;
  View<float> total;
};

// A router [experts, d] with its bias, or none, and the token x [d] that it chooses experts for. As
// many as it can choose at most, ascending, and their weights: `ids` and `weights` [per_token].
struct Route {
  View<const uint8_t> rows;
  DType dtype;
  View<const float> bias;
  View<const float> choice_bias;
  Routing routing;
  View<const float> x;
  View<int32_t> ids;
  View<float> weights;
};

// A token's queries, keys and values as they are projected, [heads * columns] each: these are
// placed as place_heads() does, with a norm [columns] and angles [pairs], or without, and keys and
// values become the rows of `position`. Then it attends to positions from `first` to that one, as
// Attend says.
struct AttendProjected {
  View<const float> query;
  View<const float> key;
  View<const float> value;
  View<const float> query_norm;
  View<const float> key_norm;
  double eps;
  View<const float> cos;
  View<const float> sin;
  View<uint8_t> keys;    // [kv_heads, capacity, row]
  View<uint8_t> values;  // as keys
  HeadRows rows;
  int64_t first;
  int64_t position;
  float scale;
  View<float> out;          // as query
  View<const float> sinks;  // as of Attend
};

class Kernels {
 public:
  // invalid_argument for a number of threads out of range, or an unknown name. With no name:
  // the environment's FLASHLLM_ISA, else the best that the processor has. `fast` rounds vectors
  // that are multiplied with rows of groups to 7 bits, not to 14; queries of attention have 14.
  Kernels(int threads, const char* isa, bool fast = false);

  // out [n] = rows [n, d] @ x [d]; invalid_argument unless rows has exactly n * d values.
  void matvec(View<const uint8_t> rows, DType dtype, View<const float> x, View<float> out);

  // out [n]: out[i] = dot(row ids[i], x [d]); out_of_range for an id outside the bytes.
  void dot_rows(const Rows& rows, View<const int32_t> ids, View<const float> x, View<float> out);

  // out [d] += over blocks b in order, the sum in order of weights[i] * row ids[i] for i from
  // block_ends[b - 1] to block_ends[b]. A block's sum starts at 0; a weight of 0 skips its row.
  void weighted_sum_rows(const Rows& rows, View<const int32_t> ids, View<const float> weights,
                         View<const int32_t> block_ends, View<float> out);

  // The same for several vectors, each with rows of its own: vector v [d] of `x` [vectors, d] has
  // ids from vector_ends[v - 1] to vector_ends[v]. The bits are those of a call for each of them.
  void dot_rows_each(const Rows& rows, View<const int32_t> ids, View<const int32_t> vector_ends,
                     View<const float> x, View<float> out);

  // The same for the weighted sums `out` [vectors, d]; no block has rows of two vectors.
  void weighted_sum_rows_each(const Rows& rows, View<const int32_t> ids, View<const float> weights,
                              View<const int32_t> vector_ends, View<const int32_t> block_ends,
                              View<float> out);

  // out [matrices, n]: of each matrix [n, d], which begins at byte begins[i], with its vector of x
  // [matrices, d], or with the only one: the bits of matvec() for each. out_of_range for a matrix
  // outside the bytes.
  void matvec_each(View<const uint8_t> bytes, View<const int64_t> begins, DType dtype,
                   Matrix<const float> x, Matrix<float> out);

  // out [vectors, n] = x [vectors, d] @ rows [n, d]: the bits of matvec() for each vector. A row is
  // read and decoded once for some hundreds of them. `tiled` rows are as tile_matrix() left them.
  void matmul(View<const uint8_t> rows, DType dtype, Matrix<const float> x, Matrix<float> out,
              bool tiled = false);

  // matmul() of matrices of one encoding with the same vectors, each plus its bias: the same bits,
  // in one job where there is one vector.
  void matmul_several(const std::vector<SharedProduct>& products, DType dtype,
                      Matrix<const float> x, bool tiled);

  // The outputs of gated experts: the bits of matvec_each(), gate_rows() and matvec_each() again.
  void apply_experts(const Experts& task);

  // The experts whose weights are not 0: the bits of matmul() and expert_weights(). Returns how
  // many.
  size_t route(const Route& task);

  // Rows of a tile of this encoding; 0 where the instruction set has no tiles of it.
  size_t tile_rows(DType dtype);

  // Puts the rows of a matrix in tiles, in their place and with the same bytes, so that matmul()
  // takes fewer instructions, with the same bits; nothing but that and decode_tiles() takes them
  // then. False, with nothing changed, where the instruction set has no tiles, or there is a part
  // of one.
  bool tile_matrix(View<uint8_t> rows, DType dtype, size_t columns);

  // The same with the rows of `ids`: the bits of dot_rows() for each vector.
  void dot_rows_all(const Rows& rows, View<const int32_t> ids, Matrix<const float> x,
                    Matrix<float> out);

  // out [vectors, d] += the weighted sums of the same rows for each vector by its weights
  // [vectors, n]: the bits of weighted_sum_rows() for each.
  void weighted_sum_rows_all(const Rows& rows, View<const int32_t> ids, Matrix<const float> weights,
                             View<const int32_t> block_ends, Matrix<float> out);

  // out = what one token's heads make of the positions that it sees; errors as of check_attend.
  void attend(const Attend& task);

  // The bits of place_heads(), write_head_rows() and attend(). What is wrong with a row that cannot
  // be encoded begins with "key: " or "value: ".
  void attend_projected(const AttendProjected& task);

  // The same of rows in runs: the bits of attend() where they are those of its positions.
  void attend_runs(const AttendRuns& task);

  // The same for a token of each of several contexts: the bits of attend() for each.
  void attend_each(const AttendEach& task);

  // The same for several tokens that follow one another: the bits of attend() for each.
  void attend_many(const AttendMany& task);
  void attend_many_runs(const AttendManyRuns& task);

  // Encodes values [kv_heads, tokens, columns] into `cache` [kv_heads, capacity, row], as the rows
  // of positions from `position` on. invalid_argument for a NaN or an infinity, overflow_error for
  // what the encoding cannot hold; the rows then hold anything.
  void write_head_rows(const HeadRows& rows, View<const float> values, int64_t position,
                       View<uint8_t> cache);

  // The same of a token of each of several contexts, with the bytes of a call for each. Of rows
  // that cannot be encoded the first one is named.
  void write_head_rows_each(const WriteEach& task);

  // out [n * row_bytes] from values [n * columns]; invalid_argument for a value that is not finite
  // or that no scale reaches. `out` then holds anything.
  void encode_rows(View<const float> values, size_t columns, DType dtype, View<uint8_t> out);

  // out [n * columns] = the values of rows ids [n]; out_of_range for an id outside the bytes.
  void decode_rows(const Rows& rows, View<const int32_t> ids, size_t columns, View<float> out);

  // The same of rows that are as tile_matrix() left them.
  void decode_tiles(View<const uint8_t> rows, DType dtype, View<const int32_t> ids, size_t columns,
                    View<float> out);

  // Rows of `row_bytes` bytes: row to_ids[i] of `to` = row from_ids[i] of `from`. The `to_ids` are
  // distinct; out_of_range for an id outside the bytes, of either side.
  void copy_rows(View<const uint8_t> from, View<const int32_t> from_ids, int64_t row_bytes,
                 View<uint8_t> to, View<const int32_t> to_ids);

  // Rows of tokens between products; errors as of the checks in token_rows.h.
  void norm_rows(const NormRows& task);
  void place_heads(const PlaceHeads& task);
  void add_shares(const AddShares& task);

  void close();
  const char* isa() const { return table_.name; }
  bool fast() const { return fast_; }
  int threads() const { return threads_; }

 private:
  // Locks, and refuses a closed object.
  std::unique_lock<std::mutex> enter();
  // Parts of a job over so many bytes, of which each thread may take several.
  int parts_for(size_t bytes, size_t most) const;
  // attend() and write_head_rows(), with the lock held.
  void attend_held(const Attend& task);
  void write_held(const HeadRows& rows, View<const float> values, int64_t position,
                  View<uint8_t> cache);
  // `rows` of keys are multiplied, all heads of them together.
  void attend_one(const Attention& task, size_t rows);
  // Where row_of(id) is a row for as long as decoding it takes.
  template <class RowOf>
  void decode_each(DType dtype, const RowOf& row_of, View<const int32_t> ids, size_t columns,
                   View<float> out);
  // What dots take of each vector of x, which lie `stride` values apart; until the next call.
  const DotInput* prepare_each(DType dtype, Matrix<const float> x, size_t stride);
  // matvec_each() of checked matrices that begin `offset` bytes behind `begins`, with such vectors.
  void multiply_each(View<const uint8_t> bytes, View<const int64_t> begins, size_t offset,
                     DType dtype, Matrix<const float> x, size_t x_stride, Matrix<float> out);
  // matmul() of what has been checked.
  void multiply_matrix(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                       Matrix<float> out, bool tiled);
  // Of one vector, with all the matrices in one job.
  void multiply_together(const std::vector<SharedProduct>& products, DType dtype,
                         View<const float> x, bool tiled);
  // The product kernel of matrices in tiles of `rows` rows; invalid_argument where there is none.
  const ProductKernel& tiled_product(DType dtype, size_t rows) const;
  // Products of all rows with all vectors, of which row_of(i) gives where row i lies.
  template <class RowOf>
  void multiply(DType dtype, size_t row_bytes, const RowOf& row_of, Matrix<const float> x,
                Matrix<float> out);
  // The same with rows that lie in tiles.
  void multiply_tiled(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                      Matrix<float> out);
  // Where panel_of(first row, rows, room) is a packed panel of them.
  template <class PanelOf>
  void multiply_many(DType dtype, const PanelOf& panel_of, Matrix<const float> x,
                     Matrix<float> out);
  // Of so many vectors as are packed at once.
  template <class PanelOf>
  void multiply_packed(DType dtype, const PanelOf& panel_of, Matrix<const float> x,
                       Matrix<float> out);
  // Of a few, with rows as they lie.
  template <class RowOf>
  void multiply_one_by_one(DType dtype, size_t row_bytes, const RowOf& row_of,
                           Matrix<const float> x, Matrix<float> out);
  const uint8_t* pack_vectors(DType dtype, Matrix<const float> x);
  // The same where a part is some of the vectors, with all of their rows.
  int parts_of_vectors(size_t bytes, size_t vectors) const;

  const KernelTable& table_;
  int threads_;
  bool fast_;
  std::mutex mutex_;
  std::unique_ptr<ComputePool> pool_;
  std::vector<QuantisedInput> inputs_;  // of vectors that are multiplied with rows as they lie
  std::vector<DotInput> prepared_;      // of the same
  std::vector<float> scores_;           // of a router
  std::vector<float> placed_;           // a token's queries, then its keys
  std::vector<float> partial_;          // [columns], whole units; each part has its own range
  AttendScratch attend_scratch_;
  std::vector<HeadRuns> runs_of_each_;  // of each context
  std::unique_ptr<Buffer> packed_;      // vectors of a product
};

}  // namespace flash_core
