// From dot products to logits: scale, softcap, bias, ALiBi and mask.
//
// A row's weights are 2^(factor · score − shift) over their sum, with a shift that leaves the
// largest near 1: the product of the peak and the factor. What rounding takes from it is the same
// for all weights of the row, and their sum knows of it.
#pragma once

#include <math.h>

#include "lanes.h"

namespace regard::REGARD_SET {

constexpr float HIDDEN = -INFINITY;       // the logit of a hidden key: its weight is exactly 0
constexpr double LEAST_SCALE = 0x1p-100;  // so that a logit's dot product stays within float32

// How a problem's logits are made. Without softcap and the like the scores are dot products, and
// the scale is left to the exponential.
struct Scoring {
  bool adjusted;       // each block of dot products takes a pass of its own, after which unit is 1
  float query_factor;  // on the query, exact in every dtype: it makes the unit positive
  float factor;        // a score of 1 in units of log 2
  double unit;         // a score of 1 in natural units
};

REGARD_INLINE Scoring scoring_of(const regard_problem &p) {
  const double size = fabs(p.scale);
  const bool adjusted =
      p.softcap > 0 || p.bias.data || p.allowed.data || p.alibi.data || size < LEAST_SCALE;
  const double unit = adjusted ? 1 : size;
  return {adjusted, !adjusted && p.scale < 0 ? -1.0f : 1.0f, float(unit * LOG2_E), unit};
}

// What is subtracted from a row's scores before they are multiplied by the factor, and after. Where
// the product is so large that its rounding could make powers of 2 overflow, the peak is subtracted
// itself: between scores that weigh anything the difference is exact.
struct Shift {
  floats before, after;
};
#if defined(__FMA__) || defined(__aarch64__)
constexpr float LARGEST_SHIFT = 0x1p20f;
#else  // the product with each score is rounded too, and not as the peak's
constexpr float LARGEST_SHIFT = 0x1p5f;
#endif

// Both are 0 where there is no peak yet, so that −∞ stays −∞.
REGARD_INLINE Shift shift_of(floats peak, floats factor) {
  const floats product = peak * factor;
  const ints large = ~(magnitude(product) < all(LARGEST_SHIFT));
  return {large & (peak != all(HIDDEN)) ? peak : floats{}, large ? floats{} : product};
}

// Subtracts what comes before the factor from scores (keys, QUERIES), which hardly ever is
// anything.
REGARD_INLINE void subtract(float *scores, int32_t keys, floats before) {
  if (!any(before != floats{})) return;
  for (int32_t k = 0; k < keys; k++, scores += QUERIES) store(scores, load(scores) - before);
}

// The shift of a lane in natural units.
REGARD_INLINE double level_of(const Shift &shift, int lane, const Scoring &scoring) {
  const double power = double(shift.before[lane]) * scoring.factor + shift.after[lane];
  return power * (scoring.unit / scoring.factor);
}

// Keys from start up to stop.
struct Span {
  int32_t start = 0, stop = 0;
};

// A run of consecutive keys and the vectors of which some lane may see one of them.
struct Run {
  int32_t key, keys;
  int first, last;  // vectors [first, last)
  bool edge;        // not every row sees every key
};

// Hides what a row's interval leaves out.
static void hide(const Task &task, const Run &run, float *scores, floats *peak) {
  for (int j = run.first; j < run.last; j++) {
    const ints start = load(task.start + j * LANES), stop = load(task.stop + j * LANES);
    floats most_yet = peak[j];
    for (int32_t k = 0; k < run.keys; k++) {
      float *at = scores + k * QUERIES + j * LANES;
      const ints key = all(run.key + k);
      const floats score = ((key >= start) & (key < stop)) ? load(at) : all(HIDDEN);
      store(at, score);
      most_yet = larger(most_yet, score);
    }
    peak[j] = most_yet;
  }
}

// What is added to the scores of LANES rows and up to LANES keys, −∞ where a key is hidden:
// added[k] holds key k's.
static void load_added(const regard_problem &p, const Task &task, int first_row, int32_t first_key,
                       int keys, floats *added) {
  for (int i = 0; i < LANES; i++) {
    const int r = first_row + i;
    alignas(64) float row[LANES] = {};
    if (r < task.count && p.bias.data) {
      const regard_matrix &m = p.bias;
      const float *bias = (const float *)m.data + task.batch * m.batch + task.head[r] * m.head +
                          task.query[r] * m.row + first_key * m.column;
      for (int k = 0; k < keys; k++) row[k] = bias[k * m.column];
    }
    if (r < task.count && p.allowed.data) {
      const regard_matrix &m = p.allowed;
      const uint8_t *allowed = (const uint8_t *)m.data + task.batch * m.batch +
                               task.head[r] * m.head + task.query[r] * m.row + first_key * m.column;
      for (int k = 0; k < keys; k++) row[k] = allowed[k * m.column] ? row[k] : HIDDEN;
    }
    added[i] = load(row);
  }
  transpose(added);
}

REGARD_INLINE floats numbers_of(const regard_numbers &numbers, const Task &task, int first_row) {
  alignas(64) float lanes[LANES] = {};
  for (int i = 0; i < LANES && first_row + i < task.count; i++)
    lanes[i] = numbers.data[task.batch * numbers.batch + task.head[first_row + i] * numbers.head];
  return load(lanes);
}

// Everything between the dot product and the softmax; `seen` tells the lanes that saw a key.
static void adjust(const regard_problem &p, const Task &task, const Run &run, float *scores,
                   floats *peak, ints *seen) {
  const float scale = float(p.scale), cap = float(p.softcap);
  const bool dense = p.bias.data || p.allowed.data;
  for (int j = run.first; j < run.last; j++) {
    const ints start = load(task.start + j * LANES), stop = load(task.stop + j * LANES);
    const ints position = load(task.position + j * LANES);
    const floats slope = p.alibi.data ? numbers_of(p.alibi, task, j * LANES) : floats{};
    for (int32_t first = 0; first < run.keys; first += LANES) {
      const int keys = least(LANES, run.keys - first);
      floats added[LANES];
      if (dense) load_added(p, task, j * LANES, run.key + first, keys, added);
      for (int k = 0; k < keys; k++) {
        float *at = scores + (first + k) * QUERIES + j * LANES;
        const ints key = all(run.key + first + k);
        ints visible = (key >= start) & (key < stop);
        floats score = load(at) * scale;
        if (cap > 0) score = tanh(score / cap) * cap;
        if (dense) {
          visible &= added[k] != all(HIDDEN);
          score += added[k];
        }
        if (p.alibi.data) {
          const ints ahead = key - position, stop = position - key;
          score -= slope * __builtin_convertvector(ahead > stop ? ahead : stop, floats);
        }
        score = visible ? score : all(HIDDEN);
        store(at, score);
        peak[j] = larger(peak[j], score);
        seen[j] |= visible;
      }
    }
  }
}

}  // namespace regard::REGARD_SET
