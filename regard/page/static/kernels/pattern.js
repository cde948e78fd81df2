/**
 * The pattern of a head, whose queries, keys and log-sum-exps lie in the kernels' memory: any weight of it is computed
 * when it is looked at. What takes long is a generator that pauses every few milliseconds, so that it can be left.
 *
 * L queries and as many keys, D and Dv head dimensions, N patterns whose mean is meant.
 *
 * @typedef {import("./memory.js").Kernels} Kernels
 * @typedef {{address: number, stride: number}} Rows a matrix: where its first row lies, and numbers from row to row
 * @typedef {{length: number, dim: number, valueDim: number, scale: number, softcap: number|null, alibi: number|null,
 *   sink: boolean, bounds: {start: number[], stop: number[]}|null, window: number|null, cuts: Zone[], query: Rows,
 *   key: Rows, value: Rows|null}} Head
 * bounds: the keys that each query sees; null: those up to its own place, as far back as the window reaches. Of these
 * it sees the ones that are cut from it nowhere.
 */
import { ServerError } from "../errors.js";
import { READOUTS } from "../quantities.js";

const PROBLEM = "qqqqqqqqqdddq Pqqq Pqqq Pqqq PPPqqqqqqq PPPqqqq Pqqqq Pqqqq Pqq Pqq";
const READOUT = " qPPPqqqq";
const [LOGSUMEXP, ENTROPY, DISTANCE, MASS, WEIGHTS, RECEIVED, IMAGE] = [0, 2, 3, 4, 6, 7, 10];
const WORK = 2 ** 22; // products of numbers after which the page has its turn, some milliseconds
const NONE = 0; // an address where nothing is

export class Pattern {
  /**
   * @param {Kernels} kernels @param {Head} head
   * @param {number} [logsumexp] where its log-sum-exps lie, (L); else they are computed
   */
  constructor(kernels, head, logsumexp) {
    this.kernels = kernels;
    this.head = head;
    this.length = head.length;
    this.known = logsumexp;
    /** The weights that its entries are multiples of; null: they are the weights. @type {Pattern|null} */
    this.base = null;
  }

  /** What its weights are multiplied by, as the kernels take it; for the calls that run. */
  factors() {
    return NONE;
  }

  /** The first and stop of the keys that a query sees, but for cuts. @returns {Span} */
  range(/** @type {number} */ query) {
    const { bounds, window } = this.head;
    if (bounds) return [bounds.start[query], bounds.stop[query]];
    return [window == null ? 0 : Math.max(0, query - window + 1), query + 1];
  }

  /** Whether a query sees a key. */
  sees(/** @type {number} */ query, /** @type {number} */ key) {
    const [start, stop] = this.range(query);
    const isIn = (/** @type {Span} */ [first, end], /** @type {number} */ place) => place >= first && place < end;
    return (
      isIn([start, stop], key) && !this.head.cuts.some(({ queries, keys }) => isIn(queries, query) && isIn(keys, key))
    );
  }

  /** How many keys a query sees. */
  count(/** @type {number} */ query) {
    const [start, stop] = this.range(query);
    let count = 0;
    for (let key = start; key < stop; key++) if (this.sees(query, key)) count++;
    return count;
  }

  /**
   * Some queries of this head and all its keys, as the kernels take a problem; for the calls that run.
   * @param {Span} queries
   */
  problem([first, stop]) {
    const { kernels, head } = this;
    if (!this.length) throw new ServerError("This text is not open any more; open it again.", { status: 404 });
    const count = stop - first;
    const rows = (/** @type {Rows} */ { address, stride }, from = 0) => [address + 4 * from * stride, 0, 0, stride];
    const table = (/** @type {number[]} */ numbers) => kernels.lendWhole(numbers.slice(first, stop));
    const places = Array.from({ length: head.bounds ? head.length : 0 }, (_, place) => place);
    const bounds = head.bounds ? [head.bounds.start, head.bounds.stop, places].map(table) : [NONE, NONE, NONE];
    const back = head.window == null ? [0, 0] : [first - head.window + 1, 1];
    return kernels.struct(PROBLEM, [
      ...[0, 1, 1, 1, 1, count, head.length, head.dim, head.valueDim],
      ...[head.scale, head.softcap ?? 0, 0, 0],
      ...[...rows(head.query, first), ...rows(head.key), ...rows(head.value ?? { address: NONE, stride: 0 })],
      ...[...bounds, 0, 0, ...back, first + 1, 1, first],
      ...this.spans([first, stop]),
      ...[NONE, 0, 0, 0, 0, NONE, 0, 0, 0, 0],
      ...[head.alibi == null ? NONE : kernels.lend([head.alibi]), 0, 0, NONE, 0, 0],
    ]);
  }

  /** The cuts, as tables of the keys that each query loses. @param {Span} queries */
  spans([first, stop]) {
    const { kernels, head } = this;
    const { length } = head.cuts;
    if (!length) return [NONE, NONE, NONE, 0, 0, 0, 0];
    const table = (/** @type {0|1} */ end) =>
      kernels.lendWhole(
        head.cuts.flatMap(({ queries, keys }) =>
          Array.from({ length: stop - first }, (_, k) =>
            first + k >= queries[0] && first + k < queries[1] ? keys[end] : 0,
          ),
        ),
      );
    return [table(0), table(1), kernels.lend(new Array(length).fill(-Infinity)), length, stop - first, 0, 0];
  }

  /**
   * Readouts of some queries, in one pass.
   * @param {Span} queries @param {{kind: number, count: number, fields?: number[]}[]} wanted of each the numbers that it
   * gives, and what it takes: operand, size, columns, height, width
   * @param {Span} [keys] that are looked at
   */
  read(queries, wanted, keys = /** @type {Span} */ ([0, this.length])) {
    const { kernels } = this;
    return kernels.during(() =>
      read(kernels, this.problem(queries), keys, this.logsumexps(queries), wanted, this.factors()),
    );
  }

  /** Where the log-sum-exps lie, from a query on. */
  logsumexps(/** @type {Span} */ [first]) {
    if (this.known === undefined) {
      const { kernels, length } = this;
      const wanted = [{ kind: LOGSUMEXP, count: length }];
      const [values] = kernels.during(() => read(kernels, this.problem([0, length]), [0, length], NONE, wanted));
      this.known = kernels.keep(values);
    }
    return this.known + 4 * first;
  }

  /** Gives back the memory that is its own. */
  release() {
    if (this.known !== undefined) this.kernels.release(this.known);
    this.length = 0;
  }

  /** The log-sum-exp of a query's scores. */
  logsumexp(/** @type {number} */ query) {
    return this.kernels.floats(this.logsumexps([query, query + 1]), 1)[0];
  }

  /** The weights (rows, L) of some queries; 0 on other keys than those. @param {Span} queries @param {Span} [keys] */
  weights(queries, keys) {
    const rows = queries[1] - queries[0];
    const image = { kind: IMAGE, count: rows * this.length, fields: [NONE, rows, this.length, rows, this.length] };
    return this.read(queries, [image], keys)[0];
  }

  /**
   * What it does on a text: the numbers of `Naming` in src/native/naming.h, and the keys on which it rests.
   * @param {number[]} ids @param {number[]} separators 1 for tokens that separate others, else 0
   */
  name(ids, separators) {
    const { kernels, length } = this;
    return kernels.during(() => {
      const count = 10 * 4 + 2;
      const result = kernels.lendWhole(new Array(count).fill(0));
      const [logsumexps, problem] = [this.logsumexps([0, length]), this.problem([0, length])];
      const operands = [kernels.lendWhole(ids), kernels.lend(separators), Math.max(...ids) + 1];
      const rests = kernels.lend(new Array(length).fill(0));
      kernels.call("name_head", problem, logsumexps, ...operands, result, rests);
      const numbers = Array.from(new Float64Array(kernels.exports.memory.buffer, result, count));
      const resting = kernels.floats(rests, length);
      return { numbers, sinks: [...resting.keys()].filter((key) => resting[key]) };
    });
  }

  /** What a query's keys and values are averaged to, (Dv). */
  context(/** @type {number} */ query) {
    const { kernels, head } = this;
    return kernels.during(() => {
      const result = kernels.borrow(4 * head.valueDim);
      const tensor = kernels.struct("Pqqq", [result, 0, 0, head.valueDim]);
      kernels.call("forward", this.problem([query, query + 1]), tensor, NONE);
      return Array.from(kernels.floats(result, head.valueDim));
    });
  }

  /** The products of a query with some keys. @param {number} query @param {number[]} keys */
  products(query, keys) {
    const { kernels, head } = this;
    return kernels.during(() => {
      const chosen = kernels.lend(keys.flatMap((key) => this.vector(head.key, key, head.dim)));
      const result = kernels.borrow(4 * keys.length);
      const at = head.query.address + 4 * query * head.query.stride;
      kernels.call(
        "multiply",
        kernels.struct("qqqqqPPPPPP", [0, 1, 1, head.dim, keys.length, at, chosen, 0, 0, 0, result]),
      );
      return Array.from(kernels.floats(result, keys.length));
    });
  }

  /** A row of a matrix. @param {Rows} rows @param {number} row @param {number} width */
  vector({ address, stride }, row, width) {
    return Array.from(this.kernels.floats(address + 4 * row * stride, width));
  }
}

/**
 * @param {Kernels} kernels @param {number} problem @param {Span} keys @param {number} logsumexps
 * @param {{kind: number, count: number, fields?: number[]}[]} wanted @param {number} [factors]
 */
function read(kernels, problem, keys, logsumexps, wanted, factors = NONE) {
  const results = wanted.map(({ count }) => kernels.lend(new Float32Array(count)));
  const list = kernels.struct(
    READOUT.repeat(wanted.length),
    wanted.flatMap(({ kind, fields = [NONE, 0, 0, 0, 0] }, k) => [kind, results[k], NONE, ...fields]),
  );
  kernels.call("read", problem, kernels.struct("PqqqPP", [logsumexps, ...keys, wanted.length, list, factors]));
  return wanted.map(({ count }, k) => kernels.floats(results[k], count).slice());
}

/** Numbers in bulk, as the server sends those that have no rows and columns. */
export const floats = (/** @type {ArrayLike<number>} */ values) => ({
  values: Float32Array.from(values),
  rows: 0,
  columns: 0,
  heads: 0,
});

/** Their mean. @param {Pattern[]} patterns @param {Span} queries @param {Span} [keys] */
const weightsOf = (patterns, queries, keys) => meanOf(patterns.map((pattern) => pattern.weights(queries, keys)));

/** The mean of lists of numbers; it may take the place of the first. @param {Float32Array[]} lists */
function meanOf([first, ...others]) {
  if (!others.length) return first;
  for (const other of others) for (let k = 0; k < first.length; k++) first[k] += other[k];
  return first.map((sum) => sum / (others.length + 1));
}

/** Ranges of so many queries that reading them takes some milliseconds. @param {Pattern[]} patterns @param {Span} queries */
function* bands(patterns, [first, stop]) {
  const [{ length, head }] = patterns;
  const rows = Math.max(1, Math.floor(WORK / (length * head.dim * patterns.length)));
  for (let start = first; start < stop; start += rows)
    yield /** @type {Span} */ ([start, Math.min(stop, start + rows)]);
}

/** What a query attends to. */
export const row = (/** @type {Pattern[]} */ patterns, /** @type {number} */ query) =>
  weightsOf(patterns, [query, query + 1]);

/** What attends to a key. */
export function column(/** @type {Pattern[]} */ patterns, /** @type {number} */ key) {
  const [{ length, kernels }] = patterns;
  return kernels.during(() => {
    const wanted = { kind: WEIGHTS, count: length, fields: [kernels.lendWhole([key, 0]), 1, 0, 0, 0] };
    const columns = patterns.map((pattern) => pattern.read([0, length], [wanted])[0]);
    return columns[0].map((_, query) => columns.reduce((sum, one) => sum + one[query], 0) / columns.length);
  });
}

/** One weight and what it comes from; a mean has neither score nor log-sum-exp. */
export function cell(/** @type {Pattern[]} */ patterns, /** @type {number} */ query, /** @type {number} */ key) {
  const [weight] = row(patterns, query).subarray(key);
  const visible = patterns.some((pattern) => pattern.sees(query, key));
  if (patterns.length > 1) return { weight, visible, score: null, logsumexp: null };
  const [pattern] = patterns;
  const score = visible ? stepsOf(pattern.head, query, key, pattern.products(query, [key])[0], visible).masked : null;
  const logsumexp = pattern.logsumexp(query);
  return { weight, visible, score, logsumexp: Number.isFinite(logsumexp) ? logsumexp : null };
}

/**
 * One query for each block of them, the one in its middle, averaged over blocks of keys.
 * @param {Pattern[]} patterns @param {number} block
 */
export function* sketched(patterns, block) {
  const [{ length }] = patterns;
  const cells = Math.ceil(length / block);
  const values = new Float32Array(cells * cells);
  const [one, across] = [axis([0, 1], block), axis([0, length], block)];
  for (let i = 0; i < cells; i++) {
    const query = Math.min(length - 1, i * block + Math.floor(block / 2));
    const means = yield* pooled(patterns, [query, query + 1], [0, length], one, across);
    values.set(means.values, i * cells);
  }
  return { values, rows: cells, columns: cells, heads: 0 };
}

/**
 * A window averaged down to cells of block × block weights, or of those that lie in the window.
 * @param {Pattern[]} patterns @param {Span} queries @param {Span} keys @param {number} block
 */
export function* averaged(patterns, queries, keys, block) {
  const values = yield* pooled(patterns, queries, keys, axis(queries, block), axis(keys, block));
  return { ...values, heads: 0 };
}

/** The cells of a range, each of so many tokens. @param {Span} range @param {number} block */
const axis = ([first, stop], block) =>
  axisOf(Array.from({ length: stop - first }, (_, k) => /** @type {Share[]} */ ([[Math.floor(k / block), 1]])));

/** The whole pattern of each of some heads as a picture of size × size pixels, one after the other. */
export function* pictures(/** @type {Pattern[]} */ patterns, /** @type {number} */ size) {
  const [{ length }] = patterns;
  const side = Math.min(size, length);
  const pixels = axisOf(Array.from({ length }, (_, token) => sharesOf(token, length, side)));
  const values = new Float32Array(patterns.length * side * side);
  for (const [n, pattern] of patterns.entries()) {
    const picture = yield* pooled([pattern], [0, length], [0, length], pixels, pixels);
    values.set(picture.values, n * side * side);
  }
  return { values, rows: side, columns: side, heads: patterns.length };
}

/**
 * A pixel in which a token lies, and the share of the token that does.
 * @typedef {[number, number]} Share
 * @typedef {{shares: Share[][], sizes: Float64Array}} Axis the pixels of each token, and how many tokens each pixel has
 */

/** @param {Share[][]} shares @returns {Axis} */
function axisOf(shares) {
  const [last] = shares[shares.length - 1].slice(-1);
  const sizes = new Float64Array(last[0] + 1);
  for (const token of shares) for (const [pixel, share] of token) sizes[pixel] += share;
  return { shares, sizes };
}

/** The one or two pixels in which a token lies: their edges may divide tokens. @returns {Share[]} */
function sharesOf(/** @type {number} */ token, /** @type {number} */ length, /** @type {number} */ pixels) {
  const start = token * pixels;
  const first = Math.floor(start / length);
  const inside = Math.min((first + 1) * length - start, pixels) / pixels;
  return inside < 1
    ? [
        [first, inside],
        [first + 1, 1 - inside],
      ]
    : [[first, 1]];
}

/**
 * The means over pixels of a window.
 * @param {Pattern[]} patterns @param {Span} queries @param {Span} keys
 * @param {Axis} down of the queries @param {Axis} across of the keys
 */
function* pooled(patterns, queries, keys, down, across) {
  const [rows, columns] = [down.sizes.length, across.sizes.length];
  const sums = new Float64Array(rows * columns);
  const [{ length }] = patterns;
  const line = new Float64Array(columns);
  for (const [first, stop] of bands(patterns, queries)) {
    const weights = weightsOf(patterns, [first, stop], keys);
    for (let query = first; query < stop; query++) {
      line.fill(0);
      for (let key = keys[0]; key < keys[1]; key++) {
        const weight = weights[(query - first) * length + key];
        if (weight) for (const [pixel, share] of across.shares[key - keys[0]]) line[pixel] += weight * share;
      }
      for (const [pixel, share] of down.shares[query - queries[0]])
        for (let j = 0; j < columns; j++) sums[pixel * columns + j] += line[j] * share;
    }
    yield;
  }
  const size = (/** @type {number} */ k) => down.sizes[Math.floor(k / columns)] * across.sizes[k % columns];
  const values = Float32Array.from(sums, (sum, k) => sum / size(k));
  return { values, rows, columns };
}

const percent = (/** @type {number} */ done, /** @type {number} */ total) => Math.floor((100 * done) / total);

/** The readouts along the text, one after the other; on the way, how far they are, a percent at a time. */
export function* readouts(/** @type {Pattern[]} */ patterns) {
  const [{ length, kernels }] = patterns;
  const all = [ENTROPY, DISTANCE, MASS, RECEIVED];
  const along = all.map(() => new Float32Array(length).fill(NaN));
  // Only weights add up to 1, and have an entropy and a mean distance.
  const areWeights = patterns[0].base == null;
  const wanted = all.slice(areWeights ? 0 : 2);
  const received = new Float64Array(length);
  const first = kernels.keep(Array.from({ length }, (_, key) => Number(key === 0)));
  try {
    for (const queries of bands(patterns, [0, length])) {
      const rows = queries[1] - queries[0];
      const requests = wanted.map((kind) => ({
        kind,
        count: kind === RECEIVED ? length : rows,
        fields: [kind === MASS ? first : NONE, 0, 0, 0, 0],
      }));
      const results =
        areWeights && patterns.length > 1
          ? readMean(patterns, queries, requests)
          : meansOf(patterns.map((pattern) => pattern.read(queries, requests)));
      results.slice(0, -1).forEach((values, k) => along[k + all.length - wanted.length].set(values, queries[0]));
      results[results.length - 1].forEach((weight, key) => (received[key] += weight));
      const [before, now] = queries.map((done) => percent(done, length));
      yield now > before ? { done: queries[1], total: length } : undefined;
    }
  } finally {
    kernels.release(first);
  }
  along[along.length - 1].set(received);
  /** @type {Record<string, Float32Array>} */
  const named = Object.fromEntries(
    ["entropy", "distance", "first_token", "received"].map((name, k) => [name, along[k]]),
  );
  return floats(READOUTS.flatMap((name) => [...named[name]]));
}

/** The means of the results of several patterns, one by one. @param {Float32Array[][]} results */
const meansOf = (results) => results[0].map((_, k) => meanOf(results.map((one) => one[k])));

/**
 * Readouts of a mean: of a pattern whose scores are the logarithms of the mean weights, and whose log-sum-exps are 0.
 * @param {Pattern[]} patterns @param {Span} queries @param {{kind: number, count: number, fields?: number[]}[]} wanted
 */
function readMean(patterns, [first, stop], wanted) {
  const [{ length, kernels }] = patterns;
  const [rows, scores] = [stop - first, weightsOf(patterns, [first, stop]).map(Math.log)];
  return kernels.during(() => {
    const zeros = kernels.lend(new Float32Array(Math.max(rows, length)));
    const bias = kernels.lend(scores);
    const problem = kernels.struct(PROBLEM, [
      ...[0, 1, 1, 1, 1, rows, length, 1, 0, 1, 0, 0, 0],
      ...[zeros, 0, 0, 1, zeros, 0, 0, 1, NONE, 0, 0, 0],
      ...[NONE, NONE, NONE, 0, 0, 0, 0, length, 0, first],
      ...[NONE, NONE, NONE, 0, 0, 0, 0],
      ...[NONE, 0, 0, 0, 0, bias, 0, 0, length, 1],
      ...[NONE, 0, 0, NONE, 0, 0],
    ]);
    return read(kernels, problem, [0, length], zeros, wanted);
  });
}

/**
 * The steps from a product on, by name, in the order of the computation.
 * @param {Head} head @param {number} query @param {number} key @param {number} product @param {boolean} visible
 */
function stepsOf(head, query, key, product, visible) {
  const steps = /** @type {{scaled: number, softcapped?: number, biased?: number, masked: number}} */ ({
    scaled: product * head.scale,
  });
  let now = steps.scaled;
  if (head.softcap != null) steps.softcapped = now = head.softcap * Math.tanh(now / head.softcap);
  if (head.alibi != null) steps.biased = now -= head.alibi * Math.abs(query - key);
  steps.masked = visible ? now : -Infinity;
  return steps;
}

/**
 * One query's attention number by number, as the explorer's server answers.
 * @param {Pattern} pattern @param {number} query
 * @param {{first?: number, count?: number, picked?: number}} [keys] ranks that are written out, and a key
 */
export function walk(pattern, query, { first = 0, count = 24, picked } = {}) {
  const { head, length, base } = pattern;
  const weights = row([base ?? pattern], query);
  const own = base ? row([pattern], query) : weights;
  const seen = Array.from(weights, (_, key) => pattern.sees(query, key));
  const order = Array.from(weights.keys()).sort(
    (a, b) => Number(seen[b]) - Number(seen[a]) || Math.abs(own[b]) - Math.abs(own[a]) || a - b,
  );
  const many = seen.filter(Boolean).length;
  // Hidden keys are a page of their own, after the last visible one.
  const last = Math.min(first + count, first < many ? many : length);
  const ranks = Array.from({ length: Math.max(0, last - first) }, (_, k) => first + k);
  if (picked != null) ranks.push(order.indexOf(picked));
  const products = pattern.products(
    query,
    ranks.map((rank) => order[rank]),
  );
  const entries = ranks.map((rank, k) => {
    const position = order[rank];
    const steps = stepsOf(head, query, position, products[k], seen[position]);
    return {
      position,
      rank,
      visible: seen[position],
      key: pattern.vector(head.key, position, head.dim),
      score: products[k],
      ...steps,
      masked: Number.isFinite(steps.masked) ? steps.masked : null,
      weight: weights[position],
      ...(base && { entry: own[position] }),
      value: /** @type {number[]} */ (head.value && pattern.vector(head.value, position, head.valueDim)),
    };
  });
  const weaker = order.slice(Math.min(first + count, many), many);
  const sum = (/** @type {Float32Array} */ of) => weaker.reduce((total, key) => total + of[key], 0);
  return {
    scale: head.scale,
    steps: Object.keys(stepsOf(head, query, 0, 0, true)),
    sink: head.sink,
    query: pattern.vector(head.query, query, head.dim),
    logsumexp: many ? pattern.logsumexp(query) : null,
    count: many,
    picked: picked == null ? null : /** @type {typeof entries[number]} */ (entries.pop()),
    keys: entries,
    rest: { count: weaker.length, weight: sum(weights), ...(base && { entry: sum(own) }) },
    hidden: length - many,
    context: head.value && pattern.context(query),
  };
}
