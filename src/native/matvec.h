// Products of a matrix with a few vectors, as in generation: y = x·Wᵀ + bias.
#pragma once

#include "row_totals.h"
#include "system.h"
#include "threads.h"
#include "tile_rows.h"

namespace regard::REGARD_SET {

constexpr int TASKS_OF_THREAD = 4;  // few, so that each reads a long contiguous part of memory
constexpr int64_t ROWS_OF_PART = LANES == 16 ? 16 : ROWS_OF_GROUP;  // complete tiles, of AMX too

// The division of rows into tasks: parts are shared out evenly, and the first tasks have one more,
// so that threads that take them in turn end together.
struct RowTasks {
  int64_t rows, parts, count;

  RowTasks(int64_t rows, int64_t threads)
      : rows(rows), parts((rows + ROWS_OF_PART - 1) / ROWS_OF_PART),
        count(min(parts, threads * TASKS_OF_THREAD)) {}
  int64_t first(int64_t task) const {
    return (task * (parts / count) + min(task, parts % count)) * ROWS_OF_PART;
  }
  int64_t last(int64_t task) const { return min(rows, first(task + 1)); }
};

template <class Products>
int matvec(const regard_matvec &product) {
  using Number = typename Products::Number;
  using Input = typename Products::Input;
  const size_t size =
      size_t(Inputs<Products>::size(product.vectors, product.inputs)) * sizeof(Input);
  Input *memory = (Input *)system::allocate(64, (size / 64 + 1) * 64);
  if (!memory) return REGARD_OUT_OF_MEMORY;
  const Inputs<Products> x = load_inputs<Products>((const Number *)product.x, product.vectors,
                                                   product.inputs, product.inputs, memory);
  const regard_linear linear = {product.weight, product.bias, product.scale, product.blocks};
  const LinearMap<Products> map(linear, product.inputs, product.outputs);
  const RowTasks tasks(product.outputs, product.threads);
  const int result =
      for_each_task(int(product.threads), tasks.count, 0, [&](int64_t number, void *) {
        multiply_rows<Products>(map, tasks.first(number), tasks.last(number), x,
                                (Number *)product.result, product.outputs);
      });
  system::release(memory);
  return result;
}

}  // namespace regard::REGARD_SET
