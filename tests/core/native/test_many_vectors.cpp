// The same rows with many vectors: the bits of each vector alone, and the ends of allocations.
#include <random>

#include "kernels.h"
#include "testing.h"

using namespace flash_core;

namespace {

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31F;
  return values;
}

struct Encoded {
  std::vector<uint8_t> bytes;
  size_t stride;
  std::vector<int32_t> ids;

  Encoded(size_t count, size_t columns, DType dtype) : stride(row_bytes(dtype, columns).get()) {
    const std::vector<float> values = random_floats(count * columns, 1);
    bytes.resize(count * stride);
    Kernels(1, "scalar")
        .encode_rows({values.data(), values.size()}, columns, dtype, {bytes.data(), bytes.size()});
    for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(i * 7 % count));
  }
};

constexpr DType kAll[] = {DType::f32,  DType::f16,  DType::bf16,
                          DType::int8, DType::int4, DType::mxfp4};

}  // namespace

TEST(many_vectors_get_the_bits_of_each_alone) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 15, 64, 257, 1000, 4099}) {
        const size_t count = columns > 1000 ? 5 : 29;
        const Encoded rows(count, columns, dtype);
        for (const size_t vectors : {1, 2, 3, 4, 5, 6, 7, 13, 64}) {
          const std::vector<float> x = random_floats(vectors * columns, 2);
          std::vector<float> out(vectors * count);
          Kernels kernels(vectors % 2 == 0 ? 3 : 1, table->name);
          kernels.matmul({rows.bytes.data(), rows.bytes.size()}, dtype,
                         {x.data(), vectors, columns}, {out.data(), vectors, count});
          for (size_t v = 0; v < vectors; ++v) {
            std::vector<float> alone(count);
            kernels.matvec({rows.bytes.data(), rows.bytes.size()}, dtype,
                           {x.data() + v * columns, columns}, {alone.data(), count});
            CHECK(std::equal(alone.begin(), alone.end(), out.begin() + v * count));
          }
        }
      }
    }
  }
}

TEST(tiles_give_the_bits_of_rows) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      const size_t tile_rows = Kernels(1, table->name).tile_rows(dtype);
      CHECK(tile_rows == 0 || tile_rows == 32);
      if (tile_rows == 0) continue;
      for (const size_t columns : {1, 32, 500, 513, 1000, 4100}) {
        const size_t count = 2 * tile_rows;
        const Encoded rows(count, columns, dtype);
        std::vector<uint8_t> tiles = rows.bytes;
        for (const bool fast : {false, true}) {
          Kernels kernels(fast ? 1 : 3, table->name, fast);
          if (!fast) CHECK(kernels.tile_matrix({tiles.data(), tiles.size()}, dtype, columns));
          for (const size_t vectors : {0, 1, 2, 3, 4, 7, 30}) {
            const std::vector<float> x = random_floats(vectors * columns, 2);
            std::vector<float> expected(vectors * count), found(vectors * count);
            kernels.matmul({rows.bytes.data(), rows.bytes.size()}, dtype,
                           {x.data(), vectors, columns}, {expected.data(), vectors, count});
            kernels.matmul({tiles.data(), tiles.size()}, dtype, {x.data(), vectors, columns},
                           {found.data(), vectors, count}, true);
            CHECK(expected == found);
          }
        }
        tiles.resize(tiles.size() - rows.stride);
        CHECK(!Kernels(1, table->name).tile_matrix({tiles.data(), tiles.size()}, dtype, columns));
      }
    }
  }
}

TEST(rows_of_tiles_have_their_values) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 500, 1000}) {
        const Encoded rows(64, columns, dtype);
        std::vector<uint8_t> tiles = rows.bytes;
        const View<const uint8_t> bytes = {tiles.data(), tiles.size()};
        const View<const int32_t> ids = {rows.ids.data(), rows.ids.size()};
        std::vector<float> expected(64 * columns), found(64 * columns);
        const View<float> out = {found.data(), found.size()};
        Kernels kernels(3, table->name);
        if (!kernels.tile_matrix({tiles.data(), tiles.size()}, dtype, columns)) {
          CHECK_THROWS(std::invalid_argument, "no tiles of",
                       kernels.decode_tiles(bytes, dtype, ids, columns, out));
          continue;
        }
        kernels.decode_rows(
            {{rows.bytes.data(), rows.bytes.size()}, static_cast<int64_t>(rows.stride), 0, dtype},
            ids, columns, {expected.data(), expected.size()});
        kernels.decode_tiles(bytes, dtype, ids, columns, out);
        CHECK(found == expected);
        const std::vector<int32_t> wrong = {64};
        CHECK_THROWS(std::out_of_range, "64",
                     kernels.decode_tiles(bytes, dtype, {wrong.data(), 1}, columns,
                                          {found.data(), columns}));
        CHECK_THROWS(std::invalid_argument, "values for",
                     kernels.decode_tiles(bytes, dtype, ids, columns, {found.data(), columns}));
        CHECK_THROWS(std::invalid_argument, "no tiles of",
                     kernels.decode_tiles({tiles.data(), tiles.size() - rows.stride}, dtype, ids,
                                          columns, out));
      }
    }
  }
}

TEST(sums_of_many_vectors_have_the_bits_of_each_alone) {
  for (const KernelTable* table : available_kernels()) {
    for (const DType dtype : kAll) {
      for (const size_t columns : {1, 15, 64, 300, 1000}) {
        const Encoded rows(101, columns, dtype);
        const Rows where = {
            {rows.bytes.data(), rows.bytes.size()}, static_cast<int64_t>(rows.stride), 0, dtype};
        const std::vector<int32_t> ends = {0, 7, 71, 101};
        const View<const int32_t> ids = {rows.ids.data(), rows.ids.size()};
        for (const size_t vectors : {1, 2, 14, 33}) {
          std::vector<float> weights = random_floats(vectors * 101, 3);
          // Every third vector has zeros among its weights.
          for (size_t i = 0; i < weights.size(); i += 2) {
            if (i / 101 % 3 == 0) weights[i] = 0;
          }
          std::vector<float> out = random_floats(vectors * columns, 4);
          std::vector<float> alone = out;
          Kernels kernels(2, table->name);
          kernels.weighted_sum_rows_all(where, ids, {weights.data(), vectors, 101},
                                        {ends.data(), ends.size()}, {out.data(), vectors, columns});
          for (size_t v = 0; v < vectors; ++v) {
            kernels.weighted_sum_rows(where, ids, {weights.data() + v * 101, 101},
                                      {ends.data(), ends.size()},
                                      {alone.data() + v * columns, columns});
          }
          CHECK(out == alone);
        }
      }
    }
  }
}

TEST(wrong_sizes_for_many_vectors_are_refused) {
  const Encoded rows(4, 8, DType::f32);
  const std::vector<float> x = random_floats(24, 1);
  std::vector<float> out(12);
  Kernels kernels(1, "scalar");
  const auto multiply = [&](size_t vectors, size_t columns, size_t results, size_t count) {
    kernels.matmul({rows.bytes.data(), rows.bytes.size()}, DType::f32, {x.data(), vectors, columns},
                   {out.data(), results, count});
  };
  multiply(3, 8, 3, 4);
  CHECK_THROWS(std::invalid_argument, "one a vector", multiply(3, 8, 2, 4));
  CHECK_THROWS(std::invalid_argument, "were expected", multiply(3, 8, 3, 3));
  CHECK_THROWS(std::invalid_argument, "columns", multiply(3, 0, 3, 4));
  std::vector<uint8_t> copy = rows.bytes;
  const View<uint8_t> all = {copy.data(), copy.size()};
  CHECK(!kernels.tile_matrix(all, DType::f32, 8));
  CHECK(copy == rows.bytes);
  CHECK_THROWS(std::invalid_argument, "whole number of rows",
               kernels.tile_matrix(all, DType::f32, 9));
  CHECK_THROWS(std::invalid_argument, "no tiles of",
               kernels.matmul({copy.data(), copy.size()}, DType::f32, {x.data(), 3, 8},
                              {out.data(), 3, 4}, true));
  kernels.close();
  CHECK_THROWS(std::invalid_argument, "closed", multiply(3, 8, 3, 4));
}
