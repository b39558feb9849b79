// Attention for Python: types in, types out, as in binding.cpp.
#include <string>
#include <vector>

#include "attention.h"
#include "binding_arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace flash_core {

void define_attention(nb::class_<Kernels>& kernels) {
  kernels
      .def(
          "attend",
          [](Kernels& self, const Array<const float>& query, const Array<const uint8_t>& keys,
             const Array<const uint8_t>& values, const std::string& dtype, int64_t columns,
             int64_t kv_heads, int64_t first, int64_t end, float scale, const Array<float>& out,
             const Optional<const float>& sinks) {
            self.attend({view(query),
                         view(keys),
                         view(values),
                         {parse_dtype(dtype), columns, kv_heads},
                         {first, end},
                         scale,
                         view(out),
                         view(sinks)});
          },
          "query"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), "dtype"_a,
          "columns"_a, "kv_heads"_a, "first"_a, "end"_a, "scale"_a, "out"_a.noconvert(),
          "sinks"_a.noconvert() = nb::none(), Released())
      .def(
          "attend_projected",
          [](Kernels& self, const Array<const float>& query, const Array<const float>& key,
             const Array<const float>& value, const Optional<const float>& query_norm,
             const Optional<const float>& key_norm, double eps, const Optional<const float>& cos,
             const Optional<const float>& sin, const Array<uint8_t>& keys,
             const Array<uint8_t>& values, const std::string& dtype, int64_t columns,
             int64_t kv_heads, int64_t first, int64_t position, float scale,
             const Array<float>& out, const Optional<const float>& sinks) {
            self.attend_projected({view(query),
                                   view(key),
                                   view(value),
                                   view(query_norm),
                                   view(key_norm),
                                   eps,
                                   view(cos),
                                   view(sin),
                                   view(keys),
                                   view(values),
                                   {parse_dtype(dtype), columns, kv_heads},
                                   first,
                                   position,
                                   scale,
                                   view(out),
                                   view(sinks)});
          },
          "query"_a.noconvert(), "key"_a.noconvert(), "value"_a.noconvert(),
          "query_norm"_a.noconvert().none(), "key_norm"_a.noconvert().none(), "eps"_a,
          "cos"_a.noconvert().none(), "sin"_a.noconvert().none(), "keys"_a.noconvert(),
          "values"_a.noconvert(), "dtype"_a, "columns"_a, "kv_heads"_a, "first"_a, "position"_a,
          "scale"_a, "out"_a.noconvert(), "sinks"_a.noconvert() = nb::none(), Released())
      .def(
          "attend_each",
          [](Kernels& self, const Rectangle<const float>& query,
             const std::vector<Array<const uint8_t>>& keys,
             const std::vector<Array<const uint8_t>>& values, const std::string& dtype,
             int64_t columns, int64_t kv_heads, const Array<const int64_t>& ends, int64_t window,
             float scale, const Rectangle<float>& out, const Optional<const float>& sinks) {
            self.attend_each({matrix(query),
                              views(keys),
                              views(values),
                              {parse_dtype(dtype), columns, kv_heads},
                              view(ends),
                              window,
                              scale,
                              matrix(out),
                              view(sinks)});
          },
          "query"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), "dtype"_a,
          "columns"_a, "kv_heads"_a, "ends"_a.noconvert(), "window"_a, "scale"_a,
          "out"_a.noconvert(), "sinks"_a.noconvert() = nb::none(), Released())
      .def(
          "attend_many",
          [](Kernels& self, const Array<const float>& query, const Array<const uint8_t>& keys,
             const Array<const uint8_t>& values, const std::string& dtype, int64_t columns,
             int64_t kv_heads, int64_t tokens, int64_t end, int64_t window, float scale,
             const Array<float>& out, const Optional<const float>& sinks) {
            self.attend_many({view(query),
                              view(keys),
                              view(values),
                              {parse_dtype(dtype), columns, kv_heads},
                              tokens,
                              end,
                              window,
                              scale,
                              view(out),
                              view(sinks)});
          },
          "query"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), "dtype"_a,
          "columns"_a, "kv_heads"_a, "tokens"_a, "end"_a, "window"_a, "scale"_a,
          "out"_a.noconvert(), "sinks"_a.noconvert() = nb::none(), Released())
      .def(
          "attend_runs",
          [](Kernels& self, const Array<const float>& query, const Array<const uint8_t>& keys,
             const Array<const uint8_t>& values, const std::string& dtype, int64_t columns,
             const Rectangle<const int64_t>& runs, const Array<const int32_t>& run_ends,
             float scale, const Array<float>& out, const Optional<const float>& sinks) {
            self.attend_runs({view(query), view(keys), view(values), parse_dtype(dtype), columns,
                              matrix(runs), view(run_ends), scale, view(out), view(sinks)});
          },
          "query"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), "dtype"_a,
          "columns"_a, "runs"_a.noconvert(), "run_ends"_a.noconvert(), "scale"_a,
          "out"_a.noconvert(), "sinks"_a.noconvert() = nb::none(), Released())
      .def(
          "attend_many_runs",
          [](Kernels& self, const Array<const float>& query, const Array<const uint8_t>& keys,
             const Array<const uint8_t>& values, const std::string& dtype, int64_t columns,
             const Rectangle<const int64_t>& runs, const Array<const int32_t>& run_ends,
             int64_t tokens, int64_t window, float scale, const Array<float>& out,
             const Optional<const float>& sinks) {
            self.attend_many_runs(
                {{view(query), view(keys), view(values), parse_dtype(dtype), columns, matrix(runs),
                  view(run_ends), scale, view(out), view(sinks)},
                 tokens,
                 window});
          },
          "query"_a.noconvert(), "keys"_a.noconvert(), "values"_a.noconvert(), "dtype"_a,
          "columns"_a, "runs"_a.noconvert(), "run_ends"_a.noconvert(), "tokens"_a, "window"_a,
          "scale"_a, "out"_a.noconvert(), "sinks"_a.noconvert() = nb::none(), Released())
      .def(
          "write_head_rows",
          [](Kernels& self, const Array<const float>& values, const std::string& dtype,
             int64_t columns, int64_t kv_heads, int64_t position, const Array<uint8_t>& cache) {
            self.write_head_rows({parse_dtype(dtype), columns, kv_heads}, view(values), position,
                                 view(cache));
          },
          "values"_a.noconvert(), "dtype"_a, "columns"_a, "kv_heads"_a, "position"_a,
          "cache"_a.noconvert(), Released())
      .def(
          "write_head_rows_each",
          [](Kernels& self, const Rectangle<const float>& values, const std::string& dtype,
             int64_t columns, int64_t kv_heads, const Array<const int64_t>& positions,
             const std::vector<Array<uint8_t>>& caches) {
            self.write_head_rows_each({matrix(values),
                                       {parse_dtype(dtype), columns, kv_heads},
                                       view(positions),
                                       views(caches)});
          },
          "values"_a.noconvert(), "dtype"_a, "columns"_a, "kv_heads"_a, "positions"_a.noconvert(),
          "caches"_a.noconvert(), Released());
}

}  // namespace flash_core
