// The functions of system.h and threads.h in WebAssembly: memory, and threads where it is shared.
//
// A thread is a worker of the page with an instance of this module, its own stack and the same
// memory. The page calls `join` and `help` in each; the latter never returns.

#include <stdlib.h>

#include "processor.h"
#include "system.h"
#include "threads.h"

namespace regard {

#if defined(__wasm_atomics__)

namespace {

constexpr int MOST = 64;  // helpers
constexpr size_t STACK = 1 << 20;
constexpr int SPINS = 50'000;      // some 0.1 ms, longer than a task; then others get the core
constexpr int64_t PAUSE = 50'000;  // nanoseconds

// What the helpers run; `number` counts the jobs, so that each is run once by each helper.
struct {
  void (*body)(void *);
  void *context;
  std::atomic<int32_t> number{0}, running{0}, helpers{0}, lock{0};
} job;

// Waits until a condition holds: where there are fewer cores than threads, what is waited for needs
// this one.
template <class Condition>
void wait_until(Condition condition) {
  for (int spins = 0; !condition(); spins++) {
    int32_t unchanged = 0;
    if (spins >= SPINS) __builtin_wasm_memory_atomic_wait32(&unchanged, 0, PAUSE);
  }
}

struct Locked {  // the allocator knows nothing of threads
  Locked() {
    wait_until([] {
      int32_t open = 0;
      return job.lock.compare_exchange_strong(open, 1);
    });
  }
  ~Locked() { job.lock.store(0); }
};

thread_local void *scratch_memory = nullptr;
thread_local size_t scratch_size = 0;

}  // namespace

void on_threads(int threads, void (*body)(void *), void *context) {
  const int32_t helpers = job.helpers.load();
  if (threads <= 1 || !helpers) return body(context);
  job.body = body, job.context = context;
  job.running.store(helpers);
  job.number.fetch_add(1);
  __builtin_wasm_memory_atomic_notify((int *)&job.number, MOST);
  body(context);
  wait_until([] { return !job.running.load(); });  // the context ends with this call
}

void wait_above(const int64_t *count, int64_t number) {
  wait_until([=] { return __atomic_load_n(count, __ATOMIC_ACQUIRE) > number; });
}

// Memory for a helper's stack; and its work, with that stack in use.
extern "C" __attribute__((export_name("stack"))) void *regard_stack() {
  return (char *)system::allocate(64, STACK) + STACK;
}

// A helper joins while no job runs, and gives the number of the last one to `help`.
extern "C" __attribute__((export_name("join"))) int32_t regard_join() {
  job.helpers.fetch_add(1);
  return job.number.load();
}

extern "C" __attribute__((export_name("help"))) void regard_help(int32_t seen) {
  for (;;) {
    while (job.number.load() == seen)
      __builtin_wasm_memory_atomic_wait32((int *)&job.number, seen, -1);
    seen = job.number.load();
    job.body(job.context);
    job.running.fetch_sub(1);
  }
}

#else

namespace {

struct Locked {
  ~Locked() {}
};

void *scratch_memory = nullptr;
size_t scratch_size = 0;

}  // namespace

void on_threads(int, void (*body)(void *), void *context) { body(context); }

void wait_above(const int64_t *, int64_t) {}

#endif

namespace system {

void *allocate(size_t alignment, size_t bytes) {
  const Locked locked;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void release(void *memory) {
  const Locked locked;
  free(memory);
}

void prefer_huge_pages(void *, size_t) {}

}  // namespace system

bool processor::is_amd() { return false; }

void *scratch(size_t bytes) {
  if (scratch_memory && scratch_size >= bytes) return scratch_memory;
  system::release(scratch_memory);
  scratch_memory = system::allocate(64, bytes + 1);
  scratch_size = scratch_memory ? bytes : 0;
  return scratch_memory;
}

}  // namespace regard
