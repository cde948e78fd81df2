// What the backward pass asks of an arithmetic beyond the forward's: rows of queries to be summed
// over, and weights and score gradients in the forms that the products want.
#pragma once

#include "pairs.h"
#include "scores.h"

namespace regard::REGARD_SET {

// Of a segment of keys: numbers to broadcast, (keys, QUERIES), and score gradients in the lanes as
// weighted_rows takes its weights.
template <class Number>
struct SegmentGradients {
  const Number *weights, *scores;
  const float *lanes;
};

template <class T>
struct WidenedGradients : Widened<T> {
  using typename Widened<T>::Element;

  // Copies a block's rows to (QUERIES, padded(dim)), zeros for those that see nothing; returns
  // whether all is finite.
  static bool load_rows_side_by_side(const regard_tensor &from, const QueryBlock &queries,
                                     const bool *sees, int64_t dim, float *to) {
    ints nonfinite = {};
    const BlockRows<Element> rows(from, queries);
    const int count = queries.count;
    for (int r = 0; r < count; r++)
      for (int64_t d = 0; d < dim; d += LANES) {
        const floats part = sees[r] ? widen_part(Element(), rows[r] + d, dim - d) : floats{};
        nonfinite |= is_nonfinite(part);
        store(to + r * padded(dim) + d, part);
      }
    return !any(nonfinite);
  }
  REGARD_INLINE floats row_part(const float *rows, int64_t stride, int r) {
    return load(rows + r * stride);
  }
  REGARD_INLINE float row_weight(const float *weights, int r) { return weights[r]; }

  static SegmentGradients<float> pack(const Segment &, const float *weights, const float *gradients,
                                      float *) {
    return {weights, gradients, gradients};
  }
};

#if defined(__AVX512BF16__)

struct PairGradients : Pairs {
  // Rows r and r + 1 side by side: (QUERIES / 2, padded(dim)) pairs.
  static bool load_rows_side_by_side(const regard_tensor &from, const QueryBlock &queries,
                                     const bool *sees, int64_t dim, float *to) {
    ints nonfinite = {};
    const BlockRows<BFloat16> rows(from, queries);
    const int count = queries.count;
    const auto part = [&](int r, int64_t d) REGARD_INLINE_LAMBDA {
      return sees[r] ? widen_part(BFloat16(), rows[r] + d, dim - d) : floats{};
    };
    for (int r = 0; r < count; r += 2)
      for (int64_t d = 0; d < dim; d += LANES) {
        const floats low = part(r, d), high = part(r + 1, d);
        nonfinite |= is_nonfinite(low) | is_nonfinite(high);
        store(to + r / 2 * padded(dim) + d, (floats)((uints)low >> 16 | (uints)high));
      }
    return !any(nonfinite);
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

  // All of them rounded; after the last key of an odd number comes a 0.
  static SegmentGradients<uint16_t> pack(const Segment &segment, const float *weights,
                                         const float *gradients, float *packed) {
    uint16_t *const weight_rows = (uint16_t *)packed;
    uint16_t *const gradient_rows = weight_rows + (segment.keys + 1) * QUERIES;
    float *const pairs = (float *)(gradient_rows + (segment.keys + 1) * QUERIES);
    const auto pack_rows = [](const float *from, uint16_t *to) {
      *(unaligned::ints *)to = (ints)_mm512_cvtne2ps_pbh(load(from + LANES), load(from));
    };
    for (int j = segment.first / 2 * 2; j < segment.last; j += 2)
      for (int32_t k = 0; k < segment.keys; k += 2) {
        const int64_t at = k * QUERIES + j * LANES, next = at + QUERIES;
        const bool single = k + 1 == segment.keys;
        pack_rows(weights + at, weight_rows + at);
        pack_rows(gradients + at, gradient_rows + at);
        if (!single) pack_rows(weights + next, weight_rows + next);
        if (!single) pack_rows(gradients + next, gradient_rows + next);
        for (int i = 0; i < 2; i++) {
          const floats low = load(gradients + at + i * LANES);
          const floats high = single ? floats{} : load(gradients + next + i * LANES);
          store(pairs + k / 2 * QUERIES + (j + i) * LANES, (floats)pairs_of(low, high));
        }
      }
    return {weight_rows, gradient_rows, pairs};
  }
};

#endif

}  // namespace regard::REGARD_SET
