// Products of the same rows with many vectors, in panels of rows that are decoded once for all of
// them. The order of summation is that of a vector by itself, so the bits are.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "checked.h"
#include "kernels.h"
#include "many_vectors.h"
#include "parts.h"
#include "row_dots.h"
#include "row_groups.h"

namespace flash_core {

namespace {

// Packed vectors: at most so many bytes, so that they stay in the last cache while rows pass by.
// Of more vectors, as many as that are taken with all rows, and then the next.
constexpr size_t kPackedBytes = 8 << 20;
// What a thread takes by turns, and so finds in the last cache: packed vectors, and rows as they
// are encoded.
constexpr size_t kNearVectorBytes = 2 << 20;
constexpr size_t kNearRowBytes = 4 << 20;

// Memory of a thread for its panel or its decoded rows, kept until the thread ends.
uint8_t* scratch(size_t nbytes) {
  static thread_local LineScratch lines;
  return lines.room(nbytes);
}

void check_vectors(const char* what, size_t count, const char* result, size_t vectors) {
  if (count != vectors) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(count) + " rows and " +
                                result + " " + std::to_string(vectors) + ": one a vector");
  }
}

}  // namespace

void Kernels::pack_vectors(DType dtype, Matrix<const float> x) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const size_t tile_bytes = kernel.steps(x.columns) * kernel.vectors * kernel.vector_piece_bytes;
  const size_t tiles = ceil_div(x.rows, kernel.vectors);
  const size_t lines = ceil_div(tiles * tile_bytes, sizeof(CacheLine));
  packed_.resize(std::max(packed_.size(), lines));
  uint8_t* const packed = packed_.data()->bytes;
  const int parts = parts_of_vectors(tiles * tile_bytes, tiles);
  pool_->run(parts, [&](int part) {
    QuantisedInput rounded(fast_);
    const size_t end = std::min(part_begin(tiles, part + 1, parts) * kernel.vectors, x.rows);
    for (size_t v = part_begin(tiles, part, parts) * kernel.vectors; v < end; ++v) {
      const DotInput input = rounded.prepare(dtype, x.row(v), x.columns);
      kernel.pack_vector(input, v % kernel.vectors, packed + v / kernel.vectors * tile_bytes);
    }
  });
}

template <class PackPanel>
void Kernels::multiply_in_tiles(DType dtype, const PackPanel& pack_panel, Matrix<const float> x,
                                Matrix<float> out) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const size_t steps = kernel.steps(x.columns);
  const size_t vector_tile = kernel.vectors * kernel.vector_piece_bytes * steps;
  const size_t row_tile = kernel.rows * kernel.row_piece_bytes * steps;
  const size_t rows_at_once = panel_rows(kernel, row_tile);
  const size_t panels = ceil_div(out.columns, rows_at_once);
  const size_t panel_bytes = rows_at_once * row_bytes(dtype, x.columns).get();
  const size_t panels_near = std::max(kNearRowBytes / panel_bytes, size_t{1});
  pack_vectors(dtype, x);
  const uint8_t* const packed = packed_.data()->bytes;
  const size_t tiles = ceil_div(x.rows, kernel.vectors);
  // Where there are few rows, threads have some of the vectors each.
  const size_t wanted = threads_ == 1 ? 1 : kPartsPerThread * static_cast<size_t>(threads_);
  const size_t row_parts = std::min(panels, wanted);
  const size_t vector_parts = std::min(tiles, ceil_div(wanted, row_parts));
  const auto parts = static_cast<int>(row_parts * vector_parts);
  pool_->run(parts, [&](int part) {
    const int across = part % static_cast<int>(vector_parts);
    const int down = part / static_cast<int>(vector_parts);
    const size_t first_tile = part_begin(tiles, across, static_cast<int>(vector_parts));
    const size_t last_tile = part_begin(tiles, across + 1, static_cast<int>(vector_parts));
    const size_t last_panel = part_begin(panels, down + 1, static_cast<int>(row_parts));
    uint8_t* const panel = scratch(rows_at_once / kernel.rows * row_tile);
    const auto multiply_panel = [&](size_t p, size_t tile, size_t end) {
      const size_t first = p * rows_at_once;
      const size_t count = std::min(rows_at_once, out.columns - first);
      pack_panel(first, count, panel);
      for (; tile < end; ++tile) {
        const size_t vector = tile * kernel.vectors;
        const TileVectors of_tile = {packed + tile * vector_tile,
                                     std::min(kernel.vectors, x.rows - vector), x.columns, fast_};
        kernel.multiply({panel, count}, of_tile, out.row(vector) + first, out.columns);
      }
    };
    const size_t tiles_near = std::max(kNearVectorBytes / vector_tile, size_t{1});
    size_t p = part_begin(panels, down, static_cast<int>(row_parts));
    while (p < last_panel) {
      const size_t end = std::min(p + panels_near, last_panel);
      for (size_t t = first_tile; t < last_tile; t += tiles_near) {
        for (size_t q = p; q < end; ++q) {
          multiply_panel(q, t, std::min(t + tiles_near, last_tile));
        }
      }
      p = end;
    }
  });
}

template <class PackPanel>
void Kernels::multiply_many(DType dtype, const PackPanel& pack_panel, Matrix<const float> x,
                            Matrix<float> out) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  const size_t vector_bytes = kernel.steps(x.columns) * kernel.vector_piece_bytes;
  const size_t tiles = std::max(kPackedBytes / (vector_bytes * kernel.vectors), size_t{1});
  for (size_t v = 0; v < x.rows; v += tiles * kernel.vectors) {
    const size_t count = std::min(tiles * kernel.vectors, x.rows - v);
    multiply_in_tiles(dtype, pack_panel, {x.row(v), count, x.columns},
                      {out.row(v), count, out.columns});
  }
}

template <class RowOf>
void Kernels::multiply(DType dtype, size_t row_bytes, const RowOf& row_of, Matrix<const float> x,
                       Matrix<float> out) {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype)];
  if (out.columns == 0) return;
  if (kernel.rows != 0 && x.rows > 1) {
    const auto pack_panel = [&](size_t first, size_t count, uint8_t* panel) {
      PanelRows rows = {};
      rows.count = count;
      for (size_t r = 0; r < count; ++r) rows.rows[r] = row_of(first + r);
      kernel.pack_rows(rows, x.columns, panel);
    };
    multiply_many(dtype, pack_panel, x, out);
    return;
  }
  const DotFunction dot = table_.dot[static_cast<size_t>(dtype)];
  const int parts =
      parts_for(out.columns * row_bytes, kPartsPerThread * static_cast<size_t>(threads_));
  for (size_t v = 0; v < x.rows; ++v) {
    const DotInput input = input_.prepare(dtype, x.row(v), x.columns);
    pool_->run(parts, [&](int part) {
      const size_t first = part_begin(out.columns, part, parts);
      const size_t end = part_begin(out.columns, part + 1, parts);
      dot_each(dot, {first, end, row_bytes}, row_of, input, out.row(v));
    });
  }
}

size_t Kernels::tile_rows(DType dtype) {
  const auto lock = enter();
  return table_.tiles[static_cast<size_t>(dtype)].rows;
}

bool Kernels::tile_matrix(View<uint8_t> rows, DType dtype, size_t columns) {
  const auto lock = enter();
  const TileKernel& kernel = table_.tiles[static_cast<size_t>(dtype)];
  const size_t row = row_bytes(dtype, columns).get();
  if (rows.size % row != 0) {
    throw std::invalid_argument("rows has " + std::to_string(rows.size) + " bytes, which is no " +
                                "whole number of rows of " + std::to_string(row));
  }
  const size_t count = rows.size / row;
  if (kernel.rows == 0 || count % kernel.rows != 0) return false;
  const size_t tiles = count / kernel.rows;
  const size_t tile_bytes = kernel.rows * row;
  const int parts = parts_for(rows.size, kPartsPerThread * static_cast<size_t>(threads_));
  pool_->run(parts, [&](int part) {
    uint8_t* const copy = scratch(tile_bytes);
    for (size_t t = part_begin(tiles, part, parts); t < part_begin(tiles, part + 1, parts); ++t) {
      uint8_t* const tile = rows.data + t * tile_bytes;
      std::memcpy(copy, tile, tile_bytes);
      kernel.pack(copy, columns, tile);
    }
  });
  return true;
}

void Kernels::multiply_tiles(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                             Matrix<float> out) {
  const ProductKernel& product = table_.product[static_cast<size_t>(dtype)];
  const TileKernel& kernel = table_.tiles[static_cast<size_t>(dtype)];
  if (kernel.rows == 0 || out.columns % kernel.rows != 0) {
    throw std::invalid_argument(std::string(dtype_name(dtype)) + ": " +
                                std::to_string(out.columns) + " rows have no tiles of " +
                                table_.name);
  }
  const size_t tile_bytes = kernel.rows * row_bytes(dtype, x.columns).get();
  if (x.rows > 1) {
    const auto pack_panel = [&](size_t first, size_t, uint8_t* panel) {
      kernel.to_panel(rows.data + first / kernel.rows * tile_bytes, x.columns, panel);
    };
    multiply_many(dtype, pack_panel, x, out);
    return;
  }
  const size_t nbytes = product.steps(x.columns) * kernel.vector_piece_bytes;
  packed_.resize(std::max(packed_.size(), ceil_div(nbytes, sizeof(CacheLine))));
  const size_t tiles = out.columns / kernel.rows;
  const int parts =
      parts_for(rows.size, std::min(tiles, kPartsPerThread * static_cast<size_t>(threads_)));
  for (size_t v = 0; v < x.rows; ++v) {
    uint8_t* const packed = packed_.data()->bytes;
    kernel.pack_vector(input_.prepare(dtype, x.row(v), x.columns), 0, packed);
    const TileVectors vector = {packed, 1, x.columns, fast_};
    pool_->run(parts, [&](int part) {
      const size_t first = part_begin(tiles, part, parts);
      const size_t count = part_begin(tiles, part + 1, parts) - first;
      kernel.dot(rows.data + first * tile_bytes, count, vector, out.row(v) + first * kernel.rows);
    });
  }
}

void Kernels::matmul(View<const uint8_t> rows, DType dtype, Matrix<const float> x,
                     Matrix<float> out, bool tiled) {
  const auto lock = enter();
  check_vectors("x", x.rows, "out", out.rows);
  const Checked bytes = row_bytes(dtype, x.columns);
  if (!(bytes * Checked(out.columns) == Checked(rows.size))) {
    throw std::invalid_argument("rows has " + std::to_string(rows.size) + " bytes; " +
                                std::to_string(out.columns) + " rows of " +
                                std::to_string(bytes.get()) + " were expected");
  }
  if (tiled) return multiply_tiles(rows, dtype, x, out);
  const size_t stride = bytes.get();
  multiply(dtype, stride, [&](size_t i) { return rows.data + i * stride; }, x, out);
}

void Kernels::dot_rows_all(const Rows& rows, View<const int32_t> ids, Matrix<const float> x,
                           Matrix<float> out) {
  const auto lock = enter();
  check_vectors("x", x.rows, "out", out.rows);
  check_equal("out", out.columns, ids.size);
  const size_t bytes = check_ids(rows, ids, x.columns);
  multiply(rows.dtype, bytes, [&](size_t i) { return row_at(rows, ids.data[i]); }, x, out);
}

namespace {

// For fewer vectors a row is read from the caches for each of them.
constexpr size_t kVectorsDecoded = 12;
constexpr size_t kVectorsUnpacked = 3;
// Columns that every set takes whole, of groups and of floats.
constexpr size_t kWideColumns = 512;
// Sums that stay in a thread's second-level cache while all blocks of rows pass by.
constexpr size_t kNearSumBytes = 256 << 10;
constexpr size_t kVectorsNear = kNearSumBytes / sizeof(float) / kWideColumns;

// The vectors that weigh each row of a block, as a GroupedBlock has them.
struct WholeVectors {
  std::vector<const float*> weights;
  std::vector<float*> out;

  // Takes those that have no weight of 0; calls rest(v) for the others.
  template <class Rest>
  void take(Matrix<const float> all, size_t first, size_t count, Matrix<float> to,
            const Rest& rest) {
    weights.clear();
    out.clear();
    for (size_t v = 0; v < all.rows; ++v) {
      const float* const of_block = all.row(v) + first;
      if (std::find(of_block, of_block + count, 0.0F) == of_block + count) {
        weights.push_back(of_block);
        out.push_back(to.row(v));
      } else {
        rest(v);
      }
    }
  }
};

// Weighted sums of the same rows for some vectors over some of their columns, on one thread.
class SumsOfMany {
 public:
  SumsOfMany(const KernelTable& table, const Rows& rows, View<const int32_t> ids,
             View<const int32_t> block_ends, float* partial)
      : table_(table),
        add_(table.add[static_cast<size_t>(rows.dtype)]),
        rows_(rows),
        ids_(ids),
        block_ends_(block_ends),
        partial_(partial) {}

  void add(Matrix<const float> weights, const ColumnRange& range, Matrix<float> out) {
    const auto sum_grouped = table_.grouped_sums[static_cast<size_t>(rows_.dtype)];
    const bool unpacked = sum_grouped != nullptr && out.rows >= kVectorsUnpacked;
    const bool decoded =
        !is_grouped(rows_.dtype) && table_.sums.sum != nullptr && out.rows >= kVectorsDecoded;
    BlockLists lists(decoded ? out.rows : 0);
    for (size_t b = 0; b < block_ends_.size; ++b) {
      const size_t first = run_begin(block_ends_, b);
      const size_t count = run_begin(block_ends_, b + 1) - first;
      if (count == 0) continue;
      const auto alone = [&](size_t v) {
        const Groups groups(rows_, ids_, weights.row(v), {block_ends_.data + b, 1}, first);
        add_groups(add_, groups, range, partial_ + range.first, out.row(v));
      };
      if (!(unpacked || decoded) || count > kBlockRows) {
        for (size_t v = 0; v < out.rows; ++v) alone(v);
        continue;
      }
      std::array<const uint8_t*, kBlockRows> from;
      for (size_t r = 0; r < count; ++r) from[r] = row_at(rows_, ids_.data[first + r]);
      if (unpacked) {
        whole_.take(weights, first, count, out, alone);
        const GroupedBlock block = {from.data(), count, whole_.weights.data(), whole_.out.data(),
                                    whole_.out.size()};
        if (block.vectors != 0) sum_grouped(block, range, scratch(kUnpackedBytes));
      } else {
        lists.fill(weights, first, first + count);
        auto* const values =
            reinterpret_cast<float*>(scratch(count * kDecodedColumns * sizeof(float)));
        sum_decoded(table_, rows_.dtype, from, count, lists, range, values, out);
      }
    }
  }

 private:
  const KernelTable& table_;
  AddFunction add_;
  const Rows& rows_;
  View<const int32_t> ids_;
  View<const int32_t> block_ends_;
  float* partial_;  // of column 0
  WholeVectors whole_;
};

}  // namespace

void Kernels::weighted_sum_rows_all(const Rows& rows, View<const int32_t> ids,
                                    Matrix<const float> weights, View<const int32_t> block_ends,
                                    Matrix<float> out) {
  const auto lock = enter();
  check_vectors("weights", weights.rows, "out", out.rows);
  check_equal("weights", weights.columns, ids.size);
  const size_t bytes = check_ids(rows, ids, out.columns);
  check_runs("block_ends", block_ends, ids.size);
  if (out.rows == 0) return;
  const auto threads = static_cast<size_t>(threads_);
  const size_t unit = out.columns >= threads * kWideColumns ? kWideColumns : kColumnUnit;
  const size_t units = ceil_div(out.columns, unit);
  const int parts =
      parts_for(ids.size * bytes * out.rows, std::min(units, kPartsPerThread * threads));
  partial_.resize(std::max(partial_.size(), units * unit));
  // The same rows pass by again for other vectors, and for other columns.
  const size_t vectors = std::min(out.rows, kVectorsNear);
  const size_t wide = kVectorsNear / vectors * kWideColumns;
  pool_->run(parts, [&](int part) {
    const size_t end = std::min(part_begin(units, part + 1, parts) * unit, out.columns);
    SumsOfMany sums(table_, rows, ids, block_ends, partial_.data());
    for (size_t c = part_begin(units, part, parts) * unit; c < end; c += wide) {
      for (size_t v = 0; v < out.rows; v += vectors) {
        const size_t count = std::min(vectors, out.rows - v);
        sums.add({weights.row(v), count, weights.columns},
                 {c, std::min(c + wide, end), out.columns}, {out.row(v), count, out.columns});
      }
    }
  });
}

}  // namespace flash_core
