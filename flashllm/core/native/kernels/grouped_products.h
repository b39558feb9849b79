// Products of tiles of rows of groups, written once for all vector widths.
//
// Included as tile_products.h is, after it and grouped_dots.h. Weights are unpacked to 16 bits once
// for all vectors, and the vectors' 14-bit numbers are taken whole, so that one product of 16 bits
// stands for two of 8: the sums in a lane are the same, exactly. Beside what grouped_dots.h asks
// for, I gives tile_rows and tile_vectors; Shorts; even() and odd(), every other one of signed
// bytes, widened; load_shorts() and store_shorts(); join(), 128 times the first and the second; and
// dot_shorts(), which adds products to lanes as dot() does those of all bytes where it is called
// with even and with odd ones.

template <class V, class I, class Numbers>
struct GroupedTile {
  static constexpr size_t rows = I::tile_rows;
  static constexpr size_t vectors = I::tile_vectors;
  static constexpr size_t width_bytes = 4 * V::width;
  // Vectors of 16 bits in a step: even and odd numbers, of four bits those of both halves.
  static constexpr size_t pieces = Numbers::dtype == DType::int8 ? 2 : 4;
  static constexpr size_t piece_bytes = (pieces + 1) * width_bytes;  // the last: scales, in f32
  using Sum = typename V::Type;

  static Chains chains(size_t columns) {
    return grouped_chains(group_count(columns) * group_bytes(Numbers::dtype), V::width);
  }

  template <size_t Count>
  FLASH_TARGET static inline void run(const uint8_t* of_rows, const uint8_t* of_vectors,
                                      size_t steps, bool begins, const uint8_t*, Sum (*to)[Count]) {
    Sum sums[rows][Count];
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (size_t v = 0; v < Count; ++v) sums[r][v] = begins ? V::zero() : to[r][v];
    }
    const uint8_t* a = of_rows;
    const uint8_t* b = of_vectors;
    for (size_t s = 0; s < steps; ++s, a += rows * piece_bytes, b += vectors * piece_bytes) {
#pragma GCC unroll 8
      for (size_t v = 0; v < Count; ++v) {
        const uint8_t* x = b + v * piece_bytes;
        typename I::Shorts numbers[pieces];
#pragma GCC unroll 8
        for (size_t p = 0; p < pieces; ++p) numbers[p] = I::load_shorts(x + p * width_bytes);
        const Sum x_scales = load_floats(x + pieces * width_bytes);
#pragma GCC unroll 8
        for (size_t r = 0; r < rows; ++r) {
          const uint8_t* row = a + r * piece_bytes;
          auto lanes = I::first_shorts(I::load_shorts(row), numbers[0]);
#pragma GCC unroll 8
          for (size_t p = 1; p < pieces; ++p) {
            lanes = I::dot_shorts(lanes, I::load_shorts(row + p * width_bytes), numbers[p]);
          }
          const Sum scale = V::multiply(load_floats(row + pieces * width_bytes), x_scales);
          sums[r][v] = V::fma(I::to_float(lanes), scale, sums[r][v]);
        }
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (size_t v = 0; v < Count; ++v) to[r][v] = sums[r][v];
    }
  }

  FLASH_TARGET static inline Sum load_floats(const uint8_t* from) {
    return V::load(reinterpret_cast<const float*>(from));
  }
};

// The numbers of a vector of a row's bytes, in the pieces of a step.
template <class I, class Numbers>
FLASH_TARGET inline void unpack(typename I::Bytes bytes, size_t width_bytes, uint8_t* to) {
  if constexpr (Numbers::dtype == DType::int8) {
    I::store_shorts(to, I::even(bytes));
    I::store_shorts(to + width_bytes, I::odd(bytes));
  } else {
    // Signed again, where the instruction for bytes wants them unsigned.
    const typename I::Bytes first = I::whole(Numbers::template first<I>(bytes));
    const typename I::Bytes second = I::whole(Numbers::template second<I>(bytes));
    I::store_shorts(to, I::even(first));
    I::store_shorts(to + width_bytes, I::odd(first));
    I::store_shorts(to + 2 * width_bytes, I::even(second));
    I::store_shorts(to + 3 * width_bytes, I::odd(second));
  }
}

template <class V, class I, class S, class Numbers>
FLASH_TARGET void pack_grouped_rows(const PanelRows& rows, size_t columns, uint8_t* to) {
  using Tile = GroupedTile<V, I, Numbers>;
  using Scale = typename Numbers::template Scale<S>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kBytes = Tile::width_bytes;
  constexpr size_t kVectors = kInputGroups * kGroupBytes / kBytes;
  alignas(64) float ones[kInputGroups];
  std::fill_n(ones, kInputGroups, 1.0F);
  const Chains chains = Tile::chains(columns);
  const size_t groups = group_count(columns);
  const size_t nbytes = groups * kGroupBytes;
  const size_t tiles = (rows.count + Tile::rows - 1) / Tile::rows;
  for (size_t r = 0; r < tiles * Tile::rows; ++r) {
    const uint8_t* row = rows.rows[std::min(r, rows.count - 1)];
    for (size_t g = 0; g < groups; g += kInputGroups) {
      const size_t count = std::min(kInputGroups, groups - g);
      const uint8_t* const from = row + nbytes + g * Scale::item_bytes;
      const typename S::Scales scales = count == kInputGroups
                                            ? S::template load<Scale>(from, ones)
                                            : load_last<S, Scale>(from, ones, count);
      const size_t first = g * kGroupBytes / kBytes;
      for (size_t k = 0; k < kVectors && (first + k) * kBytes < nbytes; ++k) {
        const size_t at = (first + k) * kBytes;
        const size_t step = chains.in_panel(k % 4, (first + k) / 4, r / Tile::rows, tiles);
        uint8_t* const piece = to + (step * Tile::rows + r % Tile::rows) * Tile::piece_bytes;
        uint8_t tail[kBytes] = {};
        const uint8_t* numbers = row + at;
        if (at + kBytes > nbytes) {
          std::memcpy(tail, numbers, nbytes - at);
          numbers = tail;
        }
        unpack<I, Numbers>(I::load_bytes(numbers), kBytes, piece);
        V::store(reinterpret_cast<float*>(piece + Tile::pieces * kBytes),
                 Numbers::template scale<S>(scales, k));
      }
    }
  }
}

template <class V, class I, class Numbers>
FLASH_TARGET void pack_grouped_vector(const DotInput& x, size_t member, size_t, uint8_t* to) {
  using Tile = GroupedTile<V, I, Numbers>;
  constexpr size_t kBytes = Tile::width_bytes;
  const Chains chains = Tile::chains(x.columns);
  for (size_t vector = 0; vector < chains.total(); ++vector) {
    const size_t step = chains.begin[vector % 4] + vector / 4;
    uint8_t* const piece = to + (step * Tile::vectors + member) * Tile::piece_bytes;
    for (size_t p = 0; p < Tile::pieces; ++p) {
      const size_t at = vector * kBytes + (p < 2 ? 0 : x.half_stride);
      const typename I::Bytes high = I::load_bytes(x.high + at);
      const typename I::Bytes low = I::load_bytes(x.low + at);
      I::store_shorts(piece + p * kBytes, p % 2 == 0 ? I::join(I::even(high), I::even(low))
                                                     : I::join(I::odd(high), I::odd(low)));
    }
    float scales[V::width];
    for (size_t lane = 0; lane < V::width; ++lane) {
      scales[lane] = x.scales[(vector * kBytes + 4 * lane) / group_bytes(Numbers::dtype)];
    }
    std::memcpy(piece + Tile::pieces * kBytes, scales, kBytes);
  }
}

template <class V, class I, class S, class Numbers>
ProductKernel grouped_product() {
  ProductKernel kernel = tile_product<V, GroupedTile<V, I, Numbers>>();
  kernel.pack_rows = pack_grouped_rows<V, I, S, Numbers>;
  kernel.pack_vector = pack_grouped_vector<V, I, Numbers>;
  return kernel;
}

template <class V, class I, class S>
void set_grouped_products(KernelTable* table) {
  table->product[static_cast<size_t>(DType::int8)] = grouped_product<V, I, S, Int8Dot>();
  table->product[static_cast<size_t>(DType::int4)] =
      grouped_product<V, I, S, NibbleDot<Int4Nibbles>>();
  table->product[static_cast<size_t>(DType::mxfp4)] =
      grouped_product<V, I, S, NibbleDot<Mxfp4Nibbles>>();
}
