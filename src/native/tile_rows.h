// Rows of a bfloat16 matrix times a few vectors with AMX tiles: y = W·x.
//
// Without AMX, row_totals.h computes it. The left tile is 16 rows of W in place, the right one
// pairs of x. Up to 16 vectors take no longer than one: W is read from memory at the same rate. The
// order of summation does not depend on the number of vectors and rows.
#pragma once

#include "row_products.h"
#include "tiles.h"

#if defined(__AMX_BF16__)

namespace regard::REGARD_SET {

constexpr int INPUTS_OF_TILE = BYTES_OF_ROW / 2;
static_assert(INPUT_STEP % INPUTS_OF_TILE == 0);
constexpr int64_t INPUTS_AHEAD = 4 * INPUTS_OF_TILE;  // prefetch distance
constexpr int64_t BYTES_OF_BLOCK = 256 * 1024;  // of W, which stay in the L2 cache for more vectors

// Sets tile 0 to up to 16 rows, from `weight` on, times up to 16 vectors, from `x` on.
template <class Products>
REGARD_INLINE void multiply_tile_of_rows(const typename Products::Weight *weight, int64_t rows,
                                         int64_t inputs, const typename Products::Input *x,
                                         int64_t vectors) {
  constexpr int64_t size = sizeof(typename Products::Weight);
  clear_tile<0>();
  for (int64_t i = 0; i < inputs; i += INPUTS_OF_TILE) {
    int64_t next = i + INPUTS_AHEAD;
    if (next >= inputs) next += (ROWS_OF_TILE - 1) * inputs;  // of the next rows
    REGARD_UNROLLED_FOR (int r = 0; r < ROWS_OF_TILE; r++)
      __builtin_prefetch(weight + next + r * inputs);
    load_part_of_tile<LEFT>(weight + i, inputs * size, rows, (inputs - i) * size);
    load_tile<RIGHT>(x + i * vectors, vectors * Products::STEP * size);
    multiply_tiles<0, LEFT, RIGHT>();
  }
}

// Writes the results of these sums.
template <class Products>
REGARD_INLINE void write_tile_of_rows(const LinearMap<Products> &map, int64_t row, int64_t rows,
                                      int64_t vectors, typename Products::Number *result,
                                      int64_t stride) {
  const typename Products::Element element;
  floats sums[ROWS_OF_TILE] = {};  // a tile of fewer columns does not write all
  if (vectors == 1) {              // the sums of 16 rows are adjacent
    store_tile<0>(sums, sizeof(float));
  } else {
    store_tile<0>(sums, sizeof sums[0]);
    transpose(sums);
  }
  const floats bias = map.bias ? widen_part(element, map.bias + row, rows) : floats{};
  for (int64_t v = 0; v < vectors; v++)
    narrow_part(element, result + v * stride + row, sums[v] + bias, rows);
}

template <class Products>
  requires MultipliesTiles<Products>
static void multiply_rows(const LinearMap<Products> &map, int64_t first, int64_t last,
                          const Inputs<Products> &x, typename Products::Number *result,
                          int64_t stride) {
  const int64_t bytes_of_tile = ROWS_OF_TILE * map.inputs * int64_t(sizeof *map.weight);
  const int64_t rows_of_block = max(int64_t(1), BYTES_OF_BLOCK / bytes_of_tile) * ROWS_OF_TILE;
  for (int64_t begin = first; begin < last; begin += rows_of_block) {
    const int64_t end = min(last, begin + rows_of_block);
    for (int64_t v = 0; v < x.count; v += Products::VECTORS_AT_ONCE) {
      const int64_t vectors = min(x.count - v, int64_t(Products::VECTORS_AT_ONCE));
      const Tiles tiles(vectors);
      for (int64_t row = begin; row < end; row += ROWS_OF_TILE) {
        const int64_t rows = min(end - row, int64_t(ROWS_OF_TILE));
        multiply_tile_of_rows<Products>(map.weight + row * map.inputs, rows, map.inputs,
                                        x.data + v * x.width, vectors);
        write_tile_of_rows<Products>(map, row, rows, vectors, result + v * stride, stride);
      }
    }
  }
}

}  // namespace regard::REGARD_SET

#endif
