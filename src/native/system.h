// The functions that each operating system implements differently.
#pragma once

#include <stddef.h>

namespace regard::system {

// Allocates aligned memory, freed by release(); null on failure.
void *allocate(size_t alignment, size_t bytes);
void release(void *memory);

// Requests huge pages for memory that is not yet written; a no-op if there are none.
constexpr size_t HUGE_PAGE = size_t(2) << 20;
void prefer_huge_pages(void *memory, size_t bytes);

// Whether processes may request the tiles of AMX. And the request: whether this process may use
// them; from then on its signals need larger stacks.
bool has_amx();
bool allows_amx();

// Yields this core to another thread.
void yield();

// Runs body(context) on each of a number of threads of an existing pool.
using Parallel = void (*)(void (*body)(void *), void *context, unsigned threads, unsigned flags);

// The entry point of the OpenMP runtime that torch has loaded; null if there is none. The library
// loads none itself, so there is never a second pool.
Parallel find_parallel();

// The file of the entry point.
const char *file_of(Parallel parallel);

// Whether this process is a fork, which lacks the threads of an inherited pool: the runtime would
// deadlock.
bool forked();

}  // namespace regard::system
