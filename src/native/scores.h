// Logits from dot products: scale, softcap, bias, ALiBi and mask.
//
// A row's weights are 2^(factor · score − shift) divided by their sum. The shift, the product of
// peak (running maximum) and factor, makes the largest of them close to 1. Its rounding error is
// the same for all weights of the row and for their sum, so it cancels.
#pragma once

#include <math.h>

#include "spans.h"

namespace regard::REGARD_SET {

// Keeps the dot product of a logit, and the term of a span in its units, within float32.
constexpr double MIN_SCALE = 0x1p-100, MAX_ADDED = 0x1p100;

// How logits are computed. Without softcap, bias and the like, scores are dot products, and the
// scale is applied in the exponential.
struct Scoring {
  bool adjusted;       // dot products are adjusted in a separate pass, after which unit is 1
  float query_factor;  // factor of the query, exact in every dtype, that makes the unit positive
  float factor;        // a score of 1 in units of log 2
  double unit;         // a score of 1 in natural units
};

REGARD_INLINE Scoring scoring_of(const regard_problem &p) {
  const double size = fabs(p.scale);
  bool adjusted =
      p.softcap > 0 || p.bias.data || p.allowed.data || p.alibi.data || size < MIN_SCALE;
  for (int64_t n = 0; n < p.spans.count; n++)
    adjusted |= p.spans.added[n] != HIDDEN && fabs(p.spans.added[n]) > MAX_ADDED * size;
  const double unit = adjusted ? 1 : size;
  return {adjusted, !adjusted && p.scale < 0 ? -1.0f : 1.0f, float(unit * LOG2_E), unit};
}

// The terms subtracted from a row's scores before and after the multiplication by the factor. If
// the product is so large that its rounding could make powers of 2 overflow, the peak is subtracted
// before: the difference is exact for scores of nonzero weight.
struct Shift {
  floats before, after;
};
#if defined(__FMA__) || defined(__aarch64__)
constexpr float MAX_SHIFT = 0x1p20f;
#else  // without FMA the product with each score is rounded too, differently from the peak's
constexpr float MAX_SHIFT = 0x1p5f;
#endif

// Both are 0 if there is no peak yet, so that −∞ stays −∞.
REGARD_INLINE Shift shift_of(floats peak, floats factor) {
  const floats product = peak * factor;
  const ints large = ~(abs(product) < broadcast(MAX_SHIFT));
  return {large & (peak != broadcast(HIDDEN)) ? peak : floats{}, large ? floats{} : product};
}

// Subtracts the first term from scores (keys, QUERIES); it is hardly ever other than 0.
REGARD_INLINE void subtract(float *scores, int32_t keys, floats before) {
  if (!any(before != floats{})) return;
  for (int32_t k = 0; k < keys; k++, scores += QUERIES) store(scores, load(scores) - before);
}

// The shift of each lane in natural units.
REGARD_INLINE void find_levels(const Shift &shift, const Scoring &scoring, double *level) {
  alignas(64) float before[LANES], after[LANES];
  store(before, shift.before);
  store(after, shift.after);
  const double factor = scoring.factor, ratio = scoring.unit / scoring.factor;
  for (int i = 0; i < LANES; i++) level[i] = (before[i] * factor + after[i]) * ratio;
}

// Consecutive keys, and the vectors of which some lane may see one of them.
struct Segment {
  int32_t key, keys;
  int first, last;  // vectors [first, last)
  bool edge;        // some row does not see some key, or spans touch its block
};

// Whether all lanes of a vector see all keys of a segment.
REGARD_INLINE bool sees_all(const QueryBlock &queries, const Segment &segment, int j) {
  return queries.vector_common_start[j] <= segment.key &&
         segment.key + segment.keys <= queries.vector_common_stop[j] &&
         !touched_by_spans(queries, segment.key, segment.key + segment.keys);
}

// Applies spans and hides the keys outside each row's interval. `computed` has the peaks over all
// keys, hidden or not.
[[maybe_unused]] static void apply_mask(const regard_problem &p, const Scoring &scoring,
                                        const QueryBlock &queries, const Segment &segment,
                                        float *scores, const floats *computed, floats *peak) {
  for (int j = segment.first; j < segment.last; j++) {
    if (sees_all(queries, segment, j)) {
      peak[j] = computed[j];
      continue;
    }
    apply_spans(p, queries, scoring.unit, j, segment.key, segment.keys, scores + j * LANES,
                QUERIES);
    const ints start = load(queries.start + j * LANES), stop = load(queries.stop + j * LANES);
    const uints count = (uints)max(stop - start, ints{});
    uints after_start = (uints)(broadcast(segment.key) - start);  // wraps for keys before it
    floats highest = peak[j];
    float *at = scores + j * LANES;
    for (int32_t k = 0; k < segment.keys; k++, at += QUERIES, after_start += 1) {
      const floats score = after_start < count ? load(at) : broadcast(HIDDEN);
      store(at, score);
      highest = max(highest, score);
    }
    peak[j] = highest;
  }
}

// The terms added to the scores of LANES rows and up to LANES keys, −∞ where a key is hidden:
// added[k] has those of key k. Returns false, without writing, if nothing is added.
static bool load_added(const regard_problem &p, const QueryBlock &queries, int first_row,
                       int32_t first_key, int keys, floats *added) {
  const bool touched = touched_by_spans(queries, first_key, first_key + keys);
  if (!touched && !p.bias.data && !p.allowed.data) return false;
  for (int i = 0; i < LANES; i++) {
    const int r = first_row + i;
    alignas(64) float row[LANES] = {};
    if (r < queries.count && p.bias.data) {
      const regard_matrix &m = p.bias;
      const float *bias = (const float *)m.data + queries.batch * m.batch +
                          queries.head[r] * m.head + queries.query[r] * m.row +
                          first_key * m.column;
      for (int k = 0; k < keys; k++) row[k] = bias[k * m.column];
    }
    if (r < queries.count && p.allowed.data) {
      const regard_matrix &m = p.allowed;
      const uint8_t *allowed = (const uint8_t *)m.data + queries.batch * m.batch +
                               queries.head[r] * m.head + queries.query[r] * m.row +
                               first_key * m.column;
      for (int k = 0; k < keys; k++) row[k] = allowed[k * m.column] ? row[k] : HIDDEN;
    }
    added[i] = load(row);
  }
  transpose(added);
  apply_spans(p, queries, 1, first_row / LANES, first_key, keys, (float *)added, LANES);
  return true;
}

REGARD_INLINE floats numbers_of(const regard_numbers &numbers, const QueryBlock &queries,
                                int first_row) {
  alignas(64) float lanes[LANES] = {};
  for (int i = 0; i < LANES && first_row + i < queries.count; i++)
    lanes[i] =
        numbers.data[queries.batch * numbers.batch + queries.head[first_row + i] * numbers.head];
  return load(lanes);
}

// All steps between dot product and softmax; `seen` marks the lanes that saw a key, and `scaled`,
// if it is wanted, has the maxima of the scaled scores.
[[maybe_unused]] static void adjust_scores(const regard_problem &p, const QueryBlock &queries,
                                           const Segment &segment, float *scores, floats *peak,
                                           ints *seen, floats *scaled = nullptr) {
  const float scale = float(p.scale), cap = float(p.softcap);
  for (int j = segment.first; j < segment.last; j++) {
    const ints start = load(queries.start + j * LANES), stop = load(queries.stop + j * LANES);
    const ints position = load(queries.position + j * LANES);
    const floats slope = p.alibi.data ? numbers_of(p.alibi, queries, j * LANES) : floats{};
    for (int32_t first = 0; first < segment.keys; first += LANES) {
      const int keys = min(LANES, segment.keys - first);
      floats added[LANES];
      const bool changed = load_added(p, queries, j * LANES, segment.key + first, keys, added);
      for (int k = 0; k < keys; k++) {
        float *at = scores + (first + k) * QUERIES + j * LANES;
        const ints key = broadcast(segment.key + first + k);
        ints visible = (key >= start) & (key < stop);
        const floats product = load(at) * scale;
        floats score = product;
        if (cap > 0) score = tanh(score / cap) * cap;
        if (changed) {
          visible &= added[k] != broadcast(HIDDEN);
          score += added[k];
        }
        if (p.alibi.data) {
          const ints after = key - position, before = position - key;
          score -= slope * __builtin_convertvector(after > before ? after : before, floats);
        }
        score = visible ? score : broadcast(HIDDEN);
        store(at, score);
        peak[j] = max(peak[j], score);
        seen[j] |= visible;
        if (scaled) scaled[j] = max(scaled[j], visible ? product : broadcast(HIDDEN));
      }
    }
  }
}

}  // namespace regard::REGARD_SET
