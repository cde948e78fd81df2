// A panel of keys in the backward pass, and the sums of its gradients over blocks of queries.
#pragma once

#include "forward.h"
#include "gradient_arithmetic.h"

namespace regard::REGARD_SET {

constexpr int32_t MAX_PANEL_KEYS = 2048, MIN_PANEL_KEYS = 256;

// It depends on the problem but not on its batch size, like the order of every sum.
REGARD_INLINE int32_t panel_keys(const regard_problem &p) {
  const int64_t half = (p.keys + 1) / 2, whole_strips = (half + STRIP - 1) / STRIP * STRIP;
  return int32_t(max(int64_t(MIN_PANEL_KEYS), min(int64_t(MAX_PANEL_KEYS), whole_strips)));
}

// A thread's memory for a panel.
struct PanelScratch {
  float *query, *gradient;  // see QueryRows
  float *rows;              // both in row-major order
  float *query_share;       // (QUERIES, padded(dim)): contribution to the queries' gradient
  float *weights;           // (GRADIENT_BLOCK, QUERIES)
  float *score_gradients;   // likewise; before that, gradients of the weights
  float *products;          // likewise: inputs of the softcap
  float *packed;            // two of them: see PackedGradients
  float *key, *value;       // (panel_keys, padded(dim or dim_value)): see KeyPanel
  float *summed_keys;       // likewise
  float *key_gradient, *value_gradient;  // likewise
  BlockSpan *spans;

  static size_t size(const regard_problem &p) {
    const int64_t dim = padded(p.dim), dim_value = padded(p.dim_value);
    const int64_t of_rows = 3 * dim + 2 * dim_value + 5 * GRADIENT_BLOCK;
    return size_t(of_rows * QUERIES + panel_keys(p) * (3 * dim + 2 * dim_value)) * sizeof(float) +
           span_bytes(p);
  }
  PanelScratch(const regard_problem &p, void *memory) {
    const int64_t dim = padded(p.dim), dim_value = padded(p.dim_value), keys = panel_keys(p);
    query = (float *)memory;
    query_share = query + dim * QUERIES;
    gradient = query_share + dim * QUERIES;
    rows = gradient + dim_value * QUERIES;
    weights = rows + (dim + dim_value) * QUERIES;
    score_gradients = weights + GRADIENT_BLOCK * QUERIES;
    products = score_gradients + GRADIENT_BLOCK * QUERIES;
    packed = products + GRADIENT_BLOCK * QUERIES;
    key = packed + 2 * GRADIENT_BLOCK * QUERIES;
    summed_keys = key + keys * dim;
    key_gradient = summed_keys + keys * dim;
    value = key_gradient + keys * dim;
    value_gradient = value + keys * dim_value;
    spans = (BlockSpan *)(value_gradient + keys * dim_value);
  }
};

// Keys [first, last) of a group. For a product that sums over keys, they are packed as values are.
template <class Arithmetic>
struct KeyPanel {
  int64_t batch, group;
  int32_t first, last;
  bool visited_once = false;  // its gradients are complete after one block of queries
  KeyRange summed = {};       // keys whose gradients have sums; none in a panel visited once
  PackedRows<typename Arithmetic::Number> keys = {}, values = {}, summed_keys = {};
  bool finite_keys = true;

  // The rows of a tensor of keys or values.
  template <class Number = typename Arithmetic::Element::type>
  ConsecutiveRows<Number> rows_of(const regard_tensor &t) const {
    return {(Number *)t.data + batch * t.batch + group * t.head + first * t.row, t.row};
  }
};

// Writes the gradient of keys or values [first, last) of a panel.
template <class Arithmetic>
static void store_panel(const float *from, const KeyPanel<Arithmetic> &panel, int32_t first,
                        int32_t last, int64_t dim, float factor, const regard_tensor &to) {
  using Element = typename Arithmetic::Element;
  const ConsecutiveRows<typename Element::type> rows = panel.rows_of(to);
  for (int64_t k = first - panel.first; k < last - panel.first; k++) {
    const float *sums = from + k * padded(dim);
    typename Element::type *row = rows[k];
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) {
      const floats both[2] = {load(sums + d) * factor, load(sums + d + LANES) * factor};
      narrow_all(Element(), row + d, both);
    }
    for (; d < dim; d += LANES) narrow_part(Element(), row + d, load(sums + d) * factor, dim - d);
  }
}

// Sets the gradients of keys [first, last) to 0.
template <class Arithmetic>
static void clear_gradients(const regard_problem &p, const regard_gradients &g,
                            const KeyPanel<Arithmetic> &panel, int32_t first, int32_t last) {
  const auto clear = [&](const regard_tensor &to, int64_t dim) {
    const auto rows = panel.rows_of(to);
    for (int64_t k = first - panel.first; k < last - panel.first && to.data; k++)
      memset(rows[k], 0, size_t(dim) * sizeof *rows[k]);
  };
  clear(g.key, p.dim);
  clear(g.value, p.dim_value);
}

// Initializes the sums of a segment's keys that have none yet. Keys with sums are consecutive, so
// keys in between get sums too. Returns whether all of the segment's sums are new, so that they are
// overwritten.
template <class Arithmetic>
static bool begin_sums(const regard_problem &p, const Segment &segment, const PanelScratch &scratch,
                       KeyPanel<Arithmetic> &panel) {
  const int32_t first = segment.key, last = first + segment.keys;
  const KeyRange summed = panel.summed;
  if (summed.empty()) {
    panel.summed = {first, last};
    return true;
  }
  const auto clear = [&](int32_t from, int32_t to) {
    const auto rows = [&](float *sums, int64_t dim) {
      const int64_t width = padded(dim);
      memset(sums + (from - panel.first) * width, 0, size_t((to - from) * width) * sizeof *sums);
    };
    rows(scratch.key_gradient, p.dim);
    rows(scratch.value_gradient, p.dim_value);
  };
  const bool is_new = last <= summed.start || first >= summed.stop;
  if (first < summed.start) clear(is_new ? last : first, summed.start);
  if (last > summed.stop) clear(summed.stop, is_new ? first : last);
  panel.summed = {min(first, summed.start), max(last, summed.stop)};
  return is_new;
}

}  // namespace regard::REGARD_SET
