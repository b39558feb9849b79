// CRC-32C at every address, cut and size against the portable one; checksums of bundles against
// their definition, and sizes that do not fit together.
#include <cstring>
#include <stdexcept>

#include "crc32c.h"
#include "fuzz_input.h"

using namespace flash_core;

namespace {

constexpr size_t kBytesMax = 6000;
constexpr size_t kFileIdBytes = 16;

std::vector<uint8_t> numbered(uint32_t number) {
  std::vector<uint8_t> bytes(4);
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  return bytes;
}

void check_cuts(const std::vector<uint8_t>& bytes, FuzzInput* input) {
  const size_t first = input->size_within(0, bytes.size());
  const size_t cut = input->size_within(first, bytes.size());
  const uint8_t* data = bytes.data() + first;
  const uint32_t whole = crc32c_portable(data, bytes.size() - first);
  REQUIRE(crc32c(data, bytes.size() - first) == whole);
  const uint32_t half = crc32c(data, cut - first);
  REQUIRE(crc32c(bytes.data() + cut, bytes.size() - cut, half) == whole);
}

// By the definition in docs/layout-v1.md: of file, layer, bundle, then the bytes.
uint32_t defined(const uint8_t* bundle, size_t bytes, const BundlePlace& place, uint32_t number) {
  std::vector<uint8_t> all(place.file_id, place.file_id + kFileIdBytes);
  for (const uint32_t part : {place.layer, number}) {
    const std::vector<uint8_t> four = numbered(part);
    all.insert(all.end(), four.begin(), four.end());
  }
  all.insert(all.end(), bundle, bundle + bytes);
  return crc32c_portable(all.data(), all.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const int64_t bundle_bytes = input.byte() % 4 == 0 ? input.any() : input.within(1, 600);
  const int64_t stride = input.byte() % 4 == 0 ? input.any() : bundle_bytes;
  const size_t wanted = static_cast<size_t>(input.within(0, 9) * (stride & 0x3FF));
  std::vector<uint8_t> bytes(input.flag() ? wanted : input.size_within(0, kBytesMax));
  const std::vector<uint8_t> file_id(kFileIdBytes, input.byte());
  const auto layer = static_cast<uint32_t>(input.word(4));
  const auto first = static_cast<uint32_t>(input.flag() ? input.word(1) : input.any());
  SeededValues values(input.word(2));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(values.next());
  check_cuts(bytes, &input);

  const bool fits = stride >= 1 && bundle_bytes >= 1 && bundle_bytes <= stride &&
                    bytes.size() % static_cast<uint64_t>(stride) == 0;
  const uint64_t count = fits ? bytes.size() / static_cast<uint64_t>(stride) : 0;
  const bool is_valid = fits && (count == 0 || first + (count - 1) <= UINT32_MAX);
  const BundlePlace place = {file_id.data(), layer, first};
  std::vector<uint32_t> found;
  try {
    found = bundle_checksums(bytes.data(), bytes.size(), stride, bundle_bytes, place);
  } catch (const std::invalid_argument&) {
    REQUIRE(!is_valid);
    return 0;
  }
  REQUIRE(is_valid && found.size() == count);
  for (size_t i = 0; i < count; ++i) {
    REQUIRE(found[i] == defined(bytes.data() + i * static_cast<size_t>(stride),
                                static_cast<size_t>(bundle_bytes), place,
                                first + static_cast<uint32_t>(i)));
  }
  return 0;
}
