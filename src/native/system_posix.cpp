// The functions of system.h on Linux, macOS and other POSIX systems.

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>

#include "system.h"

namespace regard::system {
namespace {

// Whether this process is a fork without an exec. It may have inherited a pool that was started
// before this library was loaded, so an atfork handler does not suffice. Linux has a flag for it,
// field 9 of this file, after a name that may contain any characters; macOS has no such file, but
// its runtime is LLVM's, which makes a new pool after a fork.
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

std::atomic<bool> is_forked{is_fork()};
const int watch_forks = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

}  // namespace

void *allocate(size_t alignment, size_t bytes) { return aligned_alloc(alignment, bytes); }

void release(void *memory) { free(memory); }

void prefer_huge_pages(void *memory, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  const size_t before = -uintptr_t(memory) % HUGE_PAGE;  // bytes before the first huge page
  if (bytes < before + HUGE_PAGE) return;
  madvise((char *)memory + before, (bytes - before) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

#if defined(__linux__) && defined(__x86_64__)
constexpr long TILES = 18;  // XFEATURE_XTILE_DATA

bool has_amx() {
  constexpr long supported = 0x1021;  // ARCH_GET_XCOMP_SUPP
  uint64_t features = 0;
  return syscall(SYS_arch_prctl, supported, &features) == 0 && features >> TILES & 1;
}

bool allows_amx() {
  constexpr long request = 0x1023;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, request, TILES) == 0;
}
#else
bool has_amx() { return false; }

bool allows_amx() { return false; }
#endif

void yield() { sched_yield(); }

// The entry point that GCC compiles `#pragma omp parallel` to; LLVM's runtime has it too.
Parallel find_parallel() {
  return reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
}

const char *file_of(Parallel parallel) {
  Dl_info found;
  return dladdr(reinterpret_cast<void *>(parallel), &found) ? found.dli_fname : "";
}

bool forked() { return is_forked; }

}  // namespace regard::system
