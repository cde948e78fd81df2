// Attention in one generation step of a GPT.
//
// Queries and keys are normalized and rotated if the model does so, keys and values are appended to
// the cache, and the new token's query attends to it.
#pragma once

#include "decode.h"
#include "norm.h"
#include "phases.h"

namespace regard::REGARD_SET {

// The bounds of one layer's rows, (B) each.
struct Bounds {
  int64_t *start, *stop, *position;
};

static void find_bounds(const regard_gpt &gpt, const regard_layer &layer, const Bounds &bounds) {
  for (int64_t b = 0; b < gpt.batch; b++) {
    const int64_t padding = gpt.padding ? gpt.padding[b] - layer.evicted : 0;
    const int64_t later = gpt.one_sequence ? gpt.batch - 1 - b : 0;
    bounds.stop[b] = layer.keys - later;
    bounds.start[b] = max(max(int64_t(0), padding), bounds.stop[b] - layer.window);
    bounds.position[b] = bounds.stop[b] - 1;
  }
}

static regard_problem attention_of(const regard_gpt &gpt, const regard_layer &layer,
                                   const Bounds &bounds, void *qkv, int64_t width) {
  regard_problem p = {};
  p.dtype = gpt.dtype, p.threads = gpt.threads;
  p.batch = gpt.batch, p.heads = gpt.heads, p.groups = gpt.groups;
  p.queries = 1, p.keys = layer.keys, p.dim = p.dim_value = gpt.dim;
  p.scale = gpt.scale, p.softcap = gpt.softcap;
  p.query = {qkv, width, gpt.dim, gpt.dim};
  p.key = layer.key, p.value = layer.value;
  p.rows.start = bounds.start, p.rows.stop = bounds.stop, p.rows.positions = bounds.position;
  p.rows.batch = 1;
  p.spans = layer.spans;
  return p;
}

// Rotates pairs of channels i and i + D / 2.
template <class Element>
static void rotate(Element element, typename Element::type *vector, int64_t dim,
                   const float *cosines, const float *sines) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += LANES) {
    const int64_t left = half - i;
    const floats first = widen_part(element, vector + i, left);
    const floats second = widen_part(element, vector + half + i, left);
    const floats cosine = widen_part(Float32(), cosines + i, left);
    const floats sine = widen_part(Float32(), sines + i, left);
    narrow_part(element, vector + i, first * cosine - second * sine, left);
    narrow_part(element, vector + half + i, second * cosine + first * sine, left);
  }
}

// Normalizes and rotates the queries of one sequence and group, and writes its key and value to the
// cache.
template <class Element>
static void prepare_attention(const regard_gpt &gpt, const regard_layer &layer,
                              const Bounds &bounds, int64_t pair, typename Element::type *qkv,
                              int64_t width, float *memory) {
  using Number = typename Element::type;
  const Element element;
  const int64_t b = pair / gpt.groups, group = pair % gpt.groups, dim = gpt.dim;
  const int64_t heads = gpt.heads / gpt.groups;
  Number *query = qkv + b * width + group * heads * dim;
  Number *key = qkv + b * width + (gpt.heads + group) * dim, *value = key + gpt.groups * dim;
  const int64_t angles = (layer.rotation * gpt.batch + b) * (dim / 2);
  const auto place = [&](Number *vector, const regard_norm &norm) {
    if (norm.weight)
      normalize(element, norm, vector, dim, memory, [&](int64_t i, int64_t count, floats x) {
        narrow_part(element, vector + i, x, count);
      });
    if (gpt.cosines) rotate(element, vector, dim, gpt.cosines + angles, gpt.sines + angles);
  };
  for (int64_t h = 0; h < heads; h++) place(query + h * dim, layer.query_norm);
  if (layer.query)
    memcpy((Number *)layer.query + (b * gpt.heads + group * heads) * dim, query,
           size_t(heads * dim) * sizeof *query);
  if (layer.scores) {  // hidden, until they are computed
    float *scores = layer.scores + (b * gpt.heads + group * heads) * layer.columns;
    for (int64_t h = 0; h < heads; h++, scores += layer.columns)
      for (int64_t k = 0; k < layer.keys; k++) scores[k] = HIDDEN;
  }
  place(key, layer.key_norm);
  const auto put = [&](const regard_tensor &to, const Number *from) {
    memcpy((Number *)to.data + b * to.batch + group * to.head + bounds.position[b] * to.row, from,
           size_t(dim) * sizeof *from);
  };
  put(layer.key, key);
  put(layer.value, value);
}

// Two phases: the cache is written, then attention reads it. `context` is (B, E).
template <class Element>
static void attend(const regard_gpt &gpt, const regard_layer &layer, const Bounds &bounds,
                   const Partials &partials, typename Element::type *qkv, int64_t width,
                   typename Element::type *context, Team &team, void *memory) {
  const regard_problem p = attention_of(gpt, layer, bounds, qkv, width);
  const Scoring scoring = scoring_of(p);
  const int64_t pairs = gpt.batch * gpt.groups;
  const int64_t tasks_per_pair = decode_tasks_per_pair(p);
  team.run(pairs, [&](int64_t pair) {
    prepare_attention<Element>(gpt, layer, bounds, pair, qkv, width, (float *)memory);
    partials.left[pair] = int32_t(tasks_per_pair);
  });
  const Decoded result = {
      {context, gpt.heads * gpt.dim, gpt.dim, gpt.dim}, nullptr, layer.scores, layer.columns};
  team.run(pairs * tasks_per_pair, [&](int64_t number) {
    decode_task<Element>(p, scoring, partials, tasks_per_pair, number, memory, result);
  });
}

}  // namespace regard::REGARD_SET
