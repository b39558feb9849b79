// CRC-32C (Castagnoli): finds accidents, not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flash_core {

// Of `size` bytes, continuing from the value of those before them (0 at the start).
uint32_t crc32c(const uint8_t* data, size_t size, uint32_t value = 0);

// The same without special instructions: what every machine can do, and the oracle.
uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t value = 0);

struct BundlePlace {
  const uint8_t* file_id;  // [16]
  uint32_t layer;
  uint32_t number;
};

// Of one bundle at its place.
uint32_t bundle_checksum(const uint8_t* data, size_t bundle_bytes, const BundlePlace& place);

// Bundles of one layer, here and there in memory.
struct ScatteredBundles {
  const int64_t* begins;    // [count]: the first byte of each
  const uint32_t* numbers;  // [count]
  size_t count;
  int64_t bundle_bytes;
};

// Of each bundle within `size` bytes, seeded by where it belongs: a bundle that is right but in the
// wrong place has a wrong checksum. invalid_argument for bundles that are not within them.
std::vector<uint32_t> bundle_checksums(const uint8_t* data, size_t size,
                                       const ScatteredBundles& bundles, const uint8_t* file_id,
                                       uint32_t layer);

}  // namespace flash_core
