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
uint32_t defined(const uint8_t* bundle, size_t bytes, const BundlePlace& place) {
  std::vector<uint8_t> all(place.file_id, place.file_id + kFileIdBytes);
  for (const uint32_t part : {place.layer, place.number}) {
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
  std::vector<uint8_t> bytes(input.size_within(0, kBytesMax));
  const std::vector<uint8_t> file_id(kFileIdBytes, input.byte());
  const auto layer = static_cast<uint32_t>(input.word(4));
  const auto largest = static_cast<int64_t>(bytes.size());
  std::vector<int64_t> begins(input.size_within(0, 9));
  std::vector<uint32_t> numbers;
  for (int64_t& begin : begins) {
    begin = input.byte() % 4 == 0 ? input.any() : input.within(0, largest);
    numbers.push_back(static_cast<uint32_t>(input.any()));
  }
  SeededValues values(input.word(2));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(values.next());
  check_cuts(bytes, &input);

  bool is_valid = true;
  for (const int64_t begin : begins) {
    is_valid = is_valid && bundle_bytes >= 1 && bundle_bytes <= largest && begin >= 0 &&
               begin <= largest - bundle_bytes;
  }
  const ScatteredBundles bundles = {begins.data(), numbers.data(), begins.size(), bundle_bytes};
  std::vector<uint32_t> found;
  try {
    found = bundle_checksums(bytes.data(), bytes.size(), bundles, file_id.data(), layer);
  } catch (const std::invalid_argument&) {
    REQUIRE(!is_valid);
    return 0;
  }
  REQUIRE(is_valid && found.size() == begins.size());
  for (size_t i = 0; i < found.size(); ++i) {
    REQUIRE(found[i] == defined(bytes.data() + begins[i], static_cast<size_t>(bundle_bytes),
                                {file_id.data(), layer, numbers[i]}));
  }
  return 0;
}
