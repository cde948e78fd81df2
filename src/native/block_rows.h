// Rows of a matrix in the blocks of a GGUF times vectors: y = W·x.
//
// x is rounded to whole numbers of 16 bits, 32 at a time with a scale of their own: by at most
// 1/65534 of the largest of the 32. Sums of 32 products, or of 16, are exact; they are added up in
// float32. Numbers without blocks are multiplied in float32, as in other matrices.
//
// LANES rows are unpacked side by side, for as many vectors as there are, so that scales are
// applied and sums are added up for all rows at once. The order of summation does not depend on the
// number of vectors and rows.
#pragma once

#include <functional>

#include "blocks.h"
#include "row_totals.h"

namespace regard::REGARD_SET {

struct BlockProducts {
  using Element = Float32;
  using Number = float;
  using Input = float;
  static constexpr bool IN_BLOCKS = true;
};

template <>
struct LinearMap<BlockProducts> {
  const regard_blocks *blocks;
  const float *bias;
  int64_t inputs, outputs;

  LinearMap(const regard_linear &linear, int64_t inputs, int64_t outputs)
      : blocks(linear.blocks), bias((const float *)linear.bias), inputs(inputs), outputs(outputs) {}

  // Calls call(kind, data, bytes of a row, first, last) for each part of rows [first, last).
  template <class Call>
  __attribute__((always_inline)) void each_part(int64_t first, int64_t last, Call call) const {
    int64_t before = 0;  // rows of the parts before
    for (const regard_blocks *part = blocks; before < last; before += part++->rows) {
      const int64_t begin = max(first, before), end = min(last, before + part->rows);
      if (begin >= end) continue;
      with_format(part->kind, [&](auto kind) {
        const int64_t bytes = bytes_of_row<decltype(kind)>(inputs);
        call(kind, (const uint8_t *)part->data + (begin - before) * bytes, bytes, begin, end);
      });
    }
  }
};

// Exchanges the second and the third of each four lanes.
template <size_t... i>
REGARD_INLINE ints exchange_middles(ints x, std::index_sequence<i...>) {
  return __builtin_shufflevector(x, x, int(i % 4 == 1 ? i + 1 : i % 4 == 2 ? i - 1 : i)...);
}

// Reduces the lanes in pairs, by halves.
template <int distance = LANES / 2, class Vector, class Combine, size_t... i>
REGARD_INLINE auto of_lanes(Vector x, Combine combine, std::index_sequence<i...> lanes) {
  x = combine(x, __builtin_shufflevector(x, x, int((i + distance) % LANES)...));
  if constexpr (distance > 1)
    return of_lanes<distance / 2>(x, combine, lanes);
  else
    return x[0];
}

constexpr int BLOCK_VECTORS = VECTORS_OF_REGISTERS;  // as of numbers without blocks

// The floats as those of numbers without blocks; then, of each BLOCK_VECTORS together, the pairs of
// whole numbers in the order of a panel's, (width / 2, together); then likewise the scale and the
// sum of each run, (width / RUN, together, 2), where the sum is that of the numbers as they were
// rounded.
template <>
struct Inputs<BlockProducts> {
  static constexpr int VECTORS_AT_ONCE = BLOCK_VECTORS;
  float *data;
  int64_t count, width;

  static int64_t whole(int64_t width) { return (width + RUN - 1) / RUN * RUN; }
  static int64_t size(int64_t count, int64_t inputs) {
    const int64_t numbers = whole(padded_inputs(inputs));
    return count * (numbers * 3 / 2 + numbers / RUN * 2);
  }
  // For rows of numbers without blocks.
  template <class Kind>
  Inputs<RowProducts<Float32, Kind>> floats_for() const {
    return {data, count, whole(width)};
  }
  // Of the vectors together from `first` on.
  int32_t *pairs(int64_t first) const {
    return (int32_t *)(data + count * whole(width)) + first * (whole(width) / 2);
  }
  float *factors(int64_t first) const {
    return data + count * whole(width) * 3 / 2 + first * (whole(width) / RUN * 2);
  }

  __attribute__((always_inline)) void set(int64_t v, int64_t i, floats x) const {
    floats_for<Float32>().set(v, i, x);
  }
  void complete(int64_t v) const {
    for (int64_t i = width; i < whole(width); i += LANES) set(v, i, floats{});
    const int64_t first = v / BLOCK_VECTORS * BLOCK_VECTORS;
    const int64_t together = min(count - first, int64_t(BLOCK_VECTORS));
    const float *from = data + first * whole(width) + (v - first) * LANES;
    int32_t *to = pairs(first) + v - first;
    float *of_run = factors(first) + 2 * (v - first);
    for (int64_t i = 0; i < whole(width); i += RUN) {
      int32_t list[PAIRS_OF_RUN];
      round(from + i * together, together, list, of_run + i / RUN * 2 * together);
      REGARD_UNROLLED_FOR (int k = 0; k < PAIRS_OF_RUN; k++) to[(i / 2 + k) * together] = list[k];
    }
  }
  // The vectors of lanes of a run are `together` apart.
  static void round(const float *from, int64_t together, int32_t *to, float *factors) {
    floats most = {};
    ints nonfinite = {};
    REGARD_UNROLLED_FOR (int i = 0; i < RUN; i += LANES) {
      most = max(most, abs(load(from + i * together)));
      nonfinite |= is_nonfinite(load(from + i * together));
    }
    const float largest = of_lanes(
        most, [](floats a, floats b) REGARD_INLINE_LAMBDA { return max(a, b); }, all_lanes());
    const float limit = 32767, least = 0x1p-100f;  // below which the factor could overflow
    const bool is_finite = !any(nonfinite);
    const floats factor = broadcast(is_finite && largest >= least ? limit / largest : 0);
    ints total = {};
    using narrow_shorts = int16_t __attribute__((vector_size(2 * LANES)));
    REGARD_UNROLLED_FOR (int i = 0; i < RUN; i += LANES) {
      const floats x = is_finite ? load(from + i * together) : floats{};
      const ints whole = __builtin_convertvector(round_down(x * factor + 0.5f), ints);
      total += whole;
      const narrow_shorts narrowed =
          __builtin_convertvector(exchange_middles(whole, all_lanes()), narrow_shorts);
      memcpy(to + i / 2, &narrowed, sizeof narrowed);
    }
    factors[0] = is_finite ? largest / limit : NAN;  // so that no result is finite
    factors[1] = factors[0] * float(of_lanes(total, std::plus<ints>(), all_lanes()));
  }
  template <class Get>
  __attribute__((always_inline)) void set_all(int64_t v, int64_t inputs, Get element) const {
    for (int64_t i = 0; i < width; i += LANES)
      set(v, i, i < inputs ? element(i, inputs - i) : floats{});
    complete(v);
  }
};

// a[2i]·b[2i] + a[2i + 1]·b[2i + 1] added to lane i.
REGARD_INLINE ints add_products(shorts a, shorts b, ints to) {
#if defined(__AVX512VNNI__)
  return (ints)_mm512_dpwssd_epi32((__m512i)to, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return to + (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return to + (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return to + (ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
  const int32x4_t low = vmull_s16(vget_low_s16((int16x8_t)a), vget_low_s16((int16x8_t)b));
  return to + (ints)vpaddq_s32(low, vmull_high_s16((int16x8_t)a, (int16x8_t)b));
#elif defined(__wasm_simd128__)
  return to + (ints)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b);
#else
  REGARD_UNROLLED_FOR (int i = 0; i < LANES; i++)
    to[i] += a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
  return to;
#endif
}

constexpr int PANELS = 2;  // multiplied together: each number of x is loaded once for both

// Adds the products of the first runs of panels with some vectors, from their run `first` on, to
// totals (vectors, PANELS, LANES).
template <int panels, int vectors, bool halves, bool has_offset>
__attribute__((noinline)) void add_panels(const Panel *panel, int runs,
                                          const Inputs<BlockProducts> &x, int64_t vector,
                                          int64_t first, float *to) {
  constexpr int parts = halves ? 2 : 1, pairs = PAIRS_OF_RUN / parts;
  constexpr int chains = vectors == 1 ? 4 : 1;  // or each product would wait for the one before
  const int32_t *inputs = x.pairs(vector) + first * PAIRS_OF_RUN * vectors;
  const float *factors = x.factors(vector) + first * 2 * vectors;
  floats totals[vectors][panels];
  REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++)
    REGARD_UNROLLED_FOR (int p = 0; p < panels; p++)
      totals[v][p] = load(to + (v * PANELS + p) * LANES);
  for (int j = 0; j < runs; j++, inputs += PAIRS_OF_RUN * vectors, factors += 2 * vectors) {
    REGARD_UNROLLED_FOR (int part = 0; part < parts; part++) {
      ints sums[chains][vectors][panels] = {};
      REGARD_UNROLLED_FOR (int i = part * pairs; i < (part + 1) * pairs; i++)
        REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) {
          const shorts pair = (shorts)broadcast(inputs[i * vectors + v]);
          REGARD_UNROLLED_FOR (int p = 0; p < panels; p++) {
            ints &sum = sums[i % chains][v][p];
            sum = add_products((shorts)panel[p].numbers[j][i], pair, sum);
          }
        }
      REGARD_UNROLLED_FOR (int p = 0; p < panels; p++)
        REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++) {
          REGARD_UNROLLED_FOR (int i = 1; i < chains; i++) sums[0][v][p] += sums[i][v][p];
          totals[v][p] += __builtin_convertvector(sums[0][v][p], floats) *
                          (panel[p].scales[j][part] * factors[2 * v]);
        }
    }
    if constexpr (has_offset)
      REGARD_UNROLLED_FOR (int p = 0; p < panels; p++)
        REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++)
          totals[v][p] += panel[p].offsets[j] * factors[2 * v + 1];
  }
  REGARD_UNROLLED_FOR (int v = 0; v < vectors; v++)
    REGARD_UNROLLED_FOR (int p = 0; p < panels; p++)
      store(to + (v * PANELS + p) * LANES, totals[v][p]);
}

// Multiplies runs by one vector as they are unpacked: to store their numbers first, and to load
// them, takes longer than to multiply them.
template <bool halves>
struct VectorProducts {
  const int32_t *inputs;
  const float *factors;
  floats total;

  struct Run {
    VectorProducts &all;
    int j;
    // Of each half: two sums, those of numbers times 2^4, and those of numbers times 2^8, which are
    // 16 numbers of 4 bits: at most 16 · 15 · 2^8 · 32767 < 2^31.
    ints sums[halves ? 2 : 1][4];

    template <int shift = 0>
    __attribute__((always_inline)) void take(int i, uints pair) {
      ints &sum = sums[halves ? i / (PAIRS_OF_RUN / 2) : 0][shift ? shift / 4 + 1 : i % 2];
      sum = add_products((shorts)pair, (shorts)broadcast(all.inputs[j * PAIRS_OF_RUN + i]), sum);
    }
    __attribute__((always_inline)) void scale(int half, floats x) {
      const ints *own = sums[half];
      const ints sum = own[0] + own[1] + (own[2] >> 4) + (own[3] >> 8);
      all.total += __builtin_convertvector(sum, floats) * (x * all.factors[2 * j]);
    }
    __attribute__((always_inline)) void offset(floats x) {
      all.total += x * all.factors[2 * j + 1];
    }
  };
  __attribute__((always_inline)) Run run(int j) { return {*this, j, {}}; }
};

constexpr int VECTORS_OF_PANEL = 128;  // for which rows are unpacked once; in the L2 cache

// Fetches next rows a run at a time, as many bytes as the runs have that are unpacked: many lines
// at once would wait for each other.
template <class Kind, class To>
struct Fetching {
  using Run = typename To::Run;
  To &to;
  const uint8_t *next;

  __attribute__((always_inline)) Run run(int j) {
    constexpr int bytes = LANES * Kind::BYTES / Kind::RUNS;
    constexpr bool into_second_cache = true;
    REGARD_UNROLLED_FOR (int i = 0; i < bytes; i += 64)
      fetch_line(next + j * bytes + i, into_second_cache);
    return to.run(j);
  }
};

// Up to LANES rows.
template <class Kind>
struct RowsOfBlocks {
  const uint8_t *data;
  int64_t bytes, count, ahead;  // of a row; rows; rows from here to those that are fetched
  bool is_last;                 // no row behind them may be read

  // Unpacks runs from a block on.
  template <class To>
  __attribute__((always_inline)) void unpack(int64_t block, int runs, To &to) const {
    constexpr int64_t size = RUNS_OF_PANEL / Kind::RUNS * Kind::BYTES;
    const uint8_t *from = data + block * Kind::BYTES;
    Fetching<Kind, To> fetching = {to, data + ahead * bytes + LANES * block * Kind::BYTES};
    const bool reads_on = is_last && runs < RUNS_OF_PANEL;
    if (count >= LANES && !reads_on) return Kind::unpack(Rows{from, bytes}, runs, fetching);
    uint8_t copy[LANES][size] = {};
    for (int64_t r = 0; r < min(count, int64_t(LANES)); r++)
      memcpy(copy[r], from + r * bytes, size_t(runs / Kind::RUNS) * Kind::BYTES);
    Kind::unpack(Rows{copy[0], size}, runs, fetching);
  }
};

// Results of up to LANES rows for one vector.
template <class Kind>
__attribute__((noinline)) void multiply_by_one(const uint8_t *from, int64_t bytes, int64_t count,
                                               bool is_last, const Inputs<BlockProducts> &x,
                                               int64_t inputs, const float *bias, float *result) {
  constexpr int64_t blocks_of_panel = RUNS_OF_PANEL / Kind::RUNS;
  // Measured on a Zen 4: with rows fetched only LANES ahead a token took 1.1 to 1.2 times as long.
  constexpr int64_t ahead = 2 * LANES;
  const RowsOfBlocks<Kind> rows = {from, bytes, count, ahead, is_last};
  const int64_t blocks = inputs / (RUN * Kind::RUNS);
  VectorProducts<Kind::HALVES> products = {x.pairs(0), x.factors(0), {}};
  for (int64_t block = 0; block < blocks; block += blocks_of_panel) {
    const int runs = int(min(blocks - block, blocks_of_panel)) * Kind::RUNS;
    rows.unpack(block, runs, products);
    products.inputs += runs * PAIRS_OF_RUN;
    products.factors += runs * 2;
  }
  if (bias) products.total += widen_part(Float32(), bias, count);
  narrow_part(Float32(), result, products.total, count);
}

// Results (vectors, count) of the rows of up to PANELS, those of each vector `stride` apart.
template <class Kind>
__attribute__((noinline)) void multiply_panels(const uint8_t *from, int64_t bytes, int64_t count,
                                               bool is_last, const Inputs<BlockProducts> &x,
                                               int64_t vector, int64_t vectors, int64_t inputs,
                                               const float *bias, float *result, int64_t stride) {
  constexpr int64_t blocks_of_panel = RUNS_OF_PANEL / Kind::RUNS;
  alignas(64) float totals[VECTORS_OF_PANEL * PANELS * LANES];
  alignas(64) Panel panels[PANELS];
  memset(totals, 0, size_t(vectors * PANELS * LANES) * sizeof *totals);
  const int64_t blocks = inputs / (RUN * Kind::RUNS), used = (count + LANES - 1) / LANES;
  for (int64_t block = 0; block < blocks; block += blocks_of_panel) {
    const int runs = int(min(blocks - block, blocks_of_panel)) * Kind::RUNS;
    for (int64_t p = 0; p < used; p++) {
      const int64_t row = p * LANES;
      RowsOfBlocks<Kind>{from + row * bytes, bytes, count - row, used * LANES,
                         is_last && p + 1 == used}
          .unpack(block, runs, panels[p]);
    }
    const auto add = [&](auto own) REGARD_INLINE_LAMBDA {
      for (int64_t v = 0; v < vectors; v += BLOCK_VECTORS)
        with_count<BLOCK_VECTORS + 1>(
            min(vectors - v, int64_t(BLOCK_VECTORS)), [&](auto some) REGARD_INLINE_LAMBDA {
              add_panels<own, some, Kind::HALVES, Kind::HAS_OFFSET>(
                  panels, runs, x, vector + v, block * Kind::RUNS, totals + v * PANELS * LANES);
            });
    };
    with_count<PANELS + 1>(used, add);
  }
  for (int64_t v = 0; v < vectors; v++)
    for (int64_t row = 0; row < count; row += LANES) {
      floats total = load(totals + v * PANELS * LANES + row);
      if (bias) total += widen_part(Float32(), bias + row, count - row);
      narrow_part(Float32(), result + v * stride + row, total, count - row);
    }
}

template <class Products>
concept MultipliesBlocks = requires { Products::IN_BLOCKS; };

template <class Products>
  requires MultipliesBlocks<Products>
static void multiply_rows(const LinearMap<Products> &map, int64_t first, int64_t last,
                          const Inputs<Products> &x, float *result, int64_t stride) {
  map.each_part(
      first, last,
      [&](auto kind, const uint8_t *from, int64_t bytes, int64_t begin,
          int64_t end) REGARD_INLINE_LAMBDA {
        using Kind = decltype(kind);
        const float *bias = map.bias ? map.bias + begin : nullptr;
        if constexpr (IsBlock<Kind>) {
          constexpr int64_t most = VECTORS_OF_PANEL;
          const int64_t rows = end - begin, group = x.count == 1 ? LANES : PANELS * LANES;
          for (int64_t row = 0; row < rows; row += group) {
            const int64_t count = min(group, rows - row);
            const bool is_last = row + group >= rows;
            const uint8_t *own = from + row * bytes;
            const float *own_bias = bias ? bias + row : nullptr;
            float *to = result + begin + row;
            if (x.count == 1)
              multiply_by_one<Kind>(own, bytes, count, is_last, x, map.inputs, own_bias, to);
            else
              for (int64_t v = 0; v < x.count; v += most)
                multiply_panels<Kind>(own, bytes, count, is_last, x, v, min(most, x.count - v),
                                      map.inputs, own_bias, to + v * stride, stride);
          }
        } else {
          using Numbers = RowProducts<Float32, Kind>;
          const LinearMap<Numbers> part({from, bias, nullptr, nullptr}, map.inputs, end - begin);
          multiply_rows<Numbers>(part, 0, end - begin, x.template floats_for<Kind>(),
                                 result + begin, stride);
        }
      });
}

// The numbers of a row in float32.
template <class Products, class Take>
  requires MultipliesBlocks<Products>
REGARD_INLINE void read_row(const LinearMap<Products> &map, int64_t row, Take take) {
  map.each_part(row, row + 1, [&](auto kind, const uint8_t *from, int64_t, int64_t, int64_t) {
    using Kind = decltype(kind);
    if constexpr (!IsBlock<Kind>) {
      for (int64_t i = 0; i < map.inputs; i += LANES)
        take(i, widen_part(kind, (const typename Kind::type *)from + i, map.inputs - i));
    } else {
      Panel panel;  // all of whose rows are this one
      for (int64_t i = 0; i < map.inputs; i += RUN * Kind::RUNS, from += Kind::BYTES) {
        uint8_t block[RUNS_OF_PANEL / Kind::RUNS * Kind::BYTES];
        memcpy(block, from, Kind::BYTES);
        Kind::unpack(Rows{block, 0}, Kind::RUNS, panel);
        for (int j = 0; j < Kind::RUNS; j++) {
          float numbers[RUN];
          for (int k = 0; k < RUN; k++) {
            const int32_t pair = panel.numbers[j][k / 4 * 2 + k % 2][0];
            const float q = int16_t(k % 4 < 2 ? pair : pair >> 16);
            numbers[k] = panel.scales[j][Kind::HALVES ? k / PAIRS_OF_RUN : 0][0] * q +
                         (Kind::HAS_OFFSET ? panel.offsets[j][0] : 0);
          }
          for (int k = 0; k < RUN; k += LANES) take(i + j * RUN + k, load(numbers + k));
        }
      }
    }
  });
}

}  // namespace regard::REGARD_SET
