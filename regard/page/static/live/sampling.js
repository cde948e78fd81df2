/** Sampling the next token; a seed gives the same random numbers here and in Python. */
import { blake2b } from "./blake2b.js";

const BITS = 48; // of a random number

/**
 * How the next token is drawn: the fields of `regard.gpt.Sampling`, in their order.
 * @typedef {{repetition_penalty?: number, temperature?: number, top_k?: number|null, top_p?: number, min_p?: number,
 *   seed?: bigint}} Sampling
 */

/**
 * The next token, of logits (V).
 * @param {Float32Array} logits @param {Sampling} sampling @param {number} step @param {Iterable<number>} text its ids
 */
export function draw(logits, sampling, step, text) {
  const { repetition_penalty: penalty = 1, temperature = 0.8, seed = 0n } = sampling;
  const own = penalty === 1 ? logits : penalised(logits, text, penalty);
  if (temperature === 0) return likeliest(own);
  return pick(probabilities(own, sampling), uniform(seed, 0n, BigInt(step)));
}

/** Probabilities of logits, in float64. @param {ArrayLike<number>} logits */
export const softmax = (logits) => normalized(new Float64Array(logits));

/** Turns logits into probabilities in their place. @param {Float64Array} logits */
function normalized(logits) {
  // Loops, since `from` with a function takes ten times as long, and vocabularies are large.
  let [most, sum] = [-Infinity, 0];
  for (let k = 0; k < logits.length; k++) if (logits[k] > most) most = logits[k];
  for (let k = 0; k < logits.length; k++) sum += logits[k] = Math.exp(logits[k] - most);
  for (let k = 0; k < logits.length; k++) logits[k] /= sum;
  return logits;
}

/** The places of the largest numbers, the largest first; among equals the first ones. @param {ArrayLike<number>} values @param {number} count */
export function largest(values, count) {
  /** @type {number[]} */
  const best = [];
  for (let place = 0; place < values.length; place++) {
    if (best.length === count && values[place] <= values[best[count - 1]]) continue;
    const at = best.findLastIndex((other) => values[other] >= values[place]);
    best.splice(at + 1, 0, place);
    if (best.length > count) best.pop();
  }
  return best;
}

/** The first of the likeliest tokens. */
const likeliest = (/** @type {Float32Array} */ logits) => largest(logits, 1)[0];

/** Makes the tokens of a text less likely. */
function penalised(
  /** @type {Float32Array} */ logits,
  /** @type {Iterable<number>} */ text,
  /** @type {number} */ penalty,
) {
  const result = logits.slice();
  for (const token of new Set(text))
    result[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
  return result;
}

/** The distribution of the next token: all filters, then a softmax. */
export function probabilities(/** @type {Float32Array} */ logits, /** @type {Sampling} */ sampling) {
  const { temperature = 0.8, top_k: k = null, top_p: p = 1, min_p: least = 0 } = sampling;
  const most = logits[likeliest(logits)];
  const scaled = new Float64Array(logits.length);
  for (let place = 0; place < scaled.length; place++)
    scaled[place] = (logits[place] - most) / Math.max(temperature, 2 ** -126);
  if (k != null || p < 1) {
    const order = [...scaled.keys()].sort((a, b) => scaled[b] - scaled[a] || a - b); // among equals the first ones
    drop(scaled, order, k ?? scaled.length);
    if (p < 1) drop(scaled, order, reaching(softmax(scaled), order, p));
  }
  if (!least) return normalized(scaled);
  const shares = softmax(scaled);
  const bound = least * shares.reduce((a, b) => Math.max(a, b));
  return normalized(scaled.map((score, token) => (shares[token] < bound ? -Infinity : score)));
}

/** Leaves only so many of the likeliest. */
function drop(/** @type {Float64Array} */ scaled, /** @type {number[]} */ order, /** @type {number} */ count) {
  for (const token of order.slice(count)) scaled[token] = -Infinity;
}

/** How many of the likeliest make up a probability. */
function reaching(/** @type {Float64Array} */ shares, /** @type {number[]} */ order, /** @type {number} */ p) {
  let sum = 0;
  const count = order.findIndex((token) => (sum += shares[token]) >= p);
  return count < 0 ? order.length : count + 1;
}

/** The token at which the running sum of the probabilities passes a number in [0, 1). */
function pick(/** @type {Float64Array} */ shares, /** @type {number} */ number) {
  let [whole, sum] = [0, 0];
  for (let token = 0; token < shares.length; token++) whole += shares[token];
  const drawn = number * whole;
  return shares.findIndex((share) => (sum += share) > drawn);
}

/** A random number in [0, 1) that is a function of three others. */
export const uniform = (/** @type {bigint} */ seed, /** @type {bigint} */ copy, /** @type {bigint} */ step) =>
  Number(blake2b([seed, copy, step], BITS / 8) & ((1n << BigInt(BITS)) - 1n)) / 2 ** BITS;

/** A seed where none was chosen. */
export const anySeed = () => crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n;
