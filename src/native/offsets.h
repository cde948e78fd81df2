// The readout of mean weight by offset: sums along the diagonals of the pattern.
//
// In a block with queries in the lanes, the weights of one key are on LANES adjacent diagonals. So
// a vector is added to a range of sums, which moves by one from key to key.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

// Sums: the weight on each diagonal, then how many more rows see its key than the diagonal before.
struct Offsets : Readout {
  static constexpr bool of_whole_blocks = true;

  static int64_t width(const regard_readout &request) { return request.size + 1; }

  // LANES sums on either side are for diagonals outside the request; ranges of keys follow.
  static int64_t diagonals(const regard_readout &request) {
    return padded(request.size) + 3 * LANES;
  }
  static size_t memory(const regard_problem &p, const regard_readout &request) {
    return size_t(diagonals(request)) * sizeof(float) + size_t(p.spans.count) * sizeof(KeyRange);
  }
  static int64_t sums(const regard_problem &, const regard_readout &request) {
    return 2 * width(request);
  }

  // Whether the rows are of one head and have consecutive positions.
  static bool in_order(const ReadoutState &at, const QueryBlock &queries) {
    for (int r = 1; r < queries.count; r++)
      if (queries.position[r] != queries.position[0] + r) return false;
    return at.rows.heads == 1;
  }

  static void begin(const ReadoutState &at, const QueryBlock &queries) {
    memset(at.memory, 0, memory(at.p, at.request));
    for (int r = 0; r < queries.count; r++) count(at, queries, r);
  }

  static void count(const ReadoutState &at, const QueryBlock &queries, int r) {
    KeyRange *hidden = (KeyRange *)(at.kept<float>() + diagonals(at.request));
    for_each_visible_range(at.p, queries, r, hidden,
                           [&](KeyRange keys) { count_keys(at, queries, r, keys); });
  }

  // Counts the keys of a range without hidden keys.
  static void count_keys(const ReadoutState &at, const QueryBlock &queries, int r, KeyRange keys) {
    double *counts = at.sums_of(queries.head[r]) + width(at.request);
    const int64_t n = at.request.size, position = queries.position[r];
    const int64_t low = max(int64_t(0), position - keys.stop + 1);
    const int64_t high = min(n, position - keys.start + 1);
    if (low >= high) return;
    if (!at.p.allowed.data && !at.p.bias.data) {
      counts[low] += 1;
      counts[high] -= 1;
      return;
    }
    for (int64_t back = low; back < high; back++) {
      const bool sees = visible(at.p, queries, r, position - back);
      counts[back] += sees;
      counts[back + 1] -= sees;
    }
  }

  static bool looks_at(const ReadoutState &at, const QueryBlock &queries, int32_t first,
                       int32_t last) {
    const int64_t n = at.request.size;
    return any_of(queries.position, queries.position + queries.count,
                  [&](int32_t position) { return first <= position && last > position - n + 1; });
  }

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    if (!in_order(at, block.queries)) return add_one_by_one(at, block);
    // Lane 0 of vector j and key k are position + j·LANES − k tokens apart. The iteration steps
    // over keys LANES apart, so that no sum is loaded right after it was stored.
    float *diagonals = at.kept<float>() + LANES;
    const int64_t apart = block.queries.position[0] - block.key;
    for (int j = 0; j < block.queries.vectors; j++) {
      const int64_t back = apart + j * LANES;  // for the block's first key
      const int32_t from = int32_t(max(int64_t(0), back - at.request.size + 1));
      const int32_t to = int32_t(min(int64_t(block.keys), back + LANES));
      for (int32_t phase = from; phase < min(from + LANES, to); phase++)
        for (int32_t k = phase; k < to; k += LANES) {
          float *at_lane = diagonals + back - k;
          store(at_lane, load(at_lane) + load(block.weights + k * QUERIES + j * LANES));
        }
    }
  }

  static void add_one_by_one(const ReadoutState &at, const WeightBlock &block) {
    const QueryBlock &queries = block.queries;
    for (int r = 0; r < queries.count; r++) {
      const int64_t apart = int64_t(queries.position[r]) - block.key;
      double *sums = at.sums_of(queries.head[r]);
      const int64_t from = max(int64_t(0), apart - at.request.size + 1);
      const int64_t to = min(int64_t(block.keys), apart + 1);
      for (int64_t k = from; k < to; k++) sums[apart - k] += block.weights[k * QUERIES + r];
    }
  }

  static void end(const ReadoutState &at, const QueryBlock &, const Normalizers &) {
    const float *diagonals = at.kept<float>() + LANES;
    for (int64_t back = 0; back < at.request.size; back++) at.sums[back] += diagonals[back];
  }

  static void finish(const regard_problem &, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    const double *weights = sums.total(2 * width(request)), *counts = weights + width(request);
    double rows = 0;
    for (int64_t back = 0; back < request.size; back++) {
      rows += counts[back];
      request.result[head * request.size + back] = float(weights[back] / max(rows, 1.0));
    }
  }
};

}  // namespace regard::REGARD_SET
