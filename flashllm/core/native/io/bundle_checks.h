// Holds bundles against their checksums once they are read: always, or each the first time.
//
// Goals: the thread that read a bundle checks it, while the bytes are in that processor's cache; of
// a bundle that several reads bring, the one that reads the last piece. Not goals: reading again,
// what a bundle means. Finds accidents, not attackers, who would change the checksums too.
// Threads: every function may be called by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "read_plan.h"

namespace flash_core {

// Where the bundles of a file lie, one every `stride` bytes, and what seeds their checksums.
struct BundleFile {
  uint64_t data_offset;
  uint64_t stride;
  uint64_t bundle_bytes;  // of which there is a checksum; the rest of the stride is padding
  uint64_t bundles_per_layer;
  std::array<uint8_t, 16> file_id;
};

struct ReadBundle {
  uint64_t number;       // in the file, layers one after the other
  uint64_t destination;  // in the buffer
};

// The bundles that a batch reads. Those that a piece holds only a part of are complete once all
// their pieces are read.
class BatchBundles {
 public:
  // The plan lives as long.
  BatchBundles(const BundleFile& file, const ReadPlan& plan);

  // Those that are complete now that this run is read; called once for each run.
  std::vector<ReadBundle> complete(const Run& run);

 private:
  struct Range {
    uint64_t first;
    uint64_t last;
  };

  Range touched(const Piece& piece) const;
  bool is_whole(const Piece& piece, uint64_t bundle) const;
  uint64_t destination(const Piece& piece, uint64_t bundle) const;

  const BundleFile& file_;
  const ReadPlan& plan_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, size_t> pieces_left_;  // by the destination of a bundle
};

struct CheckCounts {
  uint64_t verified = 0;    // bundles found right
  uint64_t mismatched = 0;  // found wrong when they were read first
  uint64_t damaged = 0;     // and again when they were read again
};

class BundleChecks {
 public:
  // `expected` of every bundle of the file; invalid_argument for sizes that do not fit together.
  BundleChecks(const BundleFile& file, std::vector<uint32_t> expected, bool always);

  const BundleFile& file() const { return file_; }

  // invalid_argument unless each request is of whole bundles.
  void check_batch(const Batch& batch) const;

  // Whether a bundle that was read is to be compared: unless it was found right before.
  bool wants(uint64_t bundle) const;

  // Compares the bytes of a bundle; what is right counts, and is not compared again.
  bool matches(uint64_t bundle, const uint8_t* data);

  void count_mismatch() { mismatched_.fetch_add(1, std::memory_order_relaxed); }
  void count_damaged() { damaged_.fetch_add(1, std::memory_order_relaxed); }
  CheckCounts counts() const;

  uint64_t offset(uint64_t bundle) const { return file_.data_offset + bundle * file_.stride; }

  // "layer 3, bundle 17, at offset 65536".
  std::string place(uint64_t bundle) const;

 private:
  BundleFile file_;
  std::vector<uint32_t> expected_;
  std::unique_ptr<std::atomic<uint64_t>[]> verified_bits_;  // none where all are always compared
  std::atomic<uint64_t> verified_{0};
  std::atomic<uint64_t> mismatched_{0};
  std::atomic<uint64_t> damaged_{0};
};

}  // namespace flash_core
