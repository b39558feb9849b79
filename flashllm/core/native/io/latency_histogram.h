// How long reads took, as counts in bins whose width grows with the time: the log-linear design of
// fio (its stat.h): 64 bins for each power of two, 29 groups of them.
//
// Up to 127 ns a bin is one nanosecond; beyond, taking the middle of a bin for a time in it is
// wrong by less than 1/128 (0.78 %). Times past the last bin (17 s) are counted in it.
// Constant memory; histograms of different threads or spans of time are added bin by bin.
// Threads: none of its own, and no lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flash_core {

class LatencyHistogram {
 public:
  static constexpr size_t kBinBits = 6;
  static constexpr size_t kGroups = 29;
  static constexpr size_t kBins = kGroups << kBinBits;

  static size_t bin_of(uint64_t ns);
  static uint64_t first_ns(size_t bin);  // the least time that is counted in a bin below kBins

  void add(uint64_t ns) { ++counts_[bin_of(ns)]; }
  void merge(const LatencyHistogram& other);
  const std::array<uint64_t, kBins>& counts() const { return counts_; }

 private:
  std::array<uint64_t, kBins> counts_ = {};
};

}  // namespace flash_core
