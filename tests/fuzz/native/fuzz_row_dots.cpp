// Dots of rows with vectors, of every instruction set and encoding: nothing is read outside the
// rows, wrong arguments are refused, and results are those of wide arithmetic.
#include <cstring>

#include "row_case.h"

using namespace flash_core;

namespace {

// Of row number i with x, and whether `got` is it within what rounding may lose.
void check_dot(const RowCase& one, const float* row, const float* x, float got) {
  double sum = 0;
  double scale = 0;
  double largest = 0;
  for (size_t c = 0; c < one.columns; ++c) {
    sum += double{row[c]} * x[c];
    largest = std::max(largest, std::fabs(double{x[c]}));
  }
  double weights = 0;
  for (size_t c = 0; c < one.columns; ++c) weights += std::fabs(row[c]);
  scale = weights * largest;
  // Half a step each, or all of what counts as zero.
  const double lost =
      is_grouped(one.dtype) ? scale / kMostRounded / 2 * 1.01 + weights * kLeastRounded : 0;
  REQUIRE(std::fabs(got - sum) <= 2e-5 * scale + lost + 1e-30);
}

void check_rows_alone(const RowCase& one, const std::vector<float>& x) {
  const bool is_valid = one.is_valid();
  const bool is_comparable = is_valid && is_moderate(x) && are_rows_moderate(one);
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    std::vector<float> out(one.ids.size());
    const bool is_accepted = accepts(
        [&] { kernels.dot_rows(one.rows(), view_of(one.ids), view_of(x), out_view(&out)); });
    REQUIRE(is_accepted == is_valid);
    if (!is_comparable) continue;
    const std::vector<float> rows = decoded(one);
    for (size_t i = 0; i < out.size(); ++i) {
      check_dot(one, rows.data() + i * one.columns, x.data(), out[i]);
    }
  }
}

// The bits of several vectors at once are those of each by itself.
void check_each(const RowCase& one, FuzzInput* input) {
  const std::vector<int32_t> ends = make_ends(input, one.ids.size());
  const std::vector<float> x = make_vector(input, one.columns * ends.size());
  const bool is_valid = !ends.empty() && one.is_valid() && is_rising(ends, one.ids.size());
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    std::vector<float> out(one.ids.size());
    const bool is_accepted = accepts([&] {
      kernels.dot_rows_each(one.rows(), view_of(one.ids), view_of(ends), view_of(x),
                            out_view(&out));
    });
    REQUIRE(is_accepted == is_valid);
    if (!is_valid) continue;
    std::vector<float> alone(out.size());
    for (size_t v = 0; v < ends.size(); ++v) {
      const size_t begin = run_begin(view_of(ends), v);
      const size_t count = static_cast<size_t>(ends[v]) - begin;
      kernels.dot_rows(one.rows(), {one.ids.data() + begin, count},
                       {x.data() + v * one.columns, one.columns}, {alone.data() + begin, count});
    }
    // As bits, since a NaN equals nothing.
    REQUIRE(out.empty() || std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)) == 0);
  }
}

// A whole matrix, without gaps.
void check_matrix(const RowCase& one, const std::vector<float>& x, FuzzInput* input) {
  const size_t n_rows = input->size_within(0, kRowsMax);
  const View<const uint8_t> bytes = one.rows().bytes;
  const bool is_valid =
      one.columns > 0 &&
      wide_row_bytes(one.dtype, Wide{one.columns}) * Wide{n_rows} == Wide{bytes.size};
  for (const KernelTable* table : available_kernels()) {
    std::vector<float> out(n_rows);
    REQUIRE(is_valid == accepts([&] {
              Kernels(1, table->name).matvec(bytes, one.dtype, view_of(x), out_view(&out));
            }));
  }
}

// Matrices that begin anywhere: the bits of each by itself.
void check_matrices(const RowCase& one, FuzzInput* input) {
  const size_t n_rows = input->size_within(0, kRowsMax);
  const View<const uint8_t> bytes = one.rows().bytes;
  std::vector<int64_t> begins(input->size_within(0, 3));
  for (int64_t& begin : begins) begin = input->any();
  const size_t vectors = input->flag() ? 1 : begins.size();
  const std::vector<float> x = make_vector(input, one.columns * vectors);
  bool is_valid = one.columns > 0;
  const Wide matrix = wide_row_bytes(one.dtype, Wide{one.columns}) * Wide{n_rows};
  for (const int64_t begin : begins) {
    is_valid = is_valid && begin >= 0 && Wide{begin} + matrix <= Wide{bytes.size};
  }
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    std::vector<float> out(begins.size() * n_rows);
    const bool is_accepted = accepts([&] {
      kernels.matvec_each(bytes, view_of(begins), one.dtype, {x.data(), vectors, one.columns},
                          {out.data(), begins.size(), n_rows});
    });
    REQUIRE(is_accepted == is_valid);
    if (!is_valid) continue;
    for (size_t i = 0; i < begins.size(); ++i) {
      std::vector<float> alone(n_rows);
      const uint8_t* const first = bytes.data + begins[i];
      kernels.matvec({first, static_cast<size_t>(matrix)}, one.dtype,
                     {x.data() + (vectors == 1 ? 0 : i) * one.columns, one.columns},
                     out_view(&alone));
      REQUIRE(n_rows == 0 ||
              std::memcmp(out.data() + i * n_rows, alone.data(), n_rows * sizeof(float)) == 0);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const uint8_t kind = input.byte() % 5;
  const RowCase one = make_rows(&input);
  if (kind == 0) {
    check_each(one, &input);
    return 0;
  }
  if (kind == 4) {
    check_matrices(one, &input);
    return 0;
  }
  const std::vector<float> x = make_vector(&input, one.columns);
  if (kind == 1) {
    check_matrix(one, x, &input);
  } else {
    check_rows_alone(one, x);
  }
  return 0;
}
