#include "pointwise.h"

#include <vector>

#include "numbers.h"

namespace driver {
namespace {

using Bytes = std::vector<char>;

Bytes empty(int64_t dtype, int64_t count) { return Bytes(size_t(count * bytes_of(dtype))); }

Bytes drawn(Random &random, int64_t dtype, int64_t count) {
  Bytes made = empty(dtype, count);
  for (int64_t i = 0; i < count; i++)
    encode(dtype, made.data() + i * bytes_of(dtype), 2 * random.normal());
  return made;
}

double at(const Bytes &numbers, int64_t dtype, int64_t i) {
  return decode(dtype, numbers.data() + i * bytes_of(dtype));
}

float *floats_of(Bytes &numbers) { return numbers.empty() ? nullptr : (float *)numbers.data(); }
void *data_of(Bytes &numbers) { return numbers.empty() ? nullptr : numbers.data(); }

// GELU and its gradient, one after the other.
Bytes gelu(int64_t dtype, int64_t threads, const Bytes &x, const Bytes &gradient) {
  const int64_t size = int64_t(x.size()) / bytes_of(dtype);
  Bytes results = empty(dtype, 2 * size);
  regard_activation call = {dtype, threads, size, x.data(), nullptr, results.data()};
  if (regard_gelu(&call) != REGARD_DONE) return {};
  call.gradient = gradient.data();
  call.result = results.data() + size * bytes_of(dtype);
  return regard_gelu(&call) == REGARD_DONE ? results : Bytes();
}

std::string wrong_in_gelu(Random &random, int64_t dtype) {
  const int64_t size = 1 + random.below(random.chance(0.2) ? 30000 : 100);
  const Bytes x = drawn(random, dtype, size), gradient = drawn(random, dtype, size);
  const Bytes results = gelu(dtype, 1, x, gradient);
  if (results.empty()) return "GELU: no memory";
  for (int64_t i = 0; i < size; i++) {
    const double input = at(x, dtype, i), result = at(results, dtype, i);
    if (!(result >= std::fmin(0, input) && result <= std::fmax(0, input)))
      return "GELU: beyond its input";
    const double slope = at(gradient, dtype, i);
    if (!(std::fabs(at(results, dtype, size + i)) <= 1.15 * std::fabs(slope)))
      return "GELU: a gradient more than 1.13 times as large";
  }
  return gelu(dtype, 3, x, gradient) == results ? "" : "GELU: not the same bits with three threads";
}

// A random stream with its norm, and the gradients of both.
struct Stream {
  int64_t dtype, rows, width;
  bool rms;
  Bytes x, added, weight, bias, sum_gradient, normed_gradient;

  Stream(Random &random, int64_t dtype)
      : dtype(dtype), rows(1 + random.below(200)), width(2 + random.below(70)),
        rms(random.chance(0.3)) {
    x = drawn(random, REGARD_FLOAT32, rows * width);
    if (random.chance(0.7)) added = drawn(random, dtype, rows * width);
    weight = drawn(random, REGARD_FLOAT32, width);
    if (random.chance(0.5)) bias = drawn(random, REGARD_FLOAT32, width);
    if (random.chance(0.5)) sum_gradient = drawn(random, REGARD_FLOAT32, rows * width);
    normed_gradient = drawn(random, dtype, rows * width);
  }

  // All results; the norm comes first. None where there is no memory.
  std::vector<Bytes> results(int64_t threads) {
    const int64_t size = rows * width;
    Bytes sum = added.empty() ? Bytes() : empty(REGARD_FLOAT32, size);
    Bytes normed = empty(dtype, size);
    Bytes mean = empty(REGARD_FLOAT32, rows), factor = mean;
    const regard_residual_norm forward = {dtype,
                                          threads,
                                          rows,
                                          width,
                                          rms,
                                          1e-5,
                                          floats_of(x),
                                          data_of(added),
                                          floats_of(weight),
                                          floats_of(bias),
                                          floats_of(sum),
                                          normed.data(),
                                          floats_of(mean),
                                          floats_of(factor)};
    if (regard_residual_norm_forward(&forward) != REGARD_DONE) return {};
    Bytes x_gradient = empty(REGARD_FLOAT32, size);
    Bytes added_gradient = added.empty() ? Bytes() : empty(dtype, size);
    Bytes weight_gradient = empty(REGARD_FLOAT32, width);
    Bytes bias_gradient = bias.empty() ? Bytes() : weight_gradient;
    const regard_residual_norm_gradients backward = {dtype,
                                                     threads,
                                                     rows,
                                                     width,
                                                     rms,
                                                     floats_of(added.empty() ? x : sum),
                                                     floats_of(mean),
                                                     floats_of(factor),
                                                     floats_of(weight),
                                                     normed_gradient.data(),
                                                     floats_of(sum_gradient),
                                                     floats_of(x_gradient),
                                                     data_of(added_gradient),
                                                     floats_of(weight_gradient),
                                                     floats_of(bias_gradient)};
    if (regard_residual_norm_backward(&backward) != REGARD_DONE) return {};
    return {normed, sum, mean, factor, x_gradient, added_gradient, weight_gradient, bias_gradient};
  }
};

std::string wrong_in_norm(Random &random, int64_t dtype) {
  Stream stream(random, dtype);
  const std::vector<Bytes> results = stream.results(1);
  if (results.empty()) return "norm: no memory";
  for (int64_t i = 0; i < stream.rows * stream.width; i++)
    if (!std::isfinite(at(results[0], dtype, i))) return "norm: no number";
  return stream.results(3) == results ? "" : "norm: not the same bits with three threads";
}

// Random logits, whose losses and gradients come in memory of their own or in their place.
struct Logits {
  int64_t dtype, rows, vocabulary;
  Bytes logits, weights;
  std::vector<int64_t> targets;

  Logits(Random &random, int64_t dtype)
      : dtype(dtype), rows(1 + random.below(90)), vocabulary(1 + random.below(1000)) {
    logits = drawn(random, dtype, rows * vocabulary);
    weights = drawn(random, REGARD_FLOAT32, rows);
    for (int64_t row = 0; row < rows; row++)
      targets.push_back(random.chance(0.1) ? -100 : random.below(vocabulary));
  }

  // Losses and gradients; none where there is no memory.
  std::vector<Bytes> results(int64_t threads, bool in_place) {
    Bytes losses = empty(REGARD_FLOAT32, rows), changed = logits, gradient = logits;
    const regard_cross_entropy call = {dtype,
                                       threads,
                                       rows,
                                       vocabulary,
                                       in_place ? gradient.data() : changed.data(),
                                       targets.data(),
                                       floats_of(weights),
                                       floats_of(losses),
                                       gradient.data()};
    if (regard_cross_entropy_and_gradient(&call) != REGARD_DONE || changed != logits) return {};
    return {losses, gradient};
  }
};

std::string wrong_in_cross_entropy(Random &random, int64_t dtype) {
  Logits logits(random, dtype);
  const std::vector<Bytes> results = logits.results(1, false);
  if (results.empty()) return "cross-entropy: no memory, or logits that were changed";
  for (int64_t row = 0; row < logits.rows; row++) {
    const double loss = at(results[0], REGARD_FLOAT32, row);
    if (!(loss >= -1e-5 && loss < 100)) return "cross-entropy: a loss below 0, or no number";
  }
  return logits.results(3, true) == results
             ? ""
             : "cross-entropy: not the same bits with three threads, or in place";
}

}  // namespace

std::string wrong_pointwise(uint64_t seed) {
  Random random(seed);
  const int64_t dtype = random.below(3);
  const std::string name = "pointwise " + std::to_string(seed) + ", ";
  const std::string wrong = wrong_in_gelu(random, dtype);
  if (!wrong.empty()) return name + wrong;
  const std::string norm = wrong_in_norm(random, dtype);
  if (!norm.empty()) return name + norm;
  const std::string loss = wrong_in_cross_entropy(random, dtype);
  return loss.empty() ? "" : name + loss;
}

}  // namespace driver
