// The division of a pattern's rows into chunks for reading.
//
// Sums over rows are stored separately for each head and chunk of its rows, and added in order
// afterwards, so that results do not depend on the threads.
#pragma once

#include "query_block.h"

namespace regard::REGARD_SET {

constexpr int64_t MAX_CHUNKS = 8;  // per head; each has separate memory for sums over rows

// Queries [first, last) of a head or of all heads of a group; or all queries of some heads of a
// group, which fit in one block.
struct RowChunk {
  int64_t batch, head;
  int64_t heads;
  int64_t first, last;

  int64_t queries() const { return last - first; }
  int64_t count() const { return heads * queries(); }
};

struct ChunkPlan {
  int64_t chunks;               // per head
  int64_t heads_per_set;        // maximum
  int64_t head_sets_per_group;  // not counting chunks
  int64_t head_sets;

  // If blocks of rows must be those of the forward pass, sets are the heads that share a block.
  explicit ChunkPlan(const regard_problem &p, bool as_forward = false) {
    const int64_t group = group_size(p);
    chunks = max(int64_t(1), min(MAX_CHUNKS, query_blocks_per_head(p)));
    const int64_t of_block = max(int64_t(1), QUERIES / max(int64_t(1), p.queries));
    heads_per_set = as_forward && !head_fills_blocks(p) ? group : min(group, of_block);
    head_sets_per_group = (group + heads_per_set - 1) / heads_per_set;
    head_sets = p.batch * p.groups * head_sets_per_group;
  }

  // The first query of a chunk, a multiple of QUERIES.
  int64_t start(const regard_problem &p, int64_t chunk) const {
    return min(p.queries, query_blocks_per_head(p) * chunk / chunks * QUERIES);
  }

  RowChunk rows_of(const regard_problem &p, int64_t number, int64_t chunk) const {
    const int64_t group = number / head_sets_per_group, member = number % head_sets_per_group;
    const int64_t first = member * heads_per_set;
    return {
        .batch = group / p.groups,
        .head = group % p.groups * group_size(p) + first,
        .heads = min(heads_per_set, group_size(p) - first),
        .first = start(p, chunk),
        .last = start(p, chunk + 1),
    };
  }
};

// The block of a chunk's rows from `first` on.
static void choose_rows(const regard_problem &p, const RowChunk &rows, int64_t first,
                        QueryBlock &queries) {
  if (rows.heads == 1)
    return (void)choose_rows_of_head(p, rows.batch, rows.head, rows.first + first, queries);
  const int64_t heads = group_size(p), group = rows.head / heads;
  if (rows.heads == heads)
    return (void)choose_rows_of_group(p, rows.batch * p.groups + group, rows.first * heads + first,
                                      queries);
  queries.batch = rows.batch;
  queries.group = group;
  queries.one_head = false;
  set_rows(queries, first, min(int64_t(QUERIES), rows.count() - first));
  for (int r = 0; r < queries.count; r++) {
    queries.head[r] = rows.head + (first + r) / rows.queries();
    queries.query[r] = rows.first + (first + r) % rows.queries();
  }
}

// The same, head by head; keys outside [first_key, stop_key) are hidden from them.
static void begin(const regard_problem &p, const RowChunk &rows, int64_t first, int64_t first_key,
                  int64_t stop_key, QueryBlock &queries) {
  choose_rows(p, rows, first, queries);
  load_bounds(p, queries);
  for (int r = 0; r < queries.count; r++) {
    queries.start[r] = max(queries.start[r], int32_t(first_key));
    queries.stop[r] = min(queries.stop[r], int32_t(stop_key));
  }
  find_key_ranges(p, queries);
}

}  // namespace regard::REGARD_SET
