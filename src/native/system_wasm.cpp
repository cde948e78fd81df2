// The functions of system.h and threads.h in WebAssembly: memory, and a single thread.

#include <stdlib.h>

#include "processor.h"
#include "system.h"
#include "threads.h"

namespace regard {

namespace system {

void *allocate(size_t alignment, size_t bytes) {
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void release(void *memory) { free(memory); }

void prefer_huge_pages(void *, size_t) {}

}  // namespace system

bool processor::is_amd() { return false; }

void on_threads(int, void (*body)(void *), void *context) { body(context); }

void wait_above(const int64_t *, int64_t) {}

void *scratch(size_t bytes) {
  static void *memory = nullptr;
  static size_t size = 0;
  if (memory && size >= bytes) return memory;
  system::release(memory);
  memory = system::allocate(64, bytes + 1);
  size = memory ? bytes : 0;
  return memory;
}

}  // namespace regard
