// The runs that are in flight on a ring. One thread; no lock.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buffer.h"
#include "read_meter.h"
#include "read_run.h"
#include "ring.h"
#include "source.h"

namespace flash_core {

class RingReads {
 public:
  struct Finished {
    size_t slot;
    std::exception_ptr error;
  };

  RingReads(Ring* ring, Source* source, const std::string* path, ReadMeter* meter, size_t depth,
            const ReadLimits& limits);

  bool has_room() const { return !free_.empty(); }
  size_t in_flight() const { return slots_.size() - free_.size(); }

  // A slot for a run, while there is room.
  size_t take();

  // Its first read; the plan and the target live until it is finished.
  void start(size_t slot, const ReadPlan& plan, const Run& run, uint8_t* target);

  // Waits for results, while something is in flight; the runs that ended by them.
  std::vector<Finished>& collect();

 private:
  struct Slot {
    explicit Slot(int64_t nbytes) : scratch(nbytes) {}
    Buffer scratch;
    std::optional<RunRead> read;
  };

  void push(size_t slot);

  Ring* ring_;
  RunContext context_;
  std::deque<Slot> slots_;
  std::vector<size_t> free_;
  std::vector<Finished> finished_;
};

}  // namespace flash_core
