// Measures the machine's peak rates, the limits to which the kernels are compared.
#pragma once

#include <chrono>

#include "arithmetic.h"
#include "system.h"
#include "threads.h"

namespace regard::REGARD_SET {

template <class Work>
double seconds_of(Work work) {
  using clock = std::chrono::steady_clock;
  const clock::time_point start = clock::now();
  work();
  return std::chrono::duration<double>(clock::now() - start).count();
}

// Enough independent sums that no multiplication waits for the previous one.
constexpr int SUMS = REGISTERS == 32 ? 24 : 12;
constexpr int64_t ROUNDS = 1 << 14;

template <class Arithmetic>
__attribute__((noinline)) void multiply_and_add() {
  floats number = (floats)broadcast(int32_t(0x3f803f80)),
         lanes = number;  // near 1; as pairs, 1 and 1
  floats sums[SUMS] = {};
  keep_in_register(number);
  keep_in_register(lanes);
  REGARD_UNROLLED_FOR (int i = 0; i < SUMS; i++) keep_in_register(sums[i]);
  for (int64_t round = 0; round < ROUNDS; round++)
    REGARD_UNROLLED_FOR (int i = 0; i < SUMS; i++) {
      keep_in_register(lanes);  // else the compiler computes one product for all sums
      sums[i] = Arithmetic::multiply_add(number, lanes, sums[i]);
      keep_in_register(sums[i]);
    }
}

#if defined(__AMX_BF16__)
// Enough independent sums that none waits for the previous product.
__attribute__((noinline)) static void multiply_and_add_tiles() {
  const Tiles tiles;
  for_each_below<TILES>([](auto tile) REGARD_INLINE_LAMBDA { clear_tile<tile>(); });
  for (int64_t round = 0; round < ROUNDS; round++)
    for_each_below<LEFT>([](auto sums)
                             REGARD_INLINE_LAMBDA { multiply_tiles<sums, LEFT, RIGHT>(); });
}
#endif

// Operations per second, given those of a call of `run`; 0 without memory.
static double peak_rate(int64_t threads, double operations, void (*run)()) {
  const int64_t tasks = 512 * threads;  // some 20 ms, many times the start of the threads
  int result = REGARD_DONE;
  const double seconds = seconds_of(
      [&] { result = for_each_task(int(threads), tasks, 0, [run](int64_t, void *) { run(); }); });
  return result == REGARD_DONE ? operations * double(tasks) / seconds : 0;
}

// The rate of the arithmetic in registers.
template <class Arithmetic>
double peak_flops(int64_t threads) {
  constexpr double operations = double(ROUNDS) * SUMS * LANES * Arithmetic::STEP * 2;
  return peak_rate(threads, operations, multiply_and_add<Arithmetic>);
}

#if defined(__AMX_BF16__)
static double peak_flops_of_tiles(int64_t threads) {
  constexpr int64_t of_tile = int64_t(ROWS_OF_TILE) * BYTES_OF_ROW / 2 * LANES * 2;
  return peak_rate(threads, double(ROUNDS) * LEFT * of_tile, multiply_and_add_tiles);
}
#endif

__attribute__((noinline)) static void read_all(const float *from, int64_t count) {
  floats sums[8] = {};
  for (int64_t i = 0; i < count; i += 8 * LANES)
    REGARD_UNROLLED_FOR (int j = 0; j < 8; j++) sums[j] += load(from + i + j * LANES);
  REGARD_UNROLLED_FOR (int j = 0; j < 8; j++) keep_in_register(sums[j]);
}

// Bytes per second read from a buffer larger than the caches; 0 without memory for it.
[[maybe_unused]] static double peak_bandwidth(int64_t threads) {
  constexpr int64_t bytes = int64_t(512) << 20, piece = int64_t(1) << 20, times = 4;
  constexpr int64_t pieces = bytes / piece, floats_of_piece = piece / int64_t(sizeof(float));
  float *memory = (float *)system::allocate(system::HUGE_PAGE, size_t(bytes));
  if (!memory) return 0;
  system::prefer_huge_pages(memory, size_t(bytes));  // as weights have them
  const auto for_each_piece = [&](int64_t count, auto task) {
    return for_each_task(int(threads), count, 0, [&](int64_t number, void *) {
      task(memory + number % pieces * floats_of_piece);
    });
  };
  int result = for_each_piece(pieces, [](float *at) { memset(at, 0, size_t(piece)); });
  const double seconds = seconds_of([&] {
    result |= for_each_piece(times * pieces, [](float *at) { read_all(at, floats_of_piece); });
  });
  system::release(memory);
  return result == REGARD_DONE ? double(times * bytes) / seconds : 0;
}

}  // namespace regard::REGARD_SET
