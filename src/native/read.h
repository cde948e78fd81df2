// Readouts: any number of reductions of the pattern, in one pass over scores that are recomputed.
#pragma once

#include <stdlib.h>

#include "chosen.h"
#include "image.h"
#include "key_readouts.h"
#include "norms.h"
#include "offsets.h"
#include "row_readouts.h"
#include "top.h"

namespace regard::REGARD_SET {

// Bytes of sums over rows that are kept at a time.
constexpr int64_t MOST_SUMS = 1 << 24;

template <class Call>
REGARD_INLINE void with_kind(int64_t kind, Call call) {
  switch (kind) {
    case REGARD_LOGSUMEXP: return call(LogSumExp());
    case REGARD_MAX: return call(Max());
    case REGARD_ENTROPY: return call(Entropy());
    case REGARD_DISTANCE: return call(Distance());
    case REGARD_MASS: return call(Mass());
    case REGARD_TOP: return call(Top());
    case REGARD_WEIGHTS: return call(Chosen());
    case REGARD_RECEIVED: return call(Received());
    case REGARD_COLLECTED: return call(Collected());
    case REGARD_OFFSETS: return call(Offsets());
    case REGARD_IMAGE: return call(Image());
  }
}

struct Reading {
  const regard_problem &p;
  const regard_readouts &readouts;
  const Scoring scoring;
  const Division division;
  int64_t sums_per_head = 0;              // numbers, for each chunk
  size_t memory = 0;                      // bytes that the readouts need on a thread
  bool scores = false;                    // whether more than the log-sum-exp is asked for
  bool weights = false;                   // whether more than scores tell
  bool columns = false, entropy = false;  // see `Block`

  Reading(const regard_problem &problem, const regard_readouts &asked)
      : p(problem), readouts(asked), scoring(scoring_of(problem)), division(problem) {
    for (int64_t i = 0; i < readouts.count; i++) {
      const regard_readout &readout = readouts.list[i];
      with_kind(readout.kind, [&](auto kind) {
        sums_per_head += kind.sums(p, readout);
        memory += aligned(kind.memory(p, readout));
        weights |= kind.of_weights;
        columns |= kind.of_columns;
        entropy |= kind.of_entropy;
      });
      scores |= readout.kind != REGARD_LOGSUMEXP;
    }
  }

  int64_t sums_per_unit() const {
    return division.heads_together * division.chunks * sums_per_head;
  }

  static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

  // Calls call(kind, at) for every readout.
  template <class Call>
  void for_each(const Unit &unit, char *kept, double *sums, Call call) const {
    const int64_t step = division.chunks * sums_per_head;
    for (int64_t i = 0; i < readouts.count; i++) {
      const regard_readout &readout = readouts.list[i];
      with_kind(readout.kind, [&](auto kind) {
        call(kind, At{p, readout, unit, kept, sums, step});
        kept += aligned(kind.memory(p, readout));
        sums += kind.sums(p, readout);
      });
    }
  }
};

template <class Arithmetic>
static void read_task(const Reading &reading, const Unit &unit, const Task &task,
                      const ReadScratch &scratch, double *sums) {
  const regard_problem &p = reading.p;
  const auto each = [&](auto call) { reading.for_each(unit, scratch.readouts, sums, call); };
  Arithmetic::load_queries(p.query, task, p.dim, reading.scoring.query_factor, scratch.query);

  Norms norms;
  RowNorm exact[QUERIES];
  norms.factor = reading.scoring.factor;
  if (reading.readouts.logsumexp) {
    for (int r = 0; r < QUERIES; r++)
      norms.logsumexp[r] =
          r < task.count ? reading.readouts.logsumexp[row_number(p, task, r)] : -INFINITY;
    if (any_coarse(norms.logsumexp, task.count)) {
      Task whole = task;  // of all keys, not of those alone that are read
      find_bounds(p, whole);
      find_hulls(p, whole);
      find_norms_of<Arithmetic>(p, reading.scoring, whole, scratch, norms.logsumexp, exact);
    }
  } else {
    find_norms<Arithmetic>(p, reading.scoring, task, scratch, norms.logsumexp, exact);
  }
  norms.prepare(task, exact);

  each([&](auto kind, const At &at) { kind.begin(at, task); });
  if (reading.scores)
    for_each_block(task, [&](int32_t first, int32_t last) {
      Block block(p, task, first, last, scratch);
      ints ignored[VECTORS] = {};
      score<Arithmetic>(reading.scoring, scratch, block, ignored);
      each([&](auto kind, const At &at) { kind.scores(at, block); });
      if (!reading.weights) return;
      weigh(norms, reading.columns, reading.entropy, block);
      each([&](auto kind, const At &at) { kind.weights(at, block); });
    });
  each([&](auto kind, const At &at) { kind.end(at, task, norms); });
}

template <class Arithmetic>
static void read_unit(const Reading &reading, const Unit &unit, void *memory, double *sums) {
  const regard_problem &p = reading.p;
  const int64_t step = reading.division.chunks * reading.sums_per_head;
  for (int64_t h = 0; h < unit.heads; h++)
    memset(sums + h * step, 0, size_t(reading.sums_per_head) * sizeof(double));
  const ReadScratch scratch(p, memory);
  for (int64_t first = 0; first < unit.rows(); first += QUERIES) {
    Task task;
    begin(p, unit, first, reading.readouts.first_key, reading.readouts.last_key, task);
    read_task<Arithmetic>(reading, unit, task, scratch, sums);
  }
}

// Adds up what was summed over the rows of the unit's heads, chunk by chunk.
static void finish_unit(const Reading &reading, const Unit &unit, double *sums) {
  const regard_problem &p = reading.p;
  for (int64_t h = 0; h < unit.heads; h++) {
    double *own = sums + h * reading.division.chunks * reading.sums_per_head;
    for (int64_t i = 0; i < reading.readouts.count; i++) {
      const regard_readout &readout = reading.readouts.list[i];
      with_kind(readout.kind, [&](auto kind) {
        kind.finish(p, readout, unit.batch * p.heads + unit.head + h,
                    Sums{own, reading.sums_per_head, reading.division});
        own += kind.sums(p, readout);
      });
    }
  }
}

// A thread a unit: where there are many, each is done with before the next.
template <class Arithmetic>
static int read_one_by_one(const Reading &reading) {
  const regard_problem &p = reading.p;
  const Division &division = reading.division;
  const size_t own = ReadScratch::size(p) + reading.memory;
  return for_each_task(int(p.threads), division.units,
                       own + size_t(reading.sums_per_unit()) * sizeof(double),
                       [&](int64_t number, void *memory) {
                         double *sums = (double *)((char *)memory + own);
                         for (int64_t chunk = 0; chunk < division.chunks; chunk++)
                           read_unit<Arithmetic>(reading, division.unit(p, number, chunk), memory,
                                                 sums + chunk * reading.sums_per_head);
                         finish_unit(reading, division.unit(p, number, 0), sums);
                       });
}

// A thread a chunk; as many units at a time as there is memory for their sums.
template <class Arithmetic>
static int read_by_chunks(const Reading &reading) {
  const regard_problem &p = reading.p;
  const Division &division = reading.division;
  const int64_t size = reading.sums_per_unit() * int64_t(sizeof(double));
  const int64_t together =
      most(int64_t(1), least(division.units, MOST_SUMS / most(int64_t(1), size)));
  double *all_sums = (double *)malloc(size_t(together * size) + 1);
  if (!all_sums) return REGARD_OUT_OF_MEMORY;

  int result = REGARD_DONE;
  for (int64_t start = 0; start < division.units && result == REGARD_DONE; start += together) {
    const int64_t units = least(together, division.units - start);
    const auto sums_of = [&](int64_t unit) { return all_sums + unit * reading.sums_per_unit(); };
    result = for_each_task(
        int(p.threads), units * division.chunks, ReadScratch::size(p) + reading.memory,
        [&](int64_t number, void *memory) {
          // The last rows first, since those see the most when attention is causal.
          const int64_t chunk = division.chunks - 1 - number / units, unit = number % units;
          read_unit<Arithmetic>(reading, division.unit(p, start + unit, chunk), memory,
                                sums_of(unit) + chunk * reading.sums_per_head);
        });
    if (result == REGARD_DONE && size)
      result = for_each_task(int(p.threads), units, 0, [&](int64_t unit, void *) {
        finish_unit(reading, division.unit(p, start + unit, 0), sums_of(unit));
      });
  }
  free(all_sums);
  return result;
}

template <class Arithmetic>
static int read(const regard_problem &p, const regard_readouts &readouts) {
  const Reading reading(p, readouts);
  const bool many = reading.division.units >= 4 * p.threads;
  const bool small = reading.sums_per_unit() * int64_t(sizeof(double)) <= MOST_SUMS;
  return many && small ? read_one_by_one<Arithmetic>(reading) : read_by_chunks<Arithmetic>(reading);
}

}  // namespace regard::REGARD_SET
