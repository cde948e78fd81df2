// Scores that are stored until the log-sum-exps of their rows are known.
//
// Weights from stored scores are bitwise equal to those from recomputed scores, and save the second
// product.
#pragma once

#include "weights.h"

namespace regard::REGARD_SET {

// The scores of the first keys of a block of queries, at most 16 MiB per thread. Those of further
// keys are recomputed.
struct KeptScores {
  static constexpr int32_t MAX_KEYS = 65536 / READ_BLOCK * READ_BLOCK;

  float *data = nullptr;        // (keys, QUERIES), −∞ where hidden
  int32_t first = 0, stop = 0;  // keys [first, stop), at the bounds of blocks to be read

  static size_t size(const regard_problem &p) {
    const int64_t keys = min(p.keys + READ_BLOCK, int64_t(MAX_KEYS));
    return aligned(size_t(keys * QUERIES + LANES) * sizeof(float));  // as of ReadScratch's scores
  }

  KeptScores() = default;
  KeptScores(const QueryBlock &queries, void *memory) : data((float *)memory) {
    if (queries.first_key >= queries.stop_key) return;
    first = queries.first_key / READ_BLOCK * READ_BLOCK;
    stop = min(first + MAX_KEYS, queries.stop_key);
  }

  bool holds(int32_t key, int32_t end) const { return key >= first && end <= stop; }
  float *of(int32_t key) const { return data + int64_t(key - first) * QUERIES; }
};

// Stores the scores of the forward pass, block by block; see `forward_block`.
struct KeepScores {
  const QueryBlock &queries;
  const KeptScores &kept;
  ints sees[VECTORS];  // lanes that see a key: the forward pass leaves the others' scores unmasked

  KeepScores(const QueryBlock &rows, const KeptScores &to) : queries(rows), kept(to) {
    for (int j = 0; j < VECTORS; j++)
      sees[j] = load(rows.start + j * LANES) < load(rows.stop + j * LANES);
    hide(kept.first, rows.first_key);
  }

  void operator()(const KeyBlock &block, const float *scores) const {
    int32_t key = block.first;
    for (int n = 0; n < block.count && key < kept.stop; n++) {
      const Segment &segment = block.segments[n];
      hide(key, segment.key);
      key = segment.key + segment.keys;
      copy(segment, scores + int64_t(segment.key - block.first) * QUERIES);
    }
    hide(key, block.last);
  }

  void copy(const Segment &segment, const float *scores) const {
    const int32_t end = min(segment.key + segment.keys, kept.stop);
    for (int32_t k = segment.key; k < end; k++, scores += QUERIES) {
      float *to = kept.of(k);
      for (int j = 0; j < queries.vectors; j++) {
        const bool computed = j >= segment.first && j < segment.last;
        const floats score = computed ? load(scores + j * LANES) : broadcast(HIDDEN);
        store(to + j * LANES, sees[j] ? score : broadcast(HIDDEN));
      }
    }
  }

  void hide(int32_t first, int32_t last) const {
    last = min(last, kept.stop);
    for (int32_t k = first; k < last; k++)
      for (int j = 0; j < queries.vectors; j++) store(kept.of(k) + j * LANES, broadcast(HIDDEN));
  }
};

// Makes a block from stored scores, with the other results of `compute_scores`.
static void take_kept(const KeptScores &kept, bool peaks, WeightBlock &block) {
  block.weights = kept.of(block.key);
  for (int j = 0; j < block.queries.vectors && peaks; j++) {
    floats peak = broadcast(HIDDEN);
    for (int32_t k = 0; k < block.keys; k++)
      peak = max(peak, load(block.weights + k * QUERIES + j * LANES));
    block.peak[j] = block.scaled[j] = peak;
  }
}

}  // namespace regard::REGARD_SET
