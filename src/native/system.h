// The functions that each operating system implements differently.
#pragma once

#include <stddef.h>

namespace regard::system {

// Aligned memory, given back by release(); null if there is none.
void *allocate(size_t alignment, size_t bytes);
void release(void *memory);

// Asks for huge pages where they fit into memory that is not yet written; where there are none it
// stays as it is.
constexpr size_t HUGE_PAGE = size_t(2) << 20;
void prefer_huge_pages(void *memory, size_t bytes);

// Whether processes that request the tiles of AMX may use them. And requests them: whether this
// process may. From then on its signals need larger stacks.
bool has_amx();
bool allows_amx();

// Lets another thread run on this core.
void yield();

// Runs body(context) on each of so many threads of a pool that is there already.
using Parallel = void (*)(void (*body)(void *), void *context, unsigned threads, unsigned flags);

// The entry of the OpenMP runtime that torch has loaded; null if there is none. We load none, so
// there is never a second pool.
Parallel find_parallel();

// The file that the entry is in.
const char *file_of(Parallel parallel);

// Whether this process is a fork, which has none of a pool's threads: its runtime would wait for
// them forever.
bool forked();

}  // namespace regard::system
