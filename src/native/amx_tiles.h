// The products of attention by the tiles of AMX, from and to memory as pairs.h lays it out.
//
// Of scores, the left tile is 16 keys in place and the right one pairs of queries; of contexts, the
// left one is 16 queries' weights, transposed, and the right one pairs of values; of gradients of
// keys and values, 16 keys' weights and pairs of rows. A dot product is summed up in one order,
// with whatever it is computed together.
#pragma once

#include "amx.h"
#include "tiles.h"

#if defined(__AMX_BF16__)

namespace regard::REGARD_SET {

constexpr int LEFT = VECTORS, RIGHT = 5;  // tiles: those before are sums, a vector of columns each
constexpr int MAX_STEPS = 96;             // of a block of keys

// Calls call(constant) for numbers below `count`.
template <int count, class Call, int i = 0>
REGARD_INLINE void for_each_below(Call call) {
  if constexpr (i < count) {
    call(std::integral_constant<int, i>());
    for_each_below<count, Call, i + 1>(call);
  }
}

// Writes the sums of up to 16 rows from r on and of so many vectors of columns from d on.
template <int columns, class Write>
REGARD_INLINE void write_sums(int64_t rows, int64_t r, int64_t d, Write &write) {
  alignas(64) floats sums[ROWS_OF_TILE][columns];
  for_each_below<columns>([&](auto j)
                              REGARD_INLINE_LAMBDA { store_tile<j>(&sums[0][j], sizeof sums[0]); });
  tile_over<4>(rows, [&](int64_t first, auto count) REGARD_INLINE_LAMBDA {
    constexpr int size = count;
    floats total[size][columns];
    REGARD_UNROLLED_FOR (int i = 0; i < size; i++)
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) total[i][j] = sums[first + i][j];
    write(r + first, d, total);
  });
}

// See tiles.h.
template <class Products, int live, class Number, class Ahead = FetchNothing>
  requires MultipliesTiles<Products>
__attribute__((noinline)) void score_rows(const Number *key, int64_t stride, int64_t keys,
                                          int64_t steps, const float *query, float *scores,
                                          floats *peak, Ahead ahead = {}) {
  constexpr int STEP = Products::STEP;
  constexpr int64_t size = sizeof(Number), row_of_sums = QUERIES * int64_t(sizeof(float));
  using Tile = std::integral_constant<int, ROWS_OF_TILE>;
  const RowsToFetch next = {key, stride * size, steps * STEP * size};
  for (int64_t k = 0; k < keys; k += ROWS_OF_TILE, scores += ROWS_OF_TILE * QUERIES) {
    const int64_t rows = min(keys - k, int64_t(ROWS_OF_TILE));
    fetch(next, k + ROWS_OF_TILE, Tile());
    ahead(k, Tile());
    for_each_below<live>([](auto j) REGARD_INLINE_LAMBDA { clear_tile<j>(); });
    for (int64_t step = 0; step < steps; step += ROWS_OF_TILE) {
      load_part_of_tile<LEFT>(key + k * stride + step * STEP, stride * size, rows,
                              (steps - step) * STEP * size);
      for_each_below<live>([&](auto j) REGARD_INLINE_LAMBDA {
        load_tile<RIGHT>(query + step * QUERIES + j * LANES, row_of_sums);
        multiply_tiles<j, LEFT, RIGHT>();
      });
    }
    alignas(64) float part[ROWS_OF_TILE * QUERIES];
    float *const sums = rows == ROWS_OF_TILE ? scores : part;
    for_each_below<live>(
        [&](auto j) REGARD_INLINE_LAMBDA { store_tile<j>(sums + j * LANES, row_of_sums); });
    for (int64_t i = 0; i < rows; i++)
      REGARD_UNROLLED_FOR (int j = 0; j < live; j++) {
        const floats score = load(sums + i * QUERIES + j * LANES);
        peak[j] = max(peak[j], score);
        if (sums != scores) store(scores + i * QUERIES + j * LANES, score);
      }
  }
}

template <class Products, class Number, class Steps, class Write>
  requires MultipliesTiles<Products>
static void weighted_rows(const Number *value, int64_t stride, const float *weights, int64_t first,
                          int64_t last, int64_t width, Steps steps, Write &write) {
  constexpr int STEP = Products::STEP;
  constexpr int64_t size = sizeof(Number);
  for (int64_t r = first; r < last; r += ROWS_OF_TILE) {
    const int64_t rows = min(last - r, int64_t(ROWS_OF_TILE));
    const StepRange range = steps(r, int(rows));
    const int64_t count = range.last - range.first;
    alignas(64) floats left[MAX_STEPS / ROWS_OF_TILE]
                           [ROWS_OF_TILE];  // the weights of a row's keys side by side
    for (int64_t step = 0; step < count; step += ROWS_OF_TILE) {
      floats *const of_keys = left[step / ROWS_OF_TILE];
      const float *from = weights + (range.first + step) * QUERIES + r;
      REGARD_UNROLLED_FOR (int i = 0; i < ROWS_OF_TILE; i++)
        of_keys[i] = step + i < count ? load(from + i * QUERIES) : floats{};
      transpose(of_keys);
    }
    for (int64_t d = 0; d < width; d += VECTORS * LANES)
      with_live(int(min(int64_t(VECTORS), (width - d) / LANES)), [&](auto columns) {
        for_each_below<columns>([](auto j) REGARD_INLINE_LAMBDA { clear_tile<j>(); });
        for (int64_t step = 0; step < count; step += ROWS_OF_TILE) {
          load_tile<LEFT>(left[step / ROWS_OF_TILE], BYTES_OF_ROW);
          for_each_below<columns>([&](auto j) REGARD_INLINE_LAMBDA {
            load_part_of_tile<RIGHT>(value + (range.first + step) * stride + (d + j * LANES) * STEP,
                                     stride * size, count - step, BYTES_OF_ROW);
            multiply_tiles<j, LEFT, RIGHT>();
          });
        }
        write_sums<columns>(rows, r, d, write);
      });
  }
}

// See gradient_tile.h.
template <class Products, int columns, class Write>
  requires MultipliesTiles<Products>
__attribute__((noinline)) void gradient_columns(const typename Products::Number *weights,
                                                const float *rows, int64_t stride, int first,
                                                int last, int64_t keys, int64_t d, Write &write) {
  constexpr int STEP = Products::STEP;
  constexpr int64_t size = sizeof(typename Products::Number);
  for (int64_t k = 0; k < keys; k += ROWS_OF_TILE) {
    for_each_below<columns>([](auto j) REGARD_INLINE_LAMBDA { clear_tile<j>(); });
    for (int64_t step = first; step < last; step += ROWS_OF_TILE) {
      load_part_of_tile<LEFT>(weights + k * QUERIES + step * STEP, QUERIES * size, keys - k,
                              (last - step) * STEP * size);
      for_each_below<columns>([&](auto j) REGARD_INLINE_LAMBDA {
        load_part_of_tile<RIGHT>(rows + step * stride + j * LANES, stride * int64_t(sizeof *rows),
                                 last - step, BYTES_OF_ROW);
        multiply_tiles<j, LEFT, RIGHT>();
      });
    }
    write_sums<columns>(min(keys - k, int64_t(ROWS_OF_TILE)), k, d, write);
  }
}

}  // namespace regard::REGARD_SET

#endif
