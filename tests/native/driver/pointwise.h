// GELU, norms and cross-entropies of random tensors.
#pragma once

#include <cstdint>
#include <string>

namespace driver {

// What is wrong with them; empty if nothing is. What they compute is compared with float64 in
// Python; here are their memory and their threads: GELU is between 0 and its input, norms are
// numbers, losses not negative, and all are the same bits on three threads.
std::string wrong_pointwise(uint64_t seed);

}  // namespace driver
