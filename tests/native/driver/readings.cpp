// What readouts are by definition: reductions of the matrix of weights, one head at a time.

#include <algorithm>

#include "judge.h"

namespace driver {
namespace {

class Head {
 public:
  Head(Judge &judge, const Reading &reading, int64_t first, int64_t last, int64_t b, int64_t h)
      : judge(judge), sample(judge.sample), s(sample.sizes), reading(reading), first(first),
        last(last), b(b), h(h) {}

  void hold() {
    switch (reading.kind) {
      case REGARD_LOGSUMEXP: return hold_logsumexp();
      case REGARD_TOP: return hold_top();
      case REGARD_RECEIVED: return hold_received();
      case REGARD_LEFT_PRODUCT: return hold_left_product();
      case REGARD_OFFSETS: return hold_offsets();
      case REGARD_IMAGE: return hold_image();
      case REGARD_MAX_RECEIVED: return hold_max_received();
      case REGARD_MEAN_RECEIVED: return hold_mean_received();
      case REGARD_MAX_BLOCKS: return hold_max_blocks();
      case REGARD_REPEATS: return hold_repeats();
    }
    for (int64_t i = 0; i < s.queries; i++) switch (reading.kind) {
        case REGARD_MAX: hold_max(i); break;
        case REGARD_ENTROPY: hold_entropy(i); break;
        case REGARD_DISTANCE: hold_distance(i); break;
        case REGARD_MASS: hold_mass(i); break;
        case REGARD_WEIGHTS: hold_weights(i); break;
        case REGARD_MAX_SCORE: hold_max_score(i); break;
        case REGARD_LAG: hold_lag(i); break;
        case REGARD_SPANS: hold_spans(i); break;
      }
  }

 private:
  bool sees(int64_t i, int64_t j) const {
    return j >= first && j < last && sample.sees(b, h, i, j);
  }
  double weight(int64_t i, int64_t j) const {
    return sees(i, j) ? judge.reference.weights.at(b, h, i, j) : 0;
  }
  int64_t pair() const { return b * s.heads + h; }

  // Number `at` of this head, a sum of weights.
  void hold(const char *what, int64_t at, const Sum &sum) {
    const int64_t place = pair() * reading.length + at;
    judge.hold(what, place, double(reading.result[place]), sum.value,
               judge.weights_error * sum.size + Judge::TINY);
  }

  void hold_logsumexp() {
    for (int64_t i = 0; i < s.queries; i++) {
      const double wanted = judge.reference.logsumexp.at(b, h, i, 0);
      const int64_t place = pair() * s.queries + i;
      judge.hold("logsumexp read", place, double(reading.result[place]), wanted,
                 std::isinf(wanted) ? 0 : judge.weights_error + std::fabs(wanted) * 0x1p-23);
    }
  }

  void hold_max(int64_t i) {
    double largest = 0;
    for (int64_t j = first; j < last; j++) largest = std::max(largest, weight(i, j));
    hold("max", i, plain(largest));
  }

  void hold_entropy(int64_t i) {
    Sum sum;
    for (int64_t j = first; j < last; j++) {
      const double w = weight(i, j);
      if (w > 0) sum.add(w, {-std::log(w), 1 + std::fabs(std::log(w))});
    }
    hold("entropy", i, sum);
  }

  void hold_distance(int64_t i) {
    Sum moment, share;
    for (int64_t j = first; j < last; j++) {
      moment.add(weight(i, j), plain(std::fabs(double(sample.position(b, h, i) - j))));
      share.add(weight(i, j), plain(1));
    }
    // Where all that is seen weighs next to nothing, so do the errors: there is no telling.
    if (share.value > 0 && share.value < 1e-20) return;
    hold("distance", i, plain(share.value == 0 ? 0 : moment.value / share.value));
  }

  void hold_mass(int64_t i) {
    Sum sum;
    for (int64_t j = first; j < last; j++) sum.add(weight(i, j), plain(double(reading.given[j])));
    hold("mass", i, sum);
  }

  void hold_max_score(int64_t i) {
    Sum largest = {-INFINITY, 0};
    for (int64_t j = first; j < last; j++) {
      if (!sees(i, j)) continue;
      Sum score;
      for (int64_t d = 0; d < s.dim; d++)
        score.add(sample.scale * sample.query.at(b, h, i, d),
                  plain(sample.key.at(b, sample.group(h), j, d)));
      largest = {std::max(largest.value, score.value), std::max(largest.size, score.size)};
    }
    const int64_t place = pair() * s.queries + i;
    judge.hold("max score", place, double(reading.result[place]), largest.value,
               4 * Judge::ROUNDINGS * 0x1p-23 * largest.size + Judge::TINY);
  }

  void hold_lag(int64_t i) {
    const int64_t j = reading.keys ? reading.keys[pair() * s.queries + i]
                                   : sample.position(b, h, i) - reading.size;
    const bool seen = j >= 0 && j < s.keys && sees(i, j);
    const double wanted = seen ? weight(i, j) : 0;
    hold("lag", 2 * i, plain(wanted));
    if (seen && wanted < 1e-300) return;  // whose logarithm the reference does not have
    const int64_t place = pair() * reading.length + 2 * i + 1;
    const double log = std::log(wanted);
    judge.hold("log of a lag", place, double(reading.result[place]), log,
               seen ? judge.weights_error + std::fabs(log) * 0x1p-22 : 0);
  }

  void hold_spans(int64_t i) {
    for (int64_t span = 0; span < reading.size; span++) {
      Sum sum;
      for (int64_t j = first; j < last; j++)
        if (reading.keys[j] == span) sum.add(weight(i, j), plain(1));
      hold("span", i * reading.size + span, sum);
    }
  }

  void hold_weights(int64_t i) {
    for (int64_t n = 0; n < reading.size; n++)
      hold("chosen weight", i * reading.size + reading.keys[reading.size + n],
           plain(weight(i, reading.keys[n])));
  }

  void hold_top() {
    for (int64_t i = 0; i < s.queries; i++) {
      std::vector<double> ranked;
      for (int64_t j = first; j < last; j++)
        if (sees(i, j)) ranked.push_back(weight(i, j));
      std::sort(ranked.rbegin(), ranked.rend());
      std::vector<int64_t> known;
      for (int64_t n = 0; n < reading.size; n++) {
        const int64_t at = i * reading.size + n;
        const int64_t key = reading.positions[pair() * reading.length + at];
        const bool there = n < int64_t(ranked.size());
        hold("top weight", at, plain(there ? ranked[size_t(n)] : 0));
        if (there ? !sees(i, key) : key != -1) return judge.reject("a top key that is not seen");
        if (!there) continue;
        hold("weight of a top key", at, plain(weight(i, key)));
        if (std::find(known.begin(), known.end(), key) != known.end())
          return judge.reject("a top key that is named twice");
        known.push_back(key);
      }
    }
  }

  void hold_received() {
    for (int64_t j = 0; j < s.keys; j++) {
      Sum sum;
      for (int64_t i = 0; i < s.queries; i++) sum.add(weight(i, j), plain(1));
      hold("received", j, sum);
    }
  }

  void hold_max_received() {
    for (int64_t j = 0; j < s.keys; j++) {
      double most = 0;
      for (int64_t i = 0; i < s.queries; i++) most = std::max(most, weight(i, j));
      hold("most received", j, plain(most));
    }
  }

  void hold_mean_received() {
    hold_received();
    for (int64_t j = 0; j < s.keys; j++) {
      double count = 0;
      for (int64_t i = 0; i < s.queries; i++) count += sees(i, j);
      hold_count("queries that see a key", s.keys + j, count);
    }
  }

  void hold_max_blocks() {
    const int64_t height = reading.height / reading.size, width = reading.width / reading.columns;
    std::vector<double> most(size_t(reading.length));
    for (int64_t i = 0; i < s.queries; i++)
      for (int64_t j = first; j < last; j++) {
        double &cell = most[size_t(i / height * reading.columns + j / width)];
        cell = std::max(cell, weight(i, j));
      }
    for (int64_t at = 0; at < reading.length; at++) hold("block", at, plain(most[size_t(at)]));
  }

  void hold_count(const char *what, int64_t at, double count) {
    const int64_t place = pair() * reading.length + at;
    judge.hold(what, place, double(reading.result[place]), count, 0);
  }

  // Whether a query and a key count, and whether they are a copy or, `following`, a successor.
  bool is_pair(int64_t i, int64_t j) const { return j >= 1 && j <= i - 2 && sees(i, j); }
  bool is_repeat(int64_t i, int64_t j, int following) const {
    return is_pair(i, j) && reading.keys[j - following] == reading.keys[i];
  }

  void hold_repeats() {
    for (int following = 0; following < 2; following++) {
      for (int64_t i = 0; i < s.queries; i++) hold_repeats_of_query(i, following);
      for (int64_t j = 0; j < s.keys; j++) hold_repeats_of_key(j, following);
    }
  }

  void hold_repeats_of_query(int64_t i, int following) {
    double targets = 0;
    Sum share, shuffled;
    for (int64_t near = 2; near <= i; near *= 2) {  // distances from `near` to 2 · near − 1
      double pairs = 0, repeats = 0;
      Sum mass;
      for (int64_t j = std::max(first, i - 2 * near + 1); j <= std::min(last - 1, i - near); j++) {
        if (!is_pair(i, j)) continue;
        pairs++;
        mass.add(weight(i, j), plain(1));
        if (!is_repeat(i, j, following)) continue;
        repeats++;
        share.add(weight(i, j), plain(1));
      }
      targets += repeats;
      if (repeats) shuffled.add(repeats / pairs, mass);
    }
    const int64_t at = 6 * i + 3 * following;
    hold_count("repeats of a query", at, targets);
    hold("weight of repeats", at + 1, share);
    hold("weight of repeats, shuffled", at + 2, shuffled);
  }

  void hold_repeats_of_key(int64_t j, int following) {
    double count[2] = {};
    Sum mass[2], all;
    for (int64_t i = 0; i < s.queries; i++) {
      if (!is_pair(i, j)) continue;
      const bool other = !is_repeat(i, j, following);
      count[other]++;
      mass[other].add(weight(i, j), plain(1));
      all.add(weight(i, j), plain(1));
    }
    mass[1].size = all.size;  // as the difference of all and the repeats
    for (int other = 0; other < 2; other++) {
      const int64_t at = 6 * s.queries + (4 * following + 2 * other) * s.keys + j;
      hold_count("queries that a key is a repeat of, or not", at, count[other]);
      hold("their weight", at + s.keys, mass[other]);
    }
  }

  void hold_left_product() {
    for (int64_t m = 0; m < reading.size; m++)
      for (int64_t j = 0; j < s.keys; j++) {
        Sum sum;
        for (int64_t i = 0; i < s.queries; i++) {
          const int64_t place = (pair() * reading.size + m) * s.queries + i;
          sum.add(weight(i, j), plain(double(reading.given[place])));
        }
        hold("product", m * s.keys + j, sum);
      }
  }

  void hold_offsets() {
    for (int64_t back = 0; back < reading.size; back++) {
      Sum sum;
      double rows = 0;
      for (int64_t i = 0; i < s.queries; i++) {
        const int64_t j = sample.position(b, h, i) - back;
        if (j < 0 || j >= s.keys || !sees(i, j)) continue;
        sum.add(weight(i, j), plain(1));
        rows++;
      }
      hold("offset", back, plain(rows ? sum.value / rows : 0));
    }
  }

  // How much of a pixel, in tokens, a token covers.
  static double overlap(int64_t token, int64_t pixel, int64_t pixels, int64_t length) {
    const double size = double(length) / double(pixels);
    const double start = std::max(double(token), double(pixel) * size);
    const double stop = std::min(double(token + 1), double(pixel + 1) * size);
    return std::max(0.0, stop - start);
  }

  void hold_image() {
    const double area = double(reading.height) / double(reading.size) *
                        (double(reading.width) / double(reading.columns));
    std::vector<double> picture(size_t(reading.length));
    for (int64_t i = 0; i < s.queries; i++)
      for (int64_t row = i * reading.size / reading.height; row < reading.size; row++) {
        const double height = overlap(i, row, reading.size, reading.height);
        if (height == 0) break;
        for (int64_t j = first; j < last; j++)
          for (int64_t column = j * reading.columns / reading.width; column < reading.columns;
               column++) {
            const double width = overlap(j, column, reading.columns, reading.width);
            if (width == 0) break;
            picture[size_t(row * reading.columns + column)] += weight(i, j) * height * width / area;
          }
      }
    for (int64_t at = 0; at < reading.length; at++) hold("pixel", at, plain(picture[size_t(at)]));
  }

  Judge &judge;
  const Sample &sample;
  const Sizes &s;
  const Reading &reading;
  const int64_t first, last, b, h;
};

}  // namespace

void judge_reading(Judge &judge, const Reading &reading, int64_t first, int64_t last) {
  for (int64_t b = 0; b < judge.sample.sizes.batch; b++)
    for (int64_t h = 0; h < judge.sample.sizes.heads; h++)
      Head(judge, reading, first, last, b, h).hold();
}

}  // namespace driver
