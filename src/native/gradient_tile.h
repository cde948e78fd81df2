// The backward pass's third product, a sum over queries: sums[k] += Σ_r weights[k][r] · rows[r].
//
// Here the head dimension lies in the lanes. The sums are (keys, stride), stride a multiple of
// LANES; of the rows, Products::STEP lie side by side; the weights, (keys, QUERIES), are
// broadcast.
#pragma once

#include "scores.h"

namespace regard::REGARD_SET {

template <class Products, int columns, int keys>
REGARD_INLINE void gradient_tile(const typename Products::Number *weights, const float *rows,
                                 int64_t stride, int first, int last, float *sums) {
  floats total[keys][columns];
  REGARD_UNROLLED_FOR (int k = 0; k < keys; k++)
    REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) total[k][j] = floats{};
#pragma GCC unroll 2
  for (int r = first; r < last; r++) {
    floats row[columns];
    REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) row[j] = load(rows + r * stride + j * LANES);
    REGARD_UNROLLED_FOR (int k = 0; k < keys; k++) {
      const floats weight = Products::load_broadcast(weights + k * QUERIES + r * Products::STEP);
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
        total[k][j] = Products::multiply_add(weight, row[j], total[k][j]);
    }
  }
  REGARD_UNROLLED_FOR (int k = 0; k < keys; k++)
    REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) {
      float *at = sums + k * stride + j * LANES;
      store(at, load(at) + total[k][j]);
    }
}

template <class Products, int columns>
__attribute__((noinline)) void gradient_columns(const typename Products::Number *weights,
                                                const float *rows, int64_t stride, int first,
                                                int last, int64_t keys, float *sums) {
  constexpr int max_keys = tile_rows(columns);
  int64_t k = 0;
  const auto tile_by = [&](auto size) {
    for (; k + size <= keys; k += size)
      gradient_tile<Products, columns, size>(weights + k * QUERIES, rows, stride, first, last,
                                             sums + k * stride);
  };
  tile_by(std::integral_constant<int, max_keys>());
  if constexpr (max_keys > 4) tile_by(std::integral_constant<int, 4>());
  if constexpr (max_keys > 2) tile_by(std::integral_constant<int, 2>());
  tile_by(std::integral_constant<int, 1>());
}

// Sums over the rows [first, last) of a block, for `keys` keys.
template <class Products>
static void gradient_rows(const typename Products::Number *weights, const float *rows,
                          int64_t stride, int first, int last, int64_t keys, float *sums) {
  constexpr int STEP = Products::STEP;
  for (int64_t d = 0; d < stride; d += VECTORS * LANES)
    with_live(int(min(int64_t(VECTORS), (stride - d) / LANES)), [&](auto columns) {
      gradient_columns<Products, columns>(weights, rows + d, stride, first / STEP,
                                          (last + STEP - 1) / STEP, keys, sums + d);
    });
}

// The same, but a weight of 0 adds nothing, whatever the row holds: 0 · NaN is NaN.
template <class Arithmetic>
static void gradient_rows_of_visible(const typename Arithmetic::Number *weights, const float *rows,
                                     int64_t stride, int first, int last, int64_t keys,
                                     float *sums) {
  for (int64_t k = 0; k < keys; k++)
    for (int r = first; r < last; r++) {
      const float weight = Arithmetic::row_weight(weights + k * QUERIES, r);
      if (weight == 0) continue;
      for (int64_t d = 0; d < stride; d += LANES) {
        float *at = sums + k * stride + d;
        store(at, load(at) + weight * Arithmetic::row_part(rows + d, stride, r));
      }
    }
}

// As weighted_rows for the keys of a segment, but a gradient of 0 adds nothing, whatever the key
// holds.
template <class Arithmetic>
static void query_gradient_of_visible(const PackedRows<typename Arithmetic::Number> &keys,
                                      const Segment &segment, int64_t width, const float *gradients,
                                      float *sums) {
  for (int32_t k = 0; k < segment.keys; k++)
    for (int j = segment.first; j < segment.last; j++) {
      const floats gradient = Arithmetic::weight(gradients + j * LANES, k);
      for (int i = 0; i < LANES; i++) {
        if (gradient[i] == 0) continue;
        for (int64_t d = 0; d < width; d += LANES) {
          float *at = sums + (j * LANES + i) * width + d;
          store(at, load(at) + gradient[i] * Arithmetic::value_part(keys, k, d));
        }
      }
    }
}

}  // namespace regard::REGARD_SET
