// A task: QUERIES rows of attention that are computed together, one a lane.
//
// The rows of a group of heads are interleaved, so that its keys and values are read once for all
// of them: of R = H/G heads a group, row r is query r / R of head g·R + r % R.
#pragma once

#include "abi.h"
#include "element.h"
#include "tiles.h"

namespace regard::REGARD_SET {

struct Task {
  int64_t batch, group;
  int count;    // rows in use
  int vectors;  // vectors that hold them
  int64_t query[QUERIES], head[QUERIES];
  // The keys that each row sees, empty for lanes not in use and rows that see nothing.
  alignas(64) int32_t start[QUERIES];
  alignas(64) int32_t stop[QUERIES];
  alignas(64) int32_t position[QUERIES];
  // The smallest range that holds what the rows of a vector see.
  int32_t vector_start[VECTORS], vector_stop[VECTORS];
  // The same of all rows, and the range that all of them see which see anything.
  int32_t first_key, last_key, common_start, common_stop;
};

REGARD_INLINE int64_t group_size(const regard_problem &p) { return p.heads / p.groups; }
REGARD_INLINE int64_t tasks_per_group(const regard_problem &p) {
  return (p.queries * group_size(p) + QUERIES - 1) / QUERIES;
}

REGARD_INLINE int32_t cut(int64_t key, int64_t keys) {
  return int32_t(most(int64_t(0), least(key, keys)));
}

static void find_bounds(const regard_problem &p, Task &task) {
  const regard_rows &rows = p.rows;
  if (rows.start) {
    for (int r = 0; r < task.count; r++) {
      const int64_t at = task.batch * rows.batch + task.head[r] * rows.head + task.query[r];
      task.start[r] = cut(rows.start[at], p.keys);
      task.stop[r] = cut(rows.stop[at], p.keys);
      task.position[r] = int32_t(rows.positions[at]);
    }
  } else {
    for (int r = 0; r < task.count; r++) {
      const int64_t i = task.query[r];
      task.start[r] = cut(rows.start_base + i * rows.start_step, p.keys);
      task.stop[r] = cut(rows.stop_base + i * rows.stop_step, p.keys);
      task.position[r] = int32_t(rows.position + i);
    }
  }
  for (int r = task.count; r < QUERIES; r++) task.start[r] = task.stop[r] = task.position[r] = 0;
}

static void find_hulls(const regard_problem &p, Task &task) {
  task.first_key = task.common_stop = int32_t(p.keys);
  task.last_key = task.common_start = 0;
  for (int j = 0; j < VECTORS; j++) {
    int32_t low = int32_t(p.keys), high = 0;
    for (int r = j * LANES; r < (j + 1) * LANES; r++) {
      const int32_t start = task.start[r], stop = task.stop[r];
      const bool sees = start < stop;
      low = sees ? least(low, start) : low;
      high = sees ? most(high, stop) : high;
      task.common_start = sees ? most(task.common_start, start) : task.common_start;
      task.common_stop = sees ? least(task.common_stop, stop) : task.common_stop;
    }
    task.vector_start[j] = low;
    task.vector_stop[j] = high;
    task.first_key = least(task.first_key, low);
    task.last_key = most(task.last_key, high);
  }
}

// The rows of task number `number` of the problem: within a group from the last to the first, since
// those see the most when attention is causal.
static void place(const regard_problem &p, int64_t number, Task &task) {
  const int64_t heads = group_size(p), per_group = tasks_per_group(p);
  const int64_t group = number / per_group;
  task.batch = group / p.groups;
  task.group = group % p.groups;
  const int64_t first = (per_group - 1 - number % per_group) * QUERIES;
  task.count = int(least(int64_t(QUERIES), p.queries * heads - first));
  task.vectors = (task.count + LANES - 1) / LANES;
  int64_t query = first / heads, member = first % heads;
  for (int r = 0; r < task.count; r++) {
    task.query[r] = query;
    task.head[r] = task.group * heads + member;
    if (++member == heads) member = 0, query++;
  }
}

static void begin(const regard_problem &p, int64_t number, Task &task) {
  place(p, number, task);
  find_bounds(p, task);
  find_hulls(p, task);
}

// Where a row's number lies in a contiguous (B, H, L).
REGARD_INLINE int64_t row_number(const regard_problem &p, const Task &task, int r) {
  return (task.batch * p.heads + task.head[r]) * p.queries + task.query[r];
}

template <class Element>
REGARD_INLINE typename Element::type *row_of(const regard_tensor &t, const Task &task, int r) {
  return (typename Element::type *)t.data + task.batch * t.batch + task.head[r] * t.head +
         task.query[r] * t.row;
}

// A row of the keys or values that the task's rows see.
template <class Element>
REGARD_INLINE const typename Element::type *first_row(const regard_tensor &t, const Task &task,
                                                      int64_t row) {
  return (const typename Element::type *)t.data + task.batch * t.batch + task.group * t.head +
         row * t.row;
}

// Has part number `part` of so many parts of the task's rows brought to the cache. Inline, or GCC
// takes it for a function without effect.
template <class Element>
REGARD_INLINE void fetch_part(const regard_tensor &t, const Task &task, int64_t dim, int part,
                              int parts) {
  constexpr int64_t line = 64 / sizeof(typename Element::type);
  for (int r = task.count * part / parts; r < task.count * (part + 1) / parts; r++) {
    const auto *row = row_of<Element>(t, task, r);
    for (int64_t d = 0; d < dim; d += line) __builtin_prefetch(row + d);
  }
}

// The task's rows, transposed, to columns of width QUERIES. `load_full` makes a vector of `width`
// elements of a row, `load_part` of as many as there are left. Lanes not in use are 0. Writes up to
// the next multiple of LANES rows.
template <class Element, class Load, class LoadPart>
REGARD_INLINE void load_transposed(const regard_tensor &from, const Task &task, int64_t dim,
                                   int64_t width, float *to, Load load_full, LoadPart load_part) {
  for (int j = 0; j < task.vectors; j++) {
    const typename Element::type *row[LANES];
    const int live = least(LANES, task.count - j * LANES);
    for (int i = 0; i < live; i++) row[i] = row_of<Element>(from, task, j * LANES + i);
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

// The task's rows of (B, H, L, dim), times a factor, to (dim, QUERIES); lanes not in use are 0.
// Writes up to the next multiple of LANES rows.
template <class Element>
static void load_rows(Element element, const regard_tensor &from, const Task &task, int64_t dim,
                      float factor, float *to) {
  using Number = typename Element::type;
  load_transposed<Element>(
      from, task, dim, LANES, to,
      [&](const Number *row) REGARD_FLAT { return widen(element, row) * factor; },
      [&](const Number *row, int64_t count) { return widen_part(element, row, count) * factor; });
}

// The reverse, each row times a factor of its own.
template <class Element>
static void store_rows(Element element, const float *from, const floats *factors, const Task &task,
                       int64_t dim, const regard_tensor &to) {
  for (int j = 0; j < task.vectors; j++) {
    typename Element::type *row[LANES];
    const int live = least(LANES, task.count - j * LANES);
    for (int i = 0; i < live; i++) row[i] = row_of<Element>(to, task, j * LANES + i);
    const floats factor = factors[j];
    for (int64_t d = 0; d < dim; d += LANES) {
      floats rows[LANES];
      REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++)
        rows[i] = load(from + (d + i) * QUERIES + j * LANES) * factor;
      transpose(rows);
      if (live == LANES && d + LANES <= dim)
        REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) narrow(element, row[i] + d, rows[i]);
      else
        for (int i = 0; i < live; i++) narrow_part(element, row[i] + d, rows[i], dim - d);
    }
  }
}

REGARD_INLINE int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

}  // namespace regard::REGARD_SET
