// The two matrix products of attention for few rows, with dimensions in the lanes.
//
// Each number of the keys and values is loaded once and used for all rows of a tile. Keys and
// values are read in place, in their own dtype, or from padded copies if they do not fill whole
// vectors.
//
// An arithmetic defines the steps: one load of a key takes ROW_ELEMENTS elements into ROW_VECTORS
// vectors; one load of values takes STEP rows and a multiple of VALUE_VECTORS vectors. There is one
// for float32, to which other dtypes are widened, and one for pairs of bfloat16.
#pragma once

#include "fetch_line.h"
#include "pairs.h"
#include "processor.h"

namespace regard::REGARD_SET {

// Rows whose sums stay in registers, and keys, or vectors of dimensions, per row.
constexpr int TILE_ROWS = REGISTERS == 32 ? 4 : 2, TILE_WIDTH = 4;
constexpr int32_t SPLIT = 512;  // keys of a split; scores and weights are (rows, SPLIT)

// Division rounded up.
REGARD_INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Interleaves the lower (half 0) or upper halves of two vectors, `grain` lanes at a time.
template <int grain, int half, size_t... i>
REGARD_INLINE floats interleave_grains(floats a, floats b, std::index_sequence<i...>) {
  constexpr size_t pair = 2 * grain;
  return __builtin_shufflevector(
      a, b, int(half * LANES / 2 + i / pair * grain + i % grain + i / grain % 2 * LANES)...);
}

// Adds vectors to memory, interleaving pairs of them `grain` lanes at a time.
template <int grain, int vectors>
REGARD_INLINE void add_interleaved(const floats *sums, float *to) {
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j += 2) {
    float *first = to + j * LANES, *second = first + LANES;
    store(first, load(first) + interleave_grains<grain, 0>(sums[j], sums[j + 1], all_lanes()));
    store(second, load(second) + interleave_grains<grain, 1>(sums[j], sums[j + 1], all_lanes()));
  }
}

// Elements are widened to float32.
template <class E>
struct WidenedRows : FloatProducts {
  using Element = E;
  static constexpr int ROW_ELEMENTS = LANES, ROW_VECTORS = 1, VALUE_VECTORS = 1;

  static void load_query(const typename E::type *from, int64_t dim, float factor, float *to) {
    for (int64_t d = 0; d < dim; d += LANES)
      store(to + d, widen_part(E(), from + d, dim - d) * factor);
  }
  REGARD_INLINE void load_row(const typename E::type *from, floats *to) {
    to[0] = widen(E(), from);
  }
  // Vectors of dimensions of one row of values.
  template <int vectors>
  REGARD_INLINE void load_values(const typename E::type *from, int64_t, bool, floats *to) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) to[j] = widen(E(), from + j * LANES);
  }
  REGARD_INLINE void store_weights(float *to, floats weights) { store(to, weights); }
  // Adds sums over the rows of load_values.
  template <int vectors>
  REGARD_INLINE void add(const floats *sums, float *to) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
      store(to + j * LANES, load(to + j * LANES) + sums[j]);
  }
};

// The layout in which bfloat16 rows are read. With AMX they are widened to floats: there dot
// products of pairs are slower, and a few rows would leave most of a tile empty.
#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)

// Rows whose length is a multiple of 2 · LANES.
struct PairRows : PairProducts {
  using Element = BFloat16;
  static constexpr int ROW_ELEMENTS = 2 * LANES, ROW_VECTORS = 1, VALUE_VECTORS = 2;

  static void load_query(const uint16_t *from, int64_t dim, float factor, float *to) {
    const ints signs = broadcast(factor < 0 ? int32_t(0x80008000) : 0);
    for (int64_t d = 0; d < dim; d += ROW_ELEMENTS)
      store(to + d / 2, (floats)(load_pairs(from + d) ^ signs));
  }
  REGARD_INLINE void load_row(const uint16_t *from, floats *to) {
    to[0] = (floats)load_pairs(from);
  }
  // Interleaves two rows, which `add` undoes; a missing second row is 0.
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
    add_interleaved<4, vectors>(sums, to);
  }
};

using BFloat16Rows = PairRows;

#else

// Also rows whose length is a multiple of 2 · LANES. A load of as many elements gives two vectors,
// of the elements at even and odd indices, which takes fewer instructions than widening in order.
struct EvenOddRows : FloatProducts {
  using Element = BFloat16;
  static constexpr int ROW_ELEMENTS = 2 * LANES, ROW_VECTORS = 2, VALUE_VECTORS = 2;

  static void load_query(const uint16_t *from, int64_t dim, float factor, float *to) {
    for (int64_t d = 0; d < dim; d += ROW_ELEMENTS) {
      floats numbers[ROW_VECTORS];
      load_row(from + d, numbers);
      REGARD_UNROLLED_FOR (int j = 0; j < ROW_VECTORS; j++)
        store(to + d + j * LANES, numbers[j] * factor);
    }
  }
  REGARD_INLINE void load_row(const uint16_t *from, floats *to) {
    uints pairs;
    memcpy(&pairs, from, sizeof pairs);
    to[0] = (floats)(pairs << 16);
    to[1] = (floats)(pairs & 0xffff0000);
  }
  template <int vectors>
  REGARD_INLINE void load_values(const uint16_t *from, int64_t, bool, floats *to) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j += 2) load_row(from + j * LANES, to + j);
  }
  REGARD_INLINE void store_weights(float *to, floats weights) { store(to, weights); }
  template <int vectors>
  REGARD_INLINE void add(const floats *sums, float *to) {
    add_interleaved<1, vectors>(sums, to);
  }
};

using BFloat16Rows = EvenOddRows;

#endif

// Prefetches the next rows in memory order, a few lines at a time during the computation, so that
// the memory is neither idle nor overloaded.
class Prefetch {
 public:
  // Row r is at first + r · stride, in bytes, and after `count` rows come those of `next`.
  struct Place {
    uintptr_t first;
    int64_t stride, count;
  };
  Prefetch() = default;  // a no-op
  Prefetch(const Place &place, const Place &next, int64_t width)
      : row_(place.first), stride_(place.stride), rows_(place.count), next_(next), width_(width) {}

  // Allows a number of further rows to be fetched.
  void plan(int64_t rows) {
    if (width_ > 0) left_ += rows;
  }

  template <int64_t bytes>
  __attribute__((always_inline)) void step() {
    constexpr int64_t lines = (bytes + LINE - 1) / LINE;
    const bool whole = at_ + uintptr_t(lines * LINE) <= end_;
    REGARD_UNROLLED_FOR (int64_t i = 0; i < lines; i++) {
      if (!whole && at_ >= end_ && !begin_rows()) return;
      // The address may be past the end, where pointer arithmetic is undefined.
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      fetch_line((const void *)at_, into_second_cache_);
      at_ += LINE;
    }
  }

 private:
  static constexpr int64_t LINE = 64;
  uintptr_t row_ = 0;
  int64_t stride_ = 0, rows_ = 0;
  Place next_ = {};
  int64_t width_ = 0, left_ = 0;
  bool into_second_cache_ = processor::is_amd();
  uintptr_t at_ = 0, end_ = 0;

  // Bytes of one row, or of all planned rows if they are contiguous.
  __attribute__((always_inline)) bool begin_rows() {
    if (left_ == 0) return false;
    if (rows_ == 0) row_ = next_.first, stride_ = next_.stride, rows_ = INT64_MAX;
    const int64_t rows = stride_ == width_ ? min(left_, rows_) : 1;
    left_ -= rows, rows_ -= rows;
    at_ = row_, end_ = row_ + uintptr_t((rows - 1) * stride_ + width_);
    row_ += uintptr_t(rows * stride_);
    return true;
  }
};

// scores[r][k] = query[r] · key[k] for LANES keys; those from `keys` on repeat the last. `fetchers`
// tiles, which read the same keys, share the prefetching. It is a separate function, like the next,
// with a copy of the prefetch, because compilers else keep its pointers in memory.
template <class Arithmetic, int rows, int fetchers, class Number>
static __attribute__((noinline)) void score_lanes(const Number *key, int64_t stride, int64_t keys,
                                                  int64_t loads, const float *query, float *scores,
                                                  Prefetch &prefetch) {
  constexpr int ELEMENTS = Arithmetic::ROW_ELEMENTS, VECTORS_OF_ROW = Arithmetic::ROW_VECTORS;
  Prefetch fetched = prefetch;
  floats sums_of_keys[rows][LANES];
  for (int first = 0; first < LANES; first += TILE_WIDTH) {
    const Number *at[TILE_WIDTH];
    floats sums[rows][TILE_WIDTH];
    REGARD_UNROLLED_FOR (int k = 0; k < TILE_WIDTH; k++) {
      at[k] = key + min(int64_t(first) + k, keys - 1) * stride;
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) sums[r][k] = floats{};
    }
    for (int64_t i = 0; i < loads; i++) {
      fetched.step<TILE_WIDTH * ELEMENTS * sizeof(Number) / fetchers>();
      floats q[rows][VECTORS_OF_ROW];
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
        REGARD_UNROLLED_FOR (int j = 0; j < VECTORS_OF_ROW; j++)
          q[r][j] = load(query + ((r * loads + i) * VECTORS_OF_ROW + j) * LANES);
      REGARD_UNROLLED_FOR (int k = 0; k < TILE_WIDTH; k++) {
        floats numbers[VECTORS_OF_ROW];
        Arithmetic::load_row(at[k] + i * ELEMENTS, numbers);
        REGARD_UNROLLED_FOR (int j = 0; j < VECTORS_OF_ROW; j++) {
          if (rows > 1) keep_in_register(numbers[j]);  // GCC would load it again for each row
          REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
            sums[r][k] = Arithmetic::multiply_add(numbers[j], q[r][j], sums[r][k]);
        }
      }
    }
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      REGARD_UNROLLED_FOR (int k = 0; k < TILE_WIDTH; k++) sums_of_keys[r][first + k] = sums[r][k];
  }
  prefetch = fetched;
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    store(scores + r * SPLIT, sum_each(sums_of_keys[r]));
}

// context[r] += Σ_k weights[r][k] · value[k], for `vectors` vectors of dimensions from d on. The
// sum over these keys is computed before it is added, which rounds less than one long sum.
template <class Arithmetic, int rows, int vectors, int fetchers, class Number>
static __attribute__((noinline)) void context_lanes(const Number *value, int64_t stride,
                                                    int64_t keys, int64_t d, int64_t dim,
                                                    const typename Arithmetic::Number *weights,
                                                    float *context, Prefetch &prefetch) {
  constexpr int STEP = Arithmetic::STEP;
  Prefetch fetched = prefetch;
  floats sums[rows][vectors];
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) sums[r][j] = floats{};
  for (int64_t k = 0; k < keys; k += STEP) {
    fetched.step<STEP * vectors * LANES * sizeof(Number) / fetchers>();
    floats w[rows], numbers[vectors];
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      w[r] = Arithmetic::load_broadcast(weights + r * SPLIT + k);
    Arithmetic::template load_values<vectors>(value + k * stride + d, stride, k + STEP <= keys,
                                              numbers);
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
        sums[r][j] = Arithmetic::multiply_add(w[r], numbers[j], sums[r][j]);
  }
  prefetch = fetched;
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
    Arithmetic::template add<vectors>(sums[r], context + r * dim + d);
}

// The same for all dimensions.
template <class Arithmetic, int rows, int fetchers, class Number>
REGARD_INLINE void add_context(const Number *value, int64_t stride, int64_t keys, int64_t dim,
                               const typename Arithmetic::Number *weights, float *context,
                               Prefetch &prefetch) {
  for (int64_t d = 0; d < dim; d += TILE_WIDTH * LANES)
    with_live(int(min(int64_t(TILE_WIDTH), (dim - d) / LANES)), [&](auto vectors) {
      if constexpr (vectors % Arithmetic::VALUE_VECTORS == 0)
        context_lanes<Arithmetic, rows, vectors, fetchers>(value, stride, keys, d, dim, weights,
                                                           context, prefetch);
    });
}

}  // namespace regard::REGARD_SET
