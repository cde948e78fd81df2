// Phases of work for a team of threads: a phase begins when the previous one is finished.
//
// Each phase consists of tasks that any thread may take. The threads do not sleep between phases. A
// phase waits for its tasks, not for threads, so a thread that is late or never comes delays
// nothing.
#pragma once

#include <stdlib.h>

#include <new>

#include "system.h"
#include "threads.h"

namespace regard {

// A thread's state in the phases.
class Team {
 public:
  struct Phase {
    alignas(64) std::atomic<int64_t> next{0};
    alignas(64) int64_t finished = 0;
  };

  explicit Team(Phase *first) : phase_(first) {}

  // Calls task(number) for every number below count, on any thread; when it returns, all are done.
  template <class Task>
  void run(int64_t count, Task task) {
    Phase &phase = *phase_++;
    int64_t done = 0;
    for (int64_t number; (number = phase.next.fetch_add(1, std::memory_order_relaxed)) < count;
         done++)
      task(number);
    if (done) __atomic_fetch_add(&phase.finished, done, __ATOMIC_ACQ_REL);
    wait_above(&phase.finished, count - 1);
  }

 private:
  Phase *phase_;
};

// Calls body(team, memory) on a number of threads, each of which runs the same phases.
template <class Body>
int on_team(int threads, int64_t phases, size_t memory_per_thread, Body body) {
  struct Shared {
    Team::Phase *first;
    size_t memory_per_thread;
    Body &body;
    std::atomic<bool> finished{false};
  };
  void *memory = system::allocate(alignof(Team::Phase), size_t(phases) * sizeof(Team::Phase));
  if (!memory) return REGARD_OUT_OF_MEMORY;
  auto *first = static_cast<Team::Phase *>(memory);
  for (int64_t i = 0; i < phases; i++) new (first + i) Team::Phase;
  Shared shared{.first = first, .memory_per_thread = memory_per_thread, .body = body};
  const auto run = [](void *context) {
    Shared &all = *static_cast<Shared *>(context);
    void *own = scratch(all.memory_per_thread);
    if (!own) return;  // the others do the work
    Team team(all.first);
    all.body(team, own);
    all.finished = true;
  };
  if (threads <= 1)
    run(&shared);
  else
    on_threads(threads, run, &shared);
  system::release(memory);
  return shared.finished ? REGARD_DONE : REGARD_OUT_OF_MEMORY;
}

}  // namespace regard
