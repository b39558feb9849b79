#include "read_run.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "errors.h"

namespace flash_core {

namespace {

constexpr int kEioRetries = 2;
constexpr int kTransientRetries = 1000;

// The range of the file that serves a run, rounded out to the alignment.
struct Span {
  uint64_t start;
  uint64_t length;
  uint64_t needed;  // bytes from start that the pieces want
};

Span span_of(const Piece* pieces, size_t count, uint64_t alignment) {
  const Checked start = Checked(pieces[0].offset).round_down(alignment);
  const Piece& last = pieces[count - 1];
  const Checked end = Checked(last.offset) + Checked(last.length);
  const uint64_t rounded = end.round_up(alignment).get();
  return {start.get(), rounded - start.get(), end.get() - start.get()};
}

// Where the bytes of a read go: the whole span into the scratch, or piece by piece into place
// with the gaps into the scratch, one over the other since nobody looks at them.
class Scatter {
 public:
  void to_scratch(const Span& span, uint8_t* scratch) { add(scratch, span.length); }

  void to_pieces(const Piece* pieces, size_t count, uint8_t* target, uint8_t* scratch) {
    uint64_t position = pieces[0].offset;
    for (size_t i = 0; i < count; ++i) {
      if (pieces[i].offset > position) add(scratch, pieces[i].offset - position);
      add(target + pieces[i].destination, pieces[i].length);
      position = pieces[i].offset + pieces[i].length;
    }
  }

  // The vectors that are left when `skip` bytes have been read.
  size_t rest(uint64_t skip, iovec* out) const {
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

 private:
  void add(uint8_t* address, uint64_t length) {
    vectors_[count_++] = {address, static_cast<size_t>(length)};
  }

  std::array<iovec, 2 * kPiecesPerRun> vectors_;
  size_t count_ = 0;
};

bool may_pass(int code, int* eio_left, int* transient_left) {
  if (code == EIO) return (*eio_left)-- > 0;
  if (code == EINTR || code == EAGAIN) return (*transient_left)-- > 0;
  return false;
}

uint64_t attempt(const RunContext& context, const iovec* vectors, size_t count, uint64_t offset,
                 uint64_t length) {
  int eio_left = kEioRetries;
  int transient_left = kTransientRetries;
  while (true) {
    const auto begun = context.meter->begin_read(length);
    const ssize_t got = context.source->read(vectors, static_cast<int>(count), offset);
    context.meter->end_read(begun);
    if (got >= 0) return static_cast<uint64_t>(got);
    const int code = static_cast<int>(-got);
    if (!may_pass(code, &eio_left, &transient_left)) {
      throw DeviceError(code,
                        std::string(std::strerror(code)) + ", reading " + std::to_string(length) +
                            " bytes at offset " + std::to_string(offset),
                        *context.path);
    }
    context.meter->count_retry();
  }
}

}  // namespace

int64_t scratch_bytes(const ReadLimits& limits) {
  const Checked rounding = Checked(2) * Checked(limits.alignment);
  return static_cast<int64_t>((Checked(limits.piece_bytes) + rounding).get());
}

void read_run(const RunContext& context, const ReadPlan& plan, const Run& run, uint8_t* target) {
  const Piece* pieces = plan.pieces.data() + run.first;
  const uint64_t alignment = context.source->alignment();
  const Span span = span_of(pieces, run.count, alignment);
  Scatter scatter;
  if (run.bounced) {
    scatter.to_scratch(span, context.scratch->data());
  } else {
    scatter.to_pieces(pieces, run.count, target, context.scratch->data());
  }
  std::array<iovec, 2 * kPiecesPerRun> vectors;
  uint64_t done = 0;
  while (done < span.needed) {
    const uint64_t resume = done - done % alignment;
    const size_t count = scatter.rest(resume, vectors.data());
    const uint64_t got =
        attempt(context, vectors.data(), count, span.start + resume, span.length - resume);
    if (resume + got <= done) {
      throw EndOfFile(*context.path + ": the file ends at offset " +
                      std::to_string(span.start + resume + got));
    }
    done = resume + got;
    if (done < span.needed) context.meter->count_short_read();
  }
  uint64_t useful = 0;
  for (size_t i = 0; i < run.count; ++i) {
    useful += pieces[i].length;
    if (run.bounced) {
      std::memcpy(target + pieces[i].destination,
                  context.scratch->data() + (pieces[i].offset - span.start), pieces[i].length);
    }
  }
  context.meter->count_run(useful, run.bounced);
}

}  // namespace flash_core
