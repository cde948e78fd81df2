// The computations, one table of them for each instruction set.
#pragma once

#include "abi.h"

namespace regard {

struct Kernels {
  int (*forward)(const regard_problem &, const regard_tensor &context, float *logsumexp);
};

}  // namespace regard
