#include "threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace regard {
namespace {

using Parallel = void (*)(void (*)(void *), void *, unsigned, unsigned);

// The entry that GCC compiles `#pragma omp parallel` to, in whichever runtime torch has loaded;
// LLVM's has it too. We load none, so there is never a second pool.
Parallel find_parallel() {
  return reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

// Whether this process is a fork that has run no program of its own. It may have inherited a pool
// that worked before this library was loaded, when nobody was there to notice the fork. Linux has a
// flag for it, the ninth number of this file, behind a name that may hold anything; macOS has no
// such file, and there the runtime is LLVM's, which makes a new pool after a fork.
bool is_fork() noexcept {
  constexpr unsigned forked_and_not_executed = 0x40;  // PF_FORKNOEXEC of the kernel's sched.h
  std::ifstream file("/proc/self/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  std::istringstream numbers(line.substr(line.rfind(')') + 1));
  std::string state;
  long long parent, group, session, terminal, foreground;
  unsigned long long flags = 0;
  numbers >> state >> parent >> group >> session >> terminal >> foreground >> flags;
  return numbers && (flags & forked_and_not_executed);
}

// A fork has none of a pool's threads, and its runtime would wait for them forever.
std::atomic<bool> forked{is_fork()};
const int watch_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });

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
  ~Memory() { free(data); }
};
thread_local Memory memory;

}  // namespace

void on_threads(int threads, void (*body)(void *), void *context) {
  static const Parallel parallel = find_parallel();
  if (parallel && !forked)
    parallel(body, context, unsigned(threads), 0);
  else
    on_own_threads(threads, body, context);
}

void wait_above(const int64_t *count, int64_t number) {
  constexpr int patience =
      1000;  // rounds, some tens of microseconds, before the core is given away
  for (int round = 0; __atomic_load_n(count, __ATOMIC_ACQUIRE) <= number; round++) {
    if (round >= patience)
      sched_yield();
    else
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
  }
}

const char *pool() {
  Dl_info found;
  const Parallel parallel = find_parallel();
  return parallel && dladdr(reinterpret_cast<void *>(parallel), &found) ? found.dli_fname : "";
}

void *scratch(size_t bytes) {
  if (memory.size >= bytes && memory.data) return memory.data;
  free(memory.data);
  constexpr size_t page = 4096;
  memory.size = (bytes / page + 1) * page;
  memory.data = aligned_alloc(page, memory.size);
  if (!memory.data) memory.size = 0;
  return memory.data;
}

}  // namespace regard
