// Normalizers of rows, computed from all their keys or from a known log-sum-exp.
#pragma once

#include "kept_scores.h"
#include "threads.h"

namespace regard::REGARD_SET {

// The denominators of a block's rows, Σ 2^(factor · score − shift), over the keys so far.
struct Denominators {
  const QueryBlock &queries;
  const floats factor;
  int32_t stop;  // the keys before it have been added
  floats peak[VECTORS], total[VECTORS];
  ints seen[VECTORS];  // lanes that saw a key, where scores are adjusted

  Denominators(const QueryBlock &rows, const Scoring &scoring)
      : queries(rows), factor(broadcast(scoring.factor)) {
    begin();
  }
  void begin() {
    stop = first_read_key(queries);
    for (int j = 0; j < VECTORS; j++)
      peak[j] = broadcast(HIDDEN), total[j] = floats{}, seen[j] = ints{};
  }

  // Adds the scores of the next block.
  void add(const WeightBlock &block) {
    for (int j = 0; j < queries.vectors; j++) {
      const Shift old = shift_of(peak[j], factor);
      const floats higher = max(peak[j], block.peak[j]);
      const Shift shift = shift_of(higher, factor);
      total[j] *= peak[j] == broadcast(HIDDEN) ? floats{} : ratio_of(old, shift, factor);
      peak[j] = higher;
      const float *scores = block.weights + j * LANES;
      total[j] += sum_of_weights(
          block.keys,
          [&](int32_t k) REGARD_INLINE_LAMBDA {
            return exp2((load(scores + k * QUERIES) - shift.before) * factor - shift.after);
          },
          [](int32_t, const floats *) REGARD_INLINE_LAMBDA {});
    }
    stop = block.key + block.keys;
  }

  // Adds the complete blocks among the stored scores, which end before a key.
  void add_kept(const regard_problem &p, const KeptScores &kept, int32_t filled,
                const ints *seen_before, const ReadScratch &scratch) {
    for (int j = 0; j < VECTORS; j++) seen[j] = seen_before[j];
    while (stop < queries.stop_key) {
      const int32_t end = end_of_read_block(queries, stop);
      if (end > filled || !kept.holds(stop, end)) return;
      WeightBlock block(p, queries, stop, end, scratch);
      take_kept(kept, true, block);
      add(block);
    }
  }
};

// Computes the log-sum-exp of a block's rows, and their normalizers, from the denominators over
// some keys and the scores of the others, which are stored as far as there is memory.
template <class Arithmetic>
static void find_normalizers(const regard_problem &p, const Scoring &scoring,
                             const QueryBlock &queries, const ReadScratch &scratch,
                             float *logsumexp, RowNormalizer *normalizers,
                             Denominators denominators, const KeptScores &kept = {},
                             PackedInputs<Arithmetic> *packed = nullptr) {
  for_each_read_block(queries, denominators.stop, [&](int32_t first, int32_t last) {
    WeightBlock block(p, queries, first, last, scratch);
    if (kept.holds(first, last)) block.weights = kept.of(first);
    compute_scores<Arithmetic>(scoring, scratch, block, denominators.seen, packed);
    denominators.add(block);
  });
  for (int j = 0; j < queries.vectors; j++) {
    const floats sinks = p.sink.data ? numbers_of(p.sink, queries, j * LANES) : floats{};
    const ints sees = scoring.adjusted
                          ? denominators.seen[j]
                          : load(queries.start + j * LANES) < load(queries.stop + j * LANES);
    const floats peak = denominators.peak[j];
    const Shift shift = shift_of(peak, denominators.factor);
    alignas(64) double level[LANES], above_peak[LANES];
    find_levels(shift, scoring, level);
    // Relative to the peak, not a difference of levels, whose rounding error is unbounded.
    find_levels({shift.before - peak, shift.after}, scoring, above_peak);
    for (int i = 0; i < LANES; i++) {
      RowSum sum = {level[i], denominators.total[j][i]};
      if (p.sink.data) sum.take_in(sinks[i]);
      logsumexp[j * LANES + i] = sees[i] ? sum.logsumexp() : -INFINITY;
      // A sink far above the scores replaces the peak.
      const bool below = p.sink.data && sum.level == sinks[i];
      const float from = below ? float(sum.level / scoring.unit) : peak[i] == HIDDEN ? 0 : peak[i];
      const bool from_peak = !below && peak[i] != HIDDEN;
      const double above = from_peak ? above_peak[i] : sum.level - from * scoring.unit;
      normalizers[j * LANES + i] = {from, float(above * LOG2_E + log2f(sum.total))};
    }
  }
}

// The normalizers of rows whose log-sum-exp is known. If it differs from that of the problem's
// keys, the row has other keys too.
template <class Arithmetic>
static void find_normalizers_of(const regard_problem &p, const Scoring &scoring,
                                const QueryBlock &queries, const ReadScratch &scratch,
                                const float *known, RowNormalizer *normalizers) {
  constexpr float ROUNDING = 0x1p-22f;  // relative difference of sums in different orders
  alignas(64) float own[QUERIES];
  find_normalizers<Arithmetic>(p, scoring, queries, scratch, own, normalizers,
                               Denominators(queries, scoring));
  for (int r = 0; r < queries.count; r++)
    if (!(fabsf(known[r] - own[r]) <= ROUNDING * fabsf(known[r])))
      normalizers[r] = normalizer_of(known[r], normalizers[r].peak, scoring.unit);
}

REGARD_INLINE bool any_imprecise(const float *logsumexp, int64_t rows) {
  ints found = {};
  for (int64_t r = 0; r < rows; r += LANES)
    found |= is_imprecise(widen_part(Float32(), logsumexp + r, rows - r));
  return any(found);
}

// Calls visit(task, its log-sum-exps, scratch with its queries) for the blocks with an imprecise
// log-sum-exp.
template <class Arithmetic, class Visit>
static int for_each_imprecise(const regard_problem &p, const Scoring &scoring,
                              const float *logsumexp, Visit visit) {
  const int64_t query_blocks = p.batch * p.groups * query_blocks_per_group(p);
  return for_each_product_task<Arithmetic>(
      int(p.threads), query_blocks, ReadScratch::size(p), [&](int64_t number, void *memory) {
        QueryBlock queries;
        begin(p, number, queries);
        float known[QUERIES];
        for (int r = 0; r < queries.count; r++) known[r] = logsumexp[row_number(p, queries, r)];
        if (!any_imprecise(known, queries.count)) return;
        const ReadScratch scratch(p, memory);
        find_spans(p, scratch.spans, queries);
        Arithmetic::load_queries(p.query, queries, p.dim, scoring.query_factor, scratch.query);
        visit(queries, known, scratch);
      });
}

// The normalizers (B, H, L) of the rows of a problem whose log-sum-exp is imprecise.
template <class Arithmetic>
static int find_imprecise_normalizers(const regard_problem &p, const Scoring &scoring,
                                      const float *logsumexp, RowNormalizer *normalizers) {
  return for_each_imprecise<Arithmetic>(
      p, scoring, logsumexp,
      [&](const QueryBlock &queries, const float *known, const ReadScratch &scratch) {
        RowNormalizer own[QUERIES];
        find_normalizers_of<Arithmetic>(p, scoring, queries, scratch, known, own);
        for (int r = 0; r < queries.count; r++) normalizers[row_number(p, queries, r)] = own[r];
      });
}

// Takes the normalizers of a block's rows from known log-sum-exps (B, H, L).
template <class Arithmetic>
static void load_normalizers(const regard_problem &p, const Scoring &scoring,
                             const QueryBlock &queries, const ReadScratch &scratch,
                             const float *logsumexp, Normalizers &normalizers) {
  RowNormalizer exact[QUERIES];
  normalizers.factor = scoring.factor;
  for (int r = 0; r < QUERIES; r++)
    normalizers.logsumexp[r] = r < queries.count ? logsumexp[row_number(p, queries, r)] : -INFINITY;
  if (any_imprecise(normalizers.logsumexp, queries.count)) {
    QueryBlock whole = queries;  // with all keys, not only those that are read
    load_bounds(p, whole);
    find_key_ranges(p, whole);
    find_normalizers_of<Arithmetic>(p, scoring, whole, scratch, normalizers.logsumexp, exact);
  }
  normalizers.prepare(queries, exact);
}

// Recomputes imprecise log-sum-exps with the dot products that all other functions use: the
// rounding of decode's dot products would make weights wrong.
template <class Arithmetic>
static int recompute_imprecise(const regard_problem &p, float *logsumexp) {
  if (!any_imprecise(logsumexp, p.batch * p.heads * p.queries)) return REGARD_DONE;
  const Scoring scoring = scoring_of(p);
  return for_each_imprecise<Arithmetic>(
      p, scoring, logsumexp,
      [&](const QueryBlock &queries, const float *known, const ReadScratch &scratch) {
        alignas(64) float own[QUERIES];
        RowNormalizer normalizers[QUERIES];
        find_normalizers<Arithmetic>(p, scoring, queries, scratch, own, normalizers,
                                     Denominators(queries, scoring));
        for (int r = 0; r < queries.count; r++)
          logsumexp[row_number(p, queries, r)] = is_imprecise(known[r]) ? own[r] : known[r];
      });
}

}  // namespace regard::REGARD_SET
