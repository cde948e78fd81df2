// The computations, one table of them for each instruction set.
#pragma once

#include "abi.h"

namespace regard {

struct Kernels {
  const char *set;
  int (*forward)(const regard_problem &, const regard_tensor &context, float *logsumexp);
  int (*backward)(const regard_problem &, const regard_gradients &);
  int (*read)(const regard_problem &, const regard_readouts &);
  int (*forward_and_read)(const regard_problem &, const regard_tensor &context, float *logsumexp,
                          const regard_readouts &);
  int (*compare)(const regard_problem &, const regard_problem &, const regard_divergence &);
  int (*matvec)(const regard_matvec &);
  int (*gpt_step)(const regard_gpt &);
  int (*gelu)(const regard_activation &);
  int (*residual_norm)(const regard_residual_norm &);
  int (*residual_norm_backward)(const regard_residual_norm_gradients &);
  int (*cross_entropy)(const regard_cross_entropy &);
  double (*peak_flops)(int64_t dtype, int64_t threads);
  double (*peak_bandwidth)(int64_t threads);
};

// Each defined by kernels.cpp, compiled for that set, but for AMX by kernels_amx.cpp;
// CMakeLists.txt says which there are.
namespace baseline { const Kernels &kernels(); }
namespace avx2 { const Kernels &kernels(); }
namespace avx512 { const Kernels &kernels(); }
namespace avx512bf16 { const Kernels &kernels(); }
namespace amx { const Kernels &kernels(); }

// Those of the set in use, for library.cpp's own functions.
const Kernels &kernels();

}  // namespace regard
