// The plan of a batch of reads, held against arithmetic of 128 bits; and small plans carried out
// from a source that fails, shortens its reads and ends early.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "errors.h"
#include "fuzz_input.h"
#include "read_meter.h"
#include "read_plan.h"
#include "read_run.h"
#include "test_sources.h"

using namespace flash_core;

namespace {

using Wide = __int128;

constexpr size_t kRequestsMax = 40;
constexpr int64_t kSmallFile = 96 << 10;
constexpr int64_t kSmallBuffer = 64 << 10;
constexpr uint64_t kPiecesMax = 64;  // of one request, so that a plan stays small
constexpr uint8_t kUntouched = 0xA5;

struct PlanCase {
  ReadLimits limits;
  bool is_small;  // so small that its reads are made
  uint64_t file_bytes;
  uint64_t buffer_bytes;
  int64_t length;
  std::vector<int64_t> offsets;
  std::vector<int64_t> destinations;

  Batch batch() const { return {offsets.data(), destinations.data(), offsets.size(), length}; }
};

int64_t pick_offset(FuzzInput* input, const PlanCase& one, int64_t before) {
  switch (input->byte() % 4) {
    case 0:
      return input->any();
    case 1:
      return input->within(0, kSmallFile);
    case 2:
      return input->within(0, 255) * (one.length & 0xFFFF);
    default:
      return static_cast<int64_t>(static_cast<uint64_t>(before) +
                                  static_cast<uint64_t>(one.length) +
                                  static_cast<uint64_t>(input->within(-1, 700)));
  }
}

PlanCase make_case(FuzzInput* input) {
  constexpr uint64_t kAlignments[] = {1, 512, 4096};
  PlanCase one = {};
  one.limits.alignment = kAlignments[input->byte() % 3];
  one.limits.piece_bytes = one.limits.alignment * static_cast<uint64_t>(input->within(1, 64));
  one.limits.gap_bytes =
      static_cast<uint64_t>(input->flag() ? input->within(0, 9000) : input->any() & INT64_MAX);
  one.is_small = input->flag();
  if (one.is_small) {
    one.file_bytes = static_cast<uint64_t>(input->within(0, kSmallFile));
    one.buffer_bytes = static_cast<uint64_t>(input->within(1, kSmallBuffer));
    one.length = input->within(-1, 8191);
  } else {
    one.file_bytes = static_cast<uint64_t>(input->any());
    one.buffer_bytes = static_cast<uint64_t>(input->any());
    one.length = input->any();
  }
  if (one.length > 0 && static_cast<uint64_t>(one.length) / one.limits.piece_bytes >= kPiecesMax) {
    one.limits.piece_bytes = uint64_t{1} << 62;
    one.is_small = false;
  }
  const size_t count = input->size_within(0, kRequestsMax);
  int64_t before = 0;
  for (size_t i = 0; i < count; ++i) {
    before = pick_offset(input, one, before);
    one.offsets.push_back(before);
    const auto place = static_cast<uint64_t>(i) * static_cast<uint64_t>(one.length);
    one.destinations.push_back(input->byte() % 8 == 0 ? input->any() : static_cast<int64_t>(place));
  }
  return one;
}

bool is_inside(int64_t position, int64_t length, uint64_t limit) {
  return position >= 0 && Wide{position} + length <= Wide{limit};
}

bool is_valid(const PlanCase& one) {
  if (one.length <= 0) return false;
  for (size_t i = 0; i < one.offsets.size(); ++i) {
    if (!is_inside(one.offsets[i], one.length, one.file_bytes) ||
        !is_inside(one.destinations[i], one.length, one.buffer_bytes)) {
      return false;
    }
    for (size_t k = 0; k < i; ++k) {
      const Wide apart = Wide{one.destinations[i]} - one.destinations[k];
      if (-one.length < apart && apart < one.length) return false;
    }
  }
  return true;
}

using Place = std::tuple<uint64_t, uint64_t, uint64_t>;  // offset, length, destination

std::vector<Place> wanted_pieces(const PlanCase& one) {
  std::vector<Place> pieces;
  const auto length = static_cast<uint64_t>(one.length);
  for (size_t i = 0; i < one.offsets.size(); ++i) {
    for (uint64_t done = 0; done < length;) {
      const uint64_t take = std::min(length - done, one.limits.piece_bytes);
      pieces.emplace_back(static_cast<uint64_t>(one.offsets[i]) + done, take,
                          static_cast<uint64_t>(one.destinations[i]) + done);
      done += take;
    }
  }
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

bool is_aligned(const Piece& piece, uint64_t alignment) {
  return piece.offset % alignment == 0 && piece.length % alignment == 0 &&
         piece.destination % alignment == 0;
}

void check_run(const ReadPlan& plan, const Run& run, const ReadLimits& limits) {
  REQUIRE(run.count >= 1 && run.count <= kPiecesPerRun);
  const Piece* pieces = plan.pieces.data() + run.first;
  bool bounced = false;
  for (size_t i = 0; i < run.count; ++i) {
    bounced |= !is_aligned(pieces[i], limits.alignment);
    if (i == 0) continue;
    const uint64_t end = pieces[i - 1].offset + pieces[i - 1].length;
    REQUIRE(pieces[i].offset >= end && pieces[i].offset - end <= limits.gap_bytes);
  }
  REQUIRE(run.bounced == bounced);
  const Piece& last = pieces[run.count - 1];
  REQUIRE(last.offset + last.length - pieces[0].offset <= limits.piece_bytes);
}

void check_plan(const PlanCase& one, const ReadPlan& plan) {
  size_t next = 0;
  for (const Run& run : plan.runs) {
    REQUIRE(run.first == next);
    next += run.count;
    REQUIRE(next <= plan.pieces.size());
    check_run(plan, run, one.limits);
  }
  REQUIRE(next == plan.pieces.size());
  std::vector<Place> found;
  for (const Piece& piece : plan.pieces) {
    found.emplace_back(piece.offset, piece.length, piece.destination);
  }
  std::sort(found.begin(), found.end());
  REQUIRE(found == wanted_pieces(one));
}

struct Script {
  std::deque<Fault> faults;
  bool may_fail = false;  // with an errno
  bool may_end = false;   // a read of no progress, which counts as the end of the file
};

Script make_script(FuzzInput* input, uint64_t alignment) {
  constexpr int kErrors[] = {EINTR, EAGAIN, EIO, EINVAL, ENOMEM};
  Script script;
  const size_t count = input->size_within(0, 7);
  for (size_t i = 0; i < count; ++i) {
    Fault fault;
    switch (input->byte() % 3) {
      case 0:
        fault = {Fault::Kind::fail, kErrors[input->byte() % 5]};
        script.may_fail = true;
        break;
      case 1:
        fault = {Fault::Kind::shorten, input->within(0, 5000)};
        script.may_end |= fault.value == 0 || alignment > 1;
        break;
      default:
        break;
    }
    script.faults.push_back(fault);
  }
  return script;
}

// The run's bytes are in place if it succeeded; returns whether it did.
bool carry_out(const RunContext& context, const ReadPlan& plan, const Run& run, Buffer* target,
               const Script& script, bool is_cut) {
  try {
    read_run(context, plan, run, target->data());
    return true;
  } catch (const DeviceError&) {
    REQUIRE(script.may_fail);
  } catch (const EndOfFile&) {
    REQUIRE(script.may_end || is_cut);
  }
  return false;
}

void read_all(const PlanCase& one, const ReadPlan& plan, FuzzInput* input) {
  std::vector<uint8_t> file(static_cast<size_t>(one.file_bytes));
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<uint8_t>(i * 131 + (i >> 8));
  std::vector<uint8_t> kept = file;
  const bool is_cut = input->byte() % 4 == 0;
  if (is_cut) kept.resize(input->size_within(0, kept.size()));
  const Script script = make_script(input, one.limits.alignment);
  FaultySource source(std::make_unique<MemorySource>(kept, one.limits.alignment), script.faults);
  ReadMeter meter;
  Buffer scratch(scratch_bytes(one.limits));
  Buffer target(static_cast<int64_t>(one.buffer_bytes));
  std::memset(target.data(), kUntouched, target.size());
  std::vector<uint8_t> expected(target.data(), target.data() + target.size());
  const std::string path = "file";
  for (const Run& run : plan.runs) {
    const bool is_done =
        carry_out({&source, &path, &meter, &scratch}, plan, run, &target, script, is_cut);
    for (size_t i = 0; i < run.count; ++i) {
      const Piece& piece = plan.pieces[run.first + i];
      // What a failed run leaves in its own destinations is nobody's business.
      const uint8_t* from =
          is_done ? file.data() + piece.offset : target.data() + piece.destination;
      std::memcpy(expected.data() + piece.destination, from, static_cast<size_t>(piece.length));
    }
  }
  REQUIRE(std::memcmp(expected.data(), target.data(), expected.size()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const PlanCase one = make_case(&input);
  ReadPlan plan;
  bool is_accepted = true;
  try {
    plan = plan_reads(one.batch(), one.file_bytes, one.buffer_bytes, one.limits);
  } catch (const std::out_of_range&) {
    is_accepted = false;
  } catch (const std::invalid_argument&) {
    is_accepted = false;
  }
  REQUIRE(is_accepted == is_valid(one));
  if (!is_accepted) return 0;
  check_plan(one, plan);
  if (one.is_small) read_all(one, plan, &input);
  return 0;
}
