// One generation step of a GPT in one call.
//
// A team of threads executes all layers without sleeping in between. Every number between two
// linear maps is rounded to the dtype, as the modules do.
//
// Inputs that all rows of a map need, such as a norm, are computed by every thread redundantly,
// which is faster than waiting for another thread.
#pragma once

#include "gpt_attention.h"
#include "matvec.h"

namespace regard::REGARD_SET {

// Memory that the threads share; widths are in elements.
template <class Element>
struct StepMemory {
  using Number = typename Element::type;
  int64_t width, context_width, qkv_width, hidden_width;  // E, H·D, …
  void *memory;
  Number *stream, *qkv, *context, *hidden, *added;
  int64_t *bounds;

  explicit StepMemory(const regard_gpt &gpt)
      : width(gpt.width), context_width(gpt.heads * gpt.dim),
        qkv_width(context_width + 2 * gpt.groups * gpt.dim),
        hidden_width(gpt.mlp == REGARD_GELU ? gpt.hidden : 2 * gpt.hidden) {
    const int64_t rows = width + qkv_width + context_width + hidden_width + width;
    const size_t numbers = size_t(gpt.batch * rows) * sizeof(Number);
    const size_t count = size_t(3 * gpt.batch * gpt.layers);
    memory = system::allocate(64, (numbers + count * sizeof(int64_t) + 64) / 64 * 64);
    bounds = (int64_t *)memory;
    stream = (Number *)(bounds + count);
    qkv = stream + gpt.batch * width;
    context = qkv + gpt.batch * qkv_width;
    hidden = context + gpt.batch * context_width;
    added = hidden + gpt.batch * hidden_width;
  }
  StepMemory(const StepMemory &) = delete;
  StepMemory &operator=(const StepMemory &) = delete;
  ~StepMemory() { system::release(memory); }
};

template <class Products>
class GPTStep {
 public:
  using Element = typename Products::Element;
  using Number = typename Products::Number;
  using Input = typename Products::Input;
  using Map = LinearMap<Products>;

  explicit GPTStep(const regard_gpt &gpt) : gpt_(gpt), shared_(gpt), partials_(largest(gpt)) {}

  int run() {
    if (!shared_.memory || !partials_.memory) return REGARD_OUT_OF_MEMORY;
    embed();
    constexpr int64_t phases_of_layer = 9;
    return on_team(int(gpt_.threads), gpt_.layers * phases_of_layer + 1, memory_per_thread(),
                   [&](Team &team, void *memory) { compute(team, memory); });
  }

 private:
  // The attention problem whose partial results take the most memory.
  static regard_problem largest(const regard_gpt &gpt) {
    regard_problem p = {};
    p.batch = gpt.batch, p.heads = gpt.heads, p.groups = gpt.groups, p.queries = 1;
    p.dim = p.dim_value = gpt.dim;
    for (int64_t layer = 0; layer < gpt.layers; layer++)
      p.keys = max(p.keys, gpt.layer[layer].keys);
    return p;
  }

  int64_t inputs_size() const {
    return Inputs<Products>::size(gpt_.batch,
                                  max(max(shared_.width, shared_.context_width), gpt_.hidden));
  }
  size_t memory_per_thread() const {
    const regard_problem p = largest(gpt_);
    const size_t inputs = size_t(inputs_size()) * sizeof(Input);
    return inputs + max(DecodeScratch::size(p), size_t(padded(shared_.width)) * sizeof(float));
  }

  void embed() {
    const Element element;
    const int64_t width = shared_.width;
    const Map tokens(gpt_.tokens, width, gpt_.vocabulary);
    for (int64_t layer = 0; layer < gpt_.layers; layer++)
      find_bounds(gpt_, gpt_.layer[layer], bounds_of(layer));
    if (gpt_.stream) {
      memcpy(shared_.stream, gpt_.stream, size_t(gpt_.batch * width) * sizeof(Number));
      return;
    }
    for (int64_t b = 0; b < gpt_.batch; b++) {
      const Number *position = (const Number *)gpt_.learned;
      if (position) position += gpt_.positions[b] * width;
      read_row<Products>(tokens, gpt_.ids[b], [&](int64_t i, floats token) {
        floats x = rounded(element, token);
        if (gpt_.factor != 1) x = rounded(element, x * float(gpt_.factor));
        if (position) x += widen_part(element, position + i, width - i);
        narrow_part(element, shared_.stream + b * width + i, x, width - i);
      });
    }
  }

  Bounds bounds_of(int64_t layer) const {
    int64_t *start = shared_.bounds + 3 * gpt_.batch * layer;
    return {start, start + gpt_.batch, start + 2 * gpt_.batch};
  }

  // The normalized residual stream, from token `first` on.
  Inputs<Products> normed(const regard_norm &norm, Input *memory, float *floats_of_norm,
                          int64_t first = 0) const {
    const int64_t width = shared_.width;
    const Inputs<Products> x = {memory, gpt_.batch - first, padded_inputs(width)};
    for (int64_t b = 0; b < x.count; b++) {
      normalize(
          Element(), norm, shared_.stream + (first + b) * width, width, floats_of_norm,
          [&](int64_t i, int64_t count, floats lanes) { x.set(b, i, first_lanes(lanes, count)); });
      for (int64_t i = padded(width); i < x.width; i += LANES) x.set(b, i, floats{});
      x.complete(b);
    }
    return x;
  }

  // The contexts, times the factors of their channels if there are any.
  Inputs<Products> contexts(const regard_layer &layer, Input *memory) const {
    const int64_t width = shared_.context_width;
    const Inputs<Products> x =
        load_inputs<Products>(shared_.context, gpt_.batch, width, width, memory);
    if (!layer.kept) return x;
    for (int64_t b = 0; b < gpt_.batch; b++) {
      for (int64_t i = 0; i < width; i += LANES) {
        const floats context = widen_part(Element(), shared_.context + b * width + i, width - i);
        const floats kept = widen_part(Float32(), layer.kept + i, width - i);
        x.set(b, i, first_lanes(rounded(Element(), context * kept), width - i));
      }
      for (int64_t i = padded(width); i < x.width; i += LANES) x.set(b, i, floats{});
      x.complete(b);
    }
    return x;
  }

  // A phase: the rows of a map times inputs that each thread makes, then finish(first, last).
  template <class Make, class Finish>
  static void multiply(Team &team, const RowTasks &tasks, const Map &map, Number *result, Make make,
                       Finish finish) {
    Inputs<Products> x = {nullptr, 0, 0};
    team.run(tasks.count, [&](int64_t number) {
      if (!x.data) x = make();
      const int64_t first = tasks.first(number), last = tasks.last(number);
      multiply_rows<Products>(map, first, last, x, result, map.outputs);
      finish(first, last);
    });
  }

  // For the elements [first, last) of each sequence: to = function(to, from).
  template <class Function>
  void combine(Number *to, int64_t stride, const Number *from, int64_t from_stride, int64_t first,
               int64_t last, Function function) const {
    const Element element;
    for (int64_t b = 0; b < gpt_.batch; b++)
      for (int64_t i = first; i < last; i += LANES) {
        Number *at = to + b * stride + i;
        const floats other = widen_part(element, from + b * from_stride + i, last - i);
        narrow_part(element, at, function(widen_part(element, at, last - i), other), last - i);
      }
  }

  // Adds a product to the stream: by rows, or in another phase, once a norm can see all of them.
  template <class Make>
  void add_product(Team &team, const Map &map, const regard_norm &norm, float *memory,
                   Make make) const {
    const Element element;
    const int64_t width = shared_.width;
    multiply(team, RowTasks(width, gpt_.threads), map, shared_.added, make,
             [&](int64_t first, int64_t last) {
               if (norm.weight) return;
               combine(shared_.stream, width, shared_.added, width, first, last,
                       [](floats x, floats added) { return x + added; });
             });
    if (!norm.weight) return;
    team.run(gpt_.batch, [&](int64_t b) {
      Number *stream = shared_.stream + b * width;
      normalize(element, norm, shared_.added + b * width, width, memory,
                [&](int64_t i, int64_t count, floats added) {
                  const floats sum = widen_part(element, stream + i, count) + added;
                  narrow_part(element, stream + i, sum, count);
                });
    });
  }

  // The softcap of logits, if there is one.
  void cap(int64_t first, int64_t last) const {
    const float most = float(gpt_.logit_softcap);
    if (most <= 0) return;
    const Element element;
    for (int64_t b = 0; b < gpt_.batch - gpt_.skipped; b++)
      for (int64_t i = first; i < last; i += LANES) {
        Number *at = (Number *)gpt_.result + b * gpt_.vocabulary + i;
        narrow_part(element, at, tanh(widen_part(element, at, last - i) / most) * most, last - i);
      }
  }

  void keep_stream(const regard_layer &layer, Team &team) const {
    const size_t row = size_t(shared_.width);
    team.run(gpt_.batch, [&](int64_t b) {
      memcpy((Number *)layer.stream + size_t(b) * row, shared_.stream + size_t(b) * row,
             row * sizeof(Number));
    });
  }

  // The phase of the hidden channels: one thread computes gate and up of the same channels.
  void expand(const regard_layer &layer, Team &team, Input *inputs, float *norm) const {
    const int64_t hidden = gpt_.hidden, width = shared_.hidden_width;
    Number *to = shared_.hidden;
    const Map all(layer.expand, shared_.width, width);
    const auto make = [&] { return normed(layer.mlp_norm, inputs, norm); };
    Inputs<Products> x = {nullptr, 0, 0};
    const RowTasks tasks(hidden, gpt_.threads);
    team.run(tasks.count, [&](int64_t number) {
      if (!x.data) x = make();
      const int64_t first = tasks.first(number), last = tasks.last(number);
      multiply_rows<Products>(all, first, last, x, to, width);
      if (gpt_.mlp == REGARD_GELU)
        return combine(to, width, to, width, first, last, [](floats h, floats) { return gelu(h); });
      multiply_rows<Products>(all, hidden + first, hidden + last, x, to, width);
      combine(to, width, to + hidden, width, first, last, [&](floats gate, floats up) {
        return rounded(Element(), gpt_.mlp == REGARD_SWIGLU ? silu(gate) : gelu(gate)) * up;
      });
    });
  }

  void compute(Team &team, void *memory) {
    const int64_t width = shared_.width, threads = gpt_.threads, batch = gpt_.batch;
    Input *inputs = (Input *)memory;
    float *rest = (float *)(inputs + inputs_size());
    for (int64_t i = 0; i < gpt_.layers; i++) {
      const regard_layer &layer = gpt_.layer[i];
      if (layer.stream) keep_stream(layer, team);
      multiply(
          team, RowTasks(shared_.qkv_width, threads), Map(layer.qkv, width, shared_.qkv_width),
          shared_.qkv, [&] { return normed(layer.attention_norm, inputs, rest); },
          [](int64_t, int64_t) {});
      attend<Element>(gpt_, layer, bounds_of(i), partials_, shared_.qkv, shared_.qkv_width,
                      shared_.context, team, rest);
      add_product(team, Map(layer.projection, shared_.context_width, width),
                  layer.attention_output_norm, rest, [&] { return contexts(layer, inputs); });
      expand(layer, team, inputs, rest);
      add_product(team, Map(layer.contract, gpt_.hidden, width), layer.mlp_output_norm, rest, [&] {
        return load_inputs<Products>(shared_.hidden, batch, gpt_.hidden, shared_.hidden_width,
                                     inputs);
      });
    }
    if (gpt_.skipped == batch) return;
    multiply(
        team, RowTasks(gpt_.vocabulary, threads), Map(gpt_.unembedding, width, gpt_.vocabulary),
        (Number *)gpt_.result, [&] { return normed(gpt_.norm, inputs, rest, gpt_.skipped); },
        [&](int64_t first, int64_t last) { cap(first, last); });
  }

  const regard_gpt &gpt_;
  StepMemory<Element> shared_;
  Partials partials_;
};

template <class Products>
int gpt_step(const regard_gpt &gpt) {
  return GPTStep<Products>(gpt).run();
}

}  // namespace regard::REGARD_SET
