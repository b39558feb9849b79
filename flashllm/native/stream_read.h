// How fast plain reads of memory are: what any work on weights in DRAM is held against.
#pragma once

#include <cstdint>

#include "buffer.h"

namespace flash_core {

// Nanoseconds in which that many threads, each a part of it, read all of a buffer once, with the
// widest loads of this processor: the best of a few passes. Threads are started, and every page
// made real memory, before the clock is. Nobody else may write to the buffer meanwhile; it is not
// changed. invalid_argument for threads outside 1 to 1024.
int64_t stream_read_ns(Buffer* buffer, int threads);

}  // namespace flash_core
