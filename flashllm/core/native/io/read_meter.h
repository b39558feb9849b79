// Counts what readers ask of the device. One lock: a count is a few tens of nanoseconds, a read
// tens of microseconds.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "latency_histogram.h"

namespace flash_core {

struct ReadStats {
  uint64_t bytes_read = 0;    // asked from the device: gaps, rounding and retries included
  uint64_t bytes_useful = 0;  // wanted by the requests
  uint64_t reads = 0;
  uint64_t busy_ns = 0;  // time with at least one read in flight
  // Integral of the number in flight: over busy_ns, its mean; over reads, the mean latency.
  uint64_t depth_ns = 0;
  uint64_t depth_max = 0;
  uint64_t retries = 0;
  uint64_t short_reads = 0;
  uint64_t bounced = 0;
  uint64_t downgrades = 0;  // 1 once direct reads were given up for the page cache
  std::array<uint64_t, 32> size_histogram = {};  // index: floor(log2(bytes of a read))
};

// When a read began and ended, in nanoseconds of the steady clock.
struct ReadTimes {
  int64_t begun_ns;
  int64_t ended_ns;
};

class ReadMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // Further reads are not noted, so that memory stays bounded.
  static constexpr size_t kTimesMax = size_t{1} << 18;

  Clock::time_point begin_read(uint64_t bytes);
  void end_read(Clock::time_point begun);  // with what begin_read gave
  void count_retry();
  void count_downgrade();
  void count_short_read();
  void count_run(uint64_t bytes_useful, bool bounced);
  ReadStats stats() const;
  LatencyHistogram latencies() const;  // of reads that have ended; apart, since it has 1,856 bins

  // From now on, or no longer, the times of reads are noted; forgets those that are.
  void keep_times(bool keep);

  // Those of reads that have ended since they were last taken.
  std::vector<ReadTimes> take_times();

 private:
  void advance_locked();

  mutable std::mutex mutex_;
  ReadStats stats_;
  LatencyHistogram latencies_;
  uint64_t depth_ = 0;
  Clock::time_point changed_ = {};
  bool keeps_times_ = false;
  std::vector<ReadTimes> times_;
};

}  // namespace flash_core
