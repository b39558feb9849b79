// Sources for tests: bytes in memory, and another source made to fail by a script; and a ring that
// reads from any of them, so that what holds for threads is seen to hold for a ring.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "reader.h"
#include "source.h"
#include "testing.h"

// A case for each way of reading: its body has the argument `backend`.
#define TEST_BACKENDS(name)                           \
  static void name(Backend backend);                  \
  TEST(name##_by_threads) { name(Backend::threads); } \
  TEST(name##_on_a_ring) { name(Backend::uring); }    \
  static void name(Backend backend)

namespace flash_core {

// Reads when it is entered, no more than it must, and what came last first. It throws where the
// rules of a ring are broken.
class SourceRing final : public Ring {
 public:
  SourceRing(Source* source, size_t depth) : source_(source), depth_(depth) {}

  void begin() override { owner_ = std::this_thread::get_id(); }
  void push(const iovec* vectors, int count, uint64_t offset, size_t tag) override;
  void enter(size_t least) override;
  bool pop(RingResult* result) override;

 private:
  struct Request {
    const iovec* vectors;
    int count;
    uint64_t offset;
    size_t tag;
  };

  void check(bool holds) const;

  Source* source_;
  size_t depth_;
  std::thread::id owner_;
  std::vector<Request> requests_;
  std::deque<RingResult> results_;
};

// A source that has such a ring.
class RingedSource : public Source {
 public:
  std::unique_ptr<Ring> open_ring(unsigned depth, std::string*) override {
    return std::make_unique<SourceRing>(this, depth);
  }
};

// Bytes in memory that insists on the alignment it was given, as a direct file would.
class MemorySource final : public RingedSource {
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
class FaultySource final : public RingedSource {
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
