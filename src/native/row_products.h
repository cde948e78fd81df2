// Rows of a matrix times a few vectors: y = W·x, each row of W read once for all vectors.
//
// It costs what reading W from memory costs. Some rows are read side by side, so that the processor
// fetches several runs of memory at once, and each number is multiplied by all vectors. A sum is
// made in one order: lane by lane over the row, then the lanes in pairs, whatever the number of
// vectors and rows beside it.
#pragma once

#include "abi.h"
#include "element.h"
#include "pairs.h"

namespace regard::REGARD_SET {

constexpr int INPUT_STEP = 2 * LANES;  // vectors x are padded with zeros to a multiple of it

REGARD_INLINE int64_t padded_inputs(int64_t inputs) {
  return (inputs + INPUT_STEP - 1) / INPUT_STEP * INPUT_STEP;
}

// How numbers of W and of x are multiplied: STEP of them in a vector; Input is what x lies in. W is
// of the dtype of x and of the results, or Int8.
template <class T, class W = T>
struct RowProducts {
  using Element = T;
  using WeightElement = W;
  using Number = typename T::type;
  using Weight = typename W::type;
  using Input = float;
  using Vector = floats;
  static constexpr int STEP = LANES;
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

#if defined(__AVX512BF16__)
template <>
struct RowProducts<BFloat16, BFloat16> {
  using Element = BFloat16;
  using WeightElement = BFloat16;
  using Number = uint16_t;
  using Weight = uint16_t;
  using Input = uint16_t;
  using Vector = ints;
  static constexpr int STEP = 2 * LANES;
  static constexpr bool HAS_SCALE = false;

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

// Sums the lanes of so many vectors, each in the same order, wherever it stands among them.
template <int count>
REGARD_INLINE void sum_each(const floats *sums, float *to) {
  REGARD_UNROLLED_FOR (int first = 0; first < count; first += LANES) {
    floats tile[LANES] = {};
    const int vectors = min(LANES, count - first);
    REGARD_UNROLLED_FOR (int i = 0; i < vectors; i++) tile[i] = sums[first + i];
    transpose(tile);
    REGARD_UNROLLED_FOR (int width = LANES / 2; width > 0; width /= 2)
      REGARD_UNROLLED_FOR (int i = 0; i < width; i++) tile[i] += tile[i + width];
    store(to + first, tile[0]);
  }
}

constexpr int VECTORS_AT_ONCE = REGISTERS == 32 ? 8 : 4;  // of x

// Rows that are read side by side for so many vectors: the registers hold a sum of each pair.
constexpr int rows_at_once(int vectors) {
  constexpr int sums = REGISTERS == 32 ? 24 : 12, most = REGISTERS == 32 && LANES >= 8 ? 8 : 4;
  return sums / vectors < most ? sums / vectors : most;
}
constexpr int MAX_TOTALS = 2 * 16 + LANES;  // of a tile, and what is loaded and stored beyond

// Totals (vectors, rows) of rows of W, which lie `inputs` apart; x is (inputs / STEP, vectors,
// STEP).
template <class Products, int rows, int vectors>
__attribute__((noinline)) void multiply_tile(const typename Products::Weight *row, int64_t inputs,
                                             const typename Products::Input *x, float *totals) {
  static_assert(rows <= LANES && vectors * rows <= MAX_TOTALS - LANES);
  constexpr int STEP = Products::STEP;
  constexpr int64_t size = sizeof(typename Products::Weight), line = 64 / size;
  constexpr int64_t ahead = 8192 / size;
  const int64_t whole = inputs / STEP * STEP;
  floats sums[vectors * rows] = {};
  typename Products::Vector numbers[rows];
  const typename Products::Weight *at[rows];
  REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) at[r] = row + r * inputs;
  const auto add = [&]() REGARD_INLINE_LAMBDA {
    REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) {
      auto input = Products::load_input(x + v * STEP);
      keep_in_register(input);  // or each product loads it again
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
        sums[v * rows + r] = Products::multiply_add(numbers[r], input, sums[v * rows + r]);
    }
  };
  for (int64_t i = 0; i < whole; i += STEP, x += vectors * STEP) {
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) {
      // The processor prefetches within a row only, and rows are short.
      if (line <= STEP || i % line == 0) __builtin_prefetch(at[r] + i + ahead, 0, 2);
      numbers[r] = Products::load_row(at[r] + i);
    }
    add();
  }
  if (whole < inputs) {
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      numbers[r] = Products::load_row_part(at[r] + whole, inputs - whole);
    add();
  }
  sum_each<vectors * rows>(sums, totals);
}

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

// Vectors x, VECTORS_AT_ONCE of them together and then those left: (width / STEP, together, STEP),
// where width is padded_inputs and what is past the inputs is 0.
template <class Products>
struct Inputs {
  using Input = typename Products::Input;
  Input *data;
  int64_t count, width;

  static int64_t size(int64_t count, int64_t inputs) { return count * padded_inputs(inputs); }

  // Stores elements i … i + LANES − 1 of vector v, which the dtype holds exactly.
  __attribute__((always_inline)) void set(int64_t v, int64_t i, floats x) const {
    constexpr int STEP = Products::STEP;
    const int64_t first = v / VECTORS_AT_ONCE * VECTORS_AT_ONCE;
    const int64_t together = min(count - first, int64_t(VECTORS_AT_ONCE));
    Input *to = data + first * width + (i / STEP * together + v - first) * STEP + i % STEP;
    if constexpr (std::is_same_v<Input, float>)
      store(to, x);
    else
      narrow(typename Products::Element(), to, x);
  }
  // Stores all elements, which `element(i, count)` gives LANES at a time, zeros after the count.
  template <class Get>
  __attribute__((always_inline)) void set_all(int64_t v, int64_t inputs, Get element) const {
    for (int64_t i = 0; i < width; i += LANES)
      set(v, i, i < inputs ? element(i, inputs - i) : floats{});
  }
};

// Vectors (count, inputs) in the dtype, `stride` apart, as inputs in `memory`.
template <class Products>
static Inputs<Products> load_inputs(const typename Products::Number *from, int64_t count,
                                    int64_t inputs, int64_t stride,
                                    typename Products::Input *memory) {
  const Inputs<Products> x = {memory, count, padded_inputs(inputs)};
  for (int64_t v = 0; v < count; v++)
    x.set_all(v, inputs, [&](int64_t i, int64_t left) {
      return widen_part(typename Products::Element(), from + v * stride + i, left);
    });
  return x;
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

// Results (V, outputs) of rows [first, last), `stride` apart.
template <class Products, int at_once>
static void multiply_rows(const LinearMap<Products> &map, int64_t first, int64_t last,
                          const Inputs<Products> &x, typename Products::Number *result,
                          int64_t stride) {
  using Element = typename Products::Element;
  using Number = typename Products::Number;
  alignas(64) float totals[MAX_TOTALS];
  const auto multiply = [&](int64_t row, auto rows, int64_t v, auto vectors) {
    multiply_tile<Products, rows, vectors>(map.weight + row * map.inputs, map.inputs,
                                           x.data + v * x.width, totals);
    constexpr size_t bytes = size_t(rows) * sizeof(Number);
    Number numbers[LANES] = {};
    floats bias = {}, scale = {};
    if (map.bias) {
      memcpy(numbers, map.bias + row, bytes);
      bias = widen(Element(), numbers);
    }
    if constexpr (Products::HAS_SCALE) memcpy(&scale, map.scale + row, rows * sizeof(float));
    for (int i = 0; i < vectors; i++) {
      floats total = load(totals + i * rows);
      if constexpr (Products::HAS_SCALE) total *= scale;
      narrow(Element(), numbers, total + bias);
      memcpy(result + (v + i) * stride + row, numbers, bytes);
    }
  };
  const auto multiply_all = [&](int64_t row, auto rows) {
    int64_t v = 0;
    for (; v + at_once <= x.count; v += at_once)
      multiply(row, rows, v, std::integral_constant<int, at_once>());
    if constexpr (at_once == VECTORS_AT_ONCE)
      with_count<at_once>(x.count - v, [&](auto left) { multiply(row, rows, v, left); });
  };
  constexpr int tile = rows_at_once(at_once);
  int64_t row = first;
  for (; row + tile <= last; row += tile) multiply_all(row, std::integral_constant<int, tile>());
  for (; row < last; row++) multiply_all(row, std::integral_constant<int, 1>());
}

template <class Products>
static void multiply_rows(const LinearMap<Products> &map, int64_t first, int64_t last,
                          const Inputs<Products> &x, typename Products::Number *result,
                          int64_t stride) {
  with_count<VECTORS_AT_ONCE + 1>(min(x.count, int64_t(VECTORS_AT_ONCE)), [&](auto at_once) {
    multiply_rows<Products, at_once>(map, first, last, x, result, stride);
  });
}

}  // namespace regard::REGARD_SET
