/** Heads of one run put into another, one by one: what `regard.lens.patch` measures, of contexts at all positions. */
import { logOf } from "./effects.js";
import { outputOf } from "./views.js";

/**
 * T tokens, E model dimension, D head dimension.
 * @typedef {import("../kernels/gpt.js").GPT} GPT
 * @typedef {import("../kernels/pattern.js").Pattern} Pattern
 * @typedef {import("./subject.js").LiveRun} LiveRun
 */

/**
 * The number with each head patched − as it is, `[layer][head]`; yields how far it is.
 *
 * Layers before that of the head give what they always give, so their stream is kept.
 * @param {GPT} model @param {LiveRun} one @param {LiveRun} other
 * @param {number[]} answers the likeliest next token of one, and of the other
 * @param {(layer: number, head: number) => Pattern} headOf a head of the other
 */
export function* overPatches(model, one, other, answers, headOf) {
  const { kernels, config } = model;
  const { layers, heads, dim } = config;
  const { ids } = one;
  const [now, then] = answers;
  const numberOf = (/** @type {Float32Array} */ logits) =>
    now === then ? logOf(logits, now) : logits[then] - logits[now];
  /** @type {number[][]} */
  const values = [];
  const keep = Array.from({ length: layers }, () => kernels.allocate(4 * ids.length * dim));
  const cache = model.cache(ids.length);
  try {
    const unchanged = numberOf(yield* model.read(ids, cache, { keep }));
    for (let layer = 0; layer < layers; layer++) {
      values.push([]);
      for (let head = 0; head < heads; head++) {
        const added = addedBy(headOf(layer, head), outputOf(model, layer, head), dim);
        const changes = [/** @type {const} */ ({ kind: "replace", layer, head, added })];
        cache.length = 0;
        /** @type {Float32Array} */
        let logits = new Float32Array();
        for (let at = 0; at < ids.length; at++) {
          const from = { layer, stream: keep[layer] + 4 * at * dim };
          logits = yield* model.read([ids[at]], cache, { changes, from });
        }
        values[layer].push(numberOf(logits) - unchanged);
        yield { done: layer * heads + head + 1, total: layers * heads };
      }
    }
    return { unchanged, other: numberOf(other.logits), values };
  } finally {
    for (const address of keep) kernels.release(address);
    cache.release();
  }
}

/** What a head adds to the stream at each position, (T, E). @param {Pattern} head @param {Float32Array} output (E, D) @param {number} dim */
function addedBy(head, output, dim) {
  const added = new Float32Array(head.length * dim);
  for (let at = 0; at < head.length; at++) {
    const context = head.context(at);
    const D = context.length;
    for (let row = 0; row < dim; row++)
      added[at * dim + row] = context.reduce((sum, x, k) => sum + x * output[row * D + k], 0);
  }
  return added;
}
