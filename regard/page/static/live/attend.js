/**
 * Attention of new tokens over a cache, with a model's attention changed or as it is: the steps of
 * `regard/steps.py`, `written_out`, and where `regard/intervene/_changer.py` changes them, in its order.
 *
 * T new tokens, S tokens in the cache, these included, H heads, G key/value heads, D head dimension.
 */
import { groupCount, headDim, startOf } from "./config.js";
import { multiplyRows, sumRows } from "./products.js";

/**
 * The contexts (T, H·D) of tokens whose queries, keys and values are in the cache; their log-sum-exps go there.
 * @param {GPTConfig} config @param {number} layer @param {import("./cache.js").Cache} cache
 * @param {number} rows T @param {Intervention[]} changes
 */
export function attend(config, layer, cache, rows, changes) {
  const context = new Float32Array(rows * config.dim);
  for (let head = 0; head < config.heads; head++) {
    const here = changes.filter((change) => isIn(change, layer, head));
    attendHead(config, layer, head, cache, rows, here, context);
  }
  return context;
}

/** Whether a change is made in a head. */
export const isIn = (/** @type {Intervention} */ change, /** @type {number} */ layer, /** @type {number} */ head) =>
  (change.layer ?? layer) === layer && (change.head ?? head) === head;

/**
 * The steps of one head, query by query.
 * @param {GPTConfig} config @param {number} layer @param {number} head @param {import("./cache.js").Cache} cache
 * @param {number} rows @param {Intervention[]} changes those of this head @param {Float32Array} context
 */
function attendHead(config, layer, head, cache, rows, changes, context) {
  const D = headDim(config);
  const { query, key, value, logsumexp } = cache.layers[layer];
  const group = Math.floor((head * groupCount(config)) / config.heads); // heads share keys and values evenly
  const [queryWidth, width] = [config.heads * D, groupCount(config) * D];
  const keys = { numbers: key, first: group * D, width, D };
  const values = { ...keys, numbers: value };
  const scale = 1 / Math.sqrt(D);
  const weights = new Float64Array(cache.length + rows);
  const sums = new Float64Array(D);
  const patch = changes.find((change) => change.kind === "patch");
  for (let row = 0; row < rows; row++) {
    const at = cache.length + row;
    const [start, stop] = [startOf(config, layer, at), at + 1];
    multiplyRows(query, at * queryWidth + head * D, keys, scale, start, stop, weights);
    if (changes.length) changeScores(weights, at, [start, stop], changes);
    logsumexp[at * config.heads + head] = softmaxOf(weights, start, stop);
    if (patch?.kind === "patch") weights.set(patch.weights.subarray(at * patch.keys, at * patch.keys + stop));
    sumRows(weights, values, patch ? 0 : start, stop, sums);
    context.set(sums, row * queryWidth + head * D);
  }
  let seeing = 0; // a row that sees no key has context 0, and counts for no mean
  for (let row = 0; row < rows; row++) {
    if (logsumexp[(cache.length + row) * config.heads + head] > -Infinity) seeing++;
  }
  for (const change of changes) {
    if (change.kind === "ablate") ablate(context, head * D, D, queryWidth, change.by === "mean" ? seeing : Infinity);
  }
}

/**
 * Hides keys, adds numbers, then multiplies; mirrors `with_spans` and `with_temperature` of `intervene/_weights.py`.
 * @param {Float64Array} scores of one query @param {number} query @param {Span} seen @param {Intervention[]} changes
 */
function changeScores(scores, query, [start, stop], changes) {
  for (const change of changes) {
    if (change.kind !== "knock_out" && change.kind !== "steer") continue;
    if (change.queries && (query < change.queries[0] || query >= change.queries[1])) continue;
    const added = change.kind === "steer" ? change.by : -Infinity;
    for (let k = Math.max(start, change.keys[0]); k < Math.min(stop, change.keys[1]); k++) scores[k] += added;
  }
  for (const change of changes) {
    if (change.kind !== "temper") continue;
    for (let k = start; k < stop; k++) scores[k] *= change.by;
  }
}

/** Scores to weights, in place; the log-sum-exp. A row that sees no key has weights 0. */
function softmaxOf(/** @type {Float64Array} */ scores, /** @type {number} */ start, /** @type {number} */ stop) {
  let most = -Infinity;
  for (let k = start; k < stop; k++) if (scores[k] > most) most = scores[k];
  if (most === -Infinity) {
    scores.fill(0, start, stop);
    return -Infinity;
  }
  let sum = 0;
  for (let k = start; k < stop; k++) sum += scores[k] = Math.exp(scores[k] - most);
  for (let k = start; k < stop; k++) scores[k] /= sum;
  return most + Math.log(sum);
}

/**
 * Puts the mean over so many rows in the place of a head's contexts; mirrors `intervene/_contexts.py`.
 * @param {Float32Array} context @param {number} first @param {number} D @param {number} width
 * @param {number} count Infinity puts 0 there
 */
function ablate(context, first, D, width, count) {
  for (let d = first; d < first + D; d++) {
    let sum = 0;
    for (let at = d; at < context.length; at += width) sum += context[at];
    for (let at = d; at < context.length; at += width) context[at] = sum / Math.max(1, count);
  }
}
