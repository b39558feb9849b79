#include "mutations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace fuzzing {

namespace {

constexpr std::array<uint64_t, 12> kNumbers = {0,
                                               1,
                                               0x7F,
                                               0x80,
                                               0xFF,
                                               0x7FFF,
                                               0x8000,
                                               0xFFFF,
                                               0x7FFFFFFF,
                                               0x80000000,
                                               0x7FFFFFFFFFFFFFFF,
                                               0xFFFFFFFFFFFFFFFF};

class Mutation {
 public:
  Mutation(Bytes* bytes, const std::vector<Bytes>& inputs, size_t bytes_max,
           std::mt19937_64* random)
      : bytes_(*bytes), inputs_(inputs), bytes_max_(bytes_max), random_(*random) {}

  void apply() {
    if (bytes_.empty()) {
      insert();
      return;
    }
    switch (below(8)) {
      case 0:
        bytes_[below(bytes_.size())] ^= static_cast<uint8_t>(1U << below(8));
        break;
      case 1:
        bytes_[below(bytes_.size())] = static_cast<uint8_t>(random_());
        break;
      case 2:
        bytes_[below(bytes_.size())] += static_cast<uint8_t>(below(33) - 16);
        break;
      case 3:
        put_number();
        break;
      case 4:
        remove();
        break;
      case 5:
        insert();
        break;
      case 6:
        copy_within();
        break;
      default:
        cross();
    }
  }

 private:
  size_t below(size_t end) { return static_cast<size_t>(random_() % end); }

  // Short as a rule.
  size_t some_length(size_t most) {
    return 1 + below(std::min(most, below(4) == 0 ? most : size_t{8}));
  }

  void put_number() {
    const size_t size = std::min<size_t>(size_t{1} << below(4), bytes_.size());
    const uint64_t number = kNumbers[below(kNumbers.size())];
    std::memcpy(bytes_.data() + below(bytes_.size() - size + 1), &number, size);
  }

  void remove() {
    const size_t count = some_length(bytes_.size());
    const auto first =
        bytes_.begin() + static_cast<std::ptrdiff_t>(below(bytes_.size() - count + 1));
    bytes_.erase(first, first + static_cast<std::ptrdiff_t>(count));
  }

  void insert() {
    if (bytes_.size() >= bytes_max_) return;
    Bytes more(some_length(std::min<size_t>(bytes_max_ - bytes_.size(), 64)));
    const bool is_constant = below(2) == 0;
    for (uint8_t& byte : more) byte = is_constant ? uint8_t{0} : static_cast<uint8_t>(random_());
    insert_at(below(bytes_.size() + 1), more);
  }

  void copy_within() {
    const size_t count = some_length(bytes_.size());
    const size_t from = below(bytes_.size() - count + 1);
    const Bytes part(bytes_.begin() + static_cast<std::ptrdiff_t>(from),
                     bytes_.begin() + static_cast<std::ptrdiff_t>(from + count));
    if (below(2) == 0) {
      std::copy(part.begin(), part.end(),
                bytes_.begin() + static_cast<std::ptrdiff_t>(below(bytes_.size() - count + 1)));
    } else {
      insert_at(below(bytes_.size() + 1), part);
    }
  }

  // The beginning of this one and the end of another.
  void cross() {
    const Bytes& other = inputs_[below(inputs_.size())];
    if (other.empty()) return;
    bytes_.resize(below(bytes_.size() + 1));
    const size_t from =
        below(2) == 0 ? std::min(bytes_.size(), other.size() - 1) : below(other.size());
    bytes_.insert(bytes_.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
  }

  void insert_at(size_t place, const Bytes& more) {
    bytes_.insert(bytes_.begin() + static_cast<std::ptrdiff_t>(place), more.begin(), more.end());
  }

  Bytes& bytes_;
  const std::vector<Bytes>& inputs_;
  size_t bytes_max_;
  std::mt19937_64& random_;
};

}  // namespace

Bytes mutated(const std::vector<Bytes>& inputs, size_t bytes_max, std::mt19937_64* random) {
  Bytes bytes;
  if (!inputs.empty()) bytes = inputs[(*random)() % inputs.size()];
  const auto changes = static_cast<int>(1 + (*random)() % 5);
  const std::vector<Bytes> nothing = {{}};
  const std::vector<Bytes>& others = inputs.empty() ? nothing : inputs;
  for (int i = 0; i < changes; ++i) Mutation(&bytes, others, bytes_max, random).apply();
  if (bytes.size() > bytes_max) bytes.resize(bytes_max);
  return bytes;
}

}  // namespace fuzzing
