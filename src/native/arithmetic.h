// The arithmetic of the tiles in float32, and the interface of every arithmetic.
//
// An arithmetic defines the number type that keys and values are packed as, how many elements of a
// sum one multiplication takes (STEP), and the layout of queries and weights in the lanes. This
// file has float32, to which half precisions are widened; pairs.h has dot products of bfloat16
// pairs.
#pragma once

#include "amx_tiles.h"
#include "query_block.h"
#include "threads.h"

namespace regard::REGARD_SET {

// Rows of keys: row k at data + k · stride. Rows of values: STEP rows at data + k / STEP · stride.
template <class Number>
struct PackedRows {
  const Number *data;
  int64_t stride;
};

// Whether rows are copied before they are multiplied several times. If heads are interleaved, as in
// models, rows are on more pages than the TLB holds; but if a group has few blocks of queries, the
// copy takes longer.
REGARD_INLINE bool gains_by_copy(const regard_problem &p, const regard_tensor &from, int64_t dim) {
  constexpr int64_t MANY = 16;
  return dim > 0 && from.row >= 2 * dim && query_blocks_per_group(p) >= MANY;
}

// Multiplication and addition. Tiles depend on nothing else, so they are compiled once for all
// dtypes that share them.
struct FloatProducts {
  using Number = float;
  static constexpr int STEP = 1;
  struct Unit {};  // held during multiplications, such as a tile configuration

  REGARD_INLINE floats load_broadcast(const float *from) { return broadcast(*from); }
  REGARD_INLINE floats multiply_add(floats number, floats lanes, floats sum) {
    return number * lanes + sum;
  }
};

// for_each_task, with a Unit in each thread.
template <class Arithmetic, class Task>
int for_each_product_task(int threads, int64_t count, size_t memory_per_thread, Task task) {
  return for_each_task(threads, count, memory_per_thread, [&](int64_t number, void *memory) {
    [[maybe_unused]] const typename Arithmetic::Products::Unit unit;
    task(number, memory);
  });
}

// Sums of numbers times 0: NaN if any number was not finite.
template <class Products, int count>
class ZeroSums {
  floats zero_ = {}, sums_[count] = {};

 public:
  ZeroSums() { keep_in_register(zero_); }  // GCC 12 takes a vector times a constant 0 for 0
  __attribute__((always_inline)) void add(int i, const void *numbers) {
    sums_[i] = Products::multiply_add(load((const float *)numbers), zero_, sums_[i]);
  }
  bool finite() const {
    floats sum = sums_[0];
    REGARD_UNROLLED_FOR (int i = 1; i < count; i++) sum += sums_[i];
    return !any(sum != sum);
  }
};

// Whether all numbers of rows of values are finite.
template <class Products>
static bool finite_rows(const PackedRows<typename Products::Number> &rows, int64_t count,
                        int64_t dim) {
  constexpr int STEP = Products::STEP;
  const int64_t steps = (count + STEP - 1) / STEP;
  ZeroSums<Products, 4> sums;
  for (int64_t d = 0; d < dim; d += LANES) {
    const auto *row = rows.data + d * STEP;
    int64_t k = 0;
    for (; k + 4 <= steps; k += 4, row += 4 * rows.stride)
      REGARD_UNROLLED_FOR (int i = 0; i < 4; i++) sums.add(i, row + i * rows.stride);
    for (; k < steps; k++, row += rows.stride) sums.add(0, row);
  }
  return sums.finite();
}

// The same for queries in the lanes, (dim, QUERIES).
template <class Products>
static bool finite_columns(const float *columns, int64_t dim, int vectors) {
  constexpr int STEP = Products::STEP;
  ZeroSums<Products, VECTORS> sums;
  with_live(vectors, [&](auto live) {
    for (int64_t step = 0; step < (dim + STEP - 1) / STEP; step++)
      REGARD_UNROLLED_FOR (int j = 0; j < live; j++)
        sums.add(j, columns + step * QUERIES + j * LANES);
  });
  return sums.finite();
}

template <class T>
struct Widened : FloatProducts {
  using Element = T;
  using Products = FloatProducts;

  static void load_queries(const regard_tensor &from, const QueryBlock &queries, int64_t dim,
                           float factor, float *to) {
    load_rows(Element(), from, queries, dim, factor, to);
  }

  // The rows in place, or widened into scratch.
  static PackedRows<float> keys(const regard_tensor &from, const QueryBlock &queries, int64_t first,
                                int64_t count, int64_t dim, float *scratch) {
    const auto *data = first_row<Element>(from, queries, first);
    if constexpr (std::is_same_v<Element, Float32>)
      return {data, from.row};
    else
      return widened(data, from.row, count, dim, scratch);
  }
  // The same, with zeros up to the next multiple of LANES.
  static bool values_in_place(const regard_problem &p, const regard_tensor &from, int64_t dim) {
    return std::is_same_v<Element, Float32> && dim % LANES == 0 && !gains_by_copy(p, from, dim);
  }
  // Keys are read once per block of queries, so a copy pays only if a task has several blocks.
  static bool copies_keys(const regard_problem &p) {
    return std::is_same_v<Element, Float32> && p.dim % LANES == 0 &&
           gains_by_copy(p, p.key, p.dim) &&
           p.batch * p.groups * query_blocks_per_group(p) >= 64 * p.threads;
  }
  static int64_t value_stride(int64_t dim) { return padded(dim); }  // of packed values
  static PackedRows<float> values(const regard_problem &p, const regard_tensor &from,
                                  const QueryBlock &queries, int64_t first, int64_t count,
                                  int64_t dim, float *scratch) {
    if (values_in_place(p, from, dim)) return keys(from, queries, first, count, dim, scratch);
    return pack_rows(from, queries, first, count, dim, scratch);
  }
  static PackedRows<float> pack_rows(const regard_tensor &from, const QueryBlock &queries,
                                     int64_t first, int64_t count, int64_t dim, float *to) {
    return widened(first_row<Element>(from, queries, first), from.row, count, dim, to);
  }
  static PackedRows<float> widened(const typename Element::type *rows, int64_t stride,
                                   int64_t count, int64_t dim, float *scratch) {
    for (int64_t k = 0; k < count; k++)
      for (int64_t d = 0; d < dim; d += LANES)
        store(scratch + k * padded(dim) + d, widen_part(Element(), rows + k * stride + d, dim - d));
    return {scratch, padded(dim)};
  }
  // Elements d … d + LANES − 1 of a value.
  REGARD_INLINE floats value_part(const PackedRows<float> &rows, int64_t k, int64_t d) {
    return load(rows.data + k * rows.stride + d);
  }

  REGARD_INLINE floats exponential(floats x) { return exp2(x); }
  // Four keys' weights of one vector.
  REGARD_INLINE void store_weights(float *column, const floats *weights) {
    REGARD_UNROLLED_FOR (int i = 0; i < 4; i++) store(column + i * QUERIES, weights[i]);
  }
  REGARD_INLINE floats weight(const float *column, int64_t k) { return load(column + k * QUERIES); }
  // Key k's weights, 0 where they are not kept.
  REGARD_INLINE void keep(float *column, int64_t k, ints kept) {
    float *at = column + k * QUERIES;
    store(at, kept ? load(at) : floats{});
  }
};

}  // namespace regard::REGARD_SET
