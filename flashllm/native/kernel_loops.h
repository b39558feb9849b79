// The two inner loops, written once for all vector widths.
//
// Included only by the file of one instruction set, which defines FLASH_TARGET (the attribute
// that lets the compiler use it), within an unnamed namespace of its own: a loop compiled for one
// instruction set must never be linked in place of another's.
//
// V gives Type, width, zero(), broadcast(), load(), store(), fma(a, b, c) = a * b + c with one
// rounding, add(), sum(). An encoding gives item_bytes and load(), `V::width` values widened.

// Fetches the lines of `next` that lie where `Bytes` of the present row are being read: a whole
// row ahead, which the processor cannot guess when rows are anywhere. Into the second-level cache,
// since that many lines cannot be under way to the first: 17 GB/s rather than 9 of random rows of
// 8 KiB, where reading in order gives 19.
template <size_t Bytes>
FLASH_TARGET inline void prefetch(const uint8_t* next) {
  for (size_t at = 0; at < Bytes; at += 64) __builtin_prefetch(next + at, 0, 2);
}

template <class V, class Encoding>
FLASH_TARGET float dot(const uint8_t* row, const uint8_t* next, const float* x, size_t columns) {
  constexpr size_t kWidth = V::width;
  constexpr size_t kBytes = kWidth * Encoding::item_bytes;
  // Four sums: a fused multiply-add takes four cycles and two can start in each.
  typename V::Type sum0 = V::zero();
  typename V::Type sum1 = V::zero();
  typename V::Type sum2 = V::zero();
  typename V::Type sum3 = V::zero();
  size_t c = 0;
  for (; c + 4 * kWidth <= columns; c += 4 * kWidth, row += 4 * kBytes, next += 4 * kBytes) {
    prefetch<4 * kBytes>(next);
    sum0 = V::fma(Encoding::load(row), V::load(x + c), sum0);
    sum1 = V::fma(Encoding::load(row + kBytes), V::load(x + c + kWidth), sum1);
    sum2 = V::fma(Encoding::load(row + 2 * kBytes), V::load(x + c + 2 * kWidth), sum2);
    sum3 = V::fma(Encoding::load(row + 3 * kBytes), V::load(x + c + 3 * kWidth), sum3);
  }
  for (; c + kWidth <= columns; c += kWidth, row += kBytes) {
    sum0 = V::fma(Encoding::load(row), V::load(x + c), sum0);
  }
  if (c < columns) {
    uint8_t row_tail[kBytes] = {};
    float x_tail[kWidth] = {};
    std::memcpy(row_tail, row, (columns - c) * Encoding::item_bytes);
    std::memcpy(x_tail, x + c, (columns - c) * sizeof(float));
    sum1 = V::fma(Encoding::load(row_tail), V::load(x_tail), sum1);
  }
  return V::sum(V::add(V::add(sum0, sum1), V::add(sum2, sum3)));
}

template <class V, class Encoding, size_t Rows>
FLASH_TARGET void add(const uint8_t* const* rows, const uint8_t* const* next, const float* weights,
                      float* sum, size_t columns) {
  constexpr size_t kWidth = V::width;
  constexpr size_t kBytes = kWidth * Encoding::item_bytes;
  size_t c = 0;
  for (; c + kWidth <= columns; c += kWidth) {
    typename V::Type value = V::load(sum + c);
    for (size_t r = 0; r < Rows; ++r) {
      prefetch<kBytes>(next[r] + c * Encoding::item_bytes);
      const uint8_t* from = rows[r] + c * Encoding::item_bytes;
      value = V::fma(V::broadcast(weights[r]), Encoding::load(from), value);
    }
    V::store(sum + c, value);
  }
  if (c < columns) {
    float sum_tail[kWidth] = {};
    std::memcpy(sum_tail, sum + c, (columns - c) * sizeof(float));
    typename V::Type value = V::load(sum_tail);
    for (size_t r = 0; r < Rows; ++r) {
      uint8_t row_tail[kBytes] = {};
      std::memcpy(row_tail, rows[r] + c * Encoding::item_bytes,
                  (columns - c) * Encoding::item_bytes);
      value = V::fma(V::broadcast(weights[r]), Encoding::load(row_tail), value);
    }
    V::store(sum_tail, value);
    std::memcpy(sum + c, sum_tail, (columns - c) * sizeof(float));
  }
}

template <class V, class F32, class F16, class BF16>
KernelTable make_table(const char* name) {
  return {name,
          {dot<V, F32>, dot<V, F16>, dot<V, BF16>},
          {add<V, F32, 1>, add<V, F16, 1>, add<V, BF16, 1>},
          {add<V, F32, kRowsPerAdd>, add<V, F16, kRowsPerAdd>, add<V, BF16, kRowsPerAdd>}};
}
