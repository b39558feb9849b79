// Products of tiles of rows of groups with a few vectors with AVX-512 VNNI: a lane for each row.
//
// Included by kernels_avx512.cpp, after vnni_dots.h, whose bits these are. A group of one row ends
// in four lanes of 16, which have to be brought together; a group of a tile has a lane for each
// row, so that for one vector 33 instructions do what 47 do (int4, a row of 16 groups), and for a
// second one half of them.
//
// A tile has as many bytes as its rows, so that a matrix may be kept in tiles. It has group after
// group, those of a lane of a dot together: of each four bytes of every row after another, as they
// are in a row, then the rows' scales. One of vectors has in the same order the high halves of
// every vector's numbers, the low ones, their seeds and their scales.

struct RowLanes {
  static constexpr size_t across = 2;  // vectors of 16 rows
  static constexpr size_t rows = 16 * across;
  static constexpr size_t vectors = 4;  // whose lanes have registers of their own
  static constexpr size_t member_group_bytes = 2 * kGroup + sizeof(int32_t) + sizeof(float);
};

// Where groups lie in a tile: lanes of a dot in the order in which neighbours meet when a vector of
// 16 is added up: 0 and 8, then 4 and 12, and so on.
struct LaneOrder {
  std::array<size_t, kInputGroups> groups;  // of each lane, in that order
  std::array<size_t, kInputGroups> begin;

  static constexpr size_t lane(size_t place) {
    return (place & 1) << 3 | (place & 2) << 1 | (place & 4) >> 1 | (place & 8) >> 3;
  }

  explicit LaneOrder(size_t count) : groups{}, begin{} {
    size_t sum = 0;
    for (size_t place = 0; place < kInputGroups; ++place) {
      const size_t first = group_of_lane(lane(place));
      groups[place] = first < count ? (count - first - 1) / kInputGroups + 1 : 0;
      begin[place] = sum;
      sum += groups[place];
    }
  }
  // Where each group of 16 that follow one another lies, the first of them being the first of all.
  std::array<size_t, kInputGroups> of_groups() const {
    std::array<size_t, kInputGroups> places = {};
    for (size_t place = 0; place < kInputGroups; ++place) {
      places[group_of_lane(lane(place))] = begin[place];
    }
    return places;
  }
};

// 16 vectors of 16 numbers of 32 bits: number j of vector i becomes number i of vector j.
FLASH_INLINE void transpose(__m512i* rows) {
  __m512i pairs[16];
#pragma GCC unroll 8
  for (size_t i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // Of four rows the columns 4 * quarter + k of each quarter.
  __m512i fours[4][4];
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    fours[0][i] = _mm512_unpacklo_epi64(pairs[4 * i], pairs[4 * i + 2]);
    fours[1][i] = _mm512_unpackhi_epi64(pairs[4 * i], pairs[4 * i + 2]);
    fours[2][i] = _mm512_unpacklo_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
    fours[3][i] = _mm512_unpackhi_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (size_t k = 0; k < 4; ++k) {
    const __m512i low = _mm512_shuffle_i32x4(fours[k][0], fours[k][1], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(fours[k][0], fours[k][1], 0xDD);
    const __m512i high = _mm512_shuffle_i32x4(fours[k][2], fours[k][3], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(fours[k][2], fours[k][3], 0xDD);
    rows[k] = _mm512_shuffle_i32x4(low, high, 0x88);
    rows[4 + k] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    rows[8 + k] = _mm512_shuffle_i32x4(low, high, 0xDD);
    rows[12 + k] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
  }
}

// Turns 16 groups from byte `at` on of 16 rows, of which `nbytes` bytes each are there: gives
// put(group, piece, bytes) number `piece` of the four bytes of each row of a group, one of the 16.
template <class Numbers, class Put>
FLASH_INLINE void turn_row_bytes(const uint8_t* const* rows, size_t at, size_t nbytes,
                                 const Put& put) {
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kPieces = kGroupBytes / 4;
  // Of each row memory is asked for, for there are more rows than processors foresee.
  constexpr size_t kAhead = kInputGroups * kGroupBytes;
  const size_t end = std::min(at + kInputGroups * kGroupBytes, nbytes);
  size_t first = 0;
  for (size_t from = at; from < end; from += 64, first += 64 / kGroupBytes) {
    __m512i bytes[16];
#pragma GCC unroll 16
    for (size_t r = 0; r < 16; ++r) {
      _mm_prefetch(reinterpret_cast<const char*>(rows[r] + from) + kAhead, _MM_HINT_T0);
      if (end - from >= 64) {
        bytes[r] = I::load_bytes(rows[r] + from);
      } else {
        bytes[r] = _mm512_maskz_loadu_epi8((uint64_t{1} << (end - from)) - 1, rows[r] + from);
      }
    }
    transpose(bytes);
    const size_t groups = std::min((end - from) / kGroupBytes, 64 / kGroupBytes);
    for (size_t g = 0; g < groups; ++g) {
      for (size_t p = 0; p < kPieces; ++p) put(first + g, p, bytes[g * kPieces + p]);
    }
  }
}

FLASH_INLINE int32_t int_at(const uint8_t* from) {
  int32_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// As I::dot(), in place: of the intrinsic GCC 12 makes copies of all lanes, and keeps those in
// memory.
FLASH_INLINE void add_dot(__m512i* lanes, __m512i weights, __m512i numbers) {
  asm("vpdpbusd %2, %1, %0" : "+v"(*lanes) : "v"(weights), "v"(numbers));
}

// Memory is asked for so many bytes ahead, of one tile or of each of several; behind the last one
// there may be nothing to read.
constexpr size_t kTileBytesAhead = 8192;
constexpr size_t kTileBytesAheadApart = 1024;

// A tile of rows, with one of so many vectors.
template <class Numbers, size_t Vectors>
struct TileLanes {
  using Scale = typename Numbers::template Scale<S>;
  static constexpr size_t kAcross = RowLanes::across;
  static constexpr size_t kPieces = group_bytes(Numbers::dtype) / 4;
  static constexpr size_t kWeightBytes = RowLanes::rows * group_bytes(Numbers::dtype);
  static constexpr size_t row_group_bytes = kWeightBytes + RowLanes::rows * Scale::item_bytes;
  static constexpr size_t vector_group_bytes = Vectors * RowLanes::member_group_bytes;

  // Adds a group to the sums of the vectors. Halves of their numbers have lanes of their own, so
  // that no product waits for one of the other half.
  template <bool kOnlyHigh, size_t kBytesAhead>
  FLASH_INLINE void add_group(const uint8_t* rows, const uint8_t* x, __m512 (*sums)[kAcross]) {
    constexpr size_t kHalfBytes = Vectors * kGroup;
    __m512i high[Vectors][kAcross];
    __m512i low[Vectors][kAcross];
#pragma GCC unroll 8
    for (size_t v = 0; v < Vectors; ++v) {
      const __m512i seed = I::fill(int_at(x + 2 * kHalfBytes + 4 * v));
#pragma GCC unroll 2
      for (size_t i = 0; i < kAcross; ++i) {
        high[v][i] = seed;
        low[v][i] = _mm512_setzero_si512();
      }
    }
    const auto add = [&](const __m512i* weights, size_t p) FLASH_TARGET {
#pragma GCC unroll 8
      for (size_t v = 0; v < Vectors; ++v) {
        const uint8_t* const four = x + 4 * (p * Vectors + v);
        const __m512i numbers = I::repeat(int_at(four));
#pragma GCC unroll 2
        for (size_t i = 0; i < kAcross; ++i) add_dot(&high[v][i], weights[i], numbers);
        if constexpr (!kOnlyHigh) {
          const __m512i rest = I::repeat(int_at(four + kHalfBytes));
#pragma GCC unroll 2
          for (size_t i = 0; i < kAcross; ++i) add_dot(&low[v][i], weights[i], rest);
        }
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
#pragma GCC unroll 2
    for (size_t i = 0; i < kAcross; ++i) {
      const __m512 scales = Scale::load(rows + kWeightBytes + 16 * i * Scale::item_bytes);
#pragma GCC unroll 8
      for (size_t v = 0; v < Vectors; ++v) {
        const uint8_t* const at = x + 2 * kHalfBytes + 4 * (Vectors + v);
        const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(int_at(at)));
        __m512i lanes = I::times_128(high[v][i]);
        if constexpr (!kOnlyHigh) lanes = _mm512_add_epi32(lanes, low[v][i]);
        sums[v][i] = V::fma(I::to_float(lanes), V::multiply(scales, scale), sums[v][i]);
      }
    }
  }
};

template <class Numbers>
FLASH_TARGET void pack_row_lanes(const PanelRows& rows, size_t columns, uint8_t* to) {
  using Tile = TileLanes<Numbers, 1>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kScaleBytes = Tile::Scale::item_bytes;
  const size_t groups = group_count(columns);
  const size_t nbytes = groups * kGroupBytes;
  // Where there are fewer rows, the last one again: what comes of it is not looked at.
  const uint8_t* all[RowLanes::rows];
  for (size_t r = 0; r < RowLanes::rows; ++r) all[r] = rows.rows[std::min(r, rows.count - 1)];
  std::array<size_t, kInputGroups> places = LaneOrder(groups).of_groups();
  for (size_t g = 0; g < groups; g += kInputGroups) {
    for (size_t i = 0; i < RowLanes::across; ++i) {
      turn_row_bytes<Numbers>(all + 16 * i, g * kGroupBytes, nbytes,
                              [&](size_t group, size_t p, __m512i four) FLASH_TARGET {
                                uint8_t* const at = to + places[group] * Tile::row_group_bytes;
                                _mm512_storeu_si512(at + (p * RowLanes::across + i) * 64, four);
                              });
    }
    for (size_t k = 0; k < std::min(kInputGroups, groups - g); ++k) {
      uint8_t* const scales = to + places[k] * Tile::row_group_bytes + Tile::kWeightBytes;
      for (size_t r = 0; r < RowLanes::rows; ++r) {
        const uint8_t* const scale = all[r] + nbytes + (g + k) * kScaleBytes;
        std::memcpy(scales + r * kScaleBytes, scale, kScaleBytes);
      }
    }
    for (size_t& place : places) ++place;
  }
}

template <class Numbers>
void unpack_row_lanes(const uint8_t* tile, size_t row, size_t columns, uint8_t* to) {
  using Tile = TileLanes<Numbers, 1>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kScaleBytes = Tile::Scale::item_bytes;
  const size_t groups = group_count(columns);
  std::array<size_t, kInputGroups> places = LaneOrder(groups).of_groups();
  for (size_t g = 0; g < groups; ++g) {
    const uint8_t* const group = tile + places[g % kInputGroups]++ * Tile::row_group_bytes;
    for (size_t p = 0; p < Tile::kPieces; ++p) {
      std::memcpy(to + g * kGroupBytes + 4 * p, group + (p * RowLanes::rows + row) * 4, 4);
    }
    std::memcpy(to + groups * kGroupBytes + g * kScaleBytes,
                group + Tile::kWeightBytes + row * kScaleBytes, kScaleBytes);
  }
}

template <class Numbers>
void pack_vector_lanes(const DotInput& x, size_t member, size_t members, uint8_t* to) {
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kLanes = kGroupBytes / 4;
  const size_t half_bytes = members * kGroup;
  const size_t groups = group_count(x.columns);
  std::array<size_t, kInputGroups> places = LaneOrder(groups).of_groups();
  for (size_t g = 0; g < groups; ++g) {
    uint8_t* const group = to + places[g % kInputGroups]++ * members * RowLanes::member_group_bytes;
    for (size_t p = 0; p < kGroup / 4; ++p) {
      const size_t at = g * kGroupBytes + p % kLanes * 4 + p / kLanes * x.half_stride;
      uint8_t* const piece = group + (p * members + member) * 4;
      std::memcpy(piece, x.high + at, 4);
      std::memcpy(piece + half_bytes, x.low + at, 4);
    }
    int32_t seed = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) seed += x.seeds[g * kLanes + lane];
    uint8_t* const rest = group + 2 * half_bytes + member * 4;
    std::memcpy(rest, &seed, sizeof(seed));
    std::memcpy(rest + members * 4, x.scales + g, sizeof(float));
  }
}

// Several tiles by turns, of which the last has `rows` rows; out[t] is of row 0 of tile t.
template <class Numbers, size_t Tiles, size_t Count, bool kOnlyHigh>
FLASH_TARGET void multiply_lanes(const std::array<const uint8_t*, Tiles>& tiles, size_t rows,
                                 const TileVectors& x, const std::array<float*, Tiles>& out,
                                 size_t out_stride) {
  using Tile = TileLanes<Numbers, Count>;
  constexpr size_t kAcross = RowLanes::across;
  constexpr size_t kAhead = Tiles == 1 ? kTileBytesAhead : kTileBytesAheadApart;
  const LaneOrder order(group_count(x.columns));
  std::array<const uint8_t*, Tiles> at = tiles;
  const uint8_t* vectors = x.packed;
  // Sums of 1, 2, 4 and 8 lanes that wait for their neighbours, and that of all 16. Without groups
  // a lane is zero, which changes no other one, for none is a negative zero.
  __m512 waiting[5][Tiles][Count][kAcross];
  bool waits[5] = {};
  for (size_t place = 0; place < kInputGroups; ++place) {
    __m512 sums[Tiles][Count][kAcross];
    bool any = order.groups[place] != 0;
    std::fill_n(&sums[0][0][0], Tiles * Count * kAcross, V::zero());
    for (size_t g = 0; g < order.groups[place]; ++g) {
#pragma GCC unroll 4
      for (size_t t = 0; t < Tiles; ++t) {
        Tile::template add_group<kOnlyHigh, kAhead>(at[t], vectors, sums[t]);
        at[t] += Tile::row_group_bytes;
      }
      vectors += Tile::vector_group_bytes;
    }
    size_t level = 0;
    for (; (place >> level & 1) != 0; ++level) {
      if (!waits[level]) continue;
      const __m512* const neighbours = &waiting[level][0][0][0];
      __m512* const own = &sums[0][0][0];
      for (size_t i = 0; i < Tiles * Count * kAcross; ++i) {
        own[i] = any ? V::add(neighbours[i], own[i]) : neighbours[i];
      }
      any = true;
    }
    waits[level] = any;
    if (any) std::memcpy(waiting[level], sums, sizeof(sums));
  }
  for (size_t t = 0; t < Tiles; ++t) {
    const size_t there = t + 1 < Tiles ? RowLanes::rows : rows;
    for (size_t i = 0; i < kAcross && 16 * i < there; ++i) {
      const size_t left = std::min(there - 16 * i, size_t{16});
      const auto mask = static_cast<__mmask16>((1U << left) - 1);
      for (size_t v = 0; v < Count; ++v) {
        _mm512_mask_storeu_ps(out[t] + v * out_stride + 16 * i, mask, waiting[4][t][v][i]);
      }
    }
  }
}

// As many vectors as are there, each number of which has a function of its own.
template <class Numbers, size_t Count = RowLanes::vectors>
void multiply_row_lanes(const TilePanel& panel, const TileVectors& x, float* out,
                        size_t out_stride) {
  if constexpr (Count > 1) {
    if (x.count < Count) return multiply_row_lanes<Numbers, Count - 1>(panel, x, out, out_stride);
  }
  if (x.only_high) {
    return multiply_lanes<Numbers, 1, Count, true>({panel.packed}, panel.rows, x, {out},
                                                   out_stride);
  }
  multiply_lanes<Numbers, 1, Count, false>({panel.packed}, panel.rows, x, {out}, out_stride);
}

template <class Numbers>
void multiply_apart(const std::array<const uint8_t*, kTilesApart>& tiles, const TileVectors& x,
                    const std::array<float*, kTilesApart>& out) {
  constexpr size_t kRows = RowLanes::rows;
  if (x.only_high) return multiply_lanes<Numbers, kTilesApart, 1, true>(tiles, kRows, x, out, 0);
  multiply_lanes<Numbers, kTilesApart, 1, false>(tiles, kRows, x, out, 0);
}

template <class Numbers>
ProductKernel lane_product() {
  ProductKernel kernel = {};
  kernel.rows = RowLanes::rows;
  kernel.vectors = RowLanes::vectors;
  kernel.row_piece_bytes = TileLanes<Numbers, 1>::row_group_bytes / RowLanes::rows;
  kernel.vector_piece_bytes = RowLanes::member_group_bytes;
  kernel.by_dots = Numbers::dtype == DType::int8 ? 2 : kMostByDots;
  kernel.keeps_bytes = true;
  kernel.steps = group_count;
  kernel.pack_rows = pack_row_lanes<Numbers>;
  kernel.unpack_row = unpack_row_lanes<Numbers>;
  kernel.pack_vector = pack_vector_lanes<Numbers>;
  kernel.multiply = multiply_row_lanes<Numbers>;
  kernel.multiply_apart = multiply_apart<Numbers>;
  return kernel;
}

void set_lane_products(KernelTable* table) {
  table->product[static_cast<size_t>(DType::int8)] = lane_product<Int8Dot>();
  table->product[static_cast<size_t>(DType::int4)] = lane_product<NibbleDot<Int4Nibbles>>();
  table->product[static_cast<size_t>(DType::mxfp4)] = lane_product<NibbleDot<Mxfp4Nibbles>>();
}
