// Values in memory of somebody else's.
#pragma once

#include <cstddef>

namespace flash_core {

template <class T>
struct View {
  T* data;
  size_t size;
};

}  // namespace flash_core
