// Bundles held against their checksums: what is read once, in pieces, again, and by a ring.
#include <array>
#include <cstring>
#include <string>

#include "bundle_checks.h"
#include "crc32c.h"
#include "errors.h"
#include "reader.h"
#include "test_sources.h"
#include "testing.h"

using namespace flash_core;

namespace {

using Kind = Fault::Kind;

constexpr uint64_t kLayers = 2;
constexpr uint64_t kPerLayer = 6;
constexpr uint64_t kDataOffset = 1024;

// Bundles of a stride that pieces of 8192 bytes cut, or do not.
struct Model {
  explicit Model(uint64_t stride)
      : file{kDataOffset, stride, stride - 100, kPerLayer, {{1, 2, 3}}},
        bytes(kDataOffset + kLayers * kPerLayer * stride) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>((i * 2654435761U) >> 13);
    }
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t number = 0; number < kPerLayer; ++number) {
        const size_t start = kDataOffset + (layer * kPerLayer + number) * stride;
        expected.push_back(bundle_checksum(bytes.data() + start, file.bundle_bytes,
                                           {file.file_id.data(), layer, number}));
      }
    }
  }

  int64_t offset(uint64_t bundle) const {
    return static_cast<int64_t>(kDataOffset + bundle * file.stride);
  }

  std::unique_ptr<Reader> open(Backend backend, bool always, std::deque<Fault> script = {},
                               bool forever = false, size_t alignment = 512) const {
    auto memory = std::make_unique<MemorySource>(bytes, alignment);
    auto source = std::make_unique<FaultySource>(std::move(memory), std::move(script), forever);
    auto reader = std::make_unique<Reader>(OpenedFile{std::move(source), ""}, "name",
                                           ReaderOptions{3, 2048, 8192, backend});
    reader->verify_bundles(std::make_unique<BundleChecks>(file, expected, always));
    return reader;
  }

  BundleFile file;
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> expected;
};

// Reads `count` neighbours from a bundle on, and checks their bytes.
void read(Reader* reader, const Model& model, uint64_t first, uint64_t count) {
  const auto length = static_cast<int64_t>(count * model.file.stride);
  const auto buffer = std::make_shared<Buffer>(length + 4096);
  const int64_t offset = model.offset(first);
  const int64_t destination = 512;
  reader->wait(reader->submit({&offset, &destination, 1, length}, buffer));
  CHECK(std::memcmp(buffer->data() + destination, model.bytes.data() + offset,
                    static_cast<size_t>(length)) == 0);
}

}  // namespace

TEST_BACKENDS(whole_and_cut_bundles_are_verified_once_or_always) {
  for (const uint64_t stride : {512, 1536, 8192, 20480}) {
    for (const size_t alignment : {1, 512, 4096}) {
      const Model model(stride);
      const auto first = model.open(backend, false, {}, false, alignment);
      const auto always = model.open(backend, true, {}, false, alignment);
      for (int round = 1; round <= 2; ++round) {
        read(first.get(), model, 0, 12);
        read(always.get(), model, 0, 12);
        CHECK(first->check_counts().verified == 12);
        CHECK(always->check_counts().verified == 12U * static_cast<unsigned>(round));
      }
      CHECK(first->check_counts().mismatched + always->check_counts().mismatched == 0);
    }
  }
}

TEST_BACKENDS(every_flipped_bit_is_found_wherever_it_is) {
  for (const uint64_t stride : {1536, 20480}) {
    Model model(stride);
    for (uint64_t bundle = 0; bundle < kLayers * kPerLayer; ++bundle) {
      for (const uint64_t inside : {uint64_t{0}, stride / 2, model.file.bundle_bytes - 1}) {
        uint8_t& byte = model.bytes[static_cast<size_t>(model.offset(bundle)) + inside];
        byte ^= 0x10;
        const auto reader = model.open(backend, false);
        const std::string place = "layer " + std::to_string(bundle / kPerLayer) + ", bundle " +
                                  std::to_string(bundle % kPerLayer) + ", at offset " +
                                  std::to_string(model.offset(bundle)) + ":";
        CHECK_THROWS(ChecksumError, place, read(reader.get(), model, 0, 12));
        CHECK_THROWS(ChecksumError, place, read(reader.get(), model, bundle, 1));
        CHECK(reader->check_counts().damaged == 2);
        byte ^= 0x10;
        read(reader.get(), model, (bundle + 1) % 12, 1);  // others are still read
      }
    }
  }
}

TEST_BACKENDS(what_is_right_when_it_is_read_again_is_no_error) {
  for (const uint64_t stride : {1536, 20480}) {
    const Model model(stride);
    const auto reader = model.open(backend, false, {{Kind::flip, 4000}});
    read(reader.get(), model, 3, 2);
    CHECK(reader->check_counts().mismatched == 1);
    CHECK(reader->check_counts().damaged == 0);
    CHECK(reader->check_counts().verified == 2);
  }
}

TEST_BACKENDS(a_device_that_always_flips_is_an_error_and_ends) {
  const Model model(1536);
  const auto reader = model.open(backend, false, {{Kind::flip, 0}}, true);
  CHECK_THROWS(ChecksumError, "layer 0, bundle 2", read(reader.get(), model, 2, 1));
}

TEST_BACKENDS(the_padding_is_not_compared) {
  Model model(1536);
  const auto reader = model.open(backend, true);
  model.bytes[static_cast<size_t>(model.offset(0)) + model.file.bundle_bytes] ^= 1;
  const auto changed = model.open(backend, true);
  read(changed.get(), model, 0, 1);
  CHECK(changed->check_counts().verified == 1);
}

TEST_BACKENDS(bundles_that_changed_places_and_zeros_are_found) {
  Model model(1536);
  const auto original = model.bytes;
  const size_t stride = model.file.stride;
  const size_t layer = kPerLayer * stride;
  std::memcpy(model.bytes.data() + kDataOffset, original.data() + kDataOffset + layer, layer);
  std::memcpy(model.bytes.data() + kDataOffset + layer, original.data() + kDataOffset, layer);
  auto reader = model.open(backend, false);
  for (uint64_t bundle = 0; bundle < 12; ++bundle) {
    CHECK_THROWS(ChecksumError, "checksum", read(reader.get(), model, bundle, 1));
  }
  model.bytes.assign(model.bytes.size(), 0);
  reader = model.open(backend, false);
  for (uint64_t bundle = 0; bundle < 12; ++bundle) {
    CHECK_THROWS(ChecksumError, "checksum", read(reader.get(), model, bundle, 1));
  }
}

TEST_BACKENDS(reads_that_are_not_whole_bundles_are_refused) {
  const Model model(1536);
  const auto reader = model.open(backend, false);
  const auto buffer = std::make_shared<Buffer>(65'536);
  const int64_t destination = 0;
  const std::vector<std::pair<int64_t, int64_t>> wrong = {
      {kDataOffset, 1535}, {kDataOffset + 512, 1536}, {0, 1536}, {kDataOffset - 512, 1536}};
  for (const auto& [offset, length] : wrong) {
    CHECK_THROWS(std::invalid_argument, "whole bundles",
                 reader->submit({&offset, &destination, 1, length}, buffer));
  }
  read(reader.get(), model, 11, 1);
}

TEST(batches_of_whole_bundles_are_told_from_all_others) {
  const Model model(1536);
  const BundleChecks checks(model.file, model.expected, false);
  const auto end = static_cast<int64_t>(model.bytes.size());
  for (const int64_t length : {-1536, 0, 1, 1535, 1536, 1537, 3072, 12 * 1536, 13 * 1536}) {
    for (int64_t offset = -1536 * 2; offset <= end + 1536; offset += 256) {
      const bool is_whole = offset >= int64_t{kDataOffset} && offset + length <= end &&
                            length > 0 && length % 1536 == 0 &&
                            (offset - int64_t{kDataOffset}) % 1536 == 0;
      const std::vector<int64_t> offsets = {model.offset(0), offset};
      const Batch batch = {offsets.data() + 1, nullptr, 1, length};
      if (is_whole) {
        checks.check_batch(batch);
        continue;
      }
      CHECK_THROWS(std::invalid_argument, "not whole bundles", checks.check_batch(batch));
      CHECK_THROWS(std::invalid_argument, "not whole bundles",
                   checks.check_batch({offsets.data(), nullptr, 2, length}));
    }
  }
}

TEST(checks_that_do_not_fit_are_refused) {
  const Model model(1536);
  BundleFile file = model.file;
  file.bundle_bytes = 0;
  CHECK_THROWS(std::invalid_argument, "of 0 bytes", BundleChecks(file, model.expected, false));
  file = model.file;
  file.bundles_per_layer = uint64_t{1} << 32;
  CHECK_THROWS(std::invalid_argument, "whole layers of 4294967296", BundleChecks(file, {}, false));
  file = model.file;
  file.bundle_bytes = 1537;
  CHECK_THROWS(std::invalid_argument, "stride", BundleChecks(file, model.expected, false));
  file = model.file;
  file.bundles_per_layer = 5;
  CHECK_THROWS(std::invalid_argument, "whole layers", BundleChecks(file, model.expected, false));
  file.bundles_per_layer = 0;
  CHECK_THROWS(std::invalid_argument, "whole layers", BundleChecks(file, model.expected, false));
  file = model.file;
  file.stride = uint64_t{1} << 62;
  CHECK_THROWS(std::out_of_range, "64 bits", BundleChecks(file, model.expected, false));
  const auto read_before = model.open(Backend::threads, false);
  read(read_before.get(), model, 0, 1);
  const auto checked_before = model.open(Backend::threads, false);
  Reader plain({std::make_unique<MemorySource>(model.bytes, 512), ""}, "name",
               {3, 2048, 8192, Backend::threads});
  read(&plain, model, 0, 1);
  for (Reader* reader : {read_before.get(), checked_before.get(), &plain}) {
    CHECK_THROWS(
        std::invalid_argument, "first batch",
        reader->verify_bundles(std::make_unique<BundleChecks>(model.file, model.expected, false)));
  }
}
