// The two inner loops, written once for all vector widths.
//
// Included only by the file of one instruction set, which defines FLASH_TARGET (the attribute
// that lets the compiler use it), within an unnamed namespace of its own: a loop compiled for one
// instruction set must never be linked in place of another's.
//
// V gives Type, width, dots_at_once (as many as registers have room for), zero(), broadcast(),
// load(), store(), fma(a, b, c) = a * b + c with one rounding, add(), sum(). An encoding gives
// item_bytes and load(), `V::width` values widened.

// Fetches the lines of `next` that lie where `Bytes` of the present row are being read: a whole
// row ahead, which the processor cannot guess when rows are anywhere. Into the second-level cache,
// since that many lines cannot be under way to the first: 17 GB/s rather than 9 of random rows of
// 8 KiB, where reading in order gives 19.
template <size_t Bytes>
FLASH_TARGET inline void prefetch(const uint8_t* next) {
  for (size_t at = 0; at < Bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
}

// Several rows are read at once, since memory gives more from several places than from one, and
// what is loaded of x serves all of them.
template <class V, class Encoding, size_t Count>
FLASH_TARGET inline void dots(const uint8_t* const* rows, const uint8_t* const* next,
                              const DotInput& input, float* out) {
  constexpr size_t kWidth = V::width;
  constexpr size_t kItem = Encoding::item_bytes;
  const float* x = input.values;
  const size_t columns = input.columns;
  // Four sums: a fused multiply-add takes four cycles and two can start in each.
  typename V::Type sums[Count][4];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = V::zero();
  }
  size_t c = 0;
  for (; c + 4 * kWidth <= columns; c += 4 * kWidth) {
    const typename V::Type numbers[4] = {V::load(x + c), V::load(x + c + kWidth),
                                         V::load(x + c + 2 * kWidth), V::load(x + c + 3 * kWidth)};
    for (size_t r = 0; r < Count; ++r) {
      prefetch<4 * kWidth * kItem>(next[r] + c * kItem);
      for (size_t j = 0; j < 4; ++j) {
        const uint8_t* from = rows[r] + (c + j * kWidth) * kItem;
        sums[r][j] = V::fma(Encoding::load(from), numbers[j], sums[r][j]);
      }
    }
  }
  for (; c + kWidth <= columns; c += kWidth) {
    for (size_t r = 0; r < Count; ++r) {
      sums[r][0] = V::fma(Encoding::load(rows[r] + c * kItem), V::load(x + c), sums[r][0]);
    }
  }
  if (c < columns) {
    float x_tail[kWidth] = {};
    std::memcpy(x_tail, x + c, (columns - c) * sizeof(float));
    for (size_t r = 0; r < Count; ++r) {
      uint8_t row_tail[kWidth * kItem] = {};
      std::memcpy(row_tail, rows[r] + c * kItem, (columns - c) * kItem);
      sums[r][1] = V::fma(Encoding::load(row_tail), V::load(x_tail), sums[r][1]);
    }
  }
  for (size_t r = 0; r < Count; ++r) {
    out[r] = V::sum(V::add(V::add(sums[r][0], sums[r][1]), V::add(sums[r][2], sums[r][3])));
  }
}

template <class V, class Encoding>
FLASH_TARGET void dot(const DotRows& rows, const DotInput& input, float* out) {
  size_t r = 0;
  for (; r + V::dots_at_once <= rows.count; r += V::dots_at_once) {
    dots<V, Encoding, V::dots_at_once>(&rows.rows[r], &rows.next[r], input, out + r);
  }
  for (; r < rows.count; ++r) dots<V, Encoding, 1>(&rows.rows[r], &rows.next[r], input, out + r);
}

// One unit of columns, whose sums stay in registers while all the rows are added.
template <class V>
struct Unit {
  static constexpr size_t vectors = kColumnUnit / V::width;
  typename V::Type sums[vectors];

  FLASH_TARGET void load(const float* from) {
    for (size_t v = 0; v < vectors; ++v) sums[v] = V::load(from + v * V::width);
  }
  FLASH_TARGET void zero() {
    for (size_t v = 0; v < vectors; ++v) sums[v] = V::zero();
  }
  FLASH_TARGET void store(float* to) const {
    for (size_t v = 0; v < vectors; ++v) V::store(to + v * V::width, sums[v]);
  }
  FLASH_TARGET void add_to(float* out, size_t columns) const {
    if (columns < kColumnUnit) {
      float values[kColumnUnit];
      store(values);
      for (size_t c = 0; c < columns; ++c) out[c] += values[c];
      return;
    }
    for (size_t v = 0; v < vectors; ++v) {
      V::store(out + v * V::width, V::add(V::load(out + v * V::width), sums[v]));
    }
  }
};

// The rows' part of one unit; `columns` of it are there.
template <class V, class Encoding>
FLASH_TARGET inline void add_unit(const AddRows& rows, size_t first, size_t columns,
                                  Unit<V>* unit) {
  constexpr size_t kItem = Encoding::item_bytes;
  for (size_t r = 0; r < rows.count; ++r) {
    const uint8_t* from = rows.rows[r] + first * kItem;
    uint8_t tail[kColumnUnit * kItem];
    if (columns < kColumnUnit) {
      std::memset(tail, 0, sizeof(tail));
      std::memcpy(tail, from, columns * kItem);
      from = tail;
    } else {
      prefetch<kColumnUnit * kItem>(rows.next[r] + first * kItem);
    }
    const typename V::Type weight = V::broadcast(rows.weights[r]);
    for (size_t v = 0; v < Unit<V>::vectors; ++v) {
      unit->sums[v] = V::fma(weight, Encoding::load(from + v * V::width * kItem), unit->sums[v]);
    }
  }
}

template <class V, class Encoding>
FLASH_TARGET void add(const AddRows& rows, const ColumnRange& range, float* partial, float* out) {
  for (size_t c = range.first; c < range.last; c += kColumnUnit) {
    const size_t columns = std::min(kColumnUnit, range.last - c);
    Unit<V> unit;
    if (rows.begins) {
      unit.zero();
    } else {
      unit.load(partial + (c - range.first));
    }
    add_unit<V, Encoding>(rows, c, columns, &unit);
    if (rows.ends) {
      unit.add_to(out + c, columns);
    } else {
      unit.store(partial + (c - range.first));
    }
  }
}

template <class V, class F32, class F16, class BF16>
KernelTable make_table(const char* name) {
  KernelTable table = scalar_kernels();
  table.name = name;
  table.dot[0] = dot<V, F32>;
  table.dot[1] = dot<V, F16>;
  table.dot[2] = dot<V, BF16>;
  table.add[0] = add<V, F32>;
  table.add[1] = add<V, F16>;
  table.add[2] = add<V, BF16>;
  return table;
}
