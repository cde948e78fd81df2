// The two products of attention, tile by tile in registers.
//
// Queries lie in the lanes: a task's QUERIES rows are VECTORS vectors wide, and every matrix whose
// columns are queries has that width: query and context (dim, QUERIES), scores (keys, QUERIES). Keys
// and values are read row by row, one broadcast number at a time; nothing is summed across lanes.
//
// An Arithmetic (arithmetic.h) says what a number is: of the elements that a product sums over, one
// multiplication takes Arithmetic::STEP, and `steps` counts multiplications.
#pragma once

#include "vector.h"

namespace regard::REGARD_SET {

constexpr int VECTORS = 4, QUERIES = VECTORS * LANES;

// Rows of a tile that fill the registers when so many vectors of queries are live.
constexpr int tile_rows(int live) {
  if (REGISTERS == 32) return live == 4 ? 6 : 8;
  return live == 4 ? 3 : live == 3 ? 4 : live == 2 ? 6 : 8;
}

// scores[k] = Σ_d key[k][d] · query[d], and peak the largest so far of each query.
template <class Arithmetic, int live, int rows, class Number>
REGARD_INLINE void score_tile(const Number *key, int64_t stride, int64_t steps, const float *query,
                              float *scores, floats *peak) {
  floats sums[rows][live];
  REGARD_UNROLL for (int k = 0; k < rows; k++)
    REGARD_UNROLL for (int j = 0; j < live; j++) sums[k][j] = floats{};
#pragma GCC unroll 2
  for (int64_t d = 0; d < steps; d++) {
    floats q[live];
    REGARD_UNROLL for (int j = 0; j < live; j++) q[j] = load(query + d * QUERIES + j * LANES);
    REGARD_UNROLL for (int k = 0; k < rows; k++) {
      const floats number = Arithmetic::broadcast(key + k * stride + d * Arithmetic::STEP);
      REGARD_UNROLL for (int j = 0; j < live; j++)
        sums[k][j] = Arithmetic::multiply_add(number, q[j], sums[k][j]);
    }
  }
  REGARD_UNROLL for (int k = 0; k < rows; k++)
    REGARD_UNROLL for (int j = 0; j < live; j++) {
      store(scores + k * QUERIES + j * LANES, sums[k][j]);
      peak[j] = larger(peak[j], sums[k][j]);
    }
}

template <class Arithmetic, int live, class Number>
__attribute__((noinline)) void score_rows(const Number *key, int64_t stride, int64_t keys,
                                          int64_t steps, const float *query, float *scores,
                                          floats *peak) {
  constexpr int rows = tile_rows(live);
  int64_t k = 0;
  const auto run = [&](auto size) {
    for (; k + size <= keys; k += size)
      score_tile<Arithmetic, live, size>(key + k * stride, stride, steps, query,
                                         scores + k * QUERIES, peak);
  };
  run(std::integral_constant<int, rows>());
  if constexpr (rows > 4) run(std::integral_constant<int, 4>());
  if constexpr (rows > 2) run(std::integral_constant<int, 2>());
  run(std::integral_constant<int, 1>());
}

// context[d] += Σ_k value[k][d] · weights[k]. A block is summed up by itself before it is added: that
// rounds less than one long sum.
template <class Arithmetic, int live, int rows, class Number>
REGARD_INLINE void context_tile(const Number *value, int64_t stride, int64_t steps,
                                const float *weights, float *context) {
  floats sums[rows][live];
  REGARD_UNROLL for (int d = 0; d < rows; d++)
    REGARD_UNROLL for (int j = 0; j < live; j++) sums[d][j] = floats{};
#pragma GCC unroll 2
  for (int64_t k = 0; k < steps; k++) {
    floats w[live];
    REGARD_UNROLL for (int j = 0; j < live; j++) w[j] = load(weights + k * QUERIES + j * LANES);
    REGARD_UNROLL for (int d = 0; d < rows; d++) {
      const floats number = Arithmetic::broadcast(value + k * stride + d * Arithmetic::STEP);
      REGARD_UNROLL for (int j = 0; j < live; j++)
        sums[d][j] = Arithmetic::multiply_add(number, w[j], sums[d][j]);
    }
  }
  REGARD_UNROLL for (int d = 0; d < rows; d++)
    REGARD_UNROLL for (int j = 0; j < live; j++) {
      float *at = context + d * QUERIES + j * LANES;
      store(at, load(at) + sums[d][j]);
    }
}

template <class Arithmetic, int live, class Number>
__attribute__((noinline)) void context_rows(const Number *value, int64_t stride, int64_t steps,
                                            int64_t dim, const float *weights, float *context) {
  constexpr int rows = REGISTERS == 32 && live == 4 ? 4 : tile_rows(live);
  int64_t d = 0;
  const auto run = [&](auto size) {
    for (; d + size <= dim; d += size)
      context_tile<Arithmetic, live, size>(value + d * Arithmetic::STEP, stride, steps, weights,
                                           context + d * QUERIES);
  };
  run(std::integral_constant<int, rows>());
  if constexpr (rows > 4) run(std::integral_constant<int, 4>());
  if constexpr (rows > 2) run(std::integral_constant<int, 2>());
  run(std::integral_constant<int, 1>());
}

// Calls what is given with the number of live vectors as a constant.
template <class Call>
REGARD_INLINE void with_live(int live, Call call) {
  static_assert(VECTORS == 4);
  if (live == 4) return call(std::integral_constant<int, 4>());
  if (live == 3) return call(std::integral_constant<int, 3>());
  if (live == 2) return call(std::integral_constant<int, 2>());
  call(std::integral_constant<int, 1>());
}

}  // namespace regard::REGARD_SET
