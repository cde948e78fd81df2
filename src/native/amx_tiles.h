// The matrix products of attention with AMX tiles, for operands in pairs.h's layout.
//
// For scores, the left tile is 16 keys in place and the right one pairs of queries. For contexts,
// the left one is 16 queries' weights, transposed, and the right one pairs of values. For gradients
// of keys and values, the left one is 16 keys' weights and the right one pairs of rows. The order
// of summation of a dot product does not depend on what is computed together with it.
#pragma once

#include "amx.h"
#include "tiles.h"

#if defined(__AMX_BF16__)

namespace regard::REGARD_SET {

static_assert(LEFT == VECTORS);  // sums are a vector of columns each
constexpr int MAX_STEPS = 96;    // of a block of keys

// Calls call(constant) for numbers below `count`.
template <int count, class Call, int i = 0>
REGARD_INLINE void for_each_below(Call call) {
  if constexpr (i < count) {
    call(std::integral_constant<int, i>());
    for_each_below<count, Call, i + 1>(call);
  }
}

// Writes the sums of a number of rows from r on and of vectors of columns from d on; tiles are in
// row-major order.
template <int row_tiles, int columns, class Write>
REGARD_INLINE void write_sums(int64_t rows, int64_t r, int64_t d, Write &write) {
  alignas(64) floats sums[row_tiles * ROWS_OF_TILE][columns];
  for_each_below<row_tiles * columns>([&](auto tile) REGARD_INLINE_LAMBDA {
    store_tile<tile>(&sums[tile / columns * ROWS_OF_TILE][tile % columns], sizeof sums[0]);
  });
  tile_over<4>(rows, [&](int64_t first, auto count) REGARD_INLINE_LAMBDA {
    constexpr int size = count;
    floats total[size][columns];
    REGARD_UNROLLED_FOR (int i = 0; i < size; i++)
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) total[i][j] = sums[first + i][j];
    write(r + first, d, total);
  });
}

// The scores of up to 16 keys and a number of vectors of queries, accumulated in tiles.
template <class Products, int live, class Number>
REGARD_INLINE void score_keys(const Number *key, int64_t stride, int64_t keys, int64_t steps,
                              const float *query) {
  constexpr int64_t size = sizeof(Number), elements = Products::STEP;
  for_each_below<live>([](auto j) REGARD_INLINE_LAMBDA { clear_tile<j>(); });
  for (int64_t step = 0; step < steps; step += ROWS_OF_TILE) {
    load_part_of_tile<LEFT>(key + step * elements, stride * size, keys,
                            (steps - step) * elements * size);
    for_each_below<live>([&](auto j) REGARD_INLINE_LAMBDA {
      load_tile<RIGHT>(query + step * QUERIES + j * LANES, QUERIES * sizeof *query);
      multiply_tiles<j, LEFT, RIGHT>();
    });
  }
}

// Stores the first `keys` rows of these scores.
template <int live>
REGARD_INLINE void store_scores(float *scores, int64_t keys) {
  alignas(64) float part[ROWS_OF_TILE * QUERIES];
  float *const to = keys < ROWS_OF_TILE ? part : scores;
  for_each_below<live>(
      [&](auto j) REGARD_INLINE_LAMBDA { store_tile<j>(to + j * LANES, QUERIES * sizeof *to); });
  if (to == scores) return;
  for (int64_t at = 0; at < keys * QUERIES; at += QUERIES)
    memcpy(scores + at, part + at, live * LANES * sizeof *to);
}

// See tiles.h.
template <class Products, int live, class Number, class Ahead = FetchNothing>
  requires MultipliesTiles<Products>
__attribute__((noinline)) void score_rows(const Number *key, int64_t stride, int64_t keys,
                                          int64_t steps, const float *query, float *scores,
                                          floats *peak, Ahead ahead = {}) {
  constexpr int64_t size = sizeof(Number);
  using Tile = std::integral_constant<int, ROWS_OF_TILE>;
  const RowsToFetch next = {key, stride * size, steps * Products::STEP * size};
  const auto find_peaks = [&](int64_t first, auto count) REGARD_INLINE_LAMBDA {
    REGARD_UNROLLED_FOR (int j = 0; j < live; j++) {
      floats highest = peak[j];
      for (int64_t k = first; k < first + count; k++)
        highest = max(highest, load(scores + k * QUERIES + j * LANES));
      peak[j] = highest;
    }
  };
  int64_t k = 0;
  for (; k < keys; k += ROWS_OF_TILE) {
    fetch(next, k + ROWS_OF_TILE, Tile());
    ahead(k, Tile());
    const int64_t rows = min(keys - k, int64_t(ROWS_OF_TILE));
    score_keys<Products, live>(key + k * stride, stride, rows, steps, query);
    // Loading right after storing stalls, so the peaks of a tile are found one tile later.
    if (k) find_peaks(k - ROWS_OF_TILE, Tile());
    store_scores<live>(scores + k * QUERIES, rows);
  }
  find_peaks(k - ROWS_OF_TILE, keys - (k - ROWS_OF_TILE));
}

// The weights of 16 rows as tiles, with the keys of a row adjacent.
struct TransposedWeights {
  alignas(64) floats tiles[MAX_STEPS / ROWS_OF_TILE][ROWS_OF_TILE];

  void load_from(const float *weights, int64_t steps) {
    for (int64_t step = 0; step < steps; step += ROWS_OF_TILE, weights += ROWS_OF_TILE * QUERIES) {
      floats *const tile = tiles[step / ROWS_OF_TILE];
      REGARD_UNROLLED_FOR (int i = 0; i < ROWS_OF_TILE; i++)
        tile[i] = step + i < steps ? load(weights + i * QUERIES) : floats{};
      transpose(tile);
    }
  }
};

// Sums of a number of tiles of rows, from r on, and of vectors of columns, from d on.
template <int row_tiles, int columns, class Number, class Write>
REGARD_INLINE void weighted_tiles(const Number *value, int64_t stride, int64_t steps,
                                  const TransposedWeights *weights, int64_t rows, int64_t r,
                                  int64_t d, Write &write) {
  constexpr int64_t of_vector = BYTES_OF_ROW / int64_t(sizeof(Number));
  for_each_below<row_tiles * columns>([](auto tile) REGARD_INLINE_LAMBDA { clear_tile<tile>(); });
  for (int64_t step = 0; step < steps; step += ROWS_OF_TILE, value += ROWS_OF_TILE * stride) {
    for_each_below<row_tiles>([&](auto i) REGARD_INLINE_LAMBDA {
      load_tile<LEFT + i>(weights[i].tiles[step / ROWS_OF_TILE], BYTES_OF_ROW);
    });
    for_each_below<columns>([&](auto j) REGARD_INLINE_LAMBDA {
      constexpr int right = RIGHT + 1;
      load_part_of_tile<right>(value + j * of_vector, stride * int64_t(sizeof(Number)),
                               steps - step, BYTES_OF_ROW);
      for_each_below<row_tiles>([](auto i) REGARD_INLINE_LAMBDA {
        multiply_tiles<i * columns + decltype(j)::value, LEFT + i, right>();
      });
    });
  }
  write_sums<row_tiles, columns>(rows, r, d, write);
}

template <class Products, class Number, class Steps, class Write>
  requires MultipliesTiles<Products>
static void weighted_rows(const Number *value, int64_t stride, const float *weights, int64_t first,
                          int64_t last, int64_t width, Steps steps, Write &write) {
  const auto multiply = [&](int64_t r, int64_t rows, auto row_tiles) REGARD_INLINE_LAMBDA {
    constexpr int most = row_tiles == 2 ? 2 : VECTORS;  // columns
    const StepRange range = steps(r, int(rows));
    TransposedWeights transposed[row_tiles];
    for (int i = 0; i < row_tiles; i++)
      transposed[i].load_from(weights + range.first * QUERIES + r + i * ROWS_OF_TILE,
                              range.last - range.first);
    for (int64_t d = 0; d < width; d += most * LANES)
      with_live(int(min(int64_t(most), (width - d) / LANES)), [&](auto live) {
        constexpr int columns = live < most ? live : most;
        weighted_tiles<row_tiles, columns>(value + range.first * stride + d * Products::STEP,
                                           stride, range.last - range.first, transposed, rows, r, d,
                                           write);
      });
  };
  int64_t r = first;
  for (; last - r > ROWS_OF_TILE; r += 2 * ROWS_OF_TILE)
    multiply(r, min(last - r, int64_t(2) * ROWS_OF_TILE), std::integral_constant<int, 2>());
  if (r < last) multiply(r, last - r, std::integral_constant<int, 1>());
}

// See gradient_tile.h. Tiles start from the sums so far, which is faster than adding vectors; but
// not partial tiles, since their remaining rows do not belong to the caller.
template <class Products, int columns, class Write>
  requires MultipliesTiles<Products>
__attribute__((noinline)) void gradient_columns(const typename Products::Number *weights,
                                                const float *rows, int64_t stride, int first,
                                                int last, int64_t keys, int64_t d, Write &write) {
  constexpr int STEP = Products::STEP;
  constexpr int64_t size = sizeof(typename Products::Number);
  for (int64_t k = 0; k < keys; k += ROWS_OF_TILE) {
    float *const sums = keys - k >= ROWS_OF_TILE ? write.sums_at(k, d) : nullptr;
    const int64_t sums_stride = write.width * int64_t(sizeof *sums);
    const bool adds = sums && write.add;
    for_each_below<columns>([&](auto j) REGARD_INLINE_LAMBDA {
      adds ? load_tile<j>(sums + j * LANES, sums_stride) : clear_tile<j>();
    });
    for (int64_t step = first; step < last; step += ROWS_OF_TILE) {
      load_part_of_tile<LEFT>(weights + k * QUERIES + step * STEP, QUERIES * size, keys - k,
                              (last - step) * STEP * size);
      for_each_below<columns>([&](auto j) REGARD_INLINE_LAMBDA {
        load_part_of_tile<RIGHT>(rows + step * stride + j * LANES, stride * int64_t(sizeof *rows),
                                 last - step, BYTES_OF_ROW);
        multiply_tiles<j, LEFT, RIGHT>();
      });
    }
    if (sums)
      for_each_below<columns>(
          [&](auto j) REGARD_INLINE_LAMBDA { store_tile<j>(sums + j * LANES, sums_stride); });
    else
      write_sums<1, columns>(min(keys - k, int64_t(ROWS_OF_TILE)), k, d, write);
  }
}

}  // namespace regard::REGARD_SET

#endif
