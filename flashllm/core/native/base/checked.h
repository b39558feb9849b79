// A size or an offset that cannot wrap around.
//
// Goal: every sum and product of numbers that came from outside goes through this type, so that
// no bounds check is ever made on a value that has already overflowed.
// Not a goal: subtraction, signed results, speed in inner loops.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace flash_core {

class Checked {
 public:
  constexpr explicit Checked(uint64_t value) : value_(value) {}

  // `name` says in the message which argument was negative.
  static Checked from_signed(int64_t value, const char* name) {
    if (value < 0) {
      throw std::out_of_range(std::string(name) + " is negative: " + std::to_string(value));
    }
    return Checked(static_cast<uint64_t>(value));
  }

  Checked operator+(Checked other) const {
    uint64_t sum = 0;
    if (__builtin_add_overflow(value_, other.value_, &sum)) overflow();
    return Checked(sum);
  }

  Checked operator*(Checked other) const {
    uint64_t product = 0;
    if (__builtin_mul_overflow(value_, other.value_, &product)) overflow();
    return Checked(product);
  }

  Checked round_up(uint64_t alignment) const {
    const uint64_t rest = value_ % alignment;
    return rest == 0 ? *this : *this + Checked(alignment - rest);
  }

  Checked round_down(uint64_t alignment) const { return Checked(value_ - value_ % alignment); }

  bool operator<(Checked other) const { return value_ < other.value_; }
  bool operator>(Checked other) const { return value_ > other.value_; }
  bool operator<=(Checked other) const { return value_ <= other.value_; }
  bool operator==(Checked other) const { return value_ == other.value_; }
  bool operator!=(Checked other) const { return value_ != other.value_; }

  constexpr uint64_t get() const { return value_; }

 private:
  [[noreturn]] static void overflow() { throw std::out_of_range("a size exceeds 64 bits"); }

  uint64_t value_;
};

}  // namespace flash_core
