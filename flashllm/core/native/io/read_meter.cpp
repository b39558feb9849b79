#include "read_meter.h"

#include <algorithm>

namespace flash_core {

namespace {

size_t floor_log2(uint64_t value) {
  size_t result = 0;
  while (value >>= 1) ++result;
  return result;
}

uint64_t nanoseconds(ReadMeter::Clock::duration elapsed) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
}

int64_t steady_ns(ReadMeter::Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

}  // namespace

// Adds the time since the last change at the depth that held until now.
void ReadMeter::advance_locked() {
  const Clock::time_point now = Clock::now();
  if (depth_ > 0) {
    const uint64_t elapsed_ns = nanoseconds(now - changed_);
    stats_.busy_ns += elapsed_ns;
    stats_.depth_ns += elapsed_ns * depth_;
  }
  changed_ = now;
}

ReadMeter::Clock::time_point ReadMeter::begin_read(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  advance_locked();
  ++depth_;
  ++stats_.reads;
  stats_.bytes_read += bytes;
  stats_.depth_max = std::max(stats_.depth_max, depth_);
  ++stats_.size_histogram[std::min(floor_log2(bytes), stats_.size_histogram.size() - 1)];
  return changed_;
}

void ReadMeter::end_read(Clock::time_point begun) {
  const std::lock_guard<std::mutex> lock(mutex_);
  advance_locked();
  --depth_;
  latencies_.add(nanoseconds(changed_ - begun));
  if (keeps_times_ && times_.size() < kTimesMax) {
    times_.push_back({steady_ns(begun), steady_ns(changed_)});
  }
}

void ReadMeter::keep_times(bool keep) {
  std::vector<ReadTimes> room;
  if (keep) room.reserve(kTimesMax);
  const std::lock_guard<std::mutex> lock(mutex_);
  keeps_times_ = keep;
  times_.swap(room);
}

std::vector<ReadTimes> ReadMeter::take_times() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ReadTimes> taken(times_);
  times_.clear();
  return taken;
}

void ReadMeter::count_retry() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.retries;
}

void ReadMeter::count_downgrade() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.downgrades;
}

void ReadMeter::count_short_read() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.short_reads;
}

void ReadMeter::count_run(uint64_t bytes_useful, bool bounced) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_.bytes_useful += bytes_useful;
  stats_.bounced += bounced ? 1 : 0;
}

ReadStats ReadMeter::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

LatencyHistogram ReadMeter::latencies() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return latencies_;
}

}  // namespace flash_core
