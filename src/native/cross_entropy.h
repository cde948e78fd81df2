// The cross-entropy of rows of logits and its gradient, optionally in place.
//
// A row is read three times while it is in the processor's caches: for its largest logit, for the
// sum of exponentials, and for the gradient.
#pragma once

#include <string.h>

#include "element.h"
#include "threads.h"

namespace regard::REGARD_SET {

// exp(logit − maximum).
REGARD_INLINE floats exponential(floats logits, float highest) {
  return exp2((logits - highest) * float(LOG2_E));
}

// Logits i … i + LANES − 1 of a row, −∞ after its end.
template <class Element>
REGARD_INLINE floats logits_part(Element element, const typename Element::type *row, int64_t i,
                                 int64_t size) {
  const floats x = widen_part(element, row + i, size - i);
  if (i + LANES <= size) return x;
  return lane_numbers() < broadcast(int32_t(size - i)) ? x : broadcast(-INFINITY);
}

template <class Element>
REGARD_INLINE void row_cross_entropy(Element element, const regard_cross_entropy &call,
                                     int64_t row) {
  using Number = typename Element::type;
  const int64_t size = call.vocabulary, target = call.targets[row];
  const auto *logits = (const Number *)call.logits + row * size;
  auto *gradient = call.gradient ? (Number *)call.gradient + row * size : nullptr;
  if (target < 0) {
    call.losses[row] = 0;
    if (gradient) memset(gradient, 0, size_t(size) * sizeof *gradient);
    return;
  }
  floats largest = broadcast(-INFINITY), total = {};
  for (int64_t i = 0; i < size; i += LANES)
    largest = max(logits_part(element, logits, i, size), largest);
  float highest = largest[0];
  REGARD_UNROLLED_FOR (int lane = 1; lane < LANES; lane++) highest = max(highest, largest[lane]);
  for (int64_t i = 0; i < size; i += LANES)
    total += exponential(logits_part(element, logits, i, size), highest);
  const float at_target = widen_part(element, logits + target, 1)[0];
  call.losses[row] = logf(sum(total)) - (at_target - highest);
  if (!gradient) return;
  const float weight = call.weights[row], factor = weight / sum(total);
  for (int64_t i = 0; i < size; i += LANES) {
    const floats share = exponential(logits_part(element, logits, i, size), highest) * factor;
    narrow_part(element, gradient + i, share, size - i);
  }
  const floats share = exponential(broadcast(at_target), highest) * factor;
  narrow_part(element, gradient + target, share - weight, 1);
}

template <class Element>
int cross_entropy(const regard_cross_entropy &call) {
  // A task takes some tens of microseconds.
  const int64_t rows = max(int64_t(1), 32768 / call.vocabulary);
  return for_each_task(int(call.threads), (call.rows + rows - 1) / rows, 0,
                       [&](int64_t task, void *) {
                         const int64_t last = min(call.rows, (task + 1) * rows);
                         for (int64_t row = task * rows; row < last; row++)
                           row_cross_entropy(Element(), call, row);
                       });
}

}  // namespace regard::REGARD_SET
