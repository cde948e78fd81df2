// Products of a matrix with a few vectors, as every step of generation has them: y = x·Wᵀ + bias.
//
// It costs what reading W from memory costs. Each task reads some of W's rows once, a few side by
// side, and multiplies them with all vectors. The numbers of a product are added up in one order,
// whatever the number of vectors, of rows and of threads.
#pragma once

#include "element.h"
#include "system.h"
#include "threads.h"

namespace regard::REGARD_SET {

constexpr int TASKS_OF_THREAD =
    4;  // the fewer there are, the longer the runs of memory that each reads
constexpr int VECTORS_AT_ONCE = REGISTERS == 32 ? 8 : 4;  // of x
constexpr int RUNNING_SUMS = 2 * VECTORS_AT_ONCE;         // in registers

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

// `rows` rows of W, from `row` on, times `vectors` of the vectors x, from `first` on.
template <int rows, int vectors, class Element>
REGARD_INLINE void multiply_rows(Element element, const regard_matvec &product, int64_t row,
                                 const float *x, int64_t first) {
  static_assert(rows <= LANES);
  using Number = typename Element::type;
  const int64_t width = (product.inputs + LANES - 1) / LANES * LANES;
  const int64_t whole = product.inputs / LANES * LANES;
  const Number *weight = (const Number *)product.weight + row * product.inputs;
  x += first * width;
  floats sums[vectors * rows] = {}, numbers[rows];
  const auto add = [&](int64_t i) REGARD_INLINE_LAMBDA {
    REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) {
      const floats elements = load(x + v * width + i);
      REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) sums[v * rows + r] += numbers[r] * elements;
    }
  };
  constexpr int64_t line = 64 / sizeof(Number);
  for (int64_t i = 0; i < whole; i += LANES) {
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++) {
      const Number *from = weight + r * product.inputs + i;
      // The next rows follow these. The processor prefetches within a row only, and rows are short.
      if (line <= LANES || i % line == 0) __builtin_prefetch(from + rows * product.inputs, 0, 2);
      numbers[r] = widen(element, from);
    }
    add(i);
  }
  if (whole < product.inputs) {
    REGARD_UNROLLED_FOR (int r = 0; r < rows; r++)
      numbers[r] = widen_part(element, weight + r * product.inputs + whole, product.inputs - whole);
    add(whole);
  }
  floats bias = {};
  if (product.bias) bias = widen_part(element, (const Number *)product.bias + row, rows);
  alignas(64) float totals[vectors * rows + 2 * LANES];  // what is past the last row is not used
  sum_each<vectors * rows>(sums, totals);
  for (int v = 0; v < vectors; v++) {
    Number *to = (Number *)product.result + (first + v) * product.outputs + row;
    narrow_part(element, to, load(totals + v * rows) + bias, rows);
  }
}

// Rows [row, last) of W times so many of the vectors, with as many sums at once as registers hold.
template <int vectors, class Element>
REGARD_INLINE void multiply(Element element, const regard_matvec &product, int64_t row,
                            int64_t last, const float *x, int64_t first) {
  constexpr int all_rows = RUNNING_SUMS / vectors, rows = all_rows < LANES ? all_rows : LANES;
  for (; row + rows <= last; row += rows)
    multiply_rows<rows, vectors>(element, product, row, x, first);
  for (; row < last; row++) multiply_rows<1, vectors>(element, product, row, x, first);
}

template <class Element>
__attribute__((noinline)) void multiply_rows_of_task(const regard_matvec &product, int64_t row,
                                                     int64_t last, const float *x) {
  int64_t first = 0;
  for (; first + VECTORS_AT_ONCE <= product.vectors; first += VECTORS_AT_ONCE)
    multiply<VECTORS_AT_ONCE>(Element(), product, row, last, x, first);
  const int64_t left = product.vectors - first;
  if constexpr (VECTORS_AT_ONCE > 4)
    if (left & 4) multiply<4>(Element(), product, row, last, x, first), first += 4;
  if (left & 2) multiply<2>(Element(), product, row, last, x, first), first += 2;
  if (left & 1) multiply<1>(Element(), product, row, last, x, first);
}

// The vectors as floats, each followed by zeros up to a multiple of LANES.
template <class Element>
static void widen_vectors(const regard_matvec &product, float *x) {
  using Number = typename Element::type;
  for (int64_t v = 0; v < product.vectors; v++)
    for (int64_t i = 0; i < product.inputs; i += LANES, x += LANES)
      store(x, widen_part(Element(), (const Number *)product.x + v * product.inputs + i,
                          product.inputs - i));
}

template <class Element>
int matvec(const regard_matvec &product) {
  const int64_t width = (product.inputs + LANES - 1) / LANES * LANES;
  float *x = (float *)system::allocate(64, size_t(product.vectors * width / 16 + 1) * 64);
  if (!x) return REGARD_OUT_OF_MEMORY;
  widen_vectors<Element>(product, x);
  const int64_t tasks = min(product.outputs, product.threads * TASKS_OF_THREAD);
  const int result = for_each_task(int(product.threads), tasks, 0, [&](int64_t number, void *) {
    const int64_t row = product.outputs * number / tasks,
                  last = product.outputs * (number + 1) / tasks;
    multiply_rows_of_task<Element>(product, row, last, x);
  });
  system::release(x);
  return result;
}

}  // namespace regard::REGARD_SET
