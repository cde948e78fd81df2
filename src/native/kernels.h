// The table of kernels, one for each instruction set.
#pragma once

#include "abi.h"

// The name of an instruction set, which is a macro, as text.
#define REGARD_TEXT_OF(name) #name
#define REGARD_TEXT(name) REGARD_TEXT_OF(name)

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

// Each is defined by kernels.cpp compiled for that set; that with dot products of whole numbers by
// kernels_vnni.cpp, those with bfloat16 instructions by kernels_bfloat16.cpp. CMakeLists.txt lists
// them.
namespace baseline { const Kernels &kernels(); }
namespace avx2 { const Kernels &kernels(); }
namespace avx512 { const Kernels &kernels(); }
namespace avx512vnni { const Kernels &kernels(); }
namespace avx512bf16 { const Kernels &kernels(); }
namespace amx { const Kernels &kernels(); }

// The kernels of the set in use.
const Kernels &kernels();

}  // namespace regard
