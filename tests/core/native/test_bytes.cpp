// Checked arithmetic, buffers, checksums and the plan of reads.
#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "buffer.h"
#include "checked.h"
#include "crc32c.h"
#include "read_plan.h"
#include "testing.h"

using namespace flash_core;

namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

ReadPlan plan(const std::vector<int64_t>& offsets, int64_t length, const ReadLimits& limits) {
  std::vector<int64_t> destinations;
  for (size_t i = 0; i < offsets.size(); ++i) {
    destinations.push_back(static_cast<int64_t>(i) * length);
  }
  return plan_reads({offsets.data(), destinations.data(), offsets.size(), length}, 1 << 20, 1 << 20,
                    limits);
}

}  // namespace

TEST(checked_refuses_what_wraps_around) {
  CHECK((Checked(2) + Checked(3)).get() == 5);
  CHECK((Checked(kMax) + Checked(0)).get() == kMax);
  CHECK_THROWS(std::out_of_range, "64 bits", Checked(kMax) + Checked(1));
  CHECK((Checked(1ULL << 32) * Checked((1ULL << 32) - 1)).get() == kMax - ((1ULL << 32) - 1));
  CHECK_THROWS(std::out_of_range, "64 bits", Checked(1ULL << 32) * Checked(1ULL << 32));
  CHECK_THROWS(std::out_of_range, "id is negative: -1", Checked::from_signed(-1, "id"));
  CHECK(Checked::from_signed(7, "id").get() == 7);
}

TEST(checked_rounds) {
  CHECK(Checked(0).round_up(512).get() == 0);
  CHECK(Checked(1).round_up(512).get() == 512);
  CHECK(Checked(512).round_up(512).get() == 512);
  CHECK(Checked(1023).round_down(512).get() == 512);
  CHECK_THROWS(std::out_of_range, "64 bits", Checked(kMax).round_up(4096));
}

TEST(buffer_is_zero_aligned_and_writable_to_its_last_byte) {
  Buffer buffer(5000);
  CHECK(buffer.size() == 5000);
  CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % 4096 == 0);
  for (size_t i = 0; i < buffer.size(); ++i) CHECK(buffer.data()[i] == 0);
  std::memset(buffer.data(), 1, buffer.size());
  Buffer small_pages(3 * 4096, false);
  small_pages.data()[small_pages.size() - 1] = 1;
  CHECK(small_pages.data()[0] == 0);
}

TEST(buffer_refuses_what_is_no_size) {
  CHECK_THROWS(std::invalid_argument, "0 bytes", Buffer(0));
  CHECK_THROWS(std::invalid_argument, "-5 bytes", Buffer(-5));
  CHECK_THROWS(std::bad_alloc, "", Buffer(std::numeric_limits<int64_t>::max()));
}

TEST(buffer_discards_whole_pages_and_nothing_else) {
  const int64_t size = 5 * 4096 - 100;
  const std::vector<int64_t> edges = {0, 1, 4095, 4096, 4097, 8192, 3 * 4096 + 7, 4 * 4096, size};
  for (const int64_t begin : edges) {
    for (const int64_t end : edges) {
      if (end < begin) continue;
      Buffer buffer(size);
      std::memset(buffer.data(), 9, buffer.size());
      buffer.discard(begin, end - begin);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t page = i / 4096 * 4096;
        const bool is_gone = page >= begin && page + 4096 <= end;
        CHECK(buffer.data()[i] == (is_gone ? 0 : 9));
      }
    }
  }
}

TEST(buffer_discards_nothing_outside) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Buffer buffer(8192);
  std::memset(buffer.data(), 9, buffer.size());
  const std::vector<std::pair<int64_t, int64_t>> wrong = {{-4096, 8192}, {0, -1},    {0, 8193},
                                                          {8193, 0},     {1, kMost}, {kMost, 1}};
  for (const auto& [begin, nbytes] : wrong) {
    CHECK_THROWS(std::invalid_argument, "of a buffer of 8192", buffer.discard(begin, nbytes));
  }
  for (size_t i = 0; i < buffer.size(); ++i) CHECK(buffer.data()[i] == 9);
}

TEST(crc_matches_published_vectors) {
  const std::vector<uint8_t> zeros(32, 0);
  const std::vector<uint8_t> ones(32, 0xFF);
  const auto* digits = reinterpret_cast<const uint8_t*>("123456789");
  CHECK(crc32c(zeros.data(), 32) == 0x8A9136AA);
  CHECK(crc32c(ones.data(), 32) == 0x62A8AB43);
  CHECK(crc32c(digits, 9) == 0xE3069283);
  CHECK(crc32c_portable(digits, 9) == 0xE3069283);
}

TEST(crc_is_the_same_with_and_without_instructions_at_every_size_and_address) {
  std::vector<uint8_t> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 11);
  for (size_t first = 0; first < 9; ++first) {
    for (size_t size = 0; size < 280; ++size) {
      const uint8_t* data = bytes.data() + first;
      CHECK(crc32c(data, size) == crc32c_portable(data, size));
      const uint32_t half = crc32c(data, size / 2);
      CHECK(crc32c(data + size / 2, size - size / 2, half) == crc32c(data, size));
    }
  }
}

// Long enough for streams that go through the processor at once, with all that may be left over.
TEST(crc_is_the_same_where_streams_are_joined) {
  std::vector<uint8_t> bytes(8000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>((i * 2654435761U) >> 11);
  }
  for (size_t size = 1500; size < 7990; size += size % 1536 < 20 ? 1 : 97) {
    const uint8_t* data = bytes.data() + size % 9;
    CHECK(crc32c(data, size, 0xDEADBEEF) == crc32c_portable(data, size, 0xDEADBEEF));
  }
}

TEST(checksums_are_of_bundles_within_their_bytes) {
  std::vector<uint8_t> data(128);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 37);
  const std::vector<uint8_t> id(16, 5);
  const std::vector<uint32_t> numbers = {7, 0xFFFFFFFF};
  for (const int64_t begin : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{64}, INT64_MAX}) {
    for (const int64_t bytes : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{64},
                                int64_t{65}, int64_t{128}, int64_t{129}, INT64_MAX}) {
      const std::vector<int64_t> begins = {0, begin};
      const ScatteredBundles bundles = {begins.data(), numbers.data(), 2, bytes};
      const auto sums = [&] { return bundle_checksums(data.data(), 128, bundles, id.data(), 3); };
      const bool is_within = begin == 0 ? bytes <= 128 : begin == 64 && bytes <= 64;
      if (bytes < 1 || !is_within) {
        CHECK_THROWS(std::invalid_argument, "expected it within 128 bytes", sums());
        continue;
      }
      const BundlePlace place = {id.data(), 3, 0xFFFFFFFF};
      CHECK(sums()[1] == bundle_checksum(data.data() + begin, static_cast<size_t>(bytes), place));
    }
  }
  CHECK(bundle_checksums(data.data(), 0, {nullptr, nullptr, 0, 64}, id.data(), 0).empty());
}

TEST(plan_sorts_and_merges_within_the_gap) {
  const ReadPlan merged = plan({8192, 0, 1024, 3072}, 1024, {1024, 65536, 512});
  CHECK(merged.pieces.size() == 4);
  CHECK(merged.runs.size() == 2);
  CHECK(merged.runs[0].count == 3);
  CHECK(merged.pieces[0].offset == 0);
  CHECK(merged.pieces[3].offset == 8192);
  CHECK(merged.pieces[3].destination == 0);
}

TEST(plan_never_exceeds_the_size_of_a_read) {
  const ReadPlan split = plan({0, 5000}, 5000, {512, 4096, 512});
  CHECK(split.pieces.size() == 4);
  for (const Run& run : split.runs) {
    const Piece& first = split.pieces[run.first];
    const Piece& last = split.pieces[run.first + run.count - 1];
    CHECK(last.offset + last.length - first.offset <= 4096);
  }
}

TEST(plan_never_has_more_pieces_in_a_run_than_a_read_takes) {
  for (const int64_t count : {1, 255, 256, 257, 512, 600}) {
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i < count; ++i) offsets.push_back(i * 1024);
    const ReadPlan found = plan(offsets, 512, {512, 1 << 20, 512});
    CHECK(found.runs.size() == static_cast<size_t>((count + 255) / 256));
    size_t next = 0;
    for (const Run& run : found.runs) {
      CHECK(run.first == next && run.count == std::min<size_t>(256, offsets.size() - next));
      next += run.count;
    }
    CHECK(next == offsets.size());
  }
}

TEST(plan_marks_what_must_be_bounced) {
  CHECK(!plan({0, 512}, 512, {0, 4096, 512}).runs[0].bounced);
  CHECK(plan({1}, 512, {0, 4096, 512}).runs[0].bounced);
  CHECK(plan({0}, 511, {0, 4096, 512}).runs[0].bounced);
}

TEST(plan_keeps_overlapping_requests_apart) {
  CHECK(plan({0, 256, 256}, 512, {4096, 65536, 1}).runs.size() == 3);
}

TEST(plan_checks_everything_first) {
  const ReadLimits limits = {0, 4096, 512};
  const auto whole = int64_t{1} << 20;
  CHECK_THROWS(std::out_of_range, "offset", plan({whole}, 1, limits));
  CHECK_THROWS(std::out_of_range, "negative", plan({-1}, 1, limits));
  CHECK_THROWS(std::out_of_range, "offset", plan({1}, std::numeric_limits<int64_t>::max(), limits));
  CHECK_THROWS(std::invalid_argument, "length", plan({0}, 0, limits));
  const std::vector<int64_t> offsets = {0, 512};
  const std::vector<int64_t> same = {0, 511};
  CHECK_THROWS(std::invalid_argument, "overlap",
               plan_reads({offsets.data(), same.data(), 2, 512}, 4096, 4096, limits));
}
