// The blocks of a GGUF: 32 or 256 numbers of a row, each scale · q + offset with a whole number q.
//
// They are read in runs of 32 numbers that share scale and offset. llama.cpp defines the formats,
// in ggml-common.h and ggml-quants.c.
#pragma once

#include "abi.h"
#include "element.h"

namespace regard::REGARD_SET {

constexpr int RUN = 32;

// Whole numbers of 16 bits and the sums of their products in pairs, in vectors of at most 256 bits:
// with wider ones the time would be that of reading the blocks, too.
constexpr int SHORTS = LANES >= 8 ? 16 : 8, SHORT_SUMS = SHORTS / 2, PARTS = RUN / SHORTS;
using shorts = int16_t __attribute__((vector_size(2 * SHORTS)));
using sums = int32_t __attribute__((vector_size(4 * SHORT_SUMS)));
using totals = float __attribute__((vector_size(4 * SHORT_SUMS)));
using fours = float __attribute__((vector_size(16)));

template <class Vector, class Number>
REGARD_INLINE Vector load_as(const Number *from) {
  Vector x;
  memcpy(&x, from, sizeof x);
  return x;
}

// Adds a[2i]·b[2i] + a[2i + 1]·b[2i + 1] to lane i.
REGARD_INLINE sums add_products(shorts a, shorts b, sums to) {
#if defined(__AVX2__)
  return to + (sums)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return to + (sums)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
  const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
  return to + (sums)vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b));
#else
  REGARD_UNROLLED_FOR (int i = 0; i < SHORT_SUMS; i++)
    to[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
  return to;
#endif
}

// SHORTS bytes, uint8_t or int8_t.
template <class Byte>
REGARD_INLINE shorts widen_bytes(const Byte *from) {
#if defined(__AVX2__)
  const __m128i bytes = load_as<__m128i>(from);
  return (shorts)(std::is_signed_v<Byte> ? _mm256_cvtepi8_epi16(bytes)
                                         : _mm256_cvtepu8_epi16(bytes));
#else
  typedef Byte bytes __attribute__((vector_size(SHORTS)));
  return __builtin_convertvector(load_as<bytes>(from), shorts);
#endif
}

// Two numbers of float16, then zeros.
REGARD_INLINE fours widen_pair(const uint8_t *from) {
#if defined(__F16C__)
  return (fours)_mm_cvtph_ps(_mm_cvtsi32_si128(load_as<int32_t>(from)));
#else
  static_assert(LANES == 4);
  uint16_t numbers[LANES] = {};
  memcpy(numbers, from, 4);
  return (fours)widen(Float16(), numbers);
#endif
}

// Each kind has the BYTES of a block and its RUNS. numbers(j, q) sets the whole numbers of run j;
// factors(to) sets a pair of scale and offset for each run, or widen_pair makes that of the only
// one.
template <class Byte, int START, int16_t LESS, bool OFFSET>
struct SmallBlock {
  static constexpr bool HAS_OFFSET = OFFSET, IN_HALVES = std::is_same_v<Byte, uint8_t>;
  static constexpr int RUNS = 1, BYTES = START + (IN_HALVES ? RUN / 2 : RUN);
  const uint8_t *data;

  __attribute__((always_inline)) void numbers(int, shorts *q) const {
    const Byte *from = (const Byte *)data + START;
    if constexpr (IN_HALVES) {  // of bytes: the lower ones are the first 16 numbers
      REGARD_UNROLLED_FOR (int k = 0; k < PARTS / 2; k++) {
        const shorts both = widen_bytes(from + k * SHORTS);
        q[k] = (both & 15) - LESS, q[k + PARTS / 2] = (both >> 4) - LESS;
      }
    } else {
      REGARD_UNROLLED_FOR (int k = 0; k < PARTS; k++) q[k] = widen_bytes(from + k * SHORTS);
    }
  }
};
using BlockQ4_0 = SmallBlock<uint8_t, 2, 8, false>;
using BlockQ4_1 = SmallBlock<uint8_t, 4, 0, true>;
using BlockQ8_0 = SmallBlock<int8_t, 2, 0, false>;

// Two float16, d and e; 12 bytes with 8 scales s and 8 offsets m of 6 bits; the halves of 128
// bytes. Run j is d·s[j]·q − e·m[j].
struct BlockQ4_K {
  static constexpr bool HAS_OFFSET = true;
  static constexpr int RUNS = 8, BYTES = 4 + 12 + 128;
  const uint8_t *data;

  __attribute__((always_inline)) void factors(float *to) const {
    uint32_t words[3];  // s[0 … 3], m[0 … 3] and the lower halves of the others, whose upper bits
    memcpy(words, data + 4, sizeof words);  // are in the upper two of the first two words
    const auto others = [&](uint32_t lower, uint32_t upper) {
      return (lower & 0x0f0f0f0f) | (upper >> 6 & 0x03030303) << 4;
    };
    const uint32_t parts[4] = {words[0] & 0x3f3f3f3f, others(words[2], words[0]),
                               words[1] & 0x3f3f3f3f, others(words[2] >> 4, words[1])};
    const auto bytes = load_as<int8_t __attribute__((vector_size(16)))>(parts);
    const auto pairs =
        __builtin_shufflevector(bytes, bytes, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    const fours both = widen_pair(data);
    floats factor;
    REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) factor[i] = i % 2 ? -both[1] : both[0];
    int8_t list[16];
    memcpy(list, &pairs, sizeof list);
    REGARD_UNROLLED_FOR (int i = 0; i < 16; i += LANES)
      store(to + i, widen(Int8(), list + i) * factor);
  }
  __attribute__((always_inline)) void numbers(int j, shorts *q) const {
    REGARD_UNROLLED_FOR (int k = 0; k < PARTS; k++) {
      const shorts both = widen_bytes(data + 16 + j / 2 * RUN + k * SHORTS);
      q[k] = j % 2 ? both >> 4 : both & 15;
    }
  }
};

// The lower 4 bits of q + 32 in the halves of 128 bytes, the upper 2 in 64 bytes; a scale of 8
// bits, with a sign, for each 16 numbers, which here is a factor of them; and d, in float16.
struct BlockQ6_K {
  static constexpr bool HAS_OFFSET = false;
  static constexpr int RUNS = 8, BYTES = 128 + 64 + 16 + 2;
  const uint8_t *data;

  __attribute__((always_inline)) void factors(float *to) const {
    const floats factor = broadcast(widen_pair(data + BYTES - 4)[1]);
    REGARD_UNROLLED_FOR (int i = 0; i < 16; i += LANES) store(to + i, factor);
  }
  __attribute__((always_inline)) void numbers(int j, shorts *q) const {
    const int half = j / 4, quarter = j % 4;
    const uint8_t *lower = data + 64 * half + quarter % 2 * RUN, *upper = data + 128 + RUN * half;
    const int8_t *scale = (const int8_t *)data + 192 + 2 * j;
    REGARD_UNROLLED_FOR (int k = 0; k < PARTS; k++) {
      const shorts both = widen_bytes(lower + k * SHORTS);
      const shorts low = quarter < 2 ? both & 15 : both >> 4;
      const shorts high = (widen_bytes(upper + k * SHORTS) >> 2 * quarter & 3) << 4;
      q[k] = ((low | high) - 32) * int16_t(scale[k * SHORTS / 16]);
    }
  }
};

// Calls `call` with a block of a kind, or with the dtype of numbers without blocks.
template <class Call>
REGARD_INLINE void with_format(int64_t kind, Call call) {
  switch (kind) {
    case REGARD_GGUF_Q4_0: return call(BlockQ4_0());
    case REGARD_GGUF_Q4_1: return call(BlockQ4_1());
    case REGARD_GGUF_Q8_0: return call(BlockQ8_0());
    case REGARD_GGUF_Q4_K: return call(BlockQ4_K());
    case REGARD_GGUF_Q6_K: return call(BlockQ6_K());
    case REGARD_GGUF_F16: return call(Float16());
    case REGARD_GGUF_BF16: return call(BFloat16());
    default: return call(Float32());
  }
}

template <class Kind>
concept IsBlock = requires { Kind::RUNS; };

template <class Kind>
constexpr int64_t bytes_of_row(int64_t inputs) {
  if constexpr (IsBlock<Kind>)
    return inputs / (RUN * Kind::RUNS) * Kind::BYTES;
  else
    return inputs * int64_t(sizeof(typename Kind::type));
}

}  // namespace regard::REGARD_SET
