#include "reference.h"

#include <algorithm>

namespace driver {
namespace {

Grid<double> decoded(const Tensor &tensor, const Sizes &s, int64_t heads, int64_t rows,
                     int64_t dim) {
  Grid<double> grid(s.batch, heads, rows, dim);
  for (int64_t b = 0; b < s.batch; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < dim; d++) grid.at(b, h, i, d) = tensor.at(b, h, i, d);
  return grid;
}

// Philox4x32-10: whether dropout keeps a weight.
bool kept_by_dropout(const Sample &sample, int64_t b, int64_t h, int64_t i, int64_t j) {
  uint32_t counter[4] = {uint32_t(j / 4), uint32_t(i), uint32_t(b * sample.sizes.heads + h), 0};
  uint32_t key[2] = {uint32_t(sample.dropout_seed), uint32_t(sample.dropout_seed >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t first = uint64_t(counter[0]) * 0xD2511F53;
    const uint64_t second = uint64_t(counter[2]) * 0xCD9E8D57;
    const uint32_t next[4] = {uint32_t(second >> 32) ^ counter[1] ^ key[0], uint32_t(second),
                              uint32_t(first >> 32) ^ counter[3] ^ key[1], uint32_t(first)};
    std::copy(next, next + 4, counter);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return double(counter[j % 4]) >= sample.dropout * 0x1p32;
}

struct Logit {
  double value, size;
  Sum slope_of_cap;  // what the softcap multiplies gradients with: a difference
  double distance;   // what ALiBi's slope is multiplied with
};

struct Inputs {
  const Sample &sample;
  Grid<double> query, key, value, context_gradient;

  explicit Inputs(const Sample &sample)
      : sample(sample), query(decoded(sample.query, sample.sizes, sample.sizes.heads,
                                      sample.sizes.queries, sample.sizes.dim)),
        key(decoded(sample.key, sample.sizes, sample.sizes.groups, sample.sizes.keys,
                    sample.sizes.dim)),
        value(decoded(sample.value, sample.sizes, sample.sizes.groups, sample.sizes.keys,
                      sample.sizes.dim_value)),
        context_gradient(decoded(sample.context_gradient, sample.sizes, sample.sizes.heads,
                                 sample.sizes.queries, sample.sizes.dim_value)) {}

  Logit logit(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t g = sample.group(h);
    Sum score;
    for (int64_t d = 0; d < sample.sizes.dim; d++)
      score.add(sample.scale * query.at(b, h, i, d), plain(key.at(b, g, j, d)));
    Logit logit = {score.value, score.size + sample.softcap, plain(1), 0};
    if (sample.softcap > 0) {
      const double tanh = std::tanh(score.value / sample.softcap);
      logit.value = sample.softcap * tanh;
      logit.slope_of_cap = {1 - tanh * tanh, 1 + tanh * tanh};
    }
    const auto add = [&](double part) { logit.value += part, logit.size += std::fabs(part); };
    if (sample.bias.numbers) add(sample.bias.at(b, h, i, j));
    add(sample.added_by_spans(b, h, i, j));
    if (sample.alibi) {
      logit.distance = std::fabs(double(sample.position(b, h, i) - j));
      add(-double(sample.alibi[h]) * logit.distance);
    }
    return logit;
  }
};

// One row: its weights and context, and what it adds to the gradients.
class Row {
 public:
  Row(const Inputs &in, Reference &out, int64_t b, int64_t h, int64_t i)
      : in(in), sample(in.sample), out(out), b(b), h(h), g(sample.group(h)), i(i) {
    for (int64_t j = 0; j < sample.sizes.keys; j++)
      if (sample.sees(b, h, i, j)) seen.push_back(j);
  }

  void compute(bool of_weights_alone) {
    out.logsumexp.at(b, h, i, 0) = -INFINITY;
    if (seen.empty()) return;
    weigh();
    if (of_weights_alone) return;
    average();
    differentiate();
  }

 private:
  void weigh() {
    const double sink = sample.sink ? double(sample.sink[h]) : -INFINITY;
    double peak = sink;
    for (int64_t j : seen) {
      logits.push_back(in.logit(b, h, i, j));
      peak = std::max(peak, logits.back().value);
      out.max_logit = std::max(out.max_logit, logits.back().size);
    }
    double total = std::exp(sink - peak);
    for (const Logit &logit : logits) total += std::exp(logit.value - peak);
    for (size_t n = 0; n < seen.size(); n++)
      out.weights.at(b, h, i, seen[n]) = std::exp(logits[n].value - peak) / total;
    sink_weight = std::exp(sink - peak) / total;
    out.logsumexp.at(b, h, i, 0) = peak + std::log(total);
  }

  double keep_factor(int64_t j) const {
    if (sample.dropout == 0) return 1;
    return kept_by_dropout(sample, b, h, i, j) ? 1 / (1 - sample.dropout) : 0;
  }

  void average() {
    for (int64_t j : seen) {
      const double weight = out.weights.at(b, h, i, j) * keep_factor(j);
      for (int64_t d = 0; d < sample.sizes.dim_value; d++)
        out.context.at(b, h, i, d).add(weight, plain(in.value.at(b, g, j, d)));
    }
  }

  void differentiate() {
    Sum delta;
    for (int64_t d = 0; d < sample.sizes.dim_value; d++) {
      Sum context = out.context.at(b, h, i, d);
      context.size = std::max(context.size, least_normal(sample.dtype));
      delta.add(in.context_gradient.at(b, h, i, d), context);
    }
    if (sample.sink) out.sink.at(b, h, 0, 0).add(-sink_weight, delta);
    for (size_t n = 0; n < seen.size(); n++) differentiate(seen[n], logits[n], delta);
  }

  void differentiate(int64_t j, const Logit &logit, const Sum &delta) {
    const double weight = out.weights.at(b, h, i, j), kept = keep_factor(j);
    Sum of_weight;
    for (int64_t d = 0; d < sample.sizes.dim_value; d++) {
      const double gradient = in.context_gradient.at(b, h, i, d);
      of_weight.add(kept * gradient, plain(in.value.at(b, g, j, d)));
      out.value.at(b, g, j, d).add(weight * kept, plain(gradient));
    }
    Sum of_logit;
    of_logit.add(weight, of_weight);
    of_logit.add(-weight, delta);
    out.bias.at(b, h, i, j) = of_logit;
    out.alibi.at(b, h, 0, 0).add(-logit.distance, of_logit);
    const Sum of_score = {of_logit.value * logit.slope_of_cap.value,
                          of_logit.size * logit.slope_of_cap.size};
    for (int64_t d = 0; d < sample.sizes.dim; d++) {
      out.query.at(b, h, i, d).add(sample.scale * in.key.at(b, g, j, d), of_score);
      out.key.at(b, g, j, d).add(sample.scale * in.query.at(b, h, i, d), of_score);
    }
  }

  const Inputs &in;
  const Sample &sample;
  Reference &out;
  const int64_t b, h, g, i;
  std::vector<int64_t> seen;
  std::vector<Logit> logits;  // of those keys
  double sink_weight = 0;
};

}  // namespace

Reference::Reference(const Sample &sample, bool of_weights_alone)
    : weights(sample.sizes.batch, sample.sizes.heads, sample.sizes.queries, sample.sizes.keys),
      logsumexp(sample.sizes.batch, sample.sizes.heads, sample.sizes.queries, 1),
      context(sample.sizes.batch, sample.sizes.heads, sample.sizes.queries, sample.sizes.dim_value),
      query(sample.sizes.batch, sample.sizes.heads, sample.sizes.queries, sample.sizes.dim),
      key(sample.sizes.batch, sample.sizes.groups, sample.sizes.keys, sample.sizes.dim),
      value(sample.sizes.batch, sample.sizes.groups, sample.sizes.keys, sample.sizes.dim_value),
      bias(sample.sizes.batch, sample.sizes.heads, sample.sizes.queries, sample.sizes.keys),
      alibi(sample.sizes.batch, sample.sizes.heads, 1, 1),
      sink(sample.sizes.batch, sample.sizes.heads, 1, 1) {
  const Inputs inputs(sample);
  for (int64_t b = 0; b < sample.sizes.batch; b++)
    for (int64_t h = 0; h < sample.sizes.heads; h++)
      for (int64_t i = 0; i < sample.sizes.queries; i++)
        Row(inputs, *this, b, h, i).compute(of_weights_alone);
}

}  // namespace driver
