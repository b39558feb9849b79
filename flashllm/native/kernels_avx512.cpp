// AVX-512F alone: every processor that has any of it.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "kernel_table.h"

#define FLASH_TARGET __attribute__((target("avx512f,avx2,fma,f16c")))
#define FLASH_INLINE FLASH_TARGET static inline __attribute__((always_inline))

namespace flash_core {

namespace {

struct V {
  using Type = __m512;
  static constexpr size_t width = 16;
  FLASH_INLINE Type zero() { return _mm512_setzero_ps(); }
  FLASH_INLINE Type broadcast(float value) { return _mm512_set1_ps(value); }
  FLASH_INLINE Type load(const float* from) { return _mm512_loadu_ps(from); }
  FLASH_INLINE void store(float* to, Type value) { _mm512_storeu_ps(to, value); }
  FLASH_INLINE Type add(Type a, Type b) { return _mm512_add_ps(a, b); }
  FLASH_INLINE Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  FLASH_INLINE float sum(Type value) { return _mm512_reduce_add_ps(value); }
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

}  // namespace

const KernelTable& avx512_kernels() {
  static const KernelTable table = make_table<V, F32, F16, BF16>("avx512");
  return table;
}

}  // namespace flash_core

#endif
