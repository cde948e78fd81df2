// Steps of a random GPT.
#pragma once

#include <cstdint>
#include <string>

namespace driver {

// What is wrong with a step; empty if nothing is. What it computes is compared with the modules in
// Python; here are its memory and its threads: the logits are numbers, and the same bits on three
// threads and of each sequence alone.
std::string wrong_in_gpt_step(uint64_t seed);

}  // namespace driver
