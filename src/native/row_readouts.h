// Readouts that reduce each row to a number.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

// Sums in double, one per row.
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

  static bool looks_at(const ReadoutState &, const QueryBlock &, int32_t, int32_t) { return false; }
  static void end(const ReadoutState &at, const QueryBlock &queries,
                  const Normalizers &normalizers) {
    RowReadout::write(at, queries, [&](int r) { return normalizers.logsumexp[r]; });
  }
};

// The largest weight.
struct Max : Readout {
  static constexpr bool of_weights = false, of_peaks = true;

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
            normalizers.weights_of(peak, normalizers.peak_of(j), normalizers.log_of(j)));
    }
    RowReadout::write(at, queries, [&](int r) { return weights[r]; });
  }
};

// The largest scaled score.
struct MaxScore : Max {
  static constexpr bool of_scaled = true;

  static void scores(const ReadoutState &at, const WeightBlock &block) {
    if (!scoring_of(at.p).adjusted) return Max::scores(at, block);
    for (int j = 0; j < block.queries.vectors; j++) {
      float *peak = at.kept<float>() + j * LANES;
      store(peak, max(load(peak), block.scaled[j]));
    }
  }
  static void end(const ReadoutState &at, const QueryBlock &queries,
                  const Normalizers &normalizers) {
    const float unit = float(scoring_of(at.p).unit);
    RowReadout::write(at, queries, [&](int r) {
      return isnan(normalizers.logsumexp[r]) ? NAN : at.kept<float>()[r] * unit;
    });
  }
};

// The weight of one key of each row, and its logarithm.
struct Lag : Readout {
  static constexpr bool of_weights = false;

  struct Row {
    int64_t key;
    float score;
  };

  static size_t memory(const regard_problem &, const regard_readout &) {
    return QUERIES * sizeof(Row);
  }
  static void begin(const ReadoutState &at, const QueryBlock &queries) {
    const int64_t *keys = (const int64_t *)at.request.operand;
    for (int r = 0; r < queries.count; r++)
      at.kept<Row>()[r] = {
          keys ? keys[row_number(at.p, queries, r)] : queries.position[r] - at.request.size,
          HIDDEN};
  }
  static bool looks_at(const ReadoutState &at, const QueryBlock &queries, int32_t first,
                       int32_t last) {
    const Row *rows = at.kept<Row>();
    return any_of(rows, rows + queries.count,
                  [&](const Row &row) { return row.key >= first && row.key < last; });
  }
  static void scores(const ReadoutState &at, const WeightBlock &block) {
    for (int r = 0; r < block.queries.count; r++) {
      Row &row = at.kept<Row>()[r];
      const int64_t k = row.key - block.key;
      if (k >= 0 && k < block.keys) row.score = block.weights[k * QUERIES + r];
    }
  }
  static void end(const ReadoutState &at, const QueryBlock &queries,
                  const Normalizers &normalizers) {
    for (int r = 0; r < queries.count; r++) {
      const float score = at.kept<Row>()[r].score;
      const float power = (score - normalizers.peak[r]) * normalizers.factor - normalizers.log[r];
      float *result = at.request.result + 2 * row_number(at.p, queries, r);
      result[0] = score == HIDDEN || power < -126 ? 0.0f : exp2f(power);  // as all weights
      result[1] = score == HIDDEN ? HIDDEN : float(power * LN_2);
    }
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
      return entropy <= 0 ? 0.0f : float(entropy);  // all on one key: avoids −0 and rounding errors
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
      const ints back = load(block.queries.position + j * LANES) - block.key;
      const floats of_first = __builtin_convertvector(back, floats);
      floats key = {}, moment = {}, share = {};  // the key's index in the block
      for (int32_t k = 0; k < block.keys; k++, key += 1) {
        const floats weight = load(block.weights + k * QUERIES + j * LANES);
        moment += weight * abs(of_first - key);
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
  static bool looks_at(const ReadoutState &at, const QueryBlock &, int32_t first, int32_t last) {
    const float *marked = (const float *)at.request.operand;
    return any_of(marked + first, marked + last, [](float mark) { return mark != 0; });
  }
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

// Σ of the weights of each span's keys.
struct Spans : Readout {
  static size_t memory(const regard_problem &, const regard_readout &request) {
    return size_t(request.size) * QUERIES * sizeof(double);
  }
  static void begin(const ReadoutState &at, const QueryBlock &) {
    memset(at.memory, 0, memory(at.p, at.request));
  }
  static bool looks_at(const ReadoutState &at, const QueryBlock &, int32_t first, int32_t last) {
    const int64_t *spans = (const int64_t *)at.request.operand;
    return any_of(spans + first, spans + last, [](int64_t span) { return span >= 0; });
  }
  static void weights(const ReadoutState &at, const WeightBlock &block) {
    const int64_t *spans = (const int64_t *)at.request.operand + block.key;
    for (int32_t first = 0, last; first < block.keys; first = last) {
      const int64_t span = spans[first];
      for (last = first + 1; last < block.keys && spans[last] == span;) last++;
      if (span < 0) continue;
      double *sums = at.kept<double>() + span * QUERIES;
      for (int j = 0; j < block.queries.vectors; j++) {
        floats mass = {};
        for (int32_t k = first; k < last; k++)
          mass += load(block.weights + k * QUERIES + j * LANES);
        add_to(sums + j * LANES, mass);
      }
    }
  }
  static void end(const ReadoutState &at, const QueryBlock &queries, const Normalizers &) {
    for (int r = 0; r < queries.count; r++)
      for (int64_t span = 0; span < at.request.size; span++)
        at.request.result[row_number(at.p, queries, r) * at.request.size + span] =
            float(at.kept<double>()[span * QUERIES + r]);
  }
};

}  // namespace regard::REGARD_SET
