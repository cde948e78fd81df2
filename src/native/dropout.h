// Dropout with a counter-based generator.
//
// Whether a weight is dropped depends only on the seed and its position, so the backward pass and
// the written-out computation drop the same weights.
//
// Philox4x32-10 (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405, section 3.3). The
// counter is (key / 4, query, head, 0), with heads numbered b·H + h; its four words belong to four
// adjacent keys.
#pragma once

#include "arithmetic.h"
#include "scores.h"

namespace regard::REGARD_SET {

using ulongs = uint64_t __attribute__((vector_size(LANES * 4)));

// Products of the even lanes. GCC emulates multiplication of vectors of 64-bit numbers, for which
// most sets have no instruction, in many steps.
REGARD_INLINE ulongs multiply_even(uints x, uint32_t by) {
#if defined(__AVX512F__)
  return (ulongs)_mm512_mul_epu32((__m512i)x, _mm512_set1_epi32(int32_t(by)));
#elif defined(__AVX2__)
  return (ulongs)_mm256_mul_epu32((__m256i)x, _mm256_set1_epi32(int32_t(by)));
#elif defined(__SSE2__)
  return (ulongs)_mm_mul_epu32((__m128i)x, _mm_set1_epi32(int32_t(by)));
#elif defined(__aarch64__)
  return (ulongs)vmull_u32(vmovn_u64((uint64x2_t)x), vdup_n_u32(by));
#else
  return ((ulongs)x & 0xffffffff) * uint64_t(by);
#endif
}

// The even lanes of a and the odd lanes of b.
template <size_t... i>
REGARD_INLINE uints alternate(ulongs a, ulongs b, std::index_sequence<i...>) {
  return __builtin_shufflevector((uints)a, (uints)b, int(i % 2 ? LANES + i : i)...);
}

REGARD_INLINE void multiply(uints x, uint32_t by, uints &high, uints &low) {
  const ulongs even = multiply_even(x, by), odd = multiply_even((uints)((ulongs)x >> 32), by);
  high = alternate(even >> 32, odd, all_lanes());
  low = alternate(even, odd << 32, all_lanes());
}

REGARD_INLINE void philox(uints *counter, uint64_t seed) {
  uint32_t one = uint32_t(seed), other = uint32_t(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uints high0, low0, high2, low2;
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

// Calls `at(key, uints)` for each key of a segment and vector j, with a random word a lane.
template <class ReadoutState>
REGARD_INLINE void for_each_word(const regard_problem &p, const QueryBlock &queries,
                                 const Segment &segment, int j, ReadoutState at) {
  alignas(64) uint32_t query[LANES] = {}, head[LANES] = {};
  for (int i = 0; i < LANES && j * LANES + i < queries.count; i++) {
    const int r = j * LANES + i;
    query[i] = uint32_t(queries.query[r]);
    head[i] = uint32_t(queries.batch * p.heads + queries.head[r]);
  }
  const int32_t end = segment.key + segment.keys;
  for (int32_t four = segment.key / 4; four * 4 < end; four++) {
    uints counter[4] = {(uints)broadcast(four), (uints)load((int32_t *)query),
                        (uints)load((int32_t *)head), uints{}};
    philox(counter, p.seed);
    for (int i = 0; i < 4; i++) {
      const int32_t key = 4 * four + i;
      if (key >= segment.key && key < end) at(key, counter[i]);
    }
  }
}

// A weight is kept if its word is this or more; above the largest word if none is kept.
REGARD_INLINE uint64_t keep_threshold(double dropout) { return uint64_t(ceil(dropout * 0x1p32)); }

// Whether each weight of a vector is kept.
struct KeepMask {
  uints threshold;
  ints any_kept;

  explicit KeepMask(double dropout) {
    const uint64_t bound = keep_threshold(dropout);
    threshold = uints{} + uint32_t(bound);
    any_kept = broadcast(bound >> 32 ? 0 : -1);
  }
  ints operator()(uints word) const { return (ints)(word >= threshold) & any_kept; }
};

// Sets the dropped weights of a segment to 0.
template <class Arithmetic>
static void apply_dropout(const regard_problem &p, const QueryBlock &queries,
                          const Segment &segment, float *weights) {
  const KeepMask keep_mask(p.dropout);
  for (int j = segment.first; j < segment.last; j++)
    for_each_word(p, queries, segment, j, [&](int32_t key, uints word) {
      Arithmetic::keep(weights + j * LANES, key - segment.key, keep_mask(word));
    });
}

}  // namespace regard::REGARD_SET
