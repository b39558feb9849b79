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

#include "kernel_loops.h"

}  // namespace

const KernelTable& avx2_kernels() {
  static const KernelTable table = make_table<V, F32, F16, BF16>("avx2");
  return table;
}

}  // namespace flash_core

#endif
