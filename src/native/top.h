// The strongest keys of each row.
//
// Each row keeps a list of its k best so far, in order. A score that beats the last of them is rare
// once a few dozen keys are past; finding out is a comparison for LANES rows at a time.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

REGARD_INLINE uint64_t bits(ints truth) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)truth);
#elif defined(__AVX2__)
  return uint64_t(_mm256_movemask_ps((__m256)truth));
#elif defined(__SSE2__)
  return uint64_t(_mm_movemask_ps((__m128)truth));
#else
  uint64_t found = 0;
  REGARD_UNROLL for (int i = 0; i < LANES; i++) found |= uint64_t(truth[i] & 1) << i;
  return found;
#endif
}

struct Top : Readout {
  // The lists of QUERIES rows, `width` apart. Entry 0 is +∞, which nothing beats: entries can be
  // moved up by vectors that reach over their row's end, since they leave the next row's as it is.
  struct Lists {
    int64_t k, width;
    float *thresholds;  // the last of each row
    float *scores;
    int32_t *keys;

    Lists(const regard_readout &asked, char *memory) {
      k = asked.size;
      width = padded(k + 1);
      thresholds = (float *)memory;
      scores = thresholds + QUERIES;
      keys = (int32_t *)(scores + QUERIES * width + LANES);
    }
    static size_t size(int64_t k) {
      return size_t(QUERIES + 2 * (QUERIES * padded(k + 1) + LANES)) * sizeof(float);
    }
    float *scores_of(int r) const { return scores + r * width + 1; }
    int32_t *keys_of(int r) const { return keys + r * width + 1; }

    // Equals keep the order in which they come: of two equal scores the lower key's is first.
    void insert(int r, float score, int32_t key) const {
      float *own = scores_of(r);
      int32_t *own_keys = keys_of(r);
      for (int64_t t = (k - 1) / LANES * LANES; t >= 0; t -= LANES) {
        const floats old = load(own + t), before = load(own + t - 1);
        const ints old_key = load(own_keys + t), key_before = load(own_keys + t - 1);
        const ints moves = all(score) > old, moves_on = all(score) > before;
        store(own + t, moves ? (moves_on ? before : all(score)) : old);
        store(own_keys + t, moves ? (moves_on ? key_before : all(key)) : old_key);
      }
      thresholds[r] = own[k - 1];
    }
  };

  static size_t memory(const regard_problem &, const regard_readout &asked) {
    return Lists::size(asked.size);
  }

  static void begin(const At &at, const Task &) {
    const Lists lists(at.asked, at.memory);
    for (int j = 0; j < VECTORS; j++) store(lists.thresholds + j * LANES, all(HIDDEN));
    for (int64_t i = 0; i < QUERIES * lists.width + LANES; i += LANES) {
      store(lists.scores + i, all(HIDDEN));
      store(lists.keys + i, all(-1));
    }
    for (int r = 0; r <= QUERIES; r++) lists.scores[r * lists.width] = INFINITY;
  }

  template <int vectors>
  REGARD_INLINE void find(const Lists &lists, const Block &block) {
    constexpr int STRIDE = 8;  // keys between one look at the thresholds and the next
    for (int32_t first = 0; first < block.keys; first += STRIDE) {
      floats threshold[vectors];
      REGARD_UNROLL for (int j = 0; j < vectors; j++)
        threshold[j] = load(lists.thresholds + j * LANES);
      for (int32_t k = first; k < least(first + STRIDE, block.keys); k++) {
        const float *scores = block.weights + k * QUERIES;
        uint64_t better = 0;
        REGARD_UNROLL for (int j = 0; j < vectors; j++)
          better |= bits(load(scores + j * LANES) > threshold[j]) << (j * LANES);
        for (; better; better &= better - 1) {
          const int r = __builtin_ctzll(better);
          if (scores[r] > lists.thresholds[r]) lists.insert(r, scores[r], block.key + k);
        }
      }
    }
  }
  static void scores(const At &at, const Block &block) {
    const Lists lists(at.asked, at.memory);
    with_live(block.task.vectors, [&](auto vectors) { find<vectors>(lists, block); });
  }

  // A visible score of −∞ has beaten nothing, and neither has one that is no number; their keys
  // come last, or where the row is no number, as the first that are visible.
  static void complete(const At &at, const Task &task, const Lists &lists, int r, bool stray) {
    float *scores = lists.scores_of(r);
    int32_t *keys = lists.keys_of(r);
    int64_t found = 0;
    while (!stray && found < lists.k && keys[found] >= 0) found++;
    const int64_t ranked = found;
    for (int32_t key = task.start[r]; key < task.stop[r] && found < lists.k; key++) {
      bool known = !visible(at.p, task, r, key);
      for (int64_t t = 0; t < ranked; t++) known |= keys[t] == key;
      if (known) continue;
      scores[found] = stray ? NAN : HIDDEN;
      keys[found++] = key;
    }
  }

  static void end(const At &at, const Task &task, const Norms &norms) {
    const Lists lists(at.asked, at.memory);
    for (int r = 0; r < task.count; r++) {
      const bool stray = norms.stray[r / LANES][r % LANES];
      const float *scores = lists.scores_of(r);
      const int32_t *keys = lists.keys_of(r);
      if (stray || keys[lists.k - 1] < 0) complete(at, task, lists, r, stray);
      float *weight = at.asked.result + row_number(at.p, task, r) * lists.k;
      int64_t *position = at.asked.positions + row_number(at.p, task, r) * lists.k;
      const floats shift = all(norms.shift[r / LANES][r % LANES]);
      for (int64_t t = 0; t < lists.k; t += LANES)
        narrow_part(Float32(), weight + t, exp2(load(scores + t) * norms.factor - shift),
                    lists.k - t);
      for (int64_t t = 0; t < lists.k; t++) position[t] = keys[t];
      if (stray)  // what is not there weighs nothing
        for (int64_t t = 0; t < lists.k; t++) weight[t] = keys[t] < 0 ? 0 : weight[t];
    }
  }
};

}  // namespace regard::REGARD_SET
