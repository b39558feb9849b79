// Arrays of Python as the library's views.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "kernels.h"
#include "view.h"

namespace flash_core {

namespace nb = nanobind;

template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Released = nb::call_guard<nb::gil_scoped_release>;

template <class T>
View<T> view(const Array<T>& array) {
  return {array.data(), array.size()};
}

template <class T>
using Optional = std::optional<Array<T>>;

template <class T>
View<T> view(const Optional<T>& array) {
  return array ? view(*array) : View<T>{nullptr, 0};
}

template <class T>
std::vector<View<T>> views(const std::vector<Array<T>>& arrays) {
  std::vector<View<T>> found;
  for (const Array<T>& array : arrays) found.push_back(view(array));
  return found;
}

template <class T>
using Rectangle = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
Matrix<T> matrix(const Rectangle<T>& array) {
  return {array.data(), array.shape(0), array.shape(1)};
}

template <class T>
Matrix<T> matrix(const std::optional<Rectangle<T>>& array) {
  return array ? matrix(*array) : Matrix<T>{nullptr, 0, 0};
}

// Of keys and values: binding_attention.cpp.
void define_attention(nb::class_<Kernels>& kernels);

// What lies between a token's products, and those that go together: binding_tokens.cpp.
void define_token_rows(nb::module_& m, nb::class_<Kernels>& kernels);

}  // namespace flash_core
