// A block of queries: QUERIES rows of attention that are computed together, one per lane.
//
// The matrix of weights, rows by keys, is computed in pieces. From the largest to the smallest:
//
//   chunk    rows, when a pattern is read: a part of a head's rows, or all rows of a few heads
//            (row_chunks.h); sums over rows are stored for each.
//   panel    keys, in the backward pass: those whose gradients one thread owns (backward.h).
//   split    keys, in decode: SPLIT keys and all rows of a group (decode.h).
//   block    QUERIES rows and as many keys as fit in a cache with everything computed from them:
//            FORWARD_BLOCK, GRADIENT_BLOCK, READ_BLOCK or DECODE_BLOCK.
//   segment  consecutive keys of a block, and the vectors of rows that see one of them (scores.h).
//   tile     the rows and keys whose sums stay in registers (tiles.h, decode_tiles.h).
//   vector   LANES rows, which one register holds.
//
// A block holds consecutive queries of one head. The blocks of a group are ordered by query and
// then by head, so that adjacent blocks see the same keys and values. If a head has too few
// queries, a block takes those of all heads of a group. Their rows are numbered query by query:
// with R = H/G heads per group, row n is query n / R of head g·R + n % R. They are stored head by
// head.
#pragma once

#include "abi.h"
#include "element.h"
#include "tiles.h"

namespace regard::REGARD_SET {

constexpr float HIDDEN = -INFINITY;  // the logit of a hidden key: its weight is exactly 0

// Keys [start, stop).
struct KeyRange {
  int32_t start = 0, stop = 0;

  bool empty() const { return start >= stop; }
  bool overlaps(int32_t first, int32_t last) const { return start < last && stop > first; }
};

// A span that touches some row of a block; see regard_spans.
struct BlockSpan {
  int32_t number;
  KeyRange range;            // the smallest range that contains the span of every row
  KeyRange hidden_from_all;  // keys that it hides from all rows
};

struct QueryBlock {
  int64_t batch, group;
  int count;              // rows in use
  int vectors;            // vectors of these rows
  bool one_head = false;  // the rows are consecutive queries of one head
  int64_t first = -1;     // number of the first row, as choose_rows counts them, or −1
  int64_t query[QUERIES], head[QUERIES];
  // The keys that each row sees: none for unused lanes and fully masked rows.
  alignas(64) int32_t start[QUERIES];
  alignas(64) int32_t stop[QUERIES];
  alignas(64) int32_t position[QUERIES];
  // For each row, the smallest range that contains all visible keys of its four rows: 0 to 3, 4 to
  // 7 and so on; [keys, 0) if there are none.
  alignas(64) int32_t fours_start[QUERIES];
  alignas(64) int32_t fours_stop[QUERIES];
  // The smallest range that contains all visible keys of the rows of a vector.
  int32_t vector_start[VECTORS], vector_stop[VECTORS];
  // The range that all lanes of a vector see, apart from spans.
  int32_t vector_common_start[VECTORS], vector_common_stop[VECTORS];
  // The same for all rows, and the range that every row that is not fully masked sees, apart from
  // spans.
  int32_t first_key, stop_key, common_start, common_stop;
  const BlockSpan *spans = nullptr;  // in their order
  int32_t span_count = 0;
};

REGARD_INLINE int64_t group_size(const regard_problem &p) { return p.heads / p.groups; }
// Whether a block has rows of one head, not of all heads of a group. With fewer queries too many
// lanes of a head's last block would be unused.
REGARD_INLINE bool head_fills_blocks(const regard_problem &p) {
  return p.queries >= 2 * QUERIES || group_size(p) == 1;
}
REGARD_INLINE int64_t query_blocks_per_head(const regard_problem &p) {
  return (p.queries + QUERIES - 1) / QUERIES;
}
REGARD_INLINE int64_t query_blocks_per_group(const regard_problem &p) {
  return head_fills_blocks(p) ? query_blocks_per_head(p) * group_size(p)
                              : (p.queries * group_size(p) + QUERIES - 1) / QUERIES;
}

REGARD_INLINE int32_t clamp_key(int64_t key, int64_t keys) {
  return int32_t(max(int64_t(0), min(key, keys)));
}

REGARD_INLINE KeyRange span_of(const regard_problem &p, const QueryBlock &queries, int64_t number,
                               int r) {
  const regard_spans &spans = p.spans;
  const int64_t at = number * spans.span + queries.batch * spans.batch +
                     queries.head[r] * spans.head + queries.query[r];
  return {clamp_key(spans.start[at], p.keys), clamp_key(spans.stop[at], p.keys)};
}

// The first visible key of a row: a row whose keys are all hidden by spans is fully masked.
static int32_t start_after_spans(const regard_problem &p, const QueryBlock &queries, int r) {
  int32_t start = queries.start[r], before;
  do {
    before = start;
    for (int64_t n = 0; n < p.spans.count; n++) {
      const KeyRange span = span_of(p, queries, n, r);
      if (p.spans.added[n] == HIDDEN && span.start <= start) start = max(start, span.stop);
    }
  } while (start > before && start < queries.stop[r]);
  return start;
}

static void load_bounds(const regard_problem &p, QueryBlock &queries) {
  const regard_rows &rows = p.rows;
  if (rows.start) {
    for (int r = 0; r < queries.count; r++) {
      const int64_t at =
          queries.batch * rows.batch + queries.head[r] * rows.head + queries.query[r];
      queries.start[r] = clamp_key(rows.start[at], p.keys);
      queries.stop[r] = clamp_key(rows.stop[at], p.keys);
      queries.position[r] = int32_t(rows.positions[at]);
    }
  } else {
    for (int r = 0; r < queries.count; r++) {
      const int64_t i = queries.query[r];
      queries.start[r] = clamp_key(rows.start_base + i * rows.start_step, p.keys);
      queries.stop[r] = clamp_key(rows.stop_base + i * rows.stop_step, p.keys);
      queries.position[r] = int32_t(rows.position + i);
    }
  }
  for (int r = 0; r < queries.count && p.spans.count; r++)
    queries.start[r] = start_after_spans(p, queries, r);
  for (int r = queries.count; r < QUERIES; r++)
    queries.start[r] = queries.stop[r] = queries.position[r] = 0;
}

static void find_key_ranges(const regard_problem &p, QueryBlock &queries) {
  const auto lesser = [](auto a, auto b) { return min(a, b); };
  const auto greater = [](auto a, auto b) { return max(a, b); };
  const int32_t keys = int32_t(p.keys);
  queries.first_key = keys, queries.stop_key = 0;
  ints latest = {}, earliest = broadcast(keys);  // start and stop of rows that see a key
  for (int j = 0; j < VECTORS; j++) {
    const int row = j * LANES;
    const ints start = load(queries.start + row), stop = load(queries.stop + row);
    const ints sees = start < stop;
    const ints low = of_fours(sees ? start : broadcast(keys), lesser),
               high = of_fours(sees ? stop : ints{}, greater);
    latest = max(latest, sees ? start : ints{});
    earliest = min(earliest, sees ? stop : broadcast(keys));
    store(queries.fours_start + row, low);
    store(queries.fours_stop + row, high);
    queries.vector_start[j] = of_all(low, lesser);
    queries.vector_stop[j] = of_all(high, greater);
    queries.vector_common_start[j] = of_all(of_fours(start, greater), greater);
    queries.vector_common_stop[j] = of_all(of_fours(stop, lesser), lesser);
    queries.first_key = min(queries.first_key, queries.vector_start[j]);
    queries.stop_key = max(queries.stop_key, queries.vector_stop[j]);
  }
  queries.common_start = of_all(of_fours(latest, greater), greater);
  queries.common_stop = of_all(of_fours(earliest, lesser), lesser);
}

// Rows [first, first + count) in this order.
static void set_rows(QueryBlock &queries, int64_t first, int64_t count) {
  queries.first = first;
  queries.count = int(count);
  queries.vectors = (queries.count + LANES - 1) / LANES;
}

// The queries of a head from `first` on, a multiple of QUERIES. Returns whether the block had the
// same queries before, maybe of another head.
static bool choose_rows_of_head(const regard_problem &p, int64_t batch, int64_t head, int64_t first,
                                QueryBlock &queries) {
  const bool held = queries.first == first;
  queries.batch = batch;
  queries.group = head / group_size(p);
  queries.one_head = true;
  set_rows(queries, first, min(int64_t(QUERIES), p.queries - first));
  for (int r = 0; r < queries.count; r++) queries.head[r] = head;
  for (int r = 0; r < queries.count && !held; r++) queries.query[r] = first + r;
  return held;
}

// The same for the rows of all heads of a group, b·G + g.
static bool choose_rows_of_group(const regard_problem &p, int64_t group, int64_t first,
                                 QueryBlock &queries) {
  const int64_t heads = group_size(p);
  const bool held = queries.first == first;
  queries.batch = group / p.groups;
  queries.group = group % p.groups;
  queries.one_head = false;
  set_rows(queries, first, min(int64_t(QUERIES), p.queries * heads - first));
  const int64_t stop = first + queries.count;
  for (int64_t member = 0, r = 0; member < heads; member++)
    for (int64_t row = (first - member + heads - 1) / heads * heads + member; row < stop;
         row += heads, r++) {
      queries.query[r] = row / heads;
      queries.head[r] = queries.group * heads + member;
    }
  return held;
}

// The same for block `number` of the problem: in a group from the last to the first, since with
// causal attention the last ones see the most keys.
static bool choose_rows(const regard_problem &p, int64_t number, QueryBlock &queries) {
  const int64_t per_group = query_blocks_per_group(p), group = number / per_group;
  const int64_t heads = group_size(p), in_group = number % per_group;
  if (!head_fills_blocks(p))
    return choose_rows_of_group(p, group, (per_group - 1 - in_group) * QUERIES, queries);
  const int64_t block = query_blocks_per_head(p) - 1 - in_group / heads;
  return choose_rows_of_head(p, group / p.groups, group % p.groups * heads + in_group % heads,
                             block * QUERIES, queries);
}

static void begin(const regard_problem &p, int64_t number, QueryBlock &queries) {
  const bool held = choose_rows(p, number, queries);
  if (held && !p.rows.start && !p.spans.count) return;  // the same keys in every group
  load_bounds(p, queries);
  find_key_ranges(p, queries);
}

// The index of a row in a contiguous (B, H, L).
REGARD_INLINE int64_t row_number(const regard_problem &p, const QueryBlock &queries, int r) {
  return (queries.batch * p.heads + queries.head[r]) * p.queries + queries.query[r];
}

// The addresses of a block's rows in a tensor. It is a copy, since the compiler assumes that a
// store of vectors may alias tensor and block.
template <class Element>
class BlockRows {
 public:
  using Number = typename Element::type;

  BlockRows(const regard_tensor &t, const QueryBlock &queries)
      : first_((Number *)t.data + queries.batch * t.batch), head_stride_(t.head), stride_(t.row),
        heads_(queries.one_head ? nullptr : queries.head), queries_(queries.query) {
    if (queries.one_head) first_ += queries.head[0] * t.head + queries.query[0] * t.row;
  }
  __attribute__((always_inline)) Number *operator[](int64_t r) const {
    if (!heads_) return first_ + r * stride_;
    return first_ + heads_[r] * head_stride_ + queries_[r] * stride_;
  }

 private:
  Number *first_;
  int64_t head_stride_, stride_;
  const int64_t *heads_;  // null if the rows are consecutive queries of one head
  const int64_t *queries_;
};

template <class Element>
REGARD_INLINE typename Element::type *row_of(const regard_tensor &t, const QueryBlock &queries,
                                             int r) {
  return BlockRows<Element>(t, queries)[r];
}

// A row of the keys or values of the block's group.
template <class Element>
REGARD_INLINE const typename Element::type *first_row(const regard_tensor &t,
                                                      const QueryBlock &queries, int64_t row) {
  return (const typename Element::type *)t.data + queries.batch * t.batch + queries.group * t.head +
         row * t.row;
}

// A part of rows: [first, last) of `of`, as fractions of 2²⁰.
struct Part {
  int64_t from, to;

  Part(int64_t first, int64_t last, int64_t of) : from((first << 20) / of), to((last << 20) / of) {}
  int64_t start(int64_t count) const { return count * from >> 20; }
  int64_t stop(int64_t count) const { return count * to >> 20; }
};

// Prefetches a number of rows; the stride is in elements.
template <class Number>
REGARD_INLINE void fetch_strided(const Number *first, int64_t stride, int64_t rows, int64_t dim) {
  constexpr int64_t size = sizeof(Number);
  fetch_bytes(first, stride * size, rows, dim * size);
}

// Prefetches rows [first, stop) of the block. Inline, since GCC assumes that the function has no
// side effects.
template <class Element>
REGARD_INLINE void fetch_rows(const regard_tensor &t, const QueryBlock &queries, int64_t first,
                              int64_t stop, int64_t dim) {
  if (first >= stop) return;
  const BlockRows<Element> rows(t, queries);
  if (queries.one_head) return fetch_strided(rows[first], t.row, stop - first, dim);
  for (int64_t r = first; r < stop; r++) fetch_strided(rows[r], t.row, 1, dim);
}

// The same for a part of its rows.
template <class Element>
REGARD_INLINE void fetch_rows(const regard_tensor &t, const QueryBlock &queries, int64_t dim,
                              const Part &part) {
  fetch_rows<Element>(t, queries, part.start(queries.count), part.stop(queries.count), dim);
}

// The same for `count` keys or values of the block's group.
template <class Element>
REGARD_INLINE void fetch_keys(const regard_tensor &t, const QueryBlock &queries, int64_t first,
                              int64_t count, int64_t dim, const Part &part) {
  const int64_t start = part.start(count);
  fetch_strided(first_row<Element>(t, queries, first + start), t.row, part.stop(count) - start,
                dim);
}

// Transposes the block's rows to columns of width QUERIES. `load_full` loads a vector of `width`
// elements of a row, `load_part` the remaining ones. Unused lanes are 0. Writes up to the next
// multiple of LANES rows.
template <class Element, class Load, class LoadPart>
REGARD_INLINE void load_transposed(const regard_tensor &from, const QueryBlock &queries,
                                   int64_t dim, int64_t width, float *to, Load load_full,
                                   LoadPart load_part) {
  const BlockRows<Element> all_rows(from, queries);
  const int count = queries.count;
  for (int j = 0; j * LANES < count; j++) {
    const typename Element::type *row[LANES];
    const int live = min(LANES, count - j * LANES);
    for (int i = 0; i < live; i++) row[i] = all_rows[j * LANES + i];
    for (int64_t d = 0; d < dim; d += width) {
      floats rows[LANES];
      if (live == LANES && d + width <= dim) {
        REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) rows[i] = load_full(row[i] + d);
      } else {
        for (int i = 0; i < LANES; i++)
          rows[i] = i < live ? load_part(row[i] + d, dim - d) : floats{};
      }
      transpose(rows);
      float *column = to + d / width * LANES * QUERIES + j * LANES;
      REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) store(column + i * QUERIES, rows[i]);
    }
  }
}

// Transposes the block's rows of (B, H, L, dim), times a factor, to (dim, QUERIES); unused lanes
// are 0. Writes up to the next multiple of LANES rows.
template <class Element>
static void load_rows(Element element, const regard_tensor &from, const QueryBlock &queries,
                      int64_t dim, float factor, float *to) {
  using Number = typename Element::type;
  load_transposed<Element>(
      from, queries, dim, LANES, to,
      [&](const Number *row) REGARD_INLINE_LAMBDA { return widen(element, row) * factor; },
      [&](const Number *row, int64_t count) { return widen_part(element, row, count) * factor; });
}

// Rounds bytes up to whole cache lines.
REGARD_INLINE size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

REGARD_INLINE int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

}  // namespace regard::REGARD_SET
