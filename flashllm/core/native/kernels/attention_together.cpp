#include "attention_together.h"

#include <algorithm>
#include <array>

#include "attention_tiles.h"

namespace flash_core {

TogetherScratch* together_scratch() {
  static thread_local TogetherScratch scratch;
  return &scratch;
}

namespace {

// So many heads, or more, are faster together. Floats have to be put in panels for it, and groups
// too where their tiles are of unpacked numbers.
size_t least_heads(const ProductKernel& kernel, DType dtype) {
  if (!is_grouped(dtype)) return 8;
  return kernel.keeps_bytes ? 1 : 2;
}

}  // namespace

bool Together::gains(const KernelTable& table, DType dtype, size_t heads, size_t rows) {
  const ProductKernel& kernel = table.product[static_cast<size_t>(dtype)];
  if (!can(table, dtype) || heads < least_heads(kernel, dtype)) return false;
  // A panel of a few rows is filled up with others, which one head alone does not make up for.
  return heads > 1 || rows >= 2 * kernel.rows;
}

size_t Together::pieces(const KernelTable& table, DType dtype, const AttendSizes& sizes,
                        size_t threads) {
  const size_t least = least_heads(table.product[static_cast<size_t>(dtype)], dtype);
  if (!can(table, dtype) || sizes.sharing() < least) return 0;
  // Threads are even where each has as many pieces, or where pieces are many.
  constexpr size_t kMany = 4;
  const auto uneven = [&](size_t count) { return count % threads != 0 && count < kMany * threads; };
  size_t pieces = 1;
  while (uneven(sizes.kv_heads * pieces) && sizes.sharing() / (2 * pieces) >= least) pieces *= 2;
  // Floats gain less by it than by one more thread.
  if (!is_grouped(dtype) && sizes.kv_heads * pieces < threads) return 0;
  return pieces;
}

void Together::score(float* scores, size_t stride) const {
  const ProductKernel& kernel = table_.product[static_cast<size_t>(dtype_)];
  const size_t columns = sizes_.columns;
  const size_t steps = kernel.steps(columns);
  const size_t vector_tile = kernel.vectors * kernel.vector_piece_bytes * steps;
  const size_t row_tile = kernel.rows * kernel.row_piece_bytes * steps;
  const size_t tiles = ceil_div(vectors(), kernel.vectors);
  uint8_t* const packed = scratch_.packed.room(tiles * vector_tile);
  for (size_t v = 0; v < vectors(); ++v) {
    const DotInput input = scratch_.rounded.prepare(dtype_, scratch_.queries[v], columns);
    const size_t first = v / kernel.vectors * kernel.vectors;
    kernel.pack_vector(input, v - first, std::min(kernel.vectors, vectors() - first),
                       packed + v / kernel.vectors * vector_tile);
  }
  const size_t at_once = panel_rows(kernel, row_tile);
  uint8_t* const panel = scratch_.panel.room(ceil_div(at_once, kernel.rows) * row_tile);
  RunCursor rows = cursor(RowKind::keys);
  for (size_t at = 0; at < count(); at += at_once) {
    PanelRows keys = {};
    keys.count = std::min(at_once, count() - at);
    rows.rows(first_ + at, first_ + at + keys.count, keys.rows.data());
    kernel.pack_rows(keys, columns, panel);
    for (size_t t = 0; t < tiles; ++t) {
      const size_t v = t * kernel.vectors;
      const TileVectors tile = {packed + t * vector_tile, std::min(kernel.vectors, vectors() - v),
                                columns, false, packed};
      kernel.multiply({panel, keys.count}, tile, scores + v * stride + at, stride);
    }
  }
}

void Together::mix(const float* scores, size_t stride, Matrix<float> sums) const {
  // Sets that have products in tiles have sums of decoded rows.
  is_grouped(dtype_) ? mix_grouped(scores, stride, sums) : mix_decoded(scores, stride, sums);
}

void Together::mix_decoded(const float* scores, size_t stride, Matrix<float> sums) const {
  const size_t columns = sizes_.columns;
  auto* const decoded = reinterpret_cast<float*>(
      scratch_.decoded.room(kAttendTile * kDecodedColumns * sizeof(float)));
  BlockLists& lists = scratch_.lists;
  lists.make_room(vectors());
  RunCursor rows = cursor(RowKind::values);
  for (size_t at = 0; at < count(); at += kAttendTile) {
    const size_t here = std::min(kAttendTile, count() - at);
    std::array<const uint8_t*, kBlockRows> values;
    rows.rows(first_ + at, first_ + at + here, values.data());
    for (size_t v = 0; v < vectors(); ++v) {
      const size_t seen = scratch_.seen[v];
      lists.fill_one(table_.sums, v, scores + v * stride + at,
                     seen > at ? std::min(seen - at, here) : 0);
    }
    sum_decoded(table_, dtype_, values, here, lists, {0, columns, columns}, decoded, sums);
  }
}

// Queries that see all of a tile share its rows, as the last one does at least; each of the others
// adds its own.
void Together::mix_grouped(const float* scores, size_t stride, Matrix<float> sums) const {
  const size_t columns = sizes_.columns;
  const AddFunction add = table_.add[static_cast<size_t>(dtype_)];
  const GroupedSumFunction sum_whole = table_.grouped_sums[static_cast<size_t>(dtype_)];
  scratch_.partial.resize(
      std::max(scratch_.partial.size(), ceil_div(columns, kColumnUnit) * kColumnUnit));
  RunCursor rows = cursor(RowKind::values);
  TileRows tile;
  const auto value = [&](size_t i) { return tile.row(first_ + i); };
  const auto later = [&](size_t i) { return value(std::min(i + kRowsPerAdd, count() - 1)); };
  for (size_t at = 0; at < count(); at += kAttendTile) {
    const size_t tile_end = std::min(at + kAttendTile, count());
    tile.fill(&rows, first_ + at, first_ + tile_end, first_ + count() - 1);
    scratch_.weights.clear();
    scratch_.out.clear();
    for (size_t v = 0; v < vectors(); ++v) {
      const size_t end = std::min(tile_end, scratch_.seen[v]);
      const float* const weights = scores + v * stride;
      if (end <= at) continue;
      if (end == tile_end) {
        scratch_.weights.push_back(weights + at);
        scratch_.out.push_back(sums.row(v));
        continue;
      }
      add_tile(
          add, value, later, [&](size_t i) { return weights[i]; }, at, end, columns,
          scratch_.partial.data(), sums.row(v));
    }
    std::array<const uint8_t*, kAttendTile> here;
    for (size_t i = at; i < tile_end; ++i) here[i - at] = value(i);
    const GroupedBlock block = {here.data(), tile_end - at, scratch_.weights.data(),
                                scratch_.out.data(), scratch_.out.size()};
    sum_whole(block, {0, columns, columns}, scratch_.unpacked.room(kUnpackedBytes));
  }
}

}  // namespace flash_core
