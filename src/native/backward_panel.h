// A panel of keys in the backward pass: what one task of queries adds to the gradients of its keys
// and values, and they to that of the task's queries.
#pragma once

#include "forward.h"
#include "gradient_tile.h"
#include "score_gradients.h"

namespace regard::REGARD_SET {

constexpr int32_t GRADIENT_BLOCK = 192;  // keys whose weights and gradients stay in the first cache
static_assert(GRADIENT_BLOCK <= BLOCK && GRADIENT_BLOCK % STRIP == 0);
constexpr int32_t MOST_PANEL_KEYS = 1024, LEAST_PANEL_KEYS = 256;

// A function of the problem without its batch: so is, then, the order of every sum.
REGARD_INLINE int32_t panel_keys(const regard_problem &p) {
  const int64_t quarter = (p.keys + 3) / 4, whole_strips = (quarter + STRIP - 1) / STRIP * STRIP;
  return int32_t(most(int64_t(LEAST_PANEL_KEYS), least(int64_t(MOST_PANEL_KEYS), whole_strips)));
}

// What a thread needs for a panel.
struct PanelScratch {
  float *query, *gradient;            // see TaskRows
  float *query_rows, *gradient_rows;  // likewise
  float *query_share;                 // (dim, QUERIES): the panel's share of the queries' gradient
  float *weights;                     // (GRADIENT_BLOCK, QUERIES)
  float *score_gradients;             // likewise; at first, gradients of the weights
  float *products;                    // likewise: what the softcap was given
  float *packed;                      // two of them: see RunGradients
  float *key, *value;                 // (panel_keys, padded(dim or dim_value)): see KeyPanel
  float *key_pairs;                   // likewise
  float *key_gradient, *value_gradient;  // likewise

  static size_t size(const regard_problem &p) {
    const int64_t dim = padded(p.dim), dim_value = padded(p.dim_value);
    const int64_t of_rows = 3 * dim + 2 * dim_value + 5 * GRADIENT_BLOCK;
    return size_t(of_rows * QUERIES + panel_keys(p) * (3 * dim + 2 * dim_value)) * sizeof(float);
  }
  PanelScratch(const regard_problem &p, void *memory) {
    const int64_t dim = padded(p.dim), dim_value = padded(p.dim_value), keys = panel_keys(p);
    query = (float *)memory;
    query_rows = query + dim * QUERIES;
    query_share = query_rows + dim * QUERIES;
    gradient = query_share + dim * QUERIES;
    gradient_rows = gradient + dim_value * QUERIES;
    weights = gradient_rows + dim_value * QUERIES;
    score_gradients = weights + GRADIENT_BLOCK * QUERIES;
    products = score_gradients + GRADIENT_BLOCK * QUERIES;
    packed = products + GRADIENT_BLOCK * QUERIES;
    key = packed + 2 * GRADIENT_BLOCK * QUERIES;
    key_pairs = key + keys * dim;
    key_gradient = key_pairs + keys * dim;
    value = key_gradient + keys * dim;
    value_gradient = value + keys * dim_value;
  }
};

// Keys [first, last) of a group. For a product that sums over keys, they lie as values do.
template <class Arithmetic>
struct KeyPanel {
  int64_t batch, group;
  int32_t first, last;
  Panel<typename Arithmetic::Number> keys = {}, values = {}, summed_keys = {};
};

// The weights of a run, 0 where a key is hidden, though the norm be NaN.
template <class Arithmetic>
static void find_weights(const TaskRows &rows, const Run &run, float factor, float *scores) {
  for (int j = run.first; j < run.last; j++) {
    const floats peak = rows.peak[j], log = rows.log[j];
#pragma GCC unroll 4
    for (int64_t at = j * LANES; at < run.keys * QUERIES; at += QUERIES) {
      const floats score = load(scores + at);
      const floats weight = Arithmetic::exponential((score - peak) * factor - log);
      store(scores + at, score == all(HIDDEN) ? floats{} : weight);
    }
  }
}

// From dot products to the weights of a run and the gradients of its dot products.
template <class Arithmetic>
static void differentiate(const regard_problem &p, const regard_gradients &g,
                          const Scoring &scoring, const Task &task, const TaskRows &rows,
                          const Run &run, bool common, const PanelScratch &scratch, floats *alibi) {
  float *weights = scratch.weights, *gradients = scratch.score_gradients;
  floats peak[VECTORS] = {};
  ints seen[VECTORS] = {};
  if (p.softcap > 0) memcpy(scratch.products, weights, size_t(run.keys) * QUERIES * sizeof(float));
  if (scoring.adjusted)
    adjust(p, task, run, weights, peak, seen);
  else if (!common)
    hide(task, run, weights, peak);
  find_weights<Arithmetic>(rows, run, scoring.factor, weights);
  if (p.dropout > 0)
    differentiate_dropout(p, task, rows, run, weights, gradients);
  else
    differentiate_softmax(rows, run, weights, gradients);
  if (g.bias.data) write_bias_gradient(g.bias, task, run, gradients);
  if (g.alibi) add_alibi_gradient(task, run, gradients, alibi);
  if (p.softcap > 0) differentiate_softcap(p, run, scratch.products, gradients);
}

template <class Arithmetic>
static void backward_run(const regard_problem &p, const regard_gradients &g, const Scoring &scoring,
                         const KeyPanel<Arithmetic> &panel, const Task &task, const TaskRows &rows,
                         const Run &run, bool common, const PanelScratch &scratch, floats *alibi) {
  constexpr int STEP = Arithmetic::STEP;
  const auto steps = [](int64_t count) { return (count + STEP - 1) / STEP; };
  const int32_t key = run.key - panel.first;
  const auto from_key = [&](auto lying, int rows_together) {
    lying.data += key / rows_together * lying.stride;
    return lying;
  };
  const auto keys = from_key(panel.keys, 1), values = from_key(panel.values, 1);
  const auto summed_keys = from_key(panel.summed_keys, STEP);
  const int first_row = run.first * LANES, last_row = least(run.last * LANES, task.count);

  floats ignored[VECTORS] = {};
  with_live(run.last - run.first, [&](auto live) {
    score_rows<typename Arithmetic::Products, live>(keys.data, keys.stride, run.keys, steps(p.dim),
                                                    rows.query + first_row,
                                                    scratch.weights + first_row, ignored);
    score_rows<typename Arithmetic::Products, live>(values.data, values.stride, run.keys,
                                                    steps(p.dim_value), rows.gradient + first_row,
                                                    scratch.score_gradients + first_row, ignored);
  });
  differentiate<Arithmetic>(p, g, scoring, task, rows, run, common, scratch, alibi);
  const auto gradients =
      Arithmetic::pack(run, scratch.weights, scratch.score_gradients, scratch.packed);

  // Where all is visible, NaN may spread; elsewhere what is hidden must not.
  const bool plain = common && !scoring.adjusted;
  const auto sum_rows = plain || rows.finite ? gradient_rows<typename Arithmetic::Products>
                                             : careful_gradient_rows<Arithmetic>;
  if (g.value.data)
    sum_rows(gradients.weights, rows.gradient_rows, padded(p.dim_value), first_row, last_row,
             run.keys, scratch.value_gradient + key * padded(p.dim_value));
  if (g.key.data)
    sum_rows(gradients.scores, rows.query_rows, padded(p.dim), first_row, last_row, run.keys,
             scratch.key_gradient + key * padded(p.dim));
  if (!g.query.data) return;
  if (!plain && !Arithmetic::finite(summed_keys, run.keys, p.dim))
    return careful_query_gradient<Arithmetic>(summed_keys, run, p.dim, gradients.lanes,
                                              scratch.query_share);
  with_live(run.last - run.first, [&](auto live) {
    context_rows<typename Arithmetic::Products, live>(
        summed_keys.data, summed_keys.stride, steps(run.keys), p.dim, gradients.lanes + first_row,
        scratch.query_share + first_row);
  });
}

// Everything between a panel's keys and a task's rows; their gradient is left in query_share.
template <class Arithmetic>
static void backward_task(const regard_problem &p, const regard_gradients &g,
                          const Scoring &scoring, const KeyPanel<Arithmetic> &panel,
                          const Task &task, const TaskRows &rows, const PanelScratch &scratch,
                          floats *alibi) {
  memset(scratch.query_share, 0, size_t(padded(p.dim)) * QUERIES * sizeof(float));
  const auto over = [&](int32_t from, int32_t to, bool common) {
    from = most(from, panel.first), to = least(to, panel.last);
    for (int32_t key = from; key < to; key += GRADIENT_BLOCK) {
      Run runs[MOST_RUNS];
      const int32_t end = least(key + GRADIENT_BLOCK, to);
      const int count = split(task, key, end, common ? Span{key, end} : Span{}, runs);
      for (int n = 0; n < count; n++)
        backward_run(p, g, scoring, panel, task, rows, runs[n], common, scratch, alibi);
    }
  };
  // Keys that are multiplied together must not be parted.
  const auto down = [](int32_t key) { return key / Arithmetic::STEP * Arithmetic::STEP; };
  const auto up = [&](int32_t key) { return down(key + Arithmetic::STEP - 1); };
  const int32_t common_start = up(task.common_start), common_stop = down(task.common_stop);
  if (common_start < common_stop && !rows.fully_masked) {
    over(down(task.first_key), common_start, false);
    over(common_start, common_stop, true);
    over(common_stop, up(task.last_key), false);
  } else {
    over(down(task.first_key), up(task.last_key), false);
  }
}

// Writes the gradient of a panel's keys or values.
template <class Arithmetic>
static void store_panel(const float *from, const KeyPanel<Arithmetic> &panel, int64_t dim,
                        float factor, const regard_tensor &to) {
  using Element = typename Arithmetic::Element;
  auto *data = (typename Element::type *)to.data + panel.batch * to.batch + panel.group * to.head +
               panel.first * to.row;
  for (int32_t k = 0; k < panel.last - panel.first; k++)
    for (int64_t d = 0; d < dim; d += LANES)
      narrow_part(Element(), data + k * to.row + d, load(from + k * padded(dim) + d) * factor,
                  dim - d);
}

}  // namespace regard::REGARD_SET
