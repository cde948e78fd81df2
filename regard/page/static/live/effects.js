/** What the likeliest next token of a text rests on; mirrors `regard/page/_effects.py` and `regard.lens.effects`. */
import { Cache } from "./cache.js";
import { block, embed, logitsOf, normed, rotationOf, run } from "./model.js";

/**
 * @typedef {import("./model.js").GPT} GPT
 * @typedef {import("./subject.js").LiveRun} LiveRun
 */

const BLOCKS = 64; // most blocks of keys that a text is cut into

/**
 * The log-probability of a token without each head, − as it is, `[layer][head]`; yields how far it is.
 *
 * Layers before that of the head give what they always give, so their stream is kept.
 * @param {GPT} model @param {LiveRun} plain @param {number} token
 */
export function* overHeads(model, plain, token) {
  const { layers, heads } = model.config;
  const total = layers * heads;
  const streams = yield* streamsOf(model, plain.ids);
  const unchanged = logProbability(model, streams[layers], token);
  /** @type {number[][]} */
  const effects = [];
  for (let layer = 0; layer < layers; layer++) {
    effects.push([]);
    for (let head = 0; head < heads; head++) {
      const change = /** @type {const} */ ({ kind: "ablate", layer, head, by: "zero" });
      const [last] = (yield* streamsOf(model, plain.ids, layer, streams[layer], [change])).slice(-1);
      effects[layer].push(logProbability(model, last, token) - unchanged);
      yield { done: layer * heads + head + 1, total };
    }
  }
  return { unchanged, effects, spans: null };
}

/**
 * The same without each token, or of a long text each block of them, hidden from all later queries.
 *
 * What comes before a hidden token is as it was, so its keys and values are kept.
 * @param {GPT} model @param {LiveRun} plain @param {number} token
 */
export function* overKeys(model, plain, token) {
  const { ids, cache } = plain;
  const { config } = model;
  const spans = blocksOf(ids.length);
  const [last] = (yield* streamsOf(model, ids)).slice(-1);
  const unchanged = logProbability(model, last, token);
  /** @type {number[]} */
  const effects = [];
  for (const keys of spans) {
    const stop = keys[1];
    if (stop === ids.length)
      effects.push(0); // no later query is there to hide it from
    else {
      const change = /** @type {const} */ ({ kind: "knock_out", layer: null, head: null, queries: null, keys });
      const hidden = yield* run(model, ids.slice(stop), cache.branch(config, stop, ids.length), [change]);
      effects.push(logOf(logitsOf(model, hidden.subarray(-config.dim), 1), token) - unchanged);
    }
    yield { done: effects.length, total: spans.length };
  }
  return { unchanged, effects, spans };
}

/**
 * What the next token looks at and needs of each passage, hidden from what comes after the last one; mirrors
 * `measure_passages`.
 * @param {GPT} model @param {LiveRun} plain @param {number} token @param {Span[]} spans
 * @param {Float64Array} row the mean weights of the last query
 */
export function* overPassages(model, plain, token, spans, row) {
  const { ids, cache } = plain;
  const { config } = model;
  const total = spans.length + 2;
  const start = Math.min(Math.max(...spans.map(([, stop]) => stop)), ids.length - 1);
  const keysOf = (/** @type {Span} */ [first, stop]) => Array.from({ length: stop - first }, (_, k) => first + k);
  const numbers = [];
  for (const hidden of [[], ...spans.map((span) => [span]), spans]) {
    const changes = hidden.map(
      (keys) => /** @type {const} */ ({ kind: "knock_out", layer: null, head: null, queries: null, keys }),
    );
    const stream = yield* run(model, ids.slice(start), cache.branch(config, start, ids.length), changes);
    numbers.push(logOf(logitsOf(model, stream.subarray(-config.dim), 1), token));
    yield { done: numbers.length, total };
  }
  const [unchanged, ...changed] = numbers;
  const effects = changed.map((number) => number - unchanged);
  const without = effects.pop();
  // The first token is shown apart.
  const weights = spans.map((span) => keysOf(span).reduce((sum, key) => sum + (key > 0 ? row[key] : 0), 0));
  return { unchanged, effects, without, weights, spans };
}

/** Mirrors `blocks_of`. @returns {Span[]} */
function blocksOf(/** @type {number} */ length) {
  const size = Math.ceil(length / BLOCKS);
  return Array.from({ length: Math.ceil(length / size) }, (_, k) => [k * size, Math.min((k + 1) * size, length)]);
}

/**
 * The residual stream before each layer, from one on, and after the last.
 * @param {GPT} model @param {number[]} ids @param {number} first @param {Float32Array|null} x
 * @param {Intervention[]} changes
 */
function* streamsOf(model, ids, first = 0, x = null, changes = []) {
  const { config } = model;
  const cache = new Cache(config, ids.length);
  const rotation = config.positions === "rotary" ? rotationOf(config, 0, ids.length) : null;
  const streams = [x ?? embed(model, ids, 0)];
  for (let layer = first; layer < config.layers; layer++) {
    const [before] = streams.slice(-1);
    streams.push(block(model, layer, before, ids.length, rotation, cache, changes));
    yield;
  }
  return streams;
}

/** A token's log-probability after the last of some rows of the stream. */
function logProbability(/** @type {GPT} */ model, /** @type {Float32Array} */ x, /** @type {number} */ token) {
  const last = normed(model, x.subarray(-model.config.dim));
  return logOf(logitsOf(model, last, 1), token);
}

/** Mirrors `regard.lens.LogProbability`, in float64. */
function logOf(/** @type {Float32Array} */ logits, /** @type {number} */ token) {
  const most = logits.reduce((a, b) => Math.max(a, b));
  return logits[token] - most - Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
}
