// The arithmetic of bfloat16 dot products in pairs.
//
// One instruction adds two products to each float32 lane; an AMX instruction does so for a whole
// tile.
//
// A lane of 32 bits holds a pair: elements d and d + 1 of a query, the weights of keys k and k + 1,
// or the broadcast pair that they are multiplied by. Keys are read in place; rows k and k + 1 of
// values are interleaved, a block at a time. A missing second half of a pair is 0. The instructions
// treat numbers below 2⁻¹²⁶ as 0.
#pragma once

#include "arithmetic.h"

#if defined(__AVX512BF16__)

namespace regard::REGARD_SET {

namespace unaligned {
typedef int32_t pair __attribute__((aligned(2), may_alias));
typedef int32_t pairs __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
static_assert(alignof(pair) == 2 && alignof(pairs) == 2);
}  // namespace unaligned

REGARD_INLINE ints load_pairs(const uint16_t *from) { return *(const unaligned::pairs *)from; }

// The first elements of a row, zeros after them: nothing past the row's end is read.
REGARD_INLINE ints load_pairs_part(const uint16_t *from, int64_t count) {
  if (count >= 2 * LANES) return load_pairs(from);
  uint16_t part[2 * LANES] = {};
  memcpy(part, from, size_t(count) * sizeof *from);
  return load_pairs(part);
}

using numbers = uint16_t __attribute__((vector_size(LANES * 4)));

// Interleaves elements of two vectors from `first` on; index 32 is the second vector's first.
template <int first, int second, size_t... i>
REGARD_INLINE ints interleave_numbers(numbers a, numbers b, std::index_sequence<i...>) {
  return (ints)__builtin_shufflevector(a, b, (i % 2 ? second + i / 2 : first + i / 2)...);
}
using all_numbers = std::make_index_sequence<2 * LANES>;

// Rounds to nearest, ties to even; NaN stays NaN.
REGARD_INLINE ints pairs_of(floats low, floats high) {
  const numbers both = (numbers)_mm512_cvtne2ps_pbh(high, low);
  return interleave_numbers<0, LANES>(both, both, all_numbers());
}
REGARD_INLINE floats low_of(ints pairs) { return (floats)(pairs << 16); }
REGARD_INLINE floats high_of(ints pairs) { return (floats)(pairs & ~0xffff); }

// Sets key k's half of the pairs to 0 where it is not kept.
REGARD_INLINE void keep_half(int32_t *pairs, int64_t k, ints kept) {
  const ints other_half = broadcast(k % 2 ? 0xffff : ~0xffff);
  store(pairs, load(pairs) & (kept | other_half));
}

// Interleaves two vectors of numbers as pairs.
REGARD_INLINE void store_interleaved(int32_t *to, ints low, ints high) {
  const numbers a = (numbers)low, b = (numbers)high;
  store(to, interleave_numbers<0, 2 * LANES>(a, b, all_numbers()));
  store(to + LANES, interleave_numbers<LANES, 3 * LANES>(a, b, all_numbers()));
}

// Interleaves rows 2i and 2i + 1, to rows + i · to_stride.
static void interleave(const uint16_t *from, int64_t from_stride, int64_t count, int64_t dim,
                       uint16_t *rows, int64_t to_stride) {
  for (int64_t d = 0; d < dim; d += 2 * LANES) {
    const uint16_t *row = from + d;
    int32_t *to = (int32_t *)(rows + 2 * d);
    const auto pack = [&](ints low, ints high) REGARD_INLINE_LAMBDA {
      store_interleaved(to, low, high);
      row += 2 * from_stride, to += to_stride / 2;
    };
    const int64_t rest = dim - d;
    int64_t k = 0;
    for (; rest >= 2 * LANES && k + 1 < count; k += 2)
      pack(load_pairs(row), load_pairs(row + from_stride));
    for (; k < count; k += 2)
      pack(load_pairs_part(row, rest),
           k + 1 < count ? load_pairs_part(row + from_stride, rest) : ints{});
  }
}

struct PairProducts {
  using Number = uint16_t;
  static constexpr int STEP = 2;
#if defined(__AMX_BF16__)
  static constexpr bool IN_TILES = true;  // the products of amx_tiles.h
  using Unit = Tiles;
#else
  struct Unit {};
#endif

  REGARD_INLINE floats load_broadcast(const uint16_t *from) {
    return (floats)broadcast(*(const unaligned::pair *)from);
  }
  REGARD_INLINE floats multiply_add(floats number, floats lanes, floats sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)number, (__m512bh)lanes);
  }
};

struct Pairs : PairProducts {
  using Element = BFloat16;
  using Products = PairProducts;

  // The block's rows, times 1 or −1, to (dim / 2, QUERIES) pairs; lanes not in use are 0.
  static void load_queries(const regard_tensor &from, const QueryBlock &queries, int64_t dim,
                           float factor, float *to) {
    const ints signs = broadcast(factor < 0 ? int32_t(0x80008000) : 0);
    load_transposed<BFloat16>(
        from, queries, dim, 2 * LANES, to,
        [&](const uint16_t *row) REGARD_INLINE_LAMBDA { return (floats)(load_pairs(row) ^ signs); },
        [&](const uint16_t *row, int64_t count) {
          return (floats)(load_pairs_part(row, count) ^ signs);
        });
  }

  // The rows in place, or with a 0 after the last element if their length is odd.
  static PackedRows<uint16_t> keys(const regard_tensor &from, const QueryBlock &queries,
                                   int64_t first, int64_t count, int64_t dim, float *scratch) {
    const uint16_t *data = first_row<BFloat16>(from, queries, first);
    if (dim % 2 == 0) return {data, from.row};
    const int64_t stride = dim + 1;
    uint16_t *rows = (uint16_t *)scratch;
    for (int64_t k = 0; k < count; k++) {
      memcpy(rows + k * stride, data + k * from.row, size_t(dim) * sizeof *rows);
      rows[k * stride + dim] = 0;
    }
    return {rows, stride};
  }

  static bool copies_keys(const regard_problem &) { return false; }
  static bool values_in_place(const regard_problem &, const regard_tensor &, int64_t) {
    return false;
  }
  static int64_t value_stride(int64_t dim) {
    return (2 * dim + 4 * LANES - 1) / (4 * LANES) * (4 * LANES);
  }
  static PackedRows<uint16_t> values(const regard_problem &, const regard_tensor &from,
                                     const QueryBlock &queries, int64_t first, int64_t count,
                                     int64_t dim, float *scratch) {
    return pack_rows(from, queries, first, count, dim, scratch);
  }
  static PackedRows<uint16_t> pack_rows(const regard_tensor &from, const QueryBlock &queries,
                                        int64_t first, int64_t count, int64_t dim, float *to) {
    const int64_t stride = value_stride(dim);
    uint16_t *const rows = (uint16_t *)to;
    interleave(first_row<BFloat16>(from, queries, first), from.row, count, dim, rows, stride);
    return {rows, stride};
  }
  REGARD_INLINE floats value_part(const PackedRows<uint16_t> &rows, int64_t k, int64_t d) {
    const ints pairs = load((const int32_t *)(rows.data + k / 2 * rows.stride + 2 * d));
    return k % 2 ? high_of(pairs) : low_of(pairs);
  }

  // Sets the numbers of such a part to 0.
  REGARD_INLINE void clear_values(uint16_t *rows, int64_t stride, int64_t k, int64_t d,
                                  ints cleared) {
    keep_half((int32_t *)(rows + k / 2 * stride + 2 * d), k, ~cleared);
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
    keep_half((int32_t *)(column + k / 2 * QUERIES), k, kept);
  }
};

}  // namespace regard::REGARD_SET

#endif
