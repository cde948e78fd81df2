// The backward pass, which recomputes scores and weights from the log-sum-exp.
//
// It is algorithm 2 of Dao 2023, arXiv:2307.08691, with queries in the lanes.
//
// The keys of a group are divided into panels. One thread processes a panel: it iterates over all
// blocks of queries that see any of its keys, and owns the gradients of its keys and values. The
// gradient of a block's queries is a sum over panels, whose order must not depend on thread timing:
// a panel adds its share only after the panel before it. All panels visit the blocks in the same
// order and start in order, which prevents deadlock and keeps waits short.
#pragma once

#include <stdlib.h>

#include "backward_panel.h"
#include "normalizers.h"

namespace regard::REGARD_SET {

// Shared by all threads.
struct Backward {
  const regard_problem &p;
  const regard_gradients &g;
  Scoring scoring;
  int64_t groups, panels,
      query_blocks;             // groups of the whole batch; panels and blocks of queries of each
  KeyRange *ranges = nullptr;   // (groups, query_blocks), or none if there is one panel
  int64_t *finished = nullptr;  // (groups, panels): blocks of queries that are finished
  double *sink = nullptr;       // (groups, panels, heads of a group): partial gradients
  RowSums *row_sums = nullptr;  // (B, H, L), for ALiBi's slopes
  const RowNormalizer *normalizers =
      nullptr;                    // (B, H, L), of rows whose log-sum-exp is imprecise, or none
  regard_tensor query_sums = {};  // float32: the gradient itself, or a buffer
};

struct ZeroedMemory {
  void *data;
  explicit ZeroedMemory(int64_t bytes) : data(calloc(size_t(bytes) + 1, 1)) {}
  ZeroedMemory(const ZeroedMemory &) = delete;
  ~ZeroedMemory() { free(data); }
};

// The weights of a block's sinks and the gradients of their logits, 0 for unused lanes.
static void differentiate_sinks(const Backward &w, const QueryBlock &queries, const QueryRows &rows,
                                float *weights, float *gradients) {
  for (int j = 0; j < queries.vectors; j++) {
    const floats sink = numbers_of(w.p.sink, queries, j * LANES);
    floats power;
    for (int i = 0; i < LANES; i++)
      power[i] = float((sink[i] - rows.peak[j][i] * w.scoring.unit) * LOG2_E - rows.log[j][i]);
    const floats weight = exp2(power);
    store(weights + j * LANES, weight);
    store(gradients + j * LANES, -weight * rows.delta[j]);
  }
}

// Adds a block's contribution to the gradients of its heads' slopes and sinks.
static void add_numbers(const Backward &w, const QueryBlock &queries, const QueryRows &rows,
                        bool first, const SlopeSums &slopes, int64_t panel_number) {
  if (!w.g.alibi && !w.g.sink) return;
  alignas(64) float sink_weights[QUERIES] = {}, sink_gradients[QUERIES] = {};
  if (w.p.sink.data && first) differentiate_sinks(w, queries, rows, sink_weights, sink_gradients);
  if (w.g.alibi) add_row_sums(w.p, queries, slopes, sink_weights, sink_gradients, w.row_sums);
  if (!w.g.sink) return;
  const int64_t heads = group_size(w.p);
  for (int r = 0; r < queries.count; r++)
    w.sink[panel_number * heads + queries.head[r] % heads] += sink_gradients[r];
}

// The destination of a panel's contribution to the gradient of a block's queries.
template <class Arithmetic>
static QuerySums sums_of(const Backward &w, const KeyPanel<Arithmetic> &panel,
                         const QueryBlock &queries) {
  const KeyRange range = {queries.first_key, queries.stop_key};
  return {.sums = w.query_sums,
          .first = range.empty() || range.start >= panel.first,
          .last = range.empty() || range.stop <= panel.last};
}

template <class Arithmetic>
static void visit(const Backward &w, KeyPanel<Arithmetic> &panel, int64_t panel_number,
                  int64_t number, const QueryBlock &queries, const QuerySums &to,
                  const PanelScratch &scratch, const FetchAhead<Arithmetic> &ahead) {
  const regard_problem &p = w.p;
  const regard_gradients &g = w.g;
  QueryRows rows(scratch.query, scratch.gradient);
  load_query_rows<Arithmetic>(p, g, w.scoring, w.normalizers, queries, scratch.rows, rows);
  SlopeSums slopes = {};
  const bool written =
      backward_queries(p, g, w.scoring, panel, queries, rows, to.only(), scratch, ahead, slopes);
  const bool adds_to_query = g.query.data && !written;
  if (!to.first && (adds_to_query || g.alibi)) wait_above(&w.finished[panel_number - 1], number);
  add_numbers(w, queries, rows, to.first, slopes, panel_number);
  if (!adds_to_query) return;
  add_query_gradient(typename Arithmetic::Element(), scratch.query_share, queries, p.dim,
                     float(p.scale), to, g.query);
}

template <class Arithmetic>
static KeyPanel<Arithmetic> open_panel(const Backward &w, int64_t group, int64_t index,
                                       const PanelScratch &scratch) {
  const regard_problem &p = w.p;
  const int64_t first = index * panel_keys(p), last = min(p.keys, first + panel_keys(p));
  KeyPanel<Arithmetic> opened = {.batch = group / p.groups,
                                 .group = group % p.groups,
                                 .first = int32_t(first),
                                 .last = int32_t(last),
                                 .visited_once = w.query_blocks == 1};
  QueryBlock of_group;
  of_group.batch = opened.batch, of_group.group = opened.group;
  const int64_t count = last - first;
  const auto rows = [&](const regard_tensor &from, int64_t dim, float *to) {
    return Arithmetic::values(p, from, of_group, first, count, dim, to);
  };
  opened.summed_keys = rows(p.key, p.dim, scratch.summed_keys);
  if constexpr (Arithmetic::STEP == 1) {  // rows of keys and values have the same layout
    opened.keys = opened.summed_keys;
    opened.values = rows(p.value, p.dim_value, scratch.value);
  } else {
    opened.keys = Arithmetic::keys(p.key, of_group, first, count, p.dim, scratch.key);
    opened.values = Arithmetic::keys(p.value, of_group, first, count, p.dim_value, scratch.value);
  }
  opened.finite_keys = finite_rows<typename Arithmetic::Products>(opened.summed_keys, count, p.dim);
  return opened;
}

// Sets `next` to the queries that the thread probably takes next: the panel's, or those of the next
// group.
template <class Arithmetic>
static FetchAhead<Arithmetic> ahead_of(const Backward &w, const KeyPanel<Arithmetic> &panel,
                                       int64_t group, int64_t number, const QueryBlock &queries,
                                       const QuerySums &to, QueryBlock &next) {
  const bool last = number + 1 == w.query_blocks;
  FetchAhead<Arithmetic> ahead = {.p = w.p,
                                  .g = w.g,
                                  .panel = panel,
                                  .queries = queries,
                                  .to = to,
                                  .next = next,
                                  .last_of_panel = last};
  next.count = 0;
  if (last && (w.panels > 1 || group + 1 == w.groups)) return ahead;
  choose_rows(w.p, group * w.query_blocks + number + 1, next);
  if (last) ahead.next_keys = w.p.keys;
  return ahead;
}

template <class Arithmetic>
static void backward_panel(const Backward &w, int64_t group, int64_t index, void *memory) {
  const PanelScratch scratch(w.p, memory);
  KeyPanel<Arithmetic> panel = open_panel<Arithmetic>(w, group, index, scratch);
  const int64_t panel_number = group * w.panels + index;
  const auto sees = [&](const KeyRange &range) {
    return range.empty() ? index == 0 : range.start < panel.last && range.stop > panel.first;
  };
  for (int64_t number = 0; number < w.query_blocks; number++) {
    const bool seen = !w.ranges || sees(w.ranges[group * w.query_blocks + number]);
    if (seen || w.g.bias.data) {
      QueryBlock queries, next;
      begin(w.p, group * w.query_blocks + number, queries);
      if (w.g.bias.data) clear_bias_gradient(w.g.bias, queries, panel.first, panel.last);
      if (seen) {
        find_spans(w.p, scratch.spans, queries);
        const QuerySums to = sums_of(w, panel, queries);
        visit(w, panel, panel_number, number, queries, to, scratch,
              ahead_of(w, panel, group, number, queries, to, next));
      }
    }
    if (!seen && panel.visited_once) clear_gradients(w.p, w.g, panel, panel.first, panel.last);
    __atomic_store_n(&w.finished[panel_number], number + 1, __ATOMIC_RELEASE);
  }
  if (panel.visited_once) return;
  KeyRange summed = panel.summed;
  if (summed.empty()) summed = {panel.first, panel.first};
  clear_gradients(w.p, w.g, panel, panel.first, summed.start);
  clear_gradients(w.p, w.g, panel, summed.stop, panel.last);
  const auto store_sums = [&](const float *sums, int64_t dim, float factor,
                              const regard_tensor &to) {
    if (to.data) store_panel(sums, panel, summed.start, summed.stop, dim, factor, to);
  };
  store_sums(scratch.key_gradient, w.p.dim, float(w.p.scale), w.g.key);
  store_sums(scratch.value_gradient, w.p.dim_value, dropout_scale(w.p), w.g.value);
}

static int find_key_ranges(const Backward &w) {
  return for_each_task(int(w.p.threads), w.groups * w.query_blocks, 1, [&](int64_t number, void *) {
    QueryBlock queries;
    begin(w.p, number, queries);
    w.ranges[number] = {queries.first_key, queries.stop_key};
  });
}

// Sums the contributions of panels, always in the same order.
static void sum_sinks(const Backward &w) {
  const int64_t heads = group_size(w.p);
  for (int64_t head = 0; head < w.groups * heads; head++) {
    double total = 0;
    for (int64_t panel = 0; panel < w.panels; panel++)
      total += w.sink[(head / heads * w.panels + panel) * heads + head % heads];
    w.g.sink[head] = float(total);
  }
}

static void sum_slopes(const Backward &w) {
  for (int64_t head = 0; head < w.p.batch * w.p.heads; head++)
    w.g.alibi[head] = slope_gradient(w.row_sums + head * w.p.queries, w.p.queries, w.g.all_keys);
}

template <class Arithmetic>
static int backward(const regard_problem &p, const regard_gradients &g) {
  using Element = typename Arithmetic::Element;
  if (p.batch == 0 || p.heads == 0) return REGARD_DONE;
  Backward w = {.p = p,
                .g = g,
                .scoring = scoring_of(p),
                .groups = p.batch * p.groups,
                .panels = max(int64_t(1), (p.keys + panel_keys(p) - 1) / panel_keys(p)),
                .query_blocks = query_blocks_per_group(p)};

  const bool many = w.panels > 1;
  const int64_t numbers = w.panels * p.batch * p.heads;
  const int64_t of_head = p.queries * p.dim;
  const bool needs_sums = many && !std::is_same_v<Element, Float32> && g.query.data;
  const ZeroedMemory ranges(many ? w.groups * w.query_blocks * int64_t(sizeof(KeyRange)) : 0);
  const ZeroedMemory finished(w.groups * w.panels * int64_t(sizeof(int64_t)));
  const ZeroedMemory sinks(numbers * int64_t(sizeof(double)));
  const ZeroedMemory row_sums(g.alibi ? p.batch * p.heads * p.queries * int64_t(sizeof(RowSums))
                                      : 0);
  const ZeroedMemory query_sums(needs_sums ? p.batch * p.heads * of_head * int64_t(sizeof(float))
                                           : 0);
  if (!ranges.data || !finished.data || !sinks.data || !row_sums.data || !query_sums.data)
    return REGARD_OUT_OF_MEMORY;
  w.ranges = many ? (KeyRange *)ranges.data : nullptr;
  w.finished = (int64_t *)finished.data;
  w.sink = (double *)sinks.data;
  w.row_sums = (RowSums *)row_sums.data;
  w.query_sums =
      needs_sums ? regard_tensor{query_sums.data, p.heads * of_head, of_head, p.dim} : g.query;

  const bool imprecise = any_imprecise(g.logsumexp, p.batch * p.heads * p.queries);
  const ZeroedMemory normalizers(
      imprecise ? p.batch * p.heads * p.queries * int64_t(sizeof(RowNormalizer)) : 0);
  if (!normalizers.data) return REGARD_OUT_OF_MEMORY;
  w.normalizers = imprecise ? (RowNormalizer *)normalizers.data : nullptr;

  // With one panel per group no thread waits for another, so the order of starts does not matter.
  const int64_t per_task = many ? 1 : pieces_per_task(p, w.groups);
  int result = many ? find_key_ranges(w) : REGARD_DONE;
  if (result == REGARD_DONE && imprecise)
    result = find_imprecise_normalizers<Arithmetic>(p, w.scoring, g.logsumexp,
                                                    (RowNormalizer *)normalizers.data);
  if (result == REGARD_DONE)
    result = for_each_product_task<Arithmetic>(
        int(p.threads), (w.groups * w.panels + per_task - 1) / per_task, PanelScratch::size(p),
        [&](int64_t task, void *memory) {
          for (int64_t number = task * per_task;
               number < min(w.groups * w.panels, (task + 1) * per_task); number++)
            backward_panel<Arithmetic>(w, number % w.groups, number / w.groups, memory);
        });
  if (g.alibi) sum_slopes(w);
  if (g.sink) sum_sinks(w);
  return result;
}

}  // namespace regard::REGARD_SET
