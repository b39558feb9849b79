// How fast plain reads of memory are: what any work on weights in DRAM is held against.
#pragma once

#include <cstdint>

#include "buffer.h"
#include "view.h"

namespace flash_core {

// Nanoseconds in which that many threads, each a part of it, read all of a buffer once, with the
// widest loads of this processor: the best of a few passes. Threads are started, and every page
// made real memory, before the clock is. Nobody else may write to the buffer meanwhile; it is not
// changed. invalid_argument for threads outside 1 to 1024.
int64_t stream_read_ns(Buffer* buffer, int threads);

// The same of rows, row number id at byte id * row_bytes, which are read in the order of `ids`,
// each as far as it fills lines of 64 bytes: about what memory gives of rows anywhere.
// out_of_range for an id outside the bytes. Who made the bytes has written to them.
int64_t row_read_ns(View<const uint8_t> bytes, int64_t row_bytes, View<const int32_t> ids,
                    int threads);

}  // namespace flash_core
