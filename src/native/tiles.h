// The two matrix products of attention, tile by tile in registers.
//
// For scores, queries are in the lanes: a block's QUERIES rows are VECTORS vectors wide, and every
// matrix whose columns are queries has that width: query (dim, QUERIES), scores (keys, QUERIES).
// Keys are read row by row, one broadcast number at a time. For contexts, the head dimension is in
// the lanes: values are read row by row, and weights are broadcast. Nothing is summed across lanes.
//
// Products (arithmetic.h) define the number type: one multiplication takes Products::STEP of the
// elements that a product sums over, and `steps` counts multiplications.
#pragma once

#include "vector.h"

namespace regard::REGARD_SET {

constexpr int VECTORS = 4, QUERIES = VECTORS * LANES;

// Rows of a tile that fill the registers, given the number of live vectors of queries.
constexpr int tile_rows(int live) {
  if (REGISTERS == 32) return live == 4 ? 6 : live == 1 ? 16 : 8;
  return live == 4 ? 3 : live == 3 ? 4 : live == 2 ? 6 : 8;
}

// Whether to use the tiles of amx_tiles.h.
template <class Products>
concept MultipliesTiles = requires { requires Products::IN_TILES; };

// Prefetches `bytes` of each row; the stride is in bytes, too.
REGARD_INLINE void fetch_bytes(const void *first, int64_t stride, int64_t rows, int64_t bytes) {
  if (stride == bytes) bytes *= rows, rows = min(rows, int64_t(1));  // one long row
  const char *row = (const char *)first;
  for (int64_t r = 0; r < rows; r++, row += stride)
    for (const char *at = row; at < row + bytes; at += 64) __builtin_prefetch(at);
}

// Rows to prefetch during other computations: row k is at data + k · stride.
struct RowsToFetch {
  const void *data = nullptr;
  int64_t stride = 0, bytes = 0;  // in bytes; bytes per row
};

// A constant number of rows of a tile.
template <class Rows>
REGARD_INLINE void fetch(const RowsToFetch &ahead, int64_t first, Rows rows) {
  const char *row = (const char *)ahead.data + first * ahead.stride;
  for (int64_t byte = 0; byte < ahead.bytes; byte += 64)
    REGARD_UNROLLED_FOR (int k = 0; k < rows; k++)
      __builtin_prefetch(row + byte + k * ahead.stride);
}

// The next numbers of a tile's rows. Only every fourth row has its address in a register; the
// others are addressed by multiples of the stride, since there are too few registers.
template <int rows, class Number>
struct RowsInStep {
  const char *fours[(rows + 3) / 4];
  int64_t once, thrice;  // the stride in bytes

  __attribute__((always_inline)) RowsInStep(const Number *first, int64_t stride)
      : once(stride * int64_t(sizeof *first)), thrice(3 * once) {
    REGARD_UNROLLED_FOR (int i = 0; i < (rows + 3) / 4; i++)
      fours[i] = (const char *)first + 4 * i * once;
  }
  __attribute__((always_inline)) const Number *operator[](int k) const {
    return (const Number *)(fours[k / 4] + (k % 4 == 3 ? thrice : k % 4 * once));
  }
  __attribute__((always_inline)) void advance(int64_t numbers) {
    REGARD_UNROLLED_FOR (int i = 0; i < (rows + 3) / 4; i++) {
      fours[i] += numbers * int64_t(sizeof(Number));
      asm("" : "+r"(fours[i]));  // else the compiler keeps all addresses
    }
  }
};

// scores[k] = Σ_d key[k][d] · query[d], and the running maximum `peak` of each query.
template <class Products, int live, int rows, class Number>
REGARD_INLINE void score_tile(const Number *key, int64_t stride, int64_t steps, const float *query,
                              float *scores, floats *peak) {
  floats sums[rows][live];
  REGARD_UNROLLED_FOR (int k = 0; k < rows; k++)
    REGARD_UNROLLED_FOR (int j = 0; j < live; j++) sums[k][j] = floats{};
  RowsInStep<rows, Number> row(key, stride);
  for (int64_t d = 0; d < steps; d++, row.advance(Products::STEP)) {
    floats q[live];
    REGARD_UNROLLED_FOR (int j = 0; j < live; j++) q[j] = load(query + d * QUERIES + j * LANES);
    REGARD_UNROLLED_FOR (int k = 0; k < rows; k++) {
      const floats number = Products::load_broadcast(row[k]);
      REGARD_UNROLLED_FOR (int j = 0; j < live; j++)
        sums[k][j] = Products::multiply_add(number, q[j], sums[k][j]);
    }
  }
  REGARD_UNROLLED_FOR (int j = 0; j < live; j++) {
    floats highest = peak[j];
    REGARD_UNROLLED_FOR (int k = 0; k < rows; k++) highest = max(highest, sums[k][j]);
    peak[j] = highest;
  }
  REGARD_UNROLLED_FOR (int k = 0; k < rows; k++)
    REGARD_UNROLLED_FOR (int j = 0; j < live; j++)
      store(scores + k * QUERIES + j * LANES, sums[k][j]);
}

// Covers rows by tiles as large as possible: calls tile(first row, constant size).
template <int largest, class Tile>
REGARD_INLINE void tile_over(int64_t rows, Tile tile) {
  int64_t first = 0;
  const auto of = [&](auto size) REGARD_INLINE_LAMBDA {
    for (; first + size <= rows; first += size) tile(first, size);
  };
  of(std::integral_constant<int, largest>());
  if constexpr (largest > 8) of(std::integral_constant<int, 8>());
  if constexpr (largest > 4) of(std::integral_constant<int, 4>());
  if constexpr (largest > 2) of(std::integral_constant<int, 2>());
  of(std::integral_constant<int, 1>());
}

struct FetchNothing {
  void operator()(int64_t, int64_t) const {}
};

// It prefetches the next keys meanwhile, and calls ahead(first, rows) for each tile.
template <class Products, int live, class Number, class Ahead = FetchNothing>
__attribute__((noinline)) void score_rows(const Number *key, int64_t stride, int64_t keys,
                                          int64_t steps, const float *query, float *scores,
                                          floats *peak, Ahead ahead = {}) {
  constexpr int64_t size = sizeof(Number);
  const RowsToFetch next = {key, stride * size, steps * Products::STEP * size};
  tile_over<tile_rows(live)>(keys, [&](int64_t k, auto rows) REGARD_INLINE_LAMBDA {
    fetch(next, k + rows, rows);
    ahead(k, rows);
    score_tile<Products, live, rows>(key + k * stride, stride, steps, query, scores + k * QUERIES,
                                     peak);
  });
}

// sums[m] += Σ_r coefficient[r][m] · weights[r]: a product of rows with weights, with keys in the
// lanes. The sum of a block is computed before it is added, which rounds less than one long sum.
template <class Products, int live, int rows, class Number>
REGARD_INLINE void left_product_tile(const Number *coefficients, int64_t stride, int64_t steps,
                                     const float *weights, float *to) {
  floats sums[rows][live];
  REGARD_UNROLLED_FOR (int m = 0; m < rows; m++)
    REGARD_UNROLLED_FOR (int j = 0; j < live; j++) sums[m][j] = floats{};
  for (int64_t r = 0; r < steps; r++) {
    floats w[live];
    REGARD_UNROLLED_FOR (int j = 0; j < live; j++) w[j] = load(weights + r * QUERIES + j * LANES);
    REGARD_UNROLLED_FOR (int m = 0; m < rows; m++) {
      const floats number =
          Products::load_broadcast(coefficients + r * stride + m * Products::STEP);
      REGARD_UNROLLED_FOR (int j = 0; j < live; j++)
        sums[m][j] = Products::multiply_add(number, w[j], sums[m][j]);
    }
  }
  REGARD_UNROLLED_FOR (int m = 0; m < rows; m++)
    REGARD_UNROLLED_FOR (int j = 0; j < live; j++) {
      float *at = to + m * QUERIES + j * LANES;
      store(at, load(at) + sums[m][j]);
    }
}

template <class Products, int live, class Number>
__attribute__((noinline)) void left_product_rows(const Number *coefficients, int64_t stride,
                                                 int64_t steps, int64_t count, const float *weights,
                                                 float *to) {
  constexpr int rows = REGISTERS == 32 && live == 4 ? 4 : tile_rows(live);
  tile_over<rows>(count, [&](int64_t m, auto rows) REGARD_INLINE_LAMBDA {
    left_product_tile<Products, live, rows>(coefficients + m * Products::STEP, stride, steps,
                                            weights, to + m * QUERIES);
  });
}

// Σ_k weights[k][r] · value[k], with the head dimension in the lanes. Values are padded to complete
// vectors, with STEP rows interleaved. Calls write(r, d, sums) with sums of (rows, columns).
template <class Products, int columns, int rows, class Number, class Write>
REGARD_INLINE void weighted_tile(const Number *value, int64_t stride, int64_t steps,
                                 const float *weights, int64_t r, int64_t d, Write &write) {
  floats total[rows][columns];
  REGARD_UNROLLED_FOR (int i = 0; i < rows; i++)
    REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) total[i][j] = floats{};
  for (int64_t k = 0; k < steps; k++) {
    floats v[columns];
    REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
      v[j] = load((const float *)(value + k * stride) + j * LANES);
    REGARD_UNROLLED_FOR (int i = 0; i < rows; i++) {
      const floats weight = broadcast(weights[k * QUERIES + r + i]);
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
        total[i][j] = Products::multiply_add(weight, v[j], total[i][j]);
    }
  }
  write(r, d, total);
}

// Adds a tile to sums (rows, width), width a multiple of LANES. The sum of a block is computed
// before it is added, which rounds less than one long sum.
struct AddToSums {
  float *sums;
  int64_t width;

  template <int rows, int columns>
  __attribute__((always_inline)) void operator()(int64_t r, int64_t d,
                                                 floats (&total)[rows][columns]) const {
    REGARD_UNROLLED_FOR (int i = 0; i < rows; i++)
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) {
        float *at = sums + (r + i) * width + d + j * LANES;
        store(at, load(at) + total[i][j]);
      }
  }
};

// Steps of a sum over keys.
struct StepRange {
  int64_t first, last;
};

template <class Products, int columns, class Number, class Steps, class Write>
__attribute__((noinline)) void weighted_columns(const Number *value, int64_t stride,
                                                const float *weights, int64_t first, int64_t last,
                                                int64_t d, Steps steps, Write &write) {
  constexpr int largest = REGISTERS == 32 && columns == 4 ? 4 : tile_rows(columns);
  tile_over<largest>(last - first, [&](int64_t i, auto size) REGARD_INLINE_LAMBDA {
    const int64_t r = first + i;
    const StepRange range = steps(r, int(size));
    weighted_tile<Products, columns, size>(value + range.first * stride, stride,
                                           range.last - range.first,
                                           weights + range.first * QUERIES, r, d, write);
  });
}

// Calls `call` with the number of live vectors as a constant.
template <class Call>
REGARD_INLINE void with_live(int live, Call call) {
  static_assert(VECTORS == 4);
  if (live == 4) return call(std::integral_constant<int, 4>());
  if (live == 3) return call(std::integral_constant<int, 3>());
  if (live == 2) return call(std::integral_constant<int, 2>());
  call(std::integral_constant<int, 1>());
}

// For rows [first, last); steps(row, count) returns the StepRange of `count` rows from `row` on.
template <class Products, class Number, class Steps, class Write>
static void weighted_rows(const Number *value, int64_t stride, const float *weights, int64_t first,
                          int64_t last, int64_t width, Steps steps, Write &write) {
  for (int64_t d = 0; d < width; d += VECTORS * LANES)
    with_live(int(min(int64_t(VECTORS), (width - d) / LANES)), [&](auto columns) {
      weighted_columns<Products, columns>(value + d * Products::STEP, stride, weights, first, last,
                                          d, steps, write);
    });
}

}  // namespace regard::REGARD_SET
