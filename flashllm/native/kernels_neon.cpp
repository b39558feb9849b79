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
  static constexpr size_t dots_at_once = 1;  // more were not measured
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

// Signed bytes by signed bytes; not the dot products of ARMv8.2, which not all have.
struct I {
  static constexpr size_t int8_dots_at_once = 1;
  static constexpr size_t int4_dots_at_once = 1;
  using Bytes = int8x16_t;
  using Lanes = int32x4_t;
  FLASH_INLINE Bytes load(const uint8_t* row) { return vreinterpretq_s8_u8(vld1q_u8(row)); }
  // 16 times the number: its four bits, less 8, above four zeros.
  FLASH_INLINE Bytes first_halves(const uint8_t* row) {
    return vreinterpretq_s8_u8(veorq_u8(vshlq_n_u8(vld1q_u8(row), 4), vdupq_n_u8(0x80)));
  }
  FLASH_INLINE Bytes second_halves(const uint8_t* row) {
    const uint8x16_t upper = vandq_u8(vld1q_u8(row), vdupq_n_u8(0xF0));
    return vreinterpretq_s8_u8(veorq_u8(upper, vdupq_n_u8(0x80)));
  }
  FLASH_INLINE Lanes seed(const int32_t* /*from*/) { return vdupq_n_s32(0); }
  FLASH_INLINE Lanes times_128(Lanes lanes) { return vshlq_n_s32(lanes, 7); }
  // Sums of two products stay within 16 bits: 128 * 64 * 2 = 16,384.
  FLASH_INLINE Lanes dot(Lanes lanes, Bytes weights, const int8_t* numbers) {
    const int8x16_t x = vld1q_s8(numbers);
    const int16x8_t products = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
    return vpadalq_s16(lanes, vmlal_s8(products, vget_high_s8(weights), vget_high_s8(x)));
  }
  FLASH_INLINE float32x4_t to_float(Lanes lanes) { return vcvtq_f32_s32(lanes); }
};

// A vector has half a group of int8, or one of int4.
struct S {
  static constexpr bool loads_some = false;
  struct Scales {
    float values[kInputGroups];
  };
  FLASH_INLINE Scales load(const uint8_t* halves, const float* factors) {
    Scales scales;
    for (size_t g = 0; g < kInputGroups; g += V::width) {
      V::store(scales.values + g,
               vmulq_f32(F16::load(halves + g * kScaleBytes), V::load(factors + g)));
    }
    return scales;
  }
  FLASH_INLINE float32x4_t int8(const Scales& scales, size_t k) {
    return vdupq_n_f32(scales.values[k / 2]);
  }
  FLASH_INLINE float32x4_t int4(const Scales& scales, size_t k) {
    return vdupq_n_f32(scales.values[k]);
  }
};

#include "kernel_loops.h"

#include "grouped_dots.h"

#include "grouped_sums.h"

// sums[i] += scale * numbers 4 i to 4 i + 3 of 16 signed bytes.
FLASH_INLINE void add_bytes(int8x16_t bytes, float scale, float32x4_t* sums) {
  const int16x8_t first = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t second = vmovl_s8(vget_high_s8(bytes));
  const int32x4_t numbers[4] = {vmovl_s16(vget_low_s16(first)), vmovl_s16(vget_high_s16(first)),
                                vmovl_s16(vget_low_s16(second)), vmovl_s16(vget_high_s16(second))};
  for (size_t i = 0; i < 4; ++i) {
    sums[i] = V::fma(V::broadcast(scale), vcvtq_f32_s32(numbers[i]), sums[i]);
  }
}

struct Int8Sum {
  static constexpr DType dtype = DType::int8;
  FLASH_INLINE void add(const uint8_t* from, const float* scaled, Unit<V>* unit) {
    for (size_t i = 0; i < 4; ++i) {
      add_bytes(I::load(from + 16 * i), scaled[i / 2], unit->sums + 4 * i);
    }
  }
};

struct Int4Sum {
  static constexpr DType dtype = DType::int4;
  FLASH_INLINE void add(const uint8_t* from, const float* scaled, Unit<V>* unit) {
    for (size_t g = 0; g < 2; ++g) {
      const uint8_t* both = from + 16 * g;
      add_bytes(vshrq_n_s8(I::first_halves(both), 4), scaled[g], unit->sums + 8 * g);
      add_bytes(vshrq_n_s8(I::second_halves(both), 4), scaled[g], unit->sums + 8 * g + 4);
    }
  }
};

#include "encode_loops.h"

KernelTable make_neon() {
  KernelTable table = make_table<V, F32, F16, BF16>("neon");
  set_grouped_dots<V, I, S>(&table);
  set_grouped_sums<V, F16, Int8Sum, Int4Sum>(&table);
  set_encoding(&table);
  return table;
}

}  // namespace

const KernelTable& neon_kernels() {
  static const KernelTable table = make_neon();
  return table;
}

}  // namespace flash_core

#endif
