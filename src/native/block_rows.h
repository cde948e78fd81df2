// Rows of a matrix in the blocks of a GGUF times a few vectors: y = W·x.
//
// x is rounded to whole numbers of 16 bits, 32 at a time with a scale of their own: by at most
// 1/65534 of the largest of the 32. Sums of 32 products are exact; they are added up lane by lane
// in float32. Numbers without blocks are multiplied in float32.
//
// The order of summation does not depend on the number of vectors and rows.
#pragma once

#include "blocks.h"
#include "row_totals.h"

namespace regard::REGARD_SET {

struct BlockProducts {
  using Element = Float32;
  using Number = float;
  using Input = float;
  static constexpr bool IN_BLOCKS = true;
};

template <>
struct LinearMap<BlockProducts> {
  const regard_blocks *blocks;
  const float *bias;
  int64_t inputs, outputs;

  LinearMap(const regard_linear &linear, int64_t inputs, int64_t outputs)
      : blocks(linear.blocks), bias((const float *)linear.bias), inputs(inputs), outputs(outputs) {}

  // Calls call(kind, data, bytes of a row, first, last) for each part of rows [first, last).
  template <class Call>
  __attribute__((always_inline)) void each_part(int64_t first, int64_t last, Call call) const {
    int64_t before = 0;  // rows of the parts before
    for (const regard_blocks *part = blocks; before < last; before += part++->rows) {
      const int64_t begin = max(first, before), end = min(last, before + part->rows);
      if (begin >= end) continue;
      with_format(part->kind, [&](auto kind) {
        const int64_t bytes = bytes_of_row<decltype(kind)>(inputs);
        call(kind, (const uint8_t *)part->data + (begin - before) * bytes, bytes, begin, end);
      });
    }
  }
};

// Each vector has its floats, the whole numbers, and the pairs of scale and sum of each run, where
// the sum is that of the numbers as they were rounded.
template <>
struct Inputs<BlockProducts> {
  float *data;
  int64_t count, width;

  static constexpr int64_t SUPER = 8 * RUN;  // numbers of the largest block, whose pairs are loaded
  static int64_t whole(int64_t width) { return (width + SUPER - 1) / SUPER * SUPER; }
  static int64_t stride(int64_t width) { return whole(width) * 3 / 2 + whole(width) / RUN * 2; }
  static int64_t size(int64_t count, int64_t inputs) {
    return count * stride(padded_inputs(inputs));
  }
  float *row(int64_t v) const { return data + v * stride(width); }
  int16_t *numbers(int64_t v) const { return (int16_t *)(row(v) + whole(width)); }
  float *pairs(int64_t v) const { return row(v) + whole(width) * 3 / 2; }

  __attribute__((always_inline)) void set(int64_t v, int64_t i, floats x) const {
    store(row(v) + i, x);
  }
  void complete(int64_t v) const {
    memset(row(v) + width, 0, size_t(whole(width) - width) * sizeof(float));
    for (int64_t i = 0; i < whole(width); i += RUN)
      round(row(v) + i, numbers(v) + i, pairs(v) + i / RUN * 2);
  }
  static void round(const float *from, int16_t *to, float *pair) {
    floats most = {};
    ints nonfinite = {};
    REGARD_UNROLLED_FOR (int i = 0; i < RUN; i += LANES) {
      most = max(most, abs(load(from + i)));
      nonfinite |= is_nonfinite(load(from + i));
    }
    float largest = 0;
    REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) largest = max(largest, most[i]);
    const float limit = 32767, least = 0x1p-100f;  // below which the factor could overflow
    const bool is_finite = !any(nonfinite);
    const floats factor = broadcast(is_finite && largest >= least ? limit / largest : 0);
    ints total = {};
    using narrow_shorts = int16_t __attribute__((vector_size(2 * LANES)));
    REGARD_UNROLLED_FOR (int i = 0; i < RUN; i += LANES) {
      const floats x = is_finite ? load(from + i) : floats{};
      const ints whole = __builtin_convertvector(round_down(x * factor + 0.5f), ints);
      total += whole;
      const narrow_shorts narrowed = __builtin_convertvector(whole, narrow_shorts);
      memcpy(to + i, &narrowed, sizeof narrowed);
    }
    int32_t of_run = 0;
    REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) of_run += total[i];
    pair[0] = is_finite ? largest / limit : NAN;  // so that no result is finite
    pair[1] = pair[0] * float(of_run);
  }
  template <class Get>
  __attribute__((always_inline)) void set_all(int64_t v, int64_t inputs, Get element) const {
    for (int64_t i = 0; i < width; i += LANES)
      set(v, i, i < inputs ? element(i, inputs - i) : floats{});
    complete(v);
  }
};

template <int lanes, class Vector>
REGARD_INLINE float sum_of_lanes(Vector x) {
  float list[lanes];
  memcpy(list, &x, sizeof list);
  REGARD_UNROLLED_FOR (int width = lanes / 2; width > 0; width /= 2)
    REGARD_UNROLLED_FOR (int i = 0; i < width; i++) list[i] += list[i + width];
  return list[0];
}

// The totals of a row for some vectors.
template <class Block, int vectors>
struct RowTotals {
  // Sums of offset times inputs are in the odd lanes; in the even ones is what nobody reads.
  using Pairs = std::conditional_t<Block::RUNS == 1, fours, floats>;
  totals products[vectors] = {};
  Pairs offsets[vectors] = {};

  // Sets the scales of the runs of a block times those of a vector, and adds the offsets.
  __attribute__((always_inline)) void scale(const Block &block, int v, const float *pairs,
                                            float *scales) {
    if constexpr (Block::RUNS == 1) {
      typedef double two __attribute__((vector_size(16)));
      const fours both = widen_pair(block.data) * (fours)two{load_as<double>(pairs), 0};
      if constexpr (Block::HAS_OFFSET) offsets[v] += both;
      scales[0] = both[0];
    } else {
      float factors[2 * Block::RUNS];
      block.factors(factors);
      REGARD_UNROLLED_FOR (int i = 0; i < 2 * Block::RUNS; i += LANES) {
        const floats both = load(factors + i) * load(pairs + i);
        if constexpr (Block::HAS_OFFSET) offsets[v] += both;
        store(scales + i, both);
      }
    }
  }
  // Adds the products of a block with its inputs; `pairs` are those of its runs.
  __attribute__((always_inline)) void add(const Block &block, const int16_t *const *x,
                                          const float *const *pairs, int64_t number) {
    alignas(64) float scales[vectors][2 * Block::RUNS];
    REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++)
      scale(block, v, pairs[v] + 2 * Block::RUNS * number, scales[v]);
    REGARD_UNROLLED_FOR (int j = 0; j < Block::RUNS; j++) {
      shorts q[PARTS];
      block.numbers(j, q);
      const int64_t first = (number * Block::RUNS + j) * RUN;
      REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) {
        sums whole = {};
        REGARD_UNROLLED_FOR (int k = 0; k < PARTS; k++)
          whole = add_products(q[k], load_as<shorts>(x[v] + first + k * SHORTS), whole);
        products[v] += __builtin_convertvector(whole, totals) * scales[v][2 * j];
      }
    }
  }
  __attribute__((always_inline)) float total(int v) const {
    const float whole = sum_of_lanes<SHORT_SUMS>(products[v]);
    if constexpr (!Block::HAS_OFFSET) return whole;
    constexpr int lanes = sizeof(Pairs) / sizeof(float);
    Pairs own = offsets[v];
    REGARD_UNROLLED_FOR (int i = 0; i < lanes; i += 2) own[i] = 0;
    return whole + sum_of_lanes<lanes>(own);
  }
};

// How far ahead rows are prefetched. Measured on one thread of a Zen 3: time with it 0.83 for Q4_1,
// 0.76 for Q8_0, 0.9 for the others.
constexpr int64_t BYTES_AHEAD = 4096;

// Results (vectors, count) of rows, those of each vector `stride` apart.
template <class Kind, int vectors>
__attribute__((noinline)) void multiply_blocks(const uint8_t *from, int64_t bytes, int64_t count,
                                               const Inputs<BlockProducts> &x, int64_t vector,
                                               int64_t inputs, const float *bias, float *result,
                                               int64_t stride) {
  const int16_t *numbers[vectors];
  const float *pairs[vectors];
  for (int v = 0; v < vectors; v++)
    numbers[v] = x.numbers(vector + v), pairs[v] = x.pairs(vector + v);
  for (int64_t row = 0; row < count; row++, from += bytes) {
    const auto write = [&](int v, float total) {
      result[v * stride + row] = total + (bias ? bias[row] : 0);
    };
    if constexpr (IsBlock<Kind>) {
      RowTotals<Kind, vectors> totals;
      for (int64_t block = 0; block < inputs / (RUN * Kind::RUNS); block++) {
        const uint8_t *here = from + block * Kind::BYTES;
        REGARD_UNROLLED_FOR (int i = 0; i < Kind::BYTES; i += 64)
          __builtin_prefetch(here + BYTES_AHEAD + i);
        totals.add(Kind{here}, numbers, pairs, block);
      }
      for (int v = 0; v < vectors; v++) write(v, totals.total(v));
    } else {
      const auto *weights = (const typename Kind::type *)from;
      for (int v = 0; v < vectors; v++) {
        floats total = {};
        for (int64_t i = 0; i < inputs; i += LANES)
          total += widen_part(Kind(), weights + i, inputs - i) * load(x.row(vector + v) + i);
        write(v, sum(total));
      }
    }
  }
}

template <class Products>
concept MultipliesBlocks = requires { Products::IN_BLOCKS; };

constexpr int64_t BLOCK_ROWS_OF_GROUP = 16;  // stay in the L1 cache for more vectors
constexpr int BLOCK_VECTORS = 4;

template <class Products>
  requires MultipliesBlocks<Products>
static void multiply_rows(const LinearMap<Products> &map, int64_t first, int64_t last,
                          const Inputs<Products> &x, float *result, int64_t stride) {
  map.each_part(first, last,
                [&](auto kind, const uint8_t *from, int64_t bytes, int64_t begin,
                    int64_t end) REGARD_INLINE_LAMBDA {
                  const int64_t group = x.count > BLOCK_VECTORS ? BLOCK_ROWS_OF_GROUP : end - begin;
                  for (int64_t row = begin; row < end; row += group)
                    for (int64_t v = 0; v < x.count; v += BLOCK_VECTORS)
                      with_count<BLOCK_VECTORS + 1>(
                          min(x.count - v, int64_t(BLOCK_VECTORS)), [&](auto vectors) {
                            multiply_blocks<decltype(kind), vectors>(
                                from + (row - begin) * bytes, bytes, min(group, end - row), x, v,
                                map.inputs, map.bias ? map.bias + row : nullptr,
                                result + v * stride + row, stride);
                          });
                });
}

// The numbers of a row in float32.
template <class Products, class Take>
  requires MultipliesBlocks<Products>
REGARD_INLINE void read_row(const LinearMap<Products> &map, int64_t row, Take take) {
  map.each_part(row, row + 1, [&](auto kind, const uint8_t *from, int64_t, int64_t, int64_t) {
    using Kind = decltype(kind);
    if constexpr (!IsBlock<Kind>) {
      for (int64_t i = 0; i < map.inputs; i += LANES)
        take(i, widen_part(kind, (const typename Kind::type *)from + i, map.inputs - i));
    } else {
      for (int64_t i = 0; i < map.inputs; i += RUN * Kind::RUNS, from += Kind::BYTES) {
        kind.data = from;
        float factors[2 * Kind::RUNS];
        if constexpr (Kind::RUNS == 1) {
          const fours both = widen_pair(from);
          factors[0] = both[0], factors[1] = both[1];
        } else {
          kind.factors(factors);
        }
        for (int j = 0; j < Kind::RUNS; j++) {
          shorts q[PARTS];
          kind.numbers(j, q);
          int16_t whole[RUN];
          memcpy(whole, q, sizeof whole);
          float numbers[RUN];
          for (int k = 0; k < RUN; k++)
            numbers[k] = factors[2 * j] * whole[k] + (Kind::HAS_OFFSET ? factors[2 * j + 1] : 0);
          for (int k = 0; k < RUN; k += LANES) take(i + j * RUN + k, load(numbers + k));
        }
      }
    }
  });
}

}  // namespace regard::REGARD_SET
