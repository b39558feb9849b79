// One run of a plan, read to its end: short reads resumed, passing failures tried again.
#pragma once

#include <array>
#include <string>

#include "buffer.h"
#include "read_meter.h"
#include "read_plan.h"
#include "retries.h"
#include "source.h"

namespace flash_core {

struct RunContext {
  Source* source;
  const std::string* path;  // for messages
  ReadMeter* meter;
  Buffer* scratch;  // of this run: scratch_bytes() of it
};

// What a run needs at most for its gaps, or to be bounced.
int64_t scratch_bytes(const ReadLimits& limits);

// The range of the file that serves a run, rounded out to the alignment.
struct Span {
  uint64_t start;
  uint64_t length;
  uint64_t needed;  // bytes from start that the pieces want
};

// Where the bytes of a read go: the whole span into the scratch, or piece by piece into place
// with the gaps into the scratch, one over the other since nobody looks at them.
class Scatter {
 public:
  using Vectors = std::array<iovec, 2 * kPiecesPerRun>;

  void to_scratch(const Span& span, uint8_t* scratch) { add(scratch, span.length); }
  void to_pieces(const Piece* pieces, size_t count, uint8_t* target, uint8_t* scratch);

  // The vectors that are left when `skip` bytes have been read.
  size_t rest(uint64_t skip, iovec* out) const;

 private:
  void add(uint8_t* address, uint64_t length) {
    vectors_[count_++] = {address, static_cast<size_t>(length)};
  }

  Vectors vectors_;
  size_t count_ = 0;
};

// A run while it is read, whoever makes the reads: each is asked for by begin() and its result
// given to end(). Writes nothing outside the destinations of the run's pieces.
class RunRead {
 public:
  struct Request {
    const iovec* vectors;  // until end()
    int count;
    uint64_t offset;
  };

  // The plan and the target live as long.
  RunRead(const RunContext& context, const ReadPlan& plan, const Run& run, uint8_t* target);

  Request begin();

  // With what Source::read gave: whether there is more to read. DeviceError, EndOfFile.
  bool end(ssize_t result);

 private:
  bool may_pass(int code);
  bool stop_direct();
  void finish();

  RunContext context_;
  const Piece* pieces_;
  Run run_;
  uint8_t* target_;
  Span span_;
  Scatter scatter_;
  Scatter::Vectors vectors_;
  ReadMeter::Clock::time_point begun_ = {};
  uint64_t resume_ = 0;  // bytes of the span that the read begun now follows
  uint64_t done_ = 0;
  Retries retries_;
  bool refused_ = false;  // a read was, by EINVAL
};

// DeviceError, EndOfFile.
void read_run(const RunContext& context, const ReadPlan& plan, const Run& run, uint8_t* target);

}  // namespace flash_core
