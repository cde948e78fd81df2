// How far rows are apart by definition: those of a sample and of the same with another scale.

#include "judge.h"

namespace driver {
namespace {

// One share of a row: its weight in either pattern.
struct Pair {
  double p, q;
};

// The weights of a row on each key, and on the sink.
std::vector<Pair> row_of(const Sample &sample, const Reference &one, const Reference &other,
                         int64_t b, int64_t h, int64_t i) {
  std::vector<Pair> pairs;
  for (int64_t j = 0; j < sample.sizes.keys; j++)
    if (sample.sees(b, h, i, j))
      pairs.push_back({one.weights.at(b, h, i, j), other.weights.at(b, h, i, j)});
  if (sample.sink && !pairs.empty())
    pairs.push_back({std::exp(double(sample.sink[h]) - one.logsumexp.at(b, h, i, 0)),
                     std::exp(double(sample.sink[h]) - other.logsumexp.at(b, h, i, 0))});
  return pairs;
}

// What a share of p adds to the relative entropy to q, with the size of its logarithm.
Sum relative_entropy(double p, double q) {
  if (p < 1e-300) return {};
  const double log = std::log(p / q);
  return {p * log, p * (1 + std::fabs(log))};
}

void add(Sum &sum, double factor, const Sum &part) {
  sum.value += factor * part.value;
  sum.size += factor * part.size;
}

Sum divergence(int64_t kind, const std::vector<Pair> &row) {
  Sum sum;
  for (const auto &[p, q] : row) {
    const double middle = (p + q) / 2;
    if (kind == REGARD_TV) add(sum, 0.5, {std::fabs(p - q), p + q});
    if (kind == REGARD_KL) add(sum, 1, relative_entropy(p, q));
    if (kind == REGARD_JS) {
      add(sum, 0.5, relative_entropy(p, middle));
      add(sum, 0.5, relative_entropy(q, middle));
    }
  }
  return sum;
}

}  // namespace

void judge_divergences(Judge &judge, const Results &results, const Reference &other) {
  const Sizes &s = judge.sample.sizes;
  // The share of a sink beyond that is lost in the rounding of its row's normalizer.
  if (judge.sample.sink && judge.sample.logit_unit > 0x1p30) return;
  int64_t place = 0;
  for (int64_t b = 0; b < s.batch; b++)
    for (int64_t h = 0; h < s.heads; h++)
      for (int64_t i = 0; i < s.queries; i++, place++) {
        const std::vector<Pair> row = row_of(judge.sample, judge.reference, other, b, h, i);
        for (int64_t kind = REGARD_KL; kind <= REGARD_TV; kind++) {
          const Sum wanted = divergence(kind, row);
          if (std::isinf(wanted.value)) continue;  // of a weight that a double does not hold
          judge.hold("divergence", place, results.divergence[kind][place], wanted.value,
                     4 * judge.weights_error * wanted.size + Judge::TINY);
        }
      }
}

}  // namespace driver
