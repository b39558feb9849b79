// The histogram of latencies against fio's bounds, and the plain stream over memory.
#include <cstring>
#include <limits>

#include "latency_histogram.h"
#include "memory_read.h"
#include "read_meter.h"
#include "testing.h"

using namespace flash_core;

namespace {

constexpr size_t kBins = LatencyHistogram::kBins;

}  // namespace

TEST(latency_bins_follow_each_other_without_gap_or_overlap) {
  CHECK(kBins == 1856);
  for (size_t bin = 0; bin + 1 < kBins; ++bin) {
    const uint64_t first = LatencyHistogram::first_ns(bin);
    const uint64_t next = LatencyHistogram::first_ns(bin + 1);
    CHECK(next > first);
    CHECK(LatencyHistogram::bin_of(first) == bin);
    CHECK(LatencyHistogram::bin_of(next - 1) == bin);
    // The middle of the bin is at most 1/128 away from anything in it.
    CHECK(bin < 128 ? next - first == 1 : (next - first) * 64 <= first);
  }
}

TEST(latencies_past_the_last_bin_are_counted_in_it) {
  const uint64_t last = LatencyHistogram::first_ns(kBins - 1);
  CHECK(last > 16'000'000'000);
  for (const uint64_t ns : {last, last * 2, std::numeric_limits<uint64_t>::max()}) {
    CHECK(LatencyHistogram::bin_of(ns) == kBins - 1);
  }
}

TEST(latencies_of_two_histograms_add_up) {
  LatencyHistogram one;
  LatencyHistogram two;
  for (uint64_t ns = 1; ns < 1'000'000'000; ns = ns * 3 + 1) one.add(ns);
  two.add(5);
  two.add(70'000);
  const LatencyHistogram before = one;
  one.merge(two);
  for (size_t bin = 0; bin < kBins; ++bin) {
    CHECK(one.counts()[bin] == before.counts()[bin] + two.counts()[bin]);
  }
}

TEST(every_read_has_one_latency_and_their_sum_is_the_depth) {
  ReadMeter meter;
  const auto first = meter.begin_read(4096);
  const auto second = meter.begin_read(4096);
  meter.end_read(first);
  meter.end_read(second);
  uint64_t counted = 0;
  uint64_t least_ns = 0;
  for (size_t bin = 0; bin < kBins; ++bin) {
    counted += meter.latencies().counts()[bin];
    least_ns += meter.latencies().counts()[bin] * LatencyHistogram::first_ns(bin);
  }
  const ReadStats stats = meter.stats();
  CHECK(counted == 2);
  CHECK(least_ns <= stats.depth_ns && stats.depth_ns <= least_ns + least_ns / 64 + 2);
}

TEST(times_of_reads_are_noted_while_that_is_asked_for) {
  ReadMeter meter;
  meter.end_read(meter.begin_read(1));
  CHECK(meter.take_times().empty());
  meter.keep_times(true);
  const auto first = meter.begin_read(4096);
  const auto second = meter.begin_read(4096);
  meter.end_read(second);
  meter.end_read(first);
  const std::vector<ReadTimes> times = meter.take_times();
  CHECK(times.size() == 2);
  CHECK(times[0].begun_ns >= times[1].begun_ns && times[0].ended_ns <= times[1].ended_ns);
  CHECK(times[1].begun_ns <= times[1].ended_ns);
  CHECK(meter.take_times().empty());
  meter.end_read(meter.begin_read(1));
  meter.keep_times(false);
  CHECK(meter.take_times().empty());
}

TEST(a_stream_reads_memory_of_any_size_and_leaves_it_alone) {
  for (const int64_t nbytes : {1, 63, 4096, 4097, 1 << 20}) {
    Buffer buffer(nbytes);
    std::memset(buffer.data(), 0x5A, buffer.size());
    for (const int threads : {1, 2, 5, 70}) CHECK(stream_read_ns(&buffer, threads) > 0);
    for (size_t i = 0; i < buffer.size(); ++i) CHECK(buffer.data()[i] == 0x5A);
  }
  Buffer buffer(4096);
  CHECK_THROWS(std::invalid_argument, "threads is 0", stream_read_ns(&buffer, 0));
  CHECK_THROWS(std::invalid_argument, "threads is 2000", stream_read_ns(&buffer, 2000));
}

TEST(rows_are_read_to_the_end_of_their_bytes_and_no_further) {
  for (const size_t row_bytes : {1, 63, 64, 200, 4352}) {
    const std::vector<uint8_t> bytes(11 * row_bytes, 0x5A);
    const std::vector<int32_t> ids = {10, 0, 3, 3, 7, 10, 1};
    const auto read = [&](View<const int32_t> which, int threads) {
      return row_read_ns({bytes.data(), bytes.size()}, static_cast<int64_t>(row_bytes), which,
                         threads);
    };
    for (const int threads : {1, 2, 9}) CHECK(read({ids.data(), ids.size()}, threads) > 0);
    CHECK(read({ids.data(), 0}, 2) > 0);
    const int32_t outside = 11;
    CHECK_THROWS(std::out_of_range, "11", read({&outside, 1}, 1));
    const int32_t negative = -1;
    CHECK_THROWS(std::out_of_range, "-1", read({&negative, 1}, 1));
    CHECK_THROWS(std::invalid_argument, "threads is 0", read({ids.data(), ids.size()}, 0));
  }
  CHECK_THROWS(std::invalid_argument, "row_bytes is 0", row_read_ns({nullptr, 0}, 0, {}, 1));
}
