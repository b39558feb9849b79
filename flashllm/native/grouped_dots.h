// Dots of rows of int8 and int4, written once for all vector widths.
//
// Included as kernel_loops.h is, after it. I gives Bytes and Lanes, as many bytes and 32-bit
// numbers as a vector has; load(), first_halves() and second_halves() of weights, in the form that
// dot() takes; seed(), times_128(), dot(lanes, weights, numbers) = lanes + sums of products, and
// to_float(). Which numbers meet in a lane is its own affair, within a group. S gives Scales, those
// of kInputGroups groups: load(), and int8() and int4(), spread over the lanes of vector k.

struct Int8Dot {
  static constexpr DType dtype = DType::int8;
  template <class I>
  FLASH_TARGET static inline typename I::Lanes dot(const uint8_t* row, const DotInput& x,
                                                   size_t at) {
    const typename I::Bytes weights = I::load(row);
    const auto high = I::dot(I::seed(x.seeds + at / 4), weights, x.high + at);
    return I::dot(I::times_128(high), weights, x.low + at);
  }
  template <class S>
  FLASH_TARGET static inline auto scale(const typename S::Scales& scales, size_t k) {
    return S::int8(scales, k);
  }
};

struct Int4Dot {
  static constexpr DType dtype = DType::int4;
  template <class I>
  FLASH_TARGET static inline typename I::Lanes dot(const uint8_t* row, const DotInput& x,
                                                   size_t at) {
    const typename I::Bytes first = I::first_halves(row);
    const typename I::Bytes second = I::second_halves(row);
    auto lanes = I::dot(I::seed(x.seeds + at / 4), first, x.high + at);
    lanes = I::times_128(I::dot(lanes, second, x.high + x.half_stride + at));
    lanes = I::dot(lanes, first, x.low + at);
    return I::dot(lanes, second, x.low + x.half_stride + at);
  }
  template <class S>
  FLASH_TARGET static inline auto scale(const typename S::Scales& scales, size_t k) {
    return S::int4(scales, k);
  }
};

// kInputGroups groups, of which the first is number `group`.
template <class V, class I, class S, class Numbers>
FLASH_TARGET inline void dot_block(const uint8_t* row, const uint8_t* scales, const DotInput& x,
                                   size_t group, typename V::Type* sums) {
  constexpr size_t kBytes = 4 * V::width;
  constexpr size_t kVectors = kInputGroups * group_bytes(Numbers::dtype) / kBytes;
  const auto spread = S::load(scales, x.scales + group);
  const size_t at = group * group_bytes(Numbers::dtype);
  for (size_t k = 0; k < kVectors; k += 4) {
    for (size_t j = 0; j < 4; ++j) {
      const size_t byte = (k + j) * kBytes;
      const auto lanes = Numbers::template dot<I>(row + byte, x, at + byte);
      sums[j] = V::fma(I::to_float(lanes), Numbers::template scale<S>(spread, k + j), sums[j]);
    }
  }
}

template <class V, class I, class S, class Numbers>
FLASH_TARGET float dot_groups(const uint8_t* row, const uint8_t* next, const DotInput& x) {
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  const size_t groups = group_count(x.columns);
  const size_t scales_at = groups * kGroupBytes;
  typename V::Type sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  size_t g = 0;
  for (; g + kInputGroups <= groups; g += kInputGroups) {
    const size_t scales = scales_at + g * kScaleBytes;
    prefetch<kInputGroups * kGroupBytes>(next + g * kGroupBytes);
    prefetch<kInputGroups * kScaleBytes>(next + scales);
    dot_block<V, I, S, Numbers>(row + g * kGroupBytes, row + scales, x, g, sums);
  }
  if (g < groups) {
    uint8_t tail[kInputGroups * kGroupBytes] = {};
    uint8_t scales[kInputGroups * kScaleBytes] = {};
    std::memcpy(tail, row + g * kGroupBytes, (groups - g) * kGroupBytes);
    std::memcpy(scales, row + scales_at + g * kScaleBytes, (groups - g) * kScaleBytes);
    dot_block<V, I, S, Numbers>(tail, scales, x, g, sums);
  }
  return V::sum(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
}

template <class V, class I, class S>
void set_grouped_dots(KernelTable* table) {
  table->dot[static_cast<size_t>(DType::int8)] = dot_groups<V, I, S, Int8Dot>;
  table->dot[static_cast<size_t>(DType::int4)] = dot_groups<V, I, S, Int4Dot>;
}
