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

  struct Run {
    Panel &panel;
    int j;

    // Pair i, whose numbers are given times 2^shift.
    template <int shift = 0>
    __attribute__((always_inline)) void take(int i, uints pair) {
      panel.numbers[j][i] = (ints)((shorts)pair >> shift);
    }
    __attribute__((always_inline)) void scale(int half, floats x) { panel.scales[j][half] = x; }
    __attribute__((always_inline)) void offset(floats x) { panel.offsets[j] = x; }
  };
  __attribute__((always_inline)) Run run(int j) { return {*this, j}; }
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

// Numbers of 4 bits in the lower or the upper halves of bytes, as two pairs.
template <class Run>
REGARD_INLINE void take_lower(Run &run, int i, uints bytes) {
  run.template take<0>(i, bytes & 0x000f000f);
  run.template take<8>(i + 1, bytes & 0x0f000f00);
}
template <class Run>
REGARD_INLINE void take_upper(Run &run, int i, uints bytes) {
  run.template take<4>(i, bytes & 0x00f000f0);
  run.template take<0>(i + 1, (uints)((unsigned_shorts)bytes >> 12));
}

// Each kind has the BYTES of a block and its RUNS, and whether it HAS_OFFSETs, or scales of HALVES
// of runs. unpack(rows, runs, to) gives a number of runs, a multiple of RUNS, to a panel or to what
// multiplies them at once; it reads up to the next multiple of 16 bytes.

// Blocks of a run: a scale, maybe an offset, and then the numbers.
template <int START, int SIZE>
struct SmallBlock {
  static constexpr bool HALVES = false;
  static constexpr int RUNS = 1, BYTES = START + SIZE;

  // Calls take(run, i, word) with each four bytes of the numbers, and head(run, word) with those
  // before them.
  template <class To, class Take, class Head>
  REGARD_INLINE void unpack_each(Rows rows, int runs, To &to, Take take, Head head) {
    constexpr int all = RUNS_OF_PANEL * BYTES;
    uints words[all / 4];
    REGARD_UNROLLED_FOR (int j = 0; j < RUNS_OF_PANEL; j++) {
      if (j == runs) return;
      REGARD_UNROLLED_FOR (int i = 0; i < all; i += 16)
        if (i >= j * BYTES && i < (j + 1) * BYTES) load_words(rows.from(i), words + i / 4);
      const auto word = [&](int byte) REGARD_INLINE_LAMBDA {
        const uints first = words[byte / 4];
        return byte % 4 ? first >> 16 | words[byte / 4 + 1] << 16 : first;
      };
      auto run = to.run(j);
      REGARD_UNROLLED_FOR (int i = 0; i < SIZE / 4; i++)
        take(run, i, word(j * BYTES + START + 4 * i));
      head(run, word(j * BYTES));
    }
  }
};

// Numbers of 4 bits in the halves of bytes: the lower ones are the first 16.
template <int START, bool WITH_OFFSET>
struct HalfByteBlock : SmallBlock<START, RUN / 2> {
  static constexpr bool HAS_OFFSET = true;

  template <class To>
  REGARD_INLINE void unpack(Rows rows, int runs, To &to) {
    SmallBlock<START, RUN / 2>::unpack_each(
        rows, runs, to,
        [](auto &run, int i, uints word) REGARD_INLINE_LAMBDA {
          take_lower(run, 2 * i, word);
          take_upper(run, RUN / 4 + 2 * i, word);
        },
        [](auto &run, uints word) REGARD_INLINE_LAMBDA {
          const floats scale = widen_lower(word);
          run.scale(0, scale);
          run.offset(WITH_OFFSET ? widen_lower(word >> 16) : scale * -8.0f);
        });
  }
};
using BlockQ4_0 = HalfByteBlock<2, false>;
using BlockQ4_1 = HalfByteBlock<4, true>;

struct BlockQ8_0 : SmallBlock<2, RUN> {
  static constexpr bool HAS_OFFSET = false;

  template <class To>
  REGARD_INLINE void unpack(Rows rows, int runs, To &to) {
    unpack_each(
        rows, runs, to,
        [](auto &run, int i, uints word) REGARD_INLINE_LAMBDA {
          run.take(2 * i, (uints)((shorts)(word << 8) >> 8));
          run.take(2 * i + 1, (uints)((shorts)word >> 8));
        },
        [](auto &run, uints word) REGARD_INLINE_LAMBDA { run.scale(0, widen_lower(word)); });
  }
};

// Two float16, d and e; 12 bytes with 8 scales s and 8 offsets m of 6 bits; the halves of 128
// bytes. Run j is d·s[j]·q − e·m[j].
struct BlockQ4_K {
  static constexpr bool HAS_OFFSET = true, HALVES = false;
  static constexpr int RUNS = 8, BYTES = 4 + 12 + 128;

  template <class To>
  REGARD_INLINE void unpack(Rows rows, int, To &to) {
    uints words[4];  // d and e; s[0 … 3], m[0 … 3] and the lower halves of the others, whose upper
    load_words(rows, words);  // bits are in the upper two of words 1 and 2
    const auto others = [](uints lower, uints upper) REGARD_INLINE_LAMBDA {
      return (lower & 0x0f0f0f0f) | (upper >> 6 & 0x03030303) << 4;
    };
    const uints scales[2] = {words[1] & 0x3f3f3f3f, others(words[3], words[1])};
    const uints offsets[2] = {words[2] & 0x3f3f3f3f, others(words[3] >> 4, words[2])};
    const floats d = widen_lower(words[0]), e = -widen_lower(words[0] >> 16);
    REGARD_UNROLLED_FOR (int j = 0; j < RUNS; j += 2) {
      auto lower = to.run(j), upper = to.run(j + 1);
      REGARD_UNROLLED_FOR (int i = 0; i < RUN / 4; i += 4) {
        uints four[4];
        load_words(rows.from(16 + j / 2 * RUN + 4 * i), four);
        REGARD_UNROLLED_FOR (int w = 0; w < 4; w++) {
          take_lower(lower, 2 * (i + w), four[w]);
          take_upper(upper, 2 * (i + w), four[w]);
        }
      }
      const auto end = [&](auto &run, int own) REGARD_INLINE_LAMBDA {
        const auto byte = [&](uints word) REGARD_INLINE_LAMBDA {
          return __builtin_convertvector((ints)(word >> 8 * (own % 4) & 0xff), floats);
        };
        run.scale(0, d * byte(scales[own / 4]));
        run.offset(e * byte(offsets[own / 4]));
      };
      end(lower, j);
      end(upper, j + 1);
    }
  }
};

// The lower 4 bits of q + 32 in the halves of 128 bytes, the upper 2 in 64 bytes; a scale of 8
// bits, with a sign, for each 16 numbers; and d, in float16, by which these are multiplied.
struct BlockQ6_K {
  static constexpr bool HAS_OFFSET = false, HALVES = true;
  static constexpr int RUNS = 8, BYTES = 128 + 64 + 16 + 2;

  template <class To>
  REGARD_INLINE void unpack(Rows rows, int, To &to) {
    uints words[4];
    load_words(rows.from(128 + 64), words);
    const floats d = widen_lower(load_word(rows.from(BYTES - 4)) >> 16);
    for (int half = 0; half < 2; half++) {
      typename To::Run runs[] = {to.run(4 * half), to.run(4 * half + 1), to.run(4 * half + 2),
                                 to.run(4 * half + 3)};
      REGARD_UNROLLED_FOR (int i = 0; i < RUN / 4; i += 4) {  // four words of each of four runs
        uints lower[2][4], upper[4];
        load_words(rows.from(64 * half + 4 * i), lower[0]);
        load_words(rows.from(64 * half + RUN + 4 * i), lower[1]);
        load_words(rows.from(128 + RUN * half + 4 * i), upper);
        REGARD_UNROLLED_FOR (int quarter = 0; quarter < 4; quarter++)
          REGARD_UNROLLED_FOR (int w = 0; w < 4; w++) {
            const uints low = lower[quarter % 2][w] >> quarter / 2 * 4 & 0x0f0f0f0f;
            const uints bytes = low | (upper[w] >> 2 * quarter & 0x03030303) << 4;
            const uints pairs[2] = {bytes & 0x00ff00ff, (uints)((unsigned_shorts)bytes >> 8)};
            REGARD_UNROLLED_FOR (int k = 0; k < 2; k++)
              runs[quarter].take(2 * (i + w) + k, (uints)((shorts)pairs[k] - 32));
          }
      }
      REGARD_UNROLLED_FOR (int i = 0; i < 8; i++) {
        const uints word = half ? words[2 + i / 4] : words[i / 4];
        const ints byte = (ints)(word << (24 - i % 4 * 8)) >> 24;
        runs[i / 2].scale(i % 2, d * __builtin_convertvector(byte, floats));
      }
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
