// From dot products to logits, mask and weights for few rows: keys lie in the lanes.
//
// The counterpart of scores.h and dropout.h, by the same rules and in the same units.
#pragma once

#include "dropout.h"

namespace regard::REGARD_SET {

// Consecutive keys of one row; their scores are padded to a multiple of LANES.
struct Stretch {
  int row;  // of the task
  int32_t key, keys;
};

// What is added to the scores of up to LANES keys, −∞ where a key is hidden.
static floats added_to(const regard_problem &p, const Task &task, int row, int32_t key, int keys) {
  const auto offset = [&](const regard_matrix &m) {
    return task.batch * m.batch + task.head[row] * m.head + task.query[row] * m.row +
           key * m.column;
  };
  alignas(64) float added[LANES] = {};
  if (p.bias.data) {
    const float *bias = (const float *)p.bias.data + offset(p.bias);
    for (int k = 0; k < keys; k++) added[k] = bias[k * p.bias.column];
  }
  if (p.allowed.data) {
    const uint8_t *allowed = (const uint8_t *)p.allowed.data + offset(p.allowed);
    for (int k = 0; k < keys; k++) added[k] = allowed[k * p.allowed.column] ? added[k] : HIDDEN;
  }
  return load(added);
}

REGARD_INLINE float number_of(const regard_numbers &numbers, const Task &task, int row) {
  return numbers.data[task.batch * numbers.batch + task.head[row] * numbers.head];
}

// Makes scores of dot products, hides what the row may not see and finds the peak; `sees` tells
// whether anything is left.
template <bool adjusted>
static float adjust_stretch(const regard_problem &p, const Task &task, const Stretch &stretch,
                            float *scores, int32_t &sees) {
  const float scale = float(p.scale), cap = float(p.softcap);
  const bool dense = p.bias.data || p.allowed.data;
  const ints start = all(task.start[stretch.row]);
  const ints stop = all(least(task.stop[stretch.row], stretch.key + stretch.keys));
  const ints position = all(task.position[stretch.row]);
  const float slope = p.alibi.data ? number_of(p.alibi, task, stretch.row) : 0;
  floats peak = all(HIDDEN);
  ints seen = {};
  for (int32_t k = 0; k < stretch.keys; k += LANES) {
    const ints key = stretch.key + k + lane_numbers();
    ints visible = (key >= start) & (key < stop);
    floats score = load(scores + k);
    if constexpr (adjusted) {
      score *= scale;
      if (cap > 0) score = tanh(score / cap) * cap;
      if (dense) {
        const floats added =
            added_to(p, task, stretch.row, stretch.key + k, least(LANES, stretch.keys - k));
        visible &= added != all(HIDDEN);
        score += added;
      }
      if (p.alibi.data) {
        const ints ahead = key - position, stop = position - key;
        score -= slope * __builtin_convertvector(ahead > stop ? ahead : stop, floats);
      }
    }
    score = visible ? score : all(HIDDEN);
    store(scores + k, score);
    peak = larger(peak, score);
    seen |= visible;
  }
  sees = any(seen);
  float highest = peak[0];
  for (int i = 1; i < LANES; i++) highest = most(highest, peak[i]);
  return highest;
}

// What scores are measured from: 0 where there is no peak, so that −∞ stays −∞.
REGARD_INLINE float peak_or_none(float peak) { return peak == HIDDEN ? 0 : peak; }

// weights = 2^(factor · (score − peak)), and their sum. Few as they are here, all have it
// subtracted first; see scores.h.
static float exponentials(const float *scores, int32_t keys, float factor, float peak,
                          float *weights) {
  floats total = {};
  const floats from = all(peak_or_none(peak));
  for (int32_t k = 0; k < keys; k += LANES) {
    const floats w = exp2((load(scores + k) - from) * factor);
    store(weights + k, w);
    total += w;
  }
  return sum(total);
}

// Sets the weights that fall to 0.
static void drop(const regard_problem &p, const Task &task, const Stretch &stretch,
                 float *weights) {
  const uint64_t bound = least_surviving(p.dropout);
  const int32_t end = stretch.key + stretch.keys;
  const uint32_t query = uint32_t(task.query[stretch.row]);
  const uint32_t head = uint32_t(task.batch * p.heads + task.head[stretch.row]);
  for (int32_t four = stretch.key / 4; four * 4 < end; four += LANES) {
    words counter[4] = {(words)(four + lane_numbers()), words{} + query, words{} + head, words{}};
    philox(counter, p.seed);
    const int32_t first = most(stretch.key, 4 * four), last = least(end, 4 * (four + LANES));
    for (int32_t key = first; key < last; key++)
      if (counter[key % 4][key / 4 - four] < bound) weights[key - stretch.key] = 0;
  }
}

}  // namespace regard::REGARD_SET
