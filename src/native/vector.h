// Vectors of floats in the compilers' vector extensions, as wide as the instruction set.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

#define REGARD_INLINE static inline __attribute__((always_inline))
#define REGARD_INLINE_LAMBDA __attribute__((always_inline))  // for lambdas
#if defined(__clang__)
#define REGARD_UNROLLED_FOR _Pragma("unroll") for
#else
#define REGARD_UNROLLED_FOR _Pragma("GCC unroll 64") for
#endif

namespace regard::REGARD_SET {

#if defined(__AVX512F__)
constexpr int LANES = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4, REGISTERS = 32;
#else
constexpr int LANES = 4, REGISTERS = 16;
#endif

using floats = float __attribute__((vector_size(LANES * 4)));
using ints = int32_t __attribute__((vector_size(LANES * 4)));
using uints = uint32_t __attribute__((vector_size(LANES * 4)));
using halves = uint16_t __attribute__((vector_size(LANES * 2)));
using bytes = int8_t __attribute__((vector_size(LANES)));

// A typedef, since Clang silently drops these attributes from an alias by `using`.
namespace unaligned {
typedef float floats __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
static_assert(alignof(floats) == 4 && alignof(ints) == 4 && alignof(halves) == 2 &&
              alignof(bytes) == 1);
}  // namespace unaligned

REGARD_INLINE floats load(const float *from) { return *(const unaligned::floats *)from; }
REGARD_INLINE ints load(const int32_t *from) { return *(const unaligned::ints *)from; }
REGARD_INLINE halves load(const uint16_t *from) { return *(const unaligned::halves *)from; }
REGARD_INLINE bytes load(const int8_t *from) { return *(const unaligned::bytes *)from; }
REGARD_INLINE void store(float *to, floats x) { *(unaligned::floats *)to = x; }
REGARD_INLINE void store(int32_t *to, ints x) { *(unaligned::ints *)to = x; }
REGARD_INLINE void store(uint16_t *to, halves x) { *(unaligned::halves *)to = x; }

REGARD_INLINE floats broadcast(float x) { return x - floats{}; }
REGARD_INLINE ints broadcast(int32_t x) { return x - ints{}; }

// Keeps a vector in a register, with a value unknown to the compiler.
template <class Vector>
REGARD_INLINE void keep_in_register(Vector &x) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(x));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(x));
#elif defined(__wasm_simd128__)
  asm volatile("" : "+r"(x));
#else
  asm volatile("" : "+m"(x));
#endif
}

// The second one if either is NaN, like the x86 instructions.
REGARD_INLINE floats max(floats a, floats b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
REGARD_INLINE floats min(floats a, floats b) {
#if defined(__AVX512F__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}
template <class T>
REGARD_INLINE T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
REGARD_INLINE T max(T a, T b) {
  return a > b ? a : b;
}

REGARD_INLINE floats abs(floats x) { return (floats)((ints)x & 0x7fffffff); }

// NaN or infinite, by the bits: GCC 12 assumes that vectors in x · 0 and x != x have no NaN.
REGARD_INLINE ints is_nonfinite(floats x) { return ((ints)x & 0x7f800000) == 0x7f800000; }

REGARD_INLINE bool any(ints truth) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)truth);
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)truth);
#elif defined(__SSE2__)
  return _mm_movemask_ps((__m128)truth);
#else
  int32_t found = 0;
  REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) found |= truth[i];
  return found;
#endif
}

REGARD_INLINE ints lane_numbers() {
  ints numbers;
  REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) numbers[i] = i;
  return numbers;
}

constexpr double LOG2_E = 1.44269504088896340736, LN_2 = 0.69314718055994530942;

REGARD_INLINE floats round_down(floats x) {
#if defined(__AVX512F__)
  return _mm512_floor_ps(x);
#elif defined(__AVX2__)
  return _mm256_floor_ps(x);
#else
  const floats magic = broadcast(12582912.0f);  // 1.5·2²³: adding it rounds to an integer
  const floats near = x + magic - magic;
  return near > x ? near - 1.0f : near;
#endif
}

// 2^x for x ≤ 127, with a relative error of 1.5e-7, or 3e-6 with a polynomial of degree 4; NaN
// stays NaN. Subnormal results are flushed to 0: each costs some processors a hundred cycles, and
// with ALiBi most weights of distant keys would be subnormal.
template <int degree = 5>
REGARD_INLINE floats exp2(floats x) {
#if defined(__AVX512F__)
  const floats f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
  x = max(broadcast(-127.0f), x);
  const floats whole = round_down(x), f = x - whole;
#endif
  floats p;
  if constexpr (degree == 5) {
    p = broadcast(0.0018671301659196615f);
    p = p * f + 0.009017029777169228f;
    p = p * f + 0.05579991266131401f;
    p = p * f + 0.24016444385051727f;
    p = p * f + 0.6931512951850891f;
  } else {
    p = broadcast(0.013426683843135834f);
    p = p * f + 0.052242472767829895f;
    p = p * f + 0.241280198097229f;
    p = p * f + 0.6930448412895203f;
  }
  p = p * f + 1.0f;
#if defined(__AVX512F__)
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, x);
#else
  // Lanes whose result is discarded may have any x: unsigned sums may overflow.
  const uints power = (uints)(__builtin_convertvector(whole, ints) << 23) + 0x3f800000u;
  return p * (floats)power;
#endif
}

// With an error of some 1e-7, absolute below 1 and relative above; for positive normal numbers, 0,
// ∞ and NaN.
REGARD_INLINE floats log2(floats x) {
  const ints exponent = ((ints)x - 0x3f3504f3) >> 23;  // for a fraction in √½ … √2
  const floats f = (floats)((ints)x - (exponent << 23)) - 1.0f;
  floats p = broadcast(-0.14574450254440308f);
  p = p * f + 0.23689042031764984f;
  p = p * f - 0.2500690519809723f;
  p = p * f + 0.28670746088027954f;
  p = p * f - 0.36008721590042114f;
  p = p * f + 0.48093944787979126f;
  p = p * f - 0.7213571667671204f;
  p = p * f + 1.4426947832107544f;
  const floats whole = __builtin_convertvector(exponent, floats);
  const floats special = x == 0.0f ? broadcast(-INFINITY) : x;
  return (x > 0.0f) & (x < broadcast(INFINITY)) ? p * f + whole : special;
}

// With a relative error of some 2e-7; the polynomial for small x is that of Cephes' tanhf.
REGARD_INLINE floats tanh(floats x) {
  const floats size = abs(x), square = x * x;
  floats p = broadcast(-5.70498872745e-3f);
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const floats small = p * square * x + x;
  const floats rest = exp2(size * float(-2 * LOG2_E));
  const floats large = (1.0f - rest) / (1.0f + rest);
  const floats with_sign = (floats)((ints)large | ((ints)x & INT32_MIN));
  return size < 0.625f ? small : with_sign;
}

// Sums all lanes, in the same order on every instruction set of this width.
REGARD_INLINE float sum(floats x) {
  float total[LANES];
  store(total, x);
  REGARD_UNROLLED_FOR (int width = LANES / 2; width > 0; width /= 2)
    REGARD_UNROLLED_FOR (int i = 0; i < width; i++) total[i] += total[i + width];
  return total[0];
}

// The fastest shuffles: within quarters of a 512-bit register (four floats), and of complete
// quarters. A vector has QUARTERS of them.
constexpr int QUARTERS = LANES / 4;
using all_lanes = std::make_index_sequence<LANES>;

// Interleaves the lower (half 0) or upper half of each quarter of a and b, `size` numbers at a
// time.
template <int size, int half, size_t... i>
REGARD_INLINE floats interleave_in_quarters(floats a, floats b, std::index_sequence<i...>) {
  return __builtin_shufflevector(
      a, b,
      int(i / 4 * 4 + half * 2 + i % size + i % 4 / (2 * size) * size + i / size % 2 * LANES)...);
}
// The even (0) or odd (1) quarters of a, then of b.
template <int odd, size_t... i>
REGARD_INLINE floats every_other_quarter(floats a, floats b, std::index_sequence<i...>) {
  return __builtin_shufflevector(a, b, int((i / 4 * 2 + odd) * 4 + i % 4)...);
}

// Transposes LANES × LANES floats: four rows at a time within quarters, then the quarters.
REGARD_INLINE void transpose(floats *rows) {
  floats fours[LANES];  // quarter q of fours[4g + c] has column 4q + c of rows 4g … 4g + 3
  REGARD_UNROLLED_FOR (int g = 0; g < LANES; g += 4) {
    floats pairs[4];
    REGARD_UNROLLED_FOR (int i = 0; i < 4; i++) {
      const floats a = rows[g + i / 2 * 2], b = rows[g + i / 2 * 2 + 1];
      pairs[i] = i % 2 ? interleave_in_quarters<1, 1>(a, b, all_lanes())
                       : interleave_in_quarters<1, 0>(a, b, all_lanes());
    }
    REGARD_UNROLLED_FOR (int c = 0; c < 4; c++)
      fours[g + c] =
          c % 2 ? interleave_in_quarters<2, 1>(pairs[c / 2], pairs[c / 2 + 2], all_lanes())
                : interleave_in_quarters<2, 0>(pairs[c / 2], pairs[c / 2 + 2], all_lanes());
  }
  REGARD_UNROLLED_FOR (int c = 0; c < 4; c++) {
    floats parts[QUARTERS], next[QUARTERS];
    REGARD_UNROLLED_FOR (int g = 0; g < QUARTERS; g++) parts[g] = fours[4 * g + c];
    REGARD_UNROLLED_FOR (int round = 1; round < QUARTERS; round *= 2) {
      REGARD_UNROLLED_FOR (int g = 0; g < QUARTERS / 2; g++) {
        next[g] = every_other_quarter<0>(parts[2 * g], parts[2 * g + 1], all_lanes());
        next[g + QUARTERS / 2] =
            every_other_quarter<1>(parts[2 * g], parts[2 * g + 1], all_lanes());
      }
      REGARD_UNROLLED_FOR (int g = 0; g < QUARTERS; g++) parts[g] = next[g];
    }
    REGARD_UNROLLED_FOR (int g = 0; g < QUARTERS; g++) rows[4 * g + c] = parts[g];
  }
}

// The sums of the lanes of LANES vectors: that of vector i is in lane i.
REGARD_INLINE floats sum_each(const floats *rows) {
  floats sums[QUARTERS];  // each quarter has partial sums of rows 4g … 4g + 3
  REGARD_UNROLLED_FOR (int g = 0; g < QUARTERS; g++) {
    floats pairs[2];
    REGARD_UNROLLED_FOR (int i = 0; i < 2; i++) {
      const floats a = rows[4 * g + 2 * i], b = rows[4 * g + 2 * i + 1];
      pairs[i] = interleave_in_quarters<1, 0>(a, b, all_lanes()) +
                 interleave_in_quarters<1, 1>(a, b, all_lanes());
    }
    sums[g] = interleave_in_quarters<2, 0>(pairs[0], pairs[1], all_lanes()) +
              interleave_in_quarters<2, 1>(pairs[0], pairs[1], all_lanes());
  }
  REGARD_UNROLLED_FOR (int count = QUARTERS; count > 1; count /= 2)
    REGARD_UNROLLED_FOR (int g = 0; g < count / 2; g++)
      sums[g] = every_other_quarter<0>(sums[2 * g], sums[2 * g + 1], all_lanes()) +
                every_other_quarter<1>(sums[2 * g], sums[2 * g + 1], all_lanes());
  return sums[0];
}

template <int distance, size_t... i>
REGARD_INLINE ints exchange_lanes(ints x, std::index_sequence<i...>) {
  return __builtin_shufflevector(x, x, int(i ^ distance)...);
}

// Reduces, say by a minimum, each four lanes, 0 to 3, 4 to 7 and so on, and broadcasts the result
// to them.
template <class Combine>
REGARD_INLINE ints of_fours(ints x, Combine combine) {
  x = combine(x, exchange_lanes<1>(x, all_lanes()));
  return combine(x, exchange_lanes<2>(x, all_lanes()));
}

// Reduces all lanes, after of_fours.
template <class Combine>
REGARD_INLINE int32_t of_all(ints x, Combine combine) {
  int32_t result = x[0];
  REGARD_UNROLLED_FOR (int i = 4; i < LANES; i += 4) result = combine(result, x[i]);
  return result;
}

}  // namespace regard::REGARD_SET
