#include "ring_reads.h"

namespace flash_core {

RingReads::RingReads(Ring* ring, Source* source, const std::string* path, ReadMeter* meter,
                     size_t depth, const ReadLimits& limits)
    : ring_(ring), context_{source, path, meter, nullptr} {
  for (size_t i = 0; i < depth; ++i) {
    slots_.emplace_back(scratch_bytes(limits));
    free_.push_back(depth - 1 - i);
  }
  finished_.reserve(depth);
}

size_t RingReads::take() {
  const size_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void RingReads::start(size_t slot, const ReadPlan& plan, const Run& run, uint8_t* target) {
  RunContext context = context_;
  context.scratch = &slots_[slot].scratch;
  slots_[slot].read.emplace(context, plan, run, target);
  push(slot);
}

void RingReads::push(size_t slot) {
  const RunRead::Request next = slots_[slot].read->begin();
  ring_->push(next.vectors, next.count, next.offset, slot);
}

std::vector<RingReads::Finished>& RingReads::collect() {
  finished_.clear();
  // One result: to wait for more saves no processor time, and delays what is queued meanwhile.
  ring_->enter(1);
  RingResult next = {};
  while (ring_->pop(&next)) {
    std::exception_ptr error;
    try {
      if (slots_[next.tag].read->end(next.result)) {
        push(next.tag);
        continue;
      }
    } catch (...) {
      error = std::current_exception();
    }
    free_.push_back(next.tag);
    finished_.push_back({next.tag, error});
  }
  return finished_;
}

}  // namespace flash_core
