/**
 * What a head does on a text and what controls of it would do, token by token; mirrors `regard/lens/naming/tallies.py` and
 * `regard/lens/naming/repeats.py`, of one head and one text.
 *
 * T tokens, K different ones of them.
 *
 * @typedef {{queries: Float64Array, share: Float64Array, controls: Record<string, Float64Array>}} Tally (K) each
 * @typedef {import("../kernels/pattern.js").Pattern} Pattern
 */
import { bands } from "../kernels/pattern.js";

/**
 * The tallies of a head, by score, on a text of two tokens or more; mirrors `Tallier.of_text`.
 * @param {Pattern} head @param {number[]} ids (T), each token's number among the different ones
 * @returns {Generator<void, Record<string, Tally>>}
 */
export function* talliesOf(head, ids) {
  const { length } = head;
  const count = Math.max(...ids) + 1;
  const every = () => new Float64Array(length);
  const rows = {
    first: every(),
    entropy: every(),
    distance: every(),
    current: every(),
    previous: every(),
    even: every(), // a uniform head's weight on each key that it sees
    highest: every(), // its entropy
    far: every(), // its distance
  };
  const received = every();
  const seers = every();
  const repeats = new Repeats(length, ids);
  for (const [first, stop] of bands([head], [0, length])) {
    const all = head.weights([first, stop]);
    for (let query = first; query < stop; query++) {
      const weights = all.subarray((query - first) * length, (query - first + 1) * length);
      readRow(head, query, weights, rows, received, seers);
      repeats.add(head, query, weights);
    }
    yield;
  }
  const places = Array.from(ids.keys());
  const seen = (/** @type {number} */ back) =>
    places.map((query) => Number(query >= back && head.sees(query, query - back)));
  const [seesItself, seesPrevious, seesFirst] = [seen(0), seen(1), places.map((query) => head.sees(query, 0))];
  const later = places.map((query) => query > 0); // the first token has no choice
  const chosen = places.map((query) => later[query] && rows.highest[query] > 0); // of more than one key
  const others = (/** @type {Float64Array} */ own, /** @type {number} */ back) =>
    fromOtherQueries(own, received, seers, back);
  const tally = tallier(ids, count);
  /** @type {Record<string, Tally>} */
  const result = {
    previous_token: tally(
      later.map((is, query) => is && Boolean(seesPrevious[query])),
      rows.previous,
      { uniform: rows.even, others: others(rows.previous, 1) },
    ),
    current_token: tally(later, rows.current, {
      uniform: rows.even.map((even, query) => even * seesItself[query]),
      others: others(rows.current, 0),
    }),
    first_token: tally(later, rows.first, {
      uniform: rows.even.map((even, query) => even * Number(seesFirst[query])),
    }),
    spread: tally(
      chosen,
      rows.entropy.map((entropy, query) => entropy / Math.max(rows.highest[query], 1e-9)),
    ),
    entropy: tally(later, rows.entropy),
    distance: tally(later, rows.distance, { uniform: rows.far }),
  };
  if (!repeats.any) return result;
  for (const [name, following] of /** @type {const} */ ([
    ["duplicate_token", false],
    ["induction", true],
  ])) {
    result[name] = ofTargets(tally, repeats.finish(following), rows.even, ids, count, following);
  }
  return result;
}

/**
 * What one query's weights are, and what a uniform head's would be.
 * @param {Pattern} head @param {number} query @param {Float32Array} weights @param {Record<string, Float64Array>} rows
 * @param {Float64Array} received @param {Float64Array} seers
 */
function readRow(head, query, weights, rows, received, seers) {
  let [entropy, sum, moment, distances] = [0, 0, 0, 0];
  for (let key = 0; key < weights.length; key++) {
    const weight = weights[key];
    if (weight > 0) entropy -= weight * Math.log(weight);
    sum += weight;
    moment += weight * Math.abs(query - key);
    received[key] += weight;
    if (!head.sees(query, key)) continue;
    distances += Math.abs(query - key);
    seers[key] += 1;
  }
  const many = head.count(query);
  rows.first[query] = weights[0];
  rows.entropy[query] = Math.max(0, entropy);
  rows.distance[query] = sum === 0 ? 0 : moment / sum;
  rows.current[query] = weights[query];
  rows.previous[query] = query ? weights[query - 1] : 0;
  rows.highest[query] = Math.log(Math.max(1, many));
  rows.even[query] = 1 / Math.max(1, many);
  rows.far[query] = many ? distances / many : 0;
}

/** What the key so far back gets on average from the other queries that see it; mirrors `_from_other_queries`. */
function fromOtherQueries(
  /** @type {Float64Array} */ weights,
  /** @type {Float64Array} */ received,
  /** @type {Float64Array} */ seers,
  /** @type {number} */ back,
) {
  return weights.map((weight, query) => {
    const key = Math.max(0, query - back);
    const others = seers[key] - 1;
    return others > 0 ? Math.max(0, received[key] - weight) / others : weight;
  });
}

/**
 * Adds up over chosen queries, by their tokens; mirrors `Tallier._tally`.
 * @param {number[]} ids @param {number} count
 */
function tallier(ids, count) {
  /** @param {boolean[]} chosen @param {Float64Array} share @param {Record<string, Float64Array>} [controls] @returns {Tally} */
  return (chosen, share, controls = {}) => {
    const total = (/** @type {Float64Array} */ values) =>
      byToken(
        values.map((value, query) => (chosen[query] ? value : 0)),
        ids,
        count,
      );
    return {
      queries: total(new Float64Array(share.length).fill(1)),
      share: total(share),
      controls: Object.fromEntries(Object.entries(controls).map(([name, control]) => [name, total(control)])),
    };
  };
}

/** @param {Float64Array} values @param {number[]} ids @param {number} count */
function byToken(values, ids, count) {
  const sums = new Float64Array(count);
  values.forEach((value, place) => (sums[ids[place]] += value));
  return sums;
}

/**
 * Mirrors `Tallier._of_targets`: all queries that a key is a target of are of one token, the key's or the one before.
 * @param {ReturnType<typeof tallier>} tally @param {ReturnType<Repeats["finish"]>} repeats @param {Float64Array} even
 * @param {number[]} ids @param {number} count @param {boolean} following
 */
function ofTargets(tally, repeats, even, ids, count, following) {
  const { targets, share, shuffled, others } = repeats;
  const result = tally(
    Array.from(targets, (many) => many > 0),
    share,
    { uniform: targets.map((many, query) => many * even[query]), shuffled },
  );
  result.controls.others = byToken(others.subarray(Number(following)), ids, count);
  return result;
}

/** Sums over the pairs of a query and its targets, and what two controls make of them; mirrors `ControlledRepeats`. */
class Repeats {
  constructor(/** @type {number} */ length, /** @type {number[]} */ ids) {
    this.ids = ids;
    this.any = false;
    this.pairs = new Float64Array(length); // of all that could be a query and its target, by key
    this.weights = new Float64Array(length);
    const sums = () => ({
      targets: new Float64Array(length),
      share: new Float64Array(length),
      shuffled: new Float64Array(length),
      pairs: new Float64Array(length),
      weights: new Float64Array(length),
    });
    this.copies = sums();
    this.successors = sums();
  }

  /** Adds one query's pairs: key 0, its own position and the one before it are none of them. */
  add(/** @type {Pattern} */ head, /** @type {number} */ query, /** @type {Float32Array} */ weights) {
    const { ids } = this;
    const each = new Float64Array(32); // what a key of each range of distance gets, on average
    const seen = new Float64Array(32);
    for (let key = 1; key <= query - 2; key++) {
      if (!head.sees(query, key)) continue;
      const range = rangeOf(query - key);
      each[range] += weights[key];
      seen[range] += 1;
      this.pairs[key] += 1;
      this.weights[key] += weights[key];
    }
    for (let key = 1; key <= query - 2; key++) {
      for (const [sums, copy] of /** @type {const} */ ([
        [this.copies, key],
        [this.successors, key - 1],
      ])) {
        if (ids[copy] !== ids[query]) continue;
        this.any = true;
        if (!head.sees(query, key)) continue;
        const range = rangeOf(query - key);
        sums.targets[query] += 1;
        sums.share[query] += weights[key];
        sums.shuffled[query] += each[range] / seen[range];
        sums.pairs[key] += 1;
        sums.weights[key] += weights[key];
      }
    }
  }

  /** Compares each key's queries. */
  finish(/** @type {boolean} */ following) {
    const sums = following ? this.successors : this.copies;
    const others = sums.pairs.map((pairs, key) => {
      const rest = this.pairs[key] - pairs;
      return rest > 0 ? (pairs * (this.weights[key] - sums.weights[key])) / rest : sums.weights[key];
    });
    return { targets: sums.targets, share: sums.share, shuffled: sums.shuffled, others };
  }
}

/** Numbers the ranges: 0 of distances 2 and 3, 1 of 4 to 7, and so on; mirrors `_range_of`. */
const rangeOf = (/** @type {number} */ distance) => 30 - Math.clz32(distance);
