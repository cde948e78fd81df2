// The readout that adds the weights of chosen keys to a tensor.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

// `operand` has the chosen keys in ascending order, then the column of each in the result.
struct Chosen : Readout {
  static bool looks_at(const ReadoutState &at, const QueryBlock &, int32_t first, int32_t last) {
    const int64_t *keys = (const int64_t *)at.request.operand, count = at.request.size;
    return lower_bound(keys, count, first) < lower_bound(keys, count, last);
  }
  static void weights(const ReadoutState &at, const WeightBlock &block) {
    const int64_t count = at.request.size;
    const int64_t *keys = (const int64_t *)at.request.operand, *columns = keys + count;
    const int64_t stop = lower_bound(keys, count, block.key + block.keys);
    for (int64_t i = lower_bound(keys, count, block.key); i < stop; i += LANES)
      copy(at, block, keys + i, columns + i, int(min(int64_t(LANES), stop - i)));
  }

  static void copy(const ReadoutState &at, const WeightBlock &block, const int64_t *keys,
                   const int64_t *columns, int count) {
    bool adjacent = true;
    for (int i = 1; i < count; i++) adjacent &= columns[i] == columns[0] + i;
    for (int j = 0; j < block.queries.vectors; j++) {
      floats tile[LANES] = {};
      for (int i = 0; i < count; i++)
        tile[i] = load(block.weights + (keys[i] - block.key) * QUERIES + j * LANES);
      transpose(tile);
      for (int i = 0; i < LANES && j * LANES + i < block.queries.count; i++) {
        float *row =
            at.request.result + row_number(at.p, block.queries, j * LANES + i) * at.request.size;
        if (adjacent) {
          const floats sum = widen_part(Float32(), row + columns[0], count) + tile[i];
          narrow_part(Float32(), row + columns[0], sum, count);
        } else {
          alignas(64) float weights[LANES];
          store(weights, tile[i]);
          for (int c = 0; c < count; c++) row[columns[c]] += weights[c];
        }
      }
    }
  }

  static int64_t lower_bound(const int64_t *keys, int64_t count, int64_t key) {
    int64_t low = 0;
    while (low < count) {
      const int64_t middle = (low + count) / 2;
      if (keys[middle] < key)
        low = middle + 1;
      else
        count = middle;
    }
    return low;
  }
};

}  // namespace regard::REGARD_SET
