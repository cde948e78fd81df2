// Products of rows of a matrix W with a few vectors x, and the layout of both in memory.
//
// row_totals.h computes y = W·x with them, or tile_rows.h with AMX.
#pragma once

#include "abi.h"
#include "amx.h"
#include "element.h"
#include "pairs.h"

namespace regard::REGARD_SET {

constexpr int INPUT_STEP = 2 * LANES;  // vectors x are padded with zeros to a multiple of it
constexpr int VECTORS_OF_REGISTERS = REGISTERS == 32 ? 8 : 4;  // x: the registers hold their sums

REGARD_INLINE int64_t padded_inputs(int64_t inputs) {
  return (inputs + INPUT_STEP - 1) / INPUT_STEP * INPUT_STEP;
}

// How numbers of W and of x are multiplied: STEP of them at a time, with up to VECTORS_AT_ONCE x,
// of type Input. Totals depend on nothing else, so they are compiled once for all dtypes of
// results; here for a W that is widened.
template <class W>
struct WidenedTotals {
  using WeightElement = W;
  using Weight = typename W::type;
  using Input = float;
  using Vector = floats;
  using Sum = floats;
  static constexpr int STEP = LANES, VECTORS_AT_ONCE = VECTORS_OF_REGISTERS;
  static constexpr bool HAS_SCALE = std::is_same_v<W, Int8>;

  REGARD_INLINE floats load_row(const Weight *from) { return widen(W(), from); }
  REGARD_INLINE floats load_row_part(const Weight *from, int64_t count) {
    return widen_part(W(), from, count);
  }
  REGARD_INLINE floats load_input(const float *from) { return load(from); }
  REGARD_INLINE floats multiply_add(floats row, floats input, floats sum) {
    return row * input + sum;
  }
};

// The products with results in the dtype of x; W is of the same dtype or Int8.
template <class T, class W = T>
struct RowProducts : WidenedTotals<W> {
  using Element = T;
  using Number = typename T::type;
  using Totals = WidenedTotals<W>;
};

#if defined(__wasm_simd128__)
// An int8 W times whole numbers of 16 bits, to which each x is rounded with a scale of its own:
// eight products an instruction, where four floats take four. Sums of a block (row_totals.h) are
// exact.
template <>
struct WidenedTotals<Int8> {
  using WeightElement = Int8;
  using Weight = int8_t;
  using Input = int16_t;
  using Vector = int16_t __attribute__((vector_size(16)));
  using Sum = ints;
  static constexpr int STEP = 8, VECTORS_AT_ONCE = VECTORS_OF_REGISTERS;
  static constexpr bool HAS_SCALE = true;

  REGARD_INLINE Vector load_row(const int8_t *from) { return wasm_i16x8_load8x8(from); }
  REGARD_INLINE Vector load_row_part(const int8_t *from, int64_t count) {
    int8_t part[STEP] = {};
    memcpy(part, from, size_t(count));
    return load_row(part);
  }
  REGARD_INLINE Vector load_input(const int16_t *from) { return wasm_v128_load(from); }
  REGARD_INLINE ints multiply_add(Vector row, Vector input, ints sum) {
    return sum + (ints)wasm_i32x4_dot_i16x8(row, input);
  }
};
#endif

#if defined(__AVX512BF16__)
struct PairRowProducts {
  using Element = BFloat16;
  using WeightElement = BFloat16;
  using Number = uint16_t;
  using Weight = uint16_t;
  using Input = uint16_t;
  static constexpr bool HAS_SCALE = false;
};
#endif

#if defined(__AMX_BF16__)
// Pairs in tiles, which tile_rows.h loads and multiplies; see pairs.h on numbers below 2⁻¹²⁶.
template <>
struct RowProducts<BFloat16, BFloat16> : PairRowProducts {
  static constexpr int STEP = 2, VECTORS_AT_ONCE = COLUMNS_OF_TILE;
  static constexpr bool IN_TILES = true;
};
#elif defined(__AVX512BF16__)
template <>
struct RowProducts<BFloat16, BFloat16> : PairRowProducts {
  using Totals = RowProducts;
  using Vector = ints;
  using Sum = floats;
  static constexpr int STEP = 2 * LANES, VECTORS_AT_ONCE = VECTORS_OF_REGISTERS;

  REGARD_INLINE ints load_row(const uint16_t *from) { return load_pairs(from); }
  REGARD_INLINE ints load_row_part(const uint16_t *from, int64_t count) {
    return load_pairs_part(from, count);
  }
  REGARD_INLINE ints load_input(const uint16_t *from) { return load_pairs(from); }
  REGARD_INLINE floats multiply_add(ints row, ints input, floats sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)row, (__m512bh)input);
  }
};
#endif

// A linear map: (O, I), (O) or null, and the scales (O) of an int8 weight.
template <class Products>
struct LinearMap {
  const typename Products::Weight *weight;
  const typename Products::Number *bias;
  const float *scale;
  int64_t inputs, outputs;

  LinearMap(const regard_linear &linear, int64_t inputs, int64_t outputs)
      : weight((const typename Products::Weight *)linear.weight),
        bias((const typename Products::Number *)linear.bias), scale(linear.scale), inputs(inputs),
        outputs(outputs) {}
};

// Calls take(i, lanes) with LANES numbers of a row at a time, from i on.
template <class Products, class Take>
REGARD_INLINE void read_row(const LinearMap<Products> &map, int64_t row, Take take) {
  const auto *from = map.weight + row * map.inputs;
  for (int64_t i = 0; i < map.inputs; i += LANES) {
    floats x = widen_part(typename Products::WeightElement(), from + i, map.inputs - i);
    if constexpr (Products::HAS_SCALE) x *= map.scale[row];
    take(i, x);
  }
}

// Vectors x, interleaved VECTORS_AT_ONCE at a time and then the rest: (width / STEP, together,
// STEP), where width is padded_inputs; the padding is 0. Behind them, where x is rounded to whole
// numbers: the scale of each, and all of them as floats.
template <class Products>
struct Inputs {
  using Input = typename Products::Input;
  static constexpr int STEP = Products::STEP, VECTORS_AT_ONCE = Products::VECTORS_AT_ONCE;
  static constexpr bool ROUNDED = std::is_same_v<Input, int16_t>;
  Input *data;
  int64_t count, width;

  static int64_t size(int64_t count, int64_t inputs) {
    const int64_t width = padded_inputs(inputs);
    return count * width + (ROUNDED ? 2 * (count * width + padded(count)) : 0);
  }
  float *scales() const { return (float *)(data + count * width); }
  float *row(int64_t v) const { return scales() + padded(count) + v * width; }

  // Stores elements i … i + LANES − 1 of vector v, which are exact in the dtype.
  __attribute__((always_inline)) void set(int64_t v, int64_t i, floats x) const {
    if constexpr (ROUNDED)
      store(row(v) + i, x);
    else
      place(v, i, x);
  }
  // Rounds vector v, all of whose elements are set.
  void complete(int64_t v) const {
    if constexpr (ROUNDED) {
      floats most = {};
      for (int64_t i = 0; i < width; i += LANES) most = max(most, abs(load(row(v) + i)));
      const float largest = max(max(most[0], most[1]), max(most[2], most[3])), limit = 32767;
      scales()[v] = largest / limit;
      const floats factor = broadcast(largest > 0 ? limit / largest : 0);
      for (int64_t i = 0; i < width; i += LANES)
        place(v, i, round_down(load(row(v) + i) * factor + 0.5f));
    }
  }
  // Stores elements i … i + LANES − 1 of vector v as they are multiplied.
  __attribute__((always_inline)) void place(int64_t v, int64_t i, floats x) const {
    const int64_t first = v / VECTORS_AT_ONCE * VECTORS_AT_ONCE;
    const int64_t together = min(count - first, int64_t(VECTORS_AT_ONCE));
    Input *to = data + first * width + (i / STEP * together + v - first) * STEP + i % STEP;
    if constexpr (std::is_same_v<Input, float>) {
      store(to, x);
    } else if constexpr (ROUNDED) {
      using shorts = int16_t __attribute__((vector_size(2 * LANES)));
      const shorts whole = __builtin_convertvector(__builtin_convertvector(x, ints), shorts);
      memcpy(to, &whole, sizeof whole);
    } else if constexpr (STEP >= LANES) {
      narrow(typename Products::Element(), to, x);
    } else {
      Input numbers[LANES];
      narrow(typename Products::Element(), numbers, x);
      for (int j = 0; j < LANES; j += STEP)  // those of other vectors are in between
        memcpy(to + j * together, numbers + j, STEP * sizeof *to);
    }
  }
  // Stores all elements; `element(i, count)` returns LANES of them, with zeros after the count.
  template <class Get>
  __attribute__((always_inline)) void set_all(int64_t v, int64_t inputs, Get element) const {
    for (int64_t i = 0; i < width; i += LANES)
      set(v, i, i < inputs ? element(i, inputs - i) : floats{});
    complete(v);
  }
};

// Sets vector v from numbers in the dtype.
template <class Products>
static void load_input(const Inputs<Products> &x, int64_t v, const typename Products::Number *from,
                       int64_t inputs) {
  x.set_all(v, inputs, [&](int64_t i, int64_t left) {
    return widen_part(typename Products::Element(), from + i, left);
  });
}

}  // namespace regard::REGARD_SET
