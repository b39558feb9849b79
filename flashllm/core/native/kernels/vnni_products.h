// Products of tiles of rows of groups with tiles of vectors with AVX-512 VNNI: a lane for each row.
//
// Included by kernels_avx512.cpp, after vnni_dots.h, whose bits these are. For 16 rows and a vector
// a group takes 16 products of bytes (8 for each half of the vector's numbers) and is reached as
// floats once, where lanes of a row's own columns are reached as floats for each four products.
//
// A packed tile of rows has group after group, those of a lane of a dot together: of each group
// four bytes of every row after another, then the rows' scales. One of vectors has in the same
// order the high halves of every vector's numbers, the low ones, their seeds and their scales.

struct RowLanes {
  static constexpr size_t across = 2;  // vectors of 16 rows
  static constexpr size_t rows = 16 * across;
  static constexpr size_t vectors = 12;
  static constexpr size_t pieces = kGroup / 4;  // products of a group and of half of a number
  static constexpr size_t row_group_bytes = rows * (kGroup + sizeof(float));
  static constexpr size_t half_bytes = vectors * kGroup;  // of a group of vectors
  static constexpr size_t member_group_bytes = 2 * kGroup + sizeof(int32_t) + sizeof(float);
  static constexpr size_t vector_group_bytes = vectors * member_group_bytes;
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
  const size_t end = std::min(at + kInputGroups * kGroupBytes, nbytes);
  size_t first = 0;
  for (size_t from = at; from < end; from += 64, first += 64 / kGroupBytes) {
    __m512i bytes[16];
#pragma GCC unroll 16
    for (size_t r = 0; r < 16; ++r) {
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

// Four bytes of each of 16 rows, as bytes of their numbers: piece `piece` of a group in a panel.
template <class Numbers>
FLASH_INLINE void put_whole(__m512i four, size_t piece, uint8_t* group) {
  constexpr size_t kPieces = group_bytes(Numbers::dtype) / 4;
  constexpr size_t kStep = RowLanes::across * 64;
  if constexpr (Numbers::dtype == DType::int8) {
    _mm512_storeu_si512(group + piece * kStep, I::whole(four));
  } else {
    _mm512_storeu_si512(group + piece * kStep, Numbers::template first<I>(four));
    _mm512_storeu_si512(group + (kPieces + piece) * kStep, Numbers::template second<I>(four));
  }
}

template <class Numbers>
FLASH_TARGET void pack_row_lanes(const PanelRows& rows, size_t columns, uint8_t* to) {
  using Scale = typename Numbers::template Scale<S>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  const size_t groups = group_count(columns);
  const size_t nbytes = groups * kGroupBytes;
  std::array<size_t, kInputGroups> places = LaneOrder(groups).of_groups();
  for (size_t g = 0; g < groups; g += kInputGroups) {
    const size_t count = std::min(kInputGroups, groups - g);
    for (size_t i = 0; i < RowLanes::across; ++i) {
      // Where there are fewer rows, the last one again: what comes of it is not looked at.
      const uint8_t* from[16];
      __m512i scales[16];
      for (size_t r = 0; r < 16; ++r) {
        from[r] = rows.rows[std::min(16 * i + r, rows.count - 1)];
        const uint8_t* const at = from[r] + nbytes + g * Scale::item_bytes;
        scales[r] = _mm512_castps_si512(load_scales<V, Scale>(at, count));
      }
      turn_row_bytes<Numbers>(
          from, g * kGroupBytes, nbytes, [&](size_t group, size_t p, __m512i four) FLASH_TARGET {
            put_whole<Numbers>(four, p, to + places[group] * RowLanes::row_group_bytes + 64 * i);
          });
      transpose(scales);
      for (size_t k = 0; k < count; ++k) {
        uint8_t* const group = to + places[k] * RowLanes::row_group_bytes;
        _mm512_storeu_si512(group + RowLanes::rows * kGroup + 64 * i, scales[k]);
      }
    }
    for (size_t& place : places) ++place;
  }
}

// As member `member` of a tile of `Vectors`.
template <class Numbers, size_t Vectors>
void pack_vector_lanes(const DotInput& x, size_t member, uint8_t* to) {
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kLanes = kGroupBytes / 4;
  constexpr size_t kHalfBytes = Vectors * kGroup;
  const size_t groups = group_count(x.columns);
  std::array<size_t, kInputGroups> places = LaneOrder(groups).of_groups();
  for (size_t g = 0; g < groups; ++g) {
    uint8_t* const group = to + places[g % kInputGroups]++ * Vectors * RowLanes::member_group_bytes;
    for (size_t p = 0; p < RowLanes::pieces; ++p) {
      const size_t at = g * kGroupBytes + p % kLanes * 4 + p / kLanes * x.half_stride;
      uint8_t* const piece = group + (p * Vectors + member) * 4;
      std::memcpy(piece, x.high + at, 4);
      std::memcpy(piece + kHalfBytes, x.low + at, 4);
    }
    int32_t seed = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) seed += x.seeds[g * kLanes + lane];
    uint8_t* const rest = group + 2 * kHalfBytes + member * 4;
    std::memcpy(rest, &seed, sizeof(seed));
    std::memcpy(rest + Vectors * 4, x.scales + g, sizeof(float));
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

// Adds what a group has for one half of the vectors' numbers. Its loops are unrolled, so that all
// lanes stay in registers.
template <size_t Count>
FLASH_INLINE void dot_half(const uint8_t* weights, const uint8_t* numbers,
                           __m512i (&lanes)[Count][RowLanes::across]) {
  constexpr size_t kAcross = RowLanes::across;
#pragma GCC unroll 1
  for (size_t p = 0; p < RowLanes::pieces; ++p) {
    __m512i here[kAcross];
#pragma GCC unroll 4
    for (size_t i = 0; i < kAcross; ++i) here[i] = I::load_bytes(weights + 64 * i);
#pragma GCC unroll 16
    for (size_t v = 0; v < Count; ++v) {
      const __m512i four = I::repeat(int_at(numbers + v * 4));
#pragma GCC unroll 4
      for (size_t i = 0; i < kAcross; ++i) add_dot(&lanes[v][i], here[i], four);
    }
    weights += 64 * kAcross;
    numbers += 4 * RowLanes::vectors;
  }
}

// A packed tile of rows, with a packed tile of vectors.
struct PanelLanes {
  static constexpr size_t row_group_bytes = RowLanes::row_group_bytes;
  static constexpr size_t vector_group_bytes = RowLanes::vector_group_bytes;
  // Adds a group to the sums of `Count` vectors.
  template <size_t Count, bool kOnlyHigh>
  FLASH_INLINE void add_group(const uint8_t* rows, const uint8_t* x,
                              __m512 (*sums)[RowLanes::across]) {
    constexpr size_t kAcross = RowLanes::across;
    __m512i lanes[Count][kAcross];
#pragma GCC unroll 16
    for (size_t v = 0; v < Count; ++v) {
      const __m512i seed = I::fill(int_at(x + 2 * RowLanes::half_bytes + v * 4));
#pragma GCC unroll 4
      for (size_t i = 0; i < kAcross; ++i) lanes[v][i] = seed;
    }
    dot_half<Count>(rows, x, lanes);
#pragma GCC unroll 16
    for (size_t v = 0; v < Count; ++v) {
#pragma GCC unroll 4
      for (size_t i = 0; i < kAcross; ++i) lanes[v][i] = I::times_128(lanes[v][i]);
    }
    if constexpr (!kOnlyHigh) dot_half<Count>(rows, x + RowLanes::half_bytes, lanes);
    __m512 scales[kAcross];
#pragma GCC unroll 4
    for (size_t i = 0; i < kAcross; ++i) {
      scales[i] = _mm512_loadu_ps(rows + RowLanes::rows * kGroup + 64 * i);
    }
#pragma GCC unroll 16
    for (size_t v = 0; v < Count; ++v) {
      const uint8_t* at = x + 2 * RowLanes::half_bytes + (RowLanes::vectors + v) * 4;
      const __m512 scale = _mm512_castsi512_ps(_mm512_set1_epi32(int_at(at)));
#pragma GCC unroll 4
      for (size_t i = 0; i < kAcross; ++i) {
        sums[v][i] = V::fma(I::to_float(lanes[v][i]), V::multiply(scales[i], scale), sums[v][i]);
      }
    }
  }
};

template <class Tile, size_t Count, bool kOnlyHigh>
FLASH_TARGET void multiply_lanes(const LaneOrder& order, const TilePanel& panel,
                                 const TileVectors& x, float* out, size_t out_stride) {
  constexpr size_t kAcross = RowLanes::across;
  const uint8_t* rows = panel.packed;
  const uint8_t* vectors = x.packed;
  // Sums of 1, 2, 4 and 8 lanes that wait for their neighbours, and that of all 16. Without groups
  // a lane is zero, which changes no other one, for none is a negative zero.
  __m512 waiting[5][Count][kAcross];
  bool waits[5] = {};
  for (size_t place = 0; place < kInputGroups; ++place) {
    __m512 sums[Count][kAcross];
    bool any = order.groups[place] != 0;
    for (auto& of_vector : sums) std::fill_n(of_vector, kAcross, V::zero());
    for (size_t g = 0; g < order.groups[place]; ++g) {
      Tile::template add_group<Count, kOnlyHigh>(rows, vectors, sums);
      rows += Tile::row_group_bytes;
      vectors += Tile::vector_group_bytes;
    }
    size_t level = 0;
    for (; (place >> level & 1) != 0; ++level) {
      if (!waits[level]) continue;
      for (size_t v = 0; v < Count; ++v) {
        for (size_t i = 0; i < kAcross; ++i) {
          const __m512 neighbour = waiting[level][v][i];
          sums[v][i] = any ? V::add(neighbour, sums[v][i]) : neighbour;
        }
      }
      any = true;
    }
    waits[level] = any;
    if (any) std::memcpy(waiting[level], sums, sizeof(sums));
  }
  for (size_t i = 0; i < kAcross && 16 * i < panel.rows; ++i) {
    const size_t left = std::min(panel.rows - 16 * i, size_t{16});
    const auto there = static_cast<__mmask16>((1U << left) - 1);
    for (size_t v = 0; v < Count; ++v) {
      _mm512_mask_storeu_ps(out + v * out_stride + 16 * i, there, waiting[4][v][i]);
    }
  }
}

// As many vectors as are there, each number of which has a function of its own.
template <size_t Count = RowLanes::vectors>
void multiply_row_lanes(const TilePanel& panel, const TileVectors& x, float* out,
                        size_t out_stride) {
  if constexpr (Count > 1) {
    if (x.count < Count) return multiply_row_lanes<Count - 1>(panel, x, out, out_stride);
  }
  const LaneOrder order(group_count(x.columns));
  if (x.only_high) {
    return multiply_lanes<PanelLanes, Count, true>(order, panel, x, out, out_stride);
  }
  multiply_lanes<PanelLanes, Count, false>(order, panel, x, out, out_stride);
}

template <class Numbers>
ProductKernel lane_product() {
  return {RowLanes::rows,
          RowLanes::vectors,
          RowLanes::row_group_bytes / RowLanes::rows,
          RowLanes::member_group_bytes,
          group_count,
          pack_row_lanes<Numbers>,
          pack_vector_lanes<Numbers, RowLanes::vectors>,
          multiply_row_lanes<>};
}

void set_lane_products(KernelTable* table) {
  table->product[static_cast<size_t>(DType::int8)] = lane_product<Int8Dot>();
  table->product[static_cast<size_t>(DType::int4)] = lane_product<NibbleDot<Int4Nibbles>>();
  table->product[static_cast<size_t>(DType::mxfp4)] = lane_product<NibbleDot<Mxfp4Nibbles>>();
}
