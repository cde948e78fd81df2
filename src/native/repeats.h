// The readout of weights between repeated tokens.
//
// It sums the weights on earlier copies of the query's token and on the tokens after those copies,
// and computes the expected sums under two controls; see regard/lens/naming/repeats.py.
//
// Pairs have a query i and a visible key j, 1 <= j <= i − 2. Their distances i − j are grouped into
// ranges: from 2 to 3, from 4 to 7 and so on.
#pragma once

#include "key_readouts.h"

namespace regard::REGARD_SET {

struct Repeats : Readout {
  static constexpr int ALL = 0, COPIES = 1, SUCCESSORS = 2, PAIRS = 3;
  static constexpr int COUNT = 0, WEIGHT = 1, SUMS = 2;

  static constexpr int OF_ROW = 2 * 3, OF_KEY = 2 * 4;  // results; see regard_readout

  static int ranges(const regard_problem &p) {
    int count = 1;
    while (p.queries > int64_t(4) << (count - 1)) count++;
    return count;
  }

  // Per row of a block. A vector may begin at any row.
  struct Memory {
    static constexpr int ROWS = QUERIES + LANES;
    int32_t *token, *place;
    double *sums;  // (SUMS, PAIRS, ranges, ROWS)
    int ranges;

    Memory(const regard_problem &p, char *memory) : ranges(Repeats::ranges(p)) {
      sums = (double *)memory;
      token = (int32_t *)(sums + SUMS * PAIRS * ranges * ROWS);
      place = token + ROWS;
    }
    static size_t size(const regard_problem &p) {
      const size_t numbers = SUMS * PAIRS * size_t(Repeats::ranges(p));
      return ROWS * (numbers * sizeof(double) + 2 * sizeof(int32_t));
    }
    double *of(int sum, int pairs, int range) const {
      return sums + ((sum * PAIRS + pairs) * ranges + range) * ROWS;
    }
  };

  static size_t memory(const regard_problem &p, const regard_readout &) { return Memory::size(p); }
  static int64_t sums(const regard_problem &p, const regard_readout &) {
    return SUMS * PAIRS * padded(p.keys);
  }

  static void begin(const ReadoutState &at, const QueryBlock &queries) {
    memset(at.memory, 0, Memory::size(at.p));
    const Memory memory(at.p, at.memory);
    const int64_t *tokens = (const int64_t *)at.request.operand;
    for (int r = 0; r < queries.count; r++) {
      memory.place[r] = int32_t(queries.query[r]);
      memory.token[r] = int32_t(tokens[queries.query[r]]);
    }
  }

  static void scores(const ReadoutState &at, const WeightBlock &block) {
    add(at, block, COUNT, [&](const float *score) REGARD_INLINE_LAMBDA {
      return load(score) != broadcast(HIDDEN) ? broadcast(1.0f) : floats{};
    });
  }
  static void weights(const ReadoutState &at, const WeightBlock &block) {
    add(at, block, WEIGHT, [&](const float *weight) REGARD_INLINE_LAMBDA { return load(weight); });
  }

  // Adds value(address) of each pair to the sums of its row and range, and of its key.
  template <class Value>
  static void add(const ReadoutState &at, const WeightBlock &block, int sum, Value value) {
    const int64_t step = padded(at.p.keys);
    for_each_head(block.queries, [&](int64_t head, int first, int last) {
      double *of_keys = at.sums_of(head) + sum * PAIRS * step + block.key;
      for (int r = first; r < last; r += LANES)
        add_rows(at, block, sum, r, lane_numbers() < last - r, value, of_keys);
    });
  }

  // The marked rows among [r, r + LANES).
  template <class Value>
  REGARD_INLINE void add_rows(const ReadoutState &at, const WeightBlock &block, int sum, int r,
                              ints marked, Value value, double *of_keys) {
    const Memory memory(at.p, at.memory);
    const int64_t *tokens = (const int64_t *)at.request.operand;
    const ints place = load(memory.place + r), token = load(memory.token + r);
    floats of_rows[PAIRS] = {};
    for (int32_t group = 0; group < block.keys; group += LANES) {
      const int32_t stop = min(group + LANES, block.keys);
      floats columns[PAIRS][LANES] = {};
      for (int32_t k = group; k < stop; k++) {
        const int32_t key = block.key + k;
        if (key == 0) continue;
        const ints distance = place - key, far = (distance >= 2) & marked;
        const floats all = (floats)((ints)value(block.weights + k * QUERIES + r) & far);
        const floats pairs[PAIRS] = {
            all, (floats)((ints)all & (token == broadcast(int32_t(tokens[key])))),
            (floats)((ints)all & (token == broadcast(int32_t(tokens[key - 1]))))};
        REGARD_UNROLLED_FOR (int i = 0; i < PAIRS; i++) {
          of_rows[i] += pairs[i];
          columns[i][k - group] = pairs[i];
        }
        const ints ends_range = far & ((distance & (distance - 1)) == 0);
        if (any(ends_range)) add_range(memory, sum, r, distance, ends_range, of_rows);
      }
      for (int i = 0; i < PAIRS; i++)
        add_to(of_keys + i * padded(at.p.keys) + group, sum_each(columns[i]), stop - group);
    }
    const ints distance = place - (block.key + block.keys - 1);
    add_range(memory, sum, r, distance, (distance >= 2) & marked, of_rows);
  }

  // Adds the sums of marked lanes for the range of their distances, and sets them to 0.
  static void add_range(const Memory &memory, int sum, int r, ints distances, ints marked,
                        floats *of_rows) {
    for (int i = 0; i < LANES; i++) {
      if (!marked[i]) continue;
      const int range = 30 - __builtin_clz(uint32_t(distances[i]));
      for (int pairs = 0; pairs < PAIRS; pairs++)
        memory.of(sum, pairs, range)[r + i] += of_rows[pairs][i];
    }
    for (int pairs = 0; pairs < PAIRS; pairs++) of_rows[pairs] = marked ? floats{} : of_rows[pairs];
  }

  static float *result_of(const regard_problem &p, const regard_readout &request, int64_t head) {
    return request.result + head * (OF_ROW * p.queries + OF_KEY * p.keys);
  }

  static void end(const ReadoutState &at, const QueryBlock &queries, const Normalizers &) {
    const Memory memory(at.p, at.memory);
    for (int r = 0; r < queries.count; r++) {
      float *result = result_of(at.p, at.request, queries.batch * at.p.heads + queries.head[r]) +
                      OF_ROW * queries.query[r];
      for (const int pairs : {COPIES, SUCCESSORS}) {
        double targets = 0, share = 0, shuffled = 0;
        for (int range = 0; range < memory.ranges; range++) {
          const auto total = [&](int sum, int of) { return memory.of(sum, of, range)[r]; };
          const double count = total(COUNT, pairs);
          if (count == 0) continue;
          targets += count;
          share += total(WEIGHT, pairs);
          shuffled += count * total(WEIGHT, ALL) / total(COUNT, ALL);
        }
        for (const double number : {targets, share, shuffled}) *result++ = float(number);
      }
    }
  }

  static void finish(const regard_problem &p, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    const int64_t step = padded(p.keys);
    const double *total = sums.total(SUMS * PAIRS * step);
    float *result = result_of(p, request, head) + OF_ROW * p.queries;
    for (const int pairs : {COPIES, SUCCESSORS})
      for (const bool of_others : {false, true})
        for (const int sum : {COUNT, WEIGHT})
          for (int64_t k = 0; k < p.keys; k++) {
            const double own = total[(sum * PAIRS + pairs) * step + k];
            *result++ = float(of_others ? total[(sum * PAIRS + ALL) * step + k] - own : own);
          }
  }
};

}  // namespace regard::REGARD_SET
