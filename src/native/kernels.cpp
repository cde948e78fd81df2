// The kernels, compiled once for each instruction set: REGARD_SET is its name.
//
// No object here may be initialized when the library is loaded: that code would be this set's, and
// the processor may not run it.

#include "kernels.h"

#include "decode.h"
#include "forward.h"

#define REGARD_TEXT_OF(name) #name
#define REGARD_TEXT(name) REGARD_TEXT_OF(name)

namespace regard::REGARD_SET {
namespace {

template <class Element>
int attend(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  return has_few_rows(p) ? decode<Element>(p, context, logsumexp)
                         : forward<Element>(p, context, logsumexp);
}

int forward_of_any_dtype(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  if (p.dtype == REGARD_BFLOAT16) return attend<BFloat16>(p, context, logsumexp);
  if (p.dtype == REGARD_FLOAT16) return attend<Float16>(p, context, logsumexp);
  return attend<Float32>(p, context, logsumexp);
}

}  // namespace

const Kernels &kernels() {
  static constexpr Kernels table = {
      .set = REGARD_TEXT(REGARD_SET),
      .forward = forward_of_any_dtype,
  };
  return table;
}

}  // namespace regard::REGARD_SET
