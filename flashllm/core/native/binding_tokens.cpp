// Products that go together, routing, and what lies between products, for Python: types in, types
// out, as in binding.cpp.
#include <stdexcept>
#include <string>

#include "binding_arrays.h"
#include "routing.h"
#include "token_rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flash_core {

namespace {

// Rows may lie apart, as those of half of a matrix do.
using Rows2 = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

void check_like(const char* name, const Rows2& rows, const Rectangle<float>& out) {
  if (rows.shape(0) != out.shape(0) || rows.shape(1) != out.shape(1)) {
    throw std::invalid_argument(std::string(name) + " is [" + std::to_string(rows.shape(0)) + ", " +
                                std::to_string(rows.shape(1)) + "]; [" +
                                std::to_string(out.shape(0)) + ", " + std::to_string(out.shape(1)) +
                                "] was expected");
  }
  if (rows.shape(1) > 1 && rows.stride(1) != 1) {
    throw std::invalid_argument(std::string(name) + "'s columns must follow one another");
  }
}

void gates(const Rows2& gate, const std::optional<Rows2>& up, float slope, float limit,
           float up_offset, const Rectangle<float>& out) {
  check_like("gate", gate, out);
  if (up) check_like("up", *up, out);
  gate_rows({gate.data(), gate.stride(0), up ? up->data() : nullptr, up ? up->stride(0) : 0, slope,
             limit, up_offset, matrix(out)});
}

}  // namespace

void define_token_rows(nb::module_& m, nb::class_<Kernels>& kernels) {
  kernels
      .def(
          "matmul_several",
          [](Kernels& self, const std::vector<Array<const uint8_t>>& rows, const std::string& dtype,
             const std::vector<Optional<const float>>& biases, const Rectangle<const float>& x,
             const std::vector<Rectangle<float>>& outs, bool tiled) {
            if (biases.size() != rows.size() || outs.size() != rows.size()) {
              throw std::invalid_argument(std::to_string(biases.size()) + " biases and " +
                                          std::to_string(outs.size()) + " outs for " +
                                          std::to_string(rows.size()) + " matrices");
            }
            std::vector<SharedProduct> products;
            for (size_t i = 0; i < rows.size(); ++i) {
              products.push_back({view(rows[i]), view(biases[i]), matrix(outs[i])});
            }
            const nb::gil_scoped_release released;
            self.matmul_several(products, parse_dtype(dtype), matrix(x), tiled);
          },
          "rows"_a.noconvert(), "dtype"_a, "biases"_a.noconvert(), "x"_a.noconvert(),
          "outs"_a.noconvert(), "tiled"_a = false)
      .def(
          "apply_experts",
          [](Kernels& self, const Array<const uint8_t>& data, const Array<const int64_t>& begins,
             const std::string& dtype, bool has_biases, float slope, float limit, float up_offset,
             const Rectangle<const float>& x, const Rectangle<float>& room,
             const Rectangle<float>& out, const Optional<const float>& weights,
             const Optional<float>& total) {
            self.apply_experts({view(data), view(begins), parse_dtype(dtype), has_biases, slope,
                                limit, up_offset, matrix(x), matrix(room), matrix(out),
                                view(weights), view(total)});
          },
          "data"_a.noconvert(), "begins"_a.noconvert(), "dtype"_a, "has_biases"_a, "slope"_a,
          "limit"_a, "up_offset"_a, "x"_a.noconvert(), "room"_a.noconvert(), "out"_a.noconvert(),
          "weights"_a.noconvert() = nb::none(), "total"_a.noconvert() = nb::none(), Released())
      .def(
          "route",
          [](Kernels& self, const Array<const uint8_t>& rows, const std::string& dtype,
             const Optional<const float>& bias, const Optional<const float>& choice_bias,
             int64_t per_token, bool sigmoid, int64_t groups, int64_t groups_kept, bool renormalise,
             float sum_offset, float weight_scale, const Array<const float>& x,
             const Array<int32_t>& ids, const Array<float>& weights) {
            return self.route(
                {view(rows),
                 parse_dtype(dtype),
                 view(bias),
                 view(choice_bias),
                 {per_token, sigmoid, groups, groups_kept, renormalise, sum_offset, weight_scale},
                 view(x),
                 view(ids),
                 view(weights)});
          },
          "rows"_a.noconvert(), "dtype"_a, "bias"_a.noconvert().none(),
          "choice_bias"_a.noconvert().none(), "per_token"_a, "sigmoid"_a, "groups"_a,
          "groups_kept"_a, "renormalise"_a, "sum_offset"_a, "weight_scale"_a, "x"_a.noconvert(),
          "ids"_a.noconvert(), "weights"_a.noconvert(), Released())
      .def(
          "norm_rows",
          [](Kernels& self, const Rectangle<const float>& x, const Optional<const float>& weight,
             const Optional<const float>& bias, bool centred, double eps,
             const Rectangle<float>& out) {
            self.norm_rows({matrix(x), view(weight), view(bias), centred, eps, matrix(out)});
          },
          "x"_a.noconvert(), "weight"_a.noconvert().none(), "bias"_a.noconvert().none(),
          "centred"_a, "eps"_a, "out"_a.noconvert(), Released())
      .def(
          "place_heads",
          [](Kernels& self, const Rectangle<const float>& x, int64_t columns,
             const Optional<const float>& weight, double eps,
             const std::optional<Rectangle<const float>>& cos,
             const std::optional<Rectangle<const float>>& sin, const Array<float>& out) {
            self.place_heads(
                {matrix(x), columns, view(weight), eps, matrix(cos), matrix(sin), view(out)});
          },
          "x"_a.noconvert(), "columns"_a, "weight"_a.noconvert().none(), "eps"_a,
          "cos"_a.noconvert().none(), "sin"_a.noconvert().none(), "out"_a.noconvert(), Released())
      .def(
          "add_shares",
          [](Kernels& self, const Rectangle<const float>& rows, const Array<const float>& weights,
             const Array<const int32_t>& ids, const Rectangle<float>& out) {
            self.add_shares({matrix(rows), view(weights), view(ids), matrix(out)});
          },
          "rows"_a.noconvert(), "weights"_a.noconvert(), "ids"_a.noconvert(), "out"_a.noconvert(),
          Released());
  m.def("gate_rows", &gates, "gate"_a.noconvert(), "up"_a.noconvert().none(), "slope"_a, "limit"_a,
        "up_offset"_a, "out"_a.noconvert(), Released());
  m.def(
      "gelu",
      [](const Array<const float>& x, bool exact, const Array<float>& out) {
        gelu({view(x), exact, view(out)});
      },
      "x"_a.noconvert(), "exact"_a, "out"_a.noconvert(), Released());
  // With the interpreter's lock held: of one token it takes some microseconds.
  m.def(
      "expert_weights",
      [](const Rectangle<const float>& logits, const Optional<const float>& choice_bias,
         int64_t per_token, bool sigmoid, int64_t groups, int64_t groups_kept, bool renormalise,
         float sum_offset, float weight_scale, const Rectangle<float>& weights) {
        expert_weights(
            matrix(logits), view(choice_bias),
            {per_token, sigmoid, groups, groups_kept, renormalise, sum_offset, weight_scale},
            matrix(weights));
      },
      "logits"_a.noconvert(), "choice_bias"_a.noconvert().none(), "per_token"_a, "sigmoid"_a,
      "groups"_a, "groups_kept"_a, "renormalise"_a, "sum_offset"_a, "weight_scale"_a,
      "weights"_a.noconvert());
}

}  // namespace flash_core
