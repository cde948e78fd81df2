// Logits, mask and weights from dot products for few rows, with keys in the lanes.
//
// The counterpart of scores.h and dropout.h, with the same rules and units.
#pragma once

#include "decode_tiles.h"
#include "dropout.h"

namespace regard::REGARD_SET {

// Consecutive keys of one row; their scores are padded to a multiple of LANES.
struct RowSegment {
  int row;  // of the block
  int32_t key, keys;
};

// Bias, ALiBi and mask of up to LANES keys as one term, −∞ where a key is hidden.
static floats added_to(const regard_problem &p, const QueryBlock &queries, int row, int32_t key,
                       int keys) {
  const auto offset = [&](const regard_matrix &m) {
    return queries.batch * m.batch + queries.head[row] * m.head + queries.query[row] * m.row +
           key * m.column;
  };
  alignas(64) float added[LANES] = {};
  if (p.bias.data) {
    const float *bias = (const float *)p.bias.data + offset(p.bias);
    for (int k = 0; k < keys; k++) added[k] = bias[k * p.bias.column];
  }
  if (p.allowed.data) {
    const uint8_t *allowed = (const uint8_t *)p.allowed.data + offset(p.allowed);
    for (int k = 0; k < keys; k++) added[k] = allowed[k * p.allowed.column] ? added[k] : HIDDEN;
  }
  return load(added);
}

REGARD_INLINE float number_of(const regard_numbers &numbers, const QueryBlock &queries, int row) {
  return numbers.data[queries.batch * numbers.batch + queries.head[row] * numbers.head];
}

// The terms of spans for the scores of a segment, −∞ where they hide; returns false, without
// writing, if no span touches it.
static bool load_added_by_spans(const regard_problem &p, const QueryBlock &queries, double unit,
                                const RowSegment &segment, float *added) {
  const int32_t end = segment.key + segment.keys;
  bool touched = false;
  for_each_span(queries, segment.key, end, [&](const BlockSpan &span) {
    const KeyRange range = span_of(p, queries, span.number, segment.row);
    if (range.empty() || !range.overlaps(segment.key, end)) return;
    if (!touched) memset(added, 0, size_t(padded(segment.keys)) * sizeof(float));
    touched = true;
    const float by = added_by(p, span, unit);
    for (int32_t key = max(range.start, segment.key); key < min(range.stop, end); key++)
      added[key - segment.key] += by;
  });
  return touched;
}

// The maximum over the lanes.
REGARD_INLINE float highest_of(floats peak) {
  float highest[LANES];
  store(highest, peak);
  REGARD_UNROLLED_FOR (int width = LANES / 2; width > 0; width /= 2)
    REGARD_UNROLLED_FOR (int i = 0; i < width; i++)
      highest[i] = max(highest[i], highest[i + width]);
  return highest[0];
}

// The peak of whole vectors of scores.
REGARD_INLINE float peak_of(const float *scores, int32_t keys) {
  floats peak = load(scores);
  for (int32_t k = LANES; k < keys; k += LANES) peak = max(peak, load(scores + k));
  return highest_of(peak);
}

// Computes masked scores from dot products, and their peak; `sees` is set to whether any key is
// visible. `of_spans` has the terms of spans, or is null.
template <bool adjusted>
static float adjust_row_scores(const regard_problem &p, const QueryBlock &queries,
                               const RowSegment &segment, const float *of_spans, float *scores,
                               int32_t &sees) {
  const int32_t last = segment.key + segment.keys;
  if (!adjusted && !of_spans && segment.keys % LANES == 0 &&
      queries.start[segment.row] <= segment.key && last <= queries.stop[segment.row]) {
    sees = true;
    return peak_of(scores, segment.keys);
  }
  const float scale = float(p.scale), cap = float(p.softcap);
  const bool dense = p.bias.data || p.allowed.data;
  const ints start = broadcast(queries.start[segment.row]);
  const ints stop = broadcast(min(queries.stop[segment.row], last));
  const ints position = broadcast(queries.position[segment.row]);
  const float slope = p.alibi.data ? number_of(p.alibi, queries, segment.row) : 0;
  floats peak = broadcast(HIDDEN);
  ints seen = {};
  for (int32_t k = 0; k < segment.keys; k += LANES) {
    const ints key = segment.key + k + lane_numbers();
    ints visible = (key >= start) & (key < stop);
    floats score = load(scores + k);
    if constexpr (adjusted) {
      score *= scale;
      if (cap > 0) score = tanh(score / cap) * cap;
      if (dense) {
        const floats added =
            added_to(p, queries, segment.row, segment.key + k, min(LANES, segment.keys - k));
        visible &= added != broadcast(HIDDEN);
        score += added;
      }
      if (p.alibi.data) {
        const ints after = key - position, before = position - key;
        score -= slope * __builtin_convertvector(after > before ? after : before, floats);
      }
    }
    if (of_spans) {
      const floats added = load(of_spans + k);
      visible &= added != broadcast(HIDDEN);
      score += added;
    }
    score = visible ? score : broadcast(HIDDEN);
    store(scores + k, score);
    peak = max(peak, score);
    seen |= visible;
  }
  sees = any(seen);
  return highest_of(peak);
}

// The score that is subtracted from all: 0 if all are −∞, so that they stay −∞.
REGARD_INLINE float peak_or_none(float peak) { return peak == HIDDEN ? 0 : peak; }

// weights = 2^(factor · (score − peak)), and their sum, with the peak subtracted first; see
// scores.h. It prefetches values meanwhile.
template <class Arithmetic>
static float exponentials(const float *scores, int32_t keys, float factor, float peak,
                          typename Arithmetic::Number *weights, Prefetch &prefetch) {
  floats total = {};
  const floats from = broadcast(peak_or_none(peak));
  for (int32_t k = 0; k < keys; k += LANES) {
    prefetch.step<64>();
    const floats w = exp2((load(scores + k) - from) * factor);
    Arithmetic::store_weights(weights + k, w);
    total += w;
  }
  return sum(total);
}

// Sets the dropped weights to 0.
template <class Number>
static void apply_dropout(const regard_problem &p, const QueryBlock &queries,
                          const RowSegment &segment, Number *weights) {
  const uint64_t bound = keep_threshold(p.dropout);
  const int32_t end = segment.key + segment.keys;
  const uint32_t query = uint32_t(queries.query[segment.row]);
  const uint32_t head = uint32_t(queries.batch * p.heads + queries.head[segment.row]);
  for (int32_t four = segment.key / 4; four * 4 < end; four += LANES) {
    uints counter[4] = {(uints)(four + lane_numbers()), uints{} + query, uints{} + head, uints{}};
    philox(counter, p.seed);
    const int32_t first = max(segment.key, 4 * four), last = min(end, 4 * (four + LANES));
    for (int32_t key = first; key < last; key++)
      if (counter[key % 4][key / 4 - four] < bound) weights[key - segment.key] = 0;
  }
}

}  // namespace regard::REGARD_SET
