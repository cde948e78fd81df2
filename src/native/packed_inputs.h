// Values that are packed once for several blocks of queries: neighbours see almost the same keys.
#pragma once

#include "arithmetic.h"

namespace regard::REGARD_SET {

// Consecutive keys of one group. Those that are multiplied together begin at a multiple of STEP,
// whichever block they are packed for, so that results do not depend on what was packed before.
template <class Arithmetic>
class PackedValues {
  using Number = typename Arithmetic::Number;
  static constexpr int32_t STEP = Arithmetic::STEP;
  static constexpr int64_t MOST_BYTES = 1 << 21;

  const regard_problem &p_;
  Number *const memory_;
  const int64_t capacity_;           // keys
  int64_t batch_ = -1, group_ = -1;  // whose values they are
  int64_t base_ = 0;                 // the first key that there is memory for; may be negative
  KeyRange packed_;

  static int64_t down(int64_t keys) { return keys / STEP * STEP; }
  static int64_t up(int64_t keys) { return down(keys + STEP - 1); }
  static int64_t row_bytes(const regard_problem &p) {
    return Arithmetic::value_stride(p.dim_value) * int64_t(sizeof(Number)) / STEP;
  }
  static int64_t capacity(const regard_problem &p) {
    if (Arithmetic::values_in_place(p.dim_value) || p.dim_value == 0) return 0;
    return min(down(MOST_BYTES / row_bytes(p)), up(p.keys));
  }

 public:
  static size_t size(const regard_problem &p) { return size_t(capacity(p) * row_bytes(p)); }
  // Without memory nothing is kept.
  PackedValues(const regard_problem &p, void *memory)
      : p_(p), memory_((Number *)memory), capacity_(memory ? capacity(p) : 0) {}

  // Makes room for the keys that a block of queries sees: the last ones, if there are too many.
  // Blocks that follow see keys before `stop`.
  void begin(const QueryBlock &queries, int64_t stop) {
    const bool same = queries.batch == batch_ && queries.group == group_;
    const int64_t top = up(stop);
    const bool fits = queries.first_key >= base_ || queries.first_key + capacity_ < top;
    if (same && fits && top > base_ && top <= base_ + capacity_) return;
    batch_ = queries.batch, group_ = queries.group;
    base_ = top - capacity_;
    packed_ = {};
  }

  // Whether these keys are packed already.
  bool holds(int32_t first, int32_t last) const {
    return packed_.start <= first && last <= packed_.stop;
  }

  // A block of keys that begins at a multiple of STEP: packs what is missing; where there is no
  // room, the whole block into scratch.
  PackedRows<Number> of(const QueryBlock &queries, int32_t first, int32_t last, float *scratch) {
    if (first < base_ || last > base_ + capacity_)
      return Arithmetic::values(p_.value, queries, first, last - first, p_.dim_value, scratch);
    if (last < packed_.start || first > packed_.stop) packed_ = {first, first};
    if (first < packed_.start) pack(queries, {first, packed_.start}), packed_.start = first;
    if (last > packed_.stop)
      pack(queries, {int32_t(down(packed_.stop)), last}), packed_.stop = last;
    return {at(first), Arithmetic::value_stride(p_.dim_value)};
  }

 private:
  Number *at(int32_t key) const {
    return memory_ + (key - base_) / STEP * Arithmetic::value_stride(p_.dim_value);
  }
  void pack(const QueryBlock &queries, KeyRange keys) {
    Arithmetic::values(p_.value, queries, keys.start, keys.stop - keys.start, p_.dim_value,
                       (float *)at(keys.start));
  }
};

}  // namespace regard::REGARD_SET
