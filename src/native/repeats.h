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
  static constexpr bool of_whole_blocks = true;
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
    int32_t *place, *copy[2];  // the next copy, and the next one whose successor is to come
    double *sums;              // (SUMS, PAIRS, ranges, ROWS)
    int ranges;

    Memory(const regard_problem &p, char *memory) : ranges(Repeats::ranges(p)) {
      sums = (double *)memory;
      place = (int32_t *)(sums + SUMS * PAIRS * ranges * ROWS);
      for (const int following : {0, 1}) copy[following] = place + (following + 1) * ROWS;
    }
    static size_t size(const regard_problem &p) {
      const size_t numbers = SUMS * PAIRS * size_t(Repeats::ranges(p));
      return ROWS * (numbers * sizeof(double) + 3 * sizeof(int32_t));
    }
    double *of(int sum, int pairs, int range) const {
      return sums + ((sum * PAIRS + pairs) * ranges + range) * ROWS;
    }
    template <class Pair>
    void add(int pairs, int range, int row, Pair numbers) const {
      of(COUNT, pairs, range)[row] += numbers.count;
      of(WEIGHT, pairs, range)[row] += numbers.weight;
    }
  };

  // The range of a distance.
  static int range_of(int32_t distance) { return 30 - __builtin_clz(uint32_t(distance)); }

  static size_t memory(const regard_problem &p, const regard_readout &) { return Memory::size(p); }
  static int64_t sums(const regard_problem &p, const regard_readout &) {
    return SUMS * PAIRS * padded(p.keys);
  }

  static void begin(const ReadoutState &at, const QueryBlock &queries) {
    memset(at.memory, 0, Memory::size(at.p));
    const Memory memory(at.p, at.memory);
    const int64_t *first_copies = (const int64_t *)at.request.operand;
    for (int r = 0; r < queries.count; r++) {
      memory.place[r] = int32_t(queries.query[r]);
      for (int32_t *copies : memory.copy) copies[r] = int32_t(first_copies[queries.query[r]]);
    }
  }

  // Whether every row sees all keys of a block.
  static bool sees_all(const ReadoutState &at, const WeightBlock &block) {
    const KeyRange common = seen_by_all(block.queries);
    const int32_t stop = block.key + block.keys;
    return !at.p.allowed.data && !at.p.bias.data && common.start <= block.key &&
           stop <= common.stop && !touched_by_spans(block.queries, block.key, stop);
  }

  static void scores(const ReadoutState &at, const WeightBlock &block) {
    if (sees_all(at, block))  // pairs are counted with their weights
      return add_all(at, block, COUNT,
                     [](const float *) REGARD_INLINE_LAMBDA { return broadcast(1.0f); });
    add_repeated<false>(at, block, [](float score) { return Pair{float(score != HIDDEN), 0}; });
    add_all(at, block, COUNT, [](const float *score) REGARD_INLINE_LAMBDA {
      return load(score) != broadcast(HIDDEN) ? broadcast(1.0f) : floats{};
    });
  }
  static void weights(const ReadoutState &at, const WeightBlock &block) {
    const float count = sees_all(at, block);
    add_repeated<true>(at, block, [&](float weight) { return Pair{count, weight}; });
    add_all(at, block, WEIGHT,
            [](const float *weight) REGARD_INLINE_LAMBDA { return load(weight); });
  }

  // What a pair adds to a count and a weight.
  struct Pair {
    float count = 0, weight = 0;

    void add(Pair other) { count += other.count, weight += other.weight; }
  };

  // Adds value(number) of the copies and successors among a block's keys to the sums of their rows
  // and ranges, and of the keys; `moves`: whether the block is done with then.
  template <bool moves, class Value>
  static void add_repeated(const ReadoutState &at, const WeightBlock &block, Value value) {
    const Memory memory(at.p, at.memory);
    const int64_t *next_copies = (const int64_t *)at.request.operand + max(at.p.queries, at.p.keys);
    for (const int following : {0, 1}) {
      const int pairs = following ? SUCCESSORS : COPIES;
      for_each_head(block.queries, [&](int64_t head, int first, int last) {
        Pair of_keys[READ_BLOCK];
        for (int r = first; r < last; r++) {
          const int32_t place = memory.place[r];
          const int32_t stop = min(block.key + block.keys, place - 1) - following;
          int32_t copy = memory.copy[following][r];
          if (copy >= stop) continue;
          Pair of_row;
          int range = 0;
          for (; copy < stop; copy = int32_t(next_copies[copy])) {
            const int32_t key = copy + following, k = key - block.key;
            if (k < 0 || key == 0) continue;
            const int own = range_of(place - key);
            if (own != range) memory.add(pairs, range, r, of_row), of_row = {}, range = own;
            const Pair one = value(block.weights[k * QUERIES + r]);
            of_row.add(one), of_keys[k].add(one);
          }
          memory.add(pairs, range, r, of_row);
          if (moves) memory.copy[following][r] = copy;
        }
        const int64_t step = padded(at.p.keys);
        double *counts = at.sums_of(head) + pairs * step + block.key;
        for (int32_t k = 0; k < block.keys; k++) {
          counts[k] += of_keys[k].count;
          counts[PAIRS * step + k] += of_keys[k].weight;
        }
      });
    }
  }

  // Rows of a head among a block's, and their sums over all keys of a range.
  struct SomeRows {
    int first = 0;  // row of the block
    ints place, marked;
    int32_t nearest, farthest;  // places
    floats sum = {};

    SomeRows() {}
    SomeRows(const Memory &memory, int row, int rows)
        : first(row), place(load(memory.place + row)), marked(lane_numbers() < rows),
          nearest(place[0]), farthest(place[0]) {
      for (int i = 1; i < min(rows, LANES); i++)
        nearest = min(nearest, place[i]), farthest = max(farthest, place[i]);
    }

    // Whether all distances to some keys are in one range, and none is its shortest.
    bool in_one_range(int32_t first_key, int32_t last_key) const {
      const int32_t shortest = nearest - last_key;
      return shortest > 2 && range_of(shortest - 1) == range_of(farthest - first_key);
    }
  };

  // Adds value(address) of each pair to the sums of its row and range, and of its key.
  template <class Value>
  static void add_all(const ReadoutState &at, const WeightBlock &block, int sum, Value value) {
    const Memory memory(at.p, at.memory);
    for_each_head(block.queries, [&](int64_t head, int first, int last) {
      double *of_keys = at.sums_of(head) + (sum * PAIRS + ALL) * padded(at.p.keys) + block.key;
      SomeRows rows[VECTORS];
      int vectors = 0;
      for (int r = first; r < last; r += LANES) rows[vectors++] = SomeRows(memory, r, last - r);
      for (int32_t group = 0; group < block.keys; group += LANES) {
        const int32_t stop = min(group + LANES, block.keys);
        const int32_t first_key = block.key + group, last_key = block.key + stop - 1;
        floats columns[LANES] = {};
        for (int v = 0; v < vectors; v++) {
          SomeRows &some = rows[v];
          const auto of_key = [&](int32_t k, ints chosen) REGARD_INLINE_LAMBDA {
            const floats own =
                (floats)((ints)value(block.weights + k * QUERIES + some.first) & chosen);
            some.sum += own, columns[k - group] += own;
          };
          if (first_key > 0 && some.in_one_range(first_key, last_key)) {
            for (int32_t k = group; k < stop; k++) of_key(k, some.marked);
            continue;
          }
          for (int32_t k = group; k < stop; k++) {
            if (block.key + k == 0) continue;
            const ints distance = some.place - (block.key + k);
            const ints far = (distance >= 2) & some.marked;
            of_key(k, far);
            const ints ends_range = far & ((distance & (distance - 1)) == 0);
            if (any(ends_range)) add_range(memory, sum, some, distance, ends_range);
          }
        }
        add_to(of_keys + group, sum_each(columns), stop - group);
      }
      for (int v = 0; v < vectors; v++) {
        const ints distance = rows[v].place - (block.key + block.keys - 1);
        add_range(memory, sum, rows[v], distance, (distance >= 2) & rows[v].marked);
      }
    });
  }

  // Adds the sums of marked lanes for the range of their distances, and sets them to 0.
  static void add_range(const Memory &memory, int sum, SomeRows &rows, ints distances,
                        ints marked) {
    for (int i = 0; i < LANES; i++)
      if (marked[i]) memory.of(sum, ALL, range_of(distances[i]))[rows.first + i] += rows.sum[i];
    rows.sum = marked ? floats{} : rows.sum;
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
