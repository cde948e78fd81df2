// Keys and values packed once for several blocks of queries.
//
// Adjacent blocks see almost the same keys.
#pragma once

#include "arithmetic.h"

namespace regard::REGARD_SET {

// Rows of consecutive keys of one group. Rows of one multiplication begin at a multiple of STEP,
// for any block, so that results do not depend on what was packed before.
template <class Arithmetic>
class PackedTensor {
  using Number = typename Arithmetic::Number;
  static constexpr int32_t STEP = Arithmetic::STEP;
  static constexpr int64_t MOST_BYTES = 1 << 21;

  const regard_problem &p_;
  const regard_tensor &from_;
  const int64_t dim_;
  Number *const memory_;
  const int64_t capacity_;           // keys
  int64_t batch_ = -1, group_ = -1;  // whose rows they are
  int64_t base_ = 0;                 // the key at the start of the memory; may be negative
  KeyRange packed_;

  static int64_t down(int64_t keys) { return keys / STEP * STEP; }
  static int64_t up(int64_t keys) { return down(keys + STEP - 1); }
  static int64_t row_bytes(int64_t dim) {
    return Arithmetic::value_stride(dim) * int64_t(sizeof(Number)) / STEP;
  }
  static int64_t capacity(const regard_problem &p, int64_t dim) {
    return min(down(MOST_BYTES / row_bytes(dim)), up(p.keys));
  }

 public:
  static size_t size(const regard_problem &p, int64_t dim) {
    return aligned(size_t(capacity(p, dim) * row_bytes(dim)));
  }
  // Without memory nothing is stored.
  PackedTensor(const regard_problem &p, const regard_tensor &from, int64_t dim, void *memory)
      : p_(p), from_(from), dim_(dim), memory_((Number *)memory),
        capacity_(memory ? capacity(p, dim) : 0) {}

  // Reserves memory for the keys that a block of queries sees: for the last ones, if there are too
  // many. The next blocks see keys before `stop`.
  void begin(const QueryBlock &queries, int64_t stop) {
    const bool same = queries.batch == batch_ && queries.group == group_;
    const int64_t top = up(stop);
    const bool fits = queries.first_key >= base_ || queries.first_key + capacity_ < top;
    if (same && fits && top > base_ && top <= base_ + capacity_) return;
    batch_ = queries.batch, group_ = queries.group;
    base_ = top - capacity_;
    packed_ = {};
  }

  bool has_room(int32_t first, int32_t last) const {
    return first >= base_ && last <= base_ + capacity_;
  }
  // Whether these keys' rows are packed already.
  bool holds(int32_t first, int32_t last) const {
    return packed_.start <= first && last <= packed_.stop;
  }

  // The rows of a block of keys that begins at a multiple of STEP and has memory; packs those that
  // are missing.
  PackedRows<Number> of(const QueryBlock &queries, int32_t first, int32_t last) {
    if (last < packed_.start || first > packed_.stop) packed_ = {first, first};
    if (first < packed_.start) pack(queries, {first, packed_.start}), packed_.start = first;
    if (last > packed_.stop)
      pack(queries, {int32_t(down(packed_.stop)), last}), packed_.stop = last;
    return {at(first), Arithmetic::value_stride(dim_)};
  }

 private:
  Number *at(int32_t key) const {
    return memory_ + (key - base_) / STEP * Arithmetic::value_stride(dim_);
  }
  void pack(const QueryBlock &queries, KeyRange keys) {
    Arithmetic::pack_rows(from_, queries, keys.start, keys.stop - keys.start, dim_,
                          (float *)at(keys.start));
  }
};

// The packed keys and values of a problem: keys if a copy pays off, values also if they can't be
// multiplied in place.
template <class Arithmetic>
struct PackedInputs {
  using Rows = PackedRows<typename Arithmetic::Number>;

  const regard_problem &p;
  PackedTensor<Arithmetic> keys, values;

  static size_t size_of_keys(const regard_problem &p) {
    return Arithmetic::copies_keys(p) ? PackedTensor<Arithmetic>::size(p, p.dim) : 0;
  }
  static size_t size_of_values(const regard_problem &p) {
    const bool kept = p.dim_value > 0 && !Arithmetic::values_in_place(p, p.value, p.dim_value);
    return kept ? PackedTensor<Arithmetic>::size(p, p.dim_value) : 0;
  }
  static size_t size(const regard_problem &p) { return size_of_keys(p) + size_of_values(p); }

  // Without memory nothing is stored, and without `of_values` only keys are.
  PackedInputs(const regard_problem &p, void *memory, bool of_values = true)
      : p(p), keys(p, p.key, p.dim, size_of_keys(p) ? memory : nullptr),
        values(p, p.value, p.dim_value,
               memory && of_values && size_of_values(p) ? (char *)memory + size_of_keys(p)
                                                        : nullptr) {}

  // See PackedTensor.
  void begin(const QueryBlock &queries, int64_t stop) {
    keys.begin(queries, stop);
    values.begin(queries, stop);
  }

  // The rows of a block of keys; in place, or in scratch without memory.
  Rows keys_of(const QueryBlock &queries, int32_t first, int32_t last, float *scratch) {
    return keys.has_room(first, last)
               ? keys.of(queries, first, last)
               : Arithmetic::keys(p.key, queries, first, last - first, p.dim, scratch);
  }
  // The rows of values; the block begins at a multiple of STEP.
  Rows values_of(const QueryBlock &queries, int32_t first, int32_t last, float *scratch) {
    return values.has_room(first, last)
               ? values.of(queries, first, last)
               : Arithmetic::values(p, p.value, queries, first, last - first, p.dim_value, scratch);
  }
};

}  // namespace regard::REGARD_SET
