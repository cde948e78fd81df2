// How the rows of a pattern are shared out for reading.
//
// Sums over rows are kept for each head and chunk of its rows apart, and added up in order
// afterwards: what comes out depends on the sizes alone, not on who computed what when.
#pragma once

#include "lanes.h"

namespace regard::REGARD_SET {

constexpr int64_t MOST_CHUNKS = 8;  // of a head; each has memory of its own for sums over rows

// Queries [first, last) of a head; or all those of some heads of a group, which fit in one task.
struct Unit {
  int64_t batch, head;
  int64_t heads;
  int64_t first, last;

  int64_t queries() const { return last - first; }
  int64_t rows() const { return heads * queries(); }
};

struct Division {
  int64_t chunks;           // of each head
  int64_t heads_together;   // at most so many heads of a group, and then a single chunk
  int64_t units_per_group;  // where chunks are not counted
  int64_t units;

  explicit Division(const regard_problem &p) {
    const int64_t group = group_size(p);
    const int64_t tasks = (p.queries + QUERIES - 1) / QUERIES;
    chunks = most(int64_t(1), least(MOST_CHUNKS, tasks));
    heads_together = most(int64_t(1), least(group, QUERIES / most(int64_t(1), p.queries)));
    units_per_group = (group + heads_together - 1) / heads_together;
    units = p.batch * p.groups * units_per_group;
  }

  // The first query of a chunk, a multiple of a task's rows.
  int64_t start(const regard_problem &p, int64_t chunk) const {
    const int64_t tasks = (p.queries + QUERIES - 1) / QUERIES;
    return least(p.queries, tasks * chunk / chunks * QUERIES);
  }

  Unit unit(const regard_problem &p, int64_t number, int64_t chunk) const {
    const int64_t group = number / units_per_group, member = number % units_per_group;
    const int64_t first = member * heads_together;
    return {
        .batch = group / p.groups,
        .head = group % p.groups * group_size(p) + first,
        .heads = least(heads_together, group_size(p) - first),
        .first = start(p, chunk),
        .last = start(p, chunk + 1),
    };
  }
};

// The task of a unit's rows from `first` on, head by head; keys outside [first_key, last_key) are
// hidden from them.
static void begin(const regard_problem &p, const Unit &unit, int64_t first, int64_t first_key,
                  int64_t last_key, Task &task) {
  task.batch = unit.batch;
  task.group = unit.head / group_size(p);
  task.count = int(least(int64_t(QUERIES), unit.rows() - first));
  task.vectors = (task.count + LANES - 1) / LANES;
  for (int r = 0; r < task.count; r++) {
    task.head[r] = unit.head + (first + r) / unit.queries();
    task.query[r] = unit.first + (first + r) % unit.queries();
  }
  find_bounds(p, task);
  for (int r = 0; r < task.count; r++) {
    task.start[r] = most(task.start[r], int32_t(first_key));
    task.stop[r] = least(task.stop[r], int32_t(last_key));
  }
  find_hulls(p, task);
}

}  // namespace regard::REGARD_SET
