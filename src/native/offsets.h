// Mean weight by how far back: sums along the diagonals of the pattern.
//
// In a block with queries in the lanes, the weights of one key lie on as many diagonals as there
// are lanes, one beside the other: a vector is added to n numbers, at a place that moves on by one
// from key to key.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

// Sums: the weight on each diagonal, then how many more rows see its key than the diagonal before.
struct Offsets : Readout {
  static int64_t width(const regard_readout &asked) { return asked.size + 1; }

  // LANES numbers on either side take what lies on no diagonal that was asked for.
  static size_t memory(const regard_problem &, const regard_readout &asked) {
    return size_t(padded(asked.size) + 3 * LANES) * sizeof(float);
  }
  static int64_t sums(const regard_problem &, const regard_readout &asked) {
    return 2 * width(asked);
  }

  // Whether the rows are of one head and sit one behind the other.
  static bool in_order(const At &at, const Task &task) {
    for (int r = 1; r < task.count; r++)
      if (task.position[r] != task.position[0] + r) return false;
    return at.unit.heads == 1;
  }

  static void begin(const At &at, const Task &task) {
    memset(at.memory, 0, memory(at.p, at.asked));
    for (int r = 0; r < task.count; r++) count(at, task, r);
  }

  static void count(const At &at, const Task &task, int r) {
    double *counts = at.sums_of(task.head[r]) + width(at.asked);
    const int64_t n = at.asked.size, position = task.position[r];
    if (task.start[r] >= task.stop[r]) return;
    const int64_t low = most(int64_t(0), position - task.stop[r] + 1);
    const int64_t high = least(n, position - task.start[r] + 1);
    if (low >= high) return;
    if (!at.p.allowed.data && !at.p.bias.data) {
      counts[low] += 1;
      counts[high] -= 1;
      return;
    }
    for (int64_t back = low; back < high; back++) {
      const bool sees = visible(at.p, task, r, position - back);
      counts[back] += sees;
      counts[back + 1] -= sees;
    }
  }

  static void weights(const At &at, const Block &block) {
    if (!in_order(at, block.task)) return add_one_by_one(at, block);
    // Lane 0 of vector j and key k are position + j·LANES − k tokens apart. Keys LANES apart are
    // taken in turn, so that no store is read again at once.
    float *diagonals = at.kept<float>() + LANES;
    const int64_t apart = block.task.position[0] - block.key;
    for (int j = 0; j < block.task.vectors; j++) {
      const int64_t back = apart + j * LANES;  // of the block's first key
      const int32_t from = int32_t(most(int64_t(0), back - at.asked.size + 1));
      const int32_t to = int32_t(least(int64_t(block.keys), back + LANES));
      for (int32_t phase = from; phase < least(from + LANES, to); phase++)
        for (int32_t k = phase; k < to; k += LANES) {
          float *at_lane = diagonals + back - k;
          store(at_lane, load(at_lane) + load(block.weights + k * QUERIES + j * LANES));
        }
    }
  }

  static void add_one_by_one(const At &at, const Block &block) {
    const Task &task = block.task;
    for (int r = 0; r < task.count; r++) {
      const int64_t apart = int64_t(task.position[r]) - block.key;
      double *sums = at.sums_of(task.head[r]);
      const int64_t from = most(int64_t(0), apart - at.asked.size + 1);
      const int64_t to = least(int64_t(block.keys), apart + 1);
      for (int64_t k = from; k < to; k++) sums[apart - k] += block.weights[k * QUERIES + r];
    }
  }

  static void end(const At &at, const Task &, const Norms &) {
    const float *diagonals = at.kept<float>() + LANES;
    for (int64_t back = 0; back < at.asked.size; back++) at.sums[back] += diagonals[back];
  }

  static void finish(const regard_problem &, const regard_readout &asked, int64_t head,
                     const Sums &sums) {
    const double *weights = sums.total(2 * width(asked)), *counts = weights + width(asked);
    double rows = 0;
    for (int64_t back = 0; back < asked.size; back++) {
      rows += counts[back];
      asked.result[head * asked.size + back] = float(weights[back] / most(rows, 1.0));
    }
  }
};

}  // namespace regard::REGARD_SET
