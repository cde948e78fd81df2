// Products of a matrix with a few vectors, as in generation: y = x·Wᵀ + bias.
#pragma once

#include "block_rows.h"
#include "system.h"
#include "threads.h"
#include "tile_rows.h"

namespace regard::REGARD_SET {

// Complete tiles, of AMX too, or panels.
template <class Products>
constexpr int64_t ROWS_OF_PART = MultipliesBlocks<Products> ? PANELS * LANES
                                 : LANES == 16              ? 16
                                                            : ROWS_OF_GROUP;

// The division of rows into tasks: parts are shared out evenly, and the first tasks have one more,
// so that threads that take them in turn end together.
template <class Products>
struct RowTasks {
  static constexpr int64_t SIZE = ROWS_OF_PART<Products>;
  // Few, so that each reads a long contiguous part of memory. Rows of blocks that are fetched early
  // come to the thread that fetches them: with one task, two threads of a Zen 4 took 0.8 of the
  // time.
  static constexpr int TASKS_OF_THREAD = MultipliesBlocks<Products> ? 1 : 4;
  int64_t rows, parts, count;

  RowTasks(int64_t rows, int64_t threads)
      : rows(rows), parts((rows + SIZE - 1) / SIZE), count(min(parts, threads * TASKS_OF_THREAD)) {}
  int64_t first(int64_t task) const {
    return (task * (parts / count) + min(task, parts % count)) * SIZE;
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
  const Inputs<Products> x = {memory, product.vectors, padded_inputs(product.inputs)};
  constexpr int64_t together = Inputs<Products>::VECTORS_AT_ONCE;
  const int threads = int(product.threads);
  int result =
      for_each_task(threads, (x.count + together - 1) / together, 0, [&](int64_t number, void *) {
        for (int64_t v = number * together; v < min(x.count, (number + 1) * together); v++)
          load_input(x, v, (const Number *)product.x + v * product.inputs, product.inputs);
      });
  const regard_linear linear = {product.weight, product.bias, product.scale, product.blocks};
  const LinearMap<Products> map(linear, product.inputs, product.outputs);
  const RowTasks<Products> tasks(product.outputs, threads);
  if (result == REGARD_DONE)
    result = for_each_task(threads, tasks.count, 0, [&](int64_t number, void *) {
      multiply_rows<Products>(map, tasks.first(number), tasks.last(number), x,
                              (Number *)product.result, product.outputs);
    });
  system::release(memory);
  return result;
}

}  // namespace regard::REGARD_SET
