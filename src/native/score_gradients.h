// From the gradients of weights to those of scores, and what bias and ALiBi's slopes get of them.
#pragma once

#include "dropout.h"
#include "gradient_task.h"

namespace regard::REGARD_SET {

// The derivative of the softmax: gradients becomes weights ∘ (gradients − delta). A weight of 0
// passes nothing on, be the value that it belongs to NaN.
static void differentiate_softmax(const TaskRows &rows, const Run &run, const float *weights,
                                  float *gradients) {
  for (int j = run.first; j < run.last; j++) {
    const floats delta = rows.delta[j];
    for (int64_t at = j * LANES; at < run.keys * QUERIES; at += QUERIES) {
      const floats weight = load(weights + at);
      const floats gradient = weight * (load(gradients + at) - delta);
      store(gradients + at, weight == 0.0f ? floats{} : gradient);
    }
  }
}

// What dropout multiplies the weights with that it spares.
REGARD_INLINE float spared_by_dropout(const regard_problem &p) {
  return p.dropout < 1 ? float(1 / (1 - p.dropout)) : 0;
}

// The same through dropout; the weights that fall become 0. The factor of those that survive is
// left to the gradient of the values as a whole.
static void differentiate_dropout(const regard_problem &p, const Task &task, const TaskRows &rows,
                                  const Run &run, float *weights, float *gradients) {
  const float factor = spared_by_dropout(p);
  const Survival survives(p.dropout);
  for (int j = run.first; j < run.last; j++)
    for_each_word(p, task, run, j, [&](int32_t key, words word) {
      const int64_t at = (key - run.key) * QUERIES + j * LANES;
      const ints kept = survives(word);
      const floats weight = load(weights + at);
      const floats received = kept ? load(gradients + at) * factor : floats{};
      const floats gradient = weight * (received - rows.delta[j]);
      store(gradients + at, weight == 0.0f ? floats{} : gradient);
      store(weights + at, kept ? weight : floats{});
    });
}

// From what the softcap gave to what it was given: 1 − tanh² of the dot products.
static void differentiate_softcap(const regard_problem &p, const Run &run, const float *products,
                                  float *gradients) {
  const float scale = float(p.scale), cap = float(p.softcap);
  for (int j = run.first; j < run.last; j++)
    for (int64_t at = j * LANES; at < run.keys * QUERIES; at += QUERIES) {
      const floats gradient = load(gradients + at),
                   capped = tanh(load(products + at) * scale / cap);
      const floats passed = gradient * (1.0f - capped * capped);
      store(gradients + at, gradient == 0.0f ? floats{} : passed);
    }
}

// Writes the gradient of the bias, whose last axis is contiguous.
static void write_bias_gradient(const regard_matrix &bias, const Task &task, const Run &run,
                                const float *gradients) {
  for (int j = run.first; j < run.last; j++)
    for (int32_t first = 0; first < run.keys; first += LANES) {
      const int keys = least(LANES, run.keys - first);
      floats part[LANES];
      REGARD_UNROLLED_FOR (int k = 0; k < LANES; k++)
        part[k] = k < keys ? load(gradients + (first + k) * QUERIES + j * LANES) : floats{};
      transpose(part);
      for (int i = 0; i < LANES && j * LANES + i < task.count; i++) {
        const int r = j * LANES + i;
        float *row = (float *)bias.data + task.batch * bias.batch + task.head[r] * bias.head +
                     task.query[r] * bias.row;
        narrow_part(Float32(), row + run.key + first, part[i], keys);
      }
    }
}

// What no row of a task sees of a panel's keys has a bias without a gradient.
static void clear_bias_gradient(const regard_matrix &bias, const Task &task, int32_t first,
                                int32_t last) {
  for (int r = 0; r < task.count; r++) {
    float *row = (float *)bias.data + task.batch * bias.batch + task.head[r] * bias.head +
                 task.query[r] * bias.row;
    memset(row + first, 0, size_t(last - first) * sizeof(float));
  }
}

// Adds up −distance · gradient of each row.
static void add_alibi_gradient(const Task &task, const Run &run, const float *gradients,
                               floats *sums) {
  for (int j = run.first; j < run.last; j++) {
    const ints position = load(task.position + j * LANES);
    floats sum = floats{};
    for (int32_t k = 0; k < run.keys; k++) {
      const ints ahead = all(run.key + k) - position, stop = position - all(run.key + k);
      const floats distance = __builtin_convertvector(ahead > stop ? ahead : stop, floats);
      sum += distance * load(gradients + k * QUERIES + j * LANES);
    }
    sums[j] -= sum;
  }
}

}  // namespace regard::REGARD_SET
