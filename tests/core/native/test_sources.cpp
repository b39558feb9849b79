#include "test_sources.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace flash_core {

void SourceRing::check(bool holds) const {
  if (!holds || std::this_thread::get_id() != owner_) throw std::logic_error("misused ring");
}

void SourceRing::push(const iovec* vectors, int count, uint64_t offset, size_t tag) {
  check(requests_.size() + results_.size() < depth_);
  requests_.push_back({vectors, count, offset, tag});
}

void SourceRing::enter(size_t least) {
  check(least > 0 && least <= requests_.size() + results_.size());
  while (results_.size() < least) {
    const Request next = requests_.back();
    requests_.pop_back();
    results_.push_back({next.tag, source_->read(next.vectors, next.count, next.offset)});
  }
}

bool SourceRing::pop(RingResult* result) {
  check(true);
  if (results_.empty()) return false;
  *result = results_.front();
  results_.pop_front();
  return true;
}

MemorySource::MemorySource(std::vector<uint8_t> bytes, size_t alignment)
    : bytes_(std::move(bytes)), alignment_(alignment) {}

ssize_t MemorySource::read(const iovec* vectors, int count, uint64_t offset) {
  if (offset % alignment_ != 0) return -EINVAL;
  uint64_t position = offset;
  for (int i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(vectors[i].iov_base);
    if (address % alignment_ != 0 || vectors[i].iov_len % alignment_ != 0) return -EINVAL;
    if (position >= bytes_.size()) continue;
    const size_t take = std::min<uint64_t>(vectors[i].iov_len, bytes_.size() - position);
    std::memcpy(vectors[i].iov_base, bytes_.data() + position, take);
    position += take;
  }
  return static_cast<ssize_t>(position - offset);
}

FaultySource::FaultySource(std::unique_ptr<Source> inner, std::deque<Fault> script, bool forever)
    : inner_(std::move(inner)), script_(std::move(script)), forever_(forever) {}

Fault FaultySource::next_fault() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (script_.empty()) return {};
  const Fault fault = script_.front();
  if (!forever_ || script_.size() > 1) script_.pop_front();
  return fault;
}

ssize_t FaultySource::read(const iovec* vectors, int count, uint64_t offset) {
  const Fault fault = next_fault();
  if (fault.kind == Fault::Kind::fail) return -static_cast<ssize_t>(fault.value);
  if (fault.kind == Fault::Kind::delay) {
    std::this_thread::sleep_for(std::chrono::milliseconds(fault.value));
  }
  const ssize_t got = inner_->read(vectors, count, offset);
  if (got <= 0) return got;
  if (fault.kind == Fault::Kind::shorten) return std::min<ssize_t>(got, fault.value);
  if (fault.kind == Fault::Kind::flip) {
    auto* first = static_cast<uint8_t*>(vectors[0].iov_base);
    first[fault.value / 8] ^= static_cast<uint8_t>(1U << (fault.value % 8));
  }
  return got;
}

}  // namespace flash_core
