// Rows of a matrix times a few vectors: y = W·x, where each row of W is read once.
//
// The time is that of reading W from memory, if the processor never stalls:
// - For one or two vectors, W is read in memory order if that is faster. Otherwise, tiles of
//   rows are multiplied, and the next tiles are prefetched.
// - x stays in the L1 cache while W streams through it: tiles iterate over a block of the inputs at
//   a time, whose part of x is used for a group of rows.
//
// The order of summation does not depend on the number of vectors and rows: lane by lane over a
// block, then the lanes in pairs, then block by block.
#pragma once

#include "fetch_line.h"
#include "processor.h"
#include "row_products.h"

namespace regard::REGARD_SET {

constexpr int BLOCK_STEPS = 192 / LANES;  // steps of a block: float32 x of 8 vectors takes 6 KiB
constexpr int ROWS_OF_GROUP = 24;         // maximum rows that use a block's part of x
constexpr int ROWS_IN_ORDER = 3 * LANES;  // maximum rows whose results are written together

// How W is read, by the vendor of the processor. Measured on one thread of a Zen 4, as fractions of
// its bandwidth: in order 92 to 100 % without prefetching, 66 to 89 with it; 8 vectors by tiles 70
// to 78 % with prefetching into the L2 cache, 30 to 39 into the L1 cache.
struct WeightReading {
  int64_t ahead_in_order;   // prefetch distance in bytes; 0 if the hardware prefetcher suffices
  int64_t ahead_of_tile;    // likewise
  bool into_second_cache;   // prefetch tiles into the L2 cache
  bool floats_in_order;     // read float32 in order with 8 lanes
  int64_t bytes_of_inputs;  // maximum bytes of x that stay in the L1 cache beside W in order
};

static const WeightReading &weight_reading() {
  constexpr int64_t KiB = 1024;
  static constexpr WeightReading of_amd{0, 32 * KiB, true, true, 16 * KiB};
  static constexpr WeightReading of_others{8 * KiB, 8 * KiB, false, false, INT64_MAX};
  return processor::is_amd() ? of_amd : of_others;
}

// Rows of a tile for a number of vectors: the registers hold a sum for each pair. With 16 lanes,
// the largest divisor of a group for which the sums are at most LANES, which are reduced together.
constexpr int rows_of_tile(int vectors) {
  constexpr int sums = LANES >= 16 ? LANES : REGISTERS == 32 ? 24 : 12;
  constexpr int most = REGISTERS == 32 && LANES >= 8 ? 8 : 4;
  int rows = sums / vectors < most ? sums / vectors : most;
  while (ROWS_OF_GROUP % rows) rows--;
  return rows;
}

// Totals of a tile of rows and vectors, padded to complete vectors of lanes.
constexpr int totals_of_tile(int rows, int vectors) {
  return (rows * vectors + LANES - 1) / LANES * LANES;
}
constexpr int MAX_TOTALS = ROWS_OF_GROUP * totals_of_tile(1, VECTORS_OF_REGISTERS);

// Adds lanes `distance` apart, a power of two: those of a where that bit of the lane index is 0,
// else those of b. Half of the numbers stay in their lanes: blending is faster than shuffling.
template <int distance, size_t... i>
REGARD_INLINE floats add_lanes(floats a, floats b, std::index_sequence<i...>) {
  const floats stay = __builtin_shufflevector(a, b, int(i & distance ? LANES + i : i)...);
  const floats move =
      __builtin_shufflevector(a, b, int(i & distance ? LANES + i - distance : i + distance)...);
  return stay + move;
}

// Sums the lanes of each of LANES vectors in pairs, in the same order for every vector.
template <int count = LANES>
REGARD_INLINE floats sum_each_of(floats *vectors) {
  if constexpr (count > 1) {
    constexpr int left = count / 2;
    REGARD_UNROLLED_FOR (int i = 0; i < left; i++)
      vectors[i] = add_lanes<left>(vectors[i], vectors[i + left], all_lanes());
    return sum_each_of<left>(vectors);
  }
  return vectors[0];
}

// Adds the sum of the lanes of each vector to its total.
template <int count, class Sum>
REGARD_INLINE void add_each(const Sum *sums, float *totals) {
  REGARD_UNROLLED_FOR (int first = 0; first < count; first += LANES) {
    floats some[LANES] = {};
    const int vectors = min(LANES, count - first);
    REGARD_UNROLLED_FOR (int i = 0; i < vectors; i++)
      some[i] = __builtin_convertvector(sums[first + i], floats);
    store(totals + first, load(totals + first) + sum_each_of(some));
  }
}

template <class Totals>
struct RowBlocks {
  static constexpr int STEP = Totals::STEP;
  // A block of as many int8 inputs would be few bytes, with the same cost of summing lanes.
  static constexpr int STEPS = Totals::HAS_SCALE ? 2 * BLOCK_STEPS : BLOCK_STEPS;
  static constexpr int64_t INPUTS = int64_t(STEPS) * STEP;  // inputs of a block
  static constexpr int64_t SIZE = sizeof(typename Totals::Weight);
  static constexpr int LINE_STEPS = STEP * SIZE < 64 ? int(64 / (STEP * SIZE)) : 1;
  // Measured with 8 lanes, time of a token beside tiles of rows: half precisions 0.78 on Zen 3,
  // 0.99 to 1.08 on Emerald Rapids; one vector of float32 0.92 to 0.96, 1.06 to 1.17, and 0.68 on
  // Zen 4; of int8 1.16 to 1.18 on Emerald Rapids, 1.9 on Zen 4. With 4 lanes float32 takes 1.10 to
  // 1.20 on Emerald Rapids, bfloat16 0.93 to 1.16.
  static constexpr int VECTORS_IN_ORDER = LANES >= 16 || (LANES == 8 && SIZE >= 2) ? 2 : 0;

  static bool in_order(int64_t vectors, int64_t bytes_of_vector) {
    const WeightReading &reading = weight_reading();
    if (LANES == 8 && SIZE == 4 && !reading.floats_in_order) return false;
    return vectors <= VECTORS_IN_ORDER && vectors * bytes_of_vector <= reading.bytes_of_inputs;
  }
};

// Adds the products of a block of `count` inputs to the totals (vectors, rows) of a tile, whose
// rows are `stride` apart. x is (count / STEP, vectors, STEP); `next` is the tile to prefetch.
template <class Totals, int rows, int vectors>
REGARD_INLINE void multiply_tile(const typename Totals::Weight *row, int64_t stride, int64_t count,
                                 const typename Totals::Input *x,
                                 const typename Totals::Weight *next, bool into_second_cache,
                                 float *totals) {
  using Blocks = RowBlocks<Totals>;
  constexpr int STEP = Totals::STEP;
  const int64_t whole = count / STEP;
  typename Totals::Sum sums[vectors * rows] = {};
  REGARD_UNROLLED_FOR (int i = 0; i < vectors * rows; i++) keep_in_register(sums[i]);  // as below
  typename Totals::Vector numbers[rows];
  const auto add = [&](int64_t step) REGARD_INLINE_LAMBDA {
    REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) {
      auto input = Totals::load_input(x + (step * vectors + v) * STEP);
      keep_in_register(input);  // else each product loads it again
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
        sums[v * rows + r] = Totals::multiply_add(numbers[r], input, sums[v * rows + r]);
    }
  };
  for (int64_t step = 0; step < whole; step++) {
    if (step % Blocks::LINE_STEPS == 0)
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
        fetch_line(next + r * stride + step * STEP, into_second_cache);
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      numbers[r] = Totals::load_row(row + r * stride + step * STEP);
    add(step);
  }
  if (whole * STEP < count) {
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      numbers[r] = Totals::load_row_part(row + r * stride + whole * STEP, count - whole * STEP);
    add(whole);
  }
  add_each<vectors * rows>(sums, totals);
}

// Totals of a group of rows, a multiple of the tile's: for each tile (vectors, rows), then padding
// to a complete vector of lanes.
template <class Totals, int rows, int vectors>
__attribute__((noinline)) void total_tiles(const typename Totals::Weight *first, int64_t count,
                                           int64_t inputs, const typename Totals::Input *x,
                                           float *totals) {
  using Blocks = RowBlocks<Totals>;
  constexpr int per_tile = totals_of_tile(rows, vectors);
  constexpr int64_t tile_bytes = rows * Blocks::INPUTS * Blocks::SIZE;
  const WeightReading &reading = weight_reading();
  const int64_t rows_ahead = (reading.ahead_of_tile + tile_bytes - 1) / tile_bytes * rows;
  memset(totals, 0, size_t(count / rows * per_tile) * sizeof *totals);
  for (int64_t i = 0; i < inputs; i += Blocks::INPUTS) {
    const int64_t block = min(Blocks::INPUTS, inputs - i);
    for (int64_t row = 0; row < count; row += rows) {
      int64_t next_row = row + rows_ahead, next = i, group = 0;
      for (; next_row >= count; next_row -= count) {
        next += Blocks::INPUTS;
        if (next >= inputs) next = 0, group += count;
      }
      multiply_tile<Totals, rows, vectors>(first + row * inputs + i, inputs, block, x + i * vectors,
                                           first + (group + next_row) * inputs + next,
                                           reading.into_second_cache,
                                           totals + row / rows * per_tile);
    }
  }
}

// The sums per lane of a block of one row times each vector. Numbers `ahead` of it are prefetched;
// with 0 these are the numbers being loaded, which costs nothing.
template <class Totals, int vectors>
REGARD_INLINE void multiply_block(const typename Totals::Weight *row, int64_t count,
                                  const typename Totals::Input *x, int64_t ahead, floats *sums) {
  using Blocks = RowBlocks<Totals>;
  constexpr int STEP = Totals::STEP;
  REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) {
    sums[v] = floats{};
    keep_in_register(sums[v]);  // else the compiler may round either of the first two products
  }
  const auto add = [&](int step, auto numbers) REGARD_INLINE_LAMBDA {
    REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++)
      sums[v] = Totals::multiply_add(numbers, Totals::load_input(x + (step * vectors + v) * STEP),
                                     sums[v]);
  };
  const auto add_step = [&](int step) REGARD_INLINE_LAMBDA {
    if (step % Blocks::LINE_STEPS == 0) __builtin_prefetch(row + step * STEP + ahead);
    add(step, Totals::load_row(row + step * STEP));
  };
  if (count == Blocks::INPUTS) {
    REGARD_UNROLLED_FOR (int step = 0; step < Blocks::STEPS; step++) add_step(step);
    return;
  }
  const int whole = int(count / STEP);
  for (int step = 0; step < whole; step++) add_step(step);
  if (whole * STEP < count)
    add(whole, Totals::load_row_part(row + whole * STEP, count - whole * STEP));
}

// Totals (vectors, count) of a number of rows, each vector's `stride` apart, with W read in memory
// order.
template <class Totals, int vectors>
__attribute__((noinline)) void total_in_order(const typename Totals::Weight *row, int64_t count,
                                              int64_t inputs, const typename Totals::Input *x,
                                              float *totals, int64_t stride) {
  constexpr int LINE_STEPS = RowBlocks<Totals>::LINE_STEPS;
  constexpr int64_t INPUTS = RowBlocks<Totals>::INPUTS;
  const int64_t blocks = (inputs + INPUTS - 1) / INPUTS;
  const int64_t ahead = weight_reading().ahead_in_order / RowBlocks<Totals>::SIZE;
  const bool whole = inputs % INPUTS == 0;
  memset(totals, 0, size_t(vectors * stride) * sizeof *totals);
  int64_t block = 0, summed = 0;  // blocks of a row that are multiplied, and in its total
  floats sums[vectors][LANES] = {};
  for (int64_t left = count * blocks; left > 0; left -= LANES) {
    const int together = int(min(left, int64_t(LANES)));
    const auto multiply = [&](int i, int64_t first, int64_t size) REGARD_INLINE_LAMBDA {
      floats of_block[vectors];
      multiply_block<Totals, vectors>(row, size, x + first * vectors, ahead, of_block);
      REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) sums[v][i] = of_block[v];
      row += size;
      if (++block == blocks) block = 0;
    };
    // The fewer instructions per line of W, the further out-of-order execution reaches. Unrolling
    // is slower for two vectors, whose sums fill the registers, and for several steps per line of
    // W.
    if (vectors == 1 && LINE_STEPS == 1 && whole && together == LANES)
      REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) multiply(i, block * INPUTS, INPUTS);
    else
      for (int i = 0; i < together; i++)
        multiply(i, block * INPUTS, min(INPUTS, inputs - block * INPUTS));
    alignas(64) float each[vectors][LANES];
    REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) store(each[v], sum_each_of(sums[v]));
    for (int i = 0; i < together; i++) {
      REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) totals[v * stride] += each[v][i];
      if (++summed == blocks) summed = 0, totals++;
    }
  }
}

// Results (vectors) of rows from their totals, those of each vector `stride` apart; of vectors that
// are rounded with their scales.
template <class Products, int rows, int vectors>
REGARD_INLINE void write_results(const LinearMap<Products> &map, int64_t row, const float *totals,
                                 int64_t total_stride, const float *scales,
                                 typename Products::Number *result, int64_t stride) {
  using Element = typename Products::Element;
  constexpr size_t bytes = size_t(rows) * sizeof(typename Products::Number);
  typename Products::Number numbers[LANES] = {};
  floats bias = {}, scale = {};
  if (map.bias) {
    memcpy(numbers, map.bias + row, bytes);
    bias = widen(Element(), numbers);
  }
  if constexpr (Products::HAS_SCALE) memcpy(&scale, map.scale + row, rows * sizeof(float));
  for (int v = 0; v < vectors; v++) {
    floats total = load(totals + v * total_stride);
    if constexpr (Products::HAS_SCALE) total *= scale;
    if constexpr (Inputs<Products>::ROUNDED) total *= scales[v];
    narrow(Element(), numbers, total + bias);
    memcpy(result + v * stride + row, numbers, bytes);
  }
}

// Calls `call` with a number below `limit`, of 1 or more, as a constant.
template <int limit, class Call>
REGARD_INLINE void with_count(int64_t count, Call call) {
  if constexpr (limit > 1) {
    if (count == limit - 1)
      call(std::integral_constant<int, limit - 1>());
    else
      with_count<limit - 1>(count, call);
  }
}

// Results of `count` rows, at most ROWS_IN_ORDER, times the vectors, with W in memory order.
template <class Products, int vectors>
static void multiply_in_order(const LinearMap<Products> &map, int64_t first, int64_t count,
                              const typename Products::Input *x, typename Products::Number *result,
                              int64_t stride) {
  alignas(64) float totals[vectors * ROWS_IN_ORDER + LANES];  // whole vectors are loaded
  total_in_order<typename Products::Totals, vectors>(map.weight + first * map.inputs, count,
                                                     map.inputs, x, totals, ROWS_IN_ORDER);
  const auto write = [&](int64_t row, auto rows) {
    write_results<Products, rows, vectors>(map, first + row, totals + row, ROWS_IN_ORDER, nullptr,
                                           result, stride);
  };
  int64_t row = 0;
  for (; row + LANES <= count; row += LANES) write(row, std::integral_constant<int, LANES>());
  for (; row < count; row++) write(row, std::integral_constant<int, 1>());
}

// Results of `count` rows, at most a group, times the vectors, with W by tiles.
template <class Products, int vectors>
static void multiply_by_tiles(const LinearMap<Products> &map, int64_t first, int64_t count,
                              const typename Products::Input *x, const float *scales,
                              typename Products::Number *result, int64_t stride) {
  alignas(64) float totals[MAX_TOTALS + LANES];  // whole vectors are loaded
  const auto multiply = [&](int64_t row, int64_t last, auto rows) {
    if (row == last) return;
    total_tiles<typename Products::Totals, rows, vectors>(map.weight + (first + row) * map.inputs,
                                                          last - row, map.inputs, x, totals);
    const float *of_tile = totals;
    for (; row < last; row += rows, of_tile += totals_of_tile(rows, vectors))
      write_results<Products, rows, vectors>(map, first + row, of_tile, rows, scales, result,
                                             stride);
  };
  constexpr int tile = rows_of_tile(vectors);
  const int64_t whole = count / tile * tile;
  multiply(0, whole, std::integral_constant<int, tile>());
  multiply(whole, count, std::integral_constant<int, 1>());
}

// Results (V, outputs) of rows [first, last), `stride` apart.
template <class Products>
static void multiply_rows(const LinearMap<Products> &map, int64_t first, int64_t last,
                          const Inputs<Products> &x, typename Products::Number *result,
                          int64_t stride) {
  using Blocks = RowBlocks<typename Products::Totals>;
  if (Blocks::in_order(x.count, map.inputs * int64_t(sizeof *x.data))) {
    for (int64_t row = first; row < last; row += ROWS_IN_ORDER)
      with_count<Blocks::VECTORS_IN_ORDER + 1>(x.count, [&](auto vectors) {
        multiply_in_order<Products, vectors>(map, row, min(int64_t(ROWS_IN_ORDER), last - row),
                                             x.data, result, stride);
      });
    return;
  }
  constexpr int most = Products::VECTORS_AT_ONCE;
  for (int64_t row = first; row < last; row += ROWS_OF_GROUP) {
    const int64_t count = min(int64_t(ROWS_OF_GROUP), last - row);
    for (int64_t v = 0; v < x.count; v += most)
      with_count<most + 1>(min(x.count - v, int64_t(most)), [&](auto vectors) {
        multiply_by_tiles<Products, vectors>(map, row, count, x.data + v * x.width,
                                             Inputs<Products>::ROUNDED ? x.scales() + v : nullptr,
                                             result + v * stride, stride);
      });
  }
}

}  // namespace regard::REGARD_SET
