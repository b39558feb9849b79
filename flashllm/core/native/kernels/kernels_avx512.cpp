// AVX-512F alone, which every processor has that has any of it, and with VNNI, which multiplies
// bytes, and what all that have it have too; without that, AVX2 does groups.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernel_table.h"
#include "mxfp4.h"
#include "rounding.h"
#include "tiles.h"

#define FLASH_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#define FLASH_INLINE FLASH_TARGET static inline __attribute__((always_inline))

namespace flash_core {

namespace {

struct V {
  using Type = __m512;
  static constexpr size_t width = 16;
  static constexpr size_t dots_at_once = 4;
  static constexpr size_t tile_rows = 6;
  static constexpr size_t tile_vectors = 4;
  static constexpr size_t sums_at_once = 6;
  FLASH_INLINE Type zero() { return _mm512_setzero_ps(); }
  FLASH_INLINE Type broadcast(float value) { return _mm512_set1_ps(value); }
  FLASH_INLINE Type load(const float* from) { return _mm512_loadu_ps(from); }
  FLASH_INLINE void store(float* to, Type value) { _mm512_storeu_ps(to, value); }
  FLASH_INLINE Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  FLASH_INLINE Type multiply(Type a, Type b) { return _mm512_mul_ps(a, b); }
  FLASH_INLINE Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  FLASH_INLINE float sum(Type value) { return _mm512_reduce_add_ps(value); }
  FLASH_INLINE uint64_t nonzero(Type value) {
    return _mm512_cmp_ps_mask(value, zero(), _CMP_NEQ_UQ);
  }
};

struct F32 {
  static constexpr size_t item_bytes = 4;
  FLASH_INLINE __m512 load(const uint8_t* row) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(row));
  }
};

struct F16 {
  static constexpr size_t item_bytes = 2;
  FLASH_INLINE __m512 load(const uint8_t* row) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
  }
};

struct BF16 {
  static constexpr size_t item_bytes = 2;
  FLASH_INLINE __m512 load(const uint8_t* row) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
};

#include "kernel_loops.h"

#include "tile_products.h"

#include "tile_sums.h"

KernelTable make_avx512() {
  KernelTable table = make_table<V, F32, F16, BF16>("avx512");
  const KernelTable& narrower = avx2_kernels();
  set_float_products<V, F32, F16, BF16>(&table);
  set_sums<V, F32, F16, BF16>(&table);
  table.encode = narrower.encode;
  table.decode = narrower.decode;
  for (const DType dtype : {DType::int8, DType::int4, DType::mxfp4}) {
    table.product[static_cast<size_t>(dtype)] = narrower.product[static_cast<size_t>(dtype)];
    table.dot[static_cast<size_t>(dtype)] = narrower.dot[static_cast<size_t>(dtype)];
    table.add[static_cast<size_t>(dtype)] = narrower.add[static_cast<size_t>(dtype)];
  }
  table.grouped_sums = narrower.grouped_sums;
  return table;
}

#undef FLASH_TARGET
#define FLASH_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))

struct I {
  static constexpr size_t int8_dots_at_once = 2;
  static constexpr size_t int4_dots_at_once = 4;
  static constexpr size_t block_vectors = 6;
  using Bytes = __m512i;
  using Shorts = __m512i;
  using Lanes = __m512i;
  typedef int32_t Whole __attribute__((vector_size(64)));
  typedef int16_t Halves __attribute__((vector_size(64)));
  FLASH_INLINE Bytes load_bytes(const void* from) { return _mm512_loadu_si512(from); }
  // 128 added to each weight: the instruction wants them unsigned.
  FLASH_INLINE Bytes whole(Bytes bytes) {
    return _mm512_xor_si512(bytes, _mm512_set1_epi32(static_cast<int>(0x80808080)));
  }
  FLASH_INLINE Bytes second_halves(Bytes both) {
    return _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xF0F0F0F0)));
  }
  FLASH_INLINE Bytes first_halves(Bytes both) { return second_halves(_mm512_slli_epi32(both, 4)); }
  FLASH_INLINE Bytes look_up(Bytes codes) {
    const auto* bytes = reinterpret_cast<const __m128i*>(kMxfp4Bytes.data());
    const __m512i table = whole(_mm512_broadcast_i32x4(_mm_load_si128(bytes)));
    return _mm512_shuffle_epi8(table, _mm512_and_si512(codes, _mm512_set1_epi8(15)));
  }
  FLASH_INLINE Bytes first_floats(Bytes both) { return look_up(both); }
  FLASH_INLINE Bytes second_floats(Bytes both) { return look_up(_mm512_srli_epi16(both, 4)); }
  FLASH_INLINE Lanes seed(const int32_t* from) { return load_bytes(from); }
  FLASH_INLINE Lanes times_128(Lanes lanes) { return _mm512_slli_epi32(lanes, 7); }
  FLASH_INLINE Lanes dot(Lanes lanes, Bytes weights, Bytes numbers) {
    return _mm512_dpbusd_epi32(lanes, weights, numbers);
  }
  FLASH_INLINE Shorts even(Bytes bytes) {
    return _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8);
  }
  FLASH_INLINE Shorts odd(Bytes bytes) { return _mm512_srai_epi16(bytes, 8); }
  FLASH_INLINE Shorts load_shorts(const uint8_t* from) { return load_bytes(from); }
  FLASH_INLINE void store_shorts(uint8_t* to, Shorts shorts) { _mm512_storeu_si512(to, shorts); }
  FLASH_INLINE Lanes first_shorts(Shorts weights, Shorts numbers) {
    return dot_shorts(_mm512_setzero_si512(), weights, numbers);
  }
  FLASH_INLINE Lanes dot_shorts(Lanes lanes, Shorts weights, Shorts numbers) {
    return _mm512_dpwssd_epi32(lanes, weights, numbers);
  }
  FLASH_INLINE __m512 to_float(Lanes lanes) { return _mm512_cvtepi32_ps(lanes); }
  FLASH_INLINE Lanes fill(int32_t number) { return _mm512_set1_epi32(number); }
  FLASH_INLINE Bytes repeat(int32_t four) { return _mm512_set1_epi32(four); }
  FLASH_INLINE Shorts pair(int32_t two) { return _mm512_set1_epi32(two); }
  // As bytes are brought together within each quarter of a vector, quarters are turned into fours.
  FLASH_INLINE Bytes load_turned(const uint8_t* row) {
    const __m512i from = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(from, load_bytes(row));
  }
  FLASH_INLINE void interleave(Bytes* rows) {
    const Bytes low[2] = {_mm512_unpacklo_epi8(rows[0], rows[1]),
                          _mm512_unpacklo_epi8(rows[2], rows[3])};
    const Bytes high[2] = {_mm512_unpackhi_epi8(rows[0], rows[1]),
                           _mm512_unpackhi_epi8(rows[2], rows[3])};
    rows[0] = _mm512_unpacklo_epi16(low[0], low[1]);
    rows[1] = _mm512_unpackhi_epi16(low[0], low[1]);
    rows[2] = _mm512_unpacklo_epi16(high[0], high[1]);
    rows[3] = _mm512_unpackhi_epi16(high[0], high[1]);
  }
};

// Encodings of scales, with load_some() for those that a mask names.
struct SomeF16 : F16 {
  FLASH_INLINE __m512 load_some(const uint8_t* from, __mmask16 some) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, from));
  }
};

// As mxfp4_scale() makes them.
struct SomeE8M0 {
  static constexpr size_t item_bytes = 1;
  FLASH_INLINE __m512 power(__m128i bytes) {
    const __m512i s = _mm512_cvtepu8_epi32(bytes);
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(s, one), 23);
    const __m512i subnormal = _mm512_slli_epi32(_mm512_add_epi32(s, one), 21);
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal));
  }
  FLASH_INLINE __m512 load(const uint8_t* from) {
    return power(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  FLASH_INLINE __m512 load_some(const uint8_t* from, __mmask16 some) {
    return power(_mm_mask_loadu_epi8(_mm_set1_epi8(kMxfp4NoScale), some, from));
  }
};

// A vector has two groups of int8, or four of four bits a number.
struct S {
  using Half = SomeF16;
  using Power = SomeE8M0;
  using Scales = __m512;
  static constexpr bool loads_some = true;
  template <class Scale>
  FLASH_INLINE Scales load(const uint8_t* from, const float* factors) {
    return _mm512_mul_ps(Scale::load(from), V::load(factors));
  }
  template <class Scale>
  FLASH_INLINE Scales load_some(const uint8_t* from, const float* factors, size_t count) {
    const auto some = static_cast<__mmask16>((1U << count) - 1);
    return _mm512_mul_ps(Scale::load_some(from, some), V::load(factors));
  }
  FLASH_INLINE __m512 int8(Scales scales, size_t k) {
    const __m512i groups = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i first = _mm512_set1_epi32(static_cast<int>(2 * k));
    return _mm512_permutexvar_ps(_mm512_add_epi32(groups, first), scales);
  }
  FLASH_INLINE __m512 int4(Scales scales, size_t k) {
    const __m512i groups = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i first = _mm512_set1_epi32(static_cast<int>(4 * k));
    return _mm512_permutexvar_ps(_mm512_add_epi32(groups, first), scales);
  }
};

#include "grouped_dots.h"

#include "grouped_sums.h"

#include "grouped_block_sums.h"

#include "vnni_dots.h"

#include "vnni_products.h"

KernelTable make_avx512vnni() {
  KernelTable table = avx512_kernels();
  table.name = "avx512vnni";
  set_whole_group_dots(&table);
  set_grouped_sums<V, I, S>(&table);
  set_grouped_block_sums<V, I, S>(&table);
  set_lane_products(&table);
  return table;
}

}  // namespace

const KernelTable& avx512_kernels() {
  static const KernelTable table = make_avx512();
  return table;
}

const KernelTable& avx512vnni_kernels() {
  static const KernelTable table = make_avx512vnni();
  return table;
}

}  // namespace flash_core

#endif
