// The weights of a block's rows, recomputed from log-sum-exps a block of keys at a time.
#pragma once

#include "forward.h"
#include "row_chunks.h"

namespace regard::REGARD_SET {

// Prefetch distance, in keys, of stored scores.
constexpr int32_t KEYS_AHEAD = 32;

// Keys whose weights stay in the L1 cache while the readouts iterate over them in turn.
constexpr int32_t READ_BLOCK = 96;
static_assert(READ_BLOCK <= FORWARD_BLOCK && READ_BLOCK % LANES == 0);

struct ReadScratch {
  float *query;        // (dim, QUERIES)
  float *scores;       // (READ_BLOCK, QUERIES), then weights
  float *packed_keys;  // (READ_BLOCK, dim): keys as floats
  BlockSpan *spans;
  char *readouts;  // their state

  static size_t score_bytes() {  // a vector may begin at any row
    return aligned((READ_BLOCK * QUERIES + LANES) * sizeof(float));
  }
  static size_t size(const regard_problem &p) {
    return size_t(padded(p.dim) * (QUERIES + READ_BLOCK)) * sizeof(float) + score_bytes() +
           aligned(span_bytes(p));
  }
  ReadScratch(const regard_problem &p, void *memory) {
    query = (float *)memory;
    scores = query + padded(p.dim) * QUERIES;
    packed_keys = (float *)((char *)scores + score_bytes());
    spans = (BlockSpan *)(packed_keys + READ_BLOCK * padded(p.dim));
    readouts = (char *)spans + aligned(span_bytes(p));
  }
};

struct WeightBlock {
  const regard_problem &p;
  const QueryBlock &queries;
  int32_t key;              // the first one
  int32_t keys;             // their number
  float *weights;           // (keys, QUERIES), 0 where hidden; their scores before
  floats peak[VECTORS];     // the largest score of each row
  floats scaled[VECTORS];   // the same before softcap and the like, if scores are adjusted
  floats entropy[VECTORS];  // Σ w·log₂ w of each row, if a readout needs it

  WeightBlock(const regard_problem &problem, const QueryBlock &rows, int32_t first, int32_t last,
              const ReadScratch &scratch)
      : p(problem), queries(rows), key(first), keys(last - first), weights(scratch.scores) {}
};

// Converts scores to weights; see RowNormalizer.
struct Normalizers {
  alignas(64) float logsumexp[QUERIES];  // natural
  alignas(64) float peak[QUERIES], log[QUERIES];
  float factor;
  ints nonfinite[VECTORS];  // rows whose visible weights are NaN
  bool any_nonfinite;

  // From the log-sum-exp, or if it is imprecise, from the exact normalizers.
  void prepare(const QueryBlock &queries, const RowNormalizer *exact) {
    alignas(64) int32_t nonfinite_lanes[QUERIES];
    for (int r = 0; r < queries.vectors * LANES; r++) {
      const bool sees = queries.start[r] < queries.stop[r] && logsumexp[r] != -INFINITY;
      const bool is_nonfinite = sees && !(logsumexp[r] < INFINITY);
      RowNormalizer normalizer = {0, is_nonfinite ? NAN : 0};
      if (sees && !is_nonfinite)
        normalizer =
            is_imprecise(logsumexp[r]) ? exact[r] : RowNormalizer{0, float(logsumexp[r] * LOG2_E)};
      peak[r] = normalizer.peak;
      log[r] = normalizer.log;
      nonfinite_lanes[r] = is_nonfinite ? -1 : 0;
    }
    ints found = {};
    for (int j = 0; j < queries.vectors; j++) {
      nonfinite[j] = load(nonfinite_lanes + j * LANES);
      found |= nonfinite[j];
    }
    any_nonfinite = any(found);
  }

  floats weights_of(floats scores, floats peak, floats log) const {
    return exp2((scores - peak) * factor - log);
  }
  floats peak_of(int j) const { return load(peak + j * LANES); }
  floats log_of(int j) const { return load(log + j * LANES); }
};

// The bounds of the blocks of visible keys. They depend on the keys only, so that the order of a
// row's sums does not depend on the other rows of the task.
REGARD_INLINE int32_t first_read_key(const QueryBlock &queries) {
  constexpr int32_t TOGETHER = 4;  // keys whose exponentials are summed first
  static_assert(READ_BLOCK % TOGETHER == 0);
  return queries.first_key / TOGETHER * TOGETHER;
}
REGARD_INLINE int32_t end_of_read_block(const QueryBlock &queries, int32_t key) {
  return min((key / READ_BLOCK + 1) * READ_BLOCK, queries.stop_key);
}

// Calls visit(first, last) for these blocks in order, from the one that begins at a key on.
template <class Visit>
REGARD_INLINE void for_each_read_block(const QueryBlock &queries, int32_t key, Visit visit) {
  for (int32_t end; key < queries.stop_key; key = end) {
    end = end_of_read_block(queries, key);
    visit(key, end);
  }
}

template <class Visit>
REGARD_INLINE void for_each_read_block(const QueryBlock &queries, Visit visit) {
  for_each_read_block(queries, first_read_key(queries), visit);
}

// The keys that all rows of a task see; since readouts process whole vectors, unused lanes count.
REGARD_INLINE KeyRange seen_by_all(const QueryBlock &queries) {
  ints fully_masked = {};
  for (int j = 0; j < queries.vectors; j++)
    fully_masked |= load(queries.start + j * LANES) >= load(queries.stop + j * LANES);
  return any(fully_masked) ? KeyRange{} : KeyRange{queries.common_start, queries.common_stop};
}

// Fills a block with scores, −∞ where hidden, and marks the lanes that saw a key.
template <class Arithmetic>
static void compute_scores(const Scoring &scoring, const ReadScratch &scratch, WeightBlock &block,
                           ints *seen, PackedInputs<Arithmetic> *packed = nullptr) {
  const regard_problem &p = block.p;
  const QueryBlock &queries = block.queries;
  Segment segments[MAX_SEGMENTS];
  const int32_t end = block.key + block.keys;
  const KeyRange common = seen_by_all(queries);
  const int count = split_into_segments(queries, block.key, end, common, segments);
  const bool whole = count == 1 && !segments[0].edge && segments[0].keys == block.keys;
  if (!whole)
    for (int64_t i = 0; i < int64_t(block.keys) * QUERIES; i += LANES)
      store(block.weights + i, broadcast(HIDDEN));

  for (int j = 0; j < VECTORS; j++) block.peak[j] = block.scaled[j] = broadcast(HIDDEN);
  constexpr int STEP = Arithmetic::STEP;
  const auto keys =
      packed ? packed->keys_of(queries, block.key, end, scratch.packed_keys)
             : Arithmetic::keys(p.key, queries, block.key, block.keys, p.dim, scratch.packed_keys);
  for (int n = 0; n < count; n++) {
    const Segment &segment = segments[n];
    floats computed[VECTORS];
    for (int j = 0; j < VECTORS; j++) computed[j] = block.peak[j];
    float *scores = block.weights + (segment.key - block.key) * QUERIES;
    with_live(segment.last - segment.first, [&](auto live) {
      score_rows<typename Arithmetic::Products, live>(
          keys.data + (segment.key - block.key) * keys.stride, keys.stride, segment.keys,
          (p.dim + STEP - 1) / STEP, scratch.query + segment.first * LANES,
          scores + segment.first * LANES, computed + segment.first);
    });
    if (scoring.adjusted)
      adjust_scores(p, queries, segment, scores, block.peak, seen, block.scaled);
    else if (segment.edge)
      apply_mask(p, scoring, queries, segment, scores, computed, block.peak);
    else
      for (int j = 0; j < VECTORS; j++) block.peak[j] = computed[j];
  }
}

// Sets the weights of hidden keys to 0, for rows whose weights are NaN.
static void zero_hidden(const Normalizers &normalizers, WeightBlock &block) {
  const regard_problem &p = block.p;
  for (int j = 0; j < block.queries.vectors; j++) {
    if (!any(normalizers.nonfinite[j])) continue;
    const ints start = load(block.queries.start + j * LANES),
               stop = load(block.queries.stop + j * LANES);
    for (int32_t first = 0; first < block.keys; first += LANES) {
      const int keys = min(LANES, block.keys - first);
      floats added[LANES];
      const bool changed = load_added(p, block.queries, j * LANES, block.key + first, keys, added);
      for (int k = 0; k < keys; k++) {
        float *at = block.weights + (first + k) * QUERIES + j * LANES;
        const ints key = broadcast(block.key + first + k);
        ints visible = (key >= start) & (key < stop);
        if (changed) visible &= added[k] != broadcast(HIDDEN);
        store(at, visible ? load(at) : floats{});
      }
    }
  }
}

// Converts scores to weights, and accumulates each row's Σ w·log₂ w.
template <int vectors, bool entropy>
static void exponentiate(const Normalizers &normalizers, WeightBlock &block) {
  const floats factor = broadcast(normalizers.factor);
  floats shift[vectors], sums[vectors];
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
    subtract(block.weights + j * LANES, block.keys, normalizers.peak_of(j));
    shift[j] = normalizers.log_of(j), sums[j] = floats{};
  }
  float *scores = block.weights;
  for (int32_t k = 0; k < block.keys; k++, scores += QUERIES) {
    floats weights[vectors];
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      __builtin_prefetch(scores + KEYS_AHEAD * QUERIES + j * LANES);
      const floats log = load(scores + j * LANES) * factor - shift[j];
      weights[j] = exp2(log);
      if (entropy) sums[j] += weights[j] * max(broadcast(-127.0f), log);
    }
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) store(scores + j * LANES, weights[j]);
  }
  if (entropy)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) block.entropy[j] = sums[j];
}

REGARD_INLINE void compute_weights(const Normalizers &normalizers, bool entropy,
                                   WeightBlock &block) {
  with_live(block.queries.vectors, [&](auto vectors) {
    if (entropy) return exponentiate<vectors, true>(normalizers, block);
    exponentiate<vectors, false>(normalizers, block);
  });
  if (normalizers.any_nonfinite) zero_hidden(normalizers, block);
}

}  // namespace regard::REGARD_SET
