// Numbers of every dtype, one at a time, and random ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>

#include "abi.h"

namespace driver {

inline int64_t bytes_of(int64_t dtype) { return dtype == REGARD_FLOAT32 ? 4 : 2; }

// The distance from 1 to the next number.
inline double epsilon_of(int64_t dtype) {
  return dtype == REGARD_FLOAT32 ? 0x1p-23 : dtype == REGARD_BFLOAT16 ? 0x1p-7 : 0x1p-10;
}

// What is smaller is rounded as if it were of this size.
inline double least_normal(int64_t dtype) { return dtype == REGARD_FLOAT16 ? 0x1p-14 : 0x1p-126; }

inline double decode(int64_t dtype, const char *from) {
  if (dtype == REGARD_FLOAT16) {
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double size = std::ldexp(exponent ? 1024 + mantissa : mantissa, exponent ? exponent - 25 : -24);
    if (exponent == 31) size = mantissa ? std::nan("") : INFINITY;
    return bits >> 15 ? -size : size;
  }
  uint32_t bits = 0;
  if (dtype == REGARD_FLOAT32)
    std::memcpy(&bits, from, sizeof bits);
  else
    std::memcpy((char *)&bits + 2, from, 2);
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// Cuts off what the dtype has no bits for; what is too small for a normal float16 becomes 0.
inline void encode(int64_t dtype, char *to, double x) {
  const float number = float(x);
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  if (dtype == REGARD_FLOAT32) return (void)std::memcpy(to, &bits, sizeof bits);
  uint16_t half = uint16_t(bits >> 16);
  if (dtype == REGARD_FLOAT16) {
    const int exponent = int(bits >> 23 & 255) - 112;
    half = uint16_t(bits >> 16 & 0x8000);
    if (std::isnan(number))
      half |= 0x7e00;
    else if (exponent >= 31)
      half |= 0x7c00;
    else if (exponent > 0)
      half |= uint16_t(exponent << 10 | (bits >> 13 & 1023));
  }
  std::memcpy(to, &half, sizeof half);
}

// The same on every machine, which the distributions of the standard library are not.
class Random {
 public:
  explicit Random(uint64_t seed) : source(seed) {}
  uint64_t bits() { return source(); }
  int64_t below(int64_t bound) { return int64_t(source() % uint64_t(bound)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  double uniform() { return double(source() >> 11) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }
  // Near enough to normal: mean 0, variance 1.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2) * std::sqrt(3.0); }
  int64_t pick(std::initializer_list<int64_t> from) {
    return from.begin()[below(int64_t(from.size()))];
  }

 private:
  std::mt19937_64 source;
};

}  // namespace driver
