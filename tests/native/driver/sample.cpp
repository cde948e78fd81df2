#include "sample.h"

#include <sstream>

namespace driver {
namespace {

Sizes random_sizes(Random &random) {
  // Sizes at the edges of vectors, strips, tasks, blocks, chunks and panels.
  constexpr int64_t most_work = 1 << 20;
  for (;;) {
    Sizes s;
    s.batch = random.pick({1, 1, 2, 3});
    s.groups = random.pick({1, 1, 2, 3});
    s.heads = s.groups * random.pick({1, 1, 2, 5});
    s.queries =
        random.pick({1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 67, 129, 257, 1031});
    s.keys = random.pick({1, 2, 15, 16, 17, 63, 64, 65, 191, 192, 193, 257, 385, 511, 513, 1031});
    s.dim = random.pick({1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 67, 128, 255, 256});
    s.dim_value = random.chance(0.5) ? s.dim : random.pick({1, 3, 4, 8, 13, 16, 19, 33, 64, 256});
    if (random.chance(0.05)) {
      int64_t *const axes[] = {&s.batch, &s.groups, &s.queries, &s.keys, &s.dim, &s.dim_value};
      *axes[random.below(6)] = 0;
      if (s.groups == 0) s.heads = 0;
    }
    const int64_t entries = s.batch * s.heads * s.queries * s.keys;
    if (entries * (s.dim + s.dim_value) <= most_work) return s;
  }
}

Layout random_layout(Random &random) { return Layout(random.pick({0, 0, 1, 2, 3})); }

// Calls make(number) for each entry of a matrix that is shared along random axes.
template <class T, class Make>
Matrix<T> random_matrix(Random &random, const Sizes &s, Make make) {
  int64_t shape[4] = {s.batch, s.heads, s.queries, s.keys};
  for (int64_t &length : shape)
    if (random.chance(0.3)) length = 1;
  const bool by_columns = random.chance(0.2);
  Matrix<T> matrix;
  int64_t *const strides[] = {&matrix.batch, &matrix.head,
                              by_columns ? &matrix.column : &matrix.row,
                              by_columns ? &matrix.row : &matrix.column};
  const int64_t lengths[] = {shape[0], shape[1], shape[by_columns ? 3 : 2],
                             shape[by_columns ? 2 : 3]};
  int64_t count = 1;
  for (int axis = 3; axis >= 0; axis--) {
    *strides[axis] = lengths[axis] == 1 ? 0 : count;
    count *= lengths[axis];
  }
  matrix.numbers = Numbers<T>(count);
  for (int64_t i = 0; i < count; i++) matrix.numbers[i] = make();
  return matrix;
}

void random_rows(Random &random, Sample &sample) {
  const Sizes &s = sample.sizes;
  const int64_t position = random.chance(0.7) ? s.keys - s.queries : random.between(-3, s.keys);
  const int64_t size = random.between(1, s.keys + 1);
  sample.rows.position = position;
  sample.rows.stop_base = s.keys;
  switch (random.below(4)) {
    case 0:  // all keys
      return;
    case 2:  // a window
      sample.rows.start_base = position - size + 1, sample.rows.start_step = 1;
      [[fallthrough]];
    case 1:  // causal
      sample.rows.stop_base = position + 1, sample.rows.stop_step = 1;
      return;
  }
  const int64_t batch = random.pick({1, s.batch}), heads = random.pick({1, s.heads});
  const int64_t count = batch * heads * s.queries;
  sample.start = Numbers<int64_t>(count);
  sample.stop = Numbers<int64_t>(count);
  sample.positions = Numbers<int64_t>(count);
  for (int64_t i = 0; i < count; i++) {
    sample.start[i] = random.between(-2, s.keys);
    sample.stop[i] = random.chance(0.1) ? -1 : random.between(sample.start[i], s.keys + 2);
    sample.positions[i] = random.between(-3, s.keys + 3);
  }
  sample.rows = {};
  sample.rows.start = sample.start.data();
  sample.rows.stop = sample.stop.data();
  sample.rows.positions = sample.positions.data();
  sample.rows.batch = batch > 1 ? heads * s.queries : 0;
  sample.rows.head = heads > 1 ? s.queries : 0;
}

// Spans of a few shapes: the same keys for all rows or for those of some queries, any keys for each
// row. They overlap, and hide whole rows.
template <class Make>
void random_spans(Random &random, Sample &sample, Make make) {
  const Sizes &s = sample.sizes;
  const int64_t batch = random.pick({1, s.batch}), heads = random.pick({1, s.heads});
  const int64_t count = random.pick({1, 1, 2, 3, 7}), size = batch * heads * s.queries;
  sample.span_start = Numbers<int64_t>(count * size);
  sample.span_stop = Numbers<int64_t>(count * size);
  sample.span_added = Numbers<float>(count);
  for (int64_t n = 0; n < count; n++) {
    sample.span_added[n] = random.chance(0.6) ? -INFINITY : float(make());
    const int64_t start = random.below(s.keys + 1), stop = random.between(start, s.keys);
    const bool each = random.chance(0.3), some = random.chance(0.5);
    const int64_t first = random.below(s.queries + 1), last = random.between(first, s.queries);
    for (int64_t row = 0; row < size; row++) {
      const int64_t i = row % s.queries, at = n * size + row;
      sample.span_start[at] = each ? random.below(s.keys + 1) : start;
      sample.span_stop[at] = each ? random.between(sample.span_start[at], s.keys) : stop;
      if (some && (i < first || i >= last)) sample.span_stop[at] = sample.span_start[at];
    }
  }
  sample.spans = {
      .start = sample.span_start.data(),
      .stop = sample.span_stop.data(),
      .added = sample.span_added.data(),
      .count = count,
      .span = size,
      .batch = batch > 1 ? heads * s.queries : 0,
      .head = heads > 1 ? s.queries : 0,
  };
}

template <class Make>
Numbers<float> numbers_of(int64_t count, Make make) {
  Numbers<float> numbers(count);
  for (int64_t i = 0; i < count; i++) numbers[i] = float(make());
  return numbers;
}

// From near 1 to where gradients of a float16, or scores in a float32, would be infinite.
double random_power(Random &random, int64_t dtype) {
  return std::ldexp(1, int(dtype == REGARD_FLOAT16 ? random.pick({-1, 1, 4, 8, 11})
                                                   : random.pick({-1, 4, 8, 11, 15, 17, 33, 48})));
}

// Writes NaN or −∞ where nothing is seen and none may be read: keys and values, rows of queries.
void hide_nonfinite(const Sample &sample, Random &random, Sample &to) {
  const Sizes &s = sample.sizes;
  const double nonfinite = random.chance(0.5) ? std::nan("") : -INFINITY;
  std::vector<bool> key_seen(size_t(s.groups * s.keys)), sees(size_t(s.heads * s.queries));
  for (int64_t b = 0; b < s.batch; b++)  // for all entries at once, since they may share memory
    for (int64_t h = 0; h < s.heads; h++)
      for (int64_t i = 0; i < s.queries; i++)
        for (int64_t j = 0; j < s.keys; j++)
          if (sample.sees(b, h, i, j))
            key_seen[size_t(sample.group(h) * s.keys + j)] = sees[size_t(h * s.queries + i)] = true;
  const auto overwrite_unseen = [&](const std::vector<bool> &seen, int64_t rows, Tensor &tensor) {
    tensor.fill([&](int64_t b, int64_t h, int64_t i, int64_t d) {
      return seen[size_t(h * rows + i)] ? tensor.at(b, h, i, d) : nonfinite;
    });
  };
  overwrite_unseen(key_seen, s.keys, to.key);
  overwrite_unseen(key_seen, s.keys, to.value);
  overwrite_unseen(sees, s.queries, to.query);
  overwrite_unseen(sees, s.queries, to.context_gradient);
}

}  // namespace

Sample Sample::random(uint64_t seed) {
  Random random(seed);
  const Sizes s = random_sizes(random);
  const int64_t dtype = random.below(3);
  const bool exact = random.chance(0.2);
  const double size_of_signs = exact ? random_power(random, dtype) : 0;
  const double unit = size_of_signs * size_of_signs / 4;
  const auto tensor = [&](int64_t heads, int64_t rows, int64_t dim, Layout layout) {
    Tensor made(dtype, s.batch, heads, rows, dim, layout);
    const double size = random.pick({1, 1, 3});
    made.fill([&](auto...) { return size * random.normal(); });
    return made;
  };
  const auto factors = [&](int64_t heads, int64_t rows) {
    Tensor made = tensor(heads, rows, s.dim, random_layout(random));
    if (exact)
      made.fill([&](auto...) { return random.chance(0.5) ? size_of_signs : -size_of_signs; });
    return made;
  };
  const auto added = [&] { return exact ? unit * double(random.between(-3, 4)) : random.normal(); };
  Sample sample = {
      .seed = seed,
      .sizes = s,
      .dtype = dtype,
      .logit_unit = unit,
      .scale = exact                ? random.pick({-1, 1, 1}) / 4.0
               : random.chance(0.7) ? 1 / std::sqrt(double(s.dim ? s.dim : 1))
                                    : random.normal() / 2,
      .softcap = !exact && random.chance(0.2) ? double(random.pick({1, 5, 30})) : 0,
      .dropout = random.chance(0.2) ? 0.3 : 0,
      .dropout_seed = random.bits(),
      .query = factors(s.heads, s.queries),
      .key = factors(s.groups, s.keys),
      .value = tensor(s.groups, s.keys, s.dim_value, random_layout(random)),
      .context_gradient = tensor(s.heads, s.queries, s.dim_value, random_layout(random)),
      .start = {},
      .stop = {},
      .positions = {},
      .rows = {},
      .span_start = {},
      .span_stop = {},
      .span_added = {},
      .spans = {},
      .allowed = {},
      .bias = {},
      .alibi = {},
      .sink = {},
  };
  random_rows(random, sample);
  if (random.chance(0.2))
    sample.allowed = random_matrix<uint8_t>(random, s, [&] { return random.chance(0.8); });
  if (random.chance(0.2))
    sample.bias = random_matrix<float>(
        random, s, [&] { return random.chance(0.1) ? -INFINITY : float(added()); });
  if (random.chance(0.2)) sample.alibi = numbers_of(s.heads, added);
  if (random.chance(0.2)) sample.sink = numbers_of(s.heads, added);
  if (random.chance(0.4)) random_spans(random, sample, added);
  if (random.chance(0.3)) hide_nonfinite(sample, random, sample);
  return sample;
}

regard_problem Sample::problem(int64_t threads) const {
  const auto numbers = [](const Numbers<float> &n) { return regard_numbers{n.data(), 0, 1}; };
  return {
      .dtype = dtype,
      .threads = threads,
      .batch = sizes.batch,
      .heads = sizes.heads,
      .groups = sizes.groups,
      .queries = sizes.queries,
      .keys = sizes.keys,
      .dim = sizes.dim,
      .dim_value = sizes.dim_value,
      .scale = scale,
      .softcap = softcap,
      .dropout = dropout,
      .seed = dropout_seed,
      .query = query.view(),
      .key = key.view(),
      .value = value.view(),
      .rows = rows,
      .spans = spans,
      .allowed = allowed.view(),
      .bias = bias.view(),
      .alibi = numbers(alibi),
      .sink = numbers(sink),
  };
}

bool Sample::sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
  const int64_t at = b * rows.batch + h * rows.head + i;
  const int64_t first = start ? start[at] : rows.start_base + i * rows.start_step;
  const int64_t last = stop ? stop[at] : rows.stop_base + i * rows.stop_step;
  if (j < first || j >= last || added_by_spans(b, h, i, j) == -INFINITY) return false;
  if (allowed.numbers && !allowed.at(b, h, i, j)) return false;
  return !bias.numbers || bias.at(b, h, i, j) != -INFINITY;
}

bool Sample::spans_add() const {
  for (int64_t n = 0; n < spans.count; n++)
    if (!std::isinf(span_added[n])) return true;
  return false;
}

double Sample::added_by_spans(int64_t b, int64_t h, int64_t i, int64_t j) const {
  double sum = 0;
  for (int64_t n = 0; n < spans.count; n++) {
    const int64_t at = n * spans.span + b * spans.batch + h * spans.head + i;
    if (j >= span_start[at] && j < span_stop[at]) sum += double(span_added[n]);
  }
  return sum;
}

int64_t Sample::position(int64_t b, int64_t h, int64_t i) const {
  return positions ? positions[b * rows.batch + h * rows.head + i] : rows.position + i;
}

std::string Sample::text() const {
  std::ostringstream out;
  const char *const dtypes[] = {"float32", "bfloat16", "float16"};
  out << "sample " << seed << ": " << dtypes[dtype] << " B=" << sizes.batch << " H=" << sizes.heads
      << " G=" << sizes.groups << " L=" << sizes.queries << " S=" << sizes.keys
      << " D=" << sizes.dim << " Dv=" << sizes.dim_value << " scale=" << scale
      << " unit=" << logit_unit << " softcap=" << softcap << " dropout=" << dropout << " rows="
      << (start             ? "tables"
          : rows.start_step ? "window"
          : rows.stop_step  ? "causal"
                            : "all")
      << (spans.count ? " spans" : "") << (allowed.numbers ? " allowed" : "")
      << (bias.numbers ? " bias" : "") << (alibi ? " alibi" : "") << (sink ? " sink" : "");
  return out.str();
}

}  // namespace driver
