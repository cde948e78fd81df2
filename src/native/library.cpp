// The exported functions of the C interface.

#include <atomic>
#include <cstring>
#include <string>

#include "abi.h"
#include "kernels.h"
#include "processor.h"
#include "system.h"
#include "threads.h"

#if defined(_WIN32)
#define REGARD_EXPORT __declspec(dllexport)
#else
#define REGARD_EXPORT __attribute__((visibility("default")))
#endif

namespace regard {
namespace {

struct InstructionSet {
  const char *name;
  bool (*runs)();
  bool (*is_faster)();
  const Kernels &(*kernels)();
};

// From the most to the least capable.
constexpr InstructionSet sets[] = {
#ifdef REGARD_HAS_amx
    {"amx", processor::runs_amx, processor::is_faster, amx::kernels},
#endif
#ifdef REGARD_HAS_avx512bf16
    {"avx512bf16", processor::runs_avx512bf16, processor::is_faster_by_avx512bf16,
     avx512bf16::kernels},
#endif
#ifdef REGARD_HAS_avx512vnni
    {"avx512vnni", processor::runs_avx512vnni, processor::is_faster, avx512vnni::kernels},
#endif
#ifdef REGARD_HAS_avx512
    {"avx512", processor::runs_avx512, processor::is_faster, avx512::kernels},
#endif
#ifdef REGARD_HAS_avx2
    {"avx2", processor::runs_avx2, processor::is_faster, avx2::kernels},
#endif
#ifdef REGARD_HAS_baseline  // which the sanitizers leave out beside another set
    {"baseline", processor::runs_baseline, processor::is_faster, baseline::kernels},
#endif
};

const InstructionSet *best() {
  for (const InstructionSet &set : sets)
    if (set.runs() && set.is_faster()) return &set;
  return nullptr;  // unreachable: the baseline runs everywhere
}

std::atomic<const InstructionSet *> chosen = nullptr;

const InstructionSet &in_use() {
  if (!chosen.load()) chosen.store(best());
  return *chosen.load();
}

std::string names(bool (*listed)(const InstructionSet &)) {
  std::string text;
  for (const bool is_faster : {true, false})
    for (const InstructionSet &set : sets) {
      if (!listed(set) || set.is_faster() != is_faster) continue;
      if (!text.empty()) text += ',';
      text += set.name;
    }
  return text;
}

bool has_no_heads(const regard_problem &p) { return !p.batch || !p.groups; }

// Whether there are no rows; without keys there are rows, without visible keys.
bool has_no_rows(const regard_problem &p) { return has_no_heads(p) || !p.queries; }

// Requests huge pages for a contiguous result (batch, heads, rows, dim). Its memory is often new to
// the process at each call, and faulting in a huge page takes a seventh of the time of small pages.
void prefer_huge_pages(const regard_problem &p, const regard_tensor &result, int64_t heads,
                       int64_t rows, int64_t dim) {
  const int64_t numbers = p.batch * heads * rows * dim;
  const int64_t reach =
      (p.batch - 1) * result.batch + (heads - 1) * result.head + (rows - 1) * result.row + dim;
  const size_t size = p.dtype == REGARD_FLOAT32 ? 4 : 2;
  if (result.data && numbers == reach)
    system::prefer_huge_pages(result.data, size_t(numbers) * size);
}
void prefer_huge_pages_for_context(const regard_problem &p, const regard_tensor &context) {
  prefer_huge_pages(p, context, p.heads, p.queries, p.dim_value);
}
// The same for images, which may have millions of numbers.
void prefer_huge_pages_for_pictures(const regard_problem &p, const regard_readouts &readouts) {
  for (int64_t i = 0; i < readouts.count; i++) {
    const regard_readout &r = readouts.list[i];
    if (r.kind == REGARD_IMAGE || r.kind == REGARD_MAX_BLOCKS)
      system::prefer_huge_pages(r.result,
                                size_t(p.batch * p.heads * r.size * r.columns) * sizeof(float));
  }
}

}  // namespace

const Kernels &kernels() { return in_use().kernels(); }

}  // namespace regard

using namespace regard;

// Incremented by each incompatible change of these functions.
REGARD_EXPORT int regard_abi() { return REGARD_ABI; }

// The instruction sets compiled, and those of them that this processor supports: best first,
// comma-separated.
REGARD_EXPORT const char *regard_built() {
  static const std::string text = names([](const InstructionSet &) { return true; });
  return text.c_str();
}

REGARD_EXPORT const char *regard_supported() {
  static const std::string text = names([](const InstructionSet &set) { return set.runs(); });
  return text.c_str();
}

// Uses the instruction set of this name, or the best for nullptr. Returns 0, or 1 without effect if
// it is not in regard_supported().
REGARD_EXPORT int regard_choose(const char *name) {
  if (!name) {
    chosen.store(best());
    return 0;
  }
  for (const InstructionSet &set : sets) {
    if (std::strcmp(set.name, name) == 0 && set.runs()) {
      chosen.store(&set);
      return 0;
    }
  }
  return 1;
}

REGARD_EXPORT const char *regard_pool() { return pool(); }

REGARD_EXPORT const char *regard_instructions() { return kernels().set; }

REGARD_EXPORT int regard_forward(const regard_problem *problem, const regard_tensor *context,
                                 float *logsumexp) {
  if (has_no_rows(*problem)) return REGARD_DONE;
  prefer_huge_pages_for_context(*problem, *context);
  return kernels().forward(*problem, *context, logsumexp);
}

REGARD_EXPORT int regard_attend(const regard_problem *kind, void *query, void *key, void *value,
                                void *context, int64_t threads) {
  regard_problem problem = *kind;
  problem.query.data = query;
  problem.key.data = key;
  problem.value.data = value;
  problem.threads = threads;
  const int64_t row = problem.dim_value, head = row * problem.queries;
  const regard_tensor result = {context, head * problem.heads, head, row};
  return regard_forward(&problem, &result, nullptr);
}

REGARD_EXPORT int regard_backward(const regard_problem *problem,
                                  const regard_gradients *gradients) {
  const regard_problem &p = *problem;
  prefer_huge_pages(p, gradients->query, p.heads, p.queries, p.dim);
  prefer_huge_pages(p, gradients->key, p.groups, p.keys, p.dim);
  prefer_huge_pages(p, gradients->value, p.groups, p.keys, p.dim_value);
  return kernels().backward(p, *gradients);
}

REGARD_EXPORT int regard_read(const regard_problem *problem, const regard_readouts *readouts) {
  if (has_no_heads(*problem)) return REGARD_DONE;
  prefer_huge_pages_for_pictures(*problem, *readouts);
  return kernels().read(*problem, *readouts);
}

REGARD_EXPORT int regard_forward_and_read(const regard_problem *problem,
                                          const regard_tensor *context, float *logsumexp,
                                          const regard_readouts *readouts) {
  if (has_no_rows(*problem)) return regard_read(problem, readouts);
  prefer_huge_pages_for_context(*problem, *context);
  prefer_huge_pages_for_pictures(*problem, *readouts);
  return kernels().forward_and_read(*problem, *context, logsumexp, *readouts);
}

REGARD_EXPORT int regard_compare(const regard_problem *one, const regard_problem *other,
                                 const regard_divergence *divergence) {
  return has_no_rows(*one) ? REGARD_DONE : kernels().compare(*one, *other, *divergence);
}

REGARD_EXPORT int regard_multiply(const regard_matvec *product) {
  return product->vectors && product->outputs ? kernels().matvec(*product) : REGARD_DONE;
}

REGARD_EXPORT int regard_gpt_step(const regard_gpt *gpt) {
  return gpt->batch ? kernels().gpt_step(*gpt) : REGARD_DONE;
}

REGARD_EXPORT int regard_gelu(const regard_activation *call) { return kernels().gelu(*call); }

REGARD_EXPORT int regard_residual_norm_forward(const regard_residual_norm *call) {
  return kernels().residual_norm(*call);
}

REGARD_EXPORT int regard_residual_norm_backward(const regard_residual_norm_gradients *call) {
  return call->rows ? kernels().residual_norm_backward(*call) : REGARD_DONE;
}

REGARD_EXPORT int regard_cross_entropy_and_gradient(const regard_cross_entropy *call) {
  return kernels().cross_entropy(*call);
}

REGARD_EXPORT double regard_peak_flops(int dtype, int64_t threads) {
  return kernels().peak_flops(dtype, threads);
}

REGARD_EXPORT double regard_peak_bandwidth(int64_t threads) {
  return kernels().peak_bandwidth(threads);
}
