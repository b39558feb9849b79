#include "read_plan.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace flash_core {

namespace {

void check_inside(int64_t position, int64_t length, uint64_t limit, const char* name) {
  const Checked end = Checked::from_signed(position, name) + Checked::from_signed(length, "length");
  if (end > Checked(limit)) {
    throw std::out_of_range(std::string(name) + " " + std::to_string(position) + " + " +
                            std::to_string(length) + " bytes is outside " + std::to_string(limit) +
                            " bytes");
  }
}

void check_batch(const Batch& batch, uint64_t file_bytes, uint64_t buffer_bytes) {
  if (batch.length <= 0) {
    throw std::invalid_argument("length is " + std::to_string(batch.length));
  }
  for (size_t i = 0; i < batch.count; ++i) {
    check_inside(batch.offsets[i], batch.length, file_bytes, "offset");
    check_inside(batch.destinations[i], batch.length, buffer_bytes, "destination");
  }
  std::vector<int64_t> sorted(batch.destinations, batch.destinations + batch.count);
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i] - sorted[i - 1] < batch.length) {
      throw std::invalid_argument("destinations overlap at " + std::to_string(sorted[i]));
    }
  }
}

std::vector<size_t> order_by_offset(const Batch& batch) {
  std::vector<size_t> order(batch.count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&batch](size_t left, size_t right) {
    return batch.offsets[left] < batch.offsets[right];
  });
  return order;
}

bool joins(const ReadPlan& plan, const Run& run, const Piece& piece, const ReadLimits& limits) {
  const Piece& first = plan.pieces[run.first];
  const Piece& last = plan.pieces[run.first + run.count - 1];
  const uint64_t last_end = last.offset + last.length;  // inside the file: cannot wrap
  return run.count < kPiecesPerRun && piece.offset >= last_end &&
         piece.offset - last_end <= limits.gap_bytes &&
         piece.offset + piece.length - first.offset <= limits.piece_bytes;
}

void append(ReadPlan* plan, const Piece& piece, const ReadLimits& limits) {
  const bool bounced = (piece.offset % limits.alignment) != 0 ||
                       (piece.length % limits.alignment) != 0 ||
                       (piece.destination % limits.alignment) != 0;
  if (!plan->runs.empty() && joins(*plan, plan->runs.back(), piece, limits)) {
    ++plan->runs.back().count;
    plan->runs.back().bounced |= bounced;
  } else {
    plan->runs.push_back({plan->pieces.size(), 1, bounced});
  }
  plan->pieces.push_back(piece);
}

}  // namespace

ReadPlan plan_reads(const Batch& batch, uint64_t file_bytes, uint64_t buffer_bytes,
                    const ReadLimits& limits) {
  check_batch(batch, file_bytes, buffer_bytes);
  ReadPlan plan;
  plan.pieces.reserve(batch.count);
  const auto length = static_cast<uint64_t>(batch.length);
  for (const size_t i : order_by_offset(batch)) {
    const auto offset = static_cast<uint64_t>(batch.offsets[i]);
    const auto destination = static_cast<uint64_t>(batch.destinations[i]);
    for (uint64_t done = 0; done < length; done += limits.piece_bytes) {
      const uint64_t take = std::min(limits.piece_bytes, length - done);
      append(&plan, {offset + done, take, destination + done}, limits);
    }
  }
  return plan;
}

}  // namespace flash_core
