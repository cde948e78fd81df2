// The divergence between the rows of two patterns, in one pass over the keys of both.
#pragma once

#include "normalizers.h"
#include "readout.h"

namespace regard::REGARD_SET {

// One of the two patterns, with the block of rows that is compared.
struct ComparedRows {
  const regard_problem &p;
  const Scoring scoring;
  const ReadScratch scratch;
  const float *known;  // log-sum-exps
  QueryBlock queries{};
  Normalizers normalizers{};

  ComparedRows(const regard_problem &problem, const float *logsumexp, void *memory)
      : p(problem), scoring(scoring_of(problem)), scratch(problem, memory), known(logsumexp) {}

  template <class Arithmetic>
  void load_rows(const RowChunk &rows, int64_t first) {
    begin(p, rows, first, 0, p.keys, queries);
    find_spans(p, scratch.spans, queries);
    Arithmetic::load_queries(p.query, queries, p.dim, scoring.query_factor, scratch.query);
    load_normalizers<Arithmetic>(p, scoring, queries, scratch, known, normalizers);
  }

  // The scores of a key for the rows of a vector.
  floats log_weight(int32_t key, int j) const {
    const floats score = load(scratch.scores + key * QUERIES + j * LANES);
    return (score - normalizers.peak_of(j)) * normalizers.factor - normalizers.log_of(j);
  }

  // Log₂ of the sink's share of a row.
  double log_sink(int r) const {
    if (!p.sink.data || normalizers.logsumexp[r] == -INFINITY) return -INFINITY;
    const float sink = p.sink.data[queries.batch * p.sink.batch + queries.head[r] * p.sink.head];
    const double above = double(sink) - double(normalizers.peak[r]) * scoring.unit;
    return above * LOG2_E - double(normalizers.log[r]);
  }
};

// The term of a key, from log₂ of its two weights; a weight of 0 has no term.
struct RelativeEntropy {
  static constexpr double unit = LN_2;

  REGARD_INLINE floats term(floats p, floats q) {
    const floats weight = exp2(p);
    return weight == 0.0f ? floats{} : weight * (p - q);
  }
  REGARD_INLINE double term(double p, double q) {
    const double weight = ::exp2(p);
    return weight == 0 ? 0 : weight * (p - q);
  }
};

struct JensenShannon {
  static constexpr double unit = LN_2 / 2;

  REGARD_INLINE floats term(floats p, floats q) {
    const floats high = max(p, q), low = p > q ? q : p;
    const floats middle = high + log2((exp2(low - high) + 1.0f) * 0.5f);
    return RelativeEntropy::term(p, middle) + RelativeEntropy::term(q, middle);
  }
  REGARD_INLINE double term(double p, double q) {
    const double high = max(p, q), low = min(p, q);
    const double middle = high + ::log2((::exp2(low - high) + 1) / 2);
    return RelativeEntropy::term(p, middle) + RelativeEntropy::term(q, middle);
  }
};

struct TotalVariation {
  static constexpr double unit = 0.5;

  REGARD_INLINE floats term(floats p, floats q) { return abs(exp2(p) - exp2(q)); }
  REGARD_INLINE double term(double p, double q) { return fabs(::exp2(p) - ::exp2(q)); }
};

template <class Arithmetic, class Divergence>
static void compare_rows(const ComparedRows &one, const ComparedRows &other, double *result) {
  alignas(64) double sums[QUERIES] = {};
  QueryBlock both = one.queries;  // with the keys that either sees
  both.first_key = min(one.queries.first_key, other.queries.first_key);
  both.stop_key = max(one.queries.stop_key, other.queries.stop_key);
  for_each_read_block(both, [&](int32_t first, int32_t last) {
    for (const ComparedRows *each : {&one, &other}) {
      WeightBlock block(each->p, each->queries, first, last, each->scratch);
      ints ignored[VECTORS] = {};
      compute_scores<Arithmetic>(each->scoring, each->scratch, block, ignored);
    }
    for (int j = 0; j < one.queries.vectors; j++) {
      floats total = {};
      for (int32_t k = 0; k < last - first; k++)
        total += Divergence::term(one.log_weight(k, j), other.log_weight(k, j));
      add_to(sums + j * LANES, total);
    }
  });
  for (int r = 0; r < one.queries.count; r++) {
    if (one.p.sink.data || other.p.sink.data)
      sums[r] += Divergence::term(one.log_sink(r), other.log_sink(r));
    // Rounding may give a negative sum.
    result[row_number(one.p, one.queries, r)] = sums[r] < 0 ? 0 : sums[r] * Divergence::unit;
  }
}

template <class Arithmetic, class Divergence>
static int compare_by(const regard_problem &one, const regard_problem &other,
                      const regard_divergence &request) {
  const ChunkPlan plan(one);
  const size_t own = aligned(ReadScratch::size(one));
  return for_each_product_task<Arithmetic>(
      int(one.threads), plan.head_sets * plan.chunks, own + ReadScratch::size(other),
      [&](int64_t number, void *memory) {
        // The last rows first, since with causal attention they see the most keys.
        const int64_t chunk = plan.chunks - 1 - number / plan.head_sets;
        const RowChunk rows = plan.rows_of(one, number % plan.head_sets, chunk);
        ComparedRows p(one, request.one, memory);
        ComparedRows q(other, request.other, (char *)memory + own);
        for (int64_t first = 0; first < rows.count(); first += QUERIES) {
          p.template load_rows<Arithmetic>(rows, first);
          q.template load_rows<Arithmetic>(rows, first);
          compare_rows<Arithmetic, Divergence>(p, q, request.result);
        }
      });
}

template <class Arithmetic>
static int compare(const regard_problem &one, const regard_problem &other,
                   const regard_divergence &request) {
  if (request.kind == REGARD_KL)
    return compare_by<Arithmetic, RelativeEntropy>(one, other, request);
  if (request.kind == REGARD_JS) return compare_by<Arithmetic, JensenShannon>(one, other, request);
  return compare_by<Arithmetic, TotalVariation>(one, other, request);
}

}  // namespace regard::REGARD_SET
