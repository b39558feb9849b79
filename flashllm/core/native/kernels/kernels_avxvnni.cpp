// AVX2 with VNNI in vectors of 256 bits, which multiplies bytes: x86 without AVX-512, from Alder
// Lake and Sierra Forest on. Floats are those of AVX2.
#include "kernel_table.h"

#if FLASH_HAS_AVXVNNI

#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "mxfp4.h"
#include "rounding.h"
#include "tiles.h"

#define FLASH_TARGET __attribute__((target("avxvnni,avx2,fma,f16c")))
#define FLASH_INLINE FLASH_TARGET static inline __attribute__((always_inline))

namespace flash_core {

namespace {

#include "avx2_vectors.h"

// One instruction where AVX2 takes three for bytes and two for 16 bits.
struct Vnni : I {
  FLASH_INLINE Lanes dot(Lanes lanes, Bytes weights, Bytes numbers) {
    return _mm256_dpbusd_avx_epi32(lanes, weights, numbers);
  }
  FLASH_INLINE Lanes dot_shorts(Lanes lanes, Shorts weights, Shorts numbers) {
    return _mm256_dpwssd_avx_epi32(lanes, weights, numbers);
  }
};

#include "kernel_loops.h"

#include "grouped_dots.h"

#include "grouped_sums.h"

#include "grouped_block_sums.h"

#include "tile_products.h"

#include "grouped_products.h"

KernelTable make_avxvnni() {
  KernelTable table = avx2_kernels();
  table.name = "avxvnni";
  set_grouped_dots<V, Vnni, S>(&table);
  set_grouped_sums<V, Vnni, S>(&table);
  set_grouped_block_sums<V, Vnni, S>(&table);
  set_grouped_products<V, Vnni, S>(&table);
  return table;
}

}  // namespace

const KernelTable& avxvnni_kernels() {
  static const KernelTable table = make_avxvnni();
  return table;
}

}  // namespace flash_core

#endif
