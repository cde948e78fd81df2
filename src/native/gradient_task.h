// What the backward pass reads of a task's rows, and the gradient of their queries that it writes.
#pragma once

#include "scores.h"

namespace regard::REGARD_SET {

// A task's rows of query and of the context's gradient, both ways round.
struct TaskRows {
  float *query, *gradient;            // (dim, QUERIES) and (dim_value, QUERIES), as in tiles.h
  float *query_rows, *gradient_rows;  // (QUERIES, padded(dim)) and (QUERIES, padded(dim_value))
  // Log-sum-exp in units of log 2; ∞, which makes all weights 0, where a row sees nothing.
  floats shift[VECTORS] = {};
  floats rest[VECTORS] = {};   // what rounding took from it: as much as from the logarithm itself
  floats delta[VECTORS] = {};  // context · its gradient, which the softmax's derivative subtracts
  bool finite = true;          // all numbers of query and gradient
  bool blind = false;          // some row sees nothing
};

// Copies rows as floats, zeros for those that see nothing and behind the last number of each.
template <class Element>
static bool copy_rows(Element element, const regard_tensor &from, const Task &task,
                      const bool *sees, int64_t dim, float *to) {
  ints stray = {};
  for (int r = 0; r < task.count; r++)
    for (int64_t d = 0; d < dim; d += LANES) {
      const floats part =
          sees[r] ? widen_part(element, row_of<Element>(from, task, r) + d, dim - d) : floats{};
      stray |= is_stray(part);
      store(to + r * padded(dim) + d, part);
    }
  return !any(stray);
}

// (QUERIES, padded(dim)), times a factor, to (padded(dim), QUERIES); lanes not in use are 0.
static void transpose_rows(const float *from, const Task &task, int64_t dim, float factor,
                           float *to) {
  for (int j = 0; j < task.vectors; j++)
    for (int64_t d = 0; d < dim; d += LANES) {
      floats rows[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; i++) {
        const int r = j * LANES + i;
        rows[i] = r < task.count ? load(from + r * padded(dim) + d) * factor : floats{};
      }
      transpose(rows);
      REGARD_UNROLL for (int i = 0; i < LANES; i++)
        store(to + (d + i) * QUERIES + j * LANES, rows[i]);
    }
}

template <class Element>
static floats find_delta(Element element, const regard_tensor &context, const Task &task,
                         const bool *sees, int first_row, int64_t dim, const float *gradients) {
  floats products[LANES];
  for (int i = 0; i < LANES; i++) {
    const int r = first_row + i;
    products[i] = floats{};
    if (r >= task.count || !sees[r]) continue;
    for (int64_t d = 0; d < dim; d += LANES)
      products[i] += widen_part(element, row_of<Element>(context, task, r) + d, dim - d) *
                     load(gradients + r * padded(dim) + d);
  }
  transpose(products);
  floats total = floats{};
  REGARD_UNROLL for (int i = 0; i < LANES; i++) total += products[i];
  return total;
}

template <class Element>
static void load_task_rows(const regard_problem &p, const regard_gradients &g, float query_factor,
                           const Task &task, TaskRows &rows) {
  alignas(64) float shift[QUERIES], rest[QUERIES];
  bool sees[QUERIES];
  for (int r = 0; r < QUERIES; r++) {
    const float logsumexp =
        r < task.count
            ? g.logsumexp[(task.batch * p.heads + task.head[r]) * p.queries + task.query[r]]
            : -INFINITY;
    sees[r] = logsumexp != -INFINITY;
    const double power = double(logsumexp) * 1.44269504088896340736;
    shift[r] = sees[r] ? float(power) : INFINITY;
    rest[r] = sees[r] ? float(power - shift[r]) : 0;
    rows.blind |= r < task.count && !sees[r];
  }
  rows.finite = copy_rows(Element(), p.query, task, sees, p.dim, rows.query_rows);
  rows.finite &= copy_rows(Element(), g.context_gradient, task, sees, p.dim_value,
                           rows.gradient_rows);
  transpose_rows(rows.query_rows, task, p.dim, query_factor, rows.query);
  transpose_rows(rows.gradient_rows, task, p.dim_value, 1, rows.gradient);
  for (int j = 0; j < task.vectors; j++) {
    rows.shift[j] = load(shift + j * LANES);
    rows.rest[j] = load(rest + j * LANES);
    rows.delta[j] = find_delta(Element(), g.context, task, sees, j * LANES, p.dim_value,
                               rows.gradient_rows);
  }
}

// Where the gradient of the queries is summed up in float32: where it is wanted, or in memory that
// is lent for it.
struct QuerySums {
  regard_tensor sums;
  bool first, last;  // whether this share is the first, the last one
};

// Adds a task's share (dim, QUERIES), times a factor; writes the gradient with the last one.
template <class Element>
static void add_query_gradient(Element element, const float *share, const Task &task, int64_t dim,
                               float factor, const QuerySums &to, const regard_tensor &gradient) {
  for (int j = 0; j < task.vectors; j++)
    for (int64_t d = 0; d < dim; d += LANES) {
      floats rows[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; i++)
        rows[i] = load(share + (d + i) * QUERIES + j * LANES) * factor;
      transpose(rows);
      const int live = least(LANES, task.count - j * LANES);
      for (int i = 0; i < live; i++) {
        const int r = j * LANES + i;
        if (!to.first)
          rows[i] += widen_part(Float32(), row_of<Float32>(to.sums, task, r) + d, dim - d);
        if (to.last)
          narrow_part(element, row_of<Element>(gradient, task, r) + d, rows[i], dim - d);
        else
          narrow_part(Float32(), row_of<Float32>(to.sums, task, r) + d, rows[i], dim - d);
      }
    }
}

}  // namespace regard::REGARD_SET
