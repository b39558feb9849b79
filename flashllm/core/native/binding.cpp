// What knows Python, with binding_attention.cpp and binding_tokens.cpp: types in, types out, the
// interpreter's lock released meanwhile. No logic: what is checked is checked by the library.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "binding_arrays.h"
#include "buffer.h"
#include "crc32c.h"
#include "errors.h"
#include "kernels.h"
#include "memory_read.h"
#include "reader.h"
#include "selection.h"
#include "slot_table.h"

namespace nb = nanobind;
using namespace flash_core;
using namespace nb::literals;

namespace {

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const DeviceError& device) {
    const nb::object arguments = nb::make_tuple(device.code(), device.what(), device.path());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } catch (const EndOfFile& end) {
    PyErr_SetString(PyExc_EOFError, end.what());
  } catch (const ReadCancelled& cancelled) {
    PyErr_SetString(PyExc_InterruptedError, cancelled.what());
  }
}

uint64_t submit(Reader& reader, const Array<const int64_t>& offsets, int64_t length,
                std::shared_ptr<Buffer> buffer, const Array<const int64_t>& destinations,
                bool urgent, bool ahead, bool spans_gaps) {
  if (offsets.size() != destinations.size()) {
    throw std::invalid_argument(std::to_string(offsets.size()) + " offsets for " +
                                std::to_string(destinations.size()) + " destinations");
  }
  const Priority priority = urgent ? Priority::urgent : ahead ? Priority::ahead : Priority::usual;
  return reader.submit({offsets.data(), destinations.data(), offsets.size(), length},
                       std::move(buffer), priority, spans_gaps);
}

void verify_bundles(Reader& reader, const Array<const uint32_t>& checksums,
                    const nb::bytes& file_id, uint64_t data_offset, uint64_t stride,
                    uint64_t bundle_bytes, uint64_t bundles_per_layer, bool always) {
  BundleFile file = {data_offset, stride, bundle_bytes, bundles_per_layer, {}};
  if (file_id.size() != file.file_id.size()) {
    throw std::invalid_argument("file_id must have 16 bytes");
  }
  std::memcpy(file.file_id.data(), file_id.data(), file.file_id.size());
  std::vector<uint32_t> expected(checksums.data(), checksums.data() + checksums.size());
  reader.verify_bundles(std::make_unique<BundleChecks>(file, std::move(expected), always));
}

nb::dict stats(const Reader& reader) {
  const ReadStats now = reader.stats();
  nb::dict result;
  result["bytes_read"] = now.bytes_read;
  result["bytes_useful"] = now.bytes_useful;
  result["reads"] = now.reads;
  result["busy_ns"] = now.busy_ns;
  result["depth_ns"] = now.depth_ns;
  result["depth_max"] = now.depth_max;
  result["retries"] = now.retries;
  result["short_reads"] = now.short_reads;
  result["bounced"] = now.bounced;
  result["downgrades"] = now.downgrades;
  const CheckCounts checks = reader.check_counts();
  result["bundles_verified"] = checks.verified;
  result["bundles_mismatched"] = checks.mismatched;
  result["bundles_damaged"] = checks.damaged;
  result["size_histogram"] =
      std::vector<uint64_t>(now.size_histogram.begin(), now.size_histogram.end());
  return result;
}

// The array owns the vector that it shows.
template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> own(std::unique_ptr<std::vector<T>> values) {
  const size_t count = values->size();
  T* const first = values->data();
  nb::capsule owner(values.release(),
                    [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return {first, {count}, owner};
}

nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>> latency_histogram(const Reader& reader) {
  const LatencyHistogram latencies = reader.latencies();
  return own(std::make_unique<std::vector<uint64_t>>(latencies.counts().begin(),
                                                     latencies.counts().end()));
}

nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> take_read_times(Reader& reader) {
  auto values = std::make_unique<std::vector<int64_t>>();
  for (const ReadTimes& times : reader.take_times()) {
    values->push_back(times.begun_ns);
    values->push_back(times.ended_ns);
  }
  return own(std::move(values));
}

nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>> checksums(const Array<const uint8_t>& data,
                                                        const Array<const int64_t>& begins,
                                                        int64_t bundle_bytes,
                                                        const nb::bytes& file_id, uint32_t layer,
                                                        const Array<const uint32_t>& numbers) {
  if (file_id.size() != 16) throw std::invalid_argument("file_id must have 16 bytes");
  if (begins.size() != numbers.size()) {
    throw std::invalid_argument("as many begins as numbers are needed");
  }
  const ScatteredBundles bundles = {begins.data(), numbers.data(), begins.size(), bundle_bytes};
  const auto* id = static_cast<const uint8_t*>(file_id.data());
  auto values = std::make_unique<std::vector<uint32_t>>();
  {
    const nb::gil_scoped_release released;
    *values = bundle_checksums(data.data(), data.size(), bundles, id, layer);
  }
  return own(std::move(values));
}

void define_reading(nb::module_& m) {
  nb::class_<Buffer>(m, "Buffer")
      .def(nb::init<int64_t, bool>(), "nbytes"_a, "huge_pages"_a = true)
      .def_prop_ro("nbytes", &Buffer::size)
      .def_prop_ro("address",
                   [](const Buffer& self) { return reinterpret_cast<uintptr_t>(self.data()); })
      .def("discard", &Buffer::discard, "begin"_a, "nbytes"_a)
      .def("array", [](nb::handle_t<Buffer> self) {
        const Buffer& buffer = nb::cast<const Buffer&>(self);
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(buffer.data(), {buffer.size()}, self);
      });
  nb::class_<Reader>(m, "Reader")
      .def(
          "__init__",
          [](Reader* self, const std::string& path, const std::string& direct, int threads,
             int64_t gap_bytes, int64_t max_read_bytes, const std::string& backend) {
            new (self) Reader(open_file(path, parse_direct(direct)), path,
                              {threads, gap_bytes, max_read_bytes, parse_backend(backend)});
          },
          "path"_a, "direct"_a = "optional", "threads"_a = 32, "gap_bytes"_a = 0,
          "max_read_bytes"_a = 524288, "backend"_a = "auto")
      .def_prop_ro("direct", &Reader::direct)
      .def_prop_ro("fallback", &Reader::fallback)
      .def_prop_ro("alignment", &Reader::alignment)
      .def_prop_ro("file_bytes", &Reader::file_bytes)
      .def_prop_ro("threads", &Reader::threads)
      .def_prop_ro("backend", &Reader::backend)
      .def_prop_ro("backend_problem", &Reader::backend_problem)
      .def("verify_bundles", &verify_bundles, "checksums"_a.noconvert(), "file_id"_a,
           "data_offset"_a, "stride"_a, "bundle_bytes"_a, "bundles_per_layer"_a, "always"_a = false)
      .def("submit", &submit, "offsets"_a.noconvert(), "length"_a, "buffer"_a,
           "destinations"_a.noconvert(), "urgent"_a = false, "ahead"_a = false,
           "spans_gaps"_a = true, Released())
      .def("hasten", &Reader::hasten, "ticket"_a, Released())
      .def("drop", &Reader::drop, "ticket"_a, Released())
      .def("wait", &Reader::wait, "ticket"_a, Released())
      .def(
          "read",
          [](Reader& self, const Array<const int64_t>& offsets, int64_t length,
             std::shared_ptr<Buffer> buffer, const Array<const int64_t>& destinations) {
            self.wait(
                submit(self, offsets, length, std::move(buffer), destinations, false, false, true));
          },
          "offsets"_a.noconvert(), "length"_a, "buffer"_a, "destinations"_a.noconvert(), Released())
      .def("cancel", &Reader::cancel, Released())
      .def("clear_cancel", &Reader::clear_cancel, Released())
      .def("stats", &stats)
      .def("latency_histogram", &latency_histogram)
      .def("keep_read_times", &Reader::keep_times, "keep"_a)
      .def("take_read_times", &take_read_times)
      .def("close", &Reader::close, Released());
}

// No columns where there are fewer: the library refuses both alike.
size_t positive(int64_t columns) { return columns < 0 ? 0 : static_cast<size_t>(columns); }

nb::class_<Kernels> define_kernels(nb::module_& m) {
  nb::class_<Kernels> kernels(m, "Kernels");
  kernels
      .def(
          "__init__",
          [](Kernels* self, int threads, const std::optional<std::string>& isa, bool fast) {
            new (self) Kernels(threads, isa ? isa->c_str() : nullptr, fast);
          },
          "threads"_a = 1, "isa"_a = nb::none(), "fast"_a = false)
      .def_prop_ro("fast", &Kernels::fast)
      .def_prop_ro("isa", &Kernels::isa)
      .def_prop_ro("threads", &Kernels::threads)
      .def(
          "matvec",
          [](Kernels& self, const Array<const uint8_t>& rows, const std::string& dtype,
             const Array<const float>& x, const Array<float>& out) {
            self.matvec(view(rows), parse_dtype(dtype), view(x), view(out));
          },
          "rows"_a.noconvert(), "dtype"_a, "x"_a.noconvert(), "out"_a.noconvert(), Released())
      .def(
          "matvec_each",
          [](Kernels& self, const Array<const uint8_t>& data, const Array<const int64_t>& begins,
             const std::string& dtype, const Rectangle<const float>& x,
             const Rectangle<float>& out) {
            self.matvec_each(view(data), view(begins), parse_dtype(dtype), matrix(x), matrix(out));
          },
          "data"_a.noconvert(), "begins"_a.noconvert(), "dtype"_a, "x"_a.noconvert(),
          "out"_a.noconvert(), Released())
      .def(
          "dot_rows",
          [](Kernels& self, const Array<const uint8_t>& rows, int64_t row_stride,
             int64_t row_offset, const std::string& dtype, const Array<const int32_t>& ids,
             const Array<const float>& x, const Array<float>& out) {
            self.dot_rows({view(rows), row_stride, row_offset, parse_dtype(dtype)}, view(ids),
                          view(x), view(out));
          },
          "rows"_a.noconvert(), "row_stride"_a, "row_offset"_a, "dtype"_a, "ids"_a.noconvert(),
          "x"_a.noconvert(), "out"_a.noconvert(), Released())
      .def(
          "weighted_sum_rows",
          [](Kernels& self, const Array<const uint8_t>& rows, int64_t row_stride,
             int64_t row_offset, const std::string& dtype, const Array<const int32_t>& ids,
             const Array<const float>& weights, const Array<const int32_t>& block_ends,
             const Array<float>& out) {
            self.weighted_sum_rows({view(rows), row_stride, row_offset, parse_dtype(dtype)},
                                   view(ids), view(weights), view(block_ends), view(out));
          },
          "rows"_a.noconvert(), "row_stride"_a, "row_offset"_a, "dtype"_a, "ids"_a.noconvert(),
          "weights"_a.noconvert(), "block_ends"_a.noconvert(), "out"_a.noconvert(), Released())
      .def(
          "dot_rows_each",
          [](Kernels& self, const Array<const uint8_t>& rows, int64_t row_stride,
             int64_t row_offset, const std::string& dtype, const Array<const int32_t>& ids,
             const Array<const int32_t>& vector_ends, const Array<const float>& x,
             const Array<float>& out) {
            self.dot_rows_each({view(rows), row_stride, row_offset, parse_dtype(dtype)}, view(ids),
                               view(vector_ends), view(x), view(out));
          },
          "rows"_a.noconvert(), "row_stride"_a, "row_offset"_a, "dtype"_a, "ids"_a.noconvert(),
          "vector_ends"_a.noconvert(), "x"_a.noconvert(), "out"_a.noconvert(), Released())
      .def(
          "weighted_sum_rows_each",
          [](Kernels& self, const Array<const uint8_t>& rows, int64_t row_stride,
             int64_t row_offset, const std::string& dtype, const Array<const int32_t>& ids,
             const Array<const float>& weights, const Array<const int32_t>& vector_ends,
             const Array<const int32_t>& block_ends, const Array<float>& out) {
            self.weighted_sum_rows_each({view(rows), row_stride, row_offset, parse_dtype(dtype)},
                                        view(ids), view(weights), view(vector_ends),
                                        view(block_ends), view(out));
          },
          "rows"_a.noconvert(), "row_stride"_a, "row_offset"_a, "dtype"_a, "ids"_a.noconvert(),
          "weights"_a.noconvert(), "vector_ends"_a.noconvert(), "block_ends"_a.noconvert(),
          "out"_a.noconvert(), Released())
      .def(
          "matmul",
          [](Kernels& self, const Array<const uint8_t>& rows, const std::string& dtype,
             const Rectangle<const float>& x, const Rectangle<float>& out, bool tiled) {
            self.matmul(view(rows), parse_dtype(dtype), matrix(x), matrix(out), tiled);
          },
          "rows"_a.noconvert(), "dtype"_a, "x"_a.noconvert(), "out"_a.noconvert(),
          "tiled"_a = false, Released())
      .def(
          "tile_rows",
          [](Kernels& self, const std::string& dtype) {
            return self.tile_rows(parse_dtype(dtype));
          },
          "dtype"_a)
      .def(
          "tile_matrix",
          [](Kernels& self, const Array<uint8_t>& rows, const std::string& dtype, int64_t columns) {
            return self.tile_matrix(view(rows), parse_dtype(dtype), positive(columns));
          },
          "rows"_a.noconvert(), "dtype"_a, "columns"_a, Released())
      .def(
          "dot_rows_all",
          [](Kernels& self, const Array<const uint8_t>& rows, int64_t row_stride,
             int64_t row_offset, const std::string& dtype, const Array<const int32_t>& ids,
             const Rectangle<const float>& x, const Rectangle<float>& out) {
            self.dot_rows_all({view(rows), row_stride, row_offset, parse_dtype(dtype)}, view(ids),
                              matrix(x), matrix(out));
          },
          "rows"_a.noconvert(), "row_stride"_a, "row_offset"_a, "dtype"_a, "ids"_a.noconvert(),
          "x"_a.noconvert(), "out"_a.noconvert(), Released())
      .def(
          "weighted_sum_rows_all",
          [](Kernels& self, const Array<const uint8_t>& rows, int64_t row_stride,
             int64_t row_offset, const std::string& dtype, const Array<const int32_t>& ids,
             const Rectangle<const float>& weights, const Array<const int32_t>& block_ends,
             const Rectangle<float>& out) {
            self.weighted_sum_rows_all({view(rows), row_stride, row_offset, parse_dtype(dtype)},
                                       view(ids), matrix(weights), view(block_ends), matrix(out));
          },
          "rows"_a.noconvert(), "row_stride"_a, "row_offset"_a, "dtype"_a, "ids"_a.noconvert(),
          "weights"_a.noconvert(), "block_ends"_a.noconvert(), "out"_a.noconvert(), Released())
      .def(
          "encode_rows",
          [](Kernels& self, const Array<const float>& values, int64_t columns,
             const std::string& dtype, const Array<uint8_t>& out) {
            self.encode_rows(view(values), positive(columns), parse_dtype(dtype), view(out));
          },
          "values"_a.noconvert(), "columns"_a, "dtype"_a, "out"_a.noconvert(), Released())
      .def(
          "decode_rows",
          [](Kernels& self, const Array<const uint8_t>& rows, int64_t row_stride,
             int64_t row_offset, const std::string& dtype, const Array<const int32_t>& ids,
             int64_t columns, const Array<float>& out) {
            self.decode_rows({view(rows), row_stride, row_offset, parse_dtype(dtype)}, view(ids),
                             positive(columns), view(out));
          },
          "rows"_a.noconvert(), "row_stride"_a, "row_offset"_a, "dtype"_a, "ids"_a.noconvert(),
          "columns"_a, "out"_a.noconvert(), Released())
      .def(
          "decode_tiles",
          [](Kernels& self, const Array<const uint8_t>& rows, const std::string& dtype,
             const Array<const int32_t>& ids, int64_t columns, const Array<float>& out) {
            self.decode_tiles(view(rows), parse_dtype(dtype), view(ids), positive(columns),
                              view(out));
          },
          "rows"_a.noconvert(), "dtype"_a, "ids"_a.noconvert(), "columns"_a, "out"_a.noconvert(),
          Released())
      .def(
          "copy_rows",
          [](Kernels& self, const Array<const uint8_t>& rows, const Array<const int32_t>& row_ids,
             int64_t row_bytes, const Array<uint8_t>& to, const Array<const int32_t>& to_ids) {
            self.copy_rows(view(rows), view(row_ids), row_bytes, view(to), view(to_ids));
          },
          "rows"_a.noconvert(), "row_ids"_a.noconvert(), "row_bytes"_a, "to"_a.noconvert(),
          "to_ids"_a.noconvert(), Released())
      .def("close", &Kernels::close, Released());
  return kernels;
}

// What is shown belongs to the table, and is not to be written to.
using Shown = nb::ndarray<nb::numpy, const int32_t, nb::ndim<1>>;

template <View<const int32_t> (SlotTable::*values)() const>
Shown show(nb::handle_t<SlotTable> self) {
  const View<const int32_t> shown = (nb::cast<const SlotTable&>(self).*values)();
  return Shown(shown.data, {shown.size}, self);
}

// With the interpreter's lock held: the calls take some microseconds, and another thread that gets
// the lock meanwhile may keep it for some milliseconds.
void define_slots(nb::module_& m) {
  nb::class_<SlotTable>(m, "SlotTable")
      .def(
          "__init__",
          [](SlotTable* self, int64_t n_bundles, int64_t n_slots, const std::vector<int>& carried,
             const Array<double>& terms, int64_t first_slot) {
            new (self) SlotTable(n_bundles, n_slots, carried, view(terms), first_slot);
          },
          "n_bundles"_a, "n_slots"_a, "carried"_a, "terms"_a.noconvert(), "first_slot"_a = 0,
          nb::keep_alive<1, 5>())
      .def_prop_ro("slot_of", &show<&SlotTable::slot_of>)
      .def_prop_ro("bundle_in", &show<&SlotTable::bundle_in>)
      .def_prop_ro("prefetched_ids", &show<&SlotTable::prefetched_ids>)
      .def_prop_ro("prefetched_slots", &show<&SlotTable::prefetched_slots>)
      .def_prop_ro("free_slots", &SlotTable::free_slots)
      .def(
          "acquire",
          [](SlotTable& self, const Array<const int32_t>& ids,
             const Array<const int32_t>& in_flight, std::vector<double> scales,
             std::vector<double> added, double expired, const Array<int32_t>& slots,
             const Array<uint8_t>& states) {
            const Counts counts = self.acquire(view(ids), view(in_flight),
                                               {std::move(scales), std::move(added), expired},
                                               {view(slots), view(states)});
            return nb::make_tuple(counts.missing, counts.in_flight, counts.evicted_early);
          },
          "ids"_a.noconvert(), "in_flight"_a.noconvert(), "scales"_a, "added"_a, "expired"_a,
          "slots"_a.noconvert(), "states"_a.noconvert())
      .def(
          "prefetch",
          [](SlotTable& self, const Array<const int32_t>& ids, const std::vector<double>& scales) {
            const Prefetched done = self.prefetch(view(ids), scales);
            return nb::make_tuple(done.count, done.taken);
          },
          "ids"_a.noconvert(), "scales"_a)
      .def(
          "put",
          [](SlotTable& self, const Array<const int32_t>& ids, const Array<const int32_t>& slots) {
            self.put(view(ids), view(slots));
          },
          "ids"_a.noconvert(), "slots"_a.noconvert())
      .def(
          "evict",
          [](SlotTable& self, const Array<const int32_t>& slots) { self.evict(view(slots)); },
          "slots"_a.noconvert())
      .def("clear", &SlotTable::clear)
      .def("limit", &SlotTable::limit, "count"_a);
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Direct reads into memory allocated once, products of encoded rows, tables of slots.";
  m.attr("NAME") = "native";
  // A program that ends in the middle of an answer still holds its model: no leak, and no news.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  nb::exception<ChecksumError>(m, "ChecksumError", PyExc_RuntimeError);
  define_reading(m);
  nb::class_<Kernels> kernels = define_kernels(m);
  define_attention(kernels);
  define_token_rows(m, kernels);
  define_slots(m);
  m.def(
      "row_bytes",
      [](const std::string& dtype, int64_t columns) {
        return row_bytes(parse_dtype(dtype), positive(columns)).get();
      },
      "dtype"_a, "columns"_a);
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const KernelTable* table : available_kernels()) names.emplace_back(table->name);
    return names;
  });
  // With the interpreter's lock held, as the calls of slots are.
  m.def(
      "ids_above",
      [](const Array<const float>& scores, const Array<const float>& limits,
         const Array<int32_t>& ids) { return ids_above(view(scores), view(limits), view(ids)); },
      "scores"_a.noconvert(), "limits"_a.noconvert(), "ids"_a.noconvert());
  m.def(
      "keys_above",
      [](const Array<const float>& scores, const Array<const float>& limits,
         const Array<int64_t>& keys) { return keys_above(view(scores), view(limits), view(keys)); },
      "scores"_a.noconvert(), "limits"_a.noconvert(), "keys"_a.noconvert());
  using Truths = nb::ndarray<const bool, nb::ndim<2>, nb::device::cpu>;
  m.def(
      "true_columns",
      [](const Truths& mask, const Array<int32_t>& columns, const Array<int32_t>& ends) {
        if (mask.shape(0) > 0 && mask.shape(1) > 1 && mask.stride(1) != 1) {
          throw std::invalid_argument("the mask's columns must follow one another");
        }
        return true_columns({reinterpret_cast<const uint8_t*>(mask.data()), mask.stride(0),
                             mask.shape(0), mask.shape(1)},
                            view(columns), view(ends));
      },
      "mask"_a.noconvert(), "columns"_a.noconvert(), "ends"_a.noconvert());
  m.def(
      "run_ends",
      [](const Array<const int32_t>& ids, const Array<const int32_t>& vector_ends,
         int32_t block_ids, const Array<int32_t>& out) {
        return run_ends(view(ids), view(vector_ends), block_ids, view(out));
      },
      "ids"_a.noconvert(), "vector_ends"_a.noconvert(), "block_ids"_a, "out"_a.noconvert());
  m.def(
      "stream_read_ns",
      [](const std::shared_ptr<Buffer>& buffer, int threads) {
        return stream_read_ns(buffer.get(), threads);
      },
      "buffer"_a, "threads"_a, Released());
  m.def(
      "row_read_ns",
      [](const Array<const uint8_t>& data, int64_t row_bytes, const Array<const int32_t>& ids,
         int threads) { return row_read_ns(view(data), row_bytes, view(ids), threads); },
      "data"_a.noconvert(), "row_bytes"_a, "ids"_a.noconvert(), "threads"_a, Released());
  m.def(
      "crc32c",
      [](const Array<const uint8_t>& data, uint32_t value) {
        return crc32c(data.data(), data.size(), value);
      },
      "data"_a.noconvert(), "value"_a = 0, Released());
  m.def("bundle_checksums", &checksums, "data"_a.noconvert(), "begins"_a.noconvert(),
        "bundle_bytes"_a, "file_id"_a, "layer"_a, "numbers"_a.noconvert());
}
