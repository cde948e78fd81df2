// The readouts of one pass over a pattern, and the memory that they and their blocks need.
#pragma once

#include "chosen.h"
#include "factors.h"
#include "image.h"
#include "key_readouts.h"
#include "normalizers.h"
#include "offsets.h"
#include "repeats.h"
#include "row_readouts.h"
#include "top.h"

namespace regard::REGARD_SET {

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
    case REGARD_LEFT_PRODUCT: return call(LeftProduct());
    case REGARD_OFFSETS: return call(Offsets());
    case REGARD_IMAGE: return call(Image());
    case REGARD_MAX_SCORE: return call(MaxScore());
    case REGARD_LAG: return call(Lag());
    case REGARD_SPANS: return call(Spans());
    case REGARD_MAX_RECEIVED: return call(MaxReceived());
    case REGARD_MEAN_RECEIVED: return call(MeanReceived());
    case REGARD_MAX_BLOCKS: return call(MaxBlocks());
    case REGARD_LARGEST: return call(Largest());
    case REGARD_REPEATS: return call(Repeats());
  }
}

struct Reading {
  const regard_problem &p;
  const regard_readouts &readouts;
  const Scoring scoring;
  const ChunkPlan plan;
  int64_t sums_per_head = 0;             // numbers per chunk
  size_t memory = 0;                     // bytes of the readouts per thread
  bool scores = false;                   // whether a readout needs more than the log-sum-exp
  bool weights = false;                  // whether a readout needs more than scores
  bool entropy = false, peaks = false;   // see `WeightBlock`
  bool scaled = false;                   // likewise, if scores are adjusted
  bool whole_blocks = false;             // see `Readout`
  bool keeps = false;                    // whether scores are stored; see KeptScores
  const ForwardCall *forward = nullptr;  // computed in the same pass, if wanted

  Reading(const regard_problem &problem, const regard_readouts &request,
          const ForwardCall *call = nullptr)
      : p(problem), readouts(request), scoring(scoring_of(problem)),
        plan(problem, call != nullptr) {
    for (int64_t i = 0; i < readouts.count; i++) {
      const regard_readout &readout = readouts.list[i];
      with_kind(readout.kind, [&](auto kind) {
        sums_per_head += kind.sums(p, readout);
        memory += aligned(kind.memory(p, readout));
        weights |= kind.of_weights;
        entropy |= kind.of_entropy;
        peaks |= kind.of_peaks;
        scaled |= kind.of_scaled && scoring.adjusted;
        whole_blocks |= kind.of_whole_blocks;
      });
      scores |= readout.kind != REGARD_LOGSUMEXP;
    }
    keeps = (call || !readouts.logsumexp) && scores && !scaled;
    if (keeps) forward = call;
  }

  // Bytes per thread: for a block, the readouts, the stored scores, the forward pass, packed keys
  // and values, and factors.
  template <class Arithmetic>
  size_t memory_per_thread() const {
    return before_factors<Arithmetic>() + Factors::size(readouts.factors);
  }
  template <class Arithmetic>
  size_t before_factors() const {
    return before_packed() + aligned(size_of_packed<Arithmetic>());
  }
  template <class Arithmetic>
  size_t size_of_packed() const {
    if (forward) return PackedInputs<Arithmetic>::size(p);
    return long_chunks() ? PackedInputs<Arithmetic>::size_of_keys(p) : 0;
  }
  size_t before_packed() const {
    return before_forward() + (forward ? aligned(ForwardScratch::size(p)) : 0);
  }
  size_t before_forward() const {
    return aligned(ReadScratch::size(p)) + memory + (keeps ? KeptScores::size(p) : 0);
  }
  // Whether a chunk has several blocks of queries, so that packing its keys once pays off.
  bool long_chunks() const { return p.queries >= 4 * QUERIES * plan.chunks; }

  int64_t sums_per_head_set() const { return plan.heads_per_set * plan.chunks * sums_per_head; }

  // Calls call(kind, at) for every readout.
  template <class Call>
  void for_each(const RowChunk &rows, char *kept, double *sums, Call call) const {
    const int64_t step = plan.chunks * sums_per_head;
    for (int64_t i = 0; i < readouts.count; i++) {
      const regard_readout &readout = readouts.list[i];
      with_kind(readout.kind, [&](auto kind) {
        call(kind, ReadoutState{p, readout, rows, kept, sums, step});
        kept += aligned(kind.memory(p, readout));
        sums += kind.sums(p, readout);
      });
    }
  }
};

// Calls visit(first, last, looks) for the blocks of keys that some readout needs; looks(kind, at)
// tells whether a readout of each(call) does. For NaN rows no block is skipped: their sums add
// 0 · NaN for keys that do not count.
template <class Each, class Visit>
REGARD_INLINE void for_each_needed_block(const QueryBlock &queries, const Normalizers &normalizers,
                                         Each each, Visit visit) {
  for_each_read_block(queries, [&](int32_t first, int32_t last) {
    const auto looks = [&](auto kind, const ReadoutState &at) {
      return normalizers.any_nonfinite || kind.looks_at(at, queries, first, last);
    };
    bool needed = false;
    each([&](auto kind, const ReadoutState &at) { needed = needed || looks(kind, at); });
    if (needed) visit(first, last, looks);
  });
}

}  // namespace regard::REGARD_SET
