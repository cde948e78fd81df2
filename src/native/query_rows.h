// The rows of queries that the backward pass reads, and their gradient.
#pragma once

#include "gradient_arithmetic.h"
#include "row_sum.h"

namespace regard::REGARD_SET {

// A block's rows of query and of the context's gradient.
struct QueryRows {
  float *query, *gradient;  // in the lanes: (dim, QUERIES), (dim_value, QUERIES)
  PackedRows<float> query_rows = {}, gradient_rows = {};  // in row-major order, for sums over rows
  // Per vector of the block. See RowNormalizer; the logarithm is ∞, so that all weights are 0, for
  // rows without visible keys.
  floats peak[VECTORS], log[VECTORS];
  floats delta[VECTORS];      // context · its gradient, a term of the softmax's derivative
  bool finite = true;         // all numbers of query and gradient are
  bool fully_masked = false;  // whether some row has no visible keys

  QueryRows(float *query_memory, float *gradient_memory)
      : query(query_memory), gradient(gradient_memory) {}
};

// For LANES rows: the sum over d of the context times its gradient.
template <class Arithmetic>
static floats find_delta(const regard_tensor &context, const regard_tensor &gradient,
                         const QueryBlock &queries, const bool *sees, int first_row, int64_t dim) {
  using Element = typename Arithmetic::Element;
  const BlockRows<Element> contexts(context, queries), gradients(gradient, queries);
  floats products[LANES];
  for (int i = 0; i < LANES; i++) {
    const int r = first_row + i;
    products[i] = floats{};
    if (sees[r]) products[i] = Arithmetic::row_products(contexts[r], gradients[r], dim);
  }
  return sum_each(products);
}

// The normalizers of rows from their log-sum-exps.
static void find_row_normalizers(const Scoring &scoring, const RowNormalizer *exact,
                                 const regard_problem &p, const QueryBlock &queries,
                                 const float *logsumexp, QueryRows &rows) {
  alignas(64) float peak[QUERIES], log[QUERIES];
  const double unit = scoring.unit, inverse = 1 / unit;
  for (int r = 0; r < QUERIES; r++) {
    peak[r] = float(logsumexp[r] * inverse);
    log[r] = normalizer_of(logsumexp[r], peak[r], unit).log;
  }
  for (int r = 0; r < queries.count && exact; r++)
    if (is_imprecise(logsumexp[r])) {
      const RowNormalizer &normalizer = exact[row_number(p, queries, r)];
      peak[r] = normalizer.peak, log[r] = normalizer.log;
    }
  for (int j = 0; j < queries.vectors; j++) {
    const ints sees = load(logsumexp + j * LANES) != broadcast(-INFINITY);
    rows.peak[j] = sees ? load(peak + j * LANES) : floats{};
    rows.log[j] = sees ? load(log + j * LANES) : broadcast(INFINITY);
  }
}

// `memory` is for (QUERIES, padded(dim)) and (QUERIES, padded(dim_value)).
template <class Arithmetic>
static void load_query_rows(const regard_problem &p, const regard_gradients &g,
                            const Scoring &scoring, const RowNormalizer *exact,
                            const QueryBlock &queries, float *memory, QueryRows &rows) {
  alignas(64) float logsumexp[QUERIES];
  bool sees[QUERIES];
  const int count = queries.count;
  if (queries.one_head)
    memcpy(logsumexp, g.logsumexp + row_number(p, queries, 0), size_t(count) * sizeof *logsumexp);
  for (int r = 0; r < count && !queries.one_head; r++)
    logsumexp[r] = g.logsumexp[row_number(p, queries, r)];
  for (int r = count; r < QUERIES; r++) logsumexp[r] = -INFINITY;
  for (int r = 0; r < QUERIES; r++) sees[r] = logsumexp[r] != -INFINITY;
  for (int r = 0; r < count; r++) rows.fully_masked |= !sees[r];
  find_row_normalizers(scoring, exact, p, queries, logsumexp, rows);

  const bool all_see = !rows.fully_masked;
  const auto side_by_side = [&](const regard_tensor &from, int64_t dim, float *to) {
    return Arithmetic::rows_side_by_side(from, queries, sees, all_see, gains_by_copy(p, from, dim),
                                         dim, to);
  };
  rows.query_rows = side_by_side(p.query, p.dim, memory);
  rows.gradient_rows =
      side_by_side(g.context_gradient, p.dim_value, memory + QUERIES * padded(p.dim));
  Arithmetic::load_queries(p.query, queries, p.dim, scoring.query_factor, rows.query);
  Arithmetic::load_queries(g.context_gradient, queries, p.dim_value, 1, rows.gradient);
  using Products = typename Arithmetic::Products;
  rows.finite = finite_columns<Products>(rows.query, p.dim, queries.vectors) &&
                finite_columns<Products>(rows.gradient, p.dim_value, queries.vectors);
  for (int j = 0; j < queries.vectors; j++)
    rows.delta[j] = find_delta<Arithmetic>(g.context, g.context_gradient, queries, sees, j * LANES,
                                           p.dim_value);
}

// The float32 sums of the queries' gradient: the gradient itself, or a buffer.
struct QuerySums {
  regard_tensor sums;
  bool first, last;  // whether this contribution is the first, the last one

  bool only() const { return first && last; }
};

// Adds a panel's contribution (QUERIES, padded(dim)), times a factor; writes the gradient with the
// last one.
template <class Element>
static void add_query_gradient(Element element, const float *share, const QueryBlock &queries,
                               int64_t dim, float factor, const QuerySums &to,
                               const regard_tensor &gradient) {
  const BlockRows<Float32> sums(to.sums, queries);
  const BlockRows<Element> results(gradient, queries);
  const bool first = to.first, last = to.last;
  const int count = queries.count;
  for (int r = 0; r < count; r++, share += padded(dim))
    for (int64_t d = 0; d < dim; d += LANES) {
      floats part = load(share + d) * factor;
      if (!first) part += widen_part(Float32(), sums[r] + d, dim - d);
      if (last)
        narrow_part(element, results[r] + d, part, dim - d);
      else
        narrow_part(Float32(), sums[r] + d, part, dim - d);
    }
}

}  // namespace regard::REGARD_SET
