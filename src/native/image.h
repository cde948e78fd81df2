// The pattern averaged down to a picture.
//
// In units of which a picture of `pixels` has pixels·length on a side, token i covers
// [i·pixels, (i+1)·pixels) and pixel p covers [p·length, (p+1)·length): a token that an edge cuts
// gives its weight to both sides by integer shares. Columns are summed up first, in the lanes as
// they are; then rows.
#pragma once

#include "key_readouts.h"

namespace regard::REGARD_SET {

// A token's place among pixels: its first, and the share of it that lies there; the rest is in the
// next.
struct Place {
  int64_t pixel;
  float share;
};

REGARD_INLINE Place place_of(int64_t token, int64_t pixels, int64_t length) {
  const int64_t pixel = token * pixels / length, edge = (pixel + 1) * length;
  const int64_t inside = least(edge - token * pixels, pixels);
  return {pixel, inside == pixels ? 1.0f : float(double(inside) / double(pixels))};
}

struct Image : Readout {
  // The pixel rows that queries [first, last) lie in.
  struct Band {
    int64_t first, rows;
    Band(const regard_problem &p, const regard_readout &asked, int64_t start, int64_t stop) {
      first = start * asked.size / p.queries;
      rows = stop > start ? (stop * asked.size - 1) / p.queries - first + 1 : 0;
    }
  };

  static constexpr int GATHERED = 2 * LANES;  // pixel columns that are summed up in the lanes
  static constexpr int MOST_BLOCKS = 16;  // of keys, after which floats would lose what is added

  struct Memory {
    float *columns;  // (GATHERED, QUERIES)
    int64_t *state;  // the first of them, and blocks since they were empty

    explicit Memory(char *memory) {
      columns = (float *)memory;
      state = (int64_t *)(columns + GATHERED * QUERIES);
    }
    int64_t &first() const { return state[0]; }
    int64_t &blocks() const { return state[1]; }
  };

  static size_t memory(const regard_problem &, const regard_readout &) {
    return GATHERED * QUERIES * sizeof(float) + 2 * sizeof(int64_t);
  }
  static int64_t width(const regard_readout &asked) { return padded(asked.columns); }
  static int64_t sums(const regard_problem &p, const regard_readout &asked) {
    const Division division(p);
    int64_t rows = 0;
    for (int64_t c = 0; c < division.chunks; c++)
      rows = most(rows, Band(p, asked, division.start(p, c), division.start(p, c + 1)).rows);
    return rows * width(asked);
  }

  static void clear(const Memory &memory, int64_t first) {
    memset(memory.columns, 0, GATHERED * QUERIES * sizeof(float));
    memory.first() = first;
    memory.blocks() = 0;
  }
  static void begin(const At &at, const Task &) { clear(Memory(at.memory), 0); }

  static void weights(const At &at, const Block &block) {
    with_live(block.task.vectors, [&](auto vectors) { gather<vectors>(at, block); });
  }

  template <int vectors>
  REGARD_INLINE void gather(const At &at, const Block &block) {
    const Memory memory(at.memory);
    const int64_t pixels = at.asked.columns, length = at.p.keys, stop = block.key + block.keys;
    if (++memory.blocks() > MOST_BLOCKS) spill(at, block.task, block.key * pixels / length);
    for (int64_t key = block.key; key < stop;) {
      const Place place = place_of(key, pixels, length);
      if (place.pixel + 1 >= memory.first() + GATHERED) spill(at, block.task, place.pixel);
      float *column = memory.columns + (place.pixel - memory.first()) * QUERIES;
      const float *weights = block.weights + (key - block.key) * QUERIES;
      if (place.share == 1) {
        const int64_t whole = least((place.pixel + 1) * length / pixels, stop) - key;
        add_keys<vectors>(weights, whole, column);
        key += whole;
      } else {
        REGARD_UNROLL for (int j = 0; j < vectors; j++) {
          const floats weight = load(weights + j * LANES);
          float *here = column + j * LANES, *next = here + QUERIES;
          store(here, load(here) + weight * place.share);
          store(next, load(next) + weight * (1 - place.share));
        }
        key++;
      }
    }
  }

  template <int vectors>
  REGARD_INLINE void add_keys(const float *weights, int64_t keys, float *column) {
    floats sums[vectors];
    REGARD_UNROLL for (int j = 0; j < vectors; j++) sums[j] = load(weights + j * LANES);
    for (int64_t k = 1; k < keys; k++)
      REGARD_UNROLL for (int j = 0; j < vectors; j++)
        sums[j] += load(weights + k * QUERIES + j * LANES);
    REGARD_UNROLL for (int j = 0; j < vectors; j++)
      store(column + j * LANES, load(column + j * LANES) + sums[j]);
  }

  // Adds the columns gathered to the picture, and goes on from another.
  static void spill(const At &at, const Task &task, int64_t next) {
    const Memory memory(at.memory);
    for (int c = 0; c < GATHERED && memory.first() + c < at.asked.columns; c += LANES)
      add_rows(at, task, memory.columns + c * QUERIES, memory.first() + c);
    clear(memory, next);
  }

  static void add_rows(const At &at, const Task &task, const float *columns, int64_t first) {
    const int64_t pixels = at.asked.size, length = at.p.queries;
    const Band band(at.p, at.asked, at.unit.first, at.unit.last);
    const int64_t count = at.asked.columns - first;
    alignas(64) float rows[QUERIES][LANES];
    for (int j = 0; j < task.vectors; j++) {
      floats tile[LANES];
      REGARD_UNROLL for (int i = 0; i < LANES; i++) tile[i] = load(columns + i * QUERIES + j * LANES);
      transpose(tile);
      REGARD_UNROLL for (int i = 0; i < LANES; i++) store(rows[j * LANES + i], tile[i]);
    }
    for_each_head(task, [&](int64_t head, int r, int last) {
      double *picture = at.sums_of(head) + first;
      const auto row_of = [&](int64_t pixel) { return picture + (pixel - band.first) * width(at.asked); };
      Place place = place_of(task.query[r], pixels, length);
      floats sum = {};
      int64_t pixel = place.pixel;
      for (; r < last; r++) {
        place = place_of(task.query[r], pixels, length);
        if (place.pixel != pixel) add_to(row_of(pixel), sum, count), sum = floats{}, pixel = place.pixel;
        sum += load(rows[r]) * place.share;
        if (place.share < 1) {
          add_to(row_of(pixel), sum, count);
          sum = load(rows[r]) * (1 - place.share);
          pixel++;
        }
      }
      add_to(row_of(pixel), sum, count);
    });
  }

  static void end(const At &at, const Task &task, const Norms &) { spill(at, task, 0); }

  // Pixels are means: each covers L/rows × S/columns weights.
  static void finish(const regard_problem &p, const regard_readout &asked, int64_t head,
                     const Sums &sums) {
    const double area = (double(p.queries) / double(asked.size)) *
                        (double(p.keys) / double(asked.columns));
    for (int64_t row = 0; row < asked.size; row++) {
      const double *parts[MOST_CHUNKS];  // of those chunks that have a share in it
      int count = 0;
      for (int64_t c = 0; c < sums.division.chunks; c++) {
        const Band band(p, asked, sums.division.start(p, c), sums.division.start(p, c + 1));
        if (row >= band.first && row < band.first + band.rows)
          parts[count++] = sums.data + c * sums.step + (row - band.first) * width(asked);
      }
      float *pixels = asked.result + (head * asked.size + row) * asked.columns;
      for (int64_t column = 0; column < asked.columns; column++) {
        double total = 0;
        for (int i = 0; i < count; i++) total += parts[i][column];
        pixels[column] = float(total / area);
      }
    }
  }
};

}  // namespace regard::REGARD_SET
