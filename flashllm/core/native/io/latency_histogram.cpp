#include "latency_histogram.h"

#include <algorithm>

namespace flash_core {

namespace {

constexpr uint64_t kBinsPerGroup = uint64_t{1} << LatencyHistogram::kBinBits;

}  // namespace

// The top seven bits of a time of 128 ns or more, without the first of them, are its bin within
// the group, and the number of bits below them is the group, counted from 1.
size_t LatencyHistogram::bin_of(uint64_t ns) {
  if (ns < 2 * kBinsPerGroup) return static_cast<size_t>(ns);
  const size_t shift = 63 - static_cast<size_t>(__builtin_clzll(ns)) - kBinBits;
  const size_t bin = (shift << kBinBits) + static_cast<size_t>(ns >> shift);
  return std::min(bin, kBins - 1);
}

uint64_t LatencyHistogram::first_ns(size_t bin) {
  if (bin < 2 * kBinsPerGroup) return bin;
  const size_t shift = (bin >> kBinBits) - 1;
  return (kBinsPerGroup + bin % kBinsPerGroup) << shift;
}

void LatencyHistogram::merge(const LatencyHistogram& other) {
  for (size_t bin = 0; bin < kBins; ++bin) counts_[bin] += other.counts_[bin];
}

}  // namespace flash_core
