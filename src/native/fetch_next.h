// Prefetching during the forward pass.
//
// While a block of queries is computed, the next block's queries are prefetched, and those of its
// keys and values that this block does not see, as when a window moves or a document begins. They
// are prefetched a few lines at a time: a core stalls when too many lines are in flight.
#pragma once

#include "query_block.h"

namespace regard::REGARD_SET {

class FetchNextBlock {
  static constexpr int32_t MOST_KEYS = 192;    // further keys are fetched a tile ahead
  static constexpr int32_t LAST_KEYS = 576;    // last keys of a block, during which all is fetched
  static constexpr int64_t NEAR = 512 * 1024;  // bytes, half of a core's L2 cache

  const regard_problem &p_;
  const QueryBlock &next_;
  const bool same_group_;
  KeyRange keys_;  // of the next block, which this one does not see
  bool near_;
  int64_t first_key_ = INT64_MAX;  // first of the block's last keys, if anything is fetched
  int64_t rows_a_key_ = 0;         // maximum rows per key for each tensor, times 2²⁰
  int64_t fetched_ = 0;

 public:
  // `next` has no rows if there is no next block; `follows` tells whether the same thread computed
  // the previous block, of the same group.
  FetchNextBlock(const regard_problem &p, const QueryBlock &queries, const QueryBlock &next,
                 bool follows)
      : p_(p), next_(next),
        same_group_(next.count > 0 && next.batch == queries.batch && next.group == queries.group) {
    const int64_t row = (p.dim + p.dim_value) * (p.dtype == REGARD_FLOAT32 ? 4 : 2);
    near_ = follows && (queries.stop_key - queries.first_key) * row <= NEAR;
    if (!same_group_) return;
    keys_ = {next.first_key, min(next.stop_key, next.first_key + MOST_KEYS)};
    if (keys_.start >= queries.first_key) keys_.start = max(keys_.start, queries.stop_key);
    if (keys_.stop <= queries.stop_key) keys_.stop = min(keys_.stop, queries.first_key);
    first_key_ = max(queries.first_key, queries.stop_key - LAST_KEYS);
    const int64_t rows = max(next.count, keys_.stop - keys_.start);
    rows_a_key_ = (rows << 20) / max(int64_t(1), queries.stop_key - first_key_);
  }

  // Whether the block's keys and values are few enough to stay in the core's L2 cache until the
  // next block.
  bool near() const { return near_; }

  // Fetches the rows that are due after the block's keys before this one.
  __attribute__((always_inline)) void before_key(int64_t key) {
    if (key > first_key_) fetch_up_to((key - first_key_) * rows_a_key_ >> 20);
  }

  // Fetches queries of another group during part of the block's last keys: in small groups, a check
  // after each tile costs more than it saves.
  __attribute__((always_inline)) void with_last_keys(const Part &part) const {
    if (!same_group_)
      with_element(
          [&](auto element) { fetch_rows<decltype(element)>(p_.query, next_, p_.dim, part); });
  }

 private:
  __attribute__((noinline)) void fetch_up_to(int64_t due) {
    asm volatile("");  // else GCC may omit calls, since it assumes that prefetches have no effect
    const int64_t rows = min(int64_t(keys_.stop - keys_.start), due) - fetched_,
                  key = keys_.start + fetched_;
    with_element([&](auto element) {
      using Element = decltype(element);
      fetch_rows<Element>(p_.query, next_, fetched_, min(int64_t(next_.count), due), p_.dim);
      fetch_strided(first_row<Element>(p_.key, next_, key), p_.key.row, rows, p_.dim);
      fetch_strided(first_row<Element>(p_.value, next_, key), p_.value.row, rows, p_.dim_value);
    });
    fetched_ = due;
  }

  // Calls `call` with an element of the size of the problem's, which suffices for a prefetch.
  template <class Call>
  __attribute__((always_inline)) void with_element(Call call) const {
    if (p_.dtype == REGARD_FLOAT32)
      call(Float32());
    else
      call(Float16());
  }
};

// Fetches, for each tile of keys from `key` on, their values and the rows that are due.
struct FetchWithKeys {
  RowsToFetch values;
  FetchNextBlock &next;
  int32_t key;

  template <class Rows>
  __attribute__((always_inline)) void operator()(int64_t k, Rows rows) const {
    fetch(values, k, rows);
    next.before_key(key + k + rows);
  }
};

}  // namespace regard::REGARD_SET
