#include "crc32c.h"

#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

// Clang declares the instructions only where they are on for the whole file, as on every Mac.
#if defined(__aarch64__) && (!defined(__clang__) || defined(__ARM_FEATURE_CRC32))
#define FLASH_ARM_CRC 1
#endif

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(FLASH_ARM_CRC)
#include <arm_acle.h>
#ifdef __linux__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

namespace flash_core {

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;
using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what byte b does to the state when k more bytes follow it.
Tables make_tables() {
  Tables tables = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) {
      state = (state & 1) != 0 ? (state >> 1) ^ kPolynomial : state >> 1;
    }
    tables[0][byte] = state;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

uint64_t load_le64(const uint8_t* data) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = (word << 8) | data[i];
  return word;
}

using Update = uint32_t (*)(uint32_t state, const uint8_t* data, size_t size);

uint32_t update_portable(uint32_t state, const uint8_t* data, size_t size) {
  static const Tables tables = make_tables();
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t word = load_le64(data) ^ state;
    state = 0;
    for (size_t k = 0; k < 8; ++k) state ^= tables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; size > 0; ++data, --size) state = (state >> 8) ^ tables[0][(state ^ *data) & 0xFF];
  return state;
}

// The instruction takes three cycles and one can begin in each, so three streams of this many bytes
// go through it at once, and their states are joined.
constexpr size_t kStreamBytes = 512;

// [k][b]: what that many zero bytes make of the state b << 8k.
using Shift = std::array<std::array<uint32_t, 256>, 4>;

Shift make_shift() {
  const std::array<uint8_t, kStreamBytes> zeros = {};
  Shift shift = {};
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const uint32_t rest = byte & (byte - 1);  // without its lowest bit; a state is linear in bits
      const uint32_t bit = update_portable((byte ^ rest) << (8 * k), zeros.data(), zeros.size());
      shift[k][byte] = shift[k][rest] ^ bit;
    }
  }
  return shift;
}

uint32_t shifted(const Shift& shift, uint32_t state) {
  return shift[0][state & 0xFF] ^ shift[1][(state >> 8) & 0xFF] ^ shift[2][(state >> 16) & 0xFF] ^
         shift[3][state >> 24];
}

// The state after three streams, of which the second and the third began at 0.
[[maybe_unused]] uint32_t joined(uint64_t first, uint64_t second, uint64_t third) {
  static const Shift shift = make_shift();
  const uint32_t two = shifted(shift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return shifted(shift, two) ^ static_cast<uint32_t>(third);
}

[[maybe_unused]] uint64_t load64(const uint8_t* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, 8);
  return word;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) uint32_t update_hardware(uint32_t state, const uint8_t* data,
                                                           size_t size) {
  uint64_t wide = state;
  for (; size >= 3 * kStreamBytes; data += 3 * kStreamBytes, size -= 3 * kStreamBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      wide = _mm_crc32_u64(wide, load64(data + i));
      second = _mm_crc32_u64(second, load64(data + kStreamBytes + i));
      third = _mm_crc32_u64(third, load64(data + 2 * kStreamBytes + i));
    }
    wide = joined(wide, second, third);
  }
  for (; size >= 8; data += 8, size -= 8) wide = _mm_crc32_u64(wide, load64(data));
  state = static_cast<uint32_t>(wide);
  for (; size > 0; ++data, --size) state = _mm_crc32_u8(state, *data);
  return state;
}

bool has_hardware() { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(FLASH_ARM_CRC)

#ifndef __clang__
__attribute__((target("+crc")))
#endif
uint32_t update_hardware(uint32_t state, const uint8_t* data, size_t size) {
  for (; size >= 3 * kStreamBytes; data += 3 * kStreamBytes, size -= 3 * kStreamBytes) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t i = 0; i < kStreamBytes; i += 8) {
      state = __crc32cd(state, load64(data + i));
      second = __crc32cd(second, load64(data + kStreamBytes + i));
      third = __crc32cd(third, load64(data + 2 * kStreamBytes + i));
    }
    state = joined(state, second, third);
  }
  for (; size >= 8; data += 8, size -= 8) state = __crc32cd(state, load64(data));
  for (; size > 0; ++data, --size) state = __crc32cb(state, *data);
  return state;
}

bool has_hardware() {
#ifdef __linux__
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
  return true;  // every processor that Apple ever sold with this architecture
#endif
}

#else

uint32_t update_hardware(uint32_t state, const uint8_t* data, size_t size) {
  return update_portable(state, data, size);
}

bool has_hardware() { return false; }

#endif

Update best_update() { return has_hardware() ? update_hardware : update_portable; }

std::array<uint8_t, 4> le32(uint32_t value) {
  return {static_cast<uint8_t>(value), static_cast<uint8_t>(value >> 8),
          static_cast<uint8_t>(value >> 16), static_cast<uint8_t>(value >> 24)};
}

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t value) {
  static const Update update = best_update();
  return ~update(~value, data, size);
}

uint32_t crc32c_portable(const uint8_t* data, size_t size, uint32_t value) {
  return ~update_portable(~value, data, size);
}

uint32_t bundle_checksum(const uint8_t* data, size_t bundle_bytes, const BundlePlace& place) {
  const uint32_t in_file = crc32c(place.file_id, 16);
  const uint32_t in_layer = crc32c(le32(place.layer).data(), 4, in_file);
  return crc32c(data, bundle_bytes, crc32c(le32(place.number).data(), 4, in_layer));
}

std::vector<uint32_t> bundle_checksums(const uint8_t* data, size_t size,
                                       const ScatteredBundles& bundles, const uint8_t* file_id,
                                       uint32_t layer) {
  const auto bundle_bytes = static_cast<uint64_t>(bundles.bundle_bytes);
  for (size_t i = 0; i < bundles.count; ++i) {
    if (bundles.bundle_bytes >= 1 && bundles.begins[i] >= 0 && bundle_bytes <= size &&
        static_cast<uint64_t>(bundles.begins[i]) <= size - bundle_bytes) {
      continue;
    }
    throw std::invalid_argument("bundle " + std::to_string(bundles.numbers[i]) + ", " +
                                std::to_string(bundles.bundle_bytes) + " bytes from byte " +
                                std::to_string(bundles.begins[i]) + " on: expected it within " +
                                std::to_string(size) + " bytes");
  }
  std::vector<uint32_t> checksums(bundles.count);
  for (size_t i = 0; i < bundles.count; ++i) {
    checksums[i] = bundle_checksum(data + bundles.begins[i], static_cast<size_t>(bundle_bytes),
                                   {file_id, layer, bundles.numbers[i]});
  }
  return checksums;
}

}  // namespace flash_core
