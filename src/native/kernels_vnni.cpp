// Products of a GGUF's blocks for processors with instructions for products of whole numbers.
//
// All other kernels are those of AVX-512.

#include "block_rows.h"
#include "gpt_step.h"
#include "kernels.h"
#include "matvec.h"

namespace regard::REGARD_SET {
namespace {

int matvec_of_any_kind(const regard_matvec &product) {
  return product.blocks ? matvec<BlockProducts>(product) : avx512::kernels().matvec(product);
}

int gpt_step_of_any_kind(const regard_gpt &gpt) {
  return gpt.tokens.blocks ? gpt_step<BlockProducts>(gpt) : avx512::kernels().gpt_step(gpt);
}

}  // namespace

const Kernels &kernels() {
  static const Kernels table = [] {
    Kernels all = avx512::kernels();
    all.set = REGARD_TEXT(REGARD_SET);
    all.matvec = matvec_of_any_kind;
    all.gpt_step = gpt_step_of_any_kind;
    return all;
  }();
  return table;
}

}  // namespace regard::REGARD_SET
