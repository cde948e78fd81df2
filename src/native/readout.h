// The interface of readouts: memory, and a function for each stage of the pass.
#pragma once

#include "weights.h"

namespace regard::REGARD_SET {

// A readout on a chunk of rows.
struct ReadoutState {
  const regard_problem &p;
  const regard_readout &request;
  const RowChunk &rows;
  char *memory;       // its state for a block of queries
  double *sums;       // its sums over rows, of the chunk's first head
  int64_t sums_step;  // stride from one head's to the next

  double *sums_of(int64_t head) const { return sums + (head - rows.head) * sums_step; }
  // Bytes of memory, as numbers.
  template <class Number>
  Number *kept() const {
    return (Number *)memory;
  }
};

// The sums over rows of one head, chunk by chunk.
struct Sums {
  double *data;
  int64_t step;  // stride from one chunk's to the next
  const ChunkPlan &plan;

  // Sums over the chunks, in order.
  double *total(int64_t count) const {
    for (int64_t c = 1; c < plan.chunks; c++)
      for (int64_t i = 0; i < count; i++) data[i] += data[c * step + i];
    return data;
  }
};

// Readouts are types without data; in this base class every stage is a no-op.
struct Readout {
  // The inputs that it needs.
  static constexpr bool of_weights = true, of_entropy = false, of_peaks = false, of_scaled = false;
  // Whether the rounding of sums over a head's rows depends on all rows of a block; else on LANES
  // of its rows at a time, from its first row on, so that it does not depend on other heads.
  static constexpr bool of_whole_blocks = false;

  // Bytes of a thread's state for a block, and number of sums per head and chunk.
  static size_t memory(const regard_problem &, const regard_readout &) { return 0; }
  static int64_t sums(const regard_problem &, const regard_readout &) { return 0; }

  static void begin(const ReadoutState &, const QueryBlock &) {}
  // Whether it needs the weights of these queries, for which it has begun, on keys [first, last).
  // Blocks that no readout needs are skipped, except for NaN rows.
  static bool looks_at(const ReadoutState &, const QueryBlock &, int32_t, int32_t) { return true; }
  static void scores(const ReadoutState &, const WeightBlock &) {}
  static void weights(const ReadoutState &, const WeightBlock &) {}
  static void end(const ReadoutState &, const QueryBlock &, const Normalizers &) {}
  // Writes the sums of a head, b·H + h.
  static void finish(const regard_problem &, const regard_readout &, int64_t, const Sums &) {}
};

template <class Value, class Test>
REGARD_INLINE bool any_of(const Value *first, const Value *last, Test test) {
  for (; first < last; first++)
    if (test(*first)) return true;
  return false;
}

// Adds numbers to double sums, whose error does not grow with the length.
REGARD_INLINE void add_to(double *sums, floats x) {
  alignas(64) float part[LANES];
  store(part, x);
  for (int i = 0; i < LANES; i++) sums[i] += part[i];
}
REGARD_INLINE void add_to(double *sums, floats x, int64_t count) {
  if (count >= LANES) return add_to(sums, x);
  alignas(64) float part[LANES];
  store(part, x);
  for (int i = 0; i < count; i++) sums[i] += part[i];
}

// Whether a row sees a key.
REGARD_INLINE bool visible(const regard_problem &p, const QueryBlock &queries, int r, int64_t key) {
  if (key < queries.start[r] || key >= queries.stop[r]) return false;
  if (hidden_by_span(p, queries, r, int32_t(key))) return false;
  const auto at = [&](const regard_matrix &m) {
    return queries.batch * m.batch + queries.head[r] * m.head + queries.query[r] * m.row +
           key * m.column;
  };
  if (p.allowed.data && !((const uint8_t *)p.allowed.data)[at(p.allowed)]) return false;
  return !p.bias.data || ((const float *)p.bias.data)[at(p.bias)] != HIDDEN;
}

// The ranges of keys that spans hide from a row, in ascending order of their starts.
static int32_t hidden_ranges(const regard_problem &p, const QueryBlock &queries, int r,
                             KeyRange *ranges) {
  int32_t count = 0;
  for_each_span(queries, queries.start[r], queries.stop[r], [&](const BlockSpan &span) {
    if (p.spans.added[span.number] != HIDDEN) return;
    const KeyRange range = span_of(p, queries, span.number, r);
    if (range.empty()) return;
    int32_t n = count++;
    for (; n > 0 && ranges[n - 1].start > range.start; n--) ranges[n] = ranges[n - 1];
    ranges[n] = range;
  });
  return count;
}

// Calls call(range) for the ranges of keys that a row sees, apart from matrices. The memory is of
// a range for each span.
template <class Call>
static void for_each_visible_range(const regard_problem &p, const QueryBlock &queries, int r,
                                   KeyRange *memory, Call call) {
  int32_t start = queries.start[r];
  const int32_t stop = queries.stop[r], ranges = hidden_ranges(p, queries, r, memory);
  const auto visit = [&](KeyRange range) {
    if (!range.empty()) call(range);
  };
  for (int32_t n = 0; n < ranges; n++) {
    visit({start, min(stop, memory[n].start)});
    start = max(start, memory[n].stop);
  }
  visit({start, stop});
}

}  // namespace regard::REGARD_SET
