// A random attention problem in memory of its own.
#pragma once

#include "tensor.h"

namespace driver {

struct Sizes {
  int64_t batch, heads, groups, queries, keys, dim, dim_value;
};

// (B, H, L, S) with some axes shared.
template <class T>
struct Matrix {
  Numbers<T> numbers;
  int64_t batch = 0, head = 0, row = 0, column = 0;

  T at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return numbers[b * batch + h * head + i * row + j * column];
  }
  regard_matrix view() const { return {numbers.data(), batch, head, row, column}; }
};

struct Sample {
  static Sample random(uint64_t seed);

  regard_problem problem(int64_t threads) const;
  bool sees(int64_t b, int64_t h, int64_t i, int64_t j) const;
  // What spans add to a score, −∞ where one hides the key.
  double added_by_spans(int64_t b, int64_t h, int64_t i, int64_t j) const;
  bool spans_add() const;  // whether any adds a number
  int64_t position(int64_t b, int64_t h, int64_t i) const;
  int64_t group(int64_t h) const { return h / (sizes.heads / sizes.groups); }
  std::string text() const;

  uint64_t seed;
  Sizes sizes;
  int64_t dtype;
  // Logits are small multiples of it, at any size: no rounding takes part in them. 0: of any
  // numbers.
  double logit_unit;
  double scale, softcap, dropout;
  uint64_t dropout_seed;
  Tensor query, key, value, context_gradient;
  // Rows as tables, (b, h, L), or as a line: see regard_rows.
  Numbers<int64_t> start, stop, positions;
  regard_rows rows;
  // Spans as tables, (N, b, h, L): see regard_spans.
  Numbers<int64_t> span_start, span_stop;
  Numbers<float> span_added;
  regard_spans spans;
  Matrix<uint8_t> allowed;
  Matrix<float> bias;
  Numbers<float> alibi, sink;  // (H)
};

}  // namespace driver
