// Norms of rows: worked out of all their keys, or of a log-sum-exp that is given.
#pragma once

#include "threads.h"
#include "weights.h"

namespace regard::REGARD_SET {

// Works out the log-sum-exp of a task's rows, as the forward pass does, and their norms.
template <class Arithmetic>
static void find_norms(const regard_problem &p, const Scoring &scoring, const Task &task,
                       const ReadScratch &scratch, float *logsumexp, RowNorm *norms) {
  floats peak[VECTORS], total[VECTORS];
  ints seen[VECTORS];
  for (int j = 0; j < VECTORS; j++) peak[j] = all(HIDDEN), total[j] = floats{}, seen[j] = ints{};
  const floats factor = all(scoring.factor);
  for_each_block(task, [&](int32_t first, int32_t last) {
    Block block(p, task, first, last, scratch);
    score<Arithmetic>(scoring, scratch, block, seen);
    for (int j = 0; j < task.vectors; j++) {
      const Shift old = shift_of(peak[j], factor);
      const floats higher = larger(peak[j], block.peak[j]);
      const Shift shift = shift_of(higher, factor);
      total[j] *= peak[j] == all(HIDDEN) ? floats{} : ratio_of(old, shift, factor);
      peak[j] = higher;
      total[j] +=
          exponentials<Widened<Float32>>(block.weights + j * LANES, block.keys, factor, shift);
    }
  });
  for (int j = 0; j < task.vectors; j++) {
    const floats sinks = p.sink.data ? numbers_of(p.sink, task, j * LANES) : floats{};
    const ints sees =
        scoring.adjusted ? seen[j] : load(task.start + j * LANES) < load(task.stop + j * LANES);
    const Shift shift = shift_of(peak[j], factor);
    for (int i = 0; i < LANES; i++) {
      RowSum sum = {level_of(shift, i, scoring), total[j][i]};
      if (p.sink.data) sum.take_in(sinks[i]);
      logsumexp[j * LANES + i] = sees[i] ? sum.logsumexp() : -INFINITY;
      // A sink far above the scores is what they are measured from.
      const bool below = p.sink.data && sum.level == sinks[i];
      const float from = below                  ? float(sum.level / scoring.unit)
                         : peak[j][i] == HIDDEN ? 0
                                                : peak[j][i];
      const double above = (sum.level - from * scoring.unit) * LOG2_E;
      norms[j * LANES + i] = {from, float(above + log2f(sum.total))};
    }
  }
}

// The norms of rows whose log-sum-exp is given. Where that says otherwise than the keys at hand,
// there are keys elsewhere, of which it alone knows.
template <class Arithmetic>
static void find_norms_of(const regard_problem &p, const Scoring &scoring, const Task &task,
                          const ReadScratch &scratch, const float *given, RowNorm *norms) {
  constexpr float ROUNDING = 0x1p-22f;  // of two sums of the same numbers, in different orders
  alignas(64) float own[QUERIES];
  find_norms<Arithmetic>(p, scoring, task, scratch, own, norms);
  for (int r = 0; r < task.count; r++)
    if (!(fabsf(given[r] - own[r]) <= ROUNDING * fabsf(given[r])))
      norms[r] = norm_of(given[r], norms[r].peak, scoring.unit);
}

REGARD_INLINE bool any_coarse(const float *logsumexp, int64_t rows) {
  bool found = false;
  for (int64_t r = 0; r < rows; r++) found |= is_coarse(logsumexp[r]);
  return found;
}

// Calls visit(task, its log-sum-exps, scratch that holds its queries) for the tasks with a coarse
// one.
template <class Arithmetic, class Visit>
static int for_each_coarse(const regard_problem &p, const Scoring &scoring, const float *logsumexp,
                           Visit visit) {
  const int64_t tasks = p.batch * p.groups * tasks_per_group(p);
  return for_each_task(
      int(p.threads), tasks, ReadScratch::size(p), [&](int64_t number, void *memory) {
        Task task;
        begin(p, number, task);
        float given[QUERIES];
        for (int r = 0; r < task.count; r++) given[r] = logsumexp[row_number(p, task, r)];
        if (!any_coarse(given, task.count)) return;
        const ReadScratch scratch(p, memory);
        Arithmetic::load_queries(p.query, task, p.dim, scoring.query_factor, scratch.query);
        visit(task, given, scratch);
      });
}

// The norms of a problem's rows, (B, H, L), whose log-sum-exp is coarse.
template <class Arithmetic>
static int find_coarse_norms(const regard_problem &p, const Scoring &scoring,
                             const float *logsumexp, RowNorm *norms) {
  return for_each_coarse<Arithmetic>(
      p, scoring, logsumexp, [&](const Task &task, const float *given, const ReadScratch &scratch) {
        RowNorm own[QUERIES];
        find_norms_of<Arithmetic>(p, scoring, task, scratch, given, own);
        for (int r = 0; r < task.count; r++) norms[row_number(p, task, r)] = own[r];
      });
}

// Brings the coarse among log-sum-exps, which other dot products led to, to those that everything
// else works with: rounding makes these and those differ by more than weights can bear.
template <class Arithmetic>
static int restate_coarse(const regard_problem &p, float *logsumexp) {
  if (!any_coarse(logsumexp, p.batch * p.heads * p.queries)) return REGARD_DONE;
  const Scoring scoring = scoring_of(p);
  return for_each_coarse<Arithmetic>(
      p, scoring, logsumexp, [&](const Task &task, const float *given, const ReadScratch &scratch) {
        alignas(64) float own[QUERIES];
        RowNorm norms[QUERIES];
        find_norms<Arithmetic>(p, scoring, task, scratch, own, norms);
        for (int r = 0; r < task.count; r++)
          logsumexp[row_number(p, task, r)] = is_coarse(given[r]) ? own[r] : given[r];
      });
}

}  // namespace regard::REGARD_SET
