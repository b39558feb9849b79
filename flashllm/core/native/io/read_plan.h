// From a batch of requests to the reads that serve it. Pure: no file, no thread.
//
// Requests are cut into pieces of at most `piece_bytes`, sorted by offset, and neighbours within
// `gap_bytes` become one run, which is one read of at most `piece_bytes` (its rounding apart).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checked.h"

namespace flash_core {

struct Piece {
  uint64_t offset;       // in the file
  uint64_t length;       // useful bytes
  uint64_t destination;  // in the buffer
};

struct Run {
  size_t first;  // of the pieces
  size_t count;
  bool bounced;  // something in it is not aligned: read into a scratch, then copied
};

struct ReadPlan {
  std::vector<Piece> pieces;  // ascending by offset
  std::vector<Run> runs;
};

struct ReadLimits {
  uint64_t gap_bytes;
  uint64_t piece_bytes;  // a multiple of alignment
  uint64_t alignment;
};

struct Batch {
  const int64_t* offsets;       // [count]
  const int64_t* destinations;  // [count]
  size_t count;
  int64_t length;  // of every request
};

// Pieces of one run: with a gap before each, they are still fewer than the vectors (IOV_MAX,
// 1024) that a call may have.
constexpr size_t kPiecesPerRun = 256;

// out_of_range for what lies outside the file or the buffer; invalid_argument for a length of
// nothing and for destinations that overlap.
ReadPlan plan_reads(const Batch& batch, uint64_t file_bytes, uint64_t buffer_bytes,
                    const ReadLimits& limits);

}  // namespace flash_core
