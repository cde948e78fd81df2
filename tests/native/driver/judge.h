// Whether results are what the definition says they are.
#pragma once

#include <algorithm>
#include <sstream>
#include <string>

#include "reference.h"
#include "results.h"

namespace driver {

// Describes the first wrong number; empty if all are right.
std::string verdict(const Sample &sample, const Reference &reference, const Results &results);

class Judge {
 public:
  Judge(const Sample &sample, const Reference &reference)
      : sample(sample), reference(reference),
        weights_error(ROUNDINGS * 0x1p-23 * (16 + logit_size(sample, reference))),
        result_error(weights_error + ROUNDINGS * epsilon_of(sample.dtype)) {}

  // Holds a number to what it must be, within a tolerance; NaN is never right.
  void hold(const char *what, int64_t at, double got, double wanted, double tolerance) {
    if (got == wanted || std::fabs(got - wanted) <= tolerance) return;
    std::ostringstream out;
    out.precision(9);
    out << what << " at " << at << " is " << got << ", but must be " << wanted << " ± "
        << tolerance;
    reject(out.str());
  }
  void reject(const std::string &why) {
    if (wrong.empty()) wrong = why;
  }

  // How often a rounding may be found in a result: sums are of hundreds of numbers, but most of
  // those are small.
  static constexpr double ROUNDINGS = 4;
  // Weights below the least normal float may come out as 0, many of them times a large number.
  static constexpr double TINY = 0x1p-100;

  // Of logits: their parts' absolute values summed up. Where no rounding takes part in them only a
  // log-sum-exp is rounded, and one of more than 64 is not.
  static double logit_size(const Sample &sample, const Reference &reference) {
    return sample.logit_unit > 0 ? std::min(reference.max_logit, 64.0) : reference.max_logit;
  }

  const Sample &sample;
  const Reference &reference;
  // A logit is off by roundings of its parts, a weight by that share of it and by that of the
  // exponential; a result by the dtype's roundings too.
  const double weights_error, result_error;
  std::string wrong;
};

// Holds a readout of keys [first, last) to the weights.
void judge_reading(Judge &judge, const Reading &reading, int64_t first, int64_t last);

// Holds the divergences to those of two matrices of weights, of which `other` has the second.
void judge_divergences(Judge &judge, const Results &results, const Reference &other);

}  // namespace driver
