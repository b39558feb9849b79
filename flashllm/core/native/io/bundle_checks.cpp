#include "bundle_checks.h"

#include <limits>
#include <stdexcept>
#include <utility>

#include "checked.h"
#include "crc32c.h"

namespace flash_core {

namespace {

constexpr uint64_t kBits = 64;

uint64_t bit_of(uint64_t bundle) { return uint64_t{1} << (bundle % kBits); }

}  // namespace

BatchBundles::BatchBundles(const BundleFile& file, const ReadPlan& plan)
    : file_(file), plan_(plan) {
  for (const Piece& piece : plan.pieces) {
    const Range range = touched(piece);
    // Only the first and the last can be cut.
    if (!is_whole(piece, range.first)) ++pieces_left_[destination(piece, range.first)];
    if (range.last != range.first && !is_whole(piece, range.last)) {
      ++pieces_left_[destination(piece, range.last)];
    }
  }
}

std::vector<ReadBundle> BatchBundles::complete(const Run& run) {
  std::vector<ReadBundle> ready;
  for (size_t i = run.first; i < run.first + run.count; ++i) {
    const Piece& piece = plan_.pieces[i];
    const Range range = touched(piece);
    for (uint64_t bundle = range.first; bundle <= range.last; ++bundle) {
      const uint64_t at = destination(piece, bundle);
      if (!is_whole(piece, bundle)) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (--pieces_left_[at] > 0) continue;
      }
      ready.push_back({bundle, at});
    }
  }
  return ready;
}

BatchBundles::Range BatchBundles::touched(const Piece& piece) const {
  const uint64_t start = piece.offset - file_.data_offset;
  return {start / file_.stride, (start + piece.length - 1) / file_.stride};
}

bool BatchBundles::is_whole(const Piece& piece, uint64_t bundle) const {
  const uint64_t start = file_.data_offset + bundle * file_.stride;
  return start >= piece.offset && start + file_.stride <= piece.offset + piece.length;
}

// A request is in one piece in the buffer as it is in the file.
uint64_t BatchBundles::destination(const Piece& piece, uint64_t bundle) const {
  return piece.destination + file_.data_offset + bundle * file_.stride - piece.offset;
}

BundleChecks::BundleChecks(const BundleFile& file, std::vector<uint32_t> expected, bool always)
    : file_(file), expected_(std::move(expected)) {
  if (file.bundle_bytes < 1 || file.bundle_bytes > file.stride || file.bundles_per_layer < 1 ||
      file.bundles_per_layer > std::numeric_limits<uint32_t>::max() ||
      expected_.size() % file.bundles_per_layer != 0) {
    throw std::invalid_argument(std::to_string(expected_.size()) + " checksums of bundles of " +
                                std::to_string(file.bundle_bytes) + " bytes, stride " +
                                std::to_string(file.stride) +
                                ": expected bundles within their strides, and whole layers of " +
                                std::to_string(file.bundles_per_layer));
  }
  const Checked end = Checked(file.data_offset) + Checked(expected_.size()) * Checked(file.stride);
  static_cast<void>(end);  // so that no offset of a bundle wraps around
  if (!always) {
    verified_bits_ = std::make_unique<std::atomic<uint64_t>[]>(expected_.size() / kBits + 1);
  }
}

void BundleChecks::check_batch(const Batch& batch) const {
  const uint64_t bundles_bytes = expected_.size() * file_.stride;
  const auto length = static_cast<uint64_t>(batch.length);
  bool whole = batch.length > 0 && length % file_.stride == 0;
  for (size_t i = 0; whole && i < batch.count; ++i) {
    const uint64_t start = static_cast<uint64_t>(batch.offsets[i]) - file_.data_offset;
    whole = batch.offsets[i] >= 0 && start % file_.stride == 0 && start < bundles_bytes &&
            length <= bundles_bytes - start;
  }
  if (!whole) {
    throw std::invalid_argument("reads of " + std::to_string(batch.length) +
                                " bytes that are not whole bundles cannot be verified");
  }
}

bool BundleChecks::wants(uint64_t bundle) const {
  if (!verified_bits_) return true;
  const uint64_t bits = verified_bits_[bundle / kBits].load(std::memory_order_relaxed);
  return (bits & bit_of(bundle)) == 0;
}

bool BundleChecks::matches(uint64_t bundle, const uint8_t* data) {
  const BundlePlace place = {file_.file_id.data(),
                             static_cast<uint32_t>(bundle / file_.bundles_per_layer),
                             static_cast<uint32_t>(bundle % file_.bundles_per_layer)};
  if (bundle_checksum(data, file_.bundle_bytes, place) != expected_[bundle]) return false;
  verified_.fetch_add(1, std::memory_order_relaxed);
  if (verified_bits_) {
    verified_bits_[bundle / kBits].fetch_or(bit_of(bundle), std::memory_order_relaxed);
  }
  return true;
}

CheckCounts BundleChecks::counts() const {
  return {verified_.load(std::memory_order_relaxed), mismatched_.load(std::memory_order_relaxed),
          damaged_.load(std::memory_order_relaxed)};
}

std::string BundleChecks::place(uint64_t bundle) const {
  return "layer " + std::to_string(bundle / file_.bundles_per_layer) + ", bundle " +
         std::to_string(bundle % file_.bundles_per_layer) + ", at offset " +
         std::to_string(offset(bundle));
}

}  // namespace flash_core
