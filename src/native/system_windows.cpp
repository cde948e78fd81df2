// The functions of system.h on Windows.

#include <malloc.h>
#include <windows.h>

#include "system.h"

namespace regard::system {

void *allocate(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }

void release(void *memory) { _aligned_free(memory); }

void prefer_huge_pages(void *, size_t) {}  // they require a privilege there

bool has_amx() { return false; }

bool allows_amx() { return false; }

void yield() { SwitchToThread(); }

// LLVM's and Intel's runtimes lack GCC's entry point on Windows.
Parallel find_parallel() { return nullptr; }

const char *file_of(Parallel) { return ""; }

bool forked() { return false; }  // Windows has no forks

}  // namespace regard::system
