// Factors of the weights: what a weight moves, in place of the weight; see regard_factors.
#pragma once

#include "arithmetic.h"
#include "weights.h"

namespace regard::REGARD_SET {

class Factors {
  const regard_factors *const factors_;
  float *query_;     // (dim, QUERIES): the queries of the dot product
  float *products_;  // (READ_BLOCK, QUERIES)

  using Floats = Widened<Float32>;

 public:
  static size_t size(const regard_factors *factors) {
    if (!factors || !factors->dot_query.data) return 0;
    return aligned(size_t((padded(factors->dim) + READ_BLOCK) * QUERIES) * sizeof(float));
  }
  Factors(const regard_factors *factors, void *memory)
      : factors_(factors), query_((float *)memory),
        products_(factors ? query_ + padded(factors->dim) * QUERIES : nullptr) {}

  void begin(const QueryBlock &queries) const {
    if (size(factors_))
      Floats::load_queries(factors_->dot_query, queries, factors_->dim, 1, query_);
  }

  void apply(const WeightBlock &block) const {
    if (!factors_) return;
    with_live(block.queries.vectors, [&](auto vectors) {
      if (factors_->odds) take_odds<vectors>(block);
      if (factors_->key) multiply_by_keys<vectors>(block);
      if (factors_->dot_query.data) multiply_by_products<vectors>(block);
    });
  }

 private:
  template <int vectors, class Factor>
  REGARD_INLINE void multiply(const WeightBlock &block, Factor factor) {
    for (int32_t k = 0; k < block.keys; k++)
      REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
        float *at = block.weights + k * QUERIES + j * LANES;
        store(at, load(at) * factor(k, j));
      }
  }

  template <int vectors>
  void take_odds(const WeightBlock &block) const {
    for (int32_t k = 0; k < block.keys; k++)
      REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
        float *at = block.weights + k * QUERIES + j * LANES;
        store(at, load(at) / (1.0f - load(at)));
      }
    for (int r = 0; r < block.queries.count; r++) {
      const int64_t row = row_number(block.p, block.queries, r);
      const int64_t k = factors_->largest[row] - block.key;
      if (k >= 0 && k < block.keys) block.weights[k * QUERIES + r] = factors_->odds[row];
    }
  }

  template <int vectors>
  void multiply_by_keys(const WeightBlock &block) const {
    const QueryBlock &queries = block.queries;
    const regard_problem &p = block.p;
    const float *of_head[QUERIES];
    for (int r = 0; r < vectors * LANES; r++)  // unused lanes have weight 0
      of_head[r] = factors_->key +
                   (queries.batch * p.heads + queries.head[min(r, queries.count - 1)]) * p.keys +
                   block.key;
    if (queries.one_head)
      return multiply<vectors>(block, [&](int32_t k, int) { return broadcast(of_head[0][k]); });
    multiply<vectors>(block, [&](int32_t k, int j) {
      alignas(64) float lanes[LANES];
      for (int i = 0; i < LANES; i++) lanes[i] = of_head[j * LANES + i][k];
      return load(lanes);
    });
  }

  template <int vectors>
  void multiply_by_products(const WeightBlock &block) const {
    const auto keys = Floats::keys(factors_->dot_key, block.queries, block.key, block.keys,
                                   factors_->dim, nullptr);
    floats peaks[VECTORS] = {};  // of no use here
    score_rows<FloatProducts, vectors>(keys.data, keys.stride, block.keys, factors_->dim, query_,
                                       products_, peaks);
    multiply<vectors>(block,
                      [&](int32_t k, int j) { return load(products_ + k * QUERIES + j * LANES); });
  }
};

}  // namespace regard::REGARD_SET
