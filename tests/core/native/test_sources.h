// Back-ends for tests: bytes in memory, and another source made to fail by a script.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "source.h"

namespace flash_core {

// Bytes in memory that insists on the alignment it was given, as a direct file would.
class MemorySource final : public Source {
 public:
  MemorySource(std::vector<uint8_t> bytes, size_t alignment);

  uint64_t size() const override { return bytes_.size(); }
  size_t alignment() const override { return alignment_; }
  ssize_t read(const iovec* vectors, int count, uint64_t offset) override;

 private:
  std::vector<uint8_t> bytes_;
  size_t alignment_;
};

// One thing that happens to one read.
struct Fault {
  enum class Kind { none, fail, shorten, delay, flip };
  Kind kind = Kind::none;
  int64_t value = 0;  // an errno, a number of bytes, milliseconds, or the bit to flip
};

// The first read meets the first fault, and so on; after the last the last one is repeated
// where `forever` says so, else nothing happens any more.
class FaultySource final : public Source {
 public:
  FaultySource(std::unique_ptr<Source> inner, std::deque<Fault> script, bool forever = false);

  uint64_t size() const override { return inner_->size(); }
  size_t alignment() const override { return inner_->alignment(); }
  ssize_t read(const iovec* vectors, int count, uint64_t offset) override;

 private:
  Fault next_fault();

  std::unique_ptr<Source> inner_;
  std::mutex mutex_;
  std::deque<Fault> script_;
  bool forever_;
};

}  // namespace flash_core
