// Weighted sums of rows of groups, written once for all vector widths.
//
// Included as kernel_loops.h is, after grouped_dots.h. Each row's weight times the scale of a group
// is rounded together with those of the rows that are added with it (rounding.h), so that products
// of bytes add four rows at once, and exactly; floats are reached once a group of rows, not once a
// number. Beside what grouped_dots.h asks for, I gives Whole and Halves, vectors of as many bytes
// as Bytes whose operators the compiler knows, of 32 and 16 bits; load_turned() and interleave(),
// which together bring four rows' bytes side by side: vector i of four has columns i * V::width on,
// each with its bytes of the four rows as dot() adds them up; repeat(), four numbers as one 32-bit
// one for each of those columns; and fill(), lanes that are all one number.

// So many columns share a table, which is on the stack.
constexpr size_t kSumColumns = 2048;
constexpr size_t kSumGroups = kSumColumns / kGroup;
constexpr size_t kQuads = kRowsPerAdd / 4;

struct Int8Sum {
  static constexpr DType dtype = DType::int8;
  template <class S>
  using Scale = typename S::Half;
  static constexpr size_t halves = 1;
  template <class I>
  FLASH_TARGET static inline typename I::Bytes half(typename I::Bytes bytes, size_t /*half*/) {
    return I::whole(bytes);
  }
};

template <class Nibbles>
struct NibbleSum : Nibbles {
  static constexpr size_t halves = 2;
  template <class I>
  FLASH_TARGET static inline typename I::Bytes half(typename I::Bytes bytes, size_t half) {
    return half == 0 ? Nibbles::template first<I>(bytes) : Nibbles::template second<I>(bytes);
  }
};

// What rows are multiplied with, by group: of each four rows the high and the low halves of their
// numbers as bytes, the seeds as DotInput has them, and the scale of what comes out.
struct RoundedWeights {
  alignas(64) int32_t high[kQuads][kSumGroups];
  alignas(64) int32_t low[kQuads][kSumGroups];
  alignas(64) int32_t seeds[kSumGroups];
  alignas(64) float scales[kSumGroups];
};

// Scales of V::width groups, or of the last `count` of a row, behind which nothing may be read.
template <class V, class Scale>
FLASH_TARGET inline typename V::Type load_scales(const uint8_t* from, size_t count) {
  if (count >= V::width) return Scale::load(from);
  ScaleCopies<Scale, V::width> copies;
  std::memcpy(copies.bytes, from, count * Scale::item_bytes);
  return Scale::load(copies.bytes);
}

// Rows filled up to whole fours: with the first one's numbers, times zero.
template <size_t Quads>
struct QuadRows {
  static constexpr size_t count = 4 * Quads;
  const uint8_t* rows[count];
  const uint8_t* next[count];
  float weights[count];

  explicit QuadRows(const AddRows& given) {
    for (size_t r = 0; r < count; ++r) {
      const bool there = r < given.count;
      rows[r] = given.rows[there ? r : 0];
      next[r] = given.next[there ? r : 0];
      weights[r] = there ? given.weights[r] : 0;
    }
  }
};

// Of V::width groups: `count` weights times scales rounded together, as round_together() does but
// for how it says that a value is not finite. Returns what the numbers are times.
template <class V, class I, size_t Count>
FLASH_INLINE typename V::Type round_scaled(const typename V::Type* scaled,
                                           typename I::Whole* numbers) {
  using Float = typename V::Type;
  using Whole = typename I::Whole;
  Whole largest = {};
#pragma GCC unroll 8
  for (size_t r = 0; r < Count; ++r) {
    const Whole magnitude = (Whole)scaled[r] & 0x7FFFFFFF;
    largest = magnitude > largest ? magnitude : largest;
  }
  const auto bits = [](float value) { return static_cast<int32_t>(bits_of(value)); };
  const Whole infinite = largest >= bits(std::numeric_limits<float>::infinity());
  const Whole usable = (largest >= bits(kLeastRounded)) & ~infinite;
  const auto most = (Float)((largest & usable) | (bits(1.0F) & ~usable));
  const auto inverse = (Float)((Whole)(V::broadcast(kMostRounded) / most) & usable);
  const auto scale = (Float)((Whole)(most / V::broadcast(kMostRounded)) & usable);
  const auto wrong = (Float)(infinite & bits(std::numeric_limits<float>::quiet_NaN()));
#pragma GCC unroll 8
  for (size_t r = 0; r < Count; ++r) {
    const Float rounded = scaled[r] * inverse + V::broadcast(kRounding);
    // Zeros where a value is not finite, so that no sum of them overflows: the scale says it.
    numbers[r] = ((Whole)rounded - bits(kRounding)) & ~infinite;
  }
  return scale + wrong;
}

// The numbers of V::width groups, the first of which is number `at` of the table: `count` of them
// are there, with their scales at byte `scales` of each row.
template <class V, class Scale, class I, size_t Quads>
FLASH_INLINE void round_groups(const QuadRows<Quads>& rows, size_t scales, size_t count, float unit,
                               size_t at, RoundedWeights* to) {
  using Float = typename V::Type;
  using Whole = typename I::Whole;
  using Halves = typename I::Halves;
  Float scaled[4 * Quads];
  for (size_t r = 0; r < 4 * Quads; ++r) {
    scaled[r] = load_scales<V, Scale>(rows.rows[r] + scales, count) * V::broadcast(rows.weights[r]);
  }
  Whole all[4 * Quads];
  const Float scale = round_scaled<V, I, 4 * Quads>(scaled, all);
  V::store(to->scales + at, scale * V::broadcast(unit));
  Whole seeds = {};
  for (size_t q = 0; q < Quads; ++q) {
    const Whole* numbers = all + 4 * q;
    for (size_t i = 0; i < 4; ++i) seeds -= numbers[i];
    const auto even = (Halves)((numbers[0] & 0xFFFF) | (numbers[2] << 16));
    const auto odd = (Halves)((numbers[1] & 0xFFFF) | (numbers[3] << 16));
    const Halves even_high = (even + 64) >> 7;
    const Halves odd_high = (odd + 64) >> 7;
    const Halves even_low = even - (even_high << 7);
    const Halves odd_low = odd - (odd_high << 7);
    const auto high = (Whole)((even_high & 0xFF) | (odd_high << 8));
    const auto low = (Whole)((even_low & 0xFF) | (odd_low << 8));
    std::memcpy(to->high[q] + at, &high, sizeof(high));
    std::memcpy(to->low[q] + at, &low, sizeof(low));
  }
  std::memcpy(to->seeds + at, &seeds, sizeof(seeds));
}

// Columns of a sum from the first of a table on; `columns` of them are there.
struct SumColumns {
  float* partial;
  float* out;
  size_t columns;
  bool begins;
  bool ends;
};

// Each adds numbers * scale to a vector of columns. This one where all of a block is added at once.
template <class V>
struct AddBlock {
  const SumColumns& to;
  FLASH_TARGET void operator()(size_t column, typename V::Type numbers,
                               typename V::Type scale) const {
    const typename V::Type sum = V::fma(numbers, scale, V::zero());
    V::store(to.out + column, V::add(V::load(to.out + column), sum));
  }
};

template <class V>
struct AddPart {
  const SumColumns& to;
  FLASH_TARGET void operator()(size_t column, typename V::Type numbers,
                               typename V::Type scale) const {
    const typename V::Type before = to.begins ? V::zero() : V::load(to.partial + column);
    const typename V::Type sum = V::fma(numbers, scale, before);
    if (to.ends) {
      V::store(to.out + column, V::add(V::load(to.out + column), sum));
    } else {
      V::store(to.partial + column, sum);
    }
  }
};

// Where the columns may end within the vector, or before it.
template <class V>
struct AddLast {
  const SumColumns& to;
  FLASH_TARGET void operator()(size_t column, typename V::Type numbers,
                               typename V::Type scale) const {
    if (column >= to.columns) return;
    const typename V::Type before = to.begins ? V::zero() : V::load(to.partial + column);
    const typename V::Type sum = V::fma(numbers, scale, before);
    V::store(to.partial + column, sum);
    if (!to.ends) return;
    for (size_t c = column; c < std::min(column + V::width, to.columns); ++c) {
      to.out[c] += to.partial[c];
    }
  }
};

// What a vector of bytes of each row, at byte `first` behind those of the table's groups, adds to
// its columns.
template <class V, class I, class Numbers, size_t Quads, class Add>
FLASH_INLINE void add_bytes(const uint8_t* const* from, const RoundedWeights& weights, size_t first,
                            const Add& add) {
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  typename I::Bytes rows[Quads][4];
#pragma GCC unroll 2
  for (size_t q = 0; q < Quads; ++q) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) rows[q][i] = I::load_turned(from[4 * q + i]);
    I::interleave(rows[q]);
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    // Vectors are whole groups or groups whole vectors, so that neither sum passes a group's end.
    const size_t g = first / kGroupBytes + i * V::width / kGroupBytes;
    const size_t inside = first % kGroupBytes + i * V::width % kGroupBytes;
#pragma GCC unroll 2
    for (size_t half = 0; half < Numbers::halves; ++half) {
      auto lanes = I::fill(weights.seeds[g]);
#pragma GCC unroll 2
      for (size_t q = 0; q < Quads; ++q) {
        const auto bytes = Numbers::template half<I>(rows[q][i], half);
        lanes = I::dot(lanes, bytes, I::repeat(weights.high[q][g]));
      }
      lanes = I::times_128(lanes);
#pragma GCC unroll 2
      for (size_t q = 0; q < Quads; ++q) {
        const auto bytes = Numbers::template half<I>(rows[q][i], half);
        lanes = I::dot(lanes, bytes, I::repeat(weights.low[q][g]));
      }
      add(g * kGroup + inside + half * kGroupBytes, I::to_float(lanes),
          V::broadcast(weights.scales[g]));
    }
  }
}

// The columns that fill vectors; returns the bytes of each row that these take.
template <class V, class I, class Numbers, size_t Quads, class Add>
FLASH_TARGET inline size_t add_whole(const QuadRows<Quads>& rows, size_t numbers_at,
                                     const RoundedWeights& weights, const SumColumns& to) {
  constexpr size_t kBytes = 4 * V::width;
  const size_t nbytes = to.columns / kGroup * group_bytes(Numbers::dtype) / kBytes * kBytes;
  const Add add = {to};
  for (size_t at = 0; at < nbytes; at += kBytes) {
    const uint8_t* from[4 * Quads];
    for (size_t r = 0; r < 4 * Quads; ++r) from[r] = rows.rows[r] + numbers_at + at;
    if (kBytes >= 64 || at % 64 == 0) {
      for (size_t r = 0; r < 4 * Quads; ++r) {
        __builtin_prefetch(rows.next[r] + numbers_at + at, 0, 2);
      }
    }
    add_bytes<V, I, Numbers, Quads>(from, weights, at, add);
  }
  return nbytes;
}

// The columns of one table.
template <class V, class I, class Numbers, size_t Quads>
FLASH_TARGET inline void add_columns(const QuadRows<Quads>& rows, size_t numbers_at,
                                     const RoundedWeights& weights, const SumColumns& to) {
  constexpr size_t kBytes = 4 * V::width;
  size_t at = to.begins && to.ends
                  ? add_whole<V, I, Numbers, Quads, AddBlock<V>>(rows, numbers_at, weights, to)
                  : add_whole<V, I, Numbers, Quads, AddPart<V>>(rows, numbers_at, weights, to);
  const size_t nbytes = group_count(to.columns) * group_bytes(Numbers::dtype);
  for (; at < nbytes; at += kBytes) {
    uint8_t tails[4 * Quads][kBytes] = {};
    const uint8_t* from[4 * Quads];
    for (size_t r = 0; r < 4 * Quads; ++r) {
      std::memcpy(tails[r], rows.rows[r] + numbers_at + at, std::min(kBytes, nbytes - at));
      from[r] = tails[r];
    }
    add_bytes<V, I, Numbers, Quads>(from, weights, at, AddLast<V>{to});
  }
}

template <class V, class I, class S, class Numbers, size_t Quads>
FLASH_TARGET inline void add_quads(const AddRows& given, const ColumnRange& range, float* partial,
                                   float* out) {
  using Scale = typename Numbers::template Scale<S>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kScaleBytes = Scale::item_bytes;
  constexpr float kUnit = 1.0F / byte_unit(Numbers::dtype);
  const QuadRows<Quads> rows(given);
  RoundedWeights weights;
  for (size_t begin = range.first; begin < range.last; begin += kSumColumns) {
    const size_t columns = std::min(kSumColumns, range.last - begin);
    const size_t groups = group_count(columns);
    const size_t scales = group_count(range.count) * kGroupBytes + begin / kGroup * kScaleBytes;
    for (size_t g = 0; g < groups; g += V::width) {
      round_groups<V, Scale, I>(rows, scales + g * kScaleBytes, groups - g, kUnit, g, &weights);
    }
    for (size_t r = 0; r < given.count; ++r) {
      prefetch<kSumGroups * kScaleBytes>(rows.next[r] + scales);
    }
    const SumColumns to = {partial + (begin - range.first), out + begin, columns, given.begins,
                           given.ends};
    add_columns<V, I, Numbers, Quads>(rows, begin / kGroup * kGroupBytes, weights, to);
  }
}

template <class V, class I, class S, class Numbers>
FLASH_TARGET void add_groups(const AddRows& rows, const ColumnRange& range, float* partial,
                             float* out) {
  if (rows.count <= 4) {
    add_quads<V, I, S, Numbers, 1>(rows, range, partial, out);
  } else {
    add_quads<V, I, S, Numbers, kQuads>(rows, range, partial, out);
  }
}

template <class V, class I, class S>
void set_grouped_sums(KernelTable* table) {
  static_assert(kQuads == 2, "add_groups() knows of one four and of two");
  table->add[static_cast<size_t>(DType::int8)] = add_groups<V, I, S, Int8Sum>;
  table->add[static_cast<size_t>(DType::int4)] = add_groups<V, I, S, NibbleSum<Int4Nibbles>>;
  table->add[static_cast<size_t>(DType::mxfp4)] = add_groups<V, I, S, NibbleSum<Mxfp4Nibbles>>;
}
