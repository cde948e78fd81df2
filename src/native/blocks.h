// The blocks of a GGUF: 32 or 256 numbers of a row, each scale · q + offset with a whole number q.
//
// LANES rows are read side by side, lane r of a vector being row r, in runs of 32 numbers. A row
// has a scale for each run or half of it, and maybe an offset for each run. llama.cpp defines the
// formats, in ggml-common.h and ggml-quants.c.
#pragma once

#include "abi.h"
#include "element.h"

namespace regard::REGARD_SET {

constexpr int RUN = 32, RUNS_OF_PANEL = 8, PAIRS_OF_RUN = RUN / 2;

using shorts = int16_t __attribute__((vector_size(4 * LANES)));
using unsigned_shorts = uint16_t __attribute__((vector_size(4 * LANES)));

// Some runs of LANES rows. A lane of `numbers` is a pair of numbers of a row; of each four numbers
// of a run, the first and the third are one pair, the others the next.
struct Panel {
  ints numbers[RUNS_OF_PANEL][PAIRS_OF_RUN];
  floats scales[RUNS_OF_PANEL][2];  // both are set only if halves of runs differ
  floats offsets[RUNS_OF_PANEL];    // if there are any
};

// Where LANES rows are in memory.
struct Rows {
  const uint8_t *data;
  int64_t stride;

  Rows from(int64_t byte) const { return {data + byte, stride}; }
  const uint8_t *row(int r) const { return data + r * stride; }
};

// 16 bytes of each row, as four vectors of 4 bytes of each.
REGARD_INLINE void load_words(Rows rows, uints *words) {
  floats parts[4];  // quarter q of part i is row 4·q + i
  REGARD_UNROLLED_FOR (int i = 0; i < 4; i++) {
#if defined(__AVX512F__)
    __m512i part = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i_u *)rows.row(i)));
    part = _mm512_inserti32x4(part, _mm_loadu_si128((const __m128i_u *)rows.row(4 + i)), 1);
    part = _mm512_inserti32x4(part, _mm_loadu_si128((const __m128i_u *)rows.row(8 + i)), 2);
    part = _mm512_inserti32x4(part, _mm_loadu_si128((const __m128i_u *)rows.row(12 + i)), 3);
    parts[i] = (floats)part;
#elif defined(__AVX2__)
    const __m256i part = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i_u *)rows.row(i)));
    parts[i] = (floats)_mm256_inserti128_si256(
        part, _mm_loadu_si128((const __m128i_u *)rows.row(4 + i)), 1);
#else
    memcpy(&parts[i], rows.row(i), sizeof parts[i]);
#endif
  }
  floats pairs[4];
  REGARD_UNROLLED_FOR (int i = 0; i < 4; i += 2) {
    pairs[i] = interleave_in_quarters<1, 0>(parts[i], parts[i + 1], all_lanes());
    pairs[i + 1] = interleave_in_quarters<1, 1>(parts[i], parts[i + 1], all_lanes());
  }
  REGARD_UNROLLED_FOR (int i = 0; i < 2; i++) {
    words[2 * i] = (uints)interleave_in_quarters<2, 0>(pairs[i], pairs[i + 2], all_lanes());
    words[2 * i + 1] = (uints)interleave_in_quarters<2, 1>(pairs[i], pairs[i + 2], all_lanes());
  }
}

// Four bytes of each row.
REGARD_INLINE uints load_word(Rows rows) {
#if defined(__AVX512F__)
  const __m512i places = (__m512i)(lane_numbers() * int32_t(rows.stride));
  return (uints)_mm512_i32gather_epi32(places, rows.data, 1);
#elif defined(__AVX2__)
  const __m256i places = (__m256i)(lane_numbers() * int32_t(rows.stride));
  return (uints)_mm256_i32gather_epi32((const int *)rows.data, places, 1);
#else
  uints word;
  REGARD_UNROLLED_FOR (int r = 0; r < LANES; r++) {
    uint32_t of_row;
    memcpy(&of_row, rows.row(r), sizeof of_row);
    word[r] = of_row;
  }
  return word;
#endif
}

// The number of float16 in the lower half of each word.
REGARD_INLINE floats widen_lower(uints words) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)words));
#else
  uint16_t list[LANES];
  store(list, __builtin_convertvector(words & 0xffff, halves));
  return widen(Float16(), list);
#endif
}

// The two pairs of four bytes that are numbers, without a sign or with one.
REGARD_INLINE void split(uints bytes, ints *pairs) {
  pairs[0] = (ints)(bytes & 0x00ff00ff);
  pairs[1] = (ints)((unsigned_shorts)bytes >> 8);
}
REGARD_INLINE void split_signed(uints bytes, ints *pairs) {
  pairs[0] = (ints)((shorts)(bytes << 8) >> 8);
  pairs[1] = (ints)((shorts)bytes >> 8);
}

// Each kind has the BYTES of a block and its RUNS, and whether it HAS_OFFSETs, or scales of HALVES
// of runs. unpack(rows, runs, panel) sets runs of a panel, a multiple of RUNS.

// Blocks of a run: a scale, maybe an offset, and then the numbers.
template <int START, int SIZE, bool OFFSET>
struct SmallBlock {
  static constexpr bool HAS_OFFSET = OFFSET, HALVES = false;
  static constexpr int RUNS = 1, BYTES = START + SIZE;

  template <class Set>
  REGARD_INLINE void unpack_each(Rows rows, int runs, Panel &panel, Set set_numbers) {
    for (int j = 0; j < runs; j++) {
      uints words[SIZE / 4];
      REGARD_UNROLLED_FOR (int i = 0; i < SIZE; i += 16)
        load_words(rows.from(j * BYTES + START + i), words + i / 4);
      REGARD_UNROLLED_FOR (int i = 0; i < SIZE / 4; i++)
        set_numbers(words[i], panel.numbers[j] + 2 * i);
    }
    for (int j = 0; j < runs; j++) {
      const uints word = load_word(rows.from(j * BYTES));
      panel.scales[j][0] = widen_lower(word);
      if constexpr (OFFSET) panel.offsets[j] = widen_lower(word >> 16);
    }
  }
};

// Numbers of 4 bits in the halves of bytes: the lower ones are the first 16.
template <int START, int16_t LESS>
struct HalfByteBlock : SmallBlock<START, RUN / 2, LESS == 0> {
  REGARD_INLINE void unpack(Rows rows, int runs, Panel &panel) {
    SmallBlock<START, RUN / 2, LESS == 0>::unpack_each(
        rows, runs, panel, [](uints word, ints *pairs) REGARD_INLINE_LAMBDA {
          split(word & 0x0f0f0f0f, pairs);
          split(word >> 4 & 0x0f0f0f0f, pairs + RUN / 4);
          if constexpr (LESS != 0)
            REGARD_UNROLLED_FOR (int i = 0; i < 2; i++) {
              pairs[i] = (ints)((shorts)pairs[i] - LESS);
              pairs[i + RUN / 4] = (ints)((shorts)pairs[i + RUN / 4] - LESS);
            }
        });
  }
};
using BlockQ4_0 = HalfByteBlock<2, 8>;
using BlockQ4_1 = HalfByteBlock<4, 0>;

struct BlockQ8_0 : SmallBlock<2, RUN, false> {
  REGARD_INLINE void unpack(Rows rows, int runs, Panel &panel) {
    unpack_each(rows, runs, panel,
                [](uints word, ints *pairs) REGARD_INLINE_LAMBDA { split_signed(word, pairs); });
  }
};

// Two float16, d and e; 12 bytes with 8 scales s and 8 offsets m of 6 bits; the halves of 128
// bytes. Run j is d·s[j]·q − e·m[j].
struct BlockQ4_K {
  static constexpr bool HAS_OFFSET = true, HALVES = false;
  static constexpr int RUNS = 8, BYTES = 4 + 12 + 128;

  REGARD_INLINE void unpack(Rows rows, int, Panel &panel) {
    for (int i = 0; i < RUNS; i += 2) {
      uints words[RUN / 4];
      load_words(rows.from(16 + i / 2 * RUN), words);
      load_words(rows.from(16 + i / 2 * RUN + 16), words + 4);
      REGARD_UNROLLED_FOR (int w = 0; w < RUN / 4; w++) {
        split(words[w] & 0x0f0f0f0f, panel.numbers[i] + 2 * w);
        split(words[w] >> 4 & 0x0f0f0f0f, panel.numbers[i + 1] + 2 * w);
      }
    }
    uints words[4];  // d and e; s[0 … 3], m[0 … 3] and the lower halves of the others, whose upper
    load_words(rows, words);  // bits are in the upper two of words 1 and 2
    const auto others = [](uints lower, uints upper) REGARD_INLINE_LAMBDA {
      return (lower & 0x0f0f0f0f) | (upper >> 6 & 0x03030303) << 4;
    };
    const uints scales[2] = {words[1] & 0x3f3f3f3f, others(words[3], words[1])};
    const uints offsets[2] = {words[2] & 0x3f3f3f3f, others(words[3] >> 4, words[2])};
    const floats d = widen_lower(words[0]), e = -widen_lower(words[0] >> 16);
    REGARD_UNROLLED_FOR (int j = 0; j < RUNS; j++) {
      const auto byte = [&](uints word) REGARD_INLINE_LAMBDA {
        return __builtin_convertvector((ints)(word >> 8 * (j % 4) & 0xff), floats);
      };
      panel.scales[j][0] = d * byte(scales[j / 4]);
      panel.offsets[j] = e * byte(offsets[j / 4]);
    }
  }
};

// The lower 4 bits of q + 32 in the halves of 128 bytes, the upper 2 in 64 bytes; a scale of 8
// bits, with a sign, for each 16 numbers; and d, in float16, by which these are multiplied.
struct BlockQ6_K {
  static constexpr bool HAS_OFFSET = false, HALVES = true;
  static constexpr int RUNS = 8, BYTES = 128 + 64 + 16 + 2;

  REGARD_INLINE void unpack(Rows rows, int, Panel &panel) {
    for (int half = 0; half < 2; half++)
      for (int i = 0; i < RUN / 4; i += 4) {  // four words of each of four runs
        uints lower[2][4], upper[4];
        load_words(rows.from(64 * half + 4 * i), lower[0]);
        load_words(rows.from(64 * half + RUN + 4 * i), lower[1]);
        load_words(rows.from(128 + RUN * half + 4 * i), upper);
        REGARD_UNROLLED_FOR (int quarter = 0; quarter < 4; quarter++)
          REGARD_UNROLLED_FOR (int w = 0; w < 4; w++) {
            const uints low = lower[quarter % 2][w] >> quarter / 2 * 4 & 0x0f0f0f0f;
            ints *pairs = panel.numbers[4 * half + quarter] + 2 * (i + w);
            split(low | (upper[w] >> 2 * quarter & 0x03030303) << 4, pairs);
            REGARD_UNROLLED_FOR (int k = 0; k < 2; k++) pairs[k] = (ints)((shorts)pairs[k] - 32);
          }
      }
    uints words[4];
    load_words(rows.from(128 + 64), words);
    const floats d = widen_lower(load_word(rows.from(BYTES - 4)) >> 16);
    REGARD_UNROLLED_FOR (int i = 0; i < 2 * RUNS; i++) {
      const ints byte = (ints)(words[i / 4] << (24 - i % 4 * 8)) >> 24;
      panel.scales[i / 2][i % 2] = d * __builtin_convertvector(byte, floats);
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
