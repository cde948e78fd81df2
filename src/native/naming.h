// The scores of a head on one text, each with a confidence interval, and its role.
//
// They are documented in regard/lens/naming: tallies.py and evidence.py for one text and one head,
// and role_of in roles.py; the sinks beside which they are taken in regard/lens/sink_keys.py.
//
// Axes: T queries and as many keys, K distinct tokens.
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "read.h"

namespace regard::REGARD_SET {

// The scores, in the order of the results. Those before SPREAD are of relations between a query and
// keys; ENTROPY and RESTING are means and not roles. The next token has no score: nothing here sees
// it.
enum Name {
  INDUCTION,
  DUPLICATE,
  PREVIOUS,
  CURRENT,
  SEPARATOR,
  FIRST,
  SPREAD,
  DISTANCE,
  ENTROPY,
  RESTING,
  NAMES
};

// Results other than a role.
enum Other { MIXED = NAMES, BETWEEN, TOO_SHORT, ALONE };

// NaN for a number that does not exist.
struct NameScore {
  double mean = NAN, score = NAN, margin = NAN, queries = 0;
};

struct Naming {
  NameScore scores[NAMES];
  double role = ALONE, undecided = -1;  // Name or Other; −1 for none
};

// A zero-initialized array. Traps if the allocation fails.
template <class Number>
struct Zeros {
  Number *data;
  int64_t size;

  explicit Zeros(int64_t count)
      : data((Number *)calloc(size_t(count + 1), sizeof(Number))), size(count) {
    if (!data) __builtin_trap();
  }
  Zeros(Zeros &&other) : data(other.data), size(other.size) { other.data = nullptr; }
  ~Zeros() { free(data); }
  Number &operator[](int64_t i) { return data[i]; }
  const Number &operator[](int64_t i) const { return data[i]; }
};

// Sums over the queries of each token: their number, their share, and their share under each
// control.
struct Tally {
  static constexpr int MOST = 3;
  Zeros<double> queries, share, controls[MOST];
  int control_count = 0;

  explicit Tally(int64_t tokens)
      : queries(tokens), share(tokens),
        controls{Zeros<double>(tokens), Zeros<double>(tokens), Zeros<double>(tokens)} {}
};

class Namer {
 public:
  static constexpr double LEAD = 0.2, MOSTLY = 0.5, NEAR = 0.5, WIDE = 0.8;
  static constexpr int ENOUGH = 8, VARIED = 4;

  // `separators` is 1 for tokens that separate others but for the first, else 0.
  Namer(const int64_t *ids, const float *separators, int64_t length, int64_t tokens)
      : ids_(ids), separators_(separators), length_(length), tokens_(tokens) {}

  // `sinks` becomes 1 for the keys on which the head rests, else 0.
  template <class Arithmetic>
  int name(const regard_problem &p, const float *logsumexp, Naming &naming, float *sinks) const {
    naming = {};
    if (length_ < 2) return REGARD_DONE;
    Whole whole(length_);
    Rows own(length_), even(length_);
    int result = whole.read<Arithmetic>(p, logsumexp);
    if (result != REGARD_DONE) return result;
    for (int64_t key = 0; key < length_; key++) sinks[key] = whole.sinks[key];
    const Beside beside(p, whole);
    if (beside.has_sinks) logsumexp = nullptr;
    const Zeros<int64_t> copies = find_copies();
    result = own.read<Arithmetic>(beside.problem, logsumexp, separators_, copies.data);
    if (result != REGARD_DONE) return result;
    result = even.read<Arithmetic>(uniform(beside.problem), nullptr, separators_, nullptr);
    if (result != REGARD_DONE) return result;
    score(whole, own, even, naming);
    return REGARD_DONE;
  }

 private:
  // The head's sinks: keys whose mean weight from other queries is above 0.3; sink_keys.py. And
  // what the whole pattern gives to the first token, and a uniform one.
  struct Whole {
    static constexpr double RESTING_ON = 0.3, OTHERS = 6, PART = 0.2;
    int64_t length;
    Zeros<float> sinks, resting, first, received, current, even_first, even_entropy;

    explicit Whole(int64_t length)
        : length(length), sinks(length), resting(length), first(length), received(2 * length),
          current(2 * length), even_first(length), even_entropy(length) {}

    template <class Arithmetic>
    int read(const regard_problem &p, const float *logsumexp) {
      Zeros<float> is_first(length);
      is_first[0] = 1;
      const regard_readout list[] = {
          {REGARD_MASS, first.data, nullptr, is_first.data, 0, 0, 0, 0},
          {REGARD_LAG, current.data, nullptr, nullptr, 0, 0, 0, 0},
          {REGARD_MEAN_RECEIVED, received.data, nullptr, nullptr, 0, 0, 0, 0},
      };
      int result = regard::REGARD_SET::read<Arithmetic>(
          Reading(p, regard_readouts{logsumexp, 0, p.keys, 3, list, nullptr}));
      if (result != REGARD_DONE) return result;
      find_sinks();
      const regard_readout rest[] = {
          {REGARD_MASS, resting.data, nullptr, sinks.data, 0, 0, 0, 0},
      };
      result = regard::REGARD_SET::read<Arithmetic>(
          Reading(p, regard_readouts{logsumexp, 0, p.keys, 1, rest, nullptr}));
      if (result != REGARD_DONE) return result;
      const regard_readout evenly[] = {
          {REGARD_MASS, even_first.data, nullptr, is_first.data, 0, 0, 0, 0},
          {REGARD_ENTROPY, even_entropy.data, nullptr, nullptr, 0, 0, 0, 0},
      };
      return regard::REGARD_SET::read<Arithmetic>(
          Reading(uniform(p), regard_readouts{nullptr, 0, p.keys, 2, evenly, nullptr}));
    }

    void find_sinks() {
      double most = 0;
      for (int64_t key = 0; key < length; key++) most = max(most, others(key));
      for (int64_t key = 0; key < length; key++) {
        if (others(key) < max(OTHERS, PART * most)) continue;
        const double weight = max(0.0, double(received[key]) - double(current[2 * key]));
        sinks[key] = weight / max(1.0, others(key)) > RESTING_ON;
      }
    }

    // The number of other queries that see a key.
    double others(int64_t key) const { return received[length + key] - 1; }
  };

  // The problem without the sinks: spans hide runs of them, after those that there are.
  struct Beside {
    regard_problem problem;
    bool has_sinks = false;
    Zeros<int64_t> start, stop;
    Zeros<float> added;

    Beside(const regard_problem &p, const Whole &whole)
        : problem(p), start((p.spans.count + runs(whole)) * p.queries),
          stop((p.spans.count + runs(whole)) * p.queries), added(p.spans.count + runs(whole)) {
      has_sinks = runs(whole) > 0;
      if (!has_sinks) return;
      const int64_t rows = p.queries;
      int64_t span = 0;
      for (; span < p.spans.count; span++) {
        const size_t bytes = size_t(rows) * sizeof(int64_t);
        memcpy(start.data + span * rows, p.spans.start + span * p.spans.span, bytes);
        memcpy(stop.data + span * rows, p.spans.stop + span * p.spans.span, bytes);
        added[span] = p.spans.added[span];
      }
      for (int64_t key = 0; key < p.keys; span++) {
        while (key < p.keys && whole.sinks[key] == 0) key++;
        if (key == p.keys) break;
        const int64_t first = key;
        while (key < p.keys && whole.sinks[key] != 0) key++;
        for (int64_t q = 0; q < rows; q++)
          start[span * rows + q] = first, stop[span * rows + q] = key;
        added[span] = -INFINITY;
      }
      problem.spans = {start.data, stop.data, added.data, span, rows, 0, 0};
    }

    static int64_t runs(const Whole &whole) {
      int64_t count = 0;
      for (int64_t key = 0; key < whole.length; key++)
        count += whole.sinks[key] != 0 && (key == 0 || whole.sinks[key - 1] == 0);
      return count;
    }
  };

  // Readouts of the pattern beside the sinks, per row or per key.
  struct Rows {
    int64_t length;
    Zeros<float> entropy, distance, separators, current, previous, received, repeats;

    explicit Rows(int64_t length)
        : length(length), entropy(length), distance(length), separators(length),
          current(2 * length), previous(2 * length), received(2 * length), repeats(14 * length) {}

    template <class Arithmetic>
    int read(const regard_problem &p, const float *logsumexp, const float *marks,
             const int64_t *copies) {
      const regard_readout list[] = {
          {REGARD_MASS, separators.data, nullptr, marks, 0, 0, 0, 0},
          {REGARD_ENTROPY, entropy.data, nullptr, nullptr, 0, 0, 0, 0},
          {REGARD_DISTANCE, distance.data, nullptr, nullptr, 0, 0, 0, 0},
          {REGARD_LAG, current.data, nullptr, nullptr, 0, 0, 0, 0},
          {REGARD_LAG, previous.data, nullptr, nullptr, 1, 0, 0, 0},
          {REGARD_MEAN_RECEIVED, received.data, nullptr, nullptr, 0, 0, 0, 0},
          {REGARD_REPEATS, repeats.data, nullptr, copies, 0, 0, 0, 0},
      };
      const regard_readouts readouts = {logsumexp, 0, p.keys, copies ? 7 : 6, list, nullptr};
      return regard::REGARD_SET::read<Arithmetic>(Reading(p, readouts));
    }

    // The weight on a query's own key, or on the previous one.
    double near(bool before, int64_t query) const {
      return (before ? previous : current)[2 * query];
    }
    // For a query: number of targets, their share, and its expectation with shuffled keys.
    double of_query(bool successors, int64_t query, int number) const {
      return repeats[6 * query + 3 * successors + number];
    }
    // For a key: the number of queries that it is a target of, or of the others that see it; or
    // their weight.
    double of_key(bool successors, bool others, bool weight, int64_t key) const {
      return repeats[6 * length + ((successors * 2 + others) * 2 + weight) * length + key];
    }
  };

  // Where each position's token stands first, and next; see REGARD_REPEATS.
  Zeros<int64_t> find_copies() const {
    Zeros<int64_t> copies(2 * length_), count(tokens_), last(tokens_);
    for (int64_t q = 0; q < length_; q++) {
      const int64_t token = ids_[q], before = last[token];
      const bool is_first = count[token]++ == 0;
      copies[q] = is_first ? q : copies[before];
      if (!is_first) copies[length_ + before] = q;
      copies[length_ + q] = length_;
      last[token] = q;
    }
    return copies;
  }

  // The uniform pattern with the same mask. Spans may hide keys but not shift scores, and there is
  // no bias.
  static regard_problem uniform(const regard_problem &p) {
    static const float zero = 0;
    regard_problem even = p;
    even.dim = 1, even.softcap = 0;
    even.query = even.key = {const_cast<float *>(&zero), 0, 0, 0};
    even.alibi = even.sink = {};
    return even;
  }

  // Sums over the queries with chosen(q) the functions share(q) and controls[c](q).
  template <class Chosen, class Share, class... Controls>
  Tally tally(Chosen chosen, Share share, Controls... controls) const {
    Tally sums(tokens_);
    sums.control_count = sizeof...(controls);
    for (int64_t q = 0; q < length_; q++) {
      if (!chosen(q)) continue;
      const int64_t token = ids_[q];
      sums.queries[token] += 1, sums.share[token] += share(q);
      int control = 0;
      ((sums.controls[control++][token] += controls(q)), ...);
    }
    return sums;
  }

  void score(const Whole &whole, const Rows &own, const Rows &even, Naming &naming) const {
    const auto later = [](int64_t q) { return q > 0; };  // the first token sees one key only
    const auto highest = [&](int64_t q) { return double(even.entropy[q]); };
    // More than one key is visible beside the sinks.
    const auto chooses = [&](int64_t q) { return q > 0 && even.entropy[q] > 0; };
    const auto evenly = [&](int64_t q) { return exp(-highest(q)); };  // weight of each visible key
    const auto of = [](const Zeros<float> &numbers) {
      return [&numbers](int64_t q) { return double(numbers[q]); };
    };
    const auto entropy = of(own.entropy);
    for (const bool before : {true, false}) {
      const auto weight = [&](int64_t q) { return own.near(before, q); };
      const auto sees = [&](int64_t q) { return even.near(before, q) > 0; };
      // The mean weight on the key from the other queries that see it.
      const auto others = [&](int64_t q) {
        const int64_t key = max(int64_t(0), q - before);
        const double count = whole.others(key);
        const double elsewhere = max(0.0, own.received[key] - weight(q)) / max(1.0, count);
        return count > 0 ? elsewhere : weight(q);
      };
      naming.scores[before ? PREVIOUS : CURRENT] =
          lead(tally([&](int64_t q) { return chooses(q) && (!before || sees(q)); }, weight,
                     [&](int64_t q) { return sees(q) ? evenly(q) : 0; }, others));
    }
    naming.scores[SEPARATOR] =
        lead(tally([&](int64_t q) { return chooses(q) && even.separators[q] > 0; },
                   of(own.separators), of(even.separators)));
    naming.scores[FIRST] = lead(tally([&](int64_t q) { return q > 0 && whole.even_entropy[q] > 0; },
                                      of(whole.first), of(whole.even_first)));
    naming.scores[SPREAD] =
        itself(tally(chooses, [&](int64_t q) { return entropy(q) / max(1e-9, highest(q)); }));
    naming.scores[DISTANCE] = nearness(tally(chooses, of(own.distance), of(even.distance)));
    naming.scores[ENTROPY] = itself(tally(chooses, entropy));
    naming.scores[RESTING] = itself(tally(later, of(whole.resting)));
    for (const bool successors : {false, true})
      naming.scores[successors ? INDUCTION : DUPLICATE] = lead(of_targets(own, successors, evenly));
    find_role(naming);
  }

  template <class Evenly>
  Tally of_targets(const Rows &own, bool successors, Evenly evenly) const {
    const auto number = [&](int which) {
      return [&own, successors, which](int64_t q) { return own.of_query(successors, q, which); };
    };
    const auto targets = number(0);
    Tally sums = tally([&](int64_t q) { return targets(q) > 0; }, number(1),
                       [&](int64_t q) { return targets(q) * evenly(q); }, number(2));
    // All queries that a key is a target of have the same token: the key's, or the one before it.
    Zeros<double> &others = sums.controls[sums.control_count++];
    for (int64_t key = successors; key < length_; key++) {
      const auto of_key = [&](bool rest, bool weight) {
        return own.of_key(successors, rest, weight, key);
      };
      const double rest = of_key(true, false);
      others[ids_[key - successors]] +=
          rest > 0 ? of_key(false, false) * of_key(true, true) / rest : of_key(false, true);
    }
    return sums;
  }

  static double total(const Zeros<double> &numbers) {
    double sum = 0;
    for (int64_t k = 0; k < numbers.size; k++) sum += numbers[k];
    return sum;
  }

  struct Slope {
    double score, by_share, by_control;
  };

  static NameScore lead(const Tally &tally) {
    return evidence(tally, [](double share, double control) {
      const double left = 1 - control;
      if (left <= 1e-9) return Slope{0, 0, 0};
      return Slope{(share - control) / left, 1 / left, (share - 1) / (left * left)};
    });
  }
  static NameScore itself(const Tally &tally) {
    return evidence(tally, [](double share, double) { return Slope{share, 1, 0}; });
  }
  static NameScore nearness(const Tally &tally) {
    return evidence(tally, [](double share, double control) {
      if (!(control > 0)) return Slope{1, 0, 0};
      return Slope{1 - share / control, -1 / control, share / (control * control)};
    });
  }

  // The score against the largest control, with an interval from the variance between tokens.
  template <class Scoring>
  static NameScore evidence(const Tally &tally, Scoring scoring) {
    NameScore result;
    const double count = result.queries = total(tally.queries);
    if (count == 0) return result;
    int strongest = 0;
    double control = 0;
    for (int c = 0; c < tally.control_count; c++) {
      const double sum = total(tally.controls[c]) / count;
      if (c == 0 || sum > control) strongest = c, control = sum;
    }
    const Zeros<double> &of_control = tally.controls[strongest];
    const double share = result.mean = total(tally.share) / count;
    const Slope slope = scoring(share, control);
    double variance = 0, tokens = 0;
    for (int64_t k = 0; k < tally.share.size; k++) {
      const double weight = tally.queries[k] / count;
      const double residual = slope.by_share * (tally.share[k] / count - share * weight) +
                              slope.by_control * (of_control[k] / count - control * weight);
      variance += residual * residual, tokens += tally.queries[k] > 0;
    }
    const double free = max(1.0, tokens - 1);
    result.score = slope.score;
    if (count >= ENOUGH && tokens >= VARIED)
      result.margin = student(free) * sqrt(variance * tokens / free);
    return result;
  }

  // The 97.5 % quantile of Student's t; Abramowitz and Stegun 1964, equation 26.7.5.
  static double student(double free) {
    const double x = 1.959964, square = x * x;
    const double first = x * (square + 1) / 4;
    const double second = x * ((5 * square + 16) * square + 3) / 96;
    const double third = x * (((3 * square + 19) * square + 17) * square - 15) / 384;
    return x + (first + (second + third / free) / free) / free;
  }

  // False for NaN.
  static bool leads(const NameScore &one) { return one.score - one.margin >= LEAD; }
  static bool may_lead(const NameScore &one) {
    return one.score + (isnan(one.margin) ? 0 : one.margin) >= LEAD;
  }

  static void find_role(Naming &naming) {
    const NameScore *scores = naming.scores;
    const auto highest = [&](int first, int last, bool (*counts)(const NameScore &)) {
      int best = -1;
      for (int name = first; name < last; name++)
        if (counts(scores[name]) && (best < 0 || scores[name].score > scores[best].score))
          best = name;
      return best;
    };
    int undecided = -1;
    const auto decide = [&](int role) { naming.role = role, naming.undecided = undecided; };
    for (const int first : {int(INDUCTION), int(PREVIOUS), int(FIRST)}) {
      if (first == FIRST && !(scores[FIRST].score >= MOSTLY)) continue;
      const int last = first == INDUCTION ? PREVIOUS : first == PREVIOUS ? FIRST : SPREAD;
      const int leading = highest(first, last, leads);
      if (leading >= 0) return decide(leading);
      if (undecided < 0) undecided = highest(first, last, may_lead);
    }
    double queries = 0;
    for (int name = INDUCTION; name < ENTROPY; name++) queries = max(queries, scores[name].queries);
    if (queries == 0) return decide(ALONE);
    if (queries < ENOUGH) return decide(TOO_SHORT);
    if (scores[SPREAD].score >= WIDE) return decide(SPREAD);
    if (scores[DISTANCE].score >= 1 - NEAR) return decide(DISTANCE);
    if (undecided < 0) return decide(MIXED);
    decide(scores[undecided].margin <= LEAD ? BETWEEN : TOO_SHORT);
  }

  const int64_t *ids_;
  const float *separators_;
  int64_t length_, tokens_;
};

}  // namespace regard::REGARD_SET
