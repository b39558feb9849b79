// Vectors of 256 bits, and what AVX2 does with them.
//
// Included in a namespace by the files of instruction sets that have them, each with its own
// FLASH_TARGET.

struct V {
  using Type = __m256;
  static constexpr size_t width = 8;
  static constexpr size_t dots_at_once = 2;
  static constexpr size_t tile_rows = 3;
  static constexpr size_t tile_vectors = 4;
  static constexpr size_t sums_at_once = 3;
  FLASH_INLINE Type zero() { return _mm256_setzero_ps(); }
  FLASH_INLINE Type broadcast(float value) { return _mm256_set1_ps(value); }
  FLASH_INLINE Type load(const float* from) { return _mm256_loadu_ps(from); }
  FLASH_INLINE void store(float* to, Type value) { _mm256_storeu_ps(to, value); }
  FLASH_INLINE Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  FLASH_INLINE Type multiply(Type a, Type b) { return _mm256_mul_ps(a, b); }
  FLASH_INLINE Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  FLASH_INLINE uint64_t nonzero(Type value) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(value, zero(), _CMP_NEQ_UQ)));
  }
  FLASH_INLINE float sum(Type value) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
};

struct F32 {
  static constexpr size_t item_bytes = 4;
  FLASH_INLINE __m256 load(const uint8_t* row) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row));
  }
};

struct F16 {
  static constexpr size_t item_bytes = 2;
  FLASH_INLINE __m256 load(const uint8_t* row) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
  }
};

struct BF16 {
  static constexpr size_t item_bytes = 2;
  FLASH_INLINE __m256 load(const uint8_t* row) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

// Scales of mxfp4, as mxfp4_scale() makes them.
struct E8M0 {
  static constexpr size_t item_bytes = 1;
  FLASH_INLINE __m256 load(const uint8_t* from) {
    const __m256i s = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(s, one), 23);
    const __m256i subnormal = _mm256_slli_epi32(_mm256_add_epi32(s, one), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
  }
};

struct I {
  static constexpr size_t int8_dots_at_once = 2;
  static constexpr size_t int4_dots_at_once = 2;
  static constexpr size_t tile_rows = 1;
  static constexpr size_t tile_vectors = 8;
  static constexpr size_t block_vectors = 2;
  using Bytes = __m256i;
  using Shorts = __m256i;
  using Lanes = __m256i;
  typedef int32_t Whole __attribute__((vector_size(32)));
  typedef int16_t Halves __attribute__((vector_size(32)));
  FLASH_INLINE Bytes load_bytes(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  // 128 added to each weight: the instruction wants them unsigned.
  FLASH_INLINE Bytes whole(Bytes bytes) { return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)); }
  FLASH_INLINE Bytes second_halves(Bytes both) {
    return _mm256_and_si256(both, _mm256_set1_epi8(-16));
  }
  FLASH_INLINE Bytes first_halves(Bytes both) { return second_halves(_mm256_slli_epi32(both, 4)); }
  FLASH_INLINE Bytes look_up(Bytes codes) {
    const auto* bytes = reinterpret_cast<const __m128i*>(kMxfp4Bytes.data());
    const __m256i table = whole(_mm256_broadcastsi128_si256(_mm_load_si128(bytes)));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
  }
  FLASH_INLINE Bytes first_floats(Bytes both) { return look_up(both); }
  FLASH_INLINE Bytes second_floats(Bytes both) { return look_up(_mm256_srli_epi16(both, 4)); }
  FLASH_INLINE Lanes seed(const int32_t* from) { return load_bytes(from); }
  FLASH_INLINE Lanes times_128(Lanes lanes) { return _mm256_slli_epi32(lanes, 7); }
  // Pairs stay within 16 bits: 255 * 64 * 2 = 32,640.
  FLASH_INLINE Lanes dot(Lanes lanes, Bytes weights, Bytes numbers) {
    const __m256i pairs = _mm256_maddubs_epi16(weights, numbers);
    return _mm256_add_epi32(lanes, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  FLASH_INLINE Shorts even(Bytes bytes) {
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
  }
  FLASH_INLINE Shorts odd(Bytes bytes) { return _mm256_srai_epi16(bytes, 8); }
  FLASH_INLINE Shorts join(Shorts high, Shorts low) {
    return _mm256_add_epi16(_mm256_slli_epi16(high, 7), low);
  }
  FLASH_INLINE Shorts load_shorts(const uint8_t* from) { return load_bytes(from); }
  FLASH_INLINE void store_shorts(uint8_t* to, Shorts shorts) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), shorts);
  }
  FLASH_INLINE Lanes first_shorts(Shorts weights, Shorts numbers) {
    return _mm256_madd_epi16(weights, numbers);
  }
  FLASH_INLINE Lanes dot_shorts(Lanes lanes, Shorts weights, Shorts numbers) {
    return _mm256_add_epi32(lanes, _mm256_madd_epi16(weights, numbers));
  }
  FLASH_INLINE __m256 to_float(Lanes lanes) { return _mm256_cvtepi32_ps(lanes); }
  FLASH_INLINE Lanes fill(int32_t number) { return _mm256_set1_epi32(number); }
  FLASH_INLINE Bytes repeat(int32_t four) { return _mm256_set1_epi32(four); }
  FLASH_INLINE Shorts pair(int32_t two) { return _mm256_set1_epi32(two); }
  // As bytes are brought together within each half of a vector, halves are turned into pairs.
  FLASH_INLINE Bytes load_turned(const uint8_t* row) {
    const __m256i from = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm256_permutevar8x32_epi32(load_bytes(row), from);
  }
  FLASH_INLINE void interleave(Bytes* rows) {
    const Bytes low[2] = {_mm256_unpacklo_epi8(rows[0], rows[1]),
                          _mm256_unpacklo_epi8(rows[2], rows[3])};
    const Bytes high[2] = {_mm256_unpackhi_epi8(rows[0], rows[1]),
                           _mm256_unpackhi_epi8(rows[2], rows[3])};
    rows[0] = _mm256_unpacklo_epi16(low[0], low[1]);
    rows[1] = _mm256_unpackhi_epi16(low[0], low[1]);
    rows[2] = _mm256_unpacklo_epi16(high[0], high[1]);
    rows[3] = _mm256_unpackhi_epi16(high[0], high[1]);
  }
};

// A vector has one group of int8, or two of four bits a number.
struct S {
  using Half = F16;
  using Power = E8M0;
  static constexpr bool loads_some = false;
  struct Scales {
    alignas(32) float values[kInputGroups];
  };
  template <class Scale>
  FLASH_INLINE Scales load(const uint8_t* from, const float* factors) {
    Scales scales;
    for (size_t g = 0; g < kInputGroups; g += V::width) {
      const __m256 product =
          _mm256_mul_ps(Scale::load(from + g * Scale::item_bytes), V::load(factors + g));
      _mm256_store_ps(scales.values + g, product);
    }
    return scales;
  }
  FLASH_INLINE __m256 int8(const Scales& scales, size_t k) {
    return _mm256_broadcast_ss(scales.values + k);
  }
  FLASH_INLINE __m256 int4(const Scales& scales, size_t k) {
    return _mm256_set_m128(_mm_broadcast_ss(scales.values + 2 * k + 1),
                           _mm_broadcast_ss(scales.values + 2 * k));
  }
};
