// The online softmax of a block's rows.
//
// It stores their running maxima and sums, and computes the factors of their contexts and their
// log-sum-exps at the end.
#pragma once

#include "row_sum.h"
#include "scores.h"

namespace regard::REGARD_SET {

// The running softmax statistics of a block's rows.
struct Softmax {
  floats peak[VECTORS], total[VECTORS];
  ints seen[VECTORS];
  bool empty = true;  // nothing is accumulated in the contexts yet

  Softmax() {
    for (int j = 0; j < VECTORS; j++)
      peak[j] = broadcast(HIDDEN), total[j] = floats{}, seen[j] = ints{};
  }
  // Sets the contexts to 0 if nothing is accumulated yet.
  void begin_contexts(float *context, int64_t width) {
    if (empty) memset(context, 0, size_t(width) * QUERIES * sizeof *context);
    empty = false;
  }
};

// The factor of sums that were computed with the old shift.
REGARD_INLINE floats ratio_of(const Shift &old, const Shift &current, floats factor) {
  return exp2((old.before - current.before) * factor + (old.after - current.after));
}

// Rescales the sums of rows to a higher maximum. A maximum that is only a little too low is kept:
// weights are then at most 2^SLACK.
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
    // Rows without a maximum have no sums yet.
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
}

// The sum of the weights weight(k) of a number of keys. Calls use(k, weights) for four keys at a
// time; the weights after the last key are 0.
template <class Weight, class Use>
REGARD_INLINE floats sum_of_weights(int32_t keys, Weight weight, Use use) {
  floats even = floats{}, odd = floats{}, w[4];
  const auto add = [&](int32_t k) REGARD_INLINE_LAMBDA {
    use(k, w);
    even += w[0] + w[1];
    odd += w[2] + w[3];
  };
  int32_t k = 0;
  for (; k + 4 <= keys; k += 4) {
    REGARD_UNROLLED_FOR (int i = 0; i < 4; i++) w[i] = weight(k + i);
    add(k);
  }
  if (k == keys) return even + odd;
  for (int i = 0; i < 4; i++) w[i] = k + i < keys ? weight(k + i) : floats{};
  add(k);
  return even + odd;
}

// Lanes that see a key.
REGARD_INLINE ints sees_some(const Scoring &scoring, const QueryBlock &queries,
                             const Softmax &softmax, int j) {
  if (scoring.adjusted) return softmax.seen[j];
  return load(queries.start + j * LANES) < load(queries.stop + j * LANES);
}

// Writes LANES log-sum-exps, total · e^level each, −∞ for rows that see nothing.
static void write_logsumexps(const regard_problem &p, const QueryBlock &queries, int first_row,
                             const double *level, floats total, ints sees, float *logsumexp) {
  alignas(64) float logs[LANES];
  store(logs, log2(total));
  for (int i = 0; i < LANES; i++) logs[i] = float(level[i] + logs[i] * LN_2);
  const floats sums = sees ? load(logs) : broadcast(-INFINITY);
  const int count = min(LANES, queries.count - first_row);
  if (queries.one_head)
    return narrow_part(Float32(), logsumexp + row_number(p, queries, first_row), sums, count);
  store(logs, sums);
  for (int i = 0; i < count; i++) logsumexp[row_number(p, queries, first_row + i)] = logs[i];
}

// Adds the sink. Computes the factors of the rows' sums, 0 for rows without visible keys, and, if
// they are wanted, the log-sum-exps.
static void finish(const regard_problem &p, const Scoring &scoring, const QueryBlock &queries,
                   const Softmax &softmax, float *factors, float *logsumexp) {
  const float kept = p.dropout < 1 ? float(1 / (1 - p.dropout)) : 0;
  for (int j = 0; j < queries.vectors; j++) {
    floats total = softmax.total[j], share = broadcast(kept);
    alignas(64) double level[LANES];
    if (p.sink.data || logsumexp)
      find_levels(shift_of(softmax.peak[j], broadcast(scoring.factor)), scoring, level);
    if (p.sink.data) {
      const floats sinks = numbers_of(p.sink, queries, j * LANES);
      for (int i = 0; i < LANES; i++) {
        RowSum sum = {level[i], total[i]};
        share[i] *= sum.take_in(sinks[i]);
        total[i] = sum.total, level[i] = sum.level;
      }
    }
    const ints sees = sees_some(scoring, queries, softmax, j);
    store(factors + j * LANES, sees ? share / total : floats{});
    if (logsumexp) write_logsumexps(p, queries, j * LANES, level, total, sees, logsumexp);
  }
}

}  // namespace regard::REGARD_SET
