#include "buffer.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>

#include "checked.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace flash_core {

namespace {

constexpr uint64_t kPageBytes = 4096;

// AddressSanitizer knows the ends of malloc's memory, not of mmap's: it is told of a page that
// only its builds have behind the last byte.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kGuardBytes = kPageBytes;
void guard(const uint8_t* begin, size_t bytes) { ASAN_POISON_MEMORY_REGION(begin, bytes); }
void unguard(const uint8_t* begin, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(begin, bytes); }
#else
constexpr uint64_t kGuardBytes = 0;
void guard(const uint8_t* /*begin*/, size_t /*bytes*/) {}
void unguard(const uint8_t* /*begin*/, size_t /*bytes*/) {}
#endif

}  // namespace

Buffer::Buffer(int64_t nbytes, bool huge_pages) {
  if (nbytes <= 0) {
    throw std::invalid_argument("a buffer of " + std::to_string(nbytes) + " bytes");
  }
  size_ = static_cast<size_t>(nbytes);
  capacity_ =
      static_cast<size_t>((Checked(size_).round_up(kPageBytes) + Checked(kGuardBytes)).get());
  void* memory =
      mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Rows are read from anywhere in it: with small pages the look-up of addresses costs a quarter.
  madvise(memory, capacity_, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
  static_cast<void>(huge_pages);
#endif
  data_ = static_cast<uint8_t*>(memory);
  guard(data_ + size_, capacity_ - size_);
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

Buffer::~Buffer() {
  unguard(data_ + size_, capacity_ - size_);
  munmap(data_, capacity_);
}

}  // namespace flash_core
