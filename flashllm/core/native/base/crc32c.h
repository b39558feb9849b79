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
  uint32_t first_bundle;
};

// Of one bundle at its place, `first_bundle` being its number.
uint32_t bundle_checksum(const uint8_t* data, size_t bundle_bytes, const BundlePlace& place);

// Of each bundle, one every `stride` bytes, seeded by where it belongs: a bundle that is right
// but in the wrong place has a wrong checksum. invalid_argument for sizes that do not fit.
std::vector<uint32_t> bundle_checksums(const uint8_t* data, size_t size, int64_t stride,
                                       int64_t bundle_bytes, const BundlePlace& place);

}  // namespace flash_core
