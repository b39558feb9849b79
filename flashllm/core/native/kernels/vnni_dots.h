// Dots of rows of groups with AVX-512 VNNI, of which a lane adds up whole groups.
//
// Included by kernels_avx512.cpp, after grouped_dots.h. A group's dot is exact, as a whole number;
// it is reached as a float once, times both scales, and added to the lane of its number among 16.
// So a product of many vectors can give a lane to each row instead (vnni_products.h), and its bits
// are these. Lane 4 * q + j has the groups 4 * j + q of each 16, as transposing leaves them.

// Which group of 16 a lane has.
constexpr size_t group_of_lane(size_t lane) { return lane % 4 * 4 + lane / 4; }

// Factors of 16 groups in their order, to the lanes that have them.
FLASH_INLINE __m512 to_group_lanes(__m512 factors) {
  const __m512i from = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_ps(from, factors);
}

FLASH_INLINE __m512i add_halves(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

// Of four vectors with four lanes a group, to one with a lane for each of the 16 groups.
FLASH_INLINE __m512i sum_group_lanes(const __m512i* fours) {
  const __m512i first = add_halves(fours[0], fours[1]);
  const __m512i second = add_halves(fours[2], fours[3]);
  return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second),
                          _mm512_unpackhi_epi64(first, second));
}

// The 64 bytes of a row from one of its groups on, of which only `count` are there, and zeros.
struct RowBytes {
  alignas(64) uint8_t tail[64] = {};
  FLASH_TARGET const uint8_t* some(const uint8_t* from, size_t count) {
    std::memcpy(tail, from, count);
    return tail;
  }
};

// What four groups from byte `at` on of a row's numbers add up to, with four lanes a group; where
// `left` bytes are left of the row.
template <class Numbers>
FLASH_INLINE __m512i dot_four_groups(const uint8_t* row, const DotInput& x, size_t at,
                                     size_t left) {
  const auto dot = [&](size_t first) FLASH_TARGET {
    const uint8_t* from = row + at + first;
    RowBytes bytes;
    if (left < first + 64) from = bytes.some(from, left - first);
    return Numbers::template dot<I>(from, x, at + first);
  };
  if constexpr (Numbers::dtype == DType::int8) {
    // Two groups a vector, of eight lanes each: quarters 0 and 1, 2 and 3.
    const __m512i a = dot(0);
    const __m512i b = left > 64 ? dot(64) : _mm512_setzero_si512();
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xDD));
  } else {
    return dot(0);
  }
}

// Adds the last eight groups of two rows, from byte `at` on, to their sums: as many as one step
// has. The lanes of the other eight would get zeros, which change none of them.
template <class Numbers>
FLASH_INLINE void add_last_eights(const uint8_t* const* rows, const DotInput& x, size_t at,
                                  size_t first_group, __m512* sums) {
  using Scale = typename Numbers::template Scale<S>;
  constexpr size_t kFourBytes = 4 * group_bytes(Numbers::dtype);
  const size_t scale_at =
      group_count(x.columns) * group_bytes(Numbers::dtype) + first_group * Scale::item_bytes;
  __m512i fours[4];
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) {
    const size_t left = (2 - j % 2) * kFourBytes;
    fours[j] = dot_four_groups<Numbers>(rows[j / 2], x, at + j % 2 * kFourBytes, left);
  }
  const __m512 dots = I::to_float(sum_group_lanes(fours));
  // Lanes 4 * q + j have groups 4 * j + q: of the first row where j is 0 or 1, of the second else.
  const auto scales = [&](size_t row) FLASH_TARGET {
    return to_group_lanes(
        load_last<S, Scale>(rows[row] + scale_at, x.scales + first_group, kInputGroups / 2));
  };
  sums[0] = _mm512_mask3_fmadd_ps(dots, scales(0), sums[0], 0x3333);
  sums[1] = _mm512_mask3_fmadd_ps(_mm512_permute_ps(dots, 0xEE), scales(1), sums[1], 0x3333);
}

template <class Numbers, size_t Count>
FLASH_TARGET inline void dots_of_whole_groups(const uint8_t* const* rows,
                                              const uint8_t* const* next, const DotInput& x,
                                              float* out) {
  using Scale = typename Numbers::template Scale<S>;
  constexpr size_t kFourBytes = 4 * group_bytes(Numbers::dtype);
  constexpr size_t kBytes = 4 * kFourBytes;  // of 16 groups
  const size_t groups = group_count(x.columns);
  const size_t nbytes = groups * group_bytes(Numbers::dtype);
  __m512 sums[Count];
#pragma GCC unroll 4
  for (size_t r = 0; r < Count; ++r) sums[r] = V::zero();
  const auto scale_at = [&](size_t g) { return nbytes + g * Scale::item_bytes; };
  size_t g = 0;
  for (; g + kInputGroups <= groups; g += kInputGroups) {
    const size_t at = g * group_bytes(Numbers::dtype);
    __m512i fours[Count][4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
#pragma GCC unroll 4
      for (size_t r = 0; r < Count; ++r) {
        fours[r][j] = dot_four_groups<Numbers>(rows[r], x, at + j * kFourBytes, kBytes);
      }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < Count; ++r) {
      prefetch<kBytes>(next[r] + at);
      prefetch<kInputGroups * Scale::item_bytes>(next[r] + scale_at(g));
      const __m512 scales = S::template load<Scale>(rows[r] + scale_at(g), x.scales + g);
      sums[r] = V::fma(I::to_float(sum_group_lanes(fours[r])), to_group_lanes(scales), sums[r]);
    }
  }
  if (Count % 2 == 0 && groups - g == kInputGroups / 2) {
    const size_t at = g * group_bytes(Numbers::dtype);
#pragma GCC unroll 4
    for (size_t r = 0; r + 1 < Count; r += 2) {
      prefetch<2 * kFourBytes>(next[r] + at);
      prefetch<2 * kFourBytes>(next[r + 1] + at);
      add_last_eights<Numbers>(rows + r, x, at, g, sums + r);
    }
  } else if (g < groups) {
    const size_t at = g * group_bytes(Numbers::dtype);
    for (size_t r = 0; r < Count; ++r) {
      prefetch<kFourBytes>(next[r] + at);
      __m512i fours[4];
      for (size_t j = 0; j < 4; ++j) {
        const size_t begin = at + j * kFourBytes;
        fours[j] = begin < nbytes ? dot_four_groups<Numbers>(rows[r], x, begin, nbytes - begin)
                                  : _mm512_setzero_si512();
      }
      const __m512 scales = load_last<S, Scale>(rows[r] + scale_at(g), x.scales + g, groups - g);
      sums[r] = V::fma(I::to_float(sum_group_lanes(fours)), to_group_lanes(scales), sums[r]);
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < Count; ++r) out[r] = V::sum(sums[r]);
}

template <class Numbers>
FLASH_TARGET void dot_whole_groups(const DotRows& rows, const DotInput& x, float* out) {
  constexpr size_t kAtOnce = Numbers::template at_once<I>;
  size_t r = 0;
  for (; r + kAtOnce <= rows.count; r += kAtOnce) {
    dots_of_whole_groups<Numbers, kAtOnce>(&rows.rows[r], &rows.next[r], x, out + r);
  }
  for (; r < rows.count; ++r) {
    dots_of_whole_groups<Numbers, 1>(&rows.rows[r], &rows.next[r], x, out + r);
  }
}

void set_whole_group_dots(KernelTable* table) {
  table->dot[static_cast<size_t>(DType::int8)] = dot_whole_groups<Int8Dot>;
  table->dot[static_cast<size_t>(DType::int4)] = dot_whole_groups<NibbleDot<Int4Nibbles>>;
  table->dot[static_cast<size_t>(DType::mxfp4)] = dot_whole_groups<NibbleDot<Mxfp4Nibbles>>;
}
