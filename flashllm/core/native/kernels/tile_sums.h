// Weighted sums of decoded rows for several vectors, written once for all vector widths.
//
// Included as kernel_loops.h is, after it. Each sum is that of add() there: the rows one after the
// other, those of weight 0 apart, from zero.

// The columns whose sums stay in registers while a vector's rows are added.
template <class V>
constexpr size_t kSumUnit = 8 * V::width;

template <class V>
FLASH_TARGET inline void sum_columns(const BlockSums& block, size_t vector, const float* values,
                                     float* out) {
  const size_t count = block.counts[vector];
  const uint32_t* rows = block.rows + vector * kBlockRows;
  const float* weights = block.weights + vector * kBlockRows;
  typename V::Type sums[8];
  for (size_t i = 0; i < 8; ++i) sums[i] = V::zero();
  for (size_t r = 0; r < count; ++r) {
    const float* row = values + rows[r] * kSumUnit<V>;
    const typename V::Type weight = V::broadcast(weights[r]);
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) {
      sums[i] = V::fma(weight, V::load(row + i * V::width), sums[i]);
    }
  }
  for (size_t i = 0; i < 8; ++i) {
    V::store(out + i * V::width, V::add(V::load(out + i * V::width), sums[i]));
  }
}

// The same for `Count` vectors at once, none of which has a weight of 0, over half of a unit: a row
// is loaded for all.
constexpr size_t kHalfUnit = 4;
template <class V, size_t Count>
FLASH_TARGET inline void sum_whole(const BlockSums& block, size_t vector, const float* values,
                                   float* out, size_t out_stride) {
  const float* weights = block.weights + vector * kBlockRows;
  typename V::Type sums[Count][kHalfUnit];
#pragma GCC unroll 8
  for (size_t v = 0; v < Count; ++v) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kHalfUnit; ++i) sums[v][i] = V::zero();
  }
  for (size_t r = 0; r < block.count; ++r) {
    typename V::Type here[kHalfUnit];
#pragma GCC unroll 4
    for (size_t i = 0; i < kHalfUnit; ++i) {
      here[i] = V::load(values + r * kSumUnit<V> + i * V::width);
    }
#pragma GCC unroll 8
    for (size_t v = 0; v < Count; ++v) {
      const typename V::Type weight = V::broadcast(weights[v * kBlockRows + r]);
#pragma GCC unroll 4
      for (size_t i = 0; i < kHalfUnit; ++i) sums[v][i] = V::fma(weight, here[i], sums[v][i]);
    }
  }
#pragma GCC unroll 8
  for (size_t v = 0; v < Count; ++v) {
    float* to = out + v * out_stride;
#pragma GCC unroll 4
    for (size_t i = 0; i < kHalfUnit; ++i) {
      V::store(to + i * V::width, V::add(V::load(to + i * V::width), sums[v][i]));
    }
  }
}

// As many of them as are taken at once from number `vector` on; 0 where it has a weight of 0.
template <class V, size_t Count = V::sums_at_once>
FLASH_TARGET inline size_t sum_next(const BlockSums& block, size_t vector, const float* values,
                                    float* out, size_t out_stride) {
  if constexpr (Count == 0) {
    return 0;
  } else {
    const size_t* counts = block.counts + vector;
    const auto whole = [&](size_t count) { return count == block.count; };
    if (vector + Count > block.vectors || !std::all_of(counts, counts + Count, whole)) {
      return sum_next<V, Count / 2>(block, vector, values, out, out_stride);
    }
    sum_whole<V, Count>(block, vector, values, out, out_stride);
    return Count;
  }
}

// Rows of a block, unit after unit of columns and in each row after row, so that a unit of all rows
// is in one piece in the first-level cache.
template <class V, class Encoding>
FLASH_TARGET void decode_block(const uint8_t* const* rows, size_t count, size_t columns,
                               float* values) {
  constexpr size_t kItem = Encoding::item_bytes;
  constexpr size_t kUnit = kSumUnit<V>;
  const size_t whole = columns / V::width * V::width;
  for (size_t r = 0; r < count; ++r) {
    float* const of_row = values + r * kUnit;
    const auto place = [&](size_t c) { return of_row + c / kUnit * kUnit * count + c % kUnit; };
    for (size_t c = 0; c < whole; c += V::width) {
      V::store(place(c), Encoding::load(rows[r] + c * kItem));
    }
    if (whole < columns) {
      uint8_t tail[V::width * kItem] = {};
      std::memcpy(tail, rows[r] + whole * kItem, (columns - whole) * kItem);
      V::store(place(whole), Encoding::load(tail));
    }
  }
}

template <class V>
FLASH_TARGET void sum_block(const BlockSums& block, size_t columns, float* out, size_t out_stride) {
  constexpr size_t kUnit = kSumUnit<V>;
  constexpr size_t kHalf = kHalfUnit * V::width;
  for (size_t c = 0; c < columns; c += kUnit) {
    const float* values = block.values + c * block.count;
    const size_t here = std::min(kUnit, columns - c);
    // Half of a unit of all rows stays in the first-level cache while the vectors pass by.
    for (size_t half = 0; half < kUnit; half += kHalf) {
      for (size_t v = 0; v < block.vectors;) {
        float* to = out + v * out_stride + c;
        const size_t taken =
            here < kUnit ? 0 : sum_next<V>(block, v, values + half, to + half, out_stride);
        if (taken == 0 && half == 0 && block.counts[v] != 0) {
          if (here < kUnit) {
            float part[kUnit] = {};
            std::memcpy(part, to, here * sizeof(float));
            sum_columns<V>(block, v, values, part);
            std::memcpy(to, part, here * sizeof(float));
          } else {
            sum_columns<V>(block, v, values, to);
          }
        }
        v += std::max(taken, size_t{1});
      }
    }
  }
}

template <class V>
FLASH_TARGET uint64_t nonzero(const float* values, size_t count) {
  uint64_t bits = 0;
  size_t i = 0;
  for (; i + V::width <= count; i += V::width) bits |= V::nonzero(V::load(values + i)) << i;
  for (; i < count; ++i) bits |= uint64_t{values[i] != 0.0F} << i;
  return bits;
}

template <class V, class F32, class F16, class BF16>
void set_sums(KernelTable* table) {
  table->sums = {sum_block<V>,
                 {decode_block<V, F32>, decode_block<V, F16>, decode_block<V, BF16>},
                 nonzero<V>};
}
