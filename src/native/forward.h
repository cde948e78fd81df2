// The forward pass: softmax on line, a block of keys at a time (Dao et al. 2022, arXiv:2205.14135,
// algorithm 1, with queries in the lanes).
//
// A task goes over the keys that any of its rows sees, in blocks. Where all rows see a block,
// nothing is masked; elsewhere, at the edges, only vectors with a row that may see a key take part.
#pragma once

#include "dropout.h"
#include "row_sum.h"
#include "scores.h"
#include "threads.h"

namespace regard::REGARD_SET {

constexpr int32_t BLOCK = 192;  // keys whose scores stay in the cache until they are used
constexpr int32_t STRIP = 16;   // keys at an edge that are told apart by the vectors they concern
constexpr int MOST_RUNS = BLOCK / STRIP;
static_assert(BLOCK % STRIP == 0 && STRIP % 4 == 0);

// What a thread needs for a task.
struct ForwardScratch {
  float *query;    // (dim, QUERIES)
  float *scores;   // (BLOCK, QUERIES), then weights
  float *context;  // (dim_value, QUERIES)
  float *panels;   // (BLOCK, dim or dim_value): keys, then values, as floats
  float *kept;     // (BLOCK, QUERIES): scores from before the exponential

  static size_t size(const regard_problem &p) {
    const int64_t columns = padded(p.dim) + padded(p.dim_value) + 2 * BLOCK;
    return size_t(columns * QUERIES + BLOCK * padded(most(p.dim, p.dim_value))) * sizeof(float);
  }
  ForwardScratch(const regard_problem &p, void *memory) {
    query = (float *)memory;
    scores = query + padded(p.dim) * QUERIES;
    context = scores + BLOCK * QUERIES;
    kept = context + padded(p.dim_value) * QUERIES;
    panels = kept + BLOCK * QUERIES;
  }
};

struct ForwardCall {
  const regard_problem &problem;
  const Scoring scoring;
  const regard_tensor &context;
  float *logsumexp;
};

// The softmax of a task's rows so far.
struct Softmax {
  floats peak[VECTORS], total[VECTORS];
  ints seen[VECTORS];
  bool empty = true;  // nothing was summed up yet
};

// Splits a block of keys into runs, each a multiple of STRIP after the block's first key. The keys
// of `common` are seen by all rows.
static int split(const Task &task, int32_t first, int32_t last, Span common, Run *runs) {
  if (first >= common.start && last <= common.stop) {
    runs[0] = {first, last - first, 0, task.vectors, false};
    return 1;
  }
  int count = 0;
  for (int32_t key = first; key < last; key += STRIP) {
    const int32_t end = least(key + STRIP, last);
    int low = task.vectors, high = 0;
    for (int j = 0; j < task.vectors; j++)
      if (task.vector_start[j] < end && task.vector_stop[j] > key)
        low = least(low, j), high = j + 1;
    if (low >= high) continue;
    const bool edge = key < common.start || end > common.stop;
    Run *before = count ? &runs[count - 1] : nullptr;
    if (before && before->key + before->keys == key && before->first == low &&
        before->last == high && before->edge == edge)
      before->keys += end - key;
    else
      runs[count++] = {key, end - key, low, high, edge};
  }
  return count;
}

// weights = 2^(factor·score − shift), in place of the scores, and their sum. Writes full fours of
// keys, and adds up as if those behind the last were hidden.
template <class Arithmetic>
REGARD_INLINE floats exponentials(float *scores, int32_t keys, floats factor, const Shift &shifts) {
  subtract(scores, keys, shifts.before);
  const floats shift = shifts.after;
  floats even = floats{}, odd = floats{}, w[4];
  float *weights = scores;
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

// What sums that were taken with one shift are to be multiplied by where another takes its place.
REGARD_INLINE floats ratio_of(const Shift &old, const Shift &current, floats factor) {
  return exp2((old.before - current.before) * factor + (old.after - current.after));
}

// Brings what a row has summed up before to a new peak. A peak that is but a little too low is
// left: weights then exceed 1, by no more than 2^SLACK.
static void rescale(const Task &task, const floats *peak, float factor, int64_t dim,
                    Softmax &softmax, float *context) {
  constexpr float SLACK = 8;
  ints exceeds[VECTORS], some = {};
  for (int j = 0; j < task.vectors; j++) {
    exceeds[j] = (peak[j] - softmax.peak[j]) * factor > all(SLACK);
    some |= exceeds[j];
  }
  if (!any(some)) return;
  for (int j = 0; j < task.vectors; j++) {
    const floats old = softmax.peak[j];
    softmax.peak[j] = exceeds[j] ? peak[j] : old;
    if (softmax.empty) continue;
    // Nothing is summed up yet where there was no peak.
    const floats ratio = old == all(HIDDEN)
                             ? all(1.0f)
                             : ratio_of(shift_of(old, all(factor)),
                                        shift_of(softmax.peak[j], all(factor)), all(factor));
    softmax.total[j] *= ratio;
    for (int64_t d = 0; d < dim; d++) {
      float *at = context + d * QUERIES + j * LANES;
      store(at, load(at) * ratio);
    }
  }
  softmax.empty = false;
}

// As context_rows, but what is hidden takes no part, whatever its value: 0 · NaN is NaN.
template <class Arithmetic, class Values>
static void careful_context(const Values &values, const Run &run, int64_t dim, const float *weights,
                            const float *scores, float *context) {
  for (int32_t k = 0; k < run.keys; k++)
    for (int64_t d = 0; d < dim; d++)
      for (int j = run.first; j < run.last; j++) {
        float *at = context + d * QUERIES + j * LANES;
        const floats weight = Arithmetic::weight(weights + j * LANES, k);
        const floats part = weight * Arithmetic::value(values, k, d);
        const ints hidden = load(scores + k * QUERIES + j * LANES) == all(HIDDEN);
        store(at, load(at) + (hidden ? floats{} : part));
      }
}

template <class Arithmetic>
static void forward_block(const ForwardCall &call, const Task &task, const Task &next,
                          int32_t first, int32_t last, const ForwardScratch &scratch,
                          Softmax &softmax) {
  using Element = typename Arithmetic::Element;
  constexpr int STEP = Arithmetic::STEP;
  const regard_problem &p = call.problem;
  const Scoring &scoring = call.scoring;
  const bool at_end = last == task.last_key;
  Run runs[MOST_RUNS];
  const Span common = {task.common_start, task.common_stop};
  const int count = split(task, first, last, common, runs);
  const auto scores_of = [&](const Run &run) {
    return scratch.scores + (run.key - first) * QUERIES;
  };

  floats peak[VECTORS], ignored[VECTORS];
  for (int j = 0; j < VECTORS; j++) peak[j] = softmax.peak[j], ignored[j] = floats{};
  const auto keys = Arithmetic::keys(p.key, task, first, last - first, p.dim, scratch.panels);
  for (int n = 0; n < count; n++) {
    const Run &run = runs[n];
    const bool plain = !run.edge && !scoring.adjusted;
    const auto *soon = first_row<Element>(p.value, task, run.key);
    const Ahead values = {soon, p.value.row * int64_t(sizeof *soon),
                          p.dim_value * int64_t(sizeof *soon)};
    if (at_end) fetch_part<Element>(p.query, next, p.dim, n, count);
    with_live(run.last - run.first, [&](auto live) {
      score_rows<typename Arithmetic::Products, live>(
          keys.data + (run.key - first) * keys.stride, keys.stride, run.keys,
          (p.dim + STEP - 1) / STEP, scratch.query + run.first * LANES,
          scores_of(run) + run.first * LANES, (plain ? peak : ignored) + run.first, values);
    });
    if (scoring.adjusted)
      adjust(p, task, run, scores_of(run), peak, softmax.seen);
    else if (run.edge)
      hide(task, run, scores_of(run), peak);
  }
  rescale(task, peak, scoring.factor, p.dim_value, softmax, scratch.context);

  const auto values =
      Arithmetic::values(p.value, task, first, last - first, p.dim_value, scratch.panels);
  for (int n = 0; n < count; n++) {
    const Run &run = runs[n];
    float *scores = scores_of(run);
    if (at_end) fetch_part<Element>(call.context, task, p.dim_value, n, count);
    auto seen = values;
    seen.data += (run.key - first) / STEP * values.stride;
    const bool hiding = run.edge || scoring.adjusted;
    const bool careful = hiding && !Arithmetic::finite(seen, run.keys, p.dim_value);
    if (careful) memcpy(scratch.kept, scores, size_t(run.keys) * QUERIES * sizeof(float));
    for (int j = run.first; j < run.last; j++)
      softmax.total[j] +=
          exponentials<Arithmetic>(scores + j * LANES, run.keys, all(scoring.factor),
                                   shift_of(softmax.peak[j], all(scoring.factor)));
    if (p.dropout > 0) drop<Arithmetic>(p, task, run, scores);
    if (careful) {
      careful_context<Arithmetic>(seen, run, p.dim_value, scores, scratch.kept, scratch.context);
      continue;
    }
    with_live(run.last - run.first, [&](auto live) {
      context_rows<typename Arithmetic::Products, live>(
          seen.data, seen.stride, (run.keys + STEP - 1) / STEP, p.dim_value,
          scores + run.first * LANES, scratch.context + run.first * LANES);
    });
  }
}

// Takes the sink in, divides by the denominator and writes the rows.
template <class Arithmetic>
static void finish(const ForwardCall &call, const Task &task, const ForwardScratch &scratch,
                   const Softmax &softmax) {
  const regard_problem &p = call.problem;
  const Scoring &scoring = call.scoring;
  const float kept = p.dropout < 1 ? float(1 / (1 - p.dropout)) : 0;
  floats factors[VECTORS];
  for (int j = 0; j < task.vectors; j++) {
    const Shift shift = shift_of(softmax.peak[j], all(scoring.factor));
    floats total = softmax.total[j], share = all(kept);
    RowSum sums[LANES];
    for (int i = 0; i < LANES && (p.sink.data || call.logsumexp); i++)
      sums[i] = {level_of(shift, i, scoring), total[i]};
    if (p.sink.data) {
      const floats sink = numbers_of(p.sink, task, j * LANES);
      for (int i = 0; i < LANES; i++)
        share[i] *= sums[i].take_in(sink[i]), total[i] = sums[i].total;
    }
    const ints sees = scoring.adjusted ? softmax.seen[j]
                                       : load(task.start + j * LANES) < load(task.stop + j * LANES);
    factors[j] = share / total;
    if (any(~sees))  // their context is 0 even where what they may not see is no number
      for (int64_t d = 0; d < p.dim_value; d++) {
        float *at = scratch.context + d * QUERIES + j * LANES;
        store(at, sees ? load(at) : floats{});
      }
    factors[j] = sees ? factors[j] : floats{};
    if (!call.logsumexp) continue;
    alignas(64) float logs[LANES];
    alignas(64) int32_t seeing[LANES];
    store(logs, log2(total));
    store(seeing, sees);
    for (int i = 0; i < LANES && j * LANES + i < task.count; i++) {
      call.logsumexp[row_number(p, task, j * LANES + i)] =
          seeing[i] ? float(sums[i].level + logs[i] * LN_2) : -INFINITY;
    }
  }
  store_rows(typename Arithmetic::Element(), scratch.context, factors, task, p.dim_value,
             call.context);
}

template <class Arithmetic>
static void forward_task(const ForwardCall &call, const Task &task, const Task &next,
                         const ForwardScratch &scratch) {
  const regard_problem &p = call.problem;
  Softmax softmax;
  for (int j = 0; j < VECTORS; j++)
    softmax.peak[j] = all(HIDDEN), softmax.total[j] = floats{}, softmax.seen[j] = ints{};
  memset(scratch.context, 0, size_t(padded(p.dim_value)) * QUERIES * sizeof(float));
  Arithmetic::load_queries(p.query, task, p.dim, call.scoring.query_factor, scratch.query);
  for (int32_t key = task.first_key; key < task.last_key; key += BLOCK)
    forward_block<Arithmetic>(call, task, next, key, least(key + BLOCK, task.last_key), scratch,
                              softmax);
  finish<Arithmetic>(call, task, scratch, softmax);
}

template <class Arithmetic>
static int forward(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  const ForwardCall call = {p, scoring_of(p), context, logsumexp};
  const int64_t tasks = p.batch * p.groups * tasks_per_group(p);
  return for_each_task(int(p.threads), tasks, ForwardScratch::size(p),
                       [&](int64_t number, void *memory) {
                         Task task, next;  // this thread's next, in all likelihood
                         begin(p, number, task);
                         next.count = 0;
                         if (number + p.threads < tasks) place(p, number + p.threads, next);
                         forward_task<Arithmetic>(call, task, next, ForwardScratch(p, memory));
                       });
}

}  // namespace regard::REGARD_SET
