// Dots of rows of groups (int8, int4 and mxfp4), written once for all vector widths.
//
// Included as kernel_loops.h is, after it. I gives int8_dots_at_once and int4_dots_at_once, as V
// does dots_at_once; Bytes and Lanes, as many bytes and 32-bit numbers as a vector has;
// load_bytes(); whole(), first_halves() and second_halves() of weights, first_floats() and
// second_floats() of mxfp4's, in the form that dot() takes; seed(), times_128(), dot(lanes,
// weights, numbers) = lanes + sums of products, and to_float(). Which numbers meet in a lane is its
// own affair, within a group. S gives Half and Power, encodings of scales, with item_bytes and
// load(); Scales, those of kInputGroups groups: load(), int8() and int4(), spread over the lanes of
// vector k where groups have 32 and 16 bytes, and where loads_some load_some(), which reads those
// of fewer.

struct Int8Dot {
  static constexpr DType dtype = DType::int8;
  template <class S>
  using Scale = typename S::Half;
  template <class I>
  static constexpr size_t at_once = I::int8_dots_at_once;
  template <class I>
  FLASH_TARGET static inline typename I::Lanes dot(const uint8_t* row, const DotInput& x,
                                                   size_t at) {
    const typename I::Bytes weights = I::whole(I::load_bytes(row));
    const auto high = I::dot(I::seed(x.seeds + at / 4), weights, I::load_bytes(x.high + at));
    return I::dot(I::times_128(high), weights, I::load_bytes(x.low + at));
  }
  template <class S>
  FLASH_TARGET static inline auto scale(const typename S::Scales& scales, size_t k) {
    return S::int8(scales, k);
  }
};

// Numbers of four bits: those of each half of a group, in the form that dot() takes.
struct Int4Nibbles {
  static constexpr DType dtype = DType::int4;
  template <class S>
  using Scale = typename S::Half;
  template <class I>
  FLASH_TARGET static inline typename I::Bytes first(typename I::Bytes both) {
    return I::first_halves(both);
  }
  template <class I>
  FLASH_TARGET static inline typename I::Bytes second(typename I::Bytes both) {
    return I::second_halves(both);
  }
};

struct Mxfp4Nibbles {
  static constexpr DType dtype = DType::mxfp4;
  template <class S>
  using Scale = typename S::Power;
  template <class I>
  FLASH_TARGET static inline typename I::Bytes first(typename I::Bytes both) {
    return I::first_floats(both);
  }
  template <class I>
  FLASH_TARGET static inline typename I::Bytes second(typename I::Bytes both) {
    return I::second_floats(both);
  }
};

template <class Nibbles>
struct NibbleDot : Nibbles {
  template <class I>
  static constexpr size_t at_once = I::int4_dots_at_once;
  template <class I>
  FLASH_TARGET static inline typename I::Lanes dot(const uint8_t* row, const DotInput& x,
                                                   size_t at) {
    const typename I::Bytes both = I::load_bytes(row);
    const typename I::Bytes first = Nibbles::template first<I>(both);
    const typename I::Bytes second = Nibbles::template second<I>(both);
    const size_t behind = x.half_stride + at;
    auto lanes = I::dot(I::seed(x.seeds + at / 4), first, I::load_bytes(x.high + at));
    lanes = I::times_128(I::dot(lanes, second, I::load_bytes(x.high + behind)));
    lanes = I::dot(lanes, first, I::load_bytes(x.low + at));
    return I::dot(lanes, second, I::load_bytes(x.low + behind));
  }
  template <class S>
  FLASH_TARGET static inline auto scale(const typename S::Scales& scales, size_t k) {
    return S::int4(scales, k);
  }
};

// Vector number k of a block of kInputGroups groups of each row, which begins at byte `at` of the
// numbers: from[r] is what row r has of it.
template <class V, class I, class S, class Numbers, size_t Count>
FLASH_TARGET inline void add_vector(const uint8_t* const* from, const typename S::Scales* spread,
                                    size_t k, const DotInput& x, size_t at,
                                    typename V::Type (*sums)[4]) {
  for (size_t r = 0; r < Count; ++r) {
    const auto lanes = Numbers::template dot<I>(from[r], x, at + k * 4 * V::width);
    const auto scale = Numbers::template scale<S>(spread[r], k);
    sums[r][k % 4] = V::fma(I::to_float(lanes), scale, sums[r][k % 4]);
  }
}

// A few bytes, 1 to 32, without a call.
inline void copy_few(const uint8_t* from, size_t nbytes, uint8_t* to) {
  const auto ends = [&](auto piece) {  // the first and the last so many, which may overlap
    std::memcpy(&piece, from, sizeof(piece));
    auto last = piece;
    std::memcpy(&last, from + nbytes - sizeof(last), sizeof(last));
    std::memcpy(to, &piece, sizeof(piece));
    std::memcpy(to + nbytes - sizeof(last), &last, sizeof(last));
  };
  if (nbytes >= 16) {
    ends(std::array<uint64_t, 2>());
  } else if (nbytes >= 8) {
    ends(uint64_t());
  } else if (nbytes >= 4) {
    ends(uint32_t());
  } else if (nbytes >= 2) {
    ends(uint16_t());
  } else {
    *to = *from;
  }
}

// Bytes that scales are read from where there are none: finite ones.
template <class Scale, size_t Count>
struct ScaleCopies {
  alignas(64) uint8_t bytes[Count * Scale::item_bytes];
  ScaleCopies() { std::memset(bytes, Scale::item_bytes == 1 ? kMxfp4NoScale : 0, sizeof(bytes)); }
};

// Scales of the last `count` groups of a row, behind which nothing may be read.
template <class S, class Scale>
FLASH_TARGET inline typename S::Scales load_last(const uint8_t* from, const float* factors,
                                                 size_t count) {
  if constexpr (S::loads_some) {
    return S::template load_some<Scale>(from, factors, count);
  } else {
    ScaleCopies<Scale, kInputGroups> copies;
    copy_few(from, count * Scale::item_bytes, copies.bytes);
    return S::template load<Scale>(copies.bytes, factors);
  }
}

template <class V, class I, class S, class Numbers, size_t Count>
FLASH_TARGET inline void dots_of_groups(const uint8_t* const* rows, const uint8_t* const* next,
                                        const DotInput& x, float* out) {
  using Scale = typename Numbers::template Scale<S>;
  constexpr size_t kGroupBytes = group_bytes(Numbers::dtype);
  constexpr size_t kScaleBytes = Scale::item_bytes;
  constexpr size_t kBytes = 4 * V::width;
  constexpr size_t kVectors = kInputGroups * kGroupBytes / kBytes;
  const size_t groups = group_count(x.columns);
  const size_t scales_at = groups * kGroupBytes;
  typename V::Type sums[Count][4];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = V::zero();
  }
  const uint8_t* from[Count];
  typename S::Scales spread[Count];
  size_t g = 0;
  for (; g + kInputGroups <= groups; g += kInputGroups) {
    const size_t at = g * kGroupBytes;
    const size_t scales = scales_at + g * kScaleBytes;
    for (size_t r = 0; r < Count; ++r) {
      prefetch<kInputGroups * kGroupBytes>(next[r] + at);
      prefetch<kInputGroups * kScaleBytes>(next[r] + scales);
      spread[r] = S::template load<Scale>(rows[r] + scales, x.scales + g);
    }
    for (size_t k = 0; k < kVectors; ++k) {
      for (size_t r = 0; r < Count; ++r) from[r] = rows[r] + at + k * kBytes;
      add_vector<V, I, S, Numbers, Count>(from, spread, k, x, at, sums);
    }
  }
  if (g < groups) {
    const size_t at = g * kGroupBytes;
    const size_t nbytes = (groups - g) * kGroupBytes;
    for (size_t r = 0; r < Count; ++r) {
      const uint8_t* const last = rows[r] + scales_at + g * kScaleBytes;
      spread[r] = load_last<S, Scale>(last, x.scales + g, groups - g);
    }
    uint8_t tails[Count][kBytes];
    for (size_t k = 0; k < kVectors; ++k) {  // unrolled, so that the sums stay in registers
      if (k * kBytes >= nbytes) break;
      for (size_t r = 0; r < Count; ++r) {
        prefetch<kBytes>(next[r] + at + k * kBytes);
        from[r] = rows[r] + at + k * kBytes;
        if ((k + 1) * kBytes <= nbytes) continue;
        std::memset(tails[r], 0, kBytes);
        std::memcpy(tails[r], from[r], nbytes - k * kBytes);
        from[r] = tails[r];
      }
      add_vector<V, I, S, Numbers, Count>(from, spread, k, x, at, sums);
    }
  }
  for (size_t r = 0; r < Count; ++r) {
    out[r] = V::sum(V::add(V::add(sums[r][0], sums[r][1]), V::add(sums[r][2], sums[r][3])));
  }
}

template <class V, class I, class S, class Numbers>
FLASH_TARGET void dot_groups(const DotRows& rows, const DotInput& x, float* out) {
  constexpr size_t kAtOnce = Numbers::template at_once<I>;
  size_t r = 0;
  for (; r + kAtOnce <= rows.count; r += kAtOnce) {
    dots_of_groups<V, I, S, Numbers, kAtOnce>(&rows.rows[r], &rows.next[r], x, out + r);
  }
  for (; r < rows.count; ++r) {
    dots_of_groups<V, I, S, Numbers, 1>(&rows.rows[r], &rows.next[r], x, out + r);
  }
}

template <class V, class I, class S>
void set_grouped_dots(KernelTable* table) {
  table->dot[static_cast<size_t>(DType::int8)] = dot_groups<V, I, S, Int8Dot>;
  table->dot[static_cast<size_t>(DType::int4)] = dot_groups<V, I, S, NibbleDot<Int4Nibbles>>;
  table->dot[static_cast<size_t>(DType::mxfp4)] = dot_groups<V, I, S, NibbleDot<Mxfp4Nibbles>>;
}
