// Runs the kernels on random problems and holds all results to the definition.
//
// usage: driver [SAMPLES [CALLERS]]: so many problems on every set of instructions that the
// processor runs; or by so many threads at once, on the best of them.

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <thread>

#include "gpt.h"
#include "judge.h"
#include "pointwise.h"

namespace driver {
namespace {

// The first error of a sample on the set of instructions in use; empty if there is none.
std::string check(const Sample &sample, const Reference &reference) {
  const Results results = Results::of(sample, 1);
  std::string wrong = verdict(sample, reference, results);
  if (!wrong.empty()) return wrong;
  const Results by_threads = Results::of(sample, 3);
  if (!results.together_as_apart || !by_threads.together_as_apart)
    return "context and readouts of one call: not the bits of two";
  const std::string difference = results.difference(by_threads);
  return difference.empty() ? "" : difference + ": not the same bits with three threads";
}

void report(const Sample &sample, const std::string &wrong) {
  std::ostringstream line;
  line << regard_instructions() << ", " << sample.text() << ": " << wrong << "\n";
  std::cerr << line.str();
}

std::vector<std::string> supported() {
  std::istringstream names(regard_supported());
  std::vector<std::string> sets;
  for (std::string name; std::getline(names, name, ',');) sets.push_back(name);
  return sets;
}

int64_t on_every_set(int64_t samples) {
  int64_t failures = 0;
  for (int64_t seed = 0; seed < samples; seed++) {
    const Sample sample = Sample::random(uint64_t(seed));
    const Reference reference(sample);
    for (const std::string &set : supported()) {
      regard_choose(set.c_str());
      const std::string wrong = check(sample, reference);
      if (!wrong.empty()) report(sample, wrong), failures++;
      const std::string step = wrong_in_gpt_step(uint64_t(seed));
      if (!step.empty()) std::cerr << set << ", " << step << "\n", failures++;
      const std::string pointwise = wrong_pointwise(uint64_t(seed));
      if (!pointwise.empty()) std::cerr << set << ", " << pointwise << "\n", failures++;
    }
  }
  return failures;
}

int64_t at_once(int64_t samples, int64_t callers) {
  std::atomic<int64_t> next = 0, failures = 0;
  const auto call = [&] {
    for (int64_t seed; (seed = next++) < samples;) {
      const Sample sample = Sample::random(uint64_t(seed));
      const std::string wrong = check(sample, Reference(sample));
      if (!wrong.empty()) report(sample, wrong), failures++;
      const std::string step = wrong_in_gpt_step(uint64_t(seed));
      if (!step.empty()) report(sample, step), failures++;
      const std::string pointwise = wrong_pointwise(uint64_t(seed));
      if (!pointwise.empty()) report(sample, pointwise), failures++;
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(size_t(callers));
  for (int64_t i = 0; i < callers; i++) threads.emplace_back(call);
  for (std::thread &thread : threads) thread.join();
  return failures;
}

}  // namespace
}  // namespace driver

// NOLINTNEXTLINE(bugprone-exception-escape): an exception is the driver's own mistake and ends it
int main(int count, char **arguments) {
  const int64_t samples = count > 1 ? std::strtoll(arguments[1], nullptr, 10) : 300;
  const int64_t callers = count > 2 ? std::strtoll(arguments[2], nullptr, 10) : 0;
  const int64_t wrong = callers ? driver::at_once(samples, callers) : driver::on_every_set(samples);
  std::cout << samples << " problems, "
            << (callers ? std::to_string(callers) + " callers at once, " : "") << "sets "
            << regard_supported() << ": " << wrong << " wrong\n";
  return wrong > 0;
}
