// The forward pass: online softmax over blocks of keys.
//
// It is algorithm 1 of Dao et al. 2022, arXiv:2205.14135, with queries in the lanes.
//
// A block of queries iterates over the keys that any of its rows sees, a block of keys at a time.
// If all rows see all of these keys, nothing is masked; at the edges, only vectors with a row that
// may see a key are computed.
#pragma once

#include "dropout.h"
#include "fetch_next.h"
#include "online_softmax.h"
#include "packed_inputs.h"
#include "row_writer.h"
#include "threads.h"
#include "weighted_sums.h"

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
  float *kept;         // (FORWARD_BLOCK, QUERIES): copies of scores
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

// Splits a block of keys into segments at multiples of STRIP from the block's first key. The keys
// of `common` are visible to all rows, unless a span hides them.
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

// A block of keys, [first, last).
struct KeyBlock {
  const int32_t first, last;
  const bool at_end;  // the last block of keys of the queries
  Segment segments[MAX_SEGMENTS];
  const int count;

  KeyBlock(const QueryBlock &queries, int32_t first, int32_t last)
      : first(first), last(last), at_end(last == queries.stop_key),
        count(split_into_segments(queries, first, last, {queries.common_start, queries.common_stop},
                                  segments)) {}

  // The values of a segment.
  template <class Arithmetic>
  PackedRows<typename Arithmetic::Number> rows_of(
      const PackedRows<typename Arithmetic::Number> &values, const Segment &segment) const {
    return {values.data + (segment.key - first) / Arithmetic::STEP * values.stride, values.stride};
  }
};

// weights = 2^(factor·score − shift), which may overwrite the scores, and their sum. It writes a
// multiple of four keys; those after the last are summed as hidden ones.
template <class Arithmetic>
REGARD_INLINE floats exponentials(float *scores, float *weights, int32_t keys, floats factor,
                                  const Shift &shifts) {
  subtract(scores, keys, shifts.before);
  const floats shift = shifts.after;
  return sum_of_weights(
      keys,
      [&](int32_t k) REGARD_INLINE_LAMBDA {
        return Arithmetic::exponential(load(scores + k * QUERIES) * factor - shift);
      },
      [&](int32_t k, const floats *four) REGARD_INLINE_LAMBDA {
        Arithmetic::store_weights(weights + k / Arithmetic::STEP * QUERIES, four);
      });
}

// The state of a block of queries in its iteration over the keys.
struct ForwardState {
  // Whether values are checked before they are multiplied by weights of hidden keys; else only the
  // results are, and the block is recomputed if they are not finite.
  bool checks_values;
  Softmax softmax;
  bool written = false;  // the contexts
  bool finite = true;    // all of them

  explicit ForwardState(bool checks) : checks_values(checks) {}
};

// Accumulates the weighted values of a block of keys; after the last keys the contexts are
// complete.
template <class Arithmetic>
static void add_context(const ForwardCall &call, const QueryBlock &queries, const KeyBlock &block,
                        const PackedRows<typename Arithmetic::Number> &values,
                        const ForwardScratch &scratch, ForwardState &state) {
  const regard_problem &p = call.problem;
  const int64_t width = padded(p.dim_value);
  const float *weights = scratch.scores;
  KeyRange ranges[VECTORS];
  if (!find_ranges(queries, block.segments, block.count, ranges)) {
    state.softmax.begin_contexts(scratch.context, width);
    return add_ranges<typename Arithmetic::Products>(
        queries, block.segments, block.count, block.first, values, width, weights, scratch.context);
  }
  alignas(64) float factors[QUERIES];
  state.written = block.at_end && !state.checks_values;
  if (state.written) finish(p, call.scoring, queries, state.softmax, factors, call.logsumexp);
  QueryWriter<typename Arithmetic::Element> write = {.sums = scratch.context,
                                                     .width = width,
                                                     .add = !state.softmax.empty,
                                                     .last = state.written,
                                                     .factors = {factors, 1},
                                                     .rows = {call.context, queries},
                                                     .dim = p.dim_value};
  state.softmax.empty = false;
  add_visible<typename Arithmetic::Products>(queries, block.segments, block.count, ranges,
                                             block.first, values, width, weights, write);
  state.finite = write.finite();
}

// Computes the masked scores of a block's segments, and updates the running maximum `peak`.
template <class Arithmetic>
REGARD_INLINE void score_segments(const ForwardCall &call, const QueryBlock &queries,
                                  const KeyBlock &block, bool fetches_values, FetchNextBlock &ahead,
                                  PackedInputs<Arithmetic> &packed, const ForwardScratch &scratch,
                                  Softmax &softmax, floats *peak) {
  using Element = typename Arithmetic::Element;
  constexpr int STEP = Arithmetic::STEP;
  const regard_problem &p = call.problem;
  for (int j = 0; j < VECTORS; j++) peak[j] = softmax.peak[j];
  const auto keys = packed.keys_of(queries, block.first, block.last, scratch.packed_rows);
  for (int n = 0; n < block.count; n++) {
    const Segment &segment = block.segments[n];
    float *scores = scratch.scores + (segment.key - block.first) * QUERIES;
    floats computed[VECTORS];
    for (int j = 0; j < VECTORS; j++) computed[j] = peak[j];
    const auto *first_value = first_row<Element>(p.value, queries, segment.key);
    const RowsToFetch values = {first_value, p.value.row * int64_t(sizeof *first_value),
                                fetches_values ? p.dim_value * int64_t(sizeof *first_value) : 0};
    if (block.at_end) ahead.with_last_keys({n, n + 1, block.count});
    with_live(segment.last - segment.first, [&](auto live) {
      score_rows<typename Arithmetic::Products, live>(
          keys.data + (segment.key - block.first) * keys.stride, keys.stride, segment.keys,
          (p.dim + STEP - 1) / STEP, scratch.query + segment.first * LANES,
          scores + segment.first * LANES, computed + segment.first,
          FetchWithKeys{values, ahead, segment.key});
    });
    if (call.scoring.adjusted)
      adjust_scores(p, queries, segment, scores, peak, softmax.seen);
    else if (segment.edge)
      apply_mask(p, call.scoring, queries, segment, scores, computed, peak);
    else
      for (int j = 0; j < VECTORS; j++) peak[j] = computed[j];
  }
}

// Overwrites the scores of a block's segments by weights, and adds these to the rows' sums.
// `keeps_scores` tells whether the scores are copied first.
template <class Arithmetic>
REGARD_INLINE void weigh_segments(const ForwardCall &call, const QueryBlock &queries,
                                  const KeyBlock &block, bool keeps_scores,
                                  const ForwardScratch &scratch, Softmax &softmax) {
  const regard_problem &p = call.problem;
  const floats factor = broadcast(call.scoring.factor);
  Shift shifts[VECTORS];
  for (int j = 0; j < queries.vectors; j++) shifts[j] = shift_of(softmax.peak[j], factor);
  for (int n = 0; n < block.count; n++) {
    const Segment &segment = block.segments[n];
    const int64_t at = (segment.key - block.first) * QUERIES;
    float *scores = scratch.scores + at, *weights = scratch.scores + at / Arithmetic::STEP;
    if (block.at_end)
      fetch_rows<typename Arithmetic::Element>(call.context, queries, p.dim_value,
                                               {n, n + 1, block.count});
    if (keeps_scores)
      memcpy(scratch.kept + at, scores, size_t(segment.keys) * QUERIES * sizeof(float));
    for (int j = segment.first; j < segment.last; j++)
      softmax.total[j] += exponentials<Arithmetic>(scores + j * LANES, weights + j * LANES,
                                                   segment.keys, factor, shifts[j]);
    if (p.dropout > 0) apply_dropout<Arithmetic>(p, queries, segment, weights);
  }
}

// Whether a hidden value is not finite.
template <class Arithmetic>
static bool hides_nonfinite(const ForwardCall &call, const KeyBlock &block,
                            const PackedRows<typename Arithmetic::Number> &values) {
  for (int n = 0; n < block.count; n++) {
    const Segment &segment = block.segments[n];
    if ((segment.edge || call.scoring.adjusted) &&
        !finite_rows<typename Arithmetic::Products>(block.rows_of<Arithmetic>(values, segment),
                                                    segment.keys, call.problem.dim_value))
      return true;
  }
  return false;
}

// Calls keep(block, scores, seen) with the masked scores of a block of keys; `seen` are the lanes
// that have seen a key so far, where scores are adjusted.
template <class Arithmetic, class Keep>
static void forward_block(const ForwardCall &call, const QueryBlock &queries, FetchNextBlock &ahead,
                          PackedInputs<Arithmetic> &packed, int32_t first, int32_t last,
                          const ForwardScratch &scratch, ForwardState &state, const Keep &keep) {
  const regard_problem &p = call.problem;
  const KeyBlock block(queries, first, last);
  if (block.count == 0) return keep(block, scratch.scores, state.softmax.seen);
  floats peak[VECTORS];
  const bool fetches_values = !ahead.near() && !packed.values.holds(first, last);
  score_segments<Arithmetic>(call, queries, block, fetches_values, ahead, packed, scratch,
                             state.softmax, peak);
  keep(block, scratch.scores, state.softmax.seen);
  const int64_t width = padded(p.dim_value);
  rescale(queries, peak, call.scoring.factor, width, state.softmax, scratch.context);

  // Packed values may continue after the last key, with a hidden value.
  const auto values = state.checks_values
                          ? Arithmetic::values(p, p.value, queries, first, last - first,
                                               p.dim_value, scratch.packed_rows)
                          : packed.values_of(queries, first, last, scratch.packed_rows);
  const bool visible_only = state.checks_values && hides_nonfinite<Arithmetic>(call, block, values);
  weigh_segments<Arithmetic>(call, queries, block, visible_only, scratch, state.softmax);
  if (!visible_only) return add_context<Arithmetic>(call, queries, block, values, scratch, state);
  state.softmax.begin_contexts(scratch.context, width);
  for (int n = 0; n < block.count; n++) {
    const Segment &segment = block.segments[n];
    const int64_t at = (segment.key - first) * QUERIES;
    const auto rows = block.rows_of<Arithmetic>(values, segment);
    const float *weights = scratch.scores + at / Arithmetic::STEP, *scores = scratch.kept + at;
    if constexpr (MultipliesTiles<typename Arithmetic::Products>)
      move_nonfinite<Arithmetic>(const_cast<typename Arithmetic::Number *>(rows.data), rows.stride,
                                 segment, width, weights, scores, scratch.context);
    else
      context_of_visible<Arithmetic>(rows, segment, width, weights, scores, scratch.context);
  }
  if constexpr (MultipliesTiles<typename Arithmetic::Products>)
    add_context<Arithmetic>(call, queries, block, values, scratch, state);
}

// Writes the contexts that are not written yet, from their sums; returns whether all are finite.
template <class Arithmetic>
static bool write_contexts(const ForwardCall &call, const QueryBlock &queries,
                           const ForwardScratch &scratch, ForwardState &state) {
  using Element = typename Arithmetic::Element;
  const regard_problem &p = call.problem;
  const int64_t width = padded(p.dim_value);
  state.softmax.begin_contexts(scratch.context, width);
  alignas(64) float factors[QUERIES];
  finish(p, call.scoring, queries, state.softmax, factors, call.logsumexp);
  const BlockRows<Element> rows(call.context, queries);
  ints nonfinite = {};
  for (int r = 0; r < queries.count; r++) {
    // The context of a row without visible keys is 0, even if hidden values are NaN.
    const bool sees = sees_some(call.scoring, queries, state.softmax, r / LANES)[r % LANES];
    for (int64_t d = 0; d < p.dim_value; d += LANES) {
      const floats sum = sees ? load(scratch.context + r * width + d) : floats{};
      nonfinite |= is_nonfinite(sum * factors[r]);
      narrow_part(Element(), rows[r] + d, sum * factors[r], p.dim_value - d);
    }
  }
  return !any(nonfinite);
}

struct KeepNothing {
  void operator()(const KeyBlock &, const float *, const ints *) const {}
};

template <class Arithmetic, class Keep = KeepNothing>
static void forward_queries(const ForwardCall &call, const QueryBlock &queries,
                            FetchNextBlock ahead, PackedInputs<Arithmetic> &packed,
                            const ForwardScratch &scratch, const Keep &keep = {}) {
  const regard_problem &p = call.problem;
  Arithmetic::load_queries(p.query, queries, p.dim, call.scoring.query_factor, scratch.query);
  for (const bool checks_values : {false, true}) {
    ForwardState state(checks_values);
    // The last keys are at the edge of the mask, so strips are aligned to their end.
    constexpr int32_t STEP = Arithmetic::STEP;
    static_assert(FORWARD_BLOCK % STEP == 0);
    const int32_t start = queries.first_key / STEP * STEP;
    const int32_t keys = queries.stop_key - start,
                  rest = (keys % FORWARD_BLOCK + STEP - 1) / STEP * STEP;
    for (int32_t key = start, last; key < queries.stop_key; key = last) {
      const int32_t size = key == start && rest ? rest : FORWARD_BLOCK;
      last = min(size, queries.stop_key - key) + key;
      forward_block<Arithmetic>(call, queries, ahead, packed, key, last, scratch, state, keep);
    }
    if (!state.written) state.finite = write_contexts<Arithmetic>(call, queries, scratch, state);
    if (state.finite) return;
  }
}

// Blocks per task of the parallel loop, at most `most`, so that each thread has several tasks.
REGARD_INLINE int64_t pieces_per_task(const regard_problem &p, int64_t pieces, int64_t most = 8) {
  return max(int64_t(1), min(most, pieces / (16 * p.threads)));
}

template <class Arithmetic>
static int forward(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  const ForwardCall call = {p, scoring_of(p), context, logsumexp};
  const int64_t query_blocks = p.batch * p.groups * query_blocks_per_group(p);
  // If rows are packed, each task has its own copies, so it should have more blocks.
  const int64_t most = Arithmetic::copies_keys(p) ? 32 : 8;
  const int64_t per_task = pieces_per_task(p, query_blocks, most);
  const auto task = [&](int64_t number, void *memory) {
    const int64_t first = number * per_task, last = min(query_blocks, first + per_task);
    const ForwardScratch scratch(p, memory);
    PackedInputs<Arithmetic> packed(p, (char *)memory + aligned(ForwardScratch::size(p)));
    QueryBlock blocks[2];
    begin(p, first, blocks[0]);
    for (int64_t block = first; block < last; block++) {
      QueryBlock &queries = blocks[(block - first) % 2], &next = blocks[(block - first + 1) % 2];
      // The block that this thread probably computes next.
      const int64_t following = block + 1 < last ? block + 1 : last + (p.threads - 1) * per_task;
      next.count = 0;
      if (following < query_blocks) begin(p, following, next);
      find_spans(p, scratch.spans, queries);
      const bool follows = block > first && block % query_blocks_per_group(p) != 0;
      packed.begin(queries, queries.stop_key);
      forward_queries<Arithmetic>(call, queries, {p, queries, next, follows}, packed, scratch);
    }
  };
  return for_each_product_task<Arithmetic>(
      int(p.threads), (query_blocks + per_task - 1) / per_task,
      aligned(ForwardScratch::size(p)) + PackedInputs<Arithmetic>::size(p), task);
}

}  // namespace regard::REGARD_SET
