// The kernels, compiled once for each instruction set; REGARD_SET is its name.
//
// No global object here may have a dynamic initializer: its code would use this instruction set,
// which the processor may not support.

#include "kernels.h"

#include "activation.h"
#include "attend.h"
#include "backward.h"
#include "block_rows.h"
#include "cross_entropy.h"
#include "divergence.h"
#include "gpt_step.h"
#include "matvec.h"
#include "peak.h"
#include "residual_norm.h"

namespace regard::REGARD_SET {
namespace {

int forward_of_any_dtype(const regard_problem &p, const regard_tensor &context, float *logsumexp) {
  if (p.dtype == REGARD_BFLOAT16) return attend<Widened<BFloat16>>(p, context, logsumexp);
  if (p.dtype == REGARD_FLOAT16) return attend<Widened<Float16>>(p, context, logsumexp);
  return attend<Widened<Float32>>(p, context, logsumexp);
}

int backward_of_any_dtype(const regard_problem &p, const regard_gradients &g) {
  if (p.dtype == REGARD_BFLOAT16) return backward<WidenedGradients<BFloat16>>(p, g);
  if (p.dtype == REGARD_FLOAT16) return backward<WidenedGradients<Float16>>(p, g);
  return backward<WidenedGradients<Float32>>(p, g);
}

int read_of_any_dtype(const regard_problem &p, const regard_readouts &readouts) {
  const Reading reading(p, readouts);
  if (p.dtype == REGARD_BFLOAT16) return read<Widened<BFloat16>>(reading);
  if (p.dtype == REGARD_FLOAT16) return read<Widened<Float16>>(reading);
  return read<Widened<Float32>>(reading);
}

int forward_and_read_of_any_dtype(const regard_problem &p, const regard_tensor &context,
                                  float *logsumexp, const regard_readouts &readouts) {
  if (p.dtype == REGARD_BFLOAT16)
    return attend_and_read<Widened<BFloat16>>(p, context, logsumexp, readouts);
  if (p.dtype == REGARD_FLOAT16)
    return attend_and_read<Widened<Float16>>(p, context, logsumexp, readouts);
  return attend_and_read<Widened<Float32>>(p, context, logsumexp, readouts);
}

int compare_of_any_dtype(const regard_problem &one, const regard_problem &other,
                         const regard_divergence &request) {
  if (one.dtype == REGARD_BFLOAT16) return compare<Widened<BFloat16>>(one, other, request);
  if (one.dtype == REGARD_FLOAT16) return compare<Widened<Float16>>(one, other, request);
  return compare<Widened<Float32>>(one, other, request);
}

// Calls `call` with the products of a dtype with weights of the same dtype, of int8 if they have
// scales, or in blocks.
template <class Element, class Call>
int with_products_of(const float *scale, Call call) {
  return scale ? call(RowProducts<Element, Int8>()) : call(RowProducts<Element>());
}
template <class Kept, class Call>  // a struct with the fields of regard_linear
int with_products(int64_t dtype, const Kept &kept, Call call) {
  if (dtype == REGARD_BFLOAT16) return with_products_of<BFloat16>(kept.scale, call);
  if (dtype == REGARD_FLOAT16) return with_products_of<Float16>(kept.scale, call);
  return kept.blocks ? call(BlockProducts()) : with_products_of<Float32>(kept.scale, call);
}

int matvec_of_any_dtype(const regard_matvec &product) {
  return with_products(product.dtype, product,
                       [&](auto products) { return matvec<decltype(products)>(product); });
}

int gpt_step_of_any_dtype(const regard_gpt &gpt) {
  return with_products(gpt.dtype, gpt.tokens,
                       [&](auto products) { return gpt_step<decltype(products)>(gpt); });
}

int gelu_of_any_dtype(const regard_activation &call) {
  if (call.dtype == REGARD_BFLOAT16) return activation<BFloat16>(call);
  if (call.dtype == REGARD_FLOAT16) return activation<Float16>(call);
  return activation<Float32>(call);
}

int residual_norm_of_any_dtype(const regard_residual_norm &call) {
  if (call.dtype == REGARD_BFLOAT16) return residual_norm<BFloat16>(call);
  if (call.dtype == REGARD_FLOAT16) return residual_norm<Float16>(call);
  return residual_norm<Float32>(call);
}

int residual_norm_backward_of_any_dtype(const regard_residual_norm_gradients &call) {
  if (call.dtype == REGARD_BFLOAT16) return residual_norm_backward<BFloat16>(call);
  if (call.dtype == REGARD_FLOAT16) return residual_norm_backward<Float16>(call);
  return residual_norm_backward<Float32>(call);
}

int cross_entropy_of_any_dtype(const regard_cross_entropy &call) {
  if (call.dtype == REGARD_BFLOAT16) return cross_entropy<BFloat16>(call);
  if (call.dtype == REGARD_FLOAT16) return cross_entropy<Float16>(call);
  return cross_entropy<Float32>(call);
}

double peak_flops_of_any_dtype(int64_t dtype, int64_t threads) {
  return dtype == REGARD_BFLOAT16 ? peak_flops<Widened<BFloat16>>(threads)
                                  : peak_flops<Widened<Float32>>(threads);
}

}  // namespace

const Kernels &kernels() {
  static constexpr Kernels table = {
      .set = REGARD_TEXT(REGARD_SET),
      .forward = forward_of_any_dtype,
      .backward = backward_of_any_dtype,
      .read = read_of_any_dtype,
      .forward_and_read = forward_and_read_of_any_dtype,
      .compare = compare_of_any_dtype,
      .matvec = matvec_of_any_dtype,
      .gpt_step = gpt_step_of_any_dtype,
      .gelu = gelu_of_any_dtype,
      .residual_norm = residual_norm_of_any_dtype,
      .residual_norm_backward = residual_norm_backward_of_any_dtype,
      .cross_entropy = cross_entropy_of_any_dtype,
      .peak_flops = peak_flops_of_any_dtype,
      .peak_bandwidth = peak_bandwidth,
  };
  return table;
}

}  // namespace regard::REGARD_SET
