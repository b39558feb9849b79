// Weighted sums of rows of int8 and int4, written once for all vector widths.
//
// Included as kernel_loops.h is, after it. Numbers gives dtype and add(): two groups of numbers,
// each multiplied by its scale times its row's weight, added to a Unit.

// So many columns share a table of scales, which is on the stack.
constexpr size_t kScaledColumns = 2048;
constexpr size_t kScaledGroups = kScaledColumns / kGroup;

// scaled[g] = weight * scale g; `count` of them, and zeros to the end of a unit.
template <class V, class F16>
FLASH_TARGET inline void scale_weights(const uint8_t* scales, size_t count, float weight,
                                       float* scaled) {
  const typename V::Type factor = V::broadcast(weight);
  size_t g = 0;
  for (; g + V::width <= count; g += V::width) {
    V::store(scaled + g, V::fma(factor, F16::load(scales + g * kScaleBytes), V::zero()));
  }
  for (; g < count; ++g) {
    uint16_t half = 0;
    std::memcpy(&half, scales + g * kScaleBytes, kScaleBytes);
    scaled[g] = weight * float_from_f16(half);
  }
  if (count % 2 != 0) scaled[count] = 0;
}

template <class V, class Numbers>
FLASH_TARGET inline void add_group_pair(const AddRows& rows, size_t first, size_t columns,
                                        const float (*scaled)[kScaledGroups], size_t pair,
                                        Unit<V>* unit) {
  constexpr size_t kBytes = group_bytes(Numbers::dtype);
  const size_t at = first / kGroup * kBytes;
  for (size_t r = 0; r < rows.count; ++r) {
    const uint8_t* from = rows.rows[r] + at;
    uint8_t tail[2 * kBytes];
    if (columns <= kGroup) {
      std::memset(tail, 0, sizeof(tail));
      std::memcpy(tail, from, kBytes);
      from = tail;
    } else if (at % 64 == 0 || 2 * kBytes >= 64) {
      __builtin_prefetch(rows.next[r] + at, 0, 2);
    }
    Numbers::add(from, scaled[r] + 2 * pair, unit);
  }
}

template <class V, class F16, class Numbers>
FLASH_TARGET void add_groups(const AddRows& rows, const ColumnRange& range, float* partial,
                             float* out) {
  const size_t scales_at = group_count(range.count) * group_bytes(Numbers::dtype);
  float scaled[kRowsPerAdd][kScaledGroups];
  for (size_t begin = range.first; begin < range.last; begin += kScaledColumns) {
    const size_t end = std::min(begin + kScaledColumns, range.last);
    const size_t scales = scales_at + begin / kGroup * kScaleBytes;
    for (size_t r = 0; r < rows.count; ++r) {
      scale_weights<V, F16>(rows.rows[r] + scales, group_count(end - begin), rows.weights[r],
                            scaled[r]);
      __builtin_prefetch(rows.next[r] + scales, 0, 2);
      __builtin_prefetch(rows.next[r] + scales + 64, 0, 2);
    }
    for (size_t c = begin; c < end; c += kColumnUnit) {
      const size_t columns = std::min(kColumnUnit, end - c);
      Unit<V> unit;
      if (rows.begins) {
        unit.zero();
      } else {
        unit.load(partial + (c - range.first));
      }
      add_group_pair<V, Numbers>(rows, c, columns, scaled, (c - begin) / kColumnUnit, &unit);
      if (rows.ends) {
        unit.add_to(out + c, columns);
      } else {
        unit.store(partial + (c - range.first));
      }
    }
  }
}

template <class V, class F16, class Int8, class Int4>
void set_grouped_sums(KernelTable* table) {
  table->add[static_cast<size_t>(DType::int8)] = add_groups<V, F16, Int8>;
  table->add[static_cast<size_t>(DType::int4)] = add_groups<V, F16, Int4>;
}
