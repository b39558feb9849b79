// AVX2 with FMA and F16C: x86 since 2013.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "kernel_table.h"
#include "mxfp4.h"
#include "rounding.h"
#include "tiles.h"

#define FLASH_TARGET __attribute__((target("avx2,fma,f16c")))
#define FLASH_INLINE FLASH_TARGET static inline __attribute__((always_inline))

namespace flash_core {

namespace {

#include "avx2_vectors.h"

#include "kernel_loops.h"

#include "grouped_dots.h"

#include "grouped_sums.h"

#include "grouped_block_sums.h"

#include "tile_products.h"

#include "tile_sums.h"

#include "grouped_products.h"

#include "encode_loops.h"

KernelTable make_avx2() {
  KernelTable table = make_table<V, F32, F16, BF16>("avx2");
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

const KernelTable& avx2_kernels() {
  static const KernelTable table = make_avx2();
  return table;
}

}  // namespace flash_core

#endif
