/** What the likeliest next token of a text rests on: its log-probability without heads, keys or passages. */

/**
 * @typedef {import("../kernels/gpt.js").GPT} GPT
 * @typedef {import("./subject.js").LiveRun} LiveRun
 * @typedef {{layers: number[], heads: number[][]}} KnownEffects
 * of all heads of each layer together, as far as they are measured; of each head `[layer][head]`
 */

const FEW = 64; // heads that are measured in any order, as in regard/page/_changes.py
const BLOCKS = 64; // most blocks of keys that a text is cut into

/**
 * The log-probability of a token without each head, − as it is, `[layer][head]`; yields how far it is.
 *
 * Layers before that of the head give what they always give, so their stream is kept. Of many heads each layer's are
 * switched off together first: the heads of those layers without which most is lost then come before the others.
 * @param {GPT} model @param {LiveRun} plain @param {number} token
 * @param {KnownEffects} known what was measured before, to which the rest is added
 */
export function* overHeads(model, plain, token, known) {
  const { kernels, config } = model;
  const { layers, heads, dim } = config;
  const { ids } = plain;
  const total = layers * heads;
  const keep = Array.from({ length: layers }, () => kernels.allocate(4 * ids.length * dim));
  const cache = model.cache(ids.length);
  try {
    const unchanged = logOf(yield* model.read(ids, cache, { keep }), token);
    const effectOf = function* (/** @type {number} */ layer, /** @type {number|null} */ head) {
      const changes = [/** @type {const} */ ({ kind: "ablate", layer, head })];
      cache.length = 0;
      return logOf(yield* model.read(ids, cache, { changes, from: { layer, stream: keep[layer] } }), token) - unchanged;
    };
    const order = known.heads.map((_, layer) => layer);
    if (total > FEW) {
      for (let layer = known.layers.length; layer < layers; layer++) {
        known.layers.push(yield* effectOf(layer, null));
        yield { over: "layers", done: layer + 1, total: layers };
      }
      order.sort((one, other) => Math.abs(known.layers[other]) - Math.abs(known.layers[one]));
    }
    let measured = known.heads.flatMap((row, layer) => row.map((effect, head) => [layer, head, effect]));
    let done = measured.length;
    for (const layer of order)
      for (let head = known.heads[layer].length; head < heads; head++) {
        const effect = yield* effectOf(layer, head);
        known.heads[layer].push(effect);
        measured.push([layer, head, effect]);
        yield { done: ++done, total, ...(total > FEW && { unchanged, measured }) };
        measured = [];
      }
    return { unchanged, effects: known.heads, spans: null };
  } finally {
    for (const address of keep) kernels.release(address);
    cache.release();
  }
}

/**
 * The same without each token, or of a long text each block of them, hidden from all later queries.
 *
 * What comes before a hidden token is as it was, so its keys and values are kept.
 * @param {GPT} model @param {LiveRun} plain @param {number} token
 */
export function* overKeys(model, plain, token) {
  const { ids, logits } = plain;
  const spans = blocksOf(ids.length);
  const unchanged = logOf(logits, token);
  /** @type {number[]} */
  const effects = [];
  for (const keys of spans) {
    const stop = keys[1];
    if (stop === ids.length)
      effects.push(0); // no later query is there to hide it from
    else {
      const change = /** @type {const} */ ({ kind: "knock_out", layer: null, head: null, queries: null, keys });
      effects.push(logOf(yield* readOn(model, plain, stop, [change]), token) - unchanged);
    }
    yield { done: effects.length, total: spans.length };
  }
  return { unchanged, effects, spans };
}

/**
 * What the next token looks at and needs of each passage, hidden from what comes after the last one.
 * @param {GPT} model @param {LiveRun} plain @param {number} token @param {Span[]} spans
 * @param {Float32Array} row the mean weights of the last query @param {number[]} sinks keys that are left out of them
 */
export function* overPassages(model, plain, token, spans, row, sinks) {
  const { ids } = plain;
  const total = spans.length + 2;
  const start = Math.min(Math.max(...spans.map(([, stop]) => stop)), ids.length - 1);
  const keysOf = (/** @type {Span} */ [first, stop]) => Array.from({ length: stop - first }, (_, k) => first + k);
  const numbers = [];
  for (const hidden of [[], ...spans.map((span) => [span]), spans]) {
    const changes = hidden.map(
      (keys) => /** @type {const} */ ({ kind: "knock_out", layer: null, head: null, queries: null, keys }),
    );
    numbers.push(logOf(yield* readOn(model, plain, start, changes), token));
    yield { done: numbers.length, total };
  }
  const [unchanged, ...changed] = numbers;
  const effects = changed.map((number) => number - unchanged);
  const without = effects.pop();
  const weights = spans.map((span) => keysOf(span).reduce((sum, key) => sum + (sinks.includes(key) ? 0 : row[key]), 0));
  return { unchanged, effects, without, weights, spans };
}

/** The keys of a text in blocks of one size; the last may be shorter. @returns {Span[]} */
function blocksOf(/** @type {number} */ length) {
  const size = Math.ceil(length / BLOCKS);
  return Array.from({ length: Math.ceil(length / size) }, (_, k) => [k * size, Math.min((k + 1) * size, length)]);
}

/**
 * The logits where the tokens from one on are read with changes.
 * @param {GPT} model @param {LiveRun} plain @param {number} start @param {Intervention[]} changes
 */
function* readOn(model, { ids, cache }, start, changes) {
  const own = cache.branch(start, ids.length);
  try {
    return yield* model.read(ids.slice(start), own, { changes });
  } finally {
    own.release();
  }
}

/** The log-probability of a token, of logits (V), in float64. */
export function logOf(/** @type {Float32Array} */ logits, /** @type {number} */ token) {
  const most = logits.reduce((a, b) => Math.max(a, b));
  return logits[token] - most - Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
}
