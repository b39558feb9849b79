// AVX2 with FMA and F16C: x86 since 2013.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "kernel_table.h"

#define FLASH_TARGET __attribute__((target("avx2,fma,f16c")))
#define FLASH_INLINE FLASH_TARGET static inline __attribute__((always_inline))

namespace flash_core {

namespace {

struct V {
  using Type = __m256;
  static constexpr size_t width = 8;
  static constexpr size_t dots_at_once = 2;
  FLASH_INLINE Type zero() { return _mm256_setzero_ps(); }
  FLASH_INLINE Type broadcast(float value) { return _mm256_set1_ps(value); }
  FLASH_INLINE Type load(const float* from) { return _mm256_loadu_ps(from); }
  FLASH_INLINE void store(float* to, Type value) { _mm256_storeu_ps(to, value); }
  FLASH_INLINE Type add(Type a, Type b) { return _mm256_add_ps(a, b); }
  FLASH_INLINE Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
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

struct I {
  static constexpr size_t int8_dots_at_once = 2;
  static constexpr size_t int4_dots_at_once = 2;
  using Bytes = __m256i;
  using Lanes = __m256i;
  FLASH_INLINE Bytes load_bytes(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  // 128 added to each weight: the instruction wants them unsigned.
  FLASH_INLINE Bytes load(const uint8_t* row) {
    return _mm256_xor_si256(load_bytes(row), _mm256_set1_epi8(-128));
  }
  FLASH_INLINE Bytes first_halves(const uint8_t* row) {
    return _mm256_and_si256(_mm256_slli_epi32(load_bytes(row), 4), _mm256_set1_epi8(-16));
  }
  FLASH_INLINE Bytes second_halves(const uint8_t* row) {
    return _mm256_and_si256(load_bytes(row), _mm256_set1_epi8(-16));
  }
  FLASH_INLINE Lanes seed(const int32_t* from) { return load_bytes(from); }
  FLASH_INLINE Lanes times_128(Lanes lanes) { return _mm256_slli_epi32(lanes, 7); }
  // Pairs stay within 16 bits: 255 * 64 * 2 = 32,640.
  FLASH_INLINE Lanes dot(Lanes lanes, Bytes weights, const int8_t* numbers) {
    const __m256i pairs = _mm256_maddubs_epi16(weights, load_bytes(numbers));
    return _mm256_add_epi32(lanes, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  FLASH_INLINE __m256 to_float(Lanes lanes) { return _mm256_cvtepi32_ps(lanes); }
};

// A vector has one group of int8, or two of int4.
struct S {
  static constexpr bool loads_some = false;
  struct Scales {
    alignas(32) float values[kInputGroups];
  };
  FLASH_INLINE Scales load(const uint8_t* halves, const float* factors) {
    Scales scales;
    for (size_t g = 0; g < kInputGroups; g += V::width) {
      const __m256 product =
          _mm256_mul_ps(F16::load(halves + g * kScaleBytes), V::load(factors + g));
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

#include "kernel_loops.h"

#include "grouped_dots.h"

#include "grouped_sums.h"

// sums[0] += scale * the first eight of 16 signed bytes, and sums[1] of the others.
FLASH_INLINE void add_bytes(__m128i bytes, __m256 scale, __m256* sums) {
  const __m256 first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  const __m256 second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
  sums[0] = V::fma(scale, first, sums[0]);
  sums[1] = V::fma(scale, second, sums[1]);
}

FLASH_INLINE __m128i load_16(const uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

struct Int8Sum {
  static constexpr DType dtype = DType::int8;
  FLASH_INLINE void add(const uint8_t* from, const float* scaled, Unit<V>* unit) {
    for (size_t i = 0; i < 4; ++i) {
      add_bytes(load_16(from + 16 * i), V::broadcast(scaled[i / 2]), unit->sums + 2 * i);
    }
  }
};

struct Int4Sum {
  static constexpr DType dtype = DType::int4;
  FLASH_INLINE void add(const uint8_t* from, const float* scaled, Unit<V>* unit) {
    const __m128i low = _mm_set1_epi8(15);
    const __m128i eight = _mm_set1_epi8(8);
    for (size_t g = 0; g < 2; ++g) {
      const __m128i both = load_16(from + 16 * g);
      const __m128i first = _mm_and_si128(both, low);
      const __m128i second = _mm_and_si128(_mm_srli_epi32(both, 4), low);
      const __m256 scale = V::broadcast(scaled[g]);
      add_bytes(_mm_sub_epi8(first, eight), scale, unit->sums + 4 * g);
      add_bytes(_mm_sub_epi8(second, eight), scale, unit->sums + 4 * g + 2);
    }
  }
};

#include "encode_loops.h"

KernelTable make_avx2() {
  KernelTable table = make_table<V, F32, F16, BF16>("avx2");
  set_grouped_dots<V, I, S>(&table);
  set_grouped_sums<V, F16, Int8Sum, Int4Sum>(&table);
  set_encoding(&table);
  return table;
}

}  // namespace

const KernelTable& avx2_kernels() {
  static const KernelTable table = make_avx2();
  return table;
}

}  // namespace flash_core

#endif
