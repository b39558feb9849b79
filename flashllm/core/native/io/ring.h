// Many positioned reads of one file in flight, all started and collected by one thread.
//
// Goals: what io_uring offers, small enough that tests can put something else in its place.
// Not goals: anything but reads.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace flash_core {

struct RingResult {
  size_t tag;
  ssize_t result;  // as of Source::read
};

class Ring {
 public:
  Ring() = default;
  virtual ~Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Called first, by the thread that alone calls what follows.
  virtual void begin() = 0;

  // One more read, no more of them than the ring was made for. The vectors and their memory live
  // until its result was taken.
  virtual void push(const iovec* vectors, int count, uint64_t offset, size_t tag) = 0;

  // Starts what was pushed, and waits until there are `least` results to take.
  virtual void enter(size_t least) = 0;

  // False if there is none.
  virtual bool pop(RingResult* result) = 0;
};

}  // namespace flash_core
