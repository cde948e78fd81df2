// Intel's Advanced Matrix Extensions: tile registers and tile multiplication.
//
// A tile has 16 rows of 64 bytes. In bfloat16, the left tile has rows of 32 elements, and each row
// of the right tile has 16 pairs as in pairs.h: the adjacent elements 2i and 2i + 1 of a column.
// The product has 16 rows of 16 floats. Compilers do not allocate tile registers, so assembly names
// them: each name is a constant here, and the compiler itself uses none of them.
#pragma once

#include <string.h>

#include "vector.h"

#if defined(__AMX_BF16__)

namespace regard::REGARD_SET {

constexpr int TILES = 8, ROWS_OF_TILE = 16, BYTES_OF_ROW = 64;
constexpr int COLUMNS_OF_TILE = BYTES_OF_ROW / 4;  // floats, or pairs
constexpr int LEFT = 4, RIGHT = 5;  // the first tiles of factors: those before them are sums

// While an object exists, a thread's tiles have their full size; or all but LEFT, the only left
// factor, have fewer columns. Its destructor restores the previous configuration, since some
// libraries set it only once.
class Tiles {
  struct Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Configuration) == 64);
  Configuration before_;

 public:
  explicit Tiles(int64_t columns = COLUMNS_OF_TILE) {
    asm volatile("sttilecfg %0" : "=m"(before_));
    Configuration ours;
    for (int i = 0; i < TILES; i++) {
      ours.row_bytes[i] = uint16_t(i == LEFT ? BYTES_OF_ROW : columns * int64_t(sizeof(float)));
      ours.rows[i] = ROWS_OF_TILE;
    }
    asm volatile("ldtilecfg %0" : : "m"(ours));
  }
  // Unless they are released, their content is saved at every context switch.
  ~Tiles() {
    if (before_.palette)
      asm volatile("ldtilecfg %0" : : "m"(before_));
    else
      asm volatile("tilerelease");
  }
  Tiles(const Tiles &) = delete;
  Tiles &operator=(const Tiles &) = delete;
};

// Rows lie `stride` bytes apart.
template <int tile>
REGARD_INLINE void load_tile(const void *from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
REGARD_INLINE void store_tile(void *to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
REGARD_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
template <int sums, int left, int right>
REGARD_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(left), "i"(right));
}

// Loads the first rows and bytes of a tile, and zeros after them: nothing else is read.
template <int tile>
REGARD_INLINE void load_part_of_tile(const void *from, int64_t stride, int64_t rows,
                                     int64_t bytes) {
  if (rows >= ROWS_OF_TILE && bytes >= BYTES_OF_ROW) return load_tile<tile>(from, stride);
  const auto bits_below = [](int64_t count) { return count < 64 ? (1ull << count) - 1 : ~0ull; };
  const uint64_t in_row = bits_below(bytes), rows_below = bits_below(rows);
  alignas(64) char part[ROWS_OF_TILE][BYTES_OF_ROW];
  REGARD_UNROLLED_FOR (int r = 0; r < ROWS_OF_TILE; r++) {
    const uint64_t lanes = rows_below >> r & 1 ? in_row : 0;
    _mm512_store_si512(part[r], _mm512_maskz_loadu_epi8(lanes, (const char *)from + r * stride));
  }
  load_tile<tile>(part, BYTES_OF_ROW);
}

}  // namespace regard::REGARD_SET

#endif
