// What every readout has: memory, and a say at each stage of the pass.
#pragma once

#include "weights.h"

namespace regard::REGARD_SET {

// A readout at work on a unit.
struct At {
  const regard_problem &p;
  const regard_readout &asked;
  const Unit &unit;
  char *memory;       // what it keeps of a task
  double *sums;       // what it sums up over rows, for the unit's first head
  int64_t sums_step;  // from one head's to the next

  double *sums_of(int64_t head) const { return sums + (head - unit.head) * sums_step; }
  // Bytes of memory, as numbers.
  template <class Number>
  Number *kept() const {
    return (Number *)memory;
  }
};

// The sums over rows of one head, chunk by chunk.
struct Sums {
  double *data;
  int64_t step;  // from one chunk's to the next
  const Division &division;

  // Adds up all chunks, in their order.
  double *total(int64_t count) const {
    for (int64_t c = 1; c < division.chunks; c++)
      for (int64_t i = 0; i < count; i++) data[i] += data[c * step + i];
    return data;
  }
};

// Readouts are types without data; this is one that keeps nothing and does nothing.
struct Readout {
  // What it wants of a block.
  static constexpr bool of_weights = true, of_columns = false, of_entropy = false;

  // Bytes that a thread needs for a task, and numbers that are summed up for a head and chunk.
  static size_t memory(const regard_problem &, const regard_readout &) { return 0; }
  static int64_t sums(const regard_problem &, const regard_readout &) { return 0; }

  static void begin(const At &, const Task &) {}
  static void scores(const At &, const Block &) {}
  static void weights(const At &, const Block &) {}
  static void end(const At &, const Task &, const Norms &) {}
  // Writes what was summed up for a head, numbered b·H + h.
  static void finish(const regard_problem &, const regard_readout &, int64_t, const Sums &) {}
};

// Adds numbers to sums that don't lose them, whatever the length.
REGARD_INLINE void add_to(double *sums, floats x) {
  alignas(64) float part[LANES];
  store(part, x);
  for (int i = 0; i < LANES; i++) sums[i] += part[i];
}
REGARD_INLINE void add_to(double *sums, floats x, int64_t count) {
  if (count >= LANES) return add_to(sums, x);
  alignas(64) float part[LANES];
  store(part, x);
  for (int i = 0; i < count; i++) sums[i] += part[i];
}

// Whether a row sees a key.
REGARD_INLINE bool visible(const regard_problem &p, const Task &task, int r, int64_t key) {
  if (key < task.start[r] || key >= task.stop[r]) return false;
  const auto at = [&](const regard_matrix &m) {
    return task.batch * m.batch + task.head[r] * m.head + task.query[r] * m.row + key * m.column;
  };
  if (p.allowed.data && !((const uint8_t *)p.allowed.data)[at(p.allowed)]) return false;
  return !p.bias.data || ((const float *)p.bias.data)[at(p.bias)] != HIDDEN;
}

}  // namespace regard::REGARD_SET
