#include "routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention_tiles.h"
#include "exponentials.h"

namespace flash_core {

namespace {

[[noreturn]] void refuse_for(Matrix<const float> logits, const std::string& what) {
  throw std::invalid_argument(what + ", for [" + std::to_string(logits.rows) + ", " +
                              std::to_string(logits.columns) + "] logits");
}

void check(Matrix<const float> logits, View<const float> choice_bias, const Routing& routing,
           Matrix<float> weights) {
  if (weights.rows != logits.rows || weights.columns != logits.columns) {
    refuse_for(logits, "weights is [" + std::to_string(weights.rows) + ", " +
                           std::to_string(weights.columns) + "]");
  }
  if (choice_bias.size != 0 && choice_bias.size != logits.columns) {
    refuse_for(logits, "choice_bias has " + std::to_string(choice_bias.size) + " values");
  }
  if (routing.groups < 1 || logits.columns % static_cast<size_t>(routing.groups) != 0) {
    refuse_for(logits, std::to_string(routing.groups) + " groups");
  }
  if (routing.groups_kept < 1 || routing.groups_kept > routing.groups) {
    refuse_for(logits, std::to_string(routing.groups_kept) + " of " +
                           std::to_string(routing.groups) + " groups kept");
  }
  if (routing.per_token < 1 || static_cast<size_t>(routing.per_token) > logits.columns) {
    refuse_for(logits, std::to_string(routing.per_token) + " experts a token");
  }
}

// The ids of the largest values, ascending; among equals the lowest ids. What is no number is
// smaller than all others.
void largest(const float* values, size_t count, size_t most, std::vector<int32_t>* ids) {
  ids->resize(count);
  std::iota(ids->begin(), ids->end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    const bool a_is_none = std::isnan(values[a]);
    const bool b_is_none = std::isnan(values[b]);
    if (a_is_none != b_is_none) return b_is_none;
    if (!a_is_none && values[a] != values[b]) return values[a] > values[b];
    return a < b;
  };
  const auto end = ids->begin() + static_cast<std::ptrdiff_t>(most);
  std::partial_sort(ids->begin(), end, ids->end(), before);
  ids->resize(most);
  std::sort(ids->begin(), ids->end());
}

// What experts are chosen by, minus infinity outside of the groups that are kept.
void keep_best_groups(const Routing& routing, std::vector<float>* by, std::vector<int32_t>* ids) {
  const auto groups = static_cast<size_t>(routing.groups);
  const size_t size = by->size() / groups;
  std::vector<float> sums(groups);
  for (size_t group = 0; group < groups; ++group) {
    const float* const own = by->data() + group * size;
    largest(own, size, std::min<size_t>(2, size), ids);
    for (const int32_t id : *ids) sums[group] += own[id];
  }
  largest(sums.data(), groups, static_cast<size_t>(routing.groups_kept), ids);
  std::vector<float> within(by->size(), -std::numeric_limits<float>::infinity());
  for (const int32_t group : *ids) {
    const size_t first = static_cast<size_t>(group) * size;
    std::copy_n(by->data() + first, size, within.data() + first);
  }
  by->swap(within);
}

void weigh(const Routing& routing, const float* scores, const std::vector<int32_t>& ids,
           float* weights) {
  float sum = 0;
  for (const int32_t id : ids) sum += scores[id];
  sum += routing.sum_offset;
  for (const int32_t id : ids) {
    const float share = routing.renormalise ? scores[id] / sum : scores[id];
    weights[id] = share * routing.weight_scale;
  }
}

}  // namespace

void expert_weights(Matrix<const float> logits, View<const float> choice_bias,
                    const Routing& routing, Matrix<float> weights) {
  check(logits, choice_bias, routing, weights);
  const size_t experts = logits.columns;
  std::vector<float> scores(experts);
  std::vector<float> by(experts);
  std::vector<int32_t> ids;
  for (size_t token = 0; token < logits.rows; ++token) {
    const float* const own = logits.row(token);
    scores.assign(own, own + experts);
    if (routing.sigmoid) {
      sigmoids(scores.data(), experts);
    } else {
      softmax(scores.data(), experts, nullptr);
    }
    by.assign(own, own + experts);
    if (choice_bias.size != 0) {
      for (size_t i = 0; i < experts; ++i) by[i] = scores[i] + choice_bias.data[i];
    } else if (routing.groups > 1) {
      by = scores;
    }
    if (routing.groups > 1) keep_best_groups(routing, &by, &ids);
    largest(by.data(), experts, static_cast<size_t>(routing.per_token), &ids);
    float* const out = weights.row(token);
    std::fill(out, out + experts, 0.0F);
    weigh(routing, scores.data(), ids, out);
  }
}

}  // namespace flash_core
