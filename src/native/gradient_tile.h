// The third product of the backward pass, a sum over queries: Σ_r weights[k][r] · rows[r].
//
// The head dimension is in the lanes. Products::STEP rows are interleaved; the weights, (keys,
// QUERIES), are broadcast. The function calls write(k, d, sums) with sums of (keys, columns).
#pragma once

#include "arithmetic.h"
#include "scores.h"

namespace regard::REGARD_SET {

template <class Products, int columns, int keys, class Write>
REGARD_INLINE void gradient_tile(const typename Products::Number *weights, const float *rows,
                                 int64_t stride, int first, int last, int64_t k, int64_t d,
                                 Write &write) {
  floats total[keys][columns];
  REGARD_UNROLLED_FOR (int i = 0; i < keys; i++)
    REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) total[i][j] = floats{};
// With 16 registers, two steps at a time would spill two sums to memory.
#pragma GCC unroll(REGISTERS == 32 ? 2 : 1)
  for (int r = first; r < last; r++) {
    floats row[columns];
    REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) row[j] = load(rows + r * stride + j * LANES);
    REGARD_UNROLLED_FOR (int i = 0; i < keys; i++) {
      const floats weight = Products::load_broadcast(weights + i * QUERIES + r * Products::STEP);
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
        total[i][j] = Products::multiply_add(weight, row[j], total[i][j]);
    }
  }
  write(k, d, total);
}

template <class Products, int columns, class Write>
  requires(!MultipliesTiles<Products>)
__attribute__((noinline)) void gradient_columns(const typename Products::Number *weights,
                                                const float *rows, int64_t stride, int first,
                                                int last, int64_t keys, int64_t d, Write &write) {
  tile_over<tile_rows(columns)>(keys, [&](int64_t k, auto size) REGARD_INLINE_LAMBDA {
    gradient_tile<Products, columns, size>(weights + k * QUERIES, rows, stride, first, last, k, d,
                                           write);
  });
}

// Sums over the rows [first, last) of a block, for `keys` keys and `width` columns.
template <class Products, class Write>
static void gradient_rows(const typename Products::Number *weights, const PackedRows<float> &rows,
                          int64_t width, int first, int last, int64_t keys, Write &write) {
  constexpr int STEP = Products::STEP;
  for (int64_t d = 0; d < width; d += VECTORS * LANES)
    with_live(int(min(int64_t(VECTORS), (width - d) / LANES)), [&](auto columns) {
      gradient_columns<Products, columns>(weights, rows.data + d, rows.stride, first / STEP,
                                          (last + STEP - 1) / STEP, keys, d, write);
    });
}

// The same, added to sums, but rows of weight 0 are skipped, since 0 · NaN is NaN.
template <class Arithmetic>
static void gradient_rows_of_visible(const typename Arithmetic::Number *weights,
                                     const PackedRows<float> &rows, int64_t width, int first,
                                     int last, int64_t keys, float *sums) {
  for (int64_t k = 0; k < keys; k++)
    for (int r = first; r < last; r++) {
      const float weight = Arithmetic::row_weight(weights + k * QUERIES, r);
      if (weight == 0) continue;
      for (int64_t d = 0; d < width; d += LANES) {
        float *at = sums + k * width + d;
        store(at, load(at) + weight * Arithmetic::row_part(rows.data + d, rows.stride, r));
      }
    }
}

// weighted_rows for the keys of a segment, but keys with a gradient of 0 are skipped, since
// 0 · NaN is NaN.
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
