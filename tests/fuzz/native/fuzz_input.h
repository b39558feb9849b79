// What a target makes of a fuzzer's bytes: numbers in ranges, and numbers where arithmetic breaks.
//
// Behind the end of the input there are only zeros, so that every input is a whole case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

// A promise of the code under test that did not hold. The driver keeps the input.
#define REQUIRE(condition)                                                                \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }

  bool flag() { return (byte() & 1) != 0; }

  // Little-endian, of 1 to 8 bytes.
  uint64_t word(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(byte()) << (8 * i);
    return value;
  }

  // From `least` to `most`; takes as many bytes as the range needs.
  int64_t within(int64_t least, int64_t most) {
    const uint64_t range = static_cast<uint64_t>(most) - static_cast<uint64_t>(least);
    size_t bytes = 1;
    while (bytes < 8 && range >> (8 * bytes) != 0) ++bytes;
    const uint64_t value = word(bytes);
    const uint64_t wrapped =
        range == std::numeric_limits<uint64_t>::max() ? value : value % (range + 1);
    return static_cast<int64_t>(static_cast<uint64_t>(least) + wrapped);
  }

  size_t size_within(size_t least, size_t most) {
    return static_cast<size_t>(within(static_cast<int64_t>(least), static_cast<int64_t>(most)));
  }

  // Any number of 64 bits; mostly small ones and those next to a power of two.
  int64_t any() {
    switch (byte() % 6) {
      case 0:
        return within(-2, 253);
      case 1:
        return within(0, 65535);
      case 2: {
        const uint64_t power = uint64_t{1} << (byte() % 64);
        return static_cast<int64_t>(power + static_cast<uint64_t>(within(-2, 2)));
      }
      case 3:
        return std::numeric_limits<int64_t>::max() - within(0, 8191);
      case 4:
        return std::numeric_limits<int64_t>::min() + within(0, 255);
      default:
        return static_cast<int64_t>(word(8));
    }
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Values that follow from a seed, for what is too long to come from the input itself.
class SeededValues {
 public:
  explicit SeededValues(uint64_t seed) : state_(seed * 2 + 1) {}

  uint32_t next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(state_ >> 32);
  }

  // From -limit to limit, in steps of 2^-7.
  float value(int limit) {
    const int steps = static_cast<int>(next() % (256U * static_cast<uint32_t>(limit) + 1));
    return static_cast<float>(steps - 128 * limit) / 128;
  }

  std::vector<float> values(size_t count, int limit) {
    std::vector<float> result(count);
    for (float& one : result) one = value(limit);
    return result;
  }

 private:
  uint64_t state_;
};
