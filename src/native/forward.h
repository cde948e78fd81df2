// The forward pass: online softmax, a block of keys at a time (Dao et al. 2022, arXiv:2205.14135,
// algorithm 1, with queries in the lanes).
//
// A block of queries goes over the keys that any of its rows sees, a block of keys at a time. Where
// all rows see all of them, nothing is masked; at the edges only vectors with a row that may see a
// key are computed.
#pragma once

#include "dropout.h"
#include "row_sum.h"
#include "scores.h"
#include "threads.h"

namespace regard::REGARD_SET {

constexpr int32_t FORWARD_BLOCK = 192;  // keys whose scores stay in the cache until they are used
constexpr int32_t STRIP = 16;           // keys of an edge that are computed for the same vectors
constexpr int MAX_SEGMENTS = FORWARD_BLOCK / STRIP;
static_assert(FORWARD_BLOCK % STRIP == 0 && STRIP % 4 == 0);

// A thread's memory for a block of queries.
struct ForwardScratch {
  float *query;        // (dim, QUERIES)
  float *scores;       // (FORWARD_BLOCK, QUERIES), then weights
  float *context;      // (QUERIES, padded(dim_value))
  float *packed_rows;  // (FORWARD_BLOCK, dim or dim_value): keys, then values, as floats
  float *kept;         // (FORWARD_BLOCK, QUERIES): scores from before the exponential
  BlockSpan *spans;

  static size_t size(const regard_problem &p) {
    const int64_t columns = padded(p.dim) + padded(p.dim_value) + 2 * FORWARD_BLOCK;
    return size_t(columns * QUERIES + FORWARD_BLOCK * padded(max(p.dim, p.dim_value))) *
               sizeof(float) +
           span_bytes(p);
  }
  ForwardScratch(const regard_problem &p, void *memory) {
    query = (float *)memory;
    scores = query + padded(p.dim) * QUERIES;
    context = scores + FORWARD_BLOCK * QUERIES;
    kept = context + padded(p.dim_value) * QUERIES;
    packed_rows = kept + FORWARD_BLOCK * QUERIES;
    spans = (BlockSpan *)(packed_rows + FORWARD_BLOCK * padded(max(p.dim, p.dim_value)));
  }
};

struct ForwardCall {
  const regard_problem &problem;
  const Scoring scoring;
  const regard_tensor &context;
  float *logsumexp;
};

// The softmax of a block's rows so far.
struct Softmax {
  floats peak[VECTORS], total[VECTORS];
  ints seen[VECTORS];
  bool empty = true;  // nothing was summed up yet
};

// Splits a block of keys into segments, each a multiple of STRIP after the block's first key. The
// keys of `common` are seen by all rows, as far as no span hides them.
static int split_into_segments(const QueryBlock &queries, int32_t first, int32_t last,
                               KeyRange common, Segment *segments) {
  const bool touched = touched_by_spans(queries, first, last);
  if (!touched && first >= common.start && last <= common.stop) {
    segments[0] = {first, last - first, 0, queries.vectors, false};
    return 1;
  }
  int count = 0;
  for (int32_t key = first; key < last; key += STRIP) {
    const int32_t end = min(key + STRIP, last);
    int low = queries.vectors, high = 0;
    for (int j = 0; j < queries.vectors; j++)
      if (queries.vector_start[j] < end && queries.vector_stop[j] > key)
        low = min(low, j), high = j + 1;
    if (low >= high || (touched && hidden_by_span(queries, key, end))) continue;
    const bool edge = touched || key < common.start || end > common.stop;
    Segment *before = count ? &segments[count - 1] : nullptr;
    if (before && before->key + before->keys == key && before->first == low &&
        before->last == high && before->edge == edge)
      before->keys += end - key;
    else
      segments[count++] = {key, end - key, low, high, edge};
  }
  return count;
}

// weights = 2^(factor·score − shift), which may take the place of scores up to the same key, and
// their sum. Writes full fours of keys, and adds up as if those after the last were hidden.
template <class Arithmetic>
REGARD_INLINE floats exponentials(float *scores, float *weights, int32_t keys, floats factor,
                                  const Shift &shifts) {
  subtract(scores, keys, shifts.before);
  const floats shift = shifts.after;
  floats even = floats{}, odd = floats{}, w[4];
  int32_t k = 0;
  for (; k + 4 <= keys; k += 4, scores += 4 * QUERIES, weights += 4 / Arithmetic::STEP * QUERIES) {
    REGARD_UNROLLED_FOR (int i = 0; i < 4; i++)
      w[i] = Arithmetic::exponential(load(scores + i * QUERIES) * factor - shift);
    Arithmetic::store_weights(weights, w);
    even += w[0] + w[1];
    odd += w[2] + w[3];
  }
  if (k == keys) return even + odd;
  for (int i = 0; i < 4; i++) {
    w[i] = floats{};
    if (k + i < keys) w[i] = Arithmetic::exponential(load(scores + i * QUERIES) * factor - shift);
  }
  Arithmetic::store_weights(weights, w);
  even += w[0] + w[1];
  odd += w[2] + w[3];
  return even + odd;
}

// The factor of sums that were computed with the old shift.
REGARD_INLINE floats ratio_of(const Shift &old, const Shift &current, floats factor) {
  return exp2((old.before - current.before) * factor + (old.after - current.after));
}

// Rescales the sums of rows to a higher peak. A peak that is only a little too low is kept: weights
// then exceed 1, by a factor of at most 2^SLACK.
static void rescale(const QueryBlock &queries, const floats *peak, float factor, int64_t width,
                    Softmax &softmax, float *context) {
  constexpr float SLACK = 8;
  ints exceeds[VECTORS], some = {};
  for (int j = 0; j < queries.vectors; j++) {
    exceeds[j] = (peak[j] - softmax.peak[j]) * factor > broadcast(SLACK);
    some |= exceeds[j];
  }
  if (!any(some)) return;
  for (int j = 0; j < queries.vectors; j++) {
    const floats old = softmax.peak[j];
    softmax.peak[j] = exceeds[j] ? peak[j] : old;
    if (softmax.empty) continue;
    // Nothing is summed up yet where there was no peak.
    const floats ratio =
        old == broadcast(HIDDEN)
            ? broadcast(1.0f)
            : ratio_of(shift_of(old, broadcast(factor)),
                       shift_of(softmax.peak[j], broadcast(factor)), broadcast(factor));
    softmax.total[j] *= ratio;
    for (int i = 0; i < LANES; i++)
      for (int64_t d = 0; d < width; d += LANES) {
        float *at = context + (j * LANES + i) * width + d;
        store(at, load(at) * ratio[i]);
      }
  }
  softmax.empty = false;
}

// As weighted_rows, but what is hidden takes no part, whatever its value: 0 · NaN is NaN.
template <class Arithmetic, class Values>
static void context_of_visible(const Values &values, const Segment &segment, int64_t width,
                               const float *weights, const float *scores, float *context) {
  for (int32_t k = 0; k < segment.keys; k++)
    for (int j = segment.first; j < segment.last; j++) {
      const floats weight = Arithmetic::weight(weights + j * LANES, k);
      for (int i = 0; i < LANES; i++) {
        if (scores[k * QUERIES + j * LANES + i] == HIDDEN) continue;
        for (int64_t d = 0; d < width; d += LANES) {
          float *at = context + (j * LANES + i) * width + d;
          store(at, load(at) + weight[i] * Arithmetic::value_part(values, k, d));
        }
      }
    }
}

// sums += weights × values, for a number of rows and `count` values from one on.
template <class Arithmetic>
static void add_rows(const PackedRows<typename Arithmetic::Number> &values, int32_t first,
                     int32_t count, const float *weights, int64_t rows, int64_t width,
                     float *sums) {
  constexpr int STEP = Arithmetic::STEP;
  const StepRange all = {first / STEP, (first + count + STEP - 1) / STEP};
  weighted_rows<typename Arithmetic::Products>(values.data, values.stride, weights, rows, width,
                                               sums, [=](int64_t, int) { return all; });
}

// The same for the rows of vector j and a range of keys, all counted from `first`: a tile takes
// those from the first to the last that one of its rows sees.
template <class Arithmetic>
static void add_visible_rows(const QueryBlock &queries, int j, KeyRange keys, int32_t first,
                             const PackedRows<typename Arithmetic::Number> &values, int64_t width,
                             const float *weights, float *sums) {
  constexpr int STEP = Arithmetic::STEP;
  const int row = j * LANES;
  const int32_t *start = queries.start + row, *stop = queries.stop + row;
  weighted_rows<typename Arithmetic::Products>(
      values.data, values.stride, weights + row, min(LANES, queries.count - row), width,
      sums + row * width, [=](int64_t r, int rows) {
        int32_t from = keys.stop, to = keys.start;
        for (int64_t i = r; i < r + rows; i++)
          if (start[i] < stop[i]) from = min(from, start[i]), to = max(to, stop[i]);
        from = max(from, keys.start), to = min(to, keys.stop);
        if (from >= to) return StepRange{0, 0};
        return StepRange{(from - first) / STEP, (to - first + STEP - 1) / STEP};
      });
}

// Adds the values of a block of keys, each times its weight. Adjacent segments are summed
// up together.
template <class Arithmetic>
static void add_context(const QueryBlock &queries, const Segment *segments, int count,
                        int32_t first, const PackedRows<typename Arithmetic::Number> &values,
                        int64_t width, const float *weights, float *context) {
  if (count == 1 && !segments[0].edge && segments[0].last - segments[0].first == queries.vectors)
    return add_rows<Arithmetic>(values, segments[0].key - first, segments[0].keys, weights,
                                queries.count, width, context);
  for (int j = 0; j < queries.vectors; j++)
    for (int n = 0; n < count; n++) {
      if (j < segments[n].first || j >= segments[n].last) continue;
      const int32_t low = segments[n].key;
      int32_t high = low + segments[n].keys;
      for (; n + 1 < count && segments[n + 1].key == high && j >= segments[n + 1].first &&
             j < segments[n + 1].last;
           n++)
        high += segments[n + 1].keys;
      add_visible_rows<Arithmetic>(queries, j, {low, high}, first, values, width, weights, context);
    }
}

// Calls keep(first, last, segments, their number, scores) with the masked scores of a block of
// keys.
template <class Arithmetic, class Keep>
static void forward_block(const ForwardCall &call, const QueryBlock &queries,
                          const QueryBlock &next, int32_t first, int32_t last,
                          const ForwardScratch &scratch, Softmax &softmax, const Keep &keep) {
  using Element = typename Arithmetic::Element;
  constexpr int STEP = Arithmetic::STEP;
  const regard_problem &p = call.problem;
  const Scoring &scoring = call.scoring;
  const bool at_end = last == queries.stop_key;
  Segment segments[MAX_SEGMENTS];
  const KeyRange common = {queries.common_start, queries.common_stop};
  const int count = split_into_segments(queries, first, last, common, segments);
  if (count == 0) return keep(first, last, segments, 0, scratch.scores);
  const auto scores_of = [&](const Segment &segment) {
    return scratch.scores + (segment.key - first) * QUERIES;
  };

  floats peak[VECTORS];
  for (int j = 0; j < VECTORS; j++) peak[j] = softmax.peak[j];
  const auto keys =
      Arithmetic::keys(p.key, queries, first, last - first, p.dim, scratch.packed_rows);
  for (int n = 0; n < count; n++) {
    const Segment &segment = segments[n];
    floats computed[VECTORS];
    for (int j = 0; j < VECTORS; j++) computed[j] = peak[j];
    const auto *first_value = first_row<Element>(p.value, queries, segment.key);
    const RowsToFetch values = {first_value, p.value.row * int64_t(sizeof *first_value),
                                p.dim_value * int64_t(sizeof *first_value)};
    if (at_end) fetch_rows<Element>(p.query, next, p.dim, {n, n + 1, count});
    with_live(segment.last - segment.first, [&](auto live) {
      score_rows<typename Arithmetic::Products, live>(
          keys.data + (segment.key - first) * keys.stride, keys.stride, segment.keys,
          (p.dim + STEP - 1) / STEP, scratch.query + segment.first * LANES,
          scores_of(segment) + segment.first * LANES, computed + segment.first, values);
    });
    if (scoring.adjusted)
      adjust_scores(p, queries, segment, scores_of(segment), peak, softmax.seen);
    else if (segment.edge)
      apply_mask(p, scoring, queries, segment, scores_of(segment), computed, peak);
    else
      for (int j = 0; j < VECTORS; j++) peak[j] = computed[j];
  }
  keep(first, last, segments, count, scratch.scores);
  const int64_t width = padded(p.dim_value);
  rescale(queries, peak, scoring.factor, width, softmax, scratch.context);

  const auto values =
      Arithmetic::values(p.value, queries, first, last - first, p.dim_value, scratch.packed_rows);
  const auto values_of = [&](const Segment &segment) {
    auto rows = values;
    rows.data += (segment.key - first) / STEP * values.stride;
    return rows;
  };
  const auto weights_of = [&](const Segment &segment) {
    return scratch.scores + (segment.key - first) / STEP * QUERIES;
  };
  bool visible_only = false;
  for (int n = 0; n < count; n++)
    visible_only |= (segments[n].edge || scoring.adjusted) &&
                    !Arithmetic::finite(values_of(segments[n]), segments[n].keys, p.dim_value);
  for (int n = 0; n < count; n++) {
    const Segment &segment = segments[n];
    float *scores = scores_of(segment), *weights = weights_of(segment);
    if (at_end) fetch_rows<Element>(call.context, queries, p.dim_value, {n, n + 1, count});
    if (visible_only)
      memcpy(scratch.kept + (scores - scratch.scores), scores,
             size_t(segment.keys) * QUERIES * sizeof(float));
    for (int j = segment.first; j < segment.last; j++)
      softmax.total[j] += exponentials<Arithmetic>(
          scores + j * LANES, weights + j * LANES, segment.keys, broadcast(scoring.factor),
          shift_of(softmax.peak[j], broadcast(scoring.factor)));
    if (p.dropout > 0) apply_dropout<Arithmetic>(p, queries, segment, weights);
  }
  if (!visible_only)
    return add_context<Arithmetic>(queries, segments, count, first, values, width, scratch.scores,
                                   scratch.context);
  for (int n = 0; n < count; n++)
    context_of_visible<Arithmetic>(
        values_of(segments[n]), segments[n], width, weights_of(segments[n]),
        scratch.kept + (segments[n].key - first) * QUERIES, scratch.context);
}

// Takes the sink in, divides by the denominator and writes the rows.
template <class Arithmetic>
static void finish(const ForwardCall &call, const QueryBlock &queries,
                   const ForwardScratch &scratch, const Softmax &softmax) {
  const regard_problem &p = call.problem;
  const Scoring &scoring = call.scoring;
  const float kept = p.dropout < 1 ? float(1 / (1 - p.dropout)) : 0;
  const int64_t width = padded(p.dim_value);
  floats factors[VECTORS];
  for (int j = 0; j < queries.vectors; j++) {
    const Shift shift = shift_of(softmax.peak[j], broadcast(scoring.factor));
    floats total = softmax.total[j], share = broadcast(kept);
    RowSum sums[LANES];
    for (int i = 0; i < LANES && (p.sink.data || call.logsumexp); i++)
      sums[i] = {level_of(shift, i, scoring), total[i]};
    if (p.sink.data) {
      const floats sink = numbers_of(p.sink, queries, j * LANES);
      for (int i = 0; i < LANES; i++)
        share[i] *= sums[i].take_in(sink[i]), total[i] = sums[i].total;
    }
    const ints sees = scoring.adjusted
                          ? softmax.seen[j]
                          : load(queries.start + j * LANES) < load(queries.stop + j * LANES);
    factors[j] = share / total;
    factors[j] = sees ? factors[j] : floats{};
    if (any(~sees))  // their context is 0 even where what they may not see is not a number
      for (int i = 0; i < LANES; i++)
        if (!sees[i])
          memset(scratch.context + (j * LANES + i) * width, 0, size_t(width) * sizeof(float));
    if (!call.logsumexp) continue;
    alignas(64) float logs[LANES];
    alignas(64) int32_t seeing[LANES];
    store(logs, log2(total));
    store(seeing, sees);
    for (int i = 0; i < LANES && j * LANES + i < queries.count; i++) {
      call.logsumexp[row_number(p, queries, j * LANES + i)] =
          seeing[i] ? float(sums[i].level + logs[i] * LN_2) : -INFINITY;
    }
  }
  store_rows(typename Arithmetic::Element(), scratch.context, factors, queries, p.dim_value,
             call.context);
}

struct KeepNothing {
  void operator()(int32_t, int32_t, const Segment *, int, const float *) const {}
};

template <class Arithmetic, class Keep = KeepNothing>
static void forward_queries(const ForwardCall &call, const QueryBlock &queries,
                            const QueryBlock &next, const ForwardScratch &scratch,
                            const Keep &keep = {}) {
  const regard_problem &p = call.problem;
  Softmax softmax;
  for (int j = 0; j < VECTORS; j++)
    softmax.peak[j] = broadcast(HIDDEN), softmax.total[j] = floats{}, softmax.seen[j] = ints{};
  memset(scratch.context, 0, size_t(padded(p.dim_value)) * QUERIES * sizeof(float));
  Arithmetic::load_queries(p.query, queries, p.dim, call.scoring.query_factor, scratch.query);
  for (int32_t key = queries.first_key; key < queries.stop_key; key += FORWARD_BLOCK)
    forward_block<Arithmetic>(call, queries, next, key, min(key + FORWARD_BLOCK, queries.stop_key),
                              scratch, softmax, keep);
  finish<Arithmetic>(call, queries, scratch, softmax);
}

// How many of a number of pieces of work make a task: neighbours in memory, with several tasks for
// every thread.
REGARD_INLINE int64_t pieces_per_task(const regard_problem &p, int64_t pieces) {
  return max(int64_t(1), min(int64_t(8), pieces / (16 * p.threads)));
}

template <class Arithmetic>
static int forward(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  const ForwardCall call = {p, scoring_of(p), context, logsumexp};
  const int64_t query_blocks = p.batch * p.groups * query_blocks_per_group(p);
  const int64_t per_task = pieces_per_task(p, query_blocks);
  return for_each_task(int(p.threads), (query_blocks + per_task - 1) / per_task,
                       ForwardScratch::size(p), [&](int64_t task, void *memory) {
                         const int64_t first = task * per_task,
                                       last = min(query_blocks, first + per_task);
                         for (int64_t number = first; number < last; number++) {
                           QueryBlock queries, next;  // this thread's next, in all likelihood
                           begin(p, number, queries);
                           const int64_t following =
                               number + 1 < last ? number + 1 : last + (p.threads - 1) * per_task;
                           next.count = 0;
                           if (following < query_blocks) choose_rows(p, following, next);
                           const ForwardScratch scratch(p, memory);
                           find_spans(p, scratch.spans, queries);
                           forward_queries<Arithmetic>(call, queries, next, scratch);
                         }
                       });
}

}  // namespace regard::REGARD_SET
