// Decode: few queries against many keys. The keys are cut into splits of a fixed size, so that even
// a single query has work for all threads; their partial results are merged in order
// (flash-decoding).
//
// A split is one pass over its keys and one over its values for all rows of a group. Its result and
// the order of merging do not depend on the threads.
#pragma once

#include <stdlib.h>

#include "decode_scores.h"
#include "decode_tiles.h"
#include "row_sum.h"
#include "threads.h"

namespace regard::REGARD_SET {

constexpr int MAX_ROWS = 16;          // of a group that are taken together
constexpr int64_t MANY = 4096;        // keys from which on it counts that threads can share them
constexpr int32_t DECODE_BLOCK = 16;  // keys whose rows stay in the nearest cache
constexpr int64_t AHEAD = 16384;      // bytes that are fetched before they are needed
static_assert(MAX_ROWS <= QUERIES && SPLIT % DECODE_BLOCK == 0 && DECODE_BLOCK % LANES == 0);

// Whether a problem is computed this way: where queries in the lanes would leave more than half of
// them idle, or one thread alone with many keys. Only these sizes may decide, not the threads or
// the batch, or results would depend on them.
REGARD_INLINE bool has_few_rows(const regard_problem &p) {
  const int64_t rows = p.queries * group_size(p);
  return p.keys > 0 && p.dim > 0 && p.dim_value > 0 && 0 < rows &&
         rows <= (p.keys < MANY ? LANES / 2 : MAX_ROWS);
}

// A row's result in a split: its context is that of the weights 2^(factor · (score − peak)).
struct Partial {
  float peak, total;
  int32_t sees;
};

// The partial results of all rows, by pair of batch entry and group, then split, then row.
struct Partials {
  Partial *numbers;
  float *context;  // padded(dim_value) each
  int32_t *left;   // of each pair, tasks that are not finished
  int64_t rows, splits, width;
  void *memory;

  explicit Partials(const regard_problem &p) {
    const int64_t pairs = p.batch * p.groups;
    rows = p.queries * group_size(p), splits = parts(p.keys, SPLIT);
    width = padded(p.dim_value);
    const size_t count = size_t(pairs * splits * rows);
    memory = malloc(count * (sizeof(float) * size_t(width) + sizeof(Partial)) +
                    size_t(pairs) * sizeof(int32_t));
    context = (float *)memory;
    numbers = (Partial *)(context + count * size_t(width));
    left = (int32_t *)(numbers + count);
  }
  ~Partials() { free(memory); }
  int64_t at(int64_t pair, int64_t split) const { return (pair * splits + split) * rows; }
};

// A thread's memory for a split.
struct DecodeScratch {
  float *query;       // (rows, padded(dim))
  float *scores;      // (rows, SPLIT)
  float *weights;     // (rows, SPLIT)
  float *added;       // (SPLIT): to the scores of a row, by spans
  float *block_rows;  // (DECODE_BLOCK, padded(dim or dim_value))
  BlockSpan *spans;

  static size_t size(const regard_problem &p) {
    const int64_t columns = padded(p.dim) + 2 * SPLIT;
    return size_t(columns * MAX_ROWS + SPLIT + DECODE_BLOCK * padded(max(p.dim, p.dim_value))) *
               sizeof(float) +
           span_bytes(p);
  }
  DecodeScratch(const regard_problem &p, void *memory) {
    query = (float *)memory;
    scores = query + padded(p.dim) * MAX_ROWS;
    weights = scores + SPLIT * MAX_ROWS;
    added = weights + SPLIT * MAX_ROWS;
    block_rows = added + SPLIT;
    spans = (BlockSpan *)(block_rows + DECODE_BLOCK * padded(max(p.dim, p.dim_value)));
  }
};

template <class Element>
static void widen_rows(Element element, const typename Element::type *from, int64_t stride,
                       int64_t count, int64_t dim, float factor, float *to) {
  for (int64_t k = 0; k < count; k++)
    for (int64_t d = 0; d < dim; d += LANES)
      store(to + k * padded(dim) + d, widen_part(element, from + k * stride + d, dim - d) * factor);
}

// Calls `use(rows, first, count, prefetch)` for blocks of a split's keys or values; rows that do
// not fill whole vectors are copied first.
template <class Element, class Use>
REGARD_INLINE void for_each_decode_block(const regard_tensor &from, const QueryBlock &queries,
                                         int32_t key, int32_t keys, int64_t dim, float *block_rows,
                                         Use use) {
  constexpr int64_t size = sizeof(typename Element::type);
  const auto *rows = first_row<Element>(from, queries, key);
  Prefetch prefetch(rows + (AHEAD / (dim * size) + 1) * from.row, from.row * size, dim * size);
  for (int32_t first = 0; first < keys; first += DECODE_BLOCK, rows += DECODE_BLOCK * from.row) {
    const int32_t count = min(DECODE_BLOCK, keys - first);
    if (dim % LANES == 0) {
      use(Rows<Element>{rows, from.row}, first, count, prefetch);
    } else {
      widen_rows(Element(), rows, from.row, count, dim, 1, block_rows);
      use(Rows<Float32>{block_rows, padded(dim)}, first, count, prefetch);
    }
  }
}

// Calls `call` for tiles of rows with the first row, and their number as a constant.
template <class Call>
REGARD_INLINE void for_each_tile(int rows, Call call) {
  for (int row = 0; row < rows; row += TILE_ROWS)
    with_live(min(TILE_ROWS, rows - row), [&](auto count) {
      if constexpr (count <= TILE_ROWS) call(row, count);
    });
}

template <class Element>
static void scores_of(const regard_problem &p, const QueryBlock &queries, int32_t key, int32_t keys,
                      const DecodeScratch &scratch) {
  const int64_t dim = padded(p.dim);
  for_each_decode_block<Element>(
      p.key, queries, key, keys, p.dim, scratch.block_rows,
      [&](auto rows, int32_t first, int32_t count, Prefetch &prefetch) {
        prefetch.plan(count,
                      parts(count, TILE_WIDTH) * dim / LANES * parts(queries.count, TILE_ROWS));
        for (int32_t k = 0; k < count; k += LANES, rows.data += LANES * rows.stride)
          for_each_tile(queries.count, [&](int row, auto tile) {
            score_lanes<tile>(rows, count - k, dim, scratch.query + row * dim,
                              scratch.scores + row * SPLIT + first + k, prefetch);
          });
      });
}

template <class Element>
static void split_context(const regard_problem &p, const QueryBlock &queries, int32_t key,
                          int32_t keys, const DecodeScratch &scratch, float *context) {
  const int64_t dim = padded(p.dim_value);
  memset(context, 0, size_t(queries.count * dim) * sizeof(float));
  for_each_decode_block<Element>(
      p.value, queries, key, keys, p.dim_value, scratch.block_rows,
      [&](const auto &rows, int32_t first, int32_t count, Prefetch &prefetch) {
        prefetch.plan(count,
                      count * parts(dim, TILE_WIDTH * LANES) * parts(queries.count, TILE_ROWS));
        for_each_tile(queries.count, [&](int row, auto tile) {
          add_context<tile>(rows, count, dim, scratch.weights + row * SPLIT + first,
                            context + row * dim, prefetch);
        });
      });
}

// As split_context, and the same to the last bit, but a hidden value counts as 0, since 0 · NaN is
// NaN.
template <class Element>
static void split_context_of_visible(const regard_problem &p, const QueryBlock &queries,
                                     int32_t key, int32_t keys, const DecodeScratch &scratch,
                                     float *context) {
  const int64_t dim = padded(p.dim_value);
  memset(context, 0, size_t(queries.count * dim) * sizeof(float));
  for (int32_t first = 0; first < keys; first += DECODE_BLOCK) {
    const int32_t count = min(DECODE_BLOCK, keys - first);
    for (int r = 0; r < queries.count; r++) {
      widen_rows(Element(), first_row<Element>(p.value, queries, key + first), p.value.row, count,
                 p.dim_value, 1, scratch.block_rows);
      for (int32_t k = 0; k < count; k++)
        if (scratch.scores[r * SPLIT + first + k] == HIDDEN)
          memset(scratch.block_rows + k * dim, 0, size_t(dim) * sizeof(float));
      Prefetch none(nullptr, 0, 0);
      add_context<1>(Rows<Float32>{scratch.block_rows, dim}, count, dim,
                     scratch.weights + r * SPLIT + first, context + r * dim, none);
    }
  }
}

static bool any_nonfinite(const float *numbers, int64_t count) {
  ints found = {};
  for (int64_t i = 0; i < count; i += LANES) found |= is_nonfinite(load(numbers + i));
  return any(found);
}

template <class Element>
static void decode_split(const regard_problem &p, const Scoring &scoring, const QueryBlock &queries,
                         int64_t split, const DecodeScratch &scratch, Partial *partial,
                         float *context) {
  const int32_t key = max(queries.first_key, int32_t(split * SPLIT));
  const int32_t keys = min(queries.stop_key, int32_t(min((split + 1) * SPLIT, p.keys))) - key;
  if (hidden_by_span(queries, key, key + keys)) {
    for (int r = 0; r < queries.count; r++) partial[r] = {HIDDEN, 0, 0};
    memset(context, 0, size_t(queries.count * padded(p.dim_value)) * sizeof(float));
    return;
  }
  scores_of<Element>(p, queries, key, keys, scratch);
  for (int r = 0; r < queries.count; r++) {
    const RowSegment segment = {r, key, keys};
    float *scores = scratch.scores + r * SPLIT, *weights = scratch.weights + r * SPLIT;
    const bool touched = load_added_by_spans(p, queries, scoring.unit, segment, scratch.added);
    const auto adjust = scoring.adjusted ? adjust_row_scores<true> : adjust_row_scores<false>;
    const float peak =
        adjust(p, queries, segment, touched ? scratch.added : nullptr, scores, partial[r].sees);
    partial[r].peak = peak;
    partial[r].total = exponentials(scores, keys, scoring.factor, peak, weights);
    if (p.dropout > 0) apply_dropout(p, queries, segment, weights);
  }
  split_context<Element>(p, queries, key, keys, scratch, context);
  const bool common = !scoring.adjusted && queries.common_start <= key &&
                      key + keys <= queries.common_stop &&
                      !touched_by_spans(queries, key, key + keys);
  if (!common && any_nonfinite(context, queries.count * padded(p.dim_value)))
    split_context_of_visible<Element>(p, queries, key, keys, scratch, context);
}

// The splits that hold all keys that the rows see: [first, last).
struct Splits {
  int64_t first, last;
};
REGARD_INLINE Splits splits_of(const QueryBlock &queries) {
  if (queries.first_key >= queries.stop_key) return {0, 0};
  return {queries.first_key / SPLIT, parts(queries.stop_key, SPLIT)};
}

// Adds up a row's splits, takes the sink in, divides by the denominator and writes the row.
template <class Element>
static void merge_row(const regard_problem &p, const Scoring &scoring, const QueryBlock &queries,
                      int row, const Partials &partials, float *sums, const regard_tensor &context,
                      float *logsumexp) {
  const int64_t pair = queries.batch * p.groups + queries.group;
  const Splits splits = splits_of(queries);
  float peak = HIDDEN, total = 0;
  bool sees = false;
  for (int64_t split = splits.first; split < splits.last; split++) {
    const Partial &partial = partials.numbers[partials.at(pair, split) + row];
    peak = max(peak, partial.peak);
    sees |= partial.sees;
  }
  memset(sums, 0, size_t(partials.width) * sizeof(float));
  for (int64_t split = splits.first; split < splits.last; split++) {
    const int64_t at = partials.at(pair, split) + row;
    const Partial &partial = partials.numbers[at];
    const floats ratio = exp2(broadcast((partial.peak - peak_or_none(peak)) * scoring.factor));
    total += partial.total * ratio[0];
    for (int64_t d = 0; d < partials.width; d += LANES)
      store(sums + d, load(sums + d) + load(partials.context + at * partials.width + d) * ratio);
  }
  RowSum sum = {peak_or_none(peak) * scoring.unit, total};
  float factor = p.dropout < 1 ? float(1 / (1 - p.dropout)) : 0;
  if (p.sink.data) factor *= sum.take_in(number_of(p.sink, queries, row));
  factor /= sum.total;
  // Where nothing is seen the context is 0, even where what may not be seen is not a number.
  for (int64_t d = 0; d < p.dim_value; d += LANES)
    narrow_part(Element(), row_of<Element>(context, queries, row) + d,
                sees ? load(sums + d) * factor : floats{}, p.dim_value - d);
  if (!logsumexp) return;
  logsumexp[row_number(p, queries, row)] = sees ? sum.logsumexp() : -INFINITY;
}

// Tasks of a pair, each of splits that are neighbours in memory; several for every thread.
REGARD_INLINE int64_t decode_tasks_per_pair(const regard_problem &p) {
  const int64_t splits = parts(p.keys, SPLIT), per_thread = 8 * p.threads;
  const int64_t per_task = splits * p.batch * p.groups / per_thread;
  return parts(splits, max(int64_t(1), min(int64_t(8), per_task)));
}

// One of the tasks of a pair, so many splits of its keys; the last one that ends merges all of
// them.
template <class Element>
static void decode_task(const regard_problem &p, const Scoring &scoring, const Partials &partials,
                        int64_t tasks_per_pair, int64_t number, void *memory,
                        const regard_tensor &context, float *logsumexp) {
  const int64_t per_task = parts(parts(p.keys, SPLIT), tasks_per_pair);
  const int64_t pair = number / tasks_per_pair, first = number % tasks_per_pair * per_task;
  QueryBlock queries;
  begin(p, pair, queries);
  const DecodeScratch scratch(p, memory);
  find_spans(p, scratch.spans, queries);
  for (int r = 0; r < queries.count; r++)
    widen_rows(Element(), row_of<Element>(p.query, queries, r), 0, 1, p.dim, scoring.query_factor,
               scratch.query + r * padded(p.dim));
  const Splits splits = splits_of(queries);
  for (int64_t split = max(first, splits.first); split < min(first + per_task, splits.last);
       split++) {
    const int64_t at = partials.at(pair, split);
    decode_split<Element>(p, scoring, queries, split, scratch, partials.numbers + at,
                          partials.context + at * partials.width);
  }
  if (__atomic_sub_fetch(&partials.left[pair], 1, __ATOMIC_ACQ_REL) > 0) return;
  for (int r = 0; r < queries.count; r++)
    merge_row<Element>(p, scoring, queries, r, partials, scratch.block_rows, context, logsumexp);
}

template <class Element>
static int decode(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  const Scoring scoring = scoring_of(p);
  const Partials partials(p);
  if (!partials.memory) return REGARD_OUT_OF_MEMORY;
  const int64_t tasks_per_pair = decode_tasks_per_pair(p);
  for (int64_t pair = 0; pair < p.batch * p.groups; pair++)
    partials.left[pair] = int32_t(tasks_per_pair);
  return for_each_task(int(p.threads), p.batch * p.groups * tasks_per_pair, DecodeScratch::size(p),
                       [&](int64_t number, void *memory) {
                         decode_task<Element>(p, scoring, partials, tasks_per_pair, number, memory,
                                              context, logsumexp);
                       });
}

}  // namespace regard::REGARD_SET
