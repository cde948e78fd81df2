// The two products of attention for few rows: dimensions lie in the lanes.
//
// Each number of the keys and values is loaded once and used for all rows of a tile. Rows of float
// matrices (query, scores, weights, context) are a fixed stride apart; keys and values are read as
// they lie, in their own dtype, and their dimension is a multiple of LANES.
#pragma once

#include "element.h"

namespace regard::REGARD_SET {

constexpr int TILE = REGISTERS == 32 ? 4 : 2;  // rows of attention whose sums stay in registers

// Sums the lanes of `count` vectors: the sum of vector i lies in lanes i, i + count, ..., to be
// added up where there is more than one of them.
template <int count>
REGARD_INLINE floats folded(floats *vectors) {
  using all_lanes = std::make_index_sequence<LANES>;
  REGARD_UNROLL for (int half = count / 2; half > 0; half /= 2)
    REGARD_UNROLL for (int i = 0; i < half; i++)
      vectors[i] = zipped<0>(vectors[i], vectors[i + half], all_lanes()) +
                   zipped<1>(vectors[i], vectors[i + half], all_lanes());
  return vectors[0];
}

// scores[r][k] = query[r] · key[k] for LANES keys; those from `keys` on repeat the last.
template <int rows, class Element>
REGARD_INLINE void score_lanes(Element element, const typename Element::type *key, int64_t stride,
                               int64_t keys, int64_t dim, const float *query, float *scores,
                               int64_t scores_stride) {
  constexpr int together = 4, steps = LANES / together;
  floats partly[rows][steps];
  REGARD_UNROLL for (int step = 0; step < steps; step++) {
    const typename Element::type *at[together];
    floats sums[rows][together];
    REGARD_UNROLL for (int k = 0; k < together; k++) {
      at[k] = key + least(int64_t(step + k * steps), keys - 1) * stride;
      REGARD_UNROLL for (int r = 0; r < rows; r++) sums[r][k] = floats{};
    }
    for (int64_t d = 0; d < dim; d += LANES) {
      floats q[rows];
      REGARD_UNROLL for (int r = 0; r < rows; r++) q[r] = load(query + r * dim + d);
      REGARD_UNROLL for (int k = 0; k < together; k++) {
        const floats numbers = widen(element, at[k] + d);
        REGARD_UNROLL for (int r = 0; r < rows; r++) sums[r][k] += numbers * q[r];
      }
    }
    REGARD_UNROLL for (int r = 0; r < rows; r++) partly[r][step] = folded<together>(sums[r]);
  }
  REGARD_UNROLL for (int r = 0; r < rows; r++)
    store(scores + r * scores_stride, folded<steps>(partly[r]));
}

// context[r] += Σ_k weights[r][k] · value[k], of so many vectors of dimensions.
template <int rows, int vectors, class Element>
REGARD_INLINE void context_lanes(Element element, const typename Element::type *value,
                                 int64_t stride, int64_t keys, const float *weights,
                                 int64_t weights_stride, float *context, int64_t context_stride) {
  floats sums[rows][vectors];
  REGARD_UNROLL for (int r = 0; r < rows; r++)
    REGARD_UNROLL for (int j = 0; j < vectors; j++)
      sums[r][j] = load(context + r * context_stride + j * LANES);
  for (int64_t k = 0; k < keys; k++) {
    floats w[rows];
    REGARD_UNROLL for (int r = 0; r < rows; r++) w[r] = all(weights[r * weights_stride + k]);
    REGARD_UNROLL for (int j = 0; j < vectors; j++) {
      const floats numbers = widen(element, value + k * stride + j * LANES);
      REGARD_UNROLL for (int r = 0; r < rows; r++) sums[r][j] += w[r] * numbers;
    }
  }
  REGARD_UNROLL for (int r = 0; r < rows; r++)
    REGARD_UNROLL for (int j = 0; j < vectors; j++)
      store(context + r * context_stride + j * LANES, sums[r][j]);
}

}  // namespace regard::REGARD_SET
