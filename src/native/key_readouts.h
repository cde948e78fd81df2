// Readouts that sum over rows, key by key.
#pragma once

#include "readout.h"

namespace regard::REGARD_SET {

// Calls call(head, first, last) for each head of a block, whose rows are [first, last).
template <class Call>
REGARD_INLINE void for_each_head(const QueryBlock &queries, Call call) {
  for (int first = 0, last; first < queries.count; first = last) {
    for (last = first + 1; last < queries.count && queries.head[last] == queries.head[first];)
      last++;
    call(queries.head[first], first, last);
  }
}

struct Received : Readout {
  static int64_t sums(const regard_problem &p, const regard_readout &) { return padded(p.keys); }

  // `column(k)` has the lanes of key k.
  template <class Column>
  REGARD_INLINE void add(const WeightBlock &block, double *received, Column column) {
    for (int32_t first = 0; first < block.keys; first += LANES) {
      floats sums[LANES];
      REGARD_UNROLLED_FOR (int k = 0; k < LANES; k++)
        sums[k] = first + k < block.keys ? column(first + k) : floats{};
      add_to(received + block.key + first, sum_each(sums), block.keys - first);
    }
  }

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    for_each_head(block.queries, [&](int64_t head, int first, int last) {
      for (int r = first; r < last; r += LANES) {
        const ints own = lane_numbers() < last - r;
        add(block, at.sums_of(head),
            [&](int32_t k) { return (floats)((ints)load(block.weights + k * QUERIES + r) & own); });
      }
    });
  }

  static void finish(const regard_problem &p, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    const double *received = sums.total(p.keys);
    for (int64_t k = 0; k < p.keys; k++) request.result[head * p.keys + k] = float(received[k]);
  }
};

// The same, and the number of queries that see each key. Without matrices a row sees ranges of
// keys: what changes from one key to the next is counted, and summed at the end.
struct MeanReceived : Received {
  static bool has_matrix(const regard_problem &p) { return p.allowed.data || p.bias.data; }

  static size_t memory(const regard_problem &p, const regard_readout &) {
    return size_t(p.spans.count) * sizeof(KeyRange);
  }
  static int64_t sums(const regard_problem &p, const regard_readout &) {
    return padded(p.keys) + padded(p.keys + 1);
  }

  static void begin(const ReadoutState &at, const QueryBlock &queries) {
    if (has_matrix(at.p)) return;
    for (int r = 0; r < queries.count; r++) {
      double *changes = at.sums_of(queries.head[r]) + padded(at.p.keys);
      for_each_visible_range(at.p, queries, r, at.kept<KeyRange>(), [&](KeyRange keys) {
        changes[keys.start] += 1;
        changes[keys.stop] -= 1;
      });
    }
  }

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    Received::weights(at, block);
    if (!has_matrix(at.p)) return;
    const QueryBlock &queries = block.queries;
    for_each_head(queries, [&](int64_t head, int from, int to) {
      floats added[VECTORS][LANES];  // terms of some keys, −∞ where one is hidden
      bool changed[VECTORS];
      Received::add(block, at.sums_of(head) + padded(at.p.keys), [&](int32_t k) {
        floats count = {};
        for (int j = from / LANES; j * LANES < to; j++) {
          if (k % LANES == 0)
            changed[j] = load_added(block.p, queries, j * LANES, block.key + k,
                                    min(LANES, block.keys - k), added[j]);
          const ints row = lane_numbers() + j * LANES, key = broadcast(block.key + k);
          ints sees = (row >= from) & (row < to) & (key >= load(queries.start + j * LANES)) &
                      (key < load(queries.stop + j * LANES));
          if (changed[j]) sees &= added[j][k % LANES] != broadcast(HIDDEN);
          count += sees ? broadcast(1.0f) : floats{};
        }
        return count;
      });
    });
  }

  static void finish(const regard_problem &p, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    const double *received = sums.total(MeanReceived::sums(p, request));
    const double *counts = received + padded(p.keys);
    float *result = request.result + 2 * head * p.keys;
    double seers = 0;
    for (int64_t k = 0; k < p.keys; k++) {
      seers = has_matrix(p) ? counts[k] : seers + counts[k];
      result[k] = float(received[k]);
      result[p.keys + k] = float(seers);
    }
  }
};

// The largest weight that a key receives.
struct MaxReceived : Readout {
  static int64_t sums(const regard_problem &p, const regard_readout &) { return padded(p.keys); }

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    for_each_head(block.queries, [&](int64_t head, int first, int last) {
      double *most = at.sums_of(head) + block.key;
      for (int32_t k = 0; k < block.keys; k++) {
        floats high = {}, total = {};  // the total is NaN if a weight is
        for (int j = first / LANES; j * LANES < last; j++) {
          const ints row = lane_numbers() + j * LANES;
          const floats weight = load(block.weights + k * QUERIES + j * LANES);
          const floats own = ((row >= first) & (row < last)) ? weight : floats{};
          high = max(high, own);
          total += own;
        }
        for (int i = 0; i < LANES; i++) take_larger(most[k], isnan(total[i]) ? NAN : high[i]);
      }
    });
  }

  static void finish(const regard_problem &p, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    for (int64_t c = 1; c < sums.plan.chunks; c++)
      for (int64_t k = 0; k < p.keys; k++) take_larger(sums.data[k], sums.data[c * sums.step + k]);
    for (int64_t k = 0; k < p.keys; k++) request.result[head * p.keys + k] = float(sums.data[k]);
  }

  // NaN stays NaN.
  REGARD_INLINE void take_larger(double &most, double x) {
    if (x > most || isnan(x)) most = x;
  }
};

// rows @ pattern, which needs the weights transposed.
struct LeftProduct : Readout {
  static constexpr bool of_whole_blocks = true;

  struct Memory {
    float *coefficients;  // (QUERIES, M)
    float *transposed;    // (QUERIES, QUERIES): rows, keys
    float *product;       // (M, QUERIES): rows of the result, keys

    Memory(const regard_readout &request, char *memory) {
      coefficients = (float *)memory;
      transposed = coefficients + QUERIES * padded(request.size);
      product = transposed + QUERIES * QUERIES;
    }
    static size_t size(int64_t rows) {
      return size_t(QUERIES * (2 * padded(rows) + QUERIES)) * sizeof(float);
    }
  };

  static size_t memory(const regard_problem &, const regard_readout &request) {
    return Memory::size(request.size);
  }
  static int64_t sums(const regard_problem &p, const regard_readout &request) {
    return request.size * padded(p.keys);
  }

  static void begin(const ReadoutState &at, const QueryBlock &queries) {
    const Memory memory(at.request, at.memory);
    const int64_t size = at.request.size;
    for (int r = 0; r < queries.count; r++) {
      const int64_t head = queries.batch * at.p.heads + queries.head[r];
      const float *from = (const float *)at.request.operand + head * size * at.p.queries;
      for (int64_t m = 0; m < size; m++)
        memory.coefficients[r * size + m] = from[m * at.p.queries + queries.query[r]];
    }
  }

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    const Memory memory(at.request, at.memory);
    const int64_t size = at.request.size, step = padded(at.p.keys);
    for (int32_t first = 0; first < block.keys; first += QUERIES) {
      const int keys = min(QUERIES, block.keys - first), live = (keys + LANES - 1) / LANES;
      transpose_block(block, first, keys, memory.transposed);
      for_each_head(block.queries, [&](int64_t head, int from, int to) {
        memset(memory.product, 0, size_t(size) * QUERIES * sizeof(float));
        with_live(live, [&](auto vectors) {
          left_product_rows<FloatProducts, vectors>(
              memory.coefficients + from * size, size, to - from, size,
              memory.transposed + from * QUERIES, memory.product);
        });
        for (int64_t m = 0; m < size; m++)
          for (int k = 0; k < keys; k += LANES)
            add_to(at.sums_of(head) + m * step + block.key + first + k,
                   load(memory.product + m * QUERIES + k), keys - k);
      });
    }
  }

  static void finish(const regard_problem &p, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    const int64_t step = padded(p.keys);
    const double *product = sums.total(request.size * step);
    for (int64_t m = 0; m < request.size; m++)
      for (int64_t k = 0; k < p.keys; k++)
        request.result[(head * request.size + m) * p.keys + k] = float(product[m * step + k]);
  }

  // The weights of up to QUERIES keys, one row per query.
  static void transpose_block(const WeightBlock &block, int32_t first, int keys, float *to) {
    for (int j = 0; j < block.queries.vectors; j++)
      for (int k = 0; k < keys; k += LANES) {
        floats tile[LANES];
        for (int i = 0; i < LANES; i++)
          tile[i] =
              k + i < keys ? load(block.weights + (first + k + i) * QUERIES + j * LANES) : floats{};
        transpose(tile);
        REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++)
          store(to + (j * LANES + i) * QUERIES + k, tile[i]);
      }
  }
};

}  // namespace regard::REGARD_SET
