// The kernels with AMX: bfloat16 is multiplied in tiles. Everything else is AVX-512's, with floats:
// where there are tiles, dot products of pairs take longer than they do.

#include "attend.h"
#include "backward.h"
#include "divergence.h"
#include "peak.h"

namespace regard::REGARD_SET {
namespace {

int forward_of_any_dtype(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  if (p.dtype != REGARD_BFLOAT16) return avx512::kernels().forward(p, context, logsumexp);
  return attend<Pairs>(p, context, logsumexp);
}

int backward_of_any_dtype(const regard_problem &p, const regard_gradients &g) {
  if (p.dtype != REGARD_BFLOAT16) return avx512::kernels().backward(p, g);
  return backward<PairGradients>(p, g);
}

int read_of_any_dtype(const regard_problem &p, const regard_readouts &readouts) {
  if (p.dtype != REGARD_BFLOAT16) return avx512::kernels().read(p, readouts);
  return read<Pairs>(Reading(p, readouts));
}

int forward_and_read_of_any_dtype(const regard_problem &p, const regard_tensor &context,
                                  float *logsumexp, const regard_readouts &readouts) {
  if (p.dtype != REGARD_BFLOAT16)
    return avx512::kernels().forward_and_read(p, context, logsumexp, readouts);
  return attend_and_read<Pairs>(p, context, logsumexp, readouts);
}

int compare_of_any_dtype(const regard_problem &one, const regard_problem &other,
                         const regard_divergence &request) {
  if (one.dtype != REGARD_BFLOAT16) return avx512::kernels().compare(one, other, request);
  return compare<Pairs>(one, other, request);
}

double peak_flops_of_any_dtype(int64_t dtype, int64_t threads) {
  return dtype == REGARD_BFLOAT16 ? peak_flops_of_tiles(threads)
                                  : avx512::kernels().peak_flops(dtype, threads);
}

}  // namespace

const Kernels &kernels() {
  static const Kernels table = [] {
    Kernels all = avx512::kernels();
    all.set = "amx";
    all.forward = forward_of_any_dtype;
    all.backward = backward_of_any_dtype;
    all.read = read_of_any_dtype;
    all.forward_and_read = forward_and_read_of_any_dtype;
    all.compare = compare_of_any_dtype;
    all.peak_flops = peak_flops_of_any_dtype;
    return all;
  }();
  return table;
}

}  // namespace regard::REGARD_SET
