// Decode: few queries against many keys. The keys are split into chunks of a fixed size, so that
// even a single query has work for all threads; the chunks' partial results are merged in order.
//
// A chunk is one pass over its keys and one over its values for all rows of a group. What a chunk
// comes to, and the order of merging, depend on the chunk alone, never on who computed it.
#pragma once

#include <stdlib.h>

#include "decode_scores.h"
#include "decode_tiles.h"
#include "row_sum.h"
#include "threads.h"

namespace regard::REGARD_SET {

constexpr int MOST_ROWS = 16;     // of a group that are taken together
constexpr int64_t MANY = 4096;    // keys from which on it counts that threads can share them
constexpr int32_t BAND = 16;      // keys whose rows stay in the nearest cache
constexpr int64_t AHEAD = 16384;  // bytes that are fetched before they are needed
static_assert(MOST_ROWS <= QUERIES && CHUNK % BAND == 0 && BAND % LANES == 0);

// Whether this way is chosen: where queries in the lanes would leave more than half of them idle,
// or one thread alone with many keys. Only these sizes may decide, not the threads or the batch, or
// results would depend on them.
REGARD_INLINE bool has_few_rows(const regard_problem &p) {
  const int64_t rows = p.queries * group_size(p);
  return p.keys > 0 && p.dim > 0 && p.dim_value > 0 && 0 < rows &&
         rows <= (p.keys < MANY ? LANES / 2 : MOST_ROWS);
}

// What a row has seen in a chunk: its context is that of the weights 2^(factor · (score − peak)).
struct Partial {
  float peak, total;
  int32_t sees;
};

// The partial results of all rows, by pair of batch entry and group, then chunk, then row.
struct Partials {
  Partial *numbers;
  float *context;  // padded(dim_value) each
  int32_t *left;   // of each pair, tasks that are not done yet
  int64_t rows, chunks, width;
  void *memory;

  explicit Partials(const regard_problem &p) {
    const int64_t pairs = p.batch * p.groups;
    rows = p.queries * group_size(p), chunks = parts(p.keys, CHUNK);
    width = padded(p.dim_value);
    const size_t count = size_t(pairs * chunks * rows);
    memory = malloc(count * (sizeof(float) * size_t(width) + sizeof(Partial)) +
                    size_t(pairs) * sizeof(int32_t));
    context = (float *)memory;
    numbers = (Partial *)(context + count * size_t(width));
    left = (int32_t *)(numbers + count);
  }
  ~Partials() { free(memory); }
  int64_t at(int64_t pair, int64_t chunk) const { return (pair * chunks + chunk) * rows; }
};

// What a thread needs for a chunk.
struct DecodeScratch {
  float *query;    // (rows, padded(dim))
  float *scores;   // (rows, CHUNK)
  float *weights;  // (rows, CHUNK)
  float *band;     // (BAND, padded(dim or dim_value))

  static size_t size(const regard_problem &p) {
    const int64_t columns = padded(p.dim) + 2 * CHUNK;
    return size_t(columns * MOST_ROWS + BAND * padded(most(p.dim, p.dim_value))) * sizeof(float);
  }
  DecodeScratch(const regard_problem &p, void *memory) {
    query = (float *)memory;
    scores = query + padded(p.dim) * MOST_ROWS;
    weights = scores + CHUNK * MOST_ROWS;
    band = weights + CHUNK * MOST_ROWS;
  }
};

template <class Element>
static void widen_rows(Element element, const typename Element::type *from, int64_t stride,
                       int64_t count, int64_t dim, float factor, float *to) {
  for (int64_t k = 0; k < count; k++)
    for (int64_t d = 0; d < dim; d += LANES)
      store(to + k * padded(dim) + d, widen_part(element, from + k * stride + d, dim - d) * factor);
}

// Calls `use(rows, first, count, ahead)` for bands of a chunk's keys or values; rows that do not
// fill whole vectors are copied first.
template <class Element, class Use>
REGARD_INLINE void for_each_band(const regard_tensor &from, const Task &task, int32_t key,
                                 int32_t keys, int64_t dim, float *band, Use use) {
  constexpr int64_t size = sizeof(typename Element::type);
  const auto *rows = first_row<Element>(from, task, key);
  Prefetch ahead(rows + (AHEAD / (dim * size) + 1) * from.row, from.row * size, dim * size);
  for (int32_t first = 0; first < keys; first += BAND, rows += BAND * from.row) {
    const int32_t count = least(BAND, keys - first);
    if (dim % LANES == 0) {
      use(Rows<Element>{rows, from.row}, first, count, ahead);
    } else {
      widen_rows(Element(), rows, from.row, count, dim, 1, band);
      use(Rows<Float32>{band, padded(dim)}, first, count, ahead);
    }
  }
}

// Calls what is given for tiles of rows: the first row, and their number as a constant.
template <class Call>
REGARD_INLINE void for_each_tile(int rows, Call call) {
  for (int row = 0; row < rows; row += TILE)
    with_live(least(TILE, rows - row), [&](auto count) {
      if constexpr (count <= TILE) call(row, count);
    });
}

template <class Element>
static void scores_of(const regard_problem &p, const Task &task, int32_t key, int32_t keys,
                      const DecodeScratch &scratch) {
  const int64_t dim = padded(p.dim);
  for_each_band<Element>(
      p.key, task, key, keys, p.dim, scratch.band,
      [&](auto rows, int32_t first, int32_t count, Prefetch &ahead) {
        ahead.plan(count, parts(count, TOGETHER) * dim / LANES * parts(task.count, TILE));
        for (int32_t k = 0; k < count; k += LANES, rows.data += LANES * rows.stride)
          for_each_tile(task.count, [&](int row, auto tile) {
            score_lanes<tile>(rows, count - k, dim, scratch.query + row * dim,
                              scratch.scores + row * CHUNK + first + k, ahead);
          });
      });
}

template <class Element>
static void context_of(const regard_problem &p, const Task &task, int32_t key, int32_t keys,
                       const DecodeScratch &scratch, float *context) {
  const int64_t dim = padded(p.dim_value);
  memset(context, 0, size_t(task.count * dim) * sizeof(float));
  for_each_band<Element>(
      p.value, task, key, keys, p.dim_value, scratch.band,
      [&](const auto &rows, int32_t first, int32_t count, Prefetch &ahead) {
        ahead.plan(count, count * parts(dim, TOGETHER * LANES) * parts(task.count, TILE));
        for_each_tile(task.count, [&](int row, auto tile) {
          add_context<tile>(rows, count, dim, scratch.weights + row * CHUNK + first,
                            context + row * dim, ahead);
        });
      });
}

// As context_of, and the same to the last bit, but what a row may not see is taken for 0, since
// 0 · NaN is NaN.
template <class Element>
static void careful_context_of(const regard_problem &p, const Task &task, int32_t key, int32_t keys,
                               const DecodeScratch &scratch, float *context) {
  const int64_t dim = padded(p.dim_value);
  memset(context, 0, size_t(task.count * dim) * sizeof(float));
  for (int32_t first = 0; first < keys; first += BAND) {
    const int32_t count = least(BAND, keys - first);
    for (int r = 0; r < task.count; r++) {
      widen_rows(Element(), first_row<Element>(p.value, task, key + first), p.value.row, count,
                 p.dim_value, 1, scratch.band);
      for (int32_t k = 0; k < count; k++)
        if (scratch.scores[r * CHUNK + first + k] == HIDDEN)
          memset(scratch.band + k * dim, 0, size_t(dim) * sizeof(float));
      Prefetch none(nullptr, 0, 0);
      add_context<1>(Rows<Float32>{scratch.band, dim}, count, dim,
                     scratch.weights + r * CHUNK + first, context + r * dim, none);
    }
  }
}

static bool holds_stray(const float *numbers, int64_t count) {
  ints found = {};
  for (int64_t i = 0; i < count; i += LANES) found |= is_stray(load(numbers + i));
  return any(found);
}

template <class Element>
static void decode_chunk(const regard_problem &p, const Scoring &scoring, const Task &task,
                         int64_t chunk, const DecodeScratch &scratch, Partial *partial,
                         float *context) {
  const int32_t key = most(task.first_key, int32_t(chunk * CHUNK));
  const int32_t keys = least(task.last_key, int32_t(least((chunk + 1) * CHUNK, p.keys))) - key;
  scores_of<Element>(p, task, key, keys, scratch);
  for (int r = 0; r < task.count; r++) {
    const Stretch stretch = {r, key, keys};
    float *scores = scratch.scores + r * CHUNK, *weights = scratch.weights + r * CHUNK;
    const float peak = scoring.adjusted
                           ? adjust_stretch<true>(p, task, stretch, scores, partial[r].sees)
                           : adjust_stretch<false>(p, task, stretch, scores, partial[r].sees);
    partial[r].peak = peak;
    partial[r].total = exponentials(scores, keys, scoring.factor, peak, weights);
    if (p.dropout > 0) drop(p, task, stretch, weights);
  }
  context_of<Element>(p, task, key, keys, scratch, context);
  const bool common =
      !scoring.adjusted && task.common_start <= key && key + keys <= task.common_stop;
  if (!common && holds_stray(context, task.count * padded(p.dim_value)))
    careful_context_of<Element>(p, task, key, keys, scratch, context);
}

// The chunks that hold what a task sees: [first, last).
struct Chunks {
  int64_t first, last;
};
REGARD_INLINE Chunks chunks_of(const Task &task) {
  if (task.first_key >= task.last_key) return {0, 0};
  return {task.first_key / CHUNK, parts(task.last_key, CHUNK)};
}

// Adds up a row's chunks, takes the sink in, divides by the denominator and writes the row.
template <class Element>
static void merge_row(const regard_problem &p, const Scoring &scoring, const Task &task, int row,
                      const Partials &partials, float *sums, const regard_tensor &context,
                      float *logsumexp) {
  const int64_t pair = task.batch * p.groups + task.group;
  const Chunks chunks = chunks_of(task);
  float peak = HIDDEN, total = 0;
  bool sees = false;
  for (int64_t chunk = chunks.first; chunk < chunks.last; chunk++) {
    const Partial &partial = partials.numbers[partials.at(pair, chunk) + row];
    peak = most(peak, partial.peak);
    sees |= partial.sees;
  }
  memset(sums, 0, size_t(partials.width) * sizeof(float));
  for (int64_t chunk = chunks.first; chunk < chunks.last; chunk++) {
    const int64_t at = partials.at(pair, chunk) + row;
    const Partial &partial = partials.numbers[at];
    const floats ratio = exp2(all((partial.peak - peak_or_none(peak)) * scoring.factor));
    total += partial.total * ratio[0];
    for (int64_t d = 0; d < partials.width; d += LANES)
      store(sums + d, load(sums + d) + load(partials.context + at * partials.width + d) * ratio);
  }
  RowSum sum = {peak_or_none(peak) * scoring.unit, total};
  float factor = p.dropout < 1 ? float(1 / (1 - p.dropout)) : 0;
  if (p.sink.data) factor *= sum.take_in(number_of(p.sink, task, row));
  factor /= sum.total;
  // Where nothing is seen the context is 0, even where what may not be seen is no number.
  for (int64_t d = 0; d < p.dim_value; d += LANES)
    narrow_part(Element(), row_of<Element>(context, task, row) + d,
                sees ? load(sums + d) * factor : floats{}, p.dim_value - d);
  if (!logsumexp) return;
  logsumexp[row_number(p, task, row)] = sees ? sum.logsumexp() : -INFINITY;
}

// Chunks that a thread takes at a time: neighbours in memory, yet several turns for every thread.
REGARD_INLINE int64_t turn_of(const regard_problem &p, int64_t chunks) {
  return most(int64_t(1), least(int64_t(8), chunks * p.batch * p.groups / (8 * p.threads)));
}

template <class Element>
static int decode(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  const Scoring scoring = scoring_of(p);
  const Partials partials(p);
  if (!partials.memory) return REGARD_OUT_OF_MEMORY;
  const int64_t turn = turn_of(p, partials.chunks), turns = parts(partials.chunks, turn);
  for (int64_t pair = 0; pair < p.batch * p.groups; pair++) partials.left[pair] = int32_t(turns);

  return for_each_task(
      int(p.threads), p.batch * p.groups * turns, DecodeScratch::size(p),
      [&](int64_t number, void *memory) {
        const int64_t pair = number / turns, first = number % turns * turn;
        Task task;
        begin(p, pair, task);
        const DecodeScratch scratch(p, memory);
        for (int r = 0; r < task.count; r++)
          widen_rows(Element(), row_of<Element>(p.query, task, r), 0, 1, p.dim,
                     scoring.query_factor, scratch.query + r * padded(p.dim));
        const Chunks chunks = chunks_of(task);
        for (int64_t chunk = most(first, chunks.first); chunk < least(first + turn, chunks.last);
             chunk++) {
          const int64_t at = partials.at(pair, chunk);
          decode_chunk<Element>(p, scoring, task, chunk, scratch, partials.numbers + at,
                                partials.context + at * partials.width);
        }
        if (__atomic_sub_fetch(&partials.left[pair], 1, __ATOMIC_ACQ_REL) > 0) return;
        for (int r = 0; r < task.count; r++)
          merge_row<Element>(p, scoring, task, r, partials, scratch.band, context, logsumexp);
      });
}

}  // namespace regard::REGARD_SET
