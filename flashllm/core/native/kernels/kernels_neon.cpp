// NEON, which every 64-bit ARM processor has, its conversions from f16 included.
#if defined(__aarch64__)

#include <arm_neon.h>

#include <algorithm>
#include <limits>

#include "kernel_table.h"
#include "mxfp4.h"
#include "rounding.h"
#include "tiles.h"

#define FLASH_TARGET
#define FLASH_INLINE static inline __attribute__((always_inline))

namespace flash_core {

namespace {

struct V {
  using Type = float32x4_t;
  static constexpr size_t width = 4;
  static constexpr size_t dots_at_once = 1;  // more were not measured
  static constexpr size_t tile_rows = 6;
  static constexpr size_t tile_vectors = 4;
  static constexpr size_t sums_at_once = 6;
  FLASH_INLINE Type zero() { return vdupq_n_f32(0); }
  FLASH_INLINE Type broadcast(float value) { return vdupq_n_f32(value); }
  FLASH_INLINE Type load(const float* from) { return vld1q_f32(from); }
  FLASH_INLINE void store(float* to, Type value) { vst1q_f32(to, value); }
  FLASH_INLINE Type add(Type a, Type b) { return vaddq_f32(a, b); }
  FLASH_INLINE Type multiply(Type a, Type b) { return vmulq_f32(a, b); }
  FLASH_INLINE Type fma(Type a, Type b, Type c) { return vfmaq_f32(c, a, b); }
  FLASH_INLINE float sum(Type value) { return vaddvq_f32(value); }
  FLASH_INLINE uint64_t nonzero(Type value) {
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vbicq_u32(bits, vceqzq_f32(value)));
  }
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

// Scales of mxfp4, as mxfp4_scale() makes them.
struct E8M0 {
  static constexpr size_t item_bytes = 1;
  FLASH_INLINE float32x4_t load(const uint8_t* from) {
    uint32_t four = 0;
    std::memcpy(&four, from, sizeof(four));
    const uint16x4_t halves = vget_low_u16(vmovl_u8(vcreate_u8(four)));
    const int32x4_t s = vreinterpretq_s32_u32(vmovl_u16(halves));
    const int32x4_t one = vdupq_n_s32(1);
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(s, one), 23);
    const int32x4_t subnormal = vshlq_n_s32(vaddq_s32(s, one), 21);
    return vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal));
  }
};

// Signed bytes by signed bytes; not the dot products of ARMv8.2, which not all have.
struct I {
  static constexpr size_t int8_dots_at_once = 1;
  static constexpr size_t int4_dots_at_once = 1;
  static constexpr size_t tile_rows = 2;
  static constexpr size_t tile_vectors = 8;
  static constexpr size_t block_vectors = 2;
  using Bytes = int8x16_t;
  using Shorts = int16x8_t;
  using Lanes = int32x4_t;
  using Whole = int32x4_t;
  using Halves = int16x8_t;
  FLASH_INLINE Bytes load_bytes(const void* from) {
    return vreinterpretq_s8_u8(vld1q_u8(static_cast<const uint8_t*>(from)));
  }
  FLASH_INLINE Bytes whole(Bytes bytes) { return bytes; }
  // 16 times the number: its four bits, less 8, above four zeros.
  FLASH_INLINE Bytes first_halves(Bytes both) {
    return veorq_s8(vshlq_n_s8(both, 4), vdupq_n_s8(-128));
  }
  FLASH_INLINE Bytes second_halves(Bytes both) {
    return veorq_s8(vandq_s8(both, vdupq_n_s8(-16)), vdupq_n_s8(-128));
  }
  FLASH_INLINE Bytes first_floats(Bytes both) {
    const uint8x16_t codes = vandq_u8(vreinterpretq_u8_s8(both), vdupq_n_u8(15));
    return vqtbl1q_s8(vld1q_s8(kMxfp4Bytes.data()), codes);
  }
  FLASH_INLINE Bytes second_floats(Bytes both) {
    return vqtbl1q_s8(vld1q_s8(kMxfp4Bytes.data()), vshrq_n_u8(vreinterpretq_u8_s8(both), 4));
  }
  FLASH_INLINE Lanes seed(const int32_t* /*from*/) { return vdupq_n_s32(0); }
  FLASH_INLINE Lanes times_128(Lanes lanes) { return vshlq_n_s32(lanes, 7); }
  // Sums of two products stay within 16 bits: 128 * 64 * 2 = 16,384.
  FLASH_INLINE Lanes dot(Lanes lanes, Bytes weights, Bytes x) {
    const int16x8_t products = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
    return vpadalq_s16(lanes, vmlal_s8(products, vget_high_s8(weights), vget_high_s8(x)));
  }
  // Sixteen bits have an even byte below and an odd one above.
  FLASH_INLINE Shorts even(Bytes bytes) {
    return vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s8(bytes), 8), 8);
  }
  FLASH_INLINE Shorts odd(Bytes bytes) { return vshrq_n_s16(vreinterpretq_s16_s8(bytes), 8); }
  FLASH_INLINE Shorts join(Shorts high, Shorts low) { return vaddq_s16(vshlq_n_s16(high, 7), low); }
  FLASH_INLINE Shorts load_shorts(const uint8_t* from) {
    return vreinterpretq_s16_u8(vld1q_u8(from));
  }
  FLASH_INLINE void store_shorts(uint8_t* to, Shorts shorts) {
    vst1q_u8(to, vreinterpretq_u8_s16(shorts));
  }
  FLASH_INLINE Lanes first_shorts(Shorts weights, Shorts numbers) {
    const Lanes low = vmull_s16(vget_low_s16(weights), vget_low_s16(numbers));
    return vmlal_s16(low, vget_high_s16(weights), vget_high_s16(numbers));
  }
  FLASH_INLINE Lanes dot_shorts(Lanes lanes, Shorts weights, Shorts numbers) {
    lanes = vmlal_s16(lanes, vget_low_s16(weights), vget_low_s16(numbers));
    return vmlal_s16(lanes, vget_high_s16(weights), vget_high_s16(numbers));
  }
  FLASH_INLINE float32x4_t to_float(Lanes lanes) { return vcvtq_f32_s32(lanes); }
  // Signed bytes need no seeds.
  FLASH_INLINE Lanes fill(int32_t /*seed*/) { return vdupq_n_s32(0); }
  // A lane's sum is of two bytes of the first half and two of the second.
  FLASH_INLINE Bytes repeat(int32_t four) { return vreinterpretq_s8_s16(pair(four)); }
  FLASH_INLINE Shorts pair(int32_t two) {
    const int16x8_t both = vreinterpretq_s16_s32(vdupq_n_s32(two));
    return vcombine_s16(vdup_laneq_s16(both, 0), vdup_laneq_s16(both, 1));
  }
  FLASH_INLINE Bytes load_turned(const uint8_t* row) { return load_bytes(row); }
  FLASH_INLINE void interleave(Bytes* rows) {
    const auto longs = [](int8x16_t bytes) { return vreinterpretq_s64_s8(bytes); };
    const int64x2_t low[2] = {longs(vzip1q_s8(rows[0], rows[1])),
                              longs(vzip1q_s8(rows[2], rows[3]))};
    const int64x2_t high[2] = {longs(vzip2q_s8(rows[0], rows[1])),
                               longs(vzip2q_s8(rows[2], rows[3]))};
    rows[0] = vreinterpretq_s8_s64(vzip1q_s64(low[0], low[1]));
    rows[1] = vreinterpretq_s8_s64(vzip2q_s64(low[0], low[1]));
    rows[2] = vreinterpretq_s8_s64(vzip1q_s64(high[0], high[1]));
    rows[3] = vreinterpretq_s8_s64(vzip2q_s64(high[0], high[1]));
  }
};

// A vector has half a group of int8, or one of four bits a number.
struct S {
  using Half = F16;
  using Power = E8M0;
  static constexpr bool loads_some = false;
  struct Scales {
    float values[kInputGroups];
  };
  template <class Scale>
  FLASH_INLINE Scales load(const uint8_t* from, const float* factors) {
    Scales scales;
    for (size_t g = 0; g < kInputGroups; g += V::width) {
      V::store(scales.values + g,
               vmulq_f32(Scale::load(from + g * Scale::item_bytes), V::load(factors + g)));
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

#include "grouped_block_sums.h"

#include "tile_products.h"

#include "tile_sums.h"

#include "grouped_products.h"

#include "encode_loops.h"

KernelTable make_neon() {
  KernelTable table = make_table<V, F32, F16, BF16>("neon");
  set_grouped_dots<V, I, S>(&table);
  set_grouped_sums<V, I, S>(&table);
  set_grouped_block_sums<V, I, S>(&table);
  set_float_products<V, F32, F16, BF16>(&table);
  set_sums<V, F32, F16, BF16>(&table);
  set_grouped_products<V, I, S>(&table);
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
