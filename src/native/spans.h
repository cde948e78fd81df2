// Spans of keys whose scores are changed: hidden, or shifted by a number.
//
// Keys outside the spans of a block's rows take the same path as without spans.
#pragma once

#include "query_block.h"

namespace regard::REGARD_SET {

// Bytes of memory for the spans of a block.
REGARD_INLINE size_t span_bytes(const regard_problem &p) {
  return size_t(p.spans.count) * sizeof(BlockSpan);
}

// Lists the spans that touch a row of the block.
static void find_spans(const regard_problem &p, BlockSpan *memory, QueryBlock &queries) {
  queries.spans = memory;
  queries.span_count = 0;
  for (int64_t n = 0; n < p.spans.count; n++) {
    KeyRange all = {int32_t(p.keys), 0}, common = {0, int32_t(p.keys)};
    for (int r = 0; r < queries.count; r++) {
      const KeyRange span = span_of(p, queries, n, r);
      common = {max(common.start, span.start), min(common.stop, span.stop)};
      if (!span.empty()) all = {min(all.start, span.start), max(all.stop, span.stop)};
    }
    const bool hides = p.spans.added[n] == HIDDEN;
    if (!all.empty()) memory[queries.span_count++] = {int32_t(n), all, hides ? common : KeyRange{}};
  }
}

// Calls call(span) for those that touch keys [first, last).
template <class Call>
REGARD_INLINE void for_each_span(const QueryBlock &queries, int32_t first, int32_t last,
                                 Call call) {
  for (int32_t n = 0; n < queries.span_count; n++)
    if (queries.spans[n].range.overlaps(first, last)) call(queries.spans[n]);
}

REGARD_INLINE bool touched_by_spans(const QueryBlock &queries, int32_t first, int32_t last) {
  bool touched = false;
  for_each_span(queries, first, last, [&](const BlockSpan &) { touched = true; });
  return touched;
}

// Whether one span hides keys [first, last) from all rows.
REGARD_INLINE bool hidden_by_span(const QueryBlock &queries, int32_t first, int32_t last) {
  bool hidden = false;
  for_each_span(queries, first, last, [&](const BlockSpan &span) {
    hidden |= span.hidden_from_all.start <= first && last <= span.hidden_from_all.stop;
  });
  return hidden;
}

// The term of a span in units of the scores, given their unit in natural units.
REGARD_INLINE float added_by(const regard_problem &p, const BlockSpan &span, double unit) {
  return float(p.spans.added[span.number] / unit);
}

// Applies spans to the scores (keys, stride) of vector j and keys [key, key + keys).
static void apply_spans(const regard_problem &p, const QueryBlock &queries, double unit, int j,
                        int32_t key, int32_t keys, float *scores, int64_t stride) {
  for_each_span(queries, key, key + keys, [&](const BlockSpan &span) {
    alignas(64) int32_t starts[LANES] = {}, stops[LANES] = {};
    for (int i = 0; i < LANES && j * LANES + i < queries.count; i++) {
      const KeyRange range = span_of(p, queries, span.number, j * LANES + i);
      starts[i] = range.start, stops[i] = range.stop;
    }
    const ints start = load(starts), stop = load(stops);
    const floats added = broadcast(added_by(p, span, unit));
    const ints hides = added == broadcast(HIDDEN);
    const int32_t last = min(key + keys, span.range.stop);
    for (int32_t k = max(key, span.range.start); k < last; k++) {
      float *at = scores + (k - key) * stride;
      const ints inside = (broadcast(k) >= start) & (broadcast(k) < stop);
      const floats score = load(at), sum = score + added;
      store(at, inside ? (hides ? broadcast(HIDDEN) : sum) : score);
    }
  });
}

// Whether a span hides a key from a row.
REGARD_INLINE bool hidden_by_span(const regard_problem &p, const QueryBlock &queries, int r,
                                  int32_t key) {
  bool hidden = false;
  for_each_span(queries, key, key + 1, [&](const BlockSpan &span) {
    hidden |= p.spans.added[span.number] == HIDDEN &&
              span_of(p, queries, span.number, r).overlaps(key, key + 1);
  });
  return hidden;
}

}  // namespace regard::REGARD_SET
