// Calls that do what several calls do: the same bits, and the ends of allocations.
#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>

#include "kernels.h"
#include "testing.h"
#include "views.h"

using namespace flash_core;

namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

Floats random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31F;
  return values;
}

Bytes encoded(size_t rows, size_t columns, DType dtype, uint32_t seed) {
  const Floats values = random_floats(rows * columns, seed);
  Bytes bytes(rows * row_bytes(dtype, columns).get());
  Kernels(1, "scalar").encode_rows(view(values), columns, dtype, out_view(&bytes));
  return bytes;
}

constexpr DType kAll[] = {DType::f32,  DType::f16,  DType::bf16,
                          DType::int8, DType::int4, DType::mxfp4};

Matrix<const float> rows_of(const Floats& values, size_t rows) {
  return {values.data(), rows, values.size() / rows};
}

Matrix<float> rows_of(Floats* values, size_t rows) {
  return {values->data(), rows, values->size() / rows};
}

}  // namespace

TEST(matrices_with_the_same_vectors_get_the_bits_of_each_alone) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 33, 512, 1000}) {
        Kernels kernels(3, table->name);
        const Bytes first = encoded(320, columns, dtype, 1);
        const Bytes second = encoded(32, columns, dtype, 2);
        const Floats bias = random_floats(32, 3);
        Bytes first_tiles = first;
        Bytes second_tiles = second;
        const bool tiled = kernels.tile_matrix(out_view(&first_tiles), dtype, columns) &&
                           kernels.tile_matrix(out_view(&second_tiles), dtype, columns);
        for (const size_t vectors : {1, 5}) {
          const Floats x = random_floats(vectors * columns, 4);
          Floats alone(vectors * 320);
          Floats beside(vectors * 32);
          kernels.matmul(view(first), dtype, rows_of(x, vectors), rows_of(&alone, vectors));
          kernels.matmul(view(second), dtype, rows_of(x, vectors), rows_of(&beside, vectors));
          for (size_t i = 0; i < beside.size(); ++i) beside[i] += bias[i % 32];
          Floats out(alone.size());
          Floats more(beside.size());
          kernels.matmul_several(
              {{tiled ? view(first_tiles) : view(first), {}, rows_of(&out, vectors)},
               {tiled ? view(second_tiles) : view(second), view(bias), rows_of(&more, vectors)}},
              dtype, rows_of(x, vectors), tiled);
          CHECK(out == alone);
          CHECK(more == beside);
        }
      }
    }
  }
}

TEST(rows_from_several_places_get_the_bits_of_scalar_ones) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : {DType::int8, DType::int4, DType::mxfp4}) {
      for (const size_t rows : {1, 3, 4, 5, 31, 257}) {
        const Bytes bytes = encoded(rows, 96, dtype, 5);
        const Floats x = random_floats(96, 6);
        Floats out(rows);
        Kernels(2, table->name).matvec(view(bytes), dtype, view(x), out_view(&out));
        for (size_t r = 0; r < rows; ++r) {
          const size_t nbytes = bytes.size() / rows;
          Floats alone(1);
          Kernels(1, table->name)
              .matvec({bytes.data() + r * nbytes, nbytes}, dtype, view(x), out_view(&alone));
          CHECK(out[r] == alone[0]);
        }
      }
    }
  }
}

TEST(experts_have_the_bits_of_their_steps) {
  constexpr size_t kWidth = 70;
  constexpr size_t kNeurons = 40;
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      Bytes bundles = encoded(2 * kNeurons, kWidth, dtype, 1);
      const Bytes down = encoded(kWidth, kNeurons, dtype, 2);
      const size_t gate_up = bundles.size();
      bundles.insert(bundles.end(), down.begin(), down.end());
      const Floats biases = random_floats(2 * kNeurons + kWidth, 3);
      const auto* const raw = reinterpret_cast<const uint8_t*>(biases.data());
      bundles.insert(bundles.end(), raw, raw + biases.size() * sizeof(float));
      const std::vector<int64_t> begins = {0, 0};
      const std::vector<int64_t> downs = {static_cast<int64_t>(gate_up),
                                          static_cast<int64_t>(gate_up)};
      const Floats x = random_floats(2 * kWidth, 4);
      Floats both(4 * kNeurons);
      Floats hidden(2 * kNeurons);
      Floats expected(2 * kWidth);
      Kernels kernels(2, table->name);
      kernels.matvec_each(view(bundles), view(begins), dtype, rows_of(x, 2), rows_of(&both, 2));
      for (size_t i = 0; i < both.size(); ++i) both[i] += biases[i % (2 * kNeurons)];
      gate_rows({both.data(), 2 * kNeurons, both.data() + kNeurons, 2 * kNeurons, 1.7F, 2.0F, 1.0F,
                 rows_of(&hidden, 2)});
      kernels.matvec_each(view(bundles), view(downs), dtype, rows_of(hidden, 2),
                          rows_of(&expected, 2));
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += biases[2 * kNeurons + i % kWidth];
      }
      const Floats weights = {0.25F, -3.0F};
      Floats room(both.size());
      Floats out(expected.size());
      Floats total(kWidth, 1.0F);
      kernels.apply_experts({view(bundles), view(begins), dtype, true, 1.7F, 2.0F, 1.0F,
                             rows_of(x, 2), rows_of(&room, 2), rows_of(&out, 2), view(weights),
                             out_view(&total)});
      CHECK(out == expected);
      for (size_t c = 0; c < kWidth; ++c) {
        float sum = 1.0F;
        for (size_t i = 0; i < 2; ++i) sum += weights[i] * expected[i * kWidth + c];
        CHECK(total[c] == sum);
      }
      const std::vector<int64_t> beyond = {0, 1};
      CHECK_THROWS(std::out_of_range, "beyond",
                   kernels.apply_experts({view(bundles),
                                          view(beyond),
                                          dtype,
                                          true,
                                          1.7F,
                                          2.0F,
                                          1.0F,
                                          rows_of(x, 2),
                                          rows_of(&room, 2),
                                          rows_of(&out, 2),
                                          {},
                                          {}}));
    }
  }
}

TEST(a_route_has_the_experts_that_count) {
  const Routing routing = {2, false, 1, 1, true, 0, 1};
  for (const KernelTable* table : available_kernels()) {
    const Floats router = {1, 0, 0, 2, 3, 0, -1, -1};  // of four experts
    Bytes bytes(router.size() * sizeof(float));
    Kernels kernels(1, table->name);
    kernels.encode_rows(view(router), 2, DType::f32, out_view(&bytes));
    const Floats x = {1, 1};
    std::vector<int32_t> ids(2);
    Floats weights(2);
    const Floats bias = {0, 0, 0, 9};
    const auto route = [&](const Floats& added) {
      return kernels.route({view(bytes),
                            DType::f32,
                            view(added),
                            {},
                            routing,
                            view(x),
                            out_view(&ids),
                            out_view(&weights)});
    };
    CHECK(route({}) == 2);
    CHECK(ids == (std::vector<int32_t>{1, 2}));
    CHECK(weights[1] > weights[0] && weights[0] > 0);
    CHECK(route(bias) == 2);
    CHECK(ids == (std::vector<int32_t>{2, 3}));
    ids.resize(3);
    CHECK_THROWS(std::invalid_argument, "ids has 3 values for 2", route({}));
  }
}

TEST(a_projected_token_has_the_bits_of_its_steps) {
  constexpr int64_t kColumns = 32;
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::int8, DType::int4}) {
      const Floats query = random_floats(4 * kColumns, 1);
      Floats key = random_floats(2 * kColumns, 2);
      const Floats value = random_floats(2 * kColumns, 3);
      const Floats norm = random_floats(kColumns, 4);
      const Floats cos = random_floats(kColumns / 2, 5);
      const Floats sin = random_floats(kColumns / 2, 6);
      const HeadRows rows = {dtype, kColumns, 2};
      Bytes keys = encoded(2 * 5, kColumns, dtype, 7);
      Bytes values = encoded(2 * 5, kColumns, dtype, 8);
      Bytes own_keys = keys;
      Bytes own_values = values;
      Floats placed_query(query.size());
      Floats placed_key(key.size());
      Floats expected(query.size());
      Floats out(query.size());
      Kernels kernels(2, table->name);
      const auto place = [&](const Floats& from, Floats* to) {
        kernels.place_heads({rows_of(from, 1), kColumns, view(norm), 1e-5, rows_of(cos, 1),
                             rows_of(sin, 1), out_view(to)});
      };
      place(query, &placed_query);
      place(key, &placed_key);
      kernels.write_head_rows(rows, view(placed_key), 4, out_view(&own_keys));
      kernels.write_head_rows(rows, view(value), 4, out_view(&own_values));
      kernels.attend({view(placed_query),
                      view(own_keys),
                      view(own_values),
                      rows,
                      {1, 5},
                      0.5F,
                      out_view(&expected),
                      {}});
      const auto attend = [&] {
        kernels.attend_projected({view(query),
                                  view(key),
                                  view(value),
                                  view(norm),
                                  view(norm),
                                  1e-5,
                                  view(cos),
                                  view(sin),
                                  out_view(&keys),
                                  out_view(&values),
                                  rows,
                                  1,
                                  4,
                                  0.5F,
                                  out_view(&out),
                                  {}});
      };
      attend();
      CHECK(keys == own_keys);
      CHECK(values == own_values);
      CHECK(out == expected);
      key[0] = std::numeric_limits<float>::infinity();
      CHECK_THROWS(std::invalid_argument, "key: ", attend());
    }
  }
}
