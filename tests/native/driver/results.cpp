#include "results.h"

#include <algorithm>

namespace driver {
namespace {

// So many of the keys in rising order, then where each goes in the result.
Numbers<int64_t> choose_keys(Random &random, int64_t keys, int64_t count) {
  Numbers<int64_t> chosen(2 * count);
  for (int64_t n = 0; n < count; n++) {
    chosen[n] = random.below(keys);
    chosen[count + n] = n;
  }
  std::sort(chosen.data(), chosen.data() + count);
  for (int64_t n = 0; n < count; n++)
    if (random.chance(0.2)) std::swap(chosen[count + n], chosen[count + random.below(count)]);
  return chosen;
}

Reading random_reading(Random &random, const Sample &sample, int64_t kind) {
  const Sizes &s = sample.sizes;
  const int64_t pairs = s.batch * s.heads;
  Reading reading = {.kind = kind,
                     .size = 0,
                     .columns = 0,
                     .height = s.queries,
                     .width = s.keys,
                     .length = s.queries,
                     .result = {},
                     .given = {},
                     .positions = {},
                     .keys = {}};
  const auto numbers = [&](int64_t count) {
    Numbers<float> given(count);
    for (int64_t n = 0; n < count; n++) given[n] = float(random.normal());
    return given;
  };
  switch (kind) {
    case REGARD_MASS:
      reading.given = Numbers<float>(s.keys);
      for (int64_t j = 0; j < s.keys; j++) reading.given[j] = float(random.below(2));
      break;
    case REGARD_TOP:
      reading.size = std::min(s.keys, random.pick({1, 2, 5, 8, 17, 40}));
      reading.length = s.queries * reading.size;
      reading.positions = Numbers<int64_t>(pairs * reading.length);
      break;
    case REGARD_WEIGHTS:
      reading.size = s.keys ? random.pick({1, 3, 16, 33}) : 0;
      reading.length = s.queries * reading.size;
      reading.keys = choose_keys(random, s.keys, reading.size);
      break;
    case REGARD_LAG:
      reading.size = random.between(-3, 20);
      reading.length = 2 * s.queries;
      if (!s.keys || random.chance(0.5)) break;
      reading.keys = Numbers<int64_t>(pairs * s.queries);
      for (int64_t i = 0; i < pairs * s.queries; i++)
        reading.keys[i] = random.below(s.keys + 1) - 1;
      break;
    case REGARD_SPANS:
      reading.size = random.pick({1, 2, 7, 33});
      reading.length = s.queries * reading.size;
      reading.keys = Numbers<int64_t>(s.keys);
      for (int64_t j = 0; j < s.keys; j++) reading.keys[j] = random.below(reading.size + 1) - 1;
      break;
    case REGARD_RECEIVED:
    case REGARD_MAX_RECEIVED: reading.length = s.keys; break;
    case REGARD_MAX_BLOCKS: {
      const int64_t rows = random.pick({1, 5, 16, 64}), columns = random.pick({1, 3, 32, 200});
      reading.size = (s.queries + rows - 1) / rows;
      reading.columns = (s.keys + columns - 1) / columns;
      reading.height = reading.size * rows;
      reading.width = reading.columns * columns;
      reading.length = reading.size * reading.columns;
      break;
    }
    case REGARD_LEFT_PRODUCT:
      reading.size = random.pick({1, 2, 7, 33});
      reading.length = reading.size * s.keys;
      reading.given = numbers(pairs * reading.size * s.queries);
      break;
    case REGARD_REPEATS: {
      reading.length = 6 * s.queries + 8 * s.keys;
      const int64_t count = std::max(s.queries, s.keys), tokens = random.pick({1, 3, 30});
      reading.keys = Numbers<int64_t>(2 * count);
      std::vector<int64_t> first(tokens, count), last(tokens);
      for (int64_t i = 0; i < count; i++) {
        const int64_t token = random.below(tokens);
        if (first[token] == count)
          first[token] = i;
        else
          reading.keys[count + last[token]] = i;
        reading.keys[i] = first[token];
        reading.keys[count + i] = count;
        last[token] = i;
      }
      break;
    }
    case REGARD_OFFSETS: reading.size = reading.length = random.pick({1, 2, 16, 33, 300}); break;
    case REGARD_IMAGE:
      reading.size = std::min(s.queries, random.pick({1, 2, 7, 64}));
      reading.columns = std::min(s.keys, random.pick({1, 3, 16, 50}));
      if (random.chance(0.5)) {  // the last pixels stick out, but do not lie beyond
        reading.height += (s.queries - 1) / std::max(int64_t(1), reading.size);
        reading.width += (s.keys - 1) / std::max(int64_t(1), reading.columns);
      }
      reading.length = reading.size * reading.columns;
      break;
  }
  if (kind == REGARD_MEAN_RECEIVED) reading.length = 2 * s.keys;
  reading.result = Numbers<float>(pairs * reading.length);
  return reading;
}

void succeed(int result) {
  if (result != REGARD_DONE) throw std::runtime_error("a computation ran out of memory");
}

bool is_possible(const Sample &sample, int64_t kind) {
  if (kind == REGARD_MAX_BLOCKS) return sample.sizes.queries && sample.sizes.keys;
  return kind != REGARD_MAX_SCORE || !sample.spans_add();
}

// Calls take(readouts) with those that are to be taken.
template <class Take>
std::vector<Reading> read_by(Random &random, const Sample &sample, const float *logsumexp,
                             int64_t first_key, int64_t last_key, Take take) {
  std::vector<Reading> readings;
  for (int64_t kind = REGARD_LOGSUMEXP; kind <= REGARD_REPEATS; kind++)
    if (random.chance(0.6) && is_possible(sample, kind))
      readings.push_back(random_reading(random, sample, kind));
  std::vector<regard_readout> list;
  list.reserve(readings.size());
  for (const Reading &r : readings)
    list.push_back({r.kind, r.result.data(), r.positions.data(), r.given_data(), r.size, r.columns,
                    r.height, r.width});
  const regard_readouts readouts = {logsumexp, first_key, last_key, int64_t(list.size()),
                                    list.data()};
  succeed(take(readouts));
  return readings;
}

std::vector<Reading> read(Random &random, const Sample &sample, const regard_problem &problem,
                          const float *logsumexp, int64_t first_key, int64_t last_key) {
  return read_by(random, sample, logsumexp, first_key, last_key,
                 [&](const auto &readouts) { return regard_read(&problem, &readouts); });
}

void differentiate(const regard_problem &problem, const Sample &sample, const Results &results) {
  const Sizes &s = sample.sizes;
  const auto wanted = [](bool wants, const Tensor &tensor) {
    return wants ? tensor.view() : regard_tensor{};
  };
  const regard_gradients gradients = {
      .context = results.context.view(),
      .context_gradient = sample.context_gradient.view(),
      .logsumexp = results.logsumexp.data(),
      .query = wanted(results.wants_query, results.query),
      .key = wanted(results.wants_key, results.key),
      .value = wanted(results.wants_value, results.value),
      .bias = {results.bias.data(), s.heads * s.queries * s.keys, s.queries * s.keys, s.keys, 1},
      .alibi = results.alibi.data(),
      .sink = results.sink.data(),
      .all_keys = 1,
  };
  succeed(regard_backward(&problem, &gradients));
}

bool same(const std::vector<Reading> &one, const std::vector<Reading> &other) {
  for (size_t i = 0; i < one.size(); i++)
    if (one[i].result.bytes() != other[i].result.bytes() ||
        one[i].positions.bytes() != other[i].positions.bytes())
      return false;
  return true;
}

// Whether one call that computes context and readouts gives the bits of two calls, where
// log-sum-exps are known and where they are not.
bool same_together(Random &random, const Sample &sample, const regard_problem &problem,
                   const Results &results, bool known) {
  const Sizes &s = sample.sizes;
  Random again = random;
  const std::vector<Reading> apart =
      read(random, sample, problem, known ? results.logsumexp.data() : nullptr, 0, s.keys);
  const Tensor context(sample.dtype, s.batch, s.heads, s.queries, s.dim_value, Layout::plain);
  const Numbers<float> logsumexp(s.batch * s.heads * s.queries);
  const regard_tensor view = context.view();
  const std::vector<Reading> together =
      read_by(again, sample, known ? logsumexp.data() : nullptr, 0, s.keys,
              [&](const regard_readouts &readouts) {
                return regard_forward_and_read(&problem, &view, logsumexp.data(), &readouts);
              });
  return same(apart, together) && context.bytes() == results.attended.bytes() &&
         logsumexp.bytes() == results.logsumexp.bytes();
}

}  // namespace

Results Results::of(const Sample &sample, int64_t threads) {
  Random random(sample.seed);
  const Sizes &s = sample.sizes;
  const auto tensor = [&](int64_t heads, int64_t rows, int64_t dim) {
    const auto layout = Layout(random.below(3));  // nothing that is written is shared
    return Tensor(sample.dtype, s.batch, heads, rows, dim, layout);
  };
  const auto numbers = [&](bool there, int64_t count) {
    return there && random.chance(0.8) ? Numbers<float>(count) : Numbers<float>();
  };
  const int64_t first = random.below(s.keys + 1), last = random.between(first, s.keys);
  Results results = {
      .context = tensor(s.heads, s.queries, s.dim_value),
      .attended = Tensor(sample.dtype, s.batch, s.heads, s.queries, s.dim_value, Layout::plain),
      .logsumexp = Numbers<float>(s.batch * s.heads * s.queries),
      .query = tensor(s.heads, s.queries, s.dim),
      .key = tensor(s.groups, s.keys, s.dim),
      .value = tensor(s.groups, s.keys, s.dim_value),
      .bias = numbers(bool(sample.bias.numbers), s.batch * s.heads * s.queries * s.keys),
      .alibi = numbers(bool(sample.alibi), s.batch * s.heads),
      .sink = numbers(bool(sample.sink), s.batch * s.heads),
      .wants_query = random.chance(0.8),
      .wants_key = random.chance(0.8),
      .wants_value = random.chance(0.8),
      .all = {},
      .part = {},
      .first_key = first,
      .last_key = last,
      .divergence = {},
      .together_as_apart = false,
  };
  const regard_problem problem = sample.problem(threads);
  const regard_tensor context = results.context.view();
  succeed(regard_forward(&problem, &context, results.logsumexp.data()));
  succeed(regard_attend(&problem, problem.query.data, problem.key.data, problem.value.data,
                        results.attended.view().data, threads));
  differentiate(problem, sample, results);
  regard_problem other = problem;
  other.scale *= Results::OTHER_SCALE;
  Numbers<float> logsumexp(s.batch * s.heads * s.queries);
  succeed(regard_forward(&other, &context, logsumexp.data()));
  succeed(regard_forward(&problem, &context, results.logsumexp.data()));
  for (int64_t kind = REGARD_KL; kind <= REGARD_TV; kind++) {
    results.divergence[kind] = Numbers<double>(s.batch * s.heads * s.queries);
    const regard_divergence divergence = {kind, results.logsumexp.data(), logsumexp.data(),
                                          results.divergence[kind].data()};
    succeed(regard_compare(&problem, &other, &divergence));
  }
  results.all = read(random, sample, problem, nullptr, 0, s.keys);
  results.part = read(random, sample, problem, results.logsumexp.data(), first, last);
  results.together_as_apart = same_together(random, sample, problem, results, true) &&
                              same_together(random, sample, problem, results, false);
  return results;
}

std::string Results::difference(const Results &other) const {
  const std::pair<const char *, bool> checks[] = {
      {"context", context.bytes() == other.context.bytes()},
      {"context by regard_attend", attended.bytes() == other.attended.bytes()},
      {"logsumexp", logsumexp.bytes() == other.logsumexp.bytes()},
      {"gradient of query", query.bytes() == other.query.bytes()},
      {"gradient of key", key.bytes() == other.key.bytes()},
      {"gradient of value", value.bytes() == other.value.bytes()},
      {"gradient of bias", bias.bytes() == other.bias.bytes()},
      {"gradient of alibi", alibi.bytes() == other.alibi.bytes()},
      {"gradient of sink", sink.bytes() == other.sink.bytes()},
      {"divergence", divergence[0].bytes() == other.divergence[0].bytes() &&
                         divergence[1].bytes() == other.divergence[1].bytes() &&
                         divergence[2].bytes() == other.divergence[2].bytes()},
      {"readouts", same(all, other.all)},
      {"readouts of some keys", same(part, other.part)},
  };
  for (const auto &[what, holds] : checks)
    if (!holds) return what;
  return "";
}

}  // namespace driver
