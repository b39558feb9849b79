// Anonymous page-aligned memory: allocated once, zero, never moved, touched when first used.
//
// Lifetime: readers hold a shared_ptr while reads are in flight, so that memory that nobody else
// wants any more is still there when the device writes into it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flash_core {

class Buffer {
 public:
  // invalid_argument unless nbytes > 0; bad_alloc where there is no such memory. Without
  // `huge_pages`, what is touched here and there takes as little memory as it can.
  explicit Buffer(int64_t nbytes, bool huge_pages = true);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Gives the whole pages within these bytes back to the system, as far as it takes them; what they
  // held is lost. Nothing may be on its way into them. invalid_argument for bytes outside.
  void discard(int64_t begin, int64_t nbytes);

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace flash_core
