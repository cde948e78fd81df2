// The readout that down-samples the pattern to an image.
//
// Lengths are measured in units in which an image of `pixels` pixels has the side pixels·length.
// Token i covers [i·pixels, (i+1)·pixels) and pixel p covers [p·length, (p+1)·length). The weight
// of a token that a pixel edge divides is split between both pixels, in integer parts. Columns are
// summed first, with queries in the lanes; then rows.
#pragma once

#include "key_readouts.h"

namespace regard::REGARD_SET {

// The pixels of a token: the first one, and the part of the token in it; the rest is in the next.
struct Place {
  int64_t pixel;
  float share;
};

REGARD_INLINE Place place_of(int64_t token, int64_t pixels, int64_t length) {
  const int64_t pixel = token * pixels / length, edge = (pixel + 1) * length;
  const int64_t inside = min(edge - token * pixels, pixels);
  return {pixel, inside == pixels ? 1.0f : float(double(inside) / double(pixels))};
}

struct Image : Readout {
  // The pixel rows of queries [first, last).
  struct PixelRows {
    int64_t first = 0, rows = 0;
    PixelRows(const regard_readout &request, int64_t start, int64_t stop) {
      if (start == stop) return;  // there may be no queries
      first = start * request.size / request.height;
      rows = (stop * request.size - 1) / request.height - first + 1;
    }
  };

  static constexpr int GATHERED = 2 * LANES;  // pixel columns that are accumulated in the lanes
  // Maximum keys of a float sum, for its precision. They are counted from key 0 on, so that a row's
  // sums do not depend on the first visible key of other rows.
  static constexpr int MAX_BLOCKS = 16;

  struct Memory {
    alignas(64) float columns[GATHERED][QUERIES];
    int64_t first, stop;  // pixels [first, stop) are being accumulated
    int64_t pixel_rows;   // the first pixel row of the chunk
    Place rows[QUERIES];
  };

  static size_t memory(const regard_problem &, const regard_readout &) { return sizeof(Memory); }
  static int64_t width(const regard_readout &request) { return padded(request.columns); }
  static int64_t sums(const regard_problem &p, const regard_readout &request) {
    const ChunkPlan plan(p);
    int64_t rows = 0;
    for (int64_t c = 0; c < plan.chunks; c++)
      rows = max(rows, PixelRows(request, plan.start(p, c), plan.start(p, c + 1)).rows);
    return rows * width(request);
  }

  static void begin(const ReadoutState &at, const QueryBlock &queries) {
    Memory &memory = *at.kept<Memory>();
    memory.first = memory.stop = 0;
    memory.pixel_rows = PixelRows(at.request, at.rows.first, at.rows.last).first;
    for (int r = 0; r < queries.count; r++)
      memory.rows[r] = place_of(queries.query[r], at.request.size, at.request.height);
  }

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    if (block.key / READ_BLOCK % MAX_BLOCKS == 0) spill(at, block.queries);
    with_live(block.queries.vectors, [&](auto vectors) { gather<vectors>(at, block); });
  }

  template <int vectors>
  REGARD_INLINE void gather(const ReadoutState &at, const WeightBlock &block) {
    const int64_t pixels = at.request.columns, length = at.request.width,
                  stop = block.key + block.keys;
    int64_t key = block.key;
    for (int64_t pixel = key * pixels / length; key < stop; pixel++) {
      const int64_t edge = (pixel + 1) * length;
      const int64_t whole = min(edge / pixels, stop) - key;  // keys within this pixel
      const float *weights = block.weights + (key - block.key) * QUERIES;
      if (whole > 0) add_keys<vectors>(weights, whole, open(at, block.queries, pixel));
      key += whole;
      const int64_t cut = edge - key * pixels;
      if (key == stop || cut == 0) continue;
      const float share = float(double(cut) / double(pixels));
      weights += whole * QUERIES;
      add_share<vectors>(weights, share, open(at, block.queries, pixel));
      add_share<vectors>(weights, 1 - share, open(at, block.queries, pixel + 1));
      key++;
    }
  }

  // The sums of a pixel column.
  static float *open(const ReadoutState &at, const QueryBlock &queries, int64_t pixel) {
    Memory &memory = *at.kept<Memory>();
    if (pixel >= memory.first + GATHERED) spill(at, queries);
    if (memory.first == memory.stop) memory.first = memory.stop = pixel;
    float *column = memory.columns[pixel - memory.first];
    if (pixel == memory.stop) memset(column, 0, QUERIES * sizeof(float)), memory.stop++;
    return column;
  }

  template <int vectors>
  REGARD_INLINE void add_keys(const float *weights, int64_t keys, float *column) {
    floats sums[vectors];
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) sums[j] = load(weights + j * LANES);
    for (int64_t k = 1; k < keys; k++)
      REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
        sums[j] += load(weights + k * QUERIES + j * LANES);
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++)
      store(column + j * LANES, load(column + j * LANES) + sums[j]);
  }

  template <int vectors>
  REGARD_INLINE void add_share(const float *weights, float share, float *column) {
    REGARD_UNROLLED_FOR (int j = 0; j < vectors; j++) {
      float *sum = column + j * LANES;
      store(sum, load(sum) + load(weights + j * LANES) * share);
    }
  }

  // Adds the accumulated columns to the image.
  static void spill(const ReadoutState &at, const QueryBlock &queries) {
    Memory &memory = *at.kept<Memory>();
    for (int c = 0; memory.first + c < memory.stop; c += LANES) add_rows(at, queries, memory, c);
    memory.first = memory.stop;
  }

  static void add_rows(const ReadoutState &at, const QueryBlock &queries, const Memory &memory,
                       int first) {
    const int64_t column = memory.first + first, count = memory.stop - column;
    alignas(64) float rows[QUERIES][LANES];
    for (int j = 0; j < queries.vectors; j++) {
      floats tile[LANES];
      REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++)
        tile[i] = load(memory.columns[first + i] + j * LANES);
      transpose(tile);
      REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++) store(rows[j * LANES + i], tile[i]);
    }
    for_each_head(queries, [&](int64_t head, int first_row, int last) {
      double *picture = at.sums_of(head) - memory.pixel_rows * width(at.request) + column;
      int64_t pixel = memory.rows[first_row].pixel;
      floats sum = {};
      const auto put = [&] { add_to(picture + pixel * width(at.request), sum, count); };
      for (int r = first_row; r < last; r++) {
        const Place &place = memory.rows[r];
        const bool begins = r > first_row && (r - first_row) % LANES == 0;
        if (begins || place.pixel != pixel) put(), sum = floats{}, pixel = place.pixel;
        sum += load(rows[r]) * place.share;
        if (place.share < 1) put(), sum = load(rows[r]) * (1 - place.share), pixel++;
      }
      put();
    });
  }

  static void end(const ReadoutState &at, const QueryBlock &queries, const Normalizers &) {
    spill(at, queries);
  }

  // Pixels are means: each covers height/rows × width/columns weights.
  static void finish(const regard_problem &p, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    const double share = (double(request.size) / double(request.height)) *
                         (double(request.columns) / double(request.width));
    finish_rows(p, request, head, sums, share, [](double &total, double part) { total += part; });
  }

  // Combines, by join(total, part), the parts of a pixel row from several chunks.
  template <class Join>
  static void finish_rows(const regard_problem &p, const regard_readout &request, int64_t head,
                          const Sums &sums, double share, Join join) {
    for (int64_t row = 0; row < request.size; row++) {
      double *parts[MAX_CHUNKS];
      int count = 0;
      for (int64_t c = 0; c < sums.plan.chunks; c++) {
        const PixelRows pixel_rows(request, sums.plan.start(p, c), sums.plan.start(p, c + 1));
        if (row >= pixel_rows.first && row < pixel_rows.first + pixel_rows.rows)
          parts[count++] = sums.data + c * sums.step + (row - pixel_rows.first) * width(request);
      }
      float *pixels = request.result + (head * request.size + row) * request.columns;
      double *total = parts[0];
      for (int i = 1; i < count; i++)
        for (int64_t column = 0; column < request.columns; column++)
          join(total[column], parts[i][column]);
      for (int64_t column = 0; column < request.columns; column++)
        pixels[column] = float(total[column] * share);
    }
  }
};

// The largest weight of each block of queries and keys.
struct MaxBlocks : Readout {
  static int64_t sums(const regard_problem &p, const regard_readout &request) {
    return Image::sums(p, request);
  }

  static void weights(const ReadoutState &at, const WeightBlock &block) {
    const regard_readout &request = at.request;
    const int64_t height = request.height / request.size, width = request.width / request.columns;
    const int64_t top = Image::PixelRows(request, at.rows.first, at.rows.last).first;
    const int64_t stop = block.key + block.keys;
    for (int64_t key = block.key, edge; key < stop; key = edge) {
      const int64_t column = key / width;
      edge = min((column + 1) * width, stop);
      alignas(64) float largest[QUERIES];
      for (int j = 0; j < block.queries.vectors; j++) {
        floats high = {}, total = {};  // the total is NaN where a weight is
        for (int64_t k = key - block.key; k < edge - block.key; k++) {
          const floats weight = load(block.weights + k * QUERIES + j * LANES);
          high = max(high, weight);
          total += weight;
        }
        store(largest + j * LANES, total == total ? high : total);
      }
      for_each_head(block.queries, [&](int64_t head, int first, int last) {
        double *cells = at.sums_of(head) - top * Image::width(request) + column;
        for (int r = first; r < last; r++)
          MaxReceived::take_larger(cells[block.queries.query[r] / height * Image::width(request)],
                                   largest[r]);
      });
    }
  }

  static void finish(const regard_problem &p, const regard_readout &request, int64_t head,
                     const Sums &sums) {
    Image::finish_rows(p, request, head, sums, 1,
                       [](double &most, double part) { MaxReceived::take_larger(most, part); });
  }
};

}  // namespace regard::REGARD_SET
