// Weighted sums over the keys of a block.
//
// These are contexts and, in the backward pass, the gradient of queries.
#pragma once

#include "arithmetic.h"
#include "scores.h"

namespace regard::REGARD_SET {

// weighted_rows, but hidden values are skipped, since 0 · NaN is NaN.
template <class Arithmetic, class Values>
static void context_of_visible(const Values &values, const Segment &segment, int64_t width,
                               const float *weights, const float *scores, float *context) {
  for (int32_t k = 0; k < segment.keys; k++)
    for (int j = segment.first; j < segment.last; j++) {
      const floats weight = Arithmetic::weight(weights + j * LANES, k);
      for (int i = 0; i < LANES; i++) {
        if (scores[k * QUERIES + j * LANES + i] == HIDDEN) continue;
        for (int64_t d = 0; d < width; d += LANES) {
          float *at = context + (j * LANES + i) * width + d;
          store(at, load(at) + weight[i] * Arithmetic::value_part(values, k, d));
        }
      }
    }
}

// If sums must have the order of weighted_rows: adds the visible values that are not finite, and
// sets those to 0 for weighted_rows.
template <class Arithmetic>
static void move_nonfinite(typename Arithmetic::Number *values, int64_t stride,
                           const Segment &segment, int64_t width, const float *weights,
                           const float *scores, float *context) {
  for (int32_t k = 0; k < segment.keys; k++)
    for (int64_t d = 0; d < width; d += LANES) {
      const floats value = Arithmetic::value_part({values, stride}, k, d);
      const ints nonfinite = is_nonfinite(value);
      if (!any(nonfinite)) continue;
      for (int r = segment.first * LANES; r < segment.last * LANES; r++) {
        if (scores[k * QUERIES + r] == HIDDEN) continue;
        const float weight = Arithmetic::weight(weights + r / LANES * LANES, k)[r % LANES];
        float *at = context + r * width + d;
        store(at, load(at) + (nonfinite ? weight * value : floats{}));
      }
      Arithmetic::clear_values(values, stride, k, d, nonfinite);
    }
}

// The steps of a tile of rows: over all keys of a range, or with bounds from the first to the last
// visible key of its rows, at a granularity of four rows.
template <class Products>
struct VisibleSteps {
  KeyRange keys;
  int32_t first;                // key of the block, from which steps are counted
  const int32_t *start, *stop;  // fours_start and fours_stop of the queries, or null

  __attribute__((always_inline)) StepRange operator()(int64_t r, int rows) const {
    constexpr int STEP = Products::STEP;
    int32_t from = keys.start, to = keys.stop;
    if (start) {
      from = start[r + rows - 1], to = stop[r + rows - 1];
      for (int64_t i = r; i < r + rows; i += 4) from = min(from, start[i]), to = max(to, stop[i]);
      from = max(from, keys.start), to = min(to, keys.stop);
      if (from >= to) return {0, 0};
    }
    return {(from - first) / STEP, (to - first + STEP - 1) / STEP};
  }
};

// weights × values of the rows of vector j and a range of keys of a block with this first key.
template <class Products, class Write>
static void add_visible_rows(const QueryBlock &queries, int j, KeyRange keys, int32_t first,
                             const PackedRows<typename Products::Number> &values, int64_t width,
                             const float *weights, Write &write) {
  const VisibleSteps<Products> steps = {keys, first, queries.fours_start, queries.fours_stop};
  weighted_rows<Products>(values.data, values.stride, weights, j * LANES,
                          min((j + 1) * LANES, queries.count), width, steps, write);
}

// Calls call(keys) for the keys of vector j in a block, with adjacent segments merged.
template <class Call>
REGARD_INLINE void for_each_range(const Segment *segments, int count, int j, Call call) {
  KeyRange range;
  for (int n = 0; n < count; n++) {
    const Segment &segment = segments[n];
    if (j < segment.first || j >= segment.last) continue;
    const bool adjacent = !range.empty() && range.stop == segment.key;
    if (!adjacent && !range.empty()) call(range);
    range = {adjacent ? range.start : segment.key, segment.key + segment.keys};
  }
  if (!range.empty()) call(range);
}

// Finds the range of keys of each vector; returns false if those of a vector are not contiguous.
static bool find_ranges(const QueryBlock &queries, const Segment *segments, int count,
                        KeyRange *ranges) {
  bool single = true;
  for (int j = 0; j < queries.vectors; j++)
    for_each_range(segments, count, j, [&](KeyRange keys) {
      single &= ranges[j].empty();
      ranges[j] = keys;
    });
  return single;
}

// weights × values of a block of keys, for each vector over its range. Writes all rows.
template <class Products, class Write>
static void add_visible(const QueryBlock &queries, const Segment *segments, int count,
                        const KeyRange *ranges, int32_t first,
                        const PackedRows<typename Products::Number> &values, int64_t width,
                        const float *weights, Write &write) {
  if (count == 1 && !segments[0].edge && segments[0].last - segments[0].first == queries.vectors) {
    const VisibleSteps<Products> all = {ranges[0], first, nullptr, nullptr};
    return weighted_rows<Products>(values.data, values.stride, weights, 0, queries.count, width,
                                   all, write);
  }
  for (int j = 0; j < queries.vectors; j++)
    add_visible_rows<Products>(queries, j, ranges[j], first, values, width, weights, write);
}

// The same if a vector has more than one range, added to sums.
template <class Products>
static void add_ranges(const QueryBlock &queries, const Segment *segments, int count, int32_t first,
                       const PackedRows<typename Products::Number> &values, int64_t width,
                       const float *weights, float *sums) {
  AddToSums write = {sums, width};
  for (int j = 0; j < queries.vectors; j++)
    for_each_range(segments, count, j, [&](KeyRange keys) {
      add_visible_rows<Products>(queries, j, keys, first, values, width, weights, write);
    });
}

}  // namespace regard::REGARD_SET
