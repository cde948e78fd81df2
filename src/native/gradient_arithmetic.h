// The operations that the backward pass needs of an arithmetic beyond the forward pass.
//
// These are rows of queries to sum over, and weights and score gradients laid out for the products.
#pragma once

#include "pairs.h"
#include "scores.h"

namespace regard::REGARD_SET {

constexpr int32_t GRADIENT_BLOCK = 192;  // keys whose score gradients stay in the L2 cache

// A thread's memory for the weights of a segment, and for the score gradients of a block of keys.
template <class Number>
struct PackedGradients {
  Number *weights, *scores;  // numbers to broadcast, (keys, QUERIES)
  float *lanes;              // score gradients in the layout of weights for weighted_rows
};

template <class T>
struct WidenedGradients : Widened<T> {
  using typename Widened<T>::Element;

  // The block's rows in row-major order, zeros for fully masked ones: (QUERIES, padded(dim)) in
  // `memory`, or in place unless a copy is wanted.
  static PackedRows<float> rows_side_by_side(const regard_tensor &from, const QueryBlock &queries,
                                             const bool *sees, bool all_see, bool copied,
                                             int64_t dim, float *memory) {
    const BlockRows<Element> rows(from, queries);
    if constexpr (std::is_same_v<Element, Float32>)
      if (all_see && !copied && queries.one_head && dim % LANES == 0) return {rows[0], from.row};
    const int count = queries.count;
    for (int r = 0; r < count; r++)
      for (int64_t d = 0; d < dim; d += LANES)
        store(memory + r * padded(dim) + d,
              sees[r] ? widen_part(Element(), rows[r] + d, dim - d) : floats{});
    return {memory, padded(dim)};
  }
  // The products of two rows, summed per lane.
  REGARD_INLINE floats row_products(const typename Element::type *a,
                                    const typename Element::type *b, int64_t dim) {
    floats sum = {};
    int64_t d = 0;
    for (; d + LANES <= dim; d += LANES) sum += widen(Element(), a + d) * widen(Element(), b + d);
    if (d < dim)
      sum += widen_part(Element(), a + d, dim - d) * widen_part(Element(), b + d, dim - d);
    return sum;
  }
  REGARD_INLINE floats row_part(const float *rows, int64_t stride, int r) {
    return load(rows + r * stride);
  }
  REGARD_INLINE float row_weight(const float *weights, int r) { return weights[r]; }

  // For a segment at an offset in keys from the block's first: in place of scores and gradients.
  static PackedGradients<float> packed(float *weights, float *gradients, float *, int64_t) {
    return {weights, gradients, gradients};
  }
  // Stores those of keys k and k + 1 and one vector, at offset `at` in the first key's row.
  REGARD_INLINE void store_pair(const PackedGradients<float> &to, int64_t at, const floats *weights,
                                const floats *gradients) {
    REGARD_UNROLLED_FOR (int i = 0; i < 2; i++) {
      store(to.weights + at + i * QUERIES, weights[i]);
      store(to.scores + at + i * QUERIES, gradients[i]);
    }
  }
};

#if defined(__AVX512BF16__)

struct PairGradients : Pairs {
  // Rows r and r + 1 interleaved: (QUERIES / 2, padded(dim)) pairs.
  static PackedRows<float> rows_side_by_side(const regard_tensor &from, const QueryBlock &queries,
                                             const bool *sees, bool all_see, bool, int64_t dim,
                                             float *memory) {
    const BlockRows<BFloat16> rows(from, queries);
    const int count = queries.count;
    const int64_t stride = (dim + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    if (all_see && queries.one_head) {
      interleave(rows[0], from.row, count, dim, (uint16_t *)memory, 2 * stride);
      return {memory, stride};
    }
    const auto part = [&](int r, int64_t d) REGARD_INLINE_LAMBDA {
      return r < count && sees[r] ? load_pairs_part(rows[r] + d, dim - d) : ints{};
    };
    for (int r = 0; r < count; r += 2)
      for (int64_t d = 0; d < dim; d += 2 * LANES)
        store_interleaved((int32_t *)(memory + r / 2 * stride + d), part(r, d), part(r + 1, d));
    return {memory, stride};
  }
  REGARD_INLINE floats row_products(const uint16_t *a, const uint16_t *b, int64_t dim) {
    floats sum = {};
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES)
      sum = multiply_add((floats)load_pairs(a + d), (floats)load_pairs(b + d), sum);
    if (d < dim)
      sum = multiply_add((floats)load_pairs_part(a + d, dim - d),
                         (floats)load_pairs_part(b + d, dim - d), sum);
    return sum;
  }
  REGARD_INLINE floats row_part(const float *rows, int64_t stride, int r) {
    const ints pairs = (ints)load(rows + r / 2 * stride);
    return r % 2 ? high_of(pairs) : low_of(pairs);
  }
  REGARD_INLINE float row_weight(const uint16_t *weights, int r) {
    const uint32_t bits = uint32_t(weights[r]) << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
  }

  // Likewise, in memory for 2 · GRADIENT_BLOCK · QUERIES floats; all are rounded.
  static PackedGradients<uint16_t> packed(float *, float *, float *memory, int64_t keys_before) {
    constexpr int64_t size = GRADIENT_BLOCK * QUERIES;
    uint16_t *const weights = (uint16_t *)memory, *const scores = weights + size;
    return {weights, scores + keys_before * QUERIES, memory + size + keys_before / 2 * QUERIES};
  }
  REGARD_INLINE void store_pair(const PackedGradients<uint16_t> &to, int64_t at,
                                const floats *weights, const floats *gradients) {
    REGARD_UNROLLED_FOR (int i = 0; i < 2; i++) {
      narrow(BFloat16(), to.weights + at + i * QUERIES, weights[i]);
      narrow(BFloat16(), to.scores + at + i * QUERIES, gradients[i]);
    }
    const int64_t lane = at % QUERIES;
    store(to.lanes + (at - lane) / 2 + lane, (floats)pairs_of(gradients[0], gradients[1]));
  }
  // Sets those of a row and a number of keys to 0.
  static void clear_row(const PackedGradients<uint16_t> &to, int32_t keys, int r) {
    for (int64_t at = r; at < int64_t(keys) * QUERIES; at += QUERIES)
      to.weights[at] = to.scores[at] = 0;
  }
};

#endif

}  // namespace regard::REGARD_SET
