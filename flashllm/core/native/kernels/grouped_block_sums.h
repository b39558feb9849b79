// Weighted sums of a block of rows of groups for several vectors, written once for all vector
// widths.
//
// Included as grouped_sums.h is, after it. Each sum is that of add_groups() there, exactly: eight
// rows' weights times scales are rounded together, their products with the numbers added up as
// whole numbers, and reached as a float once for the eight. Rows are unpacked to 16 bits once for
// all vectors, and the 14-bit numbers are taken whole, as grouped_products.h does; the sums of
// `block_vectors` vectors over the columns of a group stay in registers for the whole block.
// Beside what grouped_sums.h asks for, I gives block_vectors, and pair(), two numbers as one 32-bit
// one for each of the columns of Shorts that even() or odd() make of interleave()d rows.

template <class V, class I>
struct BlockTile {
  static constexpr size_t vectors = I::block_vectors;
  static constexpr size_t groups = V::width;  // that are rounded at once
  static constexpr size_t columns = groups * kGroup;
  static constexpr size_t eights = kBlockRows / kRowsPerAdd;
  static constexpr size_t across = kGroup / V::width;  // vectors of columns in a group
  static constexpr size_t pieces = kRowsPerAdd / 2;    // pairs of rows
  static constexpr size_t piece_bytes = 4 * V::width;
  // Of one group: each eight rows' pieces, vector of columns after vector.
  static constexpr size_t group_bytes = eights * across * pieces * piece_bytes;
  static constexpr size_t bytes = groups * group_bytes;
  static_assert(bytes <= kUnpackedBytes);
};

// Numbers of some vectors' weights, by eight rows and by group.
template <class V, class I>
struct BlockNumbers {
  using Tile = BlockTile<V, I>;
  alignas(64) int32_t pairs[Tile::vectors][Tile::eights][Tile::pieces][V::width];
  alignas(64) float scales[Tile::vectors][Tile::eights][V::width];
};

// Columns of a block from those of a tile on; `columns` of them are there.
struct BlockColumns {
  size_t first;
  size_t columns;
  size_t numbers_at;  // byte of a row
  size_t scales_at;
};

// Pieces of eight rows, of all the groups of a tile; rows beyond `count` are the first one.
template <class V, class I, class Numbers>
FLASH_TARGET inline void unpack_eight(const uint8_t* const* rows, size_t count,
                                      const BlockColumns& at, uint8_t* to) {
  using Tile = BlockTile<V, I>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kBytes = 4 * V::width;
  const size_t groups = group_count(at.columns);
  const size_t nbytes = groups * kGroupBytes;
  for (size_t first = 0; first < nbytes; first += kBytes) {
    for (size_t q = 0; q < kQuads; ++q) {
      typename I::Bytes four[4];
      for (size_t i = 0; i < 4; ++i) {
        const size_t r = 4 * q + i;
        const uint8_t* from = rows[r < count ? r : 0] + at.numbers_at + first;
        uint8_t tail[kBytes] = {};
        if (first + kBytes > nbytes) {
          std::memcpy(tail, from, nbytes - first);
          from = tail;
        }
        four[i] = I::load_turned(from);
      }
      I::interleave(four);
      for (size_t i = 0; i < 4; ++i) {
        const size_t g = first / kGroupBytes + i * V::width / kGroupBytes;
        const size_t inside = first % kGroupBytes + i * V::width % kGroupBytes;
        if (g >= groups) break;
        for (size_t half = 0; half < Numbers::halves; ++half) {
          // Signed again, where the instruction for bytes wants them unsigned.
          const auto bytes = I::whole(Numbers::template half<I>(four[i], half));
          const size_t across = (inside + half * kGroupBytes) / V::width;
          uint8_t* piece =
              to + g * Tile::group_bytes + (across * Tile::pieces + 2 * q) * Tile::piece_bytes;
          I::store_shorts(piece, I::even(bytes));
          I::store_shorts(piece + Tile::piece_bytes, I::odd(bytes));
        }
      }
    }
  }
}

// What a vector's weights are rounded to; `scales` are those of each row's groups, zeros where
// there is no row.
template <class V, class I>
FLASH_TARGET inline void round_block(const float* weights, size_t count,
                                     const float (*scales)[V::width], float unit, size_t vector,
                                     BlockNumbers<V, I>* to) {
  using Float = typename V::Type;
  float padded[kBlockRows] = {};
  std::memcpy(padded, weights, count * sizeof(float));
  for (size_t k = 0; k * kRowsPerAdd < count; ++k) {
    Float scaled[kRowsPerAdd];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRowsPerAdd; ++r) {
      const size_t row = k * kRowsPerAdd + r;
      scaled[r] = V::multiply(V::load(scales[row]), V::broadcast(padded[row]));
    }
    typename I::Whole numbers[kRowsPerAdd];
    const Float scale = round_scaled<V, I, kRowsPerAdd>(scaled, numbers);
    V::store(to->scales[vector][k], V::multiply(scale, V::broadcast(unit)));
#pragma GCC unroll 8
    for (size_t p = 0; p < kRowsPerAdd / 2; ++p) {
      // As bytes are interleaved: the first and the third of four, then the second and the fourth.
      const size_t r = p / 2 * 4 + p % 2;
      const typename I::Whole pair = (numbers[r] & 0xFFFF) | (numbers[r + 2] << 16);
      std::memcpy(to->pairs[vector][k][p], &pair, sizeof(pair));
    }
  }
}

// The sums of group `g` of a tile for `Count` vectors, added to the columns from `column` on.
template <class V, class I, size_t Count>
FLASH_TARGET inline void sum_group(const uint8_t* unpacked, const BlockNumbers<V, I>& numbers,
                                   size_t eights, size_t g, size_t column, size_t columns,
                                   float* const* out) {
  using Tile = BlockTile<V, I>;
  typename V::Type sums[Count][Tile::across];
#pragma GCC unroll 8
  for (size_t v = 0; v < Count; ++v) {
#pragma GCC unroll 8
    for (size_t i = 0; i < Tile::across; ++i) sums[v][i] = V::zero();
  }
  const uint8_t* from = unpacked;
  for (size_t k = 0; k < eights; ++k, from += Tile::across * Tile::pieces * Tile::piece_bytes) {
#pragma GCC unroll 8
    for (size_t v = 0; v < Count; ++v) {
      typename I::Shorts pairs[Tile::pieces];
#pragma GCC unroll 4
      for (size_t p = 0; p < Tile::pieces; ++p) pairs[p] = I::pair(numbers.pairs[v][k][p][g]);
      const typename V::Type scale = V::broadcast(numbers.scales[v][k][g]);
#pragma GCC unroll 8
      for (size_t i = 0; i < Tile::across; ++i) {
        const uint8_t* piece = from + i * Tile::pieces * Tile::piece_bytes;
        auto lanes = I::first_shorts(I::load_shorts(piece), pairs[0]);
#pragma GCC unroll 4
        for (size_t p = 1; p < Tile::pieces; ++p) {
          lanes = I::dot_shorts(lanes, I::load_shorts(piece + p * Tile::piece_bytes), pairs[p]);
        }
        sums[v][i] = V::fma(I::to_float(lanes), scale, sums[v][i]);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t v = 0; v < Count; ++v) {
    float* to = out[v] + column;
    if (columns >= kGroup) {
#pragma GCC unroll 8
      for (size_t i = 0; i < Tile::across; ++i) {
        V::store(to + i * V::width, V::add(V::load(to + i * V::width), sums[v][i]));
      }
    } else {
      float values[kGroup];
      for (size_t i = 0; i < Tile::across; ++i) V::store(values + i * V::width, sums[v][i]);
      for (size_t c = 0; c < columns; ++c) to[c] += values[c];
    }
  }
}

// `Count` vectors from number `first` on, or as many as are left.
template <class V, class I, size_t Count>
FLASH_TARGET inline void sum_vectors(const GroupedBlock& block, const BlockColumns& at,
                                     const uint8_t* unpacked, const BlockNumbers<V, I>& numbers,
                                     size_t first) {
  if constexpr (Count > 1) {
    if (block.vectors - first < Count) {
      sum_vectors<V, I, Count - 1>(block, at, unpacked, numbers, first);
      return;
    }
  }
  const size_t eights = (block.count + kRowsPerAdd - 1) / kRowsPerAdd;
  for (size_t g = 0; g * kGroup < at.columns; ++g) {
    sum_group<V, I, Count>(unpacked + g * BlockTile<V, I>::group_bytes, numbers, eights, g,
                           at.first + g * kGroup, at.columns - g * kGroup, block.out + first);
  }
}

template <class V, class I, class S, class Numbers>
FLASH_TARGET void sum_grouped_block(const GroupedBlock& block, const ColumnRange& range,
                                    uint8_t* unpacked) {
  using Tile = BlockTile<V, I>;
  using Scale = typename Numbers::template Scale<S>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr float kUnit = 1.0F / byte_unit(Numbers::dtype);
  BlockNumbers<V, I> numbers;
  for (size_t begin = range.first; begin < range.last; begin += Tile::columns) {
    const size_t columns = std::min(Tile::columns, range.last - begin);
    const BlockColumns at = {
        begin, columns, begin / kGroup * kGroupBytes,
        group_count(range.count) * kGroupBytes + begin / kGroup * Scale::item_bytes};
    alignas(64) float scales[kBlockRows][V::width] = {};
    for (size_t r = 0; r < block.count; ++r) {
      V::store(scales[r],
               load_scales<V, Scale>(block.rows[r] + at.scales_at, group_count(columns)));
    }
    for (size_t r = 0; r < block.count; r += kRowsPerAdd) {
      unpack_eight<V, I, Numbers>(
          block.rows + r, std::min(kRowsPerAdd, block.count - r), at,
          unpacked + r / kRowsPerAdd * Tile::across * Tile::pieces * Tile::piece_bytes);
    }
    for (size_t v = 0; v < block.vectors; v += Tile::vectors) {
      for (size_t i = 0; i < std::min(Tile::vectors, block.vectors - v); ++i) {
        round_block<V, I>(block.weights[v + i], block.count, scales, kUnit, i, &numbers);
      }
      sum_vectors<V, I, Tile::vectors>(block, at, unpacked, numbers, v);
    }
  }
}

template <class V, class I, class S>
void set_grouped_block_sums(KernelTable* table) {
  auto& sums = table->grouped_sums;
  sums[static_cast<size_t>(DType::int8)] = sum_grouped_block<V, I, S, Int8Sum>;
  sums[static_cast<size_t>(DType::int4)] = sum_grouped_block<V, I, S, NibbleSum<Int4Nibbles>>;
  sums[static_cast<size_t>(DType::mxfp4)] = sum_grouped_block<V, I, S, NibbleSum<Mxfp4Nibbles>>;
}
