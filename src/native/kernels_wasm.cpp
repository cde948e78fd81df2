// The kernels of the page, as WebAssembly: the functions of abi.h that it calls.
//
// There is one instruction set and one dtype, float32, weights of a model may be int8 or in blocks,
// and there is no backward pass.

#include <stdlib.h>

#include "attend.h"
#include "block_rows.h"
#include "gpt_step.h"
#include "matvec.h"
#include "naming.h"

#define REGARD_EXPORT(name) extern "C" __attribute__((export_name(#name)))

using namespace regard::REGARD_SET;

REGARD_EXPORT(allocate) void *regard_allocate(size_t bytes) {
  return regard::system::allocate(64, bytes);
}

REGARD_EXPORT(release) void regard_release(void *memory) { regard::system::release(memory); }

REGARD_EXPORT(forward)
int regard_forward(const regard_problem *problem, const regard_tensor *context, float *logsumexp) {
  return attend<Widened<Float32>>(*problem, *context, logsumexp);
}

REGARD_EXPORT(read)
int regard_read(const regard_problem *problem, const regard_readouts *readouts) {
  return read<Widened<Float32>>(Reading(*problem, *readouts));
}

REGARD_EXPORT(multiply) int regard_multiply(const regard_matvec *product) {
  return product->outputs ? matvec<RowProducts<Float32>>(*product) : REGARD_DONE;
}

// Calls `call` with how the matrix of a linear map is multiplied.
template <class Call>
static int with_products(const regard_linear &linear, Call call) {
  if (linear.blocks) return call(BlockProducts());
  if (linear.scale) return call(RowProducts<Float32, Int8>());
  return call(RowProducts<Float32>());
}

REGARD_EXPORT(gpt_step) int regard_gpt_step(const regard_gpt *gpt) {
  return with_products(gpt->tokens,
                       [&](auto products) { return gpt_step<decltype(products)>(*gpt); });
}

// Rows [first, last) of a matrix in float32, (last - first, inputs).
REGARD_EXPORT(read_rows)
int regard_read_rows(const regard_linear *linear, int32_t inputs, int32_t first, int32_t last,
                     float *result) {
  return with_products(*linear, [&](auto products) {
    const LinearMap<decltype(products)> map(*linear, inputs, last);
    for (int32_t row = first; row < last; row++, result += inputs)
      read_row<decltype(products)>(map, row, [&](int64_t i, floats numbers) {
        narrow_part(Float32(), result + i, numbers, inputs - i);
      });
    return REGARD_DONE;
  });
}

// The scores and the role of a head on a text, given its log-sum-exps, the token ids in [0, K) and
// which tokens separate others; and the keys on which it rests.
REGARD_EXPORT(name_head)
int regard_name_head(const regard_problem *problem, const float *logsumexp, const int64_t *ids,
                     const float *separators, int32_t tokens, double *naming, float *sinks) {
  return Namer(ids, separators, problem->queries, tokens)
      .name<Widened<Float32>>(*problem, logsumexp, *(Naming *)naming, sinks);
}
