// One block of queries against one panel of keys in the backward pass.
//
// It adds to the gradients of the panel's keys and values, and to that of the block's queries.
#pragma once

#include "forward.h"
#include "gradient_tile.h"
#include "key_panel.h"
#include "score_gradients.h"
#include "slope_gradients.h"

namespace regard::REGARD_SET {

static_assert(GRADIENT_BLOCK <= FORWARD_BLOCK && GRADIENT_BLOCK % STRIP == 0);

// The weights of a vector's scores, 0 where a key is hidden, even if the normalizer is NaN.
template <class Arithmetic>
REGARD_INLINE floats weights_of(floats score, floats peak, floats log, float factor) {
  const floats weight = Arithmetic::exponential((score - peak) * factor - log);
  return score == broadcast(HIDDEN) ? floats{} : weight;
}

template <class Arithmetic>
static void find_weights(const QueryRows &rows, const Segment &segment, float factor,
                         float *scores) {
  for (int j = segment.first; j < segment.last; j++)
    for (int64_t at = j * LANES; at < segment.keys * QUERIES; at += QUERIES)
      store(scores + at,
            weights_of<Arithmetic>(load(scores + at), rows.peak[j], rows.log[j], factor));
}

// Packs weights and score gradients; get(j, at, weight, gradient) computes a vector of them.
template <class Arithmetic, class Get>
REGARD_INLINE void pack(const Segment &segment,
                        const PackedGradients<typename Arithmetic::Number> &to, Get get) {
  for (int j = segment.first; j < segment.last; j++)
    for (int32_t k = 0; k < segment.keys; k += 2) {
      const int64_t at = k * QUERIES + j * LANES;
      floats weights[2] = {}, gradients[2] = {};
      get(j, at, weights[0], gradients[0]);
      if (k + 1 < segment.keys) get(j, at + QUERIES, weights[1], gradients[1]);
      Arithmetic::store_pair(to, at, weights, gradients);
    }
}

// Computes the weights of a segment from its dot products, and the gradients of the latter.
template <class Arithmetic>
static void differentiate(const regard_problem &p, const regard_gradients &g,
                          const Scoring &scoring, const QueryBlock &queries, const QueryRows &rows,
                          const Segment &segment, const PanelScratch &scratch, float *gradients,
                          const PackedGradients<typename Arithmetic::Number> &to,
                          SlopeSums &slopes) {
  float *weights = scratch.weights;
  floats peak[VECTORS] = {};
  ints seen[VECTORS] = {};
  if (p.softcap > 0)
    memcpy(scratch.products, weights, size_t(segment.keys) * QUERIES * sizeof(float));
  if (scoring.adjusted)
    adjust_scores(p, queries, segment, weights, peak, seen);
  else if (segment.edge)
    apply_mask(p, scoring, queries, segment, weights, peak, peak);
  if (p.dropout == 0 && p.softcap == 0 && !g.bias.data && !g.alibi) {
    const float factor = scoring.factor;
    return pack<Arithmetic>(
        segment, to, [&](int j, int64_t at, floats &weight, floats &gradient) REGARD_INLINE_LAMBDA {
          weight = weights_of<Arithmetic>(load(weights + at), rows.peak[j], rows.log[j], factor);
          gradient = score_gradient(weight, load(gradients + at), rows.delta[j]);
        });
  }
  find_weights<Arithmetic>(rows, segment, scoring.factor, weights);
  if (g.alibi) add_moments(queries, segment, weights, slopes.weights, slopes.distances);
  if (p.dropout > 0)
    differentiate_dropout(p, queries, rows, segment, weights, gradients);
  else
    differentiate_softmax(rows, segment, weights, gradients);
  if (g.bias.data) write_bias_gradient(g.bias, queries, segment, gradients);
  if (g.alibi) add_moments(queries, segment, gradients, slopes.gradients, slopes.moments);
  if (p.softcap > 0) differentiate_softcap(p, segment, scratch.products, gradients);
  pack<Arithmetic>(segment, to, [&](int, int64_t at, floats &weight, floats &gradient) {
    weight = load(weights + at), gradient = load(gradients + at);
  });
}

// Adds the contribution to the gradients of a segment's keys or values, Σ_r numbers[k][r] ·
// rows[r], to the sums over the panel's blocks of queries, (keys, padded(dim)); for `is_new` see
// begin_sums.
template <class Arithmetic>
static void add_key_gradient(const KeyPanel<Arithmetic> &panel, const QueryBlock &queries,
                             const Segment &segment, bool is_new, bool visible_only,
                             const typename Arithmetic::Number *numbers,
                             const PackedRows<float> &rows, int64_t dim, float *sums, float factor,
                             const regard_tensor &to) {
  using Element = typename Arithmetic::Element;
  const int first_row = segment.first * LANES, stop_row = min(segment.last * LANES, queries.count);
  const int64_t key = segment.key - panel.first, width = padded(dim);
  const auto results = panel.rows_of(to);
  RowWriter<Element, ConsecutiveRows<typename Element::type>> write = {
      .sums = sums + key * width,
      .width = width,
      .add = !is_new,
      .last = panel.visited_once,
      .factors = {&factor, 0},
      .rows = {results[key], results.stride},
      .dim = dim};
  if (!visible_only)
    return gradient_rows<typename Arithmetic::Products>(numbers, rows, width, first_row, stop_row,
                                                        segment.keys, write);
  if (is_new) memset(write.sums, 0, size_t(segment.keys * width) * sizeof *sums);
  gradient_rows_of_visible<Arithmetic>(numbers, rows, width, first_row, stop_row, segment.keys,
                                       write.sums);
  if (panel.visited_once)
    store_panel(sums, panel, segment.key, segment.key + segment.keys, dim, factor, to);
}

// Calls fetch(n) before each of six parts of the work, n from 0 on. The score gradients of a
// segment have the same offset in keys from those of the block's first key as its keys have.
template <class Arithmetic, class Fetch>
static void backward_segment(const regard_problem &p, const regard_gradients &g,
                             const Scoring &scoring, KeyPanel<Arithmetic> &panel,
                             const QueryBlock &queries, const QueryRows &rows,
                             const Segment &segment, int32_t keys_before,
                             const PanelScratch &scratch, SlopeSums &slopes, Fetch fetch) {
  constexpr int STEP = Arithmetic::STEP;
  const auto steps = [](int64_t count) { return (count + STEP - 1) / STEP; };
  const int32_t key = segment.key - panel.first;
  const int first_row = segment.first * LANES;
  float *gradients = scratch.score_gradients + keys_before * QUERIES;

  floats ignored[VECTORS] = {};
  fetch(0);
  with_live(segment.last - segment.first, [&](auto live) {
    score_rows<typename Arithmetic::Products, live>(
        panel.keys.data + key * panel.keys.stride, panel.keys.stride, segment.keys, steps(p.dim),
        rows.query + first_row, scratch.weights + first_row, ignored);
    fetch(1);
    score_rows<typename Arithmetic::Products, live>(
        panel.values.data + key * panel.values.stride, panel.values.stride, segment.keys,
        steps(p.dim_value), rows.gradient + first_row, gradients + first_row, ignored);
  });
  fetch(2);
  const auto packed = Arithmetic::packed(scratch.weights, gradients, scratch.packed, keys_before);
  differentiate<Arithmetic>(p, g, scoring, queries, rows, segment, scratch, gradients, packed,
                            slopes);
  if constexpr (STEP > 1)  // the lane that pairs with the last row: else NaN for infinite keys
    if (queries.count % STEP) Arithmetic::clear_row(packed, segment.keys, queries.count);

  // If all keys are visible, NaN may spread; else hidden NaN must not.
  const bool visible_only = (segment.edge || scoring.adjusted) && !rows.finite;
  const bool is_new = panel.visited_once || begin_sums(p, segment, scratch, panel);
  fetch(3);
  if (g.value.data)
    add_key_gradient(panel, queries, segment, is_new, visible_only, packed.weights,
                     rows.gradient_rows, p.dim_value, scratch.value_gradient, dropout_scale(p),
                     g.value);
  fetch(4);
  if (g.key.data)
    add_key_gradient(panel, queries, segment, is_new, visible_only, packed.scores, rows.query_rows,
                     p.dim, scratch.key_gradient, float(p.scale), g.key);
  fetch(5);
}

// Prefetches the destinations of gradients and the thread's next inputs while a block is computed,
// a few lines at a time, since a core stalls when too many lines are in flight. In small problems
// nothing is in the cache yet.
template <class Arithmetic>
struct FetchAhead {
  const regard_problem &p;
  const regard_gradients &g;
  const KeyPanel<Arithmetic> &panel;
  const QueryBlock &queries;
  const QuerySums &to;
  const QueryBlock &next;  // the next block; without rows if there is none
  bool last_of_panel;      // the panel's gradients are written after these queries
  int64_t next_keys = 0;   // of the next panel, the first one of another group

  __attribute__((noinline)) void operator()(int piece, const Part &part) const {
    asm volatile("");  // else GCC assumes that the function has no side effects
    using Element = typename Arithmetic::Element;
    const int64_t keys = panel.last - panel.first;
    if (piece == 0 && g.query.data) {
      const bool apart = to.sums.data != g.query.data;
      if (to.last || !apart) fetch_rows<Element>(g.query, queries, p.dim, part);
      if (apart && !to.only()) fetch_rows<Float32>(to.sums, queries, p.dim, part);
    }
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

// Adds the contribution of a block of keys to the gradient of a block's queries; returns whether it
// is complete and written.
template <class Arithmetic>
static bool add_query_share(const regard_problem &p, const regard_gradients &g,
                            const KeyPanel<Arithmetic> &panel, const QueryBlock &queries,
                            const Segment *segments, int count, int32_t first, bool visible_only,
                            bool last, const PackedGradients<typename Arithmetic::Number> &packed,
                            const PanelScratch &scratch, bool &empty) {
  constexpr int STEP = Arithmetic::STEP;
  const int64_t width = padded(p.dim);
  float *const share = scratch.query_share;
  auto keys = panel.summed_keys;
  keys.data += (first - panel.first) / STEP * keys.stride;
  KeyRange ranges[VECTORS];
  const bool single = find_ranges(queries, segments, count, ranges);
  if (!single || visible_only) {
    if (empty) memset(share, 0, size_t(width) * QUERIES * sizeof *share);
    empty = false;
    if (!visible_only)
      add_ranges<typename Arithmetic::Products>(queries, segments, count, first, keys, width,
                                                packed.lanes, share);
    for (int n = 0; n < count && visible_only; n++) {
      const int64_t at = (segments[n].key - first) / STEP;
      const PackedRows<typename Arithmetic::Number> rows = {keys.data + at * keys.stride,
                                                            keys.stride};
      query_gradient_of_visible<Arithmetic>(rows, segments[n], width, packed.lanes + at * QUERIES,
                                            share);
    }
    return false;
  }
  const float scale = float(p.scale);
  QueryWriter<typename Arithmetic::Element> write = {.sums = share,
                                                     .width = width,
                                                     .add = !empty,
                                                     .last = last,
                                                     .factors = {&scale, 0},
                                                     .rows = {g.query, queries},
                                                     .dim = p.dim};
  empty = false;
  add_visible<typename Arithmetic::Products>(queries, segments, count, ranges, first, keys, width,
                                             packed.lanes, write);
  return last;
}

// All gradients between a panel's keys and a block of queries. The gradient of the queries is
// written if no other panel contributes to it, else the contribution is in query_share; returns
// whether it is written.
template <class Arithmetic>
static bool backward_queries(const regard_problem &p, const regard_gradients &g,
                             const Scoring &scoring, KeyPanel<Arithmetic> &panel,
                             const QueryBlock &queries, const QueryRows &rows, bool only_panel,
                             const PanelScratch &scratch, const FetchAhead<Arithmetic> &ahead,
                             SlopeSums &slopes) {
  const int32_t first = max(queries.first_key, panel.first),
                last = min(queries.stop_key, panel.last);
  int32_t complete = panel.first;  // keys before it have their gradients written, if visited once
  bool empty = true, written = false;
  const auto leave_out = [&](int32_t until) {
    if (panel.visited_once) clear_gradients(p, g, panel, complete, until);
  };
  const auto over = [&](int32_t from, int32_t to, bool common) {
    from = max(from, panel.first), to = min(to, panel.last);
    for (int32_t key = from; key < to; key += GRADIENT_BLOCK) {
      Segment segments[MAX_SEGMENTS];
      const int32_t end = min(key + GRADIENT_BLOCK, to);
      const int count = split_into_segments(queries, key, end,
                                            common ? KeyRange{key, end} : KeyRange{}, segments);
      bool visible_only = false;
      for (int n = 0; n < count; n++) {
        const Segment &segment = segments[n];
        const int32_t start = segment.key, stop = start + segment.keys;
        const Part part = {max(start, first) - first, min(stop, last) - first, last - first};
        const auto fetch = [&](int piece) { ahead(piece, part); };
        leave_out(start);
        complete = stop;
        visible_only |= (segment.edge || scoring.adjusted) && !panel.finite_keys;
        backward_segment(p, g, scoring, panel, queries, rows, segment, start - key, scratch, slopes,
                         fetch);
      }
      if (g.query.data && count)
        written = add_query_share(
            p, g, panel, queries, segments, count, key, visible_only, only_panel && end >= last,
            Arithmetic::packed(scratch.weights, scratch.score_gradients, scratch.packed, 0),
            scratch, empty);
    }
  };
  // Keys of one multiplication are not separated, and no segment is shorter than a strip.
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
  leave_out(panel.last);
  if (empty) memset(scratch.query_share, 0, size_t(padded(p.dim)) * QUERIES * sizeof(float));
  return written;
}

}  // namespace regard::REGARD_SET
