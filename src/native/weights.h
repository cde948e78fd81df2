// The weights of a task's rows, recomputed from their log-sum-exp a block of keys at a time.
#pragma once

#include "forward.h"
#include "unit.h"

namespace regard::REGARD_SET {

// Keys whose weights stay in the nearest cache while one readout after the other goes over them.
constexpr int32_t PIECE = 96;
static_assert(PIECE <= BLOCK && PIECE % LANES == 0);

struct ReadScratch {
  float *query;    // (dim, QUERIES)
  float *scores;   // (PIECE, QUERIES), then weights
  float *columns;  // (PIECE, LANES)
  float *panel;    // (PIECE, dim): keys as floats
  char *readouts;  // what they keep

  static size_t size(const regard_problem &p) {
    return size_t(padded(p.dim) * (QUERIES + PIECE) + PIECE * (QUERIES + LANES)) * sizeof(float);
  }
  ReadScratch(const regard_problem &p, void *memory) {
    query = (float *)memory;
    scores = query + padded(p.dim) * QUERIES;
    columns = scores + PIECE * QUERIES;
    panel = columns + PIECE * LANES;
    readouts = (char *)(panel + PIECE * padded(p.dim));
  }
};

struct Block {
  const regard_problem &p;
  const Task &task;
  int32_t key;              // the first
  int32_t keys;             // their number
  float *weights;           // (keys, QUERIES), 0 where hidden; their scores before
  float *columns;           // (keys, LANES): the sum of a key's vectors, where a readout wants it
  floats peak[VECTORS];     // the largest score of each row
  floats entropy[VECTORS];  // Σ w·log₂ w of each row, where a readout wants it

  Block(const regard_problem &problem, const Task &rows, int32_t first, int32_t last,
        const ReadScratch &scratch)
      : p(problem), task(rows), key(first), keys(last - first), weights(scratch.scores),
        columns(scratch.columns) {}
};

// What makes weights of scores; see RowNorm.
struct Norms {
  alignas(64) float logsumexp[QUERIES];  // natural
  alignas(64) float peak[QUERIES], log[QUERIES];
  float factor;
  ints stray[VECTORS];  // rows whose weights are no numbers, as far as they see
  bool any_stray;

  // From the log-sum-exp, or where that is coarse, from the norms that were worked out.
  void prepare(const Task &task, const RowNorm *exact) {
    alignas(64) int32_t strays[QUERIES];
    for (int r = 0; r < task.vectors * LANES; r++) {
      const bool sees = task.start[r] < task.stop[r] && logsumexp[r] != -INFINITY;
      const bool is_stray = sees && !(logsumexp[r] < INFINITY);
      RowNorm norm = {0, is_stray ? NAN : 0};
      if (sees && !is_stray)
        norm = is_coarse(logsumexp[r]) ? exact[r] : RowNorm{0, float(logsumexp[r] * LOG2_E)};
      peak[r] = norm.peak;
      log[r] = norm.log;
      strays[r] = is_stray ? -1 : 0;
    }
    ints found = {};
    for (int j = 0; j < task.vectors; j++) {
      stray[j] = load(strays + j * LANES);
      found |= stray[j];
    }
    any_stray = any(found);
  }

  floats peak_of(int j) const { return load(peak + j * LANES); }
  floats log_of(int j) const { return load(log + j * LANES); }
};

// Calls visit(first, last) for blocks of the keys that some row sees, in their order. Where one
// block ends and the next begins goes by the keys alone, and so does, then, the order of a row's
// sums: it is the same whichever other rows are in the task.
template <class Visit>
REGARD_INLINE void for_each_block(const Task &task, Visit visit) {
  constexpr int32_t TOGETHER = 4;  // keys whose exponentials are added up as one
  static_assert(PIECE % TOGETHER == 0);
  int32_t key = task.first_key / TOGETHER * TOGETHER;
  for (int32_t end; key < task.last_key; key = end) {
    end = least((key / PIECE + 1) * PIECE, task.last_key);
    visit(key, end);
  }
}

// The keys that all rows of a task see. Readouts look at whole vectors, so lanes not in use count.
REGARD_INLINE Span seen_by_all(const Task &task) {
  ints fully_masked = {};
  for (int j = 0; j < task.vectors; j++)
    fully_masked |= load(task.start + j * LANES) >= load(task.stop + j * LANES);
  return any(fully_masked) ? Span{} : Span{task.common_start, task.common_stop};
}

// Fills a block with scores, −∞ where hidden, and notes the lanes that saw a key.
template <class Arithmetic>
static void score(const Scoring &scoring, const ReadScratch &scratch, Block &block, ints *seen) {
  const regard_problem &p = block.p;
  const Task &task = block.task;
  Run runs[MOST_RUNS];
  const int32_t end = block.key + block.keys;
  const Span common = seen_by_all(task);
  const int count = split(task, block.key, end, common, runs);
  if (block.key < common.start || end > common.stop)
    for (int64_t i = 0; i < int64_t(block.keys) * QUERIES; i += LANES)
      store(block.weights + i, all(HIDDEN));

  floats ignored[VECTORS];
  for (int j = 0; j < VECTORS; j++) block.peak[j] = all(HIDDEN), ignored[j] = floats{};
  constexpr int STEP = Arithmetic::STEP;
  const auto keys = Arithmetic::keys(p.key, task, block.key, block.keys, p.dim, scratch.panel);
  for (int n = 0; n < count; n++) {
    const Run &run = runs[n];
    const bool plain = !run.edge && !scoring.adjusted;
    float *scores = block.weights + (run.key - block.key) * QUERIES;
    with_live(run.last - run.first, [&](auto live) {
      score_rows<typename Arithmetic::Products, live>(
          keys.data + (run.key - block.key) * keys.stride, keys.stride, run.keys,
          (p.dim + STEP - 1) / STEP, scratch.query + run.first * LANES, scores + run.first * LANES,
          (plain ? block.peak : ignored) + run.first);
    });
    if (scoring.adjusted)
      adjust(p, task, run, scores, block.peak, seen);
    else if (run.edge)
      hide(task, run, scores, block.peak);
  }
}

// Sets the weights of hidden keys to 0, for rows that are no numbers.
static void blank(const Norms &norms, Block &block) {
  const regard_problem &p = block.p;
  const bool dense = p.bias.data || p.allowed.data;
  for (int j = 0; j < block.task.vectors; j++) {
    if (!any(norms.stray[j])) continue;
    const ints start = load(block.task.start + j * LANES), stop = load(block.task.stop + j * LANES);
    for (int32_t first = 0; first < block.keys; first += LANES) {
      const int keys = least(LANES, block.keys - first);
      floats added[LANES];
      if (dense) load_added(p, block.task, j * LANES, block.key + first, keys, added);
      for (int k = 0; k < keys; k++) {
        float *at = block.weights + (first + k) * QUERIES + j * LANES;
        const ints key = all(block.key + first + k);
        ints visible = (key >= start) & (key < stop);
        if (dense) visible &= added[k] != all(HIDDEN);
        store(at, visible ? load(at) : floats{});
      }
    }
  }
}

// Turns scores into weights. What else there is to know of each while it is at hand: the sum of a
// key's vectors, and each row's Σ w·log₂ w.
template <int vectors, bool columns, bool entropy>
static void exponentiate(const Norms &norms, Block &block) {
  const floats factor = all(norms.factor);
  floats shift[vectors], sums[vectors];
  REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
    subtract(block.weights + j * LANES, block.keys, norms.peak_of(j));
    shift[j] = norms.log_of(j), sums[j] = floats{};
  }
  float *scores = block.weights, *column = block.columns;
  for (int32_t k = 0; k < block.keys; k++, scores += QUERIES, column += LANES) {
    floats weights[vectors], total = {};
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      const floats log = load(scores + j * LANES) * factor - shift[j];
      weights[j] = exp2(log);
      if (entropy) sums[j] += weights[j] * larger(all(-127.0f), log);
    }
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      store(scores + j * LANES, weights[j]);
      if (columns) total += weights[j];
    }
    if (columns) store(column, total);
  }
  if (entropy)
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) block.entropy[j] = sums[j];
}

REGARD_INLINE void weigh(const Norms &norms, bool columns, bool entropy, Block &block) {
  with_live(block.task.vectors, [&](auto vectors) {
    if (columns && entropy) return exponentiate<vectors, true, true>(norms, block);
    if (columns) return exponentiate<vectors, true, false>(norms, block);
    if (entropy) return exponentiate<vectors, false, true>(norms, block);
    exponentiate<vectors, false, false>(norms, block);
  });
  if (!norms.any_stray) return;
  blank(norms, block);
  for (int32_t k = 0; k < block.keys; k++) {
    floats total = {};
    for (int j = 0; j < block.task.vectors; j++)
      total += load(block.weights + k * QUERIES + j * LANES);
    store(block.columns + k * LANES, total);
  }
}

}  // namespace regard::REGARD_SET
