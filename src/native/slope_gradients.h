// The gradients of ALiBi's slopes: −Σ distance · score gradient over the rows of a head.
//
// The score gradients of a row sum to 0, so a distance that all its keys share cancels. In floating
// point the sum is not exactly 0: the derivative of the softmax subtracts delta, the context times
// its gradient, and the context has been rounded to the dtype. The rest of the sum is multiplied by
// the mean distance, which may be thousands. So each row's sums are stored, and the error of delta
// is corrected with them: delta is the weighted mean of the gradients of the weights, and its error
// is the sum of the score gradients divided by that of the weights.
#pragma once

#include "query_rows.h"

namespace regard::REGARD_SET {

// Sums over the keys of one row.
struct RowSums {
  double weights, distances;  // sums of the weights, and of weights times distances
  double gradients, moments;  // the same for the score gradients
};

// The same for a block's rows, over the keys of a panel.
struct SlopeSums {
  floats weights[VECTORS], distances[VECTORS], gradients[VECTORS], moments[VECTORS];
};

// Adds the numbers (keys, QUERIES) of a segment, and these times the distances.
static void add_moments(const QueryBlock &queries, const Segment &segment, const float *numbers,
                        floats *sums, floats *moments) {
  for (int j = segment.first; j < segment.last; j++) {
    const ints position = load(queries.position + j * LANES);
    floats sum = {}, moment = {};
    for (int32_t k = 0; k < segment.keys; k++) {
      const ints key = broadcast(segment.key + k), after = key - position, before = position - key;
      const floats distance = __builtin_convertvector(after > before ? after : before, floats);
      const floats number = load(numbers + k * QUERIES + j * LANES);
      sum += number;
      moment += distance * number;
    }
    sums[j] += sum;
    moments[j] += moment;
  }
}

// Adds a panel's sums to those of the rows, (B, H, L). The first panel includes the sinks, as
// weights on a key of distance 0 with value 0.
static void add_row_sums(const regard_problem &p, const QueryBlock &queries, const SlopeSums &sums,
                         const float *sink_weights, const float *sink_gradients, RowSums *to) {
  for (int r = 0; r < queries.count; r++) {
    const int j = r / LANES, i = r % LANES;
    RowSums &row = to[row_number(p, queries, r)];
    row.weights += sums.weights[j][i] + double(sink_weights[r]);
    row.distances += sums.distances[j][i];
    row.gradients += sums.gradients[j][i] + double(sink_gradients[r]);
    row.moments += sums.moments[j][i];
  }
}

// The contribution of a head's rows to the gradient of its slope. If they have keys outside the
// problem, the sums of their score gradients need not be 0, and are not corrected.
static float slope_gradient(const RowSums *rows, int64_t count, bool all_keys) {
  double total = 0;
  for (int64_t r = 0; r < count; r++) {
    total -= rows[r].moments;
    if (all_keys && rows[r].weights > 0)
      total += rows[r].gradients / rows[r].weights * rows[r].distances;
  }
  return float(total);
}

}  // namespace regard::REGARD_SET
