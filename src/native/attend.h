// Attention: chooses between the forward pass and, for few rows, decode.
#pragma once

#include "decode.h"
#include "normalizers.h"
#include "read.h"

namespace regard::REGARD_SET {

#if defined(__AMX_BF16__)
static_assert(FORWARD_BLOCK <= MAX_STEPS * PairProducts::STEP);
#endif

template <class Arithmetic>
int attend(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  if (!has_few_rows(p)) return forward<Arithmetic>(p, context, logsumexp);
  const int result = decode<typename Arithmetic::Element>(p, {context, logsumexp});
  return result == REGARD_DONE && logsumexp ? recompute_imprecise<Arithmetic>(p, logsumexp)
                                            : result;
}

// In one pass, or in two with bitwise equal results.
template <class Arithmetic>
int attend_and_read(const regard_problem &p, const regard_tensor &context, float *logsumexp,
                    const regard_readouts &readouts) {
  const ForwardCall call = {p, scoring_of(p), context, logsumexp};
  const Reading reading(p, readouts, &call);
  if (!has_few_rows(p) && shares_pass(reading)) return read<Arithmetic>(reading);
  const int result = attend<Arithmetic>(p, context, logsumexp);
  return result == REGARD_DONE ? read<Arithmetic>(Reading(p, readouts)) : result;
}

}  // namespace regard::REGARD_SET
