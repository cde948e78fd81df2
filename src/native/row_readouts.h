// Readouts that reduce each row to a number.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

// Sums of doubles, one a row.
struct RowReadout : Readout {
  static size_t memory(const regard_problem &, const regard_readout &) {
    return QUERIES * sizeof(double);
  }
  static void begin(const ReadoutState &at, const QueryBlock &) {
    memset(at.memory, 0, QUERIES * sizeof(double));
  }

  template <class Result>
  REGARD_INLINE void write(const ReadoutState &at, const QueryBlock &queries, Result result) {
    for (int r = 0; r < queries.count; r++)
      at.request.result[row_number(at.p, queries, r)] = result(r);
  }
};

struct LogSumExp : Readout {
  static constexpr bool of_weights = false;

  static void end(const ReadoutState &at, const QueryBlock &queries,
                  const Normalizers &normalizers) {
    RowReadout::write(at, queries, [&](int r) { return normalizers.logsumexp[r]; });
  }
};

// The largest weight.
struct Max : Readout {
  static constexpr bool of_weights = false;

  static size_t memory(const regard_problem &, const regard_readout &) {
    return QUERIES * sizeof(float);
  }
  static void begin(const ReadoutState &at, const QueryBlock &) {
    for (int j = 0; j < VECTORS; j++) store(at.kept<float>() + j * LANES, broadcast(HIDDEN));
  }
  static void scores(const ReadoutState &at, const WeightBlock &block) {
    for (int j = 0; j < block.queries.vectors; j++) {
      float *peak = at.kept<float>() + j * LANES;
      store(peak, max(load(peak), block.peak[j]));
    }
  }
  static void end(const ReadoutState &at, const QueryBlock &queries,
                  const Normalizers &normalizers) {
    alignas(64) float weights[QUERIES];
    for (int j = 0; j < queries.vectors; j++) {
      const floats peak = load(at.kept<float>() + j * LANES);
      store(weights + j * LANES,
            exp2((peak - normalizers.peak_of(j)) * normalizers.factor - normalizers.log_of(j)));
    }
    RowReadout::write(at, queries, [&](int r) { return weights[r]; });
  }
};

// −Σ w·ln w.
struct Entropy : RowReadout {
  static constexpr bool of_entropy = true;

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    for (int j = 0; j < block.queries.vectors; j++)
      add_to(at.kept<double>() + j * LANES, block.entropy[j]);
  }
  static void end(const ReadoutState &at, const QueryBlock &queries, const Normalizers &) {
    write(at, queries, [&](int r) {
      const double entropy = at.kept<double>()[r] * -LN_2;
      return entropy <= 0 ? 0.0f : float(entropy);  // all on one key: neither −0 nor a rounding
    });
  }
};

// Σ w·|position − key| / Σ w.
struct Distance : RowReadout {
  static size_t memory(const regard_problem &, const regard_readout &) {
    return 2 * QUERIES * sizeof(double);
  }
  static void begin(const ReadoutState &at, const QueryBlock &) {
    memset(at.memory, 0, 2 * QUERIES * sizeof(double));
  }
  static void weights(const ReadoutState &at, const WeightBlock &block) {
    for (int j = 0; j < block.queries.vectors; j++) {
      const ints position = load(block.queries.position + j * LANES);
      floats moment = {}, share = {};
      for (int32_t k = 0; k < block.keys; k++) {
        const floats weight = load(block.weights + k * QUERIES + j * LANES);
        const ints ahead = position - (block.key + k);
        moment += weight * abs(__builtin_convertvector(ahead, floats));
        share += weight;
      }
      add_to(at.kept<double>() + j * LANES, moment);
      add_to(at.kept<double>() + QUERIES + j * LANES, share);
    }
  }
  static void end(const ReadoutState &at, const QueryBlock &queries, const Normalizers &) {
    const double *moment = at.kept<double>(), *share = moment + QUERIES;
    write(at, queries, [&](int r) { return share[r] == 0 ? 0.0f : float(moment[r] / share[r]); });
  }
};

// Σ of the weights of marked keys.
struct Mass : RowReadout {
  static void weights(const ReadoutState &at, const WeightBlock &block) {
    const float *marked = (const float *)at.request.operand + block.key;
    for (int j = 0; j < block.queries.vectors; j++) {
      floats mass = {};
      for (int32_t k = 0; k < block.keys; k++)
        mass += load(block.weights + k * QUERIES + j * LANES) * marked[k];
      add_to(at.kept<double>() + j * LANES, mass);
    }
  }
  static void end(const ReadoutState &at, const QueryBlock &queries, const Normalizers &) {
    write(at, queries, [&](int r) { return float(at.kept<double>()[r]); });
  }
};

}  // namespace regard::REGARD_SET
