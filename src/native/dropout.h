// Dropout by a counter-based generator: which weights fall is a function of the seed and of where
// they stand, so that the backward pass and the written-out computation drop the same.
//
// Philox4x32-10 (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405, section 3.3). The
// counter is (key / 4, query, head, 0), heads numbered b·H + h; its four words belong to four keys.
#pragma once

#include "arithmetic.h"
#include "scores.h"

namespace regard::REGARD_SET {

using wides = uint64_t __attribute__((vector_size(LANES * 8)));

REGARD_INLINE void multiply(words x, uint32_t by, words &high, words &low) {
  const wides product = __builtin_convertvector(x, wides) * uint64_t(by);
  high = __builtin_convertvector(product >> 32, words);
  low = __builtin_convertvector(product, words);
}

REGARD_INLINE void philox(words *counter, uint64_t seed) {
  uint32_t one = uint32_t(seed), other = uint32_t(seed >> 32);
  for (int round = 0; round < 10; round++) {
    words high0, low0, high2, low2;
    multiply(counter[0], 0xD2511F53, high0, low0);
    multiply(counter[2], 0xCD9E8D57, high2, low2);
    counter[0] = high2 ^ counter[1] ^ one;
    counter[2] = high0 ^ counter[3] ^ other;
    counter[1] = low2;
    counter[3] = low0;
    one += 0x9E3779B9;
    other += 0xBB67AE85;
  }
}

// Calls `at(key, words)` for each key of a run and vector j, with a random word a lane.
template <class At>
REGARD_INLINE void for_each_word(const regard_problem &p, const Task &task, const Run &run, int j,
                                 At at) {
  alignas(64) uint32_t query[LANES] = {}, head[LANES] = {};
  for (int i = 0; i < LANES && j * LANES + i < task.count; i++) {
    const int r = j * LANES + i;
    query[i] = uint32_t(task.query[r]);
    head[i] = uint32_t(task.batch * p.heads + task.head[r]);
  }
  const int32_t end = run.key + run.keys;
  for (int32_t four = run.key / 4; four * 4 < end; four++) {
    words counter[4] = {(words)all(four), (words)load((int32_t *)query),
                        (words)load((int32_t *)head), words{}};
    philox(counter, p.seed);
    for (int i = 0; i < 4; i++) {
      const int32_t key = 4 * four + i;
      if (key >= run.key && key < end) at(key, counter[i]);
    }
  }
}

// A weight survives whose word is this or more; above the largest word if none does.
REGARD_INLINE uint64_t least_surviving(double dropout) { return uint64_t(ceil(dropout * 0x1p32)); }

// The same for a vector of words.
struct Survival {
  words threshold;
  ints some_survive;

  explicit Survival(double dropout) {
    const uint64_t bound = least_surviving(dropout);
    threshold = words{} + uint32_t(bound);
    some_survive = all(bound >> 32 ? 0 : -1);
  }
  ints operator()(words word) const { return (ints)(word >= threshold) & some_survive; }
};

// Sets the weights of a run that fall to 0.
template <class Arithmetic>
static void drop(const regard_problem &p, const Task &task, const Run &run, float *weights) {
  const Survival survives(p.dropout);
  for (int j = run.first; j < run.last; j++)
    for_each_word(p, task, run, j, [&](int32_t key, words word) {
      Arithmetic::keep(weights + j * LANES, key - run.key, survives(word));
    });
}

}  // namespace regard::REGARD_SET
