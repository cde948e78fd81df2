// The readout of the keys of largest weight of each row.
//
// Each row has a sorted list of its k best keys so far. After a few dozen keys, scores that beat
// the last of them are rare: most keys cost one comparison for LANES rows. The scores that do are
// first collected and then inserted into the lists, which leaves few branches to be mispredicted.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

// Appends the indices of the lanes whose score is above the threshold; returns the list's end.
REGARD_INLINE int32_t *append_above(floats score, floats threshold, int32_t first, int32_t *list) {
#if defined(__AVX512F__)
  const __mmask16 above = _mm512_cmp_ps_mask(score, threshold, _CMP_GT_OQ);
  const ints numbers = lane_numbers() + first;
  store(list, (ints)_mm512_maskz_compress_epi32(above, (__m512i)numbers));
  return list + __builtin_popcount(above);
#else
  const ints above = score > threshold;
  if (!any(above)) return list;
  for (int i = 0; i < LANES; i++) {
    *list = first + i;
    list += above[i] & 1;
  }
  return list;
#endif
}

// Whether a key's score is above the threshold of some row.
template <int vectors>
REGARD_INLINE bool any_above(const float *scores, const floats (&thresholds)[vectors]) {
#if defined(__AVX512F__)
  __mmask16 above = 0;
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
    above |= _mm512_cmp_ps_mask(load(scores + j * LANES), thresholds[j], _CMP_GT_OQ);
  return above;
#else
  ints above = {};
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
    above |= load(scores + j * LANES) > thresholds[j];
  return any(above);
#endif
}

// The number of rows whose score of a key is above their threshold.
template <int vectors>
REGARD_INLINE int rows_above(const float *scores, const floats (&thresholds)[vectors]) {
  ints above = {};
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
    above -= load(scores + j * LANES) > thresholds[j];
  int rows = 0;
  for (int i = 0; i < LANES; i++) rows += above[i];
  return rows;
}

struct Top : Readout {
  static constexpr bool of_weights = false;

  // The lists of QUERIES rows, `width` apart, so that moving a row's entries up uses vectors of
  // this row only, without stalls on those of others. Entry 0 is +∞, a sentinel.
  struct Lists {
    int64_t k, width;
    float *thresholds;  // the last score of each row's list
    float *scores;
    int32_t *keys;
    int32_t *candidates;  // scores of a block that may enter a list

    Lists(const regard_readout &request, char *memory) {
      k = request.size;
      width = width_of(k);
      thresholds = (float *)memory;
      scores = thresholds + QUERIES;
      keys = (int32_t *)(scores + QUERIES * width);
      candidates = keys + QUERIES * width;
    }
    static size_t size(int64_t k) {
      return size_t(2 * QUERIES * width_of(k) + QUERIES * (READ_BLOCK + 1) + LANES) * sizeof(float);
    }
    static int64_t width_of(int64_t k) { return padded(k) + LANES; }
    float *scores_of(int r) const { return scores + r * width + 1; }
    int32_t *keys_of(int r) const { return keys + r * width + 1; }

    // A score that beats none is a no-op. The order is stable: of equal scores the lower key is
    // first.
    void insert(int r, float score, int32_t key) const {
      float *own = scores_of(r);
      int32_t *own_keys = keys_of(r);
      int64_t t = (k - 1) / LANES * LANES;
      do {
        const floats old = load(own + t), before = load(own + t - 1);
        const ints old_key = load(own_keys + t), key_before = load(own_keys + t - 1);
        const ints moves = broadcast(score) > old, moves_on = broadcast(score) > before;
        store(own + t, moves ? (moves_on ? before : broadcast(score)) : old);
        store(own_keys + t, moves ? (moves_on ? key_before : broadcast(key)) : old_key);
        t -= LANES;
      } while (t >= 0 && score > own[t + LANES - 1]);
      thresholds[r] = own[k - 1];
    }
  };

  static size_t memory(const regard_problem &, const regard_readout &request) {
    return Lists::size(request.size);
  }

  static void begin(const ReadoutState &at, const QueryBlock &) { clear(at, HIDDEN); }
  static void clear(const ReadoutState &at, float least) {
    const Lists lists(at.request, at.memory);
    for (int j = 0; j < VECTORS; j++) store(lists.thresholds + j * LANES, broadcast(least));
    for (int64_t i = 0; i < QUERIES * lists.width; i += LANES) {
      store(lists.scores + i, broadcast(least));
      store(lists.keys + i, broadcast(-1));
    }
    for (int r = 0; r < QUERIES; r++) lists.scores[r * lists.width] = INFINITY;
  }

  // Lists the scores of some keys that are above their rows' thresholds.
  template <int vectors>
  REGARD_INLINE int32_t *gather(const WeightBlock &block, int32_t first, int32_t keys,
                                const floats (&thresholds)[vectors], int32_t *list) {
    for (int32_t i = first * QUERIES; i < (first + keys) * QUERIES; i += QUERIES) {
      const float *scores = block.weights + i;
      if (!any_above<vectors>(scores, thresholds)) continue;
      REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
        list = append_above(load(scores + j * LANES), thresholds[j], i + j * LANES, list);
    }
    return list;
  }

  // Raises thresholds such that at least k scores of these keys remain above them: the keys are
  // divided into k sets, and the minimum of the sets' maxima is a lower bound of k scores.
  template <int vectors>
  REGARD_INLINE void raise(const WeightBlock &block, int32_t first, int32_t keys, int32_t k,
                           floats (&thresholds)[vectors]) {
    for (int j = 0; j < vectors; j++) {
      const float *scores = block.weights + first * QUERIES + j * LANES;
      floats largest[READ_BLOCK];
      for (int32_t i = 0; i < k; i++, scores += QUERIES) largest[i] = load(scores);
      for (int32_t i = k, set = 0; i < keys;
           i++, scores += QUERIES, set = set + 1 < k ? set + 1 : 0)
        largest[set] = max(largest[set], load(scores));
      floats least = largest[0];
      for (int32_t i = 1; i < k; i++) least = min(least, largest[i]);
      const floats below = least - abs(least) * 0x1p-20f - 0x1p-125f;
      thresholds[j] = max(below, thresholds[j]);
    }
  }

  // `name(candidate, key)` is what the key is listed as.
  template <int vectors, class Name>
  REGARD_INLINE void find(const Lists &lists, const WeightBlock &block, Name name) {
    for (int32_t first = 0, keys; first < block.keys; first += keys) {
      // Thresholds rise fast at first and are reloaded often, later once per block.
      const int32_t past = block.key + first - block.queries.first_key;
      keys = min(max(past / 8, 8), block.keys - first);
      floats thresholds[vectors];
      REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
        thresholds[j] = load(lists.thresholds + j * LANES);
      // If scores increase from key to key, as with ALiBi, each would enter a list and soon leave
      // it. With fewer keys, many sets would have a single one.
      const float *last = block.weights + (first + keys - 1) * QUERIES;
      if (keys >= 2 * lists.k && 2 * rows_above<vectors>(last, thresholds) > block.queries.count)
        raise<vectors>(block, first, keys, int32_t(lists.k), thresholds);
      const int32_t *end = gather<vectors>(block, first, keys, thresholds, lists.candidates);
      for (const int32_t *candidate = lists.candidates; candidate < end; candidate++)
        lists.insert(*candidate % QUERIES, block.weights[*candidate],
                     name(*candidate, block.key + *candidate / QUERIES));
    }
  }
  static void scores(const ReadoutState &at, const WeightBlock &block) {
    const Lists lists(at.request, at.memory);
    with_live(block.queries.vectors, [&](auto vectors) {
      find<vectors>(lists, block, [](int32_t, int32_t key) { return key; });
    });
  }

  // Keys whose score is not above `least`, or NaN, enter no list: those that are visible are last,
  // or in order if the row is NaN.
  static void complete(const ReadoutState &at, const QueryBlock &queries, const Lists &lists, int r,
                       bool nonfinite, float least) {
    float *scores = lists.scores_of(r);
    int32_t *keys = lists.keys_of(r);
    int64_t found = 0;
    while (!nonfinite && found < lists.k && keys[found] != -1) found++;
    const int64_t ranked = found;
    for (int32_t key = queries.start[r]; key < queries.stop[r] && found < lists.k; key++) {
      bool known = !visible(at.p, queries, r, key);
      for (int64_t t = 0; t < ranked; t++) known |= keys[t] == key || keys[t] == negative(key);
      if (known) continue;
      scores[found] = nonfinite ? NAN : least;
      keys[found++] = key;
    }
  }

  // What a key is listed as whose entry is negative; see Largest.
  REGARD_INLINE int32_t negative(int32_t key) { return -2 - key; }

  static void end(const ReadoutState &at, const QueryBlock &queries,
                  const Normalizers &normalizers) {
    const Lists lists(at.request, at.memory);
    for (int r = 0; r < queries.count; r++) {
      const bool nonfinite = normalizers.nonfinite[r / LANES][r % LANES];
      const float *scores = lists.scores_of(r);
      const int32_t *keys = lists.keys_of(r);
      if (nonfinite || keys[lists.k - 1] < 0) complete(at, queries, lists, r, nonfinite, HIDDEN);
      float *weight = at.request.result + row_number(at.p, queries, r) * lists.k;
      int64_t *position = at.request.positions + row_number(at.p, queries, r) * lists.k;
      const floats peak = broadcast(normalizers.peak[r]), rest = broadcast(normalizers.log[r]);
      for (int64_t t = 0; t < lists.k; t += LANES)
        narrow_part(Float32(), weight + t, normalizers.weights_of(load(scores + t), peak, rest),
                    lists.k - t);
      for (int64_t t = 0; t < lists.k; t++) position[t] = keys[t];
      if (nonfinite)  // missing keys have weight 0
        for (int64_t t = 0; t < lists.k; t++) weight[t] = keys[t] < 0 ? 0 : weight[t];
    }
  }
};

// The keys whose entries, weights times factors, have the largest magnitude. Entries of 0 enter no
// list, so that those of hidden keys do not.
struct Largest : Top {
  static constexpr bool of_weights = true;

  static size_t memory(const regard_problem &, const regard_readout &request) {
    return aligned(Lists::size(request.size)) + READ_BLOCK * QUERIES * sizeof(float);
  }
  static void begin(const ReadoutState &at, const QueryBlock &) { clear(at, 0); }
  static void scores(const ReadoutState &, const WeightBlock &) {}
  static void weights(const ReadoutState &at, const WeightBlock &block) {
    WeightBlock magnitudes = block;
    magnitudes.weights = (float *)(at.memory + aligned(Lists::size(at.request.size)));
    const Lists lists(at.request, at.memory);
    with_live(block.queries.vectors, [&](auto vectors) {
      for (int64_t i = 0; i < int64_t(block.keys) * QUERIES; i += QUERIES)
        REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
          store(magnitudes.weights + i + j * LANES, abs(load(block.weights + i + j * LANES)));
      find<vectors>(lists, magnitudes, [&](int32_t candidate, int32_t key) {
        return block.weights[candidate] < 0 ? negative(key) : key;
      });
    });
  }

  static void end(const ReadoutState &at, const QueryBlock &queries,
                  const Normalizers &normalizers) {
    const Lists lists(at.request, at.memory);
    for (int r = 0; r < queries.count; r++) {
      const bool nonfinite = normalizers.nonfinite[r / LANES][r % LANES];
      const float *magnitudes = lists.scores_of(r);
      const int32_t *keys = lists.keys_of(r);
      if (nonfinite || keys[lists.k - 1] == -1) complete(at, queries, lists, r, nonfinite, 0);
      float *entry = at.request.result + row_number(at.p, queries, r) * lists.k;
      int64_t *position = at.request.positions + row_number(at.p, queries, r) * lists.k;
      for (int64_t t = 0; t < lists.k; t++) {
        const bool is_negative = keys[t] < -1;
        entry[t] = keys[t] == -1 ? 0 : is_negative ? -magnitudes[t] : magnitudes[t];
        position[t] = is_negative ? negative(keys[t]) : keys[t];
      }
    }
  }
};

}  // namespace regard::REGARD_SET
