#include "judge.h"

namespace driver {
namespace {

void hold(Judge &judge, const char *what, const Tensor &got, const Grid<Sum> &wanted) {
  const double floor = Judge::TINY + least_normal(judge.sample.dtype) * judge.result_error;
  int64_t at = 0;
  for (int64_t b = 0; b < judge.sample.sizes.batch; b++)
    for (int64_t h = 0; h < wanted.heads; h++)
      for (int64_t i = 0; i < wanted.rows; i++)
        for (int64_t d = 0; d < wanted.columns; d++) {
          const Sum &sum = wanted.at(b, h, i, d);
          judge.hold(what, at++, got.at(b, h, i, d), sum.value,
                     judge.result_error * sum.size + floor);
        }
  if (!got.gaps_untouched()) judge.reject(std::string(what) + ": written between its rows");
}

void hold(Judge &judge, const char *what, const Numbers<float> &got, const Grid<Sum> &wanted) {
  for (int64_t at = 0; at < got.size(); at++) {
    const Sum &sum = wanted.numbers[size_t(at)];
    judge.hold(what, at, double(got[at]), sum.value, judge.result_error * sum.size + Judge::TINY);
  }
}

void hold_logsumexp(Judge &judge, const Numbers<float> &got) {
  for (int64_t at = 0; at < got.size(); at++) {
    const double wanted = judge.reference.logsumexp.numbers[size_t(at)];
    judge.hold("logsumexp", at, double(got[at]), wanted,
               std::isinf(wanted) ? 0 : judge.weights_error + std::fabs(wanted) * 0x1p-23);
  }
}

}  // namespace

std::string verdict(const Sample &sample, const Reference &reference, const Results &results) {
  Judge judge(sample, reference);
  hold(judge, "context", results.context, reference.context);
  hold(judge, "context by regard_attend", results.attended, reference.context);
  hold_logsumexp(judge, results.logsumexp);
  if (results.wants_query) hold(judge, "gradient of query", results.query, reference.query);
  if (results.wants_key) hold(judge, "gradient of key", results.key, reference.key);
  if (results.wants_value) hold(judge, "gradient of value", results.value, reference.value);
  hold(judge, "gradient of bias", results.bias, reference.bias);
  hold(judge, "gradient of alibi", results.alibi, reference.alibi);
  hold(judge, "gradient of sink", results.sink, reference.sink);
  for (const Reading &reading : results.all) judge_reading(judge, reading, 0, sample.sizes.keys);
  for (const Reading &reading : results.part)
    judge_reading(judge, reading, results.first_key, results.last_key);
  Sample scaled = Sample::random(sample.seed);
  scaled.scale *= Results::OTHER_SCALE;
  const Reference other(scaled, true);
  judge_divergences(judge, results, other);
  return judge.wrong;
}

}  // namespace driver
