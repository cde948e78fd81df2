// The dtypes of tensors, and their conversion to and from float.
#pragma once

#include <string.h>

#include "vector.h"

namespace regard::REGARD_SET {

struct Float32 {
  using type = float;
};
struct BFloat16 {
  using type = uint16_t;
};
struct Float16 {
  using type = uint16_t;
};
struct Int8 {  // for weights only
  using type = int8_t;
};

REGARD_INLINE floats widen(Float32, const float *from) { return load(from); }

REGARD_INLINE floats widen(BFloat16, const uint16_t *from) {
// Without the intrinsic, GCC 12 widens halves of the vector and combines them.
#if defined(__AVX512F__)
  return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)load(from)), 16);
#elif defined(__AVX2__)
  return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)load(from)), 16);
#else
  return (floats)(__builtin_convertvector(load(from), uints) << 16);
#endif
}

REGARD_INLINE floats widen(Float16, const uint16_t *from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps((__m256i)load(from));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps((__m128i)load(from));
#else
  const uints bits = __builtin_convertvector(load(from), uints);
  // The exponent's bias differs by 112; the product also turns its subnormals into normal floats.
  const floats finite = (floats)((bits & 0x7fff) << 13) * 0x1p112f;
  const uints special = (uints)((bits & 0x7c00) == 0x7c00) & 0x7f800000;
  return (floats)((uints)finite | special | (bits & 0x8000) << 16);
#endif
}

REGARD_INLINE floats widen(Int8, const int8_t *from) {
#if defined(__AVX512F__)  // else GCC 12 widens halves of the vector and combines them
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i_u *)from)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i_u *)from)));
#else
  return __builtin_convertvector(load(from), floats);
#endif
}

REGARD_INLINE void narrow(Float32, float *to, floats x) { store(to, x); }

// Rounds to nearest, ties to even.
REGARD_INLINE void narrow(BFloat16, uint16_t *to, floats x) {
#if defined(__AVX512BF16__)
  store(to, (halves)_mm512_cvtneps_pbh(x));
#else
  const uints bits = (uints)x;
  const uints rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uints quiet = bits >> 16 | 0x40;
  const ints is_nan = (ints)(bits & 0x7fffffff) > 0x7f800000;
  store(to, __builtin_convertvector(is_nan ? quiet : rounded, halves));
#endif
}

REGARD_INLINE void narrow(Float16, uint16_t *to, floats x) {
#if defined(__AVX512F__)
  store(to, (halves)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
  store(to, (halves)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const uints bits = (uints)x, size = bits & 0x7fffffff;
  const uints normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
  // Below 2⁻¹⁴ the steps are 2⁻²⁴ wide: adding ½ rounds to them.
  const uints subnormal = (uints)((floats)size + 0.5f) - 0x3f000000;
  const uints finite = size < 0x38800000 ? subnormal : normal;
  const uints infinite = size > 0x7f800000 ? uints{} + 0x7e00 : uints{} + 0x7c00;
  const uints rounded = size >= 0x477ff000 ? infinite : finite;
  store(to, __builtin_convertvector(rounded | (bits >> 16 & 0x8000), halves));
#endif
}

// The same for adjacent vectors.
template <class Element, int count>
REGARD_INLINE void narrow_all(Element element, typename Element::type *to,
                              const floats (&vectors)[count]) {
#if defined(__AVX512BF16__)  // two fill a register
  if constexpr (std::is_same_v<Element, BFloat16> && count % 2 == 0) {
    REGARD_UNROLLED_FOR (int i = 0; i < count; i += 2)
      _mm512_storeu_si512(to + i * LANES, (__m512i)_mm512_cvtne2ps_pbh(vectors[i + 1], vectors[i]));
    return;
  }
#endif
  REGARD_UNROLLED_FOR (int i = 0; i < count; i++) narrow(element, to + i * LANES, vectors[i]);
}

// The first few elements of a row, zeros after them: nothing past the row's end is read.
template <class Element>
REGARD_INLINE floats widen_part(Element element, const typename Element::type *from,
                                int64_t count) {
  if (count >= LANES) return widen(element, from);
  typename Element::type part[LANES] = {};
  memcpy(part, from, size_t(count) * sizeof *from);
  return widen(element, part);
}

template <class Element>
REGARD_INLINE void narrow_part(Element element, typename Element::type *to, floats x,
                               int64_t count) {
  if (count >= LANES) return narrow(element, to, x);
  typename Element::type part[LANES];
  narrow(element, part, x);
  memcpy(to, part, size_t(count) * sizeof *to);
}

}  // namespace regard::REGARD_SET
