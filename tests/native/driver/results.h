// The results of the kernels for a sample.
#pragma once

#include <string>

#include "sample.h"

namespace driver {

// A readout's parameters and result, (B, H, ...).
struct Reading {
  int64_t kind, size, columns, height, width, length;  // length: numbers of a head
  Numbers<float> result, given;
  Numbers<int64_t> positions, keys;  // keys: those of WEIGHTS, of LAG's queries, labels of SPANS,
                                     // copies of REPEATS

  const void *given_data() const {
    return keys ? static_cast<const void *>(keys.data()) : given.data();
  }
};

struct Results {
  // Computes everything on so many threads; what is asked for depends on the sample alone.
  static Results of(const Sample &sample, int64_t threads);
  // What differs from others in any bit; empty if nothing does.
  std::string difference(const Results &other) const;

  Tensor context, attended;  // the second by regard_attend, contiguous
  Numbers<float> logsumexp;
  // Gradients; those that are not wanted stay as they are made.
  Tensor query, key, value;
  Numbers<float> bias, alibi, sink;
  bool wants_query, wants_key, wants_value;
  // Readouts of all keys without a log-sum-exp, and of keys [first_key, last_key) with it.
  std::vector<Reading> all, part;
  int64_t first_key, last_key;
  // Divergences of each kind, (B, H, L), to the same pattern with another scale.
  static constexpr double OTHER_SCALE = 0.5;
  Numbers<double> divergence[3];
  bool together_as_apart;  // whether context and readouts of one call have the bits of two
};

}  // namespace driver
