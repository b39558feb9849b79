// Values in memory of somebody else's.
#pragma once

#include <cstddef>

namespace flash_core {

template <class T>
struct View {
  T* data;
  size_t size;
};

// Row after row of as many values.
template <class T>
struct Matrix {
  T* data;
  size_t rows;
  size_t columns;

  T* row(size_t i) const { return data + i * columns; }
};

}  // namespace flash_core
