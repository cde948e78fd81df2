// Compiled once for each instruction set, with REGARD_SET its name.
#include "kernels.h"

#include "forward.h"
#include "pairs.h"

namespace regard::REGARD_SET {
namespace {

#if defined(__AVX512BF16__)
using BFloat16Arithmetic = Pairs;
#else
using BFloat16Arithmetic = Widened<BFloat16>;
#endif

int forward_of_any_dtype(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  if (p.dtype == REGARD_BFLOAT16) return forward<BFloat16Arithmetic>(p, context, logsumexp);
  if (p.dtype == REGARD_FLOAT16) return forward<Widened<Float16>>(p, context, logsumexp);
  return forward<Widened<Float32>>(p, context, logsumexp);
}

}  // namespace

extern const Kernels kernels;
const Kernels kernels = {.forward = forward_of_any_dtype};

}  // namespace regard::REGARD_SET
