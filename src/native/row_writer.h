// The destination of rows of sums, a tile at a time: sums in memory, or the result.
#pragma once

#include "query_block.h"

namespace regard::REGARD_SET {

// Consecutive rows of a tensor; see BlockRows.
template <class Number>
struct ConsecutiveRows {
  Number *first;
  int64_t stride;
  Number *operator[](int64_t r) const { return first + r * stride; }
};
// A factor for each row, or with step 0 one for all.
struct RowFactors {
  const float *first;
  int64_t step;
  float operator[](int64_t r) const { return first[r * step]; }
};

template <class Element, class Rows>
struct RowWriter {
  float *sums;  // (rows, width), width a multiple of LANES
  int64_t width;
  bool add;   // accumulate, else overwrite
  bool last;  // the sums are complete: write each row, times its factor, to the result
  RowFactors factors;
  Rows rows;  // of the result
  int64_t dim;
  ints largest = {};  // of the results' bits without sign

  template <int count, int columns>
  __attribute__((always_inline)) void operator()(int64_t r, int64_t d,
                                                 floats (&total)[count][columns]) {
    float *const at = sums + r * width + d;
    if (add)
      REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
        REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
          total[i][j] += load(at + i * width + j * LANES);
    if (!last) {
      REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
        REGARD_UNROLLED_FOR (int j = 0; j < columns; j++)
          store(at + i * width + j * LANES, total[i][j]);
      return;
    }
    ints highest = largest;
    REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) {
        total[i][j] *= broadcast(factors[r + i]);
        highest = max(highest, (ints)total[i][j] & 0x7fffffff);
      }
    largest = highest;
    const Rows to = rows;  // a copy: see BlockRows
    if (d + columns * LANES <= dim) {
      REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
        narrow_all(Element(), to[r + i] + d, total[i]);
      return;
    }
    alignas(64) float copied[count][columns * LANES];  // so that the sums above stay in registers
    REGARD_UNROLLED_FOR (int i = 0; i < count; i++)
      REGARD_UNROLLED_FOR (int j = 0; j < columns; j++) store(&copied[i][j * LANES], total[i][j]);
    for (int i = 0; i < count; i++)
      for (int j = 0; j < columns * LANES; j += LANES)
        narrow_part(Element(), to[r + i] + d + j, load(&copied[i][j]), dim - d - j);
  }
  // The address of the sums of row r from column d on, if they are only stored; else null.
  float *sums_at(int64_t r, int64_t d) const { return last ? nullptr : sums + r * width + d; }
  bool finite() const { return !any(largest >= 0x7f800000); }
};

// Writes to the rows of a block of queries.
template <class Element>
using QueryWriter = RowWriter<Element, BlockRows<Element>>;

}  // namespace regard::REGARD_SET
