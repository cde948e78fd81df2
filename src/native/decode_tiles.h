// The two products of attention for few rows: dimensions lie in the lanes.
//
// Each number of the keys and values is loaded once and used for all rows of a tile. Keys and
// values are read as they lie, in their own dtype; where they don't fill whole vectors, as copies.
//
// An arithmetic says how: a vector of a row holds LANES · STEP elements, and so many rows of values
// make a vector of products. It is that of float32, to which other dtypes are widened, or that of
// pairs of bfloat16.
#pragma once

#include "pairs.h"

namespace regard::REGARD_SET {

// Rows of attention whose sums stay in registers, and keys, or vectors of dimensions, for each.
constexpr int TILE_ROWS = REGISTERS == 32 ? 4 : 2, TILE_WIDTH = 4;
constexpr int32_t SPLIT = 512;  // keys of a split; scores and weights are (rows, SPLIT)

// How many parts of a size hold so many.
REGARD_INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Of two vectors' halves, `grain` lanes of each in turn.
template <int grain, int half, size_t... i>
REGARD_INLINE floats interleave_grains(floats a, floats b, std::index_sequence<i...>) {
  constexpr size_t pair = 2 * grain;
  return __builtin_shufflevector(
      a, b, int(half * LANES / 2 + i / pair * grain + i % grain + i / grain % 2 * LANES)...);
}

// Elements are widened to float32.
template <class E>
struct WidenedRows : FloatProducts {
  using Element = E;
  static constexpr int WIDTH = LANES;  // elements of a vector

  static void load_query(const typename E::type *from, int64_t dim, float factor, float *to) {
    for (int64_t d = 0; d < dim; d += LANES)
      store(to + d, widen_part(E(), from + d, dim - d) * factor);
  }
  REGARD_INLINE floats load_row(const typename E::type *from) { return widen(E(), from); }
  // Vectors of dimensions of one row of values.
  template <int vectors>
  REGARD_INLINE void load_values(const typename E::type *from, int64_t, bool, floats *to) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) to[j] = widen(E(), from + j * LANES);
  }
  REGARD_INLINE void store_weights(float *to, floats weights) { store(to, weights); }
  // Adds sums over the rows that load_values gave.
  template <int vectors>
  REGARD_INLINE void add(const floats *sums, float *to) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
      store(to + j * LANES, load(to + j * LANES) + sums[j]);
  }
};

#if defined(__AVX512BF16__)

// Rows whose length is a multiple of 2 · LANES.
struct PairRows : PairProducts {
  using Element = BFloat16;
  static constexpr int WIDTH = 2 * LANES;

  static void load_query(const uint16_t *from, int64_t dim, float factor, float *to) {
    const ints signs = broadcast(factor < 0 ? int32_t(0x80008000) : 0);
    for (int64_t d = 0; d < dim; d += WIDTH)
      store(to + d / 2, (floats)(load_pairs(from + d) ^ signs));
  }
  REGARD_INLINE floats load_row(const uint16_t *from) { return (floats)load_pairs(from); }
  // Of two rows, in the order that `add` reverses; the second counts as 0 where it is not there.
  template <int vectors>
  REGARD_INLINE void load_values(const uint16_t *from, int64_t stride, bool both, floats *to) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j += 2) {
      const ints even = load_pairs(from + j * LANES);
      const ints odd = both ? load_pairs(from + stride + j * LANES) : ints{};
      to[j] = (floats)_mm512_unpacklo_epi16((__m512i)even, (__m512i)odd);
      to[j + 1] = (floats)_mm512_unpackhi_epi16((__m512i)even, (__m512i)odd);
    }
  }
  REGARD_INLINE void store_weights(uint16_t *to, floats weights) {
    narrow(BFloat16(), to, weights);
  }
  template <int vectors>
  REGARD_INLINE void add(const floats *sums, float *to) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j += 2) {
      const floats low = sums[j], high = sums[j + 1];
      float *first = to + j * LANES, *second = first + LANES;
      store(first, load(first) + interleave_grains<4, 0>(low, high, all_lanes()));
      store(second, load(second) + interleave_grains<4, 1>(low, high, all_lanes()));
    }
  }
};

#endif

// Rows that will be needed soon, fetched in the order in which they lie and a few lines at a time,
// spread over the computation, so that the memory is neither idle nor overloaded.
class Prefetch {
 public:
  // Row r is at first + r · stride, in bytes, and after `count` rows come those of `next`.
  struct Place {
    uintptr_t first;
    int64_t stride, count;
  };
  Prefetch(const Place &place, const Place &next, int64_t width)
      : row_(place.first), stride_(place.stride), rows_(place.count), next_(next), width_(width) {}

  // So many more rows may be fetched.
  void plan(int64_t rows) { left_ += rows; }

  template <int64_t bytes>
  __attribute__((always_inline)) void step() {
    for (int64_t lines = 0; lines < (bytes + LINE - 1) / LINE; lines++) {
      if (at_ >= end_ && !begin_row()) return;
      // It may be past the end, where pointers may not point.
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      __builtin_prefetch((const void *)at_);
      at_ += LINE;
    }
  }

 private:
  static constexpr int64_t LINE = 64;
  uintptr_t row_;
  int64_t stride_, rows_;
  Place next_;
  int64_t width_, left_ = 0;
  uintptr_t at_ = 0, end_ = 0;

  bool begin_row() {
    if (left_ == 0) return false;
    left_--;
    if (rows_-- == 0) row_ = next_.first, stride_ = next_.stride;
    at_ = row_, end_ = row_ + uintptr_t(width_);
    row_ += uintptr_t(stride_);
    return true;
  }
};

// Adds up `count` vectors that hold a period of `grain` sums each, every lane once: the result has
// the sums of the first, then those of the second, ..., and so again up to its end.
template <int count, int grain>
REGARD_INLINE floats sum_folded(const floats *vectors) {
  if constexpr (count == 1) {
    return vectors[0];
  } else {
    floats half[count / 2];
    REGARD_UNROLLED_FOR (int i = 0; i < count / 2; i++)
      half[i] = interleave_grains<grain, 0>(vectors[i], vectors[i + count / 2], all_lanes()) +
                interleave_grains<grain, 1>(vectors[i], vectors[i + count / 2], all_lanes());
    return sum_folded<count / 2, grain>(half);
  }
}

// scores[r][k] = query[r] · key[k] for LANES keys; those from `keys` on repeat the last.
template <class Arithmetic, int rows, class Number>
REGARD_INLINE void score_lanes(const Number *key, int64_t stride, int64_t keys, int64_t vectors,
                               const float *query, float *scores, Prefetch *prefetch) {
  constexpr int steps = LANES / TILE_WIDTH;
  constexpr int64_t bytes = Arithmetic::WIDTH * sizeof(Number);
  floats partly[rows][steps];
  for (int step = 0; step < steps; step++) {
    const Number *at[TILE_WIDTH];
    floats sums[rows][TILE_WIDTH];
    REGARD_UNROLLED_FOR (int k = 0; k < TILE_WIDTH; k++) {
      at[k] = key + min(int64_t(step) * TILE_WIDTH + k, keys - 1) * stride;
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) sums[r][k] = floats{};
    }
    for (int64_t i = 0; i < vectors; i++) {
      if (prefetch) prefetch->step<TILE_WIDTH * bytes>();
      floats q[rows];
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) q[r] = load(query + (r * vectors + i) * LANES);
      REGARD_UNROLLED_FOR (int k = 0; k < TILE_WIDTH; k++) {
        const floats numbers = Arithmetic::load_row(at[k] + i * Arithmetic::WIDTH);
        REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
          sums[r][k] = Arithmetic::multiply_add(numbers, q[r], sums[r][k]);
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
template <class Arithmetic, int rows, int vectors, class Number>
REGARD_INLINE void context_lanes(const Number *value, int64_t stride, int64_t keys, int64_t d,
                                 int64_t dim, const typename Arithmetic::Number *weights,
                                 float *context, Prefetch *prefetch) {
  constexpr int STEP = Arithmetic::STEP;
  constexpr int64_t bytes = LANES * sizeof(Number);
  floats sums[rows][vectors];
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) sums[r][j] = floats{};
  for (int64_t k = 0; k < keys; k += STEP) {
    if (prefetch) prefetch->step<STEP * vectors * bytes>();
    floats w[rows], numbers[vectors];
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      w[r] = Arithmetic::load_broadcast(weights + r * SPLIT + k);
    Arithmetic::template load_values<vectors>(value + k * stride + d, stride, k + STEP <= keys,
                                              numbers);
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
        sums[r][j] = Arithmetic::multiply_add(w[r], numbers[j], sums[r][j]);
  }
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    Arithmetic::template add<vectors>(sums[r], context + r * dim + d);
}

// The same for all dimensions.
template <class Arithmetic, int rows, class Number>
REGARD_INLINE void add_context(const Number *value, int64_t stride, int64_t keys, int64_t dim,
                               const typename Arithmetic::Number *weights, float *context,
                               Prefetch *prefetch) {
  constexpr int granularity = Arithmetic::STEP;  // vectors of a load
  for (int64_t d = 0; d < dim; d += TILE_WIDTH * LANES)
    with_live(int(min(int64_t(TILE_WIDTH), (dim - d) / LANES)), [&](auto vectors) {
      if constexpr (vectors % granularity == 0)
        context_lanes<Arithmetic, rows, vectors>(value, stride, keys, d, dim, weights, context,
                                                 prefetch);
    });
}

}  // namespace regard::REGARD_SET
