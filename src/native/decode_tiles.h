// The two products of attention for few rows: dimensions lie in the lanes.
//
// Each number of the keys and values is loaded once and used for all rows of a tile. Keys and
// values are read as they lie, in their own dtype; where they don't fill whole vectors, as copies.
#pragma once

#include "element.h"
#include "tiles.h"

namespace regard::REGARD_SET {

// Rows of attention whose sums stay in registers, and keys, or vectors of dimensions, for each.
constexpr int TILE_ROWS = REGISTERS == 32 ? 4 : 2, TILE_WIDTH = 4;
constexpr int32_t SPLIT = 512;  // keys of a split; scores and weights are (rows, SPLIT)

// How many parts of a size hold so many.
REGARD_INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Rows of keys or values.
template <class E>
struct Rows {
  using Element = E;
  const typename Element::type *data;
  int64_t stride;

  __attribute__((always_inline)) floats at(int64_t row, int64_t d) const {
    return widen(Element(), data + row * stride + d);
  }
};

// Rows that will be needed soon, fetched in the order in which they lie and a few lines at a time,
// spread over the computation, so that the memory is neither idle nor overloaded.
class Prefetch {
 public:
  Prefetch(const void *first, int64_t stride, int64_t width)
      : row_(uintptr_t(first)), stride_(stride), width_(width), lines_(parts(width, LINE)) {}

  // So many more rows are to be fetched in so many steps.
  void plan(int64_t rows, int64_t steps) {
    left_ += rows * lines_;
    step_ = parts(left_, steps);
  }
  __attribute__((always_inline)) void step() {
    int64_t lines = min(step_, left_);
    left_ -= lines;
    for (; lines > 0; lines--) {
      // It may be past the end, where pointers may not point.
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      __builtin_prefetch((const void *)(row_ + at_));
      at_ += LINE;
      if (at_ >= width_) at_ = 0, row_ += stride_;
    }
  }

 private:
  static constexpr int64_t LINE = 64;
  uintptr_t row_;
  int64_t stride_, width_, at_ = 0;      // bytes: from row to row, of a row, of it fetched so far
  int64_t lines_, left_ = 0, step_ = 0;  // lines: of a row, to be fetched, in a step
};

// Of two vectors' halves, `grain` lanes of each in turn.
template <int grain, int half, size_t... i>
REGARD_INLINE floats interleave_grains(floats a, floats b, std::index_sequence<i...>) {
  constexpr size_t pair = 2 * grain;
  return __builtin_shufflevector(
      a, b, int(half * LANES / 2 + i / pair * grain + i % grain + i / grain % 2 * LANES)...);
}

// Adds up `count` vectors that hold a period of `grain` sums each, every lane once: the result has
// the sums of the first, then those of the second, ..., and so again up to its end.
template <int count, int grain>
REGARD_INLINE floats sum_folded(const floats *vectors) {
  if constexpr (count == 1) {
    return vectors[0];
  } else {
    using all_lanes = std::make_index_sequence<LANES>;
    floats half[count / 2];
    REGARD_UNROLLED_FOR (int i = 0; i < count / 2; i++)
      half[i] = interleave_grains<grain, 0>(vectors[i], vectors[i + count / 2], all_lanes()) +
                interleave_grains<grain, 1>(vectors[i], vectors[i + count / 2], all_lanes());
    return sum_folded<count / 2, grain>(half);
  }
}

// scores[r][k] = query[r] · key[k] for LANES keys; those from `keys` on repeat the last.
template <int rows, class Keys>
REGARD_INLINE void score_lanes(const Keys &key, int64_t keys, int64_t dim, const float *query,
                               float *scores, Prefetch &prefetch) {
  constexpr int steps = LANES / TILE_WIDTH;
  floats partly[rows][steps];
  for (int step = 0; step < steps; step++) {
    int64_t at[TILE_WIDTH];
    floats sums[rows][TILE_WIDTH];
    REGARD_UNROLLED_FOR (int k = 0; k < TILE_WIDTH; k++) {
      at[k] = min(int64_t(step) * TILE_WIDTH + k, keys - 1);
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) sums[r][k] = floats{};
    }
    for (int64_t d = 0; d < dim; d += LANES) {
      prefetch.step();
      floats q[rows];
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) q[r] = load(query + r * dim + d);
      REGARD_UNROLLED_FOR (int k = 0; k < TILE_WIDTH; k++) {
        const floats numbers = key.at(at[k], d);
        REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) sums[r][k] += numbers * q[r];
      }
    }
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      partly[r][step] = sum_folded<TILE_WIDTH, 1>(sums[r]);
  }
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    store(scores + r * SPLIT, sum_folded<steps, TILE_WIDTH>(partly[r]));
}

// context[r] += Σ_k weights[r][k] · value[k], for `vectors` vectors of dimensions from d on. These
// keys are summed up by themselves before they are added: that rounds less than one long sum.
template <int rows, int vectors, class Values>
REGARD_INLINE void context_lanes(const Values &value, int64_t keys, int64_t d, int64_t dim,
                                 const float *weights, float *context, Prefetch &prefetch) {
  floats sums[rows][vectors];
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) sums[r][j] = floats{};
  for (int64_t k = 0; k < keys; k++) {
    prefetch.step();
    floats w[rows];
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) w[r] = broadcast(weights[r * SPLIT + k]);
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      const floats numbers = value.at(k, d + j * LANES);
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) sums[r][j] += w[r] * numbers;
    }
  }
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      float *at = context + r * dim + d + j * LANES;
      store(at, load(at) + sums[r][j]);
    }
}

// The same for all dimensions.
template <int rows, class Values>
REGARD_INLINE void add_context(const Values &value, int64_t keys, int64_t dim, const float *weights,
                               float *context, Prefetch &prefetch) {
  for (int64_t d = 0; d < dim; d += TILE_WIDTH * LANES)
    with_live(int(min(int64_t(TILE_WIDTH), (dim - d) / LANES)), [&](auto vectors) {
      context_lanes<rows, vectors>(value, keys, d, dim, weights, context, prefetch);
    });
}

}  // namespace regard::REGARD_SET
