// Products of the same rows with several vectors: with rows as they lie for a few, else in panels
// of rows that are packed once for all vectors. The order of summation is that of a vector by
// itself, so the bits are.
#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "caches.h"
#include "checked.h"
#include "kernels.h"
#include "many_vectors.h"
#include "parts.h"
#include "row_dots.h"

namespace flash_core {

namespace {

// Packed vectors: at most so many bytes, so that they stay in the last cache while rows pass by.
// Of more vectors, as many as that are taken with all rows, and then the next.
constexpr size_t kPackedBytes = 8 << 20;
// What a thread takes by turns, and so finds in the last cache: rows as they are encoded, and at
// least so many bytes of packed vectors.
constexpr size_t kNearRowBytes = 4 << 20;
constexpr size_t kNearVectorBytes = 2 << 20;
// A byte of a packed vector takes as long as so many of rows.
constexpr size_t kPackingCost = 16;
// Panels that a tile of vectors meets one after the other, at most.
constexpr size_t kMostPanels = 32;
// What all threads have for them together, beyond one panel each: it is in no plan of memory.
constexpr size_t kPanelsBytes = 4 << 20;

// Packed vectors that a thread takes with some rows before it takes others: half of the last cache.
size_t near_vector_bytes() {
  return std::min(std::max(shared_cache_bytes() / 2, kNearVectorBytes), kPackedBytes);
}

// How many panels stay in a core's cache while vectors pass by, each tile of which is fetched once
// for all of them. One, where the cache has room for the vectors beside it: these stay then.
size_t panels_at_once(size_t panel_bytes, size_t vector_bytes, size_t threads) {
  const size_t near = std::min(core_cache_bytes() / 8 * 3, kPanelsBytes / threads);
  if (vector_bytes <= near) return 1;
  return std::min(std::max(near / panel_bytes, size_t{1}), kMostPanels);
}

}  // namespace

const uint8_t* Kernels::pack_vectors(DType dtype, Matrix<const float> x) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const size_t tile_bytes = kernel.steps(x.columns) * kernel.vectors * kernel.vector_piece_bytes;
  const size_t tiles = ceil_div(x.rows, kernel.vectors);
  const size_t nbytes = std::max(tiles * tile_bytes, size_t{1});
  if (packed_ == nullptr || packed_->size() < nbytes) {
    packed_.reset();
    packed_ = std::make_unique<Buffer>(static_cast<int64_t>(nbytes));
  }
  uint8_t* const packed = packed_->data();
  const int parts = parts_of_vectors(kPackingCost * tiles * tile_bytes, tiles);
  pool_->run(parts, [&](int part) {
    QuantisedInput own(fast_);
    QuantisedInput& rounded = parts == 1 ? inputs_[0] : own;
    for (size_t t = part_begin(tiles, part, parts); t < part_begin(tiles, part + 1, parts); ++t) {
      const size_t first = t * kernel.vectors;
      const size_t members = std::min(kernel.vectors, x.rows - first);
      for (size_t i = 0; i < members; ++i) {
        const DotInput input = rounded.prepare(dtype, x.row(first + i), x.columns);
        kernel.pack_vector(input, i, members, packed + t * tile_bytes);
      }
    }
  });
  return packed;
}

template <class PanelOf>
void Kernels::multiply_packed(DType dtype, const PanelOf& panel_of, Matrix<const float> x,
                              Matrix<float> out) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const size_t steps = kernel.steps(x.columns);
  const size_t vector_tile = kernel.vectors * kernel.vector_piece_bytes * steps;
  const size_t row_tile = kernel.rows * kernel.row_piece_bytes * steps;
  const size_t rows_at_once = panel_rows(kernel, row_tile);
  const size_t panels = ceil_div(out.columns, rows_at_once);
  const size_t panel_bytes = rows_at_once / kernel.rows * row_tile;
  const size_t row = row_bytes(dtype, x.columns).get();
  const size_t panels_near = std::max(kNearRowBytes / (rows_at_once * row), size_t{1});
  const uint8_t* const packed = pack_vectors(dtype, x);
  const size_t tiles = ceil_div(x.rows, kernel.vectors);
  // So much of the next tile of vectors is fetched with a panel, for its first pieces would come
  // from the last cache more slowly than they are multiplied.
  const size_t fetched = rows_at_once / kernel.rows * ceil_div(steps, 2) * sizeof(CacheLine);
  const size_t at_once =
      panels_at_once(panel_bytes, tiles * vector_tile, static_cast<size_t>(threads_));
  // Where there are few rows, threads have some of the vectors each.
  const auto wanted = static_cast<size_t>(
      parts_for(out.columns * x.rows * row, kPartsPerThread * static_cast<size_t>(threads_)));
  const size_t row_parts = std::min(panels, wanted);
  const size_t vector_parts = std::min(tiles, ceil_div(wanted, row_parts));
  const auto parts = static_cast<int>(row_parts * vector_parts);
  pool_->run(parts, [&](int part) {
    const int across = part % static_cast<int>(vector_parts);
    const int down = part / static_cast<int>(vector_parts);
    const size_t first_tile = part_begin(tiles, across, static_cast<int>(vector_parts));
    const size_t last_tile = part_begin(tiles, across + 1, static_cast<int>(vector_parts));
    const size_t last_panel = part_begin(panels, down + 1, static_cast<int>(row_parts));
    uint8_t* const room = scratch(at_once * panel_bytes);
    const auto multiply_panels = [&](size_t from, size_t to, size_t tile, size_t end) {
      std::array<TilePanel, kMostPanels> near;
      for (size_t q = from; q < to; ++q) {
        const size_t first = q * rows_at_once;
        const size_t count = std::min(rows_at_once, out.columns - first);
        near[q - from] = {panel_of(first, count, room + (q - from) * panel_bytes), count};
      }
      for (; tile < end; ++tile) {
        const size_t vector = tile * kernel.vectors;
        TileVectors of_tile = {packed + tile * vector_tile,
                               std::min(kernel.vectors, x.rows - vector), x.columns, fast_,
                               packed + (tile + 1) * vector_tile};
        for (size_t q = from; q < to; ++q, of_tile.ahead += fetched) {
          kernel.multiply(near[q - from], of_tile, out.row(vector) + q * rows_at_once, out.columns);
        }
      }
    };
    const size_t tiles_near = std::max(near_vector_bytes() / vector_tile, size_t{1});
    size_t p = part_begin(panels, down, static_cast<int>(row_parts));
    while (p < last_panel) {
      const size_t end = std::min(p + panels_near, last_panel);
      const auto groups = static_cast<int>(ceil_div(end - p, at_once));
      for (size_t t = first_tile; t < last_tile; t += tiles_near) {
        for (int g = 0; g < groups; ++g) {
          multiply_panels(p + part_begin(end - p, g, groups),
                          p + part_begin(end - p, g + 1, groups), t,
                          std::min(t + tiles_near, last_tile));
        }
      }
      p = end;
    }
  });
}

template <class PanelOf>
void Kernels::multiply_many(DType dtype, const PanelOf& panel_of, Matrix<const float> x,
                            Matrix<float> out) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const size_t vector_bytes = kernel.steps(x.columns) * kernel.vector_piece_bytes;
  const size_t tiles = std::max(kPackedBytes / (vector_bytes * kernel.vectors), size_t{1});
  for (size_t v = 0; v < x.rows; v += tiles * kernel.vectors) {
    const size_t count = std::min(tiles * kernel.vectors, x.rows - v);
    multiply_packed(dtype, panel_of, {x.row(v), count, x.columns},
                    {out.row(v), count, out.columns});
  }
}

template <class RowOf>
void Kernels::multiply_one_by_one(DType dtype, size_t row_bytes, const RowOf& row_of,
                                  Matrix<const float> x, Matrix<float> out) {
  const DotFunction dot = table_.dot[static_cast<size_t>(dtype)];
  const int parts =
      parts_for(out.columns * row_bytes, kPartsPerThread * static_cast<size_t>(threads_));
  for (size_t v = 0; v < x.rows; v += kMostByDots) {
    const size_t count = std::min(kMostByDots, x.rows - v);
    std::array<DotInput, kMostByDots> inputs;
    for (size_t i = 0; i < count; ++i) {
      inputs[i] = inputs_[i].prepare(dtype, x.row(v + i), x.columns);
    }
    pool_->run(parts, [&](int part) {
      const size_t first = part_begin(out.columns, part, parts);
      const size_t end = part_begin(out.columns, part + 1, parts);
      dot_apart(dot, {first, end, row_bytes}, row_of, inputs.data(),
                {out.row(v), count, out.columns});
    });
  }
}

template <class RowOf>
void Kernels::multiply(DType dtype, size_t row_bytes, const RowOf& row_of, Matrix<const float> x,
                       Matrix<float> out) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  if (out.columns == 0 || x.rows == 0) return;
  if (kernel.rows == 0 || x.rows <= kernel.by_dots) {
    return multiply_one_by_one(dtype, row_bytes, row_of, x, out);
  }
  multiply_many(
      dtype,
      [&](size_t first, size_t count, uint8_t* room) {
        PanelRows rows = {};
        rows.count = count;
        for (size_t r = 0; r < count; ++r) rows.rows[r] = row_of(first + r);
        kernel.pack_rows(rows, x.columns, room);
        return room;
      },
      x, out);
}

size_t Kernels::tile_rows(DType dtype) {
  const auto lock = enter();
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  return kernel.keeps_bytes ? kernel.rows : 0;
}

bool Kernels::tile_matrix(View<uint8_t> rows, DType dtype, size_t columns) {
  const auto lock = enter();
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const size_t row = row_bytes(dtype, columns).get();
  if (rows.size % row != 0) {
    throw std::invalid_argument("rows has " + std::to_string(rows.size) + " bytes, which is no " +
                                "whole number of rows of " + std::to_string(row));
  }
  const size_t count = rows.size / row;
  if (!kernel.keeps_bytes || count % kernel.rows != 0) return false;
  const size_t tiles = count / kernel.rows;
  const size_t tile_bytes = kernel.rows * row;
  const int parts = parts_for(rows.size, kPartsPerThread * static_cast<size_t>(threads_));
  pool_->run(parts, [&](int part) {
    uint8_t* const copy = scratch(tile_bytes);
    for (size_t t = part_begin(tiles, part, parts); t < part_begin(tiles, part + 1, parts); ++t) {
      uint8_t* const tile = rows.data + t * tile_bytes;
      std::memcpy(copy, tile, tile_bytes);
      PanelRows of_tile = {};
      of_tile.count = kernel.rows;
      for (size_t r = 0; r < kernel.rows; ++r) of_tile.rows[r] = copy + r * row;
      kernel.pack_rows(of_tile, columns, tile);
    }
  });
  return true;
}

const ProductKernel& Kernels::tiled_product(DType dtype, size_t rows) const {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  if (!kernel.keeps_bytes || rows % kernel.rows != 0) {
    throw std::invalid_argument(std::string(dtype_name(dtype)) + ": " + std::to_string(rows) +
                                " rows have no tiles of " + table_.name);
  }
  return kernel;
}

void Kernels::multiply_tiled(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                             Matrix<float> out) {
  tiled_product(dtype, out.columns);
  if (out.columns == 0 || x.rows == 0) return;
  const size_t row = row_bytes(dtype, x.columns).get();
  multiply_many(
      dtype, [&](size_t first, size_t, uint8_t*) { return rows.data + first * row; }, x, out);
}

void Kernels::matvec(View<const uint8_t> rows, DType dtype, View<const float> x, View<float> out) {
  matmul(rows, dtype, {x.data, 1, x.size}, {out.data, 1, out.size}, false);
}

void Kernels::multiply_matrix(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                              Matrix<float> out, bool tiled) {
  if (tiled) return multiply_tiled(rows, dtype, x, out);
  const size_t stride = row_bytes(dtype, x.columns).get();
  multiply(dtype, stride, [&](size_t i) { return rows.data + i * stride; }, x, out);
}

void Kernels::matmul(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                     Matrix<float> out, bool tiled) {
  const auto lock = enter();
  check_matrix(rows, dtype, x, out);
  multiply_matrix(rows, dtype, x, out, tiled);
}

void Kernels::multiply_together(const std::vector<SharedProduct>& products, DType dtype,
                                View<const float> x, bool tiled) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const DotFunction dot = table_.dot[static_cast<size_t>(dtype)];
  const size_t row = row_bytes(dtype, x.size).get();
  const size_t unit = tiled ? kernel.rows : 1;  // rows that stay together
  size_t rows = 0;
  for (const SharedProduct& one : products) rows += one.out.columns;
  DotInput input = {};
  TileVectors vector = {};
  if (tiled) {
    const uint8_t* const packed = pack_vectors(dtype, {x.data, 1, x.size});
    vector = {packed, 1, x.size, fast_, packed};
  } else {
    input = inputs_[0].prepare(dtype, x.data, x.size);
  }
  const auto multiply_rows = [&](const SharedProduct& one, size_t first, size_t end) {
    float* const out = one.out.data;
    if (tiled) {
      const size_t quarter = (end - first) / unit / kTilesApart * unit;
      for (size_t r = first; r < first + quarter; r += unit) {
        std::array<const uint8_t*, kTilesApart> tiles;
        std::array<float*, kTilesApart> outs;
        for (size_t t = 0; t < kTilesApart; ++t) {
          tiles[t] = one.rows.data + (r + t * quarter) * row;
          outs[t] = out + r + t * quarter;
        }
        kernel.multiply_apart(tiles, vector, outs);
      }
      for (size_t r = first + kTilesApart * quarter; r < end; r += unit) {
        kernel.multiply({one.rows.data + r * row, unit}, vector, out + r, one.out.columns);
      }
    } else {
      dot_apart(
          dot, {first, end, row}, [&](size_t r) { return one.rows.data + r * row; }, input, out);
    }
    if (one.bias.size == 0) return;
    for (size_t r = first; r < end; ++r) out[r] += one.bias.data[r];
  };
  const size_t units = rows / unit;
  const int parts =
      parts_for(rows * row, std::min(units, kPartsPerThread * static_cast<size_t>(threads_)));
  pool_->run(parts, [&](int part) {
    const size_t first = part_begin(units, part, parts) * unit;
    const size_t end = part_begin(units, part + 1, parts) * unit;
    size_t begin = 0;  // of a matrix, among the rows of all
    for (const SharedProduct& one : products) {
      const size_t from = std::max(first, begin);
      const size_t to = std::min(end, begin + one.out.columns);
      if (from < to) multiply_rows(one, from - begin, to - begin);
      begin += one.out.columns;
    }
  });
}

void Kernels::matmul_several(const std::vector<SharedProduct>& products, DType dtype,
                             Matrix<const float> x, bool tiled) {
  const auto lock = enter();
  for (const SharedProduct& one : products) {
    check_matrix(one.rows, dtype, x, one.out);
    if (tiled) tiled_product(dtype, one.out.columns);
    if (one.bias.size != 0) check_equal("bias", one.bias.size, one.out.columns);
  }
  if (x.rows == 1) return multiply_together(products, dtype, {x.data, x.columns}, tiled);
  for (const SharedProduct& one : products) {
    multiply_matrix(one.rows, dtype, x, one.out, tiled);
    if (one.bias.size == 0) continue;
    const int parts = parts_of_vectors(x.rows * one.out.columns * sizeof(float), x.rows);
    pool_->run(parts, [&](int part) {
      for (size_t v = part_begin(x.rows, part, parts); v < part_begin(x.rows, part + 1, parts);
           ++v) {
        float* const out = one.out.row(v);
        for (size_t r = 0; r < one.out.columns; ++r) out[r] += one.bias.data[r];
      }
    });
  }
}

void Kernels::dot_rows_all(const Rows& rows, View<const int32_t> ids, Matrix<const float> x,
                           Matrix<float> out) {
  const auto lock = enter();
  check_vectors("x", x.rows, "out", out.rows);
  check_equal("out", out.columns, ids.size);
  const size_t bytes = check_ids(rows, ids, x.columns);
  multiply(rows.dtype, bytes, [&](size_t i) { return row_at(rows, ids.data[i]); }, x, out);
}

}  // namespace flash_core
