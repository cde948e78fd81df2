/**
 * Attention from queries, keys and log-sum-exps: any weight of a pattern that is written down
 * nowhere. What takes long is a generator that pauses after every row, so that it can be left.
 *
 * @typedef {Float32Array|Float64Array} Numbers
 * @typedef {{length: number, dim: number, scale: number, softcap: number|null, alibi: number|null,
 *   sink: boolean, positions: ArrayLike<number>, start: ArrayLike<number>, stop: ArrayLike<number>,
 *   cuts: Zone[], query: Numbers, key: Numbers, logsumexp: Float64Array,
 *   value: Numbers|null, valueDim: number}} Head
 * Of the keys from start to stop a query sees those that are cut from it nowhere.
 */
import { READOUTS } from "../quantities.js";

/** @param {Head} head */
export function product(head, /** @type {number} */ query, /** @type {number} */ key) {
  const { dim, query: queries, key: keys } = head;
  const q = query * dim;
  const k = key * dim;
  let sum = 0;
  for (let d = 0; d < dim; d++) sum += queries[q + d] * keys[k + d];
  return sum;
}

export const visible = (/** @type {Head} */ head, /** @type {number} */ query, /** @type {number} */ key) =>
  key >= head.start[query] && key < head.stop[query] && !(head.cuts.length && isCut(head, query, key));

const isCut = (/** @type {Head} */ { cuts }, /** @type {number} */ query, /** @type {number} */ key) =>
  cuts.some(({ queries, keys }) => query >= queries[0] && query < queries[1] && key >= keys[0] && key < keys[1]);

/** How many keys a query sees. */
export function countVisible(/** @type {Head} */ head, /** @type {number} */ query) {
  let count = 0;
  for (let key = head.start[query]; key < head.stop[query]; key++) if (visible(head, query, key)) count++;
  return count;
}

/** The steps from the product on, by name, in the order of the computation. */
export function stepsOf(/** @type {Head} */ head, /** @type {number} */ query, /** @type {number} */ key) {
  const steps = /** @type {{scaled: number, softcapped?: number, biased?: number, masked: number}} */ ({
    scaled: product(head, query, key) * head.scale,
  });
  let now = steps.scaled;
  if (head.softcap != null) steps.softcapped = now = head.softcap * Math.tanh(now / head.softcap);
  if (head.alibi != null) steps.biased = now -= head.alibi * Math.abs(head.positions[query] - key);
  steps.masked = visible(head, query, key) ? now : -Infinity;
  return steps;
}

function score(/** @type {Head} */ head, /** @type {number} */ query, /** @type {number} */ key) {
  let value = product(head, query, key) * head.scale;
  if (head.softcap != null) value = head.softcap * Math.tanh(value / head.softcap);
  if (head.alibi != null) value -= head.alibi * Math.abs(head.positions[query] - key);
  return value;
}

/** @param {Head[]} heads one, or several whose mean is meant */
export function weight(heads, /** @type {number} */ query, /** @type {number} */ key) {
  let sum = 0;
  for (const head of heads) {
    if (visible(head, query, key)) sum += Math.exp(score(head, query, key) - head.logsumexp[query]);
  }
  return sum / heads.length;
}

export const seen = (/** @type {Head[]} */ heads, /** @type {number} */ query, /** @type {number} */ key) =>
  heads.some((head) => visible(head, query, key));

/**
 * A query's weights on the keys of a range, in `row`.
 * @param {Head[]} heads @param {number} query @param {Span} range @param {Float64Array} row
 */
export function fill(heads, query, [first, stop], row) {
  row.fill(0);
  for (const head of heads) {
    const end = Math.min(stop, head.stop[query]);
    for (let key = Math.max(first, head.start[query]); key < end; key++) {
      if (head.cuts.length && isCut(head, query, key)) continue;
      row[key - first] += Math.exp(score(head, query, key) - head.logsumexp[query]);
    }
  }
  if (heads.length > 1) for (let k = 0; k < row.length; k++) row[k] /= heads.length;
  return row;
}

/** What a query attends to. */
export const row = (/** @type {Head[]} */ heads, /** @type {number} */ query) =>
  fill(heads, query, [0, heads[0].length], new Float64Array(heads[0].length));

/** What attends to a key. */
export const column = (/** @type {Head[]} */ heads, /** @type {number} */ key) =>
  Float64Array.from({ length: heads[0].length }, (_, query) => weight(heads, query, key));

/** Numbers in bulk, as the server sends those that have no rows and columns. */
export const floats = (/** @type {ArrayLike<number>} */ values) => ({
  values: Float32Array.from(values),
  rows: 0,
  columns: 0,
  heads: 0,
});

/** One weight and what it comes from; a mean has neither score nor log-sum-exp. */
export function cell(/** @type {Head[]} */ heads, /** @type {number} */ query, /** @type {number} */ key) {
  const shared = { weight: weight(heads, query, key), visible: seen(heads, query, key) };
  if (heads.length > 1) return { ...shared, score: null, logsumexp: null };
  const { masked } = stepsOf(heads[0], query, key);
  return { ...shared, score: shared.visible ? masked : null, logsumexp: heads[0].logsumexp[query] };
}

/**
 * One query for each block of them, the one in its middle, averaged over blocks of keys.
 * @param {Head[]} heads @param {number} block
 */
export function* sketched(heads, block) {
  const { length } = heads[0];
  const cells = Math.ceil(length / block);
  const values = new Float32Array(cells * cells);
  for (let i = 0; i < cells; i++) {
    const query = Math.min(length - 1, i * block + Math.floor(block / 2));
    const means = yield* averaged(heads, [query, query + 1], [0, length], block);
    values.set(means.values, i * cells);
  }
  return { values, rows: cells, columns: cells, heads: 0 };
}

/**
 * A window averaged down to cells of block × block weights, or of those that lie in the window.
 * @param {Head[]} heads @param {Span} queries @param {Span} keys @param {number} block
 */
export function* averaged(heads, queries, keys, block) {
  const [rows, columns] = [queries, keys].map(([first, stop]) => Math.ceil((stop - first) / block));
  const values = new Float32Array(rows * columns);
  const sums = new Float64Array(columns);
  const one = new Float64Array(keys[1] - keys[0]);
  for (let i = 0; i < rows; i++) {
    const from = queries[0] + i * block;
    const to = Math.min(queries[1], from + block);
    sums.fill(0);
    for (let query = from; query < to; query++) {
      fill(heads, query, keys, one);
      for (let k = 0; k < one.length; k++) sums[Math.floor(k / block)] += one[k];
      yield;
    }
    for (let j = 0; j < columns; j++) {
      const wide = Math.min(block, one.length - j * block);
      values[i * columns + j] = sums[j] / ((to - from) * wide);
    }
  }
  return { values, rows, columns, heads: 0 };
}

/** Which two of the pixels a token lies in, and its share in the first: pixels may cut tokens. */
function cut(/** @type {number} */ token, /** @type {number} */ length, /** @type {number} */ pixels) {
  const start = token * pixels;
  const first = Math.floor(start / length);
  const last = Math.floor((start + pixels - 1) / length);
  return [first, last, (Math.min((first + 1) * length, start + pixels) - start) / pixels];
}

/** The whole pattern of each of some heads as a picture of size × size pixels, one after the other. */
export function* pictures(/** @type {Head[]} */ heads, /** @type {number} */ size) {
  const { length } = heads[0];
  const side = Math.min(size, length);
  const cuts = Array.from({ length }, (_, token) => cut(token, length, side));
  const sums = new Float64Array(heads.length * side * side);
  const one = new Float64Array(length);
  for (const [n, head] of heads.entries()) {
    for (let query = 0; query < length; query++) {
      fill([head], query, [0, length], one);
      const [up, down, upper] = cuts[query];
      for (let key = head.start[query]; key < head.stop[query]; key++) {
        const [left, right, lefter] = cuts[key];
        const at = (/** @type {number} */ i, /** @type {number} */ j) => (n * side + i) * side + j;
        sums[at(up, left)] += one[key] * upper * lefter;
        sums[at(up, right)] += one[key] * upper * (1 - lefter);
        sums[at(down, left)] += one[key] * (1 - upper) * lefter;
        sums[at(down, right)] += one[key] * (1 - upper) * (1 - lefter);
      }
      yield;
    }
  }
  const area = (length / side) ** 2;
  return {
    values: Float32Array.from(sums, (sum) => sum / area),
    rows: side,
    columns: side,
    heads: heads.length,
  };
}

const percent = (/** @type {number} */ done, /** @type {number} */ total) => Math.floor((100 * done) / total);

/** The readouts along the text, one after the other; on the way, how far they are, a percent at a time. */
export function* readouts(/** @type {Head[]} */ heads) {
  const { length } = heads[0];
  /** @type {Record<string, Float64Array>} */
  const along = Object.fromEntries(READOUTS.map((name) => [name, new Float64Array(length)]));
  const one = new Float64Array(length);
  for (let query = 0; query < length; query++) {
    fill(heads, query, [0, length], one);
    let [entropy, sum, moment] = [0, 0, 0];
    for (let key = 0; key < length; key++) {
      if (one[key] > 0) entropy -= one[key] * Math.log(one[key]);
      along.received[key] += one[key];
      sum += one[key];
      moment += one[key] * Math.abs(heads[0].positions[query] - key);
    }
    along.distance[query] = sum === 0 ? 0 : moment / sum; // how far a query looks back, on average
    along.entropy[query] = Math.max(0, entropy);
    along.first_token[query] = one[0];
    yield percent(query + 1, length) > percent(query, length) ? { done: query + 1, total: length } : undefined;
  }
  return { values: Float32Array.from(READOUTS.flatMap((name) => [...along[name]])), rows: 0, columns: 0, heads: 0 };
}

const vector = (/** @type {Numbers} */ numbers, /** @type {number} */ at, /** @type {number} */ dim) =>
  Array.from(numbers.subarray(at * dim, (at + 1) * dim));

/**
 * One query's attention number by number, as the explorer's server answers.
 * @param {Head} head @param {number} query
 * @param {{first?: number, count?: number, picked?: number}} [keys] ranks that are written out, and a key
 */
export function walk(head, query, { first = 0, count = 24, picked } = {}) {
  const weights = row([head], query);
  const hidden = (/** @type {number} */ key) => !visible(head, query, key);
  const order = Array.from(weights.keys()).sort(
    (a, b) => Number(hidden(a)) - Number(hidden(b)) || weights[b] - weights[a] || a - b,
  );
  const many = countVisible(head, query);
  const entry = (/** @type {number} */ rank) => {
    const position = order[rank];
    const steps = stepsOf(head, query, position);
    return {
      position,
      rank,
      visible: !hidden(position),
      key: vector(head.key, position, head.dim),
      score: product(head, query, position),
      ...steps,
      masked: Number.isFinite(steps.masked) ? steps.masked : null,
      weight: weights[position],
      value: /** @type {number[]} */ (head.value && vector(head.value, position, head.valueDim)),
    };
  };
  // Hidden keys are a page of their own, after the last visible one.
  const last = Math.min(first + count, first < many ? many : order.length);
  const shown = [...order.keys()].slice(first, last);
  const weaker = order.slice(Math.min(first + count, many), many);
  return {
    scale: head.scale,
    steps: Object.keys(stepsOf(head, query, 0)),
    sink: head.sink,
    query: vector(head.query, query, head.dim),
    logsumexp: many ? head.logsumexp[query] : null,
    count: many,
    keys: shown.map(entry),
    picked: picked == null ? null : entry(order.indexOf(picked)),
    rest: { count: weaker.length, weight: weaker.reduce((sum, key) => sum + weights[key], 0) },
    hidden: head.length - many,
    context: head.value && context(head, head.value, weights),
  };
}

function context(/** @type {Head} */ head, /** @type {Numbers} */ value, /** @type {Float64Array} */ weights) {
  /** @type {number[]} */
  const sums = new Array(head.valueDim).fill(0);
  weights.forEach((share, key) => {
    for (let d = 0; d < sums.length; d++) sums[d] += share * value[key * sums.length + d];
  });
  return sums;
}
