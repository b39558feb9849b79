// One run of a plan, read to its end: short reads resumed, passing failures tried again.
#pragma once

#include <string>

#include "buffer.h"
#include "read_meter.h"
#include "read_plan.h"
#include "source.h"

namespace flash_core {

struct RunContext {
  Source* source;
  const std::string* path;  // for messages
  ReadMeter* meter;
  Buffer* scratch;  // of this thread: scratch_bytes() of it
};

// What a thread needs for the gaps and the bounced reads of runs of a plan.
int64_t scratch_bytes(const ReadLimits& limits);

// DeviceError, EndOfFile. Writes nothing outside the destinations of the run's pieces.
void read_run(const RunContext& context, const ReadPlan& plan, const Run& run, uint8_t* target);

}  // namespace flash_core
