#include "read_run.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.h"

namespace flash_core {

namespace {

Span span_of(const Piece* pieces, size_t count, uint64_t alignment) {
  const Checked start = Checked(pieces[0].offset).round_down(alignment);
  const Piece& last = pieces[count - 1];
  const Checked end = Checked(last.offset) + Checked(last.length);
  const uint64_t rounded = end.round_up(alignment).get();
  return {start.get(), rounded - start.get(), end.get() - start.get()};
}

}  // namespace

void Scatter::to_pieces(const Piece* pieces, size_t count, uint8_t* target, uint8_t* scratch) {
  uint64_t position = pieces[0].offset;
  for (size_t i = 0; i < count; ++i) {
    if (pieces[i].offset > position) add(scratch, pieces[i].offset - position);
    add(target + pieces[i].destination, pieces[i].length);
    position = pieces[i].offset + pieces[i].length;
  }
}

size_t Scatter::rest(uint64_t skip, iovec* out) const {
  size_t count = 0;
  for (size_t i = 0; i < count_; ++i) {
    const uint64_t drop = std::min<uint64_t>(skip, vectors_[i].iov_len);
    skip -= drop;
    if (drop == vectors_[i].iov_len) continue;
    out[count++] = {static_cast<uint8_t*>(vectors_[i].iov_base) + drop,
                    vectors_[i].iov_len - static_cast<size_t>(drop)};
  }
  return count;
}

int64_t scratch_bytes(const ReadLimits& limits) {
  const Checked rounding = Checked(2) * Checked(limits.alignment);
  return static_cast<int64_t>((Checked(limits.piece_bytes) + rounding).get());
}

RunRead::RunRead(const RunContext& context, const ReadPlan& plan, const Run& run, uint8_t* target)
    : context_(context),
      pieces_(plan.pieces.data() + run.first),
      run_(run),
      target_(target),
      span_(span_of(pieces_, run.count, context.source->alignment())) {
  if (run.bounced) {
    scatter_.to_scratch(span_, context.scratch->data());
  } else {
    scatter_.to_pieces(pieces_, run.count, target, context.scratch->data());
  }
}

RunRead::Request RunRead::begin() {
  resume_ = done_ - done_ % context_.source->alignment();
  const size_t count = scatter_.rest(resume_, vectors_.data());
  begun_ = context_.meter->begin_read(span_.length - resume_);
  return {vectors_.data(), static_cast<int>(count), span_.start + resume_};
}

bool RunRead::end(ssize_t result) {
  context_.meter->end_read(begun_);
  if (result < 0) {
    const int code = static_cast<int>(-result);
    if (!may_pass(code)) {
      throw DeviceError(code,
                        std::string(std::strerror(code)) + ", reading " +
                            std::to_string(span_.length - resume_) + " bytes at offset " +
                            std::to_string(span_.start + resume_),
                        *context_.path);
    }
    context_.meter->count_retry();
    return true;
  }
  const uint64_t reached = resume_ + static_cast<uint64_t>(result);
  if (reached <= done_) {
    throw EndOfFile(*context_.path + ": the file ends at offset " +
                    std::to_string(span_.start + reached));
  }
  done_ = reached;
  if (done_ < span_.needed) {
    context_.meter->count_short_read();
    retries_ = Retries();  // counted anew for each place that a read starts from
    return true;
  }
  finish();
  return false;
}

bool RunRead::may_pass(int code) {
  return code == EINVAL ? stop_direct() : retries_.may_pass(code);
}

// EINVAL says that the read cannot be made as it is, so it is made through the page cache, and all
// others from then on. Those that are in flight may be refused as well, and find it done before.
bool RunRead::stop_direct() {
  if (std::exchange(refused_, true)) return false;
  const DirectStopped stopped = context_.source->stop_direct();
  if (stopped == DirectStopped::now) context_.meter->count_downgrade();
  return stopped != DirectStopped::not_direct;
}

void RunRead::finish() {
  uint64_t useful = 0;
  for (size_t i = 0; i < run_.count; ++i) {
    useful += pieces_[i].length;
    if (run_.bounced) {
      std::memcpy(target_ + pieces_[i].destination,
                  context_.scratch->data() + (pieces_[i].offset - span_.start), pieces_[i].length);
    }
  }
  context_.meter->count_run(useful, run_.bounced);
}

void read_run(const RunContext& context, const ReadPlan& plan, const Run& run, uint8_t* target) {
  RunRead read(context, plan, run, target);
  bool more = true;
  while (more) {
    const RunRead::Request next = read.begin();
    more = read.end(context.source->read(next.vectors, next.count, next.offset));
  }
}

}  // namespace flash_core
