// The gradients of scores from those of weights, and of the bias from those of scores.
#pragma once

#include "dropout.h"
#include "query_rows.h"

namespace regard::REGARD_SET {

// The derivative of the softmax: weight ∘ (gradient − delta). It is 0 for a weight of 0, even if
// its value is NaN.
REGARD_INLINE floats score_gradient(floats weight, floats gradient, floats delta) {
  return weight == 0.0f ? floats{} : weight * (gradient - delta);
}

static void differentiate_softmax(const QueryRows &rows, const Segment &segment,
                                  const float *weights, float *gradients) {
  for (int j = segment.first; j < segment.last; j++) {
    const floats delta = rows.delta[j];
    for (int64_t at = j * LANES; at < segment.keys * QUERIES; at += QUERIES) {
      store(gradients + at, score_gradient(load(weights + at), load(gradients + at), delta));
    }
  }
}

// The factor of weights that dropout keeps.
REGARD_INLINE float dropout_scale(const regard_problem &p) {
  return p.dropout < 1 ? float(1 / (1 - p.dropout)) : 0;
}

// The same through dropout; dropped weights become 0. The factor of kept weights is applied to the
// sum for the gradient of the values.
static void differentiate_dropout(const regard_problem &p, const QueryBlock &queries,
                                  const QueryRows &rows, const Segment &segment, float *weights,
                                  float *gradients) {
  const float factor = dropout_scale(p);
  const KeepMask keep_mask(p.dropout);
  for (int j = segment.first; j < segment.last; j++)
    for_each_word(p, queries, segment, j, [&](int32_t key, uints word) {
      const int64_t at = (key - segment.key) * QUERIES + j * LANES;
      const ints kept = keep_mask(word);
      const floats weight = load(weights + at);
      const floats received = kept ? load(gradients + at) * factor : floats{};
      store(gradients + at, score_gradient(weight, received, rows.delta[j]));
      store(weights + at, kept ? weight : floats{});
    });
}

// The derivative of the softcap: 1 − tanh² of the dot products.
static void differentiate_softcap(const regard_problem &p, const Segment &segment,
                                  const float *products, float *gradients) {
  const float scale = float(p.scale), cap = float(p.softcap);
  for (int j = segment.first; j < segment.last; j++)
    for (int64_t at = j * LANES; at < segment.keys * QUERIES; at += QUERIES) {
      const floats gradient = load(gradients + at),
                   capped = tanh(load(products + at) * scale / cap);
      const floats passed = gradient * (1.0f - capped * capped);
      store(gradients + at, gradient == 0.0f ? floats{} : passed);
    }
}

// Writes the gradient of the bias, whose last axis is contiguous.
static void write_bias_gradient(const regard_matrix &bias, const QueryBlock &queries,
                                const Segment &segment, const float *gradients) {
  for (int j = segment.first; j < segment.last; j++)
    for (int32_t first = 0; first < segment.keys; first += LANES) {
      const int keys = min(LANES, segment.keys - first);
      floats part[LANES];
      REGARD_UNROLLED_FOR (int k = 0; k < LANES; k++)
        part[k] = k < keys ? load(gradients + (first + k) * QUERIES + j * LANES) : floats{};
      transpose(part);
      for (int i = 0; i < LANES && j * LANES + i < queries.count; i++) {
        const int r = j * LANES + i;
        float *row = (float *)bias.data + queries.batch * bias.batch + queries.head[r] * bias.head +
                     queries.query[r] * bias.row;
        narrow_part(Float32(), row + segment.key + first, part[i], keys);
      }
    }
}

// Sets the gradient of the bias to 0 for a panel's keys.
static void clear_bias_gradient(const regard_matrix &bias, const QueryBlock &queries, int32_t first,
                                int32_t last) {
  for (int r = 0; r < queries.count; r++) {
    float *row = (float *)bias.data + queries.batch * bias.batch + queries.head[r] * bias.head +
                 queries.query[r] * bias.row;
    memset(row + first, 0, size_t(last - first) * sizeof(float));
  }
}

}  // namespace regard::REGARD_SET
