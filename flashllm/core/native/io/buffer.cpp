#include "buffer.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>

#include "checked.h"

namespace flash_core {

namespace {
constexpr uint64_t kPageBytes = 4096;
}

Buffer::Buffer(int64_t nbytes) {
  if (nbytes <= 0) {
    throw std::invalid_argument("a buffer of " + std::to_string(nbytes) + " bytes");
  }
  size_ = static_cast<size_t>(nbytes);
  capacity_ = static_cast<size_t>(Checked(size_).round_up(kPageBytes).get());
  void* memory =
      mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Rows are read from anywhere in it: with small pages the look-up of addresses costs a quarter.
  madvise(memory, capacity_, MADV_HUGEPAGE);
#endif
  data_ = static_cast<uint8_t*>(memory);
}

void Buffer::discard(int64_t begin, int64_t nbytes) {
  const auto size = static_cast<int64_t>(size_);
  if (begin < 0 || nbytes < 0 || begin > size || nbytes > size - begin) {
    throw std::invalid_argument(std::to_string(nbytes) + " bytes at " + std::to_string(begin) +
                                " of a buffer of " + std::to_string(size_));
  }
  const uint64_t first = Checked(static_cast<size_t>(begin)).round_up(kPageBytes).get();
  const uint64_t end = static_cast<uint64_t>(begin + nbytes) / kPageBytes * kPageBytes;
  if (first < end) madvise(data_ + first, end - first, MADV_DONTNEED);
}

Buffer::~Buffer() { munmap(data_, capacity_); }

}  // namespace flash_core
