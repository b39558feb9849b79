// Products of tiles of rows with tiles of vectors, written once for all vector widths.
//
// Included as kernel_loops.h is, after it. A Tile gives rows and vectors, as many of each as
// registers have room for; piece_bytes, those that a member has in a step; chains(); and run(), the
// steps of one chain. V gives tile_rows and tile_vectors.

template <class V>
struct FloatTile {
  static constexpr size_t rows = V::tile_rows;
  static constexpr size_t vectors = V::tile_vectors;
  static constexpr size_t piece_bytes = V::width * sizeof(float);
  using Sum = typename V::Type;

  static Chains chains(size_t columns) { return float_chains(columns, V::width); }

  template <size_t Count>
  FLASH_TARGET static inline void run(const uint8_t* of_rows, const uint8_t* of_vectors,
                                      size_t steps, bool begins, const uint8_t* ahead,
                                      Sum (*to)[Count]) {
    const float* a = reinterpret_cast<const float*>(of_rows);
    const float* b = reinterpret_cast<const float*>(of_vectors);
    Sum sums[rows][Count];
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (size_t v = 0; v < Count; ++v) sums[r][v] = begins ? V::zero() : to[r][v];
    }
    for (size_t s = 0; s < steps; ++s, a += rows * V::width, b += vectors * V::width) {
      if (s % 2 == 0) __builtin_prefetch(ahead + s / 2 * sizeof(CacheLine), 0, 2);
      Sum weights[rows];
#pragma GCC unroll 8
      for (size_t r = 0; r < rows; ++r) weights[r] = V::load(a + r * V::width);
#pragma GCC unroll 8
      for (size_t v = 0; v < Count; ++v) {
        const Sum x = V::load(b + v * V::width);
#pragma GCC unroll 8
        for (size_t r = 0; r < rows; ++r) sums[r][v] = V::fma(weights[r], x, sums[r][v]);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (size_t v = 0; v < Count; ++v) to[r][v] = sums[r][v];
    }
  }
};

// Columns as floats: `value(at, place)` puts the vector of columns from `at` on to where place() of
// a chain and a step says, `tail` fewer of them and zeros.
template <class V, class Place, class Value, class Tail>
FLASH_INLINE void pack_floats(size_t columns, const Place& place, const Value& value,
                              const Tail& tail) {
  const size_t fours = columns / (4 * V::width);
  for (size_t s = 0; s < fours; ++s) {
    for (size_t j = 0; j < 4; ++j) value((4 * s + j) * V::width, place(j, s));
  }
  size_t at = 4 * fours * V::width;
  for (size_t s = fours; at + V::width <= columns; ++s, at += V::width) value(at, place(0, s));
  if (at < columns) tail(at, place(1, fours));
}

template <class V, class Encoding>
FLASH_TARGET void pack_rows(const PanelRows& rows, size_t columns, uint8_t* to) {
  constexpr size_t kItem = Encoding::item_bytes;
  constexpr size_t kRows = FloatTile<V>::rows;
  const Chains chains = float_chains(columns, V::width);
  const size_t tiles = (rows.count + kRows - 1) / kRows;
  for (size_t t = 0; t < tiles; ++t) {
    // Where there are fewer rows, the last one again: what comes of it is not looked at.
    const uint8_t* from[kRows];
    for (size_t r = 0; r < kRows; ++r) from[r] = rows.rows[std::min(t * kRows + r, rows.count - 1)];
    pack_floats<V>(
        columns,
        [&](size_t chain, size_t step) FLASH_TARGET {
          const size_t at = chains.in_panel(chain, step, t, tiles);
          return reinterpret_cast<float*>(to) + at * kRows * V::width;
        },
        [&](size_t at, float* pieces) FLASH_TARGET {
          for (size_t r = 0; r < kRows; ++r) {
            V::store(pieces + r * V::width, Encoding::load(from[r] + at * kItem));
          }
        },
        [&](size_t at, float* pieces) FLASH_TARGET {
          for (size_t r = 0; r < kRows; ++r) {
            uint8_t bytes[V::width * kItem] = {};
            std::memcpy(bytes, from[r] + at * kItem, (columns - at) * kItem);
            V::store(pieces + r * V::width, Encoding::load(bytes));
          }
        });
  }
}

template <class V>
FLASH_TARGET void pack_vector(const DotInput& x, size_t member, size_t, uint8_t* to) {
  const Chains chains = float_chains(x.columns, V::width);
  pack_floats<V>(
      x.columns,
      [&](size_t chain, size_t step) FLASH_TARGET {
        const size_t at = (chains.begin[chain] + step) * V::tile_vectors + member;
        return reinterpret_cast<float*>(to) + at * V::width;
      },
      [&](size_t at, float* piece) FLASH_TARGET { V::store(piece, V::load(x.values + at)); },
      [&](size_t at, float* piece) {
        std::fill_n(piece, V::width, 0.0F);
        std::copy_n(x.values + at, x.columns - at, piece);
      });
}

template <class V, class Tile, size_t Count>
FLASH_TARGET void multiply_tiles(const TilePanel& panel, const TileVectors& x, float* out,
                                 size_t out_stride) {
  const Chains chains = Tile::chains(x.columns);
  constexpr size_t kRowStep = Tile::rows * Tile::piece_bytes;
  constexpr size_t kVectorStep = Tile::vectors * Tile::piece_bytes;
  const size_t tiles = (panel.rows + Tile::rows - 1) / Tile::rows;
  typename V::Type sums[kPanelRows / Tile::rows][4][Tile::rows][Count];
  const uint8_t* ahead = x.ahead;
  for (size_t j = 0; j < 4; ++j) {
    for (size_t s = 0; s == 0 || s < chains.steps[j]; s += kTileSteps) {
      const size_t steps = std::min(kTileSteps, chains.steps[j] - s);
      const size_t at = chains.begin[j] + s;
      const uint8_t* rows = panel.packed + at * tiles * kRowStep;
      for (size_t t = 0; t < tiles; ++t, rows += steps * kRowStep) {
        Tile::template run<Count>(rows, x.packed + at * kVectorStep, steps, s == 0, ahead,
                                  sums[t][j]);
        ahead += (steps + 1) / 2 * sizeof(CacheLine);
      }
    }
  }
  for (size_t t = 0; t < tiles; ++t) {
    const size_t first = t * Tile::rows;
    for (size_t r = 0; r < std::min(Tile::rows, panel.rows - first); ++r) {
      for (size_t v = 0; v < Count; ++v) {
        const auto half = [&](size_t j) FLASH_TARGET {
          return V::add(sums[t][j][r][v], sums[t][j + 1][r][v]);
        };
        out[v * out_stride + first + r] = V::sum(V::add(half(0), half(2)));
      }
    }
  }
}

// As many vectors as are there, each number of which has a function of its own.
template <class V, class Tile, size_t Count = Tile::vectors>
FLASH_TARGET void multiply(const TilePanel& panel, const TileVectors& x, float* out,
                           size_t out_stride) {
  if constexpr (Count > 1) {
    if (x.count < Count) return multiply<V, Tile, Count - 1>(panel, x, out, out_stride);
  }
  multiply_tiles<V, Tile, Count>(panel, x, out, out_stride);
}

template <class Tile>
size_t steps_of(size_t columns) {
  return Tile::chains(columns).total();
}

// All but what packs.
template <class V, class Tile>
ProductKernel tile_product() {
  ProductKernel kernel = {};
  kernel.rows = Tile::rows;
  kernel.vectors = Tile::vectors;
  kernel.row_piece_bytes = kernel.vector_piece_bytes = Tile::piece_bytes;
  kernel.by_dots = kMostByDots;
  kernel.steps = steps_of<Tile>;
  kernel.multiply = multiply<V, Tile>;
  return kernel;
}

template <class V, class F32, class F16, class BF16>
void set_float_products(KernelTable* table) {
  using Tile = FloatTile<V>;
  ProductKernel common = tile_product<V, Tile>();
  common.pack_vector = pack_vector<V>;
  table->product[0] = table->product[1] = table->product[2] = common;
  table->product[0].pack_rows = pack_rows<V, F32>;
  table->product[1].pack_rows = pack_rows<V, F16>;
  table->product[2].pack_rows = pack_rows<V, BF16>;
}
