// A panel of keys in the backward pass: what one block of queries adds to the gradients of its keys
// and values, and they to that of the queries.
#pragma once

#include "forward.h"
#include "gradient_tile.h"
#include "score_gradients.h"

namespace regard::REGARD_SET {

constexpr int32_t GRADIENT_BLOCK = 192;  // keys whose weights and gradients stay in the first cache
static_assert(GRADIENT_BLOCK <= FORWARD_BLOCK && GRADIENT_BLOCK % STRIP == 0);
constexpr int32_t MAX_PANEL_KEYS = 1024, MIN_PANEL_KEYS = 256;

// It depends on the problem but not on its batch, and so does the order of every sum.
REGARD_INLINE int32_t panel_keys(const regard_problem &p) {
  const int64_t quarter = (p.keys + 3) / 4, whole_strips = (quarter + STRIP - 1) / STRIP * STRIP;
  return int32_t(max(int64_t(MIN_PANEL_KEYS), min(int64_t(MAX_PANEL_KEYS), whole_strips)));
}

// A thread's memory for a panel.
struct PanelScratch {
  float *query, *gradient;            // see QueryRows
  float *query_rows, *gradient_rows;  // likewise
  float *query_share;      // (QUERIES, padded(dim)): the panel's share of the queries' gradient
  float *weights;          // (GRADIENT_BLOCK, QUERIES)
  float *score_gradients;  // likewise; at first, gradients of the weights
  float *products;         // likewise: inputs of the softcap
  float *packed;           // two of them: see SegmentGradients
  float *key, *value;      // (panel_keys, padded(dim or dim_value)): see KeyPanel
  float *summed_keys;      // likewise
  float *key_gradient, *value_gradient;  // likewise
  BlockSpan *spans;

  static size_t size(const regard_problem &p) {
    const int64_t dim = padded(p.dim), dim_value = padded(p.dim_value);
    const int64_t of_rows = 3 * dim + 2 * dim_value + 5 * GRADIENT_BLOCK;
    return size_t(of_rows * QUERIES + panel_keys(p) * (3 * dim + 2 * dim_value)) * sizeof(float) +
           span_bytes(p);
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
    summed_keys = key + keys * dim;
    key_gradient = summed_keys + keys * dim;
    value = key_gradient + keys * dim;
    value_gradient = value + keys * dim_value;
    spans = (BlockSpan *)(value_gradient + keys * dim_value);
  }
};

// Keys [first, last) of a group. For a product that sums over keys, they are packed as values are.
template <class Arithmetic>
struct KeyPanel {
  int64_t batch, group;
  int32_t first, last;
  PackedRows<typename Arithmetic::Number> keys = {}, values = {}, summed_keys = {};
};

// The weights of a segment, 0 where a key is hidden, even if the normalizer is NaN.
template <class Arithmetic>
static void find_weights(const QueryRows &rows, const Segment &segment, float factor,
                         float *scores) {
  for (int j = segment.first; j < segment.last; j++) {
    const floats peak = rows.peak[j], log = rows.log[j];
#pragma GCC unroll 4
    for (int64_t at = j * LANES; at < segment.keys * QUERIES; at += QUERIES) {
      const floats score = load(scores + at);
      const floats weight = Arithmetic::exponential((score - peak) * factor - log);
      store(scores + at, score == broadcast(HIDDEN) ? floats{} : weight);
    }
  }
}

// From dot products to the weights of a segment and the gradients of its dot products.
template <class Arithmetic>
static void differentiate(const regard_problem &p, const regard_gradients &g,
                          const Scoring &scoring, const QueryBlock &queries, const QueryRows &rows,
                          const Segment &segment, const PanelScratch &scratch, floats *alibi) {
  float *weights = scratch.weights, *gradients = scratch.score_gradients;
  floats peak[VECTORS] = {};
  ints seen[VECTORS] = {};
  if (p.softcap > 0)
    memcpy(scratch.products, weights, size_t(segment.keys) * QUERIES * sizeof(float));
  if (scoring.adjusted)
    adjust_scores(p, queries, segment, weights, peak, seen);
  else if (segment.edge)
    apply_mask(p, scoring, queries, segment, weights, peak, peak);
  find_weights<Arithmetic>(rows, segment, scoring.factor, weights);
  if (p.dropout > 0)
    differentiate_dropout(p, queries, rows, segment, weights, gradients);
  else
    differentiate_softmax(rows, segment, weights, gradients);
  if (g.bias.data) write_bias_gradient(g.bias, queries, segment, gradients);
  if (g.alibi) add_alibi_gradient(queries, segment, gradients, alibi);
  if (p.softcap > 0) differentiate_softcap(p, segment, scratch.products, gradients);
}

// Calls fetch(n) before each of six pieces of the work, n from 0 on.
template <class Arithmetic, class Fetch>
static void backward_segment(const regard_problem &p, const regard_gradients &g,
                             const Scoring &scoring, const KeyPanel<Arithmetic> &panel,
                             const QueryBlock &queries, const QueryRows &rows,
                             const Segment &segment, const PanelScratch &scratch, floats *alibi,
                             Fetch fetch) {
  constexpr int STEP = Arithmetic::STEP;
  const auto steps = [](int64_t count) { return (count + STEP - 1) / STEP; };
  const int32_t key = segment.key - panel.first;
  const auto from_key = [&](auto rows, int rows_together) {
    rows.data += key / rows_together * rows.stride;
    return rows;
  };
  const auto keys = from_key(panel.keys, 1), values = from_key(panel.values, 1);
  const auto summed_keys = from_key(panel.summed_keys, STEP);
  const int first_row = segment.first * LANES, stop_row = min(segment.last * LANES, queries.count);

  floats ignored[VECTORS] = {};
  fetch(0);
  with_live(segment.last - segment.first, [&](auto live) {
    score_rows<typename Arithmetic::Products, live>(keys.data, keys.stride, segment.keys,
                                                    steps(p.dim), rows.query + first_row,
                                                    scratch.weights + first_row, ignored);
    fetch(1);
    score_rows<typename Arithmetic::Products, live>(values.data, values.stride, segment.keys,
                                                    steps(p.dim_value), rows.gradient + first_row,
                                                    scratch.score_gradients + first_row, ignored);
  });
  fetch(2);
  differentiate<Arithmetic>(p, g, scoring, queries, rows, segment, scratch, alibi);
  const auto gradients =
      Arithmetic::pack(segment, scratch.weights, scratch.score_gradients, scratch.packed);

  // Where all is visible, NaN may spread; elsewhere what is hidden must not.
  const bool plain = !segment.edge && !scoring.adjusted;
  const auto sum_rows = plain || rows.finite ? gradient_rows<typename Arithmetic::Products>
                                             : gradient_rows_of_visible<Arithmetic>;
  fetch(3);
  if (g.value.data)
    sum_rows(gradients.weights, rows.gradient_rows, padded(p.dim_value), first_row, stop_row,
             segment.keys, scratch.value_gradient + key * padded(p.dim_value));
  fetch(4);
  if (g.key.data)
    sum_rows(gradients.scores, rows.query_rows, padded(p.dim), first_row, stop_row, segment.keys,
             scratch.key_gradient + key * padded(p.dim));
  fetch(5);
  if (!g.query.data) return;
  if (!plain && !Arithmetic::finite(summed_keys, segment.keys, p.dim))
    return query_gradient_of_visible<Arithmetic>(summed_keys, segment, padded(p.dim),
                                                 gradients.lanes, scratch.query_share);
  const AddToSums write = {scratch.query_share, padded(p.dim)};
  add_rows<Arithmetic>(summed_keys, {0, segment.keys}, gradients.lanes, first_row, stop_row,
                       padded(p.dim), write);
}

// What is fetched while a block is computed, little by little, since the core waits while more
// lines are under way than it can keep track of: where gradients go, and what the thread reads
// next. In small problems everything is new to the cache.
template <class Arithmetic>
struct FetchAhead {
  const regard_problem &p;
  const regard_gradients &g;
  const KeyPanel<Arithmetic> &panel;
  const QueryBlock &queries;
  QueryBlock next;        // of queries; it has no rows where none follows
  bool last_of_panel;     // after these queries the panel's gradients are written
  int64_t next_keys = 0;  // of the panel that follows, another group's first one

  __attribute__((noinline)) void operator()(int piece, const Part &part) const {
    asm volatile("");  // or GCC takes it for a function without effect
    using Element = typename Arithmetic::Element;
    const int64_t keys = panel.last - panel.first;
    if (piece == 0 && g.query.data) fetch_rows<Element>(g.query, queries, p.dim, part);
    if (piece == 1) fetch_rows<Element>(p.query, next, p.dim, part);
    if (piece == 2) fetch_rows<Element>(g.context_gradient, next, p.dim_value, part);
    if (piece == 3) fetch_rows<Element>(g.context, next, p.dim_value, part);
    if (piece == 4 && next_keys) {
      fetch_keys<Element>(p.key, next, 0, next_keys, p.dim, part);
      fetch_keys<Element>(p.value, next, 0, next_keys, p.dim_value, part);
    }
    if (piece != 5 || !last_of_panel) return;
    if (g.key.data) fetch_keys<Element>(g.key, queries, panel.first, keys, p.dim, part);
    if (g.value.data) fetch_keys<Element>(g.value, queries, panel.first, keys, p.dim_value, part);
  }
};

// Everything between a panel's keys and a block of queries, whose gradient is left in query_share.
template <class Arithmetic>
static void backward_queries(const regard_problem &p, const regard_gradients &g,
                             const Scoring &scoring, const KeyPanel<Arithmetic> &panel,
                             const QueryBlock &queries, const QueryRows &rows,
                             const PanelScratch &scratch, const FetchAhead<Arithmetic> &ahead,
                             floats *alibi) {
  memset(scratch.query_share, 0, size_t(padded(p.dim)) * QUERIES * sizeof(float));
  const int32_t first = max(queries.first_key, panel.first),
                last = min(queries.stop_key, panel.last);
  const auto over = [&](int32_t from, int32_t to, bool common) {
    from = max(from, panel.first), to = min(to, panel.last);
    for (int32_t key = from; key < to; key += GRADIENT_BLOCK) {
      Segment segments[MAX_SEGMENTS];
      const int32_t end = min(key + GRADIENT_BLOCK, to);
      const int count = split_into_segments(queries, key, end,
                                            common ? KeyRange{key, end} : KeyRange{}, segments);
      for (int n = 0; n < count; n++) {
        const int32_t start = segments[n].key, stop = start + segments[n].keys;
        const Part part = {max(start, first) - first, min(stop, last) - first, last - first};
        const auto fetch = [&](int piece) { ahead(piece, part); };
        backward_segment(p, g, scoring, panel, queries, rows, segments[n], scratch, alibi, fetch);
      }
    }
  };
  // Keys that are multiplied together stay together, and no segment is shorter than a strip.
  const auto down = [](int32_t key) { return key / STRIP * STRIP; };
  const auto up = [&](int32_t key) { return down(key + STRIP - 1); };
  const int32_t common_start = up(queries.common_start), common_stop = down(queries.common_stop);
  if (common_start < common_stop && !rows.fully_masked) {
    over(down(queries.first_key), common_start, false);
    over(common_start, common_stop, true);
    over(common_stop, up(queries.stop_key), false);
  } else {
    over(down(queries.first_key), up(queries.stop_key), false);
  }
}

// Writes the gradient of a panel's keys or values.
template <class Arithmetic>
static void store_panel(const float *from, const KeyPanel<Arithmetic> &panel, int64_t dim,
                        float factor, const regard_tensor &to) {
  using Element = typename Arithmetic::Element;
  auto *data = (typename Element::type *)to.data + panel.batch * to.batch + panel.group * to.head +
               panel.first * to.row;
  const int64_t count = panel.last - panel.first, stride = to.row;  // see BlockRows
  for (int64_t k = 0; k < count; k++)
    for (int64_t d = 0; d < dim; d += LANES)
      narrow_part(Element(), data + k * stride + d, load(from + k * padded(dim) + d) * factor,
                  dim - d);
}

}  // namespace regard::REGARD_SET
