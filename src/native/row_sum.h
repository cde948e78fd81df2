// The denominator of a row's softmax, and the normalizer of its weights.
#pragma once

#include "vector.h"

namespace regard::REGARD_SET {

// total · e^level, in double: in float32 a log-sum-exp of some millions has an error of ½.
struct RowSum {
  double level;
  float total;

  // Adds e^sink; returns the factor that rescales numerators from the old level to the new one.
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

// A row's weights are 2^(factor · (score − peak) − log). The peak may be any score for which the
// differences are precise enough; it is 0 if the logarithm is that of the sum itself.
struct RowNormalizer {
  float peak, log;
};

// Above this magnitude the rounding of a log-sum-exp to float32 gives a larger error of weights
// than the rounding of scores. A normalizer is computed instead.
constexpr float MAX_EXACT_LOGSUMEXP = 64;

REGARD_INLINE bool is_imprecise(float logsumexp) {
  return fabsf(logsumexp) > MAX_EXACT_LOGSUMEXP && fabsf(logsumexp) < INFINITY;
}

REGARD_INLINE ints is_imprecise(floats logsumexp) {
  const floats size = abs(logsumexp);
  return (size > broadcast(MAX_EXACT_LOGSUMEXP)) & (size < broadcast(INFINITY));
}

// A weight from a log-sum-exp and its score.
REGARD_INLINE RowNormalizer normalizer_of(float logsumexp, float peak, double unit) {
  return {peak, float((logsumexp - peak * unit) * LOG2_E)};
}

}  // namespace regard::REGARD_SET
