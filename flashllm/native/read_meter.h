// Counts what readers ask of the device. One lock: a count is a few tens of nanoseconds, a read
// tens of microseconds.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace flash_core {

struct ReadStats {
  uint64_t bytes_read = 0;    // asked from the device: gaps, rounding and retries included
  uint64_t bytes_useful = 0;  // wanted by the requests
  uint64_t reads = 0;
  uint64_t busy_ns = 0;   // time with at least one read in flight
  uint64_t depth_ns = 0;  // integral of the number in flight: depth_ns / busy_ns is its mean
  uint64_t depth_max = 0;
  uint64_t retries = 0;
  uint64_t short_reads = 0;
  uint64_t bounced = 0;
  std::array<uint64_t, 32> size_histogram = {};  // index: floor(log2(bytes of a read))
};

class ReadMeter {
 public:
  void begin_read(uint64_t bytes);
  void end_read();
  void count_retry();
  void count_short_read();
  void count_run(uint64_t bytes_useful, bool bounced);
  ReadStats stats() const;

 private:
  using Clock = std::chrono::steady_clock;
  void advance_locked();

  mutable std::mutex mutex_;
  ReadStats stats_;
  uint64_t depth_ = 0;
  Clock::time_point changed_ = {};
};

}  // namespace flash_core
