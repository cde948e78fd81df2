#include "gpt.h"

#include <algorithm>
#include <random>
#include <vector>

#include "numbers.h"

namespace driver {
namespace {

using Bytes = std::vector<char>;

// A kind of blocks: how many numbers and bytes one has, where its float16 are, −1 for none, and
// what they are multiplied by at most.
struct Kind {
  int64_t number, numbers, bytes, first, second;
  double largest;
};
constexpr Kind KINDS[] = {
    {REGARD_GGUF_Q4_0, 32, 18, 0, -1, 8},
    {REGARD_GGUF_Q4_1, 32, 20, 0, 2, 15},
    {REGARD_GGUF_Q8_0, 32, 34, 0, -1, 128},
    {REGARD_GGUF_Q4_K, 256, 144, 0, 2, 63 * 15},
    {REGARD_GGUF_Q6_K, 256, 210, 208, -1, 128 * 32},
};

struct GPT {
  uint64_t seed;
  std::mt19937_64 random;
  regard_gpt gpt = {};
  std::vector<Bytes> memory;
  std::vector<float> cosines, sines;
  std::vector<int64_t> ids, positions, padding;
  std::vector<regard_layer> layers;
  int64_t room = 0;
  bool rotates = false, padded = false, int8 = false, blocks = false;

  explicit GPT(uint64_t number) : seed(number), random(number) {
    gpt.dtype = below(3), gpt.batch = 1 + below(number % 8 ? 9 : 20), gpt.layers = 1 + below(2);
    gpt.groups = 1 + below(3), gpt.heads = gpt.groups * (1 + below(4)), gpt.dim = 2 + 2 * below(20);
    gpt.hidden = 1 + below(150), gpt.vocabulary = 1 + below(200), gpt.mlp = below(3);
    gpt.factor = 1 + below(2), gpt.scale = 1 / std::sqrt(double(gpt.dim));
    gpt.softcap = below(2), gpt.logit_softcap = below(2);
    room = 1 + below(number % 5 ? 40 : 1200), gpt.width = 1 + below(120);
    rotates = below(2), padded = below(2), blocks = below(3) == 0;
    if (blocks) {  // their rows have multiples of 32 or of 256 numbers
      gpt.dtype = REGARD_FLOAT32, gpt.width = 256, gpt.hidden = 32 * (1 + below(20));
      gpt.groups = int64_t(1) << below(4), gpt.heads = 8, gpt.dim = 32;
    }
    const int64_t width = gpt.width, context_width = gpt.heads * gpt.dim;
    const int64_t rows = context_width + 2 * gpt.groups * gpt.dim;
    const bool norms = below(2);
    int8 = !blocks && below(2);
    for (int64_t i = 0; i < gpt.layers; i++) {
      regard_layer layer = {};
      layer.attention_norm = norm(width), layer.mlp_norm = norm(width);
      if (norms) layer.query_norm = norm(gpt.dim), layer.key_norm = norm(gpt.dim);
      if (below(2)) layer.attention_output_norm = norm(width), layer.mlp_output_norm = norm(width);
      layer.qkv = linear(rows, width), layer.projection = linear(width, context_width);
      layer.expand = linear(gpt.mlp == REGARD_GELU ? gpt.hidden : 2 * gpt.hidden, width);
      layer.contract = linear(width, gpt.hidden);
      layer.keys = 1 + below(room), layer.evicted = below(3), layer.window = 1 + below(2 * room);
      layers.push_back(layer);
    }
    gpt.norm = norm(width);
    gpt.tokens = linear(gpt.vocabulary, width), gpt.unembedding = linear(gpt.vocabulary, width);
    if (!rotates) gpt.learned = numbers(7 * width);
    for (int64_t b = 0; b < gpt.batch; b++) {
      ids.push_back(below(gpt.vocabulary)), positions.push_back(below(7)),
          padding.push_back(below(room));
      for (int64_t i = 0; i < gpt.dim / 2; i++)
        cosines.push_back(float(uniform())), sines.push_back(float(uniform()));
    }
  }

  int64_t below(int64_t limit) { return int64_t(random() % uint64_t(limit)); }
  double uniform() { return double(below(2001)) / 1000 - 1; }

  void *numbers(int64_t count) { return numbers(count, gpt.dtype); }
  void *numbers(int64_t count, int64_t dtype) {
    const int64_t bytes = bytes_of(dtype);
    Bytes made(size_t(count * bytes));
    for (int64_t i = 0; i < count; i++) encode(dtype, made.data() + i * bytes, uniform() / 4);
    memory.push_back(std::move(made));
    return memory.back().data();
  }
  regard_linear linear(int64_t outputs, int64_t inputs) {
    const void *bias = below(2) ? numbers(outputs) : nullptr;
    if (blocks) return {nullptr, bias, nullptr, parts(outputs, inputs)};
    if (!int8) return {numbers(outputs * inputs), bias, nullptr, nullptr};
    Bytes weight(size_t(outputs * inputs)), scale(size_t(outputs) * sizeof(float));
    for (char &number : weight) number = char(below(255) - 127);
    for (int64_t i = 0; i < outputs; i++) {
      const float one = float(uniform()) / 512;
      std::memcpy(scale.data() + size_t(i) * sizeof one, &one, sizeof one);
    }
    memory.push_back(std::move(weight)), memory.push_back(std::move(scale));
    return {memory[memory.size() - 2].data(), bias, (const float *)memory.back().data(), nullptr};
  }
  // The rows of a matrix, in up to three kinds.
  const regard_blocks *parts(int64_t outputs, int64_t inputs) {
    std::vector<regard_blocks> list;
    for (int64_t left = outputs; left > 0; left -= list.back().rows) {
      const int64_t rows = list.size() == 2 ? left : 1 + below(left);
      uint64_t kind = uint64_t(below(6));
      if (kind < 5 && inputs % KINDS[kind].numbers) kind -= 3;  // of smaller blocks
      list.push_back(kind < 5 ? in_blocks(KINDS[kind], rows, inputs) : in_numbers(rows, inputs));
    }
    Bytes table(list.size() * sizeof list[0]);
    std::memcpy(table.data(), list.data(), table.size());
    memory.push_back(std::move(table));
    return (const regard_blocks *)memory.back().data();
  }
  regard_blocks in_numbers(int64_t rows, int64_t inputs) {
    constexpr int64_t kinds[] = {REGARD_GGUF_F32, REGARD_GGUF_BF16, REGARD_GGUF_F16};
    const int64_t dtype = below(3);  // REGARD_FLOAT32 and so on
    return {numbers(rows * inputs, dtype), kinds[dtype], rows};
  }
  regard_blocks in_blocks(const Kind &kind, int64_t rows, int64_t inputs) {
    Bytes data(size_t(rows * (inputs / kind.numbers) * kind.bytes));
    for (char &byte : data) byte = char(below(256));
    for (char *block = data.data(); block < data.data() + data.size(); block += kind.bytes) {
      encode(REGARD_FLOAT16, block + kind.first, uniform() / 4 / kind.largest);
      if (kind.second >= 0)
        encode(REGARD_FLOAT16, block + kind.second, uniform() * 4 / kind.largest);
    }
    memory.push_back(std::move(data));
    return {memory.back().data(), kind.number, rows};
  }
  regard_norm norm(int64_t width) {
    return {numbers(width), below(2) ? numbers(width) : nullptr, below(2), 1e-5};
  }

  // Of sequences [first, first + count), whose caches are the same at every call, each one's logits
  // and the scores of its layers.
  Bytes step(int64_t threads, int64_t first, int64_t count) const {
    const int64_t bytes = bytes_of(gpt.dtype), row = gpt.dim, head = room * row;
    const int64_t batch = gpt.groups * head, size = gpt.batch * batch;
    std::vector<Bytes> caches;
    std::vector<regard_layer> list = layers;
    std::mt19937_64 own(seed);
    for (regard_layer &layer : list)
      for (regard_tensor *to : {&layer.key, &layer.value}) {
        Bytes cache(size_t(size * bytes));
        for (int64_t i = 0; i < size; i++)
          encode(gpt.dtype, cache.data() + i * bytes, double(own() % 2001) / 1000 - 1);
        caches.push_back(std::move(cache));
        *to = {caches.back().data() + first * batch * bytes, batch, head, row};
      }
    std::vector<std::vector<float>> scores;
    for (regard_layer &layer : list) {
      scores.emplace_back(size_t(count * gpt.heads * room));
      layer.scores = scores.back().data(), layer.columns = room;
    }
    Bytes logits(size_t(count * gpt.vocabulary * bytes));
    regard_gpt part = gpt;
    part.threads = threads, part.batch = count, part.layer = list.data();
    part.ids = ids.data() + first, part.positions = positions.data() + first;
    if (padded) part.padding = padding.data() + first;
    if (rotates) {
      part.cosines = cosines.data() + first * (gpt.dim / 2);
      part.sines = sines.data() + first * (gpt.dim / 2);
    }
    part.result = logits.data();
    if (regard_gpt_step(&part) != REGARD_DONE) return {};
    Bytes results;
    const auto append = [&](const void *data, int64_t size) {
      results.insert(results.end(), (const char *)data, (const char *)data + size);
    };
    for (int64_t b = 0; b < count; b++) {
      append(logits.data() + b * size_of_logits(), size_of_logits());
      for (const regard_layer &layer : list)
        append(layer.scores + b * gpt.heads * room, size_of_scores());
    }
    return results;
  }
  int64_t size_of_logits() const { return gpt.vocabulary * bytes_of(gpt.dtype); }
  int64_t size_of_scores() const { return gpt.heads * room * int64_t(sizeof(float)); }
};

}  // namespace

std::string wrong_in_gpt_step(uint64_t seed) {
  const GPT model(seed);
  const regard_gpt &gpt = model.gpt;
  const std::string name = "step of GPT " + std::to_string(seed) + ": ";
  const Bytes all = model.step(1, 0, gpt.batch);
  const int64_t bytes = bytes_of(gpt.dtype), logits = model.size_of_logits();
  const int64_t size = logits + gpt.layers * model.size_of_scores();
  for (int64_t b = 0; b < gpt.batch; b++)
    for (int64_t i = 0; i < logits; i += bytes)
      if (!std::isfinite(decode(gpt.dtype, all.data() + b * size + i))) return name + "no number";
  if (model.step(3, 0, gpt.batch) != all) return name + "not the same bits with three threads";
  for (int64_t b = 0; b < gpt.batch; b++) {
    const Bytes alone = model.step(2, b, 1);
    if (!std::equal(alone.begin(), alone.end(), all.begin() + b * size))
      return name + "not the same bits alone";
  }
  return "";
}

}  // namespace driver
