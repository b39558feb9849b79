// Matrices whose rows lie in tiles, with AVX-512 VNNI: a vector is multiplied with 32 rows at once.
//
// Included by kernels_avx512.cpp, after vnni_products.h, whose bits these are, and so those of a
// dot. A group of one row ends in four lanes of 16, which have to be brought together; a group of a
// tile has a lane for each row, so that 33 instructions do what 47 do (int4, a row of 16 groups).
//
// A tile has as many bytes as its rows. Group after group, in the order of a panel, it has four
// bytes of every row after another, as they are in a row, then the rows' scales.

template <class Numbers>
struct TileLanes {
  using Scale = typename Numbers::template Scale<S>;
  static constexpr size_t kAcross = RowLanes::across;
  static constexpr size_t kPieces = group_bytes(Numbers::dtype) / 4;
  static constexpr size_t kWeightBytes = RowLanes::rows * group_bytes(Numbers::dtype);
  static constexpr size_t row_group_bytes = kWeightBytes + RowLanes::rows * Scale::item_bytes;
  static constexpr size_t vector_group_bytes = RowLanes::member_group_bytes;
  static constexpr size_t kBytesAhead = 8192;  // behind the last tile there may be nothing to read

  // Adds a group to the sums of the vector. Halves of its numbers have lanes of their own, so that
  // no product waits for one of the other half.
  template <size_t Count, bool kOnlyHigh>
  FLASH_INLINE void add_group(const uint8_t* rows, const uint8_t* x, __m512 (*sums)[kAcross]) {
    static_assert(Count == 1);
    const __m512i seed = I::fill(int_at(x + 2 * kGroup));
    __m512i high[kAcross];
    __m512i low[kAcross];
#pragma GCC unroll 2
    for (size_t i = 0; i < kAcross; ++i) {
      high[i] = seed;
      low[i] = _mm512_setzero_si512();
    }
    const auto add = [&](const __m512i* weights, size_t p) FLASH_TARGET {
      const __m512i numbers = I::repeat(int_at(x + 4 * p));
#pragma GCC unroll 2
      for (size_t i = 0; i < kAcross; ++i) add_dot(&high[i], weights[i], numbers);
      if constexpr (!kOnlyHigh) {
        const __m512i rest = I::repeat(int_at(x + kGroup + 4 * p));
#pragma GCC unroll 2
        for (size_t i = 0; i < kAcross; ++i) add_dot(&low[i], weights[i], rest);
      }
    };
#pragma GCC unroll 8
    for (size_t p = 0; p < kPieces; ++p) {
      __m512i first[kAcross];
      __m512i second[kAcross];
#pragma GCC unroll 2
      for (size_t i = 0; i < kAcross; ++i) {
        const uint8_t* const at = rows + (p * kAcross + i) * 64;
        _mm_prefetch(reinterpret_cast<const char*>(at) + kBytesAhead, _MM_HINT_T0);
        const __m512i four = I::load_bytes(at);
        if constexpr (Numbers::dtype == DType::int8) {
          first[i] = I::whole(four);
        } else {
          first[i] = Numbers::template first<I>(four);
          second[i] = Numbers::template second<I>(four);
        }
      }
      add(first, p);
      if constexpr (Numbers::dtype != DType::int8) add(second, kPieces + p);
    }
    const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(int_at(x + 2 * kGroup + 4)));
#pragma GCC unroll 2
    for (size_t i = 0; i < kAcross; ++i) {
      const __m512 scales = Scale::load(rows + kWeightBytes + 16 * i * Scale::item_bytes);
      __m512i lanes = I::times_128(high[i]);
      if constexpr (!kOnlyHigh) lanes = _mm512_add_epi32(lanes, low[i]);
      sums[0][i] = V::fma(I::to_float(lanes), V::multiply(scales, scale), sums[0][i]);
    }
  }
};

template <class Numbers>
FLASH_TARGET void pack_tile(const uint8_t* rows, size_t columns, uint8_t* to) {
  using Tile = TileLanes<Numbers>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kScaleBytes = Tile::Scale::item_bytes;
  const size_t groups = group_count(columns);
  const size_t nbytes = groups * kGroupBytes;
  const size_t row_bytes = nbytes + groups * kScaleBytes;
  std::array<size_t, kInputGroups> places = LaneOrder(groups).of_groups();
  for (size_t g = 0; g < groups; g += kInputGroups) {
    for (size_t i = 0; i < RowLanes::across; ++i) {
      const uint8_t* from[16];
      for (size_t r = 0; r < 16; ++r) from[r] = rows + (16 * i + r) * row_bytes;
      turn_row_bytes<Numbers>(from, g * kGroupBytes, nbytes,
                              [&](size_t group, size_t p, __m512i four) FLASH_TARGET {
                                uint8_t* const at = to + places[group] * Tile::row_group_bytes;
                                _mm512_storeu_si512(at + (p * RowLanes::across + i) * 64, four);
                              });
    }
    for (size_t k = 0; k < std::min(kInputGroups, groups - g); ++k) {
      uint8_t* const scales = to + places[k] * Tile::row_group_bytes + Tile::kWeightBytes;
      for (size_t r = 0; r < RowLanes::rows; ++r) {
        const uint8_t* const scale = rows + r * row_bytes + nbytes + (g + k) * kScaleBytes;
        std::memcpy(scales + r * kScaleBytes, scale, kScaleBytes);
      }
    }
    for (size_t& place : places) ++place;
  }
}

template <class Numbers>
FLASH_TARGET void tile_to_panel(const uint8_t* tile, size_t columns, uint8_t* to) {
  using Tile = TileLanes<Numbers>;
  for (size_t g = 0; g < group_count(columns); ++g) {
    for (size_t p = 0; p < Tile::kPieces; ++p) {
      for (size_t i = 0; i < RowLanes::across; ++i) {
        const __m512i four = I::load_bytes(tile + (p * RowLanes::across + i) * 64);
        put_whole<Numbers>(four, p, to + 64 * i);
      }
    }
    for (size_t i = 0; i < RowLanes::across; ++i) {
      const uint8_t* const scales = tile + Tile::kWeightBytes + 16 * i * Tile::Scale::item_bytes;
      _mm512_storeu_ps(to + RowLanes::rows * kGroup + 64 * i, Tile::Scale::load(scales));
    }
    tile += Tile::row_group_bytes;
    to += RowLanes::row_group_bytes;
  }
}

template <class Numbers>
FLASH_TARGET void dot_tiles(const uint8_t* tiles, size_t count, const TileVectors& x, float* out) {
  using Tile = TileLanes<Numbers>;
  const size_t groups = group_count(x.columns);
  const LaneOrder order(groups);
  for (size_t t = 0; t < count; ++t) {
    const TilePanel tile = {tiles + t * groups * Tile::row_group_bytes, RowLanes::rows};
    float* const to = out + t * RowLanes::rows;
    if (x.only_high) {
      multiply_lanes<Tile, 1, true>(order, tile, x, to, 0);
    } else {
      multiply_lanes<Tile, 1, false>(order, tile, x, to, 0);
    }
  }
}

template <class Numbers>
TileKernel tile_kernel() {
  return {RowLanes::rows,     RowLanes::member_group_bytes,
          pack_tile<Numbers>, pack_vector_lanes<Numbers, 1>,
          dot_tiles<Numbers>, tile_to_panel<Numbers>};
}

void set_tile_kernels(KernelTable* table) {
  table->tiles[static_cast<size_t>(DType::int8)] = tile_kernel<Int8Dot>();
  table->tiles[static_cast<size_t>(DType::int4)] = tile_kernel<NibbleDot<Int4Nibbles>>();
  table->tiles[static_cast<size_t>(DType::mxfp4)] = tile_kernel<NibbleDot<Mxfp4Nibbles>>();
}
