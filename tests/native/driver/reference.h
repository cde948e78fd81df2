// Attention by its definition: loops over doubles, which share nothing with the kernels.
#pragma once

#include "sample.h"

namespace driver {

// A sum, and that of the absolute values of all that it is made of: what rounding goes by.
struct Sum {
  double value = 0, size = 0;

  void add(double factor, const Sum &part) {
    value += factor * part.value;
    size += std::fabs(factor) * part.size;
  }
};

inline Sum plain(double number) { return {number, std::fabs(number)}; }

// Numbers of four axes, the last ones innermost.
template <class T>
struct Grid {
  int64_t heads, rows, columns;
  std::vector<T> numbers;

  Grid(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
      : heads(heads), rows(rows), columns(columns),
        numbers(size_t(batch * heads * rows * columns)) {}
  T &at(int64_t b, int64_t h, int64_t i, int64_t j) {
    return numbers[size_t(((b * heads + h) * rows + i) * columns + j)];
  }
  const T &at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return const_cast<Grid *>(this)->at(b, h, i, j);
  }
};

struct Reference {
  explicit Reference(const Sample &sample, bool of_weights_alone = false);

  Grid<double> weights;    // (B, H, L, S), before dropout
  Grid<double> logsumexp;  // (B, H, L, 1)
  Grid<Sum> context;       // (B, H, L, Dv)
  // Gradients; of the bias (B, H, L, S), of ALiBi's slopes and sinks (B, H, 1, 1).
  Grid<Sum> query, key, value, bias, alibi, sink;
  double max_logit = 0;  // of all parts of a logit, the absolute values summed up
};

}  // namespace driver
