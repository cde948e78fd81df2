// The forward pass's second product: where its tiles go, and how it is computed where values are
// not finite.
#pragma once

#include "arithmetic.h"
#include "scores.h"

namespace regard::REGARD_SET {

// Where contexts go, (rows, columns) at a time: to the sums over the keys so far, or after the last
// keys to the result, each row times its factor.
template <class Element>
struct ContextWriter {
  float *sums;  // (QUERIES, width)
  int64_t width;
  bool add;              // to what the sums hold
  const float *factors;  // (QUERIES), or none before the last keys
  BlockRows<Element> rows;
  int64_t dim;
  ints largest = {};  // of the results' bits without sign

  template <int count, int columns>
  __attribute__((always_inline)) void operator()(int64_t r, int64_t d,
                                                 floats (&total)[count][columns]) {
    float *const at = sums + r * width + d;
    if (add)
      REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
        REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
          total[i][j] += load(at + i * width + j * LANES);
    if (!factors) {
      REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
        REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
          store(at + i * width + j * LANES, total[i][j]);
      return;
    }
    ints highest = largest;
    REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) {
        total[i][j] *= broadcast(factors[r + i]);
        highest = max(highest, (ints)total[i][j] & 0x7fffffff);
      }
    largest = highest;
    const bool whole = d + columns * LANES <= dim;
    REGARD_UNROLLED_FOR (int i = 0; i < count; i++) {
      typename Element::type *to = rows[r + i] + d;
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) {
        if (whole)
          narrow(Element(), to + j * LANES, total[i][j]);
        else
          narrow_part(Element(), to + j * LANES, total[i][j], dim - d - j * LANES);
      }
    }
  }
  bool finite() const { return !any(largest >= 0x7f800000); }
};

// As weighted_rows, but what is hidden takes no part, whatever its value: 0 · NaN is NaN.
template <class Arithmetic, class Values>
static void context_of_visible(const Values &values, const Segment &segment, int64_t width,
                               const float *weights, const float *scores, float *context) {
  for (int32_t k = 0; k < segment.keys; k++)
    for (int j = segment.first; j < segment.last; j++) {
      const floats weight = Arithmetic::weight(weights + j * LANES, k);
      for (int i = 0; i < LANES; i++) {
        if (scores[k * QUERIES + j * LANES + i] == HIDDEN) continue;
        for (int64_t d = 0; d < width; d += LANES) {
          float *at = context + (j * LANES + i) * width + d;
          store(at, load(at) + weight[i] * Arithmetic::value_part(values, k, d));
        }
      }
    }
}

}  // namespace regard::REGARD_SET
