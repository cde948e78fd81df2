// Runs work on torch's OpenMP threads, or on threads of the library itself.

#include "threads.h"

#include <system_error>
#include <thread>
#include <vector>

#include "system.h"

namespace regard {
namespace {

void on_own_threads(int threads, void (*body)(void *), void *context) {
  std::vector<std::thread> others;
  for (int i = 1; i < threads; i++) {
    try {
      others.emplace_back(body, context);
    } catch (const std::system_error &) {
      break;  // fewer threads do the same work
    }
  }
  body(context);
  for (std::thread &other : others) other.join();
}

struct Memory {
  void *data = nullptr;
  size_t size = 0;
  ~Memory() { system::release(data); }
};
thread_local Memory memory;

}  // namespace

void on_threads(int threads, void (*body)(void *), void *context) {
  static const system::Parallel parallel = system::find_parallel();
  if (parallel && !system::forked())
    parallel(body, context, unsigned(threads), 0);
  else
    on_own_threads(threads, body, context);
}

void wait_above(const int64_t *count, int64_t number) {
  constexpr int patience =
      1000;  // iterations, some tens of microseconds, before the core is yielded
  for (int round = 0; __atomic_load_n(count, __ATOMIC_ACQUIRE) <= number; round++) {
    if (round >= patience)
      system::yield();
    else
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
  }
}

const char *pool() {
  const system::Parallel parallel = system::find_parallel();
  return parallel ? system::file_of(parallel) : "";
}

void *scratch(size_t bytes) {
  if (memory.size >= bytes && memory.data) return memory.data;
  system::release(memory.data);
  constexpr size_t page = 4096;
  memory.size = (bytes / page + 1) * page;
  memory.data = system::allocate(page, memory.size);
  if (!memory.data) memory.size = 0;
  return memory.data;
}

}  // namespace regard
