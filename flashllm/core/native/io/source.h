// Where bytes come from: a few functions, and the back-ends that stand behind them.
//
// A source is used by many threads at once; none of these functions changes anything that
// another thread could see, but stop_direct, and the script of a FaultySource, which has a lock.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ring.h"

namespace flash_core {

// What a call of Source::stop_direct found.
enum class DirectStopped { not_direct, now, before };

class Source {
 public:
  Source() = default;
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Bytes when it was opened; it may be shorter by now.
  virtual uint64_t size() const = 0;

  // What offsets, lengths and addresses of a read must be multiples of; 1 for anything.
  virtual size_t alignment() const = 0;

  // One read at an offset into `count` vectors: bytes read, fewer at the end of the file or where
  // the system liked it so; or minus an errno.
  virtual ssize_t read(const iovec* vectors, int count, uint64_t offset) = 0;

  // Makes the reads that begin from now on go through the page cache, which takes what direct I/O
  // refuses. `not_direct` where they always did, or must not.
  virtual DirectStopped stop_direct() { return DirectStopped::not_direct; }

  // Gives the file back; nothing is read any more. The facts above stay.
  virtual void close() {}

  // What a cache of the system holds of a range goes, so that the next read is of the device.
  virtual void forget(uint64_t offset, uint64_t length) {
    static_cast<void>(offset);
    static_cast<void>(length);
  }

  // The same reads with that many in flight on one thread, where the source can; else none and
  // why. The source lives as long.
  virtual std::unique_ptr<Ring> open_ring(unsigned depth, std::string* problem) {
    static_cast<void>(depth);
    *problem = "no ring for this source";
    return nullptr;
  }
};

}  // namespace flash_core
