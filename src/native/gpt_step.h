// One generation step of a GPT in one call.
//
// A team of threads executes all layers without sleeping in between. Every number between two
// linear maps is rounded to the dtype, as the modules do.
//
// Inputs that all rows of a map need, such as a norm, are computed by every thread redundantly,
// which is faster than waiting for another thread; those of many tokens by one thread each.
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
  int64_t *bounds;  // behind the inputs of a map

  // `inputs` in bytes.
  StepMemory(const regard_gpt &gpt, size_t inputs)
      : width(gpt.width), context_width(gpt.heads * gpt.dim),
        qkv_width(context_width + 2 * gpt.groups * gpt.dim),
        hidden_width(gpt.mlp == REGARD_GELU ? gpt.hidden : 2 * gpt.hidden) {
    const int64_t rows = width + qkv_width + context_width + hidden_width + width;
    const size_t numbers = size_t(gpt.batch * rows) * sizeof(Number);
    const size_t count = size_t(3 * gpt.batch * gpt.layers);
    memory = system::allocate(64, aligned(inputs) + aligned(numbers + count * sizeof(int64_t)));
    bounds = (int64_t *)((char *)memory + aligned(inputs));
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

  explicit GPTStep(const regard_gpt &gpt)
      : gpt_(gpt), shared_(gpt, inputs_size(gpt, gpt.batch)), partials_(largest(gpt)) {}

  int run() {
    if (!shared_.memory || !partials_.memory) return REGARD_OUT_OF_MEMORY;
    embed();
    constexpr int64_t phases_of_layer = 13, phases_of_logits = 2;
    return on_team(int(gpt_.threads), gpt_.layers * phases_of_layer + phases_of_logits,
                   memory_per_thread(), [&](Team &team, void *memory) { compute(team, memory); });
  }

 private:
  static constexpr int64_t MANY_VECTORS = Inputs<Products>::VECTORS_AT_ONCE + 1;

  // The attention problem whose partial results take the most memory.
  static regard_problem largest(const regard_gpt &gpt) {
    regard_problem p = {};
    p.batch = gpt.batch, p.heads = gpt.heads, p.groups = gpt.groups, p.queries = 1;
    p.dim = p.dim_value = gpt.dim;
    for (int64_t layer = 0; layer < gpt.layers; layer++)
      p.keys = max(p.keys, gpt.layer[layer].keys);
    return p;
  }

  // Bytes of the inputs of any map for a number of tokens.
  static size_t inputs_size(const regard_gpt &gpt, int64_t count) {
    const int64_t widest = max(max(gpt.width, gpt.heads * gpt.dim), gpt.hidden);
    return aligned(size_t(Inputs<Products>::size(count, widest)) * sizeof(Input));
  }
  size_t own_inputs_size() const { return inputs_size(gpt_, min(gpt_.batch, MANY_VECTORS - 1)); }
  size_t memory_per_thread() const {
    return own_inputs_size() +
           max(DecodeScratch::size(largest(gpt_)), size_t(padded(shared_.width)) * sizeof(float));
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

  // Returns what makes the inputs of a map, with fill(x, v) for each vector v: in a thread's own
  // memory or, in a phase before, in the memory that all share.
  template <class Fill>
  auto inputs(Team &team, int64_t count, int64_t width, Input *own, Fill fill) const {
    const bool are_many = count >= MANY_VECTORS;
    const Inputs<Products> x = {are_many ? (Input *)shared_.memory : own, count,
                                padded_inputs(width)};
    const auto fill_some = [=](int64_t first) {  // which lie side by side
      const int64_t last = min(count, first + Inputs<Products>::VECTORS_AT_ONCE);
      for (int64_t v = first; v < last; v++) fill(x, v);
    };
    constexpr int64_t together = Inputs<Products>::VECTORS_AT_ONCE;
    if (are_many)
      team.run((count + together - 1) / together, [&](int64_t n) { fill_some(n * together); });
    return [=] {
      if (!are_many) fill_some(0);
      return x;
    };
  }

  // The normalized residual stream, from token `first` on.
  auto normed(const regard_norm &norm, Team &team, Input *own, float *memory,
              int64_t first = 0) const {
    const int64_t width = shared_.width;
    const Number *stream = shared_.stream + first * width;
    return inputs(team, gpt_.batch - first, width, own, [=](const Inputs<Products> &x, int64_t v) {
      normalize(
          Element(), norm, stream + v * width, width, memory,
          [&](int64_t i, int64_t count, floats lanes) { x.set(v, i, first_lanes(lanes, count)); });
      for (int64_t i = padded(width); i < x.width; i += LANES) x.set(v, i, floats{});
      x.complete(v);
    });
  }

  // Vectors that a phase has computed, `stride` apart, times the factors of their channels if there
  // are any.
  auto computed(const Number *from, int64_t width, int64_t stride, const float *factors, Team &team,
                Input *own) const {
    return inputs(team, gpt_.batch, width, own, [=](const Inputs<Products> &x, int64_t v) {
      x.set_all(v, width, [=](int64_t i, int64_t left) {
        const floats number = widen_part(Element(), from + v * stride + i, left);
        if (!factors) return number;
        return rounded(Element(), number * widen_part(Float32(), factors + i, left));
      });
    });
  }

  // A phase: the rows of a map times inputs that are made, then finish(first, last).
  template <class Make, class Finish>
  static void multiply(Team &team, const RowTasks<Products> &tasks, const Map &map, Number *result,
                       Make make, Finish finish) {
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
    multiply(team, RowTasks<Products>(width, gpt_.threads), map, shared_.added, make,
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
  void expand(const regard_layer &layer, Team &team, Input *own, float *norm) const {
    const int64_t hidden = gpt_.hidden, width = shared_.hidden_width;
    Number *to = shared_.hidden;
    const Map all(layer.expand, shared_.width, width);
    const auto make = normed(layer.mlp_norm, team, own, norm);
    Inputs<Products> x = {nullptr, 0, 0};
    const RowTasks<Products> tasks(hidden, gpt_.threads);
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
    const int64_t width = shared_.width, threads = gpt_.threads;
    Input *own = (Input *)memory;
    float *rest = (float *)((char *)memory + own_inputs_size());
    for (int64_t i = 0; i < gpt_.layers; i++) {
      const regard_layer &layer = gpt_.layer[i];
      if (layer.stream) keep_stream(layer, team);
      multiply(team, RowTasks<Products>(shared_.qkv_width, threads),
               Map(layer.qkv, width, shared_.qkv_width), shared_.qkv,
               normed(layer.attention_norm, team, own, rest), [](int64_t, int64_t) {});
      attend<Element>(gpt_, layer, bounds_of(i), partials_, shared_.qkv, shared_.qkv_width,
                      shared_.context, team, rest);
      const int64_t context = shared_.context_width;
      add_product(team, Map(layer.projection, context, width), layer.attention_output_norm, rest,
                  computed(shared_.context, context, context, layer.kept, team, own));
      expand(layer, team, own, rest);
      add_product(team, Map(layer.contract, gpt_.hidden, width), layer.mlp_output_norm, rest,
                  computed(shared_.hidden, gpt_.hidden, shared_.hidden_width, nullptr, team, own));
    }
    if (gpt_.skipped == gpt_.batch) return;
    multiply(team, RowTasks<Products>(gpt_.vocabulary, threads),
             Map(gpt_.unembedding, width, gpt_.vocabulary), (Number *)gpt_.result,
             normed(gpt_.norm, team, own, rest, gpt_.skipped),
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
