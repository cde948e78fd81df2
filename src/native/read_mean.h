// Readouts of the mean weights of several patterns.
//
// The weights of a block are summed over the patterns, and the readouts see only the mean.
#pragma once

#include "reading.h"

namespace regard::REGARD_SET {

// Adds a pattern's weights to the sums; the first pattern's begin them.
template <int vectors>
static void add_weights(const WeightBlock &block, bool first, float *sums) {
  for (int32_t i = 0; i < block.keys * QUERIES; i += QUERIES)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      const floats own = load(block.weights + i + j * LANES);
      store(sums + i + j * LANES, first ? own : load(sums + i + j * LANES) + own);
    }
}

// From sums to means, in which denormal numbers are 0 as in all weights; on the way notes each
// row's largest and its Σ w·log₂ w.
template <int vectors, bool entropy>
static void divide(float share, WeightBlock &block) {
  floats peak[vectors], sums[vectors];
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) peak[j] = broadcast(HIDDEN), sums[j] = floats{};
  for (int32_t i = 0; i < block.keys * QUERIES; i += QUERIES)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      float *at = block.weights + i + j * LANES;
      const floats mean = load(at) * share;
      const floats weight = mean < 0x1p-126f ? floats{} : mean;
      store(at, weight);
      peak[j] = max(peak[j], weight);
      if (entropy) sums[j] += weight * max(broadcast(-127.0f), log2(weight));
    }
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
    block.peak[j] = peak[j];
    if (entropy) block.entropy[j] = sums[j];
  }
}

// Puts one weight in the place of another.
static void replace(const WeightBlock &block, float old, float by) {
  for (int32_t i = 0; i < block.keys * QUERIES; i += QUERIES)
    for (int j = 0; j < block.queries.vectors; j++) {
      float *at = block.weights + i + j * LANES;
      store(at, load(at) == old ? broadcast(by) : load(at));
    }
}

template <class Arithmetic>
static void read_mean_queries(const Reading &reading, const RowChunk &rows,
                              const QueryBlock &queries, const ReadScratch &scratch, double *sums) {
  const regard_mean &mean = *reading.mean;
  const MeanScratch own(mean.count, scratch.readouts + reading.memory);
  const auto each = [&](auto call) { reading.for_each(rows, scratch.readouts, sums, call); };
  const auto scratch_of = [&](int64_t i) {
    ReadScratch part = scratch;
    part.query = own.queries + i * padded(reading.p.dim) * QUERIES;
    return part;
  };

  Normalizers normalizers{};
  normalizers.are_of_mean = true;
  for (int64_t i = 0; i < mean.count; i++) {
    const regard_problem &p = mean.problems[i];
    const Scoring scoring = scoring_of(p);
    const ReadScratch part = scratch_of(i);
    Arithmetic::load_queries(p.query, queries, p.dim, scoring.query_factor, part.query);
    Normalizers loaded;
    load_normalizers<Arithmetic>(p, scoring, queries, part, mean.logsumexps[i], loaded);
    for (int j = 0; j < queries.vectors; j++) normalizers.nonfinite[j] |= loaded.nonfinite[j];
    normalizers.any_nonfinite |= loaded.any_nonfinite;
    own.normalizers[i] = loaded;
  }
  for (int j = 0; j < queries.vectors; j++)
    store(normalizers.log + j * LANES, normalizers.nonfinite[j] ? broadcast(NAN) : floats{});

  each([&](auto kind, const ReadoutState &at) { kind.begin(at, queries); });
  for_each_needed_block(queries, normalizers, each, [&](int32_t first, int32_t last, auto looks) {
    for (int64_t i = 0; i < mean.count; i++) {
      const regard_problem &p = mean.problems[i];
      const ReadScratch part = scratch_of(i);
      WeightBlock block(p, queries, first, last, part);
      ints ignored[VECTORS] = {};
      compute_scores<Arithmetic>(scoring_of(p), part, block, ignored);
      compute_weights(own.normalizers[i], false, block);
      with_live(queries.vectors,
                [&](auto vectors) { add_weights<vectors>(block, i == 0, own.weights); });
    }
    WeightBlock block(reading.p, queries, first, last, scratch);
    block.weights = own.weights;
    with_live(queries.vectors, [&](auto vectors) {
      const float share = 1 / float(mean.count);
      if (reading.entropy) return divide<vectors, true>(share, block);
      divide<vectors, false>(share, block);
    });
    // Top ranks what is above −∞, and lists visible keys that are not at its end: so do those of
    // weight 0, which hidden keys have too.
    if (reading.ranks) replace(block, 0, HIDDEN);
    each([&](auto kind, const ReadoutState &at) { kind.scores(at, block); });
    if (reading.ranks) replace(block, HIDDEN, 0);
    each([&](auto kind, const ReadoutState &at) {
      if (looks(kind, at)) kind.weights(at, block);
    });
  });
  each([&](auto kind, const ReadoutState &at) { kind.end(at, queries, normalizers); });
}

}  // namespace regard::REGARD_SET
