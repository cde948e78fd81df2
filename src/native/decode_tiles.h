// The two products of attention for few rows: dimensions lie in the lanes.
//
// Each number of the keys and values is loaded once and used for all rows of a tile. Keys and
// values are read as they lie, in their own dtype; where they don't fill whole vectors, as copies.
#pragma once

#include "element.h"
#include "tiles.h"

namespace regard::REGARD_SET {

constexpr int TILE = REGISTERS == 32 ? 4 : 2;  // rows of attention whose sums stay in registers
constexpr int32_t CHUNK = 512;  // keys whose scores and weights lie side by side, (rows, CHUNK)

// Rows of keys or values that are read one after the other, and how far ahead of each to fetch.
template <class E>
struct Stream {
  using Element = E;
  const typename Element::type *data;
  int64_t stride, ahead;

  __attribute__((always_inline)) floats at(int64_t row, int64_t d) const {
    const auto *from = data + row * stride + d;
    __builtin_prefetch(from + ahead);
    return widen(Element(), from);
  }
};

// Of two vectors' halves, `grain` lanes of each in turn.
template <int grain, int half, size_t... i>
REGARD_INLINE floats dealt(floats a, floats b, std::index_sequence<i...>) {
  constexpr size_t pair = 2 * grain;
  return __builtin_shufflevector(
      a, b, int(half * LANES / 2 + i / pair * grain + i % grain + i / grain % 2 * LANES)...);
}

// Adds up `count` vectors that hold a period of `grain` sums each, every lane once: the result has
// the sums of the first, then those of the second, ..., and so again up to its end.
template <int count, int grain>
REGARD_INLINE floats folded(const floats *vectors) {
  if constexpr (count == 1) {
    return vectors[0];
  } else {
    using all_lanes = std::make_index_sequence<LANES>;
    floats half[count / 2];
    REGARD_UNROLL for (int i = 0; i < count / 2; i++)
      half[i] = dealt<grain, 0>(vectors[i], vectors[i + count / 2], all_lanes()) +
                dealt<grain, 1>(vectors[i], vectors[i + count / 2], all_lanes());
    return folded<count / 2, grain>(half);
  }
}

// scores[r][k] = query[r] · key[k] for LANES keys; those from `keys` on repeat the last.
template <int rows, class Keys>
REGARD_INLINE void score_lanes(const Keys &key, int64_t keys, int64_t dim, const float *query,
                               float *scores) {
  constexpr int together = 4, steps = LANES / together;
  floats partly[rows][steps];
  for (int step = 0; step < steps; step++) {
    int64_t at[together];
    floats sums[rows][together];
    REGARD_UNROLL for (int k = 0; k < together; k++) {
      at[k] = least(int64_t(step * together + k), keys - 1);
      REGARD_UNROLL for (int r = 0; r < rows; r++) sums[r][k] = floats{};
    }
    for (int64_t d = 0; d < dim; d += LANES) {
      floats q[rows];
      REGARD_UNROLL for (int r = 0; r < rows; r++) q[r] = load(query + r * dim + d);
      REGARD_UNROLL for (int k = 0; k < together; k++) {
        const floats numbers = key.at(at[k], d);
        REGARD_UNROLL for (int r = 0; r < rows; r++) sums[r][k] += numbers * q[r];
      }
    }
    REGARD_UNROLL for (int r = 0; r < rows; r++) partly[r][step] = folded<together, 1>(sums[r]);
  }
  REGARD_UNROLL for (int r = 0; r < rows; r++)
    store(scores + r * CHUNK, folded<steps, together>(partly[r]));
}

// context[r] += Σ_k weights[r][k] · value[k], for `vectors` vectors of dimensions from d on. These
// keys are summed up by themselves before they are added: that rounds less than one long sum.
template <int rows, int vectors, class Values>
REGARD_INLINE void context_lanes(const Values &value, int64_t keys, int64_t d, int64_t dim,
                                 const float *weights, float *context) {
  floats sums[rows][vectors];
  REGARD_UNROLL for (int r = 0; r < rows; r++)
    REGARD_UNROLL for (int j = 0; j < vectors; j++) sums[r][j] = floats{};
  for (int64_t k = 0; k < keys; k++) {
    floats w[rows];
    REGARD_UNROLL for (int r = 0; r < rows; r++) w[r] = all(weights[r * CHUNK + k]);
    REGARD_UNROLL for (int j = 0; j < vectors; j++) {
      const floats numbers = value.at(k, d + j * LANES);
      REGARD_UNROLL for (int r = 0; r < rows; r++) sums[r][j] += w[r] * numbers;
    }
  }
  REGARD_UNROLL for (int r = 0; r < rows; r++)
    REGARD_UNROLL for (int j = 0; j < vectors; j++) {
      float *at = context + r * dim + d + j * LANES;
      store(at, load(at) + sums[r][j]);
    }
}

// The same for all dimensions.
template <int rows, class Values>
REGARD_INLINE void add_context(const Values &value, int64_t keys, int64_t dim,
                               const float *weights, float *context) {
  for (int64_t d = 0; d < dim; d += 4 * LANES)
    with_live(int(least(int64_t(4), (dim - d) / LANES)), [&](auto vectors) {
      context_lanes<rows, vectors>(value, keys, d, dim, weights, context);
    });
}

}  // namespace regard::REGARD_SET
