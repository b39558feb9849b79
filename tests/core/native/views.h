// Vectors as the core takes them.
#pragma once

#include <vector>

#include "view.h"

namespace flash_core {

template <class T>
View<const T> view(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

template <class T>
View<T> out_view(std::vector<T>* values) {
  return {values->data(), values->size()};
}

}  // namespace flash_core
