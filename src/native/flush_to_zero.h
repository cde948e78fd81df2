// Results that are too small for a normal number.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace regard {

// As long as one exists, results of this thread below 2⁻¹²⁶ are 0 on x86. There each denormal
// number takes a hundred cycles and more to make, and where ALiBi or a large scale sets keys far
// apart, most weights and many products would be one. What is given as such a number still counts.
class FlushToZero {
 public:
  FlushToZero(const FlushToZero &) = delete;
#if defined(__x86_64__)
  FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON); }
  ~FlushToZero() { _mm_setcsr(before_); }

 private:
  const unsigned before_;
#else
  FlushToZero() {}
  ~FlushToZero() {}
#endif
};

}  // namespace regard
