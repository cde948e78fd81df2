// The denominator of a row's softmax, and the normalizer of its weights.
#pragma once

#include "vector.h"

namespace regard::REGARD_SET {

// total · e^level, in double: a float32 log-sum-exp of some millions is off by a half.
struct RowSum {
  double level;
  float total;

  // Adds e^sink; returns the factor that numerators measured from the old level need.
  float take_in(float sink) {
    const double ahead = (sink - level) * LOG2_E;
    const float ratio = exp2(broadcast(float(-fabs(ahead))))[0];
    if (ahead <= 0) {
      total += ratio;
      return 1;
    }
    total = total * ratio + 1;
    level = sink;
    return ratio;
  }
  float logsumexp() const { return float(level + log2f(total) * LN_2); }
};

// A row's weights are 2^(factor · (score − peak) − log). Any score will do for the peak, so long as
// the differences are exact enough; it is 0 where the logarithm is that of the sum itself.
struct RowNormalizer {
  float peak, log;
};

// Beyond this size a log-sum-exp that was rounded to float32 makes weights wrong by more than the
// rounding of scores does. There a normalizer is computed instead.
constexpr float MAX_EXACT_LOGSUMEXP = 64;

REGARD_INLINE bool is_imprecise(float logsumexp) {
  return fabsf(logsumexp) > MAX_EXACT_LOGSUMEXP && fabsf(logsumexp) < INFINITY;
}

REGARD_INLINE ints is_imprecise(floats logsumexp) {
  const floats size = abs(logsumexp);
  return (size > broadcast(MAX_EXACT_LOGSUMEXP)) & (size < broadcast(INFINITY));
}

// From a log-sum-exp and its score.
REGARD_INLINE RowNormalizer normalizer_of(float logsumexp, float peak, double unit) {
  return {peak, float((logsumexp - peak * unit) * LOG2_E)};
}

}  // namespace regard::REGARD_SET
