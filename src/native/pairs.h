// bfloat16 by dot products of pairs: an instruction adds two products to each float32 lane.
//
// A lane of 32 bits holds a pair: elements d and d + 1 of a query, the weights of keys k and k + 1, or,
// broadcast, what they are multiplied by. Keys are read as they lie; of values, rows k and k + 1 are
// interleaved, a block at a time. Where a pair has no second half it holds 0.
#pragma once

#include "arithmetic.h"

#if defined(__AVX512BF16__)

namespace regard::REGARD_SET {

namespace unaligned {
typedef int32_t pair __attribute__((aligned(2), may_alias));
typedef int32_t pairs __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
static_assert(alignof(pair) == 2 && alignof(pairs) == 2);
}  // namespace unaligned

// The first elements of a row as pairs, zeros behind them: nothing past the row's end is read.
REGARD_INLINE ints pairs_part(const uint16_t *from, int64_t count) {
  if (count >= 2 * LANES) return *(const unaligned::pairs *)from;
  alignas(64) uint16_t part[2 * LANES] = {};
  memcpy(part, from, size_t(count) * sizeof *from);
  return *(const unaligned::pairs *)part;
}

// Rounds to nearest, ties to even; NaN stays NaN.
REGARD_INLINE ints pairs_of(floats low, floats high) {
  using numbers = uint16_t __attribute__((vector_size(LANES * 4)));
  const numbers order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                         8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(high, low);
  return (ints)_mm512_permutexvar_epi16((__m512i)order, halves);
}
REGARD_INLINE floats low_of(ints pairs) { return (floats)(pairs << 16); }
REGARD_INLINE floats high_of(ints pairs) { return (floats)(pairs & ~0xffff); }

struct Pairs {
  using Element = BFloat16;
  using Number = uint16_t;
  static constexpr int STEP = 2;

  REGARD_INLINE floats broadcast(const uint16_t *from) {
    return (floats)all(*(const unaligned::pair *)from);
  }
  REGARD_INLINE floats multiply_add(floats number, floats lanes, floats sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)number, (__m512bh)lanes);
  }

  // The task's rows, times 1 or −1, to (dim / 2, QUERIES) pairs; lanes not in use are 0.
  static void load_queries(const regard_tensor &from, const Task &task, int64_t dim, float factor,
                           float *to) {
    const ints signs = all(factor < 0 ? int32_t(0x80008000) : 0);
    for (int j = 0; j < task.vectors; j++)
      for (int64_t d = 0; d < dim; d += 2 * LANES) {
        floats rows[LANES];
        for (int i = 0; i < LANES; i++) {
          const int r = j * LANES + i;
          rows[i] = floats{};
          if (r < task.count)
            rows[i] = (floats)(pairs_part(row_of<BFloat16>(from, task, r) + d, dim - d) ^ signs);
        }
        transpose(rows);
        REGARD_UNROLL for (int i = 0; i < LANES; i++)
          store(to + (d / 2 + i) * QUERIES + j * LANES, rows[i]);
      }
  }

  // Where the rows lie, or with a 0 behind the last element where that has no partner.
  static Panel<uint16_t> keys(const regard_tensor &from, const Task &task, int64_t first,
                              int64_t count, int64_t dim, float *scratch) {
    const uint16_t *data = first_row<BFloat16>(from, task, first);
    if (dim % 2 == 0) return {data, from.row};
    const int64_t stride = dim + 1;
    uint16_t *rows = (uint16_t *)scratch;
    for (int64_t k = 0; k < count; k++) {
      memcpy(rows + k * stride, data + k * from.row, size_t(dim) * sizeof *rows);
      rows[k * stride + dim] = 0;
    }
    return {rows, stride};
  }

  static Panel<uint16_t> values(const regard_tensor &from, const Task &task, int64_t first,
                                int64_t count, int64_t dim, float *scratch) {
    const uint16_t *data = first_row<BFloat16>(from, task, first);
    const int64_t stride = 2 * padded(dim);
    uint16_t *rows = (uint16_t *)scratch;
    for (int64_t k = 0; k < count; k += 2)
      for (int64_t d = 0; d < dim; d += LANES) {
        const uint16_t *at = data + k * from.row + d;
        const words low = (words)widen_part(BFloat16(), at, dim - d) >> 16;
        words high = {};
        if (k + 1 < count) high = (words)widen_part(BFloat16(), at + from.row, dim - d);
        store((int32_t *)(rows + k / 2 * stride + 2 * d), (ints)(low | high));
      }
    return {rows, stride};
  }
  REGARD_INLINE float value(const Panel<uint16_t> &rows, int64_t k, int64_t d) {
    const uint32_t bits = uint32_t(rows.data[k / 2 * rows.stride + 2 * d + k % 2]) << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
  }
  static bool finite(const Panel<uint16_t> &rows, int64_t count, int64_t dim) {
    ints stray = {};
    for (int64_t k = 0; k < count; k += 2)
      for (int64_t d = 0; d < padded(dim); d += LANES) {
        const ints pairs = load((const int32_t *)(rows.data + k / 2 * rows.stride + 2 * d));
        stray |= (pairs & 0x7f800000) == 0x7f800000;
        stray |= (pairs & 0x7f80) == 0x7f80;
      }
    return !any(stray);
  }

  REGARD_INLINE floats exponential(floats x) { return exp2<4>(x); }
  REGARD_INLINE void store_weights(float *column, const floats *weights) {
    store(column, (floats)pairs_of(weights[0], weights[1]));
    store(column + QUERIES, (floats)pairs_of(weights[2], weights[3]));
  }
  REGARD_INLINE floats weight(const float *column, int64_t k) {
    const ints pairs = (ints)load(column + k / 2 * QUERIES);
    return k % 2 ? high_of(pairs) : low_of(pairs);
  }
  REGARD_INLINE void keep(float *column, int64_t k, ints kept) {
    float *at = column + k / 2 * QUERIES;
    const ints other_half = all(k % 2 ? 0xffff : ~0xffff);
    store(at, (floats)((ints)load(at) & (kept | other_half)));
  }
};

}  // namespace regard::REGARD_SET

#endif
