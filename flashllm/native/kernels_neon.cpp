// NEON, which every 64-bit ARM processor has, its conversions from f16 included.
#if defined(__aarch64__)

#include <arm_neon.h>

#include <algorithm>

#include "kernel_table.h"

#define FLASH_TARGET
#define FLASH_INLINE static inline __attribute__((always_inline))

namespace flash_core {

namespace {

struct V {
  using Type = float32x4_t;
  static constexpr size_t width = 4;
  FLASH_INLINE Type zero() { return vdupq_n_f32(0); }
  FLASH_INLINE Type broadcast(float value) { return vdupq_n_f32(value); }
  FLASH_INLINE Type load(const float* from) { return vld1q_f32(from); }
  FLASH_INLINE void store(float* to, Type value) { vst1q_f32(to, value); }
  FLASH_INLINE Type add(Type a, Type b) { return vaddq_f32(a, b); }
  FLASH_INLINE Type fma(Type a, Type b, Type c) { return vfmaq_f32(c, a, b); }
  FLASH_INLINE float sum(Type value) { return vaddvq_f32(value); }
};

// Loads are of bytes: rows need not be aligned to their values.
FLASH_INLINE uint16x4_t load_halves(const uint8_t* row) {
  return vreinterpret_u16_u8(vld1_u8(row));
}

struct F32 {
  static constexpr size_t item_bytes = 4;
  FLASH_INLINE float32x4_t load(const uint8_t* row) { return vreinterpretq_f32_u8(vld1q_u8(row)); }
};

struct F16 {
  static constexpr size_t item_bytes = 2;
  FLASH_INLINE float32x4_t load(const uint8_t* row) {
    return vcvt_f32_f16(vreinterpret_f16_u16(load_halves(row)));
  }
};

struct BF16 {
  static constexpr size_t item_bytes = 2;
  FLASH_INLINE float32x4_t load(const uint8_t* row) {
    return vreinterpretq_f32_u32(vshll_n_u16(load_halves(row), 16));
  }
};

#include "kernel_loops.h"

}  // namespace

const KernelTable& neon_kernels() {
  static const KernelTable table = make_table<V, F32, F16, BF16>("neon");
  return table;
}

}  // namespace flash_core

#endif
