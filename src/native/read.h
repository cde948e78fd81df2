// Readouts: any number of reductions of the pattern in one pass over recomputed scores.
#pragma once

#include <stdlib.h>

#include "reading.h"
#include "system.h"

namespace regard::REGARD_SET {

// Maximum bytes of sums over rows in memory: per thread, or for all threads together for each head
// of a set, of at most four, so that sets of several heads give as many tasks.
constexpr int64_t MAX_SUM_BYTES = 1 << 24, MOST_HEADS_COUNTED = 4;

template <class Arithmetic>
static void read_queries(const Reading &reading, const RowChunk &rows, const QueryBlock &queries,
                         PackedInputs<Arithmetic> &packed, const Factors &factors, void *memory,
                         const ReadScratch &scratch, double *sums) {
  const regard_problem &p = reading.p;
  const auto each = [&](auto call) { reading.for_each(rows, scratch.readouts, sums, call); };
  Arithmetic::load_queries(p.query, queries, p.dim, reading.scoring.query_factor, scratch.query);

  const KeptScores kept =
      reading.keeps ? KeptScores(queries, scratch.readouts + reading.memory) : KeptScores();
  const bool known = reading.readouts.logsumexp;
  Denominators denominators(queries, reading.scoring);
  if (reading.forward) {
    const KeepScores keep(queries, kept);
    const auto take = [&](const KeyBlock &block, const float *scores, const ints *seen) {
      keep(block, scores);
      if (known) return;
      if (block.first <= queries.first_key) denominators.begin();  // the pass may repeat the keys
      denominators.add_kept(p, kept, block.last, seen, scratch);   // while they are in the cache
    };
    QueryBlock none;  // to fetch ahead
    none.count = 0;
    forward_queries<Arithmetic>(*reading.forward, queries, {p, queries, none, false}, packed,
                                ForwardScratch(p, (char *)memory + reading.before_forward()), take);
  }

  Normalizers normalizers;
  if (known) {
    load_normalizers<Arithmetic>(p, reading.scoring, queries, scratch, reading.readouts.logsumexp,
                                 normalizers);
  } else {
    RowNormalizer exact[QUERIES];
    normalizers.factor = reading.scoring.factor;
    find_normalizers<Arithmetic>(p, reading.scoring, queries, scratch, normalizers.logsumexp, exact,
                                 denominators, kept, &packed);
    normalizers.prepare(queries, exact);
  }

  each([&](auto kind, const ReadoutState &at) { kind.begin(at, queries); });
  factors.begin(queries);
  if (reading.scores)
    for_each_needed_block(queries, normalizers, each, [&](int32_t first, int32_t last, auto looks) {
      WeightBlock block(p, queries, first, last, scratch);
      if (kept.holds(first, last)) {
        take_kept(kept, reading.peaks, block);
      } else {
        ints ignored[VECTORS] = {};
        compute_scores<Arithmetic>(reading.scoring, scratch, block, ignored, &packed);
      }
      each([&](auto kind, const ReadoutState &at) { kind.scores(at, block); });
      if (!reading.weights) return;
      compute_weights(normalizers, reading.entropy, block);
      factors.apply(block);
      each([&](auto kind, const ReadoutState &at) {
        if (looks(kind, at)) kind.weights(at, block);
      });
    });
  each([&](auto kind, const ReadoutState &at) { kind.end(at, queries, normalizers); });
}

template <class Arithmetic>
static void read_chunk(const Reading &reading, const RowChunk &rows, void *memory, double *sums) {
  const regard_problem &p = reading.p;
  const int64_t step = reading.plan.chunks * reading.sums_per_head;
  for (int64_t h = 0; h < rows.heads; h++)
    memset(sums + h * step, 0, size_t(reading.sums_per_head) * sizeof(double));
  const ReadScratch scratch(p, memory);
  const auto choose = [&](int64_t first, QueryBlock &queries) {
    begin(p, rows, first, reading.readouts.first_key, reading.readouts.stop_key, queries);
  };
  QueryBlock queries;
  choose((rows.count() - 1) / QUERIES * QUERIES, queries);  // the last rows see the last keys
  const int64_t stop = queries.stop_key;
  const bool packs = reading.template size_of_packed<Arithmetic>() > 0;
  PackedInputs<Arithmetic> packed(p, packs ? (char *)memory + reading.before_packed() : nullptr,
                                  reading.forward);
  const Factors factors(reading.readouts.factors,
                        (char *)memory + reading.template before_factors<Arithmetic>());
  for (int64_t first = 0; first < rows.count(); first += QUERIES) {
    choose(first, queries);
    find_spans(p, scratch.spans, queries);
    packed.begin(queries, stop);
    read_queries<Arithmetic>(reading, rows, queries, packed, factors, memory, scratch, sums);
  }
}

// Adds the sums over rows of each head of a set, chunk by chunk.
static void finish_head_set(const Reading &reading, const RowChunk &rows, double *sums) {
  const regard_problem &p = reading.p;
  for (int64_t h = 0; h < rows.heads; h++) {
    double *own = sums + h * reading.plan.chunks * reading.sums_per_head;
    for (int64_t i = 0; i < reading.readouts.count; i++) {
      const regard_readout &readout = reading.readouts.list[i];
      with_kind(readout.kind, [&](auto kind) {
        kind.finish(p, readout, rows.batch * p.heads + rows.head + h,
                    Sums{own, reading.sums_per_head, reading.plan});
        own += kind.sums(p, readout);
      });
    }
  }
}

// One task per set of heads, if there are many sets: each is finished before the next.
template <class Arithmetic>
static int read_one_by_one(const Reading &reading) {
  const regard_problem &p = reading.p;
  const ChunkPlan &plan = reading.plan;
  const size_t own = reading.memory_per_thread<Arithmetic>();
  return for_each_product_task<Arithmetic>(
      int(p.threads), plan.head_sets, own + size_t(reading.sums_per_head_set()) * sizeof(double),
      [&](int64_t number, void *memory) {
        double *sums = (double *)((char *)memory + own);
        for (int64_t chunk = 0; chunk < plan.chunks; chunk++)
          read_chunk<Arithmetic>(reading, plan.rows_of(p, number, chunk), memory,
                                 sums + chunk * reading.sums_per_head);
        finish_head_set(reading, plan.rows_of(p, number, 0), sums);
      });
}

// One task per chunk; as many sets of heads at a time as there is memory for their sums.
template <class Arithmetic>
static int read_by_chunks(const Reading &reading) {
  const regard_problem &p = reading.p;
  const ChunkPlan &plan = reading.plan;
  const int64_t size = reading.sums_per_head_set() * int64_t(sizeof(double));
  const int64_t most = MAX_SUM_BYTES * min(MOST_HEADS_COUNTED, plan.heads_per_set);
  const int64_t together = max(int64_t(1), min(plan.head_sets, most / max(int64_t(1), size)));
  double *all_sums = (double *)malloc(size_t(together * size) + 1);
  if (!all_sums) return REGARD_OUT_OF_MEMORY;
  system::prefer_huge_pages(all_sums, size_t(together * size));

  int result = REGARD_DONE;
  for (int64_t start = 0; start < plan.head_sets && result == REGARD_DONE; start += together) {
    const int64_t head_sets = min(together, plan.head_sets - start);
    const auto sums_of = [&](int64_t head_set) {
      return all_sums + head_set * reading.sums_per_head_set();
    };
    result = for_each_product_task<Arithmetic>(
        int(p.threads), head_sets * plan.chunks, reading.memory_per_thread<Arithmetic>(),
        [&](int64_t number, void *memory) {
          // The last rows first, since with causal attention they see the most keys.
          const int64_t chunk = plan.chunks - 1 - number / head_sets, head_set = number % head_sets;
          read_chunk<Arithmetic>(reading, plan.rows_of(p, start + head_set, chunk), memory,
                                 sums_of(head_set) + chunk * reading.sums_per_head);
        });
    if (result == REGARD_DONE && size)
      result = for_each_task(int(p.threads), head_sets, 0, [&](int64_t head_set, void *) {
        finish_head_set(reading, plan.rows_of(p, start + head_set, 0), sums_of(head_set));
      });
  }
  free(all_sums);
  return result;
}

template <class Arithmetic>
static int read(const Reading &reading) {
  const bool many = reading.plan.head_sets >= 4 * reading.p.threads;
  const bool small = reading.sums_per_head_set() * int64_t(sizeof(double)) <= MAX_SUM_BYTES;
  return many && small ? read_one_by_one<Arithmetic>(reading) : read_by_chunks<Arithmetic>(reading);
}

// Whether the blocks of the forward pass may be used: its results depend on them if rows start at
// different keys, and sums over rows must equal those of each head alone; and there must be as many
// tasks as threads.
REGARD_INLINE bool shares_pass(const Reading &reading) {
  const regard_problem &p = reading.p;
  const int64_t heads = head_fills_blocks(p) ? 1 : group_size(p);
  const bool whole_vectors = VECTORS % heads == 0;  // per head
  const bool same_sums =
      heads == 1 || reading.sums_per_head == 0 || (whole_vectors && !reading.whole_blocks);
  return reading.forward && same_sums &&
         reading.plan.head_sets * reading.plan.chunks >= 4 * p.threads;
}

}  // namespace regard::REGARD_SET
