// Layer norm and RMS norm of a vector, and the activations of an MLP.
#pragma once

#include "abi.h"
#include "element.h"
#include "query_block.h"

namespace regard::REGARD_SET {

// A number rounded to a dtype.
template <class Element>
REGARD_INLINE floats rounded(Element element, floats x) {
  typename Element::type numbers[LANES];
  narrow(element, numbers, x);
  return widen(element, numbers);
}
REGARD_INLINE floats rounded(Float32, floats x) { return x; }

REGARD_INLINE floats first_lanes(floats x, int64_t count) {
  return lane_numbers() < broadcast(int32_t(min(count, int64_t(LANES)))) ? x : floats{};
}

// Normalizes a vector of `size` numbers of a dtype; calls store(i, count, x) with LANES of the
// results at a time. `memory` holds padded(size) floats.
template <class Element, class Store>
REGARD_INLINE void normalize(Element element, const regard_norm &norm,
                             const typename Element::type *from, int64_t size, float *memory,
                             Store store_lanes) {
  using Number = typename Element::type;
  const auto *weight = (const Number *)norm.weight, *bias = (const Number *)norm.bias;
  floats total = {}, squares = {};
  for (int64_t i = 0; i < size; i += LANES) {
    const floats x = widen_part(element, from + i, size - i);
    store(memory + i, x);
    total += x;
  }
  const float mean = norm.rms ? 0 : sum(total) / float(size);
  for (int64_t i = 0; i < size; i += LANES) {
    const floats x = first_lanes(load(memory + i) - mean, size - i);
    store(memory + i, x);
    squares += x * x;
  }
  const float factor = 1 / sqrtf(sum(squares) / float(size) + float(norm.epsilon));
  for (int64_t i = 0; i < size; i += LANES) {
    floats x = load(memory + i) * factor * widen_part(element, weight + i, size - i);
    if (bias) x += widen_part(element, bias + i, size - i);
    store_lanes(i, size - i, rounded(element, x));
  }
}

// GPT-2's GELU, the tanh form.
REGARD_INLINE floats gelu(floats x) {
  const floats z = 0.79788456080286535588f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + tanh(z));
}

REGARD_INLINE floats silu(floats x) {
  return x / (1.0f + exp2(min(x * float(-LOG2_E), broadcast(126.0f))));
}

}  // namespace regard::REGARD_SET
