// Weighted sums of rows in blocks, of every instruction set and encoding: as fuzz_row_dots.
#include <cstring>

#include "row_case.h"

using namespace flash_core;

namespace {

// What rounding weights times scales together may cost a column: a number of a group is 128 at
// most, and a rounded factor is wrong by half a step, or is less than what counts as zero.
double lost_by_rounding(const RowCase& one, const std::vector<float>& weights) {
  if (!is_grouped(one.dtype)) return 0;
  double largest = 0;
  for (size_t i = 0; i < one.ids.size(); ++i) {
    largest = std::max(largest, largest_scale(one, one.ids[i]) * std::fabs(double{weights[i]}));
  }
  const double wrong = std::max(largest / kMostRounded, double{kLeastRounded});
  return 128 * wrong * static_cast<double>(one.ids.size());
}

void check_sum(const RowCase& one, const std::vector<float>& weights,
               const std::vector<float>& before, const std::vector<float>& out) {
  const std::vector<float> rows = decoded(one);
  const double lost = lost_by_rounding(one, weights);
  for (size_t c = 0; c < one.columns; ++c) {
    double sum = before[c];
    double scale = std::fabs(sum);
    for (size_t i = 0; i < one.ids.size(); ++i) {
      const double part = double{rows[i * one.columns + c]} * weights[i];
      sum += part;
      scale += std::fabs(part);
    }
    REQUIRE(std::fabs(out[c] - sum) <= 2e-5 * scale + lost + 1e-30);
  }
}

void check_one_sum(const RowCase& one, FuzzInput* input) {
  const std::vector<float> weights = make_vector(input, one.ids.size());
  const std::vector<int32_t> ends = make_ends(input, one.ids.size());
  const std::vector<float> before = SeededValues(7).values(one.columns, 2);
  const bool is_valid = one.is_valid() && is_rising(ends, one.ids.size());
  const bool is_comparable = is_valid && is_moderate(weights) && are_rows_moderate(one);
  for (const KernelTable* table : available_kernels()) {
    std::vector<float> out = before;
    const bool is_accepted = accepts([&] {
      Kernels(1, table->name)
          .weighted_sum_rows(one.rows(), view_of(one.ids), view_of(weights), view_of(ends),
                             out_view(&out));
    });
    REQUIRE(is_accepted == is_valid);
    if (is_comparable) check_sum(one, weights, before, out);
  }
}

// Whether every vector's ids end where a block ends.
bool are_blocks_of_one_vector(const std::vector<int32_t>& vectors,
                              const std::vector<int32_t>& blocks) {
  int32_t begin = 0;
  for (const int32_t end : vectors) {
    if (end != begin && std::find(blocks.begin(), blocks.end(), end) == blocks.end()) return false;
    begin = end;
  }
  return true;
}

// Sums of several vectors at once have the bits of each by itself.
void check_each(const RowCase& one, FuzzInput* input) {
  const size_t count = one.ids.size();
  const std::vector<float> weights = make_vector(input, count);
  const std::vector<int32_t> vectors = make_ends(input, count);
  std::vector<int32_t> blocks = make_ends(input, count);
  if (input->flag()) {
    blocks.insert(blocks.end(), vectors.begin(), vectors.end());
    std::sort(blocks.begin(), blocks.end());
  }
  const bool is_valid = !vectors.empty() && one.is_valid() && is_rising(vectors, count) &&
                        is_rising(blocks, count) && are_blocks_of_one_vector(vectors, blocks);
  for (const KernelTable* table : available_kernels()) {
    Kernels kernels(1, table->name);
    std::vector<float> out(one.columns * vectors.size(), 0.5F);
    std::vector<float> alone = out;
    const bool is_accepted = accepts([&] {
      kernels.weighted_sum_rows_each(one.rows(), view_of(one.ids), view_of(weights),
                                     view_of(vectors), view_of(blocks), out_view(&out));
    });
    REQUIRE(is_accepted == is_valid);
    if (!is_valid) continue;
    for (size_t v = 0; v < vectors.size(); ++v) {
      const size_t begin = run_begin(view_of(vectors), v);
      const size_t own = static_cast<size_t>(vectors[v]) - begin;
      std::vector<int32_t> own_blocks;
      for (const int32_t end : blocks) {
        if (end > static_cast<int32_t>(begin) && end <= vectors[v]) {
          own_blocks.push_back(end - static_cast<int32_t>(begin));
        }
      }
      kernels.weighted_sum_rows(one.rows(), {one.ids.data() + begin, own},
                                {weights.data() + begin, own}, view_of(own_blocks),
                                {alone.data() + v * one.columns, one.columns});
    }
    REQUIRE(std::memcmp(out.data(), alone.data(), out.size() * sizeof(float)) == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  const bool is_each = input.flag();
  const RowCase one = make_rows(&input);
  if (is_each) {
    check_each(one, &input);
  } else {
    check_one_sum(one, &input);
  }
  return 0;
}
