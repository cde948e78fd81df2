// Parallel loops on torch's own OpenMP pool or, without one, on threads of the library.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "abi.h"

namespace regard {

// Runs body(context) once on each of a number of threads, including the calling one.
void on_threads(int threads, void (*body)(void *), void *context);

// The file of the OpenMP runtime in use; empty if there is none.
const char *pool();

// Scratch memory of the calling thread, aligned to cache lines and reused by its next call; null if
// the allocation fails.
void *scratch(size_t bytes);

// Waits until another thread has stored a count above a number, with acquire semantics.
void wait_above(const int64_t *count, int64_t number);

// Calls task(number, memory) for every number below count, on any thread, started in order.
template <class Task>
int for_each_task(int threads, int64_t count, size_t memory_per_thread, Task task) {
  struct Shared {
    std::atomic<int64_t> next{0};
    std::atomic<int> result{REGARD_DONE};
    int64_t count;
    size_t memory_per_thread;
    Task &task;
  };
  const auto body = [](void *context) {
    Shared &shared = *static_cast<Shared *>(context);
    void *memory = scratch(shared.memory_per_thread);
    if (!memory) shared.result = REGARD_OUT_OF_MEMORY;
    while (memory) {
      const int64_t number = shared.next.fetch_add(1, std::memory_order_relaxed);
      if (number >= shared.count) break;
      shared.task(number, memory);
    }
  };
  Shared shared{.count = count, .memory_per_thread = memory_per_thread, .task = task};
  const int64_t useful = count < threads ? count : threads;
  if (useful <= 1)
    body(&shared);
  else
    on_threads(int(useful), body, &shared);
  return shared.result;
}

}  // namespace regard
