// The bfloat16 kernels for processors with bfloat16 instructions.
//
// Products are computed in pairs or, with AMX, in tiles, and rounding is one instruction. All other
// kernels are those of AVX-512 with products of whole numbers.

#include "activation.h"
#include "attend.h"
#include "backward.h"
#include "cross_entropy.h"
#include "divergence.h"
#include "gpt_step.h"
#include "kernels.h"
#include "matvec.h"
#include "pairs.h"
#include "peak.h"
#include "residual_norm.h"
#include "system.h"

namespace regard::REGARD_SET {
namespace {

#if defined(__AMX_BF16__)
// Tiles are requested at the first use, since signals need larger stacks then. If the request
// fails, because a stack is too small already, the kernels are those of AVX-512.
bool multiplies(int64_t dtype) {
  if (dtype != REGARD_BFLOAT16) return false;
  static const bool allowed = system::allows_amx();
  return allowed;
}
#else
bool multiplies(int64_t dtype) { return dtype == REGARD_BFLOAT16; }
#endif

int forward_of_any_dtype(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  if (!multiplies(p.dtype)) return avx512vnni::kernels().forward(p, context, logsumexp);
  return attend<Pairs>(p, context, logsumexp);
}

int backward_of_any_dtype(const regard_problem &p, const regard_gradients &g) {
  if (!multiplies(p.dtype)) return avx512vnni::kernels().backward(p, g);
  return backward<PairGradients>(p, g);
}

int read_of_any_dtype(const regard_problem &p, const regard_readouts &readouts) {
  if (!multiplies(p.dtype)) return avx512vnni::kernels().read(p, readouts);
  return read<Pairs>(Reading(p, readouts));
}

int forward_and_read_of_any_dtype(const regard_problem &p, const regard_tensor &context,
                                  float *logsumexp, const regard_readouts &readouts) {
  if (!multiplies(p.dtype))
    return avx512vnni::kernels().forward_and_read(p, context, logsumexp, readouts);
  return attend_and_read<Pairs>(p, context, logsumexp, readouts);
}

int compare_of_any_dtype(const regard_problem &one, const regard_problem &other,
                         const regard_divergence &request) {
  if (!multiplies(one.dtype)) return avx512vnni::kernels().compare(one, other, request);
  return compare<Pairs>(one, other, request);
}

int matvec_of_any_dtype(const regard_matvec &product) {
  if (product.scale || !multiplies(product.dtype)) return avx512vnni::kernels().matvec(product);
  return matvec<RowProducts<BFloat16>>(product);
}

int gpt_step_of_any_dtype(const regard_gpt &gpt) {
  if (gpt.tokens.scale || !multiplies(gpt.dtype)) return avx512vnni::kernels().gpt_step(gpt);
  return gpt_step<RowProducts<BFloat16>>(gpt);
}

int gelu_of_any_dtype(const regard_activation &call) {
  if (call.dtype != REGARD_BFLOAT16) return avx512vnni::kernels().gelu(call);
  return activation<BFloat16>(call);
}

int residual_norm_of_any_dtype(const regard_residual_norm &call) {
  if (call.dtype != REGARD_BFLOAT16) return avx512vnni::kernels().residual_norm(call);
  return residual_norm<BFloat16>(call);
}

int residual_norm_backward_of_any_dtype(const regard_residual_norm_gradients &call) {
  if (call.dtype != REGARD_BFLOAT16) return avx512vnni::kernels().residual_norm_backward(call);
  return residual_norm_backward<BFloat16>(call);
}

int cross_entropy_of_any_dtype(const regard_cross_entropy &call) {
  if (call.dtype != REGARD_BFLOAT16) return avx512vnni::kernels().cross_entropy(call);
  return cross_entropy<BFloat16>(call);
}

double peak_flops_of_any_dtype(int64_t dtype, int64_t threads) {
  if (!multiplies(dtype)) return avx512vnni::kernels().peak_flops(dtype, threads);
#if defined(__AMX_BF16__)
  return peak_flops_of_tiles(threads);
#else
  return peak_flops<Pairs>(threads);
#endif
}

}  // namespace

const Kernels &kernels() {
  static const Kernels table = [] {
    Kernels all = avx512vnni::kernels();
    all.set = REGARD_TEXT(REGARD_SET);
    all.forward = forward_of_any_dtype;
    all.backward = backward_of_any_dtype;
    all.read = read_of_any_dtype;
    all.forward_and_read = forward_and_read_of_any_dtype;
    all.compare = compare_of_any_dtype;
    all.matvec = matvec_of_any_dtype;
    all.gpt_step = gpt_step_of_any_dtype;
    all.gelu = gelu_of_any_dtype;
    all.residual_norm = residual_norm_of_any_dtype;
    all.residual_norm_backward = residual_norm_backward_of_any_dtype;
    all.cross_entropy = cross_entropy_of_any_dtype;
    all.peak_flops = peak_flops_of_any_dtype;
    return all;
  }();
  return table;
}

}  // namespace regard::REGARD_SET
