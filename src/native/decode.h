// Decode: attention of few queries to many keys (flash-decoding).
//
// The keys are divided into splits of a fixed size, so that even a single query gives work to all
// threads; the partial results are merged in order. A split is one pass over its keys and one over
// its values for all rows of a group. Its result and the order of merging do not depend on the
// threads.
#pragma once

#include <stdlib.h>

#include "decode_scores.h"
#include "decode_tiles.h"
#include "row_sum.h"
#include "threads.h"

namespace regard::REGARD_SET {

constexpr int MAX_ROWS = 16;          // rows of a group that are processed together
constexpr int64_t MANY = 4096;        // minimum keys for which several threads pay off
constexpr int32_t DECODE_BLOCK = 32;  // keys whose rows stay in the L1 cache
static_assert(MAX_ROWS <= QUERIES && SPLIT % DECODE_BLOCK == 0 && DECODE_BLOCK % LANES == 0);

// Prefetch distances in bytes, measured with AVX2 and AVX-512; those for AMD on Zen 4.
template <class Number>
static int64_t bytes_ahead() {
  if (processor::is_amd()) return 32768;
  return sizeof(Number) == 2 ? 12288 : LANES == 16 ? 8192 : 16384;
}

// Whether decode is used: if with queries in the lanes more than half of the lanes would be idle,
// or a single thread would process many keys. This may depend only on these sizes, not on threads
// or batch, or results would depend on them.
REGARD_INLINE bool has_few_rows(const regard_problem &p) {
  const int64_t rows = p.queries * group_size(p);
  return p.keys > 0 && p.dim > 0 && p.dim_value > 0 && 0 < rows &&
         rows <= (p.keys < MANY ? LANES / 2 : MAX_ROWS);
}

// What is written.
struct Decoded {
  regard_tensor context;
  float *logsumexp;         // (B, H, L), or NULL
  float *scores = nullptr;  // (B, H, L, columns), those of visible keys, in natural units; or NULL
  int64_t columns = 0;
};

// A row's partial result in a split: its context has weights 2^(factor · (score − peak)).
struct Partial {
  float peak, total;
  int32_t sees;
};

// The partial results of all rows, by pair of batch entry and group, then split, then row.
struct Partials {
  Partial *numbers;
  float *context;  // padded(dim_value) each
  int32_t *left;   // unfinished tasks of each pair
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
  float *weights;     // (rows, SPLIT): in the number type of the arithmetic
  float *added;       // (SPLIT): terms of spans for the scores of a row
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

// Copies rows to (count, padded(dim)), padded with zeros.
template <class Element>
static void copy_rows(const typename Element::type *from, int64_t stride, int64_t count,
                      int64_t dim, typename Element::type *to) {
  for (int64_t k = 0; k < count; k++, to += padded(dim)) {
    memcpy(to, from + k * stride, size_t(dim) * sizeof *to);
    memset(to + dim, 0, size_t(padded(dim) - dim) * sizeof *to);
  }
}

// The keys or values of a split, the number of queries that read them, and the rows read next.
template <class Element>
struct SplitRows {
  using Number = typename Element::type;
  int queries;
  const Number *rows;
  int64_t stride, count, dim;
  const Number *next;
  int64_t next_stride;

  // Continues after the rows that were prefetched before; allows as many rows as the first block.
  Prefetch prefetch() const {
    if (reads_on()) return {};
    constexpr int64_t size = sizeof(Number);
    const int64_t skipped = min(count, bytes_ahead<Number>() / (dim * size) + 1);
    Prefetch fetched = {{uintptr_t(rows + skipped * stride), stride * size, count - skipped},
                        {uintptr_t(next), next_stride * size, 0},
                        dim * size};
    fetched.plan(min(int64_t(DECODE_BLOCK), count));
    return fetched;
  }

  // The hardware prefetcher of AMD processors suffices if one query reads a whole split.
  bool reads_on() const { return queries == 1 && count == SPLIT && processor::is_amd(); }

  // Calls use(rows, stride, first, count) for blocks; rows that do not fill whole vectors are
  // copied first.
  template <class Use>
  __attribute__((always_inline)) void for_each_block(float *block_rows, Prefetch &prefetch,
                                                     Use use) const {
    for (int64_t first = 0; first < count; first += DECODE_BLOCK) {
      const int64_t rows_of_block = min(int64_t(DECODE_BLOCK), count - first);
      if (first > 0) prefetch.plan(rows_of_block);
      const Number *from = rows + first * stride;
      int64_t stride_of_block = stride;
      if (dim % LANES != 0) {
        copy_rows<Element>(from, stride, rows_of_block, dim, (Number *)block_rows);
        from = (const Number *)block_rows, stride_of_block = padded(dim);
      }
      use(from, stride_of_block, first, rows_of_block);
    }
  }
};

// Calls `call` with the number of tiles, at most two, that share the prefetching of rows that all
// tiles read, so that the memory is idle only briefly while the others compute.
template <class Call>
REGARD_INLINE void with_fetchers(int rows, Call call) {
  if (rows > TILE_ROWS)
    call(std::integral_constant<int, 2>());
  else
    call(std::integral_constant<int, 1>());
}

// Calls `call` for tiles of rows, with the first row and the constant number of rows.
template <class Call>
REGARD_INLINE void for_each_tile(int rows, Call call) {
  for (int row = 0; row < rows; row += TILE_ROWS)
    with_live(min(TILE_ROWS, rows - row), [&](auto count) {
      if constexpr (count <= TILE_ROWS) call(row, count);
    });
}

template <class Arithmetic>
REGARD_INLINE int64_t loads_of_row(int64_t dim) {
  return padded(dim) / Arithmetic::ROW_ELEMENTS;
}
// Floats per query.
template <class Arithmetic>
REGARD_INLINE int64_t query_size(int64_t dim) {
  return loads_of_row<Arithmetic>(dim) * Arithmetic::ROW_VECTORS * LANES;
}

template <class Arithmetic>
static void scores_of(const SplitRows<typename Arithmetic::Element> &keys, int rows,
                      const DecodeScratch &scratch) {
  const int64_t loads = loads_of_row<Arithmetic>(keys.dim);
  Prefetch prefetch = keys.prefetch(), none;
  with_fetchers(rows, [&](auto fetchers) {
    const auto score = [&](const auto *key, int64_t stride, int64_t first, int64_t count) {
      for (int64_t k = 0; k < count; k += LANES, key += LANES * stride) {
        for_each_tile(rows, [&](int row, auto tile) {
          score_lanes<Arithmetic, tile, fetchers>(
              key, stride, count - k, loads, scratch.query + row * query_size<Arithmetic>(keys.dim),
              scratch.scores + row * SPLIT + first + k,
              row < fetchers * TILE_ROWS ? prefetch : none);
        });
      }
    };
    keys.for_each_block(scratch.block_rows, prefetch, score);
  });
}

template <class Arithmetic>
static void split_context(const SplitRows<typename Arithmetic::Element> &values, int rows,
                          const DecodeScratch &scratch, Prefetch &prefetch, float *context) {
  const int64_t dim = padded(values.dim);
  const auto *weights = (const typename Arithmetic::Number *)scratch.weights;
  Prefetch none;
  memset(context, 0, size_t(rows * dim) * sizeof(float));
  with_fetchers(rows, [&](auto fetchers) {
    const auto add = [&](const auto *value, int64_t stride, int64_t first, int64_t count) {
      for_each_tile(rows, [&](int row, auto tile) {
        add_context<Arithmetic, tile, fetchers>(value, stride, count, dim,
                                                weights + row * SPLIT + first, context + row * dim,
                                                row < fetchers * TILE_ROWS ? prefetch : none);
      });
    };
    values.for_each_block(scratch.block_rows, prefetch, add);
  });
}

// Bitwise equal to split_context, except that hidden values are taken as 0, since 0 · NaN is NaN.
template <class Arithmetic>
static void split_context_of_visible(const SplitRows<typename Arithmetic::Element> &values,
                                     int rows, const DecodeScratch &scratch, float *context) {
  using Element = typename Arithmetic::Element;
  const int64_t dim = padded(values.dim);
  const auto *weights = (const typename Arithmetic::Number *)scratch.weights;
  auto *block_rows = (typename Element::type *)scratch.block_rows;
  Prefetch none;
  memset(context, 0, size_t(rows * dim) * sizeof(float));
  for (int64_t first = 0; first < values.count; first += DECODE_BLOCK) {
    const int64_t count = min(int64_t(DECODE_BLOCK), values.count - first);
    for (int r = 0; r < rows; r++) {
      copy_rows<Element>(values.rows + first * values.stride, values.stride, count, values.dim,
                         block_rows);
      for (int64_t k = 0; k < count; k++)
        if (scratch.scores[r * SPLIT + first + k] == HIDDEN)
          memset(block_rows + k * dim, 0, size_t(dim) * sizeof *block_rows);
      add_context<Arithmetic, 1, 1>((const typename Element::type *)block_rows, dim, count, dim,
                                    weights + r * SPLIT + first, context + r * dim, none);
    }
  }
}

static bool any_nonfinite(const float *numbers, int64_t count) {
  ints found = {};
  for (int64_t i = 0; i < count; i += LANES) found |= is_nonfinite(load(numbers + i));
  return any(found);
}

template <class Arithmetic>
static void decode_split(const regard_problem &p, const Scoring &scoring, const QueryBlock &queries,
                         int64_t split, const DecodeScratch &scratch, const Decoded &result,
                         Partial *partial, float *context) {
  const int32_t key = max(queries.first_key, int32_t(split * SPLIT));
  const int32_t keys = min(queries.stop_key, int32_t(min((split + 1) * SPLIT, p.keys))) - key;
  if (hidden_by_span(queries, key, key + keys)) {
    for (int r = 0; r < queries.count; r++) partial[r] = {HIDDEN, 0, 0};
    memset(context, 0, size_t(queries.count * padded(p.dim_value)) * sizeof(float));
    return;
  }
  using Element = typename Arithmetic::Element;
  const auto *key_rows = first_row<Element>(p.key, queries, key);
  const auto *value_rows = first_row<Element>(p.value, queries, key);
  // The thread probably continues with the next keys, after the last ones with the next group's.
  const auto *next_rows = key + keys < queries.stop_key
                              ? key_rows + keys * p.key.row
                              : first_row<Element>(p.key, queries, queries.first_key) + p.key.head;
  const SplitRows<Element> split_keys = {queries.count, key_rows,   p.key.row,  keys,
                                         p.dim,         value_rows, p.value.row};
  const SplitRows<Element> split_values = {queries.count, value_rows, p.value.row, keys,
                                           p.dim_value,   next_rows,  p.key.row};
  scores_of<Arithmetic>(split_keys, queries.count, scratch);
  auto *all_weights = (typename Arithmetic::Number *)scratch.weights;
  Prefetch prefetch = split_values.prefetch();
  for (int r = 0; r < queries.count; r++) {
    const RowSegment segment = {r, key, keys};
    float *scores = scratch.scores + r * SPLIT;
    auto *weights = all_weights + r * SPLIT;
    const bool touched = load_added_by_spans(p, queries, scoring.unit, segment, scratch.added);
    const auto adjust = scoring.adjusted ? adjust_row_scores<true> : adjust_row_scores<false>;
    const float peak =
        adjust(p, queries, segment, touched ? scratch.added : nullptr, scores, partial[r].sees);
    if (result.scores) {
      float *to = result.scores + row_number(p, queries, r) * result.columns + key;
      for (int32_t k = 0; k < keys; k += LANES)
        narrow_part(Float32(), to + k, load(scores + k) * float(scoring.unit), keys - k);
    }
    partial[r].peak = peak;
    partial[r].total =
        exponentials<Arithmetic>(scores, keys, scoring.factor, peak, weights, prefetch);
    if (p.dropout > 0) apply_dropout(p, queries, segment, weights);
  }
  split_context<Arithmetic>(split_values, queries.count, scratch, prefetch, context);
  const bool common = !scoring.adjusted && queries.common_start <= key &&
                      key + keys <= queries.common_stop &&
                      !touched_by_spans(queries, key, key + keys);
  if (!common && any_nonfinite(context, queries.count * padded(p.dim_value)))
    split_context_of_visible<Arithmetic>(split_values, queries.count, scratch, context);
}

// The splits that contain all visible keys of the rows: [first, last).
struct Splits {
  int64_t first, last;
};
REGARD_INLINE Splits splits_of(const QueryBlock &queries) {
  if (queries.first_key >= queries.stop_key) return {0, 0};
  return {queries.first_key / SPLIT, parts(queries.stop_key, SPLIT)};
}

// Merges a row's splits, adds the sink, divides by the denominator and writes the row.
template <class Element>
static void merge_row(const regard_problem &p, const Scoring &scoring, const QueryBlock &queries,
                      int row, const Partials &partials, float *sums, const Decoded &result) {
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
  // The context of a row without visible keys is 0, even if hidden values are NaN.
  for (int64_t d = 0; d < p.dim_value; d += LANES)
    narrow_part(Element(), row_of<Element>(result.context, queries, row) + d,
                sees ? load(sums + d) * factor : floats{}, p.dim_value - d);
  if (!result.logsumexp) return;
  result.logsumexp[row_number(p, queries, row)] = sees ? sum.logsumexp() : -INFINITY;
}

// Tasks of a pair, each of consecutive splits; several per thread.
REGARD_INLINE int64_t decode_tasks_per_pair(const regard_problem &p) {
  const int64_t splits = parts(p.keys, SPLIT), per_thread = 8 * p.threads;
  const int64_t per_task = splits * p.batch * p.groups / per_thread;
  return parts(splits, max(int64_t(1), min(int64_t(8), per_task)));
}

// One of the tasks of a pair: some splits of its keys; the task that finishes last merges all.
template <class Arithmetic>
static void decode_splits(const regard_problem &p, const Scoring &scoring, const Partials &partials,
                          int64_t tasks_per_pair, int64_t number, void *memory,
                          const Decoded &result) {
  using Element = typename Arithmetic::Element;
  const int64_t per_task = parts(parts(p.keys, SPLIT), tasks_per_pair);
  const int64_t pair = number / tasks_per_pair, first = number % tasks_per_pair * per_task;
  QueryBlock queries;
  begin(p, pair, queries);
  const DecodeScratch scratch(p, memory);
  find_spans(p, scratch.spans, queries);
  for (int r = 0; r < queries.count; r++)
    Arithmetic::load_query(row_of<Element>(p.query, queries, r), p.dim, scoring.query_factor,
                           scratch.query + r * query_size<Arithmetic>(p.dim));
  const Splits splits = splits_of(queries);
  for (int64_t split = max(first, splits.first); split < min(first + per_task, splits.last);
       split++) {
    const int64_t at = partials.at(pair, split);
    decode_split<Arithmetic>(p, scoring, queries, split, scratch, result, partials.numbers + at,
                             partials.context + at * partials.width);
  }
  if (__atomic_sub_fetch(&partials.left[pair], 1, __ATOMIC_ACQ_REL) > 0) return;
  for (int r = 0; r < queries.count; r++)
    merge_row<Element>(p, scoring, queries, r, partials, scratch.block_rows, result);
}

template <class Element>
static void decode_task(const regard_problem &p, const Scoring &scoring, const Partials &partials,
                        int64_t tasks_per_pair, int64_t number, void *memory,
                        const Decoded &result) {
  if constexpr (std::is_same_v<Element, BFloat16>)
    if (p.dim % BFloat16Rows::ROW_ELEMENTS == 0 && p.dim_value % BFloat16Rows::ROW_ELEMENTS == 0)
      return decode_splits<BFloat16Rows>(p, scoring, partials, tasks_per_pair, number, memory,
                                         result);
  decode_splits<WidenedRows<Element>>(p, scoring, partials, tasks_per_pair, number, memory, result);
}

template <class Element>
static int decode(const regard_problem &p, const Decoded &result) {
  const Scoring scoring = scoring_of(p);
  const Partials partials(p);
  if (!partials.memory) return REGARD_OUT_OF_MEMORY;
  const int64_t tasks_per_pair = decode_tasks_per_pair(p);
  for (int64_t pair = 0; pair < p.batch * p.groups; pair++)
    partials.left[pair] = int32_t(tasks_per_pair);
  return for_each_task(int(p.threads), p.batch * p.groups * tasks_per_pair, DecodeScratch::size(p),
                       [&](int64_t number, void *memory) {
                         decode_task<Element>(p, scoring, partials, tasks_per_pair, number, memory,
                                              result);
                       });
}

}  // namespace regard::REGARD_SET
