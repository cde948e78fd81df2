// GELU of a tensor and its derivative, for training.
#pragma once

#include "element.h"
#include "threads.h"

namespace regard::REGARD_SET {

// 1 / (1 + e⁻ˣ); subnormal results may be flushed to 0.
REGARD_INLINE floats logistic(floats x) {
  return 1.0f / (1.0f + exp2(min(x * float(-LOG2_E), broadcast(126.0f))));
}

// GPT-2's GELU, x/2·(1 + tanh z) with z = √(2/π)·(x + 0.044715·x³), is x·σ(2z): one exponential.
constexpr float GELU_SLOPE = 1.59576912160573071176f, GELU_CUBIC = 0.044715f;

REGARD_INLINE floats gelu_by_logistic(floats x) {
  return x * logistic(GELU_SLOPE * x * (1.0f + GELU_CUBIC * x * x));
}

REGARD_INLINE floats gelu_derivative(floats x) {
  // Beyond this range it is 0 or 1, and x³ may overflow. NaN stays NaN.
  x = max(broadcast(-16.0f), min(broadcast(16.0f), x));
  const floats square = GELU_CUBIC * x * x;
  const floats share = logistic(GELU_SLOPE * x * (1.0f + square));
  return share + share * (1.0f - share) * GELU_SLOPE * x * (1.0f + 3.0f * square);
}

template <class Element>
REGARD_INLINE void activate(Element element, const regard_activation &call, int64_t first,
                            int64_t last) {
  using Number = typename Element::type;
  const auto *x = (const Number *)call.x, *gradient = (const Number *)call.gradient;
  auto *result = (Number *)call.result;
  for (int64_t i = first; i < last; i += LANES) {
    const int64_t count = last - i;
    const floats at = widen_part(element, x + i, count);
    const floats value = gradient ? widen_part(element, gradient + i, count) * gelu_derivative(at)
                                  : gelu_by_logistic(at);
    narrow_part(element, result + i, value, count);
  }
}

template <class Element>
int activation(const regard_activation &call) {
  constexpr int64_t SIZE = 8192;  // numbers of a task: a few microseconds
  return for_each_task(int(call.threads), (call.size + SIZE - 1) / SIZE, 0,
                       [&](int64_t task, void *) {
                         activate(Element(), call, task * SIZE, min(call.size, (task + 1) * SIZE));
                       });
}

}  // namespace regard::REGARD_SET
