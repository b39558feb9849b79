// Which experts tokens go through, and how much each counts.
//
// The same bits for a token alone and among others.
#pragma once

#include <cstdint>

#include "view.h"

namespace flash_core {

struct Routing {
  int64_t per_token;    // experts that a token goes through
  bool sigmoid;         // scores: of each logit by itself, or the softmax of all
  int64_t groups;       // of neighbouring experts, of which a token keeps some first, by the sum of
  int64_t groups_kept;  // the two best of each
  bool renormalise;     // whether weights are divided by their sum
  float sum_offset;     // added to that sum
  float weight_scale;
};

// weights [tokens, experts] from a router's logits: the scores of the chosen experts, 0 of others.
// They are chosen by their logits, or where there is a `choice_bias` [experts] by score plus bias:
// the largest, the lowest id among equals. invalid_argument for sizes that do not fit together.
void expert_weights(Matrix<const float> logits, View<const float> choice_bias,
                    const Routing& routing, Matrix<float> weights);

}  // namespace flash_core
